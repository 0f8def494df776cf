// recipe_steps PRESET SHARD OUT STEPS f64|f32: steps of a small model by the settings of a preset, for recipes.py. OUT
// gets init.safetensors, final.safetensors and losses.txt.
#include <tapegrad/tools.h>

#include <cstdio>
#include <fstream>

int main(int count, char** words) try {
  if (count != 6) {
    std::fprintf(stderr, "recipe_steps PRESET SHARD OUT STEPS f64|f32\n");
    return 2;
  }
  const std::string preset = words[1], out = words[3];
  const bool wide = std::string_view(words[5]) == "f64";
  tg::RunConfig run = tg::run_preset(preset);
  tg::GptConfig& m = run.model;
  tg::TrainConfig& t = run.train;
  m.heads = 256 / m.head_size(), m.width = 256, m.vocab_size = 512, m.context = 64, m.layers = 2;
  t.batch = t.accumulate = 2, t.max_steps = std::stoll(words[4]), t.val_fraction = 0;
  t.dtype.reset(), t.muon_dtype = wide ? tg::DType::f64 : tg::DType::f32;
  if (t.warmup > 0) t.warmup = 4;  // reaches lr in the fifth step
  if (t.optimizer == tg::OptimizerKind::muon) {
    t.eps *= double(1 << 19) / double(t.batch * t.accumulate * m.context);
    if (wide) m.norm_eps = 0x1p-52;  // PyTorch's choice by dtype
  }
  const tg::Params params(tg::Device::cpu(), t.seed, wide ? tg::DType::f64 : tg::DType::f32);
  const tg::Gpt model(params, m);
  tg::write_safetensors(out + "/init.safetensors", params.state());
  tg::Trainer trainer(model, params, tg::TokenData::from_file(words[2]), t);
  std::ofstream losses(out + "/losses.txt");
  losses.precision(17);
  trainer.run([&](const tg::StepRecord& r) { losses << r.loss << '\n'; });
  tg::write_safetensors(out + "/final.safetensors", params.state());
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
