// AnomalyScope: the first op that makes a NaN or an infinity, in forward and backward, eager and lazy.
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

using namespace tg;

TEST_CASE("an infinity is reported where it is made, with scope, position and inputs") {
  Tensor x = tensor<float>({1, 2, 3, 200}, {2, 2});
  x.label("x");
  const AnomalyScope search;
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    const std::string e = error_of([&] {
      const NameScope model("gpt"), part("mlp");
      const Tensor y = tg::exp(x), z = y * 0.0;
      eval({z});
    });
    CHECK_HAS(e, "[exp] makes an infinity in output 0, (2, 2) f32, at (1, 1)", "It reads: 'x' (2, 2) f32 in [1, 200]",
              "in gpt.mlp");
  }
}
TEST_CASE("NaN out of infinities, and NaN that was there before") {
  const Tensor inf = tensor<float>({1, kInf}, {2}), nan = tensor<float>({1, kNan}, {2});
  const AnomalyScope search;
  CHECK_SAYS_OF(non_finite, inf - inf, "[sub] makes NaN in output 0, (2) f32, at (1)",
                "input 1 (2) f32 in [1, 1], infinite at (1)");
  CHECK_SAYS(nan + 1.0, "[add_scalar] passes on NaN in output 0");
  CHECK(values(inf + 1.0)[1] == kInf);  // existing infinities are no anomaly
}
TEST_CASE("an anomaly of backward names the gradient op and the layer of the forward op") {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = tensor<float>({1, 0}, {2}).requires_grad_();
    x.label("x");
    const auto loss = [&](auto f) {
      const NameScope model("gpt"), part("norm");
      return sum(f(x));
    };
    const Tensor root = loss([](const Tensor& v) { return tg::sqrt(v); });
    const Tensor quotient = loss([](const Tensor& v) { return 2.0 / (v + 1e-30); });
    const AnomalyScope search;
    const auto error = [&](const Tensor& y) { return error_of([&] { eval({backward(y)[x]}); }); };
    std::string e = error(root);
    INFO(e);
    CHECK_HAS(e, "[sqrt_grad] makes an infinity in output 0, (2) f32, at (1)", "in gpt.norm");
    e = error(quotient);  // the gradient of a division is made of public ops
    INFO(e);
    CHECK_HAS(e, "[div] makes an infinity in output 0, (2) f32, at (1)", "in gpt.norm");
  }
}
TEST_CASE("what is meant to be infinite is none, and outside of the scope nothing is checked") {
  const Tensor x = tensor<float>({1000, 1}, {2});
  {
    const AnomalyScope search;
    const Tensor mask = full({2}, -kInf);
    CHECK(values(softmax(concat({x, mask})))[0] == 1);
    CHECK(values(x.to(DType::bf16) + x.to(DType::bf16))[1] == 2);
    CHECK_NOTHROW(sum(empty(Layout::contiguous({0, 3}, DType::f32))));
  }
  CHECK(values(tg::exp(x))[0] == kInf);
  CHECK_FALSE(anomaly_enabled());
}
TEST_CASE("strided values, in place results and every dtype are searched") {
  const AnomalyScope search;
  const Tensor wide = tensor<double>({1, 2, 3, 800}, {2, 2});
  CHECK_SAYS(tg::exp(transpose(wide)), "[exp] makes an infinity in output 0, (2, 2) f64, at (1, 1)");
  CHECK_SAYS(tg::exp(wide * 1.0), "in [1, 800]");  // the kernel overwrites its input
  CHECK_SAYS(tg::exp(wide.to(DType::bf16)), "(2, 2) bf16");
}
TEST_CASE("of a long list of inputs, the message names those that hold a NaN or an infinity") {
  std::vector<Tensor> w, m, v, g;
  for (int i = 0; i < 30; ++i) {
    w.push_back(filled({2}, 1.f)), m.push_back(filled({2}, 0.f)), v.push_back(filled({2}, 0.f));
    g.push_back(filled({2}, i == 20 ? kNan : 1.f));
  }
  g[20].label("wte.grad");
  const AnomalyScope anomaly;
  CHECK_SAYS(adamw_step({.w = w, .m = m, .v = v, .grad = g}, {}, 0.1, 1),
             "[adamw_step] passes on NaN in output 20, (2) f32, at (0).",
             "It reads: 'wte.grad' (2) f32, NaN at (0); 119 tensors more.");
}
