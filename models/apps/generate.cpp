// `tapegrad generate`: streams the continuation of a prompt, or continues many in batches.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/run_session.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/model/generate.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

namespace tg::apps {
namespace {

struct GenerateOptions {
  std::string model, adapter, prompts, out, device = "cpu", dtype = "f32", unknown;
  std::optional<std::string> prompt;
  std::vector<int64_t> prompt_ids;  // not empty: only ids, no text
  std::optional<int64_t> batch;
  std::vector<std::string> stops;
  int64_t max_tokens = 200, samples = 1, threads = 0;
  SampleOptions sampling;
  bool ignore_eos = false, no_cache = false;
};

struct ClosedPipe {};  // the reader stopped, like `head`

void put(const std::string& text) {
  const bool done = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!done && errno == EPIPE) throw ClosedPipe();
  TG_CHECK(done, io, "[generate] standard output cannot be written.");
}

// Text of the tokens after a prompt, and why it ends.
class Continuation {
 public:
  Continuation(const LoadedModel& m, const GenerateOptions& o) : stops_(o.stops) {
    if (o.prompt_ids.empty()) stream_.emplace(*m.tokenizer);
    if (m.origin && !o.ignore_eos) eos_ = m.origin->eos_tokens;
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

struct Prompt {
  Json line;  // a line of --prompts
  std::string text;
  std::vector<int64_t> tokens;
};
Prompt encoded_prompt(const LoadedModel& m, const GenerateOptions& o, const std::string& text,
                      const std::string& name) {
  Prompt p{{}, o.unknown == "skip" ? known_text(*m.tokenizer, text, name) : text, {}};
  p.tokens = m.tokenizer->encode(p.text, {.parse_special = true, .add_special = true});
  return p;
}
constexpr const char* kResults[] = {"text", "tokens", "finish_reason"};  // keys that --out adds to a line
std::vector<Prompt> read_prompts(const LoadedModel& m, const GenerateOptions& o) {
  const MappedFile file(o.prompts);
  std::vector<Prompt> all;
  std::string_view rest = file.text();
  for (size_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string name = fmt::format("{}, line {}", o.prompts, number);
    Json json = parse_json(line, "generate", name);
    const Json* prompt = json.is_object() ? json.find("prompt") : nullptr;
    TG_CHECK(prompt && prompt->is_string(), value,
             "[generate] {} has no text \"prompt\". Each line is an object {{\"prompt\": \"...\"}}.", name);
    for (const char* key : kResults)
      TG_CHECK(!json.contains(key), value,
               "[generate] {} has \"{}\", which is the name of a result. All other keys are copied. Rename it.", name,
               key);
    try {
      all.push_back(encoded_prompt(m, o, prompt->get<std::string>(), name));
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}\n    in {}", e.what(), name), e.scoped());
    }
    all.back().line = std::move(json);
    TG_CHECK(!all.back().tokens.empty(), value,
             "[generate] the prompt of {} is empty. Pass at least one token, such as that of a line break.", name);
  }
  TG_CHECK(!all.empty(), value, "[generate] {} is empty. Each line is an object {{\"prompt\": \"...\"}}.", o.prompts);
  return all;
}

void stream(const LoadedModel& m, const GenerateOptions& o, const Prompt& prompt) {
  Continuation text(m, o);
  bool begun = false;
  // Not before the first token, so that an earlier failure prints nothing.
  const auto begin = [&] {
    if (!std::exchange(begun, true)) put(for_terminal(prompt.text));
  };
  const auto show = [&](int64_t token) {
    begin();
    put(for_terminal(text.add(token)));
    return !text.ended();
  };
  generate(m.model, prompt.tokens, o.max_tokens, o.sampling, {.use_cache = !o.no_cache, .on_token = show});
  begin();
  put(for_terminal(text.end()) + "\n");
}

struct Result {
  std::string text;
  std::vector<int64_t> tokens;
  std::string_view reason;
};
// Continues each prompt o.samples times. Calls take(prompt, sample, result) in order.
template <class F>
void in_batches(const LoadedModel& m, const GenerateOptions& o, const std::vector<Prompt>& prompts, F take) {
  const auto samples = size_t(o.samples), rows = prompts.size() * samples, batch = size_t(o.batch.value_or(8));
  for (size_t first = 0; first < rows; first += batch) {
    std::vector<std::vector<int64_t>> tokens;
    for (size_t row = first; row < std::min(rows, first + batch); ++row)
      tokens.push_back(prompts[row / samples].tokens);
    std::vector<Continuation> texts(tokens.size(), Continuation(m, o));
    std::vector<Result> results(tokens.size());
    const auto add = [&](int64_t row, int64_t token) {
      results[size_t(row)].text += texts[size_t(row)].add(token);
      return !texts[size_t(row)].ended();
    };
    auto made = generate_batch(m.model, tokens, o.max_tokens, o.sampling,
                               {.use_cache = !o.no_cache, .on_row_token = add, .first_row = int64_t(first)});
    for (size_t i = 0; i < tokens.size(); ++i) {
      results[i].text += texts[i].end();
      results[i].tokens = std::move(made[i]);
      results[i].reason = texts[i].reason();
      take(prompts[(first + i) / samples], (first + i) % samples, results[i]);
    }
  }
}
void write_results(const LoadedModel& m, const GenerateOptions& o, const std::vector<Prompt>& prompts) {
  write_file_atomically(o.out, [&](const Sink& sink) {
    in_batches(m, o, prompts, [&](const Prompt& p, size_t, const Result& r) {
      Json line = p.line;
      line["text"] = r.text;
      line["tokens"] = r.tokens;
      line["finish_reason"] = r.reason;
      const std::string text = text_of(line) + "\n";
      sink(std::as_bytes(std::span(text)));
    });
  });
  fmt::print("{} texts in {}\n", prompts.size() * size_t(o.samples), printable(o.out));
}
void check_usage(const GenerateOptions& o) {
  if (o.model.empty()) throw UsageError("generate needs --model DIR");
  if ((o.prompt ? 1 : 0) + (o.prompts.empty() ? 0 : 1) + (o.prompt_ids.empty() ? 0 : 1) > 1)
    throw UsageError("--prompt, --prompts and --prompt-ids exclude each other");
  if (!o.prompt_ids.empty() && !o.stops.empty())
    throw UsageError("--stop works on text, and --prompt-ids makes ids; omit one");
  if (!o.prompts.empty() && o.out.empty()) throw UsageError("--prompts needs --out FILE for the results");
  if (o.batch && *o.batch < 1) throw UsageError(fmt::format("--batch is {}. It must be 1 or more.", *o.batch));
  if (o.batch && o.prompts.empty() && o.samples == 1)
    throw UsageError("--batch is for several texts. Pass --prompts or --samples too, or omit it");
}
bool is_result(std::string_view text) {
  const Json line = json_or_null(text.substr(0, text.find('\n')));
  return line.is_object() && std::ranges::all_of(kResults, [&](const char* key) { return line.contains(key); });
}

int run(GenerateOptions o) {
  check_usage(o);
  const Device device = Device::parse(o.device);
  runtime_of(device);
  if (o.threads != 0) set_num_threads(int(std::clamp<int64_t>(o.threads, INT32_MIN, INT32_MAX)));
  if (!o.out.empty()) check_output("generate", "--out", o.out, "result of generate", is_result);
  LoadedModel m = load_model(o.model, device, dtype_from_name(o.dtype));
  if (!o.adapter.empty()) adapted(o.adapter, m, o.model);
  if (o.prompt_ids.empty())
    check_tokenizer(m.tokenizer.get(), m.tokenizer_error,
                    fmt::format("[generate] {} has no tokenizer. Text needs one: copy the tokenizer.json of its base "
                                "there. --prompt-ids takes token ids.",
                                o.model));
  if (device != Device())  // standard output gets the text only
    fmt::print(stderr, "device  {} ({})\n", device, runtime_of(device).describe(device.index));
  if (m.tokenizer) o.sampling.vocabulary = m.tokenizer->vocab_size();
  std::vector<Prompt> prompts;
  if (!o.prompt_ids.empty()) {
    for (const int64_t id : o.prompt_ids)
      TG_CHECK(id >= 0 && id < m.model.config().vocab_size, value,
               "[generate] --prompt-ids has {}, and the model's ids are from 0 to {}.", id,
               m.model.config().vocab_size - 1);
    prompts.push_back({{{"prompt_ids", o.prompt_ids}}, fmt::format("{}", fmt::join(o.prompt_ids, " ")), o.prompt_ids});
  } else if (o.prompts.empty()) {
    prompts.push_back(encoded_prompt(m, o, o.prompt.value_or("\n"), "the prompt"));
    prompts[0].line = {{"prompt", prompts[0].text}};
  } else {
    prompts = read_prompts(m, o);
  }
  try {
    if (!o.out.empty())
      write_results(m, o, prompts);
    else if (o.samples == 1)
      stream(m, o, prompts[0]);
    else
      in_batches(m, o, prompts, [](const Prompt& p, size_t sample, const Result& r) {
        put(fmt::format("--- sample {}\n{}{}\n", sample + 1, for_terminal(p.text), for_terminal(r.text)));
      });
  } catch (const ClosedPipe&) {
    (void)!std::freopen("/dev/null", "w", stdout);  // drops the buffered rest
    return 128 + SIGPIPE;
  }
  return 0;
}

}  // namespace

Subcommand generate_command() {
  return {
      "generate", "continue prompts with a trained model", [](Command& c) -> std::function<int()> {
        auto o = std::make_shared<GenerateOptions>();
        c.option("--model", "DIR", "what `train --out DIR` wrote, or a folder of Hugging Face", o->model);
        c.option("--adapter", "DIR", "what `finetune --out DIR` or PEFT wrote over that model", o->adapter);
        c.option("--prompt", "TEXT", "\"\\n\"", "the text to continue",
                 [o](const std::string& word) { o->prompt = word; });
        c.option("--prompt-ids", "token ids to continue, with commas between them; ids are printed, and no text",
                 o->prompt_ids);
        c.option("--prompts", "FILE", "texts to continue, a line {\"prompt\": \"...\"} each; needs --out", o->prompts);
        c.option("--out", "FILE", "write one line per text: the line of --prompts with text, tokens and finish_reason",
                 o->out);
        c.option("--samples", "texts to make of each prompt", o->samples, 1);
        c.option("--batch", "texts in a forward pass", o->batch, 8);
        add_unknown_option(c, "error", o->unknown);
        c.option("--max-tokens", "tokens to make", o->max_tokens);
        c.list("--stop", "STR", "texts that end the output; they are not printed", o->stops);
        c.toggle("--ignore-eos", "continue after the end-of-sequence tokens of a folder of Hugging Face",
                 o->ignore_eos);
        c.option("--temperature", "divides the logits; 0: always the most likely token", o->sampling.temperature);
        c.option("--top-k", "draw from the k most likely tokens only, 0: all", o->sampling.top_k);
        c.option("--top-p", "draw from the most likely tokens that reach this probability", o->sampling.top_p);
        c.option("--min-p", "draw from tokens of at least this probability, relative to the most likely one",
                 o->sampling.min_p);
        c.option("--repetition-penalty", "divides positive logits of tokens that came before, multiplies others",
                 o->sampling.repetition_penalty);
        c.option("--frequency-penalty", "subtracted from a logit for each time that its token came before",
                 o->sampling.frequency_penalty);
        c.option("--presence-penalty", "subtracted from a logit once, if its token came before",
                 o->sampling.presence_penalty);
        c.option("--penalty-last", "number of last tokens that penalties look at, 0: all", o->sampling.penalty_last);
        c.option("--seed", "of the draws", o->sampling.seed);
        c.toggle("--no-cache", "compute keys and values again for each token", o->no_cache);
        c.option("--dtype", "of the weights", o->dtype, {"f32", "bf16"});
        c.option("--device", "NAME", "cpu or cuda", o->device);
        c.option("--threads", "threads of the CPU, 0: all", o->threads);
        return [o] { return run(*o); };
      }};
}

}  // namespace tg::apps
