#include <tapegrad/models/gpt/config_json.h>

namespace tg {

std::string to_json(const GptConfig& config) { return to_json<GptConfig>(config); }

GptConfig gpt_config_from_json(std::string_view text, const ConfigText& source) {
  ConfigText named = source;
  named.op = "gpt_config";
  return config_from_json<GptConfig>(text, named);
}

}  // namespace tg
