// models/tools/roofline. Calls and bytes of the documented benchmarks are exact, so an extra cast, copy or norm fails.
#include <tapegrad/tools.h>

#include "support/refusals.h"
#include "support/small_run.h"

using namespace tg;
namespace {

struct Sum {
  int64_t calls = 0, bytes = 0;
  double flops = 0;
};
Sum sum_of(const std::vector<WorkOfOp>& ops, std::string_view op = "") {
  Sum s;
  for (const WorkOfOp& o : ops)
    if (op.empty() || o.op == op)
      s.calls += o.calls, s.bytes += o.work.read + o.work.written, s.flops += 2 * o.work.multiply_adds;
  return s;
}
std::vector<WorkOfOp> counted(const std::function<void()>& f) {
  const WorkScope counting;
  f();
  return counting.ops();
}
void check_same_work(const WorkOfOp& a, const WorkOfOp& b) {
  CAPTURE(b.op);
  CHECK(a.op == b.op);
  CHECK(a.from == b.from);
  CHECK(a.to == b.to);
  CHECK(a.calls == b.calls);
  CHECK(a.work.read == b.work.read);
  CHECK(a.work.written == b.work.written);
  CHECK(a.work.multiply_adds == b.work.multiply_adds);
}
TrainConfig step_of(int64_t batch, DType dtype) {
  TrainConfig t;
  t.batch = batch, t.dtype = dtype;
  return t;
}

}  // namespace

TEST_CASE("work: each op counts its inputs, outputs and products once, computed or not") {
  const Tensor a = random({3, 5}, 1), b = random({5, 7}, 2), x = random({4, 6, 8}, 3), w = random({10, 8}, 4);
  const auto f32 = [](int64_t elements) { return 4 * elements; };
  const auto check = [&](const std::function<void()>& f, std::string_view op, int64_t read, int64_t written,
                         double ma) {
    for (const bool dry : {false, true}) {
      CAPTURE_ALL(op, dry);
      std::vector<WorkOfOp> ops;
      if (dry)
        dry_run([&] { ops = counted(f); });
      else
        ops = counted(f);
      REQUIRE(ops.size() == 1);
      CHECK(ops[0].op == op);
      CHECK(ops[0].calls == 1);
      CHECK(ops[0].work.read == read);
      CHECK(ops[0].work.written == written);
      CHECK(ops[0].work.multiply_adds == ma);
    }
  };
  check([&] { matmul(a, b); }, "matmul", f32(15 + 35), f32(21), 3 * 5 * 7);
  check([&] { matmul(b, a, {.trans_a = true, .trans_b = true}); }, "matmul", f32(15 + 35), f32(21), 7 * 5 * 3);
  check([&] { linear(x, w); }, "linear", f32(192 + 80), f32(240), 24 * 8 * 10);
  const Tensor row = random({1, 5}, 5), ids = tensor({1, 2, 1}, {3});
  check([&] { (void)(a + row); }, "add", f32(15 + 5), f32(15), 0);
  check([&] { (void)(a + expand(row, {3, 5})); }, "add", f32(15 + 5), f32(15), 0);  // stride 0 counts once
  check([&] { embedding(ids, w); }, "embedding", 3 * 4 + f32(24), f32(24), 0);
  check([&] { index_select(w, 0, ids); }, "index_select", 3 * 4 + f32(24), f32(24), 0);
  const Tensor sum = random({10, 8}, 5), many = zeros({30}, DType::i64), few = zeros({3}, DType::i64);
  const auto add = [&](const Tensor& index) {
    emit1(make_ref<op::IndexSelectGrad>(0, 10), {index, random({index.numel(), 8}, 6), sum});
  };
  for (const auto& [index, slices] : {std::pair{&few, 3}, {&many, 10}}) {
    const int64_t dy = 8 * index->numel();
    check([&] { add(*index); }, "index_select_grad", 8 * index->numel() + f32(dy + 8 * slices), f32(8 * slices), 0);
  }
  check([&] { a.to(DType::bf16); }, "cast", f32(15), 2 * 15, 0);
  const Tensor down = random({8, 2}, 6), up = random({2, 10}, 7), m = zeros({10, 8}), v = zeros({10, 8});
  check([&] { lora(x, down, up, 2.0); }, "lora", f32(192 + 16 + 20), f32(240 + 48), 24 * 8 * 2 + 24 * 2 * 10);
  const Tensor q = random({2, 4, 6, 8}, 8), k = random({2, 2, 9, 8}, 9);
  const double pairs = 2 * 4 * (6 * 3 + 21);  // query i sees keys up to i + 3
  check([&] { attention(q, k, k, {.causal = true}); }, "attention", f32(384 + 288 + 288), f32(384 + 48), 2 * pairs * 8);
  const Tensor merged = random({2, 6, 8, 8}, 10);  // 4 heads of queries, 2 of keys, 2 of values
  check([&] { self_attention(merged, 2, {.causal = true}); }, "self_attention", f32(768), f32(384 + 48),
        2 * 2 * 4 * 21 * 8);
  check([&] { attention(q, k, k); }, "attention", f32(384 + 576), f32(384 + 48), 2. * 2 * 4 * 54 * 8);
}

