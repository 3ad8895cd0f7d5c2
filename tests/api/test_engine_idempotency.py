"""Requests with a key of the client's own: repeated until they are acknowledged, they are applied once."""

import contextlib
import random
import threading
import time

import pytest

from engine_client import PATIENCE, TEXT, Closed, Daemon, EngineError, engine, job_params, own_daemon, train
from test_engine_durability import LEDGER, STATE, full, refused, tokens

ASK = {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("keys") / "data", "--max-sessions", 40) as d:
        yield d


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=40)


@pytest.fixture(scope="module")
def weights(engine, model):
    return parts_of(engine, model)


def parts_of(engine, model):
    return {part: engine.download("model.file", {"id": model, "name": name})[1] for part, name in
            [("config", "config.json"), ("weights", "model.safetensors"), ("tokenizer", "tokenizer.json")]}


@pytest.fixture(scope="module")
def file(engine):
    return engine.add_file(TEXT)


keys = iter(range(1 << 30))


def key():
    return f"key-{next(keys)}"


@pytest.fixture(params=["durable", "in memory"])
def session(request, engine, model):
    s = engine.call("session.create", {"model": model, "prompt": "99 bottles", "durable": request.param == "durable"})["id"]
    yield s
    with contextlib.suppress(EngineError):
        engine.call("session.delete", {"id": s})


