// Same bits, less memory. test_gpt_modes.cpp, test_gpt_lazy.cpp and test_train_compiled.cpp test a GPT.
#include <tapegrad/autograd/recompute.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/observe.h>
#include <tapegrad/core/plan/compile.h>

#include "support/case_run.h"

using namespace tg;
namespace {
using Recomputing = ScopeIf<RecomputeScope>;
// The case between cheap ops: saved inputs and outputs can be recomputed.
OpCase between_cheap(const OpCase& c, bool recompute) {
  OpCase r = c;
  r.fn = [fn = c.fn, recompute](Inputs in) {
    const Recomputing scope(recompute);
    std::vector<Tensor> x(in.begin(), in.end());
    for (auto& t : x)
      if (is_float(t.dtype())) t = t * 1.0;
    Tensors out = fn(x);
    for (auto& t : out)
      if (is_float(t.dtype())) t = gelu(t) * t;
    return out;
  };
  return r;
}
using Function = std::function<Tensor(Inputs)>;  // leaves -> loss
struct RecomputedRun {
  std::vector<std::vector<std::byte>> bits;  // loss, gradients
  int64_t kept = 0;                          // bytes after forward
  uint64_t kernels = 0;                      // kernels of backward
};
RecomputedRun run(const Function& f, std::vector<Tensor> x, bool recompute) {
  for (auto& t : x) t = t.detach();
  for (auto& t : x)
    if (is_float(t.dtype())) t.requires_grad_();
  RecomputedRun r;
  const int64_t before = memory_stats().live;
  Tensor loss;
  {
    const Recomputing scope(recompute);
    loss = f(x);
  }
  r.kept = memory_stats().live - before;
  r.bits.push_back(bits_of(loss));
  const uint64_t kernels = engine_stats().kernels;
  const GradMap g = backward(loss);
  r.kernels = engine_stats().kernels - kernels;
  for (auto& t : x) r.bits.push_back(g[t] ? bits_of(g[t]) : std::vector<std::byte>());
  return r;
}
void check_saves(const Function& f, const std::vector<Tensor>& x, int64_t less, uint64_t more) {
  const RecomputedRun plain = run(f, x, false), again = run(f, x, true);
  CHECK(again.bits == plain.bits);
  CHECK(plain.kept - again.kept == less);
  CHECK(again.kernels - plain.kernels == more);
  LazyScope lazy;
  CHECK(run(f, x, true).bits == plain.bits);
}
constexpr int64_t kRows = 64, kCols = 128, kBytes = kRows * kCols * 4;
Tensor activation(uint64_t seed) { return random({kRows, kCols}, seed); }
Tensor square(uint64_t seed) { return random({kCols, kCols}, seed, -0.1, 0.1); }
Tensor row(uint64_t seed) { return random({kCols}, seed, 0.5, 1.5); }
}  // namespace

TEST_CASE("recompute: the gradients of every op are the same bits, eager, lazy and compiled") {
  uint64_t with = 0, without = 0;  // kernels
  for (auto& c : op_cases())
    for (const DType t : {DType::f32, DType::bf16}) {
      CAPTURE(name_of(t));
      const OpCase plain = between_cheap(c, false), again = between_cheap(c, true);
      const auto x = make_inputs(c, t);
      const auto w = weights_of(plain.fn(x));
      const uint64_t start = engine_stats().kernels;
      const Result expected = run_case(plain, x, w);
      const uint64_t middle = engine_stats().kernels;
      check_equal(c, run_case(again, x, w), expected);
      without += middle - start, with += engine_stats().kernels - middle;
      {
        LazyScope lazy;
        const Result r = run_case(again, x, w);
        eval(roots_of(r));
        check_equal(c, r, expected);
      }
      if (draws(c)) continue;
      const Compiled f =
          compile([&](Inputs in) { return roots_of(run_case(again, std::vector<Tensor>(in.begin(), in.end()), w)); });
      const std::vector<Tensor> want = roots_of(expected);
      for (int call = 0; call < 2; ++call) check_same_bits(f(x), want);
    }
  CHECK(with > without + without / 20);
}

