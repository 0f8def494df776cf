#include <sys/stat.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/cuda/jit/rtc.h>
#include <tapegrad/cuda/runtime/errors.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace tg::cuda {
namespace {
std::atomic<uint64_t> g_compiled, g_read;

void check_rtc(nvrtcResult r, std::string_view what) {
  TG_CHECK(r == NVRTC_SUCCESS, cuda, "[cuda] {} failed: {}.", what, nvrtcGetErrorString(r));
}

// Standard headers that tapegrad's include; NVRTC needs none.
#ifdef TG_CUDA_EMULATED
constexpr std::span<const EmbeddedHeader> kStandard;
#else
constexpr EmbeddedHeader kStandard[] = {{"cstdint", R"(#pragma once
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
)"},
                                        {"cmath", R"(#pragma once
#define __builtin_sqrtf ::sqrtf
#define __builtin_sqrt ::sqrt
#define __builtin_fabs ::fabs
namespace std {
using ::cos;
using ::erf;
using ::exp;
using ::fabs;
using ::floor;
using ::log;
using ::log1p;
using ::pow;
using ::rint;
using ::sin;
using ::tanh;
}  // namespace std
)"}};
#endif
std::vector<EmbeddedHeader> headers() {
  std::vector<EmbeddedHeader> all(std::begin(kStandard), std::end(kStandard));
  for (const EmbeddedHeader& h : embedded_headers()) all.push_back(h);
  return all;
}

// 128-bit hash.
struct Digest {
  uint64_t a = 0x9e3779b97f4a7c15, b = 0xc2b2ae3d27d4eb4f;
  Digest& add(std::string_view s) {
    const uint64_t n = s.size();
    const auto take = [&](uint64_t x) {
      a = (a ^ x) * 0xff51afd7ed558ccd, a ^= a >> 32;
      b = (b + x) * 0x9fb21c651e98df25, b ^= b >> 29;
    };
    take(n);
    for (size_t i = 0; i < n; i += 8) {
      uint64_t x = 0;
      std::memcpy(&x, s.data() + i, std::min<size_t>(8, n - i));
      take(x);
    }
    return *this;
  }
  std::string hex() const { return fmt::format("{:016x}{:016x}", a, b); }
};

std::vector<std::string> options_for(int arch) {
  // nvcc's contraction. Correctly rounded division and square root, and denormals, are defaults.
  return {fmt::format("--gpu-architecture=sm_{}", arch), "--std=c++20", "--device-as-default-execution-space",
          "--fmad=true"};
}
std::string version() {
  int major = 0, minor = 0;
  check_rtc(nvrtcVersion(&major, &minor), "asking NVRTC for its version");
  return fmt::format("{}.{}", major, minor);
}
std::string name_of(const std::string& source, int arch) {
  static const Digest known = [] {
    Digest d;
    for (const EmbeddedHeader& h : headers()) d.add(h.name).add(h.text);
    return d;
  }();
  Digest d = known;
  d.add(source).add(version());
  for (const std::string& o : options_for(arch)) d.add(o);
  return d.hex();
}

std::string folder() {
  const auto set = [](const char* name) {
    const char* v = std::getenv(name);
    return std::string(v ? v : "");
  };
  if (const std::string own = set("TG_CACHE_DIR"); !own.empty()) return own;
  // Relative paths are invalid (XDG Base Directory Specification); others may own the working folder.
  if (const std::string caches = set("XDG_CACHE_HOME"); caches.starts_with('/')) return caches + "/tapegrad";
  if (const std::string home = set("HOME"); !home.empty()) return home + "/.cache/tapegrad";
  return {};
}
// Cached code runs on the device: file and folder must belong to this user, unwritable by others.
bool is_own(const std::string& path) {
  struct stat s;
  return ::stat(path.c_str(), &s) == 0 && s.st_uid == ::geteuid() && (s.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}
// File format: this line, the image's digest, the image.
constexpr std::string_view kMagic = "tapegrad kernels 1\n";
constexpr size_t kBegin = kMagic.size() + 33;
std::string begin_of(std::string_view image) { return std::string(kMagic) + Digest().add(image).hex() + "\n"; }
std::string read_image(const std::string& path) {  // empty unless intact
  if (path.empty() || !is_own(path.substr(0, path.rfind('/'))) || !is_own(path)) return {};
  try {
    const MappedFile file(path);
    const std::string_view text = file.text();
    if (text.size() <= kBegin || text.substr(0, kBegin) != begin_of(text.substr(kBegin))) return {};
    return std::string(text.substr(kBegin));
  } catch (const Error&) {
    return {};
  }
}
void write_image(const std::string& path, const std::string& image) {
  if (path.empty()) return;
  try {
    const std::string where = path.substr(0, path.rfind('/'));
    tg::detail::make_folder(where, 0700);
    if (!is_own(where)) return;
    detail::write_file_atomically(path, begin_of(image) + image);
  } catch (const Error&) {  // the next process compiles again
  }
}

struct Destroy {
  void operator()(nvrtcProgram p) const { (void)nvrtcDestroyProgram(&p); }
};
using Program = std::unique_ptr<std::remove_pointer_t<nvrtcProgram>, Destroy>;

Compiled compile(const std::string& source, int arch) {
  std::vector<const char*> names, texts, options;
  for (const EmbeddedHeader& h : headers()) names.push_back(h.name), texts.push_back(h.text);
  const std::vector<std::string> all = options_for(arch);
  for (const std::string& o : all) options.push_back(o.c_str());
  nvrtcProgram raw = nullptr;
  check_rtc(nvrtcCreateProgram(&raw, source.c_str(), "chain.cu", int(texts.size()), texts.data(), names.data()),
            "beginning to compile a kernel");
  const Program program(raw);
  const nvrtcResult result = nvrtcCompileProgram(raw, int(options.size()), options.data());
  Compiled r;
  size_t n = 0;
  check_rtc(nvrtcGetProgramLogSize(raw, &n), "reading NVRTC's messages");
  r.log.resize(n);
  check_rtc(nvrtcGetProgramLog(raw, r.log.data()), "reading NVRTC's messages");
  r.log.resize(std::strlen(r.log.c_str()));
  TG_CHECK(result == NVRTC_SUCCESS, cuda, "[cuda] NVRTC {} cannot compile a kernel for sm_{}: {}\n{}", version(), arch,
           nvrtcGetErrorString(result), r.log);
  check_rtc(nvrtcGetCUBINSize(raw, &n), "reading a compiled kernel");
  r.image.resize(n);
  check_rtc(nvrtcGetCUBIN(raw, r.image.data()), "reading a compiled kernel");
  return r;
}
}  // namespace

#ifndef TG_CUDA_EMULATED
SharedLibrary& rtc_library() {  // leaked
  static auto& l = *new SharedLibrary(
      fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000), TG_CUDA_LIBRARIES,
      fmt::format("It compiles the kernels of fused ops. Install\n  apt install cuda-nvrtc-{0}-{1} | dnf install "
                  "cuda-nvrtc-{0}-{1}\nof NVIDIA's repository",
                  CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
  return l;
}
#endif

std::string why_no_compiler() {
#if !TG_LOADS_KERNELS
  return fmt::format(
      "[cuda] this program was built with CUDA {}.{}, which cannot load kernels at run time. Build with 12.8 or newer.",
      CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#endif
  try {
    (void)version();
    return {};
  } catch (const Error& e) {
    return e.what();
  }
}

std::string cached_file(const std::string& source, int arch) {
  const std::string where = folder();
  return where.empty() ? where : fmt::format("{}/{}.cubin", where, name_of(source, arch));
}
Compiled compile_kernels(const std::string& source, int arch) {
  const std::string path = cached_file(source, arch);
  if (std::string image = read_image(path); !image.empty()) {
    ++g_read;
    return {std::move(image), {}};
  }
  Compiled r = compile(source, arch);
  ++g_compiled;
  write_image(path, r.image);
  return r;
}
cudaKernel_t load_kernel([[maybe_unused]] const std::string& image, [[maybe_unused]] const char* name) {
  cudaKernel_t kernel = nullptr;
#if TG_LOADS_KERNELS
  cudaLibrary_t library = nullptr;
  check(cudaLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cuda",
        "loading a compiled kernel");
  check(cudaLibraryGetKernel(&kernel, library, name), "cuda", "finding a compiled kernel");
#endif
  return kernel;
}
RtcStats rtc_stats() { return {g_compiled, g_read}; }

}  // namespace tg::cuda
