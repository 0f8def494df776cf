// AdamW against torch.optim (tests/data/make_fixtures.py), clipping, schedules, state.
#include "support/files.h"
#include "support/helpers.h"

#include <tapegrad/core/node.h>
#include <tapegrad/tools.h>

#include <cmath>
#include <numbers>

using namespace tg;

namespace {
Tensor leaf(std::initializer_list<float> v, const Shape& s) { return tensor(v, s).requires_grad_(); }
GradMap given(const std::vector<Parameter>& params, const std::vector<Tensor>& gradients) {
  GradMap g;
  for (size_t i = 0; i < params.size(); ++i) g.map()[params[i].tensor.id()] = gradients[i];
  return g;
}
}  // namespace

TEST_CASE("every form of Adam equals its oracle over ten steps") {
  const SafetensorsFile file(TG_TEST_DATA "/adam_forms.safetensors");
  const auto config = detail::own_json(file.metadata().at("config"));
  const Json& n = config.at("numbers");
  CHECK(config.at("forms").size() == 5);
  for (const auto& [form, f] : config.at("forms").items())
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE_ALL(form, dtype);
      const auto number = [&](const char* key) { return n.at(key).get<double>(); };
      AdamWConfig c{.lr = number("lr"), .beta1 = number("beta1"), .beta2 = number("beta2"), .eps = number("eps")};
      c.weight_decay = f.at("weight_decay").get<double>();
      const auto decay = f.at("decay").get<std::string>();
      c.decay = decay == "l2" ? WeightDecay::l2 : decay == "after" ? WeightDecay::after : WeightDecay::before;
      if (f.at("eps_placement") == "uncorrected") c.eps_placement = EpsPlacement::uncorrected;
      const Parameter p{"w", file.tensor("init").to(dtype).detach().requires_grad_()};
      AdamW opt({p}, c);
      for (int64_t step = 0; step < 10; ++step) {
        GradMap grads;
        grads.map()[p.tensor.id()] = reshape(slice(file.tensor("grad"), 0, step, step + 1), p.tensor.shape()).to(dtype);
        opt.step(grads);
      }
      CHECK(distance(p.tensor, file.tensor(form + ".final")) <= (dtype == DType::f32 ? 1e-6 : 1e-14));
    }
  CHECK(AdamWConfig::adam().weight_decay == 0);
}

TEST_CASE("only parameters with two dimensions decay, or all") {
  std::vector<Parameter> params{{"w", leaf({2, -4}, {1, 2})}, {"b", leaf({2, -4}, {2})}};
  AdamW opt(params, {.lr = 0.5, .weight_decay = 0.1});
  const GradMap grads = given(params, {zeros({1, 2}), zeros({2})});
  opt.step(grads);
  CHECK(params[0].tensor.to_vector<float>() == std::vector<float>{1.9f, -3.8f});  // w (1 - lr decay)
  CHECK(params[1].tensor.to_vector<float>() == std::vector<float>{2, -4});
  AdamW all({params[1]}, {.lr = 0.5, .weight_decay = 0.1, .decay_all = true});
  all.step(grads);
  CHECK(params[1].tensor.to_vector<float>() == std::vector<float>{1.9f, -3.8f});
}

TEST_CASE("clipping scales all gradients by their common norm") {
  // Gradients (3, 0) and (4): norm 5. The first m is 0.1 times the scaled gradient.
  auto first_moments = [](double clip, double& norm) {
    std::vector<Parameter> params{{"a", leaf({1, 1}, {2})}, {"b", leaf({1}, {1})}};
    AdamW opt(params, {.weight_decay = 0});
    const GradMap grads = given(params, {tensor({3.f, 0.f}, {2}), tensor({4.f}, {1})});
    norm = opt.step(grads, {.clip_norm = clip, .norm = clip ? Tensor() : tensor({5.f}, {})}).item<double>();
    const StateDict s = opt.state();
    return std::vector<double>{s.at("a.m").to_vector<double>()[0], s.at("a.m").to_vector<double>()[1],
                               s.at("b.m").item<double>()};
  };
  double norm = 0;
  for (const double clip : {0.0, 10.0, 1.0}) {
    CAPTURE(clip);
    const double scale = clip == 1.0 ? 1.0 / (5.0 + 1e-6) : 1.0;
    const auto m = first_moments(clip, norm);
    CHECK(norm == 5);
    CHECK(m[0] == doctest::Approx(0.3 * scale).epsilon(1e-6));
    CHECK(m[1] == 0);
    CHECK(m[2] == doctest::Approx(0.4 * scale).epsilon(1e-6));
  }
}

