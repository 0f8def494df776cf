// models/io/gguf: files of each family, read by a parser of this test; bits of every type; tokenizers; refusals.
#include <tapegrad/core/io/json.h>
#include <tapegrad/tapegrad.h>

#include <cmath>
#include <cstring>
#include <map>

#include "support/files.h"
#include "support/helpers.h"
#include "support/refusals.h"

using namespace tg;

namespace {

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

GptConfig small_gguf(Family family) {
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
constexpr Family kGgufFamilies[] = {Family::gpt2, Family::llama, Family::qwen2, Family::qwen3};

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
GgufModel gguf_model(Family family) { return GgufModel(small_gguf(family)); }

// Rows in the order of halves.
std::vector<float> gguf_halves(const Tensor& ours, int64_t heads) {
  const int64_t rows = ours.size(0), columns = ours.numel() / rows, half = rows / heads / 2;
  const std::vector<float> x = values(ours);
  std::vector<float> y;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t part = 0; part < 2; ++part)
      for (int64_t j = 0; j < half; ++j)
        for (int64_t k = 0; k < columns; ++k) y.push_back(x[size_t(((h * half + j) * 2 + part) * columns + k)]);
  return y;
}

Json byte_level_bpe(const std::string& pre_tokenizer) {
  Json j = own_json(tokenizer_json(ByteTokenizer()));
  j["model"]["vocab"]["ab"] = 256;
  j["model"]["merges"].push_back("a b");
  j["pre_tokenizer"] = own_json(pre_tokenizer);
  return j;
}
constexpr const char* kGgufBytes = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
std::string split_by(std::string_view pattern) {
  const Json split{{"type", "Split"}, {"pattern", Json{{"Regex", pattern}}}, {"behavior", "Isolated"}};
  return R"({"type": "Sequence", "pretokenizers": [)" + text_of(split) +
         R"(, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
}
constexpr std::string_view kLlama3Regex = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)"
                                          R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama2Json = R"({
  "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true},
                   {"id": 2, "content": "</s>", "special": true}, {"id": 10, "content": "<mark>"}],
  "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                 {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "pre_tokenizer": null,
  "post_processor": {"type": "TemplateProcessing",
                     "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                     "special_tokens": {"<s>": {"ids": [1]}}},
  "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
  "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>",
            "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x41>": 3, "▁": 4, "a": 5, "b": 6, "ab": 7, "▁ab": 8, "▁a": 9},
            "merges": ["a b", "▁ a", "▁ ab", "▁a b"]}})";

}  // namespace

