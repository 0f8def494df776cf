// Sampling against transformers (tests/data/make_sampling.py), frequencies, refusals.
#include "support/files.h"
#include "support/helpers.h"

#include <tapegrad/core/io/json.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/ops/factories.h>

#include <numeric>

using namespace tg;

TEST_CASE("sample: the probabilities of transformers") {
  const MappedFile file(TG_TEST_DATA "/sampling.json");
  const Json cases = detail::own_json(file.text());
  REQUIRE(cases.size() == 13);
  for (const Json& c : cases) {
    SampleOptions o;
    const auto read = [&](const char* key, auto& to) {
      if (const Json* x = c["options"].find(key)) to = x->get<std::remove_reference_t<decltype(to)>>();
    };
    read("temperature", o.temperature), read("top_k", o.top_k), read("top_p", o.top_p), read("min_p", o.min_p);
    read("repetition_penalty", o.repetition_penalty), read("frequency_penalty", o.frequency_penalty);
    read("presence_penalty", o.presence_penalty), read("penalty_last", o.penalty_last);
    CAPTURE(detail::text_of(c["options"]));
    const auto logits = c["logits"].get<std::vector<float>>();
    const auto before = c["before"].get<std::vector<int64_t>>();
    const auto want = c["probabilities"].get<std::vector<double>>(),
               got = detail::sample_probabilities(logits, o, before);
    REQUIRE(got.size() == want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK((got[i] == 0) == (want[i] == 0));
      CHECK(std::abs(got[i] - want[i]) <= 5e-6 * want[i]);
    }
    o.temperature = 0;  // what is most likely after the penalties, at any temperature
    Rng rng{1};
    CHECK(sample(logits, o, rng, before) == std::ranges::max_element(want) - want.begin());
    CHECK(detail::sample_probabilities(logits, o, before)[size_t(sample(logits, o, rng, before))] == 1);
  }
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
  // Only tokens in `keep` may come. The limit is 4.5 standard deviations of a frequency.
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
  // Probabilities: 0.644, 0.237, 0.087, 0.032; cumulative 0.644, 0.881, 0.968, 1.
  check({.top_p = 0.6}, {1});
  check({.top_p = 0.7}, {1, 3});
  check({.top_p = 0.9}, {0, 1, 3});
  check({.top_p = 0.97}, {0, 1, 3, 4});
  check({.top_k = 3, .top_p = 0.9}, {1, 3});  // two of the remaining three have 0.910
  check({.min_p = 0.1}, {1, 3, 0});           // relative to the most likely: 1, 0.368, 0.135, 0.050
  check({.temperature = 2, .min_p = 0.3}, {1, 3, 0});
  check({.top_p = 0.9, .min_p = 0.3}, {1, 3});
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
    CHECK(sample(std::vector<float>{0, 5, 4}, {.min_p = 1}, rng) == 1);
    CHECK(sample(std::vector<float>{-1000, 1000, 999}, {.temperature = 1e-3}, rng) == 1);
    CHECK(sample(std::vector<float>{-INFINITY, -INFINITY, 7}, {}, rng) == 2);
  }
  CHECK_SAYS(sample(std::vector<float>{0, NAN}, {}, rng), "the logit of token 1 is nan");
  CHECK_SAYS(sample(std::vector<float>{INFINITY, 0}, {}, rng), "the logit of token 0 is inf");
  CHECK_SAYS(sample(std::vector<float>{-INFINITY}, {}, rng), "none of them finite");
  CHECK_SAYS(sample({}, {}, rng), "0 logits");
}

