#!/usr/bin/env bash
# CPU-seconds (user and system) of build and tests; wall time depends on the machine's load. Needs bash.
#   bench/build_time.sh                     a preset from scratch: configure, build, test; rows: groups, slow files
#   bench/build_time.sh --target demo       one target from scratch, without tests
#   bench/build_time.sh --touch ops/norm.h  one changed file: the rebuild and all tests; needs the first form
#   bench/build_time.sh --include           a file that only includes <tapegrad/tapegrad.h>; needs the first form
# All take --preset NAME (release) and --build FOLDER (build/time). Two jobs.
set -eu
if [ "${1:-}" = --compile ]; then  # compiler and linker launcher: LOG COMMAND...
  log=$2
  shift 2
  out=-
  previous=
  for word in "$@"; do
    [ "$previous" != -o ] || out=$word
    previous=$word
  done
  TIMEFORMAT="%U %S $out"
  { time "$@" 2>&3; } 3>&2 2>>"$log"
  exit
fi

root=$(cd "$(dirname "$0")/.." && pwd)
preset=release build=$root/build/time target=all touched= include=
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --target) target=$2; shift 2 ;;
    --touch) touched=$2; shift 2 ;;
    --include) include=1; shift ;;
    *) sed -n '2,7s/^# //p' "$0"; exit 2 ;;
  esac
done
case $build in /*) ;; *) build=$PWD/$build ;; esac
files=$build/files.time steps=$build/steps.time
# NAME COMMAND...: logs its CPU-seconds to $steps and its output to build.log
step() {
  TIMEFORMAT="%U %S $1"
  shift
  { time "$@" >>"$build/build.log" 2>&1; } 2>>"$steps" || { tail -40 "$build/build.log"; exit 1; }
}
begin() {
  mkdir -p "$build"
  rm -f "$files" "$steps" "$build/build.log"
  touch "$files" "$steps"
}
run_tests() { step "tests run" ctest --test-dir "$build" -LE slow -j2 --output-on-failure; }
table() {
  awk -v steps="$steps" '
    function group(out) {
      if (out ~ /\.gch$/) return "precompiled headers"
      if (out !~ /\.o$/) return "link"
      if (out ~ /tests\/.*\.dir/) return "tests"
      if (out ~ /bench\/.*\.dir/) return "bench"
      if (out ~ /tg_kernels_v[0-9]/) return substr(out, match(out, /tg_kernels_v/), 13)
      if (match(out, /\.dir\/models\/apps\//)) return "apps"
      if (match(out, /\.dir\/[a-z]+\//)) return substr(out, RSTART + 5, RLENGTH - 6)
      return "other"
    }
    { sum[group($3)] += $1 + $2; compiled += $1 + $2; ++count[group($3)] }
    END {
      for (g in sum) printf "%8.1f  %s, %d commands\n", sum[g], g, count[g] | "sort -rn"
      close("sort -rn")
      while ((getline line < steps) > 0) {
        split(line, w, " ")
        total += w[1] + w[2]
        name = line
        sub(/^[^ ]+ [^ ]+ /, "", name)
        printf "%8.1f  = %s\n", w[1] + w[2], name
      }
      printf "%8.1f  = total\n", total
    }' "$files"
  echo "The slowest files:"
  awk '{ printf "%8.2f  %s\n", $1 + $2, $3 }' "$files" | sort -rn | head -30
}

if [ -n "$include" ]; then
  source=$(mktemp -d)/one.cpp
  echo '#include <tapegrad/tapegrad.h>' >"$source"
  TIMEFORMAT="%U %S CPU-seconds for <tapegrad/tapegrad.h> (the best of five is the one to quote)"
  for _ in 1 2 3 4 5; do
    time "${CXX:-c++}" -std=c++20 -O2 -fsyntax-only -I"$build/include" "$source"
  done
  rm -r "$(dirname "$source")"
elif [ -n "$touched" ]; then
  begin
  touch "$root/$touched"
  step build cmake --build "$build" -j2
  run_tests
  table
else
  rm -rf "$build"
  begin
  launcher="bash;$root/bench/build_time.sh;--compile;$files"
  step configure cmake --preset "$preset" -S "$root" -B "$build" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_LINKER_LAUNCHER="$launcher"
  step build cmake --build "$build" -j2 --target "$target"
  [ "$target" != all ] || run_tests
  table
fi
