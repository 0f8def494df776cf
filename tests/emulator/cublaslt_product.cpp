#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <tapegrad/emulator/cublaslt_internal.h>

namespace simt::lt {
namespace {
using engine::Access;

// Fraction bits, exponent of the least normal number, largest finite number.
struct Fp8 {
  int fraction, least;
  double largest;
};
constexpr Fp8 e4m3{3, -6, 448}, e5m2{2, -14, 57344};

double from_fp8(std::uint8_t bits, const Fp8& f) {
  const int e = (bits & 0x7f) >> f.fraction, m = bits & ((1 << f.fraction) - 1);
  if (f.fraction == 3 && (bits & 0x7f) == 0x7f) return NAN;
  if (f.fraction == 2 && e == 31) return m ? NAN : bits & 0x80 ? -INFINITY : INFINITY;
  const double unit = std::ldexp(1.0, f.least - f.fraction);
  const double x = e == 0 ? m * unit : std::ldexp((m + (1 << f.fraction)) * unit, e - 1);
  return bits & 0x80 ? -x : x;
}
std::uint8_t to_fp8(double x, const Fp8& f) {  // nearest even, saturated
  if (x != x) return 0x7f;
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const double a = std::min(std::abs(x), f.largest);
  int e = a > 0 ? std::max(std::ilogb(a), f.least) : f.least;
  auto m = int(std::nearbyint(std::ldexp(a, f.fraction - e)));  // includes the leading one
  if (m == 2 << f.fraction) ++e, m /= 2;
  const int exponent = m < 1 << f.fraction ? 0 : e - f.least + 1;
  return std::uint8_t(sign | exponent << f.fraction | (m & ((1 << f.fraction) - 1)));
}

template <class T> T at(const void* p, std::int64_t i) {
  T x;
  std::memcpy(&x, static_cast<const char*>(p) + i * std::int64_t(sizeof(T)), sizeof(T));
  return x;
}
double load(cudaDataType t, const void* p, std::int64_t i) {
  switch (t) {
    case CUDA_R_64F: return at<double>(p, i);
    case CUDA_R_32F: return at<float>(p, i);
    case CUDA_R_16F: return double(at<_Float16>(p, i));
    case CUDA_R_16BF: return float(at<__nv_bfloat16>(p, i));
    case CUDA_R_32I: return at<std::int32_t>(p, i);
    case CUDA_R_8I: return at<std::int8_t>(p, i);
    case CUDA_R_8F_E4M3: return from_fp8(at<std::uint8_t>(p, i), e4m3);
    case CUDA_R_8F_E5M2: return from_fp8(at<std::uint8_t>(p, i), e5m2);
  }
  return NAN;
}
template <class T> void put(void* p, std::int64_t i, T x) {
  std::memcpy(static_cast<char*>(p) + i * std::int64_t(sizeof(T)), &x, sizeof(T));
}
template <class T> T to_integer(double x) {  // nearest even, saturated
  constexpr double lo = std::numeric_limits<T>::min(), hi = std::numeric_limits<T>::max();
  return x != x ? T(0) : T(std::clamp(std::nearbyint(x), lo, hi));
}
void store(cudaDataType t, void* p, std::int64_t i, double x) {
  switch (t) {
    case CUDA_R_64F: return put(p, i, x);
    case CUDA_R_32F: return put(p, i, float(x));
    case CUDA_R_16F: return put(p, i, _Float16(float(x)));
    case CUDA_R_16BF: return put(p, i, __nv_bfloat16(float(x)));
    case CUDA_R_32I: return put(p, i, to_integer<std::int32_t>(x));
    case CUDA_R_8I: return put(p, i, to_integer<std::int8_t>(x));
    case CUDA_R_8F_E4M3: return put(p, i, to_fp8(x, e4m3));
    case CUDA_R_8F_E5M2: return put(p, i, to_fp8(x, e5m2));
  }
}

double to_tf32(double x) {
  auto u = std::bit_cast<std::uint32_t>(float(x));
  if ((u & 0x7f800000u) != 0x7f800000u) u = (u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu;
  return std::bit_cast<float>(u);
}
double rounded(cublasComputeType_t c, double x) {
  switch (c) {
    case CUBLAS_COMPUTE_32F_FAST_TF32: return to_tf32(x);
    case CUBLAS_COMPUTE_32F_FAST_16BF: return float(__nv_bfloat16(float(x)));
    case CUBLAS_COMPUTE_32F_FAST_16F: return double(_Float16(float(x)));
    default: return x;
  }
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
  const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

class Run {
 public:
  Run(const Problem& problem, const Operands& operands, double alpha, double beta, const engine::Operation& op)
      : p(problem), x(operands), alpha_(alpha), beta_(beta), op_(op) {}

  void all() {
    touch(x.workspace, x.workspace_used, Access::write);
    if (p.desc.pointers == CUBLASLT_POINTER_MODE_DEVICE) {
      touch(x.alpha, bytes_of(p.desc.scale), Access::read);
      touch(x.beta, bytes_of(p.desc.scale), Access::read);
      if (engine::failed()) return;
      alpha_ = scalar(p.desc.scale, x.alpha);
      beta_ = scalar(p.desc.scale, x.beta);
    }
    for (std::int64_t i = 0; i < p.d.batch && !engine::failed(); ++i) one(i);
  }

 private:
  const Problem& p;
  const Operands& x;
  double alpha_, beta_;
  const engine::Operation& op_;

  void touch(const void* at, std::size_t bytes, Access a) const {
    engine::library_access(at, bytes, a, op_, "cublasLtMatmul");
  }
  static char* matrix(const Layout& l, const void* at, std::int64_t i) {
    return static_cast<char*>(const_cast<void*>(at)) + i * l.stride * std::int64_t(bytes_of(l.type));
  }
  void touch(const Layout& l, const char* at, Access a) const {
    const std::size_t size = bytes_of(l.type);
    auto length = std::int64_t(l.order == CUBLASLT_ORDER_COL ? l.rows : l.cols),
         lines = std::int64_t(l.order == CUBLASLT_ORDER_COL ? l.cols : l.rows);
    if (length == l.ld) length *= std::exchange(lines, 1);
    for (std::int64_t k = 0; k < lines && !engine::failed(); ++k)
      touch(at + std::size_t(k * l.ld) * size, std::size_t(length) * size, a);
  }
  float scale(const float* scales, std::int64_t i) const {
    if (!scales) return 1;
    touch(scales + i, 4, Access::read);
    return !engine::failed() ? scales[i] : 0;
  }
  // Row i of op(A) or op(B)^T.
  float scale(const float* scales, int mode, std::int64_t rows, std::int64_t i, std::int64_t k) const {
    switch (mode) {
      case CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: return scale(scales, i);
      case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: return scale(scales, i + rows * (k / 128));
      case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: {
        const std::int64_t blocks = (std::int64_t(p.k()) + 127) / 128;
        return scale(scales, k / 128 + i / 128 * ((blocks + 3) / 4 * 4));
      }
      default: return scale(scales, 0);
    }
  }
  // Rows of op(A) or op(B)^T.
  std::vector<double> gather(const Layout& l, const char* at, bool row_of_l, const float* scales, int mode) const {
    const auto k = std::int64_t(p.k()), rows = std::int64_t(row_of_l ? l.rows : l.cols);
    const std::int64_t step = row_of_l ? l.down() : l.across(), inner = row_of_l ? l.across() : l.down();
    std::vector<double> r(std::size_t(rows * k));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < k; ++j) {
        double v = rounded(p.desc.compute, load(l.type, at, i * step + j * inner));
        if (scales) v *= scale(scales, mode, rows, i, j);
        r[std::size_t(i * k + j)] = v;
      }
    return r;
  }
  void vector_of_sums(std::int64_t n, auto&& sum) const {
    const cudaDataType t = p.bias_type();
    touch(p.desc.bias, std::size_t(n) * bytes_of(t), Access::write);
    for (std::int64_t i = 0; i < n && !engine::failed(); ++i) store(t, p.desc.bias, i, sum(i));
  }
  double alpha_of(std::int64_t i) const {
    return p.desc.pointers == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST ? load(p.desc.scale, x.alpha, i)
                                                                                  : alpha_;
  }

  void one(std::int64_t batch) {
    const Desc& o = p.desc;
    const auto m = std::int64_t(p.m()), n = std::int64_t(p.n()), k = std::int64_t(p.k());
    const char *a = matrix(p.a, x.a, batch), *b = matrix(p.b, x.b, batch), *c = matrix(p.c, x.c, batch);
    char* d = matrix(p.d, x.d, batch);
    const std::uint32_t e = o.epilogue;
    const bool uses_bias = e < 128 ? e & 4 : e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    const bool slope = e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD;
    const bool aux = e < 256 && e & 128;
    touch(p.a, a, Access::read);
    touch(p.b, b, Access::read);
    if (beta_ != 0) touch(p.c, c, Access::read);
    touch(p.d, d, Access::write);
    if (o.pointers == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST)
      touch(x.alpha, std::size_t(m) * bytes_of(o.scale), Access::read);
    if (uses_bias) touch(o.bias, std::size_t(m) * bytes_of(p.bias_type()), Access::read);
    const Layout aux_layout{p.d.type, p.d.rows, p.d.cols, o.aux_ld};
    if (aux) touch(aux_layout, static_cast<char*>(o.aux), slope ? Access::read : Access::write);
    if (engine::failed()) return;

    const auto rows_a = gather(p.a, a, o.trans_a == CUBLAS_OP_N, o.scale_a, o.scale_mode_a),
               rows_b = gather(p.b, b, o.trans_b != CUBLAS_OP_N, o.scale_b, o.scale_mode_b);
    const float scale_d = scale(o.scale_d, 0);
    std::vector<double> row_sums(std::size_t(m), 0);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        const double *u = &rows_a[std::size_t(i * k)], *w = &rows_b[std::size_t(j * k)];
        for (std::int64_t s = 0; s < k; ++s) sum += u[s] * w[s];
        double v = alpha_of(i) * sum;
        if (beta_ != 0) v += beta_ * load(p.c.type, c, i * p.c.down() + j * p.c.across());
        if (uses_bias) v += load(p.bias_type(), o.bias, i);
        if (aux && !slope) store(p.d.type, o.aux, i + j * o.aux_ld, v);
        if (e < 128 && e & 2) v = std::max(v, 0.0);
        if (e < 256 && e & 32) v = gelu(v);
        if (slope) v *= gelu_slope(load(p.d.type, o.aux, i + j * o.aux_ld));
        row_sums[std::size_t(i)] += v;
        store(p.d.type, d, i * p.d.down() + j * p.d.across(), v * scale_d);
      }
    const auto row_sum = [&](const std::vector<double>& v) {
      return [&](std::int64_t i) {
        double s = 0;
        for (std::int64_t j = 0; j < k; ++j) s += v[std::size_t(i * k + j)];
        return s;
      };
    };
    if (e == CUBLASLT_EPILOGUE_BGRADA) vector_of_sums(m, row_sum(rows_a));
    if (e == CUBLASLT_EPILOGUE_BGRADB) vector_of_sums(n, row_sum(rows_b));
    if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD) vector_of_sums(m, [&](std::int64_t i) { return row_sums[std::size_t(i)]; });
  }
};

}  // namespace

double scalar(cudaDataType t, const void* p) { return load(t, p, 0); }

void run_product(const Problem& p, const Operands& x, double alpha, double beta, const engine::Operation& op) {
  Run(p, x, alpha, beta, op).all();
}

}  // namespace simt::lt
