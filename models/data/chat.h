/// @file
/// Chat formats: how the messages of a conversation become one text. A format is data, not a program as the Jinja
/// templates of Hugging Face are; jinja_of() writes such a template.
#pragma once
#include <tapegrad/models/config/config_json.h>
#include <tapegrad/models/data/tokenizer.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// A message of a conversation. Its role is "system", "user" or "assistant".
struct Message {
  std::string role, content;
};

/// The text around messages. A message is prefix, content, suffix; an assistant's is prefix, content, stop, suffix.
struct ChatFormat {
  /// The text around one role's contents.
  struct Turn {
    std::string prefix = {}, suffix = {};
  };
  std::string begin = {};           ///< before the first message
  std::string default_system = {};  ///< the system message of conversations without one; empty: none
  Turn system = {}, user = {}, assistant = {};
  std::string stop = {};        ///< ends a reply; empty: the tokenizer's end of text
  std::string input = "\n\n";   ///< between an instruction and its input
  bool system_in_user = false;  ///< the system message follows user.prefix
};
/// The fields of a file.
template <class F> void visit_fields(ChatFormat& c, F&& f) {
  f("begin", c.begin), f("default_system", c.default_system);
  f("system_prefix", c.system.prefix), f("system_suffix", c.system.suffix);
  f("user_prefix", c.user.prefix), f("user_suffix", c.user.suffix);
  f("assistant_prefix", c.assistant.prefix), f("assistant_suffix", c.assistant.suffix);
  f("stop", c.stop), f("input", c.input), f("system_in_user", c.system_in_user);
}

/// The format with this name: chatml, qwen (chatml with the default system message of Qwen2.5), llama3, zephyr,
/// mistral, alpaca or plain. A name with a dot or slash is the path of a JSON file: an object with fields of
/// visit_fields(), "" by default. An Error names the key.
ChatFormat chat_format(const std::string& name_or_path);
/// The Jinja template in a folder's chat_template.jinja or tokenizer_config.json, or "".
std::string chat_template_of(const std::string& folder);
/// The name of the format that a Jinja template is jinja_of(), else has the markers of, or nothing.
std::optional<std::string> guess_chat_format(std::string_view chat_template);
/// A Jinja template for Hugging Face's apply_chat_template(): same text, with replies and stop inside {% generation %}.
/// An empty stop is `eos_token`.
std::string jinja_of(const ChatFormat&);

/// A part of a rendered conversation.
struct ChatPart {
  std::string text;
  bool marker = false;  ///< text of the format, not a message's content
  int64_t reply = -1;   ///< the assistant's message that this belongs to
};
/// The parts of a conversation in order; add_generation_prompt appends the assistant's prefix. An Error unless the
/// roles are: optionally system, then user and assistant in turns.
std::vector<ChatPart> chat_parts(const ChatFormat&, std::span<const Message>, bool add_generation_prompt = false);
/// The text of chat_parts().
std::string render(const ChatFormat&, std::span<const Message>, bool add_generation_prompt = false);
/// The ids of chat_parts(), each encoded separately: special tokens are parsed in markers and are text in contents.
std::vector<int64_t> encode_chat(const Tokenizer&, const ChatFormat&, std::span<const Message>,
                                 bool add_generation_prompt = true);

}  // namespace tg
