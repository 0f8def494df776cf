#include <tapegrad/core/check.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/profile/profiler_record.h>
#include <tapegrad/cuda/runtime/allocator.h>
#include <tapegrad/cuda/runtime/graph.h>
#include <tapegrad/cuda/runtime/recording.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/emulator.h>
#endif

namespace tg::cuda {
namespace {

// Red zone: the emulator catches overruns.
#ifdef TG_CUDA_EMULATED
constexpr size_t kRedZone = kBlockUnit;
void segment_made(void* p, size_t n) { simt::note_segment(p, n); }
#else
constexpr size_t kRedZone = 0;
void segment_made(void*, size_t) {}
#endif

constexpr size_t kMostBytes = size_t(1) << 47;  // exceeds address spaces: sums cannot overflow

std::string size_text(size_t bytes) {
  if (bytes < 1 << 10) return fmt::format("{} B", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", double(bytes) / (1 << 10));
  if (bytes < 1 << 30) return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
  return fmt::format("{:.2f} GiB", double(bytes) / (1 << 30));
}

cudaStream_t owner_of(const Block& b) { return static_cast<cudaStream_t>(const_cast<void*>(b.pool->owner)); }

// A capturing thread must declare that cudaMalloc does not depend on the capture.
class MayAllocate {
 public:
  MayAllocate() { exchange(); }
  ~MayAllocate() { exchange(); }
  MayAllocate(const MayAllocate&) = delete;
  MayAllocate& operator=(const MayAllocate&) = delete;

 private:
  void exchange() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

#ifdef TG_CUDA_EMULATED
void begin_use(void* p, size_t n, cudaStream_t s) { simt::note_allocated(p, n, s); }
void end_use(void* p, size_t n, cudaStream_t s) { simt::note_freed(p, n, s); }
#else
void begin_use(void*, size_t, cudaStream_t) {}
void end_use(void*, size_t, cudaStream_t) {}
#endif

void* DeviceAllocator::allocate(size_t bytes) {
  const cudaStream_t stream = stream_of(device_);
  Lock lock(mutex_);
  Block* b = take(bytes, stream, lock);
  begin_use(b->at, bytes, stream);
  return b->at;
}
void* DeviceAllocator::hold(size_t bytes, cudaStream_t stream) {
  const MayAllocate known;
  Lock lock(mutex_);
  return take(bytes, stream, lock)->at;
}
Block* DeviceAllocator::take(size_t bytes, cudaStream_t stream, Lock& lock) {
  if (bytes > kMostBytes) fail(bytes);
  Block* b = pool_.take(bytes + kRedZone, stream);
  if (!b) b = grow(bytes, stream, lock);
  b->asked = bytes;
  b->op = running().op;
  b->scope = running().scope ? running().scope : tg::detail::current_scope();
  b->label = nullptr;
  if (detail::profiling()) [[unlikely]]
    detail::note_memory(Device::cuda(device_), int64_t(bytes));
  stats_.live += int64_t(bytes);
  stats_.total += int64_t(bytes);
  stats_.peak = std::max(stats_.peak, stats_.live);
  return b;
}

void DeviceAllocator::deallocate(void* p, size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  Block* b = pool_.find(p);
  if (!b) return;
  const cudaStream_t owner = owner_of(*b);
  // The owner's stream waits for the others. Errors are ignored: the device is lost or the process ends.
  if (!users_.empty()) {
    const auto [first, last] = users_.equal_range(p);
    for (auto it = first; it != last; ++it)
      if (cudaEventRecord(*event_, it->second) == cudaSuccess) (void)cudaStreamWaitEvent(owner, *event_, 0);
    users_.erase(first, last);
  }
  end_use(p, bytes, owner);
  give(b, bytes);
}
void DeviceAllocator::give_back(void* p, size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (Block* b = pool_.find(p)) give(b, bytes);
}
void DeviceAllocator::give(Block* b, size_t bytes) {
  pool_.give(b);
  if (detail::profiling()) [[unlikely]]
    detail::note_memory(Device::cuda(device_), -int64_t(bytes));
  stats_.live -= int64_t(bytes);
}

void DeviceAllocator::used_on(const void* p, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const Block* b = pool_.find(p);
  TG_CHECK(b, internal, "[allocate] used_on({}): no block begins there. Pass what allocate() returned.", p);
  if (owner_of(*b) == stream) return;
  if (!event_) event_.emplace();
  const auto [first, last] = users_.equal_range(p);
  if (std::none_of(first, last, [&](const auto& u) { return u.second == stream; })) users_.emplace(p, stream);
}

void DeviceAllocator::name(const void* p, const std::string* label) {
  const std::lock_guard lock(mutex_);
  if (Block* b = pool_.find(p)) b->label = label;
}
MemoryStats DeviceAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  MemoryStats s = stats_;
  s.cached = int64_t(pool_.reserved() - pool_.in_use());
  return s;
}
void DeviceAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak = stats_.live;
}
DeviceAllocator::Counts DeviceAllocator::counts() const {
  const std::lock_guard lock(mutex_);
  return {int64_t(pool_.segments()), cuda_calls_};
}
void DeviceAllocator::empty_cache() {
  check_alive();
  TG_CHECK(
      !held_memory(), state,
      "[empty_cache] waits for the device, but recorded work runs later. Call it outside of the compiled function.");
  Lock lock(mutex_);
  release(lock);
}

void* DeviceAllocator::segment(size_t bytes) {
  void* p = nullptr;
  ++cuda_calls_;
  const cudaError_t e = cudaMalloc(&p, bytes);
  if (e == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(e, "allocate", "cudaMalloc");
  segment_made(p, bytes);
  return p;
}
Block* DeviceAllocator::grow(size_t asked, cudaStream_t stream, Lock& lock) {
  const size_t bytes = asked + kRedZone, least = BlockPool::least_segment(bytes);
  size_t size = pool_.next_segment(bytes, stream), free = 0, total = 0;
  void* p = segment(size);
  if (!p && size > least) p = segment(size = least);
  if (!p) {
    check(cudaMemGetInfo(&free, &total), "allocate", "reading the size of its memory");
    // cudaFree synchronises: illegal during this thread's capture.
    if (held_memory() || least > total) fail(asked);
    release(lock);
    p = segment(size);
    if (!p) fail(asked);
  }
  pool_.add_segment(p, size, bytes, stream);
  return pool_.take(bytes, stream);
}
void DeviceAllocator::release(Lock& lock) {
  // Bounds the wait: the capture may need our lock to end.
  constexpr std::chrono::seconds kMost{10};
  lock.unlock();
  const std::unique_lock alone(captures(), kMost);
  lock.lock();
  TG_CHECK(alone, state,
           "[empty_cache] another thread has recorded a graph for {} s, and memory cannot be freed meanwhile. Keep "
           "less memory in use, or set TG_CUDA_GRAPHS=0.",
           kMost.count());
  const auto segments = pool_.release();
  if (segments.empty()) return;
  check(cudaDeviceSynchronize(), "empty_cache", "waiting for kernels");
  for (void* p : segments) {
    ++cuda_calls_;
    check(cudaFree(p), "empty_cache", "cudaFree");
  }
}

// "64.0 MiB 'h.0.mlp.w'; 3 x 2.0 MiB by matmul in gpt.h.1"
std::string DeviceAllocator::largest_live() const {
  constexpr size_t kShown = 10;
  using What = std::tuple<size_t, const std::string*, std::string_view, const Scope*>;
  std::map<What, size_t, std::greater<>> groups;
  pool_.each_in_use([&](const Block& b) {
    if (b.label)
      ++groups[{b.asked, b.label, {}, nullptr}];
    else
      ++groups[{b.asked, nullptr, b.op, b.scope}];
  });
  std::string s;
  size_t shown = 0;
  for (const auto& [what, count] : groups) {
    if (shown++ == kShown) break;
    const auto& [bytes, label, op, scope] = what;
    s += fmt::format("\n    {}{}", count > 1 ? fmt::format("{} x ", count) : "", size_text(bytes));
    if (label) s += fmt::format(" '{}'", *label);
    if (!op.empty()) s += fmt::format(" by {}", op);
    if (scope && scope->parent) s += fmt::format(" in {}", scope->path());
  }
  return s;
}
void DeviceAllocator::fail(size_t bytes) const {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) (void)cudaGetLastError();
  const size_t cached = pool_.reserved() - pool_.in_use();
  std::string s = fmt::format(
      "[allocate] {} is out of memory: {} more{} does not fit. The card has {}, of which {} are free; {} are live in "
      "tensors of this process, and {} are cached in blocks of at most {}. ",
      Device::cuda(device_), size_text(bytes), running().op.empty() ? "" : fmt::format(" for {}", running().op),
      size_text(total), size_text(free), size_text(size_t(stats_.live)), size_text(cached),
      size_text(pool_.largest_free()));
  s += "Lower the batch size or the context length, recompute activations (checkpoint), or compute in bf16.";
  if (const std::string live = largest_live(); !live.empty()) s += " The largest live blocks:" + live;
  throw Error(Error::Kind::memory, s);
}

}  // namespace tg::cuda
