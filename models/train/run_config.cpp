#include <tapegrad/core/check.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/tokenizers/tokenizer.h>
#include <tapegrad/models/train/run_config.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <ranges>

namespace tg {
namespace {

constexpr std::string_view kPresets[] = {"shakespeare-cpu", "demo", "gpt2-124m-llmc", "gpt2-124m-track3"},
                           kArchs[] = {"nano", "gpt-small-10k", "gpt-medium-10k", "cs336-2.7b",
                                       "gpt2", "gpt2-medium",   "gpt2-large",     "gpt2-xl"};
size_t place_of(std::string_view what, std::string_view name, std::span<const std::string_view> names) {
  const auto at = std::ranges::find(names, name);
  const std::string meant = detail::did_you_mean(name, names);
  TG_CHECK(at != names.end(), value, "[config] there is no {} '{}'.{} The names are: {}.", what, name,
           !meant.empty() || what != "arch" ? meant
                                            : " A model as Llama has positions rope, norm rms_norm and activation "
                                              "swiglu; a published one is a folder, for --model DIR.",
           detail::listed(names));
  return size_t(at - names.begin());
}
GptConfig of_10k(GptConfig c) {
  c.vocab_size = 10000, c.norm = NormKind::rms_norm, c.tied_head = false;
  return c;
}
GptConfig of_gpt2(GptConfig c) {  // Radford et al., 2019
  c.vocab_size = 50257, c.context = 1024, c.activation = Activation::gelu_tanh, c.bias = true, c.dropout = 0.1;
  return c;
}

GptConfig of_track3() {
  return {.vocab_size = 50304,
          .context = 1024,
          .layers = 12,
          .heads = 6,
          .width = 768,
          .positions = Positions::rope,
          .rope_theta = std::pow(1024, 32. / 31),  // the last of the 32 frequencies is 1 / 1024
          .rope_scaling = {.fraction = 0.5},
          .norm = NormKind::rms_norm,
          .activation = Activation::relu2,
          .bias = true,
          .qk_norm = true,
          .qk_norm_affine = false,
          .attn_scale = 0.12,
          .embedding_norm = true,
          .logit_cap = 15,
          .tied_head = false,
          .head_bias = true,
          .norm_eps = 0x1p-23,
          .init = InitScheme::fan_in,
          .init_std = std::sqrt(0.33),
          .zero_proj = true};
}

constexpr const char* kGroups[] = {"model", "train", "data"};
// Calls f(group, name, field, help) for each setting, in order: model, train, data, and tokenizer without a group.
template <class Run, class F> void visit_run_fields(Run& run, F&& f) {
  const auto of = [&f](const char* group) {
    return [&f, group](const char* name, auto& x, const char* help) { f(group, name, x, help); };
  };
  visit_fields(run.model, of("model"));
  detail::visit_train_fields(run.train, of("train"));
  detail::visit_data_fields(run.data, of("data"));
  f("", "tokenizer", run.tokenizer,
    "byte, char: the characters of the text, or the path of a tokenizer.json or its folder");
}
// Settings of a group, or all.
std::vector<std::string_view> settings_of(std::string_view group = "") {
  std::vector<std::string_view> names;
  const RunConfig run;
  visit_run_fields(run, [&](std::string_view of, const char* name, auto&&...) {
    if (group.empty() || group == of) names.push_back(name);
  });
  return names;
}
bool is_path(std::string_view word) { return word.find_first_of("/.") != std::string_view::npos; }
void read_field(const FieldName& f, const Json& x, std::string& to) {
  const bool known =
      f.key != "tokenizer" || x == "byte" || x == "char" || (x.is_string() && is_path(x.get<std::string>()));
  std::error_code none;
  expect_field(x.is_string() && known, f, x,
               f.key != "tokenizer" ? "a text in quotes"
               : x.is_string() && std::filesystem::exists(x.get<std::string>(), none)
                   ? fmt::format("byte or char, or a path with a '/': pass ./{}", x.get<std::string>())
                   : "byte or char, or the path of a tokenizer, with a '/' or a '.'");
  to = x.get<std::string>();
  if (f.key == "weights")
    to = fmt::format("{}", fmt::join(detail::mixture_weights(to), ","));  // equal numbers get one text
}
Json flat(const RunConfig& run) {
  Json fields;
  visit_run_fields(run, [&](auto, const char* name, const auto& x, auto) { fields[name] = written(x); });
  return fields;
}

bool in(std::string_view name, std::span<const std::string_view> names) { return std::ranges::count(names, name) > 0; }

// Collects the settings of one JSON object. `group` is its key, or empty for the top level.
void collect(const Json& object, std::string_view group, const std::string& source, Json& to) {
  check_keys("config", source, object, settings_of(group), group.empty() ? "" : fmt::format(" in \"{}\"", group));
  for (const auto& [key, x] : object.items()) {
    TG_CHECK(!to.contains(key), value, "[config] {}: '{}' is set twice, in two groups. Set each key once.", source,
             key);
    to[key] = x;
  }
}
// Converts the tokenizer of a model's config.json to a run's setting.
Json tokenizer_setting(const Json& x, bool stored, const std::string& source) {
  if (x.is_null()) return "byte";       // trained on token ids
  if (stored && x == "tokenizer.json")  // file in the config's folder
    return (std::filesystem::path(source).parent_path() / "tokenizer.json").string();
  if (!x.is_object()) return x;
  const auto tokenizer = Tokenizer::from_json(detail::text_of(x));
  if (x["type"] == "bytes") return "byte";
  TG_CHECK(stored, value,
           "[config] {}: the tokenizer lists {} characters, but training takes those of its text: the list would have "
           "no effect. Write \"tokenizer\": \"char\".",
           source, tokenizer->vocab_size());
  return "char";
}

// Settings that have an effect only if another setting, a name, has certain values.
struct Needs {
  std::string_view name, other, values;
};
constexpr Needs kNeeds[] = {
    {"rope_theta", "positions", "rope"},
    {"rope_fraction", "positions", "rope"},
    {"qk_norm_affine", "qk_norm", "true"},
    {"init_std", "init", "gpt2 or fan_in"},
    {"min_lr", "schedule", "cosine or wsd"},
    {"hold", "schedule", "cosine"},
    {"cooldown", "schedule", "wsd"},
    {"beta1", "optimizer", "adamw or muon"},
    {"beta2", "optimizer", "adamw or muon"},
    {"eps", "optimizer", "adamw or muon"},
    {"moments", "optimizer", "adamw or muon"},
    {"momentum", "optimizer", "sgd or muon"},
    {"nesterov", "optimizer", "sgd or muon"},
    {"muon_lr", "optimizer", "muon"},
    {"muon_scale", "optimizer", "muon"},
    {"muon_weight_decay", "optimizer", "muon"},
    {"muon_steps", "optimizer", "muon"},
    {"muon_coefficients", "optimizer", "muon"},
    {"muon_dtype", "optimizer", "muon"},
    {"beta", "objective", "dpo"},
    {"loss", "objective", "lm"},
    {"pack", "objective", "lm"},
    {"val_fraction", "val_data", "\"\""},
    {"eval_every", "val_fraction", "above 0, or checkpoint_every -1"},
};
bool has_effect(const Needs& n, const RunConfig& run, const Json& other) {
  if (other.is_boolean()) return other.get<bool>();
  if (other.is_string()) return n.values.find(other.get<std::string>()) != n.values.npos;
  return run.train.val_fraction > 0 || !run.data.val_data.empty() || run.train.checkpoint_every < 0 ||
         run.train.eval_every == 0;
}
void validate(const RunConfig& run) {
  run.train.validate();
  TG_CHECK(
      run.data.val_tokens == 0 || (run.data.val_tokens > 1 && !run.data.val_data.empty()), value,
      "[config] val_tokens is {} and val_data '{}'. It must be 0, or from 2 up with val_data. Pass --val-data FILE, or "
      "--val-tokens 0.",
      run.data.val_tokens, run.data.val_data);
  TG_CHECK(run.data.beta > 0, value, "[config] beta is {}. It must be above 0.", run.data.beta);
  GptConfig model = run.model;
  if (model.vocab_size == 0) model.vocab_size = 1;  // validate() needs one; the tokenizer gives the real size
  model.validate();
  (void)run.train.window_in(model.context);
}

// Parses the value of a field from a word. Throws if it does not fit.
template <class T> void read_word(std::string_view name, std::string_view word, T& to) {
  if constexpr (std::is_same_v<T, bool>) {
    to = word == "true";
    TG_CHECK(to || word == "false", value, "[config] {} is '{}'. It must be true or false.", name, word);
  } else if constexpr (std::is_arithmetic_v<T>) {  // numbers have more spellings than in JSON: .5
    constexpr bool kWhole = std::is_integral_v<T>;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), to);
    const bool outside = error == std::errc::result_out_of_range || (std::is_unsigned_v<T> && word.starts_with('-'));
    TG_CHECK(error == std::errc() && end == word.data() + word.size() && std::isfinite(double(to)), value,
             "[config] {} is '{}'. It must be {}.", name, word,
             !outside  ? (kWhole ? "a whole number" : "a number")
             : !kWhole ? "0, or from 4.9e-324 to 1.8e308 in size, the range of a double"
                       : range_of<T>());
  } else {
    read_field(FieldName{"config", name}, Json(word), to);
  }
}

