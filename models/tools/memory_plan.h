/// @file
/// plan_memory(): the bytes of training any model, before allocation, by its step in a dry_run().
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/lora.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/models/train/config.h>

#include <functional>
#include <string>
#include <vector>

namespace tg {

/// Bytes of tensors on the device; `parameters` is a count.
struct MemoryPlan {
  int64_t parameters = 0;   ///< of the model and its adapters
  int64_t weights = 0;      ///< of all parameters
  int64_t gradients = 0;    ///< of the trained parameters, at the end of backward
  int64_t moments = 0;      ///< moments and buffers of the optimiser
  int64_t activations = 0;  ///< kept for backward after a forward, logits included
  /// The peak, from making the model to the end of a step: StepRecord::peak_bytes if nothing else is in memory.
  int64_t peak = 0;
  /// Gradients that the running backward had completed at the peak: none in forward and at its start, all at its end
  /// and in the optimiser's step. An unfinished one does not count.
  int64_t gradients_at_peak = 0;
};

/// The memory of Trainer's step, in config.accumulate micro-batches of the size of batch(). Values are not computed, so
/// forward() must not read any. With `adapters`, only those are trained, over a frozen model. `weights` is the dtype of
/// the model's parameters. With several ranks it is each rank's plan, with gradients and their sums in memory together;
/// `gradients` counts the sums. Communicator::fake() suffices. Errors: a wrong field, a missing device, large sizes.
MemoryPlan plan_memory(const MakeModel&, const std::function<Batch()>& batch, const TrainConfig& config, Device = {},
                       const LoraConfig* adapters = nullptr, DType weights = DType::f32,
                       const std::shared_ptr<Communicator>& = Communicator::self());
/// plan_memory() of a Gpt, on config.batch windows of config.window_in(model.context) tokens.
MemoryPlan plan_memory(const GptConfig& model, const TrainConfig& config, Device = {},
                       const LoraConfig* adapters = nullptr, DType weights = DType::f32,
                       const std::shared_ptr<Communicator>& = Communicator::self());

/// A variant of a run and the memory that it takes.
struct Variant {
  std::string name;                ///< the run's name, or the flags of an alternative
  std::function<int64_t()> bytes;  ///< computes the peak
};

namespace detail {
/// The text "13.63 GB"; 1 GB is 10^9 bytes.
std::string readable_bytes(int64_t);
/// "These would fit: --recompute block (7.893 GB), --batch 32 (21.34 GB).": the first of each list, or "".
std::string what_fits(const std::vector<std::vector<Variant>>& lists, int64_t most);
/// Throws an Error of kind memory, with advice(bytes of the device), if the run exceeds the device's total memory.
void check_fits(const Variant& run, Device, const std::function<std::string(int64_t)>& advice);
}  // namespace detail

}  // namespace tg
