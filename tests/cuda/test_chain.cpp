// The first run compiles the kernels into the build tree.
#include <tapegrad/core/node.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/plan/plan.h>
#include <tapegrad/cuda/jit/chain.h>
#include <tapegrad/cuda/jit/rtc.h>

#include <unistd.h>

#include <cstdio>
#include <set>

#include "support/case_run.h"
#include "support/chain_cases.h"
#include "support/files.h"
#include "support/on_cuda.h"
#include "support/with_env.h"

using namespace tg;
namespace {
using Results = std::vector<std::vector<std::byte>>;
class OnChains {
  const WithEnv on_{"TG_EMULATE_CHAINS", "1"}, cache_{"TG_CACHE_DIR", TG_TEST_KERNELS};
};
using Function = std::function<std::vector<Tensor>(Inputs)>;
Results in_chains(const Function& f, const std::vector<Tensor>& x, size_t kernels) {
  std::vector<Tensor> y;
  {
    const LazyScope lazy;
    y = f(x);
    const uint64_t before = engine_stats().kernels;
    eval(y);
    CHECK(engine_stats().kernels - before == kernels);
  }
  return bits_of(y);
}
[[maybe_unused]] std::string stderr_of(const std::function<void()>& f) {
  std::FILE* const file = std::tmpfile();
  std::fflush(stderr);
  const int old = ::dup(2);
  ::dup2(::fileno(file), 2);
  f();
  std::fflush(stderr);
  ::dup2(old, 2);
  ::close(old);
  std::string s(size_t(std::ftell(file)), ' ');
  std::rewind(file);
  s.resize(std::fread(s.data(), 1, s.size(), file));
  std::fclose(file);
  return s;
}
}  // namespace

