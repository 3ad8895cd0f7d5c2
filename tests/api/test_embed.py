"""server/embed.py: the files embedded in the front end are the originals, byte for byte."""

import os
import shlex
import subprocess
import sys

from http_support import ROOT


def test_any_byte_is_embedded_as_it_is(tmp_path):
    every = bytes(range(256)) * 2 + b'"\\??/\n'
    (tmp_path / "any-bytes.bin").write_bytes(every)
    (tmp_path / "empty.css").write_bytes(b"")
    (tmp_path / "small.yaml").write_text("{a: [1, ä]}")
    names = ["any-bytes.bin", "empty.css", "small.yaml"]
    subprocess.run([sys.executable, ROOT / "server/embed.py", tmp_path / "made.c", *(tmp_path / n for n in names)], check=True)
    symbols = ["embedded_any_bytes_bin", "embedded_empty_css", "embedded_small_yaml"]
    (tmp_path / "main.c").write_text('#include <stdio.h>\n#include "server/embedded.h"\n'
                                     + "".join(f"extern const embedded_file {s};\n" for s in symbols) + "int main(void)\n{\n"
                                     + "".join(f"\tfwrite({s}.data, 1, {s}.bytes + 1, stdout);\n" for s in symbols) + "\treturn 0;\n}\n")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    for sign in ("-fsigned-char", "-funsigned-char"):
        subprocess.run([*compiler, "-std=c17", "-Wall", "-Wextra", "-Werror", sign, "-I", ROOT, "-o", tmp_path / "program",
                        tmp_path / "main.c", tmp_path / "made.c"], check=True)
        found = subprocess.run([tmp_path / "program"], capture_output=True, check=True).stdout
        assert found == every + b"\0" + b"\0" + b'{"a":[1,"\\u00e4"]}' + b"\0"
