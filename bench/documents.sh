#!/bin/bash
# Flags: bench/documents.md
set -euo pipefail
cd "$(dirname "$0")/.."
how=
[[ ${1-} == --* ]] && how=$1 && shift
bin=${1:-build/release/bin} folder=${2:-build/documents} extra=() status=0
case $how in
  --page) exec python3 bench/documents.py "$folder" ;;
  --quick) folder+=/quick extra=(--quick) ;;
  --full) awk -F'|' '/^\| 0.*`bench_/ { print $2 $4 ":" $5 }' bench/documents.md ;;
  ?*) echo "documents.sh: $how is no flag. It takes --quick, --full or --page." >&2 && exit 2 ;;
esac
mkdir -p "$folder"
commit=$(git rev-parse --short HEAD 2>/dev/null || true)
while IFS='|' read -r _ name part full _; do
  read -ra words <<<"$([[ $how == --full ]] && echo "$full" || echo "$part")"
  name=${name// /} begin=$SECONDS
  rm -f "$folder/$name".*
  "$bin/${words[0]#\`}" "${words[@]:1:${#words[@]}-2}" "${words[-1]%\`}" "${extra[@]}" --commit "$commit" \
    --json "$folder/$name.json" >"$folder/$name.txt" 2>&1 || { status=1 && tail -3 "$folder/$name.txt" >&2; }
  echo "$name: $((SECONDS - begin)) s, $folder/$name.txt"
done < <(grep '^| 0.*`bench_' bench/documents.md)
exit $status
