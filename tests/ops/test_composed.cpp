// Functions composed of other ops: values, edges and refusals. The op cases have their gradients.
#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <cmath>

#include "support/files.h"
#include "support/helpers.h"
#include "support/threads.h"

using namespace tg;
namespace {
std::vector<double> list(const Tensor& t) { return t.to_vector<double>(); }
using Doubles = std::vector<double>;
}  // namespace

TEST_CASE("permute, squeeze, unsqueeze, flatten, stack and repeat") {
  const Tensor x = reshape(arange(0, 6), {1, 2, 3});
  const Tensor p = permute(x, {2, 0, 1});
  CHECK(p.shape() == Shape{3, 1, 2});
  CHECK(list(p) == Doubles{0, 3, 1, 4, 2, 5});
  CHECK(p.value()->storage.get() == x.value()->storage.get());  // a view
  CHECK(list(permute(p, {1, 2, 0})) == list(x));
  CHECK(permute(zeros({}), {}).ndim() == 0);
  CHECK(unsqueeze(x, -1).shape() == Shape{1, 2, 3, 1});
  CHECK(unsqueeze(x, 0).shape() == Shape{1, 1, 2, 3});
  CHECK(squeeze(x, 0).shape() == Shape{2, 3});
  CHECK(flatten(x).shape() == Shape{6});
  CHECK(flatten(x, 1).shape() == Shape{1, 6});
  CHECK(flatten(x, 0, 1).shape() == Shape{2, 3});
  CHECK(flatten(zeros({})).shape() == Shape{1});
  CHECK(list(stack({arange(0, 2), arange(2, 4)}, 1)) == Doubles{0, 2, 1, 3});
  CHECK(stack({zeros({}), zeros({})}).shape() == Shape{2});
  CHECK(list(repeat(arange(0, 2), {3})) == Doubles{0, 1, 0, 1, 0, 1});
  CHECK(repeat(x, {2, 0, 1}).shape() == Shape{2, 0, 3});
  CHECK_SAYS(permute(x, {0, 0, 1}), "[permute] the order (0, 0, 1) does not name each of the 3");
  CHECK_SAYS(permute(x, {0, 1}), "[permute] the order (0, 1)");
  CHECK_SAYS(squeeze(x, 1), "[squeeze] dimension 1 of (1, 2, 3) i64 has size 2");
  CHECK_SAYS(unsqueeze(x, 4), "[unsqueeze] dim is 4");
  CHECK_SAYS(flatten(x, 2, 1), "[flatten] first is 2 and last 1");
  CHECK_SAYS(stack({x, p}), "[stack] tensor 0 is (1, 2, 3) i64, tensor 1 is (3, 1, 2) i64");
  CHECK_SAYS(stack(Inputs()), "[stack] there is no tensor");
  CHECK_SAYS(repeat(x, {2}), "[repeat] times is (2)");
}

TEST_CASE("masks: not, and, or, any, all") {
  for (const bool lazy : {false, true}) {
    Mode mode(lazy);
    const Tensor a = gt(tensor<float>({0, 1, 0, 1}, {4}), 0.5), b = gt(tensor<float>({0, 0, 1, 1}, {4}), 0.5);
    CHECK(list(logical_not(a)) == Doubles{1, 0, 1, 0});
    CHECK(list(logical_and(a, b)) == Doubles{0, 0, 0, 1});
    CHECK(list(logical_or(a, b)) == Doubles{0, 1, 1, 1});
    CHECK(logical_and(a, b).dtype() == DType::boolean);
    CHECK(logical_or(reshape(a, {4, 1}), b).shape() == Shape{4, 4});
    CHECK(any(a).item<bool>());
    CHECK(!all(a).item<bool>());
    CHECK(!any(logical_and(a, logical_not(a))).item<bool>());
    CHECK(all(logical_or(a, logical_not(a))).item<bool>());
    const Tensor none = zeros({0}, DType::boolean);
    CHECK(!any(none).item<bool>());
    CHECK(all(none).item<bool>());
  }
  CHECK_SAYS(logical_not(zeros({2})), "[logical_not] (2) f32 is no mask");
  CHECK_SAYS(any(zeros({2})), "[any] (2) f32 is no mask");
}

