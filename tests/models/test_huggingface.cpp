// models/io/huggingface: logits of folders that transformers wrote (tests/data/make_huggingface.py), weight bits,
// config.json of both versions, refusals.
#include <tapegrad/tools.h>

#include <set>

#include "support/chat_tokenizer.h"
#include "support/hf_folder.h"
#include "support/small_run.h"

using namespace tg;

namespace {

const std::vector<std::string> kCases = {"gpt2",          "gpt2_untied",     "llama",         "llama_tied",
                                         "mistral",       "qwen2",           "qwen3",         "gpt2_classes",
                                         "llama_classes", "mistral_classes", "qwen2_classes", "qwen3_classes"};
struct Copy : HfFolder {
  using HfFolder::HfFolder;
  Json config() const { return detail::own_json(read_file(path + "/config.json")); }
  void config(const Json& j) const { detail::write_file_atomically(path + "/config.json", detail::text_of(j)); }
  // Message about config.json with a changed key.
  std::string with(const std::string& key, const Json& x) const {
    return with_key(path + "/config.json", key, x, [&] { return error(); });
  }
  std::string error() const {
    return error_of([&] { load_model(path); });
  }
  StateDict weights() const { return SafetensorsFile(path + "/model.safetensors").tensors(); }
  std::string with_weights(const StateDict& s) const {
    write_safetensors(path + "/model.safetensors", s, {{"format", "pt"}});
    return error();
  }
};

std::map<std::string, Tensor> all_tensors(const std::string& folder) {
  const Shards shards(folder);
  std::map<std::string, Tensor> all;
  for (const std::string& name : shards.names()) all[name] = shards.tensor(name);
  return all;
}
void check_same_bits(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, t] : a) {
    CAPTURE(name);
    REQUIRE(b.contains(name));
    CHECK(t.dtype() == b.at(name).dtype());
    CHECK(t.shape() == b.at(name).shape());
    CHECK(bits_of(t) == bits_of(b.at(name)));
  }
}

GptConfig small(Family family) {
  GptConfig c = tiny_model();
  c.layers = 2;
  if (family == Family::gpt2) {
    c.positions = Positions::learned, c.norm = NormKind::layer_norm, c.activation = Activation::gelu_tanh;
    c.kv_heads = 0;
    return c;
  }
  c.positions = Positions::rope, c.norm = NormKind::rms_norm, c.activation = Activation::swiglu;
  c.kv_heads = c.heads / 2, c.tied_head = false;
  c.qkv_bias = family == Family::qwen2, c.qk_norm = family == Family::qwen3;
  if (family == Family::qwen3) c.head_dim = 10;
  return c;
}

}  // namespace

TEST_CASE("hugging face: the logits of transformers in f32 and f64") {
  for (const std::string& name : kCases) {
    CAPTURE(name);
    const SafetensorsFile expected(data_folder(name) + "/expected.safetensors");
    const Tensor tokens = expected.tensor("tokens"), logits = expected.tensor("logits");
    const ForwardOptions o{.lengths = has(name, "_classes") ? tensor<int64_t>({20, 13}, {2}) : Tensor()};
    const LoadedModel m = load_model(data_folder(name));
    REQUIRE(m.origin);
    CHECK(!m.tokenizer);
    CHECK(distance(m.model.forward(tokens, o), logits) <= 2e-5);
    const Params exact(Device(), 0, DType::f64);
    exact.load(detail::huggingface_weights(data_folder(name), m.model.config()));
    const Gpt model(exact, m.model.config());
    exact.check_all_used();
    // transformers forms the angles of rope in f32
    CHECK(distance(model.forward(tokens, o), logits) <= (has(name, "gpt2") ? 1e-12 : 2e-6));
  }
}

