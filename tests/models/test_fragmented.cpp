// FragmentedLinear: its lean form against its definition by ops and against PyTorch.
#include <tapegrad/tapegrad.h>

#include "support/small_run.h"

using namespace tg;
using nn::FragmentedLinear;
using nn::Selection;
namespace {
constexpr Selection kBoth[] = {Selection::soft, Selection::hard};

// All products of all fragments (rows, F, out), or a copy of the selected matrix for each row.
Tensor by_definition(const FragmentedLinear& l, const Tensor& x, Selection how) {
  const int64_t rows = x.size(0), f = l.selector.size(0), d = l.selector.size(1), out = l.experts.size(2);
  const Tensor parts = reshape(x, {rows, f, d});
  const Tensor p = softmax(sum(parts * l.selector, {-1}));
  Tensor e, rest;
  if (how == Selection::soft) {
    const Tensor products = matmul(reshape(parts, {rows, f, 1, d}), l.experts);  // (rows, F, 1, out)
    e = sum(reshape(products, {rows, f, out}) * reshape(p, {rows, f, 1}), {1});
    rest = parts * (1.0 - reshape(p, {rows, f, 1}));
  } else {
    const Tensor k = argmax(p, -1);
    const Tensor experts = index_select(l.experts, 0, k);  // (rows, D, out)
    const Tensor place = expand(reshape(k, {rows, 1, 1}), {rows, 1, d});
    e = reshape(matmul(gather(parts, 1, place), experts), {rows, out});
    rest = scatter_add(parts, 1, place, -gather(parts, 1, place));
  }
  const Tensor narrow = linear(reshape(rest, {rows, f * d}), l.compressor);
  Tensor y = e + linear(narrow, l.expander);
  if (l.expert_bias) y = y + l.expert_bias + l.compressed_bias;
  return y;
}
struct Layer {
  Params params;
  FragmentedLinear layer;
  Layer(DType dtype, int64_t in, int64_t out, nn::FragmentedOptions o)
      : params({}, 7, dtype), layer(params.at("l"), in, out, o) {}
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> r;
    for (const Parameter& p : params.all()) r.push_back(p.tensor);
    return r;
  }
};
Layer small(DType dtype = DType::f64) {
  Layer l(dtype, 24, 10, {.fragments = 4, .compressed = 3, .bias = true});
  const Tensor bias = random<double>({10}, 3).to(dtype);
  NoGradScope off;
  l.layer.expert_bias.assign(bias);
  l.layer.compressed_bias.assign(bias * 0.5);
  return l;
}
using Form = std::function<Tensor(const Tensor& x)>;
// Value, the gradients of x and all parameters, and those of the gradients' own sum of squares.
std::vector<Tensor> derivatives(const Layer& l, const Tensor& at, const Form& form) {
  const Tensor x = at.detach().requires_grad_();
  std::vector<Tensor> of = l.leaves();
  of.push_back(x);
  const Tensor y = form(x), w = random<double>(y.shape(), 5).to(y.dtype());
  const Tensor loss = sum(sin(y) * w);
  GradMap g = backward(loss, {.create_graph = true});
  std::vector<Tensor> r{y.detach()};
  Tensor squares;
  for (const Tensor& t : of) {
    r.push_back(g[t] ? g[t].detach() : Tensor());
    if (g[t]) squares = squares ? squares + sum(g[t] * g[t]) : sum(g[t] * g[t]);
  }
  const GradMap second = backward(squares);
  for (const Tensor& t : of) r.push_back(second[t]);
  return r;
}
}  // namespace

