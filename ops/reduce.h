// Sums over dimensions, and what is made of them.
#pragma once
#include <tapegrad/core/op.h>

namespace tg {

struct Sum : OpOf<Sum> {
  static constexpr auto kName = "sum";
  uint8_t dims;  // one bit per reduced dimension
  bool keep;     // reduced dimensions stay as size 1
  Sum(uint8_t mask, bool keepdim) : dims(mask), keep(keepdim) {}
  Layouts infer(Inputs) const override;
  Tensors vjp(const Vjp&) const override;
  void key(Key& k) const override { k.add(uint64_t(dims)), k.add(keep); }
};

struct ReduceOptions {
  bool keepdim = false;
};
// Over the given dimensions (negative ones count from the end), or over all. f64, f32, bf16 (accumulated in f32), i64,
// i32. The sum of nothing is 0; the mean of nothing is an Error.
Tensor sum(const Tensor& x);
Tensor sum(const Tensor& x, const Dims& dims, ReduceOptions = {});
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, const Dims& dims, ReduceOptions = {});
// Sums over what expanding `to` to x's shape would repeat: the gradient of broadcasting.
Tensor sum_to(const Tensor& x, const Shape& to);

}  // namespace tg
