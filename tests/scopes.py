#!/usr/bin/env python3
"""Whether a scope that ends at once, `tg::NoGradScope();`, gets a warning: python3 tests/scopes.py COMPILER INCLUDE.
Tries each constructor of each class of the public headers that acts until its destructor."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
VALUES = "SmallVec Span Trace Context Storage Value MappedFile Descriptor CommWatch CommJobs ContiguousInputs".split()

headers, left, code = set(), ["tapegrad/models/tapegrad.h", "tapegrad/models/tools.h"], []
while left:
    path = ROOT / left.pop().removeprefix("tapegrad/")
    if path in headers or not path.exists():
        continue
    headers.add(path)
    left += re.findall(r"#include <(tapegrad/[^>]+)>", path.read_text())
    text = re.sub(r"//[^\n]*", "", path.read_text())
    for name, bases, body in re.findall(r"(?<!>)\n(?:class|struct) (\w+)([^;{]*)\{(.*?)\n\}", text, re.S):
        constructor = r"(?<![~\w])" + name + r"\(((?:[^()]|\([^()]*\))*)\)(?! = (?:delete|default))"
        body = body.split("private:")[0]
        acts = re.search(r"(?<!virtual )~" + name + r"\(", body) and name not in VALUES
        if acts or re.search(r"\w(Scope|Range|Lock|Guard)$", name) or "ScopedValue<" in bases:
            for made in re.findall(constructor, body):
                if name + "&" not in made and made != "std::move(o":
                    parts = [a.split("=")[0].strip() for a in made.split(",") if a.strip()]
                    kinds = [re.sub(r"(?<=[\s&*>])(?<!const )\w+$", "", a) for a in parts]
                    code.append(f"{name}({', '.join(f'any<{k}>()' for k in kinds)});")
program = "#include <tapegrad/tools.h>\nusing namespace tg;\nusing namespace detail;\ntemplate <class T> T any();\n"
run = subprocess.run([sys.argv[1], "-std=c++20", "-Wall", "-fsyntax-only", f"-I{sys.argv[2]}", "-xc++", "-"], text=True,
                     input=program + "void statements() {\n" + "\n".join(code) + "}", capture_output=True)
warned = run.stderr.count("warning: ignoring")
if run.returncode or warned != len(code) or warned < 15:
    sys.exit(f"{code}\n{run.stderr}\n{warned} warnings of {len(code)}: add [[nodiscard]] to each constructor")
print(f"{warned} constructors of scopes warn when their object is dropped")
