// NaN, infinities, signed zeros, ties and kinks, integers and bool. Expected values are PyTorch's, unless a comment
// says otherwise.
#include <tapegrad/ops/ops.h>

#include "support/helpers.h"

using namespace tg;
namespace {
using Values = std::vector<double>;
constexpr DType kFloats[] = {DType::f64, DType::f32, DType::bf16};

// Whole vectors, and the remainder of a row.
Tensor repeated(const Values& v, DType t) {
  Values all;
  for (int i = 0; i < 11; ++i) all.insert(all.end(), v.begin(), v.end());
  return tensor<double>(all, {int64_t(all.size())}).to(t);
}
bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}
// Up to the dtype's rounding. signs_free: a 0 in `expected` may have either sign.
void check_values(const Tensor& got, const Values& expected, bool signs_free = false) {
  const Values v = values<double>(got);
  REQUIRE(v.size() == 11 * expected.size());
  const double epsilon = got.dtype() == DType::f64 ? 1e-15 : got.dtype() == DType::f32 ? 3e-7 : 4e-3;
  for (size_t i = 0; i < v.size(); ++i) {
    const double want = expected[i % expected.size()];
    CAPTURE_ALL(detail::describe(got), i, v[i], want);
    const bool exact = !std::isfinite(want) || want == 0;
    CHECK(
        (exact ? same(v[i], want) || (signs_free && v[i] == want) : std::abs(v[i] - want) <= epsilon * std::abs(want)));
  }
}
using Fn = std::function<Tensor(const Tensor&)>;
void check_function(const Fn& f, const Values& at, const Values& y, const Values& dy, bool signs_free = false) {
  for (DType t : kFloats) {
    Tensor x = repeated(at, t).requires_grad_();
    const Tensor out = f(x);
    check_values(out, y, signs_free);
    check_values(backward(sum(out))[x], dy, signs_free);
  }
}
using Fn2 = Tensor (*)(const Tensor&, const Tensor&);
void check_function(Fn2 f, const Values& a, const Values& b, const Values& z, const Values& da, const Values& db) {
  for (DType t : kFloats) {
    Tensor x = repeated(a, t).requires_grad_(), y = repeated(b, t).requires_grad_();
    const Tensor out = f(x, y);
    check_values(out, z, true);
    const GradMap g = backward(sum(out));
    check_values(g[x], da, true);
    check_values(g[y], db, true);
  }
}
template <class T = int64_t> Tensor bools(std::initializer_list<T> v) {
  return tensor<T>(v, {int64_t(v.size())}).to(DType::boolean);
}
}  // namespace

