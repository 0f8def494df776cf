// Allocator of the CPU backend, and the slab below it.
#include <tapegrad/core/util/slab.h>
#include <tapegrad/cpu/runtime/allocator.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/limit.h"
#include "support/refusals.h"

using namespace tg;

namespace {
constexpr int64_t kMiB = 1 << 20;
constexpr bool kKeeps = !kPlainMemory;
}  // namespace

TEST_CASE("allocator: aligned, writable, distinct blocks of every size") {
  Allocator& a = cpu_allocator();
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  std::vector<size_t> sizes = {0,    1,    63,   64,   65,   1023,    1024,    1025,   1151,
                               1152, 1153, 2047, 2048, 2049, 2097151, 2097152, 2097153};
  for (size_t n = 3000; n < 5 * size_t(kMiB); n += n / 5) sizes.push_back(n);
  for (size_t n : sizes) {
    auto* p = static_cast<unsigned char*>(a.allocate(n));
    REQUIRE(p != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0);
    if (kKeeps && n >= 2 * size_t(kMiB)) CHECK(reinterpret_cast<uintptr_t>(p) % size_t(2 * kMiB) == 0);
    std::memset(p, int(blocks.size()), n);
    blocks.push_back({p, n});
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [p, n] = blocks[i];
    CHECK(size_t(std::count(p, p + n, static_cast<unsigned char>(i))) == n);
    a.deallocate(p, n);
  }
}

TEST_CASE("allocator: a freed block is the next one of its class, and of no other (skipped with address sanitizer)" *
          doctest::skip(!kKeeps)) {
  Allocator& a = cpu_allocator();
  for (size_t n : {size_t(1), size_t(64), size_t(1000), size_t(1100), size_t(70000), size_t(5 * kMiB)}) {
    void* p = a.allocate(n);
    a.deallocate(p, n);
    void* q = a.allocate(n);
    CHECK(q == p);
    a.deallocate(q, n);
  }
  a.empty_cache();
  void* p = a.allocate(9000);  // class (8192, 9216]
  a.deallocate(p, 9000);
  void* other = a.allocate(9217);
  CHECK(other != p);
  void* same = a.allocate(8193);
  CHECK(same == p);
  a.deallocate(other, 9217);
  a.deallocate(same, 8193);
}

TEST_CASE("allocator: live, peak and total count the bytes asked for") {
  Allocator& a = cpu_allocator();
  a.empty_cache();
  a.reset_peak();
  const MemoryStats s0 = a.stats();
  CHECK(s0.peak == s0.live);
  void* p = a.allocate(3 * size_t(kMiB) + 5);
  void* q = a.allocate(100);
  a.deallocate(p, 3 * size_t(kMiB) + 5);
  void* r = a.allocate(2000);
  a.deallocate(r, 2000);
  CHECK(a.stats().live == s0.live + 100);
  CHECK(a.stats().peak == s0.live + 3 * kMiB + 105);
  CHECK(a.stats().total == s0.total + 3 * kMiB + 2105);
  a.reset_peak();
  a.deallocate(q, 100);
  CHECK(a.stats().live == s0.live);
  CHECK(a.stats().peak == s0.live + 100);
}

TEST_CASE("allocator: the peak of many small blocks, past what a thread keeps back") {
  Allocator& a = cpu_allocator();
  a.reset_peak();
  const MemoryStats s0 = a.stats();
  std::vector<void*> blocks(5000);
  for (void*& p : blocks) p = a.allocate(100);
  int64_t seen = 0;  // set by another thread
  std::thread([&] { seen = a.stats().live; }).join();
  CHECK(seen >= s0.live + 500000 - (64 << 10));
  for (void* p : blocks) a.deallocate(p, 100);
  CHECK(a.stats().live == s0.live);
  CHECK(a.stats().peak == s0.live + 500000);
  CHECK(a.stats().total == s0.total + 500000);
}

TEST_CASE("allocator: cached is what empty_cache returns, in blocks above 1 KiB") {
  Allocator& a = cpu_allocator();
  const size_t big = 5 * size_t(kMiB);
  a.deallocate(a.allocate(big), big);
  a.empty_cache();
  CHECK(a.stats().cached == 0);
  void* p = a.allocate(big);
  CHECK(a.stats().cached == 0);
  a.deallocate(p, big);
  a.deallocate(a.allocate(1024), 1024);
  CHECK(a.stats().cached == (kKeeps ? 5 * kMiB : 0));
  a.empty_cache();
  CHECK(a.stats().cached == 0);
}

TEST_CASE("slab: freed blocks are distinct when they come back, and need no new chunk") {
  std::vector<void*> blocks(3000);
  for (size_t n : {64, 192, 1024}) {
    int64_t first = 0;
    for (int round = 0; round < 3; ++round) {
      for (void*& b : blocks) std::memset(b = tg::detail::slab_alloc(n), round, n);
      CHECK(std::set<void*>(blocks.begin(), blocks.end()).size() == blocks.size());
      if (round == 0) first = tg::detail::slab_bytes();
      if (kKeeps) CHECK(first >= 3000 * int64_t(n));
      CHECK(tg::detail::slab_bytes() == first);
      for (void* b : blocks) tg::detail::slab_free(b, n);
    }
  }
}

