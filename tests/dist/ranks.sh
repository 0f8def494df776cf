#!/usr/bin/env bash
# tapegrad train and finetune on several ranks: equal files, resume on other counts of ranks, signals, kills, refusals.
# ranks.sh TAPEGRAD FOLDER TEXT MPIRUN... With TG_RANKS=devices only the tests on devices run.
set -uo pipefail
app=$1 work=$2 text=$3
shift 3
mpirun=("$@")
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
unset TG_THREADS
effort=${TG_TEST_EFFORT:-1}
fail() { printf 'ranks.sh: %s\n' "$*" >&2 && exit 1; }
# on <ranks> <word>...: tapegrad on several ranks, its output in `out`
on() {
  local n=$1
  shift
  timeout -k 5 120 "${mpirun[@]}" -n "$n" "$app" "$@" >out 2>&1
}
must_on() { on "$@" || { cat out >&2 && fail "on $*"; }; }
without_times() { sed -E 's/"(ms|tokens_per_s|peak_bytes)":[0-9.e+-]+,?//g' "$1"; }
same() { # same <run> <run>: their models, checkpoints and logs
  cmp "$1/model.safetensors" "$2/model.safetensors" || fail "the models of $1 and $2 differ"
  cmp "$1/checkpoint.safetensors" "$2/checkpoint.safetensors" || fail "the checkpoints of $1 and $2 differ"
  cmp <(without_times "$1/log.jsonl") <(without_times "$2/log.jsonl") || fail "the logs of $1 and $2 differ"
}
says() { grep -qF -- "$1" out || { cat out >&2 && fail "does not say: $1"; }; }

shape=(--tokenizer char --layers 2 --heads 2 --width 32 --context 32 --batch 3 --dropout 0.1 --warmup 5 --quiet)
small=("${shape[@]}" --data "$text" --seed 3)

only=${TG_RANKS:-}

# Bytes of one process that accumulates the same micro-batches.
shard=--shard-optimizer
ways=("--order epochs" "--dtype bf16 --compile" "$shard --dtype bf16" "$shard --optimizer muon --compile")
for ranks in 2 3 4; do
  [[ -z $only ]] || break
  some=("${ways[@]}")
  ((ranks == 2 || effort > 1)) || some=("${ways[@]:2 * (ranks - 3):2}") # 3 ranks the first two, 4 ranks the others
  for how in "${some[@]}"; do
    run=(train "${small[@]}" --max-steps 20 --eval-every 10 --accumulate $ranks $how)
    "$app" "${run[@]}" --out one --overwrite || fail "one process"
    must_on $ranks "${run[@]}" --out some --overwrite
    same one some
  done
done

# The same on devices, one per rank. More ranks than devices are refused.
case $("$app" --version) in
*emulated*) devices=${TG_EMULATE_DEVICES:-1} ;;
*NCCL*[0-9]*) devices=$(nvidia-smi -L 2>/dev/null | wc -l) ;;
*) devices=0 ;;
esac
if ((devices >= 2)); then
  for how in "--max-steps 2" "--max-steps 4 --dtype bf16 --compile"; do
    run=(train "${small[@]}" --device cuda --eval-every 2 --accumulate 2 $how)
    "$app" "${run[@]}" --out one --overwrite 2>/dev/null || fail "one process on a device"
    must_on 2 "${run[@]}" --out some --overwrite
    same one some
  done
  if ((devices >= 4)); then
    must_on 2 train "${small[@]}" --device cuda --accumulate 4 --max-steps 1 --eval-every 0 $shard --out on_four
    cp -r on_four alone
    must_on 4 train --resume on_four --max-steps 2 --quiet
    "$app" train --resume alone --max-steps 2 --quiet 2>out || { cat out >&2 && fail "alone on a device"; }
    cmp on_four/model.safetensors alone/model.safetensors || fail "4 ranks on devices and one go on otherwise"
  fi
  export TG_EMULATE_DEVICES=1
  if CUDA_VISIBLE_DEVICES=0 on 2 "${run[@]}" --out wrong; then fail "2 ranks shared a device"; fi
  says "2 ranks on this machine, and 1 device(s) of cuda"
  export TG_EMULATE_DEVICES=$devices
