#!/usr/bin/env bash
# Tests and measures the CUDA backend on a GPU in at most 510 s, with the programs of bench/gpu/pack.sh or of a build:
#
#   bench/gpu/run.sh [-o FOLDER] [-b BIN] [STAGE...]
#
# FOLDER: $OUT, else bench/results/gpu/<date>. It gets table.txt, printed at the end; run.json: GPU, driver, date,
# commit, status of each stage; logs.tgz: output and JSON of each program; big_profile.txt; gemm.txt: the tuned
# algorithms. BIN: the programs of a build instead of the kit. Stages, most informative first:
#
#   smoke      one test per foundation; a feature that fails is disabled for the rest
#   tests      every test case in a separate process; failures rerun alone. CASES: only the first CASES
#   training   losses on GPU and CPU, op by op and as a graph
#   ops        GEMMs, norms, attention, AdamW against PyTorch
#   timeit     document 004's steps against PyTorch
#   big        document 003's 2.7B step against PyTorch, with tuned algorithms, profiled, in 8 bits
#   switchback, lora, fragmented   documents 001, 000 and 002 against PyTorch
#   sanitizer  compute-sanitizer
#
# Each program has a time limit. A failure or timeout gets a line in the table, and the rest still runs. Needs python3,
# and torch for the comparisons. Without a GPU each stage reports that: a rehearsal. Exits with 1 if a program failed.
# RUN_SECONDS changes the limit.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD limit=${RUN_SECONDS:-510} out=${OUT:-bench/results/gpu/$(date -u +%Y-%m-%d)} bin='' failed=0
export PYTHONUNBUFFERED=1
while getopts o:b: flag; do
  case $flag in
    o) out=$OPTARG ;;
    b) bin=$(cd "$OPTARG" && pwd) || exit 2 ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
all=(smoke tests training ops timeit big switchback lora fragmented sanitizer)
stages=("${@:-}")
[[ -n ${stages[0]} ]] || stages=("${all[@]}")
for name in "${stages[@]}"; do
  [[ " ${all[*]} " == *" $name "* ]] || { echo "run.sh: there is no stage '$name'; there are: ${all[*]}" >&2 &&
    exit 2; }
done
mkdir -p "$out" && out=$(cd "$out" && pwd)
rm -f "$out"/{table.txt,run.json,logs.tgz,big_profile.txt,gemm.txt}
work=$(mktemp -d)
json=$work/json logs=$work/logs
mkdir -p "$json" "$logs" "$work/chains"
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT

left() { echo $((limit - SECONDS)); }
row() { printf '%-22s %s\n' "$1" "$2" | tee -a "$out/table.txt"; }
why() { # the most telling line of a log
  { grep -aE '\[device\]|rror|refus|cannot|skipped' "$1" || tail -n 1 "$1"; } | head -n 1 | cut -c1-170
}
# box NAME SECONDS COMMAND...: logs to $logs/NAME.log, with a time limit, never within the last 10 seconds
box() {
  local name=$1 most=$2 rest status begin=$SECONDS
  shift 2
  rest=$(($(left) - 10))
  ((rest >= 5)) || { row "$name" "not begun: $(left) s are left" && return 99; }
  timeout -k 3 $((most < rest ? most : rest)) "$@" >"$logs/$name.log" 2>&1
  status=$?
  printf '%s %d %d\n' "$name" "$status" $((SECONDS - begin)) >>"$work/ends"
  if ((status != 0 && status != 77)); then
    failed=1
    row "$name" "status $status after $((SECONDS - begin)) s: $(why "$logs/$name.log")"
  elif grep -aF 'not as one graph:' "$logs/$name.log" | grep -qvE 'TG_CUDA_GRAPHS=0|ops had other arguments'; then
    failed=1
    row "$name" "without a graph: $(grep -aF 'not as one graph:' "$logs/$name.log" | head -n 1 | cut -c1-150)"
  fi
  return $status
}
# peer NAME SECONDS FOLDER PROGRAM FLAGS...: program against PyTorch, by bench/FOLDER/compare_torch.py
peer() {
  local name=$1 most=$2 folder=$3 program=$4
  shift 4
  box "$name" "$most" python3 "bench/$folder/compare_torch.py" "$bin/$program" --device cuda --rounds 1 \
    --commit "$commit" --json "$json/$name.json" "$@" || return
  python3 bench/gpu/table.py compared "$json/$name.json" | while IFS= read -r line; do row "$name" "$line"; done
}
# warm FOLDER REQUEST FLAGS...: compiles PyTorch's functions in the background, into its disk cache
warm() {
  local folder=$1 request=$2
  shift 2
  nice -n 5 python3 "bench/$folder/compare_torch.py" --serve 4 --device cuda --warmup 1 --steps 1 "$@" <<<"$request" \
    >>"$logs/warm.log" 2>&1 &
}

