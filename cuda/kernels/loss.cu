// Cross-entropy reads logits once, a block per row, by online softmax; the gradient reads them again, in place where
// allowed. One block reduces rows' losses in f64. Every run gives the same bits.
#include <tapegrad/core/math.h>
#include <tapegrad/cuda/device/index_check.h>
#include <tapegrad/cuda/device/row_loop.h>
#include <tapegrad/ops/loss.h>

#include <limits>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256, kShortRow = 1024;  // shorter rows: one warp
constexpr int kReduceThreads = 1024;

Error no_class(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::target_outside(value, tg::detail::position_of(position, s.index.shape), s.index, s.size, s.ignore);
}
Error no_rows(const IndexSite& s, int64_t, int64_t) { return tg::kernel::no_rows_left(s.index.numel(), s.ignore); }

struct Targets : Ids {
  int64_t ignore;
  bool ignores;
  Targets(const Ids& ids, const CrossEntropyOptions& o)
      : Ids(ids), ignore(o.ignore_index.value_or(0)), ignores(o.ignore_index.has_value()) {}
  __device__ __forceinline__ bool kept(int64_t r) const { return !ignores || (*this)[r] != ignore; }
};

// Online sum of exp(x - top), top: largest x so far. NaN is never top, but reaches the sum.
template <class C> struct LogSum {
  C top = -std::numeric_limits<C>::infinity();
  KahanSum<C, true> sum;
  template <class T, int N> __device__ __forceinline__ void add(const Vec<T, N>& x) {
    C most = top;
#pragma unroll
    for (int k = 0; k < N; ++k) most = fmax(most, C(widen(x.x[k])));
    if (most > top) {
      sum.scale(exp_for<T>(top - most));
      top = most;
    }
    const C from = top == -std::numeric_limits<C>::infinity() ? C(0) : top;
    C some = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) some += exp_for<T>(C(widen(x.x[k])) - from);
    sum.add(some);
  }
};

// x (rows, n) -> log-sum-exp and loss per row: 0 for ignored rows, NaN for bad targets.
template <int kBlock, class T>
__global__ void __launch_bounds__(kBlock, (sizeof(T) == 8 ? 512 : 1024) / kBlock)
    cross_entropy_rows(const T* x, Targets targets, compute_t<T>* lse, compute_t<T>* losses, int64_t rows, int64_t n,
                       compute_t<T> smoothing, IndexCheck check) {
  using C = compute_t<T>;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const bool kept = targets.kept(r);
    const int64_t target = targets[r];
    const bool good = kept && check.inside(target);
    if (!good) {
      if (threadIdx.x == 0) {
        if (kept) check.note(target, r);
        lse[r] = 0;
        losses[r] = kept ? std::numeric_limits<C>::quiet_NaN() : C(0);
      }
      continue;
    }
    const T* p = x + r * n;
    LogSum<C> own;
    for_row_packs<kBlock>(p, n, [&](int64_t, const auto& v) { own.add(v); });
    const C top = block_all<MaxOp, kBlock>(own.top, -std::numeric_limits<C>::infinity());
    const C total = own.sum.total(), scaled = total == C(0) ? C(0) : total * math::exp(own.top - top);
    // top - top: NaN, like x - top, for infinite top.
    const C sum = block_all<SumOp, kBlock>(scaled, C(0)) + (top - top);
    C below = 0;
    if (smoothing != C(0)) {
      KahanSum<C> sum_below;
      for_row_packs<kBlock>(p, n, [&]<int N>(int64_t, const Vec<T, N>& v) {
        C some = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) some += C(widen(v.x[k])) - top;
        sum_below.add(some);
      });
      below = block_all<SumOp, kBlock>(sum_below.total(), C(0));
    }
    if (threadIdx.x != 0) continue;
    const C log_sum = math::log(sum);
    // Relative to the maximum: large logits cost no digits.
    C loss = (C(1) - smoothing) * (log_sum - (C(widen(p[target])) - top));
    if (smoothing != C(0)) loss += smoothing * (log_sum - below / C(n));
    lse[r] = top + log_sum;
    losses[r] = loss;
  }
}

