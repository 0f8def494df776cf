// Masks of attention's dropout. Their gradients: op cases, fixtures, test_attention.cpp.
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/ops/ops.h>

#include "support/refusals.h"
#include "support/threads.h"

#include <cmath>

using namespace tg;
namespace {
Tensor ids_of(const std::vector<int64_t>& v) { return tensor<int64_t>(v, {int64_t(v.size())}); }
Tensor drawn_mask(const Shape& scores, double p, Rng rng, AttentionOptions o = {}) {
  o.dropout = p, o.rng = &rng;
  return detail::attention_kept(scores, o);
}
std::vector<uint8_t> drawn_bits(const Tensor& mask) { return mask.contiguous().to_vector<uint8_t>(); }
}  // namespace

TEST_CASE("attention: dropout drops its share of 10^6 weights, others in each head, position and call") {
  const Rng at{11, 5};
  for (const double p : {0.1, 0.5, 0.9}) {
    CAPTURE(p);
    const auto mask = drawn_bits(drawn_mask({4, 4, 250, 250}, p, at));
    const auto n = double(mask.size());
    REQUIRE(n == 1e6);
    const auto of = [&](const auto& count) {
      return std::abs(double(count) - n * (1 - p)) / std::sqrt(n * p * (1 - p));
    };
    CHECK(of(std::ranges::count(mask, 1)) < 5);
    // Adjacent weights in three directions, and of two heads: both are kept with probability (1 - p)^2.
    const double q = 1 - p, both = q * q, variance = n * both * (1 - both) * (1 + 2 * q / (1 + q));  // pairs overlap
    for (const size_t step : {size_t(1), size_t(4), size_t(250), size_t(250) * 250}) {
      CAPTURE(step);
      int64_t count = 0;
      for (size_t i = 0; i < mask.size(); ++i) count += mask[i] && mask[(i + step) % mask.size()];
      CHECK(std::abs(double(count) - n * both) < 5 * std::sqrt(variance));
    }
  }
  Rng rng = at;
  const Tensor x = random({2, 3, 40, 8}, 1);
  const AttentionOptions o{.dropout = 0.5, .rng = &rng};
  const Tensor first = attention(x, x, x, o);
  CHECK(rng == Rng{at.seed, at.offset + 2 * 3});
  CHECK(bits_of(attention(x, x, x, o)) != bits_of(first));
  rng = at;
  CHECK(bits_of(attention(x, x, x, o)) == bits_of(first));
  const AttentionOptions none{.rng = &rng};
  rng = at;
  CHECK(bits_of(attention(x, x, x, none)) == bits_of(attention(x, x, x)));
  CHECK(rng == at);
}
TEST_CASE("attention: masks are those of the text's positions, however many queries, keys and threads there are") {
  constexpr int64_t kText = 300;
  const Rng at{3, uint64_t(1) << 32};  // words beyond 32 bits
  const auto rows = [](const Tensor& x, int64_t begin, int64_t n, int64_t keys) {
    return drawn_bits(slice(slice(x, 2, begin, begin + n), 3, 0, keys));
  };
  const Tensor whole = drawn_mask({2, 2, kText, kText}, 0.4, at);
  CHECK(on_one_thread([&] { return drawn_bits(drawn_mask({2, 2, kText, kText}, 0.4, at)); }) == drawn_bits(whole));
  // Kernels for one query, for up to four, for panels of 6 to 32.
  for (const int64_t n : {1, 4, 5, 33, 150})
    for (const int64_t start : {0, 7, 130}) {
      CAPTURE_ALL(n, start);
      const auto want = rows(whole, start, n, start + 1);
      const Tensor there =
          drawn_mask({2, 2, n, kText}, 0.4, at, {.causal = true, .query_starts = ids_of({start, start})});
      CHECK(rows(there, 0, n, start + 1) == want);
      const Tensor grown = drawn_mask({2, 2, n, start + n}, 0.4, at, {.causal = true});
      CHECK(rows(grown, 0, n, start + 1) == want);
      if (start > 0) continue;
      const Tensor padded = drawn_mask({2, 2, kText, kText}, 0.4, at, {.kv_lengths = ids_of({n, n})});
      CHECK(rows(padded, 0, kText, n) == rows(whole, 0, kText, n));
    }
}
TEST_CASE("attention: with dropout, steps eager, lazy and compiled have the same bits, forward and backward") {
  for (const int64_t t : {1, 3, 70}) {
    CAPTURE(t);
    const auto leaf = [t](uint64_t seed) { return random({2, t, 4, 6}, seed).detach().requires_grad_(); };
    const std::vector<Tensor> in{leaf(1), leaf(2)};
    Rng rng;
    const auto step = [&rng](Inputs x) {
      const AttentionOptions o{.causal = true, .dropout = 0.3, .rng = &rng};
      const auto heads = [&](int64_t first, int64_t n) { return transpose(slice(x[1], 2, first, first + n), 1, 2); };
      const Tensor y =
          self_attention(x[0], 1, o) + transpose(attention(heads(0, 2), heads(2, 1), heads(3, 1), o), 1, 2);
      const GradMap g = backward(sum(y * y));
      return std::vector<Tensor>{y, g[x[0]], g[x[1]]};
    };
    const auto steps = [&](auto run) {
      rng = {4, 9};
      std::vector<Tensor> all;
      for (int i = 0; i < 3; ++i)
        for (const Tensor& x : run(in)) all.push_back(x.detach().contiguous());
      all.push_back(ids_of({int64_t(rng.offset)}));
      return all;
    };
    const auto want = steps(step);
    CHECK(bits_of(want[0]) != bits_of(want[3]));
    const Compiled compiled = compile(step, {.generators = {&rng}});
    check_same_bits(steps(compiled), want);
    CHECK(compiled.stats().replays == 2);
    LazyScope lazy;
    check_same_bits(steps(step), want);
  }
}
TEST_CASE("attention weights by their scores are what the kernel multiplies values by, with its masks") {
  const Tensor q = random<double>({3, 4, 5, 6}, 1), k = random<double>({3, 2, 9, 6}, 2),
               v = random<double>({3, 2, 9, 6}, 3);
  for (const double p : {0.0, 0.4})
    for (const bool spans : {false, true}) {
      CAPTURE_ALL(p, spans);
      Rng rng{2}, same{2};
      AttentionOptions o{.causal = true, .scale = 0.7, .dropout = p, .rng = &rng};
      if (spans) o.kv_lengths = ids_of({9, 0, 4}), o.query_starts = ids_of({4, 1, 0});
      const Tensor weights = detail::attention_weights(q, k, o);
      const Tensor grouped = matmul(reshape(weights, {3, 2, 2, 5, 9}), reshape(v, {3, 2, 1, 9, 6}));
      o.rng = &same;
      CHECK(distance(reshape(grouped, q.shape()), attention(q, k, v, o)) <= 1e-13);
      CHECK(rng == same);
    }
  CHECK_SAYS(detail::attention_weights(q, slice(k, 3, 0, 5), {}), "[attention] q is (3, 4, 5, 6) f64, k and v are");
}
TEST_CASE("attention: a rate of dropout outside [0, 1), or without a generator, is an Error") {
  const Tensor x = random({2, 1, 3, 4}, 1);
  Rng rng;
  for (const double p : {-0.1, 1.0, double(NAN)}) {
    const auto says = fmt::format("dropout is {}. It must be in [0, 1).", p);
    expect_at_emit({REFUSES(attention(x, x, x, {.dropout = p, .rng = &rng}), value, "[attention] " + says),
                    REFUSES(self_attention(x, 1, {.dropout = p, .rng = &rng}), value, "[self_attention] " + says)});
  }
  expect_at_emit({REFUSES(attention(x, x, x, {.dropout = 0.1}), value,
                          "[attention] dropout is 0.1, and there is no generator", "Pass {.rng = &rng}")});
  CHECK(rng == Rng());
}
