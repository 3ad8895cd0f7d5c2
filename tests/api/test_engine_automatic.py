"""Snapshots that a session makes by itself while it reads, and before a request."""

import contextlib
import random
import threading

import pytest

from engine_client import Closed, Daemon, EngineError, engine, own_daemon, train
from engine_serving import refused
from test_engine_snapshots import files, roll, snap, state, tree

LIMIT, KEPT, EVERY = 3, 8, 16


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("automatic") / "data", "--max-sessions", 20, "--max-snapshots", LIMIT) as d:
        yield d


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=40)


@pytest.fixture(params=[False, True], ids=["in memory", "durable"])
def session(engine, model, request):
    made = []

    def make(**more):
        made.append(engine.call("session.create", {"model": model, "durable": request.param, "position_policy": "wrap", **more})["id"])
        return made[-1]

    make.made, make.durable = made, request.param
    yield make
    for s in made:
        with contextlib.suppress(EngineError):
            engine.call("session.delete", {"id": s})


def generate(engine, s, n, **more):
    """(tokens, RESULT)"""
    _, events, result = engine.generate({"id": s, "max_tokens": n, "seed": 5, **more}, "session.generate")
    return [t for e in events for t in e["tokens"]], result


def listed(engine, s):
    return engine.call("snapshot.list", {"id": s})["data"]


def automatic(engine, s):
    return [x["tokens"] for x in listed(engine, s) if x["automatic"]]


def test_a_session_makes_a_snapshot_each_time_it_passes_a_multiple(engine, session):
    text = "99 bottles of beer on the wall, 99"
    assert automatic(engine, session(prompt=text, snapshot_every=EVERY)) == [34]
    x = session(prompt="99", snapshot_every=EVERY)
    assert engine.call("session.get", {"id": x})["snapshot_every"] == EVERY
    read = engine.call("tokenize", {"model": engine.call("session.get", {"id": x})["model"], "text": text})["tokens"]
    assert automatic(engine, x) == []
    engine.call("session.append", {"id": x, "text": text[2:]})  # one piece passes 16 and 32
    assert automatic(engine, x) == [34]
    read += generate(engine, x, 33)[0]
    found = listed(engine, x)
    assert [s["tokens"] for s in found] == [64, 48, 34]
    for s in found:
        assert s["automatic"] and s["name"] is None and s["id"] == f"auto-{s['tokens']}" and s["bytes"] > 0
        y = session(prompt=read[: s["tokens"]])
        session.made.append(engine.call("session.fork", {"id": x, "snapshot": s["id"]})["id"])
        assert state(engine, session.made[-1]) == state(engine, y)
    assert [branch["snapshots"] for branch in tree(engine, x)][0] == found
    roll(engine, x, found[1])
    assert state(engine, x) == state(engine, session(prompt=read[:48]))


def test_the_newest_automatic_snapshots_are_kept_besides_those_made_by_request(engine, session):
    x = session(prompt="9", snapshot_every=EVERY)
    named = [snap(engine, x, name=f"n{i}") for i in range(LIMIT)]
    generate(engine, x, 5 * EVERY)
    generate(engine, x, 5 * EVERY)
    newest = list(range(10 * EVERY, 2 * EVERY, -EVERY))
    assert len(newest) == KEPT and automatic(engine, x) == newest
    assert [s for s in listed(engine, x) if not s["automatic"]] == named[::-1]
    assert refused(engine, "snapshot.create", {"id": x}).code == "too_many_snapshots"
    engine.call("snapshot.delete", {"id": x, "snapshot": f"auto-{newest[0]}"})
    assert automatic(engine, x) == newest[1:]
    engine.call("snapshot.delete", {"id": x, "snapshot": named[0]["id"]})
    snap(engine, x)
    generate(engine, x, EVERY)
    assert automatic(engine, x) == [11 * EVERY, *newest[1:]]


