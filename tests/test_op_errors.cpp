// What every op refuses, with kind and text of the message: the op, what it got and the rule. Eagerly and lazily.
#include <tapegrad/ops/ops.h>

#include "helpers.h"

using namespace tg;
namespace {
using Why = Error::Kind;
struct Refusal {
  std::function<void()> use;
  Why kind;
  std::vector<std::string> says;
};
void expect(const Refusal& r) {
  INFO("expected: ", r.says[0]);
  try {
    r.use();
    FAIL_CHECK("no error");
  } catch (const Error& e) {
    INFO("got: ", std::string(e.what()));
    CHECK(e.kind() == r.kind);
    for (auto& part : r.says) CHECK(has(e.what(), part));
  }
}
// Checks of shapes and dtypes do not wait for the op to run.
void expect_at_emit(const std::vector<Refusal>& all) {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    for (auto& r : all) expect(r);
  }
}
Tensor f32(const Shape& s) { return random(s, 1); }
Tensor i64(const Shape& s) { return zeros(s, DType::i64); }
}  // namespace

TEST_CASE("pointwise") {
  const auto cannot = [](std::string_view op, const char* what) {
    return std::vector<std::string>{fmt::format("[{}] cannot compute on {}. Use f64, f32 or bf16", op, what)};
  };
  const Tensor half = f32({2}).to(DType::f16), ints = i64({2}), bytes = zeros({2}, DType::u8);
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
      {[&] { f32({2}) + random<double>({2}, 1); },
       Why::dtype,
       {"[add] dtypes differ: (2) f32 and (2) f64. There is no promotion; use .to(dtype)."}},
      {[&] { f32({2}) * f32({0}); },
       Why::shape,
       {"[mul] shapes do not broadcast: (2) f32 and (0) f32. Aligned at the right, each size must be equal or 1."}},
      {[&] { f32({2}) + Tensor(); }, Why::value, {"[add] input 1 is an empty tensor. Pass a tensor that has a value."}},
      {[&] { tg::exp(Tensor()); }, Why::value, {"[exp] input 0 is an empty tensor."}},
  });
}
TEST_CASE("comparisons, where, masked_fill and clamp") {
  const Tensor x = f32({2, 3}), ints = i64({3}), yes = zeros({3}, DType::boolean), half = x.to(DType::f16);
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
      {[&] { ne(x, f32({2})); },
       Why::shape,
       {"[ne] shapes do not broadcast: (2, 3) f32 and (2) f32. Aligned at the right, each size must be equal or 1."}},
      {[&] { where(x, x, x); },
       Why::dtype,
       {"[where] the condition is (2, 3) f32. It must be bool: compare first, as in ne(x, 0), or use"}},
      {[&] { where(yes, x, ints); }, Why::dtype, {"[where] dtypes differ: (2, 3) f32 and (3) i64"}},
      {[&] { where(yes, x, f32({2})); },
       Why::shape,
       {"[where] shapes do not broadcast: (3) bool and (2, 3) f32 and (2) f32."}},
      {[&] { where(yes, ints, 0.5); }, Why::value, {"[where] 0.5 is no value of i64."}},
      {[&] { where(yes, Tensor(), 0.5); }, Why::value, {"[where] input 1 is an empty tensor"}},
      {[&] { masked_fill(x, x, 0); }, Why::dtype, {"[masked_fill] the mask is (2, 3) f32. It must be bool"}},
      {[&] { masked_fill(ints, yes, nan); }, Why::value, {"[masked_fill] nan is no value of i64."}},
      {[&] {
         masked_fill(f32({3}), zeros({2, 3}, DType::boolean), 0);
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
TEST_CASE("matmul and linear") {
  const Tensor w = f32({3, 5}).label("w");
  expect_at_emit({
      {[&] {
         matmul(f32({2, 4}), w);
       },
       Why::shape,
       {"[matmul] inner sizes differ: lhs is (2, 4) f32, rhs is 'w' (3, 5) f32.", "last size (4) must equal",
        "last (3)"}},
      {[&] {
         matmul(f32({2, 3}), w, {.trans_b = true});
       },
       Why::shape,
       {"[matmul] inner sizes differ", "(3, 5) f32 transposed"}},
      {[&] { matmul(f32({3}), w); }, Why::shape, {"[matmul] needs 2 dimension(s) or more, got (3) f32."}},
      {[&] { matmul(w, f32({5})); }, Why::shape, {"[matmul] needs 2 dimension(s) or more, got (5) f32."}},
      {[&] {
         matmul(f32({2, 2, 3}), f32({3, 3, 5}));
       },
       Why::shape,
       {"[matmul] batch sizes do not broadcast"}},
      {[&] {
         matmul(random<double>({2, 3}, 1), w);
       },
       Why::dtype,
       {"[matmul] dtypes differ: (2, 3) f64 and 'w'"}},
      {[&] {
         matmul(i64({2, 3}), i64({3, 2}));
       },
       Why::dtype,
       {"[matmul] cannot compute on (2, 3) i64"}},
      {[&] {
         linear(f32({2, 4}), w);
       },
       Why::shape,
       {"[linear] inner sizes differ: x is (2, 4) f32, weight is 'w' (3, 5) f32."}},
      {[&] {
         linear(f32({2, 5}), f32({5}));
       },
       Why::shape,
       {"[linear] weight (5) f32 is no matrix. It must be (out, in)."}},
      {[&] { linear(f32({}), w); }, Why::shape, {"[linear] needs 1 dimension(s) or more, got () f32."}},
      {[&] {
         linear(f32({2, 5}), w, f32({5}));
       },
       Why::shape,
       {"[linear] bias is (5) f32, weight is 'w' (3, 5) f32.", "(3)"}},
      {[&] {
         linear(f32({2, 5}), w, random<double>({3}, 1));
       },
       Why::dtype,
       {"[linear] dtypes differ"}},
  });
}
TEST_CASE("rope and swiglu") {
  const Tensor x = f32({2, 4}).label("x");
  expect_at_emit({
      {[&] {
         rope(f32({2, 5}));
       },
       Why::shape,
       {"[rope] (2, 5) f32 has rows of 5 elements.", "must be even"}},
      {[&] { rope(f32({4})); }, Why::shape, {"[rope] needs 2 dimension(s) or more, got (4) f32."}},
      {[&] {
         rope(i64({2, 4}));
       },
       Why::dtype,
       {"[rope] cannot compute on (2, 4) i64"}},
      {[&] { rope(x, {.theta = 0.5}); }, Why::value, {"[rope] theta is 0.5. It must be finite and 1 or more."}},
      {[&] { rope(x, {.theta = INFINITY}); }, Why::value, {"[rope] theta is inf."}},
      {[&] { rope(x, {.start = -1}); },
       Why::value,
       {"[rope] 2 rows from position -1 on, of 'x' (2, 4) f32. Positions must be in [0, 536870912)."}},
      {[&] { rope(x, {.start = (int64_t(1) << 29) - 1}); }, Why::value, {"[rope] 2 rows from position 536870911 on"}},
      {[&] { rope(x, {.start = INT64_MAX}); }, Why::value, {"[rope] 2 rows from position 9223372036854775807 on"}},
      {[&] {
         swiglu(f32({2, 5}));
       },
       Why::shape,
       {"[swiglu] (2, 5) f32 has rows of 5 elements.", "must be even"}},
      {[&] { swiglu(f32({})); }, Why::shape, {"[swiglu] needs 1 dimension(s) or more, got () f32."}},
      {[&] {
         swiglu(i64({2, 4}));
       },
       Why::dtype,
       {"[swiglu] cannot compute on (2, 4) i64"}},
  });
}
TEST_CASE("reductions") {
  const Tensor x = f32({2, 3});
  expect_at_emit({
      {[&] { sum(x, {2}); }, Why::shape, {"[sum]", "2", "(2, 3)"}},
      {[&] {
         sum(x, {0, -2});
       },
       Why::value,
       {"[sum] dimension -2 is named twice in (0, -2). Name each once."}},
      {[&] { sum(x.to(DType::f16)); }, Why::dtype, {"[sum] cannot compute on (2, 3) f16"}},
      {[&] { mean(i64({2})); }, Why::dtype, {"[mean] cannot compute on (2) i64"}},
      {[&] { mean(x, {-3}); }, Why::shape, {"[mean]", "-3"}},
      {[&] {
         mean(f32({0, 3}), {0});
       },
       Why::value,
       {"[mean] (0, 3) f32 has no elements to average over. Use sum(), which is 0."}},
      {[&] { softmax(f32({})); }, Why::shape, {"[softmax]", "() f32"}},
      {[&] { softmax(x, 2); }, Why::shape, {"[softmax]", "(2, 3)"}},
      {[&] {
         softmax(i64({2, 3}));
       },
       Why::dtype,
       {"[softmax] cannot compute on (2, 3) i64"}},
      {[&] {
         softmax(i64({2, 3}), 0);
       },
       Why::dtype,
       {"[softmax] cannot compute on (3, 2) i64"}},
  });
}
TEST_CASE("views and copies") {
  const Tensor x = f32({2, 3}).label("x");
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
         reshape(f32({0}), {-1, 0});
       },
       Why::shape,
       {"[reshape]"}},
      {[&] { transpose(f32({3})); }, Why::shape, {"[transpose] needs 2 dimension(s) or more, got (3) f32."}},
      {[&] { transpose(x, 0, 2); }, Why::shape, {"[transpose]", "(2, 3)"}},
      {[&] { slice(x, 1, 2, 1); }, Why::shape, {"[slice] [2, 1) of dimension 1 is outside of 'x' (2, 3) f32."}},
      {[&] { slice(x, 1, 4, 9); }, Why::shape, {"[slice] [4, 9) of dimension 1"}},
      {[&] { slice(x, 1, -4, 2); }, Why::shape, {"[slice] [-4, 2)"}},
      {[&] { slice(x, 2, 0, 1); }, Why::shape, {"[slice]"}},
      {[&] {
         split(x, {1, 1});
       },
       Why::shape,
       {"[split] parts (1, 1) do not make up dimension", "which has 3 elements"}},
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
      {[&] { expand(f32({1}), {-1}); }, Why::shape, {"[expand]"}},
      {[&] { concat({}); }, Why::value, {"[concat] got no tensors. Pass at least one."}},
      {[&] {
         concat({x, f32({2, 4})}, 0);
       },
       Why::shape,
       {"[concat] input 1 is (2, 4) f32, input 0 is 'x' (2, 3) f32."}},
      {[&] {
         concat({x, f32({6})}, 0);
       },
       Why::shape,
       {"[concat] input 1 is (6) f32"}},
      {[&] {
         concat({x, i64({2, 3})}, 0);
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
         concat({f32({}), f32({})}, 0);
       },
       Why::shape,
       {"[concat]"}},
  });
}
TEST_CASE("norms, embedding, attention, dropout, selection") {
  const Tensor x = f32({2, 3}), w = f32({3}), table = f32({5, 4}), q = f32({1, 4, 3, 8}), kv = f32({1, 2, 3, 8});
  Rng rng{1};
  expect_at_emit({
      {[&] { layer_norm(x, f32({2})); }, Why::shape, {"[layer_norm] weight is (2) f32, x is (2, 3) f32.", "shape (3)"}},
      {[&] { layer_norm(x, w, f32({1})); }, Why::shape, {"[layer_norm] bias is (1) f32"}},
      {[&] { layer_norm(x, {}, w); }, Why::value, {"[layer_norm] there is a bias", "but no weight"}},
      {[&] { layer_norm(x, w, {}, -1); }, Why::value, {"[layer_norm] eps is -1."}},
      {[&] { layer_norm(f32({})); }, Why::shape, {"[layer_norm] needs 1 dimension(s)"}},
      {[&] { layer_norm(i64({2})); }, Why::dtype, {"[layer_norm] cannot compute on (2) i64"}},
      {[&] { rms_norm(x, random<double>({3}, 1)); }, Why::dtype, {"[rms_norm] dtypes differ"}},
      {[&] {
         rms_norm(x, f32({1, 3}));
       },
       Why::shape,
       {"[rms_norm] weight is (1, 3) f32"}},
      {[&] { rms_norm(x.to(DType::f16)); }, Why::dtype, {"[rms_norm] cannot compute on (2, 3) f16"}},
      {[&] { embedding(f32({2}), table); }, Why::dtype, {"[embedding] indices must be i32 or i64, got (2) f32."}},
      {[&] { embedding(i64({2}), w); }, Why::shape, {"[embedding] table (3) f32 is no matrix. It must be (V, C)"}},
      {[&] {
         embedding(i64({2}), i64({2, 2}));
       },
       Why::dtype,
       {"[embedding] cannot compute on (2, 2) i64"}},
      {[&] {
         attention(f32({4, 3, 8}), kv, kv);
       },
       Why::shape,
       {"[attention]", "(4, 3, 8) f32"}},
      {[&] {
         attention(q, f32({1, 3, 3, 8}), f32({1, 3, 3, 8}));
       },
       Why::shape,
       {"[attention]", "(1, 3, 3, 8) f32"}},
      {[&] {
         attention(q, kv, f32({1, 2, 4, 8}));
       },
       Why::shape,
       {"[attention]", "(1, 2, 4, 8) f32"}},
      {[&] {
         attention(q, f32({1, 2, 3, 4}), kv);
       },
       Why::shape,
       {"[attention]"}},
      {[&] {
         attention(f32({1, 2, 4, 8}), kv, kv);
       },
       Why::shape,
       {"[attention]", "(1, 2, 4, 8) f32"}},
      {[&] {
         attention(q, f32({1, 2, 0, 8}), f32({1, 2, 0, 8}), {.causal = false});
       },
       Why::shape,
       {"[attention]"}},
      {[&] { attention(q, kv.to(DType::bf16), kv); }, Why::dtype, {"[attention] dtypes differ"}},
      {[&] { attention(q, kv, kv, {.scale = std::nan("")}); }, Why::value, {"[attention]", "nan"}},
      {[&] { dropout(x, 1, rng); }, Why::value, {"[dropout]", "1"}},
      {[&] { dropout(x, -0.1, rng); }, Why::value, {"[dropout]", "-0.1"}},
      {[&] { dropout(i64({2}), 0.5, rng); }, Why::dtype, {"[dropout] cannot compute on (2) i64"}},
      {[&] { argmax(x, 2); }, Why::shape, {"[argmax]", "(2, 3)"}},
      {[&] {
         argmax(f32({2, 0}));
       },
       Why::shape,
       {"[argmax]", "(2, 0) f32"}},
      {[&] { topk(x, 4); }, Why::value, {"[topk]", "4", "(2, 3) f32"}},
      {[&] { topk(x, 0); }, Why::value, {"[topk]", "0"}},
      {[&] { topk(f32({}), 1); }, Why::shape, {"[topk]"}},
  });
  CHECK(rng == Rng{1});  // a refused draw takes nothing
}
TEST_CASE("losses and optimisers") {
  const Tensor logits = f32({2, 3}), targets = i64({2}), w = f32({2}).label("w"), m = zeros({2}), v = zeros({2}),
               g = f32({2});
  expect_at_emit({
      {[&] { cross_entropy(logits, i64({3})); },
       Why::shape,
       {"[cross_entropy] logits are (2, 3) f32, targets (3) i64.", "shape (2)"}},
      {[&] { cross_entropy(logits, logits); },
       Why::dtype,
       {"[cross_entropy] indices must be i32 or i64, got (2, 3) f32."}},
      {[&] {
         cross_entropy(i64({2, 3}), targets);
       },
       Why::dtype,
       {"[cross_entropy] cannot compute on (2, 3) i64"}},
      {[&] {
         cross_entropy(logits, targets, {Reduction::mean, {}, 1});
       },
       Why::value,
       {"[cross_entropy] label_smoothing is 1."}},
      {[&] { global_norm({}); }, Why::value, {"[global_norm] there are no tensors. Pass at least one."}},
      {[&] {
         global_norm({logits, targets});
       },
       Why::dtype,
       {"[global_norm] cannot compute on (2) i64"}},
      {[&] { adamw_step(w, m, v, f32({3}), {}, 0.1, 1); }, Why::shape, {"[adamw_step]", "(3) f32", "'w' (2) f32"}},
      {[&] { adamw_step(w, m, v, random<double>({2}, 1), {}, 0.1, 1); }, Why::dtype, {"[adamw_step] dtypes differ"}},
      {[&] { adamw_step(w, m, v, g, {}, 0.1, 0); }, Why::value, {"[adamw_step]", "0"}},
      {[&] { adamw_step(w, m, m, g, {}, 0.1, 1); }, Why::value, {"[adamw_step]", "the same tensor"}},
      {[&] { adamw_step(w, m, v, g, {.beta1 = 1}, 0.1, 1); }, Why::value, {"[adamw_step]", "1"}},
      {[&] { adamw_step(w, m, v, g, {}, 0.1, 1, global_norm({g})); }, Why::value, {"[adamw_step] max_norm is 0"}},
      {[&] { adamw_step(w, m, v, g, {}, 0.1, 1, {}, 1); }, Why::value, {"[adamw_step] max_norm is 1"}},
      {[&] { adamw_step(w, m, v, Tensor(), {}, 0.1, 1); }, Why::value, {"[adamw_step]", "empty tensor"}},
      {[&] { adamw_step(w.to(DType::bf16), m, v, g, {}, 0.1, 1); },
       Why::dtype,
       {"[adamw_step] the weight is (2) bf16"}},
  });
  Tensor leaf = f32({2}).requires_grad_();
  expect({[&] { adamw_step(leaf * 2.0, m, v, g, {}, 0.1, 1); }, Why::state, {"[adamw_step]", "on the tape"}});
}
TEST_CASE("indices out of range, when the op runs") {
  const Tensor table = f32({5, 4}), logits = f32({2, 3});
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    const InScope scope("wte");
    for (int64_t bad : {5, -1}) {
      const auto name = fmt::format("{}", bad);
      const Tensor ids = from<int64_t>({1, bad, 2}, {3}), narrow = from<int32_t>({0, 1, int32_t(bad)}, {3});
      expect({[&] { values(embedding(ids, table)); }, Why::value, {"[embedding]", name, "5", "in wte"}});
      expect({[&] { values(embedding(narrow, table)); }, Why::value, {"[embedding]", name}});
      const Tensor targets = from<int64_t>({0, bad}, {2});
      expect({[&] { values(cross_entropy(logits, targets)); }, Why::value, {"[cross_entropy]", name, "3", "in wte"}});
    }
    const Tensor all_ignored = from<int64_t>({1, 1}, {2});
    expect({[&] {
              values(cross_entropy(logits, all_ignored, {Reduction::mean, 1, 0}));
            },
            Why::value,
            {"[cross_entropy]"}});
    expect({[&] { values(cross_entropy(f32({0, 3}), i64({0}))); }, Why::value, {"[cross_entropy]"}});
  }
}
TEST_CASE("an empty tensor is refused by every op") {
  const Tensor none, x = f32({2, 3});
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
                                                [&] { embedding(none, x); },
                                                [&] { embedding(i64({2}), none); },
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
                                                [&] { clamp(none, {.min = 0}); }};
  for (size_t i = 0; i < uses.size(); ++i) {
    CAPTURE(i);
    CHECK(has(error_of(uses[i]), "empty tensor"));
  }
}
