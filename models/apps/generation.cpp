#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/generation.h>
#include <tapegrad/models/apps/ranks.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace tg::apps {

void put(const std::string& text) {
  const bool done = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!done && errno == EPIPE) throw ClosedPipe();
  TG_CHECK(done, io, "[generate] standard output cannot be written.");
}

void put_text(const GenerateOptions& o, const std::string& text) {
  const std::string shown = o.raw ? text : shown_text(text);
  put(shown);
  static bool noted = isatty(STDOUT_FILENO) != 0;
  if (shown != text && !std::exchange(noted, true))
    print_note("bytes that are no text are written as \\x and two digits; --raw writes them as they are");
}

std::optional<std::string> read_input(bool line) {
  constexpr size_t kMostInput = size_t(64) << 20;
  std::string text;
  int c;
  while ((c = std::getchar()) != EOF && !(line && c == '\n')) {
    TG_CHECK(text.size() < kMostInput, value, "[generate] {} over {} bytes. A prompt has at most that. Shorten it.",
             line ? "a line of standard input has" : "standard input has", kMostInput);
    text += char(c);
  }
  TG_CHECK(!std::ferror(stdin), io, "[generate] standard input cannot be read: {}.", std::strerror(errno));
  if (c == EOF && text.empty()) return std::nullopt;
  if (c == EOF && !text.ends_with('\n')) return text;
  if (c == EOF) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

Continuation::Continuation(const LoadedModel& m, const GenerateOptions& o) : stops_(o.stops) {
  if (o.prompt_ids.empty()) stream_.emplace(*m.tokenizer);
  if (m.origin && !o.ignore_eos) eos_ = m.origin->eos_tokens;
  if (!m.origin && !o.ignore_eos && m.tokenizer && m.tokenizer->end_of_text() >= 0)
    eos_ = {m.tokenizer->end_of_text()};  // documents end by it
  eos_.insert(eos_.end(), o.stop_tokens.begin(), o.stop_tokens.end());
}
std::string Continuation::add(int64_t token) {
  if (std::ranges::find(eos_, token) != eos_.end()) {
    reason_ = "eos";
    return {};
  }
  return stream_ ? cut(stream_->add(token)) : fmt::format(" {}", token);
}
std::string Continuation::end() {
  if (!stream_) return {};
  std::string text = cut(stream_->end());
  return text + stops_.end();
}
std::string Continuation::cut(const std::string& piece) {
  std::string text = stops_.add(piece);
  if (stops_.found()) reason_ = "stop";
  return text;
}

}  // namespace tg::apps
