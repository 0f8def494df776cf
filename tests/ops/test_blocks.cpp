// tests/data/blocks.safetensors: blocks and the f32 values of gguf-py and bitsandbytes, by make_blocks.py.
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/ops.h>

#include <cmath>

#include "support/block_weights.h"
#include "support/effort.h"
#include "support/paths.h"
#include "support/quantized.h"
#include "support/refusals.h"
#include "support/threads.h"

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
TEST_CASE("nf4 has the bits of bitsandbytes: blocks, and their values") {
  const SafetensorsFile file(kFile);
  const Tensor x = file.tensor("nf4.x"), codes = file.tensor("nf4.codes"), absmax = file.tensor("nf4.absmax");
  std::vector<uint8_t> expected(16 * 72);
  for (size_t i = 0; i < 32; ++i) {
    std::memcpy(expected.data() + i * 36, absmax.data<float>() + i, 4);
    std::memcpy(expected.data() + i * 36 + 4, codes.data<uint8_t>() + i * 32, 32);
  }
  for (const Store how : kStores) {
    const BlockWeight w = quantize_nf4(stored(x, how));
    CHECK(values<uint8_t>(w.parts[0].codes) == expected);
    CHECK(bits_of(dequantize(w, DType::f32)) == bits_of(file.tensor("nf4.dequantised")));
  }
  for (const DType d : {DType::bf16, DType::f16}) {  // exact as f32
    const Tensor narrow = slice(x, 0, 0, 4).to(d);
    CHECK(bits_of(quantize_nf4(narrow).parts[0].codes) == bits_of(quantize_nf4(narrow.to(DType::f32)).parts[0].codes));
  }
  CHECK(quantize_nf4(f32_of({0, 64})).out() == 0);
  CHECK(quantize_nf4(f32_of({3, 0})).in() == 0);
  expect_at_emit({
      REFUSES(quantize_nf4(f32_of({2, 65})), shape, "[quantize_nf4]", "64"),
      REFUSES(quantize_nf4(f32_of({64})), shape, "(out, in)"),
      REFUSES(quantize_nf4(i64_of({2, 64})), dtype, "[quantize_nf4]"),
  });
  for (const float bad : {kNan, kInf, -kInf}) {
    Tensor with = random({2, 128}, 1);
    with.mutable_data<float>()[200] = bad;
    CHECK_SAYS_OF(non_finite, quantize_nf4(with), "[quantize_nf4]", "(1, 72)");
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

TEST_CASE("products and gradients have the bits of the dequantized weight's") {
  struct Size {
    int64_t m, k;
    std::vector<std::pair<Format, int64_t>> parts;
  };
  std::vector<Size> sizes;
  for (const Format f : kBlockFormats)
    for (const int64_t m : {1, 3, 8, 16, 17, 40}) sizes.push_back({m, 512, {{f, 37}}});
  for (const int64_t n : {1, 2, 15, 16, 17, 31, 32, 33, 48, 49})
    for (const int64_t m : {1, 2, 5, 16, 19, 97, 200}) sizes.push_back({m, 64, {{Format::q4_0, n}}});
  for (const int64_t m : {0, 1, 7, 12, 16, 18, 130})
    for (const int64_t k : {256, 768, 1280, 2304})
      sizes.push_back({m, k, {{Format::q4_k, 33}, {Format::q6_k, 1}, {Format::nf4, 40}, {Format::q8_0, 16}}});
  sizes.push_back({4, 512, {{Format::q4_0, 0}, {Format::q5_0, 20}}});
  sizes.push_back({4, 0, {{Format::q4_0, 20}}});
  sizes.push_back({4, 32, {{Format::q4_0, 0}}});
  sizes.push_back({9, 2304, {{Format::q5_k, 530}}});  // several panels and threads
  sizes.push_back({40, 2304, {{Format::q5_1, 700}, {Format::q4_1, 801}}});
  const auto check = [&](DType d) {
    for (const Size& s : sizes) {
      const BlockWeight w = random_blocks(s.parts, s.k, 3);
      const int64_t n = w.out();
      if (!small_enough(s.m, n, s.k) || (hurries() && (n + s.m + s.k + int(d)) % 3 != 0)) continue;
      CAPTURE_ALL(name_of(d), s.m, n, s.k);
      const Tensor plain = dequantize(w, d), b = random({n}, 4).to(d), g = random({s.m, n}, 5).to(d);
      for (const Store how : in_turns<Store>({Store::contiguous, Store::transposed, Store::strided}, 3))
        for (const bool bias : {false, true}) {
          const Tensor x = stored(random({s.m, s.k}, 6).to(d), how).requires_grad_();
          const Tensor y = bias ? block_linear(x, w, b) : block_linear(x, w);
          const Tensor rows = x.contiguous(), expected = bias ? linear(rows, plain, b) : linear(rows, plain);
          CHECK(bits_of(y) == bits_of(expected));
          CHECK(bits_of(on_one_thread([&] { return bias ? block_linear(x, w, b) : block_linear(x, w); })) ==
                bits_of(y));
          if (bias) continue;
          const Tensor dx = grad({y}, {x}, {g})[0];
          CHECK(bits_of(dx) == bits_of(grad({expected}, {x}, {g})[0]));
          CHECK(bits_of(on_one_thread([&] { return grad({block_linear(x, w)}, {x}, {g})[0]; })) == bits_of(dx));
        }
    }
  };
  check(DType::f64);
  check(DType::f32);
  for_each_path(cpu::kBf16Paths, [&](cpu::Bf16Path) { check(DType::bf16); });
}

TEST_CASE("linear layers of blocks: gradients of both orders, layouts of codes, and vectors") {
  const BlockWeight w = random_blocks({{Format::q5_0, 3}, {Format::q8_0, 2}}, 32, 1);
  const Tensor at = random<double>({2, 32}, 2), b = random<double>({5}, 3);
  const auto squares = [&](const Tensor& x) { return sum(pow(block_linear(x, w, b), 3)); };
  CHECK(gradcheck(squares, at) < 1e-7);
  CHECK(gradcheck(
            [&](const Tensor& x) {
              Tensor y = x;
              if (!y.requires_grad()) y = y.detach().requires_grad_();
              return sum(grad(squares(y), {y}, {.create_graph = true})[0] * random<double>({2, 32}, 4));
            },
            at) < 1e-6);
  const Tensor dy = random<double>({2, 5}, 5);
  const Tensor bias = b.detach().requires_grad_();
  CHECK(distance(grad({block_linear(at, w, bias)}, {bias}, {dy})[0], sum(dy, {0})) < 1e-15);
  BlockWeight strided = w;
  for (auto& part : strided.parts) part.codes = stored(part.codes, Store::transposed);
  CHECK(bits_of(block_linear(at, strided, b)) == bits_of(block_linear(at, w, b)));
  CHECK(bits_of(dequantize(strided, DType::f32)) == bits_of(dequantize(w, DType::f32)));
  const Tensor one = reshape(slice(at, 0, 1, 2), {32});
  CHECK(bits_of(block_linear(one, w)) == bits_of(linear(one, dequantize(w, DType::f64))));
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
