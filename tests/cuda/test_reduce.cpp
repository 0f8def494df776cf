#include "support/long_sums.h"
#include "support/on_cuda.h"

#include <limits>
#include <numeric>

using namespace tg;
namespace {
constexpr DType kComputed[] = {DType::f64, DType::f32, DType::bf16};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using ReduceFn = std::function<Tensors(Inputs)>;
void check_on_device(
    const ReduceFn& f, std::vector<Tensor> x, DType d,
    const std::function<Tensor(const Tensor&)>& view = [](const Tensor& t) { return t; }) {
  NoGradScope off;
  std::vector<Tensor> wide, device;
  for (auto& t : x) {
    t = is_float(t.dtype()) ? t.to(d) : t;
    wide.push_back(view(is_float(t.dtype()) ? t.to(DType::f64) : t));
    device.push_back(view(t.to(Device::cuda())));
  }
  const Tensors expected = f(wide), y = f(device), again = d == DType::f32 ? f(device) : y;
  CAPTURE(name_of(d));
  REQUIRE(y.size() == expected.size());
  for (size_t k = 0; k < y.size(); ++k) {
    CAPTURE(k);
    CHECK(y[k].device() == Device::cuda());
    CHECK(bits_of(y[k]) == bits_of(again[k]));
    const double off_by = distance(y[k].to(Device::cpu()), expected[k]);
    CHECK(off_by <= tolerance(d));
  }
}

struct Reduced {
  Shape shape;
  Dims dims;
};
const Reduced kReductions[] = {{{3, 1000}, {1}},       {{2, 50003}, {1}},          {{5, 2000}, {1}},
                               {{70001}, {0}},         {{5000, 7}, {0}},           {{3000, 130}, {0}},
                               {{2100, 64}, {0}},      {{20, 40, 300}, {1}},       {{20, 30, 64}, {0, 1}},
                               {{30, 40, 50}, {0, 2}}, {{2, 1500, 3, 40}, {1, 3}}, {{7, 9, 2000}, {0, 1, 2}}};
template <class F> void for_reductions(F f) {
  for (auto& r : kReductions) {
    CAPTURE_ALL(r.shape, r.dims);
    f(r);
  }
}
const int64_t kRowLengths[] = {1, 31, 255, 257, 512, 513, 1030, 4096, 4100, 9001, 16384, 16400, 70001};
}  // namespace

