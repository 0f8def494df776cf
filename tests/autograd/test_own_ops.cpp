// User-defined ops: kernels get inputs that they can read, or an Error; user-defined gradients; custom_vjp(), grad()
// and value_and_grad().
#include <tapegrad/core/node.h>
#include <tapegrad/cpu/unary.h>
#include <tapegrad/tapegrad.h>

#include <algorithm>

#include "support/files.h"
#include "support/refusals.h"

using namespace tg;
namespace own_functions {
struct Cubed {
  static constexpr char kName[] = "test_cubed", kGradName[] = "test_cubed_grad";
  static constexpr op::Saves kSaves{.x = true, .y = true};
  template <class T> TG_HD_INLINE static T f(T x) { return x * x * x; }
  template <class T> TG_HD_INLINE static T df(T x, T y) { return T(3) * y / x; }
};
struct Doubled {  // constant derivative
  static constexpr char kName[] = "test_doubled";
  static constexpr bool kIntegers = true;
  static constexpr op::Saves kSaves{};
  template <class T> TG_HD_INLINE static T f(T x) { return x + x; }
  template <class T> TG_HD_INLINE static T df(T, T) { return T(2); }
};
struct Unregistered : Doubled {
  static constexpr char kName[] = "test_unregistered";
};
}  // namespace own_functions
TG_UNARY_OP(own_functions::Cubed, cpu);
TG_UNARY_OP(own_functions::Doubled, cpu);
namespace {
struct Square : OpOf<Square> {
  static constexpr auto kName = "test_square";
  static constexpr DTypes kDTypes{DType::f32, DType::f64};
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Mask saves_in(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp& v) const override { return {v.grad() * v.in(0) * 2.0}; }
};
template <class T> void square_of(const T* x, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * x[i];
}
void square(const Square&, Bufs in, Bufs out, Context&) {
  if (in[0].dtype() == DType::f64)
    square_of(in[0].data<double>(), out[0].data<double>(), out[0].numel());
  else
    square_of(in[0].data<float>(), out[0].data<float>(), out[0].numel());
}
TG_KERNEL(Square, cpu, square);

// dy / 2, by a kernel that reads dy as contiguous.
struct Halve : OpOf<Halve> {
  static constexpr auto kName = "test_halve";
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Tensors vjp(const Vjp& v) const override { return {emit1(stateless<Halve>(), {v.grad()})}; }
};
void halve(const Halve&, Bufs in, Bufs out, Context&) {
  for (int64_t i = 0; i < out[0].numel(); ++i) out[0].data<float>()[i] = in[0].data<float>()[i] / 2;
}
TG_KERNEL(Halve, cpu, halve);

// 3 x, through scratch memory.
struct Triple : OpOf<Triple> {
  static constexpr auto kName = "test_triple";
  bool fails;
  explicit Triple(bool f = false) : fails(f) {}
  Traits traits() const override { return {.kind = OpKind::pointwise}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  void key(StructuralHash& k) const override { k.add(fails); }
};
void triple(const Triple& op, Bufs in, Bufs out, Context& c) {
  const int64_t n = out[0].numel();
  float *a = c.scratch<float>(n), *b = c.scratch<float>(n);
  TG_CHECK(!op.fails, value, "[{}] fails.", c.op);
  std::copy_n(in[0].data<float>(), n, a);
  for (int64_t i = 0; i < n; ++i) b[i] = 2 * a[i];
  for (int64_t i = 0; i < n; ++i) out[0].data<float>()[i] = a[i] + b[i];
}
TG_KERNEL(Triple, cpu, triple);

// for_each() refuses the shape of its output.
struct Misfit : OpOf<Misfit> {
  static constexpr auto kName = "test_misfit";
  bool rows;
  explicit Misfit(bool r) : rows(r) {}
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  void key(StructuralHash& k) const override { k.add(rows); }
};
void misfit(const Misfit& op, Bufs in, Bufs out, Context&) {
  if (op.rows)
    cpu::for_each_row({in[1]}, out[0], [](int64_t, auto*, const auto*) {});
  else
    cpu::for_each({in[1]}, out[0], [](auto x) { return x; });
}
TG_KERNEL(Misfit, cpu, misfit);

// No kernel; both a composition and a vjp.
struct RoundThrough : OpOf<RoundThrough> {
  static constexpr auto kName = "test_round_through";
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Tensors compose(Inputs in) const override { return {in[0].to(DType::i32).to(in[0].dtype())}; }
  Mask saves_out(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp& v) const override { return {v.grad() * 3.0 + v.out(0) * 0.0}; }
};
Tensor round_through(const Tensor& x) { return emit1(stateless<RoundThrough>(), {x}); }
std::vector<double> list(const Tensor& t) { return t.to_vector<double>(); }
}  // namespace

TEST_CASE("a kernel gets contiguous inputs, of the dtypes that its op names") {
  const Tensor x = tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  for (const bool lazy : {false, true}) {
    Mode mode(lazy);
    CHECK(list(emit1(stateless<Square>(), {transpose(x)})) == std::vector<double>{1, 16, 4, 25, 9, 36});
    CHECK(list(emit1(stateless<Square>(), {slice(x, 1, 1, 3)})) == std::vector<double>{4, 9, 25, 36});
    CHECK(list(emit1(stateless<Square>(), {expand(slice(x, 1, 2, 3), {2, 2})})) == std::vector<double>{9, 9, 36, 36});
    Tensor w = x.detach().requires_grad_();
    CHECK(list(backward(sum(emit1(stateless<Halve>(), {w})))[w]) == std::vector<double>(6, 0.5));  // stride 0
  }
  const Compiled f = compile([](Inputs in) { return std::vector{emit1(stateless<Square>(), {transpose(in[0])})}; });
  for (int i = 0; i < 3; ++i) CHECK(list(f({x})[0]) == std::vector<double>{1, 16, 4, 25, 9, 36});
  CHECK(error_of([&] { emit1(stateless<Square>(), {x.to(DType::bf16)}); }) ==
        "[test_square] input 0 is (2, 3) bf16. The op takes f64, f32: convert it with .to(dtype).");
  CHECK_SAYS(emit1(stateless<Halve>(), {x.to(DType::bf16)}),
             "[test_halve] the kernel reads (2, 3) bf16 as f32. Choose the type by visit_dtype");
}

TEST_CASE("a kernel has scratch memory of its own until it returns") {
  const TensorFunction f = [](Inputs in) {
    return std::vector{emit1(make_ref<Triple>(), {in[0] * 2.0}) + 1.0};  // a chain, in tiles on several threads
  };
  const int threads = num_threads();
  for (const auto& [s, alone] :
       {std::pair(Shape{0}, false), {Shape{7}, false}, {Shape{100, 300}, false}, {Shape{100, 300}, true}}) {
    set_num_threads(alone ? 1 : threads);
    const std::vector<Tensor> x{random(s, 1)};
    const auto want = bits_of(x[0] * 6.0 + 1.0);
    const int64_t live = memory_stats().live;
    for (const bool lazy : {false, true}) {
      Mode mode(lazy);
      CHECK(bits_of(f(x)[0]) == want);
    }
    const Compiled g = compile(f);
    for (int i = 0; i < 3; ++i) CHECK(bits_of(g(x)[0]) == want);
    CHECK(error_of([&] { emit1(make_ref<Triple>(true), {x[0]}); }) == "[test_triple] fails.");
    // Workers report freed memory in large amounts.
    if (alone) CHECK(memory_stats().live == live + int64_t(g.stats().bytes));
  }
  set_num_threads(threads);
  const int64_t live = memory_stats().live;
  {
    Context c(Device::cpu(), "test_triple");
    CHECK(c.stream() == nullptr);
    CHECK(c.scratch(0) == nullptr);
    CHECK(memory_stats().live == live);
    void *a = c.scratch(100), *b = c.scratch<double>(1000);
    CHECK(a != b);
    CHECK(reinterpret_cast<uintptr_t>(a) % 64 == 0);
    CHECK(reinterpret_cast<uintptr_t>(b) % 64 == 0);
    CHECK(memory_stats().live >= live + 8100);
    CHECK_SAYS(c.scratch<float>(-1), "[test_triple] the kernel asks for -1 elements of scratch");
  }
  CHECK(memory_stats().live == live);
}

TEST_CASE("for_each and for_each_row refuse what does not fit their output") {
  const auto error = [](bool rows, const Tensor& out, const Tensor& in) {
    return error_of([&] { emit1(make_ref<Misfit>(rows), {out, in}); });
  };
  const Tensor x = ones({2, 3});
  CHECK(error(false, x, ones({3})) == "no error");
  CHECK(error(false, x, ones({2})) ==
        "[test_misfit] for_each gets an input (2) f32 and an output (2, 3) f32. The input must have the output's "
        "shape, or one that broadcasts to it. infer() sets the output's shape.");
  CHECK_HAS(error(false, x, ones({1, 2, 3})), "for_each gets an input (1, 2, 3) f32");
  CHECK_HAS(error(false, x, ones({3}, DType::f64)), "[test_misfit] the kernel reads (3) f64 as f32.");
  CHECK_HAS(error(false, ones({2}, DType::i32), ones({2}, DType::i32)),
            "[test_misfit] for_each supports f64, f32 and bf16, but the output is (2) i32.");
  CHECK(error(true, x, ones({2, 7})) == "no error");
  CHECK_HAS(error(true, x, ones({3, 2})), "[test_misfit] for_each_row gets an input (3, 2) f32 and an output (2, 3)");
  CHECK_HAS(error(true, ones({}), ones({})), "Both need a last dimension, and the same number of rows");
}

TEST_CASE("TG_UNARY_OP: a function of one's own has kernels, gradients and a place in chains") {
  const auto cubed = [](const Tensor& x) { return op::unary<own_functions::Cubed>(x); };
  const auto doubled = [](const Tensor& x) { return op::unary<own_functions::Doubled>(x); };
  CHECK(list(cubed(tensor<double>({-1, 2, 3}, {3}))) == std::vector<double>{-1, 8, 27});
  CHECK(doubled(tensor<int32_t>({-1, 2, 3}, {3})).to_vector<int32_t>() == std::vector<int32_t>{-2, 4, 6});
  CHECK_SAYS(cubed(tensor<int32_t>({1}, {1})), "[test_cubed]");
  CHECK_SAYS(op::unary<own_functions::Unregistered>(ones({2})),
             "[test_unregistered] has no kernel for backend cpu. Move its inputs with .to(device), or, for a custom "
             "op, write TG_KERNEL(<op>, cpu, <function>), or TG_UNARY_OP(<struct>, cpu)");
  const Tensor at = random<double>({3, 4}, 1, 0.5, 2);
  CHECK(gradcheck([&](const Tensor& x) { return sum(doubled(cubed(x)) * x); }, at) < 1e-7);
  const auto slope = [&](const Tensor& x) {
    const Tensor w = x.requires_grad() ? x : x.detach().requires_grad_();
    return sum(backward(sum(cubed(w) * w), {.create_graph = true})[w]);
  };
  CHECK(gradcheck(slope, at) < 1e-7);
  for (const DType d : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor x = random<double>({40, 500}, 2).to(d);
    const Tensor want = doubled(cubed(x * 2.0) + 1.0);
    const LazyScope lazy;
    const Tensor y = doubled(cubed(x * 2.0) + 1.0);
    const uint64_t before = engine_stats().kernels;
    eval({y});
    CHECK(engine_stats().kernels == before + 1);
    CHECK(bits_of(y) == bits_of(want));
  }
}

TEST_CASE("an op without a kernel that has both a composition and a vjp uses its vjp") {
  for (const bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = tensor<float>({0.4f, 1.6f, -2.5f}, {3}).requires_grad_();
    const Tensor y = round_through(x);
    CHECK(list(y) == std::vector<double>{0, 1, -2});
    CHECK(list(backward(sum(y * y), {.retain_graph = true})[x]) == std::vector<double>{0, 6, -12});
    CHECK(list(round_through(x.detach())) == std::vector<double>{0, 1, -2});
  }
  Tensor x = tensor<float>({0.4f, 1.6f, -2.5f}, {3}).requires_grad_();
  const Compiled f = compile([&](Inputs) {
    const Tensor y = round_through(x);
    return std::vector{backward(sum(y * y))[x]};
  });
  for (int i = 0; i < 3; ++i) CHECK(list(f({})[0]) == std::vector<double>{0, 6, -12});
}

TEST_CASE("custom_vjp: the function's values and the written gradient, again differentiable") {
  const TensorFunction f = [](Inputs in) { return std::vector<Tensor>{log(exp(in[0]) + 1.0), in[0] * in[1]}; };
  const TensorFunction own = custom_vjp(f, [](Inputs in, Inputs out, Inputs grads) {
    Tensor dx = grads[0] ? grads[0] * (1.0 - exp(-out[0])) : Tensor();
    if (grads[1]) dx = dx ? dx + grads[1] * in[1] : grads[1] * in[1];
    return std::vector<Tensor>{dx, grads[1] ? grads[1] * in[0] : Tensor()};
  });
  for (const bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = random<double>({4}, 1).requires_grad_(), y = random<double>({4}, 2).requires_grad_();
    const std::vector<Tensor> in{x, y}, got = own(in), want = f(in);
    check_same_bits(got, want);
    const auto loss = [](const std::vector<Tensor>& r) { return sum(r[0] * r[0] + 0.5 * r[1]); };
    const GradMap a = backward(loss(got)), b = backward(loss(want));
    CHECK(distance(a[x], b[x]) < 1e-14);
    CHECK(distance(a[y], b[y]) < 1e-14);
    const auto twice = [&](const TensorFunction& h) {
      const Tensor g = backward(loss(h(in)), {.create_graph = true})[x];
      return backward(sum(g * g))[x];
    };
    CHECK(distance(twice(own), twice(f)) < 1e-13);
    CHECK(backward(sum(own(in)[0])).contains(y) == false);
  }
  Tensor x = random<double>({4}, 1).requires_grad_();
  const TensorFunction wrong = custom_vjp([](Inputs in) { return std::vector<Tensor>{in[0] * 2.0}; },
                                          [](Inputs, Inputs, Inputs) { return std::vector<Tensor>{}; });
  CHECK_SAYS(backward(sum(wrong({&x, 1})[0])), "[custom_vjp] the vjp returns 0 gradients for 1 inputs");
  const TensorFunction shape = custom_vjp([](Inputs in) { return std::vector<Tensor>{in[0] * 2.0}; },
                                          [](Inputs, Inputs, Inputs g) { return std::vector<Tensor>{sum(g[0])}; });
  CHECK_SAYS(backward(sum(shape({&x, 1})[0])), "[custom_vjp] gradient 0 is () f64");
  CHECK_SAYS(custom_vjp({}, {}), "[custom_vjp] a function is empty");
  const auto cube = [](const Tensor& t) { return t * t * t; };
  const auto vjp = [](const Tensor& in, const Tensor& y, const Tensor& dy) { return dy + (y - in * in * in); };
  CHECK(list(backward(sum(custom_vjp(cube, vjp)(x)))[x]) == std::vector<double>{1, 1, 1, 1});
  const auto again = [&](const Tensor& t) { return recompute(cube, t); };
  CHECK(bits_of(backward(sum(again(x)))[x]) == bits_of(backward(sum(cube(x)))[x]));
  for (const auto& fast = compile(again); const Tensor& t : {x, x * 2.0, x})
    CHECK(bits_of(fast(t.detach())) == bits_of(cube(t)));
  const TensorFunction clipped =
      custom_vjp([](Inputs in) { return std::vector<Tensor>{in[0] * 1.0}; },
                 [](Inputs, Inputs, Inputs g) { return std::vector<Tensor>{clamp(g[0], {.min = -1, .max = 1})}; });
  const Compiled step = compile([&](Inputs in) { return std::vector{backward(sum(clipped({&x, 1})[0] * in[0]))[x]}; });
  for (int i = 0; i < 3; ++i)
    CHECK(list(step({tensor<double>({-3, -0.5, 0.25, 4}, {4})})[0]) == std::vector<double>{-1, -0.5, 0.25, 1});
}

TEST_CASE("grad: of leaves and intermediates, in the order asked for") {
  Tensor x = random<double>({3}, 1).requires_grad_();
  const Tensor h = x * x, loss = sum(h * x + h);
  const std::vector<Tensor> g = grad(loss, {h, x, loss}, {.retain_graph = true});
  CHECK(distance(g[0], x.detach() + 1.0) < 1e-15);
  CHECK(distance(g[1], 3.0 * x.detach() * x.detach() + 2.0 * x.detach()) < 1e-14);
  CHECK(list(g[2]) == std::vector<double>{1});
  const Tensor again = grad(sum(grad(loss, {x}, {.create_graph = true})[0]), {x})[0];
  CHECK(distance(again, 6.0 * x.detach() + 2.0) < 1e-14);
  const Tensor other = random<double>({2}, 2).requires_grad_();
  CHECK_SAYS(grad(sum(x), {x, other}), "[grad] no output depends on tensor 1, (2) f64");
}
TEST_CASE("grad: of several outputs of any shape, given their gradients, again differentiable; eager, lazy, compiled") {
  Tensor x = random<double>({3}, 1).requires_grad_(), y = random<double>({2, 3}, 2).requires_grad_();
  const Tensor v = random<double>({2, 3}, 3), w = random<double>({3}, 4);
  const auto both = [&](Inputs g, BackwardOptions o = {}) {
    const Tensor a = x * y, b = x * x * x;
    return grad({a, b}, {x, y, b}, g, o);
  };
  const Tensor x0 = x.detach(), y0 = y.detach();
  for (const bool lazy : {false, true}) {
    const Mode mode(lazy);
    const std::vector<Tensor> g = both({v, w});
    CHECK(distance(g[0], sum(v * y0, {0}) + 3.0 * w * x0 * x0) < 1e-14);
    CHECK(distance(g[1], v * x0) < 1e-14);
    CHECK(bits_of(g[2]) == bits_of(w));  // an output is an intermediate
    const std::vector<Tensor> first = both({v, w}, {.create_graph = true});
    const Tensor mixed = grad({first[1], first[0]}, {x}, {v, w})[0];  // d (v x)/dx, and d (3 w x^2)/dx
    CHECK(distance(mixed, sum(v * v, {0}) + 6.0 * w * w * x0) < 1e-14);
    CHECK(!g[0].requires_grad());
    CHECK(first[0].requires_grad());
    Tensor u = v.detach().requires_grad_();  // gradients depend on given ones
    CHECK(distance(grad({both({u, w}, {.create_graph = true})[1]}, {u}, {ones({2, 3}, DType::f64)})[0],
                   expand(x0, {2, 3})) < 1e-15);
  }
  const Compiled f = compile([&](Inputs in) { return both(in); });
  const std::vector<Tensor> expected = both({v, w});
  for (int i = 0; i < 3; ++i) check_same_bits(f({v, w}), expected);
  Tensor constant = zeros({2}, DType::f64);  // needs no tape without a gradient
  const std::vector<Tensor> one = grad({x * 2.0, constant}, {x}, {w, Tensor()});
  CHECK(distance(one[0], w * 2.0) < 1e-15);
  CHECK(bits_of(grad({x}, {x}, {w})[0]) == bits_of(w));
  expect(REFUSES(grad({x * y}, {x}, {w}), shape, "[backward] the output is (2, 3) f64, its gradient (3) f64"));
  expect(REFUSES(grad({x * y, x}, {x}, {v}), value, "[backward] got 2 output(s) and 1 gradient(s)"));
  expect(REFUSES(grad({constant}, {x}, {constant}), state, "[backward] (2) f64 does not depend on a tensor that"));
  expect(REFUSES(grad({x * x}, {x, y}, {w}), missing_gradient, "[grad] no output depends on tensor 1, (2, 3) f64"));
}
TEST_CASE("value_and_grad: values and gradients of all inputs; twice") {
  const auto f = [](Inputs in) { return sum(in[0] * in[0] * in[1]); };
  const Tensor x = random<double>({3}, 1), y = random<double>({3}, 2), z = random<double>({2}, 3);
  const std::vector<Tensor> in{x, y, z};
  const ValueAndGrad r = value_and_grad(f)(in);
  CHECK(distance(r.value, sum(x * x * y)) < 1e-15);
  CHECK(!r.value.requires_grad());
  CHECK(distance(r.grads[0], 2.0 * x * y) < 1e-14);
  CHECK(distance(r.grads[1], x * x) < 1e-14);
  CHECK(list(r.grads[2]) == std::vector<double>{0, 0});
  CHECK(!x.requires_grad());
  Tensor w = x.detach().requires_grad_();  // one tensor twice: two gradients
  const std::vector<Tensor> same{w, w};
  const ValueAndGrad s = value_and_grad([](Inputs v) { return sum(v[0] * v[0] * v[1]); })(same);
  CHECK(distance(s.grads[0], 2.0 * x * x) < 1e-14);
  CHECK(distance(s.grads[1], x * x) < 1e-14);
  const auto slope = [&](Inputs v) { return sum(value_and_grad(f, {.create_graph = true})(v).grads[0]); };
  CHECK(distance(value_and_grad(slope)(in).grads[0], 2.0 * y) < 1e-14);
  CHECK_SAYS(value_and_grad([](Inputs v) { return v[0]; })(in), "starts from one number");
}
