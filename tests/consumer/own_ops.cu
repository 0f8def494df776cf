#include "own_ops.h"

#include <tapegrad/cuda/kernel.h>
#include <tapegrad/cuda/unary.h>

namespace own {
namespace {
using namespace tg::cuda;

struct CentredRow {
  template <class T> __device__ void operator()(int64_t n, T* y, const T* x) const {
    using C = tg::compute_t<T>;
    C sum = 0;
    for_row<kRowThreads>(x, n, [&](int64_t, T v) { sum += widen(v); });
    const C mean = block_all<SumOp, kRowThreads>(sum, C(0)) / C(n);
    for_row<kRowThreads>(x, n, [&](int64_t j, T v) { y[j] = narrow<T>(widen(v) - mean); });
  }
};
void centred_cuda(const Centred&, tg::Bufs in, tg::Bufs out, tg::Context& context) {
  for_each_row(context, {in[0]}, out[0], CentredRow{});
}

// squares[r]: the sum of the squares of row r, by a block.
template <class T, class C> __global__ void square_rows(const T* x, int64_t rows, int64_t n, C* squares) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    C sum = 0;
    for_row<kRowThreads>(x + r * n, n, [&](int64_t, T v) { sum += widen(v) * widen(v); });
    sum = block_all<SumOp, kRowThreads>(sum, C(0));
    if (threadIdx.x == 0) squares[r] = sum;
  }
}
// squares[0] becomes the factor of x. One block.
template <class C> __global__ void inverse_length(C* squares, int64_t rows, C epsilon) {
  C sum = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kRowThreads) sum += squares[r];
  sum = block_all<SumOp, kRowThreads>(sum, C(0));
  if (threadIdx.x == 0) squares[0] = C(1) / tg::math::sqrt(sum + epsilon);
}
template <class C> struct Scaled {
  const C* by;
  template <class X> __device__ X operator()(X x) const { return x * X(*by); }
};

void unit_cuda(const Unit& op, tg::Bufs in, tg::Bufs out, tg::Context& context) {
  if (out[0].numel() == 0) return;
  tg::kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = tg::compute_t<T>;
    const int64_t n = out[0].shape().back(), rows = out[0].numel() / n;
    C* squares = context.scratch<C>(rows);
    launch(context, square_rows<T, C>, blocks_for(context, rows, 1), kRowThreads, 0, in[0].data<const T>(), rows, n,
           squares);
    launch(context, inverse_length<C>, 1, kRowThreads, 0, squares, rows, C(op.epsilon));
    for_each(context, {in[0]}, out[0], Scaled<C>{squares});
  });
}
}  // namespace
}  // namespace own

TG_UNARY_OP(own::Softsign, cuda);
TG_STRIDED_KERNEL(own::Centred, cuda, own::centred_cuda);  // for_each_row reads any strides
TG_KERNEL(own::Unit, cuda, own::unit_cuda);
