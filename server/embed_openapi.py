#!/usr/bin/env python3
"""Turn proto/openapi.yaml into a C array of its JSON: embed_openapi.py IN.yaml OUT.c"""
import json
import sys

import yaml


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as f:
        text = json.dumps(yaml.safe_load(f), separators=(",", ":"), ensure_ascii=True).encode()
    rows = (", ".join(map(str, text[i : i + 32])) for i in range(0, len(text), 32))
    with open(target, "w", encoding="ascii") as f:
        f.write("/* Made by server/embed_openapi.py from proto/openapi.yaml. */\n#include <stddef.h>\n\n")
        f.write("extern const char openapi_json[];\nextern const size_t openapi_json_bytes;\n\n")
        f.write("const char openapi_json[] = {\n\t" + ",\n\t".join(rows) + "};\n")
        f.write("const size_t openapi_json_bytes = sizeof openapi_json;\n")


main()
