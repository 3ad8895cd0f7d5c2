"""additived: a model is kept in memory as fp32, bf16 or int8, as it was last asked for."""

import math

import pytest

from engine_client import Daemon, EngineError, own_daemon, train

DTYPES = ["fp32", "bf16", "int8"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("dtype") / "data", "--max-models", 2, "--max-sessions", 4) as d, d.connect() as e:
        yield e


@pytest.fixture(scope="module")
def trained(engine):
    return train(engine, steps=60)


@pytest.fixture
def model(engine, trained):
    yield trained
    for s in engine.call("session.list")["data"]:
        engine.call("session.delete", {"id": s["id"]})
    engine.call("model.load", {"id": trained, "dtype": "fp32"})


def load(engine, model, dtype=None):
    return engine.call("model.load", {"id": model, **({"dtype": dtype} if dtype else {})})["additive"]


def shown(engine, model):
    more = engine.call("model.get", {"id": model})["additive"]
    listed = next(m for m in engine.call("model.list")["data"] if m["id"] == model)["additive"]
    assert more == listed
    return more["dtype"], more["loaded"]


def refused(engine, method, params, **kw):
    with pytest.raises(EngineError) as e:
        engine.call(method, params, **kw)
    return e.value


def first_logprobs(engine, model):
    """{token: log-probability} of the likeliest first tokens of a text."""
    _, events, _ = engine.generate({"model": model, "prompt": "99 bottles of", "max_tokens": 1, "temperature": 0, "logprobs": 10})
    return events[0]["logprobs"]["top_logprobs"][0]


def test_the_choice_stays_until_another_is_made(engine, model):
    assert shown(engine, model)[0] == "fp32"
    for dtype in ("int8", "bf16", "fp32", "int8"):
        assert load(engine, model, dtype)["dtype"] == dtype
        assert shown(engine, model) == (dtype, True)
        assert load(engine, model)["dtype"] == dtype
    assert engine.call("model.unload", {"id": model})["additive"]["dtype"] == "int8"
    assert shown(engine, model) == ("int8", False)
    engine.generate({"model": model, "prompt": "9", "max_tokens": 1})
    assert shown(engine, model) == ("int8", True)


@pytest.mark.parametrize("dtype,tolerance", [("bf16", 0.1), ("int8", 0.3)])
def test_fewer_bits_give_almost_the_same_probabilities(engine, model, dtype, tolerance):
    exact = first_logprobs(engine, model)
    load(engine, model, dtype)
    near = first_logprobs(engine, model)
    common = exact.keys() & near.keys()
    assert len(common) >= 5
    differences = [abs(exact[t] - near[t]) for t in common]
    assert 0 < max(differences) and not max(differences) > tolerance
    assert first_logprobs(engine, model) == near
    load(engine, model, "fp32")
    assert first_logprobs(engine, model) == exact


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_session_is_the_same_however_it_is_read_in(engine, model, dtype):
    load(engine, model, dtype)
    ask = {"max_tokens": 12, "temperature": 0.8, "seed": 3}
    whole = engine.generate({"model": model, "prompt": "57 bottles of ", **ask, "max_tokens": 24})[0]
    s = engine.call("session.create", {"model": model, "prompt": "57 bottles of "})["id"]
    copy = engine.call("session.fork", {"id": s})["id"]
    texts = []
    for one in (s, copy):
        texts.append("".join(engine.generate({"id": one, **ask}, "session.generate")[0] for _ in range(2)))
    assert texts == [whole, whole]


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_an_explanation_is_of_the_weights_that_are_served(engine, model, dtype):
    def alpha():
        return [row["alpha"] for row in engine.call("explain", {"model": model, "input": "45 bottles of beer"})["weights"]]

    exact = alpha()
    load(engine, model, dtype)
    near = alpha()
    assert near != exact
    for a, b in zip(exact, near):
        assert math.isclose(sum(b), 1, abs_tol=1e-4) and not max(abs(x - y) for x, y in zip(a, b)) > 0.1
    s = engine.call("session.create", {"model": model, "prompt": "45 bottles of beer", "explain": True})["id"]
    live = [row["alpha"] for row in engine.call("session.alpha", {"id": s})["weights"]]
    for a, b in zip(near, live):
        assert not max(abs(x - y) for x, y in zip(a, b)) > 1e-3


def test_a_model_in_use_keeps_its_dtype(engine, model):
    s = engine.call("session.create", {"model": model, "prompt": "9"})["id"]
    e = refused(engine, "model.load", {"id": model, "dtype": "int8"})
    assert (e.status, e.code) == (409, "model_in_use")
    assert load(engine, model, "fp32")["loaded"]
    engine.call("session.delete", {"id": s})
    call = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 100}, credit=1)
    call.next()
    e = refused(engine, "model.load", {"id": model, "dtype": "int8"})
    assert (e.status, e.code) == (409, "model_in_use")
    call.cancel()
    with pytest.raises(EngineError):
        call.result()
    assert shown(engine, model) == ("fp32", True)
    assert load(engine, model, "int8")["dtype"] == "int8"


