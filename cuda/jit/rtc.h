// Compiles kernels from source text by NVRTC at run time, caches them on disk, and loads them.
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
// Headers that sources may include, embedded by cmake/embed.cmake so that programs need no files.
std::span<const EmbeddedHeader> embedded_headers();

// Why kernels cannot be compiled or loaded: NVRTC is missing, or the toolkit was too old. Empty if they can.
std::string why_no_compiler();

struct Compiled {
  std::string image;  // a cubin
  std::string log;    // a cubin
};
// The kernels of a source for compute capability arch / 10, read from disk if the same compiler compiled the same
// source and headers before. The folder is $TG_CACHE_DIR, $XDG_CACHE_HOME/tapegrad or $HOME/.cache/tapegrad. A damaged
// file is replaced; a folder that is not writable is not used. An Error(cuda) has the compiler's message if it refuses
// the source, or says that there is no compiler.
Compiled compile_kernels(const std::string& source, int arch);
// The image's path for compile_kernels(); empty if no folder is known.
std::string cached_file(const std::string& source, int arch);

// A kernel of an image, on any device of its capability, loaded until the process ends.
cudaKernel_t load_kernel(const std::string& image, const char* name);

struct RtcStats {  // of this process
  uint64_t compiled = 0, read = 0;
};
RtcStats rtc_stats();

}  // namespace tg::cuda