TEST_CASE("hugging face: ten steps of GPT-2 with dropout in training have transformers' losses, given the masks") {
  const std::string folder = data_folder("gpt2");
  const Tensor tokens = SafetensorsFile(folder + "/expected.safetensors").tensor("tokens");
  const Tensor want = SafetensorsFile(folder + "/training.safetensors").tensor("losses");
  const int64_t t = tokens.size(1) - 1;
  for (const DType dtype : {DType::f32, DType::f64}) {
    const LoadedModel m = load_model(folder, Device(), dtype);
    AdamW opt(m.params.trainable(), {.lr = 1e-3, .beta2 = 0.95, .weight_decay = 0});
    Rng rng{7};
    std::vector<double> losses;
    for (int step = 0; step < 10; ++step) {
      const Tensor logits = m.model.forward(slice(tokens, 1, 0, t), {.rng = &rng});
      const Tensor loss = cross_entropy(logits, slice(tokens, 1, 1, t + 1));
      opt.step(backward(loss));
      losses.push_back(loss.item<double>());
    }
    CHECK(distance(tensor(losses, {10}), want) <= (dtype == DType::f32 ? 1e-5 : 1e-12));
  }
}
TEST_CASE("hugging face: rates of dropout are those of config.json, both ways") {
  const auto read = [](const char* folder, const char* keys) {
    Json j = detail::own_json(read_file(data_folder(folder) + "/config.json"));
    const Json changes = detail::own_json(keys);
    for (const auto& [key, x] : changes.items()) x.is_null() ? (void)j.erase(key) : (void)(j[key] = x);
    return detail::gpt_config_from_huggingface(detail::text_of(j), "config.json");
  };
  const GptConfig gpt2 = read("gpt2", R"({"attn_pdrop": 0.2, "resid_pdrop": 0.3, "embd_pdrop": 0})");
  CHECK(std::array{gpt2.dropout, gpt2.attn_dropout, gpt2.embd_dropout} == std::array{0.3, 0.2, 0.0});
  const GptConfig plain = read("gpt2", R"({"attn_pdrop": null, "resid_pdrop": null, "embd_pdrop": null})");
  CHECK(std::array{plain.dropout, plain.attn_dropout, plain.embd_dropout} == std::array{0.1, -1.0, -1.0});
  const GptConfig llama = read("llama", R"({"attention_dropout": 0.25})");
  CHECK(std::array{llama.dropout, llama.attn_dropout, llama.embd_dropout} == std::array{0.0, 0.25, -1.0});
  for (const GptConfig& c : {gpt2, plain, llama}) {
    Json j = detail::own_json(detail::gpt_config_to_huggingface(c));
    j.erase("tapegrad");
    CHECK(detail::gpt_config_from_huggingface(detail::text_of(j), "config.json") == c);
  }
  for (const char* rate : {"1", "-1"})
    CHECK_SAYS(read("gpt2", fmt::format(R"({{"attn_pdrop": {}}})", rate).c_str()),
               fmt::format("[huggingface] 'attn_pdrop' is {}. It must be in [0, 1).", rate));
}
TEST_CASE("hugging face: configurations") {
  const auto read = [](const std::string& name) { return load_model(data_folder(name)).model.config(); };
  const GptConfig gpt2 = read("gpt2"), llama = read("llama"), mistral = read("mistral"), qwen3 = read("qwen3");
  CHECK(gpt2.bias);
  CHECK(gpt2.tied_head);
  CHECK(gpt2.dropout == 0.1);
  CHECK(gpt2.attn_dropout == -1);
  CHECK(llama.dropout == 0);
  CHECK(gpt2.activation == Activation::gelu_tanh);
  CHECK(read("gpt2_untied").activation == Activation::gelu);
  CHECK(read("gpt2_untied").ff_width == 40);
  CHECK(llama.kv_heads == 2);
  CHECK(llama.head_dim == 0);
  CHECK(llama.rope_theta == 500);
  CHECK(llama.rope_scaling == RopeScaling{RopeScalingKind::llama3, 8, 1, 4, 16});
  CHECK(read("llama_tied").rope_scaling.kind == RopeScalingKind::linear);
  CHECK(read("llama_tied").bias);
  CHECK(mistral.context == 20);  // the sliding window
  CHECK(read("qwen2").qkv_bias);
  CHECK(qwen3.qk_norm);
  CHECK(qwen3.head_dim == 24);
  // config.json of version 5.
  Json five = detail::own_json(read_file(data_folder("llama") + "/config.json"));
  Json rope = five["rope_scaling"];
  rope["rope_theta"] = 500.0;
  five["rope_parameters"] = rope;
  CHECK(detail::gpt_config_from_huggingface(detail::text_of(five), "both") == llama);
  five.erase("rope_scaling"), five.erase("rope_theta");
  CHECK(detail::gpt_config_from_huggingface(detail::text_of(five), "5") == llama);
  CHECK(detail::gpt_config_from_huggingface(detail::gpt_config_to_huggingface(llama), "ours") == llama);
  five["rope_parameters"]["rope_theta"] = 600.0, five["rope_theta"] = 500.0;
  CHECK_SAYS(detail::gpt_config_from_huggingface(detail::text_of(five), "5"), "Both forms must agree");
}