TEST_CASE("FragmentedLinear: the lean form is the definition, with first and second derivatives") {
  for (const Selection how : kBoth)
    for (const int64_t rows : {1, 7}) {
      CAPTURE(int(how));
      const Layer l = small();
      const Tensor x = random<double>({rows, 24}, 1, -2, 2);
      check_near(derivatives(l, x, [&](const Tensor& t) { return l.layer.forward(t, how); }),
                 derivatives(l, x, [&](const Tensor& t) { return by_definition(l.layer, t, how); }), 1e-11);
    }
}
TEST_CASE("FragmentedLinear: eager, lazy and compiled give the same bits, in f64, f32 and bf16") {
  for (const Selection how : kBoth)
    for (const DType dtype : {DType::f64, DType::f32}) {
      const Layer l = small(dtype);
      const auto compute = [&](std::optional<DType> narrow) {
        const auto run = [&, narrow](Inputs in) {
          const Tensor y = l.layer.forward(in[0], how, narrow);
          const GradMap g = backward(sum(y.to(DType::f64) * in[1]));
          std::vector<Tensor> r{y.detach()};
          for (const Tensor& t : l.leaves())
            if (g[t]) r.push_back(g[t]);
          return r;
        };
        const Tensor x = random<double>({3, 2, 24}, 1).to(dtype), w = random<double>({3, 2, 10}, 2);
        const std::vector<Tensor> eager = run(std::vector{x, w});
        CHECK(eager.size() == (how == Selection::soft ? 7 : 6));
        const std::vector<Tensor> lazy = under<LazyScope>([&] { return run(std::vector{x, w}); });
        check_same_bits(lazy, eager);
        const Compiled step = compile(run);
        for (int again = 0; again < 3; ++again) check_same_bits(step({x, w}), eager);
        return eager;
      };
      const std::vector<Tensor> wide = compute({}), narrow = compute(DType::bf16);
      for (size_t i = 0; i < wide.size(); ++i) CHECK(distance(narrow[i], wide[i].to(narrow[i].dtype())) < 0.05);
    }
}
TEST_CASE("FragmentedLinear: PyTorch's values, gradients and ten Adam steps") {
  const SafetensorsFile file(TG_TEST_DATA "/fragmented.safetensors");
  for (const DType dtype : {DType::f64, DType::f32})
    for (const Selection how : kBoth) {
      const std::string mode = how == Selection::soft ? "soft" : "hard";
      CAPTURE(mode);
      const double tolerance = dtype == DType::f64 ? 1e-11 : 2e-5;
      const auto read = [&](const std::string& name) { return file.tensor(name).to(dtype); };
      for (const bool folded : {false, true}) {
        const Params params({}, 0, dtype);
        StateDict init;
        for (const char* name : {"selector", "experts", "compressor", "expander", "expert_bias", "compressed_bias"})
          init[std::string("l.") + name] = file.tensor(name);
        params.load(init);
        const FragmentedLinear layer(params.at("l"), 24, 10, {.fragments = 4, .compressed = 3, .bias = true});
        params.check_all_used();
        const Tensor x = read("x").requires_grad_();
        const Tensor y = layer.forward(x, how);
        CHECK(distance(y, read(mode + ".y")) <= tolerance);
        const GradMap g = backward(sum(y * read("w")));
        CHECK(distance(g[x], read(mode + ".grad.x")) <= tolerance);
        for (const Parameter& p : params.all()) {
          const std::string name = mode + ".grad." + p.name.substr(2);
          CHECK(file.has(name) == g.contains(p.tensor));
          if (file.has(name)) CHECK(distance(g[p.tensor], read(name)) <= tolerance);
        }
        AdamW adam(params.trainable(), AdamWConfig::adam(1e-2));
        const std::vector<double> losses = values<double>(file.tensor(mode + ".losses"));
        const Tensor inputs = read("x"), target = read("target");
        for (int step = 0; step < 10; ++step) {
          const Tensor loss = mse_loss(layer.forward(inputs, how), target);
          CHECK(loss.to(DType::f64).item<double>() == doctest::Approx(losses[size_t(step)]).epsilon(tolerance));
          if (folded)
            adam.backward_and_step(loss, {.missing_grad = MissingGrad::skip});
          else
            adam.step(backward(loss), {.missing_grad = MissingGrad::skip});
        }
        for (const Parameter& p : params.all())
          CHECK(distance(p.tensor, read(mode + ".final." + p.name.substr(2))) <= tolerance);
      }
    }
}
TEST_CASE("FragmentedLinear: the first of equal weights is selected, and an unselected fragment stays") {
  const Layer l(DType::f32, 64, 5, {.fragments = 4});
  l.layer.selector.assign(zeros({4, 16}));
  const Tensor x = random({3, 64}, 1);
  const Tensor y = l.layer.forward(x, Selection::hard);
  const Tensor first = matmul(slice(x, 1, 0, 16), reshape(slice(l.layer.experts, 0, 0, 1), {16, 5}));
  const Tensor rest = concat({zeros({3, 16}), slice(x, 1, 16, 64)}, 1);
  CHECK(distance(y, first + linear(linear(rest, l.layer.compressor), l.layer.expander)) < 1e-6);
  const GradMap g = backward(sum(y));
  CHECK_FALSE(g.contains(l.layer.selector));
  const Tensor others = slice(g[l.layer.experts], 0, 1, 4);
  CHECK(bits_of(others) == bits_of(zeros({3, 16, 5})));
  const Tensor before = l.layer.experts + 0.0;
  AdamW adam(l.params.trainable(), AdamWConfig::adam());
  adam.step(g, {.missing_grad = MissingGrad::skip});
  CHECK(bits_of(slice(l.layer.experts, 0, 1, 4)) == bits_of(slice(before, 0, 1, 4)));
  CHECK(bits_of(slice(l.layer.experts, 0, 0, 1)) != bits_of(slice(before, 0, 0, 1)));
}
TEST_CASE("FragmentedLinear: parameters of document 002, without their memory") {
  const auto count = [](int64_t n, int64_t f) {
    LazyScope lazy;
    const Params p;
    const FragmentedLinear l(p, n, n, {.fragments = f});
    return p.numel();
  };
  for (const int64_t f : {2, 8, 32, 128}) {
    CHECK(count(2048, f) == 4458496);
    CHECK(count(4096, f) == 17829888);
    CHECK(count(8192, f) == 71311360);
  }
}
TEST_CASE("FragmentedLinear: no rows, one row, one fragment, fragments of one element") {
  for (const Selection how : kBoth) {
    const Layer l = small(DType::f32);
    const Tensor none = l.layer.forward(zeros({2, 0, 24}), how);
    CHECK(none.shape() == Shape{2, 0, 10});
    const GradMap g = backward(sum(none));
    CHECK(bits_of(g[l.layer.experts]) == bits_of(zeros({4, 6, 10})));
    CHECK(l.layer.forward(random({24}, 1), how).shape() == Shape{10});
    for (const int64_t f : {1, 24}) {
      const Layer edge(DType::f64, 24, 10, {.fragments = f, .compressed = 2});
      const Tensor x = random<double>({3, 24}, 1);
      CHECK(distance(edge.layer.forward(x, how), by_definition(edge.layer, x, how)) < 1e-12);
    }
  }
}
TEST_CASE("FragmentedLinear: what it refuses") {
  const auto refused = [](int64_t in, nn::FragmentedOptions o) {
    return error_of([&] {
      const Params p;
      FragmentedLinear(p.at("l"), in, 8, o);
    });
  };
  CHECK_HAS(refused(24, {.fragments = 5}), "in 24 cannot be split into 5 equal fragments");
  CHECK_HAS(refused(24, {.fragments = 0}), "fragments is 0");
  CHECK_HAS(refused(24, {.fragments = 4}), "the compressed size is 0");
  CHECK_HAS(refused(64, {.fragments = 4, .compressed = -1}), "compressed is -1");
  CHECK_HAS(refused(0, {.fragments = 1}), "in is 0");
  const Layer l = small(DType::f32);
  CHECK_SAYS(l.layer.forward(zeros({2, 23})), "Its last size must be 24: 4 fragments of 6");
  CHECK_SAYS(l.layer.forward(Tensor()), "fragmented_linear");
  for (const Selection how : kBoth)
    for (const float bad : {NAN, INFINITY}) {
      const Tensor x = random({3, 24}, 1);
      slice_update(x, 1, tensor<int64_t>({13}, {}), filled({3, 1}, bad));
      CHECK_SAYS(l.layer.forward(x, how), "the score of row 0, fragment 2 is", "in l");
    }
}
namespace {
const GptConfig kGpt{
    .vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 32, .bias = true, .fragments = 4};
}  // namespace

