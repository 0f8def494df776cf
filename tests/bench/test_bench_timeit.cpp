// bench_gpt_timeit: its runs, results in each mode, checks, files.

#include <tapegrad/tapegrad.h>
#include <regex>
#include "../bench/common/stats.h"
#include "../bench/gpt_timeit/timeit.h"

#include "support/check_json.h"
#include "support/files.h"
#include "support/helpers.h"

using namespace tg;
using namespace tg::bench;
using doctest::Approx;

namespace {
constexpr Computation kAll[] = {Computation::forward, Computation::backward, Computation::forward_backward};
TimeitRow row(const char* size, Computation c, int64_t warmup, bool mixed, std::vector<double> times) {
  return {{size, c, warmup, mixed}, summarised(c, std::move(times))};
}
TimeitSetup tiny(RunMode mode = RunMode::eager, double dropout = 0) {
  TimeitSetup s{.steps = 2, .batch = 2, .context = 8, .vocab = 50, .seed = 7, .mode = mode};
  s.attn_pdrop = s.resid_pdrop = s.token_position_pdrop = dropout;
  return s;
}
std::string plan_error(const std::function<void(TimeitFlags&)>& spoil) {
  return error_of([&] { timeit_plan(changed(TimeitFlags(), spoil)); });
}
}  // namespace

TEST_CASE("timeit: the document's 24 runs in its order, and two before them") {
  const TimeitPlan plan = timeit_plan({});
  std::vector<std::string> wanted;
  for (const char* size : {"small", "medium"})
    for (const char* computation : {"forward", "backward", "forward_backward"})
      for (const int warmup : {0, 1})
        for (const char* mixed : {"False", "True"})
          wanted.push_back(fmt::format("{}_{}_warmup_{}_mixed_{}", size, computation, warmup, mixed));
  REQUIRE(plan.matrix.size() == wanted.size());
  for (size_t i = 0; i < plan.matrix.size(); ++i) {
    CHECK(plan.matrix[i].key() == wanted[i]);
    const Json* of = timeit_figure(wanted[i]);
    REQUIRE(of);
    CHECK(number_of(*of, "min") <= number_of(*of, "median"));
    CHECK(number_of(*of, "median") <= number_of(*of, "max"));
    CHECK(number_of(*of, "std_dev") <= number_of(*of, "max") - number_of(*of, "min"));
  }
  REQUIRE(plan.standalone.size() == 2);
  for (const int64_t i : {0, 1}) {
    const std::string key = plan.standalone[size_t(i)].key();
    CHECK(key == fmt::format("small_forward_backward_warmup_{}_mixed_False", i));
    CHECK(timeit_figure("standalone_" + key));
  }
  for (const auto& [i, mean] : {std::pair{0, 74.113}, {7, 151.467}, {13, 223.693}, {16, 483.126}, {23, 683.909}})
    CHECK(number_of(*timeit_figure(wanted[size_t(i)]), "mean") == mean);
  CHECK(!timeit_figure("tiny_forward_warmup_0_mixed_False"));
  CHECK(plan.setup.steps == 5);
  CHECK(plan.setup.seed == 20230310);
  const auto of_document = [](const char* name) {
    GptConfig c = model_preset(name);
    c.attn_dropout = c.resid_dropout = c.embd_dropout = 0, c.ff_dropout = FfDropout::activation;
    return c;
  };
  CHECK(timeit_config(plan.matrix[0], plan.setup) == of_document("gpt-small-10k"));
  CHECK(timeit_config(plan.matrix[12], plan.setup) == of_document("gpt-medium-10k"));
  TimeitFlags f;
  f.sizes = {"tiny"}, f.mixed = {Word::True}, f.warmups = {3}, f.filter = "_backward";
  const TimeitPlan some = timeit_plan(f);
  CHECK(some.standalone.size() == 2);
  REQUIRE(some.matrix.size() == 2);
  CHECK(some.matrix[0].key() == "tiny_backward_warmup_3_mixed_True");
  f.matrix_only = true;
  CHECK(timeit_plan(f).standalone.empty());
}