TEST_CASE("one_hot and accuracy; i32 and i64 meet") {
  const Tensor i = tensor<int32_t>({2, 0, 1}, {3});
  CHECK(list(one_hot(i, 3)) == Doubles{0, 0, 1, 1, 0, 0, 0, 1, 0});
  CHECK(one_hot(i.to(DType::i64), 4, DType::bf16).dtype() == DType::bf16);
  CHECK(one_hot(zeros({2, 0}, DType::i64), 3).shape() == Shape{2, 0, 3});
  CHECK_SAYS(one_hot(i, 2).to_vector<float>(), "[scatter_add]");
  CHECK_SAYS(one_hot(zeros({2}), 2), "[one_hot] the indices are (2) f32");
  const Tensor logits = tensor<float>({1, 2, 0, 5, 1, 1, 0, 0, 3, 9, 9, 9}, {4, 3});
  CHECK(accuracy(logits, tensor<int32_t>({1, 0, 1, -100}, {4}), -100).item<double>() == doctest::Approx(2. / 3));
  CHECK(accuracy(reshape(logits, {2, 2, 3}), tensor<int64_t>({1, 0, 2, 0}, {2, 2})).item<double>() == 1);
  CHECK(accuracy(logits, full({4}, -100, DType::i64)).item<double>() == 0);
  CHECK(std::isnan(accuracy(logits, full({4}, -100, DType::i64), -100).item<double>()));
  CHECK_SAYS(accuracy(logits, i), "[accuracy] the logits are (4, 3) f32, the targets (3) i32");
  CHECK(list(eq(argmax(logits, -1), tensor<int32_t>({1, 1, 2, 0}, {4}))) == Doubles{1, 0, 1, 1});
  CHECK(list(lt(i, i.to(DType::i64) + 1.0)) == Doubles{1, 1, 1});
}

TEST_CASE("tril, triu and pad") {
  const Tensor x = reshape(arange(1, 25), {2, 3, 4});
  for (int64_t diagonal = -4; diagonal <= 5; ++diagonal) {
    const auto lower = list(tril(x, diagonal)), upper = list(triu(x, diagonal)), all = list(x);
    for (int64_t b = 0, at = 0; b < 2; ++b)
      for (int64_t i = 0; i < 3; ++i)
        for (int64_t j = 0; j < 4; ++j, ++at) {
          CAPTURE(diagonal);
          CHECK(lower[size_t(at)] == (j <= i + diagonal ? all[size_t(at)] : 0));
          CHECK(upper[size_t(at)] == (j >= i + diagonal ? all[size_t(at)] : 0));
        }
  }
  CHECK(list(tril(x, INT64_MAX)) == list(x));
  CHECK(list(triu(x, INT64_MIN)) == list(x));
  CHECK(list(tril(full({2, 2}, NAN))) != Doubles{0, 0, 0, 0});
  CHECK(list(tril(full({2, 2}, NAN)))[1] == 0);
  CHECK(list(triu(ones({2, 2}, DType::boolean), 1)) == Doubles{0, 1, 0, 0});
  CHECK(tril(zeros({0, 3})).shape() == Shape{0, 3});
  CHECK_SAYS(tril(zeros({3})), "[tril] needs 2 dimension(s) or more, got (3) f32");
  CHECK(list(pad(tensor<float>({1, 2}, {2}), {{1, 2}})) == Doubles{0, 1, 2, 0, 0});
  CHECK(list(pad(tensor<int64_t>({1, 2}, {1, 2}), {{0, 1}, {1, 0}}, -1)) == Doubles{-1, 1, 2, -1, -1, -1});
  CHECK(list(pad(ones({1}, DType::boolean), {{1, 1}})) == Doubles{0, 1, 0});
  CHECK(list(pad(ones({1}, DType::f16), {{0, 1}}, 0.5)) == Doubles{1, 0.5});
  CHECK(std::signbit(list(pad(ones({1}), {{0, 1}}, -0.))[1]));
  CHECK(list(pad(zeros({0, 1}), {{1, 0}, {0, 1}}, 7)) == Doubles{7, 7});
  CHECK(pad(zeros({}), {}).ndim() == 0);
  CHECK(pad(x, {{0, 0}, {0, 0}, {0, 0}}).id() == x.id());
  CHECK_SAYS(pad(x, {{1, 1}}), "[pad] there are 1 paddings for (2, 3, 4) i64");
  CHECK_SAYS(pad(zeros({2}), {{-1, 1}}), "[pad] a padding of (2) f32 is (-1, 1)");
  CHECK_SAYS(pad(zeros({2}), {{INT64_MAX, 1}}), "[pad] a padding of (2) f32 is");
  CHECK_SAYS(pad(zeros({2}), {{int64_t(1) << 59, 0}}), "[pad]");
  CHECK_SAYS(pad(zeros({2}, DType::i64), {{1, 0}}, 0.5), "[pad] 0.5 is no value of i64");
}

