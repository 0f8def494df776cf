// own_ops_check [cpu|cuda]: values and gradients of own_ops.h in all dtypes and layouts, eager, lazy and compiled.
#include <tapegrad/tapegrad.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

#include "own_ops.h"

namespace {
using Values = std::vector<double>;
using Function = std::function<tg::Tensor(const tg::Tensor&)>;
int failed = 0;

void check(bool good, const char* op, const char* what) {
  if (!good) std::printf("own_ops: %s: %s\n", op, what), ++failed;
}
bool close(const Values& a, const Values& b, double tolerance) {
  bool good = a.size() == b.size();
  for (size_t i = 0; good && i < a.size(); ++i) good = std::abs(a[i] - b[i]) <= tolerance * (1 + std::abs(b[i]));
  return good;
}
Values list(const tg::Tensor& t) { return t.to(tg::DType::f64).to_vector<double>(); }
Values softsign(Values x, size_t) {
  for (double& v : x) v /= 1 + std::abs(v);
  return x;
}
Values centred(Values x, size_t n) {
  for (size_t r = 0; r < x.size(); r += n) {
    double sum = 0;
    for (size_t j = 0; j < n; ++j) sum += x[r + j];
    for (size_t j = 0; j < n; ++j) x[r + j] -= sum / double(n);
  }
  return x;
}
Values unit(Values x, size_t) {
  double sum = 1e-6;
  for (const double v : x) sum += v * v;
  for (double& v : x) v /= std::sqrt(sum);
  return x;
}

void test(const char* name, const Function& f, Values (*want)(Values, size_t row), tg::Device device) {
  const auto normal = [&](tg::Shape s, tg::DType d) {
    tg::Rng rng{7};
    return tg::randn(s, rng, 0, 1, tg::DType::f64).to(d).to(device);
  };
  const struct {
    tg::DType dtype;
    double tolerance;
  } all[] = {{tg::DType::f64, 1e-12}, {tg::DType::f32, 1e-6}, {tg::DType::bf16, 5e-3}};
  for (const auto& [dtype, tolerance] : all) {
    const tg::Tensor x = normal({5, 300}, dtype);
    const tg::Tensor layouts[] = {x, tg::transpose(x), tg::slice(x, 1, 7, 20),
                                  tg::expand(tg::slice(x, 0, 1, 2), {5, 300}), normal({0, 3}, dtype)};
    for (const tg::Tensor& in : layouts)
      check(close(list(f(in)), want(list(in), size_t(in.shape().back())), tolerance), name, "values");

    // A chain of pointwise ops around it, and gradients: eager, lazy and compiled have the same bits.
    const auto step = [&](tg::Inputs in) {
      tg::Tensor w = in[0].detach().requires_grad_();
      const tg::Tensor y = f(w * 2.0) + 1.0;
      return std::vector<tg::Tensor>{y, tg::backward(tg::sum(y * y))[w]};
    };
    const std::vector<tg::Tensor> in{x}, eager = step(in);
    const tg::Compiled compiled = tg::compile(step);
    for (int i = 0; i < 5; ++i) {
      const std::vector<tg::Tensor> replayed = compiled(in);
      for (size_t k = 0; k < 2; ++k) check(list(replayed[k]) == list(eager[k]), name, "compiled is not eager");
    }
    check(compiled.stats().replays > 0, name, "the compiled function was not replayed");
    if (device.backend == tg::Backend::cuda)
      check(compiled.stats().graph_launches > 0, name, compiled.stats().why_no_graph.c_str());
    const tg::LazyScope lazy;
    const std::vector<tg::Tensor> later = step(in);
    for (size_t k = 0; k < 2; ++k) check(list(later[k]) == list(eager[k]), name, "lazy is not eager");
  }

  // Gradients of the first and second order against central differences.
  tg::Tensor x = normal({2, 4}, tg::DType::f64).requires_grad_();
  const tg::Tensor weights = tg::arange(1, 9, 1, tg::DType::f64, device);
  const auto loss = [&](const tg::Tensor& at) { return tg::sum(f(at) * tg::reshape(weights, {2, 4})); };
  const tg::Tensor g = tg::grad(loss(x), {x}, {.create_graph = true})[0];
  const tg::Tensor second = g.requires_grad() ? tg::grad(tg::sum(g * g), {x})[0] : tg::zeros_like(g);  // f is linear
  Values at = list(x.detach()), by_first, by_second;
  for (double& v : at) {
    constexpr double kStep = 1e-5;
    const double keep = v;
    const auto moved = [&](double to) {
      v = to;
      tg::Tensor t = tg::tensor(at, {2, 4}).to(device).requires_grad_();
      const tg::Tensor y = loss(t), slope = tg::grad(y, {t})[0];
      return std::pair(y.item<double>(), tg::sum(slope * slope).item<double>());
    };
    const auto [up, up2] = moved(keep + kStep);
    const auto [down, down2] = moved(keep - kStep);
    by_first.push_back((up - down) / (2 * kStep)), by_second.push_back((up2 - down2) / (2 * kStep));
    v = keep;
  }
  check(close(list(g), by_first, 1e-7), name, "gradient");
  check(close(list(second), by_second, 1e-6), name, "second gradient");

  try {
    f(tg::zeros({2}, tg::DType::i32, device));
    check(false, name, "an input of integers was taken");
  } catch (const tg::Error& e) {
    check(e.kind() == tg::Error::Kind::dtype, name, e.what());
  }
}
}  // namespace

int main(int argc, char** argv) {
  const bool cuda = argc > 1 && std::string_view(argv[1]) == "cuda";
  const tg::Device device = cuda ? tg::Device::cuda() : tg::Device::cpu();
  if (cuda && !tg::has_device(device)) return std::printf("own_ops: no GPU\n"), 0;
  try {
    test("softsign", own::softsign, softsign, device);
    test("centred", own::centred, centred, device);
    test(
        "unit", [](const tg::Tensor& x) { return own::unit(x); }, unit, device);
  } catch (const std::exception& e) {
    std::printf("own_ops: %s\n", e.what()), ++failed;
  }
  if (!failed) std::printf("own_ops: right on %s\n", cuda ? "cuda" : "cpu");
  return failed != 0;
}
