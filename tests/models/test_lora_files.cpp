// Files of adapters and their checkpoints: round trips and refusals.
#include <tapegrad/models/io/adapter.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/train/run_config.h>

#include "support/refusals.h"
#include "support/small_run.h"
#include "support/tiny_gpt.h"

using namespace tg;

TEST_CASE("LoRA files: adapters alone, over the model that they were trained on") {
  const Folder folder;
  const std::string path = folder / "adapter.safetensors";
  const LoraConfig config{.targets = {"*.mlp.*", "h.0.attn.qkv"}, .rank = 3, .alpha = 0.1, .dropout = 0.25, .seed = 9};
  const auto model_of = [](const Params& base, GptConfig c = kTwo) { return Gpt(base, c); };
  const Tensor tokens = tensor({1, 2, 3, 4}, {1, 4});
  const Params base(Device(), 1), same(Device(), 1), other(Device(), 2);
  const std::string hash = weights_hash(base);
  CHECK(hash == weights_hash(base));
  Gpt model = model_of(base), again = model_of(same), else_ = model_of(other);
  const std::string trained_over = weights_hash(base);
  CHECK(trained_over == weights_hash(same));
  CHECK(trained_over != weights_hash(other));
  Lora lora = apply_lora(model, base, config);
  fill(lora);
  save_adapter(path, lora, trained_over);
  const SafetensorsFile file(path);
  CHECK(file.names().size() == 10);
  CHECK(file.has("h.1.mlp.fc.lora_a"));
  CHECK(file.metadata().at("rank") == "3");
  CHECK(file.metadata().at("alpha") == "0.1");
  CHECK(file.metadata().at("targets") == R"(["*.mlp.*","h.0.attn.qkv"])");
  CHECK(folder.entries() == 1);
  CHECK(adapter_path(folder.path) == path);
  CHECK(adapter_path(path) == path);

  const Lora loaded = load_adapter(path, again, same);
  CHECK(loaded.config() == config);
  CHECK(bits_of(again.forward(tokens)) == bits_of(model.forward(tokens)));
  CHECK(same.trainable().empty());
  save_adapter(folder / "second", loaded, trained_over);
  CHECK(read_file(folder / "second") == read_file(path));

  StateDict zero = loaded.params().state();
  for (auto& [name, t] : zero) t = t * 0;
  loaded.params().assign(zero);
  assign_adapter(path, loaded);
  CHECK(bits_of(again.forward(tokens)) == bits_of(model.forward(tokens)));

  // Refused, and the model is as it was.
  const auto refused = [&](Gpt& m, const Params& p, Error::Kind kind, std::vector<std::string> says) {
    const auto before = bits_of(m.forward(tokens));
    const size_t trainable = p.trainable().size();
    expect({[&] { load_adapter(path, m, p); }, kind, std::move(says)});
    CHECK(bits_of(m.forward(tokens)) == before);
    CHECK(p.trainable().size() == trainable);
  };
  refused(else_, other, Error::Kind::value,
          {path + " was trained over other weights", trained_over, weights_hash(other), "Name that model."});
  refused(again, same, Error::Kind::state, {"'h.0.attn.qkv' has an adapter already", "in " + path});
  const auto with = [](auto change) {
    GptConfig c = kTwo;
    change(c);
    return c;
  };
  save_adapter(path, lora);  // without the hash, the shapes tell
  {
    const Params p;
    Gpt wide = model_of(p, with([](GptConfig& c) { c.width = 12; }));
    refused(wide, p, Error::Kind::shape,
            {"[adapter] 'h.0.attn.qkv.lora_a' is (8, 3) in " + path, "'h.0.attn.qkv' of this model takes (12, 3)",
             "An adapter fits the model that it was trained on."});
  }
  {
    const Params p;
    Gpt longer = model_of(p, with([](GptConfig& c) { c.layers = 3; }));
    refused(longer, p, Error::Kind::value, {"has no 'h.2.mlp.fc.lora_a', which is (8, 3) for 'h.2.mlp.fc'"});
  }
  {
    const Params p;
    Gpt shorter = model_of(p, with([](GptConfig& c) { c.layers = 1; }));
    refused(shorter, p, Error::Kind::value, {"has 'h.1.mlp.fc.lora_a' (8, 3), and this model has no such module"});
  }
  expect({[&] { load_adapter(folder / "missing", else_, other); }, Error::Kind::io, {"missing"}});
  CHECK(bits_of(load_adapter(path, else_, other).params().all()[0].tensor) == bits_of(lora.params().all()[0].tensor));
}

