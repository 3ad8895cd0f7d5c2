"""The whole service on a CUDA device: the one that ADDITIVE_PLUGIN_DIR's plug-in finds, or else the emulated one."""

import json
import os
import pathlib

import pytest

from conftest import BIN, TEXT, Service

PLUGIN = os.environ.get("ADDITIVE_PLUGIN_DIR", str(BIN.parent / "emulator"))
EMULATED = "ADDITIVE_PLUGIN_DIR" not in os.environ
STEPS = 8 if EMULATED else 200
SECONDS = 600

pytestmark = pytest.mark.skipif(not (pathlib.Path(PLUGIN) / "additive-cuda.so").exists(),
                                reason="this build has no device to run on")


def start(folder, **environment):
    return Service(folder / "data", "--backend", "cuda", ADDITIVE_PLUGIN_DIR=PLUGIN, **environment)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    s = start(tmp_path_factory.mktemp("cuda"))
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def trained(gpu):
    job = gpu.job(steps=STEPS, precision="bf16", eval_every=STEPS // 2)
    done = gpu.wait_job(job["id"], seconds=SECONDS)
    assert done["status"] == "succeeded", done
    return done


def test_everybody_is_told_what_computes(gpu, trained):
    metrics = gpu.request("GET", "/metrics")[1].decode()
    assert any(line.startswith("additive_engine_info{") and 'backend="cuda"' in line for line in metrics.splitlines())
    models = gpu.ok("GET", "/v1/models")["data"]
    assert models and all(m["additive"]["backend"] == "cuda" for m in models)


def test_a_model_learns_in_bf16(gpu, trained):
    events = gpu.ok("GET", f"/v1/fine_tuning/jobs/{trained['id']}/events?limit=100")["data"]
    losses = [e["data"]["train_loss"] for e in reversed(events) if e["type"] == "metrics" and e["data"].get("train_loss")]
    assert losses and losses[-1] < 5.6, losses  # ln 259 before the first step
    assert trained["additive"]["valid_loss"] < 5.6


def test_it_streams_and_explains(gpu, trained):
    model = trained["fine_tuned_model"]
    ask = {"model": model, "prompt": "9 bottles", "max_tokens": 8, "temperature": 1, "seed": 3}
    once = gpu.ok("POST", "/v1/completions", ask)["choices"][0]["text"]
    stream = gpu.request("POST", "/v1/completions", {**ask, "stream": True})[1].decode()
    pieces = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert "".join(p["choices"][0]["text"] for p in pieces if p["choices"]) == once
    explained = gpu.ok("POST", "/v1/explain", {"model": model, "input": "9 bottles of beer", "position": -1})
    assert len(explained["tokens"]) == 17 and explained["weights"]
    for row in explained["weights"]:
        assert all(0 <= alpha <= 1 for alpha in row["alpha"]) and abs(sum(row["alpha"]) - 1) < 1e-4


def test_serving_goes_on_while_a_job_trains(gpu, trained):
    job = gpu.job(steps=100000, precision="bf16")["id"]
    while not gpu.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"]:
        pass
    ask = {"model": trained["fine_tuned_model"], "prompt": "4 ", "max_tokens": 6, "temperature": 0}
    texts = [gpu.ok("POST", "/v1/completions", ask)["choices"][0]["text"] for _ in range(2)]
    assert texts[0] == texts[1]
    assert gpu.ok("POST", f"/v1/fine_tuning/jobs/{job}/cancel")["status"] == "cancelled"


@pytest.mark.skipif(not EMULATED, reason="a real device does not fail when it is told to")
def test_a_lost_device_costs_nothing_that_was_acknowledged(tmp_path):
    """The device dies under a job and a session: the engine opens it again, both go on where they were on disk."""
    s = start(tmp_path)
    model = s.wait_job(s.job(steps=3)["id"], seconds=SECONDS)["fine_tuned_model"]
    kept, twin = (s.ok("POST", "/v1/sessions", {"model": model, "prompt": "9 bottles", "durable": True})["id"] for _ in range(2))
    ask = {"max_tokens": 5, "temperature": 0}
    expected = s.ok("POST", f"/v1/sessions/{twin}/generate", ask)["choices"][0]["text"]
    assert s.stop() == 0
    s = start(tmp_path, ADDITIVE_EMULATOR_FAULT="launch:160")
    try:
        calm = s.engine_pid()
        job = s.wait_job(s.job(steps=24, checkpoint_every=4)["id"], seconds=SECONDS)
        assert job["status"] == "succeeded" and job["additive"]["step"] == 24, job
        metrics = s.request("GET", "/metrics")[1].decode().splitlines()
        restarts = next(line for line in metrics if line.startswith("additive_engine_device_restarts_total"))
        assert float(restarts.split()[-1]) == 1 and s.engine_pid() == calm
        assert s.ok("POST", f"/v1/sessions/{kept}/generate", ask)["choices"][0]["text"] == expected
    finally:
        s.stop()


@pytest.mark.skipif(not EMULATED, reason="a real device does not fail when it is told to")
def test_a_request_on_a_device_that_dies_ends_with_a_clear_error(tmp_path):
    s = start(tmp_path)
    model = s.wait_job(s.job(steps=3)["id"], seconds=SECONDS)["fine_tuned_model"]
    assert s.stop() == 0
    s = start(tmp_path, ADDITIVE_EMULATOR_FAULT="launch:100")
    try:
        ask = {"model": model, "prompt": "9 bottles", "max_tokens": 30, "temperature": 0}
        answers = [s.request("POST", "/v1/completions", ask) for _ in range(12)]
        refused = [answer["error"] for status, answer, _ in answers if status != 200]
        assert len(refused) == 1 and refused[0]["code"] == "device_error" and refused[0]["message"], refused
        told = {answer["choices"][0]["text"] for status, answer, _ in answers if status == 200}
        assert len(told) == 1
    finally:
        s.stop()


def test_without_a_device_the_cpu_serves(tmp_path):
    s = Service(tmp_path / "data", "--backend", "auto", ADDITIVE_PLUGIN_DIR=PLUGIN, ADDITIVE_EMULATOR_DEVICES="0",
                CUDA_VISIBLE_DEVICES="")
    try:
        assert 'backend="cpu"' in s.request("GET", "/metrics")[1].decode()
        assert "there is no CUDA device" in s.log.read_text()
    finally:
        s.stop()
