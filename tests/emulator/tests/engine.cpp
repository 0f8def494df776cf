#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <string>

#include "broken.h"
#include "support.h"

TEST_CASE("a report names the kernel, the block, the thread and the line") {
  simt::reset();
  {
    const Buffer<float> x(noise(100)), y(100);
    broken::bound(x, y, 100, true, nullptr);
  }
  REQUIRE(simt::reports().size() == 1);
  const std::string& s = simt::reports()[0].text;
  CAPTURE(s);
  CHECK(s.find("bound_kernel") != std::string::npos);
  CHECK(s.find("block (1,0,0), thread (36,0,0)") != std::string::npos);
  CHECK(s.find("broken.cu:") != std::string::npos);
  CHECK(s.find("0 bytes past the end of an allocation of 400 bytes") != std::string::npos);
  CHECK(s == cudaGetErrorString(cudaErrorLaunchFailure));
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);  // sticky
  simt::reset();
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("invalid launches are refused") {
  simt::reset();
  CHECK(broken::add_one(nullptr, nullptr, 0, nullptr) == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaSuccess);
  float* p = nullptr;
  CHECK(cudaMalloc(&p, std::size_t{1} << 40) == cudaErrorMemoryAllocation);
  const Buffer<float> y(1);
  CHECK(broken::wide_shared(y, false, nullptr) == cudaErrorInvalidValue);  // not opted in
  simt::set_shared_limit(60 * 1024);
  CHECK(broken::wide_shared(y, true, nullptr) == cudaErrorInvalidValue);  // nor possible
  simt::set_shared_limit(64 * 1024);
  simt::set_capability(120);
  CHECK(broken::wide_shared(y, true, nullptr) == cudaErrorNoKernelImageForDevice);
  simt::set_capability(89);
  CHECK(broken::wide_shared(y, true, nullptr) == cudaSuccess);
  CHECK(y.host()[0] == 1.0F);
  CHECK_MESSAGE(simt::reports().empty(), simt::describe());
  simt::reset();
}

TEST_CASE("properties and occupancy") {
  simt::reset();
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 0));
  CHECK(std::string(p.name) == "emulated GPU");
  CHECK(p.major == 9);
  CHECK(p.totalGlobalMem == std::size_t{4} << 30);
  CHECK(cudaGetDeviceProperties(&p, 1) == cudaErrorInvalidDevice);
  int v = 0;
  check(cudaDeviceGetAttribute(&v, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  CHECK(v == 227 * 1024);
  CHECK(broken::resident(256, 0) == 8);  // limited by threads
  CHECK(broken::resident(33, 0) == 32);  // limited by blocks; warps are whole
  CHECK(broken::resident(1024, 0) == 2);
  CHECK(broken::resident(64, 40 * 1024) == 5);   // limited by shared memory
  CHECK(broken::resident(64, 100 * 1024) == 0);  // not opted in
  CHECK(broken::resident(2048, 0) == 0);
  CHECK(broken::resident(0, 0) == -1);
  simt::reset();
}

TEST_CASE("work on a stream waits for a synchronisation") {
  simt::reset(1);
  {
    const Buffer<float> x(noise(64)), y(64);
    const Stream s;
    float* pinned = nullptr;
    check(cudaMallocHost(&pinned, 256));
    check(cudaDeviceSynchronize());
    check(broken::add_one(x, y, 64, s));
    check(cudaMemcpyAsync(pinned, y, 256, cudaMemcpyDeviceToHost, s));
    CHECK(std::isnan(pinned[0]));
    CHECK(cudaStreamQuery(s) == cudaErrorNotReady);
    check(cudaStreamSynchronize(s));
    CHECK(pinned[0] == noise(64)[0] + 1.0F);
    CHECK(cudaStreamQuery(s) == cudaSuccess);
  }
  simt::reset();
}

TEST_CASE("events order streams under every schedule") {
  under_schedules(
      [] {
        const Stream a, b, c;
        float *x = nullptr, *y = nullptr;
        check(cudaMallocAsync(&x, 256, a));
        check(cudaMallocAsync(&y, 256, a));
        check(cudaMemsetAsync(x, 0, 256, a));
        cudaEvent_t fork, left, right;
        for (cudaEvent_t* e : {&fork, &left, &right}) check(cudaEventCreate(e));
        for (int i = 0; i < 5; ++i) {  // halves of y = x + 1 on b and c, then x = y + 1 on a
          check(cudaEventRecord(fork, a));
          check(cudaStreamWaitEvent(b, fork));
          check(broken::add_one(x, y, 32, b));
          check(cudaEventRecord(left, b));
          check(cudaStreamWaitEvent(c, fork));
          check(broken::add_one(x + 32, y + 32, 32, c));
          check(cudaEventRecord(right, c));
          check(cudaStreamWaitEvent(a, left));
          check(cudaStreamWaitEvent(a, right));
          check(broken::add_one(y, x, 64, a));
        }
        std::vector<float> h(64);
        check(cudaMemcpyAsync(h.data(), x, 256, cudaMemcpyDeviceToHost, a));
        check(cudaFreeAsync(x, a));
        check(cudaFreeAsync(y, a));
        CHECK(h == std::vector<float>(64, 10.0F));
        check(cudaDeviceSynchronize());
        std::size_t free = 0, total = 1;
        check(cudaMemGetInfo(&free, &total));
        CHECK(free == total);
      },
      20);
}

TEST_CASE("an event that is recorded again stands for its last record, and waits for what it stood for then") {
  simt::reset(1);
  const Stream a, b;
  const Buffer<float> x(noise(64)), y(64), z(64);
  check(cudaDeviceSynchronize());
  cudaEvent_t e, never, untimed;
  check(cudaEventCreate(&e));
  check(cudaEventCreate(&never));
  check(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  CHECK(cudaEventQuery(never) == cudaSuccess);
  check(broken::add_one(x, y, 64, a));
  check(cudaEventRecord(e, a));
  check(cudaStreamWaitEvent(b, e));
  check(broken::add_one(x, z, 64, a));
  check(cudaEventRecord(e, a));
  // y is written, but z's kernel still reads x.
  check(broken::add_one(y, x + 0, 0 + 64, b));
  CHECK(cudaEventQuery(e) == cudaErrorNotReady);
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, never, e) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventElapsedTime(&ms, untimed, e) == cudaErrorInvalidResourceHandle);
  (void)cudaDeviceSynchronize();
  REQUIRE(simt::reports().size() == 1);
  CHECK(simt::reports()[0].fault == simt::Fault::stream_order);
  simt::reset();
}

