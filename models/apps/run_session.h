// Shared by `train` and `finetune`: options, data, folder and steps of a run, and resuming.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/io/checkpoint.h>

#include <functional>
#include <optional>

namespace tg::apps {

struct TrainOptions {
  std::string command, result;  // "train" and "model", or "finetune" and "adapter"
  std::vector<std::string> data;
  std::string config_file, out, resume, device = "cpu", profile, machine, tensorboard;
  int64_t threads = 0;
  std::optional<int64_t> sample_every;
  std::string progress;                // empty: not given
  std::optional<double> comm_timeout;  // seconds
  std::optional<int64_t> global_batch;
  bool quiet = false, ignore_memory = false, overwrite = false, no_save = false;
  SettingFlags settings;
};
// Flags for the settings with wanted(name).
void add_settings(Command&, SettingFlags& to, const std::function<bool(const std::string&)>& wanted);
DataConfig data_config(const SettingFlags&);
// --config and these flags.
void add_settings(Command&, TrainOptions&, const std::function<bool(const std::string&)>& wanted);
// Flags for all TrainOptions, and settings with wanted(name). `out` is the default of --out.
void add_train_options(Command&, TrainOptions&, const char* out, const std::function<bool(const std::string&)>& wanted);
Device prepare(const TrainOptions&);  // checks them, sets the number of threads
// Applies the base, the config file, then the flags. may_differ() may throw an Error for a setting that differs from
// the base. It runs before validation.
RunConfig run_of(const TrainOptions&, const RunConfig& base,
                 const std::function<void(const Difference&)>& may_differ = {});

// Reads the files of a run. May set its vocabulary.
using ReadData = std::function<RunData(const std::vector<std::string>& files, RunConfig&)>;

inline constexpr std::string_view kProgress[] = {"auto", "bar", "lines", "none"};
// How a run reports progress. Not in the checkpoint, since it does not affect results. A resumed run keeps it.
struct Watch {
  int64_t sample_every = 0;
  bool quiet = false;
  std::string progress = "auto";
  std::string tensorboard = "";  // absolute; empty: none
  void validate() const;
  bool operator==(const Watch&) const = default;
};
template <class F> void visit_fields(Watch& w, F&& f) {
  f("sample_every", w.sample_every), f("quiet", w.quiet), f("progress", w.progress), f("tensorboard", w.tensorboard);
}

// A run before its first step.
struct RunSetup {
  std::string out;
  RunConfig run;
  RunData data;
  DataIdentity identity;
  std::optional<Finetuning> finetuning = std::nullopt;
  std::string init = "";                             // Checkpoint::init
  std::optional<TrainerState> state = std::nullopt;  // of a resumed run
  std::optional<FileLock> lock = std::nullopt;       // of the folder
  bool changed = false;                              // with other settings than before
  Watch watch = {};
};
RunSetup new_run(const TrainOptions&, RunConfig, const ReadData&);
struct OpenedCheckpoint {
  std::string path;
  Checkpoint checkpoint;
  std::optional<FileLock> lock;
};
// Locks and reads the checkpoint of --resume. An Error if the other command wrote it.
OpenedCheckpoint open_checkpoint(const TrainOptions&);
RunSetup resumed_run(const TrainOptions&, OpenedCheckpoint, const ReadData&);
// Returns f(), which reads the `what` of a resumed run. Unless its path was `named` now, an Error says where the path
// came from.
template <class F> auto explain_missing(const std::string& checkpoint, const char* what, bool named, F f) {
  try {
    return f();
  } catch (const Error& e) {
    if (named) throw;
    throw Error(e.kind(), fmt::format("{}\n{} says that the {} was there. Restore it, or pass its path with --{}.",
                                      e.what(), checkpoint, what, what));
  }
}

// The model and the files of a run.
struct TrainTarget {
  Gpt model;
  Params params;      // trained ones
  std::string title;  // for the header
  std::function<void()> save;
  std::vector<std::string> files;  // written by save()
  std::string hint;                // an example command for them
  std::string note = "";           // about the run
};

// Throws an Error when the bytes of one tensor overflow 63 bits, because a plan cannot count them.
void check_sizes(std::string_view command, const RunConfig&);
// Calls train(), which makes the model and trains it. Before, throws an Error if the plan (with the data, if on the
// CPU) exceeds the device's total memory, unless options.ignore_memory. A memory Error in train() also tells the plan.
// Both name settings that fit. `planned` is in bytes, or 0 without a plan.
int in_memory(const TrainOptions&, const RunSetup&, Device, const std::function<int(int64_t planned)>& train);

// Checks the memory, calls make(), locks the folder, trains until the end or a signal. Returns the exit status.
int run_training(const TrainOptions&, RunSetup&, Device, const std::function<TrainTarget()>& make);

}  // namespace tg::apps
