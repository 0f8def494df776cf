// mma.sync m16n8k32, or wgmma on 9.0 (int8_wgmma.h), on a ring of stages in shared memory; the epilogue applies scales
// and bias. Rows are whole 16 bytes, or copied and zero-padded. TG_INT8_PRODUCTS selects a method for comparison.
#include <tapegrad/cuda/device/int8_wgmma.h>
#include <tapegrad/cuda/device/transpose_tile.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/quantized/quantize.h>

#include <algorithm>
#include <cstdlib>

namespace tg::cuda {
namespace {
using Bytes = Vec<int8_t, 16>;
constexpr int kDepth = 128, kParts = kDepth / 16;  // a row's stage spans all banks

template <int kRowWarps, int kColumnWarps, int kTiles16, int kTiles8, int kBlocksOfMultiprocessor, int kRing>
struct TileShape {
  static constexpr int kM = kTiles16, kN = kTiles8, kAcross = kColumnWarps, kWarps = kRowWarps * kColumnWarps,
                       kThreads = kWarps * 32, kBlocks = kBlocksOfMultiprocessor, kStages = kRing;
  static constexpr int kRows = kRowWarps * kM * 16, kColumns = kColumnWarps * kN * 8;
  static constexpr int kStageBytes = (kRows + kColumns) * kDepth;
  static __device__ __forceinline__ void barrier() { __syncthreads(); }
  static constexpr size_t kSharedBytes = size_t(kStages) * kStageBytes;
  static_assert(kRows * kParts % kThreads == 0 && kColumns * kParts % kThreads == 0 && kThreads % kParts == 0);
};
using Large = TileShape<2, 4, 4, 8, 1, 3>;    // 128 x 256, 144 KiB
using Compact = TileShape<2, 4, 4, 8, 1, 2>;  // 96 KiB
using Small = TileShape<2, 2, 2, 4, 2, 3>;    // 64 x 64, 48 KiB
static_assert(Large::kRows == Wgmma::kRows && Large::kColumns == Wgmma::kColumns);
static_assert(Compact::kSharedBytes <= kLeastShared && Small::kSharedBytes <= kLeastShared);

// Rows [first, first + kRows), bytes [k, k + kDepth): unit p of row r goes to p ^ r % 8. Rows beyond the last repeat
// it, unstored. 0 beyond k_end.
template <int kRows, int kThreads>
__device__ __forceinline__ void load_rows(Bytes* to, const int8_t* from, int64_t ld, int64_t first, int64_t rows,
                                          int64_t k, int64_t k_end) {
  const int r = int(threadIdx.x) / kParts, part = int(threadIdx.x) % kParts;
  const bool valid = k + part * 16 < k_end;
  from += valid ? k + part * 16 : 0;
#pragma unroll
  for (int i = 0; i < kRows; i += kThreads / kParts) {
    const int64_t row = min(first + r + i, rows - 1);
    cp_async16(to + (r + i) * kParts + (part ^ r % kParts), from + row * ld, valid);
  }
}
template <class S> struct Fragments {  // one mma step: 32 bytes of k
  uint32_t a[S::kM][4], b[S::kN / 2][4];
  // Operands of the mma step at byte k * 32.
  __device__ __forceinline__ void load(const Bytes* rows, const Bytes* columns, int k) {
    const int lane = int(threadIdx.x) % 32;
    const Bytes* const from = rows + lane % 16 * kParts + ((k * 2 + lane / 16) ^ lane % kParts);
    const Bytes* const other = columns + (lane / 16 * 8 + lane % 8) * kParts + ((k * 2 + lane / 8 % 2) ^ lane % kParts);
#pragma unroll
    for (int i = 0; i < S::kM; ++i) ldmatrix_x4(a[i], from + i * 16 * kParts);
#pragma unroll
    for (int j = 0; j < S::kN / 2; ++j) ldmatrix_x4(b[j], other + j * 16 * kParts);
  }
  __device__ __forceinline__ void multiply(int (&sums)[S::kM][S::kN][4]) const {
#pragma unroll
    for (int i = 0; i < S::kM; ++i)
#pragma unroll
      for (int j = 0; j < S::kN; ++j) mma_s8(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
};

template <class S, class T> __global__ void __launch_bounds__(S::kThreads, S::kBlocks) int8_product(Product p, T* y) {
  std::byte* const shared = dynamic_shared<std::byte>();
  const auto stage = [shared](int s) { return reinterpret_cast<Bytes*>(shared + s * S::kStageBytes); };
  const TileOrigin at(p, S::kRows, S::kColumns, blockIdx.x);
  const int64_t first = at.row, left = at.column;
  const auto steps = int((p.k + kDepth - 1) / kDepth);
  const auto load = [&](int step, int s) {
    if (step < steps) {
      const int64_t k = int64_t(step) * kDepth;
      load_rows<S::kRows, S::kThreads>(stage(s), p.x, p.ld_x, first, p.m, k, p.k);
      load_rows<S::kColumns, S::kThreads>(stage(s) + S::kRows * kParts, p.weight, p.ld_weight, left, p.n, k, p.k);
    }
    cp_async_commit();
  };
  for (int s = 0; s < S::kStages - 1; ++s) load(s, s);
  int sums[S::kM][S::kN][4] = {};
  const int warp = int(threadIdx.x) / 32;
  int now = 0;
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<S::kStages - 2>();
    __syncthreads();  // stage has arrived; no thread reads the last one
    load(step + S::kStages - 1, now == 0 ? S::kStages - 1 : now - 1);
    const Bytes* const rows = stage(now) + warp / S::kAcross * S::kM * 16 * kParts;
    const Bytes* const columns = stage(now) + (S::kRows + warp % S::kAcross * S::kN * 8) * kParts;
    Fragments<S> part[2];
    part[0].load(rows, columns, 0);
#pragma unroll
    for (int k = 0; k < kDepth / 32; ++k) {
      if (k + 1 < kDepth / 32) part[(k + 1) % 2].load(rows, columns, k + 1);
      part[k % 2].multiply(sums);
    }
    now = now + 1 == S::kStages ? 0 : now + 1;
  }
  cp_async_wait<0>();
  static_assert(S::kSharedBytes >= Results<S, T>::kBytes);
  Results<S, T>::store(p, sums, y, shared, first, left);
}

// --- operands that are not rows of whole 16 bytes
constexpr int kThreads = 256;
// to (rows, padded): (i, j) is at i * row_step + j * step; zeros from k on.
__global__ void __launch_bounds__(kThreads)
    pad_rows(const int8_t* from, int64_t row_step, int64_t step, int64_t rows, int64_t k, int64_t padded, int8_t* to) {
  const int64_t parts = padded / 16;
  for (GridLoop g(rows * parts); g; ++g) {
    const int64_t row = *g / parts, first = (*g - row * parts) * 16;
    Bytes v;
#pragma unroll
    for (int e = 0; e < 16; ++e) v.x[e] = first + e < k ? from[row * row_step + (first + e) * step] : int8_t(0);
    store16(to + *g * 16, v);
  }
}
__global__ void __launch_bounds__(kThreads)
    turn_rows(const int8_t* from, int64_t step, int64_t rows, int64_t k, int64_t padded, int8_t* to, bool vectors) {
  using Tile = TransposeTile<16>;
  __shared__ __align__(16) Tile tile;
  const int64_t across = (rows + Tile::kWide - 1) / Tile::kWide, down = (padded + Tile::kTall - 1) / Tile::kTall;
  for (int64_t t = blockIdx.x; t < across * down; t += gridDim.x) {
    const int64_t left = t % across * Tile::kWide, first = t / across * Tile::kTall;
    const int64_t i = left + Tile::pack() * 16, j = first + Tile::group() * 4;
    Bytes v[4];
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      if (vectors && j + l < k && i < rows) {
        v[l] = load16(from + (j + l) * step + i);
        continue;
      }
#pragma unroll
      for (int e = 0; e < 16; ++e) v[l].x[e] = j + l < k && i + e < rows ? from[(j + l) * step + i + e] : int8_t(0);
    }
    __syncthreads();  // the last tile is stored
#pragma unroll
    for (int e = 0; e < 16; ++e) tile.put(e, {v[0].x[e], v[1].x[e], v[2].x[e], v[3].x[e]});
    __syncthreads();
    tile.store(to + left * padded + first, padded, rows - left, padded - first, true);
  }
}

// An operand's memory, or a padded copy.
class Operand {
 public:
  const int8_t* data;
  int64_t ld;
  Operand(const Context& c, const int8_t* p, int64_t rows, int64_t k, int64_t row_step, int64_t step)
      : data(p), ld(rows == 1 ? k : row_step) {
    if (k == 0 || (step == 1 && ld % 16 == 0 && k % 16 == 0 && aligned16(p))) return;
    const int64_t padded = (k + 15) / 16 * 16;
    copy_.emplace(c, size_t(rows * padded));
    auto* const to = copy_->as<int8_t>();
    if (row_step == 1 && step != 1)
      launch(c, turn_rows, blocks_for(c, (rows + 127) / 128 * ((padded + 127) / 128), 1), kThreads, 0, p, step, rows, k,
             padded, to, aligned16(p) && step % 16 == 0 && rows % 16 == 0);
    else
      launch(c, pad_rows, blocks_for(c, rows * padded / 16, kThreads), kThreads, 0, p, row_step, step, rows, k, padded,
             to);
    data = to, ld = padded;
  }

