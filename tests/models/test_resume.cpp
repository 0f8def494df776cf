// Checkpoints and the Trainer's state: a resumed run has the same bits; bad files are refused.
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/ops/factories.h>

#include "support/effort.h"
#include "support/limit.h"
#include "support/small_run.h"

using namespace tg;

namespace {

TrainConfig short_train() {
  TrainConfig c = tiny_train();
  c.max_steps = 12, c.eval_every = 6;
  return c;
}
Checkpoint checkpoint_of(const Run& run, const GptConfig& g = tiny_model()) {
  RunConfig config;
  config.model = g, config.train = run.trainer.config();
  return {.config = to_json(config),
          .tokenizer = ByteTokenizer().to_json(),
          .data = DataIdentity::of(bytes_of(rhyme()), {"rhyme.txt", "the \"second\" ü.txt"}),
          .state = run.trainer.state()};
}
// A run after step 2, with a checkpoint of step 1.
struct SavedRun {
  Folder folder;
  std::string path = folder / "checkpoint.safetensors";
  Run run{short_train()};
  std::string former;  // content of the file
  SavedRun() {
    run.trainer.step();
    save_checkpoint(path, checkpoint_of(run));
    former = read_file(path);
    run.trainer.step();
  }
};
StepRecord record(int64_t step) {
  StepRecord r;
  r.step = step, r.loss = 0.5;
  return r;
}
std::string load_error(const std::string& content) {
  Folder folder;
  detail::write_file_atomically(folder / "c.safetensors", content);
  const std::string message = error_of([&] { load_checkpoint(folder / "c.safetensors"); });
  if (message != "no error") CHECK_HAS(message, folder / "c.safetensors");  // whatever it is, the file is named
  return message;
}

}  // namespace

TEST_CASE("checkpoint: all of it comes back, and writes the same bytes again") {
  Folder folder;
  Run run(short_train());
  for (int i = 0; i < 3; ++i) run.trainer.step();
  const Checkpoint c = checkpoint_of(run);
  save_checkpoint(folder / "a", c);
  const Checkpoint d = load_checkpoint(folder / "a");
  CHECK(d.config == c.config);
  CHECK(d.tokenizer == c.tokenizer);
  CHECK(d.data.files == c.data.files);
  CHECK(d.data.same_tokens(c.data));
  CHECK(d.data.tokens == int64_t(rhyme().size()));
  CHECK(d.state.step == 3);
  CHECK(d.state.optimizer_steps == 3);
  CHECK(d.state.data.offset == 3 * 4);  // a block for each window
  CHECK(snapshot(d.state) == snapshot(c.state));
  CHECK(d.state.tensors.contains("model.h.0.attn.qkv.weight"));
  CHECK(d.state.tensors.contains("adamw.h.0.attn.qkv.weight.m"));
  CHECK(d.state.tensors.size() == 3 * run.params.all().size());
  save_checkpoint(folder / "b", d);
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
}

TEST_CASE("checkpoint: a validation that is still to come and the kernels come back, and may be missing") {
  Folder folder;
  Run run(short_train());
  run.trainer.step();
  Checkpoint c = checkpoint_of(run);
  save_checkpoint(folder / "plain", c);
  CHECK(!load_checkpoint(folder / "plain").state.unvalidated);
  CHECK(load_checkpoint(folder / "plain").kernels.empty());
  StepRecord r = record(1);
  r.loss = 1.0 / 3, r.grad_norm = 2e-300, r.lr = 0.1, r.ms = 12.25, r.tokens_per_s = 7;
  c.state.unvalidated = r, c.kernels = "cpu, level 3";
  save_checkpoint(folder / "a", c);
  const Checkpoint d = load_checkpoint(folder / "a");
  REQUIRE(d.state.unvalidated);
  CHECK(to_json(*d.state.unvalidated) == to_json(r));
  CHECK(d.kernels == "cpu, level 3");
  save_checkpoint(folder / "b", d);
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
}

