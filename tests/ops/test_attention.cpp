#include <tapegrad/core/plan/compile.h>
#include <tapegrad/ops/ops.h>

#include "support/files.h"
#include "support/refusals.h"
#include "support/self_attention.h"
#include "support/threads.h"

using namespace tg;
namespace {
Tensor i64(const std::vector<int64_t>& v) { return tensor<int64_t>(v, {int64_t(v.size())}); }
struct Inputs4 {
  Tensor q, k, v, dy;
  Inputs4(int64_t batch, int64_t heads, int64_t key_heads, int64_t tq, int64_t tk, int64_t hs, DType t)
      : q(random({batch, heads, tq, hs}, 1).to(t)),
        k(random({batch, key_heads, tk, hs}, 2).to(t)),
        v(random({batch, key_heads, tk, hs}, 3).to(t)),
        dy(random({batch, heads, tq, hs}, 4).to(t)) {}
};
constexpr Rng kMasks{5, 1};  // generator of dropout
std::vector<Tensor> run(Tensor q, Tensor k, Tensor v, const Tensor& dy, AttentionOptions o) {
  Rng rng = kMasks;
  o.rng = &rng;
  for (Tensor* t : {&q, &k, &v}) *t = t->detach().requires_grad_();
  const Tensor y = attention(q, k, v, o);
  const GradMap g = backward(y, dy);
  return {y.detach(), g[q], g[k], g[v]};
}
Tensor of_sequence(const Tensor& x, int64_t b) { return slice(x, 0, b, b + 1); }
// f64, with matrices of scores.
std::vector<Tensor> by_scores(Tensor q, Tensor k, Tensor v, const Tensor& dy, AttentionOptions o) {
  for (Tensor* t : {&q, &k, &v}) *t = t->to(DType::f64).detach().requires_grad_();
  const int64_t tq = q.size(2), tk = k.size(2), group = q.size(1) / k.size(1);
  std::vector<double> mask(size_t(tq * tk));
  for (int64_t i = 0; i < tq; ++i)
    for (int64_t j = 0; o.causal && j < tk; ++j) mask[size_t(i * tk + j)] = j <= i + tk - tq ? 0 : -INFINITY;
  const auto shared = [&](const Tensor& x) {  // sums within a group
    const Tensor each = reshape(x, {x.size(0), x.size(1), 1, tk, x.size(3)});
    const std::vector<Tensor> all(size_t(group), each);
    return reshape(concat(Inputs(all.data(), all.size()), 2), {x.size(0), q.size(1), tk, x.size(3)});
  };
  const Tensor scores = matmul(q, transpose(shared(k))) * o.scale + tensor<double>(mask, {tq, tk});
  Rng rng = kMasks;
  o.rng = &rng;
  const Tensor kept = detail::attention_kept(scores.shape(), o).to(DType::f64) / (1 - o.dropout);
  const Tensor y = matmul(softmax(scores) * kept, shared(v));
  const GradMap g = backward(y, dy.to(DType::f64));
  return {y.detach(), g[q], g[k], g[v]};
}
}  // namespace

