# Embeds files as strings: cmake -DROOT=<repository> -DOUT=<file.cpp> -DHEADERS=<a.h|b.h ...> -DALGORITHMS=<a.txt|b.txt
# ...> -P embed.cmake. Headers are for kernels compiled at run time (cuda/jit/rtc.h), algorithms are tuned GEMMs
# (cuda/gemm/gemm.h).
foreach(kind HEADERS ALGORITHMS)
  string(REPLACE "|" ";" files "${${kind}}")
  set(${kind}_texts "")
  foreach(file IN LISTS files)
    file(READ ${ROOT}/${file} text)
    if(kind MATCHES "^HEADERS$")
      string(APPEND HEADERS_texts "    {\"tapegrad/${file}\", R\"~text~(${text})~text~\"},\n")
    else()
      string(APPEND ALGORITHMS_texts "    R\"~text~(${text})~text~\",\n")
    endif()
  endforeach()
endforeach()
file(WRITE ${OUT} "// Made by cmake/embed.cmake.
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/jit/rtc.h>

#include <vector>

namespace tg::cuda {
std::span<const EmbeddedHeader> embedded_headers() {
  static constexpr EmbeddedHeader all[] = {
${HEADERS_texts}  };
  return all;
}
std::span<const std::string_view> shipped_algorithms() {
  static const std::vector<std::string_view> all{
${ALGORITHMS_texts}  };
  return all;
}
}  // namespace tg::cuda
")
