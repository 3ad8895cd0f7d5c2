#!/usr/bin/env python3
"""Turn files into C: embed.py OUT.c FILE... -- WEB_FILE...

Each FILE becomes the embedded_file `embedded_NAME` (server/embedded.h) with its bytes, a module as one script with
everything that it imports. A YAML file becomes a web_file of its JSON. NAME is the file's name with "_" for all but
letters and digits. The WEB_FILEs become the table `web_files`, each also compressed; `web_version` is the hash of them all, and replaces "{{files}}" in index.html with the path of the others."""
import gzip
import hashlib
import json
import pathlib
import re
import sys

import yaml


IMPORT = re.compile(r"^import \{(.*)\} from './(.*)\.js';\n", re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)


def bundle(path, done):
    """One script: each module is a function that returns what the module exports."""
    text, before = path.read_text(encoding="utf-8"), ""
    for _, name in IMPORT.findall(text):
        if name not in done:
            done.add(name)
            before += bundle(path.with_name(f"{name}.js"), done)
    exports = ", ".join(name for _, name in EXPORT.findall(text))
    text = EXPORT.sub(r"\1", IMPORT.sub(r"const {\1} = module_\2;\n", text))
    return f"{before}const module_{path.stem} = (() => {{\n{text}return {{{exports}}};\n}})();\n"


def content(path):
    if path.suffix == ".js":
        return bundle(path, set()).encode()
    if path.suffix != ".yaml":
        return path.read_bytes()
    return json.dumps(yaml.safe_load(path.read_text(encoding="utf-8")), separators=(",", ":"), ensure_ascii=True).encode()


def array(name, data):
    """Character constants: they have the value of their byte whether char is signed or not. The trailing NUL is not counted."""
    rows = (",".join(f"'\\x{byte:02x}'" for byte in data[i : i + 24]) + ",\n\t" for i in range(0, len(data), 24))
    return f"static const char {name}[] = {{\n\t{''.join(rows)}'\\0'}};\n"


def compressed(data):
    return gzip.compress(data, 9, mtime=0)


def embedded(path):
    name, data = "embedded_" + re.sub("[^A-Za-z0-9]", "_", path.name), content(path)
    made, plain = array(f"{name}_bytes", data), f"{{{name}_bytes, sizeof {name}_bytes - 1}}"
    if path.suffix != ".yaml":
        return f"{made}const embedded_file {name} = {plain};\n"
    return f'{made}{array(f"{name}_gzip", compressed(data))}const web_file {name} = {{"{path.name}", {plain}, {{{name}_gzip, sizeof {name}_gzip - 1}}}};\n'


def web_table(paths):
    """A row for each file: its name, its bytes and the same compressed."""
    files = {path.name: path.read_bytes() for path in paths}
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name} {len(data)} ".encode() + data)
    version = digest.hexdigest()[:16]
    files["index.html"] = files["index.html"].replace(b"{{files}}", f"web/{version}".encode())
    parts, rows = [], []
    for i, (name, data) in enumerate(sorted(files.items())):
        parts += [array(f"web_{i}", data), array(f"web_{i}_gzip", compressed(data))]
        rows.append(f'\t{{"{name}", {{web_{i}, sizeof web_{i} - 1}}, {{web_{i}_gzip, sizeof web_{i}_gzip - 1}}}},\n')
    return "".join(parts) + f'const char web_version[] = "{version}";\nconst web_file web_files[] = {{\n{"".join(rows)}\t{{0}}}};\n'


def main():
    target, *sources = sys.argv[1:]
    split = sources.index("--")
    parts = ["/* Made by server/embed.py. */\n#include \"server/embedded.h\"\n", *(embedded(pathlib.Path(source)) for source in sources[:split]),
             web_table([pathlib.Path(source) for source in sources[split + 1 :]])]
    pathlib.Path(target).write_text("\n".join(parts), encoding="ascii")


main()