TEST_CASE("attention: values and gradients of the matrices of scores, around vectors, panels and blocks") {
  struct Sizes {
    int64_t heads, key_heads, tq, tk, hs;
  };
  // Register tiles, panels and blocks have 6, 8, 12, 16, 32, 64 and 128 rows; vectors 2 to 16 elements.
  const std::vector<Sizes> sizes{{2, 2, 64, 64, 32},  {2, 1, 16, 16, 16},  {4, 2, 33, 33, 20},   {2, 2, 130, 130, 64},
                                 {2, 1, 65, 257, 80}, {2, 2, 5, 150, 7},   {1, 1, 300, 300, 33}, {2, 2, 70, 70, 129},
                                 {1, 1, 12, 40, 400}, {2, 1, 40, 600, 16}, {1, 1, 520, 520, 33}, {1, 1, 1, 600, 20},
                                 {2, 2, 1, 33, 40},   {4, 2, 4, 150, 65},  {2, 2, 3, 3, 1}};
  for (const Sizes z : in_turns(sizes, 5))
    for (const DType t : {DType::f64, DType::f32, DType::bf16})
      for (const AttentionOptions& o :
           {AttentionOptions{.causal = true, .scale = 0.3}, AttentionOptions{.causal = true, .scale = -0.4},
            AttentionOptions{.scale = 0.2}, AttentionOptions{.causal = true, .scale = 0.3, .dropout = 0.25},
            AttentionOptions{.scale = -0.2, .dropout = 0.5}}) {
        INFO(name_of(t), ", ", z.tq, " queries, ", z.tk, " keys, HS ", z.hs, ", causal ", o.causal, ", scale ", o.scale,
             ", dropout ", o.dropout);
        const Inputs4 in(2, z.heads, z.key_heads, z.tq, z.tk, z.hs, t);
        const auto got = run(in.q, in.k, in.v, in.dy, o), want = by_scores(in.q, in.k, in.v, in.dy, o);
        const double most = t == DType::f64 ? 1e-14 : t == DType::f32 ? 3e-6 : 1e-2;
        check_near(got, want, most);
        if (z.tq > 70) continue;
        for (const Store how : kStores)
          check_same_bits(run(stored(in.q, how), stored(in.k, how), stored(in.v, how), stored(in.dy, how), o), got);
      }
}
TEST_CASE("attention: heads whose keys are cut have the same bits with one thread and with all, and run after run") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t tq : in_turns<int64_t>({1, 4, 300, 1100})) {
      CAPTURE(tq);
      const Inputs4 in(1, tq == 1 ? 1 : 2, 1, tq, 1100, 24, t);
      for (const double dropout : {0.0, 0.3}) {
        const auto forward_and_back = [&] {
          return run(in.q, in.k, in.v, in.dy, {.causal = true, .dropout = dropout});
        };
        const auto want = on_one_thread(forward_and_back);
        for (int round = 0; round < 3; ++round) check_same_bits(forward_and_back(), want);
      }
    }
}
TEST_CASE("attention: infinite scores and NaN stay in their rows") {
  for (const DType t : {DType::f32, DType::bf16, DType::f64}) {
    constexpr int64_t kText = 150, kRow = 40, kKey = 20;
    Inputs4 in(1, 1, 1, kText, kText, 8, t);
    in.q = abs(in.q) + full({1}, 0.5, t);
    const auto row = [](const Tensor& x, double value, int64_t at) {
      return where(reshape(arange(0, kText) == double(at), {kText, 1}), value, x);
    };
    const Tensor want = attention(in.q, in.k, in.v);
    const auto rest = [&](const Tensor& y, int64_t begin, int64_t end) { return slice(y, 2, begin, end); };
    const Tensor without = concat({slice(in.k, 2, 0, kKey), slice(in.k, 2, kKey + 1, kText)}, 2),
                 values_without = concat({slice(in.v, 2, 0, kKey), slice(in.v, 2, kKey + 1, kText)}, 2);
    CHECK(distance(attention(in.q, row(in.k, -INFINITY, kKey), in.v), attention(in.q, without, values_without)) <=
          (t == DType::bf16 ? 1e-2 : 1e-6));
    for (const double odd : {double(NAN), double(INFINITY)}) {
      const Tensor y = attention(row(in.q, odd, kRow), in.k, in.v);
      for (const double e : values<double>(rest(y, kRow, kRow + 1).to(DType::f64))) CHECK(std::isnan(e));
      CHECK(bits_of(rest(y, 0, kRow)) == bits_of(rest(want, 0, kRow)));
      CHECK(bits_of(rest(y, kRow + 1, kText)) == bits_of(rest(want, kRow + 1, kText)));
    }
  }
}

