"""Result files in the format of write_json() in program.cpp: one row per line."""
import datetime, json, platform, sys


def cpu():
    with open("/proc/cpuinfo") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def lines_of(d):
    """The text: a line per key, and per element of a list of objects."""
    def value(x):
        if isinstance(x, list) and x and isinstance(x[0], dict):
            return "[\n" + ",\n".join(map(json.dumps, x)) + "\n]"
        return json.dumps(x)
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {value(x)}" for k, x in d.items()) + "\n}\n"


def write(path, d, commit=None):
    """Adds commit and command if a commit is given."""
    origin = {} if commit is None else {"commit": commit, "command": " ".join(["python", *sys.argv])}
    with open(path, "w", encoding="utf-8") as f:
        f.write(lines_of({**origin, **d}))