TEST_CASE("work: a chain of a lazy program is one op, and an inner scope counts for itself") {
  const Tensor a = random({8, 16}, 1), b = random({16}, 2);
  Tensor y;
  const auto ops = counted([&] {
    LazyScope lazy;
    y = gelu(a * b + 1.0);
    eval({&y, 1});
  });
  REQUIRE(ops.size() == 1);
  CHECK(ops[0].op == "mul+add_scalar+gelu");
  CHECK(ops[0].work.read == 4 * (128 + 16));
  CHECK(ops[0].work.written == 4 * 128);
  const auto outer = counted([&] { CHECK(counted([&] { (void)(a + a); }).size() == 1); });
  CHECK(outer.empty());
}

TEST_CASE("work: a compiled function counts in each call what it counts lazily") {
  const Tensor b = random({16}, 2), w = random({10, 16}, 3);
  const auto f = [&](Inputs x) { return std::vector<Tensor>{softmax(linear(gelu(x[0] * b + 1.0), w), 1)}; };
  const Tensor a = random({8, 16}, 1);
  const auto lazily = counted([&] {
    LazyScope lazy;
    const std::vector<Tensor> y = f({&a, 1});
    eval(y);
  });
  REQUIRE(lazily.size() == 3);
  const Compiled compiled = compile(f);
  for (int call = 0; call < 5; ++call) {
    CAPTURE(call);
    const auto ops = counted([&] { (void)compiled({a}); });
    REQUIRE(ops.size() == lazily.size());
    for (size_t i = 0; i < ops.size(); ++i) check_same_work(ops[i], lazily[i]);
  }
}

TEST_CASE("roofline: a training step that runs does the work that was counted") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t accumulate : {1, 2, 3, 6}) {
      CAPTURE_ALL(dtype, accumulate);
      GptConfig g = tiny_model();
      TrainConfig t = tiny_train();
      t.dtype = dtype, t.accumulate = accumulate, t.eval_every = 0, t.val_fraction = 0;
      const auto [params, model] = new_gpt(g, Params(Device(), t.seed));
      Trainer trainer(model, params, bytes_of(rhyme()), t);
      trainer.step();  // casts the weights once
      const auto real = counted([&] { trainer.step(); }), planned = step_work(g, t).all();
      for (const WorkOfOp& o : planned) {
        CAPTURE(o.op);
        const auto it = std::ranges::find_if(
            real, [&](const WorkOfOp& r) { return r.op == o.op && r.from == o.from && r.to == o.to; });
        REQUIRE(it != real.end());
        check_same_work(*it, o);
      }
    }
}

TEST_CASE("roofline: machines, and what takes longest") {
  const DeviceRoofline m = device_roofline("h200");
  WorkOfOp o{"linear", DType::bf16, DType::bf16, 2, {3'000'000, 1'000'000, 0}};
  CHECK(detail::floor_seconds(o, m) == doctest::Approx(1e-6 + 2e-6));
  o.work.multiply_adds = 315e9;
  CHECK(detail::floor_seconds(o, m) == doctest::Approx(1e-3 + 2e-6));
  o.from = DType::f32;
  CHECK(detail::floor_seconds(o, m) == doctest::Approx(630e9 / 50e12 + 2e-6));
  o.from = DType::i8;
  CHECK(detail::floor_seconds(o, m) == doctest::Approx(630e9 / 1100e12 + 2e-6));
  CHECK_SAYS(device_roofline("h400"), "there is no device 'h400'. Name h100, h200, or a JSON file");
  const Folder folder;
  const std::string path = folder / "own.json";
  const auto with = [&](const std::string& text) {
    detail::write_file_atomically(path, text);
    return error_of([&] { device_roofline(path); });
  };
  CHECK_HAS(with("[]"), "It must be an object");
  CHECK_HAS(with(R"({"gb_per_s": 50})"), "has no 'f32_tflops'");
  const std::string rest = R"("f32_tflops": 0.2, "bf16_tflops": 0.4, "int8_tflops": 1, "us_per_call": 0})";
  CHECK_HAS(with(R"({"gb_per_s": 0, )" + rest), "'gb_per_s' is 0");
  CHECK_HAS(with(R"({"gb_per_s": "fast", )" + rest), "It must be a number");
  CHECK_HAS(with(R"({"gb_per_s": 50, "gbps": 1, )" + rest), "'gbps' is not known");
  CHECK(with(R"({"gb_per_s": 50, )" + rest) == "no error");
  CHECK(device_roofline(path).bf16_tflops == 0.4);
}

