#!/usr/bin/env bash
# Everything that needs a GPU, in stages of at most 8 minutes each, with its results as files in one folder:
#
#   bench/gpu/run.sh [-o FOLDER] [-b BUILD] [STAGE ...]      default: bench/results/gpu/<date>, build/gpu, all stages
#
#   build     configures and builds for the GPU of this machine
#   tests     all tests labelled cuda
#   ptx       each PTX wrapper against its twin's definition, one by one
#   memcheck  compute-sanitizer's memcheck on the small tests
#   racecheck compute-sanitizer's racecheck on the small tests
#   ops       kernels, products by layout and dtype, AdamW, norms, models: bench_ops --device cuda
#   torch     the same rows beside PyTorch, eager and compiled (needs python3 with torch); TORCH_FILTER limits the rows
#   training  document 000's benchmarks, eager, compiled without graphs and with, then beside PyTorch (needs python3 with torch)
#   switchback document 001's ops of SwitchBack over its grid of layers, and the layers as a whole, then beside PyTorch (needs
#             python3 with torch)
#   fragmented document 002's 81 cells, gradients stored and folded, eager and compiled, then beside PyTorch (needs python3
#             with torch)
#   timeit    document 004's profile of a GPT, eager, compiled in one line and in branches, then beside PyTorch (needs python3
#             with torch)
#   lm        document 003's profiles: the 2.7B model, fused, and the large one in all forms, with the conclusions
#   sass      which instructions the kernels were compiled to: tensor cores, spills (skipped without cuobjdump)
#
# Needs no network; headers of dependencies are found through CMAKE_PREFIX_PATH. Each stage writes <stage>.log, and those
# that measure <stage>.json; run.json says GPU, driver, date, commit (TG_COMMIT where there is no .git) and how each stage
# ended. A stage that measures fails too if a compiled function could not become a graph; its log says why. The exit status
# is 1 if a stage failed; the others run all the same.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out=bench/results/gpu/$(date -u +%Y-%m-%d)
build=build/gpu
while getopts o:b: flag; do
  case $flag in
    o) out=$OPTARG ;;
    b) build=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
mkdir -p "$out"
out=$(cd "$out" && pwd)
command -v nvidia-smi >/dev/null || { echo "run.sh: there is no nvidia-smi here, hence no GPU; this script needs one." >&2 && exit 2; }
commit=${TG_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
small='cast,relu.,add.row,sum.,softmax.,layer_norm,rms_norm,cross_entropy,embedding,linear,lora,attention,rope,swiglu,dropout,concat,where.row'
run() { timeout --kill-after=10 480 "$@"; }

stage_build() {
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  [[ $capability == 90 ]] && capability=90a
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DTG_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$capability-real" \
    -DTG_CPU_LEVELS=4 -DTG_TESTS=ON -DTG_BENCH=ON -DTG_APPS=ON \
    $(command -v ninja >/dev/null && echo -G Ninja) &&
    run cmake --build "$build" --parallel "$(nproc)" --target tg_tests_cuda bench_ops bench_training bench_switchback \
      bench_fragmented bench_gpt_timeit bench_lm_profile tg_app
}
stage_tests() { run ctest --test-dir "$build" -L cuda --no-tests=error --output-on-failure --output-junit "$out/tests.xml"; }
stage_ptx() { run "$build/bin/tg_tests_cuda" -tc='PTX*' -s; }
stage_memcheck() { TG_CASES=$small run compute-sanitizer --tool memcheck --leak-check no --error-exitcode 1 "$build/bin/tg_tests_cuda" -tc='f32 against the CPU*,bf16 against f64*,odd sizes*'; }
stage_racecheck() { TG_CASES=$small run compute-sanitizer --tool racecheck --error-exitcode 1 "$build/bin/tg_tests_cuda" -tc='f32 against the CPU*,bf16 against f64*'; }
stage_ops() { run "$build/bin/bench_ops" --device cuda --seconds 0.2 --commit "$commit" --json "$out/ops.json"; }
stage_torch() {
  run python3 bench/ops/compare_torch.py "$build/bin/bench_ops" --device cuda --compile --rounds 1 --seconds 0.1 \
    --filter "${TORCH_FILTER:-}" --json "$out/torch.json"
}
stage_training() {
  local mode graphs
  for mode in eager kernels compiled; do  # kernels: compiled, but kernel by kernel and not as graphs
    graphs=$([[ $mode == kernels ]] && echo 0)
    TG_CUDA_GRAPHS=$graphs run "$build/bin/bench_training" --device cuda --mode "${mode/kernels/compiled}" --warmup 0.5 --target 1 \
      --samples 50 --against-document --commit "$commit" --json "$out/training_$mode.json" || return 1
  done
  run python3 bench/lora_training/compare_torch.py "$build/bin/bench_training" --device cuda --rounds 3 --json "$out/training_torch.json"
}
stage_switchback() {  # 16 calls of each op: the document's 64 would take longer than a stage may
  run "$build/bin/bench_switchback" --device cuda --repeat 16 --against-document --commit "$commit" --json "$out/switchback.json" \
    --jsonl "$out/switchback.jsonl" || return 1
  run python3 bench/switchback/compare_torch.py "$build/bin/bench_switchback" --device cuda --dims 2048,4096 \
    --batch 8192,131072 --only linear,global --repeat 16 --rounds 2 --json "$out/switchback_torch.json"
}
stage_fragmented() {
  run "$build/bin/bench_fragmented" --device cuda --run eager,compiled --against-document --commit "$commit" \
    --json "$out/fragmented.json" || return 1
  run python3 bench/fragmented/compare_torch.py "$build/bin/bench_fragmented" --device cuda --sizes 2048,8192 --batches 1,16 \
    --fragments 2,32 --steps 50 --json "$out/fragmented_torch.json"
}
stage_timeit() {
  local mode passes
  for mode in eager line compiled; do  # line: compiled, but the gradients of weights are not a branch of their own
    case $mode in line) passes=-branch ;; *) passes= ;; esac
    TG_PASSES=$passes run "$build/bin/bench_gpt_timeit" --device cuda --mode "${mode/line/compiled}" --against-document \
      --commit "$commit" --json "$out/timeit_$mode.json" || return 1
  done
  run python3 bench/gpt_timeit/compare_torch.py "$build/bin/bench_gpt_timeit" --device cuda --computations forward_backward --rounds 3 \
    --json "$out/timeit_torch.json"
}
stage_lm() {
  run "$build/bin/bench_lm_profile" --device cuda --form fused --against-document --commit "$commit" --json "$out/lm.json" \
    --trace "$out/lm_trace.json" || return 1
  run "$build/bin/bench_lm_profile" --device cuda --size large --types train --answers --commit "$commit" --json "$out/lm_answers.json"
}
stage_sass() {
  local all
  command -v cuobjdump >/dev/null || { echo "skipped: there is no cuobjdump here. The CUDA toolkit has it." && return; }
  all=$(cuobjdump --dump-sass "$build/bin/tg_tests_cuda") || return 1
  awk '/Function :/ { name = $3 }
       match($0, /HGMMA|HMMA|DMMA|LDL|STL|LDG\.E\.128/) { ++n[name "  " substr($0, RSTART, RLENGTH)] }
       END { for (k in n) print n[k], k }' <<<"$all" | sort -k2
}

