// Params (names, initial values, loading) and the configuration of Gpt (checks, JSON).
#include "helpers.h"

#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/io/nearest.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/ops/create.h>
#include <tapegrad/ops/loss.h>

using namespace tg;

namespace {
void contains(const std::string& text, std::string_view part) {
  INFO(text);
  INFO(part);
  CHECK(has(text, part));
}
GptConfig tiny() { return {.vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 8, .init_std = 0.3}; }
}  // namespace

TEST_CASE("parameters: names, shapes and count") {
  const Params params;
  GptConfig c = tiny();
  c.bias = true, c.tied_head = false;
  const Gpt model(params, c);
  std::vector<std::string> names;
  for (auto& p : params.all()) {
    names.push_back(p.name + to_string(p.tensor.shape()));
    CHECK(p.tensor.label() == p.name);
    CHECK(p.tensor.requires_grad());
  }
  std::vector<std::string> expected{"wte.weight(11, 8)", "wpe.weight(8, 8)"};
  for (const std::string h : {"h.0.", "h.1."})
    for (const char* s : {"ln_1.weight(8)", "ln_1.bias(8)", "attn.qkv.weight(24, 8)", "attn.qkv.bias(24)",
                          "attn.proj.weight(8, 8)", "attn.proj.bias(8)", "ln_2.weight(8)", "ln_2.bias(8)",
                          "mlp.fc.weight(32, 8)", "mlp.fc.bias(32)", "mlp.proj.weight(8, 32)", "mlp.proj.bias(8)"})
      expected.push_back(h + s);
  for (const char* s : {"ln_f.weight(8)", "ln_f.bias(8)", "lm_head.weight(11, 8)"}) expected.push_back(s);
  CHECK(names == expected);
  CHECK(params.count() == 88 + 64 + 2 * (16 + 192 + 24 + 64 + 8 + 16 + 256 + 32 + 256 + 8) + 16 + 88);
  CHECK(params.state().size() == expected.size());
}

TEST_CASE("initial values depend on seed and name only, and have the documented spread") {
  GptConfig c{.vocab_size = 500, .context = 64, .layers = 2, .heads = 2, .width = 64};
  const Params a(Device(), 1), b(Device(), 1), other(Device(), 2);
  const Gpt first(a, c);
  c.layers = 3, c.tied_head = false;  // more parameters, before and after
  const Gpt second(b, c), third(other, c);
  const StateDict x = a.state(), y = b.state(), z = other.state();
  CHECK(x.at("h.1.mlp.fc.weight").to_vector<float>() == y.at("h.1.mlp.fc.weight").to_vector<float>());
  CHECK(x.at("h.1.mlp.fc.weight").to_vector<float>() != y.at("h.2.mlp.fc.weight").to_vector<float>());
  CHECK(y.at("h.1.mlp.fc.weight").to_vector<float>() != z.at("h.1.mlp.fc.weight").to_vector<float>());
  auto spread = [&](const std::string& name) {
    const auto v = y.at(name).to_vector<double>();
    double s = 0;
    for (double e : v) s += e * e;
    return std::sqrt(s / double(v.size()));
  };
  // 5 standard errors of a standard deviation from n samples, 1 / sqrt(2 n), with n of 4 096 or more.
  for (const char* name : {"wte.weight", "wpe.weight", "lm_head.weight", "h.0.attn.qkv.weight", "h.0.mlp.fc.weight"})
    CHECK(spread(name) == doctest::Approx(0.02).epsilon(0.055));
  for (const char* name : {"h.0.attn.proj.weight", "h.2.mlp.proj.weight"})
    CHECK(spread(name) == doctest::Approx(0.02 / std::sqrt(6.0)).epsilon(0.055));
  CHECK(spread("h.1.ln_2.weight") == 1);
}

