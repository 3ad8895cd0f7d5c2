"""The whole service on a CUDA device: the one that ADDITIVE_PLUGIN_DIR's plug-in finds, or else the emulated one."""

import json
import os

import pytest

from conftest import BIN, Service

PLUGIN = os.environ.get("ADDITIVE_PLUGIN_DIR", str(BIN.parent / "emulator"))
EMULATED = "ADDITIVE_PLUGIN_DIR" not in os.environ
STEPS = 8 if EMULATED else 200
SECONDS = 600
pytestmark = pytest.mark.emulated


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


def test_metrics_health_and_models_name_the_backend(gpu, trained):
    metrics = gpu.request("GET", "/metrics")[1].decode()
    assert any(line.startswith("additive_engine_info{") and 'backend="cuda"' in line for line in metrics.splitlines())
    for path in ("/healthz", "/readyz"):
        state = gpu.ok("GET", path)
        assert state["backend"] == "cuda" and state["device"] and "devices" not in state  # only of an engine with several
    assert "additive_device_" not in metrics
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
    pieces = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]
    assert "".join(p["choices"][0]["text"] for p in pieces if p["choices"]) == once
    explained = gpu.ok("POST", "/v1/explain", {"model": model, "input": "9 bottles of beer", "position": -1})
    assert len(explained["tokens"]) == 17 and explained["weights"]
    for row in explained["weights"]:
        assert all(0 <= alpha <= 1 for alpha in row["alpha"]) and abs(sum(row["alpha"]) - 1) < 1e-4


def test_serving_continues_while_a_job_trains(gpu, trained):
    job = gpu.job(steps=100000, precision="bf16")["id"]
    while not gpu.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"]:
        pass
    ask = {"model": trained["fine_tuned_model"], "prompt": "4 ", "max_tokens": 6, "temperature": 0}
    texts = [gpu.ok("POST", "/v1/completions", ask)["choices"][0]["text"] for _ in range(2)]
    assert texts[0] == texts[1]
    assert gpu.ok("POST", f"/v1/fine_tuning/jobs/{job}/cancel")["status"] == "cancelled"


@pytest.mark.skipif(not EMULATED, reason="the emulated library's algorithms have planted times")
def test_the_fastest_algorithms_of_a_job_are_kept_for_later_runs(tmp_path):
    contents = []
    for times in ("2,1", "1,2"):
        s = start(tmp_path, ADDITIVE_EMULATOR_CANDIDATES=times)
        assert s.wait_job(s.job(steps=2)["id"], seconds=SECONDS)["status"] == "succeeded"
        assert s.stop() == 0
        kept, = (tmp_path / "data" / "cache").glob("products-*")
        contents.append(kept.read_text())
    choices = [line for line in contents[0].splitlines() if " = " in line]
    assert choices and all(line.endswith(" = 1") for line in choices)
    assert contents[0] == contents[1]


def test_without_a_device_the_cpu_serves(tmp_path):
    s = Service(tmp_path / "data", "--backend", "auto", ADDITIVE_PLUGIN_DIR=PLUGIN, ADDITIVE_EMULATOR_DEVICES="0",
                CUDA_VISIBLE_DEVICES="")
    try:
        assert 'backend="cpu"' in s.request("GET", "/metrics")[1].decode()
        assert s.ok("GET", "/healthz")["backend"] == "cpu"
        assert "there is no CUDA device" in s.log.read_text()
    finally:
        s.stop()
