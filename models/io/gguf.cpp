#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/data/bpe_parts.h>
#include <tapegrad/models/io/gguf.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/ops/rope.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <type_traits>

namespace tg {
namespace {
using detail::BpeParts, detail::Cut, detail::GgufFile;

constexpr std::string_view kOp = "gguf";
constexpr std::pair<std::string_view, GgufType> kGgufTypes[] = {
    {"f32", GgufType::f32}, {"bf16", GgufType::bf16}, {"f16", GgufType::f16}, {"q8_0", GgufType::q8_0}};
constexpr int64_t kAlignment = 32, kQuantBlock = 32;  // bytes, elements
constexpr const char* kConvert = "Export with --to hf, and convert the folder by llama.cpp's convert_hf_to_gguf.py";

int64_t padding_of(int64_t bytes) { return -bytes & (kAlignment - 1); }
int64_t data_bytes(GgufType t, int64_t n) {
  return t == GgufType::f32 ? 4 * n : t == GgufType::q8_0 ? n / kQuantBlock * (2 + kQuantBlock) : 2 * n;
}

template <class T> void put_bytes(std::string& to, T x) { to.append(reinterpret_cast<const char*>(&x), sizeof(T)); }
void put_bytes(std::string& to, const std::string& x) { put_bytes(to, uint64_t(x.size())), to += x; }

// The number of a key's type in a file.
template <class T>
constexpr uint32_t kGgufNumber = std::is_same_v<T, uint32_t>  ? 4
                                 : std::is_same_v<T, int32_t> ? 5
                                 : std::is_same_v<T, float>   ? 6
                                 : std::is_same_v<T, bool>    ? 7
                                                              : 8;
template <class T> void put_value(std::string& to, const T& x) { put_bytes(to, kGgufNumber<T>), put_bytes(to, x); }
template <class T> void put_value(std::string& to, const std::vector<T>& list) {
  put_bytes(to, uint32_t(9)), put_bytes(to, kGgufNumber<T>), put_bytes(to, uint64_t(list.size()));
  for (const T& x : list) put_bytes(to, x);
}

std::string q8_0_of(const std::string& name, const Tensor& made) {
  const float* x = made.data<float>();
  std::string to;
  to.reserve(size_t(data_bytes(GgufType::q8_0, made.numel())));
  for (int64_t i = 0; i < made.numel(); i += kQuantBlock) {
    float most = 0;
    for (int64_t k = 0; k < kQuantBlock; ++k) most = std::max(most, std::abs(x[i + k]));
    const float d = most / 127, inverse = std::isfinite(1 / d) ? 1 / d : 0;
    const f16 scale(d);
    TG_CHECK(std::isfinite(float(scale)), non_finite,
             "[gguf] '{}' has an element of size {} in the {} from {} on. Their scale must be finite in f16 for q8_0. "
             "Write bf16 or f32, or train with a lower learning rate.",
             name, most, kQuantBlock, position_of(i, made.shape()));
    put_bytes(to, scale.bits);
    for (int64_t k = 0; k < kQuantBlock; ++k) to += char(int8_t(std::round(x[i + k] * inverse)));
  }
  return to;
}

void write_tensor(const detail::GgufTensor& t, const Sink& sink) {
  const DType dtype = t.type == GgufType::f16 ? DType::f16 : t.type == GgufType::bf16 ? DType::bf16 : DType::f32;
  const Tensor made = t.make(dtype);
  check_finite(kOp, t.name, made, name_of(t.type));
  const std::string blocks = t.type == GgufType::q8_0 ? q8_0_of(t.name, made) : "";
  if (t.type == GgufType::q8_0)
    sink(std::as_bytes(std::span(blocks)));
  else
    visit_dtype(dtype, [&]<class T>() { sink(std::as_bytes(std::span(made.data<T>(), size_t(made.numel())))); });
  const std::string zeros(size_t(padding_of(data_bytes(t.type, made.numel()))), '\0');
  sink(std::as_bytes(std::span(zeros)));
}

// llama.cpp's name for the rule that splits texts, or "".
std::string pre_tokenizer_of(const BpeParts& p) {
  std::string patterns;
  for (const Cut& c : p.cuts) {
    const bool plain = c.pattern && c.matches == Cut::Matches::alone && !c.invert && !c.prefix_space;
    patterns += (patterns.empty() ? "" : "\n") + (plain ? c.pattern->text() : "?");
  }
  if (patterns == detail::kGpt2Pattern) return "gpt-2";
  if (patterns == "\\p{N}\n" + std::string(detail::kGpt2Pattern)) return "smollm";
  if (patterns == detail::kLlama3Pattern) return "llama-bpe";
  return patterns == detail::kQwen2Pattern ? "qwen2" : "";
}

std::pair<std::string, std::string> merge_of(const Json& m) {
  if (!m.is_string()) return {m[0].get<std::string>(), m[1].get<std::string>()};
  const std::string both = m.get<std::string>();
  const size_t space = both.find(' ');
  return {both.substr(0, space), both.substr(space + 1)};
}

struct GgufVocabulary {
  const Tokenizer& tokenizer;
  const Origin* origin;
  Json json;
  BpeParts parts;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;