TEST_CASE("hugging face: a head of classes follows config.json, and refuses to generate") {
  const Copy c("qwen2_classes");
  const LoadedModel m = load_model(c.path);
  RunConfig run;
  run.model = m.model.config();
  CHECK_SAYS(generate(m.model, std::vector<int64_t>{1, 2}, 3), "is for generation, and the head has 2 classes");
  CHECK_SAYS(to_json(run), "classes is 2");
  for (const auto& [n, says] : {std::pair(0, "0 classes"), {-1, "-1 classes"}, {1 << 20, "classes is 1048576"}})
    CHECK_SAYS(with_new_head(load_model(data_folder("qwen2")), n), says);
  CHECK_HAS(c.with("id2label", Json{{"0", "a"}}), "'score.weight' is (2, 32)");
  CHECK(c.with("id2label", Json()) == "no error");  // transformers omits two labels
  for (const char* other : {"Qwen2ForCausalLM", "Qwen2Model", "Qwen2ForTokenClassification"})
    CHECK_HAS(c.with("architectures", Json::array({other})), "'score.weight' (2, 32)");
}

constexpr const char* kTokenizer = R"({
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}

)";
TEST_CASE("hugging face: what is imported is exported bit for bit, with the files of its tokenizer") {
  for (const std::string& name : kCases) {
    CAPTURE(name);
    const Copy from(name);
    detail::write_file_atomically(from / "tokenizer.json", kTokenizer);
    detail::write_file_atomically(from / "merges.txt", "a b\r\n");
    const LoadedModel m = load_model(from.path);
    REQUIRE(m.tokenizer);
    CHECK(m.tokenizer->encode("abb") == std::vector<int64_t>{2, 1});
    const Folder to;
    save_model(to.path, m);
    check_same_bits(all_tensors(to.path), all_tensors(from.path));
    for (const char* file : {"config.json", "tokenizer.json", "merges.txt"})
      CHECK(read_file(to / file) == read_file(from / file));
    CHECK(SafetensorsFile(to / "model.safetensors").metadata().at("format") == "pt");
  }
  const LoadedModel m = load_model(data_folder("qwen3"));  // bf16
  const Folder folder;
  const std::string to = folder / "made";
  save_huggingface(to, m.model.config(), m.params, {.dtype = DType::f32, .origin = &*m.origin});
  const Json before = detail::own_json(m.origin->config), after = detail::own_json(read_file(to + "/config.json"));
  for (const auto& [key, x] : before.items()) CHECK((key == "dtype" || after.at(key) == x));
  CHECK(after.at("dtype") == "float32");
  CHECK(after.at("torch_dtype") == "float32");
  for (const auto& [key, t] : all_tensors(to)) CHECK(t.dtype() == DType::f32);
  check_same_bits(load_model(to).params.state(), m.params.state());
}

