// LoRA in a Gpt: targets, modes, training, merging, refusals.
#include <tapegrad/core/node.h>
#include <tapegrad/tapegrad.h>

#include <set>

#include "support/gpt_oracle.h"
#include "support/refusals.h"
#include "support/small_run.h"

using namespace tg;
namespace {
struct Adapted {
  Oracle oracle;
  Params base;
  Gpt model;
  Lora lora;
  Adapted(const std::string& name, const LoraConfig& c, double dropout = 0)
      : oracle(with(name, dropout)), model(oracle.model(base)), lora(apply_lora(model, base, c)) {
    fill(lora);
  }
  static Oracle with(const std::string& name, double dropout) {
    Oracle o(name);
    o.config.dropout = dropout;
    return o;
  }
  Tensor tokens() const { return oracle.batch("tokens", 0); }
  Tensor targets() const { return oracle.batch("targets", 0); }
  std::vector<Tensor> gradients(ForwardOptions o) const {
    const GradMap g = backward(cross_entropy(model.forward(tokens(), o), targets()));
    CHECK(g.size() == lora.params().all().size());
    std::vector<Tensor> r;
    for (auto& p : lora.params().all()) r.push_back(g[p.tensor]);
    return r;
  }
};
const LoraConfig kAll{.targets = {"*"}, .rank = 3, .alpha = 6};
}  // namespace

TEST_CASE("LoRA targets: * stands for any characters, dots too") {
  const auto matches = [](const std::string& pair) {  // "pattern name"
    const size_t at = pair.find(' ');
    return detail::glob_matches(pair.substr(0, at), pair.substr(at + 1));
  };
  for (const char* pair : {"h.*.attn.qkv h.0.attn.qkv", "h.*.attn.qkv h.12.attn.qkv", "*.mlp.* h.3.mlp.fc", "* lm_head",
                           "** x", "* ", " ", "*proj h.0.mlp.proj", "h.*.*.proj h.0.mlp.proj", "*a*ab aaab"})
    CHECK_MESSAGE(matches(pair), pair);
  for (const char* pair : {"h.*.attn.qkv h.0.attn.proj", "attn.qkv h.0.attn.qkv", "h.0 h.0.attn.qkv", " x", "*a ab",
                           "h.?.mlp h.0.mlp", "h.1.* h.11.mlp"})
    CHECK_MESSAGE(!matches(pair), pair);
  const auto chosen = [](std::vector<std::string> targets, bool tied = true) {
    GptConfig c = kTwo;
    c.tied_head = tied;
    auto [base, model] = new_gpt(c);
    std::set<std::string> names;
    const Lora lora = apply_lora(model, base, {.targets = std::move(targets), .rank = 2});
    for (const auto& m : lora.modules()) names.insert(m.name);
    return names;
  };
  using Names = std::set<std::string>;
  CHECK(chosen({"h.*.attn.qkv"}) == Names{"h.0.attn.qkv", "h.1.attn.qkv"});
  CHECK(chosen({"*.mlp.*", "h.0.mlp.fc"}) == Names{"h.0.mlp.fc", "h.0.mlp.proj", "h.1.mlp.fc", "h.1.mlp.proj"});
  CHECK(chosen({"h.1.*.proj"}) == Names{"h.1.attn.proj", "h.1.mlp.proj"});
  CHECK(chosen({"*"}).size() == 8);
  CHECK(chosen({"*"}, false).size() == 9);
  CHECK(chosen({"lm_head"}, false) == Names{"lm_head"});
}

TEST_CASE("LoRA on a Gpt: nothing changes at first, all else is frozen") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    const Oracle o(name);
    const Params base;
    Gpt model = o.model(base);
    const auto before = bits_of(model.forward(o.batch("tokens", 0)));
    const Lora lora = apply_lora(model, base, {.targets = {"*"}, .rank = 3, .alpha = 6, .dropout = 0.5});
    CHECK(bits_of(model.forward(o.batch("tokens", 0))) == before);
    CHECK(base.trainable().empty());
    CHECK(lora.params().trainable().size() == 2 * lora.modules().size());
    int64_t count = 0;
    for (auto& m : lora.modules()) count += 3 * (m.layer.linear().weight.size(0) + m.layer.linear().weight.size(1));
    CHECK(lora.params().numel() == count);
    CHECK(lora.params().all()[0].name == "h.0.attn.qkv.lora_a");
    CHECK(model.linears().size() == lora.modules().size());
    fill(lora);
    CHECK(bits_of(model.forward(o.batch("tokens", 0))) != before);
  }
}

