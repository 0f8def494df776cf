// models/model/dpo.h against PyTorch (tests/data/make_dpo.py): losses and gradients, modes, training, refusals.
#include <tapegrad/tapegrad.h>

#include "support/hf_folder.h"
#include "support/tiny_gpt.h"

using namespace tg;

namespace {
SafetensorsFile dpo_fixture(const std::string& name) {
  return SafetensorsFile(TG_TEST_DATA "/dpo/" + name + ".safetensors");
}
struct Preferring {
  Params base{Device(), 1, DType::f64};
  Gpt model{base, tiny_gpt()};
  Lora lora = apply_lora(model, base, {.targets = {"*"}, .rank = 2, .alpha = 2});
  Batch batch;
  explicit Preferring(int64_t pairs = 2) {
    fill(lora, 0.5);
    Rng rng{4};
    std::vector<int32_t> x(size_t(pairs * 2 * 2 * 6));
    for (int32_t& id : x) id = int32_t(rng.below(11));
    batch = {tensor<int32_t>(x, {pairs, 2, 2, 6}), zeros({pairs}, DType::i32)};
  }
};
Model over_base(const Gpt& model, const Lora& lora, double beta) {
  const StateDict trained = lora.params().state();
  fill(lora, 0);
  const Model dpo = DpoModel(model, beta);
  lora.params().assign(trained);
  return dpo;
}
}  // namespace

TEST_CASE("DPO: losses, log-probabilities and adapter gradients are PyTorch's") {
  for (const char* name : {"gpt2", "llama"})
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE_ALL(name, name_of(dtype));
      const SafetensorsFile expected = dpo_fixture(name);
      const auto at = [&](const std::string& key) {
        return expected.tensor((dtype == DType::f64 ? "float64." : "float32.") + key);
      };
      const std::string adapter = TG_TEST_DATA "/peft/" + expected.metadata().at("adapter");
      const std::string base = data_folder(expected.metadata().at("base"));
      LoadedModel m = load_model(base, {}, dtype);
      const Lora lora = load_adapter(adapter, m);
      const Batch batch{expected.tensor("inputs"), zeros({3}, DType::i32)};
      const Model dpo = over_base(m.model, lora, std::stod(expected.metadata().at("beta")));
      const Tensor loss = dpo.loss(batch);
      CHECK(std::abs(loss.item<double>() - at("loss").item<double>()) <= 1e-6);

      StateDict grads;
      for (const std::string& key : expected.names())
        if (has(key, ".lora_") && key.starts_with(dtype == DType::f64 ? "float64." : "float32."))
          grads[key.substr(8)] = expected.tensor(key);
      const Folder folder;
      fs::copy(adapter + "/adapter_config.json", folder / "adapter_config.json");
      write_safetensors(folder / "adapter_model.safetensors", grads);
      LoadedModel other = load_model(base, {}, dtype);
      const StateDict wanted = load_adapter(folder.path, other).params().state();
      const GradMap g = backward(loss);
      REQUIRE(wanted.size() == lora.params().all().size());
      CHECK(g.size() == wanted.size());
      for (const Parameter& p : lora.params().all()) {
        CAPTURE(p.name);
        CHECK(distance(g[p.tensor], wanted.at(p.name)) <= (dtype == DType::f64 ? 1e-6 : 1e-5));
      }

      const auto value = bits_of(loss);
      under<LazyScope>([&] { CHECK(bits_of(dpo.loss(batch)) == value); });
      const Compiled f = compile([&](Inputs in) { return std::vector{dpo.loss({in[0], in[1]}).detach()}; });
      for (int i = 0; i < 3; ++i) CHECK(bits_of(f({batch.inputs, batch.targets})[0]) == value);
      CHECK(bits_of(dpo.loss(batch, {.recompute = true})) == value);
    }
}

TEST_CASE("DPO: gradients of the adapters equal central differences") {
  Preferring p;
  const Model dpo = over_base(p.model, p.lora, 0.5);
  const GradMap g = backward(dpo.loss(p.batch));
  for (const Parameter& x : p.lora.params().all()) {
    CAPTURE(x.name);
    const StateDict before = p.lora.params().state();
    const auto loss = [&](const Tensor& t) {
      StateDict s = before;
      s.at(x.name) = t;
      p.lora.params().assign(s);
      return dpo.loss(p.batch).detach();
    };
    CHECK(gradcheck(loss, before.at(x.name), g[x.tensor]) <= 1e-7);
    p.lora.params().assign(before);
  }
}

