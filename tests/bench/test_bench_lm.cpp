// bench_lm_profile: its model against Gpt, its runs, profiles and files.

#include <tapegrad/tools.h>
#include <regex>
#include "../bench/lm_profile/model.h"
#include "../bench/lm_profile/steps.h"

#include "support/check_json.h"
#include "support/files.h"
#include "support/helpers.h"

using namespace tg;
using namespace tg::bench;
using doctest::Approx;

namespace {
GptConfig tiny_config() {
  GptConfig c = lm_config("tiny");
  c.context = 8, c.vocab_size = 40;
  return c;
}
// A DocumentLm's weights under Gpt's names; Gpt concatenates q, k, v, and gate and up.
StateDict gpt_weights(const Params& document, const GptConfig& c) {
  StateDict all = document.state(), joined;
  const auto join = [&](const std::string& to, std::initializer_list<const char*> parts, const std::string& before) {
    std::vector<Tensor> rows;
    for (const char* part : parts) {
      const auto at = all.find(before + part + ".weight");
      rows.push_back(at->second);
      all.erase(at);
    }
    joined[before + to + ".weight"] = concat(rows, 0);
  };
  for (int64_t i = 0; i < c.layers; ++i) {
    join("qkv", {"q", "k", "v"}, fmt::format("h.{}.attn.", i));
    join("fc", {"gate", "up"}, fmt::format("h.{}.mlp.", i));
  }
  joined.insert(all.begin(), all.end());
  return joined;
}
LmSetup deep(LmForm form) {
  LmSetup s{.size = "tiny", .model = tiny_config(), .batch = 1, .form = form};
  s.model.layers = 32;
  return s;
}
std::string plan_error(const std::function<void(LmFlags&)>& spoil) {
  LmFlags f;
  f.setup.size = "tiny";
  return error_of([&] { lm_plan(changed(f, spoil)); });
}
const ProfileTable& ranges_of(const LmFigures& f) {
  REQUIRE(!f.tables.empty());
  REQUIRE(f.tables[0].report == "nvtx_sum");
  return f.tables[0];
}
}  // namespace

TEST_CASE("lm: the document's model op by op is Gpt, its gradients too, with matrices of scores and without") {
  const GptConfig c = tiny_config();
  const Params document({}, 3), other({}, 3);
  const DocumentLm lm(document, c), flash(other, c, DocumentLm::Scores::blocks);
  const Params params;
  params.load(gpt_weights(document, c));
  const Gpt gpt(params, c);
  params.check_all_used();
  CHECK(document.numel() == params.numel());
  CHECK(document.all().size() == 9 * 2 + 3);
  Rng rng{5};
  std::vector<int64_t> ids(2 * 7);
  for (int64_t& id : ids) id = int64_t(rng.below(40));
  const Tensor tokens = tensor(ids, {2, 7}), want = gpt.forward(tokens);
  CHECK(distance(lm.forward(tokens), want) < 1e-5);
  CHECK(distance(flash.forward(tokens), want) < 1e-5);
  const auto gradients = [&](const Params& p, const Tensor& logits) {
    StateDict r;
    const GradMap grads = backward(cross_entropy(slice(logits, 1, 0, 6), slice(tokens, 1, 1, 7)));
    for (const Parameter& x : p.all()) r[x.name] = grads[x.tensor];
    return r;
  };
  const StateDict ours = gradients(params, want), theirs = gradients(document, lm.forward(tokens)),
                  blocks = gradients(other, flash.forward(tokens));
  const auto joined = [&](const StateDict& from, const std::string& before, std::vector<std::string> parts) {
    std::vector<Tensor> rows;
    for (const std::string& part : parts) rows.push_back(from.at(before + part + ".weight"));
    return concat(rows, 0);
  };
  for (const StateDict& from : {theirs, blocks})
    for (const auto& [name, g] : ours) {
      CAPTURE(name);
      const std::string before = name.substr(0, name.find_last_of('.', name.size() - 8) + 1);
      const Tensor got = name.ends_with("qkv.weight")  ? joined(from, before, {"q", "k", "v"})
                         : name.ends_with("fc.weight") ? joined(from, before, {"gate", "up"})
                                                       : from.at(name);
      CHECK(distance(got, g) < 1e-5);
    }
  GptConfig bad = c;
  bad.tied_head = true;
  CHECK_SAYS(DocumentLm(Params(), bad), "[document_lm] the configuration is of another form.");
}

