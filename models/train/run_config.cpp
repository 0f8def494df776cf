#include <tapegrad/core/check.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/train/run_config.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

namespace tg {
namespace {

// A table of named values.
template <class T> struct Named {
  std::string_view name;
  T (*make)();
};
GptConfig gpt2(int64_t layers, int64_t heads, int64_t width) {  // Radford et al., 2019
  return {.vocab_size = 50257,
          .context = 1024,
          .layers = layers,
          .heads = heads,
          .width = width,
          .activation = Activation::gelu_tanh,
          .bias = true,
          .dropout = 0.1};
}
GptConfig gpt_10k(int64_t layers, int64_t heads, int64_t width) {
  return {.vocab_size = 10000,
          .context = 128,
          .layers = layers,
          .heads = heads,
          .width = width,
          .norm = NormKind::rms_norm,
          .tied_head = false};
}
GptConfig cs336() {
  return {.vocab_size = 10000,
          .context = 512,
          .layers = 32,
          .heads = 32,
          .width = 2560,
          .ff_width = 10240,
          .positions = Positions::rope,
          .norm = NormKind::rms_norm,
          .activation = Activation::swiglu,
          .tied_head = false,
          .init = InitScheme::xavier};
}
constexpr Named<GptConfig> kArchs[] = {
    {"nano", [] { return RunConfig().model; }},
    {"gpt-small-10k", [] { return gpt_10k(12, 12, 768); }},
    {"gpt-medium-10k", [] { return gpt_10k(24, 16, 1024); }},
    {"cs336-2.7b", cs336},
    {"gpt2", [] { return gpt2(12, 12, 768); }},
    {"gpt2-medium", [] { return gpt2(24, 16, 1024); }},
    {"gpt2-large", [] { return gpt2(36, 20, 1280); }},
    {"gpt2-xl", [] { return gpt2(48, 25, 1600); }},
};
constexpr Named<RunConfig> kPresets[] = {
    {"shakespeare-cpu",  // a character model in minutes: the defaults
     [] {
       RunConfig run;
       run.tokenizer = "char";
       return run;
     }},
    {"demo",  // a byte model in under a minute
     [] {
       RunConfig run;
       run.model.context = 224;
       run.model.positions = Positions::rope;
       run.model.norm = NormKind::rms_norm;
       run.train.optimizer = OptimizerKind::muon;
       run.train.batch = 5;
       run.train.max_steps = 800;
       run.train.lr = 2e-3;
       run.train.min_lr = 2e-4;
       run.train.warmup = 50;
       run.train.eval_every = 200;
       run.train.val_fraction = 0.05;
       return run;
     }},
};
template <class Table> std::vector<std::string_view> names_of(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& entry : table) names.push_back(entry.name);
  return names;
}
template <class T, size_t N> T make_named(std::string_view what, std::string_view name, const Named<T> (&table)[N]) {
  for (const auto& entry : table)
    if (entry.name == name) return entry.make();
  const auto names = names_of(table);
  detail::fail(Error::Kind::value, fmt::format("[config] there is no {} '{}'.{} The names are: {}.", what, name,
                                               did_you_mean(name, names), listed(names)));
}

// f(name, field, help) for each setting, in order: model, train, data, tokenizer.
template <class Run, class F> void visit_run_fields(Run& run, F&& f) {
  visit_gpt_fields(run.model, f);
  visit_train_fields(run.train, f);
  visit_data_fields(run.data, f);
  f("tokenizer", run.tokenizer,
    "byte, char: the characters of the text, or the path of a tokenizer.json or its folder");
}
bool is_path(std::string_view word) { return word.find_first_of("/.") != std::string_view::npos; }
void read_field(const FieldName& f, const Json& x, std::string& to) {
  const bool known =
      f.key != "tokenizer" || x == "byte" || x == "char" || (x.is_string() && is_path(x.get<std::string>()));
  expect_field(
      x.is_string() && known, f, x,
      f.key == "tokenizer" ? "byte or char, or the path of a tokenizer, with a '/' or a '.'" : "a text in quotes");
  to = x.get<std::string>();
}
// Adds fields to an object.
auto written_to(Json& fields) {
  return [&fields](const char* name, const auto& x, const char*) { fields[name] = written(x); };
}
Json flat(const RunConfig& run) {
  Json fields;
  visit_run_fields(run, written_to(fields));
  return fields;
}

struct Names {
  std::vector<std::string_view> model, train, data, examples, all;
  Names() {
    const RunConfig run;
    const auto to = [](auto& list) { return [&list](const char* name, auto&&...) { list.push_back(name); }; };
    visit_gpt_fields(run.model, to(model));
    visit_train_fields(run.train, to(train));
    visit_data_fields(run.data, to(data));
    visit_example_fields(run.data, to(examples));
    visit_run_fields(run, to(all));
  }
};
bool in(std::string_view name, const std::vector<std::string_view>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}
const char* kind_of(const Json& x) {
  return x.is_boolean() ? "BOOL" : x.is_number_integer() ? "INT" : x.is_number() ? "NUMBER" : "NAME";
}

// Collects the settings of one JSON object. `group` is its key, or empty for the top level.
void collect(const Json& object, std::string_view group, const std::vector<std::string_view>& known,
             const std::string& source, Json& to) {
  check_keys("config", source, object, known, group.empty() ? "" : fmt::format(" in \"{}\"", group));
  for (const auto& [key, x] : object.items()) {
    TG_CHECK(!to.contains(key), value, "[config] {}: '{}' is set twice, in two groups. Set each key once.", source,
             key);
    to[key] = x;
  }
}
// Converts the tokenizer of a model's config.json to a run's setting.
Json tokenizer_setting(const Json& x, bool stored, const std::string& source) {
  if (x.is_null()) return "byte";       // trained on token ids
  if (stored && x == "tokenizer.json")  // in the config's folder
    return (std::filesystem::path(source).parent_path() / "tokenizer.json").string();
  if (!x.is_object()) return x;
  const auto tokenizer = Tokenizer::from_json(text_of(x));
  if (x["type"] == "bytes") return "byte";
  TG_CHECK(stored, value,
           "[config] {}: the tokenizer lists {} characters, but training takes those of its text: the list would have "
           "no effect. Write \"tokenizer\": \"char\".",
           source, tokenizer->vocab_size());
  return "char";
}

// A setting that has an effect only with some values of another.
struct Needs {
  std::string_view name, other, values;
  bool (*met)(const RunConfig&);
};
template <OptimizerKind... kinds> bool uses(const RunConfig& r) { return ((r.train.optimizer == kinds) || ...); }
constexpr Needs kNeeds[] = {
    {"rope_theta", "positions", "rope", [](const RunConfig& r) { return r.model.positions == Positions::rope; }},
    {"init_std", "init", "gpt2", [](const RunConfig& r) { return r.model.init == InitScheme::gpt2; }},
    {"min_lr", "schedule", "cosine", [](const RunConfig& r) { return r.train.schedule == ScheduleKind::cosine; }},
    {"beta1", "optimizer", "adamw or muon", uses<OptimizerKind::adamw, OptimizerKind::muon>},
    {"beta2", "optimizer", "adamw or muon", uses<OptimizerKind::adamw, OptimizerKind::muon>},
    {"eps", "optimizer", "adamw or muon", uses<OptimizerKind::adamw, OptimizerKind::muon>},
    {"momentum", "optimizer", "sgd or muon", uses<OptimizerKind::sgd, OptimizerKind::muon>},
    {"nesterov", "optimizer", "sgd or muon", uses<OptimizerKind::sgd, OptimizerKind::muon>},
    {"muon_lr", "optimizer", "muon", uses<OptimizerKind::muon>},
    {"muon_scale", "optimizer", "muon", uses<OptimizerKind::muon>},
    {"muon_dtype", "optimizer", "muon", uses<OptimizerKind::muon>},
    {"beta", "objective", "dpo", [](const RunConfig& r) { return r.data.objective == Objective::dpo; }},
    {"loss", "objective", "lm", [](const RunConfig& r) { return r.data.objective == Objective::lm; }},
    {"pack", "objective", "lm", [](const RunConfig& r) { return r.data.objective == Objective::lm; }},
    {"eval_every", "val_fraction", "above 0, or checkpoint_every -1",
     [](const RunConfig& r) {
       return r.train.val_fraction > 0 || r.train.checkpoint_every < 0 || r.train.eval_every == 0;
     }},
};
void validate(const RunConfig& run) {
  run.train.validate();
  TG_CHECK(run.data.beta > 0, value, "[config] beta is {}. It must be above 0.", run.data.beta);
  GptConfig model = run.model;
  if (model.vocab_size == 0) model.vocab_size = 1;  // validate() needs one; the tokenizer gives the real size
  model.validate();
  (void)run.train.window_in(model.context);
}

// Parses the value of a field from a word. Throws if it does not fit.
template <class T>
  requires std::is_integral_v<T>
void read_word(std::string_view name, std::string_view word, T& to) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), to);
  const bool range = error == std::errc::result_out_of_range || (std::is_unsigned_v<T> && word.starts_with('-'));
  TG_CHECK(error == std::errc() && end == word.data() + word.size(), value, "[config] {} is '{}'. It must be {}.", name,
           word, range ? range_of<T>() : "a whole number");
}
void read_word(std::string_view name, std::string_view word, double& to) {  // more spellings than JSON: .5
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), to);
  TG_CHECK(error != std::errc::result_out_of_range, value,
           "[config] {} is '{}', which is out of the range of a double. It must be 0, or from 4.9e-324 to 1.8e308 in "
           "size.",
           name, word);
  TG_CHECK(error == std::errc() && end == word.data() + word.size() && std::isfinite(to), value,
           "[config] {} is '{}'. It must be a number.", name, word);
}
void read_word(std::string_view name, std::string_view word, bool& to) {
  to = word == "true";
  TG_CHECK(to || word == "false", value, "[config] {} is '{}'. It must be true or false.", name, word);
}
template <class T> void read_word(std::string_view name, std::string_view word, T& to) {
  read_field(FieldName{"config", name}, Json(word), to);
}

