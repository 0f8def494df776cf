// Sampling, and generation with the cache and without it.
#include "support/files.h"
#include "support/helpers.h"

#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/models/nn/kv_cache.h>
#include <tapegrad/ops/shape_ops.h>

using namespace tg;

namespace {
GptConfig tiny() { return {.vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 8, .init_std = 0.3}; }
std::vector<int64_t> greedy(const Gpt& model, std::vector<int64_t> prompt, int64_t n, bool cache) {
  return generate(model, prompt, n, {.temperature = 0}, {.use_cache = cache});
}
}  // namespace

TEST_CASE("cache: a failed call leaves it as it was") {
  const Params params;
  const Gpt model(params, tiny());
  NoGradScope off;
  KvCache cache;
  model.forward(tensor({1, 2, 3}, {1, 3}), {.cache = &cache});
  CHECK_HAS(error_of([&] {
              model.forward(tensor({1, 2}, {2, 1}), {.cache = &cache});
            }),
            "A cache belongs to one model and one batch; clear() it first.");
  CHECK(cache.length() == 3);
  const Tensor next = model.forward(tensor({4}, {1, 1}), {.cache = &cache});
  CHECK(distance(next, slice(model.forward(tensor({1, 2, 3, 4}, {1, 4})), 1, 3, 4)) <= 1e-5);
}

TEST_CASE("generate: the same tokens with the cache and without, beyond the context too") {
  const Params params(Device(), 9);
  const Gpt model(params, tiny());
  for (const std::vector<int64_t>& prompt :
       {std::vector<int64_t>{3}, {1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2}}) {
    const auto with = greedy(model, prompt, 20, true);
    CHECK(with.size() == 20);
    CHECK(with == greedy(model, prompt, 20, false));
    for (const uint64_t seed : {1, 2}) {
      const SampleOptions o{.temperature = 0.9, .top_k = 7, .top_p = 0.95, .seed = seed};
      const auto sampled = generate(model, prompt, 20, o);
      CHECK(sampled == generate(model, prompt, 20, o, {.use_cache = false}));
      CHECK(sampled == generate(model, prompt, 20, o));
    }
    CHECK(generate(model, prompt, 20, {.seed = 1}) != generate(model, prompt, 20, {.seed = 2}));
  }
  // Beyond the context the model sees the last 8 tokens only.
  const std::vector<int64_t> text{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2};
  CHECK(greedy(model, text, 5, true) == greedy(model, {text.end() - 8, text.end()}, 5, true));
  LazyScope lazy;
  CHECK(greedy(model, {3}, 12, true) == greedy(model, {3}, 12, false));
}

TEST_CASE("generate: streaming, its limits and what it refuses") {
  const Params params(Device(), 9);
  const Gpt model(params, tiny());
  const std::vector<int64_t> prompt{3, 4};
  std::vector<int64_t> seen;
  auto until_four = [&](int64_t token) {
    seen.push_back(token);
    return seen.size() < 4;
  };
  const auto tokens = generate(model, prompt, 10, {.seed = 5}, {.use_cache = true, .on_token = until_four});
  CHECK(tokens == seen);
  CHECK(seen.size() == 4);
  CHECK(generate(model, prompt, 0).empty());
  CHECK_HAS(error_of([&] { generate(model, {}, 1); }), "the prompt is empty");
  CHECK_HAS(error_of([&] { generate(model, prompt, -1); }), "max_tokens is -1");
  CHECK_HAS(error_of([&] {
              generate(model, std::vector<int64_t>{3, 11}, 1);
            }),
            "token 1 of the prompt is 11, and the vocabulary has 11");
  CHECK_HAS(error_of([&] { generate(model, prompt, 1, {.temperature = -1}); }), "temperature is -1");
  CHECK_HAS(error_of([&] { generate(model, prompt, 1, {.top_k = -2}); }), "top_k is -2");
  CHECK_HAS(error_of([&] { generate(model, prompt, 1, {.vocabulary = -1}); }), "vocabulary is -1");
  for (const int64_t t : generate(model, prompt, 40, {.vocabulary = 5, .seed = 2})) CHECK(t < 5);
  CHECK_HAS(error_of([&] { generate(model, prompt, 1, {.top_p = 0}); }), "top_p is 0");
  CHECK_HAS(error_of([&] { generate(model, prompt, 1, {.top_p = 1.5}); }), "top_p is 1.5");
}

TEST_CASE("sample: frequencies are the probabilities") {
  const std::vector<float> logits{1, 3, -INFINITY, 2, 0};
  const int n = 20000;
  auto frequencies = [&](const SampleOptions& o) {
    Rng rng{11};
    std::vector<double> f(logits.size());
    for (int i = 0; i < n; ++i) ++f[size_t(sample(logits, o, rng))];
    for (double& x : f) x /= n;
    return f;
  };
  // keep: the tokens that may come; the others never do. 4.5 standard deviations of a frequency.
  auto check = [&](const SampleOptions& o, const std::vector<size_t>& keep) {
    const auto f = frequencies(o);
    double sum = 0;
    for (size_t i : keep) sum += std::exp(logits[i] / o.temperature);
    double seen = 0;
    for (size_t i : keep) {
      const double p = std::exp(logits[i] / o.temperature) / sum;
      CAPTURE(i);
      CHECK(std::abs(f[i] - p) <= 4.5 * std::sqrt(p * (1 - p) / n));
      seen += f[i];
    }
    CHECK(seen == doctest::Approx(1).epsilon(1e-9));
  };
  check({}, {0, 1, 3, 4});
  check({.temperature = 0.5}, {0, 1, 3, 4});
  check({.temperature = 3}, {0, 1, 3, 4});
  check({.top_k = 2}, {1, 3});
  check({.top_k = 100}, {0, 1, 3, 4});
  // Probabilities in order: 0.644, 0.237, 0.087, 0.032; together 0.644, 0.881, 0.968, 1.
  check({.top_p = 0.6}, {1});
  check({.top_p = 0.7}, {1, 3});
  check({.top_p = 0.9}, {0, 1, 3});
  check({.top_p = 0.97}, {0, 1, 3, 4});
  check({.top_k = 3, .top_p = 0.9}, {1, 3});  // of the three left, two have 0.910
  check({.vocabulary = 4}, {0, 1, 3});
  check({.vocabulary = 9}, {0, 1, 3, 4});
}

TEST_CASE("sample: the most likely token") {
  Rng rng{1};
  const std::vector<float> tie{0, 5, 5, -INFINITY};
  for (int i = 0; i < 20; ++i) {
    CHECK(sample(tie, {.temperature = 0}, rng) == 1);
    CHECK(sample(tie, {.top_k = 1}, rng) == 1);
    CHECK(sample(tie, {.top_p = 1e-9}, rng) == 1);
    CHECK(sample(std::vector<float>{-1000, 1000, 999}, {.temperature = 1e-3}, rng) == 1);
    CHECK(sample(std::vector<float>{-INFINITY, -INFINITY, 7}, {}, rng) == 2);
  }
  CHECK_HAS(error_of([&] { sample(std::vector<float>{0, NAN}, {}, rng); }), "the logit of token 1 is nan");
  CHECK_HAS(error_of([&] { sample(std::vector<float>{INFINITY, 0}, {}, rng); }), "the logit of token 0 is inf");
  CHECK_HAS(error_of([&] { sample(std::vector<float>{-INFINITY}, {}, rng); }), "none of them finite");
  CHECK_HAS(error_of([&] { sample({}, {}, rng); }), "0 logits");
}
