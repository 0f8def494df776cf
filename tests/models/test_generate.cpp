// Generation with the cache and without it.
#include "support/files.h"
#include "support/tiny_gpt.h"

#include <tapegrad/tapegrad.h>

using namespace tg;

namespace {
std::vector<int64_t> greedy(const Gpt& model, std::vector<int64_t> prompt, int64_t n, bool cache) {
  return generate(model, prompt, n, {.temperature = 0}, {.use_cache = cache});
}
}  // namespace

TEST_CASE("cache: a failed call leaves it as it was") {
  const auto [params, model] = new_gpt(tiny_gpt());
  NoGradScope off;
  KvCache cache;
  model.forward(tensor({1, 2, 3}, {1, 3}), {.cache = &cache});
  CHECK_SAYS(model.forward(tensor({1, 2}, {2, 1}), {.cache = &cache}),
             "A cache belongs to one model and one batch; clear() it first.");
  CHECK(cache.length() == 3);
  const Tensor next = model.forward(tensor({4}, {1, 1}), {.cache = &cache});
  CHECK(distance(next, slice(model.forward(tensor({1, 2, 3, 4}, {1, 4})), 1, 3, 4)) <= 1e-5);
}

TEST_CASE("generate: the same tokens with the cache and without, beyond the context too") {
  const auto [params, model] = new_gpt(tiny_gpt(), Params(Device(), 9));
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
  const auto [params, model] = new_gpt(tiny_gpt(), Params(Device(), 9));
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
  CHECK_SAYS(generate(model, {}, 1), "the prompt is empty");
  CHECK_SAYS(generate(model, prompt, -1), "max_tokens is -1");
  CHECK_SAYS(generate(model, std::vector<int64_t>{3, 11}, 1), "token 1 of the prompt is 11, and the vocabulary has 11");
  CHECK_SAYS(generate(model, prompt, 1, {.temperature = -1}), "temperature is -1");
  CHECK_SAYS(generate(model, prompt, 1, {.top_k = -2}), "top_k is -2");
  CHECK_SAYS(generate(model, prompt, 1, {.vocabulary = -1}), "vocabulary is -1");
  for (const int64_t t : generate(model, prompt, 40, {.vocabulary = 5, .seed = 2})) CHECK(t < 5);
  CHECK_SAYS(generate(model, prompt, 1, {.top_p = 0}), "top_p is 0");
  CHECK_SAYS(generate(model, prompt, 1, {.top_p = 1.5}), "top_p is 1.5");
}

TEST_CASE("generate: the same tokens compiled and not, and a stop token ends the text") {
  for (const bool rope : {false, true}) {
    const Params params(Device(), 9);
    GptConfig c = tiny_gpt();
    if (rope) c.positions = Positions::rope, c.kv_heads = 1;
    const Gpt model(params, c);
    const std::vector<int64_t> prompt{3, 4};
    const SampleOptions o{.temperature = 1, .seed = 4};
    const auto tokens = generate(model, prompt, 15, o);
    CHECK(tokens == generate(model, prompt, 15, o, {.compile = false}));
    CHECK(tokens == generate(model, prompt, 15, o, {.use_cache = false}));
    for (const int64_t stop : {tokens[0], tokens[3], tokens[9]}) {
      const auto end = std::find(tokens.begin(), tokens.end(), stop) + 1;
      CHECK(generate(model, prompt, 15, o, {.stop = {100, stop}}) == std::vector<int64_t>(tokens.begin(), end));
    }
  }
}

TEST_CASE("generate_batch: prompts of unequal lengths give the tokens of each alone") {
  for (const bool rope : {false, true})
    for (const GenerateOptions& how : {GenerateOptions{}, {.compile = false}, {.use_cache = false}}) {
      GptConfig c = tiny_gpt();
      if (rope) c.positions = Positions::rope, c.kv_heads = 1;
      const auto [params, model] = new_gpt(c, Params(Device(), 9));
      // Shorter than the context of 8, as long, and longer; they leave it at different times.
      const std::vector<std::vector<int64_t>> prompts{
          {3}, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 6, 7, 8}, {7, 7}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 10}};
      const auto all = generate_batch(model, prompts, 14, {.temperature = 0}, how);
      REQUIRE(all.size() == prompts.size());
      for (size_t i = 0; i < prompts.size(); ++i) CHECK(all[i] == greedy(model, prompts[i], 14, true));
      // Each row draws from its own generator.
      const SampleOptions o{.temperature = 1.1, .top_k = 6, .seed = 7};
      const auto drawn = generate_batch(model, prompts, 14, o, how);
      CHECK(drawn == generate_batch(model, prompts, 14, o, {.use_cache = !how.use_cache}));
      CHECK(drawn[0] == generate_batch(model, std::vector(1, prompts[0]), 14, o, how)[0]);
      const std::vector<std::vector<int64_t>> others{{5, 5}, prompts[1], {2}};
      CHECK(drawn[1] == generate_batch(model, others, 14, o, how)[1]);
      CHECK(generate_batch(model, std::vector(2, prompts[3]), 14, o, how)[0] !=
            generate_batch(model, std::vector(2, prompts[3]), 14, o, how)[1]);
    }
}

