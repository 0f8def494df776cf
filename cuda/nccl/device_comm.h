// The ranks of a Communicator on their GPUs: bytes of device memory from rank to rank, on a separate stream.
//
// Ops that use it are not captured into CUDA graphs; compiled functions run them op by op. NCCL ties captured buffers
// to the captured graph, but a recording (recording.h) captures each call separately, adds copies to a graph and
// replaces them there. The combination is untested on GPUs.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/cuda/nccl/nccl_api.h>
#include <tapegrad/cuda/runtime/api.h>
#include <tapegrad/cuda/runtime/runtime.h>
#include <tapegrad/cuda/runtime/stream.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace tg::cuda::nccl {

class DeviceComm final : CommWatch::OnDevice {
 public:
  // This rank's device's instance; null for one rank. All ranks must make the first call. Never destroyed, since ranks
  // may end at different times. An Error without NCCL, or if `op` is recorded.
  static DeviceComm* of(Communicator&, int device, const char* op);

  int rank() const { return comm_.rank(); }
  // Bytes a rank sends at once: half the smallest L2 cache of all ranks, so that a kernel finds the previous one's
  // writes in L2.
  size_t round() const { return round_; }

  // Part r of a buffer begins at r * stride and has bytes[r] bytes, the same on all ranks.
  using Sizes = std::span<const size_t>;
  // Sends part r of `from` to rank r, receives from rank r at `to` + r * stride. Needs an Exchange.
  void all_to_all(const std::byte* from, std::byte* to, Sizes bytes, size_t stride, const char* op);
  // Sends this rank's part of `row`, receives the others in place. Needs an Exchange.
  void all_gather(std::byte* row, Sizes bytes, size_t stride, const char* op);

  // Scope: the calling thread launches into the communication stream, after its own stream's work. Host functions in
  // the stream tell the watch of the wait, because the host is ahead of the stream. No-op for a null DeviceComm.
  class Exchange {
   public:
    Exchange(DeviceComm*, const char* op);  // `op` outlives the process's work
    // Orders the thread's stream after the queued work, unless go_on() was called.
    ~Exchange();
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;
    // Leaves the queued work asynchronous until finish(ticket).
    void go_on(const void* ticket);

   private:
    DeviceComm* comm_;
    std::optional<OnStream> on_stream_;
    bool goes_on_ = false;
  };
  // Orders the calling thread's stream after the ticket's exchange.
  void finish(const void* ticket);
  // finish() for all exchanges of all devices, repeatable. Errors of streams are known already.
  static void wait_for_all() noexcept;

 private:
  DeviceComm(Communicator&, int device, const char* op);
  uint64_t wait() override;
  std::string name(uint64_t wait) override;
  std::string failure() override;
  void abort() override;

  Communicator& comm_;
  int device_;
  size_t round_ = 0;
  Comm nccl_ = nullptr;
  Stream stream_;
  std::mutex mutex_;
  std::map<const void*, Event> going_on_;             // event after each operation, by ticket
  uint64_t waits_ = 0;                                // queued waits
  std::atomic<uint64_t> begun_ = 0, ended_ = 0;       // numbers of waits begun and ended
  std::array<std::atomic<const char*>, 64> names_{};  // ops of the last 64 waits
};

}  // namespace tg::cuda::nccl
