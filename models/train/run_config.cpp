#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/io/json.h>
#include <tapegrad/models/io/nearest.h>
#include <tapegrad/models/train/run_config.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace tg {
namespace {

constexpr std::pair<std::string_view, std::string_view> kModelHelp[] = {
    {"vocab_size", "token ids of the model, 0: those of the tokenizer"},
    {"context", "tokens that the model sees at once"},
    {"layers", "transformer blocks"},
    {"heads", "attention heads; they divide the width"},
    {"kv_heads", "heads of keys and values; they divide the heads, 0: as many"},
    {"width", "size of the residual stream"},
    {"ff_width", "hidden size of the MLPs, 0: 4 * width"},
    {"positions", "learned or rope"},
    {"rope_theta", "base of the angles of rope"},
    {"norm", "layer_norm or rms_norm"},
    {"norm_affine", "norms scale, and shift with bias"},
    {"activation", "gelu, gelu_tanh, silu or swiglu"},
    {"bias", "biases in Linear layers and LayerNorm"},
    {"tied_head", "the head's weight is the token table"},
    {"dropout", "part of the activations dropped in training"},
    {"norm_eps", "added to the variance in norms"},
    {"init", "gpt2 or xavier"},
    {"init_std", "standard deviation of new weights of init gpt2"},
};

// Named values in a table, for lookup and for lists.
template <class T> struct Named {
  std::string_view name;
  T (*make)();
};
GptConfig gpt2(int64_t layers, int64_t heads, int64_t width) {  // Radford et al. 2019
  return {.vocab_size = 50257,
          .context = 1024,
          .layers = layers,
          .heads = heads,
          .width = width,
          .activation = Activation::gelu_tanh,
          .bias = true,
          .dropout = 0.1};
}
GptConfig doc004(int64_t layers, int64_t heads, int64_t width) {
  return {.vocab_size = 10000,
          .context = 128,
          .layers = layers,
          .heads = heads,
          .width = width,
          .norm = NormKind::rms_norm,
          .tied_head = false};
}
GptConfig doc003() {
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
    {"doc004-small", [] { return doc004(12, 12, 768); }},
    {"doc004-medium", [] { return doc004(24, 16, 1024); }},
    {"doc003-2.7b", doc003},
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
    {"demo",  // a byte model in about a minute
     [] {
       RunConfig run;
       run.model.context = 128;
       run.train.batch = 8;
       run.train.max_steps = 1500;
       run.train.lr = 2e-3;
       run.train.min_lr = 2e-4;
       run.train.warmup = 50;
       run.train.eval_every = 250;
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

// Every setting with its value, model first.
Json flat(const RunConfig& run) {
  Json fields = Json::parse(to_json(run.model));
  visit_train_fields(run.train, [&](const char* name, const auto& x, const char*) { fields[name] = x; });
  fields["tokenizer"] = run.tokenizer;
  return fields;
}
std::vector<std::string_view> known_names(const Json& fields) {
  std::vector<std::string_view> names;
  for (const auto& [name, x] : fields.get_ref<const Json::object_t&>()) names.push_back(name);
  return names;
}
const char* kind_of(const Json& x) {
  return x.is_boolean() ? "BOOL" : x.is_number_integer() ? "INT" : x.is_number() ? "NUMBER" : "NAME";
}

void expect(bool ok, std::string_view name, const Json& x, std::string_view rule) {
  TG_CHECK(ok, value, "[config] {} is {}. It must be {}.", name, x.dump(-1, ' ', false, Json::error_handler_t::replace),
           rule);
}
void read(std::string_view name, const Json& x, int64_t& to) {
  expect(x.is_number_integer() && !(x.is_number_unsigned() && x.get<uint64_t>() > uint64_t(INT64_MAX)), name, x,
         "an integer");
  to = x.get<int64_t>();
}
void read(std::string_view name, const Json& x, uint64_t& to) {
  expect(x.is_number_unsigned() || (x.is_number_integer() && x.get<int64_t>() >= 0), name, x,
         "an integer of at least 0");
  to = x.get<uint64_t>();
}
void read(std::string_view name, const Json& x, std::string& to) {
  expect(x.is_string(), name, x, "a name in quotes");
  to = x.get<std::string>();
}
void read(std::string_view name, const Json& x, double& to) {
  expect(x.is_number(), name, x, "a number");
  to = x.get<double>();
}

Json parse_object(std::string_view text, const std::string& source) {
  Json object = parse_json(text, "config", source);
  TG_CHECK(object.is_object(), value, "[config] {} holds {}. It must be an object: {{\"layers\": 4, ...}}.", source,
           object.type_name());
  return object;
}

void collect(const Json& object, const Json& fields, const std::string& source, std::vector<Setting>& to) {
  for (const auto& [key, x] : object.items()) {
    if ((key == "model" || key == "train") && x.is_object()) {
      collect(x, fields, source, to);
    } else if (key == "tokenizer" && x.is_object()) {  // as a model's config.json has it, vocabulary and all
      const Json type = x.value("type", Json());
      TG_CHECK(type == "characters" || type == "bytes", value,
               "[config] {}: the tokenizer's type is {}. It must be \"bytes\" or \"characters\".", source, type.dump());
      to.push_back({key, type == "characters" ? "\"char\"" : "\"byte\""});
    } else if (key == "tokenizer" && x.is_null()) {  // trained on token ids
      continue;
    } else {
      TG_CHECK(fields.contains(key), value, "[config] {}: '{}' is not known.{} The keys are {}.", source, key,
               did_you_mean(key, known_names(fields)), listed(known_names(fields)));
      to.push_back({key, x.dump()});
    }
  }
}

}  // namespace

RunConfig preset(std::string_view name) { return make_named("preset", name, kPresets); }
GptConfig arch(std::string_view name) { return make_named("arch", name, kArchs); }
std::string preset_names() { return listed(names_of(kPresets)); }
std::string arch_names() { return listed(names_of(kArchs)); }

std::vector<RunField> run_fields() {
  std::vector<RunField> list;
  const RunConfig run;
  const Json fields = flat(run);
  const auto add = [&](std::string_view name, std::string_view help) {
    const Json& x = fields.at(std::string(name));
    list.push_back({std::string(name), kind_of(x), x.is_string() ? x.get<std::string>() : x.dump(), std::string(help)});
  };
  for (const auto& [name, help] : kModelHelp) add(name, help);
  visit_train_fields(run.train, [&](const char* name, const auto&, const char* help) { add(name, help); });
  add("tokenizer", "byte, or char: the characters of the text");
  TG_CHECK(list.size() == fields.size(), internal, "[config] {} settings, {} of them with a help text.", fields.size(),
           list.size());
  return list;
}

Setting setting_from_word(std::string_view name, std::string_view word) {
  const Json fields = flat(RunConfig());
  const auto field = fields.find(name);
  TG_CHECK(field != fields.end(), value, "[config] there is no setting '{}'.{}", name,
           did_you_mean(name, known_names(fields)));
  if (field->is_string()) return {std::string(name), Json(word).dump(-1, ' ', false, Json::error_handler_t::replace)};
  Json x = Json::parse(word, nullptr, false);
  if (field->is_number_float()) {  // more spellings than JSON: .5
    double number = NAN;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    x = error == std::errc() && end == word.data() + word.size() && std::isfinite(number) ? Json(number) : Json();
  }
  const bool fits = field->is_boolean()          ? x.is_boolean()
                    : field->is_number_integer() ? x.is_number_integer()
                                                 : x.is_number();
  TG_CHECK(fits, value, "[config] {} is '{}'. It must be {}.", name, word,
           field->is_boolean()          ? "true or false"
           : field->is_number_integer() ? "a whole number"
                                        : "a number");
  return {std::string(name), x.dump()};
}

std::vector<Setting> settings_from_json(std::string_view text, const std::string& source) {
  std::vector<Setting> settings;
  collect(parse_object(text, source), flat(RunConfig()), source, settings);
  std::set<std::string_view> names;
  for (const Setting& s : settings)
    TG_CHECK(names.insert(s.name).second, value, "[config] {}: '{}' comes twice, in two groups. Each key stands once.",
             source, s.name);
  return settings;
}

RunConfig with_settings(const RunConfig& base, std::span<const Setting> settings) {
  Json fields = flat(base);
  for (const Setting& s : settings) {
    TG_CHECK(fields.contains(s.name), value, "[config] there is no setting '{}'.{}", s.name,
             did_you_mean(s.name, known_names(fields)));
    fields[s.name] = parse_json(s.json, "config", s.name);
  }
  RunConfig run;
  visit_train_fields(run.train, [&](const char* name, auto& x, const char*) { read(name, fields.at(name), x); });
  run.train.validate();
  expect(fields["tokenizer"] == "byte" || fields["tokenizer"] == "char", "tokenizer", fields["tokenizer"],
         "byte or char");
  run.tokenizer = fields["tokenizer"].get<std::string>();

  Json model = Json::parse(to_json(run.model));  // for its names
  for (const auto& [name, x] : model.items()) model[name] = fields.at(name);
  const bool of_tokenizer = model["vocab_size"] == 0;
  if (of_tokenizer) model["vocab_size"] = 1;  // passes the checks of the rest
  run.model = gpt_config_from_json(model.dump());
  if (of_tokenizer) run.model.vocab_size = 0;
  return run;
}

std::string to_json(const TrainConfig& config) {
  Json fields;
  visit_train_fields(config, [&](const char* name, const auto& x, const char*) { fields[name] = x; });
  return fields.dump(2);
}

std::string to_json(const RunConfig& run) {
  Json all;
  all["model"] = Json::parse(to_json(run.model));
  all["train"] = Json::parse(to_json(run.train));
  all["tokenizer"] = run.tokenizer;
  return all.dump(2);
}
RunConfig run_config_from_json(std::string_view text, const std::string& source) {
  const std::vector<Setting> settings = settings_from_json(text, source);
  std::set<std::string_view> there;
  for (const Setting& s : settings)
    TG_CHECK(there.insert(s.name).second, value, "[config] {}: '{}' comes twice. Each key stands once.", source,
             s.name);
  const Json fields = flat(RunConfig());
  for (const std::string_view name : known_names(fields))
    TG_CHECK(there.contains(name), value, "[config] {} has no '{}'. Every setting must be there. Restore the file.",
             source, name);
  return with_settings(RunConfig(), settings);
}

double least_bytes(const RunConfig& run) {
  const GptConfig& m = run.model;
  const double v = double(m.vocab_size), c = double(m.width), layers = double(m.layers);
  const double ff = m.ff_width ? double(m.ff_width) : 4 * c;
  const double parameters = v * c + layers * (2 * c * c + 2 * c * ff);
  const double tokens = double(run.train.batch) * double(m.context);
  const double activations = tokens * (2 * v + 2 * c * layers);  // gone when all gradients are there
  return 12 * parameters + std::max(4 * parameters, activations) + 8 * tokens * double(run.train.accumulate);
}

std::vector<Difference> differences(const RunConfig& before, const RunConfig& after) {
  const Json a = flat(before), b = flat(after);
  std::vector<Difference> all;
  for (const auto& [name, x] : a.items())
    if (x != b.at(name)) all.push_back({name, x.dump(), b.at(name).dump()});
  return all;
}

}  // namespace tg
