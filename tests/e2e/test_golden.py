"""The engine against golden numbers: everything additive-eval writes, in every form."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "reference"))

import check_golden  # noqa: E402
import further  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("ADDITIVE_BIN", ROOT / "build" / "bin")) / "additive-eval"
FILES = sorted((ROOT / "tests" / "data" / "golden").glob("*.safetensors"))
FILES += further.files("*.safetensors")


def test_there_are_golden_files():
    assert FILES


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_engine_agrees_with_golden_numbers(path, backend):
    found = check_golden.Golden(path, PROGRAM, backend).check()
    assert found and check_golden.failures(found) == []


@pytest.mark.emulated
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_cuda_backend_agrees_with_golden_numbers(path, precision, monkeypatch):
    """On the emulated device, unless ADDITIVE_PLUGIN_DIR names a real one's plug-in."""
    plugin = os.environ.get("ADDITIVE_PLUGIN_DIR", str(PROGRAM.parent.parent / "emulator"))
    monkeypatch.setenv("ADDITIVE_PLUGIN_DIR", plugin)
    golden = check_golden.Golden(path, PROGRAM, "cuda", precision)
    found = golden.check()
    assert found and check_golden.failures(found, golden.tolerance) == []
