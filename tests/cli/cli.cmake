# The command line from end to end:
#   cmake -DTAPEGRAD=<program> -DWORK=<scratch folder> -P tests/cli/cli.cmake
cmake_minimum_required(VERSION 3.25)
set(name tapegrad_cli)
include(${CMAKE_CURRENT_LIST_DIR}/checks.cmake)

string(REPEAT "the cat sat on the mat and the dog ate the log.\n" 60 text)
file(WRITE ${dir}/text.txt "${text}")
file(WRITE ${dir}/lr.json "{\"lr\": 0.5}")
file(WRITE ${dir}/ids.bin "abcdefghabcdefghabcdefghabcdefghabcdefghabcdefghabcdefgh")  # 16-bit ids above 24 000
set(never --data text.txt --out never)
set(tiny --layers 1 --heads 2 --width 32 --batch 4 --warmup 2 --max-steps 6 --eval-every 3)

# Training
run(0 train --data text.txt --tokenizer char --out model ${tiny} --context 16 --seed 7)
expect(out "vocabulary 15 (char)" "6/6" "val ")
foreach(file model.safetensors config.json log.jsonl checkpoint.safetensors)
  fail_if("no model/${file}" NOT EXISTS ${dir}/model/${file})
endforeach()
has_lines(model/log.jsonl 6)
set(step 0)
foreach(line IN LISTS lines)
  math(EXPR step "${step} + 1")
  foreach(field step loss grad_norm lr ms tokens_per_s peak_bytes)
    string(JSON value GET "${line}" ${field})
    fail_if("line ${step} of log.jsonl is of step ${value}" field STREQUAL step AND NOT value EQUAL step)
  endforeach()
endforeach()

# A note: the warm-up is longer than the run. An MLP with ReLU
run(0 train --data text.txt --tokenizer char --out relu --layers 1 --heads 2 --width 32 --batch 4 --warmup 9 --max-steps
  6 --eval-every 3 --context 16 --activation relu)
expect(out "note    the run ends within its 9 steps of warm-up: the rate never reaches lr")

# The same run from its config.json, on one thread: the same model
run(0 train --data text.txt --config model/config.json --out again --quiet --threads 1)
fail_if("--quiet prints" out)
same_files(model/model.safetensors again/model.safetensors "the same run gave another model")
# Compiled steps with dropout and two micro-batches: the same model and log, also after a resume
macro(same_run a b)
  foreach(folder ${a} ${b})
    file(READ ${dir}/${folder}/log.jsonl ${folder}_log)
    string(REGEX REPLACE ",\"ms\":[^}]*" "" ${folder}_log "${${folder}_log}")
  endforeach()
  same_files(${a}/model.safetensors ${b}/model.safetensors "${b} and ${a} have different models")
  fail_if("${b} is not the run ${a}: ${${a}_log} and ${${b}_log}" NOT ${a}_log STREQUAL ${b}_log)
endmacro()
set(noisy --data text.txt --tokenizer char ${tiny} --context 16 --dropout 0.1 --accumulate 2 --quiet)
run(0 train ${noisy} --out plain)
run(0 train ${noisy} --out compiled --compile)
same_run(plain compiled)
run(0 train --resume compiled --max-steps 8 --quiet)
run(0 train --resume plain --max-steps 8 --quiet --compile true)
same_run(plain compiled)
run(0 train --resume plain --max-steps 9 --quiet --compile false)
run(0 train --resume compiled --max-steps 9 --quiet)
same_run(plain compiled)
refused(2 "compile is 'maybe'. It must be true or false" train ${noisy} --out none --compile maybe)
# int8 blocks: a model like any other
run(0 train --data text.txt --tokenizer char --out codes ${tiny} --context 16 --seed 7 --linear
  switchback-memory-efficient)
run(0 train --resume codes --max-steps 8 --quiet)
refused(1 "linear is \"switchback-memory-efficient\" in" train --resume codes --linear switchback)
refused(2 "exclude each other"
        train --data text.txt ${tiny} --out none --linear switchback-vector-wise-memory-efficient)
run(0 generate --model codes --prompt a --max-tokens 3)
# A flag wins over the file, the file over the preset
file(WRITE ${dir}/run.json
  "{\"layers\": 1, \"heads\": 2, \"width\": 16, \"context\": 8, \"batch\": 2, \"max_steps\": 5}")
