// Adapters as folders of PEFT: logits and gradients (tests/data/make_peft.py), the same bits written again, patterns,
// damage, refusals; checkpoints of adapters.
#include <tapegrad/models/io/peft_file.h>
#include <tapegrad/tools.h>

#include <set>

#include "support/check_json.h"
#include "support/hf_folder.h"
#include "support/refusals.h"
#include "support/small_run.h"

using namespace tg;

namespace {

const std::vector<std::string> kCases = {"gpt2_c_proj",    "gpt2_untied_all", "llama_patterns", "llama_tied_regex",
                                         "mistral_layers", "qwen2_head",      "qwen3_all",      "mistral_score"};
std::string adapter_of(const std::string& name) { return TG_TEST_DATA "/peft/" + name; }
std::string weights_in(const std::string& folder) { return folder + "/adapter_model.safetensors"; }
Json config_in(const std::string& folder) { return detail::own_json(read_file(folder + "/adapter_config.json")); }
SafetensorsFile expected_of(const std::string& name) {
  return SafetensorsFile(adapter_of(name) + "/expected.safetensors");
}
std::string base_of(const std::string& name) { return data_folder(expected_of(name).metadata().at("base")); }

// A copy to change.
struct Copy : Folder {
  std::string base;
  explicit Copy(const std::string& name) : base(base_of(name)) {
    fs::copy(adapter_of(name), path, fs::copy_options::recursive);
  }
  std::string error() const {
    return error_of([&] {
      LoadedModel m = load_model(base);
      load_adapter(path, m);
    });
  }
  void config(const Json& j) const { detail::write_file_atomically(path + "/adapter_config.json", detail::text_of(j)); }
  std::string with(const std::string& key, const Json& x) const {
    return with_key(path + "/adapter_config.json", key, x, [&] { return error(); });
  }
  StateDict weights() const { return SafetensorsFile(weights_in(path)).tensors(); }
  std::string with_weights(const StateDict& s, const std::map<std::string, std::string>& metadata = {}) const {
    const StateDict before = weights();
    write_safetensors(weights_in(path), s, metadata);
    const std::string message = error();
    write_safetensors(weights_in(path), before);
    return message;
  }
};

// The ends of names that a configuration selects among those of a llama with `layers` layers.
std::set<std::string> selected(const Json& config, int layers = 2) {
  std::set<std::string> r;
  for (int i = 0; i < layers; ++i)
    for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj"})
      if (detail::is_selected(config, fmt::format("model.layers.{}.{}", i, name)).value())
        r.insert(fmt::format("{}.{}", i, name));
  if (detail::is_selected(config, "lm_head").value()) r.insert("lm_head");
  return r;
}

}  // namespace

