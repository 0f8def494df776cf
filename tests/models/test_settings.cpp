// models/train/run_config: named runs and models, settings from words and JSON, refusals.
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/train/run_config.h>

#include <chrono>
#include <tuple>

#include "support/small_run.h"

using namespace tg;
namespace {
using NamedWords = std::vector<std::pair<const char*, const char*>>;
RunConfig run_of(const NamedWords& words) {
  Settings settings;
  for (const auto& [name, word] : words) settings.set(name, word);
  return settings.run();
}
RunConfig of_text(const std::string& text, const RunConfig& base = {}) {
  Settings settings(base);
  settings.read(text, "f.json");
  return settings.run();
}
}  // namespace

TEST_CASE("settings: a file of many keys is read in linear time, and what is no JSON is said in one sentence") {
  const auto seconds = [](int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) text += fmt::format("\"k{}\":1,", i);
    text.back() = '}';
    const auto start = std::chrono::steady_clock::now();
    CHECK_SAYS(Settings(RunConfig()).read(text, "f.json"), "'k0' is not known");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  CHECK(seconds(400'000) < 20);  // quadratic time would take minutes
  CHECK(
      error_of([] { Settings(RunConfig()).read("{\"lr\": ", "f.json"); }) ==
      "[config] f.json is not JSON: parse error at line 1, column 8: syntax error while parsing value - unexpected end "
      "of input; expected '[', '{', or a literal. Correct the text.");
  CHECK_SAYS(Settings(RunConfig()).read("{\"lr\": 1e999}", "f.json"), "f.json is not JSON: number overflow");
  CHECK_SAYS(Settings(RunConfig()).read("{} {}", "f.json"), "f.json is not JSON: parse error at line 1");
  CHECK_SAYS(Settings(RunConfig()).read("", "f.json"), "f.json is not JSON: parse error at line 1");
}

TEST_CASE("settings: presets, files and words") {
  const RunConfig shakespeare = run_preset("shakespeare-cpu");
  CHECK(shakespeare.tokenizer == "char");
  CHECK(shakespeare.model.vocab_size == 0);
  CHECK(shakespeare.train.max_steps == 2000);
  CHECK(model_preset("nano").width == 128);
  CHECK_SAYS(
      run_preset("shakespeare"),
      "there is no preset 'shakespeare'. Did you mean 'shakespeare-cpu'? The names are: shakespeare-cpu, demo, gpt2");
  CHECK_SAYS(model_preset("nanoo"), "Did you mean 'nano'?");
  for (const char* const name : {"gpt2-124m-llmc", "gpt2-124m-track3"}) {
    Settings recipe(run_preset(name));
    CHECK_SAYS(recipe.run(), "val_tokens is 10485761 and val_data ''. It must be 0, or from 2 up with val_data. Pass");
    recipe.set("val_data", "val.bin"), recipe.set("lr", "1e-3");
    CHECK(recipe.run().train.min_lr == 0);
    CHECK(recipe.run().train.batch * recipe.run().train.accumulate * recipe.run().model.context == 524288);
  }

  Settings settings;
  settings.read(R"({"width": 96, "train": {"lr": 3}, "tokenizer": "char"})", "f.json");
  settings.set("heads", "6");
  settings.set("lr", ".5");
  settings.set("norm", "rms_norm");
  settings.set("tied_head", "false");
  const RunConfig run = settings.run();
  CHECK(run.model.width == 96);
  CHECK(run.model.heads == 6);
  CHECK(run.train.lr == 0.5);
  CHECK(run.tokenizer == "char");
  CHECK(run.model.norm == NormKind::rms_norm);
  CHECK(!run.model.tied_head);
  CHECK(run.model.vocab_size == 0);

  const auto file = [](std::string_view text) { return error_of([&] { Settings().read(text, "f.json"); }); };
  CHECK_HAS(file(R"({"widht": 96})"), "f.json: 'widht' is not known. Did you mean 'width'?");
  CHECK_HAS(file(R"({"model": {"lyaers": 96}})"), "Did you mean 'layers'?");
  CHECK_HAS(file(R"({"width": 96, "width": 64})"), "'width' comes twice");
  CHECK_HAS(file(R"({"width": 96, "model": {"width": 64}})"), "f.json: 'width' is set twice, in two groups");
  CHECK_HAS(file("{"), "f.json is not JSON");
  CHECK_HAS(file("3"), "must be an object");
  CHECK_HAS(file("[[[[[[[["), "nested too deeply");
  const auto word = [](const char* name, const char* w) { return error_of([&] { run_of({{name, w}}); }); };
  CHECK_HAS(word("heads", "3"), "width 128 is not a multiple of heads 3");
  CHECK_HAS(word("heads", "three"), "heads is 'three'. It must be a whole number");
  CHECK_HAS(word("lr", "1e"), "lr is '1e'. It must be a number");
  CHECK_HAS(word("lr", "nan"), "lr is 'nan'. It must be a number");
  for (const char* x : {"1e-400", "1e400", "-1e999"})
    CHECK_HAS(word("lr", x), fmt::format("lr is '{}'. It must be 0, or from 4.9e-324 to 1.8e308 in size", x));
  for (const char* x : {"9223372036854775808", "99999999999999999999", "-9223372036854775809"})
    CHECK_HAS(
        word("kv_heads", x),
        fmt::format("kv_heads is '{}'. It must be an integer from -9223372036854775808 to 9223372036854775807.", x));
  CHECK_HAS(word("seed", "18446744073709551616"), "It must be an integer from 0 to 18446744073709551615.");
  CHECK(run_of({{"seed", "18446744073709551615"}}).train.seed == UINT64_MAX);
  CHECK_HAS(word("warmup", "9223372036854775807"), "warmup is 9223372036854775807. It must be at most 2^53");
  CHECK_HAS(word("schedule", "cosin"),
            "[schedule] 'cosin' is not known. Did you mean 'cosine'? The names are constant, cosine, wsd.");
  CHECK_HAS(word("dtype", "f16"), "[dtype] 'f16' is not known. Did you mean 'bf16'? The names are f32, bf16.");
  CHECK_HAS(word("recompute", "blocks"),
            "[recompute] 'blocks' is not known. Did you mean 'block'? The names are none, cheap, block.");
  CHECK_HAS(word("bias", "1"), "bias is '1'. It must be true or false");
  CHECK_HAS(word("norm", "batch"), "batch");
  CHECK_HAS(word("tokenizer", "words"), "It must be byte or char");
  CHECK_HAS(word("vocab_size", "-1"), "vocab_size is -1");
  CHECK_HAS(word("seed", "-1"), "seed is '-1'. It must be an integer from 0 to");
  CHECK_HAS(word("wdith", "1"), "Did you mean 'width'?");
  CHECK_HAS(file(R"({"lr": "high"})"), "'lr' is \"high\". It must be a number.");
}

TEST_CASE("settings: the optimiser, and settings that it does not use") {
  const auto refused = [](std::vector<std::pair<const char*, const char*>> words) {
    Settings s;
    for (const auto& [name, word] : words) s.set(name, word);
    return error_of([&] { s.run(); });
  };
  CHECK(refused({{"optimizer", "muon"}, {"muon_lr", "0.05"}, {"beta1", "0.8"}, {"muon_dtype", "f32"}}) == "no error");
  CHECK(refused({{"optimizer", "sgd"}, {"momentum", "0.8"}, {"nesterov", "false"}}) == "no error");
  CHECK_HAS(refused({{"momentum", "0.8"}}),
            "momentum is 0.8 and optimizer is \"adamw\". momentum has an effect with optimizer sgd or muon only.");
  for (const auto& [name, word] : {std::pair("nesterov", "false"), std::pair("muon_lr", "0.1"),
                                   std::pair("muon_scale", "rms"), std::pair("muon_dtype", "f32")})
    CHECK_HAS(refused({{name, word}}), fmt::format("{} has an effect with optimizer", name));
  for (const char* name : {"beta1", "beta2", "eps"})
    CHECK_HAS(
        refused({{"optimizer", "sgd"}, {name, "0.5"}}),
        fmt::format("{} is 0.5 and optimizer is \"sgd\". {} has an effect with optimizer adamw or muon", name, name));
  CHECK(refused({{"optimizer", "muon"}, {"moments", "bf16"}}) == "no error");
  CHECK_HAS(refused({{"optimizer", "sgd"}, {"moments", "f32"}}),
            "moments has an effect with optimizer adamw or muon only");
  TrainConfig c;
  c.moments = DType::bf16, c.optimizer = OptimizerKind::sgd;
  CHECK_SAYS(c.validate(),
             "[train] moments is bf16, and the optimizer sgd. It must be f32, or bf16 for adamw or muon.");
  CHECK_HAS(refused({{"optimizer", "sgd"}, {"muon_lr", "0.5"}}), "muon_lr has an effect with optimizer muon only");
  CHECK_HAS(refused({{"optimizer", "sgd"}, {"momentum", "0"}}), "[train] nesterov is true and momentum 0.");
  CHECK_HAS(refused({{"optimizer", "muon"}, {"muon_lr", "0"}}), "[train] muon_lr is 0. It must be a positive number.");
  CHECK_HAS(refused({{"optimizer", "muon"}, {"lr", "0"}, {"min_lr", "0"}}), "[train] lr is 0 and the optimizer muon");
  const auto least = [](Settings s, const NamedWords& all) {
    for (const auto& [name, word] : all) s.set(name, word);
    return s.run().train.min_lr;
  };
  RunConfig low;
  low.train.lr = 1e-5, low.train.min_lr = 1e-7;
  CHECK(least(Settings(), {{"lr", "3e-5"}}) == 3e-6);
  CHECK(least(Settings(), {{"min_lr", "1e-6"}, {"lr", "1e-5"}}) == 1e-6);
  CHECK(least(Settings(), {{"lr", "1e-5"}, {"min_lr", "1e-7"}}) == 1e-7);
  CHECK(least(Settings(low, true), {{"lr", "1e-3"}}) == 1e-7);
  CHECK_SAYS(Settings().set("optimizer", "adam"),
             "[optimizer] 'adam' is not known. Did you mean 'adamw'? The names are adamw, sgd, muon.");
}

TEST_CASE("settings: enums of a run go through words and JSON") {
  const RunConfig run = run_of({{"schedule", "constant"},
                                {"dtype", "bf16"},
                                {"recompute", "block"},
                                {"lr", "1e-5"},
                                {"matmul_precision", "medium"}});
  // min_lr is 1e-4 and unused
  CHECK(run.train.schedule == ScheduleKind::constant);
  CHECK(run.train.dtype == DType::bf16);
  CHECK(run.train.recompute == Recompute::block);
  const auto train = detail::own_json(to_json(run.train));
  CHECK(train.at("schedule") == "constant");
  CHECK(train.at("dtype") == "bf16");
  CHECK(run.train.matmul_precision == MatmulPrecision::medium);
  CHECK(train.at("matmul_precision") == "medium");
  CHECK_SAYS(Settings().set("matmul_precision", "tf32"),
             "[matmul_precision] 'tf32' is not known. The names are highest, high, medium.");
  CHECK(train.at("recompute") == "block");
  CHECK(run_of({{"recompute", "cheap"}}).train.recompute == Recompute::cheap);
  const RunConfig again = detail::run_config_from_json(to_json(run), "the file");
  CHECK(to_json(again) == to_json(run));
  CHECK_SAYS(of_text(R"({"dtype": 1})"), "'dtype' is 1. It must be a name in quotes.");
  CHECK(!of_text(R"({"dtype": null})").train.dtype);
  CHECK(RunConfig().train.dtype == DType::f32);
  RunConfig unset;
  unset.train.dtype.reset();
  CHECK(!detail::run_config_from_json(to_json(unset), "the file").train.dtype);
}

TEST_CASE("settings: one that has no effect is an Error that names what takes it away") {
  const auto words = [](const NamedWords& all) { return error_of([&] { run_of(all); }); };
  CHECK_HAS(words({{"schedule", "constant"}, {"min_lr", "0.0005"}}),
            "min_lr is 0.0005 and schedule is \"constant\". min_lr has an effect with schedule cosine or wsd only. "
            "Leave min_lr "
            "out, or change schedule.");
  CHECK_HAS(words({{"rope_theta", "500"}}), "rope_theta is 500.0 and positions is \"learned\".");
  CHECK_HAS(words({{"rope_theta", "10000"}}), "rope_theta is 10000.0 and positions is \"learned\".");  // default
  CHECK_HAS(words({{"init_std", "0.5"}, {"init", "xavier"}}), "init_std is 0.5 and init is \"xavier\".");
  CHECK_HAS(words({{"val_fraction", "0"}, {"checkpoint_every", "0"}, {"eval_every", "5"}}),
            "eval_every is 5 and val_fraction is 0.0.");
  CHECK(words({{"min_lr", "0.0005"}}) == "no error");
  CHECK(words({{"rope_theta", "500"}, {"positions", "rope"}}) == "no error");
  CHECK(words({{"init_std", "0.5"}}) == "no error");
  CHECK(words({{"val_fraction", "0"}, {"eval_every", "5"}}) == "no error");  // says when to save
  CHECK(words({{"val_fraction", "0"}, {"checkpoint_every", "0"}, {"eval_every", "0"}}) == "no error");  // none is none
  CHECK(words({{"schedule", "constant"}}) == "no error");

  const auto file = [](const std::string& text) { return error_of([&] { of_text(text); }); };
  CHECK_HAS(file(R"({"train": {"schedule": "constant", "min_lr": 0}})"), "min_lr is 0.0 and schedule is \"constant\"");
  CHECK_HAS(file(R"({"train": {"width": 32}})"), "f.json: 'width' is not known in \"train\".");
  CHECK_HAS(file(R"({"model": {"lr": 32}})"), "f.json: 'lr' is not known in \"model\".");
  CHECK_HAS(file(R"({"model": {"model": {"width": 32}}})"), "f.json: 'model' is not known in \"model\".");
  CHECK_HAS(file(R"({"train": {"tokenizer": "char"}})"), "f.json: 'tokenizer' is not known in \"train\".");
  CHECK_HAS(file(R"({"train": 3})"), "f.json: 'train' is 3. It must be an object");
  CHECK_HAS(file(R"({"tokenizer": {"type": "characters", "characters": "abc"}})"),
            "f.json: the tokenizer lists 3 characters, but training takes those of its text");
  CHECK_HAS(file(R"({"tokenizer": {"type": "words"}})"), "words");
  CHECK_HAS(file(R"({"tokenizer": {"type": "bytes", "size": 3}})"), "size");
  CHECK_HAS(file(R"({"tokenizer": 3})"), "'tokenizer' is 3. It must be byte or char, or the path of a tokenizer");
  CHECK(file(R"({"tokenizer": {"type": "bytes"}})") == "no error");
  CHECK(of_text(R"({"tokenizer": null})", run_preset("shakespeare-cpu")).tokenizer == "byte");

  // A text with every field loads, even if some have no effect.
  RunConfig run;
  run.model.rope_theta = 500, run.model.init = InitScheme::xavier, run.model.init_std = 0.5;
  run.train.schedule = ScheduleKind::constant, run.train.min_lr = 1;
  CHECK(to_json(detail::run_config_from_json(to_json(run), "the file")) == to_json(run));
  const std::string stored = R"({"model": )" + to_json(run.model) + R"(, "train": )" + to_json(run.train) +
                             R"(, "tokenizer": {"type": "characters", "characters": "abc"}})";
  Settings settings;
  settings.read(stored, "config.json");
  CHECK(settings.run().tokenizer == "char");
  settings.set("init_std", "0.5");
  CHECK_SAYS(settings.run(), "init_std is 0.5 and init is \"xavier\".");
}

TEST_CASE("settings: named models are those of their sources, field by field") {
  const auto model = [](int64_t layers, int64_t heads, int64_t width) {  // common fields, and each field
    GptConfig c;
    c.layers = layers, c.heads = heads, c.width = width, c.kv_heads = 0, c.ff_width = 0, c.norm_affine = true;
    c.dropout = 0, c.norm_eps = 1e-5, c.init = InitScheme::gpt2, c.init_std = 0.02, c.positions = Positions::learned;
    return c;
  };
  const auto gpt_10k = [&](int64_t layers, int64_t heads, int64_t width) {
    GptConfig c = model(layers, heads, width);
    c.vocab_size = 10000, c.context = 128, c.norm = NormKind::rms_norm, c.activation = Activation::gelu;
    c.bias = false, c.tied_head = false;
    return c;
  };
  CHECK(model_preset("gpt-small-10k") == gpt_10k(12, 12, 768));
  CHECK(model_preset("gpt-medium-10k") == gpt_10k(24, 16, 1024));
  GptConfig large = gpt_10k(32, 32, 2560);
  large.context = 512, large.ff_width = 10240, large.positions = Positions::rope, large.rope_theta = 10000;
  large.activation = Activation::swiglu, large.init = InitScheme::xavier;
  CHECK(model_preset("cs336-2.7b") == large);
  const std::tuple<const char*, int64_t, int64_t, int64_t> sizes[] = {// Radford et al., 2019, table 2
                                                                      {"gpt2", 12, 12, 768},
                                                                      {"gpt2-medium", 24, 16, 1024},
                                                                      {"gpt2-large", 36, 20, 1280},
                                                                      {"gpt2-xl", 48, 25, 1600}};
  for (const auto& [name, layers, heads, width] : sizes) {
    CAPTURE(name);
    GptConfig c = model(layers, heads, width);
    c.vocab_size = 50257, c.context = 1024, c.norm = NormKind::layer_norm, c.activation = Activation::gelu_tanh;
    c.bias = true, c.tied_head = true, c.dropout = 0.1;
    CHECK(model_preset(name) == c);
  }
}
