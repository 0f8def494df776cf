// Extremes, variance, running sums and indexing beyond op_cases.cpp: ties, NaN, values far from 0, several chunks,
// equal indices, refusals.
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/profile/work.h>
#include <tapegrad/ops/ops.h>

#include "support/files.h"
#include "support/refusals.h"
#include "support/threads.h"

using namespace tg;
namespace {
Tensor row(const std::vector<float>& v) { return tensor<float>(v, {int64_t(v.size())}); }
Tensor i64(const std::vector<int64_t>& v, const Shape& s) { return tensor<int64_t>(v, s); }
std::vector<float> grad_of(const std::function<Tensor(const Tensor&)>& f, Tensor x) {
  x.requires_grad_();
  return values(backward(sum(f(x)))[x]);
}
}  // namespace

TEST_CASE("max and min: ties share the gradient, as those of torch.amax") {
  const auto largest = [](const Tensor& x) { return max(x, {-1}); };
  const auto smallest = [](const Tensor& x) { return min(x, {0}); };
  const Tensor x = tensor<float>({1, 3, 3, 2, 2, 2}, {2, 3});
  CHECK(values(max(x, {1})) == std::vector<float>{3, 2});
  CHECK(grad_of(largest, tensor<float>({1, 3, 3, 2, 2, 2}, {2, 3})) ==
        std::vector<float>{0, .5f, .5f, 1.f / 3, 1.f / 3, 1.f / 3});
  CHECK(grad_of(smallest, tensor<float>({1, 3, 2, 2, 3, 2}, {2, 3})) == std::vector<float>{1, .5f, .5f, 0, .5f, .5f});
  CHECK(grad_of([](const Tensor& t) { return max(t); }, filled({300}, 2.f)) == std::vector<float>(300, 1.f / 300));
}
TEST_CASE("max and min: NaN wins wherever it stands, infinities count") {
  for (int64_t n : {1, 3, 16, 17, 100, 5000, 9001})
    for (int64_t at : {int64_t(0), n / 2, n - 1}) {
      CAPTURE_ALL(n, at);
      std::vector<float> v(size_t(n), 1.f);
      v[size_t(at)] = kNan;
      for (const Shape& s : {Shape{n}, Shape{1, n}, Shape{n, 1}}) {
        const Tensor x = tensor<float>(v, s);
        CHECK(std::isnan(max(x).item<float>()));
        CHECK(std::isnan(min(x).item<float>()));
      }
      const Tensor column = concat({tensor<float>(v, {n, 1}), filled({n, 20}, 2.f)}, 1);
      CHECK(std::isnan(values(max(column, {0}))[0]));
      CHECK(std::isnan(values(min(column, {0}))[0]));
      CHECK(values(min(column, {0}))[20] == 2);
      v[size_t(at)] = -kInf;
      CHECK(min(row(v)).item<float>() == -kInf);
      CHECK(max(row(v)).item<float>() == (n == 1 ? -kInf : 1));
    }
  CHECK(grad_of([](const Tensor& t) { return max(t); }, row({1, kNan, 2, kNan})) == std::vector<float>{0, .5f, 0, .5f});
  const auto least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  CHECK(max(i64({least, least}, {2})).item<int64_t>() == least);
  CHECK(min(i64({most, least, 3}, {3})).item<int64_t>() == least);
  CHECK(min(i64({most, most}, {2})).item<int64_t>() == most);
  CHECK(min(tensor<int32_t>({4, -7, 2}, {3})).item<int64_t>() == -7);
}
TEST_CASE("var: two passes keep the digits of values far from 0, over long rows and columns too") {
  for (int64_t n : {8, 4096, 10001}) {
    std::vector<float> v(size_t(n) * 3);
    for (size_t i = 0; i < v.size(); ++i) v[i] = 10000.f + float(i / 3 % 2);
    const double ones = std::floor(double(n) / 2), expected = ones * (double(n) - ones) / double(n) / double(n - 1);
    const Tensor columns = tensor<float>(v, {n, 3});
    for (const Tensor& y : {var(columns, {0}), var(transpose(columns).contiguous(), {1})})
      for (float x : values(y)) CHECK(x == doctest::Approx(expected).epsilon(1e-5));
  }
  CHECK(var(row({3}), {0}, {.correction = 0}).item<float>() == 0);
}
TEST_CASE("cumsum: rows longer than a chunk, both directions, integers wrap nowhere below 64 bits") {
  const int64_t n = 20001;
  const auto v = random<float>({2, n}, 3);
  const auto x = values<double>(v);
  const auto check = [&](const Tensor& y, bool reverse) {
    const auto got = values<double>(y);
    double sum = 0, worst = 0;
    for (int64_t r = 0; r < 2; ++r, sum = 0)
      for (int64_t k = 0; k < n; ++k) {
        const auto i = size_t(r * n + (reverse ? n - 1 - k : k));
        sum += x[i];
        worst = std::max(worst, std::abs(got[i] - sum));
      }
    CHECK(worst < 1e-5);
  };
  check(cumsum(v, 1), false);
  check(transpose(cumsum(transpose(v).contiguous(), 0)), false);
  Tensor leaf = v.detach().requires_grad_();
  const Tensor y = cumsum(leaf, 1);
  check(backward(y, v)[leaf], true);  // v's vjp is its reverse running sum
  const Tensor big = i64({int64_t(1) << 40, 1, -3}, {3});
  CHECK(values<int64_t>(cumsum(big, 0)) ==
        std::vector<int64_t>{int64_t(1) << 40, (int64_t(1) << 40) + 1, (int64_t(1) << 40) - 2});
}
TEST_CASE("scatter_add of bf16 sums in f32") {
  // A bf16 sum, rounded after each addition, would stop at 256.
  const Tensor small = filled({512}, 1.f).to(DType::bf16), none = zeros({1}, DType::bf16);
  CHECK(scatter_add(none, 0, i64(std::vector<int64_t>(512, 0), {512}), small).item<float>() == 512);
}
TEST_CASE("the gradient of index_select is added to a sum, in its place if nobody else holds it") {
  for (const int64_t width : {3, 40})  // narrower and wider than a vector
    for (const DType t : {DType::f32, DType::f64, DType::bf16}) {
      CAPTURE_ALL(width, t);
      const Tensor index = i64({4, 0, 4}, {3}), dy = random({3, width}, 1).to(t), was = random({6, width}, 2).to(t);
      const auto added = [&](Tensor sum) {
        std::vector<Tensor> in{index, dy};
        in.push_back(std::move(sum));
        return detail::emit_donating(make_ref<op::IndexSelectGrad>(0, 6), std::move(in))[0];
      };
      const DType wide = t == DType::f64 ? t : DType::f32;
      const Tensor alone = emit1(make_ref<op::IndexSelectGrad>(0, 6), {index, dy.to(wide)});
      const Tensor expected = (was.to(wide) + alone).to(t), kept = was * 1.0;
      CHECK(bits_of(added(was)) == bits_of(expected));
      CHECK(bits_of(was) == bits_of(kept));
      Tensor own = was * 1.0;
      const void* const at = own.value()->storage->data;
      const Tensor in_place = added(std::move(own));
      CHECK(in_place.value()->storage->data == at);
      CHECK(bits_of(in_place) == bits_of(expected));
      CHECK(bits_of(added(transpose(transpose(was, 0, 1) * 1.0, 0, 1))) == bits_of(expected));  // columns apart
      CHECK_SAYS(added(zeros({5, width}, t)), "[index_select_grad] adds a gradient (6, ");
    }
}
TEST_CASE("a table that is used twice: its gradient is one sum, and no pass over all of it adds them") {
  const Tensor ids = i64({4, 0, 4, 1}, {2, 2}), weight = random({6, 40}, 3);
  const auto grad = [&](Tensor of_embedding, Tensor of_product) {
    const Tensor x = embedding(ids, of_embedding), y = matmul(x, transpose(of_product, 0, 1));
    return backward(sum(y * random({2, 2, 6}, 4)));
  };
  Tensor table = (weight * 1.0).requires_grad_(), one = (weight * 1.0).requires_grad_(),
         other = (weight * 1.0).requires_grad_();
  const GradMap apart = grad(one, other);
  const Tensor expected = apart[other] + apart[one];
  for (const bool lazy : {false, true}) {
    Mode mode(lazy);
    const WorkScope counting;
    const Tensor g = grad(table, table)[table];
    eval({g});
    bool added = false;
    for (const WorkOfOp& o : counting.ops()) {
      CHECK(o.op.find("add") == std::string::npos);
      added |= o.op == "index_select_grad" && o.work.written == 4 * 4 * 40;
    }
    CHECK(added);
    CHECK(bits_of(g) == bits_of(expected));
  }
}
TEST_CASE("a sum that a gradient of index_select is added to stays as it is for those who hold it") {
  const Tensor weight = random({6, 40}, 1), permutation = i64({3, 1, 0, 5, 4, 2}, {6}), w = random({6, 40}, 2);
  const auto f = [&](Inputs in) {  // the sum, and the gradient of the slices
    const Tensor x = in[0].detach().requires_grad_();
    const Tensor y = index_select(x, 0, permutation) + x;
    return std::vector{backward(sum(y * w))[x]};
  };
  const std::vector<float> given = values(w);
  std::vector<float> expected = given;
  for (size_t row = 0; row < 6; ++row)
    for (size_t j = 0; j < 40; ++j) expected[size_t(values<int64_t>(permutation)[row]) * 40 + j] += given[row * 40 + j];
  const Compiled compiled = compile(f);
  for (const bool lazy : {false, true}) {
    Mode mode(lazy);
    CHECK(values(f({&weight, 1})[0]) == expected);
  }
  for (int call = 0; call < 3; ++call) CHECK(values(compiled({weight})[0]) == expected);
  CHECK(values(w) == given);
  // The caller gives a gradient of the table itself.
  Tensor table = weight * 1.0;
  table.requires_grad_();
  const Tensor of_table = random({6, 40}, 3), kept = of_table * 1.0, rows = index_select(table, 0, permutation);
  const std::vector<Tensor> outputs{rows, table}, grads{w, of_table};
  const GradMap g = backward(outputs, grads);
  CHECK(bits_of(of_table) == bits_of(kept));
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = values(kept)[i] + (expected[i] - given[i]);
  CHECK(distance(g[table], tensor<float>(expected, {6, 40})) < 1e-6);
}
TEST_CASE("scatter_add and the gradient of index_select: one order of additions for any number of threads") {
  Rng rng{5};
  std::vector<int64_t> ids(200 * 300);
  for (auto& i : ids) i = int64_t(rng.uniform() * 7);  // many equal
  const Tensor index = i64(ids, {200, 300}), src = random({200, 300}, 2, -1e4, 1e4);
  Tensor table = random({7, 300}, 3).requires_grad_();
  const auto all = [&] {
    const Tensor line = scatter_add(zeros({7}), 0, reshape(index, {60000}), reshape(src, {60000}));
    const Tensor rows = index_select(table, 0, i64({ids.begin(), ids.begin() + 200}, {200}));
    return std::vector{scatter_add(zeros({7, 300}), 0, index, src), scatter_add(zeros({200, 7}), 1, index, src), line,
                       backward(rows, src)[table]};
  };
  const auto one = on_one_thread(all);
  check_same_bits(all(), one);
  std::vector<float> expected(7);  // sums in the source's order
  const auto v = values(src);
  for (size_t i = 0; i < ids.size(); ++i) expected[size_t(ids[i])] += v[i];
  CHECK(values(one[2]) == expected);
}

