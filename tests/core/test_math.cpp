// core/math.h against the double functions of <cmath>, over bit patterns of every exponent and sign.
#include <tapegrad/core/math.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "support/errors.h"

namespace {
namespace math = tg::math;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Distance between two floats of this size; 2^-149 for zero and denormals.
double ulp_of(float x) { return x == 0 ? 0x1p-149 : std::ldexp(1.0, std::max(std::ilogb(x), -126) - 23); }

struct Sweep {
  double worst = 0;  // ulp of the right result
  float worst_at = 0;
  int wrong = 0;  // wrong NaN, infinity or sign
  float wrong_at = 0;
};
// Every 997th pattern in [first, last] and both ends.
template <class F, class Reference>
Sweep sweep(F f, Reference reference, uint32_t first = 0, uint32_t last = 0xffffffffu) {
  Sweep result;
  const auto check = [&](uint32_t pattern) {
    const float x = std::bit_cast<float>(pattern), y = f(x);
    const double exact = reference(double(x));
    const float rounded = float(exact);
    bool right = std::isnan(rounded) == std::isnan(y) && std::isinf(rounded) == std::isinf(y);
    if (!std::isnan(rounded)) right = right && std::signbit(rounded) == std::signbit(y);
    if (!right) {
      ++result.wrong;
      result.wrong_at = x;
    } else if (std::isfinite(rounded)) {
      const double error = std::fabs(double(y) - exact) / ulp_of(rounded);
      if (error > result.worst) result.worst = error, result.worst_at = x;
    }
  };
  for (uint64_t u = first; u < last; u += 997) check(uint32_t(u));
  check(last);
  return result;
}
// math::f against a function of doubles, between two patterns or over all.
#define SWEEP_OF(f, reference, ...) \
  sweep([](float x) { return math::f(x); }, [](double x) { return reference(x); } __VA_OPT__(, ) __VA_ARGS__)
void expect_within(const Sweep& s, double ulps) {
  CAPTURE_ALL(s.worst_at, s.wrong_at);
  CHECK(s.wrong == 0);
  CHECK(s.worst <= ulps);
  CHECK(s.worst > 0.25);  // not only trivial values
}
bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }
uint32_t pattern_of(float x) { return std::bit_cast<uint32_t>(x); }
}  // namespace

// Limits: measured over every 97th pattern, with and without contraction, rounded up to a tenth.
TEST_CASE("math: exp") {
  expect_within(SWEEP_OF(exp, std::exp), 1.1);
  // Denormal results: 0 < exp(x) < 2^-126.
  expect_within(SWEEP_OF(exp, std::exp, pattern_of(-87.3f), pattern_of(-104.5f)), 1.1);
  CHECK(same(math::exp(0.0f), 1.0f));
  CHECK(same(math::exp(-0.0f), 1.0f));
  CHECK(same(math::exp(kInf), kInf));
  CHECK(same(math::exp(-kInf), 0.0f));
  CHECK(std::isnan(math::exp(kNan)));
  CHECK(std::isfinite(math::exp(88.72283f)));
  CHECK(same(math::exp(88.72284f), kInf));
  CHECK(same(math::exp(-103.0f), 0x1p-149f));
}

TEST_CASE("math: log") {
  expect_within(SWEEP_OF(log, std::log), 1.0);
  // Around 1, and across the seams of the reduction (2/3, 4/3).
  expect_within(SWEEP_OF(log, std::log, pattern_of(0.6f), pattern_of(1.5f)), 1.0);
  CHECK(same(math::log(1.0f), 0.0f));
  CHECK(same(math::log(0.0f), -kInf));
  CHECK(same(math::log(-0.0f), -kInf));
  CHECK(same(math::log(kInf), kInf));
  CHECK(std::isnan(math::log(-1.0f)));
  CHECK(std::isnan(math::log(-0x1p-149f)));
  CHECK(std::isnan(math::log(-kInf)));
  CHECK(std::isnan(math::log(kNan)));
  CHECK(math::log(0x1p-149f) == doctest::Approx(-149 * std::log(2.0)).epsilon(1e-7));
}

