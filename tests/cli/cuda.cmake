# The command line on the device cuda, a GPU or the emulator. Prints "skipped" where the machine has no such device.
set(tiny --data text.txt --tokenizer char --layers 1 --heads 2 --width 16 --context 8 --batch 2 --max-steps 4 --warmup 2
    --eval-every 4 --val-fraction 0.02)
run("[01]" train ${tiny} --device cuda --out cuda)
if(err MATCHES "cuda:0 was asked for, and there is none")
  message(NOTICE "skipped: ${err}")
  return()
endif()
expect(out "device  cuda (" "4/4")

# The same steps as graphs
run(0 train ${tiny} --device cuda --out graphs --quiet --compile)
same_files(cuda/model.safetensors graphs/model.safetensors "compiled steps gave another model")

# The losses of the CPU
run(0 train ${tiny} --device cpu --out cpu --quiet)
foreach(device cpu cuda)
  file(STRINGS ${dir}/${device}/log.jsonl lines)
  list(GET lines 3 line)
  string(JSON loss GET "${line}" loss)
  string(SUBSTRING ${loss} 0 5 loss_${device})  # three digits after the point
endforeach()
fail_if("the losses of step 4 are ${loss_cpu} and ${loss_cuda}" NOT loss_cpu STREQUAL loss_cuda)

# Generation, and a run that resumes on the other device
set(sampling --prompt "the" --max-tokens 12 --temperature 0)
run(0 generate --model cuda ${sampling} --device cuda)
set(there "${out}")
run(0 generate --model cuda ${sampling} --device cpu)
fail_if("other text on the device: ${there}" NOT there STREQUAL out)
prints(out "5/5" train --resume cuda --max-steps 5 --device cpu)
prints(out "5/5" train --resume cpu --max-steps 5 --device cuda --progress lines)

foreach(device cpu cuda)
  run(0 eval --model cuda --data text.txt --device ${device})
  string(REGEX MATCH "loss +[0-9].[0-9][0-9][0-9]" loss_${device} "${out}")
endforeach()
fail_if("the losses of a text are ${loss_cpu} and ${loss_cuda}" NOT loss_cpu STREQUAL loss_cuda)
set(two --data text.txt --batch 2 --max-steps 2 --eval-every 0 --device cuda)
prints(out "2/2" train --model cuda ${two} --out further)
prints(out "2/2" finetune --model cuda ${two} --out half --base-dtype bf16)

# A training step against the CPU's, tensor by tensor
run(0 compare --model cuda --batch 1 --json report.json)
expect(out "cuda:0/f32 against cpu/f32: " "all within their tolerance" "cuda:0/f32 against cuda:0/f32: " "all equal")
prints(out "all within their tolerance" compare --model cuda --batch 1 --sides cpu/bf16 cuda/bf16)

run(1 train --data text.txt --device cuda --batch 1000000000 --out never)
fail_if("no word about the memory of cuda:0" NOT err MATCHES
        "of memory, and cuda:0 has [0-9.]+ .B, which is [0-9.]+ .B too little.* These would fit: --batch ")
