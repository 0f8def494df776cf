# The CUDA backend of tg_core: the files of cuda/*/.
#   ON       by nvcc; AUTO is ON where nvcc and the toolkit are found, else OFF
#   EMULATE  by the host compiler on the emulator in cuda/simt, which checks every access; no toolkit, no GPU needed
# A build with ON starts on machines without a GPU or driver; asking for the device there is an Error.
set(TG_HAS_CUDA OFF)
if(TG_CUDA MATCHES "^(ON|AUTO)$")
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real CACHE STRING "GPUs to compile for")
  endif()
  check_language(CUDA)
  find_package(CUDAToolkit 12.4 QUIET)
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND AND TARGET CUDA::cublasLt AND TARGET CUDA::nvrtc)
    enable_language(CUDA)
    set(TG_HAS_CUDA ON)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 has not heard that nvcc 12 and later take C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    endif()
  elseif(TG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TG_CUDA=ON needs nvcc and the CUDA toolkit (12.4 or newer, with cuBLASLt and NVRTC), and they were not found. "
                        "Install\n  apt install cuda-toolkit | dnf install cuda-toolkit\nof NVIDIA's repository, or point "
                        "CMAKE_CUDA_COMPILER to nvcc. Without a GPU, use TG_CUDA=OFF or TG_CUDA=EMULATE.")
  endif()
