// cuBLASLt's fp8 GEMMs, else TF32, which represents fp8 values and products exactly; a pass scales the accumulators.
#include <tapegrad/cuda/device/quantize_tiles.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/gemm/gemm_fp8.h>
#include <tapegrad/ops/quantized/fp8_codes.h>
#include <tapegrad/ops/quantized/inputs.h>

#include <algorithm>
#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

// fp8_of(), by one instruction where possible.
template <Fp8Format f> __device__ __forceinline__ uint8_t nearest(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, f == Fp8Format::e4m3 ? __NV_E4M3 : __NV_E5M2);
#else
  return fp8_of<f>(x);
#endif
}
// fp8_code_of() without divisions.
template <Fp8Format f> class Fp8Quantizer {
 public:
  using Value = uint8_t;
  // Exact powers of 2 move scales towards 1.
  __device__ __forceinline__ explicit Fp8Quantizer(uint32_t absmax) {
    const float s = fp8_scale<f>(math::detail::float_of(absmax));
    factor_ = s < 0x1p-60f ? 0x1p80f : s > 0x1p60f ? 0x1p-80f : 1.0f;
    scale_ = s > 0 ? s * factor_ : 1.0f;
    inverse_ = reciprocal(scale_);
    kept_ = s > 0 ? 0xff : 0;
  }
  // Equals division at every rounding boundary: tested for all scales. Loses the sign of zeros.
  __device__ __forceinline__ uint8_t operator()(float x) const {
    const uint32_t size = math::detail::bits_of(quotient(x * factor_, scale_, inverse_)) & 0x7fffffffu;
    return nearest<f>(math::detail::float_of(size | (math::detail::bits_of(x) & 0x80000000u))) & kept_;
  }

 private:
  float scale_, inverse_, factor_;
  uint8_t kept_;
};

// The bits as f32 have the right fraction; multiplication corrects the exponent.
template <Fp8Format f> __device__ __forceinline__ float decoded(uint8_t code) {
  constexpr uint32_t kPower = uint32_t(127 - Fp8<f>::kBias + 127) << 23;
  const uint32_t u = (code & 0x80u) << 24 | (code & 0x7fu) << (23 - Fp8<f>::kFraction);
  return math::detail::float_of(u) * math::detail::float_of(kPower);
}
// Without absmax: unscaled values.
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
struct Sums {
  const float* p = nullptr;
  const float *absmax_x = nullptr, *absmax_weight = nullptr;  // null: already scaled
  float largest_x = 1, largest_weight = 1;
  const float* bias = nullptr;  // null: none
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

// --- host
template <class G> void visit(Fp8Format format, DType d, G&& g) {
  visit_format(format, [&]<Fp8Format f>() {
    tg::detail::visit_quantizable(d, [&]<class T>() { g.template operator()<f, T>(); });
  });
}
void quantize_fp8(const op::QuantizeFp8& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &absmax = out[1];
  if (x.numel() == 0) return clear(c, first_element(absmax), int64_t(absmax.layout->bytes()));
  const NonFiniteCheck watch(c, x, DType::f32);
  visit(op.format, x.dtype(), [&]<Fp8Format f, class T>() { quantize_rows_of<Fp8Quantizer<f>, T>(c, x, out, watch); });
}
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

void decode_plain(const Context& c, Fp8Format format, const uint8_t* codes, int64_t rows, int64_t n, float* to) {
  if (rows * n == 0) return;
  visit_format(format, [&]<Fp8Format f>() { decode<f, float>(c, codes, nullptr, rows, n, to); });
}
float largest_of(Fp8Format f) {
  return f == Fp8Format::e4m3 ? Fp8<Fp8Format::e4m3>::kLargest : Fp8<Fp8Format::e5m2>::kLargest;
}
constexpr int64_t kMostRows = 16384;
size_t bytes_of(int64_t floats) { return size_t(std::max<int64_t>(floats, 1)) * 4; }
struct Product {
  Fp8Format of_x, of_weight;
  int64_t m, n, k;
  const uint8_t *x, *weight;
  const float *absmax_x, *absmax_weight, *bias;
};
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
  const int64_t most = std::min(p.m, kMostRows);  // cuBLASLt would round the bias
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
