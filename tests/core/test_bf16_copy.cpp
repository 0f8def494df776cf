// cast_parameter(): when the bf16 copy of a leaf is made and when it is stale. Its gradient is that of to().
#include <tapegrad/autograd/recompute.h>
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/ops/matmul.h>

#include <thread>

#include "support/bf16_copy.h"

using namespace tg;

namespace {
constexpr DType kNarrow = DType::bf16;
template <class F> int64_t casts_for(F f) {
  const WorkScope work;
  f();
  return casts_of(work);
}
}  // namespace

TEST_CASE("cast_parameter: one conversion for as long as a leaf keeps its value") {
  for (const bool lazy : {false, true}) {
    CAPTURE(lazy);
    const Mode mode(lazy);
    const Tensor w = random({5, 3}, 1).requires_grad_(), other = random({5, 3}, 2);
    const auto read = [&] { eval({detail::cast_parameter(w, kNarrow)}); };
    CHECK(casts_for(read) == 1);
    CHECK(casts_for(read) == 0);
    CHECK(is_copy_of(w));
    w.assign(other);
    CHECK(casts_for(read) == 1);
    CHECK(casts_for(read) == 0);
    CHECK(is_copy_of(w));
    other.detach().mutable_data<float>()[0] = 7;  // the same elements
    CHECK(casts_for(read) == 1);
    CHECK(is_copy_of(w));
    const Tensor view = detail::cast_parameter(w, kNarrow);
    view.detach().mutable_data<bf16>()[2] = bf16(99.0f);
    CHECK(casts_for(read) == 1);
    CHECK(is_copy_of(w));
    under<NoGradScope>([&] { CHECK(casts_for(read) == 0); });
    CHECK(casts_for([&] { eval({w.to(kNarrow)}); }) == 1);  // elements of to() are new
  }
}
TEST_CASE("cast_parameter: what has no copy is converted by to()") {
  const Tensor frozen = random({4}, 1), w = random({4}, 2).requires_grad_(), y = w * 2;
  const Tensor wide = random<double>({4}, 3).requires_grad_();
  for (const Tensor& t : {frozen, y, wide})
    for (int i = 0; i < 2; ++i) CHECK(casts_for([&] { detail::cast_parameter(t, kNarrow); }) == 1);
  CHECK(casts_for([&] { detail::cast_parameter(w, DType::f64); }) == 1);
  CHECK(detail::cast_parameter(w, DType::f32).id() == w.id());
  CHECK_THROWS_WITH_AS(detail::cast_parameter(Tensor(), kNarrow), doctest::Contains("an empty tensor was read"), Error);
}
TEST_CASE("cast_parameter: gradients are those of to(), the second ones too") {
  const Tensor x = random({2, 4}, 1).to(kNarrow);
  const auto gradients = [&](bool kept) {
    const Tensor w = random({3, 4}, 2).requires_grad_();
    const auto in_bf16 = [&] { return kept ? detail::cast_parameter(w, kNarrow) : w.to(kNarrow); };
    const Tensor y = matmul(x, in_bf16(), {.trans_b = true}), z = in_bf16() * in_bf16() * in_bf16();
    const GradMap g = backward(sum(y.to(DType::f32)) + sum(z.to(DType::f32)), {.create_graph = true});
    const GradMap second = backward(sum(g[w] * g[w]));
    return std::vector{bits_of(g[w]), bits_of(second[w])};
  };
  CHECK(gradients(true) == gradients(false));
}
TEST_CASE("cast_parameter: recomputed parts of a graph read the copy that is there") {
  const auto gradients = [&](bool kept, bool cheap) {
    const Tensor w = random({3, 4}, 2).requires_grad_(), x = random({2, 4}, 1).to(kNarrow).requires_grad_();
    const RecomputeFn f = [&](Inputs in, Rng*) {
      return Tensors{exp(matmul(in[0], kept ? detail::cast_parameter(w, kNarrow) : w.to(kNarrow), {.trans_b = true}))};
    };
    std::optional<RecomputeScope> scope;
    if (cheap) scope.emplace();
    const Tensor y = cheap ? f({&x, 1}, nullptr)[0] : recompute(f, {&x, 1})[0];
    scope.reset();
    const GradMap g = backward(sum(y.to(DType::f32)));
    return std::vector{bits_of(g[w]), bits_of(g[x])};
  };
  for (const bool cheap : {false, true}) CHECK(gradients(true, cheap) == gradients(false, cheap));
}
TEST_CASE("cast_parameter: steps write copies along with the parameters, eager, lazy and compiled") {
  check_kept_copies(Device());
}
TEST_CASE("cast_parameter: a step of one tensor whose gradient is a product leaves a copy that is made anew") {
  const Tensor w = random({3, 4}, 1).requires_grad_(), m = zeros_like(w), v = zeros_like(w);
  CHECK(is_copy_of(w));
  detail::adamw_product_step(w, m, v, {random({2, 3}, 2), random({2, 4}, 3)}, {}, 0.1, 1);
  CHECK(is_copy_of(w));
}
TEST_CASE("cast_parameter: a step that runs out of inputs leaves the parameter and its copy") {
  const Tensor w = random({4}, 1).requires_grad_(), m = zeros_like(w), v = zeros_like(w);
  CHECK(is_copy_of(w));
  const auto before = bits_of(w);
  CHECK_THROWS_AS(adamw_step(w, m, v, random({5}, 2), {}, 0.1, 1), Error);
  CHECK(bits_of(w) == before);
  CHECK(is_copy_of(w));
}
TEST_CASE("cast_parameter: a compiled function may exchange parameters, and reads what was assigned since") {
  const Tensor a = random({3}, 1).requires_grad_(), b = random({3}, 2).requires_grad_();
  const auto step = [&](Inputs) {
    const NoGradScope off;
    const Tensor y = detail::cast_parameter(a, kNarrow) - detail::cast_parameter(b, kNarrow), former = a.detach();
    a.assign(b.detach()), b.assign(former);
    return std::vector<Tensor>{y};
  };
  const Compiled fast = compile(step);
  for (int i = 0; i < 5; ++i) {
    if (i == 3) a.assign(random({3}, 9));
    const NoGradScope off;
    const auto expected = bits_of(a.to(kNarrow) - b.to(kNarrow));
    CHECK(bits_of(fast({})[0]) == expected);
    CHECK(is_copy_of(a));
    CHECK(is_copy_of(b));
  }
  CHECK(fast.stats().traces == 1);
}
TEST_CASE("cast_parameter: a dry run leaves no copy behind in a parameter from outside") {
  const Tensor w = random({4}, 1).requires_grad_();
  dry_run([&] {
    detail::cast_parameter(w, kNarrow);
    const Tensor own = zeros({4}).requires_grad_();
    CHECK(casts_for([&] { detail::cast_parameter(own, kNarrow), detail::cast_parameter(own, kNarrow); }) == 1);
  });
  CHECK(is_copy_of(w));
}
TEST_CASE("cast_parameter: threads that share a model may all be the first to read it") {
  for (int round = 0; round < 20; ++round) {
    const Tensor w = random({129}, 1).requires_grad_();
    const auto expected = bits_of(w.to(kNarrow));
    std::vector<std::vector<std::byte>> seen(4);
    {
      std::vector<std::jthread> all;
      for (auto& to : seen)
        all.emplace_back([&] {
          const NoGradScope off;
          to = bits_of(detail::cast_parameter(w, kNarrow));
        });
    }
    for (const auto& bits : seen) CHECK(bits == expected);
  }
}
