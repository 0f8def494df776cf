# CPU kernel files are compiled for the baseline and again for each level in TG_CPU_LEVELS; registration at start-up
# keeps the highest that the machine has (core/backend/registry.h). The baseline's objects come first in the archive, so that
# functions which several levels define inline are taken from code that runs everywhere.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(TG_CPU_LEVELS "3;4" CACHE STRING "x86-64 levels with kernels of their own, beside the baseline: 3 (AVX2), 4 (AVX-512)")
else()
  set(TG_CPU_LEVELS "" CACHE STRING "no levels on ${CMAKE_SYSTEM_PROCESSOR}")
endif()

# The tuning is GCC's generic one, as code of a level runs on all its processors. errno and traps of math functions are
# not used anywhere, and without them loops vectorise. These two are options of the targets and not of the kernel files:
# what a precompiled header was told of sqrt() and the like holds for the file that includes it.
set(TG_MATH_FLAGS -fno-math-errno -fno-trapping-math)
set(TG_KERNEL_FLAGS -O3)
if(TG_SANITIZE MATCHES address)  # at -O1, clang takes six times as long to compile what it instruments here
  set(TG_KERNEL_FLAGS -O0)
elseif(CMAKE_BUILD_TYPE STREQUAL "Debug" OR TG_SANITIZE)
  set(TG_KERNEL_FLAGS "")
endif()
# Beside other levels the baseline is for processors of before 2013, but for the kernels that have no other level.
set(TG_BASELINE_FLAGS ${TG_KERNEL_FLAGS})
if(TG_CPU_LEVELS AND TG_KERNEL_FLAGS STREQUAL "-O3")
  set(TG_BASELINE_FLAGS -O2)
endif()

# Files go by their folders: cpu/kernels, cpu/attention and cpu/gemm are compiled for each level, cpu/scalar once.
function(tg_add_kernel_levels target)
  target_compile_options(${target} PRIVATE ${TG_MATH_FLAGS})
  foreach(folder scalar kernels attention gemm)
    file(GLOB ${folder} CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/cpu/${folder}/*.cpp)
  endforeach()
  set_source_files_properties(${scalar} PROPERTIES COMPILE_OPTIONS "${TG_KERNEL_FLAGS}")
  if(TG_SANITIZE)
    # The sources of GEMM differ between levels. All others differ in what the compiler makes of them only, and instrumented
    # code is not vectorised: sanitizers take the kernels that call GEMM.
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
      message(FATAL_ERROR "TG_CPU_LEVELS is ${TG_CPU_LEVELS}. It may hold 3 and 4.")
    endif()
    if(level EQUAL 1)
      add_library(tg_kernels_v1 OBJECT ${scalar} ${kernels} ${attention} ${gemm})
      target_compile_options(tg_kernels_v1 PRIVATE ${TG_BASELINE_FLAGS})
      target_link_libraries(tg_kernels_v1 PRIVATE Eigen3::Eigen)  # products of the baseline
    else()
      add_library(tg_kernels_v${level} OBJECT ${kernels} ${attention} ${gemm})
      target_compile_options(tg_kernels_v${level} PRIVATE ${TG_KERNEL_FLAGS} -march=x86-64-v${level} -mtune=generic)
      target_compile_definitions(tg_kernels_v${level} PRIVATE TG_ISA_LEVEL=${level})
    endif()
    # Kernels take long to compile: joining them gains little, and a change of one would compile eight.
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
      # g++ 12 takes the undefined parts of its own AVX-512 intrinsics for a mistake.
      target_compile_options(tg_kernels_v${level} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized)
    endif()
    if(TG_KERNEL_FLAGS STREQUAL "-O3")  # without optimisation, intrinsics do not compile behind a precompiled header
      target_precompile_headers(tg_kernels_v${level} PRIVATE <tapegrad/core/op.h>)
    endif()
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:tg_kernels_v${level}>)
  endforeach()
endfunction()
