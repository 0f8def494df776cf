#include <tapegrad/core/node.h>
#include <tapegrad/models/optim/muon.h>
#include <tapegrad/models/optim/sgd.h>
#include <tapegrad/ops/matmul.h>

#include <memory>

#include "support/bf16_copy.h"
#include "support/bf16_moments.h"
#include "support/on_cuda.h"
#include "support/split_training.h"
#include "support/split_weights.h"
#include "support/step_parts.h"

using namespace tg;
namespace {
struct State {
  std::vector<Tensor> w, m, v;
};
const std::vector<Shape> kShapes{{1}, {3}, {4}, {5, 7}, {}, {0, 3}, {1023}, {129, 3}, {16385}, {2, 2, 2}, {33000}};

State state_on(Device d, DType t) {
  State s;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    s.w.push_back(random(kShapes[i], i).to(t).to(d).detach());
    s.m.push_back(zeros(kShapes[i], t, d));
    s.v.push_back(zeros(kShapes[i], t, d));
  }
  return s;
}
State train(Device d, DType t, const AdamWOptions& o, double max_norm) {
  State s = state_on(d, t);
  for (int64_t step = 1; step <= 4; ++step) {
    std::vector<Tensor> g;
    for (size_t i = 0; i < kShapes.size(); ++i)
      g.push_back(random(kShapes[i], 100 * uint64_t(step) + i, -0.1, 0.1).to(t).to(d));
    const Tensor norm = max_norm > 0 ? global_norm(g) : Tensor();
    adamw_step({.w = s.w, .m = s.m, .v = s.v, .grad = g}, o, 1e-2 / double(step), step, norm, max_norm);
  }
  return s;
}
// Norm of the difference, since single weights with tiny gradients carry the sign of a rounding; relative to b or to
// `from`, b before the steps.
double apart(const Tensor& a, const Tensor& b, const Tensor& from = {}) {
  const auto x = values<double>(a), y = values<double>(b), start = from ? values<double>(from) : y;
  double difference = 0, scale = 0, before = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    scale += y[i] * y[i], before += start[i] * start[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / std::max(scale, before));
}
void check_near(const State& gpu, const State& cpu, double bound, const State& start = {}) {
  for (size_t i = 0; i < cpu.w.size(); ++i) {
    CAPTURE(i);
    CHECK(apart(gpu.w[i], cpu.w[i], start.w.empty() ? Tensor() : start.w[i]) <= bound);
    CHECK(apart(gpu.m[i], cpu.m[i]) <= bound);
    CHECK(apart(gpu.v[i], cpu.v[i]) <= bound);
  }
}
}  // namespace

