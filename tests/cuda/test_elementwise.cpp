#include <tapegrad/ops/ops.h>

#include "support/on_cuda.h"

using namespace tg;
namespace {
template <class F, class... X> void check_bits(F f, const X&... x) {
  const Tensor device = f(on_cuda(x)...), cpu = f(x...);
  CHECK(device.device() == Device::cuda());
  CHECK(device.shape() == cpu.shape());
  CHECK(bits_of(device) == bits_of(cpu));
}
// Integers are exact in every dtype.
Tensor whole(const Shape& s, uint64_t seed, DType t) {
  return where(lt(random(s, seed, -1, 1), 0), -3.0, random<double>(s, seed + 1, 0, 8).to(DType::i32).to(DType::f32))
      .to(t);
}
// The bits of NaN may differ on a GPU.
void check_values(const Tensor& device, const Tensor& cpu) {
  CHECK(device.device() == Device::cuda());
  CHECK(device.dtype() == cpu.dtype());
  const auto a = values<double>(device.to(Device::cpu()).to(DType::f64)), b = values<double>(cpu.to(DType::f64));
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i)
    CHECK((std::isnan(a[i]) ? std::isnan(b[i]) : a[i] == b[i] && std::signbit(a[i]) == std::signbit(b[i])));
}
constexpr DType kNumbers[] = {DType::f64, DType::f32, DType::bf16, DType::i64, DType::i32};
}  // namespace