TEST_CASE("params: what load, get and assign refuse") {
  const StateDict good = [] {
    const Params p;
    const Gpt model(p, tiny());
    return p.state();
  }();
  auto load = [&](StateDict s) {
    return error_of([&] {
      const Params p;
      p.load(std::move(s));
      const Gpt model(p, tiny());
      p.check_all_used();
    });
  };
  CHECK(load(good) == "no error");
  StateDict s = good;
  s.erase("h.1.ln_1.weight");
  s["h.1.ln_1.wieght"] = good.at("h.1.ln_1.weight");
  contains(load(s), "[params] 'h.1.ln_1.weight' (8) is not among the loaded tensors. Did you mean 'h.1.ln_1.wieght'?");
  s = good;
  s["ln_f.weight"] = zeros({9});
  contains(load(s), "[params] 'ln_f.weight' is (8) in the model and (9) f32 in the tensors given");
  s = good;
  s["ln_f.weight"] = zeros({8}, DType::i32);
  contains(load(s), "[params] 'ln_f.weight' is (8) i32 in the tensors given. A parameter is a floating tensor.");
  s = good;
  s["ln_f.bias"] = zeros({8});
  contains(load(s), "[params] 1 of the loaded tensors belong to no part of the model: 'ln_f.bias' (8).");
  for (const char* extra : {"x.a", "x.b", "x.c"}) s[extra] = zeros({1});
  contains(load(s),
           "4 of the loaded tensors belong to no part of the model: 'ln_f.bias' (8), 'x.a' (1), 'x.b' (1) ...");

  const Params p;
  contains(error_of([&] { p.load(good), p.load(good); }), "tensors were loaded before");
  const Gpt model(p, tiny());
  contains(error_of([&] { p.load(good); }), "load() comes too late: 15 parameters exist already");
  contains(error_of([&] { p.at("ln_f").get("weight", {9}, Init::constant(1)); }),
           "'ln_f.weight' is (8), and is asked for again as (9)");
  CHECK(p.at("ln_f").get("weight", {8}, Init::constant(0)).id() == p.all().back().tensor.id());
  const auto before = p.state().at("h.0.mlp.fc.weight").to_vector<float>();
  s = good;
  s.erase("wte.weight");
  s["h.0.mlp.fc.weight"] = ones({32, 8});
  contains(error_of([&] { p.assign(s); }), "no value for 'wte.weight' (11, 8)");
  s = good;
  s["ln_g.weight"] = zeros({8});
  contains(error_of([&] { p.assign(s); }), "'ln_g.weight' is no parameter of this model. Did you mean 'ln_f.weight'?");
  CHECK(p.state().at("h.0.mlp.fc.weight").to_vector<float>() == before);
  s = good;
  s["h.0.mlp.fc.weight"] = ones({32, 8}, DType::f64);
  p.assign(s);
  CHECK(p.state().at("h.0.mlp.fc.weight").to_vector<float>() == std::vector<float>(256, 1.f));
}

TEST_CASE("loaded values are converted, and training does not change the tensors they came from") {
  const Params source(Device(), 3);
  const Gpt original(source, tiny());
  StateDict half;
  for (auto& [name, t] : source.state()) half[name] = t.to(DType::bf16);
  const Params params;
  params.load(half);
  const Gpt model(params, tiny());
  CHECK(params.all()[0].tensor.dtype() == DType::f32);
  CHECK(params.all()[0].tensor.to_vector<float>() == half.at("wte.weight").to_vector<float>());

  const Params same;
  const StateDict given = source.state();
  same.load(given);
  const Gpt trained(same, tiny());
  const auto before = given.at("wte.weight").to_vector<float>();
  AdamW opt(same.trainable());
  const Tensor tokens = from({1, 2, 3}, {1, 3});
  opt.step(backward(cross_entropy(trained.forward(tokens), tokens)));
  CHECK(same.all()[0].tensor.to_vector<float>() != before);
  CHECK(given.at("wte.weight").to_vector<float>() == before);
}

