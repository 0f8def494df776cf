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
  int64_t parameters = 0;   ///< count, adapters included
  int64_t weights = 0;      ///< bytes of all parameters
  int64_t gradients = 0;    ///< bytes of trained gradients when backward ends
  int64_t moments = 0;      ///< moments, buffers of the optimiser
  int64_t activations = 0;  ///< kept for backward, with logits
  /// The peak until a step's end: StepRecord::peak_bytes if alone in memory.
  int64_t peak = 0;
  /// Gradients that backward had completed at the peak: none in forward, all in the optimiser's step.
  int64_t gradients_at_peak = 0;
};

/// Memory of Trainer's step, in config.accumulate micro-batches of the size of batch(). forward() must not read
/// values. With `adapters` only those are trained. `weights`: the parameters' dtype. With several ranks
/// (Communicator::fake() suffices): each rank's plan, with gradients and sums; `gradients` counts the sums. Errors: a
/// wrong field, a missing device, large sizes.
MemoryPlan plan_memory(const MakeModel&, const std::function<Batch()>& batch, const TrainConfig& config, Device = {},
                       const LoraConfig* adapters = nullptr, DType weights = DType::f32,
                       const std::shared_ptr<Communicator>& = Communicator::self());
/// plan_memory() of a Gpt, on config.batch windows of config.window_in(model.context) tokens. `source`: what the
/// parameters load, such as weights in blocks.
MemoryPlan plan_memory(const GptConfig& model, const TrainConfig& config, Device = {},
                       const LoraConfig* adapters = nullptr, DType weights = DType::f32,
                       const std::shared_ptr<Communicator>& = Communicator::self(),
                       const std::function<TensorSource()>& source = {});

/// A run's variant and its memory.
struct Variant {
  std::string name;                ///< the run's name, or an alternative's flags
  std::function<int64_t()> bytes;  ///< the peak
};

namespace detail {
/// Text "13.63 GB"; 1 GB is 10^9 bytes.
std::string readable_bytes(int64_t);
/// "These would fit: --recompute block (7.893 GB), --batch 32 (21.34 GB).": the first of each list, or "".
std::string what_fits(const std::vector<std::vector<Variant>>& lists, int64_t most);
/// An Error of kind memory with advice(device bytes) if the run exceeds the device.
void check_fits(const Variant& run, Device, const std::function<std::string(int64_t)>& advice);
}  // namespace detail

}  // namespace tg
