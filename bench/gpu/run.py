#!/usr/bin/env python3
"""Tests and measures the CUDA backend on a GPU within 510 s, with the programs of bench/gpu/pack.sh or of a build:

    bench/gpu/run.py [-o FOLDER] [-b BIN] [--seconds N] [--device cpu] [STAGE...]

FOLDER: $OUT, else bench/results/gpu/<date>. It gets table.txt, whose rows are printed as they come; run.json: GPU,
driver, date, commit, status of each program; logs.tgz: output and JSON of each program; big_profile.txt; gemm.txt: the
tuned algorithms. BIN: the programs of a build or of an unpacked kit instead of the kit.

Stages come in the order of their value, each with planned seconds, whose sum is below the limit. A stage may also use
the seconds that earlier ones left, and never those of a later one. The last rows name the stages that are missing and
the command of a second call. Needs python3, and torch for the comparisons: without it our figures are measured alone.
Without a GPU each stage reports that: a rehearsal. --device cpu measures small sizes on a CPU. Exits with 1 if a
program failed.
"""
import argparse, array, datetime, json, math, os, random, re, shutil, signal, statistics, subprocess, sys, tarfile
import tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor
from glob import glob

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PLANNED = {  # seconds
    "machine": 12,  # unpack, versions
    "smoke": 15,  # a test per foundation; it disables what fails
    "training": 15,  # losses on GPU and CPU, op by op and as a graph
    "big": 90,  # document 003's 2.7B step; a profile
    "gpt2": 75,  # GPT-2 124M, 64 x 1024 tokens, against PyTorch; presets
    "tests": 45,  # all test cases
    "timeit": 45,  # document 004's steps against PyTorch
    "variants": 55,  # the 2.7B step tuned, in 8 bits, with bf16 moments
    "finetune": 15,  # LoRA of rank 16 over the shape of Qwen3-0.6B
    "ops": 50,  # GEMMs, norms, attention, AdamW against PyTorch
    "lora": 25,  # document 000
    "switchback": 30,  # document 001
    "fragmented": 25,  # document 002
    "sanitizer": 120,  # compute-sanitizer, in a second call
}
FIRST = list(PLANNED)[1:-1]
SMOKE = (  # name, test cases; the variable to set if they fail
    ("device", "PTX: vectors*"),
    ("ptx", "PTX: cp_async*,PTX: ldmatrix*,PTX: mma*,PTX: named*,PTX: recip*,PTX: approx*"),
    ("wgmma", "PTX: TMA*", "TG_INT8_PRODUCTS", "mma"), ("add", "operands that repeat*"),
    ("cublaslt", "one shape with bias*"), ("chain", "chains: one kernel*"),
    ("graph", "graphs: inputs and kept*,graphs: branches*", "TG_CUDA_GRAPHS", "0"),
    ("int8", "products of codes on the device: exact*"), ("attention", "attention: every compiled*"))
KEEP = 10  # seconds at the end for the table and the files
LIBRARIES = ("libcublasLt.so.13", "libnvrtc.so.13", "libnvrtc-builtins.so.13.*", "libcupti.so.13", "libnccl.so.2")
PROMPTS = re.compile(r"\[device\]|rror|refus|cannot|skipped|missing")


def first_line(path, pattern=None):
    """The first line of a log that matches, else its last."""
    with open(path, errors="replace") as f:
        lines = [line.strip() for line in f if line.strip()] or ["no output"]
    return next((line for line in lines if (pattern or PROMPTS).search(line)), lines[-1])[:170]


