# `tapegrad tokenizer`, what it trains in use, and every bad input.
string(REPEAT "the cat sat on the mat and the dog ate the log.<|end|>\n" 60 text)
file(WRITE ${dir}/text.txt "${text}")
file(WRITE ${dir}/more.txt "cats and dogs, cats and dogs")
file(WRITE ${dir}/empty.txt "")
set(on tokenizer --train text.txt more.txt)

prints(out "wrote new/bpe, a tokenizer of 280 ids\n" ${on} --vocab 280 --special "<|end|>" "<|pad|>" --out new/bpe/)
fail_if("a note about a whole vocabulary" err)
file(GLOB files RELATIVE ${dir}/new ${dir}/new/* ${dir}/new/bpe/*)
list(JOIN files " " files)
fail_if("new has ${files}" NOT files STREQUAL "bpe bpe/tokenizer.json bpe/tokenizer_config.json")
file(READ ${dir}/new/bpe/tokenizer.json json)
json_is(json 0 model vocab "<|end|>")
json_is(json 2 model vocab "!")
file(READ ${dir}/new/bpe/tokenizer_config.json config)
expect(config "PreTrainedTokenizerFast")
run(0 ${on} --vocab 280 --special "<|end|>" "<|pad|>" --out again --threads 1)
same_files(new/bpe/tokenizer.json again/tokenizer.json "one thread trains another tokenizer")
run(0 ${on} --vocab 280 --pattern llama3 --min-frequency 50 --out llama3)
differ(again/tokenizer.json llama3/tokenizer.json "--pattern has no effect")

# A small text
prints(out "wrote small, a tokenizer of 266 ids\n" tokenizer --train more.txt --out small)
expect(err "the texts give 266 ids, not 32768: no other pair of tokens occurs 2 times or more")

# In use
prints(out " tokens of 280" tokenize --tokenizer new/bpe --in text.txt --special parse --out ids.npy)
run(0 train --data text.txt --tokenizer ./new/bpe --out model --layers 1 --heads 2 --width 32 --context 16 --batch 4
  --warmup 2 --max-steps 3 --quiet)
prints(out "the cat" generate --model model --prompt "the cat" --max-tokens 4)
run(0 train --resume model --tokenizer ./again --max-steps 4 --quiet)  # equal content
refused(1 "[train] tokenizer is " train --resume model --tokenizer ./llama3 --max-steps 5)

# Refusals: nothing is made
refused(2 "tokenizer needs --train FILE... and --out DIR" tokenizer --out never)
refused(2 "tokenizer needs --train FILE... and --out DIR" ${on})
refused(2 "--train has no value. It takes a FILE." tokenizer --out never --train)
refused(2 "--pattern is 'gpt5'. Did you mean 'gpt2'? It is one of gpt2, llama3, qwen2."
        ${on} --out never --pattern gpt5)
refused(2 "--vocab is 'many'" ${on} --out never --vocab many)
refused(1 "vocab_size is 257. The 256 bytes and 2 special token(s) have 258 ids" ${on} --out never --vocab 257
  --special "<a>" "<b>")
refused(1 "the special token <a> is given twice" ${on} --out never --special "<a>" "<a>")
refused(1 "min_frequency is 0. It must be 1 or more." ${on} --out never --min-frequency 0)
refused(1 "[data] empty.txt is empty" tokenizer --train text.txt empty.txt --out never)
refused(1 "nowhere.txt" tokenizer --train nowhere.txt --out never)
refused(1 "--train ids.npy is a token file" tokenizer --train ids.npy --out never)
refused(1 "again exists. --out names a new folder. Remove it" ${on} --out again)
refused(1 "text.txt exists. --out names a new folder. Remove it" ${on} --out text.txt/)
refused(1 "text.txt/never" ${on} --out text.txt/never)
set(command "tapegrad tokenizer --special ''")  # a macro would lose the empty argument
execute_process(COMMAND ${TAPEGRAD} ${on} --out never --special "" WORKING_DIRECTORY ${dir} RESULT_VARIABLE result
                OUTPUT_VARIABLE out ERROR_VARIABLE err)
expect(err "tapegrad: --special is empty. It takes a TOKEN")
file(GLOB left ${dir}/*.tmp)
fail_if("status ${result}, or there is a folder" NOT result EQUAL 2 OR EXISTS ${dir}/never OR left)
