// Gpt in bf16, with recomputed activations, and at sizes that are counted, not allocated.
#include "support/files.h"
#include "support/gpt_oracle.h"

#include <tapegrad/core/node.h>
#include <tapegrad/tools.h>

#include <cmath>

using namespace tg;

namespace {
std::vector<Tensor> gradients(const Gpt& model, const Params& params, const Tensor& tokens, const Tensor& targets,
                              ForwardOptions options) {
  const GradMap g = backward(model.loss({tokens, targets}, options));
  std::vector<Tensor> r;
  for (auto& p : params.all()) r.push_back(g[p.tensor]);
  return r;
}
// Twelve layers: activations outweigh the rest.
GptConfig deep() {
  return {.vocab_size = 32, .context = 64, .layers = 12, .heads = 4, .width = 64, .positions = Positions::rope};
}
Tensor some_tokens(const Shape& s) {
  Rng rng{1};
  return rand(s, rng, 0, 31.99).to(DType::i64);
}
// Bytes that a forward pass leaves for backward, its logits included.
int64_t kept_bytes(const Gpt& model, const Tensor& tokens, ForwardOptions options) {
  const auto before = memory_stats().live;
  const Tensor logits = model.forward(tokens, options);
  return int64_t(memory_stats().live) - int64_t(before);
}
}  // namespace

TEST_CASE("bf16 over f32 parameters: near f32, gradients in f32") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    const Oracle o(name);
    const Params params;
    const Gpt model = o.model(params);
    const Tensor exact = model.forward(o.batch("tokens", 0));
    const Tensor mixed = model.forward(o.batch("tokens", 0), {.compute = DType::bf16});
    CHECK(mixed.dtype() == DType::f32);
    CHECK(row_distance(mixed, exact) <= bf16_bound(o.config));
    CHECK(row_distance(mixed, exact) > 1e-4);  // bf16 was used
    const auto all = [&](const char* which) {  // all batches as one
      const Tensor t = o.file.tensor(which);
      return reshape(t, {-1, t.size(2)});
    };
    const auto expected = gradients(model, params, all("tokens"), all("targets"), {});
    const auto got = gradients(model, params, all("tokens"), all("targets"), {.compute = DType::bf16});
    for (size_t i = 0; i < got.size(); ++i) {
      CAPTURE(params.all()[i].name);
      CHECK(got[i].dtype() == DType::f32);
      CHECK(norm_distance(got[i], expected[i]) <= bf16_bound(o.config));
    }
  }
}

TEST_CASE("bf16: each weight is cast once, and activations take less memory") {
  const auto [params, model] = new_gpt(deep(), Params(Device(), 3));
  const Tensor tokens = some_tokens({8, 64});
  const auto kernels = [&](ForwardOptions o) {
    const auto before = engine_stats().kernels;
    model.forward(tokens, o);
    return engine_stats().kernels - before;
  };
  // A block casts its four weights, the head its one; norms read and write bf16.
  CHECK(kernels({.compute = DType::bf16}) == kernels({}) + 12 * 4 + 1);
  const double ratio =
      double(kept_bytes(model, tokens, {.compute = DType::bf16})) / double(kept_bytes(model, tokens, {}));
  CHECK(ratio < 0.7);
  CHECK(ratio > 0.4);
}

TEST_CASE("rotary positions keep no more memory than learned ones") {
  GptConfig c = deep();
  const Gpt with = new_gpt(c, Params(Device(), 3)).model;
  c.positions = Positions::learned;
  const Gpt without = new_gpt(c, Params(Device(), 3)).model;
  const Tensor tokens = some_tokens({8, 64});
  CHECK(kept_bytes(with, tokens, {}) <= kept_bytes(without, tokens, {}));
}

TEST_CASE("bf16 with a cache: logits near those without it") {
  const Oracle o("gpt_gqa");
  const Params params;
  const Gpt model = o.model(params);
  NoGradScope off;
  const Tensor tokens = o.batch("tokens", 0), whole = model.forward(tokens);
  KvCache cache;
  for (int64_t at = 0; at < tokens.size(1); ++at) {
    const Tensor part = model.forward(slice(tokens, 1, at, at + 1), {.cache = &cache, .compute = DType::bf16});
    CHECK(row_distance(part, slice(whole, 1, at, at + 1)) <= 2e-2);
  }
}

TEST_CASE("forward: options that do not go together") {
  const GptConfig c{.vocab_size = 11, .context = 8, .layers = 1, .heads = 2, .width = 8};
  const Params f32, f64(Device(), 0, DType::f64), bf16(Device(), 0, DType::bf16);
  const Tensor tokens = tensor({1, 2}, {1, 2});
  const auto refused = [&](const Params& p, ForwardOptions o) {
    const Gpt model(p.shared(), c);
    return error_of([&] { model.forward(tokens, o); });
  };
  CHECK_HAS(refused(f32, {.compute = DType::f64}), "[gpt] compute is f64 and the parameters are f32. It must be bf16");
  CHECK_HAS(refused(f32, {.compute = DType::f16}), "[gpt] compute is f16 and the parameters are f32.");
  CHECK_HAS(refused(f64, {.compute = DType::f16}), "[gpt] compute is f16 and the parameters are f64.");
  CHECK_HAS(refused(bf16, {.compute = DType::f32}), "[gpt] compute is f32 and the parameters are bf16.");
  KvCache cache;
  CHECK_HAS(refused(f32, {.cache = &cache, .recompute = true}), "[gpt] recompute and a cache at once.");
}

