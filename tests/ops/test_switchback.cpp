// Against PyTorch; the exact layer within the bound of int8; row-wise int8 with exact outliers; memory, second
// derivatives, refusals.
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/plan/compile.h>

#include "support/quantized.h"
#include "support/refusals.h"

using namespace tg;
namespace {
constexpr SwitchBackMode kModes[] = {SwitchBackMode::global, SwitchBackMode::vector_wise,
                                     SwitchBackMode::memory_efficient};
const std::string kNames[] = {"global", "vector_wise", "memory_efficient"};

Layer random_layer(const Shape& rows, int64_t in, int64_t out, DType t = DType::f32) {
  Shape xs = rows, ys = rows;
  xs.push_back(in), ys.push_back(out);
  const double scale = 1 / std::sqrt(double(in));
  return {random(xs, 1, -2, 2).to(t), random({out, in}, 2, -scale, scale).to(t), random({out}, 3).to(t),
          random(ys, 4).to(t)};
}
Tensor rows_of(const Tensor& t) { return reshape(t, {-1, t.size(-1)}); }
Tensor row_max(const Tensor& t) { return max(abs(t), {-1}, {true}); }
double largest(const Tensor& t) { return max(t).item<double>(); }
// Gradients of |d(y^2)/dx|^2.
GradMap second_of(const Tensor& y, const Tensor& x) {
  const GradMap first = backward(sum(y * y), BackwardOptions{.create_graph = true});
  return backward(sum(first[x] * first[x]));
}
}  // namespace

TEST_CASE("values and gradients of PyTorch, eager, lazy and compiled") {
  const SafetensorsFile file(TG_TEST_DATA "/switchback.safetensors");
  const Layer l{file.tensor("x"), file.tensor("weight"), file.tensor("bias"), file.tensor("g")};
  const Quantized q = quantize_rowwise(reshape(l.x, {15, 23}));
  CHECK(bits_of(q.values) == bits_of(file.tensor("rows.codes")));
  CHECK(bits_of(q.absmax) == bits_of(file.tensor("rows.absmax")));
  for (const SwitchBackMode mode : kModes) {
    const std::string name = kNames[size_t(mode)];
    CAPTURE(name);
    const auto eager = run(l, mode);
    const char* of[] = {".y", ".dx", ".dw", ".db"};
    for (size_t i = 0; i < 4; ++i) {
      CAPTURE(of[i]);
      CHECK(distance(eager[i], file.tensor(name + of[i])) < 5e-7);
    }
    const std::vector<Tensor> lazy = under<LazyScope>([&] { return run(l, mode); });
    const Compiled step = compile([&](Inputs in) { return run({in[0], in[1], in[2], in[3]}, mode); });
    check_same_bits(lazy, eager);
    for (int again = 0; again < 3; ++again) check_same_bits(step({l.x, l.w, l.b, l.g}), eager);
  }
}

// Rounding moves a value by at most absmax / 254.
TEST_CASE("the exact layer, element by element within the bound of the codes") {
  const auto check_all = [](const Shape& rows, int64_t in, int64_t out, DType t) {
    CAPTURE_ALL(in, out, name_of(t));
    const Layer l = random_layer(rows, in, out, t);
    const Layer e{wide(l.x), wide(l.w), wide(l.b), wide(l.g)};
    const auto exact = run_exact(l);
    // Rounding of result and f32 sums.
    const double eps = t == DType::bf16 ? 1.0 / 128 : 1e-5;
    for (const SwitchBackMode mode : kModes) {
      CAPTURE(kNames[size_t(mode)]);
      const auto got = run(l, mode);
      const Tensor x = rows_of(e.x), g = rows_of(e.g);
      const bool by_rows = mode == SwitchBackMode::vector_wise;
      const Tensor step_x = row_max(x) / 254.0, step_g = row_max(g) / 254.0;          // (N, 1)
      const Tensor all_w = expand(reshape(max(abs(e.w)) / 254.0, {1, 1}), {out, 1});  // (out, 1)
      const Tensor step_w = by_rows ? row_max(e.w) / 254.0 : all_w;                   // row steps
      const Tensor step_wt = by_rows ? row_max(transpose(e.w, 0, 1)) / 254.0          // column steps
                                     : expand(slice(all_w, 0, 0, 1), {in, 1});
      // |a b - (a + da)(b + db)| <= |a| db + da |b| + da db, summed over k.
      const auto bound = [](const Tensor& a, const Tensor& da, const Tensor& b, const Tensor& db) {
        const Tensor ones_a = a * 0.0 + 1.0, ones_b = b * 0.0 + 1.0;
        const MatmulOptions transposed{.trans_b = true};
        return matmul(abs(a), ones_b * db, transposed) + matmul(ones_a * da, abs(b), transposed) +
               matmul(ones_a * da, ones_b * db, transposed);
      };
      const Tensor scale_w = matmul(transpose(abs(g), 0, 1), abs(x));
      const Tensor bounds[] = {bound(x, step_x, e.w, step_w), bound(g, step_g, transpose(e.w, 0, 1), step_wt),
                               mode == SwitchBackMode::memory_efficient
                                   ? matmul(transpose(abs(g), 0, 1), (x * 0.0 + 1.0) * step_x)
                                   : scale_w * 0.0,
                               e.b * 0.0};
      for (size_t i = 0; i < 4; ++i) {
        CAPTURE(i);
        CHECK(got[i].dtype() == t);
        const Tensor want = i < 2 ? rows_of(exact[i]) : exact[i], have = i < 2 ? rows_of(wide(got[i])) : wide(got[i]);
        const Tensor rounding = (abs(want) + max(abs(want))) * eps;
        CHECK(largest(abs(have - want) - bounds[i] - rounding) <= 0);
        if (i == 3 || (i == 2 && mode != SwitchBackMode::memory_efficient))
          CHECK(distance(have, want) < (t == DType::bf16 ? 1e-2 : 1e-5));
        else
          CHECK(largest(abs(have - want)) > 0);  // quantized
      }
    }
  };
  for (const DType t : {DType::f32, DType::bf16}) {
    check_all({13}, 83, 332, t);
    check_all({2, 3}, 64, 17, t);
    check_all({1}, 1, 5, t);
    check_all({70}, 130, 33, t);
  }
}

