// AdamW::backward_and_step(): the values of backward() and step(), its memory, refusals.
#include <tapegrad/tapegrad.h>

#include <functional>

#include "support/helpers.h"

using namespace tg;
namespace {
using Loss = std::function<Tensor()>;
struct FoldedRun {
  Params params;
  Loss loss;
  AdamW adam;
  template <class Make>
  FoldedRun(DType dtype, const Make& make, const AdamWConfig& c, std::vector<ParameterGroup> groups = {})
      : params({}, 3, dtype), loss(make(params)), adam(params.trainable(), c, std::move(groups)) {}
  StateDict all() const {
    StateDict r = adam.state();
    for (const auto& [name, t] : params.state()) r[name] = t;
    return r;
  }
};
void near(const StateDict& a, const StateDict& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, t] : a) {
    CAPTURE(name);
    if (tolerance == 0)
      CHECK(bits_of(t) == bits_of(b.at(name)));
    else
      CHECK(distance(t, b.at(name)) <= tolerance);
  }
}
// Two layers with biases on x (2, rows, 19) -> 33 -> 21.
auto two_layers(int64_t rows) {
  return [rows](const Params& p) -> Loss {
    const nn::Linear a(p.at("a"), 19, 33), b(p.at("b"), 33, 21);
    const DType dtype = p.dtype();
    const Tensor x = random<double>({2, rows, 19}, 1).to(dtype), y = random<double>({2, rows, 21}, 2).to(dtype);
    return [=] { return mse_loss(b.forward(relu(a.forward(x))), y); };
  };
}
auto fragmented(nn::Selection how) {
  return [how](const Params& p) -> Loss {
    const nn::FragmentedLinear l(p.at("l"), 64, 40, {.fragments = 4});
    const Tensor x = random<double>({5, 64}, 1).to(p.dtype()), y = random<double>({5, 40}, 2).to(p.dtype());
    return [=] { return mse_loss(l.forward(x, how), y); };
  };
}
const AdamWConfig kConfig{.lr = 1e-2, .weight_decay = 0.1};
}  // namespace

