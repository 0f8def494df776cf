# Compiles CUDA kernels, also of other projects:
#   tapegrad_kernels(<target> <file.cu>...)
# compiles by nvcc or, with TG_CUDA=EMULATE, by the host compiler for the emulator; without a CUDA backend it does
# nothing. Call it outside of functions, because it enables the language. GPUs are tapegrad's unless
# CMAKE_CUDA_ARCHITECTURES is set.

# The hooks of the host compiler's sanitizers, without their libraries, call the emulator before each access.
set(TG_EMULATE_CHECKS -fsanitize=thread,alignment,bounds-strict --param=tsan-instrument-func-entry-exit=0)
if(TG_EMULATE_CONTRACTED)  # g++ -O1 contracts in the pass of the first flag
  list(APPEND TG_EMULATE_CHECKS -fexpensive-optimizations -mfma -ffp-contract=fast)
endif()
set_property(GLOBAL PROPERTY TAPEGRAD_EMULATE_CHECKS ${TG_EMULATE_CHECKS})

macro(tapegrad_enable_cuda)
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc 12 and later accept C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
endmacro()

# OBJECT library of kernel files.
function(tapegrad_kernel_objects target)
  get_property(by GLOBAL PROPERTY TAPEGRAD_KERNELS)
  get_property(checks GLOBAL PROPERTY TAPEGRAD_EMULATE_CHECKS)
  if(NOT by STREQUAL "nvcc")
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  endif()
  add_library(${target} OBJECT ${ARGN})
  # One object per file: tests find kernels by name.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  if(by STREQUAL "nvcc")
    # fmt 9 needs FMT_USE_CONSTEXPR for nvcc. Warning 20014: functor templates may call host functions for host types.
    target_compile_features(${target} PRIVATE cuda_std_20)
    target_compile_definitions(${target} PRIVATE FMT_USE_CONSTEXPR=1)
    target_compile_options(${target} PRIVATE --expt-relaxed-constexpr -diag-suppress=20014)
  else()
    target_compile_features(${target} PRIVATE cxx_std_20)
    target_compile_definitions(${target} PRIVATE TG_CUDA_EMULATED)
    target_compile_options(${target} PRIVATE -x c++ -O1 -g1 -Wno-unknown-pragmas ${checks})
  endif()
endfunction()

macro(tapegrad_kernels target)
  get_property(tapegrad_kernels_by GLOBAL PROPERTY TAPEGRAD_KERNELS)
  if(tapegrad_kernels_by)
    if(tapegrad_kernels_by STREQUAL "nvcc")
      if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        get_property(CMAKE_CUDA_ARCHITECTURES GLOBAL PROPERTY TAPEGRAD_CUDA_ARCHITECTURES)
      endif()
      tapegrad_enable_cuda()
    endif()
    tapegrad_kernel_objects(${target}_cuda ${ARGN})
    target_link_libraries(${target}_cuda PRIVATE tapegrad::tapegrad)
    target_include_directories(${target}_cuda PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    target_compile_definitions(${target}_cuda PRIVATE $<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_cuda>)
  endif()
endmacro()