def test_a_stored_session_keeps_its_models_dtype(engine, model):
    """More durable sessions than slots: the first is on disk only, and still uses the model."""
    load(engine, model, "int8")
    made = [engine.call("session.create", {"model": model, "prompt": "9", "durable": True})["id"] for _ in range(5)]
    for s in made[1:]:
        engine.call("session.delete", {"id": s})
    e = refused(engine, "model.load", {"id": model, "dtype": "fp32"})
    assert (e.status, e.code, e.param) == (409, "model_in_use", "dtype")
    engine.call("model.unload", {"id": model})
    assert refused(engine, "model.load", {"id": model, "dtype": "fp32"}).status == 409
    assert engine.generate({"id": made[0], "max_tokens": 3}, "session.generate")[0]
    engine.call("session.delete", {"id": made[0]})
    assert load(engine, model, "fp32")["dtype"] == "fp32"


def test_a_state_belongs_to_the_weights_it_was_made_with(engine, model):
    states = {}
    for dtype in DTYPES:
        load(engine, model, dtype)
        s = engine.call("session.create", {"model": model, "prompt": "99 bottles"})["id"]
        states[dtype] = engine.download("session.export", {"id": s})[1]
        engine.call("session.delete", {"id": s})
    for dtype in DTYPES:
        load(engine, model, dtype)
        for other in DTYPES:
            if other == dtype:
                s = engine.upload("session.import", {"model": model}, state=states[other])
                assert s["tokens"] == len("99 bottles")
                engine.call("session.delete", {"id": s["id"]})
            else:
                with pytest.raises(EngineError) as e:
                    engine.upload("session.import", {"model": model}, state=states[other])
                assert e.value.status == 400 and "another model" in e.value.message


@pytest.mark.parametrize("dtype,code", [("fp16", "invalid_value"), ("INT8", "invalid_value"), ("", "invalid_value"),
                                        (8, "invalid_type"), (["int8"], "invalid_type")])
def test_a_wrong_dtype_is_refused_by_name(engine, model, dtype, code):
    e = refused(engine, "model.load", {"id": model, "dtype": dtype})
    assert (e.status, e.param, e.code) == (400, "dtype", code)
    assert shown(engine, model)[0] == "fp32"
    assert refused(engine, "model.load", {"id": "nobody", "dtype": "int8"}).status == 404


def test_a_model_pushed_out_of_memory_comes_back_as_it_was(engine, model):
    config, weights = (engine.download("model.file", {"id": model, "name": n})[1] for n in ("config.json", "model.safetensors"))
    others = ["other-1", "other-2"]
    load(engine, model, "int8")
    expected = first_logprobs(engine, model)
    for other in others:
        engine.upload("model.import", {"id": other}, config=config, weights=weights)
        assert load(engine, other, "bf16")["dtype"] == "bf16"
    assert shown(engine, model) == ("int8", False)
    assert first_logprobs(engine, model) == expected
    assert shown(engine, model) == ("int8", True)
    for other in others:
        assert shown(engine, other)[0] == "bf16"
        engine.call("model.delete", {"id": other})
    engine.upload("model.import", {"id": others[0]}, config=config, weights=weights)
    assert shown(engine, others[0])[0] == "fp32"  # a new model of an old name
    engine.call("model.delete", {"id": others[0]})


def test_the_files_stay_as_they_are_and_training_continues_from_them(engine, model):
    before = engine.download("model.file", {"id": model, "name": "model.safetensors"})[1]
    load(engine, model, "int8")
    assert engine.download("model.file", {"id": model, "name": "model.safetensors"})[1] == before
    file = engine.add_file("99 bottles of beer on the wall. " * 40)
    job = engine.call("job.create", {"model": model, "training_file": file, "additive": {"max_steps": 2, "sequence_length": 64}})
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded" and shown(engine, done["fine_tuned_model"])[0] == "fp32"


def test_the_choice_survives_kill_9_for_models_and_checkpoints(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine, steps=20, checkpoint_every=10)
        job = engine.call("job.list")["data"][0]["id"]
        checkpoint = engine.call("job.checkpoints", {"id": job})["data"][0]["id"]
        load(engine, model, "int8")
        load(engine, checkpoint, "bf16")
        expected = first_logprobs(engine, model), first_logprobs(engine, checkpoint)
    daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        assert shown(engine, model) == ("int8", False)
        assert engine.call("model.get", {"id": checkpoint})["additive"]["dtype"] == "bf16"
        assert (first_logprobs(engine, model), first_logprobs(engine, checkpoint)) == expected
    assert daemon.stop() == 0