TEST_CASE("generate_batch: texts end at different times, and the others go on") {
  const auto [params, model] = new_gpt(tiny_gpt(), Params(Device(), 9));
  const std::vector<std::vector<int64_t>> prompts{{3}, {1, 2, 3}, {5, 6}};
  const SampleOptions o{.temperature = 1, .seed = 1};
  const auto all = generate_batch(model, prompts, 12, o);
  const int64_t stop = all[1][2];
  std::vector<std::vector<int64_t>> streamed(3);
  GenerateOptions how{.stop = {stop}};
  how.on_row_token = [&](int64_t row, int64_t token) {
    streamed[size_t(row)].push_back(token);
    return row != 2 || streamed[2].size() < 4;
  };
  const auto cut = generate_batch(model, prompts, 12, o, how);
  CHECK(cut == streamed);
  for (size_t i = 0; i < 3; ++i) {
    const auto end = std::find(all[i].begin(), all[i].end(), stop);
    size_t n = size_t(end - all[i].begin()) + (end != all[i].end());
    if (i == 2) n = std::min<size_t>(n, 4);
    CHECK(cut[i] == std::vector<int64_t>(all[i].begin(), all[i].begin() + ptrdiff_t(n)));
  }
  CHECK(cut[1].size() <= 3);
  CHECK(generate_batch(model, {}, 3).empty());
  CHECK(generate_batch(model, prompts, 0) == std::vector<std::vector<int64_t>>(3));
  CHECK_SAYS(generate_batch(model, std::vector<std::vector<int64_t>>{{1}, {}}, 3), "[generate] prompt 1 is empty");
  CHECK_SAYS(generate_batch(model, std::vector<std::vector<int64_t>>{{1, 11}}, 3),
             "[generate] token 1 of prompt 0 is 11");
}

TEST_CASE("generate: penalties see the prompt and what was made, and rows keep their draws in parts of a batch") {
  const auto [params, model] = new_gpt(tiny_gpt(), Params(Device(), 9));
  const std::vector<int64_t> prompt{3, 4, 4, 4};
  for (const double temperature : {0.0, 1.2}) {
    SampleOptions o{.temperature = temperature, .repetition_penalty = 1.4, .seed = 3};
    o.frequency_penalty = 0.5, o.presence_penalty = -0.1, o.penalty_last = 6;
    std::vector<int64_t> text = prompt;
    Rng rng{o.seed};
    NoGradScope off;
    for (int i = 0; i < 12; ++i) {
      const auto n = std::min<int64_t>(int64_t(text.size()), 8);
      const Tensor in = tensor(std::vector<int64_t>(text.end() - n, text.end()), {1, n});
      const auto logits = model.forward(in, {.last_only = true}).to_vector<float>();
      text.push_back(sample(logits, o, rng, text));
    }
    const auto made = generate(model, prompt, 12, o);
    CHECK(made == std::vector<int64_t>(text.begin() + 4, text.end()));
    CHECK(made != generate(model, prompt, 12, {.temperature = temperature, .seed = 3}));
  }
  const std::vector<std::vector<int64_t>> prompts{{1}, {2, 3}, {4, 5, 6}};
  const SampleOptions o{.temperature = 2, .seed = 6};
  const auto all = generate_batch(model, prompts, 9, o);
  const auto last = generate_batch(model, std::span(prompts).subspan(1), 9, o, {.first_row = 1});
  CHECK(last == std::vector(all.begin() + 1, all.end()));
  CHECK(last != generate_batch(model, std::span(prompts).subspan(1), 9, o));
  CHECK_SAYS(generate_batch(model, prompts, 1, o, {.first_row = -1}), "first_row is -1");
}

TEST_CASE("generate: log-probabilities of the tokens sum to the loss of the model, whatever draws them") {
  const auto [params, model] = new_gpt(tiny_gpt(), Params(Device(), 9));
  const std::vector<std::vector<int64_t>> prompts{{3}, {4}};
  const SampleOptions o{.temperature = 1.7, .top_k = 6, .repetition_penalty = 1.3, .vocabulary = 10, .seed = 3};
  for (const bool cache : {true, false}) {
    std::vector<double> sums(2);
    const auto add = [&](int64_t row, int64_t token, const Tensor& logits) {
      CHECK(logits.numel() == 11);
      sums[size_t(row)] += logprobs(logits, token)[0].logprob;
    };
    const auto made = generate_batch(model, prompts, 8, o, {.use_cache = cache, .on_logits = add});
    for (size_t i = 0; i < 2; ++i) {
      std::vector<int64_t> inputs = prompts[i];
      inputs.insert(inputs.end(), made[i].begin(), made[i].end() - 1);
      const double loss = Model(model).loss({tensor(inputs, {1, 8}), tensor(made[i], {1, 8})}).item<float>();
      CHECK(std::abs(sums[i] / 8 + loss) <= 1e-6);
    }
  }
}
