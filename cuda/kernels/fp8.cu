// Kernels of ops/quantized/fp8.h. Rows that fit in registers are read once. A matrix whose columns lie together takes
// two passes, of magnitudes and of codes. Products are the library's of 8-bit floats where it has them. Else they are
// those of TF32, in which codes and their products are exact: codes become f32 in memory, and a pass scales the sums.
#include <tapegrad/cuda/device/code_tiles.h>
#include <tapegrad/cuda/device/rows.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/gemm/gemm_fp8.h>
#include <tapegrad/ops/quantized/fp8_codes.h>

#include <algorithm>
#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

// fp8_of(), by one instruction where the GPU has it.
template <Fp8Format f> __device__ __forceinline__ uint8_t nearest(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, f == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2);
#else
  return fp8_of<f>(x);
#endif
}
// fp8_code_of() by the absmax of a row, without a division for each element.
template <Fp8Format f> class Fp8Coder {
 public:
  // Scales far from 1 are made nearer, exactly: what that cuts off has code 0.
  __device__ __forceinline__ explicit Fp8Coder(uint32_t absmax) {
    const float s = fp8_scale<f>(math::detail::float_of(absmax));
    factor_ = s < 0x1p-60f ? 0x1p80f : s > 0x1p60f ? 0x1p-80f : 1.0f;
    scale_ = s > 0 ? s * factor_ : 1.0f;
    inverse_ = reciprocal(scale_);
    kept_ = s > 0 ? 0xff : 0;
  }
  // quotient() is the division's result wherever two codes meet: all scales were tried. It loses the sign of zeros.
  __device__ __forceinline__ uint8_t operator()(float x) const {
    const uint32_t size = math::detail::bits_of(quotient(x * factor_, scale_, inverse_)) & 0x7fffffffu;
    return nearest<f>(math::detail::float_of(size | (math::detail::bits_of(x) & 0x80000000u))) & kept_;
  }

 private:
  float scale_, inverse_, factor_;
  uint8_t kept_;
};

template <Fp8Format f, class S>
__global__ void __launch_bounds__(S::kBlock) encode_rows(const typename S::T* x, int64_t step, uint8_t* codes,
                                                         float* absmax, int64_t rows, int64_t n, Watch watch) {
  using T = typename S::T;
  using Pack = Vec<T, S::V>;
  for (int64_t r = first_row<S>(); r < rows; r += row_step<S>()) {
    const T* p = x + r * step;
    Pack kept[S::kKept ? S::kPacks : 1];
    const auto read = [&](int k, int64_t j) { kept[k] = load16<S::V>(p + j); };
    const auto pack = [&](int k, int64_t j) -> const Pack& {
      if constexpr (!S::kKept) read(k, j);
      return kept[k];
    };
    if constexpr (S::kKept) each_pack<S>(n, read);
    uint32_t most = 0;
    each_pack<S>(n, [&](int k, int64_t j) {
      const Pack& v = pack(k, j);
#pragma unroll
      for (int e = 0; e < S::V; ++e) most = larger(most, magnitude(v.x[e]));
    });
    const uint32_t of_row = as_f32<T>(block_all<MaxOp, S::kThreads>(most, 0u));
    const Fp8Coder<f> code(of_row);
    each_pack<S>(n, [&](int k, int64_t j) {
      const Pack& v = pack(k, j);
      Vec<uint8_t, S::V> q;
#pragma unroll
      for (int e = 0; e < S::V; ++e) q.x[e] = code(value(v.x[e]));
      store16(codes + r * n + j, q);
    });
    if (threadIdx.x % S::kThreads == 0) absmax[r] = math::detail::float_of(of_row);
    if (watch.bad(of_row))
#pragma unroll 1
      for (int64_t j = threadIdx.x % S::kThreads; j < n; j += S::kThreads) watch(p[j], r * n + j);
  }
}
// g with the RowShape: packs are kept as they were read, so 16-bit floats have room for twice as many.
template <class T, class G> void visit_shape(int64_t n, bool vectors, G&& g) {
  constexpr int V = kVec<T>;
  if (vectors) {
    if (n <= 512) return g.template operator()<RowShape<T, 32, V, 16 / V>>();
    if (n <= 2048) return g.template operator()<RowShape<T, 32, V, 64 / V>>();
    if (n <= 8192) return g.template operator()<RowShape<T, 256, V, 32 / V>>();
    if (n <= 32768) return g.template operator()<RowShape<T, 1024, V, 32 / V>>();
    return g.template operator()<RowShape<T, 512, V, 0>>();
  }
  if (n <= 512) return g.template operator()<RowShape<T, 128, 1, 4>>();
  return g.template operator()<RowShape<T, 512, 1, 0>>();
}

