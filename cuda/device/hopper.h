// mbarrier, TMA loads with the 128-byte swizzle, wgmma: PTX for sm_90a, then for the emulator.
#pragma once
#include <tapegrad/cuda/device/device.h>

#ifdef __CUDACC__
#include <cuda.h>

namespace tg::cuda {

using TensorMap = CUtensorMap;

inline cudaError_t encode_tensor_map(TensorMap* map, CUtensorMapDataType type, const void* data, std::uint64_t rows,
                                     std::uint64_t columns, std::uint64_t row_bytes, std::uint32_t box_rows,
                                     std::uint32_t box_columns) {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t e =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &found);
#endif
  if (e != cudaSuccess) return e;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  const cuuint64_t size[2] = {columns, rows}, stride[1] = {row_bytes};
  const cuuint32_t box[2] = {box_columns, box_rows}, step[2] = {1, 1};
  const CUresult r = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f)(
      map, type, 2, const_cast<void*>(data), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
// data[rows][columns]; swizzled boxes box_rows x box_columns (128 bytes wide).
inline cudaError_t make_tensor_map(TensorMap* map, const __nv_bfloat16* data, std::uint64_t rows, std::uint64_t columns,
                                   std::uint32_t box_rows, std::uint32_t box_columns) {
  return encode_tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, rows, columns, columns * sizeof *data, box_rows,
                           box_columns);
}
// Bytes, rows `stride` apart (a multiple of 16), swizzled boxes box_rows x 128.
inline cudaError_t make_tensor_map(TensorMap* map, const std::int8_t* data, std::uint64_t rows, std::uint64_t columns,
                                   std::uint64_t stride, std::uint32_t box_rows) {
  return encode_tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, data, rows, columns, stride, box_rows, 128);
}

using mbarrier = std::uint64_t;

__device__ __forceinline__ void mbarrier_init(mbarrier* b, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
// Called between the inits and the barrier that publishes them.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(mbarrier* b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Arrives; the phase also needs that many bytes of TMA.
__device__ __forceinline__ void mbarrier_arrive_expect(mbarrier* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
// Waits for the phase of this parity to end; the first phase has parity 0.
__device__ __forceinline__ void mbarrier_wait(mbarrier* b, int parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@p bra done;\nbra again;\ndone:\n}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}

// Shows this thread's shared-memory writes to wgmma after the next barrier.
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Elements outside the tensor become zeros.
__device__ __forceinline__ void tma_load(void* shared, const TensorMap* map, int row, int column, mbarrier* b) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(b))
      : "memory");
}

// k-major operand: rows of 128 swizzled bytes, 1024-byte aligned. + 2 advances k by 32 bytes.
__device__ __forceinline__ std::uint64_t wgmma_operand(const void* shared) {
  return (std::uint64_t{shared_address(shared)} & 0x3ffffU) >> 4 | std::uint64_t{1} << 16 |
         std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

#define TG_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
// d[64 x 64] += a[64 x 16] b[64 x 16]^T, one warpgroup.
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
      : TG_D4(0), TG_D4(4), TG_D4(8), TG_D4(12), TG_D4(16), TG_D4(20), TG_D4(24), TG_D4(28)
      : "l"(a), "l"(b)
      : "memory");
}
// The operand d keeps later reads of d below the wait.
__device__ __forceinline__ void wgmma_wait(float (&d)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : TG_D4(0), TG_D4(4), TG_D4(8), TG_D4(12), TG_D4(16), TG_D4(20), TG_D4(24), TG_D4(28)
               :
               : "memory");
}
#undef TG_D4
#define TG_D4(i) "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])
#define TG_D32(i) \
  TG_D4(i), TG_D4(i + 1), TG_D4(i + 2), TG_D4(i + 3), TG_D4(i + 4), TG_D4(i + 5), TG_D4(i + 6), TG_D4(i + 7)
// d[64 x 256] += a[64 x 32] b[256 x 32]^T of int8, one warpgroup.
__device__ __forceinline__ void wgmma_m64n256k32(int (&d)[32][4], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%"
      "30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%"
      "58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%"
      "86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%"
      "111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, 1;"
      : TG_D32(0), TG_D32(8), TG_D32(16), TG_D32(24)
      : "l"(a), "l"(b)
      : "memory");
}
__device__ __forceinline__ void wgmma_wait(int (&d)[32][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : TG_D32(0), TG_D32(8), TG_D32(16), TG_D32(24) : : "memory");
}
#undef TG_D32
#undef TG_D4

template <int N> __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace tg::cuda

#else

namespace tg::cuda {

struct TensorMap {
  const char* data;
  std::uint64_t rows, columns, stride;
  std::uint32_t box_rows, box_columns, element;
};
cudaError_t make_tensor_map(TensorMap*, const __nv_bfloat16*, std::uint64_t rows, std::uint64_t columns,
                            std::uint32_t box_rows, std::uint32_t box_columns);
cudaError_t make_tensor_map(TensorMap*, const std::int8_t* data, std::uint64_t rows, std::uint64_t columns,
                            std::uint64_t stride, std::uint32_t box_rows);

using mbarrier = std::uint64_t;
void mbarrier_init(mbarrier*, int arrivals);
void mbarrier_init_fence();
void mbarrier_arrive_expect(mbarrier*, int bytes, simt::Site = simt::Site::current());
inline void mbarrier_arrive(mbarrier* b, simt::Site at = simt::Site::current()) { mbarrier_arrive_expect(b, 0, at); }
void mbarrier_wait(mbarrier*, int parity, simt::Site = simt::Site::current());
void tma_load(void* shared, const TensorMap*, int row, int column, mbarrier*, simt::Site = simt::Site::current());

void async_fence();
std::uint64_t wgmma_operand(const void* shared);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(float (&d)[32], simt::Site = simt::Site::current());
void wgmma_wait(int (&d)[32][4], simt::Site = simt::Site::current());
void wgmma_m64n64k16(float (&d)[32], std::uint64_t a, std::uint64_t b, simt::Site = simt::Site::current());
void wgmma_m64n256k32(int (&d)[32][4], std::uint64_t a, std::uint64_t b, simt::Site = simt::Site::current());

template <int N> void more_registers() {}
template <int N> void fewer_registers() {}

}  // namespace tg::cuda
#endif
