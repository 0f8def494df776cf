// PTX that CUDA C++ lacks, then its emulation. Change both together.
#pragma once
#include <tapegrad/core/half.h>

namespace tg::cuda {
#ifdef __CUDACC__

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
template <class T> __device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char tg_dynamic_shared[];
  return reinterpret_cast<T*>(tg_dynamic_shared);
}

// Never contracted into an FMA.
__device__ __forceinline__ float sum_rn(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double sum_rn(double a, double b) { return __dadd_rn(a, b); }

template <int N> struct Registers {
  uint32_t x[N];
};
#define TG_STORE(name, instruction, constraint, address)                                                               \
  template <class V> __device__ __forceinline__ void name(V* p, const V& x) {                                          \
    if constexpr (sizeof(V) % 4 != 0) {                                                                                \
      *p = x;                                                                                                          \
    } else {                                                                                                           \
      static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);                                              \
      const auto w = __builtin_bit_cast(Registers<sizeof(V) / 4>, x);                                                  \
      if constexpr (sizeof(V) == 4)                                                                                    \
        asm volatile(instruction ".b32 [%0], %1;" ::constraint(address), "r"(w.x[0]) : "memory");                      \
      else if constexpr (sizeof(V) == 8)                                                                               \
        asm volatile(instruction ".v2.b32 [%0], {%1,%2};" ::constraint(address), "r"(w.x[0]), "r"(w.x[1]) : "memory"); \
      else                                                                                                             \
        asm volatile(instruction ".v4.b32 [%0], {%1,%2,%3,%4};" ::constraint(address), "r"(w.x[0]), "r"(w.x[1]),       \
                     "r"(w.x[2]), "r"(w.x[3])                                                                          \
                     : "memory");                                                                                      \
    }                                                                                                                  \
  }
TG_STORE(store_global, "st.global", "l", p)
TG_STORE(store_global_streaming, "st.global.cs", "l", p)
TG_STORE(store_shared, "st.shared", "r", shared_address(p))
#undef TG_STORE

__device__ __forceinline__ void cp_async16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ bf16 to_bf16(float x) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
__device__ __forceinline__ float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  const float y = reciprocal_approx(x);
  return __fmaf_rn(y, -__fmaf_rn(x, y, -1.0f), y);
}
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#else

template <class T> T sum_rn(T a, T b) {
  asm("" : "+m"(a), "+m"(b));
  return a + b;
}

template <class T> T* dynamic_shared() { return static_cast<T*>(simt::engine::dynamic_shared()); }

// *p = x (up to 16 bytes) by one instruction.
// Streaming: not read again soon.
template <class V> __forceinline__ void store_global(V* p, const V& x) { simt::engine::store(p, &x, sizeof(V), false); }
template <class V> __forceinline__ void store_global_streaming(V* p, const V& x) { store_global(p, x); }
template <class V> __forceinline__ void store_shared(V* p, const V& x) { simt::engine::store(p, &x, sizeof(V), true); }

// Zeros if !valid. Visible to this thread after cp_async_wait, to others after another barrier.
inline void cp_async16(void* shared, const void* global, bool valid = true) {
  simt::engine::cp_async(shared, global, 16, valid);
}
inline void cp_async_commit() { simt::engine::cp_async_commit(); }
template <int N> void cp_async_wait() { simt::engine::cp_async_wait(N); }

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, simt::Site at = simt::Site::current()) {
  simt::engine::ldmatrix(r, row, 4, false, at);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, simt::Site at = simt::Site::current()) {
  simt::engine::ldmatrix(r, row, 4, true, at);
}

// d += a b: 16x16 * 16x8 (bf16), 16x32 * 32x8 (int8).
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                     simt::Site at = simt::Site::current()) {
  simt::engine::mma_bf16(d, a, b0, b1, at);
}
inline void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                   simt::Site at = simt::Site::current()) {
  simt::engine::mma_s8(d, a, b0, b1, at);
}

// Round to nearest even.
inline bf16 to_bf16(float x) { return bf16(x); }
// Exact, except for NaN payloads.
inline float to_float(f16 x) { return float(x); }

// Rounds to nearest for x in [2^-100, 2^100], without division's slow path.
inline float reciprocal(float x) { return 1.0f / x; }

// 1 / x to 1 ulp; denormal results become 0.
inline float reciprocal_approx(float x) {
  const float y = 1.0f / x;
  return fabsf(y) < 0x1p-126f ? copysignf(0.0f, y) : y;
}

// 2^x to 2 ulp; denormal results become 0.
inline float exp2_approx(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;  // NaN stays
}

// bar.sync and bar.arrive, barriers 1..15.
inline void named_barrier_sync(int id, int threads, simt::Site at = simt::Site::current()) {
  simt::engine::named_barrier(id, threads, true, at);
}
inline void named_barrier_arrive(int id, int threads, simt::Site at = simt::Site::current()) {
  simt::engine::named_barrier(id, threads, false, at);
}

#endif
}  // namespace tg::cuda
