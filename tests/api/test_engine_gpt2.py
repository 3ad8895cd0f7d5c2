"""additived: gpt2 is trained, served, moved and explained like any other architecture."""

import json

import pytest

from engine_client import TINY_GPT2, Daemon, EngineError, job_params, TEXT, train


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("gpt2") / "data") as d, d.connect() as e:
        yield e


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=60, architecture="gpt2")


def refused(engine, method, params):
    with pytest.raises(EngineError) as e:
        engine.call(method, params)
    return e.value


def test_it_is_shown_with_its_own_keys(engine, model):
    shown = engine.call("model.get", {"id": model})["additive"]
    assert shown["architecture"] == "gpt2" and model.startswith("ft:gpt2:")
    assert {k: shown["config"][k] for k in TINY_GPT2["config"]} == TINY_GPT2["config"]
    assert shown["config"]["model_type"] == "gpt2" and shown["config"]["vocab_size"] == 259
    assert shown["n_positions"] == 128
    d, layers = 16, 2
    assert shown["parameters"] == (259 + 128) * d + layers * (12 * d * d + 13 * d) + 2 * d
    assert shown["state_bytes"] >= layers * 2 * 128 * d * 4  # a cache of keys and values


def test_it_learns(engine):
    done = engine.wait_job(engine.call("job.create", job_params(engine.add_file(TEXT), 80, "gpt2"))["id"])
    assert done["status"] == "succeeded" and done["additive"]["valid_loss"] < 4


def test_recomputed_activations_give_the_same_weights(engine):
    weights = [engine.download("model.file", {"id": train(engine, 6, architecture=a, recompute=r), "name": "model.safetensors"})[1]
               for a in ("gpt2", "additive") for r in (False, True)]
    assert weights[0] == weights[1] and weights[2] == weights[3] and weights[0] != weights[2]


def test_training_continues_from_a_model_and_from_a_checkpoint(engine, model):
    more = engine.call("job.create", {"model": model, "training_file": engine.add_file(TEXT), "seed": 1,
                                      "additive": {"max_steps": 4, "sequence_length": 64, "checkpoint_every": 2}})
    done = engine.wait_job(more["id"])
    assert done["status"] == "succeeded" and done["fine_tuned_model"].startswith("ft:gpt2:")
    checkpoint = engine.call("job.checkpoints", {"id": more["id"]})["data"][-1]["id"]
    assert engine.generate({"model": checkpoint, "prompt": "9", "max_tokens": 4})[0]


def test_a_session_continues_where_it_stopped_and_forks_and_moves(engine, model):
    ask = {"max_tokens": 10, "temperature": 0.8, "seed": 11}
    whole = engine.generate({"model": model, "prompt": "57 bottles of ", **ask, "max_tokens": 20})[0]
    s = engine.call("session.create", {"model": model, "prompt": "57 bottles of "})
    first = engine.generate({"id": s["id"], **ask}, "session.generate")[0]
    copy = engine.call("session.fork", {"id": s["id"]})
    state = engine.download("session.export", {"id": s["id"]})[1]
    moved = engine.upload("session.import", {"model": model}, state=state)
    assert copy["tokens"] == moved["tokens"] == 24 and s["state_bytes"] == moved["state_bytes"]
    for one in (s, copy, moved):
        assert first + engine.generate({"id": one["id"], **ask}, "session.generate")[0] == whole
        engine.call("session.delete", {"id": one["id"]})


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_a_batch_gives_each_prompt_the_text_that_it_has_alone(engine, model, dtype):
    engine.call("model.load", {"id": model, "dtype": dtype})
    prompts = ["9", "57 bottles of", "100 bottles of beer on the wall, 100"]
    ask = {"model": model, "max_tokens": 30, "temperature": 0}
    alone = [engine.generate({**ask, "prompt": p})[0] for p in prompts]
    _, events, _ = engine.generate({**ask, "prompt": prompts})
    assert ["".join(e["text"] for e in events if e["index"] == i) for i in range(3)] == alone


def test_at_its_last_position_it_ends_or_continues_by_its_policy(engine, model):
    long = {"max_tokens": 200, "temperature": 0}
    result = engine.generate({"model": model, "prompt": "1", **long})[2]
    assert result["choices"][0]["finish_reason"] == "length" and result["usage"]["total_tokens"] == 128
    for policy in ("clamp", "wrap"):
        s = engine.call("session.create", {"model": model, "prompt": "1", "position_policy": policy})["id"]
        assert engine.generate({"id": s, **long}, "session.generate")[2]["usage"]["completion_tokens"] == 200
        engine.call("session.delete", {"id": s})


