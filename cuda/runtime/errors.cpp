#include <tapegrad/core/check.h>
#include <tapegrad/cuda/runtime/errors.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

namespace tg::cuda {
namespace {

constexpr const char* kRestart =
    "CUDA cannot continue after this error: restart the process, and a training from its last checkpoint.";

// CUDA refuses everything after these.
bool ends_device(cudaError_t e) {
  switch (int(e)) {
    case 214:               // ECC uncorrectable
    case 226:               // contained
    case 700:               // illegal address
    case 702:               // launch timeout
    case 710:               // assert
    case 714:               // hardware stack error
    case 715:               // illegal instruction
    case 716:               // misaligned address
    case 717:               // invalid address space
    case 718:               // invalid program counter
    case 719:               // launch failure
    case 720: return true;  // cooperative launch too large, or another failure
    default: return false;
  }
}
std::string version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }
std::string text_of(cudaError_t e) { return fmt::format("{} ({})", cudaGetErrorString(e), cudaGetErrorName(e)); }

struct Launches {
  static constexpr size_t kSize = 16;
  std::mutex mutex;
  std::array<std::string_view, kSize> ops;
  size_t count = 0;

  void add(std::string_view op) {
    const std::lock_guard lock(mutex);
    ops[count++ % kSize] = op;
  }
  void clear() {
    const std::lock_guard lock(mutex);
    count = 0;
  }
  std::string list() {  // "add, exp x3", oldest first
    const std::lock_guard lock(mutex);
    std::string s = count > kSize ? "..., " : "";
    for (size_t i = count - std::min(count, kSize); i < count;) {
      size_t same = 1;
      while (i + same < count && ops[(i + same) % kSize] == ops[i % kSize]) ++same;
      s += fmt::format("{}{}", ops[i % kSize], same > 1 ? fmt::format(" x{}", same) : "");
      if ((i += same) < count) s += ", ";
    }
    return s;
  }
};
Launches& launches() {  // leaked: static tensors need it at exit
  static auto& l = *new Launches;
  return l;
}

std::atomic<const std::string*> g_lost{nullptr};  // message of check_alive()

[[noreturn]] void lose(const std::string& what) {
  const std::string* expected = nullptr;
  g_lost.compare_exchange_strong(expected,
                                 new std::string(fmt::format("A kernel failed earlier: {} {}", what, kRestart)));
  throw Error(Error::Kind::cuda, fmt::format("{} {}", what, kRestart));
}

std::atomic<bool>& sync_flag() {
  static std::atomic<bool> on = [] {
    const char* v = std::getenv("TG_SYNC");
    return v && *v && std::string_view(v) != "0";
  }();
  return on;
}

}  // namespace

bool sync_after_each() { return sync_flag().load(std::memory_order_relaxed); }
void set_sync_after_each(bool on) { sync_flag() = on; }

void check_alive() {
  if (const std::string* lost = g_lost.load(std::memory_order_acquire)) [[unlikely]]
    throw Error(Error::Kind::cuda, fmt::format("[cuda] the device cannot be used any more. {}", *lost));
}

void check(cudaError_t e, std::string_view op, std::string_view what) {
  if (e == cudaSuccess) [[likely]]
    return;
  check_alive();
  (void)cudaGetLastError();
  if (!ends_device(e)) throw Error(Error::Kind::cuda, fmt::format("[{}] {} failed: {}.", op, what, text_of(e)));
  const std::string ops = launches().list();
  if (sync_after_each() || ops.empty()) lose(fmt::format("[{}] {} failed: {}.", op, what, text_of(e)));
  lose(
      fmt::format("[{}] {} failed, or a kernel queued before it did: {}. Launched since the last synchronisation: {}. "
                  "Run with TG_SYNC=1 to learn which one it was.",
                  op, what, text_of(e), ops));
}

void note_launch(std::string_view op, cudaStream_t stream) {
  launches().add(op);
  check(cudaGetLastError(), op, "launching its kernel");
  if (!sync_after_each()) return;
  check(cudaStreamSynchronize(stream), op, "its kernel");
  note_synchronized();
}
void note_synchronized() { launches().clear(); }

void check_driver(int v) {
  TG_CHECK(v >= 12010, device,
           "[device] the NVIDIA driver is too old: it supports CUDA {}, and kernels with many parameters need 12.1. "
           "Update the driver to version 530 or newer.",
           version(v));
}

void check_kernels(cudaError_t found, std::string_view device, int major, int minor) {
  if (found != cudaSuccess) (void)cudaGetLastError();
  TG_CHECK(found == cudaSuccess, device,
           "[device] {} has compute capability {}.{}, and this build has kernels for {}. CUDA reports: {}. Build with "
           "-DCMAKE_CUDA_ARCHITECTURES={}{}{}-real, or use another device.",
           device, major, minor, TG_CUDA_ARCHITECTURES, text_of(found), major, minor, major == 9 ? "a" : "");
}

std::string why_no_device(cudaError_t e) {
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError();
  if (e == cudaSuccess) return "the driver lists no GPU";
  if (e == cudaErrorInsufficientDriver && driver == 0)
    return "no NVIDIA driver was found; install one, or start the container with its GPUs (docker run --gpus all)";
  if (e == cudaErrorInsufficientDriver)
    return fmt::format(
        "the NVIDIA driver is too old: it supports CUDA {}, and this build needs {}; update the driver, "
        "or build with an older toolkit",
        version(driver), version(runtime));
  if (e == cudaErrorNoDevice)
    return "the driver finds no GPU; check nvidia-smi, that CUDA_VISIBLE_DEVICES is unset or names one, and that the "
           "container was started with its GPUs (docker run --gpus all)";
  if (e == cudaErrorSystemDriverMismatch)
    return "the NVIDIA driver's library and its kernel module are of different versions; restart the machine after an "
           "update of the driver";
  if (e == cudaErrorDevicesUnavailable)
    return "the GPU is busy or closed to other processes; see nvidia-smi for who uses it and for its compute mode";
  if (e == cudaErrorInitializationError)
    return "CUDA could not be initialised; this happens in a process that was forked after its first use, else see "
           "nvidia-smi";
  return fmt::format("CUDA reports: {}", text_of(e));
}

}  // namespace tg::cuda
