// Params (names, initial values, loading) and GptConfig (checks, JSON).
#include "support/files.h"
#include "support/threads.h"
#include "support/tiny_gpt.h"

#include <tapegrad/tapegrad.h>

using namespace tg;

namespace {
// Unequal sizes, and every kind of weight and bias.
GptConfig uneven() {
  GptConfig c{.vocab_size = 500, .context = 64, .layers = 1, .heads = 8, .kv_heads = 2, .width = 128, .ff_width = 300};
  c.activation = Activation::swiglu, c.bias = true, c.tied_head = false, c.init = InitScheme::xavier;
  return c;
}
}  // namespace

TEST_CASE("parameters: names, shapes and count") {
  const Params params;
  GptConfig c = tiny_gpt();
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
  CHECK(params.numel() == 88 + 64 + 2 * (16 + 192 + 24 + 64 + 8 + 16 + 256 + 32 + 256 + 8) + 16 + 88);
  CHECK(params.state().size() == expected.size());
}

TEST_CASE("initial values depend on seed and name only, and have the documented spread") {
  GptConfig c{.vocab_size = 500, .context = 64, .layers = 2, .heads = 2, .width = 64};
  const StateDict x = new_gpt(c, Params(Device(), 1)).params.state();
  c.layers = 3, c.tied_head = false;  // more parameters, before and after
  const StateDict y = new_gpt(c, Params(Device(), 1)).params.state(),
                  z = new_gpt(c, Params(Device(), 2)).params.state();
  CHECK(x.at("h.1.mlp.fc.weight").to_vector<float>() == y.at("h.1.mlp.fc.weight").to_vector<float>());
  CHECK(x.at("h.1.mlp.fc.weight").to_vector<float>() != y.at("h.2.mlp.fc.weight").to_vector<float>());
  CHECK(y.at("h.1.mlp.fc.weight").to_vector<float>() != z.at("h.1.mlp.fc.weight").to_vector<float>());
  auto spread = [&](const std::string& name) {
    const auto v = y.at(name).to_vector<double>();
    double s = 0;
    for (double e : v) s += e * e;
    return std::sqrt(s / double(v.size()));
  };
  // 5 standard errors of a standard deviation, 1 / sqrt(2 n), n >= 4 096.
  for (const char* name : {"wte.weight", "wpe.weight", "lm_head.weight", "h.0.attn.qkv.weight", "h.0.mlp.fc.weight"})
    CHECK(spread(name) == doctest::Approx(0.02).epsilon(0.055));
  for (const char* name : {"h.0.attn.proj.weight", "h.2.mlp.proj.weight"})
    CHECK(spread(name) == doctest::Approx(0.02 / std::sqrt(6.0)).epsilon(0.055));
  CHECK(spread("h.1.ln_2.weight") == 1);
}

TEST_CASE("parameters of the variants: names and shapes") {
  const auto names_of = [](const GptConfig& c) {
    const auto [params, model] = new_gpt(c);
    std::vector<std::string> names;
    for (auto& p : params.all()) names.push_back(p.name + to_string(p.tensor.shape()));
    return names;
  };
  GptConfig c = tiny_gpt();
  c.layers = 1, c.heads = 4, c.kv_heads = 2, c.positions = Positions::rope, c.activation = Activation::swiglu;
  c.ff_width = 5, c.tied_head = false;
  CHECK(names_of(c) == std::vector<std::string>{"wte.weight(11, 8)", "h.0.ln_1.weight(8)", "h.0.attn.qkv.weight(16, 8)",
                                                "h.0.attn.proj.weight(8, 8)", "h.0.ln_2.weight(8)",
                                                "h.0.mlp.fc.weight(10, 8)", "h.0.mlp.proj.weight(8, 5)",
                                                "ln_f.weight(8)", "lm_head.weight(11, 8)"});
  c.norm_affine = false, c.bias = true, c.tied_head = true, c.positions = Positions::learned;
  CHECK(names_of(c) == std::vector<std::string>{"wte.weight(11, 8)", "wpe.weight(8, 8)", "h.0.attn.qkv.weight(16, 8)",
                                                "h.0.attn.qkv.bias(16)", "h.0.attn.proj.weight(8, 8)",
                                                "h.0.attn.proj.bias(8)", "h.0.mlp.fc.weight(10, 8)",
                                                "h.0.mlp.fc.bias(10)", "h.0.mlp.proj.weight(8, 5)",
                                                "h.0.mlp.proj.bias(8)"});
}