else
  [[ -z $only ]] || fail "there are $devices devices"
  echo "ranks.sh: no ranks on devices, as there are $devices"
fi
if [[ -n $only ]]; then
  echo "ranks.sh: all as it should be"
  exit
fi

# Saved by 4 ranks with sharded moments, resumed without them on 4, 2 and one. Several micro-batches of a rank are
# accumulated in another order.
run=(train "${small[@]}" --accumulate 4)
"$app" "${run[@]}" --out whole --max-steps 30 || fail "one process"
on 4 "${run[@]}" --out moved --max-steps 30 --eval-every 0 --checkpoint-every 10 --shard-optimizer || fail "4 ranks"
must_on 4 train --resume moved --max-steps 40 --quiet
"$app" train --resume whole --max-steps 40 --quiet 2>/dev/null || fail "one process resumes"
cmp moved/model.safetensors whole/model.safetensors || fail "4 ranks and one process end with other models"
must_on 2 train --resume moved --max-steps 50 --shard-optimizer --quiet
"$app" train --resume moved --max-steps 60 --quiet 2>/dev/null || fail "one process resumes what 2 ranks left"

# finetune
"$app" train "${small[@]}" --max-steps 10 --out base || fail "a model to finetune"
tune=(finetune --model base --data "$text" --rank 2 --lora-dropout 0.1 --batch 3 --accumulate 2 --max-steps 10 --quiet
  --unknown skip)
"$app" "${tune[@]}" --out tuned_one || fail "finetune on one process"
must_on 2 "${tune[@]}" --out tuned_two
cmp tuned_one/adapter_model.safetensors tuned_two/adapter_model.safetensors || fail "the adapters differ"

# reproduce: of 2 ranks on 2 and in one process, of 4 with several micro-batches not
must_on 2 reproduce tuned_two && says "equal: 10 steps and "
"$app" reproduce tuned_two >out 2>&1 || fail "one process repeats a run of 2 ranks otherwise"
says "ranks: 2 in tuned_two, 1 here"
must_on 2 train "${small[@]}" --accumulate 4 --max-steps 4 --out two && must_on 2 reproduce two --steps 3
if "$app" reproduce two >out 2>&1; then fail "one process repeats ranks with several micro-batches"; fi
says "two was computed by 2 ranks, and this is 1."

# SIGUSR1 ends a run after a step, with a save; the rest of it is the same.
long=(train "${small[@]}" --accumulate 2 --max-steps 4000 --eval-every 0 --schedule constant) # whatever steps are left
"${mpirun[@]}" -n 2 "$app" "${long[@]}" --out asked >out 2>&1 &
until [[ -s asked/log.jsonl ]] && (($(wc -l <asked/log.jsonl) > 20)); do sleep 0.05; done
kill -USR1 $!
wait $! && fail "a run that was asked to stop ended as if it were done"
says "stopped after step"
steps=$(wc -l <asked/log.jsonl)
must_on 2 train --resume asked --max-steps $((steps + 10)) --quiet
"$app" "${long[@]}" --out straight 2>/dev/null & # the first steps of that run
until [[ -s straight/log.jsonl ]] && (($(wc -l <straight/log.jsonl) > steps + 300)); do sleep 0.05; done
kill $! && wait $! 2>/dev/null
# as_straight <run>: compares its log, except the last line, which may have a validation
as_straight() {
  local n
  n=$(cat <(wc -l <"$1/log.jsonl") <(wc -l <straight/log.jsonl) | sort -n | head -n 1)
  cmp <(without_times "$1/log.jsonl" | head -n $((n - 1))) <(without_times straight/log.jsonl | head -n $((n - 1))) ||
    fail "$1 went on otherwise than a run that was never stopped"
}
as_straight asked