run(0 train --data text.txt --preset demo --config run.json --max-steps 2 --sample-every 2 --out small)
expect(out "1 layers, 2 heads, width 16, context 8, vocabulary 256 (byte)" "2/2" "--- step 2")

# Resume: a finished run writes its model again; settings and data come from the checkpoint
file(REMOVE ${dir}/model/model.safetensors)
run(0 train --resume model --width 32 --quiet)
same_files(model/model.safetensors again/model.safetensors "--resume of a run that is done gave another model")
file(COPY ${dir}/model/ DESTINATION ${dir}/longer)
file(COPY_FILE ${dir}/text.txt ${dir}/moved.txt)
run(0 train --resume longer --data moved.txt --max-steps 8 --eval-every 4 --checkpoint-every 1 --progress lines)
expect(out "resume  after step 6" "8/8")
expect(err "max_steps was 6 and is 8: from here on the learning rate follows the schedule of 8 steps")
has_lines(longer/log.jsonl 8)
file(REMOVE ${dir}/longer/log.jsonl)
run(0 train --resume longer --max-steps 9 --quiet)
expect(err "longer/log.jsonl lacks 8 of the steps before 9 (0 lines could not be read and are dropped)")
file(READ ${dir}/longer/log.jsonl lines)
file(WRITE ${dir}/longer/log.jsonl "damage\n${lines}")
run(0 train --resume longer --max-steps 10 --quiet)
expect(err "longer/log.jsonl lacks 8 of the steps before 10 (1 lines could not be read and are dropped)")
has_lines(longer/log.jsonl 2)
string(REPLACE "cat" "cow" other "${text}")
file(WRITE ${dir}/other.txt "${other}")
set(checkpoint "model/checkpoint.safetensors")
refused(1 "width is 32 in ${checkpoint}, and 64 is given. A resumed run keeps its settings"
        train --resume model --width 64)
# this rule is checked first
refused(1 "width is 32 in ${checkpoint}, and 99 is given. A resumed run keeps its settings"
        train --resume model --width 99)
refused(1 "seed is 7 in ${checkpoint}, and 8 is given" train --resume model --seed 8)
refused(1 "linear is \"plain\" in ${checkpoint}, and \"switchback\" is given" train --resume model --linear switchback)
refused(1 "beta1 is 0.9 in ${checkpoint}, and 0.5 is given" train --resume model --beta1 0.5)
refused(1 "min_lr is 0.0001 and lr 1e-05. A cosine falls from lr to min_lr" train --resume model --lr 1e-5)
file(COPY ${dir}/model/ DESTINATION ${dir}/slower)
run(0 train --resume slower --config lr.json --warmup 1 --max-steps 8 --quiet)
expect(err "lr was 0.001 and is 0.5 from step 7 on" "warmup was 2 and is 1 from step 7 on")
run(0 train --resume slower --max-steps 9 --quiet)  # it is in the checkpoint now
fail_if("the rate changes once more" err MATCHES "lr was")
file(READ ${dir}/slower/config.json config)
string(JSON value GET "${config}" train lr)
fail_if("config.json says lr ${value}" NOT value EQUAL 0.5)
refused(1 "max_steps is 3. It must be at least the step" train --resume model --max-steps 3)
refused(1 "is no longer what ${checkpoint} was trained on" train --resume model --data other.txt)
refused(1 "is no longer what ${checkpoint} was trained on" train --resume model --data text.txt text.txt)
refused(1 "missing.txt" train --resume model --data missing.txt)
file(RENAME ${dir}/text.txt ${dir}/elsewhere.txt)
refused(1 "/text.txt: No such file" train --resume model)
refused(1 "${checkpoint} says that the data was there. Restore it, or pass its path with --data."
        train --resume model)
run(0 train --resume model --data elsewhere.txt --quiet)
file(RENAME ${dir}/elsewhere.txt ${dir}/text.txt)
refused(2 "omit --out" train --resume model --out never)
refused(2 "omit --preset and --arch" train --resume model --preset demo)
refused(1 "nowhere/checkpoint.safetensors" train --resume nowhere)
file(COPY_FILE ${dir}/model/model.safetensors ${dir}/small/checkpoint.safetensors)
refused(1 "small/checkpoint.safetensors cannot be used: it is a safetensors file, but not a checkpoint"
        train --resume small)
