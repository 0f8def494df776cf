// Runs an Executable as one recording (a CUDA graph).
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/executable.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

namespace tg::detail {

// Whether the recording uses a copy of r: for small moving tensors a copy costs less than recording again.
bool Executable::copied(const MemorySource& r, Memory& m) {
  constexpr size_t kMost = 64 << 10;
  using enum MemorySource::Kind;
  const bool moves = launches_ > 0 && m.data != m.storage->data;
  if (recording_ && (m.copy || moves) && (r.kind == input || r.kind == per_run) && !r.patch_sites.empty() &&
      m.storage->bytes <= kMost) {
    if (m.copy && m.copy->bytes >= m.storage->bytes) return true;
    copied_bytes_ += m.storage->bytes - (m.copy ? m.copy->bytes : 0);
    m.copy = make_ref<Storage>(plan_.calls[0].device, m.storage->bytes);  // a recording has one device
  } else if (m.copy) {
    copied_bytes_ -= m.copy->bytes;
    m.copy = nullptr;
  }
  return bool(m.copy);
}
void Executable::copy_moved(MemorySource::Kind kind) {
  const bool in = kind == MemorySource::Kind::input;
  for (const uint32_t i : plan_.moving_sources)
    if (const Memory& m = memory_[i]; m.copy && plan_.sources[i].kind == kind) {
      const Device d = plan_.calls[0].device;
      detail::runtime_of(d).copy(d.index, in ? m.copy->data : m.storage->data, in ? m.storage->data : m.copy->data,
                                 m.storage->bytes);
    }
}

void Executable::run_singly(std::string why) {
  recording_ = nullptr;
  why_not_ = std::move(why);
  std::fputs(fmt::format("[compile] {} ops run one by one, not as one graph: {}\n", ops(), why_not_).c_str(), stderr);
}
std::vector<CallOrder> Executable::order_of_calls() const {
  std::vector<Access> all;
  for (uint32_t i = 0; i < memory_.size(); ++i) {
    const MemorySource& r = plan_.sources[i];
    const Storage& memory = *memory_[i].storage;
    // Fixed memory has slices of shared blocks; other memory is disjoint unless donated.
    const bool fixed = r.kind == MemorySource::Kind::fixed;
    const uint32_t of = fixed ? kNone : r.kind == MemorySource::Kind::donated ? r.index : i;
    const uintptr_t begin = fixed ? reinterpret_cast<uintptr_t>(memory.data) : 0;
    for (const MemorySource::Entry& e : r.patch_sites)
      all.push_back({e.call, of, begin, begin + std::max<size_t>(memory.bytes, 1), e.writes});
  }
  constexpr uint32_t kMessages = kNone - 1;  // fake memory: orders communicating calls
  for (uint32_t k = 0; k < ops(); ++k)
    if (const Op* op = plan_.calls[k].op; op && op->traits().communicates) all.push_back({k, kMessages, 0, 1, true});
  std::ranges::stable_sort(all, {}, &Access::call);
  return find_branches(ops(), all);
}
void Executable::start_recording() {
  const Device d = plan_.calls[0].device;
  if (!std::ranges::all_of(plan_.calls, [&](const KernelCall& c) { return c.device == d; }))
    return run_singly("its ops run on several devices");
  const bool branches = enabled_passes() & kBranches;
  recording_ = detail::runtime_of(d).recording(d.index, branches ? order_of_calls() : std::vector<CallOrder>(ops()),
                                               [this](size_t k) {
                                                 now_ = k;
                                                 const NowRunning run(plan_.calls[k]);
                                                 run_kernel(plan_.calls[k]);
                                               });
  if (!recording_) why_not_ = fmt::format("{} does not record runs", d);
}
// False, without a recording, if updates failed too often.
bool Executable::record_changes(bool fresh) {
  constexpr int kMost = 4;
  const uint64_t profiler = g_profiling.load(std::memory_order_relaxed);
  const bool learns = profiler && profiler != profiler_;  // learns ops while recording
  if (learns) profiler_ = profiler;
  std::ranges::sort(changed_);
  changed_.erase(std::ranges::unique(changed_).begin(), changed_.end());
  const bool few = 2 * changed_.size() <= ops();
  const auto updated = [&] {
    const size_t n = few ? recording_->record(changed_) : 0;
    recorded_ += n;
    return n > 0;
  };
  failures_ = uint8_t(failures_ << 1);
  bool all = fresh || learns;
  if (!all && !changed_.empty() && !updated()) {
    if (std::popcount(++failures_) >= kMost) {
      if (!recording_->flatten()) {
        run_singly(fmt::format("{} of its {} ops had {}, in {} of 8 runs", changed_.size(), ops(),
                               few ? "other kernels" : "other arguments", kMost));
        return false;
      }
      failures_ = 0;
    }
    all = true;
  }
  if (all) recording_->record(), recorded_ += ops();
  changed_.clear();
  return true;
}
// Records from the third run on: kernels are loaded, algorithms chosen, caches filled. False if it did not run.
bool Executable::call_as_one() {
  if (!why_not_.empty() || runs_ < 3 || !ops()) return false;
  try {
    now_ = ops();
    const bool fresh = !recording_;
    if (fresh) start_recording();
    if (!recording_ || !record_changes(fresh)) return false;
  } catch (const Error& e) {
    if (std::exchange(retried_, true))
      run_singly(now_ < ops() ? fmt::format("{} cannot be recorded: {}", plan_.calls[now_].name, e.what()) : e.what());
    else
      recording_ = nullptr;  // single kernels load what the capture could not
    return false;
  }
  if (!recording_->launch()) {
    run_singly("it was recorded for another stream");
    return false;
  }
  ++launches_;
  return true;
}

}  // namespace tg::detail
