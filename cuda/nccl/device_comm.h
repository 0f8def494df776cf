// The ranks of a Communicator on their GPUs: bytes of device memory from rank to rank, in a stream of their own beside
// the one that computes. For the kernels of ops/training/collective.h.
//
// What it queues is not captured into CUDA graphs, and neither are the ops that use it: NCCL ties the buffers of
// what it captures to the captured graph, while a recording (recording.h) captures each call alone, adds copies of
// it to a graph and replaces them there. No GPU has shown that the two go together. Compiled functions with such
// an op run op by op.
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
  // Of this rank's device: made at the first call, in which all ranks meet, and never ended, as the ranks may end at
  // different times. Null for a world of one, which needs no NCCL. An Error if there is no NCCL, or if `op` is
  // recorded.
  static DeviceComm* of(Communicator&, int device, const char* op);

  int rank() const { return comm_.rank(); }
  // Bytes that a rank sends at once: half of the smallest L2 cache of all ranks, so that what one kernel writes the
  // next finds there.
  size_t round() const { return round_; }

  // Rows of a part for each rank: part r begins at r * stride and has bytes[r] bytes, on all ranks the same.
  using Sizes = std::span<const size_t>;
  // Sends part r of `from` to rank r, and gets this rank's part of rank r to `to` + r * stride.
  // To be called during an Exchange.
  void all_to_all(const std::byte* from, std::byte* to, Sizes bytes, size_t stride, const char* op);
  // In place: this rank's shard of `row` is filled, the others are received. To be called during an Exchange.
  void all_gather(std::byte* row, Sizes bytes, size_t stride, const char* op);

  // Scope: launches of the calling thread go to the communication stream, ordered after the work already in its own
  // stream. Host functions in the stream tell the watch of the wait, because the host is ahead of the stream. Null: no
  // scope.
  class Exchange {
   public:
    Exchange(DeviceComm*, const char* op);  // `op` lives as long as the process
    ~Exchange();                            // the thread's own stream waits for what was queued, unless that goes on
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;
    // What was queued goes on until finish(ticket).
    void go_on(const void* ticket);

   private:
    DeviceComm* comm_;
    std::optional<OnStream> on_stream_;
    bool goes_on_ = false;
  };
  // The calling thread's stream waits for the asynchronous exchange of this ticket.
  void finish(const void* ticket);
  // The same for all that go on, of all devices; they may be finished again. Errors are those of the stream, which are
  // known already.
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
  std::map<const void*, Event> going_on_;             // their ends, by tickets
  uint64_t waits_ = 0;                                // that were queued
  std::atomic<uint64_t> begun_ = 0, ended_ = 0;       // of them
  std::array<std::atomic<const char*>, 64> names_{};  // of the last
};

}  // namespace tg::cuda::nccl