TEST_CASE("hugging face: what is exported is imported bit for bit, whole and in shards") {
  for (const Family family : {Family::gpt2, Family::llama, Family::qwen2, Family::qwen3})
    for (const int64_t max_shard : {int64_t(1) << 30, int64_t(20000)}) {
      CAPTURE_ALL(std::string(name_of(family)), max_shard);
      GptConfig c = small(family);
      c.dropout = 0.125;
      c.kv_heads = c.kv_heads ? c.kv_heads : c.heads;  // equivalent to 0
      REQUIRE(detail::family_of(c) == family);
      const auto [params, model] = new_gpt(c, Params(Device(), 7));
      const Folder to;
      const ByteTokenizer bytes;
      save_huggingface(to.path, c, params, {.max_shard = max_shard, .tokenizer = &bytes});
      CHECK(detail::path_exists(to / "model.safetensors") == (max_shard > 20000));
      CHECK(detail::path_exists(to / "model.safetensors.index.json") == (max_shard <= 20000));
      const LoadedModel m = load_model(to.path);
      CHECK(m.model.config() == c);
      REQUIRE(m.tokenizer);
      CHECK(read_tokenizer(to.path).encode("a\xff\n") == bytes.encode("a\xff\n"));
      CHECK(read_file(to.path + "/tokenizer_config.json").find("PreTrainedTokenizerFast") != std::string::npos);
      CHECK(m.tokenizer->to_json() == bytes.to_json());
      check_same_bits(m.params.state(), params.state());
      const Folder again;
      save_model(again.path, m);
      check_same_bits(all_tensors(again.path), all_tensors(to.path));
      CHECK(read_file(again / "config.json") == read_file(to / "config.json"));
      Json j = detail::own_json(read_file(to / "config.json"));
      for (const char* key : {"bos_token_id", "eos_token_id"}) CHECK(j.at(key).is_null());
      j.erase("tapegrad");  // what transformers alone would say
      const GptConfig plain = detail::gpt_config_from_huggingface(detail::text_of(j), "config.json");
      CHECK(plain.dropout == (family == Family::gpt2 ? 0.125 : 0));
      CHECK(plain.dropout_of(plain.attn_dropout) == 0.125);
      CHECK(detail::family_of(plain) == family);
      detail::write_file_atomically(to / "config.json", detail::text_of(j));
      const Tensor tokens = tensor({1, 2, 3, 4, 5, 6}, {2, 3});
      CHECK(distance(load_model(to.path).model.forward(tokens), model.forward(tokens)) <= 1e-6);
    }
}

TEST_CASE("hugging face: weights that were there in another form or number go, and other files stay") {
  const GptConfig c = small(Family::llama);
  const auto [params, model] = new_gpt(c, Params(Device(), 7));
  const Folder to;
  const auto weights = [&] {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(to.path))
      if (const std::string name = entry.path().filename().string(); name.starts_with("model")) names.insert(name);
    return names;
  };
  detail::write_file_atomically(to / "model-1-of-2.safetensors", "mine");
  detail::write_file_atomically(to / "model-00001-of-00002.txt", "mine");
  const std::set<std::string> others = weights();
  std::set<size_t> counts;
  for (const int64_t max_shard : {20000, 10000, 40000, 1 << 30, 20000}) {
    save_huggingface(to.path, c, params, {.max_shard = max_shard});
    std::set<std::string> named = others;
    if (detail::path_exists(to / "model.safetensors.index.json")) {
      named.insert("model.safetensors.index.json");
      const Json index = detail::own_json(read_file(to / "model.safetensors.index.json"));
      for (const auto& [name, file] : index["weight_map"].items()) named.insert(file.get<std::string>());
    } else {
      named.insert("model.safetensors");
    }
    CHECK(weights() == named);
    counts.insert(named.size());
    check_same_bits(load_model(to.path).params.state(), params.state());
  }
  CHECK(counts.size() >= 3);
  save_model(to.path, model, params);
  std::set<std::string> single = others;
  single.insert("model.safetensors");
  CHECK(weights() == single);
  check_same_bits(load_model(to.path).params.state(), params.state());
}

TEST_CASE("hugging face: keys that another program changed count more than what was exported") {
  GptConfig c = small(Family::llama);
  c.dropout = 0.25;
  const auto [params, model] = new_gpt(c);
  const Copy to("llama");
  save_huggingface(to.path, c, params);
  CHECK(load_model(to.path).model.config() == c);
  const Json good = to.config();
  Json j = good;
  j["initializer_range"] = 0.5;
  to.config(j);
  CHECK(load_model(to.path).model.config().init_std == 0.5);
  CHECK(load_model(to.path).model.config().dropout == 0);
  j = good;
  j["tapegrad"]["model"]["heads"] = "many";
  to.config(j);
  CHECK_HAS(to.error(), "'heads' is \"many\"", "\n    in " + to.path + "/config.json");
  for (const Json& other : {Json(5), Json(nullptr), Json::array({1}), Json::object()}) {
    j["tapegrad"] = other;
    to.config(j);
    CHECK(load_model(to.path).model.config().dropout == 0);
  }
}