TEST_CASE("index_add") {
  const Tensor x = ones({3, 2}), index = tensor<int64_t>({2, 0, 2}, {3});
  CHECK(list(index_add(zeros({2, 3}, DType::i32), -1, index.to(DType::i32), ones({2, 3}, DType::i32))) ==
        Doubles{1, 0, 2, 1, 0, 2});
  (void)index_add(x, 0, index, ones({3, 2}));
  CHECK(list(x) == Doubles(6, 1));  // not in place
  CHECK_SAYS(index_add(x, 0, index, ones({2, 2})),
             "[index_add] source is (2, 2) f32, x is (3, 2) f32, index is (3) i64. source must have x's shape with the "
             "size of index along dimension 0: (3, 2).");
  CHECK_SAYS(index_add(x, 0, x, x), "[index_add] indices must be i32 or i64, got (3, 2) f32");
  CHECK_SAYS(index_add(x, 0, reshape(index, {3, 1}), x), "[index_add] index is (3, 1) i64");
  CHECK_SAYS(index_add(x, 2, index, x), "[index_add]");
  CHECK_SAYS(index_add(x, 0, index + 1.0, x), "index 3 at position (0, 0)");
}

TEST_CASE("isnan, isinf, isfinite; sums and means of masks") {
  const Tensor x = tensor<double>({NAN, INFINITY, -INFINITY, 0, 1e308}, {5});
  for (const DType t : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor y = t == DType::f64 ? x : tensor<double>({NAN, INFINITY, -INFINITY, 0, 1e38}, {5}).to(t);
    CHECK(list(tg::isnan(y)) == Doubles{1, 0, 0, 0, 0});
    CHECK(list(tg::isinf(y)) == Doubles{0, 1, 1, 0, 0});
    CHECK(list(tg::isfinite(y)) == Doubles{0, 0, 0, 1, 1});
  }
  CHECK_SAYS(tg::isnan(zeros({2}, DType::i64)), "[isnan] cannot compute on (2) i64");
  CHECK_SAYS(tg::isfinite(zeros({2}, DType::f16)), "[isfinite] cannot compute on (2) f16");
  const Tensor m = tensor<bool>({true, false, true, true, false, false}, {2, 3});
  CHECK(sum(m).dtype() == DType::i64);
  CHECK(sum(m).item<int64_t>() == 3);
  CHECK(list(sum(m, {0})) == Doubles{2, 0, 1});
  CHECK(sum(m, {-1}, {.keepdim = true}).shape() == Shape{2, 1});
  CHECK(sum(zeros({0}, DType::boolean)).item<int64_t>() == 0);
  CHECK(mean(m).dtype() == DType::f32);
  CHECK(mean(m).item<float>() == 0.5f);
  CHECK(list(mean(m, {1})) == Doubles{double(2.f / 3), double(1.f / 3)});
  CHECK_SAYS(mean(zeros({0}, DType::boolean)), "[mean] (0) bool has no elements to average over");
}

