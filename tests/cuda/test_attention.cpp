// Head sizes, lengths around block widths, memory.

#include "support/case_run.h"
#include "support/on_cuda.h"
#include "support/self_attention.h"

using namespace tg;
namespace {
struct Form {
  int64_t tq, tk, hs, heads = 1, key_heads = 1, batch = 1;
  bool causal = true;
  std::vector<int64_t> lengths = {}, starts = {};
  double dropout = 0;
};
OpCase case_of(const Form& f, double scale = 0) {
  OpCase c;
  c.op = "attention";
  c.variant = fmt::format("tq {}, tk {}, hs {}, heads {}/{}, causal {}, lengths {}, starts {}, dropout {}", f.tq, f.tk,
                          f.hs, f.heads, f.key_heads, f.causal, Dims(f.lengths.begin(), f.lengths.end()),
                          Dims(f.starts.begin(), f.starts.end()), f.dropout);
  const Shape keys{f.batch, f.key_heads, f.tk, f.hs};
  c.in = {{Shape{f.batch, f.heads, f.tq, f.hs}}, {keys}, {keys}};
  c.fn = [f, scale](Inputs x) {
    const auto given = [&](const std::vector<int64_t>& v) {
      return v.empty() ? Tensor() : tensor<int64_t>(v, {f.batch}).to(x[0].device());
    };
    Rng rng{7, 5};
    return Tensors{attention(x[0], x[1], x[2], {f.causal, scale, given(f.lengths), given(f.starts), f.dropout, &rng})};
  };
  return c;
}
Result run(const OpCase& c, std::vector<Tensor> x) {
  for (Tensor& t : x) t = t.detach().requires_grad_();
  Result r{c.fn(x), {}};
  const Tensor& y = r.out[0];
  const GradMap g = backward(y, random(y.shape(), 9).to(y.dtype()).to(y.device()));
  for (Tensor& t : x) r.grads.push_back(g[t]);
  return r;
}
void check_form(const Form& f, DType t) {
  const OpCase c = case_of(f);
  CAPTURE(name_of(t));
  const auto x = make_inputs(c, t);
  check_close(c, run(c, on_cuda(x)), run(c, x), tolerance(t));
}
void check_lengths(DType t) {
  for (int64_t n : {1, 2, 15, 16, 33, 63, 64, 65, 129}) {
    check_form({.tq = n, .tk = std::max<int64_t>(n, 3), .hs = 32}, t);  // gradients may cancel with two keys
    check_form({.tq = n, .tk = 17, .hs = 32, .causal = false}, t);
    check_form({.tq = 2, .tk = n + 1, .hs = 64, .causal = false}, t);
  }
}
}  // namespace

