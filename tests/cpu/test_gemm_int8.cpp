// Each built level and path of this machine (TG_INT8) against a plain loop, bit for bit; refusals of TG_INT8.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/cpu/runtime/product_path.h>

#include "levels/int8_sums.h"
#include "support/effort.h"
#include "support/helpers.h"
#include "support/paths.h"
#include "support/threads.h"

using namespace tg;
using cpu::Int8Path;

std::vector<Int8Level>& int8_levels() {
  static std::vector<Int8Level> all;
  return all;
}

namespace {
int least_level(Int8Path path) {
  return path == Int8Path::plain ? 1 : path == Int8Path::avx2 || path == Int8Path::avx_vnni ? 3 : 4;
}
template <class F> void for_each_way(F&& f) {
  for_each_path(cpu::kInt8Paths, [&](Int8Path path) {
    for (const Int8Level& l : int8_levels()) {
      if (l.level < least_level(path) || l.level > tg::detail::kernel_level(Backend::cpu)) continue;
      CAPTURE(l.level);
      f(l);
    }
  });
}

enum class Fill { random, lowest, highest, alternating };
struct Matrix {
  int64_t rows, cols;
  std::vector<int8_t> values;  // row-major

  Matrix(int64_t r, int64_t c, Fill fill, uint32_t seed) : rows(r), cols(c), values(size_t(r * c)) {
    for (size_t i = 0; i < values.size(); ++i) {
      seed = seed * 1664525 + 1013904223;
      values[i] = fill == Fill::random                 ? int8_t(seed >> 24)
                  : fill == Fill::highest              ? int8_t(127)
                  : fill == Fill::lowest || i % 2 == 0 ? int8_t(-128)
                                                       : int8_t(127);
    }
  }
};
enum class Lies { by_rows, by_columns, wide_rows, wide_columns, strided };
constexpr Lies kLies[] = {Lies::by_rows, Lies::by_columns, Lies::wide_rows, Lies::wide_columns, Lies::strided};
class Stored {
 public:
  Stored(const Matrix& m, Lies lies) {
    const int64_t row = lies == Lies::by_rows     ? m.cols
                        : lies == Lies::wide_rows ? m.cols + 13
                        : lies == Lies::strided   ? 3 * m.cols + 1
                                                  : 1;
    const int64_t col = lies == Lies::by_columns     ? m.rows
                        : lies == Lies::wide_columns ? m.rows + 5
                        : lies == Lies::strided      ? 3
                                                     : 1;
    values_.assign(size_t(1 + m.rows * row + m.cols * col), 99);
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t j = 0; j < m.cols; ++j) values_[size_t(1 + i * row + j * col)] = m.values[size_t(i * m.cols + j)];
    view = {values_.data() + 1, row, col};
  }
  Int8Matrix view{};

 private:
  std::vector<int8_t> values_;
};
struct Case {
  Matrix a, b;
  std::vector<int32_t> sums;
  Case(int64_t m, int64_t n, int64_t k, Fill of_a, Fill of_b)
      : a(m, k, of_a, uint32_t(m + k)), b(k, n, of_b, uint32_t(n)), sums(size_t(m * n)) {
    std::vector<uint32_t> row(static_cast<size_t>(n));
    for (int64_t i = 0; i < m; ++i) {
      std::fill(row.begin(), row.end(), 0u);
      for (int64_t t = 0; t < k; ++t) {
        const int x = a.values[size_t(i * k + t)];
        const int8_t* const y = b.values.data() + t * n;
        uint32_t* const sum = row.data();
        for (int64_t j = 0; j < n; ++j) sum[j] += uint32_t(x * y[j]);
      }
      for (int64_t j = 0; j < n; ++j) sums[size_t(i * n + j)] = int32_t(row[size_t(j)]);
    }
  }
  // True if all sums are right, each stored once.
  bool right(const Int8Level& level, Lies of_a, Lies of_b) const {
    const Stored x(a, of_a), y(b, of_b);
    const int64_t n = b.cols;
    std::vector<int32_t> got(sums.size(), -1);
    std::vector<uint8_t> times(sums.size(), 0);
    level.sums(a.rows, n, a.cols, x.view, y.view, [&](int64_t i, int64_t j, int64_t some, const int32_t* s) {
      std::copy_n(s, some, got.begin() + i * n + j);
      for (int64_t t = 0; t < some; ++t) ++times[size_t(i * n + j + t)];
    });
    return got == sums && times == std::vector<uint8_t>(sums.size(), 1);
  }
};
void compare(const Int8Level& level, const Case& c, Lies of_a, Lies of_b) {
  INFO(c.a.rows << " x " << c.b.cols << " x " << c.a.cols << ", A lies as " << int(of_a) << ", B as " << int(of_b));
  CHECK(c.right(level, of_a, of_b));
}
}  // namespace

