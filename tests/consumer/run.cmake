# Builds and runs the project in this folder against an installed copy and against the sources:
#   cmake -DBUILD=<build tree of tapegrad> [-DWAY=installed|sources|cuda] -P run.cmake
# The copy is installed below the build tree. The sources are built anew, unoptimised, for one CPU level and without
# precompiled headers: this asks whether they build inside another project; the test programs ask the rest. With
# TG_TEST_EFFORT above 1 each source file is compiled alone, which asks whether it includes what it needs, and the
# installed headers are compiled by each compiler in each standard; otherwise files are joined, and each compiler takes
# one standard. `cuda` is an installed copy again, of a build with the CUDA backend or the emulator, for the
# ops with kernels of their own alone; without a GPU, nvcc compiles them and they are not run.
cmake_minimum_required(VERSION 3.25)
load_cache(${BUILD} READ_WITH_PREFIX tg_ CMAKE_CXX_COMPILER CMAKE_GENERATOR CMAKE_PREFIX_PATH TG_CUDA CMAKE_CUDA_COMPILER)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH source)
cmake_path(GET source PARENT_PATH source)
set(work ${BUILD}/consumer)
set(effort 1)
if(DEFINED ENV{TG_TEST_EFFORT})
  set(effort $ENV{TG_TEST_EFFORT})
endif()
if(NOT WAY)
  set(WAY installed sources)
endif()

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "consumer: '${command}' ended with ${status}")
  endif()
endfunction()

foreach(way IN LISTS WAY)
  set(prefixes ${tg_CMAKE_PREFIX_PATH})
  if(way MATCHES "^(installed|cuda)$")
    file(REMOVE_RECURSE ${work}/prefix_${way})
    run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix_${way})
    list(PREPEND prefixes ${work}/prefix_${way})
    set(options -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
    if(tg_CMAKE_CUDA_COMPILER)
      list(APPEND options -DCMAKE_CUDA_COMPILER=${tg_CMAKE_CUDA_COMPILER})
    endif()
  else()
    set(options -DTAPEGRAD_SOURCE=${source} -DTG_TESTS=OFF -DTG_BENCH=OFF -DTG_CPU_LEVELS= -DTG_CUDA=OFF
        -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON)
    if(effort EQUAL 1)
      list(APPEND options -DCMAKE_UNITY_BUILD=ON)
    endif()
  endif()
  string(REPLACE ";" "\\;" prefixes "${prefixes}")
  file(REMOVE_RECURSE ${work}/${way})
  run(${CMAKE_COMMAND} -G ${tg_CMAKE_GENERATOR} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/${way}
    -DCMAKE_CXX_COMPILER=${tg_CMAKE_CXX_COMPILER} -DCMAKE_PREFIX_PATH=${prefixes} -DCMAKE_BUILD_TYPE=Debug
    -DCMAKE_CXX_FLAGS_DEBUG=-O0 ${options})
  if(way STREQUAL cuda)
    run(${CMAKE_COMMAND} --build ${work}/${way} --target own_ops)
    foreach(schedule 0 1 2)  # the emulator's
      run(${CMAKE_COMMAND} -E env TG_EMULATE_SCHEDULE=${schedule} ${work}/${way}/own_ops cuda)
    endforeach()
    continue()
  endif()
  run(${CMAKE_COMMAND} --build ${work}/${way} --target train everyday plugin host own_ops readme)
  run(${work}/${way}/own_ops cpu)
  run(${work}/${way}/train)
  execute_process(COMMAND ${work}/${way}/everyday WORKING_DIRECTORY ${work}/${way} COMMAND_ERROR_IS_FATAL ANY)
  run(${work}/${way}/host ${work}/${way}/libplugin.so)
  if(way STREQUAL installed)  # and by a compiler alone
    find_program(pkg_config pkg-config REQUIRED)
    file(GLOB_RECURSE pc ${work}/prefix_${way}/*/tapegrad.pc)
    execute_process(COMMAND ${pkg_config} --cflags --libs ${pc} OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE
                    COMMAND_ERROR_IS_FATAL ANY)
    separate_arguments(flags UNIX_COMMAND "${flags}")
    run(${tg_CMAKE_CXX_COMPILER} ${CMAKE_CURRENT_LIST_DIR}/train.cpp -o ${work}/${way}/train_pc ${flags})
    run(${work}/${way}/train_pc)
    # No header warns, in either standard, by either compiler.
    find_program(clang NAMES clang++-16 clang++)
    file(GLOB programs ${source}/models/examples/*.cpp)
    list(APPEND programs ${CMAKE_CURRENT_LIST_DIR}/everyday.cpp ${CMAKE_CURRENT_LIST_DIR}/host.cpp)
    if(NOT clang)
      message(STATUS "skipped: there is no clang++ to compile the examples with")
    endif()
    foreach(compiler ${tg_CMAKE_CXX_COMPILER} $CACHE{clang})
      set(standards 20 2b)
      if(effort EQUAL 1 AND compiler STREQUAL tg_CMAKE_CXX_COMPILER)
        set(standards 20)
      elseif(effort EQUAL 1)
        set(standards 2b)
      endif()
      foreach(standard IN LISTS standards)
        foreach(program IN LISTS programs)
          execute_process(COMMAND ${compiler} -std=c++${standard} -I${work}/prefix_${way}/include -Wall -Wextra -Wpedantic -Wshadow
                                  -Wconversion -Wold-style-cast -Werror -fsyntax-only ${program} COMMAND_ERROR_IS_FATAL ANY)
        endforeach()
      endforeach()
    endforeach()
  endif()
endforeach()
