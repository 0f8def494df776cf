#include <thread>

#include "graph_support.h"

TEST_CASE("captured work does not run, and each launch runs it") {
  under_schedules([] {
    const Stream s;
    const Buffer<float> x(std::vector<float>(64, 0.0F)), y(64);
    check(cudaDeviceSynchronize());
    int calls = 0;
    const cudaGraph_t g = capture(s, [&] {
      check(broken::add_one(x, y, 64, s));
      check(cudaMemcpyAsync(x, y, 256, cudaMemcpyDeviceToDevice, s));
      check(cudaMemsetAsync(y, 0, 256, s));
      check(cudaLaunchHostFunc(
          s, [](void* p) { ++*static_cast<int*>(p); }, &calls));
    });
    CHECK(nodes(g) == 4);
    CHECK(calls == 0);
    CHECK(x.host()[0] == 0.0F);
    const cudaGraphExec_t exec = instantiate(g);
    for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(exec, s));
    check(cudaStreamSynchronize(s));
    CHECK(calls == 3);
    CHECK(x.host() == std::vector<float>(64, 3.0F));
    CHECK(y.host() == std::vector<float>(64, 0.0F));
    check(cudaGraphExecDestroy(exec));
  });
}

TEST_CASE("forks and joins by events, launched in other streams than captured") {
  under_schedules([] {
    const Stream a, b, c;
    const Events e;
    const Buffer<float> x(std::vector<float>(64, 0.0F)), y(64);
    check(cudaDeviceSynchronize());
    const cudaGraph_t g = capture(a, [&] {
      for (int i = 0; i < 3; ++i) fork_and_join(x, y, a, b, e, true);
    });
    CHECK(nodes(g) == 9);
    cudaStreamCaptureStatus is = cudaStreamCaptureStatusActive;
    check(cudaStreamIsCapturing(b, &is));
    CHECK(is == cudaStreamCaptureStatusNone);
    const cudaGraphExec_t exec = instantiate(g);
    for (const cudaStream_t s : {cudaStream_t(a), cudaStream_t(c), cudaStream_t(b)}) check(cudaGraphLaunch(exec, s));
    check(cudaStreamSynchronize(b));
    CHECK(x.host() == std::vector<float>(64, 18.0F));
    check(cudaGraphExecDestroy(exec));
  });
}

TEST_CASE("a replay is checked: branches without a join, memory that was freed, reads before the replay is done") {
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (const int wrong : {0, 1, 2}) {
      CAPTURE(seed);
      CAPTURE(wrong);
      simt::reset(seed);
      const Stream a, b;
      const Events e;
      float *x = nullptr, *y = nullptr;
      check(cudaMalloc(&x, 256));
      check(cudaMalloc(&y, 256));
      check(cudaMemset(x, 0, 256));
      check(cudaDeviceSynchronize());
      const cudaGraphExec_t exec = instantiate(capture(a, [&] { fork_and_join(x, y, a, b, e, wrong != 0); }));
      CHECK_MESSAGE(simt::reports().empty(), simt::describe());
      if (wrong == 1) check(cudaFree(y));
      (void)cudaGraphLaunch(exec, a);
      if (wrong == 2) (void)cudaMemsetAsync(x, 0, 4, b);
      (void)cudaDeviceSynchronize();
      REQUIRE(!simt::reports().empty());
      const simt::Fault found = simt::reports()[0].fault;
      if (wrong == 1)
        CHECK(found == simt::Fault::out_of_bounds);
      else
        CHECK((found == simt::Fault::stream_order || found == simt::Fault::uninitialised));
    }
  simt::reset();
}

TEST_CASE("an executable graph takes new arguments, and refuses another topology") {
  under_schedules([] {
    const Stream a, b;
    const Events e;
    const Buffer<float> x(std::vector<float>(64, 0.0F)), y(64), z(std::vector<float>(64, 5.0F));
    check(cudaDeviceSynchronize());
    const cudaGraphExec_t exec = instantiate(capture(a, [&] {
      check(broken::add_one(x, y, 64, a));
      check(cudaMemsetAsync(x, 0, 256, a));
    }));
    check(cudaGraphLaunch(exec, a));
    const auto update = [&](const std::function<void()>& work) {
      const cudaGraph_t g = capture(a, work);
      cudaGraphExecUpdateResultInfo info{};
      const cudaError_t result = cudaGraphExecUpdate(exec, g, &info);
      CHECK((result == cudaSuccess) == (info.result == cudaGraphExecUpdateSuccess));
      if (result != cudaSuccess) CHECK(result == cudaErrorGraphExecUpdateFailure);
      check(cudaGraphDestroy(g));
      (void)cudaGetLastError();
      return info.result;
    };
    CHECK(update([&] {
            check(broken::add_one(z, y, 64, a));
            check(cudaMemsetAsync(z, 0, 128, a));
          }) == cudaGraphExecUpdateSuccess);
    check(cudaGraphLaunch(exec, a));
    check(cudaStreamSynchronize(a));
    CHECK(y.host() == std::vector<float>(64, 6.0F));
    CHECK(z.host()[31] == 0.0F);
    CHECK(z.host()[32] == 5.0F);
    CHECK(update([&] { check(broken::add_one(x, y, 64, a)); }) == cudaGraphExecUpdateErrorTopologyChanged);
    CHECK(update([&] {
            check(cudaMemsetAsync(x, 0, 256, a));
            check(broken::add_one(x, y, 64, a));
          }) == cudaGraphExecUpdateErrorNodeTypeChanged);
    CHECK(update([&] {  // concurrently
            check(cudaEventRecord(e[0], a));
            check(cudaStreamWaitEvent(b, e[0]));
            check(broken::add_one(x, y, 64, b));
            check(cudaMemsetAsync(z, 0, 128, a));
            check(cudaEventRecord(e[1], b));
            check(cudaStreamWaitEvent(a, e[1]));
          }) == cudaGraphExecUpdateErrorTopologyChanged);
    check(cudaGraphLaunch(exec, a));
    check(cudaStreamSynchronize(a));
    CHECK(y.host()[40] == 6.0F);
    check(cudaGraphExecDestroy(exec));
  });
}

