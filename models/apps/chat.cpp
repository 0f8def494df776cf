// `tapegrad generate --chat`: a prompt loop with history.
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/generation.h>
#include <tapegrad/models/apps/interrupt.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/ranks.h>
#include <tapegrad/models/data/chat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

namespace tg::apps {
namespace {

// A conversation that fits the context.
class Conversation {
 public:
  Conversation(const LoadedModel& m, const GenerateOptions& o)
      : m_(m), o_(o), format_(chat_format_of("generate", o.chat_format, {o.adapter, o.model}, *m.tokenizer).format) {
    if (o.system) messages_.push_back({"system", *o.system});
    first_ = messages_.size();
  }
  const ChatFormat& format() const { return format_; }
  int64_t context() const { return m_.model.context(); }
  // The ids before the answer to a message. The oldest turns go where they leave no room for it. An Error changes
  // nothing.
  std::vector<int64_t> ask(const std::string& text) {
    const auto room = std::min(o_.max_tokens, context() / 2);
    std::vector<Message> kept = messages_;
    kept.push_back({"user", o_.unknown == "skip" ? known_text(*m_.tokenizer, text, "the message") : text});
    std::vector<int64_t> ids = encode_chat(*m_.tokenizer, format_, kept);
    size_t gone = 0;
    for (; int64_t(ids.size()) + room > context() && kept.size() > first_ + 1; gone += 2) {
      kept.erase(kept.begin() + ptrdiff_t(first_), kept.begin() + ptrdiff_t(first_) + 2);
      ids = encode_chat(*m_.tokenizer, format_, kept);
    }
    TG_CHECK(int64_t(ids.size()) < context(), value,
             "[generate] the message and its format have {} tokens, and the context is {}. It must be longer than "
             "they are. Shorten the message.",
             ids.size(), context());
    if (gone > 0)
      print_note(fmt::format("the {} oldest messages are forgotten: the context is {} tokens", gone, context()));
    messages_ = std::move(kept);
    return ids;
  }
  void answer(const std::string& text) { messages_.push_back({"assistant", text}); }

 private:
  const LoadedModel& m_;
  const GenerateOptions& o_;
  ChatFormat format_;
  std::vector<Message> messages_;
  size_t first_ = 0;  // message after the system's
};

}  // namespace

int chat(const LoadedModel& m, GenerateOptions o) {
  Conversation talk(m, o);
  const std::string& stop = talk.format().stop;
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
      tokens = talk.ask(*line);
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
    const int64_t most = std::min(o.max_tokens, talk.context() - int64_t(tokens.size()));
    const auto take = [&](int64_t token) {
      show(text.add(token));
      return !text.ended() && Interrupt::signal() == 0;
    };
    generate(m.model, tokens, most, o.sampling, {.use_cache = !o.no_cache, .on_token = take});
    show(text.end());
    put("\n");
    talk.answer(answer);
    const int signal = Interrupt::signal();
    if (signal && signal != SIGINT) return 128 + signal;
    if (!signal && !text.ended())
      print_note(most < o.max_tokens ? fmt::format("the answer ends: the context of {} tokens is full", talk.context())
                                     : fmt::format("the answer ends at --max-tokens {}", o.max_tokens));
    ++o.sampling.seed;
  }
  mark("\n");
  return 0;
}

}  // namespace tg::apps
