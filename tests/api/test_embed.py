"""server/embed.py: the files embedded in the front end are the originals, byte for byte."""

import gzip
import os
import re
import shlex
import subprocess
import sys

from http_support import ROOT


PRINTER = """#include <stdio.h>
#include <string.h>
#include "server/embedded.h"
%s
int main(void)
{
%s	return 0;
}
"""


def built(folder, files, web, prints):
    """The output of a program with these files. prints: its statements."""
    names = ["embedded_" + re.sub("[^A-Za-z0-9]", "_", path.name) for path in files]
    subprocess.run([sys.executable, ROOT / "server/embed.py", folder / "made.c", *files, "--", *web], check=True)
    (folder / "main.c").write_text(PRINTER % ("".join(f"extern const {'web_file' if path.suffix == '.yaml' else 'embedded_file'} {name};\n" for name, path in zip(names, files)), "".join(f"\t{line};\n" for line in prints(names))))
    for sign in ("-fsigned-char", "-funsigned-char"):
        subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-std=c17", "-Wall", "-Wextra", "-Werror", sign, "-I", ROOT, "-o", folder / f"program{sign}",
                        folder / "main.c", folder / "made.c"], check=True)
    found = {subprocess.run([folder / f"program{sign}"], capture_output=True, check=True).stdout for sign in ("-fsigned-char", "-funsigned-char")}
    assert len(found) == 1
    return found.pop()


def test_any_byte_is_embedded_as_it_is(tmp_path):
    every = bytes(range(256)) * 2 + b'"\\??/\n'
    (tmp_path / "any-bytes.bin").write_bytes(every)
    (tmp_path / "empty.css").write_bytes(b"")
    (tmp_path / "small.yaml").write_text("{a: [1, ä]}")
    (tmp_path / "index.html").write_text("")
    files = [tmp_path / name for name in ("any-bytes.bin", "empty.css", "small.yaml")]
    found = built(tmp_path, files, [tmp_path / "index.html"], lambda names: [f"fwrite({name}.data, 1, {name}.bytes + 1, stdout)" for name in [*names[:2], f"{names[2]}.plain"]])
    assert found == every + b"\0" + b"\0" + b'{"a":[1,"\\u00e4"]}' + b"\0"
    small = built(tmp_path, files, [tmp_path / "index.html"], lambda names: [f"fwrite({names[2]}.gzip.data, 1, {names[2]}.gzip.bytes, stdout)"])
    assert gzip.decompress(small) == b'{"a":[1,"\\u00e4"]}'


def test_the_files_of_the_page_have_the_hash_of_them_all_in_their_path(tmp_path):
    every = bytes(range(256))
    (tmp_path / "x.js").write_bytes(every)
    versions = set()
    for page in ("{{files}}/x.js", "{{files}}/x.js!"):
        (tmp_path / "index.html").write_text(page)
        for form in ("plain", "gzip"):
            said = built(tmp_path, [], [tmp_path / "x.js", tmp_path / "index.html"], lambda _: [f"fwrite(web_files[1].{form}.data, 1, web_files[1].{form}.bytes, stdout)"])
            assert (gzip.decompress(said) if form == "gzip" else said) == every
        shown, version = built(tmp_path, [], [tmp_path / "x.js", tmp_path / "index.html"], lambda _: ['printf("%s\\n%s", web_files[0].plain.data, web_version)']).decode().split("\n")
        assert shown == page.replace("{{files}}", f"web/{version}")
        versions.add(version)
    assert len(versions) == 2


def test_a_module_is_one_script_with_its_imports(tmp_path):
    (tmp_path / "index.html").write_text("")
    (tmp_path / "leaf.js").write_text("export const one = 1;\nexport function two() { return 2; }\n")
    (tmp_path / "middle.js").write_text("import {one} from './leaf.js';\nexport const three = one + 2;\n")
    (tmp_path / "top.js").write_text("import {three} from './middle.js';\nimport {one, two} from './leaf.js';\nconsole.log(one, two(), three);\n")
    script = built(tmp_path, [tmp_path / "top.js"], [tmp_path / "index.html"], lambda names: [f'fputs({names[0]}.data, stdout)']).decode()
    assert not re.search(r"^(import|export) ", script, re.M) and script.count("export") == 0
    order = re.findall(r"const module_(\w+) =", script)
    assert sorted(order) == ["leaf", "middle", "top"] and order.index("leaf") < order.index("middle") < order.index("top")
