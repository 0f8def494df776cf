// bench_training: its table, rows in each mode, checks that training trains, files.

#include <tapegrad/tapegrad.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include "../bench/lora_training/rows.h"

#include "support/check_json.h"
#include "support/files.h"
#include "support/helpers.h"

using namespace tg;
using namespace tg::bench;
using doctest::Approx;

namespace {
Measured result_of(BenchmarkId id, Estimate time, std::optional<uint64_t> elements = {}) {
  Measured m{std::move(id), elements, {Sampling::linear, {1, 2, 3}, 1, 0}, {}, {}, {}, {}};
  m.sample.seconds.resize(3);
  m.estimates.sampling = Sampling::linear, m.estimates.slope = time;
  m.estimates.median = {1e-6, 2e-6, 3e-6, 0};
  return m;
}
TrainingReport report_of(std::vector<Measured> rows) {
  return {{{"a \"processor\" & <more>", "cpu", "x86-64-v4, 2 thread(s)", "g++ 12", 2, 2},
           "wall",
           "abc",
           "bench_training --json x"},
          RunMode::compiled,
          std::move(rows)};
}
}  // namespace

TEST_CASE("the ids of the document, with what they handle") {
  const std::vector<std::pair<std::string, std::vector<const char*>>> groups{
      {"lora_forward/forward/", {"small_512x512_r8", "medium_1024x1024_r8", "large_2048x2048_r8", "small_512x512_r16"}},
      {"gradient_computation/", {"forward_backward"}},
      {"optimizer_step/", {"adamw_step"}},
      {"full_training_step/", {"complete_iteration"}},
      {"layer_operations/", {"softmax_stable", "layer_norm", "rms_norm"}},
      {"lora_rank_scaling/forward/rank_", {"4", "8", "16", "32", "64"}},
      {"lazy_vs_eager_lora/", {"eager_forward", "lazy_forward_sync"}}};
  std::vector<std::string> wanted;
  for (const auto& [group, names] : groups)
    for (const char* name : names) wanted.push_back(group + name);
  const std::map<size_t, uint64_t> elements{{0, 32'768}, {1, 65'536}, {2, 131'072}, {3, 32'768}, {6, 131'072}};
  const std::vector<TrainingRow> rows = training_rows();
  REQUIRE(rows.size() == std::size(wanted));
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(rows[i].id.text());
    CHECK(rows[i].id.text() == wanted[i]);
    CHECK(rows[i].elements == (elements.contains(i) ? std::optional(elements.at(i)) : std::nullopt));
    CHECK(rows[i].samples == (i == 6 ? std::optional(10) : std::nullopt));
    CHECK((rows[i].runs == Runs::lazily) == (i == 16));
    const auto of = document_figure(wanted[i]);
    REQUIRE(of);
    CHECK(of->low < of->point);
    CHECK(of->point < of->high);
  }
  std::set<std::string> ids;
  for (const auto& r : lazy_rows()) {
    CHECK(ids.insert(r.id.text()).second);
    CHECK(!document_figure(r.id.text()));
  }
  CHECK(ids.size() == 15);
  CHECK(ids.contains("cpu_matmul/lazy/256"));
}

TEST_CASE("each row computes the same, eager, compiled and lazily, and its benchmark runs") {
  std::vector<TrainingRow> rows = training_rows();
  std::ranges::move(lazy_rows(), std::back_inserter(rows));
  for (const TrainingRow& row : rows) {
    CAPTURE(row.id.text());
    const Work eager = row.make(Device::cpu()), other = row.make(Device::cpu()), last = row.make(Device::cpu());
    const auto compiled = runner(other, RunMode::compiled);
    for (int call = 0; call < 2; ++call) {
      const std::vector<Tensor> want = eager.f(eager.in), got = compiled();
      std::vector<Tensor> lazily;
      {
        const LazyScope lazy;
        lazily = last.f(last.in);
        eval(lazily);
      }
      REQUIRE(want.size() == got.size());
      CHECK(want.empty() == (row.id.function == "adamw_step"));
      for (size_t k = 0; k < want.size(); ++k) {
        CHECK(!want[k].requires_grad());
        CHECK(bits_of(got[k]) == bits_of(want[k]));
        CHECK(bits_of(lazily[k]) == bits_of(want[k]));
        if (row.id.function == "forward_backward" && k == 1) continue;  // the gradient of A
        CHECK(std::ranges::any_of(values(want[k]), [](float x) { return x != 0; }));
      }
    }
    CHECK(eager.variables.size() == (row.id.function == "complete_iteration" ? 2 : row.id.function == "adamw_step"));
    for (size_t k = 0; k < eager.variables.size(); ++k) {
      CHECK(bits_of(other.variables[k]) == bits_of(eager.variables[k]));
      CHECK(bits_of(last.variables[k]) == bits_of(eager.variables[k]));
    }
    for (const RunMode mode : {RunMode::eager, RunMode::compiled}) {
      const Benchmark b = benchmark(row, mode, Device::cpu());
      CHECK(b.id.text() == row.id.text());
      b.run();
      b.run();
      b.finish();
    }
  }
}

TEST_CASE("training is shown to train, and what does not is an error") {
  for (const RunMode mode : {RunMode::eager, RunMode::compiled}) {
    CAPTURE(name_of(mode));
    check_training(mode, Device::cpu());
    const auto error = [&](const std::function<void(Work&)>& spoil) {
      return error_of([&] { check_step(changed(lora_step(Device::cpu()), spoil), mode); });
    };
    CHECK_HAS(error([](Work& s) { s.f = [](Inputs in) { return std::vector{sum(in[0])}; }; }),
              "[bench_training] step 1 of training (" + std::string(name_of(mode)) + ") moves B by 0. ");
    CHECK_HAS(error([](Work& s) {
                s.variables[1].assign(random(s.variables[1].shape(), 1));
              }),  // then A has a gradient at once
              "moves A by 0.0001, besides its decay.");
    CHECK_HAS(error([](Work& s) { std::swap(s.variables[0], s.variables[1]); }), "moves B by");
    CHECK_HAS(error([](Work& s) { s.f = [f = s.f](Inputs in) { return std::vector{f(in)[0] * 0.5}; }; }),
              "begins at 3.119");
    CHECK_HAS(
        error([](Work& s) { s.f = [f = s.f](Inputs in) { return std::vector{f(in)[0] * 0.0 + std::log(512.0)}; }; }),
        "goes from 6.23832 to 6.23832 in 50 steps");
    const auto adamw_error = [&](double by) {
      const Tensor w = filled<float>({3}, 0);
      const Work work{[=](Inputs) { return w.assign(w + by), std::vector<Tensor>{}; }, {}, {w}};
      return error_of([&] { check_adamw(work, mode); });
    };
    CHECK(adamw_error(1e-4) == "no error");
    CHECK_HAS(adamw_error(0),
              "[bench_training] step 1 of AdamW (" + std::string(name_of(mode)) + ") moves its parameter by 0. ");
    CHECK_HAS(adamw_error(1), "moves its parameter by 1. ");
    const auto gradients = [](double a, double b) {
      return Work{[=](Inputs in) { return std::vector{in[0], in[0] * a, in[0] * b}; }, {filled<float>({3}, 1)}};
    };
    check_gradient(gradients(0, 1), mode);
    for (const auto& [a, b] : {std::pair(1.0, 1.0), {0.0, 0.0}})
      CHECK_SAYS(check_gradient(gradients(a, b), mode),
                 fmt::format("[bench_training] the largest gradient of A is {:g} and that of B {:g} ", a, b));
  }
}

TEST_CASE("files of a run: JSON read back, the table beside the document") {
  const Folder folder;
  std::vector<Measured> rows{result_of({"lora_forward", "forward", "small_512x512_r8"}, {1e-5, 2e-5, 4e-5, 0}, 1000),
                             result_of({"lora_forward", "forward", "other"}, {1e-5, 2e-5, 3e-5, 0}),
                             result_of({"cpu_add", "eager", "1024"}, {1e-6, 2e-6, 3e-6, 0})};
  rows[0].change = Change{{-0.3, -0.2, -0.1, 0}, {}, -9, 0.001};
  rows[0].outliers = {1, 2, 3, 4}, rows[0].limit = 5e-6;
  TrainingReport r = report_of(rows);
  const std::string table = compare_with_document(r.rows);
  CHECK(count_of(table, "\n") == 4);
  CHECK_HAS(table, "[10.000 µs 20.000 µs 40.000 µs]   5.0000 µs     [427.63 µs 436.78 µs 445.73 µs]  21.84\n");
  CHECK_HAS(table, "Runs without figures in document 000: 2. It has 17 ids, such as lora_forward");
  CHECK(compare_with_document({rows[2]}).starts_with("Runs without figures in document 000: 1. "));
  CHECK(!has(compare_with_document({rows[0]}), "without"));

  const std::string path = folder / "run.json";
  write_training_json(path, r);
  const auto j = detail::own_json(read_file(path));
  CHECK(j["machine"]["cpu"] == r.machine.cpu);
  CHECK(j["date"].get<std::string>().size() == 20);
  check_json(j, R"({"machine": {"threads": 2}, "mode": "compiled", "device": "cpu", "clock": "wall", "commit": "abc",
    "command": "bench_training --json x", "rows": [
      {"id": "lora_forward/forward/small_512x512_r8", "time": {"low": 1e-5, "estimate": 2e-5, "high": 4e-5},
       "median": {"estimate": 2e-6}, "change": {"low": -0.3}, "p": 0.001, "verdict": "improved", "iterations": 6,
       "samples": 3, "sampling": "linear", "outliers": {"low_severe": 1, "high_severe": 4},
       "document": {"estimate": 436.78e-6}, "limit": 5e-6},
      {"throughput": null, "limit": null, "change": null, "p": null, "verdict": null, "document": null},
      {}]})");
  const auto& throughput = j["rows"][0]["throughput"];
  CHECK(throughput["low"].get<double>() == Approx(2.5e7));
  CHECK(throughput["high"].get<double>() == Approx(1e8));
}
