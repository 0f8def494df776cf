// Reads GGUF files; small models to write. Included by doctest files only.
#pragma once
#include <tapegrad/tapegrad.h>

#include <cstring>
#include <map>

#include "support/files.h"
#include "support/helpers.h"

namespace tg {

struct GgufField {
  uint32_t type = 0;
  double number = 0;
  std::string text;
  std::vector<GgufField> list;
  std::vector<std::string> texts() const {
    std::vector<std::string> all;
    for (const GgufField& x : list) all.push_back(x.text);
    return all;
  }
  std::vector<double> numbers() const {
    std::vector<double> all;
    for (const GgufField& x : list) all.push_back(x.number);
    return all;
  }
};
struct GgufStored {
  uint32_t type = 0;
  Shape shape;
  std::string bytes;
  template <class T> std::vector<T> all() const {
    std::vector<T> list(bytes.size() / sizeof(T));
    std::memcpy(list.data(), bytes.data(), bytes.size());
    return list;
  }
};

// A file by its specification.
class GgufContent {
 public:
  std::map<std::string, GgufField> keys;
  std::map<std::string, GgufStored> tensors;

  explicit GgufContent(const std::string& path) : bytes_(read_file(path)) {
    REQUIRE(bytes_.substr(0, 4) == "GGUF");
    at_ = 4;
    REQUIRE(take<uint32_t>() == 3);
    const auto count = take<uint64_t>(), pairs = take<uint64_t>();
    for (uint64_t i = 0; i < pairs; ++i) {
      const std::string key = text();
      REQUIRE(!keys.contains(key));
      const auto type = take<uint32_t>();
      keys[key] = value(type);
    }
    std::vector<std::pair<std::string, uint64_t>> offsets;
    for (uint64_t i = 0; i < count; ++i) {
      const std::string name = text();
      REQUIRE(name.size() < 64);
      REQUIRE(!tensors.contains(name));
      GgufStored& t = tensors[name];
      const auto dims = take<uint32_t>();
      for (uint32_t k = 0; k < dims; ++k) t.shape.insert(0, int64_t(take<uint64_t>()));
      t.type = take<uint32_t>();
      offsets.emplace_back(name, take<uint64_t>());
    }
    size_t end = (at_ + 31) / 32 * 32;
    const size_t data = end;
    for (const auto& [name, offset] : offsets) {
      GgufStored& t = tensors[name];
      REQUIRE(data + offset == end);  // no gaps but padding
      const auto n = size_t(t.shape.product());
      const size_t size = t.type == 0 ? 4 * n : t.type == 8 ? n / 32 * 34 : 2 * n;
      t.bytes = bytes_.substr(end, size);
      end += (size + 31) / 32 * 32;
    }
    REQUIRE(bytes_.size() == end);
  }
  const std::string& text(const std::string& key) const { return keys.at(key).text; }
  double number(const std::string& key) const { return keys.at(key).number; }

 private:
  template <class T> T take() {
    REQUIRE(at_ + sizeof(T) <= bytes_.size());
    T x;
    std::memcpy(&x, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return x;
  }
  std::string text() {
    const auto n = size_t(take<uint64_t>());
    REQUIRE(at_ + n <= bytes_.size());
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  GgufField value(uint32_t type) {
    GgufField v{type, 0, "", {}};
    if (type == 4) v.number = take<uint32_t>();
    if (type == 5) v.number = take<int32_t>();
    if (type == 6) v.number = double(take<float>());
    if (type == 7) v.number = take<uint8_t>();
    if (type == 8) v.text = text();
    REQUIRE((type == 9 || (type >= 4 && type <= 8)));
    if (type != 9) return v;
    const auto of = take<uint32_t>();
    const auto n = take<uint64_t>();
    for (uint64_t i = 0; i < n; ++i) v.list.push_back(value(of));
    return v;
  }
  std::string bytes_;
  size_t at_ = 0;
};

inline GptConfig small_gguf(Family family) {
  GptConfig c{.vocab_size = 260, .context = 16, .layers = 2, .heads = 4, .width = 64, .ff_width = 96};
  if (family == Family::gpt2) {
    c.activation = Activation::gelu_tanh, c.bias = true;
    return c;
  }
  c.positions = Positions::rope, c.norm = NormKind::rms_norm, c.activation = Activation::swiglu;
  c.kv_heads = 2, c.tied_head = false, c.rope_theta = 500;
  c.qkv_bias = family == Family::qwen2, c.qk_norm = family == Family::qwen3;
  if (family == Family::qwen3) c.head_dim = 8;
  return c;
}
inline constexpr Family kGgufFamilies[] = {Family::gpt2, Family::llama, Family::qwen2, Family::qwen3};

struct GgufModel {
  GptConfig config;
  Params params;
  Gpt model;
  Folder folder;
  ByteTokenizer bytes;
  // All parameters are random: initial biases are zeros.
  explicit GgufModel(const GptConfig& c) : config(c), params(Device(), 7), model(params, c) {
    StateDict s = params.state();
    uint64_t seed = 0;
    for (auto& [name, t] : s) t = random(t.shape(), ++seed);
    params.assign(s);
  }
  GgufContent save(GgufOptions o = {}) const {
    if (!o.tokenizer) o.tokenizer = &bytes;
    save_gguf(folder / "m.gguf", config, params, o);
    CHECK(folder.entries() == 1);
    return GgufContent(folder / "m.gguf");
  }
  Tensor operator[](const std::string& name) const { return params.state().at(name); }
};
inline GgufModel gguf_model(Family family) { return GgufModel(small_gguf(family)); }

// Rows in the order of halves.
inline std::vector<float> gguf_halves(const Tensor& ours, int64_t heads) {
  const int64_t rows = ours.size(0), columns = ours.numel() / rows, half = rows / heads / 2;
  const std::vector<float> x = values(ours);
  std::vector<float> y;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t part = 0; part < 2; ++part)
      for (int64_t j = 0; j < half; ++j)
        for (int64_t k = 0; k < columns; ++k) y.push_back(x[size_t(((h * half + j) * 2 + part) * columns + k)]);
  return y;
}

}  // namespace tg
