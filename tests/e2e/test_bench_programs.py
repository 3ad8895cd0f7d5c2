"""Measuring programs run, and the results of two of them agree. Times are not looked at."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = pathlib.Path(os.environ.get("ADDITIVE_BIN", ROOT / "build" / "bin")).parent / "bench"
EMULATOR = PROGRAMS.parent / "emulator" / "additive-cuda.so"
# fixed: the differences between losses of rounded weights depend on it
TEXT = ROOT / "tests" / "data" / "training" / "text.txt"
MODELS = {
    "additive": {"model_type": "FastformerForCausalLM", "hidden_size": 32, "n_heads": 2, "n_layer": 2, "window_sizes": [16, 32]},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2},
    "trilinear": {"model_type": "trilinear", "hidden_size": 32, "n_layer": 2, "weight_bits": 8},
}
BLOCKS, LENGTH, VOCABULARY = 5, 48, 259
pytestmark = pytest.mark.slow


def run(name, *arguments, timeout=120, **environment):
    return subprocess.run([PROGRAMS / name, *map(str, arguments)], capture_output=True, text=True, check=True, timeout=timeout,
                          env={**os.environ, **environment}).stdout


def config(name, **keys):
    return json.dumps({**MODELS[name], "vocab_size": VOCABULARY, **keys})


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_a_saved_model_is_that_of_the_last_evaluation(tmp_path, name):
    options = {"max_steps": 3, "batch_size": 2, "sequence_length": LENGTH, "eval_every": 3, "eval_blocks": BLOCKS}
    folder = tmp_path / "model"
    lines = [json.loads(line) for line in run("train_curve", TEXT, config(name), json.dumps(options), 1, TEXT, folder).splitlines()]
    curve = [line["valid_loss"] for line in lines if "valid_loss" in line]
    losses = {line["weights"]: line["loss"] for line in map(json.loads, run("bench_loss", folder, TEXT, LENGTH, BLOCKS).splitlines())}
    assert losses["fp32"] == pytest.approx(curve[-1], abs=1e-4)
    assert losses["int8"] == pytest.approx(curve[-1], abs=0.02) and losses["int8"] != losses["fp32"]
    every = {line["weights"]: line["loss"] for line in map(json.loads, run("bench_loss", folder, TEXT, LENGTH).splitlines())}
    assert every["fp32"] != losses["fp32"]


@pytest.mark.parametrize("name", MODELS)
def test_a_session_is_measured_at_two_positions_and_its_state_is_counted(name):
    near, far = [json.loads(line) for line in run("bench_serve", "flat", config(name), "int8", 10, 30).splitlines()]
    state = json.loads(run("bench_serve", "state", config(name)))["state_bytes"]
    assert (near["position"], far["position"]) == (10, 30) and near["ns"] > 0 and far["ns"] > 0
    assert near["state_bytes"] == far["state_bytes"] == state > 0


@pytest.mark.parametrize("mode, arguments, fields", [
    ("beams", [3], ["search_ms", "streams_ms"]),
    ("batch", [20, 3], ["tokens_per_second", "drawn", "alone"]),
    ("prefill", [5000], ["tokens_per_second"]),
    ("prompts", [3, 20], ["first_ms", "last_ms"]),
    ("beside", [3, 40], ["ms", "tokens_per_second", "prompt_tokens_per_second"]),
])
def test_serving_is_measured_in_each_of_its_forms(mode, arguments, fields):
    measured = json.loads(run("bench_serve", mode, config("gpt2"), "fp32", *arguments))
    assert all(measured[field] > 0 for field in fields)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_decoding_and_training_are_measured_alone_and_beside_each_other(device):
    measured = json.loads(run("bench_beside", config("additive"), "bf16", 20, config("additive"), 1, 16, 4, timeout=300,
                              ADDITIVE_BENCH_BACKEND=device, ADDITIVE_PLUGIN_DIR=str(EMULATOR.parent)))
    assert ("emulated" in measured["device"]) == (device == "cuda")
    for tokens in (measured["alone"], measured["beside"]):
        assert tokens["tokens"] == 3 * 4 and 0 < tokens["p50_us"] <= tokens["p99_us"]
    assert measured["trained_alone"] > 0 and measured["trained_beside"] > 0


def test_contributions_and_gradients_are_measured_beside_a_forward():
    measured = json.loads(run("bench_explain", config("additive"), "fp32", 24))
    assert measured["tokens"] == 24 and all(measured[f"{what}_ns"] > 0 for what in ("forward", "contributions", "gradient"))


def test_carried_state_is_measured_beside_blocks_alone(service):
    script = ROOT / "tests" / "bench" / "carry_state.py"
    out = subprocess.run([sys.executable, script, service.url, "--steps", "6", "--seeds", "1"], capture_output=True, text=True, check=True, timeout=120).stdout
    blocks, carried = map(json.loads, out.splitlines())
    assert (blocks["status"], carried["status"], blocks["carry_state"], carried["carry_state"]) == ("succeeded", "succeeded", False, True)
    assert blocks["valid_loss"] != carried["valid_loss"]
