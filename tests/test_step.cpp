// The whole training step: forward, backward, AdamW, with dropout and a changing learning rate; its plan and its
// memory.
#include "helpers.h"
#include "small_training.h"

#include <set>

using namespace tg;

TEST_CASE("five lazy steps with warm-up and dropout: one evaluation each, one plan, five masks, equal to eager") {
  SmallTraining model(8);
  std::set<std::vector<bool>> masks;
  std::vector<float> got;
  const EngineStats before = engine_stats();
  for (int i = 0; i < 5; ++i) {
    LazyScope lazy;
    const EngineStats start = engine_stats();
    const Tensor loss = model.step();
    CHECK(engine_stats().kernels == start.kernels);  // nothing was flushed by backward or by assign
    evaluate(model.roots(loss));
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
        evaluate(model.roots(loss));
      }
      model.dropped = Tensor();
      const MemoryStats after = memory_stats();
      CHECK(after.live <= before.live);
      CHECK(after.peak - before.live <= 2 * p + small);  // two gradients, never a second w, m or v (that would be 8 p)
      CHECK(after.total - before.total <= 2 * p + small);
      size_t k = 0;
      for (auto& q : model.params)
        for (auto& t : {q.w, q.m, q.v}) CHECK(t.data<float>() == at[k++]);
    }
  }
}
TEST_CASE("a thousand tiny steps leave memory where it was") {
  for (bool lazy : {false, true}) {
    CAPTURE(lazy);
    SmallTraining model(8);
    const auto steps = [&](int n) {
      for (int i = 0; i < n; ++i) {
        Mode mode(lazy);
        const Tensor loss = model.step();
        evaluate(model.roots(loss));
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
      evaluate(m.roots(loss));
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
    evaluate({w, m, v});
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
    evaluate(roots);
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
      evaluate({kept});
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
    evaluate({twin});
    const Tensor g = backward(sum(w * w))[w], norm = global_norm({g});
    const auto evaluations = engine_stats().evaluations;
    adamw_step(w, m, v, g, {}, 0.1, 1, norm, 0.5);
    CHECK(engine_stats().evaluations == evaluations);
    const double scale = 0.5 / (double(norm.item<float>()) + 1e-6);
    CHECK(scale < 1);
    adamw_step(twin, m2, v2, g * scale, {}, 0.1, 1);
    evaluate({w, m, v, twin, m2, v2});
    CHECK(distance(m, m2) < 1e-6);  // one rounding of the product apart
    CHECK(distance(v, v2) < 1e-6);
    CHECK(distance(w, twin) < 1e-6);
  }
}
