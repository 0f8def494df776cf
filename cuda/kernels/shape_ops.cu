#include <tapegrad/cuda/device/copy.h>
#include <tapegrad/ops/shape_ops.h>

#include <vector>

namespace tg::cuda {
namespace {
std::byte* at_element(const Buf& b, int64_t i) {
  return b.bytes + (b.layout->offset + i) * int64_t(size_of(b.dtype()));
}

void pad(const op::Pad& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &y = out[0];
  const int64_t step = y.strides()[op.dim], end = op.start + x.size(op.dim);
  const auto zeros = [&](int64_t from, int64_t to) {
    Shape shape = y.shape();
    shape[op.dim] = to - from;
    return Region{shape, nullptr, {}, at_element(y, from * step), y.strides()};
  };
  copy_regions(
      c, size_of(y.dtype()),
      std::vector{zeros(0, op.start),
                  Region{x.shape(), at_element(x, 0), x.strides(), at_element(y, op.start * step), y.strides()},
                  zeros(end, y.size(op.dim))});
}
void concat(const op::Concat& op, Bufs in, Bufs out, Context& c) {
  const Buf& y = out[0];
  std::vector<Region> parts;
  int64_t at = 0;
  for (const Buf& x : in) {
    parts.push_back({x.shape(), at_element(x, 0), x.strides(), at_element(y, at * y.strides()[op.dim]), y.strides()});
    at += x.size(op.dim);
  }
  copy_regions(c, size_of(y.dtype()), parts);
}
TG_STRIDED_KERNEL(op::Pad, cuda, pad);
TG_STRIDED_KERNEL(op::Concat, cuda, concat);
}  // namespace
}  // namespace tg::cuda
