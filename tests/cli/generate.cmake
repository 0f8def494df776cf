# Generation from end to end, with every bad input that the command line must answer:
#   cmake -DTAPEGRAD=<program> -DWORK=<scratch folder> -P tests/cli/generate.cmake
cmake_minimum_required(VERSION 3.25)
set(name tapegrad_generate)
include(${CMAKE_CURRENT_LIST_DIR}/checks.cmake)

string(REPEAT "the cat sat on the mat and the dog ate the log.\n" 60 text)
file(WRITE ${dir}/text.txt "${text}")
run(0 train --data text.txt --tokenizer char --out model --layers 2 --heads 2 --width 32 --context 24 --batch 4 --warmup
  2 --quiet
    --max-steps 200 --lr 1e-2 --positions rope --norm rms_norm --activation swiglu)
set(hot --model model --prompt "the cat" --max-tokens 60)
set(greedy ${hot} --temperature 0)
macro(expect_text expected)
  if(NOT out STREQUAL "${expected}")
    fail("not the text '${expected}'")
  endif()
endmacro()

# Stop strings
run(0 generate ${greedy})
set(whole "${out}")
expect(out "the cat sat on the mat and the dog ate the log.")
run(0 generate ${greedy} --stop " dog")
expect_text("the cat sat on the mat and the\n")
run(0 generate ${greedy} --stop " dog" --stop "mat" "zebra")
expect_text("the cat sat on the \n")
run(0 generate ${greedy} --stop "zebra")
expect_text("${whole}")
run(0 generate --model model --prompt "the cat"
  --temperature 0 --max-tokens 4 --stop "sat on")  # held back, and then printed
expect_text("the cat sat\n")

# Penalties, min-p and bf16
run(0 generate ${greedy} --repetition-penalty 5 --penalty-last 40)
fail_if("a repetition penalty changes nothing" out STREQUAL whole)
run(0 generate ${hot} --temperature 3 --min-p 1)
expect_text("${whole}")
run(0 generate ${greedy} --dtype bf16 --frequency-penalty 0.1 --presence-penalty 0.1)

# The end-of-sequence tokens of a folder of Hugging Face: a space, and the first token after the prompt
run(0 export --model model --out hf)
file(READ ${dir}/hf/tokenizer.json tokenizer)
string(JSON space GET "${tokenizer}" model vocab " ")
string(JSON t GET "${tokenizer}" model vocab "t")
set(greedy_hf --model hf --prompt "the cat" --temperature 0 --max-tokens 60)
file(WRITE ${dir}/hf/generation_config.json "{\"eos_token_id\": [${space}, 100]}")
run(0 generate ${greedy_hf})
expect_text("the cat\n")
run(0 generate ${greedy_hf} --ignore-eos)
expect_text("${whole}")
file(WRITE ${dir}/hf/generation_config.json "{\"eos_token_id\": \"</s>\"}")
refused(1 "'eos_token_id' of hf/generation_config.json is \"</s>\"" generate ${greedy_hf})
file(WRITE ${dir}/hf/generation_config.json "{\"eos_token_id\": ${t}}")

# Many prompts: a line of results is the line of the prompt with text, tokens and finish_reason
file(WRITE ${dir}/prompts.jsonl "{\"prompt\": \"the dog\", \"id\": 7}\n{\"prompt\": \"the cat\"}\n"
     "{\"prompt\": \"the cat sat on the mat and the dog ate the log.\\nthe \"}\n\n \t\r\n")  # blank lines are none
set(many --model hf --prompts prompts.jsonl --temperature 0 --max-tokens 3)
run(0 generate ${many} --out made.jsonl)
expect_text("3 texts in made.jsonl\n")
file(STRINGS ${dir}/made.jsonl lines)
list(GET lines 0 line)
foreach(pair "prompt;the dog" "id;7" "text; a" "finish_reason;eos")
  list(GET pair 0 key)
  list(GET pair 1 expected)
  string(JSON value GET "${line}" ${key})
  fail_if("${key} is '${value}' in ${line}" NOT value STREQUAL expected)
endforeach()
string(JSON n LENGTH "${line}" tokens)
string(JSON value GET "${line}" tokens 2)
fail_if("the tokens in ${line}" NOT n EQUAL 3 OR NOT value EQUAL t)
list(GET lines 1 line)
string(JSON value GET "${line}" finish_reason)
fail_if("finish_reason in ${line}" NOT value STREQUAL "length")
run(0 generate ${many} --out made.jsonl --stop a)  # an earlier result is replaced
file(STRINGS ${dir}/made.jsonl lines)
list(GET lines 1 line)
string(JSON reason GET "${line}" finish_reason)
string(JSON value GET "${line}" text)
fail_if("a stop in ${line}" NOT reason STREQUAL "stop" OR NOT value STREQUAL " s")

