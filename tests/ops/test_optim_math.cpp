// Stochastic rounding, and steps of AdamW whose moments are bf16.
#include <tapegrad/core/check.h>

#include <bit>
#include <cmath>
#include <limits>

#include "support/bf16_moments.h"
#include "support/errors.h"

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
