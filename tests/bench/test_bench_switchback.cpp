// bench_switchback: its rows, ops, the document's totals and figures, files.

#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../bench/switchback/switchback.h"

#include "support/check_json.h"
#include "support/files.h"
#include "support/helpers.h"

using namespace tg;
using namespace tg::bench;
using doctest::Approx;

namespace {
constexpr SwitchBackShape kTinyShape{.dim = 24, .wm = 2, .batch = 40};  // 24 -> 48
SwitchBackSetup quick(DType d = DType::f32) { return {.repeat = 2, .seed = 3, .dtype = d}; }
std::string plan_error(const std::function<void(SwitchBackFlags&)>& spoil) {
  return error_of([&] { switchback_plan(changed(SwitchBackFlags(), spoil)); });
}
OpTimes counted() {
  OpTimes ms{};
  std::iota(ms.begin(), ms.end(), 1.0);
  return ms;
}
SwitchBackRow row(const SwitchBackShape& shape, const OpTimes& ms) {
  SwitchBackRow r{shape, ms, {}};
  r.rates.fill({.rate = 5, .peak = 10});
  return r;
}
}  // namespace

TEST_CASE("switchback: the document's 142 rows, 71 layers and batches both ways") {
  const std::vector<SwitchBackShape> grid = switchback_grid();
  REQUIRE(grid.size() == 142);
  for (size_t i = 0; i < grid.size(); ++i) {
    const SwitchBackShape& s = grid[i];
    CHECK(s.swapped == (i % 2 == 1));
    CHECK(s.dim_in() == (s.swapped ? s.wide() : s.dim));
    CHECK(s.dim_out() == (s.swapped ? s.dim : s.wide()));
    CHECK(std::ranges::count(grid, s) == 1);
    CHECK(s.batch == std::clamp<int64_t>(s.batch, 1024, s.dim == 8096 ? 65536 : 131072));
    CHECK(switchback_figure(s));
  }
  CHECK(grid[0] == SwitchBackShape{1024, 4, 1024, false});
  CHECK(grid[141] == SwitchBackShape{8096, 4, 65536, true});
  CHECK(SwitchBackShape{.dim = 1408, .wm = 4.3637}.wide() == 6144);
  CHECK(SwitchBackShape{.dim = 1664, .wm = 4.9231}.wide() == 8192);
  CHECK(SwitchBackShape{.dim = 8096}.wide() == 32384);
  CHECK(SwitchBackShape{1024, 4, 2, true}.name() == "4096 -> 1024, batch 2");
  CHECK(SwitchBackShape{.dim = 3, .wm = 2, .batch = 5}.flop() == 2.0 * 5 * 3 * 6);
  CHECK(!switchback_figure(kTinyShape));
}

TEST_CASE("switchback: the totals are the document's, to the last bit in all rows") {
  for (const SwitchBackShape& s : switchback_grid()) {
    CAPTURE(s.name());
    const SwitchBackFigure of = *switchback_figure(s);
    const Totals t = totals(of.ms);
    CHECK(t.standard == of.totals.standard);
    CHECK(t.rowwise == of.totals.rowwise);
    CHECK(t.global == of.totals.global);
    for (const double ms : of.ms) CHECK(ms > 0);
  }
  const SwitchBackFigure first = *switchback_figure({1024, 4, 1024, false}),
                         last = *switchback_figure({1664, 4, 131072, true});
  CHECK(first.ms[op_place("standard_fwd")] == 0.047907233238220215);
  CHECK(first.ms[op_place("w_quantize_colwise_transpose")] == 0.08677691221237183);
  CHECK(first.ms[op_place("cast_w")] == 0.01600012183189392);
  CHECK(first.totals.standard == 0.13415515422821045);
  CHECK(first.totals.global == 0.33118948340415955);
  CHECK(last.ms[op_place("rowwise_bwd")] == 6.622854620218277);
  CHECK(last.totals.rowwise == 25.950465351343155);
}

TEST_CASE("switchback: which op is in which total") {
  const Totals t = totals(counted());
  CHECK(t.standard == 1 + 2 + 3);
  CHECK(t.rowwise == 8 + 9 + 10 + 11 + 2 + 4 + 5);
  CHECK(t.global == 8 + 9 + 12 + 13 + 2 + 6 + 7);
  CHECK(quantize_share(counted()) == (8.0 + 9 + 12 + 13) / 57);
  CHECK((Totals{.standard = 8, .global = 6}).saved() == 25);
  CHECK((Totals{.standard = 8, .global = 10}).saved() == -25);
  CHECK_SAYS(op_place("time_global"), "there is no op 'time_global'");
}

