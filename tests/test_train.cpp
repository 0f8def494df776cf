// models/train and models/io: the training loop, its log, settings of runs, the folder of a model.
#include <doctest/doctest.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/file.h>
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/generate.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/models/train/trainer.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

namespace {
namespace fs = std::filesystem;
using namespace tg;

struct Folder {
  std::string path = (fs::temp_directory_path() / fmt::format("tapegrad-train-{}-XXXXXX", getpid())).string();
  Folder() { REQUIRE(mkdtemp(path.data())); }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(std::string_view name) const { return fmt::format("{}/{}", path, name); }
};

template <class F> std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
#define CHECK_HAS(message, part)                           \
  do {                                                     \
    const std::string m_ = (message);                      \
    CHECK_MESSAGE(m_.find(part) != std::string::npos, m_); \
  } while (0)

std::string rhyme() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the cat sat on the mat, the dog ate the log.\n";
  return text;
}
TokenData bytes_of(const std::string& text) {
  return TokenData::from_tokens(ByteTokenizer().encode(text), "the rhyme");
}

GptConfig tiny_model() {
  return {.vocab_size = 256, .context = 16, .layers = 1, .heads = 2, .width = 32, .dropout = 0.1};
}
TrainConfig tiny_train() {
  TrainConfig c;
  c.batch = 4;
  c.max_steps = 40;
  c.lr = 1e-2;
  c.min_lr = 1e-3;
  c.warmup = 5;
  c.eval_every = 20;
  return c;
}

struct Run {
  Params params;
  Gpt model;
  Trainer trainer;
  explicit Run(const TrainConfig& c, const GptConfig& g = tiny_model(), const std::string& text = rhyme())
      : params({}, c.seed), model(params, g), trainer(model, params, bytes_of(text), c) {}
};
std::vector<StepRecord> records_of(const TrainConfig& c) {
  std::vector<StepRecord> all;
  Run(c).trainer.run([&](const StepRecord& r) { all.push_back(r); });
  return all;
}
// All that does not measure time or memory.
std::vector<double> numbers_of(const std::vector<StepRecord>& all) {
  std::vector<double> v;
  for (const StepRecord& r : all) v.insert(v.end(), {r.loss, r.grad_norm, r.lr, r.val_loss.value_or(-1)});
  return v;
}
}  // namespace

TEST_CASE("train: the loss falls, and the record of each step is whole") {
  const auto all = records_of(tiny_train());
  REQUIRE(all.size() == 40);
  CHECK(std::abs(all[0].loss - std::log(256.0)) < 0.2);  // new weights say next to nothing
  CHECK(all[39].loss < 2.8);                             // the text has about 2.7 nats a byte without its order
  for (size_t i = 0; i < all.size(); ++i) {
    const StepRecord& r = all[i];
    CHECK(r.step == int64_t(i) + 1);
    CHECK(r.val_loss.has_value() == (r.step % 20 == 0));
    CHECK(r.grad_norm > 0);
    CHECK(r.ms > 0);
    CHECK(r.tokens_per_s == doctest::Approx(4 * 16 / r.ms * 1e3));
    CHECK(r.peak_bytes > 0);
  }
  CHECK(all[0].lr == doctest::Approx(1e-2 / 6));
  CHECK(all[5].lr == doctest::Approx(1e-2));
  CHECK(*all[39].val_loss < *all[19].val_loss);
}

TEST_CASE("train: losses are bit-equal for one seed and for 1 and 2 threads, and differ between seeds") {
  TrainConfig c = tiny_train();
  c.max_steps = 12;
  c.eval_every = 6;
  const auto first = numbers_of(records_of(c));
  CHECK(numbers_of(records_of(c)) == first);
  const int threads = num_threads();
  set_num_threads(1);
  CHECK(numbers_of(records_of(c)) == first);
  set_num_threads(threads);
  c.seed = 2;
  CHECK(numbers_of(records_of(c)) != first);
}

