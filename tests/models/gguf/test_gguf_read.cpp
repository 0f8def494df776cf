// models/io/gguf_read: models of llama.cpp's converter and of our writer, block types, refusals, damage. The files in
// tests/data/gguf are random weights, quantized by the rule of llama.cpp; expected.safetensors has the ids of a text by
// `tokenizers`, and rows 0 and 47 of the logits by transformers 5.24 over the dequantized weights.
#include <tapegrad/models/io/gguf_read.h>
#include <tapegrad/models/tokenizers/model_texts.h>
#include <tapegrad/tools.h>

#include "support/block_weights.h"
#include "support/gguf_bytes.h"
#include "support/gguf_content.h"
#include "support/refusals.h"

using namespace tg;

namespace {

std::string gguf_data(const std::string& name) { return TG_TEST_DATA "/gguf/" + name; }
std::vector<float> logits_of(const LoadedModel& m, const Tensor& tokens) {
  const NoGradScope off;
  return values(m.model.forward(reshape(tokens, {1, tokens.numel()}).to(DType::i32)));
}
const std::string& written(const Folder& folder, GgufBytes f) {
  static std::string path;
  detail::write_file_atomically(path = folder / "m.gguf", f.text());
  return path;
}
// The message about a tiny file that `damage` changed.
template <class F> std::string gguf_error(F damage, const std::string& arch = "llama") {
  const Folder folder;
  GgufBytes f = tiny_gguf(arch);
  damage(f);
  return error_of([&] { load_model(written(folder, f)); });
}
template <class F> std::string tokenizer_error(F damage) {
  const Folder folder;
  GgufBytes f = tiny_gguf();
  damage(f);
  const LoadedModel m = load_model(written(folder, f));
  CHECK(!m.tokenizer);
  return m.tokenizer_error;
}

}  // namespace

TEST_CASE("gguf read: files of llama.cpp have the ids of tokenizers and the logits of transformers") {
  const SafetensorsFile expected(gguf_data("expected.safetensors"));
  const auto bytes = expected.tensor("text").to_vector<uint8_t>();
  const std::string text(bytes.begin(), bytes.end());
  for (const std::string name : {"gpt2", "llama2", "llama3", "qwen3"}) {
    CAPTURE(name);
    const LoadedModel m = load_model(gguf_data(name + ".gguf"));
    REQUIRE_MESSAGE(m.tokenizer, m.tokenizer_error);
    const auto ids = expected.tensor(name + ".ids").to_vector<int32_t>();
    CHECK(m.tokenizer->encode(text) == std::vector<int64_t>(ids.begin(), ids.end()));
    const Tensor tokens = expected.tensor(name + ".tokens");
    const std::vector<float> logits = logits_of(m, tokens), theirs = values(expected.tensor(name + ".logits"));
    const size_t columns = theirs.size() / 2;
    float most = 0, off = 0;
    for (size_t i = 0; i < theirs.size(); ++i) {
      const float ours = logits[i < columns ? i : logits.size() - 2 * columns + i];
      most = std::max(most, std::abs(theirs[i])), off = std::max(off, std::abs(theirs[i] - ours));
    }
    CHECK(off <= 2e-5f * most);

    const Folder folder;  // dequantized weights
    save_huggingface(folder.path, m.model.config(), m.params, {.dtype = DType::f32, .origin = &*m.origin});
    const LoadedModel again = load_model(folder.path);
    CHECK(again.model.config() == m.model.config());
    CHECK(bits_of(tensor<float>(logits_of(again, tokens), {std::ssize(logits)})) ==
          bits_of(tensor<float>(logits, {std::ssize(logits)})));
    REQUIRE_MESSAGE(again.tokenizer, again.tokenizer_error);
    CHECK(again.tokenizer->encode(text, {.add_special = true}) == m.tokenizer->encode(text, {.add_special = true}));
    CHECK(again.origin->eos_tokens == m.origin->eos_tokens);
    CHECK(detail::chat_template_of(folder.path) == detail::chat_template_of(m.origin->folder));
    CHECK(detail::special_tokens_of({folder.path}, *again.tokenizer) ==
          detail::special_tokens_of({m.origin->folder}, *m.tokenizer));
  }
  const GptConfig llama3 = load_model(gguf_data("llama3.gguf")).model.config();
  CHECK(llama3.rope_scaling == RopeScaling{RopeScalingKind::llama3, 8, 1, 4, 128});
  CHECK(llama3.rope_theta == 500000);
  CHECK(!llama3.tied_head);
  const LoadedModel qwen3 = load_model(gguf_data("qwen3.gguf")), llama2 = load_model(gguf_data("llama2.gguf"));
  CHECK(qwen3.model.config().norm_eps == 1e-6);
  CHECK(qwen3.model.config().tied_head);
  CHECK(qwen3.origin->eos_tokens == std::vector<int64_t>{379});
  CHECK_HAS(detail::chat_template_of(qwen3.origin->folder), "<|im_start|>");
  CHECK(llama2.tokenizer->encode("a", {.add_special = true})[0] == 1);
  CHECK(llama2.tokenizer->decode(llama2.tokenizer->encode("a  b\n")) == "a  b\n");
  CHECK(qwen3.tokenizer->encode("e\u0301") == qwen3.tokenizer->encode("\u00e9"));  // NFC
}

