#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/cuda/jit/chain.h>
#include <tapegrad/cuda/profile/profiler.h>
#include <tapegrad/cuda/runtime/allocator.h>
#include <tapegrad/cuda/runtime/recording.h>
#include <tapegrad/cuda/runtime/runtime.h>
#include <tapegrad/cuda/runtime/staging.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/emulator.h>
#endif

namespace tg::cuda {
namespace {

constexpr size_t kStagingChunk = 4 << 20, kStagingChunks = 4;

struct DeviceState {
  Properties properties;
  Stream stream;
  DeviceAllocator allocator;
  Staging staging{kStagingChunk, kStagingChunks};
  std::mutex shared_mutex;
  std::unordered_map<const void*, size_t> shared;  // opted-in dynamic bytes by kernel
  explicit DeviceState(int device) : allocator(device) {}
};

int attribute(cudaDeviceAttr a, int device) {
  int v = 0;
  check(cudaDeviceGetAttribute(&v, a, device), "device", "reading an attribute");
  return v;
}

std::unique_ptr<DeviceState> open_device(int device) {
  if (const cudaError_t e = cudaSetDevice(device); e != cudaSuccess)
    throw Error(Error::Kind::device, fmt::format("[device] {} cannot be opened: {}. Use another device.",
                                                 Device::cuda(device), why_no_device(e)));
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "device", "asking the driver for its version");
  check_driver(driver);
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device),
            minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  check_kernels(find_kernel(), fmt::format("{}", Device::cuda(device)), major, minor);
  auto s = std::make_unique<DeviceState>(device);
  Properties& p = s->properties;
  p.major = major, p.minor = minor;
  p.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  p.shared_per_block = size_t(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  p.l2_cache = size_t(attribute(cudaDevAttrL2CacheSize, device));
  size_t free = 0;
  check(cudaMemGetInfo(&free, &p.memory), "device", "reading the size of its memory");
#ifdef TG_CUDA_EMULATED
  p.name = "emulated GPU";
#else
  cudaDeviceProp full{};
  check(cudaGetDeviceProperties(&full, device), "device", "reading its properties");
  p.name = full.name;
#endif
  return s;
}

// Leaked: static tensors may be freed last.
struct Devices {
  std::mutex mutex;
  std::string why_none;
  std::vector<std::atomic<DeviceState*>> open;
  static int count(std::string& why_none) {
#ifdef TG_CUDA_EMULATED
    const char* schedule = std::getenv("TG_EMULATE_SCHEDULE");
    simt::set_schedule(schedule ? std::strtoull(schedule, nullptr, 10) : 0);
    const char* none = std::getenv("TG_EMULATE_NO_DEVICE");  // a cudaError_t, for tests
    simt::set_no_device(cudaError_t(none ? std::atoi(none) : 0));
    const auto number = [](const char* name, int least, int most, int usual) {
      const char* const word = std::getenv(name);
      const int n = word ? std::atoi(word) : usual;
      TG_CHECK(n >= least && n <= most, value,
               "[device] {} is '{}'. It must be a number from {} to {}. Change or unset it.", name, word, least, most);
      return n;
    };
    simt::set_devices(number("TG_EMULATE_DEVICES", 1, 64, 1));
    simt::set_capability(number("TG_EMULATE_CAPABILITY", 80, 129, 90));
    simt::set_shared_limit(size_t(number("TG_EMULATE_SHARED_BYTES", 48 << 10, 227 << 10, 227 << 10)));
#endif
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaSuccess && n > 0) return n;
    why_none = why_no_device(e);
    return 0;
  }
  Devices() : open(size_t(count(why_none))) {}
};
Devices& devices() {
  static auto& d = *new Devices;
  return d;
}

thread_local int t_device = 0;  // current CUDA device
thread_local std::pair<int, cudaStream_t> t_on{-1, nullptr};

DeviceState& state(int device) {
  Devices& all = devices();
  auto& slot = all.open.at(size_t(device));
  DeviceState* s = slot.load(std::memory_order_acquire);
  if (!s) [[unlikely]] {
    const std::lock_guard lock(all.mutex);
    s = slot.load(std::memory_order_relaxed);
    if (!s) slot.store(s = open_device(device).release(), std::memory_order_release);
  }
  if (t_device != device) [[unlikely]] {
    check(cudaSetDevice(device), "device", "choosing the device");
    t_device = device;
  }
  return *s;
}

