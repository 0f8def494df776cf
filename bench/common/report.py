#!/usr/bin/env python3
"""Result files of the benchmarks as one HTML page with plots, without network or scripts.

Reads the --json files of bench/, run.json of bench/gpu/run.py, and traces of `tapegrad train --profile` and
`bench_lm_profile --trace`. A file's keys tell its kind.
"""
import argparse, functools, html, io, json, math, os, re, statistics, sys
from collections import Counter, defaultdict

try:
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter
except ImportError:
    sys.exit("skipped: report.py finds no matplotlib, which draws the plots: apt-get install python3-matplotlib, or "
             "pip install it")
pyplot.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "", "font.size": 8, "axes.spines.top": False,
                    "axes.spines.right": False}
PARTS = dict(zip(("embedding", "attention: projections", "attention: scores to values", "attention: rope",
                  "attention: norm, residual",
                  "ffn: products", "ffn: gate, norm, residual", "final norm", "head", "loss", "optimizer", "other"),
                 ("#009e73 #0b5fa5 #3f9be0 #8fc9f5 #c3e0f7 #c95200 #f2a65a "
                  "#7fd0b6 #8e5ba6 #d88bb6 #dfc23a #9aa3ab").split()))
RULES = [(re.compile(pattern), part) for pattern, part in (  # patterns of "op|layer|range"
    ("cross_entropy|loss", "loss"), ("adamw|optimizer", "optimizer"), ("wte|wpe|embedding", "embedding"),
    (r"attn\.(qkv|proj)|projection", "attention: projections"), (r"\brope", "attention: rope"),
    (r"ln_1|attention_sublayer\|", "attention: norm, residual"),
    (r"attn|attention|causal mask|computing|final matmul", "attention: scores to values"),
    (r"mlp\.(fc|proj)|^(linear|matmul).*(mlp|ffn)", "ffn: products"), ("mlp|ffn|ln_2", "ffn: gate, norm, residual"),
    ("ln_f|final_norm", "final norm"), ("lm_head", "head"))]
OURS, THEIRS, PALE = "#0072b2", "#d55e00", "#d9e1e8"
# Narrow pages scroll plots, whose labels keep their size.
STYLE = ("body{margin:auto;padding:16px;max-width:1100px;font:15px sans-serif}dd{overflow-wrap:anywhere}"
         "div{overflow-x:auto}svg{background:#fff}"
         "dt{float:left;width:90px}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}")


def shown(x, unit):
    return EngFormatter(unit, places=2)(x) if unit in ("s", "B") else f"{x:.4g} {unit}"


def drawn(figure):
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight",
                   metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    pyplot.close(figure)
    return out.getvalue()[out.getvalue().index("<svg"):]


def at(row, path):
    """row["a"]["b"] for "a.b"; 0 if null."""
    return functools.reduce(lambda x, key: x[key], path.split("."), row) or 0


def flat(d, path):
    """The rows of nested lists or objects, "runs/phases", with the enclosing fields. Keys of an object become
    "key"."""
    rows, items = [d], lambda x: [{"key": k, **v} for k, v in x.items()] if isinstance(x, dict) else x
    for step in path.split("/"):
        rows = [{**r, **item} for r in rows for item in items(r[step])]
    return rows


def groups(rows, group):
    found = defaultdict(list)
    for r in rows:
        found[group(r) if callable(group) else group.format(**r)].append(r)
    return found.items()


