// models/train: the training loop and its log.
#include <tapegrad/core/node.h>
#include <tapegrad/cpu/runtime/product_path.h>
#include <tapegrad/tools.h>

#include <future>
#include <limits>
#include <thread>

#include "support/small_run.h"
#include "support/threads.h"

using namespace tg;

TEST_CASE("train: the loss falls, and the record of each step is whole") {
  const auto all = records_of(tiny_train());
  REQUIRE(all.size() == 40);
  CHECK(std::abs(all[0].loss - std::log(256.0)) < 0.2);  // a new model predicts almost uniformly
  CHECK(all[39].loss < 2.8);                             // about 2.7 nats a byte without context
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

// Not for the thread sanitizer: sizes are read without a lock.
TEST_CASE("train: a model generates while it is trained") {
  for (const bool compiled : {false, true})
    for (const DType d : {DType::f32, DType::bf16}) {
      TrainConfig c = tiny_train();
      c.compile = compiled, c.dtype = d, c.max_steps = 80;
      Run run(c);
      std::future<void> trains = std::async(std::launch::async, [&] { run.trainer.run(); });
      while (trains.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        const auto logits = run.model.forward(tensor<int32_t>({1, 2, 3}, {1, 3}), {.compute = d}).to_vector<float>();
        CHECK(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }));
      }
      trains.get();
    }
}

TEST_CASE("train: losses are bit-equal for one seed and for 1 and 2 threads, and differ between seeds") {
  TrainConfig c = tiny_train();
  c.max_steps = 12, c.eval_every = 6;
  const auto first = numbers_of(records_of(c));
  CHECK(numbers_of(records_of(c)) == first);
  CHECK(on_one_thread([&] { return numbers_of(records_of(c)); }) == first);
  c.seed = 2;
  CHECK(numbers_of(records_of(c)) != first);
}

TEST_CASE("train: the precision of products is that of the settings, not of the caller's scope") {
  TrainConfig c = tiny_train();
  c.max_steps = 3, c.window = 16, c.batch = 12;  // enough rows for products of bf16
  const auto highest = numbers_of(records_of(c));
  {
    const MatmulPrecisionScope scope(MatmulPrecision::medium);
    CHECK(numbers_of(records_of(c)) == highest);
  }
  c.matmul_precision = MatmulPrecision::medium;
  const auto medium = numbers_of(records_of(c));
  c.compile = true;
  CHECK(numbers_of(records_of(c)) == medium);
  const bool narrows = cpu::bf16_path() != cpu::Bf16Path::f32;
  CHECK((medium != highest) == narrows);
}

TEST_CASE("train: the validation loss weighs every token of the split once") {
  TrainConfig c = tiny_train();
  c.val_fraction = 0.05;  // 90 tokens: 5 windows of 16, and 9 targets
  Run run(c);
  const std::string text = rhyme();
  const std::vector<int64_t> ids = ByteTokenizer().encode(text.substr(text.size() - 90));
  double sum = 0;
  for (size_t at = 0; at + 1 < ids.size(); at += 16) {
    const size_t n = std::min<size_t>(16, ids.size() - 1 - at);
    const std::vector<int64_t> x(ids.begin() + int64_t(at), ids.begin() + int64_t(at + n));
    const auto logits = run.model.forward(tensor(x, {1, int64_t(n)})).to_vector<double>();
    for (size_t t = 0; t < n; ++t) {
      double total = 0;
      for (size_t v = 0; v < 256; ++v) total += std::exp(logits[t * 256 + v]);
      sum += std::log(total) - logits[t * 256 + size_t(ids[at + t + 1])];
    }
  }
  CHECK(run.trainer.validation_loss() == doctest::Approx(sum / 89).epsilon(1e-6));  // f32 losses against f64
}

