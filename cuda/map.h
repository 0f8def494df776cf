// Elementwise kernels: y[i] = f(x[i]...) with broadcasting, any layout and a type of its own for each operand; one
// kernel per function and compute type. Operands that are neighbours or one repeated element along the innermost
// dimension are read V at a time, 16 bytes per access; the rest, and all of f64, element by element. Each index is read
// before it is written, so y may be an operand. For the elementwise .cu files of this folder.
#pragma once
#include <tapegrad/cuda/kernel.h>

#include <algorithm>

namespace tg::cuda {
namespace {
constexpr int kMapThreads = 128;  // 16 blocks of them fill a multiprocessor
// Whether f is worth V copies of its code: not where arithmetic takes longer than memory, nor with f64.
template <class F> inline constexpr bool kGrouped = true;

// What f calls X, in memory: bf16 for float where the call is about bf16.
template <bool kHalf, class X> using stored_t = std::conditional_t<kHalf && std::is_same_v<X, float>, bf16, X>;

template <int V, class S> constexpr int part_of = std::min(V, kVec<S>);  // elements of one access
template <int V, class S> __device__ __forceinline__ void load(S (&to)[V], const S* from, bool repeat) {
  using Part = Vec<S, part_of<V, S>>;
  if (repeat) {
    const S x = *from;
#pragma unroll
    for (int k = 0; k < V; ++k) to[k] = x;
    return;
  }
#pragma unroll
  for (int j = 0; j < V / part_of<V, S>; ++j) {
    const Part part = reinterpret_cast<const Part*>(from)[j];
#pragma unroll
    for (int k = 0; k < part_of<V, S>; ++k) to[j * part_of<V, S> + k] = part.x[k];
  }
}
// V elements of one operand. All operands are loaded before any is converted, which would wait for the memory.
template <int V, class X> struct Elements {
  X x[V];
  bf16 half[V];
  template <bool kHalf> __device__ __forceinline__ void read(const X* from, int64_t at, bool repeat) {
    if constexpr (kHalf && std::is_same_v<X, float>)
      load<V>(half, reinterpret_cast<const bf16*>(from) + at, repeat);
    else
      load<V>(x, from + at, repeat);
  }
  template <bool kHalf> __device__ __forceinline__ void convert() {
    if constexpr (kHalf && std::is_same_v<X, float>)
#pragma unroll
      for (int k = 0; k < V; ++k) x[k] = widen(half[k]);
  }
};
template <bool kHalf, int V, class Y> __device__ __forceinline__ void write(Y* y, int64_t at, const Y (&r)[V]) {
  using S = stored_t<kHalf, Y>;
  using Part = Vec<S, part_of<V, S>>;
#pragma unroll
  for (int j = 0; j < V / part_of<V, S>; ++j) {
    Part part;
#pragma unroll
    for (int k = 0; k < part_of<V, S>; ++k) part.x[k] = narrow<S>(r[j * part_of<V, S> + k]);
    reinterpret_cast<Part*>(reinterpret_cast<S*>(y) + at)[j] = part;
  }
}
template <class X> __device__ __forceinline__ X read_one(const X* x, int64_t at, bool half) {
  if constexpr (std::is_same_v<X, float>)
    if (half) return widen(reinterpret_cast<const bf16*>(x)[at]);
  return x[at];
}
template <class Y> __device__ __forceinline__ void write_one(Y* y, int64_t at, Y r, bool half) {
  if constexpr (std::is_same_v<Y, float>)
    if (half) {
      reinterpret_cast<bf16*>(y)[at] = narrow<bf16>(r);
      return;
    }
  y[at] = r;
}

template <bool kHalf, int V, class... X, size_t... K>
__device__ __forceinline__ void read_all(const int64_t* at, const bool* repeat, std::index_sequence<K...>,
                                         Elements<V, X>&... e, const X*... x) {
  (e.template read<kHalf>(x, at[K], repeat[K]), ...);
  (e.template convert<kHalf>(), ...);
}
template <int V, class F, class Y, class... X>
__device__ __forceinline__ void map_group(const F& f, int64_t i, const int64_t* at, const bool* repeat, bool half, Y* y,
                                          Elements<V, X>... e, const X*... x) {
  constexpr auto all = std::index_sequence_for<X...>();
  if (half)
    read_all<true, V, X...>(at, repeat, all, e..., x...);
  else
    read_all<false, V, X...>(at, repeat, all, e..., x...);
  Y r[V];
#pragma unroll
  for (int k = 0; k < V; ++k) r[k] = f(e.x[k]...);
  half ? write<true, V>(y, i, r) : write<false, V>(y, i, r);
}
template <class F, class Y, class... X, size_t... K>
__device__ __forceinline__ void map_one(const F& f, int64_t i, const int64_t* at, bool half, Y* y,
                                        std::index_sequence<K...>, const X*... x) {
  write_one<Y>(y, i, f(read_one(x, at[K], half)...), half);
}
// Threads: one per group of V, then one per element from V * groups on.
template <int V, class F, class Y, class... X>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(F f, Strided<sizeof...(X)> walk, int64_t groups, int64_t n, bool half, Y* y, const X*... x) {
  constexpr size_t N = sizeof...(X);
  int64_t at[N];
  if constexpr (V > 1)
    for (GridLoop g(groups); g; ++g) {
      bool repeat[N];
#pragma unroll
      for (size_t k = 0; k < N; ++k) repeat[k] = walk.stride[k][0] == 0;
      walk.offsets(*g * V, at);
      map_group<V, F, Y, X...>(f, *g * V, at, repeat, half, y, Elements<V, X>()..., x...);
    }
  for (GridLoop g(n - groups * V); g; ++g) {
    const int64_t i = groups * V + *g;
    walk.offsets(i, at);
    map_one(f, i, at, half, y, std::index_sequence_for<X...>(), x...);
  }
}

// Whether every group of V neighbours in the walk is, in operand k, V neighbours from an aligned address or one
// element.
template <int V, size_t N> bool in_groups(const Strided<N>& walk, size_t k, const void* p, size_t bytes) {
  if (walk.dims == 0 || (walk.dims > 1 && walk.shape[0] % V != 0)) return false;
  if (walk.stride[k][0] == 0) return true;
  if (walk.stride[k][0] != 1 || reinterpret_cast<uintptr_t>(p) % std::min<size_t>(16, V * bytes) != 0) return false;
  for (int32_t d = 1; d < walk.dims; ++d)
    if (walk.stride[k][d] % V != 0) return false;
  return true;
}
template <class Y, class... X, class F, size_t... K>
void map_impl(const Context& c, Bufs in, const Buf& out, F f, std::index_sequence<K...>) {
  static_assert((std::is_same_v<X, compute_t<X>> && ...), "f takes compute types");
  constexpr size_t kWidest = std::max({sizeof(Y), sizeof(X)...});
  constexpr bool kFloats = (std::is_same_v<Y, float> || ... || std::is_same_v<X, float>);
  constexpr bool kSingly = !kGrouped<F> || (std::is_same_v<Y, double> || ... || std::is_same_v<X, double>);
  constexpr int V = kSingly ? 1 : kFloats ? 8 : int(16 / kWidest);
  const int64_t n = out.numel();
  if (n == 0) return;
  const auto first = [](const Buf& b) { return b.bytes + b.layout->offset * int64_t(size_of(b.dtype())); };
  const Strided<sizeof...(X)> walk(out.shape(), {broadcast_strides(*in[K].layout, out.shape())...});
  const bool half = kFloats && ((out.dtype() == DType::bf16) || ... || (in[K].dtype() == DType::bf16));
  const size_t y_bytes = std::min<size_t>(16, V * size_of(out.dtype()));
  const bool grouped = V > 1 && reinterpret_cast<uintptr_t>(first(out)) % y_bytes == 0 &&
                       (in_groups<V>(walk, K, first(in[K]), size_of(in[K].dtype())) && ...);
  const int64_t groups = grouped ? n / V : 0;
  launch(c, map_kernel<V, F, Y, X...>, blocks_for(c, std::max(groups, n - groups * V), kMapThreads), kMapThreads, 0, f,
         walk, groups, n, half, reinterpret_cast<Y*>(first(out)), reinterpret_cast<const X*>(first(in[K]))...);
}
// out[0][i] = f(in[0][i], ...): Y and X... are what f returns and takes. float stands for f32 and bf16, of which all
// such operands of a call have the same; out is contiguous. F is a struct with a __device__ call operator (a lambda
// would need a compiler option of nvcc).
template <class Y, class... X, class F> void map(const Context& c, Bufs in, const Buf& out, F f) {
  map_impl<Y, X...>(c, in, out, f, std::index_sequence_for<X...>());
}

// f.template operator()<T>() with the type that f64, f32 and bf16 are computed in.
template <class F> void visit_compute_type(DType d, F&& f) {
  if (d == DType::f64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

}  // namespace
}  // namespace tg::cuda