endif()
if(TG_CUDA STREQUAL "EMULATE" AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(FATAL_ERROR "TG_CUDA=EMULATE needs g++, whose instrumentation the emulator reads; this is ${CMAKE_CXX_COMPILER_ID}.")
elseif(TG_CUDA STREQUAL "EMULATE" AND TG_SANITIZE)
  message(FATAL_ERROR "TG_CUDA=EMULATE takes the place of a sanitizer: TG_SANITIZE must be empty.")
endif()
if(TG_HAS_CUDA)
  message(STATUS "tapegrad: CPU and CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES} (TG_CUDA=${TG_CUDA})")
elseif(TG_CUDA STREQUAL "EMULATE")
  message(STATUS "tapegrad: CPU, and an emulated GPU for tests (TG_CUDA=EMULATE)")
else()
  message(STATUS "tapegrad: CPU backend only (TG_CUDA=${TG_CUDA})")
endif()

# What makes the host compiler call the emulator before each access.
set(TG_EMULATE_CHECKS -fsanitize=thread,alignment,bounds-strict --param=tsan-instrument-func-entry-exit=0)

# A library of kernel sources, compiled by nvcc or, for the emulator, by the host compiler, whose calls before each load
# and store end there: no sanitizer is linked. For the folder that calls it.
function(tg_kernel_library target)
  if(NOT TG_HAS_CUDA)
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  endif()
  add_library(${target} OBJECT ${ARGN})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_link_libraries(${target} PRIVATE fmt::fmt Threads::Threads)
  if(TG_HAS_CUDA)
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
    # fmt 9 needs to be told that constexpr works in nvcc. 20014: functors are templates for host types too, where they
    # call host functions.
    target_compile_features(${target} PRIVATE cuda_std_20)
    target_compile_definitions(${target} PRIVATE FMT_USE_CONSTEXPR=1)
    target_compile_options(${target} PRIVATE --expt-relaxed-constexpr -diag-suppress=20014 -lineinfo
                           -Xcompiler=-Wall,-Wextra $<$<BOOL:${TG_WERROR}>:-Werror=all-warnings> -Xptxas=-v)
    set(launcher sh ${PROJECT_SOURCE_DIR}/cmake/keep_ptxas.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
    set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  else()
    target_compile_features(${target} PRIVATE cxx_std_20)
    target_compile_definitions(${target} PRIVATE TG_CUDA_EMULATED)
    target_compile_options(${target} PRIVATE -x c++ -O1 -g1 -Wall -Wextra -Wno-unknown-pragmas
                           $<$<BOOL:${TG_WERROR}>:-Werror> ${TG_EMULATE_CHECKS})
  endif()
endfunction()

function(tg_add_cuda target)
  if(NOT TG_HAS_CUDA AND NOT TG_CUDA STREQUAL "EMULATE")
    return()
  endif()
  file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*/*.cu)
  file(GLOB runtime CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*/*.cpp)
  list(FILTER runtime EXCLUDE REGEX "/cuda/simt/")
  tg_kernel_library(tg_cuda_kernels ${kernels})
  if(NOT TG_HAS_CUDA)
    target_precompile_headers(tg_cuda_kernels PRIVATE <tapegrad/core/op.h>)
  endif()
  # What kernels that are compiled at run time include, as texts in the library.
  set(headers core/half.h core/math.h cuda/jit/chain_kernel.h cuda/device/grid_loop.h cuda/device/ptx.h ops/binary.h ops/comparison.h
              ops/pointwise.h)
  set(embedded ${PROJECT_BINARY_DIR}/embedded_headers.cpp)
  list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE depends)
  list(JOIN headers "|" headers)
  add_custom_command(OUTPUT ${embedded} DEPENDS ${depends} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake VERBATIM
                     COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DOUT=${embedded} -DFILES=${headers}
                             -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
  add_library(tg_cuda_runtime OBJECT ${runtime} ${embedded})
  set_target_properties(tg_cuda_runtime PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(tg_cuda_runtime PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_compile_features(tg_cuda_runtime PRIVATE cxx_std_20)
  target_link_libraries(tg_cuda_runtime PRIVATE fmt::fmt Threads::Threads tg_flags)
  target_precompile_headers(tg_cuda_runtime PRIVATE <tapegrad/core/op.h>)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:tg_cuda_kernels> $<TARGET_OBJECTS:tg_cuda_runtime>)
  if(TG_HAS_CUDA)
    # cuBLASLt and NVRTC are loaded at their first use (cuda/runtime/shared_library.h): where the system does not know them, from
    # this toolkit.
    target_compile_definitions(tg_cuda_runtime PRIVATE TG_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
    target_link_libraries(tg_cuda_runtime PRIVATE CUDA::cudart_static)
    if(TARGET CUDA::cupti)  # loaded by the first profiler; without its headers, profiles say nothing of the GPU
      cmake_path(GET CUDA_cupti_LIBRARY PARENT_PATH cupti)
      target_compile_definitions(tg_cuda_runtime PRIVATE TG_HAS_CUPTI TG_CUPTI_LIBRARIES="${cupti}")
      target_include_directories(tg_cuda_runtime SYSTEM PRIVATE ${CUDAToolkit_CUPTI_INCLUDE_DIR})
    endif()
    # Link only: what is compiled without CUDA is the same with it, and is not compiled again.
    target_link_libraries(${target} INTERFACE $<LINK_ONLY:CUDA::cudart_static>)
  else()
    file(GLOB emulator CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/simt/*.cpp)
    add_library(tg_simt OBJECT ${emulator})
    set_target_properties(tg_simt PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(tg_simt PUBLIC ${PROJECT_BINARY_DIR}/include)
    target_compile_features(tg_simt PUBLIC cxx_std_20)
    target_compile_definitions(tg_simt PUBLIC TG_CUDA_EMULATED)
    target_compile_options(tg_simt PRIVATE -O2)
    list(JOIN TG_EMULATE_CHECKS " " checks)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda/simt/nvrtc.cpp PROPERTIES COMPILE_DEFINITIONS
      "SIMT_COMPILER=\"${CMAKE_CXX_COMPILER}\";SIMT_INCLUDE=\"${PROJECT_BINARY_DIR}/include\";SIMT_FLAGS=\"-x c++ -std=c++20 -O1 -g1 -Wall -Wextra -Wno-unknown-pragmas ${checks}\"")
    target_link_libraries(tg_simt PRIVATE tg_flags Threads::Threads)
    target_compile_definitions(tg_cuda_runtime PRIVATE TG_CUDA_EMULATED)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:tg_simt>)
  endif()
  target_link_libraries(${target} INTERFACE $<LINK_ONLY:${CMAKE_DL_LIBS}>)
endfunction()