TEST_CASE("train: windows shorter than the context") {
  TrainConfig c = tiny_train();
  c.max_steps = 4, c.window = 7;
  Run run(c);
  const auto [params, model] = new_gpt(tiny_model(), Params({}, c.seed));
  const TokenData data = bytes_of(rhyme());
  Trainer same(model, params, token_batches(data.split(1 - c.val_fraction), c.batch, 7), c);
  CHECK(numbers_of(rest_of(run.trainer)) == numbers_of(rest_of(same)));
  CHECK(plan_memory(tiny_model(), c).peak < plan_memory(tiny_model(), tiny_train()).peak);
  c.window = 17;
  CHECK_SAYS(Run(c), "[train] window is 17, and the model's context is 16.");
  c.window = -1;
  CHECK_SAYS(c.validate(), "window is -1");
}
TEST_CASE("train: what cannot be trained is an Error before the first step") {
  const auto with = [](auto change) { return error_of([&] { Run run(changed(tiny_train(), change)); }); };
  CHECK(with([](TrainConfig&) {}) == "no error");
  const std::vector<std::pair<std::string_view, double>> wrong{
      {"batch", 0},      {"accumulate", 0},  {"checkpoint_every", -2}, {"max_steps", 0},  {"warmup", -1},
      {"lr", NAN},       {"lr", -1},         {"lr", INFINITY},         {"min_lr", 1},     {"min_lr", -1},
      {"beta1", 1},      {"beta1", NAN},     {"beta2", -0.1},          {"beta2", 1},      {"eps", 0},
      {"eps", HUGE_VAL}, {"eval_every", -1}, {"weight_decay", -1},     {"clip_norm", -1}, {"val_fraction", 1}};
  for (const auto& [name, x] : wrong) {
    const auto change = [&](std::string_view field, auto& value, const char*) {
      if constexpr (std::is_arithmetic_v<std::remove_reference_t<decltype(value)>>)
        if (field == name) value = std::remove_reference_t<decltype(value)>(x);
    };
    CHECK_HAS(with([&](TrainConfig& c) { detail::visit_train_fields(c, change); }), fmt::format("{} is {}", name, x));
  }
  CHECK_HAS(with([](TrainConfig& c) { c.min_lr = 1; }), "min_lr is 1 and lr 0.01. The rate falls from lr to min_lr");
  CHECK_HAS(with([](TrainConfig& c) { c.schedule = ScheduleKind::constant, c.min_lr = -1; }), "min_lr is -1");
  CHECK_HAS(with([](TrainConfig& c) { c.schedule = ScheduleKind::constant, c.min_lr = NAN; }), "min_lr is nan");
  int64_t TrainConfig::*const counts[] = {&TrainConfig::batch,      &TrainConfig::accumulate,
                                          &TrainConfig::max_steps,  &TrainConfig::warmup,
                                          &TrainConfig::eval_every, &TrainConfig::checkpoint_every};
  for (const auto count : counts)
    for (const int64_t n : {(int64_t(1) << 53) + 1, INT64_MAX})
      CHECK_HAS(with([&](TrainConfig& c) { c.*count = n; }),
                fmt::format(" is {}. It must be at most 2^53, which is 9007199254740992.", n));
  for (const auto count : {&TrainConfig::max_steps, &TrainConfig::warmup, &TrainConfig::eval_every}) {
    TrainConfig c = tiny_train();  // the largest that is allowed
    c.*count = int64_t(1) << 53;
    const StepRecord r = Run(c).trainer.step();
    CHECK(r.lr > 0);
    CHECK(r.lr <= c.lr);
  }
  CHECK_HAS(error_of([] {
              TrainConfig c = tiny_train();
              c.batch = int64_t(1) << 53;
              Run(c).trainer.step();
            }),
            "out of memory: 576460752303423488 bytes requested");

  const auto text_of = [](const std::string& text) {
    return error_of([&] { Run run(tiny_train(), tiny_model(), text); });
  };
  for (const double dropout : {-0.1, 1.0, double(NAN)}) {
    GptConfig g = tiny_model();
    g.dropout = dropout;
    CHECK_SAYS(Run(tiny_train(), g), fmt::format("dropout is {}. It must be in [0, 1)", dropout));
  }
  CHECK_HAS(text_of(rhyme().substr(0, 17)), "training part of the rhyme has 15 tokens, but a context of 16");
  CHECK_HAS(text_of(""), "the rhyme has 0 tokens");
  GptConfig small = tiny_model();
  small.vocab_size = 100;  // 'e' is 101
  CHECK_SAYS(Run(tiny_train(), small), "is not in the vocabulary");
}