bool hold(const Json& fields, const std::vector<std::string_view>& names) {
  return std::all_of(names.begin(), names.end(), [&](std::string_view name) { return fields.contains(name); });
}
// Parses the settings of a JSON object and flattens its groups.
Json read_text(std::string_view text, const std::string& source, const Names& names) {
  Json object = parse_json(text, "config", source);
  TG_CHECK(object.is_object(), value, "[config] {} holds {}. It must be an object: {{\"layers\": 4, ...}}.", source,
           object.type_name());
  Json fields = Json::object();
  for (const auto& [group, known] :
       {std::pair("model", &names.model), std::pair("train", &names.train), std::pair("data", &names.data)}) {
    const Json* it = object.find(group);
    if (!it) continue;
    TG_CHECK(it->is_object(), value, "[config] {}: '{}' is {}. It must be an object with settings of that group.",
             source, group, text_of(*it));
    collect(*it, group, *known, source, fields);
    object.erase(group);
  }
  collect(object, "", names.all, source, fields);
  if (fields.contains("tokenizer"))
    fields["tokenizer"] = tokenizer_setting(fields["tokenizer"], hold(fields, names.model), source);
  return fields;
}
void put(RunConfig& run, const Json& fields) {
  visit_run_fields(run, [&](const char* name, auto& to, const char*) {
    if (const Json* it = fields.find(name)) read_field(FieldName{"config", name}, *it, to);
  });
}

}  // namespace

