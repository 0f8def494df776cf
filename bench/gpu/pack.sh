#!/usr/bin/env bash
# Packs the needs of bench/gpu/run.py into build/gpu/kit.tar.xz, on a machine without a GPU: programs for sm_90a,
# stripped, and each library that they name, except those of glibc and GCC. They need glibc 2.34, libstdc++ of GCC 12,
# and at run time cuBLASLt, NVRTC, CUPTI, NCCL.
#
#   bench/gpu/pack.sh           builds in build/gpu, in about 13 CPU minutes
#   bench/gpu/pack.sh BUILD     packs a build tree with TG_CUDA=ON
#
# Exits with 1 if the kit lacks a library, or exceeds 24 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/gpu} kit=build/gpu/kit.tar.xz most=24000000
programs=(tg_tests_cuda tapegrad bench_ops bench_step bench_gpt_timeit bench_training bench_switchback bench_fragmented)

[[ -e $build/CMakeCache.txt ]] ||
  cmake --preset cuda -B "$build" -DTG_MPI=OFF -DCMAKE_CUDA_ARCHITECTURES=90a-real -DTG_CPU_LEVELS=4
cmake --build "$build" --target "${programs[@]/tapegrad/tg_app}"
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/bin" "$stage/lib" build/gpu
for program in "${programs[@]}"; do strip -o "$stage/bin/$program" "$build/bin/$program"; done
# libraries of glibc and GCC, which every machine with a GPU driver and Python has
common='^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|ld-linux|linux-vdso)'
ldd "$stage"/bin/* | awk -v common="$common" '$2 == "=>" && $3 ~ "/" && $1 !~ common { print $3 }' | sort -u |
  xargs -r -I{} cp -L {} "$stage/lib/"
lacks=$(readelf -d "$stage"/bin/* "$stage"/lib/* | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u |
  grep -vE "$common" | while read -r name; do [[ -e $stage/lib/$name ]] || echo "$name"; done)
[[ -z $lacks ]] || { echo "the kit lacks" $lacks && exit 1; }
# Tests contain the paths of their data and compiled kernels; run.py creates both.
printf '%s\n' "$PWD" "$(cd "$build" && pwd)" >"$stage/paths"
{ git rev-parse HEAD 2>/dev/null || echo unknown; } >"$stage/commit"
# All programs contain the same kernels: a dictionary larger than a program stores them once.
tar -C "$stage" -c bin lib paths commit | xz -T1 --lzma2=preset=1,dict=192MiB >"$kit"
size=$(stat -c %s "$kit")
echo "$kit: $size bytes, ${#programs[@]} programs and $(ls "$stage/lib" | wc -l) libraries of $(cat "$stage/commit")"
((size <= most)) || { echo "the kit has more than $most bytes" && exit 1; }
