// Sgd and Muon against torch.optim (tests/data/make_fixtures.py), and the shared code of all optimisers.
#include <tapegrad/tapegrad.h>

#include <cmath>
#include <memory>

#include "support/files.h"
#include "support/helpers.h"

using namespace tg;

namespace {
std::vector<ParameterGroup> groups_of(const Json& c) {
  std::vector<ParameterGroup> r;
  if (!c.contains("groups")) return r;
  for (const Json& g : c.at("groups")) {
    ParameterGroup& x = r.emplace_back();
    x.pattern = g[0].get<std::string>();
    const auto number = [&](const char* key) -> std::optional<double> {
      if (!g[1].contains(key)) return {};
      return g[1].at(key).get<double>();
    };
    x.lr_scale = number("lr").value_or(1);
    x.weight_decay = number("weight_decay"), x.beta1 = number("beta1"), x.beta2 = number("beta2");
  }
  return r;
}
std::unique_ptr<Optimizer> optimizer_of(const std::string& name, const Json& c, std::vector<Parameter> p, DType ns) {
  const auto number = [&](const char* key) { return c.contains(key) ? c.at(key).get<double>() : 0; };
  const bool nesterov = c.contains("nesterov") && c.at("nesterov").get<bool>();
  if (name.starts_with("adamw")) {
    AdamWConfig a{.lr = number("lr"), .beta1 = number("beta1"), .beta2 = number("beta2"), .eps = number("eps")};
    a.weight_decay = number("weight_decay"), a.decay_all = true;
    return std::make_unique<AdamW>(std::move(p), a, groups_of(c));
  }
  if (name.starts_with("sgd")) {
    SgdConfig s{.lr = number("lr"), .momentum = number("momentum"), .dampening = number("dampening")};
    s.weight_decay = number("weight_decay"), s.decay_all = true, s.nesterov = nesterov;
    return std::make_unique<Sgd>(std::move(p), s, groups_of(c));
  }
  MuonConfig m{.lr = number("lr"), .momentum = number("momentum"), .nesterov = nesterov};
  m.weight_decay = number("weight_decay"), m.ns_dtype = ns, m.others = {"head.*"};
  m.scale = c.at("scale") == "rms" ? MuonScale::rms : MuonScale::original;
  return std::make_unique<Muon>(std::move(p), m);
}
Tensor row(const Tensor& all, int64_t i) { return squeeze(slice(all, 0, i, i + 1), 0); }

// A small net, whose last parameter some losses do not reach, and optimisers of each kind.
struct Net {
  std::vector<Parameter> params;
  std::unique_ptr<Optimizer> optimizer;
  explicit Net(const std::string& kind) {
    const auto add = [&](const char* name, const Shape& s, uint64_t seed) {
      params.push_back({name, random(s, seed).detach().requires_grad_().label(name)});
    };
    add("fc.weight", {6, 4}, 1), add("fc.bias", {6}, 2), add("extra.weight", {3, 6}, 3), add("gain", {6}, 4);
    const std::vector<ParameterGroup> groups{{.pattern = "*.bias", .lr_scale = 2, .weight_decay = 0.5},
                                             {.pattern = "extra.*", .lr_scale = 0.5}};
    const auto moments = kind.ends_with("bf16") ? std::optional(DType::bf16) : std::nullopt;
    if (kind.starts_with("adamw"))
      optimizer =
          std::make_unique<AdamW>(params, AdamWConfig{.lr = 0.05, .weight_decay = 0.1, .moments = moments}, groups);
    if (kind == "sgd")
      optimizer = std::make_unique<Sgd>(
          params, SgdConfig{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}, groups);
    if (kind.starts_with("muon"))
      optimizer = std::make_unique<Muon>(
          params, MuonConfig{.lr = 0.05, .weight_decay = 0.1, .adamw = {.lr = 0.01, .moments = moments}}, groups);
  }
  Tensor loss(const Tensor& x, bool extra) const {
    Tensor y = tanh(linear(x, params[0].tensor, params[1].tensor)) * params[3].tensor;
    if (extra) y = linear(y, params[2].tensor);
    return sum(y * y);
  }
  std::vector<std::vector<std::byte>> bits() const {
    std::vector<std::vector<std::byte>> r;
    for (const Parameter& p : params) r.push_back(bits_of(p.tensor));
    for (const auto& [name, t] : optimizer->state()) r.push_back(bits_of(t));
    return r;
  }
};
const char* const kOptimizers[] = {"adamw", "adamw bf16", "sgd", "muon", "muon bf16"};
}  // namespace

