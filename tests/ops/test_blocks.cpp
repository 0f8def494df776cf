// tests/data/blocks.safetensors: blocks and the f32 values of gguf-py and bitsandbytes, by make_blocks.py.
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/ops.h>

#include <cmath>

#include "support/block_weights.h"
#include "support/quantized.h"
#include "support/refusals.h"

using namespace tg;
namespace {
using Format = BlockFormat;
constexpr const char* kFile = TG_TEST_DATA "/blocks.safetensors";
std::string fixture_of(Format f) {
  std::string name(detail::layout_of_block(f).name);
  for (char& c : name) c = char(std::tolower(c));
  return name;
}
double value_of_half(const uint8_t* p) {
  const int bits = p[0] | p[1] << 8, e = bits >> 10 & 31, m = bits & 1023;
  const double x = e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25);
  return bits >> 15 ? -x : x;
}
// Element i in f64, from the table of the formats: products are exact there, so one rounding to f32 is left.
double block_element(Format f, const uint8_t* b, int i) {
  const auto nibble = [i](const uint8_t* q) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; };
  const auto fifth = [i](const uint8_t* h) { return (h[i / 8] >> i % 8 & 1) * 16; };
  switch (f) {
    case Format::q4_0: return value_of_half(b) * (nibble(b + 2) - 8);
    case Format::q4_1: return value_of_half(b) * nibble(b + 4) + value_of_half(b + 2);
    case Format::q5_0: return value_of_half(b) * (nibble(b + 6) + fifth(b + 2) - 16);
    case Format::q5_1: return value_of_half(b) * (nibble(b + 8) + fifth(b + 4)) + value_of_half(b + 2);
    case Format::q8_0: return value_of_half(b) * int8_t(b[2 + i]);
    case Format::q4_k:
    case Format::q5_k: {
      const int g = i / 32, l = i % 32;
      const uint8_t *s = b + 4, *qs = b + (f == Format::q4_k ? 16 : 48);
      const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) + (s[g - 4] >> 6) * 16;
      const int minimum = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) + (s[g] >> 6) * 16;
      int q = g % 2 == 0 ? qs[g / 2 * 32 + l] & 15 : qs[g / 2 * 32 + l] >> 4;
      if (f == Format::q5_k) q += (b[16 + l] >> g & 1) * 16;
      return value_of_half(b) * scale * q - value_of_half(b + 2) * minimum;
    }
    case Format::q6_k: {
      const int n = i / 128, part = i % 128 / 32, l = i % 32;
      const uint8_t low = b[64 * n + (part % 2) * 32 + l];
      const int q = (part < 2 ? low & 15 : low >> 4) + (b[128 + 32 * n + l] >> 2 * part & 3) * 16;
      return value_of_half(b + 208) * int8_t(b[192 + i / 16]) * (q - 32);
    }
    case Format::nf4: break;
  }
  float absmax;
  std::memcpy(&absmax, b, 4);
  const int q = i % 2 == 0 ? b[4 + i / 2] >> 4 : b[4 + i / 2] & 15;
  static const auto of_codes = values(SafetensorsFile(kFile).tensor("nf4.values_of_codes"));
  return double(of_codes[size_t(q)]) * absmax;
}
}  // namespace

