// The configuration of a Gpt as JSON text, as it stands in the files of a model. The fields are those of GptConfig,
// under the same names; norm, activation, positions and init are written by name. For checkpoints and the command line.
#pragma once
#include <tapegrad/models/gpt/gpt.h>

#include <string>
#include <string_view>

namespace tg {

// An object with every field, two spaces of indentation.
std::string to_json(const GptConfig&);
struct ConfigText {
  std::string name = "the text";  // what messages call it
  bool every_field = false;       // a field that is not there is an Error, as in files; else it keeps its default
};
// The inverse. An Error names an unknown key and the known one nearest to it, a key that comes twice, a value of the
// wrong type or one that GptConfig::validate() refuses, and what is no JSON.
GptConfig gpt_config_from_json(std::string_view text, const ConfigText& = {});

}  // namespace tg