def test_it_comes_back_from_its_own_files_and_from_those_without_the_prefix(engine, model):
    files = {part: engine.download("model.file", {"id": model, "name": name})[1] for part, name in
             (("config", "config.json"), ("weights", "model.safetensors"), ("tokenizer", "tokenizer.json"))}
    size = int.from_bytes(files["weights"][:8], "little")
    header = json.loads(files["weights"][8 : 8 + size])
    assert header["transformer.h.0.attn.c_attn.weight"]["shape"] == [16, 48]  # inputs first, as Conv1D holds them
    assert "transformer.wte.weight" in header and "lm_head.weight" not in header
    bare = json.dumps({k.removeprefix("transformer."): v for k, v in header.items()}).encode()
    bare += b" " * (-len(bare) % 8)
    other = {**files, "weights": len(bare).to_bytes(8, "little") + bare + files["weights"][8 + size :]}
    ask = {"prompt": "9 bottles", "max_tokens": 12, "temperature": 0}
    expected = engine.generate({"model": model, **ask})[0]
    for name, parts in (("copy", files), ("bare", other)):
        assert engine.upload("model.import", {"id": name}, **parts)["additive"]["architecture"] == "gpt2"
        engine.call("model.load", {"id": name, "dtype": engine.call("model.get", {"id": model})["additive"]["dtype"]})
        assert engine.generate({"model": name, **ask})[0] == expected
        assert engine.download("model.file", {"id": name, "name": "model.safetensors"})[1] == parts["weights"]
        engine.call("model.delete", {"id": name})


def test_keys_and_values_in_bf16_belong_to_the_model(engine, model):
    """Trained, or imported with the key: the session has half the bytes, and is kept, forked and moved as any other."""
    other = {**TINY_GPT2["config"], "cache_dtype": "bf16"}
    trained = train(engine, steps=60, architecture="gpt2", config=other)
    files = {part: engine.download("model.file", {"id": model, "name": name})[1] for part, name in
             (("config", "config.json"), ("weights", "model.safetensors"), ("tokenizer", "tokenizer.json"))}
    config = json.loads(files["config"])
    assert "cache_dtype" not in config
    changed = {**files, "config": json.dumps({**config, "cache_dtype": "bf16"}).encode()}
    engine.upload("model.import", {"id": "halves"}, **changed)
    floats = engine.call("model.get", {"id": model})["additive"]
    for one in (trained, "halves"):
        shown = engine.call("model.get", {"id": one})["additive"]
        assert shown["config"]["cache_dtype"] == "bf16" and shown["parameters"] == floats["parameters"]
        assert shown["state_bytes"] == 2 * 128 * (16 + 1) * 4 and floats["state_bytes"] == 2 * 128 * (2 * 16 + 1) * 4
    again = json.loads(engine.download("model.file", {"id": "halves", "name": "config.json"})[1])
    assert again["cache_dtype"] == "bf16"
    ask = {"max_tokens": 10, "temperature": 0.8, "seed": 11}
    s = engine.call("session.create", {"model": "halves", "prompt": "57 bottles of ", "explain": True})
    first = engine.generate({"id": s["id"], **ask}, "session.generate")[0]
    state = engine.download("session.export", {"id": s["id"]})[1]
    both = [engine.call("session.fork", {"id": s["id"]}), engine.upload("session.import", {"model": "halves"}, state=state)]
    rest = [engine.generate({"id": one["id"], **ask}, "session.generate")[0] for one in (s, *both)]
    assert first and len(set(rest)) == 1 and all(one["state_bytes"] == s["state_bytes"] for one in both)
    assert len(engine.call("explain", {"session": s["id"]})["weights"]) == 4
    beams = engine.generate({"model": "halves", "prompt": "57 bottles", "max_tokens": 8, "num_beams": 3})[2]
    assert beams["usage"]["completion_tokens"] > 0
    with pytest.raises(EngineError) as e:  # the weights are the same, the state is not
        engine.upload("session.import", {"model": model}, state=state)
    assert e.value.status == 400
    for value in ("f16", 16, None):
        with pytest.raises(EngineError) as e:
            engine.upload("model.import", {"id": "no"}, **{**files, "config": json.dumps({**config, "cache_dtype": value}).encode()})
        assert (e.value.status, e.value.param) == (400, "cache_dtype")
    e = refused(engine, "job.create", job_params(engine.add_file(TEXT), architecture="additive", config={"cache_dtype": "bf16"}))
    assert (e.status, e.param) == (400, "additive.config.cache_dtype")
    for one in (s, *both):
        engine.call("session.delete", {"id": one["id"]})
    for one in (trained, "halves"):
        engine.call("model.delete", {"id": one})


