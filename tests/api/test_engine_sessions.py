"""additived: sessions, and explanations of sessions and texts, over its socket."""

import math
import time

import pytest

from engine_client import TEXT, EngineError, engine, own_daemon, train
from engine_serving import daemon, model, refused, session


# --- sessions ------------------------------------------------------------------------------

def test_a_session_continues_where_it_stopped(engine, model, session):
    whole = engine.generate({"model": model, "prompt": "99 bottles of", "max_tokens": 24, "temperature": 0})[0]
    s = session(prompt="99 bott")
    assert s["tokens"] == 7 and s["object"] == "session" and s["state_bytes"] > 0
    assert engine.call("session.append", {"id": s["id"], "text": "les of"})["tokens"] == 13
    text = ""
    for _ in range(4):
        more, _, result = engine.generate({"id": s["id"], "max_tokens": 6, "temperature": 0}, "session.generate")
        text += more
        assert result["session"]["id"] == s["id"]
    _, events, _ = engine.generate({"id": s["id"], "max_tokens": 3, "temperature": 0}, "session.generate")
    assert [e.get("model") for e in events] == [model, None, None]
    assert text == whole
    now = engine.call("session.get", {"id": s["id"]})
    assert now["tokens"] == 40 and now["state_bytes"] == s["state_bytes"]


def test_an_append_reads_tokens_as_it_reads_a_text(engine, session):
    read = lambda text: (s := session(explain=True), engine.call("session.append", {"id": s["id"], "text": text}),
                         [token["id"] for token in engine.call("session.alpha", {"id": s["id"], "layers": [0], "heads": [0]})["tokens"]])[2]
    ids = read("99 bottles")
    assert len(ids) == 10 and read(ids) == ids
    assert refused(engine, "session.append", {"id": session()["id"], "text": [2147483647]}).param == "text"


def test_a_fork_shares_the_past_and_not_the_future(engine, session):
    a = session(prompt="99 bottles")
    b = engine.call("session.fork", {"id": a["id"]})
    ask = {"max_tokens": 10, "seed": 4}
    one = engine.generate({"id": a["id"], **ask}, "session.generate")[0]
    two = engine.generate({"id": b["id"], **ask}, "session.generate")[0]
    assert one == two
    engine.call("session.append", {"id": b["id"], "text": "zzz"})
    assert engine.call("session.get", {"id": a["id"]})["tokens"] == 20
    engine.call("session.delete", {"id": b["id"]})


def test_an_exported_state_continues_as_another_session(engine, model, session):
    a = session(prompt="99 bottles", explain=True)
    announced, state = engine.download("session.export", {"id": a["id"]})
    assert announced["bytes"] == len(state) and announced["content_type"] == "application/octet-stream"
    assert announced["filename"] == f"{a['id']}.state"
    b = engine.upload("session.import", {"model": model}, state=state)
    ask = {"max_tokens": 10, "seed": 4}
    assert engine.generate({"id": a["id"], **ask}, "session.generate")[0] == \
        engine.generate({"id": b["id"], **ask}, "session.generate")[0]
    assert b["explain"] and not b["durable"]
    engine.call("session.delete", {"id": b["id"]})
    damaged = state[:-20] + bytes([state[-20] ^ 1]) + state[-19:]
    with pytest.raises(EngineError) as e:
        engine.upload("session.import", {"model": model}, state=damaged)
    assert e.value.status == 400
    assert all(s["id"] == a["id"] for s in engine.call("session.list")["data"])


def test_an_imported_durable_session_lives_on_without_use(engine, model, session):
    _, state = engine.download("session.export", {"id": session(prompt="99", durable=True)["id"]})
    b = engine.upload("session.import", {"model": model}, state=state)
    assert b["durable"] and b["expires_at"] is None
    assert engine.call("session.get", {"id": b["id"]})["expires_at"] is None
    engine.call("session.delete", {"id": b["id"]})


