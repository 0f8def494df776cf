// Trains a small vision transformer on generated images.
//   vit [STEPS]
#include "vit.h"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  const tg::TrainConfig config{.max_steps = argc > 1 ? std::atoi(argv[1]) : 200, .lr = 3e-3, .warmup = 20};
  const tg::Params params(tg::Device::cpu(), config.seed);
  const Vit model(params, {});
  const auto held_out = [](int64_t i) -> std::optional<tg::Batch> {
    tg::Rng rng = tg::Rng{99}.split(uint64_t(i));
    return i < 8 ? std::optional(stripes(rng, 32, 16)) : std::nullopt;
  };
  tg::Trainer trainer(model, params, {[](tg::Rng& rng) { return stripes(rng, 32, 16); }, held_out}, config);
  trainer.run([](const tg::StepRecord& r) {
    if (r.step % 50 == 0) std::printf("step %d  loss %.4f\n", int(r.step), r.loss);
    if (r.val_loss) std::printf("validation loss %.4f\n", *r.val_loss);
  });
  const tg::Batch test = *held_out(0);
  std::printf("accuracy %.3f\n", tg::accuracy(model.forward(test.inputs), test.targets).item<double>());
}