TEST_CASE("recompute: one norm that three products read is computed again once") {
  const Function f = [](Inputs x) {
    const Tensor h = linear(x[0], x[4]), y = layer_norm(h, x[5], x[6]);
    return sum(linear(y, x[1]) * linear(y, x[2]) * linear(y, x[3]));
  };
  // One of two elementwise products is cheap: the other's input.
  const std::vector<Tensor> x{activation(1), square(2), square(3), square(4), square(5), row(6), row(7)};
  check_saves(f, x, 2 * kBytes, 2);
}
TEST_CASE("recompute: an activation, with dropout behind it, by the same mask and without drawing again") {
  check_saves([](Inputs x) { return sum(linear(gelu(linear(x[0], x[1])), x[2])); },
              {activation(1), square(2), square(3)}, kBytes, 1);
  const Function f = [](Inputs x) {
    Rng rng{5, 3};
    return sum(linear(dropout(gelu(linear(x[0], x[1])), 0.4, rng), x[2]));
  };
  check_saves(f, {activation(1), square(2), square(3)}, kBytes, 2);
  // Compiled: each run draws anew.
  Rng rng{5};
  const std::vector<Tensor> x{activation(1).requires_grad_(), square(2).requires_grad_(), square(3).requires_grad_()};
  const auto step = [&](bool recompute) {
    return TensorFunction([&x, &rng, recompute](Inputs) {
      const Recomputing scope(recompute);
      const GradMap g = backward(sum(linear(dropout(gelu(linear(x[0], x[1])), 0.4, rng), x[2])));
      return std::vector<Tensor>{g[x[0]], g[x[1]], g[x[2]]};
    });
  };
  const Compiled again = compile(step(true), {.generators = {&rng}});
  for (int i = 0; i < 3; ++i) {
    const Rng before = rng;
    const auto got = again({});
    const Rng after = std::exchange(rng, before);
    const auto want = step(false)({});
    CHECK(rng == after);
    check_same_bits(got, want);
  }
}
TEST_CASE("recompute: of a residual sum and its norm the norm is made again, out of the sum") {
  for (const bool centred : {true, false}) {
    CAPTURE(centred);
    const Function f = [&](Inputs x) {
      const Tensor r = linear(x[0], x[1]);
      const AddedNorm n = centred ? add_layer_norm(x[0] * 1.0, r, x[2], x[3]) : add_rms_norm(x[0] * 1.0, r, x[2]);
      return sum(linear(n.y, x[4]) + n.sum);
    };
    check_saves(f, {activation(1), square(2), row(3), row(4), square(5)}, kBytes, 1);
  }
}
TEST_CASE("recompute: weights and biases that are frozen are kept for it, large constants are not") {
  const Tensor w = row(3), b = row(4), large = activation(5);
  const Function norm = [&](Inputs x) { return sum(linear(layer_norm(linear(x[0], x[1]), w, b), x[2])); };
  check_saves(norm, {activation(1), square(2), square(3)}, kBytes, 1);
  const Function shifted = [&](Inputs x) { return sum(linear(gelu(linear(x[0], x[1])) + large * 1.0, x[2])); };
  check_saves(shifted, {activation(1), square(2), square(3)}, 0, 0);
  const Function biased = [&](Inputs x) { return sum(linear(gelu(linear(x[0], x[1])) + b * 1.0, x[2])); };
  check_saves(biased, {activation(1), square(2), square(3)}, kBytes - kCols * 4, 2);
}
TEST_CASE("recompute: what would need an input that nobody keeps stays as it is") {
  Rng rng{1};
  const Function f = [&](Inputs x) {
    Tensor h = linear(dropout(linear(x[0], x[1]), 0.5, rng = Rng{1}), x[2]);  // dropout saves nothing
    h = linear(tg::tanh(h), x[2]);                                            // tanh saves what it makes
    h = linear(softmax(h), x[2]);                                             // no cheap op
    return sum(linear(h + linear(h, x[1]), x[2]));
  };
  check_saves(f, {activation(1), square(2), square(3)}, 0, 0);
}
TEST_CASE("recompute: casts of weights, gates, and views of norms") {
  const Function casts = [](Inputs x) {
    return sum(linear(x[0].to(DType::bf16), x[1].to(DType::bf16)).to(DType::f32) * 2.0);
  };
  check_saves(casts, {activation(1), square(2)}, kBytes / 2 + kCols * kCols * 2, 2);
  const Function gate = [](Inputs x) {
    const Tensor h = linear(x[0], x[1]);
    return sum(linear(silu(h) * linear(x[0], x[2]), x[2]));
  };
  check_saves(gate, {activation(1), square(2), square(3)}, 2 * kBytes, 2);
  const Function swi = [](Inputs x) { return sum(linear(swiglu(linear(x[0], x[1])), slice(x[2], 1, 0, kCols / 2))); };
  check_saves(swi, {activation(1), square(2), square(3)}, kBytes / 2, 1);
  const Function viewed = [](Inputs x) {
    const Tensor y = rms_norm(linear(x[0], x[1]), x[3]);
    return sum(matmul(transpose(reshape(y, {2, kRows / 2, kCols}), 1, 2), reshape(y, {2, kRows / 2, kCols})));
  };
  check_saves(viewed, {activation(1), square(2), square(3), row(4)}, kBytes, 1);
  const Function rotated = [](Inputs x) { return sum(linear(rope(rms_norm(linear(x[0], x[1]), x[3])), x[2])); };
  check_saves(rotated, {activation(1), square(2), square(3), row(4)}, kBytes, 2);
}
TEST_CASE("recompute: a chain of cheap ops is cut by values that are kept, and each is computed again once") {
  const auto chain = [](int n) {
    return Function([n](Inputs x) {
      Tensor y = linear(x[0], x[1]);
      for (int i = 0; i < n; ++i) y = tg::sin(y);
      return sum(y);
    });
  };
  const std::vector<Tensor> x{activation(1), square(2)};
  check_saves(chain(9), x, 8 * kBytes, 8);
  check_saves(chain(27), x, 24 * kBytes, 24);
  // The graph is too deep for recursion.
  const std::vector<Tensor> small{random({2, 2}, 1), random({2, 2}, 2)};
  CHECK(run(chain(100000), small, true).bits == run(chain(100000), small, false).bits);
}
TEST_CASE("recompute: what the caller holds is read where it is, and a write to it is found") {
  for (const bool recompute : {false, true})
    for (const bool write : {false, true}) {
      Tensor x = activation(1), w = square(2).requires_grad_(), v = square(3).requires_grad_();
      Tensor y, loss;
      {
        const Recomputing scope(recompute);
        y = gelu(linear(x, w));
        loss = sum(linear(y, v));
      }
      if (write) {
        y.mutable_data<float>()[0] = 1;
        CHECK_SAYS(backward(loss),
                   "[linear] input 0 (64, 128) f32 was changed after it was saved for backward: it had version 0, now "
                   "1. A write through any view counts. Write to a copy, or after backward.");
      } else {
        const uint64_t before = engine_stats().kernels;
        const GradMap g = backward(loss);
        static uint64_t kernels = 0;
        if (recompute) CHECK(engine_stats().kernels - before == kernels);
        kernels = engine_stats().kernels - before;
        CHECK(g.size() == 2);
      }
    }
}
TEST_CASE("recompute: a value that was written to before it was saved is kept") {
  for (const bool through_view : {false, true}) {
    std::vector<std::vector<std::byte>> gradients;
    for (const bool recompute : {false, true}) {
      const Recomputing on(recompute);
      Tensor x = activation(1).requires_grad_(), v = square(3).requires_grad_();
      Tensor y = gelu(x), seen = through_view ? reshape(y, {2, kRows / 2, kCols}) : y;
      y.mutable_data<float>()[0] = 100;
      const Tensor loss = sum(linear(seen, v));
      y = seen = {};
      gradients.push_back(bits_of(backward(loss)[v]));
    }
    CHECK(gradients[0] == gradients[1]);
  }
}
TEST_CASE("recompute: a write to what is read again is the Error that it is without") {
  std::vector<std::string> messages;
  for (const bool recompute : {false, true}) {
    const NameScope scope("layer");
    Tensor x = activation(1), w = row(2).requires_grad_(), v = square(3).requires_grad_(), loss;
    w.label("weight");
    x = x * 1.0;
    {
      const Recomputing on(recompute);
      Tensor leaf = Tensor(x.value()).requires_grad_();
      loss = sum(linear(rms_norm(leaf, w), v));
    }
    x.mutable_data<float>()[0] = 1;
    messages.push_back(error_of([&] { backward(loss); }));
  }
  CHECK_HAS(messages[0], "[rms_norm] input 0 (64, 128) f32 was changed after it was saved for backward", "in layer");
  CHECK(messages[0] == messages[1]);
  Tensor b = row(1).requires_grad_(), w = row(2).requires_grad_(), v = square(3).requires_grad_(), x = activation(4);
  const RecomputeScope on;
  const Tensor loss = sum(linear(layer_norm(x.requires_grad_(), w, b.label("bias")), v));
  b.mutable_data<float>()[0] = 1;
  CHECK_SAYS(backward(loss), "[layer_norm] input 2 'bias' (128) f32 was changed after it was saved");
}
TEST_CASE("recompute: retain_graph, and a tape that is gone") {
  for (const bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = activation(1).requires_grad_(), w = row(2).requires_grad_(), v = square(3).requires_grad_(), loss, plain;
    under<RecomputeScope>([&] { loss = sum(gelu(linear(rms_norm(x, w), v))); });
    plain = sum(gelu(linear(rms_norm(x, w), v)));
    const GradMap expected = backward(plain);
    const int64_t before = memory_stats().live;
    for (const bool retain : {true, true, false}) {
      const GradMap g = backward(loss, {.retain_graph = retain});
      int64_t grads = 0;
      for (const auto& [id, gradient] : g.map()) grads += int64_t(gradient.layout().bytes());
      if (!lazy) CHECK(memory_stats().live <= before + grads);  // recomputed values are released
      for (const Tensor& t : {x, w, v}) CHECK(bits_of(g[t]) == bits_of(expected[t]));
    }
    CHECK_SAYS(backward(loss), "was released by an earlier backward");
  }
}
TEST_CASE("recompute: second derivatives, and hooks once") {
  for (const bool lazy : {false, true}) {
    Mode mode(lazy);
    std::vector<std::vector<std::vector<std::byte>>> all;
    for (const bool recompute : {false, true}) {
      Tensor x = activation(1).requires_grad_(), w = row(2).requires_grad_(), v = square(3).requires_grad_(), loss;
      int fired = 0;
      {
        const Recomputing on(recompute);
        Tensor y = rms_norm(x, w);
        y.on_grad([&](const Tensor& g) { return ++fired, g * 0.5; });
        loss = sum(gelu(linear(y, v)));
      }
      const GradMap first = backward(loss, {.create_graph = true});
      CHECK(fired == 1);
      const GradMap second = backward(sum(first[v] * first[v]) + sum(first[x] * 2.0));
      CHECK(fired == 2);
      auto& bits = all.emplace_back();
      for (const Tensor& t : {x, w, v}) bits.push_back(bits_of(first[t])), bits.push_back(bits_of(second[t]));
      {
        const Recomputing on(recompute);
        loss = sum(linear(rms_norm(x, w), v));
      }
      const Tensor dv = backward(loss, {.create_graph = true})[v];  // x has no other path
      bits.push_back(bits_of(backward(sum(dv * dv))[x]));
    }
    CHECK(all[0] == all[1]);
  }
}
TEST_CASE("recompute: a value that is read again is not merged with the first, so lazy and compiled steps hold less") {
  const auto step = [](bool recompute) {
    return TensorFunction([recompute](Inputs x) {
      std::vector<Tensor> leaves(x.begin(), x.end());
      for (auto& t : leaves) t = t.detach().requires_grad_();
      const Recomputing on(recompute);
      Tensor y = leaves[0];
      for (size_t i = 1; i < 17; i += 2) y = linear(gelu(linear(rms_norm(y), leaves[i])), leaves[i + 1]);
      y = sum(y);
      const GradMap g = backward(y);
      std::vector<Tensor> r{y.detach()};
      for (auto& t : leaves) r.push_back(g[t]);
      return r;
    });
  };
  std::vector<Tensor> x{activation(1)};
  for (uint64_t i = 0; i < 16; ++i) x.push_back(square(i));
  const auto lazily = [&](bool recompute) {
    const EngineStats before = engine_stats();
    std::vector<std::vector<std::byte>> bits;
    {
      LazyScope lazy;
      std::vector<Tensor> leaves;
      for (auto& t : x) leaves.push_back(Tensor(t.value()));
      const auto out = step(recompute)(leaves);
      eval(out);
      bits = bits_of(out);
    }
    return std::pair(bits, int64_t(engine_stats().planned_live_bytes - before.planned_live_bytes));
  };
  const auto [plain, more] = lazily(false);
  const auto [again, less] = lazily(true);
  CHECK(plain == again);
  CHECK(less <= more - 14 * kBytes);
  const Compiled f = compile(step(false)), g = compile(step(true));
  for (int call = 0; call < 2; ++call) {
    CHECK(bits_of(f(x)) == plain);
    CHECK(bits_of(g(x)) == plain);
  }
  CHECK(int64_t(g.stats().bytes) <= int64_t(f.stats().bytes) - 14 * kBytes);
  CHECK(g.stats().ops == f.stats().ops + 16);
}
TEST_CASE("recompute: scopes nest, end, and belong to the signature of compiled functions") {
  CHECK_FALSE(recompute_enabled());
  {
    const RecomputeScope outer;
    under<RecomputeScope>([&] { CHECK(recompute_enabled()); });
    CHECK(recompute_enabled());
  }
  CHECK_FALSE(recompute_enabled());
  Tensor x = activation(1), w = square(2).requires_grad_();
  const Compiled f = compile([&](Inputs) {
    const Tensor loss = sum(linear(gelu(linear(x, w)), w));
    return std::vector<Tensor>{backward(loss)[w], loss.detach()};
  });
  const auto plain = bits_of(f({})[0]);
  const size_t ops = f.stats().ops;
  const RecomputeScope on;
  CHECK(bits_of(f({})[0]) == plain);
  CHECK(f.stats().traces == 2);
  CHECK(f.stats().ops == ops + 1);
}
TEST_CASE("recompute: a value that is given away for its memory, checkpoints, and observers") {
  Tensor w = square(1).requires_grad_();
  const Tensor x = activation(2), targets = filled<int64_t>({kRows}, 3);
  const auto gradient = [&](bool recompute) {
    const Recomputing on(recompute);
    return bits_of(backward(cross_entropy(gelu(linear(x, w)), targets))[w]);
  };
  CHECK(gradient(true) == gradient(false));
  const RecomputeFn part = [&](Inputs in, Rng*) { return Tensors{gelu(linear(rms_norm(in[0]), w))}; };
  const auto checkpointed = [&](bool recompute) {
    const Recomputing on(recompute);
    const Tensor h = rms_norm(linear(x, w));
    return bits_of(backward(sum(tg::recompute(part, {&h, 1})[0] * h))[w]);
  };
  CHECK(checkpointed(true) == checkpointed(false));
  const auto seen = [&](bool recompute) {
    std::vector<std::string> names;
    const ObserveScope observe([&](const Observed& o) { names.emplace_back(o.op); });
    gradient(recompute);
    const Recomputing on(recompute);
    backward(sum(linear(gelu(linear(x, w)), w)));
    return names;
  };
  CHECK(seen(true) == seen(false));
}
