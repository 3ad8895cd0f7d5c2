"""additived: an RWKV-4 folder of Hugging Face's is imported, says what transformers says, and is trained, moved and
explained."""

import json
import pathlib
import sys

import pytest

from engine_client import TEXT, TINY_RWKV, Daemon, EngineError, job_params, train
from test_engine_interchange import safetensors

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "reference"))

import check_golden  # noqa: E402
import tensors  # noqa: E402


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("rwkv") / "data") as d, d.connect() as e:
        yield e


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=60, architecture="rwkv")


def numbered_words(count):
    """A tokenizer.json that reads the token i as "wi"."""
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
            "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(count)}, "unk_token": "w0"}}


def golden(name):
    """The files of a model of make_rwkv_golden.py, and its greedy text."""
    arrays, metadata = tensors.read(ROOT / "data" / "golden" / f"{name}.safetensors")
    weights = {k: v for k, v in arrays.items() if check_golden.is_parameter(k)}
    config = json.loads(metadata["config"])
    files = {"config.json": json.dumps({**config, "architectures": ["RwkvForCausalLM"]}).encode(),
             "model.safetensors": safetensors(weights),
             "tokenizer.json": json.dumps(numbered_words(config["vocab_size"])).encode()}
    return files, json.loads(metadata["greedy"])


@pytest.mark.parametrize("name", ["rwkv", "rwkv_halved"])
def test_a_greedy_text_is_that_of_transformers(engine, name):
    files, greedy = golden(name)
    engine.upload("model.import", {"id": "my-" + name}, file=files)
    engine.call("model.load", {"id": "my-" + name, "dtype": "fp32"})
    ask = {"model": "my-" + name, "prompt": " ".join(f"w{i}" for i in greedy["prompt"]), "temperature": 0, "max_tokens": len(greedy["tokens"])}
    assert engine.generate(ask)[0].split() == [f"w{i}" for i in greedy["tokens"]]


def test_an_imported_model_learns_on(engine):
    files, _ = golden("rwkv")
    engine.upload("model.import", {"id": "imported"}, file=files)
    text = "w3 w9 w27 w1 w14 w2 w40 w11\n" * 200
    done = engine.wait_job(engine.call("job.create", {"model": "imported", "training_file": engine.add_file(text), "seed": 1, "additive": {
        "max_steps": 60, "sequence_length": 32, "batch_size": 4, "learning_rate": 3e-3, "eval_every": 60}})["id"])
    assert done["status"] == "succeeded" and done["additive"]["valid_loss"] < 1
    shown = engine.call("model.get", {"id": done["fine_tuned_model"]})["additive"]
    assert shown["config"]["attention_hidden_size"] == 28 and shown["architecture"] == "rwkv"


def test_text_becomes_the_ids_of_the_tokenizer_of_gpt_neox_and_comes_back(engine):
    """RWKV-4 has that tokenizer: NFC, bytes, and tokens for runs of spaces."""
    folder = ROOT / "data" / "tokenizers" / "neox"
    files, _ = golden("rwkv")
    arrays = tensors.read(ROOT / "data" / "golden" / "rwkv.safetensors")[0]
    weights = {k: v for k, v in arrays.items() if check_golden.is_parameter(k)}
    for name in ("rwkv.embeddings.weight", "head.weight"):
        weights[name] = weights[name].repeat(17, axis=0)[:712].copy()
    config = {**json.loads(files["config.json"]), "vocab_size": 712}
    engine.upload("model.import", {"id": "neox"}, file={"config.json": json.dumps(config).encode(), "model.safetensors": safetensors(weights),
                                                       "tokenizer.json": (folder / "tokenizer.json").read_bytes()})
    for case in json.loads((folder / "cases.json").read_text())[:80]:
        assert engine.call("tokenize", {"model": "neox", "text": case["text"]})["tokens"] == case.get("plain", case["trusted"])
    assert isinstance(engine.generate({"model": "neox", "prompt": "the state of", "max_tokens": 8, "temperature": 0})[0], str)


