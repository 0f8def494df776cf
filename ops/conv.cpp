#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/conv.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>

namespace tg {
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& o) {
  constexpr auto kName = "conv1d";
  TG_CHECK(x && weight, value, "[conv1d] x or weight is an empty tensor{}", detail::about_empty());
  check::computes(kName, x);
  check::same_dtype(kName, x, weight);
  TG_CHECK(x.ndim() == 3 && weight.ndim() == 3 && weight.size(2) > 0, shape,
           "[conv1d] x is {}, weight {}. They must be (N, C, L) and (O, C / groups, K), with K of 1 or more.", x,
           weight);
  constexpr int64_t kMost = int64_t(1) << 31;
  TG_CHECK(std::min({o.stride, o.dilation, o.groups}) >= 1 && std::max(o.stride, o.dilation) < kMost, value,
           "[conv1d] stride is {}, dilation {}, groups {}. Each must be 1 or more.", o.stride, o.dilation, o.groups);
  const int64_t channels = x.size(1), outputs = weight.size(0), taps = weight.size(2), each = channels / o.groups;
  TG_CHECK(channels % o.groups == 0 && outputs % o.groups == 0 && weight.size(1) == each, shape,
           "[conv1d] x is {}, weight {}, groups {}. groups must divide C and O, and weight be (O, C / groups, K).", x,
           weight, o.groups);
  if (bias) {
    check::same_dtype(kName, x, bias);
    TG_CHECK(bias.shape() == Shape{outputs}, shape, "[conv1d] bias is {}, weight {}. bias must be ({}).", bias, weight,
             outputs);
  }
  const int64_t reach = (taps - 1) * o.dilation;
  const Tensor row = pad(pad(x, {{}, {}, o.padding}), {{}, {}, {o.causal ? reach : 0, 0}});
  TG_CHECK(row.size(2) > reach, shape,
           "[conv1d] rows of {} have {} elements with padding, and the kernel reaches over {}. Add padding.", x,
           row.size(2), reach + 1);
  const int64_t places = (row.size(2) - reach - 1) / o.stride + 1;
  std::vector<Tensor> read;  // (N, C, places) for each tap
  for (int64_t k = 0; k < taps; ++k)
    read.push_back(slice(row, 2, k * o.dilation, k * o.dilation + (places - 1) * o.stride + 1, o.stride));
  Tensor y;
  if (each == 1 && outputs == channels) {
    for (int64_t k = 0; k < taps; ++k) {
      const Tensor term = widened(read[size_t(k)]) * widened(squeeze(slice(weight, 2, k, k + 1), 2));
      y = y ? y + term : term;
    }
  } else {
    const Tensor columns = reshape(stack(read, 2), {x.size(0), o.groups, each * taps, places});
    const Tensor matrices = reshape(weight, {o.groups, outputs / o.groups, each * taps});
    y = reshape(matmul(matrices, columns), {x.size(0), outputs, places});
  }
  return (bias ? widened(y) + widened(reshape(bias, {outputs, 1})) : y).to(x.dtype());
}
}  // namespace tg