TEST_CASE("timeit: flags that are wrong are errors") {
  CHECK_HAS(plan_error([](TimeitFlags& f) { f.warmups = {0, -1}; }), "--warmups is -1.");
  CHECK_HAS(plan_error([](TimeitFlags& f) { f.sizes = {"small", "meduim"}; }), "'meduim'");
  CHECK_HAS(plan_error([](TimeitFlags& f) { f.device = "abacus"; }), "abacus");
  CHECK_HAS(plan_error([](TimeitFlags& f) {
              f.warmups = {1, 1};
            }),
            "[bench_gpt_timeit] 'small_forward_warmup_1_mixed_False' comes twice.");
  CHECK_HAS(plan_error([](TimeitFlags& f) { f.filter = "nothing"; }),
            "no run has 'nothing' in its name, such as small_forward_warmup_0_mixed_False.");
  const std::string large = plan_error([](TimeitFlags& f) { f.setup.batch = 10'000'000; });
  CHECK_HAS(large,
            "[bench_gpt_timeit] small_forward_backward_warmup_0_mixed_False with batch 10000000 and context 128 ",
            " too little. All tensors of a step must fit. These would fit: --batch ");
  CHECK_HAS(plan_error([](TimeitFlags& f) { f.setup.vocab = 2'000'000'000; }),
            "No --batch is small enough: make the model or the context smaller.");
}

TEST_CASE("timeit: what a run takes is known before") {
  for (const bool mixed : {false, true})
    for (const Computation c : kAll) {
      const TimeitRun run{"tiny", c, 1, mixed};
      CAPTURE(run.key());
      const auto peak = [&](const TimeitSetup& s) { return TimeitModel(run, s).profile(c, 1).peak_bytes; };
      CHECK(peak(tiny()) == TimeitModel::planned_bytes(run, tiny()));
      const TimeitSetup compiled = tiny(RunMode::compiled);
      CHECK(double(peak(compiled)) == doctest::Approx(double(TimeitModel::planned_bytes(run, compiled))).epsilon(0.2));
    }
}

TEST_CASE("timeit: each computation adds up the gradients of its steps, eager and compiled") {
  for (const bool mixed : {false, true})
    for (const Computation c : kAll) {
      const TimeitRun run{"tiny", c, 1, mixed};
      CAPTURE(run.key());
      const double dropout = mixed ? 0.2 : 0;  // equal masks in each step
      TimeitModel eager(run, tiny(RunMode::eager, dropout)), compiled(run, tiny(RunMode::compiled, dropout)),
          once(run, tiny());
      const TimeitResult a = eager.profile(c, 1), b = compiled.profile(c, 1);
      CHECK(a.times.size() == 2);
      CHECK(a.profile_steps == 2);
      CHECK(a.loss == b.loss);
      CHECK(a.min_time > 0);
      if (c != Computation::backward) CHECK(b.min_time > 0);
      const std::vector<Parameter> all = once.params().all();
      if (c == Computation::forward) {
        CHECK(std::ranges::none_of(eager.gradients(), [](const Tensor& g) { return bool(g); }));
        continue;
      }
      CHECK(eager.profile(c, 0).loss == a.loss);  // gradients accumulate
      TimeitSetup one_step = tiny(RunMode::eager, dropout);
      one_step.steps = 1;
      TimeitModel fresh(run, one_step);
      fresh.profile(c, 0);
      for (size_t i = 0; i < all.size(); ++i) {
        CAPTURE(all[i].name);
        const Tensor& one = fresh.gradients()[i];
        CHECK(one.dtype() == DType::f32);
        CHECK(distance(compiled.gradients()[i], one * 3.0) < 1e-6);
        CHECK(distance(eager.gradients()[i], one * 5.0) < 1e-6);
      }
    }
}

TEST_CASE("timeit: the same seed makes the same run, and what is not done is an error") {
  const TimeitRun run{"tiny", Computation::forward_backward, 0, false};
  TimeitSetup other = tiny();
  other.seed = 8;
  TimeitModel a(run, tiny()), b(run, tiny()), c(run, other);
  const double loss = a.profile(run.computation, 0).loss;
  CHECK(loss == b.profile(run.computation, 0).loss);
  CHECK(loss != c.profile(run.computation, 0).loss);
  const auto parameter = [](const TimeitModel& m, const char* name) {
    for (const Parameter& p : m.params().all())
      if (p.name == name) return p.tensor;
    return Tensor();
  };
  const auto scale = [&](const TimeitModel& m, const char* name, double by) {
    const NoGradScope off;
    const Tensor t = parameter(m, name);
    t.assign(t.detach() * by);
  };
  scale(a, "ln_f.weight", 2);
  CHECK_SAYS(a.profile(run.computation, 0),
             "[bench_gpt_timeit] after 4 backward passes the gradient of ln_f.weight is off 4 times");
  scale(b, "lm_head.weight", 1000);
  CHECK_SAYS(b.profile(Computation::forward, 0), "[bench_gpt_timeit] the loss is ");
}

TEST_CASE("timeit: figures of a run are NumPy's, the standard deviation with n") {
  const TimeitResult cold = summarised(Computation::forward_backward,
                                       {0.4144910469995011, 0.2255011379993448, 0.22108890900017286,
                                        0.22048294700016413, 0.22087210900008358}),
                     warm = summarised(Computation::forward_backward,
                                       {0.22120609100056754, 0.22078104100000928, 0.2206222049999269,
                                        0.22060177200000908, 0.22016962399993645});
  CHECK(cold.mean_time == Approx(0.2604872299998533).epsilon(1e-14));
  CHECK(cold.median_time == 0.22108890900017286);
  CHECK(cold.std_dev == Approx(0.0770235424421242).epsilon(1e-14));
  CHECK(cold.total_time == Approx(1.3024361499992665).epsilon(1e-14));
  CHECK(warm.mean_time == Approx(0.22067614660008986).epsilon(1e-14));
  CHECK(warm.std_dev == Approx(0.0003337215379814711).epsilon(1e-11));
  CHECK(warm.min_time == 0.22016962399993645);
  CHECK(warm.max_time == 0.22120609100056754);
  CHECK(warm.profile_steps == 5);
  CHECK(population_deviation(std::vector{3.0}) == 0);
  CHECK(summarised(Computation::forward, {4, 1, 3, 2}).median_time == 2.5);
}

TEST_CASE("timeit: lines and blocks of the log are the document's") {
  const std::string line = log_line("Running profile for: x", std::chrono::system_clock::time_point());
  CHECK(std::regex_match(line, std::regex("\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d,000 - bench_gpt_timeit - INFO - "
                                          "Running profile for: x\n")));
  const TimeitRun run{"small", Computation::forward, 0, false};
  CHECK(model_json(timeit_config(run, {})) == R"({
    "approximate": null,
    "activation_name": "gelu",
    "d_model": 768,
    "d_ff": null,
    "num_heads": 12,
    "context_length": 128,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "bias": false,
    "vocab_size": 10000,
    "num_blocks": 12,
    "token_position_pdrop": 0.0,
    "weight_tie": false
})");
  TimeitSetup other{.attn_pdrop = 0.1, .resid_pdrop = 0.2, .token_position_pdrop = 0.3, .d_ff = 48};
  other.bias = other.weight_tie = other.tanh = true;
  const auto says = model_json(timeit_config(run, other));
  for (const char* field :
       {R"("approximate": "tanh")", R"("d_ff": 48)", R"("attn_pdrop": 0.1)", R"("resid_pdrop": 0.2)",
        R"("token_position_pdrop": 0.3)", R"("bias": true)", R"("weight_tie": true)"})
    CHECK_HAS(says, field);
  CHECK(profiler_json({"small", Computation::forward_backward, 1, true}, 5) == R"({
    "computation": "forward_backward",
    "warmup_steps": 1,
    "profile_steps": 5,
    "mixed_precision": true
})");
  CHECK(result_json(summarised(Computation::forward, {0.25, 0.75})) == R"({
    "computation": "forward",
    "times": [
        0.25,
        0.75
    ],
    "mean_time": 0.5,
    "median_time": 0.5,
    "std_dev": 0.25,
    "min_time": 0.25,
    "max_time": 0.75,
    "total_time": 1.0,
    "profile_steps": 2
})");
}

