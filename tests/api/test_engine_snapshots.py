"""Snapshots of sessions: a session that is rolled back continues as one that never read what was undone."""

import contextlib

import pytest

from engine_client import BIN, Daemon, EngineError, engine, own_daemon, train
from engine_serving import refused

LIMIT, BYTES = 5, 60000
ASK = {"max_tokens": 12, "temperature": 0}
WAYS = [ASK, {"max_tokens": 12, "seed": 9}, {"max_tokens": 12, "seed": 9, "frequency_penalty": 1.5, "repetition_penalty": 1.3},
        {"max_tokens": 12, "seed": 9, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["ab", "ac"]}}}}]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("snapshots") / "data", "--max-sessions", 10, "--max-snapshots", LIMIT,
                "--snapshot-bytes", BYTES) as d:
        yield d


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=40)


@pytest.fixture(params=[False, True], ids=["in memory", "durable"])
def durable(request):
    return request.param


@pytest.fixture
def session(engine, model, durable):
    made = []

    def make(**more):
        made.append(engine.call("session.create", {"model": model, "durable": durable, **more})["id"])
        return made[-1]

    make.made = made
    yield make
    for s in made:
        with contextlib.suppress(EngineError):
            engine.call("session.delete", {"id": s})


def state(engine, s):
    return engine.download("session.export", {"id": s})[1]


def snap(engine, s, **more):
    return engine.call("snapshot.create", {"id": s, **more})


def roll(engine, s, snapshot):
    return engine.call("session.rollback", {"id": s, "snapshot": snapshot["id"]})


def files(daemon, s):
    return sorted((daemon.folder / "sessions").glob(f"{s}.*"))


@pytest.mark.parametrize("explain", [False, True])
def test_a_session_that_is_rolled_back_continues_bit_for_bit_as_one_that_read_nothing_since(engine, session, explain):
    for ask in WAYS:
        x, y = session(prompt="99 bottles", explain=explain), session(prompt="99 bottles", explain=explain)
        s = snap(engine, x)
        engine.call("session.append", {"id": x, "text": "zzz"})
        engine.generate({"id": x, "max_tokens": 7, "seed": 3}, "session.generate")
        back = roll(engine, x, s)
        assert back["id"] == x and back["tokens"] == 10 and back["object"] == "session"
        assert state(engine, x) == state(engine, y)
        if explain:
            assert engine.call("session.alpha", {"id": x})["tokens"] == engine.call("session.alpha", {"id": y})["tokens"]
        assert engine.generate({"id": x, **ask}, "session.generate")[0] == engine.generate({"id": y, **ask}, "session.generate")[0]
        assert state(engine, x) == state(engine, y)


def test_a_session_moves_between_snapshots_and_forks_begin_at_them(engine, session):
    x = session(prompt="99 bottles")
    root = snap(engine, x, name="root")
    leaves, states = [], []
    for text in ("of", "green", "more"):
        engine.call("session.append", {"id": x, "text": text})
        leaves.append(snap(engine, x, name=text))
        states.append(state(engine, x))
        roll(engine, x, root)
    assert [leaf["tokens"] for leaf in leaves] == [12, 15, 14]
    for leaf, expected in reversed(list(zip(leaves, states))):
        fork = engine.call("session.fork", {"id": x, "snapshot": leaf["id"]})
        session.made.append(fork["id"])
        assert fork["tokens"] == leaf["tokens"] and state(engine, fork["id"]) == expected
        assert engine.call("snapshot.list", {"id": fork["id"]})["data"] == []
        assert engine.call("session.get", {"id": x})["tokens"] != leaf["tokens"]
        roll(engine, x, leaf)
        assert state(engine, x) == expected
        engine.call("session.delete", {"id": fork["id"]})


