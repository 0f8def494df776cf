#!/usr/bin/env python3
"""Result files of the benchmarks as one HTML page with plots, which needs no network and no script.

    python bench/common/report.py bench/results/cpu/*.json [more.json] -o report.html

Takes what bench_ops, bench_training, bench_switchback, bench_fragmented, bench_gpt_timeit, bench_lm_profile, bench_decode and
compare_torch*.py write with --json, run.json of bench/gpu/run.sh, and traces of `tapegrad train --profile` and
`bench_lm_profile --trace`. A file is known by its keys. Traces are thinned to what the page can show, so that it stays small.
"""
import argparse, json, math, os, re, statistics, sys
from collections import Counter, defaultdict

from report_plots import (BYTES, HALF, PARTS, SECONDS, TIMES, WIDE, Bar, Page, area, bars, big, esc, folded, keys, shown, timeline,
                          took, two)

MOST_ROWS, MOST_DEPTH, BUCKETS = 12, 9, 600  # of a table, of nested ranges, of memory
RULES = [(re.compile(pattern), part) for pattern, part in (  # of "op|layer|range"
    ("cross_entropy|loss", "loss"), ("adamw|optimizer", "optimizer"), ("wte|wpe|embedding", "embedding"),
    (r"attn\.(qkv|proj)|projection", "attention: projections"), (r"\brope", "attention: rope"),
    (r"ln_1|attention_sublayer\|", "attention: norm, residual"),
    (r"attn|attention|causal mask|computing|final matmul", "attention: scores to values"),
    (r"mlp\.(fc|proj)|^(linear|matmul).*(mlp|ffn)", "ffn: products"), ("mlp|ffn|ln_2", "ffn: gate, norm, residual"),
    ("ln_f|final_norm", "final norm"), ("lm_head", "head"))]


def facts(d, *more):
    """What a file says about where its figures come from."""
    m = d.get("machine") or {}
    machine = (m.get("cpu"), m.get("cpus") and f"{m['cpus']} CPUs", m.get("backend"), m.get("compiler"))
    named = {"machine": ", ".join(str(x) for x in machine if x), "device": d.get("device") or m.get("device")}
    named |= {k: d.get(k) for k in ("date", "commit", "command")}
    settings = [f"{k} {d[k]}" for k in ("mode", "clock", "batch", "context", "vocab", "threads", "rounds", "steps") if k in d]
    return [(k, v or "not recorded") for k, v in named.items()] + [("settings", ", ".join(settings))] * bool(settings) + list(more)


class Bad(Exception):
    pass


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def part_class(op, layer="", phase=""):
    """The class of the part of the model that a kernel or range belongs to; None: it cannot be told."""
    told = f"{op}|{layer}|{phase}"
    return next((PARTS[part] for pattern, part in RULES if pattern.search(told)), None)


def flame(depth, cls):
    return f"{cls} s" if cls else "deep" if depth % 2 else "pale"


def short(kernel):
    """A function of a GPU without its namespaces and arguments."""
    return re.sub(r"^([^(<]*(<.*>)?)\(.*$", r"\1", re.sub(r"\(anonymous namespace\)::|\b(tg|cuda)::|^void ", "", kernel))


def by_part(name, seconds):
    """One bar of all parts, from their seconds by name."""
    whole = sum(seconds.values())
    parts = [(seconds[p], cls, f"{p}: {took(seconds[p])}, {percent(seconds[p], whole)}") for p, cls in PARTS.items() if seconds.get(p)]
    return Bar(name, whole, took(whole), parts=tuple(parts))


def part_keys(all_seconds):
    return keys(*((cls, p) for p, cls in PARTS.items() if any(seconds.get(p) for seconds in all_seconds)))


def largest(totals, name):
    """Bars of the largest of (label, seconds, count)."""
    whole, totals = sum(t[1] for t in totals), sorted(totals, key=lambda t: -t[1])[:MOST_ROWS]
    return bars([Bar(short(label), s, f"{took(s):>8}  {percent(s, whole):>7}  {count:>6,.0f}×", tip=label)
                 for label, s, count in totals], SECONDS, name)


# bench_lm_profile

PHASES = ("forward_pass", "loss_computation", "backward_pass", "optimizer_step")
TABLES = {"nvtx_sum": ("Range", "Instances", "ranges, all steps"),
          "cpu_kern_sum": ("Name", "Instances", "kernels of the CPU, all steps"),
          "cuda_gpu_kern_sum": ("Name", "Instances", "kernels of the GPU, all steps"),
          "cuda_api_sum": ("Name", "Num Calls", "calls of the CUDA runtime, all steps")}