// The columns of x, coded by their magnitudes, as rows of codes. wide: as TurnedTile stores.
template <Fp8Format f, class T>
__global__ void __launch_bounds__(kTileThreads)
    encode_columns(Matrix<T> x, const uint32_t* absmax, int8_t* codes, bool wide) {
  constexpr int V = kVec<T>;
  using Tile = TurnedTile<V>;
  static_assert(Tile::kThreads == kTileThreads);
  __shared__ __align__(16) Tile tile;
  const int64_t across = (x.cols + Tile::kWide - 1) / Tile::kWide,
                tiles = across * ((x.rows + Tile::kTall - 1) / Tile::kTall);
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t first = t / across * Tile::kTall, left = t % across * Tile::kWide;
    const int64_t i = first + Tile::group() * 4, j = left + Tile::pack() * V;
    Vec<T> v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = x.at(i + k, j);
    __syncthreads();  // the last tile was stored
#pragma unroll
    for (int e = 0; e < V; ++e) {
      if (j + e >= x.cols) continue;
      const Fp8Coder<f> code(absmax[j + e]);
      Vec<int8_t, 4> q;
#pragma unroll
      for (int k = 0; k < 4; ++k) q.x[k] = int8_t(code(value(v[k].x[e])));
      tile.put(e, q);
    }
    __syncthreads();
    tile.store(codes + left * x.rows + first, x.rows, x.cols - left, x.rows - first, wide);
  }
}

// value_of_fp8(): as bits of an f32 a code has its fraction, and an exponent that one multiplication puts right.
template <Fp8Format f> __device__ __forceinline__ float decoded(uint8_t code) {
  constexpr uint32_t kPower = uint32_t(127 - Fp8<f>::kBias + 127) << 23;
  const uint32_t u = (code & 0x80u) << 24 | (code & 0x7fu) << (23 - Fp8<f>::kFraction);
  return math::detail::float_of(u) * math::detail::float_of(kPower);
}
// Without absmax, codes as they are.
template <Fp8Format f, class T, int V>
__global__ void __launch_bounds__(kThreads)
    decode_packs(const uint8_t* codes, const float* absmax, int64_t n, int64_t packs, T* y) {
  for (GridLoop g(packs); g; ++g) {
    const int64_t at = *g * V;
    const int64_t row = at >> 32 == 0 && n >> 32 == 0 ? int64_t(uint32_t(at) / uint32_t(n)) : at / n;
    const auto q = load16<V>(codes + *g * V);
    const float scale = absmax ? fp8_scale<f>(absmax[row]) : 1.0f;
    Vec<T, V> v;
#pragma unroll
    for (int e = 0; e < V; ++e) v.x[e] = narrow<T>(decoded<f>(q.x[e]) * scale);
    store16(y + *g * V, v);
  }
}

