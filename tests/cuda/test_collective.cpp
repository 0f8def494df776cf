// tests/dist has several ranks.
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/cuda/device/rank_parts.h>
#include <tapegrad/ops/ops.h>

#include "support/on_cuda.h"

using namespace tg;

namespace {
const Context kContext{kGpu, "all_reduce"};
std::byte* data(const Tensor& t) { return t.value()->storage->data; }
}  // namespace

TEST_CASE("copy_segments: every element of each piece, and no other") {
  for (const size_t element : {2, 4, 8})
    for (const size_t pieces : {1, 4, 5, 700}) {
      CAPTURE_ALL(element, pieces);
      std::vector<std::array<size_t, 3>> all;  // (from, to, n)
      size_t from = 0, to = 0;
      for (size_t i = 0; i < pieces; ++i) {
        const size_t n = pieces == 1 ? 40'001 : i % 7 == 3 ? 0 : i % 5 == 0 ? 2000 + i : 1 + i * 37 % 300;
        if (i % 5 == 0) from += -from % 8, to += -to % 8;
        all.push_back({from, to, n});
        from += n + i % 3, to += n + 1 + i % 4;
      }
      std::vector<uint8_t> x(from * element), want(to * element, 0xee);
      for (size_t i = 0; i < x.size(); ++i) x[i] = uint8_t(i * 31 + i / 251);
      for (const auto& [f, t, n] : all)
        std::copy_n(x.begin() + int64_t(f * element), n * element, want.begin() + int64_t(t * element));
      const Tensor a = tensor(x, {int64_t(x.size())}, kGpu),
                   b = tensor(std::vector<uint8_t>(want.size(), 0xee), {int64_t(want.size())}, kGpu);
      std::vector<cuda::Segment> list;
      for (const auto& [f, t, n] : all) list.push_back({data(a) + f * element, data(b) + t * element, int64_t(n)});
      cuda::copy_segments(kContext, list, element);
      CHECK(values<uint8_t>(b) == want);
    }
}
TEST_CASE("add_parts: ((x0 + x1) + x2) + ..., with the bits of sums on the CPU") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::i64})
    for (const int64_t n : {1, 2, 7, 16, 1000, 33'333})
      for (const int ranks : {1, 2, 5}) {
        CAPTURE_ALL(name_of(t), n, ranks);
        const DType wide = t == DType::bf16 ? DType::f32 : t;
        const int64_t stride = (n + 15) / 8 * 8;
        std::vector<Tensor> parts;
        Tensor sum;
        for (int r = 0; r < ranks; ++r) {
          const auto seed = uint64_t(r);
          parts.push_back(
              t == DType::i64
                  ? random<double>({stride}, seed, -1e9, 1e9).to(t)
                  : (random<double>({stride}, seed) * exp(random<double>({stride}, seed + 50, -12, 12))).to(t));
          const Tensor x = slice(parts.back(), 0, 0, n).to(wide);
          sum = sum ? sum + x : x;
        }
        const Tensor all = concat(parts).to(kGpu), to = full({n + 1}, 7, wide, kGpu);
        cuda::add_parts(kContext, t, n, ranks, stride, data(all), data(to));
        CHECK(bits_of(slice(to, 0, 0, n)) == bits_of(sum));
        CHECK(slice(to, 0, n, n + 1).item<double>() == 7);
      }
}
TEST_CASE("all_reduce in a world of one: what came in, and bf16 as f32; also as a part of a graph") {
  std::vector<Tensor> x;
  for (int i = 0; i < 40; ++i)
    for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::i64})
      x.push_back((random<double>({i * 37}, uint64_t(i)) * 1000.0).to(t).to(kGpu));
  x.push_back(transpose(random({300, 200}, 7).to(kGpu)));
  const auto check = [&](const auto& y) {
    REQUIRE(y.size() == x.size());
    for (size_t i = 0; i < x.size(); ++i)
      CHECK(bits_of(y[i]) == bits_of(x[i].dtype() == DType::bf16 ? x[i].to(DType::f32) : x[i]));
  };
  check(all_reduce(x, Communicator::self()));
  const auto f = compile([](Inputs in) {
    const Tensors y = all_reduce(in, Communicator::self());
    return std::vector<Tensor>(y.begin(), y.end());
  });
  for (int i = 0; i < 4; ++i) check(f(x));
}