TEST_CASE("switchback: rows and protocol by default, and those that flags choose") {
  const SwitchBackPlan plan = switchback_plan({});
  CHECK(plan.rows.size() == 12);
  CHECK(plan.rows[0] == SwitchBackShape{1024, 4, 1024, false});
  CHECK(plan.rows[11] == SwitchBackShape{2048, 4, 4096, true});
  CHECK(plan.setup.repeat == 4);
  CHECK(plan.setup.untimed() == 2);
  CHECK(plan.setup.layers);
  const bool fast = has(machine().backend, "bf16 by");
  CHECK(plan.setup.dtype == (fast ? DType::bf16 : DType::f32));
  CHECK_HAS(plan.why, fast ? "has instructions" : "has no instructions");
  SwitchBackFlags f;
  f.full = true, f.dims = {1408, 1664}, f.batch = {1024}, f.dtype = "f32", f.parts_only = true;
  const SwitchBackPlan full = switchback_plan(f);
  CHECK(full.setup.repeat == 64);
  CHECK(full.setup.dtype == DType::f32);
  CHECK(!full.setup.layers);
  REQUIRE(full.rows.size() == 8);
  CHECK(full.rows[2] == SwitchBackShape{1408, 4.3637, 1024, false});
  CHECK(full.rows[7] == SwitchBackShape{1664, 4.9231, 1024, true});
  f = {};
  f.dims = {1000}, f.batch = {3, 5}, f.swapped = {Word::True}, f.rows = {1}, f.repeat = 7, f.dtype = "bf16";
  const SwitchBackPlan some = switchback_plan(f);
  CHECK(some.rows == std::vector{SwitchBackShape{1000, 4, 5, true}});
  CHECK(some.setup.repeat == 7);
  CHECK(some.setup.dtype == DType::bf16);
  f.wm = {"1.5", "2"}, f.rows = {};
  CHECK(switchback_plan(f).rows.size() == 4);
  CHECK(switchback_plan(f).rows[0].wide() == 1500);
  f = {};
  f.budget = "1.5m", f.dims = {2048, 1024}, f.batch = {1024, 200'000'000}, f.dtype = "f32";
  const SwitchBackPlan timed = switchback_plan(f);
  CHECK(timed.budget == 90);
  CHECK(timed.setup.repeat == 64);
  REQUIRE(timed.rows.size() == 4);
  CHECK(timed.rows[0] == SwitchBackShape{1024, 4, 1024, false});
  REQUIRE(timed.left_out.size() == 4);
  CHECK(timed.left_out[0].starts_with("1024 -> 4096, batch 200000000 takes "));
  CHECK(timed.seconds(timed.rows[0], 1, 1e-12) == doctest::Approx(15e-12 * timed.rows[0].flop()));
}