__global__ void __launch_bounds__(kThreads)
    scales_of(const float* x, float largest_x, int64_t m, const float* weight, float largest_weight, int64_t n,
              float* scale_x, float* scale_weight) {
  for (GridLoop g(m + n); g; ++g)
    if (*g < m)
      scale_x[*g] = x[*g] / largest_x;
    else
      scale_weight[*g - m] = weight[*g - m] / largest_weight;
}
// Sums of products, and what scales them. n: elements of a row, a multiple of V.
struct Sums {
  const float* p = nullptr;
  const float *absmax_x = nullptr, *absmax_weight = nullptr;  // null if the sums are scaled
  float largest_x = 1, largest_weight = 1;
  const float* bias = nullptr;  // null if none
  int64_t n = 0;
};
template <class T, int V> __global__ void __launch_bounds__(kThreads) scale_sums(Sums s, int64_t packs, T* y) {
  for (GridLoop g(packs); g; ++g) {
    const int64_t at = *g * V;
    const int64_t row = at >> 32 == 0 && s.n >> 32 == 0 ? int64_t(uint32_t(at) / uint32_t(s.n)) : at / s.n;
    const int64_t j = at - row * s.n;
    const auto sum = load16<V>(s.p + *g * V);
    const float scale = s.absmax_x ? s.absmax_x[row] / s.largest_x : 0.0f;
    Vec<T, V> v;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const float bias = s.bias ? s.bias[j + e] : 0.0f;
      v.x[e] = narrow<T>(s.absmax_x ? scaled_fp8(sum.x[e], scale, s.absmax_weight[j + e] / s.largest_weight, bias)
                                    : sum.x[e] + bias);
    }
    store16(y + *g * V, v);
  }
}

// --- the host's side ----------------------------------------------------------------------------------------------
// g with the format and the type of floats.
template <class G> void visit(Fp8Format format, DType d, G&& g) {
  const auto with_type = [&]<Fp8Format f>() {
    if (d == DType::f32)
      g.template operator()<f, float>();
    else if (d == DType::bf16)
      g.template operator()<f, bf16>();
    else
      g.template operator()<f, f16>();
  };
  if (format == Fp8Format::e4m3)
    with_type.template operator()<Fp8Format::e4m3>();
  else
    with_type.template operator()<Fp8Format::e5m2>();
}
void clear(const Context& c, void* p, int64_t bytes) {
  if (bytes > 0) check(cudaMemsetAsync(p, 0, size_t(bytes), stream_of(c.device.index)), c.op, "clearing");
}
// x (M, N) lies in columns, absmax is (M), codes are (M, N).
template <Fp8Format f, class T>
void quantize_columns(const Context& c, const Buf& x, uint32_t* absmax, uint8_t* codes, const Watch& watch) {
  using Tile = TurnedTile<kVec<T>>;
  const int64_t rows = x.size(1), cols = x.size(0), ld = x.strides()[1];
  const T* const p = x.data<T>();
  const bool vectors = aligned16(p) && ld % kVec<T> == 0 && cols % kVec<T> == 0;
  const Matrix<T> m{p, rows, cols, ld, vectors, 1, rows};
  clear(c, absmax, cols * 4);
  const int64_t across = (cols + kStretch<T> - 1) / kStretch<T>;
  int64_t tall = 128;
  while (tall < kTallest && across * ((rows + tall - 1) / tall) > blocks_for(c, int64_t(1) << 40, 1)) tall *= 2;
  launch(c, largest_in_tiles<Of::columns, T>, blocks_for(c, across * ((rows + tall - 1) / tall), 1), kTileThreads, 0, m,
         tall, nullptr, absmax, watch);
  const int64_t tiles = (cols + Tile::kWide - 1) / Tile::kWide * ((rows + Tile::kTall - 1) / Tile::kTall);
  launch(c, encode_columns<f, T>, blocks_for(c, tiles, 1), kTileThreads, 0, m, absmax, reinterpret_cast<int8_t*>(codes),
         rows % 16 == 0 && aligned16(codes));
}
void quantize_fp8(const op::QuantizeFp8& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &absmax = out[1];
  const int64_t rows = absmax.numel(), n = x.shape().back();
  uint8_t* const codes = out[0].data<uint8_t>();
  float* const most = absmax.data<float>();
  if (x.numel() == 0) return clear(c, most, rows * 4);
  const Watch watch(c, x, DType::f32);
  visit(op.format, x.dtype(), [&]<Fp8Format f, class T>() {
    if (x.shape().size() == 2 && x.strides()[0] == 1 && x.strides()[1] >= x.size(0) && x.strides()[1] > 1)
      return quantize_columns<f, T>(c, x, reinterpret_cast<uint32_t*>(most), codes, watch);
    const Strided<1> walk(Shape(x.shape().begin(), x.shape().end() - 1),
                          {Strides(x.strides().begin(), x.strides().end() - 1)});
    const bool in_place = walk.dims <= 1 && (x.strides().back() == 1 || n == 1);
    std::optional<Dense<T>> copy;
    if (!in_place) copy.emplace(c, x);
    const T* const p = in_place ? x.data<T>() : static_cast<const T*>(*copy);
    const int64_t step = in_place && walk.dims == 1 ? walk.stride[0][0] : n;
    visit_shape<T>(n, rows_in_vectors<T>(n, p, codes) && step % kVec<T> == 0, [&]<class S>() {
      launch_per_row<S>(c, rows, encode_rows<f, S>, p, step, codes, most, rows, n, watch);
    });
  });
}
// `rows` rows of n codes.
template <Fp8Format f, class T>
void decode(const Context& c, const uint8_t* codes, const float* absmax, int64_t rows, int64_t n, T* y) {
  constexpr int V = kVec<T>;
  const bool packs = n % V == 0 && aligned16(codes) && aligned16(y);
  const int64_t count = packs ? rows * n / V : rows * n;
  launch(c, packs ? decode_packs<f, T, V> : decode_packs<f, T, 1>, blocks_for(c, count, kThreads), kThreads, 0, codes,
         absmax, n, count, y);
}
void dequantize_fp8(const op::DequantizeFp8& op, Bufs in, Bufs out, Context& c) {
  const Buf& y = out[0];
  if (y.numel() == 0) return;
  const int64_t n = y.shape().back();
  const Dense<uint8_t> codes(c, in[0]);
  const Dense<float> absmax(c, in[1]);
  visit(op.format, y.dtype(),
        [&]<Fp8Format f, class T>() { decode<f, T>(c, codes, absmax, y.numel() / n, n, y.data<T>()); });
}