TEST_CASE("checkpoint: a run that goes on from any step is the run that never stopped, bit for bit") {
  Folder folder;
  TrainConfig c = short_train();
  SUBCASE("one batch a step") {}
  SUBCASE("three micro-batches a step") { c.accumulate = 3; }
  SUBCASE("bf16, recomputed blocks") { c.dtype = DType::bf16, c.recompute = Recompute::block; }
  SUBCASE("cheap ops recomputed") { c.recompute = Recompute::cheap; }
  SUBCASE("SGD") { c.optimizer = OptimizerKind::sgd; }
  SUBCASE("SGD without momentum") { c.optimizer = OptimizerKind::sgd, c.momentum = 0, c.nesterov = false; }
  SUBCASE("Muon") { c.optimizer = OptimizerKind::muon; }
  SUBCASE("moments in bf16") { c.moments = DType::bf16; }
  Run whole(c);
  std::vector<StepRecord> all;
  while (!whole.trainer.done()) {
    save_checkpoint(folder / std::to_string(whole.trainer.steps()), checkpoint_of(whole));
    all.push_back(whole.trainer.step());
  }
  const auto end = snapshot(whole.trainer.state());
  if (c.moments == DType::f32) c.seed = 99;  // the trainer's own weights and generators differ
  for (int64_t at = 0; at < c.max_steps; at += has_time() ? 1 : 5) {
    const Checkpoint from = load_checkpoint(folder / std::to_string(at));
    Run other(c);
    if (at % 2) other.trainer.step();
    other.trainer.load_state(from.state);
    CHECK(other.trainer.steps() == at);
    const auto rest = rest_of(other.trainer);
    CHECK(numbers_of(rest) == numbers_of({all.begin() + at, all.end()}));
    CHECK(snapshot(other.trainer.state()) == end);
  }
}

TEST_CASE("trainer state: later steps do not change it, and loading it twice gives the same") {
  Run run(short_train());
  run.trainer.step();
  const TrainerState s = run.trainer.state();
  const auto before = snapshot(s);
  const auto rest = numbers_of(rest_of(run.trainer));
  CHECK(snapshot(s) == before);
  CHECK(snapshot(run.trainer.state()) != before);
  run.trainer.load_state(s);
  CHECK(snapshot(run.trainer.state()) == before);
  CHECK(numbers_of(rest_of(run.trainer)) == rest);
  CHECK(snapshot(s) == before);
}

TEST_CASE("trainer state: one that does not fit changes nothing and names the first tensor") {
  Run run(short_train());
  run.trainer.step();
  const auto before = snapshot(run.trainer.state());
  const auto refused = [&](auto change) {
    TrainerState s = run.trainer.state();
    change(s);
    const std::string message = error_of([&] { run.trainer.load_state(s); });
    CHECK(snapshot(run.trainer.state()) == before);
    return message;
  };
  CHECK(refused([](TrainerState&) {}) == "no error");
  CHECK_HAS(refused([](TrainerState& s) { s.step = 13; }), "after 13 steps, and max_steps is 12");
  CHECK_HAS(refused([](TrainerState& s) { s.step = -1; }), "after -1 steps");
  CHECK_HAS(refused([](TrainerState& s) { s.optimizer_steps = -1; }), "steps is -1");
  CHECK_HAS(refused([](TrainerState& s) { s.tensors.erase("model.wpe.weight"); }),
            "the state has no 'model.wpe.weight', which is (16, 32) f32 here");
  CHECK_HAS(refused([](TrainerState& s) { s.tensors.erase("adamw.wpe.weight.v"); }), "no 'adamw.wpe.weight.v'");
  CHECK_HAS(refused([](TrainerState& s) { s.tensors["model.extra"] = zeros({1}); }), "'model.extra' of the state");
  CHECK_HAS(refused([](TrainerState& s) {
              s.tensors["model.wpe.weight"] = zeros({16, 32}, DType::f64);
            }),
            "'model.wpe.weight' is (16, 32) f64 in the state and (16, 32) f32 here");
  CHECK_HAS(refused([](TrainerState& s) {
              s.tensors["model.wpe.weight"] = zeros({16, 32}, DType::bf16);
            }),
            "'model.wpe.weight' is (16, 32) bf16 in the state and (16, 32) f32 here");
  CHECK_HAS(refused([](TrainerState& s) {
              s.tensors["adamw.wpe.weight.m"] = zeros({16, 32}, DType::f64);
            }),
            "'adamw.wpe.weight.m' is (16, 32) f64 in the state and (16, 32) f32 here");
  TrainConfig narrow = short_train();
  narrow.moments = DType::bf16;
  Run other_moments(narrow);
  other_moments.trainer.load_state(run.trainer.state());
  CHECK(other_moments.trainer.state().tensors.at("adamw.wpe.weight.v").dtype() == DType::bf16);
  CHECK_HAS(refused([](TrainerState& s) { s.tensors["model.wpe.weight"] = Tensor(); }), "no 'model.wpe.weight'");
  GptConfig wide = tiny_model();
  wide.width = 64;
  const Run other(short_train(), wide);
  CHECK_SAYS(run.trainer.load_state(other.trainer.state()),
             "'model.wte.weight' is (256, 64) f32 in the state and (256, 32) f32 here");
  GptConfig deep = tiny_model();
  deep.layers = 2;
  CHECK_SAYS(run.trainer.load_state(Run(short_train(), deep).trainer.state()), "h.1.");
  CHECK(snapshot(run.trainer.state()) == before);
}

