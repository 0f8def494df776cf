#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/io/gguf_read.h>
#include <tapegrad/models/io/huggingface.h>
#include <tapegrad/models/tokenizers/model_texts.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace tg {
namespace {

constexpr size_t kDepth = 8;  // config.json's nesting

struct ModelType {
  std::string_view name, stem, language_model;
  Family family;
};
constexpr ModelType kTypes[] = {{"gpt2", "GPT2", "LMHeadModel", Family::gpt2},
                                {"llama", "Llama", "ForCausalLM", Family::llama},
                                {"mistral", "Mistral", "ForCausalLM", Family::llama},
                                {"qwen2", "Qwen2", "ForCausalLM", Family::qwen2},
                                {"qwen3", "Qwen3", "ForCausalLM", Family::qwen3}};
constexpr std::string_view kClassifier = "ForSequenceClassification";
constexpr std::pair<std::string_view, std::string_view> kMissing[] = {
    {"moe", "a mixture of experts"},
    {"mixtral", "a mixture of experts"},
    {"gemma", "norms that scale by 1 + w, and scaled embeddings"},
    {"smollm3", "layers without rope"},
    {"phi", "rope on a part of each head"},
    {"neox", "rope on a part of each head, and branches side by side"}};

std::string shown(const Json& x) {
  const std::string text = detail::text_of(x);
  return text.size() > 200 ? text.substr(0, 200) + "..." : text;
}

// Keys of config.json. null counts as absent.
struct Keys {
  const Json& all;

  const Json* find(std::string_view key) const { return find_value(all, key); }
  template <class T> bool read(const char* key, T& to) const {
    const Json* x = find(key);
    if (x) read_field(FieldName{"huggingface", key}, *x, to);
    return x;
  }
  template <class T> void need(const char* key, T& to, const char* why = "A model of this type has it") const {
    TG_CHECK(read(key, to), value, "[huggingface] there is no '{}'. {}. Restore the file.", key, why);
  }
  // An Error unless the key is absent or has this value.
  void expect(const char* key, const Json& neutral, const char* way = "Pass a model without it") const {
    const Json* x = neutral == Json(true) ? all.find(key) : find(key);  // null counts as false, not as absent
    TG_CHECK(!x || *x == neutral, value,
             "[huggingface] '{}' is {}, which a Gpt does not compute. It must be {}, or absent. {}.", key, shown(*x),
             detail::text_of(neutral), way);
  }
};

constexpr std::pair<const char*, const char*> kGpt2Names[] = {{"n_positions", "max_position_embeddings"},
                                                              {"n_layer", "num_hidden_layers"},
                                                              {"n_head", "num_attention_heads"},
                                                              {"n_embd", "hidden_size"}};

ModelType type_of(const Keys& k) {
  std::string name;
  k.need("model_type", name);
  std::string known;
  for (const ModelType& t : kTypes) {
    if (t.name == name) return t;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", t.name);
  }
  const auto lacks = std::ranges::find_if(kMissing, [&](auto& m) { return name.find(m.first) != name.npos; });
  throw Error(Error::Kind::value,
              fmt::format("[huggingface] model_type is '{}'{}. The supported ones are {}. Pass a model of one of them.",
                          name.substr(0, 200),
                          lacks == std::end(kMissing) ? "" : fmt::format(", which has {}", lacks->second), known));
}

void refuse_other_results(const Keys& k, const ModelType& type) {
  for (const char* key : {"scale_attn_weights", "is_causal"}) k.expect(key, true);
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention", "is_encoder_decoder",
                          "use_sliding_window", "rope_interleaved"})
    k.expect(key, false);
  k.expect("partial_rotary_factor", 1);
  for (const char* key :
       {"attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size", "per_layer_config",
        "kv_sharing_modes", "text_config", "text_encoder", "decoder", "generator", "transformers_weights"})
    k.expect(key, nullptr);
  k.expect("quantization_config", nullptr, "Pass the model as it was before it was quantized");
  if (type.family == Family::gpt2)
    for (const auto& [ours, theirs] : kGpt2Names)
      if (const Json* x = k.find(ours)) k.expect(theirs, *x, "Remove the one that is wrong");
  const Json* types = k.find("layer_types");
  if (!types) return;
  TG_CHECK(types->is_array(), value, "[huggingface] 'layer_types' is {}. It must be a list of names.", shown(*types));
  for (const Json& t : *types)
    TG_CHECK(t == "full_attention" || (type.name == "mistral" && t == "sliding_attention"), value,
             "[huggingface] 'layer_types' has {}, which a Gpt does not compute. All must be \"full_attention\". Pass a "
             "model without it.",
             shown(t));
}