TEST_CASE("SGD, groups of AdamW and SGD, skipped parameters and Muon equal torch in every step") {
  const SafetensorsFile file(TG_TEST_DATA "/optimizers.safetensors");
  const auto config = detail::own_json(file.metadata().at("config"));
  CHECK(config.at("cases").size() == 10);
  std::map<std::string, double> worst;
  for (const auto& [name, c] : config.at("cases").items())
    for (const std::string kind : {"f32", "f64", "bf16"})
      for (const Store how : kStores) {
        CAPTURE_ALL(name, kind);
        std::vector<Parameter> params;
        for (const char* p : {"tall.weight", "wide.weight", "row.weight", "q.weight", "k.weight", "v.weight",
                              "tall.bias", "head.weight"})
          if (file.has(fmt::format("{}.{}.{}", name, kind, p))) {
            const Tensor init = file.tensor(fmt::format("{}.init", p)).to(kind == "f32" ? DType::f32 : DType::f64);
            params.push_back({p, stored(init, how).detach().requires_grad_()});
          }
        if (params.empty()) continue;  // empty: only Muon supports bf16
        const DType ns = kind == "f32" ? DType::f32 : kind == "f64" ? DType::f64 : DType::bf16;
        if (name.starts_with("muon"))  // a parameter for AdamW
          params.push_back({"head.weight", file.tensor("head.weight.init").detach().requires_grad_()});
        const auto opt = optimizer_of(name, c, params, ns);
        const double lr = opt->lr();
        for (int64_t step = 0; step < int64_t(config.at("lrs").size()); ++step) {
          opt->set_lr(lr * config.at("lrs")[size_t(step)].get<double>());
          GradMap grads;
          for (const Parameter& p : params) {
            const Json* skip = c.contains("skip") ? c.at("skip").find(p.name) : nullptr;
            bool skipped = false;
            for (size_t i = 0; skip && i < skip->size(); ++i) skipped |= (*skip)[i].get<int64_t>() == step;
            if (!skipped)
              grads.map()[p.tensor.id()] = stored(row(file.tensor(p.name + ".grad"), step).to(p.tensor.dtype()), how);
          }
          opt->step(grads, {.missing_grad = c.contains("skip") ? MissingGrad::skip : MissingGrad::error});
          for (const Parameter& p : params) {
            const std::string key = fmt::format("{}.{}.{}", name, kind, p.name);
            if (!file.has(key)) continue;
            double& w = worst[name.substr(0, 4) + kind];
            w = std::max(w, distance(p.tensor, row(file.tensor(key), step)));
          }
        }
      }
  for (const auto& [what, apart] : worst) {
    CAPTURE_ALL(what, apart);
    // Roundings differ in order; in bf16 there are 15 matmuls of 8 bits each.
    CHECK(apart <= (has(what, "f64") ? 1e-12 : has(what, "bf16") ? 0.02 : 2e-5));
  }
}

TEST_CASE("groups: the first that matches counts, and one without a parameter is an error that lists the names") {
  const auto param = [](const char* name, const Shape& s) { return Parameter{name, random(s, 1).requires_grad_()}; };
  const std::vector<Parameter> params{param("a.weight", {2, 2}), param("a.bias", {2}), param("b.bias", {2})};
  const auto refused = [&](std::vector<ParameterGroup> g) {
    return error_of([&] { AdamW(params, {}, std::move(g)); });
  };
  CHECK_HAS(refused({{.pattern = "*.bais"}}),
            "[adamw] the group '*.bais' has no parameter. Its pattern must match one that no earlier group has taken; "
            "* stands for any characters. The parameters are a.weight, a.bias, b.bias.");
  CHECK_HAS(refused({{.pattern = "*"}, {.pattern = "*.bias"}}), "the group '*.bias' has no parameter");
  CHECK(refused({{.pattern = "a.bias"}, {.pattern = "*.bias"}}) == "no error");
  CHECK_HAS(refused({{.pattern = "*", .lr_scale = 2, .lr = 1}}),
            "[adamw] the group '*' has an lr of 1, and lr is 0.0003, its lr_scale 2. It needs lr above 0");
  CHECK_HAS(refused({{.pattern = "*", .lr_scale = -1}}), "[adamw] lr_scale of the group '*' is -1.");
  CHECK_HAS(refused({{.pattern = "*", .weight_decay = NAN}}), "[adamw] weight_decay of the group '*' is nan.");
  CHECK_HAS(refused({{.pattern = "*", .beta1 = 1}}), "[adamw] beta1 of the group '*' is 1. It must be in [0, 1).");
  CHECK_HAS(refused({{.pattern = "*", .beta2 = -1}}), "[adamw] beta2 of the group '*' is -1.");
  CHECK_SAYS(Sgd(params, {}, {{.pattern = "*.bias", .beta2 = 0.5}}),
             "[sgd] the group '*.bias' sets beta1 or beta2, which none of its parameters uses here.");
  CHECK_SAYS(Muon(params, {.others = {"*.bias"}}, {{.pattern = "a.weight", .beta1 = 0.5}}),
             "[muon] the group 'a.weight' sets beta1 or beta2");
  CHECK(error_of([&] { Muon(params, {}, {{.pattern = "a.*", .beta1 = 0.5}}); }) == "no error");
}

