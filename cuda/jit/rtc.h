// Kernels from source text: NVRTC compiles, the disk caches.
#pragma once
#include <tapegrad/cuda/jit/rtc_api.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tg::cuda {

struct EmbeddedHeader {
  const char *name, *text;
};
// Embedded by cmake/embed.cmake, so that programs need no files.
std::span<const EmbeddedHeader> embedded_headers();

// Empty if kernels can be compiled; else: NVRTC is missing, or the toolkit was too old.
std::string why_no_compiler();

struct Compiled {
  std::string image;  // a cubin
  std::string log;    // the compiler's warnings; empty if read from disk
};
// The kernels of a source for compute capability arch / 10, read from disk if the same compiler compiled the same
// source and headers before. The folder is $TG_CACHE_DIR, $XDG_CACHE_HOME/tapegrad or $HOME/.cache/tapegrad. Damaged
// files are replaced; a folder that is not writable is not used. An Error(cuda) without a compiler, or with its message
// if it refuses the source.
Compiled compile_kernels(const std::string& source, int arch);
// The image's file of compile_kernels(); empty if no folder is known.
std::string cached_file(const std::string& source, int arch);

// Runs on any device of its capability; loaded until exit.
cudaKernel_t load_kernel(const std::string& image, const char* name);

struct RtcStats {  // this process's
  uint64_t compiled = 0, read = 0;
};
RtcStats rtc_stats();

}  // namespace tg::cuda
