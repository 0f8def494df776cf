# Tests bench_training: cmake -DPROGRAM=<bench_training> -DOUT=<folder> -P quick_test.cmake. Both modes must print each
# id with positive times.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
foreach(mode eager compiled)
  set(changes)
  foreach(run first second)  # the second is compared with the first
    execute_process(COMMAND ${PROGRAM} --quick --mode ${mode} --against-document --commit test
                    --json ${OUT}/${mode}.json
                            --baseline ${OUT}/${mode}_baseline
                    COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text ERROR_QUIET)
    string(REGEX MATCHALL "change:" found "${text}")
    list(LENGTH found count)
    list(APPEND changes ${count})
  endforeach()
  equals("changes of two runs" "${changes}" "0;32")
  prints("${text}" "Compared with document 000")
  read_results(${OUT}/${mode}.json json device mode)
  has_members("${json}" 32 rows)
  foreach(i RANGE 31)
    positive("${json}" "rows;${i};time" low estimate high)
    string(JSON verdict GET "${json}" rows ${i} verdict)
    if(NOT verdict MATCHES "^(no change|within noise|improved|regressed)$")
      message(FATAL_ERROR "verdict of row ${i} is '${verdict}'")
    endif()
  endforeach()
endforeach()

fails(1 "no id has 'no such id'" --quick --filter "no such id")
fails(1 "is no device" --quick --device abacus)
fails(2 "quik" --quik)
fails(2 "fast" --mode fast)
fails(2 "samples" --samples 1)
fails(2 "target" --target 0)
