// Rules that fuse several ops of a plan: where they apply, their values, gradients and saved tensors.
#include <tapegrad/core/node.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/plan/plan.h>
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"
#include "support/with_env.h"

using namespace tg;
namespace {
using Make = std::function<std::vector<Tensor>()>;
struct LazyResult {
  std::vector<Tensor> results;
  uint64_t kernels;
};
LazyResult lazily(const Make& f) {
  LazyScope lazy;
  std::vector<Tensor> r = f();
  const uint64_t before = engine_stats().kernels;
  eval(r);
  return {std::move(r), engine_stats().kernels - before};
}
enum class Bits { same, rounded };
// The rules turn `without` kernels into `with`. f32 and f64 agree by `bits`, bf16 to its rounding.
void applies(const std::function<Make(DType)>& make, uint64_t with, uint64_t without, Bits bits = Bits::same) {
  for (const DType t : {DType::f32, DType::f64, DType::bf16}) {
    CAPTURE(name_of(t));
    const Make f = make(t);
    const std::vector<Tensor> want = f();
    const LazyResult got = lazily(f);
    CHECK(got.kernels == with);
    if (bits == Bits::same)
      check_same_bits(got.results, want);
    else
      check_near(got.results, want, t == DType::bf16 ? 2e-2 : t == DType::f32 ? 1e-6 : 1e-14);
    {
      const WithEnv off("TG_PASSES", "-rewrite");
      const LazyResult plain = lazily(f);
      CHECK(plain.kernels == without);
      check_same_bits(plain.results, want);
    }
    const Compiled compiled = compile([&](Inputs) { return f(); });
    for (int run = 0; run < 3; ++run) check_same_bits(compiled({}), got.results);
    CHECK(compiled.stats().ops == with);
  }
}
// No rule applies.
void stays(const Make& f) {
  const LazyResult with = lazily(f);
  const WithEnv off("TG_PASSES", "-rewrite");
  const LazyResult without = lazily(f);
  CHECK(with.kernels == without.kernels);
  check_same_bits(with.results, without.results);
}
struct Stream {  // residual: x, r (5, 9), weight and bias (9)
  Tensor x, r, w, b;
  explicit Stream(DType t)
      : x(random({5, 9}, 1).to(t)), r(random({5, 9}, 2).to(t)), w(random({9}, 3).to(t)), b(random({9}, 4).to(t)) {}
};
struct Layer {  // x (6, 8), a (8, 3), b (3, 5), weight (5, 8), bias (5)
  Tensor x, a, b, weight, bias;
  explicit Layer(DType t)
      : x(random({6, 8}, 1).to(t)),
        a(random({8, 3}, 2).to(t)),
        b(random({3, 5}, 3).to(t)),
        weight(random({5, 8}, 4).to(t)),
        bias(random({5}, 5).to(t)) {}
};
}  // namespace