TEST_CASE("timeit: the table by mean time, with long lists cut, and the rows about warm-up") {
  const std::vector<TimeitRow> rows{row("small", Computation::forward_backward, 0, false, {0.5, 0.25}),
                                    row("tiny", Computation::forward_backward, 0, false,
                                        {0.0713498349996371, 0.0709589389998655, 0.07128997600011644}),
                                    row("tiny", Computation::forward_backward, 1, false, {0.125}),
                                    row("tiny", Computation::forward_backward, 1, true, {0.5})};
  const std::vector<size_t> order = by_mean_time(rows);
  CHECK(order == std::vector<size_t>{1, 2, 0, 3});
  CHECK(warmup_rows(rows) == std::vector<size_t>{1, 2});
  CHECK(
      data_frame(rows, {1, 0}) ==
      "                                          name       computation                                               "
      "times  mean_time  median_time   std_dev  min_time  max_time  total_time  profile_steps\n"
      "1   tiny_forward_backward_warmup_0_mixed_False  forward_backward  [0.0713498349996371, 0.0709589389998655, "
      "0.0712...   0.071200     0.071290  0.000172  0.070959  0.071350    0.213599              3\n"
      "0  small_forward_backward_warmup_0_mixed_False  forward_backward                                         "
      "[0.5, 0.25]   0.375000     0.375000  0.125000  0.250000  0.500000    0.750000              2\n");
}

