// Tensors as values: creation, conversion, views, operators, printing, memory.
#include <tapegrad/ops/ops.h>

#include <algorithm>
#include <bit>
#include <sstream>

#include "support/effort.h"
#include "support/helpers.h"

using namespace tg;
namespace {
constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64,
                          DType::i32, DType::i8,  DType::u16, DType::u8,   DType::boolean};
static_assert(std::size(kAll) == kDTypes);

struct Range {
  double lo, hi;
};
Range range_of(DType t) {  // integers; hi as a double
  switch (t) {
    case DType::i64: return {-0x1p63, 0x1p63};
    case DType::i32: return {-0x1p31, 0x1p31 - 1};
    case DType::i8: return {-128, 127};
    case DType::u16: return {0, 65535};
    case DType::u8: return {0, 255};
    default: return {0, 1};
  }
}
// x in dtype t, as a double: an independent implementation.
double converted(double x, DType t) {
  if (t == DType::f64) return x;
  if (t == DType::f32) return double(float(x));
  if (t == DType::f16) return double(float(f16(float(x))));
  if (t == DType::bf16) return double(float(bf16(float(x))));
  if (t == DType::boolean) return x != 0 ? 1 : 0;
  if (std::isnan(x)) return 0;
  const Range r = range_of(t);
  return std::clamp(std::trunc(x), r.lo, r.hi);
}
// From an integer: integers keep their low bits, as in C++.
double converted(int64_t x, DType t) {
  if (is_float(t) || t == DType::boolean) return converted(double(x), t);
  return visit_dtype(t, [&]<class T>() { return double(T(x)); });
}
bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }
}  // namespace