bool hold(const Json& fields, const std::vector<std::string_view>& names) {
  return std::ranges::all_of(names, [&](std::string_view name) { return fields.contains(name); });
}
// Parses the settings of a JSON object and flattens its groups.
Json read_text(std::string_view text, const std::string& source) {
  Json object = detail::parse_json(text, "config", source);
  TG_CHECK(object.is_object(), value, "[config] {} holds {}. It must be an object: {{\"layers\": 4, ...}}.", source,
           object.type_name());
  Json fields = Json::object();
  for (const char* group : kGroups) {
    const Json* it = object.find(group);
    if (!it) continue;
    TG_CHECK(it->is_object(), value, "[config] {}: '{}' is {}. It must be an object with settings of that group.",
             source, group, detail::text_of(*it));
    collect(*it, group, source, fields);
    object.erase(group);
  }
  collect(object, "", source, fields);
  if (fields.contains("tokenizer"))
    fields["tokenizer"] = tokenizer_setting(fields["tokenizer"], hold(fields, settings_of("model")), source);
  return fields;
}
void put(RunConfig& run, const Json& fields) {
  visit_run_fields(run, [&](auto, const char* name, auto& to, auto) {
    if (const Json* it = fields.find(name)) read_field(FieldName{"config", name}, *it, to);
  });
}
}  // namespace

