// The folder of a run: lock, checks, files.
#pragma once
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/train/events.h>
#include <tapegrad/models/train/trainer.h>

namespace tg::apps {

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

}  // namespace tg::apps
