// The whole training step with dropout and a changing learning rate, its plan and its memory.
#include <tapegrad/core/node.h>
#include "support/small_training.h"
#include "support/step_parts.h"

#include <set>

using namespace tg;
namespace {
// Tensors of many sizes (some empty), both dtypes, gradients in all layouts.
struct Many {
  std::vector<Tensor> w, m, v, g;
  std::vector<AdamWOverrides> decay;
  explicit Many(size_t n) {
    const std::vector<Shape> shapes{{0}, {1}, {3}, {5, 7}, {}, {2, 2, 2}, {129, 3}, {4, 0}, {600}};
    for (size_t i = 0; i < n; ++i) {
      const Shape s = i % 200 == 7 ? Shape{129, 260} : shapes[i % shapes.size()];  // three tiles
      const DType t = i % 5 == 2 ? DType::f64 : DType::f32;
      const auto made = [&](uint64_t seed, double lo) { return random(s, seed + i, lo).to(t).detach(); };
      w.push_back(made(1, -1)), m.push_back(made(2000, -1)), v.push_back(made(4000, 0));
      g.push_back(stored(made(6000, -1), kStores[i % 4]));
      decay.push_back({.lr_scale = 1 + double(i % 2), .weight_decay = i % 3 == 0 ? 0 : 0.1 * double(i % 7)});
    }
  }
  void step(int64_t t, double max_norm = 0) const {
    const Tensor norm = max_norm > 0 ? global_norm(g) : Tensor();
    adamw_step({.w = w, .m = m, .v = v, .grad = g, .each = decay}, {}, 0.1, t, norm, max_norm);
  }
  std::vector<Tensor> state() const {
    std::vector<Tensor> r = w;
    r.insert(r.end(), m.begin(), m.end());
    r.insert(r.end(), v.begin(), v.end());
    return r;
  }
};
std::vector<const std::byte*> addresses(const std::vector<Tensor>& all) {
  std::vector<const std::byte*> r;
  for (const Tensor& t : all) r.push_back(t.value()->storage->data);
  return r;
}
}  // namespace