TEST_CASE("xavier: the deviation of each part, cut at three of them, the same at any number of threads") {
  const GptConfig c = uneven();
  const StateDict all = new_gpt(c, Params(Device(), 1)).params.state();
  const auto check = [&](const std::string& name, int64_t first, int64_t rows, double sigma) {
    CAPTURE_ALL(name, first);
    const auto v = slice(all.at(name), 0, first, first + rows).to_vector<double>();
    double square = 0, largest = 0;
    for (double x : v) square += x * x, largest = std::max(largest, std::abs(x));
    // 0.98658 is the deviation of a normal cut at 3; the limit is 5 standard errors, each below 1 / sqrt(2 n).
    CHECK(std::sqrt(square / double(v.size())) ==
          doctest::Approx(0.98658 * sigma).epsilon(5 / std::sqrt(2.0 * double(v.size()))));
    CHECK(largest <= 3 * sigma * (1 + 1e-6));
    CHECK(largest > 2.7 * sigma);
  };
  const auto sigma = [](double in, double out) { return std::sqrt(2 / (in + out)); };
  check("wte.weight", 0, 500, 1);
  check("wpe.weight", 0, 64, 1);
  check("lm_head.weight", 0, 500, sigma(128, 500));
  check("h.0.attn.qkv.weight", 0, 128, sigma(128, 128));
  check("h.0.attn.qkv.weight", 128, 32, sigma(128, 32));
  check("h.0.attn.qkv.weight", 160, 32, sigma(128, 32));
  check("h.0.attn.proj.weight", 0, 128, sigma(128, 128));
  check("h.0.mlp.fc.weight", 0, 300, sigma(128, 300));
  check("h.0.mlp.fc.weight", 300, 300, sigma(128, 300));
  check("h.0.mlp.proj.weight", 0, 128, sigma(300, 128));
  CHECK(all.at("h.0.ln_1.weight").to_vector<float>() == std::vector<float>(128, 1.f));
  CHECK(all.at("h.0.mlp.fc.bias").to_vector<float>() == std::vector<float>(600, 0.f));
  const auto same = on_one_thread([&] { return new_gpt(c, Params(Device(), 1)).params.state(); });
  for (auto& [name, t] : same) CHECK(bits_of(t) == bits_of(all.at(name)));
  Init wrong = Init::xavier();
  wrong.row_splits = {3, 4};
  CHECK_SAYS(wrong.make({8, 2}, DType::f32, Device(), Rng()),
             "[init] (8, 2) is no matrix (out, in) of parts (3, 4). The parts must make up its rows.");
}

TEST_CASE("two layers at one path are an error, and share their weights on purpose by shared()") {
  const Params p;
  const nn::Linear a(p.at("l"), 2, 3);
  CHECK_SAYS(
      nn::Linear(p.at("l"), 2, 3),
      "[params] 'l.weight' (3, 2) exists already. Two layers at one path would share it. Give the second another "
      "name, or share on purpose: pass it params.at(name).shared().");
  const nn::Linear b(p.at("l").shared(), 2, 3);
  CHECK(b.weight.id() == a.weight.id());
  CHECK(b.bias.id() == a.bias.id());
  CHECK(p.all().size() == 2);
  const Tensor x = random({4, 2}, 1), y = random({4, 2}, 2);
  const GradMap g = backward(sum(a.forward(x) + b.forward(y)));
  CHECK(values(g[a.bias]) == std::vector<float>(3, 8));
  CHECK(distance(g[a.weight], expand(sum(x + y, {0}), {3, 2})) < 1e-6);
  const nn::Linear fresh(p.at("m").shared().at("inner"), 2, 3);  // what does not exist is made, also further down
  const nn::Linear again(p.at("m").shared().at("inner"), 2, 3);
  CHECK(fresh.weight.id() == again.weight.id());
  CHECK(fresh.weight.label() == "m.inner.weight");
  CHECK_SAYS(nn::Linear(p.at("m").at("inner"), 2, 3), "'m.inner.weight' (3, 2) exists already");
}