// A scaling's fields.
template <class Scaling, class F> void visit_numbers(Scaling& s, F f) {
  if (s.kind == RopeScalingKind::none) return;
  f("factor", s.factor);
  if (s.kind == RopeScalingKind::linear) return;
  f("low_freq_factor", s.low_freq), f("high_freq_factor", s.high_freq);
  f("original_max_position_embeddings", s.original_context);
}
struct Rope {
  double theta = 10000;
  RopeScaling scaling;
  bool operator==(const Rope&) const = default;
};
// Reads rope_parameters (version 5) or rope_scaling (version 4).
Rope read_rope(const Json& x, const char* key, double theta) {
  TG_CHECK(x.is_object(), value, "[huggingface] '{}' is {}. It must be an object.", key, shown(x));
  const Keys k{x};
  Rope r{theta, {}};
  k.read("rope_theta", r.theta);
  k.expect("partial_rotary_factor", 1);
  for (const auto& [name, its] : x.items())
    if (its.is_object()) k.expect(name.c_str(), nullptr);  // rope of some layers
  std::string kind = "default";
  if (!k.read("rope_type", kind)) k.read("type", kind);
  TG_CHECK(kind == "default" || kind == "linear" || kind == "llama3", value,
           "[huggingface] '{}' has rope_type '{}', which a Gpt does not compute. It must be default, linear or llama3. "
           "Pass a model without it.",
           key, kind.substr(0, 200));
  if (kind == "default") return r;
  RopeScaling& s = r.scaling;
  s.kind = kind == "linear" ? RopeScalingKind::linear : RopeScalingKind::llama3;
  visit_numbers(s, [&](const char* number, auto& to) { k.need(number, to, "This rope_type has it"); });
  return r;
}
void read_ropes(const Keys& k, GptConfig& c) {
  Rope old;
  const bool has_theta = k.read("rope_theta", old.theta);
  const Json* scaling = k.find("rope_scaling");
  if (scaling) old = read_rope(*scaling, "rope_scaling", old.theta);
  Rope r = old;
  if (const Json* parameters = k.find("rope_parameters")) {
    r = read_rope(*parameters, "rope_parameters", old.theta);
    const bool same = (!has_theta || old.theta == r.theta) && (!scaling || old.scaling == r.scaling);
    TG_CHECK(same, value,
             "[huggingface] 'rope_parameters' is {}, and 'rope_theta' with 'rope_scaling' disagrees ({}, {}). Both "
             "forms must agree. Remove the one that is wrong.",
             shown(*parameters), old.theta, scaling ? shown(*scaling) : "null");
  }
  c.rope_theta = r.theta, c.rope_scaling = r.scaling;
  if (r.scaling.kind == RopeScalingKind::llama3)  // matters outside of it since version 5
    k.expect("original_max_position_embeddings", r.scaling.original_context, "Remove the one that is wrong");
}

