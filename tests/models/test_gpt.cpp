// Gpt against torch in f64 (tests/data/make_fixtures.py): small models, forward, backward and ten AdamW steps.
// test_gpt_modes.cpp has mixed precision, recomputation, large sizes.
#include "support/files.h"
#include "support/gpt_oracle.h"

#include <tapegrad/tapegrad.h>

#include <cmath>

using namespace tg;

namespace {
// The parts of a bias of queries, keys and values, or of what is made for it, in f64.
Tensors qkv_of(const Tensor& t, const GptConfig& c) {
  const int64_t kv = c.head_size() * (c.kv_heads ? c.kv_heads : c.heads);
  return split(t.detach().to(DType::f64), {c.head_size() * c.heads, kv, kv}, -1);
}
double most(const Tensor& t) {  // NaN if an element is NaN
  double m = 0;
  for (double x : t.to_vector<double>()) m = std::isnan(x) || std::isnan(m) ? NAN : std::max(m, std::abs(x));
  return m;
}
// Without rotary positions, a key bias b adds q_i . b to all scores of row i. Softmax ignores that, so its gradient is
// rounding of terms of the size of the query bias's gradient.
bool has_idle_part(const std::string& name, const GptConfig& c) {
  return name.ends_with("qkv.bias") && c.positions == Positions::learned && !c.qk_norm;
}
void check_gradient(const std::string& name, const Tensor& g, const Tensor& expected, const GptConfig& c,
                    double bound) {
  CAPTURE(name);
  if (!has_idle_part(name, c)) {
    CHECK(distance(g, expected) <= bound);
    return;
  }
  const Tensors a = qkv_of(g, c), b = qkv_of(expected, c);
  CHECK(distance(a[0], b[0]) <= bound);
  CHECK(distance(a[2], b[2]) <= bound);
  CHECK(most(a[1]) <= bound * most(b[0]));
}
// Bounds how far `steps` steps of Adam (rate 1, no decay) move a weight. Cauchy-Schwarz: |sum a_i g_i| / sqrt(sum b_i
// g_i^2) <= sqrt(sum a_i^2 / b_i), with the shares a_i and b_i of gradient i in the corrected averages.
double adam_reach(int steps, double beta1, double beta2) {
  const auto share = [](double beta, int i, int t) {
    return (1 - beta) * std::pow(beta, t - i) / (1 - std::pow(beta, t));
  };
  double reach = 0;
  for (int t = 1; t <= steps; ++t) {
    double square = 0;
    for (int i = 1; i <= t; ++i) square += std::pow(share(beta1, i, t), 2) / share(beta2, i, t);
    reach += std::sqrt(square);
  }
  return reach;
}
// Adam normalises the rounding error in the gradient of a key bias, so the bias must only stay within `reach` of its
// start.
void check_parameter(const Parameter& p, const Tensor& start, const Tensor& expected, const GptConfig& c, double bound,
                     double reach) {
  CAPTURE(p.name);
  if (!has_idle_part(p.name, c)) {
    CHECK(norm_distance(p.tensor, expected) <= bound);
    return;
  }
  const Tensors a = qkv_of(p.tensor, c), b = qkv_of(expected, c);
  CHECK(norm_distance(a[0], b[0]) <= bound);
  CHECK(norm_distance(a[2], b[2]) <= bound);
  CHECK(most(a[1] - qkv_of(start, c)[1]) <= reach);  // false for NaN
}

}  // namespace

TEST_CASE("logits, loss and gradients equal torch") {
  for (const std::string& name : kOracles)
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE_ALL(name, name_of(dtype));
      const double bound = dtype == DType::f32 ? 1e-5 : 1e-11;
      const Oracle o(name);
      const Params params(Device(), 0, dtype);
      const Gpt model = o.model(params);
      const Tensor logits = model.forward(o.batch("tokens", 0));
      CHECK(distance(logits, o.file.tensor("logits")) <= bound);
      const Tensor loss = cross_entropy(logits, o.batch("targets", 0));
      CHECK(distance(loss, o.file.tensor("loss")) <= bound);
      const GradMap grads = backward(loss);
      const StateDict expected = o.weights("grad");
      CHECK(params.all().size() == expected.size());
      for (auto& p : params.all()) check_gradient(p.name, grads[p.tensor], expected.at(p.name), o.config, bound);
    }
}

TEST_CASE("bf16 parameters: logits near those of torch") {
  const Oracle o("gpt_nano");
  const Params params(Device(), 0, DType::bf16);
  const Gpt model = o.model(params);
  const Tensor logits = model.forward(o.batch("tokens", 0));
  CHECK(logits.dtype() == DType::f32);
  // Values are rounded to 8 bits, 2^-9, after each of about 20 ops.
  CHECK(distance(logits, o.file.tensor("logits")) <= 20 * 0x1p-9);
}

TEST_CASE("ten AdamW steps equal torch") {
  for (const std::string& name : kOracles)
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE_ALL(name, name_of(dtype));
      // Adam divides by the gradient's size: weights with a gradient near 0 follow the sign of rounding.
      const bool f32 = dtype == DType::f32;
      const double loss_bound = f32 ? 1e-5 : 1e-13, weight_bound = f32 ? 1e-4 : 1e-12;
      const Oracle o(name);
      const Params params(Device(), 0, dtype);
      const Gpt model = o.model(params);
      AdamW opt(params.trainable(), {.lr = 1e-3, .weight_decay = 0.1});
      std::vector<double> losses;
      for (int64_t step = 1; step <= 10; ++step) {
        const Tensor loss = cross_entropy(model.forward(o.batch("tokens", step)), o.batch("targets", step));
        opt.step(backward(loss));
        losses.push_back(loss.item<double>());
      }
      CHECK(distance(tensor(losses, {10}), o.file.tensor("losses")) <= loss_bound);
      const StateDict start = o.weights("init"), expected = o.weights("final");
      const double reach = 1e-3 * adam_reach(10, 0.9, 0.999) * (1 + 1e-3);  // plus rounding of ten sums
      for (auto& p : params.all())
        check_parameter(p, start.at(p.name), expected.at(p.name), o.config, weight_bound, reach);
    }
}

