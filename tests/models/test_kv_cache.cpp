// KvCache of fixed capacity against the growing one; padding without causal masks.
#include <tapegrad/tapegrad.h>

#include <array>

#include "support/files.h"
#include "support/tiny_gpt.h"

using namespace tg;

namespace {
GptConfig config(bool rope) {
  GptConfig c{.vocab_size = 13, .context = 12, .layers = 2, .heads = 4, .kv_heads = 2, .width = 16, .init_std = 0.3};
  if (rope) c.positions = Positions::rope;
  return c;
}
Tensor ids(const std::vector<int64_t>& v, const Shape& s) { return tensor<int64_t>(v, s); }
const std::vector<int64_t> kText{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
Tensor text(int64_t begin, int64_t end) { return ids({kText.begin() + begin, kText.begin() + end}, {1, end - begin}); }
std::vector<int64_t> lengths_of(const KvCache& c) { return c.lengths().to_vector<int64_t>(); }
}  // namespace

TEST_CASE("fixed cache: the logits of the growing cache") {
  for (const bool rope : {false, true})
    for (const auto compute : {std::optional<DType>(), std::optional(DType::bf16)})
      for (const bool lazy : {false, true}) {
        const auto [params, model] = new_gpt(config(rope), Params(Device(), 9));
        NoGradScope off;
        const Mode mode(lazy);
        KvCache grows, fixed = model.make_cache(1, 0, compute);
        CHECK(fixed.has_capacity());
        CHECK(fixed.capacity() == 12);
        for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5}, {5, 6}, {6, 7}, {7, 11}, {11, 12}}) {
          const Tensor a = model.forward(text(begin, end), {.cache = &grows, .compute = compute});
          const Tensor b = model.forward(text(begin, end), {.cache = &fixed, .compute = compute});
          CHECK(distance(b, a) <= (compute ? 2e-2 : 1e-5));
          CHECK(fixed.length() == end);
        }
        fixed.clear();
        CHECK(fixed.length() == 0);
        const Tensor again = model.forward(text(0, 3), {.cache = &fixed, .compute = compute});
        CHECK(distance(again, model.forward(text(0, 3), {.compute = compute})) <= (compute ? 2e-2 : 1e-5));
      }
}

TEST_CASE("fixed cache: a compiled forward gives the bits of the eager one, and counts on") {
  for (const bool rope : {false, true}) {
    const auto [params, model] = new_gpt(config(rope), Params(Device(), 9));
    NoGradScope off;
    KvCache eager = model.make_cache(2), cache = model.make_cache(2);
    const Compiled f = compile([&](Inputs in) { return std::vector{model.forward(in[0], {.cache = &cache})}; });
    const auto next = [&](int64_t i, int64_t n) {
      std::vector<int64_t> v;
      for (int64_t k = 0; k < 2 * n; ++k) v.push_back((i * 7 + k * 5) % 13);
      return ids(v, {2, n});
    };
    for (const auto& steps : {std::vector<int64_t>{1, 1, 1, 1, 1, 1}, {3, 1, 3, 1}}) {
      for (size_t i = 0; i < steps.size(); ++i) {
        const Tensor tokens = next(int64_t(i), steps[i]);
        CHECK(bits_of(f({tokens})[0]) == bits_of(model.forward(tokens, {.cache = &eager})));
        CHECK(lengths_of(cache) == lengths_of(eager));
      }
      for (KvCache* c : {&eager, &cache}) c->set_lengths(ids({4, 1}, {2}));
    }
    CHECK(f.stats().traces == 2);
    CHECK(f.stats().replays == 8);
    CHECK(lengths_of(cache) == std::vector<int64_t>{4, 1});
  }
}

