# Finds every dependency; a missing one stops with its package name.
# (name, minimum version, package for apt, dnf, brew and vcpkg)
function(tg_require package version apt dnf brew vcpkg)
  find_package(${package} ${version} CONFIG QUIET)
  if(NOT ${package}_FOUND)
    string(STRIP "${package} ${version}" what)
    message(FATAL_ERROR "tapegrad needs ${what} and did not find it. Run `sh cmake/deps.sh`, or install one of\n"
                        "  apt install ${apt} | dnf install ${dnf} | brew install ${brew} | vcpkg install ${vcpkg}\n"
                        "or point CMAKE_PREFIX_PATH to it.")
  endif()
  if(${package}_DIR)
    mark_as_advanced(${package}_DIR)
  endif()
  set(${package}_FOUND TRUE PARENT_SCOPE)
endfunction()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
tg_require(fmt 8 libfmt-dev fmt-devel fmt fmt)
tg_require(Eigen3 3.4 libeigen3-dev eigen3-devel eigen eigen3)
tg_require(nlohmann_json 3.10 nlohmann-json3-dev json-devel nlohmann-json nlohmann-json)
find_path(TG_UTF8PROC_INCLUDE utf8proc.h)  # it has no CMake package on some systems
find_library(TG_UTF8PROC_LIBRARY utf8proc)
mark_as_advanced(TG_UTF8PROC_INCLUDE TG_UTF8PROC_LIBRARY)
if(NOT TG_UTF8PROC_INCLUDE OR NOT TG_UTF8PROC_LIBRARY)
  message(FATAL_ERROR "tapegrad needs utf8proc and did not find it. Run `sh cmake/deps.sh`, or install one of\n"
                      "  apt install libutf8proc-dev | dnf install utf8proc-devel | "
                      "brew install utf8proc | vcpkg install utf8proc\n"
                      "or point CMAKE_PREFIX_PATH to it.")
endif()
if(TG_APPS OR TG_BENCH)
  tg_require(CLI11 2.1 libcli11-dev cli11-devel cli11 cli11)
endif()
if(TG_TESTS)
  tg_require(doctest 2.4 doctest-dev doctest-devel doctest doctest)
endif()

# MPI, used by AUTO if found: its C interface, without the C++ one of MPI 2.
if(NOT TG_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TG_MPI is ${TG_MPI}. It must be AUTO, ON or OFF.")
endif()
set(TG_HAS_MPI OFF)
if(NOT TG_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI 3.0 QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(TG_HAS_MPI ON)
    message(STATUS "MPI ${MPI_CXX_VERSION}: training on several processes (TG_MPI)")
  elseif(TG_MPI STREQUAL "ON")
    message(FATAL_ERROR "TG_MPI is ON, and there is no MPI 3. Install one of\n"
                        "  apt install libopenmpi-dev openmpi-bin | dnf install openmpi-devel | "
                        "brew install open-mpi | vcpkg install mpi\n"
                        "or set TG_MPI to OFF.")
  else()
    message(STATUS "no MPI: training on one process (TG_MPI)")
  endif()
endif()

if(NOT TG_CUDA MATCHES "^(AUTO|ON|OFF|EMULATE)$")
  message(FATAL_ERROR "TG_CUDA is ${TG_CUDA}. It must be AUTO, ON, OFF or EMULATE.")
endif()
