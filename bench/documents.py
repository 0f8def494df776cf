#!/usr/bin/env python3
"""Figures of the five documents on bench/documents.md and the pages of their folders, from results of documents.sh.

documents.py FOLDER keeps the rows that pages show in bench/results/cpu/document_*.json, and writes the pages: each text
after a mark `<!-- name -->` up to the cell's end, and each table between `<!-- table name -->` and `<!-- end -->`.
documents.py --check [ROOT] fails if a page differs from the results."""
import json, pathlib, re, statistics, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench/common"))
from results_file import write

KEPT = {"000": "rows id time limit",
        "001": "grid dim_in dim_out batch_size repeat time_standard time_rowwise time_global quantise_share",
        "002": "cells input_size batch_size mode fragments forward_ms backward_ms live_bytes parameters",
        "003": "runs type form precision context_length step phases layer_kernel_seconds peak_bytes",
        "003_contexts": "runs form context_length step peak_bytes",
        "004": "rows name mean_time median_time std_dev max_time"}


def kept(name, run):
    """The rows and fields that pages show, by four digits."""
    def rounded(x):
        if isinstance(x, dict):
            return {k: rounded(v) for k, v in x.items()}
        return [rounded(v) for v in x] if isinstance(x, list) else float(f"{x:.4g}") if isinstance(x, float) else x

    rows, *keys = KEPT[name].split()
    lists = {key: run[key] for key in (rows, "standalone") if key in run}
    head = {k: v for k, v in run.items() if k not in (*lists, "left_out")}
    return head | {k: [{key: rounded(row[key]) for key in keys} for row in v] for k, v in lists.items()}