TEST_CASE("train: the validation loss weighs every token of the split once") {
  TrainConfig c = tiny_train();
  c.val_fraction = 0.05;  // 90 tokens: 5 windows of 16, and 9 targets left
  Run run(c);
  REQUIRE(run.trainer.val_tokens() == 90);
  const std::string text = rhyme();
  const std::vector<int64_t> ids = ByteTokenizer().encode(text.substr(text.size() - 90));
  double sum = 0;
  for (size_t at = 0; at + 1 < ids.size(); at += 16) {
    const size_t n = std::min<size_t>(16, ids.size() - 1 - at);
    const std::vector<int64_t> x(ids.begin() + int64_t(at), ids.begin() + int64_t(at + n));
    const auto logits = run.model.forward(from(x, {1, int64_t(n)})).to_vector<double>();
    for (size_t t = 0; t < n; ++t) {
      double total = 0;
      for (size_t v = 0; v < 256; ++v) total += std::exp(logits[t * 256 + v]);
      sum += std::log(total) - logits[t * 256 + size_t(ids[at + t + 1])];
    }
  }
  CHECK(run.trainer.evaluate() == doctest::Approx(sum / 89).epsilon(1e-6));  // f32 losses against f64
}

TEST_CASE("train: what cannot be trained is an Error before the first step") {
  const auto with = [](auto change) {
    TrainConfig c = tiny_train();
    change(c);
    return error_of([&] { Run run(c); });
  };
  CHECK(with([](TrainConfig&) {}) == "no error");
  CHECK_HAS(with([](TrainConfig& c) { c.batch = 0; }), "batch is 0");
  CHECK_HAS(with([](TrainConfig& c) { c.max_steps = 0; }), "max_steps is 0");
  CHECK_HAS(with([](TrainConfig& c) { c.warmup = -1; }), "warmup is -1");
  CHECK_HAS(with([](TrainConfig& c) { c.eval_every = -1; }), "eval_every is -1");
  CHECK_HAS(with([](TrainConfig& c) { c.lr = std::nan(""); }), "lr is nan");
  CHECK_HAS(with([](TrainConfig& c) { c.min_lr = 1; }), "min_lr is 1");
  CHECK_HAS(with([](TrainConfig& c) { c.beta1 = 1; }), "beta1 is 1");
  CHECK_HAS(with([](TrainConfig& c) { c.beta2 = -0.1; }), "beta2 is -0.1");
  CHECK_HAS(with([](TrainConfig& c) { c.eps = 0; }), "eps is 0");
  CHECK_HAS(with([](TrainConfig& c) { c.weight_decay = -1; }), "weight_decay is -1");
  CHECK_HAS(with([](TrainConfig& c) { c.clip_norm = -1; }), "clip_norm is -1");
  CHECK_HAS(with([](TrainConfig& c) { c.val_fraction = 1; }), "val_fraction is 1");

  const auto text_of = [](const std::string& text) {
    return error_of([&] { Run run(tiny_train(), tiny_model(), text); });
  };
  CHECK_HAS(text_of(rhyme().substr(0, 17)), "training part of the rhyme has 15 tokens, but a context of 16");
  CHECK_HAS(text_of(""), "the rhyme has 0 tokens");
  GptConfig small = tiny_model();
  small.vocab_size = 100;  // 'e' is 101
  CHECK_HAS(error_of([&] { Run run(tiny_train(), small); }), "is not in the vocabulary");
}

TEST_CASE("train: ends of runs") {
  TrainConfig c = tiny_train();
  c.max_steps = 2;  // fewer than the warm-up
  c.eval_every = 0;
  Run run(c);
  CHECK(!run.trainer.step().val_loss);
  CHECK(run.trainer.step().val_loss);
  CHECK(run.trainer.done());
  CHECK_HAS(error_of([&] { run.trainer.step(); }), "all 2 steps are done");
  c.val_fraction = 0;
  Run without(c);
  without.trainer.run([](const StepRecord& r) { CHECK(!r.val_loss); });
  CHECK_HAS(error_of([&] { without.trainer.evaluate(); }), "0 tokens");
  GptConfig wild = tiny_model();
  wild.init_std = 1e38;  // the logits overflow
  CHECK_HAS(error_of([&] { Run(c, wild).trainer.step(); }), "the loss of step 1 is");
}

