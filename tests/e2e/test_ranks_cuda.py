"""additive-train with its ranks on CUDA devices: emulated ones, whose NCCL sums in the order of ranks."""

import json
import os
import pathlib
import signal
import subprocess

import pytest

from conftest import BIN
from test_ranks import ENVIRONMENT, children, losses, recipe

EMULATOR = BIN.parent / "emulator"
pytestmark = [pytest.mark.emulated, pytest.mark.skipif(not (BIN / "additive-train").exists(), reason="built without MPI")]

DEVICES = ENVIRONMENT | {"ADDITIVE_PLUGIN_DIR": str(EMULATOR), "ADDITIVE_NCCL": str(EMULATOR / "libnccl.so.2"),
                         "ADDITIVE_EMULATOR_DEVICES": "2"}
STEPS = 5
# Large enough for several buckets of gradients.
SMALL = {"sequence_length": 16, "batch_size": 4, "validation_fraction": 0,
         "config": {"hidden_size": 128, "n_layer": 2, "n_heads": 4, "n_positions": 16, "window_sizes": [4, 16],
                    "hidden_dropout_prob": 0.1}}
NCCL = "summed by NCCL 2.28.9"


def command(path, out, *ranks):
    """ranks: the settings of each, {"backend": …, "environment": {…}, "options": […]}"""
    launch = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    for i, own in enumerate(ranks):
        exports = [a for name, value in own.get("environment", {}).items() for a in ("-x", f"{name}={value}")]
        launch += [":"] * (i > 0) + ["-n", "1", *exports, BIN / "additive-train", path, "--out", out, "--threads", "1",
                                     "--backend", own.get("backend", "cuda"), *own.get("options", [])]
    return launch if len(ranks) > 1 else launch[launch.index(BIN / "additive-train"):]


def run(path, out, *ranks, **environment):
    """(exit status, reports, stderr)"""
    done = subprocess.run(command(path, out, *ranks), env=DEVICES | environment, capture_output=True, text=True, timeout=300)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recipe(tmp_path_factory.mktemp("recipe"), steps=STEPS, **SMALL)


@pytest.fixture(scope="module")
def summed(path, tmp_path_factory):
    """A run of two ranks that sum by NCCL: its reports, its folder, and the actions of rank 0's device, in order."""
    folder = tmp_path_factory.mktemp("summed")
    trace = folder / "trace"
    status, reports, log = run(path, folder / "run", {"environment": {"ADDITIVE_EMULATOR_COUNT": trace}}, {})
    assert status == 0, log
    assert f"gradients are {NCCL}" in log
    return reports, folder / "run", [json.loads(line)["name"] for line in trace.read_text().splitlines()]


