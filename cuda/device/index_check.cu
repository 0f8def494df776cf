#include <tapegrad/cuda/device/index_check.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

namespace tg::cuda {
namespace {
struct Logs {
  std::mutex mutex;
  std::vector<std::optional<IndexLog>> of_device;
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<IndexSite>> sites;
};
Logs& logs() {
  static auto& l = *new Logs;  // leaked
  return l;
}
void clear(const IndexLog& log, int device) {
  std::fill_n(log.entries, IndexLog::kEntries, IndexLog::Entry{});
  const cudaStream_t s = stream_of(device);
  check(cudaMemsetAsync(&log.counters->least, 0xff, sizeof log.counters->least, s), "index_check", "clearing");
  check(cudaMemsetAsync(&log.counters->used, 0, sizeof log.counters->used, s), "index_check", "clearing");
}
IndexLog open_log(int device) {
  IndexLog log{};
  check(cudaMallocHost(&log.entries, IndexLog::kEntries * sizeof(IndexLog::Entry)), "index_check", "pinned memory");
  check(cudaMalloc(&log.counters, sizeof(IndexLog::Counters)), "index_check", "memory");
  clear(log, device);
  return log;
}
const IndexSite* interned(Logs& all, const IndexSite& s) {
  StructuralHash k;
  k.add(reinterpret_cast<const void*>(s.error)), k.add(s.op.data()), k.add(s.index.shape);
  k.add(int(s.index.dtype)), k.add(uint64_t(s.dim)), k.add(s.size);
  k.add(s.ignore.has_value()), k.add(s.ignore.value_or(0));
  auto& site = all.sites[{k.a, k.b}];
  if (!site) site = std::make_unique<IndexSite>(s);
  return site.get();
}
}  // namespace

IndexCheck::IndexCheck(const Context& c, const IndexSite& s) : size_(s.size) {
  static std::atomic<uint64_t> calls{0};
  key_ = calls.fetch_add(1, std::memory_order_relaxed) << 40;
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  const auto device = size_t(c.device.index);
  if (all.of_device.size() <= device) all.of_device.resize(device + 1);
  auto& log = all.of_device[device];
  if (!log) log = open_log(c.device.index);
  log_ = *log;
  site_ = interned(all, s);
}

void throw_bad_index(int device) {
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  if (all.of_device.size() <= size_t(device) || !all.of_device[size_t(device)]) return;
  const IndexLog& log = *all.of_device[size_t(device)];
  const IndexLog::Entry* first = nullptr;
  for (const IndexLog::Entry& e : std::span(log.entries, IndexLog::kEntries))
    if (e.site && (!first || e.key < first->key)) first = &e;
  if (!first) return;
  const IndexLog::Entry e = *first;
  clear(log, device);
  throw e.site->error(*e.site, e.position, e.value);
}

}  // namespace tg::cuda
