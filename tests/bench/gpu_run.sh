#!/usr/bin/env bash
# bench/gpu/run.sh where there is no GPU: a program and nvidia-smi that only print, and how the script takes what they say.
#   gpu_run.sh <repository> <folder for what it writes>
set -u
root=$1 work=$2
rm -rf "$work" && mkdir -p "$work/tools" "$work/build/bin"
print() { printf '#!/bin/sh\nprintf "%%s\\n" "%s"\n' "$2" >"$1" && chmod +x "$1"; }
export PATH=$work/tools:/usr/bin:/bin
print "$work/tools/nvidia-smi" "a GPU, 1, 2, 9.0"
failed=0
# expect <status> <stage> <what its log has> <what the benchmark prints>
expect() {
  print "$work/build/bin/bench_ops" "$4"
  bash "$root/bench/gpu/run.sh" -o "$work/out" -b "$work/build" "$2" >"$work/printed" 2>&1
  local status=$?
  ((status == $1)) && grep -qF "$3" "$work/out/$2.log" && return
  echo "stage $2 after '$4': status $status, wanted $1 and '$3' in:" && cat "$work/printed" "$work/out/$2.log"
  failed=1
}
expect 0 ops 'all is well' 'all is well'
expect 1 ops 'run.sh: compiled functions ran without a graph:' '[compile] 9 ops run one by one, not as one graph: add cannot be recorded'
expect 0 ops 'TG_CUDA_GRAPHS' '[compile] 9 ops run one by one, not as one graph: TG_CUDA_GRAPHS=0 forbids CUDA graphs'
command -v cuobjdump >/dev/null || expect 0 sass 'skipped: there is no cuobjdump here' ''
exit $failed
