"""additive-eval as a program: its outputs, and its messages for wrong input."""

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
from encoder_decoder import STACK, weights_of  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("ADDITIVE_BIN", ROOT / "build" / "bin")) / "additive-eval"
GOLDEN = ROOT / "tests" / "data" / "golden"
VOCABULARY, POSITIONS, LAYERS = 31, 20, 3


def make_folder(tmp_path, golden):
    """A model folder beside an inputs file."""
    arrays, metadata = tensors.read(GOLDEN / f"{golden}.safetensors")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(metadata["config"])
    weights = {name: array for name, array in arrays.items() if is_parameter(name)}
    tensors.write(tmp_path / "model" / "model.safetensors", weights)
    tensors.write(tmp_path / "inputs", {"input_ids": ids([[1, 2, 3, 4]])})
    return tmp_path


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path, "defaults")


@pytest.fixture(params=["defaults", "gpt2"])
def any_folder(request, tmp_path):
    return make_folder(tmp_path, request.param)


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
    assert set(found) == names | {"logits", "loss", "count"}
    assert found["count"] == 3
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


def test_a_model_that_sees_later_tokens_is_asked_for_each_token_at_its_own_place(tmp_path):
    rng, size = numpy.random.default_rng(3), {**STACK, "max_seq_len": POSITIONS}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "transformer", "stack": "encoder", **size}))
    head = {"to_logits.weight": rng.normal(0, 1, (size["num_tokens"], size["dim"])), "to_logits.bias": rng.normal(0, 1, size["num_tokens"])}
    weights = weights_of(rng, "", "af" * size["depth"], POSITIONS) | {k: x.astype("float32") for k, x in head.items()}
    tensors.write(tmp_path / "model" / "model.safetensors", weights)
    tokens, mask = ids([[1, 2, 3, 4], [5, 6, 0, 0]]), ids([[1, 1, 1, 1], [1, 1, 0, 0]])
    labels = ids([[-100, 9, -100, 7], [8, -100, -100, -100]])
    for given, asked in (({}, numpy.where(mask == 1, tokens, -100)), ({"labels": labels}, labels)):
        found = outputs(tmp_path, inputs={"input_ids": tokens, "attention_mask": mask, **given})
        logits = found["logits"].astype(float)
        total = numpy.log(numpy.exp(logits).sum(-1))
        losses = [total[b, i] - logits[b, i, asked[b, i]] for b, i in numpy.argwhere(asked >= 0)]
        assert found["count"] == len(losses) and abs(found["loss"] - numpy.mean(losses)) <= 1e-5


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


def test_a_model_without_rounds_has_logits_only(tmp_path):
    found = outputs(make_folder(tmp_path, "gpt2"))
    assert set(found) == {"logits", "loss", "count"}


def test_gradients_have_the_layout_of_the_checkpoint(tmp_path):
    folder = make_folder(tmp_path, "gpt2")
    weights = tensors.read(folder / "model" / "model.safetensors")[0]
    found = outputs(folder, "--gradients")
    for name, array in weights.items():
        if not name.endswith((".attn.bias", ".attn.masked_bias")):
            assert found["grad.transformer." + name].shape == array.shape


@pytest.mark.parametrize("chunk", [2, 7, 16, 100])
def test_tokens_may_be_read_in_chunks_of_any_size(any_folder, chunk):
    text = {"input_ids": ids([list(range(1, 19)), list(range(2, 20))])}
    want = outputs(any_folder, "--recurrent", inputs=text)
    got = outputs(any_folder, "--recurrent", "--chunk", str(chunk), inputs=text)
    assert set(got) == set(want)
    for name, array in want.items():
        assert numpy.abs(got[name].astype(float) - array).max() <= 1e-4


@pytest.mark.parametrize("options", [[], ["--recurrent"], ["--recurrent", "--chunk", "5"]])
def test_the_loss_alone_is_the_same_loss(any_folder, options):
    text = {"input_ids": ids([list(range(1, 19)), list(range(2, 20))])}
    want = outputs(any_folder, *options, inputs=text)
    got = outputs(any_folder, "--loss-only", *options, inputs=text)
    assert set(got) == {"loss", "count"}
    assert got["count"] == want["count"] == 34
    assert abs(got["loss"] - want["loss"]) <= 1e-5