TEST_CASE(
    "fixed cache: padded prompts of unequal lengths give what each gives alone, and so do the tokens after them") {
  for (const bool rope : {false, true}) {
    const auto [params, model] = new_gpt(config(rope), Params(Device(), 3));
    NoGradScope off;
    const std::array<std::vector<int64_t>, 3> prompts{std::vector<int64_t>{5, 1}, {7, 2, 8, 0, 4}, {6, 6, 1}};
    const std::vector<int64_t> after{9, 3, 12, 2};  // tokens that follow each
    KvCache cache = model.make_cache(3);
    const Tensor padded = ids({5, 1, 0, 0, 0, 7, 2, 8, 0, 4, 6, 6, 1, 12, 11}, {3, 5}), n = ids({2, 5, 3}, {3});
    std::vector<Tensor> got{model.forward(padded, {.cache = &cache, .last_only = true, .lengths = n})};
    CHECK(got[0].shape() == Shape{3, 1, 13});
    CHECK(lengths_of(cache) == std::vector<int64_t>{2, 5, 3});
    for (const int64_t t : after) {
      got.push_back(model.forward(ids({t, t, t}, {3, 1}), {.cache = &cache}));
    }
    for (int64_t b = 0; b < 3; ++b) {
      std::vector<int64_t> alone = prompts[size_t(b)];
      for (size_t i = 0; i < got.size(); ++i) {
        const Tensor want = model.forward(ids(alone, {1, int64_t(alone.size())}), {.last_only = true});
        CHECK(distance(slice(got[i], 0, b, b + 1), want) <= 1e-5);
        if (i < after.size()) alone.push_back(after[i]);
      }
    }
    // Without a cache: the logits of each sequence's last token.
    CHECK(distance(model.forward(padded, {.last_only = true, .lengths = n}), got[0]) <= 1e-5);
    // The sequence without a token must not move.
    model.forward(ids({1, 1, 1}, {3, 1}), {.cache = &cache, .lengths = ids({1, 0, 1}, {3})});
    CHECK(lengths_of(cache) == std::vector<int64_t>{7, 9, 8});
  }
}

TEST_CASE("fixed cache: what does not fit is an Error before anything changes, eager and compiled") {
  for (const bool rope : {false, true})
    for (const int64_t capacity : {6, 12}) {
      const auto [params, model] = new_gpt(config(rope), Params(Device(), 3));
      NoGradScope off;
      KvCache cache = model.make_cache(2, capacity), same = model.make_cache(2, capacity);
      const Compiled f = compile([&](Inputs in) { return std::vector{model.forward(in[0], {.cache = &cache})}; });
      const Tensor one = ids({1, 2}, {2, 1}), three = ids({1, 2, 3, 4, 5, 6}, {2, 3});
      for (int i = 0; i < 3; ++i) CHECK(bits_of(f({one})[0]) == bits_of(model.forward(one, {.cache = &same})));
      for (KvCache* c : {&cache, &same}) c->set_lengths(ids({3, capacity}, {2}));
      const std::string says =
          capacity < 12 || rope ? fmt::format("[slice_update] start {} at position 1: 1 slices from there on", capacity)
                                : "[embedding] id 12 at position (1, 0)";
      CHECK_SAYS(f({one}), says);
      CHECK_SAYS(model.forward(one, {.cache = &same}), says);
      CHECK_SAYS(model.forward(three, {.cache = &same}), "[");
      for (KvCache* c : {&cache, &same}) {
        CHECK(lengths_of(*c) == std::vector<int64_t>{3, capacity});
        c->set_lengths(ids({3, capacity - 1}, {2}));
      }
      CHECK(bits_of(f({one})[0]) == bits_of(model.forward(one, {.cache = &same})));
      CHECK(f.stats().traces == 1);
    }
}

