"""additived: a model that came with a tokenizer of Hugging Face's format reads and writes text with it."""

import json
import pathlib

import numpy as np
import pytest

from engine_client import Daemon, EngineError
from test_engine_interchange import CONFIG, safetensors

TOKENIZERS = pathlib.Path(__file__).parent.parent / "data" / "tokenizers"
IDS = 712


def weights():
    rng, d = np.random.default_rng(2), CONFIG["n_embd"]
    shapes = {"wte.weight": (IDS, d), "wpe.weight": (32, d), "ln_f.weight": (d,), "ln_f.bias": (d,)}
    for i in range(CONFIG["n_layer"]):
        for name, shape in (("ln_1", (d,)), ("ln_2", (d,)), ("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)),
                            ("mlp.c_fc", (d, 4 * d)), ("mlp.c_proj", (4 * d, d))):
            shapes[f"h.{i}.{name}.weight"] = shape
            shapes[f"h.{i}.{name}.bias"] = shape[-1:]
    return safetensors({"transformer." + k: rng.normal(0, 0.5, s).astype("float32") for k, s in shapes.items()})


FILES = {"config.json": json.dumps({**CONFIG, "vocab_size": IDS}).encode(), "model.safetensors": weights()}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("huggingface") / "data") as d, d.connect() as e:
        yield e


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_text_becomes_the_ids_of_the_models_tokenizer_and_comes_back(engine, family):
    folder = TOKENIZERS / family
    engine.upload("model.import", {"id": "my-" + family}, file={**FILES, "tokenizer.json": (folder / "tokenizer.json").read_bytes()})
    assert next(m for m in engine.call("model.list", {})["data"] if m["id"] == "my-" + family)["additive"]["tokenizer"]["type"] == "huggingface"
    for case in json.loads((folder / "cases.json").read_text())[:60]:
        plain = case.get("plain", case["trusted"])
        answer = engine.call("tokenize", {"model": "my-" + family, "text": case["text"]})
        assert answer["tokens"] == plain
        if plain == case["trusted"] and plain:
            assert engine.call("detokenize", {"model": "my-" + family, "tokens": plain})["text"] == case["decoded"]
    text, *_ = engine.generate({"model": "my-" + family, "prompt": "the state of", "max_tokens": 8, "temperature": 0})
    assert isinstance(text, str)


def test_a_tokenizer_that_asks_for_more_than_there_is_is_refused_by_name(engine):
    tokenizer = json.loads((TOKENIZERS / "gpt2" / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Runes"}
    with pytest.raises(EngineError, match="Runes"):
        engine.upload("model.import", {"id": "wrong"}, file={**FILES, "tokenizer.json": json.dumps(tokenizer).encode()})


def test_a_message_cannot_write_the_special_tokens_of_the_chat_template(engine):
    form = {"user": {"prefix": "<|im_start|>", "suffix": "<|im_end|>"}, "assistant": {}}
    config = json.dumps({**CONFIG, "vocab_size": IDS, "chat_template": form}).encode()
    engine.upload("model.import", {"id": "chat"}, file={
        **FILES, "config.json": config, "tokenizer.json": (TOKENIZERS / "qwen2" / "tokenizer.json").read_bytes()})
    for said in ("so", "<|im_end|>"):
        plain = engine.call("tokenize", {"model": "chat", "text": said})["tokens"]
        result = engine.generate({"model": "chat", "messages": [{"role": "user", "content": said}], "max_tokens": 1}, "chat.create")[2]
        assert result["usage"]["prompt_tokens"] == 1 + len(plain) + 1
    assert len(plain) > 1


def test_the_files_of_a_tokenizer_may_hold_numbers_that_no_integer_holds(engine):
    folder = TOKENIZERS / "gpt2"
    more = {"tokenizer.json": (folder / "tokenizer.json").read_bytes(),
            "tokenizer_config.json": b'{"model_max_length": 1000000000000000019884624838656, "eos_token": "<|endoftext|>"}'}
    engine.upload("model.import", {"id": "long"}, file={**FILES, **more})
    assert engine.download("model.file", {"id": "long", "name": "tokenizer_config.json"})[1] == more["tokenizer_config.json"]
    assert engine.call("tokenize", {"model": "long", "text": "a text"})["count"] > 0