TEST_CASE("chains: one kernel, and the bits of op after op") {
  const OnChains on;
  for (const ChainCase& c : chain_cases()) {
    INFO(c.name);
    const std::vector<Tensor> x = on_cuda(c.in);
    const uint64_t refused = cuda::refused_chains();
    CHECK(in_chains(c.f, x, c.kernels) == bits_of(c.f(x)));
    CHECK(cuda::refused_chains() == refused);
  }
}
TEST_CASE("chains: any number of elements, any alignment, special values") {
  const OnChains on;
  const Function f = [](Inputs x) {
    const Tensor product = x[0] * x[1];
    return std::vector{tanh(product) + 0.5, product + x[0]};
  };
  for (const int64_t n : {1, 2, 3, 4, 5, 127, 1000, 40000}) {  // 40000: several passes
    INFO(n);
    const std::vector<Tensor> x = on_cuda(std::vector{random({n}, 1), random({n}, 2)});
    CHECK(in_chains(f, x, 1) == bits_of(f(x)));
  }
  const Tensor big = random({70}, 3).to(Device::cuda());
  const std::vector<Tensor> views{slice(big, 0, 1, 31).detach(), slice(big, 0, 34, 64).detach()};
  CHECK(in_chains(f, views, 1) == bits_of(f(views)));
  const std::vector<Tensor> special =
      on_cuda(std::vector{tensor<float>({0.0f, -0.0f, kInf, -kInf, kNan, 1e-42f, 3e38f}, {7}),
                          tensor<float>({-1.0f, 1.0f, 0.0f, 2.0f, 1.0f, 1.0f, 3e38f}, {7})});
  CHECK(in_chains(f, special, 1) == bits_of(f(special)));
  const std::vector<Tensor> none = on_cuda(std::vector{random({0}, 1), random({0}, 2)});
  CHECK(in_chains(f, none, 4) == bits_of(f(none)));
}
TEST_CASE("chains: numbers and sizes that change are no other kernel") {
  const OnChains on;
  const auto f = [](double s) -> Function {
    return [s](Inputs x) { return std::vector{masked_fill((x[0] - s) * s, lt(x[0], s), s)}; };
  };
  for (const DType t : {DType::f32, DType::bf16, DType::i64}) {
    const auto run = [&](double s, int64_t n) {
      const std::vector<Tensor> x = on_cuda(std::vector{random({n}, 1, -4, 4).to(t)});
      CHECK(in_chains(f(s), x, 1) == bits_of(f(s)(x)));
    };
    run(2, 50);
    const cuda::RtcStats before = cuda::rtc_stats();
    run(-3, 50);
    run(1, 51);
    run(-1, 9);
    CHECK(cuda::rtc_stats().compiled == before.compiled);
    CHECK(cuda::rtc_stats().read == before.read);
  }
}
TEST_CASE("chains: a compiled function runs them again, with its numbers of the day") {
  const OnChains on;
  const Tensor x = random({4, 8}, 1).to(Device::cuda());
  double scale = 2;
  Tensor w = random({4, 8}, 2).to(Device::cuda());
  const Tensor start = w;
  const TensorFunction step = [&](Inputs in) {
    w.assign(w - tanh(in[0] * w) * 0.25);
    return std::vector<Tensor>{w.detach() * scale};
  };
  const auto three = [&](const TensorFunction& f) {
    w = Tensor(start.detach() * 1.0);
    Results r;
    for (int i = 0; i < 3; ++i) r.push_back(bits_of(f(std::vector{x})[0]));
    return r;
  };
  const Results want = three(step);
  const Compiled fast = compile(step);
  CHECK(three([&](Inputs in) { return fast(in); }) == want);
}
TEST_CASE("chains: every pointwise op is written in device code") {
  std::set<std::string_view> seen;
  for (const OpCase& c : op_cases()) {
    INFO(c.name());
    std::vector<Tensor> x = make_inputs(c, DType::f32);
    const std::vector<Tensor> weights = weights_of(c.fn(x));
    const LazyScope lazy;
    const Result r = run_case(c, x, weights);
    for (const Ref<Node>& n : detail::collect(roots_of(r)).nodes) {
      if (n->op->traits().kind != OpKind::pointwise) continue;
      const Expression e = n->op->expression();
      CHECK(!e.text.empty());
      for (size_t k = 0; k < n->in.size(); ++k) CHECK(has(std::string(e.text), fmt::format("${}", k)));
      CHECK(!has(std::string(e.text), fmt::format("${}", n->in.size())));
      seen.insert(n->op->name());
    }
  }
  const auto names = []<class... F>(op::TypeList<F...>) { return std::vector<std::string_view>{F::kName...}; };
  std::vector<std::string_view> wanted{"gelu_grad", "pow_grad",    "pow_scalar", "pow_scalar_grad", "lt_scalar",
                                       "where",     "masked_fill", "clamp",      "clamp_grad"};
  for (const auto& list : {names(op::UnaryFns{}), names(op::BinaryFns{}), names(op::CompareFns{})})
    wanted.insert(wanted.end(), list.begin(), list.end());
  for (const std::string_view name : wanted) CHECK_MESSAGE(seen.contains(name), name);
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("chains: without a compiler ops run one by one, which is said once") {
  const OnChains on;
  const WithEnv compiler("TG_EMULATE_COMPILER", "/nowhere/g++");
  cuda::forget_chains();
  const Function f = [](Inputs x) { return std::vector{exp(x[0] * 3.0) - x[0]}; };
  std::string said;
  for (const int64_t n : {11, 12}) {
    const std::vector<Tensor> x = on_cuda(std::vector{random({n}, 1)});
    said += stderr_of([&] { CHECK(in_chains(f, x, 3) == bits_of(f(x))); });
  }
  cuda::forget_chains();
  CHECK_HAS(said, "tapegrad: [chain] pointwise ops run one by one on cuda, with the same results. [cuda] asking NVRTC");
  CHECK(count_of(said, "tapegrad:") == 1);
}
TEST_CASE("chains: where a kernel does not compile its ops run one by one, which is said once for each") {
  const OnChains on;
  const Folder folder;
  const WithEnv compiler("TG_EMULATE_COMPILER", "/bin/false"), cache("TG_CACHE_DIR", folder.path);
  cuda::forget_chains();
  const Function f = [](Inputs x) {
    const Tensor t = x[0] * 2.0;
    return std::vector{(exp(t) - x[1]) * t + where(lt(t, x[2]), t, x[2]), t};
  };
  std::string said;
  for (const int64_t n : {3, 4}) {
    const std::vector<Tensor> x = on_cuda(std::vector{random({n, 5}, 1), random({5}, 2), random({n, 1}, 3)});
    said += stderr_of([&] {
      const std::vector<Tensor> row{x[0], x[1], x[1]}, column{x[0], x[2], x[2]};
      for (const auto& in : {row, column}) CHECK(in_chains(f, in, 1) == bits_of(f(in)));
    });
  }
  cuda::forget_chains();
  CHECK_HAS(said, "NVRTC 0.", "cannot compile a kernel for sm_90: NVRTC_ERROR_COMPILATION");
  CHECK(count_of(said, "tapegrad:") == 2);
}
#endif
