#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/cuda/nccl/library.h>

#ifndef TG_CUDA_LIBRARIES
#define TG_CUDA_LIBRARIES ""
#endif

namespace tg::cuda::nccl {
namespace {
constexpr int kOldest = 21600;
constexpr const char* kInstall =
    "Several ranks with GPUs need NCCL 2.16 or newer for CUDA 12 or 13. Install\n  apt install libnccl2 | dnf install "
    "libnccl\nof NVIDIA's repository, or\n  pip install nvidia-nccl-cu13\nwhose folder is nvidia/nccl/lib";

std::string describe() {
  try {
    int v = 0;
    check(GetVersion(&v), "comm", "asking for its version");
#ifdef TG_CUDA_EMULATED
    return fmt::format("emulated NCCL {}", text_of(v));
#else
    return fmt::format("NCCL {}{}", text_of(v), v < kOldest ? ", which is too old" : "");
#endif
  } catch (const Error&) {
    return "no NCCL";
  }
}
[[maybe_unused]] const bool registered = tg::detail::register_device_engine(describe);
}  // namespace

SharedLibrary library_of(std::string file) { return {std::move(file), TG_CUDA_LIBRARIES, kInstall}; }
#ifndef TG_CUDA_EMULATED
SharedLibrary& library() {  // leaked
  static auto& l = *new SharedLibrary(library_of("libnccl.so.2"));
  return l;
}
#endif

std::string text_of(int v) {  // 2.8.4 was 2804, 2.9.6 is 20906
  const int unit = v < 10000 ? 10 : 100;
  return fmt::format("{}.{}.{}", v / unit / 100, v / 100 % unit, v % 100);
}
void check_version(int v) { TG_CHECK(v >= kOldest, comm, "[comm] NCCL {} is too old. {}.", text_of(v), kInstall); }
void check(Result r, std::string_view op, std::string_view what) {
  TG_CHECK(r == kSuccess, comm, "[{}] NCCL: {} failed: {}. NCCL_DEBUG=WARN in the environment says more.", op, what,
           GetErrorString(r));
}
}  // namespace tg::cuda::nccl