TEST_CASE("gguf read: written files of each family and type") {
  for (const Family family : kGgufFamilies)
    for (const GgufType type : {GgufType::f32, GgufType::bf16, GgufType::f16, GgufType::q8_0}) {
      CAPTURE(name_of(family));
      CAPTURE(int(type));
      const GgufModel made = gguf_model(family);
      (void)made.save({.type = type});
      const std::string path = made.folder / "m.gguf";
      const LoadedModel m = load_model(path);
      GptConfig config = made.config;
      config.head_dim = m.model.config().head_dim;
      CHECK(m.model.config() == config);
      const auto dtype = type == GgufType::bf16 ? DType::bf16 : type == GgufType::f16 ? DType::f16 : DType::f32;
      for (const auto& [name, t] : m.params.state()) {
        CAPTURE(name);
        const Tensor x = made[name], rounded = x.ndim() > 1 && name != "wpe.weight" ? x.to(dtype).to(DType::f32) : x;
        if (type != GgufType::q8_0 || x.ndim() == 1) CHECK(bits_of(t) == bits_of(rounded));
        if (type == GgufType::q8_0 && x.ndim() == 2) CHECK(max(abs(t - x)).item<float>() < 0.02f);
      }
      CHECK(m.tokenizer->encode("aé") == std::vector<int64_t>{97, 195, 169});
      CHECK(load_model(path, {}, DType::bf16).params.dtype() == DType::bf16);
    }
}

TEST_CASE("gguf read: blocks of each type, and their rows in our order") {
  const uint32_t numbers[] = {2, 3, 6, 7, 8, 12, 13, 14};  // order of BlockFormat
  for (const std::string arch : {"llama", "qwen2"})
    for (size_t i = 0; i < std::size(numbers); ++i) {
      const BlockFormat format = kBlockFormats[i], other = kBlockFormats[(i + 3) % 8];
      CAPTURE(detail::layout_of_block(format).name);
      GgufBytes f = tiny_gguf(arch);
      for (const char* bias : {"attn_q.bias", "attn_k.bias", "attn_v.bias"})
        if (arch == "qwen2")
          f[std::string("blk.0.") + bias] = {std::string("blk.0.") + bias, {256}, 0, std::string(1024, '\0')};
      f.keys[arch + ".embedding_length"] = gguf_u32(256);
      std::map<std::string, Tensor> codes;
      for (GgufBytes::Stored& t : f.tensors) {
        t.sizes[0] = t.name.ends_with("down.weight") ? 64 : 256;
        if (t.sizes.size() == 2 && t.sizes[1] == 32) t.sizes[1] = 256;
        t.bytes.assign(4 * t.sizes[0] * (t.sizes.size() == 2 ? t.sizes[1] : 1), '\0');
      }
      for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
        const bool key = std::string_view(name) == "attn_k";
        auto& t = f["blk.0." + std::string(name) + ".weight"];
        const Tensor c = codes[name] = random_codes(key ? other : format, 256, 256, i + 7 * size_t(key));
        t.type = numbers[key ? (i + 3) % 8 : i];
        t.bytes.assign(reinterpret_cast<const char*>(c.data<uint8_t>()), size_t(c.numel()));
      }
      const Folder folder;
      const std::string path = written(folder, f);
      const LoadedModel m = load_model(path);
      const detail::GgufWeights weights(path, m.model.config());
      const auto blocks = weights.blocks("h.0.attn.qkv.weight");
      REQUIRE(blocks);
      REQUIRE(blocks->parts.size() == 3);
      CHECK(blocks->parts[0].format == format);
      CHECK(blocks->parts[1].format == other);
      CHECK(!weights.blocks("h.0.attn.proj.weight"));
      CHECK(bits_of(blocks->parts[2].codes) == bits_of(codes["attn_v"]));
      const Tensor q = codes["attn_q"];
      const Tensor ours = arch == "llama" ? q : detail::from_half_split(q, 2).contiguous();
      CHECK(bits_of(blocks->parts[0].codes) == bits_of(ours));
      for (const DType d : {DType::f32, DType::bf16})
        CHECK(bits_of(weights.read("h.0.attn.qkv.weight", d)) == bits_of(dequantize(*blocks, d)));
      CHECK(bits_of(m.params.state().at("h.0.attn.qkv.weight")) == bits_of(dequantize(*blocks, DType::f32)));
    }
}