TEST_CASE("PEFT: logits and gradients of its own adapters, and the same bits written again") {
  for (const std::string& name : kCases)
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE_ALL(name, name_of(dtype));
      const SafetensorsFile expected = expected_of(name);
      const Tensor tokens = expected.tensor("tokens"), logits = expected.tensor("logits");
      LoadedModel m = load_model(base_of(name), {}, dtype);
      const auto plain = m.model.forward(tokens);
      Lora lora = load_adapter(adapter_of(name), m);
      CHECK(distance(plain, logits) > 1e-2);
      // transformers forms the angles of rope in f32.
      const double exact = has(name, "gpt2") ? 2e-15 : 2e-6;
      const Tensor y = m.model.forward(tokens);
      CHECK(distance(y, logits) <= (dtype == DType::f64 ? exact : 1e-5));

      // The gradients, by PEFT's names, become those of our parameters like weights do.
      StateDict grads;
      for (const std::string& key : expected.names())
        if (key.starts_with("base_model.")) grads[key] = expected.tensor(key);
      const Folder folder;
      fs::copy(adapter_of(name) + "/adapter_config.json", folder / "adapter_config.json");
      write_safetensors(weights_in(folder.path), grads);
      LoadedModel other = load_model(base_of(name), {}, dtype);
      const StateDict wanted = load_adapter(folder.path, other).params().state();
      const GradMap g = backward(sum(m.model.forward(tokens) * m.model.forward(tokens)) * 1e-3);
      REQUIRE(wanted.size() == lora.params().all().size());
      for (const Parameter& p : lora.params().all()) {
        CAPTURE(p.name);
        CHECK(distance(g[p.tensor], wanted.at(p.name)) <= (dtype == DType::f64 ? 10 * exact : 3e-5));
      }

      {  // lazy and compiled give the same bits
        LazyScope lazy;
        CHECK(bits_of(m.model.forward(tokens)) == bits_of(y));
      }
      const Compiled f = compile([&](Inputs in) { return std::vector{m.model.forward(in[0]).detach()}; });
      CHECK(bits_of(f({tokens})[0]) == bits_of(y));
      const StateDict weights = m.params.state();
      lora.merge();
      CHECK(distance(f({tokens})[0], logits) <= (dtype == DType::f64 ? exact : 1e-5));
      CHECK(bits_of(f({tokens})[0]) == bits_of(m.model.forward(tokens)));
      CHECK_SAYS(lora.merge(), "is merged already.");
      lora.unmerge();
      CHECK(bits_of(f({tokens})[0]) == bits_of(y));
      for (const auto& [key, t] : m.params.state()) CHECK(bits_of(t) == bits_of(weights.at(key)));

      if (dtype == DType::f64) continue;
      const Folder again;
      save_adapter(again.path, lora, {.layout = adapter_layout(m.model.config())});
      StateDict theirs = SafetensorsFile(weights_in(adapter_of(name))).tensors();
      std::erase_if(theirs, [](auto& t) { return has(t.first, ".base_layer."); });
      const StateDict ours = SafetensorsFile(weights_in(again.path)).tensors();
      REQUIRE(ours.size() == theirs.size());
      for (const auto& [key, t] : theirs) CHECK(bits_of(ours.at(key)) == bits_of(t));
      LoadedModel third = load_model(base_of(name));
      const Lora read = load_adapter(again.path, third);
      CHECK(read.config() == lora.config());
      CHECK(bits_of(third.model.forward(tokens)) == bits_of(y));
    }
}

TEST_CASE("PEFT: a configuration as peft would write it") {
  const auto written = [](GptConfig c, const LoraConfig& l) {
    auto [base, model] = new_gpt(c, Params(Device(), 1));
    const Lora lora = apply_lora(model, base, l);
    const Folder folder;
    save_adapter(folder.path, lora, {.layout = adapter_layout(c), .base = weights_hash(base), .folder = "/a/model"});
    auto [same, again] = new_gpt(c, Params(Device(), 1));
    LoraConfig read = load_adapter(folder.path, again, same, adapter_layout(c)).config();
    CHECK(read.targets.size() >= l.targets.size());
    read.targets = l.targets;
    CHECK(read == l);
    CHECK(folder.entries() == 2);
    return config_in(folder.path);
  };
  GptConfig llama = kTwo;
  llama.positions = Positions::rope, llama.norm = NormKind::rms_norm, llama.activation = Activation::swiglu;
  llama.tied_head = false;
  using Names = std::vector<std::string>;
  const auto targets = [](const Json& j) { return j["target_modules"].get<Names>(); };
  // PEFT has three modules with one A for a fused layer.
  Json j = written(llama, {.targets = {"h.*.attn.qkv"}, .rank = 2, .alpha = 3, .dropout = 0.25});
  check_json(j, R"({"target_modules": ["k_proj", "q_proj", "v_proj"], "peft_type": "LORA", "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "/a/model", "lora_dropout": 0.25, "fan_in_fan_out": false})");
  j = written(llama, {.targets = {"h.*.attn.q", "h.1.mlp.up", "lm_head"},
                      .rank = 2,
                      .alpha = 3,
                      .rslora = true,
                      .rank_pattern = {{"h.1.attn.q", 4}},
                      .alpha_pattern = {{"lm_head", 0.5}}});
  check_json(j, R"({"target_modules": ["1.mlp.up_proj", "lm_head", "q_proj"], "use_rslora": true})");
  CHECK(j["rank_pattern"] == Json{{"model.layers.1.self_attn.q_proj", 4}});
  CHECK(j["alpha_pattern"] == Json{{"lm_head", 0.5}});
  j = written(kTwo, {.targets = {"h.*.attn.proj", "h.*.mlp.fc"}, .rank = 2});
  CHECK(targets(j) == Names{"attn.c_proj", "c_fc"});  // "c_proj" would name mlp.c_proj too
  CHECK(j["fan_in_fan_out"] == Json(true));
  CHECK(targets(written(kTwo, {.targets = {"h.*.attn.proj", "h.*.mlp.proj"}, .rank = 2})) == Names{"c_proj"});
  GptConfig odd = llama;  // no family has it
  odd.norm = NormKind::layer_norm;
  j = written(odd, {.targets = {"h.*.attn.k", "h.*.mlp.proj"}, .rank = 2});
  CHECK(targets(j) == Names{"h.0.attn.k", "h.0.mlp.proj", "h.1.attn.k", "h.1.mlp.proj"});
  written(odd, {.targets = {"h.*.attn.qkv"}, .rank = 2});
}