# The batch size does not change a result
set(drawn --model model --prompts prompts.jsonl --samples 3 --temperature 1.5 --seed 5 --max-tokens 30)
run(0 generate ${drawn} --out one.jsonl --batch 1)
foreach(batch 2 4 9)
  run(0 generate ${drawn} --out batch.jsonl --batch ${batch})
  same_files(one.jsonl batch.jsonl "--batch ${batch} gives other results than --batch 1")
endforeach()
file(STRINGS ${dir}/one.jsonl lines)
list(LENGTH lines n)
list(GET lines 0 line)
list(GET lines 1 line_1)
fail_if("${n} lines, or equal samples" NOT n EQUAL 9 OR line STREQUAL line_1)
run(0 generate --model model --prompt "the dog" --samples 2 --temperature 1.5 --seed 5 --max-tokens 30)
string(JSON text_0 GET "${line}" text)
string(JSON text_1 GET "${line_1}" text)
expect_text("--- sample 1\nthe dog${text_0}\n--- sample 2\nthe dog${text_1}\n")
run(0 generate --model model --prompt "the" --out single.jsonl --max-tokens 0)
file(READ ${dir}/single.jsonl line)
if(NOT line STREQUAL "{\"prompt\":\"the\",\"text\":\"\",\"tokens\":[],\"finish_reason\":\"length\"}\n")
  fail("a result of no tokens: ${line}")
endif()

# Refusals
refused(2 "--prompts needs --out FILE" generate --model model --prompts prompts.jsonl)
refused(2 "--prompt, --prompts and --prompt-ids exclude each other"
        generate --model model --prompt x --prompts prompts.jsonl --out never)
refused(2 "--batch is for several texts" generate --model model --batch 3)
refused(2 "--batch is 0" generate --model model --samples 2 --batch 0)
refused(2 "--samples is 0" generate --model model --samples 0)
refused(2 "--dtype is 'f16'. It is one of f32, bf16." generate --model model --dtype f16)
refused(1 "min_p is 2. It must be in [0, 1]" generate --model model --min-p 2)
refused(1 "repetition_penalty is 0" generate --model model --repetition-penalty 0)
refused(1 "text.txt exists and is not a result of generate"
        generate --model model --prompts prompts.jsonl --out text.txt)
refused(1 "prompts.jsonl exists and is not a result of generate"
        generate --model model --prompts prompts.jsonl --out prompts.jsonl)
refused(1 "nowhere.jsonl: No such file" generate --model model --prompts nowhere.jsonl --out never)
foreach(pair "{\"prompt\": 3}|has no text \"prompt\""
  "{\"text\": \"x\"}|has no text \"prompt\"" "[1]|has no text \"prompt\""
        "{\"prompt\": \"x|is not JSON: parse error" "{\"prompt\": \"\"}|is empty. Pass at least one token"
        "{\"prompt\": \"a\", \"text\": 1}|has \"text\", which is the name of a result"
        "{\"prompt\": \"#\"}|the character '#'")
  string(FIND "${pair}" "|" at)
  string(SUBSTRING "${pair}" 0 ${at} line)
  math(EXPR at "${at} + 1")
  string(SUBSTRING "${pair}" ${at} -1 message)
  file(WRITE ${dir}/bad.jsonl "{\"prompt\": \"the\"}\n${line}\n")
  refused(1 "${message}" generate --model model --prompts bad.jsonl --out never)
  expect(err "bad.jsonl, line 2")
endforeach()
foreach(nothing "" "\n" " \r\n\n")
  file(WRITE ${dir}/empty.jsonl "${nothing}")
  refused(1 "empty.jsonl is empty" generate --model model --prompts empty.jsonl --out never)
endforeach()
execute_process(COMMAND ${TAPEGRAD} generate --model model --stop "" WORKING_DIRECTORY ${dir} RESULT_VARIABLE result
                OUTPUT_VARIABLE out ERROR_VARIABLE err)  # a macro would lose the empty argument
fail_if("an empty stop" NOT result EQUAL 2 OR NOT err MATCHES "--stop is empty")
# Ids in, ids out
run(0 generate --model model --prompt-ids 1,2,3 --max-tokens 4 --temperature 0)
fail_if("--prompt-ids gives '${out}'" NOT out MATCHES "^1 2 3 [0-9]+ [0-9]+ [0-9]+ [0-9]+\n$")
run(0 generate --model model --prompt-ids 1,2,3 --max-tokens 4 --temperature 0 --out ids.jsonl)
file(READ ${dir}/ids.jsonl made)
string(JSON first GET "${made}" prompt_ids 0)
string(JSON count LENGTH "${made}" tokens)
fail_if("--prompt-ids writes '${made}'" NOT first EQUAL 1 OR NOT count EQUAL 4)
refused(2 "exclude each other" generate --model model --prompt-ids 1 --prompt x)
refused(2 "--stop works on text" generate --model model --prompt-ids 1 --stop x)
refused(1 "--prompt-ids has 5000, and the model's ids are from 0 to" generate --model model --prompt-ids 5000)
report()
