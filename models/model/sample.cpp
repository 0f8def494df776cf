#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace tg {
namespace {
// Drawable tokens' logits after penalties.
class Logits {
 public:
  Logits(std::span<const float> all, const SampleOptions& o, std::span<const int64_t> before) : logits_(all) {
    o.validate();
    if (o.vocabulary > 0 && size_t(o.vocabulary) < all.size()) logits_ = all.first(size_t(o.vocabulary));
    if (o.repetition_penalty != 1 || o.frequency_penalty != 0 || o.presence_penalty != 0) {
      if (o.penalty_last > 0 && size_t(o.penalty_last) < before.size()) before = before.last(size_t(o.penalty_last));
      penalise(o, before, all.size());
    }
    find_most_likely();
  }
  size_t size() const { return logits_.size(); }
  float operator[](int64_t token) const { return logits_[size_t(token)]; }
  int64_t most_likely() const { return most_likely_; }
  bool likelier(int64_t a, int64_t b) const {
    const float x = (*this)[a], y = (*this)[b];
    return x != y ? x > y : a < b;
  }

 private:
  void penalise(const SampleOptions& o, std::span<const int64_t> before, size_t most) {
    std::map<int64_t, int64_t> times;
    for (const int64_t token : before) {
      TG_CHECK(token >= 0 && size_t(token) < most, value,
               "[sample] token {} came before, and there are {} logits. Tokens are in [0, {}).", token, most, most);
      ++times[token];
    }
    changed_.assign(logits_.begin(), logits_.end());
    for (const auto& [token, n] : times) {
      if (size_t(token) >= changed_.size()) continue;  // not drawable
      float& logit = changed_[size_t(token)];
      const double x = logit, repeated = x > 0 ? x / o.repetition_penalty : x * o.repetition_penalty;
      logit = float(repeated - double(n) * o.frequency_penalty - o.presence_penalty);
    }
    logits_ = changed_;
  }
  // SIMD lanes: the vocabulary may be large. NaN is neither a maximum nor below infinity.
  void find_most_likely() {
    constexpr size_t kLanes = 16;
    float lane[kLanes];
    std::fill_n(lane, kLanes, -INFINITY);
    uint32_t below[kLanes];
    std::fill_n(below, kLanes, 1);
    const auto see = [&](size_t k, float x) {
      lane[k] = x > lane[k] ? x : lane[k];
      below[k] &= uint32_t(x < INFINITY);
    };
    size_t i = 0;
    for (; i + kLanes <= logits_.size(); i += kLanes)
      for (size_t k = 0; k < kLanes; ++k) see(k, logits_[i + k]);
    for (; i < logits_.size(); ++i) see(0, logits_[i]);
    if (std::find(below, below + kLanes, 0) != below + kLanes) {
      const auto wrong = std::ranges::find_if(logits_, [](float x) { return !(x < INFINITY); });
      TG_CHECK(false, value,
               "[sample] the logit of token {} is {}. Logits must be finite or -inf; did the training diverge?",
               wrong - logits_.begin(), *wrong);
    }
    const float top = *std::max_element(lane, lane + kLanes);
    TG_CHECK(top > -INFINITY, value, "[sample] {} logits, none of them finite. At least one token must be possible.",
             logits_.size());
    most_likely_ = std::ranges::find(logits_, top) - logits_.begin();
  }

  std::vector<float> changed_;
  std::span<const float> logits_;
  int64_t most_likely_ = 0;
};

// Drawable tokens, with likelihoods relative to the likeliest.
struct Candidates {
  std::vector<int64_t> tokens;
  std::vector<double> weights;
  double sum = 0;
};
Candidates candidates(const Logits& logits, const SampleOptions& o) {
  const double top = logits[logits.most_likely()];
  const auto weight = [&](int64_t token) {
    return math::detail::own_exp((double(logits[token]) - top) / o.temperature);
  };
  Candidates c;
  std::vector<int64_t>& t = c.tokens;
  t.resize(logits.size());
  std::iota(t.begin(), t.end(), 0);
  size_t in_order = 0;  // sorted front
  const auto order = [&](size_t n) {
    constexpr size_t kFew = 2048;
    const auto likelier = [&](int64_t a, int64_t b) { return logits.likelier(a, b); };
    const auto from = t.begin() + ptrdiff_t(in_order);
    in_order = n <= kFew && n < t.size() ? n : t.size();
    in_order < t.size() ? std::partial_sort(from, t.begin() + ptrdiff_t(in_order), t.end(), likelier)
                        : std::sort(from, t.end(), likelier);
  };
  if (o.top_k > 0 && size_t(o.top_k) < t.size()) {
    order(size_t(o.top_k));
    t.resize(size_t(o.top_k));
    in_order = t.size();
  }
  if (o.top_p < 1) {
    double all = 0, reached = 0;
    for (const int64_t token : t) all += weight(token);
    size_t n = 0;
    while (n < t.size() && reached < o.top_p * all) {
      // Sharp distributions need few tokens.
      if (n == in_order) order(std::max<size_t>(128, 4 * n));
      reached += weight(t[n++]);
    }
    t.resize(n);
  }
  if (o.min_p > 0) std::erase_if(t, [&](int64_t token) { return weight(token) < o.min_p; });
  for (const int64_t token : t) c.sum += c.weights.emplace_back(weight(token));
  return c;
}
}  // namespace