TEST_CASE("clipping: f64 gradients are scaled with the accuracy of f64") {
  const std::vector<double> g{1.0 / 3, -2.0 / 7, 1e-3}, more{std::sqrt(2.0)};
  std::vector<Parameter> params{{"a", zeros({3}, DType::f64).requires_grad_()},
                                {"b", zeros({1}, DType::f64).requires_grad_()}};
  AdamW opt(params, {.weight_decay = 0});
  const Tensor norm = opt.step(given(params, {tensor(g, {3}), tensor(more, {1})}), {.clip_norm = 0.1});
  const double want = std::sqrt(g[0] * g[0] + g[1] * g[1] + g[2] * g[2] + 2), scale = 0.1 / (want + 1e-6);
  CHECK(norm.dtype() == DType::f64);
  CHECK(std::abs(norm.item<double>() - want) <= 1e-15);
  const auto m = opt.state().at("a.m").to_vector<double>();
  for (size_t i = 0; i < 3; ++i) CHECK(std::abs(m[i] / (0.1 * scale * g[i]) - 1) <= 1e-12);
}

TEST_CASE("a step is one kernel for all parameters, and two for a norm, which is computed only to clip") {
  const std::vector<Parameter> params{{"a", leaf({1, 1}, {2})}, {"b", leaf({1}, {1})}};
  AdamW opt(params);
  const GradMap grads = given(params, {tensor({3.f, 4.f}, {2}), tensor({0.f}, {1})});
  const auto kernels = [&](const StepOptions& o) {
    const auto before = engine_stats().kernels;
    CHECK(bool(opt.step(grads, o)) == (o.clip_norm > 0 || o.norm));
    return engine_stats().kernels - before;
  };
  CHECK(kernels({}) == 1);
  CHECK(kernels({.norm = tensor({5.f}, {})}) == 1);
  CHECK(kernels({.clip_norm = 1}) == 3);
}

TEST_CASE("a norm that is passed is the one used") {
  const auto after = [](const Tensor& norm) {
    const Parameter p{"a", leaf({1, 1}, {2})};
    AdamW opt({p}, {.weight_decay = 0});
    const GradMap grads = given({p}, {tensor({3.f, 4.f}, {2})});
    CHECK(opt.step(grads, {.clip_norm = 1, .norm = norm}).item<float>() == (norm ? norm.item<float>() : 5));
    return opt.state().at("a.m").to_vector<float>();
  };
  CHECK(after({}) == after(tensor({5.f}, {})));
  CHECK(after({}) != after(tensor({10.f}, {})));
}

TEST_CASE("set_lr replaces the rate of the configuration") {
  std::vector<Parameter> params{{"b", leaf({1}, {1})}};
  AdamW opt(params, {.lr = 0.25, .weight_decay = 0});
  const GradMap grads = given(params, {tensor({3.f}, {1})});
  opt.set_lr(0);
  opt.step(grads);
  CHECK(params[0].tensor.item<float>() == 1);
  CHECK(opt.lr() == 0);
  CHECK(opt.config().lr == 0.25);
  opt.set_lr(0.25);
  opt.step(grads);  // equal gradients: the step is lr
  CHECK(params[0].tensor.item<float>() == doctest::Approx(0.75).epsilon(1e-6));
}

TEST_CASE("a gradient that does not fit is an error that names the parameter, and no parameter has moved") {
  std::vector<Parameter> params{{"first", leaf({1, 2}, {2})}, {"last", leaf({1, 2, 3}, {3})}};
  params[1].tensor.label("last");
  AdamW opt(params);
  const GradMap grads = given(params, {tensor({1.f, 1.f}, {2}), tensor({1.f, 1.f}, {2})});
  CHECK_SAYS(opt.step(grads), "[adamw_step] gradient 1 is (2) f32, the weight is 'last' (3) f32.");
  CHECK(opt.steps() == 0);
  CHECK(params[0].tensor.to_vector<float>() == std::vector<float>{1, 2});
  CHECK(opt.state().at("first.m").to_vector<float>() == std::vector<float>{0, 0});
}

