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

// Adds a message, and returns the ids before its answer. The oldest turns go where they leave no room for it. An Error
// changes nothing.
std::vector<int64_t> ask(const LoadedModel& m, const GenerateOptions& o, const ChatFormat& format,
                         std::vector<Message>& messages, const std::string& text) {
  const int64_t context = m.model.context(), room = std::min(o.most(), context / 2);
  const ptrdiff_t first = o.system ? 1 : 0;  // message after the system's
  std::vector<Message> kept = messages;
  kept.push_back({"user", o.unknown == "skip" ? known_text(*m.tokenizer, text, "the message") : text});
  std::vector<int64_t> ids = encode_chat(*m.tokenizer, format, kept);
  size_t gone = 0;
  for (; std::ssize(ids) + room > context && std::ssize(kept) > first + 1; gone += 2) {
    kept.erase(kept.begin() + first, kept.begin() + first + 2);
    ids = encode_chat(*m.tokenizer, format, kept);
  }
  TG_CHECK(std::ssize(ids) < context, value,
           "[generate] the message and its format have {} tokens, and the context is {}. It must be longer than they "
           "are. Shorten the message.",
           ids.size(), context);
  if (gone > 0) print_note("the {} oldest messages are forgotten: the context is {}", gone, counted(context, "token"));
  messages = std::move(kept);
  return ids;
}

}  // namespace

int chat(const LoadedModel& m, GenerateOptions o) {
  const ChatFormat format = chat_format_of("generate", o.chat_format, {o.adapter, o.model}, *m.tokenizer).format;
  std::vector<Message> messages;
  if (o.system) messages.push_back({"system", *o.system});
  const std::string& stop = format.stop;
  if (const auto id = stop.empty() ? std::nullopt : special_token(*m.tokenizer, stop)) o.stop_tokens.push_back(*id);
  if (!stop.empty()) o.stops.push_back(stop);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const auto mark = [&](const char* text) {
    if (terminal) std::fputs(text, stderr);
  };
  for (mark("> "); const std::optional<std::string> line = read_input(true); mark("> ")) {
    if (line->find_first_not_of(" \t") == line->npos) continue;
    std::vector<int64_t> tokens;
    try {
      tokens = ask(m, o, format, messages, *line);
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
    messages.push_back({"assistant", answer});
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
