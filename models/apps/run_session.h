// What `train` and `finetune` share: the options and the data of a run, the folder that it writes and goes on from, and
// its steps until the end or a signal. What is trained, and what files come of it, is up to them. Users: train.cpp,
// finetune.cpp; generate.cpp and inspect.cpp for single functions.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/train/run_config.h>

#include <functional>
#include <memory>
#include <optional>

namespace tg::apps {

struct TrainOptions {
  std::string command, result;  // "train" and "model", or "finetune" and "adapter"
  std::vector<std::string> data;
  std::string config_file, out, resume, device = "cpu", profile, machine;
  int64_t threads = 0;
  std::optional<int64_t> sample_every;
  std::string progress;                // empty: not given
  std::optional<double> comm_timeout;  // seconds
  std::optional<int64_t> global_batch;
  bool quiet = false, ignore_memory = false, overwrite = false, no_save = false;
  std::vector<std::pair<std::string, std::string>> settings;  // from flags: names and words
};
// --config, --device, and flags for the settings with wanted(name).
void add_settings(Command&, TrainOptions&, const std::function<bool(const std::string&)>& wanted);
// Flags for all of them, and for the settings with wanted(name); `out` is the default of --out.
void add_train_options(Command&, TrainOptions&, const char* out, const std::function<bool(const std::string&)>& wanted);
Device prepare(const TrainOptions&);  // checks them, and sets the number of threads
// The base first, then the file, then the flags. may_differ() throws an Error for a setting that must be that of the
// base, before the settings are checked together.
RunConfig run_of(const TrainOptions&, const RunConfig& base,
                 const std::function<void(const Difference&)>& may_differ = {});

// Reads the files of a run, and may settle the vocabulary in it.
using ReadData = std::function<RunData(const std::vector<std::string>& files, RunConfig&)>;

// How a run is watched. It computes nothing, so it is not in the checkpoint; a run that goes on keeps it.
struct Watch {
  int64_t sample_every = 0;
  bool quiet = false;
  std::string progress = "auto";
  bool operator==(const Watch&) const = default;
};

// What a run is before its first step.
struct RunSetup {
  std::string out;
  RunConfig run;
  RunData data;
  DataIdentity identity;
  std::optional<Finetuning> finetuning = std::nullopt;
  std::string init = "";                             // Checkpoint::init
  std::optional<TrainerState> state = std::nullopt;  // of a run that goes on
  std::optional<FileLock> lock = std::nullopt;       // of the folder
  bool changed = false;                              // a run that goes on has other settings now
  Watch watch = {};
};
RunSetup new_run(const TrainOptions&, RunConfig, const ReadData&);
struct OpenedCheckpoint {
  std::string path;
  Checkpoint checkpoint;
  std::optional<FileLock> lock;
};
// The checkpoint in the folder of --resume, which is locked. An Error when it is of the other command's run.
OpenedCheckpoint open_checkpoint(const TrainOptions&);
RunSetup resumed_run(const TrainOptions&, OpenedCheckpoint, const ReadData&);
// f(), which reads the `what` of a run that goes on. Unless it was named this time, an Error tells who says that it is
// there.
template <class F> auto explain_missing(const std::string& checkpoint, const char* what, bool named, F f) {
  try {
    return f();
  } catch (const Error& e) {
    if (named) throw;
    throw Error(e.kind(), fmt::format("{}\n{} says that the {} was there. Put it back, or name its place with --{}.",
                                      e.what(), checkpoint, what, what));
  }
}

// What a run trains, and what a save writes beside the checkpoint.
struct TrainTarget {
  Gpt model;
  Params params;      // that are trained
  std::string title;  // about them, for the header
  std::function<void()> save;
  std::vector<std::string> files;  // that save() writes
  std::string hint;                // a command that uses them
  std::string note = "";           // about the run
};
// Makes what is trained, if there is memory for it, and takes the folder; trains until the end or a signal, and writes
// its files. Returns the exit status.
int run_training(const TrainOptions&, RunSetup&, Device, const std::function<TrainTarget()>& make);

}  // namespace tg::apps
