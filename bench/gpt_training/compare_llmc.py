#!/usr/bin/env python3
"""Training steps of GPT-2 124M on the CPU: `tapegrad train` and the trainers of llm.c and llm.cpp.

    pip install numpy safetensors
    git clone https://github.com/karpathy/llm.c; git clone --recursive https://github.com/zhangpiu/llm.cpp

A step reads the batch and runs forward, backward and AdamW without decay, in f32, like their train_gpt2. Copies of
their sources are built with their own build and each compiler; the changes are printed: batch, tokens, steps, no
validation, no samples. All start from the same random weights and see the same batch in every step; the script fails
unless losses agree. Times are those that each program prints.
"""
import array, os, random, re, shutil, subprocess, sys, tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from gpt2_weights import SIZES, weights, write_folder
from torch_peer import parse, rounds_of, table, words
from train_runs import report_of, seconds_of, train

RUNS = {"4x64": (4, 64), "16x128": (16, 128)}  # sequences, tokens in each
SIZE = SIZES["124m"]
NEAR = 2e-3  # losses of about 10; another summation order in f32
DATA = "dev/data/tinyshakespeare/tiny_shakespeare_{}.bin"


def trainer_changes(run, steps):
    batch, tokens = RUNS[run]
    return {"int B = 4;": f"int B = {batch};", "int T = 64;": f"int T = {tokens};", "step <= 40;": f"step < {steps};",
            "if (step % 10 == 0) {": "if (0) {", "if (step > 0 && step % 20 == 0) {": "if (0) {"}


