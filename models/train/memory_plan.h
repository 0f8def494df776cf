/// @file
/// plan_memory: how many bytes training a Gpt takes, before anything is allocated: the step itself in a dry_run(), so
/// that it is right for every variant of model, precision and recomputation. Users: `tapegrad inspect --plan`, and the
/// refusals of `train` and `finetune`.
#pragma once
#include <tapegrad/models/gpt/lora.h>
#include <tapegrad/models/train/config.h>

namespace tg {

struct MemoryPlan {
  int64_t parameters = 0;  ///< of the model and its adapters, a number
  /// Bytes of tensors on the device:
  int64_t weights = 0;      ///< of the parameters
  int64_t gradients = 0;    ///< of those that are trained; complete at the end of backward only
  int64_t moments = 0;      ///< of AdamW
  int64_t activations = 0;  ///< kept for backward at the end of the forward pass of a micro-batch, logits included
  /// The most at one time, from making the model to the end of a step. Equal to what Trainer reports as
  /// StepRecord::peak_bytes where nothing else is in memory and validation has no larger batches. The allocator of the
  /// CPU rounds each block up by at most an eighth, and all allocators keep freed blocks for reuse beside it
  /// (MemoryStats::cached); kernels of a GPU take scratch memory while they run.
  int64_t peak = 0;
};

/// Of a step of training as a Trainer makes it: config.batch windows of model.context tokens, in config.accumulate
/// micro-batches. With `adapters` those alone are trained, over a frozen model. Takes a millisecond per layer or less
/// and the memory of the engine's objects. An Error of a field that is wrong, of a device that is not there, and of
/// sizes that no memory can have.
MemoryPlan plan_memory(const GptConfig& model, const TrainConfig& config, Device = {},
                       const LoraConfig* adapters = nullptr);

std::string readable_bytes(int64_t);  ///< "13.63 GB"; 1 GB is 10^9 bytes

}  // namespace tg
