// One rank, and two processes that begin wrongly. tests/dist tests exchanges.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <tapegrad/emulator/nccl.h>
#include <unistd.h>

#include <string>

#include "support.h"

using namespace tg::cuda::nccl;

namespace {
Comm world_of_one() {
  UniqueId id;
  REQUIRE(GetUniqueId(&id) == kSuccess);
  Comm c = nullptr;
  REQUIRE(CommInitRank(&c, 1, id, 0) == kSuccess);
  return c;
}
std::string why(Result r) { return GetErrorString(r); }
}  // namespace

TEST_CASE("NCCL: bytes to oneself, in groups and alone, on every schedule") {
  for (const std::uint64_t seed : {0, 1, 2}) {
    simt::reset(seed);
    const Comm c = world_of_one();
    const Stream s;
    const Buffer<float> x(noise(40'000)), y(40'000), z(40'000);
    REQUIRE(GroupStart() == kSuccess);
    CHECK(Recv(y, 40'000, DataType(7), 0, c, s) == kSuccess);
    CHECK(Send(x, 40'000, DataType(7), 0, c, s) == kSuccess);
    REQUIRE(GroupEnd() == kSuccess);
    CHECK(AllGather(y, z, 160'000, kInt8, c, s) == kSuccess);
    CHECK(Broadcast(z, z, 160'000, kInt8, 0, c, s) == kSuccess);
    CHECK(Send(x, 0, kInt8, 0, c, s) == kSuccess);
    check(cudaStreamSynchronize(s));
    CHECK(z.host() == noise(40'000));
    CHECK(simt::describe().empty());
  }
}
TEST_CASE("NCCL: what a captured exchange does is done by each launch") {
  simt::reset();
  const Comm c = world_of_one();
  const Stream s;
  const Buffer<float> x(noise(100, 1)), y(100);
  check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  CHECK(AllGather(x, y, 400, kInt8, c, s) == kSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamEndCapture(s, &graph));
  check(cudaGraphInstantiate(&exec, graph));
  for (std::uint32_t seed : {2, 3}) {
    const std::vector<float> now = noise(100, seed);
    check(cudaMemcpyAsync(x, now.data(), 400, cudaMemcpyHostToDevice, s));
    check(cudaGraphLaunch(exec, s));
    check(cudaStreamSynchronize(s));
    CHECK(y.host() == now);
  }
}
TEST_CASE("NCCL: arguments that it refuses") {
  simt::reset();
  const Comm c = world_of_one();
  const Stream s;
  const Buffer<float> x(noise(16)), y(16);
  UniqueId id;
  REQUIRE(GetUniqueId(&id) == kSuccess);
  Comm other = nullptr;
  CHECK(CommInitRank(&other, 2, id, 2) == kInvalidArgument);
  CHECK(CommInitRank(&other, 0, id, 0) == kInvalidArgument);
  CHECK(CommInitRank(&other, 1, UniqueId{}, 0) == kInvalidArgument);
  CHECK(why(kInvalidArgument) == "invalid argument: the id is not from ncclGetUniqueId");
  CHECK(AllGather(x, y, 64, kInt8, nullptr, s) == kInvalidArgument);
  CHECK(why(kInvalidArgument) == "invalid argument: no communicator, or one that was aborted");
  CHECK(AllGather(nullptr, y, 64, kInt8, c, s) == kInvalidArgument);
  CHECK(AllGather(x, nullptr, 64, kInt8, c, s) == kInvalidArgument);
  CHECK(AllGather(x, y, 64, DataType(77), c, s) == kInvalidArgument);
  CHECK(Broadcast(x, y, 64, kInt8, 1, c, s) == kInvalidArgument);
  CHECK(why(kInvalidArgument) == "invalid argument: rank 1 of 1");
  CHECK(Send(x, 64, kInt8, 0, c, s) == kInvalidUsage);  // no one receives
  CHECK(GroupEnd() == kInvalidUsage);
  CHECK(why(kInvalidUsage) == "invalid usage: no group was begun");
  // A refused call invalidates its group.
  REQUIRE(GroupStart() == kSuccess);
  CHECK(Recv(y, 64, kInt8, 0, c, s) == kSuccess);
  CHECK(Send(x, 64, kInt8, -1, c, s) == kInvalidArgument);
  CHECK(GroupEnd() == kInvalidArgument);
  CHECK(simt::describe().empty());
  simt::set_nccl(kSystemError, "AllGather");
  CHECK(AllGather(x, y, 64, kInt8, c, s) == kSystemError);
  simt::set_nccl(kRemoteError, "CommGetAsyncError");
  Result r = kSuccess;
  CHECK(CommGetAsyncError(c, &r) == kSuccess);
  CHECK(r == kRemoteError);
  simt::set_nccl(kSuccess, "");
  CHECK(CommAbort(c) == kSuccess);
  CHECK(CommAbort(c) == kInvalidArgument);
  CHECK(AllGather(x, y, 64, kInt8, c, s) == kInvalidArgument);
}
TEST_CASE("NCCL: faults of memory, order and messages") {
  const auto run = [](auto&& call) {
    simt::reset();
    const Comm c = world_of_one();
    const Stream s, t;
    const Buffer<float> x(noise(16)), y(16), unwritten(16);
    std::vector<float> host(16);
    call(c, s, t, static_cast<float*>(x), static_cast<float*>(y), static_cast<float*>(unwritten), host.data());
    (void)cudaDeviceSynchronize();
    const std::string all = simt::describe();
    return all;
  };
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(run([](Comm c, cudaStream_t s, cudaStream_t, float*, float* y, float* u, float*) {
        AllGather(u, y, 64, kInt8, c, s);
      }),
      "ncclAllGather: read of 64 bytes of device memory, byte 0 unwritten");
  has(run([](Comm c, cudaStream_t s, cudaStream_t, float* x, float*, float*, float* h) {
        AllGather(x, h, 64, kInt8, c, s);
      }),
      "which is not device memory");
  has(run([](Comm c, cudaStream_t s, cudaStream_t, float* x, float* y, float*, float*) {
        AllGather(x, y, 72, kInt8, c, s);
      }),
      "ncclAllGather: read of 72 bytes of device memory, byte 64");
  has(run([](Comm c, cudaStream_t s, cudaStream_t, float* x, float*, float*, float*) {
        AllGather(x, x + 4, 32, kInt8, c, s);
      }),
      "ncclAllGather in place needs a rank's part at its offset");
  has(run([](Comm c, cudaStream_t s, cudaStream_t t, float* x, float* y, float*, float*) {
        (void)cudaMemsetAsync(x, 0, 64, t);
        AllGather(x, y, 64, kInt8, c, s);
      }),
      "stream");
  has(run([](Comm c, cudaStream_t s, cudaStream_t t, float* x, float* y, float*, float*) {
        GroupStart();
        Send(x, 64, kInt8, 0, c, s);
        Recv(y, 64, kInt8, 0, c, t);
        GroupEnd();
      }),
      "a group uses two communicators or streams, and the emulator needs one");
  has(run([](Comm c, cudaStream_t s, cudaStream_t, float* x, float* y, float*, float*) {
        GroupStart();
        Send(x, 64, kInt8, 0, c, s);
        Recv(y, 60, kInt8, 0, c, s);
        GroupEnd();
      }),
      "rank 0 sends 64 bytes by ncclSend or ncclRecv, but rank 0 expects 60 by ncclSend or ncclRecv");
  simt::reset();
}
TEST_CASE("NCCL: two ranks with one device") {
  simt::reset();
  UniqueId id;
  REQUIRE(GetUniqueId(&id) == kSuccess);
  const auto begin = [&](int rank) {
    Comm c = nullptr;
    return CommInitRank(&c, 2, id, rank);
  };
  const pid_t child = fork();
  if (child == 0) _exit(begin(1));
  CHECK(begin(0) == kInvalidUsage);
  CHECK(why(kInvalidUsage) == "invalid usage: two ranks have device 0");
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == kInvalidUsage);
}
TEST_CASE("devices: a process has the memory of the first that it chooses") {
  simt::reset();
  simt::set_devices(3);
  int n = 0, now = -1;
  check(cudaGetDeviceCount(&n));
  CHECK(n == 3);
  CHECK(cudaSetDevice(3) == cudaErrorInvalidDevice);
  check(cudaSetDevice(2));
  check(cudaGetDevice(&now));
  CHECK(now == 2);
  CHECK(cudaSetDevice(0) == cudaErrorDevicesUnavailable);
  check(cudaSetDevice(2));
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 1));
  CHECK(cudaGetDeviceProperties(&p, 3) == cudaErrorInvalidDevice);
  simt::reset();
  check(cudaGetDeviceCount(&n));
  CHECK(n == 1);
}
