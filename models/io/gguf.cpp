#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/chat.h>
#include <tapegrad/models/io/gguf.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>
#include <tapegrad/models/tokenizers/model_texts.h>
#include <tapegrad/ops/binary.h>
#include <tapegrad/ops/rope.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <variant>

namespace tg {
namespace {
using detail::BpeParts, detail::Cut, detail::Metaspace;

constexpr std::string_view kOp = "gguf";
constexpr int64_t kAlignment = 32, kQuantBlock = 32;  // bytes, elements
constexpr const char* kConvert = "Export with --to hf, and convert the folder by llama.cpp's convert_hf_to_gguf.py";

struct GgufTypeInfo {
  std::string_view name;
  GgufType type;
  DType dtype;                      // written or quantized type
  int64_t file_type, block, bytes;  // elements and bytes of a block
};
constexpr GgufTypeInfo kGgufTypes[] = {{"f32", GgufType::f32, DType::f32, 0, 1, 4},
                                       {"bf16", GgufType::bf16, DType::bf16, 32, 1, 2},
                                       {"f16", GgufType::f16, DType::f16, 1, 1, 2},
                                       {"q8_0", GgufType::q8_0, DType::f32, 7, kQuantBlock, 2 + kQuantBlock}};
const GgufTypeInfo& info_of(GgufType t) { return *std::ranges::find(kGgufTypes, t, &GgufTypeInfo::type); }

template <class T> void put_bytes(std::string& to, T x) { to.append(reinterpret_cast<const char*>(&x), sizeof(T)); }
void put_bytes(std::string& to, const std::string& x) { put_bytes(to, uint64_t(x.size())), to += x; }
std::string padding_of(int64_t bytes) { return std::string(size_t(-bytes & (kAlignment - 1)), '\0'); }

std::string q8_0_of(const std::string& name, const Tensor& made) {
  const float* x = made.data<float>();
  std::string to;
  to.reserve(size_t(made.numel() / kQuantBlock * (2 + kQuantBlock)));
  for (int64_t i = 0; i < made.numel(); i += kQuantBlock) {
    float most = 0;
    for (int64_t k = 0; k < kQuantBlock; ++k) most = std::max(most, std::abs(x[i + k]));
    const float d = most / 127, inverse = std::isfinite(1 / d) ? 1 / d : 0;
    const f16 scale(d);
    TG_CHECK(std::isfinite(float(scale)), non_finite,
             "[gguf] '{}' has an element of size {} in the {} from {} on, and q8_0 has scales in f16. Write bf16 or "
             "f32, or train with a lower learning rate.",
             name, most, kQuantBlock, detail::position_of(i, made.shape()));
    put_bytes(to, scale.bits);
    for (int64_t k = 0; k < kQuantBlock; ++k) to += char(int8_t(std::round(x[i + k] * inverse)));
  }
  return to;
}

// Tensors are made when written.
struct GgufWriter {
  using Value = std::variant<uint32_t, int32_t, float, bool, std::string>;  // types 4 to 8 in a file
  Family family;
  std::string keys = {};
  uint64_t count = 0;  // count of keys
  std::vector<std::pair<detail::ExportTensor, GgufType>> tensors = {};