TEST_CASE("Linear starts as PyTorch's does: weight and bias uniform within 1/sqrt(in)") {
  const Params p(Device(), 1), again(Device(), 1);
  const nn::Linear l(p.at("l"), 100, 300);
  const auto check = [](const Tensor& t) {
    const auto v = t.to_vector<double>();
    double mean = 0, square = 0, largest = 0;
    for (double x : v) mean += x, square += x * x, largest = std::max(largest, std::abs(x));
    const double n = double(v.size());
    CHECK(largest <= 0.1 * (1 + 1e-6));
    CHECK(largest > 0.098);
    CHECK(std::abs(mean / n) < 5 * 0.1 / std::sqrt(3 * n));  // 5 standard errors
    CHECK(std::abs(square / n * 300 - 1) < 5 * std::sqrt(0.8 / n));
  };
  check(l.weight);
  check(l.bias);
  CHECK(l.bias.requires_grad());
  const auto same = on_one_thread([&] { return nn::Linear(again.at("l"), 100, 300); });
  CHECK(bits_of(same.weight) == bits_of(l.weight));
  CHECK(bits_of(same.bias) == bits_of(l.bias));
  const nn::Linear given(p.at("given"), 4, 300, {.init = Init::normal(1)}), bare(p.at("bare"), 4, 3, {.bias = false});
  CHECK(given.bias.to_vector<float>() == std::vector<float>(300, 0));
  CHECK(max(given.weight).item<float>() > 1);
  CHECK(!bare.bias);
  CHECK(nn::Linear(p.at("nothing"), 0, 2).bias.to_vector<float>() == std::vector<float>(2, 0));
  CHECK(Init::uniform(0).make({3}, DType::f64, Device(), Rng()).to_vector<double>() == std::vector<double>(3, 0));
  CHECK_SAYS(Init::uniform(-1).make({3}, DType::f32, Device(), Rng()), "[rand] from 1 to -1");
}

TEST_CASE("params: what load, get and assign refuse") {
  const StateDict good = [] {
    const auto [p, model] = new_gpt(tiny_gpt());
    return p.state();
  }();
  auto load = [&](StateDict s) {
    return error_of([&] {
      const Params p;
      p.load(std::move(s));
      const Gpt model(p, tiny_gpt());
      p.check_all_used();
    });
  };
  CHECK(load(good) == "no error");
  StateDict s = with_tensor(with_tensor(good, "h.1.ln_1.weight"), "h.1.ln_1.wieght", ones({8}));
  CHECK_HAS(load(s), "[params] 'h.1.ln_1.weight' (8) is not among the loaded tensors. Did you mean 'h.1.ln_1.wieght'?");
  CHECK_HAS(load(with_tensor(good, "ln_f.weight", zeros({9}))),
            "[params] 'ln_f.weight' is (8) in the model and (9) f32 in the tensors given");
  CHECK_HAS(load(with_tensor(good, "ln_f.weight", zeros({8}, DType::i32))),
            "[params] 'ln_f.weight' is (8) i32 in the tensors given. A parameter is a floating tensor.");
  s = with_tensor(good, "ln_f.bias", zeros({8}));
  CHECK_HAS(load(s), "[params] 1 of the loaded tensors are not used by the model: 'ln_f.bias' (8).");
  for (const char* extra : {"x.a", "x.b", "x.c"}) s[extra] = zeros({1});
  CHECK_HAS(load(s), "4 of the loaded tensors are not used by the model: 'ln_f.bias' (8), 'x.a' (1), 'x.b' (1) ...");

  const Params p;
  CHECK_SAYS((p.load(good), p.load(good)), "tensors were loaded before");
  const Gpt model(p, tiny_gpt());
  CHECK_SAYS(p.load(good), "load() comes too late: 15 parameters exist already");
  CHECK_SAYS(p.at("ln_f").get("weight", {8}, Init::constant(1)),
             "'ln_f.weight' (8) exists already. Two layers at one path would share it.");
  CHECK_SAYS(p.at("ln_f").shared().get("weight", {9}, Init::constant(1)),
             "'ln_f.weight' is (8), and is requested again as (9)");
  CHECK(p.at("ln_f").shared().get("weight", {8}, Init::constant(0)).id() == p.all().back().tensor.id());
  const auto before = p.state().at("h.0.mlp.fc.weight").to_vector<float>();
  CHECK_SAYS(p.assign(with_tensor(with_tensor(good, "wte.weight"), "h.0.mlp.fc.weight", ones({32, 8}))),
             "no value for 'wte.weight' (11, 8)");
  CHECK_SAYS(p.assign(with_tensor(good, "ln_g.weight", zeros({8}))),
             "'ln_g.weight' is no parameter of this model. Did you mean 'ln_f.weight'?");
  CHECK(p.state().at("h.0.mlp.fc.weight").to_vector<float>() == before);
  p.assign(with_tensor(good, "h.0.mlp.fc.weight", ones({32, 8}, DType::f64)));
  CHECK(p.state().at("h.0.mlp.fc.weight").to_vector<float>() == std::vector<float>(256, 1.f));
}

