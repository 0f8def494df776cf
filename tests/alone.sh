#!/usr/bin/env bash
# Runs each test case of the given doctest programs in a process of its own: alone.sh PROGRAM... What is right only by what
# ran before it, or by the heap's luck, fails here. Prints each failure and, last, how many there were.
set -uo pipefail
run=$(mktemp)
trap 'rm -f "$run" "$run.cases" "$run.said"' EXIT
cat >"$run" <<'END'
program=$1 name=$2
pattern=${name//,/?} # doctest's commas separate patterns
said=$(timeout 600 "$program" "-tc=$pattern" 2>&1)
status=$?
((status == 0 || status == 77)) || printf 'FAILED %s -tc=%q\n%s\n' "$program" "$pattern" "$said"
END
for program in "$@"; do
  "$program" -ltc | sed '1,/^=====/d; /^=====/,$d' | while IFS= read -r name; do printf '%s\0%s\0' "$program" "$name"; done
done >"$run.cases"
xargs -0 -n 2 -P "$(nproc)" bash "$run" <"$run.cases" | tee "$run.said"
cases=$(($(tr -cd '\0' <"$run.cases" | wc -c) / 2)) failed=$(grep -c '^FAILED ' "$run.said")
printf '%d passed, %d failed\ncovered: %d test cases alone\n' $((cases - failed)) "$failed" "$cases"
((failed == 0 && cases > 0))
