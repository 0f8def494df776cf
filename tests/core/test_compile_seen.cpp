// The trace sees what a function reads or changes outside of its ops, or an Error names it.
#include <tapegrad/tapegrad.h>

#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include "support/files.h"
#include "support/helpers.h"

using namespace tg;
namespace {
using Results = std::vector<Tensor>;
using BitsOfAll = std::vector<std::vector<std::byte>>;
using Caller = std::function<Results(Inputs)>;
struct Wrap {
  std::optional<size_t> verify;  // none: eager
  Caller operator()(TensorFunction f, CompileOptions o = {}) const {
    o.verify = verify.value_or(0);
    return verify ? Caller(compile(f, o)) : f;
  }
};
Tensor three(float a, float b, float c) { return tensor<float>({a, b, c}, {3}); }
// A program gives the same bits, whether wrap() compiles its functions or not.
void agrees(const std::function<BitsOfAll(const Wrap&)>& program) {
  const BitsOfAll eager = program({});
  for (const size_t verify : {0, 1}) CHECK(program({verify}) == eager);
}
std::string refusal(const TensorFunction& f, const Results& in = {random({3}, 9)}, const CompileOptions& o = {}) {
  return error_of([&] { compile(f, o)(in); });
}
void in_thread(const std::function<void()>& f) { std::thread(f).join(); }
// Two models of one parameter, their optimiser, and what a trace may touch.
struct Things {
  Tensor w = random({3}, 1).requires_grad_(), c = random({3}, 2);
  AdamW adam{std::vector<Parameter>{{"w", w}}, {.lr = 0.1}};
  Rng noise{1}, twin{1};
  Params params{Device::cpu(), 3};
  nn::LoraLinear layer{nn::Linear(params.at("layer"), 3, 3), params.at("delta"), {.rank = 2}};
  Gpt gpt{params.at("gpt"), {.vocab_size = 9, .context = 4, .layers = 1, .heads = 1, .width = 4}};
  KvCache cache = KvCache::with_capacity({.layers = 1, .batch = 1, .kv_heads = 1, .capacity = 4, .head_size = 3});
  TokenData data = TokenData::from_tokens(std::vector<int64_t>(12, 1));
  Folder folder;
  int calls = 0;
  StateDict saved = adam.state();
  SplitTensor split = detail::split_weight(c);
  Things() {
    layer.delta().b.assign(random({2, 3}, 7));
    write_safetensors(folder / "a", {{"a", c}});
  }
  BitsOfAll bits() {
    BitsOfAll r;
    for (const Tensor& t : {w, c, layer.linear().weight}) r.push_back(bits_of(t));
    for (const auto& [name, t] : adam.state()) r.push_back(bits_of(t));
    r.push_back(bits_of(tensor<int64_t>({adam.steps(), int64_t(noise.offset), cache.length()}, {3})));
    return r;
  }
};
using X = const Tensor&;
struct Case {
  std::string name, says;  // says: text of its Error
  std::function<Tensor(Things&, X)> act;
  bool refused;
};
using Refused = void (*)(Things&, X);
const char* const kRead = "the host reads ";
const char* const kHostData = " of host data while it is traced";
const char* const kDraws = "draws random numbers on the host";
const char* const kFlag = "changes the gradient flag";
std::array<float, 4> to{};
const std::tuple<const char*, Refused, const char*> kRefused[] = {
    {"Tensor::data", [](Things& t, X) { t.c.data<float>(); }, kRead},
    {"Tensor::mutable_data", [](Things& t, X) { t.c.mutable_data<float>(); }, kRead},
    {"Tensor::mutable_data", [](Things&, X x) { empty(x.layout()).mutable_data<float>(); }, kHostData},
    {"Tensor::device_data", [](Things& t, X) { t.c.device_data<float>(); }, kRead},
    {"Tensor::to_vector", [](Things&, X x) { x.to_vector<float>(); }, kRead},
    {"Tensor::item", [](Things&, X x) { sum(x).item<float>(); }, kRead},
    {"to_string", [](Things&, X x) { to_string(x); }, kRead},
    {"eval", [](Things&, X x) { eval({x + 1.0}); }, kRead},
    {"Tensor::requires_grad_", [](Things& t, X) { t.c.requires_grad_(); }, kFlag},
    {"Tensor::requires_grad_", [](Things&, X x) { Tensor(x).requires_grad_(); }, kFlag},
    {"Tensor::on_grad", [](Things& t, X) { t.w.on_grad([](X g) { return g; }); }, "adds a hook to"},
    {"detail::from_bytes", [](Things&, X) { detail::from_bytes(std::as_bytes(std::span(to)), {4}, DType::f32); },
     kHostData},
    {"tensor", [](Things&, X) { three(1, 2, 3); }, kHostData},
    {"Rng::below", [](Things& t, X) { t.noise.below(3); }, kDraws},
    {"Rng::uniform", [](Things& t, X) { t.noise.uniform(); }, kDraws},
    {"Rng::normal", [](Things& t, X) { t.noise.normal(); }, kDraws},
    {"Rng::shuffle", [](Things& t, X) { t.noise.shuffle({}); }, kDraws},
    {"Rng::fill_uniform", [](Things& t, X) { t.noise.fill_uniform(to, 0, 1); }, kDraws},
    {"Rng::fill_normal", [](Things& t, X) { t.noise.fill_normal(to, 0, 1); }, kDraws},
    {"Rng::fill_truncated_normal", [](Things& t, X) { t.noise.fill_truncated_normal(to, 0, 1); }, kDraws},
    {"AnomalyScope::AnomalyScope", [](Things&, X) { AnomalyScope s; }, "[AnomalyScope] results are checked"},
    {"ObserveScope::ObserveScope", [](Things&, X) { ObserveScope s({}); }, "[ObserveScope] ops are observed"},
    {"Optimizer::set_lr", [](Things& t, X) { t.adam.set_lr(1); }, "[adamw] the learning rate is set"},
    {"Optimizer::lr", [](Things& t, X) { t.adam.lr(); }, "[adamw] the host reads the learning rate"},
    {"Optimizer::steps", [](Things& t, X) { t.adam.steps(); }, "[adamw] the host reads the number"},
    {"Optimizer::uncount_step", [](Things& t, X) { t.adam.uncount_step(); }, "[adamw] a step is uncounted"},
    {"Optimizer::load_state", [](Things& t, X) { t.adam.load_state(t.saved, 0); }, "[adamw] a state is loaded"},
    {"nn::LoraLinear::merge", [](Things& t, X) { t.layer.merge(); }, "[lora] an adapter is merged"},
    {"nn::LoraLinear::unmerge", [](Things& t, X) { t.layer.unmerge(); }, "[lora] an adapter is unmerged"},
    {"KvCache::length", [](Things& t, X) { t.cache.length(); }, kRead},
    {"detail::split_weight", [](Things& t, X) { detail::split_weight(t.c); }, kRead},
    {"detail::join_weight", [](Things& t, X) { detail::join_weight(t.split); }, kRead},
    {"adamw_step", [](Things& t, X x) { adamw_step(t.c, x * 0.0, x * 1.0, x, {}, 1, 1); }, "would be step 1"},
    {"sgd_step",
     [](Things& t, X x) {
       sgd_step({.w = {&t.c, 1}, .grad = {&x, 1}}, {}, 1, 1);
     },
     "would be step 1"},
    {"SafetensorsFile::tensor", [](Things& t, X) { SafetensorsFile(t.folder / "a").tensor("a"); }, kHostData},
    {"write_safetensors",
     [](Things& t, X x) {
       write_safetensors(t.folder / "b", {{"x", x}});
     },
     kRead},
    {"SequentialBatches::at", [](Things& t, X) { SequentialBatches(t.data, 1, 3).at(0); }, kHostData},
    {"ShuffledBatches::next", [](Things& t, X) { ShuffledBatches(t.data, 1, 3, Rng{1}).next(); }, "host"},
    {"generate", [](Things& t, X) { generate(t.gpt, std::vector<int64_t>{1}, 2); }, "host"},
    {"Params::get", [](Things& t, X) { t.params.get("n", {3}, Init::normal(1)); }, "draws from a generator"},
};
template <class Scope, class... A> Tensor within(Things& t, X x, A... arguments) {
  const Scope scope(arguments...);
  return t.w.detach() * x;
}
std::vector<Case> cases() {
  std::vector<Case> r;
  for (const auto& [name, f, says] : kRefused)
    r.push_back({name, says, [f](Things& t, X x) { return f(t, x), x; }, true});
  const auto seen = [&](const char* name, auto f) { r.push_back({name, "", f, false}); };
  seen("Tensor::assign", [](Things& t, X x) { return t.c.assign(t.c + x), t.c * 2.0; });
  seen("Tensor::detach", [](Things& t, X) { return t.w.detach(); });
  seen("Rng::take", [](Things& t, X x) { return dropout(x, 0.5, t.noise) + rand({3}, t.twin); });
  seen("Optimizer::step", [](Things& t, X x) { return t.adam.step(backward(sum(t.w * x))), t.w.detach(); });
  seen("Optimizer::state", [](Things& t, X) { return t.adam.state().at("w.m"); });
  seen("AdamW::backward_and_step", [](Things& t, X x) { return t.adam.backward_and_step(sum(t.w * x)), x; });
  seen("KvCache::advance", [](Things& t, X x) { return t.cache.advance(1), x; });
  seen("KvCache::clear", [](Things& t, X x) { return t.cache.advance(2), t.cache.clear(), x; });
  seen("KvCache::set_lengths", [](Things& t, X x) { return t.cache.set_lengths(full({1}, 2, DType::i64)), x; });
  seen("structure_changed", [](Things& t, X x) { return structure_changed(), x * double(++t.calls); });
  seen("Params::assign", [](Things& t, X x) { return t.params.assign(t.params.state()), x; });
  seen("NoGradScope::NoGradScope", [](Things& t, X x) { return within<NoGradScope>(t, x); });
  seen("EnableGradScope::EnableGradScope", [](Things& t, X x) { return within<EnableGradScope>(t, x); });
  seen("LazyScope::LazyScope", [](Things& t, X x) { return within<LazyScope>(t, x); });
  seen("RecomputeScope::RecomputeScope", [](Things& t, X x) { return within<RecomputeScope>(t, x); });
  seen("MatmulPrecisionScope::MatmulPrecisionScope",
       [](Things& t, X x) { return within<MatmulPrecisionScope>(t, x, MatmulPrecision::high); });
  return r;
}
}  // namespace