def test_sessions_are_listed_in_pages(engine, session):
    made = [session(prompt=text)["id"] for text in "abc"]
    for order, ids in (("desc", made[::-1]), ("asc", made)):
        whole = engine.call("session.list", {"order": order})
        listed = [s["id"] for s in whole["data"]]
        assert [i for i in listed if i in made] == ids and not whole["has_more"]
        assert (whole["first_id"], whole["last_id"]) == (listed[0], listed[-1])
        pages, after = [], None
        while not pages or pages[-1]["has_more"]:
            pages.append(engine.call("session.list", {"order": order, "limit": 2, **({"after": after} if after else {})}))
            after = pages[-1]["last_id"]
        assert [s["id"] for page in pages for s in page["data"]] == listed
        assert all(len(page["data"]) == 2 for page in pages[:-1])
    assert engine.call("session.list", {"order": "asc", "after": listed[-1]}) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    e = refused(engine, "session.list", {"after": "sess-none"})
    assert (e.status, e.param) == (404, "after")


def test_a_busy_session_refuses_a_second_request(engine, session):
    s = session(prompt="9")
    call = engine.begin("session.generate", {"id": s["id"], "max_tokens": 100}, credit=1)
    call.next()
    for method, more in [("session.generate", {}), ("session.append", {"text": "x"}), ("session.fork", {}),
                         ("session.delete", {}), ("session.export", {})]:
        e = refused(engine, method, {"id": s["id"], **more})
        assert (e.status, e.code) == (409, "session_busy")
    call.cancel()
    with pytest.raises(EngineError):
        call.result()
    assert engine.call("session.append", {"id": s["id"], "text": "x"})["tokens"] == 3


def test_a_session_ends_with_length_at_its_last_position_or_continues_by_its_policy(engine, session):
    s = session(prompt="x" * 510)
    for made in (2, 0):
        _, _, result = engine.generate({"id": s["id"], "max_tokens": 10, "temperature": 0}, "session.generate")
        assert result["choices"] == [{"index": 0, "finish_reason": "length"}]
        assert result["usage"]["completion_tokens"] == made and result["session"]["tokens"] == 512
    for method, field in (("session.append", "text"), ("session.generate", "prompt")):
        e = refused(engine, method, {"id": s["id"], field: "x"})
        assert (e.status, e.param) == (400, field) and "512" in e.message
    for policy in ("clamp", "wrap"):
        s = session(prompt="x" * 510, position_policy=policy)
        _, _, result = engine.generate({"id": s["id"], "max_tokens": 10, "temperature": 0}, "session.generate")
        assert result["session"]["tokens"] == 510 + result["usage"]["completion_tokens"] > 512
        engine.call("session.delete", {"id": s["id"]})


def test_every_completion_ends_with_length_at_the_last_position(engine, model):
    ask = {"model": model, "n": 2, "max_tokens": 400, "logit_bias": {"1": -100}}
    text, _, result = engine.generate({**ask, "prompt": ["x" * 509, "x" * 512]})
    assert [c["finish_reason"] for c in result["choices"]] == ["length"] * 4
    assert result["usage"]["completion_tokens"] == 2 * 3 and text
    e = refused(engine, "completion.create", {**ask, "prompt": ["x" * 3, "x" * 513]})
    assert (e.status, e.param) == (400, "prompt")
    assert refused(engine, "completion.create", {**ask, "prompt": ""}).message == "'prompt' must not be empty"