def test_snapshots_are_listed_in_pages_and_deleted(engine, session):
    x = session(prompt="9")
    made = [snap(engine, x, **({"name": n} if n else {})) for n in ("a", None, "ä" * 32)]
    assert made[0].items() >= {"object": "session.snapshot", "session": x, "name": "a", "tokens": 1}.items()
    assert made[0]["bytes"] > 0 and made[0]["created_at"] > 1e9 and made[1]["name"] is None
    for order, expected in (("desc", made[::-1]), ("asc", made)):
        whole = engine.call("snapshot.list", {"id": x, "order": order})
        assert whole["data"] == expected and not whole["has_more"]
        pages, after = [], None
        while not pages or pages[-1]["has_more"]:
            pages.append(engine.call("snapshot.list", {"id": x, "order": order, "limit": 1, **({"after": after} if after else {})}))
            after = pages[-1]["last_id"]
        assert [s for page in pages for s in page["data"]] == expected
        assert engine.call("snapshot.list", {"id": x, "order": order, "after": expected[-1]["id"]})["data"] == []
    assert engine.call("snapshot.delete", {"id": x, "snapshot": made[1]["id"]}) == \
        {"id": made[1]["id"], "object": "session.snapshot", "deleted": True}
    assert engine.call("snapshot.list", {"id": x})["data"] == [made[2], made[0]]
    for method in ("session.rollback", "snapshot.delete", "session.fork"):
        for unknown in (made[1]["id"], "snap-none"):
            e = refused(engine, method, {"id": x, "snapshot": unknown})
            assert (e.status, e.param) == (404, "snapshot")
    for method in ("snapshot.create", "snapshot.list"):
        assert refused(engine, method, {"id": "sess-none"}).status == 404
    for name in ("", "x" * 65, "a\0b", 7):
        e = refused(engine, "snapshot.create", {"id": x, "name": name})
        assert (e.status, e.param) == (400, "name")


def test_a_busy_session_is_not_rolled_back(engine, session):
    x = session(prompt="9")
    s = snap(engine, x)
    call = engine.begin("session.generate", {"id": x, "max_tokens": 100}, credit=1)
    call.next()
    for method, more in [("snapshot.create", {}), ("session.rollback", {"snapshot": s["id"]}), ("snapshot.delete", {"snapshot": s["id"]}),
                         ("session.fork", {"snapshot": s["id"]})]:
        e = refused(engine, method, {"id": x, **more})
        assert (e.status, e.code) == (409, "session_busy")
    assert engine.call("snapshot.list", {"id": x})["data"] == [s]
    call.cancel()
    with pytest.raises(EngineError):
        call.result()
    assert roll(engine, x, s)["tokens"] == 1


def test_a_session_has_a_maximum_of_snapshots(engine, session):
    x = session(prompt="9")
    made = [snap(engine, x) for _ in range(LIMIT)]
    e = refused(engine, "snapshot.create", {"id": x})
    assert (e.status, e.code) == (409, "too_many_snapshots") and "--max-snapshots" in e.message
    engine.call("snapshot.delete", {"id": x, "snapshot": made[2]["id"]})
    snap(engine, x)
    assert roll(engine, x, made[0])["tokens"] == 1


def test_the_memory_of_snapshots_is_bounded_and_given_back(engine, model):
    for _ in range(2):  # the second round finds what the first has freed
        sessions, sizes, refusal = [], [], None
        while len(sessions) < 9 and not refusal:
            sessions.append(engine.call("session.create", {"model": model, "prompt": "9"})["id"])
            try:
                for _ in range(LIMIT):
                    sizes.append(snap(engine, sessions[-1])["bytes"])
            except EngineError as e:
                refusal = e
        assert (refusal.status, refusal.code) == (429, "overloaded") and "--snapshot-bytes" in refusal.message
        assert sum(sizes) <= BYTES < sum(sizes) + sizes[-1]
        for s in sessions:
            engine.call("session.delete", {"id": s})


def tree(engine, s):
    answer = engine.call("session.tree", {"id": s})
    assert (answer["object"], answer["session"], answer["has_more"]) == ("session.tree", s, False)
    return answer["data"]


def test_a_tree_has_snapshots_and_forks_and_theirs(engine, session):
    def fork(of, **more):
        session.made.append(engine.call("session.fork", {"id": of, **more})["id"])
        return session.made[-1]

    def branches(of):
        return [(b["id"], b["parent"] and (b["parent"]["session"], b["parent"]["snapshot"], b["parent"]["tokens"]), b["tokens"]) for b in tree(engine, of)]

    x = session(prompt="99 bottles")
    s = snap(engine, x, name="s")
    engine.call("session.append", {"id": x, "text": " of"})
    a, b = fork(x, snapshot=s["id"]), fork(x)
    engine.call("session.append", {"id": a, "text": "!"})
    inner = snap(engine, a)
    c = fork(a)
    assert branches(x) == [(x, None, 13), (b, (x, None, 13), 13), (a, (x, s["id"], 10), 11), (c, (a, None, 11), 11)]
    assert branches(a) == [(a, (x, s["id"], 10), 11), (c, (a, None, 11), 11)]
    assert [branch["snapshots"] for branch in tree(engine, x)] == [[s], [], [inner], []]
    assert all(branch["object"] == "session.branch" and branch["created"] > 1e9 for branch in tree(engine, x))
    engine.call("session.delete", {"id": a})  # its fork keeps the origin's id
    assert branches(x) == [(x, None, 13), (b, (x, None, 13), 13)]
    assert branches(c) == [(c, (a, None, 11), 11)]
    engine.call("session.delete", {"id": x})
    assert branches(b) == [(b, (x, None, 13), 13)]
    assert refused(engine, "session.tree", {"id": x}).status == 404


