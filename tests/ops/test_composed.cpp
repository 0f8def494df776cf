// Functions that are made of other ops: values, edges and what they refuse. Their gradients are in the op cases.
#include <tapegrad/tapegrad.h>

#include <cmath>

#include "support/files.h"
#include "support/helpers.h"

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
  CHECK_HAS(error_of([&] { permute(x, {0, 0, 1}); }), "[permute] the order (0, 0, 1) does not name each of the 3");
  CHECK_HAS(error_of([&] { permute(x, {0, 1}); }), "[permute] the order (0, 1)");
  CHECK_HAS(error_of([&] { squeeze(x, 1); }), "[squeeze] dimension 1 of (1, 2, 3) i64 has size 2");
  CHECK_HAS(error_of([&] { unsqueeze(x, 4); }), "[unsqueeze] dim is 4");
  CHECK_HAS(error_of([&] { flatten(x, 2, 1); }), "[flatten] first is 2 and last 1");
  CHECK_HAS(error_of([&] { stack({x, p}); }), "[stack] tensor 0 is (1, 2, 3) i64, tensor 1 is (3, 1, 2) i64");
  CHECK_HAS(error_of([&] { stack(Inputs()); }), "[stack] there is no tensor");
  CHECK_HAS(error_of([&] { repeat(x, {2}); }), "[repeat] times is (2)");
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
  CHECK_HAS(error_of([] { logical_not(zeros({2})); }), "[logical_not] (2) f32 is no mask");
  CHECK_HAS(error_of([] { any(zeros({2})); }), "[any] (2) f32 is no mask");
}

TEST_CASE("one_hot and accuracy; i32 and i64 meet") {
  const Tensor i = tensor<int32_t>({2, 0, 1}, {3});
  CHECK(list(one_hot(i, 3)) == Doubles{0, 0, 1, 1, 0, 0, 0, 1, 0});
  CHECK(one_hot(i.to(DType::i64), 4, DType::bf16).dtype() == DType::bf16);
  CHECK(one_hot(zeros({2, 0}, DType::i64), 3).shape() == Shape{2, 0, 3});
  CHECK_HAS(error_of([&] { one_hot(i, 2).to_vector<float>(); }), "[scatter_add]");
  CHECK_HAS(error_of([] { one_hot(zeros({2}), 2); }), "[one_hot] the indices are (2) f32");
  const Tensor logits = tensor<float>({1, 2, 0, 5, 1, 1, 0, 0, 3, 9, 9, 9}, {4, 3});
  CHECK(accuracy(logits, tensor<int32_t>({1, 0, 1, -100}, {4})).item<double>() == doctest::Approx(2. / 3));
  CHECK(accuracy(reshape(logits, {2, 2, 3}), tensor<int64_t>({1, 0, 2, 0}, {2, 2})).item<double>() == 1);
  CHECK(std::isnan(accuracy(logits, full({4}, -100, DType::i64)).item<double>()));
  CHECK_HAS(error_of([&] { accuracy(logits, i); }), "[accuracy] the logits are (4, 3) f32, the targets (3) i32");
  CHECK(list(eq(argmax(logits), tensor<int32_t>({1, 1, 2, 0}, {4}))) == Doubles{1, 0, 1, 1});
  CHECK(list(lt(i, i.to(DType::i64) + 1.0)) == Doubles{1, 1, 1});
}
