// `tapegrad generate`: continues one prompt (streamed) or many, or answers messages (--chat).
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/model/generate.h>

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

namespace tg::apps {
namespace {

struct GenerateOptions : ModelOptions {
  std::string prompts, out, chat_format;
  std::optional<std::string> prompt, system;
  std::vector<int64_t> prompt_ids;  // if not empty: ids without text
  std::optional<int64_t> batch, logprobs, max_tokens;
  std::vector<std::string> stops;
  std::vector<int64_t> stop_tokens;  // ids that end a text
  int64_t samples = 1;
  int64_t most() const { return max_tokens.value_or(200); }  // tokens
  SampleOptions sampling;
  bool chat = false, ignore_eos = false, no_cache = false, raw = false;
};

void put(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw std::system_error(errno, std::generic_category());
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

struct Prompt {
  Json line;  // line of --prompts
  std::string text;
  std::vector<int64_t> tokens;
};
Prompt encoded_prompt(const LoadedModel& m, const GenerateOptions& o, const std::string& text,
                      const std::string& name) {
  Prompt p{{}, o.unknown == "skip" ? known_text(*m.tokenizer, text, name) : text, {}};
  p.tokens = m.tokenizer->encode(p.text, {.parse_special = true, .add_special = true});
  return p;
}
std::string input_prompt() {
  const std::optional<std::string> text = read_input(false);
  TG_CHECK(text && !text->empty(), value,
           "[generate] standard input is empty, and it is the prompt. Pass a text there, or --prompt, --prompts or "
           "--prompt-ids.");
  return *text;
}
constexpr const char* kResults[] = {"text", "tokens", "finish_reason", "logprobs"};  // keys that --out adds
std::vector<Prompt> read_prompts(const LoadedModel& m, const GenerateOptions& o) {
  std::vector<Prompt> all;
  detail::for_each_line(o.prompts, [&](std::string_view line, int64_t number) {
    const std::string name = fmt::format("{}, line {}", o.prompts, number);
    Json json = detail::parse_json(line, "generate", name);
    const Json* prompt = json.is_object() ? json.find("prompt") : nullptr;
    TG_CHECK(prompt && prompt->is_string(), value,
             "[generate] {} has no text \"prompt\". Each line is an object {{\"prompt\": \"...\"}}.", name);
    for (const char* key : kResults)
      TG_CHECK(!json.contains(key), value,
               "[generate] {} has \"{}\", which is the name of a result. All other keys are copied. Rename it.", name,
               key);
    all.push_back(in_file(name, [&] { return encoded_prompt(m, o, prompt->get<std::string>(), name); }));
    all.back().line = std::move(json);
    TG_CHECK(!all.back().tokens.empty(), value,
             "[generate] the prompt of {} is empty. Pass at least one token, such as that of a line break.", name);
    return true;
  });
  TG_CHECK(!all.empty(), value, "[generate] {} is empty. Each line is an object {{\"prompt\": \"...\"}}.", o.prompts);
  return all;
}

// OpenAI's logprobs.content with ids: {"token", "id", "logprob", "top_logprobs"}.
class Logprobs {
 public:
  Logprobs(const LoadedModel& m, const GenerateOptions& o)
      : k_(o.logprobs), tokenizer_(o.prompt_ids.empty() ? m.tokenizer.get() : nullptr) {}
  void add(int64_t token, const Tensor& logits) {
    if (!k_) return;
    const std::vector<Logprob> all = logprobs(logits, token, *k_);
    Json e = entry(all[0]);
    e["top_logprobs"] = Json::array();
    for (size_t i = 1; i < all.size(); ++i) e["top_logprobs"].push_back(entry(all[i]));
    content_.push_back(std::move(e));
  }
  const Json& content() const { return content_; }
  std::string table() const {
    std::string all =
        k_ ? fmt::format("{:>8}  {:>9}  {}\n", "id", "logprob", *k_ ? "token, most likely ones" : "token") : "";
    for (const Json& e : content_) {
      all += fmt::format("{:>8}  {}", e["id"].get<int64_t>(), cell(e));
      for (const Json& top : e["top_logprobs"]) all += "  " + cell(top);
      all += "\n";
    }
    return all;
  }

 private:
  static std::string cell(const Json& e) {
    const Json* token = e.find("token");
    return fmt::format("{:9.4f}  {}", e["logprob"].get<double>(), detail::text_of(token ? *token : e["id"]));
  }
  Json entry(const Logprob& p) const {
    Json e = Json::object();
    bool begins = false;
    if (tokenizer_) e["token"] = p.token < tokenizer_->vocab_size() ? tokenizer_->decode_next(p.token, begins) : "";
    e["id"] = p.token;
    e["logprob"] = p.logprob;
    return e;
  }
  std::optional<int64_t> k_;
  const Tokenizer* tokenizer_;
  Json content_ = Json::array();
};

class Continuation {
 public:
  Continuation(const LoadedModel& m, const GenerateOptions& o) : logprobs(m, o), stops_(o.stops), eos_(o.stop_tokens) {
    if (o.prompt_ids.empty()) stream_.emplace(*m.tokenizer);
  }
  std::string add(int64_t token) {
    if (std::ranges::count(eos_, token) > 0) {
      reason_ = "eos";
      return {};
    }
    return stream_ ? cut(stream_->add(token)) : kept(fmt::format(" {}", token));
  }
  std::string end() {
    if (!stream_) return {};
    const std::string piece = cut(stream_->end());
    return piece + kept(stops_.end());
  }
  const std::string& text() const { return text_; }
  bool ended() const { return reason_ != kLength; }
  std::string_view reason() const { return reason_; }
  Logprobs logprobs;

 private:
  static constexpr std::string_view kLength = "length";
  std::string kept(const std::string& piece) { return text_ += piece, piece; }
  std::string cut(const std::string& piece) {
    const std::string text = kept(stops_.add(piece));
    if (stops_.found()) reason_ = "stop";
    return text;
  }

  std::optional<TextStream> stream_;
  StopStrings stops_;
  std::vector<int64_t> eos_;
  std::string text_;
  std::string_view reason_ = kLength;
};

void stream(const LoadedModel& m, const GenerateOptions& o, const Prompt& prompt) {
  Continuation text(m, o);
  bool begun = false;
  // Before the first token an Error prints nothing.
  const auto begin = [&] {
    if (!std::exchange(begun, true)) put_text(o, prompt.text);
  };
  const auto show = [&](int64_t token) {
    begin();
    put_text(o, text.add(token));
    return !text.ended();
  };
  const auto keep = [&](int64_t, int64_t token, const Tensor& logits) { text.logprobs.add(token, logits); };
  generate(m.model, prompt.tokens, o.most(), o.sampling,
           {.use_cache = !o.no_cache, .on_token = show, .on_logits = keep});
  begin();
  put_text(o, text.end() + "\n");
  put(shown_text(text.logprobs.table()));
}

// Continues each prompt o.samples times: calls take(prompt, sample, continuation, its tokens) in order.
template <class F>
void in_batches(const LoadedModel& m, const GenerateOptions& o, const std::vector<Prompt>& prompts, F take) {
  const auto samples = size_t(o.samples), rows = prompts.size() * samples, batch = size_t(o.batch.value_or(8));
  for (size_t first = 0; first < rows; first += batch) {
    std::vector<std::vector<int64_t>> tokens;
    for (size_t row = first; row < std::min(rows, first + batch); ++row)
      tokens.push_back(prompts[row / samples].tokens);
    std::vector<Continuation> texts(tokens.size(), Continuation(m, o));
    const auto add = [&](int64_t row, int64_t token) {
      texts[size_t(row)].add(token);
      return !texts[size_t(row)].ended();
    };
    const auto keep = [&](int64_t row, int64_t token, const Tensor& logits) {
      texts[size_t(row)].logprobs.add(token, logits);
    };
    const auto made =
        generate_batch(m.model, tokens, o.most(), o.sampling,
                       {.use_cache = !o.no_cache, .on_row_token = add, .on_logits = keep, .first_row = int64_t(first)});
    for (size_t i = 0; i < tokens.size(); ++i) {
      texts[i].end();
      take(prompts[(first + i) / samples], (first + i) % samples, texts[i], made[i]);
    }
  }
}
void write_results(const LoadedModel& m, const GenerateOptions& o, const std::vector<Prompt>& prompts) {
  const auto write = [&](const auto& take) {
    in_batches(m, o, prompts, [&](const Prompt& p, size_t, const Continuation& c, const std::vector<int64_t>& tokens) {
      Json line = p.line;
      line["text"] = c.text();
      line["tokens"] = tokens;
      line["finish_reason"] = c.reason();
      if (o.logprobs) line["logprobs"]["content"] = c.logprobs.content();
      take(detail::text_of(line) + "\n");
    });
  };
  if (o.out == "-") return write([](const std::string& line) { put(isatty(STDOUT_FILENO) ? shown_text(line) : line); });
  detail::write_file_atomically(
      o.out, [&](const Sink& sink) { write([&](const std::string& line) { sink(std::as_bytes(std::span(line))); }); });
  fmt::print("{} in {}\n", detail::counted(int64_t(prompts.size()) * o.samples, "text"), printable(o.out));
}
// The ids before an answer. Drops the oldest turns that leave no room for it.
std::vector<int64_t> ask(const LoadedModel& m, const GenerateOptions& o, const ChatTemplate& chat, Json& messages) {
  const int64_t context = m.model.context(), room = std::min(o.most(), context / 2);
  const size_t first = o.system ? 1 : 0, all = messages.size();  // skips the system message
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
               detail::counted(context, "token"));
  return ids;
}

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
    Json asked = messages;  // an Error leaves the messages
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
    const Interrupt interrupt;  // a signal while reading ends the program
    const int64_t most = std::min(o.most(), m.model.context() - std::ssize(tokens));
    const auto take = [&](int64_t token) {
      put_text(o, text.add(token));
      return !text.ended() && Interrupt::signal() == 0;
    };
    generate(m.model, tokens, most, o.sampling, {.use_cache = !o.no_cache, .on_token = take});
    put_text(o, text.end());
    put("\n");
    messages.push_back(message("assistant", text.text()));
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

void check_usage(const GenerateOptions& o) {
  refuse(o.model.empty(), "generate needs --model DIR");
  if (o.chat) {
    for (const auto& [given, flag] : {std::pair(o.prompt.has_value(), "--prompt"),
                                      {!o.prompts.empty(), "--prompts"},
                                      {!o.prompt_ids.empty(), "--prompt-ids"},
                                      {!o.out.empty(), "--out"},
                                      {o.samples != 1, "--samples"},
                                      {o.batch.has_value(), "--batch"},
                                      {o.logprobs.has_value(), "--logprobs"}})
      if (given)
        throw UsageError(
            fmt::format("--chat reads messages from standard input, and prints one answer to each; omit {}", flag));
  } else if (o.system || !o.chat_format.empty()) {
    throw UsageError("--system and --chat-format are for --chat; add it, or omit them");
  }
  refuse((o.prompt ? 1 : 0) + (o.prompts.empty() ? 0 : 1) + (o.prompt_ids.empty() ? 0 : 1) > 1,
         "--prompt, --prompts and --prompt-ids exclude each other");
  refuse(!o.prompt_ids.empty() && !o.stops.empty(), "--stop works on text, and --prompt-ids makes ids; omit one");
  refuse(!o.prompts.empty() && o.out.empty(), "--prompts needs --out FILE for the results");
  if (o.batch && *o.batch < 1) throw UsageError(fmt::format("--batch is {}. It must be 1 or more.", *o.batch));
  refuse(o.batch && o.prompts.empty() && o.samples == 1,
         "--batch is for several texts. Pass --prompts or --samples too, or omit it");
  refuse(o.raw && !o.out.empty(),
         "--raw is for text on standard output, and --out writes JSON, whose tokens lose nothing; omit one");
  refuse(o.raw && isatty(STDOUT_FILENO),
         "--raw writes bytes that a terminal may obey, and standard output is one. Omit it, or write to a file");
  refuse(!o.chat && !o.prompt && o.prompts.empty() && o.prompt_ids.empty() && isatty(STDIN_FILENO),
         "generate needs a prompt: --prompt TEXT, --prompt-ids LIST, --prompts FILE, a text on standard "
         "input, or --chat");
}
bool is_result(std::string_view text) {
  const Json line = detail::json_or_null(text.substr(0, text.find('\n')));
  return line.is_object() &&
         std::ranges::all_of(std::span(kResults).first(3), [&](const char* key) { return line.contains(key); });
}

std::vector<Prompt> prompts_of(const LoadedModel& m, const GenerateOptions& o) {
  if (!o.prompts.empty()) return read_prompts(m, o);
  if (o.prompt_ids.empty()) {
    Prompt p = encoded_prompt(m, o, o.prompt.value_or("-") == "-" ? input_prompt() : *o.prompt, "the prompt");
    p.line = {{"prompt", p.text}};
    return {p};
  }
  const int64_t ids = m.model.config().vocab_size;
  for (const int64_t id : o.prompt_ids)
    TG_CHECK(id >= 0 && id < ids, value, "[generate] --prompt-ids has {}, and the model's ids are from 0 to {}.", id,
             ids - 1);
  return {{Json{{"prompt_ids", o.prompt_ids}}, fmt::format("{}", fmt::join(o.prompt_ids, " ")), o.prompt_ids}};
}

int run(GenerateOptions& o) {
  check_usage(o);
  o.sampling.validate();
  const LoadedModel m = open_model(o);
  if (o.prompt_ids.empty())
    detail::check_tokenizer(m.tokenizer.get(), m.tokenizer_error,
                            fmt::format("[generate] {} has no tokenizer. Text needs one: copy the tokenizer.json of "
                                        "its base there. --prompt-ids takes token ids.",
                                        o.model));
  if (const Device d = m.params.device(); d != Device())  // standard output: only text
    fmt::print(stderr, "device  {} ({})\n", d, detail::runtime_of(d).describe(d.index));
  if (m.tokenizer) o.sampling.vocabulary = m.tokenizer->vocab_size();
  if (!o.ignore_eos) o.stop_tokens = ends_of(m, o.model, o.adapter);
  if (o.chat) return chat(m, o);
  const std::vector<Prompt> prompts = prompts_of(m, o);
  if (o.max_tokens.value_or(0) > 0 && std::ranges::any_of(prompts, [&](const Prompt& p) {
        return std::ssize(p.tokens) + *o.max_tokens > m.model.context();
      }))
    print_note("--max-tokens {} goes beyond the context of {}: from there on each token takes a pass over all of it",
               *o.max_tokens, detail::counted(m.model.context(), "token"));
  if (!o.out.empty() && o.out != "-") check_output("generate", "--out", o.out, "result of generate", is_result);
  if (!o.out.empty())
    write_results(m, o, prompts);
  else if (o.samples == 1)
    stream(m, o, prompts[0]);
  else
    in_batches(m, o, prompts, [&](const Prompt& p, size_t sample, const Continuation& c, const auto&) {
      put_text(o, fmt::format("--- sample {}\n{}{}\n", sample + 1, p.text, c.text()));
      put(shown_text(c.logprobs.table()));
    });
  return 0;
}
void declare(Command& c, GenerateOptions& o) {
  add_model_options(c, o);
  c.option("--prompt", "TEXT", "",
           "the text to continue; - reads standard input, as without --prompt, --prompt-ids and --prompts",
           [&o](const std::string& word) { o.prompt = word; });
  c.option("--prompt-ids", "token ids to continue, with commas between them; ids are printed, and no text",
           o.prompt_ids);
  c.option("--prompts", "FILE", "texts to continue, a line {\"prompt\": \"...\"} each; needs --out", o.prompts);
  c.option("--out", "FILE",
           "write one line per text: the line of --prompts with text, tokens and finish_reason; -: standard output",
           o.out);
  c.count("--logprobs",
          "print or write the log-probability of each token, and the K most likely ones, 0 to 20, before "
          "temperature and penalties",
          o.logprobs, 20);
  c.toggle("--raw", "write bytes that are no text as they are, not as \\x1b, into a file or pipe", o.raw);
  c.toggle("--chat", "answer lines of standard input, each after the conversation so far", o.chat);
  c.option("--system", "TEXT", "", "the system message of --chat", [&o](const std::string& word) { o.system = word; });
  c.option("--chat-format", "NAME",
           fmt::format("of --chat: {}; default: the chat template of the adapter or model", kChatFormats),
           o.chat_format);
  c.option("--samples", "texts to make of each prompt", o.samples, 1);
  c.option("--batch", "texts in a forward pass", o.batch, 8);
  c.option("--max-tokens", "tokens to make", o.max_tokens, o.most());
  c.list("--stop", "STR", "texts that end the output; they are not printed", o.stops);
  c.toggle("--ignore-eos", "continue after the tokens that end a text", o.ignore_eos);
  SampleOptions& s = o.sampling;
  c.option("--temperature", "divides the logits; 0: always the most likely token", s.temperature);
  c.option("--top-k", "draw from the k most likely tokens only, 0: all", s.top_k);
  c.option("--top-p", "draw from the most likely tokens that reach this probability", s.top_p);
  c.option("--min-p", "draw from tokens of at least this probability, relative to the most likely one", s.min_p);
  c.option("--repetition-penalty", "divides positive logits of tokens that came before, multiplies others",
           s.repetition_penalty);
  c.option("--frequency-penalty", "subtracted from a logit for each time that its token came before",
           s.frequency_penalty);
  c.option("--presence-penalty", "subtracted from a logit once, if its token came before", s.presence_penalty);
  c.option("--penalty-last", "number of last tokens that penalties look at, 0: all", s.penalty_last);
  c.option("--seed", "of the draws", s.seed);
  c.toggle("--no-cache", "compute keys and values again for each token", o.no_cache);
}

}  // namespace

Subcommand generate_command() {
  return subcommand<GenerateOptions>("generate", "continue prompts with a trained model", run, declare);
}

}  // namespace tg::apps