RunConfig run_preset(std::string_view name) {
  RunConfig run;
  TrainConfig& t = run.train;
  const size_t which = place_of("preset", name, kPresets);
  if (which == 0) {  // a character model in minutes
    run.tokenizer = "char";
    return run;
  }
  if (which >= 2) {  // models/gpt2_recipes.md
    run.model = which == 2 ? of_gpt2({.layers = 12, .heads = 12, .width = 768}) : of_track3();
    run.model.dropout = 0;
    t.batch = 64, t.accumulate = 8, t.order = SampleOrder::sequential, t.dtype = DType::bf16;
    t.min_lr = 0, run.data.val_tokens = (20 << 19) + 1;
    if (which == 2) {
      t.max_steps = 18865, t.lr = 6e-4, t.warmup = 699, t.hold = 1, t.beta2 = 0.95;
      t.eval_every = 250, t.checkpoint_every = 5000;
      return run;
    }
    t.optimizer = OptimizerKind::muon, t.muon_lr = 0.025, t.muon_weight_decay = 0.05, t.muon_steps = 12;
    t.muon_coefficients = "2,-1.5,0.5", t.lr = 0.015, t.lr_groups = "wte.weight=0.7,lm_head.weight=0.004";
    t.beta1 = 0.8, t.beta2 = 0.95, t.weight_decay = 0.001, t.decay_all = true, t.clip_norm = 0;
    t.eps = 1e-10 / (1 << 19);  // gradients are means, there sums
    t.max_steps = 3250, t.warmup = 0, t.schedule = ScheduleKind::wsd, t.cooldown = 0.7, t.eval_every = 125;
    return run;
  }
  // A byte model in under a minute.
  run.model.context = 224, run.model.positions = Positions::rope, run.model.norm = NormKind::rms_norm;
  t.optimizer = OptimizerKind::muon, t.batch = 5, t.lr = 2e-3, t.min_lr = 2e-4, t.warmup = 50;
  t.max_steps = 800, t.eval_every = 200, t.val_fraction = 0.05;
  return run;
}
GptConfig model_preset(std::string_view name) {
  const GptConfig configs[std::size(kArchs)] = {
      {.vocab_size = 0},
      of_10k({.context = 128, .layers = 12, .heads = 12, .width = 768}),
      of_10k({.context = 128, .layers = 24, .heads = 16, .width = 1024}),
      of_10k({.context = 512,
              .layers = 32,
              .heads = 32,
              .width = 2560,
              .ff_width = 10240,
              .positions = Positions::rope,
              .activation = Activation::swiglu,
              .init = InitScheme::xavier}),
      of_gpt2({.layers = 12, .heads = 12, .width = 768}),
      of_gpt2({.layers = 24, .heads = 16, .width = 1024}),
      of_gpt2({.layers = 36, .heads = 20, .width = 1280}),
      of_gpt2({.layers = 48, .heads = 25, .width = 1600}),
  };
  return configs[place_of("arch", name, kArchs)];
}
RunConfig detail::named_run(std::string_view name) {
  const bool is_preset = std::ranges::count(kPresets, name) > 0;
  RunConfig run = is_preset ? run_preset(name) : RunConfig();
  if (!is_preset) run.model = model_preset(name);
  run.data = {}, run.train.order = SampleOrder::random;
  return run;
}
std::string detail::run_preset_names() { return listed(kPresets); }
std::string detail::model_preset_names() { return listed(kArchs); }