  GgufVocabulary(const Tokenizer& t, const Origin* o, int64_t size)
      : tokenizer(t),
        origin(o),
        json(own_json(tokenizer_json(t))),
        parts(detail::read_bpe(json, "the tokenizer")),
        types(size_t(size), kUnused) {
    for (int64_t i = 0; i < size; ++i) tokens.push_back(fmt::format("[PAD{}]", i));
    for (const auto& [name, id] : parts.names)
      if (has(id)) tokens[size_t(id)] = name, types[size_t(id)] = kNormal;
    for (const int32_t id : parts.model.byte_ids)
      if (has(id) && !parts.model.byte_level) types[size_t(id)] = kByte;
    if (has(parts.model.unknown)) types[size_t(parts.model.unknown)] = kUnknown;
    const Json added = json.contains("added_tokens") ? json["added_tokens"] : Json();
    for (const Json& x : added) {
      const auto is = [&](const char* key) { return x.contains(key) && x[key] == Json(true); };
      if (const int64_t id = x["id"].get<int64_t>(); has(id) && id != parts.model.unknown)
        types[size_t(id)] = is("special") ? kControl : kUser;
      for (const char* key : {"lstrip", "rstrip", "single_word"})
        TG_CHECK(
            !is(key), value,
            "[gguf] the tokenizer's token {} has \"{}\", which llama.cpp lacks. Set it to false in tokenizer.json, "
            "or export with --to hf.",
            text_of(x["content"]), key);
    }
  }
  // Whether the model has the id.
  bool has(int64_t id) const { return id >= 0 && id < int64_t(types.size()); }
  int64_t named(std::string_view token) const {  // or -1
    const auto found = parts.names.find(token);
    return found != parts.names.end() && has(found->second) ? found->second : -1;
  }
  void check_steps(bool known) const {
    const auto shown = [&](const char* key) {
      const std::string text = json.contains(key) ? text_of(json[key]) : "null";
      return text.size() > 400 ? text.substr(0, 400) + "..." : text;
    };
    TG_CHECK(known, value,
             "[gguf] the tokenizer has the normalizer {} and the pre_tokenizer {}. llama.cpp has those of GPT-2, "
             "LLaMA-2, LLaMA-3, Qwen2 and SmolLM. {}.",
             shown("normalizer"), shown("pre_tokenizer"), kConvert);
  }

