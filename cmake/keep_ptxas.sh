#!/bin/sh
# Launches nvcc: what ptxas says of each kernel (-Xptxas=-v: registers, spills) goes to <object>.ptxas, which
# tests/cuda/ptxas.cmake reads, the PTX of the newest GPU to <object>.ptx, which tests/cuda/whole_vectors.py reads, and all
# else where nvcc sends it.
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
for ptx in "$object.kept"/*.ptx; do # in the order of GPUs
  [ ! -f "$ptx" ] || mv "$ptx" "$object.ptx"
done
rm -rf "$object.kept"
grep -vE "$kernels" "$object.said" >&2
[ $status -ne 0 ] || grep -E "$kernels" "$object.said" >"$object.ptxas"
rm -f "$object.said"
exit $status