TEST_CASE("self_attention and rope of heads on the device: the bits of attention and rope of the parts") {
  check_self_attention(Device::cuda(), DType::f64, 5, 4, 2, 6);
  for (const DType t : {DType::f32, DType::bf16}) {
    check_self_attention(Device::cuda(), t, 1, 2, 2, 6);
    check_self_attention(Device::cuda(), t, 5, 2, 1, 64);
  }
}
TEST_CASE("attention: every compiled head size, and others") {
  for (int64_t hs : {32, 64, 80, 96, 128, 1, 2, 5, 15, 33, 40, 72, 160})
    for (DType t : {DType::f32, DType::bf16}) check_form({.tq = 17, .tk = 19, .hs = hs}, t);
  for (int64_t hs : {5, 80, 130}) check_form({.tq = 17, .tk = 19, .hs = hs}, DType::f64);
  check_form({.tq = 3, .tk = 3, .hs = 256}, DType::f32);
  check_form({.tq = 3, .tk = 3, .hs = 256}, DType::bf16);
  check_form({.tq = 3, .tk = 3, .hs = 257}, DType::bf16);
  for (DType t : {DType::f32, DType::bf16, DType::f64}) {
    check_form({.tq = 17, .tk = 19, .hs = t == DType::f64 ? 256 : 512}, t);
    check_form({.tq = 20, .tk = 37, .hs = 160, .heads = 2, .batch = 2, .causal = false, .lengths = {37, 5}}, t);
  }
}
TEST_CASE("attention: lengths around the widths of blocks") {
  check_lengths(DType::f32);
  check_form({.tq = 33, .tk = 65, .hs = 8}, DType::f64);
}
TEST_CASE("attention: lengths around the widths of blocks, on tensor cores") {
  check_lengths(DType::bf16);
  check_form({.tq = 65, .tk = 129, .hs = 64}, DType::bf16);
  check_form({.tq = 130, .tk = 131, .hs = 128}, DType::bf16);
}
TEST_CASE("attention: dropout on the device has the masks of the CPU, at every head size and kind of tile") {
  const auto mask = [](Device d, AttentionOptions o) {
    Rng rng{3, uint64_t(1) << 32};
    o.dropout = 0.4, o.rng = &rng;
    return detail::attention_kept({2, 3, 70, 131}, o, d).contiguous().to_vector<uint8_t>();
  };
  for (const bool causal : {false, true})
    CHECK(mask(Device::cuda(), {.causal = causal}) == mask(Device::cpu(), {.causal = causal}));
  for (const DType t : {DType::f32, DType::bf16, DType::f64})
    for (const int64_t hs : {32, 64, 80, 96, 128, 160, 256, 512})
      if (t != DType::f64 || hs <= 256) check_form({.tq = 37, .tk = 41, .hs = hs, .heads = 2, .dropout = 0.3}, t);
  for (const DType t : {DType::f32, DType::bf16}) {
    check_form({.tq = 130, .tk = 150, .hs = 32, .heads = 4, .key_heads = 2, .dropout = 0.5}, t);
    check_form({.tq = 20, .tk = 70, .hs = 64, .batch = 3, .lengths = {70, 0, 33}, .starts = {3, 50, 9}, .dropout = 0.2},
               t);
    check_form({.tq = 1, .tk = 130, .hs = 40, .heads = 2, .causal = false, .dropout = 0.2}, t);
  }
}
TEST_CASE("attention: keys without a query have gradients of 0") {
  for (DType t : {DType::f64, DType::f32, DType::bf16}) check_form({.tq = 0, .tk = 70, .hs = 32, .heads = 2}, t);
}
TEST_CASE("attention: lengths of padded sequences, starts in a cache, and sequences without keys") {
  for (const DType t : {DType::f32, DType::bf16, DType::f64})
    for (const bool causal : {false, true}) {
      check_form({.tq = 19, .tk = 70, .hs = 32, .heads = 2, .batch = 4, .causal = causal, .lengths = {70, 0, 33, 1}},
                 t);
      check_form({.tq = 66, .tk = 66, .hs = 40, .batch = 2, .causal = causal, .lengths = {65, 17}}, t);
      if (!causal) continue;
      check_form({.tq = 1, .tk = 130, .hs = 64, .heads = 4, .key_heads = 2, .batch = 3, .starts = {0, 64, 129}}, t);
      check_form({.tq = 70, .tk = 67, .hs = 16, .batch = 2, .lengths = {67, 5}, .starts = {3, 67}}, t);
    }
}
TEST_CASE("attention: padding is not read, whatever stands there") {
  for (const DType t : {DType::f32, DType::bf16}) {
    const Tensor q = random({2, 1, 5, 32}, 1).to(t), k = random({2, 1, 40, 32}, 2).to(t);
    const Tensor keys = concat({k, full({2, 1, 30, 32}, std::nan(""), t)}, 2);
    const Tensor lengths = tensor<int64_t>({40, 40}, {2});
    const auto there = [](const Tensor& x) { return x.to(Device::cuda()); };
    for (const bool starts : {false, true}) {
      AttentionOptions o{.causal = starts};
      (starts ? o.query_starts : o.kv_lengths) = there(starts ? lengths - 5.0 : lengths);
      const Tensor y = attention(there(q), there(keys), there(keys), o);
      CHECK(distance(y, attention(q, k, k, {.causal = starts})) <= tolerance(t));
    }
  }
}
TEST_CASE("attention: a length or start outside of the keys is an Error at the next read") {
  const Tensor x = random({2, 1, 4, 8}, 1).to(Device::cuda());
  const auto n = [](int64_t a, int64_t b) { return tensor<int64_t>({a, b}, {2}).to(Device::cuda()); };
  for (int again = 0; again < 2; ++again) {
    CHECK_SAYS(values(attention(x, x, x, {.causal = true, .kv_lengths = n(4, 5)})),
               "[attention] lengths of sequence 1 is 5, and there are 4 keys.");
    CHECK_SAYS(values(attention(x, x, x, {.causal = true, .query_starts = n(-1, 0).to(DType::i32)})),
               "[attention] starts of sequence 0 is -1");
    CHECK(error_of([&] { values(attention(x, x, x, {.causal = true, .query_starts = n(4, 0)})); }) == "no error");
  }
}
TEST_CASE("attention: query heads that share a key head, and a scale below 0") {
  for (DType t : {DType::f32, DType::bf16}) {
    check_form({.tq = 20, .tk = 37, .hs = 16, .heads = 6, .key_heads = 2, .batch = 2}, t);
    check_form({.tq = 20, .tk = 37, .hs = 32, .heads = 3, .key_heads = 1, .causal = false}, t);
    const OpCase c = case_of({.tq = 20, .tk = 24, .hs = 32}, -0.7);
    const auto x = make_inputs(c, t);
    check_close(c, run(c, on_cuda(x)), run(c, x), tolerance(t));
  }
}
TEST_CASE("attention: heads of a packed projection are read where they lie, and a second run gives the same bits") {
  for (int64_t hs : {32, 36, 9})
    for (DType t : {DType::f32, DType::bf16}) {
      CAPTURE_ALL(hs, name_of(t));
      const OpCase c = case_of({.tq = 18, .tk = 18, .hs = hs, .heads = 2, .key_heads = 2, .batch = 2});
      const Tensor packed = random({2, 18, 3 * 2 * hs}, 1).to(t);
      const auto split = [&](const Tensor& all) {
        std::vector<Tensor> part;
        for (int64_t i = 0; i < 3; ++i)
          part.push_back(transpose(reshape(slice(all, 2, i * 2 * hs, (i + 1) * 2 * hs), {2, 18, 2, hs}), 1, 2));
        return part;
      };
      const auto on_device = split(packed.to(Device::cuda()));
      CHECK(!on_device[0].layout().is_contiguous());
      const Result first = run(c, on_device);
      check_close(c, first, run(c, split(packed)), tolerance(t));
      check_equal(c, run(c, on_device), first);
    }
}
TEST_CASE("attention: extreme scores stay finite, and NaN comes through") {
  for (DType t : {DType::f32, DType::bf16}) {
    const Tensor q = (random({1, 1, 66, 32}, 1, -1, 1) * 100.0).to(t), k = random({1, 1, 70, 32}, 2, -1, 1).to(t);
    const auto far = [&](const Tensor& x, const Tensor& y) { return attention(x, y, y, {.causal = true, .scale = 3}); };
    const Tensor expected = far(q, k), y = far(q.to(Device::cuda()), k.to(Device::cuda()));
    CHECK(distance(y, expected) <= (t == DType::f32 ? 1e-4 : 2e-2));  // scores near 1e4: 1e-3 apart in f32
    auto with_nan = values<double>(q);
    with_nan[65 * 32 + 3] = std::nan("");
    const Tensor bad = tensor<double>(with_nan, q.shape()).to(t);
    const auto r = values<double>(far(bad.to(Device::cuda()), k.to(Device::cuda())));
    for (size_t i = 0; i < r.size(); ++i) CHECK(std::isnan(r[i]) == (i / 32 == 65));
  }
}
TEST_CASE("attention: memory on the device grows with T, not T^2") {
  constexpr int64_t kT = 192, kHs = 8, kHeads = 2;  // 144 KiB of scores per head
  for (DType t : {DType::f32, DType::bf16}) {
    CAPTURE(name_of(t));
    const auto leaf = [&](uint64_t seed) {
      return random({1, kHeads, kT, kHs}, seed).to(t).to(Device::cuda()).detach().requires_grad_();
    };
    const Tensor q = leaf(1), k = leaf(2), v = leaf(3), dy = leaf(4).detach();
    const int64_t before = memory_stats(Device::cuda()).live, one = int64_t(dy.layout().bytes());
    reset_peak(Device::cuda());
    const GradMap g = backward(attention(q, k, v, {.causal = true}), dy);
    CHECK(g.size() == 3);
    const int64_t rows = kHeads * kT * 4;  // lse and delta
    CHECK(memory_stats(Device::cuda()).peak - before <= 4 * one + 2 * rows + 4096);
  }
}
TEST_CASE("attention: a head larger than the kernels take is an Error") {
  for (const auto& [t, most] : {std::pair(DType::f32, 512), std::pair(DType::bf16, 512), std::pair(DType::f64, 256)}) {
    const Tensor x = filled({1, 1, 2, most + 1}, 1.0f).to(t).to(Device::cuda());
    CHECK_SAYS((void)values(attention(x, x, x)), "[attention] q has the shape",
               fmt::format("a head size of {}. Device::cuda() takes up to {} of {}.", most + 1, most, name_of(t)));
  }
}
