#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/data/chat.h>

namespace tg {
namespace {
constexpr std::string_view kFormats[] = {"chatml", "qwen", "llama3", "zephyr", "mistral", "alpaca", "plain"},
                           kQwen = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

// By the place in kFormats.
ChatFormat built_in(size_t place) {
  const ChatFormat chatml{.system = {"<|im_start|>system\n", "<|im_end|>\n"},
                          .user = {"<|im_start|>user\n", "<|im_end|>\n"},
                          .assistant = {"<|im_start|>assistant\n", "\n"},
                          .stop = "<|im_end|>"};
  ChatFormat all[] = {
      chatml,
      chatml,
      {.begin = "<|begin_of_text|>",
       .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
       .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
       .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", ""},
       .stop = "<|eot_id|>"},
      {.system = {"<|system|>\n", "</s>\n"},
       .user = {"<|user|>\n", "</s>\n"},
       .assistant = {"<|assistant|>\n", "\n"},
       .stop = "</s>"},
      {.begin = "<s>", .system = {"", "\n\n"}, .user = {"[INST] ", " [/INST]"}, .stop = "</s>", .system_in_user = true},
      {.default_system = "Below is an instruction that describes a task. Write a response that appropriately "
                         "completes the request.",
       .system = {"", "\n\n"},
       .user = {"### Instruction:\n", "\n\n"},
       .assistant = {"### Response:\n", "\n\n"},
       .input = "\n\n### Input:\n"},
      {}};
  all[1].default_system = kQwen;
  return all[place];
}

// Throws unless the roles take turns.
void check_roles(std::span<const Message> messages) {
  const size_t first = !messages.empty() && messages[0].role == "system";
  TG_CHECK(messages.size() > first, value,
           "[chat] {} messages without one of the user. A conversation has one: add it.", messages.size());
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    TG_CHECK(role == "system" || role == "user" || role == "assistant", value,
             "[chat] message {} has the role '{}'. Roles are system, user and assistant.", i, role);
    const std::string_view turn = (i - first) % 2 == 0 ? "user" : "assistant";
    TG_CHECK(role == turn, value,
             "[chat] message {} is of the {}, and its turn is the {}'s. An optional system message is first; then user "
             "and assistant take turns.",
             i, role, turn);
  }
}

// A literal of Jinja, as of JSON.
std::string quoted(std::string_view text) { return text_of(Json(text)); }
// A statement that prints the sum of expressions.
std::string printed(std::initializer_list<std::string_view> expressions) {
  std::string sum;
  for (const std::string_view e : expressions)
    if (e != "\"\"") sum += (sum.empty() ? "" : " + ") + std::string(e);
  return sum.empty() ? "" : "{{- " + sum + " }}";
}
}  // namespace

ChatFormat chat_format(const std::string& name) {
  if (name.find_first_of("./") == name.npos) return built_in(known_place("chat", name, kFormats));
  const MappedFile file(name);
  return in_file(name, [&] { return config_from_json<ChatFormat>(file.text(), {.name = name, .op = "chat"}); });
}

std::string chat_template_of(const std::string& folder) {
  const std::string file = folder + "/chat_template.jinja", path = folder + "/tokenizer_config.json";
  if (folder.empty()) return "";
  if (path_exists(file)) return std::string(MappedFile(file).text());
  const Json config = path_exists(path) ? parse_json(MappedFile(path).text(), "chat", path, 64) : Json();
  const Json* found = config.is_object() ? config.find("chat_template") : nullptr;
  if (found && found->is_array()) {  // objects with "name" and "template"
    const auto named = std::ranges::find_if(*found, [](const Json& t) {
      return t.is_object() && t.contains("template") && t.contains("name") && t["name"] == Json("default");
    });
    found = named == found->end() ? nullptr : named->find("template");
  }
  return found && found->is_string() ? found->get<std::string>() : "";
}

