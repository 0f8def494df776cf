// Communicators and sums over ranks: a program of one rank, and of as many as mpirun starts.
#include <tapegrad/core/check.h>
#include <tapegrad/core/comm.h>
#include <tapegrad/core/half.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/ops/ops.h>

#include <array>
#include <cmath>
#include <cstring>

#include "support/helpers.h"

using namespace tg;

namespace {
const std::shared_ptr<Communicator>& world() { return Communicator::world(); }
// x of a rank: magnitudes far apart, so that the order of a sum shows in its bits.
Tensor of_rank(int rank, const Shape& s, DType t) {
  if (t == DType::i64) return (random<double>(s, 100 + uint64_t(rank), -1e9, 1e9)).to(t);
  const Tensor x = random<double>(s, uint64_t(rank)), scale = random<double>(s, 50 + uint64_t(rank), -12, 12);
  return (x * exp(scale)).to(t);
}
// The sum in the order of the ranks, by the ops of one process.
Tensor serial_sum(const Shape& s, DType t) {
  const DType wide = t == DType::bf16 ? DType::f32 : t;
  Tensor sum = of_rank(0, s, t).to(wide);
  for (int r = 1; r < world()->size(); ++r) sum = sum + of_rank(r, s, t).to(wide);
  return sum;
}
}  // namespace

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

TEST_CASE("a hollow world moves nothing and waits for nobody") {
  const auto hollow = Communicator::hollow(5);
  CHECK((hollow->size() == 5 && hollow->local_size() == 5 && hollow->rank() == 0));
  const int x = 7;
  std::array<int, 5> y{1, 2, 3, 4, 5};
  hollow->all_gather(&x, y.data(), sizeof x);
  CHECK(y == std::array<int, 5>{1, 2, 3, 4, 5});
  CHECK(has(error_of([] { (void)Communicator::hollow(0); }), "[comm] a world of 0 ranks. It must have one or more."));
}

TEST_CASE("the time that a rank waits for the others: above 0, and the last one said counts") {
  const double before = Communicator::timeout();
  CHECK(before > 0);
  for (const double wrong : {0., -1., std::nan("")})
    CHECK(has(error_of([&] { Communicator::set_timeout(wrong); }), "s. It must be above 0."));
  CHECK(Communicator::timeout() == before);
  Communicator::set_timeout(before + 1);
  CHECK(Communicator::timeout() == before + 1);
  Communicator::set_timeout(before);
}

TEST_CASE("all_reduce: refusals, each on all ranks") {
  const Tensor x = filled({2}, 1.0f);
  CHECK(has(error_of([&] { all_reduce(std::array{x}, nullptr); }), "[all_reduce] the communicator is null."));
  CHECK(has(error_of([&] { all_reduce({}, world()); }), "[all_reduce] no tensors."));
  CHECK(has(error_of([&] { all_reduce(std::array{x.to(DType::i32)}, world()); }),
            "[all_reduce] cannot add up i32 over ranks. It must be f64, f32, bf16 or i64."));
}
