// Kernels from source text at run time: NVRTC compiles them, the disk caches them.
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

// NVRTC is missing, or the toolkit was too old. Empty if kernels can be compiled.
std::string why_no_compiler();

struct Compiled {
  std::string image;  // a cubin
  std::string log;    // the compiler's warnings; empty if read from disk
};
// The kernels of a source for compute capability arch / 10, read from disk if the same compiler compiled the same
// source and headers before. The folder is $TG_CACHE_DIR, $XDG_CACHE_HOME/tapegrad or $HOME/.cache/tapegrad. A damaged
// file is replaced; a folder that is not writable is not used. An Error(cuda) if there is no compiler, or with its
// message if it refuses the source.
Compiled compile_kernels(const std::string& source, int arch);
// Where compile_kernels() keeps the image; empty if no folder is known.
std::string cached_file(const std::string& source, int arch);

// Runs on any device of its capability; loaded until the process ends.
cudaKernel_t load_kernel(const std::string& image, const char* name);

struct RtcStats {  // of this process
  uint64_t compiled = 0, read = 0;
};
RtcStats rtc_stats();

}  // namespace tg::cuda
