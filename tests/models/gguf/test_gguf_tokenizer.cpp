// models/io/gguf: tokenizers, and refusals.

#include "support/gguf_content.h"
#include "support/refusals.h"

using namespace tg;

namespace {

Json byte_level_bpe(const std::string& pre_tokenizer) {
  Json j = detail::own_json(tokenizer_json(ByteTokenizer()));
  j["model"]["vocab"]["ab"] = 256;
  j["model"]["merges"].push_back("a b");
  j["pre_tokenizer"] = detail::own_json(pre_tokenizer);
  return j;
}
constexpr const char* kGgufBytes = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
std::string split_by(std::string_view pattern) {
  const Json split{{"type", "Split"}, {"pattern", Json{{"Regex", pattern}}}, {"behavior", "Isolated"}};
  return R"({"type": "Sequence", "pretokenizers": [)" + detail::text_of(split) +
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

TEST_CASE("gguf: the type of an origin, its special tokens and its chat template") {
  const GgufModel made = gguf_model(Family::qwen3);
  const GptConfig& c = made.config;
  const Folder from;
  save_huggingface(from.path, c, made.params, {.dtype = DType::bf16, .tokenizer = &made.bytes});
  Json j = byte_level_bpe(kGgufBytes);
  j["added_tokens"] = detail::own_json(R"([{"id": 53, "content": "5", "special": true}, {"id": 54, "content": "6"}])");
  detail::write_file_atomically(from / "tokenizer.json", detail::text_of(j));
  detail::write_file_atomically(from / "tokenizer_config.json",
                                R"({"bos_token": "5", "pad_token": {"content": "6"}, "chat_template": "{{ x }}"})");
  detail::write_file_atomically(from / "generation_config.json", R"({"eos_token_id": [7, 8]})");
  const auto saved = [&](const std::string& chat = "") {
    const LoadedModel m = load_model(from.path);
    save_gguf(from / "m.gguf", c, m.params,
              {.tokenizer = m.tokenizer.get(), .origin = &*m.origin, .chat_template = chat});
    return GgufContent(from / "m.gguf");
  };
  Json config = detail::own_json(read_file(from / "config.json"));
  GgufContent f = saved();
  CHECK(f.number("general.file_type") == 32);
  CHECK(f.number("tokenizer.ggml.eos_token_id") == 7);
  CHECK(f.number("tokenizer.ggml.eot_token_id") == 8);
  CHECK(f.number("tokenizer.ggml.bos_token_id") == 53);
  CHECK(f.number("tokenizer.ggml.padding_token_id") == 54);
  CHECK(f.text("tokenizer.chat_template") == "{{ x }}");
  CHECK(f.keys.at("tokenizer.ggml.token_type").numbers()[53] == 3);
  CHECK(f.keys.at("tokenizer.ggml.token_type").numbers()[54] == 4);
  detail::write_file_atomically(from / "chat_template.jinja", "{{ y }}");
  config["bos_token_id"] = 9;
  detail::write_file_atomically(from / "config.json", detail::text_of(config));
  f = saved();
  CHECK(f.text("tokenizer.chat_template") == "{{ y }}");
  CHECK(f.number("tokenizer.ggml.bos_token_id") == 9);
  CHECK(saved("{{ z }}").text("tokenizer.chat_template") == "{{ z }}");  // the origin of a merged adapter
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

  const auto bpe = [](const Json& j) { return BpeTokenizer::from_json(detail::text_of(j), "t.json"); };
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
  json["model"]["merges"] = detail::own_json(R"([["a", "b"]])");
  json["normalizer"] = detail::own_json(R"({"type": "NFC"})");
  json["added_tokens"] = detail::own_json(R"([{"id": 257, "content": "<|endoftext|>", "special": true},
                                      {"id": 300, "content": "<|beyond|>", "special": true}])");
  json["post_processor"] =
      detail::own_json(R"({"type": "TemplateProcessing", "special_tokens": {"<|endoftext|>": {"ids": [257]}},
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
    const auto t = BpeTokenizer::from_json(detail::text_of(j), "t.json");
    save(llama, llama.config, &t);
  };
  GptConfig erf = gpt2.config, none = gpt2.config;
  erf.activation = Activation::gelu, none.norm = NormKind::rms_norm;
  GptConfig scaled = small_gguf(Family::qwen3), wide_heads = small_gguf(Family::qwen2);
  scaled.rope_scaling = {RopeScalingKind::llama3, 8, 1, 4, 16}, wide_heads.head_dim = 32;
  const CharTokenizer characters = CharTokenizer::from_text("abc");
  Json space = byte_level_bpe(R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true})");
  Json strips = byte_level_bpe(kGgufBytes), twice = strips, fallback = detail::own_json(kLlama2Json), whole = strips;
  strips["added_tokens"] = detail::own_json(R"([{"id": 257, "content": "<mask>", "lstrip": true}])");
  twice["post_processor"] = detail::own_json(R"({"type": "TemplateProcessing", "special_tokens": {"a": {"ids": [1, 2]}},
    "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}]})");
  fallback["pre_tokenizer"] =
      detail::own_json(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"})");
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
      REFUSES(detail::gguf_type("q4_0"), value, "\"q4_0\"", "f32, bf16, f16 or q8_0")};
  for (const Refusal& r : all) expect(r);
  CHECK(llama.folder.entries() == 0);
}
