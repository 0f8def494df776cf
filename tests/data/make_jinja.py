#!/usr/bin/env python3
"""Renders the templates of jinja.json in this folder anew by transformers, for tests/models/test_jinja.cpp.

    pip install transformers==5.24.0 jinja2==3.1.6
    python tests/data/make_jinja.py

A case is a list of a template and, unless it raises, its text and the byte ranges of `generation`. To add a case, add
a list of a template.
"""
import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

PATH = pathlib.Path(__file__).parent / "jinja.json"


def rendered(template, context):
    try:
        program = _compile_jinja_template(template)
        unused = {"tools": None, "documents": None, "add_generation_prompt": False}
        text, spans = _render_with_assistant_indices(program, **context, **unused)
        return [template, text, [[len(text[:i].encode()) for i in span] for span in spans]]
    except Exception:
        return [template]


fixture = json.loads(PATH.read_text())
cases = [rendered(case[0], fixture["context"]) for case in fixture["cases"]]
fixture["cases"] = [case for case in cases if len(case) == 1 or " at 0x" not in case[1]]  # no addresses
PATH.write_text(json.dumps(fixture, ensure_ascii=False, indent=0).replace("\n", "") + "\n")
