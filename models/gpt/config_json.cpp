#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/gpt/config_json.h>

#include <vector>

namespace tg {

std::string to_json(const GptConfig& config) {
  Json j;
  visit_gpt_fields(config, [&](const char* key, const auto& x, const char*) { j[key] = written(x); });
  return text_of(j, 2);
}

GptConfig gpt_config_from_json(std::string_view text, const ConfigText& source) {
  const Json j = parse_json(text, "gpt_config", source.name);
  TG_CHECK(j.is_object(), value, "[gpt_config] {} holds {}. It must be an object: {{\"width\": 128, ...}}.",
           source.name, j.type_name());
  GptConfig config;
  std::vector<std::string_view> known;
  visit_gpt_fields(config, [&](const char* key, auto& x, const char*) {
    known.push_back(key);
    const Json* it = j.find(key);
    TG_CHECK(it || !source.every_field, value,
             "[gpt_config] {} has no '{}'. A model's configuration states every field. Restore the file, or add what "
             "the model was made with.",
             source.name, key);
    if (it) read_field({"gpt_config", key}, *it, x);
  });
  check_keys("gpt_config", "", j, known);
  config.validate();
  return config;
}

}  // namespace tg