TEST_CASE("gguf read: refused files") {
  const auto set = [](const char* key, const std::string& x) { return [=](GgufBytes& f) { f.keys[key] = x; }; };
  CHECK_HAS(gguf_error([](GgufBytes& f) { f.version = 1; }), "[gguf] ", "has version 1, and 2 and 3 are read");
  CHECK(gguf_error([](GgufBytes& f) { f.version = 2; }) == "no error");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f.version = 0x03000000; }),
            "is big endian, and only little endian is read. Convert it: `gguf-convert-endian ", " little`");
  CHECK_HAS(gguf_error([&](GgufBytes& f) { set("split.count", gguf_u16(3))(f), set("split.no", gguf_u16(1))(f); }),
            "is part 2 of 3. Join the parts: `llama-gguf-split --merge ");
  CHECK_HAS(
      gguf_error([](GgufBytes& f) { f["blk.0.ffn_up.weight"].type = 23; }),
      "'blk.0.ffn_up.weight' is iq4_xs, and f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_K, q5_K and q6_K are "
      "read. Download the Q4_K_M or Q8_0 file of the model.");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f["blk.0.ffn_up.weight"].type = 41; }), "is q1_0,");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f["blk.0.ffn_up.weight"].type = 39; }), "is mxfp4,");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f["blk.0.ffn_up.weight"].type = ~0u; }), "is of the type 4294967295,");
  CHECK_HAS(gguf_error(set("general.architecture", gguf_text("gemma3"))),
            "has the architecture \"gemma3\", and gpt2, llama, qwen2 and qwen3 are read");
  CHECK_HAS(gguf_error(set("general.type", gguf_text("adapter"))), "is an adapter", "--adapter");
  CHECK_HAS(gguf_error(set("llama.expert_count", gguf_u32(8))), "'llama.expert_count' is 8", "no mixture of experts");
  CHECK_HAS(gguf_error(set("llama.rope.scaling.type", gguf_text("yarn"))), "'llama.rope.scaling.type' is yarn");
  CHECK_HAS(gguf_error(set("llama.attention.sliding_window", gguf_u32(7))), "sliding_window' is 7", "full attention");
  CHECK(gguf_error(set("llama.attention.sliding_window", gguf_u32(8))) == "no error");
  CHECK_HAS(gguf_error(set("llama.rope.dimension_count", gguf_u32(8))), "dimension_count' is 8", "heads of 16");
  CHECK_HAS(gguf_error(set("llama.attention.value_length", gguf_u32(8))), "value_length' is 8", "heads of 16");
  CHECK_HAS(gguf_error(set("llama.attention.scale", gguf_f32(1))), "'llama.attention.scale' is set");
  CHECK_HAS(gguf_error(set("llama.attention.head_count_kv", gguf_list({gguf_u32(1), gguf_u32(2)}))), "[1,2]");
  CHECK(gguf_error(set("llama.attention.head_count_kv", gguf_list({gguf_u32(2), gguf_u32(2)}))) == "no error");
  CHECK_HAS(gguf_error(set("llama.block_count", gguf_text("1"))), "'llama.block_count' is \"1\"");
  CHECK_HAS(gguf_error(set("llama.block_count", gguf_f32(1))), "'llama.block_count' is 1.0");
  CHECK_HAS(gguf_error(set("llama.block_count", gguf_raw(uint32_t(10)) + gguf_raw(uint64_t(1) << 53))), "out of range");
  CHECK_HAS(gguf_error(set("llama.block_count", gguf_raw(uint32_t(5)) + gguf_raw(int32_t(-1)))), "is -1,");
  CHECK_HAS(gguf_error(set("llama.block_count", gguf_raw(uint32_t(4)) + gguf_raw(uint32_t(2305)))),
            "is 2305, and it has");
  CHECK(gguf_error(set("llama.block_count", gguf_raw(uint32_t(11)) + gguf_raw(int64_t(1)))) == "no error");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f.keys.erase("llama.context_length"); }), "has no 'llama.context_length'");
  CHECK_HAS(gguf_error(set("llama.feed_forward_length", gguf_u32(32))), "'blk.0.ffn_gate.weight' is (64, 32)",
            "(32, 32)");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f.tensors.pop_back(); }),
            "has no tensor 'blk.0.ffn_down.weight' of (32, 64)");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f.tensors.erase(f.tensors.begin()); }), "has no tensor 'token_embd.weight'");
  CHECK_HAS(gguf_error([](GgufBytes& f) {
              f["more"] = {"more", {1}, 0, "1234"};
            }),
            "'more' (1)", "is not in the llama");
  CHECK_HAS(gguf_error([](GgufBytes& f) {
              f["rope_factors_long.weight"] = {"rope_factors_long.weight", {1}, 0, "1234"};
            }),
            "'rope_factors_long.weight'");
  CHECK(gguf_error([](GgufBytes& f) {
          f["blk.0.attn_rot_embd.weight"] = {"blk.0.attn_rot_embd.weight", {1}, 0, "1234"};
        }) == "no error");
  CHECK_HAS(gguf_error([](GgufBytes& f) {
              f["output_norm.weight"] = {"output_norm.weight", {32}, 8, std::string(34, '\0')};
            }),
            "'output_norm.weight' is q8_0", "vectors are f32");
  const auto factors = [](const std::vector<float>& x) {
    return gguf_error([&](GgufBytes& f) {
      f["rope_freqs.weight"] = {
          "rope_freqs.weight", {x.size()}, 0, std::string(reinterpret_cast<const char*>(x.data()), 4 * x.size())};
    });
  };
  CHECK(factors({1, 1, 1, 1, 1, 1, 1, 1}) == "no error");
  CHECK_HAS(factors({1, 1, 1, 1, 1, 1, 1, 3}), "rope_freqs.weight is none of llama3's with low_freq 1 and high_freq 4");
  CHECK_HAS(factors({1, 1, 1}), "rope_freqs.weight is none of llama3's");
  CHECK_HAS(factors({1, 1, 1, 1, 1, 1, 1, NAN}), "rope_freqs.weight is none of llama3's");

  const Folder folder;
  const std::string part = folder / "m-00002-of-00003.gguf", text = folder / "text.gguf", page = folder / "page.gguf";
  detail::write_file_atomically(part, tiny_gguf().text());
  CHECK_HAS(error_of([&] { load_model(part); }), "is part 2 of 3. Join the parts");
  detail::write_file_atomically(text, "hello");
  CHECK_HAS(error_of([&] { load_model(text); }), "text.gguf is no GGUF file: it begins with \"hell\".");
  detail::write_file_atomically(page, "<!DOCTYPE html><html></html>");
  CHECK_HAS(error_of([&] { load_model(page); }), "is no GGUF file: it is a page of HTML");
  detail::write_file_atomically(folder / "unnamed", tiny_gguf().text());  // its content counts
  CHECK(load_model(folder / "unnamed").model.config().width == 32);
}

