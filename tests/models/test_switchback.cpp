// int8 and fp8 linear layers: alone, in a Gpt, without full weights, in training, with adapters.
#include <tapegrad/tools.h>

#include <algorithm>
#include <optional>

#include "support/refusals.h"
#include "support/small_run.h"

using namespace tg;
namespace {
constexpr LinearKind kSwitchBacks[] = {LinearKind::switchback, LinearKind::switchback_vector_wise,
                                       LinearKind::switchback_memory_efficient, LinearKind::fp8, LinearKind::fp8_e4m3};
const GptConfig kTwoWide{.vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 16, .bias = true};
const std::vector<std::string> kBlocks{"h.*"};

std::vector<Tensor> gradients(const Gpt& model, const Params& params, const ForwardOptions& o = {}) {
  const Tensor loss = cross_entropy(model.forward(two_rows(), o), two_rows());
  const GradMap g = backward(loss);
  std::vector<Tensor> r{loss.detach()};
  for (const Parameter& p : params.all()) r.push_back(g[p.tensor]);
  return r;
}
}  // namespace

TEST_CASE("a Linear of another kind is switchback_linear() over the same parameters") {
  for (const auto kind :
       {LinearKind::switchback, LinearKind::switchback_vector_wise, LinearKind::switchback_memory_efficient})
    for (const bool bias : {true, false}) {
      const Params p({}, 3), q({}, 3);
      const SwitchBackMode mode = detail::mode_of(kind);
      const nn::Linear layer(p.at("l"), 83, 332, {.bias = bias, .kind = kind});
      const nn::Linear plain(q.at("l"), 83, 332, {.bias = bias});
      CHECK(bits_of(layer.weight) == bits_of(plain.weight));
      CHECK(p.all().size() == q.all().size());
      const Tensor x = random({2, 5, 83}, 1);
      CHECK(bits_of(layer.forward(x)) == bits_of(switchback_linear(x, plain.weight, plain.bias, mode)));
      // The weight is quantized from f32 even when x is narrow.
      const Tensor narrow = layer.forward(x, DType::bf16);
      CHECK(narrow.dtype() == DType::bf16);
      CHECK(bits_of(narrow) == bits_of(switchback_linear(x.to(DType::bf16), plain.weight, plain.bias, mode)));
      CHECK(distance(layer.forward(x), plain.forward(x)) < 0.02);
    }
}

TEST_CASE("names of kinds") {
  for (const auto name :
       {"plain", "switchback", "switchback-vector-wise", "switchback-memory-efficient", "fp8", "fp8-e4m3"}) {
    LinearKind k{};
    from_name(name, k);
    CHECK(name_of(k) == name);
  }
  LinearKind k{};
  CHECK_SAYS(from_name("int8", k), "switchback-vector-wise");
  CHECK_SAYS(from_name("switchback-memory-efficient-vector-wise", k), "exclude each other");
  CHECK_SAYS(detail::mode_of(LinearKind::plain), "plain");
}

TEST_CASE("replace_linears: by pattern, back again, and what it refuses") {
  auto [params, model] = new_gpt(kTwoWide, Params({}, 1));
  const Gpt before = model;
  const auto plain = gradients(model, params);
  for (const LinearKind kind : kSwitchBacks) {
    const auto names = replace_linears(model, {"h.*.mlp.*", "h.1.attn.proj"}, kind);
    CHECK(names ==
          std::vector<std::string>{"h.0.mlp.fc", "h.0.mlp.proj", "h.1.attn.proj", "h.1.mlp.fc", "h.1.mlp.proj"});
    for (const NamedLinear& l : model.linears())
      CHECK((l.layer->kind == kind) == (std::count(names.begin(), names.end(), l.name) == 1));
    const auto got = gradients(model, params);
    CHECK(bits_of(got[0]) != bits_of(plain[0]));
    const bool three_bits = kind == LinearKind::fp8 || kind == LinearKind::fp8_e4m3;  // bits of fraction, 3 or 2
    for (size_t i = 0; i < got.size(); ++i) CHECK(distance(got[i], plain[i]) < (three_bits ? 0.2 : 0.1));
    check_same_bits(gradients(before, params), plain);
    replace_linears(model, {"*"}, LinearKind::plain);
    check_same_bits(gradients(model, params), plain);
  }
  CHECK_SAYS(replace_linears(model, {"h.*", "mlp"}, kSwitchBacks[0]), "'mlp' matches no module");
  CHECK_SAYS(replace_linears(model, std::vector<std::string>{}, kSwitchBacks[0]), "h.*.mlp.fc (2)");
  for (const NamedLinear& l : model.linears()) CHECK(l.layer->kind == LinearKind::plain);
}

TEST_CASE("a Gpt of such layers: eager, lazy, compiled, recomputed and in bf16") {
  for (const LinearKind kind : kSwitchBacks) {
    CAPTURE(name_of(kind));
    auto [params, model] = new_gpt(kTwoWide, Params({}, 1));
    replace_linears(model, kBlocks, kind);
    const auto eager = gradients(model, params);
    under<LazyScope>([&] { check_same_bits(gradients(model, params), eager); });
    const Compiled step = compile([&](Inputs) { return gradients(model, params); }, {.constants = true});
    for (int i = 0; i < 3; ++i) check_same_bits(step(std::vector<Tensor>{}), eager);
    check_same_bits(gradients(model, params, {.recompute = true}), eager);
    under<RecomputeScope>([&] { check_same_bits(gradients(model, params), eager); });
    const auto narrow = gradients(model, params, {.compute = DType::bf16});
    for (size_t i = 0; i < eager.size(); ++i) {
      CHECK(narrow[i].dtype() == eager[i].dtype());
      CHECK(distance(narrow[i], eager[i]) < 0.2);
    }
  }
}

