// models/io/gguf: keys, tensors and adapters.

#include <cmath>

#include "support/gguf_content.h"
#include "support/refusals.h"

using namespace tg;

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
    const GgufContent f = m.save({.type = detail::gguf_type(name)});
    CHECK(f.number("general.file_type") == (name == "q8_0" ? 7 : name == "bf16" ? 32 : number));
    for (const auto& [key, t] : f.tensors)
      CHECK(t.type == (t.shape.size() == 1 || key == "position_embd.weight" ? 0 : number));
  }
  for (const DType d : {DType::f16, DType::bf16}) {
    const GgufContent f = m.save({.type = detail::gguf_type(name_of(d))});
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
  CHECK(f.tensors.at("blk.0.ffn_down.weight").type == 1);  // rows of 40: f16
  CHECK(f.tensors.at("blk.0.ffn_up.weight").type == 8);    // rows of 64: q8_0
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
