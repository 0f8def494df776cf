// Training with split weights (TrainConfig::split_weights) has the bits of training with whole ones.
#include <tapegrad/tools.h>

#include "support/split_training.h"

using namespace tg;

TEST_CASE("split weights: records, weights and moments of whole ones until a weight is on a tie, in every mode") {
  int64_t steps = 0;
  for (const DType moments : {DType::f32, DType::bf16})
    for (const int64_t accumulate : {1, 3})
      for (const std::string mode : {"eager", "lazy", "compiled"}) {
        CAPTURE_ALL(name_of(moments), accumulate, mode);
        TrainConfig c = split_config();
        c.moments = moments, c.accumulate = accumulate, c.compile = mode == "compiled";
        if (accumulate > 1) c.recompute = Recompute::block;
        steps += check_split_training(c, {}, mode == "lazy");
      }
  CHECK(steps > 40);  // maximum 240, if there is no tie
}
TEST_CASE("split weights: a run that is resumed with and without them has the bits of one without") {
  Folder folder;
  Run whole(split_config(false), few_weights());
  bool tie = false;
  for (int part = 0; part < 3; ++part) {
    Run run(split_config(part != 1), few_weights());
    if (part > 0) {
      const TrainerState s = load_checkpoint(folder / "c").state;
      run.trainer.load_state(s);
      CHECK(snapshot(run.trainer.state()) == snapshot(s));
    }
    for (int i = 0; i < 4; ++i) {
      tie = tie || has_tie(whole.params);
      whole.trainer.step(), run.trainer.step();
    }
    const TrainerState s = run.trainer.state();
    for (const auto& [name, t] : s.tensors) CHECK(t.dtype() == DType::f32);
    CHECK(s.tensors.size() == 3 * run.params.all().size());
    if (!tie) CHECK(snapshot(s) == snapshot(whole.trainer.state()));
    RunConfig config;
    config.model = few_weights(), config.train = run.trainer.config();
    save_checkpoint(folder / "c",
                    {.config = to_json(config), .data = DataIdentity::of(bytes_of(rhyme()), {}), .state = s});
  }
}
TEST_CASE("split weights: what is saved is whole, and a state that cannot be split changes nothing") {
  Folder folder;
  TrainConfig c = split_config();
  Run run(c, few_weights());
  for (int i = 0; i < 3; ++i) run.trainer.step();
  save_model(folder.path, run.model, run.params);
  const LoadedModel back = load_model(folder.path);
  int64_t bytes = 0, splits = 0;
  for (const Parameter& p : run.params.all()) {
    CHECK(bits_of(back.params.state().at(p.name)) == bits_of(run.params.state().at(p.name)));
    CHECK(bool(p.low) == (p.tensor.dtype() == DType::bf16));
    splits += bool(p.low), bytes += int64_t(p.tensor.layout().bytes() + (p.low ? p.low.layout().bytes() : 0));
  }
  CHECK(splits == 4);
  CHECK(bytes == 4 * run.params.numel());
  const auto before = snapshot(run.trainer.state());
  TrainerState bad = run.trainer.state();
  bad.tensors["model.h.0.mlp.fc.weight"] = full({32, 8}, 3.4e38);
  CHECK_SAYS(run.trainer.load_state(bad), "[split_weight] element 0 of (32, 8) f32 is 3.4e+38");
  StateDict values = run.params.state();
  values["h.0.mlp.fc.weight"] = bad.tensors["model.h.0.mlp.fc.weight"];
  CHECK_SAYS(run.params.assign(values), "the nearest bf16 infinite");
  CHECK(snapshot(run.trainer.state()) == before);
}
TEST_CASE("split weights: what refuses them") {
  const auto [params, model] = new_gpt(few_weights());
  const auto trains = [&](const auto& change, const Model& m, const Params& p) {
    TrainConfig c = split_config();
    change(c);
    return error_of([&] { Trainer(m, p, bytes_of(rhyme()), c); });
  };
  const auto error = [&](const auto& change) { return trains(change, model, params); };
  for (const auto& change : std::vector<std::function<void(TrainConfig&)>>{
           [](TrainConfig& c) { c.dtype = {}; }, [](TrainConfig& c) { c.optimizer = OptimizerKind::muon; },
           [](TrainConfig& c) { c.optimizer = OptimizerKind::sgd; },
           [](TrainConfig& c) { c.linear = LinearKind::fp8; }})
    CHECK_HAS(error(change), "It needs adamw, bf16 and plain.");
  auto [base, adapted] = new_gpt(few_weights());
  const Lora lora = apply_lora(adapted, base, {});
  CHECK_HAS(trains([](auto&) {}, adapted, lora.params()), "no trained parameter is a Linear layer's weight");
  const Params wide({}, 1, DType::f64);
  CHECK_HAS(trains([](auto&) {}, Gpt(wide, few_weights()), wide), "f64. It must be f32");
  CHECK(!params.split(zeros({2})));
  for (const Parameter& p : params.all())
    if (p.name == "h.0.attn.proj.weight") CHECK(params.split(p.tensor));
  CHECK_SAYS(Sgd(params.trainable()), "[sgd] 'h.0.attn.proj.weight' is split. Only AdamW updates it");
  CHECK_SAYS(Muon(params.trainable()), "[muon] 'h.0.attn.proj.weight' is split");
  AdamW adam(params.trainable());
  CHECK_SAYS(adam.backward_and_step(zeros({})), "[adamw] 'h.0.attn.proj.weight' is split");
}
