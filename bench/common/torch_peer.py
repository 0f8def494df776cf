"""Comparison with PyTorch: a process that answers requests with times, and a table. Both sides alternate, with equal
threads and in several rounds, so that machine noise hits both. Each side's fastest way by its median counts; the ratio
is the median over the rounds of the peer's time over ours, above 1 if ours is faster. A round does not count if other
work took too much of the processors. A way that fails or exceeds --limit is missing from its row, and every row is
printed and written at once. For each compare_*.py; the pages of their folders have the commands."""
import argparse, functools, json, math, os, queue, statistics, subprocess, sys, tempfile, threading, time

from results_file import write

PRECISIONS = ("highest", "high", "medium")  # precisions of f32 GEMMs


def numbers(*default):
    """A flag of parse(): a list of numbers."""
    return {"type": lambda text: [int(word) for word in text.split(",")], "default": list(default)}


def words(known, default=None):
    """A flag of parse(): a list of these words."""
    def parsed(text):
        for word in (found := text.split(",")):
            if word not in known:
                raise argparse.ArgumentTypeError(f"there is no '{word}': {', '.join(known)}")
        return found
    return {"type": parsed, "default": list(default or known), "help": f"a list of {', '.join(known)}"}


def one_of(*known):
    """A flag of parse(): one of these words, the first by default."""
    return {"choices": known, "default": known[0]}


def parse(doc, program, ways_of=None, rounds=3, seconds=None, steps=None, threads=None, **flags):
    """Parses the common flags and `flags`, {name: default or arguments of add_argument()}; then PyTorch's process
    serves ways_of(torch, request, args), others return. The program's name is required except there. With `seconds`,
    rows have --filter and no --threads; steps: the numbers of untimed and timed ones."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("program", nargs="?", help=program)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, default=rounds)
    if seconds:
        parser.add_argument("--filter", default="", help="only rows with one of these in their name: softmax,add")
        parser.add_argument("--seconds", type=float, default=seconds, help="for each row, way and round")
    else:
        parser.add_argument("--threads", type=int, default=threads or len(os.sched_getaffinity(0)))
    if steps:
        parser.add_argument("--warmup", type=int, default=steps[0], help="steps before the timed ones")
        parser.add_argument("--steps", type=int, default=steps[1], help="timed ones, for each way and round")
    for name, flag in flags.items():
        parser.add_argument("--" + name.replace("_", "-"),
                            **(flag if isinstance(flag, dict) else {"type": type(flag), "default": flag}))
    parser.add_argument("--cpu-time", action="store_true", help="one thread each, by its processor time")
    parser.add_argument("--limit", type=float, help="seconds of a run of ours, and of the peer's ways of a row")
    parser.add_argument("--commit", default="", help="what was built, kept in the JSON file")
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--serve", type=int, metavar="THREADS", help=argparse.SUPPRESS)  # run PyTorch's process
    args = parser.parse_args()
    if not args.program and not args.serve:
        parser.error(f"name the program {program}")
    args.now = time.process_time if args.cpu_time else time.perf_counter
    if args.cpu_time:
        args.threads = 1
    if args.serve:
        serve(args, lambda torch, request: ways_of(torch, request, args))
        sys.exit()
    return args, parser.error


LEAST_SHARE = 0.9  # CPU share before and after a round
SPIN = "import time\nwall = time.perf_counter()\nown = time.process_time()\n" \
       "while time.perf_counter() < wall + 0.2: pass\nprint((time.process_time() - own) / (time.perf_counter() - wall))"


def share_of_processors(threads):
    """This program's share of `threads` processors: loops that run together for a fifth of a second."""
    loops = [subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) for _ in range(threads)]
    return statistics.fmean(float(loop.communicate()[0]) for loop in loops)


failures = []  # modes missing from their rows


def missing(*what):
    failures.append(": ".join(what))
    print(failures[-1], file=sys.stderr, flush=True)


