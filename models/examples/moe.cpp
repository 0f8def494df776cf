// A mixture of experts: trained, saved, loaded, sampled.
//   moe TEXT [STEPS] [TOP_K] [FOLDER]
#include "moe.h"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: moe TEXT [STEPS] [TOP_K] [FOLDER]\n"), 2;
  const std::string text = tg::read_texts(std::vector<std::string>{argv[1]});
  const tg::CharTokenizer tokenizer = tg::CharTokenizer::from_text(text);
  const tg::TrainConfig config{.batch = 8, .max_steps = argc > 2 ? std::atoi(argv[2]) : 200, .lr = 3e-3, .warmup = 20};

  const tg::Params params(tg::Device::cpu(), config.seed);
  const MoeDecoder model(params, {.vocab_size = tokenizer.vocab_size(), .top_k = argc > 3 ? std::atoi(argv[3]) : 1});
  tg::Trainer trainer(model, params, tg::TokenData::from_text(tokenizer, text), config);
  trainer.run([](const tg::StepRecord& r) {
    if (r.step % 50 == 0) std::printf("step %d  loss %.4f\n", int(r.step), r.loss);
    if (r.val_loss) std::printf("validation loss %.4f\n", *r.val_loss);
  });
  const std::string folder = argc > 4 ? argv[4] : "";
  if (!folder.empty()) tg::save_model(folder, model, params, &tokenizer);
  const MoeDecoder writer = folder.empty() ? model : tg::load_model<MoeDecoder>(folder).model;
  std::printf(
      "%s\n",
      tokenizer.decode(tg::generate(writer, tokenizer.encode(text.substr(0, 16)), 80, {.temperature = 0.8, .seed = 1}))
          .c_str());
}