def run_name(run):
    return f"{run['type']}, {run['form']}, {run['precision']}"


def phase_bars(run, scale, width):
    rows = [Bar(run_name(run), text=f"step {took(run['step']['seconds'])}")]
    for phase in sorted(run["phases"], key=PHASES.index):
        p = run["phases"][phase]
        rows.append(Bar(phase, p["kernel_seconds"], f"{took(p['seconds']):>8}  {percent(p['kernel_seconds'], p['seconds']):>7}",
                        of=p["seconds"], tip=f"{phase}: {took(p['seconds'])}, {p['kernels']} kernels of "
                        f"{took(p['kernel_seconds'])}, of which products {took(p['product_seconds'])}"))
    return bars(rows, SECONDS, f"phases of {run_name(run)}", width, scale, label=max(map(len, PHASES)))


def lm_timeline(t, name):
    rows = [[] for _ in range(1 + max(r[1] for r in t["ranges"]))]
    for label, depth, begin, end in t["ranges"]:
        rows[depth].append((begin, end, label, flame(depth, part_class("", label, label)), 1))
    lanes = [("ranges of the host", rows)]
    for track, label in enumerate(t["tracks"]):
        lanes.append((f"kernels, {label}", [[(begin, end, t["parts"][part], PARTS[t["parts"][part]], count)
                                             for of, part, begin, end, count in t["kernels"] if of == track]]))
    points = [*t["memory"]["points"], (t["seconds"], t["memory"]["points"][-1][1])]
    return (timeline(lanes, (0, t["seconds"]), f"timeline of {name}") +
            area([(f"memory, {t['memory']['device']}", "deep", points)], BYTES, f"memory of {name}"))


def lm_tables(run):
    for table in run["tables"]:
        if table["report"] in TABLES:
            label, count, title = TABLES[table["report"]]
            totals = [(r[label].removeprefix(":"), r["Total Time (ns)"] / 1e9, r[count]) for r in table["rows"]]
            yield f"<p>{table['report']}: {title}</p>" + largest(totals, table["report"])


def lm(page, path, d):
    runs, first = d["runs"], d["runs"][0]
    model = (f"{first['num_layers']} layers, d_model {first['d_model']}, d_ff {first['d_ff']}, {first['num_heads']} heads, "
             f"vocabulary {first['vocab_size']}: {first['parameters']:,} parameters")
    page.file(f"bench_lm_profile: {first['size']}, batch {first['batch_size']}, context {first['context_length']}", path,
              facts(d, ("model", model)))
    slowest = max(p["seconds"] for run in runs for p in run["phases"].values())
    page.part("Phases of the profiled step", "Pale: from begin to end on the host. Blue, and in percent: kernels in it.",
              two([phase_bars(run, slowest, HALF if len(runs) > 1 else WIDE) for run in runs]))
    parts = {run_name(run): run["step"]["part_seconds"] for run in runs}
    page.part("Kernel time by part of the model", "Of the profiled step, forward and backward.", part_keys(parts.values()),
              bars([by_part(*run) for run in parts.items()], SECONDS, "kernel time by part"))
    page.part("Peak memory", "Of tensors on the device: parameters, gradients, moments, activations.",
              bars([Bar(run_name(run), run["peak_bytes"], big(run["peak_bytes"])) for run in runs], BYTES, "peak memory"))
    layers, top = [run["layer_kernel_seconds"] for run in runs], max(max(run["layer_kernel_seconds"]) for run in runs)
    page.part("Layers", "Kernel time of each layer in forward_pass, by its number.",
              *(area([(run_name(run), "ours", list(enumerate([*x, 0])))], SECONDS, "kernel time by layer", height=64, top=top,
                     labels=[(i, str(i)) for i in range(len(x))], columns=True, axis=run is runs[-1])
                for run, x in zip(runs, layers)))
    for run in runs:
        s = run["step"]
        note = (f"<b>{took(s['seconds'])}</b>, {s['kernels']:,} kernels of {took(s['kernel_seconds'])}, of which products of matrices "
                f"{percent(s['product_seconds'], s['kernel_seconds'])}; phases cover {percent(run['cover']['phases'], 1)} of the step; "
                f"result {run['result']:.4g}.{''.join(f' Note: {esc(n)}.' for n in run['notes'])}")
        plots = part_keys([s["part_seconds"]]) + lm_timeline(run["timeline"], run_name(run)) if "timeline" in run else ""
        page.part(f"Profiled step: {run_name(run)}", note, plots, folded("Largest rows of the tables", *lm_tables(run)))


