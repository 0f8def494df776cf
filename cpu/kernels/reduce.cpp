// The input is read as (outer, reduced, inner), else as a contiguous copy with reduced dimensions last.
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/ops/reduce.h>

#include <cstring>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kChunk = 4096;  // elements of a partial result
constexpr int64_t kWidth = 512;   // columns of a block

// Integers accumulate in 64 bits, 16-bit floats in f32.
template <class T> using Acc = std::conditional_t<std::is_integral_v<T>, int64_t, compute_t<T>>;

// row(): n contiguous elements from x[at] on. column(): one element into each of w contiguous outputs from `out` on;
// columns(), if defined, kTogether rows at a time. join(): two partial results, the earlier first.
constexpr int kTogether = 8;
template <class V, class F> TG_INLINE inline V tree_of_rows(const F& row) {
  return ((row(0) + row(1)) + (row(2) + row(3))) + ((row(4) + row(5)) + (row(6) + row(7)));
}
template <class T> struct Add {
  using A = Acc<T>;
  const T* x;
  T* y;
  A start() const { return 0; }
  A join(A a, A b) const { return a + b; }
  A row(int64_t /*out*/, int64_t at, int64_t n) const {
    const T* p = x + at;
    return lane_sum<A>(n, [p](int64_t i) { return A(p[i]); });
  }
  void column(A* part, int64_t /*out*/, int64_t at, int64_t w) const {
    const T* p = x + at;
    if constexpr (std::is_integral_v<T>)
      for (int64_t j = 0; j < w; ++j) part[j] += A(p[j]);
    else
      for_lanes<A>(w, [=]<class V>(int64_t j) { tg::cpu::store(part + j, V(load<V>(part + j) + load<V>(p + j))); });
  }
  void columns(A* part, int64_t /*out*/, int64_t at, int64_t step, int64_t w) const
    requires(!std::is_integral_v<T>)
  {
    const T* p = x + at;
    for_lanes<A>(w, [=]<class V>(int64_t j) {
      const V sum = tree_of_rows<V>([&](int64_t i) TG_INLINE { return load<V>(p + i * step + j); });
      tg::cpu::store(part + j, V(load<V>(part + j) + sum));
    });
  }
  void store(int64_t out, A total) const { y[out] = T(total); }
};
template <class T> struct AddTo : Add<T> {  // mean, in the compute dtype
  using A = Acc<T>;
  A* means;
  A count;
  void store(int64_t out, A total) const { means[out] = total / count; }
};
// Adds Term()(element, value of the output).
template <class T, class Value, class Term> struct AddTerms {
  using A = Acc<T>;
  const T* x;
  const Value* values;
  A start() const { return 0; }
  A join(A a, A b) const { return a + b; }
  A row(int64_t out, int64_t at, int64_t n) const {
    const T* p = x + at;
    const A v = values[out];
    return lane_sum<A>(n, [p, v](int64_t i) { return Term()(A(p[i]), v); });
  }
  void column(A* part, int64_t out, int64_t at, int64_t w) const {
    const T* p = x + at;
    const Value* v = values + out;
    for (int64_t j = 0; j < w; ++j) part[j] += Term()(A(p[j]), A(v[j]));
  }
};
struct SquaredDifference {
  template <class A> A operator()(A a, A b) const { return (a - b) * (a - b); }
};
template <class T> struct AddSquares : AddTerms<T, Acc<T>, SquaredDifference> {  // divided by the count
  using A = Acc<T>;
  T* y;
  A divisor;
  void columns(A* part, int64_t out, int64_t at, int64_t step, int64_t w) const {
    const T* p = this->x + at;
    const A* m = this->values + out;
    for_lanes<A>(w, [=]<class V>(int64_t j) {
      const V sum = tree_of_rows<V>([&](int64_t i) TG_INLINE {
        const V d = load<V>(p + i * step + j) - load<V>(m + j);
        return V(d * d);
      });
      tg::cpu::store(part + j, V(load<V>(part + j) + sum));
    });
  }
  void store(int64_t out, A total) const { y[out] = T(total / divisor); }
};
// Smallest: largest of negated values; NaN wins. Explicit vectors: compilers do not vectorise conditions across lanes.
template <class T, bool kLargest> struct Best {
  using A = compute_t<T>;
  typedef A Lanes __attribute__((vector_size(kLanes * sizeof(A))));
  const T* x;
  T* y;
  static A key(T v) {
    if constexpr (kLargest)
      return A(v);
    else if constexpr (std::is_integral_v<A>)
      return ~A(v);  // -v overflows for the smallest
    else
      return -A(v);
  }
  static void load(Lanes& v, const T* p) {
    A lane[kLanes];
    for (int k = 0; k < kLanes; ++k) lane[k] = key(p[k]);
    std::memcpy(&v, lane, sizeof v);
  }
  static void take(Lanes& most, const Lanes& v) { most = ((v > most) | (v != v)) ? v : most; }
  A start() const {
    if constexpr (std::is_integral_v<A>)
      return std::numeric_limits<A>::min();
    else
      return -std::numeric_limits<A>::infinity();
  }
  A join(A a, A b) const { return b > a || b != b ? b : a; }
  A row(int64_t /*out*/, int64_t at, int64_t n) const {
    const T* p = x + at;
    A best = start();
    int64_t i = 0;
    if (n >= kLanes) {
      Lanes most, v;
      load(most, p);
      for (i = kLanes; i + kLanes <= n; i += kLanes) load(v, p + i), take(most, v);
      A lane[kLanes];
      std::memcpy(lane, &most, sizeof lane);
      for (A a : lane) best = join(best, a);
    }
    for (; i < n; ++i) best = join(best, key(p[i]));
    return best;
  }
  void column(A* part, int64_t /*out*/, int64_t at, int64_t w) const {
    const T* p = x + at;
    int64_t j = 0;
    for (; j + kLanes <= w; j += kLanes) {
      Lanes most, v;
      std::memcpy(&most, part + j, sizeof most);
      load(v, p + j);
      take(most, v);
      std::memcpy(part + j, &most, sizeof most);
    }
    for (; j < w; ++j) part[j] = join(part[j], key(p[j]));
  }
  void store(int64_t out, A best) const {
    if constexpr (kLargest)
      y[out] = T(best);
    else if constexpr (std::is_integral_v<A>)
      y[out] = T(~best);
    else
      y[out] = T(-best);
  }
};

