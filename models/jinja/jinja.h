/// @file
/// Chat templates of published models.
#pragma once
#include <tapegrad/core/io/json.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg {

/// A chat template of Hugging Face: Jinja 3.1 in the environment of transformers' `apply_chat_template()`. Copies share
/// the parsed program.
class JinjaTemplate {
 public:
  /// Parses UTF-8; messages have `name`. Unsupported syntax, tags, filters and tests are an Error with the line.
  explicit JinjaTemplate(std::string text, std::string name = "chat template");

  /// The text, and the byte ranges [begin, end) in `{% generation %}`, in order.
  struct Rendered {
    std::string text;
    std::vector<std::pair<size_t, size_t>> generated;
  };
  /// `context`: the variables. An Error like Jinja's, with `raise_exception()`'s message, and for too much nesting,
  /// work or memory: a template takes seconds at most.
  Rendered render(const Json& context) const;
  /// Whether the program reads this variable, key or attribute.
  bool mentions(std::string_view name) const;
  const std::string& text() const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace tg
