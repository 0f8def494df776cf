// A vision transformer (Dosovitskiy et al., 2020) for images of one channel. reshape and permute make patches.
#pragma once
#include <tapegrad/tapegrad.h>

#include <cmath>
#include <numbers>

struct VitConfig {
  int64_t size = 16, patch = 4;  // sides of images and patches
  int64_t layers = 2, heads = 4, width = 32, classes = 4;
};

struct Vit {
  struct Block {
    tg::nn::Norm ln_1, ln_2;
    tg::nn::SelfAttention attention;
    tg::nn::Mlp mlp;
    Block(const tg::Params& p, int64_t width, const tg::nn::BlockOptions& o)
        : ln_1(p.at("ln_1"), width),
          ln_2(p.at("ln_2"), width),
          attention(p.at("attn"), width, o),
          mlp(p.at("mlp"), width, o) {}
  };
  VitConfig config;
  int64_t side;  // patches in a row
  tg::nn::Linear embed;
  tg::nn::Embedding positions;
  std::vector<Block> blocks;
  tg::nn::Norm last;
  tg::nn::Linear head;

  Vit(const tg::Params& p, const VitConfig& c)
      : config(c),
        side(c.size / c.patch),
        embed(p.at("embed"), c.patch * c.patch, c.width),
        positions(p.at("positions"), side * side, c.width),
        last(p.at("ln_f"), c.width),
        head(p.at("head"), c.width, c.classes) {
    for (int64_t i = 0; i < c.layers; ++i)
      blocks.emplace_back(p.at("h").at(i), c.width, tg::nn::BlockOptions{.heads = c.heads});
  }
  tg::Tensor forward(const tg::Tensor& images) const {  // (B, size, size) -> (B, classes)
    const int64_t b = images.size(0), n = config.patch;
    const tg::Tensor tiles = tg::permute(tg::reshape(images, {b, side, n, side, n}), {0, 1, 3, 2, 4});
    tg::Tensor x = embed.forward(tg::reshape(tiles, {b, side * side, n * n})) + positions.table;
    for (const Block& k : blocks) {
      x = x + k.attention.forward(k.ln_1.forward(x));
      x = x + k.mlp.forward(k.ln_2.forward(x));
    }
    return head.forward(tg::mean(last.forward(x), {1}));
  }
};

// Noisy stripes with random phase. Classes: four directions.
inline tg::Batch stripes(tg::Rng& rng, int64_t batch, int64_t size) {
  const auto uniform = [&] { return double(rng.below(1 << 20)) / (1 << 20); };
  std::vector<float> pixels;
  std::vector<int64_t> classes;
  for (int64_t b = 0; b < batch; ++b) {
    classes.push_back(int64_t(rng.below(4)));
    const double angle = std::numbers::pi / 4 * double(classes.back()), phase = 2 * std::numbers::pi * uniform();
    for (int64_t i = 0; i < size * size; ++i) {
      const double along = double(i / size) * std::cos(angle) + double(i % size) * std::sin(angle);
      pixels.push_back(float(std::sin(1.3 * along + phase) + 2 * (uniform() - 0.5)));
    }
  }
  return {tg::tensor(pixels, {batch, size, size}), tg::tensor(classes, {batch})};
}
