// tests/dist tests exchanges.
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
  under_schedules(
      [] {
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
      },
      3);
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
  struct World {
    Comm c = world_of_one();
    Stream s, other;
    Buffer<float> x{noise(16)}, y{16}, unwritten{16};
    std::vector<float> host = std::vector<float>(16);
    float* at = x;
  };
  const auto says = [](const char* part, void (*call)(World&)) {
    simt::reset();
    World w;
    call(w);
    (void)cudaDeviceSynchronize();
    const std::string text = simt::describe();
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  says("ncclAllGather: read of 64 bytes of device memory, byte 0 unwritten",
       [](World& w) { AllGather(w.unwritten, w.y, 64, kInt8, w.c, w.s); });
  says("which is not device memory", [](World& w) { AllGather(w.x, w.host.data(), 64, kInt8, w.c, w.s); });
  says("ncclAllGather: read of 72 bytes of device memory, byte 64",
       [](World& w) { AllGather(w.x, w.y, 72, kInt8, w.c, w.s); });
  says("ncclAllGather in place needs a rank's part at its offset",
       [](World& w) { AllGather(w.x, w.at + 4, 32, kInt8, w.c, w.s); });
  says("stream", [](World& w) {
    (void)cudaMemsetAsync(w.x, 0, 64, w.other);
    AllGather(w.x, w.y, 64, kInt8, w.c, w.s);
  });
  says("a group uses two communicators or streams, and the emulator needs one", [](World& w) {
    GroupStart();
    Send(w.x, 64, kInt8, 0, w.c, w.s);
    Recv(w.y, 64, kInt8, 0, w.c, w.other);
    GroupEnd();
  });
  says("rank 0 sends 64 bytes by ncclSend or ncclRecv, but rank 0 expects 60 by ncclSend or ncclRecv", [](World& w) {
    GroupStart();
    Send(w.x, 64, kInt8, 0, w.c, w.s);
    Recv(w.y, 60, kInt8, 0, w.c, w.s);
    GroupEnd();
  });
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