TEST_CASE("f64 parameters: in f64 by default, and in f32 or bf16 by name, with gradients in f64") {
  const Oracle o("gpt_nano");
  const Params params(Device(), 0, DType::f64);
  const Gpt model = o.model(params);
  const Tensor tokens = o.batch("tokens", 0), targets = o.batch("targets", 0);
  const auto run = [&](const ForwardOptions& how, DType logits_dtype) {
    const Tensor logits = model.forward(tokens, how);
    CHECK(logits.dtype() == logits_dtype);
    const GradMap grads = backward(cross_entropy(logits, targets));
    for (const Parameter& p : params.all()) CHECK(grads[p.tensor].dtype() == DType::f64);
    return logits.detach().to(DType::f64);
  };
  const Tensor exact = run({}, DType::f64);
  CHECK(bits_of(run({.compute = DType::f64}, DType::f64)) == bits_of(exact));
  const double narrow = row_distance(run({.compute = DType::f32}, DType::f32), exact);
  CHECK(narrow > 1e-9);
  CHECK(narrow <= 1e-5);
  CHECK(row_distance(run({.compute = DType::bf16}, DType::f32), exact) <= 2e-2);
  Rng dropout;
  const auto loss = detail::training_loss(model, {}, {tokens, targets}, dropout).item<double>();
  CHECK(loss == cross_entropy(exact, targets).item<double>());
}

// Calls f(run, dropout) for each combination; run(rng, recompute) gives the gradients of one batch.
template <class F> void for_each_setting(F f) {
  for (const std::string& name : kOracles)
    for (const DType compute : {DType::f32, DType::bf16})
      for (const double dropout : {0.0, 0.2}) {
        CAPTURE_ALL(name, name_of(compute), dropout);
        Oracle o(name);
        o.config.dropout = dropout;
        const Params params;
        const Gpt model = o.model(params);
        const auto run = [&](Rng& rng, bool recompute = false) {
          return gradients(model, params, o.batch("tokens", 0), o.batch("targets", 0),
                           {.rng = &rng, .compute = compute, .recompute = recompute});
        };
        f(run, dropout);
      }
}

TEST_CASE("recomputed activations: the same gradients bit for bit") {
  for_each_setting([](const auto& run, double dropout) {
    Rng kept{5}, again{5};
    check_same_bits(run(kept), run(again, true));
    CHECK(kept == again);
    CHECK((kept.offset > 0) == (dropout > 0));
  });
}

TEST_CASE("recomputed activations: at most 30 % of the memory") {
  const auto [params, model] = new_gpt(deep(), Params(Device(), 3));
  const Tensor tokens = some_tokens({8, 64});
  for (const DType compute : {DType::f32, DType::bf16}) {
    CAPTURE(name_of(compute));
    const double kept = double(kept_bytes(model, tokens, {.compute = compute}));
    const double again = double(kept_bytes(model, tokens, {.compute = compute, .recompute = true}));
    CHECK(again <= 0.3 * kept);
    CHECK(again >= 12.0 * 8 * 64 * 64 * 4);  // the input of each block
  }
}

TEST_CASE("recomputed cheap ops: the same gradients bit for bit, eager and lazy") {
  for_each_setting([](const auto& run, double) {
    Rng kept{5}, again{5}, later{5};
    const auto want = run(kept);
    const RecomputeScope scope;
    check_same_bits(run(again), want);
    const LazyScope lazy;
    check_same_bits(run(later), want);
    CHECK(kept == again);
    CHECK(kept == later);
  });
}

TEST_CASE("recomputed cheap ops: two thirds of the memory, for the kernels that make the rest again") {
  GptConfig gpt2 = deep(), modern = deep();
  gpt2.positions = Positions::learned, gpt2.bias = true, gpt2.dropout = 0.1;
  modern.norm = NormKind::rms_norm, modern.activation = Activation::swiglu, modern.kv_heads = 1;
  const Tensor tokens = some_tokens({8, 64}), targets = some_tokens({8, 64});
  for (const GptConfig& config : {gpt2, modern})
    for (const DType compute : {DType::f32, DType::bf16}) {
      CAPTURE_ALL(name_of(config.norm), name_of(compute));
      const auto [params, model] = new_gpt(config, Params(Device(), 3));
      struct Bytes {
        int64_t kept, peak;
        uint64_t kernels;  // kernels of backward
      };
      const auto measured = [&](bool recompute) {
        const int64_t before = memory_stats().live;
        Rng rng{7};
        Tensor logits;
        {
          const ScopeIf<RecomputeScope> scope(recompute);
          logits = model.forward(tokens, {.rng = &rng, .compute = compute});
        }
        const int64_t kept = memory_stats().live - before;
        reset_peak();
        const uint64_t kernels = engine_stats().kernels;
        const GradMap g = backward(cross_entropy(std::exchange(logits, {}), targets));
        return Bytes{kept, memory_stats().peak - before, engine_stats().kernels - kernels};
      };
      const Bytes plain = measured(false), again = measured(true);
      CAPTURE_ALL(plain.kept, plain.peak, again.kept, again.peak);
      // 6 C of 16 C per token in f32 are recomputed, and 6 C of SwiGLU's 18.5 C.
      CHECK(double(again.kept) <= (config.norm == NormKind::layer_norm ? 0.65 : 0.7) * double(plain.kept));
      CHECK(double(again.peak) <= 0.75 * double(plain.peak));
      // Two norms and an activation per block, and the last norm; the bf16 copies of weights are kept.
      CHECK(again.kernels - plain.kernels == 12 * 3 + 1);
    }
}

