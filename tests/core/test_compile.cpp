// compile(): replays give the bits of the function, read captured tensors in place, assign tensors, and continue random
// numbers and counts. Other functions are an Error.
#include <tapegrad/tapegrad.h>

#include <optional>

#include "support/tiny_gpt.h"

using namespace tg;
namespace {
using Results = std::vector<Tensor>;
std::string error_of_call(const Compiled& f, Results in) {
  return error_of([&] { f(in); });
}
}  // namespace

TEST_CASE("a compiled function gives its bits, and is called once for each signature") {
  int calls = 0;
  const Compiled f = compile(
      [&](Inputs x) {
        ++calls;
        const Tensor a = tg::exp(x[0]) * 2.0 + x[1];
        return Results{matmul(a, transpose(a, 0, 1)), reshape(a, {-1}), sum(a)};
      },
      {.verify = 0});
  const auto eager = [](const Tensor& x, const Tensor& y) {
    const Tensor a = tg::exp(x) * 2.0 + y;
    return Results{matmul(a, transpose(a, 0, 1)), reshape(a, {-1}), sum(a)};
  };
  const auto same = [&](const Tensor& x, const Tensor& y) {
    const Results got = f({x, y}), want = eager(x, y);
    REQUIRE(got.size() == want.size());
    for (size_t k = 0; k < got.size(); ++k) {
      CHECK(got[k].materialized());
      CHECK(got[k].shape() == want[k].shape());
      CHECK(bits_of(got[k]) == bits_of(want[k]));
    }
  };
  for (uint64_t i = 0; i < 4; ++i) same(random({3, 5}, i), random({3, 5}, 10 + i));
  CHECK(calls == 1);
  CHECK(f.stats().replays == 3);
  same(random({1, 5}, 1), random({1, 5}, 2));  // sizes 1 and 0, another dtype, another layout
  same(random({0, 5}, 1), random({0, 5}, 2));
  same(random<double>({3, 5}, 1), random<double>({3, 5}, 2));
  same(stored(random({3, 5}, 3), Store::transposed), random({3, 5}, 4));
  CHECK(calls == 5);
  const Tensor x = random({3, 5}, 20);
  same(x, x);
  CHECK(calls == 5);
  // Results of one call are not written over by the next.
  const Results first = f({x, x});
  const auto bits = bits_of(first[0]);
  f({random({3, 5}, 21), x});
  CHECK(bits_of(first[0]) == bits);
  {
    const LazyScope lazy;
    const Tensor y = x * 3.0;
    const Results got = f({y, x});
    CHECK(bits_of(got[0]) == bits_of(eager(y, x)[0]));
  }
}

TEST_CASE("signatures beyond those that are kept are traced again") {
  int calls = 0;
  const Compiled f = compile([&](Inputs x) { return ++calls, Results{x[0] + 1.0}; }, {.signatures = 2, .verify = 0});
  for (const int64_t n : {1, 2, 1, 2, 3, 2, 1}) CHECK(values(f({random({n}, 1)})[0]).size() == size_t(n));
  CHECK(calls == 4);
  CHECK(f.stats().evictions == 2);
  NoGradScope off;  // a mode is part of the signature
  f({random({1}, 1)});
  CHECK(calls == 5);
}

TEST_CASE("captured tensors are read where they stand") {
  Tensor w = random({4}, 1), other = w.detach();  // two variables, one value
  const Compiled f = compile([&](Inputs x) { return Results{x[0] * w - other * w.detach()}; });
  const Tensor x = random({4}, 2);
  const auto want = [&] { return bits_of(x * w - other * w); };
  CHECK(bits_of(f({x})[0]) == want());
  w.assign(random({4}, 3));
  CHECK(bits_of(f({x})[0]) == want());
  other.assign(random({4}, 4));
  CHECK(bits_of(f({x})[0]) == want());
  w.mutable_data<float>()[0] = 7;
  CHECK(bits_of(f({x})[0]) == want());
  under<LazyScope>([&] { w.assign(w * 2.0); });
  const Tensor after_lazy = f({x})[0];  // precedes other reads of w
  CHECK(bits_of(after_lazy) == want());
  CHECK(f.stats().traces == 1);
  w.assign(stored(random({4}, 5), Store::strided));  // another layout: traced again
  CHECK(bits_of(f({x})[0]) == want());
  CHECK(f.stats().traces == 2);
}