TEST_CASE("what AdamW refuses") {
  const Tensor w = leaf({1}, {1}), frozen = tensor({1.f}, {1});
  CHECK_SAYS(AdamW({}), "no parameters");
  CHECK_SAYS(AdamW({{"w", frozen}}), "'w' does not require a gradient");
  CHECK_SAYS(AdamW({{"w", w.detach().to(DType::bf16).requires_grad_()}}), "'w' is (1) bf16.");
  CHECK_SAYS(AdamW({{"w", w}, {"x", w}}), "'x' is listed twice");
  CHECK_SAYS(AdamW({{"w", w}, {"w", leaf({1}, {1})}}), "'w' is listed twice");
  CHECK_SAYS(AdamW({{"w", w}}, {.lr = -1}), "lr is -1");
  CHECK_SAYS(AdamW({{"w", w}}, {.beta1 = 1}), "beta1 is 1");
  CHECK_SAYS(AdamW({{"w", w}}, {.beta2 = -0.5}), "beta2 is -0.5");
  CHECK_SAYS(AdamW({{"w", w}}, {.eps = 0}), "eps is 0");
  CHECK_SAYS(AdamW({{"w", w}}, {.weight_decay = NAN}), "weight_decay is nan");
  CHECK_SAYS(AdamW({{"w", w}}, {.moments = DType::f16}), "[adamw] moments is f16. It must be bf16 or f32");
  CHECK_SAYS(AdamW({{"w", leaf({1}, {1}).detach().to(DType::f64).requires_grad_()}}, {.moments = DType::bf16}),
             "[adamw] 'w' is (1) f64, and its state is to be bf16");
  AdamW opt({{"w", w}});
  CHECK_SAYS(opt.step({}, {.clip_norm = -1}), "clip_norm is -1");
  for (const double lr : {-1.0, -1e-300, double(NAN), double(INFINITY)})
    CHECK_SAYS(opt.set_lr(lr), fmt::format("lr is {}. It", lr));
  CHECK(opt.steps() == 0);
  CHECK(w.item<float>() == 1);
}

TEST_CASE("state: a snapshot, and what load_state() refuses") {
  const Parameter p{"w", random({5, 3}, 1).requires_grad_()};
  AdamW opt({p});
  const auto step = [&](uint64_t seed) { opt.step(given({p}, {random({5, 3}, seed)})); };
  step(2);
  const StateDict saved = opt.state();
  const auto m = bits_of(saved.at("w.m"));
  step(3);
  CHECK(bits_of(saved.at("w.m")) == m);
  CHECK_SAYS(opt.load_state(with_tensor(saved, "w.v"), 1), "the state has no 'w.v'");
  CHECK_SAYS(opt.load_state(with_tensor(saved, "w.v", zeros({3, 5})), 1),
             "'w.v' is (3, 5) f32 in the state and must be (5, 3) f32");
  CHECK_SAYS(opt.load_state(with_tensor(saved, "x.m", zeros({1})), 1),
             "'x.m' of the state belongs to none of the 1 parameters");
  CHECK_SAYS(opt.load_state(saved, -1), "steps is -1");
  CHECK_SAYS(opt.load_state(saved, INT64_MAX), "steps is 9223372036854775807. It must be from 0 to");
  CHECK(opt.steps() == 2);
}

TEST_CASE("load_state: f32 moments become bf16 to nearest, and bf16 ones f32 as they are") {
  const Parameter p{"w", random({50, 3}, 1).requires_grad_()};
  AdamW wide({p}), narrow({p}, {.moments = DType::bf16});
  wide.step(given({p}, {random({50, 3}, 2)}));
  const StateDict saved = wide.state();
  narrow.load_state(saved, 1);
  wide.load_state(narrow.state(), 1);
  for (const auto& [name, t] : saved) {
    CHECK(bits_of(narrow.state().at(name)) == bits_of(t.to(DType::bf16)));
    CHECK(bits_of(wide.state().at(name)) == bits_of(t.to(DType::bf16).to(DType::f32)));
  }
}

