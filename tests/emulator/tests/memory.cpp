#include <unistd.h>

#include <cstdio>
#include <set>

#include "broken.h"
#include "support.h"

namespace {
std::size_t resident_bytes() {
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  unsigned long long size = 0, resident = 0;
  const int n = std::fscanf(f, "%llu %llu", &size, &resident);
  std::fclose(f);
  return n == 2 ? std::size_t(resident) * std::size_t(sysconf(_SC_PAGESIZE)) : 0;
}
constexpr std::size_t MiB = 1 << 20;
}  // namespace

TEST_CASE("hundreds of thousands of operations leave nothing behind, a million with more TG_TEST_EFFORT") {
  for (const std::uint64_t seed : {0, 1, 2}) {
    CAPTURE(seed);
    simt::reset(seed);
    const Stream a, b;
    std::size_t first = 0, addresses = 0;
    const int rounds = more_effort() && seed == 0 ? 30000 : 6000;
    for (int i = 0; i < rounds; ++i) {  // 33 operations each
      float *x = nullptr, *y = nullptr;
      check(cudaMallocAsync(&x, 256, a));
      check(cudaMallocAsync(&y, i % 100 == 0 ? MiB / 8 : 512, a));
      check(cudaMemsetAsync(x, 0, 256, a));
      cudaEvent_t e;
      check(cudaEventCreate(&e));
      for (int k = 0; k < 7; ++k) {
        check(cudaMemsetAsync(y, 0, 64, a));
        check(cudaEventRecord(e, a));
        check(cudaStreamWaitEvent(b, e));
        check(cudaMemsetAsync(y, 1, 64, b));
        check(cudaEventRecord(e, b));
        check(cudaStreamWaitEvent(a, e));
      }
      check(cudaEventDestroy(e));
      check(cudaFreeAsync(x, a));
      check(cudaFreeAsync(y, a));
      if (i % 50 == 0) {
        cudaStream_t s = nullptr;
        check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        check(cudaLaunchHostFunc(
            s, [](void*) {}, nullptr));
        check(cudaStreamDestroy(s));
      }
      if (i % 1000 == 0) check(cudaStreamSynchronize(a));
      CHECK(simt::statistics().pending <= 1024);
      if (i == 4000) {
        first = resident_bytes();
        addresses = simt::statistics().addresses;
      }
    }
    check(cudaDeviceSynchronize());
    CHECK_MESSAGE(simt::reports().empty(), simt::describe());
    CHECK(simt::statistics().pending == 0);
    CHECK(resident_bytes() < first + 8 * MiB);
    CHECK(simt::statistics().addresses == addresses);
  }
  simt::reset();
}

TEST_CASE("launches leave nothing behind, without a synchronisation") {
  simt::reset();
  const Stream s;
  const Buffer<float> x(noise(1)), y(1);
  check(cudaDeviceSynchronize());
  std::size_t first = 0;
  for (int i = 0; i < 30000; ++i) {
    check(broken::many_barriers(0, s));
    if (i == 1000) first = resident_bytes();
  }
  CHECK(resident_bytes() < first + 4 * MiB);
  simt::reset();
}

TEST_CASE("memory is used again, late, whole and only by what comes after the free") {
  for (const std::uint64_t seed : {0, 2}) {
    simt::reset(seed);
    simt::set_memory(2 * MiB);
    // Growing blocks fill the card if adjacent free ranges merge.
    for (std::size_t piece = MiB / 64; piece <= 2 * MiB; piece *= 2)
      for (int round = 0; round < 5; ++round) {
        std::vector<char*> all;
        for (std::size_t n = 0; n < 2 * MiB; n += piece) {
          all.push_back(nullptr);
          check(cudaMallocAsync(&all.back(), piece, nullptr));
          check(cudaMemsetAsync(all.back(), 1, 8, nullptr));
        }
        char* more = nullptr;
        CHECK(cudaMalloc(&more, 1) == cudaErrorMemoryAllocation);
        for (char* p : all) check(cudaFreeAsync(p, nullptr));
        check(cudaDeviceSynchronize());
      }
    CHECK_MESSAGE(simt::reports().empty(), simt::describe());
  }
  simt::reset();
}

TEST_CASE("no address that was freed in one stream is given to another that does not come after") {
  simt::reset();
  const Stream a, b;
  std::vector<char*> freed;
  for (int i = 0; i < (more_effort() ? 10000 : 2000); ++i) {
    char* p = nullptr;
    check(cudaMallocAsync(&p, 65536, a));
    check(cudaFreeAsync(p, a));
    freed.push_back(p);
  }
  CHECK(std::size_t(freed.back() - freed[0]) < 100 * MiB);  // reused in their own stream
  const std::set<const char*> given(freed.begin(), freed.end());
  for (int i = 0; i < 100; ++i) {
    char* p = nullptr;
    check(cudaMallocAsync(&p, 65536, b));
    CHECK(!given.contains(p));
  }
  CHECK_MESSAGE(simt::reports().empty(), simt::describe());
  simt::reset();
}

TEST_CASE("blocks of an allocator of ours are checked one by one") {
  for (const std::uint64_t seed : {0, 1, 2})
    for (const int wrong : {0, 1, 2}) {
      simt::reset(seed);
      const Stream s;
      float* segment = nullptr;
      check(cudaMalloc(&segment, 4096));
      simt::note_segment(segment, 4096);
      simt::note_allocated(segment, 256, s);
      simt::note_allocated(segment + 64, 256, s);
      check(cudaMemsetAsync(segment, 0, 256, s));
      check(broken::add_one(segment, segment + 64, 64, s));
      simt::note_freed(segment, 256, s);
      if (wrong == 1) (void)broken::add_one(segment, segment + 64, 64, s);
      if (wrong == 2) (void)cudaMemsetAsync(segment + 128, 0, 4, s);
      (void)cudaDeviceSynchronize();
      REQUIRE(simt::reports().size() == (wrong ? 1 : 0));
      if (wrong) CHECK(simt::reports()[0].fault == simt::Fault::out_of_bounds);
    }
  simt::reset();
}
