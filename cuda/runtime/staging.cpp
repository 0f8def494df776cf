#include <tapegrad/cuda/runtime/staging.h>

#include <algorithm>
#include <cstring>

namespace tg::cuda {
namespace {

constexpr const char *kTo = "copying from the host", *kFrom = "copying to the host";

void copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
  check(cudaMemcpyAsync(to, from, bytes, kind, s), "copy", kind == cudaMemcpyHostToDevice ? kTo : kFrom);
}

}  // namespace

Staging::~Staging() {
  for (const Slot& s : slots_) (void)cudaFreeHost(s.pinned);
}
bool Staging::open() {
  while (slots_.size() < count_) {
    void* p = nullptr;
    if (cudaMallocHost(&p, chunk_) != cudaSuccess) {
      (void)cudaGetLastError();
      break;
    }
    slots_.push_back({p, Event()});
  }
  return !slots_.empty();
}

void Staging::to_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (bytes < chunk_ || !open()) {
    copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
  } else {
    for (size_t at = 0, k = 0; at < bytes; at += chunk_, ++k) {
      const Slot& slot = slots_[k % slots_.size()];
      const size_t n = std::min(chunk_, bytes - at);
      if (k >= slots_.size()) slot.done.synchronize();  // its last chunk has left it
      std::memcpy(slot.pinned, static_cast<const std::byte*>(from) + at, n);
      copy(static_cast<std::byte*>(to) + at, slot.pinned, n, cudaMemcpyHostToDevice, stream);
      slot.done.record(stream);
    }
  }
  check(cudaStreamSynchronize(stream), "copy", kTo);
}

void Staging::to_host(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (bytes < chunk_ || !open()) {
    copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
    check(cudaStreamSynchronize(stream), "copy", kFrom);
    return;
  }
  const size_t chunks = (bytes + chunk_ - 1) / chunk_;
  const auto size_of_chunk = [&](size_t k) { return std::min(chunk_, bytes - k * chunk_); };
  const auto fetch = [&](size_t k) {
    const Slot& slot = slots_[k % slots_.size()];
    copy(slot.pinned, static_cast<const std::byte*>(from) + k * chunk_, size_of_chunk(k), cudaMemcpyDeviceToHost,
         stream);
    slot.done.record(stream);
  };
  for (size_t k = 0; k < std::min(chunks, slots_.size()); ++k) fetch(k);
  for (size_t k = 0; k < chunks; ++k) {
    const Slot& slot = slots_[k % slots_.size()];
    slot.done.synchronize();
    std::memcpy(static_cast<std::byte*>(to) + k * chunk_, slot.pinned, size_of_chunk(k));
    if (k + slots_.size() < chunks) fetch(k + slots_.size());
  }
}

}  // namespace tg::cuda
