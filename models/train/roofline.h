/// @file
/// The least time that a training step can take on a device, op by op, before anything is computed: the bytes that the
/// step's ops move and the products that they compute, counted in a dry_run(), over what the device does in a second
/// (the roofline of Williams et al. 2009). `tapegrad inspect --roofline` prints it.
#pragma once
#include <tapegrad/core/profile/work.h>
#include <tapegrad/models/train/memory_plan.h>

#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// What a device sustains, not what its data sheet says.
struct Machine {
  std::string name;
  double gb_per_s = 0;     ///< of its memory, 10^9 bytes
  double f32_tflops = 0;   ///< of products of f32 (and f64), 10^12; a multiply-add is two operations
  double bf16_tflops = 0;  ///< of products of bf16
  double int8_tflops = 0;  ///< of products of 8-bit codes
  double us_per_call = 0;  ///< between two ops, microseconds
};
/// Calls f(name, field) for each number, in order.
template <class M, class F> void visit_machine_fields(M& m, F&& f) {
  f("gb_per_s", m.gb_per_s), f("f32_tflops", m.f32_tflops), f("bf16_tflops", m.bf16_tflops);
  f("int8_tflops", m.int8_tflops), f("us_per_call", m.us_per_call);
}
/// "h100", "h200", or the path of a JSON file with the fields of Machine. An Error lists the names, or names the field
/// that is missing, unknown, not a number or not above 0.
Machine machine(const std::string& name_or_path);
/// The names that machine() knows.
std::vector<std::string_view> machine_names();

/// The ops of a training step, those of all its micro-batches, by phase.
struct StepWork {
  std::vector<WorkOfOp> forward;
  std::vector<WorkOfOp> backward;  ///< with what recomputation computes again, and the sums over micro-batches
  std::vector<WorkOfOp> update;    ///< the norm of the gradients, and the optimiser
  std::vector<WorkOfOp> all() const;
};
/// The ops of a step as Trainer runs it, in config.accumulate micro-batches. The work of micro-batches is counted once
/// and multiplied.
StepWork step_work(const MakeModel&, const std::function<Batch()>& batch, const TrainConfig&, Device = {},
                   const LoraConfig* adapters = nullptr, DType weights = DType::f32);
/// The same for a Gpt, on config.batch windows of config.window_in(model.context) tokens.
StepWork step_work(const GptConfig&, const TrainConfig&, Device = {}, const LoraConfig* adapters = nullptr,
                   DType weights = DType::f32);

/// The seconds that an op takes at least: its bytes or its products, whichever take longer, and the time between calls.
double floor_seconds(const WorkOfOp&, const Machine&);
/// The same of all ops, one after the other.
double floor_seconds(const std::vector<WorkOfOp>&, const Machine&);

}  // namespace tg
