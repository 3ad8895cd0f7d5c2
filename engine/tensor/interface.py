#!/usr/bin/env python3
"""Hash of the interface between the engine and a plug-in: interface.py OUT.h

The hash covers backend.h, the headers of ops and all headers of ours that these include, without comments and spacing.
It changes with the ops and their order, parameter structs, the table of functions and statuses. OUT.d lists the files, for
make. Run at the root."""
import glob
import hashlib
import re
import sys

ROOTS = ["engine/tensor/backend.h", "engine/tensor/ops.h", "engine/tensor/panel.h", *sorted(glob.glob("engine/tensor/ops/*.h"))]
NOT_CODE = re.compile(r'("(?:\\.|[^"\\])*")|/\*.*?\*/|//[^\n]*|\s+', re.DOTALL)


def code(text):
    """Each comment or gap as one space."""
    return NOT_CODE.sub(lambda m: m[1] or " ", re.sub(r"\\\n", " ", text))


def closure(roots):
    """The files and what they include of ours, each once, in the order of a walk."""
    files = {}
    waiting = list(reversed(roots))
    while waiting:
        name = waiting.pop()
        if name not in files:
            with open(name, encoding="utf-8") as f:
                files[name] = f.read()
            waiting += reversed(re.findall(r'^\s*#\s*include\s+"(engine/[^"]+)"', files[name], re.MULTILINE))
    return files


def main():
    target = sys.argv[1]
    files = closure(ROOTS)
    # Collapsed once more: a comment between two gaps is no third.
    text = "\n".join(re.sub(" +", " ", code(text)) for text in files.values())
    value = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) & 0x7FFFFFFF
    with open(target, "w", encoding="utf-8") as f:
        f.write("/* Made by engine/tensor/interface.py. */\n" f"enum {{ BACKEND_ABI = 0x{value:08x} }};\n")
    with open(target.removesuffix("h") + "d", "w", encoding="utf-8") as f:
        f.write(f"{target}: {' '.join(files)}\n" + "".join(f"{name}:\n" for name in files))


main()