TEST_CASE("LoRA files: another rank, alpha or shape names both; damage is an Error") {
  const Folder folder;
  const std::string path = folder / "adapter.safetensors";
  const auto adapters = [](const LoraConfig& c) {
    const Params base(Device(), 1);
    Gpt model(base, kTwo);
    return apply_lora(model, base, c);
  };
  const LoraConfig config{.targets = {"*.attn.qkv"}, .rank = 4, .alpha = 8};
  Lora lora = adapters(config);
  save_adapter(path, lora);
  const auto assigned = [&](const LoraConfig& c, Error::Kind kind, std::vector<std::string> says) {
    const Lora to = adapters(c);
    fill(to);
    const auto before = to.params().state();
    expect({[&] { assign_adapter(path, to); }, kind, std::move(says)});
    for (const auto& [name, t] : to.params().state()) CHECK(bits_of(t) == bits_of(before.at(name)));
  };
  assigned({.targets = {"*.attn.qkv"}, .rank = 2, .alpha = 8}, Error::Kind::value,
           {"[adapter] " + path + " is of rank 4, and the adapters of this model are of rank 2", "load_adapter()"});
  assigned({.targets = {"*.attn.qkv"}, .rank = 4, .alpha = 2}, Error::Kind::value,
           {"[adapter] " + path + " has an alpha of 8, and the adapters of this model one of 2", "load_adapter()"});
  assigned({.targets = {"*.attn.*"}, .rank = 4, .alpha = 8}, Error::Kind::value,
           {path + " has no 'h.0.attn.proj.lora_a', which is (8, 4) for 'h.0.attn.proj' of this model"});
  lora.merge();
  expect({[&] { assign_adapter(path, lora); },
          Error::Kind::state,
          {"the adapters of this model are merged, and " + path, "Call unmerge() first."}});
  lora.unmerge();

  const StateDict tensors = lora.params().state();
  const auto metadata = SafetensorsFile(path).metadata();
  const auto damaged = [&](auto change, Error::Kind kind, std::vector<std::string> says) {
    auto m = metadata;
    StateDict t = tensors;
    change(m, t);
    write_safetensors(path, t, m);
    const Params base(Device(), 1);
    Gpt model(base, kTwo);
    expect({[&] { load_adapter(path, model, base); }, kind, std::move(says)});
  };
  using Kind = Error::Kind;
  damaged([](auto& m, auto&) { m.erase("format"); }, Kind::io, {path, "it is a safetensors file, but not an adapter"});
  damaged([](auto& m, auto&) { m["version"] = "2"; }, Kind::io,
          {path, "its version is '2', and this program reads '1'"});
  damaged([](auto& m, auto&) { m.erase("alpha"); }, Kind::io, {path, "it has no 'alpha'"});
  damaged([](auto& m, auto&) { m["rank"] = "4.5"; }, Kind::value, {"[lora] 'rank' is 4.5. It must be an integer."});
  damaged([](auto& m, auto&) { m["rank"] = "x"; }, Kind::value, {"'rank' of " + path + " is not JSON"});
  damaged([](auto& m, auto&) { m["rank"] = "0"; }, Kind::value, {"[lora] rank is 0.", "in " + path});
  damaged([](auto& m, auto&) { m["rank"] = "3"; }, Kind::shape,
          {"'h.0.attn.qkv.lora_a' is (8, 4) in " + path, "takes (8, 3)"});
  damaged([](auto& m, auto&) { m["targets"] = "[1]"; }, Kind::value, {"It must be a list of patterns in quotes."});
  damaged([](auto& m, auto&) { m["targets"] = "[\"q\"]"; }, Kind::value, {"the target 'q' matches no", "in " + path});
  damaged([](auto&, auto& t) { t["h.0.attn.qkv.lora_b"] = t["h.0.attn.qkv.lora_b"].to(DType::i64); }, Kind::dtype,
          {"'h.0.attn.qkv.lora_b' is (4, 24) i64 in " + path});
  CHECK_SAYS(lora_config_from_json("{\"ranc\": 1}", "it"), "Did you mean 'rank'?");
  CHECK_SAYS(lora_config_from_json("{\"rank\": 1}", "it"), "it has no 'alpha'. Every field");
  CHECK(lora_config_from_json(to_json(config), "it") == config);

  StateDict infinite = lora.params().state();
  infinite.at("h.1.attn.qkv.lora_b") = filled({4, 24}, INFINITY);
  lora.params().assign(infinite);
  const std::string before = read_file(path);
  expect({[&] { save_adapter(path, lora); },
          Kind::non_finite,
          {"[adapter] cannot write " + path + ": 'h.1.attn.qkv.lora_b' is inf at (0, 0)"}});
  CHECK(read_file(path) == before);
}