template <class Config, class F> void visit_sizes(bool gpt2, Config&& c, F f) {
  int64_t GptConfig::*const sizes[] = {&GptConfig::context, &GptConfig::layers, &GptConfig::heads, &GptConfig::width};
  for (size_t i = 0; i < std::size(sizes); ++i) f(gpt2 ? kGpt2Names[i].first : kGpt2Names[i].second, c.*sizes[i]);
  if (!gpt2) f("intermediate_size", c.ff_width);
}
// The first name is written.
constexpr std::pair<std::string_view, Activation> kActivations[] = {
    {"gelu_new", Activation::gelu_tanh}, {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu", Activation::gelu},          {"silu", Activation::silu},
    {"swish", Activation::silu},         {"relu", Activation::relu}};

void read_rate(const Keys& k, const char* key, double& to) {
  k.read(key, to);
  TG_CHECK(to >= 0 && to < 1, value, "[huggingface] '{}' is {}. It must be in [0, 1).", key, to);
}
GptConfig read_gpt2(const Keys& k) {
  GptConfig c{.activation = Activation::gelu_tanh, .bias = true, .tied_head = true};
  visit_sizes(/*gpt2=*/true, c, [&](const char* key, int64_t& to) { k.need(key, to); });
  k.read("n_inner", c.ff_width);
  std::string name = "gelu_new";
  k.read("activation_function", name);
  const auto* const known = std::ranges::find(kActivations, name, [](auto& a) { return a.first; });
  TG_CHECK(known != std::end(kActivations), value,
           "[huggingface] 'activation_function' is '{}'. The supported ones are gelu_new, gelu_pytorch_tanh, gelu, "
           "silu, swish and relu. Pass a model with one of them.",
           name.substr(0, 200));
  c.activation = known->second;
  k.read("layer_norm_epsilon", c.norm_eps);
  c.dropout = c.attn_dropout = c.embd_dropout = 0.1;  // GPT2Config's defaults
  read_rate(k, "resid_pdrop", c.dropout), read_rate(k, "attn_pdrop", c.attn_dropout);
  read_rate(k, "embd_pdrop", c.embd_dropout);
  return c;
}

void read_biases(const Keys& k, std::string_view type, GptConfig& c) {
  if (type == "qwen2") c.qkv_bias = true;
  if (type == "qwen3") k.expect("attention_bias", false);
  if (type != "llama") return;
  bool mlp = false;
  k.read("attention_bias", c.bias);
  k.read("mlp_bias", mlp);
  TG_CHECK(c.bias == mlp, value,
           "[huggingface] 'attention_bias' is {} and 'mlp_bias' is {}. A Gpt has both or none. Pass a model with equal "
           "values.",
           c.bias, mlp);
}
GptConfig read_llama(const Keys& k, std::string_view type) {
  GptConfig c{.positions = Positions::rope,
              .norm = NormKind::rms_norm,
              .activation = Activation::swiglu,
              .qk_norm = type == "qwen3",
              .tied_head = false,
              .norm_eps = 1e-6};
  visit_sizes(/*gpt2=*/false, c, [&](const char* key, int64_t& to) { k.need(key, to); });
  if (type == "llama")
    k.read("num_key_value_heads", c.kv_heads);
  else
    k.need("num_key_value_heads", c.kv_heads);
  if (!k.read("head_dim", c.head_dim) && type == "qwen3") c.head_dim = 128;  // Qwen3Config's default
  std::string activation = "silu";
  k.read("hidden_act", activation);
  TG_CHECK(activation == "silu" || activation == "swish", value,
           "[huggingface] 'hidden_act' is '{}'. It must be silu in this type of model. Pass a model with it.",
           activation.substr(0, 200));
  k.read("rms_norm_eps", c.norm_eps);
  read_rate(k, "attention_dropout", c.attn_dropout = 0);
  read_biases(k, type, c);
  read_ropes(k, c);
  // Attention within the window is full: a shorter context gives equal results.
  int64_t window = k.all.contains("sliding_window") ? c.context : 4096;
  k.read("sliding_window", window);
  if (type == "mistral") c.context = std::min(c.context, window);
  return c;
}

int64_t read_classes(const Keys& k) {
  std::vector<std::string> names;
  k.read("architectures", names);
  if (std::ranges::none_of(names, [](const std::string& n) { return n.ends_with(kClassifier); })) return 0;
  int64_t classes = 2;  // the default of transformers
  k.read("num_labels", classes);
  const Json* labels = k.find("id2label");
  if (labels) classes = labels->is_object() ? int64_t(labels->size()) : 0;
  TG_CHECK(classes >= 1, value, "[huggingface] 'id2label' or 'num_labels' is {}. There must be a label. Restore it.",
           labels ? shown(*labels) : std::to_string(classes));
  return classes;
}
// Normalises what equals the default.
void simplify(GptConfig& c) {
  for (double* rate : {&c.attn_dropout, &c.embd_dropout})
    if (*rate == c.dropout) *rate = -1;
  if (c.kv_heads == c.heads) c.kv_heads = 0;
  if (c.heads > 0 && c.width % c.heads == 0 && c.head_dim == c.width / c.heads) c.head_dim = 0;
  if (c.width > 0 && c.ff_width % 4 == 0 && c.ff_width / 4 == c.width) c.ff_width = 0;
}

Json gpt2_keys(const GptConfig& c) {
  return {
      {"n_ctx", c.context},  // read by other programs
      {"n_inner", c.ff_width ? Json(c.ff_width) : Json()},
      {"activation_function", std::ranges::find(kActivations, c.activation, [](auto& a) { return a.second; })->first},
      {"layer_norm_epsilon", c.norm_eps},
      {"embd_pdrop", c.dropout_of(c.embd_dropout)},
      {"resid_pdrop", c.dropout_of(c.resid_dropout)},
      {"attn_pdrop", c.dropout_of(c.attn_dropout)}};
}
void add_rope(Json& to, const GptConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  Json scaling = Json::object();
  scaling["rope_type"] = s.kind == RopeScalingKind::none ? "default" : name_of(s.kind);
  visit_numbers(s, [&](const char* key, auto x) { scaling[key] = x; });
  to["rope_theta"] = c.rope_theta;
  to["rope_scaling"] = s.kind == RopeScalingKind::none ? Json() : scaling;
  scaling["rope_theta"] = c.rope_theta;
  to["rope_parameters"] = scaling;
}
Json llama_keys(const GptConfig& c, Family family) {
  Json k = {{"num_key_value_heads", c.kv_heads},
            {"head_dim", c.head_dim},
            {"hidden_act", "silu"},
            {"rms_norm_eps", c.norm_eps},
            {"attention_dropout", c.dropout_of(c.attn_dropout)}};
  if (family != Family::qwen2) k["attention_bias"] = c.bias;
  if (family == Family::llama) k["mlp_bias"] = c.bias;
  if (family != Family::llama) k["use_sliding_window"] = false;
  add_rope(k, c);
  return k;
}
const char* torch_name(DType d) { return d == DType::bf16 ? "bfloat16" : d == DType::f16 ? "float16" : "float32"; }

}  // namespace

