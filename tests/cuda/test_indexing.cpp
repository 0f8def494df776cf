#include <tapegrad/ops/ops.h>

#include <numeric>

#include "support/files.h"
#include "support/on_cuda.h"

using namespace tg;
namespace {

Tensor indices(const Shape& s, int64_t below, uint64_t seed) {
  return (random(s, seed, 0, double(below)).to(DType::i64));
}
Tensor i64(const std::vector<int64_t>& v) { return tensor<int64_t>(v, {int64_t(v.size())}); }
void same(const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& in, double tolerance) {
  std::vector<Tensor> there;
  for (auto& t : in) there.push_back(t.to(kGpu));
  const Tensor y = f(there), again = f(there), expected = f(in);
  CHECK(y.device() == kGpu);
  CHECK(distance(y, expected) <= tolerance);
  CHECK(bits_of(y) == bits_of(again));
}
}  // namespace

TEST_CASE("gradient of an embedding: 12 000 tokens, a hot id, ids that are absent") {
  const int64_t n = 12000;
  for (int64_t rows : {7, 300, 70000}) {
    CAPTURE(rows);
    std::vector<int64_t> ids = values<int64_t>(indices({n}, rows, 5));
    for (size_t i = 0; i < ids.size(); i += 3) ids[i] = rows / 2;
    for (DType t : {DType::f32, DType::bf16}) {
      if (rows > 300 && t == DType::bf16) continue;
      const int64_t width = rows > 300 ? 1 : 8;
      const Tensor dy = random({n, width}, 6).to(t);
      const std::vector<Tensor> in{i64(ids), random({rows, width}, 7).to(t), dy};
      const Tensor cpu = emit1(make_ref<op::IndexSelectGrad>(0, rows), {in[0], dy});
      const Tensor gpu = emit1(make_ref<op::IndexSelectGrad>(0, rows), {in[0].to(kGpu), dy.to(kGpu)});
      CHECK(bits_of(cpu) == bits_of(gpu));
      const OpPtr op = make_ref<op::IndexSelectGrad>(0, rows);
      const Tensor kept = in[1].to(kGpu), sum = emit1(op, {in[0], dy, in[1]});
      CHECK(bits_of(emit1(op, {in[0].to(kGpu), dy.to(kGpu), kept})) == bits_of(sum));
      CHECK(bits_of(kept) == bits_of(in[1]));
      std::vector<Tensor> there{in[0].to(kGpu), dy.to(kGpu)};
      there.push_back(in[1].to(kGpu));
      const void* const at = there[2].value()->storage->data;
      const Tensor in_place = detail::emit_donating(op, std::move(there))[0];
      CHECK(in_place.value()->storage->data == at);
      CHECK(bits_of(in_place) == bits_of(sum));
    }
  }
}
TEST_CASE("a sort of many tiles and three passes keeps the order of equal keys") {
  const int64_t n = 21000;  // six tiles
  std::vector<int64_t> ids = values<int64_t>(indices({n}, 5, 8));
  for (auto& id : ids) id *= 30000;  // keys of 17 bits
  const Tensor dy = random({n, 1}, 9);
  const Tensor cpu = emit1(make_ref<op::IndexSelectGrad>(0, 120001), {i64(ids), dy});
  CHECK(bits_of(cpu) == bits_of(emit1(make_ref<op::IndexSelectGrad>(0, 120001), {i64(ids).to(kGpu), dy.to(kGpu)})));
}
TEST_CASE("scatter_add: one long line, many lines, a repeated source; integers") {
  same([](auto& v) { return scatter_add(v[0], 0, v[1], v[2]); },
       {random({50}, 1), indices({11000}, 50, 2), random({11000}, 3)}, 1e-5);
  same([](auto& v) { return scatter_add(v[0], 0, v[1], v[2]); },
       {random({20, 3}, 1).to(DType::bf16), indices({600, 3}, 20, 2), random({600, 3}, 3).to(DType::bf16)}, 2e-2);
  same([](auto& v) { return scatter_add(v[0], -1, v[1], v[2]); },
       {random({8200, 4}, 1), indices({8200, 2}, 4, 2), random({8200, 2}, 3)}, 1e-5);
  same([](auto& v) { return scatter_add(v[0], -1, v[1], v[2]); },
       {random({30, 4}, 1).to(DType::bf16), indices({30, 9}, 4, 2), random({30, 9}, 3).to(DType::bf16)}, 2e-2);
  same([](auto& v) { return scatter_add(v[0], 0, v[1], expand(v[2], {400})); },
       {indices({5}, 9, 1), indices({400}, 5, 2), indices({1}, 9, 3)}, 0);
}
TEST_CASE("bad indices: the first is named at the next read, nothing else is written, and the device goes on") {
  const Tensor x = random({2, 3}, 1).to(kGpu);
  for (int64_t bad : {int64_t(3), int64_t(-1), int64_t(1) << 40}) {
    CAPTURE(bad);
    const auto at = fmt::format("index {} at position (1, 0) of index (2, 3) i64 is outside of dimension 1", bad);
    const Tensor index = tensor<int64_t>({0, 1, 2, bad, bad, 0}, {2, 3}).to(kGpu);
    CHECK_SAYS(values(gather(x, 1, index)), "[gather] " + at);
    CHECK_SAYS(values(scatter_add(x, 1, index, x)), "[scatter_add] " + at);
    const Tensor some = i64({2, bad, bad}).to(kGpu);
    CHECK_SAYS(values(index_select(x, 1, some)),
               fmt::format("[index_select] index {} at position (1) of index (3) i64 is outside of dimension 1, which "
                           "has size 3. Indices must be in [0, 3)",
                           bad));
    CHECK_SAYS(values(emit1(make_ref<op::IndexSelectGrad>(0, 3), {some, random({3, 4}, 2).to(kGpu)})),
               fmt::format("[index_select_grad] index {} at position (1)", bad));
    CHECK_SAYS(
        values(embedding(index, random({3, 8}, 2).to(kGpu))),
        fmt::format("[embedding] id {} at position (1, 0) of ids (2, 3) i64 is outside of the table. Ids must be in "
                    "[0, 3)",
                    bad));
    CHECK(error_of([&] { synchronize(kGpu); }) == "no error");
  }
  std::vector<int64_t> line(100, 2);
  line[60] = 3;
  const Tensor sums = scatter_add(i64({0, 0, 0}).to(kGpu), 0, i64(line).to(kGpu), i64(line).to(kGpu));
  CHECK_SAYS(synchronize(kGpu), "[scatter_add] index 3 at position (60) of index (100) i64");
  CHECK(values<int64_t>(sums) == std::vector<int64_t>{0, 0, 198});
  const Tensor far = tensor<int32_t>({-7}, {1}).to(kGpu), y = index_select(x, 0, far);
  CHECK_SAYS(synchronize(kGpu), "[index_select] index -7 at position (0) of index (1) i32");
  CHECK(values(y) == std::vector<float>{0, 0, 0});
}
TEST_CASE("bad indices: of 20 000 the first in row-major order, and of two calls the first call") {
  std::vector<int64_t> ids(20000, 77);
  ids[0] = ids[1] = ids[2] = 1;
  const Tensor table = random({4, 2}, 1).to(kGpu), many = tensor<int64_t>(ids, {200, 100}).to(kGpu);
  const Tensor one = i64({9}).to(kGpu);
  const Tensor a = embedding(many, table), b = embedding(one, table);
  CHECK_SAYS(values(b), "[embedding] id 77 at position (0, 3) of ids (200, 100) i64");
  CHECK_HAS(
      error_of([&] {
        synchronize(kGpu);
        values(emit1(make_ref<op::IndexSelectGrad>(0, 4), {reshape(many, {20000}), filled({20000, 1}, 1.f).to(kGpu)}));
      }),
      "at position (3) of index (20000) i64");
}
TEST_CASE("bad targets of cross_entropy, and the mean of no rows") {
  const Tensor logits = random({3, 5}, 1).to(kGpu);
  const auto loss = [&](std::vector<int64_t> t, CrossEntropyOptions o) {
    return values(cross_entropy(logits, i64(t).to(kGpu), o));
  };
  CHECK_SAYS(loss({0, 5, -1}, {}),
             "[cross_entropy] target 5 at position (1) of targets (3) i64 is no class. Targets must be in [0, 5), the "
             "last size of the logits, or ignore_index (not set).");
  CHECK_SAYS(loss({0, 1, -1}, {Reduction::none, -2}), "target -1 at position (2) of targets (3) i64");
  CHECK_SAYS(loss({-1, -1, -1}, {Reduction::mean, -1}),
             "[cross_entropy] no row is left for the mean: 0 of 3 target(s) differ from ignore_index (-1)");
  CHECK(loss({-1, -1, -1}, {Reduction::sum, -1}) == std::vector<float>{0});
}
TEST_CASE("cross_entropy: long rows of odd length, masked and infinite logits, all rows in place") {
  for (DType t : {DType::f32, DType::bf16, DType::f64})
    for (int64_t n : {1023, 2501}) {
      CAPTURE(n);
      const Tensor x = random({5, n}, 1, -9, 9).to(t), ids = indices({5}, n, 2);
      for (double smoothing : {0.0, 0.1}) {
        const CrossEntropyOptions o{Reduction::mean, values<int64_t>(ids)[1], smoothing};
        const double tolerance = t == DType::bf16 ? 2e-2 : t == DType::f32 ? 1e-5 : 1e-11;
        same([&](auto& v) { return cross_entropy(v[0], v[1], o); }, {x, ids}, tolerance);
        same(
            [&](auto& v) {
              Tensor leaf = v[0].detach().requires_grad_();
              return backward(cross_entropy(leaf * 1.0, v[1], o))[leaf];
            },
            {x, ids}, tolerance);
      }
    }
  std::vector<float> masked(2000, -kInf);
  masked[1500] = 1, masked[3] = 2;
  std::vector<float> all(masked);
  for (float odd : {-kInf, kInf, kNan}) {
    std::vector<float> second(2000, odd == -kInf ? odd : 0.f);
    second[7] = odd;
    all = masked;
    all.insert(all.end(), second.begin(), second.end());
    same([](auto& v) { return cross_entropy(v[0], v[1], {Reduction::none}); },
         {tensor<float>(all, {2, 2000}), i64({1500, 7})}, 1e-5);
  }
}
TEST_CASE("mse_loss over many chunks, and from a view that is not aligned") {
  const Tensor x = random({3, 7001}, 1), t = random({3, 7001}, 2);
  same([](auto& v) { return mse_loss(v[0], v[1]); }, {x, t}, 1e-5);
  same([](auto& v) { return mse_loss(slice(v[0], 0, 1, 3), slice(v[1], 0, 0, 2), Reduction::sum); }, {x, t}, 1e-5);
  same([](auto& v) { return mse_loss(v[0], v[1], Reduction::none); }, {x.to(DType::bf16), t.to(DType::bf16)}, 2e-2);
}
TEST_CASE("argmax: long rows, columns, ties and NaN") {
  std::vector<float> v(5000, 1.f);
  v[4100] = v[4200] = 3;
  for (auto& [at, expected] : std::vector<std::pair<size_t, int64_t>>{{0, 4100}, {4900, 4900}, {17, 17}}) {
    if (at) v[at] = kNan;
    for (const Shape& s : {Shape{5000}, Shape{1, 5000}, Shape{5000, 1}}) {
      const Tensor x = tensor<float>(v, s).to(kGpu);
      CHECK(values<int64_t>(argmax(x, s[0] == 1 ? 1 : 0))[0] == expected);
    }
  }
  const auto arg = [](int64_t dim) { return [dim](auto& in) { return argmax(in[0], dim); }; };
  const Tensor x = indices({3, 40, 700}, 9, 4);
  same(arg(1), {x}, 0);
  same(arg(0), {x.to(DType::f32)}, 0);
  same(arg(2), {slice(x.to(DType::bf16), 2, 1, 700)}, 0);
}
TEST_CASE("topk: ties, NaN, zeros of both signs, k of one and of several rounds") {
  const auto both = [](int64_t k) {
    return [k](auto& in) {
      const TopK t = topk(in[0], k);
      return concat({t.values.to(DType::f64), t.indices.to(DType::f64)}, 0);
    };
  };
  Tensor x = indices({2, 2600}, 40, 4).to(DType::f32) - 20.0;
  std::vector<float> v = values(x);
  v[5] = v[9] = kNan, v[11] = kInf, v[13] = -kInf, v[15] = -0.f, v[2700] = kNan;
  x = tensor<float>(v, {2, 2600});
  for (int64_t k : {1, 3, 64, 1024, 1025, 2600}) {
    CAPTURE(k);
    same(both(k), {x}, 0);
  }
  // The last element of the first round is at index 0.
  std::vector<float> rising(1100);
  std::iota(rising.begin(), rising.end(), 0.f);
  rising[0] = 76.5f;  // 1023 are larger
  same(both(1100), {tensor<float>(rising, {1, 1100})}, 0);
  same(both(700), {slice(x, 1, 1, 701)}, 0);
  same(both(5), {slice(x, 1, 0, 50).to(DType::bf16)}, 0);
  same(both(5), {random({3, 60}, 1).to(DType::f64)}, 0);
  same(both(2), {random({300, 8}, 1)}, 0);
}
TEST_CASE("argsort: ties, NaN and zeros of both signs, in one block and in many tiles, one row and several") {
  for (const Shape& s : {Shape{1, 70}, Shape{3, 1000}, Shape{1, 20000}, Shape{7000, 3}}) {
    std::vector<float> v = values((random(s, 1) * 40.0).to(DType::i64).to(DType::f32));
    v[5] = v[9] = kNan, v[11] = kInf, v[13] = -kInf, v[15] = -0.f, v[17] = 0.f;
    const Tensor x = tensor<float>(v, s);
    for (const bool descending : {false, true}) {
      CAPTURE_ALL(s, descending);
      const auto order = [descending](auto& in) { return argsort(in[0], -1, {descending}); };
      for (const DType t : {DType::f32, DType::bf16, DType::f64}) same(order, {x.to(t)}, 0);
      same(order, {random<double>(s, 2)}, 0);
      same(order, {indices(s, 50, 3) - 25.0}, 0);
      same(order, {(indices(s, 50, 3) - 25.0).to(DType::i32)}, 0);
    }
  }
  const std::vector<int64_t> far{3, INT64_MIN, -1, INT64_MAX, int64_t(1) << 40, 3};
  same([](auto& in) { return argsort(in[0]); }, {i64(far)}, 0);
}
TEST_CASE("slice_update: in place, at positions of the device, and rows that are outside are not written") {
  const auto i64s = [](const std::vector<int64_t>& v) { return i64(v).to(kGpu); };
  for (const DType t : {DType::f32, DType::bf16, DType::i64, DType::i32, DType::f64}) {
    const Tensor x = (random({3, 2, 9, 4}, 1) * 9.0).to(t), update = (random({3, 4, 2, 4}, 2) * 9.0).to(t);
    const auto rows = [](const Tensor& u) { return transpose(u, 1, 2); };  // (3, 2, 4, 4), strided
    Tensor here = x.contiguous(), there = x.to(kGpu);
    const std::byte* const memory = there.value()->storage->data;
    for (const std::vector<int64_t>& starts : {std::vector<int64_t>{0, 5, 2}, {1, 1, 4}}) {
      here = here + 0.0;  // a new value: eager CPU ops see the old one
      slice_update(here, 2, i64(starts), rows(update));
      slice_update(there, 2, i64s(starts).to(DType::i32), rows(update.to(kGpu)));
      CHECK(bits_of(there) == bits_of(here));
    }
    CHECK(there.value()->storage->data == memory);
    const Tensor held = there.detach();
    slice_update(there, 2, tensor<int64_t>({3}, {}).to(kGpu), rows(update.to(kGpu)));
    slice_update(here, 2, tensor<int64_t>({3}, {}), rows(update));
    CHECK(bits_of(there) == bits_of(here));
    CHECK(bits_of(held) != bits_of(there));
  }
  Tensor y = zeros({3, 4}, DType::f32, kGpu);
  slice_update(y, 1, i64s({2, 3, 0}), full({3, 2}, 7, DType::f32, kGpu));
  CHECK_SAYS(values(y),
             "[slice_update] start 3 at position 1: 2 slices from there on do not fit into dimension 1, "
             "which has size 4.");
  CHECK(values(y) == std::vector<float>{0, 0, 7, 7, 0, 0, 0, 0, 7, 7, 0, 0});
}
