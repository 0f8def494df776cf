# The CUDA backend of tg_core: the files of cuda/.
#   ON       by nvcc; AUTO is ON if nvcc and the toolkit are found, else OFF
#   EMULATE  by the host compiler on tests/emulator, without toolkit or GPU
# A build with ON starts without a GPU or driver.
set(TG_HAS_CUDA OFF)
include(cmake/tapegradKernels.cmake)
if(TG_CUDA MATCHES "^(ON|AUTO)$")
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # 80: PTX for later GPUs.
    set(CMAKE_CUDA_ARCHITECTURES 80 90a-real CACHE STRING "GPUs to compile for")
  endif()
  check_language(CUDA)
  find_package(CUDAToolkit 12.4 QUIET)
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND AND TARGET CUDA::cublasLt AND TARGET CUDA::nvrtc)
    tapegrad_enable_cuda()
    set(TG_HAS_CUDA ON)
  elseif(TG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TG_CUDA=ON needs nvcc and the CUDA toolkit (12.4 or newer, with cuBLASLt and NVRTC), "
                        "and they were not found. "
                        "Install\n  apt install cuda-toolkit | dnf install cuda-toolkit\nof NVIDIA's repository, "
                        "or point "
                        "CMAKE_CUDA_COMPILER to nvcc. Without a GPU, use TG_CUDA=OFF or TG_CUDA=EMULATE.")
  endif()