TEST_CASE("LoRA on a Gpt: an adapted model runs in all ways that a plain one does") {
  for (const std::string& name : kOracles)
    for (const double dropout : {0.0, 0.3}) {
      CAPTURE_ALL(name, dropout);
      LoraConfig c = kAll;
      c.dropout = dropout;
      const Adapted a(name, c, dropout / 2);
      Rng kept{5}, again{5}, later{5};
      const auto expected = a.gradients({.rng = &kept});
      CHECK((kept.offset > 0) == (dropout > 0));
      const auto recomputed = a.gradients({.rng = &again, .recompute = true});
      const std::vector<Tensor> lazy = under<LazyScope>([&] { return a.gradients({.rng = &later}); });
      CHECK(kept == again);
      CHECK(kept == later);
      check_same_bits(recomputed, expected);
      check_same_bits(lazy, expected);
      NoGradScope off;
      const Tensor tokens = a.tokens(), whole = a.model.forward(tokens);
      KvCache cache;
      for (int64_t at = 0; at < tokens.size(1); ++at) {
        const Tensor part = a.model.forward(slice(tokens, 1, at, at + 1), {.cache = &cache});
        CHECK(row_distance(part, slice(whole, 1, at, at + 1)) <= 1e-5);
      }
      fill(a.lora, 0.03);  // larger deltas: a merged model is 0.03 away
      const Tensor mixed = a.model.forward(tokens, {.compute = DType::bf16});
      CHECK(mixed.dtype() == DType::f32);
      CHECK(row_distance(mixed, a.model.forward(tokens)) <= bf16_bound(a.model.config()));
      const std::vector<int64_t> prompt{3, 1};
      const SampleOptions sampling{.temperature = 0.9, .seed = 4};
      const auto text = generate(a.model, prompt, 12, sampling);
      CHECK(text == generate(a.model, prompt, 12, sampling, {.use_cache = false}));
      LazyScope scope;
      CHECK(text == generate(a.model, prompt, 12, sampling));
    }
}

TEST_CASE("LoRA on a Gpt: dropout falls in each adapter, in training only") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    LoraConfig c = kAll;
    c.dropout = 0.3;
    const Adapted a(name, c);
    Rng rng{5};
    const auto plain = bits_of(a.model.forward(a.tokens()));
    const auto dropped = bits_of(a.model.forward(a.tokens(), {.rng = &rng}));
    CHECK(dropped != plain);
    const uint64_t words = uint64_t(a.tokens().numel() * c.rank);  // each adapter's x A
    CHECK(rng.offset == a.lora.modules().size() * ((words + 3) / 4));
    CHECK(bits_of(a.model.forward(a.tokens())) == plain);
  }
}

TEST_CASE("LoRA on a Gpt: merged weights give the adapted model's logits, and come back bit for bit") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    Adapted a(name, kAll);
    const Gpt copy = a.model;
    const auto weights = a.base.state();
    const Tensor adapted = a.model.forward(a.tokens());
    const Params unadapted;
    CHECK(row_distance(a.oracle.model(unadapted).forward(a.tokens()), adapted) > 0.1);
    a.lora.merge();
    CHECK(a.lora.merged());
    const Tensor merged = a.model.forward(a.tokens());
    CHECK(row_distance(merged, adapted) <= 1e-5);
    CHECK(bits_of(copy.forward(a.tokens())) == bits_of(merged));
    const Params plain;  // the merged weights are those of a model without adapters
    plain.load(a.base.state());
    CHECK(bits_of(Gpt(plain, a.oracle.config).forward(a.tokens())) == bits_of(merged));
    CHECK_SAYS(a.lora.merge(), "'h.0.attn.qkv.weight' is merged already.");
    a.lora.unmerge();
    CHECK(!a.lora.merged());
    for (const auto& [key, t] : a.base.state()) CHECK(bits_of(t) == bits_of(weights.at(key)));
    CHECK(bits_of(a.model.forward(a.tokens())) == bits_of(adapted));
    CHECK_SAYS(a.lora.unmerge(), "[lora] the adapter of 'h.0.attn.qkv' is not merged. There is nothing to take back.");
  }
}

