// `tapegrad train`: text or token files in, a model folder out, and a checkpoint to go on from after any end.
#include <fmt/core.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/file.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/interrupt.h>
#include <tapegrad/models/apps/memory.h>
#include <tapegrad/models/apps/progress.h>
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/generate.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/models/train/trainer.h>

#include <algorithm>
#include <filesystem>
#include <optional>

namespace tg::apps {
namespace {

constexpr int64_t kSampleTokens = 200;

struct Options {
  std::vector<std::string> data;
  std::string config_file, preset, arch, out, resume, device = "cpu";
  int64_t threads = 0, sample_every = 0;
  bool quiet = false;
  std::vector<Setting> settings;  // from flags
};

struct Data {
  TokenData tokens;
  std::unique_ptr<Tokenizer> tokenizer;  // null: token ids with a vocabulary of their own
};

// The base first, then the file, then the flags.
RunConfig run_of(const Options& o, const RunConfig& base) {
  std::vector<Setting> settings;
  if (!o.config_file.empty()) settings = settings_from_json(MappedFile(o.config_file).text(), o.config_file);
  settings.insert(settings.end(), o.settings.begin(), o.settings.end());
  return with_settings(base, settings);
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

void note_of(const std::string& text) {
  std::fflush(stdout);
  std::fputs(fmt::format("tapegrad: {}\n", text).c_str(), stderr);  // may fail: the terminal may be gone
}

// What a run is before its first step.
struct Start {
  std::string out;
  RunConfig run;
  Data data;
  DataIdentity identity;
  std::optional<TrainerState> state = std::nullopt;  // of a run that goes on
  std::optional<FileLock> lock = std::nullopt;       // of the folder
};
std::string name_of(const std::vector<std::string>& files) {
  return files.size() == 1 ? files[0] : fmt::format("{} files", files.size());
}
std::string checkpoint_path(const std::string& folder) { return folder + "/checkpoint.safetensors"; }
std::string log_path(const std::string& folder) { return folder + "/log.jsonl"; }

// One process at a time writes the files of a run.
FileLock lock_folder(const std::string& folder) {
  try {
    return FileLock(folder + "/.lock");
  } catch (const Error& e) {
    if (e.kind() != Error::Kind::state) throw;
    throw Error(e.kind(), fmt::format("[train] another process is training in {}. One at a time may write there. Wait "
                                      "until it has ended, end it, or train in another folder.",
                                      folder));
  }
}

// A run that was cut off is worth more than the new one that would overwrite it by mistake; one that has done no step
// is worth nothing.
void check_unfinished(const std::string& out) {
  const std::string path = checkpoint_path(out);
  if (!std::filesystem::exists(path)) return;
  const auto [saved, steps] = [&] {
    try {
      const Checkpoint c = load_checkpoint(path);
      return std::pair(c.state.step, c.run.train.max_steps);
    } catch (const Error& e) {
      throw Error(e.kind(),
                  fmt::format("{}\nA new run would overwrite it. Remove it, or choose another --out.", e.what()));
    }
  }();
  const int64_t step = std::max(saved, StepLog::last_step_of(log_path(out)));  // the log is ahead of the last save
  TG_CHECK(step == 0 || saved >= steps, value,
           "[train] {} is of a run that stopped at step {} of {}. A new run would overwrite it. Go on with `tapegrad "
           "train --resume {}`, choose another --out, or remove the folder.",
           path, step, steps, out);
}

std::vector<std::string> absolute(std::vector<std::string> files) {
  for (std::string& file : files) file = std::filesystem::absolute(file).lexically_normal().string();
  return files;
}

Start new_run(const Options& o) {
  if (o.data.empty()) throw UsageError("train needs --data FILE..., or --resume DIR");
  RunConfig base = o.preset.empty() ? RunConfig() : preset(o.preset);
  if (!o.arch.empty()) base.model = arch(o.arch);
  RunConfig run = run_of(o, base);
  Data data = read_data(o.data, run);
  DataIdentity identity = DataIdentity::of(data.tokens, absolute(o.data));
  return {o.out.empty() ? "out" : o.out, std::move(run), std::move(data), std::move(identity)};
}

// Settings that change nothing that was computed so far.
void check_settings(const Checkpoint& c, const RunConfig& run, const std::string& path) {
  constexpr std::string_view kFree[] = {"max_steps", "eval_every", "checkpoint_every"};
  for (const Difference& d : differences(c.run, run))
    TG_CHECK(std::find(std::begin(kFree), std::end(kFree), d.name) != std::end(kFree), value,
             "[train] {} is {} in {}, and {} is given. A run goes on with the settings it began with; only max_steps, "
             "eval_every and checkpoint_every may change. Leave it out.",
             d.name, d.before, path, d.after);
  TG_CHECK(run.train.max_steps >= c.state.step, value,
           "[train] {} is of step {}, and max_steps is {}. It must be at least that. Raise it or leave it out.", path,
           c.state.step, run.train.max_steps);
  if (run.train.max_steps != c.run.train.max_steps)
    note_of(fmt::format("max_steps was {} and is {}: from here on the learning rate follows the schedule of {} steps",
                        c.run.train.max_steps, run.train.max_steps, run.train.max_steps));
}

// Data that nobody named this time is looked for where it was.
Data read_again(const Options& o, const std::vector<std::string>& files, RunConfig& run, const std::string& path) {
  try {
    return read_data(files, run);
  } catch (const Error& e) {
    if (!o.data.empty()) throw;
    throw Error(e.kind(),
                fmt::format("{}\n{} says that the data was there. Put it back, or name its place with --data.",
                            e.what(), path));
  }
}

Start resumed_run(const Options& o) {
  if (!o.out.empty()) throw UsageError("--resume DIR goes on in DIR; leave --out away");
  if (!o.preset.empty() || !o.arch.empty())
    throw UsageError("--resume takes all settings from the checkpoint; leave --preset and --arch away");
  const std::string path = checkpoint_path(o.resume);
  std::optional<FileLock> lock;
  if (std::filesystem::exists(path)) lock = lock_folder(o.resume);  // before another process changes it
  Checkpoint c = load_checkpoint(path);
  RunConfig run = run_of(o, c.run);
  check_settings(c, run, path);
  const std::vector<std::string>& files = o.data.empty() ? c.data.files : o.data;
  TG_CHECK(!files.empty(), value, "[train] {} does not say where its data was. Name it with --data.", path);
  RunConfig read = run;
  if (!c.tokenizer.empty()) read.model.vocab_size = 0;  // a text that is another is found below, by its tokens
  Data data = read_again(o, files, read, path);
  DataIdentity identity = DataIdentity::of(data.tokens, absolute(files));
  TG_CHECK(identity.same_tokens(c.data) && (data.tokenizer ? data.tokenizer->to_json() : "") == c.tokenizer, value,
           "[train] {} is no longer what {} was trained on: it gives {} tokens (hash {:016x}), and there were {} (hash "
           "{:016x}). A run goes on with the same data only. Restore it, or name its place with --data.",
           name_of(identity.files), path, identity.tokens, identity.hash, c.data.tokens, c.data.hash);
  return {o.resume, std::move(run), std::move(data), std::move(identity), std::move(c.state), std::move(lock)};
}

void print_header(const Options& o, const Start& s, const Params& params, const Trainer& trainer) {
  const GptConfig& m = s.run.model;
  const TrainConfig& t = s.run.train;
  fmt::print("model   GPT: {} layers, {} heads, width {}, context {}, vocabulary {} ({}); {} parameters\n", m.layers,
             m.heads, m.width, m.context, m.vocab_size, s.data.tokenizer ? s.run.tokenizer : "ids", params.count());
  fmt::print("data    {}: {} tokens to train on, {} to validate on\n", name_of(s.identity.files),
             trainer.train_tokens(), trainer.val_tokens());
  fmt::print("device  {} ({})\n", o.device, runtime_of(params.device()).describe(params.device().index));
  fmt::print("run     {} steps of {}{} x {} tokens, seed {}, into {}/\n", t.max_steps,
             t.accumulate > 1 ? fmt::format("{} x ", t.accumulate) : "", t.batch, m.context, t.seed, s.out);
  if (s.state) fmt::print("resume  after step {}\n", s.state->step);
  fmt::print("\n");
  std::fflush(stdout);
}

// Makes the folder of a new run and takes it.
void take_folder(Start& s) {
  make_folder(s.out);
  s.lock = lock_folder(s.out);
  check_unfinished(s.out);
}

// The files of a run. A save is the checkpoint first, then the model: what is newest in the folder can be resumed.
class Files {
 public:
  Files(const Start& s, const Gpt& model, const Params& params, const Trainer& trainer)
      : start_(s), model_(model), params_(params), trainer_(trainer), log_(open()) {}

  void write(const StepRecord& r) { log_.write(r); }
  void save() {
    log_.sync();
    save_checkpoint_only();
    save_model(start_.out, model_, params_, start_.data.tokenizer.get(), to_json(start_.run.train));
  }
  int64_t saved_step() const { return saved_; }  // of the checkpoint
  const StepLog& log() const { return log_; }

 private:
  StepLog open() {
    const std::string path = log_path(start_.out);
    for (const char* name : {"checkpoint.safetensors", "model.safetensors", "config.json", "log.jsonl"})
      remove_leftovers(start_.out + "/" + name);
    if (!start_.state) {
      save_checkpoint_only();  // from now on the run can be resumed; a disk that cannot hold it is found here
      return StepLog(path);
    }
    saved_ = start_.state->step;
    return StepLog::resume(path, saved_);
  }
  void save_checkpoint_only() {
    save_checkpoint(checkpoint_path(start_.out),
                    {.run = start_.run,
                     .tokenizer = start_.data.tokenizer ? start_.data.tokenizer->to_json() : "",
                     .data = start_.identity,
                     .state = trainer_.state()});
    saved_ = trainer_.steps();
  }

  const Start& start_;
  const Gpt& model_;
  const Params& params_;
  const Trainer& trainer_;
  int64_t saved_ = 0;
  StepLog log_;
};

// All steps that are left, or those until a signal; the exit status.
int run_steps(const Options& o, const Start& s, const Gpt& model, Trainer& trainer, Files& files) {
  const TrainConfig& t = s.run.train;
  Progress progress(t.max_steps, trainer.steps(), o.quiet);
  const Interrupt interrupt;
  const bool was_done = trainer.done();
  while (!trainer.done() && !Interrupt::signal()) {
    const StepRecord r = trainer.step();
    files.write(r);
    progress.show(r);
    if (t.saves_after(r.step)) files.save();
    if (o.sample_every > 0 && r.step % o.sample_every == 0)
      progress.print(fmt::format("--- step {}\n{}\n---", r.step, sample_text(model, *s.data.tokenizer, t.seed)));
  }
  if (was_done || files.saved_step() != trainer.steps()) files.save();
  if (const int signal = Interrupt::signal(); signal && !trainer.done()) {
    progress.print("");
    note_of(fmt::format("stopped after step {} of {}; `tapegrad train --resume {}` goes on", trainer.steps(),
                        t.max_steps, s.out));
    return 128 + signal;
  }
  progress.print(
      fmt::format("\nwrote {0}/model.safetensors, config.json, log.jsonl and checkpoint.safetensors\n"
                  "try: tapegrad generate --model {0} --prompt \"...\"",
                  s.out));
  return 0;
}

int train(const Options& o) {
  if (o.quiet && o.sample_every > 0) throw UsageError("--quiet prints nothing, no samples either; leave one away");
  const Device device = Device::parse(o.device);
  runtime_of(device);
  if (o.threads != 0) set_num_threads(int(std::clamp<int64_t>(o.threads, INT32_MIN, INT32_MAX)));
  TG_CHECK(o.sample_every >= 0, value, "[train] --sample-every is {}. It must be 0 or more.", o.sample_every);
  Start s = o.resume.empty() ? new_run(o) : resumed_run(o);
  TG_CHECK(o.sample_every == 0 || s.data.tokenizer, value,
           "[train] --sample-every needs a tokenizer, and {} holds token ids only. Leave it out.",
           name_of(s.identity.files));
  check_memory("train", least_bytes(s.run), "Parameters, gradients, moments and the activations of a micro-batch",
               device);
  const Params params(device, s.run.train.seed);
  const Gpt model(params, s.run.model);
  Trainer trainer(model, params, s.data.tokens, s.run.train);
  if (s.state) {
    trainer.load_state(*s.state);
    s.state->tensors.clear();  // the trainer has them
  }
  if (!s.lock) take_folder(s);
  Files files(s, model, params, trainer);
  if (!o.quiet) print_header(o, s, params, trainer);
  if (files.log().missing() > 0)
    note_of(
        fmt::format("{} lacks {} of the steps before {} ({} lines could not be read and are dropped); the run goes "
                    "on all the same",
                    log_path(s.out), files.log().missing(), trainer.steps() + 1, files.log().unreadable()));
  try {
    return run_steps(o, s, model, trainer, files);
  } catch (const Error& e) {
    const std::string path = checkpoint_path(s.out);
    if (!std::filesystem::exists(path)) throw;
    throw Error(e.kind(),
                fmt::format("{}\n{} is as it was after step {}; `tapegrad train --resume {}` goes on from there.",
                            e.what(), path, files.saved_step(), s.out),
                e.scoped());
  }
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
  return {"train", "train a GPT on text", [](Command& c) -> std::function<int()> {
            auto o = std::make_shared<Options>();
            c.list("--data", "FILE", "texts, or one .bin of 16-bit token ids", o->data);
            c.option("--out", "DIR", "out", "folder for the checkpoint, the model and the log",
                     [o](const std::string& word) { o->out = word; });
            c.option("--resume", "DIR",
                     "go on with the run in DIR, from DIR/checkpoint.safetensors: data and settings are those it began "
                     "with; max-steps, eval-every and checkpoint-every may change",
                     o->resume);
            c.option("--preset", "NAME", "a named run: " + preset_names(), o->preset);
            c.option("--arch", "NAME", "a named model: " + arch_names(), o->arch);
            c.option("--config", "FILE", "settings as JSON, under the names of the flags below (_ for -)",
                     o->config_file);
            c.option("--device", "NAME", "cpu or cuda", o->device);
            c.option("--threads", "threads of the CPU, 0: all", o->threads);
            c.option("--sample-every", "steps between samples of text, 0: none", o->sample_every);
            c.toggle("--quiet", "print nothing but errors", o->quiet);
            add_settings(c, o->settings);
            return [o] { return train(*o); };
          }};
}

}  // namespace tg::apps