TEST_CASE("hugging face: biases and norms that a model lacks are written, and only zeros and ones are left out again") {
  GptConfig c = small(Family::gpt2);
  REQUIRE(!c.bias);
  c.norm_affine = false;
  const auto [params, model] = new_gpt(c, Params(Device(), 2));
  const Copy to("gpt2");
  save_huggingface(to.path, c, params, {.dtype = DType::f32});
  StateDict s = to.weights();
  CHECK(s.at("transformer.h.1.attn.c_attn.bias").to_vector<float>() == std::vector<float>(size_t(3 * c.width), 0.f));
  CHECK(s.at("transformer.ln_f.weight").to_vector<float>() == std::vector<float>(size_t(c.width), 1.f));
  CHECK(load_model(to.path).model.config() == c);
  check_same_bits(load_model(to.path).params.state(), params.state());
  s["transformer.h.1.mlp.c_proj.bias"] = filled({c.width}, 0.5f);  // other programs may train this bias
  CHECK(to.with_weights(s) == "no error");
  const GptConfig now = load_model(to.path).model.config();
  CHECK(now.bias);
  CHECK(now.norm_affine);
}

TEST_CASE("hugging face: other names, buffers and dtypes that files have") {
  const auto without = [](const std::string& prefix, const Copy& c) {
    StateDict bare;
    for (const auto& [name, t] : c.weights()) bare[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = t;
    return bare;
  };
  for (const char* name : {"llama_tied", "qwen3"}) {
    const Copy c(name);
    const StateDict was = load_model(c.path).params.state();
    CHECK(c.with_weights(without("model.", c)) == "no error");
    check_same_bits(load_model(c.path).params.state(), was);
  }
  const Copy to("gpt2");
  const StateDict before = load_model(to.path).params.state();
  StateDict bare = without("transformer.", to);
  bare["h.0.attn.bias"] = ones({1, 1, 24, 24});
  bare["h.1.attn.masked_bias"] = tensor({-1e4f}, {1});
  CHECK(to.with_weights(bare) == "no error");
  check_same_bits(load_model(to.path).params.state(), before);
  bare["lm_head.weight"] = bare.at("wte.weight");
  CHECK(to.with_weights(bare) == "no error");
  bare["lm_head.weight"] = bare.at("wte.weight") * 2.0;
  CHECK_HAS(to.with_weights(bare), "has 'lm_head.weight' and 'transformer.wte.weight' with different values");
  const LoadedModel m = load_model(data_folder("llama"));
  const Folder half;
  save_huggingface(half.path, m.model.config(), m.params, {.dtype = DType::f16});
  CHECK(detail::own_json(read_file(half / "config.json")).at("torch_dtype") == "float16");
  const LoadedModel again = load_model(half.path);
  for (const auto& [name, t] : m.params.state())
    CHECK(again.params.state().at(name).to_vector<float>() == t.to(DType::f16).to(DType::f32).to_vector<float>());
  const Folder same;
  save_model(same.path, again);  // still f16
  check_same_bits(all_tensors(same.path), all_tensors(half.path));
  m.params.all()[0].tensor.assign(filled({61, 32}, 1e5f));
  CHECK_SAYS(save_huggingface(half.path, m.model.config(), m.params, {.dtype = DType::f16}),
             "'model.embed_tokens.weight' is inf at (0, 0) in f16");
  CHECK_SAYS(save_huggingface(half.path, m.model.config(), m.params, {.dtype = DType::f64}),
             "the dtype is f64. It must be f32, bf16 or f16");
}

TEST_CASE("hugging face: config.json that is not computed here") {
  const Copy llama("llama"), gpt2("gpt2"), mistral("mistral"), qwen3("qwen3");
  CHECK(llama.error() == "no error");
  CHECK_HAS(llama.with("model_type", "gemma3"), "model_type is 'gemma3', which has norms that scale by 1 + w",
            "The supported ones are gpt2, llama, mistral, qwen2, qwen3", "\n    in " + llama.path + "/config.json");
  CHECK_HAS(llama.with("model_type", "no such"), "model_type is 'no such'. The supported");
  CHECK_HAS(llama.with("model_type", 3), "'model_type' is 3. It must be a text in quotes");
  CHECK_HAS(gpt2.with("n_head", 5), "width 32 is not a multiple of heads 5");
  CHECK_HAS(llama.with("num_attention_heads", 5), "kv_heads 2 does not divide heads 5");
  CHECK_HAS(llama.with("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}), "rope_type 'dynamic'");
  CHECK_HAS(llama.with("rope_scaling", {{"rope_type", "llama3"}, {"factor", 2.0}}), "there is no 'low_freq_factor'");
  CHECK_HAS(llama.with("rope_scaling", 7), "'rope_scaling' is 7. It must be an object");
  CHECK_HAS(llama.with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500.0}}), "Both forms must agree");
  CHECK_HAS(llama.with("mlp_bias", true), "'attention_bias' is false and 'mlp_bias' is true");
  CHECK_HAS(llama.with("hidden_size", nullptr), "there is no 'hidden_size'");
  CHECK_HAS(llama.with("hidden_size", "32"), "'hidden_size' is \"32\". It must be an integer");
  CHECK(llama.with("partial_rotary_factor", 1.0) == "no error");
  CHECK_HAS(llama.with("final_logit_softcapping", 30.0), "'final_logit_softcapping' is 30.0");
  CHECK_HAS(llama.with("layer_types", std::vector<std::string>{"full_attention", "sliding_attention"}),
            "'layer_types' has \"sliding_attention\"");
  CHECK_HAS(gpt2.with("activation_function", "quick_gelu"), "'activation_function' is 'quick_gelu'");
  CHECK_HAS(qwen3.with("attention_bias", true), "'attention_bias' is true");
  CHECK(mistral.with("sliding_window", nullptr) == "no error");
  Json j = llama.config();
  Json deep = 1;
  for (int i = 0; i < 20; ++i) deep = Json::array({deep});
  CHECK_HAS(llama.with("deep", deep), "nested too deeply");
  detail::write_file_atomically(llama / "config.json", "{\"model_type\": \"llama\", \"model_type\": \"gpt2\"}");
  CHECK_HAS(llama.error(), "'model_type' comes twice");
  detail::write_file_atomically(llama / "config.json", std::string(100'000'000, ' '));
  CHECK_HAS(llama.error(), "config.json has 100000000 bytes. A configuration has at most");
  fs::remove(llama / "config.json");
  CHECK_HAS(llama.error(), "is a folder without config.json. A model is a folder");

  GptConfig odd = small(Family::gpt2);
  odd.norm = NormKind::rms_norm;
  CHECK_SAYS(detail::gpt_config_to_huggingface(odd),
             "transformers has no model like this one: norm is rms_norm, not layer_norm, as family \"gpt2\"");
  odd = small(Family::llama);
  odd.activation = Activation::gelu, odd.fragments = 2;
  CHECK_SAYS(detail::gpt_config_to_huggingface(odd), "activation is gelu, not swiglu; fragments is 2, not 0");
}