def test_a_text_and_a_session_that_reads_it_have_the_same_explanation(engine, model):
    pick = {"position": 5, "layers": [1], "heads": [0], "rounds": ["attention"], "aggregate": "rollout"}
    a = engine.call("explain", {"model": model, "input": "9 bottles", **pick})
    [row] = a["weights"]
    assert (row["layer"], row["head"], row["round"], row["window"]) == (1, 0, "attention", [0, 5])
    assert abs(sum(row["alpha"]) - 1) < 1e-5 and len(a["aggregate"]["alpha"]) == 6
    assert len(engine.call("explain", {"model": model, "input": "9 bottles"})["weights"]) == 2 * 2  # layers, heads
    s = engine.call("session.create", {"model": model, "prompt": "9 bot", "explain": True})["id"]
    engine.call("session.append", {"id": s, "text": "tles"})
    copy = engine.upload("session.import", {"model": model}, state=engine.download("session.export", {"id": s})[1])["id"]
    for one in (s, copy):
        b = engine.call("session.alpha", {"id": one, **pick})
        assert b["tokens"] == a["tokens"]
        for x, y in ((row, b["weights"][0]), (a["aggregate"], b["aggregate"])):
            assert max(abs(p - q) for p, q in zip(x["alpha"], y["alpha"], strict=True)) < 1e-5
        engine.call("session.delete", {"id": one})


def test_weights_that_need_a_score_per_token_are_refused_with_what_to_use_instead(engine, model):
    s = engine.call("session.create", {"model": model, "prompt": "9 bottles", "explain": True})["id"]
    for method, params, param, words in (
            ("explain", {"model": model, "input": "x", "position": "all"}, "position", "one position at a time"),
            ("session.alpha", {"id": s, "position": "all"}, "position", "one position at a time"),
            ("completion.create", {"model": model, "prompt": "x", "alpha": {"top": 3}}, "alpha", "explain the text"),
            ("session.generate", {"id": s, "max_tokens": 2, "alpha": {"top": 3}}, "alpha", "a session opened with explain")):
        e = refused(engine, method, params)
        assert (e.status, e.param) == (400, param), (method, e)
        assert "gpt2" in e.message and " has no " in e.message and words in e.message
    assert engine.generate({"id": s, "max_tokens": 2}, "session.generate")[0]
    engine.call("session.delete", {"id": s})


def test_a_session_without_its_log_cannot_be_explained(engine, model):
    s = engine.call("session.create", {"model": model, "prompt": "9 bottles"})["id"]
    for method, params in (("explain", {"session": s}), ("session.alpha", {"id": s})):
        assert refused(engine, method, params).status == 409
    engine.call("session.delete", {"id": s})


@pytest.mark.parametrize("config,param", [({"n_head": 3}, "n_head"), ({"hidden_size": 16}, "hidden_size"),
                                          ({"vocab_size": 258}, "vocab_size"), ({"n_embd": 2**40}, "n_embd"),
                                          ({"window_sizes": [4, 4]}, "window_sizes"), ({"attn_pdrop": 1}, "attn_pdrop"),
                                          ({"cache_dtype": "fp16"}, "cache_dtype")])
def test_a_wrong_configuration_names_its_key(engine, config, param):
    params = job_params(engine.add_file(TEXT), architecture="gpt2", config={**TINY_GPT2["config"], **config})
    e = refused(engine, "job.create", params)
    assert (e.status, e.param) == (400, f"additive.config.{param}")


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(engine, model):
    long = "x" * 5000  # a byte is a token, and the model has 128 positions
    session = engine.call("session.create", {"model": model, "prompt": "1"})["id"]
    for method, params, field in (("completion.create", {"model": model, "prompt": long}, "prompt"),
                                  ("session.create", {"model": model, "prompt": long}, "prompt"),
                                  ("session.append", {"id": session, "text": long}, "text"),
                                  ("embed", {"model": model, "input": long}, "input"),
                                  ("explain", {"model": model, "input": long}, "input")):
        found = refused(engine, method, params)
        assert (found.param, "at least 5000 tokens" in found.message) == (field, True), (method, found.message)
    for policy in ("wrap", "clamp"):
        s = engine.call("session.create", {"model": model, "prompt": long, "position_policy": policy})
        assert s["tokens"] == 5000
        assert engine.call("session.append", {"id": s["id"], "text": long})["tokens"] == 10000
