// Kernels from source text: NVRTC compiles them, the disk caches them.
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
std::span<const EmbeddedHeader> embedded_headers();

// Empty if kernels can be compiled.
std::string why_no_compiler();

struct Compiled {
  std::string image;  // a cubin
  std::string log;    // compiler's warnings
};
// Kernels of a source for compute capability arch / 10, from disk if the same compiler compiled the same source and
// headers before. Folder: $TG_CACHE_DIR, $XDG_CACHE_HOME/tapegrad or $HOME/.cache/tapegrad, unless not writable.
// Damaged files are replaced. An Error(cuda) without a compiler, or with its message.
Compiled compile_kernels(const std::string& source, int arch);
// compile_kernels()'s file; empty without a folder.
std::string cached_file(const std::string& source, int arch);

// Loaded until exit.
cudaKernel_t load_kernel(const std::string& image, const char* name);

struct RtcStats {  // counts of this process
  uint64_t compiled = 0, read = 0;
};
RtcStats rtc_stats();

}  // namespace tg::cuda
