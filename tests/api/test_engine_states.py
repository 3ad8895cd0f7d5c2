"""A state in the answer continues without a session, on any engine with the same weights."""

import base64

import pytest

from engine_client import TINY_GPT2, Daemon, EngineError, engine, own_daemon, train
from engine_serving import refused

ASK = {"max_tokens": 8, "temperature": 0}
LIMIT = 8 << 20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("states") / "data", "--max-sessions", 4) as d:
        yield d


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=40)


@pytest.fixture(scope="module")
def weights(engine, model):
    return {part: engine.download("model.file", {"id": model, "name": name})[1] for part, name in (("config", "config.json"), ("weights", "model.safetensors"))}


def complete(engine, **params):
    text, _, result = engine.generate(params)
    return text, result


def sessions(engine):
    return engine.call("session.list")["data"]


@pytest.mark.parametrize("more", [ASK, {"max_tokens": 8, "seed": 5}, {"max_tokens": 8, "seed": 5, "frequency_penalty": 1.2, "repetition_penalty": 1.2}])
def test_a_state_continues_a_completion_as_a_session_does(engine, model, more):
    s = engine.call("session.create", {"model": model, "prompt": "99 bottles"})["id"]
    expected = [engine.generate({"id": s, "prompt": text, **more}, "session.generate")[0] for text in ("", " of", "")]
    tokens = engine.call("session.get", {"id": s})["tokens"]
    first, result = complete(engine, model=model, prompt="99 bottles", return_state=True, **more)
    assert "session" not in result and result["state"].keys() == {"blob", "model", "hash", "tokens"}
    assert (result["state"]["model"], result["state"]["tokens"]) == (model, 18)
    second, result = complete(engine, model=model, prompt=" of", state=result["state"], return_state=True, **more)
    third, result = complete(engine, model=model, prompt="", state=result["state"]["blob"], return_state=True, **more)
    assert [first, second, third] == expected and result["state"]["tokens"] == tokens
    assert base64.b64decode(result["state"]["blob"]) == engine.download("session.export", {"id": s})[1]
    engine.call("session.delete", {"id": s})
    assert sessions(engine) == []


def test_sessions_return_their_states_and_stay(engine, model):
    for durable in (False, True):
        s = engine.call("session.create", {"model": model, "prompt": "99 bottles", "durable": durable})["id"]
        result = engine.generate({"id": s, "return_state": True, **ASK}, "session.generate")[2]
        assert base64.b64decode(result["state"]["blob"]) == engine.download("session.export", {"id": s})[1]
        appended = engine.call("session.append", {"id": s, "text": "!", "return_state": True})
        assert base64.b64decode(appended["state"]["blob"]) == engine.download("session.export", {"id": s})[1]
        assert appended["object"] == "session" and appended["state"]["tokens"] == appended["tokens"]
        text = engine.generate({"id": s, **ASK}, "session.generate")[0]
        assert complete(engine, model=model, prompt="", state=appended["state"], **ASK)[0] == text
        assert "state" not in engine.call("session.append", {"id": s, "text": "!"})
        assert [x["id"] for x in sessions(engine)] == [s]
        engine.call("session.delete", {"id": s})


def test_answers_without_a_session_are_the_same_with_the_state(engine, model):
    ask = {"model": model, "prompt": "99 bottles", "max_tokens": 8, "seed": 3, "logprobs": 2, "alpha": {"top": 2}}
    strip = lambda events: [{k: v for k, v in e.items() if k != "time_ms"} for e in events]
    plain, with_state = engine.generate(ask), engine.generate({**ask, "return_state": True})
    assert strip(plain[1]) == strip(with_state[1]) and plain[2]["choices"] == with_state[2]["choices"]
    assert plain[2]["usage"] == with_state[2]["usage"] and "state" not in plain[2]


def test_a_state_moves_to_another_engine_with_the_same_weights_only(engine, model, weights, own_daemon):
    first, result = complete(engine, model=model, prompt="99 bottles", return_state=True, **ASK)
    expected = complete(engine, model=model, prompt="", state=result["state"], **ASK)[0]
    other = own_daemon()
    with other.connect() as there:
        there.upload("model.import", {"id": "copy"}, **weights)
        assert complete(there, model="copy", prompt="", state=result["state"], **ASK)[0] == expected
        foreign = train(there, steps=3)
        e = refused(there, "completion.create", {"model": foreign, "prompt": "", "state": result["state"], **ASK})
        assert (e.status, e.code, e.param) == (400, "invalid_request", "state") and "another model" in e.message
    assert other.stop() == 0


