// AdamW training of two linear layers with dropout, made of ops, for tests of plans, memory and threads.
#pragma once
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

namespace tg {

struct SmallTraining {
  struct Param {
    Tensor w, m, v;
  };
  std::vector<Param> params;
  Rng rng{1337};
  int64_t t = 0;
  Tensor x, dropped;

  explicit SmallTraining(int64_t n, int64_t batch = 2, uint64_t seed = 1) : x(random({batch, n}, seed)) {
    for (uint64_t i = 0; i < 2; ++i) {
      Tensor w = random({n, n}, seed + i).requires_grad_();
      w.label(i ? "fc2.w" : "fc1.w");
      params.push_back({w, filled({n, n}, 0.f), filled({n, n}, 0.f)});
    }
  }
  std::vector<Tensor> roots(const Tensor& loss) const {
    std::vector<Tensor> r{loss, dropped};
    for (auto& p : params) r.insert(r.end(), {p.w, p.m, p.v});
    return r;
  }
  Tensor step() {
    const NameScope scope("model");
    const Tensor h = silu(linear(x, params[0].w));
    dropped = dropout(h, 0.5, rng);
    const Tensor y = matmul(dropped, params[1].w, {.trans_b = true}), loss = sum(y * y);
    const auto g = backward(loss);
    ++t;
    std::vector<Tensor> w, m, v, grads;
    for (auto& p : params) w.push_back(p.w), m.push_back(p.m), v.push_back(p.v), grads.push_back(g[p.w]);
    adamw_step({.w = w, .m = m, .v = v, .grad = grads}, {}, 1e-3 * double(t), t);
    return loss;
  }
  void append_weights(std::vector<float>& to) const {
    for (auto& p : params) {
      const auto w = values(p.w);
      to.insert(to.end(), w.begin(), w.end());
    }
  }
};
// Losses of all steps, then the weights.
inline std::vector<float> train_small(bool lazy, uint64_t seed, int steps = 5, int64_t n = 8) {
  SmallTraining model(n, 2, seed);
  std::vector<float> r;
  for (int i = 0; i < steps; ++i) {
    Mode mode(lazy);
    const Tensor loss = model.step();
    eval(model.roots(loss));
    r.push_back(loss.item<float>());
  }
  model.append_weights(r);
  return r;
}

}  // namespace tg
