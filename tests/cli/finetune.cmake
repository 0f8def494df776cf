# Finetuning, end to end, with every bad input.
string(REPEAT "the dog ate the cat and the log sat on the mat.\n" 60 dog)
file(WRITE ${dir}/cat.txt "${text}")
file(WRITE ${dir}/dog.txt "${dog}")
file(WRITE ${dir}/foreign.txt "the zebra")
string(REPLACE "dog" "fog" fog "${dog}")
file(WRITE ${dir}/fog.txt "${fog}")
file(WRITE ${dir}/none.txt "ZZZ?!")
file(WRITE ${dir}/ids.bin "abcdefghabcdefghabcdefghabcdefghabcdefghabcdefghabcdefgh")
file(WRITE ${dir}/width.json "{\"width\": 64}")
file(WRITE ${dir}/tune.json "{\"lr\": 0.02, \"max_steps\": 6}")
set(tiny --layers 2 --heads 2 --batch 4 --warmup 2 --quiet)
run(0 train --data cat.txt --tokenizer char --out model ${tiny} --width 32 --context 16 --max-steps 30)
run(0 train --data cat.txt --tokenizer char --out other ${tiny} --width 32 --context 16 --max-steps 2 --seed 2)
run(0 train --data cat.txt --tokenizer char --out small ${tiny} --width 16 --context 16 --max-steps 2)
run(0 train --data ids.bin --vocab-size 30000 ${tiny} --width 32 --max-steps 2 --context 4 --val-fraction 0.25
    --out ids)
file(COPY_FILE ${dir}/model/model.safetensors ${dir}/before.safetensors)

# Training adapters: the model stays
set(never --model model --data dog.txt --out never)
set(tune --batch 4 --warmup 2 --lr 0.02 --max-steps 6 --eval-every 3)
set(adapter --model model --data dog.txt --rank 4 --targets *.attn.qkv h.1.mlp.* --lora-dropout 0.1)
run(0 finetune ${adapter} --out ad ${tune})
expect(out "25728 parameters frozen, 2304 trained (LoRA of rank 4 on 4 modules)" "6/6" "val ")
expect(out "try: tapegrad generate --model model --adapter ad")
foreach(file adapter_config.json adapter_model.safetensors log.jsonl checkpoint.safetensors)
  fail_if("no ad/${file}" NOT EXISTS ${dir}/ad/${file})
endforeach()
same_files(model/model.safetensors before.safetensors "finetuning changed the model")
list(APPEND adapter --alpha 8 --config tune.json --batch 4 --warmup 2 --eval-every 3 --quiet)
run(0 finetune ${adapter} --out again --threads 1)
fail_if("--quiet prints" out)
same_files(ad/adapter_model.safetensors again/adapter_model.safetensors "the same run gave another adapter")
run(0 finetune ${adapter} --out compiled --compile)
same_files(ad/adapter_model.safetensors compiled/adapter_model.safetensors "compiled steps gave another adapter")

# Resume
file(REMOVE ${dir}/ad/adapter_model.safetensors)
run(0 finetune --resume ad --rank 4 --targets *.attn.qkv h.1.mlp.* --quiet)
same_files(ad/adapter_model.safetensors compiled/adapter_model.safetensors
  "--resume of a run that is done gave another adapter")
run(0 finetune --resume again --max-steps 8 --progress lines)
expect(out "resume  after step 6" "8/8")
set(checkpoint "ad/checkpoint.safetensors")
refused(1 "rank is 4 in ${checkpoint}, and 3 is given. Training keeps the shape of an adapter"
        finetune --resume ad --rank 3)
refused(1 "alpha is 8 in ${checkpoint}, and 16 is given" finetune --resume ad --alpha 16)
refused(1 "lora-dropout is 0.1 in ${checkpoint}, and 0 is given" finetune --resume ad --lora-dropout 0)
refused(1 "the targets in ${checkpoint} differ" finetune --resume ad --targets *.attn.qkv)
refused(1 "beta1 is 0.9 in ${checkpoint}, and 0.5 is given" finetune --resume ad --beta1 0.5)
refused(1 "is no longer what ${checkpoint} was trained on" finetune --resume ad --data cat.txt)
refused(1 "other is no longer the model that ${checkpoint} was trained over" finetune --resume ad --model other)
file(RENAME ${dir}/model ${dir}/moved)
refused(1 "${checkpoint} says that the model was there. Restore it, or pass its path with --model."
        finetune --resume ad)
run(0 finetune --resume ad --model moved --quiet)
file(RENAME ${dir}/moved ${dir}/model)
refused(1 "belongs to a run of `tapegrad finetune`, not of `tapegrad train`. Resume it with `tapegrad finetune \
--resume ad`." train --resume ad)
refused(1 "belongs to a run of `tapegrad train`, not of `tapegrad finetune`" finetune --resume model)
refused(1 "belongs to a run of `tapegrad finetune`. A run of `tapegrad train` would overwrite it"
        train --data cat.txt --out ad ${tiny})
