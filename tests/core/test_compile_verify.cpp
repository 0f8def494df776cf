// CompileOptions::verify: changes that a replay cannot see are Errors that name them.
#include <tapegrad/tapegrad.h>

#include "support/files.h"
#include "support/helpers.h"

using namespace tg;
namespace {
double value(const std::vector<Tensor>& y) { return y[0].item<double>(); }
// Message of the check after `change`. The replay before it and the call after it pass.
std::string found(const TensorFunction& f, const std::function<void()>& change, CompileOptions o = {}) {
  o.verify = 1;
  const Compiled c = compile(f, o);
  const Tensor x = filled<float>({}, 3);
  for (int i = 0; i < 3; ++i) c({x});
  CHECK(c.stats().verified == 2);
  change();
  const std::string what = error_of([&] { c({x}); });
  CHECK(bits_of(c({x})[0]) == bits_of(f(std::vector{x})[0]));
  return what;
}
using Results = std::vector<Tensor>;
}  // namespace

TEST_CASE("verify finds a handle that has another tensor, and the next call is right") {
  Tensor mask = filled<float>({}, 2);
  const std::string e = found([&](Inputs x) { return Results{x[0] + mask}; }, [&] { mask = filled<float>({}, 5); });
  CHECK_HAS(e, "[compile] the function now differs from its replays: op 1, add, reads another tensor as its",
            "input 1. Replays since the last check (CompileOptions::verify is 1)", "compiled at ");
}

TEST_CASE("verify finds swapped handles, a struct that is replaced, and a tensor that is read no more") {
  Tensor a = filled<float>({}, 2), b = filled<float>({}, 5);
  CHECK_HAS(found([&](Inputs x) { return Results{x[0] * a - b}; }, [&] { std::swap(a, b); }), "op 1, mul, reads");
  const Params params(Device::cpu(), 1);
  nn::Linear layer(params.at("a"), 1, 1), other(params.at("b"), 1, 1);
  const NoGradScope off;
  const auto forward = [&](Inputs x) { return Results{layer.forward(reshape(x[0], {1, 1}))}; };
  CHECK_HAS(found(forward, [&] { layer = other; }), "reads another tensor as its input 1");
  bool twice = true;
  const auto choose = [&](Inputs x) { return Results{twice ? x[0] + a + b : x[0] + a}; };
  CHECK_HAS(found(choose, [&] { twice = false; }), "it makes 1 ops, and made 2");
}

TEST_CASE("verify finds numbers, options and branches of the host") {
  double rate = 0.5;
  CHECK_HAS(found([&](Inputs x) { return Results{x[0] * rate}; }, [&] { rate = 0.25; }), "op 1, mul_scalar, is");
  bool swap = false;
  const auto branch = [&](Inputs x) { return Results{swap ? exp(x[0]) : tanh(x[0])}; };
  CHECK_HAS(found(branch, [&] { swap = true; }), "op 1, exp, is another op");
  const auto first = [&](Inputs x) {
    const Tensor y = exp(x[0]), z = tanh(x[0]);
    return swap ? Results{y, z} : Results{z, y};
  };
  CHECK_HAS(found(first, [&] { swap = false; }), "it returns other tensors");
  int64_t start = 0;
  const auto rotated = [&](Inputs x) { return Results{rope(expand(x[0], {3, 4}), {.start = start})}; };
  CHECK_HAS(found(rotated, [&] { start = 2; }), "op 2, rope, is");
  Tensor a = filled<float>({}, 0), b = filled<float>({}, 0);
  bool to_b = false;
  const auto assigns = [&](Inputs x) { return (to_b ? b : a).assign(exp(x[0])), Results{x[0]}; };
  CHECK_HAS(found(assigns, [&] { to_b = true; }), "it assigns other tensors");
  {
    const Params params(Device::cpu(), 1);
    const Tensor w = params.get("w", {}, Init::constant(1));
    Sgd sgd(params.trainable(), {.lr = 0.1});
    double clip = 1;
    const auto step = [&](Inputs x) {
      sgd.step(backward(w * x[0]), {.clip_norm = clip});
      return Results{x[0] * 1.0};
    };
    CHECK_HAS(found(step, [&] { clip = 0.5; }), "sgd_step in sgd, is another op or has other attributes");
  }
  Rng one{1}, two{2};
  const auto drops = [&](Inputs x) {
    const Tensor y = dropout(expand(x[0], {4}), 0.5, swap ? two : one);
    return Results{y * 0.0};
  };
  CHECK_HAS(found(drops, [&] { swap = true; }, {.generators = {&one, &two}}), "op 2, dropout, is");
}

