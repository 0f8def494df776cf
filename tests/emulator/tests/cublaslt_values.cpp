// Explicit sums, and faults.
#include "cublaslt.h"

namespace {
std::vector<float> ramp(size_t n, int modulus, float scale) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = float(int(i * 7 % size_t(modulus)) - modulus / 2) * scale;
  return v;
}
// D (m x n) = A (k x m)^T B (k x n), column-major.
std::vector<double> expected(const std::vector<float>& a, const std::vector<float>& b, size_t m, size_t n, size_t k) {
  std::vector<double> d(m * n);
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j)
      for (size_t s = 0; s < k; ++s) d[i + j * m] += double(a[s + i * k]) * b[s + j * k];
  return d;
}
template <class T> void upload(char* to, const std::vector<float>& v) {
  std::vector<T> x(v.begin(), v.end());
  REQUIRE(cudaMemcpy(to, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
}
template <class T> std::vector<T> download(const char* from, size_t n) {
  std::vector<T> x(n);
  REQUIRE(cudaMemcpy(x.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
  return x;
}
}  // namespace

TEST_CASE("values of products: int8, fp8 with scales, epilogues") {
  const Arena arena(1 << 20);
  const auto a = ramp(32 * 32, 13, 1), b = ramp(32 * 32, 11, 1);
  const auto sums = expected(a, b, 32, 32, 32);
  SUBCASE("int8 to int32, and to int8 scaled and saturated") {
    Setup s = int8(CUDA_R_32I);
    upload<int8_t>(arena.p + s.a, a);
    upload<int8_t>(arena.p + s.b, b);
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto d = download<int32_t>(arena.p + s.d, 1024);
    for (size_t i = 0; i < d.size(); ++i) CHECK(d[i] == int32_t(sums[i]));
    s = int8(CUDA_R_8I);
    s.alpha = 1.5f;
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto e = download<int8_t>(arena.p + s.d, 1024);
    for (size_t i = 0; i < e.size(); ++i)
      CHECK(e[i] == int8_t(std::clamp(std::nearbyint(1.5 * sums[i]), -128.0, 127.0)));
  }
  SUBCASE("fp8: 1.5 and -0.25 in both formats, scaled by row and column") {
    std::vector<uint8_t> x(1024, 0x3c), y(1024, 0xb4);  // 1.5 in e4m3; -0.25 in e5m2
    Setup s = fp8();
    s.b_type = CUDA_R_8F_E5M2, s.mode_a = s.mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    s.scale_a = 3 << 18, s.scale_b = 7 << 17, s.c_type = s.d_type = CUDA_R_32F;
    REQUIRE(cudaMemcpy(arena.p + s.a, x.data(), 1024, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaMemcpy(arena.p + s.b, y.data(), 1024, cudaMemcpyHostToDevice) == cudaSuccess);
    std::vector<float> rows(32), columns(32);
    for (int i = 0; i < 32; ++i) rows[size_t(i)] = float(i + 1), columns[size_t(i)] = 1.0f / float(i + 1);
    upload<float>(arena.p + s.scale_a, rows);
    upload<float>(arena.p + s.scale_b, columns);
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto d = download<float>(arena.p + s.d, 1024);
    for (size_t j = 0; j < 32; ++j)
      for (size_t i = 0; i < 32; ++i) CHECK(d[i + 32 * j] == doctest::Approx(-12.0 * rows[i] * columns[j]));
    s = fp8();  // e4m3: least unit 2^-9, largest number 448
    s.b_type = CUDA_R_8F_E5M2, s.d_type = CUDA_R_8F_E4M3, s.d = 5 << 16;
    const auto rounded = [&](float alpha) {  // -12 alpha
      s.alpha = alpha;
      REQUIRE(attempt(s, arena.p).status == kGood);
      return download<uint8_t>(arena.p + s.d, 1)[0];
    };
    CHECK(rounded(1) == 0xd4);             // 1.5 * 2^3
    CHECK(rounded(1000) == 0xfe);          // saturates
    CHECK(rounded(0.0625f) == 0xb4);       // 0.75 = 1.5 * 2^-1
    CHECK(rounded(1.0f / 8192) == 0x81);   // 0.75 units
    CHECK(rounded(1.0f / 16384) == 0x80);  // 0.375
    CHECK(rounded(0x1p-12f) == 0x82);      // 1.5: rounds to even
    CHECK(rounded(5 * 0x1p-12f) == 0x88);  // 7.5 rounds to even, the least normal number
  }
  SUBCASE("GELU with bias and its input kept, then its slope and the sums of rows") {
    Setup s = f32();
    s.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, s.bias = 3 << 18, s.aux = 7 << 17, s.aux_ld = 32;
    s.alpha = 0.01f;
    const auto bias = ramp(32, 5, 0.5f);
    upload<float>(arena.p + s.a, a);
    upload<float>(arena.p + s.b, b);
    upload<float>(arena.p + s.bias, bias);
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto d = download<float>(arena.p + s.d, 1024), aux = download<float>(arena.p + s.aux, 1024);
    const auto gelu = [](double x) {
      return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    };
    for (size_t i = 0; i < 1024; ++i) {
      const double x = 0.01 * sums[i] + bias[i % 32];
      CHECK(aux[i] == doctest::Approx(x).epsilon(1e-5));
      CHECK(d[i] == doctest::Approx(gelu(x)).epsilon(1e-4));
    }
    s.epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD;
    REQUIRE(attempt(s, arena.p).status == kGood);
    const auto g = download<float>(arena.p + s.d, 1024), row_sums = download<float>(arena.p + s.bias, 32);
    std::vector<double> total(32);
    for (size_t i = 0; i < 1024; ++i) {
      const double x = aux[i], h = 1e-4, slope = (gelu(x + h) - gelu(x - h)) / (2 * h);
      CHECK(g[i] == doctest::Approx(0.01 * sums[i] * slope).epsilon(1e-3));
      total[i % 32] += g[i];
    }
    for (size_t i = 0; i < 32; ++i) CHECK(row_sums[i] == doctest::Approx(total[i]).epsilon(1e-4));
  }
}

TEST_CASE("faults of a product are reported") {
  CHECK(faults("cublasLtMatmul: read of 2048 bytes of device memory, byte 0 unwritten", [](char* arena) {
    void* fresh = nullptr;
    (void)cudaMalloc(&fresh, 1 << 12);
    Setup s;
    s.a = static_cast<char*>(fresh) - arena;
    attempt(s, arena);
  }));
  CHECK(faults("cublasLtMatmul: write of 2048 bytes of device memory, byte 1024 ", [](char* arena) {
    Setup s;
    s.c = s.d = (1 << 20) - 1024;
    attempt(s, arena);
  }));
  CHECK(faults("which is not device memory", [](char* arena) {
    alignas(256) static char host[4096];
    Setup s;
    s.b = host - arena;
    attempt(s, arena);
  }));
  CHECK(faults("cublasLtMatmul writes D over an operand", [](char* arena) {
    Setup s;
    s.c = s.d = 1024;
    attempt(s, arena);
  }));
  CHECK(faults("an operation of another stream", [](char* arena) {
    cudaStream_t other = nullptr;
    (void)cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    (void)cudaMemsetAsync(arena, 0, 4096, other);
    attempt({}, arena);
  }));
}
