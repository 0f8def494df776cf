# Tests bench_step: cmake -DPROGRAM=<bench_step> -DOUT=<folder> -P quick_test.cmake. Eager and compiled steps must give
# the same loss.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
set(small --arch nano --layers 1 --width 32 --heads 2 --context 16 --batch 2 --steps 3 --untimed 2)
foreach(mode eager compiled)
  execute_process(COMMAND ${PROGRAM} ${small} --mode ${mode} --commit test --json ${OUT}/${mode}.json
                  COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text ERROR_QUIET)
  prints("${text}" "nano, [0-9]+ parameters, 1 x 2 x 16 tokens, (eager|compiled): median [0-9.]+ ms of 3 steps")
  read_results(${OUT}/${mode}.json json arch device parameters median p10 p90 tokens_per_s peak_bytes)
  has_members("${json}" 3 seconds)
  string(JSON loss_${mode} GET "${json}" loss)
  string(JSON batch GET "${json}" run train batch)
  equals(batch ${batch} 2)
  string(JSON compiled GET "${json}" compiled)
  if(mode STREQUAL eager)
    equals(compiled "${compiled}" "")
  endif()
endforeach()
string(JSON replays GET "${compiled}" replays)
equals(replays ${replays} 4)
equals("the compiled loss" ${loss_compiled} ${loss_eager})

execute_process(COMMAND ${PROGRAM} ${small} --dtype bf16 --lora-rank 2 --mode compiled --json ${OUT}/lora.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET ERROR_QUIET)
read_results(${OUT}/lora.json json trained)
string(JSON trained GET "${json}" trained)
equals("parameters of the adapters" ${trained} 1024)  # 2 (32 + 96) + 2 (32 + 32) + 2 (32 + 128) + 2 (128 + 32)
execute_process(COMMAND ${PROGRAM} ${small} --lr 1e-6 COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)  # below the usual min_lr
fails(2 "--steps is 0" --steps 0)
fails(2 "Did you mean 'compiled'" ${small} --mode compield)
fails(1 "is no device" ${small} --device abacus)
fails(1 "batch is 'many'" --batch many)
fails(1 "too little. .*These would fit: --batch [0-9]+ " --arch gpt2 --batch 10000000)
fails(2 "Did you mean '--layers'" --layer 3)
