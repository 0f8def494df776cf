// Owners of a stream and an event.
#pragma once
#include <tapegrad/cuda/runtime/errors.h>

#include <utility>

namespace tg::cuda {

// Not synchronised with the legacy default stream.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream", "making a stream"); }
  ~Stream() {
    if (stream_) (void)cudaStreamDestroy(stream_);  // queued work still runs
  }
  Stream(Stream&& o) noexcept : stream_(std::exchange(o.stream_, nullptr)) {}
  Stream& operator=(Stream&& o) noexcept { return std::swap(stream_, o.stream_), *this; }
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "synchronize", "waiting for a stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in a stream, without timing; reached until the first record().
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event", "making an event"); }
  ~Event() {
    if (event_) (void)cudaEventDestroy(event_);
  }
  Event(Event&& o) noexcept : event_(std::exchange(o.event_, nullptr)) {}
  Event& operator=(Event&& o) noexcept { return std::swap(event_, o.event_), *this; }
  operator cudaEvent_t() const { return event_; }
  void record(cudaStream_t s) const { check(cudaEventRecord(event_, s), "event", "recording an event"); }
  void synchronize() const { check(cudaEventSynchronize(event_), "event", "waiting for an event"); }
  // Delays the stream, not the host.
  void wait_in(cudaStream_t s) const { check(cudaStreamWaitEvent(s, event_, 0), "event", "ordering two streams"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tg::cuda
