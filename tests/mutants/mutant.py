"""A change of a file, and a program of the tests that has it. For run.py and switch.py."""
import functools, os, pathlib, re, shutil, subprocess, sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCHEDULES = "0", "1"  # forward and at once; backward and as late as possible


@functools.cache
def lines_of(file):
    return (ROOT / file).read_text().splitlines()


def code_of(line):
    return line.split("//")[0].rstrip()


class Mutant:
    """A line of a file and what takes its place; kernel: which file to compile with it; tests: the (TG_CASES, test
    cases) that must find it."""

    def __init__(self, file, kernel, why, tests, was, now):
        self.file, self.kernel, self.why, self.tests = file, kernel, why, tests
        self.was, self.now = was, now

    def __str__(self):
        return f"{self.file}: {self.why}: {self.was!r} -> {self.now!r}"

    def place(self):
        """Its line, and the number of it."""
        nth, was = re.fullmatch(r"(?:@(\d+) )?(.*)", self.was).groups()
        at = [i for i, s in enumerate(lines_of(self.file)) if s.strip() == was]
        if nth:
            at = at[int(nth) - 1 : int(nth)]
        if len(at) != 1:
            sys.exit(f"{self.file} has {len(at)} lines {self.was!r}, not one: mend {self}")
        return lines_of(self.file)[at[0]], at[0]

    def text(self):
        lines = list(lines_of(self.file))
        lines[self.place()[1]] = self.now
        return "\n".join(lines) + "\n"


def read_list(path):
    """Entries: '# file [in kernel file] | cases | tests | what is broken', then '- line' and '+ replacement'."""
    mutants, head, was = [], None, None
    for number, s in enumerate(path.read_text().splitlines(), 1):
        if s.startswith("## ") or not s.strip():
            continue
        if s.startswith("# "):
            where, cases, tests, why = [p.strip() for p in s[2:].split("|", 3)]
            file, _, kernel = where.partition(" in ")
            head = (file, kernel or file, why, (cases, tests))
        elif s.startswith("- ") and head:
            was = s[2:].strip()
        elif s.startswith("+") and was is not None:
            mutants.append(Mutant(*head, was, s[1:].strip()))
            was = None
        else:
            sys.exit(f"{path}:{number}: cannot read {s!r}")
    return mutants


def run(command, limit, **more):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=limit, **more)
    except subprocess.TimeoutExpired:
        return None


def test(program, cases, tests, schedule=SCHEDULES[0], limit=1000, **more):
    """To the first failure."""
    environment = dict(os.environ, TG_EMULATE_SCHEDULE=schedule, **more)
    if cases != "all":
        environment["TG_CASES"] = cases
    return run([program, f"-tc={tests}", "-aa=1"], limit, env=environment)


def failure(result):
    """How the tests failed, or None."""
    if result is None:
        return "hangs"
    if report := re.search(r"\[simt\] ([a-z ]+):", result.stdout):
        return report[1]
    return "wrong result" if result.returncode else None


class Built:
    """A program of the tests in which files have other texts; compile() and link() return what is said, '' if all is
    well."""

    def __init__(self, config, work):
        self.config, self.work, self.objects, self.program = config, work, {}, str(work / "tests")
        shutil.rmtree(work, ignore_errors=True)

    def write(self, file, text):
        path = self.work / "include" / "tapegrad" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def bytes_of(self, kernel):
        """Of its object in the build."""
        return sum(os.path.getsize(o) for o in self.config["core"] if o.endswith(f"/{kernel}.o"))

    def compile(self, kernel, more=()):
        changed = self.work / "include" / "tapegrad" / kernel
        rule = self.config["cpp" if kernel.endswith(".cpp") else "cu"]
        includes = [self.work / "include", *(d for d in rule["includes"] if d and d != "/usr/include")]
        command = self.config["compiler"] + self.config["flags"] + [o for o in rule["options"] if o]
        if os.path.exists(rule["header"] + ".gch"):
            command += ["-include", rule["header"]]
        command += [*more, *(f"-D{d}" for d in rule["definitions"] if d), *(f"-I{d}" for d in includes)]
        target = str(self.work / (kernel.replace("/", "_") + ".o"))
        done = run(command + ["-w", "-o", target, "-c", str(changed if changed.exists() else ROOT / kernel)], 1200)
        self.objects[kernel] = target
        return "too slow" if done is None else done.stdout if done.returncode else ""

    def link(self, more=()):
        others = [o for o in self.config["core"] if not any(o.endswith(f"/{k}.o") for k in self.objects)]
        if len(others) + len(self.objects) != len(self.config["core"]):
            sys.exit(f"not one object of the build for each of {list(self.objects)}")
        command = self.config["compiler"][-1:] + list(self.objects.values()) + list(more) + self.config["objects"]
        done = run(command + others + self.config["libraries"] + ["-o", self.program], 600)
        return "too slow" if done is None else done.stdout if done.returncode else ""
