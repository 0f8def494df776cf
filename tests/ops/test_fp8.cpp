#include <tapegrad/ops/quantized/fp8_codes.h>

#include "support/quantized.h"
#include "support/refusals.h"

using namespace tg;
namespace {
std::vector<double> sizes(Fp8Format f) {
  const int fraction = f == Fp8Format::e4m3 ? 3 : 2, bias = f == Fp8Format::e4m3 ? 7 : 15;
  const double largest = f == Fp8Format::e4m3 ? 448 : 57344;
  std::vector<double> v;
  for (int code = 0; code < 128; ++code) {
    const int e = code >> fraction, m = code & ((1 << fraction) - 1);
    const double x = e == 0 ? std::ldexp(m, 1 - bias - fraction) : std::ldexp((1 << fraction) + m, e - bias - fraction);
    if (x <= largest) v.push_back(x);
  }
  return v;
}
uint8_t code_of(Fp8Format f, float x) {
  return f == Fp8Format::e4m3 ? fp8_of<Fp8Format::e4m3>(x) : fp8_of<Fp8Format::e5m2>(x);
}
float value_of(Fp8Format f, uint8_t code) {
  return f == Fp8Format::e4m3 ? value_of_fp8<Fp8Format::e4m3>(code) : value_of_fp8<Fp8Format::e5m2>(code);
}
constexpr Fp8Format kFormats[] = {Fp8Format::e4m3, Fp8Format::e5m2};
}  // namespace

TEST_CASE("each finite code has its value, and each value its code") {
  for (const Fp8Format f : kFormats) {
    const auto v = sizes(f);
    CHECK(v.size() == (f == Fp8Format::e4m3 ? 127 : 124));
    for (size_t i = 0; i < v.size(); ++i)
      for (const int sign : {0, 128}) {
        const float x = float(sign ? -v[i] : v[i]);
        CHECK(value_of(f, uint8_t(int(i) + sign)) == x);
        CHECK(code_of(f, x) == int(i) + sign);
      }
  }
}
TEST_CASE("what lies between two values takes the nearer, the even one of a tie; beyond the last there is the last") {
  for (const Fp8Format f : kFormats) {
    const auto v = sizes(f);
    for (size_t i = 0; i + 1 < v.size(); ++i) {
      const float middle = float((v[i] + v[i + 1]) / 2);
      CHECK(code_of(f, middle) == int(i % 2 == 0 ? i : i + 1));
      CHECK(code_of(f, std::nextafter(middle, 0.0f)) == int(i));
      CHECK(code_of(f, std::nextafter(middle, 1e9f)) == int(i) + 1);
      CHECK(code_of(f, -std::nextafter(middle, 1e9f)) == int(i) + 129);
    }
    for (const float x : {float(v.back()) * 1.001f, 1e30f, kInf}) CHECK(code_of(f, x) == int(v.size()) - 1);
  }
}

TEST_CASE("rows of codes: the scale is that of the row, and every value is the nearest of the format") {
  for (const Fp8Format f : kFormats)
    for (const DType t : kQuantizable)
      for (const Store how : kStores) {
        const Tensor x0 = concat({random({9, 70}, 1, -3, 3), filled({1, 70}, 0.0f)}, 0).to(t), x = stored(x0, how);
        const QuantizedFp8 q = quantize_fp8(x, f);
        CHECK(bits_of(q.absmax) == bits_of(max(abs(x0.to(DType::f32)), {-1})));
        const auto codes = values<uint8_t>(q.values);
        const auto v = values(x0.to(DType::f32)), a = values(q.absmax), back = values(dequantize_fp8(q));
        const float largest = f == Fp8Format::e4m3 ? 448.0f : 57344.0f;
        for (size_t i = 0; i < v.size(); ++i) {
          const float scale = a[i / 70] / largest;
          CHECK(codes[i] == (scale > 0 ? code_of(f, v[i] / scale) : 0));
          CHECK(back[i] == value_of(f, codes[i]) * scale);
        }
      }
  for (const Shape& s : {Shape{0, 3}, Shape{2, 0}, Shape{5}, Shape{2, 1, 3}}) {
    CHECK(quantize_fp8(random(s, 1)).values.shape() == s);
    CHECK(quantize_fp8(random(s, 1)).absmax.shape() == Shape(s.begin(), s.end() - 1));
  }
}

