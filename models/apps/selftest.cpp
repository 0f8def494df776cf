// `tapegrad selftest`: whether this machine computes the same numbers as others. Each line hashes the losses
// and weights of 100 training steps with dropout, then what generation says of tokens, for one small model.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/io/hash.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/models/model/lora.h>
#include <tapegrad/models/train/trainer.h>

namespace tg::apps {
namespace {
struct SelftestOptions {};
struct Expected {
  std::string_view model, method;  // method: of bf16, empty in f32
  uint64_t steps, served;
};
// Made with TG_ISA=3 and 4; lines of AMX with emulated tiles, in the order of sums measured on a Xeon.
constexpr Expected kExpected[] = {
    {"gpt2", "", 0x4546ddf3f89dbb00, 0x112b106847dca6de},
    {"gpt2", "f32", 0x56c7c64b0028d4b3, 0x8f6bcbff33c7d2aa},
    {"gpt2", "avx512", 0x8be1b3232f89a375, 0x6c7ccda8f4a7d096},
    {"gpt2", "amx", 0xda8c084f1ae8ad1b, 0x4cd08be8d1b87971},
    {"llama", "", 0x0e76938b84a00210, 0xa74c940780a70f75},
    {"llama", "f32", 0x83ee5336717b0ecb, 0xa2c0357e5d12cb77},
    {"llama", "avx512", 0x050247bb97bcf373, 0x03944c074e191253},
    {"llama", "amx", 0xd99f461fc2b06eb5, 0xc642c161db7dfa9b},
    {"lora", "", 0xbaadf2f50a7fc429, 0x69fae1c815fd9aee},
    {"lora", "f32", 0xfbef84159ac67c8f, 0xdc88f677f4fcd305},
    {"lora", "avx512", 0x64bf38d00d456f2e, 0xee3e66d762bd6522},
    {"lora", "amx", 0x8eec84ac191150bc, 0xd2bb94a12cbb9cdc},
};

struct Net {
  Params base;
  Gpt gpt;
  std::optional<Lora> lora;
  Net(std::string_view name, DType dtype) : base(Device::cpu(), 1, dtype), gpt(base, config_of(name)) {
    if (name == "lora") lora = apply_lora(gpt, base, {.targets = {"h.*"}, .dropout = 0.1});
  }
  const Params& trained() const { return lora ? lora->params() : base; }
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
  std::vector<int64_t> tokens{0};
  for (Rng data{2}; tokens.size() < 4000;)
    tokens.push_back(data.below(8) ? (3 * tokens.back() + 1) % 64 : int64_t(data.below(64)));
  TrainConfig c;
  c.batch = 4, c.window = 48, c.max_steps = 100, c.warmup = 10, c.val_fraction = 0, c.dtype = compute;
  Trainer trainer(net.gpt, net.trained(), TokenData::from_tokens(tokens), c);
  Hash steps, served;
  trainer.run([&](const StepRecord& r) { steps.add(__builtin_bit_cast(uint64_t, r.loss)); });
  for (const Parameter& p : net.trained().all()) steps.add(p.name, p.tensor);
  narrow.base.assign(net.base.state());
  narrow.trained().assign(net.trained().state());
  const auto add = [&](int64_t, int64_t token, const Tensor& logits) {
    served.add(uint64_t(token)), served.add(__builtin_bit_cast(uint64_t, logprobs(logits, token)[0].logprob));
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