def bars(title, path, label, value, unit="s", group="", of="", span="", parts="", mark=0, color=lambda r: OURS):
    """A plot per group, a bar per row. of: a pale bar behind it; span: "low high" of a whisker; parts: its stacked
    parts."""
    def plot(rows):
        figure, ax = pyplot.subplots(figsize=(8, 0.19 * len(rows) + 0.3))
        for y, r in enumerate(rows):
            ax.barh(y, at(r, of) if of else 0, 0.8, color=PALE)
            left = 0
            for part, length in at(r, parts).items() if parts else [(None, at(r, value))]:
                ax.barh(y, length, 0.5 if of else 0.8, left, color=PARTS[part] if part else color(r))
                left += length
            if span:
                ax.plot([at(r, key) for key in span.split()], (y, y), "k|-", linewidth=1)
            text = shown(at(r, value), unit) + (f" of {shown(at(r, of), unit)}" if of else "")
            ax.text(1.01, y, text, transform=ax.get_yaxis_transform(), va="center")
        ax.set_yticks(range(len(rows)), [label.format(**r) for r in rows])
        ax.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, None))
        ax.xaxis.set_major_formatter(lambda x, _: shown(x, unit))
        if mark:
            ax.axvline(mark, color=THEIRS, linestyle=":")
        if parts:
            patches = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color in PARTS.values()]
            ax.legend(patches, PARTS, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
        return drawn(figure)
    return lambda d: [(f"{title} {name}", plot(rows)) for name, rows in groups(flat(d, path), group)]


def lines(title, path, series, x, value, unit="s", group=""):
    """A plot per group, a line per series over x: the mean of value(row). A series without x is a level."""
    def plot(rows):
        figure, ax = pyplot.subplots(figsize=(8, 2.4))
        xs = list(dict.fromkeys(x(r) for r in rows if x(r) is not None)) or [None]
        for color, (name, of) in zip((*PARTS.values(), *matplotlib.colormaps["tab20"].colors), groups(rows, series)):
            points = {i: [value(r) for r in of if x(r) in (place, None)] for i, place in enumerate(xs)}
            ax.plot(*zip(*((i, sum(ys) / len(ys)) for i, ys in points.items() if ys)), ".-", color=color, label=name)
        ax.set_xticks(range(len(xs)), xs)
        ax.yaxis.set_major_formatter(lambda y, _: shown(y, unit))
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        return drawn(figure)
    return lambda d: [(f"{title} {name}", plot(rows)) for name, rows in groups(flat(d, path), group)]


def distributions(d):
    """As Criterion draws an id: the density of a sample's time per iteration, and all samples with the estimate."""
    for r in (r for r in d["rows"] if "sample" in r):
        counts, seconds, time = r["sample"]["iterations"], r["sample"]["seconds"], r["time"]["estimate"]
        each = [s / n for n, s in zip(counts, seconds)]
        width = statistics.stdev(each) * len(each) ** -0.2 or time / 1000
        xs = [min(each) - width + i / 100 * (max(each) - min(each) + 2 * width) for i in range(101)]
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 1.6))
        left.fill_between(xs, [sum(math.exp(-((x - e) / width) ** 2 / 2) for e in each) for x in xs], color="#9ac4e4")
        left.axvline(time, color=OURS)
        left.set(yticks=[], ylim=(0, None), title="density of the time of an iteration")
        right.plot(counts, seconds, ".", color=THEIRS)
        right.plot((0, max(counts)), (0, max(counts) * time), color=OURS)
        right.set_title("samples: time over iterations, and the estimate")
        for axis in (left.xaxis, right.yaxis):
            axis.set_major_formatter(EngFormatter("s"))
        yield f"Distribution: {r['id']}", drawn(figure)


def timeline(rows, memory, begin, end):
    """rows: (name, [(begin, end, label, part)]); memory: {name: [(time, bytes)]}. Merges narrow adjacent boxes."""
    heights, least = [0.2 * max(1, len(rows)), *[0.8] * len(memory)], (end - begin) / 1000
    figure, axes = pyplot.subplots(len(heights), squeeze=False, sharex=True, height_ratios=heights,
                                   figsize=(10, sum(heights) + 0.5))
    for y, (_, boxes) in enumerate(rows):
        joined = []
        for b, e, label, part in sorted(boxes, key=lambda box: box[:2]):
            if joined and max(e - b, b - joined[-1][1], joined[-1][1] - joined[-1][0]) < least:
                joined[-1][1] = max(e, joined[-1][1])
            else:
                joined.append([b, e, label, part])
        axes[0, 0].broken_barh([(b - begin, max(e - b, least / 3)) for b, e, *_ in joined], (y - 0.45, 0.9),
                               facecolors=[PARTS.get(part, PALE) for *_, part in joined])
        for b, e, label, _ in joined:
            if (room := int(130 * (e - b) / (end - begin))) >= min(len(label), 6):
                axes[0, 0].text(b - begin, y, label[:room], va="center", fontsize=6)
    axes[0, 0].set_yticks(range(len(rows)), [name for name, _ in rows])
    axes[0, 0].set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, end - begin))
    for ax, (name, points) in zip(axes[1:, 0], memory.items()):
        n = len(points) // 600 + 1
        times, live = zip(*(max(points[i:i + n], key=lambda p: p[1]) for i in range(0, len(points), n)))
        ax.fill_between([t - begin for t in times], live, step="post", color="#c9d3dc")
        ax.set_title(f"{name}: peak {shown(max(live), 'B')}", loc="left", fontsize=8)
        ax.yaxis.set_major_formatter(EngFormatter("B"))
    axes[-1, 0].xaxis.set_major_formatter(EngFormatter("s"))
    return drawn(figure)


