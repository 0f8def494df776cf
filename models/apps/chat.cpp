// `tapegrad generate --chat`: a prompt loop with history.
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/generation.h>
#include <tapegrad/models/apps/process.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

namespace tg::apps {
namespace {

// A list of messages, and the ids before an answer to the last of them. The oldest turns go where they leave no room
// for it.
std::vector<int64_t> ask(const LoadedModel& m, const GenerateOptions& o, const ChatTemplate& chat, Json& messages) {
  const int64_t context = m.model.context(), room = std::min(o.most(), context / 2);
  const size_t first = o.system ? 1 : 0, all = messages.size();  // message after the system's
  std::vector<int64_t> ids = chat.encode(*m.tokenizer, {{"messages", messages}});
  while (std::ssize(ids) + room > context && messages.size() > first + 1) {
    Json kept = Json::array();
    for (size_t i = 0; i < messages.size(); ++i)
      if (i < first || i >= first + 2) kept.push_back(messages[i]);
    messages = std::move(kept);
    ids = chat.encode(*m.tokenizer, {{"messages", messages}});
  }
  TG_CHECK(std::ssize(ids) < context, value,
           "[generate] the message and its format have {} tokens, and the context is {}. It must be longer than they "
           "are. Shorten the message.",
           ids.size(), context);
  if (all > messages.size())
    print_note("the {} oldest messages are forgotten: the context is {}", all - messages.size(),
               counted(context, "token"));
  return ids;
}

}  // namespace

int chat(const LoadedModel& m, GenerateOptions o) {
  const ChatTemplate chat = chat_template_for("generate", o.chat_format, o.adapter, o.model, *m.tokenizer);
  const auto message = [](const char* role, const std::string& content) {
    return Json{{"role", role}, {"content", content}};
  };
  Json messages = Json::array();
  if (o.system) messages.push_back(message("system", *o.system));
  if (const auto id = special_token(*m.tokenizer, chat.stop(*m.tokenizer).token)) o.stop_tokens.push_back(*id);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const auto mark = [&](const char* text) {
    if (terminal) std::fputs(text, stderr);
  };
  for (mark("> "); const std::optional<std::string> line = read_input(true); mark("> ")) {
    if (line->find_first_not_of(" \t") == line->npos) continue;
    std::vector<int64_t> tokens;
    Json asked = messages;  // an Error leaves the messages as they are
    try {
      asked.push_back(message("user", o.unknown == "skip" ? known_text(*m.tokenizer, *line, "the message") : *line));
      tokens = ask(m, o, chat, asked);
      messages = asked;
    } catch (const Error& e) {
      if (!terminal) throw;
      print_note(e.what());
      continue;
    }
    Continuation text(m, o);
    std::string answer;
    const auto show = [&](const std::string& more) {
      put_text(o, more);
      answer += more;
    };
    const Interrupt interrupt;  // not while a line is read: there a signal ends the program
    const int64_t most = std::min(o.most(), m.model.context() - std::ssize(tokens));
    const auto take = [&](int64_t token) {
      show(text.add(token));
      return !text.ended() && Interrupt::signal() == 0;
    };
    generate(m.model, tokens, most, o.sampling, {.use_cache = !o.no_cache, .on_token = take});
    show(text.end());
    put("\n");
    messages.push_back(message("assistant", answer));
    const int signal = Interrupt::signal();
    if (signal && signal != SIGINT) return 128 + signal;
    if (!signal && !text.ended())
      print_note(most < o.most() ? fmt::format("the answer ends: the context of {} tokens is full", m.model.context())
                                 : fmt::format("the answer ends at --max-tokens {}", o.most()));
    ++o.sampling.seed;
  }
  mark("\n");
  return 0;
}

}  // namespace tg::apps
