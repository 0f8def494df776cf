# Tests bench_switchback: cmake -DPROGRAM=<bench_switchback> -DOUT=<folder> -P quick_test.cmake. Each row of a tiny grid
# must appear with the document's lines and objects, numeric times and correct sums.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
set(tiny --dims 32 --batch 48 --repeat 2 --quick)
set(ops standard_fwd standard_gw standard_gx rowwise_fwd rowwise_bwd global_fwd global_bwd x_quantize_rowwise
        g_quantize_rowwise w_quantize_rowwise w_quantize_colwise_transpose w_quantize_global w_quantize_global_transpose
        cast_x cast_g cast_w)
foreach(dtype f32 bf16)
  execute_process(COMMAND ${PROGRAM} ${tiny} --wm 2,3.1 --dtype ${dtype} --against-document --commit test
                  --json ${OUT}/${dtype}.json
                          --jsonl ${OUT}/rows.jsonl
                  COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text ERROR_QUIET)
  foreach(op ${ops})
    matches("${text}" 4 "\ntime ${op}: [0-9]+[.][0-9][0-9][0-9] ms\n")
  endforeach()
  prints("${text}" "; ${dtype} [(]as asked for[)], 2 calls of each op after 1 untimed"
         "row 2 of 4: 64 -> 32, batch 48\n" "\nTOTAL STANDARD "
         "\nTOTAL ROWWISE " "\nTOTAL GLOBAL " "\nspeedup -?[0-9]" "rate w_quantize_global: +[0-9.]+ +GB/s"
         "memory_efficient +compiled "
         "32 -> 99 +48 ")
  if(text MATCHES "Compared with document")
    message(FATAL_ERROR "the document has no such layer:\n${text}")
  endif()
  read_results(${OUT}/${dtype}.json json device clock repeat untimed seed dtype why_dtype)
  has_members("${json}" 4 grid)
  foreach(i RANGE 3)
    positive("${json}" "grid;${i}" ${ops} time_standard time_rowwise time_global best_speedup quantise_share peak_bytes)
    has_members("${json}" 8 "grid;${i};layers")
    has_members("${json}" 16 "grid;${i};rates")
  endforeach()
endforeach()
# The second run appends: one object per row, with the document's keys in order.
file(STRINGS ${OUT}/rows.jsonl lines)
list(LENGTH lines count)
equals("objects in rows.jsonl" ${count} 8)
set(keys repeat batch_size dim_out dim_in wm switch ${ops} time_standard time_rowwise time_global)
foreach(line IN LISTS lines)
  has_members("${line}" 25 "")
  list(JOIN keys "\"[^\"]*\"" order)
  if(NOT line MATCHES "^{\"${order}\"[^\"]*}$")
    message(FATAL_ERROR "not the document's keys in their order: ${line}")
  endif()
endforeach()

execute_process(COMMAND ${PROGRAM} --dims 1024 --batch 1024 --rows 0 --repeat 1 --quick --parts-only
                --against-document COMMAND_ERROR_IS_FATAL ANY
                OUTPUT_VARIABLE text ERROR_QUIET)
prints("${text}" "Compared with document 001" "\n1024 -> 4096 +1024 .* 0[.]47 +0[.]41\n")
if(text MATCHES "step of the layer")
  message(FATAL_ERROR "the layer was timed:\n${text}")
endif()

fails(1 "--repeat is 0" --dims 32 --repeat 0)
fails(1 "is no device" ${tiny} --device abacus)
fails(2 "--dtype is 'f16'. It is one of auto, f32, bf16" ${tiny} --dtype f16)
fails(2 "Did you mean 'True'" ${tiny} --switch true)
fails(2 "--seed is '-1'" ${tiny} --seed -1)
fails(1 "--rows is 2" ${tiny} --rows 2)
fails(1 "--wm has 'wide'" ${tiny} --wm wide)
fails(1 "too little. .*These would fit: --batch [0-9]+ " --dims 8096 --batch 100000000)
fails(2 "quik" --quik)
fails(2 "repeat" --repeat many)