// One block counts the rows that are not ignored.
__device__ __forceinline__ int64_t count_kept(const Targets& targets, int64_t rows) {
  if (!targets.ignores) return rows;
  int64_t kept = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kReduceThreads) kept += targets.kept(r);
  return block_all<SumOp, kReduceThreads>(kept, int64_t(0));
}
__global__ void __launch_bounds__(kReduceThreads) cross_entropy_count(Targets targets, int64_t rows, int64_t* kept) {
  const int64_t n = count_kept(targets, rows);
  if (threadIdx.x == 0) *kept = n;
}
template <class C>
__global__ void __launch_bounds__(kReduceThreads)
    cross_entropy_reduce(const C* losses, Targets targets, int64_t rows, bool mean, C* y, IndexCheck none_left) {
  double total = 0;
  for (int64_t r = threadIdx.x; r < rows; r += kReduceThreads) total += double(losses[r]);
  total = block_all<SumOp, kReduceThreads>(total, 0.0);
  const int64_t kept = mean ? count_kept(targets, rows) : 1;
  if (threadIdx.x != 0) return;
  if (kept == 0) none_left.note(0, 0);
  *y = C(mean ? total / double(kept) : total);
}

void cross_entropy(const op::CrossEntropy& op, Bufs in, Bufs out, Context& c) {
  const IndexSite site{no_class, c.op, *in[1].layout, 0, in[0].shape().back(), op.o.ignore_index};
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const int64_t n = in[0].shape().back(), rows = in[1].numel();
    const Dense<T> x(c, in[0]);
    const Contiguous ids(c, in[1]);
    const Targets targets({ids.data(), in[1].dtype()}, op.o);
    const bool whole = op.o.reduction != Reduction::none;
    std::optional<Scratch> scratch;
    if (whole) scratch.emplace(c, size_t(rows) * sizeof(C));
    C* losses = whole ? scratch->as<C>() : out[0].data<C>();
    if (rows > 0) {
      const bool small = n <= kShortRow;
      launch(c, small ? cross_entropy_rows<32, T> : cross_entropy_rows<kThreads, T>, blocks_for(c, rows, 1),
             small ? 32 : kThreads, 0, static_cast<const T*>(x), targets, out[1].data<C>(), losses, rows, n,
             C(op.o.label_smoothing), IndexCheck(c, site));
    }
    if (!whole) return;
    IndexSite none = site;
    none.error = no_rows;
    launch(c, cross_entropy_reduce<C>, 1, kReduceThreads, 0, static_cast<const C*>(losses), targets, rows,
           op.o.reduction == Reduction::mean, out[0].data<C>(), IndexCheck(c, none));
  });
}

// dlogits = g * (exp(x - lse) - s / V - (1 - s) at the target). g: the row's loss gradient, s: smoothing.

template <class T> struct GradOf {
  using C = compute_t<T>;
  const T* x;
  T* dx;
  const C *lse, *dloss;
  const int64_t* kept;  // null: no mean, or over `rows`
  Targets targets;
  int64_t rows, n;
  C smoothing;
  bool mean, each;  // each: one gradient per row
};
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads) cross_entropy_grad_rows(GradOf<T> o, IndexCheck check) {
  using C = compute_t<T>;
  constexpr int V = kVectors ? kVec<T> : 1;
  const C divisor = o.mean ? C(o.kept ? *o.kept : o.rows) : C(1), even = o.smoothing / C(o.n);
  for (int64_t r = blockIdx.x; r < o.rows; r += gridDim.x) {
    const bool kept = o.targets.kept(r);
    const int64_t target = o.targets[r];
    const bool good = kept && check.inside(target);
    if (kept && !good && threadIdx.x == 0) check.note(target, r);
    const C g = good ? o.dloss[o.each ? r : 0] / divisor : C(0), lse = o.lse[r];
    for (int64_t j = int64_t(threadIdx.x) * V; j < o.n; j += int64_t(blockDim.x) * V) {
      if (!good) {
        store16(o.dx + r * o.n + j, Vec<T, V>{});
        continue;
      }
      auto v = load16<V>(o.x + r * o.n + j);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        C d = exp_for<T>(C(widen(v.x[k])) - lse) - even;
        if (j + k == target) d -= C(1) - o.smoothing;
        v.x[k] = narrow<T>(g * d);
      }
      store16(o.dx + r * o.n + j, v);
    }
  }
}
void cross_entropy_grad(const op::CrossEntropyGrad& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const IndexSite site{no_class, c.op, *in[1].layout, 0, in[0].shape().back(), op.o.ignore_index};
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const int64_t n = in[0].shape().back(), rows = in[1].numel();
    const Dense<T> x(c, in[0]);
    const Contiguous ids(c, in[1]);
    const Dense<C> lse(c, in[2]), dloss(c, in[3]);
    const Targets targets({ids.data(), in[1].dtype()}, op.o);
    const bool mean = op.o.reduction == Reduction::mean;
    const Scratch kept(c, sizeof(int64_t));
    const int64_t* const counted = mean && targets.ignores ? kept.as<int64_t>() : nullptr;
    if (counted) launch(c, cross_entropy_count, 1, kReduceThreads, 0, targets, rows, kept.as<int64_t>());
    const bool each = op.o.reduction == Reduction::none;
    const GradOf<T> o{x, out[0].data<T>(), lse, dloss, counted, targets, rows, n, C(op.o.label_smoothing), mean, each};
    const bool vectors = n % kVec<T> == 0 && aligned16(o.x) && aligned16(o.dx);
    launch(c, vectors ? cross_entropy_grad_rows<T, true> : cross_entropy_grad_rows<T, false>, blocks_for(c, rows, 1),
           n <= kShortRow ? 64 : kThreads, 0, o, IndexCheck(c, site));
  });
}