TEST_CASE("every variant learns, and all of its parameters get gradients") {
  for (const NormKind norm : {NormKind::layer_norm, NormKind::rms_norm})
    for (const Activation act : {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::swiglu})
      for (const Positions positions : {Positions::learned, Positions::rope})
        for (const bool bias : {false, true}) {
          CAPTURE_ALL(name_of(norm), name_of(act), name_of(positions), bias);
          GptConfig c = tiny_gpt();
          c.norm = norm, c.activation = act, c.bias = bias, c.tied_head = bias, c.ff_width = 12;
          c.positions = positions;
          if (positions == Positions::rope) c.kv_heads = 1, c.init = InitScheme::xavier, c.norm_affine = bias;
          const auto [params, model] = new_gpt(c, Params(Device(), 5));
          const Tensor tokens = tensor({1, 2, 3, 4, 5, 6, 7, 8}, {1, 8}),
                       targets = tensor({2, 3, 4, 5, 6, 7, 8, 9}, {1, 8});
          AdamW opt(params.trainable(), {.lr = 0.02});
          double first = 0, last = 0;
          for (int i = 0; i < 30; ++i) {
            const Tensor loss = cross_entropy(model.forward(tokens), targets);
            opt.step(backward(loss), {.clip_norm = 1});  // throws if a parameter has no gradient
            last = loss.item<double>();
            if (i == 0) first = last;
          }
          CHECK(first > 1);
          CHECK(last < 0.2 * first);
        }
}

TEST_CASE("norms without weights are norms with weights of one") {
  GptConfig c = tiny_gpt();
  c.bias = true;
  const auto [with, model] = new_gpt(c, Params(Device(), 5));
  c.norm_affine = false;
  const auto [without, plain] = new_gpt(c, Params(Device(), 5));
  for (auto& p : without.all()) CHECK(!has(p.name, "ln_"));
  CHECK(with.all().size() == without.all().size() + 10);  // five norms, each with a weight and a bias
  const Tensor tokens = tensor({1, 2, 3, 4}, {1, 4});
  CHECK(distance(plain.forward(tokens), model.forward(tokens)) <= 1e-6);
}

TEST_CASE("forward: what it refuses, and where the error was") {
  const auto [params, model] = new_gpt(tiny_gpt());
  CHECK_SAYS(model.forward(zeros({1, 9}, DType::i64)), "9 positions, and the context is 8");
  CHECK_SAYS(model.forward(zeros({8}, DType::i64)), "tokens must be (B, T) of i32 or i64, got (8) i64");
  for (const Shape& s : {Shape{1, 8}, Shape{8}}) {  // the dtype is checked first
    const std::string floats = error_of([&] { model.forward(zeros(s)); });
    CHECK_HAS(floats, fmt::format("[gpt] tokens must be i32 or i64, got {} f32.", s), "use .to(DType::i64)");
    CHECK(!has(floats, "batch"));
  }
  CHECK_SAYS(model.forward(Tensor()), "got an empty tensor");
  CHECK_SAYS(model.forward(zeros({1, 0}, DType::i64)), "at least one sequence and one token");
  for (const int64_t id : {int64_t(11), int64_t(-1)}) {
    CHECK_SAYS(model.forward(tensor({int64_t(3), id}, {1, 2})), std::to_string(id), "11", "in gpt.wte");
  }
  const nn::Mlp mlp(params.at("own").at("mlp"), 8, {});
  CHECK_SAYS(mlp.forward(zeros({2, 7})), "in own.mlp.fc");
}

TEST_CASE("cache: logits as without it, whatever the pieces") {
  for (const std::string& name : kOracles) {
    CAPTURE(name);
    const Oracle o(name);
    const Params params;
    const Gpt model = o.model(params);
    NoGradScope off;
    const Tensor tokens = o.batch("tokens", 0);  // (B, T) as long as the context
    const Tensor whole = model.forward(tokens);
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{1, 1, 1, 1}, {4, 2, 1, 1}, {7}}) {
      KvCache cache;
      int64_t at = 0;
      for (const int64_t n : pieces) {
        const Tensor part = model.forward(slice(tokens, 1, at, at + n), {.cache = &cache});
        CHECK(distance(part, slice(whole, 1, at, at + n)) <= 1e-5);
        at += n;
        CHECK(cache.length() == at);
      }
      const Tensor last = model.forward(slice(tokens, 1, at, tokens.size(1)), {.cache = &cache, .last_only = true});
      CHECK(distance(last, slice(whole, 1, tokens.size(1) - 1, tokens.size(1))) <= 1e-5);
      CHECK_SAYS(model.forward(slice(tokens, 1, 0, 2), {.cache = &cache}),
                 fmt::format("2 tokens after {} in the cache are {} positions, and the context is {}", tokens.size(1),
                             tokens.size(1) + 2, tokens.size(1)));
      CHECK(cache.length() == tokens.size(1));
      cache.clear();
      CHECK(cache.length() == 0);
    }
  }
}