TEST_CASE("prepare_for_eval: the same bits from a quarter of the memory, and nothing that needs the weight") {
  const Tensor probe = two_rows();
  for (const LinearKind kind : kSwitchBacks) {
    CAPTURE(name_of(kind));
    auto [params, model] =
        new_gpt({.vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 64}, Params({}, 1));
    replace_linears(model, kBlocks, kind);
    std::optional<NoGradScope> off(std::in_place);
    const Tensor before = model.forward(probe);
    int64_t weights = 0, rows = 0;
    for (const NamedLinear& l : model.linears())
      if (l.name != "lm_head") weights += l.layer->weight.numel(), rows += l.layer->weight.size(0);
    const int64_t live = memory_stats().live, count = params.numel();
    prepare_for_eval(model, params);
    const bool by_rows = kind == LinearKind::switchback_vector_wise || detail::mode_of(kind) >= SwitchBackMode::fp8;
    const int64_t absmax = by_rows ? 4 * rows : 8 * 4;
    CHECK(memory_stats().live == live - 3 * weights + absmax);
    CHECK(params.numel() == count - weights);
    CHECK(bits_of(model.forward(probe)) == bits_of(before));
    CHECK(bits_of(model.forward(probe, {.compute = DType::bf16})) !=
          bits_of(before.to(DType::bf16)));  // x is rounded first
    CHECK(generate(model, std::vector<int64_t>{1, 2}, 4).size() == 4);
    CHECK_SAYS(prepare_for_eval(model, params), "prepared already");
    CHECK_SAYS(replace_linears(model, kBlocks, LinearKind::plain), "weight is gone");
    CHECK_SAYS(apply_lora(model, params, {.targets = {"h.*"}}), "prepared for evaluation");
    CHECK_SAYS(params.state(), "h.0.attn.qkv.weight");
    off.reset();
    CHECK_SAYS(backward(sum(model.forward(probe))), "prepared for evaluation");
  }
  auto [params, model] = new_gpt(kTwoWide, Params({}, 1));
  CHECK_SAYS(prepare_for_eval(model, params), "replace_linears");
  nn::Linear plain(params.at("extra"), 3, 4);
  CHECK_SAYS(plain.prepare_for_eval(), "plain");
}

TEST_CASE("training: every kind learns, goes on from a state bit for bit, and is planned") {
  for (const LinearKind kind : kSwitchBacks) {
    CAPTURE(name_of(kind));
    TrainConfig c = tiny_train();
    c.linear = kind;
    Run run(c);
    std::vector<StepRecord> all;
    TrainerState middle;
    run.trainer.run([&](const StepRecord& r) {
      all.push_back(r);
      if (r.step == 17) middle = run.trainer.state();
    });
    CHECK(all.back().loss < all.front().loss - 1.5);
    for (const NamedLinear& l : run.model.linears()) CHECK(l.layer->kind == LinearKind::plain);  // Trainer has a copy
    Run again(c);
    again.trainer.load_state(middle);
    const auto rest = rest_of(again.trainer);
    CHECK(numbers_of(rest) == numbers_of(std::vector<StepRecord>(all.begin() + 17, all.end())));
    for (const Recompute r : {Recompute::cheap, Recompute::block}) {
      TrainConfig lean = c;
      lean.recompute = r;
      CHECK(numbers_of(records_of(lean)) == numbers_of(all));
    }
    TrainConfig plain = c;
    plain.linear = LinearKind::plain;
    const auto others = records_of(plain);
    CHECK(numbers_of(others) != numbers_of(all));
    CHECK(std::abs(others.back().loss - all.back().loss) < 0.1);
  }
  const auto activations = [](LinearKind kind) {
    TrainConfig c = tiny_train();
    c.linear = kind;
    return plan_memory(tiny_model(), c).activations;
  };
  CHECK(activations(LinearKind::switchback_memory_efficient) < activations(LinearKind::plain));
  CHECK(activations(LinearKind::switchback) < activations(LinearKind::plain));  // GELU is not kept
}

TEST_CASE("LoRA over such layers: the frozen product stays in 8 bits, the delta is exact, and it merges") {
  for (const LinearKind kind : kSwitchBacks) {
    CAPTURE(name_of(kind));
    auto [params, model] = new_gpt(kTwoWide, Params({}, 1));
    replace_linears(model, kBlocks, kind);
    const auto logits = bits_of(model.forward(two_rows()));
    Lora lora = apply_lora(model, params, {.targets = {"h.*"}, .rank = 2, .alpha = 4});
    CHECK(bits_of(model.forward(two_rows())) == logits);
    const GradMap g = backward(cross_entropy(model.forward(two_rows()), two_rows()));
    CHECK(g.size() == lora.params().all().size());
    for (const Parameter& p : lora.params().all()) CHECK(g.contains(p.tensor));
    lora.merge();
    lora.unmerge();
    CHECK(bits_of(model.forward(two_rows())) == logits);
  }
}
