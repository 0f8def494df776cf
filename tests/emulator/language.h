#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include <tapegrad/emulator/emulator.h>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
// Statics: blocks run one at a time, and kernel accesses to writable statics count as shared memory.
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// --- barriers, fences and warp collectives
inline void __syncthreads(simt::Site at = simt::Site::current()) { simt::engine::sync_threads(at); }
inline void __syncwarp(unsigned mask = ~0U, simt::Site at = simt::Site::current()) {
  simt::engine::sync_warp(mask, at);
}
inline void __threadfence() { simt::engine::fence(); }

namespace simt::engine {

template <class T> struct Shuffle {
  T value;
  int source;
  T result;
};

template <class T> void shuffle_combine(void* const* frames, unsigned lanes) {
  for (unsigned l = 0; l < 32; ++l) {
    if (!(lanes >> l & 1)) continue;
    auto& f = *static_cast<Shuffle<T>*>(frames[l]);
    const auto s = static_cast<unsigned>(f.source);
    if (!(lanes >> s & 1)) absent_lane(l, s);
    f.result = static_cast<Shuffle<T>*>(frames[s])->value;
  }
}

template <class T> T shuffle(unsigned mask, T value, int source, Site at) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  Shuffle<T> f{value, source, value};
  collective(mask, &f, shuffle_combine<T>, at);
  return f.result;
}

struct Vote {
  bool value;
  unsigned result;
};
inline void vote_combine(void* const* frames, unsigned lanes) {
  unsigned votes = 0;
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1) votes |= unsigned{static_cast<Vote*>(frames[l])->value} << l;
  for (unsigned l = 0; l < 32; ++l)
    if (lanes >> l & 1) static_cast<Vote*>(frames[l])->result = votes;
}

}  // namespace simt::engine

template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32, simt::Site at = simt::Site::current()) {
  const int l = static_cast<int>(simt::engine::lane());
  return simt::engine::shuffle(mask, v, (l & ~(width - 1)) | (source & (width - 1)), at);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int x, int width = 32, simt::Site at = simt::Site::current()) {
  const int l = static_cast<int>(simt::engine::lane()), s = l ^ x;
  return simt::engine::shuffle(mask, v, s < (l | (width - 1)) + 1 ? s : l, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32, simt::Site at = simt::Site::current()) {
  const int l = static_cast<int>(simt::engine::lane()), s = l + static_cast<int>(d);
  return simt::engine::shuffle(mask, v, s <= (l | (width - 1)) ? s : l, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32, simt::Site at = simt::Site::current()) {
  const int l = static_cast<int>(simt::engine::lane()), s = l - static_cast<int>(d);
  return simt::engine::shuffle(mask, v, s >= (l & ~(width - 1)) ? s : l, at);
}
inline unsigned __ballot_sync(unsigned mask, int p, simt::Site at = simt::Site::current()) {
  simt::engine::Vote v{p != 0, 0};
  simt::engine::collective(mask, &v, simt::engine::vote_combine, at);
  return v.result;
}
inline int __any_sync(unsigned mask, int p, simt::Site at = simt::Site::current()) {
  return __ballot_sync(mask, p, at) != 0;
}
inline int __all_sync(unsigned mask, int p, simt::Site at = simt::Site::current()) {
  return __ballot_sync(mask, !p, at) == 0;
}

// --- atomics
template <class T> T atomicAdd(T* p, std::type_identity_t<T> v) {
  return simt::engine::atomic(p, [=](T o) { return o + v; });
}
template <class T> T atomicMax(T* p, std::type_identity_t<T> v) {
  return simt::engine::atomic(p, [=](T o) { return std::max(o, v); });
}
template <class T> T atomicMin(T* p, std::type_identity_t<T> v) {
  return simt::engine::atomic(p, [=](T o) { return std::min(o, v); });
}

// --- arithmetic
using std::max;
using std::min;
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }

// --- launch
namespace simt {
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   A&&... args) {
  struct Bound {
    void (*kernel)(P...);
    std::tuple<P...> args;
  };
  const auto run = [](const void* self) {
    const auto& b = *static_cast<const Bound*>(self);
    std::apply(b.kernel, b.args);
  };
  return engine::launch({run, std::make_shared<Bound>(Bound{kernel, {std::forward<A>(args)...}}), sizeof(Bound),
                         reinterpret_cast<const void*>(kernel)},
                        grid, block, shared_bytes, stream);
}
}  // namespace simt
