#include <tapegrad/core/mode.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/models/tools/compare.h>
#include <tapegrad/ops/loss.h>

#include "support/effort.h"
#include "support/gpt_oracle.h"
#include "support/on_cuda.h"
#include "support/small_run.h"

using namespace tg;

namespace {
const Side kCpu, kCuda{.device = Device::cuda()};
Side with(Side s, DType weights, std::optional<DType> compute = {}) {
  s.weights = weights, s.compute = compute;
  return s;
}
void check_within(const Comparison& c) {
  CHECK_MESSAGE(c.within(), to_table(c));
  CHECK(c.unpaired.empty());
}
Comparison of_oracle(const Oracle& o, const Side& a, const Side& b) {
  return compare(o.config, o.weights("init"), {o.batch("tokens", 0), o.batch("targets", 0)}, a, b);
}

GptConfig small_model() {
  return {.vocab_size = 128, .context = 8, .layers = 2, .heads = 2, .width = 16, .dropout = 0.1};
}
TrainConfig six_steps() {
  TrainConfig c = tiny_train();
  c.batch = 2;
  c.max_steps = 6;  // one past the warm-up
  c.eval_every = 0, c.val_fraction = 0.02;
  return c;
}
struct DeviceRun : Run {
  explicit DeviceRun(Device d, const TrainConfig& c = six_steps()) : Run(c, small_model(), rhyme(), d) {}
};
bool near(double a, double b, double relative) { return std::abs(a - b) <= relative * std::abs(b); }
void check_same_losses(const std::vector<StepRecord>& a, const std::vector<StepRecord>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(a[i].step);
    CHECK(near(a[i].loss, b[i].loss, 1e-4));
    CHECK(near(a[i].grad_norm, b[i].grad_norm, 1e-3));
    CHECK(near(a[i].val_loss.value_or(0), b[i].val_loss.value_or(0), 1e-4));
  }
}
}  // namespace

TEST_CASE("GPT: logits, loss and gradients equal torch's") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    const Oracle o(name);
    const double near = tolerance(DType::f32, o.config.layers * o.config.width * o.config.context);
    const Params params(Device::cuda());
    const Gpt model = o.model(params);
    const Tensor logits = model.forward(o.batch("tokens", 0).to(Device::cuda()));
    CHECK(logits.device() == Device::cuda());
    CHECK(distance(logits, o.file.tensor("logits")) <= near);
    const Tensor loss = cross_entropy(logits, o.batch("targets", 0).to(Device::cuda()));
    CHECK(distance(loss, o.file.tensor("loss")) <= near);
    const GradMap grads = backward(loss);
    const StateDict expected = o.weights("grad");
    for (auto& p : params.all()) {
      CAPTURE(p.name);
      CHECK(grads[p.tensor].device() == Device::cuda());
      CHECK(distance(grads[p.tensor], expected.at(p.name)) <= near);
    }
  }
}
TEST_CASE("GPT in bf16: logits and gradients near those of torch in f64") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    const Oracle o(name);
    const Params params(Device::cuda());
    const Gpt model = o.model(params);
    const Tensor logits = model.forward(o.batch("tokens", 0).to(Device::cuda()), {.compute = DType::bf16});
    CHECK(logits.dtype() == (o.config.logit_cap > 0 ? DType::f32 : DType::bf16));
    CHECK(distance(logits, o.file.tensor("logits")) <= 2e-2);
    CHECK(distance(logits, o.file.tensor("logits")) > 1e-4);
  }
}
TEST_CASE("GPT: each tensor of a training step as on the CPU, in f32, f64 and bf16") {
  for (const std::string& name : in_turns(kOracles)) {
    CAPTURE(name);
    const Oracle o(name);
    check_within(of_oracle(o, kCpu, kCuda));
    check_within(of_oracle(o, with(kCpu, DType::f64), with(kCuda, DType::f64)));
    // One step against f32: rounding accumulates, more so in norms of small heads. The limit is twice the CPU's bf16
    // error per tensor.
    const Comparison narrow = of_oracle(o, kCpu, with(kCuda, DType::f32, DType::bf16));
    const Comparison host = of_oracle(o, kCpu, with(kCpu, DType::f32, DType::bf16));
    for (const Compared& t : narrow.tensors) {
      if (t.stage != Stage::gradients && t.stage != Stage::update && t.name != "logits" && t.name != "loss") continue;
      const auto same =
          std::ranges::find_if(host.tensors, [&](const Compared& h) { return h.stage == t.stage && h.name == t.name; });
      REQUIRE(same != host.tensors.end());
      CHECK_MESSAGE(t.error <= std::max(t.tolerance, 2 * same->error), t.name);
    }
  }
}
TEST_CASE("GPT: a step on the device twice is equal in every tensor, dropout and recomputed blocks included") {
  GptConfig g = small_model();
  g.positions = Positions::rope, g.kv_heads = 1, g.activation = Activation::swiglu;
  const auto [weights, made] = new_gpt(g, Params(Device::cpu(), 4));
  const Tensor tokens = tensor<int32_t>({1, 2, 3, 4, 5, 6}, {2, 3}),
               targets = tensor<int32_t>({2, 3, 4, 5, 6, 7}, {2, 3});
  check_within(compare(g, weights.state(), {tokens, targets}, kCuda, kCuda));
  check_within(compare(g, weights.state(), {tokens, targets}, kCpu, kCuda));
  const Params params(Device::cuda());
  params.load(weights.state());
  const Gpt model(params, g);
  const auto gradients = [&](bool recompute) {
    Rng rng{6};
    return backward(cross_entropy(model.forward(tokens.to(Device::cuda()), {.rng = &rng, .recompute = recompute}),
                                  targets.to(Device::cuda())));
  };
  const GradMap kept = gradients(false), again = gradients(true);
  for (auto& p : params.all()) {
    CAPTURE(p.name);
    CHECK(bits_of(kept[p.tensor]) == bits_of(again[p.tensor]));
  }
}

