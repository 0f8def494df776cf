// Steps of AdamW with bf16 moments against a loop over elements, bit for bit, on any device.
#pragma once
#include "support/helpers.h"

#include <tapegrad/core/mode.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/training/optim_math.h>

#include <cmath>

namespace tg {

struct StepNumbers {  // what AdamWNumbers reads of an op
  AdamWOptions o;
  double lr;
  int64_t t;
};
inline void step_by_loop(const StepNumbers& step, const AdamWOverrides& own, float clip, int64_t first,
                         const std::vector<float>& g, float* w, std::vector<float>& m, std::vector<float>& v) {
  const op::AdamWNumbers<float> c(step, own);
  for (size_t i = 0; i < g.size(); ++i) {
    c.update<true>(c.now, c.decay(c.now), clip, g[i], w[i], m[i], v[i]);
    const uint32_t word = op::rounding_word(c.now.key, uint32_t(first) + uint32_t(i));
    m[i] = op::stochastic_bf16(m[i], word), v[i] = op::stochastic_bf16(v[i], word >> 16);
  }
}
inline void check_bf16_moments(Device d) {
  struct Part {
    Shape w;
    int64_t first, n;
  };
  const std::vector<Part> parts = {
      {{}, 0, 1},          {{5, 7}, 3, 20},           {{3}, 0, 3}, {{300, 129}, 16'384, 16'384}, {{0, 3}, 0, 0},
      {{64, 65}, 0, 4160}, {{40'001}, 16'385, 23'616}};
  for (const WeightDecay decay : {WeightDecay::before, WeightDecay::after, WeightDecay::l2})
    for (const bool in_parts : {true, false})
      for (const DType grads : {DType::f32, DType::bf16}) {
        CAPTURE_ALL(int(decay), in_parts, name_of(grads));
        const auto eps = in_parts ? EpsPlacement::corrected : EpsPlacement::uncorrected;
        const AdamWOptions o{.weight_decay = 0.1, .decay = decay, .eps_placement = eps, .seed = 7};
        const NoGradScope off;
        std::vector<Tensor> w, m, v;
        std::vector<std::vector<float>> w1, m1, v1;
        std::vector<int64_t> first;
        std::vector<AdamWOverrides> each;
        for (size_t i = 0; i < parts.size(); ++i) {
          const auto& [shape, at, n] = parts[i];
          w.push_back(random(shape, i).to(d).detach());
          if (in_parts) first.push_back(at);
          for (auto* moments : {&m, &v}) moments->push_back(zeros(in_parts ? Shape{n} : shape, DType::bf16, d));
          const size_t many = size_t(in_parts ? n : w[i].numel());
          w1.push_back(values<float>(w[i])), m1.emplace_back(many), v1.emplace_back(many);
          AdamWOverrides& own = each.emplace_back(AdamWOverrides{.lr_scale = 1 + double(i % 2)});
          own.weight_decay = 0.1, own.beta1 = 0.9, own.beta2 = 0.999;
          if (i % 3) own.stream = 100 + i;
        }
        for (int64_t t = 1; t <= 4; ++t) {
          std::vector<Tensor> g;
          for (size_t i = 0; i < w.size(); ++i)
            g.push_back(random(m[i].shape(), 100 * uint64_t(t) + i).to(grads).to(d));
          const double lr = 0.1 / double(t);
          adamw_step({.w = w, .m = m, .v = v, .grad = g, .each = each, .first = first}, o, lr, t,
                     t % 2 ? full({}, 3.0, DType::f32, d) : Tensor(), t % 2 ? 0.5 : 0);
          for (size_t i = 0; i < w.size(); ++i) {
            AdamWOverrides own = each[i];
            own.stream = own.stream.value_or(i);
            const int64_t at = in_parts ? first[i] : 0;
            step_by_loop({o, lr, t}, own, t % 2 ? float(0.5 / (3 + 1e-6)) : 1.0f, at, values<float>(g[i]),
                         w1[i].data() + at, m1[i], v1[i]);
          }
        }
        std::vector<Tensor> g;
        for (const Tensor& x : m) g.push_back(zeros_like(x));
        AdamWOptions skips = o;
        skips.skip_non_finite = true;
        adamw_step({.w = w, .m = m, .v = v, .grad = g, .each = each, .first = first}, skips, 0.1, 5,
                   full({}, std::nan(""), DType::f32, d), 1);
        for (size_t i = 0; i < w.size(); ++i) {
          CAPTURE(i);
          CHECK(values<float>(w[i]) == w1[i]);
          CHECK(values<float>(m[i]) == m1[i]);
          CHECK(values<float>(v[i]) == v1[i]);
        }
      }
  // A gradient that is a product of one term has no order of sums.
  for (const int64_t columns : {64, 37}) {
    const AdamWOptions o{.seed = 9};
    const Tensor w = random({50, columns}, 1).to(d).detach(), a = random({1, 50}, 2), b = random({1, columns}, 3);
    const Tensor m = zeros(w.shape(), DType::bf16, d), v = zeros(w.shape(), DType::bf16, d);
    std::vector<float> w1 = values<float>(w), m1(w1.size()), v1(w1.size()), g;
    for (const float x : values<float>(a))
      for (const float y : values<float>(b)) g.push_back(x * y);
    for (int64_t t = 1; t <= 3; ++t) {
      detail::adamw_product_step(w, m, v, {a.to(d), b.to(d)}, o, 0.1, t, {.stream = 5});
      step_by_loop({o, 0.1, t}, {.weight_decay = 0.01, .beta1 = 0.9, .beta2 = 0.999, .stream = 5}, 1, 0, g, w1.data(),
                   m1, v1);
    }
    CHECK(values<float>(w) == w1);
    CHECK(values<float>(m) == m1);
    CHECK(values<float>(v) == v1);
  }
}

}  // namespace tg
