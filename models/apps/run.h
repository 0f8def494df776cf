// Training runs: options and flags, the run's folder, how a run begins or continues, and its loop.
#pragma once
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/train/events.h>
#include <tapegrad/models/train/trainer.h>

#include <functional>
#include <optional>

namespace tg::apps {

struct TrainOptions {
  std::string command;  // "train" or "finetune"
  std::vector<std::string> data;
  std::string config_file, out, resume, device = "cpu", profile, machine, tensorboard, task;
  int64_t threads = 0;
  std::optional<int64_t> sample_every, task_every;
  std::string progress;                // empty: default
  std::optional<double> comm_timeout;  // seconds
  std::optional<int64_t> global_batch;
  bool quiet = false, ignore_memory = false, overwrite = false, no_save = false;
  SettingFlags settings;
  std::function<bool(const StepRecord&)> go_on = {};  // `reproduce`: takes each record; false ends the run
};

inline constexpr std::string_view kProgress[] = {"auto", "bar", "lines", "none"};
// A run's progress reports. Not in the checkpoint: results do not depend on it. Resumed runs keep it.
struct ProgressOptions {
  int64_t sample_every = 0;
  bool quiet = false;
  std::string progress = "auto";
  std::string tensorboard = "", task = "";  // absolute paths; empty: none
  int64_t task_every = 250;                 // and after the last step; 0: only there
  void validate() const;
  bool operator==(const ProgressOptions&) const = default;
};
template <class F> void visit_fields(ProgressOptions& p, F&& f) {
  f("sample_every", p.sample_every), f("quiet", p.quiet), f("progress", p.progress), f("tensorboard", p.tensorboard);
  f("task", p.task), f("task_every", p.task_every);
}

// Not in the checkpoint, whose bytes are equal on any number of ranks with one micro-batch each. 0: unknown.
struct RunMachine {
  int64_t threads = 0, ranks = 0;
};
template <class F> void visit_fields(RunMachine& m, F&& f) { f("threads", m.threads), f("ranks", m.ranks); }

// A run before its first step.
struct RunSetup {
  std::string out;
  RunConfig run = {};
  RunData data = {};
  Checkpoint checkpoint = {};  // the state of a resumed run
  ProgressOptions progress = {};
  bool resumed = false, changed = false;        // changed: other settings
  std::optional<FileLock> lock = std::nullopt;  // the run's folder
};

struct TrainedModel {
  Gpt model;
  Params params;      // trainable
  std::string title;  // header
  std::function<void()> save;
  std::vector<std::string> files;  // written by save()
  std::string hint;                // example command
  std::string note = "";
};

// Continues the run in options.resume, from the start if its checkpoint has no tensors. `model`: where its --model
// is now, or "".
int resume_training(const TrainOptions&, const std::string& model);
int resume_finetuning(const TrainOptions&, const std::string& model);

// Flags of a new adapter and its base.
struct LoraFlags {
  std::string base_dtype;
  std::vector<std::string> targets;
  std::optional<int64_t> rank;
  std::optional<double> alpha, dropout;
  bool rslora = false;
  bool given() const { return rank || alpha || dropout || rslora || !targets.empty() || !base_dtype.empty(); }
  DType base() const { return base_dtype == "bf16" || base_dtype == "nf4" ? DType::bf16 : DType::f32; }
  Blocks blocks() const { return base_dtype == "nf4" ? Blocks::nf4 : Blocks::file; }
  LoraConfig config() const;
};
void add_lora_options(Command&, LoraFlags&);

using WantedSetting = bool (*)(std::string_view name);
void add_settings(Command&, SettingFlags& to, WantedSetting);
DataConfig data_config(const SettingFlags&);
// Includes --config.
void add_settings(Command&, TrainOptions&, WantedSetting);
// `out`: default of --out.
void add_train_options(Command&, TrainOptions&, const char* out, WantedSetting);
Device prepare(const TrainOptions&);  // checks options, sets the threads
// Later ones win: base, config file, flags. may_differ() runs before validation.
RunConfig run_of(const TrainOptions&, const RunConfig& base,
                 const std::function<void(const Difference&)>& may_differ = {});

// Reads the files of a run; may set the vocabulary size.
using ReadData = std::function<RunData(const std::vector<std::string>& files, RunConfig&)>;
RunSetup new_run(const TrainOptions&, RunConfig, const ReadData&);
// Locks and reads the checkpoint of --resume. An Error if the other command wrote it.
RunSetup open_checkpoint(const TrainOptions&);
// Hashes the initial weights of c.init. An Error if the checkpoint names others.
void check_init(const TrainOptions&, Checkpoint& c, const Params& weights);
RunSetup resumed_run(const TrainOptions&, RunSetup opened, const ReadData&);
// Calls f(), which reads the `what`. Unless the user `named` its path, an Error adds the path's origin.
template <class F> auto explain_missing(const std::string& checkpoint, const char* what, bool named, F f) {
  return detail::explained(f, [&](const Error&) {
    return named ? ""
                 : fmt::format("{0} says that the {1} was there. Restore it, or pass its path with --{1}.", checkpoint,
                               what);
  });
}

inline std::string checkpoint_path(const std::string& folder) { return folder + "/checkpoint.safetensors"; }
// Whether `dir` is in or next to the run's folder.
bool is_near(const std::string& dir, const std::string& run);
inline std::string log_path(const std::string& folder) { return folder + "/log.jsonl"; }
// The default if missing or damaged (`note` tells).
ProgressOptions saved_progress(const std::string& folder, bool note = false);
RunMachine machine_of(const std::string& folder);  // unknown if missing or damaged
RunConfig run_in(const Checkpoint&, const std::string& path);
const char* command_of(const Checkpoint&);
// Backend, instruction set, bf16 matmul method: they decide rounding.
std::string kernels_of(Device, const TrainConfig&);

// One process at a time writes a run's files.
FileLock lock_folder(const TrainOptions&, const std::string& folder);
// An Error if it would replace an input or a run of the other command; without --overwrite, also `files` or a run that
// has steps.
void check_overwritten(const TrainOptions&, const std::string& out, const std::vector<std::string>& files);

// A run's files, written by rank 0, checkpoint first. --no-save: only the log.
class RunFiles {
 public:
  RunFiles(const TrainOptions&, const RunSetup&, const TrainedModel&, const Trainer&);