TEST_CASE("operands that repeat along a row or a column, aligned or not") {
  const Shape shapes[] = {{3, 4, 16}, {16}, {1}, {3, 1, 1}, {4, 1}, {3, 4, 1}, {3, 1, 16}, {}};
  for (const DType t : kNumbers)
    for (const Shape& s : shapes) {
      CAPTURE_ALL(name_of(t), to_string(s));
      const Tensor x = whole({3, 4, 16}, 1, t), y = whole(s, 2, t);
      check_bits([](const auto& a, const auto& b) { return a + b; }, x, y);
      check_bits([](const auto& a, const auto& b) { return maximum(b, a); }, x, y);
      check_bits([](const auto& a, const auto& b) { return le(a, b); }, x, y);
      check_bits([](const auto& a, const auto& b) { return where(eq(b, -3.0), a, b); }, x, y);
      check_bits([](const auto& a, const auto& b) { return masked_fill(a, lt(b, 2.0), 5); }, x, y);
      check_bits(
          [](const auto& a, const auto& b) { return slice(a, -1, 8, 16) + slice(expand(b, a.shape()), -1, 1, 9); }, x,
          y);
      check_bits([](const auto& a, const auto& b) { return transpose(a) + transpose(expand(b, a.shape())); }, x, y);
    }
}
TEST_CASE("more elements than one pass of a grid covers") {
  const int64_t n = 150001;
  const Tensor x = random({n}, 1), y = random({n}, 2), column = random({n, 1}, 3);
  check_bits([](const auto& a, const auto& b) { return a * b; }, x, y);
  check_bits([](const auto& a, const auto& b) { return slice(a, 0, 1, a.size(0)) + slice(b, 0, 0, b.size(0) - 1); }, x,
             y);
  check_bits([](const auto& a, const auto& b) { return where(gt(a, b), a, b); }, x.to(DType::bf16), y.to(DType::bf16));
  check_bits([](const auto& a) { return clamp(expand(a, {a.size(0), 2}), {.min = -0.5, .max = 0.25}); }, column);
  check_bits([](const auto& a, const auto& b) { return concat({a, b, a}, 0); }, x, y);
}
TEST_CASE("casts between all dtypes: ends of ranges, infinities and NaN, in any layout") {
  const std::vector<double> ends{0,     -0.,   1,     -1,     1.5,    -2.75,   127,   128,          -128,
                                 -129,  255,   256,   32767,  32768,  65535,   65536, -40000,       65519,
                                 65520, 1e-7,  3.1e9, -3.1e9, 0x1p63, -9.3e18, 1e30,  2147483647.4, -2147483648.6,
                                 kInf,  -kInf, kNan};
  for (int f = 0; f < kDTypes; ++f) {
    const Tensor x = tensor<double>(ends, {5, 6}).to(DType(f)), there = on_cuda(x);
    for (int t = 0; t < kDTypes; ++t)
      for (const Store how : kStores) {
        CAPTURE_ALL(name_of(DType(f)), name_of(DType(t)), int(how));
        check_values(stored(there, how).to(DType(t)), x.to(DType(t)));
      }
  }
}
TEST_CASE("every NaN becomes the same bits in bf16 and f16 as on the CPU") {
  std::vector<float> some;
  for (uint32_t i = 0; i < 83; ++i)
    some.push_back(std::bit_cast<float>(0x7f800000u | i << 31 | (i % 3 ? 1u << i % 23 : 0x7fffffu)));
  const Tensor x = tensor<float>(some, {83});
  for (const DType t : {DType::bf16, DType::f16}) {
    check_bits([&](const auto& a) { return a.to(t); }, x);
    check_bits([&](const auto& a) { return slice(a, 0, 1, 80).to(t); }, x);
  }
  check_bits([](const auto& a) { return a + 1.0; }, x.to(DType::bf16));
}
TEST_CASE("comparisons, extremes and clamp: NaN, infinities, and numbers that are equal to a bound") {
  const std::vector<double> some{-kInf, -1, -0., 0, 1, 2, kInf, kNan};
  for (const DType t : {DType::f64, DType::f32, DType::bf16}) {
    CAPTURE(name_of(t));
    const Tensor x = tensor<double>(some, {8, 1}).to(t), y = tensor<double>(some, {8}).to(t);
    using Both = Tensor (*)(const Tensor&, const Tensor&);
    for (const Both f : {Both(eq), Both(ne), Both(lt), Both(le), Both(gt), Both(ge), Both(maximum), Both(minimum)})
      check_values(f(on_cuda(x), on_cuda(y)), f(x, y));
    using WithNumber = Tensor (*)(const Tensor&, double);
    for (const WithNumber f : {WithNumber(eq), WithNumber(lt), WithNumber(le), WithNumber(ge)})
      check_values(f(on_cuda(x), 1.0), f(x, 1.0));
    const auto clamped = [](const Tensor& a) {
      const Tensor leaf = a.detach().requires_grad_(), r = clamp(leaf, {.min = -1, .max = 1});
      return concat({r.detach(), backward(sum(r))[leaf], clamp(a, {.min = 0}), clamp(a, {.max = -0.})}, 0);
    };
    check_values(clamped(on_cuda(y)), clamped(y));
  }
}
TEST_CASE("concat of forty inputs of any layout, and pad, in every size of element") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::i8, DType::boolean})
    for (const size_t dim : {size_t(0), size_t(1), size_t(2)}) {
      CAPTURE_ALL(name_of(t), dim);
      std::vector<Tensor> device, cpu;
      for (int i = 0; i < 40; ++i) {
        Shape s{4, 6, 8};
        s[dim] = i % 5;
        const Tensor x = random(s, uint64_t(i), -100, 100).to(t);
        cpu.push_back(x);
        device.push_back(i % 3 == 0 && s[dim] > 0 ? stored(on_cuda(x), kStores[size_t(i) % 4]) : on_cuda(x));
      }
      CHECK(bits_of(concat(Inputs(device.data(), device.size()), int64_t(dim))) ==
            bits_of(concat(Inputs(cpu.data(), cpu.size()), int64_t(dim))));
      Shape to{4, 6, 8};
      to[dim] = 16;
      for (const int64_t start : {0, 3, 8})
        for (const Store how : kStores) {
          const Tensor x = random({4, 6, 8}, 50, -100, 100).to(t);
          const OpPtr pad = make_ref<op::Pad>(dim, start, to);
          CHECK(bits_of(emit1(pad, {stored(on_cuda(x), how)})) == bits_of(emit1(pad, {x})));
        }
    }
}
TEST_CASE("copies of views, wide and one by one") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::i8}) {
    CAPTURE(name_of(t));
    const Tensor x = random({3, 5, 4, 16}, 1, -100, 100).to(t);
    check_bits([](const auto& a) { return transpose(a, 1, 2).contiguous(); }, x);
    check_bits([](const auto& a) { return transpose(a).contiguous(); }, x);
    check_bits([](const auto& a) { return slice(a, 3, 8, 16).contiguous(); }, x);
    check_bits([](const auto& a) { return slice(a, 3, 1, 9).contiguous(); }, x);
    check_bits([](const auto& a) { return expand(slice(a, 3, 0, 1), a.shape()).contiguous(); }, x);
  }
}
TEST_CASE("as many dimensions as there may be, of which no two can be walked as one") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16}) {
    CAPTURE(name_of(t));
    const Tensor x = whole({2, 2, 2, 3, 2, 2, 2, 8}, 1, t), y = whole({2, 2, 2, 3, 2, 2, 2, 8}, 2, t);
    const auto reversed = [](Tensor a, size_t dims) {
      for (size_t d = 0; d < dims / 2; ++d) a = transpose(a, int64_t(d), int64_t(dims - 1 - d));
      return a;
    };
    for (const size_t dims : {7, 8}) {
      CAPTURE(dims);
      const auto check = [&](auto f) {
        check_bits([&](const auto& a, const auto& b) { return f(reversed(a, dims), reversed(b, dims)); }, x, y);
        check_bits(
            [&](const auto& a, const auto& b) { return f(reversed(a, dims), reshape(b, reversed(a, dims).shape())); },
            x, y);
      };
      check([](const auto& a, const auto&) { return a.contiguous(); });
      check([](const auto& a, const auto&) { return a.to(DType::i64); });
      check([](const auto& a, const auto& b) { return a + b; });
      check([](const auto& a, const auto& b) { return where(lt(a, b), a, b); });
      check([](const auto& a, const auto& b) { return concat({a, b}, 3); });
      check([](const auto& a, const auto&) { return sum(a, {1, 3, 5}); });
      check([](const auto& a, const auto&) { return max(a, {0, 2, 4, 6, 7}); });
      check([](const auto& a, const auto&) { return argmax(a, 3); });
      check([](const auto& a, const auto& b) { return gather(a, 3, lt(b, 0).to(DType::i64)); });
      check([](const auto& a, const auto& b) { return scatter_add(a, 3, lt(b, 0).to(DType::i64), b); });
    }
  }
}
TEST_CASE("rope: heads side by side, unaligned rows, far positions, and back") {
  for (const int64_t hs : {2, 6, 16, 128})
    for (const int64_t start : {int64_t(0), int64_t(1) << 20, (int64_t(1) << 29) - 8}) {
      CAPTURE_ALL(hs, start);
      const RopeOptions o{.start = start};
      const Tensor x = random({2, 5, 3, hs}, 1);  // (B, T, NH, HS)
      const auto heads = [&](const Tensor& a) { return rope(transpose(a, 1, 2), o); };
      CHECK(distance(heads(on_cuda(x)), heads(x)) <= 1e-6);
      const Tensor wide = random({5, hs + 1}, 2);
      const auto odd = [&](const Tensor& a) { return rope(slice(a, 1, 1, hs + 1), o); };
      CHECK(distance(odd(on_cuda(wide)), odd(wide)) <= 1e-6);
      const auto back = [&](const Tensor& a) {
        return emit1(make_ref<op::Rope>(o.theta, o.scaling, o.start, true, false, 0), {rope(a, o)});
      };
      CHECK(distance(back(on_cuda(x)), x) <= 1e-6);
    }
}
bool off(double value, double exact, double size) {
  const double unit = std::ldexp(1.0, std::max(std::ilogb(exact), -126) - 7);
  return std::fabs(value - exact) > 0.5 * unit + 0x1p-16 * size;
}
TEST_CASE("swiglu of bf16 is within 2^-16 before it is rounded, at every gate from -87 up") {
  std::vector<bf16> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    bf16 gate;
    gate.bits = uint16_t(bits);
    if (float(gate) >= -87 && float(gate) <= 0x1p100f) x.push_back(gate);
  }
  x.resize(x.size() / 8 * 8, bf16(0));
  const size_t n = x.size();
  x.resize(2 * n, bf16(1));
  const Tensor leaf = tensor<bf16>(x, {1, int64_t(2 * n)}).to(Device::cuda()).requires_grad_(), y = swiglu(leaf);
  const auto got = values<bf16>(y), slopes = values<bf16>(backward(sum(y))[leaf]);
  size_t wrong = 0;
  for (size_t i = 0; i < n; ++i) {
    const double gate = x[i], s = 1 / (1 + std::exp(-gate)), silu = gate * s, below = gate / (1 + std::exp(gate));
    wrong += off(got[i], silu, std::fabs(silu)) + off(slopes[n + i], silu, std::fabs(silu));
    wrong += off(slopes[i], s * (1 + below), s * (1 + std::fabs(below)));
  }
  CHECK(wrong == 0);
}
TEST_CASE("softmax of bf16 and the gradient of its cross-entropy are within 2^-16 before they are rounded") {
  std::vector<bf16> x;
  for (uint32_t bits = 0x8000; bits < 0x10000; ++bits) {
    bf16 logit;
    logit.bits = uint16_t(bits);
    if (float(logit) < -87) break;
    x.push_back(logit), x.push_back(bf16(0));
    x.resize(x.size() + 6, bf16(float(-kInf)));
  }
  const auto rows = int64_t(x.size() / 8);
  const Tensor leaf = tensor<bf16>(x, {rows, 8}).to(Device::cuda()).requires_grad_();
  const Tensor targets = ones({rows}, DType::i64).to(Device::cuda());
  const auto y = values<bf16>(softmax(leaf));
  const auto slopes = values<bf16>(backward(cross_entropy(leaf, targets, {.reduction = Reduction::sum}))[leaf]);
  size_t wrong = 0;
  for (size_t i = 0; i < x.size(); i += 8) {
    const double p = 1 / (1 + std::exp(-double(x[i])));
    wrong += off(y[i], p, p) + off(y[i + 1], 1 - p, 1 - p) + off(slopes[i], p, p);
  }
  CHECK(wrong == 0);
}
