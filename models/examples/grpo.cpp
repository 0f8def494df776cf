// Policy gradient (GRPO: Shao et al., 2024) on a task of counting: each digit is one more than the one before.
// generate_batch() and forward() share the weights and their log-probabilities are equal bit for bit, so that the KL
// divergence between sampler and trainer is exactly 0: no importance weights are needed.
//   grpo [STEPS]
#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace {
constexpr int64_t kDigits = 10, kLength = 6, kSamples = 16, kTexts = kDigits * kSamples;

struct Samples {
  std::vector<int64_t> inputs, targets;  // (kTexts, kLength)
  std::vector<double> logprobs;          // what the sampler says of each target
  std::vector<float> advantages;         // the text's reward minus the mean of its prompt
  double reward = 0;                     // mean share of right digits
};
Samples draw(const tg::Gpt& model, uint64_t seed) {
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t i = 0; i < kTexts; ++i) prompts.push_back({i / kSamples});
  std::vector<std::vector<double>> logprobs(prompts.size());
  const auto keep = [&](int64_t row, int64_t token, const tg::Tensor& logits) {
    logprobs[size_t(row)].push_back(tg::logprobs(logits, token)[0].logprob);
  };
  const auto made = tg::generate_batch(model, prompts, kLength, {.seed = seed}, {.on_logits = keep});
  Samples s;
  std::vector<float> rewards;
  for (size_t i = 0; i < prompts.size(); ++i) {
    int64_t right = 0, before = prompts[i][0];
    for (const int64_t digit : made[i]) right += digit == (std::exchange(before, digit) + 1) % kDigits;
    rewards.push_back(float(right) / kLength);
    s.reward += double(rewards.back()) / kTexts;
    s.inputs.push_back(prompts[i][0]);
    s.inputs.insert(s.inputs.end(), made[i].begin(), made[i].end() - 1);
    s.targets.insert(s.targets.end(), made[i].begin(), made[i].end());
    s.logprobs.insert(s.logprobs.end(), logprobs[i].begin(), logprobs[i].end());
  }
  for (size_t first = 0; first < rewards.size(); first += kSamples) {
    float mean = 0;
    for (size_t i = first; i < first + kSamples; ++i) mean += rewards[i] / kSamples;
    for (size_t i = first; i < first + kSamples; ++i)
      s.advantages.insert(s.advantages.end(), kLength, rewards[i] - mean);
  }
  return s;
}
}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 300;
  const tg::Params params(tg::Device::cpu(), /*seed=*/1);
  const tg::Gpt model(params, {.vocab_size = kDigits, .context = kLength + 1, .layers = 2, .heads = 2, .width = 32});
  tg::AdamW optimizer(params.all(), {.lr = 5e-3, .weight_decay = 0});
  for (int step = 1; step <= steps; ++step) {
    const Samples s = draw(model, uint64_t(step));
    const tg::Tensor logits = model.forward(tg::tensor(s.inputs, {kTexts, kLength}));
    const tg::Tensor nll =
        tg::cross_entropy(tg::reshape(logits, {-1, kDigits}), tg::tensor(s.targets, {kTexts * kLength}),
                          {.reduction = tg::Reduction::none});
    const std::vector<double> trained = nll.to_vector<double>();
    // An estimate of KL(sampler || trainer) from its samples, and its largest term.
    double kl = 0, most = 0;
    for (size_t i = 0; i < trained.size(); ++i) {
      const double difference = s.logprobs[i] + trained[i];
      kl += difference / double(trained.size()), most = std::max(most, std::abs(difference));
    }
    std::printf("step %d  KL %g  largest difference %g  reward %.3f\n", step, kl, most, s.reward);
    if (most != 0) return 1;
    optimizer.step(tg::backward(tg::mean(nll * tg::tensor(s.advantages, {kTexts * kLength}))));
  }
}
