/// @file
/// The minimum time of a training step on a device, op by op, before it runs: bytes moved and GEMM operations, counted
/// in a dry_run(), over the device's rates (the roofline of Williams et al., 2009). For `tapegrad inspect --roofline`.
#pragma once
#include <tapegrad/core/profile/work.h>
#include <tapegrad/models/tools/memory_plan.h>

#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// Sustained rates of a device, not its data sheet.
struct DeviceRoofline {
  std::string name;
  double gb_per_s = 0;     ///< memory, 10^9 bytes
  double f32_tflops = 0;   ///< f32, f64 GEMMs, 10^12; multiply-add: 2
  double bf16_tflops = 0;  ///< bf16 GEMMs
  double int8_tflops = 0;  ///< 8-bit GEMMs
  double us_per_call = 0;  ///< microseconds between two ops
};

/// "h100", "h200", or the path of a JSON file with DeviceRoofline's fields. An Error lists the names, or names a
/// missing, unknown or wrong field.
DeviceRoofline device_roofline(const std::string& name_or_path);

/// Ops of a training step, over all micro-batches, by phase.
struct StepWork {
  std::vector<WorkOfOp> forward;
  std::vector<WorkOfOp> backward;  ///< includes recomputation, sums over micro-batches
  std::vector<WorkOfOp> update;    ///< the gradient norm and the optimiser
  std::vector<WorkOfOp> all() const;
};
/// The ops of Trainer's step, in config.accumulate micro-batches.
StepWork step_work(const MakeModel&, const std::function<Batch()>& batch, const TrainConfig&, Device = {},
                   const LoraConfig* adapters = nullptr, DType weights = DType::f32);
/// step_work() of a Gpt, on config.batch windows of config.window_in(model.context) tokens; `source` as in
/// plan_memory().
StepWork step_work(const GptConfig&, const TrainConfig&, Device = {}, const LoraConfig* adapters = nullptr,
                   DType weights = DType::f32, const std::function<TensorSource()>& source = {});

namespace detail {
/// Calls f(name, field) for each number, in order.
template <class M, class F> void visit_roofline_fields(M& m, F&& f) {
  f("gb_per_s", m.gb_per_s), f("f32_tflops", m.f32_tflops), f("bf16_tflops", m.bf16_tflops);
  f("int8_tflops", m.int8_tflops), f("us_per_call", m.us_per_call);
}
/// The names that device_roofline() knows.
std::vector<std::string_view> device_roofline_names();
/// An op's minimum seconds: the longer of bytes and GEMM operations, plus the time between calls.
double floor_seconds(const WorkOfOp&, const DeviceRoofline&);
/// Sum of floor_seconds() over sequential ops.
double floor_seconds(const std::vector<WorkOfOp>&, const DeviceRoofline&);
}  // namespace detail

}  // namespace tg
