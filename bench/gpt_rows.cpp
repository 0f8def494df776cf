#include "gpt_rows.h"

#include <tapegrad/tapegrad.h>

namespace tg::bench {
namespace {
constexpr int64_t kBatch = 16, kContext = 128;
enum class Part { forward, backward, both };

struct Trained {  // a model with its data
  Params params;
  Gpt model;
  Tensor tokens, targets;
  DType compute;
  Trained(const GptConfig& c, Device device, DType products) : params(device, 1), model(params, c), compute(products) {
    Rng rng{2};
    const auto ids = [&] {
      return rand({kBatch, kContext}, rng, 0, double(c.vocab_size), DType::f32, device).to(DType::i64);
    };
    tokens = ids(), targets = ids();
  }
  Tensor loss() const { return cross_entropy(model.forward(tokens, {.compute = compute}), targets); }
};
std::function<void()> run_of(const std::shared_ptr<Trained>& t, Part part) {
  const Device device = t->params.device();
  switch (part) {
    case Part::forward:
      return [=] {
        const Tensor loss = t->loss();  // on the tape, as in training
        synchronize(device);
      };
    case Part::backward:
      return [=, loss = t->loss()] {
        backward(loss, {.retain_graph = true});
        synchronize(device);
      };
    case Part::both: break;
  }
  return [=] {
    backward(t->loss());
    synchronize(device);
  };
}
}  // namespace

std::vector<GptRow> gpt_rows(Device device) {
  std::vector<GptRow> rows;
  for (const char* arch_name : {"doc004-small", "doc004-medium"})
    for (const DType products : {DType::f32, DType::bf16})
      for (const auto& [name, part] :
           {std::pair{"forward", Part::forward}, {"backward", Part::backward}, {"both", Part::both}})
        rows.push_back({{fmt::format("{}_{}", arch_name, name), {kBatch, kContext}, std::string(name_of(products))},
                        [=] { return run_of(std::make_shared<Trained>(arch(arch_name), device, products), part); }});
  return rows;
}

}  // namespace tg::bench