// Dettmers et al., LLM.int8(), 2022: int8 rows of x and of the weight; columns of x with an element above 6 are exact.
// dx uses the weight's int8 values, dw int8 values by column.
TEST_CASE("mean errors of y, db, dw and dx are below twice those of row-wise int8 with exact outliers") {
  const int64_t n = 13, in = 83, out = 332;
  Rng rng{7};
  std::vector<float> v(size_t(n * in));
  for (auto& x : v)
    x = float(std::sqrt(-2 * std::log(1 - double(rng.uniform()))) * std::cos(6.283185307 * rng.uniform()));
  const double scale = 1 / std::sqrt(double(in));
  const Tensor x = tensor(v, {n, in}), w = random({out, in}, 2, -scale, scale), b = random({out}, 3, -scale, scale);
  const auto loss_gradient = [&](const Tensor& y) { return sign(y) * (1024.0 / double(n * out)); };
  const auto mean_error = [](const Tensor& a, const Tensor& e) { return mean(abs(wide(a) - e)).item<double>(); };
  const Tensor X = wide(x), W = wide(w), exact_y = linear(X, W, wide(b)), G = loss_gradient(exact_y);
  const Tensor exact[] = {exact_y, matmul(G, W), matmul(transpose(G, 0, 1), X), sum(G, {0})};
  const Tensor inside = where(expand(max(abs(X), {0}, {true}) > 6.0, {n, in}), X * 0.0, X), outside = X - inside;
  const auto by_rows = [](const Tensor& t) { return wide(dequantize(quantize_rowwise(t.to(DType::f32)))); };
  const Tensor W8 = by_rows(W), y8 = matmul(by_rows(inside), W8, {.trans_b = true}) + linear(outside, W, wide(b));
  const Tensor G8 = loss_gradient(y8);
  const Tensor baseline[] = {y8, matmul(G8, W8),
                             matmul(by_rows(transpose(G8, 0, 1)), transpose(by_rows(transpose(inside, 0, 1)), 0, 1)) +
                                 matmul(transpose(G8, 0, 1), outside),
                             sum(G8, {0})};
  for (const SwitchBackMode mode : kModes) {
    CAPTURE(kNames[size_t(mode)]);
    const Tensor y = switchback_linear(x, w, b, mode);
    const auto got = run({x, w, b, loss_gradient(y)}, mode);
    for (size_t i = 0; i < 4; ++i) {
      CAPTURE(i);
      const double ours = mean_error(got[i], exact[i]), theirs = mean_error(baseline[i], exact[i]);
      CAPTURE_ALL(ours, theirs);
      CHECK(theirs > 0);
      CHECK(ours < 2 * theirs);
    }
  }
}