  explicit GgufWriter(const GptConfig& c) : family(detail::family_of(c)) {
    TG_CHECK(c.classes == 0, value, "[gguf] the head has {} classes. It must be a language model's.", c.classes);
    TG_CHECK(family != Family::none, value,
             "[gguf] llama.cpp has no model like this one: {}. Train a model of one family.",
             detail::family_mismatch(c));
    TG_CHECK(family != Family::gpt2 || c.activation == Activation::gelu_tanh, value,
             "[gguf] activation is {}, and llama.cpp computes gelu_tanh in a gpt2. Train with --activation gelu_tanh.",
             name_of(c.activation));
    TG_CHECK(family == Family::llama || c.rope_scaling.kind != RopeScalingKind::llama3, value,
             "[gguf] rope_scaling is llama3, which llama.cpp computes in a llama and not in a {}. Export with --to hf.",
             name_of(family));
    TG_CHECK(family != Family::qwen2 || c.head_size() * c.heads == c.width, value,
             "[gguf] head_dim is {}. In a qwen2, llama.cpp computes width / heads ({} / {}). Export with --to hf.",
             c.head_dim, c.width, c.heads);
    set("general.architecture", std::string(name_of(family)));
    set("general.alignment", uint32_t(kAlignment));
  }
  void set(const std::string& key, const Value& x) {
    put_bytes(keys, key), put_bytes(keys, uint32_t(4 + x.index())), ++count;
    std::visit([&](const auto& value) { put_bytes(keys, value); }, x);
  }
  template <class T> void set(const std::string& key, const std::vector<T>& list) {
    put_bytes(keys, key), put_bytes(keys, uint32_t(9)), ++count;
    put_bytes(keys, uint32_t(4 + Value(T()).index())), put_bytes(keys, uint64_t(list.size()));
    for (const T& x : list) put_bytes(keys, x);
  }
  void add(const std::string& name, const Tensor& t) {
    const Tensor plain = t.to(Device::cpu()).to(DType::f32).contiguous();
    tensors.push_back({{name, t.shape(), [=](DType) { return plain; }}, GgufType::f32});
  }
  void write(const std::string& path) const {
    std::string head = "GGUF";
    put_bytes(head, uint32_t(3)), put_bytes(head, uint64_t(tensors.size())), put_bytes(head, count);
    head += keys;
    int64_t offset = 0;
    for (const auto& [t, type] : tensors) {
      put_bytes(head, t.name), put_bytes(head, uint32_t(t.shape.size()));
      for (size_t i = t.shape.size(); i-- > 0;) put_bytes(head, uint64_t(t.shape[i]));  // innermost first
      put_bytes(head, uint32_t(type)), put_bytes(head, uint64_t(offset));
      offset += t.shape.product() / info_of(type).block * info_of(type).bytes;
      offset += int64_t(padding_of(offset).size());
    }
    head += padding_of(int64_t(head.size()));
    detail::write_file_atomically(path, [&](const Sink& sink) {
      sink(std::as_bytes(std::span(head)));
      for (const auto& [t, type] : tensors) {
        const Tensor x = t.make(info_of(type).dtype);
        detail::check_finite(kOp, fmt::format("'{}'", t.name), x,
                             fmt::format(" in {}. {}", info_of(type).name, detail::kBeFinite));
        const auto put = [&](const auto& data) {
          const auto bytes = std::as_bytes(std::span(data));
          sink(bytes), sink(std::as_bytes(std::span<const char>(padding_of(int64_t(bytes.size())))));
        };
        if (type == GgufType::q8_0)
          put(q8_0_of(t.name, x));
        else
          visit_dtype(x.dtype(), [&]<class T>() { put(std::span(x.data<T>(), size_t(x.numel()))); });
      }
    });
  }
};

// llama.cpp's name for the steps before the merges, or "".
std::string steps_of(const BpeParts& p, bool merges) {
  if (!p.model.byte_level) {
    bool known = p.model.byte_fallback;
    for (const auto& n : p.normalizer) {
      const auto* replace = std::get_if<detail::Replace>(&n);
      const auto* prepend = std::get_if<detail::Prepend>(&n);
      known = known && (prepend ? prepend->text == "▁" : replace && replace->from == " " && replace->to == "▁");
    }
    for (const Cut& c : p.cuts) {
      const auto* space = std::get_if<Metaspace>(&c);
      known = known && space && space->mark == "▁" && !space->split;
    }
    return known ? "default" : "";
  }
  if (!std::ranges::all_of(p.normalizer, [](const auto& n) { return std::holds_alternative<detail::Nfc>(n); }))
    return "";
  if (!merges) return "gpt-2";  // texts become bytes
  std::string patterns;
  for (const Cut& c : p.cuts) {
    const detail::Regex* plain = detail::plain_pattern(c);
    patterns += (patterns.empty() ? "" : "\n") + (plain ? plain->text() : "?");
  }
  if (patterns == detail::kGpt2Pattern) return "gpt-2";
  if (patterns == "\\p{N}\n" + std::string(detail::kGpt2Pattern)) return "smollm";
  if (patterns == detail::kLlama3Pattern) return "llama-bpe";
  return patterns == detail::kQwen2Pattern ? "qwen2" : "";
}

// Merge "a b" or ["a", "b"].
std::string merge_of(const Json& m, std::string_view between) {
  if (!m.is_string()) return fmt::format("{}{}{}", m[0].get<std::string>(), between, m[1].get<std::string>());
  std::string both = m.get<std::string>();
  return both.replace(both.find(' '), 1, between);
}

struct GgufVocabulary {
  static constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kUnused = 5, kByte = 6;
  Json json;
  BpeParts parts;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;

