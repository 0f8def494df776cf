// The gradient overwrites the logits unless someone holds them.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/matmul.h>

#include "support/helpers.h"

using namespace tg;
namespace {
constexpr int64_t kRows = 64, kClasses = 4096;
struct LargeHead {
  Tensor x = random({kRows, 8}, 1), w = random({kClasses, 8}, 2).requires_grad_(), targets;
  LargeHead() {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < kRows; ++i) ids.push_back(i * 61 % kClasses);
    targets = tensor<int64_t>(ids, {kRows});
  }
  Tensor logits(DType t = DType::f32) const { return linear(x.to(t), w.to(t)); }
};
}  // namespace

TEST_CASE("cross-entropy: one buffer of the size of the logits in forward and backward, eager and lazy") {
  const LargeHead h;
  for (DType t : {DType::f32, DType::bf16})
    for (bool lazy : {false, true}) {
      CAPTURE_ALL(t, lazy);
      const int64_t size = kRows * kClasses * int64_t(size_of(t)), before = memory_stats().live;
      reset_peak();
      Mode mode(lazy);
      const Tensor loss = cross_entropy(h.logits(t), h.targets);
      const Tensor g = backward(loss)[h.w];
      eval({loss, g});
      CHECK(memory_stats().peak - before < 3 * size / 2);
    }
}
TEST_CASE("cross-entropy: logits that somebody holds stay as they are") {
  const LargeHead h;
  const Tensor alone = backward(cross_entropy(h.logits(), h.targets))[h.w];
  const Tensor logits = h.logits();
  const auto before = bits_of(logits);
  const Tensor loss = cross_entropy(logits, h.targets);
  const Tensor first = backward(loss, {.retain_graph = true})[h.w], second = backward(loss)[h.w];
  CHECK(bits_of(logits) == before);
  CHECK(bits_of(first) == bits_of(alone));
  CHECK(bits_of(second) == bits_of(alone));
  const Tensor both = h.logits();
  const Tensor view = reshape(both, {kClasses, kRows}), sum_of_two = cross_entropy(both, h.targets) + sum(view * view);
  const Tensor kept = view.detach();
  const auto values = bits_of(kept);
  backward(sum_of_two);
  CHECK(bits_of(kept) == values);
}
