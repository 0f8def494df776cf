// linear_cross_entropy() against cross_entropy(linear()): bits, gradients, memory, ignored rows. Cases of all ops are
// in op_cases_layers.cpp, PyTorch's values in test_oracle.cpp.
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/ops/ops.h>

#include "support/block_weights.h"
#include "support/effort.h"
#include "support/refusals.h"
#include "support/threads.h"

namespace tg {
namespace {
struct Head {
  Tensor x, w, targets;
  Head(int64_t rows, int64_t classes, int64_t width, DType t = DType::f32)
      : x(random({rows, width}, 1).to(t)), w(random({classes, width}, 2, -0.1, 0.1).to(t)) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < rows; ++i) ids.push_back(i % 3 == 1 ? -100 : i * 61 % classes);
    targets = tensor(ids, {rows});
  }
  Tensor plain(CrossEntropyOptions o) const { return cross_entropy(linear(x, w), targets, o); }
  Tensor chunked(CrossEntropyOptions o, int64_t rows = 0) const {
    return linear_cross_entropy(x, w, targets, {o, rows});
  }
};
const std::vector<CrossEntropyOptions> kOptions = {
    {Reduction::mean, -100, 0}, {Reduction::sum, -100, 0.1}, {Reduction::none, -100, 0}};
// Gradients of x and w that need one, by the losses' weights.
std::vector<Tensor> gradients(const Tensor& loss, std::vector<Tensor> of) {
  return grad({loss}, of, {random(loss.shape(), 3).to(loss.dtype())});
}
}  // namespace