TEST_CASE("gguf read: linear scaling, old and new") {
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    const Folder folder;
    GgufBytes f = tiny_gguf();
    f.keys[key] = gguf_f32(2.5);
    CHECK(load_model(written(folder, f)).model.config().rope_scaling.factor == 2.5);
    f.keys["llama.rope.scaling.type"] = gguf_text("none");
    CHECK(load_model(written(folder, f)).model.config().rope_scaling == RopeScaling());
  }
}

TEST_CASE("gguf read: damaged files") {
  const auto with_tensor = [](auto change) {
    return gguf_error([&](GgufBytes& f) { change(f["blk.0.ffn_up.weight"]); });
  };
  CHECK_HAS(with_tensor([](auto& t) { t.name = ""; }), "has 0 bytes in its name");
  CHECK_HAS(with_tensor([](auto& t) { t.name.assign(64, 'a'); }), "has 64 bytes in its name, not 1 to 63");
  CHECK_HAS(with_tensor([](auto& t) { t.name = "token_embd.weight"; }), "has the name of another");
  CHECK_HAS(with_tensor([](auto& t) { t.sizes.clear(); }), "has 0 dimensions, not 1 to 4");
  CHECK_HAS(with_tensor([](auto& t) { t.sizes = {1, 1, 1, 1, 1}; }), "has 5 dimensions, not 1 to 4");
  CHECK_HAS(with_tensor([](auto& t) { t.sizes = {0, 1}; }), "has the size 0");
  CHECK_HAS(with_tensor([](auto& t) { t.sizes = {uint64_t(1) << 32, uint64_t(1) << 32}; }), "has the size 4294967296");
  CHECK_HAS(with_tensor([](auto& t) { t.sizes[0] = 33, t.type = 8; }), "no whole number of blocks in a row of 33");
  CHECK_HAS(with_tensor([](auto& t) { t.bytes += std::string(32, '\0'); }), "those before it end at");
  CHECK_HAS(with_tensor([](auto& t) { t.sizes[1] = uint64_t(1) << 40; }), "bytes from", "and the file has");
  for (const uint32_t bad : {0, 3, 31})
    CHECK_HAS(gguf_error([&](GgufBytes& f) { f.keys["general.alignment"] = gguf_u32(bad); }),
              fmt::format("general.alignment is {}. It must be a power of two", bad));
  CHECK(gguf_error([](GgufBytes& f) { f.keys["general.alignment"] = gguf_u32(256), f.alignment = 256; }) == "no error");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f.keys[""] = gguf_u32(1); }), "has the key '' without a name");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f.keys["a"] = gguf_u32(1) + gguf_raw_text("a") + gguf_u32(1); }), "[gguf] ");
  CHECK_HAS(gguf_error([](GgufBytes& f) { f.keys["a"] = gguf_raw(uint32_t(13)); }), "a value of the type 13");
  CHECK_HAS(gguf_error([](GgufBytes& f) {
              f.keys["a"] = gguf_raw(uint32_t(9)) + gguf_raw(uint32_t(9)) + gguf_raw(uint64_t(0));
            }),
            "a list has no lists");

  const Folder folder;
  GgufBytes f = tiny_gguf();
  f.keys["tokenizer.chat_template"] = gguf_text(std::string(400, 'x'));
  const std::string whole = f.text(), path = folder / "m.gguf";
  CHECK(f.header > 1500);
  const auto error_for = [&](const std::string& bytes) {
    detail::write_file_atomically(path, bytes);
    return error_of([&] { load_model(path); });
  };
  for (size_t n = 0; n < f.header + 32; ++n) {  // the data follows
    CAPTURE(n);
    CHECK_HAS(error_for(whole.substr(0, n)), "[gguf] ");
  }
  for (const size_t at : {8, 16, 24}) {  // counts of tensors and keys, the length of a key
    CAPTURE(at);
    for (const uint64_t count : {uint64_t(1) << 63, ~uint64_t(0), uint64_t(1) << 40})
      CHECK_HAS(error_for(std::string(whole).replace(at, 8, gguf_raw(count))), "has the count", "bytes are left");
  }
  int64_t refused = 0;
  for (size_t at = 4; at + 8 <= f.header; at += 3)  // anywhere: an Error, or a model
    refused += !error_for(std::string(whole).replace(at, 8, gguf_raw(uint64_t(1) << 63))).empty();
  CHECK(refused > int64_t(f.header) / 8);
}

