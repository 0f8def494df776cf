#include <algorithm>
#include <cstring>
#include <map>

#include <tapegrad/emulator/memory.h>

namespace simt::engine {
namespace {

// An H100, small enough for grids to loop and data to exceed L2.
constexpr int multiprocessors = 4, threads_per_multiprocessor = 2048, blocks_per_multiprocessor = 32;
constexpr std::size_t shared_per_multiprocessor = 228 * 1024, shared_reserved = 1024, shared_default = 48 * 1024;

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t why_no_device = cudaSuccess;
int device_count = 1, opened = -1;  // opened: this process's device
int capability = 90;
std::size_t shared_limit = max_dynamic_shared;
bool exists(int device) { return device >= 0 && device < device_count; }
auto& opted_in = *new std::map<const void*, std::size_t>;  // bytes above the default

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
#define SIMT_ERROR(name, text) \
  { name, #name, text }
constexpr ErrorText error_texts[] = {
    SIMT_ERROR(cudaSuccess, "no error"),
    SIMT_ERROR(cudaErrorInvalidValue, "invalid argument"),
    SIMT_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    SIMT_ERROR(cudaErrorInitializationError, "initialization error"),
    SIMT_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    SIMT_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    SIMT_ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    SIMT_ERROR(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    SIMT_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    SIMT_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    SIMT_ERROR(cudaErrorSharedObjectInitFailed, "shared object initialization failed"),
    SIMT_ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    SIMT_ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    SIMT_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    SIMT_ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    SIMT_ERROR(cudaErrorNotReady, "device not ready"),
    SIMT_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    SIMT_ERROR(cudaErrorSystemDriverMismatch, "system has unsupported display driver / cuda driver combination"),
    SIMT_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    SIMT_ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    SIMT_ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    SIMT_ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    SIMT_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    SIMT_ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    SIMT_ERROR(cudaErrorStreamCaptureImplicit,
               "operation would make the legacy stream depend on a capturing blocking stream"),
    SIMT_ERROR(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    SIMT_ERROR(cudaErrorStreamCaptureWrongThread,
               "attempt to terminate a thread-local capture sequence from another thread"),
    SIMT_ERROR(cudaErrorGraphExecUpdateFailure,
               "the graph update was not performed because it included changes which violated constraints specific to "
               "instantiated graph update"),
};
const ErrorText& text_of(cudaError_t e) {
  static constexpr ErrorText unknown{cudaSuccess, "unrecognized error code", "unrecognized error code"};
  const auto* t = std::ranges::find(error_texts, e, &ErrorText::error);
  return t == std::end(error_texts) ? unknown : *t;
}

}  // namespace

cudaError_t status(cudaError_t e) {
  if (failed()) e = cudaErrorLaunchFailure;
  if (e != cudaSuccess) last_error = e;
  return e;
}

std::size_t dynamic_shared_limit(const void* kernel) {
  const auto it = opted_in.find(kernel);
  return it == opted_in.end() ? shared_default : std::max(it->second, shared_default);
}

bool may_share(const void* kernel, std::size_t dynamic_bytes, std::size_t static_bytes) {
  const auto it = opted_in.find(kernel);
  const bool opted = it != opted_in.end() && it->second >= dynamic_bytes;
  return dynamic_bytes + static_bytes <= (opted ? shared_limit : shared_default);
}

cudaError_t set_kernel_attribute(const void* kernel, cudaFuncAttribute a, int value) {
  const Entry entry;
  if (a == cudaFuncAttributePreferredSharedMemoryCarveout) return status();
  if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || std::size_t(value) > shared_limit)
    return status(cudaErrorInvalidValue);
  opted_in[kernel] = std::size_t(value);
  return status();
}

cudaError_t resident_blocks(int* blocks, const void* kernel, int threads_per_block, std::size_t shared_bytes) {
  const Entry entry;
  if (threads_per_block <= 0) return status(cudaErrorInvalidValue);
  *blocks = 0;
  if (unsigned(threads_per_block) > max_threads || shared_bytes > dynamic_shared_limit(kernel)) return status();
  const int by_threads = threads_per_multiprocessor / ((threads_per_block + 31) / 32 * 32);
  const int by_shared = int(shared_per_multiprocessor / (shared_bytes + shared_reserved));
  *blocks = std::min({by_threads, by_shared, blocks_per_multiprocessor});
  return status();
}

cudaError_t image_status() {
  return capability / 10 == 8 || capability == 90 ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}

void device_reset() {
  opted_in.clear();
  capability = 90, shared_limit = max_dynamic_shared;
  device_count = 1, opened = -1;
  why_no_device = cudaSuccess;
  last_error = cudaSuccess;
}

}  // namespace simt::engine

namespace simt {
void set_memory(std::size_t bytes) {
  const engine::Entry entry;
  engine::set_capacity(bytes);
}
void set_no_device(cudaError_t why) {
  const engine::Entry entry;
  engine::why_no_device = why;
}
void set_devices(int n) {
  const engine::Entry entry;
  engine::device_count = n;
}
void set_capability(int number) {
  const engine::Entry entry;
  engine::capability = number;
}
void set_shared_limit(std::size_t bytes) {
  const engine::Entry entry;
  engine::shared_limit = bytes;
}
}  // namespace simt

using namespace simt::engine;

const char* cudaGetErrorName(cudaError_t e) { return text_of(e).name; }
const char* cudaGetErrorString(cudaError_t e) {
  const bool found = e == cudaErrorLaunchFailure && !simt::reports().empty();
  return found ? simt::reports()[0].text.c_str() : text_of(e).text;
}
cudaError_t cudaPeekAtLastError() {
  const Entry entry;
  return failed() ? cudaErrorLaunchFailure : last_error;
}
cudaError_t cudaGetLastError() {
  const Entry entry;
  const cudaError_t e = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return e;
}

cudaError_t cudaGetDeviceCount(int* n) {
  const Entry entry;
  *n = why_no_device == cudaSuccess ? device_count : 0;
  return status(why_no_device);
}
cudaError_t cudaDriverGetVersion(int* v) {
  const Entry entry;
  return *v = why_no_device == cudaErrorInsufficientDriver ? 11040 : 13000, status();
}
cudaError_t cudaRuntimeGetVersion(int* v) {
  const Entry entry;
  return *v = 13000, status();
}
cudaError_t cudaSetDevice(int d) {
  const Entry entry;
  if (!exists(d)) return status(cudaErrorInvalidDevice);
  if (opened < 0) opened = d;
  return status(d == opened ? cudaSuccess : cudaErrorDevicesUnavailable);
}
cudaError_t cudaGetDevice(int* d) {
  const Entry entry;
  return *d = std::max(opened, 0), status();
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  const Entry entry;
  if (!exists(device)) return status(cudaErrorInvalidDevice);
  *p = {};
  std::strcpy(p->name, "emulated GPU");
  std::size_t free = 0;
  memory_left(&free, &p->totalGlobalMem);
  p->major = capability / 10, p->minor = capability % 10;
  return status();
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int device) {
  const Entry entry;
  if (!exists(device)) return status(cudaErrorInvalidDevice);
  switch (a) {
    case cudaDevAttrMultiProcessorCount: *v = multiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *v = capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *v = capability % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = int(shared_limit); break;
    case cudaDevAttrL2CacheSize: *v = 1 << 16; break;
    default: return status(cudaErrorInvalidValue);
  }
  return status();
}
cudaError_t cudaDeviceSynchronize() {
  const Entry entry;
  if (const cudaError_t e = forbid_device_wide(); e != cudaSuccess) return status(e);
  finish_all();
  return status();
}
