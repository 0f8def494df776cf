// GEMM paths of cpu/gemm/gemm.cpp and cpu/kernels/lora.cpp against plain sums. A row does not depend on other rows or
// on threads.
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/matmul.h>

#include "support/helpers.h"
#include "support/paths.h"
#include "support/threads.h"

using namespace tg;

namespace {
constexpr int64_t kSizes[] = {1, 5, 8, 12, 16, 17, 31, 33, 64, 100};
constexpr int64_t kDepths[] = {1, 7, 16, 64, 65, 400};

// product: exact elements; scale: sums of |a b|, the scale of rounding errors.
struct Sums {
  std::vector<double> product, scale;
};
// Independent of the kernels.
Sums plain_sums(const Tensor& a, const Tensor& b) {
  const int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  const std::vector<double> x = values<double>(a.to(DType::f64)), y = values<double>(b.to(DType::f64));
  Sums sums{std::vector<double>(size_t(m * n)), std::vector<double>(size_t(m * n))};
  for (int64_t i = 0; i < m; ++i) {
    double *const product = &sums.product[size_t(i * n)], *const scale = &sums.scale[size_t(i * n)];
    for (int64_t t = 0; t < k; ++t) {
      const double of_a = x[size_t(i * k + t)], *const of_b = &y[size_t(t * n)];
      for (int64_t j = 0; j < n; ++j) product[j] += of_a * of_b[j], scale[j] += std::abs(of_a * of_b[j]);
    }
  }
  return sums;
}
Sums f64_sums(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::f64), y = b.to(DType::f64);
  return {values<double>(matmul(x, y)), values<double>(matmul(abs(x), abs(y)))};
}
// max error / scale.
double worst(const Tensor& y, const Sums& sums) {
  const std::vector<double> got = values<double>(y.to(DType::f64));
  double w = 0;
  for (size_t i = 0; i < got.size(); ++i) w = std::max(w, std::abs(got[i] - sums.product[i]) / sums.scale[i]);
  return w;
}
template <class T> constexpr double kTolerance = std::is_same_v<T, float> ? 2e-6 : 4e-15;
// Values that f32 does not hold.
template <class T> Tensor matrix(int64_t rows, int64_t cols, uint64_t seed) {
  return random<T>({rows, cols}, seed, std::is_same_v<T, float> ? -1 : -0.9, 1);
}
// False on the baseline, where Eigen computes.
bool own_tiles() { return tg::detail::kernel_level(Backend::cpu) >= 3; }

template <class T> void check_sizes(int64_t m, int64_t n, int64_t k) {
  const Tensor a = matrix<T>(m, k, uint64_t(m)), b = matrix<T>(k, n, uint64_t(n + k));
  const Sums sums = plain_sums(a, b);
  for (const bool down : {false, true})
    for (const bool columns : {false, true}) {
      const Tensor x = down ? stored(a, Store::transposed) : a, w = columns ? stored(b, Store::transposed) : b;
      const Tensor y = matmul(x, w);
      CAPTURE_ALL(m, n, k, down, columns);
      CHECK(worst(y, sums) < kTolerance<T>);
      // A single transposed row has both layouts.
      if (!own_tiles() || (down && n <= 64 / int64_t(sizeof(T)))) continue;
      for (const int64_t r : {int64_t(0), m / 2, m - 1})
        CHECK(bits_of(matmul(slice(x, 0, r, r + 1), w)) == bits_of(slice(y, 0, r, r + 1)));
    }
}
template <class T> void check_large(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kFew = 16;  // rows of other kernels
  const Tensor a = matrix<T>(m, k, uint64_t(m)), b = matrix<T>(k, n, uint64_t(n + k));
  const auto row = [](const Tensor& x, int64_t r) { return slice(x, 0, r, r + 1); };
  const std::vector<int64_t> some{0, m / 2, m - 1};
  std::vector<Sums> sums_of_some;
  for (const int64_t r : some) sums_of_some.push_back(plain_sums(row(a, r), b));
  const Sums sums = f64_sums(a, b);
  for (const bool down : {false, true})
    for (const bool columns : {false, true}) {
      const Tensor x = down ? stored(a, Store::transposed) : a, w = columns ? stored(b, Store::transposed) : b;
      const Tensor y = matmul(x, w), one = on_one_thread([&] { return matmul(x, w); });
      CAPTURE_ALL(m, n, k, down, columns);
      const bool measure = std::is_same_v<T, double> && !down && !columns;  // the reference of the others
      if (!measure) CHECK(worst(y, sums) < kTolerance<T>);
      for (size_t i = 0; i < some.size(); ++i) CHECK(worst(row(y, some[i]), sums_of_some[i]) < kTolerance<T>);
      CHECK(bits_of(y) == bits_of(one));
      if (!own_tiles()) continue;
      for (const int64_t r : some) CHECK(bits_of(matmul(row(x, r), w)) == bits_of(row(y, r)));
      for (int64_t r = 0; r < m; r += kFew) {
        const int64_t end = std::min(m, r + kFew);
        CHECK(bits_of(matmul(slice(x, 0, r, end), w)) == bits_of(slice(y, 0, r, end)));
      }
    }
}
}  // namespace