def weights(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def test_devices_sum_to_the_losses_of_one_process(path, summed, tmp_path):
    reports, _, _ = summed
    assert reports[0]["report"] == "started" and reports[0]["gradients"] == NCCL
    status, alone, log = run(path, tmp_path / "alone", {})
    assert status == 0, log
    assert "gradients" not in alone[0]
    want, got = losses(alone), losses(reports)
    both = want.keys() & got.keys()
    assert STEPS in both
    assert max(abs(want[s] - got[s]) for s in both) <= 1e-4


def test_the_host_sums_to_the_same_where_there_is_no_library(path, summed, tmp_path):
    reports, folder, _ = summed
    status, by_host, log = run(path, tmp_path / "run", {}, {}, ADDITIVE_NCCL="/nowhere/libnccl.so.2")
    assert status == 0, log
    how = by_host[0]["gradients"]
    assert how.startswith("summed through the host: rank 0: libnccl.so.2 cannot be loaded: cannot open shared object file")
    assert log.count(f"gradients are {how}") == 1
    both = losses(by_host).keys() & losses(reports).keys()
    assert STEPS in both
    # Both add two numbers, in either order.
    assert all(losses(by_host)[s] == losses(reports)[s] for s in both)
    assert weights(tmp_path / "run") == weights(folder)


@pytest.mark.parametrize("precision, way", [
    ("fp32", "by NCCL"), ("bf16", "by NCCL"), pytest.param("bf16", "through the host", marks=pytest.mark.slow)])
def test_a_sharded_optimizer_gives_the_same_bits(tmp_path, precision, way):
    found = []
    environment = {} if way == "by NCCL" else {"ADDITIVE_NCCL": "0"}
    for shard in False, True:
        path = recipe(tmp_path, steps=3, name=f"{shard}.json", precision=precision, optimizer="muon",
                      parallel={"ranks": 2, "shard_optimizer": shard}, **SMALL)
        status, reports, log = run(path, tmp_path / str(shard), {}, {}, **environment)
        assert status == 0, log
        assert reports[0]["gradients"].startswith(f"summed {way}")
        found.append((weights(tmp_path / str(shard)), (tmp_path / str(shard) / "step-3" / "optimizer.safetensors").read_bytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("devices, sums", [("1,0", NCCL), ("1", "summed through the host: ranks 0 and 1 share a device")])
def test_ranks_take_the_named_devices_in_turn(tmp_path, devices, sums):
    path = recipe(tmp_path, steps=1, **SMALL)
    options = {"options": ["--device", devices]}
    status, reports, log = run(path, tmp_path / "run", options, options)
    assert status == 0, log
    assert reports[0]["gradients"] == sums


def test_a_device_that_does_not_exist_is_refused_by_its_number(path, tmp_path):
    status, _, log = run(path, tmp_path / "run", {"options": ["--device", "0,5"]}, {"options": ["--device", "0,5"]})
    assert status == 1 and "rank 1: " in log and "5" in log


def test_sums_begin_before_the_backward_has_ended(summed):
    names = summed[2]
    updates = [i for i, name in enumerate(names) if name.startswith("adam")]
    assert len(updates) == STEPS
    for before, update in zip([0, *updates], updates):
        step = names[before:update]
        first, last = step.index("ncclAllReduce"), len(step) - 1 - step[::-1].index("ncclAllReduce")
        between = [name for name in step[first:last] if "grad" in name]
        assert step.count("ncclAllReduce") > 1 and len(between) > 2, step[first:]


@pytest.mark.slow
@pytest.mark.parametrize("environment, why", [
    ({"ADDITIVE_EMULATOR_DEVICES": "1"}, "ranks 0 and 1 share a device"),
    ({"ADDITIVE_EMULATOR_FAULT": "group:1"}, "rank 0: NCCL: joining: unhandled system error"),
], ids=["one device", "a group that fails"])
def test_the_host_sums_where_devices_cannot_and_the_reason_is_said(tmp_path, environment, why):
    path = recipe(tmp_path, steps=2, **SMALL)
    status, reports, log = run(path, tmp_path / "run", {}, {}, **environment)
    assert status == 0, log
    assert reports[0]["gradients"] == f"summed through the host: {why}"
    assert log.count("gradients are") == 1
    assert reports[-1]["finished"] and reports[-1]["progress"]["step"] == 2


def test_ranks_on_different_backends_are_refused(path, tmp_path):
    status, _, log = run(path, tmp_path / "run", {}, {"backend": "cpu"})
    assert status == 1
    assert "rank 0 computes on the cuda backend and rank 1 on cpu: their weights would not stay equal" in log


def checkpoint_of(folder):
    saved = [int(p.name[5:]) for p in folder.iterdir() if p.name[5:].isdigit()]
    assert len(saved) == 1
    return saved[0]


@pytest.mark.parametrize("how", ["is killed", pytest.param("is rank 0 and fails", marks=pytest.mark.slow)])
def test_a_run_whose_rank_is_lost_goes_on_from_its_checkpoint(path, summed, tmp_path, how):
    # A device that fails does so at a sum of its third step.
    sums = sum("scaled" in name for name in summed[2]) // STEPS  # each multiplies by its share before
    fault = {"environment": {"ADDITIVE_EMULATOR_FAULT": f"sum:{2 * sums + 2}"}}
    ranks = [{}, {}] if how == "is killed" else [fault, {}]
    launched = subprocess.Popen(command(path, tmp_path / "run", *ranks), env=DEVICES, stdout=subprocess.PIPE, text=True)
    reports = []
    for line in launched.stdout:
        reports.append(json.loads(line))
        if how == "is killed" and reports[-1]["progress"]["step"] >= 2 and reports[-2]["progress"]["step"] < 2:
            os.kill(children(launched.pid)[-1], signal.SIGKILL)
    assert launched.wait(60) != 0
    step = checkpoint_of(tmp_path / "run")
    assert 2 <= step < STEPS and (step == 2 or how == "is killed")
    assert [(r["report"], r["progress"]["step"]) for r in reports[-2:]] == [("saved", step), ("ended", step)]
    assert "error" not in reports[-2] and not reports[-1]["finished"]
    status, rest, log = run(path, tmp_path / "run", {}, {})
    assert status == 0, log
    assert rest[0]["progress"]["step"] == step
    assert weights(tmp_path / "run") == weights(summed[1])