TEST_CASE("self_attention and rope of heads: the bits of attention and rope of the parts") {
  for (const DType t : {DType::f32, DType::bf16, DType::f64})
    for (const int64_t length : {1, 5, 70, 130}) {
      check_self_attention(Device::cpu(), t, length, 2, 2, 6);
      check_self_attention(Device::cpu(), t, length, 6, 2, 16);
    }
}
TEST_CASE("self_attention: what does not fit is an Error") {
  const auto x = [](const Shape& s, DType t = DType::f32) { return zeros(s, t); };
  expect_at_emit({
      REFUSES(self_attention(x({2, 3, 4}), 1), shape, "[self_attention] got (2, 3, 4) f32.", "reshape()"),
      REFUSES(self_attention(x({2, 3, 3, 4}), 0), shape, "and kv_heads is 0"),
      REFUSES(self_attention(x({2, 3, 2, 4}), 1), shape, "kv_heads is 1: 0 heads of queries"),
      REFUSES(self_attention(x({2, 3, 7, 4}), 2), shape, "kv_heads is 2: 3 heads of queries"),
      REFUSES(self_attention(x({2, 0, 3, 4}), 1), shape, "there are no keys"),
      REFUSES(self_attention(x({2, 3, 3, 4}, DType::i64), 1), dtype, "cannot compute on (2, 3, 3, 4) i64"),
      REFUSES(self_attention(x({2, 3, 3, 4}), 1, {.kv_lengths = i64({3})}), shape,
              "[self_attention] lengths is (1) i64", "It must be (2)"),
      REFUSES(self_attention(x({2, 3, 3, 4}), 1, {.query_starts = i64({0, 0})}), value,
              "[self_attention] starts were given"),
      REFUSES(self_attention(x({2, 3, 3, 4}), 1, {.scale = INFINITY}), value, "scale is inf"),
      REFUSES(rope(x({2, 3, 4}), {.heads = 4}), value, "[rope] heads is 4, and x is (2, 3, 4) f32."),
      REFUSES(rope(x({2, 3, 4}), {.heads = -1}), value, "[rope] heads is -1"),
      REFUSES(rope(x({3, 4}), {.heads = 1}), shape, "[rope] needs 3 dimension(s) or more"),
  });
  expect(REFUSES(values(self_attention(x({2, 3, 3, 4}), 1, {.kv_lengths = i64({3, 4})})), value,
                 "[self_attention] lengths of sequence 1 is 4, and there are 3 keys"));
}
TEST_CASE("attention: keys beyond a length are as if they were not there, bit for bit") {
  // Blocks have 64 queries, 128 keys.
  for (const DType t : {DType::f32, DType::bf16, DType::f64})
    for (const auto& [tq, tk] : {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {65, 130}, {70, 300}}) {
      const Inputs4 in(3, 4, 2, tq, tk, 9, t);
      const std::vector<int64_t> lengths{tk, (tk + 1) / 2, 1};
      CAPTURE_ALL(name_of(t), tk);
      const auto all = run(in.q, in.k, in.v, in.dy, {.kv_lengths = i64(lengths)});
      for (int64_t b = 0; b < 3; ++b) {
        CAPTURE(b);
        const int64_t n = lengths[size_t(b)];
        const auto cut = [&](const Tensor& x) { return slice(of_sequence(x, b), 2, 0, n); };
        const auto one = run(of_sequence(in.q, b), cut(in.k), cut(in.v), of_sequence(in.dy, b), {});
        for (size_t k = 0; k < 4; ++k) {
          CHECK(bits_of(k < 2 ? of_sequence(all[k], b) : cut(all[k])) == bits_of(one[k]));
          if (k >= 2)
            for (const double g : values<double>(slice(of_sequence(all[k], b), 2, n, tk).to(DType::f64))) CHECK(g == 0);
        }
      }
    }
}
TEST_CASE("attention: one query alone gives what it gives among many") {
  // Around the lanes of the kernel for one query.
  for (const DType t : {DType::f32, DType::bf16, DType::f64})
    for (const int64_t hs : in_turns<int64_t>({1, 15, 16, 40, 64, 90, 150}, 3))
      for (const int64_t tk : {1, 4, 129, 300}) {
        const Inputs4 in(2, 4, 2, tk, tk, hs, t);
        CAPTURE_ALL(name_of(t), hs, tk);
        const Tensor want = slice(attention(in.q, in.k, in.v, {.causal = true}), 2, tk - 1, tk),
                     q = slice(in.q, 2, tk - 1, tk);
        const double most = t == DType::f64 ? 1e-13 : t == DType::f32 ? 2e-6 : 1e-2;
        CHECK(distance(attention(q, in.k, in.v), want) <= most);
        const auto transposed = [](const Tensor& x) { return transpose(transpose(x).contiguous()); };
        CHECK(distance(attention(q, transposed(in.k), in.v), want) <= most);
        CHECK(distance(attention(q, in.k, transposed(in.v)), want) <= most);
        const Tensor none = attention(q, in.k, in.v, {.causal = true, .kv_lengths = i64({0, tk})});
        CHECK(distance(of_sequence(none, 0), zeros(of_sequence(none, 0).shape(), t)) == 0);
        CHECK(distance(of_sequence(none, 1), of_sequence(want, 1)) <= most);
      }
}
TEST_CASE("attention: queries from a start on give the rows of the whole sequence") {
  for (const DType t : {DType::f32, DType::bf16, DType::f64}) {
    constexpr int64_t kText = 150, kCapacity = 170, kQueries = 3;
    const Inputs4 in(3, 4, 2, kText, kText, 8, t);
    const std::vector<int64_t> starts{0, 70, kText - kQueries};
    const Tensor whole = attention(in.q, in.k, in.v, {.causal = true});
    Tensors q, garbage;
    for (int64_t b = 0; b < 3; ++b)
      q.emplace_back(slice(of_sequence(in.q, b), 2, starts[size_t(b)], starts[size_t(b)] + kQueries));
    // NaN follows the text, as unwritten memory may.
    const Tensor beyond = full({3, 2, kCapacity - kText, 8}, std::nan(""), t);
    const Tensor k = concat({in.k, beyond}, 2), v = concat({in.v, beyond}, 2);
    const auto queries = concat(Inputs(q.data(), q.size()), 0);
    const Tensor y = attention(queries, k, v, {.causal = true, .query_starts = i64(starts)});
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t s = starts[size_t(b)];
      CHECK(distance(of_sequence(y, b), slice(of_sequence(whole, b), 2, s, s + kQueries)) <=
            (t == DType::bf16 ? 1e-2 : 1e-6));
    }
    check_same_bits(run(in.q, in.k, in.v, in.dy, {.causal = true, .query_starts = i64({0, 0, 0})}),
                    run(in.q, in.k, in.v, in.dy, {.causal = true}));
  }
}
TEST_CASE("attention: right padding changes no query of the text, causal or not") {
  const Inputs4 in(2, 2, 2, 7, 7, 4, DType::f64);
  const std::vector<int64_t> lengths{4, 7};
  for (const bool causal : {true, false}) {
    const auto cut = [](const Tensor& x) { return slice(slice(x, 0, 0, 1), 2, 0, 4); };
    const Tensor alone = attention(cut(in.q), cut(in.k), cut(in.v), {.causal = causal});
    const Tensor both = attention(in.q, in.k, in.v, {.causal = causal, .kv_lengths = i64(lengths)});
    CHECK(distance(cut(both), alone) <= 1e-14);
  }
}
TEST_CASE("attention: a sequence of length 0 gives 0, and gradients of 0 of every order") {
  for (const DType t : {DType::f32, DType::bf16, DType::f64})
    for (const bool causal : {true, false}) {
      Inputs4 in(2, 2, 1, 5, 6, 3, t);
      for (Tensor* x : {&in.q, &in.k, &in.v}) *x = x->detach().requires_grad_();
      const Tensor y = attention(in.q, in.k, in.v, {.causal = causal, .kv_lengths = i64({0, 4})});
      const GradMap g = backward(y, in.dy, {.create_graph = true});
      const Tensor loss = sum(g[in.q] * g[in.q]) + sum(g[in.k] * g[in.k]) + sum(g[in.v] * g[in.v]);
      const GradMap second = backward(loss);
      for (const Tensor& x : {y, g[in.q], g[in.k], g[in.v], second[in.q], second[in.k], second[in.v]}) {
        for (const double e : values<double>(of_sequence(x, 0).detach().to(DType::f64))) CHECK(e == 0);
        double most = 0;
        for (const double e : values<double>(of_sequence(x, 1).detach().to(DType::f64))) {
          CHECK(std::isfinite(e));
          most = std::max(most, std::abs(e));
        }
        CHECK(most > 0);
      }
    }
}
TEST_CASE("attention: lengths and starts of any layout, read when the op runs") {
  const Inputs4 in(3, 2, 2, 4, 6, 5, DType::f32);
  const Tensor both = tensor<int64_t>({6, 0, 3, 2, 1, 1}, {3, 2});  // lengths and starts, interleaved
  const AttentionOptions apart{.causal = true,
                               .kv_lengths = reshape(slice(both, 1, 0, 1), {3}),
                               .query_starts = reshape(slice(both, 1, 1, 2), {3})};
  CHECK(!apart.kv_lengths.is_contiguous());
  const Tensor want =
      attention(in.q, in.k, in.v, {.causal = true, .kv_lengths = i64({6, 3, 1}), .query_starts = i64({0, 2, 1})});
  CHECK(bits_of(attention(in.q, in.k, in.v, apart)) == bits_of(want));
  const Compiled f = compile([](Inputs x) {
    return std::vector{attention(x[0], x[1], x[2], {.causal = true, .kv_lengths = x[3], .query_starts = x[4]})};
  });
  for (const auto& [lengths, starts] : {std::pair(i64({6, 3, 1}), i64({0, 2, 1})), {i64({0, 5, 2}), i64({6, 0, 1})}}) {
    const Tensor eager = attention(in.q, in.k, in.v, {.causal = true, .kv_lengths = lengths, .query_starts = starts});
    CHECK(bits_of(f({in.q, in.k, in.v, lengths, starts})[0]) == bits_of(eager));
    LazyScope lazy;
    CHECK(bits_of(attention(in.q, in.k, in.v, {.causal = true, .kv_lengths = lengths, .query_starts = starts})) ==
          bits_of(eager));
  }
  CHECK(f.stats().replays == 1);
}
TEST_CASE("attention: what it refuses of lengths and starts") {
  const Tensor q = random({2, 1, 3, 4}, 1), kv = random({2, 1, 5, 4}, 2);
  expect_at_emit({
      REFUSES(attention(q, kv, kv, {.kv_lengths = i64({1})}), shape, "[attention] lengths is (1) i64", "(2)"),
      REFUSES(attention(q, kv, kv, {.causal = true, .query_starts = i64({1, 2, 3})}), shape,
              "[attention] starts is (3) i64"),
      REFUSES(attention(q, kv, kv, {.kv_lengths = random({2}, 1)}), dtype, "[attention] indices must be"),
      REFUSES(attention(q, kv, kv, {.query_starts = i64({1, 2})}), value,
              "[attention] starts were given, and the mask is not causal."),
  });
  const auto says = [&](const AttentionOptions& o) { return error_of([&] { values(attention(q, kv, kv, o)); }); };
  for (const bool lazy : {false, true}) {
    const Mode mode(lazy);
    CHECK_HAS(says({.kv_lengths = i64({5, 6})}), "[attention] lengths of sequence 1 is 6, and there are 5 keys.");
    CHECK_HAS(says({.kv_lengths = i64({-1, 5})}), "[attention] lengths of sequence 0 is -1");
    CHECK_HAS(says({.causal = true, .query_starts = i64({0, 7}).to(DType::i32)}),
              "[attention] starts of sequence 1 is 7");
  }
}
