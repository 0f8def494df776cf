/// @file
/// Chat templates: how the messages of a conversation become one text, and its tokens.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/jinja/jinja.h>
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg {

/// A chat template of Hugging Face: Jinja that turns a conversation into a text. A conversation is a JSON object with
/// "messages", a list of {"role", "content"}, and the other variables of the template, such as "tools".
class ChatTemplate {
 public:
  /// `tokens` has bos_token, eos_token and so on, as special_tokens_of() reads them; `name` stands in messages. An
  /// Error if the text is no template.
  explicit ChatTemplate(std::string text, std::string name = "of this program", Json tokens = Json::object());
  /// One that is built in: chatml, qwen (chatml with the default system message of Qwen2.5), llama3, zephyr, mistral,
  /// alpaca or plain; or, with a dot or slash in its name, that of a file.
  static ChatTemplate named(const std::string& name_or_path, Json tokens = Json::object());

  const std::string& text() const { return jinja_.text(); }
  const std::string& name() const { return name_; }
  bool mentions(std::string_view name) const { return jinja_.mentions(name); }
  /// The text that transformers' apply_chat_template() makes. An Error carries the message of the template.
  std::string render(const Json& conversation, bool add_generation_prompt = false) const;
  /// The ids of apply_chat_template(), but special tokens that a message spells are text.
  std::vector<int64_t> encode(const Tokenizer&, const Json& conversation, bool add_generation_prompt = true) const;
  /// Ids, and which belong to replies that count.
  struct Tokens {
    std::vector<int64_t> ids;
    std::vector<bool> counts;
  };
  /// The ids of a whole conversation, where the messages with `counts` are replies to learn. A reply is what the
  /// template has in {% generation %}. Without this tag it begins where the messages before it and the prompt of a
  /// reply end, and ends with the first special token after it, or else with its content. An Error if the whole text
  /// does not begin by these messages.
  Tokens example(const Tokenizer&, const Json& conversation, const std::vector<bool>& counts) const;
  /// The special token that ends a reply, or text of its look that the tokenizer does not know, or neither.
  struct Stop {
    std::string token = {}, missing = {};
  };
  Stop stop(const Tokenizer&) const;

 private:
  using Bytes = std::pair<size_t, size_t>;
  JinjaTemplate::Rendered rendered(const Json& conversation, bool add_generation_prompt, size_t messages) const;
  Bytes reply(const Json& conversation, size_t message, std::string_view whole, std::span<const SpecialSpan>) const;
  JinjaTemplate jinja_;
  std::string name_;
  Json tokens_;
};

/// The Jinja template in a folder's chat_template.jinja or tokenizer_config.json, or "".
std::string chat_template_of(const std::string& folder);
/// The texts of bos_token, eos_token and so on in the files of a tokenizer's folders, later folders first; without
/// files eos_token is the tokenizer's end of text, or "".
Json special_tokens_of(const std::vector<std::string>& folders, const Tokenizer&);
/// A template with the same text for programs that do not know {% generation %}, a tag of transformers.
std::string without_generation(std::string chat_template);

}  // namespace tg
