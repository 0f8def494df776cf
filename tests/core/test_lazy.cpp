// Lazy evaluation, plans and the errors of ops that run late.
#include <tapegrad/core/node.h>
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

using namespace tg;
namespace {
struct Fragile : OpOf<Fragile> {  // fails when run
  static constexpr auto kName = "test_fragile";
  Layouts infer(Inputs in) const override { return {in[0].layout()}; }
};
struct Missing : OpOf<Missing> {  // no kernel anywhere
  static constexpr auto kName = "test_missing";
  Layouts infer(Inputs in) const override { return {in[0].layout()}; }
};
struct Composed : OpOf<Composed> {  // no kernel: composed
  static constexpr auto kName = "test_composed";
  Layouts infer(Inputs in) const override { return {in[0].layout()}; }
  Tensors compose(Inputs in) const override { return {in[0] * 2.0 + in[0]}; }
};
void fragile(const Fragile&, Bufs, Bufs, Context&) { throw Error(Error::Kind::internal, "[test_fragile] broke"); }
TG_KERNEL(Fragile, cpu, fragile);
}  // namespace

TEST_CASE("reading evaluates what is needed and nothing else") {
  const Tensor x = random({4}, 1);
  LazyScope lazy;
  CHECK(lazy_enabled());
  const Tensor a = x * 2.0, b = a + x, unused = tg::exp(x);
  CHECK(values(b) == values(x * 3.0));
  CHECK(a.materialized());
  CHECK(b.materialized());
  CHECK_FALSE(unused.materialized());
  CHECK(b.data<float>()[0] == x.data<float>()[0] * 3);
  const auto n = engine_stats().evaluations;
  eval({a, b, x, Tensor()});
  CHECK(engine_stats().evaluations == n);
}
TEST_CASE("an eager op on a lazy input runs both") {
  const Tensor x = random({4}, 1);
  const Tensor y = under<LazyScope>([&] { return x * 2.0; });
  CHECK_FALSE(lazy_enabled());
  CHECK_FALSE(y.materialized());
  const Tensor z = y + x;
  CHECK(z.materialized());
  CHECK(values(z) == values(x * 3.0));
}
TEST_CASE("a pending reader keeps the old value after assign") {
  const Tensor w = filled({2, 2}, 1.f), m = filled({2, 2}, 0.f), v = filled({2, 2}, 0.f);
  Tensor y, z;
  {
    LazyScope lazy;
    y = w + w;
    const Tensor view = transpose(w);
    w.assign(filled({2, 2}, 5.f));
    z = view + w;
    CHECK_FALSE(y.materialized());
  }
  CHECK(values(z) == std::vector<float>(4, 6));
  CHECK(values(y) == std::vector<float>(4, 2));
  // The reader is outside the update's plan, so the update must not write in place.
  LazyScope lazy;
  y = w + w;
  const Tensor late = transpose(w);
  adamw_step(w, m, v, filled({2, 2}, 1.f), {.weight_decay = 0}, 1, 1);
  eval({w, m, v});
  CHECK(values(w)[0] == doctest::Approx(4));
  CHECK(values(y) == std::vector<float>(4, 10));
  CHECK(values(late) == std::vector<float>(4, 5));
}
TEST_CASE("a leaf that is written under a pending reader is found") {
  Tensor w = random({3, 2}, 2);
  LazyScope lazy;
  const Tensor p = w + w;
  w.mutable_data<float>()[0] = 1;
  CHECK_SAYS(eval({p}), "was changed after it was captured by this lazy op");
}
TEST_CASE("errors name op, values, rule and scope; in lazy mode the scope of emission") {
  const Tensor a = random({2, 3}, 1).label("tokens"), b = random({2, 3}, 2);
  const NameScope s("gpt");
  const auto e = error_of([&] {
    NameScope h("h.3"), m("mlp");
    matmul(a, b);
  });
  CHECK_HAS(e, "[matmul] inner sizes differ: lhs is 'tokens' (2, 3) f32, rhs is (2, 3) f32. The lhs's last size",
            "in gpt.h.3.mlp");
  Tensor y, z;
  {
    LazyScope lazy;
    {
      NameScope h("h.7"), m("mlp");
      y = emit1(make_ref<Fragile>(), {a});
    }
    z = y + y;
  }
  CHECK_SAYS(eval({z}), "[test_fragile] broke\n    in gpt.h.7.mlp");
  CHECK_SAYS(values(z), "[test_fragile] cannot be read: it failed before: [test_fragile] broke");
  Tensor x = random({2}, 3).requires_grad_();
  {
    NameScope l("grad");
    y = sum(silu(x));
  }
  LazyScope lazy;
  const Tensor g = backward(y)[x];
  CHECK(g.value()->producer->scope->path() == "gpt.grad");
  CHECK_SAYS(x.assign(x * x), "a tracked value would lose its gradient");
}
TEST_CASE("a failed eager update leaves the variables as they were") {
  const Tensor w = filled({2}, 1.f);
  const Tensor in[] = {w};
  CHECK_THROWS(detail::emit_update(make_ref<Fragile>(), in, 1));
  CHECK(values(w) == std::vector<float>(2, 1));
}
TEST_CASE("an op without a kernel says so, or is composed of others") {
  const Tensor x = random({2}, 1);
  const std::string missing = error_of([&] { emit1(make_ref<Missing>(), {x}); });
  CHECK(missing ==
        "[test_missing] has no kernel for backend cpu. Move its inputs with .to(device), or, for a custom op, write "
        "TG_KERNEL(<op>, cpu, <function>), or TG_UNARY_OP(<struct>, cpu), in a .cpp file of your program. A static "
        "library drops the object of such a file: make it an OBJECT library, or link the whole archive "
        "($<LINK_LIBRARY:WHOLE_ARCHIVE,...> in CMake).");
  CHECK(values(emit1(make_ref<Composed>(), {x})) == values(x * 2.0 + x));
}
TEST_CASE("plans: replayed for the same graph, made anew for other attributes, layouts, dtypes and liveness") {
  LazyScope lazy;
  const auto made_by = [](auto f) {
    const auto before = engine_stats();
    f();
    CHECK(engine_stats().plans + engine_stats().replays == before.plans + before.replays + 1);
    return engine_stats().plans - before.plans;
  };
  const Tensor x = random({3, 3}, 1), wide = random<double>({3, 3}, 1), row = random({1, 3}, 2);
  const auto run = [&](const Tensor& a, int64_t dim) { eval({sum(tg::exp(a * a), {dim})}); };
  made_by([&] { run(x, 0); });
  CHECK(made_by([&] { run(x, 0); }) == 0);
  CHECK(made_by([&] { run(random({3, 3}, 9), 0); }) == 0);
  CHECK(made_by([&] { run(x, 1); }) == 1);
  CHECK(made_by([&] { run(wide, 0); }) == 1);
  CHECK(made_by([&] { run(row, 0); }) == 1);
  CHECK(made_by([&] { run(transpose(x), 0); }) == 1);
  CHECK(made_by([&] {
          const Tensor held = tg::exp(x * x);  // a later op reads it
          eval({sum(held, {0})});
        }) == 1);
  CHECK(made_by([&] { eval({sum(tg::exp(x * x) * 2.0, {0})}); }) == 1);
  CHECK(made_by([&] { eval({sum(tg::exp(x * x) * 3.0, {0})}); }) == 0);  // numbers change from step to step
}
TEST_CASE("a plan belongs to the layouts of its leaves") {
  const Tensor b = random({64, 64}, 2);
  for (int64_t rows : {64, 1, 64}) {
    const Tensor x = random({rows, 64}, 1);
    const auto run = [&] { return x * x + b; };
    const Tensor y = under<LazyScope>(run);
    CHECK(values(y) == values(run()));
  }
}
TEST_CASE("a replayed plan uses the numbers and random states of its own nodes") {
  const Tensor x = filled({8}, 1.f);
  Rng rng{3};
  std::vector<std::vector<float>> got;
  for (double s : {2.0, 5.0}) {
    LazyScope lazy;
    const Tensor y = dropout(x * s, 0.5, rng) + randn({8}, rng);
    eval({y});
    got.push_back(values(y));
  }
  Rng again{3};
  for (size_t i = 0; i < 2; ++i) CHECK(got[i] == values(dropout(x * (i ? 5.0 : 2.0), 0.5, again) + randn({8}, again)));
  CHECK(rng == again);
}
TEST_CASE("in place only where no other operand looks at the same storage") {
  const Tensor x = random({3, 3}, 1);
  const auto run = [&] {
    const Tensor a = x * x, b = a + transpose(a);
    return b * b;
  };
  const Tensor y = under<LazyScope>(run);
  CHECK(values(y) == values(run()));
}
TEST_CASE("what the tape keeps inside one plan is not written over, and a plan of an untracked graph is another plan") {
  Tensor x = random({4}, 1), w = random({4}, 2).requires_grad_(), c = filled({4}, 1.f), loss, b;
  const auto run = [&] {
    LazyScope lazy;
    {
      const Tensor a = x * x;
      // The product saves a; tanh saves its output, which the sum reads last. b reads a last.
      loss = sum(tg::tanh(a * w) + c);
      b = a + c;
    }
    eval({loss, b});
  };
  under<NoGradScope>(run);
  run();
  CHECK(values(backward(loss)[w]) == values(backward(sum(tg::tanh(x * x * w) + c))[w]));
}