 private:
  std::optional<Scratch> copy_;
};

// --- cuBLASLt
// y = scaled accumulators, V columns per thread.
template <int V, class T> __global__ void __launch_bounds__(kThreads) scale_sums(Product p, const int32_t* sums, T* y) {
  const int64_t packs = p.n / V;
  for (GridLoop g(p.m * packs); g; ++g) {
    const int64_t row = *g >> 32 == 0 ? int64_t(uint32_t(*g) / uint32_t(packs)) : *g / packs;
    const int64_t column = (*g - row * packs) * V;
    const auto sum = load16<V>(sums + *g * V);
    const float absmax = p.absmax_x[row * p.step_x];
    Vec<T, V> v;
#pragma unroll
    for (int e = 0; e < V; ++e)
      v.x[e] = narrow<T>(
          scaled(sum.x[e], absmax, p.absmax_weight[(column + e) * p.step_weight], p.bias ? p.bias[column + e] : 0.0f));
    store16(y + *g * V, v);
  }
}
// True if TG_INT8_PRODUCTS names this method. Shapes that it does not support use another.
bool wanted(std::string_view way) {
  const char* const how = std::getenv("TG_INT8_PRODUCTS");
  return how && how == way;
}
template <class T> void multiply_by_library(const Context& c, Product p, T* y) {
  constexpr int64_t kMostRows = 65536;
  Gemm g;
  g.dtype = DType::i8, g.n = p.n, g.k = p.k;
  g.b = {.data = p.weight, .ld = p.ld_weight, .transposed = true};
  const auto sum = [&](const Product& part, int32_t* to) {
    g.m = part.m, g.a = {.data = part.x, .ld = part.ld_x}, g.out = to;
    gemm(c, g);
  };
  if constexpr (std::is_same_v<T, int32_t>) {
    sum(p, y);
  } else {
    const int64_t rows = std::min(p.m, kMostRows);
    const Scratch sums(c, size_t(rows * p.n) * 4);
    for (int64_t first = 0; first < p.m; first += rows) {
      Product part = p;
      part.m = std::min(rows, p.m - first), part.x = p.x + first * p.ld_x;
      part.absmax_x = p.absmax_x + first * p.step_x;
      sum(part, sums.as<int32_t>());
      T* const to = y + first * p.n;
      const bool packs = aligned16(to);
      launch(c, packs ? scale_sums<4, T> : scale_sums<1, T>, blocks_for(c, part.m * p.n / (packs ? 4 : 1), kThreads),
             kThreads, 0, part, sums.as<const int32_t>(), to);
    }
  }
}

template <class S> int64_t tiles(const Product& p) {
  return (p.m + S::kRows - 1) / S::kRows * ((p.n + S::kColumns - 1) / S::kColumns);
}
template <class T> void multiply(const Context& c, Product p, T* y) {
  if (wanted("cublaslt") && p.k > 0 && p.n % 4 == 0) return multiply_by_library(c, p, y);
  p.wide = p.n % kVec<T> == 0 && aligned16(y);
  const auto run = [&]<class S>() {
    launch(c, int8_product<S, T>, dim3(unsigned(tiles<S>(p))), S::kThreads, S::kSharedBytes, p, y);
  };
  if (tiles<Large>(p) * 2 <= properties(c.device.index).multiprocessors)  // would idle most SMs
    return run.template operator()<Small>();
  const bool fits = p.k > 0 && std::max(p.m, p.n) < int64_t(1) << 31;  // TMA counts rows in 32 bits
  if (fits && !wanted("mma") && has_wgmma<T>(c)) return multiply_by_wgmma(c, p, y);
  has_shared(c, Large::kSharedBytes) ? run.template operator()<Large>() : run.template operator()<Compact>();
}
void int8_linear(const op::Int8Linear&, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &w = in[1], &y = out[0];
  if (y.numel() == 0) return;
  Product p;
  p.n = w.size(0), p.m = y.numel() / p.n;
  const int64_t k = w.size(1);
  const Strided<1> rows(Shape(x.shape().begin(), x.shape().end() - 1),
                        {Strides(x.strides().begin(), x.strides().end() - 1)});
  const int8_t* from = x.data<int8_t>();
  int64_t row_step = rows.dims ? rows.stride[0][0] : k, step = x.strides().back();
  std::optional<Dense<int8_t>> copy;
  if (rows.dims > 1) from = copy.emplace(c, x), row_step = k, step = 1;
  const Operand a(c, from, p.m, k, row_step, step);
  const Operand b(c, w.data<int8_t>(), p.n, k, w.strides()[0], w.strides()[1]);
  p.k = (k + 15) / 16 * 16;
  p.x = a.data, p.ld_x = a.ld, p.weight = b.data, p.ld_weight = b.ld;
  if (in.size() == 2) return multiply(c, p, y.data<int32_t>());
  const Dense<float> absmax_x(c, in[2]), absmax_weight(c, in[3]);
  std::optional<Dense<float>> bias;
  if (in.size() > 4) p.bias = bias.emplace(c, in[4]);
  p.absmax_x = absmax_x, p.step_x = in[2].numel() == 1 ? 0 : 1;
  p.absmax_weight = absmax_weight, p.step_weight = in[3].numel() == 1 ? 0 : 1;
  tg::detail::visit_quantizable(y.dtype(), [&]<class T>() { multiply(c, p, y.data<T>()); });
}
TG_STRIDED_KERNEL(op::Int8Linear, cuda, int8_linear);
}  // namespace
}  // namespace tg::cuda
