// Twenty steps of a tiny GPT on one sentence. Fails unless the loss falls.
#include <tapegrad/tapegrad.h>

#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

int main() {
  constexpr std::string_view kText = "the tape remembers what was done, so that it can be undone.";
  constexpr int64_t kLength = 32;  // T; the batch is one window
  std::vector<int32_t> tokens, targets;
  for (size_t i = 0; i < kLength; ++i) {
    tokens.push_back(static_cast<unsigned char>(kText[i]));
    targets.push_back(static_cast<unsigned char>(kText[i + 1]));
  }
  const tg::Tensor x = tg::tensor(tokens, {1, kLength});   // (B, T) i32
  const tg::Tensor y = tg::tensor(targets, {1, kLength});  // (B, T) i32
  tg::Params params(tg::Device::cpu(), /*seed=*/1337);
  tg::Gpt model(params, {.vocab_size = 256, .context = kLength, .layers = 2, .heads = 2, .width = 32});
  tg::AdamW optimiser(params.trainable(), {.lr = 1e-2});
  std::vector<float> losses;
  for (int step = 0; step < 20; ++step) {
    const tg::Tensor loss = tg::cross_entropy(model.forward(x), y);
    optimiser.step(tg::backward(loss), {.clip_norm = 1.0});
    losses.push_back(loss.item<float>());
  }
  std::printf("loss %.3f -> %.3f\n", losses.front(), losses.back());
  return losses.back() < 0.5f * losses.front() ? 0 : 1;
}
