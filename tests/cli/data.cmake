# Data of `tapegrad train`, `finetune` and `eval`: documents, and special tokens that they spell.
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
prints(out "2 files: " train --data text.txt a.jsonl --tokenizer ./tokenizer.json ${tiny} --out both)
prints(out "a.jsonl: 160 tokens" eval --model both --data a.jsonl)
prints(out "text.txt: 1441 tokens" eval --model both --data text.txt)
prints(out "text.txt: 1440 tokens" eval --model both --data text.txt --documents line)
prints(out "a.jsonl: 160 tokens" eval --model bytes --data a.jsonl)
expect(err "a.jsonl has 20 documents, and the tokenizer has no end-of-text token: nothing shows where one ends")

# Special tokens that a text spells
file(WRITE ${dir}/spelled.txt "ab<|endoftext|>${text}")
run(0 eval --model both --data spelled.txt)
expect(err "spelled.txt has the special token <|endoftext|> in its text, and it is encoded as text; --special parse ")
expect(out "spelled.txt: 1456 tokens")
prints(out "spelled.txt: 1444 tokens" eval --model both --data spelled.txt --special parse)
fail_if("a note" err MATCHES note)
# A resumed run and finetuning read data like the first run.
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

file(WRITE ${dir}/loss.json "{\"loss\": \"all\"}")
file(WRITE ${dir}/keys.jsonl "{\"a\": 1}")
refused(1 "line 1 of keys.jsonl is an object with the keys 'a'. It must be an object with a \"text\""
        train --data keys.jsonl --out never)