TEST_CASE("timeit: the warm-up claim and its verdict, parts beside the whole, and the document") {
  std::vector<TimeitRow> rows{
      row("small", Computation::forward, 0, false, {1, 3}), row("small", Computation::forward, 0, true, {1, 1.5}),
      row("small", Computation::forward, 1, false, {1, 2}), row("small", Computation::backward, 0, false, {2, 4})};
  WarmupClaim claim = warmup_claim(rows);
  REQUIRE(claim.pairs.size() == 1);
  CHECK(claim.holds());
  CHECK_HAS(text(claim), "small_forward_mixed_False  1.000000  0.500000  less\nverdict: it holds, in 1 of 1 pairs\n");
  rows.push_back(row("small", Computation::backward, 1, false, {2, 4}));
  claim = warmup_claim(rows);
  CHECK(claim.holding() == 1);
  CHECK(!claim.holds());
  CHECK_HAS(text(claim), "not less\nverdict: it does not hold here, in 1 of 2 pairs\n");
  CHECK_HAS(text(warmup_claim({rows[0]})), "not checked");
  CHECK(!warmup_claim({rows[0]}).holds());

  CHECK(sums_text(rows).empty());
  rows.push_back(row("small", Computation::forward_backward, 0, false, {4, 4}));
  const std::string sums = sums_text(rows);
  CHECK_HAS(sums, "small_warmup_0_mixed_False", "5.000000          4.000000  1.250\n");

  TimeitReport report{
      {{"a processor", "cpu", "x86-64-v4, 2 thread(s)", "g++ 12", 2, 2}, "wall", "abc", "bench_gpt_timeit --json x"},
      {},
      {row("small", Computation::forward_backward, 0, false, {0.5})},
      rows};
  const std::string table = compare_with_document(report);
  CHECK_HAS(table,
            "standalone_small_forward_backward_warmup_0_mixed_False   500.000   500.000     0.000      260.487  "
            "221.089  77.023   0.52\n",
            "small_forward_warmup_0_mixed_False                      2000.000");
  report.standalone.clear();
  for (TimeitRow& r : report.matrix) r.run.size = "tiny";
  const std::string tiny = compare_with_document(report);
  CHECK_HAS(tiny, "Runs without figures in document 004: 6. It has sizes small and medium at batch 16, ",
            "tiny_backward_warmup_1_mixed_False                             2.00  2.11, small\n");
  report.setup.batch = 4;
  for (TimeitRow& r : report.matrix) r.run.size = "medium";
  CHECK_HAS(compare_with_document(report), "document 004: 6.",
            "medium_backward_warmup_0_mixed_False                             1.50  1.97, medium\n");
  for (TimeitRow& r : report.matrix) r.run.size = "tiny";

  const Folder folder;
  write_timeit_json(folder / "run.json", report);
  const auto j = detail::own_json(read_file(folder / "run.json"));
  CHECK(j["date"].get<std::string>().size() == 20);
  check_json(j, R"({"machine": {"threads": 2}, "mode": "eager", "commit": "abc", "seed": 20230310,
    "warmup_claim": {"pairs": 2, "holding": 1}, "rows": [
      {"name": "tiny_forward_warmup_0_mixed_False", "times": [1, 3], "std_dev": 1.0, "warmup_steps": 0},
      {}, {}, {}, {}, {}]})");
  CHECK(error_of(Error::Kind::io, [&] { write_timeit_json(folder / "no/run.json", report); }) != "no error");
}
