// Options, standard streams and the text of tokens, for `generate` and its prompt loop.
#pragma once
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/model/generate.h>

namespace tg::apps {

struct GenerateOptions : ModelOptions {
  std::string prompts, out, chat_format;
  std::optional<std::string> prompt, system;
  std::vector<int64_t> prompt_ids;  // not empty: only ids, no text
  std::optional<int64_t> batch, logprobs, max_tokens;
  std::vector<std::string> stops;
  std::vector<int64_t> stop_tokens;  // end a text
  int64_t samples = 1;
  int64_t most() const { return max_tokens.value_or(200); }  // tokens
  SampleOptions sampling;
  bool chat = false, ignore_eos = false, no_cache = false, raw = false;
};

// Writes to standard output.
void put(const std::string& text);
// Writes the text, with --raw as it is, else as shown_text().
void put_text(const GenerateOptions&, const std::string& text);
// Standard input to its end or, with `line`, the next line; without the last line break. Empty at the end.
std::optional<std::string> read_input(bool line);

// Text of the tokens after a prompt, and why it ends.
class Continuation {
 public:
  Continuation(const LoadedModel& m, const GenerateOptions& o) : stops_(o.stops), eos_(o.stop_tokens) {
    if (o.prompt_ids.empty()) stream_.emplace(*m.tokenizer);
  }
  // The text that the token completes.
  std::string add(int64_t token) {
    if (std::ranges::find(eos_, token) != eos_.end()) {
      reason_ = "eos";
      return {};
    }
    return stream_ ? cut(stream_->add(token)) : fmt::format(" {}", token);
  }
  std::string end() {
    if (!stream_) return {};
    std::string text = cut(stream_->end());
    return text + stops_.end();
  }
  bool ended() const { return reason_ != kLength; }
  std::string_view reason() const { return reason_; }

 private:
  static constexpr std::string_view kLength = "length";
  std::string cut(const std::string& piece) {
    std::string text = stops_.add(piece);
    if (stops_.found()) reason_ = "stop";
    return text;
  }

  std::optional<TextStream> stream_;
  StopStrings stops_;
  std::vector<int64_t> eos_;
  std::string_view reason_ = kLength;
};

// Answers lines of standard input until it ends or a signal. Returns the exit status.
int chat(const LoadedModel&, GenerateOptions);

}  // namespace tg::apps
