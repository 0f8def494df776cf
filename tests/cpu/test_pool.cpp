// Thread pool of the CPU backend.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

#include "support/refusals.h"
#include "support/threads.h"

using namespace tg;
using cpu::parallel_for;

TEST_CASE("every tile runs exactly once, for any number of threads and tiles") {
  for (int threads = 1; threads <= std::min(4, cpu::max_threads()); ++threads) {
    ThreadsScope use(threads);
    for (int64_t tiles : {-3, 0, 1, 2, 3, 31, 1000, 54321}) {
      std::vector<std::atomic<int>> seen(size_t(std::max<int64_t>(tiles, 0)));
      parallel_for(tiles, [&](int64_t t) { seen.at(size_t(t)).fetch_add(1); });
      CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& n) { return n == 1; }));
    }
  }
}

TEST_CASE("parallel_for with a grain: fixed pieces, whatever the number of threads") {
  for (int threads : {1, 2}) {
    ThreadsScope use(threads);
    for (int64_t n : {0, 1, 63, 64, 65, 1000}) {
      std::vector<int64_t> end(size_t(n), -1);
      parallel_for(n, 64, [&](int64_t b, int64_t e) { std::fill(end.begin() + b, end.begin() + e, e); });
      for (int64_t i = 0; i < n; ++i) REQUIRE(end[size_t(i)] == std::min(n, (i / 64 + 1) * 64));
    }
  }
  expect(REFUSES(parallel_for(10, 0, [](int64_t, int64_t) {}), value, "grain is 0"));
}

TEST_CASE("the workers take part, on threads of their own (skipped on one cpu)" *
          doctest::skip(cpu::max_threads() < 2)) {
  ThreadsScope use(2);
  std::atomic<int> arrived{0};
  std::thread::id id[2];
  parallel_for(2, [&](int64_t t) {  // ends if tiles run at once
    id[t] = std::this_thread::get_id();
    for (++arrived; arrived < 2;) std::this_thread::yield();
  });
  CHECK(id[0] != id[1]);
  CHECK(std::count(id, id + 2, std::this_thread::get_id()) == 1);
}

#ifdef __linux__
TEST_CASE("each thread takes the tiles of its own part first (skipped on one cpu)" *
          doctest::skip(cpu::max_threads() < 2)) {
  ThreadsScope use(2);
  constexpr int kJobs = 20;
  for (int64_t tiles : {2, 3, 7, 1000}) {
    int of_others = 0;  // jobs where a delayed thread lost tiles
    for (int job = 0; job < kJobs; ++job) {
      std::atomic<int64_t> first[2] = {-1, -1};  // caller, worker
      const auto caller = std::this_thread::get_id();
      parallel_for(tiles, [&](int64_t t) {
        const bool worker = std::this_thread::get_id() != caller;
        int64_t none = -1;
        first[worker].compare_exchange_strong(none, t);
        const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(tiles < 10 ? 20 : 1);
        while (std::chrono::steady_clock::now() < until) {
        }
      });
      of_others += first[0] != 0 || (first[1] >= 0 && first[1] < (tiles + 1) / 2);
    }
    CAPTURE(tiles);
    CHECK(of_others < kJobs / 4);
  }
}

namespace {
// The worker leaves the caller's cpu. With more than two, another may be free.
void check_apart() {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (!CPU_ISSET(c, &before)) continue;
    CPU_ZERO(&one);
    CPU_SET(c, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the pool moves workers once a millisecond
    std::atomic<int> arrived{0};
    int where[2];
    parallel_for(2, [&](int64_t t) {
      for (++arrived; arrived < 2;) std::this_thread::yield();
      where[t] = sched_getcpu();
    });
    CHECK(where[0] != where[1]);
  }
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
}
}  // namespace

TEST_CASE("a worker leaves the cpu that the caller has come to (skipped but on two cpus)" *
          doctest::skip(cpu::max_threads() != 2)) {
  ThreadsScope use(2);
  check_apart();
}

