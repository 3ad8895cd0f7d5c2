#!/usr/bin/env python3
"""Generate additive_client/_sync.py from _async.py by removing the asynchronous keywords. `--check` compares instead."""

import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).parent / "additive_client"
WORDS = [(r"\basync (def|with|for) ", r"\1 "), (r"\bawait ", ""), (r"\bAsync([A-Z])", r"\1"), (r"\basynccontextmanager", "contextmanager"),
         (r"\b__a(enter|exit)__", r"__\1__"), (r"\baiter_bytes", "iter_bytes"), (r"\.a(close|read)\(", r".\1("), (r"\basyncio\b", "time"),
         (r"\n\n`_sync.py` is generated from this file by make_sync.py.", "\n\nGenerated from `_async.py` by make_sync.py."),
         (r"import time\nimport contextlib\nimport json\nimport pathlib\n", "import contextlib\nimport json\nimport pathlib\nimport time\n")]


def made():
    text = (FOLDER / "_async.py").read_text()
    for word, other in WORDS:
        text = re.sub(word, other, text)
    return text


if sys.argv[1:] == ["--check"]:
    sys.exit((FOLDER / "_sync.py").read_text() != made() and "_sync.py differs from the output of make_sync.py")
(FOLDER / "_sync.py").write_text(made())