TEST_CASE("PEFT: which modules a configuration selects") {
  using Set = std::set<std::string>;
  const auto select = [](Json j) { return selected(j); };
  const Json all = Json::array({"q_proj", "o_proj"});
  CHECK(select({{"target_modules", all}}) ==
        Set{"0.self_attn.q_proj", "1.self_attn.q_proj", "0.self_attn.o_proj", "1.self_attn.o_proj"});
  CHECK(select({{"target_modules", "all-linear"}}).size() == 6);
  CHECK(select({{"target_modules", "All-Linear"}}).size() == 6);
  CHECK(select({{"target_modules", Json::array({"proj"})}}).empty());
  CHECK(select({{"target_modules", Json::array({"lm_head"})}}) == Set{"lm_head"});
  CHECK(select({{"target_modules", all}, {"layers_to_transform", 1}}) ==
        Set{"1.self_attn.q_proj", "1.self_attn.o_proj"});
  CHECK(select({{"target_modules", Json::array({"model.layers.0.mlp.up_proj"})}, {"layers_to_transform", 1}}) ==
        Set{"0.mlp.up_proj"});
  CHECK(select({{"target_modules", all}, {"layers_to_transform", Json::array({0})}, {"layers_pattern", "h"}}).empty());
  CHECK(select({{"target_modules", all}, {"layers_to_transform", Json::array({0})}, {"layers_pattern", "layers"}})
            .size() == 2);
  CHECK(select({{"target_modules", all}, {"exclude_modules", Json::array({"0.self_attn.q_proj", "o_proj"})}}) ==
        Set{"1.self_attn.q_proj"});
  for (const char* regex :
       {R"(.*\.0\..*(q|up)_proj)", R"(^.*?0\.[a-z_]+?\.(?:q|up)_proj$)", R"(.*0\..+\.(up_proj|q_proj))"})
    CHECK(select({{"target_modules", regex}}) == Set{"0.self_attn.q_proj", "0.mlp.up_proj"});
  CHECK(select({{"target_modules", "q_proj"}}).empty());  // a regular expression must match the whole name
  CHECK(select({{"target_modules", all}, {"exclude_modules", R"(.*\.1\..*)"}}).size() == 2);
  CHECK(!detail::is_selected(Json{{"target_modules", R"(\bq_proj)"}}, "q_proj"));
  CHECK(!detail::is_selected(Json{{"target_modules", Json()}}, "q_proj"));
  for (const std::string key : {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"}) {
    Json j{{"target_modules", all}, {"layers_to_transform", 1}};
    j[key] = Json{{"x", 1}};
    CHECK_SAYS(selected(j), key == "layers_to_transform" ? "a list of integers" : "a list of names in quotes");
  }
}

TEST_CASE("PEFT: what changes the results and is not supported is refused by name and value") {
  const Copy c("llama_patterns");
  CHECK(c.error() == "no error");
  const Json refused = detail::own_json(R"({"use_dora": true, "bias": "lora_only", "lora_bias": true,
    "modules_to_save": ["lm_head"], "trainable_token_indices": [1], "target_parameters": ["x"],
    "layer_replication": [[0, 1]], "use_qalora": true, "alora_invocation_tokens": [3], "megatron_config": {"a": 1},
    "init_lora_weights": "pissa", "loftq_config": {"loftq_bits": 4}, "a_key_of_tomorrow": "on"})");
  for (const auto& [key, x] : refused.items()) {
    const std::string says = c.with(key, x);
    CHECK_HAS(
        says,
        fmt::format("[adapter] '{}' is {}, which changes the results and is not supported.", key, detail::text_of(x)),
        "Merge the adapter in Python by merge_and_unload()", "in " + c.path + "/adapter_config.json");
  }
  std::istringstream types(  // peft 0.21
      "ADALORA ADAMSS ADAPTION_PROMPT BEFT BOFT C3A CARTRIDGE CPT DEFT DELORA FOURIERFT FROD GLORA GRALORA HIRA HRA "
      "IA3 LILY LN_TUNING LOHA LOKR MISS MULTITASK_PROMPT_TUNING OFT OSF PEANUT POLY PREFIX_TUNING PROMPT_TUNING PSOFT "
      "PVERA P_TUNING RANDLORA ROAD SHADOW SHIRA SUPERTUNING TINYLORA TRAINABLE_TOKENS UNILORA VBLORA VERA WAVEFT "
      "XLORA lora TOMORROW");
  for (std::string type; types >> type;) {
    c.config(Json{{"feedforward_modules", Json::array({"x"})}, {"r", Json()}, {"peft_type", type}});
    CHECK_HAS(c.error(), fmt::format("has the 'peft_type' \"{}\", and \"LORA\" alone is read. Merge", type));
    CHECK_SAYS(detail::adapter_base(c.path), "has the 'peft_type'");
  }
  fs::copy(adapter_of("llama_patterns") + "/adapter_config.json", c / "adapter_config.json",
           fs::copy_options::overwrite_existing);
  const Json taken =
      detail::own_json(R"({"a_key_of_tomorrow": false, "init_lora_weights": "gaussian", "fan_in_fan_out": true,
    "peft_version": "9.0", "revision": "main", "target_modules": null})");
  for (const auto& [key, x] : taken.items()) CHECK_MESSAGE(c.with(key, x) == "no error", key);
  CHECK(c.with("init_lora_weights", false) == "no error");
  CHECK_HAS(c.with("r", 0), "'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight' is (2, 32)");
  CHECK_HAS(c.with("r", 3), "'r' and 'rank_pattern' of");
  CHECK_HAS(c.with("r", 2.5), "[adapter] 'r' is 2.5. It must be an integer.");
  CHECK_HAS(c.with("lora_alpha", 0), "[lora] alpha is 0.");
  CHECK_HAS(c.with("lora_dropout", 1), "[lora] dropout is 1.");
  CHECK_HAS(c.with("rank_pattern", 3), "It must be an object from patterns to numbers.");
  CHECK_HAS(c.with("rank_pattern", Json::object()), "is (3, 48) in");
  CHECK_HAS(c.with("alpha_pattern", Json{{"(?P<x>q)", 2}}),
            "the key '(?P<x>q)' of 'alpha_pattern' is no regular expression that this program reads");
  CHECK_HAS(c.with("target_modules", Json::array({"q_proj"})),
            "has tensors for 'model.layers.0.self_attn.v_proj', which");
  CHECK_HAS(c.with("exclude_modules", Json::array({"v_proj"})), "('target_modules', 'exclude_modules'");
  CHECK_HAS(c.with("target_modules", "all-linear"), "has no tensors for 'model.layers.0.self_attn.o_proj', which");
  c.config(Json{{"r", 2}});
  CHECK_HAS(c.error(), "has no \"peft_type\", as PEFT writes it.");
  c.config(Json{{"peft_type", "LORA"}, {"lora_alpha", 2}});
  CHECK_HAS(c.error(), "there is no 'r'. Every adapter has one.");
}

