#include <tapegrad/core/check.h>
#include <tapegrad/ops/ops.h>

#include <set>

#include "support/files.h"
#include "support/op_cases.h"
#include "support/refusals.h"

using namespace tg;

TEST_CASE("pointwise") {
  const auto cannot = [](std::string_view op, const char* what) {
    return fmt::format("[{}] cannot compute on {}. Use f64, f32 or bf16", op, what);
  };
  const Tensor half = f32_of({2}).to(DType::f16), ints = i64_of({2}), bytes = zeros({2}, DType::u8);
  expect_at_emit({
      REFUSES(tg::exp(ints), dtype, cannot("exp", "(2) i64")),
      REFUSES(tg::tanh(half), dtype, cannot("tanh", "(2) f16")),
      REFUSES(silu(bytes), dtype, cannot("silu", "(2) u8")),
      REFUSES(half + half, dtype, cannot("add", "(2) f16")),
      REFUSES(bytes * bytes, dtype, cannot("mul", "(2) u8")),
      REFUSES(ints / ints, dtype, cannot("div", "(2) i64")),
      REFUSES(ints / 2.0, dtype, cannot("div", "(2) i64")),
      REFUSES(bytes - 1.0, dtype, cannot("sub", "(2) u8")),
      REFUSES(ints * 0.5, dtype, "[mul] 0.5 is no whole number and the tensor is (2) i64. Use .to(DType::f32) first."),
      REFUSES(f32_of({2}) + random<double>({2}, 1), dtype,
              "[add] dtypes differ: (2) f32 and (2) f64. There is no promotion; use .to(dtype). Numbers such as 1.0 "
              "are f64: "
              "tensor<float>({1.0, 2.0}, {2}) makes f32."),
      REFUSES(
          f32_of({2}) * f32_of({0}), shape,
          "[mul] shapes do not broadcast: (2) f32 and (0) f32. Aligned at the right, each size must be equal or 1."),
      REFUSES(f32_of({2}) + Tensor(), value, "[add] input 1 is an empty tensor: it was made without a value"),
      REFUSES(tg::exp(Tensor()), value, "[exp] input 0 is an empty tensor:"),
      REFUSES(cross_entropy(f32_of({2, 5, 7}), f32_of({2, 7}).to(DType::i64)), shape, "pass transpose(logits, 1, 2)"),
  });
}
TEST_CASE("comparisons, where, masked_fill and clamp") {
  const Tensor x = f32_of({2, 3}), ints = i64_of({3}), yes = zeros({3}, DType::boolean), half = x.to(DType::f16);
  const double nan = std::nan("");
  expect_at_emit({
      REFUSES(tg::pow(ints, ints), dtype, "[pow] cannot compute on (3) i64. Use f64, f32 or bf16"),
      REFUSES(tg::sqrt(ints), dtype, "[sqrt] cannot compute on (3) i64"),
      REFUSES(maximum(ints, 0.5), dtype, "[maximum] 0.5 is no whole number and the tensor is (3) i64."),
      REFUSES(relu(yes), dtype, "[relu] cannot compute on (3) bool"),
      REFUSES(lt(yes, yes), dtype, "[lt] cannot compute on (3) bool"),
      REFUSES(eq(half, half), dtype, "[eq] cannot compute on (2, 3) f16"),
      REFUSES(gt(x, ints), dtype, "[gt] dtypes differ: (2, 3) f32 and (3) i64. There is no promotion"),
      REFUSES(ge(ints, 0.5), value, "[ge] 0.5 is no value of i64."),
      REFUSES(eq(yes, 2.0), value, "[eq] 2 is no value of bool. It must be a whole number from 0 to 1"),
      REFUSES(
          ne(x, f32_of({2})), shape,
          "[ne] shapes do not broadcast: (2, 3) f32 and (2) f32. Aligned at the right, each size must be equal or 1."),
      REFUSES(where(x, x, x), dtype,
              "[where] the condition is (2, 3) f32. It must be bool: compare first, as in ne(x, 0), or use"),
      REFUSES(where(yes, x, ints), dtype, "[where] dtypes differ: (2, 3) f32 and (3) i64"),
      REFUSES(where(yes, x, f32_of({2})), shape,
              "[where] shapes do not broadcast: (3) bool and (2, 3) f32 and (2) f32."),
      REFUSES(where(yes, ints, 0.5), value, "[where] 0.5 is no value of i64."),
      REFUSES(where(yes, Tensor(), 0.5), value, "[where] input 1 is an empty tensor"),
      REFUSES(masked_fill(x, x, 0), dtype, "[masked_fill] the mask is (2, 3) f32. It must be bool"),
      REFUSES(masked_fill(ints, yes, nan), value, "[masked_fill] nan is no value of i64."),
      REFUSES(masked_fill(f32_of({3}), zeros({2, 3}, DType::boolean), 0), shape,
              "[masked_fill] the mask is (2, 3) bool, x is (3) f32. A mask is repeated to x's shape, never x to the"),
      REFUSES(masked_fill(x, zeros({2}, DType::boolean), 0), shape, "[masked_fill] shapes do not broadcast"),
      REFUSES(clamp(x, {}), value, "[clamp] there is no bound. Pass min, max or both: clamp(x, {.min = 0})."),
      REFUSES(clamp(x, {.min = 2, .max = 1}), value, "[clamp] min 2 is above max 1. It must not be."),
      REFUSES(clamp(x, {.max = nan}), value, "[clamp] a bound is nan."),
      REFUSES(clamp(ints, {.min = 0.5}), value, "[clamp] 0.5 is no value of i64."),
      REFUSES(clamp(half, {.min = 0}), dtype, "[clamp] cannot compute on (2, 3) f16"),
  });
}
TEST_CASE("reductions") {
  const Tensor x = f32_of({2, 3});
  expect_at_emit({
      REFUSES(sum(x, {2}), shape, "[sum]", "2", "(2, 3)"),
      REFUSES(sum(x, {0, -2}), value, "[sum] dimension -2 is named twice in (0, -2). Name each once."),
      REFUSES(sum(x.to(DType::f16)), dtype, "[sum] cannot compute on (2, 3) f16"),
      REFUSES(mean(i64_of({2})), dtype, "[mean] cannot compute on (2) i64"),
      REFUSES(mean(x, {-3}), shape, "[mean]", "-3"),
      REFUSES(mean(f32_of({0, 3}), {0}), value,
              "[mean] (0, 3) f32 has no elements to average over. Use sum(), which is 0."),
      REFUSES(softmax(f32_of({})), shape, "[softmax]", "() f32"),
      REFUSES(softmax(x, 2), shape, "[softmax]", "(2, 3)"),
      REFUSES(softmax(i64_of({2, 3})), dtype, "[softmax] cannot compute on (2, 3) i64"),
      REFUSES(softmax(i64_of({2, 3}), 0), dtype, "[softmax] cannot compute on (3, 2) i64"),
  });
}
TEST_CASE("views and copies") {
  const Tensor x = f32_of({2, 3}).label("x");
  expect_at_emit({
      REFUSES(reshape(x, {4, 2}), shape, "[reshape] 'x' (2, 3) f32 has 6 elements and does not fit (4, 2)."),
      REFUSES(reshape(x, {-1, -1}), shape, "[reshape]", "one size may be -1"),
      REFUSES(reshape(x, {-1, 4}), shape, "[reshape]", "(-1, 4)"),
      REFUSES(reshape(x, {-2, -3}), shape, "[reshape]"),
      REFUSES(reshape(f32_of({0}), {-1, 0}), shape, "[reshape]"),
      REFUSES(transpose(f32_of({3})), shape, "[transpose] needs 2 dimension(s) or more, got (3) f32."),
      REFUSES(transpose(x, 0, 2), shape, "[transpose]", "(2, 3)"),
      REFUSES(slice(x, 1, 2, 1), shape, "[slice] [2, 1) of dimension 1 is outside of 'x' (2, 3) f32."),
      REFUSES(slice(x, 1, 4, 9), shape, "[slice] [4, 9) of dimension 1"),
      REFUSES(slice(x, 1, -4, 2), shape, "[slice] [-4, 2)"),
      REFUSES(slice(x, 2, 0, 1), shape, "[slice]"),
      REFUSES(split(x, {1, 1}, -1), shape, "[split] the sizes (1, 1) do not sum to dimension", "which has 3 elements"),
      REFUSES(split(x, {4, -1}, -1), shape, "[split] the sizes (4, -1)"),
      REFUSES(split(x, {}), shape, "[split]"),
      REFUSES(expand(x, {4, 3}), shape, "[expand] 'x' (2, 3) f32 cannot be repeated to (4, 3)."),
      REFUSES(expand(x, {3}), shape, "[expand]"),
      REFUSES(expand(f32_of({1}), {-1}), shape, "[expand]"),
  });
}
TEST_CASE("concat") {
  const Tensor x = f32_of({2, 3}).label("x");
  expect_at_emit({
      REFUSES(concat({}), value, "[concat] got no tensors. Pass at least one."),
      REFUSES(concat({x, f32_of({2, 4})}, 0), shape, "[concat] input 1 is (2, 4) f32, input 0 is 'x' (2, 3) f32."),
      REFUSES(concat({x, f32_of({6})}, 0), shape, "[concat] input 1 is (6) f32"),
      REFUSES(concat({x, i64_of({2, 3})}, 0), dtype, "[concat] dtypes differ"),
      REFUSES(concat({x, Tensor()}, 0), value, "[concat] input 1 is an empty tensor"),
      REFUSES(concat({Tensor(), x}, 0), value, "[concat] input 0 is an empty tensor"),
      REFUSES(concat({f32_of({}), f32_of({})}, 0), shape, "[concat]"),
  });
}
TEST_CASE("every op refuses an empty tensor, in place of each input") {
  // May be absent: weights and biases of norms and conv1d, the base of lora.
  const std::set<std::pair<std::string, size_t>> optional{
      {"layer_norm", 1},     {"layer_norm", 2},   {"rms_norm", 1}, {"add_layer_norm", 2},
      {"add_layer_norm", 3}, {"add_rms_norm", 2}, {"lora", 3},     {"conv1d", 2}};
  for (const OpCase& c : op_cases())
    for (size_t i = 0; i < c.in.size(); ++i) {
      CAPTURE_ALL(c.name(), i);
      std::vector<Tensor> x = make_inputs(c, DType::f32);
      x[i] = Tensor();
      const std::string e = error_of([&] { c.fn(x); });
      if (!optional.contains({c.op, i}) && c.name() != "add_rms_norm.itself") CHECK_HAS(e, "empty tensor");
    }
  const Tensor none, x = f32_of({2, 3});
  Rng rng{1};
  expect_at_emit({
      REFUSES(none + 1.0, value, "empty tensor"),
      REFUSES(maximum(none, 0.0), value, "empty tensor"),
      REFUSES(tg::pow(none, 2.0), value, "empty tensor"),
      REFUSES(x < none, value, "empty tensor"),
      REFUSES(lt(none, 0.0), value, "empty tensor"),
      REFUSES(isfinite(none), value, "empty tensor"),
      REFUSES(linear(x, x, none), value, "empty tensor"),
      REFUSES(global_norm({none}), value, "empty tensor"),
      REFUSES(dropout(none, 0.5, rng), value, "empty tensor"),
      REFUSES(slice_update(x, 1, i64_of({}), none), value, "empty tensor"),
  });
}