def part_of(op, layer="", phase=""):
    """The model part of a kernel or range, or None."""
    return next((part for pattern, part in RULES if pattern.search(f"{op}|{layer}|{phase}")), None)


def each_way(d):
    peer = "torch" if "torch" in d else "peer"
    of = lambda r: (("ours", r.get("all") or {"": r["seconds"]}),
                    (peer, r.get(f"{peer}_all") or {"": r[f"{peer}_seconds"]}))
    rows = [{"name": r["name"], "way": f"{who}, {way}", "seconds": s}
            for r in d["rows"] for who, ways in of(r) for way, s in ways.items() if s]
    color = lambda r: OURS if r["way"].startswith("ours") else THEIRS
    return bars("Each way:", "rows", "{way}", "seconds", group="{name}", color=color)({"rows": rows})


def trace(d):
    names, rows, memory, parts = {}, defaultdict(list), defaultdict(list), Counter()
    for e in d["traceEvents"]:
        if e["ph"] == "M":
            names[e["name"], e["pid"], e["tid"]] = names[e["name"], e["pid"]] = e["args"]["name"]
        elif e["ph"] == "C":
            memory[e["name"]].append((e["ts"] / 1e6, e["args"]["bytes"]))
        elif e["ph"] == "X":
            args, begin, seconds = e.get("args", {}), e["ts"] / 1e6, e["dur"] / 1e6
            kind = names["process_name", e["pid"]]
            part = part_of(args.get("op", e["name"]), args.get("scope", ""), args.get("range", ""))
            parts[part or "other"] += seconds * kind.startswith("kernels")
            rows[kind, names["thread_name", e["pid"], e["tid"]]].append((begin, begin + seconds, e["name"], part))
    kernels = {"seconds": sum(parts.values()), "parts": {p: s for p, s in parts.items() if s}}
    yield from bars("Kernels of the whole trace", "k", "all kernels", "seconds", parts="parts")({"k": [kernels]})
    if step := next((box for of in rows.values() for box in of if box[2] == "profiled_step"), None):
        rows, memory = ({key: inside for key, of in all.items() if (
            inside := [at for at in of if step[0] <= at[0] < step[1]])} for all in (rows, memory))
    nested = []
    for (kind, thread), boxes in sorted(rows.items()):
        depths, ends = defaultdict(list), []
        for box in sorted(boxes, key=lambda b: (b[0], -b[1])):
            while ends and ends[-1] <= box[0] + 1e-10:
                ends.pop()
            depths[len(ends)].append(box)
            ends.append(box[1])
        nested += [(f"{kind}, {thread}", depths[depth]) for depth in sorted(depths)[:9]]
    boxes = [b for r in rows.values() for b in r]
    yield "Timeline", timeline(nested, memory, min(b[0] for b in boxes), max(b[1] for b in boxes))


COMPARED = [bars("How many times as fast", "rows", "{name}", "ratio", "x", mark=1), each_way]
RUN = "{type}, {form}, {precision}"
GRID = {"path": "grid", "series": "batch {batch_size}",
        "x": lambda r: f"{min(r['dim_in'], r['dim_out'])}\nx {r['wm']:.1f}"}
CELLS = {"path": "cells", "series": "{mode}, batch {batch_size}", "x": lambda r: r["fragments"],
         "group": "{input_size}, {step}, {run}, over the number of fragments"}
