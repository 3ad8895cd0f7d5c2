"""A plug-in of other sources is refused by the number of its interface, which engine/tensor/interface.py makes."""

import re
import shutil
import subprocess
import sys

import pytest

from http_support import ROOT


def number(folder):
    subprocess.run([sys.executable, ROOT / "engine/tensor/interface.py", folder / "abi.h"], cwd=folder, check=True)
    return re.search("0x[0-9a-f]{8}", (folder / "abi.h").read_text())[0]


@pytest.fixture
def tree(tmp_path):
    for folder in ("engine/tensor", "engine/base"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("name, old, new", [
    ("tensor/ops.def", "OP(add, ", "OP(plus, "),
    ("tensor/ops.h", "float alpha, smoothing;", "float smoothing, alpha;"),
    ("tensor/ops/sample.h", "float temperature, ", "double temperature, "),
    ("tensor/backend.h", "bool background;", "bool background, quiet;"),
    ("base/status.def", "STATUS(UNSUPPORTED,", "STATUS(MISSING,"),
])
def test_a_change_of_what_a_plugin_shares_with_the_engine_changes_the_number(tree, name, old, new):
    before = number(tree)
    replace(tree / "engine" / name, old, new)
    assert number(tree) != before


def test_a_comment_or_a_blank_line_does_not_change_the_number(tree):
    before = number(tree)
    replace(tree / "engine/tensor/ops.def", "OP(add,", "/* plus */\n\nOP(add,")
    replace(tree / "engine/tensor/backend.h", "struct backend {\n", "struct backend {\n\t// of a device\n")
    assert number(tree) == before
