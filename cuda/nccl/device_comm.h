// Ranks of a Communicator on their GPUs: device memory from rank to rank, on a separate stream.
//
// Not captured into CUDA graphs; compiled functions run these ops one by one. NCCL ties buffers to the captured graph,
// but a recording (recording.h) captures calls separately and replaces copies in a graph. Untested on GPUs.
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
  // This device's instance; null for one rank. All ranks must make the first call. Never destroyed: ranks may end at
  // different times. An Error without NCCL, or if `op` is recorded.
  static DeviceComm* of(Communicator&, int device, const char* op);

  int rank() const { return comm_.rank(); }
  // Bytes sent at once: half the smallest L2 of all ranks, so that a kernel finds the previous one's writes there.
  size_t round() const { return round_; }

  // Part r of a buffer begins at r * stride and has bytes[r] bytes, the same on all ranks.
  using Sizes = std::span<const size_t>;
  // Part r of `from` goes to rank r, rank r's to `to` + r * stride. Needs an Exchange.
  void all_to_all(const std::byte* from, std::byte* to, Sizes bytes, size_t stride, const char* op);
  void all_gather(std::byte* row, Sizes bytes, size_t stride, const char* op);

  // Scope: the thread launches into the communication stream, after its own stream's work. Host functions there tell
  // the watch of waits, because the host is ahead. No-op for null.
  class Exchange {
   public:
    Exchange(DeviceComm*, const char* op);  // `op` outlives the queued work
    // Orders the thread's stream after the work, unless go_on() was called.
    ~Exchange();
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;
    // Leaves the work asynchronous until finish(ticket).
    void go_on(const void* ticket);

   private:
    DeviceComm* comm_;
    std::optional<OnStream> on_stream_;
    bool goes_on_ = false;
  };
  void finish(const void* ticket);
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
  std::atomic<uint64_t> begun_ = 0, ended_ = 0;       // waits begun, ended
  std::array<std::atomic<const char*>, 64> names_{};  // ops of the last waits
};

}  // namespace tg::cuda::nccl