TEST_CASE("hugging face: each key that transformers reads is followed, refused or without influence") {
  const Json table = detail::own_json(read_file(TG_TEST_DATA "/config_keys.json"));
  std::map<std::string, bool> followed;
  const auto with = [](Json c, const std::string& key, const Json& x) {
    c[key] = x;
    const std::string text = detail::text_of(c), e = error_of([&] { detail::gpt_config_from_huggingface(text, "it"); });
    return e == "no error" ? to_json(detail::gpt_config_from_huggingface(text, "it")) : e;
  };
  for (const char* name : {"gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
    const Json c = detail::own_json(read_file(data_folder(name) + "/config.json"));
    const std::string plain = with(c, "x", 0);
    for (const auto& [key, x] : table["followed"].items()) followed[key] |= with(c, key, x) != plain;
    for (const auto& [key, x] : table["refused"].items()) CHECK_HAS(with(c, key, x), "'" + key + "' is ");
    for (const auto& [reason, keys] : table["ignored"].items())
      for (const Json& key : keys)
        for (const Json& x : {Json(7), Json(true), Json("x")}) CHECK(with(c, key.get<std::string>(), x) == plain);
  }
  for (const auto& [key, is] : followed) CHECK_MESSAGE(is, key);
  const Json llama = detail::own_json(read_file(data_folder("llama") + "/config.json"));
  for (const auto& [key, x] : table["in rope_scaling"].items()) {
    Json rope = llama["rope_scaling"];
    if (key == "type") rope.erase("rope_type");
    rope[key] = x;
    CHECK_MESSAGE(with(llama, "rope_scaling", rope) != with(llama, "x", 0), key);
  }
  CHECK_HAS(with(llama, "sliding_window", 5), "'sliding_window' is 5, which a Gpt does not compute");
  Json mistral = detail::own_json(read_file(data_folder("mistral") + "/config.json"));
  mistral.erase("sliding_window");  // 4096 in MistralConfig
  CHECK_HAS(with(mistral, "max_position_embeddings", 9000), "\"context\": 4096");
}

TEST_CASE("hugging face: weights that are damaged or of another model") {
  const Copy llama("llama");
  const StateDict good = llama.weights();
  const auto error = [&](const char* name, const Tensor& t = {}) {
    return llama.with_weights(with_tensor(good, name, t));
  };
  CHECK_HAS(error("model.layers.1.self_attn.k_proj.weight"),
            "has no tensor 'model.layers.1.self_attn.k_proj.weight' of (16, 32)");
  CHECK_HAS(error("model.norm.weight", ones({33})), "'model.norm.weight' is (33) in ");
  CHECK_HAS(error("model.norm.bias", ones({32})), "'model.norm.bias' (32) in ");
  CHECK_HAS(error("model.norm.weight", ones({32}, DType::f64)), "'model.norm.weight' is f64 in ");
  CHECK(error("model.layers.0.self_attn.rotary_emb.inv_freq", ones({4})) == "no error");
  std::string file = read_file(llama / "model.safetensors");
  file.replace(file.find("\"F32\""), 5, "\"F8\" ");
  detail::write_file_atomically(llama / "model.safetensors", file);
  CHECK_HAS(llama.error(), "dtype 'F8'");
  fs::remove(llama / "model.safetensors");
  CHECK_HAS(llama.error(), "has neither model.safetensors nor model.safetensors.index.json");
  detail::write_file_atomically(llama / "pytorch_model.bin", "x");
  CHECK_HAS(llama.error(), "pytorch_model.bin alone, which only Python can read safely", "save_pretrained()");
}

TEST_CASE("hugging face: an index of shards that is wrong") {
  const Copy qwen2("qwen2");
  const std::string index = qwen2 / "model.safetensors.index.json", norm = "model.norm.weight";
  const Json good = detail::own_json(read_file(index));
  const auto with = [&](auto change) {
    detail::write_file_atomically(index, detail::text_of(changed(good, change)));
    return qwen2.error();
  };
  CHECK(with([](Json&) {}) == "no error");
  CHECK_HAS(with([](Json& j) { j.erase("weight_map"); }), "has no object \"weight_map\"");
  CHECK_HAS(with([&](Json& j) { j["weight_map"][norm] = 3; }), "the file of 'model.norm.weight' is 3");
  for (const char* outside : {"../x.safetensors", "/x.safetensors", "a\\x.safetensors", ".."})
    CHECK_HAS(with([&](Json& j) { j["weight_map"][norm] = outside; }), "It must be a .safetensors file in the folder");
  CHECK_HAS(with([&](Json& j) { j["weight_map"][norm] = "none.safetensors"; }), "none.safetensors is missing");
  CHECK_HAS(with([&](Json& j) { j["weight_map"][norm] = "model-00001-of-00004.safetensors"; }),
            "has no tensor 'model.norm.weight'");
  CHECK_HAS(with([&](Json& j) { j["weight_map"].erase(norm); }), "does not name it");
  CHECK_HAS(with([&](Json& j) {
              j["weight_map"] = Json::object();
              for (int i = 0; i < 600; ++i) {
                const std::string file = fmt::format("{}.safetensors", i), name = fmt::format("t{:03}", i);
                write_safetensors(qwen2 / file, {{name, ones({1})}});
                j["weight_map"][name] = file;
              }
            }),
            "names more than 512 files");
  std::string text = detail::text_of(good);
  const std::string map = "\"weight_map\":{";
  REQUIRE(has(text, map));
  text.insert(text.find(map) + map.size(), "\"model.norm.weight\":\"model-00001-of-00004.safetensors\",");
  detail::write_file_atomically(index, text);
  CHECK_HAS(qwen2.error(), "'model.norm.weight' comes twice");
  detail::write_file_atomically(index, detail::text_of(good));
  fs::remove(qwen2 / "model-00003-of-00004.safetensors");
  CHECK_HAS(qwen2.error(), "model-00003-of-00004.safetensors is missing");
}

TEST_CASE("hugging face: loading takes the memory of the model and of its largest tensor") {
  GptConfig c = small(Family::qwen2);
  c.layers = 8, c.ff_width = 8 * c.width;
  const auto [params, model] = new_gpt(c, Params(Device(), 3));
  int64_t all = 0, largest = 0;
  for (const Parameter& p : params.all()) {
    all += p.tensor.numel() * 4;
    largest = std::max(largest, p.tensor.numel() * 4);
  }
  REQUIRE(all > 8 * largest);
  const Folder ours, theirs;
  save_model(ours.path, model, params);
  save_huggingface(theirs.path, c, params);
  for (const std::string& folder : {ours.path, theirs.path}) {
    const int64_t before = memory_stats().live;
    reset_peak();
    const LoadedModel m = load_model(folder);
    const int64_t peak = memory_stats().peak - before;
    CHECK(peak >= all);
    CHECK(peak <= (all + largest) * 11 / 10);  // the allocator rounds sizes
  }
}

TEST_CASE("huggingface: the tokens that end a text") {
  const Copy folder("gpt2");
  const std::string generation = folder.path + "/generation_config.json";
  const auto tokens = [&] { return load_model(folder.path).origin->eos_tokens; };
  CHECK(tokens() == std::vector<int64_t>{60});
  const std::pair<const char*, std::vector<int64_t>> named[] = {{"[3, 60]", {3, 60}}, {"7", {7}}, {"null", {60}}};
  for (const auto& [x, ids] : named) {
    detail::write_file_atomically(generation, fmt::format(R"({{"eos_token_id": {}}})", x));
    CHECK(tokens() == ids);
  }
  Json j = folder.config();
  j["eos_token_id"] = nullptr;
  folder.config(j);
  CHECK(tokens().empty());
  for (const char* wrong : {R"("</s>")", "-1", "[1, 2.5]", "{}"}) {
    detail::write_file_atomically(generation, fmt::format(R"({{"eos_token_id": {}}})", wrong));
    CHECK_HAS(error_of(tokens), "'eos_token_id' of " + generation + " is ");
  }
}

TEST_CASE("huggingface: ends are added to the files where they are missing, and nothing else changes") {
  const Copy folder("gpt2");  // end token 60
  const std::string config = read_file(folder / "config.json"), names = folder / "tokenizer_config.json";
  detail::save_ends(folder.path, {60}, chat_tokenizer());
  CHECK(read_file(folder / "config.json") == config);
  CHECK_FALSE((detail::path_exists(folder / "generation_config.json") || detail::path_exists(names)));
  detail::write_file_atomically(folder / "chat_template.jinja", "{{ eos_token }}");
  detail::save_ends(folder.path, {60, 57}, chat_tokenizer());
  CHECK_HAS(read_file(names), "</s>");
  for (const char* file : {"config.json", "generation_config.json"})
    CHECK(detail::text_of(detail::own_json(read_file(folder / file))["eos_token_id"]) == "[60,57]");
}
