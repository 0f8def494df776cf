# Data of `tapegrad train`, `finetune` and `eval`: documents, and special tokens that they spell:
#   cmake -DTAPEGRAD=<program> -DWORK=<scratch folder> -P tests/cli/data.cmake
cmake_minimum_required(VERSION 3.25)
set(name tapegrad_data)
include(${CMAKE_CURRENT_LIST_DIR}/checks.cmake)

string(REPEAT "the cat sat on the mat.\n" 60 text)
file(WRITE ${dir}/text.txt "${text}")
set(tiny --layers 1 --heads 2 --width 32 --context 16 --batch 4 --max-steps 3 --warmup 1)
run(0 train --data text.txt --tokenizer byte ${tiny} --quiet --out bytes)
run(0 export --model bytes --to hf --out tok)
file(READ ${dir}/tok/tokenizer.json json)
string(JSON json SET "${json}" added_tokens [=[[{"id": 256, "content": "<|endoftext|>", "single_word": false,
  "lstrip": false, "rstrip": false, "normalized": false, "special": true}]]=])
file(WRITE ${dir}/tokenizer.json "${json}")

# One end for each document. eval counts the tokens.
string(REPEAT "{\"text\": \"the cat\"}\n" 20 lines)
file(WRITE ${dir}/a.jsonl "${lines}")
run(0 train --data text.txt a.jsonl --tokenizer ./tokenizer.json ${tiny} --out both)
expect(out "2 files: ")
run(0 eval --model both --data a.jsonl)
expect(out "a.jsonl: 160 tokens")
run(0 eval --model both --data text.txt)
expect(out "text.txt: 1441 tokens")
run(0 eval --model both --data text.txt --documents line)
expect(out "text.txt: 1440 tokens")
run(0 eval --model bytes --data a.jsonl)
expect(out "a.jsonl: 160 tokens")
expect(err "a.jsonl has 20 documents, and the tokenizer has no end-of-text token: nothing shows where one ends")

# Special tokens that a text spells
file(WRITE ${dir}/spelled.txt "ab<|endoftext|>${text}")
run(0 eval --model both --data spelled.txt)
expect(err "spelled.txt has the special token <|endoftext|> in its text, and it is encoded as text; --special parse ")
expect(out "spelled.txt: 1456 tokens")
run(0 eval --model both --data spelled.txt --special parse)
expect(out "spelled.txt: 1444 tokens")
fail_if("a note" err MATCHES note)
# A resumed run reads its data in the same way; so does finetuning.
foreach(kind train finetune)
  set(from "--tokenizer;./tokenizer.json;${tiny}")
  if(kind STREQUAL finetune)
    set(from --model both --batch 4 --max-steps 3 --warmup 1)
  endif()
  run(0 ${kind} --data spelled.txt a.jsonl ${from} --special parse --documents line --out ${kind}_parsed)
  run(0 ${kind} --resume ${kind}_parsed --max-steps 4)
  fail_if("a resumed run reads special tokens otherwise" err MATCHES special)
  refused(1 "special is \"parse\" in ${kind}_parsed/checkpoint.safetensors, and \"text\" is given."
          ${kind} --resume ${kind}_parsed --special text)
endforeach()

file(WRITE ${dir}/keys.jsonl "{\"a\": 1}")
refused(1 "line 1 of keys.jsonl is an object with the keys 'a'. It must be an object with a \"text\""
        train --data keys.jsonl --out never)
refused(2 "'page' is not known. The names are file, line." train --data text.txt --documents page --out never)
report()
message(NOTICE "data of the command line works")
