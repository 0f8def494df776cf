// models/io/model_dir: round trips of a model's folder, and the messages for damaged ones.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/tools.h>

#include "support/helpers.h"
#include "support/small_run.h"

using namespace tg;

TEST_CASE("model folder: what is saved comes back and writes the same text") {
  Folder folder;
  TrainConfig c = tiny_train();
  c.max_steps = 3;
  Run run(c);
  run.trainer.run();
  const ByteTokenizer bytes;
  save_model(folder.path, run.model, run.params, &bytes, to_json(c));
  const LoadedModel m = load_model(folder.path);
  CHECK(m.model.config() == tiny_model());
  REQUIRE(m.tokenizer);
  CHECK(m.tokenizer->to_json() == bytes.to_json());
  const auto before = run.params.all(), after = m.params.all();
  REQUIRE(before.size() == after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i].name == after[i].name);
    CHECK(before[i].tensor.to_vector<float>() == after[i].tensor.to_vector<float>());
  }
  const auto prompt = bytes.encode("the ");
  CHECK(generate(run.model, prompt, 20, {.seed = 3}) == generate(m.model, prompt, 20, {.seed = 3}));
  CHECK(own_json(detail::model_config_text(folder.path)).at("train").at("max_steps") == 3);

  Settings settings;  // a run like that one
  settings.read(detail::model_config_text(folder.path), "config.json");
  const RunConfig again = settings.run();
  CHECK(again.model == tiny_model());
  CHECK(to_json(again.train) == to_json(c));

  CHECK_SAYS(load_model(folder / "nowhere"), "nowhere does not exist. A model is a folder");
  const auto with_model = [&](auto change) {  // the message about a config.json that was changed
    auto j = own_json("{\"model\":" + to_json(tiny_model()) + "}");
    change(j["model"]);
    write_file_atomically(folder / "config.json", text_of(j));
    return error_of([&] { load_model(folder.path); });
  };
  const std::string place = "\n    in " + folder.path;
  CHECK_HAS(with_model([](auto& g) { g["heads"] = 3; }), place + "/config.json");
  for (const char* field : {"vocab_size", "dropout", "norm", "init_std"})
    CHECK_HAS(with_model([&](auto& g) { g.erase(field); }), fmt::format("\"model\" has no '{}'. Every field", field));
  CHECK_HAS(with_model([](auto& g) { g["width"] = 64; }), "is (256, 64) in the model and (256, 32) f32",
            place + "/model.safetensors");
  CHECK_HAS(with_model([](auto& g) { g["layers"] = 2; }), place + "/model.safetensors");
  const std::string deep = std::string(400000, '[') + std::string(400000, ']');
  for (const auto& [text, part] :
       {std::pair<std::string, const char*>{R"({"modle": {}, "model": {}})", "Did you mean 'model'?"},
        {"[1]", "has no object \"model\""},
        {"{", "config.json is not JSON"},
        {R"({"model":)" + deep + "}", "nested too deeply"},
        {R"({"model":{"heads":2,"heads":4}})", "'heads' comes twice"}}) {
    write_file_atomically(folder / "config.json", text);
    CHECK_SAYS(load_model(folder.path), part);
  }
}

TEST_CASE("model folder: a tokenizer.json stands beside config.json") {
  Folder folder;
  const Run run(tiny_train());
  const auto bytes = BpeTokenizer::from_json(tokenizer_json(ByteTokenizer()), "bytes");
  save_model(folder.path, run.model, run.params, &bytes);
  CHECK(read_file(folder / "tokenizer.json") == bytes.to_json());
  CHECK(own_json(detail::model_config_text(folder.path))["tokenizer"] == "tokenizer.json");
  const LoadedModel m = load_model(folder.path);
  REQUIRE(m.tokenizer);
  CHECK(m.tokenizer->encode("\xff the") == bytes.encode("\xff the"));
  Settings settings;  // a run like that one takes the tokenizer from there
  settings.read(detail::model_config_text(folder.path), folder / "config.json");
  CHECK(settings.run().tokenizer == folder / "tokenizer.json");
  write_file_atomically(folder / "tokenizer.json", "{}");
  CHECK_HAS(load_model(folder.path).tokenizer_error, (folder / "tokenizer.json") + ": model is not an object");
  write_file_atomically(folder / "config.json",
                        "{\"model\":" + to_json(tiny_model()) + ",\"tokenizer\":\"../t.json\"}");
  CHECK_HAS(load_model(folder.path).tokenizer_error, "it is no JSON object");
}
