// Gpt in bf16 over f32 parameters, with recomputed activations, and at sizes that are counted and not allocated.
#include "gpt_oracle.h"

#include <tapegrad/models/gpt/generate.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/ops/create.h>
#include <tapegrad/ops/loss.h>

#include <cmath>

using namespace tg;

namespace {
// max over rows of the last dimension of max|a - b| / max|b|.
double row_distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  const size_t n = size_t(b.shape().back());
  double worst = 0;
  for (size_t row = 0; row < y.size(); row += n) {
    double error = 0, scale = 0;
    for (size_t j = row; j < row + n; ++j) {
      error = std::max(error, std::abs(x[j] - y[j]));
      scale = std::max(scale, std::abs(y[j]));
    }
    if (error > 0) worst = std::max(worst, error / scale);
  }
  return worst;
}
struct Pass {
  Tensor logits;
  std::vector<Tensor> grads;
};
Pass pass_of(const Gpt& model, const Params& params, const Oracle& o, ForwardOptions options) {
  auto all = [&](const char* n) { const Tensor t = o.file.tensor(n); return reshape(t, {t.size(0) * t.size(1), t.size(2)}); };
  Pass r{model.forward(all("tokens"), options), {}};
  const GradMap g = backward(cross_entropy(r.logits, all("targets")));
  for (auto& p : params.all()) r.grads.push_back(g[p.tensor]);
  return r;
}
// Bytes that a forward pass leaves for backward, its logits included.
[[maybe_unused]] int64_t kept_bytes(const Gpt& model, const Tensor& tokens, ForwardOptions options) {
  const auto before = memory_stats().live;
  const Tensor logits = model.forward(tokens, options);
  return int64_t(memory_stats().live) - int64_t(before);
}
}  // namespace

TEST_CASE("bf16 over f32 parameters: near f32, gradients in f32") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    const Oracle o(name);
    const Params params;
    const Gpt model = o.model(params);
    const Pass exact = pass_of(model, params, o, {}), mixed = pass_of(model, params, o, {.compute = DType::bf16});
    CHECK(mixed.logits.dtype() == DType::bf16);
    CHECK(row_distance(mixed.logits, exact.logits) <= 2e-2);
    CHECK(row_distance(mixed.logits, exact.logits) > 1e-4);  // it was another computation
    for (size_t i = 0; i < mixed.grads.size(); ++i) {
      CAPTURE(params.all()[i].name);
      CHECK(mixed.grads[i].dtype() == DType::f32);
      MESSAGE(params.all()[i].name << " row " << row_distance(mixed.grads[i], exact.grads[i]) << " tensor "
                                   << distance(mixed.grads[i], exact.grads[i]));
    }
  }
}