TEST_CASE("PEFT: names of modules by the class that it wrapped") {
  for (const std::string& name : kCases) {
    const SafetensorsFile expected = expected_of(name);
    const std::string inner = has(name, "gpt2") ? "transformer." : "model.";
    const bool headed = has(name, "head") || has(name, "all");
    for (const std::string outer : {"", "model.", "transformer.", "model.model.", "model.transformer.",
                                    "base_model.model.model.", "module._orig_mod.transformer."}) {
      CAPTURE_ALL(name, outer);
      const bool whole = outer.ends_with(inner);
      if (headed && !whole) continue;
      const Copy c(name);
      const auto moved = [&](const std::string& n) {
        if (!n.starts_with(inner)) return whole ? outer.substr(0, outer.size() - inner.size()) + n : n;
        return outer + n.substr(inner.size());
      };
      StateDict weights;
      for (const auto& [n, t] : c.weights()) weights["base_model.model." + moved(n.substr(17))] = t;
      write_safetensors(weights_in(c.path), weights);
      Json config = config_in(c.path);
      config["target_modules"] = Json();
      if (name == "llama_patterns") config["alpha_pattern"] = Json{{"^" + outer + "layers.0.mlp.gate_proj", 9.5}};
      c.config(config);
      LoadedModel m = load_model(c.base);
      load_adapter(c.path, m);
      CHECK(distance(m.model.forward(expected.tensor("tokens")), expected.tensor("logits")) <= 1e-5);
    }
  }
  const Copy c("llama_patterns");
  for (const char* outer : {"language_model.model.", "x.", "model.decoder."}) {
    StateDict weights;
    for (const auto& [n, t] : c.weights()) weights[fmt::format("base_model.model.{}{}", outer, n.substr(23))] = t;
    const std::string says = c.with_weights(weights);
    CHECK_HAS(says, fmt::format("has tensors for '{}layers.0.", outer),
              "It has 'model.layers.1.self_attn.v_proj', for one. An adapter fits");
  }
}

