// A masked language model like BERT (Devlin et al., 2018): a bidirectional post-norm encoder, trained on lines of
// unequal length.
//   bert TEXT [STEPS]
#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

struct Bert {
  struct Block {
    tg::nn::SelfAttention attention;
    tg::nn::Mlp mlp;
    tg::nn::Norm after_attention, after_mlp;
    Block(const tg::Params& p, int64_t width, const tg::nn::BlockOptions& o)
        : attention(p.at("attention"), width, o),
          mlp(p.at("mlp"), width, o),
          after_attention(p.at("ln_1"), width, {.bias = true}),
          after_mlp(p.at("ln_2"), width, {.bias = true}) {}
  };
  int64_t padding;  // padding id
  tg::nn::Embedding ids, positions;
  std::vector<Block> blocks;
  tg::nn::Linear head;

  Bert(const tg::Params& p, int64_t vocab_size, int64_t context, int64_t width, int64_t layers)
      : padding(vocab_size - 1),
        ids(p.at("ids"), vocab_size, width),
        positions(p.at("positions"), context, width),
        head(p.at("head"), width, vocab_size) {
    for (int64_t i = 0; i < layers; ++i)
      blocks.emplace_back(p.at("layer").at(i), width, tg::nn::BlockOptions{.heads = 4, .bias = true});
  }
  tg::Tensor forward(const tg::Tensor& tokens) const {                   // (B, T) -> (B, T, V)
    const tg::Tensor lengths = tg::sum(tokens != double(padding), {1});  // (B)
    tg::Tensor x = ids.forward(tokens) + tg::slice(positions.table, 0, 0, tokens.size(1));
    for (const Block& b : blocks) {
      x = b.after_attention.forward(x + b.attention.forward(x, {.lengths = lengths}));
      x = b.after_mlp.forward(x + b.mlp.forward(x));
    }
    return head.forward(x);
  }
};

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: bert TEXT [STEPS]\n"), 2;
  const std::string text = tg::read_texts(std::vector<std::string>{argv[1]});
  const auto tokenizer = tg::CharTokenizer::from_text(text);
  constexpr int64_t kBatch = 8, kContext = 48;
  const int64_t mask = tokenizer.vocab_size(), padding = mask + 1;
  std::vector<std::vector<int64_t>> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) lines.push_back(tokenizer.encode(line));

  // Eight lines. Targets: hidden characters, 15 %.
  const auto batch = [&](tg::Rng& rng) {
    std::vector<int64_t> inputs(kBatch * kContext, padding), targets(inputs.size(), tg::Batch::kIgnoreIndex);
    for (int64_t b = 0; b < kBatch; ++b) {
      const auto& line = lines[rng.below(lines.size())];
      for (int64_t t = 0; t < std::min(kContext, std::ssize(line)); ++t) {
        const bool hidden = t == 0 || rng.below(100) < 15;
        inputs[size_t(b * kContext + t)] = hidden ? mask : line[size_t(t)];
        if (hidden) targets[size_t(b * kContext + t)] = line[size_t(t)];
      }
    }
    return tg::Batch{tg::tensor(inputs, {kBatch, kContext}), tg::tensor(targets, {kBatch, kContext})};
  };
  const auto held_out = [&](int64_t i) -> std::optional<tg::Batch> {
    tg::Rng rng = tg::Rng{99}.split(uint64_t(i));
    return i < 4 ? std::optional(batch(rng)) : std::nullopt;
  };
  const tg::TrainConfig config{.max_steps = argc > 2 ? std::atoi(argv[2]) : 200, .lr = 3e-3, .warmup = 20};
  const tg::Params params(tg::Device::cpu(), config.seed);
  const Bert model(params, padding + 1, kContext, 64, 2);
  tg::Trainer trainer(model, params, {batch, held_out}, config);
  trainer.run([](const tg::StepRecord& r) {
    if (r.step % 50 == 0) std::printf("step %d  masked loss %.4f\n", int(r.step), r.loss);
    if (r.val_loss) std::printf("validation loss %.4f\n", *r.val_loss);
  });
}
