/// @file
/// The log of a training run: one JSON object per step and line, written at once, so that a run that ends early has its
/// log. What a person watches is in models/apps. Callers of Trainer use it, and plots.
#pragma once
#include <tapegrad/core/io/file.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tg {

/// What one step of training was like.
struct StepRecord {
  int64_t step = 0;                ///< from 1
  double loss = 0;                 ///< mean cross-entropy of the step's batch before the update, in nats per token
  std::optional<double> val_loss;  ///< after the update, over the whole validation split; set on steps that evaluate
  double grad_norm = 0;            ///< norm of all gradients together, before clipping
  double lr = 0;
  double ms = 0;  ///< milliseconds of the step, without validation
  double tokens_per_s = 0;
  int64_t peak_bytes = 0;  ///< the most memory that tensors of the device have used in this process
};
/// One line of the log, without its end. Numbers that are not finite are null.
std::string to_json(const StepRecord&);

/// Writes the log of a run, and continues one.
class StepLog {
 public:
  /// Begins an empty file. An Error of kind io if that fails.
  explicit StepLog(const std::string& path);
  /// Continues a log after `step`. It keeps the lines up to that step and drops the others: those of steps that the
  /// resumed run does again, a line that a crash cut off, and lines that cannot be read. The file is replaced
  /// atomically, and created if it is missing.
  static StepLog resume(const std::string& path, int64_t step);

  /// Appends one line by one system call. An Error of kind io if that fails, or if the file was removed.
  void write(const StepRecord&);
  /// Returns when all lines are on the disk.
  void sync() { file_.sync(); }
  /// The step of the last line; 0 if there is none.
  int64_t last_step() const { return last_step_; }
  /// The number of steps without a line that resume() found.
  int64_t missing() const { return missing_; }
  /// The number of lines that resume() could not read.
  int64_t unreadable() const { return unreadable_; }
  /// The last step of the log at `path`, or 0 if there is none. Changes nothing.
  static int64_t last_step_of(const std::string& path);

 private:
  explicit StepLog(AppendFile file) : file_(std::move(file)) {}
  AppendFile file_;
  int64_t last_step_ = 0, missing_ = 0, unreadable_ = 0;
};

}  // namespace tg