TEST_CASE("params: a source is read one tensor at a time, as layers ask, and what they do not ask for never") {
  const auto [from, original] = new_gpt(tiny_gpt(), Params(Device(), 3));
  const StateDict state = from.state();
  TensorSource source;
  for (const auto& [name, t] : state) source.shapes[name] = t.shape();
  source.shapes["unused"] = {4, 5};
  std::vector<std::string> read;
  source.read = [&](const std::string& name) {
    read.push_back(name);
    return state.at(name).to(DType::bf16);
  };
  const Params params;
  params.load(source);
  CHECK(read.empty());
  const Gpt model(params, tiny_gpt());
  std::vector<std::string> asked;
  for (const Parameter& p : params.all()) asked.push_back(p.name);
  CHECK(read == asked);
  for (const Parameter& p : params.all())
    CHECK(p.tensor.to_vector<float>() == state.at(p.name).to(DType::bf16).to(DType::f32).to_vector<float>());
  CHECK_SAYS(params.check_all_used(), "1 of the loaded tensors are not used by the model: 'unused' (4, 5).");
}

TEST_CASE("loaded values are converted, and training does not change the tensors they came from") {
  const auto [source, original] = new_gpt(tiny_gpt(), Params(Device(), 3));
  StateDict half;
  for (auto& [name, t] : source.state()) half[name] = t.to(DType::bf16);
  const Params params;
  params.load(half);
  const Gpt model(params, tiny_gpt());
  CHECK(params.all()[0].tensor.dtype() == DType::f32);
  CHECK(params.all()[0].tensor.to_vector<float>() == half.at("wte.weight").to_vector<float>());
  const Params same;
  const StateDict given = source.state();
  same.load(given);
  const Gpt trained(same, tiny_gpt());
  const auto before = given.at("wte.weight").to_vector<float>();
  AdamW opt(same.trainable());
  const Tensor tokens = tensor({1, 2, 3}, {1, 3});
  opt.step(backward(cross_entropy(trained.forward(tokens), tokens)));
  CHECK(same.all()[0].tensor.to_vector<float>() != before);
  CHECK(given.at("wte.weight").to_vector<float>() == before);
}