# bench_gpt_timeit

def timeit_bars(rows, name, width=WIDE):
    drawn, of = [], None
    for r in rows:
        if r["computation"] != of:
            of = r["computation"]
            drawn.append(Bar(f"{r['size']}: {of}"))
        times, least, most = r["times"], r["min_time"], r["max_time"]
        drawn.append(Bar(f"{'mixed' if r['mixed_precision'] else 'f32'}, {r['warmup_steps'] or 'no'} warm-up", r["median_time"],
                         f"{took(r['median_time']):>8}  {took(least)} to {took(most)}", span=(least, most), dots=tuple(times),
                         cls=("theirs" if r["mixed_precision"] else "ours") + ("" if r["warmup_steps"] else "2"),
                         tip=f"{r['name']}: {', '.join(map(took, times))}; peak memory {big(r['peak_bytes'])}"))
    return bars(drawn, SECONDS, name, width, 1.3 * max(r["median_time"] for r in rows))


def timeit(page, path, d):
    page.file(f"bench_gpt_timeit: {d['mode']} on {d['device']}", path, facts(d))
    sizes, order = defaultdict(list), list(dict.fromkeys(r["computation"] for r in d["rows"]))
    for r in sorted(d["rows"], key=lambda r: (order.index(r["computation"]), r["mixed_precision"], r["warmup_steps"])):
        sizes[r["size"]].append(r)
    note = "Bars: the median. Dots: each step. Whiskers: least and most; what a notch ends goes on."
    if claim := d.get("warmup_claim"):
        note += f" With warm-up steps the standard deviation is smaller in {claim['holding']:d} of {claim['pairs']:d} pairs."
    page.part("Time of a step", note, keys(("ours2", "f32, no warm-up"), ("ours", "f32, after a warm-up"),
                                           ("theirs2", "bf16 over f32, no warm-up"), ("theirs", "bf16 over f32, after a warm-up")),
              two([timeit_bars(rows, size, HALF if len(sizes) > 1 else WIDE) for size, rows in sizes.items()]))
    if d["standalone"]:
        page.part("One model, its gradients adding up", "Before the matrix of runs.", timeit_bars(d["standalone"], "standalone"))
    page.part("Peak memory", "", bars([Bar(r["name"], r["peak_bytes"], big(r["peak_bytes"])) for rows in sizes.values() for r in rows],
                                      BYTES, "peak memory of runs"))


# bench_switchback

PERCENT = ((1, "%"),)
PRODUCTS = ("standard_fwd", "standard_gw", "standard_gx", "rowwise_fwd", "rowwise_bwd", "global_fwd", "global_bwd")
QUANTISES = ("x_quantize_rowwise", "g_quantize_rowwise", "w_quantize_rowwise", "w_quantize_colwise_transpose", "w_quantize_global",
             "w_quantize_global_transpose")
LINES = ("p1", "p5", "p0", "p8", "p10", "p3", "p9", "p11")


def over_layers(series, labels, units, name):
    """Lines over the layers from {name: {place of the layer: value}}."""
    lines = [(label, cls, sorted(points.items())) for (label, points), cls in zip(series.items(), LINES)]
    return keys(*((cls, label) for label, cls, _ in lines)) + area(lines, units, name, labels, height=200, stairs=False)