TEST_CASE("a trace does not touch the variables that it only reads: other threads may use them") {
  const Tensor w = random({3}, 1), b = random({3}, 2);
  const auto *at_w = w.value().get(), *at_b = b.value().get();
  bool same = false;
  const Compiled f = compile([&](Inputs in) {
    const Tensor y = in[0] * w + w.detach();
    b.assign(y);
    same = w.value().get() == at_w && b.value().get() != at_b;
    return std::vector{y + w, w};
  });
  const Tensor x = random({3}, 3);
  const auto want = values(x * w + w + w);
  for (int i = 0; i < 3; ++i) {
    const auto y = f({x});
    CHECK(values(y[0]) == want);
    CHECK(values(y[1]) == values(w));
    CHECK(w.value().get() == at_w);
    CHECK(values(b) == values(x * w + w));
  }
  CHECK(same);
}
TEST_CASE("variables that are assigned take new values, in place where nobody holds the old ones") {
  Tensor a = random({8}, 1), b = random({8}, 2), count = filled<double>({}, 0.0);
  const Compiled swap = compile([&](Inputs) {
    const Tensor old = a.detach();
    a.assign(tg::exp(b));
    b.assign(old);
    count.assign(count + 1.0);
    return Results{a + b};
  });
  Tensor x = a.detach(), y = b.detach();
  for (int i = 1; i <= 3; ++i) {
    const Tensor next = tg::exp(y);
    y = x, x = next;
    const Tensor sum = swap({})[0];
    CHECK(bits_of(a) == bits_of(x));
    CHECK(bits_of(b) == bits_of(y));
    CHECK(bits_of(sum) == bits_of(x + y));
    CHECK(count.item<double>() == i);
  }
  Tensor w = random({1000}, 3);
  const Compiled step = compile([&](Inputs g) { return w.assign(w - g[0]), Results{}; });
  const Tensor g = random({1000}, 4);
  step({g});
  const float* at = w.data<float>();
  step({g});
  CHECK(w.data<float>() == at);
  const Tensor snapshot = w.detach();
  const auto bits = bits_of(snapshot);
  step({g});
  CHECK(w.data<float>() != at);
  CHECK(bits_of(snapshot) == bits);
  CHECK(step.stats().traces == 1);
}

TEST_CASE("what a replay could not do is an Error that names it") {
  const Tensor x = random({4}, 1);
  const auto message = [&](TensorFunction f, CompileOptions o = {}) {
    return error_of_call(compile(std::move(f), o), {x});
  };
  CHECK_HAS(message([](Inputs in) {
              const NameScope scope("layer");
              const Tensor y = tg::exp(in[0]), z = sum(y);
              return Results{z.item<float>() > 0 ? y : -y};
            }),
            "op 2 of the trace, sum, makes it in layer");
  CHECK_HAS(message([](Inputs in) { return Results{in[0] * double(in[0].data<float>()[0])}; }),
            "it comes from outside");
  CHECK_HAS(message([](Inputs in) { return eval({in[0] + 1.0}), Results{in[0]}; }), "op 1 of the trace, add");
  Rng rng{3};
  CHECK_HAS(message([&](Inputs in) { return Results{dropout(in[0], 0.5, rng)}; }),
            "dropout draws from a generator (seed 3, offset 0) that is not among the 0");
  Tensor w = random({4}, 2).requires_grad_();
  CHECK_HAS(message([&](Inputs in) { return Results{in[0] * w}; }), "result 0, (4) f32, still needs a gradient");
  const Tensor outside = w * 2.0;
  CHECK_HAS(message([&](Inputs in) { return Results{in[0] * outside}; }),
            "which ops outside of it recorded on the tape");
  std::optional<Tensor> state;
  CHECK_HAS(message([&](Inputs in) {
              if (!state) state = zeros({4});
              state->assign(*state + in[0]);
              return Results{*state};
            }),
            "(4) f32 outlives the call of the function without being returned: op 2 of the trace, add, makes it");
  Tensor h = zeros({4});
  CHECK_HAS(message([&](Inputs in) {
              h += in[0];
              return Results{in[0] * 2.0};
            }),
            "h = h + x and h += x make a new tensor and give it to the handle. To change a tensor");
  CHECK_HAS(message([](Inputs) { return Results{Tensor()}; }), "result 0 is an empty tensor");
  CHECK_HAS(error_of_call(compile([](Inputs in) { return Results{in[0]}; }), {Tensor()}), "input 0 is an empty");
  CHECK_HAS(error_of([] { compile({}); }), "the function is empty");
  CHECK_HAS(error_of([] { compile([](Inputs) { return Results{}; }, {.generators = {nullptr}}); }),
            "a generator is null");
  CHECK_HAS(error_of([] { compile([](Inputs) { return Results{}; }, {.signatures = 0}); }), "signatures is 0");
  Tensor m = filled({4}, 0.f), v = filled({4}, 0.f), p = random({4}, 3);
  CHECK_HAS(message([&](Inputs in) { return adamw_step(p, m, v, in[0], {}, 1e-3, 1), Results{}; }),
            "every replay of the compiled function would be step 1");
}

