#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/data/chat.h>
#include <tapegrad/models/tokenizers/model_texts.h>
#include <tapegrad/models/tokenizers/regex.h>

#include <algorithm>
#include <array>

namespace tg {
namespace {
constexpr const char* kSpace = " \t\r\n";
constexpr std::string_view kFormats[] = {"chatml", "qwen", "llama3", "zephyr", "mistral", "alpaca", "plain"};

// A message is `begin`, its role, `middle`, its content and `end`.
std::string tagged(const std::string& begin, const std::string& middle, const std::string& end) {
  return "{% for m in messages %}{{ '" + begin + "' + m['role'] + '" + middle + "' + m['content'] + '" + end +
         "' }}{% endfor %}{% if add_generation_prompt %}{{ '" + begin + "assistant" + middle + "' }}{% endif %}";
}
std::string built_in(size_t place) {
  const std::string chatml = tagged("<|im_start|>", "\\n", "<|im_end|>\\n"),
                    each = "{% for m in turns %}{% if m['role'] == 'user' %}";
  return "{% set given = messages[0]['role'] == 'system' %}{% set turns = messages[1:] if given else messages %}{% if "
         "not turns %}{{ raise_exception('A conversation needs a message of the user.') }}{% endif %}{% for m in turns "
         "%}{% if m['role'] != ('user' if loop.index0 % 2 == 0 else 'assistant') %}{{ raise_exception('After an "
         "optional system message, user and assistant take turns: ' + m['role'] + ' is out of turn.') }}{% endif %}{% "
         "endfor %}" +
         std::array{
             chatml,
             "{% if not given %}{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
             "assistant.<|im_end|>\\n' }}{% endif %}" +
                 chatml,
             "{{ '<|begin_of_text|>' }}" + tagged("<|start_header_id|>", "<|end_header_id|>\\n\\n", "<|eot_id|>"),
             tagged("<|", "|>\\n", "</s>\\n"),
             "{{ '<s>' }}" + each +
                 "{{ '[INST] ' + (messages[0]['content'] + '\\n\\n' if given and loop.first else '') + m['content'] + "
                 "' [/INST]' }}{% else %}{{ m['content'] + '</s>' }}{% endif %}{% endfor %}",
             "{{ (messages[0]['content'] if given else 'Below is an instruction that describes a task. Write a "
             "response that appropriately completes the request.') + '\\n\\n' }}" +
                 each +
                 "{{ '### Instruction:\\n' + m['content'] }}{% else %}{{ '### Response:\\n' + m['content'] }}"
                 "{{ eos_token }}{% endif %}{{ '\\n\\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}",
             std::string("{% for m in messages %}{{ m['content'] }}"
                         "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}")}[place];
}

// Like transformers: no nulls, thoughts under two names.
Json normalized(const Json& message) {
  Json all = Json::object();
  const Json* thought = nullptr;
  for (const char* name : {"reasoning", "thinking", "reasoning_content"})
    if (const Json* x = find_value(message, name)) thought = x;
  if (thought) all["thinking"] = *thought;
  for (const auto& [key, x] : message.items())
    if (!x.is_null()) all[key] = x;
  if (thought) all["reasoning_content"] = *thought;
  return all;
}
// x with f() applied to each text and key.
template <class F> Json mapped(const Json& x, const F& f) {
  if (x.is_string()) return f(x.get<std::string>());
  if (!x.is_array() && !x.is_object()) return x;
  Json all = x.is_array() ? Json::array() : Json::object();
  if (x.is_array())
    for (const Json& e : x) all.push_back(mapped(e, f));
  else
    for (const auto& [key, e] : x.items()) all[f(key)] = mapped(e, f);
  return all;
}
// Marks special tokens in messages; the tokenizer drops this noncharacter.
constexpr const char* kMark = "\uFFFF";
Json prepared(const Json& conversation, const Tokenizer* tokenizer) {
  Json all = conversation, messages = Json::array();
  for (const Json& m : conversation.at("messages")) messages.push_back(normalized(m));
  TG_CHECK(!messages.empty(), value, "[chat] there are no messages. A conversation has one: add it.");
  all["messages"] = std::move(messages);
  return !tokenizer ? all : mapped(all, [&](std::string text) {
    TG_CHECK(text.find(kMark) == text.npos, value,
             "[chat] a message has the noncharacter U+FFFF, which marks special tokens as text. Leave it out.");
    for (bool again = true; std::exchange(again, false);) {
      const std::vector<SpecialSpan> spans = tokenizer->specials(text);
      for (auto s = spans.rbegin(); s != spans.rend(); ++s) {
        size_t second = s->at + 1;  // one-character tokens stay
        while (second < s->end && (uint8_t(text[second]) & 0xC0) == 0x80) ++second;
        if (second < s->end) text.insert(second, kMark), again = true;
      }
    }
    return text;
  });
}
template <class F> auto of_template(const F& f) {
  return detail::explained(f, [](const Error&) { return "    --chat-format sets another template"; });
}
}  // namespace

ChatTemplate::ChatTemplate(std::string text, std::string name, Json tokens)
    : jinja_(of_template([&] { return JinjaTemplate(std::move(text), "chat template " + name); })),
      name_(std::move(name)),
      tokens_(std::move(tokens)) {}
ChatTemplate ChatTemplate::named(const std::string& name, Json tokens) {
  if (name.find_first_of("./") == name.npos)
    return ChatTemplate(built_in(detail::known_place("chat", name, kFormats)), name, std::move(tokens));
  const MappedFile file(name);
  TG_CHECK(!detail::json_or_null(file.text()).is_object(), value,
           "[chat] {} is JSON, as chat formats of earlier versions were. A chat template is Jinja. Pass a FILE.jinja, "
           "such as the chat_template.jinja of an adapter that was trained with it.",
           name);
  return ChatTemplate(std::string(file.text()), name, std::move(tokens));
}

JinjaTemplate::Rendered ChatTemplate::rendered(const Json& conversation, bool prompt, size_t messages) const {
  Json all = tokens_;
  all["tools"] = nullptr, all["documents"] = nullptr;
  for (const auto& [key, x] : conversation.items())
    if (key != "messages") all[key] = x;
  Json& some = all["messages"] = Json::array();
  for (size_t i = 0; i < std::min(messages, conversation["messages"].size()); ++i)
    some.push_back(conversation["messages"][i]);
  all["add_generation_prompt"] = prompt;
  return of_template([&] { return jinja_.render(all); });
}
std::string ChatTemplate::render(const Json& conversation, bool add_generation_prompt) const {
  return rendered(prepared(conversation, nullptr), add_generation_prompt, SIZE_MAX).text;
}
std::vector<int64_t> ChatTemplate::encode(const Tokenizer& tokenizer, const Json& conversation,
                                          bool add_generation_prompt) const {
  return tokenizer.encode(rendered(prepared(conversation, &tokenizer), add_generation_prompt, SIZE_MAX).text,
                          {.parse_special = true, .dropped = kMark});
}

ChatTemplate::Bytes ChatTemplate::reply(const Json& conversation, size_t message, std::string_view whole,
                                        std::span<const SpecialSpan> special) const {
  const size_t begin = [&] {
    const std::string before = rendered(conversation, true, message).text;
    TG_CHECK(whole.starts_with(before), value,
             "[chat] before message {} the chat template {} makes another text with the reply than without it, so the "
             "begin of the reply is unknown. Put {{% generation %}} and {{% endgeneration %}} around replies in a copy "
             "of the template, and pass it by --chat-format.",
             message, name_);
    return before.size();
  }();
  const Json &m = conversation["messages"][message], *calls = find_value(m, "tool_calls");
  auto stop = std::ranges::lower_bound(special, begin, {}, &SpecialSpan::at);
  std::string text = m.member("content").text();
  const std::string_view front = whole.substr(0, stop == special.end() ? whole.size() : stop->at);
  if (front.find(text, begin) == front.npos)
    text.erase(text.find_last_not_of(kSpace) + 1), text.erase(0, text.find_first_not_of(kSpace));
  const size_t at = front.find(text, begin), end = at == front.npos ? begin : at + text.size();  // range of the content
  if (stop != special.end() && !calls && whole.find_first_not_of(kSpace, end) == stop->at) return {begin, stop->end};
  const std::string through = rendered(conversation, false, message + 1).text;
  const size_t most = whole.starts_with(through) ? through.size() : whole.size();
  if (calls)  // calls may begin with a special token
    while (stop != special.end() && stop + 1 != special.end() && stop[1].end <= most) ++stop;
  return {begin, stop != special.end() && stop->end <= most ? stop->end : end > begin ? end : most};
}
ChatTemplate::Tokens ChatTemplate::example(const Tokenizer& tokenizer, const Json& conversation,
                                           const std::vector<bool>& counts) const {
  const Json talk = prepared(conversation, &tokenizer), &messages = talk["messages"];
  const auto [text, generated] = rendered(talk, false, SIZE_MAX);
  const std::vector<SpecialSpan> special = tokenizer.specials(text);
  const auto replies = size_t(std::ranges::count_if(messages, [](const Json& m) { return m["role"] == "assistant"; }));
  std::vector<Bytes> ranges;
  if (!generated.empty() && size_t(std::ranges::count(counts, true)) == replies)
    ranges = generated;
  else
    for (size_t i = 0, k = 0; i < messages.size(); k += messages[i++]["role"] == "assistant")
      if (counts[i]) ranges.push_back(generated.size() == replies ? generated[k] : reply(talk, i, text, special));
  Tokens r;
  const auto encoded = [&](size_t begin, size_t end) {
    return tokenizer.encode(std::string_view(text).substr(begin, end - begin),
                            {.parse_special = true, .dropped = kMark});
  };
  auto range = ranges.begin();
  // Parts begin with special tokens, so the ids equal those of the whole text.
  for (size_t k = 0, begin = 0, end; begin < text.size(); begin = end) {
    while (k < special.size() && special[k].begin <= begin) ++k;
    end = k < special.size() ? special[k].begin : text.size();
    const std::vector<int64_t> ids = encoded(begin, end);
    std::vector<bool> in(ids.size());
    // Number of tokens before a byte; `touched` includes the token of that byte.
    const auto place = [&](size_t at, bool touched) {
      if (at <= begin || at >= end) return at <= begin ? 0 : std::ssize(ids);
      const std::vector<int64_t> some = encoded(begin, at);
      const ptrdiff_t same = std::ranges::mismatch(some, ids).in1 - some.begin();
      return std::min(same + (touched && same < std::ssize(some)), std::ssize(ids));
    };
    for (; range != ranges.end() && range->first < end; ++range) {
      std::fill(in.begin() + place(range->first, false), in.begin() + place(range->second, true), true);
      if (range->second > end) break;
    }
    r.ids.insert(r.ids.end(), ids.begin(), ids.end()), r.counts.insert(r.counts.end(), in.begin(), in.end());
  }
  return r;
}

ChatTemplate::Stop ChatTemplate::stop(const Tokenizer& tokenizer) const {
  const Json talk = detail::parse_json(R"({"messages": [{"role": "user", "content": "1+1?"},
                                                {"role": "assistant", "content": "2!"}]})",
                                       "chat", "");
  try {
    const auto [text, generated] = rendered(talk, false, SIZE_MAX);
    const std::vector<SpecialSpan> special = tokenizer.specials(text);
    const Bytes bytes = generated.empty() ? reply(talk, 1, text, special) : generated[0];
    const auto last = std::ranges::lower_bound(special, bytes.first, {}, &SpecialSpan::at);
    if (last != special.end() && (last->end <= bytes.second || last->at == bytes.second))
      return {text.substr(last->at, last->end - last->at)};
    const size_t at = text.find_first_not_of(kSpace, text.find("2!", bytes.first) + 2);
    if (at != text.npos && text[at] == '<' && text.find('>', at) < text.find_first_of(kSpace, at))
      return {"", text.substr(at, text.find('>', at) + 1 - at)};
  } catch (const Error&) {  // the template refuses it
  }
  return {};
}