# A killed rank ends the job within 5 seconds, and the run resumes.
for ((i = 0; i < 3 * effort; ++i)); do
  rm -rf killed
  "${mpirun[@]}" -n 2 "$app" "${long[@]}" --checkpoint-every 5 --out killed >out 2>&1 &
  until [[ -s killed/checkpoint.safetensors ]]; do sleep 0.02; done
  sleep "0.$((RANDOM % 50 + 10))"
  ranks=($(pgrep -f -- "$app ${long[0]} .*--out killed" | grep -vx $!))
  start=$SECONDS
  kill -9 "${ranks[$((RANDOM % ${#ranks[@]}))]}"
  wait $! && fail "a job whose rank was killed ended well"
  ((SECONDS - start < 5)) || fail "a job whose rank was killed ended after $((SECONDS - start)) s"
done
echo "covered: $i kills of a rank"
step=$(tail -n 1 killed/log.jsonl | sed -E 's/.*"step":([0-9]+).*/\1/')
must_on 2 train --resume killed --max-steps $((step + 10)) --quiet
as_straight killed

# A rank that hangs ends the job after --comm-timeout, and the message names the call.
rm -rf hanging
"${mpirun[@]}" -n 2 "$app" "${long[@]}" --comm-timeout 2 --out hanging >out 2>&1 &
until [[ -s hanging/log.jsonl ]]; do sleep 0.05; done
ranks=($(pgrep -f -- "$app ${long[0]} .*--out hanging" | grep -vx $!))
start=$SECONDS
kill -STOP "${ranks[1]}"
wait $! && fail "a job whose rank hung ended well"
((SECONDS - start < 12)) || fail "a job whose rank hung ended after $((SECONDS - start)) s"
grep -qE '\[rank [01]\] all_(reduce|gather) has waited [2-9] s for the other ranks' out ||
  { cat out >&2 && fail "the call is not named"; }
kill -CONT "${ranks[1]}" 2>/dev/null # if it is still there
on 2 train "${small[@]}" --accumulate 2 --comm-timeout 0 --out wrong && fail "a timeout of 0 s"
says "[comm] a timeout of 0 s. It must be above 0."

# Mismatches are errors before the first step.
on 3 train "${small[@]}" --accumulate 2 --out wrong && fail "3 ranks shared 2 micro-batches"
says "accumulate is 2, and there are 3 ranks"
tr a-z b-za <"$text" >other.txt
timeout 60 "${mpirun[@]}" -n 1 "$app" train "${small[@]}" --accumulate 2 --out wrong : \
  -n 1 "$app" train "${shape[@]}" --seed 3 --data other.txt --accumulate 2 --out wrong >out 2>&1 && fail "other data"
says "data: rank 1 has"
timeout 60 "${mpirun[@]}" -n 1 "$app" train "${small[@]}" --accumulate 2 --out wrong : \
  -n 1 "$app" train "${shape[@]}" --seed 4 --data "$text" --accumulate 2 --out wrong >out 2>&1 && fail "other settings"
says "settings: rank 1 has"
TG_COMM_TIMEOUT=soon on 2 train "${small[@]}" --accumulate 2 --out wrong && fail "ranks waited until soon"
says "TG_COMM_TIMEOUT is 'soon'"
# Commands that run in one process only.
on 2 export --model base --out exported && fail "2 processes exported"
says "[export] 2 processes were started"
on 2 merge --model base --adapter tuned_one --out merged && fail "2 processes merged"
says "[merge] 2 processes were started"
on 2 tokenize --tokenizer byte --in "$text" --out ids.npy && fail "2 processes made a token file"
says "[tokenize] 2 processes were started"
[[ ! -e exported && ! -e merged && ! -e ids.npy ]] || fail "what was refused left files"
OMPI_COMM_WORLD_SIZE=2 "$app" train "${small[@]}" --out wrong >out 2>&1 && fail "one of two processes ran alone"
says "OMPI_COMM_WORLD_SIZE is 2"
echo "ranks.sh: all as it should be"