TEST_CASE("configuration: what validate() refuses") {
  auto with = [](auto change) { return error_of([&] { const Gpt model(Params(), changed(GptConfig(), change)); }); };
  CHECK_HAS(with([](GptConfig& c) { c.vocab_size = 0; }), "[gpt_config] vocab_size is 0. It must be 1 or more.");
  CHECK_HAS(with([](GptConfig& c) { c.context = -3; }), "context is -3");
  CHECK_HAS(with([](GptConfig& c) { c.layers = 0; }), "layers is 0");
  CHECK_HAS(with([](GptConfig& c) { c.heads = 0; }), "heads is 0");
  CHECK_HAS(with([](GptConfig& c) { c.width = 0; }), "width is 0");
  CHECK_HAS(with([](GptConfig& c) { c.heads = 3; }), "width 128 is not a multiple of heads 3");
  CHECK_HAS(with([](GptConfig& c) { c.ff_width = -1; }), "ff_width is -1");
  CHECK_HAS(with([](GptConfig& c) { c.dropout = 1; }), "dropout is 1. It must be in [0, 1).");
  CHECK_HAS(with([](GptConfig& c) { c.norm_eps = 0; }), "norm_eps is 0");
  CHECK_HAS(with([](GptConfig& c) { c.init_std = NAN; }), "init_std is nan");
  CHECK_HAS(with([](GptConfig& c) { c.layers = 1'000'000'000'000; }),
            "layers is 1000000000000. It must be at most 4096");
  CHECK_HAS(with([](GptConfig& c) { c.width = c.heads = int64_t(1) << 40; }),
            "heads is 1099511627776. It must be at most");
  CHECK_HAS(with([](GptConfig& c) { c.ff_width = int64_t(1) << 40; }), "ff_width is 1099511627776");
  CHECK_HAS(with([](GptConfig& c) { c.kv_heads = 3; }), "[gpt_config] kv_heads 3 does not divide heads 4.");
  CHECK_HAS(with([](GptConfig& c) { c.kv_heads = 8; }), "[gpt_config] kv_heads 8 does not divide heads 4.");
  CHECK_HAS(with([](GptConfig& c) { c.kv_heads = -1; }),
            "[gpt_config] kv_heads is -1. It must be 1 or more, or 0 for heads.");
  CHECK_HAS(with([](GptConfig& c) { c.width = 36, c.positions = Positions::rope; }),
            "width 36 over heads 4 makes heads of size 9, which positions \"rope\" cannot rotate in pairs.");
  CHECK_HAS(with([](GptConfig& c) { c.rope_theta = 0; }), "rope_theta is 0. It must be 1 or more and finite.");
  CHECK_HAS(with([](GptConfig& c) { c.head_dim = -1; }), "head_dim is -1. It must be from 1 to 2147483647, or 0");
  CHECK_HAS(with([](GptConfig& c) { c.head_dim = 3, c.positions = Positions::rope; }), "makes heads of size 3");
  CHECK(with([](GptConfig& c) { c.head_dim = 3, c.width = 37; }) == "no error");
  CHECK_HAS(with([](GptConfig& c) { c.bias = c.qkv_bias = true; }), "bias and qkv_bias are both true");
  const RopeScaling linear{.kind = RopeScalingKind::linear, .factor = 2};
  CHECK_HAS(with([&](GptConfig& c) { c.rope_scaling = linear; }),
            "rope_scaling is linear and positions are \"learned\"");
  CHECK(with([&](GptConfig& c) { c.rope_scaling = linear, c.positions = Positions::rope; }) == "no error");
  CHECK_HAS(with([&](GptConfig& c) { c.rope_scaling.factor = 2; }), "rope_factor is 2, and there is no scaling");
  CHECK_SAYS(nn::SelfAttention(Params(), 8, {.heads = 4, .kv_heads = 3}),
             "[attention] 4 heads cannot share 3 kv_heads evenly. kv_heads must divide heads.");
  CHECK_SAYS(nn::SelfAttention(Params(), 6, {.heads = 2, .positions = Positions::rope}),
             "[attention] a width of 6 over 2 heads makes heads of size 3");
}

