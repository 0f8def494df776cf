// `tapegrad selftest`: whether this machine computes the same numbers as others. Each line hashes the losses
// and weights of 100 training steps with dropout, then what generation says of tokens, for one small model.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/models/model/lora.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/models/optim/schedule.h>

namespace tg::apps {
namespace {
struct SelftestOptions {};
struct Expected {
  std::string_view model, method;  // method: of bf16, empty in f32
  uint64_t steps, served;
};
// Made with TG_ISA=3 and 4. No machine with AMX has recorded its line.
constexpr Expected kExpected[] = {
    {"gpt2", "", 0x11fa9d5d9ffc79b8, 0x4ce8de4501941533},
    {"gpt2", "f32", 0x2cd8dbb1821f13bc, 0x49d54de1f7250120},
    {"gpt2", "avx512", 0xae462d4c647c1f9b, 0xeb91e3427969539c},
    {"llama", "", 0x3b538dcb53e66415, 0xf53594e3937e311a},
    {"llama", "f32", 0x8018428cdb78ba6f, 0x6d964568e9a548fa},
    {"llama", "avx512", 0xcc00845cb337ab2d, 0xb6a82a9e84a78172},
    {"lora", "", 0x85c78bf367c07b50, 0xbbd1555d1bf23df7},
    {"lora", "f32", 0x73f6d6e8885496a4, 0xeda92d49fc190c58},
    {"lora", "avx512", 0x61655a0d09445454, 0xa48c78a06ee99a6f},
};

class Hash {  // FNV-1a of 32-bit words
 public:
  void add(const Tensor& t) {
    for (const float x : t.to(DType::f32).to_vector<float>()) add(__builtin_bit_cast(uint32_t, x));
  }
  void add(uint32_t word) { state_ = (state_ ^ word) * 0x100000001b3u; }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};
struct Net {
  Params base;
  Gpt gpt;
  std::optional<Lora> lora;
  Net(std::string_view name, DType dtype) : base(Device::cpu(), 1, dtype), gpt(base, config_of(name)) {
    if (name == "lora") lora = apply_lora(gpt, base, {.targets = {"h.*"}, .dropout = 0.1});
  }
  std::vector<Parameter> trained() const { return (lora ? lora->params() : base).all(); }
  static GptConfig config_of(std::string_view name) {
    GptConfig c{.vocab_size = 257, .context = 160, .layers = 2, .heads = 4, .width = 64, .dropout = 0.1};
    c.bias = name == "gpt2";
    if (c.bias) return c;
    c.vocab_size = 300, c.kv_heads = 2, c.width = 96, c.ff_width = 160, c.tied_head = false;
    c.positions = Positions::rope, c.norm = NormKind::rms_norm, c.activation = Activation::swiglu;
    return c;
  }
};
Expected computed(std::string_view name, std::string_view method) {
  const DType compute = method.empty() ? DType::f32 : DType::bf16;
  const Net net(name, DType::f32), narrow(name, compute);
  AdamW optimizer(net.trained(), {.lr = 1e-3});
  const Schedule schedule{.kind = ScheduleKind::cosine, .lr = 1e-3, .warmup = 10, .total = 100};
  Rng data{2}, dropout{3};
  Hash steps, served;
  for (int64_t step = 0; step < 100; ++step) {
    std::vector<int64_t> inputs, targets;
    while (inputs.size() < 4 * 48) {
      inputs.push_back(int64_t(data.below(64)));
      targets.push_back(3 * inputs.back() + 1);
    }
    const Batch batch{tensor(inputs, {4, 48}), tensor(targets, {4, 48})};
    const Tensor loss = Model(net.gpt).loss(batch, {.rng = &dropout, .compute = compute});
    steps.add(loss);
    optimizer.set_lr(schedule.at(step));
    optimizer.step(backward(loss));
  }
  for (const Parameter& p : net.trained()) steps.add(p.tensor);
  narrow.base.assign(net.base.state());
  if (net.lora) narrow.lora->params().assign(net.lora->params().state());
  const auto add = [&](int64_t, int64_t token, const Tensor& logits) {
    served.add(uint32_t(token)), served.add(__builtin_bit_cast(uint32_t, float(logprobs(logits, token)[0].logprob)));
  };
  const std::vector<std::vector<int64_t>> prompts{{1}, {2, 3, 4}, std::vector<int64_t>(140, 5)};
  generate_batch(narrow.gpt, prompts, 12, {.top_p = 0.9, .seed = 4}, {.on_logits = add});
  return {name, method, steps.value(), served.value()};
}
int run(SelftestOptions&) {
  const int level = detail::kernel_level(Backend::cpu);
  bool equal = true;
  for (const std::string_view name : {"gpt2", "llama", "lora"})
    for (const std::string_view method : {std::string_view(), detail::runtime_of(Device::cpu()).bf16_method()}) {
      const Expected x = computed(name, method);
      std::string_view verdict = level < 3 ? "not compared, without FMA" : "no machine has recorded its line";
      for (const Expected& e : kExpected) {
        if (e.model != x.model || e.method != x.method || level < 3) continue;
        const bool same = e.steps == x.steps && e.served == x.served;
        verdict = same ? "equal" : "DIFFERENT", equal &= same;
      }
      fmt::print("{:5} {}, level {}: steps {:016x}, served {:016x}: {}\n", name,
                 method.empty() ? "f32" : fmt::format("bf16 by {}", method), level, x.steps, x.served, verdict);
    }
  return equal ? 0 : 1;
}
}  // namespace

Subcommand selftest_command() {
  return subcommand<SelftestOptions>("selftest", "compare 100 steps and served tokens with those of other machines",
                                     run, [](Command&, SelftestOptions&) {});
}

}  // namespace tg::apps
