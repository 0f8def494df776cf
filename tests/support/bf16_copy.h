// Training steps with bf16 copies of parameters, compared with conversions in every step.
#pragma once
#include "support/helpers.h"

#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/profile/work.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/training/optim_step.h>

#include <limits>

namespace tg {

inline int64_t casts_of(const WorkScope& s) {
  int64_t n = 0;
  for (const WorkOfOp& o : s.ops()) n += o.op == "cast" ? o.calls : 0;
  return n;
}
inline bool is_copy_of(const Tensor& w) {
  const NoGradScope off;
  return bits_of(detail::cast_parameter(w, DType::bf16)) == bits_of(w.to(DType::bf16));
}

enum class Update { adamw, sgd, momentum };
enum class RunBy { eager, lazy, compiled };
struct CopyRun {
  std::vector<std::vector<std::byte>> bits;  // losses, final parameters and moments
  int64_t casts = 0;
};
// Seven steps; one parameter is assigned after the third, and the fifth step is not finite. `kept`: cast_parameter()
// instead of to().
inline CopyRun run_of_copies(Device d, Update update, RunBy how, bool kept) {
  const std::vector<Shape> shapes{{1}, {3}, {4}, {5, 7}, {0, 3}, {1023}, {129, 3}, {16385}};
  std::vector<Tensor> w, m, v;
  for (size_t i = 0; i < shapes.size(); ++i) {
    w.push_back(random(shapes[i], i).to(d).detach().requires_grad_());
    m.push_back(zeros(shapes[i], DType::f32, d));
    v.push_back(zeros(shapes[i], DType::f32, d));
  }
  const auto clock = make_ref<OptimizerClock>(1e-2, 0);
  const TensorFunction step = [&](Inputs x) {
    Tensor loss;
    for (const Tensor& p : w) {
      const Tensor narrow = kept ? detail::cast_parameter(p, DType::bf16) : p.to(DType::bf16);
      const Tensor part = sum((narrow * narrow * x[0] + narrow).to(DType::f32));
      loss = loss ? loss + part : part;
    }
    const GradMap all = backward(loss);
    std::vector<Tensor> g;
    for (const Tensor& p : w) g.push_back(all.native(p));
    const Tensor norm = global_norm(g);
    const double most = 1;
    if (update == Update::adamw)
      adamw_step({.w = w, .m = m, .v = v, .grad = g}, {.skip_non_finite = true}, clock->lr, clock->t + 1, norm, most,
                 clock);
    else
      sgd_step({.w = w, .grad = g, .momentum = update == Update::momentum ? Inputs(m) : Inputs()},
               {.momentum = update == Update::momentum ? 0.9 : 0, .skip_non_finite = true}, clock->lr, clock->t + 1,
               norm, most, clock);
    if (how != RunBy::compiled) ++clock->t;
    return std::vector<Tensor>{loss.detach()};
  };
  const Compiled compiled = compile(step);
  CopyRun r;
  for (int i = 0; i < 7; ++i) {
    if (i == 3) w[3].assign(random(shapes[3], 99).to(d));
    const float scale = i == 4 ? std::numeric_limits<float>::infinity() : 0.5f;
    const Tensor x = filled({1}, scale).to(DType::bf16).to(d);
    const WorkScope work;
    if (how == RunBy::compiled) {
      r.bits.push_back(bits_of(compiled({x})[0]));
      if (i == 0) clock->t = 1;  // an Optimizer does so
    } else {
      const Mode mode(how == RunBy::lazy);
      const Tensor loss = step({&x, 1})[0];
      eval({loss}), eval(w);
      r.bits.push_back(bits_of(loss));
    }
    r.casts = casts_of(work);
    for (const Tensor& p : w)
      if (kept) CHECK(is_copy_of(p));
  }
  for (const std::vector<Tensor>& list : {w, m, v})
    for (const Tensor& t : list) r.bits.push_back(bits_of(t));
  return r;
}
inline void check_kept_copies(Device d) {
  for (const Update u : {Update::adamw, Update::sgd, Update::momentum}) {
    CAPTURE(int(u));
    const CopyRun plain = run_of_copies(d, u, RunBy::eager, false);
    for (const RunBy how : {RunBy::eager, RunBy::lazy, RunBy::compiled}) {
      CAPTURE(int(how));
      const CopyRun kept = run_of_copies(d, u, how, true);
      CHECK(kept.bits == plain.bits);
      if (how != RunBy::compiled) CHECK(plain.casts - kept.casts == 8);
    }
  }
}

}  // namespace tg
