"""Folders of x-transformers: its constructors' arguments and tensor names in and out, and the library's generated
tokens."""

import json
import pathlib
import subprocess
import sys

import numpy
import pytest

from conftest import BIN

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reference"))

import tensors  # noqa: E402

SETS = sorted((ROOT / "tests" / "data" / "golden" / "sources").glob("xt_*.safetensors"))
DECODERS = [path for path in SETS if "gen.tokens" in tensors.read(path)[0]]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def tokenizer(size):
    """A token for each letter."""
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(LETTERS[:size])}, "merges": []}}


@pytest.fixture(scope="module", params=SETS, ids=lambda path: path.stem[3:])
def folder(request, tmp_path_factory):
    """A folder as the library's user would write it, and the set that it is from."""
    path, (arrays, metadata) = tmp_path_factory.mktemp("folder"), tensors.read(request.param)
    config = {"model_type": "x-transformers", **json.loads(metadata["config"])}
    size = config["XTransformer"]["dec_num_tokens"] if "XTransformer" in config else config["TransformerWrapper"]["num_tokens"]
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer(size)))
    tensors.write(path / "model.safetensors", {k: v for k, v in arrays.items() if v.dtype == numpy.float32})
    return path, arrays, request.param.stem.replace("_", "-")


def additive(service, *args):
    done = subprocess.run([BIN / "additive", "--url", service.url, *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def contents(path):
    return tensors.read(path / "model.safetensors")[0], json.loads((path / "config.json").read_text())


def test_a_folder_comes_back_as_it_went_in_and_generates_what_the_library_does(service, folder, tmp_path):
    path, arrays, name = folder
    additive(service, "models", "push", path, name)
    additive(service, "models", "pull", name, tmp_path / "back")
    (weights, config), (back, back_config) = contents(path), contents(tmp_path / "back")
    assert back.keys() == weights.keys() and all(numpy.array_equal(back[k], weights[k]) for k in weights)
    assert back_config == config
    for prompt, tokens in zip(arrays.get("gen.prompt", ()), arrays.get("gen.tokens", ())):
        ask = {"model": name, "prompt": prompt.tolist(), "max_tokens": len(tokens), "temperature": 0}
        text = service.ok("POST", "/v1/completions", ask)["choices"][0]["text"]
        assert text == "".join(LETTERS[i] for i in tokens)


@pytest.mark.parametrize("folder", DECODERS, ids=lambda path: path.stem[3:], indirect=True)
def test_a_folder_that_was_trained_further_has_the_same_arguments_and_tensors(service, folder, tmp_path):
    path, _, name = folder
    additive(service, "models", "push", path, f"{name}-base")
    job = {"model": f"{name}-base", "training_file": service.upload("abcdefgh" * 40), "additive": {
        "sequence_length": 12, "batch_size": 2, "max_steps": 2, "learning_rate": 1e-3}}
    done = service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", job)["id"])
    assert done["status"] == "succeeded", done
    additive(service, "models", "pull", done["fine_tuned_model"], tmp_path / "back")
    (weights, config), (back, back_config) = contents(path), contents(tmp_path / "back")
    assert {k: v.shape for k, v in back.items()} == {k: v.shape for k, v in weights.items()}
    assert any(not numpy.array_equal(back[k], weights[k]) for k in weights)
    for kind in ("TransformerWrapper", "Decoder"):
        assert {k: back_config[kind].get(k) for k in config[kind]} == config[kind]


@pytest.mark.parametrize("folder", [path for path in SETS if path.stem == "xt_scaled"], indirect=True)
def test_values_that_rotary_xpos_scales_follow_from_the_length_of_the_text(service, folder):
    path, arrays, name = folder
    additive(service, "models", "push", path, f"{name}-embeds")
    ids, rows = arrays["ids"][0].tolist(), arrays["embeddings"][0]  # without padding, and shorter than max_seq_len
    assert arrays["mask"][0].all() and len(ids) < json.loads((path / "config.json").read_text())["TransformerWrapper"]["max_seq_len"]
    answer = service.ok("POST", "/v1/embeddings", {"model": f"{name}-embeds", "input": ids})
    assert numpy.abs(numpy.array(answer["data"][0]["embedding"]) - rows.mean(0)).max() < 1e-5


@pytest.mark.parametrize("folder", [path for path in SETS if path.stem == "xt_matrix"], indirect=True)
def test_attention_that_keeps_its_largest_scores_is_explained_with_no_more_tokens(service, folder):
    path, _, name = folder
    additive(service, "models", "push", path, f"{name}-explained")
    text = "abcdefghijkl"
    answer = service.ok("POST", "/v1/explain", {"model": f"{name}-explained", "input": text, "method": "alpha"})
    session = service.ok("POST", "/v1/sessions", {"model": f"{name}-explained", "prompt": text, "explain": True})["id"]
    own = service.ok("GET", f"/v1/sessions/{session}/alpha")
    service.ok("DELETE", f"/v1/sessions/{session}")
    assert len(answer["weights"]) == 4  # 2 layers of 2 heads
    for row, same in zip(answer["weights"], own["weights"]):
        assert sum(row["alpha"]) == pytest.approx(1, abs=1e-5) and 1 <= sum(a > 0 for a in row["alpha"]) <= 4
        assert row["alpha"] == pytest.approx(same["alpha"], abs=1e-6)
