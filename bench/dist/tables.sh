#!/usr/bin/env bash
# What data parallel steps take on H100s, on paper: bench/dist/tables.sh TAPEGRAD FOLDER writes a text for each model.
set -euo pipefail
app=$1 folder=$2
mkdir -p "$folder"
for arch in gpt2-xl cs336-2.7b; do
  plan=(inspect --plan --arch $arch --batch 4 --dtype bf16 --machine h100 --network h100 --ranks 8,64,1024,16384)
  for more in "" "--shard-optimizer" "--bucket-mb 1600"; do
    echo "\$ tapegrad ${plan[*]} $more" | sed 's/ $//'
    "$app" "${plan[@]}" $more
    echo
  done >"$folder/h100_$arch.txt"
done
