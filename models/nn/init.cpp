#include <tapegrad/core/check.h>
#include <tapegrad/models/nn/init.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>

#include <cmath>
#include <numeric>

namespace tg {
namespace {
Tensor xavier_of(const Shape& s, const Dims& parts, DType t, Device d, Rng rng) {
  const Dims outs = parts.empty() && s.size() == 2 ? Dims{s[0]} : parts;
  TG_CHECK(s.size() == 2 && std::accumulate(outs.begin(), outs.end(), int64_t(0)) == s[0], shape,
           "[init] {} is no matrix (out, in) of parts {}. The parts must make up its rows.", s, outs);
  std::vector<Tensor> made;
  for (int64_t out : outs) made.push_back(trunc_normal({out, s[1]}, rng, 0, std::sqrt(2 / double(s[1] + out)), t, d));
  return made.size() == 1 ? made[0] : concat(made, 0);
}
}  // namespace

Tensor Init::make(const Shape& shape, DType dtype, Device device, Rng rng) const {
  const bool by_std = kind == Kind::normal || kind == Kind::truncated_normal;
  switch (std == 0 && by_std ? Kind::constant : kind) {
    case Kind::constant: return full(shape, mean, dtype, device);
    case Kind::normal: return randn(shape, rng, mean, std, dtype, device);
    case Kind::truncated_normal: return trunc_normal(shape, rng, mean, std, dtype, device);
    case Kind::uniform: return rand(shape, rng, -bound, bound, dtype, device);
    case Kind::xavier: break;
  }
  return xavier_of(shape, parts, dtype, device, rng);
}

}  // namespace tg