TEST_CASE("PEFT: a configuration of a million keys is refused at once, and so are many patterns") {
  const Copy c("llama_patterns");
  Json keys = config_in(c.path)["alpha_pattern"];
  for (int i = 0; i < 4095; ++i) keys[fmt::format("layers.9.x{}", i)] = 2;
  CHECK(c.with("alpha_pattern", keys) == "no error");
  keys["x"] = 2;
  CHECK_HAS(c.with("alpha_pattern", keys), "'alpha_pattern' has 4097 keys, and may have 4096");
  detail::write_file_atomically(c / "adapter_config.json", std::string((1 << 20) + 1, '['));
  CHECK_HAS(c.error(), "has 1048577 bytes, and may have 1048576");
}

TEST_CASE("PEFT: damaged folders and other models") {
  const Copy c("llama_patterns");
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const auto with = [&](auto change) { return c.with_weights(changed(c.weights(), change)); };
  CHECK_HAS(with([&](StateDict& s) { s.erase(q); }), "the other half of 'model.layers.0.self_attn.q_proj'");
  CHECK_HAS(with([&](StateDict& s) {
              s["base_model.model.x.lora_embedding_A"] = zeros({2, 2});
            }),
            "'base_model.model.x.lora_embedding_A' (2, 2) in " + weights_in(c.path) + " is not the A or B");
  CHECK_HAS(with([&](StateDict& s) { s["lora_A.weight"] = zeros({2, 2}); }), "is not the A or B of a Linear layer");
  CHECK_HAS(with([&](StateDict& s) { s[q] = s[q].to(DType::i64); }), "i64 in");
  CHECK_HAS(with([&](StateDict& s) { s[q] = zeros({32}); }), "is (32) in");
  CHECK_HAS(with([&](StateDict& s) { s.clear(); }), "has no tensors.");
  CHECK_HAS(with([&](StateDict& s) {
              for (const char* end : {"lora_A.weight", "lora_B.weight"})
                s[std::string("base_model.model.model.embed_tokens.") + end] = zeros({2, 2});
            }),
            "has tensors for 'model.embed_tokens', and this model has no such Linear layer (a tied head is none).");
  CHECK(with([&](StateDict& s) {
          for (auto& [name, t] : s) t = t.to(DType::f16);
        }) == "no error");
  CHECK_HAS(c.with_weights(c.weights(), {{"tapegrad.base", "0123"}}),
            "was trained over other weights: their hash was 0123");
  CHECK_HAS(c.with_weights(c.weights(), {{"tapegrad.base_dtype", "f16"}}), "base_dtype of 'f16'");
  {  // A copy of the head must equal the model's head
    const Copy head("qwen3_all");
    CHECK(head.error() == "no error");
    StateDict s = head.weights();
    Tensor& w = s.at("base_model.model.lm_head.base_layer.weight");
    w = w * 2;
    CHECK_HAS(head.with_weights(s),
              "has a weight 'lm_head.weight' (61, 32) that is not the model's. Adapters may only add");
  }
  const auto other = [&](const std::string& base) {
    return error_of([&] {
      LoadedModel m = load_model(data_folder(base));
      const auto before = bits_of(m.model.forward(two_rows()));
      try {
        load_adapter(c.path, m);
      } catch (...) {
        CHECK(bits_of(m.model.forward(two_rows())) == before);
        CHECK(m.params.trainable().size() == m.params.all().size());
        throw;
      }
    });
  };
  CHECK_HAS(other("gpt2"), "and this model has no such Linear layer");
  CHECK_HAS(other("qwen3"), "Name the model that it was trained on, or restore the file");
  {
    LoadedModel m = load_model(c.base);
    load_adapter(c.path, m);
    CHECK_SAYS(load_adapter(c.path, m), "has an adapter already");
  }
  const auto refused = [&](const std::string& path) {
    return error_of(Error::Kind::io, [&] {
      LoadedModel m = load_model(c.base);
      load_adapter(path, m);
    });
  };
  CHECK_HAS(refused(c / "nowhere"), "nowhere does not exist. An adapter is a folder with adapter_config.json and");
  CHECK_HAS(refused(weights_in(c.path)), "adapter_model.safetensors is a file. An adapter is a folder");
  CHECK_HAS(refused(c.base), "is a folder without adapter_config.json.");
  fs::rename(weights_in(c.path), c / "adapter_model.bin");
  CHECK_HAS(refused(c.path), "has no adapter_model.safetensors, but adapter_model.bin, a pickle of Python.");
  fs::remove(c / "adapter_model.bin");
  CHECK_HAS(refused(c.path), "has no adapter_model.safetensors. Complete the folder");
  detail::write_file_atomically(c / "adapter_config.json", "{");
  CHECK_HAS(c.error(), "adapter_config.json is not JSON");
}

