// Types of training runs.
#pragma once
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/io/checkpoint.h>

#include <functional>
#include <optional>

namespace tg::apps {

struct TrainOptions {
  std::string command, result;  // "train" and "model", or "finetune" and "adapter"
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
  void validate() const {}
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

}  // namespace tg::apps