TEST_CASE("layers that are adapted, merged, replaced or prepared: compiled functions follow, bit for bit") {
  auto [params, model] =
      new_gpt({.vocab_size = 16, .context = 8, .layers = 1, .heads = 1, .width = 16}, Params(Device::cpu(), 1));
  const NoGradScope off;
  const Tensor tokens = zeros({2, 8}, DType::i64);
  const tg::Compiled f = compile([&](Inputs in) { return std::vector{model.forward(in[0])}; });
  std::vector<std::vector<std::byte>> seen;
  const auto check = [&](const char* what) {
    CAPTURE(what);
    const auto want = bits_of(model.forward(tokens));
    for (int i = 0; i < 2; ++i) CHECK(bits_of(f({tokens})[0]) == want);
    if (!seen.empty()) CHECK(want != seen.back());
    seen.push_back(want);
  };
  check("plain");
  {
    Lora lora = apply_lora(model, params, {.rank = 2});
    fill(lora);
    check("adapted");
    lora.merge();
    check("merged");
    lora.unmerge();
    check("unmerged");
  }
  replace_linears(model, {"*"}, LinearKind::switchback);
  check("replaced");
  Gpt other(params.at("other"), model.config());
  replace_linears(other, {"*"}, LinearKind::switchback);
  const tg::Compiled g = compile([&](Inputs in) { return std::vector{other.forward(in[0])}; });
  const auto before = bits_of(g({tokens})[0]);
  prepare_for_eval(other, params);
  CHECK(bits_of(other.forward(tokens)) == before);
  CHECK(bits_of(g({tokens})[0]) == before);
  CHECK(g.stats().traces == 2);  // it reads the int8 values, not the freed weight
}
TEST_CASE("LoRA on a Gpt: frozen weights cost no gradients, no state and no activations") {
  const GptConfig deep{
      .vocab_size = 32, .context = 64, .layers = 12, .heads = 4, .width = 64, .positions = Positions::rope};
  const Tensor tokens = random({8, 64}, 1, 0, 31.99).to(DType::i64),
               targets = random({8, 64}, 2, 0, 31.99).to(DType::i64);
  struct Cost {
    int64_t held = 0;      // bytes that forward keeps
    uint64_t kernels = 0;  // kernels of backward
    size_t gradients = 0;
    int64_t gradient_bytes = 0, state_bytes = 0;
  };
  const auto cost = [&](const Gpt& model, const Params& trained) {
    const int64_t before = memory_stats().live;
    const Tensor loss = cross_entropy(model.forward(tokens), targets);
    Cost c;
    c.held = memory_stats().live - before;
    const auto kernels = engine_stats().kernels;
    const GradMap g = backward(loss);
    c.kernels = uint64_t(engine_stats().kernels - kernels), c.gradients = g.size();
    for (auto& p : trained.trainable()) c.gradient_bytes += int64_t(g[p.tensor].layout().bytes());
    for (const auto& [name, t] : AdamW(trained.trainable()).state()) c.state_bytes += int64_t(t.layout().bytes());
    return c;
  };
  auto [base, model] = new_gpt(deep, Params(Device(), 3));
  const Cost full = cost(model, base);
  const Lora lora = apply_lora(model, base, {.targets = {"h.*.attn.qkv"}, .rank = 4});
  const Cost adapted = cost(model, lora.params());
  CAPTURE_ALL(full.held, adapted.held, full.kernels, adapted.kernels);
  const int64_t row = 8 * 64 * 4, width = 64;  // bytes of a column over all positions
  // Each layer frees the inputs of mlp.fc and mlp.proj (attention keeps that of attn.proj), and adds x A, scaled.
  CHECK(full.held - adapted.held >= 12 * row * (width + 4 * width - 2 * 4));
  CHECK(adapted.held < 0.75 * double(full.held));
  CHECK(adapted.gradients == 24);
  CHECK(adapted.gradient_bytes == 12 * 4 * (64 + 192) * 4);
  CHECK(adapted.state_bytes == 2 * adapted.gradient_bytes);
  CHECK(full.gradients == base.all().size());

  for (Parameter p : base.all()) p.tensor.requires_grad_();
  const Cost unfrozen = cost(model, lora.params());
  for (Parameter p : base.all()) p.tensor.requires_grad_(false);
  CHECK(unfrozen.kernels - adapted.kernels >= 12 * 4);  // no weight gradient per weight and layer
  CHECK(unfrozen.gradients == 24 + base.all().size());
  CHECK(unfrozen.held - adapted.held >= 12 * row * (width + 4 * width));
  // Layers before the first adapter keep nothing and have no backward.
  auto [other, late] = new_gpt(deep, Params(Device(), 3));
  const Lora last = apply_lora(late, other, {.targets = {"h.11.*"}, .rank = 4});
  const Cost end = cost(late, last.params());
  CHECK(end.kernels < full.kernels / 4);
  CHECK(end.held < full.held / 8);
}