TEST_CASE("lm: sizes, and flags that are wrong") {
  for (const auto& [name, width, ff, layers, heads] :
       {std::tuple<const char*, int64_t, int64_t, int64_t, int64_t>{"small", 768, 3072, 12, 12},
        {"medium", 1024, 4096, 24, 16},
        {"large", 1280, 5120, 36, 20},
        {"xl", 1600, 6400, 48, 25},
        {"2.7B", 2560, 10240, 32, 32}}) {
    const GptConfig c = lm_config(name);
    CHECK(std::tuple(c.width, c.ff_width, c.layers, c.heads) == std::tuple(width, ff, layers, heads));
  }
  CHECK(lm_config("2.7B") == model_preset("cs336-2.7b"));
  {
    const LazyScope shapes_only;
    const Params params;
    const DocumentLm lm(params, lm_config("2.7B"));
    CHECK(params.numel() == 3406809600);
    CHECK(params.all().size() == 291);
  }
  LmFlags all;
  all.setup.size = "tiny", all.answers = true, all.layers = 3;
  const LmPlan plan = lm_plan(all);
  REQUIRE(plan.setups.size() == 4);  // tf32 needs a GPU
  CHECK(plan.setups[0].form == LmForm::document);
  CHECK(plan.setups[0].model.layers == 3);
  CHECK(plan.setups[3].precision == Precision::bf16);
  CHECK(plan.types.size() == 3);
  CHECK_HAS(plan_error([](LmFlags& f) { f.setup.size = "smal"; }), "Did you mean 'small'?");
  CHECK_HAS(plan_error([](LmFlags& f) { f.types = {StepType::train, StepType::train}; }), "'train' comes twice.");
  CHECK_HAS(plan_error([](LmFlags& f) { f.setup.precision = Precision::bf16; }), "precision bf16 and form document.");
  CHECK_HAS(plan_error([](LmFlags& f) { f.setup.precision = Precision::tf32; }), "precision tf32 on cpu.");
  CHECK_HAS(plan_error([](LmFlags& f) { f.answers = true, f.types = {StepType::forward}; }), "--answers without train");
  CHECK_HAS(plan_error([](LmFlags& f) { f.setup.size = "2.7B", f.setup.batch = 100'000; }),
            "[bench_lm_profile] forward of size 2.7B (document, f32) with batch 100000 and context 512 takes ");
}

TEST_CASE("lm: gradients of all steps add up, and only train changes weights") {
  for (const LmForm form : {LmForm::document, LmForm::flash, LmForm::fused}) {
    LmSetup s{.size = "tiny", .model = tiny_config(), .batch = 2, .form = form};
    CAPTURE(name_of(form));
    LmModel model(s);
    model.run(StepType::backward);
    CHECK(model.checked_result(StepType::backward) > 2);  // a uniform guess gives log 40 = 3.7
    CHECK_SAYS(model.checked_result(StepType::train),
               "after steps of train, 32 of 32 weights of ln_f.weight are 1 as in the beginning, and 32 are 1.");
    s.warmup = 0;
    LmModel once(s);
    once.run(StepType::backward);
    for (size_t i = 0; i < model.gradients().all().size(); ++i)
      CHECK(distance(model.gradients().all()[i], once.gradients().all()[i] * 4.0) < 1e-6);
    LmModel trained(s);
    trained.run(StepType::train);
    trained.checked_result(StepType::train);
    CHECK_SAYS(trained.checked_result(StepType::forward), "[bench_lm_profile] after steps of forward, 0 of 32 weights");
  }
}

TEST_CASE("lm: a profile of 32 layers has the document's ranges, as often as there, and they make up the step") {
  for (const LmForm form : {LmForm::document, LmForm::fused})
    for (const auto& [type, rows] :
         {std::pair{StepType::forward, 49}, {StepType::backward, 51}, {StepType::train, 52}}) {
      const LmRun run = profiled(deep(form), type);
      LmFigures f = figures_of(run);
      // A busy machine may pause between two ranges: the best of ten counts.
      for (int i = 0; i < 9 && std::min(f.step.phases_cover, f.step.host_layers_cover + 0.03) < 0.98; ++i)
        f = figures_of(profiled(deep(form), type));
      const ProfileTable& t = ranges_of(f);
      CAPTURE_ALL(name_of(form), name_of(type));
      const auto instances = [&](const char* name) { return t.at(name, "Instances"); };
      CHECK(t.rows.size() == size_t(form == LmForm::document ? rows : rows - 5));
      CHECK(instances(":warmup") == 1);
      CHECK(instances(":profiled_step") == 1);
      CHECK(instances(":forward_pass") == 1);
      for (const char* name : {":token_embeddings", ":final_norm", ":lm_head", ":layer_0", ":layer_31"})
        CHECK(instances(name) == 4);
      for (const char* name : {":attention_sublayer", ":ffn_sublayer", ":attention projections", ":rope encoding",
                               ":scaled_dot_product_attention", ":output projection"})
        CHECK(instances(name) == 128);
      if (form == LmForm::document)
        for (const char* name : {":causal mask construction", ":annotated_scaled_dot_product_attention",
                                 ":computing attention scores", ":computing softmax", ":final matmul"})
          CHECK(instances(name) == 128);
      CHECK(f.step.phases.size() == (type == StepType::forward ? 1 : type == StepType::backward ? 3 : 4));
      CHECK(f.step.phases_cover > 0.98);
      CHECK(f.step.phases_cover <= 1);
      CHECK(f.step.layers_cover > 0.95);
      CHECK(f.step.host_layers_cover > 0.95);
      CHECK(f.step.host_layers_cover <= 1);
      CHECK(f.step.layers.size() == 32);
      double parts = 0;
      for (const double x : f.step.all.parts) parts += x;
      CHECK(parts == Approx(f.step.all.kernels));
      for (const LmPart part : {LmPart::projections, LmPart::attention, LmPart::rope, LmPart::ffn_products,
                                LmPart::ffn_rest, LmPart::head, LmPart::final_norm, LmPart::embedding})
        CHECK_MESSAGE(f.step.phases.at("forward_pass").part(part) > 0, name_of(part));
      CHECK((f.step.all.part(LmPart::optimizer) > 0) == (type == StepType::train));
      CHECK((f.step.all.part(LmPart::loss) > 0) == (type != StepType::forward));
      CHECK(f.peak_bytes == planned_bytes(run.setup, type));
    }
}

TEST_CASE("lm: ranges nest as the document's") {
  CHECK_SAYS(profiled_step({}), "no range 'profiled_step'. Profile LmModel::run().");
  const Profile p = document_ranges(profiled(deep(LmForm::document), StepType::train).profile);
  const std::map<std::string, std::vector<std::string>> inner{
      {"", {"warmup", "profiled_step"}},
      {"profiled_step", {"forward_pass", "loss_computation", "backward_pass", "optimizer_step"}},
      {"layer", {"attention_sublayer", "ffn_sublayer"}},
      {"attention_sublayer",
       {"attention projections", "rope encoding", "causal mask construction", "scaled_dot_product_attention",
        "output projection"}},
      {"scaled_dot_product_attention", {"annotated_scaled_dot_product_attention"}},
      {"annotated_scaled_dot_product_attention", {"computing attention scores", "computing softmax", "final matmul"}}};
  std::map<std::string, std::string> outer;
  for (const auto& [name, all] : inner)
    for (const std::string& one : all) outer[one] = name;
  for (const Profile::Range& r : p.ranges) {
    const std::string name(r.name);
    CAPTURE(name);
    const std::string around = r.parent == Profile::kNone ? "" : std::string(p.ranges[r.parent].name);
    if (r.parent != Profile::kNone) {
      CHECK(p.ranges[r.parent].begin <= r.begin);
      CHECK(p.ranges[r.parent].end >= r.end);
    }
    const auto want = outer.find(name);
    if (want == outer.end())
      CHECK((around == "warmup" || around == "forward_pass"));
    else if (want->second == "layer")
      CHECK(around.starts_with("layer_"));
    else
      CHECK(around == want->second);
  }
}

TEST_CASE("lm: the text around the tables, nine answers, the document beside them, and the file") {
  LmSetup s{.size = "2.7B", .model = lm_config("2.7B")};
  CHECK(preamble(s, StepType::forward) == R"(==========================================
Model: 2.7B, Context Length: 512
==========================================
Profiling: size=2.7B, context_length=512, type=forward
Using device: cpu

Model configuration:
  Size: 2.7B
  d_model: 2560
  d_ff: 10240
  num_layers: 32
  num_heads: 32
  vocab_size: 10000
  context_length: 512
  batch_size: 4
  form: document
  precision: f32

Initializing model...
Creating random batch...
)");
  std::vector<LmFigures> all;
  LmSetup tiny{.size = "tiny", .model = tiny_config(), .batch = 1};
  for (const auto& [form, precision] : {std::pair{LmForm::document, Precision::f32},
                                        {LmForm::flash, Precision::f32},
                                        {LmForm::fused, Precision::f32},
                                        {LmForm::fused, Precision::bf16}}) {
    tiny.form = form, tiny.precision = precision;
    all.push_back(figures_of(profiled(tiny, StepType::train)));
  }
  const std::string text = answers(all);
  for (int i = 1; i <= 9; ++i) CHECK(has(text, fmt::format("\n{}. ", i)));
  CHECK_HAS(text, "tf32 not measured");
  CHECK(!has(text, "Ask for --answers"));
  const std::string few = answers({all[0]});
  for (const char* part :
       {"6. Fused ops: not measured.", "7. Mixed precision: not measured.", "8. Attention in blocks: not"})
    CHECK_HAS(few, part);
  CHECK_HAS(answers({}), "none was profiled");
  const std::string tables = tables_text(all[0]);
  for (const char* part :
       {"[3/8] 'nvtx_sum'", "[4/8] 'osrt_sum' is not made", ":profiled_step", "[6/8] 'cpu_kern_sum'"})
    CHECK_HAS(tables, part);
  CHECK_HAS(step_text(all[0]), "The profiled step, document f32 train: ");

  const std::string shares = std::regex_replace(compare_with_document(all), std::regex(" +"), " ");
  CHECK_HAS(shares, "document 003: 4. It has size 2.7B, 32 layers, batch 4, context 512.\n",
            "tiny fused bf16 train, context 8 products, % of kernels ", " kernels by layer 147.50 203.65\n");
  std::vector<LmFigures> large{all[0]};
  large[0].setup = s;
  large[0].step.seconds = 1.379045;
  CHECK_HAS(std::regex_replace(compare_with_document(large), std::regex(" +"), " "),
            "document f32 train profiled_step ms 1379.05 2758.09 2.00\n");

  const Folder folder;
  write_lm_json(folder / "run.json", {{machine(), "wall", "abc", "bench_lm_profile --json x"}, all});
  const auto j = detail::own_json(read_file(folder / "run.json"));
  check_json(j, R"({"commit": "abc", "runs": [{"form": "document"}, {}, {}, {"precision": "bf16"}]})");
  CHECK(j["runs"][0]["phases"]["optimizer_step"]["seconds"].get<double>() > 0);
  CHECK(j["runs"][0]["tables"][0]["report"] == "nvtx_sum");
  CHECK(j["runs"][0]["parameters"] == all[0].parameters);
  const auto allocated = [&](size_t run) { return j["runs"][run]["step"]["allocated_bytes"].get<int64_t>(); };
  CHECK(allocated(0) > allocated(2));

  write_csv(folder / "csv", all[3]);
  CHECK(
      read_file(folder / "csv/tiny_fused_bf16_train_nvtx_sum.csv").starts_with("Time (%),Total Time (ns),Instances,"));
  CHECK(read_file(folder / "csv/tiny_fused_bf16_train_cpu_kern_sum.csv") == to_csv(all[3].tables[2]));
}

TEST_CASE("lm: answers are worked out of the figures") {
  LmFigures f;
  f.setup.size = "tiny", f.setup.model = tiny_config(), f.type = StepType::train;
  f.parameters = 1'000'000, f.step.seconds = 2;
  LmPhase& forward = f.step.phases["forward_pass"];
  forward.seconds = 0.5, forward.kernels = 0.4;
  forward.parts[size_t(LmPart::projections)] = 0.1, forward.parts[size_t(LmPart::rope)] = 0.02;
  forward.parts[size_t(LmPart::ffn_products)] = 0.2, forward.parts[size_t(LmPart::ffn_rest)] = 0.04;
  f.step.phases["backward_pass"].seconds = 1.0;
  f.step.phases["optimizer_step"].seconds = 0.1;
  f.step.all = forward, f.step.all.kernels = 1, f.step.all.products = 0.7;
  f.step.ranges_attention = 3, f.step.ranges_ffn = 1;
  f.step.layers = {0.02, 0.02, 0.02};
  f.step.host_layers = {0.03, 0.03, 0.03}, f.step.first_host_layers = {1, 0.03, 0.03};
  std::string text = answers({f});
  CHECK_HAS(text, "1. Backward and forward: 1000.000 ms and 500.000 ms, 2.00 times as long",
            "2. Optimizer: 100.000 ms, 5.0 % of the step", "0.032 GB at 0.3 GB/s",
            "30.0 % and 60.0 % of forward_pass, 12.0 % and 24.0 % of the step.", "ours would be 150.0 % and 50.0 %.",
            "4. The first layer: 20.000 ms of kernels in the profiled step, 1.00 times the median of the others.",
            ": slow is the first call, not the first layer", " document f32 70.0 %;");
  f.step.layers[0] = 0.06;
  text = answers({f});
  CHECK_HAS(text, "3.00 times the median");
  CHECK(!has(text, "slow is"));

  LmFigures flash = f, fused = f, half = f;
  flash.setup.form = LmForm::flash, fused.setup.form = half.setup.form = LmForm::fused;
  half.setup.precision = Precision::bf16;
  f.step.all.parts[size_t(LmPart::attention)] = 0.5, flash.step.all.parts[size_t(LmPart::attention)] = 0.25;
  f.peak_bytes = 3'000'000'000, flash.peak_bytes = 1'000'000'000;
  flash.step.seconds = 1.5, flash.step.all.launches = 90, flash.step.all.kernels = 0.8;
  fused.step.seconds = 1.0, fused.step.all.launches = 30, fused.step.all.kernels = 0.4;
  flash.step.allocated = 5e9, fused.step.allocated = 2e9;
  half.step.seconds = 0.25;
  text = answers({f, flash, fused, half});
  CHECK_HAS(text,
            ": 30 kernels in place of 90, 400.000 ms in place of 800.000 ms, -50.0 %; tensors "
            "of 2.000 GB made in place of 5.000 GB; the step 1000.000 ms in place of 1500.000 ms",
            "f32 1000.000 ms, tf32 not measured, bf16 250.000 ms (4.00 times as fast).",
            "scores to values 250.000 ms in place of 500.000 ms (50.0 % of the step's kernels), the step 1500.000 ms "
            "in place of 2000.000 ms, peak memory 1.000 GB in place of 3.000 GB.");
}

TEST_CASE("lm: model FLOPs are the document's, and MFU is their rate by the peak") {
  LmSetup s{.size = "2.7B", .model = lm_config("2.7B")};
  const double products = 13.849e12, scores = 0.3436e12;  // FLOP of a forward pass over 4 x 512 tokens
  CHECK(flops_of_step(s, StepType::forward) == Approx(products + scores).epsilon(1e-4));
  CHECK(flops_of_step(s, StepType::backward) == 3 * flops_of_step(s, StepType::forward));
  CHECK(flops_of_step(s, StepType::train) == 3 * flops_of_step(s, StepType::forward));
  LmFigures f;
  f.setup = s, f.type = StepType::train;
  f.step.seconds = 2.75809;  // document 003's: 15.4 TFLOP/s
  LmReport r{{machine(), "", "", ""}, {f}, {{Precision::f32, 30'879}}};
  CHECK_HAS(utilisation(r),
            "  document f32 train            42577.1 GFLOP in   2758.090 ms:    15437.2 GFLOP/s, 50.0 % of 30879");
  r.peaks = {{Precision::tf32, 30'879}};
  CHECK_HAS(utilisation(r), ":    15437.2 GFLOP/s\n");
}