namespace {
// A training step of one layer by AdamW, on a batch of rows; `how` is for its forward().
template <class Layer, class Options, class... How>
std::vector<WorkOfOp> step_of_layer(int64_t rows, int64_t in, int64_t out, const Options& options, How... how) {
  std::vector<WorkOfOp> ops;
  dry_run([&] {
    const Params params(Device(), 1);
    const Layer layer(params, in, out, options);
    AdamW optimizer(params.trainable());
    const Tensor x = zeros({rows, in});
    ops = counted([&] {
      const Tensor y = layer.forward(x, how...);
      optimizer.backward_and_step(mean(y * y));
    });
  });
  return ops;
}
}  // namespace

TEST_CASE("roofline: the steps of the benchmarked documents, to the call and to the byte") {
  const auto check = [](const char* what, const std::vector<WorkOfOp>& ops, int64_t calls, int64_t bytes,
                        double flops) {
    CAPTURE(what);
    const Sum s = sum_of(ops);
    CHECK(s.calls == calls);
    CHECK(s.bytes == bytes);
    CHECK(int64_t(s.flops) == flops);
  };
  const auto of_arch = [](const char* name, int64_t batch, DType dtype) {
    return step_work(model_preset(name), step_of(batch, dtype)).all();
  };
  check("000: LoRA 512 to 512 of rank 8, 256 rows",
        step_of_layer<nn::LoraDelta>(256, 512, 512, nn::LoraOptions{.rank = 8, .alpha = 16}), 14, 7'716'892,
        10'485'760);
  check("001: SwitchBack 1024 to 4096, 2048 rows",
        step_of_layer<nn::Linear>(2048, 1024, 4096, nn::LinearOptions{.kind = LinearKind::switchback}), 13, 583'172'132,
        34'359'738'368);
  check("002: linear of 2048, 16 rows", step_of_layer<nn::Linear>(16, 2048, 2048, nn::LinearOptions()), 11, 119'349'276,
        268'435'456);
  check("002: 8 fragments of 2048, 16 rows",
        step_of_layer<nn::FragmentedLinear>(16, 2048, 2048, nn::FragmentedOptions{.fragments = 8}, nn::Selection::soft),
        26, 147'688'988, 427'819'008);
  check("003: 2.7B, f32", of_arch("cs336-2.7b", 4, DType::f32), 820, 238'781'511'456, 42'148'728'668'160);
  check("003: 2.7B, bf16", of_arch("cs336-2.7b", 4, DType::bf16), 821, 171'375'441'696, 42'148'728'668'160);
  check("004: small", of_arch("gpt-small-10k", 16, DType::f32), 271, 11'884'975'456, 1'155'092'447'232);
  check("004: medium", of_arch("gpt-medium-10k", 16, DType::f32), 539, 33'765'245'856, 3'882'130'341'888);

  // A step updates each parameter, and the norm reads each gradient. Matrix gradients and the update's copies are bf16;
  // gradients of the table and the norms are f32.
  const auto ops = of_arch("cs336-2.7b", 4, DType::bf16);
  const int64_t parameters = plan_memory(model_preset("cs336-2.7b"), step_of(4, DType::bf16)).parameters;
  const int64_t others = (10'000 + 65) * 2560;
  CHECK(sum_of(ops, "adamw_step").bytes == 26 * parameters + 2 * others + 2 * (parameters - others) + 4);
  TrainConfig narrow = step_of(4, DType::bf16);
  narrow.moments = DType::bf16;  // 8 bytes fewer, of 28
  CHECK(sum_of(step_work(model_preset("cs336-2.7b"), narrow).all(), "adamw_step").bytes ==
        sum_of(ops, "adamw_step").bytes - 8 * parameters);
  narrow.moments = DType::f32, narrow.split_weights = true;  // 2 fewer of split ones
  CHECK(sum_of(step_work(model_preset("cs336-2.7b"), narrow).all(), "adamw_step").bytes ==
        sum_of(ops, "adamw_step").bytes - 2 * (parameters - others));
  const int64_t written = sum_of(ops, "square_sums").bytes - (2 * parameters + 2 * others);  // partial sums
  CHECK(written >= parameters / 2048);
  CHECK(written < parameters / 2048 + 8 * 400);
}