bool detail::is_model_setting(std::string_view name) { return in(name, settings_of("model")); }
bool detail::is_data_setting(std::string_view name) { return in(name, settings_of("data")); }
bool detail::is_train_setting(std::string_view name) { return in(name, settings_of("train")) || is_data_setting(name); }
bool detail::is_example_setting(std::string_view name) {
  bool is = false;
  const DataConfig data;
  visit_example_fields(data, [&](std::string_view field, auto&&...) { is |= field == name; });
  return is;
}
std::vector<RunField> detail::run_fields() {
  std::vector<RunField> list;
  const RunConfig run;
  visit_run_fields(run, [&](auto, const char* name, const auto& value, const char* help) {
    const Json x = written(value);
    const char* kind = x.is_boolean() ? "BOOL" : x.is_number_integer() ? "INT" : x.is_number() ? "NUMBER" : "NAME";
    list.push_back({name, kind, x.is_string() ? x.get<std::string>() : text_of(x), help});
  });
  return list;
}

void Settings::set(std::string_view name, std::string_view word) {
  const auto names = settings_of();
  TG_CHECK(in(name, names), value, "[config] there is no setting '{}'.{}", name, detail::did_you_mean(name, names));
  visit_run_fields(run_, [&](auto, const char* field, auto& to, auto) {
    if (field == name) read_word(name, word, to);
  });
  chosen_.emplace_back(name);
  follow(name);
}
void Settings::follow(std::string_view name) {
  follows_ = follows_ && name != "min_lr";
  if (name == "lr" && follows_) read_word("min_lr", fmt::format("{:.15g}", run_.train.lr / 10), run_.train.min_lr);
}
void Settings::read(std::string_view text, const std::string& source) {
  const Json fields = read_text(text, source);
  put(run_, fields);
  for (const char* name : {"min_lr", "lr"})
    if (fields.contains(name)) follow(name);
  for (const char* group : kGroups)
    if (const auto names = settings_of(group); !hold(fields, names))
      for (const std::string_view name : names)
        if (fields.contains(name)) chosen_.emplace_back(name);
}
RunConfig Settings::run() const {
  validate(run_);
  const Json fields = flat(run_);
  const auto text = [&](std::string_view field) { return detail::text_of(fields.at(field)); };
  for (const Needs& n : kNeeds)
    TG_CHECK(has_effect(n, run_, fields.at(n.other)) || !std::ranges::count(chosen_, n.name), value,
             "[config] {} is {} and {} is {}. {} has an effect with {} {} only. Leave {} out, or change {}.", n.name,
             text(n.name), n.other, text(n.other), n.name, n.other, n.values, n.name, n.other);
  return run_;
}

std::string to_json(const TrainConfig& config) {
  Json fields;
  detail::visit_train_fields(config, [&](const char* name, const auto& x, auto) { fields[name] = written(x); });
  return detail::text_of(fields, 2);
}

std::string to_json(const RunConfig& run) {
  TG_CHECK(run.model.classes == 0, value, "[config] classes is {}. A run has none: leave it 0.", run.model.classes);
  Json all;
  visit_run_fields(run, [&](std::string_view group, const char* name, const auto& x, auto) {
    (group.empty() ? all : all[group])[name] = written(x);
  });
  return detail::text_of(all, 2);
}
RunConfig detail::run_config_from_json(std::string_view text, const std::string& source) {
  const Json fields = read_text(text, source);
  for (const std::string_view name : settings_of())
    TG_CHECK(fields.contains(name), value, "[config] {} has no '{}'. Every setting must be there. Restore the file.",
             source, name);
  RunConfig run;
  put(run, fields);
  validate(run);
  return run;
}

std::vector<double> detail::mixture_weights(std::string_view words) {
  std::vector<double> weights;
  for (const auto word : words | std::views::split(','))
    read_word("weights", std::string_view(word.begin(), word.end()), weights.emplace_back());
  return weights;
}

std::vector<Difference> detail::differences(const RunConfig& before, const RunConfig& after) {
  const Json a = flat(before), b = flat(after);
  std::vector<Difference> all;
  for (const auto& [name, x] : a.items())
    if (x != b.at(name)) all.push_back({name, text_of(x), text_of(b.at(name))});
  return all;
}

}  // namespace tg