TEST_CASE("forward() without adapters is the base model's, eager, lazy, compiled and recomputed") {
  Preferring p;
  const auto [plain_params, plain] = new_gpt(tiny_gpt(), Params(Device(), 1, DType::f64));
  const Model model = p.model;
  const Tensor x = two_rows();
  const auto base = bits_of(plain.forward(x)), adapted = bits_of(model.forward(x));
  CHECK(base != adapted);
  CHECK(bits_of(model.forward(x, {.adapters = false})) == base);
  CHECK(bits_of(model.forward(x, {.recompute = true, .adapters = false})) == base);
  CHECK(backward(sum(model.forward(x, {.recompute = true, .adapters = false})) + sum(p.lora.params().all()[0].tensor))
            .size() == 1);  // no gradient through the adapters, also when blocks run again
  {
    LazyScope lazy;
    const Tensor off = model.forward(x, {.adapters = false}), on = model.forward(x);  // both are lazy
    CHECK(bits_of(off) == base);
    CHECK(bits_of(on) == adapted);
  }
  const Compiled both = compile([&](Inputs in) {
    return std::vector{model.forward(in[0], {.adapters = false}).detach(), model.forward(in[0]).detach()};
  });
  for (int i = 0; i < 3; ++i) {
    const auto r = both({x});
    CHECK(bits_of(r[0]) == base);
    CHECK(bits_of(r[1]) == adapted);
  }
  p.lora.merge();
  CHECK_SAYS_OF(state, model.forward(x, {.adapters = false}), "is to run without its adapter, which is merged");
  p.lora.unmerge();
  CHECK(bits_of(both({x})[0]) == base);
}

TEST_CASE("DPO: a Trainer learns to prefer; accumulated, compiled and resumed steps are the same") {
  const BatchSource source{.next = [](Rng& rng) {
    Batch b = Preferring(2).batch;
    auto* x = b.inputs.mutable_data<int32_t>();
    for (int64_t i = 0; i < b.inputs.numel(); ++i) x[i] = int32_t(rng.below(5)) + (i / 12 % 2 ? 5 : 0);
    return b;
  }};
  const auto run = [&](TrainConfig c, int64_t cut) {
    std::vector<double> losses;
    c.max_steps = 12, c.warmup = 0, c.lr = 0.02;
    TrainerState state;
    for (const bool second : {false, true}) {
      Preferring p;
      if (!second && cut == 0) continue;
      Trainer t(over_base(p.model, p.lora, 0.3), p.lora.params(), source, c);
      if (second && cut > 0) t.load_state(state);
      while (!t.done() && (second || t.steps() < cut)) losses.push_back(t.step().loss);
      state = t.state();
    }
    return losses;
  };
  TrainConfig c;
  SUBCASE("one batch") {}
  SUBCASE("two micro-batches") { c.accumulate = 2; }
  SUBCASE("blocks recomputed") { c.recompute = Recompute::block; }
  const auto losses = run(c, 0);
  CHECK(losses.back() < losses.front() - 0.1);
  CHECK(run(c, 5) == losses);
  TrainConfig compiled = c;
  compiled.compile = true;
  CHECK(run(compiled, 0) == losses);
  CHECK(run(compiled, 5) == losses);
}

TEST_CASE("DPO: micro-batches of unequal answers weigh by pairs") {
  Preferring p(4);
  const Model dpo = over_base(p.model, p.lora, 0.3);
  auto* x = p.batch.inputs.mutable_data<int32_t>();
  for (int64_t i = 24 + 6; i < 24 + 10; ++i) x[i] = Batch::kIgnoreIndex;  // pair 1
  const auto part = [&](int64_t a, int64_t b) {
    return Batch{slice(p.batch.inputs, 0, a, b).contiguous(), slice(p.batch.targets, 0, a, b).contiguous()};
  };
  const std::vector<Batch> micro{part(0, 1), part(1, 4)};
  const Accumulated a = accumulate([&](const Batch& b) { return dpo.loss(b); }, micro);
  CHECK(a.loss.item<double>() == doctest::Approx(dpo.loss(p.batch).item<double>()).epsilon(1e-12));
}

TEST_CASE("DPO: what it cannot train is refused") {
  Preferring p;
  const Params params(Device(), 1);
  CHECK_SAYS_OF(value, DpoModel(Gpt(params, tiny_gpt())), "[dpo] the model has no adapters.");
  CHECK_SAYS_OF(state, DpoModel(p.model), "is trained, and the reference would be the model without it");
  p.lora.keep_reference();
  CHECK(std::abs(DpoModel(p.model).loss(p.batch, {}).item<double>() - std::log(2)) < 1e-12);
  CHECK_SAYS_OF(value, DpoModel(p.model, 0), "[dpo] beta is 0. It must be above 0");
  CHECK_SAYS_OF(shape, DpoModel(p.model).loss({two_rows(), two_rows()}, {}), "They must be (B, 2, 2, T)");
  CHECK_SAYS_OF(shape, dpo_loss(zeros({2, 3}), zeros({2, 3}), 1), "Both must be (B, 2)");
  p.lora.merge();
  CHECK_SAYS_OF(state, DpoModel(p.model).loss(p.batch, {}), "is merged into the weight. Call unmerge() first.");
  struct Other {
    Tensor forward(const Tensor& x) const { return x; }
  };
  CHECK_SAYS_OF(value, Model(Other()).forward(zeros({1}), {.adapters = false}), "is asked for `adapters`");
}
