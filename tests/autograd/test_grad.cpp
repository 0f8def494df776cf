// test_ops.cpp has gradients of single ops.
#include <tapegrad/autograd/recompute.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/ops/ops.h>

#include "support/files.h"
#include "support/refusals.h"

using namespace tg;
namespace {
struct Forgetful : OpOf<Forgetful> {  // vjp reads unsaved tensors
  static constexpr auto kName = "test_forgetful";
  enum Reads { input, output, neither } reads;
  explicit Forgetful(Reads r) : reads(r) {}
  Layouts infer(Inputs in) const override { return {in[0].layout()}; }
  Tensors vjp(const Vjp& v) const override {
    return {reads == neither ? v.grad() : v.grad() * (reads == output ? v.out(0) : v.in(0))};
  }
};
struct Plain : OpOf<Plain> {  // no vjp
  static constexpr auto kName = "test_plain";
  Layouts infer(Inputs in) const override { return {in[0].layout()}; }
};
void forgetful(const Forgetful&, Bufs in, Bufs out, Context&) { *out[0].data<float>() = *in[0].data<float>(); }
void plain(const Plain&, Bufs in, Bufs out, Context&) { *out[0].data<float>() = *in[0].data<float>(); }
TG_KERNEL(Forgetful, cpu, forgetful);
TG_KERNEL(Plain, cpu, plain);
}  // namespace