TEST_CASE("workers that lose their cpu to others finish, and go back (skipped but on two cpus)" *
          doctest::skip(cpu::max_threads() != 2)) {
  ThreadsScope use(2);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others(4);
  for (auto& t : others)
    t = std::thread([&] {
      while (!stop) {
      }
    });
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  do {
    std::atomic<int64_t> sum{0};
    parallel_for(40, [&](int64_t t) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
      while (std::chrono::steady_clock::now() < end) {
      }
      sum += t;
    });
    CHECK(sum == 780);
  } while (std::chrono::steady_clock::now() < until);
  stop = true;
  for (auto& t : others) t.join();
  check_apart();
}
#endif

TEST_CASE("an exception reaches the caller, skips what is left, and the pool stays usable") {
  for (int threads : {1, 2}) {
    ThreadsScope use(threads);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int64_t> ran{0};
      const auto job = [&] {
        parallel_for(1 << 20, [&](int64_t t) {
          ++ran;
          TG_CHECK(t != 5, value, "[test] tile 5");
        });
      };
      expect({job, Error::Kind::value, {"[test] tile 5"}});
      CHECK(ran < (1 << 20));
      ran = 0;
      parallel_for(100, [&](int64_t) { ++ran; });
      CHECK(ran == 100);
    }
  }
}

TEST_CASE("a nested parallel_for runs on the thread of its tile") {
  ThreadsScope use(2);
  std::atomic<int> inner{0}, moved{0};
  parallel_for(16, [&](int64_t) {
    const auto me = std::this_thread::get_id();
    parallel_for(8, [&](int64_t) {
      ++inner;
      moved += std::this_thread::get_id() != me;
    });
  });
  CHECK(inner == 16 * 8);
  CHECK(moved == 0);
}

TEST_CASE("several threads may call at once") {
  constexpr int kCallers = 3, kRounds = 300;
  ThreadsScope use(2);
  int64_t sums[kCallers] = {};
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] {
      for (int r = 0; r < kRounds; ++r) {
        int64_t part[40] = {};
        parallel_for(40, [&](int64_t t) { part[t] = t + c; });
        sums[c] += std::accumulate(part, part + 40, int64_t(0));
      }
    });
  }
  // The pool's holder may wait for a thread that wants it.
  parallel_for(2, [&](int64_t) { std::thread([] { parallel_for(2, [](int64_t) {}); }).join(); });
  for (auto& t : callers) t.join();
  for (int c = 0; c < kCallers; ++c) CHECK(sums[c] == kRounds * (780 + 40 * c));
}

TEST_CASE("jobs after a sleep of the workers, and after a change of their number") {
  ThreadsScope use(2);
  for (int r = 0; r < 30; ++r) {
    if (r % 10 == 5) cpu::set_num_threads(1);
    if (r % 10 == 7) cpu::set_num_threads(std::min(2, cpu::max_threads()));
    std::this_thread::sleep_for(std::chrono::microseconds(r % 3 * 300));  // longer than workers spin
    std::atomic<int> n{0};
    parallel_for(64, [&](int64_t) { ++n; });
    CHECK(n == 64);
  }
}

TEST_CASE("set_num_threads and TG_THREADS refuse what is not a number of cpus") {
  ThreadsScope keep(cpu::num_threads());
  const int max = cpu::max_threads();
  for (int bad : {0, -1, max + 1, 1 << 30})
    expect(REFUSES(cpu::set_num_threads(bad), value, std::to_string(bad) + " threads"));
  cpu::set_num_threads(max);
  CHECK(cpu::num_threads() == max);
  const double quotas[] = {std::numeric_limits<double>::infinity(), 1e300, 6, 5.2, 2, 1.5, 1, 0.01};
  const int meant[] = {6, 6, 6, 6, 2, 2, 1, 1};
  for (size_t i = 0; i < std::size(quotas); ++i) {
    CHECK(cpu::detail::threads_from(nullptr, 6, quotas[i]) == meant[i]);
    CHECK(cpu::detail::threads_from("4", 6, quotas[i]) == 4);
  }
  for (const std::string bad : {"", "0", "-2", "7", "two", "4 ", "4x", "99999999999999999999"})
    expect(REFUSES(cpu::detail::threads_from(bad.c_str(), 6, 6), value, "TG_THREADS is '" + bad + "'"));
  if (max > 1) {
    cpu::set_num_threads(2);
    expect(REFUSES(parallel_for(4, [](int64_t) { cpu::set_num_threads(1); }), state, "inside"));
    CHECK(cpu::num_threads() == 2);
  }
}
