/// @file
/// Chat templates: texts and tokens of conversations.
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

/// A Jinja chat template of Hugging Face. A conversation is a JSON object with "messages", a list of {"role",
/// "content"}, and other variables such as "tools".
class ChatTemplate {
 public:
  /// `tokens` has bos_token, eos_token and so on (special_tokens_of()); messages have `name`. An Error for a wrong
  /// template.
  explicit ChatTemplate(std::string text, std::string name = "of this program", Json tokens = Json::object());
  /// A built-in one: chatml, qwen (chatml with the default system message of Qwen2.5), llama3, zephyr, mistral, alpaca
  /// or plain, or a file (name with a dot or slash).
  static ChatTemplate named(const std::string& name_or_path, Json tokens = Json::object());

  const std::string& text() const { return jinja_.text(); }
  const std::string& name() const { return name_; }
  bool mentions(std::string_view name) const { return jinja_.mentions(name); }
  /// Text of transformers' apply_chat_template(), or an Error with the template's message.
  std::string render(const Json& conversation, bool add_generation_prompt = false) const;
  /// The ids of apply_chat_template(), but special tokens in messages are text.
  std::vector<int64_t> encode(const Tokenizer&, const Json& conversation, bool add_generation_prompt = true) const;
  /// Ids and which ones count.
  struct Tokens {
    std::vector<int64_t> ids;
    std::vector<bool> counts;
  };
  /// The ids of a conversation whose messages with `counts` are replies to learn: the text in {% generation %}. Without
  /// this tag a reply begins after the earlier messages and the prompt, and ends with the first special token after it,
  /// else with its content. An Error if the text does not begin with the earlier messages.
  Tokens example(const Tokenizer&, const Json& conversation, const std::vector<bool>& counts) const;
  /// The special token that ends a reply, an unknown text that looks like one, or neither.
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

namespace detail {
/// The Jinja template in a folder's chat_template.jinja or tokenizer_config.json, or "".
std::string chat_template_of(const std::string& folder);
/// bos_token, eos_token and so on of a tokenizer's folders; later folders win. Default eos_token: its end of text or
/// "".
Json special_tokens_of(const std::vector<std::string>& folders, const Tokenizer&);
/// The same template without {% generation %}, a tag of transformers.
std::string without_generation(std::string chat_template);
}  // namespace detail

}  // namespace tg