TEST_CASE("one leaf used many times, and one that is not reached") {
  Tensor x = random({2, 3}, 1).requires_grad_(), unused = random({2}, 2).requires_grad_();
  const GradMap g = backward(sum(x + x * x + x));
  CHECK(g.size() == 1);
  CHECK(g.contains(x));
  CHECK_FALSE(bool(g[unused]));
  const auto at = values(x), dx = values(g[x]);
  for (size_t i = 0; i < at.size(); ++i) CHECK(dx[i] == doctest::Approx(2 + 2 * at[i]).epsilon(1e-6));
  CHECK(g[x].dtype() == x.dtype());
  CHECK_FALSE(g[x].requires_grad());
}
TEST_CASE("an output of any shape with its gradient") {
  Tensor x = random({2, 3}, 1).requires_grad_();
  const Tensor dy = random({2, 3}, 2);
  CHECK(values(backward(x * 3.0, dy)[x]) == values(dy * 3.0));
  CHECK_SAYS(backward(x * 3.0, random({3}, 1)),
             "[backward] the output is (2, 3) f32, its gradient (3) f32. Shapes and dtypes must agree.");
  CHECK_SAYS(backward(x * 3.0, random<double>({2, 3}, 1)), "its gradient (2, 3) f64");
}
TEST_CASE("a leaf that is the loss itself has gradient 1") {
  Tensor x = random({}, 1).requires_grad_();
  CHECK(values(backward(x)[x]) == std::vector<float>{1});
}
TEST_CASE("an op without a gradient says so") {
  Tensor x = random({1}, 1).requires_grad_();
  expect(REFUSES(backward(emit1(make_ref<Plain>(), {x})), missing_gradient,
                 "[test_plain] has no gradient. Give it a vjp, or cut the graph with"));
  CHECK(values(backward(sum(emit1(make_ref<Plain>(), {x}).detach() * x))[x]) == values(x));
}
TEST_CASE("a vjp that reads what was not saved is found") {
  Tensor one = filled({1}, 2.f).requires_grad_();
  CHECK_SAYS(backward(emit1(make_ref<Forgetful>(Forgetful::input), {one})),
             "[test_forgetful] vjp reads input 0, which saves_in() does not keep");
  CHECK_SAYS(backward(emit1(make_ref<Forgetful>(Forgetful::output), {one})),
             "[test_forgetful] vjp reads output 0, which saves_out() does not keep");
}
TEST_CASE("a vjp that returns fewer gradients than inputs is found") {
  Tensor x = filled({1}, 2.f).requires_grad_(), y = filled({1}, 3.f).requires_grad_();
  CHECK_SAYS(
      backward(emit1(make_ref<Forgetful>(Forgetful::neither), {x, y})),
      "[test_forgetful] vjp returned 1 gradient(s) for 2 inputs, and input 1 requires one. Return one per input");
}
TEST_CASE("hooks fire once, when the gradient is complete") {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = filled({2}, 1.f).requires_grad_();
    int fired = 0;
    std::vector<float> seen;
    x.on_grad([&](const Tensor& g) {
      ++fired;
      seen = values(g);
      return g * 10.0;
    });
    x.on_grad([&](const Tensor& g) {  // a hook sees the previous result; empty keeps it
      CHECK(values(g) == std::vector<float>(2, 30));
      return Tensor();
    });
    const auto g = backward(sum(x + (x + x)));
    CHECK(fired == 1);
    CHECK(seen == std::vector<float>(2, 3));
    CHECK(values(g[x]) == std::vector<float>(2, 30));
  }
}
TEST_CASE("a hook of an intermediate changes what flows on") {
  Tensor x = random({3}, 1).requires_grad_();
  Tensor h = x * 2.0;
  std::vector<float> seen;
  h.on_grad([&](const Tensor& g) {
    seen = values(g);
    return g * 0.5;
  });
  const auto g = backward(sum(h * 3.0));
  CHECK(seen == std::vector<float>(3, 3));
  CHECK(values(g[x]) == std::vector<float>(3, 3));
  CHECK_FALSE(g.contains(h));
}
TEST_CASE("complete: leaves one by one while the rest is to come, after their hooks; what is taken away is missing") {
  Tensor b = filled({3}, 3.0f).requires_grad_();
  const Tensor a = filled({3}, 2.0f).requires_grad_(), c = filled({3}, 5.0f).requires_grad_();
  b.on_grad([](const Tensor& g) { return g * 10.0; });
  bool ran = false;
  Tensor inner = a * b;
  inner.on_grad([&](const Tensor&) {
    ran = true;
    return Tensor();
  });
  std::vector<std::pair<uint64_t, bool>> seen;
  const auto run = [&](const Tensor& loss, BackwardOptions o = {}) {
    seen.clear(), ran = false;
    o.on_leaf_grad = [&](uint64_t leaf, Tensor& g) {
      seen.emplace_back(leaf, ran);
      if (leaf == b.id()) CHECK(values(g) == std::vector<float>{20, 20, 20});
      if (leaf == c.id()) g = Tensor();
      if (leaf == a.id()) g = filled({3}, 7.0f);
    };
    return backward(loss, o);
  };
  const GradMap g = run(sum(c + inner));
  REQUIRE(seen.size() == 3);
  CHECK(seen[0] == std::pair(c.id(), false));  // precedes other gradients
  CHECK(seen[1].second);
  CHECK(!g.contains(c));
  CHECK(values(g[a]) == std::vector<float>{7, 7, 7});
  CHECK(values(g[b]) == std::vector<float>{20, 20, 20});
  const Tensor x = filled({3}, 1.0f);
  const Tensors y = recompute([&](Inputs in, Rng*) { return Tensors{in[0] * a * c}; }, {&x, 1}, nullptr);
  const GradMap again = run(sum(y[0] * c));
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].first != seen[1].first);
  CHECK(again.size() == 1);
  // Replacements keep shape and dtype.
  for (const Tensor& other : {filled({7}, 1.0f), filled({3}, 1.0)})
    CHECK_SAYS(backward(sum(a * 2.0), {.on_leaf_grad = [&](uint64_t, Tensor& grad) { grad = other; }}),
               "[on_leaf_grad] returned (");
}
TEST_CASE("retain_graph: twice the same; without it the tape is gone") {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = random({2, 3}, 1).requires_grad_(), w = random({3, 2}, 2).requires_grad_();
    const Tensor loss = sum(tg::tanh(matmul(x, w)));
    const auto a = values(backward(loss, {.retain_graph = true})[x]), b = values(backward(loss)[x]);
    CHECK(a == b);
    const std::string released =
        "[backward] [sum] was released by an earlier backward. Pass {.retain_graph = true} to that one.";
    const auto at = [](unsigned line) { return fmt::format("\n    called at {}:{}", __FILE__, line); };
    CHECK(error_of([&] { backward(loss); }) == released + at(__LINE__));
    const Tensor inside = [&] {
      NameScope here("head");
      return sum(x);
    }();
    backward(inside);
    CHECK(error_of([&] { backward(inside); }) == released + "\n    in head" + at(__LINE__));
  }
}
TEST_CASE("split: any number of parts, also those that nothing flows into") {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = random({2, 80}, 1).requires_grad_();
    const Tensors parts = split(x, std::vector<int64_t>(40, 2), 1);
    REQUIRE(parts.size() == 40);
    Tensor loss = zeros({});
    for (size_t i = 0; i < 40; i += 3) loss = loss + sum(parts[i]) * double(i);
    std::vector<float> want(160);
    for (size_t k = 0; k < 160; ++k) want[k] = k % 80 / 2 % 3 == 0 ? float(k % 80 / 2) : 0;
    CHECK(values(backward(loss)[x]) == want);
    CHECK(values(parts[37]) == values(slice(x, 1, 74, 76)));
  }
}
TEST_CASE("NoGradScope, detach and requires_grad_(false) cut the graph") {
  Tensor x = random({3}, 1).requires_grad_();
  {
    NoGradScope off;
    CHECK_FALSE(grad_enabled());
    CHECK_FALSE((x * x).requires_grad());
    { NoGradScope again; }
    CHECK_FALSE(grad_enabled());
  }
  CHECK(grad_enabled());
  const Tensor y = x * x;
  CHECK(y.requires_grad());
  CHECK_FALSE(y.detach().requires_grad());
  CHECK(values(backward(sum(y.detach() * x))[x]) == values(x * x));
  x.requires_grad_(false);
  CHECK_FALSE((x * x).requires_grad());
  CHECK_SAYS(backward(sum(x * x)), "[backward] () f32 does not depend on a tensor that requires a gradient.");
}
TEST_CASE("misused gradients: the message says what to do, and names the line") {
  Tensor w = random({2, 3}, 1).requires_grad_(), v = random({2, 3}, 2).requires_grad_();
  const GradMap g = backward(sum(w * w));
  CHECK_SAYS(backward(sum(g[w])), "pass {.create_graph = true} to the backward() or grad() of that");
  const std::string line = fmt::format("(the last such was read at {}:{})", __FILE__, __LINE__ + 1);
  const Tensor none = g[v];
  CHECK_SAYS(none * 0.1,
             "[mul_scalar] input 0 is an empty tensor: it was made without a value, was moved from, or is a gra");
  for (const auto& f : std::vector<std::function<Tensor()>>{[&] { return w - none; }, [&] { return softmax(none, 1); },
                                                            [&] { return none.detach(); }})
    CHECK_SAYS(f(), line);
  w = w - g[w] * 0.1;
  CHECK_SAYS(g[w],
             "a result of [sub]. Only leaves keep theirs. Update a leaf in place, w.assign(...) under NoGradScope");
  CHECK_SAYS(g[w], fmt::format("called at {}:{}", __FILE__, __LINE__));
}
TEST_CASE("indices are not tracked, and gradients flow past them") {
  Tensor x = random({2, 5}, 1).requires_grad_();
  const TopK t = topk(x, 2);
  CHECK(t.values.requires_grad());
  CHECK_FALSE(t.indices.requires_grad());
  CHECK_FALSE(argmax(x, -1).requires_grad());
  CHECK_SAYS(backward(sum(argmax(x, -1))), "does not depend on a tensor that requires a gradient");
}
TEST_CASE("of more than 31 inputs, those past 30 that are not tracked get no gradient") {
  std::vector<Tensor> x;
  for (uint64_t i = 0; i < 40; ++i) x.push_back(random({2, 3}, i));
  for (size_t i : {5, 35}) x[i].requires_grad_();
  const Tensor w = random({80, 3}, 50);
  const GradMap g = backward(sum(concat(x, 0) * w));
  CHECK(g.size() == 2);
  for (int64_t i : {5, 35}) CHECK(values(g[x[size_t(i)]]) == values(slice(w, 0, 2 * i, 2 * i + 2)));
}
TEST_CASE("what cannot be the start of backward") {
  Tensor x = random({2, 3}, 1).requires_grad_();
  CHECK_SAYS(backward(x * x), "[backward] starts from one number, not from (2, 3) f32. Take sum() first");
  CHECK_SAYS(backward(Tensor()), "[backward] got an empty tensor. Pass the loss.");
  CHECK_HAS(error_of([&] {
              x.requires_grad_().detach().requires_grad_();
              (x * x).requires_grad_();
            }),
            "[requires_grad_] (2, 3) f32 is the result of tracked ops. Only leaves take the flag; use detach().");
  CHECK_SAYS(tensor<int64_t>({1}, {1}).requires_grad_(), "is not of a floating dtype");
}
TEST_CASE("a write after save is found at backward, through a view and in a saved output too") {
  Tensor x = random({2, 3}, 1).requires_grad_(), w = random({3, 2}, 2).label("h.3.attn.w"), y;
  {
    NameScope a("gpt"), b("h.3");
    y = sum(matmul(x, w));
  }
  slice(w, 0, 1, 2).mutable_data<float>()[0] = 9;
  const auto e = error_of([&] { backward(y); });
  CAPTURE(e);
  CHECK_HAS(e, "[matmul] input 1 'h.3.attn.w' (3, 2) f32 was changed after it was saved for backward: it had version ",
            "in gpt.h.3");
  Tensor t = tg::tanh(x);
  const Tensor l = sum(t);
  t.mutable_data<float>()[0] = 1;
  CHECK_SAYS(backward(l), "[tanh] output 0 (2, 3) f32 was changed");
}
TEST_CASE("masks: what the tape holds") {
  const Shape s{1 << 16};
  const double unit = 4 << 16;
  const auto base = double(memory_stats().live);
  const auto held = [&] { return std::lround((double(memory_stats().live) - base) / unit); };
  {
    Tensor x = filled(s, .5f).requires_grad_(), y = x;
    for (int i = 0; i < 20; ++i) y = y + x;
    CHECK(held() == 2);
    y = x;
    for (int i = 0; i < 20; ++i) y = tg::tanh(y);
    CHECK(held() == 21);
    backward(sum(y));
    CHECK(held() == 2);  // x and y remain
    NoGradScope off;
    y = x;
    for (int i = 0; i < 20; ++i) y = tg::tanh(y);
    CHECK(held() == 2);
  }
  CHECK(held() == 0);
  Tensor x = filled({256, 256}, .5f).requires_grad_(), w = filled({256, 256}, .01f), y = x;
  for (int i = 0; i < 8; ++i) y = matmul(y, w);
  CHECK(held() == 3);  // x, w, y
  const auto k = engine_stats().kernels;
  const Tensor loss = sum(y);
  backward(loss);
  CHECK(engine_stats().kernels - k == 2 + 8);  // the sum, ones, no dW
}
TEST_CASE("a deep tape runs and is released") {
  const int n = 200'000;  // a stack of 8 MiB has no room for n frames
  Tensor x = filled({1}, 1.f).requires_grad_(), y = x;
  for (int i = 0; i < n; ++i) y = y + x;
  CHECK(values(backward(sum(y))[x])[0] == float(n + 1));
  y = x;
  for (int i = 0; i < n; ++i) y = y + x;
  y = Tensor();  // released without backward
  LazyScope lazy;
  y = x;
  for (int i = 0; i < n; ++i) y = y + x;
  const Tensor g = backward(sum(y))[x];
  eval({y, g});
  CHECK(values(g)[0] == float(n + 1));
}
TEST_CASE("gradient maps are added and scaled") {
  Tensor x = tensor<float>({1, 2}, {2}).requires_grad_(), y = tensor<float>({3, 4}, {2}).requires_grad_();
  GradMap g = backward(sum(x * x));
  const Tensor first = g[x];
  g += backward(sum(x * y));  // y is new
  CHECK(g.size() == 2);
  CHECK(values(g[x]) == std::vector<float>{5, 8});
  CHECK(values(g[y]) == std::vector<float>{1, 2});
  CHECK(values(first) == std::vector<float>{2, 4});  // not in place
  CHECK(values((g *= 0.5)[x]) == std::vector<float>{2.5, 4});
  g += g;
  CHECK(values(g[y]) == std::vector<float>{1, 2});
  g += GradMap();
  GradMap none;
  CHECK((none += g).size() == 2);
  CHECK(!g[x].requires_grad());
  GradMap twice = backward(sum(x * x * x), {.create_graph = true});
  twice += backward(sum(x * x * x), {.create_graph = true});
  CHECK(values(backward(sum(twice[x]))[x]) == std::vector<float>{12, 24});  // the sum is on the tape
}
TEST_CASE("gradients of nothing are nothing, and accumulate in the dtype of the leaf") {
  Tensor empty_one = random({0, 4}, 1).requires_grad_(), w = random({4, 3}, 2).requires_grad_();
  const GradMap g = backward(sum(matmul(empty_one, w)));
  CHECK(g[empty_one].shape() == Shape{0, 4});
  CHECK(values(g[w]) == std::vector<float>(12, 0));
  Tensor h = random({4}, 3).to(DType::bf16).detach().requires_grad_();
  CHECK(backward(sum(h * h))[h].dtype() == DType::bf16);
  Tensor m = random({4}, 3).requires_grad_();
  CHECK(values(backward(sum((m.to(DType::bf16) * 2.0).to(DType::f32)))[m]) == std::vector<float>(4, 2));
}
TEST_CASE("native: the gradient through one cast to bf16 stays in bf16, and all else has the leaf's dtype") {
  const Tensor x = random({3, 5}, 1), a = random({3, 5}, 2).to(DType::bf16), b = random({3, 5}, 3).to(DType::bf16);
  const auto through = [](const Tensor& w, const Tensor& by) { return sum((w.to(DType::bf16) * by).to(DType::f32)); };
  const auto leaf = [&](DType t = DType::f32) { return x.to(t).detach().requires_grad_(); };
  Tensor w = leaf();
  std::vector<DType> seen;
  w.on_grad([&](const Tensor& g) {
    seen.push_back(g.dtype());
    return Tensor();
  });
  GradMap g = backward(through(w, a));
  CHECK(seen == std::vector{DType::bf16});
  CHECK(g.native(w).dtype() == DType::bf16);
  CHECK(g[w].dtype() == DType::f32);
  CHECK(bits_of(g[w]) == bits_of(a.to(DType::f32)));
  CHECK(!g.native(x));
  GradMap sums = g;
  sums += backward(through(w, b));
  CHECK(bits_of(sums.native(w)) == bits_of(a.to(DType::f32) + b.to(DType::f32)));
  g *= 0.3;
  CHECK(bits_of(g.native(w)) == bits_of(a.to(DType::f32) * 0.3));
  const GradMap twice = backward(through(w, a) + through(w, b));
  CHECK(bits_of(twice.native(w)) == bits_of(a.to(DType::f32) + b.to(DType::f32)));
  Tensor before = leaf();
  CHECK(backward(through(before * 1.0, a)).native(before).dtype() == DType::f32);
  const Tensor wide = leaf(DType::f64), half = leaf(DType::bf16);
  CHECK(backward(through(wide, a)).native(wide).dtype() == DType::f64);
  CHECK(backward(sum(half.to(DType::f32) * x)).native(half).dtype() == DType::bf16);
  CHECK(backward(through(w, a), {.create_graph = true}).native(w).dtype() == DType::f32);
}
TEST_CASE("an Error names the line of the caller's backward() or compile(), once, the nearest") {
  const Tensor x = ones({3}).requires_grad_();
  const auto line = [](unsigned n) { return fmt::format("at {}:{}", __FILE__, n); };
  CHECK_SAYS(backward(x), "\n    called " + line(__LINE__));
  const auto function = compile([&](Inputs in) { return std::vector{sum(in[0]).item<float>() * in[0]}; });
  CHECK_SAYS(function({x.detach()}), "\n    compiled " + line(__LINE__ - 1));
  const auto inside = compile([&](Inputs in) {
    backward(in[0]);
    return std::vector{in[0]};
  });
  const auto nearest = error_of([&] { inside({x.detach()}); });
  CHECK_HAS(nearest, "\n    called " + line(__LINE__ - 4));
  CHECK(!has(nearest, "compiled at"));
}