TEST_CASE("pinned memory is read and written at each launch") {
  under_schedules([] {
    const Stream s;
    const Buffer<float> x(64), y(64);
    float *from = nullptr, *to = nullptr;
    check(cudaMallocHost(&from, 256));
    check(cudaMallocHost(&to, 256));
    const cudaGraphExec_t exec = instantiate(capture(s, [&] {
      check(cudaMemcpyAsync(x, from, 256, cudaMemcpyHostToDevice, s));
      check(broken::add_one(x, y, 64, s));
      check(cudaMemcpyAsync(to, y, 256, cudaMemcpyDeviceToHost, s));
    }));
    for (float v = 0; v < 3; ++v) {
      std::fill_n(from, 64, v);
      check(cudaGraphLaunch(exec, s));
      if (simt::schedule() == 1) CHECK(to[5] != to[5]);
      check(cudaStreamSynchronize(s));
      CHECK(to[63] == v + 1);
    }
    check(cudaFreeHost(from));
    check(cudaFreeHost(to));
  });
}

TEST_CASE("what a capturing stream refuses, and that the capture is lost by it") {
  simt::reset();
  const Stream s;
  const Buffer<float> x(noise(64)), y(64);
  const Events e;
  cudaStream_t blocking = nullptr;
  check(cudaStreamCreate(&blocking));
  float host[64], *pinned = nullptr;
  check(cudaMallocHost(&pinned, 256));
  check(cudaEventRecord(e[3], s));
  check(cudaDeviceSynchronize());
  void* p = nullptr;
  const auto refuses = [&](cudaError_t expected, const std::function<cudaError_t()>& call, bool lost = true) {
    CAPTURE(expected);
    check(cudaStreamBeginCapture(s, thread_local_mode));
    check(broken::add_one(x, y, 64, s));
    check(cudaEventRecord(e[0], s));
    CHECK(call() == expected);
    cudaGraph_t g = nullptr;
    CHECK(cudaStreamEndCapture(s, &g) == (lost ? cudaErrorStreamCaptureInvalidated : cudaSuccess));
    CHECK((g == nullptr) == lost);
    (void)cudaGetLastError();
    check(cudaDeviceSynchronize());
  };
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(s); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(s); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&p, 4); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaFree(x); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocHost(&p, 4); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaFreeHost(pinned); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocAsync(&p, 4, s); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaMemcpy(x, y, 4, cudaMemcpyDeviceToDevice); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaMemcpyAsync(x, host, 4, cudaMemcpyHostToDevice, s); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaMemcpyAsync(host, y, 4, cudaMemcpyDeviceToHost, s); });
  refuses(cudaErrorStreamCaptureUnsupported, [&] { return cudaEventQuery(e[3]); });
  refuses(cudaErrorCapturedEvent, [&] { return cudaEventQuery(e[0]); });
  refuses(cudaErrorCapturedEvent, [&] { return cudaEventSynchronize(e[0]); });
  refuses(cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(s, e[3]); });
  refuses(cudaErrorStreamCaptureImplicit, [&] { return cudaStreamWaitEvent(nullptr, e[0]); });
  refuses(
      cudaErrorIllegalState, [&] { return cudaStreamBeginCapture(s, thread_local_mode); }, false);
  refuses(
      cudaSuccess, [&] { return cudaMemcpyAsync(pinned, y, 4, cudaMemcpyDeviceToHost, s); }, false);
  refuses(
      cudaSuccess, [&] { return cudaStreamSynchronize(blocking); }, false);
  CHECK(cudaStreamWaitEvent(blocking, e[0]) == cudaErrorCapturedEvent);  // the capture of the event ended
  CHECK_MESSAGE(simt::reports().empty(), simt::describe());
  simt::reset();
}

