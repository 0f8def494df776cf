// Steps of AdamW with split weights against those with whole ones, bit for bit, on any device.
#pragma once
#include "support/helpers.h"

#include <tapegrad/core/mode.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/training/optim_math.h>

#include <cmath>

namespace tg {

// `held`: the old tensors are held, so that the step cannot write in place.
inline void check_split_weights(Device d, DType moments, DType grads, bool in_parts, bool held) {
  CAPTURE_ALL(name_of(moments), name_of(grads), in_parts, held);
  struct Part {
    Shape w;
    int64_t first, n;
    bool splits = true;
  };
  const std::vector<Part> parts = {{{5, 7}, 3, 20},
                                   {{}, 0, 1},
                                   {{300, 129}, 16'384, 16'384},
                                   {{0, 3}, 0, 0},
                                   {{9}, 9, 0},
                                   {{64, 65}, 0, 4160, false},
                                   {{64, 65}, 0, 8},
                                   {{40'001}, 16'385, 23'616}};
  const AdamWOptions o{.weight_decay = 0.1, .skip_non_finite = true, .seed = 7};
  const NoGradScope off;
  struct State {
    std::vector<Tensor> w, m, v, low;
    std::vector<std::vector<std::byte>> bits() const {
      std::vector<std::vector<std::byte>> r;
      for (size_t i = 0; i < w.size(); ++i)
        for (const Tensor& t : {i < low.size() && low[i] ? detail::join_weight({w[i], low[i]}) : w[i], m[i], v[i]})
          r.push_back(bits_of(t));
      return r;
    }
  } whole, split;
  std::vector<int64_t> first;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [shape, at, n, splits] = parts[i];
    const Tensor w = random(shape, i);
    whole.w.push_back((w * 1.0).to(d).detach());
    const SplitTensor s = splits ? detail::split_weight(w.to(d)) : SplitTensor{(w * 1.0).to(d).detach(), {}};
    split.w.push_back(s.high), split.low.push_back(s.low);
    if (in_parts) first.push_back(at);
    for (State* x : {&whole, &split})
      for (auto* list : {&x->m, &x->v}) list->push_back(zeros(in_parts ? Shape{n} : shape, moments, d));
  }
  for (int64_t t = 1; t <= 4; ++t) {
    std::vector<Tensor> g, old;
    for (size_t i = 0; i < parts.size(); ++i)
      g.push_back(random(whole.m[i].shape(), 100 * uint64_t(t) + i).to(grads).to(d));
    const auto before = split.bits();
    if (held)
      for (const auto* list : {&split.w, &split.m, &split.v})
        for (const Tensor& x : *list) old.push_back(x.detach());
    if (held)
      for (const Tensor& x : split.low) old.push_back(x ? x.detach() : x);
    const Tensor norm = full({}, t == 3 ? std::nan("") : 3.0, DType::f32, d);  // the third step is skipped
    for (State* x : {&whole, &split})
      adamw_step({.w = x->w, .m = x->m, .v = x->v, .grad = g, .first = first, .low = x->low}, o, 0.1, t, norm, 0.5);
    CHECK(split.bits() == whole.bits());
    CHECK((split.bits() == before) == (t == 3));
    for (size_t i = 0; held && i < parts.size(); ++i)
      if (parts[i].splits) CHECK(bits_of(detail::join_weight({old[i], old[3 * parts.size() + i]})) == before[3 * i]);
  }
}
inline void check_split_weights(Device d) {
  for (const DType moments : {DType::f32, DType::bf16})
    for (const DType grads : {DType::f32, DType::bf16})
      for (const bool in_parts : {false, true}) check_split_weights(d, moments, grads, in_parts, grads == moments);
}

}  // namespace tg