// NaN equals itself: the largest of a row with NaN is NaN.
template <class C> bool same(C a, C b) { return (a == b) | ((a != a) & (b != b)); }
struct OneIfSame {
  template <class A> A operator()(A a, A b) const { return same(a, b) ? A(1) : A(0); }
};
template <class T> struct Ties : AddTerms<T, T, OneIfSame> {
  using A = Acc<T>;
  A* count;
  void store(int64_t out, A total) const { count[out] = total; }
};

struct Axes {
  int64_t outer = 1, n = 1, inner = 1;
};
template <class R> void reduce_rows(const R& r, int64_t rows, int64_t n) {
  using A = typename R::A;
  const int64_t chunks = std::max<int64_t>(1, (n + kChunk - 1) / kChunk);
  std::vector<A> part(size_t(rows * chunks));
  over_rows(rows * chunks, std::min(n, kChunk), [&](int64_t t) {
    const int64_t first = t % chunks * kChunk, o = t / chunks;
    part[size_t(t)] = r.row(o, o * n + first, std::min(kChunk, n - first));
  });
  for (int64_t o = 0; o < rows; ++o) {
    join_chunks(&part[size_t(o * chunks)], chunks, 1, 1, [&](A a, A b) { return r.join(a, b); });
    r.store(o, part[size_t(o * chunks)]);
  }
}
// An output per column: rows in order within chunks of 128, joined. Few chunks: threads split columns. Many: threads
// split chunks.
thread_local Scratch t_parts;
template <class R> void reduce_columns(const R& r, const Axes& z) {
  using A = typename R::A;
  constexpr int64_t kRows = 128;
  const int64_t chunks = std::max<int64_t>(1, (z.n + kRows - 1) / kRows), most = chunks < 8 ? kWidth : 8 * kWidth,
                blocks = (z.inner + most - 1) / most;
  A* const parts = chunks > 1 ? t_parts.get<A>(z.outer * chunks * z.inner) : nullptr;
  parallel_for(z.outer * chunks * blocks, [&](int64_t t) {
    const int64_t o = t / blocks / chunks, c = t / blocks % chunks, first = t % blocks * most;
    const int64_t w = std::min(most, z.inner - first), out = o * z.inner + first;
    A own[kWidth];
    A* const part = parts ? parts + (o * chunks + c) * z.inner + first : own;
    std::fill(part, part + w, r.start());
    int64_t i = c * kRows;
    const int64_t end = std::min(z.n, i + kRows);
    const auto at = [&] { return (o * z.n + i) * z.inner + first; };
    if constexpr (requires { r.columns(part, out, i, i, w); })
      for (; i + kTogether <= end; i += kTogether) r.columns(part, out, at(), z.inner, w);
    for (; i < end; ++i) r.column(part, out, at(), w);
    for (int64_t j = 0; !parts && j < w; ++j) r.store(out + j, part[j]);
  });
  if (!parts) return;
  parallel_for(z.outer * z.inner, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {  // contiguous outputs of one row
      const int64_t o = at / z.inner, first = at % z.inner, w = std::min({kWidth, z.inner - first, end - at});
      A* const part = parts + o * chunks * z.inner + first;
      join_chunks(part, chunks, z.inner, w, [&](A a, A b) { return r.join(a, b); });
      for (int64_t j = 0; j < w; ++j) r.store(at + j, part[j]);
      at += w;
    }
  });
}
template <class R> void reduce(const R& r, const Axes& z) {
  z.inner == 1 ? reduce_rows(r, z.outer, z.n) : reduce_columns(r, z);
}

