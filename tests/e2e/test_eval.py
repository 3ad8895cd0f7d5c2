"""additive-eval as a program: what it writes, and what it says when its input is wrong."""

import json
import os
import pathlib
import subprocess
import sys

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "reference"))

import tensors  # noqa: E402
from check_golden import is_parameter  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("ADDITIVE_BIN", ROOT / "build" / "bin")) / "additive-eval"
GOLDEN = ROOT / "tests" / "data" / "golden" / "defaults.safetensors"
VOCABULARY, POSITIONS, LAYERS = 31, 20, 3


@pytest.fixture
def folder(tmp_path):
    """A model folder beside an inputs file."""
    arrays, metadata = tensors.read(GOLDEN)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(metadata["config"])
    weights = {name: array for name, array in arrays.items() if is_parameter(name)}
    tensors.write(tmp_path / "model" / "model.safetensors", weights)
    tensors.write(tmp_path / "inputs", {"input_ids": ids([[1, 2, 3, 4]])})
    return tmp_path


def ids(rows):
    return numpy.array(rows, dtype=numpy.int64)


def run(folder, *options, inputs=None):
    if inputs is not None:
        tensors.write(folder / "inputs", inputs)
    command = [PROGRAM, "--model", folder / "model", "--inputs", folder / "inputs", "--outputs", folder / "outputs"]
    return subprocess.run([*map(str, command), *options], capture_output=True, text=True, timeout=60)


def outputs(folder, *options, inputs=None):
    done = run(folder, *options, inputs=inputs)
    assert done.returncode == 0, done.stderr
    return tensors.read(folder / "outputs")[0]


def assert_fails(folder, *words, inputs=None, options=()):
    done = run(folder, *options, inputs=inputs)
    assert done.returncode == 1
    assert done.stderr.startswith("additive-eval: ") and done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
    assert not (folder / "outputs").exists()


def test_every_output_is_written(folder):
    found = outputs(folder)
    names = {f"layers.{layer}.{name}.{kind}" for layer in range(LAYERS) for name in ("query", "key")
             for kind in ("score", "log_normalizer", "pooled")}
    assert set(found) == names | {"logits", "loss"}
    assert found["logits"].shape == (1, 4, VOCABULARY)
    assert found["layers.2.key.score"].shape == (1, 4, 2)
    assert found["layers.2.key.pooled"].shape == (1, 4, 14)
    assert found["loss"].shape == ()


def test_importance_weights_sum_to_one(folder):
    found = outputs(folder, inputs={"input_ids": ids([list(range(1, 18))])})
    for layer, window in enumerate((4, 8, POSITIONS)):
        for name in ("query", "key"):
            score, normalizer = (found[f"layers.{layer}.{name}.{kind}"][0] for kind in ("score", "log_normalizer"))
            for i in range(17):
                alpha = numpy.exp(score[max(0, i - window + 1) : i + 1].astype(float) - normalizer[i])
                assert numpy.abs(alpha.sum(0) - 1).max() <= 1e-5


def test_labels_default_to_the_tokens_that_are_not_masked(folder):
    tokens, mask = ids([[1, 2, 3, 4], [5, 6, 0, 0]]), ids([[1, 1, 1, 1], [1, 1, 0, 0]])
    labels = numpy.where(mask == 1, tokens, -100)
    implied = outputs(folder, inputs={"input_ids": tokens, "attention_mask": mask})
    given = outputs(folder, inputs={"input_ids": tokens, "attention_mask": mask, "labels": labels})
    assert implied["loss"] == given["loss"]
    logits = implied["logits"].astype(float)
    total = numpy.log(numpy.exp(logits).sum(-1))
    losses = [total[b, i] - logits[b, i, tokens[b, i + 1]] for b, i in [(0, 0), (0, 1), (0, 2), (1, 0)]]
    assert abs(implied["loss"] - numpy.mean(losses)) <= 1e-5


def test_inputs_may_be_32_bits_wide_and_lie_among_other_tensors(folder):
    want = outputs(folder)
    got = outputs(folder, inputs={"input_ids": ids([[1, 2, 3, 4]]).astype(numpy.int32), "x": ids([5])})
    assert numpy.array_equal(want["logits"], got["logits"])


def test_one_token_has_no_loss(folder):
    assert outputs(folder, inputs={"input_ids": ids([[1]])})["loss"] == 0


def test_all_positions_can_be_used_and_not_one_more(folder):
    outputs(folder, "--recurrent", inputs={"input_ids": ids([[1] * POSITIONS])})
    (folder / "outputs").unlink()
    assert_fails(folder, "input_ids", str(POSITIONS), inputs={"input_ids": ids([[1] * (POSITIONS + 1)])})


@pytest.mark.parametrize("name, array", [
    ("input_ids", ids([[1, VOCABULARY]])),
    ("input_ids", ids([[1, -1]])),
    ("input_ids", ids([[1, 2**40]])),
    ("input_ids", ids([1, 2])),
    ("input_ids", ids([[[1, 2]]])),
    ("input_ids", ids([[]])),
    ("input_ids", numpy.array([[1.0, 2.0]])),
    ("attention_mask", ids([[1, 1, 1]])),
    ("attention_mask", ids([[1, 2, 1, 1]])),
    ("attention_mask", ids([1, 1, 1, 1])),
    ("labels", ids([[1, 2, 3, VOCABULARY]])),
    ("labels", ids([[1, 2, 3, -1]])),
    ("labels", ids([[1, 2, 3, 4], [1, 2, 3, 4]])),
])
def test_wrong_inputs_are_named(folder, name, array):
    assert_fails(folder, name, inputs={"input_ids": ids([[1, 2, 3, 4]]), name: array})


def test_missing_inputs_are_named(folder):
    assert_fails(folder, "input_ids", inputs={"ids": ids([[1]])})
    (folder / "inputs").write_bytes(b"nonsense")
    assert_fails(folder, "inputs")
    (folder / "inputs").unlink()
    assert_fails(folder, "inputs")


def test_a_wrong_model_folder_is_named(folder):
    config = folder / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "n_heads": 3}))
    assert_fails(folder, "model", "n_heads")
    config.unlink()
    assert_fails(folder, "config.json")
    config.write_text("{")
    assert_fails(folder, "config.json")
    config.write_text("{}")
    assert_fails(folder, "word_embedding.weight")
    (folder / "model" / "model.safetensors").unlink()
    assert_fails(folder, "model.safetensors")


def test_an_unknown_or_absent_backend_is_an_error(folder):
    assert_fails(folder, "tpu", options=("--backend", "tpu"))


def test_outputs_that_cannot_be_written_are_an_error(folder):
    (folder / "outputs").mkdir()
    done = run(folder)
    assert done.returncode == 1 and "outputs" in done.stderr
    assert not list((folder / "outputs").iterdir()) and not list(folder.glob("outputs.*"))


@pytest.mark.parametrize("options", [
    ["--nonsense"], ["stray"], ["--threads", "-1"], ["--threads", "x"], ["--threads", "1.5"], ["--threads", ""],
    ["--label-smoothing", "1"], ["--label-smoothing", "nan"], ["--model"], ["--recurrent", "--gradients"],
])
def test_wrong_usage_is_told_from_errors(folder, options):
    done = run(folder, *options)
    assert done.returncode == 2 and "usage:" in done.stderr
    assert not (folder / "outputs").exists()


def test_nothing_to_do_is_wrong_usage_and_help_is_not():
    assert subprocess.run([PROGRAM], capture_output=True).returncode == 2
    done = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage:") and not done.stderr