TEST_CASE("configuration: the checkpoint of as many layers as are allowed has a header that fits") {
  GptConfig widest{.layers = 1, .heads = 1, .width = 32, .ff_width = 32, .norm = NormKind::layer_norm};
  widest.activation = Activation::swiglu, widest.bias = widest.qk_norm = true;
  widest.fragments = 1, widest.fragmented = "h.*";
  const auto [params, model] = new_gpt(widest);
  const std::string value = R"({"data_offsets":[9223372036854775807,9223372036854775807],"dtype":"F32","shape":[)";
  size_t bytes = 0, tensors = 0;  // a layer with the longest names, offsets and sizes
  for (const Parameter& p : params.all()) {
    if (!p.name.starts_with("h.0.")) continue;
    for (const std::string pattern : {"\"model.h.4095.{}\":", "\"adamw.h.4095.{}.m\":", "\"adamw.h.4095.{}.v\":"}) {
      bytes += fmt::format(fmt::runtime(pattern), p.name.substr(4)).size() + value.size() + 1;
      for (size_t i = 0; i < p.tensor.shape().size(); ++i) bytes += std::string_view("9223372036,").size();
      bytes += std::string_view("]}").size();
      ++tensors;
    }
  }
  CHECK(tensors == 90);
  CHECK(bytes * 4096 < 90'000'000);  // the header limit is 100 MB
  GptConfig c;
  c.layers = 4096;
  CHECK(error_of([&] { c.validate(); }) == "no error");
  c.layers = 4097;
  CHECK_SAYS(c.validate(), "[gpt_config] layers is 4097. It must be at most 4096.");
  const std::map<std::string, std::string> metadata{{"x", std::string(100'000'000, 'x')}};
  CHECK_SAYS(write_safetensors("nowhere", {{"a", zeros({1})}}, metadata),
             "bytes, for 1 tensors and the metadata. The format allows 100000000. Put fewer tensors or less metadata");
}

TEST_CASE("configuration as JSON") {
  GptConfig c = uneven();  // no field has its default
  c.context = 16, c.width = 48;
  c.positions = Positions::rope, c.rope_theta = 500, c.norm = NormKind::rms_norm, c.norm_affine = false;
  c.dropout = 0.1, c.norm_eps = 1e-6, c.init_std = 0.3, c.head_dim = 6, c.qkv_bias = c.qk_norm = true;
  c.rope_scaling = {RopeScalingKind::llama3, 8, 2, 5, 64}, c.fragments = 3, c.fragmented = "h.0.*", c.bias = false;
  c.attn_dropout = 0, c.resid_dropout = 0.2, c.embd_dropout = 0.3, c.ff_dropout = FfDropout::activation;
  c.head_bias = c.embedding_norm = c.zero_proj = true, c.qk_norm_affine = false, c.attn_scale = 0.2, c.logit_cap = 5;
  c.rope_scaling.fraction = 0.5;
  CHECK(detail::gpt_config_from_json(to_json(c)) == c);
  CHECK(detail::gpt_config_from_json("{}") == GptConfig());
  CHECK(detail::gpt_config_from_json(R"({"width": 64, "dropout": 0})").width == 64);
  CHECK(detail::gpt_config_from_json(to_json(c), {.every_field = true}) == c);
  CHECK_SAYS(detail::gpt_config_from_json(R"({"vocab_size": 64})", {.name = "f.json", .every_field = true}),
             "f.json has no 'context'. Every field must be there.");
  auto refused = [](const char* text) { return error_of([&] { detail::gpt_config_from_json(text); }); };
  CHECK_HAS(refused(R"({"widht": 64})"),
            "[gpt_config] 'widht' is not known. Did you mean 'width'? The keys are vocab_size, ");
  CHECK_HAS(refused(R"({"completely_else": 64})"), "'completely_else' is not known. The keys are ");
  CHECK_HAS(refused(R"({"width": "64"})"), "'width' is \"64\". It must be an integer.");
  CHECK_HAS(refused(R"({"width": 64.5})"), "'width' is 64.5. It must be an integer.");
  CHECK_HAS(refused(R"({"width": 9223372036854775808})"),
            "'width' is 9223372036854775808. It must be an integer from -9223372036854775808 to 9223372036854775807.");
  CHECK_HAS(refused(R"({"dropout": true})"), "'dropout' is true. It must be a number.");
  CHECK_HAS(refused(R"({"bias": 1})"), "'bias' is 1. It must be true or false.");
  CHECK_HAS(refused(R"({"norm": 1})"), "'norm' is 1. It must be a name in quotes.");
  CHECK_HAS(refused(R"({"norm": "layernorm"})"),
            "'layernorm' is not known. Did you mean 'layer_norm'? The names are layer_norm, rms_norm.");
  CHECK_HAS(refused(R"({"activation": "sine"})"), "The names are gelu, gelu_tanh, silu, swiglu, relu, relu2.");
  CHECK_HAS(refused(R"({"positions": "rotary"})"),
            "[positions] 'rotary' is not known. Did you mean 'rope'? The names are learned, rope.");
  CHECK_HAS(refused(R"({"positions": 1})"), "'positions' is 1. It must be a name in quotes.");
  CHECK_HAS(refused(R"({"init": "xavir"})"), "[init] 'xavir' is not known. Did you mean 'xavier'?");
  CHECK_HAS(refused(R"({"init": true})"), "'init' is true. It must be a name in quotes.");
  CHECK_HAS(refused(R"({"kv_heads": 3})"), "kv_heads 3 does not divide heads 4");
  CHECK_HAS(refused(R"({"norm_affine": 1})"), "'norm_affine' is 1. It must be true or false.");
  CHECK_HAS(refused(R"({"rope_theta": "1"})"), "'rope_theta' is \"1\". It must be a number.");
  CHECK_HAS(refused(R"({"width": 64, "width": 32})"), "'width' comes twice");
  CHECK_HAS(refused(R"({"heads": 3})"), "width 128 is not a multiple of heads 3");
  CHECK_HAS(refused("[1]"), "It must be an object");
  CHECK_HAS(refused("{\"width\": "), "the text is not JSON");
  CHECK_HAS(refused(std::string(1000000, '[').c_str()), "nested too deeply");
  CHECK_HAS(refused(R"({"width": {"width": {"width": 1, "width": 1}}})"), "'width' comes twice");
  CHECK_HAS(refused(R"({"width": 1e2})"), "'width' is 100.0. It must be an integer.");
  CHECK_HAS(refused(R"({"width": 99999999999999999999})"), "'width' is 1e+20. It must be an integer from ");
  CHECK_HAS(refused(R"({"heads": -0})"), "heads is 0");
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999", "01", "+1", ".5", "1."}) {
    CAPTURE(number);
    CHECK_HAS(refused(fmt::format(R"({{"dropout": {}}})", number).c_str()), "the text is not JSON");
  }
  CHECK_HAS(refused("{\"norm\": \"\xff\"}"), "the text is not JSON");
  CHECK_HAS(refused(R"({"norm": "\ud800"})"), "the text is not JSON");
  CHECK_HAS(refused("{} {}"), "the text is not JSON");
}

