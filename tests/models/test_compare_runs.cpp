// compare() and ObserveScope: equal runs, and the first fault of one side by name.
#include <tapegrad/tools.h>

#include <thread>

#include "support/check_json.h"
#include "support/files.h"
#include "support/gpt_oracle.h"

using namespace tg;

namespace {
const Side kF32, kF64{.weights = DType::f64};

// (x) -> x, with faults on request.
enum class Fault { none, value, gradient, nan };
struct Passed : OpOf<Passed> {
  static constexpr auto kName = "test_passed";
  Fault fault;
  explicit Passed(Fault f) : fault(f) {}
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Tensors vjp(const Vjp& v) const override { return {v.grad() * (fault == Fault::gradient ? 1.001 : 1.0)}; }
  void key(StructuralHash& k) const override { k.add(int(fault)); }
};
void passed_cpu(const Passed& op, Bufs in, Bufs out, Context&) {
  const auto copy = [&]<class T>() {
    const T* x = in[0].data<T>();
    T* y = out[0].data<T>();
    for (int64_t i = 0; i < in[0].numel(); ++i) y[i] = x[i];
    if (op.fault == Fault::value) y[1] += T(0.1);
    if (op.fault == Fault::nan) y[1] = T(NAN);
  };
  in[0].dtype() == DType::f64 ? copy.operator()<double>() : copy.operator()<float>();
}
TG_KERNEL(Passed, cpu, passed_cpu);

struct Doubled : OpOf<Doubled> {  // no kernel: made of two
  static constexpr auto kName = "test_doubled";
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Tensors compose(Inputs in) const override { return {(in[0] * 1.0) + in[0]}; }
};

// Separate queries, keys and values. Only the f32 side has the fault.
constexpr int64_t kVocabulary = 12, kWidth = 8;
struct Function {  // a model's form
  std::function<Tensor(const Tensor& tokens)> f;
  Tensor forward(const Tensor& tokens) const { return f(tokens); }
};
MakeModel own_model(Fault fault, const std::function<void(const Params&)>& tamper = {}) {
  return [fault, tamper](const Params& p) -> Model {
    const NameScope root("own");
    const nn::Embedding table(p.at("wte"), kVocabulary, kWidth, Init::normal(0.5));
    const nn::LinearOptions biased{.bias = true, .init = Init::normal(0.5)};
    const Params a = p.at("attn");
    const nn::Linear q(a.at("q"), kWidth, kWidth, biased), k(a.at("k"), kWidth, kWidth, biased);
    const nn::Linear v(a.at("v"), kWidth, kWidth, biased), head(p.at("head"), kWidth, kVocabulary, biased);
    const bool f32 = p.dtype() == DType::f32;
    if (f32 && tamper) tamper(p);
    return Function{[=, scope = p.at("middle").scope()](const Tensor& tokens) {
      const int64_t b = tokens.size(0), t = tokens.size(1);
      const auto heads = [&](const Tensor& x) { return transpose(reshape(x, {b, t, 2, kWidth / 2}), 1, 2); };
      const Tensor x = table.forward(tokens);
      Tensor y = attention(heads(q.forward(x)), heads(k.forward(x)), heads(v.forward(x)), {.causal = true});
      y = reshape(transpose(y, 1, 2), {b, t, kWidth}) + x;
      {
        const NameScope middle(scope);
        y = emit1(make_ref<Passed>(f32 ? fault : Fault::none), {y});
      }
      return head.forward(y);
    }};
  };
}
Tensor weight_of(const Params& p, std::string_view name) {
  for (auto& parameter : p.all())
    if (parameter.name == name) return parameter.tensor;
  return {};
}
StateDict own_weights() {
  const Params p(Device(), 3);
  own_model(Fault::none)(p);
  return p.state();
}
Batch own_batch() {
  return {tensor<int32_t>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4}), tensor<int32_t>({2, 3, 4, 5, 6, 7, 8, 9}, {2, 4})};
}
Comparison of_own(Fault fault, const std::function<void(const Params&)>& tamper = {}) {
  return compare(own_model(fault, tamper), own_weights(), own_batch(), kF64, kF32);
}
const Compared& the(const Comparison& c, Stage stage, const std::string& name) {
  const auto at = std::find_if(c.tensors.begin(), c.tensors.end(),
                               [&](const Compared& t) { return t.stage == stage && t.name == name; });
  REQUIRE_MESSAGE(at != c.tensors.end(), name);
  return *at;
}
std::string first_of(const Comparison& c) {
  const Compared* first = c.first_apart();
  return first ? fmt::format("{} {}", name_of(first->stage), first->name) : "none";
}
Comparison of_oracle(const std::string& name, const Side& a, const Side& b) {
  const Oracle o(name);
  return compare(o.config, o.weights("init"), {o.batch("tokens", 0), o.batch("targets", 0)}, a, b);
}
}  // namespace

