// A row per warp or block. Rows beyond registers are read twice: one pass computes maximum and sum of exponentials
// (Milakov & Gimelshein 2018).
#include <tapegrad/ops/softmax.h>

#include <tapegrad/core/math.h>
#include <tapegrad/cuda/device/rows.h>

#include <limits>

namespace tg::cuda {
namespace {
template <class C> __device__ __forceinline__ C lowest() { return -std::numeric_limits<C>::infinity(); }

// Row's maximum, and sum(exp(x - top)). A row in registers becomes x - top (kLog) or exp(x - top).
template <class S, bool kLog> struct Weights {
  using C = typename S::C;
  C top, sum;

  __device__ __forceinline__ Weights(RowOf<S>& x, int64_t n) : top(lowest<C>()), sum(0) {
    if constexpr (S::kKept)
      of_kept(x, n);
    else
      of_long(x, n);
  }

 private:
  __device__ __forceinline__ void of_kept(RowOf<S>& x, int64_t n) {
    each_pack<S>(n, [&](int k, int64_t j) {
      for (C v : x.at(k, j)) top = MaxOp()(top, v);
    });
    top = block_all<MaxOp, S::kThreads>(top, lowest<C>());
    sum = sum_of_packs<S>(n, [&](int k, int64_t j) {
      C some = 0;
      for (C& v : x.at(k, j)) {
        v -= top;
        const C weight = exp_for<typename S::T>(v);
        if constexpr (!kLog) v = weight;
        some += weight;
      }
      return some;
    });
  }
  // Online softmax, by each thread's maximum so far. Packs of -inf add nothing.
  __device__ __forceinline__ void of_long(RowOf<S>& x, int64_t n) {
    C best = lowest<C>();
    KahanSum<C, true> total;
    each_pack<S>(n, [&](int k, int64_t j) {
      const auto& pack = x.at(k, j);
      C next = best, some = 0;
      for (C v : pack) next = MaxOp()(next, v);
      if (next == lowest<C>()) return;
      for (C v : pack) some += exp_for<typename S::T>(v - next);
      total.scale(exp_for<typename S::T>(best - next));
      total.add(some);
      best = next;
    });
    top = block_all<MaxOp, S::kThreads>(best, lowest<C>());
    sum = block_all<SumOp, S::kThreads>(total.total() * exp_for<typename S::T>(best - top), C(0));
  }
};

// y may alias x.
template <class S, bool kLog>
__global__ void __launch_bounds__(S::kBlock)
    softmax_rows(const typename S::T* x, typename S::T* y, int64_t rows, int64_t n) {
  using C = typename S::C;
  for (int64_t r = first_row<S>(); r < rows; r += row_step<S>()) {
    RowOf<S> row(x + r * n);
    row.load(n);
    const Weights<S, kLog> w(row, n);
    const C scale = kLog ? math::log(w.sum) : C(1) / w.sum;
    each_pack<S>(n, [&](int k, int64_t j) {
      const auto& pack = row.at(k, j);
      store_pack<S>(y + r * n, j, [&](int e) {
        const C v = S::kKept ? pack[e] : pack[e] - w.top;
        if constexpr (kLog) return v - scale;
        return (S::kKept ? v : exp_for<typename S::T>(v)) * scale;
      });
    });
  }
}
// dx = y * (dy - sum(dy * y)); kLog: dy - exp(y) * sum(dy). dx may alias y or dy.
template <class S, bool kLog>
__global__ void __launch_bounds__(S::kBlock)
    softmax_grad_rows(const typename S::T* y, const typename S::T* dy, typename S::T* dx, int64_t rows, int64_t n) {
  using C = typename S::C;
  for (int64_t r = first_row<S>(); r < rows; r += row_step<S>()) {
    RowOf<S> out(y + r * n), grad(dy + r * n);
    out.load(n), grad.load(n);
    const C sum = sum_of_packs<S>(n, [&](int k, int64_t j) {
      const auto &g = grad.at(k, j), &o = out.at(k, j);
      C some = 0;
#pragma unroll
      for (int e = 0; e < S::V; ++e) some += kLog ? g[e] : g[e] * o[e];
      return some;
    });
    each_pack<S>(n, [&](int k, int64_t j) {
      const auto &g = grad.at(k, j), &o = out.at(k, j);
      store_pack<S>(dx + r * n, j, [&](int e) {
        if constexpr (kLog) return g[e] - exp_for<typename S::T>(o[e]) * sum;
        return o[e] * (g[e] - sum);
      });
    });
  }
}

template <bool kLog> void forward(const Context& c, const Buf& in, const Buf& out) {
  const int64_t n = out.shape().back(), total = out.numel();
  if (total == 0) return;
  kernel::visit_float(out.dtype(), [&]<class T>() {
    const Dense<T> copied(c, in);
    const T* x = copied;
    T* y = out.data<T>();
    visit_row_shape<T>(n, rows_in_vectors<T>(n, x, y),
                       [&]<class S>() { launch_per_row<S>(c, total / n, softmax_rows<S, kLog>, x, y, total / n, n); });
  });
}
template <bool kLog> void backward(const Context& c, Bufs in, const Buf& out) {
  const int64_t n = out.shape().back(), total = out.numel();
  if (total == 0) return;
  kernel::visit_float(out.dtype(), [&]<class T>() {
    const Dense<T> out_copied(c, in[0]), grad_copied(c, in[1]);
    const T *y = out_copied, *dy = grad_copied;
    T* dx = out.data<T>();
    visit_row_shape<T>(n, rows_in_vectors<T>(n, y, dy, dx), [&]<class S>() {
      launch_per_row<S>(c, total / n, softmax_grad_rows<S, kLog>, y, dy, dx, total / n, n);
    });
  });
}
void softmax(const op::Softmax&, Bufs in, Bufs out, Context& c) { forward<false>(c, in[0], out[0]); }
void log_softmax(const op::LogSoftmax&, Bufs in, Bufs out, Context& c) { forward<true>(c, in[0], out[0]); }
void softmax_grad(const op::SoftmaxGrad&, Bufs in, Bufs out, Context& c) { backward<false>(c, in, out[0]); }
void log_softmax_grad(const op::LogSoftmaxGrad&, Bufs in, Bufs out, Context& c) { backward<true>(c, in, out[0]); }
TG_STRIDED_KERNEL(op::LogSoftmax, cuda, log_softmax);
TG_STRIDED_KERNEL(op::LogSoftmaxGrad, cuda, log_softmax_grad);
TG_STRIDED_KERNEL(op::Softmax, cuda, softmax);
TG_STRIDED_KERNEL(op::SoftmaxGrad, cuda, softmax_grad);
}  // namespace
}  // namespace tg::cuda
