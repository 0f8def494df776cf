// Stochastic rounding, split weights, and steps of AdamW with bf16 moments or split weights.

#include <bit>
#include <cmath>
#include <limits>

#include "support/bf16_moments.h"
#include "support/effort.h"
#include "support/split_weights.h"

using namespace tg;

TEST_CASE("stochastic rounding: the mean of a million draws is the value, for any exponent and sign") {
  constexpr int kDraws = 1'000'000;
  int64_t sums[2] = {};
  for (int e = -132; e <= 126; e += 43)
    for (const double fraction : {1.001, 1.3, 1.75, 1.9999})
      for (const int sign : {1, -1}) {
        const float x = float(sign * std::ldexp(fraction, e)), step = float(std::ldexp(1.0, std::max(e, -126) - 7));
        const double low = std::trunc(double(x) / step), p = std::abs(double(x) / step - low);
        int64_t away[2] = {};
        bool near = true;
        for (uint32_t i = 0; i < kDraws; ++i) {
          const uint32_t word = op::rounding_word({uint32_t(e), 5}, i);
          for (int half = 0; half < 2; ++half) {
            const double y = double(float(op::stochastic_bf16(x, word >> 16 * half))) / step;
            near = near && (y == low || y == low + sign);
            away[half] += y != low;
          }
        }
        CAPTURE_ALL(x, p);
        CHECK(near);
        for (const int64_t n : away) CHECK(std::abs(double(n) - kDraws * p) <= 4 * std::sqrt(kDraws * p * (1 - p)));
        sums[0] += away[0], sums[1] += away[1];
      }
  CHECK(sums[0] != sums[1]);
}
TEST_CASE(
    "stochastic rounding: bf16 values, NaN and infinities stay, and only what is nearest to infinity gets there") {
  const float inf = std::numeric_limits<float>::infinity(), most = 0x1.fep127f;
  for (uint32_t r = 0; r <= 0xffff; ++r) {
    bool same = true;
    for (const float x : {0.0f, -0.0f, 1.5f, -0x1p-130f, most, -most, inf, -inf})
      same = same && std::bit_cast<uint32_t>(float(op::stochastic_bf16(x, r))) == std::bit_cast<uint32_t>(x);
    for (const float x : {0x1.feffp127f, -0x1.feffp127f, 0x1.fc01p127f})
      same = same && std::abs(float(op::stochastic_bf16(x, r))) <= most;
    for (const uint32_t bits : {0x7f800001u, 0xffffffffu, 0x7fc00000u})
      same = same && std::isnan(float(op::stochastic_bf16(std::bit_cast<float>(bits), r)));
    for (const float x : {0.1f, 0x1.23456p-140f, 3e38f}) {
      const bf16 up = op::stochastic_bf16(x, r), down = op::stochastic_bf16(-x, r);
      same = same && (up.bits ^ 0x8000) == down.bits && op::stochastic_bf16(x, r | 0xabc00000).bits == up.bits;
    }
    if (!same) FAIL_CHECK("random bits ", r);
  }
}
TEST_CASE("stochastic rounding: every bit of a position flips every bit of half of the words, and keys change all") {
  constexpr int kTries = 4096;
  for (int flipped = 0; flipped < 32; ++flipped) {
    int changed[32] = {};
    for (uint32_t i = 0; i < kTries; ++i) {
      const op::RoundingKey key{i * 0x9abcdef1u, i * 0x12345677u}, other{key.low, key.high + 1 + i};
      const uint32_t x = op::rounding_word(key, i * 977), y = op::rounding_word(key, i * 977 ^ 1u << flipped);
      for (int b = 0; b < 32; ++b) changed[b] += (x ^ y) >> b & 1;
      CHECK(x != op::rounding_word(other, i * 977));
      CHECK(x != op::rounding_word({other.high, key.high}, i * 977));
    }
    for (int b = 0; b < 32; ++b) {
      CAPTURE_ALL(flipped, b);
      CHECK(std::abs(changed[b] - kTries / 2) < kTries / 4);
    }
  }
}
TEST_CASE("adamw_step: bf16 moments are those of a loop over the elements, bit for bit") { check_bf16_moments({}); }
TEST_CASE("split weights: join() has the bits of all values but NaN and those whose nearest bf16 is infinite") {
  const uint32_t step = test_effort() > 1 ? 1 : kSanitized ? 97 : 53;  // upper halves, in steps
  uint32_t wrong = 0;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    if (high % step != 0 && (high & 0x7fff) - 0x7f7fu > 1) continue;
    for (uint32_t low = 0; low < 0x10000; ++low) {
      const uint32_t u = high << 16 | low, size = u & 0x7fffffffu, sign = u & 0x80000000u;
      const op::SplitWeight s = op::split(std::bit_cast<float>(u));
      uint32_t want = size > 0x7f7f7fffu ? sign | 0x7f7f7fffu : u;
      want = size >= 0x7f800000u ? u : want;
      want = size > 0x7f800000u ? sign | 0x7fc00000u : want;
      wrong |= std::bit_cast<uint32_t>(op::join(s.high, s.low)) ^ want;
    }
  }
  CHECK(wrong == 0);
}
TEST_CASE("split weights: the upper part is the nearest bf16, ties away from 0") {
  for (const float x : {1.5f, -0x1p-130f, 0.1f, 3e38f, 0x1.fefffep127f, kInf, -kInf, -0.0f}) {
    CAPTURE(x);
    CHECK(op::split(x).high.bits == bf16(x).bits);
  }
  CHECK(float(op::split(0x1.01p0f).high) == 0x1.02p0f);  // bf16() gives 1
  CHECK(float(op::split(-0x1.01p0f).high) == -0x1.02p0f);
  CHECK(float(op::split(0x1.03p0f).high) == 0x1.04p0f);
  CHECK(std::isnan(float(op::split(kNan).high)));
  const Tensor w = random({37, 3}, 1) * 100.0;
  const SplitTensor s = detail::split_weight(w);
  CHECK(bits_of(detail::join_weight(s)) == bits_of(w));
  CHECK_SAYS(detail::split_weight(tensor<float>({0, -0x1.ffp127f}, {2})),
             "[split_weight] element 1 of (2) f32 is -3.39");
  CHECK_SAYS(detail::split_weight(zeros({2}, DType::f64)), "[split_weight] the weight is (2) f64. It must be f32");
}
TEST_CASE("adamw_step: split weights have the bits of whole ones") { check_split_weights({}); }
TEST_CASE("adamw_step: weights whose bf16 would be infinite stay below") {
  const Tensor w = full({2}, 3.396e38), m = zeros({2}), v = zeros({2}), g = full({2}, -1.0);
  const SplitTensor s = detail::split_weight(w);
  const AdamWOptions o{.weight_decay = 0};
  for (int t = 1; t <= 3; ++t)
    adamw_step({.w = {&s.high, 1}, .m = {&m, 1}, .v = {&v, 1}, .grad = {&g, 1}, .low = {&s.low, 1}}, o, 3e35, t);
  CHECK(values<float>(detail::join_weight(s)) == std::vector<float>(2, 0x1.fefffep127f));
}
TEST_CASE("adamw_step: which split weights it refuses") {
  const SplitTensor s = detail::split_weight(zeros({3, 2})), t = detail::split_weight(zeros({3, 2}));
  const Tensor m = zeros({3, 2}), v = zeros({3, 2}), g = zeros({3, 2}), m2 = zeros({3, 2}), v2 = zeros({3, 2});
  const auto step = [&](const Tensor& w, const std::vector<Tensor>& low) {
    adamw_step({.w = {&w, 1}, .m = {&m, 1}, .v = {&v, 1}, .grad = {&g, 1}, .low = low}, {}, 0.1, 1);
  };
  CHECK_SAYS(step(s.high, {}), "Keep weights in f32, f64 or split.");
  CHECK_SAYS(step(s.high, {s.low, t.low}), "[adamw_step] there are low bits for 2 of 1 weights.");
  CHECK_SAYS(step(g, {s.low}), "[adamw_step] the low bits of weight 0 are (3, 2) u16, the weight is (3, 2) f32.");
  CHECK_SAYS(step(s.high, {zeros({6}, DType::u16)}), "the low bits of weight 0 are (6) u16");
  const std::vector<Tensor> w{s.high, t.high}, ms{m, m2}, vs{v, v2}, gs{g, g}, same{s.low, s.low};
  CHECK_SAYS(adamw_step({.w = w, .m = ms, .v = vs, .grad = gs, .low = same}, {}, 0.1, 1),
             "[adamw_step] low bits 0 and low bits 1 are the same tensor");
}
TEST_CASE("adamw_step: bf16 moments reach their limits, where rounding to nearest stops") {
  constexpr int64_t kMany = 4096, kSteps = 5000;
  constexpr float kG = 0.013f;
  const Tensor w = zeros({kMany}), g = full({kMany}, kG), m = zeros({kMany}, DType::bf16),
               v = zeros({kMany}, DType::bf16);
  float nearest = 0;
  for (int64_t t = 1; t <= kSteps; ++t) {
    adamw_step(w, m, v, g, {}, 1e-3, t);
    nearest = float(bf16(0.999f * nearest + 0.001f * kG * kG));
  }
  const double limit = double(kG) * kG * (1 - std::pow(0.999, kSteps));
  double sum_m = 0, sum_v = 0, least = limit;
  for (const double x : values<double>(m)) sum_m += x;
  for (const double x : values<double>(v)) sum_v += x, least = std::min(least, x);
  CHECK(std::abs(sum_m / kMany / kG - 1) < 0.002);
  CHECK(std::abs(sum_v / kMany / limit - 1) < 0.01);
  CHECK(least > 0.7 * limit);
  CHECK(nearest < 0.4 * limit);
}
TEST_CASE("adamw_step: which moments it refuses") {
  const Tensor w = zeros({3}), wide = zeros({3}, DType::f64), narrow = zeros({3}, DType::bf16);
  CHECK_SAYS(adamw_step(w, narrow, zeros({3}), zeros({3}), {}, 0.1, 1),
             "[adamw_step] second moment 0 is (3) f32, the first (3) bf16. Both must have one dtype");
  CHECK_SAYS(adamw_step(wide, narrow, narrow * 1.0, zeros({3}, DType::f64), {}, 0.1, 1),
             "[adamw_step] first moment 0 is (3) bf16, the weight is (3) f64. Their dtypes must be equal");
  const Tensor b = zeros({3}, DType::bf16);
  CHECK_SAYS(sgd_step({.w = {&w, 1}, .grad = {&b, 1}, .momentum = {&narrow, 1}}, {.momentum = 0.9}, 0.1, 1),
             "[sgd_step] momentum buffer 0 is (3) bf16");
}