TEST_CASE("int8 sums of many sizes and layouts against a plain loop") {
  size_t turn = 0;
  for (const int64_t m : in_turns<int64_t>({0, 1, 7, 16, 17, 33, 70}, 3))
    for (const int64_t n : {0, 1, 5, 16, 31, 32, 50, 100})
      for (const int64_t k : {0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 300}) {
        const Case c(m, n, k, Fill::random, Fill::random);
        ++turn;
        for_each_way([&](const Int8Level& level) {
          for (size_t i = 0; i < 5; ++i) compare(level, c, kLies[i], kLies[(i + turn) % 5]);
        });
      }
  for (int64_t k = 1; k <= 300; k += kSanitized ? 7 : 1) {
    const Case c(35, 34, k, Fill::random, Fill::random), few(1 + k % 16, 1 + k % 11, k, Fill::random, Fill::random);
    for_each_way([&](const Int8Level& level) {
      compare(level, c, Lies::by_rows, Lies::by_columns);
      compare(level, c, Lies::wide_columns, Lies::wide_rows);
      compare(level, few, Lies::wide_rows, Lies::wide_columns);
    });
  }
}

TEST_CASE("large int8 products on one thread and on all: blocks of rows, columns and k") {
  struct Size {
    int64_t m, n, k;
  };
  for (const Size& s :
       {Size{66, 66, 7001}, Size{20, 800, 2100}, Size{300, 500, 400}, Size{40, 3000, 64}, Size{9, 2000, 300},
        Size{3, 70, 20011}, Size{1, 1100, 900}, Size{1000, 20, 257}, Size{140000, 2, 3}, Size{17, 520, 16400}}) {
    const Case c(s.m, s.n, s.k, Fill::random, Fill::random);
    for_each_way([&](const Int8Level& level) {
      if (!small_enough(s.m, s.n, s.k)) return;
      for (const int threads : {1, 2}) {
        const ThreadsScope some(threads);
        CAPTURE(threads);
        compare(level, c, Lies::by_rows, Lies::by_columns);
        compare(level, c, Lies::wide_columns, Lies::by_rows);
      }
    });
  }
}

TEST_CASE("int8 sums of extreme elements, and beyond 2^31") {
  for (const Fill of_a : {Fill::lowest, Fill::highest, Fill::alternating})
    for (const Fill of_b : {Fill::lowest, Fill::highest, Fill::alternating})
      for (const int64_t k : {1, 64, 301, 3000}) {
        const Case c(37, 45, k, of_a, of_b);
        for_each_way([&](const Int8Level& level) {
          compare(level, c, Lies::by_rows, Lies::by_columns);
          compare(level, c, Lies::by_columns, Lies::by_rows);
        });
      }
  const Case c(2, 3, 140000, Fill::lowest, Fill::lowest);
  CHECK(c.sums[0] < 0);
  for_each_way([&](const Int8Level& level) {
    compare(level, c, Lies::by_rows, Lies::by_columns);
    compare(level, c, Lies::by_columns, Lies::by_rows);
  });
}

TEST_CASE("TG_INT8 names a way that this machine has, or products and describe() refuse") {
  const Case c(3, 3, 3, Fill::random, Fill::random);
  for (const char* wrong : {"vnni", "", "AMX"}) {
    const WithEnv env("TG_INT8", wrong);
    for (const std::string& text :
         {error_of([&] { (void)c.right(int8_levels().front(), Lies::by_rows, Lies::by_rows); }),
          error_of([] { (void)detail::runtime_of(Device::cpu()).describe(0); })}) {
      CHECK_HAS(text,
                fmt::format("[int8_linear] TG_INT8 is '{}'. It must name a path for int8 GEMM: plain, avx2, "
                            "avx_vnni, avx512_vnni and amx; this machine has plain",
                            wrong),
                "Change or unset it.");
    }
  }
  CHECK(has(cpu::int8_path()));
  CHECK((cpu::int8_path() == Int8Path::plain) == (tg::detail::kernel_level(Backend::cpu) < 3));
  for (const Int8Path path : cpu::kInt8Paths) {
    const WithEnv env("TG_INT8", std::string(name_of(path)));
    CHECK((error_of([] { (void)cpu::int8_path(); }) == "no error") == has(path));
  }
  for_each_path(cpu::kInt8Paths, [&](Int8Path path) {
    CHECK(cpu::int8_path() == path);
    for (const Int8Level& level : int8_levels())  // even without its instructions
      if (level.level <= tg::detail::kernel_level(Backend::cpu)) compare(level, c, Lies::by_rows, Lies::by_columns);
    CHECK(has(detail::runtime_of(Device::cpu()).describe(0), "int8 by ") ==
          (least_level(path) == 4 || path == Int8Path::avx_vnni));
  });
}