def switchback(page, path, d):
    page.file(f"bench_switchback: {d['dtype']} on {d['device']}", path, facts(d))
    groups = defaultdict(list)  # by layer and batch: swapped and not
    for r in d["grid"]:
        small, large = sorted((r["dim_in"], r["dim_out"])) if r["wm"] >= 1 else sorted((r["dim_in"], r["dim_out"]))[::-1]
        groups[(small, large, r["wm"]), r["batch_size"]].append(r)
    layers, batches = (sorted({key[i] for key in groups}) for i in (0, 1))
    labels = [(i, f"{dim}" if wm == 4 else f"{dim}×{wm:.1f}") for i, (dim, _, wm) in enumerate(layers)]
    mean = lambda rows, value: statistics.fmean(map(value, rows))
    over = lambda batch, value: {i: mean(groups[layer, batch], value) for i, layer in enumerate(layers) if (layer, batch) in groups}
    shown_batch = 32768 if 32768 in batches else batches[-1]
    of_ops = lambda ops: {op: over(shown_batch, lambda r, op=op: 1e-3 * r[op]) for op in ops}
    some = [b for b in batches if 2**14 <= b <= 2**17] or batches[-len(LINES):]
    by_batch = lambda value: {f"batch {b}": over(b, value) for b in some}
    page.part(f"Time of the ops by width, batch {shown_batch}", "Of the mean of both layers of an MLP, dim to 4 dim and back.",
              *(over_layers(of_ops(ops), labels, SECONDS, name) for ops, name in ((PRODUCTS, "products"), (QUANTISES, "quantising"))))
    for form in ("global", "rowwise"):
        page.part(f"Time saved, {form}", "The sum of the ops of SwitchBack less that of a layer in full precision, in percent of "
                  "the latter. Below 0 SwitchBack is slower.", over_layers(by_batch(lambda r, form=form: 100 * (
                      1 - r[f"time_{form}"] / r["time_standard"])), labels, PERCENT, f"time saved, {form}"))
    page.part("Share of quantising", "In the sum of the ops, global.", over_layers(
        by_batch(lambda r: 100 * r["quantise_share"]), labels, PERCENT, "share of quantising"))
    steps = []
    for (layer, batch), rows in sorted(groups.items()):
        times = defaultdict(list)
        for r in rows:
            for t in r["layers"]:
                times[f"{t['way']}, {t['mode']}"].append(t["seconds"])
        if times:
            best = mean(rows, lambda r: r["best_speedup"])
            steps.append(Bar(f"{layer[0]} → {layer[1]}, batch {batch}", best, f"{best:.2f}×", "ours" if best >= 1 else "theirs",
                             tip="; ".join(f"{way}: {took(statistics.fmean(s))}" for way, s in times.items())))
    if len(steps) == len(groups):
        page.part("The layer as a whole", "Forward and backward, quantising included: the fastest linear layer in full precision over "
                  "the fastest SwitchBack. Below 1× SwitchBack is slower.",
                  over_layers(by_batch(lambda r: r["best_speedup"]), labels, TIMES, "layers as a whole"),
                  folded("All layers and batches", bars(steps, TIMES, "steps of layers", lines=((1, "as fast"),))))
    for layer in layers:
        for r in groups.get((layer, shown_batch), ())[:1]:
            rated = [Bar(x["name"], x["percent"], f"{x['percent']:5.0f} %  {x['rate']:10.1f} {x['unit']} of {x['peak']:.1f}")
                     for x in r["rates"]]
            name = f"rates, {r['dim_in']} → {r['dim_out']}, batch {shown_batch}"
            page.body.append(folded(name.capitalize(), bars(rated, PERCENT, name, lines=((100, "the peak"),))))


# bench_fragmented

MILLISECONDS = ((1, "ms"), (1e-3, "µs"))
RATES = ((1, "MB/s"),)
MIB = ((1, "MiB"),)  # steps are round in it, up to gigabytes
MILLIONS = ((1, "M"),)
FORMULA = {"separate": "stored", "folded": "folded"}
PLOTTED = (("forward", MILLISECONDS, lambda c: c["forward_ms"]), ("backward", MILLISECONDS, lambda c: c["backward_ms"]),
           ("peak memory", MIB, lambda c: c["live_bytes"] / 2**20), ("parameters", MILLIONS, lambda c: c["parameters"] / 1e6))


def over_fragments(cells, counts, value):
    """Lines over the numbers of fragments: {name: [(place, value)]}; a linear layer has one value for all."""
    lines = defaultdict(list)
    for c in cells:
        at = [counts.index(c["fragments"])] if c["fragments"] else range(len(counts) or 1)
        lines[f"{c['mode']}, batch {c['batch_size']}"] += [(place, value(c)) for place in at]
    return {name: sorted(points) for name, points in sorted(lines.items())}


def fragmented(page, path, d):
    page.file(f"bench_fragmented on {d['device']}", path, facts(d))
    groups = defaultdict(list)
    for c in d["cells"]:
        groups[c["input_size"], c["step"], c["run"]].append(c)
    for (size, step, run), cells in groups.items():
        title = f"{size}: {step}, {run}"
        counts = sorted({c["fragments"] for c in cells if c["fragments"]})
        labels = [(i, str(f)) for i, f in enumerate(counts)]
        kinds = list(over_fragments(cells, counts, lambda c: 0))
        cls = {name: f"p{i % len(PARTS)}" for i, name in enumerate(kinds)}
        plots = []
        for what, units, value in PLOTTED:
            lines = over_fragments(cells, counts, value)
            drawn = area([(name, cls[name], points) for name, points in lines.items()], units, f"{what}, {title}", labels, height=150,
                         stairs=False, width=HALF, gutter=64)
            plots.append(f"<div><p>{what}</p>{drawn}</div>")
        page.part(title, "Over the number of fragments. Linear layers have none. Peak memory: of tensors.",
                  keys(*((cls[name], name) for name in kinds)), two(plots))
    peaks = []
    for c in d["cells"]:
        name = f"{c['input_size']}, batch {c['batch_size']}, {c['mode']}" + (f" {c['fragments']}" if c["fragments"] else "")
        mib = [c[f"{kind}_bytes"] / 2**20 for kind in ("live", "reserved", FORMULA[c["step"]], "fair", "document")]
        peaks.append(Bar(f"{name}, {c['step']}, {c['run']}", mib[0], "".join(f"{x:9.1f}" for x in mib), of=mib[-1]))
    page.part("Peak memory beside the document's", "MiB: ours, of tensors and reserved; 4 or 3 times the parameters; the document's "
              "framework without and, pale, with the linear layer that its harness keeps.",
              folded("All cells", bars(peaks, MIB, "peaks")))


