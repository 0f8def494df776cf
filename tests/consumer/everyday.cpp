// Uses other than training: a batch of prompts of unequal lengths, compiled steps, files of weights.
#include <tapegrad/tapegrad.h>

#include <cstdio>

#define CHECK(x) \
  if (!(x)) return std::printf("everyday: %s is false\n", #x), 1

int main() {
  const tg::Params params(tg::Device::cpu(), /*seed=*/1);
  const tg::Gpt gpt(params, {.vocab_size = 50, .context = 32, .layers = 2, .heads = 2, .width = 32});
  // Texts of a batch are those of each prompt alone.
  const std::vector<std::vector<int64_t>> prompts = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9}};
  const auto texts = tg::generate_batch(gpt, prompts, 12, {.temperature = 0}, {.stop = {49}});
  for (size_t i = 0; i < prompts.size(); ++i)
    CHECK(texts[i] == tg::generate(gpt, prompts[i], 12, {.temperature = 0}, {.stop = {49}}));
  // A compiled step has the losses of an eager one.
  const auto losses = [](bool compiled) {
    const tg::Params p(tg::Device::cpu(), /*seed=*/2);
    const tg::Gpt model(p, {.vocab_size = 50, .context = 8, .layers = 1, .heads = 2, .width = 16});
    tg::Muon optimizer(p.trainable(), {.lr = 0.02});
    const auto step = [&](tg::Inputs in) {
      const tg::Tensor loss = tg::cross_entropy(model.forward(in[0]), in[1]);
      optimizer.step(tg::backward(loss), {.clip_norm = 1});
      return std::vector{loss.detach()};
    };
    const tg::Compiled replay = tg::compile(step);
    std::vector<double> all;
    for (int i = 0; i < 5; ++i) {
      const std::vector<tg::Tensor> in = {tg::full({2, 8}, i, tg::DType::i64), tg::full({2, 8}, i + 1, tg::DType::i64)};
      all.push_back((compiled ? replay(in) : step(in))[0].item<double>());
    }
    return all;
  };
  CHECK(losses(true) == losses(false));
  // Weights go to a file, are changed there, and come back.
  tg::write_safetensors("weights.safetensors", params.state(), {{"made_by", "everyday"}});
  const tg::SafetensorsFile file("weights.safetensors");
  tg::StateDict weights = file.tensors();
  CHECK(file.metadata().at("made_by") == "everyday" && weights.size() == params.all().size());
  weights["wte.weight"] = weights["wte.weight"] * 0.0;
  params.assign(weights);
  const tg::NoGradScope off;
  CHECK(tg::all(gpt.forward(tg::zeros({1, 4}, tg::DType::i64)) == 0.0).item<bool>());  // the head is the table
}
