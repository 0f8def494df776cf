// Attention keeps nothing of the size of the scores, T x T: what it holds beside its inputs, outputs and gradients
// grows with T.
#include <tapegrad/core/backend.h>
#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/create.h>

#include "helpers.h"

using namespace tg;
namespace {
constexpr int64_t kHeads = 2, kSize = 8;
struct Memory {
  int64_t kept, peak;  // bytes: for backward, and the most in forward and backward; without inputs and gradients
};
Memory memory_of(int64_t t, DType dtype) {
  Rng rng{1};
  std::vector<Tensor> in;
  for (int i = 0; i < 3; ++i) in.push_back(randn({1, kHeads, t, kSize}, rng, 0, 1, dtype).detach().requires_grad_());
  const Tensor dy = randn({1, kHeads, t, kSize}, rng, 0, 1, dtype);
  const int64_t before = memory_stats().live, one = int64_t(dy.layout().bytes());
  reset_peak();
  Tensor y = attention(in[0], in[1], in[2]);
  Memory m;
  m.kept = memory_stats().live - before - one;
  const GradMap g = backward(y, dy);
  CHECK(g.size() == 3);
  m.peak = memory_stats().peak - before - 4 * one;
  return m;
}
}  // namespace

TEST_CASE("attention: memory beside inputs, outputs and gradients grows with T, not T^2") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t t : {256, 512, 1024, 2048, 4096}) {
      CAPTURE(dtype);
      CAPTURE(t);
      const Memory m = memory_of(t, dtype);
      const int64_t statistics = kHeads * t * 4;  // the logarithm of each row's sum
      CHECK(m.kept <= statistics + 1024);
      CHECK(m.peak <= statistics + 1024);
    }
}
