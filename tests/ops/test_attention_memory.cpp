// Memory without inputs, outputs and gradients grows with T, not T x T. The allocator counts tensors; a process's peak
// includes kernels' scratch.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/factories.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "support/alone.h"
#include "support/helpers.h"

using namespace tg;
namespace {
constexpr int64_t kSize = 8;
struct Form {
  std::string name;
  int64_t heads, kv_heads;
  bool causal;
  double dropout = 0;
};
const Form kForms[] = {{"causal", 2, 2, true},
                       {"full", 2, 2, false},
                       {"grouped", 4, 2, true},
                       {"many", 8, 8, true},
                       {"dropped", 2, 2, true, 0.1}};
struct Memory {
  int64_t kept, peak;  // kept: backward's bytes; peak: both passes
};
Memory memory_of(const Form& f, int64_t t, DType dtype) {
  Rng rng{1};
  const auto leaf = [&](int64_t heads) { return randn({1, heads, t, kSize}, rng, 0, 1, dtype).detach(); };
  Tensor q = leaf(f.heads).requires_grad_(), k = leaf(f.kv_heads).requires_grad_(),
         v = leaf(f.kv_heads).requires_grad_();
  const Tensor dy = leaf(f.heads);
  const int64_t before = memory_stats().live, one = int64_t(dy.layout().bytes()), key = int64_t(k.layout().bytes());
  reset_peak();
  Tensor y = attention(q, k, v, {.causal = f.causal, .dropout = f.dropout, .rng = &rng});
  Memory m;
  m.kept = memory_stats().live - before - one;
  const GradMap g = backward(y, dy);
  CHECK(g.size() == 3);
  m.peak = memory_stats().peak - before - 2 * one - 2 * key;
  return m;
}

// Runs the skipped test case below.
int64_t process_peak(const std::string& form, int64_t t, DType dtype) {
  const Alone r =
      run_alone(ALONE "attention", fmt::format("TG_TEST_ATTENTION='{} {} {}'", form, t, dtype == DType::bf16));
  INFO(r.output);
  REQUIRE(r.status == 0);
  const size_t at = r.output.find("peak of ");
  REQUIRE(at != std::string::npos);
  return std::atoll(r.output.c_str() + at + 8) * 1024;
}
}  // namespace

TEST_CASE("attention: memory beside inputs, outputs and gradients grows with T, not T^2") {
  for (const Form& f : kForms)
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t t : {256, 512, 1024, 2048, 4096}) {
        if (kSanitized && t > 1024) continue;  // time grows with T^2
        CAPTURE_ALL(f.name, dtype, t);
        const Memory m = memory_of(f, t, dtype);
        const int64_t statistics = f.heads * t * 4;  // log-sum-exp per row
        CHECK(m.kept <= statistics + 1024);
        // With fewer than 8 heads, up to 4 splits of the keys have partial dq.
        const int64_t parts = f.kv_heads < 8 && t >= 512 ? std::min<int64_t>(4, t / 256) : 0;
        const int64_t row = std::max<int64_t>(kSize * 4, 64);  // whole vectors
        CHECK(m.peak <= statistics + parts * f.heads * t * row + 1024);
      }
}
ALONE_CASE("attention") {
  const char* what = std::getenv("TG_TEST_ATTENTION");
  REQUIRE_MESSAGE(what, "the test case below sets the form and length");
  char form[16];
  long long t;
  char wide[8];
  REQUIRE(std::sscanf(what, "%15s %lld %7s", form, &t, wide) == 3);
  for (const Form& f : kForms)
    if (f.name == form) memory_of(f, t, wide == std::string("true") ? DType::bf16 : DType::f32);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) std::printf("peak of %lld kB\n", std::atoll(line.c_str() + 6));
}
TEST_CASE("attention: kernels keep no scratch of the size of the scores (sanitizers skip it: their own memory grows)" *
          doctest::skip(kSanitized)) {
  // Inputs, outputs and gradients take up to 2 MiB; scores of a head 64 MiB, 32 if causal.
  constexpr int64_t kMost = 16 << 20;
  for (const Form& f : kForms)
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE_ALL(f.name, dtype);
      const int64_t small = process_peak(f.name, 256, dtype), large = process_peak(f.name, 4096, dtype);
      CHECK(small > 1 << 20);
      CHECK(large - small < kMost);
    }
}