refused(1 "A new run would overwrite it. Choose another --out, or pass --overwrite."
        train --data text.txt ${tiny} --out small)
file(REMOVE ${dir}/small/checkpoint.safetensors)
refused(1 "small/model.safetensors exists, and a new run would overwrite" train --data text.txt ${tiny} --out small)
refused(1 "[train] model/checkpoint.safetensors belongs to a run that is finished, after 6 steps. A new run would \
overwrite it. Resume it with `tapegrad train --resume model --max-steps 12`, choose another --out, or pass --overwrite."
        train --data text.txt ${tiny} --out model)
same_files(model/model.safetensors again/model.safetensors "a run that was refused changed the model")
# --no-save leaves only the log, also over another run
run(0 train --data text.txt ${tiny} --out bare)
run(0 train --data text.txt ${tiny} --out bare --no-save --overwrite)
expect(out "wrote bare/log.jsonl")
file(GLOB files RELATIVE ${dir}/bare ${dir}/bare/*)
list(FILTER files EXCLUDE REGEX "^[.]lock$")
fail_if("--no-save leaves ${files}" NOT files STREQUAL "log.jsonl")
refused(1 "bare/checkpoint.safetensors" train --resume bare)
refused(1 "bare/log.jsonl exists" train --data text.txt ${tiny} --out bare --no-save)
# a refused run leaves no lock
file(REMOVE ${dir}/model/.lock ${dir}/small/.lock)
refused(1 "model/checkpoint.safetensors belongs to a run that is finished" train --data text.txt ${tiny} --out model)
refused(1 "width is 32 in ${checkpoint}, and 64 is given" train --resume model --width 64)
refused(1 "small/model.safetensors exists" train --data text.txt ${tiny} --out small)
foreach(folder model small)
  fail_if("a run that was refused left ${folder}/.lock" EXISTS ${dir}/${folder}/.lock)
endforeach()
# The variants of the model
run(0 train --data text.txt --tokenizer char --out variant ${tiny} --context 16 --positions rope --kv-heads 1 --norm
  rms_norm
    --activation swiglu --ff-width 24 --tied-head false --init xavier --rope-theta 500)
run(0 generate --model variant --prompt "the cat" --max-tokens 30)
refused(1 "kv_heads 3 does not divide heads 2" train ${never} ${tiny} --kv-heads 3)
refused(2 "The names are learned, rope" train ${never} ${tiny} --positions alibi)

# A vocabulary larger than the tokenizer's: only ids of the tokenizer are generated
run(0 train --data text.txt --tokenizer char ${tiny} --context 16 --vocab-size 5000 --sample-every 6 --out wide)
expect(out "vocabulary 5000 (char)")
run(0 generate --model wide --prompt "the cat" --max-tokens 100 --temperature 5)
# No validation at all
run(0 train --data text.txt --layers 1 --heads 2 --width 32 --context 16 --batch 4 --warmup 2 --max-steps 6 --eval-every
  0
    --checkpoint-every 0 --val-fraction 0 --out alone)
expect(out " 0 to validate on")

# Token files
run(0 train --data ids.bin --vocab-size 30000 ${tiny} --context 4 --val-fraction 0.25 --out ids)
refused(1 "has no tokenizer" generate --model ids)
refused(1 "is not in the vocabulary" train --data ids.bin --out never)

# Generation
set(sampling --prompt "the cat" --max-tokens 40 --temperature 0.8 --top-k 10 --top-p 0.95 --seed 3)
run(0 generate --model model ${sampling})
set(cached "${out}")
expect(out "the cat")
string(LENGTH "${out}" n)
fail_if("${n} characters" NOT n EQUAL 48)  # 7 + 40 characters and the end of the line
run(0 generate --model model ${sampling} --no-cache --threads 1)
fail_if("other text without the cache than with it: ${cached}" NOT out STREQUAL cached)
# A closed pipe ends it without a message
execute_process(COMMAND ${TAPEGRAD} generate --model ${dir}/model --prompt "the cat" --max-tokens 2000 COMMAND head -c 4
                RESULTS_VARIABLE statuses ERROR_VARIABLE err OUTPUT_VARIABLE out)
if(NOT statuses STREQUAL "141;0" OR NOT err STREQUAL "" OR NOT out STREQUAL "the ")
  fail("a closed pipe: status ${statuses}, '${out}', '${err}'")
endif()
run(0 generate --model model --prompt "the cat" --max-tokens 0)
fail_if("--max-tokens 0 does not print the prompt alone" NOT out STREQUAL "the cat\n")

# Inspection
run(0 inspect --model model)
expect(out "h.0.attn.qkv.weight" "(96, 32)" "\"tokenizer\"")
run(0 inspect --model model/model.safetensors --json)
string(JSON parameters GET "${out}" parameters)
string(JSON bytes GET "${out}" bytes)
math(EXPR expected "15 * 32 + 16 * 32 + 12 * 32 * 32 + 3 * 32")
fail_if("${parameters} parameters, not ${expected}" NOT parameters EQUAL expected)
math(EXPR expected "4 * ${parameters}")
fail_if("${bytes} bytes, not ${expected}" NOT bytes EQUAL expected)

# Comparison: status 1 where tensors differ by more than rounding
run(0 compare --model model --device cpu --json same.json)
expect(out "model: ${parameters} parameters; a training step of 2 x 16 tokens, seed 1" "cpu/f32 against cpu/f64: ")
expect(out "all within their tolerance" "and ")
file(READ ${dir}/same.json report)
string(JSON n LENGTH "${report}" comparisons 0 tensors)
string(JSON value GET "${report}" comparisons 0 within)
fail_if("${n} tensors, within: ${value}" NOT value STREQUAL ON OR n LESS 50)
run(0 compare --model model --sides cpu cpu --batch 1 --json same.json)
refused(1 "[compare] --json model/config.json exists and is not a report of compare. It would be replaced. Name a new \
file."
        compare --model model --json model/config.json)
refused(1 "cannot write none/same.json" compare --model model --json none/same.json)
run(0 compare --model model --sides cpu/f32/1 cpu/f32/1 --all --batch 1 --context 3 --seed 5)
expect(out "a training step of 1 x 3 tokens, seed 5" "all equal")
foreach(row weights forward backward gradients update)
  expect(out "  ${row}")
endforeach()
run(0 compare --arch nano --sides cpu cpu/bf16 --batch 1 --context 8)
expect(out "cpu/bf16 against cpu/f32")
# Gradients of four steep layers differ by far more than their tolerance, with any contraction.
string(REPLACE "--layers;1" "--layers;4" steep "${tiny}")
run(0 train --data text.txt --tokenizer char --out steep ${steep} --context 16 --init-std 300 --lr 0 --min-lr 0 --quiet)
run(1 compare --model steep --sides cpu/f64 cpu/f32 --json apart.json)
expect(out "past their tolerance; the first in the order of execution is " "past it")
file(READ ${dir}/apart.json report)
string(JSON value GET "${report}" comparisons 0 first_apart within)
fail_if("apart.json says that the first tensor apart is within its tolerance" NOT value STREQUAL OFF)

# A custom tokenizer: its token file and the text train the same model, whose folder has the tokenizer
file(WRITE ${dir}/pairs.json [=[{"added_tokens": [], "decoder": {"type": "Fuse"}, "model": {"type": "BPE",
  "unk_token": "?", "vocab": {"?": 0, "t": 1, "h": 2, "th": 3, " ": 4, "e": 5, "the": 6}, "merges": ["t h",
        "th e"]}}]=])
run(0 tokenize --tokenizer pairs.json --in text.txt --out pairs.bin)
fail_if("tokenize says what it wrote" NOT out MATCHES "bytes are [0-9]+ tokens of 7, in pairs.bin")
run(0 train --data pairs.bin --tokenizer pairs.json --out pairs ${tiny} --context 16)
run(0 train --data text.txt --tokenizer ./pairs.json --out pairs_of_text ${tiny} --context 16)
same_files(pairs/model.safetensors pairs_of_text/model.safetensors "a token file and its text train different models")
fail_if("no pairs/tokenizer.json" NOT EXISTS ${dir}/pairs/tokenizer.json)
file(SHA256 ${dir}/pairs/model.safetensors of_pairs.bin)
# A .npy file has ids of 16 or of 32 bits, a .bin file of 16 alone
file(READ ${dir}/pairs.json pairs)
string(REPLACE [=["the": 6]=] [=["the": 70000]=] wide "${pairs}")
file(WRITE ${dir}/wide.json "${wide}")
foreach(name pairs wide)
  run(0 tokenize --tokenizer ${name}.json --in text.txt --out ${name}.npy --threads 1)
  foreach(data ${name}.npy text.txt)
    run(0 train --data ${data} --tokenizer ${name}.json --out again ${tiny} --context 16 --overwrite --quiet)
    file(SHA256 ${dir}/again/model.safetensors of_${data})
  endforeach()
  fail_if("${name}.npy and its text train different models" NOT of_${name}.npy STREQUAL of_text.txt)
endforeach()
fail_if("pairs.npy and pairs.bin train different models" NOT of_pairs.npy STREQUAL of_pairs.bin)
refused(1 "A .bin file holds 16-bit ids, at most 65536" tokenize --tokenizer wide.json --in text.txt --out never.bin)
refused(2 "--out must end in .npy or .bin" tokenize --tokenizer pairs.json --in text.txt --out never.txt)
refused(1 "is not in the vocabulary" train --data wide.npy --out never)
run(0 generate --model pairs --prompt the --max-tokens 5)
expect(out "the")
refused(1 "nowhere.json" tokenize --tokenizer nowhere.json --in text.txt --out never.bin)
refused(2 "--pattern is for a .tiktoken file"
        tokenize --tokenizer pairs.json --pattern gpt2 --in text.txt --out never.npy)
refused(2 "tokenize needs --tokenizer PATH, --in FILE... and --out FILE" tokenize --in text.txt)

# A run that diverges: the step, the op and its scope, and the checkpoint that is left
run(1 train --data text.txt ${tiny} --init-std 6e37 --out wild)
expect(err "the loss of step 1 is" "    in gpt" "No update was made before it, so no learning rate helps")
expect(err "wild/checkpoint.safetensors has no finished step: begin a new run in wild with other settings.")
# a new run may begin in its folder: no step was saved
run(1 train --data text.txt ${tiny} --init-std 6e37 --seed 8 --out wild)
expect(err "the loss of step 1 is")
# Weights that are not finite are not saved
run(1 train --data text.txt ${tiny} --init-std 1e38 --out wilder)
expect(err "[checkpoint] cannot write wilder/checkpoint.safetensors: 'model.")
expect(err "after step 0. What was there before is unchanged. All weights and moments must be finite")
run(1 train --data text.txt --out lr --layers 1 --heads 2 --width 16 --context 16 --batch 2 --max-steps 6 --lr 1e39
    --min-lr 0 --warmup 0 --eval-every 0 --checkpoint-every 1 --quiet)
expect(err "[checkpoint] cannot write lr/checkpoint.safetensors: 'model.")
expect(err "after step 1. What was there before is unchanged")
fail_if("a model that is not finite was written" EXISTS ${dir}/lr/model.safetensors)
expect(err "`tapegrad train --resume lr --lr 1e+38` resumes from there with a lower rate.")
run(1 train --data text.txt --out lr ${tiny} --quiet)
expect(err "lr/checkpoint.safetensors belongs to a run that was saved at step 0 of 6, and whose log continues to step \
1. A new run would overwrite it")
expect(err "Resume it with `tapegrad train --resume lr`, choose another --out, or pass --overwrite.")
# Weights that give no gradient: a note
run(0 train --data text.txt --out still ${tiny} --init-std 0 --quiet)
expect(err "the gradient's norm of step 1 is 0: nothing is learned. Check init_std and norm_eps")
# A run that resumes with other kernels: a note
run_with("TG_ISA=1" 0 train --data text.txt --out slow ${tiny} --quiet)
file(STRINGS ${dir}/slow/checkpoint.safetensors header REGEX "cpu, level 1")
fail_if("the checkpoint does not name the kernels" NOT header)
run_with("TG_ISA=1" 0 train --resume slow --max-steps 7 --quiet)
fail_if("the same kernels are called others" err MATCHES "other kernels")
run(0 train --resume slow --max-steps 8 --quiet)
file(STRINGS ${dir}/slow/checkpoint.safetensors header REGEX "cpu, level 1")
if(NOT header)  # else the machine has no other
  expect(err "slow/checkpoint.safetensors was computed by other kernels (cpu, level 1) than those here (cpu, level ")
endif()
run_with("TG_BF16=f32" 0 train --data text.txt --out narrow ${tiny} --dtype bf16 --quiet)
run_with("TG_BF16=f32" 0 train --resume narrow --max-steps 7 --quiet)
fail_if("the same kernels are called others" err MATCHES "other kernels")
file(STRINGS ${dir}/narrow/checkpoint.safetensors header REGEX "cpu, level [134], bf16 by f32")
fail_if("the checkpoint does not say how bf16 is multiplied" NOT header)
run(0 train --resume narrow --max-steps 8 --quiet)
file(STRINGS ${dir}/narrow/checkpoint.safetensors header REGEX "bf16 by f32")
if(NOT header)  # else the machine multiplies bf16 in f32
  expect(err "bf16 by f32) than those here (cpu, level ")
endif()

# Environment variables are read before a file is written
foreach(variable "TG_ISA=rubbish"
  "TG_ISA=99" "TG_THREADS=many" "TG_THREADS=0" "TG_BF16=rubbish" "TG_INT8=rubbish" "TG_COMM_TIMEOUT=abc")
  string(REGEX REPLACE "=(.*)" " is '\\1'" text "${variable}")
  run_with("${variable}" 1 train --data text.txt --out never ${tiny})
  expect(err "${text}")
  fail_if("made the output folder of a run that did not begin" EXISTS ${dir}/never)
endforeach()

run_with("TG_PASSES=rubbish" 1 train --data text.txt --out never ${tiny} --compile)
expect(err "TG_PASSES is 'rubbish'")
run_with("TG_DUMP_PLANS=text.txt/plans" 1 train --data text.txt --out never ${tiny} --compile)
expect(err "cannot make or use the folder text.txt/plans")
fail_if("made the output folder of a run that did not begin" EXISTS ${dir}/never)

# Paths that the system refuses, and names with control characters
file(CREATE_LINK loop_b ${dir}/loop_a SYMBOLIC)
file(CREATE_LINK loop_a ${dir}/loop_b SYMBOLIC)
refused(1 "[file] cannot find out what loop_a is: Too many levels of symbolic links. Check the path"
        inspect --model loop_a)
refused(1 "[file] cannot find out what loop_a" train --resume loop_a)
refused(1 "[file] cannot find out what loop_a" generate --model model --adapter loop_a)
file(CREATE_LINK nowhere ${dir}/dangling SYMBOLIC)
refused(1 "cannot make or use the folder dangling/x: dangling is a symbolic link to nothing."
        train --data text.txt ${tiny} --out dangling/x)
string(REPEAT "n" 300 long)
refused(1 "File name too long" train --data text.txt ${tiny} --out never/${long})
string(ASCII 27 escape)
refused(1 "x1bc: No such file" train --data "${escape}c" --out never)
string(FIND "${err}" "${escape}" at)
fail_if("a control character is sent to the terminal" NOT at EQUAL -1)
string(REPEAT "n" 3000 long)
refused(1 "...(3001 bytes)..." train --data "${long}" --out never)
string(LENGTH "${err}" n)
fail_if("a message of ${n} bytes" n GREATER 700)

# A resumed run uses the tokenizer of its checkpoint; token files replace only token files
run(0 train --data text.txt --tokenizer byte ${tiny} --context 16 --quiet --out bytewise)
run(0 export --model bytewise --to hf --out pub)
file(COPY ${dir}/pub/tokenizer.json DESTINATION ${dir}/tok)
run(0 train --data text.txt --tokenizer tok/tokenizer.json ${tiny} --context 16 --out moved)
file(REMOVE_RECURSE ${dir}/tok)
run(0 train --resume moved --max-steps 8 --quiet)
run(0 tokenize --tokenizer pub --in text.txt --out ids.npy)
run(0 tokenize --tokenizer pub --in text.txt --out ids.npy)
file(WRITE ${dir}/mine.npy "mine")
refused(1 "mine.npy exists and is not a token file" tokenize --tokenizer pub --in text.txt --out mine.npy)
file(WRITE ${dir}/mine.bin "mine")
refused(1 "does not say what it holds. Name a new file, or pass --overwrite"
        tokenize --tokenizer pub --in text.txt --out mine.bin)
run(0 tokenize --tokenizer pub --in text.txt --out mine.bin --overwrite)
refused(1 "is one of the texts" tokenize --tokenizer pub --in mine.bin --out mine.bin)
report()
message(NOTICE "the command line works")