@pytest.mark.parametrize("policy, row", [("clamp", POSITIONS - 1), ("wrap", 0)])
def test_tokens_beyond_the_positions_follow_the_policy(folder, policy, row):
    """The result is that of a position table with this row appended."""
    text = {"input_ids": ids([[1 + i % 30 for i in range(POSITIONS + 1)]])}
    policy = ("--position-policy", policy)
    parallel = outputs(folder, *policy, inputs=text)
    recurrent = outputs(folder, *policy, "--recurrent", "--chunk", "4", inputs=text)
    weights = tensors.read(folder / "model" / "model.safetensors")[0]
    name = "fastformer_model.position_embeddings.weight"
    longer = {**weights, name: numpy.vstack([weights[name], weights[name][row : row + 1]])}
    tensors.write(folder / "model" / "model.safetensors", longer)
    config = json.loads((folder / "model" / "config.json").read_text())
    windows = [4, 8, POSITIONS + 1]
    (folder / "model" / "config.json").write_text(
        json.dumps({**config, "n_positions": POSITIONS + 1, "window_sizes": windows}))
    want = outputs(folder, inputs=text)
    for got in (parallel, recurrent):
        assert numpy.abs(got["logits"].astype(float) - want["logits"]).max() <= 1e-4


@pytest.mark.parametrize("dtype, tolerance", [("fp32", 1e-5), ("bf16", 0.02), ("int8", 0.05)])
def test_packed_weights_give_nearly_the_same_values(any_folder, dtype, tolerance):
    text = {"input_ids": ids([list(range(1, 19))])}
    want = outputs(any_folder, inputs=text)
    for options in ([], ["--recurrent", "--chunk", "8"]):
        got = outputs(any_folder, "--dtype", dtype, *options, inputs=text)
        error = numpy.abs(got["logits"].astype(float) - want["logits"]).max()
        assert error <= tolerance * numpy.abs(want["logits"]).max()
        assert error > 0 or dtype == "fp32"


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


def test_a_model_with_a_head_for_classes_is_refused(folder):
    arrays, _ = tensors.read(GOLDEN / "sources" / "encoder_weights.safetensors")
    tensors.write(folder / "model" / "model.safetensors", arrays)
    (folder / "model" / "config.json").write_text(json.dumps({
        "model_type": "linear_encoder", "vocab_size": 19, "d_model": 12, "encoder_layers": 2, "encoder_attention_heads": 3,
        "encoder_ffn_dim": 20, "max_position_embeddings": 11, "num_labels": 3}))
    assert_fails(folder, "model", "head for classes")


def test_an_unknown_backend_is_wrong_usage_and_names_those_that_there_are(folder):
    done = run(folder, "--backend", "tpu")
    assert done.returncode == 2 and '--backend must be cpu, cuda, auto or reference, not "tpu"' in done.stderr


def test_a_backend_that_cannot_compute_in_bf16_says_so(folder):
    assert_fails(folder, "precision", "fp32 only", options=("--precision", "bf16"))
    assert "loss" in outputs(folder, "--precision", "fp32")


def test_outputs_that_cannot_be_written_are_an_error(folder):
    (folder / "outputs").mkdir()
    done = run(folder)
    assert done.returncode == 1 and "outputs" in done.stderr
    assert not list((folder / "outputs").iterdir()) and not list(folder.glob("outputs.*"))


@pytest.mark.parametrize("options", [
    ["--nonsense"], ["stray"], ["--threads", "-1"], ["--threads", "x"], ["--threads", "1.5"], ["--threads", ""],
    ["--label-smoothing", "1"], ["--label-smoothing", "nan"], ["--model"], ["--recurrent", "--gradients"],
    ["--dtype", "fp64"], ["--dtype", "bf16", "--gradients"], ["--position-policy", "none"], ["--chunk", "4"],
    ["--precision", "int8"], ["--precision", "bf16", "--recurrent"], ["--precision", "bf16", "--dtype", "bf16"],
    ["--recurrent", "--chunk", "0"], ["--recurrent", "--chunk", "x"],
])
def test_wrong_usage_has_an_exit_status_of_its_own(folder, options):
    done = run(folder, *options)
    assert done.returncode == 2 and "usage:" in done.stderr
    assert not (folder / "outputs").exists()


def test_nothing_to_do_is_wrong_usage_and_help_is_not():
    assert subprocess.run([PROGRAM], capture_output=True).returncode == 2
    done = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "\nusage: additive-eval --model" in done.stdout and not done.stderr