TEST_CASE("a sum and its norm are one op, and the sum is there too") {
  applies(
      [](DType t) {
        return [s = Stream(t)] {
          const Tensor sum = s.x + s.r;
          return std::vector{layer_norm(sum, s.w, s.b), sum};
        };
      },
      1, 2);
  applies([](DType t) { return [s = Stream(t)] { return std::vector{layer_norm(s.x + s.r, s.w)}; }; }, 1, 2);
  applies([](DType t) { return [s = Stream(t)] { return std::vector{layer_norm(s.x + s.r)}; }; }, 1, 2);
  applies(
      [](DType t) {
        return [s = Stream(t)] {
          const Tensor sum = s.x + s.r, y = rms_norm(sum, s.w);
          return std::vector{y, matmul(y, sum, {.trans_b = true})};
        };
      },
      2, 3);
}
TEST_CASE("a linear layer takes in the bias that is added to it, and the activation behind it") {
  applies([](DType t) { return [l = Layer(t)] { return std::vector{linear(l.x, l.weight) + l.bias}; }; }, 1, 2,
          Bits::rounded);
  applies([](DType t) { return [l = Layer(t)] { return std::vector{l.bias + linear(l.x, l.weight)}; }; }, 1, 2,
          Bits::rounded);
  applies([](DType t) { return [l = Layer(t)] { return std::vector{tg::gelu(linear(l.x, l.weight, l.bias))}; }; }, 1,
          2);
  applies([](DType t) { return [l = Layer(t)] { return std::vector{silu(linear(l.x, l.weight))}; }; }, 1, 2);
  applies([](DType t) { return [l = Layer(t)] { return std::vector{relu(linear(l.x, l.weight) + l.bias)}; }; }, 1, 2,
          Bits::rounded);     // a chain of two otherwise
  const Layer l(DType::f32);  // f32: the bias is added to the same sum
  CHECK(bits_of(lazily([&] { return std::vector{linear(l.x, l.weight) + l.bias}; }).results[0]) ==
        bits_of(linear(l.x, l.weight) + l.bias));
}
TEST_CASE("products by two thin matrices are one op, wherever the scale stands, with a base or without") {
  const auto both = [](uint64_t without, auto scaled) {
    applies([=](DType t) { return [l = Layer(t), scaled] { return std::vector{scaled(l)}; }; }, 1, 3, Bits::rounded);
    applies([=](DType t) { return [l = Layer(t), scaled] { return std::vector{linear(l.x, l.weight) + scaled(l)}; }; },
            2, without, Bits::rounded);
  };
  both(4, [](const Layer& l) { return matmul(matmul(l.x, l.a), l.b) * 0.3; });  // the factor and the sum are a chain
  both(5, [](const Layer& l) { return matmul(matmul(l.x, l.a) * 0.3, l.b); });
  // (2, 3, 8), and h is read by another op.
  const Tensor x = random({2, 3, 8}, 1), a = random({8, 2}, 2), b = random({2, 4}, 3);
  const Make f = [&] {
    const Tensor h = matmul(x, a);
    return std::vector{matmul(h, b) * 2.0, h, sum(h)};
  };
  const std::vector<Tensor> want = f();
  const LazyResult got = lazily(f);
  CHECK(got.kernels == 2);
  check_near(got.results, want, 1e-6);
}
TEST_CASE("the factor of a rewritten product is that of this evaluation, not of the one that was planned") {
  const Layer l(DType::f32);
  for (const double scale : {0.5, 2.0, -1.0}) {
    const auto plans = engine_stats().plans;
    const LazyResult got = lazily([&] { return std::vector{matmul(matmul(l.x, l.a) * scale, l.b)}; });
    CHECK(bits_of(got.results[0]) == bits_of(lora(l.x, l.a, l.b, scale)));
    if (scale != 0.5) CHECK(engine_stats().plans == plans);
  }
}
TEST_CASE("a rule does not apply where its op would make less than is read, or something else") {
  const Stream s(DType::f32);
  const Layer l(DType::f32);
  stays([&] { return std::vector{layer_norm(s.x + s.w)}; });  // broadcast
  stays([&] {                                                 // read before the norm runs
    const Tensor sum = s.x + s.r, between = cumsum(sum, 0);
    return std::vector{layer_norm(sum), between};
  });
  stays([&] { return std::vector{layer_norm(s.x - s.r)}; });
  stays([&] {  // held values, and values that other ops read
    const Tensor z = linear(l.x, l.weight);
    return std::vector{tg::gelu(z), z};
  });
  stays([&] {
    const Tensor z = linear(l.x, l.weight);
    return std::vector{tg::gelu(z) + cumsum(z, 0)};
  });
  stays([&] { return std::vector{linear(l.x, l.weight) + random({6, 1}, 9)}; });
  stays([&] { return std::vector{linear(l.x, l.weight, l.bias) + l.bias}; });
  stays([&] { return std::vector{matmul(matmul(l.x, l.a), l.b)}; });  // no factor
  stays([&] { return std::vector{matmul(matmul(l.x, l.a) * 0.5, random({5, 3}, 1), {.trans_b = true})}; });
  stays([&] { return std::vector{matmul(matmul(l.x, random({8, 65}, 1)) * 0.5, random({65, 5}, 2))}; });
  stays([&] { return std::vector{matmul(matmul(random({2, 6, 8}, 1), random({2, 8, 3}, 1)) * 0.5, l.b)}; });
  stays([&] {
    const Tensor inner = matmul(l.x, l.a) * 0.5;
    return std::vector{matmul(inner, l.b), inner};
  });
  CHECK(lazily([&] { return std::vector{matmul(matmul(l.x, l.a) * 0.5, l.b) + l.bias}; }).kernels == 2);  // no base
  // An op must not match two places of a pattern.
  const Tensor square = random({4, 4}, 1);
  stays([&] {
    const Tensor h = matmul(square, square) * 0.5;
    return std::vector{matmul(h, h)};
  });
}
TEST_CASE("gradients through rewritten ops are eager's, and what backward reads is kept") {
  Stream s(DType::f32);
  Layer l(DType::f32);
  for (Tensor* t : {&s.x, &s.r, &s.w, &s.b, &l.x, &l.a, &l.b, &l.weight, &l.bias}) t->requires_grad_();
  struct Case {
    std::function<Tensor()> f;
    std::vector<Tensor> leaves;
    bool same_bits;
  };
  const std::vector<Case> cases = {
      {[&] {
         const Tensor sum_ = s.x + s.r;
         return sum(tg::tanh(layer_norm(sum_, s.w, s.b)) * sum_);
       },
       {s.x, s.r, s.w, s.b},
       true},
      {[&] { return sum(tg::tanh(rms_norm(s.x + s.r, s.w))); }, {s.x, s.r, s.w}, true},
      {[&] { return sum(tg::gelu(linear(l.x, l.weight) + l.bias)); }, {l.x, l.weight, l.bias}, true},
      {[&] { return sum(tg::tanh(linear(l.x, l.weight) + matmul(matmul(l.x, l.a), l.b) * 0.3)); },
       {l.x, l.weight, l.a, l.b},
       false},
  };
  for (const Case& c : cases) {
    CAPTURE(&c - cases.data());
    const auto gradients = [&](bool at_once) {
      const Tensor loss = c.f();
      if (!at_once) eval({loss});
      GradMap g = backward(loss);
      std::vector<Tensor> r{loss.detach()};
      for (const Tensor& leaf : c.leaves) r.push_back(g[leaf]);
      return r;
    };
    const std::vector<Tensor> want = gradients(true);
    for (const bool at_once : {true, false}) {  // forward and backward in one evaluation, or in two
      LazyScope lazy;
      const std::vector<Tensor> got = gradients(at_once);
      eval(got);
      if (c.same_bits)
        check_same_bits(got, want);
      else
        check_near(got, want, 1e-6);
    }
  }
}
TEST_CASE("a rewritten op takes over what dies in it, and leaves no value in between") {
  const int64_t n = 256;
  const Tensor x = random({n, n}, 1), a = random({n, 2}, 2), b = random({2, n}, 3), w = random({n, n}, 4);
  const auto planned = [&](const std::function<Tensor()>& f) {
    const auto before = engine_stats().planned_live_bytes;
    LazyScope lazy;
    const Tensor y = f();
    eval({y});
    return engine_stats().planned_live_bytes - before;
  };
  const uint64_t one = uint64_t(n * n) * 4, h = uint64_t(n) * 2 * 4;
  CHECK(planned([&] { return sum(matmul(x, w) + matmul(matmul(x, a), b) * 0.5); }) == one + h);
  CHECK(planned([&] { return sum(tg::gelu(linear(x, w))); }) == one);
}
TEST_CASE("errors of a rewritten op name it and its layer, and what could not be computed") {
  Layer l(DType::f32);
  Tensor y, loss;
  {
    LazyScope lazy;
    const NameScope layer("layer");
    y = tg::gelu(linear(l.x, l.weight));
    loss = sum(y);
  }
  l.x.mutable_data<float>()[0] = 1;
  CHECK_SAYS(eval({loss}), "[linear] input 0", "was changed after it was captured by this lazy op", "in layer");
  CHECK_SAYS(y.to_vector<float>(), "cannot be read: it failed before");
}
