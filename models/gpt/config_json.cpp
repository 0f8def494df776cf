#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/io/json.h>
#include <tapegrad/models/io/nearest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace tg {
namespace {

// The one list of fields, for reading and for writing.
template <class Config, class F> void for_fields(Config& c, F f) {
  f("vocab_size", c.vocab_size);
  f("context", c.context);
  f("layers", c.layers);
  f("heads", c.heads);
  f("kv_heads", c.kv_heads);
  f("width", c.width);
  f("ff_width", c.ff_width);
  f("positions", c.positions);
  f("rope_theta", c.rope_theta);
  f("norm", c.norm);
  f("norm_affine", c.norm_affine);
  f("activation", c.activation);
  f("bias", c.bias);
  f("tied_head", c.tied_head);
  f("dropout", c.dropout);
  f("norm_eps", c.norm_eps);
  f("init", c.init);
  f("init_std", c.init_std);
}

void expect(bool ok, std::string_view key, std::string_view type, const Json& j) {
  TG_CHECK(ok, value, "[gpt_config] '{}' is {}. It must be {}.", key, j.dump(), type);
}
void read(std::string_view key, const Json& j, int64_t& x) {
  const bool fits = j.is_number_integer() && !(j.is_number_unsigned() && j.get<uint64_t>() > uint64_t(INT64_MAX));
  expect(fits, key, "an integer", j);
  x = j.get<int64_t>();
}
void read(std::string_view key, const Json& j, double& x) {
  expect(j.is_number(), key, "a number", j);
  x = j.get<double>();
}
void read(std::string_view key, const Json& j, bool& x) {
  expect(j.is_boolean(), key, "true or false", j);
  x = j.get<bool>();
}
void read(std::string_view key, const Json& j, NormKind& x) {
  expect(j.is_string(), key, "the name of a norm in quotes", j);
  x = norm_from_name(j.get<std::string>());
}
void read(std::string_view key, const Json& j, Activation& x) {
  expect(j.is_string(), key, "the name of an activation in quotes", j);
  x = activation_from_name(j.get<std::string>());
}
void read(std::string_view key, const Json& j, Positions& x) {
  expect(j.is_string(), key, "the name of a kind of positions in quotes", j);
  x = positions_from_name(j.get<std::string>());
}
void read(std::string_view key, const Json& j, InitScheme& x) {
  expect(j.is_string(), key, "the name of an initialisation in quotes", j);
  x = init_from_name(j.get<std::string>());
}
template <class T> Json written(const T& x) {
  if constexpr (std::is_enum_v<T>)
    return name_of(x);
  else
    return x;
}
}  // namespace

std::string to_json(const GptConfig& config) {
  Json j;
  for_fields(config, [&](const char* key, const auto& x) { j[key] = written(x); });
  return j.dump(2);
}

GptConfig gpt_config_from_json(std::string_view text, const ConfigText& source) {
  const Json j = parse_json(text, "gpt_config", source.name);
  TG_CHECK(j.is_object(), value, "[gpt_config] {} holds {}. It must be an object: {{\"width\": 128, ...}}.",
           source.name, j.type_name());
  GptConfig config;
  std::vector<std::string_view> known;
  for_fields(config, [&](const char* key, auto& x) {
    known.push_back(key);
    const auto it = j.find(key);
    TG_CHECK(it != j.end() || !source.every_field, value,
             "[gpt_config] {} has no '{}'. A model's configuration states every field. Restore the file, or add what "
             "the model was made with.",
             source.name, key);
    if (it != j.end()) read(key, *it, x);
  });
  for (auto& [key, x] : j.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    TG_CHECK(false, value, "[gpt_config] '{}' is not known.{} The keys are {}.", key, did_you_mean(key, known),
             listed(known));
  }
  config.validate();
  return config;
}

}  // namespace tg
