# Tests bench_fragmented: cmake -DPROGRAM=<bench_fragmented> -DOUT=<folder> -P quick_test.cmake. Each cell of a tiny
# grid must appear in each variant, with the document's text and numeric times.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
set(tiny --sizes 64,96 --batches 1,3 --fragments 2,8 --warmup 3 --steps 2)
foreach(run eager compiled)
  execute_process(COMMAND ${PROGRAM} ${tiny} --run ${run} --against-document --commit test --json ${OUT}/${run}.json
                  COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text ERROR_QUIET)
  foreach(line "Forward time: [0-9]+[.][0-9][0-9]ms" "Backward time: -?[0-9]+[.][0-9][0-9]ms"
          "Peak memory: [0-9]+[.][0-9]MB" "Parameters: [0-9]+")
    matches("${text}\n" 40 "\n  ${line}\n")  # sizes, batches, steps, cells
  endforeach()
  prints("${text}" "; f32, TF32 off, 2 timed steps after 3 untimed"
         "\nStep: separate, ${run}\nBenchmarking with input_size=64, output_size=64, batch_size=1\n\
\nDetailed Results:\nLinear Layer:\n  Forward time: "
         "\nStep: folded, ${run}\nBenchmarking with input_size=96, output_size=96, batch_size=3\n"
         "\nFragmentedLinear [(]Train[)] Results:\n\nFragments: 2\n"
         "\nFragmentedLinear [(]Inference[)] Results:\n\nFragments: 2\n"
         "\n64, batch 3, inference, 8 fragments +folded, ${run} ")
  if(text MATCHES "Compared with document")
    message(FATAL_ERROR "the document has no such size:\n${text}")
  endif()
  read_results(${OUT}/${run}.json json device clock warmup steps seed dtype)
  has_members("${json}" 40 cells)
  foreach(i RANGE 39)
    positive("${json}" "cells;${i}" forward_ms live_bytes reserved_bytes parameters first_loss last_loss document_bytes
             fair_bytes stored_bytes folded_bytes)
    string(JSON first GET "${json}" cells ${i} first_loss)
    string(JSON last GET "${json}" cells ${i} last_loss)
    list(APPEND losses_${run} "${first} ${last}")
  endforeach()
endforeach()
equals("losses of compiled cells" "${losses_compiled}" "${losses_eager}")

execute_process(COMMAND ${PROGRAM} --sizes 2048 --batches 1 --fragments 8 --modes linear,inference --step folded
                --warmup 1 --steps 1 --against-document
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text ERROR_QUIET)
prints("${text}" "Compared with document 002" "\n2048, batch 1, linear .* 0[.]12 +1[.]00 +96[.]3 "
       "\n2048, batch 1, inference, 8 fragments .* 1[.]03 +1[.]22 +133[.]3 ")
if(text MATCHES "[(]Train[)]|separate")
  message(FATAL_ERROR "more was measured than was asked for:\n${text}")
endif()

fails(1 "--batches is 0" --sizes 64 --batches 0)
fails(1 "--fragments is 0" --sizes 64 --fragments 0)
fails(1 "--sizes 64 cannot be split into --fragments 7" --sizes 64 --fragments 7)
fails(1 "--sizes is 16" --sizes 16 --fragments 2)
fails(1 "--steps is 0" --sizes 64 --fragments 2 --steps 0)
fails(1 "comes twice" --sizes 64 --fragments 2 --batches 1,1)
fails(2 "Did you mean 'folded'" --step fold)
fails(2 "Did you mean 'inference'" --modes linear,inferrence)
fails(2 "'lazy' is not known" --run lazy)
fails(2 "--seed is '-1'" --seed -1)
fails(2 "--threads is -1" --threads -1)
fails(1 "is no device" --device abacus)
fails(1 "too little" --sizes 131072 --batches 1000000)
fails(2 "modez" --modez train)