TEST_CASE("fixed cache: what it refuses") {
  const auto [params, model] = new_gpt(config(false), Params(Device(), 3));
  KvCache cache = model.make_cache(2, 4), grows;
  const Tensor tokens = ids({1, 2}, {2, 1});
  CHECK_SAYS(model.forward(tokens, {.cache = &cache}), "[slice_update]");
  NoGradScope off;
  CHECK_SAYS(model.make_cache(2, 13), "a cache of 13 positions. It must be from 1 to 12");
  CHECK_SAYS(model.make_cache(0), "[kv_cache] batch is 0");
  CHECK_SAYS(grows.set_lengths(ids({1}, {1})), "[kv_cache] this cache grows");
  CHECK_SAYS(cache.set_lengths(ids({1}, {1})), "[assign]");
  CHECK_SAYS(cache.set_lengths(zeros({2})), "[kv_cache] (2) f32 are no positions");
  CHECK_SAYS(cache.advance(zeros({2})), "[kv_cache] (2) f32 are no positions");
  for (const int64_t wrong : {-1, 2}) {
    const ForwardOptions o{.cache = &cache, .lengths = ids({1, wrong}, {2})};
    CHECK_SAYS(model.forward(tokens, o), fmt::format("[gather] index {} at position (1)", wrong), "in gpt.lengths");
  }
  CHECK(lengths_of(cache) == std::vector<int64_t>{0, 0});
  CHECK_SAYS(model.forward(ids({1, 2, 3}, {3, 1}), {.cache = &cache}),
             "the cache was made for 2 sequences of up to 4 positions");
  CHECK_SAYS(model.forward(ids({1, 2, 3, 4, 5, 1, 2, 3, 4, 5}, {2, 5}), {.cache = &cache}),
             "the cache was made for 2 sequences of up to 4 positions");
  CHECK_SAYS(model.forward(tokens, {.cache = &grows, .lengths = ids({1, 1}, {2})}),
             "[gpt] lengths and a cache that grows");
  CHECK_SAYS(model.forward(tokens, {.lengths = ids({1}, {1})}), "[gpt] lengths are (1) i64");
  KvCache wide = KvCache::with_capacity({.layers = 2, .batch = 2, .kv_heads = 2, .capacity = 13, .head_size = 4});
  CHECK_SAYS(model.forward(tokens, {.cache = &wide}), "a capacity of 13 positions");
  KvCache other = KvCache::with_capacity({.layers = 2, .batch = 2, .kv_heads = 2, .capacity = 4, .head_size = 8});
  CHECK_SAYS(model.forward(tokens, {.cache = &other}), "[kv_cache] layer 0 holds keys (2, 2, 4, 8) f32");
  KvCache shallow = KvCache::with_capacity({.layers = 1, .batch = 2, .kv_heads = 2, .capacity = 4, .head_size = 4});
  CHECK_SAYS(model.forward(tokens, {.cache = &shallow}), "a cache that was made for 1 layers");
  CHECK(lengths_of(shallow) == std::vector<int64_t>{0, 0});
}

TEST_CASE("attention that is not causal: padded sequences give what each gives alone, and no gradient to padding") {
  for (const Positions positions : {Positions::learned, Positions::rope}) {
    const Params params(Device(), 4, DType::f64);
    const nn::SelfAttention attn(params.at("attn"), 12,
                                 {.heads = 3, .kv_heads = 1, .positions = positions, .bias = true});
    const std::vector<int64_t> lengths{5, 2, 0};
    const Tensor x = random<double>({3, 5, 12}, 1).requires_grad_();
    const Tensor y = attn.forward(x, {.lengths = ids(lengths, {3})});
    const GradMap g = backward(sum(slice(y, 1, 0, 2) * random<double>({3, 2, 12}, 2)));
    for (int64_t b = 0; b < 2; ++b) {
      const int64_t n = lengths[size_t(b)];
      const auto cut = [&](const Tensor& t) { return slice(slice(t, 0, b, b + 1), 1, 0, n).detach(); };
      CHECK(distance(cut(y), attn.forward(cut(x))) <= 1e-14);
    }
    // Rows 2 to 4 of sequence 1 are padding: masked as keys, absent from the loss as queries.
    for (const double d : values<double>(slice(slice(g[x], 0, 1, 2), 1, 2, 5))) CHECK(d == 0);
    for (const double d : values<double>(slice(slice(g[x], 0, 0, 1), 1, 2, 5))) CHECK(d != 0);
    // Row 0 sees what comes later, and a causal one does not.
    const Tensor first = slice(slice(x, 0, 0, 1), 1, 0, 1).detach(), whole = slice(x, 0, 0, 1).detach();
    CHECK(distance(slice(attn.forward(whole), 1, 0, 1), attn.forward(first)) > 1e-3);
    const nn::SelfAttention causal(params.at("causal"), 12, {.heads = 3, .positions = positions, .causal = true});
    CHECK(distance(slice(causal.forward(whole), 1, 0, 1), causal.forward(first)) <= 1e-12);
    KvCache cache;
    CHECK_SAYS(attn.forward(whole, {.cache = &cache}), "a cache with attention that is not causal");
    CHECK_SAYS(causal.forward(whole, {.cache = &cache, .lengths = ids({5}, {1})}),
               "a cache with lengths of padded sequences");
  }
}
