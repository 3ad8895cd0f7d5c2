#!/usr/bin/env python3
"""Turn files into C: embed.py OUT.c FILE...

Of each the bytes as they are, of YAML its JSON: the embedded_file `embedded_NAME` (server/embedded.h), NAME being that of the
file with "_" for all but letters and digits."""
import json
import pathlib
import re
import sys

import yaml


def content(path):
    if path.suffix != ".yaml":
        return path.read_bytes()
    return json.dumps(yaml.safe_load(path.read_text(encoding="utf-8")), separators=(",", ":"), ensure_ascii=True).encode()


def embedded(path):
    """Character constants: they have the value of their byte whether char is signed or not. The trailing NUL is not counted."""
    data = content(path)
    name = "embedded_" + re.sub("[^A-Za-z0-9]", "_", path.name)
    rows = (",".join(f"'\\x{byte:02x}'" for byte in data[i : i + 24]) + ",\n\t" for i in range(0, len(data), 24))
    return (f"static const char {name}_bytes[] = {{\n\t{''.join(rows)}'\\0'}};\n"
            f"const embedded_file {name} = {{{name}_bytes, sizeof {name}_bytes - 1}};\n")


def main():
    target, *sources = map(pathlib.Path, sys.argv[1:])
    parts = ["/* Made by server/embed.py. */\n#include \"server/embedded.h\"\n", *map(embedded, sources)]
    target.write_text("\n".join(parts), encoding="ascii")


main()