TEST_CASE("functions of other headers inside a compiled one: each is seen or refused, as compile_state.txt says") {
  std::map<std::string, std::set<std::string>> tested, listed;
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    tested[c.refused ? "refused" : "seen"].insert(c.name);
    const auto options = [](Things& t) { return CompileOptions{.generators = {&t.noise, &t.twin}}; };
    if (!c.refused) {
      agrees([&](const Wrap& wrap) {
        Things t;
        const Caller f = wrap([&](Inputs x) { return Results{x[0] * 1.0 + c.act(t, x[0])}; }, options(t));
        BitsOfAll r;
        for (uint64_t i = 0; i < 3; ++i) {
          r.push_back(bits_of(f(Results{random({3}, i)})[0]));
          for (auto& b : t.bits()) r.push_back(b);
        }
        return r;
      });
      continue;
    }
    for (const bool swallowed : {false, true}) {
      Things t;
      const BitsOfAll before = t.bits();
      const std::string message = refusal(
          [&](Inputs x) {
            try {
              return Results{x[0] + c.act(t, x[0])};
            } catch (const std::exception&) {
              if (!swallowed) throw;
            }
            return Results{matmul(x[0], x[0])};  // fails, too
          },
          {random({3}, 9)}, options(t));
      CHECK_HAS(message, c.says);
      CHECK(t.bits() == before);
    }
  }
  std::ifstream file(TG_TEST_DATA "/../core/compile_state.txt");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, prefix;
    words >> kind;
    for (std::string name; words >> name;)
      name.ends_with("::") ? void(prefix = name) : void(listed[kind].insert(prefix + name));
  }
  for (const std::string kind : {"seen", "refused"}) {
    CAPTURE(kind);
    for (const std::string& name : tested[kind])
      CHECK_MESSAGE(listed[kind].erase(name) + name.starts_with("detail::"), name);
    CHECK_MESSAGE(listed[kind].empty(), *listed[kind].begin());
  }
}

