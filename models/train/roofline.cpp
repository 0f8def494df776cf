#include <tapegrad/core/check.h>
#include <tapegrad/core/dry_run.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/train/roofline.h>
#include <tapegrad/models/train/trainer.h>
#include <tapegrad/ops/factories.h>

#include <algorithm>
#include <array>

namespace tg {
namespace {

// Of H100 and H200 SXM5. Memory: what copies reach of 3.35 and 4.8 TB/s. Products: what cuBLASLt reaches of 67 (f32),
// 989 (bf16) and 1979 (8 bits) TFLOP/s at the sizes of these models.
const std::array kMachines{Machine{"h100", 2900, 50, 630, 1100, 1}, Machine{"h200", 4000, 50, 630, 1100, 1}};

}  // namespace

std::vector<std::string_view> machine_names() {
  std::vector<std::string_view> names;
  for (const Machine& m : kMachines) names.push_back(m.name);
  return names;
}
Machine machine(const std::string& name) {
  for (const Machine& m : kMachines)
    if (m.name == name) return m;
  TG_CHECK(name.find_first_of("./") != name.npos, value,
           "[roofline] there is no device '{}'. Name {}, or a JSON file with what another one sustains.", name,
           listed(machine_names()));
  const MappedFile file(name);
  const Json fields = parse_json(file.text(), "roofline", name);
  TG_CHECK(fields.is_object(), value, "[roofline] {} holds {}. It must be an object: {{\"gb_per_s\": 50, ...}}.", name,
           fields.type_name());
  Machine m{.name = name};
  std::vector<std::string_view> known;
  visit_machine_fields(m, [&](const char* key, double&) { known.push_back(key); });
  check_keys("roofline", name, fields, known);
  visit_machine_fields(m, [&](const char* key, double& to) {
    TG_CHECK(fields.contains(key), value, "[roofline] {} has no '{}'. Every field must be there: {}.", name, key,
             listed(known));
    read_field({"roofline", key}, fields.at(key), to);
    TG_CHECK(to > 0 || (to == 0 && std::string_view(key) == "us_per_call"), value,
             "[roofline] '{}' is {} in {}. It must be above 0.", key, to, name);
  });
  return m;
}

std::vector<WorkOfOp> step_work(const MakeModel& make_model, const std::function<Batch()>& batch,
                                const TrainConfig& train, Device device, const LoraConfig* adapters, DType weights) {
  train.validate();
  std::vector<WorkOfOp> all;
  dry_run([&] {
    const Params params(device, train.seed, weights);
    Model model = with_linears(make_model(params), train);
    std::optional<Lora> lora;
    if (adapters) lora = apply_lora(model, params, *adapters);
    const Params& trained = lora ? lora->params() : params;
    const auto optimizer = make_optimizer(train, trained.trainable());
    const auto step = [&](int64_t micro_batches) {  // its ops
      const std::vector<Batch> batches(size_t(micro_batches), batch());
      const WorkScope counting;
      std::vector<Rng> draws(batches.size());
      StepGradients g = step_gradients(model, trained, train, MicroBatches(batches), draws);
      (void)g.norm.item<double>();  // as Trainer does
      optimizer->step(g.grads, step_options(train, g.norm));
      return counting.ops();
    };
    (void)step(1);  // makes what later steps keep
    if (train.accumulate <= 3) return void(all = step(train.accumulate));
    const std::vector<WorkOfOp> two = step(2), three = step(3);  // each micro-batch beyond costs what the third does
    all = three;
    for (const WorkOfOp& o : three) add_work(all, o, train.accumulate - 3);
    for (const WorkOfOp& o : two) add_work(all, o, 3 - train.accumulate);
  });
  return all;
}
std::vector<WorkOfOp> step_work(const GptConfig& config, const TrainConfig& train, Device device,
                                const LoraConfig* adapters, DType weights) {
  const auto windows = [&] { return zeros({train.batch, train.window_in(config.context)}, DType::i32); };  // (B, T)
  const auto batch = [&] { return Batch{windows(), windows()}; };
  return step_work([&](const Params& params) { return Gpt(params, config); }, batch, train, device, adapters, weights);
}

double floor_seconds(const WorkOfOp& op, const Machine& m) {
  const double tflops = op.from == DType::bf16 || op.from == DType::f16 ? m.bf16_tflops
                        : size_of(op.from) == 1                         ? m.int8_tflops
                                                                        : m.f32_tflops;
  const double moved = double(op.work.read + op.work.written) / (m.gb_per_s * 1e9);
  return std::max(moved, 2 * op.work.multiply_adds / (tflops * 1e12)) + double(op.calls) * m.us_per_call * 1e-6;
}
double floor_seconds(const std::vector<WorkOfOp>& ops, const Machine& m) {
  double sum = 0;
  for (const WorkOfOp& op : ops) sum += floor_seconds(op, m);
  return sum;
}

}  // namespace tg
