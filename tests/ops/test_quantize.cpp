// Bit for bit against the definition, in every layout.
#include "support/quantized.h"

using namespace tg;
namespace {
int code(float x, float absmax) {
  if (!(absmax > 0)) return 0;
  const volatile float share = x / absmax, product = 127.0f * share;
  return int(std::nearbyint(product));
}
float most_of(const std::vector<float>& x) {
  float m = 0;
  for (float v : x) m = std::max(m, std::abs(v));
  return m;
}
struct Expected {
  std::vector<int8_t> codes;
  std::vector<float> absmax;
};
Expected by_rows(const Tensor& x) {
  Expected e;
  const auto v = values(x.to(DType::f32));
  const size_t n = size_t(x.size(-1));
  for (size_t r = 0; n > 0 && r * n < v.size(); ++r) {
    const std::vector<float> row(v.begin() + ptrdiff_t(r * n), v.begin() + ptrdiff_t(r * n + n));
    e.absmax.push_back(most_of(row));
    for (float t : row) e.codes.push_back(int8_t(code(t, e.absmax.back())));
  }
  return e;
}
Expected by_all(const Tensor& x) {
  Expected e;
  const auto v = values(x.to(DType::f32));
  e.absmax = {most_of(v)};
  for (float t : v) e.codes.push_back(int8_t(code(t, e.absmax[0])));
  return e;
}
void expect_codes(const Quantized& q, const Expected& e) {
  CHECK(values<int8_t>(q.values) == e.codes);
  CHECK(values(q.absmax) == e.absmax);
}
}  // namespace

TEST_CASE("codes and states are those of the definition, for every dtype and layout, eager and lazy") {
  for (const Shape& s : {Shape{7, 33}, Shape{1, 1}, Shape{65, 130}, Shape{5, 1}, Shape{1, 257}, Shape{0, 4}})
    for (const DType t : kQuantizable)
      for (const Store how : kStores)
        for (const bool lazy : {false, true}) {
          CAPTURE_ALL(s, name_of(t), int(how));
          const Tensor x = many_binades(s, 3).to(t), y = stored(x, how);
          const Tensor transposed = transpose(x, 0, 1).contiguous();
          const Mode mode(lazy);
          expect_codes(quantize_rowwise(y), by_rows(x));
          expect_codes(quantize_global(y), by_all(x));
          if (s[0] > 0) expect_codes(quantize_columnwise_transpose(y), by_rows(transposed));
          expect_codes(quantize_global_transpose(y), by_all(transposed));
          if (s[0] == 0) continue;
          const QuantizedRowsAndColumns both = quantize_rows_and_columns(y);
          expect_codes(both.rows, by_rows(x));
          expect_codes(both.columns, by_rows(transposed));
        }
}

TEST_CASE("large matrices: blocks and panels of what is transposed, whole lines of the cache and parts of them") {
  for (const auto& [s, t] :
       {std::pair{Shape{1088, 1030}, DType::f32}, {Shape{1090, 1030}, DType::bf16}, {Shape{1030, 1088}, DType::bf16}}) {
    CAPTURE_ALL(s, name_of(t));
    const Tensor x = many_binades(s, 6).to(t), transposed = transpose(x, 0, 1).contiguous();
    const Expected rows = by_rows(x), columns = by_rows(transposed);
    expect_codes(quantize_columnwise_transpose(x), columns);
    expect_codes(quantize_global_transpose(x), by_all(transposed));
    for (const Store how : {Store::contiguous, Store::transposed}) {
      const QuantizedRowsAndColumns both = quantize_rows_and_columns(stored(x, how));
      expect_codes(both.rows, rows);
      expect_codes(both.columns, columns);
    }
  }
}