TEST_CASE("log: one JSON object a step, written at once") {
  Folder folder;
  TrainConfig c = tiny_train();
  c.max_steps = 4;
  c.eval_every = 2;
  Run run(c);
  StepLog log(folder / "log.jsonl");
  int64_t lines = 0;
  run.trainer.run([&](const StepRecord& r) {
    log.write(r);
    const std::string text(MappedFile(folder / "log.jsonl").text());
    CHECK(std::count(text.begin(), text.end(), '\n') == ++lines);
    const auto j = nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1));
    CHECK(j.at("step") == r.step);
    CHECK(j.at("loss").get<double>() == r.loss);  // the shortest digits that read back
    CHECK(j.at("grad_norm").get<double>() == r.grad_norm);
    CHECK(j.at("lr").get<double>() == r.lr);
    CHECK(j.at("ms").get<double>() == doctest::Approx(r.ms).epsilon(1e-2));
    CHECK(j.at("tokens_per_s").get<double>() == doctest::Approx(r.tokens_per_s).epsilon(1e-2));
    CHECK(j.at("peak_bytes") == r.peak_bytes);
    CHECK(j.size() == (r.val_loss ? 8u : 7u));
    if (r.val_loss) CHECK(j.at("val_loss").get<double>() == *r.val_loss);
  });
  CHECK(lines == 4);
  StepRecord lost;
  lost.loss = std::nan("");
  CHECK(nlohmann::json::parse(to_json(lost)).at("loss").is_null());
  CHECK_HAS(error_of([&] { StepLog(folder / "log.jsonl/x"); }), "cannot be written");
  StepLog full("/dev/full");
  CHECK_HAS(error_of([&] { full.write(lost); }), "'/dev/full' cannot be written at step 0");
}

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
  CHECK(nlohmann::json::parse(model_config_text(folder.path)).at("train").at("max_steps") == 3);

  const auto settings = settings_from_json(model_config_text(folder.path), "config.json");  // a run like that one
  const RunConfig again = with_settings(RunConfig(), settings);
  CHECK(again.model == tiny_model());
  CHECK(to_json(again.train) == to_json(c));

  CHECK_HAS(error_of([&] { load_model(folder / "nowhere"); }), "nowhere/config.json");
  write_file_atomically(folder / "config.json", "{\"model\": {\"heads\": 3}}");
  CHECK_HAS(error_of([&] { load_model(folder.path); }), "width 128 is not a multiple of heads 3");
  write_file_atomically(folder / "config.json", "{\"modle\": {}, \"model\": {}}");
  CHECK_HAS(error_of([&] { load_model(folder.path); }), "'modle' is not known. Did you mean 'model'?");
  write_file_atomically(folder / "config.json", "[1]");
  CHECK_HAS(error_of([&] { load_model(folder.path); }), "has no object \"model\"");
  write_file_atomically(folder / "config.json", "{");
  CHECK_HAS(error_of([&] { load_model(folder.path); }), "config.json is not JSON");
}

