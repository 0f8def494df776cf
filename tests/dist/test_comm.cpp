// Communicators and all-reduce, on one rank or on those that mpirun starts.
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/profile/profiler.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
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
      CAPTURE_ALL(name_of(t), s.product());
      const Tensor x = of_rank(world()->rank(), s, t), y = all_reduce(std::array{x}, world())[0];
      CHECK(y.dtype() == (t == DType::bf16 ? DType::f32 : t));
      CHECK(y.shape() == s);
      CHECK(bits_of(y) == bits_of(serial_sum(s, t)));
    }
}

TEST_CASE("all_reduce of a list: views, mixed dtypes, eager, lazy and compiled") {
  const int rank = world()->rank();
  const auto inputs = [](int r) {
    std::vector<Tensor> all = list_of_rank(r);
    all.push_back(slice(all[0], 0, 3, 9));
    return all;
  };
  std::vector<Tensor> want = inputs(0);
  for (Tensor& t : want)
    if (t.dtype() == DType::bf16) t = t.to(DType::f32);
  for (int r = 1; r < world()->size(); ++r) {
    const std::vector<Tensor> more = inputs(r);
    for (size_t i = 0; i < want.size(); ++i) want[i] = want[i] + more[i].to(want[i].dtype());
  }
  const auto check = [&](Inputs got) { check_same_bits(got, want); };
  const std::vector<Tensor> mine = inputs(rank);
  in_all_modes([](Inputs x) { return all_reduce(x, world()); }, mine, check);
}