document = lambda folder: list(map(json.loads, (ROOT / f"bench/{folder}/document.jsonl").read_text().splitlines()))
spread = lambda xs, form=".2f": f"{min(xs):{form}} to {max(xs):{form}}"
spread_mean = lambda xs: f"{spread(xs)}, geometric mean {statistics.geometric_mean(xs):.2f}"
UNITS = (1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")
time = lambda s: next(f"{s / by:.3g} {unit}" for by, unit in UNITS if s >= by)
peak = lambda r: f"{r['peak_bytes'] / 1e9:.2f} GB"
core = lambda r: r["step"]["part_seconds"]["attention: scores to values"]
interval = lambda low, mid, high: f"{time(mid)} [{time(low)}, {time(high)}]"
table = lambda head, rows: "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows))


def of_000(run):
    ours, limits = ({row["id"]: row[key] for row in run["rows"]} for key in ("time", "limit"))
    of = lambda id: interval(*(ours[id][k] for k in ("low", "estimate", "high")))
    theirs = [row for row in document("lora_training") if row["id"] in ours]
    speed = {row["id"]: row["point"] / ours[row["id"]]["estimate"] for row in theirs}
    yield "000.speed", spread_mean(speed.values())
    ranks = [ours[f"lora_rank_scaling/forward/rank_{r}"]["estimate"] for r in (4, 8, 16, 32, 64)]
    yield "000.rank", f"{', '.join(map(time, ranks))}: {ranks[-1] / ranks[0]:.1f} times"
    yield "000.lazy", ", ".join(of(f"lazy_vs_eager_lora/{way}") for way in ("lazy_forward_sync", "eager_forward"))
    yield "000.step", of("full_training_step/complete_iteration")
    limit = lambda id: f"{time(limits[id])}, {100 * limits[id] / ours[id]['estimate']:.0f} %"
    yield "table 000", table(["id", "document", "here", "limit, reached", "times as fast"], [
        (id := r["id"], interval(r["low"], r["point"], r["high"]), of(id), limit(id), f"{speed[id]:.1f}")
        for r in theirs])


def of_001(run):
    def gains(rows):
        sums = {}
        for r in rows:
            of = sums.setdefault((*sorted((r["dim_in"], r["dim_out"])), r["batch_size"]), [0, 0])
            of[:] = of[0] + r["time_standard"], of[1] + r["time_global"]
        return {key: standard / eight for key, (standard, eight) in sorted(sums.items())}

    grid, mine, theirs = run["grid"], gains(run["grid"]), gains(document("switchback"))
    for way in ("rowwise", "global"):
        speed = [r["time_standard"] / r[f"time_{way}"] for r in grid]
        yield f"001.{way}", f"{sum(s > 1 for s in speed)} of {len(grid)} rows measured, {spread(speed)}"
    layers, batches = dict.fromkeys(key[:2] for key in mine), sorted({b for *_, b in theirs})
    pays = lambda layer: next((b for b in batches if mine.get((*layer, b), 0) > 1), "none")
    yield "001.pays", ", ".join(f"{a} -> {b}: {pays((a, b))}" for a, b in layers)
    at = lambda batch: spread([100 * r["quantise_share"] for r in grid if r["batch_size"] == batch], ".1f")
    least, most = min(b for *_, b in mine), max(b for *_, b in mine)
    yield "001.quantising", f"{at(least)} % at batch {least}, {at(most)} % at {most}"
    cell = lambda key: f"{mine[key]:.2f} ({theirs[key]:.2f})" if key in mine and key in theirs else ""
    yield "table 001", table(["layer", *batches], [
        (f"{a} -> {b}", *(cell((a, b, batch)) for batch in batches)) for a, b in layers])


def of_002(run):
    cells = {(r["input_size"], r["batch_size"], r["mode"], r["fragments"] or 0): r for r in run["cells"]}
    by_linear = lambda value, mode: [
        r[value] / cells[*key[:2], "linear", 0][value] for key, r in cells.items() if key[2] == mode]
    for mode in ("train", "inference"):
        for what, value in (("forward", "forward_ms"), ("step", "backward_ms"), ("peak", "live_bytes")):
            yield f"002.{mode}_{what}", spread_mean(by_linear(value, mode))
    yield "002.parameters", spread(by_linear("parameters", "train"), ".4f")
    columns = [("linear", 0)] + [(mode, f) for mode in ("train", "inference") for f in (2, 8, 32, 128)]
    yield "table 002", table(["size, batch", *(f"{m} {f or ''}".strip() for m, f in columns)], [
        (f"{size}, {batch}", *(f"{c['forward_ms']:.3g} / {c['backward_ms']:.3g}" if (
            c := cells.get((size, batch, *column))) else "" for column in columns))
        for size, batch in dict.fromkeys(k[:2] for k in cells)])


def of_003(run):
    runs = {(r["type"], r["form"], r["precision"]): r for r in run["runs"]}
    train = lambda form, precision="f32": runs["train", form, precision]
    r = train("document")
    step, forward = r["step"], r["phases"]["forward_pass"]
    share = lambda name: 100 / forward["kernel_seconds"] * sum(
        s for part, s in forward["part_seconds"].items() if part.startswith(name))
    seconds = {name: phase["seconds"] for name, phase in r["phases"].items()}
    milli = lambda r: time(r["step"]["seconds"])
    yield "003.1", f"{seconds['backward_pass'] / seconds['forward_pass']:.2f}"
    yield "003.2", f"{100 * seconds['optimizer_step'] / step['seconds']:.1f} %, {time(seconds['optimizer_step'])}"
    yield "003.3", f"{share('attention'):.1f} % and {share('ffn'):.1f} % of the forward pass, by kernels"
    layers = r["layer_kernel_seconds"]
    yield "003.4", f"{layers[0] / statistics.median(layers[1:]):.2f} of the median layer, after warm-up"
    products = lambda r: f"{100 * r['step']['product_seconds'] / r['step']['kernel_seconds']:.1f} %"
    yield "003.5", ", ".join(f"{form} {products(train(form))}" for form in ("document", "flash", "fused"))
    flash, fused, half = train("flash"), train("fused"), train("fused", "bf16")
    yield "003.6", (f"{fused['step']['kernels']} kernels in place of {flash['step']['kernels']}, "
                    f"the step {milli(fused)} in place of {milli(flash)}")
    faster = fused["step"]["seconds"] / half["step"]["seconds"]
    yield "003.7", f"the step in bf16 {milli(half)}, in f32 {milli(fused)}: {faster:.2f} times as fast"
    yield "003.8", (f"scores to values {time(core(flash))} in place of {time(core(r))}, the step {milli(flash)} in "
                    f"place of {milli(r)}, peak {peak(flash)} in place of {peak(r)}")
    gflop = 12.288e-6 * (32 * (4 * 2560**2 + 3 * 2560 * 10240) + 2560 * 10000 + 2 * 512 * 2560 * 32)  # 6 by token, 2048
    yield "003.large", f"predicted: at least {time(gflop / run['peak_gflops']['f32'])}, by FLOPs and the peak here"


def of_003_contexts(run):
    share = lambda r: f"{100 * core(r) / r['step']['kernel_seconds']:.1f}"
    for form in ("document", "flash"):
        yield f"003.{form}", ", ".join(share(r) for r in run["runs"] if r["form"] == form) + " %"
    yield "table 003", table(["context", "form", "step", "scores to values", "% of kernels", "peak"], [
        (r["context_length"], r["form"], time(r["step"]["seconds"]), time(core(r)), share(r), peak(r))
        for r in run["runs"]])


def of_004(run):
    rows, theirs = {r["name"]: r for r in run["rows"]}, {r["name"]: r for r in document("gpt_timeit")}
    of = lambda size, computation, mixed="False": rows[f"{size}_{computation}_warmup_1_mixed_{mixed}"]["median_time"]
    each = lambda f: ", ".join(f"{size} {f(size):.2f}" for size in ("small", "medium"))
    yield "004.backward", each(lambda s: of(s, "backward") / of(s, "forward"))
    yield "004.mixed", each(lambda s: of(s, "forward_backward") / of(s, "forward_backward", "True"))
    yield "004.warmup", "in {holding} of {pairs} pairs".format(**run["warmup_claim"])
    cold, warm = (r["max_time"] / r["median_time"] for r in run["standalone"])
    yield "004.first", f"{cold:.2f}, with a warm-up step {warm:.2f}"
    yield "table 004", table([f"run, batch {run['batch']}", "mean", "deviation", "document, batch 16", "deviation"], [
        (name, time(r["mean_time"]), time(r["std_dev"]), time(d["mean"] / 1e3), time(d["std_dev"] / 1e3))
        for name, r in {**{r["name"]: r for r in run["standalone"]}, **rows}.items() if (d := theirs.get(name))])


def figures(root):
    found = {}
    for name in KEPT:
        path = root / f"bench/results/cpu/document_{name}.json"
        if path.exists():
            run = json.loads(path.read_text())
            of = run["machine"]
            found[f"{name}.machine"] = f"{of['cpu']}, {of['threads']} threads, {run['date'][:10]}, {run['commit']}"
            found.update(globals()[f"of_{name}"](run))
    return found


def written(page, found):
    of = lambda name: found.get(name, "not measured yet")
    block = lambda m: f"<!-- {m[1]} -->\n{of(m[1])}\n<!-- end -->"
    page = re.sub(r"<!-- (table \w+) -->\n.*?<!-- end -->", block, page, flags=re.S)
    return re.sub(r"<!-- (\d\d\d\S*) -->[^|\n]*?(?= \||\n)", lambda m: f"<!-- {m[1]} --> {of(m[1])}", page)


def main():
    check, root = sys.argv[1:2] == ["--check"], pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT
    results = [] if check else sorted(pathlib.Path(sys.argv[1]).glob("*.json"))
    if not check and not results:
        sys.exit(f"{sys.argv[1]} has no results: run bench/documents.sh first")
    for path in results:
        write(ROOT / f"bench/results/cpu/document_{path.stem}.json", kept(path.stem, json.loads(path.read_text())))
    found = figures(root)
    for page in (root / "bench/documents.md", *(root / "bench").glob("*/README.md")):
        new = written(text := page.read_text(), found)
        if check and new != text:
            sys.exit(f"{page} has other figures than bench/results: run bench/documents.sh --page")
        if new != text:
            page.write_text(new)


if __name__ == "__main__":
    main()
