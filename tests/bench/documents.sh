#!/bin/bash
# documents.sh ROOT BIN FOLDER
set -euo pipefail
root=$1 bin=$2 folder=$3
rm -rf "$folder"
"$root/bench/documents.sh" --quick "$bin" "$folder"
commands=$(grep -c '^| 0.*`bench_' "$root/bench/documents.md") results=("$folder"/quick/*.json)
[[ $commands -ge 6 && ${#results[@]} == "$commands" ]]
python3 "$root/bench/documents.py" --check
mkdir -p "$folder/stale/bench"
(cd "$root/bench" && cp -r --parents documents.md results/cpu */README.md "$folder/stale/bench")
python3 "$root/bench/documents.py" --check "$folder/stale"
sed -i 's/<!-- 003.1 --> [^|]*/<!-- 003.1 --> 9.99 /' "$folder/stale/bench/documents.md"
! python3 "$root/bench/documents.py" --check "$folder/stale" 2>"$folder/said" || exit 1
grep 'has other figures' "$folder/said"
