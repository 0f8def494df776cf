// A character model with a custom training loop, micro-batches, a schedule and a checkpoint. Resumed runs are bitwise
// equal.
//   gpt TEXT [STEPS] [CHECKPOINT]
#include <tapegrad/tapegrad.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: gpt TEXT [STEPS] [CHECKPOINT]\n"), 2;
  const int64_t steps = argc > 2 ? std::atoi(argv[2]) : 200;
  const std::string path = argc > 3 ? argv[3] : "";
  const std::string text = tg::read_texts(std::vector<std::string>{argv[1]});
  const auto tokenizer = tg::CharTokenizer::from_text(text);
  tg::ShuffledBatches batches(tg::TokenData::from_text(tokenizer, text), /*batch=*/6, /*context=*/64, tg::Rng{1});

  const tg::Params params(tg::Device::cpu(), /*seed=*/1);
  const tg::Gpt model(params, {.vocab_size = tokenizer.vocab_size(), .layers = 2, .width = 64});
  tg::AdamW optimizer(params.trainable(), {.weight_decay = 0.1});
  const tg::Schedule schedule{.lr = 3e-3, .min_lr = 3e-4, .warmup = 10, .total = 200};

  int64_t step = 0;
  if (!path.empty() && std::filesystem::exists(path)) {
    const tg::Checkpoint from = tg::load_checkpoint(path);
    tg::restore(from.state, params, optimizer);
    batches.set_rng(from.state.data);
    step = from.state.step;
  }
  for (; step < steps; ++step) {
    optimizer.set_lr(schedule.at(step));
    const std::vector<tg::Batch> micro = {batches.next(), batches.next()};
    const auto loss = [&](const tg::Batch& b) { return tg::cross_entropy(model.forward(b.inputs), b.targets); };
    const tg::Accumulated sum = tg::accumulate(loss, micro);
    optimizer.step(sum.grads, {.clip_norm = 1});
    if ((step + 1) % 50 == 0) std::printf("step %d  loss %.4f\n", int(step + 1), sum.loss.item<double>());
  }
  if (!path.empty())
    tg::save_checkpoint(path, {.config = tg::to_json(model.config()),
                               .state = tg::training_state(step, params, optimizer, batches.rng())});
  const auto more = tg::generate(model, tokenizer.encode(text.substr(0, 16)), 80, {.temperature = 0.8, .seed = 1});
  std::printf("%s\n", tokenizer.decode(more).c_str());
}
