// Kernels of ops/norm.h: a row at a time; the output may take over an input. Variance in two passes. RMSNorm is
// LayerNorm with a mean of 0.
#include <tapegrad/cpu/rows.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/norm.h>

#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
// A vector of n parameters in the compute dtype: where it lies, or a copy; n times `otherwise` where there is none.
template <class T> class Parameter {
 public:
  Parameter(Bufs in, size_t i, int64_t n, compute_t<T> otherwise) {
    if constexpr (std::is_same_v<T, compute_t<T>>)
      if (i < in.size() && in[i].strides()[0] == 1) {
        p_ = in[i].data<T>();
        return;
      }
    copy_.assign(size_t(n), otherwise);
    if (i < in.size())
      for (int64_t j = 0; j < n; ++j) copy_[size_t(j)] = in[i].data<T>()[j * in[i].strides()[0]];
    p_ = copy_.data();
  }
  Parameter(const Parameter&) = delete;
  compute_t<T> operator[](int64_t j) const { return p_[j]; }

 private:
  std::vector<compute_t<T>> copy_;
  const compute_t<T>* p_;
};

// Of one term, or of two, whose sum is then the second output. Which norm it is costs nothing at run time, and one
// function for all four is compiled once. r and y are of B.
template <class T, class B> void forward(size_t terms, bool centred, double eps, Bufs in, Bufs out) {
  using C = compute_t<T>;
  const Shape& shape = out[0].shape();
  const int64_t n = shape.back(), rows = Shape(shape.begin(), shape.end() - 1).product();
  const Rows<T> x(in[0]);
  std::optional<Rows<B>> more;
  if (terms > 1) more.emplace(in[1]);
  const Parameter<T> w(in, terms, n, 1), b(in, terms + 1, n, 0);
  B* const y = out[0].data<B>();
  T* const sum = terms > 1 ? out[1].data<T>() : nullptr;
  C *const mean = centred ? out[terms].template data<C>() : nullptr, *const rstd = out.back().data<C>();
  for_row_tiles(rows, n, [&](int64_t begin, int64_t end) {
    std::vector<T> scratch;
    std::vector<B> more_scratch;
    for (int64_t r = begin; r < end; ++r) {
      const T* p = x(r, scratch);
      if (sum) {
        const B* q = (*more)(r, more_scratch);
        T* const s = sum + r * n;
        TG_SAME_INDEX
        for (int64_t j = 0; j < n; ++j) s[j] = T(C(p[j]) + C(q[j]));
        p = s;
      }
      const C m = mean && n ? lane_sum<C>(n, [&](int64_t j) { return C(p[j]); }) / C(n) : C(0);
      const auto from_mean = [p, m](int64_t j) { return C(p[j]) - m; };
      const C var = n ? lane_sum<C>(n, [&](int64_t j) { return from_mean(j) * from_mean(j); }) / C(n) : C(0);
      const C scale = C(1) / std::sqrt(var + C(eps));
      B* to = y + r * n;
      TG_SAME_INDEX
      for (int64_t j = 0; j < n; ++j) to[j] = B(from_mean(j) * scale * w[j] + b[j]);
      if (mean) mean[r] = m;
      rstd[r] = scale;
    }
  });
}