KINDS = (  # the key of a file, the program, its plots
    ("traceEvents", "a trace of our profiler", [trace]),
    ("runs", "bench_lm_profile", [
        bars("Phases: in blue kernels, of", "runs/phases", "{key}", "kernel_seconds", of="seconds", group=RUN),
        bars("Kernel time by part of the model", "runs", RUN, "step.kernel_seconds", parts="step.part_seconds"),
        bars("Peak memory of tensors", "runs", RUN, "peak_bytes", "B")]),
    ("encoding", "bench_tokenizer", [
        bars("Encoding of texts", "encoding/runs", "{tokenizer}, {text}, threads {threads}", "mb_per_second", "MB/s")]),
    ("clients", "bench/tokenizer/compare_clients.py", [
        bars("Encoding of texts", "clients/rates", "{tokenizer}, {text}: {program}, threads {threads}", "mb_per_second",
             "MB/s")]),
    ("decoding", "bench_decode",
     [bars("Time of a token", "decoding/ways", "{arch}, {dtype}, texts {batch}, prompt {prompt}: {way}",
           "seconds_per_token.median", span="seconds_per_token.p10 seconds_per_token.p90")]),
    ("grid", "bench_switchback", [
        *(lines(f"{key} by width", value=lambda r, key=key: r[key] / 1e3, **GRID) for key in (
            "time_standard", "time_rowwise", "time_global", "standard_fwd", "rowwise_fwd", "global_fwd",
            "x_quantize_rowwise",
            "w_quantize_global")),
        *(lines(f"{key} over time_standard", value=lambda r, key=key: r[key] / r["time_standard"], unit="", **GRID)
          for key in ("time_global", "time_rowwise")),
        lines("Share of quantising", value=lambda r: 100 * r["quantise_share"], unit="%", **GRID),
        lines("The fastest linear layer's step over SwitchBack's", value=lambda r: r["best_speedup"] or 0, unit="x",
              **GRID),
        bars("Rates:", "grid/rates", "{name}", "percent", "%", "{dim_in} to {dim_out}, batch {batch_size}", mark=100)]),
    ("cells", "bench_fragmented", [lines(what, value=value, unit=unit, **CELLS) for what, unit, value in (
        ("Forward,", "s", lambda c: c["forward_ms"] / 1e3), ("Backward,", "s", lambda c: c["backward_ms"] / 1e3),
        ("Peak memory,", "B", lambda c: c["live_bytes"]), ("Parameters,", "", lambda c: c["parameters"]))]),
    ("torch", "compare_torch.py", COMPARED), ("peer", "compare_llmc.py, compare_llamacpp.py", COMPARED),
    ("trained", "bench_step", [
        lambda d: bars("Time of a step, p10 to p90", "steps", "{arch}, {trained:,} weights trained", "median",
                       span="p10 p90")({"steps": [d]})]),
    ("standalone", "bench_gpt_timeit", [
        bars("Time of a step, with the least and most:", "rows", "{name}", "median_time", group="{size}",
             span="min_time max_time"),
        bars("Peak memory", "rows", "{name}", "peak_bytes", "B")]),
    ("mode", "bench_training", [
        bars("Time of an iteration, 95 % confidence:", "rows", "{id}", "time.estimate", span="time.low time.high",
             group=lambda r: r["id"].split("/")[0]), distributions,
        lambda d: lines("Time over LoRA's rank", "rows", "ours", lambda r: r["id"].split("_")[-1],
                        lambda r: r["time"]["estimate"])({"rows": [r for r in d["rows"] if "/rank_" in r["id"]]})]),
    ("bandwidth", "bench_ops", [
        bars("p10 to p90, of the machine's peak:", "rows", "{name} {shape} {dtype}", "median", "", "{unit}", "peak",
             "p10 p90"),
        *(bars(f"Bandwidth by size, {way}", "bandwidth", "{bytes:,} bytes", way, "GB/s")
          for way in ("copy", "triad", "update"))]),
    ("collectives", "bench_comm", [
        bars("Collectives", "collectives", "{collective}, {bytes:.0f} bytes", "seconds.median",
             span="seconds.p10 seconds.p90")]),
    ("data_parallel", "bench/dist/predict.py", [
        bars("A step, measured; pale: predicted", "data_parallel", "{ranks} ranks", "step_measured",
             of="step_predicted")]),
    ("optimizer_steps", "bench/optimizers/compare.py", [
        bars("Validation loss, the mean of the seeds", "rows", "{optimizer}, {steps} steps", "mean", ""),
        bars("Milliseconds of a step", "optimizer_steps", "{optimizer}", "ms", "ms")]),
    ("stages", "bench/gpu/run.py", [
        bars("Stages", "stages", "{key}, status {status}", "seconds",
             color=lambda s: THEIRS if s["status"] else OURS)]),
    ("rows", "bench/switchback/training.py",
     [bars("Validation loss", "rows", "{linear}, seed {seed}", "val_loss", "")]))

