// Per pass of 8 bits: counts of digits per tile, one block's scan, a scatter per tile. Ballots rank equal digits of a
// warp: stable. Few tiles: all passes in one launch.
#include <tapegrad/cuda/device/sort.h>

namespace tg::cuda {
namespace {
constexpr int kThreads = 512, kWarps = kThreads / 32, kRounds = 8, kTile = kThreads * kRounds;
constexpr int kDigits = 256;
constexpr int64_t kTilesOfOneBlock = 4;

__device__ __forceinline__ int digit_of(uint64_t x, int shift) { return int(x >> shift) & (kDigits - 1); }
__device__ __forceinline__ int64_t index_of(int64_t tile, int round) {
  return tile * kTile + int64_t(threadIdx.x / 32) * 32 * kRounds + round * 32 + threadIdx.x % 32;
}

__device__ __forceinline__ void count_tile(const uint64_t* in, int64_t n, int64_t tile, int64_t tiles, int shift,
                                           int64_t* counts) {
  __shared__ unsigned count[kDigits];
  for (int d = int(threadIdx.x); d < kDigits; d += kThreads) count[d] = 0;
  __syncthreads();
  for (int r = 0; r < kRounds; ++r) {
    const int64_t i = index_of(tile, r);
    if (i < n) atomicAdd(&count[digit_of(in[i], shift)], 1u);
  }
  __syncthreads();
  for (int d = int(threadIdx.x); d < kDigits; d += kThreads) counts[d * tiles + tile] = count[d];
  __syncthreads();
}

__device__ __forceinline__ void scan(int64_t* counts, int64_t n) {
  __shared__ int64_t sums[kWarps];
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  int64_t before = 0;
  for (int64_t from = 0; from < n; from += kThreads) {
    const int64_t i = from + threadIdx.x, own = i < n ? counts[i] : 0;
    int64_t sum = own;  // inclusive, within the warp
    for (int d = 1; d < 32; d *= 2) {
      const int64_t left = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += left;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int64_t start = before;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) start += sums[w];
      before += sums[w];
    }
    if (i < n) counts[i] = start + sum - own;
    __syncthreads();
  }
}

// Lanes with this lane's digit; 0 without a word.
__device__ __forceinline__ unsigned peers_of(int digit, bool valid) {
  unsigned peers = __ballot_sync(~0u, valid);
#pragma unroll
  for (int b = 1; b < kDigits; b *= 2) {
    const unsigned set = __ballot_sync(~0u, (digit & b) != 0);
    peers &= digit & b ? set : ~set;
  }
  return valid ? peers : 0;
}
__device__ __forceinline__ void place_tile(const uint64_t* in, uint64_t* out, int64_t n, int64_t tile, int64_t tiles,
                                           int shift, const int64_t* starts) {
  __shared__ unsigned count[kWarps][kDigits];  // count per warp, then sums over earlier warps
  __shared__ int64_t start[kDigits];
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  for (int d = lane; d < kDigits; d += 32) count[warp][d] = 0;
  __syncwarp();
  uint64_t x[kRounds];
  unsigned rank[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int64_t i = index_of(tile, r);
    const bool valid = i < n;
    x[r] = valid ? in[i] : 0;
    const int d = digit_of(x[r], shift);
    const unsigned peers = peers_of(d, valid);
    const unsigned before = valid ? count[warp][d] : 0;
    rank[r] = before + unsigned(__popc(peers & ((1u << lane) - 1)));
    __syncwarp();
    if (valid && lane == __ffs(int(peers)) - 1) count[warp][d] = before + unsigned(__popc(peers));
    __syncwarp();
  }
  __syncthreads();
  for (int d = int(threadIdx.x); d < kDigits; d += kThreads) {
    unsigned sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      const unsigned own = count[w][d];
      count[w][d] = sum;
      sum += own;
    }
    start[d] = starts[d * tiles + tile];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (index_of(tile, r) >= n) continue;
    const int d = digit_of(x[r], shift);
    out[start[d] + count[warp][d] + rank[r]] = x[r];
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    sort_in_block(uint64_t* a, uint64_t* b, int64_t n, int64_t tiles, int shift, int passes, int64_t* counts) {
  for (int p = 0; p < passes; ++p, shift += 8) {
    for (int64_t t = 0; t < tiles; ++t) count_tile(a, n, t, tiles, shift, counts);
    scan(counts, tiles * kDigits);
    for (int64_t t = 0; t < tiles; ++t) place_tile(a, b, n, t, tiles, shift, counts);
    uint64_t* const sorted = b;
    b = a;
    a = sorted;
  }
}
__global__ void __launch_bounds__(kThreads)
    sort_count_tiles(const uint64_t* in, int64_t n, int shift, int64_t* counts) {
  count_tile(in, n, blockIdx.x, gridDim.x, shift, counts);
}
__global__ void __launch_bounds__(kThreads) sort_scan_counts(int64_t* counts, int64_t n) { scan(counts, n); }
__global__ void __launch_bounds__(kThreads)
    sort_place_tiles(const uint64_t* in, uint64_t* out, int64_t n, int shift, const int64_t* starts) {
  place_tile(in, out, n, blockIdx.x, gridDim.x, shift, starts);
}
}  // namespace

SortedPairs::SortedPairs(const Context& c, int64_t n, PairBits bits)
    : c_(c),
      n_(n),
      tiles_((n + kTile - 1) / kTile),
      bits_(bits),
      words_(c, size_t(n) * sizeof(uint64_t)),
      other_(c, size_t(n) * sizeof(uint64_t)),
      counts_(c, size_t(tiles_) * kDigits * sizeof(int64_t)),
      data_(words_.as<uint64_t>()) {}

void SortedPairs::sort(int key_bits) {
  uint64_t *a = data_, *b = (a == words_.as<uint64_t>() ? other_ : words_).as<uint64_t>();
  auto* counts = counts_.as<int64_t>();
  const int passes = (key_bits + 7) / 8;
  const auto tiles = unsigned(tiles_);
  if (tiles_ <= kTilesOfOneBlock) {
    launch(c_, sort_in_block, 1, kThreads, 0, a, b, n_, tiles_, bits_.position, passes, counts);
  } else {
    for (int p = 0; p < passes; ++p) {
      const int shift = bits_.position + 8 * p;
      launch(c_, sort_count_tiles, tiles, kThreads, 0, p % 2 ? b : a, n_, shift, counts);
      launch(c_, sort_scan_counts, 1, kThreads, 0, counts, tiles_ * kDigits);
      launch(c_, sort_place_tiles, tiles, kThreads, 0, p % 2 ? b : a, p % 2 ? a : b, n_, shift, counts);
    }
  }
  data_ = passes % 2 ? b : a;
}

}  // namespace tg::cuda
