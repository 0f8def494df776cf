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
  std::string config_file, out, resume, device = "cpu", profile, machine, tensorboard;
  int64_t threads = 0;
  std::optional<int64_t> sample_every;
  std::string progress;                // empty: not given
  std::optional<double> comm_timeout;  // seconds
  std::optional<int64_t> global_batch;
  bool quiet = false, ignore_memory = false, overwrite = false, no_save = false;
  SettingFlags settings;
};

inline constexpr std::string_view kProgress[] = {"auto", "bar", "lines", "none"};
// How a run reports progress. Not in the checkpoint, since it does not affect results. A resumed run keeps it.
struct ProgressOptions {
  int64_t sample_every = 0;
  bool quiet = false;
  std::string progress = "auto";
  std::string tensorboard = "";  // absolute; empty: none
  void validate() const;
  bool operator==(const ProgressOptions&) const = default;
};
template <class F> void visit_fields(ProgressOptions& p, F&& f) {
  f("sample_every", p.sample_every), f("quiet", p.quiet), f("progress", p.progress), f("tensorboard", p.tensorboard);
}

// A run before its first step.
struct RunSetup {
  std::string out;
  RunConfig run = {};
  RunData data = {};
  Checkpoint checkpoint = {};  // its state is that of a resumed run
  ProgressOptions progress = {};
  bool resumed = false, changed = false;        // changed: with other settings than before
  std::optional<FileLock> lock = std::nullopt;  // of the folder
};

struct TrainedModel {
  Gpt model;
  Params params;      // trained ones
  std::string title;  // for the header
  std::function<void()> save;
  std::vector<std::string> files;  // written by save()
  std::string hint;                // an example command for them
  std::string note = "";           // about the run
};

}  // namespace tg::apps