TEST_CASE("gguf: keys and tensors of each family") {
  for (const Family family : kGgufFamilies) {
    const std::string arch(name_of(family));
    CAPTURE(arch);
    const GgufModel m = gguf_model(family);
    const GgufContent f = m.save();
    const GptConfig& c = m.config;
    const bool gpt2 = family == Family::gpt2;
    CHECK(f.text("general.architecture") == arch);
    CHECK(f.text("general.name") == "m");
    CHECK(f.number("general.file_type") == 0);
    CHECK(f.number("general.alignment") == 32);
    std::map<std::string, double> numbers = {{"context_length", 16},      {"embedding_length", 64},
                                             {"block_count", 2},          {"feed_forward_length", 96},
                                             {"attention.head_count", 4}, {"vocab_size", 260}};
    if (!gpt2) {
      numbers.merge(std::map<std::string, double>{{"attention.head_count_kv", 2}, {"rope.freq_base", 500}});
      for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
        numbers[key] = double(c.head_size());
    }
    numbers[gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"] = double(1e-5f);
    for (const auto& [key, x] : numbers) CHECK(f.number(arch + "." + key) == x);
    for (const auto& [key, x] : f.keys)
      if (key.starts_with(arch)) CHECK_MESSAGE(numbers.contains(key.substr(arch.size() + 1)), key);

    const auto same = [&](const std::string& name, const std::vector<float>& expected, const Shape& shape) {
      CAPTURE(name);
      REQUIRE(f.tensors.contains(name));
      CHECK(f.tensors.at(name).type == 0);
      CHECK(f.tensors.at(name).shape == shape);
      CHECK(f.tensors.at(name).all<float>() == expected);
    };
    const auto equal = [&](const std::string& name, const Tensor& x) { same(name, values(x), x.shape()); };
    equal("token_embd.weight", m["wte.weight"]);
    equal("output_norm.weight", m["ln_f.weight"]);
    CHECK(f.tensors.contains("output.weight") == !gpt2);
    equal("blk.1.attn_norm.weight", m["h.1.ln_1.weight"]);
    equal("blk.1.ffn_norm.weight", m["h.1.ln_2.weight"]);
    equal("blk.1.attn_output.weight", m["h.1.attn.proj.weight"]);
    equal("blk.1.ffn_down.weight", m["h.1.mlp.proj.weight"]);
    const Tensor qkv = m["h.1.attn.qkv.weight"], fc = m["h.1.mlp.fc.weight"];
    if (gpt2) {
      equal("position_embd.weight", m["wpe.weight"]);
      equal("output_norm.bias", m["ln_f.bias"]);
      equal("blk.0.attn_qkv.weight", m["h.0.attn.qkv.weight"]);
      equal("blk.1.attn_qkv.bias", m["h.1.attn.qkv.bias"]);
      equal("blk.1.ffn_up.weight", fc);
      equal("blk.1.ffn_up.bias", m["h.1.mlp.fc.bias"]);
      CHECK(f.tensors.size() == 4 + 2 * 12);
      continue;
    }
    const int64_t q = 4 * c.head_size(), k = 2 * c.head_size();
    const auto paired = [&](const std::string& name, const Tensor& x, int64_t heads) {
      same(name, family == Family::llama ? values(x) : gguf_halves(x, heads), x.shape());
    };
    paired("blk.1.attn_q.weight", slice(qkv, 0, 0, q), 4);
    paired("blk.1.attn_k.weight", slice(qkv, 0, q, q + k), 2);
    equal("blk.1.attn_v.weight", slice(qkv, 0, q + k, q + 2 * k));
    equal("blk.1.ffn_gate.weight", slice(fc, 0, 0, 96));
    equal("blk.1.ffn_up.weight", slice(fc, 0, 96, 192));
    if (c.qkv_bias) paired("blk.0.attn_q.bias", slice(m["h.0.attn.qkv.bias"], 0, 0, q), 4);
    if (c.qk_norm) paired("blk.0.attn_k_norm.weight", m["h.0.attn.k_norm.weight"], 1);
    CHECK(f.tensors.size() == size_t(3 + 2 * (family == Family::llama ? 9 : family == Family::qwen2 ? 12 : 11)));
  }
}

TEST_CASE("gguf: parameters that the model lacks are zeros and ones") {
  GptConfig c = small_gguf(Family::gpt2);
  c.bias = c.norm_affine = false;
  const GgufModel m(c);
  const GgufContent f = m.save();
  CHECK(f.tensors.size() == 4 + 2 * 12);
  CHECK(f.tensors.at("blk.0.attn_qkv.bias").all<float>() == std::vector<float>(192, 0.f));
  CHECK(f.tensors.at("blk.0.attn_norm.weight").all<float>() == std::vector<float>(64, 1.f));
}

TEST_CASE("gguf: scaling of rope") {
  GptConfig c = small_gguf(Family::qwen3);
  c.rope_scaling = {RopeScalingKind::linear, 4};
  const GgufModel linear(c);
  const GgufContent f = linear.save();
  CHECK(f.text("qwen3.rope.scaling.type") == "linear");
  CHECK(f.number("qwen3.rope.scaling.factor") == 4);
  c = small_gguf(Family::llama);
  c.rope_scaling = {RopeScalingKind::llama3, 8, 1, 4, 16};
  const GgufModel llama3(c);
  const GgufStored factors = llama3.save().tensors.at("rope_freqs.weight");
  CHECK(factors.shape == Shape{8});
  for (int64_t i = 0; i < 8; ++i) {
    // Wavelengths below 16 / 4 stay, and those above 16 / 1 are 8 times as long.
    const double wave = 2 * M_PI * std::pow(500., double(i) / 8), t = (16 / wave - 1) / 3;
    const double factor = wave < 4 ? 1 : wave > 16 ? 8 : 1 / ((1 - t) / 8 + t);
    CHECK(double(factors.all<float>()[size_t(i)]) == doctest::Approx(factor).epsilon(1e-6));
  }
}

TEST_CASE("gguf: bf16, f16 and q8_0") {
  const GgufModel m = gguf_model(Family::gpt2);
  StateDict s = m.params.state();
  std::vector<float> row(64, 0.f), large(64);
  for (size_t i = 0; i < 64; ++i) large[i] = i < 32 ? float(i) * 0.5f - 7.5f : -0.25f * float(i);
  large[3] = 127;  // a scale of 1: halves are ties
  std::vector<float> table = values(s.at("wte.weight"));
  std::copy(row.begin(), row.end(), table.begin());
  std::copy(large.begin(), large.end(), table.begin() + 64);
  table[5 * 64] = 1e-42f;  // the scale's inverse is infinite
  for (size_t i = 1; i < 32; ++i) table[5 * 64 + i] = 0;
  s["wte.weight"] = tensor<float>(table, {260, 64});
  m.params.assign(s);
  const std::map<std::string, uint32_t> types = {{"f32", 0}, {"f16", 1}, {"q8_0", 8}, {"bf16", 30}};
  for (const auto& [name, number] : types) {
    CAPTURE(name);
    const GgufContent f = m.save({.type = gguf_type(name)});
    CHECK(f.number("general.file_type") == (name == "q8_0" ? 7 : name == "bf16" ? 32 : number));
    for (const auto& [key, t] : f.tensors)
      CHECK(t.type == (t.shape.size() == 1 || key == "position_embd.weight" ? 0 : number));
  }
  for (const DType d : {DType::f16, DType::bf16}) {
    const GgufContent f = m.save({.type = gguf_type(name_of(d))});
    const std::vector<std::byte> bits = bits_of(s.at("wte.weight").to(d));
    CHECK(std::memcmp(f.tensors.at("token_embd.weight").bytes.data(), bits.data(), bits.size()) == 0);
  }
  const std::string blocks = m.save({.type = GgufType::q8_0}).tensors.at("token_embd.weight").bytes;
  for (size_t b = 0; b < table.size() / 32; ++b) {
    float most = 0;
    for (size_t i = 0; i < 32; ++i) most = std::max(most, std::fabs(table[b * 32 + i]));
    const float d = most / 127;
    uint16_t scale = 0;
    std::memcpy(&scale, blocks.data() + b * 34, 2);
    REQUIRE(scale == f16(d).bits);
    for (size_t i = 0; i < 32; ++i) {
      const double x = d < 1e-38f ? 0 : double(table[b * 32 + i] * (1 / d));
      const double away = x < 0 ? -std::floor(-x + 0.5) : std::floor(x + 0.5);
      REQUIRE(int8_t(blocks[b * 34 + 2 + i]) == away);
    }
  }
  CHECK(int8_t(blocks[2 * 34 + 2]) == -8);      // -7.5
  CHECK(int8_t(blocks[2 * 34 + 2 + 16]) == 1);  // 0.5
  CHECK(blocks.substr(0, 34) == std::string(34, '\0'));

  GptConfig ragged = small_gguf(Family::llama);
  ragged.ff_width = 40;
  const GgufContent f = GgufModel(ragged).save({.type = GgufType::q8_0});
  CHECK(f.tensors.at("blk.0.ffn_down.weight").type == 1);  // rows of 40
  CHECK(f.tensors.at("blk.0.ffn_up.weight").type == 8);    // 40 rows of 64
}

TEST_CASE("gguf: the type of an origin, its special tokens and its chat template") {
  const GgufModel made = gguf_model(Family::qwen3);
  const GptConfig& c = made.config;
  const Folder from;
  save_huggingface(from.path, c, made.params, {.dtype = DType::bf16, .tokenizer = &made.bytes});
  Json j = byte_level_bpe(kGgufBytes);
  j["added_tokens"] = own_json(R"([{"id": 53, "content": "5", "special": true}, {"id": 54, "content": "6"}])");
  write_file_atomically(from / "tokenizer.json", text_of(j));
  write_file_atomically(from / "tokenizer_config.json",
                        R"({"bos_token": "5", "pad_token": {"content": "6"}, "chat_template": "{{ x }}"})");
  write_file_atomically(from / "generation_config.json", R"({"eos_token_id": [7, 8]})");
  const auto saved = [&] {
    const LoadedModel m = load_model(from.path);
    save_gguf(from / "m.gguf", c, m.params, {.tokenizer = m.tokenizer.get(), .origin = &*m.origin});
    return GgufContent(from / "m.gguf");
  };
  Json config = own_json(read_file(from / "config.json"));
  GgufContent f = saved();
  CHECK(f.number("general.file_type") == 32);
  CHECK(f.number("tokenizer.ggml.eos_token_id") == 7);
  CHECK(f.number("tokenizer.ggml.bos_token_id") == 53);
  CHECK(f.number("tokenizer.ggml.padding_token_id") == 54);
  CHECK(f.text("tokenizer.chat_template") == "{{ x }}");
  CHECK(f.keys.at("tokenizer.ggml.token_type").numbers()[53] == 3);
  CHECK(f.keys.at("tokenizer.ggml.token_type").numbers()[54] == 4);
  write_file_atomically(from / "chat_template.jinja", "{{ y }}");
  config["bos_token_id"] = 9;
  write_file_atomically(from / "config.json", text_of(config));
  f = saved();
  CHECK(f.text("tokenizer.chat_template") == "{{ y }}");
  CHECK(f.number("tokenizer.ggml.bos_token_id") == 9);
}

TEST_CASE("gguf: tokenizers") {
  const GgufModel m = gguf_model(Family::llama);
  GgufContent f = m.save();
  const auto key = [&](const char* name) -> const GgufField& {
    return f.keys.at(fmt::format("tokenizer.ggml.{}", name));
  };
  const auto save = [&](const Tokenizer& t) { f = m.save({.tokenizer = &t}); };
  CHECK(key("model").text == "gpt2");
  CHECK(key("pre").text == "gpt-2");
  CHECK(key("merges").type == 9);
  CHECK(key("merges").list.empty());
  CHECK(key("tokens").texts().size() == 260);
  CHECK(key("tokens").texts()['a'] == "a");
  CHECK(key("tokens").texts()[0] == "Ā");
  CHECK(key("tokens").texts()[259] == "[PAD259]");
  CHECK(key("token_type").numbers()[255] == 1);
  CHECK(key("token_type").numbers()[256] == 5);
  for (const char* name : {"bos_token_id", "eos_token_id"}) CHECK(key(name).number == 255);
  CHECK(key("add_bos_token").type == 7);
  CHECK(key("add_bos_token").number == 0);

  const auto bpe = [](const Json& j) { return BpeTokenizer::from_json(text_of(j), "t.json"); };
  std::string qwen2(kLlama3Regex);
  qwen2.erase(qwen2.find("{1,3}"), 5);
  Json llama3 = byte_level_bpe(split_by(kLlama3Regex));
  llama3["model"]["ignore_merges"] = true;
  const std::string digits = fmt::format(
      R"({{"type": "Sequence", "pretokenizers": [{{"type": "Digits", "individual_digits": true}}, {}]}})", kGgufBytes);
  const std::pair<Json, const char*> known[] = {{byte_level_bpe(kGgufBytes), "gpt-2"},
                                                {byte_level_bpe(split_by(qwen2)), "qwen2"},
                                                {byte_level_bpe(digits), "smollm"},
                                                {llama3, "llama-bpe"},
                                                {byte_level_bpe(split_by(kLlama3Regex)), "llama-bpe"}};
  for (const auto& [json, name] : known) {
    save(bpe(json));
    CHECK(key("pre").text == name);
    CHECK(key("merges").texts() == std::vector<std::string>{"a b"});
    CHECK(key("tokens").texts()[256] == "ab");
  }
  Json json = byte_level_bpe(kGgufBytes);
  json["model"]["merges"] = own_json(R"([["a", "b"]])");
  json["normalizer"] = own_json(R"({"type": "NFC"})");
  json["added_tokens"] = own_json(R"([{"id": 257, "content": "<|endoftext|>", "special": true},
                                      {"id": 300, "content": "<|beyond|>", "special": true}])");
  json["post_processor"] =
      own_json(R"({"type": "TemplateProcessing", "special_tokens": {"<|endoftext|>": {"ids": [257]}},
    "single": [{"SpecialToken": {"id": "<|endoftext|>"}}, {"Sequence": {"id": "A"}}]})");
  save(bpe(json));
  CHECK(key("merges").texts() == std::vector<std::string>{"a b"});
  CHECK(key("add_bos_token").number == 1);
  CHECK(key("bos_token_id").number == 257);
  CHECK(key("eos_token_id").number == 257);
  CHECK(key("token_type").numbers()[257] == 3);
  CHECK(key("tokens").list.size() == 260);  // ids beyond the model have no row

  save(BpeTokenizer::from_vocab(R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})", "#version: 0.2\na b\n", "v"));
  CHECK(key("eos_token_id").number == 3);
  save(BpeTokenizer::from_ranks("YQ== 0\nYg== 1\nYWI= 2\n", "qwen2", "r"));
  CHECK(key("pre").text == "qwen2");
  CHECK(key("merges").texts() == std::vector<std::string>{"a b"});

  save(BpeTokenizer::from_json(kLlama2Json, "t.json"));
  CHECK(key("model").text == "llama");
  CHECK(key("add_space_prefix").number == 1);
  CHECK(key("add_bos_token").number == 1);
  CHECK(key("bos_token_id").number == 1);
  CHECK(key("eos_token_id").number == 2);
  CHECK(key("unknown_token_id").number == 0);
  const std::vector<double> types = key("token_type").numbers(), scores = key("scores").numbers();
  CHECK(std::vector(types.begin(), types.begin() + 12) == std::vector<double>{2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 4, 5});
  CHECK(std::vector(scores.begin(), scores.begin() + 12) ==
        std::vector<double>{0, 0, 0, 0, -4, -4, -4, 0, -2, -1, 0, 0});
}

