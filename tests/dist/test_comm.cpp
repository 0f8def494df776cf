// Communicators and sums over ranks: a program of one rank, and of as many as mpirun starts.
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "dist/rank_values.h"

using namespace tg;

TEST_CASE("a world of one hands back what it is given") {
  Communicator& self = *Communicator::self();
  CHECK(self.rank() == 0);
  CHECK(self.size() == 1);
  CHECK(self.local_rank() == 0);
  CHECK(self.local_size() == 1);
  const int x = 7;
  int y = 0;
  self.all_to_all(&x, &y, sizeof x);
  CHECK(y == 7);
  y = 0;
  self.all_gather(&x, &y, sizeof x);
  CHECK(y == 7);
  self.broadcast(&y, sizeof y, 0);
  self.barrier();
  CHECK(self.max(-3) == -3);
  CHECK(self.gather("text") == std::vector<std::string>{"text"});
}

TEST_CASE("ranks: places, bytes from each to each, texts of any length") {
  Communicator& w = *world();
  const int n = w.size();
  CHECK(w.rank() >= 0);
  CHECK(w.rank() < n);
  CHECK(w.local_rank() < w.local_size());
  std::vector<int> to_each(size_t(n * 3)), from_each(size_t(n * 3)), all(size_t(n * 2));
  for (int r = 0; r < n; ++r)
    for (int i = 0; i < 3; ++i) to_each[size_t(r * 3 + i)] = w.rank() * 1000 + r * 10 + i;
  w.all_to_all(to_each.data(), from_each.data(), 3 * sizeof(int));
  for (int r = 0; r < n; ++r)
    for (int i = 0; i < 3; ++i) CHECK(from_each[size_t(r * 3 + i)] == r * 1000 + w.rank() * 10 + i);
  const int two[] = {w.rank(), -w.rank()};
  w.all_gather(two, all.data(), sizeof two);
  for (int r = 0; r < n; ++r) CHECK((all[size_t(2 * r)] == r && all[size_t(2 * r + 1)] == -r));
  for (int root = 0; root < n; ++root) {
    std::vector<char> text(100'000, w.rank() == root ? char('a' + root) : ' ');
    w.broadcast(text.data(), text.size(), root);
    CHECK(std::ranges::count(text, char('a' + root)) == 100'000);
  }
  CHECK(w.max(w.rank() * 5) == (n - 1) * 5);
  CHECK(w.max(-w.rank()) == 0);
  const std::vector<std::string> texts = w.gather(std::string(size_t(w.rank() * 7), char('a' + w.rank())));
  REQUIRE(texts.size() == size_t(n));
  for (int r = 0; r < n; ++r) CHECK(texts[size_t(r)] == std::string(size_t(r * 7), char('a' + r)));
}

TEST_CASE("all_reduce: the bits of a sum in the order of the ranks, for each dtype and odd sizes") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::i64})
    for (const Shape& s : {Shape{}, Shape{0}, Shape{1}, Shape{2}, Shape{3, 5}, Shape{1023}, Shape{700'001}}) {
      CAPTURE(name_of(t));
      CAPTURE(s.product());
      const Tensor x = of_rank(world()->rank(), s, t), y = all_reduce(std::array{x}, world())[0];
      CHECK(y.dtype() == (t == DType::bf16 ? DType::f32 : t));
      CHECK(y.shape() == s);
      CHECK(bits_of(y) == bits_of(serial_sum(s, t)));
    }
}

TEST_CASE("all_reduce of a list: views, mixed dtypes, eager, lazy and compiled") {
  const int rank = world()->rank();
  const auto inputs = [](int r) {
    const Tensor x = of_rank(r, {40, 30}, DType::f32);
    return std::vector<Tensor>{transpose(x), of_rank(r, {7}, DType::bf16), slice(x, 0, 3, 9),
                               of_rank(r, {}, DType::f64), of_rank(r, {300'000}, DType::f32)};
  };
  std::vector<Tensor> want = inputs(0);
  for (Tensor& t : want)
    if (t.dtype() == DType::bf16) t = t.to(DType::f32);
  for (int r = 1; r < world()->size(); ++r) {
    const std::vector<Tensor> more = inputs(r);
    for (size_t i = 0; i < want.size(); ++i) want[i] = want[i] + more[i].to(want[i].dtype());
  }
  const auto check = [&](const auto& got) {
    for (size_t i = 0; i < want.size(); ++i) CHECK(bits_of(got[i]) == bits_of(want[i]));
  };
  const std::vector<Tensor> mine = inputs(rank);
  check(all_reduce(mine, world()));
  {
    const LazyScope lazy;
    check(all_reduce(mine, world()));
  }
  const auto f = compile([](Inputs x) {
    const Tensors y = all_reduce(x, world());
    return std::vector<Tensor>(y.begin(), y.end());
  });
  for (int i = 0; i < 3; ++i) check(f(mine));
}

TEST_CASE("all_reduce: refusals, each on all ranks") {
  const Tensor x = filled({2}, 1.0f);
  CHECK(has(error_of([&] { all_reduce(std::array{x}, nullptr); }), "[all_reduce] the communicator is null."));
  CHECK(has(error_of([&] { all_reduce({}, world()); }), "[all_reduce] no tensors."));
  CHECK(has(error_of([&] { all_reduce(std::array{x.to(DType::i32)}, world()); }),
            "[all_reduce] cannot add up i32 over ranks. It must be f64, f32, bf16 or i64."));
}

// tests/CMakeLists.txt runs these alone, and reads what they say.
TEST_CASE("ends: rank 1 does not come to a call of the host" * doctest::skip()) {
  struct Device final : CommWatch::OnDevice {
    uint64_t wait() override { return 0; }
    std::string name(uint64_t) override { return {}; }
    std::string failure() override { return {}; }
    void abort() override { std::fputs("aborted\n", stderr); }
  } device;
  world()->watch().add(device);
  if (world()->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(50));
  all_reduce(std::array{filled({2}, 1.0f)}, world());
}
