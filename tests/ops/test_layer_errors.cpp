// What the ops of layers, losses and optimisers refuse, with kind and text of the message, eagerly and lazily.
#include <tapegrad/core/check.h>
#include <tapegrad/ops/ops.h>

#include <thread>

#include "support/refusals.h"

using namespace tg;

TEST_CASE("matmul and linear") {
  const Tensor w = f32_of({3, 5}).label("w");
  expect_at_emit({
      {[&] {
         matmul(f32_of({2, 4}), w);
       },
       Why::shape,
       {"[matmul] inner sizes differ: lhs is (2, 4) f32, rhs is 'w' (3, 5) f32.", "last size (4) must equal",
        "last (3)"}},
      {[&] {
         matmul(f32_of({2, 3}), w, {.trans_b = true});
       },
       Why::shape,
       {"[matmul] inner sizes differ", "(3, 5) f32 transposed"}},
      {[&] { matmul(f32_of({3}), w); }, Why::shape, {"[matmul] needs 2 dimension(s) or more, got (3) f32."}},
      {[&] { matmul(w, f32_of({5})); }, Why::shape, {"[matmul] needs 2 dimension(s) or more, got (5) f32."}},
      {[&] {
         matmul(f32_of({2, 2, 3}), f32_of({3, 3, 5}));
       },
       Why::shape,
       {"[matmul] batch sizes do not broadcast"}},
      {[&] {
         matmul(random<double>({2, 3}, 1), w);
       },
       Why::dtype,
       {"[matmul] dtypes differ: (2, 3) f64 and 'w'"}},
      {[&] {
         matmul(i64_of({2, 3}), i64_of({3, 2}));
       },
       Why::dtype,
       {"[matmul] cannot compute on (2, 3) i64"}},
      {[&] {
         linear(f32_of({2, 4}), w);
       },
       Why::shape,
       {"[linear] inner sizes differ: x is (2, 4) f32, weight is 'w' (3, 5) f32."}},
      {[&] {
         linear(f32_of({2, 5}), f32_of({5}));
       },
       Why::shape,
       {"[linear] weight (5) f32 is no matrix. It must be (out, in)."}},
      {[&] { linear(f32_of({}), w); }, Why::shape, {"[linear] needs 1 dimension(s) or more, got () f32."}},
      {[&] {
         linear(f32_of({2, 5}), w, f32_of({5}));
       },
       Why::shape,
       {"[linear] bias is (5) f32, weight is 'w' (3, 5) f32.", "(3)"}},
      {[&] {
         linear(f32_of({2, 5}), w, random<double>({3}, 1));
       },
       Why::dtype,
       {"[linear] dtypes differ"}},
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
    CHECK(bits_of(matmul(x, w, {.products = highest})) == f32);  // said for the one product
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
  CHECK(!(key(op::Matmul({.products = highest})) == key(op::Matmul({.products = high}))));
  CHECK(!(key(op::Linear(highest)) == key(op::Linear(high))));
  CHECK(key(op::Linear(high)) == key(op::Linear(high)));
}
TEST_CASE("rope and swiglu") {
  const Tensor x = f32_of({2, 4}).label("x");
  expect_at_emit({
      {[&] {
         rope(f32_of({2, 5}));
       },
       Why::shape,
       {"[rope] (2, 5) f32 has rows of 5 elements.", "must be even"}},
      {[&] { rope(f32_of({4})); }, Why::shape, {"[rope] needs 2 dimension(s) or more, got (4) f32."}},
      {[&] {
         rope(i64_of({2, 4}));
       },
       Why::dtype,
       {"[rope] cannot compute on (2, 4) i64"}},
      {[&] { rope(x, {.theta = 0.5}); }, Why::value, {"[rope] theta is 0.5. It must be finite and 1 or more."}},
      {[&] { rope(x, {.theta = INFINITY}); }, Why::value, {"[rope] theta is inf."}},
      {[&] { rope(x, {.scaling = {.factor = 2}}); }, Why::value, {"[rope] factor is 2, and there is no scaling."}},
      {[&] { rope(x, {.scaling = {.kind = RopeScalingKind::linear, .factor = 0}}); },
       Why::value,
       {"[rope] factor is 0. It must be finite and more than 0."}},
      {[&] { rope(x, {.scaling = {.kind = RopeScalingKind::linear, .factor = 2, .original_context = 8}}); },
       Why::value,
       {"original_context is 8. Only scaling llama3 uses them."}},
      {[&] { rope(x, {.scaling = {.kind = RopeScalingKind::llama3, .factor = 2}}); },
       Why::value,
       {"original_context is 0. For scaling llama3 the second must be more than the first, and the context 1 or "
        "more."}},
      {[&] {
         rope(x, {.scaling = {RopeScalingKind::llama3, 2, 4, 4, 8}});
       },
       Why::value,
       {"low_freq is 4, high_freq is 4"}},
      {[&] { rope(x, {.scaling = {.original_context = -1}}); }, Why::value, {"original_context is -1."}},
      {[&] { rope(x, {.start = -1}); },
       Why::value,
       {"[rope] 2 rows from position -1 on, of 'x' (2, 4) f32. Positions must be in [0, 536870912)."}},
      {[&] { rope(x, {.start = (int64_t(1) << 29) - 1}); }, Why::value, {"[rope] 2 rows from position 536870911 on"}},
      {[&] { rope(x, {.start = INT64_MAX}); }, Why::value, {"[rope] 2 rows from position 9223372036854775807 on"}},
      {[&] {
         swiglu(f32_of({2, 5}));
       },
       Why::shape,
       {"[swiglu] (2, 5) f32 has rows of 5 elements.", "must be even"}},
      {[&] { swiglu(f32_of({})); }, Why::shape, {"[swiglu] needs 1 dimension(s) or more, got () f32."}},
      {[&] {
         swiglu(i64_of({2, 4}));
       },
       Why::dtype,
       {"[swiglu] cannot compute on (2, 4) i64"}},
  });
}
TEST_CASE("norms and embedding") {
  const Tensor x = f32_of({2, 3}), w = f32_of({3}), table = f32_of({5, 4});
  expect_at_emit({
      {[&] { layer_norm(x, f32_of({2})); },
       Why::shape,
       {"[layer_norm] weight is (2) f32, x is (2, 3) f32.", "shape (3)"}},
      {[&] { layer_norm(x, w, f32_of({1})); }, Why::shape, {"[layer_norm] bias is (1) f32"}},
      {[&] { layer_norm(x, {}, w); }, Why::value, {"[layer_norm] there is a bias", "but no weight"}},
      {[&] { layer_norm(x, w, {}, -1); }, Why::value, {"[layer_norm] eps is -1."}},
      {[&] { layer_norm(f32_of({})); }, Why::shape, {"[layer_norm] needs 1 dimension(s)"}},
      {[&] { layer_norm(i64_of({2})); }, Why::dtype, {"[layer_norm] cannot compute on (2) i64"}},
      {[&] { rms_norm(x, random<double>({3}, 1)); }, Why::dtype, {"[rms_norm] dtypes differ"}},
      {[&] {
         rms_norm(x, f32_of({1, 3}));
       },
       Why::shape,
       {"[rms_norm] weight is (1, 3) f32"}},
      {[&] { rms_norm(x.to(DType::f16)); }, Why::dtype, {"[rms_norm] cannot compute on (2, 3) f16"}},
      {[&] { add_layer_norm(x, w); },
       Why::shape,
       {"[add_layer_norm] x is (2, 3) f32, r is (3) f32.", "one shape with expand() or reshape()"}},
      {[&] { add_rms_norm(x, x.to(DType::f64)); },
       Why::dtype,
       {"[add_rms_norm] x is (2, 3) f32, and r is (2, 3) f64. It must have x's dtype, or be bf16 where x is f32",
        "use .to(dtype)"}},
      {[&] { rms_norm(x.to(DType::bf16), {}, 1e-5, DType::f32); },
       Why::dtype,
       {"[rms_norm] x is (2, 3) bf16, and the dtype of the result is f32."}},
      {[&] { layer_norm(x, x.to(DType::bf16)); }, Why::dtype, {"[layer_norm] dtypes differ"}},
      {[&] { add_layer_norm(x, x, f32_of({2})); },
       Why::shape,
       {"[add_layer_norm] weight is (2) f32, x is (2, 3) f32."}},
      {[&] { add_layer_norm(x, x, w, f32_of({1})); }, Why::shape, {"[add_layer_norm] bias is (1) f32"}},
      {[&] { add_layer_norm(x, x, {}, w); }, Why::value, {"[add_layer_norm] there is a bias", "but no weight"}},
      {[&] { add_rms_norm(x, x, w, -1); }, Why::value, {"[add_rms_norm] eps is -1."}},
      {[&] { add_rms_norm(f32_of({}), f32_of({})); }, Why::shape, {"[add_rms_norm] needs 1 dimension(s)"}},
      {[&] { embedding(f32_of({2}), table); }, Why::dtype, {"[embedding] indices must be i32 or i64, got (2) f32."}},
      {[&] { embedding(i64_of({2}), w); }, Why::shape, {"[embedding] table (3) f32 is no matrix. It must be (V, C)"}},
      {[&] {
         embedding(i64_of({2}), i64_of({2, 2}));
       },
       Why::dtype,
       {"[embedding] cannot compute on (2, 2) i64"}},
  });
}
TEST_CASE("attention") {
  const Tensor q = f32_of({1, 4, 3, 8}), kv = f32_of({1, 2, 3, 8});
  expect_at_emit({
      {[&] {
         attention(f32_of({4, 3, 8}), kv, kv);
       },
       Why::shape,
       {"[attention]", "(4, 3, 8) f32"}},
      {[&] {
         attention(q, f32_of({1, 3, 3, 8}), f32_of({1, 3, 3, 8}));
       },
       Why::shape,
       {"[attention]", "(1, 3, 3, 8) f32"}},
      {[&] {
         attention(q, kv, f32_of({1, 2, 4, 8}));
       },
       Why::shape,
       {"[attention]", "(1, 2, 4, 8) f32"}},
      {[&] {
         attention(q, f32_of({1, 2, 3, 4}), kv);
       },
       Why::shape,
       {"[attention]"}},
      {[&] {
         attention(f32_of({1, 2, 4, 8}), kv, kv);
       },
       Why::shape,
       {"[attention]", "(1, 2, 4, 8) f32"}},
      {[&] {
         attention(q, f32_of({1, 2, 0, 8}), f32_of({1, 2, 0, 8}), {.causal = false});
       },
       Why::shape,
       {"[attention]"}},
      {[&] { attention(q, kv.to(DType::bf16), kv); }, Why::dtype, {"[attention] dtypes differ"}},
      {[&] { attention(q, kv, kv, {.scale = std::nan("")}); }, Why::value, {"[attention]", "nan"}},
  });
}
TEST_CASE("dropout and selection") {
  const Tensor x = f32_of({2, 3});
  Rng rng{1};
  expect_at_emit({
      {[&] { dropout(x, 1, rng); }, Why::value, {"[dropout]", "1"}},
      {[&] { dropout(x, -0.1, rng); }, Why::value, {"[dropout]", "-0.1"}},
      {[&] { dropout(i64_of({2}), 0.5, rng); }, Why::dtype, {"[dropout] cannot compute on (2) i64"}},
      {[&] { argmax(x, 2); }, Why::shape, {"[argmax]", "(2, 3)"}},
      {[&] {
         argmax(f32_of({2, 0}));
       },
       Why::shape,
       {"[argmax]", "(2, 0) f32"}},
      {[&] { topk(x, 4); }, Why::value, {"[topk]", "4", "(2, 3) f32"}},
      {[&] { topk(x, 0); }, Why::value, {"[topk]", "0"}},
      {[&] { topk(f32_of({}), 1); }, Why::shape, {"[topk]"}},
  });
  CHECK(rng == Rng{1});  // a refused draw takes nothing
}
TEST_CASE("losses and optimisers") {
  const Tensor logits = f32_of({2, 3}), targets = i64_of({2}), w = f32_of({2}).label("w"), m = zeros({2}),
               v = zeros({2}), g = f32_of({2});
  expect_at_emit({
      {[&] { cross_entropy(logits, i64_of({3})); },
       Why::shape,
       {"[cross_entropy] logits are (2, 3) f32, targets (3) i64.", "shape (2)"}},
      {[&] { cross_entropy(logits, logits); },
       Why::dtype,
       {"[cross_entropy] indices must be i32 or i64, got (2, 3) f32."}},
      {[&] {
         cross_entropy(i64_of({2, 3}), targets);
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
      {[&] { adamw_step(w, m, v, f32_of({3}), {}, 0.1, 1); },
       Why::shape,
       {"[adamw_step] gradient 0 is (3) f32, the weight is 'w' (2) f32."}},
      {[&] { adamw_step(w, m, v, random<double>({2}, 1), {}, 0.1, 1); },
       Why::dtype,
       {"[adamw_step] gradient 0 is (2) f64, the weight is 'w' (2) f32."}},
      {[&] { adamw_step(w, m, v, g, {}, 0.1, 0); }, Why::value, {"[adamw_step]", "0"}},
      {[&] { adamw_step(w, m, m, g, {}, 0.1, 1); },
       Why::value,
       {"[adamw_step] first moment 0 and second moment 0 are the same tensor, (2) f32. Each needs its own."}},
      {[&] { adamw_step(w, m, v, g, {.beta1 = 1}, 0.1, 1); }, Why::value, {"[adamw_step]", "1"}},
      {[&] { adamw_step(w, m, v, g, {}, 0.1, 1, global_norm({g})); }, Why::value, {"[adamw_step] max_norm is 0"}},
      {[&] { adamw_step(w, m, v, g, {}, 0.1, 1, {}, 1); }, Why::value, {"[adamw_step] max_norm is 1"}},
      {[&] { adamw_step(w, m, v, Tensor(), {}, 0.1, 1); }, Why::value, {"[adamw_step] gradient 0 is an empty tensor."}},
      {[&] { adamw_step(w.to(DType::bf16), m, v, g, {}, 0.1, 1); }, Why::dtype, {"[adamw_step] weight 0 is (2) bf16"}},
  });
  const std::vector<Tensor> many_w{w, zeros({3}), zeros({2})}, many_m{m, zeros({3}), zeros({2})};
  const std::vector<Tensor> many_v{v, zeros({3}), zeros({2})}, grads{g, f32_of({3}), f32_of({2})};
  const AdamWTensors good{.w = many_w, .m = many_m, .v = many_v, .grad = grads};
  const auto with = [&](auto change) {
    return [=] {
      AdamWTensors x = good;
      change(x);
      adamw_step(x, {}, 0.1, 1);
    };
  };
  const std::vector<Tensor> shifted{g, g, g}, wide{g, f32_of({3}), random<double>({2}, 1)}, twice{w, zeros({3}), w};
  const std::vector<Tensor> mixed{m, zeros({3}), w}, hole{m, Tensor(), m};
  const std::vector<AdamWOverrides> two(2), negative{{}, {}, {.weight_decay = -1}}, backwards{{}, {.lr_scale = -1}, {}};
  expect_at_emit({
      {with([](AdamWTensors& x) { x = {}; }), Why::value, {"[adamw_step] there are no tensors. Pass at least one."}},
      {with([](AdamWTensors& x) { x.m = x.m.first(2); }),
       Why::value,
       {"[adamw_step] there are 2 first moments and 3 weights. Pass one for each weight."}},
      {with([](AdamWTensors& x) { x.grad = {}; }), Why::value, {"[adamw_step] there are 0 gradients and 3 weights."}},
      {with([&](AdamWTensors& x) { x.each = two; }),
       Why::value,
       {"[adamw_step] there are 2 overrides and 3 weights. Pass one for each weight, or none"}},
      {with([&](AdamWTensors& x) { x.each = negative; }),
       Why::value,
       {"[adamw_step] weight_decay of weight 2, (2) f32, is -1. It must be 0 or more, and finite."}},
      {with([&](AdamWTensors& x) { x.grad = shifted; }),
       Why::shape,
       {"[adamw_step] gradient 1 is (2) f32, the weight is (3) f32."}},
      {with([&](AdamWTensors& x) { x.grad = wide; }),
       Why::dtype,
       {"[adamw_step] gradient 2 is (2) f64, the weight is (2) f32."}},
      {with([&](AdamWTensors& x) { x.w = twice; }),
       Why::value,
       {"[adamw_step] weight 0 and weight 2 are the same tensor, 'w' (2) f32."}},
      {with([&](AdamWTensors& x) { x.m = mixed; }),
       Why::value,
       {"[adamw_step] weight 0 and first moment 2 are the same tensor, 'w' (2) f32."}},
      {with([&](AdamWTensors& x) { x.v = hole; }), Why::value, {"[adamw_step] second moment 1 is an empty tensor."}},
  });
  const auto sgd = [&](const SgdOptions& o, const std::vector<Tensor>& b, double lr = 0.1, int64_t t = 1) {
    return [=] { sgd_step({.w = {&w, 1}, .grad = {&g, 1}, .momentum = b}, o, lr, t); };
  };
  const std::vector<Tensor> buffer{m}, same{w}, none;
  expect_at_emit({
      {with([&](AdamWTensors& x) { x.each = backwards; }),
       Why::value,
       {"[adamw_step] lr_scale of weight 1, (3) f32, is -1. It must be 0 or more, and finite."}},
      {sgd({.momentum = 0.9}, none), Why::value, {"[sgd_step] there are 0 momentum buffers and 1 weights."}},
      {sgd({}, buffer), Why::value, {"[sgd_step] momentum is 0, and there are 1 momentum buffers."}},
      {sgd({.momentum = 0.9}, same),
       Why::value,
       {"[sgd_step] weight 0 and momentum buffer 0 are the same tensor, 'w' (2) f32."}},
      {sgd({.momentum = 1}, buffer), Why::value, {"[sgd_step] momentum is 1. It must be in [0, 1)."}},
      {sgd({.momentum = 0.9, .dampening = -1}, buffer), Why::value, {"[sgd_step] dampening is -1."}},
      {sgd({.nesterov = true}, none), Why::value, {"[sgd_step] nesterov with momentum 0 and dampening 0."}},
      {sgd({.weight_decay = -1}, none), Why::value, {"[sgd_step] weight_decay of weight 0, 'w' (2) f32, is -1."}},
      {sgd({}, none, -1), Why::value, {"[sgd_step] lr is -1."}},
      {sgd({}, none, 0.1, 0), Why::value, {"[sgd_step] the step's number is 0. Steps count from 1."}},
      {[&] {
         const Tensor doubles = random<double>({2}, 1);
         sgd_step({.w = {&w, 1}, .grad = {&doubles, 1}}, {}, 0.1, 1);
       },
       Why::dtype,
       {"[sgd_step] gradient 0 is (2) f64, the weight is 'w' (2) f32."}},
  });
  for (const Tensor& t : many_m) CHECK(values(t) == std::vector<float>(size_t(t.numel()), 0));  // none has begun
  Tensor leaf = f32_of({2}).requires_grad_();
  expect({[&] { adamw_step(leaf * 2.0, m, v, g, {}, 0.1, 1); },
          Why::state,
          {"[adamw_step] weight 0, (2) f32, was computed on the tape."}});
}
TEST_CASE("indices out of range, when the op runs") {
  const Tensor table = f32_of({5, 4}), logits = f32_of({2, 3});
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    const NameScope scope("wte");
    for (int64_t bad : {5, -1}) {
      const auto name = fmt::format("{}", bad);
      const Tensor ids = tensor<int64_t>({1, bad, 2}, {3}), narrow = tensor<int32_t>({0, 1, int32_t(bad)}, {3});
      expect({[&] { values(embedding(ids, table)); }, Why::value, {"[embedding]", name, "5", "in wte"}});
      expect({[&] { values(embedding(narrow, table)); }, Why::value, {"[embedding]", name}});
      const Tensor targets = tensor<int64_t>({0, bad}, {2});
      expect({[&] { values(cross_entropy(logits, targets)); }, Why::value, {"[cross_entropy]", name, "3", "in wte"}});
    }
    const Tensor all_ignored = tensor<int64_t>({1, 1}, {2});
    expect(
        {[&] {
           values(cross_entropy(logits, all_ignored, {Reduction::mean, 1, 0}));
         },
         Why::value,
         {"[cross_entropy] no row is left for the mean: 0 of 2 target(s) differ from ignore_index (1). The mean needs "
          "one or more. Drop such batches, or use Reduction::sum, which is 0.",
          "in wte"}});
    CHECK(values(cross_entropy(logits, all_ignored, {Reduction::sum, 1, 0}))[0] == 0);  // the way out
    expect({[&] {
              values(cross_entropy(f32_of({0, 3}), i64_of({0})));
            },
            Why::value,
            {"[cross_entropy] no row is left for the mean: 0 of 0 target(s) differ from ignore_index (not set)."}});
  }
}
