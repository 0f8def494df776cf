// One thread loads tiles by TMA into a ring of stages, two warpgroups multiply. Persistent blocks: the next tile loads
// while this one is stored.
#pragma once
#include <tapegrad/cuda/device/hopper.h>
#include <tapegrad/cuda/device/int8_product.h>

#include <algorithm>

namespace tg::cuda {
namespace {
struct Wgmma {
  static constexpr int kRows = 128, kColumns = 256, kDepth = 128, kStages = 4;
  static constexpr int kRowBytes = kRows * kDepth, kStageBytes = kRowBytes + kColumns * kDepth;
  // A warp has 16 rows and all columns.
  static constexpr int kM = 1, kN = kColumns / 8, kAcross = 1, kWarps = kRows / 16, kThreads = kWarps * 32;
  static constexpr int kBlock = kThreads + 128;  // + the loading warpgroup
  static __device__ __forceinline__ void barrier() { named_barrier_sync(1, kThreads); }
  template <class T> static constexpr size_t shared() {
    return size_t(kStages) * kStageBytes + Results<Wgmma, T>::kBytes;
  }
  static int64_t tiles(const Product& p) { return (p.m + kRows - 1) / kRows * ((p.n + kColumns - 1) / kColumns); }
};
class Ring {  // a thread's position
 public:
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ int parity() const { return parity_; }
  __device__ __forceinline__ void next() {
    stage_ = stage_ + 1 == Wgmma::kStages ? 0 : stage_ + 1;
    parity_ ^= stage_ == 0;
  }

 private:
  int stage_ = 0, parity_ = 0;
};

template <class T>
__global__ void __launch_bounds__(Wgmma::kBlock, 1)
    int8_product_wgmma(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, Product p,
                       int64_t tiles, T* y) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Wgmma;
  __shared__ mbarrier full[S::kStages], empty[S::kStages];
  std::byte* const shared = dynamic_shared<std::byte>();
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) mbarrier_init(full + s, 1), mbarrier_init(empty + s, S::kWarps);
    mbarrier_init_fence();
  }
  __syncthreads();
  const auto steps = int((p.k + S::kDepth - 1) / S::kDepth);
  Ring ring;
  if (warp >= S::kWarps) {
    fewer_registers<40>();
    if (threadIdx.x != S::kThreads) return;
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
      const TileOrigin at(p, S::kRows, S::kColumns, t);
      for (int step = 0; step < steps; ++step, ring.next()) {
        const int s = ring.stage();
        mbarrier_wait(empty + s, ring.parity() ^ 1);  // returns at once in the first round
        mbarrier_arrive_expect(full + s, S::kStageBytes);
        std::byte* const to = shared + s * S::kStageBytes;
        tma_load(to, &x, int(at.row), step * S::kDepth, full + s);
        tma_load(to + S::kRowBytes, &weight, int(at.column), step * S::kDepth, full + s);
      }
    }
    return;
  }
  more_registers<232>();
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    int sums[1][S::kN][4] = {};
    for (int step = 0; step < steps; ++step, ring.next()) {
      const int s = ring.stage();
      mbarrier_wait(full + s, ring.parity());
      const std::byte* const from = shared + s * S::kStageBytes;
      const uint64_t rows = wgmma_operand(from + warp / 4 * 64 * S::kDepth),
                     columns = wgmma_operand(from + S::kRowBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < S::kDepth / 32; ++k)
        wgmma_m64n256k32(sums[0], rows + uint64_t(2 * k), columns + uint64_t(2 * k));
      wgmma_commit();
      wgmma_wait(sums[0]);
      if (lane == 0) mbarrier_arrive(empty + s);
    }
    const TileOrigin at(p, S::kRows, S::kColumns, t);
    Results<S, T>::store(p, sums, y, shared + S::kStages * S::kStageBytes, at.row, at.column);
  }
#endif
}
// 9.0 is not enough: the image must be for 9.0a.
template <class T> bool has_wgmma(const Context& c) {
  if (properties(c.device.index).major != 9 || !has_shared(c, Wgmma::shared<T>())) return false;
#ifdef __CUDACC__
  static const bool compiled = [&] {
    cudaFuncAttributes a;
    check(cudaFuncGetAttributes(&a, int8_product_wgmma<T>), c.op, "asking for a kernel's attributes");
    return a.sharedSizeBytes > 0;  // static shared memory of its barriers
  }();
  return compiled;
#else
  return true;
#endif
}
template <class T> void multiply_by_wgmma(const Context& c, const Product& p, T* y) {
  using S = Wgmma;
  TensorMap x, weight;
  check(make_tensor_map(&x, p.x, uint64_t(p.m), uint64_t(p.k), uint64_t(p.ld_x), S::kRows), c.op, "a tensor map");
  check(make_tensor_map(&weight, p.weight, uint64_t(p.n), uint64_t(p.k), uint64_t(p.ld_weight), S::kColumns), c.op,
        "a tensor map");
  const int64_t tiles = S::tiles(p);
  const auto blocks = unsigned(std::min<int64_t>(tiles, properties(c.device.index).multiprocessors));
  launch(c, int8_product_wgmma<T>, blocks, S::kBlock, S::shared<T>(), x, weight, p, tiles, y);
}
}  // namespace
}  // namespace tg::cuda
