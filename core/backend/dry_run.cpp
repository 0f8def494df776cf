#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

namespace tg {
namespace detail {
class DryRun {
 public:
  std::array<std::unique_ptr<BackendRuntime>, kBackends> runtimes;
  int64_t blocks = 0;  // live tensors
  bool running = true;
  void end_if_unused() {  // the last tensor that outlives the run deletes it
    if (!running && blocks == 0) delete this;
  }
};

namespace {
constexpr int64_t kMostBytes = int64_t(1) << 62;  // sums cannot overflow
constexpr uintptr_t kNowhere = 4096;              // aligned, not null, never mapped

class DryAllocator final : public Allocator {
 public:
  explicit DryAllocator(DryRun& run) : run_(run) {}
  void* allocate(size_t bytes) override {
    TG_CHECK(bytes <= size_t(kMostBytes - stats_.live), memory,
             "[dry_run] cannot allocate {} bytes next to {} live ones: together more than 2^62, which no device has. "
             "Make sizes smaller.",
             bytes, stats_.live);
    stats_.live += int64_t(bytes);
    stats_.total = std::min(stats_.total, INT64_MAX - int64_t(bytes)) + int64_t(bytes);
    stats_.peak = std::max(stats_.peak, stats_.live);
    ++run_.blocks;
    return reinterpret_cast<void*>(kNowhere);
  }
  void deallocate(void*, size_t bytes) noexcept override {
    stats_.live -= int64_t(bytes);
    --run_.blocks;
    run_.end_if_unused();
  }
  MemoryStats stats() const override { return stats_; }
  void reset_peak() override { stats_.peak = stats_.live; }
  void empty_cache() override {}

 private:
  DryRun& run_;
  MemoryStats stats_;
};

class DryRuntime final : public BackendRuntime {
 public:
  DryRuntime(BackendRuntime& real, DryRun& run) : real_(real), run_(run) {}
  int device_count() const override { return real_.device_count(); }
  std::string describe(int index) const override { return real_.describe(index); }
  size_t memory(int index) const override { return real_.memory(index); }
  Allocator& allocator(int index) override { return allocators_.try_emplace(index, run_).first->second; }
  bool runs_in_chains(const Op& op) override { return real_.runs_in_chains(op); }
  void synchronize(int) override {}
  void copy(int, void*, const void*, size_t) override {}
  void copy_from_host(int, void*, const void*, size_t) override {}
  void copy_to_host(int, void* to, const void*, size_t bytes) override { std::memset(to, 0, bytes); }

 private:
  BackendRuntime& real_;
  DryRun& run_;
  std::map<int, DryAllocator> allocators_;  // indexed by device
};
}  // namespace

constinit thread_local DryRun* t_dry_run = nullptr;
BackendRuntime& dry_runtime(Backend b, BackendRuntime& real) {
  auto& r = t_dry_run->runtimes[size_t(b)];
  if (!r) r = std::make_unique<DryRuntime>(real, *t_dry_run);
  return *r;
}
}  // namespace detail

void dry_run(const std::function<void()>& f) {
  using detail::DryRun, detail::t_dry_run;
  struct Inside {
    DryRun* const run = new DryRun;
    DryRun* const previous = std::exchange(t_dry_run, run);
    ~Inside() {
      t_dry_run = previous;
      run->running = false;
      run->end_if_unused();
    }
  } const inside;
  f();
  TG_CHECK(inside.run->blocks == 0, state,
           "[dry_run] {} tensors outlive the function, but they have no elements. Return numbers, and do not assign to "
           "tensors from outside.",
           inside.run->blocks);
}
}  // namespace tg
