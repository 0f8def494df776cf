# Runs the programs of models/examples and checks their output:
#   cmake -Dspiral=<program> ... -DTEXT=<file> -DWORK=<folder> -P examples.cmake
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/model)

# The last number after `label` in what the program prints is below `most`, or above `least` as the comparison says.
function(check label comparison bar)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK} OUTPUT_VARIABLE out ERROR_VARIABLE err
                  RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN} ended with ${status}\n${out}${err}")
  endif()
  string(REGEX MATCHALL "${label} ([0-9.]+)" all "${out}")
  list(POP_BACK all last)
  string(REGEX REPLACE "^.* " "" value "${last}")
  if("${value}" STREQUAL "" OR NOT value ${comparison} bar)
    message(FATAL_ERROR "${ARGN}: '${label}' is '${value}', and must be ${comparison} ${bar}\n${out}")
  endif()
endfunction()

check("accuracy" GREATER 0.95 ${spiral} 300)
check("accuracy" GREATER 0.9 ${vit} 150)
check("reward" GREATER 0.8 ${grpo} 60)
check("validation loss" LESS 2.9 ${bert} ${TEXT} 500)
check("validation loss" LESS 2.65 ${moe} ${TEXT} 400 1 model)
check("validation loss" LESS 2.5 ${moe} ${TEXT} 400 2)
# Stopped and resumed, the run ends in the same file.
check("loss" LESS 3.2 ${gpt} ${TEXT} 100 whole.safetensors)
check("loss" LESS 3.6 ${gpt} ${TEXT} 50 parts.safetensors)
check("loss" LESS 3.2 ${gpt} ${TEXT} 100 parts.safetensors)
file(SHA256 ${WORK}/whole.safetensors whole)
file(SHA256 ${WORK}/parts.safetensors parts)
if(NOT whole STREQUAL parts)
  message(FATAL_ERROR "gpt: 50 steps and 50 more make another checkpoint than 100 steps")
endif()
