// Records arrive in no order. A kernel has the id of its launching API call, whose record has the id of its range (the
// "external correlation"). A graph's kernel has the ids of the launch and of its node. A node's op is noted at capture
// (running()), and copied with the node.
#include <tapegrad/core/check.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/op.h>
#include <tapegrad/cuda/profile/cupti_api.h>
#include <tapegrad/cuda/profile/profiler.h>

#ifndef TG_HAS_CUPTI
namespace tg::cuda {
std::unique_ptr<detail::DeviceProfiler> make_profiler() {
  throw Error(
      Error::Kind::cuda,
      "[profiler] this build has no CUPTI: its headers were missing. Install cuda-cupti-dev, and run cmake again.");
}
}  // namespace tg::cuda
#else
#include <cxxabi.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>
#include <unordered_map>
#include <unordered_set>

namespace tg::cuda {
using namespace detail;
#ifndef TG_CUDA_EMULATED
SharedLibrary& cupti_library() {  // leaked
  static auto& l = *new SharedLibrary(
      fmt::format("libcupti.so.{}", CUDART_VERSION / 1000), TG_CUPTI_LIBRARIES,
      fmt::format(
          "Profiles of a GPU need it. Install\n  apt install cuda-cupti-{0}-{1} | dnf install cuda-cupti-{0}-{1}\n"
          "of NVIDIA's repository",
          CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
  return l;
}
#endif
namespace {

#if !defined(TG_CUDA_EMULATED) && CUPTI_API_VERSION >= 130000
#define TG_SAME_PLACE(field) \
  static_assert(offsetof(CUpti_ActivityKernel9, field) == offsetof(CUpti_ActivityKernel10, field))
TG_SAME_PLACE(start);
TG_SAME_PLACE(end);
TG_SAME_PLACE(deviceId);
TG_SAME_PLACE(streamId);
TG_SAME_PLACE(correlationId);
TG_SAME_PLACE(name);
TG_SAME_PLACE(graphNodeId);
#undef TG_SAME_PLACE
static_assert(offsetof(CUpti_ActivityMemcpy5, graphNodeId) == offsetof(CUpti_ActivityMemcpy6, graphNodeId));
#endif

constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,           CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
constexpr auto kExternal = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
constexpr size_t kBuffer = 4 << 20, kAlign = 8;

std::string refusal(CUptiResult r, const char* what) {
  const char* text = nullptr;
  (void)cuptiGetResultString(r, &text);
  std::string way_out = "Run without a profiler, or see NVIDIA's manual of CUPTI for this error";
  if (r == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
    way_out =
        "The driver lets only administrators profile: set NVreg_RestrictProfilingToAdminUsers=0 for its module, "
        "or run as root";
  if (r == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
    way_out =
        "Another tool already profiles or debugs this process (nsys, ncu, a debugger): stop it, or use its report";
  return fmt::format("CUPTI refuses {}: {}. {}.", what, text ? text : "it gives no reason", way_out);
}
void check(CUptiResult r, const char* what) {
  if (r != CUPTI_SUCCESS) throw Error(Error::Kind::cuda, "[profiler] " + refusal(r, what));
}

std::string demangled(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string s = status == 0 ? text : name;
  std::free(text);
  constexpr std::string_view anonymous = "(anonymous namespace)::";
  for (size_t at; (at = s.find(anonymous)) != std::string::npos;) s.erase(at, anonymous.size());
  return s;
}

struct Link {
  uint32_t call;
  uint64_t node;
};
// Guarded by the mutex.
struct Arrived {
  std::mutex mutex;
  DeviceRecords records;
  int64_t behind = 0;   // CUPTI's clock behind the host's, in nanoseconds
  bool totals = false;  // keeps totals only
  std::vector<Link> kernels, copies;
  std::vector<std::pair<uint32_t, uint32_t>> calls;  // (correlation id, thread)
  std::vector<std::pair<DeviceCall, std::pair<uint32_t, uint32_t>>> driver_calls;
  std::unordered_map<uint32_t, uint64_t> ranges;  // range by call
  std::unordered_map<uint64_t, Running> nodes;
  std::unordered_map<std::string, std::string_view> names;                     // demangled, never freed
  std::unordered_map<uint32_t, std::string_view> runtime_names, driver_names;  // names by id
  bool keeps_calls_of(std::string_view name) const {
    return name != "cudaGetLastError" && name != "cudaPeekAtLastError" && name != "cudaGetDevice";
  }
};
Arrived& arrived() {  // leaked: CUPTI's threads may call until exit
  static auto& a = *new Arrived;
  return a;
}

std::string_view call_name(std::unordered_map<uint32_t, std::string_view>& known, CUpti_CallbackDomain d, uint32_t id) {
  std::string_view& name = known[id];
  if (name.empty()) {
    const char* text = nullptr;
    (void)cuptiGetCallbackName(d, id, &text);
    std::string s = text ? text : fmt::format("call {}", id);
    if (const size_t v = s.rfind("_v"); v != std::string::npos && s.find_first_not_of("0123456789", v + 2) == s.npos)
      s.resize(v);  // cudaLaunchKernel_v7000
    name = *tg::detail::intern(s);
  }
  return name;
}
template <class R> Profile::Copy copy_of(const R& r, Profile::Copy::Kind kind) {
  return {.kind = kind,
          .device = Device::cuda(int(r.deviceId)),
          .track = r.streamId,
          .bytes = int64_t(r.bytes),
          .begin = int64_t(r.start),
          .end = int64_t(r.end),
          .range = Profile::kNone,
          .path = nullptr,
          .in_graph = r.graphNodeId != 0};
}
void take(Arrived& a, const CUpti_ActivityKernel9& k) {
  const auto [name, fresh] = a.names.try_emplace(k.name ? k.name : "a kernel without a name");
  if (fresh) name->second = *tg::detail::intern(demangled(name->first.c_str()));
  if (a.totals) return add_to(a.records.kernel_totals, name->second, int64_t(k.end - k.start));
  a.records.kernels.push_back({{.name = name->second,
                                .device = Device::cuda(int(k.deviceId)),
                                .track = k.streamId,
                                .begin = int64_t(k.start),
                                .end = int64_t(k.end),
                                .range = Profile::kNone,
                                .op = {},
                                .path = nullptr,
                                .layer = nullptr,
                                .in_graph = k.graphNodeId != 0},
                               0,
                               false});
  a.kernels.push_back({k.correlationId, k.graphNodeId});
}
void take(Arrived& a, const CUpti_ActivityMemcpy5& c) {
  if (a.totals) return;
  using Kind = Profile::Copy::Kind;
  const Kind kind = c.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? Kind::host_to_device
                    : c.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? Kind::device_to_host
                                                                    : Kind::device_to_device;
  a.records.copies.push_back({copy_of(c, kind), 0, false});
  a.copies.push_back({c.correlationId, c.graphNodeId});
}
void take(Arrived& a, const CUpti_ActivityMemset4& c) {
  if (a.totals) return;
  a.records.copies.push_back({copy_of(c, Profile::Copy::Kind::set), 0, false});
  a.copies.push_back({c.correlationId, c.graphNodeId});
}
void take(Arrived& a, const CUpti_ActivityAPI& c) {
  const bool runtime = c.kind == CUPTI_ACTIVITY_KIND_RUNTIME;
  const std::string_view name = runtime ? call_name(a.runtime_names, CUPTI_CB_DOMAIN_RUNTIME_API, c.cbid)
                                        : call_name(a.driver_names, CUPTI_CB_DOMAIN_DRIVER_API, c.cbid);
  const DeviceCall call{{name, Backend::cuda, c.threadId, int64_t(c.start), int64_t(c.end), Profile::kNone}, 0};
  if (runtime && a.totals) {
    if (a.keeps_calls_of(name)) add_to(a.records.call_totals, name, int64_t(c.end - c.start));
  } else if (runtime && a.keeps_calls_of(name)) {
    a.records.calls.push_back(call);
    a.calls.emplace_back(c.correlationId, c.threadId);
  } else if (!runtime && !a.totals && name.starts_with("cuLaunchKernel")) {
    a.driver_calls.push_back({call, {c.correlationId, c.threadId}});
  }
}
void take(Arrived& a, CUpti_Activity* r) {
  switch (r->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return take(a, *reinterpret_cast<CUpti_ActivityKernel9*>(r));
    case CUPTI_ACTIVITY_KIND_MEMCPY: return take(a, *reinterpret_cast<CUpti_ActivityMemcpy5*>(r));
    case CUPTI_ACTIVITY_KIND_MEMSET: return take(a, *reinterpret_cast<CUpti_ActivityMemset4*>(r));
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return take(a, *reinterpret_cast<CUpti_ActivityAPI*>(r));
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& x = *reinterpret_cast<CUpti_ActivityExternalCorrelation*>(r);
      if (x.externalKind == kExternal && !a.totals) a.ranges[x.correlationId] = x.externalId;
      return;
    }
    default: return;
  }
}

void buffer_wanted(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(::operator new(kBuffer, std::align_val_t(kAlign), std::nothrow));
  *size = *buffer ? kBuffer : 0;
  *most_records = 0;  // no limit
}
void buffer_full(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  Arrived& a = arrived();
  // Unlocked: CUPTI calls node_made() under its own lock.
  size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) != CUPTI_SUCCESS) dropped = 0;
  try {
    const std::lock_guard lock(a.mutex);
    CUpti_Activity* r = nullptr;
    while (valid && cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS) take(a, r);
    a.records.dropped += dropped;
  } catch (...) {  // out of memory
    ++a.records.dropped;
  }
  ::operator delete(buffer, std::align_val_t(kAlign));
}
void node_made(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
  const auto& graph =
      *static_cast<const CUpti_GraphData*>(static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor);
  Arrived& a = arrived();
  uint64_t node = 0, original = 0;
  if (cuptiGetGraphNodeId(graph.node, &node) != CUPTI_SUCCESS) return;
  const bool cloned = id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED;
  if (cloned && cuptiGetGraphNodeId(graph.originalNode, &original) != CUPTI_SUCCESS) return;
  try {
    const std::lock_guard lock(a.mutex);
    if (!cloned && !running().op.empty()) a.nodes[node] = running();
    if (const auto from = cloned ? a.nodes.find(original) : a.nodes.end(); from != a.nodes.end())
      a.nodes[node] = Running(from->second);
  } catch (...) {  // kernels of the node then have no op
  }
}
uint64_t timestamp() { return uint64_t(profiler_clock()); }

uint64_t range_of(const Arrived& a, uint32_t call) {
  const auto at = a.ranges.find(call);
  return at == a.ranges.end() ? 0 : at->second;
}
const Running* origin_of(const Arrived& a, uint64_t node) {
  const auto at = node ? a.nodes.find(node) : a.nodes.end();
  return at == a.nodes.end() ? nullptr : &at->second;
}
// Driver API launches outside runtime calls come from CUDA libraries.
void add_driver_calls(Arrived& a) {
  std::unordered_map<uint32_t, std::vector<std::pair<int64_t, int64_t>>> by_thread;
  std::unordered_set<uint32_t> numbers;
  for (size_t i = 0; i < a.calls.size(); ++i) {
    const Profile::Call& c = a.records.calls[i].call;
    by_thread[a.calls[i].second].emplace_back(c.begin, c.end);
    numbers.insert(a.calls[i].first);
  }
  for (auto& [thread, calls] : by_thread) std::ranges::sort(calls);
  for (const auto& [call, of] : a.driver_calls) {
    const auto& runtime = by_thread[of.second];
    const auto after = std::ranges::upper_bound(runtime, std::pair(call.call.begin, INT64_MAX));
    const bool inside = after != runtime.begin() && std::prev(after)->second >= call.call.end;
    if (inside || numbers.contains(of.first)) continue;
    a.records.calls.push_back(call);
    a.calls.push_back(of);
  }
}
DeviceRecords joined(Arrived& a) {
  add_driver_calls(a);
  DeviceRecords& r = a.records;
  for (size_t i = 0; i < r.calls.size(); ++i) r.calls[i].range = range_of(a, a.calls[i].first);
  size_t in_graphs = 0, known = 0;
  for (const Link& k : a.kernels) in_graphs += k.node != 0, known += origin_of(a, k.node) != nullptr;
  const bool by_op = 20 * known >= 19 * in_graphs;  // node ids may be wrong otherwise
  if (known < in_graphs)
    r.notes.push_back(fmt::format("{:.1f} % of the kernels of CUDA graphs ({} of {}) have an op{}",
                                  100 * double(known) / double(in_graphs), known, in_graphs,
                                  by_op ? "" : ", which is too few: all have their own names only"));
  for (size_t i = 0; i < r.kernels.size(); ++i) {
    r.kernels[i].range = range_of(a, a.kernels[i].call);
    const Running* const of = by_op ? origin_of(a, a.kernels[i].node) : nullptr;
    r.kernels[i].has_origin = of;
    if (!of) continue;
    r.kernels[i].kernel.op = of->op;
    r.kernels[i].kernel.layer = of->scope;
    r.kernels[i].kernel.path = of->range;
  }
  for (size_t i = 0; i < r.copies.size(); ++i) {
    r.copies[i].range = range_of(a, a.copies[i].call);
    const Running* const of = origin_of(a, a.copies[i].node);
    r.copies[i].has_origin = of;
    if (of) r.copies[i].copy.path = of->range;
  }
  const auto shift = [&](auto& x) { x.begin += a.behind, x.end += a.behind; };
  for (auto& c : r.calls) shift(c.call);
  for (auto& k : r.kernels) shift(k.kernel);
  for (auto& c : r.copies) shift(c.copy);
  return std::move(r);
}

class CuptiProfiler final : public DeviceProfiler {
 public:
  CuptiProfiler() {
    forget();
    check(cuptiSubscribe(&subscriber_, node_made, nullptr), "to be used");
    try {
      for (const CUpti_CallbackId id : {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED})
        note(cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, id),
             "to say which op a kernel of a graph belongs to");
      use_host_clock();
      check(cuptiActivityRegisterCallbacks(buffer_wanted, buffer_full), "to hand records over");
      for (const CUpti_ActivityKind k : kKinds) check(cuptiActivityEnable(k), "to record");
    } catch (...) {
      end();
      throw;
    }
  }
  ~CuptiProfiler() override { end(); }
  void enter(uint64_t range) override { (void)cuptiActivityPushExternalCorrelationId(kExternal, range); }
  void leave() override {
    uint64_t last = 0;
    (void)cuptiActivityPopExternalCorrelationId(kExternal, &last);
  }
  DeviceRecords finish() override {
    end();
    Arrived& a = arrived();
    const std::lock_guard lock(a.mutex);
    DeviceRecords r = joined(a);
    r.notes.insert(r.notes.end(), notes_.begin(), notes_.end());
#ifdef TG_CUDA_EMULATED
    if (!r.kernels.empty() || !r.copies.empty() || !r.kernel_totals.empty())
      r.notes.emplace_back(
          "the GPU is emulated: counts are true, times are those of the host and say nothing of a GPU");
#endif
    return r;
  }

 private:
  static void forget() {
    Arrived& a = arrived();
    const std::lock_guard lock(a.mutex);
    a.records = {};
    a.totals = profiler_keeps() == ProfileOptions::Keep::totals;
    a.kernels = {}, a.copies = {}, a.calls = {}, a.driver_calls = {};
    a.ranges = {}, a.nodes = {};
    a.behind = 0;
  }
  // Only a note: the profile is complete without this call.
  void note(CUptiResult r, const char* what) {
    if (r == CUPTI_SUCCESS) return;
    if (std::string text = refusal(r, what); std::ranges::find(notes_, text) == notes_.end())
      notes_.push_back(std::move(text));
  }
  // If refused, CUPTI's clock is compared with the host's once.
  void use_host_clock() {
    const CUptiResult r = cuptiActivityRegisterTimestampCallback(timestamp);
    if (r == CUPTI_SUCCESS) return;
    note(r, "the clock of the host, so its own times are shifted to it");
    // Narrowest of a few pairs of readings. The earlier one counts: no record ends after the profile.
    int64_t behind = 0, narrowest = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 8; ++i) {
      uint64_t own = 0;
      const int64_t before = profiler_clock();
      check(cuptiGetTimestamp(&own), "to say the time");
      if (const int64_t width = profiler_clock() - before; width < narrowest)
        narrowest = width, behind = before - int64_t(own);
    }
    Arrived& a = arrived();
    const std::lock_guard lock(a.mutex);
    a.behind = behind;
  }
  void end() noexcept {
    if (!subscriber_) return;
    (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    for (const CUpti_ActivityKind k : kKinds) (void)cuptiActivityDisable(k);
    (void)cuptiUnsubscribe(std::exchange(subscriber_, nullptr));
  }
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::vector<std::string> notes_;
};

}  // namespace

std::unique_ptr<DeviceProfiler> make_profiler() { return std::make_unique<CuptiProfiler>(); }

}  // namespace tg::cuda
#endif