  void write(const StepRecord&);
  void write_sample(int64_t step, const std::string& text) {
    if (events_) events_->write_text("samples", step, text);
  }
  void flush() {
    if (events_) events_->flush();
  }
  void save();
  void save_checkpoint_only();
  bool is_whole() const;                         // no file is older than the checkpoint
  int64_t saved_step() const { return saved_; }  // step of the checkpoint
  const std::optional<StepLog>& log() const { return log_; }

 private:
  StepLog open(int64_t done);

  const bool saves_;
  const RunSetup& start_;
  const TrainedModel& what_;
  const Trainer& trainer_;
  int64_t saved_ = 0;
  std::optional<StepLog> log_;
  std::optional<EventFile> events_;
};

// An Error if a tensor's bytes overflow the plan's 63 bits.
void check_sizes(std::string_view command, const RunConfig&);
// Calls train(), which makes the model. An Error if the plan (on the CPU with data) exceeds the memory, unless
// options.ignore_memory. Memory Errors of train() tell the plan. `planned`: bytes, or 0.
int in_memory(const TrainOptions&, const RunSetup&, Device, const std::function<int(int64_t planned)>& train);
// Checks memory, calls make(), locks the folder, trains to the end or a signal. Returns the exit status.
int run_training(const TrainOptions&, RunSetup&, Device, const std::function<TrainedModel()>& make);

}  // namespace tg::apps