TEST_CASE("train: the learning rate follows the schedule that is named") {
  TrainConfig c = tiny_train();
  c.eval_every = 0, c.val_fraction = 0, c.warmup = 1, c.max_steps = 6, c.lr = 1e-3, c.min_lr = 1e-4;
  const auto rates = [&] {
    std::vector<double> lr;
    Run run(c);
    run.trainer.run([&](const StepRecord& r) { lr.push_back(r.lr); });
    return lr;
  };
  const auto cosine = rates();
  c.schedule = ScheduleKind::constant;
  c.min_lr = 1;  // unused
  CHECK(rates() == std::vector<double>{5e-4, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3});
  CHECK(cosine[1] == 1e-3);
  for (size_t i = 2; i < 6; ++i) CHECK(cosine[i] < cosine[i - 1]);
}

TEST_CASE("train: ends of runs") {
  TrainConfig c = tiny_train();
  c.max_steps = 2;  // fewer than the warm-up
  c.eval_every = 0;
  Run run(c);
  CHECK(!run.trainer.step().val_loss);
  CHECK(run.trainer.step().val_loss);
  CHECK(run.trainer.done());
  CHECK_SAYS(run.trainer.step(), "all 2 steps are done");
  c.val_fraction = 0;
  Run without(c);
  without.trainer.run([](const StepRecord& r) { CHECK(!r.val_loss); });
  CHECK_SAYS(without.trainer.validation_loss(), "there is no validation part");
  c.max_steps = 12;  // which steps validate and save
  const auto steps = [&](auto asks) {
    std::vector<int64_t> v;
    for (int64_t i = 1; i <= c.max_steps; ++i)
      if (asks(i)) v.push_back(i);
    return v;
  };
  const auto saves = [&] { return steps([&](int64_t i) { return c.saves_after(i); }); };
  c.eval_every = 5;
  CHECK(steps([&](int64_t i) { return c.evaluates_after(i); }) == std::vector<int64_t>{5, 10, 12});
  CHECK(saves() == std::vector<int64_t>{5, 10, 12});
  c.checkpoint_every = 4;
  CHECK(saves() == std::vector<int64_t>{4, 8, 12});
  c.checkpoint_every = 0;
  CHECK(saves() == std::vector<int64_t>{12});
}

