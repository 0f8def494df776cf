// A flush delivers records. CUDA libraries launch by driver calls, without the runtime.
#include <tapegrad/emulator/cupti.h>
#include <tapegrad/emulator/queue.h>
#include <tapegrad/emulator/symbolize.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <variant>

namespace simt::engine {
bool recording_activity;

namespace {
using Record = std::variant<CUpti_ActivityKernel9, CUpti_ActivityMemcpy5, CUpti_ActivityMemset4, CUpti_ActivityAPI,
                            CUpti_ActivityExternalCorrelation>;

struct State {
  CUptiResult answer = CUPTI_SUCCESS;
  std::string refuser;
  std::set<CUpti_ActivityKind> kinds;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  CUpti_TimestampCallbackFunc clock = nullptr;
  CUpti_CallbackFunc callback = nullptr;
  void* callback_data = nullptr;
  std::set<CUpti_CallbackId> callbacks;
  std::vector<Record> records;
  std::map<const void*, std::string> kernel_names;
  std::vector<std::string> call_names;  // names by id
  std::uint32_t calls = 0;
  std::uint64_t nodes = 0;
};
State& state() {
  static State& s = *new State;
  return s;
}
struct Call {
  unsigned depth = 0;
  std::uint32_t number = 0, name = 0;
  std::uint64_t begin = 0;
  bool driver = false;
};
thread_local Call call;
thread_local std::vector<std::uint64_t> external;

// "cudaError_t simt::engine::launch(...)" -> launch
std::string function_of(std::string_view pretty) {
  pretty = pretty.substr(0, pretty.find('('));
  return std::string(pretty.substr(pretty.find_last_of(" :*&") + 1));
}
std::uint32_t name_number(const std::string& name) {
  auto& names = state().call_names;
  const auto at = std::ranges::find(names, name);
  if (at != names.end()) return static_cast<std::uint32_t>(at - names.begin());
  names.push_back(name);
  return static_cast<std::uint32_t>(names.size() - 1);
}
CUptiResult answer(std::string_view function) { return function == state().refuser ? state().answer : CUPTI_SUCCESS; }
bool wanted(CUpti_ActivityKind k) { return state().kinds.contains(k); }
CUgraphNode handle_of(std::uint64_t node) { return reinterpret_cast<CUgraphNode>(node); }
void tell(CUpti_CallbackId id, std::uint64_t node, std::uint64_t original) {
  State& s = state();
  if (!s.callback || !s.callbacks.contains(id)) return;
  CUpti_GraphData graph{handle_of(node), handle_of(original)};
  const CUpti_ResourceData data{nullptr, &graph};
  s.callback(s.callback_data, CUPTI_CB_DOMAIN_RESOURCE, id, &data);
}
const char* kernel_name(const Work& w) {
  std::string& name = state().kernel_names[w.kernel];
  if (name.empty()) name = function_name(w.kernel);
  return name.c_str();
}
}  // namespace

std::uint32_t call_now() { return call.depth ? call.number : 0; }
std::uint64_t activity_clock() {
  if (state().clock) return state().clock();
  const auto t =
      std::chrono::steady_clock::now().time_since_epoch() + std::chrono::hours(1);  // differs from every other clock
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(t).count());
}
void call_begins(const std::source_location& site) {
  if (call.depth++ || !recording_activity) return;
  std::string name = function_of(site.function_name());
  call.driver = name == "cublasLtMatmul";
  if (call.driver) name = "cuLaunchKernelEx";
  if (name == "launch") name = "cudaLaunchKernel";
  call.name = name_number(name);
  call.number = ++state().calls;
  call.begin = activity_clock();
}
void call_ends() {
  if (--call.depth || !recording_activity || !call.number) return;
  State& s = state();
  const bool of_api = s.call_names[call.name].starts_with("cu");
  const auto kind = call.driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
  if (of_api && wanted(kind)) {
    if (!external.empty() && wanted(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION))
      s.records.push_back(CUpti_ActivityExternalCorrelation{CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                            CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, external.back(),
                                                            call.number});
    const auto thread = static_cast<std::uint32_t>(std::hash<std::thread::id>()(std::this_thread::get_id()));
    s.records.push_back(CUpti_ActivityAPI{kind, call.name, call.begin, activity_clock(), thread, call.number});
  }
  call.number = 0;
}
void operation_ran(const Operation& o, std::uint64_t begin) {
  const Work& w = o.work;
  const std::uint64_t end = activity_clock();
  if (w.kind == Kind::kernel && wanted(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) {
    state().records.push_back(CUpti_ActivityKernel9{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, begin, end, 0, o.stream,
                                                    o.call, kernel_name(w), w.node});
  } else if (w.kind == Kind::copy && wanted(CUPTI_ACTIVITY_KIND_MEMCPY)) {
    constexpr std::uint8_t kinds[] = {9, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD,
                                      CUPTI_ACTIVITY_MEMCPY_KIND_DTOD};
    state().records.push_back(CUpti_ActivityMemcpy5{CUPTI_ACTIVITY_KIND_MEMCPY, kinds[w.detail], w.bytes, begin, end, 0,
                                                    o.stream, o.call, w.node});
  } else if (w.kind == Kind::set && wanted(CUPTI_ACTIVITY_KIND_MEMSET)) {
    state().records.push_back(
        CUpti_ActivityMemset4{CUPTI_ACTIVITY_KIND_MEMSET, w.bytes, begin, end, 0, o.stream, o.call, w.node});
  }
}
std::uint64_t new_node() {
  const std::uint64_t node = ++state().nodes;
  tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, node, 0);
  return node;
}
std::uint64_t clone_of(std::uint64_t original) {
  const std::uint64_t node = ++state().nodes;
  tell(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, node, original);
  return node;
}