# bench_training, compare_torch*.py, bench_ops, run.json

def training(page, path, d):
    page.file(f"bench_training: {d['mode']} on {d['device']}", path, facts(d))
    groups = defaultdict(list)
    for r in d["rows"]:
        group, name = r["id"].split("/", 1)
        t, change = r["time"], r.get("change")
        of = f"; document 000 has {took(r['document']['estimate'])}" if r.get("document") else ""
        since = f"  {100 * change['estimate']:+6.1f} % {r['verdict']:<12}" if change else ""
        groups[group].append(Bar(
            name, t["estimate"], f"{took(t['estimate']):>8}{since}", span=(t["low"], t["high"]),
            tip=f"{r['id']}: {took(t['low'])} to {took(t['high'])} with 95 % confidence, {r['samples']} samples, {r['iterations']} "
            f"iterations, {sum(r['outliers'].values())} outliers{of}"))
    page.part("Time of an iteration", "Bars: the estimate. Whiskers: 95 % confidence. Each group has a scale of its own.",
              two([bars([Bar(group), *rows], SECONDS, group, HALF, axis=len(rows) > 1) for group, rows in groups.items()]))
    host = [(mode, h, h["share_outside_kernels"]) for mode, h in (d["host"] or {}).items() if mode in ("eager", "compiled")]
    if host:
        page.part("The training step outside of kernels", "Pale: a step. Blue: what of it is not spent in kernels.", bars(
            [Bar(mode, share * h["step_seconds"], f"{took(h['step_seconds'])}, {percent(share, 1)} outside, {h['ops']:.0f} ops of "
                 f"{took(h['ns_per_op'] * 1e-9)}", of=h["step_seconds"]) for mode, h, share in host], SECONDS, "host time"))


def compare(page, path, d):
    peer, program = ("PyTorch", f"PyTorch {d['torch']}") if "torch" in d else (d["peer"], d["peer"])
    rows = []  # ratio, name, seconds of each way of ours, of the peer
    for r in d["rows"]:
        theirs = r.get("torch_all") or r.get("peer_all") or {"eager": r["torch_seconds"], "compile": r.get("torch_compiled_seconds")}
        rows.append((r["ratio"], r["name"], r.get("all") or {"eager": r["seconds"]},
                     {way: s for way, s in theirs.items() if s}))
    mean, least = math.exp(statistics.fmean(math.log(ratio) for ratio, *_ in rows)), min(ratio for ratio, *_ in rows)
    page.file(f"Beside {program}: {len(rows)} benchmarks", path, facts(d))
    page.part("How many times as fast", f"The fastest way of {peer} over our fastest: <b>{mean:.2f}×</b> in the geometric mean, "
              f"<b>{least:.2f}×</b> the smallest. Below 1× {peer} is faster.",
              bars([Bar(name, ratio, f"{ratio:6.2f}×  {took(min(ours.values())):>8} / {took(min(theirs.values())):>8}",
                        "ours" if ratio >= 1 else "theirs") for ratio, name, ours, theirs in sorted(rows, key=lambda r: -r[0])],
                   TIMES, "ratios", lines=((1, "as fast"), (mean, f"mean {mean:.2f}×"))))
    plots = [bars([Bar(name, text=f"{ratio:.2f}×")] +
                  [Bar(f"{who}, {way}", s, took(s), cls + "2" * (s > min(of.values())))
                   for who, cls, of in (("ours", "ours", ours), (peer, "theirs", theirs)) for way, s in of.items()],
                  SECONDS, name, HALF, axis=False) for ratio, name, ours, theirs in rows]
    page.part("Each way", "Time, shorter is better; each has a scale of its own. Strong colours: the fastest of a side.",
              keys(("ours", "ours"), ("theirs", peer)), two(plots))