TEST_CASE("unary functions at NaN, infinities and zeros") {
  const Values at{kNan, kInf, -kInf, 0., -0., 1, -1};
  check_function(relu, at, {kNan, kInf, 0, 0, -0., 1, 0}, {1, 1, 0, 0, 0, 1, 0});
  check_function([](auto& x) { return tg::abs(x); }, at, {kNan, kInf, kInf, 0, 0, 1, 1}, {0, 1, -1, 0, 0, 1, -1});
  check_function([](auto& x) { return -x; }, at, {kNan, -kInf, kInf, -0., 0, -1, 1}, Values(7, -1));
  check_function([](auto& x) { return tg::sqrt(x); }, at, {kNan, kInf, kNan, 0, -0., 1, kNan},
                 // 1 / (2 * -0) is -inf, in PyTorch too
                 {kNan, 0, kNan, kInf, -kInf, 0.5, kNan});
  check_function(rsqrt, at, {kNan, 0, kNan, kInf, -kInf, 1, kNan}, {kNan, -0., kNan, -kInf, kInf, -0.5, kNan});
  check_function([](auto& x) { return tg::log(x); }, at, {kNan, kInf, kNan, -kInf, -kInf, 0, kNan},
                 {kNan, 0, -0., kInf, -kInf, 1, -1});
  check_function([](auto& x) { return tg::floor(x); }, at, at, Values(7, 0));
  check_function([](auto& x) { return tg::round(x); }, at, at, Values(7, 0));
  check_function(sign, at, {0, 1, -1, 0, 0, 1, -1}, Values(7, 0));
  check_function([](auto& x) { return tg::log1p(x); }, at, {kNan, kInf, kNan, 0, -0., 0.6931471805599453, -kInf},
                 {kNan, 0, -0., 1, 1, 0.5, kInf});
  check_function(softplus, at,
                 {kNan, kInf, 0, 0.6931471805599453, 0.6931471805599453, 1.3132616875182228, 0.31326168751822286},
                 {kNan, 1, 0, 0.5, 0.5, 0.7310585786300049, 0.2689414213699951});
  check_function(sigmoid, at, {kNan, 1, 0, 0.5, 0.5, 0.7310585786300049, 0.2689414213699951},
                 {kNan, 0, 0, 0.25, 0.25, 0.19661193324148185, 0.19661193324148185});
  check_function([](auto& x) { return tg::erf(x); }, at, {kNan, 1, -1, 0, -0., 0.8427007929497149, -0.8427007929497149},
                 {kNan, 0, 0, 1.1283791670955126, 1.1283791670955126, 0.41510749742059477, 0.41510749742059477});
  check_function([](auto& x) { return tg::sin(x); }, at,
                 {kNan, kNan, kNan, 0, -0., 0.8414709848078965, -0.8414709848078965},
                 {kNan, kNan, kNan, 1, 1, 0.5403023058681398, 0.5403023058681398});
  check_function([](auto& x) { return tg::cos(x); }, at,
                 {kNan, kNan, kNan, 1, 1, 0.5403023058681398, 0.5403023058681398},
                 {kNan, kNan, kNan, -0., 0, -0.8414709848078965, 0.8414709848078965});
}
TEST_CASE("floor and round: halves go to the even number, and large numbers stay") {
  const Values at{0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.25, -0.25, 2.75, -2.75, 1e9, -1e30};
  check_function([](auto& x) { return tg::round(x); }, at, {0, 2, 2, -0., -2, -2, 0, -0., 3, -3, 1e9, -1e30},
                 Values(12, 0));
  check_function([](auto& x) { return tg::floor(x); }, at, {0, 1, 2, -1, -2, -3, 0, -1, 2, -3, 1e9, -1e30},
                 Values(12, 0));
  Tensor x = tensor<double>({0.3, -1.2}, {2}).requires_grad_();
  const Tensor dy = tensor<double>({kInf, kNan}, {2});
  for (const Fn& f : {Fn([](auto& t) { return tg::floor(t); }), Fn([](auto& t) { return tg::round(t); }), Fn(sign)})
    CHECK(values<double>(backward(f(x), dy)[x]) == Values{0, 0});  // not 0 * infinity
}
TEST_CASE("log1p and softplus keep the digits of small results") {
  const Values small{1e-3, -1e-3, 1e-7, -1e-7, 1e-12, 1e-30};
  for (DType t : {DType::f64, DType::f32}) {
    const double epsilon = t == DType::f64 ? 1e-15 : 2e-7;
    const Tensor x = tensor<double>(small, {6}).to(t);
    const auto at = values<double>(x), y = values<double>(tg::log1p(x));
    for (size_t i = 0; i < at.size(); ++i) CHECK(std::abs(y[i] - std::log1p(at[i])) <= epsilon * std::abs(at[i]));
    const Tensor deep = tensor<double>({-10, -20, -50, -80}, {4}).to(t);
    const auto low = values<double>(deep), z = values<double>(softplus(deep));
    for (size_t i = 0; i < low.size(); ++i)
      CHECK(std::abs(z[i] - std::log1p(std::exp(low[i]))) <= 4 * epsilon * std::exp(low[i]));
    check_values(softplus(repeated({1000, 50, -1000}, t)), {1000, 50, 0});
  }
}
TEST_CASE("gelu in f32 keeps the digits of its tail, and its slope those of 1") {
  Values at;
  for (int i = -60000; i <= 60000; ++i) at.push_back(i * 1e-4);
  const Tensor x = tensor<double>(at, {int64_t(at.size())}).to(DType::f32).requires_grad_();
  const Tensor wide = x.detach().to(DType::f64).requires_grad_();
  const Tensor y = gelu(x), exact = gelu(wide);
  const Values v = values<double>(y), e = values<double>(exact), dv = values<double>(backward(sum(y))[x]),
               de = values<double>(backward(sum(exact))[wide]);
  const auto worst = [&](double from, double to, auto error) {
    double most = 0;
    for (size_t i = 0; i < at.size(); ++i)
      if (at[i] >= from && at[i] <= to) most = std::max(most, error(i));
    return most;
  };
  const auto relative = [&](size_t i) { return e[i] == 0 ? std::abs(v[i]) : std::abs(v[i] - e[i]) / std::abs(e[i]); };
  CHECK(worst(0, 6, relative) <= 2.5e-7);
  CHECK(worst(-1, 0, relative) <= 3e-7);
  CHECK(worst(-6, -1, relative) <= 1e-5);
  CHECK(worst(-6, 6, [&](size_t i) { return std::abs(dv[i] - de[i]); }) <= 1.3e-7);
  check_function(gelu, {kNan, kInf, -kInf, 0, -0., -40, 40}, {kNan, kInf, kNan, 0, -0., -0., 40},
                 {kNan, kNan, kNan, 0.5, 0.5, 0, 1}, true);
}
TEST_CASE("maximum and minimum: NaN wins, ties share the gradient") {
  const Values a{kNan, 1, kNan, 2, kInf, -kInf, 0, 3}, b{1, kNan, kNan, 2, kInf, kInf, 0, -1};
  check_function(maximum, a, b, {kNan, kNan, kNan, 2, kInf, kInf, 0, 3}, {1, 1, 1, .5, .5, 0, .5, 1},
                 {1, 1, 1, .5, .5, 1, .5, 0});
  check_function(minimum, a, b, {kNan, kNan, kNan, 2, kInf, -kInf, 0, -1}, {1, 1, 1, .5, .5, 1, .5, 0},
                 {1, 1, 1, .5, .5, 0, .5, 1});
  const Values at{kNan, kInf, -kInf, -2, 2, 0, 1};
  check_function([](auto& x) { return maximum(x, 2.0); }, at, {kNan, kInf, 2, 2, 2, 2, 2}, {1, 1, 0, 0, .5, 0, 0});
  check_function([](auto& x) { return maximum(2.0, x); }, at, {kNan, kInf, 2, 2, 2, 2, 2}, {1, 1, 0, 0, .5, 0, 0});
  check_function([](auto& x) { return minimum(x, 0.0); }, at, {kNan, 0, -kInf, -2, 0, 0, 0}, {1, 0, 1, 1, 0, .5, 0},
                 true);
}
TEST_CASE("pow at 0, infinities and NaN") {
  const Values a{0, 0, 0, 0, 0, 0, 0, 1, 2, kInf, 3, kNan, -2, -2};
  const Values b{0, 1, 2, 0.5, -1, kInf, kNan, 0, 0, 0, 2, 0, 2, 0.5};
  check_function(tg::pow, a, b, {1, 0, 0, 0, kInf, 0, kNan, 1, 1, 1, 9, 1, 4, kNan},
                 {0, 1, 0, kInf, -kInf, kNan, kNan, 0, 0, 0, 6, 0, -4, kNan},
                 {0, 0, 0, 0, -kInf, 0, kNan, 0, 0.6931471805599453, kInf, 9.887510598012987, kNan, kNan, kNan});
  const Values at{kNan, kInf, -kInf, -2, 2, 0, 1};
  const auto power = [](double s) { return [s](const Tensor& x) { return tg::pow(x, s); }; };
  const auto base = [](double s) { return [s](const Tensor& x) { return tg::pow(s, x); }; };
  check_function(power(0), at, Values(7, 1), Values(7, 0));
  check_function(power(2), at, {kNan, kInf, kInf, 4, 4, 0, 1}, {kNan, kInf, -kInf, -4, 4, 0, 2});
  check_function(power(3), at, {kNan, kInf, -kInf, -8, 8, 0, 1}, {kNan, kInf, kInf, 12, 12, 0, 3});
  check_function(power(-1), at, {kNan, 0, -0., -0.5, 0.5, kInf, 1}, {kNan, -0., -0., -0.25, -0.25, -kInf, -1});
  check_function(power(0.5), {kNan, kInf, 4, 0}, {kNan, kInf, 2, 0}, {kNan, 0, 0.25, kInf});
  check_function(base(0), at, {kNan, 0, kInf, kInf, 0, 1, 0}, {kNan, 0, -kInf, -kInf, 0, 0, 0}, true);
  check_function(base(2), at, {kNan, kInf, 0, 0.25, 4, 1, 2},
                 {kNan, kInf, 0, 0.17328679513998632, 2.772588722239781, 0.6931471805599453, 1.3862943611198906});
  check_function(base(1), at, Values(7, 1), Values(7, 0), true);
}
TEST_CASE("squares are x * x to the bit, and integer powers keep all digits") {
  const Tensor x = random({1000}, 1, -3, 3), wide = random<double>({1000}, 2, -3, 3);
  for (auto& t : {x, wide}) {
    const Tensor two = full({}, 2, t.dtype());
    for (auto& square : {tg::pow(t, 2.0), tg::pow(t, two), emit1(make_ref<op::BinaryScalar<op::Pow>>(2.0, false), {t})})
      CHECK(bits_of(square) == bits_of(t * t));
  }
  const Tensor whole = arange(-15, 16, 1, DType::f32);
  for (int n : {1, 3, 4, 5, 6}) {  // 15^6 < 2^24: all are floats
    Tensor product = whole;
    for (int i = 1; i < n; ++i) product = product * whole;
    CHECK(bits_of(tg::pow(whole, double(n))) == bits_of(product));
  }
}
TEST_CASE("second derivatives where the formula has a singular factor") {
  Tensor x = tensor<double>({0, 0, 0, -1}, {4}).requires_grad_();
  for (double n : {2.0, 3.0, 4.0, 1.0}) {
    const Tensor e = filled<double>({4}, n);
    const Tensor g = backward(sum(tg::pow(x, e)), {.create_graph = true})[x];
    const double second = n * (n - 1) * (n == 2 ? 1 : 0);
    const auto h = values<double>(backward(sum(g))[x]);
    for (size_t i = 0; i < 3; ++i) CHECK(h[i] == second);
    CHECK(h[3] == doctest::Approx(n * (n - 1) * std::pow(-1.0, n - 2)));
  }
  Tensor y = tensor<double>({-1, 0, 2}, {3}).requires_grad_();
  for (const Fn& f : {Fn(relu), Fn([](auto& t) { return tg::abs(t); })}) {
    const Tensor g = backward(sum(f(y)), {.create_graph = true})[y];
    CHECK(values<double>(backward(sum(g * y), {.retain_graph = true})[y]) == values<double>(g));
  }
}
TEST_CASE("third derivatives come from the same formula") {
  Tensor x = tensor<double>({-1.5, -0.3, 0.4, 2}, {4}).requires_grad_();
  Tensor d = tg::sin(x);
  for (int i = 0; i < 3; ++i) d = backward(sum(d), {.create_graph = true})[x];
  const auto at = values<double>(x), third = values<double>(d);
  for (size_t i = 0; i < at.size(); ++i) CHECK(third[i] == doctest::Approx(-std::cos(at[i])).epsilon(1e-14));
}
TEST_CASE("clamp keeps NaN, and the gradient at a bound is 1") {
  const Values at{kNan, kInf, -kInf, -2, 2, 0, 1};
  // PyTorch 2.15 has 0 at the bounds, earlier ones 1; at NaN both have 0.
  check_function([](auto& x) { return clamp(x, {.min = -2, .max = 1}); }, at, {kNan, 1, -2, -2, 1, 0, 1},
                 {0, 0, 0, 1, 0, 1, 1});
  check_function([](auto& x) { return clamp(x, {.min = 0}); }, at, {kNan, kInf, 0, 0, 2, 0, 1}, {0, 1, 0, 0, 1, 1, 1});
  check_function([](auto& x) { return clamp(x, {.max = 0}); }, at, {kNan, 0, -kInf, -2, 0, 0, 0},
                 {0, 0, 1, 1, 0, 1, 0});
  CHECK(values<int64_t>(clamp(tensor<int64_t>({-5, 0, 5}, {3}), {.min = -1, .max = 3})) ==
        std::vector<int64_t>{-1, 0, 3});
  CHECK(values<int64_t>(clamp(tensor<int64_t>({INT64_MIN, 7}, {2}), {.max = 3})) == std::vector<int64_t>{INT64_MIN, 3});
}
TEST_CASE("comparisons of NaN, infinities and zeros") {
  for (DType t : kFloats) {
    const Tensor a = repeated({kNan, kNan, kInf, 0, 1, 1}, t), b = repeated({kNan, 1, kInf, -0., 2, 1}, t);
    check_values(eq(a, b), {0, 0, 1, 1, 0, 1});
    check_values(ne(a, b), {1, 1, 0, 0, 1, 0});
    check_values(lt(a, b), {0, 0, 0, 0, 1, 0});
    check_values(le(a, b), {0, 0, 1, 1, 1, 1});
    check_values(gt(a, b), {0, 0, 0, 0, 0, 0});
    check_values(ge(a, b), {0, 0, 1, 1, 0, 1});
    check_values(ge(a, 1.0), {0, 0, 1, 0, 1, 1});
    check_values(lt(a, kInf), {0, 0, 0, 1, 1, 1});
  }
  Tensor x = random({3}, 1).requires_grad_();
  CHECK_FALSE(lt(x, x * 2.0).requires_grad());
  CHECK_FALSE(eq(x, 0.0).value()->producer);  // no tape
  const Tensor yes = bools({1, 0, 1}), no = bools({1, 1, 0});
  CHECK(values<int>(eq(yes, no)) == std::vector<int>{1, 0, 0});
  CHECK(values<int>(ne(yes, no)) == std::vector<int>{0, 1, 1});
  CHECK(values<int>(eq(yes, 0.0)) == std::vector<int>{0, 1, 0});
}
TEST_CASE("where and masked_fill: NaN of what was not chosen does not leak") {
  const Tensor c = bools({1, 0, 1});
  Tensor x = tensor<double>({1, kNan, 3}, {3}).requires_grad_(),
         y = tensor<double>({-kInf, 5, kNan}, {3}).requires_grad_();
  const Tensor z = where(c, x, y);
  CHECK(values<double>(z) == Values{1, 5, 3});
  const GradMap g = backward(sum(z * z));
  CHECK(values<double>(g[x]) == Values{2, 0, 6});
  CHECK(values<double>(g[y]) == Values{0, 10, 0});
  const Tensor filled_in = masked_fill(y, c, -kInf);
  CHECK(values<double>(filled_in) == Values{-kInf, 5, -kInf});
  CHECK(values<double>(backward(sum(filled_in))[y]) == Values{0, 1, 0});
  const AnomalyScope watch;  // a requested infinity is no anomaly
  CHECK(values<double>(tg::exp(masked_fill(x.detach(), bools({0, 1, 0}), 0))).size() == 3);
  CHECK(std::isinf(values(masked_fill(ones({2}), bools({0, 1}), -kInf))[1]));
}
TEST_CASE("where and masked_fill move every dtype bit by bit") {
  const Tensor c = repeated({1, 0, 0}, DType::boolean), v = repeated({0, 1, 1}, DType::f64);
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i8, DType::u16,
                  DType::u8, DType::boolean}) {
    const Tensor x = v.to(t), y = ones_like(x);
    CAPTURE(name_of(t));
    CHECK(where(c, x, y).dtype() == t);
    check_values(where(c, x, y).to(DType::f64), {0, 1, 1});
    check_values(where(c, y, x).to(DType::f64), {1, 1, 1});
    check_values(where(c, x, 0.0).to(DType::f64), {0, 0, 0});
    check_values(masked_fill(x, c, 1).to(DType::f64), {1, 1, 1});
    check_values(masked_fill(y, c, 0).to(DType::f64), {0, 1, 1});
  }
  const Tensor odd =
      detail::from_bytes(std::as_bytes(std::span<const uint16_t>(std::vector<uint16_t>{0x7fa5, 0x8000, 1})), {3},
                         DType::bf16);  // a signalling NaN, -0 and a denormal
  CHECK(bits_of(where(bools({1, 1, 1}), odd, zeros_like(odd))) == bits_of(odd));
}
TEST_CASE("every NaN is 0x7fff in bf16 and f16, at any place of a vector") {
  std::vector<float> some;
  for (uint32_t i = 0; i < 83; ++i)  // quiet and signalling, both signs, high and low payloads
    some.push_back(std::bit_cast<float>(0x7f800000u | i << 31 | (i % 3 ? 1u << i % 23 : 0x7fffffu)));
  const Tensor x = tensor<float>(some, {83});
  for (const DType t : {DType::bf16, DType::f16}) {
    CAPTURE(name_of(t));
    for (const Tensor& y : {x.to(t), slice(x, 0, 3, 80).to(t), (x * 2.0).to(t), transpose(expand(x, {5, 83})).to(t)}) {
      const Tensor bits = detail::from_bytes(bits_of(y), y.shape(), DType::u16);
      CHECK(values<int>(ne(bits.to(DType::i32), 0x7fff).to(DType::i32)) == std::vector<int>(size_t(y.numel()), 0));
    }
  }
  const Tensor both = x.to(DType::bf16) + 1.0;
  CHECK(bits_of(both) == bits_of(x.to(DType::bf16)));
}
TEST_CASE("integers: neg, abs, relu, maximum, minimum, comparisons") {
  for (DType t : {DType::i64, DType::i32}) {
    const Tensor x = tensor<int64_t>({-3, 0, 7}, {3}).to(t), y = tensor<int64_t>({1, 0, -7}, {3}).to(t);
    const auto check = [&](const Tensor& got, const std::vector<int64_t>& expected) {
      CHECK(got.dtype() == t);
      CHECK(values<int64_t>(got) == expected);
    };
    check(-x, {3, 0, -7});
    check(tg::abs(x), {3, 0, 7});
    check(relu(x), {0, 0, 7});
    check(sign(x), {-1, 0, 1});
    check(maximum(x, y), {1, 0, 7});
    check(minimum(x, y), {-3, 0, -7});
    check(maximum(x, 2.0), {2, 2, 7});
    CHECK(values<int>(lt(x, y)) == std::vector<int>{1, 0, 0});
    CHECK(values<int>(ge(x, 0.0)) == std::vector<int>{0, 1, 1});
  }
  const int64_t big = (int64_t(1) << 53) + 1;  // not an f64
  CHECK(values<int>(eq(tensor<int64_t>({big}, {1}), tensor<int64_t>({big - 1}, {1}))) == std::vector<int>{0});
  CHECK(values<int64_t>(-tensor<int64_t>({big}, {1})) == std::vector<int64_t>{-big});
}
TEST_CASE("operators: comparisons and compound assignments") {
  const Tensor a = tensor<float>({1, 2, float(kNan)}, {3}), b = tensor<float>({2, 2, 2}, {3});
  const struct {
    BoolTensor got;
    std::vector<int> want;
  } cases[] = {{a == b, {0, 1, 0}}, {a != b, {1, 0, 1}},   {a < b, {1, 0, 0}},    {a <= b, {1, 1, 0}},
               {b > a, {1, 0, 0}},  {b >= a, {1, 1, 0}},   {a == 2, {0, 1, 0}},   {a != 2, {1, 0, 1}},
               {a < 2, {1, 0, 0}},  {a <= 1.5, {1, 0, 0}}, {a > 1, {0, 1, 0}},    {a >= 1, {1, 1, 0}},
               {2 == a, {0, 1, 0}}, {2 != a, {1, 0, 1}},   {1 < a, {0, 1, 0}},    {1 <= a, {1, 1, 0}},
               {2 > a, {1, 0, 0}},  {1.5 >= a, {1, 0, 0}}, {!(a < b), {0, 1, 1}}, {(a < b) == (a <= b), {1, 0, 1}}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    CAPTURE(i);
    CHECK(values<int>(cases[i].got) == cases[i].want);
  }
  CHECK(values(where(a < b, a, 0.0)) == std::vector<float>{1, 0, 0});
  const Tensor mask = a < b;
  CHECK(mask.dtype() == DType::boolean);
  // bool(tensor) means a handle that is not empty, unlike `if (a < b)`.
  static_assert(!std::is_constructible_v<bool, BoolTensor> && std::is_constructible_v<bool, Tensor>);
  static_assert(std::is_same_v<decltype(!mask), bool> && std::is_convertible_v<BoolTensor, Tensor>);
  CHECK(!Tensor());
  for (const bool lazy : {false, true}) {
    const Mode mode(lazy);
    Tensor x = tensor<float>({1, 2}, {2}), y = tensor<float>({4, 8}, {2});
    const Tensor before = x;
    x += y;
    CHECK(values(x) == std::vector<float>{5, 10});
    x -= y;
    x *= y;
    CHECK(values(x) == std::vector<float>{4, 16});
    x /= y;
    x += 1, x -= 3, x *= 4, x /= 2;
    CHECK(values(x) == std::vector<float>{-2, 0});
    CHECK(values(before) == std::vector<float>{1, 2});  // not in place
    CHECK(x.id() != before.id());
    Tensor w = tensor<float>({3}, {1}).requires_grad_(), z = w;
    z *= w;
    z += w;
    CHECK(values(backward(z)[w]) == std::vector<float>{7});
  }
}
TEST_CASE("bool tensors: made, converted, printed") {
  const Tensor c = gt(tensor<float>({-1, 2, kNan}, {3}), 0.0);
  CHECK(c.dtype() == DType::boolean);
  CHECK_HAS(to_string(c), "[false, true, false]\n(3) bool");
  CHECK(values<uint8_t>(c) == std::vector<uint8_t>{0, 1, 0});
  CHECK(values(c.to(DType::f32)) == std::vector<float>{0, 1, 0});
  CHECK(values<int>(tensor<float>({0, -0.f, 0.5f, kNan}, {4}).to(DType::boolean)) == std::vector<int>{0, 0, 1, 1});
  CHECK(values<int>(tensor<bool>({true, false}, {2})) == std::vector<int>{1, 0});
  CHECK(slice(c, 0, 1, 2).item<bool>());
}
TEST_CASE("dropout: the word of each position decides, at all sizes, offsets and layouts") {
  constexpr double kP = 0.3;
  const auto check = [&](const Tensor& x, uint64_t offset) {
    Rng rng{uint64_t(-3), offset};
    const Rng at = rng;
    Values want = values<double>(x);
    for (size_t i = 0; i < want.size(); ++i)
      want[i] = detail::uniform(detail::random_word(at, i)) < kP ? 0 : want[i] / (1 - kP);
    const Values got = values<double>(dropout(x, kP, rng));
    REQUIRE(got.size() == want.size());
    const double epsilon = x.dtype() == DType::f64 ? 1e-15 : x.dtype() == DType::f32 ? 3e-7 : 4e-3;
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= epsilon * std::abs(want[i]));
  };
  for (const DType t : kFloats)
    for (const uint64_t offset : {uint64_t(0), (uint64_t(1) << 32) - 2, uint64_t(-2)}) {  // carries into y, and past it
      CAPTURE_ALL(name_of(t), offset);
      for (const int64_t n : {1, 3, 5, 17, 131, 511, 514, 1027}) check(full({n}, 7.0, t), offset);
      check(transpose(full({53, 37}, 7.0, t)), offset);
    }
}
