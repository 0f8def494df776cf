// The op cases have their gradients.
#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/refusals.h"
#include "support/threads.h"

using namespace tg;
namespace {
using Doubles = std::vector<double>;
Doubles row_of(const Tensor& t) { return t.to_vector<double>(); }
Tensor ones_of(const Shape& s) { return ones(s); }
}  // namespace

TEST_CASE("sort is stable in both directions, NaN is the largest, and the zeros are equal") {
  const Tensor x = tensor<double>({2, NAN, -0.0, 0.0, -INFINITY, 2, INFINITY, NAN, -1}, {9});
  for (const DType t : {DType::f64, DType::f32, DType::bf16}) {
    CHECK(row_of(argsort(x.to(t))) == Doubles{4, 8, 2, 3, 0, 5, 6, 1, 7});
    CHECK(row_of(argsort(x.to(t), 0, {.descending = true})) == Doubles{1, 7, 6, 0, 5, 2, 3, 8, 4});
    CHECK(sort(x.to(t)).values.dtype() == t);
  }
  const Tensor far = tensor<int64_t>({3, INT64_MIN, -1, INT64_MAX, 3}, {5});
  CHECK(row_of(argsort(far)) == Doubles{1, 2, 0, 4, 3});
  CHECK(row_of(argsort(far.to(DType::i32) * 0.0)) == Doubles{0, 1, 2, 3, 4});
  CHECK(!argsort(zeros({2}).requires_grad_()).requires_grad());
  CHECK(sort(zeros({2, 0, 3}), 1).values.shape() == Shape{2, 0, 3});
}
TEST_CASE("sort of long rows is that of the standard library, on one thread and many") {
  const Tensor x = (random({3, 5000}, 1, 0, 300)).to(DType::i32);
  const auto v = values<int32_t>(x);
  for (const bool descending : {false, true}) {
    std::vector<int64_t> expected;
    for (size_t r = 0; r < 3; ++r) {
      std::vector<int64_t> order(5000);
      std::iota(order.begin(), order.end(), int64_t(0));
      std::ranges::stable_sort(order, [&](int64_t i, int64_t j) {
        const int a = v[r * 5000 + size_t(i)], b = v[r * 5000 + size_t(j)];
        return descending ? a > b : a < b;
      });
      expected.insert(expected.end(), order.begin(), order.end());
    }
    for (const DType t : {DType::i32, DType::i64, DType::f32, DType::f64})
      CHECK(values<int64_t>(argsort(x.to(t), 1, {descending})) == expected);
    CHECK(values<int64_t>(transpose(argsort(transpose(x), 0, {descending}))) == expected);
    CHECK(on_one_thread([&] { return values<int64_t>(argsort(x, 1, {descending})); }) == expected);
  }
}
TEST_CASE("scan of sums and maxima, of every length, is the sequential result") {
  for (int64_t n = 0; n < 20; ++n) {
    CAPTURE(n);
    const Tensor x = random<double>({2, n, 3}, uint64_t(n) + 1);
    int64_t combined = 0;
    const auto add_up = [&](const Tensor& a, const Tensor& b) { return combined += a.size(1), a + b; };
    CHECK(distance(scan(add_up, x, 1), cumsum(x, 1)) < 1e-14);
    CHECK(combined <= 2 * n);
    auto most = values<double>(x);
    for (size_t i = 0; i < most.size(); ++i)
      if (i / 3 % size_t(n) != 0) most[i] = std::max(most[i], most[i - 3]);
    CHECK(values<double>(scan([](const Tensor& a, const Tensor& b) { return maximum(a, b); }, x, -2)) == most);
    const auto last = [](const Tensor& a, const Tensor& b) { return where(ne(b, 0), b, a); };
    const Tensor sparse = where(lt(x, 0), x, 0.0);
    auto kept = values<double>(sparse);
    for (size_t i = 0; i < kept.size(); ++i)
      if (i / 3 % size_t(n) != 0 && kept[i] == 0) kept[i] = kept[i - 3];
    CHECK(values<double>(scan(last, sparse, 1)) == kept);
  }
}
TEST_CASE("scan of a linear recurrence, forward and back") {
  const int64_t n = 37;
  Tensor a = random<double>({n, 2}, 1).requires_grad_(), b = random<double>({n, 2}, 2).requires_grad_();
  const auto f = [](Inputs p, Inputs q) { return Tensors{p[0] * q[0], q[0] * p[1] + q[1]}; };
  const Tensor h = scan(f, {a, b}, 0)[1];
  std::vector<Tensor> rows{slice(b, 0, 0, 1)};
  for (int64_t t = 1; t < n; ++t) rows.push_back(slice(a, 0, t, t + 1) * rows.back() + slice(b, 0, t, t + 1));
  const Tensor expected = concat(rows, 0), w = random<double>({n, 2}, 3);
  CHECK(distance(h, expected) < 1e-14);
  const std::vector<Tensor> got = grad({h}, {a, b}, {w}), wanted = grad({expected}, {a, b}, {w});
  for (size_t i = 0; i < 2; ++i) CHECK(distance(got[i], wanted[i]) < 1e-13);
}
TEST_CASE("logsumexp neither overflows nor divides by zero, and is minus infinity without elements") {
  const Tensor x = tensor<float>({1000, 1000, -kInf, -kInf, kInf, 0, kNan, 0, -1000, -1001}, {5, 2});
  const auto y = row_of(logsumexp(x, {1}));
  CHECK(y[0] == doctest::Approx(1000 + std::log(2.0)));
  CHECK(y[1] == -INFINITY);
  CHECK(y[2] == INFINITY);
  CHECK(std::isnan(y[3]));
  CHECK(y[4] == doctest::Approx(-1000 + std::log1p(std::exp(-1.0))));
  CHECK(row_of(logsumexp(zeros({2, 0}), {1})) == Doubles{-INFINITY, -INFINITY});
  CHECK(logsumexp(zeros({0, 2}), {1}, {.keepdim = true}).shape() == Shape{0, 1});
  CHECK(logsumexp(zeros({0})).item<float>() == -kInf);
  const Tensor half = filled({1, 100}, 3.f).to(DType::bf16);
  CHECK(bits_of(logsumexp(half, {1})) == bits_of(filled({1}, float(3 + std::log(100.0))).to(DType::bf16)));
}
TEST_CASE("normalize keeps powers in range, divides small slices by eps, and has the gradient 1 / eps at zero") {
  const Tensor x = tensor<float>({3e30f, 4e30f, 3e-25f, 4e-25f, 0, 0, 3, kInf}, {4, 2});
  const auto y = row_of(normalize(x, 2, -1, 1e-30));
  const Doubles unit{0.6, 0.8, 0.6, 0.8, 0, 0, 0};
  for (size_t i = 0; i < unit.size(); ++i) CHECK(y[i] == doctest::Approx(unit[i]).epsilon(1e-6));
  CHECK(std::isnan(y[7]));
  CHECK(row_of(normalize(tensor<double>({3, 4}, {2}), 2, 0, 10)) == Doubles{0.3, 0.4});
  CHECK(row_of(normalize(tensor<double>({-1, 3}, {2}), 1)) == Doubles{-0.25, 0.75});
  CHECK(row_of(normalize(tensor<double>({-4, 3}, {2}), INFINITY)) == Doubles{-1, 0.75});
  for (const double p : {1., 2., 2.5, double(INFINITY)}) {
    Tensor zero = zeros({1, 3}, DType::f64).requires_grad_(), one = ones({3, 1}, DType::f64).requires_grad_();
    CHECK(row_of(backward(sum(normalize(zero, p, -1, 0.5)))[zero]) == Doubles{2, 2, 2});
    CHECK(row_of(backward(sum(normalize(one, p)))[one]) == Doubles{0, 0, 0});
  }
  CHECK(normalize(zeros({2, 0})).shape() == Shape{2, 0});
}
TEST_CASE("slices with a step are views where there is room, and end where they should") {
  const Tensor x = arange(0, 10);
  for (int64_t start = 0; start <= 10; ++start)
    for (int64_t stop = start; stop <= 10; ++stop)
      for (int64_t step = 1; step <= 11; ++step) {
        CAPTURE_ALL(start, stop, step);
        Doubles expected;
        for (int64_t i = start; i < stop; i += step) expected.push_back(double(i));
        const Tensor y = slice(x, 0, start, stop, step);
        CHECK(row_of(y) == expected);
        if (int64_t(expected.size()) * step <= 10) CHECK(y.value()->storage.get() == x.value()->storage.get());
      }
  CHECK(row_of(slice(x, 0, -4, INT64_MAX, 3)) == Doubles{6, 9});
  CHECK(row_of(slice(x, 0, 0, 10, INT64_MAX)) == Doubles{0});
}
TEST_CASE("flip, chunk, unbind and linspace") {
  const Tensor x = reshape(arange(0, 6), {2, 3});
  CHECK(row_of(flip(x, {1})) == Doubles{2, 1, 0, 5, 4, 3});
  CHECK(row_of(flip(x, {0, -1})) == Doubles{5, 4, 3, 2, 1, 0});
  CHECK(flip(x, {}).id() == x.id());
  CHECK(flip(zeros({0, 2}), {0, 1}).shape() == Shape{0, 2});
  const Tensors parts = chunk(x, 3, 1), rows = unbind(x), columns = unbind(x, -1);
  CHECK(parts.size() == 3);
  CHECK(parts[2].shape() == Shape{2, 1});
  CHECK(parts[2].value()->storage.get() == x.value()->storage.get());
  CHECK(rows.size() == 2);
  CHECK(row_of(rows[1]) == Doubles{3, 4, 5});
  CHECK(row_of(columns[2]) == Doubles{2, 5});
  CHECK(row_of(chunk(x, 2)[1]) == row_of(split(x, {1, 1})[1]));
  CHECK(chunk(zeros({2, 0}), 4, 1)[3].shape() == Shape{2, 0});
  CHECK(unbind(zeros({0, 2})).size() == 0);
  CHECK(row_of(linspace(-1, 1, 5)) == Doubles{-1, -0.5, 0, 0.5, 1});
  CHECK(row_of(linspace(3, 3, 2, DType::bf16)) == Doubles{3, 3});
  CHECK(row_of(linspace(2, -1, 1, DType::f64)) == Doubles{2});
  CHECK(linspace(0, 1, 0).shape() == Shape{0});
  for (const int64_t n : {2, 3, 10, 49, 1000}) {
    const auto v = row_of(linspace(0.1, 0.7, n, DType::f64));
    CHECK(v.front() == 0.1);
    CHECK(v.back() == 0.7);
    CHECK(std::ranges::is_sorted(v));
  }
}
TEST_CASE("randint draws every integer of its range equally often, and the same from a seed, lazily too") {
  Rng rng{3}, other{3};
  const Tensor x = randint({60000}, rng, -2, 4);
  CHECK(x.dtype() == DType::i64);
  CHECK(rng.offset == 2 * 60000 / 4);
  std::vector<double> counts(6);
  for (const int64_t v : values<int64_t>(x)) {
    REQUIRE((v >= -2 && v < 4));
    counts[size_t(v + 2)] += 1;
  }
  for (const double n : counts) CHECK(std::abs(n - 10000) < 5 * std::sqrt(60000 / 6. * 5 / 6));
  under<LazyScope>([&] { CHECK(bits_of(randint({60000}, other, -2, 4)) == bits_of(x)); });
  const auto wide = values<int64_t>(randint({1000}, rng, -(int64_t(1) << 47), int64_t(1) << 47));
  CHECK(std::ranges::any_of(wide, [](int64_t v) { return v < -(int64_t(1) << 45); }));
  CHECK(std::ranges::any_of(wide, [](int64_t v) { return v % 2 != 0; }));
  CHECK(row_of(randint({3}, rng, INT32_MAX, int64_t(INT32_MAX) + 1, DType::i32)) == Doubles(3, INT32_MAX));
  CHECK(randint({2, 0}, rng, 0, 1).shape() == Shape{2, 0});
  Rng traced{5}, eager{5};
  const Compiled f =
      compile([&](Inputs in) { return std::vector{in[0] + randint({4}, traced, 0, 1000)}; }, {.generators = {&traced}});
  const Tensor zero = zeros({4}, DType::i64);
  for (int i = 0; i < 3; ++i) CHECK(row_of(f({zero})[0]) == row_of(randint({4}, eager, 0, 1000)));
}
TEST_CASE("conv1d by its definition, for every stride, dilation, padding and number of groups") {
  for (const int64_t groups : {1, 2, 4})
    for (const int64_t taps : {1, 2, 3})
      for (const int64_t stride : {1, 2, 5})
        for (const int64_t dilation : {1, 3})
          for (const bool causal : {false, true}) {
            CAPTURE_ALL(groups, taps, stride, dilation, causal);
            const int64_t before = 2 + (causal ? (taps - 1) * dilation : 0), length = 9;
            const Tensor x = random<double>({2, 4, length}, 1), w = random<double>({4, 4 / groups, taps}, 2),
                         bias = random<double>({4}, 3);
            const auto xv = values<double>(x), wv = values<double>(w), bv = values<double>(bias);
            const int64_t places = (before + length + 1 - (taps - 1) * dilation - 1) / stride + 1, each = 4 / groups;
            Doubles expected;
            for (int64_t n = 0; n < 2; ++n)
              for (int64_t o = 0; o < 4; ++o)
                for (int64_t t = 0; t < places; ++t) {
                  double y = bv[size_t(o)];
                  for (int64_t c = 0; c < each; ++c)
                    for (int64_t k = 0; k < taps; ++k) {
                      const int64_t at = t * stride + k * dilation - before, channel = o / each * each + c;
                      if (at < 0 || at >= length) continue;
                      y += wv[size_t((o * each + c) * taps + k)] * xv[size_t((n * 4 + channel) * length + at)];
                    }
                  expected.push_back(y);
                }
            const Tensor got =
                conv1d(x, w, bias,
                       {.stride = stride, .padding = {2, 1}, .dilation = dilation, .groups = groups, .causal = causal});
            REQUIRE(got.shape() == Shape{2, 4, places});
            CHECK(distance(got, tensor<double>(expected, got.shape())) < 1e-14);
          }
  CHECK(conv1d(zeros({0, 2, 5}), zeros({3, 2, 2})).shape() == Shape{0, 3, 4});
  CHECK(row_of(conv1d(zeros({1, 0, 2}), zeros({1, 0, 1}), ones({1}))) == Doubles{1, 1});
}
TEST_CASE("huber_loss and l1_loss far from and at the target") {
  const Tensor x = tensor<float>({-1e30f, -0.5f, 0, 2, 1e30f}, {5}), zero = zeros({5});
  const auto losses = row_of(huber_loss(x, zero, 0.5, Reduction::none));
  CHECK(losses[1] == 0.125);
  CHECK(losses[2] == 0);
  CHECK(losses[3] == 0.5 * 1.75);
  CHECK(losses[4] == doctest::Approx(5e29));
  Tensor at = x.detach().requires_grad_();
  CHECK(row_of(backward(huber_loss(at, zero, 0.5, Reduction::sum))[at]) == Doubles{-0.5, -0.5, 0, 0.5, 0.5});
  CHECK(row_of(backward(l1_loss(at, zero, Reduction::sum))[at]) == Doubles{-1, -1, 0, 1, 1});
  CHECK(l1_loss(ones({2}, DType::bf16), zeros({2}, DType::bf16)).dtype() == DType::f32);
  CHECK(huber_loss(zeros({0}), zeros({0}), 1, Reduction::sum).item<float>() == 0);
}
TEST_CASE("functions of sequences refuse what does not fit, before they run") {
  const Tensor x = f32_of({2, 3}), ids = i64_of({3});
  const auto first = [](const Tensor& a, const Tensor&) { return slice(a, 0, 0, 0); };
  const auto product = [](const Tensor& a, const Tensor& b) { return a * b; };
  const auto none = [](Inputs, Inputs) { return Tensors(); };
  Rng rng{1};
  expect_at_emit({
      REFUSES(sort(x, 2), shape, "[argsort]", "(2, 3)"),
      REFUSES(argsort(f32_of({})), shape, "[argsort]"),
      REFUSES(argsort(x.to(DType::f16)), dtype, "[argsort] cannot compute on (2, 3) f16"),
      REFUSES(argsort(Tensor()), value, "[argsort] input 0 is an empty tensor"),
      REFUSES(logsumexp(x, {2}), shape, "[logsumexp]"),
      REFUSES(logsumexp(x, {0, 0}), value, "[logsumexp] dimension 0 is named twice in (0, 0)"),
      REFUSES(logsumexp(ids), dtype, "[logsumexp] cannot compute on (3) i64"),
      REFUSES(normalize(x, 0.5), value, "[normalize] p is 0.5. It must be 1 or more"),
      REFUSES(normalize(x, NAN), value, "[normalize] p is nan"),
      REFUSES(normalize(x, 2, -1, 0), value, "[normalize] eps is 0. It must be positive"),
      REFUSES(normalize(x, 2, 2), shape, "[normalize]"),
      REFUSES(normalize(ids), dtype, "[normalize] cannot compute on (3) i64"),
      REFUSES(scan(product, x, 2), shape, "[scan]"),
      REFUSES(scan(first, x, 1), shape, "[scan] f returned (0, 1) f32 for slices (2, 1) f32. It must keep"),
      REFUSES(scan(none, {x}, 1), shape, "[scan] f returned 0 tensor(s) for 1"),
      REFUSES(scan(none, {x, ids}, 0), shape, "[scan] tensor 0 is (2, 3) f32, tensor 1 is (3) i64. Their sizes"),
      REFUSES(scan(none, Inputs(), 0), value, "[scan] there is no tensor"),
      REFUSES(slice(x, 1, 0, 3, 0), value, "[slice] step is 0. It must be 1 or more"),
      REFUSES(slice(x, 1, 4, 5, 2), shape, "[slice] [4, 5) of dimension 1"),
      REFUSES(flip(x, {2}), shape, "[flip]"),
      REFUSES(flip(x, {0, -2}), value, "[flip] dimension -2 is named twice in (0, -2)"),
      REFUSES(chunk(x, 2, -1), value, "[chunk] dimension -1 of (2, 3) f32 has 3 elements, which make no 2 equal parts"),
      REFUSES(chunk(x, 0, -1), value, "[chunk] dimension -1 of (2, 3) f32 has 3 elements, which make no 0 equal parts"),
      REFUSES(chunk(x, 1, 5), shape, "[chunk]"),
      REFUSES(unbind(f32_of({})), shape, "[unbind]"),
      REFUSES(linspace(0, 1, -1), value, "[linspace] -1 numbers from 0 to 1"),
      REFUSES(linspace(0, INFINITY, 2), value, "[linspace] 2 numbers from 0 to inf"),
      REFUSES(linspace(-1e308, 1e308, 2), value, "[linspace] 2 numbers"),
      REFUSES(linspace(0, 1, 2, DType::i64), dtype, "[linspace] cannot compute i64 values"),
      REFUSES(randint({2}, rng, 3, 3), value, "[randint] from 3 to 3. low must be less than high"),
      REFUSES(randint({2}, rng, INT64_MIN, INT64_MAX), value, "[randint] from -9223372036854775808"),
      REFUSES(randint({2}, rng, 0, (int64_t(1) << 48) + 1), value, "by at most 2^48"),
      REFUSES(randint({2}, rng, 0, int64_t(1) << 32, DType::i32), value, "[randint] 4294967295 is no value of i32"),
      REFUSES(randint({2}, rng, 0, 2, DType::f32), dtype, "[randint] cannot draw f32 values"),
      REFUSES(randint({-1}, rng, 0, 2), shape, "-1"),
      REFUSES(l1_loss(x, f32_of({3})), shape, "[l1_loss] x is (2, 3) f32, target (3) f32. Their shapes must be equal"),
      REFUSES(l1_loss(x, i64_of({2, 3})), dtype, "[l1_loss] dtypes differ"),
      REFUSES(l1_loss(f32_of({0}), f32_of({0})), value, "[l1_loss] (0) f32 has no elements to average over"),
      REFUSES(huber_loss(x, x, 0), value, "[huber_loss] delta is 0. It must be positive"),
      REFUSES(huber_loss(x, x, INFINITY), value, "[huber_loss] delta is inf"),
      REFUSES(huber_loss(ids, ids), dtype, "[huber_loss] cannot compute on (3) i64"),
  });
  CHECK(rng == Rng{1});
}
TEST_CASE("conv1d refuses shapes and options that do not fit, before it runs") {
  const Tensor x = ones_of({2, 4, 5}), w = ones_of({6, 2, 3});
  expect_at_emit({
      REFUSES(conv1d(x, w), shape, "[conv1d] x is (2, 4, 5) f32, weight (6, 2, 3) f32, groups 1. groups must divide"),
      REFUSES(conv1d(x, w, {}, {.groups = 3}), shape, "groups 3. groups must divide C and O"),
      REFUSES(conv1d(x, w, {}, {.groups = 0}), value, "[conv1d] stride is 1, dilation 1, groups 0. Each must be 1"),
      REFUSES(conv1d(x, w, {}, {.stride = 0, .groups = 2}), value, "[conv1d] stride is 0"),
      REFUSES(conv1d(x, w, {}, {.dilation = INT64_MAX, .groups = 2}), value, "[conv1d] stride is 1, dilation 9223"),
      REFUSES(conv1d(x, w, {}, {.padding = {-1, 0}, .groups = 2}), value, "[pad]"),
      REFUSES(
          conv1d(x, w, {}, {.dilation = 3, .groups = 2}), shape,
          "[conv1d] rows of (2, 4, 5) f32 have 5 elements with padding, and the kernel reaches over 7. Add padding."),
      REFUSES(conv1d(x, w, ones_of({2}), {.groups = 2}), shape, "[conv1d] bias is (2) f32", "bias must be (6)"),
      REFUSES(conv1d(x, w, random<double>({6}, 1), {.groups = 2}), dtype, "[conv1d] dtypes differ"),
      REFUSES(conv1d(x, w.to(DType::bf16), {}, {.groups = 2}), dtype, "[conv1d] dtypes differ"),
      REFUSES(conv1d(ones_of({4, 5}), w), shape, "[conv1d] x is (4, 5) f32", "(N, C, L)"),
      REFUSES(conv1d(x, ones_of({6, 4, 0})), shape, "with K of 1 or more"),
      REFUSES(conv1d(x, Tensor()), value, "[conv1d] x or weight is an empty tensor"),
  });
}