TEST_CASE("a Gpt with fragmented layers: which ones, soft with a generator and hard without") {
  const auto [params, model] = new_gpt(kGpt, Params({}, 1));
  std::vector<std::string> names;
  for (const Parameter& p : params.all())
    if (p.name.starts_with("h.1.mlp.")) names.push_back(p.name.substr(8));
  CHECK(names == std::vector<std::string>{"fc.selector", "fc.experts", "fc.compressor", "fc.expander", "fc.expert_bias",
                                          "fc.compressed_bias", "proj.selector", "proj.experts", "proj.compressor",
                                          "proj.expander", "proj.expert_bias", "proj.compressed_bias"});
  Rng rng{1};
  const Tensor soft = cross_entropy(model.forward(two_rows(), {.rng = &rng}), two_rows());
  const Tensor hard = cross_entropy(model.forward(two_rows()), two_rows());
  CHECK(bits_of(soft) != bits_of(hard));
  const GradMap all = backward(soft), some = backward(hard);
  for (const Parameter& p : params.all()) {
    CHECK(all.contains(p.tensor));
    CHECK(some.contains(p.tensor) == !p.name.ends_with("selector"));
  }
  const auto [again, same] = new_gpt(kGpt, Params({}, 1));
  Rng other{1};
  const Tensor recomputed = cross_entropy(same.forward(two_rows(), {.rng = &other, .recompute = true}), two_rows());
  CHECK(bits_of(recomputed) == bits_of(soft));
  const GradMap g = backward(recomputed);
  for (size_t i = 0; i < params.all().size(); ++i)
    CHECK(distance(g[again.all()[i].tensor], all[params.all()[i].tensor]) < 1e-5);
  const Params nested({}, 1);
  GptConfig one = kGpt;
  one.fragmented = "h.0.mlp.fc";
  Gpt inner(nested.at("student"), one);
  size_t fragmented = 0;
  for (const NamedLinear& l : inner.linears()) fragmented += bool(l.layer->fragmented);
  CHECK(fragmented == 1);
}
TEST_CASE("a Gpt with fragmented layers trains, resumes its folder, and decodes with a cache") {
  TrainConfig c = tiny_train();
  GptConfig g = tiny_model();
  g.fragments = 2;
  Run run(c, g);
  const std::vector<StepRecord> records = rest_of(run.trainer);
  CHECK(records.back().loss < 0.7 * records.front().loss);
  const Folder folder;
  save_model(folder.path, run.model, run.params);
  const LoadedModel loaded = load_model(folder.path);
  CHECK(loaded.model.config() == run.model.config());
  const NoGradScope off;
  CHECK(bits_of(loaded.model.forward(two_rows())) == bits_of(run.model.forward(two_rows())));
  const std::vector<int64_t> prompt{104, 101, 32};
  CHECK(generate(loaded.model, prompt, 8, {.temperature = 0}) ==
        generate(run.model, prompt, 8, {.temperature = 0}, {.use_cache = false}));
}
TEST_CASE("a Gpt with fragmented layers: what it refuses") {
  const auto refused = [](auto change) { return error_of([&] { const Gpt model(Params(), changed(kGpt, change)); }); };
  CHECK_HAS(refused([](auto& c) { c.fragments = -1; }), "fragments is -1");
  CHECK_HAS(refused([](auto& c) { c.fragmented = "mlp"; }), "the target 'mlp' matches no module");
  CHECK_HAS(refused([](auto& c) { c.fragments = 5; }), "in 32 cannot be split into 5 equal fragments");
  auto [params, model] = new_gpt(kGpt, Params({}, 1));
  CHECK_SAYS(apply_lora(model, params, {.targets = {"*.mlp.fc"}}), "'h.0.mlp.fc' is a FragmentedLinear");
  CHECK_SAYS(replace_linears(model, {"*.mlp.*"}, LinearKind::switchback), "'h.0.mlp.fc' is a FragmentedLinear");
  Rng rng{1};
  apply_lora(model, params, {.targets = {"*.attn.qkv"}});
  CHECK(model.forward(two_rows(), {.rng = &rng}).shape() == Shape{2, 8, 11});
}
