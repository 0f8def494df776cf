#!/usr/bin/env bash
# Starts the kit of bench/gpu/pack.sh without this machine's development packages, as on a machine with a GPU: in a
# private mount namespace, where the libraries of the kit are hidden. Prints the table. Exits with 1 unless each
# program starts there, and if a missing library of the kit is no error; with 77 without root or Linux.
#   bench/gpu/rehearse.sh [arguments of run.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ ${1:-} != --inside ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  unshare -m true 2>/dev/null || { echo 'skipped: no private mount namespace; pack.sh compared names' && exit 77; }
  unshare -m "$BASH" "$PWD/bench/gpu/rehearse.sh" --inside "$scratch" "$@"
  exit
fi
scratch=$2 && shift 2
mount --make-rprivate /
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/kit"
tar -C "$scratch/kit" -xf build/gpu/kit.tar.xz
layers=0
hidden=$(ls "$scratch/kit/lib" | grep -vE '^lib(z|udev)\.') # python3 needs these two
folders=$(for library in $hidden; do ldconfig -p | awk -v l="$library" '$1 == l { print $NF }'; done |
  xargs dirname | xargs realpath | sort -u)
for folder in $folders; do
  layer=$scratch/layer$((++layers))
  mkdir -p "$layer"/{upper,work}
  mount -t overlay overlay -o "lowerdir=$folder,upperdir=$layer/upper,workdir=$layer/work" "$folder"
  for library in $hidden; do rm -f "$folder/$library"*; done
done
for program in "$scratch"/kit/bin/*; do
  if "$program" --version >"$scratch/said" 2>&1; then echo "$program starts: nothing is hidden" && exit 1; fi
done
export OUT=$scratch/out
bench/gpu/run.py "$@" || true
# by the shell: grep needs a hidden library
table=$(<"$OUT/table.txt") smoke=$'\nsmoke [^\n]*( right|\\[device\\] cuda:0 was asked for, and there is none)'
[[ $table == *' 0 libraries missing'* && ! $table =~ 'status 127'|'shared libraries' && $table =~ $smoke ]]
rm "$scratch"/kit/lib/libutf8proc.*
! said=$(bench/gpu/run.py -b "$scratch/kit/bin" smoke) || exit 1
[[ $said == *'libraries missing: libutf8proc'* ]] && echo "${said%%$'\n'*}"
