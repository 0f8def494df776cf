#include <tapegrad/core/mode.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/models/nn/kv_cache.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tg {
namespace {
void check_logits(std::span<const float> logits) {
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    TG_CHECK(!std::isnan(logits[i]) && logits[i] != INFINITY, value,
             "[sample] the logit of token {} is {}. Logits must be finite or -inf; did the training diverge?", i,
             logits[i]);
    any |= std::isfinite(logits[i]);
  }
  TG_CHECK(any, value, "[sample] {} logits, none of them finite. At least one token must be possible.", logits.size());
}

// Tokens that may be drawn, the most likely first where an order is needed.
std::vector<int64_t> candidates(std::span<const float> logits, const SampleOptions& o) {
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  auto likelier = [&](int64_t a, int64_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x != y ? x > y : a < b;
  };
  if (o.top_k > 0 && size_t(o.top_k) < ids.size()) {
    std::partial_sort(ids.begin(), ids.begin() + o.top_k, ids.end(), likelier);
    ids.resize(size_t(o.top_k));
  } else if (o.top_p < 1) {
    std::sort(ids.begin(), ids.end(), likelier);
  }
  return ids;
}

Tensor next_logits(const Model& model, std::span<const int64_t> text, KvCache* cache) {
  const auto n = int64_t(text.size()), context = model.context() ? model.context() : n;
  if (n > context) cache = nullptr;
  const int64_t first = cache ? cache->length() : std::max<int64_t>(0, n - context);
  const Tensor tokens = tensor(text.subspan(size_t(first)), {1, n - first}, model.device());  // (1, T)
  return model.forward(tokens, {.cache = cache, .last_only = true});                          // (1, 1, V)
}
}  // namespace

void SampleOptions::validate() const {
  TG_CHECK(temperature >= 0 && std::isfinite(temperature), value,
           "[sample] temperature is {}. It must be finite and 0 or more; 0 takes the most likely token.", temperature);
  TG_CHECK(top_k >= 0, value, "[sample] top_k is {}. It must be 1 or more, or 0 for all tokens.", top_k);
  TG_CHECK(top_p > 0 && top_p <= 1, value, "[sample] top_p is {}. It must be in (0, 1]; 1 keeps all tokens.", top_p);
  TG_CHECK(vocabulary >= 0, value, "[sample] vocabulary is {}. It must be 1 or more, or 0 for all tokens.", vocabulary);
}

int64_t sample(std::span<const float> logits, const SampleOptions& o, Rng& rng) {
  o.validate();
  if (o.vocabulary > 0 && size_t(o.vocabulary) < logits.size()) logits = logits.first(size_t(o.vocabulary));
  check_logits(logits);
  const float top = *std::max_element(logits.begin(), logits.end());
  if (o.temperature == 0) return std::find(logits.begin(), logits.end(), top) - logits.begin();

  const std::vector<int64_t> ids = candidates(logits, o);
  std::vector<double> sums(ids.size());  // of the weights up to and with each candidate
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i)
    sums[i] = sum += std::exp((double(logits[size_t(ids[i])]) - double(top)) / o.temperature);
  if (o.top_p < 1) {
    const auto last = std::lower_bound(sums.begin(), sums.end(), o.top_p * sum);
    sums.resize(std::min(sums.size(), size_t(last - sums.begin()) + 1));
    sum = sums.back();
  }
  const double u = double(rng.below(uint64_t(1) << 53)) * 0x1p-53 * sum;  // in [0, sum)
  // The first sum above u: a candidate of weight 0 adds nothing to its sum and is never the first.
  const auto chosen = std::upper_bound(sums.begin(), sums.end(), u);
  return ids[size_t(std::min<int64_t>(chosen - sums.begin(), int64_t(sums.size()) - 1))];
}

std::vector<int64_t> generate(const Model& model, std::span<const int64_t> prompt, int64_t max_tokens,
                              const SampleOptions& o, const GenerateOptions& how) {
  o.validate();
  TG_CHECK(!prompt.empty(), value,
           "[generate] the prompt is empty. Pass at least one token, such as that of a line break.");
  TG_CHECK(max_tokens >= 0, value, "[generate] max_tokens is {}. It must be 0 or more.", max_tokens);
  for (size_t i = 0; i < prompt.size(); ++i)
    TG_CHECK(prompt[i] >= 0 && (model.vocab_size() == 0 || prompt[i] < model.vocab_size()), value,
             "[generate] token {} of the prompt is {}, and the vocabulary has {}. Tokens are in [0, {}).", i, prompt[i],
             model.vocab_size(), model.vocab_size());
  NoGradScope off;
  Rng rng{o.seed};
  KvCache cache;
  std::vector<int64_t> text(prompt.begin(), prompt.end());
  while (int64_t(text.size() - prompt.size()) < max_tokens) {
    KvCache* const held = how.use_cache && model.support().cache ? &cache : nullptr;
    const std::vector<float> logits = next_logits(model, text, held).to_vector<float>();
    text.push_back(sample(logits, o, rng));
    if (how.on_token && !how.on_token(text.back())) break;
  }
  return {text.begin() + int64_t(prompt.size()), text.end()};
}

}  // namespace tg
