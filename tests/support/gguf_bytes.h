// GGUF files byte by byte, to damage them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

template <class T> std::string gguf_raw(T x) { return {reinterpret_cast<const char*>(&x), sizeof(T)}; }
inline std::string gguf_raw_text(std::string_view x) { return gguf_raw(uint64_t(x.size())) + std::string(x); }
// Values with their types.
inline std::string gguf_u32(uint32_t x) { return gguf_raw(uint32_t(4)) + gguf_raw(x); }
inline std::string gguf_u16(uint16_t x) { return gguf_raw(uint32_t(2)) + gguf_raw(x); }
inline std::string gguf_f32(float x) { return gguf_raw(uint32_t(6)) + gguf_raw(x); }
inline std::string gguf_flag(bool x) { return gguf_raw(uint32_t(7)) + gguf_raw(uint8_t(x)); }
inline std::string gguf_text(std::string_view x) { return gguf_raw(uint32_t(8)) + gguf_raw_text(x); }
inline std::string gguf_list(const std::vector<std::string>& values) {  // type: that of the first value
  const std::string type = values.empty() ? gguf_raw(uint32_t(8)) : values[0].substr(0, 4);
  std::string all = gguf_raw(uint32_t(9)) + type + gguf_raw(uint64_t(values.size()));
  for (const std::string& x : values) all += x.substr(4);
  return all;
}
inline std::string gguf_texts(const std::vector<std::string>& values) {
  std::vector<std::string> all;
  for (const std::string& x : values) all.push_back(gguf_text(x));
  return gguf_list(all);
}

struct GgufBytes {
  struct Stored {
    std::string name;
    std::vector<uint64_t> sizes;  // innermost first
    uint32_t type = 0;
    std::string bytes;
  };
  uint32_t version = 3;
  std::map<std::string, std::string> keys;
  std::vector<Stored> tensors;
  size_t alignment = 32, header = 0;  // header: bytes before the data, set by text()

  Stored& operator[](std::string_view name) {
    for (Stored& t : tensors)
      if (t.name == name) return t;
    return tensors.emplace_back(Stored{std::string(name), {}, 0, ""});
  }
  std::string text() {
    std::string all = "GGUF" + gguf_raw(version) + gguf_raw(uint64_t(tensors.size())) + gguf_raw(uint64_t(keys.size()));
    for (const auto& [key, x] : keys) all += gguf_raw_text(key) + x;
    std::string data;
    for (const Stored& t : tensors) {
      all += gguf_raw_text(t.name) + gguf_raw(uint32_t(t.sizes.size()));
      for (const uint64_t n : t.sizes) all += gguf_raw(n);
      all += gguf_raw(t.type) + gguf_raw(uint64_t(data.size()));
      data += t.bytes;
      data.resize((data.size() + alignment - 1) / alignment * alignment);
    }
    all.resize((all.size() + alignment - 1) / alignment * alignment);
    header = all.size();
    return all + data;
  }
};

// A llama of one layer, 2 heads of 16, width 32, with weights of 0 in f32 and 4 tokens.
inline GgufBytes tiny_gguf(const std::string& arch = "llama") {
  GgufBytes f;
  f.keys = {{"general.architecture", gguf_text(arch)},
            {arch + ".context_length", gguf_u32(8)},
            {arch + ".embedding_length", gguf_u32(32)},
            {arch + ".block_count", gguf_u32(1)},
            {arch + ".feed_forward_length", gguf_u32(64)},
            {arch + ".attention.head_count", gguf_u32(2)},
            {arch + ".attention.layer_norm_rms_epsilon", gguf_f32(1e-6f)},
            {"tokenizer.ggml.model", gguf_text("gpt2")},
            {"tokenizer.ggml.pre", gguf_text("gpt-2")},
            {"tokenizer.ggml.tokens", gguf_texts({"a", "b", "ab", "<e>"})},
            {"tokenizer.ggml.token_type", gguf_list({gguf_u32(1), gguf_u32(1), gguf_u32(1), gguf_u32(3)})},
            {"tokenizer.ggml.merges", gguf_texts({"a b"})},
            {"tokenizer.ggml.eos_token_id", gguf_u32(3)}};
  const auto add = [&](const std::string& name, uint64_t columns, uint64_t rows) {
    f.tensors.push_back({name, {columns}, 0, std::string(4 * columns * (rows ? rows : 1), '\0')});
    if (rows) f.tensors.back().sizes.push_back(rows);
  };
  add("token_embd.weight", 32, 4), add("output_norm.weight", 32, 0);
  for (const char* name : {"attn_norm", "ffn_norm"}) add(std::string("blk.0.") + name + ".weight", 32, 0);
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"})
    add(std::string("blk.0.") + name + ".weight", 32, 32);
  for (const char* name : {"ffn_gate", "ffn_up"}) add(std::string("blk.0.") + name + ".weight", 32, 64);
  add("blk.0.ffn_down.weight", 64, 32);
  return f;
}

}  // namespace tg