// Codes of an operand as f32, unscaled.
void decode_plain(const Context& c, Fp8Format format, const uint8_t* codes, int64_t rows, int64_t n, float* to) {
  if (rows * n == 0) return;
  if (format == Fp8Format::e4m3)
    decode<Fp8Format::e4m3, float>(c, codes, nullptr, rows, n, to);
  else
    decode<Fp8Format::e5m2, float>(c, codes, nullptr, rows, n, to);
}
float largest_of(Fp8Format f) {
  return f == Fp8Format::e4m3 ? Fp8<Fp8Format::e4m3>::kLargest : Fp8<Fp8Format::e5m2>::kLargest;
}
constexpr int64_t kMostRows = 16384;  // whose codes and sums lie in memory as f32 at a time
size_t bytes_of(int64_t floats) { return size_t(std::max<int64_t>(floats, 1)) * 4; }
struct Product {
  Fp8Format of_x, of_weight;
  int64_t m, n, k;
  const uint8_t *x, *weight;
  const float *absmax_x, *absmax_weight, *bias;  // bias: null if none
};
// Rows from `first` on of y, from sums of theirs.
template <class T> void finish(const Context& c, const Product& p, Sums s, int64_t first, int64_t rows, T* y) {
  T* const to = y + first * p.n;
  const bool packs = p.n % 4 == 0 && aligned16(to);
  const int64_t count = packs ? rows * p.n / 4 : rows * p.n;
  s.bias = p.bias, s.n = p.n;
  launch(c, packs ? scale_sums<T, 4> : scale_sums<T, 1>, blocks_for(c, count, kThreads), kThreads, 0, s, count, to);
}
template <class T> bool multiply_by_library(const Context& c, const Product& p, DType dtype, T* y) {
  if (!fp8_shape_fits(c, p.m, p.n, p.k) || !aligned16(p.x) || !aligned16(p.weight) || !aligned16(y)) return false;
  const Scratch scale_x(c, bytes_of(p.m)), scale_weight(c, bytes_of(p.n));
  launch(c, scales_of, blocks_for(c, p.m + p.n, kThreads), kThreads, 0, p.absmax_x, largest_of(p.of_x), p.m,
         p.absmax_weight, largest_of(p.of_weight), p.n, scale_x.as<float>(), scale_weight.as<float>());
  GemmFp8 g;
  g.m = p.m, g.n = p.n, g.k = p.k, g.of_x = p.of_x, g.of_weight = p.of_weight, g.x = p.x, g.weight = p.weight;
  g.scale_x = scale_x.as<float>(), g.scale_weight = scale_weight.as<float>(), g.dtype = dtype, g.out = y;
  if (!p.bias) return gemm_fp8(c, g);
  const int64_t most = std::min(p.m, kMostRows);  // the library would round the bias
  const Scratch sums(c, bytes_of(most * p.n));
  g.dtype = DType::f32, g.out = sums.as<void>();
  for (int64_t first = 0; first < p.m; first += most) {
    g.m = std::min(most, p.m - first), g.x = p.x + first * p.k, g.scale_x = scale_x.as<float>() + first;
    if (!gemm_fp8(c, g)) return false;
    finish(c, p, {.p = sums.as<const float>()}, first, g.m, y);
  }
  return true;
}
template <class T> void multiply_in_tf32(const Context& c, const Product& p, T* y) {
  const int64_t most = std::min(p.m, kMostRows);
  const Scratch x(c, bytes_of(most * p.k)), weight(c, bytes_of(p.n * p.k)), sums(c, bytes_of(most * p.n));
  decode_plain(c, p.of_weight, p.weight, p.n, p.k, weight.as<float>());
  Gemm g;
  g.products = MatmulPrecision::high, g.n = p.n, g.k = p.k, g.out = sums.as<float>();
  g.a = {.data = x.as<float>(), .ld = p.k}, g.b = {.data = weight.as<float>(), .ld = p.k, .transposed = true};
  for (int64_t first = 0; first < p.m; first += most) {
    g.m = std::min(most, p.m - first);
    decode_plain(c, p.of_x, p.x + first * p.k, g.m, p.k, x.as<float>());
    gemm(c, g);
    finish(c, p,
           {.p = sums.as<const float>(),
            .absmax_x = p.absmax_x + first,
            .absmax_weight = p.absmax_weight,
            .largest_x = largest_of(p.of_x),
            .largest_weight = largest_of(p.of_weight)},
           first, g.m, y);
  }
}
void fp8_linear(const op::Fp8Linear& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const int64_t n = in[1].size(0), k = in[1].size(1);
  const Dense<uint8_t> x(c, in[0]), weight(c, in[1]);
  const Dense<float> absmax_x(c, in[2]), absmax_weight(c, in[3]);
  std::optional<Dense<float>> bias;
  if (in.size() > 4) bias.emplace(c, in[4]);
  const Product p{op.of_x,
                  op.of_weight,
                  out[0].numel() / n,
                  n,
                  k,
                  x,
                  weight,
                  absmax_x,
                  absmax_weight,
                  bias ? static_cast<const float*>(*bias) : nullptr};
  visit(op.of_x, out[0].dtype(), [&]<Fp8Format, class T>() {
    T* const y = out[0].data<T>();
    if (!multiply_by_library(c, p, out[0].dtype(), y)) multiply_in_tf32(c, p, y);
  });
}
TG_STRIDED_KERNEL(op::QuantizeFp8, cuda, quantize_fp8);
TG_STRIDED_KERNEL(op::DequantizeFp8, cuda, dequantize_fp8);
TG_STRIDED_KERNEL(op::Fp8Linear, cuda, fp8_linear);
}  // namespace
}  // namespace tg::cuda