class Run:
    def __init__(self, args):
        self.args, self.begin, self.failed, self.ends, self.used = args, time.monotonic(), False, [], {}
        self.out, self.work = os.path.abspath(args.out), tempfile.mkdtemp()
        self.stages = args.stages or FIRST
        scale = (args.seconds - KEEP) / sum(PLANNED[s] for s in ["machine", *self.stages])
        ends, at = {}, 0.0
        for stage in ["machine", *self.stages]:
            at += scale * PLANNED[stage]
            ends[stage] = at
        self.ends_at = ends
        os.makedirs(self.out, exist_ok=True)
        for name in ("table.txt", "run.json", "logs.tgz", "big_profile.txt", "gemm.txt"):
            if os.path.exists(os.path.join(self.out, name)):
                os.remove(os.path.join(self.out, name))
        for name in ("logs", "json", "lib", "start", "chains"):
            os.makedirs(os.path.join(self.work, name), mode=0o700)
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", "TG_CACHE_DIR": self.path("chains")}
        self.gpu = self.torch = self.commit = ""
        self.warming, self.free = [], threading.Event()
        self.small = args.device == "cpu"
        self.of_big = ["--arch", "nano" if self.small else "cs336-2.7b", "--dtype", "bf16", "--batch", "4"]

    def path(self, *parts):
        return os.path.join(self.work, *parts)

    def passed(self):
        return time.monotonic() - self.begin

    def row(self, name, text):
        line = f"{name:22} {text}"
        print(line, flush=True)
        with open(os.path.join(self.out, "table.txt"), "a") as f:
            f.write(line + "\n")

    def fail(self, name, text):
        self.failed = True
        self.row(name, text)

    def start(self, name, command, **env):
        with open(self.path("logs", name + ".log"), "a") as log:
            return subprocess.Popen(command, cwd=ROOT, env={**self.env, **env}, stdin=subprocess.DEVNULL, stdout=log,
                                    stderr=subprocess.STDOUT, start_new_session=True)

    def box(self, name, command, most=1e9, **env):
        """Runs a command for `most` seconds or until the stage ends: its status, 124 out of time, 99 not begun."""
        rest = min(most, self.ends_at[self.stage] - self.passed())
        if rest < 2:
            self.row(name, "not begun: the stage has no time left")
            return 99
        begin, log = time.monotonic(), self.path("logs", name + ".log")
        try:
            process = self.start(name, command, **env)
        except OSError as e:
            self.fail(name, str(e)[:150])
            return 127
        try:
            status = process.wait(rest)
        except subprocess.TimeoutExpired:
            status = 124
        end(process)
        seconds = time.monotonic() - begin
        self.ends.append((name, status, round(seconds, 1)))
        if status not in (0, 77):
            self.failed = True
            self.row(name, f"status {status} after {seconds:.0f} s: {first_line(log)}")
        with open(log, errors="replace") as f:
            for line in f:
                if "not as one graph:" in line and not re.search("TG_CUDA_GRAPHS=0|ops had other arguments", line):
                    self.fail(name, f"without a graph: {line.strip()[:150]}")
                    break
        return status

    def ours(self, program):
        return self.path("start", program)

    def on(self):
        return ["--device", self.args.device, "--commit", self.commit]

    def peer(self, name, most, folder, program, *flags, limit=30):
        """A program against PyTorch, by bench/<folder>/compare_torch.py: its file, {} without rows."""
        path = self.path("json", name + ".json")
        self.box(name, [sys.executable, f"bench/{folder}/compare_torch.py", self.ours(program), *self.on(), "--rounds",
                        "1", "--limit", str(limit), "--json", path, *map(str, flags)], most)
        if not os.path.exists(path):
            return {}
        with open(path) as f:
            report = json.load(f)
        for line in compared(report):
            self.row(name, line)
        return report

    def step(self, name, *flags, most=20, **env):
        """A median of whole training steps, by bench_step."""
        status = self.box(name, [self.ours("bench_step"), *self.on(), "--mode", "compiled", "--untimed", "4", "--steps",
                                 "10", "--json", self.path("json", name + ".json"), *map(str, flags)], most, **env)
        with open(self.path("logs", name + ".log"), errors="replace") as f:
            for line in f if status != 99 else ():
                if "median" in line:
                    self.row(name, line.strip()[:200])

    # --- stages -------------------------------------------------------------------------------------------------------
    def machine(self):
        kit, bin, lib = "build/gpu/kit.tar.xz", self.args.bin, None
        if not bin:
            try:
                with tarfile.open(os.path.join(ROOT, kit)) as t:
                    t.extractall(self.work)
            except OSError:
                self.row("machine", "there is no kit: bench/gpu/pack.sh makes it")
                sys.exit(1)
            bin = self.path("bin")
        if os.path.exists(paths := os.path.join(bin, os.pardir, "paths")):  # a kit, whose tests know these folders
            with open(paths) as f, open(os.path.join(bin, os.pardir, "commit")) as g:
                source, build = f.read().split()
                self.commit = g.read()[:9].strip()
            if not os.path.exists(source):
                os.makedirs(os.path.dirname(source), exist_ok=True)
                os.symlink(ROOT, source)
            os.makedirs(os.path.join(build, "tests"), exist_ok=True)
            lib = os.path.join(bin, os.pardir, "lib")
        else:
            git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
            self.commit = git.stdout.strip() or "unknown"
        # The kit's and CUDA's libraries, for our programs only: PyTorch loads its own versions.
        wheels = [d for p in sys.path for d in glob(os.path.join(p, "nvidia", "*", "lib"))]
        for name in LIBRARIES:
            found = [f for d in ("/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64", *wheels)
                     for f in glob(os.path.join(d, name))]
            if found:
                os.symlink(os.path.realpath(found[0]), self.path("lib", os.path.basename(found[0])))
        for library in glob(os.path.join(lib, "*")) if lib else []:
            if not os.path.exists(to := self.path("lib", os.path.basename(library))):
                os.symlink(os.path.realpath(library), to)
        missing = set()
        for program in filter(os.path.isfile, glob(os.path.join(bin, "*"))):
            with open(start := self.ours(os.path.basename(program)), "w") as f:
                f.write(f'#!/bin/sh\nexport LD_LIBRARY_PATH={self.path("lib")}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n'
                        f'exec {os.path.abspath(program)} "$@"\n')
            os.chmod(start, 0o755)
            needs = subprocess.run(["ldd", program], env={**self.env, "LD_LIBRARY_PATH": self.path("lib")},
                                   capture_output=True, text=True).stdout
            missing |= set(re.findall(r"(\S+) => not found", needs))
        facts = "nvidia-smi; lscpu; free -g; ls -l lib; start/tapegrad --version"
        with open(self.path("logs", "machine.log"), "w") as log:
            subprocess.run(["sh", "-c", facts], cwd=self.work, stdout=log, stderr=subprocess.STDOUT, timeout=30)
        ask = lambda *words: subprocess.run(words, capture_output=True, text=True).stdout.strip() \
            if shutil.which(words[0]) else ""
        if shutil.which("nvidia-smi"):
            self.gpu = ask("nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap",
                           "--format=csv,noheader").split("\n")[0]
            self.clocks = self.start("clocks", ["nvidia-smi", "-l", "1", "--format=csv,noheader,nounits",
                                                "--query-gpu=clocks.sm,power.draw,utilization.gpu"])
        self.torch = ask(sys.executable, "-c", "import torch; print('torch', torch.__version__)")
        what = f"{len(missing)} libraries missing" + ": " * bool(missing) + ", ".join(sorted(missing))
        (self.fail if missing else self.row)(
            "machine", f"{self.gpu or 'no GPU'}; {self.torch or 'no torch'}; {what}; commit {self.commit}")

    def smoke(self):
        right = 0
        for name, cases, *switch in SMOKE:
            status = self.box("smoke_" + name, [self.ours("tg_tests_cuda"), "-tc=" + cases], 40)
            log = self.path("logs", f"smoke_{name}.log")
            if name == "device" and status in (77, 127):
                return self.row("smoke", first_line(log))
            with open(log, errors="replace") as f:
                right += status == 0 and not re.search(r"\| +0 passed", f.read())
            if status and switch:
                self.env.update([switch])
                self.row("switch", f"{'='.join(switch)} from here on")
        self.row("smoke", f"{right} of {len(SMOKE)} right")

    def training(self):
        common = ("--data tests/data/prose.txt --tokenizer char --layers 3 --heads 3 --width 96 --context 64 --batch 8 "
                  "--max-steps 20 --warmup 5 --val-fraction 0 --eval-every 0 --dropout 0.1 --quiet --no-save").split()
        runs = {"cpu": ("cpu", "f32", "false")} | {
            ("graph_" if graph == "true" else "") + dtype: (self.args.device, dtype, graph)
            for dtype in ("f32", "bf16") for graph in ("false", "true")}
        logs = {}
        for name, (device, dtype, graph) in runs.items():
            self.box("train_" + name, [self.ours("tapegrad"), "train", *common, "--out", self.path("run_" + name),
                                       "--device", device, "--dtype", dtype, "--compile", graph])
            try:
                with open(self.path("run_" + name, "log.jsonl")) as f:
                    logs[name] = [json.loads(line)["loss"] for line in f]
            except OSError:
                pass
        cpu = logs.pop("cpu", [])
        far = [f"{name} off by {max(map(lambda a, b: abs(a - b), log, cpu), default=math.nan):.1e}"
               for name, log in logs.items()]
        same = [f"{d}: graph {'=' if logs[d] == logs['graph_' + d] else 'differs from'} eager" for d in ("f32", "bf16")
                if d in logs and "graph_" + d in logs]
        self.row("training", f"{len(cpu)} steps, beside the CPU: " + ("; ".join(far + same) or "no run on a GPU"))

    def big(self):
        own, tokens = self.path("json", "machine.json"), self.path("tokens.bin")
        self.box("rates", [self.ours("bench_ops"), "--device", self.args.device, "--quick", "--machine", own], 15)
        self.peer("big", 65, "gpt_training", "bench_step", "--runs", "nano" if self.small else "cs336_2.7b", "--dtype",
                  "bf16", "--ways", "eager fused" if self.small else "blocks fused,eager fused", "--warmup", 4,
                  "--steps", 10, limit=45)
        with open(tokens, "wb") as f:
            array.array("H", random.choices(range(10000), k=200000)).tofile(f)
        profile = self.path("json", "big_profile.json")
        settings = ("--vocab-size 10000 --compile true --max-steps 9 --warmup 0 --schedule constant --val-fraction 0 "
                    "--eval-every 0 --no-save").split()
        self.box("big_profile", [self.ours("tapegrad"), "train", *self.of_big, *settings, "--data", tokens, "--device",
                                 self.args.device, "--out", self.path("run_big"), "--profile", profile,
                                 *(["--machine", own] if os.path.exists(own) else [])], 40)
        if os.path.exists(profile + ".txt"):
            shutil.copy(profile + ".txt", os.path.join(self.out, "big_profile.txt"))
            with open(self.path("logs", "big_profile.log"), errors="replace") as f:
                for line in largest_ops(f.read()):
                    self.row("  time", line)
        if self.gpu:
            with open(self.path("logs", "clocks.log")) as f:
                seconds = [re.findall(r"[\d.]+", line) for line in f]
            busy = [s for s in seconds if len(s) == 3 and float(s[2]) > 50]
            for name, column, unit in (("SM clock", 0, "MHz"), ("power", 1, "W")):
                values = [float(v[column]) for v in busy] or [math.nan]
                self.row("  " + name, f"{min(values):.0f} to {max(values):.0f} {unit}, median "
                                      f"{statistics.median(values):.0f}, in {len(busy)} busy seconds")

    def gpt2(self):
        run, batch = ("nano", 12 * 64) if self.small else ("gpt2_64x1024", 64 * 1024)
        report = self.peer("gpt2", 1e9, "gpt_training", "bench_step", "--runs", run, "--dtype", "bf16", "--ways",
                           "compile fused", "--warmup", 4, "--steps", 10, limit=50)
        for row in report.get("rows", []):
            rate = lambda seconds: f"{batch / seconds:,.0f}" if seconds else "-"
            self.row("gpt2", f"tokens/s ours {rate(row['seconds'])}, torch {rate(row['torch_seconds'])}")
        sizes = ["--layers", 1, "--context", 32, "--batch", 1] if self.small else []
        for name in ("llmc", "track3"):
            self.step("gpt2_" + name, "--arch", "gpt2-124m-" + name, "--accumulate", 1, *sizes)

    def tests(self):
        program, size = self.ours("tg_tests_cuda"), 15
        counted = subprocess.run([program, "-c"], capture_output=True, text=True, env=self.env)
        found = re.search(r"unskipped test cases[^\d]*(\d+)", counted.stdout)
        if not found:
            said = (counted.stdout + counted.stderr).strip().split("\n")
            return self.fail("tests", f"status {counted.returncode}: {said[-1][:150]}")
        n = min(int(found[1]), self.args.cases or 10**6)
        os.makedirs(self.path("logs", "cases"), exist_ok=True)

        def run(first, last):
            """Runs cases from `first` to `last` in one process: its status, None if it did not begin."""
            rest = self.ends_at["tests"] - self.passed()
            if rest < 2:
                return None
            process = self.start(f"cases/{first}_{last}", [program, f"-f={first}", f"-l={last}", "-nc"], TG_THREADS="2")
            try:
                return process.wait(min(rest, 60))
            except subprocess.TimeoutExpired:
                return 124
            finally:
                end(process)

        with ThreadPoolExecutor(self.args.jobs) as pool:
            slices = [(k, min(k + size - 1, n)) for k in range(1, n + 1, size)]
            status = dict(zip(slices, pool.map(lambda s: run(*s), slices)))
            bad = [s for s in slices if status[s] not in (0, 77)]
            alone = [(k, k) for first, last in bad for k in range(first, last + 1)]
            again = dict(zip(alone, pool.map(lambda s: run(*s), alone)))
        right, late = (sum(s in of for s in again.values()) for of in ((0, 77), (None,)))
        self.row("tests", f"{n} cases in {len(slices)} processes, {len(bad)} of which failed; of their {len(alone)} "
                          f"cases alone {right} are right, {late} had no time; "
                          f"{sum(s == 77 for s in status.values())} processes found no device")
        for (k, _), code in again.items():
            if code not in (0, 77, None):
                log = self.path("logs", "cases", f"{k}_{k}.log")
                self.fail(f"  case {k}", f"status {code}: {first_line(log, re.compile('^TEST CASE:'))[11:90].strip()}: "
                                         f"{first_line(log)}")
        for (first, last) in bad:
            codes = {again[k, k] for k in range(first, last + 1)}
            if codes <= {0, 77}:
                self.fail(f"  cases {first}-{last}", f"status {status[first, last]} together, right alone: "
                          + first_line(self.path("logs", "cases", f"{first}_{last}.log")))

    def timeit(self):
        self.peer("timeit", 1e9, "gpt_timeit", "bench_gpt_timeit", "--computations", "forward_backward", "--ways",
                  "fused compile,fused eager", "--mixed", "True,False", "--warmup", 4, "--steps", 15,
                  *(["--sizes", "tiny"] * self.small))

    def variants(self):
        four = self.of_big
        self.step("big_batch16", *four[:-1], 16)
        self.step("big_tuned", *four, most=25, TG_AUTOTUNE="1", TG_GEMM_CACHE=os.path.join(self.out, "gemm.txt"))
        self.step("big_fp8", *four, "--linear", "fp8")
        self.step("big_moments", *four, "--moments", "bf16")
        self.step("big_split", *four, "--moments", "bf16", "--split-weights", "true")
        self.step("big_switchback", *four, "--linear", "switchback")
        self.step("big_in_line", *four, TG_PASSES="-branch")

    def finetune(self):
        self.step("finetune", "--lora-rank", 16, "--dtype", "bf16", "--layers", 1 if self.small else 28, "--heads", 16,
                  "--kv-heads", 8, "--head-dim", 128, "--width", 1024, "--ff-width", 3072, "--positions", "rope",
                  "--rope-theta", 1000000, "--norm", "rms_norm", "--activation", "swiglu", "--qk-norm", "true",
                  "--vocab-size", 1000 if self.small else 151936, "--context", 64 if self.small else 1024, "--batch",
                  1 if self.small else 4)

    def ops(self):
        rows = "softmax 3072" if self.small else "bf16,2560 tf32,attention,adamw"
        self.peer("ops", 1e9, "ops", "bench_ops", "--seconds", 0.03, "--filter", rows)

    def lora(self):
        for mode in ("compiled", "eager"):
            self.box("lora_" + mode, [self.ours("bench_training"), *self.on(), "--mode", mode, "--warmup", "0.1",
                                      "--target", "0.1", "--samples", "8", "--json",
                                      self.path("json", f"lora_{mode}.json")], 12)
        self.peer("lora", 1e9, "lora_training", "bench_training", "--seconds", 0.05, "--filter",
                  "complete_iteration,large_2048x2048")

    def switchback(self):
        dims, batch = (64, 64) if self.small else ("2048,4096", 16384)
        self.peer("switchback", 1e9, "switchback", "bench_switchback", "--dims", dims, "--batch", batch, "--only",
                  "linear,global", "--repeat", 8, "--ways", "compile")

    def fragmented(self):
        self.peer("fragmented", 1e9, "fragmented", "bench_fragmented", "--sizes", 64 if self.small else 2048,
                  "--batches", "1,16", "--fragments", 8, "--warmup", 4, "--steps", 20, "--ways",
                  "eager fused,compile fused")

    def sanitizer(self):
        if not shutil.which("compute-sanitizer"):
            return self.row("sanitizer", "skipped: there is no compute-sanitizer here")
        check = ["compute-sanitizer", "--target-processes", "all", "--error-exitcode", "1", "--tool"]
        memcheck, program = [*check, "memcheck", "--leak-check", "no"], self.ours("tg_tests_cuda")
        for name, command, env in (
                ("memcheck_ptx", [*memcheck, program, "-tc=PTX*"], {}),
                ("memcheck_ops", [*memcheck, program, "-tc=bf16 against f64*"],
                 {"TG_CASES": "attention,softmax.,rms_norm,cross_entropy,embedding,rope,swiglu"}),
                ("racecheck_ptx", [*check, "racecheck", program, "-tc=PTX*"], {})):
            if self.box(name, command, 60, **env) != 99:
                self.row(name, first_line(self.path("logs", name + ".log"), re.compile("ERROR SUMMARY")))

    # --- all ----------------------------------------------------------------------------------------------------------
    def warm(self):
        """Compiles PyTorch's functions in the background, into its disk cache."""
        def one(folder, requests, *flags):
            self.free.wait()
            process = subprocess.Popen(
                ["nice", "-n", "5", sys.executable, f"bench/{folder}/compare_torch.py", "--serve", "4", "--device",
                 self.args.device, *flags], cwd=ROOT, stdin=subprocess.PIPE, stdout=self.warm_log,
                stderr=self.warm_log, start_new_session=True, text=True)
            self.warming.append(process)
            process.communicate("".join(json.dumps(request) + "\n" for request in requests))

        once = ("--warmup", "1", "--steps", "1")
        chains = [
            [("gpt_training", ["cs336_2.7b"], *once, "--layers", "2", "--dtype", "bf16", "--ways", "blocks fused"),
             ("gpt_timeit", [[size, "forward_backward", mixed] for mixed in ("True", "False")
                             for size in ("small", "medium")], *once, "--ways", "fused compile")],
            [("gpt_training", ["gpt2_64x1024"], *once, "--dtype", "bf16", "--ways", "compile fused"),
             ("switchback", [[2048, 8192, 16384], [4096, 16384, 16384]], "--only", "linear,global", "--repeat", "1",
              "--ways", "compile"),
             ("fragmented", [[2048, 1, 8], [2048, 16, 8]], *once, "--ways", "compile fused")]]
        self.warm_log = open(self.path("logs", "warm.log"), "a")
        for chain in chains:
            threading.Thread(target=lambda jobs=chain: [one(*job) for job in jobs], daemon=True).start()

    def pause(self, number):
        (self.free.set if number == signal.SIGCONT else self.free.clear)()
        for process in self.warming:
            if process.poll() is None:
                os.killpg(process.pid, number)

    def finish(self):
        self.pause(signal.SIGKILL)
        if hasattr(self, "clocks"):
            end(self.clocks)
        rest = [s for s in FIRST + ["sanitizer"] if s not in self.used]
        for what, of in (("planned", PLANNED), ("used", self.used)):
            self.row(f"seconds {what}", ", ".join(f"{s} {of[s]:.0f}" for s in self.used) +
                     f"; {sum(of[s] for s in self.used):.0f} of {self.args.seconds}")
        if rest:
            self.row("second call", f"bench/gpu/run.py {' '.join(rest)}")
        self.save()
        shutil.rmtree(self.work, ignore_errors=True)

    def save(self):
        """Writes logs.tgz and run.json, after each stage: the machine may vanish."""
        with tarfile.open(os.path.join(self.out, "logs.tgz"), "w:gz") as t:
            for name in ("logs", "json"):
                t.add(self.path(name), name)
        keys = ("name", "driver_version", "memory.total", "compute_cap")
        with open(os.path.join(self.out, "run.json"), "w") as f:
            json.dump({"gpu": dict(zip(keys, filter(None, map(str.strip, self.gpu.split(","))))),
                       "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                       "commit": self.commit, "torch": self.torch, "seconds": self.used,
                       "stages": {name: {"status": status, "seconds": seconds, "command": "bench/gpu/run.py"}
                                  for name, status, seconds in self.ends}}, f, indent=1)

    def all(self):
        for self.stage in ["machine", *self.stages]:
            begin = self.passed()
            self.pause(signal.SIGCONT if self.stage in ("smoke", "training", "tests") else signal.SIGSTOP)
            try:
                getattr(self, self.stage)()
            except Exception as e:  # a fault of a stage must not end those after it
                self.fail(self.stage, f"{type(e).__name__}: {str(e)[:150]}")
            self.used[self.stage] = self.passed() - begin
            if self.stage == "machine" and self.gpu and self.torch and not self.args.stages:
                self.warm()
            self.save()