// --- squared differences
struct SquaredDifference {
  template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return (a - b) * (a - b); }
};
constexpr int64_t kChunks = 1024;  // device-independent
template <class T>
__global__ void __launch_bounds__(kThreads) mse_squares(const T* x, const T* t, int64_t n, compute_t<T>* y) {
  for (GridLoop i(n); i; ++i) y[*i] = SquaredDifference{}(widen(x[*i]), widen(t[*i]));
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    mse_add_squares(const T* x, const T* t, int64_t n, bool vectors, double* part) {
  using C = compute_t<T>;
  constexpr int V = kVec<T>;
  const int64_t step = int64_t(gridDim.x) * kThreads, first = blockIdx.x * int64_t(kThreads) + threadIdx.x;
  const SquaredDifference f;
  double sum = 0;
  const int64_t whole = vectors ? n / V : 0;
  for (int64_t i = first; i < whole; i += step) {
    const auto a = load16(x + i * V), b = load16(t + i * V);
    C s = 0;
#pragma unroll
    for (int k = 0; k < V; ++k) s += f(C(widen(a.x[k])), C(widen(b.x[k])));
    sum += double(s);
  }
  for (int64_t i = whole * V + first; i < n; i += step) sum += double(f(C(widen(x[i])), C(widen(t[i]))));
  sum = block_all<SumOp, kThreads>(sum, 0.0);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}
template <class C>
__global__ void __launch_bounds__(kReduceThreads) mse_finish(const double* part, int64_t parts, double divisor, C* y) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < parts; i += kReduceThreads) sum += part[i];
  sum = block_all<SumOp, kReduceThreads>(sum, 0.0);
  if (threadIdx.x == 0) *y = C(sum / divisor);
}
void mse_loss(const op::MseLoss& op, Bufs in, Bufs out, Context& c) {
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Dense<T> x(c, in[0]), t(c, in[1]);
    if (op.reduction == Reduction::none) {
      const int64_t all = in[0].numel();
      if (all > 0)
        launch(c, mse_squares<T>, blocks_for(c, all, kThreads), kThreads, 0, static_cast<const T*>(x),
               static_cast<const T*>(t), all, out[0].data<C>());
      return;
    }
    const int64_t n = in[0].numel(), parts = std::min(kChunks, (n + kThreads * 8 - 1) / (kThreads * 8));
    const Scratch part(c, size_t(parts) * sizeof(double));
    const bool vectors = aligned16(x) && aligned16(t);
    if (parts > 0)
      launch(c, mse_add_squares<T>, unsigned(parts), kThreads, 0, static_cast<const T*>(x), static_cast<const T*>(t), n,
             vectors, part.as<double>());
    launch(c, mse_finish<C>, 1, kReduceThreads, 0, part.as<double>(), parts,
           op.reduction == Reduction::mean ? double(n) : 1.0, out[0].data<C>());
  });
}
TG_STRIDED_KERNEL(op::MseLoss, cuda, mse_loss);
TG_STRIDED_KERNEL(op::CrossEntropy, cuda, cross_entropy);
TG_STRIDED_KERNEL(op::CrossEntropyGrad, cuda, cross_entropy_grad);
}  // namespace
}  // namespace tg::cuda