TEST_CASE("products are those of what the codes stand for, with and without a kernel of their own") {
  for (const auto& [fx, fw] : {std::pair(Fp8Format::e4m3, Fp8Format::e4m3),
                               {Fp8Format::e5m2, Fp8Format::e4m3},
                               {Fp8Format::e4m3, Fp8Format::e5m2}})
    for (const int64_t k : {1, 17, 64, 300}) {
      const QuantizedFp8 x = quantize_fp8(random({2, 5, k}, 1), fx), w = quantize_fp8(random({9, k}, 2), fw);
      const Tensor b = random({9}, 3);
      const Tensor exact = linear(wide(dequantize_fp8(x)), wide(dequantize_fp8(w)), wide(b));
      CHECK(distance(fp8_linear(x, w, b), exact) < 2e-6);
      CHECK(distance(fp8_linear(x, w, b, DType::bf16), exact) < 1e-2);
      const op::Fp8Linear op(fx, fw, DType::f32);
      CHECK(distance(op.compose(std::vector<Tensor>{x.values, w.values, x.absmax, w.absmax, b})[0], exact) < 2e-6);
    }
}

TEST_CASE("8-bit floats: products are finite where the scale of a row times the sum is no f32") {
  check_extreme_scales([](const Tensor& t) { return quantize_fp8(t); },
                       [](const QuantizedFp8& a, const QuantizedFp8& b) { return fp8_linear(a, b); });
}
TEST_CASE("layers: values and gradients near the exact ones, e5m2 in gradients or e4m3") {
  const Layer l{random({7, 40}, 1), random({23, 40}, 2, -0.2, 0.2), random({23}, 3), random({7, 23}, 4)};
  const auto exact = run_exact(l), coarse = run(l, SwitchBackMode::fp8), fine = run(l, SwitchBackMode::fp8_e4m3);
  for (const auto& r : {coarse, fine}) {
    CHECK(distance(r[0], exact[0]) < 0.03);
    CHECK(distance(r[1], exact[1]) < 0.08);
    CHECK(distance(r[2], exact[2]) < 1e-5);
    CHECK(distance(r[3], exact[3]) < 1e-5);
  }
  CHECK(bits_of(coarse[0]) == bits_of(fine[0]));
  const QuantizedFp8 transposed = quantize_fp8(transpose(l.w, 0, 1));  // the mode sets the format of the gradient
  CHECK(bits_of(fine[1]) == bits_of(fp8_linear(quantize_fp8(l.g), transposed)));
  CHECK(bits_of(coarse[1]) == bits_of(fp8_linear(quantize_fp8(l.g, Fp8Format::e5m2), transposed)));
}

TEST_CASE("what 8-bit floats refuse") {
  const Tensor x = filled({2, 3}, 1.0f);
  const QuantizedFp8 q = quantize_fp8(x), r = quantize_fp8(x, Fp8Format::e5m2);
  expect_at_emit({
      REFUSES(quantize_fp8(x.to(DType::f64)), dtype, "[quantize_fp8]", "f64"),
      REFUSES(fp8_linear(r, r), value, "both e5m2", "e4m3"),
      REFUSES(fp8_linear(q, quantize_fp8(filled({2, 4}, 1.0f))), shape, "inner sizes differ"),
      REFUSES(fp8_linear({q.values, filled({3}, 1.0f)}, q), shape, "absmax", "each row"),
      REFUSES(fp8_linear(q, q, filled({5}, 1.0f)), shape, "bias"),
      REFUSES(fp8_linear(q, q, {}, DType::i32), dtype, "i32"),
      REFUSES(dequantize_fp8({x, q.absmax}), dtype, "u8"),
  });
  Tensor bad = random({4, 5}, 1);
  bad.mutable_data<float>()[13] = kNan;
  CHECK_SAYS(quantize_fp8(bad), "(2, 3)");
  CHECK_SAYS(quantize_fp8(transpose(bad, 0, 1)), "(3, 2)");
}
