// The profiler over layers and training steps.
#include <tapegrad/tools.h>

#include <map>

#include "support/tiny_gpt.h"

using namespace tg;

namespace {
const GptConfig kSmall{.vocab_size = 11, .context = 6, .layers = 2, .heads = 2, .width = 8};

std::string outermost(const Scope* s) {
  while (s && s->parent && s->parent->parent) s = s->parent;
  return s ? s->name : "";
}
// The part of the path within the outermost range: "forward", "backward".
std::string second(const Scope* s) {
  while (s && s->parent && s->parent->parent && s->parent->parent->parent) s = s->parent;
  return s && s->parent && s->parent->parent ? s->name : "";
}
Tensor tokens() { return tensor<int32_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1}, {2, 6}); }

// "backward gpt.h.1.attn.c_proj matmul" -> number of kernels.
std::map<std::string, int> kernels_of(const Profile& p, std::string_view range) {
  std::map<std::string, int> r;
  for (const Profile::Kernel& k : p.kernels)
    if (outermost(k.path) == range)
      ++r[fmt::format("{} {} {}", second(k.path), k.layer && k.layer->parent ? k.layer->path() : "", k.op)];
  return r;
}
}  // namespace

TEST_CASE("profiler: layers of a GPT are ranges, kernels of backward belong to the layer of the forward op") {
  const auto [params, model] = new_gpt(kSmall, Params(Device(), 1));
  Profiler profiler;
  {
    const ProfileRange range("step");
    Tensor loss;
    {
      const ProfileRange forward(Phase::forward);
      loss = cross_entropy(model.forward(tokens()), tokens());
    }
    backward(loss);
  }
  const Profile p = profiler.stop();
  std::map<std::string, int> layers;
  for (const Profile::Range& r : p.ranges)
    if (r.kind == RangeKind::layer) ++layers[std::string(r.name)];
  CHECK(layers.at("gpt") == 1);
  for (const char* layer : {"gpt.h.0", "gpt.h.1"}) CHECK(layers.at(layer) == 1);
  CHECK(layers.at("gpt.h.1.attn.qkv") == 1);
  std::map<std::string, int> products;  // each linear layer: one forward, two backward
  for (const auto& [what, n] : kernels_of(p, "step"))
    if (has(what, "gpt.h.1.mlp.fc ") && (has(what, " linear") || has(what, " matmul")))
      products[what.substr(0, what.find(' '))] += n;
  CHECK(products == std::map<std::string, int>{{"forward", 1}, {"backward", 2}});
  const ProfileTable t = kernel_time_by_range(p);
  double sum = 0;
  for (const auto& row : t.rows)
    if (!std::get<std::string>(row.back()).starts_with(' ')) sum += std::get<double>(row[1]);
  int64_t all = 0;
  for (const Profile::Kernel& k : p.kernels) all += k.end - k.begin;
  CHECK(sum == double(all));
  CHECK(t.at("step", "Kernels/Instance") == double(p.kernels.size()));
  CHECK(t.at("  forward", "Total Time (ns)") + t.at("  backward", "Total Time (ns)") <=
        t.at("step", "Total Time (ns)"));
}
TEST_CASE("profiler: kernels of a compiled step have the phases and layers of those of an eager one") {
  std::map<std::string, int> by_mode[2];
  for (const bool compiled : {false, true}) {
    const auto [params, model] = new_gpt(kSmall, Params(Device(), 1));
    AdamW optimiser(params.trainable(), {.lr = 1e-3});
    const TensorFunction step = [&](Inputs x) {
      Tensor loss;
      {
        const ProfileRange forward(Phase::forward);
        loss = cross_entropy(model.forward(x[0]), x[0]);
      }
      optimiser.step(backward(loss), {.clip_norm = 1});
      return std::vector<Tensor>{loss.detach()};
    };
    const Compiled fast = compile(step);
    const std::vector<Tensor> in{tokens()};
    fast(in);  // traced before the profiler starts
    Profiler profiler;
    {
      const ProfileRange range("step");
      compiled ? fast(in) : step(in);
    }
    const Profile p = profiler.stop();
    std::map<std::string, int> products;  // fusion changes the other kernels
    for (const auto& [what, n] : kernels_of(p, "step"))
      if (has(what, " matmul") || has(what, " linear") || has(what, "attention") || has(what, " adamw"))
        by_mode[compiled][what.substr(0, what.rfind(' '))] += n;
  }
  CHECK(by_mode[0].size() > 10);
  CHECK(by_mode[0] == by_mode[1]);
}
TEST_CASE("profiler: a trainer's steps have their phases") {
  std::vector<int64_t> ids(200);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int64_t(i % 11);
  const auto [params, model] = new_gpt(kSmall, Params(Device(), 1));
  Trainer trainer(model, params, TokenData::from_tokens(ids),
                  {.batch = 2, .accumulate = 2, .max_steps = 4, .eval_every = 4, .val_fraction = 0.2});
  trainer.step();
  Profiler profiler;
  trainer.step();
  trainer.step();
  const Profile p = profiler.stop();
  std::map<std::string, int> ranges;
  for (const Profile::Range& r : p.ranges)
    if (r.kind == RangeKind::range) ++ranges[r.path->path()];
  CHECK(ranges == std::map<std::string, int>{
                      {"step", 2}, {"step.forward", 4}, {"step.loss", 8}, {"step.backward", 4}, {"step.optimizer", 4}});
  const ProfileTable t = kernel_time_by_range(p);
  CHECK(t.at("step", "Instances") == 2);
  double percent = 0;
  for (const char* phase : {"  forward", "  loss", "  backward", "  optimizer"}) percent += t.at(phase, "Time (%)");
  CHECK(percent > 80);
}
