#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/cpu/simd/sums.h>
#include <tapegrad/ops/topk.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class C> bool is_nan(C x) { return x != x; }

template <class T, class F> void for_each_row(const Buf& x, size_t dim, F&& f) {
  Shape rest = x.shape();
  Strides from = x.strides();
  rest.erase(dim);
  from.erase(dim);
  const Walk<1> walk(rest, {from});
  parallel_for(rest.product(), std::max<int64_t>(1, kGrain / std::max<int64_t>(1, x.size(dim))),
               [&](int64_t begin, int64_t end) {
                 int64_t row = begin;
                 walk.rows(begin, end, [&](int64_t n, const At<1>& at, const At<1>& step) {
                   for (int64_t i = 0; i < n; ++i) f(row++, x.data<T>() + at[0] + i * step[0]);
                 });
               });
}

void argmax(const op::ArgMax& op, Bufs in, Bufs out, Context&) {
  const int64_t n = in[0].size(op.dim), step = in[0].strides()[op.dim];
  kernel::visit_number(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    for_each_row<T>(in[0], op.dim, [&, y = out[0].data<int64_t>()](int64_t row, const T* p) {
      const C best = step == 1 ? lane_max<C>(n, [p](int64_t i) { return C(p[i]); })
                               : lane_max<C>(n, [p, step](int64_t i) { return C(p[i * step]); });
      int64_t i = 0;
      while (!(C(p[i * step]) == best || is_nan(C(p[i * step])))) ++i;  // first NaN is largest
      y[row] = i;
    });
  });
}

void topk(const op::SelectTopK& op, Bufs in, Bufs out, Context&) {
  const size_t last = in[0].shape().size() - 1;
  const int64_t n = in[0].size(last), step = in[0].strides()[last];
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    for_each_row<T>(in[0], last, [&](int64_t row, const T* p) {
      thread_local std::vector<int64_t> order;
      order.resize(size_t(n));
      std::iota(order.begin(), order.end(), int64_t(0));
      std::partial_sort(order.begin(), order.begin() + op.k, order.end(), [p, step](int64_t i, int64_t j) {
        const C a = p[i * step], b = p[j * step];
        if (is_nan(a) || is_nan(b)) return is_nan(a) && (!is_nan(b) || i < j);
        return a > b || (a == b && i < j);
      });
      T* values = out[0].data<T>() + row * op.k;
      int64_t* indices = out[1].data<int64_t>() + row * op.k;
      for (int64_t i = 0; i < op.k; ++i) indices[i] = order[size_t(i)], values[i] = p[order[size_t(i)] * step];
    });
  });
}

void argsort(const op::ArgSort& op, Bufs in, Bufs out, Context&) {
  const size_t last = in[0].shape().size() - 1;
  const int64_t n = in[0].size(last), step = in[0].strides()[last];
  kernel::visit_number(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    for_each_row<T>(in[0], last, [&](int64_t row, const T* p) {
      thread_local std::vector<C> x;
      x.resize(size_t(n));
      for (int64_t i = 0; i < n; ++i) x[size_t(i)] = C(p[i * step]);
      const auto less = [](C a, C b) { return is_nan(b) ? !is_nan(a) : a < b; };
      int64_t* y = out[0].data<int64_t>() + row * n;
      std::iota(y, y + n, int64_t(0));
      std::stable_sort(y, y + n, [&, v = x.data()](int64_t i, int64_t j) {
        return op.descending ? less(v[j], v[i]) : less(v[i], v[j]);
      });
    });
  });
}

TG_STRIDED_KERNEL(op::ArgMax, cpu, argmax);
TG_STRIDED_KERNEL(op::ArgSort, cpu, argsort);
TG_STRIDED_KERNEL(op::SelectTopK, cpu, topk);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