template <class T> struct Elements {
  const T* x;
  Axes z;
  std::vector<T> copy;
};
template <class T> Elements<T> elements(uint8_t dims, const Buf& in) {
  const Shape& s = in.shape();
  Axes z;
  bool together = in.is_contiguous();  // the reduced dimensions are adjacent
  for (size_t d = 0, phase = 0; d < s.size(); ++d) {
    const bool r = dims >> d & 1;
    if (r && phase == 2 && s[d] != 1) together = false;
    if (r)
      phase = std::max<size_t>(phase, 1), z.n *= s[d];
    else if (phase == 0)
      z.outer *= s[d];
    else if (s[d] != 1)
      phase = 2, z.inner *= s[d];
    else
      z.inner *= s[d];
  }
  if (together) return {in.data<T>(), z, {}};
  Layout l{{}, {}, in.layout->offset, in.dtype(), in.layout->device};
  for (const bool reduced : {false, true})
    for (size_t d = 0; d < s.size(); ++d)
      if (bool(dims >> d & 1) == reduced) l.shape.push_back(s[d]), l.strides.push_back(in.strides()[d]);
  std::vector<T> copy;
  const T* x = contiguous_data<T>(Buf{&l, in.bytes}, copy);
  return {x, {z.outer * z.inner, z.n, 1}, std::move(copy)};
}

void sum(const op::Sum& op, Bufs in, Bufs out, Context&) {
  if (out[0].numel() == 0) return;
  kernel::visit_number(out[0].dtype(), [&]<class T>() {
    const Elements<T> e = elements<T>(op.dims, in[0]);
    reduce(Add<T>{e.x, out[0].data<T>()}, e.z);
  });
}
void var(const op::Var& op, Bufs in, Bufs out, Context&) {
  if (out[0].numel() == 0) return;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using A = Acc<T>;
    std::vector<A> means(size_t(out[0].numel()));
    const Elements<T> e = elements<T>(op.dims, in[0]);
    reduce(AddTo<T>{{e.x, nullptr}, means.data(), A(e.z.n)}, e.z);
    reduce(AddSquares<T>{{e.x, means.data()}, out[0].data<T>(), A(double(e.z.n) - op.correction)}, e.z);
  });
}
template <bool kLargest> void extremum(const op::Extremum<kLargest>& op, Bufs in, Bufs out, Context&) {
  if (out[0].numel() == 0) return;
  kernel::visit_number(out[0].dtype(), [&]<class T>() {
    const Elements<T> e = elements<T>(op.dims, in[0]);
    reduce(Best<T, kLargest>{e.x, out[0].data<T>()}, e.z);
  });
}
void extremum_grad(const op::ExtremumGrad& op, Bufs in, Bufs out, Context&) {
  const Buf &x = in[0], &dx = out[0];
  if (x.numel() == 0) return;
  kernel::visit_float(dx.dtype(), [&]<class T>() {
    using C = compute_t<T>;
    std::vector<T> y_copy, dy_copy;
    const T *y = contiguous_data(in[1], y_copy), *dy = contiguous_data(in[2], dy_copy);
    std::vector<C> share(size_t(in[1].numel()));
    const Elements<T> e = elements<T>(op.dims, x);
    reduce(Ties<T>{{e.x, y}, share.data()}, e.z);
    for (size_t o = 0; o < share.size(); ++o) share[o] = C(dy[o]) / share[o];
    Strides each = x.strides();  // strides of y, share: 0 if reduced
    for (size_t d = each.size(), step = 1; d-- > 0;) {
      const bool reduced = op.dims >> d & 1;
      each[d] = reduced ? 0 : int64_t(step);
      if (!reduced) step *= size_t(x.size(d));
    }
    for_rows<3>(x.shape(), {dx.strides(), x.strides(), each}, [&](int64_t n, const At<3>& at, const At<3>& step) {
      map_row(
          n, dx.data<T>() + at[0], [](C a, C b, C g) { return same(a, b) ? g : C(0); },
          RowOperand<T>(x.data<T>() + at[1], step[1]), RowOperand<T>(y + at[2], step[2]),
          RowOperand<C>(share.data() + at[2], step[2]));
    });
  });
}
TG_STRIDED_KERNEL(op::ExtremumGrad, cpu, extremum_grad);
TG_STRIDED_KERNEL(op::Sum, cpu, sum);
TG_STRIDED_KERNEL(op::Var, cpu, var);
TG_STRIDED_KERNEL(op::Max, cpu, extremum<true>);
TG_STRIDED_KERNEL(op::Min, cpu, extremum<false>);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
