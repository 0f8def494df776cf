
#include <algorithm>
#include <set>

#include "support/case_run.h"
#include "support/on_cuda.h"

using namespace tg;
namespace {
// bf16 against f64 of the same inputs. A lone element sets no scale.
enum class Size { plain, lone };
void check_case(const OpCase& c, DType t, Size size = Size::plain) {
  const auto x = make_inputs(c, t);
  CAPTURE_ALL(c.name(), name_of(t));
  const auto w = weights_of(c.fn(x));
  const Result device = run_case(c, on_cuda(x), on_cuda(w)),
               cpu = t == DType::bf16 ? run_case(c, wide(x), wide(w)) : run_case(c, x, w);
  for (auto& y : device.out) CHECK(y.device() == Device::cuda());
  for (auto& g : device.grads)
    if (g) CHECK(g.device() == Device::cuda());
  const double bf16 = size == Size::lone ? 0.1 : c.bf16;
  check_close(c, device, cpu, t == DType::f64 ? c.f64 : t == DType::f32 ? c.f32 : bf16);
}
}  // namespace

TEST_CASE("every op has a CUDA kernel of its own, but those that are composed on the CPU too, and the head's loss") {
  std::set<std::string_view> kernels, of_cpu;
  for (auto& k : tg::detail::all_kernels()) (k.backend == Backend::cuda ? kernels : of_cpu).insert(k.op);
  for (auto& op : tg::detail::all_ops()) {
    CAPTURE(op.name);
    const bool heads_loss = op.name.starts_with("linear_cross_entropy");  // not written yet
    CHECK((op.is_view || kernels.contains(op.name) || (op.composes && (heads_loss || !of_cpu.contains(op.name)))));
  }
}
TEST_CASE("f32 against the CPU, values and gradients") {
  for (auto& c : op_cases()) check_case(c, DType::f32);
}
TEST_CASE("bf16 against f64 on the CPU, values and gradients") {
  for (auto& c : op_cases()) check_case(c, DType::bf16);
}
TEST_CASE("f64 against the CPU, values and gradients") {
  for (auto& c : op_cases()) check_case(c, DType::f64);
}
TEST_CASE("odd sizes round the widths of vectors and blocks") {
  for (int64_t n : {1, 2, 15, 17, 33, 257}) {
    CAPTURE(n);
    const auto each = [n](CaseSizes sizes, DType t) {
      for (auto& c : op_cases(sizes))
        if (n == 17 || !has(c.op, "attention"))  // slow; test_attention.cpp has its sizes
          check_case(c, t, n <= 2 ? Size::lone : Size::plain);
    };
    each({3, n}, DType::f32);
    each({n, 2}, DType::f32);
    each({2, n}, DType::bf16);
  }
}
TEST_CASE("size 0 and size 1 in each dimension") {
  for (CaseSizes s : {CaseSizes{0, 5}, CaseSizes{3, 0}, CaseSizes{0, 0}, CaseSizes{1, 1}})
    for (auto& c : op_cases(s))
      for (DType t : {DType::f64, DType::f32, DType::bf16}) {
        CAPTURE_ALL(s.rows, s.cols);
        check_case(c, t, Size::lone);
      }
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("what has no elements launches nothing, forward and back") {
  const std::set<std::string> need_more{"where", "floor", "round",       "sign",
                                        "tril",  "triu",  "multinomial", "index_matmul"};
  const auto none = [](Inputs x) { return std::all_of(x.begin(), x.end(), [](auto& t) { return t.numel() == 0; }); };
  for (CaseSizes s : {CaseSizes{0, 5}, CaseSizes{3, 0}, CaseSizes{0, 0}})
    for (auto& c : op_cases(s))
      for (DType t : {DType::f64, DType::bf16}) {
        if ((has(c.op, "attention") && s.cols == 0) || need_more.contains(c.op)) continue;  // the softmax's sums
        CAPTURE(c.name());
        auto x = on_cuda(make_inputs(c, t));
        for (size_t i = 0; i < x.size(); ++i) x[i].requires_grad_(c.gradcheck > 0 && c.in[i].differentiable);
        if (!none(x)) continue;
        synchronize(Device::cuda());
        const auto before = simt::statistics().launches;
        const Tensors y = c.fn(x);
        if (!none(y)) continue;
        if (y[0].requires_grad()) (void)backward(y[0], y[0].detach());
        synchronize(Device::cuda());
        CHECK(simt::statistics().launches == before);
      }
}
#endif
TEST_CASE("values in any layout give the same results") {
  for (auto& c : op_cases({4, 6})) {
    CAPTURE(c.name());
    const auto x = make_inputs(c, DType::f32);
    const Result expected = run_case(c, x);
    for (Store how : kStores) {
      auto other = on_cuda(x);
      for (auto& t : other) t = stored(t, how);
      CAPTURE(int(how));
      check_close(c, run_case(c, other), expected, c.f32);
    }
    auto repeated = on_cuda(x), dense = x;
    NoGradScope off;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i].ndim() == 0) continue;
      repeated[i] = expand(slice(repeated[i], 0, 0, 1), x[i].shape()).detach();
      dense[i] = expand(slice(x[i], 0, 0, 1), x[i].shape()).contiguous().detach();
    }
    check_close(c, Result{c.fn(repeated), {}}, Result{c.fn(dense), {}}, c.f32);
  }
}
TEST_CASE("lazy equals eager bit for bit, in place too, and a second run the first") {
  for (auto& c : op_cases()) {
    CAPTURE(c.name());
    const auto x = on_cuda(make_inputs(c, DType::f32));
    const auto w = weights_of(c.fn(x));
    const Result eager = run_case(c, x, w);
    check_equal(c, run_case(c, x, w), eager);
    for (bool temporaries : {false, true}) {
      LazyScope lazy;
      const Result r = run_case(c, x, w, temporaries);
      eval(roots_of(r));
      check_equal(c, r, eager);
    }
  }
}
