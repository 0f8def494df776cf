#!/bin/sh
# Launches nvcc and keeps ptxas's kernel reports (-Xptxas=-v: registers, spills) in <object>.ptxas for
# tests/cuda/ptxas.py, the newest GPU's PTX in <object>.ptx for tests/cuda/whole_vectors.py.
#   sh cmake/keep_ptxas.sh nvcc ... -o <object>
object='' before=''
for word; do
  [ "$before" = -o ] && object=$word
  before=$word
done
[ -n "$object" ] || exec "$@"
kernels='^ptxas info |^ +[0-9]+ bytes stack frame, '
rm -rf "$object.ptxas" "$object.ptx" "$object.kept"
mkdir -p "$object.kept"
"$@" --keep --keep-dir "$object.kept" 2>"$object.said"
status=$?
for ptx in "$object.kept"/*.ptx; do # ordered by GPU
  [ ! -f "$ptx" ] || mv "$ptx" "$object.ptx"
done
rm -rf "$object.kept"
grep -vE "$kernels" "$object.said" >&2
[ $status -ne 0 ] || grep -E "$kernels" "$object.said" >"$object.ptxas"
rm -f "$object.said"
exit $status