std::string detail::chat_template_of(const std::string& folder) {
  if (const auto text = text_in(folder, "chat_template.jinja")) return *text;
  const Json config = json_in(folder, "tokenizer_config.json", "chat"), &found = config.member("chat_template");
  for (const Json& t : found)
    if (t.contains("template") && t.member("name") == Json("default")) return t["template"].text();
  return found.text();
}
Json detail::special_tokens_of(const std::vector<std::string>& folders, const Tokenizer& tokenizer) {
  const int64_t end = tokenizer.end_of_text();
  Json all = {{"eos_token", end >= 0 ? tokenizer.decode(std::vector{end}) : ""}};
  for (const std::string& folder : folders)
    for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
      const Json file = json_in(folder, name, "chat");
      if (!file.is_object()) continue;
      for (const auto& [key, x] : file.items()) {
        if (!key.ends_with("_token") || key.starts_with("add_")) continue;
        const Json& text = x.is_object() ? x.member("content") : x;
        if (text.is_string()) all[key] = text;
        if (x.is_null()) all.erase(key);
      }
    }
  return all;
}
std::string detail::without_generation(std::string text) {
  static const Regex kTags(R"(\{%[\-+]?\s{0,99}(?:end)?generation\s{0,99}[\-+]?%\})");
  std::string to;
  kTags.split(text, [&](size_t begin, size_t end, bool matched) {
    std::string part = text.substr(begin, end - begin);
    const size_t at = part.find_first_of("eg"), n = part.find("generation") + 10 - at;
    to += matched ? part.replace(at, n, part[at] == 'e' ? "endif" : "if true") : part;
  });
  return to;
}

}  // namespace tg
