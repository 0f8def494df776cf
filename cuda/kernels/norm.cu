// A row per warp or block; the variance takes a second pass. dw and db: partial sums over groups of consecutive rows,
// set by the sizes, then a reduction. RMSNorm is LayerNorm with mean 0.
#include <tapegrad/ops/norm.h>

#include <tapegrad/cuda/device/reduce.h>
#include <tapegrad/cuda/device/rows.h>

namespace tg::cuda {
namespace {
// A parameter, or null. With std::optional g++ warns of uninitialised contents.
template <class T> struct Parameter {
  std::unique_ptr<Dense<T>> data;
  Parameter(const Context& c, Bufs in, size_t i) {
    if (i < in.size()) data = std::make_unique<Dense<T>>(c, in[i]);
  }
  const T* get() const { return data ? static_cast<const T*>(*data) : nullptr; }
};
template <class S>
__device__ __forceinline__ void load_pack(const typename S::T* p, int64_t j, typename S::C otherwise,
                                          typename S::C (&to)[S::V]) {
  Vec<typename S::T, S::V> v;
  if (p) v = load16<S::V>(p + j);
#pragma unroll
  for (int e = 0; e < S::V; ++e) to[e] = p ? widen(v.x[e]) : otherwise;
}

// r, s = x + r: both or neither. y, s may alias x, r. B, of r and y, is T or narrower.
template <class T, class B> struct Forward {
  const T* x;
  const B* r;
  const T *w, *b;
  B* y;
  T* s;
  compute_t<T>*mean, *rstd;
  int64_t rows, n;
  compute_t<T> eps;
};
template <class S, class B, bool kCentred>
__global__ void __launch_bounds__(S::kBlock) norm_rows(Forward<typename S::T, B> f) {
  using C = typename S::C;
  const auto n = f.n;
  const C count = n > 0 ? C(n) : C(1);
  for (int64_t r = first_row<S>(); r < f.rows; r += row_step<S>()) {
    RowOf<S> x(f.x + r * n);
    if (f.r)
      x.load_sum(n, f.r + r * n, f.s + r * n);
    else
      x.load(n);
    C mean = 0;
    if constexpr (kCentred) {
      mean = sum_of_packs<S>(n, [&](int k, int64_t j) {
        C some = 0;
        for (C v : x.at(k, j)) some += v;
        return some;
      });
      mean /= count;
    }
    const C squares = sum_of_packs<S>(n, [&](int k, int64_t j) {
      C some = 0;
      for (C v : x.at(k, j)) some += (v - mean) * (v - mean);
      return some;
    });
    const C scale = C(1) / std::sqrt(squares / count + f.eps);
    each_pack<S>(n, [&](int k, int64_t j) {
      const auto& pack = x.at(k, j);
      C w[S::V], b[S::V];
      load_pack<S>(f.w, j, C(1), w), load_pack<S>(f.b, j, C(0), b);
      store_pack<S>(f.y + r * n, j, [&](int e) { return (pack[e] - mean) * scale * w[e] + b[e]; });
    });
    if (threadIdx.x % S::kThreads != 0) continue;
    if constexpr (kCentred) f.mean[r] = mean;
    f.rstd[r] = scale;
  }
}

// g = dy * w, h = (x - mean) * rstd:
//   dx = rstd * (g - mean(g) - h * mean(g * h)), without mean(g) for RMSNorm; ds, or null, is added after rounding
//   dw = sum over rows of dy * h, db = sum over rows of dy
// dx may alias dy or ds. dr, or null, is dx rounded to B, the type of dy.
template <class T, class B> struct Backward {
  using C = compute_t<T>;
  const B* dy;
  const T *x, *ds, *w;
  const C *mean, *rstd;
  T* dx;       // or null
  B* dr;       // or null
  C *dw, *db;  // (groups, n) each with row stride `step`; or null
  int64_t rows, n, groups, per_group, step;
};
// Minimum blocks per SM for __launch_bounds__: caps registers.
template <class S, bool kCentred> constexpr int kGradCtas = S::kBlock == 256 && S::V > 1 ? 3 - kCentred : 0;
// A group of rows per warp or block. Rows beyond registers: norm_grad_columns computes dw and db.
template <class S, class B, bool kCentred>
__global__ void __launch_bounds__(S::kBlock, kGradCtas<S, kCentred>) norm_grad_rows(Backward<typename S::T, B> f) {
  using T = typename S::T;
  using C = typename S::C;
  constexpr bool kRoom = S::kKept && S::kThreads <= 256;  // registers for two rows
  const auto n = f.n;
  for (int64_t group = first_row<S>(); group < f.groups; group += row_step<S>()) {
    [[maybe_unused]] Vec<C, S::V> dw[kRoom ? S::kPacks : 1] = {}, db[kRoom && kCentred ? S::kPacks : 1] = {};
    const int64_t begin = kRoom ? group * f.per_group : group;  // one row per group without kRoom
    const int64_t end = kRoom ? std::min(f.rows, begin + f.per_group) : group + 1;
    for (int64_t r = begin; r < end; ++r) {
      RowOf<S> x(f.x + r * n);
      RowOf<S, B> grad(f.dy + r * n);
      x.load(n), grad.load(n);
      const C mean = kCentred ? f.mean[r] : C(0), scale = f.rstd[r];
      RowSum<S> sum_along, sum_shift;
      C w[S::V];
      each_pack<S>(n, [&](int k, int64_t j) {
        auto &h = x.at(k, j), &g = grad.at(k, j);
        load_pack<S>(f.w, j, C(1), w);
        C some_along = sum_along.begin(), some_shift = sum_shift.begin();
#pragma unroll
        for (int e = 0; e < S::V; ++e) {
          h[e] = (h[e] - mean) * scale;
          if constexpr (kRoom) dw[k].x[e] += g[e] * h[e];
          if constexpr (kRoom && kCentred) db[k].x[e] += g[e];
          g[e] *= w[e];
          some_along += g[e] * h[e];
          some_shift += g[e];
        }
        sum_along.end(some_along), sum_shift.end(some_shift);
      });
      if (!f.dx) continue;
      const C along = block_all<SumOp, S::kThreads>(sum_along.total(), C(0)) / C(n);
      const C shift = kCentred ? block_all<SumOp, S::kThreads>(sum_shift.total(), C(0)) / C(n) : C(0);
      const T* ds = f.ds ? f.ds + r * n : nullptr;
      const auto store = [&](int k, int64_t j) {
        const auto& dx = x.kept(k);
        store_pack<S>(f.dx + r * n, j, [&](int e) { return dx[e]; });
        if constexpr (!std::is_same_v<T, B>)
          if (f.dr) store_pack<S>(f.dr + r * n, j, [&](int e) { return dx[e]; });
      };
      each_pack<S>(n, [&](int k, int64_t j) {
        auto &h = x.at(k, j), &g = grad.at(k, j);
        C more[S::V];
        load_pack<S>(ds, j, C(-0.0), more);  // adding -0 changes nothing
        if constexpr (!S::kKept) load_pack<S>(f.w, j, C(1), w);
#pragma unroll
        for (int e = 0; e < S::V; ++e) {
          const C hat = S::kKept ? h[e] : (h[e] - mean) * scale, slope = S::kKept ? g[e] : g[e] * w[e];
          h[e] = sum_rn(widen(narrow<T>(scale * (slope - shift - hat * along))), more[e]);
        }
        if constexpr (!kRoom) store(k, j);
      });
      if constexpr (kRoom) each_pack<S>(n, store);  // loads of ds come first
    }
    if constexpr (kRoom) {
      each_pack<S>(n, [&](int k, int64_t j) {
        if (f.dw) store16(f.dw + group * f.step + j, dw[k]);
        if constexpr (kCentred)
          if (f.db) store16(f.db + group * f.step + j, db[k]);
      });
    }
  }
}
template <class T, class B, bool kCentred> __global__ void norm_grad_columns(Backward<T, B> f) {
  using C = compute_t<T>;
  for (GridLoop i(f.groups * f.n); i; ++i) {
    const int64_t group = *i / f.n, j = *i - group * f.n, end = std::min(f.rows, (group + 1) * f.per_group);
    C dw = 0, db = 0;
    for (int64_t r = group * f.per_group; r < end; ++r) {
      const C mean = kCentred ? f.mean[r] : C(0), g = widen(f.dy[r * f.n + j]);
      dw += g * ((C(widen(f.x[r * f.n + j])) - mean) * f.rstd[r]);
      db += g;
    }
    if (f.dw) f.dw[group * f.step + j] = dw;
    if (f.db) f.db[group * f.step + j] = db;
  }
}
template <class T> struct IntoParameters {  // reduces (groups, n or 2 n)
  using A = compute_t<T>;
  T *first, *second;
  int64_t n;
  static __device__ __forceinline__ A start() { return 0; }
  static __device__ __forceinline__ A join(A a, A b) { return a + b; }
  __device__ __forceinline__ A value(A x, int64_t) const { return x; }
  __device__ __forceinline__ void store(int64_t out, A total) const {
    (out < n ? first + out : second + (out - n))[0] = narrow<T>(total);
  }
};

template <class T, class B, class Op> void forward(const Op& op, const Context& c, Bufs in, Bufs out) {
  using C = compute_t<T>;
  constexpr size_t kTerms = Op::kTerms;
  const Shape& shape = out[0].shape();
  const int64_t n = shape.back(), rows = Shape(shape.begin(), shape.end() - 1).product();
  if (rows == 0) return;
  const Dense<T> x(c, in[0]);
  const Parameter<B> r(c, in.first(kTerms), 1);
  const Parameter<T> w(c, in, kTerms), b(c, in, kTerms + 1);
  T* const s = kTerms > 1 ? out[1].data<T>() : nullptr;
  C *const mean = Op::kCentred ? out[kTerms].template data<C>() : nullptr, *const rstd = out.back().data<C>();
  const Forward<T, B> f{x, r.get(), w.get(), b.get(), out[0].data<B>(), s, mean, rstd, rows, n, C(op.eps)};
  visit_row_shape<T>(n, rows_in_vectors<T>(n, f.x, f.r, f.w, f.b, f.y, f.s),
                     [&]<class S>() { launch_per_row<S>(c, rows, norm_rows<S, B, Op::kCentred>, f); });
}
template <class T, class B, class Op> void backward(const Op& op, const Context& c, Bufs in, Bufs out) {
  using C = compute_t<T>;
  constexpr size_t kRstd = Op::kCentred ? 3 : 2, kWeight = kRstd + 1;
  const op::NormWants wants = op.wants;
  const Dense<B> dy(c, in[0]);
  const Dense<T> x(c, in[1]);
  const Parameter<C> mean(c, Op::kCentred ? in : Bufs(), 2);
  const Dense<C> rstd(c, in[kRstd]);
  const Parameter<T> ds(c, op.has_ds ? in : Bufs(), kWeight), w(c, in, kWeight + (op.has_ds ? 1 : 0));
  const int64_t n = in[1].shape().back(), rows = in[kRstd].numel();
  if (n == 0) return;
  size_t next = 0;
  const auto take = [&](bool want) { return want ? out[next++].data<T>() : nullptr; };
  T *dx = take(wants.dx), *dw = take(wants.dw), *db = take(wants.db);
  B* const dr = wants.dr ? out[next].data<B>() : nullptr;
  const int sums = (dw ? 1 : 0) + (db ? 1 : 0);
  const bool by_columns = n > 256 * kKeptElements<T>;
  // Groups are blocks, or warps (4 per block), filling 132 SMs: 4 to 128 rows each, added sequentially.
  const int64_t most = 132 * (n > 32 * kKeptElements<T> ? (Op::kCentred ? 2 : 3) : 16);
  const int64_t per_group = std::clamp<int64_t>((rows + most - 1) / most, 4, 128);
  const int64_t groups = (rows + per_group - 1) / per_group, step = sums * n;
  std::optional<Scratch> part;
  C* sum_w = nullptr;
  C* sum_b = nullptr;
  if (sums > 0) {
    C* p = part.emplace(c, size_t(groups * step) * sizeof(C)).template as<C>();
    if (dw) sum_w = p;
    if (db) sum_b = dw ? p + n : p;
  }
  Backward<T, B> f{dy, x, ds.get(), w.get(), mean.get(), rstd, dx, dr, sum_w, sum_b, rows, n, groups, per_group, step};
  if (rows > 0 && sums > 0 && by_columns)  // reads dy, which dx may alias
    launch(c, norm_grad_columns<T, B, Op::kCentred>, blocks_for(c, groups * n, 256), 256, 0, f);
  if (sums == 0 || by_columns) f.groups = rows, f.per_group = 1;
  if (rows > 0 && (dx || !by_columns))
    visit_row_shape<T>(n, rows_in_vectors<T>(n, f.dy, f.x, f.ds, f.w, f.dx, f.dr),
                       [&]<class S>() { launch_per_row<S>(c, f.groups, norm_grad_rows<S, B, Op::kCentred>, f); });
  if (sums > 0)
    reduce(c, IntoParameters<T>{dw ? dw : db, db, n}, part->as<C>(), split(0b01, {groups, step}, {step, 1}));
}

template <class F> void visit_dtypes(DType stream, DType branch, F&& f) {
  if (stream != branch) return f.template operator()<float, bf16>();
  kernel::visit_float(stream, [&]<class T>() { f.template operator()<T, T>(); });
}
template <class Op> void norm(const Op& op, Bufs in, Bufs out, Context& c) {
  visit_dtypes(in[0].dtype(), op.to, [&]<class T, class B>() { forward<T, B>(op, c, in, out); });
}
template <class Op> void norm_grad(const Op& op, Bufs in, Bufs out, Context& c) {
  visit_dtypes(in[1].dtype(), in[0].dtype(), [&]<class T, class B>() { backward<T, B>(op, c, in, out); });
}
TG_STRIDED_KERNEL(op::LayerNorm, cuda, norm<op::LayerNorm>);
TG_STRIDED_KERNEL(op::RmsNorm, cuda, norm<op::RmsNorm>);
TG_STRIDED_KERNEL(op::AddLayerNorm, cuda, norm<op::AddLayerNorm>);
TG_STRIDED_KERNEL(op::AddRmsNorm, cuda, norm<op::AddRmsNorm>);
TG_STRIDED_KERNEL(op::LayerNormGrad, cuda, norm_grad<op::LayerNormGrad>);
TG_STRIDED_KERNEL(op::RmsNormGrad, cuda, norm_grad<op::RmsNormGrad>);
}  // namespace
}  // namespace tg::cuda