def decode(page, path, d):
    rows = []
    for run in d["decoding"]:
        rows.append(Bar(f"{run['arch']}, {run['dtype']}, texts {run['batch']}, prompt {run['prompt']}"))
        for way in run["ways"]:
            s = way["seconds_per_token"]
            rows.append(Bar(way["way"], s["median"], f"{took(s['median'])}, {way['tokens_per_second']:.1f} a second",
                            span=(s["p10"], s["p90"])))
    page.file("bench_decode", path, facts(d))
    page.part("Time of a token", "Bars: the median of a token of one text. Whiskers: 10 % to 90 % of the rounds.",
              bars(rows, SECONDS, "decoding"))


def encoding(page, path, d):
    page.file("bench_tokenizer", path, facts(d))
    rows = [Bar(f"{os.path.basename(r['tokenizer'])}, {os.path.basename(r['text'])}, threads {t['threads']}", t["mb_per_second"],
                f"{t['mb_per_second']:.1f} MB/s") for r in d["encoding"] for t in r["runs"]]
    page.part("Encoding of texts", "Megabytes per second, the median of all rounds.", bars(rows, RATES, "encoding"))


def clients(page, path, d):
    page.file(f"Beside tiktoken {d['tiktoken']} and tokenizers {d['tokenizers']}", path, facts(d))
    rows = []
    for r in d["clients"]:
        rows.append(Bar(f"{r['tokenizer']}, {r['text']}"))
        rows += [Bar(f"{x['program']}, threads {x['threads']}", x["mb_per_second"], f"{x['mb_per_second']:.1f} MB/s",
                     "ours" if x["program"] == "tapegrad" else "theirs") for x in r["rates"]]
    page.part("Encoding of texts", "Megabytes per second. One thread: by its processor time.", bars(rows, RATES, "clients"))


def ops(page, path, d):
    page.file("bench_ops", path, facts(d))
    units = defaultdict(list)
    for r in d["rows"]:
        name, unit, span = f"{r['name']} {'×'.join(map(str, r['shape']))} {r['dtype']}", r["unit"], sorted((r["p10"], r["p90"]))
        units[unit].append(Bar(
            name, r["median"], f"{shown(r['median'], ((1, unit),)):>14}" + (f"  {r['percent']:4.0f} %" if r["peak"] else ""),
            of=r["peak"] or 0, span=tuple(span),
            tip=f"{name}: {span[0]} to {span[1]}, median {r['median']} {unit}; {took(r['seconds'])} a run, {r['runs']} runs"))
    names = {"GFLOP/s": "Arithmetic", "GB/s": "Memory traffic", "ns": "Cost of an op"}
    for unit, rows in units.items():
        note = "Bars: the median. Whiskers: p10 to p90."
        if any(r.of for r in rows):
            note += " Pale, and 100 %: the peak of this machine, measured in the same run."
        page.part(f"{names.get(unit, unit)}, {unit}", note, bars(rows, ((1, unit),), unit))
    if d["bandwidth"]:
        ways = {"copy": "theirs", "triad": "p0", "update": "ours"}
        points = [(math.log2(b["bytes"]), b) for b in d["bandwidth"]]
        labels = [(x, f"{b['bytes'] >> 20} MiB" if x >= 20 else f"{b['bytes'] >> 10} KiB") for x, b in points]
        page.part("Bandwidth by size", "What all threads move, in GB/s, by the bytes of the arrays, on a logarithmic scale.",
                  keys(*((cls, way) for way, cls in ways.items())),
                  area([(way, cls, [(x, b[way]) for x, b in points]) for way, cls in ways.items()], ((1, "GB/s"),), "bandwidth", labels,
                       height=200, stairs=False))


def linear_kinds(page, path, d):
    page.file("bench/switchback/training.py", path, facts(d))
    rows = [Bar(f"{r['linear']}, seed {r['seed']}", r["val_loss"], f"{r['val_loss']:.4f}, {100 * r['above_plain']:+.2f} %") for r in d["rows"]]
    page.part("Loss after training", "Bars: the loss on the validation data, beside that of the plain layers of the same seed.",
              bars(rows, ((1, ""),), "linear kinds"))


