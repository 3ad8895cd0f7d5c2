"""additived: a model's weights are read in small steps, while everything else continues."""

import time

import pytest

from engine_client import ERROR, RESULT, TEXT, Daemon, EngineError, job_params, train

ASK = {"prompt": "99 bottles", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("loading") / "data", "--max-models", 2) as daemon, daemon.connect() as e:
        yield e


@pytest.fixture(scope="module")
def small(engine):
    return train(engine, steps=2)


@pytest.fixture(scope="module")
def trained(engine):
    """Return a model of about 40 MB, which takes several steps to read."""
    params = job_params(engine.add_file(TEXT), 1)
    params["additive"] = {"max_steps": 1, "sequence_length": 8, "batch_size": 1,
                          "config": {"hidden_size": 384, "n_heads": 4, "n_layer": 6, "n_positions": 64}}
    job = engine.wait_job(engine.call("job.create", params)["id"])
    assert job["status"] == "succeeded", job
    return job["fine_tuned_model"]


@pytest.fixture
def large(engine, trained):
    engine.call("model.unload", {"id": trained})
    assert not engine.call("model.get", {"id": trained})["additive"]["loaded"]
    return trained


def longest_pause_of_a_load(engine, stream, model):
    """The longest time between two tokens of a stream while the model is loaded, as a share of the load's time."""
    engine.call("model.unload", {"id": model})
    while not stream.frames.empty():
        stream.next()
    began = time.monotonic()
    assert engine.call("model.load", {"id": model})["additive"]["loaded"]
    seconds = time.monotonic() - began
    pauses = []
    while not pauses or not stream.frames.empty():
        kind, event, _ = stream.next()
        assert kind not in (RESULT, ERROR)
        pauses.append(event["time_ms"])
    return max(pauses) / 1000 / seconds


def test_a_stream_continues_while_another_model_is_loaded(engine, small, large):
    session = engine.call("session.create", {"model": small, "position_policy": "wrap"})["id"]
    stream = engine.begin("session.generate", {"id": session, "prompt": "99", "max_tokens": 60000,
                                               "logit_bias": {"1": -100}}, credit=1 << 20)
    shares = []
    while not shares or (shares[-1] > 0.5 and len(shares) < 5):  # again: the machine may have been busy elsewhere
        shares.append(longest_pause_of_a_load(engine, stream, large))
    assert shares[-1] <= 0.5, shares
    stream.cancel()
    with pytest.raises(EngineError):
        stream.result()
    engine.call("session.delete", {"id": session})


def test_requests_that_come_at_once_share_one_load(engine, small, large):
    calls = [engine.begin("completion.create", {"model": large, **ASK}, credit=64) for _ in range(6)]
    calls.append(engine.begin("completion.create", {"model": small, **ASK}, credit=64))
    texts = ["".join(e["text"] for e in call.events()) for call in calls]
    for call in calls:
        assert call.result()
    assert set(texts[:6]) == {engine.generate({"model": large, **ASK})[0]}
    assert texts[6] == engine.generate({"model": small, **ASK})[0]


def test_a_request_cancelled_while_its_model_is_loaded_ends_as_cancelled(engine, large):
    for _ in range(3):
        call = engine.begin("completion.create", {"model": large, **ASK}, credit=64)
        call.cancel()
        with pytest.raises(EngineError) as e:
            assert not list(call.events())
            call.result()
        assert e.value.code == "cancelled"
        engine.call("model.unload", {"id": large})
    assert engine.generate({"model": large, **ASK})[2]


def test_a_session_is_created_and_used_while_its_model_is_loaded(engine, large):
    creates = [engine.begin("session.create", {"model": large}) for _ in range(3)]
    sessions = [c.result()["id"] for c in creates]
    assert len({engine.generate({"id": s, **ASK}, "session.generate")[0] for s in sessions}) == 1
    for s in sessions:
        engine.call("session.delete", {"id": s})


def test_a_model_that_is_being_loaded_cannot_be_unloaded_or_deleted(engine, large):
    load = engine.begin("model.load", {"id": large})
    for method in ("model.unload", "model.delete"):
        with pytest.raises(EngineError) as e:
            engine.call(method, {"id": large})
        assert (e.value.status, e.value.code) == (409, "model_in_use")
        assert load.frames.empty()
    assert load.result()["additive"]["loaded"]


def test_a_load_with_another_dtype_comes_after_the_one_under_way(engine, large):
    first = engine.begin("model.load", {"id": large})
    second = engine.begin("model.load", {"id": large, "dtype": "int8"})
    third = engine.begin("completion.create", {"model": large, **ASK}, credit=64)
    assert first.result()["additive"]["loaded"]
    assert second.result()["additive"]["dtype"] == "int8"
    assert third.result()
    assert engine.call("model.get", {"id": large})["additive"]["dtype"] == "int8"
    assert engine.call("model.load", {"id": large, "dtype": "fp32"})["additive"]["dtype"] == "fp32"


def test_a_daemon_that_is_stopped_while_it_loads_ends_well(tmp_path, engine, trained):
    files = {p: engine.download("model.file", {"id": trained, "name": f})[1]
             for p, f in (("config", "config.json"), ("weights", "model.safetensors"))}
    with Daemon(tmp_path / "data") as daemon, daemon.connect() as other:
        other.upload("model.import", {"id": "big"}, **files)
        other.begin("completion.create", {"model": "big", **ASK}, credit=64)
        assert daemon.stop() == 0