TEST_CASE(
    "a parameter that backward does not reach: an error that names the ways out, or it stays, or its gradient is 0") {
  for (const std::string kind : kOptimizers) {
    CAPTURE(kind);
    const Tensor x = random({5, 4}, 7);
    Net net(kind);
    const auto before = net.bits();
    const std::string message = error_of([&] { net.optimizer->step(backward(net.loss(x, false))); });
    CHECK_HAS(message,
              fmt::format("[{}] 'extra.weight' (3, 6) has no gradient: the loss does not depend on it.",
                          net.optimizer->name()),
              ".missing_grad = MissingGrad::skip (it stays as it is) or MissingGrad::zero (its gradient is 0)");
    CHECK_SAYS(net.optimizer->step({}, {.missing_grad = MissingGrad::skip}),
               fmt::format("[{}] none of the 4 parameters has a gradient.", net.optimizer->name()));
    CHECK(net.bits() == before);
    CHECK_SAYS(net.optimizer->uncount_step(), "no step is counted");
    CHECK(net.optimizer->steps() == 0);
    net.optimizer->step(backward(net.loss(x, true)), {.clip_norm = 1});
    Net zero(kind), by_hand(kind);
    for (Net* n : {&zero, &by_hand}) n->optimizer->step(backward(n->loss(x, true)), {.clip_norm = 1});
    const auto extra = bits_of(net.params[2].tensor);
    const StateDict old = net.optimizer->state();
    net.optimizer->step(backward(net.loss(x, false)), {.clip_norm = 1, .missing_grad = MissingGrad::skip});
    CHECK(net.optimizer->steps() == 2);
    CHECK(bits_of(net.params[2].tensor) == extra);
    for (const auto& [name, t] : net.optimizer->state()) {
      CAPTURE(name);
      CHECK((bits_of(t) == bits_of(old.at(name))) == name.starts_with("extra."));
    }
    zero.optimizer->step(backward(zero.loss(x, false)), {.clip_norm = 1, .missing_grad = MissingGrad::zero});
    GradMap grads = backward(by_hand.loss(x, false));
    grads.map()[by_hand.params[2].tensor.id()] = zeros_like(by_hand.params[2].tensor);
    by_hand.optimizer->step(grads, {.clip_norm = 1});
    CHECK(zero.bits() == by_hand.bits());
    CHECK(bits_of(zero.params[2].tensor) != extra);  // the weight decays, and moves by momentum
    CHECK(bits_of(zero.params[0].tensor) == bits_of(net.params[0].tensor));
  }
}

TEST_CASE("a compiled step equals an eager and a lazy one, with groups, clipping and a changing rate, and counts") {
  for (const std::string kind : kOptimizers)
    for (const MissingGrad missing_grad : {MissingGrad::error, MissingGrad::skip, MissingGrad::zero}) {
      CAPTURE_ALL(kind, int(missing_grad));
      const bool extra = missing_grad == MissingGrad::error;
      Net eager(kind), compiled(kind), lazy(kind);
      const auto step = [&](Net& n, const Tensor& x) {
        n.optimizer->step(backward(n.loss(x, extra)), {.clip_norm = 0.5, .missing_grad = missing_grad});
        return std::vector<Tensor>{};
      };
      const Compiled replayed = compile([&](Inputs in) { return step(compiled, in[0]); });
      for (int i = 0; i < 5; ++i) {
        const Tensor x = random({5, 4}, 10 + uint64_t(i));
        for (Net* n : {&eager, &compiled, &lazy}) n->optimizer->set_lr(i < 3 ? 0.05 : 0.05 / i);
        step(eager, x);
        replayed({x});
        {
          LazyScope scope;
          step(lazy, x);
          for (const Parameter& p : lazy.params) eval({p.tensor});
        }
        CHECK(compiled.bits() == eager.bits());
        CHECK(lazy.bits() == eager.bits());
        CHECK(compiled.optimizer->steps() == i + 1);
      }
      CHECK(replayed.stats().traces == 1);
    }
}