def end(process):
    """Ends a process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(2)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def compared(report):
    """Lines of a compare_torch.py file: its mean, and its rows, those with the smallest ratio first."""
    rows, mean = report["rows"], report["geometric_mean"]
    yield f"torch {report['torch'] or 'missing'} / ours, {len(rows)} rows: " + (
        f"{mean:.2f} in the mean, least {report['smallest']:.2f}" if mean else "none judged")
    for row in sorted(rows, key=lambda r: r["ratio"] or 0)[:12]:
        every = lambda times: ", ".join(f"{way} {1e3 * s:.3f}" for way, s in times.items()) or "none"
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        yield f"  {ratio} {row['name']}: ms ours {every(row['all'])}; torch {every(row['torch_all'])}"


def largest_ops(text):
    """The ten largest ops of `train --profile --machine`: milliseconds of a step and share of the machine's roof."""
    span = re.search(r"profile of steps (\d+) to (\d+)[^:]*: ([\d.,]+) (\w+) a step", text)
    if not span:
        return
    steps = int(span[2]) - int(span[1]) + 1
    yield f"a step of {span[3]} {span[4]}, by op:"
    for line in re.findall(r"^ +[\d.]+ +[\d,]+ +\d+ .*$", text, re.M)[:10]:
        share, total, calls, *_, roof, op = line.split()
        yield (f"{int(total.replace(',', '')) / 1e6 / steps:8.3f} ms {share:>5} %  {op}, {int(calls) // steps} calls, "
               f"{roof} % of the roof")


def main():
    cli = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cli.add_argument("-o", "--out", default=os.environ.get("OUT") or
                     os.path.join(ROOT, "bench/results/gpu", datetime.date.today().isoformat()))
    cli.add_argument("-b", "--bin", type=os.path.abspath, help="the programs of a build, or of an unpacked kit")
    cli.add_argument("--seconds", type=int, default=510, help="in all")
    cli.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    cli.add_argument("--cases", type=int, help="only the first N test cases")
    cli.add_argument("--jobs", type=int, default=16, help="processes of test cases at a time")
    cli.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(FIRST + ["sanitizer"]))
    args = cli.parse_args()
    for stage in args.stages:
        if stage not in [*FIRST, "sanitizer"]:
            cli.error(f"there is no stage '{stage}'; there are: {', '.join(FIRST + ['sanitizer'])}")
    if not args.stages and sum(PLANNED[s] for s in ["machine", *FIRST]) > args.seconds - KEEP:
        cli.error(f"--seconds {args.seconds} is less than the plan: name stages")
    run = Run(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        run.all()
    finally:
        run.finish()
    sys.exit(1 if run.failed else 0)


if __name__ == "__main__":
    main()