TEST_CASE("observe: every output with its op and scope, in order; composed ops as one, views not at all") {
  const Tensor x = tensor<float>({1, 2, 3, 4}, {2, 2});
  std::vector<std::string> seen;
  std::vector<float> sums;
  const auto see = [&](const Observed& o) {
    seen.push_back(fmt::format("{} {} {}", o.scope->path(), o.op, o.output));
    sums.push_back(sum(o.value).item<float>());  // not observed itself
  };
  {
    const ObserveScope all(see);
    const NameScope model("m"), part("p");
    const Tensor y = emit1(stateless<Doubled>(), {x + x});
    topk(transpose(y, 0, 1), 1);
    const ObserveScope inner([&](const Observed& o) { seen.push_back(fmt::format("inner {}", o.op)); });
    tg::exp(x);
  }
  tg::exp(x);
  CHECK(seen == std::vector<std::string>{"m.p add 0", "m.p test_doubled 0", "m.p topk 0", "m.p topk 1", "inner exp"});
  CHECK(std::vector<float>(sums.begin(), sums.begin() + 2) == std::vector<float>{20, 40});
}
TEST_CASE("observe: gradient ops in the scope of their forward op") {
  Tensor x = tensor<float>({1, 2}, {2}).requires_grad_();
  Tensor y;
  {
    const NameScope here("layer");
    y = sum(tg::exp(x));
  }
  std::vector<std::string> seen;
  const ObserveScope all([&](const Observed& o) { seen.push_back(fmt::format("{} {}", o.scope->path(), o.op)); });
  backward(y);
  CHECK(std::find(seen.begin(), seen.end(), "layer exp_grad") != seen.end());
}