TEST_CASE("a tensor of a trace that outlives it without being a result is an Error that names it and the way out") {
  const Tensor x = random({2}, 1);
  const auto refused = [&](const TensorFunction& f, const std::string& what) {
    const std::string text = error_of_call(compile(f, {.constants = true}), {x});
    CAPTURE(text);
    CHECK(text.find("[compile] " + what) == 0);
    CHECK(text.find("outlives the call of the function") != std::string::npos);
    CHECK(text.find("assign() it, list its handle in CompileOptions::state, or pass it as an input") !=
          std::string::npos);
  };
  const Tensor first = zeros({2});
  Tensor h = first;
  refused([&](Inputs in) { return h = h + in[0], Results{h * 1.0}; }, "(2) f32");
  h = first;
  refused([&](Inputs in) { return Results{h = (h + in[0]).label("h")}; }, "'h' (2) f32");  // a result too
  Results log;
  refused([&](Inputs in) { return log.push_back(sum(in[0])), Results{in[0] * 2.0}; }, "() f32");
  Tensor kept;
  refused([&](Inputs in) { return kept = in[0], Results{in[0] * 2.0}; }, "(2) f32");
  refused([&](Inputs in) { return kept = tensor<float>({1, 2}, {2}), Results{in[0] * 2.0}; }, "(2) f32");
  refused([&](Inputs in) { return kept = tensor<float>({1, 2}, {2}), Results{in[0] * kept}; }, "(2) f32");
  refused([&](Inputs in) { return kept = in[0].detach(), Results{in[0] * 2.0}; }, "(2) f32");
  GradMap grads;
  Tensor w = random({2}, 2).requires_grad_();
  refused([&](Inputs in) { return grads = backward(sum(in[0] * w)), Results{in[0] * 2.0}; }, "");
  const auto [params, model] =
      new_gpt({.vocab_size = 9, .context = 4, .layers = 1, .heads = 1, .width = 4}, Params(Device(), 5));
  KvCache cache;
  NoGradScope off;
  const Compiled decode = compile([&](Inputs in) { return std::vector{model.forward(in[0], {.cache = &cache})}; });
  const std::string grows = error_of_call(decode, {full({1, 1}, 1, DType::i64)});
  CHECK(grows.find("outlives the call") != std::string::npos);
  CHECK(grows.find("a KvCache must come from KvCache::with_capacity()") != std::string::npos);
  // Within a call such handles are allowed, and so are those from before.
  const Compiled inside = compile([&](Inputs in) {
    KvCache own;
    model.forward(in[0], {.cache = &own});
    Results both{model.forward(in[0], {.cache = &own})};
    kept = w;
    return both;
  });
  CHECK(bits_of(inside({full({1, 2}, 1, DType::i64)})[0]) == bits_of(inside({full({1, 2}, 1, DType::i64)})[0]));
  CHECK(inside.stats().replays == 1);
}