TEST_CASE("checkpoint: a file cut short, changed in any byte, or of something else is refused") {
  Folder folder;
  GptConfig g{.vocab_size = 5, .context = 4, .layers = 1, .heads = 1, .width = 4, .dropout = 0.1};
  TrainConfig t = short_train();
  t.batch = 2;
  const auto [params, model] = new_gpt(g);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 100; ++i) ids.push_back(i % 5);
  const TokenData data = TokenData::from_tokens(ids);
  Trainer trainer(model, params, data, t);
  trainer.step();
  RunConfig run;
  run.model = g, run.train = t;
  save_checkpoint(folder / "good", {.config = to_json(run), .data = DataIdentity::of(data), .state = trainer.state()});
  const std::string good = read_file(folder / "good");
  CHECK(load_error(good) == "no error");

  for (const size_t n : {size_t(0), size_t(7), size_t(8), size_t(500), good.size() / 2, good.size() - 1}) {
    CAPTURE(n);
    CHECK(load_error(good.substr(0, n)) != "no error");
  }
  CHECK_HAS(load_error(good.substr(0, good.size() - 1)), "no safetensors file");
  CHECK_HAS(load_error(good + "x"), "belong to no tensor");
  const size_t data_at = 8 + size_t(*reinterpret_cast<const uint64_t*>(good.data()));
  const auto flipped = [&](size_t at, int bit) {
    std::string bad = good;
    bad[at] = char(bad[at] ^ (1 << bit));
    return bad;
  };
  for (size_t at = 0; at < good.size(); at += kSanitized ? 37 : 3) {
    CAPTURE(at);
    const std::string bad = flipped(at, int(at / 3 % 8)), message = load_error(bad);
    if (at >= data_at) {
      CHECK_HAS(message, "it was damaged after it was written");
    } else if (message == "no error") {  // blanks around the header's JSON are valid
      detail::write_file_atomically(folder / "bad", bad);
      save_checkpoint(folder / "again", load_checkpoint(folder / "bad"));
      CHECK(read_file(folder / "again") == good);
    }
  }

  const SafetensorsFile file(folder / "good");
  const auto with = [&](const std::string& key, const std::string& text) {  // another entry and the old checksum
    auto metadata = file.metadata();
    metadata[key] = text;
    write_safetensors(folder / "bad", file.tensors(), metadata);
    return load_error(read_file(folder / "bad"));
  };
  CHECK_HAS(with("format", "tapegrad"), "it is a safetensors file, but not a checkpoint. It must be");
  CHECK_HAS(with("version", "2"), "its version is '2', and this program reads '1'");
  CHECK_HAS(with("state", "{}"), "its checksum is");
  CHECK_HAS(with("more", ""), "its checksum is");
  write_safetensors(folder / "bad", params.state(), {{"format", "tapegrad"}});
  CHECK_HAS(load_error(read_file(folder / "bad")), "it is a safetensors file, but not a checkpoint");
  write_safetensors(folder / "bad", {});
  CHECK_HAS(load_error(read_file(folder / "bad")), "it is a safetensors file, but not a checkpoint");
  CHECK_HAS(load_error("not a checkpoint"), "no safetensors file");
  CHECK_SAYS(load_checkpoint(folder / "none"), "none: No such file");
  CHECK_SAYS(load_checkpoint(folder.path), "it is a folder");
}

