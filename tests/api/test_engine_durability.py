"""Every change of a session that additived acknowledges is stored; a change that cannot be stored has no effect."""

import contextlib
import resource
import subprocess
import threading
import time

import pytest

from engine_client import BIN, PATIENCE, Closed, Daemon, EngineError, engine, own_daemon, train

ASK = {"max_tokens": 12, "temperature": 0}
STATE, LEDGER = 100, 60000  # limits of a file's bytes: no state fits; states fit, but not the ledger's log


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("durability") / "data", "--max-sessions", 6) as d:
        yield d


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=40)


@pytest.fixture
def durable(engine, model):
    made = []

    def make(**more):
        made.append(engine.call("session.create", {"model": model, "durable": True, **more})["id"])
        return made[-1]

    yield make
    for s in made:
        with contextlib.suppress(EngineError):
            engine.call("session.delete", {"id": s})


def log_end(daemon):
    """(bytes, frames) of the ledger's log that are in use. After 1000 frames it begins again at the front."""
    log = (daemon.folder / "ledger.sqlite-wal").read_bytes()
    frame = 24 + int.from_bytes(log[8:12], "big")
    count = 0
    while len(log) >= 32 + (count + 1) * frame and log[40 + count * frame:48 + count * frame] == log[16:24]:
        count += 1
    return 32 + count * frame, count


def lengthen_log(daemon):
    """Write until the next 200 frames of the ledger's log are beyond LEDGER; at its beginning they would fit."""
    with daemon.connect() as engine:
        for _ in range(2000):
            end, count = log_end(daemon)
            if end > LEDGER and count < 800:
                return
            engine.call("file.delete", {"id": engine.add_file("x")})
    raise AssertionError("the ledger's log does not grow")


@contextlib.contextmanager
def full(daemon, most=STATE):
    """No file of the daemon's can grow beyond `most` bytes meanwhile."""
    pid = daemon.process.pid
    if most == LEDGER:
        lengthen_log(daemon)
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def refused(call, *args, **kw):
    with pytest.raises(EngineError) as e:
        call(*args, **kw)
    return e.value


def tokens(engine, session):
    return engine.call("session.get", {"id": session})["tokens"]


def text(engine, session):
    return engine.generate({"id": session, **ASK}, "session.generate")[0]


def states(daemon, session=""):
    return sorted(p for p in (daemon.folder / "sessions").iterdir() if p.name.startswith(session))


# --- what could not be stored did not happen ------------------------------------------------

@pytest.mark.parametrize("most,code", [(STATE, "storage_full"), (LEDGER, "io_error")])
def test_an_append_that_could_not_be_stored_is_applied_once_when_it_is_repeated(daemon, engine, model, durable, most, code):
    s = durable(prompt="99 bott")
    expected = engine.generate({"model": model, "prompt": "99 bottles of", **ASK})[0]
    with full(daemon, most):
        e = refused(engine.call, "session.append", {"id": s, "text": "les of"})
        assert (e.status, e.code) == (507 if most == STATE else 500, code)
        assert tokens(engine, s) == 7
    assert engine.call("session.append", {"id": s, "text": "les of"})["tokens"] == 13
    assert text(engine, s) == expected
    assert len(states(daemon, s)) == 1


def test_a_generation_that_could_not_be_stored_ends_its_stream_with_an_error_and_is_taken_back(daemon, engine, durable):
    s = durable(prompt="99 bottles")
    with full(daemon):
        call = engine.begin("session.generate", {"id": s, **ASK}, credit=100)
        streamed = "".join(e["text"] for e in call.events())
        assert streamed and refused(call.result).code == "storage_full"
        assert tokens(engine, s) == 10
    assert text(engine, s) == streamed
    assert tokens(engine, s) == 22


def test_a_session_that_could_not_be_stored_does_not_exist(daemon, engine, model, durable):
    s = durable(prompt="99 bottles", explain=True)
    state = engine.download("session.export", {"id": s})[1]
    before, files = engine.call("session.list"), states(daemon)
    # A state of this model is larger than the upload's limit would let pass, so the import fails while it is received.
    with full(daemon):
        for method, params in [("session.create", {"model": model, "durable": True}),
                               ("session.create", {"model": model, "durable": True, "prompt": "99"}),
                               ("session.fork", {"id": s})]:
            assert refused(engine.call, method, params).code == "storage_full"
    with full(daemon, len(state) + 10):  # the upload fits, the file with its header does not
        assert refused(engine.upload, "session.import", {"model": model}, state=state).code == "storage_full"
    assert engine.call("session.list") == before and states(daemon) == files
    for copy in (engine.call("session.fork", {"id": s})["id"],
                 engine.upload("session.import", {"model": model}, state=state)["id"]):
        assert tokens(engine, copy) == 10
        engine.call("session.delete", {"id": copy})