TEST_CASE("gguf read: a scale that is not finite") {
  for (const auto& [half, what] : {std::pair(0x7c00, "infinite"), {0xfc00, "infinite"}, {0x7e00, "nan"}}) {
    const std::string message = gguf_error([&, half = half](GgufBytes& f) {
      auto& t = f["blk.0.ffn_down.weight"];  // (32, 64)
      t.type = 3, t.bytes = std::string(32 * 2 * 20, '\0');
      t.bytes.replace(5 * 40 + 20 + 2, 2, gguf_raw(uint16_t(half)));  // the minimum
    });
    CHECK_HAS(message,
              fmt::format("'blk.0.ffn_down.weight' has a scale that is {} in row 5, block 1. It must be", what));
  }
}

TEST_CASE("gguf read: tokenizers") {
  const auto read = [](const std::map<std::string, std::string>& keys) {
    const Folder folder;
    GgufBytes f = tiny_gguf();
    for (const auto& [key, x] : keys) f.keys["tokenizer.ggml." + key] = x;
    LoadedModel m = load_model(written(folder, f));
    REQUIRE_MESSAGE(m.tokenizer, m.tokenizer_error);
    return m;
  };
  using Ids = std::vector<int64_t>;
  CHECK(read({}).tokenizer->encode("abab") == Ids{2, 2});
  CHECK(read({}).tokenizer->encode("ab", {.add_special = true}) == Ids{2});
  CHECK(read({}).tokenizer->encode("a<e>", {.parse_special = true}) == Ids{0, 3});
  CHECK(read({}).origin->eos_tokens == Ids{3});
  const LoadedModel around =
      read({{"add_bos_token", gguf_flag(true)}, {"add_eos_token", gguf_flag(true)}, {"bos_token_id", gguf_u32(3)}});
  CHECK(around.tokenizer->encode("ab", {.add_special = true}) == Ids{3, 2, 3});
  const std::string flagged = gguf_list({gguf_u32(1), gguf_u32(1), gguf_u32(4), gguf_u32(5)});
  CHECK(read({{"token_type", flagged}, {"merges", gguf_texts({})}}).tokenizer->encode("aab") == Ids{0, 2});
  const std::string ends = gguf_texts({"a", "b", "<|im_end|>", "<e>"});
  const std::string control = gguf_list({gguf_u32(1), gguf_u32(1), gguf_u32(3), gguf_u32(3)});
  CHECK(read({{"tokens", ends}, {"token_type", control}, {"merges", gguf_texts({})}}).origin->eos_tokens == Ids{3, 2});
  for (const char* pre : {"llama-bpe", "qwen2", "deepseek-r1-qwen", "smollm"}) {
    const auto t = read({{"pre", gguf_text(pre)}, {"bos_token_id", gguf_u32(3)}});
    CHECK(t.tokenizer->encode("ab", {.add_special = true}) ==
          (pre == std::string_view("llama-bpe") ? Ids{3, 2} : Ids{2}));
  }
  const auto has_pattern = [&](const char* pre, const char* part) {
    const Folder folder;
    GgufBytes f = tiny_gguf();
    f.keys["tokenizer.ggml.pre"] = gguf_text(pre), f.keys["tokenizer.ggml.bos_token_id"] = gguf_u32(3);
    CHECK_HAS(*detail::text_in(written(folder, f), "tokenizer.json"), part);
  };
  has_pattern("llama-bpe", "{1,3}"), has_pattern("llama-bpe", "\"ignore_merges\":true");
  has_pattern("qwen2", "NFC"), has_pattern("deepseek-r1-qwen", "NFC");
  has_pattern("smollm", "\"individual_digits\":true"), has_pattern("qwen2", "\"ignore_merges\":false");

  // SentencePiece: the best score joins first, which no order of the tokens' lengths gives.
  const std::string mark = "▁";
  const std::map<std::string, std::string> pieces = {
      {"model", gguf_text("llama")},
      {"tokens", gguf_texts({"<unk>", mark, "a", "b", mark + "a", "ab", "x", "<s>"})},
      {"token_type", gguf_list({gguf_u32(2), gguf_u32(1), gguf_u32(1), gguf_u32(1), gguf_u32(1), gguf_u32(1),
                                gguf_u32(1), gguf_u32(3)})},
      {"scores", gguf_list({gguf_f32(0), gguf_f32(-9), gguf_f32(-9), gguf_f32(-9), gguf_f32(-1), gguf_f32(-2),
                            gguf_f32(-9), gguf_f32(0)})},
      {"bos_token_id", gguf_u32(7)}};
  const auto spm = [&](std::map<std::string, std::string> more) {
    more.insert(pieces.begin(), pieces.end());
    const Folder folder;
    GgufBytes f = tiny_gguf();
    f["token_embd.weight"].sizes[1] = 8, f["token_embd.weight"].bytes.resize(4 * 8 * 32);
    for (const auto& [key, x] : more) f.keys["tokenizer.ggml." + key] = x;
    return load_model(written(folder, f));
  };
  CHECK(spm({}).tokenizer->encode("ab") == Ids{4, 3});
  CHECK(spm({}).tokenizer->encode("aab", {.add_special = true}) == Ids{7, 4, 5});
  CHECK(spm({{"add_space_prefix", gguf_flag(false)}, {"add_bos_token", gguf_flag(false)}})
            .tokenizer->encode("ab", {.add_special = true}) == Ids{5});
  CHECK(spm({}).tokenizer->decode(Ids{4, 3}) == "ab");
  CHECK_HAS(spm({{"scores", gguf_list({gguf_f32(1)})}}).tokenizer_error, "has 8 tokens and 1 scores");
  const std::string bad = gguf_list(std::vector(8, gguf_f32(NAN)));
  CHECK_HAS(spm({{"scores", bad}}).tokenizer_error, "which is finite");

  const auto set = [](const char* key, const std::string& x) {
    return [=](GgufBytes& f) { f.keys[std::string("tokenizer.ggml.") + key] = x; };
  };
  CHECK_HAS(tokenizer_error(set("pre", gguf_text("tekken"))), "splits texts as \"tekken\" (tokenizer.ggml.pre)");
  CHECK_HAS(tokenizer_error([](GgufBytes& f) { f.keys.erase("tokenizer.ggml.pre"); }), "splits texts as \"default\"");
  CHECK_HAS(tokenizer_error([](GgufBytes& f) { f.keys.erase("tokenizer.ggml.model"); }), "has no tokenizer");
  CHECK_HAS(tokenizer_error(set("model", gguf_text("bert"))),
            "has the tokenizer \"bert\", and gpt2 and llama are read");
  CHECK_HAS(tokenizer_error([](GgufBytes& f) { f.keys.erase("tokenizer.ggml.merges"); }),
            "has no 'tokenizer.ggml.merges'");
  CHECK_HAS(tokenizer_error(set("merges", gguf_texts({"ab"}))), "the merge 'ab' is not two tokens");
  CHECK_HAS(tokenizer_error(set("tokens", gguf_texts({"a", "b", "a", "<e>"}))), "the tokens 0 and 2 are both 'a'");
  CHECK_HAS(tokenizer_error(set("tokens", gguf_texts({"a", "b"}))), "has 2 tokens and 4 types of them");
  CHECK_HAS(tokenizer_error(set("tokens", gguf_texts({"a", "b", "\xff", "<e>"}))), "the token 2 is not UTF-8");
  CHECK_HAS(tokenizer_error(set("add_bos_token", gguf_flag(true))),
            "sets tokenizer.ggml.add_bos_token, and has no such");
  CHECK_HAS(tokenizer_error(set("pre", gguf_u32(1))), "'tokenizer.ggml.pre' is 1");
}
