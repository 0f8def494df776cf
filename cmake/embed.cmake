# Headers as texts in a source file: cmake -DROOT=<repository> -DOUT=<file.cpp> -DFILES=<a.h|b.h ...> -P embed.cmake.
# They are what kernels that are compiled at run time may include (cuda/jit/rtc.h).
string(REPLACE "|" ";" files "${FILES}")
set(entries "")
foreach(file IN LISTS files)
  file(READ ${ROOT}/${file} text)
  string(APPEND entries "    {\"tapegrad/${file}\", R\"~text~(${text})~text~\"},\n")
endforeach()
file(WRITE ${OUT} "// Made by cmake/embed.cmake.
#include <tapegrad/cuda/jit/rtc.h>

namespace tg::cuda {
std::span<const EmbeddedHeader> embedded_headers() {
  static constexpr EmbeddedHeader all[] = {
${entries}  };
  return all;
}
}  // namespace tg::cuda
")
