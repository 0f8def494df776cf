# The command line on the device cuda, a GPU or the emulator:
#   cmake -DTAPEGRAD=<program> -DWORK=<scratch folder> -P tests/cli/cuda.cmake
# Prints "skipped" where the machine has no such device.
cmake_minimum_required(VERSION 3.25)
set(dir ${WORK}/tapegrad_cli_cuda)
file(REMOVE_RECURSE ${dir})
file(MAKE_DIRECTORY ${dir})
string(REPEAT "the cat sat on the mat and the dog ate the log.\n" 40 text)
file(WRITE ${dir}/text.txt "${text}")

macro(run status)
  execute_process(COMMAND ${TAPEGRAD} ${ARGN} WORKING_DIRECTORY ${dir} RESULT_VARIABLE result OUTPUT_VARIABLE out
                  ERROR_VARIABLE err)
  if(NOT result STREQUAL "${status}")
    message(FATAL_ERROR "tapegrad ${ARGN}\nstatus ${result}, not ${status}\nstdout: ${out}\nstderr: ${err}")
  endif()
endmacro()
macro(expect text)
  string(FIND "${out}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "no '${text}' in: ${out}")
  endif()
endmacro()
macro(same a b what)
  if(NOT "${a}" STREQUAL "${b}")
    message(FATAL_ERROR "${what}: '${a}' and '${b}'")
  endif()
endmacro()

set(tiny --data text.txt --tokenizer char --layers 1 --heads 2 --width 16 --context 8 --batch 2 --max-steps 4 --warmup 2
         --eval-every 4 --val-fraction 0.02)
execute_process(COMMAND ${TAPEGRAD} train ${tiny} --device cuda --out cuda WORKING_DIRECTORY ${dir} RESULT_VARIABLE
  result
                OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(err MATCHES "cuda:0 was asked for, and there is none")
  message(NOTICE "skipped: ${err}")
  return()
endif()
same("${result}" 0 "training: ${err}")
expect("device  cuda (")
expect("4/4")

# The same steps as graphs
run(0 train ${tiny} --device cuda --out graphs --quiet --compile)
file(SHA256 ${dir}/cuda/model.safetensors first)
file(SHA256 ${dir}/graphs/model.safetensors second)
same(${first} ${second} "compiled steps gave another model")

# The losses of the CPU
run(0 train ${tiny} --device cpu --out cpu --quiet)
foreach(device cpu cuda)
  file(STRINGS ${dir}/${device}/log.jsonl lines)
  list(GET lines 3 line)
  string(JSON loss GET "${line}" loss)
  string(SUBSTRING ${loss} 0 5 loss_${device})  # three digits after the point
endforeach()
same("${loss_cpu}" "${loss_cuda}" "losses of step 4 differ")

# Generation, and a run that resumes on the other device
set(sampling --prompt "the" --max-tokens 12 --temperature 0)
run(0 generate --model cuda ${sampling} --device cuda)
set(there "${out}")
run(0 generate --model cuda ${sampling} --device cpu)
same("${there}" "${out}" "other text on the device")
run(0 train --resume cuda --max-steps 5 --device cpu)
expect("5/5")
run(0 train --resume cpu --max-steps 5 --device cuda --progress lines)
expect("5/5")

foreach(device cpu cuda)
  run(0 eval --model cuda --data text.txt --device ${device})
  string(REGEX MATCH "loss +[0-9].[0-9][0-9][0-9]" loss_${device} "${out}")
endforeach()
same("${loss_cpu}" "${loss_cuda}" "losses of a text differ")
run(0 train --model cuda --data text.txt --out further --batch 2 --max-steps 2 --eval-every 0 --device cuda)
expect("2/2")
run(0 finetune --model cuda --data text.txt --out half --batch 2 --max-steps 2 --eval-every 0 --device cuda --base-dtype
  bf16)
expect("2/2")

# A training step against the CPU's, tensor by tensor
run(0 compare --model cuda --batch 1 --json report.json)
expect("cuda:0/f32 against cpu/f32: ")
expect("all within their tolerance")
expect("cuda:0/f32 against cuda:0/f32: ")
expect("all equal")
run(0 compare --model cuda --batch 1 --sides cpu/bf16 cuda/bf16)
expect("all within their tolerance")

run(1 train --data text.txt --device cuda --batch 1000000000 --out never)
if(NOT err MATCHES "of memory, and cuda:0 has [0-9.]+ .B, which is [0-9.]+ .B too little.* These would fit: --batch ")
  message(FATAL_ERROR "no word about the memory of cuda:0: ${err}")
endif()
message(NOTICE "the command line works on cuda")
