// The CUDA backend's runtime: devices, copies, synchronisation. A machine without a driver or GPU has no device, and
// why_missing() says what it lacks.
#include <tapegrad/core/backend.h>
#include <tapegrad/cuda/allocator.h>
#include <tapegrad/cuda/runtime.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/cuda/simt/emulator.h>
#endif

namespace tg::cuda {
namespace {

struct DeviceState {
  Properties properties;
  cudaStream_t stream = nullptr;
  DeviceAllocator allocator;
  explicit DeviceState(int device) : allocator(device) {}
};

int attribute(cudaDeviceAttr a, int device) {
  int v = 0;
  check(cudaDeviceGetAttribute(&v, a, device), "device", "reading an attribute");
  return v;
}

std::unique_ptr<DeviceState> open_device(int device) {
  auto s = std::make_unique<DeviceState>(device);
  check(cudaSetDevice(device), "device", "choosing the device");
  Properties& p = s->properties;
  p.major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  p.minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  p.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  p.shared_per_block = size_t(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  size_t free = 0;
  check(cudaMemGetInfo(&free, &p.memory), "device", "reading the size of its memory");
#ifdef TG_CUDA_EMULATED
  p.name = "emulated GPU";
#else
  cudaDeviceProp full{};
  check(cudaGetDeviceProperties(&full, device), "device", "reading its properties");
  p.name = full.name;
#endif
  check(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "device", "making its stream");
  return s;
}

struct Devices {  // opened on first use; leaked, because tensors in static storage may be freed last
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceState>> open;
  std::string why_none;
  Devices() {
#ifdef TG_CUDA_EMULATED
    const char* schedule = std::getenv("TG_EMULATE_SCHEDULE");
    simt::set_schedule(schedule ? std::strtoull(schedule, nullptr, 10) : 0);
#endif
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) {
      (void)cudaGetLastError();
      n = 0;
      why_none = cudaGetErrorString(e);
    } else if (n == 0) {
      why_none = "the driver lists no GPU";
    }
    open.resize(size_t(n));
  }
};
Devices& devices() {
  static auto& d = *new Devices;
  return d;
}
DeviceState& state(int device) {
  Devices& all = devices();
  const std::lock_guard lock(all.mutex);
  auto& s = all.open.at(size_t(device));
  if (!s) s = open_device(device);
  return *s;
}

bool sync_after_each() {
  static const bool on = [] {
    const char* v = std::getenv("TG_SYNC");
    return v && *v && *v != '0';
  }();
  return on;
}

class CudaRuntime final : public BackendRuntime {
 public:
  int device_count() const override { return int(devices().open.size()); }
  std::string why_missing() const override { return devices().why_none; }
  std::string describe(int i) const override {
    const Properties& p = properties(i);
    return fmt::format("{}, compute capability {}.{}, {} multiprocessors, {} MiB", p.name, p.major, p.minor,
                       p.multiprocessors, p.memory >> 20);
  }
  Allocator& allocator(int i) override { return state(i).allocator; }
  void synchronize(int i) override {
    check(cudaStreamSynchronize(stream_of(i)), "synchronize", "waiting for kernels");
    throw_bad_index(i);
  }
  void copy_from_host(int i, void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(i)), "copy", "host to device");
    synchronize(i);
  }
  void copy_to_host(int i, void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_of(i)), "copy", "device to host");
    synchronize(i);
  }
};
[[maybe_unused]] const bool registered = register_backend(Backend::cuda, new CudaRuntime);

}  // namespace

void check(cudaError_t e, std::string_view op, std::string_view what) {
  if (e == cudaSuccess) return;
  throw Error(Error::Kind::cuda, fmt::format("[{}] {} failed: {}.", op, what, cudaGetErrorString(e)));
}
const Properties& properties(int device) { return state(device).properties; }
cudaStream_t stream_of(int device) { return state(device).stream; }
void launched(const Context& c) {
  check(cudaGetLastError(), c.op, "launching its kernel");
  if (!sync_after_each()) return;
  check(cudaStreamSynchronize(stream_of(c.device.index)), c.op, "its kernel");
  throw_bad_index(c.device.index);
}

unsigned blocks_for(const Context& c, int64_t n, int64_t per_block) {
  const int64_t want = (n + per_block - 1) / per_block, most = 16 * int64_t(properties(c.device.index).multiprocessors);
  return unsigned(std::clamp<int64_t>(want, 1, most));
}

Scratch::Scratch(const Context& c, size_t bytes)
    : allocator_(runtime_of(c.device).allocator(c.device.index)), bytes_(bytes), data_(allocator_.allocate(bytes)) {}
Scratch::~Scratch() { allocator_.deallocate(data_, bytes_); }

}  // namespace tg::cuda