refused(2 "omit --out" finetune --resume ad --out never)

run(0 finetune --model model --data fog.txt --out fog --unknown skip ${tune} --quiet)
expect(err "tapegrad: 60 of 2880 characters of fog.txt are skipped, because the tokenizer does not know them: 'f' \
U+0066\n")
run(0 finetune --resume fog --max-steps 7 --quiet)  # the resumed run keeps settings
expect(err "60 of 2880 characters of ")
refused(1 "'f' U+0066" finetune --resume fog --max-steps 8 --unknown error)
refused(1 "is no longer what fog/checkpoint.safetensors was trained on" finetune --resume fog --data foreign.txt)

# Generation, with a separate and a merged adapter
set(sampling --prompt "the dog" --max-tokens 40 --temperature 0)
run(0 generate --model model ${sampling})
set(plain "${out}")
run(0 generate --model model --adapter ad ${sampling})
set(adapted "${out}")
fail_if("the adapter changes nothing" adapted STREQUAL plain)
refused(1 "--model ad is an adapter and a run. The flag takes a model. Pass --adapter ad." generate --model ad)
run(0 generate --model model --adapter ad/ ${sampling} --no-cache)
fail_if("other text without the cache than with it: ${adapted}" NOT out STREQUAL adapted)
prints(out "merged 4 modules" merge --model model --adapter ad --out merged)
refused(1 "[merge] merged/model.safetensors exists, and a new model would overwrite the files in its folder. \
Choose another --out, or pass --overwrite." merge --model model --adapter ad --out merged)
run(0 merge --model model --adapter ad --out merged --overwrite)
foreach(former model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json
  tokenizer.json vocab.json)
  file(WRITE ${dir}/merged/${former} "of a model that was here")
