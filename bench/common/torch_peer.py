"""PyTorch beside ours: its process, which answers requests with times, and what is made of rounds of them. No program.
Users: compare_torch_timeit.py, compare_torch_training.py."""
import json, math, statistics, subprocess, sys


class Peer:
    """A process of `script --serve ...` that runs answer(). The time to start it is not measured."""

    def __init__(self, script, *flags):
        self.process = subprocess.Popen([sys.executable, script, "--serve", *map(str, flags)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.version = self.read()["version"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("PyTorch's process ended")
        return json.loads(line)

    def __call__(self, request):
        """What answer() makes of the request: {way: seconds}."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()


def answer(torch, prepare):
    """In that process: prepare(request) gives a function that measures, which runs again when the request comes again."""
    print(json.dumps({"version": torch.__version__}), flush=True)
    current, measure = None, None
    for line in sys.stdin:
        if line != current:
            measure = None  # its memory is given back first
            torch._dynamo.reset()  # else one function that is compiled for many shapes becomes slow, and then eager
            current, measure = line, prepare(json.loads(line))
        print(json.dumps(measure()), flush=True)


def report_of(command, path):
    """Runs one of our programs, which writes a JSON file there, and reads it."""
    run = subprocess.run(command + ["--json", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    with open(path) as f:
        return json.load(f)


def medians(rounds):
    """Of {way: seconds} over the rounds, of the ways that are in all of them."""
    return {way: statistics.median(r[way] for r in rounds) for way in rounds[0] if all(way in r for r in rounds)}


def compared(name, mine, theirs):
    """A row: the fastest way of each side by its median over the rounds, and the median of PyTorch's time over ours."""
    fastest = lambda rounds: min(medians(rounds).items(), key=lambda way: way[1])
    if not medians(theirs):
        sys.exit(f"{name}: PyTorch ran in no way")
    (mode, seconds), (way, torch_seconds) = fastest(mine), fastest(theirs)
    return {"name": name, "seconds": seconds, "mode": mode, "torch_seconds": torch_seconds, "torch_way": way,
            "ratio": statistics.median(t[way] / m[mode] for m, t in zip(mine, theirs)),
            "all": medians(mine), "torch_all": medians(theirs)}


def add_flags(parser):
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--commit", default="", help="what was built, kept in the JSON file")
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--serve", type=int, metavar="THREADS", help="internal: be the process that runs PyTorch")


def finish(args, report, version, rows, **settings):
    """Prints what all rows come to, and writes them with the machine of one of our reports."""
    mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in rows))
    least = min(rows, key=lambda r: r["ratio"])
    print(f"geometric mean {mean:.2f}, smallest {least['ratio']:.2f} ({least['name']})")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"machine": report["machine"], "date": report["date"], "device": report["device"], "torch": version,
                       "commit": args.commit, "command": " ".join(["python", *sys.argv]), **settings,
                       "geometric_mean": mean, "smallest": least["ratio"], "rows": rows}, f, indent=1)
            f.write("\n")