MEASURED = {  # key of a file: what, and against what
    "traceEvents": "One profiled step: ranges of the host, kernels of the device and memory over time.",
    "runs": "Phases of a GPT's step: time of kernels within the time of the host, and memory; one way after another.",
    "encoding": "Bytes of text per second, by tokenizer and number of threads.",
    "clients": "Bytes of text per second, beside other tokenizer programs in turn.",
    "decoding": "Time of each generated token, by way of decoding; whiskers are p10 and p90.",
    "grid": "A linear layer's step in 8 bits (SwitchBack), beside the standard one; rates against the machine's peak.",
    "cells": "Fragmented linear layers beside plain ones of the same sizes.",
    "torch": "Our time beside PyTorch's in turn; the ratio is theirs over ours, above 1 ours is faster.",
    "peer": "Our time beside the other program's in turn; the ratio is theirs over ours, above 1 ours is faster.",
    "trained": "Whole training steps on random tokens: forward, backward, clipping and optimiser.",
    "standalone": "Training steps of a GPT; whiskers are the least and the most.",
    "mode": "Iterations of each part of training, with 95 % confidence; the distribution of the samples of each.",
    "bandwidth": "Each op beside the machine's peak (pale) of bytes or flops, measured in the same run.",
    "collectives": "Collectives among the ranks; whiskers are p10 and p90.",
    "data_parallel": "A step on several ranks beside the predicted time.",
    "optimizer_steps": "Validation loss after equal numbers of steps, and the time of a step, by optimiser.",
    "stages": "Seconds of each stage on the GPU machine; orange failed.",
    "rows": "Validation loss by kind of linear layer and seed."}


def section(path):
    try:
        with open(path, encoding="utf-8") as f:
            d = json.load(f)
    except (OSError, ValueError, RecursionError) as e:
        sys.exit(f"report.py: {path} cannot be read as JSON: {e}")
    key, program, plots = next((kind for kind in KINDS if isinstance(d, dict) and kind[0] in d), (None, None, None))
    if not key:
        sys.exit(f"report.py: {path} is no result file. Expected one that has a key of "
                 f"{', '.join(kind[0] for kind in KINDS)}")
    m = d["machine"] if isinstance(d.get("machine"), dict) else {}
    facts = {"file": path, "machine": ", ".join(str(m[k]) for k in ("cpu", "backend", "compiler") if m.get(k)), **{
        k: d.get(k) for k in ("device", "date", "commit", "command")}}
    told = "".join(f"<dt>{k}</dt><dd>{html.escape(str(v or '-'))}</dd>" for k, v in facts.items())
    try:
        drawings = "".join(f"<h3>{html.escape(title)}</h3><div>{svg}</div>" for plot in plots for title, svg in plot(d))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError) as e:
        sys.exit(f"report.py: {path} has the key '{key}' of a file of {program}, and is none: {type(e).__name__}: {e}")
    return f"<h2>{html.escape(program)}</h2><p>{MEASURED[key]}</p><dl>{told}</dl>{drawings}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="JSON files of the benchmarks")
    parser.add_argument("-o", "--output", required=True, help="the page to write")
    args = parser.parse_args()
    if any(os.path.realpath(path) == os.path.realpath(args.output) for path in args.files):
        sys.exit(f"report.py: {args.output} is both a result file and the page to write")
    body = "".join(map(section, args.files))
    with open(args.output, "w", encoding="utf-8") as f:
        f.write('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
                '<meta name="viewport" content="width=device-width"/><title>tapegrad: benchmarks</title>'
                f"<style>{STYLE}</style></head><body><h1>tapegrad: benchmarks</h1>{body}</body></html>\n")


if __name__ == "__main__":
    main()
