# Tests bench_lm_profile: cmake -DPROGRAM=<bench_lm_profile> -DOUT=<folder> -P quick_test.cmake. All types and forms of
# the tiny size must print tables, answers and positive times.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
set(tiny --size tiny --batch 1 --context 8 --vocab 40)
execute_process(COMMAND ${PROGRAM} ${tiny} --answers --against-document --commit test --json ${OUT}/run.json
                --trace ${OUT}/trace.json --csv ${OUT}/csv
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text ERROR_QUIET)
prints("${text}" "Model: tiny, Context Length: 8" "type=forward" "type=backward" "type=train" "Profiling complete"
       "nvtx_sum"
       ":warmup" ":profiled_step" ":attention_sublayer" "cpu_kern_sum" "\n1. " "\n9. "
       "GFLOP/s, [0-9.]+ % of [0-9]+\n")
file(GLOB tables ${OUT}/csv/tiny_*.csv)
list(LENGTH tables count)
if(count LESS 18)  # ranges, calls and kernels of six runs
  message(FATAL_ERROR "${count} tables in ${OUT}/csv")
endif()
if(text MATCHES "Ask for --answers" OR text MATCHES "Compared with document")
  message(FATAL_ERROR "an answer is missing, or figures of another size are beside ours:\n${text}")
endif()
read_results(${OUT}/run.json json device)
has_members("${json}" 6 runs)  # three types of the first form; train of three others
foreach(i RANGE 5)
  positive("${json}" "runs;${i}" peak_bytes tables)
  positive("${json}" "runs;${i};step" seconds kernel_seconds)
  positive("${json}" "runs;${i};timeline" kernels tracks)
  positive("${json}" "runs;${i};timeline;memory" points)
  string(JSON name GET "${json}" runs ${i} timeline ranges 0 0)
  string(JSON ranges LENGTH "${json}" runs ${i} timeline ranges)
  string(JSON points LENGTH "${json}" runs ${i} timeline memory points)
  if(NOT name STREQUAL "profiled_step" OR ranges LESS 10 OR points GREATER 600)
    message(FATAL_ERROR "run ${i}: the timeline begins with ${name}, ${ranges} ranges, ${points} points of memory")
  endif()
endforeach()
file(READ ${OUT}/trace.json trace)
string(JSON events LENGTH "${trace}" traceEvents)
if(NOT events GREATER 100)
  message(FATAL_ERROR "${events} events in ${OUT}/trace.json")
endif()

fails(1 "Did you mean 'small'" --size smal)
fails(2 "--warmup is -1" ${tiny} --warmup -1)
fails(2 "--batch is 0. It must be from 1 to" ${tiny} --batch 0)
fails(2 "--context is 1. It must be from 2 to" ${tiny} --context 1)
fails(2 "--layers is -1" ${tiny} --layers -1)
fails(2 "'fusd' is not known" ${tiny} --form fusd)
fails(1 "is no device" ${tiny} --device abacus)
fails(1 "too little. .*These would fit: --batch [0-9]+ " --size small --batch 100000)
fails(1 "no/such/folder" ${tiny} --trace /no/such/folder/trace.json)
fails(1 "no/such/folder" ${tiny} --json /no/such/folder/run.json)
fails(2 "quik" --quik)
