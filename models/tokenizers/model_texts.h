// Texts of a model: the files of its folder, or what a GGUF file has of them.
#pragma once
#include <tapegrad/core/io/json.h>

#include <optional>
#include <string>
#include <string_view>

namespace tg::detail {

// The text of a file in a model's folder, or nothing. A GGUF file has tokenizer.json, tokenizer_config.json,
// generation_config.json and chat_template.jinja, made from its keys. An Error for a GGUF file whose tokenizer has no
// equal tokenizer.json.
std::optional<std::string> text_in(const std::string& model, std::string_view name);
// The JSON in it, or null. Errors begin with `op`.
Json json_in(const std::string& model, std::string_view name, std::string_view op);

}  // namespace tg::detail