TEST_CASE("adamw_step: every form, four steps, with and without clipping") {
  for (WeightDecay decay : {WeightDecay::before, WeightDecay::after, WeightDecay::l2})
    for (EpsPlacement eps : {EpsPlacement::corrected, EpsPlacement::uncorrected})
      for (DType t : {DType::f32, DType::f64}) {
        if (t == DType::f64 && decay != WeightDecay::before) continue;
        const AdamWOptions o{.weight_decay = 0.1, .decay = decay, .eps_placement = eps};
        const double max_norm = decay == WeightDecay::after ? 0 : 0.5;
        check_near(train(kGpu, t, o, max_norm), train({}, t, o, max_norm), t == DType::f64 ? 1e-12 : 1e-6);
      }
}
TEST_CASE("sgd_step: every form, four steps, with and without clipping, each tensor with its rate and decay") {
  for (const SgdOptions& o : {SgdOptions{}, SgdOptions{.momentum = 0.9}, SgdOptions{.momentum = 0.9, .dampening = 0.5},
                              SgdOptions{.momentum = 0.9, .nesterov = true}})
    for (const DType t : {DType::f32, DType::f64})
      for (const double max_norm : {0.0, 0.5}) {
        const auto run = [&](Device d) {
          State s = state_on(d, t);
          std::vector<SgdOverrides> each;
          for (size_t i = 0; i < kShapes.size(); ++i)
            each.push_back({.lr_scale = 1 + double(i % 3), .weight_decay = 0.1 * double(i % 4)});
          for (int64_t step = 1; step <= 4; ++step) {
            std::vector<Tensor> g;
            for (size_t i = 0; i < kShapes.size(); ++i)
              g.push_back(random(kShapes[i], 100 * uint64_t(step) + i).to(t).to(d));
            sgd_step({.w = s.w, .grad = g, .momentum = o.momentum > 0 ? Inputs(s.m) : Inputs(), .each = each}, o,
                     0.1 / double(step), step, max_norm > 0 ? global_norm(g) : Tensor(), max_norm);
          }
          return s;
        };
        check_near(run(kGpu), run({}), t == DType::f64 ? 1e-12 : 1e-6, state_on({}, t));
      }
}
TEST_CASE("Muon, SGD and AdamW with bf16 moments train on the device as on the CPU, and compiled as eagerly") {
  const auto train = [](const std::string& kind, Device d, bool compiled) {
    const std::vector<Parameter> params{{"w", random({6, 4}, 1).to(d).detach().requires_grad_(), {4, 2}},
                                        {"tall", random({9, 6}, 2).to(d).detach().requires_grad_()},
                                        {"b", random({9}, 3).to(d).detach().requires_grad_()}};
    std::unique_ptr<Optimizer> opt;
    if (kind == "muon") opt = std::make_unique<Muon>(params, MuonConfig{.weight_decay = 0.1, .ns_dtype = DType::f32});
    if (kind == "adamw")
      opt = std::make_unique<AdamW>(params, AdamWConfig{.weight_decay = 0.1, .moments = DType::bf16});
    if (kind == "sgd") opt = std::make_unique<Sgd>(params, SgdConfig{.momentum = 0.9, .nesterov = true});
    const auto step = [&](Inputs x) {
      const Tensor y = linear(tanh(linear(x[0], params[0].tensor)), params[1].tensor, params[2].tensor);
      opt->step(backward(sum(y * y)), {.clip_norm = 1});
      return std::vector<Tensor>{};
    };
    const tg::Compiled replayed = compile(step);
    for (int i = 0; i < 5; ++i) {
      opt->set_lr(0.02 / (i + 1));
      const std::vector<Tensor> x{random({3, 4}, 10 + uint64_t(i)).to(d)};
      compiled ? replayed(x) : step(x);
    }
    CHECK(opt->steps() == 5);
    std::vector<Tensor> r;
    for (const Parameter& p : params) r.push_back(p.tensor.detach());
    return r;
  };
  for (const char* kind : {"sgd", "muon", "adamw"}) {
    CAPTURE(kind);
    const auto cpu = train(kind, {}, false), gpu = train(kind, kGpu, false), replayed = train(kind, kGpu, true);
    for (size_t i = 0; i < cpu.size(); ++i) {
      CHECK(apart(gpu[i], cpu[i]) <= 1e-4);
      CHECK(apart(replayed[i], gpu[i]) <= 1e-6);
    }
  }
}
TEST_CASE("adamw_step: the same bits on every run, and from gradients in any layout") {
  const State a = train(kGpu, DType::f32, {}, 1), b = train(kGpu, DType::f32, {}, 1);
  check_same_bits(a.w, b.w);
  const Tensor g = random({9, 5}, 3).to(kGpu);
  std::vector<std::byte> first;
  for (Store how : kStores) {
    CAPTURE(int(how));
    const Tensor w = stored(random({9, 5}, 1).to(kGpu), how), m = zeros({9, 5}, DType::f32, kGpu);
    const Tensor v = zeros({9, 5}, DType::f32, kGpu);
    adamw_step(w, m, v, stored(g, how), {}, 0.1, 1);
    if (first.empty()) first = bits_of(w);
    CHECK(bits_of(w) == first);
  }
}
TEST_CASE("adamw_step, sgd_step, global_norm: bf16 gradients of f32 weights, as if they were converted before") {
  for (const Device d : {Device::cpu(), kGpu})
    for (const double max_norm : {0.0, 0.5})
      for (const Store how : kStores) {
        CAPTURE_ALL(d, int(how));
        const auto run = [&](bool narrow) {
          State s = state_on(d, DType::f32);
          for (int64_t step = 1; step <= 2; ++step) {
            std::vector<Tensor> half, g;
            for (size_t i = 0; i < kShapes.size(); ++i) {
              half.push_back(random(kShapes[i], 100 * uint64_t(step) + i, -0.1, 0.1).to(DType::bf16).to(d));
              const Tensor x = i % 3 == 1 || !narrow ? half[i].to(DType::f32) : half[i];
              g.push_back(x.ndim() > 0 ? stored(x, how) : x);
            }
            const Tensor norm = max_norm > 0 ? global_norm(half) : Tensor();
            adamw_step({.w = s.w, .m = s.m, .v = s.v, .grad = g}, {}, 1e-2, step, norm, max_norm);
            sgd_step({.w = s.w, .grad = g, .momentum = s.m}, {.momentum = 0.9}, 1e-2, step, norm, max_norm);
            sgd_step({.w = s.w, .grad = g}, {}, 1e-2, step, norm, max_norm);
          }
          return s;
        };
        const State narrow = run(true), wide = run(false);
        check_same_bits(narrow.w, wide.w);
        check_same_bits(narrow.m, wide.m);
        check_same_bits(narrow.v, wide.v);
      }
}
TEST_CASE("adamw_step: somebody who holds the old value keeps it") {
  const Tensor w = random({100}, 1).to(kGpu), m = zeros({100}, DType::f32, kGpu), v = zeros({100}, DType::f32, kGpu);
  const Tensor old = w.detach();
  adamw_step(w, m, v, random({100}, 2).to(kGpu), {}, 0.1, 1);
  CHECK(bits_of(old) == bits_of(random({100}, 1)));
  CHECK(bits_of(w) != bits_of(old));
}
TEST_CASE("adamw_step: more tensors than one launch takes, each with its decay, of both dtypes, in place") {
  for (WeightDecay kind : {WeightDecay::before, WeightDecay::after, WeightDecay::l2}) {
    CAPTURE(int(kind));
    State here, there;
    std::vector<Tensor> g, g_there;
    std::vector<AdamWOverrides> decay;
    for (size_t i = 0; i < 900; ++i) {
      const DType t = i % 9 == 4 ? DType::f64 : DType::f32;
      const Shape s{int64_t(i % 8), 3};
      const auto add = [&](std::vector<Tensor>& a, std::vector<Tensor>& b, uint64_t seed, double lo) {
        a.push_back(random(s, seed + i, lo).to(t).detach());
        b.push_back(a.back().to(kGpu));
      };
      add(here.w, there.w, 1, -1), add(here.m, there.m, 1000, -1), add(here.v, there.v, 2000, 0);
      add(g, g_there, 3000, -1);
      g_there.back() = stored(g_there.back(), kStores[i % 4]);
      decay.push_back(
          {.lr_scale = 0.5 * double(i % 4), .weight_decay = 0.5 * double(i % 3), .beta1 = 0.1 * double(i % 5)});
    }
    std::vector<const std::byte*> before;
    for (const auto* list : {&there.w, &there.m, &there.v})
      for (const Tensor& t : *list) before.push_back(t.value()->storage->data);
    const AdamWOptions o{.decay = kind};
    adamw_step({.w = here.w, .m = here.m, .v = here.v, .grad = g, .each = decay}, o, 0.1, 2);
    const auto kernels = engine_stats().kernels;
    adamw_step({.w = there.w, .m = there.m, .v = there.v, .grad = g_there, .each = decay}, o, 0.1, 2);
    CHECK(engine_stats().kernels == kernels + 1);
    size_t k = 0;
    for (const auto* list : {&there.w, &there.m, &there.v})
      for (const Tensor& t : *list) CHECK(t.value()->storage->data == before[k++]);
    check_near(there, here, 1e-6);
  }
}
TEST_CASE("adamw_step: tensors of two devices are an error, and nothing has changed") {
  const std::vector<Tensor> w{zeros({2}), random({2}, 1).to(kGpu)}, m{zeros({2}), zeros({2}, DType::f32, kGpu)};
  const std::vector<Tensor> v{zeros({2}), zeros({2}, DType::f32, kGpu)}, g{filled({2}, 1.f), random({2}, 2).to(kGpu)};
  CHECK_SAYS(adamw_step({.w = w, .m = m, .v = v, .grad = g}, {}, 0.1, 1),
             "[adamw_step] weight 1, (2) f32 on cuda:0, is on cuda:0, weight 0 on cpu. A step runs on one device");
  CHECK_SAYS(adamw_step(w[0], m[0], v[0], g[0], {}, 0.1, 1, global_norm({g[1]}), 1),
             "[adamw_step] the norm, () f32 on cuda:0, is on cuda:0, weight 0 on cpu.");
  CHECK(values(w[0]) == std::vector<float>(2, 0));
  const Tensor here = zeros({2}).requires_grad_(), there = zeros({2}, DType::f32, kGpu).requires_grad_();
  CHECK_SAYS(AdamW({{"a", here}, {"b", there}}),
             "[adamw] 'b' is on cuda:0, 'a' on cpu. A step runs on one device: make an optimiser for each.");
}
TEST_CASE("global_norm: more tensors than one launch takes, of mixed dtypes and layouts, and NaN") {
  std::vector<Tensor> there, here;
  for (size_t i = 0; i < 530; ++i) {
    const DType t = i % 3 == 0 ? DType::bf16 : i % 3 == 1 ? DType::f32 : DType::f64;
    const Tensor x = random({int64_t(i % 11), 3}, i).to(t);
    here.push_back(x);
    there.push_back(stored(x.to(kGpu), kStores[i % 4]));
  }
  here.push_back(random({40001}, 7)), there.push_back(here.back().to(kGpu));
  const Tensor norm = global_norm(there);
  CHECK(norm.device() == kGpu);
  CHECK(norm.dtype() == DType::f64);
  CHECK(distance(norm, global_norm(here)) <= 1e-14);
  CHECK(bits_of(norm) == bits_of(global_norm(there)));
  CHECK(global_norm({zeros({0}, DType::f32, kGpu)}).item<float>() == 0);
  CHECK(std::isnan(global_norm({there[3], filled({2}, std::nanf("")).to(kGpu)}).item<float>()));
  // no overflow of squares
  CHECK(global_norm({filled({4}, 1e30f).to(kGpu)}).item<float>() == doctest::Approx(2e30));
}
TEST_CASE("cast_parameter: steps write bf16 copies along with the parameters, eager, lazy and compiled") {
  check_kept_copies(kGpu);
}
TEST_CASE("steps of parts of weights: those of slices, and the rest as it was") { check_steps_of_parts(kGpu); }
TEST_CASE("adamw_step, adamw_product_step: bf16 moments have the bits of the CPU, those of a loop over the elements") {
  check_bf16_moments(kGpu);
}
TEST_CASE("adamw_step: split weights have the bits of whole ones on the device") { check_split_weights(kGpu); }
TEST_CASE("split weights: training on the device, recorded or not, has the bits of whole ones") {
  TrainConfig c = split_config();
  c.max_steps = 5;
  for (const bool compiled : {false, true}) {
    c.compile = compiled;
    CHECK(check_split_training(c, kGpu, false) > 1);
  }
}