TEST_CASE("five lazy steps with warm-up and dropout: one evaluation each, one plan, five masks, equal to eager") {
  SmallTraining model(8);
  std::set<std::vector<bool>> masks;
  std::vector<float> got;
  const EngineStats before = engine_stats();
  for (int i = 0; i < 5; ++i) {
    LazyScope lazy;
    const EngineStats start = engine_stats();
    const Tensor loss = model.step();
    CHECK(engine_stats().kernels == start.kernels);  // backward and assign evaluate nothing
    eval(model.roots(loss));
    CHECK(engine_stats().evaluations == start.evaluations + 1);
    std::vector<bool> mask;
    for (float f : values(model.dropped)) mask.push_back(f != 0);
    masks.insert(mask);
    got.push_back(loss.item<float>());
  }
  CHECK(engine_stats().plans == before.plans + 1);
  CHECK(engine_stats().replays == before.replays + 4);
  CHECK(masks.size() == 5);
  model.append_weights(got);
  CHECK(got == train_small(false, 1));
}
TEST_CASE("the step's memory does not grow by P: the optimiser writes in place") {
  const int64_t n = 256;
  const int64_t p = n * n * 4, small = 32 * n * 4;
  for (bool lazy : {false, true}) {
    CAPTURE(lazy);
    SmallTraining model(n);
    std::vector<Tensor> also;  // model, Params and optimiser all hold the Variable
    for (auto& q : model.params) also.push_back(q.w);
    for (int i = 0; i < 3; ++i) {
      std::vector<const float*> at;
      for (auto& q : model.params)
        for (auto& t : {q.w, q.m, q.v}) at.push_back(t.data<float>());
      reset_peak();
      const MemoryStats before = memory_stats();
      {
        Mode mode(lazy);
        const Tensor loss = model.step();
        eval(model.roots(loss));
      }
      model.dropped = Tensor();
      const MemoryStats after = memory_stats();
      CHECK(after.live <= before.live);
      CHECK(after.peak - before.live <= 2 * p + small);  // two gradients, no second w, m or v (8 p)
      CHECK(after.total - before.total <= 2 * p + small);
      size_t k = 0;
      for (auto& q : model.params)
        for (auto& t : {q.w, q.m, q.v}) CHECK(t.data<float>() == at[k++]);
    }
  }
}
TEST_CASE("steps of parts of weights: those of slices, and the rest as it was") {
  check_steps_of_parts(Device());
  const Tensor w = zeros({4}), m = zeros({2}), v = zeros({2}), g = zeros({2}), wrong = zeros({2, 1});
  const auto step = [&](const Tensor& moment, std::vector<int64_t> first) {
    adamw_step({.w = {&w, 1}, .m = {&moment, 1}, .v = {&v, 1}, .grad = {&g, 1}, .first = first}, {}, 0.1, 1);
  };
  CHECK_SAYS(step(m, {3}), "for the weight (4) f32 from element 3 on");
  CHECK_SAYS(step(m, {-1}), "from element -1 on");
  CHECK_SAYS(step(wrong, {0}), "[adamw_step] first moment 0 is (2, 1) f32");
  CHECK_SAYS(step(zeros({1}), {0}), "the gradient is (2) f32. Their shapes must be equal.");
  CHECK_SAYS(step(m, {0, 0}), "there are 2 first elements of parts and 1 weights");
}
TEST_CASE("a thousand tiny steps leave memory where it was") {
  for (bool lazy : {false, true}) {
    CAPTURE(lazy);
    SmallTraining model(8);
    const auto steps = [&](int n) {
      for (int i = 0; i < n; ++i) {
        Mode mode(lazy);
        const Tensor loss = model.step();
        eval(model.roots(loss));
      }
      return memory_stats();
    };
    const MemoryStats warm = steps(20), end = steps(1000);
    CHECK(end.live == warm.live);
    CHECK(end.peak == warm.peak);
    CHECK(end.cached == warm.cached);
  }
}
TEST_CASE("somebody who holds the old value keeps it, and gets another plan") {
  for (bool lazy : {false, true}) {
    SmallTraining model(8), twin(8);
    const auto run = [&](SmallTraining& m) {
      Mode mode(lazy);
      const Tensor loss = m.step();
      eval(m.roots(loss));
    };
    run(model), run(twin);
    const Tensor snapshot = model.params[0].w.detach(), row = slice(model.params[1].w, 0, 2, 3);
    const auto old = values(snapshot), old_row = values(row);
    const auto plans = engine_stats().plans;
    run(model), run(twin);
    CHECK(engine_stats().plans == plans + lazy);  // liveness is part of the key
    CHECK(values(snapshot) == old);
    CHECK(values(row) == old_row);
    for (size_t i = 0; i < 2; ++i) CHECK(values(model.params[i].w) == values(twin.params[i].w));
    CHECK(values(model.params[0].w) != old);
  }
}
TEST_CASE("a step whose tape is retained does not write into what the tape saved") {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = random({2, 2}, 1).requires_grad_(), w = random({2, 2}, 2).requires_grad_();
    const Tensor m = filled({2, 2}, 0.f), v = filled({2, 2}, 0.f);
    const Tensor loss = sum(matmul(x, w));
    const auto g = backward(loss, {.retain_graph = true});
    const auto dx = values(g[x]);
    adamw_step(w, m, v, g[w], {}, 0.1, 1);
    eval({w, m, v});
    CHECK(values(backward(loss)[x]) == dx);  // the old w, still there
  }
}
TEST_CASE("several steps in one evaluation: a leaf that is still lazy is a leaf") {
  SmallTraining model(8);
  std::vector<float> got;
  {
    LazyScope lazy;
    const auto before = engine_stats();
    std::vector<Tensor> losses;
    for (int i = 0; i < 3; ++i) losses.push_back(model.step());
    CHECK(engine_stats().kernels == before.kernels);
    const auto roots = model.roots(losses[2]);
    eval(roots);
    CHECK(engine_stats().evaluations == before.evaluations + 1);
    for (auto& l : losses) got.push_back(l.item<float>());
  }
  model.append_weights(got);
  CHECK(got == train_small(false, 1, 3));
}
TEST_CASE("a detached loss does not keep the tape") {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor x = filled({1 << 16}, .5f).requires_grad_(), kept;
    const int64_t base = memory_stats().live;
    {
      const Tensor loss = sum(tg::tanh(tg::tanh(x)));
      kept = loss.detach();
      eval({kept});
    }
    CHECK(memory_stats().live < base + 64);
    CHECK(kept.item<float>() > 0);
  }
}
TEST_CASE("clipping by the global norm inside the step needs no evaluation of its own") {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor w = random({4, 4}, 1).requires_grad_();
    const Tensor twin = w.detach() * 1.0, m = filled({4, 4}, 0.f), v = filled({4, 4}, 0.f);
    const Tensor m2 = filled({4, 4}, 0.f), v2 = filled({4, 4}, 0.f);
    eval({twin});
    const Tensor g = backward(sum(w * w))[w], norm = global_norm({g});
    const auto evaluations = engine_stats().evaluations;
    adamw_step(w, m, v, g, {}, 0.1, 1, norm, 0.5);
    CHECK(engine_stats().evaluations == evaluations);
    const double scale = 0.5 / (double(norm.item<float>()) + 1e-6);
    CHECK(scale < 1);
    adamw_step(twin, m2, v2, g * scale, {}, 0.1, 1);
    eval({w, m, v, twin, m2, v2});
    CHECK(distance(m, m2) < 1e-6);  // one rounding of the product apart
    CHECK(distance(v, v2) < 1e-6);
    CHECK(distance(w, twin) < 1e-6);
  }
}
// step() of 600 tensors at once, against one step() for each tensor.
template <class Step> void check_one_kernel(bool moments, bool second, Step step) {
  for (bool lazy : {false, true}) {
    CAPTURE(lazy);
    const Many together(600), apart(600);
    const auto state = [&](const Many& m) {
      std::vector<Tensor> r = m.w;
      if (moments) r.insert(r.end(), m.m.begin(), m.m.end());
      if (second) r.insert(r.end(), m.v.begin(), m.v.end());
      return r;
    };
    const auto all = state(together), expected = state(apart);
    for (int64_t t = 1; t <= 3; ++t) {
      const auto before = addresses(all);
      const auto kernels = engine_stats().kernels;
      {
        Mode mode(lazy);
        step(together, 0, 600, t, global_norm(together.g));
        eval(all);
      }
      CHECK(engine_stats().kernels == kernels + 3);
      CHECK(addresses(all) == before);
      const Tensor norm = global_norm(apart.g);
      for (size_t i = 0; i < 600; ++i) step(apart, i, 1, t, norm);
    }
    size_t differ = 0;
    for (size_t i = 0; i < all.size(); ++i) differ += bits_of(all[i]) != bits_of(expected[i]);
    CHECK(differ == 0);
  }
}
TEST_CASE("a step of 600 tensors is one kernel, in place, with the bits of 600 steps: AdamW, SGD, with momentum") {
  check_one_kernel(true, true, [](const Many& m, size_t i, size_t n, int64_t t, const Tensor& norm) {
    const std::span<const AdamWOverrides> each = std::span(m.decay).subspan(i, n);
    adamw_step({.w = {&m.w[i], n}, .m = {&m.m[i], n}, .v = {&m.v[i], n}, .grad = {&m.g[i], n}, .each = each}, {}, 0.1,
               t, norm, 0.5);
  });
  for (const double momentum : {0.0, 0.9}) {
    CAPTURE(momentum);
    check_one_kernel(momentum > 0, false, [&](const Many& m, size_t i, size_t n, int64_t t, const Tensor& norm) {
      std::vector<SgdOverrides> each;
      for (size_t k = i; k < i + n; ++k)
        each.push_back({.lr_scale = m.decay[k].lr_scale, .weight_decay = m.decay[k].weight_decay});
      sgd_step({.w = {&m.w[i], n},
                .grad = {&m.g[i], n},
                .momentum = momentum > 0 ? Inputs(&m.m[i], n) : Inputs(),
                .each = each},
               {.momentum = momentum, .dampening = momentum / 2}, 0.1, t, norm, 0.5);
    });
  }
}
TEST_CASE("a step of many tensors moves only those whose old value is held, or whose storage is another's too") {
  for (bool lazy : {false, true}) {
    CAPTURE(lazy);
    const Many model(40), twin(40);
    const auto all = model.state(), expected = twin.state();
    model.m[10].assign(model.v[10]), twin.m[10].assign(twin.v[10]);  // both share one Value
    const Tensor held = model.w[3].detach(), row = slice(model.m[6], 0, 1, 2), gradient = model.g[12];
    model.w[12].assign(gradient), twin.w[12].assign(twin.g[12]);  // a weight that is also a gradient
    const auto old = bits_of(held), old_row = bits_of(row), old_gradient = bits_of(gradient);
    const auto before = addresses(all);
    {
      Mode mode(lazy);
      model.step(1, 0.5);
      eval(all);
    }
    const auto after = addresses(all);
    for (size_t i = 0; i < all.size(); ++i) {
      const bool moved = i == 3 || i == 12 || i == 40 + 6 || i == 40 + 10 || i == 80 + 10;
      CAPTURE(i);
      CHECK((after[i] != before[i]) == moved);
    }
    CHECK(bits_of(held) == old);
    CHECK(bits_of(row) == old_row);
    CHECK(bits_of(gradient) == old_gradient);
    const Tensor norm = global_norm(twin.g);
    for (size_t i = 0; i < twin.w.size(); ++i)
      adamw_step(twin.w[i], twin.m[i], twin.v[i], twin.g[i], {.weight_decay = *twin.decay[i].weight_decay},
                 0.1 * twin.decay[i].lr_scale, 1, norm, 0.5);
    for (size_t i = 0; i < all.size(); ++i) CHECK(bits_of(all[i]) == bits_of(expected[i]));
  }
}
TEST_CASE("the plan of a step: one for every rate and number, another for other decays") {
  Many model(300);  // 900 outputs
  const auto all = model.state();
  const auto plans_of = [&](int64_t t) {
    const auto before = engine_stats();
    LazyScope lazy;
    model.step(t, 0.5);
    eval(all);
    CHECK(engine_stats().plans + engine_stats().replays == before.plans + before.replays + 1);
    return engine_stats().plans - before.plans;
  };
  CHECK(plans_of(1) == 1);
  CHECK(plans_of(2) == 0);
  model.decay[17].weight_decay = 0.7;
  CHECK(plans_of(3) == 1);
  const Tensor held = model.v[299].detach();
  CHECK(plans_of(4) == 1);
}