TEST_CASE("it keeps for backward what its mode says, to the byte") {
  const int64_t n = 24, in = 40, out = 56;
  for (const SwitchBackMode mode : kModes)
    for (const bool bias : {false, true}) {
      int64_t kept = 0;
      dry_run([&] {
        const Tensor x0 = zeros({n, in}).requires_grad_(), w = zeros({out, in}).requires_grad_();
        const Tensor b = bias ? zeros({out}).requires_grad_() : Tensor();
        const int64_t before = memory_stats().live;
        const Tensor y = [&] {
          const Tensor x = x0 * 2.0;
          return switchback_linear(x, w, b, mode);
        }();
        kept = memory_stats().live - before - 4 * n * out;
      });
      CAPTURE(kNames[size_t(mode)]);
      // int8 values and absmax of x and of the weight, or x; the weight exists anyway.
      CHECK(kept == (mode == SwitchBackMode::memory_efficient ? n * in + 4 * n + out * in + 4 : 4 * n * in));
    }
}

TEST_CASE("the MLP in one op is its layers, keeps one hidden tensor, and has second derivatives") {
  const int64_t n = 9, in = 24, ff = 70, out = 13;
  const Tensor x0 = random({3, 3, in}, 1), fc0 = random({ff, in}, 2, -0.3, 0.3),
               proj0 = random({out, ff}, 3, -0.2, 0.2), b0 = random({ff}, 4), c0 = random({out}, 5),
               g = random({3, 3, out}, 6);
  for (const DType t : {DType::f32, DType::bf16})
    for (const auto mode : {SwitchBackMode::global, SwitchBackMode::vector_wise})
      for (const bool tanh : {true, false})
        for (const bool bias : {true, false}) {
          const auto run_mlp = [&](bool fused) {
            std::vector<Tensor> p;
            for (const Tensor& q : {x0, fc0, proj0, b0, c0}) p.push_back(q.to(t).detach().requires_grad_());
            const Tensor none, &b = bias ? p[3] : none, &c = bias ? p[4] : none;
            Tensor y;
            if (fused) {
              y = switchback_mlp(p[0], {p[1], b, p[2], c, mode, tanh});
            } else {
              const Tensor h = switchback_linear(p[0], p[1], b, mode);
              y = switchback_linear(tanh ? gelu_tanh(h) : gelu(h), p[2], c, mode);
            }
            const GradMap m = backward(y, g.to(t));
            std::vector<Tensor> r{y.detach()};
            for (size_t i = 0; i < (bias ? 5u : 3u); ++i) r.push_back(m[p[i]]);
            return r;
          };
          const auto one = run_mlp(true);
          check_same_bits(one, run_mlp(false));
          for (const Tensor& x : one) CHECK(x.dtype() == t);
        }
  int64_t kept = 0;
  dry_run([&] {
    const Tensor x0_ = zeros({n, in}).requires_grad_(), fc = zeros({ff, in}).requires_grad_(),
                 proj = zeros({out, ff}).requires_grad_();
    const int64_t before = memory_stats().live;
    const Tensor y = [&] {
      const Tensor x = x0_ * 2.0;
      return switchback_mlp(x, {.fc_weight = fc, .proj_weight = proj});
    }();
    kept = memory_stats().live - before - 4 * n * out;
  });
  CHECK(kept == 4 * n * (in + ff));
  const Tensor h = random({6, 50}, 7, -4, 4);
  for (const bool tanh : {true, false}) {
    const Quantized fused = gelu_quantize_rowwise(h, tanh), plain = quantize_rowwise(tanh ? gelu_tanh(h) : gelu(h));
    CHECK(bits_of(fused.absmax) == bits_of(plain.absmax));
    CHECK(bits_of(fused.values) == bits_of(plain.values));
  }
  const Tensor x = x0.detach().requires_grad_(), fc = fc0.detach().requires_grad_();
  const Tensor y = switchback_mlp(x, {.fc_weight = fc, .proj_weight = proj0});
  const GradMap second = second_of(y, x);
  const Tensor X = wide(x0).requires_grad_(), W = wide(fc0).requires_grad_();
  const Tensor Y = linear(gelu_tanh(linear(X, W)), wide(proj0));
  const GradMap exact = second_of(Y, X);
  CHECK(distance(second[x], exact[X]) < 0.1);
  CHECK(distance(second[fc], exact[W]) < 0.1);
  expect_at_emit({
      REFUSES(switchback_mlp(x0, {.fc_weight = fc0, .fc_bias = b0, .proj_weight = proj0}), value, "both or none"),
      REFUSES(switchback_mlp(x0, {.fc_weight = fc0, .proj_weight = fc0}), shape, "(out, 70)"),
      REFUSES(switchback_mlp(x0.to(DType::f16), {.fc_weight = fc0, .proj_weight = proj0}), dtype, "f16"),
      REFUSES(switchback_mlp(x0, {.fc_weight = fc0, .proj_weight = proj0, .mode = SwitchBackMode::memory_efficient}),
              value, "global or vector_wise"),
  });
}