TEST_CASE("CompileOptions::state: handles that the function gives another value") {
  Tensor a = filled({2}, 1.f), b = filled({2}, 2.f);
  const Compiled f = compile(
      [&](Inputs in) {
        std::swap(a, b);
        a = a * 2.0 + in[0];
        return Results{a + b};
      },
      {.state = {&a, &b}});
  Tensor x = a.detach(), y = b.detach(), z = random({2}, 1);
  const uint64_t id = a.id();
  for (int i = 0; i < 4; ++i) {
    std::swap(x, y);
    x = x * 2.0 + z;
    const Tensor got = f({z})[0];
    CHECK(bits_of(got) == bits_of(x + y));
    CHECK(bits_of(a) == bits_of(x));
    CHECK(bits_of(b) == bits_of(y));
    CHECK(a.id() == id);
  }
  CHECK(f.stats().traces == 1);
  a = filled({2}, 5.f);  // another variable: traced again
  CHECK(bits_of(f({z})[0]) == bits_of(y * 2.0 + z + filled({2}, 5.f)));
  CHECK(f.stats().traces == 2);
  const Compiled shape =
      compile([&](Inputs) { return a = filled({3}, 1.f), Results{}; }, {.state = {&a}, .constants = true});
  CHECK(error_of_call(shape, {}).find("[assign] (2) f32 cannot take (3) f32") == 0);
  CHECK(a.shape() == Shape{2});
  CHECK(error_of([] { compile([](Inputs) { return Results{}; }, {.state = {nullptr}}); }) ==
        "[compile] a state is null. Pass addresses of tensors.");
}

TEST_CASE("after an Error in a compiled step, steps, rates and generators are as before, in a trace and in a replay") {
  Tensor w = random({5, 2}, 1).requires_grad_();
  AdamW optimiser({{"w", w}});
  Rng noise{3};
  bool fails = true, huge = false;
  const Compiled step = compile(
      [&](Inputs ids) {
        const Tensor rows = dropout(embedding(ids[0], w), 0.5, noise);
        optimiser.step(backward(sum(rows * rows)));
        if (fails) matmul(rows, rows);
        if (huge) return Results{sum(exp(ones({1 << 29, 1 << 28})))};  // no plan has memory for it
        return Results{};
      },
      {.generators = {&noise}});
  const Tensor good = tensor<int32_t>({0, 4, 1}, {3}), bad = tensor<int32_t>({0, 5, 1}, {3});
  const auto unchanged = [&](const Tensor& ids, const std::string& what) {
    const auto bits = bits_of(w);
    const int64_t steps = optimiser.steps();
    const uint64_t offset = noise.offset;
    CHECK(error_of_call(step, {ids}).find(what) == 0);
    CHECK(bits_of(w) == bits);
    CHECK(optimiser.steps() == steps);
    CHECK(noise.offset == offset);
  };
  unchanged(good, "[matmul]");
  fails = false, huge = true;
  unchanged(good, "[allocator] out of memory");
  huge = false;
  unchanged(bad, "[embedding]");  // the first run of a plan
  step({good});
  CHECK(optimiser.steps() == 1);
  unchanged(bad, "[embedding]");  // a replay
  step({good});
  CHECK(optimiser.steps() == 2);
  CHECK(step.stats().traces == 3);
}

TEST_CASE("an input that the function updates is an Error, in a trace and in a replay; its detach() is none") {
  Tensor w = random({3}, 1);
  const auto make = [&] {
    return compile([&](Inputs in) {
      w.assign(w * 2.0);
      return Results{in[1] + in[0]};
    });
  };
  const Compiled f = make();
  const Tensor x = random({3}, 2), y = random({3}, 3);
  for (int i = 0; i < 2; ++i) CHECK(bits_of(f({x, y})[0]) == bits_of(y + x));
  const auto before = bits_of(w);
  for (const Compiled& g : {f, make()}) {
    CHECK_HAS(error_of_call(g, {x, w}), "[compile] input 1 is (3) f32, which the function updates");
    CHECK_HAS(error_of_call(g, {w, x}), "[compile] input 0 is (3) f32, which the function updates");
  }
  CHECK(bits_of(w) == before);
  for (int i = 0; i < 2; ++i) {
    const Tensor old = w.detach();
    CHECK(bits_of(f({x, w.detach()})[0]) == bits_of(old + x));
    CHECK(bits_of(w) == bits_of(old * 2.0));
  }
  const Compiled unread = compile([&](Inputs) { return w.assign(w + 1.0), Results{}; });
  for (int i = 0; i < 2; ++i) CHECK(unread({w}).empty());
}
TEST_CASE("CompileOptions::constants allows host data") {
  const Tensor x = random({2}, 1);
  const std::vector<float> host{1, 2};
  const Compiled f = compile([&](Inputs in) { return Results{in[0] * tensor(host, {2})}; }, {.constants = true});
  const auto want = bits_of(x * tensor(host, {2}));
  for (int i = 0; i < 2; ++i) CHECK(bits_of(f({x})[0]) == want);
}