TEST_CASE("PEFT: infinite weights are not written, and the former file stays") {
  const Folder folder;
  auto [base, model] = new_gpt(kTwo, Params(Device(), 1));
  const Lora lora = apply_lora(model, base, {.targets = {"*.attn.qkv"}, .rank = 4});
  save_adapter(folder.path, lora);
  const std::string before = read_file(weights_in(folder.path));
  StateDict infinite = lora.params().state();
  infinite.at("h.1.attn.qkv.lora_b") = filled({4, 24}, INFINITY);
  lora.params().assign(infinite);
  CHECK_SAYS_OF(non_finite, save_adapter(folder.path, lora), "'h.1.attn.qkv.lora_b' is inf at (0, 0)");
  CHECK(read_file(weights_in(folder.path)) == before);
}

TEST_CASE("PEFT: a checkpoint of adapters says over which model and how they are trained") {
  const Folder folder;
  const std::string path = folder / "checkpoint.safetensors";
  auto [base, model] = new_gpt(tiny_model(), Params(Device(), 1));
  LoraConfig config{.rank = 3, .alpha = 0.1, .dropout = 0.25, .seed = uint64_t(-1), .rslora = true};
  config.targets = {"*.mlp.*"}, config.rank_pattern = {{"h.1.*", 2}, {"*", 3}};
  config.alpha_pattern = {{"h.0.*", 0.2}};
  CHECK(config.options("h.1.mlp.fc").rank == 2);
  CHECK(config.options("h.0.mlp.fc").rank == 3);
  CHECK(config.options("h.0.mlp.fc").scale() == 0.2 / std::sqrt(3.0));
  const Lora lora = apply_lora(model, base, config);
  TrainConfig train = tiny_train();
  Trainer trainer(model, lora.params(), bytes_of(rhyme()), train);
  trainer.step();
  RunConfig run;
  run.model = tiny_model(), run.train = train;
  Checkpoint c{.config = to_json(run),
               .tokenizer = "",
               .data = DataIdentity::of(bytes_of(rhyme())),
               .state = trainer.state(),
               .finetuning = Finetuning{"/some/model", weights_hash(base), config}};
  save_checkpoint(path, c);
  const Checkpoint back = load_checkpoint(path);
  REQUIRE(back.finetuning);
  CHECK(back.finetuning->model == "/some/model");
  CHECK(back.finetuning->weights == weights_hash(base));
  CHECK(back.finetuning->lora == config);
  trainer.load_state(back.state);
  CHECK(back.finetuning->base == DType::f32);
  CHECK(back.init.empty());
  c.finetuning->base = DType::bf16;
  save_checkpoint(path, c);
  CHECK(load_checkpoint(path).finetuning->base == DType::bf16);
  c.finetuning.reset();
  c.init = "/some/folder";
  save_checkpoint(path, c);
  CHECK(!load_checkpoint(path).finetuning);
  CHECK(load_checkpoint(path).init == "/some/folder");
}