endforeach()
run(0 merge --model model --adapter ad --out merged --overwrite)
file(GLOB files RELATIVE ${dir}/merged ${dir}/merged/*)
if(NOT files STREQUAL "config.json;model.safetensors")
  fail("a merged model has ${files}")
endif()
refused(1 "ad/checkpoint.safetensors belongs to a run that is finished, after 6 steps. A new run would overwrite it. \
Resume it with `tapegrad finetune --resume ad --max-steps 12`, choose another --out, or pass --overwrite."
        finetune --model model --data dog.txt --out ad ${tune})
refused(1 "merged/model.safetensors exists, and a new run would overwrite"
        finetune --model model --data dog.txt --out merged ${tune})
refused(1 "belongs to a run of `tapegrad finetune`. A run of `tapegrad train` would overwrite it"
        train --data cat.txt --out ad --overwrite ${tiny})
run(0 generate --model merged ${sampling})
fail_if("the merged model continues otherwise than the adapted one: ${adapted}" NOT out STREQUAL adapted)
run(0 finetune --model merged --data cat.txt --out next ${tune} --quiet)

# Inspection
run(0 inspect --adapter ad)
expect(out "ad/adapter_model.safetensors: 8 tensors, 2304 parameters, 9216 bytes" "metadata tapegrad.base: "
  "\"r\": 4," "base_model.model.transformer.h.1.mlp.c_fc.lora_A.weight" "(4, 32)")
run(0 inspect --adapter ad --model model)
expect(out "module " " over model" "h.1.mlp.proj")
prints(out "\"lora_alpha\": 8" inspect --adapter ad --json)
refused(1 "--model ad is an adapter" inspect --model ad)
refused(1 "other weights" inspect --model other --adapter ad)
refused(2 "--adapter lists an adapter" inspect --adapter ad --arch gpt2)
refused(1 "--adapter model is a model and a run." inspect --adapter model)

# An adapter trained further
run(0 finetune --model model --adapter ad --data dog.txt --out further ${tune})
expect(out "2304 trained (LoRA of rank 4 on 4 modules)")
differ(ad/adapter_model.safetensors further/adapter_model.safetensors "nothing was trained further")
run(0 finetune --model model --adapter ad --data dog.txt --out half ${tune} --max-steps 3 --quiet)
run(0 finetune --resume half --max-steps 5 --quiet)
run(0 finetune --model model --adapter ad --data dog.txt --out same ${tune} --lr 0 --min-lr 0 --max-steps 1 --quiet)
same_files(ad/adapter_model.safetensors same/adapter_model.safetensors "training at a rate of 0 changes an adapter")
refused(1 "rank is 4 in ad, and 8 is given. Training keeps the shape of an adapter. Leave it out."
        finetune ${never} --adapter ad --rank 8)
refused(1 "rslora is false in ad, and true is given" finetune ${never} --adapter ad --rslora)
refused(1 "the targets in ad differ from those given" finetune ${never} --adapter ad --targets *.attn.proj)
refused(1 "Name that model, in f32." finetune ${never} --adapter ad --base-dtype bf16)
refused(1 "[finetune] a resumed run keeps its adapter. Leave --adapter out." finetune --resume half --adapter ad)
refused(1 "[adapter] nowhere does not exist." finetune ${never} --adapter nowhere)
run(0 finetune --model model --data dog.txt --out rs --rslora --rank 4 ${tune} --quiet)
differ(rs/adapter_model.safetensors ad/adapter_model.safetensors "--rslora changes nothing")
prints(out "h.1.mlp.fc.weight" inspect --model merged)

# Refusals
refused(2 "finetune needs --model DIR and --data FILE..., or --resume DIR" finetune --data dog.txt --out never)
refused(2 "finetune needs --model DIR and --data FILE..., or --resume DIR" finetune --model model --out never)
refused(2 "merge needs --model DIR, --adapter DIR and --out DIR" merge --model model --out never)
refused(2 "--rank is 'two'" finetune ${never} --rank two)
refused(2 "unknown flag '--width'" finetune ${never} --width 64)
refused(1 "width is 32 in model, and 64 is given. Finetuning keeps the model as it is."
        finetune ${never} --config width.json)
file(WRITE ${dir}/width.json "{\"width\": 99}")
refused(1 "width is 32 in model, and 99 is given." finetune ${never} --config width.json)
refused(1 "[finetune] a step of this run takes " finetune ${never} --batch 1000000000)
expect(err "These would fit: --batch ")
refused(1 "split_weights: no trained parameter is a Linear layer's weight"
        finetune ${never} --dtype bf16 --split-weights true)
refused(1 "[lora] rank is 0." finetune ${never} --rank 0)
refused(1 "[lora] rank is -1. It must be 1 or more. Choose a rank, or leave the layer without an adapter."
        finetune ${never} --rank -1)
refused(1 "rank is 33 for a layer from 32 to 96. It must be at most 32" finetune ${never} --rank 33)
refused(1 "alpha is -1" finetune ${never} --alpha=-1)
refused(1 "[lora] dropout is 1." finetune ${never} --lora-dropout 1)
refused(1 "the target '*.q' matches no module" finetune ${never} --targets *.q)
refused(1 "The modules are h.*.attn.qkv (2), h.*.attn.proj (2)" finetune ${never} --targets *.q)
refused(1 "'z' U+007A" finetune --model model --data foreign.txt --out never)
expect(err "--unknown skip")
refused(1 "[tokenizer] the text has no character of the model's vocabulary"
        finetune --model model --data none.txt --out never --unknown skip)
refused(1 "ids has no tokenizer, and dog.txt is text" finetune --model ids --data dog.txt --out never)
refused(1 "is not in the vocabulary" finetune --model model --data ids.bin --out never)
run(0 finetune --model ids --data ids.bin --out tokens --rank 2 --batch 2 --max-steps 2 --val-fraction 0.25 --quiet)
refused(1 "--out model is the folder of --model, whose files" finetune --model model --data dog.txt --out model)
refused(1 "--out model is the folder of --model, whose files" merge --model model --adapter ad --out model)
file(MAKE_DIRECTORY ${dir}/bare)
file(COPY ${dir}/ad/adapter_config.json ${dir}/ad/adapter_model.safetensors DESTINATION ${dir}/bare)
refused(1 "[merge] bare/adapter_config.json exists" merge --model model --adapter ad --out bare)
refused(1 "--resume bare is an adapter. The flag takes a run. Pass --adapter bare." finetune --resume bare)
refused(1 "ad is the folder of a training run" merge --model model --adapter ad --out ad)
refused(1 "ad/adapter_model.safetensors was trained over other weights" generate --model other --adapter ad)
refused(1 "c_attn.lora_A.weight' is (4, 32) in ad/adapter_model.safetensors, and 'r' and 'rank_pattern' of \
ad/adapter_config.json and this model imply (4, 16)"
        merge --model small --adapter ad --out never)
refused(1 "--adapter model/model.safetensors is a file of weights."
        generate --model model --adapter model/model.safetensors)
refused(1 "[adapter] nowhere does not exist. An adapter is a folder with adapter_config.json and \
adapter_model.safetensors, as `tapegrad finetune --out` and PEFT write it."
        generate --model model --adapter nowhere)
refused(1 "--adapter model is a model and a run." generate --model model --adapter model)
refused(1 "[model] nowhere does not exist. A model is a folder with config.json"
        finetune --model nowhere --data dog.txt --out never)
