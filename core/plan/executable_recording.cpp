// Runs an Executable as one recording (a CUDA graph).
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/executable.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

namespace tg::detail {

// Whether r has a copy that the recording uses. Small tensors that move between runs get one: copying costs less than
// recording their ops again.
bool Executable::copied(MemorySource& r) {
  constexpr size_t kMost = 64 << 10;
  using enum MemorySource::Kind;
  const bool moves = launches_ > 0 && r.data != r.storage->data;
  if (recording_ && (r.copy || moves) && (r.kind == input || r.kind == per_run) && !r.patch_sites.empty() &&
      r.storage->bytes <= kMost) {
    if (r.copy && r.copy->bytes >= r.storage->bytes) return true;
    bytes_ += r.storage->bytes - (r.copy ? r.copy->bytes : 0);
    r.copy = make_ref<Storage>(calls_[0].device, r.storage->bytes);  // a recording has one device
  } else if (r.copy) {
    bytes_ -= r.copy->bytes;
    r.copy = nullptr;
  }
  return bool(r.copy);
}
void Executable::copy_moved(MemorySource::Kind kind) {
  const bool in = kind == MemorySource::Kind::input;
  for (const uint32_t i : moving_sources_)
    if (const MemorySource& r = sources_[i]; r.copy && r.kind == kind) {
      const Device d = calls_[0].device;
      runtime_of(d).copy(d.index, in ? r.copy->data : r.storage->data, in ? r.storage->data : r.copy->data,
                         r.storage->bytes);
    }
}

void Executable::run_singly(std::string why) {
  recording_ = nullptr;
  why_not_ = std::move(why);
  std::fputs(fmt::format("[compile] {} ops run one by one, not as one graph: {}\n", calls_.size(), why_not_).c_str(),
             stderr);
}
std::vector<CallOrder> Executable::order_of_calls() const {
  std::vector<Access> all;
  for (uint32_t i = 0; i < sources_.size(); ++i) {
    const MemorySource& r = sources_[i];
    // Fixed memory consists of slices of shared blocks. Other memory is disjoint, except donated memory.
    const bool fixed = r.kind == MemorySource::Kind::fixed;
    const uint32_t of = fixed ? kNone : r.kind == MemorySource::Kind::donated ? r.index : i;
    const uintptr_t begin = fixed ? reinterpret_cast<uintptr_t>(r.data) : 0;
    for (const MemorySource::Entry& e : r.patch_sites)
      all.push_back({e.call, of, begin, begin + std::max<size_t>(r.storage->bytes, 1), e.writes});
  }
  constexpr uint32_t kMessages = kNone - 1;  // fake memory that orders communicating calls
  for (uint32_t k = 0; k < calls_.size(); ++k)
    if (!calls_[k].chain && ops_[calls_[k].op]->traits().communicates) all.push_back({k, kMessages, 0, 1, true});
  std::ranges::stable_sort(all, {}, &Access::call);
  return find_branches(calls_.size(), all);
}
void Executable::start_recording() {
  const Device d = calls_[0].device;
  if (!std::ranges::all_of(calls_, [&](const Call& c) { return c.device == d; })) {
    return run_singly("its ops run on several devices");
  }
  const bool branches = enabled_passes() & kBranches;
  recording_ = runtime_of(d).recording(d.index, branches ? order_of_calls() : std::vector<CallOrder>(calls_.size()),
                                       [this](size_t k) {
                                         now_ = k;
                                         const NowRunning run(calls_[k].name, calls_[k].scope, calls_[k].range);
                                         call(calls_[k]);
                                       });
  if (!recording_) why_not_ = fmt::format("{} does not record runs", d);
}
void Executable::record_all() {
  recording_->record();
  recorded_ += calls_.size();
}
// Returns false, without a recording, if updates failed too often.
bool Executable::record_changes(bool fresh) {
  constexpr int kMost = 4;
  const uint64_t profiler = g_profiling.load(std::memory_order_relaxed);
  const bool learns = profiler && profiler != profiler_;  // it learns the ops while they are recorded
  if (learns) profiler_ = profiler;
  std::ranges::sort(changed_);
  changed_.erase(std::ranges::unique(changed_).begin(), changed_.end());
  const bool few = 2 * changed_.size() <= calls_.size();
  const auto updated = [&] {
    const size_t n = few ? recording_->record(changed_) : 0;
    recorded_ += n;
    return n > 0;
  };
  failures_ = uint8_t(failures_ << 1);
  if (fresh || learns) {
    record_all();
  } else if (!changed_.empty() && !updated()) {
    if (std::popcount(++failures_) >= kMost) {
      if (!recording_->flatten()) {
        run_singly(fmt::format("{} of its {} ops had {}, in {} of 8 runs", changed_.size(), calls_.size(),
                               few ? "other kernels" : "other arguments", kMost));
        return false;
      }
      failures_ = 0;
    }
    record_all();
  }
  changed_.clear();
  return true;
}
// Records from the third run on: by then kernels are loaded, algorithms chosen and memory caches filled. Returns false
// if it did not run.
bool Executable::call_as_one() {
  if (!why_not_.empty() || runs_ < 3 || calls_.empty()) return false;
  try {
    now_ = calls_.size();
    const bool fresh = !recording_;
    if (fresh) start_recording();
    if (!recording_ || !record_changes(fresh)) return false;
  } catch (const Error& e) {
    if (std::exchange(retried_, true))
      run_singly(now_ < calls_.size() ? fmt::format("{} cannot be recorded: {}", calls_[now_].name, e.what())
                                      : e.what());
    else
      recording_ = nullptr;  // this run loads what the capture could not
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
