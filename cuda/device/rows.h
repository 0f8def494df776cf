// Contiguous rows, one per warp or block. Thread t has the packs of V elements at (k kThreads + t) V. Rows that fit in
// registers are read once, longer ones on each pass. reduce.h has other layouts.
//   RowShape: a template parameter                  visit_row_shape<T>(n, vectors, f): f with the shape for n
//   RowOf<S> x{p}; x.load(n);                       an operand; x.load_sum(n, r, s): s = x + r, x becomes s
//   each_pack<S>(n, [&](int k, int64_t j) {...})    with x.at(k, j)[0 .. V)
#pragma once
#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {

// kPacks: packs per thread in registers; 0: rows of any length, read per pass.
template <class Element, int kRowThreads, int kWidth, int kKeptPacks> struct RowShape {
  using T = Element;
  using C = compute_t<T>;
  static constexpr int kThreads = kRowThreads, V = kWidth, kPacks = kKeptPacks;
  static constexpr bool kKept = kPacks > 0;
  static constexpr int kBlock = kThreads < 128 ? 128 : kThreads, kRows = kBlock / kThreads;  // rows per block
};

namespace {
template <class S, class F> __device__ __forceinline__ void each_pack(int64_t n, F&& f) {
  const int t = int(threadIdx.x) % S::kThreads;
  if constexpr (S::kKept) {
#pragma unroll
    for (int k = 0; k < S::kPacks; ++k) {
      const int j = (k * S::kThreads + t) * S::V;
      if (j < n) f(k, int64_t(j));
    }
  } else {
#pragma unroll(sizeof(typename S::C) == 8 ? 1 : 2)  // ptxas spills with more
    for (int64_t j = t * S::V; j < n; j += S::kThreads * S::V) f(0, j);
  }
}
template <class S, class E, class F> __device__ __forceinline__ void store_pack(E* y, int64_t j, F&& f) {
  Vec<E, S::V> r;
#pragma unroll
  for (int e = 0; e < S::V; ++e) r.x[e] = narrow<E>(f(e));
  store16(y + j, r);
}
// T may be narrower than S::T; compute types are equal.
template <class S, class Element = typename S::T> class RowOf {
 public:
  using T = Element;
  using C = typename S::C;
  __device__ __forceinline__ explicit RowOf(const T* p) : p_(p) {}
  __device__ __forceinline__ void load(int64_t n) {
    if constexpr (S::kKept) each_pack<S>(n, [&](int k, int64_t j) { read(k, j); });
  }
  // load() of s = x + r rounded to T; s may alias x or r.
  template <class R> __device__ __forceinline__ void load_sum(int64_t n, const R* r, T* s) {
    load(n);  // all loads precede the first store
    const auto sum = [&](int k, int64_t j) {
      const auto v = load16<S::V>(r + j);
      auto& x = at(k, j);
#pragma unroll
      for (int e = 0; e < S::V; ++e) x[e] = widen(narrow<T>(x[e] + widen(v.x[e])));
    };
    const auto store = [&](int k, int64_t j) { store_pack<S>(s, j, [&](int e) { return kept_[k][e]; }); };
    if constexpr (S::kKept) {
      each_pack<S>(n, sum);
      each_pack<S>(n, store);
    } else {
      each_pack<S>(n, [&](int k, int64_t j) { sum(k, j), store(k, j); });
      p_ = s;
    }
  }
  // Pack at j; writes to it persist if the row is in registers.
  __device__ __forceinline__ C (&at(int k, int64_t j))[S::V] {
    if constexpr (!S::kKept) read(k, j);
    return kept_[k];
  }
  // Pack that at() returned last.
  __device__ __forceinline__ C (&kept(int k))[S::V] { return kept_[k]; }

 private:
  __device__ __forceinline__ void read(int k, int64_t j) {
    const auto v = load16<S::V>(p_ + j);
#pragma unroll
    for (int e = 0; e < S::V; ++e) kept_[k][e] = widen(v.x[e]);
  }
  const T* p_;
  C kept_[S::kKept ? S::kPacks : 1][S::V];
};
// Partial sum: per pack, C c = sum.begin(), additions to c, sum.end(c). Rows in registers have at most 16 elements per
// thread.
template <class C> struct ShortSum {
  C value = 0;
  __device__ __forceinline__ C begin() const { return value; }
  __device__ __forceinline__ void end(C x) { value = x; }
  __device__ __forceinline__ void add(C x) { value += x; }
  __device__ __forceinline__ C total() const { return value; }
};
template <class C> struct LongSum : KahanSum<C> {
  __device__ __forceinline__ C begin() const { return 0; }
  __device__ __forceinline__ void end(C x) { this->add(x); }
};
template <class S> using RowSum = std::conditional_t<S::kKept, ShortSum<typename S::C>, LongSum<typename S::C>>;
// Sum of f(k, j), a pack's partial sum, for all threads of the row.
template <class S, class F> __device__ __forceinline__ typename S::C sum_of_packs(int64_t n, F&& f) {
  RowSum<S> sum;
  each_pack<S>(n, [&](int k, int64_t j) { sum.add(f(k, j)); });
  return block_all<SumOp, S::kThreads>(sum.total(), typename S::C(0));
}

// Most elements of a row in registers per thread.
template <class T> inline constexpr int64_t kKeptElements = 64 / int64_t(sizeof(compute_t<T>));
// vectors: 16-byte aligned rows. Shapes cost seconds to compile: f64 and unaligned rows share generic ones.
template <class T, class F> void visit_row_shape(int64_t n, [[maybe_unused]] bool vectors, F&& f) {
  constexpr int kKept = int(kKeptElements<T>), V = kVec<T>;
  if constexpr (!std::is_same_v<T, double>)
    if (vectors) {
      if (n <= 32 * kKept) return f.template operator()<RowShape<T, 32, V, kKept / V>>();
      if (n <= 256 * kKept) return f.template operator()<RowShape<T, 256, V, kKept / V>>();
      if (n <= 1024 * kKept) return f.template operator()<RowShape<T, 1024, V, kKept / V>>();
      return f.template operator()<RowShape<T, 512, V, 0>>();
    }
  if (n <= 16 * kKept) return f.template operator()<RowShape<T, 32, 1, kKept / 2>>();
  if (n <= 256 * kKept) return f.template operator()<RowShape<T, 256, 1, kKept>>();
  return f.template operator()<RowShape<T, 512, 1, 0>>();
}
template <class T, class... P> bool rows_in_vectors(int64_t n, const P*... p) {
  return n % kVec<T> == 0 && (aligned16(p) && ...);
}

// for (int64_t r = first_row<S>(); r < rows; r += row_step<S>())
template <class S> __device__ __forceinline__ int64_t first_row() {
  return blockIdx.x * int64_t(S::kRows) + threadIdx.x / S::kThreads;
}
template <class S> __device__ __forceinline__ int64_t row_step() { return gridDim.x * int64_t(S::kRows); }
template <class S, class... P, class... A>
void launch_per_row(const Context& c, int64_t rows, void (*kernel)(P...), A&&... args) {
  launch(c, kernel, blocks_for(c, rows, S::kRows), S::kBlock, 0, std::forward<A>(args)...);
}
}  // namespace

}  // namespace tg::cuda