TEST_CASE("switchback: flags that are wrong are errors") {
  CHECK_HAS(plan_error([](SwitchBackFlags& f) { f.repeat = 0; }),
            "[bench_switchback] --repeat is 0. It must be from 1 to 1000000.");
  CHECK_HAS(plan_error([](SwitchBackFlags& f) { f.dims = {0}; }), "--dims is 0.");
  CHECK_HAS(plan_error([](SwitchBackFlags& f) { f.batch = {-1}; }), "--batch is -1.");
  CHECK_HAS(plan_error([](SwitchBackFlags& f) { f.rows = {12}; }), "--rows is 12. It must be from 0 to 11.");
  CHECK_HAS(plan_error([](SwitchBackFlags& f) { f.device = "abacus"; }), "abacus");
  for (const char* word : {"four", "4x", "0", "-1", "inf", ""}) {
    CAPTURE(word);
    CHECK_HAS(plan_error([&](SwitchBackFlags& f) { f.wm = {word}; }), "--wm has '");
  }
  for (const char* word : {"10", "0m", "-1m", "m", "ten", "10min"}) {
    CAPTURE(word);
    CHECK_HAS(plan_error([&](SwitchBackFlags& f) { f.budget = word; }), "--budget is '", "such as 90s, 10m or 2h.");
  }
  CHECK_HAS(plan_error([](SwitchBackFlags& f) { f.dims = {100'000}; }),
            "100000 times --wm 4 is 400000. Both sizes of the layer must be from 1 to 131071.");
  CHECK_HAS(plan_error([](SwitchBackFlags& f) { f.rows = {3, 3}; }), "'4096 -> 1024, batch 2048' comes twice.");
  const std::string large =
      plan_error([](SwitchBackFlags& f) { f.dims = {1024}, f.batch = {200'000'000}, f.dtype = "f32"; });
  CHECK_HAS(large, "[bench_switchback] 1024 -> 4096, batch 200000000 takes ",
            " too little. All tensors of a step must fit. These would fit: --batch ");
}

TEST_CASE("switchback: each op computes what its key says") {
  for (const DType d : {DType::f32, DType::bf16})
    for (const bool swapped : {false, true}) {
      SwitchBackShape shape = kTinyShape;
      shape.swapped = swapped;
      CAPTURE(shape.name());
      const SwitchBackSetup setup = quick(d);
      const SwitchBackOps ops(shape, setup);
      const auto run = [&](const char* key) { return ops.run(op_place(key)); };
      Rng rng{setup.seed};
      const Tensor x = randn({40, shape.dim_in()}, rng, 0, 1, d), g = randn({40, shape.dim_out()}, rng, 0, 1, d),
                   w = randn({shape.dim_out(), shape.dim_in()}, rng, 0, 1, d);
      const auto same = [](const Tensor& a, const Tensor& b) { return bits_of(a) == bits_of(b); };
      CHECK(same(run("standard_fwd"), linear(x, w)));
      CHECK(same(run("standard_gw"), matmul(g, x, {.trans_a = true})));
      CHECK(same(run("standard_gx"), matmul(g, w)));
      CHECK(same(run("x_quantize_rowwise"), quantize_rowwise(x).values));
      CHECK(same(run("g_quantize_rowwise"), quantize_rowwise(g).values));
      CHECK(same(run("w_quantize_rowwise"), quantize_rowwise(w).values));
      CHECK(same(run("w_quantize_colwise_transpose"), quantize_rowwise(transpose(w)).values));
      CHECK(same(run("w_quantize_global"), quantize_global(w).values));
      CHECK(same(run("w_quantize_global_transpose"), quantize_global(transpose(w)).values));
      CHECK(same(run("cast_x"), x.to(DType::i8)));
      CHECK(same(run("cast_g"), g.to(DType::i8)));
      CHECK(same(run("cast_w"), w.to(DType::i8)));
      // The four int8 GEMMs are the layers' forward and backward results in the totals.
      const Tensor leaf = x.detach().requires_grad_();
      for (const auto& [mode, name] :
           {std::pair{SwitchBackMode::vector_wise, "rowwise"}, {SwitchBackMode::global, "global"}}) {
        CAPTURE(name);
        const Tensor y = switchback_linear(leaf, w, {}, mode);
        CHECK(same(run(fmt::format("{}_fwd", name).c_str()), y.detach()));
        CHECK(same(run(fmt::format("{}_bwd", name).c_str()), backward(y, g)[leaf]));
      }
      for (const auto& [op, distance] : ops.distances()) {
        CAPTURE(op);
        CHECK(distance > 0.002);
        CHECK(distance < 0.025);
      }
      for (const double ms : ops.times()) CHECK(ms > 0);
    }
}

TEST_CASE("switchback: results that are far off are errors, and rounding is not") {
  Rng rng{1};
  const Tensor a = randn({100, 30}, rng);
  CHECK(relative_distance(a * 1.25, a) == Approx(0.25).epsilon(1e-4));
  CHECK(relative_distance(zeros({100, 30}), a) == 1);
  CHECK(relative_distance(dequantize(quantize_rowwise(a)), a) < 0.01);
  CHECK_NOTHROW(check_near("product", 0.05));
  CHECK_SAYS(check_near("product", 0.1),
             "[bench_switchback] the product is off the product in full precision by 0.1 of its size.");
  CHECK_SAYS(check_near("product", relative_distance(a, zeros({100, 30}))), "by inf of its size.");
  CHECK_SAYS(check_near("product", std::nan("")), "by nan of its size.");
}

TEST_CASE("switchback: bytes and rates of ops") {
  const SwitchBackSetup f32 = quick(), bf16 = quick(DType::bf16);
  const SwitchBackShape swapped{.dim = 24, .wm = 2, .batch = 40, .swapped = true};  // 48 -> 24
  const auto bytes = [](const SwitchBackShape& s, const SwitchBackSetup& setup, const char* key) {
    return op_bytes(s, setup, op_place(key));
  };
  CHECK(bytes(kTinyShape, f32, "standard_fwd") == 4 * (40 * 24 + 48 * 24 + 40 * 48));
  CHECK(bytes(kTinyShape, bf16, "standard_gw") == 2 * (40 * 24 + 48 * 24 + 40 * 48));
  CHECK(bytes(kTinyShape, f32, "rowwise_fwd") == 40 * 24 + 48 * 24 + 4 * 40 * 48);
  CHECK(bytes(kTinyShape, bf16, "global_bwd") == 40 * 48 + 48 * 24 + 2 * 40 * 24);
  CHECK(bytes(kTinyShape, f32, "x_quantize_rowwise") == 5 * 40 * 24 + 4 * 40);
  CHECK(bytes(kTinyShape, bf16, "g_quantize_rowwise") == 3 * 40 * 48 + 4 * 40);
  CHECK(bytes(swapped, f32, "g_quantize_rowwise") == 5 * 40 * 24 + 4 * 40);
  CHECK(bytes(kTinyShape, f32, "w_quantize_rowwise") == 5 * 48 * 24 + 4 * 48);
  CHECK(bytes(kTinyShape, f32, "w_quantize_colwise_transpose") == 5 * 48 * 24 + 4 * 24);
  CHECK(bytes(kTinyShape, bf16, "w_quantize_global") == 3 * 48 * 24 + 4);
  CHECK(bytes(kTinyShape, bf16, "cast_x") == 3 * 40 * 24);
  CHECK(bytes(kTinyShape, bf16, "cast_g") == 3 * 40 * 48);
  CHECK(bytes(kTinyShape, f32, "cast_w") == 5 * 48 * 24);
  Peaks peaks(0);
  const auto all = rates(kTinyShape, f32, counted(), peaks);
  CHECK(all[0].rate == Approx(1e-9 * kTinyShape.flop() / 1e-3));
  CHECK(all[3].rate == Approx(1e-9 * kTinyShape.flop() / 4e-3));
  CHECK(all[3].peak == all[0].peak);
  CHECK(all[13].rate == Approx(1e-9 * 5 * 40 * 24 / 14e-3));
  CHECK(all[13].percent() == Approx(100 * all[13].rate / all[13].peak));
}

TEST_CASE("switchback: the step of the layer in all ways, and what a row takes is known before") {
  for (const DType d : {DType::f32, DType::bf16}) {
    SwitchBackSetup setup = quick(d);
    const std::vector<LayerTime> times = layer_times(kTinyShape, setup);
    REQUIRE(times.size() == 8);
    for (size_t i = 0; i < times.size(); ++i) {
      CHECK(times[i].way == LayerWay(i / 2));
      CHECK(times[i].mode == RunMode(i % 2));
      CHECK(times[i].least > 0);
      CHECK(times[i].least <= times[i].seconds);
      CHECK(times[i].seconds <= times[i].most);
    }
    Peaks peaks(0);
    setup.layers = false;
    const SwitchBackRow parts = measured_row(kTinyShape, setup, peaks);
    CHECK(parts.layers.empty());
    CHECK(parts.peak_bytes == planned_bytes(kTinyShape, setup));
    setup.layers = true;
    const SwitchBackRow whole = measured_row(kTinyShape, setup, peaks);
    CHECK(whole.layers.size() == 8);
    const auto planned = double(planned_bytes(kTinyShape, setup));
    CHECK(double(whole.peak_bytes) <= planned);
    CHECK(double(whole.peak_bytes) >= 0.65 * planned);
  }
}

TEST_CASE("switchback: lines and objects are the document's") {
  const std::string lines = document_lines(counted());
  CHECK(lines.starts_with("time standard_fwd: 1.000 ms\ntime standard_gw: 2.000 ms\ntime standard_gx: 3.000 ms\n"));
  CHECK(lines.ends_with("time cast_w: 16.000 ms\nTOTAL STANDARD 6\nTOTAL ROWWISE 49\nTOTAL GLOBAL 57\nspeedup -850\n"));
  const SwitchBackShape shape{1408, 4.3637, 2048, true};
  const std::string object = document_object(shape, 64, switchback_figure(shape)->ms);
  CHECK(
      object.starts_with("{\"repeat\": 64, \"batch_size\": 2048, \"dim_out\": 1408, \"dim_in\": 6144, \"wm\": 4.3637, "
                         "\"switch\": true, \"standard_fwd\": "));
  CHECK(object.ends_with("}"));
  CHECK_HAS(document_object({1024, 4, 1024, false}, 64, counted()), "\"wm\": 4, \"switch\": false, ");
  const char* keys[] = {"repeat", "batch_size", "dim_out", "dim_in", "wm", "switch"};
  const Json parsed = detail::own_json(object);
  const auto members = parsed.items();
  REQUIRE(members.size() == 25);
  for (size_t i = 0; i < 6; ++i) CHECK(members[i].key == keys[i]);
  for (size_t op = 0; op < kOps; ++op) {
    CHECK(members[6 + op].key == kTimed[op].key);
    CHECK(members[6 + op].value.get<double>() == switchback_figure(shape)->ms[op]);
  }
  CHECK(members[22].key == "time_standard");
  CHECK(members[23].key == "time_rowwise");
  CHECK(members[24].key == "time_global");
  CHECK(members[24].value.get<double>() == switchback_figure(shape)->totals.global);
}

TEST_CASE("switchback: tables, speedups, the document beside, and the file") {
  const std::vector<LayerTime> layers{{LayerWay::linear, RunMode::eager, 0.004, 0.003, 0.005},
                                      {LayerWay::linear, RunMode::compiled, 0.003, 0.003, 0.003},
                                      {LayerWay::global, RunMode::eager, 0.002, 0.002, 0.002},
                                      {LayerWay::global, RunMode::compiled, 0.006, 0.006, 0.006}};
  CHECK(speedup(layers, layers[0]) == 1);
  CHECK(speedup(layers, layers[2]) == 2);
  CHECK(speedup(layers, layers[3]) == 0.5);
  CHECK(best_speedup(layers) == 1.5);
  const std::string steps = layer_lines(layers);
  CHECK_HAS(steps, "eager  4.000  3.000  5.000     1.00\n", "compiled  6.000  6.000  6.000     0.50\n",
            "fastest linear over fastest of 8-bit codes: 1.50\n");
  CHECK(layer_lines({}).empty());

  const SwitchBackShape shape{2048, 4, 32768, false}, back{2048, 4, 32768, true};
  OpTimes twice = counted();
  for (double& ms : twice) ms *= 3;
  SwitchBackReport report{
      {{"a processor", "cpu", "x86-64-v4, 2 thread(s)", "g++ 12", 2, 2}, "wall", "abc", "bench_switchback --json x"},
      {.repeat = 8, .dtype = DType::bf16},
      "as asked for"};
  report.rows = {row(shape, counted()), row(kTinyShape, counted()), row(back, twice)};
  const std::string table = summary(report.rows);
  CHECK_HAS(table, "2048 -> 8192  32768      12.0     98.0     114 ",
            "24 -> 48         40      6.00     49.0    57.0       0.12      0.11          73.7");

  CHECK(crossover({row(shape, switchback_figure(shape)->ms), row(kTinyShape, counted())}) ==
        "rowwise takes less time than standard in 1 of 2 rows (document: 88 of 142)\n"
        "              from batch  document\n"
        "2048 -> 8192       32768      8192\n"
        "24 -> 48               -         -\n"
        "global takes less time than standard in 1 of 2 rows (document: 102 of 142)\n"
        "              from batch  document\n"
        "2048 -> 8192       32768      4096\n"
        "24 -> 48               -         -\n");
  const std::string beside = compare_with_document(report.rows, "bf16 on cpu, means of 8");
  CHECK_HAS(beside, "Compared with document 001", "Ours: bf16 on cpu, means of 8.",
            "2048 -> 8192  32768           6.00     49.0    57.0       0.12      0.11               13.3     9.68",
            "8192 -> 2048  32768           18.0      147     171 ");
  CHECK_HAS(beside, "document 001: 1. It has dims 1024, ",
            "24 -> 48, batch 40      0.11  0.37 to 1.56         73.68  4.26 to 66.87\n");
  CHECK_HAS(rate_lines(report.rows[0], report.setup), "50 %  of  10.0  the peak of bf16", "the bandwidth");

  const Folder folder;
  report.rows[0].layers = layers;
  write_switchback_json(folder / "run.json", report, Peaks(0));
  const auto j = detail::own_json(read_file(folder / "run.json"));
  check_json(j, R"({"machine": {"threads": 2}, "dtype": "bf16", "commit": "abc", "repeat": 8, "untimed": 4, "grid": [
    {"time_global": 57, "layers": [{}, {}, {"way": "global", "speedup": 2}, {}], "best_speedup": 1.5},
    {"best_speedup": null}, {}]})");
  CHECK(j["grid"][1]["rates"].size() == kOps);
  CHECK(j["grid"][1]["rates"][7]["unit"] == "GB/s");
  report.rows = {report.rows[1]};
  CHECK(compare_with_document(report.rows, "").starts_with("Runs without figures in document 001: 1. "));
  CHECK(error_of(Error::Kind::io, [&] { write_switchback_json(folder / "no/run.json", report, Peaks(0)); }) !=
        "no error");
}