GptConfig detail::gpt_config_from_huggingface(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, "huggingface", source, kDepth);
  TG_CHECK(json.is_object(), value, "[huggingface] {} holds {}. A config.json of transformers is an object.", source,
           json.type_name());
  const Keys k{json};
  const ModelType type = type_of(k);
  refuse_other_results(k, type);
  GptConfig c = type.family == Family::gpt2 ? read_gpt2(k) : read_llama(k, type.name);
  int64_t window = c.context;  // caches of transformers drop keys beyond it; masks do not
  if ((type.family == Family::gpt2 || type.family == Family::llama) && k.read("sliding_window", window))
    if (window < c.context) k.expect("sliding_window", nullptr);
  k.need("vocab_size", c.vocab_size);
  k.read("initializer_range", c.init_std);
  k.read("tie_word_embeddings", c.tied_head);
  c.classes = read_classes(k);
  simplify(c);
  c.validate();
  return c;
}

std::vector<int64_t> detail::eos_tokens_of_huggingface(const std::string& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const Json json = json_in(folder, name, "huggingface");
    const Json* x = find_value(json, "eos_token_id");
    if (!x || (x->is_array() && x->empty())) continue;
    const auto is_token = [](const Json& t) {
      return t.is_number_unsigned() && std::in_range<int64_t>(t.get<uint64_t>());
    };
    TG_CHECK(x->is_array() ? std::all_of(x->begin(), x->end(), is_token) : is_token(*x), value,
             "[huggingface] 'eos_token_id' of {} is {}. It must be the id of a token, or a list of ids.",
             folder + "/" + name, shown(*x));
    return x->is_array() ? x->get<std::vector<int64_t>>() : std::vector{x->get<int64_t>()};
  }
  return {};
}

