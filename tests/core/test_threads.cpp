// Table "Threads" of core/README.md. Also for the thread sanitizer.
#include <tapegrad/core/observe.h>
#include <tapegrad/core/plan/compile.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "support/files.h"
#include "support/small_training.h"

using namespace tg;
namespace {
template <class F> void both(F f) {
  std::exception_ptr failed[2];
  std::atomic<int> started = 0;
  const auto run = [&](size_t i) {
    for (++started; started < 2;) std::this_thread::yield();
    try {
      f(i);
    } catch (...) {
      failed[i] = std::current_exception();
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (auto& e : failed)
    if (e) std::rethrow_exception(e);
}
}  // namespace

TEST_CASE("a graph continued in a second thread") {
  uint64_t ids[2];
  for (auto& id : ids) std::thread([&] { id = filled({1}, 0.f).id(); }).join();
  CHECK(ids[0] != ids[1]);  // never reused, in any thread
  Tensor x = random({3, 3}, 1).requires_grad_(), w = random({3, 3}, 2).requires_grad_();
  const auto tail = [&](Tensor h) {
    for (int i = 0; i < 5; ++i) h = h + tg::tanh(matmul(h, w)) * h;
    return sum(h);
  };
  const auto head = [&] {
    Tensor h = x;
    for (int i = 0; i < 50; ++i) h = silu(h) + x;
    return h;
  };
  const auto expected = backward(tail(head()));
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor h = head();
    GradMap g;
    std::thread([&] {
      Mode inner(lazy);
      g = backward(tail(h));
      eval({g[x], g[w]});
      h = Tensor();
    }).join();
    CHECK(values(g[x]) == values(expected[x]));
    CHECK(values(g[w]) == values(expected[w]));
  }
}
TEST_CASE("modes belong to their thread") {
  NoGradScope off;
  LazyScope lazy;
  bool grad = false, is_lazy = true;
  std::thread([&] { grad = grad_enabled(), is_lazy = lazy_enabled(); }).join();
  CHECK(grad);
  CHECK_FALSE(is_lazy);
}
TEST_CASE("an error in a second thread reaches its own caller and leaves the other alone") {
  const Tensor a = random({2, 3}, 1);
  std::string messages[2];
  both([&](size_t i) {
    for (int k = 0; k < 100; ++k) {
      NameScope s(i ? "second" : "first");
      messages[i] = error_of([&] { matmul(a, a); });
    }
  });
  CHECK_HAS(messages[0], "in first");
  CHECK_HAS(messages[1], "in second");
}
TEST_CASE("two threads train two models at once") {
  const std::vector<float> expected[] = {train_small(false, 1), train_small(true, 2)};
  std::vector<float> got[2];
  both([&](size_t i) {
    for (int k = 0; k < 20; ++k) got[i] = train_small(i == 1, i + 1);
  });
  CHECK(got[0] == expected[0]);
  CHECK(got[1] == expected[1]);
}
TEST_CASE("two threads read shared weights, with kernels large enough for the pool") {
  const Tensor w = random({256, 256}, 9).requires_grad_(), x = random({128, 256}, 3);
  const auto infer = [&](bool lazy) {
    NoGradScope off;
    Mode mode(lazy);
    return values(softmax(gelu(matmul(x, w))));
  };
  const auto expected = infer(false);
  int wrong[2] = {};
  both([&](size_t i) {
    for (int k = 0; k < 20; ++k) wrong[i] += infer(i == 1) != expected;
  });
  CHECK(wrong[0] == 0);
  CHECK(wrong[1] == 0);
}
// Not for the thread sanitizer: sizes are read without a lock.
TEST_CASE("a model is read while it is trained") {
  const Tensor w = filled({64, 64}, 0.f).requires_grad_();
  const std::vector<Tensor> weights{w}, grads{filled({64, 64}, -1.f)};
  const Compiled replay = compile([&](Inputs) { return w.assign(w.detach() + 1.0), std::vector<Tensor>{}; });
  for (const int way : {0, 1, 2}) {
    std::atomic<bool> done = false;
    int torn = 0;
    both([&](size_t i) {
      if (i == 0) {
        const std::shared_ptr<void> end(nullptr, [&](void*) { done = true; });
        for (int k = 0; k < 2000; ++k)
          way == 0 ? w.assign(w.detach() + 1.0) : way == 1 ? sgd_step({weights, grads}, {}, 1, 1) : (void)replay({});
        return;
      }
      for (float last = 0; !done;) {
        const std::vector<float> now = values(detail::cast_parameter(w, DType::f32) * 1.0);
        torn +=
            std::ranges::adjacent_find(now, std::not_equal_to<>()) != now.end() && way != 2;  // a replay is in place
        torn += now[0] < last, last = now[0];
      }
    });
    CHECK(torn == 0);
    CHECK(values(w)[0] == 2000.f * float(way + 1));
  }
}

// Not for the thread sanitizer, too.
TEST_CASE("a graph is shared: two threads compute it, extend it and drop its tensors") {
  const Tensor x = random({4, 4}, 1);
  const auto graph = [&](Tensor h) {
    for (int i = 0; i < 12; ++i) h = i % 3 ? tg::tanh(h) + x : matmul(h, x);
    const Tensors halves = split(h, {2, 2}, 1);
    return std::vector{h, halves[0], halves[1]};
  };
  const auto expected = values(graph(x)[0] * 2.0 + x), half = values(graph(x)[1]);
  for (int round = 0; round < 300; ++round) {
    const LazyScope lazy;
    std::vector<Tensor> held[2] = {graph(x), {}};
    held[1] = held[0];
    both([&](size_t i) {
      const Mode mode(round % 2);
      if (round % 3 == int(i)) held[i].pop_back();
      Tensor y = held[i][0] * 2.0;
      for (int k = 0; k < round % 5; ++k) y = y + 0.0;
      if (round % 4 == 1) held[i][0] = Tensor();
      CHECK(values(y + x) == expected);
      CHECK(values(held[i][1]) == half);
      held[i].clear();
    });
  }
}
TEST_CASE("a graph is shared: weights are read while they are updated lazily") {
  const Tensor w = filled({8, 8}, 0.f).requires_grad_(), none = zeros({8, 8}, DType::bf16);
  const std::vector<Tensor> weights{w}, grads{filled({8, 8}, -1.f)};
  const Compiled replay = compile(
      [&](Inputs in) { return std::vector{detail::cast_parameter(w, DType::bf16).detach() + in[0]}; }, {.verify = 2});
  replay({none});
  std::atomic<bool> done = false;
  int updates = 0;
  both([&](size_t i) {
    const std::shared_ptr<void> end(nullptr, [&](void*) { done = true; });
    const Mode mode(i == 0);
    for (; i == 0 && !done; ++updates) {
      updates % 2 ? w.assign(w.detach() + 1.0) : sgd_step({weights, grads}, {}, 1, 1);
      if (updates % 7 == 0) eval(weights);
    }
    float last = 0;
    for (int k = 0; i == 1 && k < 3000; ++k) {
      const std::string said = error_of([&] { replay({none}); });
      CHECK((said == "no error" || has(said, "another thread updated")));
      const std::vector<float> now = values(w * 1.0);
      CHECK(now == std::vector(64, now[0]));
      CHECK(now[0] >= last);
      last = now[0];
    }
  });
  CHECK(values(w)[0] == float(updates));
}
TEST_CASE("a graph is shared: backward of one tape in two threads, and its tensors dropped meanwhile") {
  Tensor x = random({4, 4}, 1).requires_grad_();
  const auto loss_of = [&](const Tensor& h) { return sum(softmax(matmul(h, x)) * h); };
  const auto tape = [&] {
    std::vector<Tensor> h{x};
    for (int i = 0; i < 30; ++i) h.push_back(i % 2 ? tg::tanh(h.back()) : tg::exp(h.back() * -0.5));
    return h;
  };
  const auto expected = values(backward(loss_of(tape().back()))[x]);
  std::atomic<int> refused = 0, calls = 0;
  for (int round = 0; round < 400; ++round) {
    const Mode mode(round % 4 == 3);
    std::optional<RecomputeScope> again;
    if (round % 5 == 4) again.emplace();
    std::vector<Tensor> held = tape();
    const Tensor h = held.back(), loss = loss_of(h);
    const BackwardOptions keep{.retain_graph = round % 2 == 0};
    const int before = refused;
    both([&](size_t i) {
      const Mode inner(round % 4 == 3);
      const Tensor mine = round % 3 && i ? loss_of(h) : loss;  // another tape, which continues that of h
      for (; i && round % 7 == 0 && held.size() > 1; held.pop_back()) (void)(held.back() + held[held.size() / 2]);
      if (i && round % 50 == 0) x.on_grad([&](const Tensor&) { return ++calls, Tensor(); });
      std::vector<float> got;
      const std::string said = error_of([&] { got = values(backward(mine, keep)[x]); });
      if (said == "no error") CHECK(got == expected);
      if (said == "no error") return;
      CHECK((has(said, "another thread") || has(said, "was released by an earlier backward")));
      ++refused;
    });
    CHECK(refused <= before + 1);
    if (keep.retain_graph) CHECK(values(backward(loss)[x]) == expected);  // no claim is left
  }
  CHECK(refused > 0);
  CHECK(calls > 0);
}
TEST_CASE("two threads draw from one generator at once") {
  Rng rng{7};
  std::vector<uint64_t> drawn[2];
  both([&](size_t i) {
    for (uint64_t k = 0; k < 200'000; ++k) drawn[i].push_back(rng.take(1 + k % 8).offset);
  });
  CHECK(rng == Rng{7, 600'000});
  drawn[0].insert(drawn[0].end(), drawn[1].begin(), drawn[1].end());
  std::ranges::sort(drawn[0]);
  CHECK(std::ranges::adjacent_find(drawn[0]) == drawn[0].end());
}
TEST_CASE("one compiled function in two threads at once is an Error") {
  std::atomic<int> inside = 0;
  const Compiled f = compile([&](Inputs x) {
    ++inside;
    while (inside < 2) std::this_thread::yield();
    return std::vector<Tensor>{x[0] + 1.0};
  });
  const Tensor x = filled({2}, 1.f);
  std::thread other([&] { f({x}); });
  while (inside < 1) std::this_thread::yield();
  CHECK_HAS(error_of([&] { f({x}); }), "two threads call one compiled function at once");
  ++inside;
  other.join();
}
TEST_CASE("tensors made in one thread end in another") {
  const auto base = memory_stats().live;
  for (int k = 0; k < 10; ++k) {
    std::vector<Tensor> made;
    std::thread([&] {
      for (int64_t i = 1; i <= 200; ++i) made.push_back(random({i}, 1));
    }).join();
    std::thread([&] { made.clear(); }).join();
  }
  CHECK(memory_stats().live == base);
}

namespace {
// Rank 0 of two, with a thread for its jobs. The other rank echoes, so an all-reduce doubles.
class EchoRank final : public Communicator {
 public:
  EchoRank() : Communicator(0, 2, 0, 2) { use_thread_for_jobs(); }
  ~EchoRank() override { end_jobs(); }
  void exchange(const char* name, std::span<const Message> sent, std::span<const Message> received) override {
    wait_for_jobs();
    const CommWatch::Call call(watch(), name);
    if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (size_t i = 0; i < sent.size(); ++i) std::memcpy(received[i].data, sent[i].data, sent[i].bytes);
    ++exchanges;
  }
  void all_gather(const void*, void*, size_t) override {}
  void broadcast(void*, size_t, int) override {}
  void abort(int) override { std::_Exit(1); }
  bool slow = false;
  std::atomic<int> exchanges = 0;  // ended exchanges: two for each sum
};
void check_sum(const Tensor& sum, const Tensor& of) {
  const int64_t n = of.numel() / 2;
  const Tensor row = reshape(of, {-1}), want = slice(row, 0, 0, n) + slice(row, 0, n, 2 * n);
  CHECK(bits_of(sum) == bits_of(reshape(concat(std::vector{want, want}), sum.shape())));
}

// An op that fails for an index of 2 or more.
Tensor looked_up(const Tensor& index) { return embedding(index, zeros({2, 2})); }
Tensor index_of(int64_t i) { return tensor(std::vector<int64_t>{i}, {1}); }
}  // namespace

TEST_CASE("sums over ranks in a thread, while the caller computes") {
  const auto ranks = std::make_shared<EchoRank>();
  const Tensor x = random<float>({50, 400}, 1), y = random<float>({30, 7}, 2);
  for (int i = 0; i < 20; ++i) {
    PendingSums a = start_all_reduce(std::array{x}, ranks), b = start_all_reduce(std::array{y}, ranks);
    const Tensor beside = matmul(x, transpose(x));
    check_sum(a.finish()[0], x);
    PendingSums c = start_all_reduce(std::array{sum(beside) + zeros({4})}, ranks);
    check_sum(b.finish()[0], y);
    check_sum(c.finish()[0], sum(beside) + zeros({4}));
  }
}

TEST_CASE("sums over ranks in a thread keep the values that they began with: eager, lazy and compiled") {
  const auto ranks = std::make_shared<EchoRank>();
  ranks->slow = true;
  const Tensor first = random<float>({200, 200}, 1), second = random<float>({200, 200}, 2);
  const auto fake = Communicator::fake(2);
  const auto f = [&](Inputs in) {
    const Tensor w = in[0].detach() * 1.0, v = in[0].detach() * 1.0;
    PendingSums sums = start_all_reduce(std::array{w, v}, ranks);
    w.assign(in[1] + 1.0);
    detail::all_gather_parts(std::array{v}, {0, 0, v.numel()}, fake);  // updates v in place, if it may
    Tensor more = in[1];
    for (int i = 0; i < 5; ++i) more = more + w * v;  // reuses freed memory
    const Tensors all = sums.finish();
    return std::vector<Tensor>{all[0], all[1], more};
  };
  const auto check = [&](const std::vector<Tensor>& got) {  // the half of one is the other
    for (const size_t i : {0, 1}) CHECK(bits_of(got[i]) == bits_of(first * 2.0));
  };
  check(f(std::array{first, second}));
  const auto compiled = compile(f);
  for (int i = 0; i < 3; ++i) check(compiled(std::array{first, second}));
  const LazyScope lazy;
  check(f(std::array{first, second}));
}

TEST_CASE("sums over ranks in a thread have ended when their memory is freed, whatever ends them") {
  const auto ranks = std::make_shared<EchoRank>();
  ranks->slow = true;
  const Tensor x = random<float>({50, 400}, 1);
  const auto start = [&] {
    ranks->exchanges = 0;
    return start_all_reduce(std::array{x}, ranks);
  };
  const auto has_ended = [&] { return ranks->exchanges == 2; };
  {
    PendingSums dropped = start();
    PendingSums moved = std::move(dropped);
    CHECK(!has_ended());
  }
  CHECK(has_ended());
  {
    PendingSums sums = start();
    const LazyScope lazy;
    (void)sums.finish();  // no op reads them
  }
  CHECK(has_ended());
  CHECK_HAS(error_of([&] {
              const PendingSums sums = start();
              (void)looked_up(index_of(7));
            }),
            "[embedding] id 7 at position");
  CHECK(has_ended());

  // A run of several ops that fails after the start.
  for (const bool failed_before : {false, true}) {
    const LazyScope lazy;
    PendingSums sums = start();
    const Tensor bad = looked_up(index_of(7));
    if (failed_before) CHECK_SAYS(eval({bad}), "[embedding] id 7 at position");
    const Tensor sum = sums.finish()[0];
    CHECK_SAYS(eval(std::array{bad, sum}), failed_before ? "it failed before" : "[embedding] id 7 at position");
    CHECK(has_ended());
  }
  const auto compiled = compile([&](Inputs in) {
    const Tensor sum = start_all_reduce(std::array{in[0]}, ranks).finish()[0];
    return std::vector<Tensor>{looked_up(in[1]), sum};
  });
  for (int i = 0; i < 3; ++i) {
    check_sum(compiled(std::array{x, index_of(1)})[1], x);
    ranks->exchanges = 0;
    CHECK_SAYS(compiled(std::array{x, index_of(7)}), "[embedding] id 7 at position");
    CHECK(has_ended());
  }
  check_sum(all_reduce(std::array{x}, ranks)[0], x);
}

TEST_CASE("sums over ranks: what is refused") {
  const auto ranks = std::make_shared<EchoRank>();
  const Tensor x = random<float>({5, 4}, 1);
  PendingSums sums = start_all_reduce(std::array{x}, ranks);
  check_sum(sums.finish()[0], x);
  CHECK_SAYS(sums.finish(), "[finish_sums] these sums were finished before.");
  CHECK_SAYS(emit(make_ref<op::AllReduce>(ranks), std::array{transpose(x)}),
             "is not contiguous, and it is read after the kernel has returned");
}

#ifdef __GLIBC__
TEST_CASE("sums over ranks: a thread for messages that the system has not is an Error in our words") {
  pthread_attr_t before, huge;
  REQUIRE(pthread_getattr_default_np(&before) == 0);
  pthread_attr_init(&huge);
  pthread_attr_setstacksize(&huge, size_t(1) << 50);  // no address space is as large
  REQUIRE(pthread_setattr_default_np(&huge) == 0);
  const std::string message = error_of(Error::Kind::comm, [] { const CommJobs jobs; });
  pthread_setattr_default_np(&before);
  CHECK_HAS(message, "[comm] a thread for the messages between ranks does not start: ",
            "Raise the limit (ulimit -u), or start fewer ranks or threads.");
}
#endif

TEST_CASE("sums over ranks: an observer is not shown what is not there yet") {
  const auto ranks = std::make_shared<EchoRank>();
  const Tensor x = random<float>({5, 4}, 1);
  std::vector<std::string> seen;
  const ObserveScope observing([&](const Observed& o) { seen.emplace_back(o.op); });
  check_sum(all_reduce(std::array{x * 2.0}, ranks)[0], x * 2.0);
  REQUIRE(!seen.empty());
  CHECK(seen[0] == "mul_scalar");
  CHECK(!std::ranges::count(seen, "all_reduce"));
}