TEST_CASE("math: log1p, round and floor") {
  expect_within(SWEEP_OF(log1p, std::log1p), 1.5);
  // Where 1 + x is rounded, and small.
  expect_within(SWEEP_OF(log1p, std::log1p, pattern_of(1e-8f), pattern_of(4.0f)), 1.5);
  expect_within(SWEEP_OF(log1p, std::log1p, pattern_of(-1e-8f), pattern_of(-1.0f)), 1.5);
  for (float x : {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 1e-9f, -1e-9f, kInf}) CHECK(same(math::log1p(x), x));
  CHECK(same(math::log1p(-1.0f), -kInf));
  CHECK(std::isnan(math::log1p(-1.5f)));
  CHECK(std::isnan(math::log1p(-kInf)));
  CHECK(std::isnan(math::log1p(kNan)));
  // Exact: every 97th pattern, the halves and the largest fraction.
  const auto check = [](uint32_t u) {
    const float x = std::bit_cast<float>(u);
    if (std::isnan(x)) return std::isnan(math::round(x)) && std::isnan(math::floor(x));
    return same(math::round(x), std::nearbyintf(x)) && same(math::floor(x), std::floor(x));
  };
  int wrong = 0;
  for (uint64_t u = 0; u <= 0xffffffffu; u += 97) wrong += !check(uint32_t(u));
  for (float x : {0.5f, 1.5f, 2.5f, 4194303.5f, 4194304.5f, 8388606.5f, 8388607.5f, 8388608.0f, 16777216.0f})
    for (uint32_t near : {0u, 1u, 0xffffffffu})
      for (uint32_t sign : {0u, 0x80000000u}) wrong += !check((pattern_of(x) + near) | sign);
  CHECK(wrong == 0);
  CHECK(math::round(-2.5) == -2);
  CHECK(math::floor(-2.5) == -3);
  CHECK(math::log1p(1e-20) == 1e-20);
}

TEST_CASE("math: tanh, erf and sigmoid") {
  expect_within(SWEEP_OF(tanh, std::tanh), 2.5);
  expect_within(SWEEP_OF(erf, std::erf), 1.3);
  expect_within(SWEEP_OF(sigmoid, math::sigmoid), 2.3);
  for (float zero : {0.0f, -0.0f}) {
    CHECK(same(math::tanh(zero), zero));
    CHECK(same(math::erf(zero), zero));
    CHECK(same(math::sigmoid(zero), 0.5f));
  }
  CHECK(same(math::tanh(-0x1p-149f), -0x1p-149f));
  for (float sign : {1.0f, -1.0f}) {
    CHECK(same(math::tanh(sign * kInf), sign));
    CHECK(same(math::erf(sign * kInf), sign));
    CHECK(same(math::tanh(sign * 9.5f), sign));
    CHECK(same(math::erf(sign * 4.5f), sign));
  }
  CHECK(same(math::sigmoid(kInf), 1.0f));
  CHECK(same(math::sigmoid(-kInf), 0.0f));
  CHECK(math::sigmoid(-100.0f) > 0.0f);  // denormal, not flushed
  CHECK(std::isnan(math::tanh(kNan)));
  CHECK(std::isnan(math::erf(kNan)));
  CHECK(std::isnan(math::sigmoid(kNan)));
}

TEST_CASE("math: sincos of double angles in float") {
  double worst = 0;
  for (int e = -40; e < 29; ++e)
    for (int k = 0; k < 4000; ++k) {
      const double x = std::ldexp(1 + double(k) / 4000 + 0x1p-45 * k, e) * (k % 2 ? -1 : 1);
      float s, c;
      math::sincos(x, s, c);
      for (const auto& [got, exact] : {std::pair(s, std::sin(x)), std::pair(c, std::cos(x))})
        worst = std::max(worst, (std::fabs(double(got) - exact) - 0x1p-48) / ulp_of(float(exact)));
    }
  CHECK(worst <= 1.6);
  CHECK(worst > 0.25);
  float s, c;
  math::sincos(536870911.7, s, c);  // not representable as a float
  CHECK(s == doctest::Approx(std::sin(536870911.7)).epsilon(1e-6));
  for (const double x : {0x1p29, -0x1p29, 1e300, double(kInf), -double(kInf), double(kNan)}) {
    math::sincos(x, s, c);
    CHECK(std::isnan(s));
    CHECK(std::isnan(c));
  }
  math::sincos(-0.0, s, c);
  CHECK(same(s, -0.0f));
  CHECK(same(c, 1.0f));
}

TEST_CASE("math: sin, cos, sqrt, rsqrt, abs, select") {
  const auto bounded = [](double x, double y) { return std::fabs(x) < 0x1p29 ? y : double(kNan); };
  expect_within(sweep([](float x) { return math::sin(x); }, [&](double x) { return bounded(x, std::sin(x)); }), 1.6);
  expect_within(sweep([](float x) { return math::cos(x); }, [&](double x) { return bounded(x, std::cos(x)); }), 1.6);
  expect_within(SWEEP_OF(sqrt, std::sqrt), 0.5);
  expect_within(sweep([](float x) { return math::rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); }), 1.5);
  CHECK(same(math::sin(-0.0f), -0.0f));
  CHECK(same(math::cos(0.0f), 1.0f));
  double s, c;
  math::sincos(0.75, s, c);
  CHECK(s == std::sin(0.75));
  CHECK(c == std::cos(0.75));
  CHECK(same(math::sqrt(-0.0f), -0.0f));
  CHECK(same(math::rsqrt(-0.0f), -kInf));
  CHECK(same(math::abs(-0.0f), 0.0f));
  CHECK(math::abs(-kInf) == kInf);
  CHECK(math::abs(-0.5) == 0.5);
  CHECK(math::abs(int64_t(-7)) == 7);
  for (bool yes : {true, false}) {
    CHECK(math::select(yes, 1.0f, 2.0f) == (yes ? 1.0f : 2.0f));
    CHECK(std::isnan(math::select(yes, 1.0f, kNan)) != yes);
    CHECK(math::select(yes, 1.0, 2.0) == (yes ? 1.0 : 2.0));
    CHECK(math::select(yes, 1, 2) == (yes ? 1 : 2));
  }
}