RunConfig preset(std::string_view name) { return make_named("preset", name, kPresets); }
GptConfig arch(std::string_view name) { return make_named("arch", name, kArchs); }
std::string preset_names() { return listed(names_of(kPresets)); }
std::string arch_names() { return listed(names_of(kArchs)); }

bool is_model_setting(std::string_view name) { return in(name, Names().model); }
bool is_example_setting(std::string_view name) { return in(name, Names().examples); }
bool is_data_setting(std::string_view name) { return in(name, Names().data); }
bool is_train_setting(std::string_view name) { return in(name, Names().train) || is_data_setting(name); }
std::vector<RunField> run_fields() {
  std::vector<RunField> list;
  const RunConfig run;
  visit_run_fields(run, [&](const char* name, const auto& value, const char* help) {
    const Json x = written(value);
    list.push_back({name, kind_of(x), x.is_string() ? x.get<std::string>() : text_of(x), help});
  });
  return list;
}

void Settings::set(std::string_view name, std::string_view word) {
  const Names names;
  TG_CHECK(in(name, names.all), value, "[config] there is no setting '{}'.{}", name, did_you_mean(name, names.all));
  visit_run_fields(run_, [&](const char* field, auto& to, const char*) {
    if (field == name) read_word(name, word, to);
  });
  chosen_.emplace_back(name);
}
void Settings::read(std::string_view text, const std::string& source) {
  const Names names;
  const Json fields = read_text(text, source, names);
  put(run_, fields);
  for (const auto* group : {&names.model, &names.train, &names.data})
    if (!hold(fields, *group))
      for (const std::string_view name : *group)
        if (fields.contains(name)) chosen_.emplace_back(name);
}
RunConfig Settings::run() const {
  validate(run_);
  const Json fields = flat(run_);
  const auto text = [&](std::string_view field) { return text_of(fields.at(field)); };
  for (const Needs& n : kNeeds)
    TG_CHECK(n.met(run_) || std::find(chosen_.begin(), chosen_.end(), n.name) == chosen_.end(), value,
             "[config] {} is {} and {} is {}. {} has an effect with {} {} only. Leave {} out, or change {}.", n.name,
             text(n.name), n.other, text(n.other), n.name, n.other, n.values, n.name, n.other);
  return run_;
}

std::string to_json(const TrainConfig& config) {
  Json fields;
  visit_train_fields(config, written_to(fields));
  return text_of(fields, 2);
}

std::string to_json(const RunConfig& run) {
  Json all;
  all["model"] = own_json(to_json(run.model));
  visit_train_fields(run.train, written_to(all["train"]));
  visit_data_fields(run.data, written_to(all["data"]));
  all["tokenizer"] = run.tokenizer;
  return text_of(all, 2);
}
RunConfig run_config_from_json(std::string_view text, const std::string& source) {
  const Names names;
  const Json fields = read_text(text, source, names);
  for (const std::string_view name : names.all)
    TG_CHECK(fields.contains(name), value, "[config] {} has no '{}'. Every setting must be there. Restore the file.",
             source, name);
  RunConfig run;
  put(run, fields);
  validate(run);
  return run;
}

std::vector<Difference> differences(const RunConfig& before, const RunConfig& after) {
  const Json a = flat(before), b = flat(after);
  std::vector<Difference> all;
  for (const auto& [name, x] : a.items())
    if (x != b.at(name)) all.push_back({name, text_of(x), text_of(b.at(name))});
  return all;
}

}  // namespace tg