TEST_CASE("captures that end wrongly") {
  simt::reset();
  const Stream a, b;
  const Buffer<float> x(noise(64)), y(64);
  const Events e;
  check(cudaDeviceSynchronize());
  cudaGraph_t g = nullptr;
  CHECK(cudaStreamBeginCapture(nullptr, thread_local_mode) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(a, &g) == cudaErrorIllegalState);
  check(cudaStreamBeginCapture(a, thread_local_mode));
  check(cudaEventRecord(e[0], a));
  check(cudaStreamWaitEvent(b, e[0]));
  check(broken::add_one(x, y, 64, b));
  CHECK(cudaStreamEndCapture(a, &g) == cudaErrorStreamCaptureUnjoined);
  CHECK(g == nullptr);
  check(cudaStreamBeginCapture(a, thread_local_mode));
  check(cudaEventRecord(e[0], a));
  check(cudaStreamWaitEvent(b, e[0]));
  CHECK(cudaStreamEndCapture(b, &g) == cudaErrorStreamCaptureUnmatched);
  CHECK(cudaStreamEndCapture(a, &g) == cudaErrorStreamCaptureInvalidated);
  check(cudaStreamBeginCapture(a, thread_local_mode));
  check(cudaStreamBeginCapture(b, thread_local_mode));
  check(cudaEventRecord(e[0], a));
  CHECK(cudaStreamWaitEvent(b, e[0]) == cudaErrorStreamCaptureMerge);
  CHECK(cudaStreamEndCapture(a, &g) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamEndCapture(b, &g) == cudaErrorStreamCaptureInvalidated);
  check(cudaStreamBeginCapture(a, thread_local_mode));
  cudaError_t result = cudaSuccess;
  std::thread([&] { result = cudaStreamEndCapture(a, &g); }).join();
  CHECK(result == cudaErrorStreamCaptureWrongThread);
  CHECK(cudaStreamEndCapture(a, &g) == cudaErrorStreamCaptureInvalidated);
  cudaStream_t blocking = nullptr;
  check(cudaStreamCreate(&blocking));
  check(cudaStreamBeginCapture(blocking, thread_local_mode));
  CHECK(broken::add_one(x, y, 64, nullptr) == cudaErrorStreamCaptureImplicit);
  CHECK(cudaStreamEndCapture(blocking, &g) == cudaErrorStreamCaptureInvalidated);
  check(broken::add_one(x, y, 64, nullptr));
  CHECK_MESSAGE(simt::reports().empty(), simt::describe());
  simt::reset();
}

TEST_CASE("what waits for the device ends the captures of all threads, whatever their mode") {
  simt::reset();
  const Stream s;
  float *x = nullptr, y[1] = {}, *pinned = nullptr;
  check(cudaMalloc(&x, 4));
  check(cudaMallocHost(&pinned, 4));
  check(cudaMemset(x, 0, 4));
  const std::function<cudaError_t()> calls[] = {
      [] { return cudaDeviceSynchronize(); }, [&] { return cudaFree(x); }, [&] { return cudaFreeHost(pinned); },
      [&] { return cudaMemset(x, 0, 4); }, [&] { return cudaMemcpy(y, x, 4, cudaMemcpyDeviceToHost); }};
  for (const auto mode : {thread_local_mode, cudaStreamCaptureModeRelaxed})
    for (const auto& call : calls) {
      check(cudaStreamBeginCapture(s, mode));
      cudaError_t e = cudaSuccess;
      std::thread([&] { e = call(); }).join();
      CHECK(e == cudaErrorStreamCaptureUnsupported);
      cudaGraph_t g = nullptr;
      CHECK(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureInvalidated);
    }
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  simt::reset();
}

TEST_CASE("the mode of a capture says what other threads may do") {
  simt::reset();
  const Stream s;
  const auto allocates = [] {  // called by another thread
    cudaError_t e = cudaSuccess;
    std::thread([&] {
      void* p = nullptr;
      e = cudaMalloc(&p, 4);
    }).join();
    return e;
  };
  cudaGraph_t g = nullptr;
  check(cudaStreamBeginCapture(s, thread_local_mode));
  CHECK(allocates() == cudaSuccess);
  check(cudaStreamEndCapture(s, &g));
  check(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  CHECK(allocates() == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(s, &g) == cudaErrorStreamCaptureInvalidated);
  void* p = nullptr;
  check(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  CHECK(cudaMalloc(&p, 4) == cudaSuccess);
  check(cudaStreamEndCapture(s, &g));
  check(cudaStreamBeginCapture(s, thread_local_mode));
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == cudaStreamCaptureModeGlobal);
  CHECK(cudaMalloc(&p, 4) == cudaSuccess);
  check(cudaThreadExchangeStreamCaptureMode(&mode));
  CHECK(mode == cudaStreamCaptureModeRelaxed);
  check(cudaStreamEndCapture(s, &g));
  simt::reset();
}