TEST_CASE("products of many sizes and layouts against plain sums; a row alone has the same bits") {
  NoGradScope off;
  for (const int64_t m : kSizes)
    for (const int64_t n : kSizes)
      for (const int64_t k : kDepths)
        if (!kSanitized || (m + n + k) % 3 == 0) check_sizes<float>(m, n, k), check_sizes<double>(m, n, k);
  for (const int64_t n : {3, 8, 15, 16})
    for (const int64_t k : {1024, 1300}) check_sizes<float>(170, n, k), check_sizes<double>(170, n, k);
}

// Packed and shared operands, one and several groups of blocks of k; rows a multiple of 4 KiB apart; wide tiles; small
// k.
TEST_CASE("large products: against f64 and plain sums, the same bits with one thread and with all, and by few rows") {
  NoGradScope off;
  struct Sizes {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Sizes{97, 33, 400},
                                {300, 100, 1024},
                                {100, 700, 900},
                                {250, 513, 1030},
                                {130, 2100, 65},
                                {1100, 1024, 800},
                                {1024, 1100, 800},
                                {2000, 40, 7},
                                {45, 1100, 16},
                                {90, 40, 400},
                                {170, 1024, 8},
                                {75, 1023, 5}})
    if (small_enough(m, n, k)) check_large<float>(m, n, k), check_large<double>(m, n, k);
}

TEST_CASE("a batch that shares b is one product of more rows, forward and in the gradient of b") {
  for (const bool trans_b : {false, true}) {
    const MatmulOptions o{.trans_b = trans_b};
    Tensor x = random({3, 2, 5, 40}, 1), w = random(trans_b ? Shape{30, 40} : Shape{40, 30}, 2).requires_grad_();
    const Tensor rows = reshape(x, {30, 40}), dy = random({3, 2, 5, 30}, 3);
    const Tensor y = matmul(x, w, o), of_rows = matmul(rows, w, o);
    CHECK(bits_of(y) == bits_of(of_rows));
    const Tensor dw = backward(y, dy)[w];
    CHECK(bits_of(dw) == bits_of(backward(of_rows, reshape(dy, {30, 30}))[w]));
    const Tensor apart = transpose(x, 0, 1), y_apart = matmul(apart, w, o);
    if (own_tiles()) CHECK(bits_of(y_apart) == bits_of(transpose(y, 0, 1)));
    CHECK(distance(backward(y_apart, transpose(dy, 0, 1))[w], dw) < 1e-5);
  }
}

TEST_CASE("x A B: the same bits with one thread and with all") {
  NoGradScope off;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const int64_t rows : {1, 12, 50, 64, 200})
      for (const int64_t rank : {1, 4, 8, 16, 40}) {
        const Tensor x = random({rows, 300}, 1).to(dtype), a = random({300, rank}, 2).to(dtype),
                     b = random({rank, 350}, 3).to(dtype), base = random({rows, 350}, 4).to(dtype);
        const auto run = [&] { return std::vector{lora(x, a, b, 0.5), lora(x, a, b, 0.5, base)}; };
        CAPTURE_ALL(name_of(dtype), rows, rank);
        check_same_bits(run(), on_one_thread(run));
      }
}
namespace {
// Rows from 20 of a (40, k) by b in either layout, and linear.
void check_small_m(int64_t n, int64_t k, DType dtype) {
  CAPTURE_ALL(n, k);
  const Tensor a = random({40, k}, 1).to(dtype), b = random({k, n}, 2).to(dtype), bias = random({n}, 3).to(dtype);
  for (const bool columns : {false, true}) {
    CAPTURE(columns);
    const Tensor w = columns ? stored(b, Store::transposed) : b;
    const Tensor y = matmul(a, w), biased = linear(a, transpose(w), bias);
    for (int64_t m = 1; m <= 17; ++m) {
      CAPTURE(m);
      const Tensor x = slice(a, 0, 20, 20 + m), few = matmul(x, w);
      CHECK(bits_of(few) == bits_of(slice(y, 0, 20, 20 + m)));
      CHECK(bits_of(few) == bits_of(on_one_thread([&] { return matmul(x, w); })));
      CHECK(bits_of(linear(x, transpose(w), bias)) == bits_of(slice(biased, 0, 20, 20 + m)));
      CHECK(bits_of(matmul(stored(x, Store::transposed), w)) == bits_of(few));
    }
  }
}
// More than a tile of columns; segments of k that end inside a cache line; more than caches hold.
constexpr int64_t kShapes[][2] = {{70, 383}, {129, 801}, {700, 65}, {2100, 770}, {1100, 3075}};
}  // namespace

TEST_CASE("one to sixteen rows in f32 and f64 have the bits that they have among many") {
  if (tg::detail::kernel_level(Backend::cpu) < 3) return;  // Eigen computes
  NoGradScope off;
  for (const DType dtype : {DType::f32, DType::f64})
    for (const auto [n, k] : kShapes)
      if (small_enough(64, n, k)) check_small_m(n, k, dtype);
}

TEST_CASE("one to sixteen rows in bf16 have the bits that they have among many, by each way to multiply") {
  if (tg::detail::kernel_level(Backend::cpu) < 3) return;
  NoGradScope off;
  for_each_path(cpu::kBf16Paths, [](cpu::Bf16Path) {
    for (const auto [n, k] : kShapes)
      if (small_enough(64, n, k)) check_small_m(n, k, DType::bf16);
  });
}