TEST_CASE("bce_with_logits: far ends, the kink that other forms have, and what is refused") {
  for (const DType t : {DType::f64, DType::f32}) {
    Tensor x = tensor<double>({-1000, -30, 0, 0, 30, 1000}, {6}).to(t).requires_grad_();
    const Tensor target = tensor<double>({0, 0, 1, 0.25, 1, 0}, {6}).to(t);
    const Tensor losses = bce_with_logits(x, target, Reduction::none);
    const double tail = std::log1p(std::exp(-30.0)), expected[] = {0, tail, std::log(2.0), std::log(2.0), tail, 1000};
    const auto got = list(losses), slopes = list(backward(sum(losses))[x]);
    const double s = 1 / (1 + std::exp(30.0)), wanted[] = {0, s, -0.5, 0.25, -s, 1};
    for (size_t i = 0; i < 6; ++i) {
      CHECK(std::abs(got[i] - expected[i]) <= 1e-6 * expected[i]);
      CHECK(std::abs(slopes[i] - wanted[i]) <= 1e-6 * std::abs(wanted[i]));
    }
  }
  const Tensor half = ones({4}, DType::bf16);
  CHECK(bce_with_logits(half, half).dtype() == DType::f32);
  CHECK(bce_with_logits(half, half, Reduction::none).shape() == Shape{4});
  CHECK(list(bce_with_logits(half, half, Reduction::sum))[0] ==
        doctest::Approx(4 * list(bce_with_logits(half, half))[0]));
  CHECK_SAYS(bce_with_logits(zeros({2, 1}), zeros({2})),
             "[bce_with_logits] x is (2, 1) f32, target (2) f32. Their shapes must be equal");
  CHECK_SAYS(bce_with_logits(zeros({2}), zeros({2}, DType::i64)), "[bce_with_logits] dtypes differ");
  CHECK_SAYS(bce_with_logits(zeros({0}), zeros({0})), "has no elements to average over");
  CHECK(bce_with_logits(zeros({0}), zeros({0}), Reduction::sum).item<float>() == 0);
}