def test_a_text_that_is_read_again_replaces_its_snapshots(engine, session):
    x = session(prompt="99", snapshot_every=EVERY)
    start = snap(engine, x)
    generate(engine, x, 2 * EVERY, prompt="a")
    first = [state(engine, session.made.append(engine.call("session.fork", {"id": x, "snapshot": s})["id"]) or session.made[-1])
             for s in ("auto-16", "auto-32")]
    roll(engine, x, start)
    generate(engine, x, 2 * EVERY, prompt="z")
    assert automatic(engine, x) == [32, 16]
    second = [state(engine, session.made.append(engine.call("session.fork", {"id": x, "snapshot": s})["id"]) or session.made[-1])
              for s in ("auto-16", "auto-32")]
    assert first[0] != second[0] and first[1] != second[1]


def test_a_cancelled_generation_keeps_the_snapshots_of_what_it_has_read(engine, session):
    x = session(prompt="99", snapshot_every=EVERY)
    call = engine.begin("session.generate", {"id": x, "max_tokens": 100, "seed": 5}, credit=40)
    for _ in range(40):
        call.next()
    call.cancel()
    with pytest.raises(EngineError):
        call.result()
    tokens = engine.call("session.get", {"id": x})["tokens"]
    assert tokens >= 42 and automatic(engine, x) == list(range(tokens // EVERY * EVERY, 0, -EVERY))[:KEPT]


def test_a_fork_inherits_the_interval_and_makes_its_own(engine, session):
    x = session(prompt="99", snapshot_every=EVERY)
    generate(engine, x, EVERY)
    fork = engine.call("session.fork", {"id": x})
    session.made.append(fork["id"])
    assert fork["snapshot_every"] == EVERY and listed(engine, fork["id"]) == []
    generate(engine, fork["id"], EVERY)
    assert automatic(engine, fork["id"]) == [32] and automatic(engine, x) == [16]


@pytest.mark.parametrize("requested, name", [(True, None), ("before the tool", "before the tool")])
@pytest.mark.parametrize("method, ask", [("session.generate", {"max_tokens": 5, "seed": 1}), ("session.append", {"text": " more"})])
def test_a_request_makes_a_snapshot_before_it_begins(engine, session, requested, name, method, ask):
    x, y = session(prompt="99 bottles"), session(prompt="99 bottles")
    before = state(engine, x)
    call = engine.begin(method, {"id": x, "snapshot": requested, **ask}, credit=100)
    list(call.events())
    result, plain = call.result(), engine.begin(method, {"id": y, "snapshot": False, **ask}, credit=100)
    list(plain.events())
    made = (result["session"] if method == "session.generate" else result)["snapshot"]
    assert "snapshot" not in (plain.result().get("session") or {})
    (s,) = listed(engine, x)
    assert s.items() >= {"id": made, "name": name, "automatic": False, "tokens": 10}.items()
    assert state(engine, x) == state(engine, y) != before
    roll(engine, x, s)
    assert state(engine, x) == before and listed(engine, y) == []


def test_a_request_whose_snapshot_is_refused_reads_nothing(engine, session):
    x = session(prompt="9")
    for _ in range(LIMIT):
        snap(engine, x)
    for method, ask in [("session.generate", {"max_tokens": 5}), ("session.append", {"text": "a"})]:
        e = refused(engine, method, {"id": x, "snapshot": True, **ask})
        assert (e.status, e.code, e.param) == (409, "too_many_snapshots", "snapshot")
        for wrong in ("", "x" * 65, 7):
            e = refused(engine, method, {"id": x, "snapshot": wrong, **ask})
            assert (e.status, e.param) == (400, "snapshot")
    assert engine.call("session.get", {"id": x})["tokens"] == 1 and len(listed(engine, x)) == LIMIT


def test_a_failed_request_adds_no_snapshot_to_a_durable_session(engine, model):
    x = engine.call("session.create", {"model": model, "prompt": "9", "durable": True})["id"]
    e = refused(engine, "session.generate", {"id": x, "snapshot": True, "prompt": "a" * 300000})
    assert e.status == 400
    assert listed(engine, x) == [] and engine.call("session.get", {"id": x})["tokens"] == 1
    generate(engine, x, 2, snapshot="later")
    assert [s["name"] for s in listed(engine, x)] == ["later"]
    engine.call("session.delete", {"id": x})


@pytest.mark.parametrize("more", [{"snapshot_every": 0}, {"snapshot_every": 15}, {"snapshot_every": "16"}, {"snapshot_every": 16.5}, {"snapshot_every": 16, "explain": True}])
def test_an_interval_that_cannot_be_is_refused(engine, model, more):
    count = len(engine.call("session.list")["data"])
    e = refused(engine, "session.create", {"model": model, **more})
    assert (e.status, e.param) == (400, "snapshot_every")
    assert len(engine.call("session.list")["data"]) == count


def test_a_service_without_snapshots_refuses_the_interval(own_daemon):
    daemon = own_daemon("--max-snapshots", 0)
    with daemon.connect() as engine:
        e = refused(engine, "session.create", {"model": train(engine), "snapshot_every": EVERY})
        assert (e.status, e.param) == (400, "snapshot_every") and "--max-snapshots" in e.message
    assert daemon.stop() == 0


# --- what survives -----------------------------------------------------------------------------------

def test_a_kill_at_any_moment_leaves_whole_snapshots_and_no_files_of_others(own_daemon):
    daemon, chance = own_daemon(), random.Random(5)
    with daemon.connect() as engine:
        model = train(engine)
        x = engine.call("session.create", {"model": model, "prompt": "99", "durable": True, "snapshot_every": EVERY, "position_policy": "wrap"})["id"]
    for _ in range(6):
        answered = []
        with daemon.connect() as engine:
            killer = threading.Timer(chance.uniform(0.005, 0.15), daemon.kill)
            killer.start()
            with contextlib.suppress(Closed, OSError):
                while True:
                    answered.append(generate(engine, x, EVERY, snapshot=f"n{len(answered)}" if len(answered) < 2 else False)[1]["session"]["tokens"])
            killer.join()
        daemon.start()
        with daemon.connect() as engine:
            tokens, known = engine.call("session.get", {"id": x})["tokens"], listed(engine, x)
            assert tokens >= max(answered, default=0)
            assert automatic(engine, x) == list(range(tokens // EVERY * EVERY, 0, -EVERY))[:KEPT]
            assert len(files(daemon, x)) == len(known) + 1
            for s in known:
                fork = engine.call("session.fork", {"id": x, "snapshot": s["id"]})
                assert fork["tokens"] == s["tokens"]
                engine.call("session.delete", {"id": fork["id"]})
                if not s["automatic"]:
                    engine.call("snapshot.delete", {"id": x, "snapshot": s["id"]})
    assert daemon.stop() == 0


def test_automatic_snapshots_survive_a_kill_once_their_request_is_answered(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        x = engine.call("session.create", {"model": model, "prompt": "99", "durable": True, "snapshot_every": EVERY, "position_policy": "wrap"})["id"]
        generate(engine, x, 3 * EVERY, snapshot="first")
        known, before = listed(engine, x), state(engine, x)
        assert [(s["tokens"], s["automatic"]) for s in known] == [(48, True), (32, True), (16, True), (2, False)]
        assert len(files(daemon, x)) == 5
        call = engine.begin("session.generate", {"id": x, "max_tokens": 100, "snapshot": "lost"}, credit=20)
        for _ in range(20):
            call.next()
        daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        usage = engine.call("storage.usage")
        assert usage["damaged"] == []
        stored = sum(file.stat().st_size for file in files(daemon, x))
        assert {kind["kind"]: kind["bytes"] for kind in usage["kinds"]}["sessions"] == stored
        assert sorted(s["bytes"] for s in known) == sorted(file.stat().st_size for file in files(daemon, x)[:-1])
        assert engine.call("session.get", {"id": x})["snapshot_every"] == EVERY
        assert listed(engine, x) == known and state(engine, x) == before and len(files(daemon, x)) == 5
        for s in known:
            fork = engine.call("session.fork", {"id": x, "snapshot": s["id"]})
            assert fork["tokens"] == s["tokens"]
        generate(engine, x, 10 * EVERY)
        daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        assert automatic(engine, x) == list(range(13 * EVERY, 5 * EVERY, -EVERY)) and len(files(daemon, x)) == KEPT + 2
        assert roll(engine, x, {"id": "auto-192"})["tokens"] == 192
        engine.call("session.delete", {"id": x})
        assert files(daemon, x) == []
    assert daemon.stop() == 0