TEST_CASE("f32 agrees with f64 in every tensor of every model, and sides that are equal in every bit") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    const Comparison c = of_oracle(name, kF64, kF32);
    CHECK(first_of(c) == "none");
    CHECK(c.within());
    CHECK(c.unpaired.empty());
    const auto parameters = Oracle(name).weights("init").size();
    for (const Stage s : {Stage::weights, Stage::gradients, Stage::update}) {
      const auto n = std::count_if(c.tensors.begin(), c.tensors.end(), [&](auto& t) { return t.stage == s; });
      CHECK(size_t(n) == parameters + (s == Stage::gradients));
    }
    CHECK(the(c, Stage::forward, "loss").error > 0);
    CHECK(the(c, Stage::forward, "logits").error > 0);
    CHECK(the(c, Stage::forward, "gpt.h.1.mlp.fc linear").error > 0);
    CHECK(the(c, Stage::backward,
              Oracle(name).config.qk_norm ? "gpt.h.0.attn attention_grad[2]" : "gpt.h.0.attn self_attention_grad")
              .error > 0);
    CHECK(the(c, Stage::gradients, "wte.weight").error > 0);
    CHECK(the(c, Stage::gradients, "norm of all gradients").within());
    CHECK(the(c, Stage::update, "wte.weight").error > 0);
    const Comparison same = of_oracle(name, kF32, kF32);
    CHECK(detail::tolerance_of(kF32, kF32) == 0);
    CHECK(first_of(same) == "none");
    for (auto& t : same.tensors) CHECK(t.error == 0);
    CHECK(same.tensors.size() == c.tensors.size());
  }
}
TEST_CASE("one thread and two: equal (skipped on one cpu)" * doctest::skip(std::thread::hardware_concurrency() < 2)) {
  const int before = num_threads();
  set_num_threads(2);
  const GptConfig g{.vocab_size = 64, .context = 64, .layers = 2, .heads = 2, .width = 64, .dropout = 0.1};
  const auto [p, model] = new_gpt(g);
  Rng rng{5};
  const Tensor tokens = rand({4, 64}, rng, 0, 63.99).to(DType::i64);
  const Comparison c = compare(g, p.state(), {tokens, tokens}, {.threads = 1}, {.threads = 2});
  CHECK(first_of(c) == "none");
  CHECK(the(c, Stage::forward, "gpt.h.0.mlp dropout").tolerance == 0);
  CHECK(num_threads() == 2);
  set_num_threads(before);
}
TEST_CASE("bf16 against f32: within its own tolerance, casts left out") {
  const Side bf16{.compute = DType::bf16};
  const Comparison c = of_oracle("gpt_nano", kF32, bf16);
  CHECK(the(c, Stage::forward, "logits").tolerance == 2e-2);
  CHECK(the(c, Stage::forward, "logits").within());
  CHECK(the(c, Stage::forward, "logits").error > 1e-4);
  CHECK(the(c, Stage::weights, "wte.weight").error == 0);
  REQUIRE(!c.unpaired.empty());
  for (auto& u : c.unpaired) {  // norms' gradients: the branch is in bf16 too
    CAPTURE(u);
    CHECK((has(u, " cast") || has(u, " layer_norm_grad[")));
  }
}

TEST_CASE("a weight that is not the same is found, and named first") {
  const auto tamper = [](const Params& p) { weight_of(p, "attn.v.weight").mutable_data<float>()[5] += 1e-4f; };
  const Comparison c = of_own(Fault::none, tamper);
  CHECK(first_of(c) == "weights attn.v.weight");
  CHECK(the(c, Stage::weights, "attn.v.weight").absolute == doctest::Approx(1e-4).epsilon(0.01));
  CHECK(the(c, Stage::forward, "own.attn.q linear").within());
  CHECK(!the(c, Stage::forward, "own.attn.v linear").within());
  CHECK(!c.within());
}
TEST_CASE("a broken op is found, and named first: in its value, in its gradient, and by NaN") {
  CHECK(first_of(of_own(Fault::none)) == "none");
  const Comparison value = of_own(Fault::value);
  CHECK(first_of(value) == "forward own.middle test_passed");
  CHECK(!the(value, Stage::forward, "loss").within());
  const Comparison gradient = of_own(Fault::gradient);
  CHECK(first_of(gradient) == "backward own.middle mul_scalar");
  CHECK(the(gradient, Stage::forward, "loss").within());
  CHECK(the(gradient, Stage::gradients, "head.weight").within());
  CHECK(!the(gradient, Stage::gradients, "attn.q.weight").within());
  const Comparison nan = of_own(Fault::nan);
  CHECK(first_of(nan) == "forward own.middle test_passed");
  CHECK(std::isinf(nan.first_apart()->error));
}
TEST_CASE("NaN on both sides is no agreement") {
  const auto make_model = [](const Params& p) -> Model {
    const nn::Embedding table(p.at("wte"), 4, 4);
    return Function{[table](const Tensor& tokens) { return tg::log(table.forward(tokens) - 100.0); }};
  };
  const Params p;
  make_model(p);
  const Tensor tokens = tensor<int32_t>({1, 2}, {1, 2});
  CHECK(first_of(compare(make_model, p.state(), {tokens, tokens}, kF32, kF32)) == "forward log");
}
TEST_CASE("gradients and parameters that differ though no op does") {
  const auto hooked = [](const Params& p) {
    weight_of(p, "attn.q.weight").on_grad([](const Tensor& g) { return g * -1.0; });
  };
  const Comparison c = of_own(Fault::none, hooked);
  CHECK(!the(c, Stage::gradients, "attn.q.weight").within());
  CHECK(!the(c, Stage::update, "attn.q.weight").within());
  CHECK(the(c, Stage::update, "attn.v.weight").within());
  CHECK(first_of(c) == "gradients attn.q.weight");
}
TEST_CASE("a gradient that is exactly 0 is judged by its neighbours") {
  const Comparison c = of_own(Fault::none);
  const Compared &k = the(c, Stage::gradients, "attn.k.bias"), &q = the(c, Stage::gradients, "attn.q.bias");
  CHECK(k.within());
  CHECK(k.absolute > 0);         // f32 rounding error: no digit agrees with f64
  CHECK(k.error < q.tolerance);  // small relative to those of other biases
  CHECK(the(c, Stage::update, "attn.k.bias").within());
}