// With g = dy * w and h = (x - mean) * rstd: dx = rstd * (g - mean(g) - h * mean(g * h)), dw = sum of dy * h and
// db = sum of dy over rows; without a mean, mean(g) is left out; ds is added to what dx is rounded to. Sums over rows:
// at most 64 chunks fixed by the shape, rows in order within a chunk, chunks in order. dy and dr, which is dx, are of
// B.
template <class T, class B> struct Backward {
  using C = compute_t<T>;
  Rows<B> dy;
  Rows<T> x;
  std::vector<C> mean, rstd;  // mean: empty for RMSNorm
  Parameter<T> w;
  std::optional<Rows<T>> ds;
  T* dx = nullptr;
  B* dr = nullptr;
  T *dw = nullptr, *db = nullptr;

  template <class Op>
  Backward(const Op& op, Bufs in, Bufs out)
      : dy(in[0]), x(in[1]), w(in, 3 + (Op::kCentred ? 1 : 0) + (op.has_ds ? 1 : 0), x.n, 1) {
    size_t next = 2;
    if (Op::kCentred) mean = flat<C, C>(in[next++]);
    rstd = flat<C, C>(in[next++]);
    if (op.has_ds) ds.emplace(in[next++]);
    next = 0;
    if (op.wants.dx) dx = out[next++].data<T>();
    if (op.wants.dw) dw = out[next++].data<T>();
    if (op.wants.db) db = out[next++].data<T>();
    if (op.wants.dr) dr = out[next++].data<B>();
  }

  // Rows [begin, end); their shares of dw and db are added to sum_w and sum_b.
  void rows(int64_t begin, int64_t end, C* sum_w, C* sum_b) const {
    const int64_t n = x.n;
    std::vector<T> x_scratch, ds_scratch;
    std::vector<B> dy_scratch;
    std::vector<C> hat(static_cast<size_t>(n)), grad(hat.size());
    C *const h = hat.data(), *const g = grad.data();
    for (int64_t r = begin; r < end; ++r) {
      const T* p = x(r, x_scratch);
      const B* d = dy(r, dy_scratch);
      const C m = mean.empty() ? C(0) : mean[size_t(r)], scale = rstd[size_t(r)];
      for (int64_t j = 0; j < n; ++j) h[j] = (C(p[j]) - m) * scale;
      if (dw)
        for (int64_t j = 0; j < n; ++j) sum_w[j] += C(d[j]) * h[j];
      if (db)
        for (int64_t j = 0; j < n; ++j) sum_b[j] += C(d[j]);
      if (!dx) continue;
      for (int64_t j = 0; j < n; ++j) g[j] = C(d[j]) * w[j];
      const C along = lane_sum<C>(n, [&](int64_t j) { return g[j] * h[j]; }) / C(n);
      const C shift = mean.empty() ? C(0) : lane_sum<C>(n, [&](int64_t j) { return g[j]; }) / C(n);
      T* to = dx + r * n;
      const auto slope = [&](int64_t j) { return T(scale * (g[j] - shift - h[j] * along)); };
      if (ds) {
        // Two loops: in one, the product and the sum could become one rounding.
        for (int64_t j = 0; j < n; ++j) g[j] = C(slope(j));
        const T* more = (*ds)(r, ds_scratch);
        TG_SAME_INDEX
        for (int64_t j = 0; j < n; ++j) to[j] = T(g[j] + C(more[j]));
      } else {
        for (int64_t j = 0; j < n; ++j) to[j] = slope(j);
      }
      if (!dr) continue;
      B* const narrow = dr + r * n;
      TG_SAME_INDEX
      for (int64_t j = 0; j < n; ++j) narrow[j] = B(C(to[j]));
    }
  }
  void run() const {
    const int64_t n = x.n, count = int64_t(rstd.size());
    if (n == 0) return;
    const int64_t chunk = std::max({int64_t(1), kGrain / n, (count + 63) / 64}), chunks = (count + chunk - 1) / chunk;
    std::vector<C> part_w(dw ? size_t(chunks * n) : 0), part_b(db ? size_t(chunks * n) : 0);
    parallel_for(count, chunk, [&](int64_t begin, int64_t end) {
      const int64_t at = begin / chunk * n;
      rows(begin, end, dw ? part_w.data() + at : nullptr, db ? part_b.data() + at : nullptr);
    });
    const auto total = [&](const std::vector<C>& part, T* to) {
      std::vector<C> sum(static_cast<size_t>(n));
      for (int64_t c = 0; c < chunks; ++c)
        for (int64_t j = 0; j < n; ++j) sum[size_t(j)] += part[size_t(c * n + j)];
      for (int64_t j = 0; j < n; ++j) to[j] = T(sum[size_t(j)]);
    };
    if (dw) total(part_w, dw);
    if (db) total(part_b, db);
  }
};

// Of the stream, and of what is computed from it.
template <class F> void visit_dtypes(DType stream, DType branch, F&& f) {
  if (stream != branch) return f.template operator()<float, bf16>();
  visit_float(stream, [&]<class T>() { f.template operator()<T, T>(); });
}
template <class Op> void norm(const Op& op, Bufs in, Bufs out, Context&) {
  visit_dtypes(in[0].dtype(), op.to,
               [&]<class T, class B>() { forward<T, B>(Op::kTerms, Op::kCentred, op.eps, in, out); });
}
template <class Op> void norm_grad(const Op& op, Bufs in, Bufs out, Context&) {
  visit_dtypes(in[1].dtype(), in[0].dtype(), [&]<class T, class B>() { Backward<T, B>(op, in, out).run(); });
}
TG_STRIDED_KERNEL(op::LayerNorm, cpu, norm<op::LayerNorm>);
TG_STRIDED_KERNEL(op::RmsNorm, cpu, norm<op::RmsNorm>);
TG_STRIDED_KERNEL(op::AddLayerNorm, cpu, norm<op::AddLayerNorm>);
TG_STRIDED_KERNEL(op::AddRmsNorm, cpu, norm<op::AddRmsNorm>);
TG_STRIDED_KERNEL(op::LayerNormGrad, cpu, norm_grad<op::LayerNormGrad>);
TG_STRIDED_KERNEL(op::RmsNormGrad, cpu, norm_grad<op::RmsNormGrad>);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