std::string detail::gpt_config_to_huggingface(const GptConfig& c, DType dtype) {
  const Family family = family_of(c);
  TG_CHECK(family != Family::none, value,
           "[huggingface] transformers has no model like this one: {}. Train a model of one family.",
           family_mismatch(c));
  const auto type = std::ranges::find_if(kTypes, [&](const ModelType& t) { return t.family == family; });
  Json all = {
      {"architectures", Json::array({fmt::format("{}{}", type->stem, c.classes ? kClassifier : type->language_model)})},
      {"model_type", type->name},
      {"dtype", torch_name(dtype)},
      {"torch_dtype", torch_name(dtype)},
      {"vocab_size", c.vocab_size},
      {"tie_word_embeddings", c.tied_head},
      {"initializer_range", c.init_std},
      {"bos_token_id", nullptr},  // explicit: defaults may exceed the vocabulary
      {"eos_token_id", nullptr}};
  std::map<std::string, std::string> labels;
  std::map<std::string, int64_t> ids;
  for (int64_t i = 0; i < c.classes; ++i) ids[labels[std::to_string(i)] = fmt::format("LABEL_{}", i)] = i;
  if (c.classes) all["id2label"] = labels, all["label2id"] = ids;
  const bool gpt2 = family == Family::gpt2;
  visit_sizes(gpt2, c.with_sizes(), [&](const char* key, int64_t x) { all[key] = x; });
  const Json more = gpt2 ? gpt2_keys(c) : llama_keys(c.with_sizes(), family);
  for (const auto& [key, x] : more.items()) all[key] = x;
  all["tapegrad"]["model"] = own_json(to_json(c));
  return text_of(all, 2) + "\n";
}

std::string detail::model_config_text(const std::string& folder) {
  namespace fs = std::filesystem;
  constexpr size_t kMost = 50'000'000;  // bytes
  const std::string path = folder + "/config.json";
  std::error_code error;
  if (is_gguf(folder)) {
    Json config = own_json(gpt_config_to_huggingface(gguf_config(GgufFile(folder))));
    config.erase("tapegrad");
    return text_of(config, 2) + "\n";
  }
  if (fs::is_regular_file(folder, error)) {
    const MappedFile file(folder);
    const std::string other = foreign_format(file.text().substr(0, 512));
    TG_CHECK(false, value, "[model] {} is {}. A model is a folder with config.json and its weights. Name the folder.",
             folder, other.empty() ? "a file" : other);
  }
  TG_CHECK(fs::exists(path, error) || !fs::exists(folder + "/adapter_config.json", error), value,
           "[model] {} is the folder of an adapter, not of a model. Pass the model that was finetuned as --model and "
           "this folder as --adapter, or merge both with `tapegrad merge`.",
           folder);
  TG_CHECK(fs::exists(fs::symlink_status(path, error)), io,
           "[model] {} {}. A model is a folder with config.json and its weights: what `train --out` wrote, or a "
           "download by `hf download NAME --local-dir DIR`. Name the folder.",
           folder, fs::exists(folder, error) ? "is a folder without config.json" : "does not exist");
  const MappedFile file(path);
  TG_CHECK(file.bytes().size() <= kMost, value,
           "[model] {} has {} bytes. A configuration has at most {}. Is it the file of another program?", path,
           file.bytes().size(), kMost);
  return std::string(file.text());
}

}  // namespace tg
