#!/usr/bin/env bash
# alone.sh PROGRAM... runs each test case of doctest programs in a separate process. A case that depends on earlier
# cases or on the contents of freed memory fails here. Prints each failure and, last, their number.
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
  "$program" -ltc | sed '1,/^=====/d; /^=====/,$d' |
    while IFS= read -r name; do printf '%s\0%s\0' "$program" "$name"; done
done >"$run.cases"
xargs -0 -n 2 -P "$(nproc)" bash "$run" <"$run.cases" | tee "$run.said"
cases=$(($(tr -cd '\0' <"$run.cases" | wc -c) / 2)) failed=$(grep -c '^FAILED ' "$run.said")
printf '%d passed, %d failed\ncovered: %d test cases alone\n' $((cases - failed)) "$failed" "$cases"
((failed == 0 && cases > 0))