endif()
if(TG_CUDA STREQUAL "EMULATE" AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(FATAL_ERROR "TG_CUDA=EMULATE needs g++, because the emulator uses its instrumentation; "
                      "this is ${CMAKE_CXX_COMPILER_ID}.")
elseif(TG_CUDA STREQUAL "EMULATE" AND TG_SANITIZE)
  message(FATAL_ERROR "TG_CUDA=EMULATE replaces a sanitizer: TG_SANITIZE must be empty.")
endif()
if(TG_HAS_CUDA)
  message(STATUS "tapegrad: CPU and CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES} (TG_CUDA=${TG_CUDA})")
elseif(TG_CUDA STREQUAL "EMULATE")
  message(STATUS "tapegrad: CPU, and an emulated GPU for tests (TG_CUDA=EMULATE)")
else()
  message(STATUS "tapegrad: CPU backend only (TG_CUDA=${TG_CUDA})")
endif()

set_property(GLOBAL PROPERTY TAPEGRAD_KERNELS "")
if(TG_HAS_CUDA)
  set_property(GLOBAL PROPERTY TAPEGRAD_KERNELS nvcc)
  set_property(GLOBAL PROPERTY TAPEGRAD_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
elseif(TG_CUDA STREQUAL "EMULATE")
  set_property(GLOBAL PROPERTY TAPEGRAD_KERNELS emulator)
endif()

function(tg_kernel_library target)
  tapegrad_kernel_objects(${target} ${ARGN})
  target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_link_libraries(${target} PRIVATE fmt::fmt Threads::Threads)
  if(TG_HAS_CUDA)
    target_compile_options(${target} PRIVATE -lineinfo -Xcompiler=-Wall,-Wextra
                           $<$<BOOL:${TG_WERROR}>:-Werror=all-warnings> -Xptxas=-v)
    set(launcher sh ${PROJECT_SOURCE_DIR}/cmake/keep_ptxas.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
    set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  else()
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unknown-pragmas $<$<BOOL:${TG_WERROR}>:-Werror>)
  endif()
endfunction()

function(tg_add_cuda target)
  if(NOT TG_HAS_CUDA AND NOT TG_CUDA STREQUAL "EMULATE")
    return()
  endif()
  file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*/*.cu)
  file(GLOB runtime CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.cpp ${PROJECT_SOURCE_DIR}/cuda/*/*.cpp)
  tg_kernel_library(tg_cuda_kernels ${kernels})
  if(NOT TG_HAS_CUDA)
    target_precompile_headers(tg_cuda_kernels PRIVATE <tapegrad/core/op.h>)
  endif()
  set(headers core/half.h core/math.h cuda/jit/chain_kernel.h cuda/device/grid_loop.h cuda/device/ptx.h
      cuda/device/vec.h ops/binary.h ops/comparison.h
              ops/pointwise.h)
  set(embedded ${PROJECT_BINARY_DIR}/embedded_headers.cpp)
  file(GLOB algorithms CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/bench/gpu/gemm_*.txt)
  set(depends ${headers} ${algorithms})
  list(TRANSFORM depends PREPEND ${PROJECT_SOURCE_DIR}/)
  list(JOIN headers "|" headers)
  list(JOIN algorithms "|" algorithms)
  add_custom_command(OUTPUT ${embedded} DEPENDS ${depends} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake VERBATIM
                     COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DOUT=${embedded} -DHEADERS=${headers}
                             -DALGORITHMS=${algorithms} -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
  add_library(tg_cuda_runtime OBJECT ${runtime} ${embedded})
  set_target_properties(tg_cuda_runtime PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  target_include_directories(tg_cuda_runtime PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_compile_features(tg_cuda_runtime PRIVATE cxx_std_20)
  target_link_libraries(tg_cuda_runtime PRIVATE fmt::fmt Threads::Threads tg_flags)
  target_precompile_headers(tg_cuda_runtime PRIVATE <tapegrad/core/op.h>)
  set(gpus "80-real, 90a-real")  # GPUs of the emulator
  if(TG_HAS_CUDA)
    list(JOIN CMAKE_CUDA_ARCHITECTURES ", " gpus)
  endif()
  set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda/runtime/errors.cpp PROPERTIES COMPILE_DEFINITIONS
                              "TG_CUDA_ARCHITECTURES=\"${gpus}\"")
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:tg_cuda_kernels> $<TARGET_OBJECTS:tg_cuda_runtime>)
  if(TG_HAS_CUDA)
    # Loaded on first use (cuda/runtime/shared_library.h), from the system or else this toolkit.
    target_compile_definitions(tg_cuda_runtime PRIVATE TG_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
    target_link_libraries(tg_cuda_runtime PRIVATE CUDA::cudart_static)
    # Loaded by the first profiler.
    if(TARGET CUDA::cupti)
      cmake_path(GET CUDA_cupti_LIBRARY PARENT_PATH cupti)
      target_compile_definitions(tg_cuda_runtime PRIVATE TG_HAS_CUPTI TG_CUPTI_LIBRARIES="${cupti}")
      target_include_directories(tg_cuda_runtime SYSTEM PRIVATE ${CUDAToolkit_CUPTI_INCLUDE_DIR})
    endif()
    # Link only: code without CUDA is not rebuilt.
    target_link_libraries(${target} INTERFACE $<LINK_ONLY:CUDA::cudart_static>)
  else()
    file(GLOB emulator CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/emulator/*.cpp)
    add_library(tg_emulator OBJECT ${emulator})
    set_target_properties(tg_emulator PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)  # its files reuse names
    target_include_directories(tg_emulator PUBLIC ${PROJECT_BINARY_DIR}/include)
    target_compile_features(tg_emulator PUBLIC cxx_std_20)
    target_compile_definitions(tg_emulator PUBLIC TG_CUDA_EMULATED)
    target_compile_options(tg_emulator PRIVATE -O2)
    list(JOIN TG_EMULATE_CHECKS " " checks)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/emulator/nvrtc.cpp PROPERTIES COMPILE_DEFINITIONS
      "SIMT_COMPILER=\"${CMAKE_CXX_COMPILER}\";SIMT_INCLUDE=\"${PROJECT_BINARY_DIR}/include\";\
SIMT_FLAGS=\"-x c++ -std=c++20 -O1 -g1 -Wall -Wextra -Wno-unknown-pragmas ${checks}\"")
    target_link_libraries(tg_emulator PRIVATE tg_flags Threads::Threads)
    target_compile_definitions(tg_cuda_runtime PRIVATE TG_CUDA_EMULATED)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:tg_emulator>)
  endif()
  target_link_libraries(${target} INTERFACE $<LINK_ONLY:${CMAKE_DL_LIBS}>)
endfunction()
