// `tapegrad train`: text or token files in, a model folder out.
#include <fmt/core.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/file.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/progress.h>
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/generate.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/models/train/trainer.h>

#include <algorithm>

namespace tg::apps {
namespace {

constexpr int64_t kSampleTokens = 200;

struct Options {
  std::vector<std::string> data;
  std::string config_file, preset, arch, out = "out", device = "cpu";
  int64_t threads = 0, sample_every = 0;
  bool quiet = false;
  std::vector<Setting> settings;  // from flags
};

struct Data {
  TokenData tokens;
  std::unique_ptr<Tokenizer> tokenizer;  // null: token ids with a vocabulary of their own
};

// Presets first, then the file, then the flags.
RunConfig run_of(const Options& o) {
  RunConfig run = o.preset.empty() ? RunConfig() : preset(o.preset);
  if (!o.arch.empty()) run.model = arch(o.arch);
  std::vector<Setting> settings;
  if (!o.config_file.empty()) settings = settings_from_json(MappedFile(o.config_file).text(), o.config_file);
  settings.insert(settings.end(), o.settings.begin(), o.settings.end());
  return with_settings(run, settings);
}

bool is_token_file(const std::string& path) { return path.ends_with(".bin"); }

// Settles the vocabulary of the run as well.
Data read_data(const std::vector<std::string>& paths, RunConfig& run) {
  int64_t& vocabulary = run.model.vocab_size;
  if (std::any_of(paths.begin(), paths.end(), is_token_file)) {
    TG_CHECK(paths.size() == 1, value,
             "[data] {} files, one of them a token file (.bin). Pass one token file, or texts only.", paths.size());
    TG_CHECK(
        run.tokenizer == "byte", value,
        "[data] {} holds token ids, and the tokenizer is \"{}\". Characters come from a text. Pass the text, or use "
        "the byte tokenizer.",
        paths[0], run.tokenizer);
    Data d{TokenData::from_file(paths[0]), std::make_unique<ByteTokenizer>()};
    if (vocabulary == 0) vocabulary = d.tokenizer->vocab_size();
    if (vocabulary != d.tokenizer->vocab_size()) d.tokenizer.reset();
    d.tokens.check_vocabulary(vocabulary);
    return d;
  }
  const std::string text = read_texts(paths);
  std::unique_ptr<Tokenizer> tokenizer;
  if (run.tokenizer == "char")
    tokenizer = std::make_unique<CharTokenizer>(CharTokenizer::from_text(text));
  else
    tokenizer = std::make_unique<ByteTokenizer>();
  if (vocabulary == 0) vocabulary = tokenizer->vocab_size();
  TG_CHECK(vocabulary == tokenizer->vocab_size(), value,
           "[data] vocab_size is {}, and the {} tokenizer of this text has {} ids. They must be equal. Leave "
           "vocab_size out.",
           vocabulary, run.tokenizer, tokenizer->vocab_size());
  return {TokenData::from_tokens(tokenizer->encode(text), paths.size() == 1 ? paths[0] : "the data"),
          std::move(tokenizer)};
}

std::string sample_text(const Gpt& model, const Tokenizer& tokenizer, uint64_t seed) {
  const std::vector<int64_t> start = {0};  // any token does
  return tokenizer.decode(generate(model, start, kSampleTokens, {.temperature = 0.8, .seed = seed}));
}

void print_header(const Options& o, const RunConfig& run, const Params& params, const Trainer& trainer, const Data& d) {
  const GptConfig& m = run.model;

  fmt::print("model   GPT: {} layers, {} heads, width {}, context {}, vocabulary {} ({}); {} parameters\n", m.layers,
             m.heads, m.width, m.context, m.vocab_size, d.tokenizer ? run.tokenizer : "ids", params.count());
  fmt::print("data    {}: {} tokens to train on, {} to validate on\n",
             o.data.size() == 1 ? o.data[0] : fmt::format("{} files", o.data.size()), trainer.train_tokens(),
             trainer.val_tokens());
  fmt::print("device  {} ({})\n", o.device, runtime_of(params.device()).describe(params.device().index));
  fmt::print("run     {} steps of {} x {} tokens, seed {}, into {}/\n\n", run.train.max_steps, run.train.batch,
             m.context, run.train.seed, o.out);
  std::fflush(stdout);
}

void train(const Options& o) {
  if (o.data.empty()) throw UsageError("train needs --data FILE...");
  RunConfig run = run_of(o);
  const Device device = Device::parse(o.device);
  runtime_of(device);
  if (o.threads != 0) set_num_threads(int(std::clamp<int64_t>(o.threads, INT32_MIN, INT32_MAX)));
  const Data data = read_data(o.data, run);
  const Params params(device, run.train.seed);
  const Gpt model(params, run.model);
  Trainer trainer(model, params, data.tokens, run.train);
  TG_CHECK(o.sample_every >= 0, value, "[train] --sample-every is {}. It must be 0 or more.", o.sample_every);
  TG_CHECK(o.sample_every == 0 || data.tokenizer, value,
           "[train] --sample-every needs a tokenizer, and {} holds token ids only. Leave it out.", o.data[0]);

  make_folder(o.out);
  StepLog log(o.out + "/log.jsonl");
  if (!o.quiet) print_header(o, run, params, trainer, data);
  Progress progress(run.train.max_steps, o.quiet);
  trainer.run([&](const StepRecord& r) {
    log.write(r);
    progress.show(r);
    const bool due = run.train.eval_every > 0 && r.step % run.train.eval_every == 0;
    if (due || trainer.done()) save_model(o.out, model, params, data.tokenizer.get(), to_json(run.train));
    if (o.sample_every > 0 && r.step % o.sample_every == 0)
      progress.print(fmt::format("--- step {}\n{}\n---", r.step, sample_text(model, *data.tokenizer, run.train.seed)));
  });
  progress.print(
      fmt::format("\nwrote {0}/model.safetensors, config.json and log.jsonl\n"
                  "try: tapegrad generate --model {0} --prompt \"...\"",
                  o.out));
}

void add_settings(Command& c, std::vector<Setting>& to) {
  for (const RunField& f : run_fields()) {
    std::string flag = "--" + f.name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    c.option(flag, f.kind, f.value, f.help, [&to, name = f.name](const std::string& word) {
      try {
        to.push_back(setting_from_word(name, word));
      } catch (const Error& e) {
        throw UsageError(e.what());
      }
    });
  }
}

}  // namespace

Subcommand train_command() {
  return {"train", "train a GPT on text", [](Command& c) -> std::function<void()> {
            auto o = std::make_shared<Options>();
            c.list("--data", "FILE", "texts, or one .bin of 16-bit token ids", o->data);
            c.option("--out", "DIR", "folder for the model and the log", o->out);
            c.option("--preset", "NAME", "a named run: " + preset_names(), o->preset);
            c.option("--arch", "NAME", "a named model: " + arch_names(), o->arch);
            c.option("--config", "FILE", "settings as JSON, under the names of the flags below (_ for -)",
                     o->config_file);
            c.option("--device", "NAME", "cpu or cuda", o->device);
            c.option("--threads", "threads of the CPU, 0: all", o->threads);
            c.option("--sample-every", "steps between samples of text, 0: none", o->sample_every);
            c.toggle("--quiet", "print nothing but errors", o->quiet);
            add_settings(c, o->settings);
            return [o] { train(*o); };
          }};
}

}  // namespace tg::apps
