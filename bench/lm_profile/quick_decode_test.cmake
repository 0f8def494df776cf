# Tests bench_decode: cmake -DPROGRAM=<bench_decode> -DOUT=<folder> -P quick_decode_test.cmake. Tokens must be equal and
# rates positive.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
execute_process(COMMAND ${PROGRAM} --arch nano --batch 2 --prompt 3,9 --tokens 5 --rounds 2 --commit test
                --json ${OUT}/run.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
prints("${text}" "nano, f32: 2 text.s., 5 tokens after a prompt of 3"
       "nano, bf16: 2 text.s., 5 tokens after a prompt of 9"
       "growing cache, eager +[0-9.]+ tokens/s" "fixed cache, eager" "fixed cache, compiled")
read_results(${OUT}/run.json json device)
foreach(i RANGE 3)
  foreach(k RANGE 2)
    positive("${json}" "decoding;${i};ways;${k}" tokens_per_second)
  endforeach()
endforeach()
fails(2 "--tokens is 1" --arch nano --tokens 1)
fails(1 "gpt9" --arch gpt9)
fails(2 "quik" --quik)
