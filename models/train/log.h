/// @file
/// The log of a training run: a JSON line per step, written immediately, so that it survives an early end.
#pragma once
#include <tapegrad/core/io/file.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tg {

/// Record of one training step.
struct StepRecord {
  int64_t step = 0;                ///< counted from 1
  double loss = 0;                 ///< mean cross-entropy before the update, nats per token
  std::optional<double> val_loss;  ///< value after the update, if evaluated
  double grad_norm = 0;            ///< global gradient norm before clipping
  double lr = 0;
  double ms = 0;  ///< step milliseconds, without validation
  double tokens_per_s = 0;
  int64_t peak_bytes = 0;                         ///< peak bytes of the device's tensors in this process
  std::optional<double> acc = {}, acc_norm = {};  ///< scores of a task, which Trainer does not set
};
/// One line of the log, without its newline. Non-finite numbers are null.
std::string to_json(const StepRecord&);

/// Writes or continues the log of a run.
class StepLog {
 public:
  /// Starts an empty file. Throws an Error of kind io on failure.
  explicit StepLog(const std::string& path);
  /// Continues after `step`: drops later steps and unreadable lines. The file is replaced atomically, or created.
  static StepLog resume(const std::string& path, int64_t step);

  /// Appends a line in one system call. Errors: kind io, also for a removed file.
  void write(const StepRecord&);
  void sync() { file_.sync(); }
  /// Steps without a line, as found by resume().
  int64_t missing() const { return missing_; }
  /// Lines that resume() could not read.
  int64_t unreadable() const { return unreadable_; }
  /// Last step of the log at `path`, or 0; leaves the file unchanged.
  static int64_t last_step_of(const std::string& path);

 private:
  explicit StepLog(AppendFile file) : file_(std::move(file)) {}
  AppendFile file_;
  int64_t missing_ = 0, unreadable_ = 0;
};

/// Steps of a log.
struct LoggedSteps {
  std::vector<StepRecord> steps;  ///< steps increase; null and missing numbers are NaN
  int64_t unreadable = 0;         ///< lines without a step
};
/// Reads a log, also of a running process. Throws an Error of kind io on failure.
LoggedSteps read_log(const std::string& path);

}  // namespace tg