TEST_CASE("sums under way: several at once, between ops, finished in any order or not at all") {
  const auto inputs = [](int r) {
    return std::vector<Tensor>{of_rank(r, {300'001}, DType::f32), of_rank(r, {0}, DType::f32),
                               of_rank(r, {70, 901}, DType::bf16), of_rank(r, {3}, DType::f64)};
  };
  const std::vector<Tensor> mine = inputs(world()->rank());
  const auto f = [](Inputs x) {
    const ShardOffsets cuts = cuts_of(x[0].numel())[0];
    PendingSums a = start_all_reduce(x, world());
    PendingSums b = start_reduce_scatter(std::array{x[0] * 2.0}, cuts, world());
    const Tensor beside = sum(exp(x[0] * 1e-9));
    const Tensor parts = b.finish()[0];
    PendingSums c = start_all_reduce(std::array{sum(parts).to(DType::f64)}, world());
    std::vector<Tensor> all{beside, parts};
    for (const Tensor& t : a.finish()) all.push_back(t + t);
    all.push_back(c.finish()[0]);
    return all;
  };
  const Tensors sums = all_reduce(mine, world());
  const Shard own = detail::shard_of(cuts_of(mine[0].numel())[0], world()->rank(), 0, mine[0].numel());
  const auto check = [&](const std::vector<Tensor>& got) {
    CHECK(bits_of(got[0]) == bits_of(sum(exp(mine[0] * 1e-9))));
    CHECK(bits_of(got[1]) == bits_of(slice(sums[0] * 2.0, 0, own.first, own.first + own.n)));
    for (size_t i = 0; i < mine.size(); ++i) CHECK(bits_of(got[2 + i]) == bits_of(sums[i] * 2.0));
    CHECK(bits_of(got.back()) == bits_of(all_reduce(std::array{sum(got[1]).to(DType::f64)}, world())[0]));
  };
  in_all_modes(f, mine, check);
  {
    PendingSums dropped = start_all_reduce(mine, world());
    const PendingSums moved = std::move(dropped);
  }
  {
    const PendingSums pending = start_all_reduce(mine, world());
    const Tensor index = tensor(std::vector<int64_t>{7}, {1});
    CHECK_SAYS(embedding(index, zeros({2, 2})), "[embedding] id 7 at position");
  }
  check(f(mine));
}
TEST_CASE("jobs of ranks: they run in their order while the caller goes on, and say what they threw") {
  Communicator& w = *world();
  std::vector<int> order;
  const int64_t mine = w.rank() + 1;
  int64_t most = 0;
  const char first = 0, second = 0, third = 0;
  const auto fails = [&] { order.push_back(2), tg::detail::fail(Error::Kind::value, "as a test wants"); };
  w.submit(&first, [&] { order.push_back(1), most = w.max(mine); });
  // A rank alone runs them at once.
  const std::string at_start = error_of([&] { w.submit(&second, fails); });
  CHECK(has(at_start, "as a test wants") == (w.size() == 1));
  w.submit(&third, [&] { order.push_back(3); });
  w.wait(&third);
  CHECK(order == std::vector<int>{1, 2, 3});
  CHECK(has(error_of([&] { w.wait(&second); }), "as a test wants") == (w.size() > 1));
  w.wait(&second);
  w.wait(&first);
  CHECK(most == w.size());
  w.submit(&first, [&] { order.push_back(4); });
  w.barrier();  // a call finishes jobs first
  CHECK(order.back() == 4);
  w.submit(&first, [&] { order.push_back(5); });  // no call depends on the one before
  w.wait_for_jobs();
  CHECK(order.back() == 5);
  w.wait(&first);
}
TEST_CASE("reduce_scatter: each rank has its part of the sums of all_reduce, eager, lazy and compiled") {
  const std::vector<Tensor> mine = list_of_rank(world()->rank());
  const Tensors sums = all_reduce(mine, world());
  for (const ShardOffsets& cuts : cuts_of(elements(mine))) {
    const auto check = [&](const auto& got) {
      int64_t begin = 0;
      for (size_t i = 0; i < mine.size(); begin += mine[i++].numel()) {
        const Shard p = detail::shard_of(cuts, world()->rank(), begin, mine[i].numel());
        CHECK(got[i].shape() == Shape{p.n});
        CHECK(bits_of(got[i]) == bits_of(slice(reshape(sums[i], {mine[i].numel()}), 0, p.first, p.first + p.n)));
      }
    };
    in_all_modes([&](Inputs x) { return reduce_scatter(x, cuts, world()); }, mine, check);
  }
}

TEST_CASE("all_gather_parts: all ranks get what each owns, in place, and the bf16 copies with it") {
  std::vector<std::vector<Tensor>> lists;
  for (int r = 0; r < world()->size(); ++r) lists.push_back(list_of_rank(r));
  for (const ShardOffsets& cuts : cuts_of(elements(lists[0])))
    for (const bool shared : {false, true}) {
      std::vector<Tensor> w, keep;
      std::vector<std::vector<std::byte>> want;
      int64_t begin = 0;
      for (size_t i = 0; i < lists[0].size(); ++i) {
        w.push_back(copy_of(lists[size_t(world()->rank())][i]));
        std::vector<Tensor> parts;
        for (int r = 0; r < world()->size(); ++r) {
          const Tensor x = lists[size_t(r)][i];
          const Shard p = detail::shard_of(cuts, r, begin, x.numel());
          parts.push_back(slice(reshape(x.contiguous(), {x.numel()}), 0, p.first, p.first + p.n));
        }
        begin += w[i].numel();
        want.push_back(bits_of(concat(parts)));
      }
      w.back().requires_grad_();
      const Tensor before = detail::cast_parameter(w.back(), DType::bf16);
      if (shared) keep = {w[0].detach(), w.back().detach()};
      const auto old = bits_of(w[0]);
      const void* const place = w[1].value()->storage->data;
      detail::all_gather_parts(w, cuts, world());
      for (size_t i = 0; i < w.size(); ++i) CHECK(bits_of(w[i]) == want[i]);
      CHECK(w[1].value()->storage->data == place);
      if (shared) CHECK(bits_of(keep[0]) == old);
      CHECK(bits_of(detail::cast_parameter(w.back(), DType::bf16)) == bits_of(w.back().detach().to(DType::bf16)));
    }
}

namespace {
// Rank 0 of two records the bytes of each message; the other rank has zeros.
class Listening final : public Communicator {
 public:
  Listening() : Communicator(0, 2, 0, 2) {}
  void exchange(const char*, std::span<const Message> to, std::span<const Message> from) override {
    for (const Message& m : to) sent.push_back(m.bytes);
    for (const Message& m : from) std::memset(m.data, 0, m.bytes);
  }
  void all_gather(const void* from, void* to, size_t bytes) override { std::memcpy(to, from, bytes); }
  void broadcast(void*, size_t, int) override {}
  void abort(int status) override { std::_Exit(status); }
  std::vector<size_t> sent;
};
}  // namespace

TEST_CASE("collectives of a lazy or compiled program run in the order of their calls, and each of them runs") {
  const auto comm = std::make_shared<Listening>();
  // By memory alone the large sums would run late.
  const auto f = [&](Inputs in) {
    std::vector<Tensor> large, all;
    for (const int64_t n : {5000, 10, 20'000, 10}) {
      const Tensor x = in[0] + zeros({n});
      large.push_back(all_reduce(std::array{x}, comm)[0]);
    }
    Tensor y = in[0] * 2.0;
    for (int i = 0; i < 8; ++i) y = all_reduce(std::array{sum(y * y) + zeros({3000})}, comm)[0];
    all.push_back(sum(y));
    for (auto x = large.rbegin(); x != large.rend(); ++x) all.push_back(sum(*x));
    return all;
  };
  std::vector<size_t> want;
  for (const size_t n : {5000, 10, 20'000, 10, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000})
    want.insert(want.end(), 2, n / 2 * sizeof(float));  // elements of the other rank, and sums of this rank
  const Tensor x = filled({1}, 0.1f);
  const auto compiled = compile(f);
  for (int i = 0; i < 3; ++i) {
    comm->sent.clear();
    (void)compiled(std::array{x});
    CHECK(comm->sent == want);
  }
  const LazyScope lazy;
  comm->sent.clear();
  eval(f(std::array{x}));
  CHECK(comm->sent == want);
}
TEST_CASE("a sum of a lazy or compiled program starts as soon as it can, and is waited for as late as it was called") {
  const auto f = [](Inputs in) {
    const Tensor early = in[0] * 3.0;
    PendingSums sums = start_all_reduce(std::array{exp(in[0])}, world());
    Tensor y = in[0];
    for (int i = 0; i < 3; ++i) y = matmul(y, y);
    const Tensor z = sums.finish()[0];
    return std::vector<Tensor>{sum(matmul(y, early)), sum(z)};
  };
  const Tensor x = random<float>({32, 32}, 3);
  const auto names = [&](const std::function<void()>& run) {
    Profiler profiler;
    run();
    std::string all;
    for (const Profile::Kernel& k : profiler.stop().kernels)
      if (k.name == "all_reduce" || k.name == "matmul" || k.name == "finish_sums") all += k.name.substr(0, 1);
    return all;
  };
  const auto compiled = compile(f);
  CHECK(names([&] { (void)f(std::array{x}); }) == "ammmfm");
  for (int i = 0; i < 3; ++i) CHECK(names([&] { (void)compiled(std::array{x}); }) == "ammmfm");
  const LazyScope lazy;
  CHECK(names([&] { eval(f(std::array{x})); }) == "ammmfm");
}
TEST_CASE("an AnomalyScope finds the NaN that a sum over ranks makes, and none where none is") {
  const AnomalyScope search;
  const float large = std::numeric_limits<float>::infinity();
  CHECK(bits_of(all_reduce(std::array{filled({3}, 1.0f)}, world())[0]) == bits_of(filled({3}, float(world()->size()))));
  if (world()->size() == 1) return;
  const auto error = [](float x) { return error_of([&] { all_reduce(std::array{filled({3}, x)}, world()); }); };
  CHECK_HAS(error(3e38f), "[all_reduce] makes an infinity in output 0");
  const float mine = world()->rank() == 0 ? large : -large;
  CHECK_HAS(error(mine), "[all_reduce] makes NaN in output 0");
}
TEST_CASE("a fake world moves nothing and waits for nobody") {
  const auto fake = Communicator::fake(5);
  CHECK((fake->size() == 5 && fake->local_size() == 5 && fake->rank() == 0));
  const int x = 7;
  std::array<int, 5> y{1, 2, 3, 4, 5};
  fake->all_gather(&x, y.data(), sizeof x);
  CHECK(y == std::array<int, 5>{1, 2, 3, 4, 5});
  CHECK_SAYS(Communicator::fake(0), "[comm] a world of 0 ranks. It must have one or more.");
}

TEST_CASE("the time that a rank waits for the others: above 0, and the last one said counts") {
  const double before = Communicator::timeout();
  CHECK(before > 0);
  for (const double wrong : {0., -1., std::nan("")})
    CHECK_SAYS(Communicator::set_timeout(wrong), "s. It must be above 0.");
  CHECK(Communicator::timeout() == before);
  Communicator::set_timeout(before + 1);
  CHECK(Communicator::timeout() == before + 1);
  Communicator::set_timeout(before);
}

TEST_CASE("all_reduce: refusals, each on all ranks") {
  const Tensor x = filled({2}, 1.0f);
  CHECK_SAYS(all_reduce(std::array{x}, nullptr), "[all_reduce] the communicator is null.");
  CHECK_SAYS(all_reduce({}, world()), "[all_reduce] no tensors.");
  CHECK_SAYS(all_reduce(std::array{x.to(DType::i32)}, world()),
             "[all_reduce] cannot sum i32 over ranks. The dtype must be f64, f32, bf16 or i64.");
  CHECK_SAYS(reduce_scatter(std::array{x}, {0, 1}, Communicator::self()),
             "[reduce_scatter] the shard offsets are (0, 1), for 1 rank(s) and 2 elements.");
  CHECK_SAYS(detail::all_gather_parts(std::array{x}, {1, 2}, Communicator::self()),
             "[all_gather_parts] the shard offsets are (1, 2), for 1 rank(s) and 2 elements.");
  const Tensor w = filled({2}, 1.0f).requires_grad_();
  CHECK_SAYS(detail::all_gather_parts(std::array{w * 2.0}, {0, 2}, Communicator::self()), "was computed on the tape");
}

// tests/CMakeLists.txt runs these alone, and reads their messages.
TEST_CASE(
    "ends: rank 1 does not come to a call of the host (skipped, as it ends the process: dist_* of ctest run it alone)" *
    doctest::skip()) {
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