TEST_CASE("LoRA: a Trainer trains the adapters alone, and goes on bit for bit") {
  TrainConfig c = tiny_train();
  c.max_steps = 12, c.warmup = 2;
  const LoraConfig config{.targets = {"*"}, .rank = 4, .alpha = 8, .dropout = 0.1, .seed = c.seed};
  struct Tuning {
    Params base;
    Gpt model;
    Lora lora;
    Trainer trainer;
    Tuning(const TrainConfig& t, const LoraConfig& l)
        : base(Device(), 1),
          model(base, tiny_model()),
          lora(apply_lora(model, base, l)),
          trainer(model, lora.params(), bytes_of(rhyme()), t) {}
  };
  Tuning whole(c, config);
  const auto weights = whole.base.state();
  const auto records = rest_of(whole.trainer);
  CHECK(records.back().loss < records.front().loss - 0.1);
  for (const auto& [name, t] : whole.base.state()) CHECK(bits_of(t) == bits_of(weights.at(name)));
  for (const auto& [name, t] : whole.trainer.state().tensors) CHECK_HAS(name, ".lora_");
  CHECK(whole.trainer.state().tensors.size() == 3 * whole.lora.params().all().size());
  Tuning first(c, config), second(c, config);
  for (int i = 0; i < 5; ++i) first.trainer.step();
  second.trainer.load_state(first.trainer.state());
  CHECK(numbers_of(rest_of(second.trainer)) == numbers_of({records.begin() + 5, records.end()}));
  for (const auto& [name, t] : second.lora.params().state())
    CHECK(bits_of(t) == bits_of(whole.lora.params().state().at(name)));
  Tuning merged(c, config);
  merged.lora.merge();  // nothing is left to learn
  CHECK_SAYS(merged.trainer.step(), "is to train its adapter, which is merged into the weight. Call unmerge() first");
}

TEST_CASE("LoRA on a Gpt: what is refused names the modules that there are") {
  auto [base, model] = new_gpt(kTwo);
  const auto refused = [&](LoraConfig c, std::vector<std::string> says) {
    expect({[&] { apply_lora(model, base, c); }, Error::Kind::value, std::move(says)});
    CHECK(base.trainable().size() == base.all().size());
    for (auto& l : model.linears()) CHECK(!l.layer->adapter);
  };
  refused({.targets = {"h.*.attn.q"}},
          {"[lora] the target 'h.*.attn.q' matches no module. Each target must match at least one",
           "The modules are h.*.attn.qkv (2), h.*.attn.proj (2), h.*.mlp.fc (2), h.*.mlp.proj (2).",
           "A tied head is not a module."});
  refused({.targets = {"*.qkv", "lm_head"}, .rank = 2}, {"the target 'lm_head' matches no module"});
  refused({.targets = {}}, {"[lora] there are no targets.", "The modules are h.*.attn.qkv"});
  refused({.targets = {"*"}, .rank = 9},
          {"[lora] rank is 9 for a layer from 8 to 24. It must be at most 8", "for module 'h.0.attn.qkv'"});
  refused({.rank = 0}, {"[lora] rank is 0.", "for module 'h.0.attn.qkv'"});
  refused({.rank = 2, .alpha = 0}, {"[lora] alpha is 0.", "for module"});
  refused({.rank = 2, .dropout = 1}, {"[lora] dropout is 1.", "for module"});
  CHECK_SAYS_OF(value, apply_lora(model, Params(), {.rank = 2}),
                "[lora] the weight of 'h.0.attn.qkv' is not among the 0 parameters given.",
                "Pass the Params that the model");
  CHECK(base.trainable().size() == base.all().size());
  apply_lora(model, base, {.targets = {"h.0.mlp.fc"}, .rank = 2});
  CHECK_SAYS_OF(state, apply_lora(model, base, {.targets = {"h.1.mlp.fc"}, .rank = 2}),
                "[lora] 'h.0.mlp.fc' has an adapter already. A model has one set of adapters.");
}
