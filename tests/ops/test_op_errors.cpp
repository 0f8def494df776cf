// What ops refuse, with kind and text of the message, eagerly and lazily: pointwise functions, reductions, views, and
// empty tensors. Layers and losses are in test_layer_errors.cpp.
#include <tapegrad/core/check.h>
#include <tapegrad/ops/ops.h>

#include "support/refusals.h"

using namespace tg;

TEST_CASE("pointwise") {
  const auto cannot = [](std::string_view op, const char* what) {
    return std::vector<std::string>{fmt::format("[{}] cannot compute on {}. Use f64, f32 or bf16", op, what)};
  };
  const Tensor half = f32_of({2}).to(DType::f16), ints = i64_of({2}), bytes = zeros({2}, DType::u8);
  expect_at_emit({
      {[&] { tg::exp(ints); }, Why::dtype, cannot("exp", "(2) i64")},
      {[&] { tg::tanh(half); }, Why::dtype, cannot("tanh", "(2) f16")},
      {[&] { silu(bytes); }, Why::dtype, cannot("silu", "(2) u8")},
      {[&] { half + half; }, Why::dtype, cannot("add", "(2) f16")},
      {[&] { bytes* bytes; }, Why::dtype, cannot("mul", "(2) u8")},
      {[&] { ints / ints; }, Why::dtype, cannot("div", "(2) i64")},
      {[&] { ints / 2.0; }, Why::dtype, cannot("div", "(2) i64")},
      {[&] { bytes - 1.0; }, Why::dtype, cannot("sub", "(2) u8")},
      {[&] { ints * 0.5; },
       Why::dtype,
       {"[mul] 0.5 is no whole number and the tensor is (2) i64. Use .to(DType::f32) first."}},
      {[&] { f32_of({2}) + random<double>({2}, 1); },
       Why::dtype,
       {"[add] dtypes differ: (2) f32 and (2) f64. There is no promotion; use .to(dtype). Numbers such as 1.0 are f64: "
        "tensor<float>({1.0, 2.0}, {2}) makes f32."}},
      {[&] { f32_of({2}) * f32_of({0}); },
       Why::shape,
       {"[mul] shapes do not broadcast: (2) f32 and (0) f32. Aligned at the right, each size must be equal or 1."}},
      {[&] { f32_of({2}) + Tensor(); },
       Why::value,
       {"[add] input 1 is an empty tensor. Pass a tensor that has a value."}},
      {[&] { tg::exp(Tensor()); }, Why::value, {"[exp] input 0 is an empty tensor."}},
  });
}
TEST_CASE("comparisons, where, masked_fill and clamp") {
  const Tensor x = f32_of({2, 3}), ints = i64_of({3}), yes = zeros({3}, DType::boolean), half = x.to(DType::f16);
  const double nan = std::nan("");
  expect_at_emit({
      {[&] { tg::pow(ints, ints); }, Why::dtype, {"[pow] cannot compute on (3) i64. Use f64, f32 or bf16"}},
      {[&] { tg::sqrt(ints); }, Why::dtype, {"[sqrt] cannot compute on (3) i64"}},
      {[&] { maximum(ints, 0.5); }, Why::dtype, {"[maximum] 0.5 is no whole number and the tensor is (3) i64."}},
      {[&] { relu(yes); }, Why::dtype, {"[relu] cannot compute on (3) bool"}},
      {[&] { lt(yes, yes); }, Why::dtype, {"[lt] cannot compute on (3) bool"}},
      {[&] { eq(half, half); }, Why::dtype, {"[eq] cannot compute on (2, 3) f16"}},
      {[&] { gt(x, ints); }, Why::dtype, {"[gt] dtypes differ: (2, 3) f32 and (3) i64. There is no promotion"}},
      {[&] { ge(ints, 0.5); }, Why::value, {"[ge] 0.5 is no value of i64."}},
      {[&] { eq(yes, 2.0); }, Why::value, {"[eq] 2 is no value of bool. It must be a whole number from 0 to 1"}},
      {[&] { ne(x, f32_of({2})); },
       Why::shape,
       {"[ne] shapes do not broadcast: (2, 3) f32 and (2) f32. Aligned at the right, each size must be equal or 1."}},
      {[&] { where(x, x, x); },
       Why::dtype,
       {"[where] the condition is (2, 3) f32. It must be bool: compare first, as in ne(x, 0), or use"}},
      {[&] { where(yes, x, ints); }, Why::dtype, {"[where] dtypes differ: (2, 3) f32 and (3) i64"}},
      {[&] { where(yes, x, f32_of({2})); },
       Why::shape,
       {"[where] shapes do not broadcast: (3) bool and (2, 3) f32 and (2) f32."}},
      {[&] { where(yes, ints, 0.5); }, Why::value, {"[where] 0.5 is no value of i64."}},
      {[&] { where(yes, Tensor(), 0.5); }, Why::value, {"[where] input 1 is an empty tensor"}},
      {[&] { masked_fill(x, x, 0); }, Why::dtype, {"[masked_fill] the mask is (2, 3) f32. It must be bool"}},
      {[&] { masked_fill(ints, yes, nan); }, Why::value, {"[masked_fill] nan is no value of i64."}},
      {[&] {
         masked_fill(f32_of({3}), zeros({2, 3}, DType::boolean), 0);
       },
       Why::shape,
       {"[masked_fill] the mask is (2, 3) bool, x is (3) f32. A mask is repeated to x's shape, never x to the"}},
      {[&] { masked_fill(x, zeros({2}, DType::boolean), 0); }, Why::shape, {"[masked_fill] shapes do not broadcast"}},
      {[&] { clamp(x, {}); }, Why::value, {"[clamp] there is no bound. Pass min, max or both: clamp(x, {.min = 0})."}},
      {[&] { clamp(x, {.min = 2, .max = 1}); }, Why::value, {"[clamp] min 2 is above max 1. It must not be."}},
      {[&] { clamp(x, {.max = nan}); }, Why::value, {"[clamp] a bound is nan."}},
      {[&] { clamp(ints, {.min = 0.5}); }, Why::value, {"[clamp] 0.5 is no value of i64."}},
      {[&] { clamp(half, {.min = 0}); }, Why::dtype, {"[clamp] cannot compute on (2, 3) f16"}},
  });
}
TEST_CASE("reductions") {
  const Tensor x = f32_of({2, 3});
  expect_at_emit({
      {[&] { sum(x, {2}); }, Why::shape, {"[sum]", "2", "(2, 3)"}},
      {[&] {
         sum(x, {0, -2});
       },
       Why::value,
       {"[sum] dimension -2 is named twice in (0, -2). Name each once."}},
      {[&] { sum(x.to(DType::f16)); }, Why::dtype, {"[sum] cannot compute on (2, 3) f16"}},
      {[&] { mean(i64_of({2})); }, Why::dtype, {"[mean] cannot compute on (2) i64"}},
      {[&] { mean(x, {-3}); }, Why::shape, {"[mean]", "-3"}},
      {[&] {
         mean(f32_of({0, 3}), {0});
       },
       Why::value,
       {"[mean] (0, 3) f32 has no elements to average over. Use sum(), which is 0."}},
      {[&] { softmax(f32_of({})); }, Why::shape, {"[softmax]", "() f32"}},
      {[&] { softmax(x, 2); }, Why::shape, {"[softmax]", "(2, 3)"}},
      {[&] {
         softmax(i64_of({2, 3}));
       },
       Why::dtype,
       {"[softmax] cannot compute on (2, 3) i64"}},
      {[&] {
         softmax(i64_of({2, 3}), 0);
       },
       Why::dtype,
       {"[softmax] cannot compute on (3, 2) i64"}},
  });
}
TEST_CASE("views and copies") {
  const Tensor x = f32_of({2, 3}).label("x");
  expect_at_emit({
      {[&] {
         reshape(x, {4, 2});
       },
       Why::shape,
       {"[reshape] 'x' (2, 3) f32 has 6 elements and does not fit (4, 2)."}},
      {[&] {
         reshape(x, {-1, -1});
       },
       Why::shape,
       {"[reshape]", "one size may be -1"}},
      {[&] {
         reshape(x, {-1, 4});
       },
       Why::shape,
       {"[reshape]", "(-1, 4)"}},
      {[&] {
         reshape(x, {-2, -3});
       },
       Why::shape,
       {"[reshape]"}},
      {[&] {
         reshape(f32_of({0}), {-1, 0});
       },
       Why::shape,
       {"[reshape]"}},
      {[&] { transpose(f32_of({3})); }, Why::shape, {"[transpose] needs 2 dimension(s) or more, got (3) f32."}},
      {[&] { transpose(x, 0, 2); }, Why::shape, {"[transpose]", "(2, 3)"}},
      {[&] { slice(x, 1, 2, 1); }, Why::shape, {"[slice] [2, 1) of dimension 1 is outside of 'x' (2, 3) f32."}},
      {[&] { slice(x, 1, 4, 9); }, Why::shape, {"[slice] [4, 9) of dimension 1"}},
      {[&] { slice(x, 1, -4, 2); }, Why::shape, {"[slice] [-4, 2)"}},
      {[&] { slice(x, 2, 0, 1); }, Why::shape, {"[slice]"}},
      {[&] {
         split(x, {1, 1});
       },
       Why::shape,
       {"[split] the sizes (1, 1) do not sum to dimension", "which has 3 elements"}},
      {[&] {
         split(x, {4, -1});
       },
       Why::shape,
       {"[split] parts (4, -1)"}},
      {[&] { split(x, {}); }, Why::shape, {"[split]"}},
      {[&] {
         expand(x, {4, 3});
       },
       Why::shape,
       {"[expand] 'x' (2, 3) f32 cannot be repeated to (4, 3)."}},
      {[&] { expand(x, {3}); }, Why::shape, {"[expand]"}},
      {[&] { expand(f32_of({1}), {-1}); }, Why::shape, {"[expand]"}},
  });
}
TEST_CASE("concat") {
  const Tensor x = f32_of({2, 3}).label("x");
  expect_at_emit({
      {[&] { concat({}); }, Why::value, {"[concat] got no tensors. Pass at least one."}},
      {[&] {
         concat({x, f32_of({2, 4})}, 0);
       },
       Why::shape,
       {"[concat] input 1 is (2, 4) f32, input 0 is 'x' (2, 3) f32."}},
      {[&] {
         concat({x, f32_of({6})}, 0);
       },
       Why::shape,
       {"[concat] input 1 is (6) f32"}},
      {[&] {
         concat({x, i64_of({2, 3})}, 0);
       },
       Why::dtype,
       {"[concat] dtypes differ"}},
      {[&] {
         concat({x, Tensor()}, 0);
       },
       Why::value,
       {"[concat] input 1 is an empty tensor"}},
      {[&] {
         concat({Tensor(), x}, 0);
       },
       Why::value,
       {"[concat] input 0 is an empty tensor"}},
      {[&] {
         concat({f32_of({}), f32_of({})}, 0);
       },
       Why::shape,
       {"[concat]"}},
  });
}
TEST_CASE("an empty tensor is refused by every op") {
  const Tensor none, x = f32_of({2, 3});
  Rng rng{1};
  const std::vector<std::function<void()>> uses{[&] { sum(none); },
                                                [&] { sum(none, {0}); },
                                                [&] { mean(none); },
                                                [&] { softmax(none); },
                                                [&] { reshape(none, {1}); },
                                                [&] { transpose(none); },
                                                [&] { slice(none, 0, 0, 1); },
                                                [&] { split(none, {1}); },
                                                [&] { expand(none, {1}); },
                                                [&] { layer_norm(none); },
                                                [&] { rms_norm(none); },
                                                [&] { add_layer_norm(x, none); },
                                                [&] { add_rms_norm(none, x); },
                                                [&] { embedding(none, x); },
                                                [&] { embedding(i64_of({2}), none); },
                                                [&] { attention(none, none, none); },
                                                [&] { cross_entropy(x, none); },
                                                [&] { dropout(none, 0.5, rng); },
                                                [&] { argmax(none); },
                                                [&] { topk(none, 1); },
                                                [&] { global_norm({none}); },
                                                [&] { linear(x, none); },
                                                [&] { linear(x, x, none); },
                                                [&] { none + 1.0; },
                                                [&] { -none; },
                                                [&] { maximum(none, 0.0); },
                                                [&] { tg::pow(none, 2.0); },
                                                [&] { eq(none, x); },
                                                [&] { lt(none, 0.0); },
                                                [&] { where(none, x, x); },
                                                [&] { where(none, x, 0.0); },
                                                [&] { where(x, 0.0, none); },
                                                [&] { masked_fill(x, none, 0); },
                                                [&] { tril(none); },
                                                [&] { pad(none, {}); },
                                                [&] { index_add(none, 0, none, none); },
                                                [&] { isfinite(none); },
                                                [&] { multinomial(none, 1, true, rng); },
                                                [&] { bce_with_logits(x, none); },
                                                [&] { (void)(x < none); },
                                                [&] { clamp(none, {.min = 0}); }};
  for (size_t i = 0; i < uses.size(); ++i) {
    CAPTURE(i);
    CHECK(has(error_of(uses[i]), "empty tensor"));
  }
}
