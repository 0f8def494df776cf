// Values of each rank, and their sum.
#pragma once
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

namespace tg {

inline const std::shared_ptr<Communicator>& world() { return Communicator::world(); }
// Magnitudes far apart: the bits of a sum depend on its order.
inline Tensor of_rank(int rank, const Shape& s, DType t) {
  if (t == DType::i64) return (random<double>(s, 100 + uint64_t(rank), -1e9, 1e9)).to(t);
  const Tensor x = random<double>(s, uint64_t(rank)), scale = random<double>(s, 50 + uint64_t(rank), -12, 12);
  return (x * exp(scale)).to(t);
}
// Sum in rank order, in one process.
inline Tensor serial_sum(const Shape& s, DType t) {
  const DType wide = t == DType::bf16 ? DType::f32 : t;
  Tensor sum = of_rank(0, s, t).to(wide);
  for (int r = 1; r < world()->size(); ++r) sum = sum + of_rank(r, s, t).to(wide);
  return sum;
}
// Cuts of n elements: equal shards, all to the last rank, growing shards.
inline std::vector<ShardOffsets> cuts_of(int64_t n) {
  const int64_t ranks = world()->size();
  std::vector<ShardOffsets> all(3, ShardOffsets{0});
  for (int64_t r = 1; r <= ranks; ++r) {
    all[0].push_back(n * r / ranks);
    all[1].push_back(r == ranks ? n : 0);
    all[2].push_back(n * r * r / (ranks * ranks));
  }
  return all;
}
inline std::vector<Tensor> list_of_rank(int r) {
  // Long tensors are sent in place, short ones packed.
  return {of_rank(r, {40, 30}, DType::f32), of_rank(r, {7}, DType::bf16),
          of_rank(r, {0}, DType::f32),      of_rank(r, {}, DType::f64),
          of_rank(r, {11}, DType::i64),     of_rank(r, {20'000}, DType::f32),
          of_rank(r, {3}, DType::f32),      of_rank(r, {120'001}, DType::bf16),
          of_rank(r, {16'384}, DType::f32), of_rank(r, {5, 3001}, DType::f64),
          of_rank(r, {2}, DType::bf16),     transpose(of_rank(r, {700, 901}, DType::f32))};
}
inline Tensor copy_of(const Tensor& x) {
  const Tensor c = x.detach().contiguous();
  return x.dtype() == DType::f64 ? c * 1.0 : c.to(DType::f64).to(x.dtype());
}
template <class F, class Check> void in_all_modes(const F& f, const std::vector<Tensor>& in, const Check& check) {
  const auto list = [&](Inputs x) {
    const auto y = f(x);
    return std::vector<Tensor>(y.begin(), y.end());
  };
  check(list(in));
  {
    const LazyScope lazy;
    check(list(in));
  }
  const Compiled compiled = compile(list);
  for (int i = 0; i < 4; ++i) check(compiled(in));
}
inline int64_t elements(const std::vector<Tensor>& all) {
  int64_t n = 0;
  for (const Tensor& t : all) n += t.numel();
  return n;
}

}  // namespace tg
