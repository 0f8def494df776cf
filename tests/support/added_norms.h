// add_layer_norm and add_rms_norm against add, norm and casts: the same bits, forward and backward.
#pragma once
#include "support/effort.h"
#include "support/helpers.h"

#include <tapegrad/ops/norm.h>

namespace tg {

enum class NormForm { plain, weight, bias, rms, rms_weight };
inline constexpr NormForm kNormForms[] = {NormForm::plain, NormForm::weight, NormForm::bias, NormForm::rms,
                                          NormForm::rms_weight};
inline constexpr double kNormEps = 1e-3;

inline AddedNorm added_norm(NormForm f, Inputs x) {
  switch (f) {
    case NormForm::plain: return add_layer_norm(x[0], x[1], {}, {}, kNormEps);
    case NormForm::weight: return add_layer_norm(x[0], x[1], x[2], {}, kNormEps);
    case NormForm::bias: return add_layer_norm(x[0], x[1], x[2], x[3], kNormEps);
    case NormForm::rms: return add_rms_norm(x[0], x[1], {}, kNormEps);
    case NormForm::rms_weight: break;
  }
  return add_rms_norm(x[0], x[1], x[2], kNormEps);
}
inline AddedNorm added_then_norm(NormForm f, Inputs x) {
  const Tensor s = x[0] + x[1].to(x[0].dtype());
  const auto norm = [&] {
    switch (f) {
      case NormForm::plain: return layer_norm(s, {}, {}, kNormEps);
      case NormForm::weight: return layer_norm(s, x[2], {}, kNormEps);
      case NormForm::bias: return layer_norm(s, x[2], x[3], kNormEps);
      case NormForm::rms: return rms_norm(s, {}, kNormEps);
      case NormForm::rms_weight: break;
    }
    return rms_norm(s, x[2], kNormEps);
  };
  return {s, norm().to(x[1].dtype())};
}

// Sum, y, and a gradient per input, or empty. flow: gradients flow into the sum (1), y (2) or both (3); tracked: a bit
// per input.
inline std::vector<Tensor> with_gradients(AddedNorm (*norm)(NormForm, Inputs), NormForm f, std::vector<Tensor> x,
                                          unsigned flow, unsigned tracked) {
  for (size_t i = 0; i < x.size(); ++i) (x[i] = x[i].detach()).requires_grad_(tracked >> i & 1);
  const AddedNorm a = norm(f, x);
  std::vector<Tensor> of, given;
  const auto seed = [&](const Tensor& t, unsigned bit) {
    if (!(flow & bit) || !t.requires_grad()) return;
    of.push_back(t);
    given.push_back(random<double>(t.shape(), 5 + bit).to(t.dtype()).to(t.device()));
  };
  seed(a.sum, 1), seed(a.y, 2);
  const GradMap g = of.empty() ? GradMap() : backward(of, given);
  std::vector<Tensor> r{a.sum.detach(), a.y.detach()};
  for (auto& t : x) r.push_back(g[t]);
  return r;
}
// Norms of f32 into bf16 against a cast after them: the same bits.
inline void check_narrow_norms(Device device, int64_t rows, int64_t n) {
  const Tensor x = random({rows, n}, 1, 1, 3).to(device), w = random({n}, 2).to(device), b = random({n}, 3).to(device);
  const Tensor dy = random({rows, n}, 4).to(DType::bf16).to(device);
  for (const bool centred : {false, true}) {
    const auto run = [&](std::optional<DType> to) {
      std::vector<Tensor> in{x.detach().requires_grad_(), w.detach().requires_grad_(), b.detach().requires_grad_()};
      const Tensor y = centred ? layer_norm(in[0], in[1], in[2], kNormEps, to) : rms_norm(in[0], in[1], kNormEps, to);
      const GradMap g = backward(y.to(DType::bf16), dy);
      std::vector<Tensor> r{y.to(DType::bf16), g[in[0]], g[in[1]]};
      if (centred) r.push_back(g[in[2]]);
      return r;
    };
    check_same_bits(run(DType::bf16), run({}));
  }
}
inline void check_added_norms(Device device, int64_t rows, int64_t n, DType dtype, DType branch) {
  INFO("(", rows, ", ", n, ") ", name_of(dtype), ", branch ", name_of(branch));
  const auto made = [&](const Shape& s, uint64_t seed, double lo, double hi) {
    return random<double>(s, seed, lo, hi).to(dtype).to(device);
  };
  const std::vector<Tensor> x{made({rows, n}, 1, 1, 3), made({rows, n}, 2, -1, 1).to(branch), made({n}, 3, 0.5, 1.5),
                              made({n}, 4, -1, 1)};
  struct Use {
    unsigned flow, tracked;
  };
  const std::vector<Use> some =
      in_turns(std::vector{Use{2, 15}, Use{1, 15}, Use{3, 1}, Use{3, 2}, Use{3, 4}, Use{3, 8}, Use{3, 13}});
  std::vector<Use> uses{{3, 15}};
  if (n <= 1000) uses.insert(uses.end(), some.begin(), some.end());  // the same code at any length
  for (const NormForm f : kNormForms)
    for (const auto [flow, tracked] : uses) {
      INFO("form ", int(f), ", flow ", flow, ", tracked ", tracked);
      const auto expected = with_gradients(added_then_norm, f, x, flow, tracked);
      check_same_bits(with_gradients(added_norm, f, x, flow, tracked), expected);
      if (flow != 3 || tracked != 15) continue;
      const LazyScope lazy;  // values that no one holds: memory is reused
      const std::vector<Tensor> passing{x[0] * 1.0, x[1] * 1.0, x[2], x[3]};
      std::vector<Tensor> roots = with_gradients(added_norm, f, passing, flow, 15);
      for (auto& t : roots)
        if (!t) t = roots[0];
      eval(roots);
      for (size_t k = 0; k < expected.size(); ++k)
        if (expected[k]) CHECK(bits_of(roots[k]) == bits_of(expected[k]));
    }
}

}  // namespace tg