TEST_CASE("sums, extremes and variances in one stage and in two") {
  for_reductions([](const Reduced& r) {
    const Tensor x = random<double>(r.shape, 1, -1, 2);
    const ReduceFn f = [&](Inputs in) {
      return Tensors{sum(in[0], r.dims), max(in[0], r.dims), min(in[0], r.dims), var(in[0], r.dims)};
    };
    check_on_device(f, {x}, DType::f32);
    if (r.shape.product() < 100'000)
      for (DType d : {DType::f64, DType::bf16}) check_on_device(f, {x}, d);
  });
}
TEST_CASE("reductions of values in other layouts") {
  const ReduceFn f = [](Inputs in) {
    return Tensors{sum(in[0], {0}), max(in[0], {1}), sum(in[0], {0, 2}), sum(in[0])};
  };
  const Tensor x = random<double>({40, 50, 36}, 2);
  for (DType d : {DType::f32, DType::bf16}) {
    check_on_device(f, {x}, d, [](const Tensor& t) { return transpose(t, 0, 2); });
    check_on_device(f, {x}, d, [](const Tensor& t) { return transpose(t, 0, 1); });
    check_on_device(f, {x}, d, [](const Tensor& t) { return slice(t, 0, 1, 39); });  // aligned or not
    check_on_device(f, {x}, d, [](const Tensor& t) { return slice(t, 2, 1, 34); });
    check_on_device(f, {x}, d, [](const Tensor& t) { return expand(slice(t, 1, 3, 4), {40, 20, 36}); });
  }
}
TEST_CASE("integers add up in 64 bits") {
  std::vector<int64_t> v(30'011), small(v.size());
  int64_t total = 0, total_small = 0, most = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = int64_t(i * i * 2'654'435'761u % (int64_t(1) << 40)) * (i % 3 == 0 ? -4096 : 4096) + int64_t(i);
    small[i] = int64_t(i % 1000) - 300;
    total += v[i], total_small += small[i], most = std::max(most, v[i]);
  }
  const Tensor x = tensor<int64_t>(v, {30'011}, Device::cuda());
  const Tensor y = tensor<int64_t>(small, {30'011}, Device::cuda()).to(DType::i32);
  CHECK(sum(x).item<int64_t>() == total);
  CHECK(max(x).item<int64_t>() == most);
  CHECK(sum(y).item<int32_t>() == total_small);
  CHECK(min(y).item<int32_t>() == -300);
  CHECK(max(y, {}).to_vector<int32_t>()[999] == 699);
  const auto running = cumsum(x, 0).to_vector<int64_t>();
  CHECK(running.back() == total);
  CHECK(running[5000] == std::accumulate(v.begin(), v.begin() + 5001, int64_t(0)));
}
TEST_CASE("NaN wins wherever it is, and infinities are ordinary") {
  for (int64_t n : {5, 40, 3000, 20'000})
    for (int64_t at : {int64_t(0), n / 2, n - 1}) {
      CAPTURE_ALL(n, at);
      auto v = values<double>(random<double>({2, n}, 3));
      v[size_t(at)] = std::numeric_limits<double>::quiet_NaN();
      v[size_t(n + at)] = -kInfinity;
      for (DType d : {DType::f32, DType::bf16})
        check_on_device(
            [](Inputs in) {
              const Tensor t = transpose(in[0]);
              return Tensors{max(in[0], {1}), min(in[0], {1}), max(t, {0}),
                             min(t, {0}),     max(in[0], {0}), sum(in[0], {0})};
            },
            {tensor<double>(v, {2, n})}, d);
    }
  const Tensor lowest = filled<double>({3, 700}, -kInfinity);
  check_on_device(
      [](Inputs in) {
        return Tensors{max(in[0], {1}), max(in[0], {0}), max(in[0])};
      },
      {lowest}, DType::f32);
}
TEST_CASE("the gradient of an extremum is shared by equal elements") {
  auto v = values<double>(random<double>({60, 700}, 4));
  for (auto& x : v) x = std::round(4 * x);
  v[123] = std::numeric_limits<double>::quiet_NaN();
  for (const Dims& dims : {Dims{0}, Dims{1}, Dims{0, 1}})
    for (DType d : {DType::f32, DType::bf16}) {
      CAPTURE(dims);
      const uint8_t mask = dims.size() == 2 ? 3 : uint8_t(1u << dims[0]);
      check_on_device(
          [&](Inputs in) {
            const Tensor y = max(in[0], dims);
            return emit(make_ref<op::ExtremumGrad>(mask), std::vector{in[0], y, y * 0.5});
          },
          {tensor<double>(v, {60, 700})}, d);
    }
}
TEST_CASE("running sums of long rows and of columns, forward and backward") {
  for (const Shape& s :
       {Shape{3, 1024}, Shape{2, 1025}, Shape{70'001}, Shape{40, 33, 5}, Shape{3000, 7}, Shape{600, 130}})
    for (size_t dim = 0; dim < s.size(); ++dim)
      for (bool reverse : {false, true})
        for (DType d : kComputed) {
          CAPTURE_ALL(s, dim, reverse);
          check_on_device([&](Inputs in) { return emit(make_ref<op::Cumsum>(dim, reverse), in); },
                          {random<double>(s, 5)}, d);
        }
}
TEST_CASE("running sums of no rows, of so many columns that each is one chunk") {
  for (int64_t columns : {1, 1 << 16}) CHECK(cumsum(zeros({0, columns}, DType::f32, Device::cuda()), 0).numel() == 0);
}
TEST_CASE("softmax of rows that are kept in registers and of longer ones") {
  for (int64_t n : kRowLengths)
    for (DType d : kComputed) {
      if (d == DType::f64 && n > 20'000) continue;
      CAPTURE(n);
      const Tensor x = random<double>({2, n}, 6, -4, 4), dy = random<double>({2, n}, 7);
      check_on_device([](Inputs in) { return Tensors{softmax(in[0]), log_softmax(in[0])}; }, {x}, d);
      check_on_device(
          [](Inputs in) {
            return Tensors{emit1(stateless<op::SoftmaxGrad>(), {in[0], in[1]}),
                           emit1(stateless<op::LogSoftmaxGrad>(), {in[0] * -1.0, in[1]})};
          },
          {random<double>({2, n}, 8, 0, 1), dy}, d);
    }
}
TEST_CASE("softmax with entries of -inf, of NaN, and of nothing else") {
  for (int64_t n : {40, 3001, 20'001}) {
    CAPTURE(n);
    auto v = values<double>(random<double>({4, n}, 9, 90, 100));
    for (int64_t j = 0; j < n; ++j) {
      if (j != n - 2) v[size_t(j)] = -kInfinity;          // row 0: one finite
      v[size_t(n + j)] = -kInfinity;                      // row 1: none
      if (j % 3 != 0) v[size_t(2 * n + j)] = -kInfinity;  // row 2: some
    }
    v[size_t(3 * n + n / 2)] = std::numeric_limits<double>::quiet_NaN();  // row 3
    for (DType d : {DType::f32, DType::bf16})
      check_on_device(
          [](Inputs in) {
            return Tensors{softmax(in[0]), log_softmax(in[0])};
          },
          {tensor<double>(v, {4, n})}, d);
  }
}
TEST_CASE("norms of rows that are kept in registers and of longer ones") {
  for (int64_t n : kRowLengths)
    for (DType d : kComputed) {
      if (d == DType::f64 && n > 20'000) continue;
      CAPTURE(n);
      const std::vector in{random<double>({3, n}, 10, 1, 3), random<double>({n}, 11, 0.5, 1.5),
                           random<double>({n}, 12)};
      check_on_device(
          [](Inputs x) {
            Tensors all = emit(make_ref<op::LayerNorm>(0.1, x[0].dtype()), x);
            for (auto& y : emit(make_ref<op::RmsNorm>(0.1, x[0].dtype()), x.first(2))) all.emplace_back(y);
            return all;
          },
          in, d);
    }
}
TEST_CASE("gradients of norms: groups of rows, rows of any length, any of the outputs") {
  struct Sizes {
    int64_t rows, n;
  };
  for (const auto [rows, n] : {Sizes{3, 5}, Sizes{300, 40}, Sizes{17'000, 3}, Sizes{50, 516}, Sizes{9, 4096},
                               Sizes{20, 4099}, Sizes{3, 20'000}})
    for (DType d : kComputed) {
      const bool large = rows * n > 20'000;
      if (d != DType::f32 && large) continue;
      CAPTURE_ALL(rows, n);
      const std::vector in{random<double>({rows, n}, 13), random<double>({rows, n}, 14, 1, 3),
                           random<double>({n}, 15, 0.5, 1.5)};
      using Wants = op::NormWants;
      for (const Wants w : {Wants{.dx = true, .dw = true, .db = true}, Wants{.dx = true}, Wants{.dw = true},
                            Wants{.db = true}, Wants{.dx = true, .db = true}}) {
        if (large && !(w.dx && w.dw && w.db)) continue;
        const auto statistic = [](const Tensor& t) { return t.dtype() == DType::f64 ? t : t.to(DType::f32); };
        check_on_device(
            [&](Inputs x) {
              const Tensor mean = statistic(slice(x[0], 1, 0, 1)), rstd = statistic(slice(x[1], 1, 0, 1));
              const Tensor m = reshape(mean, {rows}), s = reshape(rstd, {rows});
              Tensors all = emit(make_ref<op::LayerNormGrad>(w), std::vector{x[0], x[1], m, s, x[2]});
              if (w.db) return all;
              for (auto& g : emit(make_ref<op::RmsNormGrad>(w), std::vector{x[0], x[1], s, x[2]})) all.emplace_back(g);
              return all;
            },
            in, d);
      }
    }
}
TEST_CASE("softmax and norms of values in other layouts") {
  const Tensor x = random<double>({30, 40, 36}, 16, 1, 3), w = random<double>({1}, 17, 0.5, 1.5);
  const ReduceFn f = [](Inputs in) {
    const Tensor weight = expand(in[1], {in[0].shape().back()});
    return Tensors{softmax(in[0], 1), layer_norm(in[0], weight, weight), rms_norm(in[0], weight)};
  };
  for (DType d : {DType::f32, DType::bf16})
    for (int which = 0; which < 3; ++which)
      check_on_device(f, {x, w}, d, [&](const Tensor& t) {
        if (t.ndim() == 1) return t;
        return which == 0 ? transpose(t, 0, 2) : which == 1 ? slice(t, 2, 1, 34) : slice(t, 0, 1, 28);
      });
}
TEST_CASE("rounding errors of sums do not grow with the number of terms on the device") {
  check_long_sums(129, kGpu);
  check_long_sums(1 << 14, kGpu, {1, 2});
  check_long_rows(1 << 20, kGpu);
}