TEST_CASE("slab: blocks freed in another thread than the one that allocates come back") {
  constexpr int kBlocks = 4000, kRounds = 40;
  for (size_t n : {64, 500}) {
    std::vector<void*> blocks(kBlocks);
    std::atomic<int> turn{0};  // even: main thread; odd: the other one frees
    std::thread other([&] {
      for (int r = 0; r < kRounds; ++r) {
        while (turn != 2 * r + 1) std::this_thread::yield();
        for (void* b : blocks) tg::detail::slab_free(b, n);
        ++turn;
      }
    });
    int64_t first = 0;
    for (int r = 0; r < kRounds; ++r) {
      for (void*& b : blocks) std::memset(b = tg::detail::slab_alloc(n), r, n);
      if (r == 0) first = tg::detail::slab_bytes();
      ++turn;
      while (turn != 2 * r + 2) std::this_thread::yield();
    }
    CHECK(tg::detail::slab_bytes() <= first + 3 * (64 << 10));  // two chunks and a block remain
    other.join();
  }
}

TEST_CASE("allocator: blocks freed in other threads come back, and the counters add up") {
  Allocator& a = cpu_allocator();
  a.empty_cache();
  const MemoryStats s0 = a.stats();
  const int64_t slab = tg::detail::slab_bytes();
  constexpr size_t kBlocks = 20000;
  std::vector<void*> blocks(kBlocks);
  auto size = [](size_t i) { return i % 7 * 160 + i % 500 / 499 * 100000; };  // 0 to 960, rarely 100 000
  for (int round = 0; round < 3; ++round) {
    std::thread([&] {
      for (size_t i = 0; i < kBlocks; ++i) std::memset(blocks[i] = a.allocate(size(i)), 1, size(i));
    }).join();
    CHECK(std::set<void*>(blocks.begin(), blocks.end()).size() == kBlocks);
    std::vector<std::thread> threads;
    for (size_t k : {0, 1}) {
      threads.emplace_back([&, k] {
        for (size_t i = k; i < kBlocks; i += 2) a.deallocate(blocks[i], size(i));
        for (int i = 0; i < 20000; ++i) a.deallocate(a.allocate(64), 64);
      });
    }
    for (auto& t : threads) t.join();
  }
  int64_t sum = 0;
  for (size_t i = 0; i < kBlocks; ++i) sum += int64_t(size(i));
  CHECK(a.stats().live == s0.live);
  CHECK(a.stats().total == s0.total + 3 * (sum + 2 * 20000 * 64));
  // Three rounds in the memory of one: freed blocks are used again (classes waste less than 2 x).
  CHECK(a.stats().cached + tg::detail::slab_bytes() < slab + 2 * sum);
  a.empty_cache();
  CHECK(a.stats().cached == 0);
}

TEST_CASE("allocator: a thread_local object may free after the thread's lists are gone") {
  Allocator& a = cpu_allocator();
  const int64_t live = a.stats().live;
  struct Late {
    void* p = nullptr;
    ~Late() {
      cpu_allocator().deallocate(p, 64);
      cpu_allocator().deallocate(cpu_allocator().allocate(200), 200);
    }
  };
  std::thread([&] {
    thread_local Late late;  // older than the lists, so destroyed later
    late.p = a.allocate(64);
  }).join();
  CHECK(a.stats().live == live);
}

TEST_CASE("allocator: out of memory is an Error with the numbers, and leaves the counters alone") {
  Allocator& a = cpu_allocator();
  const MemoryStats s0 = a.stats();
  for (size_t n : {(size_t(1) << 47) + 1, ~size_t(0)}) {
    const std::string asked = "[allocator] out of memory: " + std::to_string(n) + " bytes requested, live ";
    expect(REFUSES(a.allocate(n), memory, asked));
  }
  CHECK(a.stats().live == s0.live);
  CHECK(a.stats().total == s0.total);
}

#if defined(__linux__) && !defined(TG_SANITIZED)  // a sanitizer exits at the limit
rlim_t mapped_and(size_t room) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  REQUIRE(pages > 0);
  return pages * size_t(sysconf(_SC_PAGESIZE)) + room;
}

TEST_CASE("allocator: at the limit the cache is emptied before giving up") {
  Allocator& a = cpu_allocator();
  a.empty_cache();
  const MemoryStats s0 = a.stats();
  const size_t first = 64 * size_t(kMiB), second = 80 * size_t(kMiB);
  a.deallocate(a.allocate(first), first);
  void* p = nullptr;
  const std::string what = error_of([&] {
    const Limit low(RLIMIT_AS, mapped_and(32 * size_t(kMiB)));  // the second block fits once the first is gone
    p = a.allocate(second);
    a.deallocate(a.allocate(second), second);
  });
  REQUIRE_MESSAGE(p != nullptr, what);
  CHECK(what.find("live " + std::to_string(s0.live + int64_t(second)) + ", cached ") != std::string::npos);
  CHECK(a.stats().cached == s0.cached);
  CHECK(a.stats().live == s0.live + int64_t(second));
  a.deallocate(p, second);
  // 1-KiB blocks until they take the cached memory: malloc has room in the heap of other tests, or maps 132 KiB per
  // chunk of 64.
  constexpr size_t kMost = 64 << 10;
  std::vector<void*> small;
  small.reserve(kMost);
  REQUIRE(a.stats().cached == int64_t(second));
  {
    const Limit low(RLIMIT_AS, mapped_and(8 * size_t(kMiB)));
    while (small.size() < kMost && a.stats().cached != 0) small.push_back(a.allocate(1024));
  }
  CHECK(a.stats().cached == 0);
  for (void* b : small) a.deallocate(b, 1024);
  a.empty_cache();
}
#endif