def test_a_model_without_a_position_table_reads_and_writes_on_for_ever(engine):
    unbounded = {"hidden_size": 16, "n_heads": 2, "n_layer": 2}
    model = train(engine, steps=20, config=unbounded, sequence_length=32)
    shown = engine.call("model.get", {"id": model})["additive"]
    assert shown["config"]["position_embedding"] == "none"
    assert shown["n_positions"] is None and shown["trained_length"] == 32
    s = engine.call("session.create", {"model": model, "prompt": "x" * 300, "explain": True})
    assert s["state_bytes"] < 10000
    _, _, result = engine.generate({"id": s["id"], "max_tokens": 20, "temperature": 0}, "session.generate")
    assert result["session"]["tokens"] >= 300 + result["usage"]["completion_tokens"] > 300
    assert abs(sum(engine.call("session.alpha", {"id": s["id"]})["weights"][0]["alpha"]) - 1) < 1e-5
    engine.call("session.delete", {"id": s["id"]})
    assert len(engine.call("explain", {"model": model, "input": "x" * 300})["tokens"]) == 300
    assert refused(engine, "explain", {"model": model, "input": "x" * 65537}).param == "input"
    # Trained further on longer texts, it says so.
    more = engine.call("job.create", {"model": model, "training_file": engine.add_file(TEXT), "seed": 1,
                                      "additive": {"max_steps": 1, "sequence_length": 96, "batch_size": 1}})
    longer = engine.wait_job(more["id"])["fine_tuned_model"]
    assert engine.call("model.get", {"id": longer})["additive"]["trained_length"] == 96


def test_a_model_has_positions_for_the_texts_it_was_trained_on(engine, model):
    shown = engine.call("model.get", {"id": model})["additive"]
    assert shown["n_positions"] == 512 and shown["trained_length"] == 64
    small = {"hidden_size": 16, "n_heads": 2, "n_layer": 2, "position_embedding": "learned"}
    shown = engine.call("model.get", {"id": train(engine, steps=1, config=small, sequence_length=32)})["additive"]
    assert shown["n_positions"] == shown["trained_length"] == 32


def test_a_session_expires_when_it_is_not_used(engine, session):
    s = session(prompt="9", ttl_seconds=1)
    assert s["expires_at"] >= s["created"] + 1
    engine.wait(lambda: all(x["id"] != s["id"] for x in engine.call("session.list")["data"]), 10)


def test_a_session_without_a_lifetime_expires_after_a_quarter_of_an_hour_unless_it_is_durable(session):
    left = session(prompt="9")["expires_at"] - time.time()
    assert 880 < left <= 901
    assert session(prompt="9", durable=True)["expires_at"] is None


def test_without_another_place_one_session_more_than_there_are_slots_is_refused_unless_one_is_durable(own_daemon):
    ask = {"max_tokens": 8, "seed": 2}
    with own_daemon("--max-sessions", 3, "--session-memory-bytes", 0, "--session-disk-bytes", 0).connect() as engine:
        model = train(engine)
        kept = engine.call("session.create", {"model": model, "prompt": "99 bot", "durable": True})
        for _ in range(3):  # the last one takes the slot of the durable one, which is stored
            engine.call("session.create", {"model": model})
        newest = {"id": engine.call("session.list")["data"][0]["id"]}
        e = refused(engine, "session.fork", newest)
        assert (e.status, e.code) == (429, "overloaded")
        assert all(name in e.message for name in ("ttl_seconds", "durable", "--max-sessions", "--session-memory-bytes"))
        engine.call("session.delete", newest)
        text = engine.generate({"id": kept["id"], **ask}, "session.generate")[0]
        assert text == engine.generate({"model": model, "prompt": "99 bot", **ask})[0]


def test_a_failed_creation_leaves_no_session(engine, model):
    before = engine.call("session.list")
    assert refused(engine, "session.create", {"model": model, "prompt": "x" * 513}).param == "prompt"
    assert refused(engine, "session.create", {"model": model, "prompt": [300]}).param == "prompt"
    assert engine.call("session.list") == before


# --- explanations --------------------------------------------------------------------------