TEST_CASE("schedule: constant, and warm-up to a constant rate") {
  const Schedule constant{.kind = ScheduleKind::constant, .lr = 0.5};
  for (int64_t i : {0, 1, 1000000}) CHECK(constant.at(i) == 0.5);
  const Schedule warm{.kind = ScheduleKind::constant, .lr = 1, .warmup = 3};
  CHECK(warm.at(0) == doctest::Approx(0.25));
  CHECK(warm.at(2) == doctest::Approx(0.75));
  CHECK(warm.at(3) == 1);
  CHECK(warm.at(1000000) == 1);
  const Schedule endless{.kind = ScheduleKind::constant, .lr = 1, .warmup = INT64_MAX};
  CHECK(endless.at(0) == std::ldexp(1.0, -63));
  CHECK(endless.at(INT64_MAX - 1) == 1);
  CHECK(Schedule{.kind = ScheduleKind::constant, .lr = 1e-5, .min_lr = 1e-4}.at(3) == 1e-5);  // min_lr is unused
}

TEST_CASE("schedule: cosine, with warm-up and without") {
  const Schedule plain{.lr = 1, .min_lr = 0.1, .total = 20};
  CHECK(plain.at(0) == 1);
  CHECK(plain.at(10) == doctest::Approx(0.55));
  const Schedule s{.lr = 1, .min_lr = 0.1, .warmup = 4, .total = 20};
  CHECK(s.at(0) == doctest::Approx(1.0 / 5));
  CHECK(s.at(3) == doctest::Approx(4.0 / 5));
  CHECK(s.at(4) == 1);
  CHECK(s.at(8) == doctest::Approx(0.1 + 0.45 * (1 + std::cos(std::numbers::pi / 4))));
  CHECK(s.at(12) == doctest::Approx(0.55));  // half way
  CHECK(s.at(20) == 0.1);
  CHECK(s.at(1000000) == 0.1);
  CHECK(Schedule{.lr = 1, .warmup = 1, .total = INT64_MAX}.at(INT64_MAX / 2 + 1) == doctest::Approx(0.5));
  for (int64_t i = 4; i < 20; ++i) CHECK(s.at(i + 1) < s.at(i));
  CHECK(Schedule{.lr = 2, .min_lr = 2, .warmup = 0, .total = 0}.at(0) == 2);
  CHECK(Schedule{.lr = 2, .min_lr = 1, .warmup = 3, .total = 3}.at(3) == 1);  // no division by the empty cosine
  CHECK_SAYS(Schedule{.lr = -1}.at(0), "lr is -1");
  CHECK_SAYS((Schedule{.lr = 1, .min_lr = 2}.at(0)), "min_lr is 2 and lr 1");
  CHECK_SAYS(Schedule{.warmup = -1}.at(0), "warmup is -1");
  CHECK_SAYS((Schedule{.warmup = 5, .total = 4}.at(0)), "total is 4, warmup 5");
  CHECK_SAYS(s.at(-1), "step is -1");
}
TEST_CASE("schedule: a cosine that holds, and wsd, as llm.c and modded-nanogpt write them") {
  const Schedule llmc{.lr = 6e-4, .warmup = 699, .hold = 1, .total = 18865};
  const double progress = 7300. / (18865 - 700);
  CHECK(llmc.at(0) == doctest::Approx(6e-4 / 700).epsilon(1e-14));
  CHECK(llmc.at(699) == 6e-4);
  CHECK(llmc.at(700) == 6e-4);
  CHECK(llmc.at(8000) == doctest::Approx(3e-4 * (1 + std::cos(std::numbers::pi * progress))).epsilon(1e-13));
  const Schedule wsd{.kind = ScheduleKind::wsd, .lr = 2, .min_lr = 1, .warmup = 2, .cooldown = 0.7, .total = 3250};
  for (const int64_t i : {2, 974, 975}) CHECK(wsd.at(i) == 2);
  CHECK(wsd.at(0) == doctest::Approx(2. / 3));
  CHECK(wsd.at(2000) == doctest::Approx(1 + (1 - 2000 / 3250.) / 0.7));
  CHECK(wsd.at(3249) > 1);
  CHECK(wsd.at(3250) == 1);
  CHECK(Schedule{.kind = ScheduleKind::wsd, .lr = 1, .cooldown = 1, .total = 0}.at(0) == 0);
  CHECK_SAYS((Schedule{.kind = ScheduleKind::wsd, .cooldown = 0}.at(0)), "cooldown 0. They must be");
  CHECK_SAYS((Schedule{.hold = -1}.at(0)), "hold is -1");
  CHECK_SAYS((Schedule{.warmup = 3, .hold = 2, .total = 4}.at(0)), "total is 4, warmup 3 and hold 2");
}
TEST_CASE("global_norm of bf16: large, small, mixed and bad elements, in whole blocks and the rest") {
  const auto ones = [](double x, int64_t n) { return full({n}, x, DType::bf16); };
  for (const double x : {0.0, 1.0, 0x1p100, 0x1p-40, 0x1p-80, 0x1p-100, 0x1p-130})
    for (const int64_t n : {1, 511, 512, 1300, 20000}) {
      CAPTURE_ALL(x, n);
      const double want = x * std::sqrt(double(n)), got = double(global_norm({ones(x, n)}).item<float>());
      CHECK(std::abs(got - want) <= 1e-6 * want + 0x1p-149);
      const double both = double(global_norm({ones(x, n), ones(2, 512)}).item<float>());
      CHECK(std::abs(both - std::hypot(want, std::sqrt(2048.0))) <= 1e-6 * both);
    }
  CHECK(std::isinf(global_norm({ones(std::numeric_limits<double>::infinity(), 600)}).item<float>()));
  CHECK(std::isnan(global_norm({ones(std::numeric_limits<double>::quiet_NaN(), 600)}).item<float>()));
}
TEST_CASE("norms of large gradients are summed in parts, before backward ends, with the bits of one sum") {
  std::vector<Tensor> odd;
  for (const int64_t n : {1, 16385, 0, 7, 40000, 16384, 3, 100001})
    odd.push_back(random({n}, uint64_t(n)).to(n % 2 ? DType::f32 : DType::bf16));
  for (const bool wide : {false, true}) {
    if (wide) odd.push_back(random({5}, 6).to(DType::f64));
    for (const int64_t bytes : {1, 50'000, 300'000, 1 << 20})
      CHECK(bits_of(detail::norm_in_parts(odd, bytes)) == bits_of(global_norm(odd)));
  }
  std::vector<Parameter> params;
  for (uint64_t i = 0; i < 4; ++i) params.push_back({fmt::format("w{}", i), random({2048, 2048}, i).requires_grad_()});
  Sgd sgd(params, {.lr = 0});
  std::vector<Tensor> all;
  const auto step = [&](Inputs in) {
    Tensor y = in[0];
    for (const Parameter& p : params) y = tg::tanh(matmul(y, p.tensor) * 0.01);
    const GradMap g = backward(sum(y * y));
    all.clear();
    for (const Parameter& p : params) all.push_back(g[p.tensor]);
    return std::vector<Tensor>{sgd.step(g, {.clip_norm = 1})};
  };
  const std::vector<Tensor> x{random({1, 2048}, 9)};
  const auto eager = bits_of(step(x)[0]);
  CHECK(bits_of(global_norm(all)) == eager);
  const Compiled fast = compile([&](Inputs in) {
    const auto r = step(in);
    all.clear();
    return r;
  });
  CHECK(bits_of(fast(x)[0]) == eager);
  Profiler profiler;
  CHECK(bits_of(fast(x)[0]) == eager);
  std::vector<size_t> sums, products;
  const Profile profile = profiler.stop();
  for (size_t i = 0; i < profile.ranges.size(); ++i) {
    if (profile.ranges[i].name == "square_sums") sums.push_back(i);
    if (profile.ranges[i].name == "matmul") products.push_back(i);
  }
  REQUIRE(sums.size() == 2);
  CHECK(products.size() >= 11);
  CHECK(sums[0] < products[products.size() - 2]);
  const LazyScope lazy;
  CHECK(bits_of(step(x)[0]) == eager);
}