namespace {
// Records are 8-byte aligned.
class Delivery {
 public:
  void add(const Record& r) {
    std::visit(
        [&](const auto& x) {
          if (used_ + sizeof x > size_) renew();
          if (used_ + sizeof x > size_) return;  // an empty buffer is too small
          std::memcpy(buffer_ + used_, &x, sizeof x);
          used_ += sizeof x;
        },
        r);
  }
  ~Delivery() {
    if (buffer_) state().complete(nullptr, 0, buffer_, size_, used_);
  }

 private:
  void renew() {
    if (buffer_) state().complete(nullptr, 0, buffer_, size_, used_);
    std::size_t most = 0;
    state().request(&buffer_, &size_, &most);
    used_ = 0;
  }
  std::uint8_t* buffer_ = nullptr;
  std::size_t size_ = 0, used_ = 0;
};
std::size_t size_of(CUpti_ActivityKind k) {
  switch (k) {
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_DRIVER:
    case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel9);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
  }
  return 0;
}
}  // namespace
}  // namespace simt::engine

using namespace simt::engine;

void simt::set_cupti(CUptiResult r, const char* function) {
  state().answer = r;
  state().refuser = function;
}

CUptiResult cuptiGetResultString(CUptiResult r, const char** text) {
  *text = r == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES              ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
          : r == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                                                : "CUPTI_ERROR_UNKNOWN";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* h, CUpti_CallbackFunc f, void* data) {
  const std::lock_guard lock(entry_mutex);
  State& s = state();
  if (const CUptiResult r = answer("cuptiSubscribe"); r != CUPTI_SUCCESS) return r;
  if (s.callback) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  s.callback = f;
  s.callback_data = data;
  *h = reinterpret_cast<CUpti_SubscriberHandle>(&s);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
  const std::lock_guard lock(entry_mutex);
  state().callback = nullptr;
  state().callbacks.clear();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableCallback(std::uint32_t on, CUpti_SubscriberHandle, CUpti_CallbackDomain d, CUpti_CallbackId id) {
  const std::lock_guard lock(entry_mutex);
  if (const CUptiResult r = answer("cuptiEnableCallback"); r != CUPTI_SUCCESS) return r;
  if (d != CUPTI_CB_DOMAIN_RESOURCE) return CUPTI_ERROR_INVALID_PARAMETER;
  on ? void(state().callbacks.insert(id)) : void(state().callbacks.erase(id));
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain, std::uint32_t id, const char** name) {
  const std::lock_guard lock(entry_mutex);
  if (id >= state().call_names.size()) return CUPTI_ERROR_INVALID_PARAMETER;
  static std::set<std::string>& versioned = *new std::set<std::string>;
  *name = versioned.insert(state().call_names[id] + "_v3020").first->c_str();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetGraphNodeId(CUgraphNode n, std::uint64_t* id) {
  *id = reinterpret_cast<std::uintptr_t>(n);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(std::uint64_t* t) {
  const std::lock_guard lock(entry_mutex);
  *t = activity_clock();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  const std::lock_guard lock(entry_mutex);
  state().request = request;
  state().complete = complete;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc f) {
  const std::lock_guard lock(entry_mutex);
  const CUptiResult r = answer("cuptiActivityRegisterTimestampCallback");
  state().clock = r == CUPTI_SUCCESS ? f : nullptr;
  return r;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind k) {
  const std::lock_guard lock(entry_mutex);
  if (const CUptiResult r = answer("cuptiActivityEnable"); r != CUPTI_SUCCESS) return r;
  state().kinds.insert(k);
  recording_activity = true;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind k) {
  const std::lock_guard lock(entry_mutex);
  state().kinds.erase(k);
  recording_activity = !state().kinds.empty();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(std::uint32_t) {
  const std::lock_guard lock(entry_mutex);
  if (!state().request) return CUPTI_ERROR_INVALID_OPERATION;
  Delivery delivery;
  for (const auto& r : state().records) delivery.add(r);
  state().records.clear();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  std::uint8_t* const next = *record ? reinterpret_cast<std::uint8_t*>(*record) + size_of((*record)->kind) : buffer;
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* n) {
  *n = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t id) {
  external.push_back(id);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t* last) {
  if (external.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (last) *last = external.back();
  external.pop_back();
  return CUPTI_SUCCESS;
}