@pytest.mark.parametrize("aggregate", ["none", "mean", "rollout"])
def test_importance_weights_sum_to_one(engine, model, aggregate):
    x = engine.call("explain", {"model": model, "input": "99 bottles", "aggregate": aggregate})
    assert x["position"] == 9 and "".join(t["text"] for t in x["tokens"]) == "99 bottles"
    assert len(x["weights"]) == 2 * 2 * 2
    for row in x["weights"]:
        first, last = row["window"]
        assert last == 9 and first == (5 if row["layer"] == 0 else 0) and row["round"] in ("query", "key")
        assert len(row["alpha"]) == last - first + 1 and math.isclose(sum(row["alpha"]), 1, abs_tol=1e-5)
    if aggregate == "none":
        assert x["aggregate"] is None
    else:
        assert x["aggregate"]["method"] == aggregate
        assert math.isclose(sum(x["aggregate"]["alpha"]), 1, abs_tol=1e-5)


def test_a_session_explains_itself_as_its_text_does(engine, model, session):
    s = session(prompt="99 bot", explain=True)
    engine.call("session.append", {"id": s["id"], "text": "tles"})
    pick = {"position": 6, "layers": [1], "heads": [0], "rounds": ["key"]}
    a = engine.call("session.alpha", {"id": s["id"], **pick})
    b = engine.call("explain", {"model": model, "input": "99 bottles", **pick})
    assert a == engine.call("explain", {"session": s["id"], **pick})
    assert len(a["weights"]) == len(b["weights"]) == 1
    assert a["weights"][0]["alpha"] == pytest.approx(b["weights"][0]["alpha"], abs=1e-4)


def test_a_live_session_explains_every_token_that_it_has_written_and_goes_on(engine, model, session):
    s = session(prompt="99 bottles", explain=True)
    text, events, _ = engine.generate({"id": s["id"], "max_tokens": 4, "temperature": 0}, "session.generate")
    ids = [t for e in events for t in e["tokens"]]
    for n, token in enumerate(ids):
        pick = {"position": 9 + n, "method": "contributions"}
        why = engine.call("explain", {"session": s["id"], **pick})["contributions"]
        read = engine.call("tokenize", {"model": model, "text": "99 bottles"})["tokens"] + ids[:n]
        alone = engine.call("explain", {"model": model, "input": read, **pick, "target": {"token": token}})["contributions"]
        assert why["target"]["token"]["id"] == token and why["tokens"] == pytest.approx(alone["tokens"], abs=1e-5)
    more = engine.generate({"id": s["id"], "max_tokens": 3, "temperature": 0}, "session.generate")[0]
    assert text + more == engine.generate({"model": model, "prompt": "99 bottles", "max_tokens": 7, "temperature": 0})[0]


def test_all_positions_are_explained_by_two_numbers_each(engine, model):
    x = engine.call("explain", {"model": model, "input": "99 bottles", "position": "all"})
    row = next(r for r in x["weights"] if r["layer"] == 1 and r["head"] == 0 and r["round"] == "query")
    assert x["position"] == "all" and len(row["score"]) == len(row["log_normalizer"]) == 10
    one = engine.call("explain", {"model": model, "input": "99 bottles", "position": 4, "layers": [1], "heads": [0],
                                  "rounds": ["query"]})["weights"][0]["alpha"]
    assert [math.exp(a - row["log_normalizer"][4]) for a in row["score"][:5]] == pytest.approx(one, abs=1e-4)


@pytest.mark.parametrize("more,param", [
    ({"position": 10}, "position"), ({"layers": [2]}, "layers"), ({"heads": [2]}, "heads"), ({"rounds": ["value"]}, "rounds"),
    ({"position": "all", "aggregate": "mean"}, "aggregate"), ({"input": "x" * 513}, "input"), ({"input": [300]}, "input"),
    ({"session": "sess-1"}, "session"), ({"input": None}, "input"),
])
def test_a_wrong_explanation_names_what_is_wrong(engine, model, more, param):
    e = refused(engine, "explain", {"model": model, "input": "99 bottles", **more})
    assert e.status == 400 and e.param == param


def test_a_session_without_its_log_cannot_be_explained(engine, session):
    s = session(prompt="99")
    assert refused(engine, "session.alpha", {"id": s["id"]}).status == 409
    assert refused(engine, "session.alpha", {"id": "sess-none"}).status == 404
