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

/// A chat template of Hugging Face: a program in Jinja 3.1 that renders a conversation, with the environment of
/// transformers' `apply_chat_template()`. Copies share the parsed program.
class JinjaTemplate {
 public:
  /// Parses UTF-8 text; `name` is for messages. Syntax, tags, filters and tests that are not supported are an Error
  /// that has the line.
  explicit JinjaTemplate(std::string text, std::string name = "chat template");

  /// The text, and the byte ranges [begin, end) of it that `{% generation %}` encloses, in order.
  struct Rendered {
    std::string text;
    std::vector<std::pair<size_t, size_t>> generated;
  };
  /// `context` is an object: the variables. An Error where Jinja has one, with the message of `raise_exception()`, and
  /// for more than the permitted nesting, work or memory: no template takes more than seconds.
  Rendered render(const Json& context) const;
  /// Whether the program reads this variable, key or attribute, by name or by a literal.
  bool mentions(std::string_view name) const;
  const std::string& text() const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace tg