def optimizers(page, path, d):
    page.file("Optimisers on tiny Shakespeare", path, facts(d))
    page.part("Validation loss", "After all steps: the mean of the seeds. Whiskers: the smallest and the largest.", bars(
        [Bar(f"{r['optimizer']}, {r['steps']} steps", r["mean"], f"{r['mean']:.3f}", span=(min(r["val_loss"]), max(r["val_loss"])))
         for r in d["rows"]], ((1, ""),), "validation loss"))
    page.part("Cost of a step", "Next to AdamW's.", bars(
        [Bar(t["optimizer"], t["ms"] / 1e3, f"{took(t['ms'] / 1e3)}  {t['ratio']:.2f}×") for t in d["optimizer_steps"]], SECONDS, "steps"))


def collectives(page, path, d):
    page.file(f"bench_comm, {d['ranks']} ranks", path, facts(d))
    page.part("Collectives", "Bars: the median of the slowest rank. Whiskers: p10 to p90.", bars(
        [Bar(f"{r['collective']}, {r['bytes']:.0f} bytes", r["seconds"]["median"],
             took(r["seconds"]["median"]) + (f", model {took(r['model'])}" if "model" in r else ""),
             span=(r["seconds"]["p10"], r["seconds"]["p90"])) for r in d["collectives"]], SECONDS, "collectives"))


def predicted(page, path, d):
    page.file("Data parallel steps, measured and predicted", path, facts(d))
    page.part("A step", "Blue: measured. Pale: predicted from the step of a rank by itself and the network.", bars(
        [Bar(f"{r['ranks']} ranks, {name}", r[f"step_{name}"], took(r[f"step_{name}"]), cls)
         for r in d["data_parallel"] for name, cls in (("measured", "ours"), ("predicted", "ours2"))], SECONDS, "steps of ranks"))


def stages(page, path, d):
    page.file("bench/gpu/run.sh", path, facts({**d, "device": ", ".join(map(str, d["gpu"].values())), "command": "bench/gpu/run.sh"}))
    page.part("Stages", "", bars(
        [Bar(name, s["seconds"], f"{s['seconds']} s, " + (f"FAILED: {s['status']}" if s["status"] else "passed"),
             "theirs" if s["status"] else "ours") for name, s in d["stages"].items()], SECONDS, "stages"))


# Traces

def nested(events):
    """Boxes of one thread, a row for each depth, from (begin, end, name, class)."""
    rows, ends = [], []
    for begin, end, name, cls in sorted(events, key=lambda e: (e[0], -e[1])):
        while ends and ends[-1] <= begin + 1e-10:
            ends.pop()
        depth = len(ends)
        ends.append(end)
        if depth >= MOST_DEPTH:
            continue
        if depth == len(rows):
            rows.append([])
        rows[depth].append((begin, end, name, flame(depth, cls), 1))
    return rows


def envelope(points, span):
    """The most of (time, live bytes) in each of BUCKETS stretches of the span, what is live where it begins among it."""
    begin, length = span[0], span[1] - span[0]
    at, live, found = 0, 0, []
    for bucket in range(BUCKETS + 1):
        most = live
        while at < len(points) and points[at][0] < begin + length * bucket / BUCKETS:
            live = points[at][1]
            most, at = max(most, live), at + 1
        if bucket and (not found or found[-1][1] != most):
            found.append((length * (bucket - 1) / BUCKETS, most))
    return found + [(length, live)]