TEST_CASE("what these ops refuse") {
  const Tensor x = random({2, 3}, 1), half = x.to(DType::f16), index = i64({0, 1}, {2});
  const Tensor f64 = random<double>({2, 3}, 1);
  expect_at_emit({
      REFUSES(max(random({2, 0}, 1), {1}), value,
              "[max] (2, 0) f32 has no elements to compare over. The max of nothing is undefined. Pass at least one"),
      REFUSES(min(random({0}, 1)), value, "[min] (0) f32 has no elements"),
      REFUSES(max(half), dtype, "[max] cannot compute on (2, 3) f16"),
      REFUSES(min(x, {2}), shape, "[min]"),
      REFUSES(max(x, {0, 0}), value, "[max] dimension 0 is named twice in (0, 0)"),
      REFUSES(var(x, {}), value,
              "[var] 1 element(s) of (2, 3) f32 make one result and correction is 1: there must be more elements than"),
      REFUSES(var(x, {0}, {.correction = 2}), value, "[var] 2 element(s) of (2, 3) f32"),
      REFUSES(var(x, {0}, {.correction = kNan}), value, "[var] correction is nan. It must be finite"),
      REFUSES(var(i64({1, 2}, {2})), dtype, "[var] cannot compute on (2) i64"),
      REFUSES(cumsum(x, 2), shape, "[cumsum]"),
      REFUSES(cumsum(half, 0), dtype, "[cumsum] cannot compute on (2, 3) f16"),
      REFUSES(log_softmax(random({}, 1)), shape, "[log_softmax] needs 1 dimension(s) or more"),
      REFUSES(log_softmax(index), dtype, "[log_softmax] cannot compute on (2) i64"),
      REFUSES(mse_loss(x, random({3}, 1)), shape,
              "[mse_loss] x is (2, 3) f32, target (3) f32. Their shapes must be equal: there is no broadcasting."),
      REFUSES(mse_loss(x, f64), dtype, "[mse_loss] dtypes differ"),
      REFUSES(mse_loss(random({0}, 1), random({0}, 1)), value, "[mse_loss] (0) f32 has no elements to average over."),
      REFUSES(gather(x, 0, index), shape,
              "[gather] index is (2) i64, x is (2, 3) f32. They must have the same number of dimensions, and "
              "except along dimension 0"),
      REFUSES(gather(x, 1, i64({0, 0, 0}, {3, 1})), shape, "[gather] index is (3, 1) i64"),
      REFUSES(gather(x, 0, x), dtype, "[gather] indices must be i32 or i64, got (2, 3) f32."),
      REFUSES(gather(half, 0, i64({0}, {1, 1})), dtype, "[gather] cannot compute on (2, 3) f16"),
      REFUSES(index_select(x, 0, i64({0}, {1, 1})), shape,
              "[index_select] index is (1, 1) i64. It must have one dimension: one index per slice."),
      REFUSES(index_select(x, 3, index), shape, "[index_select]"),
      REFUSES(scatter_add(x, 0, i64({0}, {1, 1}), x), shape,
              "[scatter_add] index is (1, 1) i64, src is (2, 3) f32. Their shapes must be equal."),
      REFUSES(scatter_add(x, 0, i64({0}, {1, 1}), random<double>({1, 1}, 1)), dtype,
              "[scatter_add] dtypes differ: (2, 3) f32 and (1, 1) f64"),
  });
}
TEST_CASE("indices out of range, when the op runs") {
  const Tensor x = random({2, 3}, 1);
  const auto says = [](std::string_view op, int64_t bad, std::string_view where, std::string_view index, int dim,
                       int size) {
    return fmt::format(
        "[{}] index {} at position {} of index {} is outside of dimension {}, which has size {}. "
        "Indices must be in [0, {}); negative ones do not count from the end.",
        op, bad, where, index, dim, size, size);
  };
  for (int64_t bad : {int64_t(3), int64_t(-1), int64_t(1) << 40}) {
    const Tensor index = i64({0, 1, 2, bad, bad, 0}, {2, 3});
    expect_at_emit(
        {REFUSES(values(gather(x, 1, index)), value, says("gather", bad, "(1, 0)", "(2, 3) i64", 1, 3)),
         REFUSES(values(scatter_add(x, 1, index, x)), value, says("scatter_add", bad, "(1, 0)", "(2, 3) i64", 1, 3)),
         REFUSES(values(index_select(x, 1, i64({2, bad}, {2}))), value,
                 says("index_select", bad, "(1)", "(2) i64", 1, 3))});
  }
  expect_at_emit({REFUSES(values(index_select(x, 0, tensor<int32_t>({-2}, {1}))), value,
                          says("index_select", -2, "(0)", "(1) i32", 0, 2))});
}