TEST_CASE("log: one JSON object a step, written at once") {
  Folder folder;
  TrainConfig c = tiny_train();
  c.max_steps = 4, c.eval_every = 2;
  Run run(c);
  StepLog log(folder / "log.jsonl");
  int64_t lines = 0;
  run.trainer.run([&](const StepRecord& r) {
    log.write(r);
    const std::string text(MappedFile(folder / "log.jsonl").text());
    CHECK(std::count(text.begin(), text.end(), '\n') == ++lines);
    const auto j = detail::own_json(text.substr(text.rfind('\n', text.size() - 2) + 1));
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
  CHECK(detail::own_json(to_json(lost)).at("loss").is_null());
  CHECK_SAYS(StepLog(folder / "log.jsonl/x"), "cannot be opened for writing: Not a directory");
  StepLog full("/dev/full");
  CHECK_SAYS(full.write(lost), "/dev/full cannot be appended to: No space left on device");
  std::filesystem::remove(folder / "log.jsonl");
  CHECK_SAYS(log.write(lost), "log.jsonl was removed while it was being written");
}

TEST_CASE("train: two trainings and two generations at once are what they are alone") {
  TrainConfig c = tiny_train();
  c.max_steps = 6, c.eval_every = 3;
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

TEST_CASE("accumulate: micro-batches with ignored targets make the gradients of one large batch") {
  const Params params({}, 3);
  GptConfig g = tiny_model();
  g.dropout = 0;
  const Gpt model(params, g);
  const auto mean = [&](const Batch& b) {
    return cross_entropy(model.forward(b.inputs), b.targets, {.ignore_index = Batch::kIgnoreIndex});
  };
  ShuffledBatches batches(bytes_of(rhyme()), 3, 16, Rng{5});
  std::vector<Batch> micro;
  std::vector<Tensor> tokens, targets;
  const int64_t ignored[] = {40, 0, 48, 7};  // 48 each: the third keeps none
  for (const int64_t n : ignored) {
    Batch b = batches.next();
    std::fill_n(b.targets.mutable_data<int32_t>(), n, -100);
    tokens.push_back(b.inputs);
    targets.push_back(b.targets);
    micro.push_back(std::move(b));
  }
  const Tensor loss = cross_entropy(model.forward(concat(tokens, 0)), concat(targets, 0), {.ignore_index = -100});
  const GradMap whole = backward(loss);
  const Accumulated parts = accumulate(mean, micro);
  CHECK(MicroBatches(micro).targets == 8 + 48 + 0 + 41);
  CHECK(parts.loss.item<double>() == doctest::Approx(loss.item<double>()).epsilon(1e-6));
  REQUIRE(parts.grads.size() == whole.size());
  for (const Parameter& p : params.all()) {
    INFO(p.name);
    CHECK(distance(parts.grads[p.tensor], whole[p.tensor]) < 1e-5);
  }
  // weights of 1/3 each would be far off
  const Accumulated equal = accumulate(mean, std::span(micro).first(1));
  CHECK(std::abs(equal.loss.item<double>() - parts.loss.item<double>()) > 1e-4);
  const GradMap alone = backward(cross_entropy(model.forward(tokens[1]), targets[1]));  // one batch: the same bits
  const Accumulated one = accumulate(mean, std::span(micro).subspan(1, 1));
  for (const Parameter& p : params.all()) CHECK(bits_of(one.grads[p.tensor]) == bits_of(alone[p.tensor]));
  CHECK_SAYS(accumulate(mean, std::span(micro).subspan(2, 1)), "without a kept target");
  CHECK_SAYS(accumulate(mean, std::span<const Batch>()), "[accumulate] 0 micro-batches");
}

TEST_CASE("train: two micro-batches of 4 make the steps of a batch of 8") {
  TrainConfig c = tiny_train();
  GptConfig g = tiny_model();
  g.dropout = 0;  // masks are drawn per micro-batch
  c.max_steps = 6, c.eval_every = 0, c.batch = 8;
  Run large(c, g);
  const auto whole = rest_of(large.trainer);
  c.batch = 4, c.accumulate = 2;
  Run small(c, g);
  const auto parts = rest_of(small.trainer);
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK(parts[i].loss == doctest::Approx(whole[i].loss).epsilon(1e-5));
    CHECK(parts[i].grad_norm == doctest::Approx(whole[i].grad_norm).epsilon(1e-4));
    CHECK(parts[i].tokens_per_s == doctest::Approx(8 * 16 / parts[i].ms * 1e3));
  }
  CHECK(small.trainer.state().data == large.trainer.state().data);
}

TEST_CASE("train: a step that is not finite names the op and its scope, and changes nothing") {
  TrainConfig c = tiny_train();
  c.val_fraction = 0;
  const auto unchanged = [](Trainer& t) {  // the message of a step that changes nothing
    const Snapshot before = snapshot(t.state());
    const std::string message = error_of([&] { t.step(); });
    CHECK(snapshot(t.state()) == before);
    return message;
  };
  SUBCASE("the loss") {
    GptConfig wild = tiny_model();
    wild.init_std = 1e38;  // the logits overflow
    Run run(c, wild);
    const std::string message = unchanged(run.trainer);
    CHECK_HAS(message, "[train] the loss of step 1 is", "every op checked, this is where it began:\n[", "\n    in gpt");
  }
  SUBCASE("the gradient") {
    Run run(c);
    Tensor weight = run.params.at("h.0.mlp.fc").shared().get("weight", {128, 32}, Init::normal(1));
    int64_t calls = 0;
    weight.on_grad([&](const Tensor& g) {
      const NameScope here("hook");
      return ++calls >= 3 ? g * 1e30 * 1e30 : g;
    });
    run.trainer.step();
    run.trainer.step();
    const std::string message = unchanged(run.trainer);
    CHECK(calls == 4);  // once in the step, once in the search
    CHECK_HAS(message, "[train] the gradient's norm of step 3 is inf", "[mul_scalar]", "\n    in hook");
  }
  SUBCASE("what does not happen again is not explained away") {
    Run run(c);
    Tensor weight = run.params.at("wpe").shared().get("weight", {16, 32}, Init::normal(1));
    int64_t calls = 0;
    weight.on_grad([&](const Tensor& g) { return ++calls == 1 ? g * 1e30 * 1e30 : g; });
    CHECK_HAS(unchanged(run.trainer), "it was finite: no op can be named");
    CHECK(!std::isnan(run.trainer.step().loss));  // resumes from the same state
  }
}

TEST_CASE("train: a validation that is given up is made by the next step, here and where the state goes on") {
  TrainConfig c = tiny_train();
  c.max_steps = 4, c.eval_every = 2;
  const auto whole = numbers_of(records_of(c));
  Run run(c);
  std::vector<StepRecord> all;
  int asked = 0;
  while (!run.trainer.done()) {
    const auto r = run.trainer.step([&] { return ++asked % 7 == 3; });
    if (r) all.push_back(*r);
    if (r) continue;
    const TrainerState s = run.trainer.state();
    REQUIRE(s.unvalidated);
    CHECK(s.unvalidated->step == s.step);
    CHECK(s.step % 2 == 0);
    Run other(c);
    other.trainer.load_state(s);
    CHECK(!other.trainer.done());
    auto rest = all;
    other.trainer.run([&](const StepRecord& one) { rest.push_back(one); });
    CHECK(numbers_of(rest) == whole);
  }
  CHECK(asked > 7);
  CHECK(numbers_of(all) == whole);
}

TEST_CASE("train: before the first update no learning rate is to blame for what is not finite") {
  TrainConfig c = tiny_train();
  Run run(c);
  StateDict broken = run.params.state();
  broken["wte.weight"] = tensor(std::vector<float>(256 * 32, 3e38f), {256, 32});
  run.params.assign(broken);
  const std::string first = error_of([&] { run.trainer.step(); });
  CHECK_HAS(first, "of step 1 is ", "No update was made before it, so no learning rate helps");
  CHECK(first.find("-nan") == std::string::npos);
  Run later(c);
  later.trainer.step();
  later.params.assign(broken);
  CHECK_SAYS(later.trainer.step(), "Lower the learning rate (now 0.00333");
}

TEST_CASE("train: an op that takes finite numbers only says the step, the first op, and which rate to lower") {
  for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::muon}) {
    CAPTURE(std::string(name_of(optimizer)));
    TrainConfig c = tiny_train();
    c.linear = LinearKind::switchback, c.optimizer = optimizer;
    Run run(c);
    run.trainer.step();
    StateDict broken = run.params.state();
    for (auto& [name, t] : broken)
      if (name == "wpe.weight") t = filled(t.shape(), std::numeric_limits<float>::infinity());
    run.params.assign(broken);
    const std::string message = error_of(Error::Kind::non_finite, [&] { run.trainer.step(); });
    CHECK_HAS(message, "[train] step 2 computes a number that is not finite. All must be finite. Lower ",
              optimizer == OptimizerKind::muon ? "Lower muon_lr, the rate of the hidden matrices (now 0.0"
                                               : "Lower the learning rate (now 0.00",
              "every op checked, this is where it began:\n[");
    CHECK(message.find("AnomalyScope") == std::string::npos);
    CHECK(run.trainer.steps() == 1);
    CHECK_SAYS_OF(non_finite, run.trainer.validation_loss(), "an AnomalyScope finds the op");
  }
}

TEST_CASE("train: recomputed activations give the same bits, bf16 gives others that train as well") {
  TrainConfig c = tiny_train();
  const auto with = [&](DType dtype, Recompute recompute) {
    c.dtype = dtype, c.recompute = recompute;
    const uint64_t before = engine_stats().kernels;
    auto records = records_of(c);
    return std::pair(std::move(records), engine_stats().kernels - before);
  };
  const auto [plain, kernels] = with(DType::f32, Recompute::none);
  const auto [half, half_kernels] = with(DType::bf16, Recompute::none);
  for (const Recompute r : {Recompute::cheap, Recompute::block}) {
    const auto [again, more] = with(DType::f32, r);
    CHECK(numbers_of(again) == numbers_of(plain));
    CHECK(more > kernels);
    CHECK(numbers_of(with(DType::bf16, r).first) == numbers_of(half));
  }
  CHECK(numbers_of(half) != numbers_of(plain));
  CHECK(half.back().loss == doctest::Approx(plain.back().loss).epsilon(0.05));
  c.dtype = DType::f16;
  CHECK_SAYS(Run(c), "dtype is f16. It must be f32 or bf16.");
}
