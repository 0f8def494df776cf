#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/config/config_json.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/tools/roofline.h>
#include <tapegrad/models/train/trainer.h>
#include <tapegrad/ops/factories.h>

#include <algorithm>
#include <array>

namespace tg {
namespace {

// H100 and H200 SXM5. Memory: copies, out of 3.35 and 4.8 TB/s. GEMMs: cuBLASLt, out of 67 (f32), 989 (bf16) and 1979
// (8 bits) TFLOP/s, at the sizes of these models.
const std::array kMachines{DeviceRoofline{"h100", 2900, 50, 630, 1100, 1},
                           DeviceRoofline{"h200", 4000, 50, 630, 1100, 1}};

void add(std::vector<WorkOfOp>& to, const std::vector<WorkOfOp>& more, int64_t times = 1) {
  for (const WorkOfOp& o : more) detail::add_work(to, o, times);
  std::erase_if(to, [](const WorkOfOp& o) { return o.calls == 0; });
}

}  // namespace

std::vector<WorkOfOp> StepWork::all() const {
  std::vector<WorkOfOp> ops = forward;
  add(ops, backward), add(ops, update);
  return ops;
}
std::vector<std::string_view> detail::device_roofline_names() {
  std::vector<std::string_view> names;
  for (const DeviceRoofline& m : kMachines) names.push_back(m.name);
  return names;
}
DeviceRoofline device_roofline(const std::string& name) {
  for (const DeviceRoofline& m : kMachines)
    if (m.name == name) return m;
  TG_CHECK(name.find_first_of("./") != name.npos, value,
           "[roofline] there is no device '{}'. Name {}, or a JSON file with what another one sustains.", name,
           detail::listed(detail::device_roofline_names()));
  DeviceRoofline m{.name = name};
  ConfigFields fields;
  detail::visit_roofline_fields(m, fields);
  detail::read_fields(MappedFile(name).text(), {.name = name, .every_field = true, .op = "roofline"}, fields);
  detail::visit_roofline_fields(m, [&](const char* key, double x) {
    TG_CHECK(x > 0 || (x == 0 && std::string_view(key) == "us_per_call"), value,
             "[roofline] '{}' is {} in {}. It must be above 0.", key, x, name);
  });
  return m;
}

StepWork step_work(const MakeModel& make_model, const std::function<Batch()>& batch, const TrainConfig& train,
                   Device device, const LoraConfig* adapters, DType weights) {
  train.validate();
  StepWork work;
  dry_run([&] {
    const Params params(device, train.seed, weights);
    Model model = make_model(params);
    std::optional<Lora> lora;
    if (adapters) lora = apply_lora(model, params, *adapters);
    const Params& trained = lora ? lora->params() : params;
    model = detail::with_linears(model, trained, train);
    const auto optimizer = detail::make_optimizer(train, trained.trainable());
    const auto step = [&](const MicroBatches& micro) {
      std::vector<Rng> draws(micro.batches.size());
      StepGradients g = detail::step_gradients(model, trained, train, micro, draws);
      (void)g.norm.item<double>();
      optimizer->step(g.grads, detail::step_options(train, g.norm));
    };
    const auto backward = [&](const MicroBatches& micro) {
      Rng draws;
      (void)accumulate([&](const Batch& b) { return detail::training_loss(model, train, b, draws); }, micro, device);
    };
    const auto forward = [&](const MicroBatches& micro) {
      Rng draws;
      (void)detail::training_loss(model, train, micro.batches[0], draws);
    };
    const auto counted = [&](const auto& f, int64_t micro_batches) {
      const std::vector<Batch> batches(size_t(micro_batches), batch());
      const WorkScope counting;
      f(MicroBatches(batches));
      return counting.ops();
    };
    // Micro-batches after the third cost as much as the third.
    const auto all = [&](const auto& f) {
      if (train.accumulate <= 3) return counted(f, train.accumulate);
      const std::vector<WorkOfOp> three = counted(f, 3);
      std::vector<WorkOfOp> ops = three;
      add(ops, three, train.accumulate - 3);
      add(ops, counted(f, 2), 3 - train.accumulate);
      return ops;
    };
    step(MicroBatches(std::vector{batch()}));  // allocates state for later steps
    const std::vector<WorkOfOp> one = counted(forward, 1), passes = all(backward);
    work.backward = passes, work.update = all(step);
    add(work.forward, one, train.accumulate);
    add(work.backward, work.forward, -1);
    add(work.update, passes, -1);
  });
  return work;
}
StepWork step_work(const GptConfig& config, const TrainConfig& train, Device device, const LoraConfig* adapters,
                   DType weights, const std::function<TensorSource()>& source) {
  const auto windows = [&] { return zeros({train.batch, train.window_in(config.context)}, DType::i32); };  // (B, T)
  const auto batch = [&] { return Batch{windows(), windows()}; };
  const auto model = [&](const Params& params) {
    if (source) params.load(source());
    return Gpt(params, config);
  };
  return step_work(model, batch, train, device, adapters, weights);
}
double detail::floor_seconds(const WorkOfOp& op, const DeviceRoofline& m) {
  const double tflops = op.from == DType::bf16 || op.from == DType::f16 ? m.bf16_tflops
                        : size_of(op.from) == 1                         ? m.int8_tflops
                                                                        : m.f32_tflops;
  const double moved = double(op.work.read + op.work.written) / (m.gb_per_s * 1e9);
  return std::max(moved, 2 * op.work.multiply_adds / (tflops * 1e12)) + double(op.calls) * m.us_per_call * 1e-6;
}
double detail::floor_seconds(const std::vector<WorkOfOp>& ops, const DeviceRoofline& m) {
  double sum = 0;
  for (const WorkOfOp& op : ops) sum += floor_seconds(op, m);
  return sum;
}

}  // namespace tg
