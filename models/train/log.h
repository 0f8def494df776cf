/// @file
/// The log of a training run: one JSON object a line and a step, written as it happens, so that a run that ends early
/// has its log. Not what a person watches (models/apps). Users: Trainer's callers, plots.
#pragma once
#include <tapegrad/core/file.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tg {

struct StepRecord {
  int64_t step = 0;                ///< from 1
  double loss = 0;                 ///< mean cross-entropy of the step's batch before the update, in nats per token
  std::optional<double> val_loss;  ///< after the update, over the whole validation split; on steps that evaluate
  double grad_norm = 0;            ///< of all gradients together, before clipping
  double lr = 0;
  double ms = 0;  ///< of the step, validation left out
  double tokens_per_s = 0;
  int64_t peak_bytes = 0;  ///< the most memory that tensors of the device have held in this process
};
std::string to_json(const StepRecord&);  ///< one line, without its end; numbers that are not finite are null

class StepLog {
 public:
  explicit StepLog(const std::string& path);  ///< begins an empty file; an Error of kind io when that cannot be made
  /// Goes on with a log after `step`: keeps its lines up to that step and drops the others, which are those of steps
  /// that a resumed run does again, one that a crash left unfinished, and those that cannot be read. The file is
  /// replaced atomically, and made when it is missing.
  static StepLog resume(const std::string& path, int64_t step);

  /// One line, one system call. An Error of kind io when it cannot be written, or when the file was removed.
  void write(const StepRecord&);
  void sync() { file_.sync(); }                     ///< on return all lines are on the disk
  int64_t last_step() const { return last_step_; }  ///< of the last line; 0 when there is none
  /// What resume() found: steps without a line, and lines that could not be read.
  int64_t missing() const { return missing_; }
  int64_t unreadable() const { return unreadable_; }
  static int64_t last_step_of(const std::string& path);  ///< of a log that is there, or 0; changes nothing

 private:
  explicit StepLog(AppendFile file) : file_(std::move(file)) {}
  AppendFile file_;
  int64_t last_step_ = 0, missing_ = 0, unreadable_ = 0;
};

}  // namespace tg
