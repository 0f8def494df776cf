#include <tapegrad/cuda/runtime/runtime.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/reduce.h>

#include "support/effort.h"
#include "support/gpt_oracle.h"
#include "support/small_run.h"

using namespace tg;

namespace {
const LoraConfig kConfig{.targets = {"*"}, .rank = 3, .alpha = 6, .dropout = 0.2, .seed = 4};
struct Adapted {
  Params base;
  Gpt model;
  Lora lora;
  Adapted(const Oracle& o, Device d) : base(d), model(o.model(base)), lora(apply_lora(model, base, kConfig)) {
    fill(lora);
  }
  GradMap gradients(const Tensor& tokens, const Tensor& targets) const {
    Rng rng{5};
    const Device d = base.device();
    return backward(cross_entropy(model.forward(tokens.to(d), {.rng = &rng}), targets.to(d)));
  }
};
}  // namespace

TEST_CASE("LoRA: logits, gradients and merged weights are those of the CPU") {
  for (const std::string name : {"gpt_gpt2", "gpt_gqa"}) {
    CAPTURE(name);
    const Oracle o(name);
    Adapted cpu(o, Device::cpu()), cuda(o, Device::cuda());
    const Tensor tokens = o.batch("tokens", 0), targets = o.batch("targets", 0), there = tokens.to(Device::cuda());
    CHECK(bits_of(cuda.lora.params().all()[0].tensor) == bits_of(cpu.lora.params().all()[0].tensor));
    const Tensor logits = cuda.model.forward(there);
    CHECK(distance(logits, cpu.model.forward(tokens)) <= 1e-5);
    const GradMap expected = cpu.gradients(tokens, targets), got = cuda.gradients(tokens, targets);
    CHECK(got.size() == expected.size());
    for (size_t i = 0; i < cpu.lora.params().all().size(); ++i) {
      const Parameter p = cpu.lora.params().all()[i];
      CAPTURE(p.name);
      CHECK(distance(got[cuda.lora.params().all()[i].tensor], expected[p.tensor]) <= 1e-5);
    }
    const auto before = bits_of(cuda.base.all()[2].tensor);
    cuda.lora.merge();
    CHECK(distance(cuda.model.forward(there), logits) <= 1e-5);
    cuda.lora.unmerge();
    CHECK(bits_of(cuda.base.all()[2].tensor) == before);
    CHECK(bits_of(cuda.model.forward(there)) == bits_of(logits));
  }
}

TEST_CASE("LoRA: adapters are trained on the device, saved, and loaded on the CPU") {
  const Folder folder;
  TrainConfig c = tiny_train();
  c.batch = 2, c.max_steps = 4, c.eval_every = 0, c.val_fraction = 0.02;
  const GptConfig small{.vocab_size = 128, .context = 8, .layers = 2, .heads = 2, .width = 16};
  std::vector<std::vector<StepRecord>> losses;
  for (const Device d : {Device::cpu(), Device::cuda()}) {
    auto [base, model] = new_gpt(small, Params(d, 1));
    const std::string weights = weights_hash(base);
    const Lora lora = apply_lora(model, base, kConfig);
    Trainer trainer(model, lora.params(), bytes_of(rhyme()), c);
    losses.push_back(rest_of(trainer));
    save_adapter(folder.path, lora, {.layout = adapter_layout(small), .base = weights});
  }
  for (size_t i = 0; i < losses[0].size(); ++i)
    CHECK(losses[1][i].loss == doctest::Approx(losses[0][i].loss).epsilon(1e-4));
  auto [base, model] = new_gpt(small, Params(Device(), 1));
  const Lora lora = load_adapter(folder.path, model, base, adapter_layout(small));
  LoraConfig same = lora.config();
  same.targets = kConfig.targets, same.seed = kConfig.seed;
  CHECK(same == kConfig);
  CHECK(lora.modules().size() == 8);
  CHECK(lora.params().device() == Device::cpu());
}

TEST_CASE("LoRA: ranks about the 48 KiB that a block has unasked, those with room for four rows, for one, for none") {
  const Device d = Device::cuda();
  const int64_t rows = 4 * cuda::properties(0).multiprocessors,
                largest = int64_t(cuda::properties(0).shared_per_block / sizeof(float)) - 64;
  const auto apply = [&](int64_t rank) {
    return max(tg::lora(ones({rows, 1}).to(d), ones({1, rank}).to(d), ones({rank, 1}).to(d), 0.5));
  };
  CHECK(apply(3040).item<float>() == 1520);
  for (const int64_t rank : {largest / 4 - 47, largest})
    if (has_time() || rank < 10000) CHECK(apply(rank).item<float>() == 0.5f * float(rank));
  CHECK_SAYS(apply(largest + 1), fmt::format("[lora] the rank is {}", largest + 1));
}
TEST_CASE("LoRA: a row has the same bits alone and among many") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t rank : {3, 8, 24}) {
      CAPTURE_ALL(name_of(t), rank);
      const Tensor x = random({35, 300}, 1).to(t), a = random({300, rank}, 2).to(t), b = random({rank, 12}, 3).to(t),
                   base = random({35, 12}, 4).to(t);
      const auto on = [](const Tensor& z) { return z.to(Device::cuda()); };
      const Tensor all = tg::lora(on(x), on(a), on(b), 0.5, on(base));
      CHECK(distance(all, tg::lora(x, a, b, 0.5, base)) <= (t == DType::f64 ? 1e-13 : t == DType::f32 ? 1e-5 : 2e-2));
      for (const int64_t row : {0, 17, 34}) {
        const auto alone = [&](const Tensor& z) { return on(slice(z, 0, row, row + 1)); };
        CHECK(bits_of(tg::lora(alone(x), on(a), on(b), 0.5, alone(base))) == bits_of(slice(all, 0, row, row + 1)));
      }
    }
}