TEST_CASE("LoRA files: a checkpoint of adapters says over which model and how they are trained") {
  const Folder folder;
  const std::string path = folder / "checkpoint.safetensors";
  const Params base(Device(), 1);
  Gpt model(base, tiny_model());
  const LoraConfig config{.targets = {"*.mlp.*"}, .rank = 3, .alpha = 0.1, .dropout = 0.25, .seed = uint64_t(-1)};
  const Lora lora = apply_lora(model, base, config);
  TrainConfig train = tiny_train();
  Trainer trainer(model, lora.params(), bytes_of(rhyme()), train);
  trainer.step();
  RunConfig run;
  run.model = tiny_model();
  run.train = train;
  Checkpoint c{.config = to_json(run),
               .tokenizer = "",
               .data = DataIdentity::of(bytes_of(rhyme())),
               .state = trainer.state(),
               .finetuning = Finetuning{"/some/model", weights_hash(base), config}};
  save_checkpoint(path, c);
  const Checkpoint back = load_checkpoint(path);
  REQUIRE(back.finetuning);
  CHECK(back.finetuning->model == "/some/model");
  CHECK(back.finetuning->weights == weights_hash(base));
  CHECK(back.finetuning->lora == config);
  trainer.load_state(back.state);
  CHECK(back.finetuning->base == DType::f32);
  CHECK(back.init.empty());
  c.finetuning->base = DType::bf16;
  save_checkpoint(path, c);
  CHECK(load_checkpoint(path).finetuning->base == DType::bf16);
  c.finetuning.reset();
  c.init = "/some/folder";
  save_checkpoint(path, c);
  CHECK(!load_checkpoint(path).finetuning);
  CHECK(load_checkpoint(path).init == "/some/folder");
}

TEST_CASE("LoRA files: an adapter over weights in bf16 is one over the same weights in f32, rounded") {
  const Folder folder;
  const std::string path = folder / "adapter.safetensors", second = folder / "second.safetensors";
  const Params whole(Device(), 1), half(Device(), 0, DType::bf16), again(Device(), 1), other(Device(), 2);
  Gpt model(whole, kTwo);
  half.load(whole.state());
  Gpt narrow(half, kTwo), fresh(again, kTwo), else_(other, kTwo);
  const std::string hash = weights_hash(half);
  CHECK(hash != weights_hash(whole));
  const Params widened(Device(), 0);
  widened.load(half.state());
  const Gpt of_widened(widened, kTwo);
  CHECK(hash == weights_hash(widened));
  Lora lora = apply_lora(narrow, half, {.targets = {"*.mlp.*"}, .rank = 2});
  CHECK(lora.base_dtype() == DType::bf16);
  CHECK(lora.params().dtype() == DType::f32);
  fill(lora);
  save_adapter(path, lora, hash);
  const auto before = bits_of(else_.forward(tensor({1, 2}, {1, 2})));
  CHECK_SAYS(load_adapter(path, else_, other), "was trained over other weights");
  CHECK(bits_of(else_.forward(tensor({1, 2}, {1, 2}))) == before);
  const Lora loaded = load_adapter(path, fresh, again);
  CHECK(loaded.base_dtype() == DType::bf16);
  CHECK(weights_hash(again) == hash);  // rounded, and the same values
  for (const auto& [name, t] : again.state()) CHECK(bits_of(t.to(DType::bf16)) == bits_of(half.state().at(name)));
  save_adapter(second, loaded, weights_hash(again));
  CHECK(read_file(second) == read_file(path));
  const Tensor tokens = tensor({1, 2, 3, 4}, {1, 4});
  CHECK(distance(fresh.forward(tokens), narrow.forward(tokens)) < 2e-2);  // that of bf16
}