TEST_CASE("equal inputs, and inputs that are captured, are one variable: gradients are those of all uses") {
  agrees([](const Wrap& wrap) {
    Tensor a = three(1, 2, 3).requires_grad_(), b = three(4, 5, 6).requires_grad_(), c = three(7, 8, 9);
    const Caller both = wrap([](Inputs x) { return grad(sum(x[0] * x[1] * x[2]), {x[0]}); });
    const Caller one = wrap([&](Inputs x) {
      const GradMap g = backward(sum(x[0] * a * a + x[1]));
      return Results{g[a], g[x[0]]};
    });
    const auto zero = wrap([&](Inputs x) {
      return Results{
          backward(sum(detail::cast_parameter(x[0], DType::bf16) * detail::cast_parameter(a, DType::bf16)))[a]};
    });
    BitsOfAll r;
    for (int i = 0; i < 2; ++i)
      for (const Results& in : {Results{a, a, c}, {a, b, c}, {b, a, b}, {b, b, b}, {a, c, a}})
        for (const auto& f : {both, one, zero})
          for (const Tensor& t : f(in)) r.push_back(bits_of(t));
    return r;
  });
  Tensor p = three(1, 2, 3).requires_grad_().label("p"), q = three(1, 2, 3).requires_grad_();
  Sgd sgd({{"p", p}}, {.lr = 1});
  const auto step = [&](Inputs x) { return sgd.step(backward(sum(x[0] * x[0]))), Results{}; };
  CHECK_HAS(refusal(step, {p}), "[compile] input 0 is 'p' (3) f32, which the function updates");
  const Tensor taped = q * 2.0;
  const auto loss = [&](Inputs x) { return grad(sum(x[0] * q), {q}); };
  CHECK_HAS(refusal(loss, {taped}), "reads input 0, (3) f32, which ops outside of it recorded on the tape");
  const Compiled f = compile(loss);
  f({q});
  CHECK_HAS(error_of([&] { f({taped}); }), "recorded on the tape");
}
TEST_CASE("an input whose variable is assigned at any time is an Error, also if it gets its former value back") {
  const Tensor c = three(1, 2, 3), d = three(4, 5, 6);
  const Compiled f = compile([&](Inputs x) {
    const Tensor old = c.detach();
    c.assign(c * 2.0);
    const Tensor y = x[0] + 0.0;
    c.assign(old);
    return Results{y};
  });
  CHECK_HAS(error_of([&] { f({c}); }), "input 0 is (3) f32, which the function updates");
  CHECK(bits_of(f({d})[0]) == bits_of(d));
  CHECK_HAS(error_of([&] { f({c}); }), "input 0 is (3) f32, which the function updates");
}
TEST_CASE("hooks of inputs and captured tensors run in the trace, and later ones begin another") {
  agrees([](const Wrap& wrap) {
    Tensor a = three(1, 2, 3).requires_grad_(), b = three(4, 5, 6).requires_grad_(),
           w = three(7, 8, 9).requires_grad_();
    const auto add = [](Tensor& t, double x) { t.on_grad([x](const Tensor& g) { return g * x; }); };
    const Caller f = wrap([&](Inputs x) {
      GradMap g = backward(sum(x[0] * w * w));
      return Results{g[x[0]], g[w]};
    });
    BitsOfAll r;
    const auto call = [&] {
      for (const Tensor& in : {a, b})
        for (const Tensor& t : f(Results{in})) r.push_back(bits_of(t));
    };
    add(a, 2), call();
    add(b, 3), call();
    add(w, 5), call();
    add(a, 7), add(w, 11), call();
    return r;
  });
}
TEST_CASE("generators are known by address: equal states, states set outside and inside, copies, unlisted ones") {
  agrees([](const Wrap& wrap) {
    Rng a{1}, b{1};
    const TensorFunction draws = [&](Inputs x) {
      Rng copy = b;
      return Results{x[0] + rand({3}, a), dropout(x[0], 0.5, b), rand({5}, b), rand({3}, copy),
                     recompute([](Inputs y, Rng* r) { return Tensors{dropout(y[0], 0.5, *r)}; }, x, &b)[0]};
    };
    const Caller f = wrap(draws, {.generators = {&a, &b}});
    BitsOfAll r;
    for (int i = 0; i < 5; ++i) {
      if (i == 3) b = Rng{7, 3};
      for (const Tensor& t : f(Results{three(1, 2, 3)})) r.push_back(bits_of(t));
      r.push_back(
          bits_of(tensor<int64_t>({int64_t(a.seed), int64_t(a.offset), int64_t(b.seed), int64_t(b.offset)}, {4})));
    }
    return r;
  });
  Rng a{1}, other{1};
  const CompileOptions options{.generators = {&a}};
  const auto refuses = [&](const std::function<void()>& f, const std::string& what, const CompileOptions& o) {
    CHECK_HAS(refusal([&](Inputs x) { return f(), Results{x[0] + rand({3}, a)}; }, {three(1, 2, 3)}, o), what);
    CHECK(a == Rng{1});
  };
  for (const Rng& state : {Rng{1}, Rng{2}, Rng{1, 5}})
    refuses([&] { a = state; }, "generator 0 of CompileOptions::generators was set to another state inside", options);
  refuses([&] { rand({3}, other); }, "draws from a generator (seed 1, offset 0) that is not among the 1", options);
  CHECK_HAS(error_of([&] { compile([](Inputs) { return Results{}; }, {.generators = {&a, &a}}); }), "is listed twice");
  other = Rng{1};
  double drawn = 0;  // drawn on the host, allowed by CompileOptions::constants
  compile([&](Inputs x) { return drawn = a.uniform() + a.split(3).normal(), Results(x.begin(), x.end()); },
          {.generators = {&a}, .constants = true})({});
  CHECK(drawn == other.uniform() + Rng{1}.split(3).normal());
}
TEST_CASE("what another thread does with tensors of a trace is an Error that names the tensor") {
  const Tensor p = three(1, 2, 3).label("p");
  Tensor y, z;
  const auto fails = [&](const std::function<void(const Tensor&)>& f, const std::string& what) {
    const Tensor c = three(4, 5, 6);
    const auto g = [&](Inputs x) {
      c.assign(tanh(x[0]));
      std::string error;
      in_thread([&] { error = error_of([&] { f(c); }); });
      if (error != "no error") throw Error(Error::Kind::state, error);
      return Results{x[0] * y};
    };
    CHECK_HAS(refusal(g, {p}), what);
    CHECK(values(c) == std::vector<float>{4, 5, 6});
  };
  in_thread([&] { z = random({3}, 5); });  // this thread's ids are above those of the next
  for (int i = 0; i < 2; ++i) fails([&](const Tensor&) { y = tanh(p); }, "reads (3) f32, which another thread made");
  fails([&](const Tensor& c) { y = exp(c); }, "[tanh] cannot be read: it belongs to the trace of a compiled function");
  fails([&](const Tensor& c) { sum(c).item<float>(); }, "it belongs to the trace of a compiled function");
  fails([&](const Tensor& c) { c.data<float>(); }, "it belongs to the trace of a compiled function");
  CHECK_HAS(refusal([](Inputs x) {
              in_thread([y = exp(x[0])] { error_of([&] { y.data<float>(); }); });
              return Results{x[0]};
            }),
            "[compile] another thread read a tensor of the trace");
  const Tensor w = three(1, 2, 3).label("w");
  CHECK_HAS(refusal([&](Inputs x) {
              const Tensor r = x[0] * w;
              in_thread([&] { w.assign(p); });
              return Results{r};
            }),
            "[compile] another thread updated 'w' (3) f32");
}
TEST_CASE("state: handles that share a variable are Errors; parameters that are pending are none") {
  Tensor h = three(1, 2, 3), same = h, other = h.detach();
  const auto two = [&](Inputs x) { return h = h + x[0], Results{h + same}; };
  CHECK_HAS(refusal(two, {other}, {.state = {&h, &same}}), "states 0 and 1 are handles of one tensor, (3) f32");
  CHECK_HAS(refusal(two, {other}, {.state = {&h}}),
            "the function replaces state 0, (3) f32, and uses it through another");
  const auto assigns = [&](Inputs x) { return same.assign(x[0]), Results{h * 1.0}; };
  CHECK_HAS(refusal(assigns, {other}, {.state = {&h}}), "the function assigns state 0, (3) f32, and uses it through");
  CHECK(h.id() == same.id());
  same = h.detach();
  const Compiled f = compile(two, {.state = {&h}});
  for (int i = 2; i < 5; ++i) CHECK(values(f({other})[0])[0] == float(i + 1));
  const Compiled g = compile([&](Inputs x) { return h.assign(h + x[0]), Results{h * 1.0}; }, {.state = {&h}});
  for (int i = 5; i < 8; ++i) CHECK(values(g({other})[0])[0] == float(i));
  agrees([](const Wrap& wrap) {
    Things t;
    const Caller pending = wrap([&](Inputs x) { return Results{backward(sum(t.w * x[0] * t.w))[t.w]}; });
    BitsOfAll r;
    for (uint64_t i = 0; i < 3; ++i) {
      under<LazyScope>([&] { t.adam.step(backward(sum(t.w * t.w))); });
      r.push_back(bits_of(pending(Results{random({3}, i)})[0]));
    }
    return r;
  });
}