TEST_CASE("after an Error in a compiled step, weights, state and number of steps are as before") {
  for (const std::string kind : kOptimizers) {
    CAPTURE(kind);
    Net net(kind), other(kind);
    const Tensor table = random({4, 4}, 9);
    bool fails = true;
    const Compiled step = compile([&](Inputs ids) {
      const Tensor x = embedding(ids[0], table);
      net.optimizer->step(backward(net.loss(x, true)));
      if (fails) matmul(x, x);
      return std::vector<Tensor>{};
    });
    const Tensor good = tensor<int32_t>({0, 3, 1}, {3}), bad = tensor<int32_t>({0, 4, 1}, {3});
    const auto unchanged = [&](const Tensor& ids, const std::string& what) {
      const auto bits = net.bits();
      const int64_t steps = net.optimizer->steps();
      CHECK_SAYS(step({ids}), what);
      CHECK(net.bits() == bits);
      CHECK(net.optimizer->steps() == steps);
    };
    unchanged(good, "[matmul]");
    fails = false;
    unchanged(bad, "[embedding]");
    step({good});
    unchanged(bad, "[embedding]");
    step({good});
    for (int i = 0; i < 2; ++i) other.optimizer->step(backward(other.loss(embedding(good, table), true)));
    CHECK(net.bits() == other.bits());
    CHECK(net.optimizer->steps() == 2);
  }
}

TEST_CASE("state of each optimiser: its names, and a run goes on from it bit for bit") {
  const std::map<std::string, size_t> tensors{{"adamw", 8}, {"sgd", 4}, {"muon", 6}};  // key: Optimizer::name()
  for (const std::string kind : kOptimizers) {
    CAPTURE(kind);
    Net first(kind), second(kind);
    const auto step = [](Net& n, int i) { n.optimizer->step(backward(n.loss(random({5, 4}, uint64_t(i)), true))); };
    for (int i = 0; i < 3; ++i) step(first, i);
    for (size_t k = 0; k < first.params.size(); ++k) second.params[k].tensor.assign(first.params[k].tensor.detach());
    const StateDict saved = first.optimizer->state();
    const std::string name(second.optimizer->name());
    CHECK(kind.starts_with(name));
    CHECK(saved.size() == tensors.at(name));
    CHECK(saved.contains(name == "adamw" ? "fc.weight.m" : "fc.weight.momentum"));
    CHECK(saved.contains(name == "sgd" ? "gain.momentum" : "gain.v"));
    for (const auto& [key, layout] : second.optimizer->state_layouts()) {
      CHECK(saved.at(key).dtype() == layout.dtype);
      CHECK((layout.dtype == DType::bf16) == (kind.ends_with("bf16") && !key.ends_with("momentum")));
    }
    second.optimizer->load_state(saved, first.optimizer->steps());
    for (int i = 3; i < 6; ++i) step(first, i), step(second, i);
    CHECK(first.bits() == second.bits());
    CHECK(second.optimizer->steps() == 6);
    const std::string message = error_of([&] {
      Net other(kind);
      StateDict bad = saved;
      bad["x.m"] = zeros({1});
      other.optimizer->load_state(bad, 3);
    });
    CHECK_HAS(message, fmt::format("[{}] 'x.m' of the state belongs to none of the 4 parameters.", name));
  }
  CHECK(Sgd({{"w", random({2}, 1).requires_grad_()}}).state().empty());
}

