// y[i] = f(x[i]...) with broadcasting, any layouts, a type per operand. Packs of V (16 bytes) where contiguous or
// constant along the innermost dimension, else (and in f64) elements. y may alias an operand.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <algorithm>

namespace tg::cuda {
namespace {
constexpr int kMapThreads = 128;  // 16 blocks fill an SM
// False for compute-bound f: V copies of its code do not pay.
template <class F> inline constexpr bool kGrouped = true;

// float becomes bf16 in a bf16 call.
template <bool kHalf, class X> using stored_t = std::conditional_t<kHalf && std::is_same_v<X, float>, bf16, X>;

template <int V, class S> __device__ __forceinline__ void load(S (&to)[V], const S* from, bool repeat) {
  if (repeat) {
    const S x = *from;
#pragma unroll
    for (int k = 0; k < V; ++k) to[k] = x;
    return;
  }
  const auto v = load16<V>(from);
#pragma unroll
  for (int k = 0; k < V; ++k) to[k] = v.x[k];
}
// Issues all loads before any conversion, so that their latencies overlap.
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
  Vec<S, V> v;
#pragma unroll
  for (int k = 0; k < V; ++k) v.x[k] = narrow<S>(r[k]);
  store16(reinterpret_cast<S*>(y) + at, v);
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
// Scalar arguments in one struct: all kernels share a signature and a launch. User-defined functors may have any
// copyable A.
template <class T> struct Scalars {
  T a{}, b{};
  uint8_t choice = 0;
};
template <int V, class F, class A, class Y, class X, class... Z>
__device__ __forceinline__ void map_group(const A& numbers, int64_t i, const int64_t* at, const bool* repeat, bool half,
                                          Y* y, Elements<V, X> e, Elements<V, Z>... d, const X* x, const Z*... z) {
  constexpr auto all = std::index_sequence_for<X, Z...>();
  if (half)
    read_all<true, V, X, Z...>(at, repeat, all, e, d..., x, z...);
  else
    read_all<false, V, X, Z...>(at, repeat, all, e, d..., x, z...);
  Y r[V];
#pragma unroll
  for (int k = 0; k < V; ++k) r[k] = F::f(numbers, e.x[k], d.x[k]...);
  half ? write<true, V>(y, i, r) : write<false, V>(y, i, r);
}
template <class F, class A, class Y, class X, class... Z, size_t... K>
__device__ __forceinline__ void map_one(const A& numbers, int64_t i, const int64_t* at, bool half, Y* y,
                                        std::index_sequence<K...>, const X* x, const Z*... z) {
  write_one<Y>(y, i, F::f(numbers, read_one(x, at[0], half), read_one(z, at[K + 1], half)...), half);
}
// A thread per pack of V, then per element; one walk keeps the code small.
template <int V, class F, class A, class Y, class X, class... Z>
__global__ void __launch_bounds__(kMapThreads) map_kernel(A numbers, Strided<1 + sizeof...(Z)> walk, int64_t groups,
                                                          int64_t n, bool half, Y* y, const X* x, const Z*... z) {
  constexpr size_t N = 1 + sizeof...(Z);
  int64_t at[N];
  for (GridLoop g(n - groups * (V - 1)); g; ++g) {
    const bool grouped = V > 1 && *g < groups;
    const int64_t i = grouped ? *g * V : *g + groups * (V - 1);
    walk.offsets(i, at);
    if (!grouped) {
      map_one<F, A, Y, X, Z...>(numbers, i, at, half, y, std::index_sequence_for<Z...>(), x, z...);
      continue;
    }
    if constexpr (V > 1) {
      bool repeat[N];
#pragma unroll
      for (size_t k = 0; k < N; ++k) repeat[k] = walk.stride[k][0] == 0;
      map_group<V, F, A, Y, X, Z...>(numbers, i, at, repeat, half, y, Elements<V, X>(), Elements<V, Z>()..., x, z...);
    }
  }
}

inline bool aligned_for(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % std::min<size_t>(16, bytes) == 0;
}
template <class X> const X* first_of(const Buf& b) { return reinterpret_cast<const X*>(first_element(b)); }
// True if packs of v are, per operand, contiguous and aligned, or one repeated element.
template <size_t N> bool in_groups(const Strided<N>& walk, int v, Bufs in) {
  if (walk.dims == 0 || (walk.dims > 1 && walk.shape[0] % v != 0)) return false;
  bool ok = true;
  for (size_t k = 0; k < N; ++k) {
    const auto& stride = walk.stride[k];
    if (stride[0] == 0) continue;
    ok = ok && stride[0] == 1 && aligned_for(first_of<std::byte>(in[k]), size_t(v) * size_of(in[k].dtype()));
    for (int32_t d = 1; d < walk.dims; ++d) ok = ok && stride[d] % v == 0;
  }
  return ok;
}
template <class A, class Y, class X, class... Z, size_t... K>
void map_launch(const Context& c, Bufs in, const Buf& out, A numbers, int v,
                void (*kernel)(A, Strided<1 + sizeof...(Z)>, int64_t, int64_t, bool, Y*, const X*, const Z*...),
                std::index_sequence<K...>) {
  const int64_t n = out.numel();
  if (n == 0) return;
  const Strided<1 + sizeof...(Z)> walk(out.shape(), {tg::detail::broadcast_strides(*in[0].layout, out.shape()),
                                                     tg::detail::broadcast_strides(*in[K + 1].layout, out.shape())...});
  const auto is_half = [](const Buf& b) { return b.dtype() == DType::bf16; };
  const bool half = is_half(out) || std::any_of(in.begin(), in.end(), is_half);
  Y* y = const_cast<Y*>(first_of<Y>(out));
  const bool grouped = v > 1 && aligned_for(y, size_t(v) * size_of(out.dtype())) && in_groups(walk, v, in);
  const int64_t groups = grouped ? n / v : 0;
  const unsigned blocks = blocks_for(c, n - groups * (v - 1), kMapThreads);
  launch(c, kernel, blocks, kMapThreads, 0, numbers, walk, groups, n, half, y, first_of<X>(in[0]),
         first_of<Z>(in[K + 1])...);
}
// out[i] = F::f(numbers, in[0][i], ...), contiguous. float: f32 or bf16, one per call.
template <class F, class Y, class X, class... Z, class A = Scalars<X>>
void map(const Context& c, Bufs in, const Buf& out, A numbers = {}) {
  static_assert(std::is_same_v<X, compute_t<X>> && (std::is_same_v<Z, compute_t<Z>> && ...), "f takes compute types");
  constexpr size_t kWidest = std::max({sizeof(Y), sizeof(X), sizeof(Z)...});
  constexpr bool kFloats = ((std::is_same_v<Y, float> || std::is_same_v<X, float>) || ... || std::is_same_v<Z, float>);
  constexpr bool kSingly = !kGrouped<F> || std::is_same_v<X, double>;
  constexpr int V = kSingly ? 1 : kFloats ? 8 : int(16 / kWidest);
  map_launch<A, Y, X, Z...>(c, in, out, numbers, V, map_kernel<V, F, A, Y, X, Z...>, std::index_sequence_for<Z...>());
}

template <class F> void visit_computed(DType d, F&& f) {
  if (d == DType::f64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

}  // namespace
}  // namespace tg::cuda