TEST_CASE("a configuration cut anywhere is an Error, one with a bit flipped an Error or a configuration") {
  const std::string good = to_json(tiny_gpt());
  for (size_t n = 0; n < good.size(); ++n) {
    const std::string cut = good.substr(0, n);
    CHECK_SAYS(detail::gpt_config_from_json(cut), "the text is not JSON");
  }
  size_t accepted = 0;
  for (size_t i = 0; i < 8 * good.size(); ++i) {
    std::string text = good;
    text[i / 8] = char(text[i / 8] ^ 1 << i % 8);
    error_of(Error::Kind::value, [&] {
      const GptConfig c = detail::gpt_config_from_json(text);
      CHECK(detail::gpt_config_from_json(to_json(c)) == c);
      ++accepted;  // another digit, another blank
    });
  }
  CHECK(accepted > 0);
  CHECK(accepted < 2 * good.size());
}

TEST_CASE("the nearest known word") {
  const std::vector<std::string_view> known{"width", "heads", "height", "layers"};
  CHECK(detail::nearest("width", known) == "width");
  CHECK(detail::nearest("widht", known) == "width");  // a swap counts once
  CHECK(detail::nearest("hights", known) == "height");
  CHECK(detail::nearest("head", known) == "heads");
  CHECK(detail::nearest("banana", known) == "");
  CHECK(detail::nearest("", known) == "");
  CHECK(detail::nearest("width", {}) == "");
  CHECK(detail::did_you_mean("layer", known) == " Did you mean 'layers'?");
  CHECK(detail::did_you_mean("banana", known) == "");
  CHECK(detail::listed(known) == "width, heads, height, layers");
}
