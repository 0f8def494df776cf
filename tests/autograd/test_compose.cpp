#include <tapegrad/core/node.h>
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

using namespace tg;
namespace {
struct Pair : OpOf<Pair> {
  static constexpr auto kName = "test_pair";
  Layouts infer(Inputs in) const override {
    const Layout l = contiguous_like(in[0]);
    return {l, l};
  }
  Tensors compose(Inputs in) const override { return {in[0] * in[0] * in[1], in[0] * in[1]}; }
};
void pair(const Pair&, Bufs in, Bufs out, Context&) {
  for (int64_t i = 0; i < in[0].numel(); ++i) {
    const double x = in[0].data<double>()[i], y = in[1].data<double>()[i];
    out[0].data<double>()[i] = x * x * y;
    out[1].data<double>()[i] = x * y;
  }
}
TG_KERNEL(Pair, cpu, pair);
Tensors pair_of(const Tensor& x, const Tensor& y) { return emit(make_ref<Pair>(), std::vector{x, y}); }
}  // namespace

TEST_CASE("an op without a vjp is differentiated through its composition") {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = random<double>({3}, 1).requires_grad_(), y = random<double>({3}, 2).requires_grad_();
    const auto kernels = engine_stats().kernels;
    const Tensors z = pair_of(x, y);
    if (!lazy) CHECK(engine_stats().kernels == kernels + 1);  // forward's kernel
    const GradMap g = backward(sum(z[0] + 3.0 * z[1]));
    CHECK(distance(g[x], 2.0 * x * y + 3.0 * y) < 1e-15);
    CHECK(distance(g[y], x * x + 3.0 * x) < 1e-15);
  }
}
TEST_CASE("one of two outputs, one of two inputs, and the same input twice") {
  Tensor x = random<double>({3}, 1).requires_grad_();
  const Tensor y = random<double>({3}, 2);
  GradMap g = backward(sum(pair_of(x, y)[0]));
  CHECK(g.size() == 1);
  CHECK(distance(g[x], 2.0 * x * y) < 1e-15);
  g = backward(sum(pair_of(x, x)[0]));  // x^3
  CHECK(distance(g[x], 3.0 * x * x) < 1e-15);
}
TEST_CASE("second and third derivatives through a composition, of leaves and of intermediates") {
  const auto f = [](const Tensor& x) {
    const Tensor h = x * x;
    return sum(pair_of(h, x)[0]);  // x^5
  };
  Tensor x = random<double>({4}, 3).requires_grad_();
  const Tensor v = x.detach();
  const Tensor first = backward(f(x), {.create_graph = true})[x];
  CHECK(distance(first, 5.0 * v * v * v * v) < 1e-14);
  const Tensor second = backward(sum(first), {.create_graph = true})[x];
  CHECK(distance(second, 20.0 * v * v * v) < 1e-14);
  CHECK(distance(backward(sum(second))[x], 60.0 * v * v) < 1e-14);
}
TEST_CASE("hooks fire once when a gradient goes through a composition") {
  Tensor x = random<double>({3}, 1).requires_grad_(), y = random<double>({3}, 2).requires_grad_();
  int fired = 0;
  x.on_grad([&](const Tensor&) { return ++fired, Tensor(); });
  Tensor h = x * 2.0;
  h.on_grad([&](const Tensor&) { return ++fired, Tensor(); });
  backward(sum(pair_of(h, y)[0] + x));
  CHECK(fired == 2);
}
TEST_CASE("hooks may add hooks to their own tensor, which are called from the next gradient on") {
  Tensor x = filled<double>({4}, 1).requires_grad_();
  int first = 0, added = 0;
  x.on_grad([&, factor = 3.0](const Tensor& g) {
    for (int i = 0; i < 100; ++i) x.on_grad([&](const Tensor&) { return ++added, Tensor(); });
    return ++first, g * factor;
  });
  x.on_grad([](const Tensor& g) { return g + 1.0; });
  CHECK(values<double>(backward(sum(x * 2.0))[x]) == std::vector<double>(4, 7));
  CHECK(added == 0);
  CHECK(values<double>(backward(sum(x * 2.0))[x]) == std::vector<double>(4, 7));
  CHECK(first == 2);
  CHECK(added == 100);
}
TEST_CASE("create_graph gives tracked gradients inside of NoGradScope too") {
  Tensor x = random<double>({3}, 1).requires_grad_();
  const Tensor loss = sum(x * x * x);
  const Tensor g = [&] {
    NoGradScope off;
    return backward(loss, {.create_graph = true})[x];
  }();
  CHECK(g.requires_grad());
  CHECK(distance(backward(sum(g))[x], 6.0 * x) < 1e-14);
}
TEST_CASE("several outputs at once") {
  Tensor x = random<double>({3}, 1).requires_grad_();
  const Tensor a = x * 2.0, b = a * a, w = random<double>({3}, 2);  // a is an output, and an input of b
  const GradMap g = backward(std::vector{a, b}, std::vector{w, w});
  CHECK(distance(g[x], 2.0 * w + 8.0 * x * w) < 1e-14);
  CHECK_SAYS(backward(std::vector{a, b}, std::vector{w}), "2 output(s) and 1 gradient(s)");
  CHECK_SAYS(backward(std::vector{a}, std::vector{random<double>({2}, 1)}), "Shapes and dtypes must agree");
}
TEST_CASE("a hook of an intermediate that was read already is refused, one of a leaf is for later ops") {
  Tensor x = random<double>({3}, 1).requires_grad_(), h = x * 2.0;
  const Tensor y = h * h;
  CHECK_SAYS(h.on_grad([](const Tensor&) { return Tensor(); }), "[on_grad] (3) f64 has been read by an op already");
  int fired = 0;
  x.on_grad([&](const Tensor&) { return ++fired, Tensor(); });
  backward(sum(y));
  CHECK(fired == 0);
  backward(sum(x * x));
  CHECK(fired == 1);
}