TEST_CASE("PEFT: an adapter over weights in bf16 is one over the same weights in f32, rounded") {
  const Folder folder, second;
  const Params whole = new_gpt(kTwo, Params(Device(), 1)).params, half(Device(), 0, DType::bf16);
  auto [again, fresh] = new_gpt(kTwo, Params(Device(), 1));
  auto [other, else_] = new_gpt(kTwo, Params(Device(), 2));
  half.load(whole.state());
  Gpt narrow(half, kTwo);
  const std::string hash = weights_hash(half);
  CHECK(hash == weights_hash(half));
  CHECK(hash != weights_hash(whole));
  const Params widened(Device(), 0);
  widened.load(half.state());
  const Gpt of_widened(widened, kTwo);
  CHECK(hash == weights_hash(widened));
  Lora lora = apply_lora(narrow, half, {.targets = {"h.*.mlp.fc"}, .rank = 2});
  CHECK(lora.base_dtype() == DType::bf16);
  CHECK(lora.params().dtype() == DType::f32);
  fill(lora);
  save_adapter(folder.path, lora, {.base = hash, .folder = "/a"});
  CHECK(detail::adapter_base(folder.path).dtype == DType::bf16);
  CHECK(detail::adapter_base(folder.path).folder == "/a");
  const auto before = bits_of(else_.forward(tensor({1, 2}, {1, 2})));
  CHECK_SAYS(load_adapter(folder.path, else_, other), "was trained over other weights");
  CHECK(bits_of(else_.forward(tensor({1, 2}, {1, 2}))) == before);
  const Lora loaded = load_adapter(folder.path, fresh, again);
  CHECK(loaded.base_dtype() == DType::bf16);
  CHECK(weights_hash(again) == hash);  // rounded, and the same values
  for (const auto& [name, t] : again.state()) CHECK(bits_of(t.to(DType::bf16)) == bits_of(half.state().at(name)));
  save_adapter(second.path, loaded, {.base = weights_hash(again), .folder = "/a"});
  for (const std::string& name : detail::adapter_files()) CHECK(read_file(second / name) == read_file(folder / name));
  const Tensor tokens = tensor({1, 2, 3, 4}, {1, 4});
  CHECK(distance(fresh.forward(tokens), narrow.forward(tokens)) < 2e-2);  // tolerance of bf16
}
