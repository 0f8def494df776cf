// Steps of parts of weights compared with those of slices, on any device.
#pragma once
#include "support/helpers.h"

#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/training/collective.h>
#include <tapegrad/ops/training/optim_step.h>

namespace tg {

// `adamw`: else SGD with momentum. `held`: no write in place.
inline void check_step_of_parts(Device d, DType t, bool adamw, bool held) {
  CAPTURE_ALL(name_of(t), adamw, held);
  struct Part {
    Shape w;
    int64_t first, n;
  };
  const std::vector<Part> parts = {
      {{5, 7}, 3, 20}, {{300, 129}, 16'384, 16'384}, {{4}, 0, 4}, {{9}, 9, 0}, {{0, 3}, 0, 0},
      {{}, 0, 1},      {{40'001}, 16'385, 23'616}};
  std::vector<Tensor> w, m, v, g, slices, sm, sv, old;
  std::vector<int64_t> first;
  const auto values = [&](const Shape& s, uint64_t seed) { return random(s, seed).to(t).to(d).detach(); };
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [shape, at, n] = parts[i];
    w.push_back(values(shape, i).requires_grad_());
    const Tensor flat = values({n}, 100 + i);
    m.push_back(flat), v.push_back((flat * flat).detach()), first.push_back(at);
    sm.push_back((m[i] * 1.0).detach()), sv.push_back((v[i] * 1.0).detach());
    const Tensor grad = values({n}, 200 + i);
    g.push_back(i % 2 && t == DType::f32 ? grad.to(DType::bf16) : grad);
    const NoGradScope off;
    slices.push_back((slice(reshape(w[i], {w[i].numel()}), 0, at, at + n) * 1.0).detach());
    if (t == DType::f32) (void)detail::cast_parameter(w[i], DType::bf16);
  }
  const auto bits_before = bits_of(w);
  if (held)
    for (const Tensor& x : w) old.push_back(x.detach());
  const Tensor norm = global_norm(g);
  if (adamw) {
    adamw_step({.w = w, .m = m, .v = v, .grad = g, .first = first}, {}, 0.1, 3, norm, 0.5);
    adamw_step({.w = slices, .m = sm, .v = sv, .grad = g}, {}, 0.1, 3, norm, 0.5);
  } else {
    sgd_step({.w = w, .grad = g, .momentum = m, .first = first}, {.momentum = 0.9}, 0.1, 3, norm, 0.5);
    sgd_step({.w = slices, .grad = g, .momentum = sm}, {.momentum = 0.9}, 0.1, 3, norm, 0.5);
  }
  const NoGradScope off;
  for (size_t i = 0; i < parts.size(); ++i) {
    CAPTURE(i);
    const auto& [shape, at, n] = parts[i];
    const Tensor now = reshape(w[i].detach(), {w[i].numel()});
    CHECK(bits_of(slice(now, 0, at, at + n)) == bits_of(slices[i]));
    CHECK(bits_of(m[i]) == bits_of(sm[i]));
    if (adamw) CHECK(bits_of(v[i]) == bits_of(sv[i]));
    std::vector<std::byte> want = bits_before[i];  // the rest is unchanged
    const std::vector<std::byte> part = bits_of(slices[i]);
    std::ranges::copy(part, want.begin() + at * int64_t(size_of(t)));
    CHECK(bits_of(w[i]) == want);
    if (held) CHECK(bits_of(old[i]) == bits_before[i]);
  }
  int64_t all = 0;
  for (const Tensor& x : w) all += x.numel();
  detail::all_gather_parts(w, {0, all}, Communicator::self());  // completes the copies
  if (t == DType::f32)
    for (const Tensor& x : w) CHECK(bits_of(detail::cast_parameter(x, DType::bf16)) == bits_of(x.to(DType::bf16)));
}
inline void check_steps_of_parts(Device d) {
  for (const DType t : {DType::f32, DType::f64})
    for (const bool adamw : {false, true})
      for (const bool held : {false, true}) check_step_of_parts(d, t, adamw, held);
}

}  // namespace tg