TEST_CASE("gguf: refusals") {
  const GgufModel llama = gguf_model(Family::llama), gpt2 = gguf_model(Family::gpt2);
  const auto save = [](const GgufModel& m, const GptConfig& c, const Tokenizer* t) {
    save_gguf(m.folder / "m.gguf", c, m.params, {.tokenizer = t});
  };
  const auto with = [&](Json j) {
    const auto t = BpeTokenizer::from_json(text_of(j), "t.json");
    save(llama, llama.config, &t);
  };
  GptConfig erf = gpt2.config, none = gpt2.config;
  erf.activation = Activation::gelu, none.norm = NormKind::rms_norm;
  GptConfig scaled = small_gguf(Family::qwen3), wide_heads = small_gguf(Family::qwen2);
  scaled.rope_scaling = {RopeScalingKind::llama3, 8, 1, 4, 16}, wide_heads.head_dim = 32;
  const CharTokenizer characters = CharTokenizer::from_text("abc");
  Json space = byte_level_bpe(R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true})");
  Json strips = byte_level_bpe(kGgufBytes), twice = strips, fallback = own_json(kLlama2Json), whole = strips;
  strips["added_tokens"] = own_json(R"([{"id": 257, "content": "<mask>", "lstrip": true}])");
  twice["post_processor"] = own_json(R"({"type": "TemplateProcessing", "special_tokens": {"a": {"ids": [1, 2]}},
    "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}]})");
  fallback["pre_tokenizer"] = own_json(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"})");
  whole["model"]["vocab"]["abab"] = 257, whole["model"]["ignore_merges"] = true;
  const std::vector<Refusal> all = {
      REFUSES(save(gpt2, erf, &gpt2.bytes), value, "activation is gelu, and llama.cpp computes gelu_tanh"),
      REFUSES(save(gpt2, none, &gpt2.bytes), value, "norm is rms_norm, not layer_norm, as family \"gpt2\" would have"),
      REFUSES(save(llama, scaled, &llama.bytes), value, "rope_scaling is llama3", "not in a qwen3"),
      REFUSES(save(llama, wide_heads, &llama.bytes), value, "head_dim is 32", "width / heads (64 / 4)"),
      REFUSES(save(llama, llama.config, nullptr), value, "the model has no tokenizer", "Copy the tokenizer.json"),
      REFUSES(save(llama, llama.config, &characters), value, "a tokenizer of characters", "--tokenizer byte"),
      REFUSES(with(byte_level_bpe(split_by("a+|\\s+"))), value, "a+|", "LLaMA-3, Qwen2 and SmolLM", "--to hf"),
      REFUSES(with(space), value, "add_prefix_space", "--to hf"),
      REFUSES(with(strips), value, "<mask>", "lstrip"),
      REFUSES(with(twice), value, "adds 2 tokens before a text"),
      REFUSES(with(fallback), value, "Prepend", "\"Regex\":\"a\"", "LLaMA-2"),
      REFUSES(with(whole), value, "ignore_merges", "abab"),
      REFUSES(gguf_type("q4_0"), value, "\"q4_0\"", "f32, bf16, f16 or q8_0")};
  for (const Refusal& r : all) expect(r);
  CHECK(llama.folder.entries() == 0);
}