namespace {
constexpr const char* kOfLayers[] = {
    "head_dim",      "qkv_bias",       "qk_norm",   "rope_scaling", "rope_factor",
    "rope_low_freq", "rope_high_freq", "fragments", "fragmented",   "rope_original_context"};
}  // namespace
TEST_CASE("checkpoint: a configuration that lacks a field, or has one out of range, is refused") {
  RunConfig run;
  run.model = tiny_model();
  const auto refused = [&](auto change) {
    const Json j = changed(detail::own_json(to_json(run)), change);
    return error_of([&] { detail::run_config_from_json(detail::text_of(j), "the file"); });
  };
  CHECK(refused([](auto&) {}) == "no error");
  for (const RunField& f : detail::run_fields()) {
    const auto without = [&](auto& j) {
      for (auto* group : {&j, &j["model"], &j["train"], &j["data"]}) group->erase(f.name);
    };
    CHECK_HAS(refused(without), fmt::format("the file has no '{}'. Every setting must be there", f.name));
  }
  CHECK_HAS(refused([](auto& j) { j["train"]["window"] = 17; }), "window is 17, and the model's context is 16");
  CHECK_HAS(refused([](auto& j) { j["model"]["fragmented"] = 3; }), "It must be a text in quotes");
  CHECK_HAS(refused([](auto& j) { j["train"]["beta1"] = 1; }), "beta1 is 1");
  CHECK_HAS(refused([](auto& j) { j["model"]["dropout"] = 2; }), "dropout is 2");
  CHECK_HAS(refused([](auto& j) { j["train"]["more"] = 2; }), "'more' is not known");
  CHECK_HAS(refused([](auto& j) { j["batch"] = 2; }), "'batch' is set twice");
}

TEST_CASE("checkpoint: when the disk is full or the folder is gone, the former file stays and is whole") {
  SavedRun saved;
  auto& [folder, path, run, former] = saved;
  const Checkpoint next = checkpoint_of(run);
  for (const rlim_t most : {rlim_t(0), rlim_t(100), rlim_t(former.size() / 2), rlim_t(former.size() - 1)}) {
    const std::string message = error_of([&] {
      const Limit small(RLIMIT_FSIZE, most);
      save_checkpoint(path, next);
    });
    CHECK_HAS(message, "[file] cannot write " + path, "File too large. What was there before is unchanged. Free space");
    CHECK(read_file(path) == former);
    CHECK(load_checkpoint(path).state.step == 1);
  }
  save_checkpoint(path, next);
  CHECK(load_checkpoint(path).state.step == 2);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
  CHECK_SAYS(save_checkpoint(folder / "gone/checkpoint.safetensors", next),
             "its folder cannot be opened: No such file or directory");
}

TEST_CASE("checkpoint: a state that is not finite is not saved, and the former file stays") {
  SavedRun saved;
  auto& [folder, path, run, former] = saved;
  const auto refused = [&](const std::string& name, const std::vector<int64_t>& at, double x) {
    Checkpoint c = checkpoint_of(run);
    Tensor& t = c.state.tensors.at(name);
    int64_t flat = 0;
    for (size_t d = 0; d < at.size(); ++d) flat = flat * t.shape()[d] + at[d];
    std::vector<float> all = values(t);
    all[size_t(flat)] = float(x);
    t = tensor(all, t.shape());
    const std::string message = error_of(Error::Kind::non_finite, [&] { save_checkpoint(path, c); });
    CHECK(read_file(path) == former);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
    return message;
  };
  const double inf = std::numeric_limits<double>::infinity();
  CHECK_HAS(refused("model.wpe.weight", {3, 5}, inf),
            "'model.wpe.weight' is inf at (3, 5) after step 2. What was there");
  CHECK_HAS(refused("model.h.0.ln_1.weight", {31}, std::nan("")),
            "'model.h.0.ln_1.weight' is nan at (31) after step 2");
  CHECK_HAS(refused("adamw.wte.weight.m", {255, 31}, -inf), "'adamw.wte.weight.m' is -inf at (255, 31) after step 2");
  CHECK_HAS(refused("adamw.wte.weight.v", {0, 0}, inf), "'adamw.wte.weight.v' is inf at (0, 0) after step 2");
  CHECK_HAS(refused("model.wpe.weight", {0, 0}, inf),
            "[checkpoint] cannot write " + path + ": 'model.wpe.weight' is inf");
  save_checkpoint(path, checkpoint_of(run));  // a finite state is saved
  CHECK(load_checkpoint(path).state.step == 2);
  // The trainer's own state must refuse a non-finite loss too.
  const std::string second = read_file(path);
  StateDict broken = run.params.state();
  broken["wte.weight"] = full(broken["wte.weight"].shape(), inf);
  run.params.assign(broken);
  CHECK_THROWS_AS(run.trainer.step(), Error);
  CHECK_SAYS(save_checkpoint(path, checkpoint_of(run)), "'model.wte.weight' is inf at (0, 0) after step 2");
  CHECK(read_file(path) == second);
}

