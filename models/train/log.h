// The log of a training run: one JSON object a line and a step, flushed as it happens, so that a run that ends early
// has its log. Not what a person watches (models/apps). Users: Trainer's callers, plots.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

namespace tg {

struct StepRecord {
  int64_t step = 0;                // from 1
  double loss = 0;                 // mean cross-entropy of the step's batch before the update, in nats per token
  std::optional<double> val_loss;  // after the update, over the whole validation split; on steps that evaluate
  double grad_norm = 0;            // of all gradients together, before clipping
  double lr = 0;
  double ms = 0;  // of the step, validation left out
  double tokens_per_s = 0;
  int64_t peak_bytes = 0;  // the most memory that tensors of the device have held in this process
};
std::string to_json(const StepRecord&);  // one line, without its end; numbers that are not finite are null

class StepLog {
 public:
  explicit StepLog(const std::string& path);  // begins an empty file; an Error of kind io when that cannot be made
  void write(const StepRecord&);              // an Error of kind io when the line cannot be written

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace tg