TEST_CASE("verify compares the constants that CompileOptions::constants allows") {
  std::vector<float> host{1, 2, 3};
  const auto f = [&](Inputs x) { return Results{x[0] * tensor(host, {3})}; };
  CHECK_HAS(found(f, [&] { host[2] = 4; }, {.constants = true}), "op 1, mul, reads another tensor as its input 1");
}

TEST_CASE("verify: no tensor, step number or generator has changed after the Error, and none by a check") {
  const Params params(Device::cpu(), 1);
  const Tensor w = params.get("w", {4}, Init::constant(1));
  AdamW optimiser(params.trainable(), {.lr = 0.1});
  Rng noise{1};
  Tensor state = filled<float>({}, 0);
  double number = 1;
  const auto run = [&](size_t verify) {
    return compile(
        [&](Inputs x) {
          state = state + x[0];
          const Tensor loss = sum(dropout(w * x[0], 0.5, noise)) * number;
          optimiser.step(backward(loss));
          return Results{loss.detach()};
        },
        {.generators = {&noise}, .state = {&state}, .verify = verify});
  };
  const Compiled c = run(1);
  const Tensor x = filled<float>({}, 2);
  for (int i = 0; i < 3; ++i) c({x});
  const auto now = [&] {
    std::vector<std::vector<std::byte>> bits{bits_of(w), bits_of(state)};
    for (const auto& [name, t] : optimiser.state()) bits.push_back(bits_of(t));
    return std::tuple(bits, noise, optimiser.steps());
  };
  CHECK(optimiser.steps() == 3);
  CHECK(state.item<double>() == 6);
  number = 2;
  const auto before = now();
  CHECK_SAYS(c({x}), "now differs from its replays");
  CHECK(now() == before);
}

TEST_CASE("verify: which replays are checked, and what passes") {
  for (const size_t n : {size_t(0), size_t(1), size_t(3), size_t(1000)}) {
    Tensor w = filled<float>({3}, 1);
    const Compiled f = compile([&](Inputs x) { return Results{x[0] * w}; }, {.verify = n});
    for (int i = 0; i < 8; ++i) {
      w.assign(random({3}, uint64_t(i)));
      f({w});
    }
    CHECK(f.stats().replays == 7);
#ifdef NDEBUG
    CHECK(f.stats().verified == (n == 0 ? 0 : n == 1 ? 7 : n == 3 ? 3 : 1));
#else
    CHECK(f.stats().verified == (n == 0 ? 0 : 7));
#endif
  }
}

TEST_CASE("verify: a function with a gradient of its own is the same in each trace") {
  const Tensor w = filled<float>({3}, 2).requires_grad_();
  const auto own = custom_vjp([](Inputs in) { return Results{exp(in[0])}; },
                              [](Inputs in, Inputs, Inputs grads) { return Results{in[0] * grads[0]}; });
  const Compiled f = compile([&](Inputs x) { return Results{backward(sum(own(std::vector<Tensor>{w * x[0]})[0]))[w]}; },
                             {.verify = 1});
  for (int i = 0; i < 4; ++i) f({random({3}, uint64_t(i))});
  CHECK(f.stats().verified == 3);
}

TEST_CASE("verify: an exception of the function leaves the plan as it was") {
  bool fail = false;
  const Compiled f = compile(
      [&](Inputs x) {
        if (fail) throw std::runtime_error("the function fails");
        return Results{x[0] * 2.0};
      },
      {.verify = 1});
  const Tensor x = filled<float>({}, 3);
  f({x});
  fail = true;
  CHECK_THROWS_WITH(f({x}), "the function fails");
  fail = false;
  CHECK(value(f({x})) == 6);
  CHECK(f.stats().traces == 1);
}
