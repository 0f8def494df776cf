// The folder of a run: its lock, what may be overwritten in it, and the files that a run writes there. Users:
// run_session.cpp.
#pragma once
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/run_session.h>
#include <tapegrad/models/train/trainer.h>

#include <optional>
#include <string>

namespace tg::apps {

std::string checkpoint_path(const std::string& folder);
std::string log_path(const std::string& folder);
std::string watch_path(const std::string& folder);
RunConfig run_in(const Checkpoint&, const std::string& path);
const char* command_of(const Checkpoint&);
// Whose bits those of others differ from: backend, instruction set and, for a run that multiplies bf16, how.
std::string kernels_of(Device, const TrainConfig&);

// One process at a time writes the files of a run.
FileLock lock_folder(const std::string& folder);
// What is there is worth more than a new run that would overwrite it by mistake; a run that has done no step is worth
// nothing. A run of the other command leaves files that a new one does not replace.
void check_overwritten(const TrainOptions&, const std::string& out);

// The files of a run, which rank 0 writes. A save is the checkpoint first, then the others: what is newest in the
// folder can be resumed. With --no-save there is the log alone.
class Files {
 public:
  Files(const TrainOptions&, const RunSetup&, const TrainTarget&, const Trainer&);

  void write(const StepRecord& r) {
    if (log_) log_->write(r);
  }
  void save();
  void save_checkpoint_only();
  bool is_whole() const;                         // the files beside the checkpoint are there, and not older
  int64_t saved_step() const { return saved_; }  // of the checkpoint
  const std::optional<StepLog>& log() const { return log_; }

 private:
  StepLog open();

  const bool saves_;
  const RunSetup& start_;
  const TrainTarget& what_;
  const Trainer& trainer_;
  int64_t saved_ = 0;
  std::optional<StepLog> log_;
};

}  // namespace tg::apps