TEST_CASE("recomputed activations: the peak of backward is that of one block") {
  const auto [params, model] = new_gpt(deep(), Params(Device(), 3));
  const Tensor tokens = some_tokens({8, 64}), targets = some_tokens({8, 64});
  int64_t weights = 0;
  for (auto& p : params.all()) weights += int64_t(p.tensor.layout().bytes());
  struct Bytes {
    int64_t kept, peak;  // bytes after forward; backward's peak
  };
  const auto measured = [&](bool recompute) {
    const int64_t before = memory_stats().live;
    const Tensor loss = cross_entropy(model.forward(tokens, {.recompute = recompute}), targets);
    const int64_t kept = memory_stats().live - before;
    reset_peak();
    const GradMap g = backward(loss);
    return Bytes{kept, memory_stats().peak - before};
  };
  const Bytes plain = measured(false), again = measured(true);
  CAPTURE_ALL(plain.kept, plain.peak, again.kept, again.peak);
  CHECK(plain.peak >= plain.kept);
  // At most all block inputs, one block's activations and all weight gradients.
  const int64_t block = plain.kept / 12;
  CHECK(again.peak <= again.kept + block + weights);
  CHECK(again.peak >= again.kept + block / 2);  // activations were recomputed
  CHECK(double(again.peak) <= 0.3 * double(plain.peak));
}

TEST_CASE("anomaly search: one huge weight, whose gradient op and layer are named") {
  for (bool lazy : {false, true}) {
    const Params params(Device(), 3);
    const Gpt model(
        params,
        {.vocab_size = 11, .context = 8, .layers = 1, .heads = 2, .width = 8, .tied_head = false, .init_std = 0.3});
    // Small embeddings and one layer: the last norm divides by sqrt(eps). Its output stays finite with the huge weight,
    // the gradient of its input does not.
    StateDict weights = params.state();
    for (const char* name : {"wte.weight", "wpe.weight"}) weights.at(name) = weights.at(name) * 1e-6;
    weights.at("ln_f.weight") = tensor({1e38, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}, {8});
    params.assign(weights);
    Mode mode(lazy);
    const Tensor tokens = tensor({1, 2, 3, 4}, {1, 4}), targets = tensor({2, 3, 4, 5}, {1, 4});
    const AnomalyScope search;
    const Tensor loss = cross_entropy(model.forward(tokens), targets);
    CHECK(std::isfinite(loss.item<double>()));
    const std::string e = error_of([&] {
      const GradMap g = backward(loss);
      std::vector<Tensor> all;
      for (auto& p : params.all()) all.push_back(g[p.tensor]);
      eval(all);
    });
    CHECK_HAS(e, "[layer_norm_grad] makes an infinity in output 0, (1, 4, 8) f32", "in gpt.ln_f");
  }
}

TEST_CASE("large models are counted without memory") {
  const std::pair<const char*, int64_t> counts[] = {
      {"gpt-small-10k", 100412160}, {"gpt-medium-10k", 322651136}, {"cs336-2.7b", 3406809600}, {"gpt2", 124439808},
      {"gpt2-medium", 354823168},   {"gpt2-large", 774030080},     {"gpt2-xl", 1557611200}};
  for (const auto& [name, count] : counts) {
    CAPTURE(name);
    const auto before = memory_stats();
    LazyScope lazy;
    const auto [params, model] = new_gpt(model_preset(name));
    CHECK(params.numel() == count);
    CHECK(memory_stats().live == before.live);
    CHECK(memory_stats().total == before.total);
  }
  // Lazy parameters are those of an eager model, once they are read.
  const GptConfig small{
      .vocab_size = 11, .context = 8, .layers = 1, .heads = 2, .width = 8, .init = InitScheme::xavier};
  const Params eager = new_gpt(small, Params(Device(), 7)).params, lazy(Device(), 7);
  {
    LazyScope scope;
    const Gpt later(lazy, small);
  }
  for (size_t i = 0; i < eager.all().size(); ++i)
    CHECK(bits_of(eager.all()[i].tensor) == bits_of(lazy.all()[i].tensor));
}