class Peer:
    """A process of this command with --serve, which runs serve(). On a GPU it starts while ours is measured."""

    def __init__(self, args, threads=None):
        self.threads, self.limit = threads or args.threads, args.limit
        self.start()
        if args.device == "cpu":
            self.version

    def start(self):
        self.process = subprocess.Popen([sys.executable, *sys.argv, "--serve", str(self.threads)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()

        def listen(lines=self.lines, stdout=self.process.stdout):
            for line in stdout:
                lines.put(line)
            lines.put("null")

        threading.Thread(target=listen, daemon=True).start()

    @functools.cached_property
    def version(self):
        found = self.read()
        if not found:
            missing("PyTorch", "it does not start with this Python")
        return found and found["version"]

    def read(self, seconds=None):
        """The next line of its output; None if it ended, or said nothing for that time."""
        try:
            return json.loads(self.lines.get(timeout=seconds and max(0, seconds)))
        except queue.Empty:
            return None

    def __call__(self, request):
        """serve()'s answer to the request: {way: seconds}, for the ways that ran."""
        if not self.version:
            return {}
        if self.process.poll() is not None:
            self.start()
            self.read()
        times, begin = {}, time.monotonic()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            while (line := self.read(self.limit and self.limit - time.monotonic() + begin)) is not None:
                if not line:
                    return times
                times.update(line)
        except BrokenPipeError:
            pass
        missing("PyTorch", json.dumps(request), f"no answer after {time.monotonic() - begin:.0f} s")
        self.process.kill()
        self.process.wait()
        return times


def serve(args, prepare):
    """The loop of that process: prepare(torch, request) returns {way: function that measures seconds}; a repeated
    request reruns them."""
    try:
        import torch
    except ImportError as e:
        print(f"PyTorch: {e}", file=sys.stderr)
        return
    torch.set_num_threads(args.serve)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision(getattr(args, "matmul_precision", PRECISIONS[0]))
    args.wait = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    print(json.dumps({"version": torch.__version__}), flush=True)
    current, ways = None, {}
    for line in sys.stdin:
        if line != current:
            ways = {}  # frees memory first
            # Otherwise a function compiled for many shapes becomes slow, then eager.
            torch._dynamo.reset()
            current, ways = line, prepare(torch, json.loads(line))
        for way in list(ways):
            try:
                print(json.dumps({way: ways[way]()}), flush=True)
            except Exception as e:  # not available here
                del ways[way]
                print(f"PyTorch, {line.strip()}, {way}: {type(e).__name__}: {str(e).splitlines()[0]}", file=sys.stderr)
        print("{}", flush=True)


def timer(args, make, sample):
    """A function that measures runs of make()'s result (made at the first call): the median seconds per run, over
    samples of about `sample` seconds and at least one run; each sample ends synchronised."""
    run, now = None, args.now

    def timed(repeats):
        start = now()
        for _ in range(repeats):
            run()
        args.wait()
        return now() - start

    def measure():
        nonlocal run
        if run is None:
            run = make()
            for _ in range(3):
                run()
        timed(1)
        repeats = max(1, min(10_000, int(sample / max(timed(1), 1e-7))))
        start = now()
        while now() - start < args.seconds / 3:
            timed(repeats)
        times, start = [], now()
        while len(times) < 9 or now() - start < args.seconds:
            times.append(timed(repeats) / repeats)
        return statistics.median(times)

    return measure


def median_of_steps(args, step):
    for _ in range(args.warmup):
        step()
    return statistics.median(step() for _ in range(args.steps))


class Failed(SystemExit):
    """A run of our program failed: the first line of its error, which ends the script if nothing catches it."""


def report_of(args, flags, path):
    """Runs our program with --json, and reads the file."""
    threads = getattr(args, "threads", None) if args.device == "cpu" else None
    try:
        run = subprocess.run([args.program, "--device", args.device, *map(str, flags), "--json", path]
                             + (["--cpu-time"] if args.cpu_time else ["--threads", str(threads)] if threads else []),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=args.limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"no end after {args.limit:.0f} s") from None
    if run.returncode:
        raise Failed((run.stderr.strip().splitlines() or [f"status {run.returncode}"])[0])
    for line in run.stderr.splitlines():
        if line.startswith("[compile]"):  # why a compiled function is no graph
            print(line, file=sys.stderr)
    with open(path) as f:
        return json.load(f)


def rounds_of(args, threads, name, one):
    """Calls one() in each round: (results, shares of the processors). Makes up to twice the rounds, and drops those
    on a busy machine if enough others remain."""
    share = lambda: share_of_processors(threads) if args.device == "cpu" and not args.cpu_time else 1.0
    rounds, quiet, before = [], [], share()
    while len(quiet) < args.rounds and len(rounds) < 2 * args.rounds:
        print(f"{name}: round {len(rounds) + 1} begins, {len(quiet)} of {args.rounds} quiet ones done", file=sys.stderr)
        result, after = one(), share()
        rounds.append((result, min(before, after)))
        before = after
        quiet = [r for r in rounds if r[1] >= LEAST_SHARE]
        if not result:
            return [], []
    results, shares = zip(*(quiet if len(quiet) >= args.rounds else rounds))
    return list(results), list(shares)


def in_turn(args, threads, requests, one):
    """For each {name: request} calls one(name, request, folder) in each round: our report, and for each row
    (our {mode: seconds}, the peer's {way: seconds}). Yields for each row of all rounds: its name, both sides' rounds,
    the processor shares, our last report."""
    with tempfile.TemporaryDirectory() as folder:
        for name, request in requests.items():
            def attempt():
                try:
                    return one(name, request, folder)
                except Failed as e:
                    missing(name, str(e))

            rounds, shares = rounds_of(args, threads, name, attempt)
            for row in rounds[0][1] if rounds else []:
                if all(row in rows for _, rows in rounds):
                    yield row, *map(list, zip(*(rows[row] for _, rows in rounds))), shares, rounds[-1][0]


def by_row(times):
    """{row: {way: seconds}} of {"row|way": seconds}."""
    found = {}
    for name, seconds in times.items():
        row, way = name.split("|")
        found.setdefault(row, {})[way] = seconds
    return found


UNKNOWN = {"machine": {"cpu": "?", "backend": "our program failed", "compiler": "?"}, "date": "", "device": "?",
           "clock": "wall"}


def in_modes(args, name, flags, folder, flag="--mode"):
    """{mode: our report}, for the modes that run."""
    reports = {}
    for mode in ("eager", "compiled"):
        try:
            reports[mode] = report_of(args, [flag, mode, *flags], os.path.join(folder, "ours.json"))
        except Failed as e:
            missing(name, mode, str(e))
    return reports


def both_modes(args, requests, flags, seconds, peers):
    """in_turn() with a row for each request: ours eager and compiled by flags(request) and seconds(report, request),
    and the ways of all peers."""
    def one(name, request, folder):
        reports = in_modes(args, name, flags(request), folder)
        return ({**[UNKNOWN, *reports.values()][-1], "torch": peers[0].version},
                {name: ({mode: seconds(report, request) for mode, report in reports.items()},
                        {way: t for peer in peers for way, t in peer(request).items()})})

    return in_turn(args, max(p.threads for p in peers), requests, one)


def medians(rounds):
    """The medians of {way: seconds} over the rounds, for ways in all of them."""
    return {way: statistics.median(r[way] for r in rounds) for way in rounds[0] if all(way in r for r in rounds)}


def compared(key, name, mine, theirs, shares):
    """A row: each side's fastest way by its median over the rounds, the median of the peer's time over ours, and
    the fastest eager PyTorch over our eager run; None without a way of one side. It contains all rounds."""
    fastest = lambda times: min(times.items(), key=lambda way: way[1], default=(None, None))
    ours, peer = medians(mine), medians(theirs)
    (mode, seconds), (way, peer_seconds) = fastest(ours), fastest(peer)
    eager = [t for way, t in peer.items() if "eager" in way]
    return {"name": name, "seconds": seconds, "mode": mode, f"{key}_seconds": peer_seconds, f"{key}_way": way,
            "ratio": statistics.median(t[way] / m[mode] for m, t in zip(mine, theirs)) if ours and peer else None,
            "eager_ratio": min(eager) / ours["eager"] if eager and "eager" in ours else None, "all": ours,
            f"{key}_all": peer, "share": min(shares),
            "rounds": [{"ours": m, key: t, "share": s} for m, t, s in zip(mine, theirs, shares)]}


def table(args, measured, key="torch", **settings):
    """Prints and writes a row for each (name, our rounds, peer's rounds, shares, report), and a summary, with the last
    report's machine and peer: "torch" is PyTorch's version, "peer" another program. Exits with 1 if a way is missing,
    or if a row ran on a busy machine; such a row is shown but not judged."""
    rows, title = [], "PyTorch" if key == "torch" else "peer"
    number = lambda x, form: format(x, form) if x is not None else "-".rjust(int(form.split(".")[0]))
    mean, least = None, None
    for name, mine, theirs, shares, report in measured:
        if not rows:
            m = report["machine"]
            print(f"{m['cpu']}, {report['device']}: {m['backend']}, {m['compiler']}; "
                  f"{title} {report[key] or 'none'}; {args.rounds} rounds"
                  + ", one thread each, processor time" * args.cpu_time)
            print(f"{'':46} {'tapegrad us':>12} {'':10} {title + ' us':>12} {'':30} {'ratio':>7} {'eager':>7}")
        row = compared(key, name, mine, theirs, shares)
        micro = lambda seconds: number(seconds and 1e6 * seconds, "12.1f")
        busy = "" if row["share"] >= LEAST_SHARE else f"  busy: {100 * row['share']:.0f} % of the processors"
        print(f"{name:46} {micro(row['seconds'])} {row['mode'] or 'none':10} {micro(row[f'{key}_seconds'])} "
              f"{row[f'{key}_way'] or 'none':30} {number(row['ratio'], '7.2f')} {number(row['eager_ratio'], '7.2f')}"
              f"{busy}", flush=True)
        rows.append(row)
        judged = [r for r in rows if r["share"] >= LEAST_SHARE and r["ratio"]]
        if judged:
            mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in judged))
            least = min(judged, key=lambda r: r["ratio"])
        if args.json:
            write(args.json, {**{k: report[k] for k in ("machine", "date", "device", "clock", key)}, **settings,
                              "geometric_mean": mean, "smallest": least and least["ratio"], "rows": rows}, args.commit)
    if least:
        print(f"geometric mean {mean:.2f}, smallest {least['ratio']:.2f} ({least['name']})")
    if failures or not rows:
        sys.exit(f"{len(failures)} ways or rows are missing: {failures[0] if failures else 'nothing was measured'}")
    busy = sum(r["share"] < LEAST_SHARE for r in rows)
    if busy:
        sys.exit(f"{busy} of {len(rows)} rows are not judged: other work took more than a tenth of the processors in "
                 "more than half of their rounds. Run it on a quiet machine, or with --cpu-time.")