find_programs() {
  local source build lib d wheels
  if [[ -z $bin ]]; then
    python3 - build/gpu/kit.tar.xz "$work" <<'PY' ||
import lzma, sys, tarfile
with lzma.open(sys.argv[1]) as f, tarfile.open(fileobj=f, mode="r|") as t:
    t.extractall(sys.argv[2])
PY
      { row machine 'there is no kit: bench/gpu/pack.sh makes it' && exit 1; }
    bin=$work/bin
    export LD_LIBRARY_PATH=$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    commit=$(cut -c1-9 "$work/commit")
    { read -r source && read -r build; } <"$work/paths"
    [[ -e $source ]] || { mkdir -p "$(dirname "$source")" && ln -s "$root" "$source"; }
    mkdir -p "$build/tests"
  else
    commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
  fi
  # without a toolkit, PyTorch's wheels have its libraries
  wheels=$(python3 -c 'import nvidia, os
print(*(os.path.join(p, d, "lib") for p in nvidia.__path__ for d in os.listdir(p)))' 2>/dev/null)
  for lib in libcublasLt.so.13 libnvrtc.so.13 libcupti.so.13 libnccl.so.2; do
    for d in /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64 $wheels; do
      [[ ! -e $d/$lib ]] || { LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$d && break; }
    done
  done
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
  export TG_CACHE_DIR=$work/chains
  chmod 700 "$TG_CACHE_DIR"
  {
    nvidia-smi
    lscpu
    free -g
    python3 -c 'import torch; print("torch", torch.__version__, torch.version.cuda)'
    echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
    ldd "$bin/tapegrad"
    "$bin/tapegrad" --version
  } >"$logs/machine.log" 2>&1
  gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader 2>/dev/null |
    head -n 1)
  row machine "${gpu:-no GPU}; $(grep -a '^torch' "$logs/machine.log" || echo 'no torch'); \
$(grep -ac '=> not found' "$logs/machine.log") libraries missing; commit $commit"
}