TEST_CASE("training: six steps on the device are those of the CPU, and the same again") {
  DeviceRun cpu(Device::cpu()), cuda(Device::cuda()), once_more(Device::cuda());
  const auto expected = rest_of(cpu.trainer), got = rest_of(cuda.trainer);
  CHECK(cuda.params.all()[0].tensor.device() == Device::cuda());
  check_same_losses(got, expected);
  CHECK(got.back().loss < got.front().loss);
  CHECK(got.back().peak_bytes > 0);
  CHECK(numbers_of(rest_of(once_more.trainer)) == numbers_of(got));
}
TEST_CASE("training: accumulated, in bf16, with recomputed blocks") {
  TrainConfig c = six_steps();
  c.max_steps = 3, c.accumulate = 2, c.recompute = Recompute::block;
  DeviceRun cpu(Device::cpu(), c), cuda(Device::cuda(), c);
  check_same_losses(rest_of(cuda.trainer), rest_of(cpu.trainer));
  c.dtype = DType::bf16;
  DeviceRun cpu16(Device::cpu(), c), cuda16(Device::cuda(), c);
  const auto a = rest_of(cuda16.trainer), b = rest_of(cpu16.trainer);
  for (size_t i = 0; i < a.size(); ++i) CHECK(near(a[i].loss, b[i].loss, 2e-2));
}
TEST_CASE("training: a checkpoint of one device goes on on the other") {
  Folder folder;
  DeviceRun whole(Device::cpu());
  const auto expected = rest_of(whole.trainer);
  for (const auto& [first, second] :
       {std::pair(Device::cuda(), Device::cpu()), std::pair(Device::cpu(), Device::cuda())}) {
    CAPTURE(to_string(second));
    DeviceRun a(first);
    for (int i = 0; i < 3; ++i) a.trainer.step();
    Checkpoint c{
        .config = "{}", .tokenizer = "", .data = DataIdentity::of(bytes_of(rhyme())), .state = a.trainer.state()};
    save_checkpoint(folder / "checkpoint", c);
    DeviceRun b(second);
    const Checkpoint read = load_checkpoint(folder / "checkpoint");
    for (auto& [name, t] : read.state.tensors) CHECK(bits_of(t) == bits_of(c.state.tensors.at(name)));
    b.trainer.load_state(read.state);
    for (auto& p : b.params.all()) CHECK(p.tensor.device() == second);
    check_same_losses(rest_of(b.trainer), {expected.begin() + 3, expected.end()});
  }
}
TEST_CASE("training: what diverges on the device is named") {
  GptConfig g = small_model();
  g.init_std = 6e37;
  Run run(six_steps(), g, rhyme(), Device::cuda());
  CHECK_SAYS_OF(non_finite, run.trainer.step(), "[train] the loss of step 1 is", "in gpt");
}

TEST_CASE("generation: the tokens of the CPU, with the cache and without, beyond the context too") {
  for (const std::string& name : in_turns(std::vector<std::string>{"gpt_nano", "gpt_gqa"})) {
    const Oracle o(name);
    const Params on_cpu, on_cuda(Device::cuda());
    const Gpt cpu = o.model(on_cpu), cuda = o.model(on_cuda);
    const std::vector<int64_t> prompt{1, 2, 3};
    for (const SampleOptions& s : {SampleOptions{.temperature = 0}, {.top_k = 20, .top_p = 0.9, .seed = 7}}) {
      const auto expected = generate(cpu, prompt, 12, s);
      CHECK(expected.size() == 12);
      CHECK(generate(cuda, prompt, 12, s) == expected);
      CHECK(generate(cuda, prompt, 12, s, {.use_cache = false}) == expected);
      CHECK(generate(cuda, prompt, 12, s, {.compile = false}) == expected);
      const std::vector<std::vector<int64_t>> prompts{prompt, {4}, {5, 6, 7, 8, 9}};
      CHECK(generate_batch(cuda, prompts, 7, s) == generate_batch(cpu, prompts, 7, s));
    }
  }
}
TEST_CASE("parameters: made, saved, loaded and moved between devices with the same bits") {
  Folder folder;
  GptConfig g = small_model();
  for (const InitScheme init : {InitScheme::gpt2, InitScheme::xavier}) {
    g.init = init;
    const Params on_cpu(Device::cpu(), 9), on_cuda(Device::cuda(), 9);
    const Gpt cpu(on_cpu, g), cuda(on_cuda, g);
    save_model(folder.path, cuda, on_cuda, nullptr);
    const LoadedModel there = load_model(folder.path, Device::cuda()), here = load_model(folder.path);
    const Params moved(Device::cuda());
    moved.load(on_cpu.state());
    const Gpt model(moved, g);
    for (size_t i = 0; i < on_cpu.all().size(); ++i) {
      const auto [name, t, parts, low] = on_cpu.all()[i];
      CAPTURE(name);
      for (const Params* p : {&on_cuda, &there.params, &here.params, &moved}) {
        CHECK(p->all()[i].tensor.device() == p->device());
        CHECK(bits_of(p->all()[i].tensor) == bits_of(t));
      }
    }
    on_cuda.assign(on_cpu.state());
    CHECK(on_cuda.all()[0].tensor.device() == Device::cuda());
  }
}