TEST_CASE("settings: presets, files and words") {
  const RunConfig shakespeare = preset("shakespeare-cpu");
  CHECK(shakespeare.tokenizer == "char");
  CHECK(shakespeare.model.vocab_size == 0);
  CHECK(shakespeare.train.max_steps == 2000);
  CHECK(arch("nano").width == 128);
  CHECK_HAS(error_of([] { preset("shakespeare"); }),
            "there is no preset 'shakespeare'. Did you mean 'shakespeare-cpu'? The names are: shakespeare-cpu, demo");
  CHECK_HAS(error_of([] { arch("nanoo"); }), "Did you mean 'nano'?");

  auto settings = settings_from_json(R"({"width": 96, "train": {"lr": 3}, "tokenizer": "char"})", "f.json");
  settings.push_back(setting_from_word("heads", "6"));
  settings.push_back(setting_from_word("lr", ".5"));
  settings.push_back(setting_from_word("norm", "rms_norm"));
  settings.push_back(setting_from_word("tied_head", "false"));
  const RunConfig run = with_settings(RunConfig(), settings);
  CHECK(run.model.width == 96);
  CHECK(run.model.heads == 6);
  CHECK(run.train.lr == 0.5);
  CHECK(run.tokenizer == "char");
  CHECK(run.model.norm == NormKind::rms_norm);
  CHECK(!run.model.tied_head);
  CHECK(run.model.vocab_size == 0);

  const auto file = [](std::string_view text) { return error_of([&] { settings_from_json(text, "f.json"); }); };
  CHECK_HAS(file(R"({"widht": 96})"), "f.json: 'widht' is not known. Did you mean 'width'?");
  CHECK_HAS(file(R"({"model": {"lyaers": 96}})"), "Did you mean 'layers'?");
  CHECK_HAS(file(R"({"width": 96, "width": 64})"), "'width' comes twice");
  CHECK_HAS(file(R"({"width": 96, "model": {"width": 64}})"), "f.json: 'width' comes twice, in two groups");
  CHECK_HAS(file("{"), "f.json is not JSON");
  CHECK_HAS(file("3"), "must be an object");
  CHECK_HAS(file("[[[[[[[["), "nested too deeply");
  const auto word = [](const char* name, const char* w) {
    return error_of([&] { with_settings(RunConfig(), std::vector{setting_from_word(name, w)}); });
  };
  CHECK_HAS(word("heads", "3"), "width 128 is not a multiple of heads 3");
  CHECK_HAS(word("heads", "three"), "heads is 'three'. It must be a whole number");
  CHECK_HAS(word("lr", "1e"), "lr is '1e'. It must be a number");
  CHECK_HAS(word("lr", "nan"), "lr is 'nan'. It must be a number");
  CHECK_HAS(word("bias", "1"), "bias is '1'. It must be true or false");
  CHECK_HAS(word("norm", "batch"), "batch");
  CHECK_HAS(word("tokenizer", "words"), "It must be byte or char");
  CHECK_HAS(word("vocab_size", "-1"), "vocab_size is -1");
  CHECK_HAS(word("seed", "-1"), "seed is -1");
  CHECK_HAS(word("wdith", "1"), "Did you mean 'width'?");
  const auto bad = settings_from_json(R"({"lr": "high", "width": 1.5})", "f.json");
  CHECK_HAS(error_of([&] { with_settings(RunConfig(), bad); }), "lr is \"high\". It must be a number.");
  const std::vector<Setting> no_json{{"width", "{"}}, nested{{"width", std::string(100000, '[')}};
  CHECK_HAS(error_of([&] { with_settings(RunConfig(), no_json); }), "[config] width is not JSON");
  CHECK_HAS(error_of([&] { with_settings(RunConfig(), nested); }), "[config] width is nested too deeply");
}

TEST_CASE("train: two trainings and two generations at once are what they are alone") {
  TrainConfig c = tiny_train();
  c.max_steps = 6;
  c.eval_every = 3;
  Run shared(c);
  const auto prompt = ByteTokenizer().encode("the cat");
  const auto losses = numbers_of(records_of(c));
  const auto text = generate(shared.model, prompt, 24, {.seed = 5});
  std::vector<double> got_losses[2];
  std::vector<int64_t> got_text[2];
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] { got_losses[i] = numbers_of(records_of(c)); });
      threads.emplace_back([&, i] { got_text[i] = generate(shared.model, prompt, 24, {.seed = 5}); });
    }
  }
  for (int i = 0; i < 2; ++i) {
    CHECK(got_losses[i] == losses);
    CHECK(got_text[i] == text);
  }
}
