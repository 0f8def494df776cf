# Tests bench_gpt_timeit, bench_lm_profile, bench_step, bench_switchback and bench_fragmented on cuda, a GPU or
# emulated:
#   cmake -DTIMEIT=<bench_gpt_timeit> -DLM=<bench_lm_profile> -DSTEP=<bench_step> -DSWITCHBACK=<bench_switchback>
#         -DFRAGMENTED=<bench_fragmented> -DOUT=<folder> -P quick_cuda_test.cmake
# Prints "skipped" without such a device. Times are not judged.
include(${CMAKE_CURRENT_LIST_DIR}/common/quick.cmake)
set(tiny --device cuda --size tiny --batch 1 --context 4 --vocab 20)
execute_process(COMMAND ${LM} ${tiny} --types forward --warmup 0 RESULT_VARIABLE status ERROR_VARIABLE error
                OUTPUT_QUIET)
if(status AND error MATCHES "\\[device\\]|\\[cuda\\]")
  message(STATUS "skipped: ${error}")
  return()
endif()

execute_process(COMMAND ${LM} ${tiny} --types backward,train --warmup 1 --json ${OUT}/lm.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
prints("${text}" "Using device: cuda" "cuda_api_sum" "cuda_gpu_kern_sum" "cuda_gpu_mem_size_sum" "\n9. Copies: ")
read_results(${OUT}/lm.json json device)
foreach(i 0 1)
  string(JSON parameters GET "${json}" runs ${i} parameters)
  string(JSON count GET "${json}" runs ${i} copies host_to_device count)
  string(JSON bytes GET "${json}" runs ${i} copies host_to_device bytes)
  math(EXPR want "4 * ${parameters} + 2 * 4 * 4 * 4")  # plus cos and sin: 4 positions, 4 angles
  if(NOT "${count} ${bytes}" MATCHES "^23 ${want}(\\.0)?$")  # 9 weights per layer, 3 others, 2 angle tables
    message(FATAL_ERROR "run ${i}: ${count} copies of ${bytes} bytes to the device, not 23 of ${want}")
  endif()
endforeach()

foreach(mode eager compiled)
  execute_process(COMMAND ${TIMEIT} --device cuda --sizes tiny --batch 1 --context 4 --vocab 20 --steps 2 --warmups 1
                  --mode ${mode}
                          --matrix-only --json ${OUT}/${mode}.json
                  COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
  file(READ ${OUT}/${mode}.json json)
  has_members("${json}" 6 rows)
  foreach(i RANGE 5)
    string(JSON loss GET "${json}" rows ${i} loss)
    list(APPEND losses_${mode} ${loss})
  endforeach()
endforeach()
equals("losses of compiled rows" "${losses_compiled}" "${losses_eager}")

foreach(mode eager compiled)
  execute_process(COMMAND ${STEP} --device cuda --layers 1 --width 32 --heads 2 --context 8 --batch 1 --steps 2
                  --untimed 2
                          --mode ${mode} --json ${OUT}/step_${mode}.json
                  COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
  file(READ ${OUT}/step_${mode}.json json)
  string(JSON step_${mode} GET "${json}" loss)
endforeach()
string(JSON launches GET "${json}" compiled graph_launches)
string(JSON recorded GET "${json}" compiled recorded_ops)
string(JSON ops GET "${json}" compiled ops)
if(NOT step_eager STREQUAL step_compiled OR NOT launches EQUAL 2 OR NOT recorded EQUAL ops)
  message(FATAL_ERROR "losses ${step_eager} and ${step_compiled}, ${launches} launches of a graph, "
                      "${recorded} of ${ops} ops recorded")
endif()

execute_process(COMMAND ${SWITCHBACK} --device cuda --dims 16 --batch 24 --repeat 1 --quick
                --json ${OUT}/switchback.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
prints("${text}" "bf16 [(]this device has instructions" "time global_bwd: " "rate w_quantize_global_transpose: "
       "memory_efficient +compiled ")

execute_process(COMMAND ${FRAGMENTED} --device cuda --sizes 32 --batches 3 --fragments 2,4 --run eager,compiled
                --warmup 4 --steps 1
                        --json ${OUT}/fragmented.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
file(READ ${OUT}/fragmented.json json)
foreach(i RANGE 9)  # 5 cells, steps separate and folded
  math(EXPR compiled "${i} + 10")
  string(JSON eager_loss GET "${json}" cells ${i} last_loss)
  string(JSON compiled_loss GET "${json}" cells ${compiled} last_loss)
  equals("the compiled loss of cell ${i}" ${compiled_loss} ${eager_loss})
endforeach()