def test_it_learns_and_recomputed_activations_give_the_same_weights(engine):
    done = engine.wait_job(engine.call("job.create", job_params(engine.add_file(TEXT), 80, "rwkv"))["id"])
    assert done["status"] == "succeeded" and done["additive"]["valid_loss"] < 4
    weights = [engine.download("model.file", {"id": train(engine, 6, architecture="rwkv", recompute=r), "name": "model.safetensors"})[1]
               for r in (False, True)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_a_batch_gives_each_prompt_the_text_that_it_has_alone(engine, model, dtype):
    engine.call("model.load", {"id": model, "dtype": dtype})
    prompts = ["9", "57 bottles of", "100 bottles of beer on the wall, 100"]
    ask = {"model": model, "max_tokens": 30, "temperature": 0}
    alone = [engine.generate({**ask, "prompt": p})[0] for p in prompts]
    _, events, _ = engine.generate({**ask, "prompt": prompts})
    assert ["".join(e["text"] for e in events if e["index"] == i) for i in range(3)] == alone


def test_it_comes_back_from_its_own_files_and_from_those_without_the_prefix(engine, model):
    files = {part: engine.download("model.file", {"id": model, "name": name})[1] for part, name in
             (("config", "config.json"), ("weights", "model.safetensors"), ("tokenizer", "tokenizer.json"))}
    size = int.from_bytes(files["weights"][:8], "little")
    header = json.loads(files["weights"][8 : 8 + size])
    assert header["rwkv.blocks.1.attention.time_mix_key"]["shape"] == [1, 1, 16]
    assert header["rwkv.blocks.0.attention.time_first"]["shape"] == [16] and "rwkv.blocks.0.pre_ln.bias" in header
    bare = json.dumps({k.removeprefix("rwkv."): v for k, v in header.items()}).encode()
    bare += b" " * (-len(bare) % 8)
    other = {**files, "weights": len(bare).to_bytes(8, "little") + bare + files["weights"][8 + size :]}
    ask = {"prompt": "9 bottles", "max_tokens": 12, "temperature": 0}
    expected = engine.generate({"model": model, **ask})[0]
    for name, parts in (("copy", files), ("bare", other)):
        assert engine.upload("model.import", {"id": name}, **parts)["additive"]["architecture"] == "rwkv"
        engine.call("model.load", {"id": name, "dtype": engine.call("model.get", {"id": model})["additive"]["dtype"]})
        assert engine.generate({"model": name, **ask})[0] == expected
        engine.call("model.delete", {"id": name})


def test_a_channel_is_explained_as_a_head(engine, model):
    ask = {"model": model, "input": "9 bottles"}
    rows = engine.call("explain", ask)["weights"]
    assert len(rows) == 2 * 16 and all(abs(sum(r["alpha"]) - 1) < 1e-5 for r in rows)
    assert all(r["half_life"] is None or r["half_life"] > 0 for r in rows)
    [first] = engine.call("explain", {**ask, "position": 0, "layers": [0], "heads": [3]})["weights"]
    assert first["alpha"] == [1]
    with pytest.raises(EngineError, match="one position at a time"):
        engine.call("explain", {**ask, "position": "all"})
    s = engine.call("session.create", {"model": model, "prompt": "9 bot", "explain": True})["id"]
    engine.call("session.append", {"id": s, "text": "tles"})
    for a, b in zip(rows, engine.call("session.alpha", {"id": s})["weights"], strict=True):
        assert max(abs(p - q) for p, q in zip(a["alpha"], b["alpha"], strict=True)) < 1e-5


@pytest.mark.parametrize("config,param", [({"hidden_size": 0}, "hidden_size"), ({"n_head": 2}, "n_head"), ({"rescale_every": 0.5}, "rescale_every")])
def test_a_wrong_configuration_names_its_key(engine, config, param):
    with pytest.raises(EngineError) as e:
        engine.call("job.create", job_params(engine.add_file(TEXT), architecture="rwkv", config={**TINY_RWKV["config"], **config}))
    assert (e.value.status, e.value.param) == (400, f"additive.config.{param}")