TEST_CASE("gguf: a weight that is not finite in the file is refused by name, and the former file stays") {
  const GgufModel m = gguf_model(Family::llama);
  m.save();
  const std::string before = read_file(m.folder / "m.gguf");
  const auto error = [&](float x, GgufType type) {
    StateDict s = m.params.state();
    const Tensor kept = s.at("h.1.mlp.proj.weight");
    std::vector<float> v = values(kept);
    v[2 * 96 + 5] = x;
    s["h.1.mlp.proj.weight"] = tensor<float>(v, {64, 96});
    m.params.assign(s);
    const std::string message = error_of(Error::Kind::non_finite, [&] {
      save_gguf(m.folder / "m.gguf", m.config, m.params, {.type = type, .tokenizer = &m.bytes});
    });
    s["h.1.mlp.proj.weight"] = kept;
    m.params.assign(s);
    CHECK(m.folder.entries() == 1);
    CHECK(read_file(m.folder / "m.gguf") == before);
    return message;
  };
  for (const GgufType type : {GgufType::f32, GgufType::bf16, GgufType::f16, GgufType::q8_0})
    for (const float x : {kNan, kInf}) CHECK_HAS(error(x, type), "'blk.1.ffn_down.weight' is");
  CHECK_HAS(error(kNan, GgufType::f32), "at (2, 5) in f32");
  CHECK_HAS(error(1e5f, GgufType::f16), "'blk.1.ffn_down.weight' is inf at (2, 5) in f16");
  CHECK_HAS(error(1e8f, GgufType::q8_0),
            "'blk.1.ffn_down.weight' has an element of size 100000000 in the 32 from (2, 0) on");
}