std::optional<std::string> guess_chat_format(std::string_view chat_template) {
  constexpr std::pair<std::string_view, const char*> kMarkers[] = {{kQwen, "qwen"},
                                                                   {"<|im_start|>", "chatml"},
                                                                   {"<|start_header_id|>", "llama3"},
                                                                   {"<|user|>", "zephyr"},
                                                                   {"[INST]", "mistral"}};
  for (size_t i = 0; i < std::size(kFormats); ++i)
    if (chat_template == jinja_of(built_in(i))) return std::string(kFormats[i]);
  for (const auto& [marker, name] : kMarkers)
    if (chat_template.find(marker) != chat_template.npos) return name;
  return std::nullopt;
}

std::vector<ChatPart> chat_parts(const ChatFormat& f, std::span<const Message> messages, bool add_generation_prompt) {
  check_roles(messages);
  std::vector<ChatPart> parts;
  std::string marker = f.begin;  // joined up to the next content, as one text is encoded
  const auto end_marker = [&] {
    if (!marker.empty()) parts.push_back({std::exchange(marker, ""), true});
  };
  const auto content = [&](const std::string& text, int64_t reply) {
    end_marker();
    if (!text.empty()) parts.push_back({text, false, reply});
  };
  const bool given = messages[0].role == "system";
  const auto put_system = [&] {
    if (!given && f.default_system.empty()) return;
    marker += f.system.prefix;
    content(given ? messages[0].content : f.default_system, -1);
    marker += f.system.suffix;
  };
  if (!f.system_in_user) put_system();
  for (size_t i = given; i < messages.size(); ++i) {
    if (messages[i].role == "user") {
      marker += f.user.prefix;
      if (f.system_in_user && i == size_t(given)) put_system();
      content(messages[i].content, -1);
      marker += f.user.suffix;
    } else {
      marker += f.assistant.prefix;
      content(messages[i].content, int64_t(i));
      if (!f.stop.empty()) parts.push_back({f.stop, true, int64_t(i)});
      marker += f.assistant.suffix;
    }
  }
  if (add_generation_prompt) marker += f.assistant.prefix;
  end_marker();
  return parts;
}
std::string render(const ChatFormat& f, std::span<const Message> messages, bool add_generation_prompt) {
  std::string all;
  for (const ChatPart& p : chat_parts(f, messages, add_generation_prompt)) all += p.text;
  return all;
}
std::vector<int64_t> encode_chat(const Tokenizer& tokenizer, const ChatFormat& f, std::span<const Message> messages,
                                 bool add_generation_prompt) {
  std::vector<int64_t> all;
  for (const ChatPart& p : chat_parts(f, messages, add_generation_prompt))
    for (const int64_t id : tokenizer.encode(p.text, EncodeOptions{.parse_special = p.marker})) all.push_back(id);
  return all;
}

std::string jinja_of(const ChatFormat& f) {
  const std::string system = quoted(f.system.prefix) + " + system + " + quoted(f.system.suffix);
  const bool always = !f.default_system.empty();
  const auto if_system = [&](const std::string& also) {
    const std::string condition = always ? also : also + (also.empty() ? "given" : " and given");
    return condition.empty() ? printed({system}) : "{%- if " + condition + " %}" + printed({system}) + "{%- endif %}";
  };
  return "{%- set given = messages[0]['role'] == 'system' %}"
         "{%- set system = messages[0]['content'] if given else " +
         quoted(f.default_system) + " %}" + printed({quoted(f.begin)}) + (f.system_in_user ? "" : if_system("")) +
         "{%- for message in (messages[1:] if given else messages) %}"
         "{%- if message['role'] == ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
         "{%- if message['role'] == 'user' %}" +
         printed({quoted(f.user.prefix)}) + (f.system_in_user ? if_system("loop.first") : "") +
         printed({"message['content']", quoted(f.user.suffix)}) + "{%- else %}" +
         printed({quoted(f.assistant.prefix)}) + "{%- generation %}" +
         printed({"message['content']", f.stop.empty() ? "eos_token" : quoted(f.stop)}) + "{%- endgeneration %}" +
         printed({quoted(f.assistant.suffix)}) +
         "{%- endif %}{%- else %}{{- raise_exception('user and assistant take turns') }}{%- endif %}{%- endfor %}"
         "{%- if add_generation_prompt %}" +
         printed({quoted(f.assistant.prefix)}) + "{%- endif %}";
}

}  // namespace tg
