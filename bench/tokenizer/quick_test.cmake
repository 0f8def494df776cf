# Tests bench_tokenizer: cmake -DPROGRAM=<bench_tokenizer> -DOUT=<folder> -P quick_test.cmake. Rates of one and, if
# available, two threads must be positive and ids equal.
include(${CMAKE_CURRENT_LIST_DIR}/../common/quick.cmake)
file(WRITE ${OUT}/t.json [=[{"added_tokens": [], "decoder": {"type": "Fuse"}, "pre_tokenizer": {"type": "Split",
  "behavior": "Isolated",
  "pattern": {"Regex": " ?[a-z]+|."}}, "model": {"type": "BPE", "unk_token": "?",
  "vocab": {"?": 0, "t": 1, "h": 2, "th": 3, " ": 4, "e": 5, "the": 6}, "merges": ["t h", "th e"]}}]=])
string(REPEAT "the theme, and the rest of it. " 5000 text)
file(WRITE ${OUT}/text.txt "${text}")
set(flags --tokenizer ${OUT}/t.json --text ${OUT}/text.txt)
execute_process(COMMAND ${PROGRAM} ${flags} --rounds 2 --commit test --json ${OUT}/run.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE text)
prints("${text}" "t.json .*text.txt +1 thread.s. +[0-9.]+ MB/s")
read_results(${OUT}/run.json json device clock)
positive("${json}" "encoding;0" tokens)
positive("${json}" "encoding;0;runs;0" mb_per_second)
execute_process(COMMAND ${PROGRAM} ${flags} --rounds 2 --cpu-time --json ${OUT}/cpu.json
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
read_results(${OUT}/cpu.json json)
string(JSON clock GET "${json}" clock)
equals("the clock of --cpu-time" ${clock} processor)
has_members("${json}" 1 "encoding;0;runs")
fails(2 "--rounds is 0" ${flags} --rounds 0)
fails(1 "none.json" --tokenizer none.json --text ${OUT}/text.txt)
fails(2 "needs --tokenizer PATH... and --text FILE" --text ${OUT}/text.txt)