stages=("$@")
[[ ${#stages[@]} -gt 0 ]] || stages=(build tests ptx memcheck racecheck ops torch training switchback fragmented timeit lm sass)
for name in "${stages[@]}"; do
  declare -F "stage_$name" >/dev/null || { echo "run.sh: there is no stage '$name'" >&2 && exit 2; }
done
# Lines of compiled functions that run kernel by kernel (core/plan/executable.cpp), unless they were told to, or are so small
# that most of their ops get other memory in each run.
without_graph() { grep -F 'not as one graph:' "$1" | grep -vE 'TG_CUDA_GRAPHS=0|ops had other arguments'; }
failed=0 results=()
for name in "${stages[@]}"; do
  start=$SECONDS
  "stage_$name" >"$out/$name.log" 2>&1
  status=$?
  if [[ ! $name =~ ^(build|tests|ptx|memcheck|racecheck)$ ]] && lines=$(without_graph "$out/$name.log"); then
    printf 'run.sh: compiled functions ran without a graph:\n%s\n' "$lines" >>"$out/$name.log"
    ((status)) || status=1
  fi
  ((status == 0)) || failed=1
  results+=("$name" "$status" "$((SECONDS - start))")
  printf '%-10s status %d, %d s\n' "$name" "$status" "$((SECONDS - start))"
  ((status == 0)) || tail -n 15 "$out/$name.log"
done
COMMIT=$commit OUT=$out python3 - "${results[@]}" <<'PY'
import datetime, json, os, subprocess, sys
query = "name,driver_version,memory.total,compute_cap"
gpu = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True).stdout
path = os.path.join(os.environ["OUT"], "run.json")
run = json.load(open(path)) if os.path.exists(path) else {"stages": {}}
run["gpu"] = dict(zip(query.split(","), (x.strip() for x in gpu.splitlines()[0].split(","))))
run["date"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
run["commit"] = os.environ["COMMIT"]
for name, status, seconds in zip(*[iter(sys.argv[1:])] * 3):
    run["stages"][name] = {"status": int(status), "seconds": int(seconds), "command": f"bench/gpu/run.sh {name}"}
json.dump(run, open(path, "w"), indent=1)
PY
exit $failed
