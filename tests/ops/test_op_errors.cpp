// Refusals of ops, layers, losses and optimizers: kind and text of the message, eagerly and lazily.
#include <tapegrad/ops/ops.h>

#include <set>
#include <thread>

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
              "are f64: tensor<float>({1.0, 2.0}, {2}) makes f32."),
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
  // May be absent: weights and biases of norms, conv1d and block_linear, the base of lora.
  const std::set<std::pair<std::string, size_t>> optional{
      {"layer_norm", 1},   {"layer_norm", 2}, {"rms_norm", 1}, {"add_layer_norm", 2}, {"add_layer_norm", 3},
      {"add_rms_norm", 2}, {"lora", 3},       {"conv1d", 2},   {"block_linear", 3}};
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
  for (const std::function<void()>& use : std::vector<std::function<void()>>{
           [&] { (void)(none + 1.0); }, [&] { maximum(none, 0.0); }, [&] { tg::pow(none, 2.0); },
           [&] { (void)(x < none); }, [&] { lt(none, 0.0); }, [&] { isfinite(none); }, [&] { linear(x, x, none); },
           [&] { global_norm({none}); }, [&] { dropout(none, 0.5, rng); },
           [&] { slice_update(x, 1, i64_of({}), none); }})
    expect_at_emit({{use, Why::value, {"empty tensor"}}});
}
TEST_CASE("matmul and linear") {
  const Tensor w = f32_of({3, 5}).label("w");
  expect_at_emit({
      REFUSES(matmul(f32_of({2, 4}), w), shape,
              "[matmul] inner sizes differ: lhs is (2, 4) f32, rhs is 'w' (3, 5) f32.", "last size (4) must equal",
              "last (3)"),
      REFUSES(matmul(f32_of({2, 3}), w, {.trans_b = true}), shape, "[matmul] inner sizes differ",
              "(3, 5) f32 transposed"),
      REFUSES(matmul(f32_of({3}), w), shape, "[matmul] needs 2 dimension(s) or more, got (3) f32."),
      REFUSES(matmul(w, f32_of({5})), shape, "[matmul] needs 2 dimension(s) or more, got (5) f32."),
      REFUSES(matmul(f32_of({2, 2, 3}), f32_of({3, 3, 5})), shape, "[matmul] batch sizes do not broadcast"),
      REFUSES(matmul(random<double>({2, 3}, 1), w), dtype, "[matmul] dtypes differ: (2, 3) f64 and 'w'"),
      REFUSES(matmul(i64_of({2, 3}), i64_of({3, 2})), dtype, "[matmul] cannot compute on (2, 3) i64"),
      REFUSES(linear(f32_of({2, 4}), w), shape,
              "[linear] inner sizes differ: x is (2, 4) f32, weight is 'w' (3, 5) f32."),
      REFUSES(linear(f32_of({2, 5}), f32_of({5})), shape,
              "[linear] weight (5) f32 is no matrix. It must be (out, in)."),
      REFUSES(linear(f32_of({}), w), shape, "[linear] needs 1 dimension(s) or more, got () f32."),
      REFUSES(linear(f32_of({2, 5}), w, f32_of({5})), shape, "[linear] bias is (5) f32, weight is 'w' (3, 5) f32.",
              "(3)"),
      REFUSES(linear(f32_of({2, 5}), w, random<double>({3}, 1)), dtype, "[linear] dtypes differ"),
  });
}
TEST_CASE("a precision ends with its scope and is the thread's own; products of f64 and bf16 do not know it") {
  const auto highest = MatmulPrecision::highest, medium = MatmulPrecision::medium;
  CHECK(matmul_precision() == highest);
  const Tensor x = random({40, 70}, 1), w = random({70, 50}, 2);
  const auto product = [&](DType t) { return bits_of(matmul(x.to(t), w.to(t))); };
  const auto f64 = product(DType::f64), bf16 = product(DType::bf16), f32 = product(DType::f32);
  for (const auto p : {highest, MatmulPrecision::high, medium}) {
    const MatmulPrecisionScope scope(p);
    CHECK(matmul_precision() == p);
    CHECK(product(DType::f64) == f64);
    CHECK(product(DType::bf16) == bf16);
    {
      const MatmulPrecisionScope inner(highest);
      CHECK(product(DType::f32) == f32);
    }
    CHECK(bits_of(matmul(x, w, {.precision = highest})) == f32);  // one product
    std::thread([&] { CHECK(matmul_precision() == highest); }).join();
  }
  CHECK(matmul_precision() == highest);
  CHECK(name_of(highest) == "highest");
  CHECK(name_of(MatmulPrecision::high) == "high");
  CHECK(name_of(medium) == "medium");
}
TEST_CASE("the precision tells two products apart") {
  const auto key = [](const Op& op) {
    StructuralHash k;
    op.key(k);
    return k;
  };
  const auto highest = MatmulPrecision::highest, high = MatmulPrecision::high;
  CHECK(!(key(op::Matmul({.precision = highest})) == key(op::Matmul({.precision = high}))));
  CHECK(!(key(op::Linear(highest)) == key(op::Linear(high))));
  CHECK(key(op::Linear(high)) == key(op::Linear(high)));
}
TEST_CASE("rope and swiglu") {
  const Tensor x = f32_of({2, 4}).label("x");
  expect_at_emit({
      REFUSES(rope(f32_of({2, 5})), shape, "[rope] (2, 5) f32 has rows of 5 elements.", "must be even"),
      REFUSES(rope(f32_of({4})), shape, "[rope] needs 2 dimension(s) or more, got (4) f32."),
      REFUSES(rope(i64_of({2, 4})), dtype, "[rope] cannot compute on (2, 4) i64"),
      REFUSES(rope(x, {.theta = 0.5}), value, "[rope] theta is 0.5. It must be finite and 1 or more."),
      REFUSES(rope(x, {.theta = INFINITY}), value, "[rope] theta is inf."),
      REFUSES(rope(x, {.scaling = {.factor = 2}}), value, "[rope] factor is 2, and there is no scaling."),
      REFUSES(rope(x, {.scaling = {.kind = RopeScalingKind::linear, .factor = 0}}), value,
              "[rope] factor is 0. It must be finite and more than 0."),
      REFUSES(rope(x, {.scaling = {.kind = RopeScalingKind::linear, .factor = 2, .original_context = 8}}), value,
              "original_context is 8. Only scaling llama3 uses them."),
      REFUSES(rope(x, {.scaling = {.kind = RopeScalingKind::llama3, .factor = 2}}), value,
              "original_context is 0. For scaling llama3 the second must be more than the first, and the context 1 or "
              "more."),
      REFUSES(rope(x, {.scaling = {RopeScalingKind::llama3, 2, 4, 4, 8}}), value, "low_freq is 4, high_freq is 4"),
      REFUSES(rope(x, {.scaling = {.original_context = -1}}), value, "original_context is -1."),
      REFUSES(rope(x, {.start = -1}), value,
              "[rope] 2 rows from position -1 on, of 'x' (2, 4) f32. Positions must be in [0, 536870912)."),
      REFUSES(rope(x, {.start = (int64_t(1) << 29) - 1}), value, "[rope] 2 rows from position 536870911 on"),
      REFUSES(rope(x, {.start = INT64_MAX}), value, "[rope] 2 rows from position 9223372036854775807 on"),
      REFUSES(swiglu(f32_of({2, 5})), shape, "[swiglu] (2, 5) f32 has rows of 5 elements.", "must be even"),
      REFUSES(swiglu(f32_of({})), shape, "[swiglu] needs 1 dimension(s) or more, got () f32."),
      REFUSES(swiglu(i64_of({2, 4})), dtype, "[swiglu] cannot compute on (2, 4) i64"),
  });
}
TEST_CASE("norms and embedding") {
  const Tensor x = f32_of({2, 3}), w = f32_of({3}), table = f32_of({5, 4});
  expect_at_emit({
      REFUSES(layer_norm(x, f32_of({2})), shape, "[layer_norm] weight is (2) f32, x is (2, 3) f32.", "shape (3)"),
      REFUSES(layer_norm(x, w, f32_of({1})), shape, "[layer_norm] bias is (1) f32"),
      REFUSES(layer_norm(x, {}, w), value, "[layer_norm] there is a bias", "but no weight"),
      REFUSES(layer_norm(x, w, {}, -1), value, "[layer_norm] eps is -1."),
      REFUSES(layer_norm(f32_of({})), shape, "[layer_norm] needs 1 dimension(s)"),
      REFUSES(layer_norm(i64_of({2})), dtype, "[layer_norm] cannot compute on (2) i64"),
      REFUSES(rms_norm(x, random<double>({3}, 1)), dtype, "[rms_norm] dtypes differ"),
      REFUSES(rms_norm(x, f32_of({1, 3})), shape, "[rms_norm] weight is (1, 3) f32"),
      REFUSES(rms_norm(x.to(DType::f16)), dtype, "[rms_norm] cannot compute on (2, 3) f16"),
      REFUSES(add_layer_norm(x, w), shape, "[add_layer_norm] x is (2, 3) f32, r is (3) f32.",
              "one shape with expand() or reshape()"),
      REFUSES(add_rms_norm(x, x.to(DType::f64)), dtype,
              "[add_rms_norm] x is (2, 3) f32, and r is (2, 3) f64. It must have x's dtype, or be bf16 where x is f32",
              "use .to(dtype)"),
      REFUSES(rms_norm(x.to(DType::bf16), {}, 1e-5, DType::f32), dtype,
              "[rms_norm] x is (2, 3) bf16, and the dtype of the result is f32."),
      REFUSES(layer_norm(x, x.to(DType::bf16)), dtype, "[layer_norm] dtypes differ"),
      REFUSES(add_layer_norm(x, x, f32_of({2})), shape, "[add_layer_norm] weight is (2) f32, x is (2, 3) f32."),
      REFUSES(add_layer_norm(x, x, w, f32_of({1})), shape, "[add_layer_norm] bias is (1) f32"),
      REFUSES(add_layer_norm(x, x, {}, w), value, "[add_layer_norm] there is a bias", "but no weight"),
      REFUSES(add_rms_norm(x, x, w, -1), value, "[add_rms_norm] eps is -1."),
      REFUSES(add_rms_norm(f32_of({}), f32_of({})), shape, "[add_rms_norm] needs 1 dimension(s)"),
      REFUSES(embedding(f32_of({2}), table), dtype, "[embedding] indices must be i32 or i64, got (2) f32."),
      REFUSES(embedding(i64_of({2}), w), shape, "[embedding] table (3) f32 is no matrix. It must be (V, C)"),
      REFUSES(embedding(i64_of({2}), i64_of({2, 2})), dtype, "[embedding] cannot compute on (2, 2) i64"),
  });
}
TEST_CASE("attention") {
  const Tensor q = f32_of({1, 4, 3, 8}), kv = f32_of({1, 2, 3, 8});
  expect_at_emit({
      REFUSES(attention(f32_of({4, 3, 8}), kv, kv), shape, "[attention]", "(4, 3, 8) f32"),
      REFUSES(attention(q, f32_of({1, 3, 3, 8}), f32_of({1, 3, 3, 8})), shape, "[attention]", "(1, 3, 3, 8) f32"),
      REFUSES(attention(q, kv, f32_of({1, 2, 4, 8})), shape, "[attention]", "(1, 2, 4, 8) f32"),
      REFUSES(attention(q, f32_of({1, 2, 3, 4}), kv), shape, "[attention]"),
      REFUSES(attention(f32_of({1, 2, 4, 8}), kv, kv, {.causal = true}), shape, "[attention]", "(1, 2, 4, 8) f32"),
      REFUSES(attention(q, f32_of({1, 2, 0, 8}), f32_of({1, 2, 0, 8}), {.causal = false}), shape, "[attention]"),
      REFUSES(attention(q, kv.to(DType::bf16), kv), dtype, "[attention] dtypes differ"),
      REFUSES(attention(q, kv, kv, {.scale = std::nan("")}), value, "[attention]", "nan"),
  });
}
TEST_CASE("dropout and selection") {
  const Tensor x = f32_of({2, 3});
  Rng rng{1};
  expect_at_emit({
      REFUSES(dropout(x, 1, rng), value, "[dropout]", "1"),
      REFUSES(dropout(x, -0.1, rng), value, "[dropout]", "-0.1"),
      REFUSES(dropout(i64_of({2}), 0.5, rng), dtype, "[dropout] cannot compute on (2) i64"),
      REFUSES(argmax(x, 2), shape, "[argmax]", "(2, 3)"),
      REFUSES(argmax(f32_of({2, 0}), -1), shape, "[argmax]", "(2, 0) f32"),
      REFUSES(topk(x, 4), value, "[topk]", "4", "(2, 3) f32"),
      REFUSES(topk(x, 0), value, "[topk]", "0"),
      REFUSES(topk(f32_of({}), 1), shape, "[topk]"),
  });
  CHECK(rng == Rng{1});
}
TEST_CASE("losses and optimisers") {
  const Tensor logits = f32_of({2, 3}), targets = i64_of({2}), w = f32_of({2}).label("w"), m = zeros({2}),
               v = zeros({2}), g = f32_of({2});
  expect_at_emit({
      REFUSES(cross_entropy(logits, i64_of({3})), shape, "[cross_entropy] logits are (2, 3) f32, targets (3) i64.",
              "shape (2)"),
      REFUSES(cross_entropy(logits, logits), dtype, "[cross_entropy] indices must be i32 or i64, got (2, 3) f32."),
      REFUSES(cross_entropy(i64_of({2, 3}), targets), dtype, "[cross_entropy] cannot compute on (2, 3) i64"),
      REFUSES(cross_entropy(logits, targets, {Reduction::mean, {}, 1}), value, "[cross_entropy] label_smoothing is 1."),
      REFUSES(global_norm({}), value, "[global_norm] there are no tensors. Pass at least one."),
      REFUSES(global_norm({logits, targets}), dtype, "[global_norm] cannot compute on (2) i64"),
      REFUSES(adamw_step(w, m, v, f32_of({3}), {}, 0.1, 1), shape,
              "[adamw_step] gradient 0 is (3) f32, the weight is 'w' (2) f32."),
      REFUSES(adamw_step(w, m, v, random<double>({2}, 1), {}, 0.1, 1), dtype,
              "[adamw_step] gradient 0 is (2) f64, the weight is 'w' (2) f32."),
      REFUSES(adamw_step(w, m, v, g, {}, 0.1, 0), value, "[adamw_step]", "0"),
      REFUSES(adamw_step(w, m, m, g, {}, 0.1, 1), value,
              "[adamw_step] first moment 0 and second moment 0 are the same tensor, (2) f32. Each needs its own."),
      REFUSES(adamw_step(w, m, v, g, {.beta1 = 1}, 0.1, 1), value, "[adamw_step]", "1"),
      REFUSES(adamw_step(w, m, v, g, {}, 0.1, 1, global_norm({g})), value, "[adamw_step] max_norm is 0"),
      REFUSES(adamw_step(w, m, v, g, {}, 0.1, 1, {}, 1), value, "[adamw_step] max_norm is 1"),
      REFUSES(adamw_step(w, m, v, Tensor(), {}, 0.1, 1), value, "[adamw_step] gradient 0 is an empty tensor:"),
      REFUSES(adamw_step(w.to(DType::bf16), m, v, g, {}, 0.1, 1), dtype, "[adamw_step] weight 0 is (2) bf16"),
  });
  const std::vector<Tensor> many_w{w, zeros({3}), zeros({2})}, many_m{m, zeros({3}), zeros({2})};
  const std::vector<Tensor> many_v{v, zeros({3}), zeros({2})}, grads{g, f32_of({3}), f32_of({2})};
  const AdamWTensors good{.w = many_w, .m = many_m, .v = many_v, .grad = grads};
  const auto with = [&](auto change) {
    AdamWTensors x = good;
    change(x);
    adamw_step(x, {}, 0.1, 1);
  };
  const std::vector<Tensor> shifted{g, g, g}, wide{g, f32_of({3}), random<double>({2}, 1)}, twice{w, zeros({3}), w};
  const std::vector<Tensor> mixed{m, zeros({3}), w}, hole{m, Tensor(), m};
  const std::vector<AdamWOverrides> two(2), negative{{}, {}, {.weight_decay = -1}}, backwards{{}, {.lr_scale = -1}, {}};
  expect_at_emit({
      REFUSES(with([](auto& x) { x = {}; }), value, "[adamw_step] there are no tensors. Pass at least one."),
      REFUSES(with([](auto& x) { x.m = x.m.first(2); }), value,
              "[adamw_step] there are 2 first moments and 3 weights. Pass one for each weight."),
      REFUSES(with([](auto& x) { x.grad = {}; }), value, "[adamw_step] there are 0 gradients and 3 weights."),
      REFUSES(with([&](auto& x) { x.each = two; }), value,
              "[adamw_step] there are 2 overrides and 3 weights. Pass one for each weight, or none"),
      REFUSES(with([&](auto& x) { x.each = negative; }), value,
              "[adamw_step] weight_decay of weight 2, (2) f32, is -1. It must be 0 or more, and finite."),
      REFUSES(with([&](auto& x) { x.grad = shifted; }), shape,
              "[adamw_step] gradient 1 is (2) f32, the weight is (3) f32."),
      REFUSES(with([&](auto& x) { x.grad = wide; }), dtype,
              "[adamw_step] gradient 2 is (2) f64, the weight is (2) f32."),
      REFUSES(with([&](auto& x) { x.w = twice; }), value,
              "[adamw_step] weight 0 and weight 2 are the same tensor, 'w' (2) f32."),
      REFUSES(with([&](auto& x) { x.m = mixed; }), value,
              "[adamw_step] weight 0 and first moment 2 are the same tensor, 'w' (2) f32."),
      REFUSES(with([&](auto& x) { x.v = hole; }), value, "[adamw_step] second moment 1 is an empty tensor:"),
  });
  const auto sgd = [&](const SgdOptions& o, const std::vector<Tensor>& b, double lr = 0.1, int64_t t = 1) {
    sgd_step({.w = {&w, 1}, .grad = {&g, 1}, .momentum = b}, o, lr, t);
  };
  const std::vector<Tensor> buffer{m}, same{w}, none;
  const Tensor doubles = random<double>({2}, 1);
  expect_at_emit({
      REFUSES(with([&](auto& x) { x.each = backwards; }), value,
              "[adamw_step] lr_scale of weight 1, (3) f32, is -1. It must be 0 or more, and finite."),
      REFUSES(sgd({.momentum = 0.9}, none), value, "[sgd_step] there are 0 momentum buffers and 1 weights."),
      REFUSES(sgd({}, buffer), value, "[sgd_step] momentum is 0, and there are 1 momentum buffers."),
      REFUSES(sgd({.momentum = 0.9}, same), value,
              "[sgd_step] weight 0 and momentum buffer 0 are the same tensor, 'w' (2) f32."),
      REFUSES(sgd({.momentum = 1}, buffer), value, "[sgd_step] momentum is 1. It must be in [0, 1)."),
      REFUSES(sgd({.momentum = 0.9, .dampening = -1}, buffer), value, "[sgd_step] dampening is -1."),
      REFUSES(sgd({.nesterov = true}, none), value, "[sgd_step] nesterov with momentum 0 and dampening 0."),
      REFUSES(sgd({.weight_decay = -1}, none), value, "[sgd_step] weight_decay of weight 0, 'w' (2) f32, is -1."),
      REFUSES(sgd({}, none, -1), value, "[sgd_step] lr is -1."),
      REFUSES(sgd({}, none, 0.1, 0), value, "[sgd_step] the step's number is 0. Steps count from 1."),
      REFUSES(sgd_step({.w = {&w, 1}, .grad = {&doubles, 1}}, {}, 0.1, 1), dtype,
              "[sgd_step] gradient 0 is (2) f64, the weight is 'w' (2) f32."),
  });
  for (const Tensor& t : many_m) CHECK(values(t) == std::vector<float>(size_t(t.numel()), 0));  // no step began
  Tensor leaf = f32_of({2}).requires_grad_();
  expect(REFUSES(adamw_step(leaf * 2.0, m, v, g, {}, 0.1, 1), state,
                 "[adamw_step] weight 0, (2) f32, was computed on the tape."));
}
TEST_CASE("indices out of range, when the op runs") {
  const Tensor table = f32_of({5, 4}), logits = f32_of({2, 3});
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    const NameScope scope("wte");
    for (int64_t bad : {5, -1}) {
      const auto name = fmt::format("{}", bad);
      const Tensor ids = tensor<int64_t>({1, bad, 2}, {3}), narrow = tensor<int32_t>({0, 1, int32_t(bad)}, {3});
      expect(REFUSES(values(embedding(ids, table)), value, "[embedding]", name, "5", "in wte"));
      expect(REFUSES(values(embedding(narrow, table)), value, "[embedding]", name));
      const Tensor targets = tensor<int64_t>({0, bad}, {2});
      expect(REFUSES(values(cross_entropy(logits, targets)), value, "[cross_entropy]", name, "3", "in wte"));
    }
    const Tensor all_ignored = tensor<int64_t>({1, 1}, {2});
    expect(REFUSES(values(cross_entropy(logits, all_ignored, {Reduction::mean, 1, 0})), value,
                   "[cross_entropy] no row is left for the mean: 0 of 2 target(s) differ from ignore_index (1). The "
                   "mean needs one or more. Drop such batches, or use Reduction::sum, which is 0.",
                   "in wte"));
    CHECK(values(cross_entropy(logits, all_ignored, {Reduction::sum, 1, 0}))[0] == 0);
    expect(
        REFUSES(values(cross_entropy(f32_of({0, 3}), i64_of({0}))), value,
                "[cross_entropy] no row is left for the mean: 0 of 0 target(s) differ from ignore_index (not set)."));
  }
}