TEST_CASE("blocks have the bits of gguf-py and bitsandbytes") {
  const SafetensorsFile file(kFile);
  for (const Format f : kBlockFormats) {
    if (f == Format::nf4) continue;
    CAPTURE(fixture_of(f));
    const Tensor codes = file.tensor(fixture_of(f) + ".blocks"), expected = file.tensor(fixture_of(f) + ".values");
    CHECK(bits_of(dequantize({{{codes, f}}}, DType::f32)) == bits_of(expected));
  }
}
TEST_CASE("4096 random blocks of each format are their formula, rounded once") {
  for (const Format f : kBlockFormats) {
    CAPTURE(fixture_of(f));
    const detail::BlockLayout& l = detail::layout_of_block(f);
    const int64_t rows = 32, n = 128 * l.elements;
    Tensor codes = random_codes(f, rows, n, 7);
    // Every finite f16 is a scale: subnormal ones, zeros and the largest.
    Rng rng{8};
    for (int64_t i = 0; i < rows * 128; ++i)
      if (i % 2 == 0)
        set_scales(f, codes.mutable_data<uint8_t>() + i * l.bytes, [&] {
          const float size = std::ldexp(float(rng.uniform()) * 2 - 1, int(rng.uniform() * 42) - 25);
          return i % 64 == 0 ? std::copysign(0.0f, size) : i % 64 == 2 ? std::copysign(65504.0f, size) : size;
        });
    const auto got = values(dequantize({{{codes, f}}}, DType::f32));
    const uint8_t* const bytes = codes.data<uint8_t>();
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const auto in_block = int(i % size_t(l.elements));
      const auto expected = float(block_element(f, bytes + i / size_t(l.elements) * size_t(l.bytes), in_block));
      wrong += math::detail::bits_of(got[i]) != math::detail::bits_of(expected);
    }
    CHECK(wrong == 0);
    std::vector<float> one(size_t(l.elements));
    detail::dequantize_block(f, bytes, one.data());
    CHECK(std::equal(one.begin(), one.end(), got.begin()));
    CHECK(bits_of(dequantize({{{codes, f}}}, DType::bf16)) == bits_of(tensor(got, {rows, n}).to(DType::bf16)));
    CHECK(values<double>(dequantize({{{codes, f}}}, DType::f64)) == std::vector<double>(got.begin(), got.end()));
  }
}

TEST_CASE("rows of a weight whose parts have several formats, by id") {
  const BlockWeight w = random_blocks({{Format::q4_0, 5}, {Format::q6_k, 3}, {Format::nf4, 4}}, 512, 1);
  CHECK(w.in() == 512);
  CHECK(w.out() == 12);
  for (const DType d : {DType::f64, DType::f32, DType::bf16})
    for (const DType i : {DType::i32, DType::i64}) {
      const Tensor all = dequantize(w, d), ids = tensor<int64_t>({11, 0, 5, 4, 8, 0}, {2, 3}).to(i);
      CHECK(bits_of(block_rows(w, ids, d)) == bits_of(embedding(ids, all)));
      CHECK(bits_of(block_rows(w, transpose(ids, 0, 1), d)) == bits_of(embedding(transpose(ids, 0, 1), all)));
    }
  CHECK(block_rows(w, i64_of({0, 3}), DType::f32).shape() == Shape{0, 3, 512});
  for (const int64_t id : {12, -1})
    CHECK_SAYS_OF(value, block_rows(w, tensor<int64_t>({0, 1, id, 2}, {2, 2}), DType::f32), "[block_rows]",
                  std::to_string(id), "(1, 0)", "[0, 12)");
}

TEST_CASE("what weights in blocks refuse") {
  const Tensor x = f32_of({2, 256});
  const auto weight = [](const Tensor& codes, Format f = Format::q4_0) { return BlockWeight{{{codes, f}}}; };
  const BlockWeight w = random_blocks({{Format::q4_k, 3}}, 256, 1), mixed = random_blocks({{Format::q4_0, 2}}, 64, 2);
  expect_at_emit({
      REFUSES(dequantize(BlockWeight{}, DType::f32), value, "no parts"),
      REFUSES(block_linear(x, {}), value, "no parts"),
      REFUSES(weight(f32_of({2, 18})).in(), dtype, "u8", "q4_0"),
      REFUSES(block_linear(x, weight(f32_of({2, 18}))), dtype, "u8", "q4_0"),
      REFUSES(dequantize(weight(zeros({18}, DType::u8)), DType::f32), shape, "(rows, bytes of a row)"),
      REFUSES(dequantize(weight(zeros({2, 145}, DType::u8), Format::q4_k), DType::f32), shape, "145 bytes", "144 bytes",
              "q4_K"),
      REFUSES(dequantize({{w.parts[0], mixed.parts[0]}}, DType::f32), shape, "256", "q4_K", "part 1", "64", "q4_0"),
      REFUSES(dequantize(w, DType::f16), dtype, "f16", "bf16"),
      REFUSES(block_rows(w, x, DType::f32), dtype, "[block_rows]"),
      REFUSES(block_linear(f32_of({2, 32}), w), shape, "32", "256"),
      REFUSES(block_linear(x.to(DType::f16), w), dtype, "f16"),
      REFUSES(block_linear(x, w, f32_of({4})), shape, "bias"),
      REFUSES(block_linear(x, w, f32_of({3}).to(DType::f64)), dtype, "f64"),
  });
}