TEST_CASE("data: its identity sees each token, their order and nothing else") {
  const auto hash = [](std::vector<int64_t> ids) { return DataIdentity::of(TokenData::from_tokens(ids)).hash; };
  CHECK(hash({1, 2, 3}) == hash({1, 2, 3}));
  CHECK(hash({1, 2, 3}) != hash({1, 3, 2}));
  CHECK(hash({1, 2, 3}) != hash({1, 2, 4}));
  CHECK(hash({0}) != hash({0, 0}));
  Folder folder;
  std::vector<int64_t> many(40'000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = int64_t(i * i % 60'000);
  const std::vector<uint16_t> small(many.begin(), many.end());
  detail::write_file_atomically(folder / "ids.bin", [&](const Sink& write) { write(std::as_bytes(std::span(small))); });
  CHECK(DataIdentity::of(TokenData::from_file(folder / "ids.bin")).hash == hash(many));
  const uint64_t before = hash(many);
  many[33'000] ^= 1;
  CHECK(hash(many) != before);
}

TEST_CASE("log: resuming keeps the lines up to a step, whatever a crash left behind them") {
  Folder folder;
  const std::string path = folder / "log.jsonl";
  const auto lines = [](int64_t from, int64_t to) {
    std::string text;
    for (int64_t i = from; i <= to; ++i) text += to_json(record(i)) + "\n";
    return text;
  };
  const auto resumed = [&](const std::string& text, int64_t step) {
    detail::write_file_atomically(path, text);
    StepLog log = StepLog::resume(path, step);
    const int64_t last = StepLog::last_step_of(path);
    log.write(record(step + 1));
    return std::pair(last, read_file(path));
  };
  using Result = std::pair<int64_t, std::string>;
  CHECK(resumed(lines(1, 3), 3) == Result{3, lines(1, 4)});
  CHECK(resumed(lines(1, 9), 3) == Result{3, lines(1, 4)});                              // newer than the checkpoint
  CHECK(resumed(lines(1, 3) + lines(4, 4).substr(0, 20), 3) == Result{3, lines(1, 4)});  // torn
  CHECK(resumed(lines(1, 3) + lines(4, 4).substr(0, lines(4, 4).size() - 1), 4) ==
        Result{3, lines(1, 3) + lines(5, 5)});
  CHECK(resumed(lines(1, 2), 3) == Result{2, lines(1, 2) + lines(4, 4)});  // older
  const std::string zeros = std::string(50, '\0') + "\n";
  CHECK(resumed(lines(1, 2) + zeros + lines(3, 3), 3) == Result{3, lines(1, 4)});  // damaged in the middle
  CHECK(resumed(zeros + lines(2, 5) + "{\n", 4) == Result{4, lines(2, 5)});
  CHECK(resumed(lines(1, 2) + "{\"step\":\"3\"}\n", 3) == Result{2, lines(1, 2) + lines(4, 4)});
  CHECK(resumed(lines(1, 3) + lines(2, 3), 3) == Result{3, lines(1, 4)});  // steps must increase
  CHECK(resumed("", 0) == Result{0, lines(1, 1)});
  const auto found = [&](const std::string& text, int64_t step) {
    detail::write_file_atomically(path, text);
    const int64_t last = StepLog::last_step_of(path);
    CHECK(read_file(path) == text);
    const StepLog log = StepLog::resume(path, step);
    return std::vector<int64_t>{last, log.missing(), log.unreadable()};
  };
  CHECK(found(lines(1, 9), 3) == std::vector<int64_t>{9, 0, 0});
  CHECK(found(lines(1, 2) + zeros + "x\n" + lines(5, 9) + "{\"st", 9) == std::vector<int64_t>{9, 2, 2});
  CHECK(found(lines(3, 4), 4) == std::vector<int64_t>{4, 2, 0});
  CHECK(found("", 0) == std::vector<int64_t>{0, 0, 0});
  std::filesystem::remove(path);
  CHECK(StepLog::last_step_of(path) == 0);
  CHECK(StepLog::resume(path, 3).missing() == 3);
  CHECK(read_file(path).empty());
}
