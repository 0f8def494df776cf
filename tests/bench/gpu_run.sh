#!/usr/bin/env bash
# bench/gpu/run.py without a GPU: with the programs of a build, and with programs that print, fail or hang.
# gpu_run.sh <repository> <programs> <output folder> <TG_CUDA of the build>
set -u
run=$1/bench/gpu/run.py bin=$2 work=$3
rm -rf "$work" && mkdir -p "$work/fake"
failed=0
complain() { failed=1 && printf '%s\n' "$@"; }
has() { grep -qE "$1" "$work/out/table.txt" || complain "the table has no line '$1':" "$(cat "$work/out/table.txt")"; }
runs() { python3 "$run" -o "$work/out" "$@" >"$work/printed" 2>&1; }

if [[ $4 == EMULATE ]]; then
  runs --cases 8 --seconds 300 -b "$bin" smoke tests || complain "$(cat "$work/printed")"
  has '^smoke +9 of 9 right'
  has '^tests +8 cases in 1 processes, 0 of which failed'
  exit $failed
fi

# A rehearsal: each stage has a line, and no program begins work.
runs -b "$bin"
status=$?
((status == 1)) || complain "a rehearsal ends with $status:" "$(cat "$work/printed")"
for line in machine 'smoke  ' 'tests  ' 'training  +20 steps, beside the CPU: no run on a GPU'; do has "^$line"; done
for name in train_f32 ops timeit big big_tuned big_batch16 big_moments big_split big_profile big_fp8 gpt2 finetune \
  switchback lora_eager lora_compiled lora fragmented; do
  has "^$name +status 1 after [0-9]+ s: .*\[device\] "
done
has '^seconds planned +machine 12, .*; 497 of 510$'
tail -n 1 "$work/printed" | grep -q '^second call  *bench/gpu/run.py sanitizer$' || complain 'no second call is last'
(($(ls "$work/out" | wc -l) < 9)) || complain "$(ls "$work/out")"

# Programs that print: a failing case runs again, and a compiled mode without a graph is reported.
cat >"$work/fake/tg_tests_cuda" <<'END'
#!/bin/sh
case $1 in
  -c) echo '[doctest] unskipped test cases passing the current filters: 18' ;;
  -f=2) printf 'TEST CASE:  sums\n\nERROR: 1 == 2\n' && exit 1 ;;
  -f=1) [ "$2" = -l=1 ] || exit 1 ;;
  -f=16) exit 77 ;;
  *) echo '[doctest] test cases: 1 | 1 passed' ;;
esac
END
print() { printf '#!/bin/sh\nprintf "%%s\\n" "%s"\n' "$2" >"$work/fake/$1" && chmod +x "$work/fake/$1"; }
chmod +x "$work/fake/tg_tests_cuda"
for name in tapegrad bench_ops; do print $name nothing; done
print bench_step '[compile] 9 ops run one by one, not as one graph: add cannot be recorded'
runs -b "$work/fake" smoke tests finetune
has '^smoke +9 of 9 right'
has '^tests +18 cases in 2 processes, 1 of which failed; of their 15 cases alone 14 are right, 0 had no time; 1 '
has '^  case 2 +status 1: sums: ERROR: 1 == 2'
has '^finetune +without a graph: .*add cannot be recorded'
print bench_step '[compile] 9 ops run one by one, not as one graph: TG_CUDA_GRAPHS=0 forbids CUDA graphs; median'
runs -b "$work/fake" finetune
has '^finetune .*median'

# One fails and one hangs: each has its rows, the stage after them runs, and the limit holds.
printf '#!/bin/sh\nexit 1\n' >"$work/fake/bench_gpt_timeit" && chmod +x "$work/fake/bench_gpt_timeit"
printf '#!/bin/sh\nsleep 1000\n' >"$work/fake/bench_training" && chmod +x "$work/fake/bench_training"
begin=$SECONDS
runs --seconds 30 -b "$work/fake" timeit lora finetune
((SECONDS - begin <= 35)) || complain "it took $((SECONDS - begin)) s of 30"
has '^timeit +status 1 after '
has '^timeit +  - small_forward_backward_mixed_True: ms ours none; torch'
has '^lora_compiled +status 124 after '
has '^finetune .*median'
has '^second call +bench/gpu/run.py smoke '
# A mode that fails is missing from its row.
printf '#!/bin/sh\ncase $* in *compiled*) exit 1 ;; esac\nexec "%s/bench_gpt_timeit" "$@"\n' "$bin" \
  >"$work/fake/bench_gpt_timeit"
runs --device cpu -b "$work/fake" timeit
has '^timeit +  .* tiny_forward_backward_mixed_True: ms ours eager [0-9.]+; torch'
runs -b "$work/fake" abacus
status=$?
((status == 2)) && grep -q "there is no stage 'abacus'" "$work/printed" || complain "an unknown stage ends with $status"
exit $failed
