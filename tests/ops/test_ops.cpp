#include <tapegrad/core/node.h>
#include <tapegrad/core/plan/compile.h>

#include <set>
#include <unordered_set>

#include "support/case_run.h"
#include "support/effort.h"
#include "support/threads.h"

using namespace tg;
namespace {
void check_against_f64(const OpCase& c, DType t) {
  const auto x = make_inputs(c, t);
  const auto w = weights_of(c.fn(x));
  const Result got = run_case(c, x, w), expected = run_case(c, wide(x), wide(w));
  for (size_t i = 0; i < got.grads.size(); ++i)
    if (got.grads[i]) CHECK(got.grads[i].layout().dtype == t);
  check_close(c, got, expected, t == DType::f32 ? c.f32 : c.bf16);
}
}  // namespace

TEST_CASE("f32 against f64 from the same inputs, values and gradients") {
  for (auto& c : op_cases()) check_against_f64(c, DType::f32);
}
TEST_CASE("bf16 against f64 from the same inputs, values and gradients") {
  for (auto& c : op_cases()) check_against_f64(c, DType::bf16);
}
#ifdef __x86_64__
TEST_CASE("results do not depend on the caller's mode (rounding up, subnormal numbers as 0, traps), which is kept") {
  const Compiled twice = compile([](Inputs in) { return std::vector{in[0] + in[0], in[0] * 0.5 + 1e-41}; });
  const auto of = [&](const OpCase& c, bool lazy) {
    const Mode how(lazy);
    std::vector<Tensor> all = twice({filled<float>({1 << 16}, 1e-40f)});
    for (const Tensor& y : c.fn(make_inputs(c, DType::f32))) all.push_back(y);
    eval(all);
    return all;
  };
  for (const auto& [mode, threads] : {std::pair(0x5f80u, 2), {0x9fc0u, 1}, {0x9fc0u, 2}, {0x1d00u, 2}})
    for (const bool lazy : {false, true})
      for (auto& c : in_turns(op_cases(), 5)) {
        CAPTURE_ALL(c.name(), mode, threads, lazy);
        const ThreadsScope use(threads);
        const auto usual = of(c, lazy);
        __builtin_ia32_ldmxcsr(mode);
        const auto other = of(c, lazy);
        CHECK((__builtin_ia32_stmxcsr() & ~0x3fu) == mode);
        __builtin_ia32_ldmxcsr(0x1f80);
        if (!draws(c)) check_same_bits(other, usual);
      }
}
#endif
TEST_CASE("gradients against central differences, every element") {
  for (auto& c : op_cases()) {
    if (c.gradcheck == 0) continue;
    const auto x = make_inputs(c, DType::f64);
    const auto w = weights_of(c.fn(x));
    const Result r = run_case(c, x, w);
    for (size_t i = 0; i < x.size(); ++i) {
      CAPTURE_ALL(c.name(), i);
      CHECK(bool(r.grads[i]) == c.in[i].differentiable);
      if (!r.grads[i]) continue;
      const auto f = [&](const Tensor& moved) {
        auto at = x;
        at[i] = moved;
        return weighted(c.fn(at), w);
      };
      CHECK(gradcheck(f, x[i], r.grads[i]) < c.gradcheck);
    }
  }
}
TEST_CASE("only the wanted gradients: one tracked input at a time gives the same as all") {
  for (auto& c : op_cases()) {
    if (c.gradcheck == 0 || c.in.size() < 2) continue;
    const auto x = make_inputs(c, DType::f64);
    const auto w = weights_of(c.fn(x));
    const Result all = run_case(c, x, w);
    for (size_t i = 0; i < x.size(); ++i) {
      if (!c.in[i].differentiable) continue;
      for (auto& t : x) t.variable()->requires_grad = false;
      x[i].variable()->requires_grad = true;
      const GradMap g = backward(weighted(c.fn(x), w));
      CAPTURE_ALL(c.name(), i);
      CHECK(g.size() == 1);
      CHECK(distance(g[x[i]], all.grads[i]) < 1e-14);
    }
  }
}
TEST_CASE("lazy equals eager bit for bit, in place too") {
  for (auto& c : op_cases()) {
    const auto x = make_inputs(c, DType::f32);
    const auto w = weights_of(c.fn(x));
    const Result eager = run_case(c, x, w);
    for (bool temporaries : {false, true}) {
      LazyScope lazy;
      const Result r = run_case(c, x, w, temporaries);
      eval(roots_of(r));
      check_equal(c, r, eager);
    }
  }
}
TEST_CASE("compiled equals eager bit for bit, values and gradients, when it is traced and when it is replayed") {
  for (auto& c : op_cases())
    for (bool temporaries : {false, true}) {
      if (draws(c)) continue;
      CAPTURE(c.name());
      const auto x = make_inputs(c, DType::f32), other = make_inputs(c, DType::f32, 2);
      const auto w = weights_of(c.fn(x));
      const Compiled f = compile(
          [&](Inputs in) { return roots_of(run_case(c, std::vector<Tensor>(in.begin(), in.end()), w, temporaries)); });
      for (const auto& in : {x, other, x}) {
        const std::vector<Tensor> want = roots_of(run_case(c, in, w));  // sets flags of f's inputs
        check_same_bits(f(in), want);
      }
      CHECK(f.stats().replays == 2);
    }
}
TEST_CASE("values in any layout give the same results") {
  // The order of summation of these follows the layout; others give the same bits.
  const std::set<std::string> some{"matmul", "conv1d", "lora", "sum", "sum_to", "mean", "var"};
  const auto order_follows_layout = [&](const std::string& op) {
    return some.contains(op) || op.starts_with("linear");
  };
  for (auto& c : op_cases({4, 6})) {
    const auto check = [&](const Result& a, const Result& b) {
      if (order_follows_layout(c.op))
        check_close(c, a, b, 1e-6);
      else
        check_equal(c, a, b);
    };
    const auto x = make_inputs(c, DType::f32);
    const Result expected = run_case(c, x);
    for (Store how : kStores) {
      auto other = x;
      for (auto& t : other) t = stored(t, how);
      CAPTURE(int(how));
      check(run_case(c, other), expected);
    }
    auto repeated = x, dense = x;
    NoGradScope off;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i].ndim() == 0) continue;
      repeated[i] = expand(slice(x[i], 0, 0, 1), x[i].shape()).detach();
      dense[i] = stored(repeated[i], Store::contiguous);
    }
    check(Result{c.fn(repeated), {}}, Result{c.fn(dense), {}});
  }
}
TEST_CASE("odd sizes round the widths of vectors and blocks") {
  for (int64_t n : in_turns<int64_t>({1, 2, 15, 16, 17, 31, 33, 64, 257}, 3)) {
    CAPTURE(n);
    for (auto& c : op_cases({3, n})) check_against_f64(c, DType::f32);
    for (auto& c : op_cases({n, 2})) check_against_f64(c, DType::f32);
  }
}
TEST_CASE("size 0 and size 1 in each dimension") {
  for (CaseSizes s : {CaseSizes{0, 5}, CaseSizes{3, 0}, CaseSizes{0, 0}, CaseSizes{1, 1}})
    for (auto& c : op_cases(s))
      for (DType t : {DType::f64, DType::f32, DType::bf16}) {
        CAPTURE_ALL(s.rows, s.cols);
        const auto x = make_inputs(c, t);
        const Result r = run_case(c, x), expected = run_case(c, wide(x));
        check_close(c, r, expected, t == DType::bf16 ? 0.1 : c.f32);  // nothing larger sets the scale
        for (size_t i = 0; i < r.grads.size(); ++i)
          if (r.grads[i]) CHECK(r.grads[i].shape() == x[i].shape());
      }
}
TEST_CASE("attention over a single key: its value, and no gradient of q and k") {
  Tensor q = random({1, 2, 3, 4}, 1).requires_grad_(), k = random({1, 2, 1, 4}, 2).requires_grad_();
  const Tensor v = random({1, 2, 1, 4}, 3), y = attention(q, k, v);
  CHECK(values(y) == values(expand(v, q.shape())));
  const GradMap g = backward(sum(y * y));
  for (auto& t : {g[q], g[k]})
    for (float x : values(t)) CHECK(std::abs(x) < 1e-6);  // rounding of dp - sum(dp)
}
TEST_CASE("one thread and two give the same bits") {
  for (auto& c : in_turns(op_cases({129, 257}), 5)) {
    const auto x = make_inputs(c, DType::f32);
    const auto run = [&] { return run_case(c, x); };
    check_equal(c, run(), on_one_thread(run));
  }
}