TEST_CASE("sample: penalties and what is refused") {
  Rng rng{1};
  const std::vector<float> logits{1, 3, 2, 2.5};
  const auto greedy = [&](SampleOptions o, const std::vector<int64_t>& before) {
    o.temperature = 0;
    return sample(logits, o, rng, before);
  };
  CHECK(greedy({.presence_penalty = 1}, {}) == 1);
  CHECK(greedy({.presence_penalty = 1}, {1}) == 3);
  CHECK(greedy({.presence_penalty = 0.4}, {1, 1, 1}) == 1);
  CHECK(greedy({.frequency_penalty = 0.4}, {1, 1, 1}) == 3);
  CHECK(greedy({.repetition_penalty = 1.6}, {1, 3}) == 2);
  CHECK(greedy({.presence_penalty = 1, .penalty_last = 2}, {1, 0, 0}) == 1);
  CHECK(greedy({.presence_penalty = 1, .penalty_last = 3}, {1, 0, 0}) == 3);
  std::vector<int64_t> before(66, 0);
  before[1] = 1;  // 65 tokens ago
  CHECK(greedy({.presence_penalty = 1}, before) == 1);
  CHECK(greedy({.presence_penalty = 1, .penalty_last = 0}, before) == 3);
  CHECK(greedy({.presence_penalty = 9, .vocabulary = 2}, {1, 3}) == 0);  // 3 came before, and is outside the vocabulary
  CHECK(greedy({}, {9}) == 1);
  CHECK_SAYS(greedy({.presence_penalty = 1}, {4}), "token 4 came before, and there are 4 logits");
  CHECK_SAYS(greedy({.frequency_penalty = -1e300}, {2}), "the logit of token 2 is inf");
  CHECK_SAYS(greedy({.min_p = 1.1}, {}), "min_p is 1.1");
  CHECK_SAYS(greedy({.repetition_penalty = 0}, {}), "repetition_penalty is 0");
  CHECK_SAYS(greedy({.frequency_penalty = NAN}, {}), "frequency_penalty is nan");
  CHECK_SAYS(greedy({.presence_penalty = INFINITY}, {}), "presence_penalty is inf");
  CHECK_SAYS(greedy({.penalty_last = -1}, {}), "penalty_last is -1");
}

TEST_CASE("sample: the top p of a flat distribution over many tokens") {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i * 7919 % 5000) * 1e-3f;
  const auto p = detail::sample_probabilities(logits, {}), cut = detail::sample_probabilities(logits, {.top_p = 0.5});
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (size_t i : order) {
    CHECK((cut[i] > 0) == (sum < 0.5));
    sum += p[i];
  }
}

TEST_CASE("logprobs: log_softmax of the token, then the likeliest ones, which no option changes") {
  const Tensor logits = tensor<float>({1, 3, -2, 3, 100}, {5});
  const std::vector<Logprob> all = logprobs(logits, 2, 3);
  REQUIRE(all.size() == 4);
  const std::vector<int64_t> order{2, 4, 1, 3};  // the lower of equal logits is likelier
  for (size_t i = 0; i < 4; ++i) {
    CHECK(all[i].token == order[i]);
    CHECK(all[i].logprob == logits.to_vector<float>()[size_t(order[i])] - 100);
  }
  CHECK(logprobs(logits, 0).size() == 1);
  CHECK(logprobs(logits, 0, 99).size() == 6);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const Tensor some = tensor<float>({0.3f, -1.25f, 2, 0.1f, 1e-3f}, {5}).to(dtype);
    for (int64_t i = 0; i < 5; ++i)
      CHECK(logprobs(some, i)[0].logprob ==
            -cross_entropy(reshape(some, {1, 5}), tensor<int64_t>({i}, {1})).to_vector<double>()[0]);
  }
  CHECK_SAYS(logprobs(zeros({1, 5}), 0), "[sample] logprobs() got logits (1, 5). They must be (V), of one position.");
  CHECK_SAYS(logprobs(logits, 5), "the logprob of token 5 is asked for, and there are 5 logits");
  CHECK_SAYS(logprobs(logits, -1), "the logprob of token -1 is asked for");
  CHECK_SAYS(logprobs(logits, 0, -1), "k is -1. It is the number of likeliest tokens, 0 or more.");
  CHECK_SAYS(logprobs(tensor<float>({0, NAN}, {2}), 0), "the logit of token 1 is nan");
}
