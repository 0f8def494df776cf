// `tapegrad generate`: continues a prompt, token by token as they are made.
#include <tapegrad/core/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/run_session.h>
#include <tapegrad/models/io/adapter.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/model/generate.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

namespace tg::apps {
namespace {

struct Options {
  std::string model, adapter, prompt = "\n", device = "cpu", unknown;
  int64_t max_tokens = 200, threads = 0;
  SampleOptions sampling;
  bool no_cache = false;
};

struct ClosedPipe {};  // the reader has read enough, as `head` does

void put(const std::string& text) {
  const bool done = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!done && errno == EPIPE) throw ClosedPipe();
  TG_CHECK(done, io, "[generate] standard output cannot be written.");
}

int run(const Options& o) {
  if (o.model.empty()) throw UsageError("generate needs --model DIR");
  const Device device = Device::parse(o.device);
  runtime_of(device);
  if (o.threads != 0) set_num_threads(int(std::clamp<int64_t>(o.threads, INT32_MIN, INT32_MAX)));
  LoadedModel m = load_model(o.model, device);
  if (!o.adapter.empty()) load_adapter(adapter_path(o.adapter), m.model, m.params);
  TG_CHECK(m.tokenizer, value, "[generate] {} was trained on token ids and has no tokenizer. Text needs one.", o.model);
  if (device != Device())  // the text alone goes to standard output
    fmt::print(stderr, "device  {} ({})\n", device, runtime_of(device).describe(device.index));
  const std::string text = o.unknown == "skip" ? known_text(*m.tokenizer, o.prompt, "the prompt") : o.prompt;
  const std::vector<int64_t> prompt = m.tokenizer->encode(text, {.parse_special = true, .add_special = true});
  TextStream stream(*m.tokenizer);
  SampleOptions sampling = o.sampling;
  sampling.vocabulary = m.tokenizer->vocab_size();
  bool begun = false;
  const auto begin = [&] {  // not before the first token: what fails until then prints nothing
    if (!std::exchange(begun, true)) put(text);
  };
  const auto show = [&](int64_t token) {
    begin();
    put(stream.add(token));
    return true;
  };
  try {
    generate(m.model, prompt, o.max_tokens, sampling, {.use_cache = !o.no_cache, .on_token = show});
    begin();
    put(stream.end() + "\n");
  } catch (const ClosedPipe&) {
    (void)!std::freopen("/dev/null", "w", stdout);  // what is buffered is wanted by nobody
    return 128 + SIGPIPE;
  }
  return 0;
}

}  // namespace

Subcommand generate_command() {
  return {"generate", "continue a prompt with a trained model", [](Command& c) -> std::function<int()> {
            auto o = std::make_shared<Options>();
            c.option("--model", "DIR", "what `train --out DIR` wrote, or a folder of Hugging Face", o->model);
            c.option("--adapter", "DIR", "what `finetune --out DIR` wrote over that model, or its adapter.safetensors",
                     o->adapter);
            c.option("--prompt", "TEXT", "\"\\n\"", "the text to continue",
                     [o](const std::string& word) { o->prompt = word; });
            add_unknown_option(c, "error", o->unknown);
            c.option("--max-tokens", "tokens to make", o->max_tokens);
            c.option("--temperature", "divides the logits; 0: always the most likely token", o->sampling.temperature);
            c.option("--top-k", "draw from the k most likely tokens only, 0: all", o->sampling.top_k);
            c.option("--top-p", "draw from the most likely tokens that reach this probability", o->sampling.top_p);
            c.option("--seed", "of the draws", o->sampling.seed);
            c.toggle("--no-cache", "compute keys and values again for each token", o->no_cache);
            c.option("--device", "NAME", "cpu or cuda", o->device);
            c.option("--threads", "threads of the CPU, 0: all", o->threads);
            return [o] { return run(*o); };
          }};
}

}  // namespace tg::apps