  GgufVocabulary(const Tokenizer& t, int64_t size)
      : json(detail::own_json(tokenizer_json(t))),
        parts(detail::read_bpe(json, "the tokenizer")),
        types(size_t(size), kUnused) {
    for (int64_t i = 0; i < size; ++i) tokens.push_back(fmt::format("[PAD{}]", i));
    const auto set = [&](int64_t id, int32_t type) {
      if (has(id)) types[size_t(id)] = type;
    };
    for (const auto& [name, id] : parts.names)
      if (has(id)) tokens[size_t(id)] = name, set(id, kNormal);
    for (const int32_t id : parts.model.byte_ids) set(id, parts.model.byte_level ? kNormal : kByte);
    for (const Json& x : json.member("added_tokens")) {
      const auto is = [&](const char* key) { return x.contains(key) && x[key] == Json(true); };
      set(x["id"].get<int64_t>(), is("special") ? kControl : kUser);
      for (const char* key : {"lstrip", "rstrip", "single_word"})
        TG_CHECK(!is(key), value,
                 "[gguf] the token {} has \"{}\", which llama.cpp lacks. Set it to false in tokenizer.json.",
                 detail::text_of(x["content"]), key);
    }
    set(parts.model.unknown, kUnknown);
  }
  bool has(int64_t id) const { return id >= 0 && id < int64_t(types.size()); }
  int64_t named(std::string_view token) const {  // or -1
    const int32_t id = parts.id_of(token);
    return has(id) ? id : -1;
  }

  void set_merges(GgufWriter& to, const Tokenizer& tokenizer) const {
    const Json& merges = json["model"]["merges"];
    const std::string pre = steps_of(parts, !merges.empty());
    const auto shown = [&](const char* key) { return json.contains(key) ? detail::text_of(json[key]) : "null"; };
    TG_CHECK(!pre.empty() && (parts.model.byte_level || has(parts.model.unknown)), value,
             "[gguf] the tokenizer has the normalizer {} and the pre_tokenizer {}. llama.cpp has those of GPT-2, "
             "LLaMA-2, LLaMA-3, Qwen2 and SmolLM. {}.",
             shown("normalizer"), shown("pre_tokenizer"), kConvert);
    to.set("tokenizer.ggml.pre", pre);
    to.set("tokenizer.ggml.model", parts.model.byte_level ? "gpt2" : "llama");
    if (!parts.model.byte_level) return set_scores(to, merges);
    std::vector<std::string> all;
    for (const Json& m : merges) all.push_back(merge_of(m, " "));
    to.set("tokenizer.ggml.merges", all);
    // Only for llama-bpe, llama.cpp keeps a pre-token whole if it is a token.
    const bool theirs = pre == "llama-bpe";
    if (merges.empty() || parts.model.ignore_merges == theirs) return;
    Json other = json;
    other["model"]["ignore_merges"] = theirs;
    const auto peer = BpeTokenizer::from_json(detail::text_of(other), "the tokenizer");
    for (const std::string& text : parts.texts)
      TG_CHECK(tokenizer.encode(text) == peer.encode(text), value,
               "[gguf] \"ignore_merges\" is {}, and {} in llama.cpp for this pattern: '{}' has other ids there. {}.",
               !theirs, theirs, text, kConvert);
  }
  void set_scores(GgufWriter& to, const Json& merges) const {
    std::vector<float> scores;
    for (const int32_t type : types) scores.push_back(type == kNormal ? -float(merges.size()) : 0);
    for (size_t rank = merges.size(); rank-- > 0;)  // a token's first merge counts
      if (const int64_t id = named(merge_of(merges[rank], "")); id >= 0 && types[size_t(id)] == kNormal)
        scores[size_t(id)] = -float(rank);
    to.set("tokenizer.ggml.scores", scores);
    to.set("tokenizer.ggml.unknown_token_id", uint32_t(parts.model.unknown));
    to.set("tokenizer.ggml.add_space_prefix",
           std::ranges::any_of(parts.normalizer,
                               [](const auto& n) { return std::holds_alternative<detail::Prepend>(n); }) ||
               std::ranges::any_of(parts.cuts, [](const Cut& c) {
                 const auto* space = std::get_if<Metaspace>(&c);
                 return space && space->prepend != Metaspace::Prepend::never;
               }));
  }

