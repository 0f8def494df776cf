#include "lora_training/rows.h"

#include <tapegrad/core/backend/backend.h>
#include <tapegrad/models/nn/lora.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/ops/ops.h>

namespace tg::bench {
namespace {

struct DrawTensor {
  Device device;
  Rng rng{1};
  Tensor operator()(const Shape& shape) { return randn(shape, rng, 0, 1, DType::f32, device); }
};
using Make = std::function<Work(Device)>;

nn::LoraDelta lora_layer(Device device, int64_t width, int64_t rank) {
  const Params params(device, 2);
  return {params, width, width, {.rank = rank, .alpha = 2 * double(rank)}};
}
// x -> s x A B, on the tape as in training. B is random: with the initial 0, any computation would give zeros.
Make lora_forward(const Shape& x, int64_t rank) {
  return [=](Device device) -> Work {
    DrawTensor draw{device};
    const nn::LoraDelta layer = lora_layer(device, x.back(), rank);
    layer.b.assign(draw(layer.b.shape()));
    return {[layer](Inputs in) { return std::vector{layer.forward(in[0]).detach()}; }, {draw(x)}};
  };
}
Tensor labels(Device device, const Shape& x) { return zeros({x[0], x[1]}, DType::i64, device); }  // (B, T)
Make lora_gradient(const Shape& x) {
  return [=](Device device) -> Work {
    const nn::LoraDelta layer = lora_layer(device, x.back(), 8);
    const auto f = [layer](Inputs in) {
      const Tensor loss = cross_entropy(layer.forward(in[0]), in[1]);
      const GradMap grads = backward(loss);
      return std::vector{loss.detach(), grads[layer.a], grads[layer.b]};
    };
    return {f, {DrawTensor{device}(x), labels(device, x)}};
  };
}
// f of tensors of these shapes; eps of norms is 1e-5.
Make of_many(std::vector<Shape> shapes, Tensor (*f)(Inputs)) {
  return [=](Device device) -> Work {
    DrawTensor draw{device};
    std::vector<Tensor> in;
    for (const Shape& s : shapes) in.push_back(draw(s));
    return {[f](Inputs x) { return std::vector{f(x)}; }, in};
  };
}
constexpr AdamWConfig kAdamW{.lr = kLr, .weight_decay = kWeightDecay};
uint64_t count(const Shape& x) { return uint64_t(x.product()); }

Tensor scaled_ten_times(Inputs in) {
  Tensor y = in[0] + in[1];
  for (int i = 0; i < 9; ++i) y = y * 1.1;
  return y;
}

}  // namespace

Work adamw_work(Device device) {
  DrawTensor draw{device};
  const Tensor w = draw({512, 512}).requires_grad_();
  const auto optimiser = std::make_shared<AdamW>(std::vector{Parameter{"w", w}}, kAdamW);
  const auto f = [w, optimiser](Inputs in) {
    GradMap grads;
    grads.map().emplace(w.id(), in[0]);
    optimiser->step(grads);
    return std::vector<Tensor>{};
  };
  return {f, {draw({512, 512})}, {w}};
}
Work lora_step(Device device) {
  const Shape x{4, 64, 512};
  const nn::LoraDelta layer = lora_layer(device, x.back(), 8);
  const auto optimiser =
      std::make_shared<AdamW>(std::vector{Parameter{"lora_a", layer.a}, Parameter{"lora_b", layer.b}}, kAdamW);
  const auto f = [layer, optimiser](Inputs in) {
    const Tensor loss = cross_entropy(layer.forward(in[0]), in[1]);
    optimiser->step(backward(loss));
    return std::vector{loss.detach()};
  };
  return {f, {DrawTensor{device}(x), labels(device, x)}, {layer.a, layer.b}};
}

std::vector<TrainingRow> training_rows() {
  std::vector<TrainingRow> rows;
  for (const auto& [size, width, rank] : {std::tuple<const char*, int64_t, int64_t>{"small", 512, 8},
                                          {"medium", 1024, 8},
                                          {"large", 2048, 8},
                                          {"small", 512, 16}}) {
    const Shape x{4, 16, width};
    rows.push_back({{"lora_forward", "forward", fmt::format("{0}_{1}x{1}_r{2}", size, width, rank)},
                    lora_forward(x, rank),
                    count(x)});
  }
  rows.push_back({{"gradient_computation", "forward_backward", ""}, lora_gradient({2, 16, 512})});
  rows.push_back({{"optimizer_step", "adamw_step", ""}, adamw_work});
  rows.push_back({.id = {"full_training_step", "complete_iteration", ""},
                  .make = lora_step,
                  .elements = count({4, 64, 512}),
                  .samples = 10});
  const Shape wide{4, 16, 1024};
  rows.push_back({{"layer_operations", "softmax_stable", ""}, of_many({wide}, [](Inputs x) { return softmax(x[0]); })});
  rows.push_back({{"layer_operations", "layer_norm", ""}, of_many({wide}, [](Inputs x) { return layer_norm(x[0]); })});
  rows.push_back({{"layer_operations", "rms_norm", ""}, of_many({wide}, [](Inputs x) { return rms_norm(x[0]); })});
  for (const int64_t rank : {4, 8, 16, 32, 64})
    rows.push_back({{"lora_rank_scaling", "forward", fmt::format("rank_{}", rank)}, lora_forward({2, 32, 1024}, rank)});
  rows.push_back({{"lazy_vs_eager_lora", "eager_forward", ""}, lora_forward({4, 16, 512}, 8)});
  rows.push_back({.id = {"lazy_vs_eager_lora", "lazy_forward_sync", ""},
                  .make = lora_forward({4, 16, 512}, 8),
                  .runs = Runs::lazily});
  return rows;
}

std::vector<TrainingRow> lazy_rows() {
  std::vector<TrainingRow> rows;
  const auto both = [&](const char* group, const std::string& value, const Make& make,
                        std::optional<uint64_t> elements = {}) {
    rows.push_back({{group, "eager", value}, make, elements});
    rows.push_back({{group, "lazy", value}, make, elements, Runs::lazily});
  };
  both("cpu_add", "1024", of_many({{1024}, {1024}}, [](Inputs x) { return x[0] + x[1]; }));
  for (const int64_t n : {64, 128, 256})
    both("cpu_matmul", std::to_string(n), of_many({{n, n}, {n, n}}, [](Inputs x) { return matmul(x[0], x[1]); }),
         uint64_t(n * n * n));
  both("cpu_lora", "512_r8", lora_forward({4, 512}, 8));
  both("cpu_chain", "softmax_64x64",
       of_many({{64, 64}, {64, 64}, {64, 64}}, [](Inputs x) { return softmax((matmul(x[0], x[1]) + x[2]) * 2.0, 1); }));
  const Make graph = of_many({{1024}, {1024}}, scaled_ten_times);
  both("cpu_graph", "10_ops_1024", graph);
  rows.push_back({{"cpu_graph", "lazy_not_evaluated", "10_ops_1024"}, graph, {}, Runs::graph_only});
  return rows;
}

std::function<std::vector<Tensor>()> runner(const Work& w, RunMode mode) {
  if (mode == RunMode::eager) return [w] { return w.f(w.in); };
  return [f = compile(w.f), in = w.in] { return f(in); };
}

Benchmark benchmark(const TrainingRow& row, RunMode mode, Device device) {
  const Work w = row.make(device);
  Benchmark b{row.id, {}, [device] { synchronize(device); }, row.elements, row.samples};
  if (row.runs == Runs::in_mode)
    b.run = [run = runner(w, mode)] { run(); };
  else
    b.run = [w, runs = row.runs] {
      LazyScope lazy;
      const std::vector<Tensor> out = w.f(w.in);
      if (runs == Runs::lazily) eval(out);
    };
  return b;
}

}  // namespace tg::bench
