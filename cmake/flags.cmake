# Never -ffast-math or -march=native: results are defined, and binaries run on any x86-64 (levels.cmake).
add_library(tg_flags INTERFACE)
target_compile_options(tg_flags INTERFACE -Wall -Wextra -Wshadow $<$<BOOL:${TG_WERROR}>:-Werror>)
target_compile_options(tg_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)
# Position-independent for shared libraries; calls within stay direct.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tg_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>)
endif()
if(TG_SANITIZE)
  string(REPLACE ";" "," sanitizers "${TG_SANITIZE}")
  target_compile_options(tg_flags INTERFACE -fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tg_flags INTERFACE -fsanitize=${sanitizers})
  target_compile_definitions(tg_flags INTERFACE TG_SANITIZED=1)
endif()