refused(2 "'page' is not known. The names are file, line, bytes." train --data text.txt --documents page --out never)
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
json_is(meta 1601 tokens)
json_is(meta 201 shards tokens_000002.npy)
run(0 train --resume of_llmc --max-steps 4 --quiet)
# A pattern in a folder whose name looks like one
file(COPY ${dir}/shards_llmc DESTINATION "${dir}/of [1]")
execute_process(COMMAND ${TAPEGRAD} train --data "shards_llmc/*.bin" --tokenizer ../tokenizer.json ${tiny} --out bracket
                WORKING_DIRECTORY "${dir}/of [1]" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
run(0 train --resume "of [1]/bracket" --max-steps 4 --quiet)
file(REMOVE "${dir}/of [1]/shards_llmc/tokens_000001.bin")
refused(1 "shards_llmc/tokens_000001.bin is missing, and " train --resume "of [1]/bracket" --max-steps 5)
run(0 tokenize --tokenizer tokenizer.json --in text.txt --out all.bin --format llmc)
refused(1 "tokens_000000.npy was written with another tokenizer, as shards_npy/meta.json says"
        train --data "shards_npy/*.npy" --tokenizer byte --out never)
refused(1 "shards_npy exists. --out names a new folder"
        tokenize --tokenizer tokenizer.json --in text.txt --out shards_npy --shard-tokens 9)
refused(2 "--shard-tokens makes a folder" tokenize --tokenizer tokenizer.json --in text.txt --out x.npy
        --shard-tokens 9)
refused(2 "for a folder of shards pass --shard-tokens" tokenize --tokenizer tokenizer.json --in text.txt --out x)
foreach(wrong 0 -1 1.5M M 1T 10000000000G)
  refused(2 "--shard-tokens is '${wrong}'. It takes a number, as 5G, 200M or 1000000"
          tokenize --tokenizer tokenizer.json --in text.txt --out never --shard-tokens ${wrong})
endforeach()
run(0 tokenize --tokenizer tokenizer.json --in text.txt --out kilo --shard-tokens 1k)
run(0 tokenize --tokenizer tokenizer.json --in text.txt --out plain --shard-tokens 1000)
same_files(kilo/meta.json plain/meta.json "1k is not 1000")
refused(1 "no file matches none/*.bin" train --data "none/*.bin" --out never)
refused(1 "shards_npy/* has texts and token files" train --data "shards_npy/*" --tokenizer ./tokenizer.json --out never
        --weights 1)

# A mixture of texts and token files
run(0 train --data text.txt "shards_raw/*.bin" --weights 0.25,0.75 --tokenizer ./tokenizer.json ${tiny} --out mixed)
refused(1 "[data] val_tokens is 9999999, and " train --data text.txt --val-data text.txt --val-tokens 9999999
        ${tiny} --out never)
run(0 train --data text.txt "shards_raw/*.bin" --weights 1,3 --tokenizer ./tokenizer.json ${tiny} --quiet --out same)
same_files(mixed/model.safetensors same/model.safetensors "weights are not proportions")
run(0 train --resume mixed --max-steps 4 --quiet --weights .250,0.7500)
refused(1 "weights is \"0.25,0.75\" in mixed/checkpoint.safetensors, and \"0.2,0.8\" is given"
        train --resume mixed --weights 0.2,0.8)
# Settings that no file uses
set(unused train --tokenizer ./tokenizer.json --out never --data)
refused(1 "token_type is given, and has no effect: shards_npy/*.npy has no token file without a header. Leave it out."
        ${unused} "shards_npy/*.npy" --token-type u32)
refused(1 "documents is given, and has no effect: a.jsonl has no text file other" ${unused} a.jsonl --documents file)
refused(1 "has no text. Leave it out." ${unused} "shards_llmc/*.bin" --special parse)
run(1 eval --model both --data "shards_raw/*.bin" --documents line)
run(1 tokenize --tokenizer tokenizer.json --in a.jsonl --documents line --out never.npy)
run(0 eval --model both --data "shards_raw/*.bin" a.jsonl --token-type u16 --special parse)
refused(1 "1 weight for 2 groups of data" train --data text.txt a.jsonl --weights 1 --out never)
refused(2 "weights is 'x'. It must be a number" train --data text.txt a.jsonl --weights 1,x --out never)
refused(1 "order is epochs, and the data is a mixture"
        train --data text.txt a.jsonl --weights 1,2 --order epochs ${tiny} --out never)
file(WRITE ${dir}/wide.bin "abc")
refused(1 "wide.bin has 3 bytes. A token file without a header has 4 bytes" train --data wide.bin --token-type u32 --out
        never)

# Instructions, chats and preferences
set(tune finetune --model both --batch 2 --max-steps 3 --warmup 1 --quiet --chat-format plain)
string(REPEAT [=[{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}
{"prompt": "the cat", "completion": " sat"}
{"instruction": "say", "input": "on", "output": "mat"}
]=] 6 lines)
file(WRITE ${dir}/chat.jsonl "${lines}")
run(0 finetune --model both --batch 2 --max-steps 3 --warmup 1 --chat-format plain --data chat.jsonl --out chatty)
expect(out "--adapter chatty --chat\n" "chat.jsonl: 16 examples to train on, 2 to validate on, in the format plain")
expect(err "an epoch has 8 batches")
run(0 ${tune} --data chat.jsonl --out whole)
run(0 ${tune} --data chat.jsonl --loss all --out counted)
differ(whole/adapter_model.safetensors counted/adapter_model.safetensors "prompts count in the loss")
run(0 ${tune} --data chat.jsonl --pack concat --batch 1 --skip-bad true --compile true --out packed)
run(0 generate --model both --adapter chatty --prompt the --max-tokens 3)
run(0 export --model both --adapter chatty --out chatty_hf)
file(READ ${dir}/chatty_hf/tokenizer_config.json config)
string(JSON template GET "${config}" chat_template)
file(READ ${dir}/chatty/chat_template.jinja recorded)
fail_if("the chat template is '${template}'" NOT template STREQUAL recorded OR NOT template MATCHES "eos_token")
run(0 finetune --model both --adapter chatty --data chat.jsonl --batch 2 --max-steps 3 --warmup 1 --quiet --out more)
same_files(chatty/chat_template.jinja more/chat_template.jinja "further training loses the chat template")
run(0 merge --model both --adapter chatty --out chatty_merged)
same_files(chatty/chat_template.jinja chatty_merged/chat_template.jinja "merging keeps the chat format")
run(0 finetune --model both --batch 2 --max-steps 3 --warmup 1 --data a.jsonl --out chatty --overwrite)
fail_if("an adapter of texts keeps a chat format" EXISTS ${dir}/chatty/chat_template.jinja)
string(REPEAT "{\"prompt\": \"the \", \"chosen\": \"cat\", \"rejected\": \"dog\"}\n" 9 lines)
file(WRITE ${dir}/pairs.jsonl "${lines}")
foreach(folder preferred further)
  run(0 ${tune} ${from} --data pairs.jsonl --objective dpo --beta 0.2 --lr 0.1 --out ${folder})
  file(STRINGS ${dir}/${folder}/log.jsonl first REGEX "\"step\":1,")
  string(JSON loss GET "${first}" loss)
  fail_if("the first loss of DPO is ${loss}, not log 2" NOT loss MATCHES "^0.69314[67]")
  set(from --adapter preferred)
endforeach()
foreach(kind chat pairs)  # a resumed run and a whole one, in the middle of an epoch
  set(objective lm)
  if(kind STREQUAL pairs)
    set(objective dpo --adapter preferred)
  endif()
  foreach(steps 3 12)
    run(0 ${tune} --data ${kind}.jsonl --objective ${objective} --schedule constant --max-steps ${steps} --out
        ${kind}_${steps})
  endforeach()
  run(0 finetune --resume ${kind}_3 --max-steps 12 --quiet)
  same_files(${kind}_3/adapter_model.safetensors ${kind}_12/adapter_model.safetensors "a resumed run differs")
endforeach()
refused(1 "[examples] the keys are messages. A line is an object with prompt, chosen and rejected."
        ${tune} --data chat.jsonl --objective dpo --out never)
refused(1 "beta is 0.5 and objective is" ${tune} --data chat.jsonl --beta 0.5 --out never)
refused(1 "has no examples: lines of a .jsonl file" ${tune} --data text.txt --out never)
refused(1 "both has no chat template."
        finetune --model both --data chat.jsonl --max-steps 3 --warmup 1 --out never)
refused(1 "needs the token <|im_end|>, which the tokenizer of both lacks"
        finetune --model both --data chat.jsonl --chat-format chatml --max-steps 3 --warmup 1 --out never)
refused(1 "--order random is given" ${tune} --data chat.jsonl --order random --out never)
refused(1 "weights, documents, special, token-type and val-data are for texts and token files"
        ${tune} --data chat.jsonl --weights 1 --out never)
file(WRITE ${dir}/bad.jsonl "${lines}{\"prompt\": \"a\", \"chosen\": \"\", \"rejected\": \"b\"}\n")
refused(1 "bad.jsonl:10" ${tune} --data bad.jsonl --objective dpo --out never)
run(0 ${tune} --data bad.jsonl --objective dpo --skip-bad true --out skipped)
expect(err "1 line skipped, which no example is on")

# Refusals, and settings in other places
run(0 tokenize --tokenizer tokenizer.json --in text.txt --out old.bin)
foreach(format raw llmc npy)
  refused(1 "old.bin exists, and a .bin file does not say what it holds"
          tokenize --tokenizer tokenizer.json --in text.txt --out old.bin --format ${format})
endforeach()
run(0 tokenize --tokenizer tokenizer.json --in text.txt --out all.bin --format llmc)  # the header has the format
refused(2 "--shard-tokens makes a new folder; omit --overwrite"
        tokenize --tokenizer tokenizer.json --in text.txt --out never --shard-tokens 9 --overwrite)
run(2 eval --model both --data text.txt --weights 1)
refused(1 "[train] loss is \"all\". It is for examples" train --config loss.json --data text.txt --out never)
refused(1 "--unknown skip is for texts" ${tune} --data chat.jsonl --unknown skip --out never)
file(WRITE ${dir}/late.jsonl "\nno JSON\n")
file(READ ${dir}/chat.jsonl lines)
file(APPEND ${dir}/late.jsonl "${lines}")
run(0 ${tune} --data late.jsonl --skip-bad true --out late)
# A tokenizer without an end-of-text token parses special tokens too, also when resumed
string(REPLACE "<|endoftext|>" "<|sep|>" separated "${json}")
file(WRITE ${dir}/sep.json "${separated}")
file(WRITE ${dir}/sep.txt "ab<|sep|>${text}")
run(0 train --data sep.txt --tokenizer ./sep.json --special parse ${tiny} --quiet --out sep)
run(0 finetune --model sep --data sep.txt --special parse --max-steps 3 --warmup 1 --quiet --out of_sep)
run(0 finetune --resume of_sep --max-steps 4 --quiet)
# Tokenizers are trained on the texts of JSON lines
run(0 tokenizer --train "a.jso*" --vocab 260 --out of_lines)
file(READ ${dir}/of_lines/tokenizer.json trained)
string(JSON merge GET "${trained}" model merges 0)
fail_if("the first merge is ${merge}" merge MATCHES "\\{")
# A reply of --chat ends by the token that finetune taught
file(WRITE ${dir}/cat.jsonl "")
foreach(i RANGE 40)
  file(APPEND ${dir}/cat.jsonl "{\"prompt\": \"the cat\", \"completion\": \" sat\"}\n")
endforeach()
run(0 finetune --model both --data cat.jsonl --chat-format plain --rank 16 --targets * --batch 16 --max-steps 150
    --warmup 5 --lr 0.02 --schedule constant --val-fraction 0 --seed 2 --quiet --out cat)
file(WRITE ${dir}/message.txt "the cat\n")
execute_process(COMMAND ${TAPEGRAD} generate --model both --adapter cat --chat --max-tokens 9
                        --temperature 0 WORKING_DIRECTORY ${dir} INPUT_FILE ${dir}/message.txt OUTPUT_VARIABLE out
                ERROR_VARIABLE err)
set(command "tapegrad generate --chat")
fail_if("the reply is '${out}'" NOT out MATCHES "^ sat\n")
