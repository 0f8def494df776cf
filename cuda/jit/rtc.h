// Kernels from source text, at run time: compiled by NVRTC, kept on the disk, loaded. Knows nothing of what they do;
// chain.cpp asks for them.
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
// What sources may include: copies in the library (made by cmake/embed.cmake), so that programs need no files.
std::span<const EmbeddedHeader> embedded_headers();

// Why nothing can be compiled, or loaded: NVRTC is not there, or the toolkit was too old. Empty if all is well.
std::string why_no_compiler();

struct Compiled {
  std::string image;  // a cubin
  std::string log;    // the compiler's warnings; empty for what was read from the disk
};
// The kernels of a source for GPUs of compute capability arch / 10. From the disk, where the same source with the same
// headers was compiled before by the same compiler: a folder of $TG_CACHE_DIR, or $XDG_CACHE_HOME/tapegrad, or
// $HOME/.cache/tapegrad. A file there that is damaged is replaced; a folder that cannot be written is not used. An
// Error(cuda) with what the compiler says if it refuses the source, and where there is no compiler.
Compiled compile_kernels(const std::string& source, int arch);
// Where compile_kernels() keeps the image; empty where no folder is known.
std::string cached_file(const std::string& source, int arch);

// A kernel of an image, on any device of its capability. It stays loaded until the process ends.
cudaKernel_t load_kernel(const std::string& image, const char* name);

struct RtcStats {  // of this process
  uint64_t compiled = 0, read = 0;
};
RtcStats rtc_stats();

}  // namespace tg::cuda
