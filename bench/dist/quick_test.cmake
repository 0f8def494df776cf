# Does bench_comm work: cmake -DPROGRAM=<bench_comm> -DOUT=<folder> -DMPIRUN=<words> -DTAPEGRAD=<program> -P quick_test.cmake. Without
# MPIRUN only that it refuses to measure alone. The network that it writes is read by tapegrad; how good it is is not judged.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
fails(2 "mpirun -n 2 --bind-to none bench_comm")
if(NOT MPIRUN)
  return()
endif()
set(PROGRAM ${MPIRUN} -n 2 ${PROGRAM})
execute_process(COMMAND ${PROGRAM} --seconds 0 --largest 262144 --commit test --json ${OUT}/run.json --network ${OUT}/network.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
prints("${text}" "2 ranks, 2 on a machine" "all_to_all +8 " "all_reduce +262144 " "nothing was sent between machines")
read_results(${OUT}/run.json json device ranks network)
string(JSON rows LENGTH "${json}" collectives)
if(NOT rows EQUAL 30)  # five at each of 8, 64 ... 262144 bytes
  message(FATAL_ERROR "${rows} rows")
endif()
math(EXPR last "${rows} - 1")
foreach(i RANGE ${last})
  string(JSON seconds GET "${json}" collectives ${i} seconds median)
  if(NOT seconds GREATER 0)
    message(FATAL_ERROR "row ${i} took ${seconds} s")
  endif()
endforeach()
execute_process(COMMAND ${TAPEGRAD} inspect --plan --arch nano --ranks 2 --machine h100 --network ${OUT}/network.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
prints("${text}" "network.json: 2 rank")
fails(1 "--largest is 8. It must be from 4096" --largest 8)