TEST_CASE("linear_cross_entropy: the bits of cross_entropy(linear()) in f32, for any rows at a time and threads") {
  if (detail::kernel_level(Backend::cpu) < 3) return;  // Eigen's rows depend on the batch
  for (const int64_t rows : {1, 70})
    for (const auto& o : kOptions) {
      const Head h(rows, 1031, 40);
      const auto expected = bits_of(h.plain(o));
      for (const int64_t n : {0, 1, 31, 32, 33, 70, 1000})
        for (const int threads : {1, 3}) {
          CAPTURE_ALL(rows, int(o.reduction), n, threads);
          const ThreadsScope some(threads);
          CHECK(bits_of(h.chunked(o, n)) == expected);
        }
    }
}
TEST_CASE("linear_cross_entropy: gradients of a frozen and of a trained weight, with and without recomputation") {
  for (const DType t : {DType::f64, DType::f32})
    for (const auto& o : kOptions)
      for (const int64_t n : {0, 1, 31, 33})
        for (const bool frozen : {true, false})
          for (const bool recompute : {false, true}) {
            CAPTURE_ALL(name_of(t), int(o.reduction), n, frozen, recompute);
            const auto of = [&](Head h, bool chunked) {
              h.x.requires_grad_();
              if (!frozen) h.w.requires_grad_();
              std::optional<RecomputeScope> cheap;
              if (recompute) cheap.emplace();
              return gradients(chunked ? h.chunked(o, n) : h.plain(o),
                               frozen ? std::vector{h.x} : std::vector{h.x, h.w});
            };
            const auto got = of(Head(70, 1031, 40, t), true), expected = of(Head(70, 1031, 40, DType::f64), false);
            for (size_t i = 0; i < got.size(); ++i) {
              CHECK(got[i].dtype() == t);
              CHECK(distance(got[i], expected[i]) <= (t == DType::f64 ? 1e-13 : 1e-6));
            }
          }
}
TEST_CASE("linear_cross_entropy: bf16 logits are not rounded, and many chunks add up in f32") {
  for (const bool frozen : {true, false}) {
    Head h(600, 300, 64, DType::bf16);
    const Tensor exact = cross_entropy(linear(wide(h.x), wide(h.w)), h.targets, kOptions[0]);
    CHECK(std::abs(h.chunked(kOptions[0], 7).item<double>() - exact.item<double>()) <= 1e-6 * exact.item<double>());
    CHECK(std::abs(h.plain(kOptions[0]).item<double>() - exact.item<double>()) > 1e-6 * exact.item<double>());
    h.x.requires_grad_();
    if (!frozen) h.w.requires_grad_();
    Tensor x = wide(h.x.detach()).requires_grad_(), w = wide(h.w.detach()).requires_grad_();
    const auto expected = gradients(cross_entropy(linear(x, w), h.targets, kOptions[0]), {x, w});
    for (const int64_t n : {0, 7}) {
      const GradMap g = backward(h.chunked(kOptions[0], n) * random({}, 3));
      CHECK(norm_distance(g[h.x], expected[0]) <= 4e-3);
      if (!frozen) CHECK(norm_distance(g[h.w], expected[1]) <= 4e-3);
    }
  }
}
TEST_CASE("linear_cross_entropy: second derivatives, of a frozen weight too") {
  for (const bool frozen : {true, false}) {
    Head h(5, 7, 3, DType::f64);
    h.x.requires_grad_();
    if (!frozen) h.w.requires_grad_();
    const std::vector<Tensor> of = frozen ? std::vector{h.x} : std::vector{h.x, h.w};
    const auto second = [&](const Tensor& loss) {
      const std::vector<Tensor> first = grad(loss, of, {.create_graph = true});
      Tensor squares = zeros({}, DType::f64);
      for (const Tensor& g : first) squares = squares + sum(g * g);
      return grad(squares, of);
    };
    const auto got = second(h.chunked(kOptions[0], 2)), expected = second(h.plain(kOptions[0]));
    for (size_t i = 0; i < of.size(); ++i) CHECK(distance(got[i], expected[i]) <= 1e-12);
    const int64_t ignored = (int64_t(1) << 53) + 1;  // no double
    const Tensor far_ids = tensor<int64_t>({ignored}, {1});
    h.targets = where(eq(h.targets, -100.0), far_ids, h.targets);
    const auto far = second(h.chunked({Reduction::mean, ignored, 0}, 2));
    for (size_t i = 0; i < of.size(); ++i) CHECK(distance(far[i], expected[i]) <= 1e-12);
  }
}
TEST_CASE("linear_cross_entropy: memory of a frozen weight's step, and in dry runs the same") {
  constexpr int64_t kRows = 1024, kClasses = 4096, kLogits = kRows * kClasses * 4;
  for (const bool trained : {false, true})
    for (const bool dry : {false, true}) {
      CAPTURE_ALL(trained, dry);
      int64_t kept = 0, peak = 0;
      const auto step = [&] {
        Tensor x = ones({kRows, 8}).requires_grad_(), w = ones({kClasses, 8}).requires_grad_(trained);
        const Tensor targets = zeros({kRows}, DType::i64);
        const RecomputeScope cheap;
        const int64_t before = memory_stats().live;
        reset_peak();
        const Tensor loss = linear_cross_entropy(x, w, targets, {.rows = 64});
        kept = memory_stats().live - before;
        backward(loss);
        peak = memory_stats().peak - before;
      };
      dry ? dry_run(step) : step();
      CHECK(kept < kLogits / 64);
      CHECK(peak > kLogits / 16);  // the chunk
      CHECK(peak < kLogits / 8);
    }
}
TEST_CASE("linear_cross_entropy: wrong inputs") {
  const Tensor x = f32_of({2, 3}), w = f32_of({5, 3}), targets = i64_of({2});
  expect(REFUSES(linear_cross_entropy(x, f32_of({3, 5}), targets), shape,
                 "[linear_cross_entropy] x is (2, 3) f32, weight is (3, 5) f32.", "transposed"));
  expect(REFUSES(linear_cross_entropy(x, w, i64_of({3})), shape,
                 "[linear_cross_entropy] x is (2, 3) f32, targets (3) i64.", "shape (2)"));
  expect(REFUSES(linear_cross_entropy(x, w, x), dtype, "[linear_cross_entropy] indices must be i32 or i64"));
  expect(REFUSES(linear_cross_entropy(x, w.to(DType::bf16), targets), dtype, "[linear_cross_entropy]", "bf16"));
  expect(REFUSES(linear_cross_entropy(x, w, targets, {{Reduction::mean, {}, 1}}), value,
                 "[linear_cross_entropy] label_smoothing is 1."));
  expect(
      REFUSES(linear_cross_entropy(x, w, targets, {.rows = -1}), value, "[linear_cross_entropy] -1 rows at a time."));
  expect(REFUSES(values(linear_cross_entropy(x, w, tensor<int64_t>({0, 5}, {2}))), value,
                 "[cross_entropy] target 5 at position (1) of targets (2) i64 is no class."));
  const Tensor none = tensor<int64_t>({1, 1}, {2});
  expect(REFUSES(values(linear_cross_entropy(x, w, none, {{Reduction::mean, 1, 0}})), value,
                 "[cross_entropy] no row is left for the mean: 0 of 2 target(s)"));
  CHECK(values(linear_cross_entropy(x, w, none, {{Reduction::sum, 1, 0}}))[0] == 0);
  CHECK(linear_cross_entropy(f32_of({0, 3}), w, i64_of({0}), {{Reduction::none}}).numel() == 0);
}
TEST_CASE("linear_cross_entropy over blocks: the bits of the dequantized weight in f32, gradients of x to 1e-6") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16})
    for (const BlockFormat f : {BlockFormat::q4_0, BlockFormat::q6_k})
      for (const int64_t classes : {int64_t(50), kSanitized ? 600 : 18400 / int64_t(size_of(t))}) {  // several panels
        const int64_t width = classes < 100 ? 256 : 1024;
        const BlockWeight blocks = random_blocks({{f, classes}}, width, 4);
        Head h(20, classes, width, t);
        h.w = dequantize(blocks, t);
        for (const auto& o : in_turns(kOptions, 3))
          for (const int64_t n : {0, 7}) {
            CAPTURE_ALL(name_of(t), int(f), classes, int(o.reduction), n);
            h.x = h.x.detach().requires_grad_();
            const Tensor loss = linear_cross_entropy(h.x, blocks, h.targets, {o, n}), expected = h.chunked(o, n);
            if (t != DType::bf16 && detail::kernel_level(Backend::cpu) >= 3) CHECK(bits_of(loss) == bits_of(expected));
            CHECK(distance(loss, expected) <= 1e-5);
            const Tensor dx = gradients(loss, {h.x})[0], exact = gradients(expected, {h.x})[0];
            CHECK(distance(dx, exact) <= (t == DType::bf16 ? 4e-3 : 1e-6));
          }
      }
  Tensor x = random<double>({5, 64}, 1).requires_grad_();
  const BlockWeight w = random_blocks({{BlockFormat::nf4, 40}}, 64, 2);
  const Tensor ids = tensor(std::vector<int64_t>{3, 39, 0, 7, 7}, {5});
  const auto squared = [&](const Tensor& given) {
    const EnableGradScope on;
    const Tensor at = given.requires_grad() ? given : given.detach().requires_grad_();
    const Tensor g = grad(linear_cross_entropy(at, w, ids), {at}, {.create_graph = true})[0];
    return sum(g * g);
  };
  CHECK(gradcheck(squared, x) < 1e-6);
  expect(REFUSES(linear_cross_entropy(random({5, 32}, 1), w, ids), shape, "[linear_cross_entropy] x is (5, 32) f32"));
}
}  // namespace tg