TEST_CASE("from and back, in every dtype") {
  CHECK(values(tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3})) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(values<int64_t>(tensor<int64_t>({-1, 1LL << 60}, {2})) == std::vector<int64_t>{-1, 1LL << 60});
  CHECK(values<uint16_t>(tensor<uint16_t>({65535}, {1})) == std::vector<uint16_t>{65535});
  const bool flags[] = {true, false, true};
  CHECK(values<uint8_t>(tensor<bool>(std::span<const bool>(flags), {3})) == std::vector<uint8_t>{1, 0, 1});
  CHECK(tensor<double>({3.5}, {}).item<double>() == 3.5);
  CHECK(tensor<double>({3.5}, {1, 1}).item<int32_t>() == 3);
  CHECK(values(tensor<float>({}, {0, 3})).empty());
  CHECK_SAYS(tensor<float>({1, 2}, {3}), "[from] 2 values do not fill (3), which has 3 elements.");
  CHECK_SAYS(tensor<float>({}, {-1}), "(-1)");
}
TEST_CASE("every dtype to every other, with saturation, NaN and infinities") {
  const std::vector<double> hard{0,     -0.0, 1,     -1,    1.5,   -1.5,  2.9999, 127,      128,        -128,
                                 -129,  255,  256,   65504, 65519, 65520, 65535,  65536,    1e-8,       6e-5,
                                 1e5,   -1e5, 3e9,   -3e9,  1e19,  -1e19, 1e39,   -1e39,    1e300,      kInf,
                                 -kInf, kNan, 1e-40, 1e-46, 0.1,   -0.3,  0x1p62, 16777217, 2147483647, -2147483648.0};
  const Tensor source = tensor<double>(hard, {int64_t(hard.size())});
  for (DType a : kAll) {
    const Tensor x = source.to(a);
    const auto at = values<double>(x);
    for (size_t i = 0; i < hard.size(); ++i) {
      CAPTURE_ALL(a, hard[i]);
      CHECK(same(at[i], converted(hard[i], a)));
    }
    for (DType b : kAll) {
      const Tensor y = x.to(b);
      CHECK(y.dtype() == b);
      const auto got = values<double>(y);
      const auto whole = is_float(a) ? std::vector<int64_t>() : values<int64_t>(x);
      for (size_t i = 0; i < hard.size(); ++i) {
        CAPTURE_ALL(a, b, at[i]);
        CHECK(same(got[i], is_float(a) ? converted(at[i], b) : converted(whole[i], b)));
      }
    }
  }
}
TEST_CASE("conversions of many elements, in any layout") {
  for (DType a : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::f16})
    for (DType b : {DType::f32, DType::bf16, DType::f16, DType::i8}) {
      const Tensor x = random({37, 1031}, 3, -100, 100).to(a);
      const auto expected = values<double>(x);
      for (Store how : kStores) {
        const auto got = values<double>(stored(x, how).to(b));
        size_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i)
          wrong += !same(got[i], is_float(a) ? converted(expected[i], b) : converted(int64_t(expected[i]), b));
        CAPTURE_ALL(a, b, int(how));
        CHECK(wrong == 0);
      }
    }
}
TEST_CASE("casts of f32 to f16 and back have the bits of f16(float) and float(f16)") {
  const uint64_t all = uint64_t(1) << 32, step = test_effort() == 100 ? 1 : 1021;
  size_t wrong = 0;
  for (uint64_t u = 0; u < all;) {
    std::vector<float> x;
    for (; u < all && x.size() < 1 << 20; u += step) x.push_back(std::bit_cast<float>(uint32_t(u)));
    const auto got = values<f16>(tensor(x, {int64_t(x.size())}).to(DType::f16));
    for (size_t i = 0; i < x.size(); ++i) wrong += got[i].bits != f16(x[i]).bits;
  }
  std::vector<f16> halves(0x10000);
  for (size_t b = 0; b < halves.size(); ++b) halves[b].bits = uint16_t(b);
  const auto wide = values(tensor(halves, {0x10000}).to(DType::f32));
  for (size_t b = 0; b < halves.size(); ++b) {
    const float x = halves[b];
    wrong += std::bit_cast<uint32_t>(wide[b]) != (std::bit_cast<uint32_t>(x) | (x == x ? 0 : 0x400000));  // quiet
  }
  CHECK(wrong == 0);
}
TEST_CASE("bf16 and f16 round to nearest, ties to even; every NaN becomes one") {
  for (uint32_t b = 0; b < 0x10000; ++b) {
    bf16 x;
    x.bits = uint16_t(b);
    f16 y;
    y.bits = uint16_t(b);
    if (!std::isnan(float(x)))
      CHECK(bf16(float(x)).bits == b);
    else
      CHECK(bf16(float(x)).bits == 0x7fff);
    if (!std::isnan(float(y)))
      CHECK(f16(float(y)).bits == b);
    else
      CHECK(f16(float(y)).bits == 0x7fff);
  }
  struct Row {
    float x;
    uint16_t as_bf16, as_f16;
  };
  for (auto [x, b, h] :
       {Row{1, 0x3f80, 0x3c00}, Row{-2, 0xc000, 0xc000}, Row{0x1.01p0f, 0x3f80, 0x3c04}, Row{0x1.03p0f, 0x3f82, 0x3c0c},
        Row{0x1.010002p0f, 0x3f81, 0x3c04}, Row{0x1.002p0f, 0x3f80, 0x3c00}, Row{0x1.006p0f, 0x3f80, 0x3c02},
        Row{65504, 0x4780, 0x7bff}, Row{65519.996f, 0x4780, 0x7bff}, Row{65520, 0x4780, 0x7c00},
        Row{0x1p-24f, 0x3380, 0x0001}, Row{0x1p-25f, 0x3300, 0x0000}, Row{0x1.8p-24f, 0x33c0, 0x0002},
        Row{0x1.ff8p-15f, 0x3880, 0x03ff}, Row{0x1.ffcp-15f, 0x3880, 0x0400}, Row{3.4e38f, 0x7f80, 0x7c00},
        Row{-0.0f, 0x8000, 0x8000}, Row{float(kInf), 0x7f80, 0x7c00}, Row{float(-kInf), 0xff80, 0xfc00}}) {
    CAPTURE(x);
    CHECK(bf16(x).bits == b);
    CHECK(f16(x).bits == h);
  }
}
TEST_CASE("full, zeros, ones, arange") {
  for (DType t : kAll) CHECK(values<double>(full({2, 3}, 1, t)) == std::vector<double>(6, 1));
  CHECK(values<double>(full({2}, 300, DType::bf16)) == std::vector<double>(2, 300));
  const Tensor x = random<double>({2, 3}, 1);
  CHECK(values<double>(zeros_like(x)) == std::vector<double>(6, 0));
  CHECK(ones_like(x).dtype() == DType::f64);
  CHECK(zeros({2, 0, 3}).numel() == 0);
  CHECK(values<int64_t>(arange(0, 5)) == std::vector<int64_t>{0, 1, 2, 3, 4});
  CHECK(values<int64_t>(arange(5, 0, -2)) == std::vector<int64_t>{5, 3, 1});
  CHECK(values(arange(0, 1, 0.25, DType::f32)) == std::vector<float>{0, .25f, .5f, .75f});
  CHECK(arange(3, 3).shape() == Shape{0});
  CHECK(arange(3, 1).shape() == Shape{0});
  const auto many = values<int32_t>(arange(0, 100000, 1, DType::i32));
  size_t wrong = 0;
  for (size_t i = 0; i < many.size(); ++i) wrong += many[i] != int32_t(i);
  CHECK(wrong == 0);
  CHECK_SAYS(arange(0, 5, 0), "[arange] start 0, stop 5, step 0 make no sequence.");
  CHECK_SAYS(arange(0, kInf), "[arange]");
  CHECK_SAYS(full({-1, 2}, 0), "[full]");
  CHECK_SAYS(full({1LL << 40, 1LL << 40}, 0), "[full]");
}
TEST_CASE("randn, trunc_normal and rand are the generator's values, whatever the size of a tile") {
  Rng a{5}, b = a;
  const int64_t n = 50001;
  std::vector<float> expected(static_cast<size_t>(n));
  const auto first = values(randn({n}, a, 1, 2));
  b.fill_normal(expected, 1, 2);
  CHECK(first == expected);
  CHECK(a == b);
  const auto cut = values(trunc_normal({n}, a, 1, 2));
  b.fill_truncated_normal(expected, 1, 2);
  CHECK(cut == expected);
  CHECK(a == b);
  const auto second = values<double>(rand({3, n / 3}, a, -1, 1, DType::f64));
  expected.resize(second.size());
  b.fill_uniform(expected, -1, 1);
  CHECK(second == std::vector<double>(expected.begin(), expected.end()));
  CHECK(a == b);
  CHECK_SAYS(randn({2}, a, 0, -1), "[randn] standard deviation -1 is negative");
  CHECK_SAYS(trunc_normal({2}, a, 0, -1), "[trunc_normal] standard deviation -1 is negative");
  CHECK_SAYS(trunc_normal({2}, a, 0, 1, DType::i32), "[trunc_normal] cannot draw i32 values.");
  CHECK_SAYS(rand({2}, a, 0, 1, DType::i32), "[rand] cannot draw i32 values.");
  CHECK_HAS(error_of([&] { randn({2}, a, kInf, 1); }),
            "[randn] mean inf and standard deviation 1. Both must be finite");
  CHECK_SAYS(rand({2}, a, 1, 0), "[rand] from 1 to 0. The bounds must be finite and ordered");
  CHECK_SAYS(rand({2}, a, -3e38, 3e38), "[rand] from -3e+38 to 3e+38. The bounds must be finite");
  CHECK(a == b);  // a refused draw does not advance it
}
TEST_CASE("rand: values lie in [lo, hi) in every dtype, whatever the bounds are") {
  const std::pair<double, double> bounds[] = {{0, 1},         {1, 2},         {0.1, 0.2},       {-0.1, 0},
                                              {-2, -1},       {1e-40, 3e-40}, {-1, 1e-30},      {0, 1.0001},
                                              {255.5, 256.5}, {-1e30, 0.3},   {0.7, 0.70390625}};
  for (const DType t : {DType::bf16, DType::f32, DType::f64})
    for (const auto& [lo, hi] : bounds) {
      Rng rng{7};
      const std::vector<double> x = values<double>(rand({1 << 18}, rng, lo, hi, t).to(DType::f64));
      const auto [least, most] = std::ranges::minmax(x);
      CAPTURE_ALL(name_of(t), lo, hi);
      CHECK(least >= lo);
      CHECK(most < hi);
    }
  Rng rng{7};
  CHECK(values(rand({3}, rng, 5, 5)) == std::vector<float>(3, 5.0f));
}
TEST_CASE("operators, and numbers on either side") {
  const Tensor x = tensor<float>({1, 2, 4}, {3}), y = tensor<float>({2, 2, 2}, {3});
  CHECK(values(x + y) == std::vector<float>{3, 4, 6});
  CHECK(values(x - y) == std::vector<float>{-1, 0, 2});
  CHECK(values(x * y) == std::vector<float>{2, 4, 8});
  CHECK(values(x / y) == std::vector<float>{.5f, 1, 2});
  CHECK(values(1.0 + x) == values(x + 1.0));
  CHECK(values(1.0 - x) == std::vector<float>{0, -1, -3});
  CHECK(values(x - 1.0) == std::vector<float>{0, 1, 3});
  CHECK(values(2.0 * x) == values(x * 2.0));
  CHECK(values(4.0 / x) == std::vector<float>{4, 2, 1});
  CHECK(values(x / 4.0) == std::vector<float>{.25f, .5f, 1});
  CHECK(values(-x) == std::vector<float>{-1, -2, -4});
  const Tensor i = tensor<int64_t>({(1LL << 60) + 1, -7}, {2});
  CHECK(values<int64_t>(i + i) == std::vector<int64_t>{(1LL << 61) + 2, -14});
  CHECK(values<int64_t>(i * 2.0) == std::vector<int64_t>{(1LL << 61) + 2, -14});
  CHECK(values<int64_t>(sum(i)) == std::vector<int64_t>{(1LL << 60) - 6});
  CHECK(values<int32_t>(tensor<int32_t>({3, 4}, {2}) - tensor<int32_t>({5}, {1})) == std::vector<int32_t>{-2, -1});
}
TEST_CASE("views share storage, and reshape copies only where it must") {
  const Tensor x = tensor<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {2, 3, 2});
  const auto storage = [](const Tensor& t) { return t.value()->storage.get(); };
  for (const Tensor& v :
       {reshape(x, {3, -1}), transpose(x, 0, 2), slice(x, 1, 1, 3), expand(slice(x, 0, 0, 1), {4, 3, 2}),
        split(x, {1, 2}, 1)[1], reshape(transpose(x, 0, 1), {3, 2, 2, 1}), x.detach(),
        reshape(slice(x, 1, 1, 3), {2, 4}), reshape(transpose(slice(x, 2, 0, 1), 0, 1), {3, 2})})
    CHECK(storage(v) == storage(x));
  const Tensor copy = reshape(transpose(x, 0, 1), {12});
  CHECK(storage(copy) != storage(x));
  CHECK(values(copy) == std::vector<float>{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11});
  CHECK(values(transpose(x, 0, 2)) == std::vector<float>{0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11});
  CHECK(values(slice(x, -1, -1, 2)) == std::vector<float>{1, 3, 5, 7, 9, 11});
  CHECK(values(slice(x, 0, 1, 100)) == std::vector<float>{6, 7, 8, 9, 10, 11});
  CHECK(slice(x, 0, 1, 1).shape() == Shape{0, 3, 2});
  CHECK(values(reshape(transpose(slice(x, 2, 0, 1), 0, 1), {3, 2})) == std::vector<float>{0, 6, 2, 8, 4, 10});
  // (B, T, 3C) cut in three, each seen as (B, NH, T, HS)
  const Tensor qkv = random({2, 5, 24}, 1);
  for (const Tensor& part : split(qkv, {8, 8, 8}, -1)) {
    const Tensor heads = transpose(reshape(part, {2, 5, 2, 4}), 1, 2);
    CHECK(storage(heads) == storage(qkv));
    CHECK(heads.shape() == Shape{2, 2, 5, 4});
  }
  CHECK(x.contiguous().id() == x.id());
  CHECK(x.to(DType::f32).id() == x.id());
  CHECK(reshape(x, {2, 3, 2}).id() == x.id());
}
TEST_CASE("reading: dtype, layout and count are checked") {
  Tensor x = random({2, 3}, 1).label("w");
  CHECK_SAYS(x.data<double>(), "[data] tensor is 'w' (2, 3) f32, read as f64. Use .to(DType::f64).");
  CHECK_HAS(error_of([&] { (void)transpose(x).data<float>(); }),
            "[data] tensor (3, 2) f32 has strides (1, 3). Only contiguous data has a plain pointer; use contiguous().");
  CHECK_SAYS(x.item<float>(), "[item] 'w' (2, 3) f32 has 6 elements. Only a tensor with one element");
  CHECK(x.data<float>() == x.mutable_data<float>());
  CHECK(x.size(-1) == 3);
  CHECK_SAYS(x.size(2), "[size]");
  CHECK(slice(x, 0, 1, 2).data<float>() == x.data<float>() + 3);
  CHECK_FALSE(bool(Tensor()));
  CHECK(detail::describe(Tensor()) == "an empty tensor");
}
TEST_CASE("assign repoints one variable for all its handles") {
  Tensor w = filled({2}, 1.f), same_w = w;
  const uint64_t id = w.id();
  w.assign(filled({2}, 3.f));
  CHECK(values(same_w) == std::vector<float>(2, 3));
  CHECK(w.id() == id);
  CHECK_SAYS(w.assign(filled({3}, 1.f)), "[assign] (2) f32 cannot take (3) f32. Shapes, dtypes and devices");
  CHECK_SAYS(w.assign(filled({2}, 1.)), "cannot take (2) f64");
}
TEST_CASE("printing") {
  const Tensor x = tensor<float>({1, 2.5f, -0.125f, 1e-7f, float(kNan), 12345.678f}, {2, 3}).label("x");
  CHECK(to_string(x) == "[[1, 2.5, -0.125],\n [1e-07, nan, 1.235e+04]]\n'x' (2, 3) f32");
  std::ostringstream s;
  s << tensor<int64_t>({7}, {});
  CHECK(s.str() == "7\n() i64");
  CHECK(to_string(arange(0, 11)) == "[0, 1, 2, ..., 8, 9, 10]\n(11) i64");
  CHECK(to_string(arange(0, 10)) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\n(10) i64");
  CHECK(to_string(tensor<int32_t>({1, 0}, {2}).to(DType::boolean)) == "[true, false]\n(2) bool");
  CHECK(to_string(zeros({2, 0})) == "[[],\n []]\n(2, 0) f32");
  CHECK(to_string(Tensor()) == "an empty tensor");
  CHECK(fmt::format("{}", x) == "'x' (2, 3) f32");
  LazyScope lazy;
  CHECK_HAS(to_string(x * 2.0), "[[2, 5, -0.25]");
}
TEST_CASE("names: devices, dtypes, shapes") {
  CHECK(Device::parse("cpu") == Device::cpu());
  CHECK(Device::parse("cuda") == Device::cuda(0));
  CHECK(Device::parse("cuda:1") == Device::cuda(1));
  CHECK(to_string(Device::cuda(1)) == "cuda:1");
  CHECK(to_string(Device::cpu()) == "cpu");
  for (auto text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:x", "cuda:1x", "cuda:999", "CPU"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(Device::parse(text), Error);
  }
  size_t bytes = 0;
  for (DType t : kAll) {
    CHECK(detail::dtype_from_name(name_of(t)) == t);
    bytes += size_of(t);
    visit_dtype(t, [&]<class T>() {
      CHECK(dtype_of<T>() == t);
      CHECK(sizeof(T) == size_of(t));
    });
  }
  CHECK(bytes == 8 + 4 + 2 + 2 + 8 + 4 + 1 + 2 + 1 + 1);
  CHECK_SAYS(detail::dtype_from_name("float"), "bf16");
  CHECK(to_string(Shape{}) == "()");
  CHECK(to_string(Shape{2, 3}) == "(2, 3)");
  CHECK_THROWS_AS(Shape({1, 2, 3, 4, 5, 6, 7, 8, 9}), Error);
}
TEST_CASE("a device that this build or machine does not have (skipped where there is a GPU)") {
  CHECK(has_device(Device::cpu()));
  if (has_device(Device::cuda())) return;  // checked here because backends register during static init
  const Tensor x = random({2}, 1);
  for (const auto& e : {error_of([] { detail::runtime_of(Device::cuda()); }), error_of([&] { x.to(Device::cuda()); }),
                        error_of([] { zeros({2}, DType::f32, Device::cuda()); })}) {
    // a build with CUDA says here what the machine lacks
    CHECK((has(e, "[device] cuda was asked for, and this build has no CUDA backend. ") ||
           has(e, "[device] cuda:0 was asked for, and there is none: ")));
    CHECK_HAS(e, "Use the device cpu");
  }
  CHECK_SAYS(detail::runtime_of({Backend::cpu, 1}), "[device] there is no cpu");
}
TEST_CASE("memory of the machine") {
  const size_t bytes = detail::runtime_of(Device::cpu()).memory(0);
  CHECK(bytes > size_t(256) << 20);
  CHECK(bytes < size_t(1) << 50);
}
TEST_CASE("memory: live returns to its base, peak and total count") {
  const auto base = memory_stats();
  reset_peak();
  {
    const Tensor a = random({1000}, 1), b = a * 2.0;
    CHECK(memory_stats().live == base.live + 8000);
    CHECK(values(transpose(reshape(b, {10, 100})).contiguous()).size() == 1000);
  }
  const auto end = memory_stats();
  CHECK(end.live == base.live);
  CHECK(end.peak >= base.live + 12000);
  CHECK(end.total >= base.total + 12000);
  empty_cache();
  CHECK(memory_stats().live == base.live);
  CHECK_THROWS_AS(zeros({1LL << 50}), Error);
  CHECK(memory_stats().live == base.live);
}
TEST_CASE("threads are counted and checked") {
  const int n = num_threads();
  CHECK(n >= 1);
  set_num_threads(1);
  CHECK(num_threads() == 1);
  CHECK_THROWS_AS(set_num_threads(0), Error);
  CHECK_THROWS_AS(set_num_threads(1 << 20), Error);
  CHECK(num_threads() == 1);
  set_num_threads(n);
}
