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
# Shards: the same tokens in any format, and the same model as from the text
foreach(format npy llmc raw)
  run(0 tokenize --tokenizer tokenizer.json --in a.jsonl text.txt --out shards_${format} --shard-tokens 700 --format
      ${format})
  expect(out "1580 bytes of 21 documents are 1601 tokens of 257, in shards_${format}")
  file(GLOB shards ${dir}/shards_${format}/tokens_*)
  list(LENGTH shards n)
  fail_if("${n} shards" NOT n EQUAL 3)
  run(0 train --data "shards_${format}/tokens_*" --tokenizer ./tokenizer.json ${tiny} --quiet --out of_${format})
endforeach()
run(0 train --data a.jsonl text.txt --tokenizer ./tokenizer.json ${tiny} --quiet --out of_text)
foreach(format npy llmc raw)
  same_files(of_${format}/model.safetensors of_text/model.safetensors "shards and texts train different models")
endforeach()
file(READ ${dir}/shards_npy/meta.json meta)
string(JSON tokens GET "${meta}" tokens)
string(JSON last GET "${meta}" shards tokens_000002.npy)
fail_if("meta.json says ${tokens} and ${last} tokens" NOT tokens EQUAL 1601 OR NOT last EQUAL 201)
run(0 train --resume of_llmc --max-steps 4 --quiet)
run(0 tokenize --tokenizer tokenizer.json --in text.txt --out all.bin --format llmc)
refused(1 "tokens_000000.npy was written with another tokenizer, as shards_npy/meta.json says"
        train --data "shards_npy/*.npy" --tokenizer byte --out never)
refused(1 "shards_npy exists. --out names a new folder"
        tokenize --tokenizer tokenizer.json --in text.txt --out shards_npy --shard-tokens 9)
refused(2 "--shard-tokens makes a folder" tokenize --tokenizer tokenizer.json --in text.txt --out x.npy
        --shard-tokens 9)
refused(2 "for a folder of shards pass --shard-tokens" tokenize --tokenizer tokenizer.json --in text.txt --out x)
refused(1 "--shard-tokens is 0. It must be 1 or more"
        tokenize --tokenizer tokenizer.json --in text.txt --out never --shard-tokens 0)
refused(1 "no file matches none/*.bin" train --data "none/*.bin" --out never)
refused(1 "shards_npy/* has texts and token files" train --data "shards_npy/*" --tokenizer ./tokenizer.json --out never
        --weights 1)

# A mixture of texts and token files
run(0 train --data text.txt "shards_raw/*.bin" --weights 0.25,0.75 --tokenizer ./tokenizer.json ${tiny} --out mixed)
run(0 train --data text.txt "shards_raw/*.bin" --weights 1,3 --tokenizer ./tokenizer.json ${tiny} --quiet --out same)
same_files(mixed/model.safetensors same/model.safetensors "weights are not proportions")
run(0 train --resume mixed --max-steps 4 --quiet)
refused(1 "1 weights for 2 groups of data" train --data text.txt a.jsonl --weights 1 --out never)
refused(1 "weights are '1,x'. They must be numbers with commas" train --data text.txt a.jsonl --weights 1,x --out never)
refused(1 "order is epochs, and the data is a mixture"
        train --data text.txt a.jsonl --weights 1,2 --order epochs ${tiny} --out never)
file(WRITE ${dir}/wide.bin "abc")
refused(1 "wide.bin has 3 bytes. A token file without a header has 4 bytes" train --data wide.bin --token-type u32 --out
        never)

report()
message(NOTICE "data of the command line works")