  void set_special(GgufWriter& to, const GgufOptions& o) const {
    std::vector<Json> files;  // the first file with the token counts
    for (const char* name : {"generation_config.json", "config.json", "tokenizer_config.json"})
      files.push_back(detail::json_in(o.origin ? o.origin->folder : "", name, kOp));
    const auto noted = [&](const std::string& kind) -> int64_t {  // or -1
      for (const Json& file : files) {
        const Json &id = file.member(kind + "_token_id"), &token = file.member(kind + "_token"),
                   &text = token.is_object() ? token.member("content") : token;
        if (id.is_number_unsigned() && has(id.get<int64_t>())) return id.get<int64_t>();
        if (text.is_string() && named(text.text()) >= 0) return named(text.text());
      }
      return -1;
    };
    std::vector<int64_t> ends = o.eos_tokens.empty() && o.origin ? o.origin->eos_tokens : o.eos_tokens;
    std::erase_if(ends, [&](int64_t id) { return !has(id); });
    int64_t end = ends.empty() ? noted("eos") : ends[0];
    if (end < 0 && has(parts.end_of_text)) end = parts.end_of_text;
    if (end < 0) end = has(parts.model.byte_ids[255]) ? parts.model.byte_ids[255] : int64_t(types.size()) - 1;
    const int64_t begin = parts.before.empty() ? noted("bos") : parts.before[0], pad = noted("pad");
    TG_CHECK(parts.before.size() <= 1 && (parts.after.empty() || parts.after == std::vector{int32_t(end)}), value,
             "[gguf] the tokenizer adds {} tokens before a text and {} after it, and llama.cpp a first and an end. {}.",
             parts.before.size(), parts.after.size(), kConvert);
    to.set("tokenizer.ggml.bos_token_id", uint32_t(begin >= 0 ? begin : end));  // llama.cpp's default is 11
    to.set("tokenizer.ggml.eos_token_id", uint32_t(end));
    if (ends.size() > 1) to.set("tokenizer.ggml.eot_token_id", uint32_t(ends.back()));
    if (ends.size() > 2) to.set("tokenizer.ggml.eom_token_id", uint32_t(ends[1]));
    if (pad >= 0) to.set("tokenizer.ggml.padding_token_id", uint32_t(pad));
    to.set("tokenizer.ggml.add_bos_token", !parts.before.empty());
    to.set("tokenizer.ggml.add_eos_token", !parts.after.empty());
    const std::string chat =
        o.chat_template.empty() && o.origin ? detail::chat_template_of(o.origin->folder) : o.chat_template;
    if (!chat.empty()) to.set("tokenizer.chat_template", detail::without_generation(chat));
  }
};

void set_model(GgufWriter& to, const GptConfig& c) {  // with_sizes()
  const auto key = [&](const char* name) { return fmt::format("{}.{}", name_of(to.family), name); };
  const bool gpt2 = to.family == Family::gpt2;
  std::vector<std::pair<const char*, int64_t>> numbers = {
      {"context_length", c.context},       {"embedding_length", c.width},     {"block_count", c.layers},
      {"feed_forward_length", c.ff_width}, {"attention.head_count", c.heads}, {"vocab_size", c.vocab_size}};
  if (!gpt2)
    numbers.insert(numbers.end(), {{"attention.head_count_kv", c.kv_heads},
                                   {"attention.key_length", c.head_dim},
                                   {"attention.value_length", c.head_dim},
                                   {"rope.dimension_count", c.head_dim}});
  for (const auto& [name, n] : numbers) to.set(key(name), uint32_t(n));
  to.set(key(gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"), float(c.norm_eps));
  if (gpt2) return;
  to.set(key("rope.freq_base"), float(c.rope_theta));
  if (c.rope_scaling.kind == RopeScalingKind::linear) {
    to.set(key("rope.scaling.type"), "linear");
    to.set(key("rope.scaling.factor"), float(c.rope_scaling.factor));
  } else if (c.rope_scaling.kind == RopeScalingKind::llama3) {
    const int64_t pairs = c.head_dim / 2;
    std::vector<float> x;
    for (int64_t i = 0; i < pairs; ++i)
      x.push_back(float(kernel::rope_frequency(c.rope_theta, {}, i, pairs) /
                        kernel::rope_frequency(c.rope_theta, c.rope_scaling, i, pairs)));
    to.add("rope_freqs.weight", tensor<float>(x, {pairs}));
  }
}

GgufType matrix_type(const GptConfig& c, const GgufOptions& o) {
  if (o.type || !o.origin) return o.type.value_or(GgufType::f32);
  std::set<DType> all;
  for (const detail::TensorMapping& e : detail::layout_of(detail::family_of(c), c))
    for (const detail::TensorSlice& p : e.pieces)
      if (const auto found = o.origin->dtypes.find(p.theirs); e.columns && found != o.origin->dtypes.end())
        all.insert(found->second);
  return all.size() == 1 ? detail::gguf_type(name_of(*all.begin())) : GgufType::f32;
}

}  // namespace

GgufType detail::gguf_type(std::string_view name) {
  const auto* const known = std::ranges::find(kGgufTypes, name, &GgufTypeInfo::name);
  TG_CHECK(known != std::end(kGgufTypes), value, "[gguf] the type is \"{}\". It must be f32, bf16, f16 or q8_0.", name);
  return known->type;
}

void save_gguf(const std::string& path, const GptConfig& c, const Params& params, const GgufOptions& o) {
  GgufWriter file(c);
  TG_CHECK(o.tokenizer, value,
           "[gguf] the model has no tokenizer, and llama.cpp needs one. Copy the tokenizer.json of its base there, or "
           "train with one.");
  TG_CHECK(!dynamic_cast<const CharTokenizer*>(o.tokenizer), value,
           "[gguf] the model has a tokenizer of characters, and llama.cpp needs bytes or BPE. Train with --tokenizer "
           "byte or a tokenizer.json.");
  const GgufType type = matrix_type(c, o);
  file.set("general.name", std::filesystem::path(path).stem().string());
  file.set("general.file_type", uint32_t(info_of(type).file_type));
  file.set("general.quantization_version", uint32_t(2));
  set_model(file, c.with_sizes());
  const GgufVocabulary v(*o.tokenizer, c.vocab_size);
  v.set_merges(file, *o.tokenizer);
  v.set_special(file, o);
  file.set("tokenizer.ggml.tokens", v.tokens);
  file.set("tokenizer.ggml.token_type", v.types);
  for (detail::ExportTensor& t : detail::their_tensors(kOp, detail::NamingScheme::llama_cpp, c, params)) {
    const bool plain = t.shape.size() == 1 || t.name == "position_embd.weight";
    const bool ragged = type == GgufType::q8_0 && t.shape.back() % kQuantBlock;
    file.tensors.emplace_back(std::move(t), plain ? GgufType::f32 : ragged ? GgufType::f16 : type);
  }
  file.write(path);
}

void save_gguf_adapter(const std::string& path, const GptConfig& c, const Lora& lora) {
  NoGradScope off;
  GgufWriter file(c);
  const auto alpha = float(lora.config().alpha);
  file.set("general.type", "adapter");
  file.set("adapter.type", "lora");
  file.set("adapter.lora.alpha", alpha);
  for (const AdapterModule& m :
       adapter_modules(lora, detail::layout_of(file.family, c, detail::NamingScheme::llama_cpp))) {
    const double factor = m.scale / (double(alpha) / double(m.rank));  // llama.cpp scales by alpha / rank
    file.add(m.name + ".weight.lora_a", m.a);
    file.add(m.name + ".weight.lora_b", factor == 1 ? m.b : m.b * factor);
  }
  file.write(path);
}

}  // namespace tg