TEST_CASE("math: pow") {
  const float special[] = {0.0f,    -0.0f,    1,          -1,        2,      -2,         0.5f,       -0.5f,
                           3,       -3,       -2.5f,      kInf,      -kInf,  kNan,       0x1p-149f,  -0x1p-149f,
                           3.4e38f, -3.4e38f, 8388607.5f, 8388609.f, 1e-20f, 16777215.f, 16777216.f, 33554434.f};
  for (float x : special)
    for (float y : special) {
      const float p = math::pow(x, y), rounded = float(std::pow(double(x), double(y)));
      CAPTURE_ALL(x, y, p);
      if (std::isnan(rounded))
        CHECK(std::isnan(p));
      else if (!std::isfinite(rounded) || rounded == 0 || rounded == 1)
        CHECK(same(p, rounded));
      else
        CHECK(std::fabs(double(p) - std::pow(double(x), double(y))) <= 0.501 * ulp_of(rounded));
    }
  for (float y : {0.5f, -1.0f, 3.0f, -2.5f, 0.01f, 17.0f})
    expect_within(sweep([y](float x) { return math::pow(x, y); }, [y](double x) { return std::pow(x, double(y)); }),
                  0.501);
  expect_within(
      sweep([](float y) { return math::pow(1.001f, y); }, [](double y) { return std::pow(double(1.001f), y); }), 0.501);
  for (float x : {0.1f, 3.3f, -1e10f, 1e-30f}) CHECK(same(math::pow(x, 2.0f), x * x));
  CHECK(math::pow(0.1, 2.0) == 0.1 * 0.1);
}

TEST_CASE("math: exact functions") {
  expect_within(SWEEP_OF(exact::log, std::log, 0x00800000u, 0x7f7fffffu), 1.0);
  constexpr double kTurn = 6.283185307179586477;
  const auto sine = [](float u) {
    float s, c;
    math::exact::sincos2pi(u, s, c);
    return s;
  };
  const auto cosine = [](float u) {
    float s, c;
    math::exact::sincos2pi(u, s, c);
    return c;
  };
  const uint32_t last = pattern_of(1.0f) - 1;
  expect_within(sweep(
                    sine, [](double u) { return std::sin(kTurn * u); }, 0, last),
                2.0);
  expect_within(sweep(
                    cosine, [](double u) { return std::cos(kTurn * u); }, 0, last),
                2.0);
  CHECK(same(sine(0.25f), 1.0f));
  CHECK(cosine(0.25f) == 0.0f);
  CHECK(same(cosine(0.5f), -1.0f));
  CHECK(same(sine(0.75f), -1.0f));
}

TEST_CASE("math: the vector code of a plain loop keeps the limits") {
  // Vector and scalar code may contract differently: same limits, other bits.
  std::vector<float> x(1003), e(x.size()), l(x.size()), t(x.size()), r(x.size()), g(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(i) * 0.02f - 10.0f;
  for (size_t i = 0; i < x.size(); ++i) e[i] = math::exp(x[i]);
  for (size_t i = 0; i < x.size(); ++i) l[i] = math::log(x[i]);
  for (size_t i = 0; i < x.size(); ++i) t[i] = math::tanh(x[i]);
  for (size_t i = 0; i < x.size(); ++i) r[i] = math::erf(x[i]);
  for (size_t i = 0; i < x.size(); ++i) g[i] = math::sigmoid(x[i]);
  const auto close = [](float a, double b, double ulps) {
    return std::isnan(b) ? std::isnan(a) : a == float(b) || std::fabs(a - b) <= ulps * ulp_of(float(b));
  };
  for (size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    REQUIRE(close(e[i], std::exp(double(x[i])), 1.1));
    REQUIRE(close(l[i], std::log(double(x[i])), 1.0));
    REQUIRE(close(t[i], std::tanh(double(x[i])), 2.5));
    REQUIRE(close(r[i], std::erf(double(x[i])), 1.3));
    REQUIRE(close(g[i], math::sigmoid(double(x[i])), 2.3));
  }
}