TEST_CASE("codes of every bf16 and f16 beside absmax of every fraction: the products that take a quotient's place") {
  // Row a: every number of dtype t in [0, absmax], for `count` absmaxes whose bits start at `first`.
  const auto check = [](DType t, int first, int count) {
    const int n = first + count;
    std::vector<float> v;
    for (int a = first; a < n; ++a)
      for (int x = 0; x < n; ++x) {
        const auto bits = uint16_t(std::min(x, a));
        const float size =
            t == DType::f16 ? float(__builtin_bit_cast(f16, bits)) : float(__builtin_bit_cast(bf16, bits));
        v.push_back(x % 2 ? -size : size);
      }
    const Tensor x = tensor(v, {count, n}).to(t);
    const Expected e = by_rows(x);
    expect_codes(quantize_rowwise(x), e);
    expect_codes(quantize_columnwise_transpose(transpose(x, 0, 1).contiguous()), e);
  };
  check(DType::bf16, 0x3f80, 0x80);
  check(DType::bf16, 1, 0x180);      // an infinite factor
  check(DType::f16, 0x3c00, 0x100);  // 127 divides two of them
  check(DType::f16, 1, 0x400);
}

TEST_CASE("quantising rows of any number of dimensions, and none") {
  for (const Shape& s : {Shape{9}, Shape{2, 3, 11}, Shape{2, 1, 3, 5}, Shape{3, 0}, Shape{0}}) {
    CAPTURE(s);
    const Tensor x = many_binades(s, 4);
    const Quantized q = quantize_rowwise(x);
    CHECK(q.values.shape() == s);
    CHECK(q.absmax.shape() == Shape(s.begin(), s.end() - 1));
    if (s.product() > 0) expect_codes(q, by_rows(x));
    if (s.product() > 0)
      CHECK(values(dequantize(q)) == [&] {
        std::vector<float> v;
        const Expected e = by_rows(x);
        for (size_t i = 0; i < e.codes.size(); ++i)
          v.push_back(e.absmax[i / size_t(s.back())] * float(e.codes[i]) / 127.0f);
        return v;
      }());
  }
  expect_codes(quantize_global(tensor<float>({-2.5f}, {})), {{-127}, {2.5f}});
}

TEST_CASE("rows whose absmax times 127 is no f32 come back as those of smaller numbers do") {
  const Tensor x = many_binades({1, 40}, 5);
  const double largest = max(abs(x)).item<double>();
  for (const int k : {100, 116, 119, 120, 121, 126}) {
    CAPTURE(k);
    const double scale = std::ldexp(1.0, k - int(std::ceil(std::log2(largest))));  // exact, finite
    const std::vector<float> small = values(dequantize(quantize_rowwise(x))),
                             large = values(dequantize(quantize_rowwise(x * scale)));
    for (size_t i = 0; i < small.size(); ++i) CHECK(double(large[i]) == double(small[i]) * scale);
  }
}
TEST_CASE("products are finite where the scale of a row times the sum is no f32") {
  check_extreme_scales([](const Tensor& t) { return quantize_rowwise(t); },
                       [](const Quantized& a, const Quantized& b) { return int8_linear(a, b); });
}
TEST_CASE("a state in f16 is rounded after the codes were made") {
  const Tensor x = many_binades({6, 40}, 5);
  const Quantized wide = quantize_rowwise(x), narrow = quantize_rowwise(x, DType::f16);
  CHECK(narrow.absmax.dtype() == DType::f16);
  CHECK(bits_of(narrow.values) == bits_of(wide.values));
  CHECK(bits_of(narrow.absmax) == bits_of(wide.absmax.to(DType::f16)));
  CHECK(bits_of(dequantize(narrow)) == bits_of(dequantize({wide.values, wide.absmax.to(DType::f16).to(DType::f32)})));
}

TEST_CASE("what cannot be quantised is an Error that names the first element") {
  using Use = std::function<void(const Tensor&)>;
  const std::pair<Use, const char*> uses[] = {{[](auto& x) { quantize_rowwise(x); }, "(17, 41)"},
                                              {[](auto& x) { quantize_global(x); }, "(17, 41)"},
                                              {[](auto& x) { quantize_rows_and_columns(x); }, "(17, 41)"},
                                              {[](auto& x) { quantize_columnwise_transpose(x); }, "(2, 133)"},
                                              {[](auto& x) { quantize_global_transpose(x); }, "(2, 133)"}};
  for (const float bad : {kInf, -kInf, kNan})
    for (const Store how : kStores)
      for (const DType t : kQuantizable)
        for (const auto& [use, at] : uses) {
          CHECK_SAYS(use(stored(with_bad(bad).to(t), how)), at, "finite");
        }
  CHECK_SAYS(quantize_rowwise(filled<float>({2, 2}, 7e4f), DType::f16), "65504");
}
