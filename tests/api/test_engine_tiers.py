"""additived: more sessions than slots. They move between the device, host memory and the disk, and no client notices."""

import random
import threading

import pytest

from engine_client import EngineError, own_daemon, train

PROMPTS = [f"{i} bottles of beer" for i in range(24)]
STEP, STEPS = 5, 4


def values(engine, name):
    """A metric's samples by their labels."""
    row = next(m for m in engine.call("engine.metrics")["metrics"] if m["name"] == name)
    return {"-".join(s["labels"].values()): s["value"] for s in row["samples"]}


def says(engine, **params):
    text, _, result = engine.generate({"temperature": 0.8, "seed": 3, "max_tokens": STEP * STEPS, **params},
                                      "session.generate" if "id" in params else "completion.create")
    return text


@pytest.mark.parametrize("memory, disk", [(1 << 30, 0), (0, 1 << 30), (40000, 1 << 30)])
def test_clients_of_many_sessions_get_the_texts_of_undisturbed_ones(own_daemon, memory, disk):
    daemon = own_daemon("--max-sessions", 4, "--max-generations", 32, "--session-memory-bytes", memory, "--session-disk-bytes", disk)
    with daemon.connect() as engine:
        model = train(engine, steps=40)
        ids = [engine.call("session.create", {"model": model, "prompt": p, "durable": i % 3 == 0, "explain": i % 5 == 0})["id"]
               for i, p in enumerate(PROMPTS)]
        expected = [says(engine, model=model, prompt=p, temperature=0) for p in PROMPTS]
        texts, failures = [""] * len(ids), []

        def client(first):
            try:
                with daemon.connect() as own:
                    turns = [i for i in range(first, len(ids), 4) for _ in range(STEPS)]
                    random.Random(first).shuffle(turns)
                    for i in turns:
                        texts[i] += says(own, id=ids[i], temperature=0, max_tokens=STEP)
                        own.call("session.get", {"id": ids[i]})
            except Exception as e:  # noqa: BLE001
                failures.append(e)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert texts == expected
        for i in range(0, len(ids), 5):
            assert engine.call("explain", {"session": ids[i]})["position"] == engine.call("session.get", {"id": ids[i]})["tokens"] - 1
        states, moves = values(engine, "additive_engine_session_states"), values(engine, "additive_engine_session_moves_total")
        assert sum(states.values()) == len(ids) and states["device"] <= 4
        assert moves["device-memory"] > len(ids) and (moves["disk-device"] > 0) == (memory < 1 << 30)
        assert values(engine, "additive_engine_session_state_bytes")["memory"] <= memory
        for s in ids:
            engine.call("session.delete", {"id": s})
        assert not list((daemon.folder / "tmp").iterdir())
    assert daemon.stop() == 0


def test_host_memory_has_room_for_what_the_tokens_have_written_and_the_disk_for_whole_slots(own_daemon):
    daemon = own_daemon("--max-sessions", 2, "--session-memory-bytes", 16000, "--session-disk-bytes", 0)
    with daemon.connect() as engine:
        model = train(engine, architecture="gpt2")
        ids = [engine.call("session.create", {"model": model, "prompt": "9"})["id"] for _ in range(4)]
        bytes = values(engine, "additive_engine_session_state_bytes")
        assert 0 < bytes["memory"] <= 16000 < bytes["device"] / 2, bytes
        assert values(engine, "additive_engine_session_states") == {"device": 2, "memory": 2, "disk": 0}
        for s in ids:
            engine.call("session.append", {"id": s, "text": "9"})
    assert daemon.stop() == 0


def test_a_killed_engine_has_lost_no_token_of_a_durable_session_in_any_place(own_daemon):
    daemon = own_daemon("--max-sessions", 2, "--session-memory-bytes", 20000)
    with daemon.connect() as engine:
        model = train(engine, steps=40)
        ids = [engine.call("session.create", {"model": model, "prompt": p, "durable": True})["id"] for p in PROMPTS[:9]]
        others = [engine.call("session.create", {"model": model, "prompt": p})["id"] for p in PROMPTS[:9]]
        expected = says(engine, model=model, prompt=PROMPTS[4])
    for kill in range(3):
        stop, told, returning = threading.Event(), {s: 0 for s in ids}, random.Random(kill)

        def client():
            try:
                with daemon.connect() as own:
                    while not stop.is_set():
                        s = returning.choice(ids[:4] + ids[5:])
                        told[s] = own.call("session.append", {"id": s, "text": "x"})["tokens"]
            except Exception:  # noqa: BLE001
                pass
        thread = threading.Thread(target=client)
        thread.start()
        with daemon.connect() as engine:
            engine.wait(lambda: sum(n > 0 for n in told.values()) > 6)
        daemon.kill()
        stop.set()
        thread.join()
        daemon.start()
        with daemon.connect() as engine:
            assert not list((daemon.folder / "tmp").iterdir())
            for s in ids:
                assert engine.call("session.get", {"id": s})["tokens"] >= told[s]
            for s in others:
                with pytest.raises(EngineError) as e:
                    engine.call("session.get", {"id": s})
                assert e.value.status == 404
    with daemon.connect() as engine:
        assert says(engine, id=ids[4]) == expected
    assert daemon.stop() == 0