class LlmC:
    name, trainer, program = "llm.c", "train_gpt2.c", "train_gpt2"

    def __init__(self, source, compiler, threads, folder):
        self.source, self.compiler = source, compiler
        self.folder = os.path.join(folder, f"{self.name}_{compiler}")
        shutil.copytree(source, self.folder, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        self.env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        os.symlink(os.path.join(folder, "gpt2_124M.bin"), os.path.join(self.folder, "gpt2_124M.bin"))
        os.makedirs(os.path.join(self.folder, os.path.dirname(DATA)), exist_ok=True)

    def change(self, file, changes):
        with open(os.path.join(self.source, file)) as f:
            text = f.read()
        for old, new in changes.items():
            if text.count(old) != 1:
                sys.exit(f"{file} of {self.name} has {old!r} {text.count(old)} times: the script knows another version")
            text = text.replace(old, new)
            print(f"{self.name}, {file}: {old.strip()!r} becomes {new.strip()!r}", file=sys.stderr)
        with open(os.path.join(self.folder, file), "w") as f:
            f.write(text)

    def call(self, *command):
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{self.name}: {' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
        return done.stdout

    def build(self, run, steps):
        self.change(self.trainer, trainer_changes(run, steps))
        self.make()

    def make(self):
        self.call("make", self.program, f"CC={self.compiler}", "CI=true")

    def steps(self):
        """[(loss, seconds)] of a run."""
        lines = re.findall(r"train loss (\S+) \(took (\S+) ms\)", self.call(os.path.join(self.folder, self.program)))
        return [(float(loss), float(ms) / 1e3) for loss, ms in lines]


class LlmCpp(LlmC):
    name, trainer, program = "llm.cpp", "llmcpp/train_gpt2.cpp", "build/llmcpp/train_gpt2_cpu"

    def __init__(self, source, compiler, threads, folder):
        super().__init__(source, compiler, threads, folder)
        self.change("CMakeLists.txt", {"LANGUAGES C CXX CUDA": "LANGUAGES C CXX"})
        self.change("llmcpp/CMakeLists.txt", {"        profiler\n": ""})
        self.change("llmcpp/nn.hpp", {"16 /* number of threads in pool */": str(threads),
                                      "12 /* number of threads to use */": str(threads)})
        eigen = os.path.join(self.folder, "third_party/eigen")
        if not os.path.exists(os.path.join(eigen, "unsupported")):
            os.rmdir(eigen)
            os.symlink("/usr/include/eigen3", eigen)
        cxx = {"gcc": "g++"}.get(compiler, compiler.replace("clang", "clang++"))
        self.call("cmake", "-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_C_COMPILER={compiler}",
                  f"-DCMAKE_CXX_COMPILER={cxx}")

    def make(self):
        self.call("cmake", "--build", "build", "--target", "train_gpt2_cpu", "--parallel", str(os.cpu_count()))


def write_weights(path, w):
    """Writes llm.c's format, with a padded vocabulary: Linear weights (out, in), stored contiguously over all
    blocks."""
    padded, blocks = -(-SIZE["vocab"] // 128) * 128, range(SIZE["layers"])
    header = np.zeros(256, np.int32)
    header[:8] = 20240326, 3, SIZE["context"], SIZE["vocab"], SIZE["layers"], SIZE["heads"], SIZE["width"], padded
    with open(path, "wb") as f:
        header.tofile(f)
        w["wte.weight"].tofile(f)
        np.zeros((padded - SIZE["vocab"], SIZE["width"]), np.float32).tofile(f)
        w["wpe.weight"].tofile(f)
        for layer in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            for kind in ("weight", "bias"):
                for i in blocks:
                    np.ascontiguousarray(w[f"h.{i}.{layer}.{kind}"].T).tofile(f)
        w["ln_f.weight"].tofile(f), w["ln_f.bias"].tofile(f)


def write_tokens(run, folder, programs):
    """One window of random tokens for ours; repeated for each sequence in theirs."""
    batch, tokens = RUNS[run]
    draw = random.Random(1)
    window = [draw.randrange(SIZE["vocab"]) for _ in range(tokens)]
    with open(os.path.join(folder, "tokens.bin"), "wb") as f:
        array.array("H", window + window[:1]).tofile(f)
    header = array.array("i", [20240520, 1, batch * tokens + 1] + 253 * [0])
    for program in programs:
        for part in ("train", "val"):
            with open(os.path.join(program.folder, DATA.format(part)), "wb") as f:
                header.tofile(f)
                array.array("H", batch * window + window[:1]).tofile(f)


def ours(args, run, folder):
    """{mode: log} of a run, and its output."""
    batch, tokens = RUNS[run]
    return train(args, folder, {"data": os.path.join(folder, "tokens.bin"), "model": os.path.join(folder, "hf"),
                                "batch": batch, "window": tokens, "lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
                                "weight-decay": 0, "clip-norm": 0})


def theirs(programs, run, logs):
    """{compiler: log} of a run, with losses checked against ours."""
    found = {}
    for program in programs:
        steps = program.steps()
        for mode, log in logs.items():
            off = max(abs(loss - step["loss"]) for (loss, _), step in zip(steps, log, strict=True))
            if not off <= NEAR:
                sys.exit(f"{run}: losses of {program.name} are {[loss for loss, _ in steps]}, and ours, {mode}, "
                         f"{[step['loss'] for step in log]}")
        print(f"{run}: losses of {program.name} by {program.compiler} are ours within {off:.1e}", file=sys.stderr)
        found[program.compiler] = [{"ms": 1e3 * s} for _, s in steps]
    return found


def main():
    args, error = parse(__doc__, "tapegrad", steps=(2, 5), llmc={"help": "a checkout of llm.c"},
                        llmcpp={"help": "a checkout of llm.cpp with its submodules; Eigen may be the system's"},
                        runs=words(RUNS), compilers={"type": lambda text: text.split(","), "default": ["gcc", "clang"]})
    args.dtype = "f32"
    sources = [(kind, source) for kind, source in ((LlmC, args.llmc), (LlmCpp, args.llmcpp)) if source]
    if args.cpu_time or args.device != "cpu":
        error("the programs measure wall time alone, on the CPU: leave --cpu-time and --device out")
    if not sources:
        error("name a checkout by --llmc or --llmcpp")

    def measured():
        with tempfile.TemporaryDirectory() as folder:
            w = weights(SIZE)
            write_folder(os.path.join(folder, "hf"), SIZE, w)
            write_weights(os.path.join(folder, "gpt2_124M.bin"), w)
            del w
            builds = [[kind(source, compiler, args.threads, folder) for compiler in args.compilers]
                      for kind, source in sources]
            for run in args.runs:
                for programs in builds:
                    write_tokens(run, folder, programs)
                    for program in programs:
                        program.build(run, args.warmup + args.steps)

                    def one():
                        logs, printed = ours(args, run, folder)
                        peer = theirs(programs, run, logs)
                        return seconds_of(logs, args.warmup), seconds_of(peer, args.warmup), printed

                    name = f"{run}, {programs[0].name}"
                    rounds, shares = rounds_of(args, args.threads, name, one)
                    peers = " and ".join(kind.name for kind, _ in sources)
                    yield (name, [mine for mine, _, _ in rounds], [peer for _, peer, _ in rounds], shares,
                           report_of(args, rounds[-1][2], peer=peers))

    table(args, measured(), key="peer", threads=args.threads, steps=args.steps, dtype=args.dtype)


if __name__ == "__main__":
    main()