TEST_CASE("the null stream waits for blocking streams, and for those alone") {
  for (const unsigned flags : {unsigned{cudaStreamDefault}, unsigned{cudaStreamNonBlocking}})
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      simt::reset(seed);
      const Buffer<float> x(noise(64)), y(64), z(64);
      cudaStream_t s = nullptr;
      check(cudaStreamCreateWithFlags(&s, flags));
      check(cudaDeviceSynchronize());
      (void)broken::add_one(x, y, 64, s);
      check(cudaStreamDestroy(s));
      (void)broken::add_one(y, z, 64, nullptr);
      (void)cudaDeviceSynchronize();
      CHECK(simt::reports().empty() == (flags == cudaStreamDefault));
    }
  simt::reset();
}

TEST_CASE("copies of rows") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    simt::reset(seed);
    const Stream s;
    const std::vector<float> h = noise(60);
    const Buffer<float> x(60), y(60);
    check(cudaMemsetAsync(y, 0, 240, s));
    check(cudaMemcpy2DAsync(x, 40, h.data(), 24, 24, 6, cudaMemcpyHostToDevice, s));  // 6 of every 10
    check(cudaMemcpy2DAsync(y, 20, x, 40, 20, 6, cudaMemcpyDeviceToDevice, s));       // 5 of these, packed
    std::vector<float> got(60);
    check(cudaMemcpy2DAsync(got.data(), 28, y, 20, 20, 6, cudaMemcpyDeviceToHost, s));
    for (std::size_t r = 0; r < 6; ++r)
      for (std::size_t c = 0; c < 5; ++c) CHECK(got[r * 7 + c] == h[r * 6 + c]);
    CHECK(cudaMemcpy2DAsync(x, 16, h.data(), 24, 24, 6, cudaMemcpyHostToDevice, s) == cudaErrorInvalidPitchValue);
    CHECK_MESSAGE(simt::reports().empty(), simt::describe());
    // Bytes between rows are unwritten.
    (void)cudaMemcpyAsync(got.data(), x, 240, cudaMemcpyDeviceToHost, s);
    CHECK_MESSAGE(simt::reports().empty(), simt::describe());
    (void)broken::add_one(x, y, 10, s);
    (void)cudaDeviceSynchronize();
    REQUIRE(simt::reports().size() == 1);
    CHECK(simt::reports()[0].fault == simt::Fault::uninitialised);
  }
  simt::reset();
}

TEST_CASE("functions of the host run in stream order, and cannot touch device memory") {
  under_schedules([] {
    const Stream s;
    const Buffer<float> x(noise(64)), y(64);
    float* pinned = nullptr;
    check(cudaMallocHost(&pinned, 256));
    struct Seen {
      const float* from;
      float value;
    } seen{pinned, 0};
    check(cudaDeviceSynchronize());
    check(broken::add_one(x, y, 64, s));
    check(cudaMemcpyAsync(pinned, y, 256, cudaMemcpyDeviceToHost, s));
    check(cudaLaunchHostFunc(
        s, [](void* p) { static_cast<Seen*>(p)->value = *static_cast<Seen*>(p)->from; }, &seen));
    check(cudaStreamSynchronize(s));
    CHECK(seen.value == noise(64)[0] + 1.0F);
    check(cudaFreeHost(pinned));
  });
}

namespace {
// True if an invalid access ends the process.
template <class F> bool faults(F f) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, [](int) { _exit(42); });
    f();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status) == 42;
}
}  // namespace

TEST_CASE("the host cannot touch device memory") {
  simt::reset();
  const Buffer<float> x(noise(1));
  CHECK(!faults([] {}));
  CHECK(faults([&] {
    volatile float* p = x;
    const float v = *p;
    (void)v;
  }));
  CHECK(faults([&] {
    volatile float* p = x;
    *p = 1.0F;
  }));
  CHECK(faults([&] {
    float* p = x;
    check(cudaLaunchHostFunc(
        nullptr, [](void* q) { *static_cast<volatile float*>(q) = 1.0F; }, p));
    check(cudaDeviceSynchronize());
  }));
}
