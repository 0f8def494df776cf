// Weights in blocks: random bytes with finite scales.
#pragma once
#include <tapegrad/core/mode.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/ops/quantized/block_linear.h>

#include <cstring>

#include "support/helpers.h"

namespace tg {

inline constexpr BlockFormat kBlockFormats[] = {BlockFormat::q4_0, BlockFormat::q4_1, BlockFormat::q5_0,
                                                BlockFormat::q5_1, BlockFormat::q8_0, BlockFormat::q4_k,
                                                BlockFormat::q5_k, BlockFormat::q6_k, BlockFormat::nf4};

// Replaces the scales of a block: f16 in [-2, 2) with nine of its bits random, or nf4's f32.
inline void set_scales(BlockFormat f, uint8_t* block, const std::function<float()>& next) {
  if (f == BlockFormat::nf4) {
    const float absmax = std::abs(next());
    std::memcpy(block, &absmax, 4);
    return;
  }
  const bool two = f == BlockFormat::q4_1 || f == BlockFormat::q5_1 || f == BlockFormat::q4_k || f == BlockFormat::q5_k;
  for (int i = 0; i <= int(two); ++i) {
    const f16 d(next());
    std::memcpy(block + (f == BlockFormat::q6_k ? 208 : 2 * i), &d, 2);
  }
}
// u8 (rows, bytes of `in` elements); values are about 1.
inline Tensor random_codes(BlockFormat f, int64_t rows, int64_t in, uint64_t seed) {
  const detail::BlockLayout& l = detail::layout_of_block(f);
  Rng rng{seed};
  const float size = f == BlockFormat::nf4                              ? 1.0f
                     : f == BlockFormat::q6_k                           ? 1.0f / 4096
                     : f == BlockFormat::q4_k || f == BlockFormat::q5_k ? 1.0f / 1024
                     : f == BlockFormat::q8_0                           ? 1.0f / 128
                                                                        : 1.0f / 16;
  std::vector<uint8_t> bytes(size_t(rows * in / l.elements * l.bytes));
  for (uint8_t& b : bytes) b = uint8_t(rng.uniform() * 256);
  for (size_t i = 0; i < bytes.size(); i += size_t(l.bytes))
    set_scales(f, bytes.data() + i, [&] { return (float(rng.uniform()) * 2 - 1) * size; });
  return tensor<uint8_t>(bytes, {rows, in / l.elements * l.bytes});
}
inline BlockWeight random_blocks(const std::vector<std::pair<BlockFormat, int64_t>>& parts, int64_t in, uint64_t seed) {
  BlockWeight w;
  for (const auto& [format, rows] : parts) w.parts.push_back({random_codes(format, rows, in, seed++), format});
  return w;
}

// With the shapes of a Gpt's parameters.
inline TensorSource source_for(const GptConfig& c) {
  const LazyScope lazy;
  const Params params;
  const Gpt gpt(params, c);
  TensorSource source;
  for (const Parameter& p : params.all()) source.shapes[p.name] = p.tensor.shape();
  return source;
}
// Parameters of a Gpt whose matrices are in q4_0; sizes of rows must be multiples of 32.
inline Params params_in_blocks(const GptConfig& c, DType t, uint64_t seed) {
  TensorSource source = source_for(c);
  const auto all = source.shapes;
  source.read = [=](const std::string& name) { return random(all.at(name), seed + name.size(), 0.5, 1.5); };
  source.blocks = [=](const std::string& name) -> std::optional<BlockWeight> {
    const Shape& s = all.at(name);
    if (s.size() != 2 || name == "wpe.weight") return {};
    return random_blocks({{BlockFormat::q4_0, s[0]}}, s[1], seed + name.size());
  };
  const Params params({}, seed, t);
  params.load(std::move(source));
  return params;
}

}  // namespace tg