TEST_CASE("sides: as text, and what they refuse") {
  for (const char* text : {"cpu/f32", "cpu/f64", "cpu/bf16", "cuda:1/bf16", "cpu/f32/3", "cpu/f64/1"})
    CHECK(to_string(Side::parse(text)) == text);
  CHECK(Side::parse("cuda") == Side{.device = Device::cuda()});
  CHECK(Side::parse("cpu/2") == Side{.threads = 2});
  CHECK(detail::tolerance_of(kF64, kF64) == 0);
  CHECK(detail::tolerance_of(kF64, {.device = Device::cuda(), .weights = DType::f64}) == 1e-11);
  CHECK(detail::tolerance_of(kF64, kF32) == 1e-5);
  CHECK(detail::tolerance_of({.compute = DType::bf16}, kF32) == 2e-2);
  CHECK(detail::tolerance_of({.threads = 1}, {.threads = 2}) == 0);
  for (const char* text : {"cpu/f16", "cpu/f32/f64", "cpu/0", "cpu/-1", "cpu/2/f32", "cpu//2", "cpu/f32/2x"})
    CHECK_SAYS(Side::parse(text), fmt::format("of the side '{}' is not known", text));
  CHECK_SAYS(Side::parse("tpu/f32"), "tpu");
  CHECK_SAYS(of_oracle("gpt_nano", kF64, {.weights = DType::f64, .compute = DType::bf16}),
             "[compare] a side has weights of f64 and computes in bf16");
  CHECK_SAYS(of_oracle("gpt_nano", kF32, {.device = Device::cuda(7)}), "[device]");
  StateDict less = own_weights();
  less.erase("head.bias");
  CHECK_SAYS(compare(own_model(Fault::none), less, own_batch(), kF64, kF32), "head.bias");
}
TEST_CASE("report: worst first, all on demand, and JSON with everything") {
  const Comparison c = of_own(Fault::value);
  const std::string some = to_table(c, 3), all = to_table(c, -1);
  CHECK_HAS(some, "cpu/f32 against cpu/f64: ", "the first in the order of execution is forward own.middle test_passed",
            fmt::format("and {} more", c.tensors.size() - 3));
  CHECK(std::count(some.begin(), some.end(), '\n') == 1 + 1 + 3 + 1);
  CHECK(size_t(std::count(all.begin(), all.end(), '\n')) == 2 + c.tensors.size());
  CHECK_HAS(to_table(of_own(Fault::none)), "all within their tolerance");
  CHECK_HAS(to_table(of_oracle("gpt_nano", kF32, kF32)), "all equal");
  const auto j = detail::own_json(to_json(c));
  check_json(j, R"({"reference": "cpu/f64", "other": "cpu/f32", "within": false,
                    "first_apart": {"name": "own.middle test_passed"}})");
  CHECK(j["tensors"].size() == c.tensors.size());
  CHECK(j["tensors"][0]["stage"] == "weights");
  check_json(detail::own_json(to_json(of_own(Fault::nan))), R"({"first_apart": {"error": null, "within": false}})");
}
