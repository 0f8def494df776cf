// `tapegrad selftest`: whether this machine computes the same numbers as others. Each line hashes the losses
// and weights of 100 training steps, then what generation says of tokens, for one small model.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/generate.h>
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
    {"llama", "f32", 0x14ab0747fcbbffa7, 0xbe2b00e0ee29003c},
    {"llama", "avx512", 0x0ad691da6590154a, 0xbb3297a3897cba54},
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
Expected computed(std::string_view name, const GptConfig& config, std::string_view method) {
  const std::optional<DType> compute = method.empty() ? std::nullopt : std::optional(DType::bf16);
  const Params params(Device::cpu(), 1);
  const Gpt model(params, config);
  AdamW optimizer(params.all(), {.lr = 1e-3});
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
    const Tensor loss = Model(model).loss(batch, {.rng = config.dropout > 0 ? &dropout : nullptr, .compute = compute});
    steps.add(loss);
    optimizer.set_lr(schedule.at(step));
    optimizer.step(backward(loss));
  }
  const Params narrow(Device::cpu(), 1, compute.value_or(DType::f32));
  const Gpt used(narrow, config);
  const auto kept = narrow.all();
  for (size_t i = 0; i < kept.size(); ++i) {
    const Tensor weight = params.all()[i].tensor.detach();
    steps.add(weight);
    kept[i].tensor.assign(weight.to(kept[i].tensor.dtype()));
  }
  const auto add = [&](int64_t, int64_t token, const Tensor& logits) {
    served.add(uint32_t(token)), served.add(__builtin_bit_cast(uint32_t, float(logprobs(logits, token)[0].logprob)));
  };
  const std::vector<std::vector<int64_t>> prompts{{1}, {2, 3, 4}, std::vector<int64_t>(140, 5)};
  generate_batch(used, prompts, 12, {.top_p = 0.9, .seed = 4}, {.on_logits = add});
  return {name, method, steps.value(), served.value()};
}
int run(SelftestOptions&) {
  const int level = detail::kernel_level(Backend::cpu);
  const std::string_view method = detail::runtime_of(Device::cpu()).bf16_method();
  const GptConfig gpt2{
      .vocab_size = 257, .context = 160, .layers = 2, .heads = 4, .width = 64, .bias = true, .dropout = 0.1};
  const GptConfig llama{.vocab_size = 300,
                        .context = 160,
                        .layers = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .width = 96,
                        .ff_width = 160,
                        .positions = Positions::rope,
                        .norm = NormKind::rms_norm,
                        .activation = Activation::swiglu,
                        .tied_head = false};
  bool equal = true;
  for (const Expected& x : {computed("gpt2", gpt2, ""), computed("llama", llama, method)}) {
    std::string_view verdict = level < 3 ? "not compared, without FMA" : "no machine has recorded its line";
    for (const Expected& e : kExpected) {
      if (e.model != x.model || e.method != x.method || level < 3) continue;
      const bool same = e.steps == x.steps && e.served == x.served;
      verdict = same ? "equal" : "DIFFERENT", equal &= same;
    }
    fmt::print("{:5} {}, level {}: steps {:016x}, served {:016x}: {}\n", x.model,
               x.method.empty() ? "f32" : fmt::format("bf16 by {}", x.method), level, x.steps, x.served, verdict);
  }
  return equal ? 0 : 1;
}
}  // namespace

Subcommand selftest_command() {
  return subcommand<SelftestOptions>("selftest", "compare 100 steps and served tokens with those of other machines",
                                     run, [](Command&, SelftestOptions&) {});
}

}  // namespace tg::apps