TEST_CASE("what Sgd and Muon refuse") {
  const std::vector<Parameter> params{{"w", random({2, 2}, 1).requires_grad_()},
                                      {"b", random({2}, 1).requires_grad_()}};
  const auto sgd = [&](const SgdConfig& c) { return error_of([&] { Sgd(params, c); }); };
  CHECK_HAS(sgd({.lr = NAN}), "[sgd] lr is nan. It must be finite and 0 or more.");
  CHECK_HAS(sgd({.momentum = 1}), "[sgd] momentum is 1. It must be in [0, 1).");
  CHECK_HAS(sgd({.dampening = 0.5}), "[sgd] dampening is 0.5 and momentum 0. There is no buffer to dampen");
  CHECK_HAS(sgd({.weight_decay = -1}), "[sgd] weight_decay is -1.");
  CHECK_HAS(sgd({.nesterov = true}), "[sgd] nesterov with momentum 0 and dampening 0. It needs momentum above 0");
  CHECK_HAS(sgd({.momentum = 0.9, .dampening = 0.1, .nesterov = true}), "and dampening 0.1. It needs");
  const auto muon = [&](const MuonConfig& c) { return error_of([&] { Muon(params, c); }); };
  CHECK(muon({}) == "no error");
  CHECK_HAS(muon({.lr = 0}), "[muon] lr is 0. It must be finite and more than 0");
  CHECK_HAS(muon({.momentum = -0.1}), "[muon] momentum is -0.1.");
  CHECK_HAS(muon({.ns_steps = 0}), "[muon] ns_steps is 0. It must be from 1 to 100.");
  CHECK_HAS(muon({.ns_dtype = DType::f16}), "[muon] ns_dtype is f16. It must be bf16, f32 or f64.");
  CHECK_HAS(muon({.others = {"wte"}}), "[muon] 'wte' of `others` matches no parameter.");
  CHECK_HAS(muon({.others = {"w"}}),
            "[muon] none of the 2 parameters is a matrix that `others` does not exclude. Use AdamW");
  CHECK_HAS(muon({.adamw = {.beta1 = 2}}), "[adamw] beta1 is 2.");
  for (const Dims& parts : {Dims{1, 2}, Dims{2, 0}, Dims{3, -1}})
    CHECK_SAYS(Muon({{"w", params[0].tensor, parts}}), "[muon] 'w' (2, 2) has parts of");
  Muon opt(params);
  GradMap grads;
  grads.map()[params[0].tensor.id()] = zeros({2, 3});
  grads.map()[params[1].tensor.id()] = zeros({2});
  const auto before = bits_of(params[1].tensor);
  CHECK_SAYS(opt.step(grads),
             "[muon] the gradient of 'w' is (2, 3) f32, and the parameter (2, 2) f32. Their shapes and dtypes must");
  CHECK(bits_of(params[1].tensor) == before);
  CHECK(opt.matrices() == std::vector<std::string>{"w"});
}

TEST_CASE("groups: an lr of its own is that of another optimiser, under Muon too") {
  const Tensor start = random({4, 3}, 1), g = random({4, 3}, 2);
  const auto moved = [&](const char* name, const auto& make) {
    const std::vector<Parameter> p{{name, start.detach().contiguous().requires_grad_()},
                                   {"w", (start + 0.0).requires_grad_()}};
    const auto opt = make(p);
    GradMap grads = backward(sum(p[0].tensor * g) + sum(p[1].tensor * g));
    opt->step(grads), opt->set_lr(opt->lr() / 2), opt->step(grads);
    return p[0].tensor;
  };
  const std::vector<ParameterGroup> groups{{.pattern = "*a*", .lr = 0.3}};
  const AdamWConfig adam{.lr = 0.1};
  const auto with = [](auto config, std::vector<ParameterGroup> own = {}) {
    return [=](const std::vector<Parameter>& p) {
      if constexpr (std::is_same_v<decltype(config), AdamWConfig>)
        return std::make_unique<AdamW>(p, config, own);
      else if constexpr (std::is_same_v<decltype(config), SgdConfig>)
        return std::make_unique<Sgd>(p, config, own);
      else
        return std::make_unique<Muon>(p, config, own);
    };
  };
  CHECK(distance(moved("a", with(adam, groups)), moved("a", with(AdamWConfig{.lr = 0.3}))) <= 1e-6);
  CHECK(distance(moved("a", with(SgdConfig{.lr = 0.1}, groups)), moved("a", with(SgdConfig{.lr = 0.3}))) <= 1e-6);
  const MuonConfig muon{.lr = 0.02, .ns_dtype = DType::f32, .others = {"a"}, .adamw = adam};
  CHECK(distance(moved("a", with(muon, groups)), moved("a", with(AdamWConfig{.lr = 0.3}))) <= 1e-6);
  const MuonConfig matrices{.lr = 0.02, .ns_dtype = DType::f32}, fast{.lr = 0.3, .ns_dtype = DType::f32};
  CHECK(distance(moved("a", with(matrices, groups)), moved("a", with(fast))) <= 1e-6);
}

