/// @file
/// plan_memory(): how many bytes it takes to train a model, before anything is allocated. It runs the step itself in a
/// dry_run(), so it is right for every variant of model, precision and recomputation. `tapegrad inspect --plan` uses
/// it, and `train` and `finetune`, which refuse a run that does not fit.
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

/// Bytes of tensors on the device, except `parameters`, which is a number.
struct MemoryPlan {
  int64_t parameters = 0;   ///< number of parameters of the model and its adapters
  int64_t weights = 0;      ///< of all parameters
  int64_t gradients = 0;    ///< of the trained parameters; they are complete only at the end of backward
  int64_t moments = 0;      ///< moments and buffers of the optimiser
  int64_t activations = 0;  ///< kept for backward at the end of a micro-batch's forward pass, logits included
  /// The most at one time, from making the model to the end of a step. It equals StepRecord::peak_bytes of Trainer, if
  /// nothing else is in memory and validation has no larger batches. Allocators use more: that of the CPU rounds each
  /// block up by at most an eighth, and all keep freed blocks for reuse (MemoryStats::cached). Kernels of a GPU take
  /// scratch memory while they run.
  int64_t peak = 0;
  /// The gradients that the running backward had completed at the peak: none in forward and when backward begins, all
  /// when it ends and in the optimiser's step. The one in work does not count.
  int64_t gradients_at_peak = 0;
};

/// The memory of a training step as Trainer runs it, in config.accumulate micro-batches of the size of batch(). Values
/// are not computed: forward() cannot read any. With `adapters`, only those are trained, over a frozen model.
/// `weights` is the dtype of the model's parameters. It takes a millisecond per layer or less, and the memory of the
/// engine's objects. An Error for a wrong field, a device that is not there, and sizes that no memory can have. Of a
/// Communicator of several ranks it is the plan of each: of its part of the micro-batches, with the gradients and their
/// sums over the ranks at one time; `gradients` are then the sums. It sends nothing: Communicator::hollow() will do.
MemoryPlan plan_memory(const MakeModel&, const std::function<Batch()>& batch, const TrainConfig& config, Device = {},
                       const LoraConfig* adapters = nullptr, DType weights = DType::f32,
                       const std::shared_ptr<Communicator>& = Communicator::self());
/// The same for a Gpt, on config.batch windows of config.window_in(model.context) tokens.
MemoryPlan plan_memory(const GptConfig& model, const TrainConfig& config, Device = {},
                       const LoraConfig* adapters = nullptr, DType weights = DType::f32,
                       const std::shared_ptr<Communicator>& = Communicator::self());

/// The text "13.63 GB"; 1 GB is 10^9 bytes.
std::string readable_bytes(int64_t);

/// A way to run, and the memory that it takes.
struct Variant {
  std::string name;                ///< of the run: its name in an Error; of another way: the flags that ask for it
  std::function<int64_t()> bytes;  ///< computes the most bytes at one time
};
/// The text "These would fit: --recompute block (7.893 GB), --batch 32 (21.34 GB).", with the first of each list that
/// takes at most `most` bytes. Empty if none does.
std::string what_fits(const std::vector<std::vector<Variant>>& lists, int64_t most);
/// Throws an Error of kind memory if the run takes more than the device has in all. Its text ends with advice(bytes of
/// the device).
void check_fits(const Variant& run, Device, const std::function<std::string(int64_t)>& advice);

}  // namespace tg