# --- durable ones --------------------------------------------------------------------------------

def test_durable_snapshots_survive_a_kill_and_are_removed_with_their_session(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        x = engine.call("session.create", {"model": model, "prompt": "99 bottles", "durable": True})["id"]
        first = snap(engine, x, name="first")
        before = state(engine, x)
        engine.call("session.append", {"id": x, "text": " of"})
        second = snap(engine, x)
        after = state(engine, x)
        roll(engine, x, first)
        fork = engine.call("session.fork", {"id": x, "snapshot": second["id"]})["id"]
        known = tree(engine, x)
        assert known[1]["parent"] == {"session": x, "snapshot": second["id"], "tokens": 13}
        daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        assert engine.call("snapshot.list", {"id": x})["data"] == [second, first]
        assert tree(engine, x) == known
        assert state(engine, x) == before and state(engine, fork) == after
        roll(engine, x, second)
        assert state(engine, x) == after
        assert len(files(daemon, x)) == 3
        engine.call("snapshot.delete", {"id": x, "snapshot": second["id"]})
        assert len(files(daemon, x)) == 2
        daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        assert engine.call("snapshot.list", {"id": x})["data"] == [first]
        assert state(engine, x) == after
        roll(engine, x, first)
        assert state(engine, x) == before
        engine.call("session.delete", {"id": x})
        assert files(daemon, x) == [] and state(engine, fork) == after
    assert daemon.stop() == 0


def test_a_stored_session_without_a_slot_is_rolled_back_and_forked(engine, model):
    x = engine.call("session.create", {"model": model, "prompt": "99 bottles", "durable": True})["id"]
    s, before = snap(engine, x), state(engine, x)
    engine.call("session.append", {"id": x, "text": "zz"})
    crowd = lambda: [engine.call("session.create", {"model": model, "durable": True})["id"] for _ in range(10)]  # all slots
    others = crowd()
    roll(engine, x, s)
    assert state(engine, x) == before
    others += crowd()
    others.append(engine.call("session.fork", {"id": x, "snapshot": s["id"]})["id"])
    assert state(engine, others[-1]) == before
    others += crowd()
    second = snap(engine, x)
    assert second["tokens"] == 10 and len(engine.call("snapshot.list", {"id": x})["data"]) == 2
    for other in [x, *others]:
        engine.call("session.delete", {"id": other})


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_damaged_snapshot_costs_nothing_but_itself(own_daemon, damage):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        x = engine.call("session.create", {"model": model, "prompt": "99 bottles", "durable": True})["id"]
        (path,) = files(daemon, x)
        bad = snap(engine, x)
        engine.call("session.append", {"id": x, "text": " of"})
        good = snap(engine, x)
        now = state(engine, x)
    assert daemon.stop() == 0
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        at = len(data) // 2
        path.write_bytes({"truncated": data[:at], "flipped": data[:at] + bytes([data[at] ^ 4]) + data[at + 1:]}[damage])
    daemon.start()
    with daemon.connect() as engine:
        for method in ("session.rollback", "session.fork"):
            e = refused(engine, method, {"id": x, "snapshot": bad["id"]})
            assert (e.status, e.code) == (500, "storage_error"), e
        assert engine.call("snapshot.list", {"id": x})["data"] == [good, {**bad, "damaged": True}]
        assert "damaged" not in engine.call("session.get", {"id": x})
        assert state(engine, x) == now
        roll(engine, x, good)
        assert state(engine, x) == now
        engine.call("snapshot.delete", {"id": x, "snapshot": bad["id"]})
        assert engine.call("snapshot.list", {"id": x})["data"] == [good]
    assert daemon.stop() == 0