TEST_CASE("backward_and_step: the values of backward() and step()") {
  const auto same = [](auto make, double clip) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE(int(dtype));
      const std::vector<ParameterGroup> groups{{.pattern = "*", .lr_scale = 0.5, .weight_decay = 0.3, .beta1 = 0.8}};
      AdamWConfig c = kConfig;
      if (clip == 0 && dtype == DType::f32) c.moments = DType::bf16;
      FoldedRun plain(dtype, make, c, groups), folded(dtype, make, c, groups);
      // The norm is reduced in another order.
      const double tolerance = clip > 0 ? (dtype == DType::f32 ? 1e-5 : 1e-12) : dtype == DType::f32 ? 0 : 1e-13;
      for (int step = 0; step < 4; ++step) {
        const Tensor norm =
            plain.adam.step(backward(plain.loss()), {.clip_norm = clip, .missing_grad = MissingGrad::skip});
        const Tensor other =
            folded.adam.backward_and_step(folded.loss(), {.clip_norm = clip, .missing_grad = MissingGrad::skip});
        REQUIRE(bool(norm) == (clip > 0));
        REQUIRE(bool(other) == (clip > 0));
        if (norm) {
          CHECK(other.dtype() == norm.dtype());
          CHECK(distance(other, norm) < (dtype == DType::f32 ? 1e-6 : 1e-12));
        }
        near(folded.all(), plain.all(), tolerance);
      }
      CHECK(folded.adam.steps() == 4);
    }
  };
  for (const double clip : {0.0, 0.05}) {
    for (const int64_t rows : {1, 3, 8}) same(two_layers(rows), clip);
    for (const auto how : {nn::Selection::soft, nn::Selection::hard}) same(fragmented(how), clip);
  }
}
TEST_CASE("backward_and_step: lazy and compiled give the bits of eager, and all parameters take the same steps") {
  const auto same = [](auto make, double clip) {
    AdamWConfig c = kConfig;
    if (clip > 0) c.moments = DType::bf16;
    FoldedRun eager(DType::f32, make, c), lazy(DType::f32, make, c), compiled(DType::f32, make, c);
    const auto one = [clip](FoldedRun& r) {
      const Tensor loss = r.loss();
      r.adam.backward_and_step(loss, {.clip_norm = clip, .missing_grad = MissingGrad::skip});
      return loss.detach();
    };
    const Compiled step = compile([&](Inputs) { return std::vector<Tensor>{one(compiled)}; });
    for (int i = 0; i < 4; ++i) {
      for (FoldedRun* r : {&eager, &lazy, &compiled}) r->adam.set_lr(0.01 / (i + 1));
      const Tensor expected = one(eager);
      under<LazyScope>([&] { one(lazy); });
      CHECK(bits_of(step({})[0]) == bits_of(expected));
      near(lazy.all(), eager.all(), 0);
      near(compiled.all(), eager.all(), 0);
      CHECK(compiled.adam.steps() == i + 1);
    }
  };
  for (const double clip : {0.0, 0.05}) {
    same(two_layers(2), clip);
    for (const auto how : {nn::Selection::soft, nn::Selection::hard}) same(fragmented(how), clip);
  }
}
TEST_CASE("backward_and_step: no gradient of a weight is stored") {
  constexpr int64_t kSide = 512, kBytes = kSide * kSide * 4;
  const auto make = [](const Params& p) -> Loss {
    const nn::Linear l(p.at("l"), kSide, kSide, {.bias = false});
    const Tensor x = random({16, kSide}, 1);
    return [=] { return mean(l.forward(x) * l.forward(x)); };
  };
  const auto once = [](const Params& p) -> Loss {
    const nn::Linear l(p.at("l"), kSide, kSide);
    const Tensor x = random({16, kSide}, 1), y = random({16, kSide}, 2);
    return [=] { return mse_loss(l.forward(x), y); };
  };
  const auto peak_of = [](FoldedRun& r, bool folded) {
    for (int i = 0; i < 2; ++i) {  // later calls reuse buffers of the first
      reset_peak();
      if (folded)
        r.adam.backward_and_step(r.loss());
      else
        r.adam.step(backward(r.loss()));
    }
    return memory_stats().peak;
  };
  FoldedRun plain(DType::f32, once, kConfig), folded(DType::f32, once, kConfig);
  const int64_t others = 4 * 16 * kSide * 5;  // x, y and derived tensors
  const int64_t before = memory_stats().live;
  CHECK(peak_of(plain, false) - before >= kBytes);
  CHECK(peak_of(folded, true) - before <= others);
  FoldedRun twice(DType::f32, make, kConfig);
  CHECK_SAYS(twice.adam.backward_and_step(twice.loss()),
             "'l.weight' is used more than once, so its gradient is a sum of products");
}
TEST_CASE("backward_and_step: a weight that the tape holds a view of is updated in place") {
  constexpr int64_t kSide = 256;
  const auto make = [](const Params& p) -> Loss {
    const nn::FragmentedLinear l(p.at("l"), kSide, kSide, {.fragments = 4});
    const Tensor x = random({2, kSide}, 1), y = random({2, kSide}, 2);
    return [=] { return mse_loss(l.forward(x), y); };
  };
  FoldedRun r(DType::f32, make, kConfig);
  const void* const experts = r.params.all()[1].tensor.data<float>();
  const int64_t before = memory_stats().live;
  for (const double clip : {0.0, 0.05}) {
    reset_peak();
    r.adam.backward_and_step(r.loss(), {.clip_norm = clip});
    CHECK(memory_stats().peak - before < 4 * kSide * kSide / 2);
    CHECK(r.params.all()[1].tensor.data<float>() == experts);
  }
}
TEST_CASE("backward_and_step: what is stored, and what is refused, with nothing changed") {
  const auto make = two_layers(3);
  FoldedRun plain(DType::f32, make, kConfig), stored(DType::f32, make, kConfig), few(DType::f32, make, kConfig);
  plain.adam.step(backward(plain.loss()));
  stored.adam.backward_and_step(stored.loss(), {.stored = {"*"}});
  few.adam.backward_and_step(few.loss(), {.max_rows = 5});  // products have 6 rows
  near(stored.all(), plain.all(), 0);
  near(few.all(), plain.all(), 0);
  const StateDict before = plain.all();
  const auto refused = [&](FoldedStepOptions o) {
    return error_of([&] { plain.adam.backward_and_step(plain.loss(), o); });
  };
  CHECK_HAS(refused({.stored = {"c.*"}}), "the pattern 'c.*' of `stored` matches none of the 4 parameters");
  CHECK_HAS(refused({.clip_norm = -1}), "clip_norm is -1");
  CHECK_SAYS(plain.adam.backward_and_step(zeros({})), "does not depend on a tensor");
  const FoldedRun hard(DType::f32, fragmented(nn::Selection::hard), kConfig);
  AdamW adam = hard.adam;
  CHECK_SAYS(adam.backward_and_step(hard.loss()), "'l.selector' (4, 16) has no gradient");
  near(plain.all(), before, 0);
  CHECK(plain.adam.steps() == 1);
  CHECK(adam.steps() == 0);
}
TEST_CASE("backward_and_step: a Gpt, and its tied table") {
  const auto gpt = [](bool tied) {
    return [tied](const Params& p) -> Loss {
      const Gpt model(
          p, {.vocab_size = 11, .context = 8, .layers = 2, .heads = 2, .width = 16, .bias = true, .tied_head = tied});
      const Tensor tokens = tensor<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4, 5}, {2, 8});
      return [=] { return cross_entropy(model.forward(tokens), tokens); };
    };
  };
  for (const double clip : {0.0, 0.1}) {
    FoldedRun plain(DType::f32, gpt(false), kConfig), folded(DType::f32, gpt(false), kConfig);
    for (int i = 0; i < 3; ++i) {
      plain.adam.step(backward(plain.loss()), {.clip_norm = clip});
      folded.adam.backward_and_step(folded.loss(), {.clip_norm = clip});
    }
    near(folded.all(), plain.all(), clip > 0 ? 1e-4 : 0);
  }
  FoldedRun tied(DType::f32, gpt(true), kConfig), plain(DType::f32, gpt(true), kConfig);
  CHECK_SAYS(tied.adam.backward_and_step(tied.loss()), "'wte.weight' is used more than once");
  tied.adam.backward_and_step(tied.loss(), {.stored = {"wte.weight"}});
  plain.adam.step(backward(plain.loss()));
  near(tied.all(), plain.all(), 0);
}