class CudaRuntime final : public BackendRuntime {
 public:
  int device_count() const override { return int(devices().open.size()); }
  std::string why_missing() const override { return devices().why_none; }
  std::string describe(int i) const override {
    const Properties& p = properties(i);
#ifdef TG_CUDA_EMULATED
    const std::string name =
        fmt::format("{} (schedule {}; results prove logic, never speed)", p.name, simt::schedule());
#else
    const std::string& name = p.name;
#endif
    return fmt::format("{}, compute capability {}.{}, {} multiprocessors, {} MiB", name, p.major, p.minor,
                       p.multiprocessors, p.memory >> 20);
  }
  bool in_use(int i) const override { return devices().open.at(size_t(i)).load(std::memory_order_acquire); }
  size_t memory(int i) const override { return properties(i).memory; }
  Allocator& allocator(int i) override { return allocator_of(i); }
  bool runs_in_chains(const Op& op) override { return cuda::runs_in_chains(op); }
  void run_chain(const Chain& c) override { cuda::run_chain(c); }
  void* take_scratch(int i, size_t bytes) override { return cuda::take_scratch(i, bytes); }
  void give_scratch(int i, void* p, size_t bytes) noexcept override { cuda::give_scratch(i, p, bytes); }
  void* stream(int i) override { return stream_of(i); }
  std::unique_ptr<Recording> recording(int i, std::vector<CallOrder> calls, std::function<void(size_t)> call) override {
    const char* graphs = std::getenv("TG_CUDA_GRAPHS");
    TG_CHECK(!graphs || std::string_view(graphs) != "0", state, "TG_CUDA_GRAPHS=0 forbids CUDA graphs");
    TG_CHECK(!sync_after_each(), state, "TG_SYNC=1 waits after each kernel, which a CUDA graph does not");
    return record_calls(i, std::move(calls), std::move(call));
  }
  std::unique_ptr<tg::detail::DeviceProfiler> profiler() override { return make_profiler(); }
  void synchronize(int i) override {
    check(cudaStreamSynchronize(stream_of(i)), "synchronize", "waiting for kernels");
    note_synchronized();
    throw_bad_index(i);
  }
  void copy_from_host(int i, void* to, const void* from, size_t bytes) override {
    TG_CHECK(!held_memory(), state,
             "[copy] from the host while a graph is recorded: every run of the graph would use these values. Make them "
             "an input of the compiled function.");
    state(i).staging.to_device(to, from, bytes, stream_of(i));
  }
  void copy(int i, void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(i)), "copy", "copying on the device");
  }
  void copy_to_host(int i, void* to, const void* from, size_t bytes) override {
    state(i).staging.to_host(to, from, bytes, stream_of(i));
    note_synchronized();
    throw_bad_index(i);
  }
};
[[maybe_unused]] const bool registered = tg::detail::register_backend(Backend::cuda, new CudaRuntime);

}  // namespace

const Properties& properties(int device) { return state(device).properties; }
DeviceAllocator& allocator_of(int device) { return state(device).allocator; }
cudaStream_t stream_of(int device) {
  check_alive();
  DeviceState& s = state(device);
  return t_on.first == device ? t_on.second : s.stream;
}
OnStream::OnStream(int device, cudaStream_t s) : ScopedValue(t_on, std::pair(device, s)) {}
void launched(const Context& c) {
  note_launch(c.op, stream_of(c.device.index));
  if (sync_after_each()) throw_bad_index(c.device.index);
}

void opt_in(const Context& c, const void* kernel, size_t shared_bytes) {
  DeviceState& s = state(c.device.index);
  const std::lock_guard lock(s.shared_mutex);
  size_t& most = s.shared[kernel];
  if (shared_bytes <= most) return;
  TG_CHECK(has_shared(c, shared_bytes), value,
           "[{}] its kernel takes {} bytes of shared memory per block, and {} has {}. Use smaller sizes, another "
           "device, or Device::cpu().",
           c.op, shared_bytes, c.device, s.properties.shared_per_block);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes)), c.op,
        "opting in to shared memory");
  most = shared_bytes;
}

unsigned blocks_for(const Context& c, int64_t n, int64_t per_block) {
  const int64_t want = (n + per_block - 1) / per_block, most = 16 * int64_t(properties(c.device.index).multiprocessors);
  return unsigned(std::clamp<int64_t>(want, 1, most));
}

void* take_scratch(int device, size_t bytes) {
  if (HeldMemory* const held = held_memory()) return held->take(bytes);
  return allocator_of(device).allocate(bytes);
}
void give_scratch(int device, void* p, size_t bytes) noexcept {
  if (HeldMemory* const held = held_memory()) return held->give(p, bytes);
  allocator_of(device).deallocate(p, bytes);
}

}  // namespace tg::cuda