TEST_CASE("configuration: what validate() refuses") {
  auto with = [](auto change) {
    GptConfig c;
    change(c);
    return error_of([&] { const Gpt model(Params(), c); });
  };
  contains(with([](GptConfig& c) { c.vocab_size = 0; }), "[gpt_config] vocab_size is 0. It must be 1 or more.");
  contains(with([](GptConfig& c) { c.context = -3; }), "context is -3");
  contains(with([](GptConfig& c) { c.layers = 0; }), "layers is 0");
  contains(with([](GptConfig& c) { c.heads = 0; }), "heads is 0");
  contains(with([](GptConfig& c) { c.width = 0; }), "width is 0");
  contains(with([](GptConfig& c) { c.heads = 3; }), "width 128 is not a multiple of heads 3");
  contains(with([](GptConfig& c) { c.ff_width = -1; }), "ff_width is -1");
  contains(with([](GptConfig& c) { c.dropout = 1; }), "dropout is 1. It must be in [0, 1).");
  contains(with([](GptConfig& c) { c.norm_eps = 0; }), "norm_eps is 0");
  contains(with([](GptConfig& c) { c.init_std = NAN; }), "init_std is nan");
  contains(with([](GptConfig& c) { c.layers = 1'000'000'000'000; }),
           "layers is 1000000000000. It must be at most 65536");
  contains(with([](GptConfig& c) { c.width = c.heads = int64_t(1) << 40; }),
           "heads is 1099511627776. It must be at most");
  contains(with([](GptConfig& c) { c.ff_width = int64_t(1) << 40; }), "ff_width is 1099511627776");
  CHECK_NOTHROW(GptConfig::gpt2_small().validate());
}

TEST_CASE("configuration as JSON") {
  const GptConfig c{.vocab_size = 61,
                    .context = 16,
                    .layers = 2,
                    .heads = 5,
                    .width = 20,
                    .ff_width = 77,
                    .norm = NormKind::rms_norm,
                    .activation = Activation::silu,
                    .bias = true,
                    .tied_head = false,
                    .dropout = 0.1,
                    .norm_eps = 1e-6,
                    .init_std = 0.3};
  CHECK(gpt_config_from_json(to_json(c)) == c);
  CHECK(gpt_config_from_json("{}") == GptConfig());
  CHECK(gpt_config_from_json(R"({"width": 64, "dropout": 0})").width == 64);
  CHECK(gpt_config_from_json(to_json(c), {.every_field = true}) == c);
  contains(error_of([] { gpt_config_from_json(R"({"vocab_size": 64})", {.name = "f.json", .every_field = true}); }),
           "f.json has no 'context'. A model's configuration states every field.");
  auto refused = [](const char* text) { return error_of([&] { gpt_config_from_json(text); }); };
  contains(refused(R"({"widht": 64})"),
           "[gpt_config] 'widht' is not known. Did you mean 'width'? The keys are vocab_size, ");
  contains(refused(R"({"completely_else": 64})"), "'completely_else' is not known. The keys are ");
  contains(refused(R"({"width": "64"})"), "'width' is \"64\". It must be an integer.");
  contains(refused(R"({"width": 64.5})"), "'width' is 64.5. It must be an integer.");
  contains(refused(R"({"width": 9223372036854775808})"), "'width' is 9223372036854775808. It must be an integer.");
  contains(refused(R"({"dropout": true})"), "'dropout' is true. It must be a number.");
  contains(refused(R"({"bias": 1})"), "'bias' is 1. It must be true or false.");
  contains(refused(R"({"norm": 1})"), "'norm' is 1. It must be the name of a norm in quotes.");
  contains(refused(R"({"norm": "layernorm"})"),
           "'layernorm' is not known. Did you mean 'layer_norm'? The names are layer_norm, rms_norm.");
  contains(refused(R"({"activation": "relu"})"), "The names are gelu, gelu_tanh, silu.");
  contains(refused(R"({"width": 64, "width": 32})"), "'width' comes twice");
  contains(refused(R"({"heads": 3})"), "width 128 is not a multiple of heads 3");
  contains(refused("[1]"), "It must be an object");
  contains(refused("{\"width\": "), "the text is not JSON");
  contains(refused(std::string(1000000, '[').c_str()), "nested too deeply");
}

TEST_CASE("the nearest known word") {
  const std::vector<std::string_view> known{"width", "heads", "height", "layers"};
  CHECK(nearest("width", known) == "width");
  CHECK(nearest("widht", known) == "width");  // a swap counts once
  CHECK(nearest("hights", known) == "height");
  CHECK(nearest("head", known) == "heads");
  CHECK(nearest("banana", known) == "");
  CHECK(nearest("", known) == "");
  CHECK(nearest("width", {}) == "");
  CHECK(did_you_mean("layer", known) == " Did you mean 'layers'?");
  CHECK(did_you_mean("banana", known) == "");
  CHECK(listed(known) == "width, heads, height, layers");
}