TEST_CASE("orthogonalize: singular values near 1 in the directions of x, at any scale, tall, wide and tiny") {
  for (const Shape& s : {Shape{20, 12}, Shape{12, 20}, Shape{16, 16}})
    for (const double scale : {1e-4, 1.0, 1e6}) {
      CAPTURE(s);
      const Tensor x = random<double>(s, 3) * scale, y = detail::orthogonalize(x, 5, DType::f64);
      CHECK(y.shape() == s);
      CHECK(distance(y, transpose(detail::orthogonalize(transpose(x), 5, DType::f64))) <= 1e-12);
      const Tensor gram = s[0] > s[1] ? matmul(y, y, {.trans_a = true}) : matmul(y, y, {.trans_b = true});
      // Mean and the variance of the squared singular values.
      const double n = double(gram.size(0)), mean = sum(y * y).item<double>() / n;
      CHECK(mean == doctest::Approx(1).epsilon(0.3));
      CHECK(sum(gram * gram).item<double>() / n - mean * mean < 0.1);
      // y and x have one set of singular vectors: x^T y is symmetric, with eigenvalues of at least 0.
      const Tensor product = matmul(x, y, {.trans_a = true});
      CHECK(distance(product, transpose(product)) <= 1e-9);
    }
  // The other coefficients make all singular values 1, if none is small.
  const Tensor eye = tril(triu(ones({12, 12}, DType::f64))), x = eye + random<double>({12, 12}, 4) * 0.1;
  const Tensor y = detail::orthogonalize(x, 12, DType::f64, {2, -1.5, 0.5});
  CHECK(distance(matmul(y, y, {.trans_b = true}), eye) <= 1e-12);
  for (const DType d : {DType::bf16, DType::f32}) {
    CHECK(values(detail::orthogonalize(zeros({3, 2}), 5, d)) == std::vector<float>(6, 0));
    CHECK(detail::orthogonalize(zeros({0, 4}), 5, d).shape() == Shape{0, 4});
    CHECK(detail::orthogonalize(zeros({4, 0}), 5, d).shape() == Shape{4, 0});
    const auto one = values(detail::orthogonalize(tensor({3.f, 0.f, -4.f}, {1, 3}), 5, d));  // a row: its direction
    CHECK(one[1] == 0);
    CHECK(one[0] / one[2] == doctest::Approx(-0.75).epsilon(0.02));
    CHECK(std::hypot(one[0], one[2]) == doctest::Approx(1).epsilon(0.4));
    CHECK(distance(detail::orthogonalize(random({8, 5}, 1), 5, d),
                   detail::orthogonalize(random({8, 5}, 1), 5, DType::f32)) < 0.1);
  }
  CHECK_SAYS(detail::orthogonalize(zeros({2, 2, 2})), "[orthogonalize] (2, 2, 2) f32 is not a matrix.");
}

TEST_CASE("Muon: gradients of zeros and matrices without elements make no NaN, and parts are matrices of their own") {
  const Tensor w = random({3, 2}, 1).requires_grad_(), empty = zeros({0, 4}).requires_grad_();
  Muon opt({{"w", w}, {"empty", empty}}, {.lr = 0.1, .weight_decay = 0.5});
  GradMap grads;
  grads.map()[w.id()] = zeros({3, 2}), grads.map()[empty.id()] = zeros({0, 4});
  const Tensor decayed = w.detach() * 0.95;
  opt.step(grads, {.clip_norm = 1});
  CHECK(distance(w, decayed) <= 1e-6);
  for (const MuonScale scale : {MuonScale::original, MuonScale::rms}) {
    const Tensor all = random({8, 4}, 2).requires_grad_(), g = random({8, 4}, 3);
    std::vector<Parameter> apart;
    GradMap of_all, of_parts;
    of_all.map()[all.id()] = g;
    const Tensors w0 = split(all.detach(), {5, 1, 2}, 0), g0 = split(g, {5, 1, 2}, 0);
    for (size_t i = 0; i < 3; ++i) {
      apart.push_back({fmt::format("{}", i), w0[i].contiguous().detach().requires_grad_()});
      of_parts.map()[apart[i].tensor.id()] = g0[i];
    }
    const MuonConfig c{.weight_decay = 0.1, .ns_dtype = DType::f32, .scale = scale};
    Muon together({{"qkv", all, {5, 1, 2}}}, c), parts(apart, c);
    for (int i = 0; i < 3; ++i) together.step(of_all), parts.step(of_parts);
    CHECK(bits_of(all) == bits_of(concat({apart[0].tensor, apart[1].tensor, apart[2].tensor}, 0)));
  }
}