TEST_CASE(
    "slice_update: writes in place, at a start for each row or one for all, and leaves old values to their holders") {
  for (const bool lazy : {false, true}) {
    const Mode mode(lazy);
    const Tensor x = zeros({2, 5}), ones = full({2, 2}, 1);
    x.data<float>();  // allocates its memory
    const std::byte* const memory = x.value()->storage->data;
    slice_update(x, 1, i64({0, 3}, {2}), ones);
    slice_update(x, -1, i64({4, 0}, {2}).to(DType::i32), full({2, 1}, 2));
    CHECK(values(x) == std::vector<float>{1, 1, 0, 0, 2, 2, 0, 0, 1, 1});
    CHECK(x.value()->storage->data == memory);
    const Tensor old = x.detach();
    slice_update(x, 0, i64({1}, {}), full({1, 5}, 3));
    CHECK(values(x) == std::vector<float>{1, 1, 0, 0, 2, 3, 3, 3, 3, 3});
    CHECK(values(old) == std::vector<float>{1, 1, 0, 0, 2, 2, 0, 0, 1, 1});
    slice_update(x, 1, i64({1, 1}, {2}), slice(x, 1, 0, 2));  // overlaps itself
    CHECK(values(x) == std::vector<float>{1, 1, 1, 0, 2, 3, 3, 3, 3, 3});
    slice_update(x, 1, i64({5, 0}, {2}), zeros({2, 0}));
    const Tensor view = transpose(x, 0, 1);  // another layout: a copy becomes its value
    slice_update(view, 0, i64({4}, {}), full({1, 2}, 7));
    CHECK(values(view) == std::vector<float>{1, 3, 1, 3, 1, 3, 0, 3, 7, 7});
    CHECK(values(x) == std::vector<float>{1, 1, 1, 0, 2, 3, 3, 3, 3, 3});
  }
}
TEST_CASE("slice_update: a compiled function writes at the position of each call") {
  const Tensor x = zeros({2, 4}), at = i64({0, 2}, {2});
  const Compiled f = compile([&](Inputs in) {
    slice_update(x, 1, at, in[0]);
    at.assign(at + 1.0);
    return std::vector{sum(x)};
  });
  for (int i = 0; i < 2; ++i) f({full({2, 1}, double(i + 1))});
  CHECK(values(x) == std::vector<float>{1, 2, 0, 0, 0, 0, 1, 2});
  CHECK(f.stats().replays == 1);
  CHECK_SAYS(f({full({2, 1}, 9)}), "[slice_update] start 4 at position 1");
  CHECK(values(x) == std::vector<float>{1, 2, 0, 0, 0, 0, 1, 2});
  CHECK(values<int64_t>(at) == std::vector<int64_t>{2, 4});
}
TEST_CASE("slice_update: what it refuses") {
  const Tensor x = zeros({2, 5}), u = zeros({2, 2});
  const auto says = [](const Tensor& to, const Tensor& from, const Tensor& start, int64_t dim) {
    return error_of([&] {
      slice_update(to, dim, start, from);
      values(to);
    });
  };
  const Tensor zero = i64({0}, {}), two = i64({0, 0}, {2});
  CHECK_HAS(says(x, u, i64({0, 4}, {2}), 1),
            "[slice_update] start 4 at position 1: 2 slices from there on do not fit into "
            "dimension 1, which has size 5. A start must be from 0 to 3.");
  CHECK_HAS(says(x, u, i64({-1}, {}), 1), "[slice_update] start -1 at position 0");
  CHECK(values(x) == std::vector<float>(10, 0));
  CHECK_HAS(says(x, zeros({2, 6}), two, 1), "[slice_update] update is (2, 6) f32, x is (2, 5) f32.");
  CHECK_HAS(says(x, zeros({1, 2}), two, 1), "[slice_update] update is (1, 2) f32");
  CHECK_HAS(says(x, zeros({2}), two, 1), "[slice_update] update is (2) f32");
  CHECK_HAS(says(x, u.to(DType::f64), two, 1), "[slice_update] dtypes differ");
  CHECK_HAS(says(x, u, u, 1), "[slice_update] indices must be i32 or i64");
  CHECK_HAS(says(x, u, i64({0, 0, 0}, {3}), 1), "[slice_update] start is (3) i64");
  CHECK_HAS(says(x, zeros({1, 5}), two, 0), "[slice_update] start is (2) i64");
  CHECK_HAS(says(x, u, zero, 2), "[slice_update] dim");
  CHECK_HAS(says(x, Tensor(), zero, 1), "[slice_update] input 1 is an empty tensor");
  Tensor w = zeros({2, 2}).requires_grad_();
  CHECK_HAS(says(x, w * 1.0, two, 1), "one of them needs a gradient, and a write in place has none");
  NoGradScope off;
  CHECK(says(x, w, two, 1) == "no error");
}
