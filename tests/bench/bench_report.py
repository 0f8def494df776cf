#!/usr/bin/env python3
"""Does bench/common/report.py work: python3 bench_report.py FOLDER OPS TRAINING TIMEIT LM DECODE SWITCHBACK FRAGMENTED. OPS
and TRAINING are results of bench_ops and bench_training, the others programs, of which small results are made in FOLDER. Puts all on a
page, and checks that the page is whole, refers to nothing outside it, and has its text within its plots; then what it says of files
that are none.
"""
import copy, html.parser, json, os, random, re, shutil, subprocess, sys
import xml.etree.ElementTree as ElementTree

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
REPORT = os.path.join(BENCH, "common", "report.py")
CHARACTER, LINE = 6.7, 9  # no text of a plot is wider, or higher


def check(holds, what):
    if not holds:
        sys.exit(f"bench_report: {what}")


def report(files, output):
    return subprocess.run([sys.executable, REPORT, *files, "-o", output], capture_output=True, text=True)


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.targets, self.ids, self.headings = [], [], 0

    def handle_starttag(self, tag, attributes):
        check(tag not in ("script", "link", "img", "iframe", "object", "embed", "image", "use"), f"the page has a <{tag}>")
        self.headings += tag == "h2"
        for key, value in attributes:
            if key in ("href", "src", "xlink:href"):
                self.targets.append(value)
            elif key == "id":
                self.ids.append(value)


def boxes_of_text(svg):
    for t in svg.iter("text"):
        x, y, width = float(t.get("x")), float(t.get("y")), CHARACTER * len(t.text or "")
        anchor = set((t.get("class") or "").split())
        yield (x - width if "e" in anchor else x - width / 2 if "m" in anchor else x), y, width, t.text


def check_plot(svg):
    name, (_, _, width, height) = svg.get("aria-label"), map(float, svg.get("viewBox").split())
    texts = list(boxes_of_text(svg))
    for x, y, wide, text in texts:
        check(x > -1 and x + wide < width + 1 and LINE - 2 < y <= height, f"'{text}' is not within the plot '{name}'")
    texts.sort(key=lambda t: t[1])
    for i, (x, y, wide, text) in enumerate(texts):
        for x2, y2, wide2, text2 in texts[i + 1:]:
            if y2 - y >= LINE:
                break
            check(x + wide <= x2 or x2 + wide2 <= x, f"'{text}' and '{text2}' overlap in the plot '{name}'")
    for path in svg.iter("path"):
        for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.e+]+)", path.get("d")):
            check(-1 < float(x) < width + 1 and -1 < float(y) < height + 1, f"a path leaves the plot '{name}': M{x} {y}")
        for number in re.findall(r"nan|inf|None", path.get("d")):
            check(False, f"{number} in a path of '{name}'")


def checked_page(files, output):
    """The plots of the page of these files, by name."""
    run = report(files, output)
    check(run.returncode == 0, f"status {run.returncode}: {run.stderr}")
    with open(output, encoding="utf-8") as f:
        page = f.read()
    check("http:" not in page and "https:" not in page and "url(" not in page and "@import" not in page, "the page refers to another")
    links = Links()
    links.feed(page)
    check(links.headings == len(files), f"{links.headings} sections of {len(files)} files")
    check(len(set(links.ids)) == len(links.ids), "an id comes twice")
    check(len(links.targets) > len(files) and {t.removeprefix("#") for t in links.targets} <= set(links.ids), "a link leads nowhere")
    check(len(page) < 2_000_000, f"{len(page)} bytes")
    tree = ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))  # it is XML, too
    shown = {d.text for d in tree.iter("dd")}
    for path in files:
        check(path in shown, f"{path} has no section")
    plots = {}
    for svg in tree.iter("svg"):
        check_plot(svg)
        plots[svg.get("aria-label")] = svg
    return plots


def titles(svg):
    return "\n".join(t.text for t in svg.iter("title"))


def big_trace(path, threads=8, events=4000):
    """Ten thousand times as many as a page is wide cannot all be shown; each thread is busy to the end."""
    draw, found = random.Random(1), [{"ph": "M", "pid": 10, "tid": 0, "name": "process_name", "args": {"name": "kernels of cpu"}}]
    for thread in range(threads):
        found.append({"ph": "M", "pid": 10, "tid": thread, "name": "thread_name", "args": {"name": f"thread {thread}"}})
        for i in range(events):
            found.append({"ph": "X", "pid": 10, "tid": thread, "name": f"op<{i % 7}> & co", "ts": i * 10.0,
                          "dur": draw.choice((0.1, 4.0, 9.9)),
                          "args": {"op": "linear", "scope": draw.choice(("gpt.h.3.mlp.fc", "gpt.wte", ""))}})
    found += [{"ph": "C", "pid": 10, "name": "live bytes of cpu", "ts": i * 1.0, "args": {"bytes": 7 if i != 777 else 123_456_789}}
              for i in range(10 * events)]
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"traceEvents": found, "otherData": {"notes": ["a note with < and \u0001"]}}, f)


