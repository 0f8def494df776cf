#!/usr/bin/env bash
# bench/gpu/run.sh where there is no GPU: with the programs of a build, which say so or run on the emulator, and with
# programs that only print.
#   gpu_run.sh <repository> <programs of a build> <folder for what it writes> <the build's TG_CUDA>
set -u
run=$1/bench/gpu/run.sh bin=$2 work=$3
rm -rf "$work" && mkdir -p "$work/fake"
failed=0
complain() { failed=1 && printf '%s\n' "$@"; }
has() { grep -qE "$1" "$work/out/table.txt" || complain "the table has no line '$1':" "$(cat "$work/out/table.txt")"; }

if [[ $4 == EMULATE ]]; then
  CASES=8 RUN_SECONDS=300 bash "$run" -o "$work/out" -b "$bin" smoke tests >"$work/printed" 2>&1 ||
    complain "$(cat "$work/printed")"
  has '^smoke +9 of 9 right'
  has '^tests +8 of 8 ended, 0 failed, 0 without a device'
  exit $failed
fi

# A rehearsal: each stage has a line, and no program begins work.
RUN_SECONDS=200 bash "$run" -o "$work/out" -b "$bin" >"$work/printed" 2>&1
status=$?
((status == 1)) || complain "a rehearsal ends with $status:" "$(cat "$work/printed")"
for line in machine 'smoke  ' 'tests  ' train_f32 'training  +20 steps, beside cpu: no run on a GPU' ops_bf16 timeit \
  'big  ' big_tuned big_profile big_fp8 \
  'switchback  ' lora_eager lora_compiled 'lora  ' fragmented sanitizer 'end  '; do
  has "^$line"
done
for name in train_f32 lora_eager big_tuned; do has "^$name +status 1 after [0-9]+ s: .*\[device\] "; done
(($(ls "$work/out" | wc -l) < 9)) || complain "$(ls "$work/out")"
tail -n 1 "$work/printed" | grep -q '^end ' || complain 'the table is not what is printed last'

# Programs that print: a case that fails runs again, and what is no graph is said.
cat >"$work/fake/tg_tests_cuda" <<'END'
#!/bin/sh
case $1 in
  -c) echo '[doctest] unskipped test cases passing the current filters: 3' ;;
  -f=2) printf 'TEST CASE:  sums\n\nERROR: 1 == 2\n' && exit 1 ;;
  -f=3) exit 77 ;;
  *) echo '[doctest] test cases: 1 | 1 passed' ;;
esac
END
print() { printf '#!/bin/sh\nprintf "%%s\\n" "%s"\n' "$2" >"$work/fake/$1" && chmod +x "$work/fake/$1"; }
chmod +x "$work/fake/tg_tests_cuda"
print tapegrad nothing
print bench_step '[compile] 9 ops run one by one, not as one graph: add cannot be recorded'
bash "$run" -o "$work/out" -b "$work/fake" smoke tests big >"$work/printed" 2>&1
has '^smoke +9 of 9 right'
has '^tests +3 of 3 ended, 1 failed, 1 without a device'
has '^  case 2 +status 1: sums: ERROR: 1 == 2'
has '^big_tuned +without a graph: .*add cannot be recorded'
print bench_step '[compile] 9 ops run one by one, not as one graph: TG_CUDA_GRAPHS=0 forbids CUDA graphs; median'
bash "$run" -o "$work/out" -b "$work/fake" big >"$work/printed" 2>&1
has '^big_tuned .*median'
bash "$run" -o "$work/out" -b "$work/fake" abacus >"$work/printed" 2>&1
status=$?
((status == 2)) && grep -q "there is no stage 'abacus'" "$work/printed" || complain "an unknown stage ends with $status"
exit $failed
