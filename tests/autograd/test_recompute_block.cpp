#include <tapegrad/autograd/recompute.h>
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

using namespace tg;
namespace {
struct Net {
  std::vector<Tensor> w, b;
  Net() {
    for (uint64_t i = 0; i < 4; ++i) {
      w.push_back(random({64, 64}, 2 * i, -0.2, 0.2).requires_grad_());
      b.push_back(random({64}, 2 * i + 1).requires_grad_());
    }
  }
  Tensor block(size_t i, const Tensor& x, Rng* rng) const {
    const Tensor h = gelu(linear(x, w[i], b[i]));
    return x + linear(rng ? dropout(h, 0.25, *rng) : h, w[i], b[i]);
  }
  // Four blocks; `keep`: with their activations.
  Tensor forward(Tensor x, Rng* rng, bool keep) const {
    for (size_t i = 0; i < 4; ++i) {
      const RecomputeFn f = [this, i](Inputs in, Rng* r) { return Tensors{block(i, in[0], r)}; };
      x = keep ? block(i, x, rng) : recompute(f, {&x, 1}, rng)[0];
    }
    return x;
  }
};
struct BlockResult {
  std::vector<Tensor> values;  // output, gradients
  Rng rng;
};
BlockResult run(const Net& net, bool keep, bool with_rng) {
  Rng rng{7, 3};
  Tensor x = random({8, 64}, 5).requires_grad_();
  const Tensor y = net.forward(x * 1.0, with_rng ? &rng : nullptr, keep);
  const GradMap g = backward(sum(y * y));
  CHECK(g.size() == 9);
  std::vector<Tensor> all{y, g[x]};
  for (auto& list : {net.w, net.b})
    for (auto& t : list) all.push_back(g[t]);
  eval(all);
  return {all, rng};
}
}  // namespace

TEST_CASE("checkpoint: the same bits, with dropout and without, eager and lazy") {
  const Net net;
  for (bool lazy : {false, true})
    for (bool with_rng : {false, true}) {
      Mode mode(lazy);
      const BlockResult a = run(net, true, with_rng), b = run(net, false, with_rng);
      for (size_t i = 0; i < a.values.size(); ++i) CHECK(bits_of(a.values[i]) == bits_of(b.values[i]));
      CHECK(a.rng == b.rng);
    }
}
TEST_CASE("checkpoint: only the inputs of the parts are kept") {
  const Net net;
  const Tensor x = random({256, 64}, 5);
  const auto held = [&](bool keep) {
    const int64_t before = memory_stats().live;
    const Tensor y = net.forward(x, nullptr, keep);
    return memory_stats().live - before;
  };
  const int64_t one = 256 * 64 * 4;
  CHECK(held(true) >= 4 * 3 * one);  // input, and before and after gelu
  CHECK(held(false) <= 4 * one + 4096);
}
TEST_CASE("checkpoint: what is passed twice, captured, handed on, or not needed") {
  Tensor x = random<double>({3}, 1).requires_grad_(), c = random<double>({3}, 2).requires_grad_();
  const Tensor inner = c * 2.0;  // captured non-leaf
  const RecomputeFn f = [inner](Inputs in, Rng*) {
    const Tensor unused = tg::exp(in[0]);
    return Tensors{in[0] * in[1] * inner, in[0], inner};
  };
  const std::vector<Tensor> in{x, x};
  const Tensors y = recompute(f, in);
  GradMap g = backward(sum(y[0] + y[1] + y[2] * 3.0), {.retain_graph = true});
  CHECK(distance(g[x], 4.0 * x * c + 1.0) < 1e-14);
  CHECK(distance(g[c], 2.0 * x * x + 6.0) < 1e-14);
  g = backward(sum(recompute(f, in)[0]));
  CHECK(distance(g[x], 4.0 * x * c) < 1e-14);
  const Tensor plain = random<double>({3}, 3);
  const Tensor y2 = recompute([](Inputs z, Rng*) { return Tensors{z[0] * 2.0}; }, {&plain, 1})[0];
  CHECK_FALSE(y2.requires_grad());
  CHECK(distance(y2, plain * 2.0) == 0);
}
TEST_CASE("checkpoint: nested, hooks once, and second derivatives") {
  Tensor x = random<double>({3}, 1).requires_grad_();
  int fired = 0;
  x.on_grad([&](const Tensor&) { return ++fired, Tensor(); });
  const RecomputeFn cube = [](Inputs in, Rng*) { return Tensors{in[0] * in[0] * in[0]}; };
  const RecomputeFn nested = [&](Inputs in, Rng* r) { return recompute(cube, in, r); };
  const Tensor first = backward(sum(recompute(nested, {&x, 1})[0]), {.create_graph = true})[x];
  CHECK(fired == 1);
  CHECK(distance(first, 3.0 * x * x) < 1e-14);
  CHECK(distance(backward(sum(first))[x], 6.0 * x) < 1e-14);
}
TEST_CASE(
    "checkpoint: a captured tensor that gets another value before backward is an Error, and compiled calls pass") {
  Tensor x = random<double>({3}, 1).requires_grad_(), w = random<double>({3}, 2).requires_grad_();
  const auto step = compile([](const Tensor& t) { return (t * 3.0).detach(); });
  const Tensor y = recompute([&](const Tensor& t) { return t * w * step(t); }, x);
  CHECK(distance(backward(sum(y), {.retain_graph = true})[x], 3.0 * x * w) < 1e-14);
  {
    const NoGradScope off;
    w.assign(w * 2.0);
  }
  CHECK_SAYS_OF(state, backward(sum(y)), "[checkpoint] (3) f64 has a new value since the forward pass");
}
TEST_CASE("checkpoint: a function that does something else the second time is found") {
  Tensor x = random({3}, 1).requires_grad_();
  int calls = 0;
  const Tensor y =
      recompute([&](Inputs in, Rng*) { return ++calls == 1 ? Tensors{in[0] * 2.0} : Tensors{sum(in[0])}; }, {&x, 1})[0];
  CHECK_SAYS(backward(sum(y)), "Shape, dtype and device must be those of the tensor");
  const Tensor z = recompute(
      [&](Inputs in, Rng*) {
        return calls++ == 2 ? Tensors{in[0] * 2.0} : Tensors{in[0], in[0]};
      },
      {&x, 1})[0];
  CHECK_SAYS(backward(sum(z)), "returned 1 outputs returns 2");
  CHECK_SAYS(recompute([](Inputs, Rng*) { return Tensors{Tensor()}; }, {&x, 1}),
             "[checkpoint] the function returned an empty tensor as output 0");
}
