// Options, standard streams and the text of tokens, for `generate` and its prompt loop.
#pragma once
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/model/generate.h>

namespace tg::apps {

struct GenerateOptions {
  std::string model, adapter, prompts, out, device = "cpu", dtype = "f32", unknown, chat_format;
  std::optional<std::string> prompt, system;
  std::vector<int64_t> prompt_ids;  // not empty: only ids, no text
  std::optional<int64_t> batch, logprobs;
  std::vector<std::string> stops;
  std::vector<int64_t> stop_tokens;  // end a text, too
  int64_t max_tokens = 200, samples = 1, threads = 0;
  SampleOptions sampling;
  bool chat = false, ignore_eos = false, no_cache = false, raw = false;
};

struct ClosedPipe {};  // the reader stopped, like `head`
// Writes to standard output.
void put(const std::string& text);
// Writes the text, with --raw as it is, else as shown_text().
void put_text(const GenerateOptions&, const std::string& text);
// Standard input to its end or, with `line`, the next line; without the last line break. Empty at the end.
std::optional<std::string> read_input(bool line);

// Text of the tokens after a prompt, and why it ends.
class Continuation {
 public:
  Continuation(const LoadedModel&, const GenerateOptions&);
  // The text that the token completes.
  std::string add(int64_t token);
  std::string end();
  bool ended() const { return reason_ != kLength; }
  std::string_view reason() const { return reason_; }

 private:
  static constexpr std::string_view kLength = "length";
  std::string cut(const std::string& text);

  std::optional<TextStream> stream_;
  StopStrings stops_;
  std::vector<int64_t> eos_;
  std::string_view reason_ = kLength;
};

// Answers lines of standard input until it ends or a signal. Returns the exit status.
int chat(const LoadedModel&, GenerateOptions);

}  // namespace tg::apps