smoke() {
  local right=0 of=0
  one() { # one NAME CASES
    ((++of))
    box "smoke_$1" 40 "$bin/tg_tests_cuda" -tc="$2" || return
    ! grep -qE '\| +0 passed' "$logs/smoke_$1.log" && ((++right))
  }
  one device 'PTX: vectors*'
  case $? in 77 | 127) row smoke "$(why "$logs/smoke_device.log")" && return ;; esac
  one ptx 'PTX: cp_async*,PTX: ldmatrix*,PTX: mma*,PTX: named*,PTX: recip*,PTX: approx*'
  one wgmma 'PTX: TMA*' || { export TG_INT8_PRODUCTS=mma && row switch 'TG_INT8_PRODUCTS=mma from here on'; }
  one add 'operands that repeat*'
  one cublaslt 'one shape with bias*'
  one chain 'chains: one kernel*'
  one graph 'graphs: inputs and kept*,graphs: branches*' || { export TG_CUDA_GRAPHS=0 &&
    row switch 'TG_CUDA_GRAPHS=0 from here on'; }
  one int8 'products of codes on the device: exact*'
  one attention 'attention: every compiled*'
  row smoke "$right of $of right, at $SECONDS s"
}
tests() {
  local n i status title bad=()
  export tests=$bin/tg_tests_cuda work
  "$tests" -c >"$logs/count.log" 2>&1
  n=$(grep -a 'unskipped test cases' "$logs/count.log" | grep -oE '[0-9]+$')
  ((${n:-0} > 0)) || { row tests "$(why "$logs/count.log")" && failed=1 && return; }
  ((${CASES:-n} > n)) || n=${CASES:-$n}
  mkdir -p "$logs/cases"
  case_alone() {
    local begin=$SECONDS status
    timeout -k 2 90 "$tests" -f="$1" -l="$1" -nc >"$work/logs/cases/$1.log" 2>&1
    status=$?
    printf '%d %d %d\n' "$1" "$status" $((SECONDS - begin)) >>"$work/cases"
  }
  export -f case_alone
  : >"$work/cases"
  box tests 85 xargs -P "${JOBS:-10}" -I{} bash -c 'case_alone {}' < <(seq 1 "$n")
  mapfile -t bad < <(awk '$2 != 0 && $2 != 77 { print $1 }' "$work/cases")
  row tests "$(wc -l <"$work/cases") of $n ended, ${#bad[@]} failed, \
$(awk '$2 == 77' "$work/cases" | wc -l) without a device, at $SECONDS s"
  for i in "${bad[@]:0:16}"; do
    (($(left) > limit / 2)) || break
    title=$(grep -aE '^TEST CASE:' "$logs/cases/$i.log" | head -n 1 | cut -c13-110)
    timeout -k 2 40 "$tests" -f="$i" -l="$i" -nc >"$logs/cases/$i.again.log" 2>&1
    status=$?
    failed=1
    row "  case $i" "$( ((status)) && echo "status $status" || echo 'right when alone'): $title: \
$(why "$logs/cases/$i.log")"
  done
}
training() {
  local dtype common=(--data tests/data/prose.txt --tokenizer char --layers 3 --heads 3 --width 96 --context 64
    --batch 8 --max-steps 20 --warmup 5 --val-fraction 0.05 --eval-every 0 --dropout 0.1 --quiet --no-save)
  run_on() { box "train_$1" 40 "$bin/tapegrad" train "${common[@]}" --out "$work/run_$1" "${@:2}"; }
  run_on cpu --device cpu
  for dtype in f32 bf16; do
    run_on $dtype --device cuda --dtype $dtype
    run_on graph_$dtype --device cuda --dtype $dtype --compile true
  done
  row training "$(python3 bench/gpu/table.py losses "$work"/run_{cpu,f32,graph_f32,bf16,graph_bf16}/log.jsonl)"
}
ops() {
  kill $(jobs -p) 2>/dev/null # PyTorch's compilations would disturb measurements
  peer ops_bf16 70 ops bench_ops --seconds 0.04 --filter bf16
  peer ops_adamw 15 ops bench_ops --seconds 0.04 --filter adamw
  peer ops_tf32 20 ops bench_ops --seconds 0.03 --filter '2560 tf32'
  peer ops_f32 20 ops bench_ops --seconds 0.03 --filter attention
}
timeit() {
  peer timeit 75 gpt_timeit bench_gpt_timeit --computations forward_backward --ways 'fused eager,fused compile' \
    --warmup 4 --steps 15
}
big() {
  local model=(--device cuda --arch cs336-2.7b --batch 4 --dtype bf16) compiled=(--mode compiled --untimed 4 --steps 10)
  step() { # step NAME FLAGS...
    box "$1" 60 "$bin/bench_step" "${model[@]}" "${compiled[@]}" --commit "$commit" --json "$json/$1.json" "${@:2}" &&
      row "$1" "$(grep -a 'median' "$logs/$1.log" | cut -c1-200)"
  }
  peer big 110 gpt_training bench_step --runs cs336_2.7b --dtype bf16 --ways 'eager fused,blocks fused' --warmup 4 \
    --steps 10
  TG_AUTOTUNE=1 TG_GEMM_CACHE=$out/gemm.txt step big_tuned
  python3 -c 'import array, random, sys
array.array("H", random.choices(range(10000), k=200000)).tofile(sys.stdout.buffer)' >"$work/tokens.bin"
  box big_profile 50 "$bin/tapegrad" train --arch cs336-2.7b --vocab-size 10000 --data "$work/tokens.bin" --batch 4 \
    --dtype bf16 --compile true --device cuda --max-steps 9 --warmup 0 --schedule constant --val-fraction 0 \
    --eval-every 0 --no-save --out "$work/run_big" --profile "$json/big_profile.json" &&
    cp "$json/big_profile.json.txt" "$out/big_profile.txt"
  TG_PASSES=-branch step big_in_line
  step big_fp8 --linear fp8
  step big_switchback --linear switchback
}
switchback() {
  peer switchback 50 switchback bench_switchback --dims 2048,4096 --batch 16384 --only linear,global --repeat 8
}
lora() {
  local mode
  for mode in compiled eager; do
    box "lora_$mode" 16 "$bin/bench_training" --device cuda --mode $mode --warmup 0.1 --target 0.25 --samples 12 \
      --json "$json/lora_$mode.json"
  done
  peer lora 45 lora_training bench_training --seconds 0.05 --filter complete_iteration
  peer lora_forward 30 lora_training bench_training --seconds 0.05 --filter large_2048x2048
}
fragmented() {
  peer fragmented 40 fragmented bench_fragmented --sizes 2048 --batches 1,16 --fragments 8 --warmup 4 --steps 20
}
sanitizer() {
  local name
  command -v compute-sanitizer >/dev/null || { row sanitizer 'skipped: there is no compute-sanitizer here' && return; }
  local check=(compute-sanitizer --error-exitcode 1 --tool) tests=$bin/tg_tests_cuda
  box memcheck_ptx 30 "${check[@]}" memcheck --leak-check no "$tests" -tc='PTX*'
  TG_CASES=attention,softmax.,rms_norm,cross_entropy,embedding,rope,swiglu box memcheck_ops 60 "${check[@]}" memcheck \
    --leak-check no "$tests" -tc='bf16 against f64*'
  box racecheck_ptx 40 "${check[@]}" racecheck "$tests" -tc='PTX*'
  for name in memcheck_ptx memcheck_ops racecheck_ptx; do
    row "$name" "$(grep -a 'ERROR SUMMARY' "$logs/$name.log" | tail -n 1)"
  done
}

find_programs
if [[ -n $gpu ]]; then # PyTorch compiles while the tests run
  for size in small medium; do
    for mixed in False True; do
      warm gpt_timeit "[\"$size\", \"forward_backward\", \"$mixed\"]" --ways 'fused compile'
    done
  done
  warm gpt_training '"cs336_2.7b"' --layers 2 --dtype bf16 --ways 'blocks fused'
fi
for name in "${stages[@]}"; do
  "$name"
  (cd "$work" && tar -czf "$out/logs.tgz" logs json) # saved at each stage: the machine may vanish
done
row end "at $SECONDS s"
GPU=$gpu COMMIT=$commit python3 bench/gpu/table.py ends "$work/ends" >"$out/run.json"
printf '\n' && cat "$out/table.txt"
exit $failed