def requests(engine, model, weights, file):
    """For each method that takes a key: the request, its body, and a function that counts its effects."""
    s = engine.call("session.create", {"model": model, "prompt": "99 bottles", "durable": True})["id"]
    state = engine.download("session.export", {"id": s})[1]
    count = lambda method, params={}: len(engine.call(method, {"limit": 100, **params})["data"])
    sessions = lambda: len(engine.call("session.list")["data"])
    name = f"ft:{key()}"
    back = engine.call("session.create", {"model": model, "prompt": "99", "durable": True})["id"]
    snapshot = engine.call("snapshot.create", {"id": back})["id"]
    engine.call("session.append", {"id": back, "text": "x"})
    return {
        "file.create": ({"filename": "a", "purpose": "fine-tune"}, {"file": b"x" * 700000}, lambda: count("file.list"), {"file": b"y"}),
        "model.import": ({"id": name}, weights, lambda: len(engine.call("model.list")["data"]), {**weights, "config": b"{}"}),
        "job.create": (job_params(file, 1), {}, lambda: count("job.list"), {"seed": 8}),
        "session.create": ({"model": model, "durable": True}, {}, sessions, {"explain": True}),
        "session.import": ({"model": model}, {"state": state}, sessions, {"state": state[:-1]}),
        "session.fork": ({"id": s}, {}, sessions, {"id": "sess-other"}),
        "session.rollback": ({"id": back, "snapshot": snapshot}, {}, lambda: 3 - tokens(engine, back), {"snapshot": "other"}),
        "snapshot.create": ({"id": s, "name": "n"}, {}, lambda: count("snapshot.list", {"id": s}), {"name": "m"}),
        "session.append": ({"id": s, "text": "99"}, {}, lambda: (tokens(engine, s) - 10) // 2, {"text": "98"}),
        "session.generate": ({"id": s, "max_tokens": 2, "seed": 1}, {}, lambda: (tokens(engine, s) - 10) // 2, {"seed": 2}),
    }


METHODS = ["file.create", "model.import", "job.create", "session.create", "session.import", "session.fork", "snapshot.create", "session.rollback", "session.append",
           "session.generate"]


def ask(engine, method, params, parts):
    """(events, RESULT)"""
    if parts:
        return [], engine.upload(method, params, **parts)
    call = engine.begin(method, params, credit=1 << 20)
    return list(call.events()), call.result()


@pytest.mark.parametrize("method", METHODS)
def test_a_repeat_gets_the_answer_of_the_first_and_changes_nothing(engine, model, weights, file, method):
    params, parts, applied, other = requests(engine, model, weights, file)[method]
    params = {**params, "idempotency_key": key()}
    before = applied()
    first = ask(engine, method, params, parts)
    for _ in range(3):
        assert ask(engine, method, params, parts) == first
    assert applied() == before + 1
    wrong = ({**params, **other}, {}) if not parts else (params, {**parts, **other})
    assert refused(ask, engine, method, *wrong).code == "idempotency_mismatch"
    assert applied() == before + 1


@pytest.mark.parametrize("method", METHODS)
def test_a_repeat_of_a_request_that_failed_is_a_first_one(daemon, engine, model, weights, file, method):
    params, parts, applied, _ = requests(engine, model, weights, file)[method]
    params = {**params, "idempotency_key": key()}
    before = applied()
    for most in (STATE, LEDGER):
        with full(daemon, most):
            if method not in ("file.create", "job.create") or most == STATE:
                refused(ask, engine, method, params, parts)
        assert applied() == before
    first = ask(engine, method, params, parts)
    assert ask(engine, method, params, parts) == first
    assert applied() == before + 1


@pytest.mark.parametrize("method", METHODS)
def test_while_the_first_runs_a_repeat_is_refused_as_in_progress(daemon, engine, model, weights, file, method):
    params, parts, applied, _ = requests(engine, model, weights, file)[method]
    params = {**params, "idempotency_key": key()}
    before, answers, refusals = applied(), [], []

    def client():
        with daemon.connect() as e:
            while True:
                try:
                    answers.append(ask(e, method, params, parts))
                    return
                except EngineError as why:
                    assert why.code == "idempotency_in_progress", why
                    refusals.append(why)

    threads = [threading.Thread(target=client) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert len(answers) == 6 and all(a == answers[0] for a in answers)
    assert applied() == before + 1


def test_a_request_with_the_key_of_a_running_one_is_refused(engine, model, session):
    params = {"id": session, "idempotency_key": key(), **ASK}
    call = engine.begin("session.generate", params, credit=1)
    call.next()
    assert refused(engine.call, "session.generate", params).code == "idempotency_in_progress"
    assert refused(engine.call, "session.create", {"model": model, "idempotency_key": params["idempotency_key"]}).status == 409
    call.grant(100)
    call.result()
    assert engine.call("session.generate", params)["session"]["tokens"] == 22


def test_a_generation_continues_when_its_client_is_gone_and_the_repeat_gets_its_text(daemon, engine, model, session):
    params = {"id": session, "idempotency_key": key(), **ASK, "max_tokens": 40}
    expected = engine.generate({"model": model, "prompt": "99 bottles", **ASK, "max_tokens": 40})[0]
    with daemon.connect() as other:
        other.begin("session.generate", params, credit=2).next()

    def again():
        with contextlib.suppress(EngineError):
            return engine.generate(params, "session.generate")

    assert engine.wait(again)[0] == expected
    assert tokens(engine, session) == 50


def test_a_repeated_generation_is_sent_as_the_client_has_credit(engine, session):
    params = {"id": session, "idempotency_key": key(), **ASK, "logprobs": 2}
    events = ask(engine, "session.generate", params, {})[0]
    call = engine.begin("session.generate", params, credit=1)
    assert call.next()[1] == events[0]
    time.sleep(0.05)
    assert call.frames.empty()
    call.grant(1)
    assert call.next()[1] == events[1]
    call.grant(100)
    assert list(call.events()) == events[2:]
    assert call.result()["session"]["tokens"] == 22


@pytest.mark.parametrize("params,code", [
    ({"idempotency_key": 7}, "invalid_type"), ({"idempotency_key": ""}, "invalid_value"),
    ({"idempotency_key": "x" * 256}, "invalid_value"), ({"idempotency_key": "a\0b"}, "invalid_value"),
    ({"idempotency_key": "k", "stream": True}, "invalid_value")])
def test_a_key_that_cannot_be_is_refused(engine, session, params, code):
    e = refused(engine.call, "session.generate", {"id": session, **ASK, **params})
    assert (e.status, e.code, e.param) == (400, code, "idempotency_key")
    assert tokens(engine, session) == 10


def test_a_method_that_changes_nothing_for_good_takes_no_key(engine, model):
    assert refused(engine.call, "completion.create", {"model": model, "prompt": "9", "idempotency_key": "k"}).code == "unknown_parameter"


def test_a_null_key_is_none(engine, session):
    for n in (12, 14):
        assert engine.call("session.append", {"id": session, "text": "99", "idempotency_key": None})["tokens"] == n


def test_kept_answers_survive_a_restart_and_those_of_sessions_that_do_not_are_gone_with_them(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        asked = {k: {"model": model, "prompt": "99", "durable": k == "kept", "idempotency_key": k} for k in ("kept", "gone")}
        first = {k: engine.call("session.create", p)["id"] for k, p in asked.items()}
    daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        assert engine.call("session.create", asked["kept"])["id"] == first["kept"]
        assert engine.call("session.create", asked["gone"])["id"] != first["gone"]
        assert len(engine.call("session.list")["data"]) == 2
    assert daemon.stop() == 0


def test_a_client_that_repeats_through_kills_ends_with_everything_applied_once(own_daemon):
    daemon, rng = own_daemon(), random.Random(3)
    with daemon.connect() as engine:
        model = train(engine, 20)
        ids = [engine.call("session.create", {"model": model, "durable": True, "position_policy": "wrap"})["id"] for _ in range(4)]
        state = engine.download("session.export", {"id": ids[0]})[1]
        weights, file = parts_of(engine, model), engine.add_file(TEXT)
    steps, done, end = [0] * 4, threading.Event(), time.monotonic() + 6

    def persist(method, params, **parts):
        params = {**params, "idempotency_key": key()}
        while time.monotonic() < end + PATIENCE:
            try:
                with daemon.connect() as e:
                    return ask(e, method, params, parts)[1]
            except EngineError as why:
                assert why.code == "idempotency_in_progress", why
            except (Closed, OSError, AssertionError):
                pass  # it is being killed, or not yet back
            time.sleep(0.005)

    made = []

    def client(i):
        while time.monotonic() < end:
            persist("session.append", {"id": ids[i], "text": "99"})
            persist("session.generate", {"id": ids[i], "max_tokens": 3})
            steps[i] += 5
            made.append(persist("file.create", {"filename": "a", "purpose": "p"}, file=b"x" * 1000)["id"])
            made.append(persist("session.fork", {"id": ids[i]})["id"])
            made.append(persist("session.import", {"model": model}, state=state)["id"])
            if i == 0:
                made.append(persist("model.import", {"id": f"m-{key()}"}, **weights)["id"])
                made.append(persist("job.create", job_params(file, 1))["id"])

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    kills = 0
    while any(t.is_alive() for t in threads):
        time.sleep(0.05 + rng.random() * 0.4)
        if time.monotonic() < end:
            daemon.kill()
            daemon.start()
            kills += 1
    with daemon.connect() as engine:
        assert [tokens(engine, s) for s in ids] == steps
        files = {f["id"] for f in engine.call("file.list", {"limit": 10000})["data"]} 
        sessions = {s["id"] for s in engine.call("session.list")["data"]}
        assert kills >= 5 and sum(steps) > 50
        assert sessions == set(ids) | {m for m in made if m.startswith("sess-")}
        assert len(files) == 2 + sum(m.startswith("file-") for m in made)
        assert len(engine.call("job.list", {"limit": 10000})["data"]) == 1 + sum(m.startswith("ftjob-") for m in made)
        imported = [m["id"] for m in engine.call("model.list")["data"] if m["id"].startswith("m-")]
        assert sorted(imported) == sorted(m for m in made if m.startswith("m-"))
        for s in sessions:  # the state of each exists
            engine.generate({"id": s, "prompt": "9", "max_tokens": 1}, "session.generate")
    assert daemon.stop() == 0