  void add_byte_level(GgufFile& to) const {
    std::vector<std::string> merges;
    for (const Json& m : json["model"]["merges"]) {
      const auto [left, right] = merge_of(m);
      merges.push_back(left + " " + right);
    }
    const std::string pre = merges.empty() ? "gpt-2" : pre_tokenizer_of(parts);  // without merges texts become bytes
    check_steps(!pre.empty() && std::ranges::all_of(parts.normalizer, [](const auto& n) { return n.compose; }));
    if (!merges.empty()) check_whole_tokens(pre == "llama-bpe");
    to.keys.insert(
        to.keys.end(),
        {{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", pre}, {"tokenizer.ggml.merges", std::move(merges)}});
  }
  // llama.cpp takes a pre-token that is a token whole, without merging, for llama-bpe alone.
  void check_whole_tokens(bool theirs) const {
    if (parts.model.ignore_merges == theirs) return;
    Json other = json;
    other["model"]["ignore_merges"] = theirs;
    const auto peer = BpeTokenizer::from_json(text_of(other), "the tokenizer");
    for (const std::string& text : parts.texts)
      TG_CHECK(tokenizer.encode(text) == peer.encode(text), value,
               "[gguf] the tokenizer has \"ignore_merges\" {}, and llama.cpp {} for its pattern. '{}' would have other "
               "ids. {}.",
               !theirs, theirs, text, kConvert);
  }
  void add_byte_fallback(GgufFile& to) const {
    bool known = parts.model.byte_fallback && has(parts.model.unknown), prefix = false;
    for (const detail::Normalization& n : parts.normalizer) {
      prefix = prefix || !n.prepend.empty();
      known = known && (n.prepend == "▁" || (n.replace.from == " " && n.replace.to == "▁"));
    }
    for (const Cut& c : parts.cuts) {
      prefix = prefix || c.prepend != Cut::Prepend::never;
      known = known && c.kind == Cut::Kind::metaspace && c.literal == "▁" && !c.splits;
    }
    check_steps(known);
    const Json& merges = json["model"]["merges"];
    std::vector<float> scores;
    for (const int32_t type : types) scores.push_back(type == kNormal ? -float(merges.size()) : 0);
    for (size_t rank = merges.size(); rank-- > 0;) {  // the first merge of a token counts
      const auto [left, right] = merge_of(merges[rank]);
      const int64_t id = named(left + right);
      if (id >= 0 && types[size_t(id)] == kNormal) scores[size_t(id)] = -float(rank);
    }
    to.keys.insert(to.keys.end(), {{"tokenizer.ggml.model", "llama"},
                                   {"tokenizer.ggml.pre", "default"},
                                   {"tokenizer.ggml.scores", std::move(scores)},
                                   {"tokenizer.ggml.add_space_prefix", prefix},
                                   {"tokenizer.ggml.unknown_token_id", uint32_t(parts.model.unknown)}});
  }

  // An object in a file of the origin, or an empty one.
  Json in_origin(const char* name) const {
    const std::string path = origin ? origin->folder + "/" + name : "";
    if (!origin || !path_exists(path)) return Json::object();
    const Json all = parse_json(MappedFile(path).text(), kOp, path, 64);
    return all.is_object() ? all : Json::object();
  }
  // "bos", "eos" or "pad" in the origin's files, or -1.
  int64_t noted(const std::string& kind) const {
    for (const char* file : {"generation_config.json", "config.json", "tokenizer_config.json"}) {
      const Json all = in_origin(file);
      const Json *id = all.find(kind + "_token_id"), *text = all.find(kind + "_token");
      if (id && id->is_array() && !id->empty()) id = &(*id)[0];
      if (id && id->is_number_unsigned() && has(id->get<int64_t>())) return id->get<int64_t>();
      if (text && text->is_object()) text = text->find("content");
      if (const int64_t at = text && text->is_string() ? named(text->get<std::string>()) : -1; at >= 0) return at;
    }
    return -1;
  }
  void add_special(GgufFile& to) const {
    int64_t end = noted("eos");
    for (const char* name : {"<|endoftext|>", "</s>", "<|end_of_text|>"})
      if (end < 0) end = named(name);
    if (end < 0) end = has(parts.model.byte_ids[255]) ? parts.model.byte_ids[255] : int64_t(types.size()) - 1;
    const int64_t begin = parts.before.empty() ? noted("bos") : parts.before[0], pad = noted("pad");
    TG_CHECK(parts.before.size() <= 1 && (parts.after.empty() || parts.after == std::vector{int32_t(end)}), value,
             "[gguf] the tokenizer adds {} tokens before a text and {} after it. llama.cpp adds one that begins and "
             "the one that ends a text. {}.",
             parts.before.size(), parts.after.size(), kConvert);
    const auto set = [&](const char* key, detail::GgufValue x) { to.keys.emplace_back(key, std::move(x)); };
    set("tokenizer.ggml.bos_token_id", uint32_t(begin >= 0 ? begin : end));  // without it llama.cpp takes 11
    set("tokenizer.ggml.eos_token_id", uint32_t(end));
    if (pad >= 0) set("tokenizer.ggml.padding_token_id", uint32_t(pad));
    set("tokenizer.ggml.add_bos_token", !parts.before.empty());
    set("tokenizer.ggml.add_eos_token", !parts.after.empty());
    const Json config = in_origin("tokenizer_config.json");
    const Json* chat = config.find("chat_template");
    if (const std::string file = origin ? origin->folder + "/chat_template.jinja" : ""; origin && path_exists(file))
      set("tokenizer.chat_template", std::string(MappedFile(file).text()));
    else if (chat && chat->is_string())
      set("tokenizer.chat_template", chat->get<std::string>());
  }

  static constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kUnused = 5, kByte = 6;
};

void add_model(GgufFile& to, const GptConfig& c, Family family) {
  const auto set = [&](const char* key, detail::GgufValue x) {
    to.keys.emplace_back(fmt::format("{}.{}", name_of(family), key), std::move(x));
  };
  const bool gpt2 = family == Family::gpt2;
  set("context_length", uint32_t(c.context));
  set("embedding_length", uint32_t(c.width));
  set("block_count", uint32_t(c.layers));
  set("feed_forward_length", uint32_t(c.ff_width ? c.ff_width : 4 * c.width));
  set("vocab_size", uint32_t(c.vocab_size));
  set("attention.head_count", uint32_t(c.heads));
  set(gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", float(c.norm_eps));
  if (gpt2) return;
  set("attention.head_count_kv", uint32_t(c.kv_heads ? c.kv_heads : c.heads));
  for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
    set(key, uint32_t(c.head_size()));
  set("rope.freq_base", float(c.rope_theta));
  const int64_t pairs = c.head_size() / 2;
  if (c.rope_scaling.kind == RopeScalingKind::linear) {
    set("rope.scaling.type", "linear");
    set("rope.scaling.factor", float(c.rope_scaling.factor));
  } else if (c.rope_scaling.kind == RopeScalingKind::llama3) {
    to.tensors.push_back({"rope_freqs.weight", {pairs}, GgufType::f32, [=](DType) {
                            std::vector<float> x;
                            for (int64_t i = 0; i < pairs; ++i)
                              x.push_back(float(rope_frequency(c.rope_theta, {}, i, pairs) /
                                                rope_frequency(c.rope_theta, c.rope_scaling, i, pairs)));
                            return tensor<float>(x, {pairs});
                          }});
  }
}

GgufType gguf_type_of(const GptConfig& c, const GgufOptions& o) {
  if (o.type || !o.origin) return o.type.value_or(GgufType::f32);
  std::set<DType> all;
  for (const Entry& e : huggingface_layout(family_of(c), c))
    for (const Piece& p : e.pieces)
      if (const auto found = o.origin->dtypes.find(p.theirs); e.columns && found != o.origin->dtypes.end())
        all.insert(found->second);
  return all.size() == 1 ? gguf_type(name_of(*all.begin())) : GgufType::f32;
}

}  // namespace

std::string_view name_of(GgufType t) {
  return std::ranges::find(kGgufTypes, t, [](const auto& k) { return k.second; })->first;
}
GgufType gguf_type(std::string_view name) {
  const auto* const known = std::ranges::find(kGgufTypes, name, [](const auto& k) { return k.first; });
  TG_CHECK(known != std::end(kGgufTypes), value, "[gguf] the type is \"{}\". It must be f32, bf16, f16 or q8_0.", name);
  return known->second;
}

namespace {
Family checked_family(const GptConfig& c) {
  const Family family = family_of(c);
  TG_CHECK(family != Family::none, value,
           "[gguf] llama.cpp has no model like this one: {}. Train a model of one family.", family_mismatch(c));
  return family;
}
}  // namespace

void save_gguf(const std::string& path, const GptConfig& c, const Params& params, const GgufOptions& o) {
  const Family family = checked_family(c);
  TG_CHECK(family != Family::gpt2 || c.activation == Activation::gelu_tanh, value,
           "[gguf] activation is {}, and llama.cpp computes gelu_tanh in a gpt2. Train with --activation gelu_tanh.",
           name_of(c.activation));
  TG_CHECK(family == Family::llama || c.rope_scaling.kind != RopeScalingKind::llama3, value,
           "[gguf] rope_scaling is llama3, which llama.cpp computes in a llama and not in a {}. Export with --to hf.",
           name_of(family));
  TG_CHECK(family != Family::qwen2 || c.head_size() * c.heads == c.width, value,
           "[gguf] head_dim is {}. In a qwen2, llama.cpp computes width / heads ({} / {}). Export with --to hf.",
           c.head_dim, c.width, c.heads);
  TG_CHECK(
      o.tokenizer && !dynamic_cast<const CharTokenizer*>(o.tokenizer), value,
      "[gguf] the model has {}, and llama.cpp needs a vocabulary of bytes or BPE. Train with --tokenizer byte or a "
      "tokenizer.json.",
      o.tokenizer ? "a tokenizer of characters" : "no tokenizer");
  const GgufType type = gguf_type_of(c, o);
  const uint32_t number = type == GgufType::q8_0 ? 7 : type == GgufType::bf16 ? 32 : uint32_t(type);
  GgufFile file{.keys = {{"general.architecture", std::string(name_of(family))},
                         {"general.name", std::filesystem::path(path).stem().string()},
                         {"general.file_type", number},
                         {"general.quantization_version", uint32_t(2)},
                         {"general.alignment", uint32_t(kAlignment)}},
                .tensors = {}};
  add_model(file, c, family);
  GgufVocabulary v(*o.tokenizer, o.origin, c.vocab_size);
  v.parts.model.byte_level ? v.add_byte_level(file) : v.add_byte_fallback(file);
  v.add_special(file);
  file.keys.emplace_back("tokenizer.ggml.tokens", std::move(v.tokens));
  file.keys.emplace_back("tokenizer.ggml.token_type", std::move(v.types));
  for (TheirTensor& t : their_tensors(kOp, gguf_layout, c, params)) {
    const bool plain = t.shape.size() == 1 || t.name == "position_embd.weight";
    const bool ragged = type == GgufType::q8_0 && t.shape.back() % kQuantBlock;
    file.tensors.push_back({t.name, t.shape, plain ? GgufType::f32 : ragged ? GgufType::f16 : type, std::move(t.make)});
  }
  detail::write_gguf(path, file);
}

void save_gguf_adapter(const std::string& path, const GptConfig& c, const Lora& lora) {
  const Family family = checked_family(c);
  const auto alpha = float(lora.config().alpha);
  GgufFile file{.keys = {{"general.type", "adapter"},
                         {"general.architecture", std::string(name_of(family))},
                         {"general.alignment", uint32_t(kAlignment)},
                         {"adapter.type", "lora"},
                         {"adapter.lora.alpha", alpha}},
                .tensors = {}};
  for (const AdapterModule& m : adapter_modules(lora, gguf_layout(family, c))) {
    const double more = m.scale / (double(alpha) / double(m.rank));  // llama.cpp scales by alpha / rank
    for (const char* part : {"lora_a", "lora_b"}) {
      const Tensor t = part[5] == 'a' ? m.a : m.b;
      file.tensors.push_back({fmt::format("{}.weight.{}", m.name, part), t.shape(), GgufType::f32, [=](DType dtype) {
                                NoGradScope off;
                                const Tensor all = part[5] == 'b' && more != 1 ? t * more : t;
                                return all.to(Device::cpu()).to(dtype).contiguous();
                              }});
    }
  }
  detail::write_gguf(path, file);
}

void detail::write_gguf(const std::string& path, const GgufFile& file) {
  std::string head = "GGUF";
  put_bytes(head, uint32_t(3)), put_bytes(head, uint64_t(file.tensors.size())),
      put_bytes(head, uint64_t(file.keys.size()));
  for (const auto& [key, x] : file.keys) {
    put_bytes(head, key);
    std::visit([&](const auto& value) { put_value(head, value); }, x);
  }
  int64_t offset = 0;
  for (const GgufTensor& t : file.tensors) {
    put_bytes(head, t.name), put_bytes(head, uint32_t(t.shape.size()));
    for (size_t i = t.shape.size(); i-- > 0;) put_bytes(head, uint64_t(t.shape[i]));  // innermost first
    put_bytes(head, uint32_t(t.type)), put_bytes(head, uint64_t(offset));
    offset += data_bytes(t.type, t.shape.product());
    offset += padding_of(offset);
  }
  head.append(size_t(padding_of(int64_t(head.size()))), '\0');
  write_file_atomically(path, [&](const Sink& sink) {
    sink(std::as_bytes(std::span(head)));
    for (const GgufTensor& t : file.tensors) write_tensor(t, sink);
  });
}

}  // namespace tg
