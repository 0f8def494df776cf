# CPU kernel files are compiled for the baseline and for each level in TG_CPU_LEVELS; registration selects the machine's
# highest. The baseline comes first in the archive: shared inline functions resolve to code that runs everywhere.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(TG_CPU_LEVELS "3;4"
      CACHE STRING "x86-64 levels with separate kernels, in addition to the baseline: 3 (AVX2), 4 (AVX-512)")
else()
  set(TG_CPU_LEVELS "" CACHE STRING "no levels on ${CMAKE_SYSTEM_PROCESSOR}")
endif()

# GCC's generic tuning: a level runs on many processors. Loops vectorise without errno and traps of math functions.
# Target options: a precompiled header and its includers must agree on sqrt() etc.
set(TG_MATH_FLAGS -fno-math-errno -fno-trapping-math)
set(TG_KERNEL_FLAGS -O3)
# clang is six times slower at -O1.
if(TG_SANITIZE MATCHES address)
  set(TG_KERNEL_FLAGS -O0)
elseif(CMAKE_BUILD_TYPE STREQUAL "Debug" OR TG_SANITIZE)
  set(TG_KERNEL_FLAGS "")
endif()
# With higher levels, the baseline serves processors before 2013, except for kernels without other levels.
set(TG_BASELINE_FLAGS ${TG_KERNEL_FLAGS})
if(TG_CPU_LEVELS AND TG_KERNEL_FLAGS STREQUAL "-O3")
  set(TG_BASELINE_FLAGS -O2)
endif()

# cpu/kernels, cpu/attention and cpu/gemm are compiled per level, cpu/scalar once.
function(tg_add_kernel_levels target)
  target_compile_options(${target} PRIVATE ${TG_MATH_FLAGS})
  foreach(folder scalar kernels attention gemm)
    file(GLOB ${folder} CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/cpu/${folder}/*.cpp)
  endforeach()
  set_source_files_properties(${scalar} PROPERTIES COMPILE_OPTIONS "${TG_KERNEL_FLAGS}")
  # Levels and compilers have the same bits: only matrix products, whose sums are chains of fma, leave a choice. g++
  # takes this option from a precompiled header.
  set(exact ${kernels} ${attention})
  list(REMOVE_ITEM exact cpu/kernels/block_linear.cpp)  # includes products
  set_source_files_properties(${exact} PROPERTIES COMPILE_OPTIONS -ffp-contract=off SKIP_PRECOMPILE_HEADERS ON)
  if(TG_SANITIZE)
    # Instrumented code is not vectorised, and GEMM alone has different sources per level: sanitizer builds compile its
    # callers alone per level.
    foreach(file IN LISTS kernels)
      file(STRINGS ${PROJECT_SOURCE_DIR}/${file} calls REGEX "<tapegrad/cpu/gemm/")
      if(NOT calls)
        list(REMOVE_ITEM kernels ${file})
        list(APPEND scalar ${file})
      endif()
    endforeach()
  endif()
  foreach(level IN ITEMS 1 LISTS TG_CPU_LEVELS)
    if(NOT level MATCHES "^[134]$")
      message(FATAL_ERROR "TG_CPU_LEVELS is ${TG_CPU_LEVELS}. It may contain 3 and 4.")
    endif()
    if(level EQUAL 1)
      add_library(tg_kernels_v1 OBJECT ${scalar} ${kernels} ${attention} ${gemm})
      target_compile_options(tg_kernels_v1 PRIVATE ${TG_BASELINE_FLAGS})
      target_link_libraries(tg_kernels_v1 PRIVATE Eigen3::Eigen)  # the baseline's GEMM
    else()
      add_library(tg_kernels_v${level} OBJECT ${kernels} ${attention} ${gemm})
      target_compile_options(tg_kernels_v${level} PRIVATE ${TG_KERNEL_FLAGS} -march=x86-64-v${level} -mtune=generic)
      target_compile_definitions(tg_kernels_v${level} PRIVATE TG_ISA_LEVEL=${level})
    endif()
    # Joining files gains little, and one change would recompile eight.
    set_target_properties(tg_kernels_v${level} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
    target_compile_features(tg_kernels_v${level} PUBLIC cxx_std_20)
    target_compile_options(tg_kernels_v${level} PRIVATE ${TG_MATH_FLAGS})
    if(level EQUAL 4)
      target_compile_options(tg_kernels_v${level} PRIVATE -mprefer-vector-width=512)
    endif()
    target_compile_definitions(tg_kernels_v${level} PRIVATE TG_LIBRARY)
    target_include_directories(tg_kernels_v${level} PRIVATE ${PROJECT_BINARY_DIR}/include)
    target_link_libraries(tg_kernels_v${level} PRIVATE tg_flags fmt::fmt Threads::Threads)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # g++ 12 warns about undefined values in its AVX-512 intrinsics.
      target_compile_options(tg_kernels_v${level} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
    # Unoptimised intrinsics do not compile behind a precompiled header.
    if(TG_KERNEL_FLAGS STREQUAL "-O3")
      target_precompile_headers(tg_kernels_v${level} PRIVATE <tapegrad/core/op.h>)
    endif()
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:tg_kernels_v${level}>)
  endforeach()
endfunction()