TEST_CASE("second derivatives go through the same products; memory_efficient says that it has none") {
  const Layer l = random_layer({6}, 20, 9);
  const auto penalty = [&](SwitchBackMode mode) {
    const Tensor x = l.x.detach().requires_grad_(), w = l.w.detach().requires_grad_();
    const GradMap second = second_of(switchback_linear(x, w, {}, mode), x);
    return std::pair(second[x], second[w]);
  };
  for (const SwitchBackMode mode : {SwitchBackMode::global, SwitchBackMode::vector_wise}) {
    const auto [dx, dw] = penalty(mode);
    const Tensor x = wide(l.x).requires_grad_(), w = wide(l.w).requires_grad_();
    const GradMap second = second_of(linear(x, w), x);
    CHECK(distance(dx, second[x]) < 0.05);
    CHECK(distance(dw, second[w]) < 0.05);
  }
  CHECK_SAYS(penalty(SwitchBackMode::memory_efficient), "has no gradient");
}

TEST_CASE("dtypes of x, weight and bias may differ; each gradient has that of its tensor") {
  const Layer l = random_layer({5}, 12, 7);
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const SwitchBackMode mode : kModes) {
      CAPTURE(name_of(t));
      const Layer narrow{l.x.to(t), l.w, l.b, l.g.to(t)};
      const auto r = run(narrow, mode);
      CHECK(r[0].dtype() == t);
      CHECK(r[1].dtype() == t);
      CHECK(r[2].dtype() == DType::f32);
      CHECK(r[3].dtype() == DType::f32);
      const auto f32 = run(l, mode);
      for (size_t i = 0; i < 4; ++i) CHECK(distance(r[i], f32[i]) < 0.03);
    }
}

TEST_CASE("what int8 layers refuse") {
  const auto f = [](const Shape& s, DType t = DType::f32) { return filled(s, 0.5f).to(t); };
  const Quantized q{filled<int8_t>({2, 3}, 1), f({2})};
  expect_at_emit({
      REFUSES(switchback_linear(f({2, 3}, DType::f64), f({4, 3})), dtype, "[switchback_linear]", "f64"),
      REFUSES(switchback_linear(f({2, 3}), f({4, 5})), shape, "inner sizes differ", "(4, 5)"),
      REFUSES(switchback_linear(f({2, 3}), f({4, 3}), f({3})), shape, "bias", "(4)"),
      REFUSES(switchback_linear(f({2, 3}), f({3})), shape, "no matrix"),
      REFUSES(quantize_rowwise(f({2, 3}, DType::f64)), dtype, "[quantize_rowwise]", ".to(DType::f32)"),
      REFUSES(quantize_rowwise(f({})), shape, "[quantize_rowwise]", "1 dimension"),
      REFUSES(quantize_rowwise(f({2, 3}), DType::bf16), dtype, "bf16", "f32 or f16"),
      REFUSES(quantize_rows_and_columns(f({2, 3, 4})), shape, "matrix"),
      REFUSES(quantize_columnwise_transpose(f({3})), shape, "matrix"),
      REFUSES(int8_linear(f({2, 3}), q.values), dtype, "[int8_linear]", "i8"),
      REFUSES(int8_linear(q, {q.values, f({3})}), shape, "absmax", "one for all"),
      REFUSES(int8_linear(q, q, f({5})), shape, "bias"),
      REFUSES(int8_linear(q, q, {}, DType::f64), dtype, "f64"),
      REFUSES(dequantize(q, DType::i32), dtype, "i32"),
  });
  const Tensor long_row = expand(filled<int8_t>({1, 1}, 1), {1, 131072});
  expect(REFUSES(int8_linear(long_row, long_row), value, "131071", "32 bits"));
  CHECK(
      int8_linear(expand(filled<int8_t>({1, 1}, -128), {1, 131071}), expand(filled<int8_t>({1, 1}, -128), {1, 131071}))
          .item<int32_t>() == 131071 * 16384);
  for (const SwitchBackMode mode : kModes) {
    Layer l = random_layer({2}, 3, 4);
    l.g.mutable_data<float>()[5] = kNan;
    CHECK_SAYS(run(l, mode), "(1, 1)");
    l = random_layer({2}, 3, 4);
    l.w.mutable_data<float>()[4] = kNan;
    CHECK_SAYS(run(l, mode), "(1, 1)");
  }
}
