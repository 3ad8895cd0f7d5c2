"""tests/gpu/test_gpu.py on the emulated device: order, reruns, logs, the summary and the exit status, with programs that pass, fail,
crash and hang."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import BIN

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import kit as gpu_kit  # noqa: E402
import machine  # noqa: E402

REAL = ("attribution", "look_back")
# Each run adds the switches that it was given to a file.
PLANTED = """#!/bin/sh
echo "$0 wait=$ADDITIVE_CUDA_WAIT blocking=$CUDA_LAUNCH_BLOCKING" >>"$RECORD"
"""
FAILS = PLANTED + """
echo '[ RUN      ] a_test_that_passes'; echo '[       OK ] a_test_that_passes'
echo '[ RUN      ] a_test_that_is_left_out'; echo '[  SKIPPED ] a_test_that_is_left_out'
[ "$ADDITIVE_CUDA_WAIT" = 1 ] && exit 0
echo '[ RUN      ] a_test_that_fails'; echo '[  FAILED  ] a_test_that_fails'
echo '[  FAILED  ] tests: 1 test(s), listed below:'; echo '[  FAILED  ] a_test_that_fails'
exit 1
"""
CRASHES = PLANTED + """
echo '[ RUN      ] a_test_that_ends_the_program'
kill -SEGV $$
"""
HANGS = PLANTED + """
[ "$ADDITIVE_CUDA_WAIT" = 1 ] || exec sleep 100
"""
SANITIZER = """#!/bin/sh
echo "$0 $*" >>"$RECORD"
"""
EMULATOR = BIN.parent / "emulator" / "checked"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not EMULATOR.exists(), reason="no emulated device in this build")]


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def kit(tmp_path):
    folder = tmp_path / "kit"
    (folder / "unit").mkdir(parents=True)
    for name in REAL:
        (folder / "unit" / f"test_{name}").symlink_to(BIN.parent / "unit" / "cuda" / f"test_{name}")
    gpu_kit.write_versions(folder, toolkit="/nonexistent")
    return folder


def run(kit, *options, **environment):
    """(exit status, output, summary, output of planted programs)"""
    record, logs, tools = (kit.parent / name for name in ("record", "logs", "tools"))
    executable(tools / "compute-sanitizer", SANITIZER)
    given = {**os.environ, "ADDITIVE_EMULATOR": str(EMULATOR), "RECORD": str(record),
             "PATH": f"{tools}:{os.environ['PATH']}", **environment}
    for switch in ("ADDITIVE_CUDA_WAIT", "CUDA_LAUNCH_BLOCKING"):
        given.pop(switch, None)
    done = subprocess.run([sys.executable, ROOT / "tests" / "gpu" / "test_gpu.py", "--kit", kit, "--logs", logs, *options], env=given,
                          capture_output=True, text=True, timeout=600)
    summary = json.loads((logs / "summary.json").read_text()) if (logs / "summary.json").exists() else None
    recorded = record.read_text().replace(f"{kit}/unit/", "").replace(f"{tools}/", "") if record.exists() else ""
    return done.returncode, done.stdout + done.stderr, summary, recorded.splitlines()


def counts_of(summary):
    return [(p["name"], p["passed"], p["failed"], p["skipped"]) for p in summary["programs"]]


def test_programs_pass_in_their_order_two_at_a_time(kit):
    status, output, summary, _ = run(kit, "--emulated", "--jobs", "2", "--limit", "300")
    assert status == 0, output
    assert [p["name"] for p in summary["programs"]] == ["test_look_back", "test_attribution"]  # attribution rests on more
    assert all(p["passed"] and not p["failed"] and p["status"] == 0 and p["seconds"] > 0 for p in summary["programs"])
    assert summary["failed"] == [] and "test-gpu: 0 failed" in output
    assert "[       OK ]" in (kit.parent / "logs" / "test_look_back.log").read_text()


def test_a_failure_runs_again_launch_by_launch_and_then_blocking(kit):
    executable(kit / "unit" / "test_planted", FAILS)
    status, output, summary, recorded = run(kit, "--emulated", "--programs", "planted,look_back", "--limit", "300")
    assert status == 1
    assert recorded == ["test_planted wait= blocking=", "test_planted wait=1 blocking=", "test_planted wait= blocking=1"]
    assert counts_of(summary)[1:] == [("test_planted", 1, 1, 1), ("test_planted, each launch by itself", 1, 0, 1), ("test_planted, blocking", 1, 1, 1)]
    assert summary["programs"][0]["name"] == "test_look_back" and summary["programs"][0]["status"] == 0
    assert summary["failed"] == ["test_planted", "test_planted, blocking"]
    assert "a_test_that_fails" in output  # the end of its output
    logs = kit.parent / "logs"
    assert all((logs / name).exists() for name in ("test_planted.log", "test_planted_each_launch_by_itself.log", "test_planted_blocking.log"))


def test_programs_that_crash_or_hang_are_looked_at_by_the_sanitizer(kit):
    executable(kit / "unit" / "test_crash", CRASHES)
    executable(kit / "unit" / "test_hang", HANGS)
    status, output, summary, recorded = run(kit, "--emulated", "--programs", "crash,hang", "--limit", "5", "--jobs", "2")
    assert status == 1
    assert counts_of(summary)[0] == ("test_crash", 0, 1, 0)
    assert {p["name"]: p["status"] for p in summary["programs"]} == {
        "test_crash": -11, "test_hang": "killed after 5 s", "test_crash, each launch by itself": -11, "memcheck test_crash": 0,
        "test_hang, each launch by itself": 0, "test_hang, blocking": "killed after 5 s", "memcheck test_hang": 0}
    checked = [line for line in recorded if line.startswith("compute-sanitizer --tool memcheck")]
    assert len(checked) == 2 and checked[0].endswith("test_crash") and checked[1].endswith("test_hang")


@pytest.mark.parametrize("needed, message", [
    ({"glibc": "99.1"}, "needs glibc 99.1"),
    ({"machine": "vax"}, "are for vax"),
])
def test_a_machine_that_lacks_something_is_told_before_anything_runs(kit, needed, message):
    executable(kit / "unit" / "test_planted", FAILS)
    versions = json.loads((kit / machine.FILE).read_text())
    (kit / machine.FILE).write_text(json.dumps({**versions, **needed}))
    status, output, summary, recorded = run(kit, "--emulated")
    assert status == 1 and message in output
    assert recorded == [] and summary["programs"] == []


def test_without_a_device_nothing_runs(kit):
    status, output, summary, _ = run(kit, PATH="/nonexistent")
    assert status == 1 and "no NVIDIA GPU" in output and summary is None


def test_driver_and_toolkit_are_compared_with_what_the_kit_was_built_with(kit, monkeypatch):
    needed = {"machine": os.uname().machine, "glibc": "2.17", "glibc_by": "x", "cuda": "13.0", "libraries": ["libcublasLt.so.13"]}
    for driver, wrong in ((None, "no NVIDIA driver"), ((12, 8), "the driver serves CUDA 12.8"), ((13, 0), None), ((14, 1), None)):
        monkeypatch.setattr(machine, "driver_here", lambda folders, driver=driver: driver)
        monkeypatch.setattr(machine, "library_here", lambda name, folders: (name, None))
        found = machine.misfits(needed, [])[0]
        assert (wrong in found[0] and len(found) == 1) if wrong else found == []
    monkeypatch.undo()
    monkeypatch.setattr(machine, "driver_here", lambda folders: (13, 0))
    [found] = machine.misfits({**needed, "libraries": ["libnothing.so.13"]}, [])[0]
    assert "libnothing.so.13" in found


def test_versions_of_a_kit_are_those_of_its_programs(kit):
    versions = json.loads((kit / machine.FILE).read_text())
    assert versions["machine"] == os.uname().machine and versions["cuda"] is None and versions["libraries"] == []
    assert (2, 2) <= machine.of(versions["glibc"]) <= machine.glibc_here()
    assert versions["glibc_by"] in {f"test_{name}" for name in REAL}


# A stand-in for additive-eval: the output names the set and, where the order ends in the given digits, the order, too.
EVAL = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    --golden) set=$2 ;;
    --outputs) out=$2 ;;
    --recurrent) exit 1 ;;
    esac
    shift
done
echo "$set" >"$out"
case $ADDITIVE_EMULATOR_ORDER in shuffle:*%s) echo "$ADDITIVE_EMULATOR_ORDER" >>"$out" ;; esac
"""


@pytest.mark.parametrize(("ending", "bad"), [("none", 0), ("77", 1)])
def test_golden_sets_that_once_give_other_bits_are_found(tmp_path, ending, bad):
    executable(tmp_path / "additive-eval", EVAL % ending)
    command = [sys.executable, ROOT / "tests/gpu/repeat_golden.py", "--bin", tmp_path, "--runs", "200"]
    done = subprocess.run(command, capture_output=True, text=True)
    last = done.stdout.splitlines()[-1]
    assert done.returncode == bad, done.stdout
    assert ("other bits" in done.stdout) == bool(bad) and "left out, status 1" in done.stdout
    assert last.endswith(", 0 not") != bool(bad)