void SampleOptions::validate() const {
  TG_CHECK(temperature >= 0 && std::isfinite(temperature), value,
           "[sample] temperature is {}. It must be finite and 0 or more; 0 takes the most likely token.", temperature);
  TG_CHECK(top_k >= 0, value, "[sample] top_k is {}. It must be 1 or more, or 0 for all tokens.", top_k);
  TG_CHECK(top_p > 0 && top_p <= 1, value, "[sample] top_p is {}. It must be in (0, 1]; 1 keeps all tokens.", top_p);
  TG_CHECK(min_p >= 0 && min_p <= 1, value, "[sample] min_p is {}. It must be in [0, 1]; 0 keeps all tokens.", min_p);
  TG_CHECK(repetition_penalty > 0 && std::isfinite(repetition_penalty), value,
           "[sample] repetition_penalty is {}. It must be finite and more than 0; 1 changes nothing.",
           repetition_penalty);
  TG_CHECK(std::isfinite(frequency_penalty), value,
           "[sample] frequency_penalty is {}. It must be finite; 0 changes nothing.", frequency_penalty);
  TG_CHECK(std::isfinite(presence_penalty), value,
           "[sample] presence_penalty is {}. It must be finite; 0 changes nothing.", presence_penalty);
  TG_CHECK(penalty_last >= 0, value, "[sample] penalty_last is {}. It must be 1 or more, or 0 for all tokens.",
           penalty_last);
  TG_CHECK(vocabulary >= 0, value, "[sample] vocabulary is {}. It must be 1 or more, or 0 for all tokens.", vocabulary);
}

int64_t sample(std::span<const float> all, const SampleOptions& o, Rng& rng, std::span<const int64_t> before) {
  const detail::DefaultFloatMode mode;
  const Logits logits(all, o, before);
  if (o.temperature == 0) return logits.most_likely();
  const Candidates c = candidates(logits, o);
  const double u = double(rng.below(uint64_t(1) << 53)) * 0x1p-53 * c.sum;  // range [0, sum)
  // The first cumulative weight above u never has weight 0.
  double sum = 0;
  for (size_t i = 0; i + 1 < c.tokens.size(); ++i)
    if ((sum += c.weights[i]) > u) return c.tokens[i];
  return c.tokens.back();
}
std::vector<double> detail::sample_probabilities(std::span<const float> all, const SampleOptions& o,
                                                 std::span<const int64_t> before) {
  const Logits logits(all, o, before);
  std::vector<double> r(all.size());
  if (o.temperature == 0) {
    r[size_t(logits.most_likely())] = 1;
    return r;
  }
  const Candidates c = candidates(logits, o);
  for (size_t i = 0; i < c.tokens.size(); ++i) r[size_t(c.tokens[i])] = c.weights[i] / c.sum;
  return r;
}
std::vector<Logprob> logprobs(const Tensor& all, int64_t token, int64_t k) {
  TG_CHECK(all.ndim() == 1, shape, "[sample] logprobs() got logits {}. They must be (V), of one position.",
           all.shape());
  TG_CHECK(token >= 0 && token < all.numel(), value,
           "[sample] the logprob of token {} is asked for, and there are {} logits. Tokens are in [0, {}).", token,
           all.numel(), all.numel());
  TG_CHECK(k >= 0, value, "[sample] k is {}. It is the number of likeliest tokens, 0 or more.", k);
  NoGradScope off;
  const DType dtype = all.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const std::vector<float> finite = all.to_vector<float>();
  const Logits checked(finite, {}, {});
  const std::vector<double> logits = all.to_vector<double>(), logs = log_softmax(all.to(dtype)).to_vector<double>();
  std::vector<int64_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto end = tokens.begin() + std::min(k, int64_t(tokens.size()));
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](int64_t a, int64_t b) {
    const double x = logits[size_t(a)], y = logits[size_t(b)];
    return x != y ? x > y : a < b;
  });
  tokens.erase(end, tokens.end());
  tokens.insert(tokens.begin(), token);
  std::vector<Logprob> r;
  for (const int64_t t : tokens) r.push_back({t, logs[size_t(t)]});
  return r;
}

}  // namespace tg