TEST_CASE("gguf: adapters alone, scaled as llama.cpp does, with the order of rows of the weights") {
  for (const Family family : kGgufFamilies) {
    CAPTURE(name_of(family));
    GgufModel m = gguf_model(family);
    const bool gpt2 = family == Family::gpt2;
    const std::string q = gpt2 ? "h.0.attn.qkv" : "h.0.attn.q", up = gpt2 ? "h.1.mlp.fc" : "h.1.mlp.up";
    const Lora lora = apply_lora(
        m.model, m.params, {.targets = {q, up}, .rank = 2, .alpha = 6, .rslora = true, .rank_pattern = {{up, 4}}});
    StateDict s = lora.params().state();
    uint64_t seed = 0;
    for (auto& [name, t] : s) t = random(t.shape(), ++seed);
    lora.params().assign(s);
    save_gguf_adapter(m.folder / "lora.gguf", m.config, lora);
    const GgufContent file(m.folder / "lora.gguf");
    CHECK(file.text("general.type") == "adapter");
    CHECK(file.text("general.architecture") == name_of(family));
    CHECK(file.text("adapter.type") == "lora");
    CHECK(file.number("adapter.lora.alpha") == 6);
    REQUIRE(file.tensors.size() == 4);
    const auto check = [&](const std::string& theirs, const std::string& ours, int64_t heads, int64_t rank) {
      const GgufStored &a = file.tensors.at(theirs + ".weight.lora_a"), &b = file.tensors.at(theirs + ".weight.lora_b");
      const Tensor x = transpose(s.at(ours + ".lora_a")), y = transpose(s.at(ours + ".lora_b"));
      CHECK(a.shape == x.shape());
      CHECK(b.shape == y.shape());
      CHECK(a.type == 0);
      CHECK(a.all<float>() == values(x.contiguous()));
      // alpha / sqrt(rank) is sqrt(rank) times what llama.cpp applies.
      const Tensor scaled = y.contiguous() * (6 / std::sqrt(double(rank)) / (6.0 / double(rank)));
      CHECK(b.all<float>() == (heads ? gguf_halves(scaled, heads) : values(scaled)));
    };
    check(gpt2 ? "blk.0.attn_qkv" : "blk.0.attn_q", q,
          family == Family::qwen2 || family == Family::qwen3 ? m.config.heads : 0, 2);
    check("blk.1.ffn_up", up, 0, 4);
    StateDict infinite = s;
    infinite.at(q + ".lora_b") = filled(infinite.at(q + ".lora_b").shape(), INFINITY);
    lora.params().assign(infinite);
    CHECK_SAYS_OF(non_finite, save_gguf_adapter(m.folder / "no.gguf", m.config, lora), "is inf at (0, 0)");
    CHECK(m.folder.entries() == 1);
  }
  GptConfig odd = small_gguf(Family::llama);
  odd.norm = NormKind::layer_norm;
  GgufModel m(odd);
  const Lora lora = apply_lora(m.model, m.params, {.rank = 2});
  CHECK_SAYS(save_gguf_adapter(m.folder / "no.gguf", odd, lora), "llama.cpp has no model like this one");
}