def trace(page, path, d):
    names, tracks, memory = {}, defaultdict(list), defaultdict(list)
    totals, parts, steps = Counter(), Counter(), defaultdict(list)
    for e in d["traceEvents"]:
        if e["ph"] == "M":
            names[e["name"], e["pid"], e["tid"]] = names[e["name"], e["pid"]] = e["args"]["name"]
        elif e["ph"] == "C":
            memory[e["name"]].append((e["ts"] / 1e6, e["args"]["bytes"]))
        elif e["ph"] == "X":
            args, begin, seconds = e.get("args", {}), e["ts"] / 1e6, e["dur"] / 1e6
            layer, name = args.get("scope", ""), e["name"]
            cls = part_class(args.get("op", name), layer, args.get("range", ""))
            if names["process_name", e["pid"]].startswith("kernels"):
                totals[name, "seconds"] += seconds
                totals[name, "count"] += 1
                parts[next((p for p, c in PARTS.items() if c == cls), "other")] += seconds
                cls = cls or PARTS["other"]
            elif not args:
                steps[name].append((begin, begin + seconds))
            if layer == name:  # a layer, by its path
                name = re.search(r"[^.]*(\.\d+)?$", name)[0]
            tracks[e["pid"], e["tid"]].append((begin, begin + seconds, name, cls))
    notes = d.get("otherData", {}).get("notes", [])
    page.file("Trace", path, [("events", f"{len(d['traceEvents']):,}"), *(("note", note) for note in notes)])
    if totals:
        page.part("Kernels", "Of the whole trace, in the colours of the timelines.", part_keys([parts]),
                  bars([by_part("all kernels", parts)], SECONDS, "kernel time by part"), largest(
                      [(name, s, totals[name, "count"]) for (name, what), s in totals.items() if what == "seconds"], "kernels"))
    lanes = []
    for (process, thread), boxes in sorted(tracks.items()):
        kind, number = names["process_name", process], names["thread_name", process, thread]
        if kind == "host":
            lanes.append((f"host, {number}", nested(boxes)))
        elif kind.startswith("kernels"):
            lanes.append((f"{kind.removeprefix('kernels of ')}, {number}", [sorted((*box, 1) for box in boxes)]))
        else:
            lanes.append((f"calls, {number}", [sorted((begin, end, name, "deep", 1) for begin, end, name, _ in boxes)]))
    whole = (min(b[0] for t in tracks.values() for b in t), max(b[1] for t in tracks.values() for b in t))
    outer = {box[2] for lane, rows in lanes if lane.startswith("host") for box in rows[0]} - {"warmup", "validation"}
    steps = {n: s for n, s in steps.items() if n in outer}
    spans = [("Timeline", "The whole trace.", whole)]
    if steps:
        name = max(steps, key=lambda n: sum(end - begin for begin, end in steps[n]))
        last = steps[name][-1]
        if last[1] - last[0] < 0.9 * (whole[1] - whole[0]):
            spans.append((f"The last {name}", f"{took(last[1] - last[0])} of it.", last))
    for title, note, span in spans:
        page.part(title, note, timeline(lanes, span, title),
                  *(area([(name.replace("live bytes of ", "memory, "), "deep", envelope(points, span))], BYTES, name)
                    for name, points in memory.items()))


KINDS = (("traceEvents", "a trace of our profiler", trace), ("runs", "bench_lm_profile", lm),
         ("encoding", "bench_tokenizer", encoding), ("clients", "bench/tokenizer/compare_clients.py", clients),
         ("decoding", "bench_decode", decode), ("grid", "bench_switchback", switchback), ("cells", "bench_fragmented", fragmented),
         ("torch", "compare_torch*.py", compare), ("peer", "bench/gpt_training/compare_llmc.py", compare),
         ("standalone", "bench_gpt_timeit", timeit), ("host", "bench_training", training), ("bandwidth", "bench_ops", ops),
         ("collectives", "bench_comm", collectives), ("data_parallel", "bench/dist/predict.py", predicted),
         ("optimizer_steps", "bench/optimizers/compare.py", optimizers), ("stages", "bench/gpu/run.sh", stages), ("rows", "bench/switchback/training.py", linear_kinds))


def add(page, path):
    def refuse(constant):
        raise ValueError(f"{constant} is no number")
    try:
        with open(path, encoding="utf-8") as f:
            d = json.load(f, parse_constant=refuse)
    except OSError as e:
        raise Bad(f"{path} cannot be read: {e.strerror}") from None
    except (ValueError, RecursionError) as e:
        raise Bad(f"{path} is not JSON: {e}") from None
    for key, program, show in KINDS:
        if not isinstance(d, dict) or key not in d:
            continue
        if any(d.get(k) == [] for k in ("rows", "runs", "decoding", "encoding", "clients", "grid", "cells", "traceEvents")):
            raise Bad(f"{path} is a file of {program} without results")
        try:
            return show(page, path, d)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, ZeroDivisionError) as e:
            what = f"{e} is missing" if isinstance(e, KeyError) else e
            raise Bad(f"{path} has the key '{key}' of a file of {program}, and is none: {what}") from None
    raise Bad(f"{path} is no result file. Expected one that has " + ", ".join(f"'{key}' ({program})" for key, program, _ in KINDS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="JSON files of the benchmarks")
    parser.add_argument("-o", "--output", required=True, help="the page to write")
    args = parser.parse_args()
    page = Page()
    try:
        for path in args.files:
            if os.path.exists(args.output) and os.path.exists(path) and os.path.samefile(path, args.output):
                raise Bad(f"{path} is both a result file and the page to write")
            add(page, path)
        try:
            with open(args.output, "w", encoding="utf-8") as f:
                f.write(page.html())
        except OSError as e:
            raise Bad(f"{args.output} cannot be written: {e.strerror}") from None
    except Bad as e:
        sys.exit(f"report.py: {e}")


if __name__ == "__main__":
    main()
