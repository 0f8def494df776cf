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

Staging::~Staging() { (void)cudaFreeHost(ring_); }
bool Staging::open() {
  void* p = ring_;
  if (!p && cudaMallocHost(&p, size_) != cudaSuccess) (void)cudaGetLastError();
  ring_ = static_cast<std::byte*>(p);
  return ring_;
}
std::byte* Staging::reserve(size_t n) {
  constexpr size_t kMostTransfers = 64;
  begin_ = end_;
  if (begin_ % size_ + n > size_) begin_ += size_ - begin_ % size_;  // no segment wraps around
  end_ = begin_ + (n + 255) / 256 * 256;
  while (!transfers_.empty() && (end_ - transfers_.front().begin > size_ || transfers_.size() == kMostTransfers)) {
    transfers_.front().done.synchronize();
    spare_.push_back(std::move(transfers_.front().done));
    transfers_.pop_front();
  }
  return ring_ + begin_ % size_;
}
void Staging::used(cudaStream_t stream) {
  if (spare_.empty()) spare_.emplace_back();
  spare_.back().record(stream);
  transfers_.push_back({begin_, std::move(spare_.back())});
  spare_.pop_back();
}

void Staging::to_device(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (!open()) {
    copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
    check(cudaStreamSynchronize(stream), "copy", kTo);
    return;
  }
  for (size_t at = 0; at < bytes; at += chunk_) {
    const size_t n = std::min(chunk_, bytes - at);
    std::byte* const pinned = reserve(n);
    std::memcpy(pinned, static_cast<const std::byte*>(from) + at, n);
    copy(static_cast<std::byte*>(to) + at, pinned, n, cudaMemcpyHostToDevice, stream);
    used(stream);
  }
}

void Staging::to_host(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (bytes < chunk_ || !open()) {
    copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
    check(cudaStreamSynchronize(stream), "copy", kFrom);
    return;
  }
  const auto fetch = [&](size_t at) {
    std::byte* const pinned = reserve(std::min(chunk_, bytes - at));
    copy(pinned, static_cast<const std::byte*>(from) + at, std::min(chunk_, bytes - at), cudaMemcpyDeviceToHost,
         stream);
    used(stream);
    return pinned;
  };
  const std::byte* ready = fetch(0);
  for (size_t at = 0; at < bytes; at += chunk_) {
    transfers_.back().done.synchronize();
    const std::byte* const next = at + chunk_ < bytes ? fetch(at + chunk_) : nullptr;
    std::memcpy(static_cast<std::byte*>(to) + at, ready, std::min(chunk_, bytes - at));
    ready = next;
  }
}

}  // namespace tg::cuda