namespace {
struct Counts {
  Doubles first, after_0;
};
Counts counts_of(const Tensor& draws, int64_t classes) {  // (rows, n)
  Counts c{Doubles(size_t(classes)), Doubles(size_t(classes))};
  const auto v = draws.to_vector<int64_t>();
  const auto n = size_t(draws.size(-1));
  for (size_t r = 0; r < v.size(); r += n) {
    c.first[size_t(v[r])] += 1;
    if (n > 1 && v[r] == 0) c.after_0[size_t(v[r + 1])] += 1;
  }
  return c;
}
// Five standard deviations of a binomial number; exact where p is 0.
void check_counts(const Doubles& counts, Doubles p) {
  double n = 0, total = 0;
  for (const double x : counts) n += x;
  for (const double x : p) total += x;
  REQUIRE(n > 1000);
  for (size_t i = 0; i < p.size(); ++i) {
    CAPTURE(i);
    const double q = p[i] / total;
    CHECK(std::abs(counts[i] - n * q) <= 5 * std::sqrt(n * q * (1 - q)));
  }
}
}  // namespace
TEST_CASE("multinomial has shapes in a dry run, which has no values to refuse") {
  dry_run([] {
    Rng rng;
    CHECK(multinomial(ones({2, 5}), 3, false, rng).shape() == Shape{2, 3});
  });
}
TEST_CASE("multinomial: frequencies of one draw, of draws with replacement and of draws without") {
  const Doubles p{3, 0, 1, 0.5, 0, 2, 0};
  const int64_t rows = 20000;
  const Tensor row = tensor<double>(p, {7}).to(DType::f32), table = expand(row, {rows, 7});
  Rng rng{5};
  check_counts(counts_of(multinomial(table, 1, true, rng), 7).first, p);
  check_counts(counts_of(multinomial(table, 1, false, rng), 7).first, p);
  const Tensor many = multinomial(row, rows, true, rng);
  CHECK(many.shape() == Shape{rows});
  CHECK(many.dtype() == DType::i64);
  check_counts(counts_of(reshape(many, {rows, 1}), 7).first, p);
  const Counts both = counts_of(multinomial(table, 2, true, rng), 7);
  check_counts(both.first, p);
  check_counts(both.after_0, p);
  const Tensor distinct = multinomial(table, 4, false, rng);
  const Counts apart = counts_of(distinct, 7);
  check_counts(apart.first, p);
  check_counts(apart.after_0, {0, 0, 1, 0.5, 0, 2, 0});  // class 0 does not exist
  const auto v = distinct.to_vector<int64_t>();
  for (size_t r = 0; r < v.size(); r += 4) {
    std::vector<int64_t> classes(v.begin() + int64_t(r), v.begin() + int64_t(r) + 4);
    std::ranges::sort(classes);
    REQUIRE(classes == std::vector<int64_t>{0, 2, 3, 5});
  }
}
TEST_CASE("multinomial: sizes, dtypes, threads, lazy and compiled") {
  Rng rng{1};
  CHECK(list(multinomial(tensor<double>({0, 1e-300, 0}, {3}), 3, true, rng)) == Doubles{1, 1, 1});
  CHECK(list(multinomial(tensor<float>({0, 0, 2}, {3}), 1, false, rng)) == Doubles{2});
  CHECK(list(multinomial(ones({1}, DType::bf16), 2, true, rng)) == Doubles{0, 0});
  CHECK(multinomial(ones({2, 0, 3}), 2, false, rng).shape() == Shape{2, 0, 2});
  for (const int64_t classes : {2, 3, 4, 5, 8, 9, 33}) {  // reaches all classes
    const auto v = counts_of(reshape(multinomial(ones({classes}), 2000, true, rng), {2000, 1}), classes).first;
    CHECK(std::ranges::all_of(v, [](double n) { return n > 0; }));
  }
  const Tensor p = random({50, 300}, 3, 0, 1);
  const auto draw = [&](bool replacement) {
    Rng at{9, 4};
    return list(multinomial(p, 5, replacement, at));
  };
  for (const bool replacement : {false, true}) {
    const Doubles expected = draw(replacement);
    CHECK(on_one_thread([&] { return draw(replacement); }) == expected);
    const LazyScope lazy;
    CHECK(draw(replacement) == expected);
  }
  CHECK(draw(false) != draw(true));
  Rng eager{3}, traced{3};
  const Compiled f = compile(
      [&](Inputs in) {
        return std::vector<Tensor>{multinomial(in[0], 2, false, traced), multinomial(in[0], 2, true, traced)};
      },
      {.generators = {&traced}});
  for (int i = 0; i < 3; ++i) {
    const auto got = f({p});
    CHECK(list(got[0]) == list(multinomial(p, 2, false, eager)));
    CHECK(list(got[1]) == list(multinomial(p, 2, true, eager)));
    CHECK(traced == eager);
  }
  CHECK_SAYS(f({p * -1.0})[1].to_vector<int64_t>(), "[gather] index 300 at position (0, 0)");
}
TEST_CASE("multinomial: what is refused") {
  Rng rng{1};
  const auto refused = [&](std::vector<double> v, int64_t n, bool replacement) {
    const int64_t size = int64_t(v.size());
    const Tensor rows = concat({ones({1, size}, DType::f64), tensor<double>(v, {1, size})}, 0);
    return error_of([&] { multinomial(rows, n, replacement, rng); });
  };
  const std::string_view bad =
      "[multinomial] row 1 of (2, 3) f64 has a negative or infinite number, NaN, or fewer than";
  for (const double x : {-1.0, double(NAN), double(INFINITY)})
    for (const bool replacement : {false, true}) CHECK_HAS(refused({1, x, 1}, 2, replacement), bad);
  CHECK_HAS(refused({0, 0, 0}, 1, true), bad);
  CHECK_HAS(refused({1, 0, 1}, 3, false), "fewer than 3 positive one(s)");
  CHECK(refused({1, 0, 1}, 2, false) == "no error");
  CHECK_SAYS(multinomial(ones({3}), 4, false, rng),
             "[multinomial] 4 draws without replacement from (3) f32. Draw 1 or more");
  CHECK_SAYS(multinomial(ones({3}), 0, true, rng), "[multinomial] 0 draws with replacement");
  CHECK_SAYS(multinomial(ones({3, 0}), 1, true, rng), "[multinomial] 1 draws with replacement");
  CHECK_SAYS(multinomial(ones({3}, DType::i64), 1, true, rng), "[multinomial] cannot compute on");
  CHECK_SAYS(multinomial(ones({}), 1, true, rng), "[multinomial] needs 1 dimension(s)");
}