def test_a_cancelled_append_to_a_durable_session_did_not_happen(engine, durable):
    s = durable(prompt="9", position_policy="wrap")
    for _ in range(3):
        call = engine.begin("session.append", {"id": s, "text": "99 bottles " * 20000})
        call.cancel()
        with contextlib.suppress(EngineError):
            call.result()
        assert (tokens(engine, s) - 1) % 220000 == 0


def test_a_cancelled_generation_leaves_what_was_streamed_and_that_is_stored(daemon, engine, durable):
    s = durable(prompt="99 bottles")
    call = engine.begin("session.generate", {"id": s, "max_tokens": 400}, credit=5)
    for _ in range(5):
        call.next()
    call.cancel()
    assert refused(call.result).code == "cancelled"
    assert tokens(engine, s) >= 15
    for _ in range(6):
        durable()  # it loses its slot, and comes back from the store
    assert engine.call("session.append", {"id": s, "text": "x"})["tokens"] >= 16


# --- stored states that are damaged ------------------------------------------------------------

@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "flipped"])
def test_a_damaged_state_costs_its_session_and_nothing_else(own_daemon, damage):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        bad, good = [engine.call("session.create", {"model": model, "durable": True, "prompt": "99 bot"})["id"] for _ in "ab"]
    assert daemon.stop() == 0
    (path,) = states(daemon, bad)
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        at = len(data) // 2
        path.write_bytes({"empty": b"", "truncated": data[:at], "flipped": data[:at] + bytes([data[at] ^ 4]) + data[at + 1:]}[damage])
    daemon.start()
    with daemon.connect() as engine:
        for method, more in [("session.generate", ASK), ("session.append", {"text": "x"}), ("session.fork", {}), ("session.export", {})]:
            e = refused(engine.call, method, {"id": bad, **more})
            assert (e.status, e.code) == (500, "storage_error") and bad in e.message, e
        listed = {s["id"]: s.get("damaged", False) for s in engine.call("session.list")["data"]}
        assert listed == {bad: True, good: False}
        assert bad in daemon.log.read_text()
        assert engine.call("session.append", {"id": good, "text": "tles"})["tokens"] == 10
        assert engine.call("session.delete", {"id": bad})["deleted"]
        assert [s["id"] for s in engine.call("session.list")["data"]] == [good]
    assert daemon.stop() == 0


# --- stopping -------------------------------------------------------------------------------------

def test_stopping_waits_for_states_that_are_being_stored(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        ids = [engine.call("session.create", {"model": model, "durable": True, "position_policy": "wrap"})["id"] for _ in range(8)]
        acknowledged = dict.fromkeys(ids, 0)

        def append(s):
            with contextlib.suppress(EngineError, Closed, OSError):
                while True:
                    acknowledged[s] = engine.call("session.append", {"id": s, "text": "9"})["tokens"]

        threads = [threading.Thread(target=append, args=(s,)) for s in ids]
        for t in threads:
            t.start()
        time.sleep(0.3)
        assert daemon.stop() == 0
        for t in threads:
            t.join(PATIENCE)
    daemon.start()
    with daemon.connect() as engine:
        for s in ids:
            assert tokens(engine, s) == acknowledged[s] > 0
    assert daemon.stop() == 0


# --- how many sessions there may be ----------------------------------------------------------------

def test_more_sessions_may_be_known_than_live_up_to_a_limit_of_its_own(own_daemon):
    daemon = own_daemon("--max-sessions", 2, "--max-known-sessions", 5)
    with daemon.connect() as engine:
        model = train(engine)
        ids = [engine.call("session.create", {"model": model, "durable": True, "prompt": "9" * (i + 1)})["id"] for i in range(5)]
        e = refused(engine.call, "session.create", {"model": model, "durable": True})
        assert (e.status, e.code) == (429, "overloaded")
        for i, s in enumerate(ids):
            assert engine.call("session.append", {"id": s, "text": "x"})["tokens"] == i + 2
    assert daemon.stop() == 0
    refused_options = subprocess.run([BIN / "additived", "--data", daemon.folder, "--max-sessions", "9", "--max-known-sessions", "8"],
                                     capture_output=True, timeout=PATIENCE)
    assert refused_options.returncode == 2 and b"--max-known-sessions" in refused_options.stderr


def test_as_many_sessions_as_were_asked_for_can_be_open(own_daemon):
    daemon = own_daemon("--max-sessions", 4500, "--max-known-sessions", 4500)
    with daemon.connect() as engine:
        model = train(engine)
        waiting = []
        for i in range(4500):
            waiting.append(engine.begin("session.create", {"model": model}))
            if len(waiting) >= 200:
                waiting.pop(0).result()
        for call in waiting:
            call.result()
        assert len(engine.call("session.list")["data"]) == 4500
        assert refused(engine.call, "session.create", {"model": model}).status == 429
    assert daemon.stop() == 0