def big_grid(path, output):
    """The document's 142 rows, with times that are made up: in some layers SwitchBack is slower, and below the axis."""
    with open(path, encoding="utf-8") as f:
        d = json.load(f)
    rows = []
    for number, (dim, wm) in enumerate(((1024, 4), (1280, 4), (1408, 4), (1408, 4.3637), (1664, 4), (1664, 4.9231), (2048, 4),
                                        (4096, 4), (8096, 4))):
        for batch in (1024 << i for i in range(8)):
            for switch, row in enumerate(d["grid"]):
                sizes = (dim, round(dim * wm))[::-1 if switch else 1]
                standard = 1e-9 * batch * dim
                rows.append({**row, "dim_in": sizes[0], "dim_out": sizes[1], "wm": wm, "batch_size": batch, "switch": bool(switch),
                             "time_standard": standard, "time_rowwise": 1.3 * standard, "time_global": standard * (1.4 - number / 10)})
    with open(output, "w", encoding="utf-8") as f:
        json.dump({**d, "grid": rows}, f)


def main():
    folder, ops, training, timeit, lm, decode, switchback, fragmented = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    at = lambda name: os.path.join(folder, name)
    tiny = ["--size", "tiny", "--batch", "1", "--context", "8", "--vocab", "40"]
    shutil.copy(ops, at("ops.json"))
    shutil.copy(training, at("training.json"))
    for command in ([timeit, "--sizes", "tiny", "--batch", "2", "--context", "8", "--vocab", "50", "--json", at("timeit.json")],
                    [decode, "--arch", "nano", "--prompt", "2", "--tokens", "3", "--rounds", "1", "--json", at("decode.json")],
                    [switchback, "--dims", "16", "--batch", "4", "--repeat", "1", "--quick", "--json", at("switchback.json")],
                    [fragmented, "--sizes", "64,96", "--batches", "1,2", "--fragments", "2,8", "--warmup", "1", "--steps", "1", "--json",
                     at("fragmented.json")],
                    [lm, *tiny, "--answers", "--json", at("lm.json"), "--trace", at("trace.json")]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    common = {"machine": {"cpu": "a <CPU>", "cpus": 2}, "torch": "2.0", "date": "2026-01-01T00:00:00Z"}
    write = lambda name, d: json.dump(d, open(at(name), "w", encoding="utf-8"))
    write("torch.json", {**common, "rows": [{"name": "add 2x2 f32", "seconds": 1e-6, "torch_seconds": 4e-6, "ratio": 4,
                                             "torch_compiled_seconds": None}]})
    write("torch_timeit.json", {**common, "rows": [{"name": "tiny_forward", "seconds": 2e-3, "torch_seconds": 1e-3, "ratio": 0.25,
                                                    "all": {"eager": 3e-3, "compiled": 2e-3},
                                                    "torch_all": {"fused eager": 1e-3, "fused compile": 9}}]})
    write("run.json", {"stages": {"build": {"status": 0, "seconds": 400}, "tests": {"status": 1, "seconds": 3}}, "gpu": {"name": "H"}})
    write("tokenizer.json", {**common, "encoding": [{"tokenizer": "gpt2", "text": "a.txt", "runs": [{"threads": 1, "mb_per_second": 40.5}]}]})
    write("clients.json", {**common, "tiktoken": "0", "tokenizers": "0", "clients": [
        {"tokenizer": "gpt2", "text": "a", "rates": [{"program": p, "threads": 1, "mb_per_second": x} for p, x in (("tapegrad", 9), ("tiktoken", 3))]}]})
    big_grid(at("switchback.json"), at("grid.json"))
    names = ["ops", "training", "switchback", "grid", "fragmented", "timeit", "lm", "decode", "trace", "torch", "torch_timeit", "run",
             "tokenizer", "clients"]
    files = [at(f"{name}.json") for name in names] + [os.path.join(BENCH, "results", "cpu", "xeon_torch_training.json")]
    plots = checked_page(files, at("report.html"))
    with open(files[-1], encoding="utf-8") as f:
        mean = json.load(f)["geometric_mean"]
    check(f"mean {mean:.2f}×" in [t[3] for t in boxes_of_text(plots["ratios"])], "the geometric mean is another")
    for run in ("forward, document, f32", "train, document, f32", "train, flash, f32", "train, fused, f32", "train, fused, bf16"):
        check(f"timeline of {run}" in plots and f"memory of {run}" in plots, f"{run} has no timeline, or no memory")
    saved = titles(plots["time saved, global"])  # of the later file
    check("-40.0 %" in saved and "40.0 %" in saved and "batch 131072" in saved and "batch 8192" not in saved, f"savings are others:\n{saved}")
    parameters = titles(plots["parameters, 64: folded, eager"])
    check("linear, batch 1: " in parameters and "train, batch 2: " in parameters and "inference, batch 1: " in parameters,
          f"lines are missing:\n{parameters}")
    told = titles(plots["timeline of train, document, f32"])
    for part in ("forward_pass", "layer_1", "attention_sublayer", "optimizer_step"):
        check(part in told, f"'{part}' is not in the timeline:\n{told}")
    drawn = {cls for path in plots["timeline of train, document, f32"].iter("path") for cls in path.get("class", "").split()}
    parts = drawn & {f"p{i}" for i in range(12)}  # short kernels may be too narrow for a name, or part of a neighbour
    check(len(parts) >= 3, f"kernels of {len(parts)} parts of the model are in the timeline")
    for plot in ("Timeline", "The last profiled_step", "kernel time by part", "bandwidth", "tiny", "phases of train, fused, bf16",
                 "stages", "decoding", "encoding", "clients", "products", "quantising", "time saved, rowwise", "share of quantising", "layers as a whole",
                 "steps of layers", "forward, 64: separate, eager", "backward, 96: folded, eager", "peak memory, 96: separate, eager",
                 "parameters, 64: folded, eager", "peaks"):
        check(plot in plots, f"there is no plot '{plot}'")

    results = os.path.join(BENCH, "results", "cpu")  # as bench/README.md shows it
    committed = checked_page([os.path.join(results, name) for name in sorted(os.listdir(results))], at("results.html"))
    check("linear kinds" in committed, "the losses of linear layers of several kinds are not on the page of all results")

    big_trace(at("big.json"))
    big = checked_page([at("big.json")], at("big.html"))
    shapes = len(list(big["Timeline"].iter("path")))
    check(100 < shapes < 6000, f"{shapes} shapes in the timeline of a large trace")
    check("peak 123 MB" in [t[3] for t in boxes_of_text(big["live bytes of cpu"])], "the peak of memory is thinned away")
    check("op<3> & co" in titles(big["Timeline"]), "names are not shown as they are")

    def fails(words, content, name="bad.json", output="bad.html"):
        if content is not None:
            with open(at(name), "w", encoding="utf-8") as f:
                f.write(content if isinstance(content, str) else json.dumps(content))
        run = report([at("run.json"), at(name)], at(output))
        named = at(name if name == "bad.json" else "") in run.stderr
        check(run.returncode == 1 and words in run.stderr and named and "Traceback" not in run.stderr
              and not os.path.exists(at("bad.html")), f"not '{words}': status {run.returncode}, {run.stderr}")

    with open(at("lm.json"), encoding="utf-8") as f:
        lacking = json.load(f)
    sys.path.insert(0, os.path.dirname(REPORT))
    from report_plots import PARTS
    check(lacking["runs"][0]["timeline"]["parts"] == list(PARTS), "report_plots.py has other parts of the model than bench_lm_profile")
    no_phases, no_number = copy.deepcopy(lacking), copy.deepcopy(lacking)
    del no_phases["runs"][0]["phases"]
    no_number["runs"][0]["peak_bytes"] = None
    fails("is not JSON: ", "{")
    fails("is not JSON: NaN is no number", '{"rows": [NaN]}')
    fails("is not JSON: ", "[" * 100_000)
    fails("is no result file. Expected one that has 'traceEvents' (a trace of our profiler), 'runs' (bench_lm_profile)", {"lines": []})
    fails("is a file of bench/switchback/training.py without results", {"rows": []})
    fails("is no result file", [1, 2])
    fails("is a file of bench_ops without results", {"bandwidth": [], "rows": []})
    fails("is a file of bench_switchback without results", {"grid": []})
    fails("is a file of bench_fragmented without results", {"cells": []})
    fails("has the key 'runs' of a file of bench_lm_profile, and is none: 'phases' is missing", no_phases)
    fails("has the key 'runs' of a file of bench_lm_profile, and is none: ", no_number)
    os.remove(at("bad.json"))
    fails("cannot be read: No such file", None)
    fails("cannot be written: No such file", None, "run.json", os.path.join("no", "such", "report.html"))
    fails("is both a result file and the page to write", None, "run.json", "run.json")


if __name__ == "__main__":
    main()