// Kernels write every byte of their outputs, and none outside.
namespace {
struct Use {  // a node not run yet
  OpPtr op;
  std::vector<Ref<Value>> in, out;
  std::vector<Layout> layouts;
};
std::vector<Use> uses_of(const std::vector<Tensor>& roots) {
  std::vector<Use> uses;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> todo;
  const auto visit = [&](const Value& v) {
    if (v.producer && !v.producer->done && seen.insert(v.producer.get()).second) todo.push_back(v.producer.get());
  };
  for (auto& r : roots) visit(*r.value());
  while (!todo.empty()) {
    const Node& n = *todo.back();
    todo.pop_back();
    Use& u = uses.emplace_back(Use{n.op, {}, {}, {}});
    for (auto& e : n.in) u.in.push_back(e.value), visit(*e.value);
    for (auto& o : n.out) u.out.emplace_back(o.live), u.layouts.push_back(o.layout);
  }
  return uses;
}
constexpr int64_t kGuard = 1024;
Tensor guarded(const Layout& l) {
  Tensor t = empty(Layout::contiguous({int64_t(l.bytes()) + 2 * kGuard}, DType::u8));
  std::memset(t.mutable_data<uint8_t>(), 0xa5, size_t(t.numel()));
  return t;
}
void check_guards(const Use& u) {
  std::vector<Tensor> memory;
  std::vector<Buf> in, out;
  for (auto& v : u.in) in.push_back({&v->layout, v->storage->data});
  for (auto& l : u.layouts) memory.push_back(guarded(l));
  for (size_t k = 0; k < u.layouts.size(); ++k)
    out.push_back({&u.layouts[k], memory[k].value()->storage->data + kGuard});
  Context context{};
  u.op->run(in, out, context);
  for (size_t k = 0; k < out.size(); ++k) {
    CAPTURE_ALL(u.op->name(), k);
    const auto *begin = memory[k].data<uint8_t>(), *end = begin + memory[k].numel();
    const auto untouched = [](uint8_t b) { return b == 0xa5; };
    CHECK(std::all_of(begin, begin + kGuard, untouched));
    CHECK(std::all_of(end - kGuard, end, untouched));
    if (u.out[k]) CHECK(std::memcmp(begin + kGuard, u.out[k]->storage->data, u.layouts[k].bytes()) == 0);
  }
}
}  // namespace
TEST_CASE("kernels write every byte of their outputs and none beside them") {
  std::set<std::string> kernels;
  for (CaseSizes s : {CaseSizes{3, 5}, CaseSizes{17, 33}, CaseSizes{5, 1}, CaseSizes{0, 5}})
    for (DType t : {DType::f64, DType::f32, DType::bf16})
      for (auto& c : op_cases(s)) {
        CAPTURE(c.name());
        const auto x = make_inputs(c, t);
        std::vector<Use> uses;
        {
          LazyScope lazy;
          const auto roots = roots_of(run_case(c, x));
          uses = uses_of(roots);
          eval(roots);
        }
        for (auto& u : uses) {
          if (u.op->traits().kind == OpKind::view) continue;
          kernels.emplace(u.op->name());
          check_guards(u);
        }
      }
  if (!every_op_case()) return;
  for (auto& info : detail::all_ops()) {
    static const std::set<std::string_view> elsewhere{
        "adamw_step",   "adamw_product_step", "arange",        "rand", "randn", "sgd_step",
        "trunc_normal", "switchback_linear",  "switchback_mlp"};
    CAPTURE(info.name);
    CHECK((info.is_view || kernels.contains(std::string(info.name)) || elsewhere.contains(info.name) ||
           info.name.starts_with("test_")));
  }
}
