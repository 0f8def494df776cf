#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/nn/fragmented.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/ops/ops.h>

#include <functional>

#include "support/on_cuda.h"

using namespace tg;
namespace {
constexpr int64_t kFew = 16;

// A seeded layer with loss and optimizer.
struct Training {
  Params params;
  std::function<Tensor()> loss;
  AdamW adam;
  // fragments 0: Linear.
  Training(Device device, int64_t fragments, nn::Selection how, int64_t rows = 3, int64_t in = 64, int64_t out = 40)
      : params(device, 3),
        loss(make_loss(params, fragments, how, rows, in, out)),
        adam(params.trainable(), {.lr = 1e-2}) {}
  static std::function<Tensor()> make_loss(const Params& p, int64_t fragments, nn::Selection how, int64_t rows,
                                           int64_t in, int64_t out) {
    const Tensor x = random({rows, in}, 1).to(p.device()), y = random({rows, out}, 2).to(p.device());
    if (fragments == 0) {
      const nn::Linear l(p.at("l"), in, out, {.bias = false});
      return [=] { return mse_loss(l.forward(x), y); };
    }
    const nn::FragmentedLinear l(p.at("l"), in, out, {.fragments = fragments});
    return [=] { return mse_loss(l.forward(x, how), y); };
  }
  Tensor step(bool folded) {
    const Tensor l = loss();
    if (folded)
      adam.backward_and_step(l, {.missing_grad = MissingGrad::skip});
    else
      adam.step(backward(l), {.missing_grad = MissingGrad::skip});
    return l.detach();
  }
};
}  // namespace

TEST_CASE("products of few rows: against the CPU; a row alone has the same bits") {
  NoGradScope off;
  for (const DType t : {DType::f32, DType::bf16})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1096, 72}, {24, 2752}}) {
      const Tensor a = make({17, k}, 1, t), w = make({n, k}, 2, t), bias = make({n}, 3, t);
      const Tensor plain = transpose(w).contiguous();
      const Tensor x = on_cuda(a), transposed = on_cuda(w), straight = on_cuda(plain), add = on_cuda(bias);
      for (const int64_t m : {3, 16, 17}) {
        CAPTURE_ALL(name_of(t), n, k, m);
        const Tensor some = slice(x, 0, 0, m), want = linear(slice(a, 0, 0, m), w, bias);
        const Tensor y = linear(some, transposed, add), z = matmul(some, straight);
        CHECK(distance(y, want) <= tolerance(t) * 30);
        CHECK(distance(z, matmul(slice(a, 0, 0, m), plain)) <= tolerance(t) * 30);
        if (m > kFew) continue;
        const Tensor last = slice(x, 0, m - 1, m);
        CHECK(bits_of(linear(last, transposed, add)) == bits_of(slice(y, 0, m - 1, m)));
        CHECK(bits_of(matmul(last, straight)) == bits_of(slice(z, 0, m - 1, m)));
      }
    }
}

TEST_CASE("index_matmul: rows in any order, a matrix that no row names, one that all name; ids outside are named") {
  NoGradScope off;
  for (const DType t : {DType::f64, DType::f32, DType::bf16})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{24, 40}, {17, 33}, {40, 300}}) {
      const Tensor a = make({9, k}, 1, t), b = make({5, k, n}, 2, t);
      for (const std::vector<int64_t>& named :
           {std::vector<int64_t>{4, 0, 4, 4, 1, 4, 4, 0, 4}, {2, 2, 2, 2, 2, 2, 2, 2, 2}}) {
        CAPTURE_ALL(name_of(t), n);
        const Tensor index = tensor<int64_t>(named, {9});
        const Tensor transposed = transpose(b, 1, 2).contiguous();
        const Tensor want = index_matmul(a, b, index);
        CHECK(distance(index_matmul(on_cuda(a), on_cuda(b), on_cuda(index)), want) <= tolerance(t) * 30);
        const Tensor other = index_matmul(on_cuda(a), on_cuda(transposed), on_cuda(index), true);
        CHECK(distance(other, want) <= tolerance(t) * 30);
      }
    }
  const Tensor a = on_cuda(random({3, 4}, 1)), b = on_cuda(random({2, 4, 5}, 2));
  CHECK_SAYS(values(index_matmul(a, b, on_cuda(tensor<int64_t>({1, 7, 0}, {3})))),
             "[index_matmul] index 7 at position (1) of index (3) i64");
  synchronize(kGpu);
}

TEST_CASE("fragment_weights: a score that is not finite is named by row and fragment") {
  std::vector<float> v(2 * 12, 1.0f);
  v[12 + 7] = std::numeric_limits<float>::infinity();
  const Tensor x = on_cuda(tensor<float>(v, {2, 12})), selector = on_cuda(random({3, 4}, 1));
  const std::string device = error_of([&] { values(fragment_weights(x, selector)); });
  const std::string host = error_of([&] { values(fragment_weights(x.to(Device::cpu()), selector.to(Device::cpu()))); });
  CHECK_HAS(host, "row 1");
  CHECK_HAS(device, host.substr(0, host.find('\n')));
}

TEST_CASE("ten training steps, gradients stored or folded, give the CPU's parameters") {
  for (const int64_t fragments : {0, 4, 16})
    for (const nn::Selection how : {nn::Selection::soft, nn::Selection::hard})
      for (const bool folded : {false, true}) {
        if (fragments == 0 && how == nn::Selection::hard) continue;
        CAPTURE_ALL(fragments, int(how), folded);
        Training host(Device::cpu(), fragments, how), device(kGpu, fragments, how);
        for (int i = 0; i < 10; ++i) host.step(folded), device.step(folded);
        for (const auto& [name, t] : host.params.state()) CHECK(distance(device.params.state().at(name), t) <= 2e-5);
      }
}

#ifdef TG_CUDA_EMULATED
TEST_CASE("kernels that a training step of a layer launches, and one graph of a compiled one") {
  struct Row {
    int64_t fragments;
    nn::Selection how;
    bool folded;
    uint64_t launches;
  };
  // Launches bound the time of small layers.
  constexpr nn::Selection soft = nn::Selection::soft, hard = nn::Selection::hard;
  for (const Row r : {Row{0, soft, false, 8},
                      {0, soft, true, 8},
                      {8, soft, false, 20},
                      {8, soft, true, 23},
                      {8, hard, false, 20},
                      {8, hard, true, 22}}) {
    CAPTURE_ALL(r.fragments, int(r.how), r.folded);
    Training eager(kGpu, r.fragments, r.how, 1, 256, 256), compiled(kGpu, r.fragments, r.how, 1, 256, 256);
    eager.step(r.folded);
    synchronize(kGpu);
    const auto before = simt::statistics().launches;
    eager.step(r.folded);
    synchronize(kGpu);
    CHECK(simt::statistics().launches - before == r.launches);
    const Compiled step = compile([&](Inputs) { return std::vector<Tensor>{compiled.step(r.folded)}; });
    for (int i = 0; i < 6; ++i) (void)step({});
    CHECK(step.stats().why_no_graph.empty());
    CHECK(step.stats().graph_launches == 4);
  }
}
#endif
