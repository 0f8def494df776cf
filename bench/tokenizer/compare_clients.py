"""Our tokenizers, `tiktoken` and Hugging Face's `tokenizers`: megabytes per second of encoding texts.

    pip install tiktoken==0.14.0 tokenizers==0.23.3 numpy

Words of ten scripts, drawn with a fixed seed, are encoded in addition to the texts. The programs alternate: first one
thread each, by CPU time, then --threads by wall time, where the others get chunks of 64 kB, because their batches need
them. The ids of all must be equal; tiktoken's are not compared if the tokenizer normalizes.
"""
import argparse, json, os, pathlib, random, statistics, subprocess, sys, tempfile, time

import numpy, tiktoken, tokenizers

for folder in ("tests/clients", "bench/common"):
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / folder))
from results_file import now, write

from peers import load, pattern_of, tiktoken_of


def text_of_scripts(size):
    """Words by Zipf's law, in lines of one script each."""
    draw = random.Random(1)
    letters = {"Cyrillic": (0x430, 0x450), "Greek": (0x3B1, 0x3CA), "Hebrew": (0x5D0, 0x5EB), "Arabic": (0x627, 0x64B),
               "Devanagari": (0x904, 0x94E), "Thai": (0xE01, 0xE3B), "Hiragana": (0x3041, 0x3097),
               "Han": (0x4E00, 0x5800), "Hangul": (0xAC00, 0xB400), "emoji": (0x1F600, 0x1F650)}  # fmt: skip
    words = {name: ["".join(chr(draw.randrange(first, last))
                            for _ in range(draw.randint(1, 4 if first > 0x3000 else 9)))
                    for _ in range(4000)] for name, (first, last) in letters.items()}  # fmt: skip
    lines, total = [], 0
    while total < size:
        script = draw.choice(list(words))
        space = "" if script in ("Thai", "Hiragana", "Han") else " "
        line = ""
        for _ in range(draw.randint(4, 30)):
            line += words[script][int(4000 ** draw.random()) - 1]
            line += draw.choice((space,) * 9 + (", ", f" {draw.randint(0, 2000)} "))
        lines.append(line + ("\u3002" if script in ("Hiragana", "Han") else ".") + "\n")
        total += len(lines[-1].encode())
    return "".join(lines)


def checksum(ids):
    ids = numpy.asarray(ids, dtype=numpy.uint64)
    return f"{int((ids * numpy.arange(1, len(ids) + 1, dtype=numpy.uint64)).sum(dtype=numpy.uint64)):016x}"


def parts_of(text):
    return [text[at : at + 65536] for at in range(0, len(text), 65536)]


def ours(args, path, text, threads, flags):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run.json")
        command = [args.program, "--tokenizer", path, "--text", text, "--threads", str(threads), "--rounds", "3",
                   "--json", out]
        run = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(run.stderr)
        with open(out) as f:
            report = json.load(f)
    return report, report["encoding"][0]


def timed(now, f):
    start = now()
    result = f()
    return now() - start, result


def rounds_of(args, path, name, text, peers):
    """The seconds of each program in each round, on one thread and on several."""
    size, seconds, machine = len(text.encode()), {}, None
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        for number in range(args.rounds):
            for threads in (1, args.threads):
                report, row = ours(args, path, file.name, threads, ["--cpu-time"] if threads == 1 else [])
                machine = report["machine"]
                seconds.setdefault(("tapegrad", threads), []).append(row["runs"][0]["seconds"]["median"])
                now = time.process_time if threads == 1 else time.perf_counter
                for peer, (whole, batch, exact) in peers.items():
                    if threads == 1:
                        s, ids = timed(now, lambda f=whole: f(text))
                        if number == 0 and exact and (len(ids), checksum(ids)) != (row["tokens"], row["checksum"]):
                            sys.exit(f"{path}, {name}: {peer} has other ids")
                    else:
                        s, _ = timed(now, lambda f=batch: f(parts_of(text), threads))
                    seconds.setdefault((peer, threads), []).append(s)
    mb = {key: 1e-6 * size / statistics.median(s) for key, s in seconds.items()}
    ratio = {peer: statistics.median(b / a for a, b in zip(seconds["tapegrad", 1], seconds[peer, 1], strict=True))
             for peer in peers}  # fmt: skip
    rows = [{"program": p, "threads": t, "mb_per_second": rate} for (p, t), rate in mb.items()]
    return machine, {"tokenizer": path.name, "text": name, "bytes": size, "rates": rows, "times_as_fast": ratio}


def peers_of(path):
    other, content = load(path)
    other.encode_special_tokens = True
    encoding = tiktoken_of(content)

    def batch(texts, threads):
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # read at the first batch
        return other.encode_batch_fast(texts, add_special_tokens=False)

    peers = {"tokenizers": (lambda text: other.encode(text, add_special_tokens=False).ids, batch, True)}
    if encoding:
        peers["tiktoken"] = (encoding.encode_ordinary,
                             lambda texts, threads: encoding.encode_ordinary_batch(texts, num_threads=threads),
                             not content["normalizer"])  # fmt: skip
    return peers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="bench_tokenizer")
    parser.add_argument("--tokenizer", action="append", required=True, type=pathlib.Path)
    parser.add_argument("--text", action="append", required=True, type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2, help="of the second measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", default="", help="what was built, kept in the JSON file")
    parser.add_argument("--json", help="write the table to this file")
    args = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    texts = {p.name: p.read_text(encoding="utf-8") for p in args.text} | {"ten scripts": text_of_scripts(2_000_000)}
    rows, machine = [], None
    print("| tokenizer | text | ours | tiktoken | ratio | tokenizers | ratio "
          f"| {args.threads} threads: ours | tiktoken | tokenizers |\n|" + "---|" * 10)  # fmt: skip
    for path in args.tokenizer:
        peers = peers_of(path)
        for name, text in texts.items():
            machine, row = rounds_of(args, path, name, text, peers)
            rows.append(row)
            rate = {(r["program"], r["threads"]): f"{r['mb_per_second']:.1f}" for r in row["rates"]}
            ratio = {p: f"{x:.1f}" for p, x in row["times_as_fast"].items()}
            cells = [path.name, name, rate["tapegrad", 1]]
            for peer in ("tiktoken", "tokenizers"):
                cells += [rate.get((peer, 1), ""), ratio.get(peer, "")]
            cells += [rate.get((p, args.threads), "") for p in ("tapegrad", "tiktoken", "tokenizers")]
            print("| " + " | ".join(cells) + " |", flush=True)
    if args.json:
        write(args.json, {"machine": machine, "date": now(),
                          "tiktoken": tiktoken.__version__, "tokenizers": tokenizers.__version__, "clients": rows},
              args.commit)


main()
