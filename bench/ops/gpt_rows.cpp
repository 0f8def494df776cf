#include "ops/gpt_rows.h"

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
  MatmulPrecision products;
  Trained(const GptConfig& c, Device device, const std::string& dtype)
      : params(device, 1),
        model(params, c),
        compute(dtype == "bf16" ? DType::bf16 : DType::f32),
        products(dtype == "tf32" ? MatmulPrecision::tf32 : MatmulPrecision::f32) {
    Rng rng{2};
    const auto ids = [&] {
      return rand({kBatch, kContext}, rng, 0, double(c.vocab_size), DType::f32, device).to(DType::i64);
    };
    tokens = ids(), targets = ids();
  }
  Tensor loss() const {
    const MatmulPrecisionScope scope(products);
    return cross_entropy(model.forward(tokens, {.compute = compute}), targets);
  }
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
  for (const char* arch_name : {"gpt-small-10k", "gpt-medium-10k"})
    for (const char* products : {"f32", "tf32", "bf16"})
      for (const auto& [name, part] :
           {std::pair{"forward", Part::forward}, {"backward", Part::backward}, {"both", Part::both}})
        rows.push_back({{fmt::format("{}_{}", arch_name, name), {kBatch, kContext}, products},
                        [=] { return run_of(std::make_shared<Trained>(arch(arch_name), device, products), part); }});
  return rows;
}

}  // namespace tg::bench