def test_a_damaged_state_is_refused_by_name_and_leaves_nothing(engine, model):
    blob = complete(engine, model=model, prompt="99 bottles", return_state=True, **ASK)[1]["state"]["blob"]
    raw = base64.b64decode(blob)
    for at in range(0, len(raw), max(1, len(raw) // 40)):
        bad = base64.b64encode(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:]).decode()
        e = refused(engine, "completion.create", {"model": model, "prompt": "", "state": bad})
        assert (e.status, e.param) == (400, "state") and e.code in ("corrupt_data", "unsupported"), e
    for bad in ("", "AAAA", "no base64!", blob[:-8], blob[4:], "hs256." + blob, "A" * (LIMIT * 4 // 3 + 8192)):
        e = refused(engine, "completion.create", {"model": model, "prompt": "", "state": bad})
        assert e.status == (413 if len(bad) > LIMIT else 400) and e.param == "state", e
        assert e.status == 400 or str(LIMIT) in e.message
    for bad in (7, {}, {"blob": 7}, {"blob": blob, "x": 1}):
        assert refused(engine, "completion.create", {"model": model, "prompt": "", "state": bad}).status == 400
    assert sessions(engine) == []
    assert complete(engine, model=model, prompt="", state=blob, **ASK)[0]


@pytest.mark.parametrize("more,param", [({"n": 2}, "n"), ({"best_of": 2}, "best_of"), ({"num_beams": 2}, "num_beams"), ({"echo": True}, "echo"),
                                        ({"prompt_logprobs": 0}, "prompt_logprobs"), ({"prompt": ["a", "b"]}, "prompt")])
def test_a_state_is_of_one_text(engine, model, more, param):
    e = refused(engine, "completion.create", {"model": model, "prompt": "a", "return_state": True, **more})
    assert (e.status, e.param) == (400, param)
    assert sessions(engine) == []


def test_a_cancelled_request_leaves_no_session(engine, model):
    for _ in range(6):  # more than there are slots
        call = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 400, "return_state": True}, credit=1)
        call.next()
        assert sessions(engine) == []
        call.cancel()
        with pytest.raises(EngineError):
            call.result()
    assert complete(engine, model=model, prompt="9", return_state=True, **ASK)[1]["state"]


def test_a_state_that_is_too_large_is_refused_with_the_number(engine):
    large = engine.call("job.create", {"model": "gpt2", "training_file": engine.add_file("some text " * 400), "additive": {
        "config": {"n_embd": 256, "n_head": 2, "n_layer": 6, "n_positions": 1024}, "sequence_length": 16, "batch_size": 1, "max_steps": 1}})
    model = engine.wait_job(large["id"])["fine_tuned_model"]
    e = refused(engine, "completion.create", {"model": model, "prompt": "some", "return_state": True, **ASK})
    assert (e.status, e.param) == (413, "return_state") and str(LIMIT) in e.message
    s = engine.call("session.create", {"model": model, "prompt": "some"})
    assert str(s["state_bytes"] + 4 * 259) in e.message  # its logits are of 259 bytes and special tokens
    assert refused(engine, "session.append", {"id": s["id"], "text": "x", "return_state": True}).status == 413
    assert engine.call("session.get", {"id": s["id"]})["tokens"] == s["tokens"]
    engine.call("session.delete", {"id": s["id"]})


def test_a_key_seals_states_and_is_required(own_daemon, engine, model, weights, tmp_path):
    key = tmp_path / "key"
    key.write_text("a key of some length\n")
    plain = complete(engine, model=model, prompt="99 bottles", return_state=True, **ASK)[1]["state"]["blob"]
    daemon = own_daemon("--state-key-file", key)
    with daemon.connect() as there:
        there.upload("model.import", {"id": "copy"}, **weights)
        sealed = complete(there, model="copy", prompt="99 bottles", return_state=True, **ASK)[1]["state"]["blob"]
        assert sealed.startswith("hs256.")
        text = complete(there, model="copy", prompt="", state=sealed, **ASK)[0]
        raw = base64.b64decode(sealed[6:])
        for bad in (plain, "hs256." + plain, sealed[6:], "hs256." + base64.b64encode(raw[:-1] + bytes([raw[-1] ^ 1])).decode()):
            e = refused(there, "completion.create", {"model": "copy", "prompt": "", "state": bad})
            assert (e.status, e.code, e.param) == (400, "corrupt_data", "state")
    e = refused(engine, "completion.create", {"model": model, "prompt": "", "state": sealed})
    assert (e.status, e.param) == (400, "state") and "key" in e.message
    assert complete(engine, model=model, prompt="", state=base64.b64encode(raw[:-32]).decode(), **ASK)[0] == text
    assert daemon.stop() == 0
