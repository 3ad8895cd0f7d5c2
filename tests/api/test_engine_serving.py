"""additived: completions, sessions, explanations, models and files over its socket. Over 600 lines: all share one running engine."""

import json
import math
import os
import pathlib
import platform
import re
import time

import pytest

from engine_client import (DATA, END, HELLO, PATIENCE, REQUEST, TEXT, Closed, Daemon, EngineError, dial, engine,
                           frame, job_params, own_daemon, train)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("serving") / "data", "--max-generations", 8, "--max-sessions", 6) as d:
        yield d


@pytest.fixture(scope="module")
def model(engine):
    return train(engine, steps=60)


@pytest.fixture
def session(engine, model):
    made = []

    def make(**more):
        made.append(engine.call("session.create", {"model": model, **more}))
        return made[-1]

    yield make
    for s in made:
        try:
            engine.call("session.delete", {"id": s["id"]})
        except EngineError as e:
            assert e.status == 404


def refused(engine, method, params, **kw):
    with pytest.raises(EngineError) as e:
        engine.call(method, params, **kw)
    return e.value


def metric(engine, name):
    return next(m for m in engine.call("engine.metrics")["metrics"] if m["name"] == name)["samples"][0]["value"]


# --- completions ---------------------------------------------------------------------------

def test_a_completion_has_text_tokens_usage_and_timings(engine, model):
    text, events, result = engine.generate({"model": model, "prompt": "99 bottles", "max_tokens": 12, "seed": 1})
    assert sum(len(e["tokens"]) for e in events) == 12
    assert result["usage"] == {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}
    assert result["choices"] == [{"index": 0, "finish_reason": "length"}]
    assert result["model"] == model and result["timings"]["predicted_n"] == 12
    assert text == "".join(e["text"] for e in events)


def sleeps(pid, thread):
    """How often a thread of a process has gone to sleep."""
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", pathlib.Path(f"/proc/{pid}/task/{thread}/status").read_text(), re.M)[1])


@pytest.mark.skipif(tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (6, 12), reason="Linux has had slices since 6.12")
def test_tokens_leave_one_by_one_also_from_the_core_that_computes_them(daemon, engine, model):
    pid, tokens = daemon.process.pid, 400
    threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
    allowed = {thread: os.sched_getaffinity(thread) for thread in threads}
    for thread in threads:
        os.sched_setaffinity(thread, {min(allowed[thread])})
    counts = []
    try:
        while len(counts) < 8 and max(counts, default=0) <= tokens / 8:  # other programs on that core take their share
            before = sleeps(pid, pid)
            engine.generate({"model": model, "prompt": "99", "max_tokens": tokens, "seed": 1})
            counts.append(sleeps(pid, pid) - before)
    finally:
        for thread, cores in allowed.items():
            os.sched_setaffinity(thread, cores)
    assert max(counts) > tokens / 8, counts  # the event loop passes on what there is, then sleeps


def test_a_seed_fixes_the_text_and_the_default_seed_does_not(engine, model):
    ask = {"model": model, "prompt": "10 ", "max_tokens": 24}
    assert engine.generate({**ask, "seed": 5})[0] == engine.generate({**ask, "seed": 5})[0]
    assert len({engine.generate(ask)[0] for _ in range(4)}) > 1


def test_samples_differ_and_are_those_of_the_following_seeds(engine, model):
    ask = {"model": model, "prompt": ["10 ", "99"], "max_tokens": 16, "seed": 40}
    _, events, result = engine.generate({**ask, "n": 2})
    texts = ["".join(e["text"] for e in events if e["index"] == i) for i in range(4)]
    assert [c["index"] for c in result["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert texts[1] == engine.generate({"model": model, "prompt": "10 ", "max_tokens": 16, "seed": 41})[0]
    assert result["usage"]["prompt_tokens"] == 3 + 2


def test_prompts_as_text_and_as_tokens_are_the_same(engine, model):
    tokens = engine.call("tokenize", {"model": model, "text": "99 bottles"})["tokens"]
    ask = {"model": model, "max_tokens": 8, "temperature": 0}
    assert engine.generate({**ask, "prompt": tokens})[0] == engine.generate({**ask, "prompt": "99 bottles"})[0]


def test_top_a_is_a_least_probability_beside_that_of_the_likeliest_token(engine, model, session):
    prompt, ask = {"model": model, "prompt": "99 bottles"}, {"max_tokens": 24, "temperature": 2, "seed": 4}
    certain = {**ask, "top_a": 1, "top_a_power": 0}
    likeliest = engine.generate({**prompt, **ask, "temperature": 0})[0]
    texts = [engine.generate({**prompt, **ask, **more})[0] for more in ({}, {"top_a": 1}, {"top_a": 1, "top_a_power": 2})]
    assert texts[0] != texts[1] == texts[2] != likeliest
    assert engine.generate({**prompt, **certain})[0] == likeliest
    assert engine.generate({"id": session(prompt="99 bottles")["id"], **certain}, "session.generate")[0] == likeliest


def test_a_stop_sequence_ends_the_text_before_it(engine, model):
    ask = {"model": model, "prompt": "99 bottles of", "max_tokens": 60, "seed": 2}
    whole = engine.generate(ask)[0]
    stop = whole[20:23]
    text, _, result = engine.generate({**ask, "stop": ["\x01\x02", stop]})
    assert text == whole[: whole.index(stop)]
    assert result["choices"][0]["finish_reason"] == "stop"


def test_logprobs_name_the_token_and_its_likeliest_rivals(engine, model):
    _, events, _ = engine.generate({"model": model, "prompt": "99", "max_tokens": 5, "temperature": 0, "logprobs": 3})
    for e in events:
        lp = e["logprobs"]
        assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["text_offset"]) == len(e["tokens"])
        assert lp["token_logprobs"][0] == max(lp["top_logprobs"][0].values()) <= 0
        assert len(lp["top_logprobs"][0]) == 3


def test_text_offsets_count_characters(engine, model):
    ask = {"max_tokens": 20, "seed": 2, "logprobs": 0, "logit_bias": {str(b + 3): 100 for b in "é".encode()}}
    text, events, _ = engine.generate({"model": model, "prompt": "99", **ask})
    assert "é" in text
    for i, e in enumerate(events):
        assert e["logprobs"]["text_offset"] == [len("".join(x["text"] for x in events[:i]))]


def test_alpha_comes_with_each_event_best_first(engine, model):
    _, events, _ = engine.generate({"model": model, "prompt": "99 bottles", "max_tokens": 6, "seed": 3, "alpha": {"top": 4}})
    for e in events:
        weights = [a["weight"] for a in e["alpha"]]
        assert len(weights) == 4 and weights == sorted(weights, reverse=True) and 0 < sum(weights) <= 1 + 1e-5
    first = events[0]["alpha"][0]["token"]
    assert "99 bottles"[first["offset"]] == first["text"]


@pytest.mark.parametrize("aggregate", ["mean", "rollout"])
@pytest.mark.parametrize("pick", [{}, {"layers": [1], "heads": [0], "rounds": ["key"]}, {"layers": [0], "heads": "all", "rounds": ["query", "key"]}])
def test_weights_of_any_layers_heads_and_rounds_come_with_each_token(engine, session, pick, aggregate):
    s = session(prompt="99 bottles", explain=True)
    _, events, _ = engine.generate({"id": s["id"], "max_tokens": 5, "temperature": 0, "alpha": {"top": 1000, "aggregate": aggregate, **pick}}, "session.generate")
    for n, event in enumerate(events):
        later = engine.call("session.alpha", {"id": s["id"], "position": 9 + n, "aggregate": aggregate, **pick})
        expected = {later["tokens"][j]["offset"]: a for j, a in enumerate(later["aggregate"]["alpha"]) if a > 0}
        assert {a["token"]["offset"]: a["weight"] for a in event["alpha"]} == expected


@pytest.mark.parametrize("alpha,param,names", [
    ({"layers": [0, 2]}, "alpha.layers", "2 layers"), ({"heads": [2]}, "alpha.heads", "2 heads"), ({"rounds": ["value"]}, "alpha.rounds", '"query", "key"')])
def test_weights_that_there_are_not_are_refused_with_what_there_is(engine, model, session, alpha, param, names):
    for method, of in (("completion.create", {"model": model}), ("session.generate", {"id": session(explain=True)["id"]})):
        e = refused(engine, method, {**of, "prompt": "x", "alpha": {"top": 3, **alpha}})
        assert (e.status, e.param) == (400, param) and names in e.message


def test_a_rollout_that_would_hold_up_other_streams_is_refused_before_it_begins(engine, session):
    s = session(explain=True, position_policy="clamp")
    ask = {"id": s["id"], "prompt": "x", "max_tokens": 5000, "alpha": {"top": 3, "aggregate": "rollout"}}
    e = refused(engine, "session.generate", ask)
    assert (e.status, e.param) == (400, "alpha.aggregate") and "at most 32768" in e.message
    assert engine.generate({**ask, "max_tokens": 3}, "session.generate")[2]
    windowed = {**ask, "alpha": {**ask["alpha"], "layers": [0]}}
    call = engine.begin("session.generate", windowed, credit=1)
    assert call.next()[1]["alpha"]
    call.cancel()
    with pytest.raises(EngineError):
        call.result()


@pytest.mark.parametrize("more,param", [
    ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": [259]}, "prompt"),
    ({"prompt": "x" * 513}, "prompt"), ({"prompt": "x", "logit_bias": {"259": 1}}, "logit_bias"),
    ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias"), ({"prompt": "x", "stop": "\0"}, "stop"),
    ({"prompt": ["x"] * 5, "n": 2}, "n"), ({"prompt": "x", "top_k": 1e308}, "top_k"), ({"prompt": "x", "top_a": 1.5}, "top_a"),
])
def test_a_wrong_completion_is_refused_before_it_begins(engine, model, more, param):
    e = refused(engine, "completion.create", {"model": model, **more})
    assert e.status == 400 and e.param.split("[")[0] == param


def test_an_unknown_model_is_not_found(engine):
    assert refused(engine, "completion.create", {"model": "nobody", "prompt": "x"}).status == 404


def test_text_may_hold_any_character(engine, model):
    prompt = "\0\x7f\u00e9\U0001f600\ud7ff\ufffd"
    tokens = engine.call("tokenize", {"model": model, "text": prompt})
    assert "".join(p["text"] for p in tokens["pieces"]) == prompt
    assert engine.call("detokenize", {"model": model, "tokens": tokens["tokens"]})["text"] == prompt
    assert engine.generate({"model": model, "prompt": prompt, "max_tokens": 2})[2]


def test_beams_find_texts_that_the_model_scores_as_said_best_first(engine, model):
    prompt = [60, 61, 62]
    ask = {"model": model, "prompt": prompt, "max_tokens": 10, "logprobs": 1}
    for penalty in (-1, 0, 2):
        _, events, result = engine.generate({**ask, "num_beams": 4, "n": 3, "length_penalty": penalty})
        found = [[t for e in events if e["index"] == i for t in e["tokens"]] for i in range(3)]
        said = [[p for e in events if e["index"] == i for p in e["logprobs"]["token_logprobs"]] for i in range(3)]
        assert [c["finish_reason"] for c in result["choices"]] == ["length"] * 3
        assert result["usage"] == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33}
        assert all(len(e["tokens"]) <= 8 for e in events) and len(events) == 6
        assert len({tuple(f) for f in found}) == 3
        for tokens, logprobs in zip(found, said):
            _, scored, _ = engine.generate({**ask, "prompt": prompt + tokens, "max_tokens": 0, "echo": True})
            values = [p for e in scored for p in e["logprobs"]["token_logprobs"]][3:]
            assert logprobs == pytest.approx(values, abs=1e-4)
        scores = [sum(logprobs) / 10**penalty for logprobs in said]
        assert scores == sorted(scores, reverse=True)
    _, events, _ = engine.generate({**ask, "num_beams": 4, "logit_bias": {str(found[0][0]): -100}})
    assert found[0][0] not in [t for e in events for t in e["tokens"]]


def test_the_best_beam_is_the_same_beside_others_and_in_every_prompt_of_a_list(engine, model):
    ask = {"model": model, "prompt": "99 bottles", "max_tokens": 12, "num_beams": 3, "early_stopping": True}
    alone, _, _ = engine.generate(ask)
    streams = [engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 60}, credit=1000) for _ in range(2)]
    _, events, result = engine.generate({**ask, "prompt": ["99 bottles", "99 bottles"], "echo": True})
    for i in range(2):
        assert "".join(e["text"] for e in events if e["index"] == i) == "99 bottles" + alone
    assert result["usage"]["prompt_tokens"] == 20
    for stream in streams:
        stream.result()


@pytest.mark.parametrize("more, param", [
    ({"n": 5}, "n"), ({"temperature": 0}, "temperature"), ({"top_p": 0.5}, "top_p"), ({"presence_penalty": 1}, "presence_penalty"),
    ({"stop": "x"}, "stop"), ({"best_of": 2}, "best_of"), ({"alpha": {"top": 1}}, "alpha"), ({"max_tokens": 0}, "max_tokens"),
    ({"echo": True, "logprobs": 0}, "echo"), ({"response_format": {"type": "json_object"}}, "response_format"), ({"num_beams": 9}, "num_beams"),
    ({"num_beams": 33}, "num_beams"), ({"num_beams": 1, "length_penalty": 2}, "length_penalty"), ({"num_beams": 1, "early_stopping": True}, "early_stopping")])
def test_what_has_no_meaning_in_a_beam_search_is_refused_by_name(engine, model, more, param):
    e = refused(engine, "completion.create", {"model": model, "prompt": "x", "num_beams": 4, **more})
    assert e.status == 400 and e.param == param


def test_a_session_has_no_beam_search(engine, session):
    e = refused(engine, "session.generate", {"id": session()["id"], "prompt": "x", "num_beams": 2})
    assert (e.status, e.code, e.param) == (400, "unknown_parameter", "num_beams")


def test_a_cancelled_search_frees_the_places_of_all_its_beams(engine, model):
    call = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 400, "num_beams": 8, "n": 2}, credit=2)
    engine.wait(lambda: metric(engine, "additive_engine_generations_running") == 8)
    call.cancel()
    with pytest.raises(EngineError) as e:
        call.result()
    assert (e.value.status, e.value.code) == (499, "cancelled")
    engine.wait(lambda: metric(engine, "additive_engine_generations_running") == 0)


# --- flow control --------------------------------------------------------------------------

def test_a_model_may_write_a_nul(engine, model, session):
    ask = {"max_tokens": 3, "temperature": 0, "logit_bias": {"3": 100}}
    for more in ({}, {"logprobs": 1}):
        text, _, _ = engine.generate({"model": model, "prompt": "a\0b", **ask, **more})
        assert text == "\0\0\0"
    s = session(prompt="\0", explain=True)
    assert engine.generate({"id": s["id"], **ask, "alpha": {"top": 1}}, "session.generate")[0] == "\0\0\0"
    assert "".join(t["text"] for t in engine.call("session.alpha", {"id": s["id"]})["tokens"]) == "\0\0\0\0"


def test_without_credit_a_stream_parks_and_holds_up_no_other(engine, model):
    ask = {"model": model, "prompt": "99 bottles", "max_tokens": 20, "seed": 9}
    whole = engine.generate(ask)[0]
    call = engine.begin("completion.create", ask, credit=3)
    texts = [call.next()[1]["text"] for _ in range(3)]
    engine.generate({**ask, "max_tokens": 100})
    assert call.frames.empty()
    call.grant(5)
    texts += [call.next()[1]["text"] for _ in range(5)]
    time.sleep(0.1)
    assert call.frames.empty()
    call.grant(100)
    texts += [e["text"] for e in call.events()]
    assert "".join(texts) == whole
    call.result()


def test_data_on_a_stream_that_takes_none_ends_the_connection(daemon, model):
    with daemon.connect() as other:
        call = other.begin("completion.create", {"model": model, "prompt": "9"}, credit=0)
        other.send(frame(DATA, call.stream, payload=b"x"))
        with pytest.raises(Closed):
            call.result()
        assert other.connection_error["code"] == "protocol_error"


def test_choices_share_the_credits_of_their_stream(engine, model):
    call = engine.begin("completion.create", {"model": model, "prompt": "9", "n": 5, "max_tokens": 7, "seed": 1}, credit=1)
    events = []
    for e in call.events(regrant=1):
        events.append(e["index"])
    assert sorted(events) == sorted(list(range(5)) * 7)
    assert len(call.result()["choices"]) == 5


def test_a_cancelled_stream_ends_with_cancelled_and_frees_its_place(engine, model):
    call = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 400}, credit=2)
    call.next()
    call.cancel()
    with pytest.raises(EngineError) as e:
        call.result()
    assert (e.value.status, e.value.code) == (499, "cancelled")
    engine.wait(lambda: metric(engine, "additive_engine_generations_running") == 0)


def test_a_peer_that_goes_away_takes_its_generations_along(daemon, engine, model):
    with daemon.connect() as other:
        for _ in range(4):
            other.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 400}, credit=1).next()
        assert metric(engine, "additive_engine_generations_running") == 4
    engine.wait(lambda: metric(engine, "additive_engine_generations_running") == 0)


def test_a_full_queue_refuses_at_once_with_a_time_to_retry(engine, model):
    ask = {"model": model, "prompt": "9", "max_tokens": 400}
    calls = [engine.begin("completion.create", ask, credit=1) for _ in range(8)]
    for call in calls:
        call.next()
    e = refused(engine, "completion.create", ask, credit=100)
    assert (e.status, e.code) == (429, "overloaded") and e.retry_after >= 1
    for call in calls:
        call.cancel()
        with pytest.raises(EngineError):
            call.result()
    assert engine.generate({**ask, "max_tokens": 2})[2]


def ended(call):
    with pytest.raises(EngineError) as e:
        call.result()
    return e.value


def test_a_stream_that_is_not_read_loses_its_place_to_a_request_that_needs_it_and_a_slow_one_does_not(engine, model):
    ask = {"model": model, "prompt": "9", "max_tokens": 100}
    slow, stalled = (engine.begin("completion.create", {**ask, "n": 4}, credit=1) for _ in range(2))
    stalled.next()
    assert refused(engine, "completion.create", ask, credit=1000).status == 429
    for frames in (1, 0, 1):  # 0: the client reads, and has not taken everything
        time.sleep(0.8)
        slow.grant(frames)
    assert engine.generate({**ask, "max_tokens": 2})[2]
    e = ended(stalled)
    assert (e.status, e.code) == (429, "overloaded") and "not read" in e.message
    slow.grant(1000)
    assert len(slow.result()["choices"]) == 4


def test_an_owner_within_its_share_is_served_while_another_has_every_place(engine, model):
    ask = {"model": model, "prompt": "9", "max_tokens": 400}
    heavy = engine.begin("completion.create", {**ask, "n": 8}, credit=1, owner="heavy")
    heavy.next()
    light = engine.begin("completion.create", {**ask, "max_tokens": 5, "n": 4}, credit=1000, owner="light")
    assert light.result()["usage"]["completion_tokens"] == 20
    assert ended(engine.begin("completion.create", ask, credit=1, owner="heavy")).status == 429
    heavy.cancel()
    assert ended(heavy).code == "cancelled"


def test_a_peer_that_does_not_read_delays_no_other(daemon, engine, model):
    ask = json.dumps({"method": "completion.create", "params": {"model": model, "prompt": "9", "max_tokens": 500, "logprobs": 20}})
    with dial(daemon.address) as deaf:
        deaf.sendall(frame(HELLO, body={"protocol": 1}))
        deaf.sendall(b"".join(frame(REQUEST, i + 1, ask.encode(), credit=1 << 30, flags=END) for i in range(4)))
        began = time.monotonic()
        for _ in range(5):
            engine.generate({"model": model, "prompt": "99", "max_tokens": 20})
        assert time.monotonic() - began < PATIENCE / 2
    engine.wait(lambda: metric(engine, "additive_engine_generations_running") == 0)


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
    ask = {"model": model, "n": 2, "max_tokens": 400, "logit_bias": {"256": -100, "257": -100, "258": -100}}
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


def test_one_session_more_than_there_are_slots_is_refused_unless_one_can_be_stored(engine, session):
    kept = session(prompt="99 bot", durable=True)
    ask = {"max_tokens": 8, "seed": 2}
    for _ in range(5):
        session()
    session()  # takes the slot of the durable one, which is on disk
    e = refused(engine, "session.fork", {"id": engine.call("session.list")["data"][0]["id"]})
    assert (e.status, e.code) == (429, "overloaded")
    engine.call("session.delete", {"id": engine.call("session.list")["data"][0]["id"]})
    text = engine.generate({"id": kept["id"], **ask}, "session.generate")[0]
    assert text == engine.generate({"model": kept["model"], "prompt": "99 bot", **ask})[0]


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


# --- models and files ----------------------------------------------------------------------

def test_an_imported_configuration_without_a_model_type_is_additives(engine, model):
    """As for `additive-eval`, which reads the same folder."""
    config, weights, tokenizer = (engine.download("model.file", {"id": model, "name": n})[1]
                                  for n in ("config.json", "model.safetensors", "tokenizer.json"))
    plain = json.loads(config)
    del plain["model_type"]
    made = engine.upload("model.import", {"id": "untyped"}, config=json.dumps(plain).encode(), weights=weights, tokenizer=tokenizer)
    assert made["additive"]["architecture"] == "additive"
    ask = {"prompt": "9", "max_tokens": 4, "temperature": 0}
    assert engine.generate({"model": "untyped", **ask})[0] == engine.generate({"model": model, **ask})[0]
    engine.call("model.delete", {"id": "untyped"})


def test_a_model_comes_back_from_its_own_files(engine, model):
    parts = {"config": "config.json", "weights": "model.safetensors", "tokenizer": "tokenizer.json"}
    data = {part: engine.download("model.file", {"id": model, "name": name})[1] for part, name in parts.items()}
    copy = engine.upload("model.import", {"id": "copy"}, **data)
    assert copy["id"] == "copy" and copy["additive"]["parameters"] == \
        engine.call("model.get", {"id": model})["additive"]["parameters"]
    ask = {"prompt": "99", "max_tokens": 12, "temperature": 0}
    assert engine.generate({"model": "copy", **ask})[0] == engine.generate({"model": model, **ask})[0]
    with pytest.raises(EngineError) as e:
        engine.upload("model.import", {"id": "copy"}, **data)
    assert (e.value.status, e.value.code) == (409, "model_exists")
    assert engine.call("model.get", {"id": "copy"})["additive"]["loaded"]
    assert not engine.call("model.unload", {"id": "copy"})["additive"]["loaded"]
    assert engine.call("model.load", {"id": "copy"})["additive"]["loaded"]
    assert engine.call("model.delete", {"id": "copy"}) == {"id": "copy", "object": "model", "deleted": True}
    assert refused(engine, "model.get", {"id": "copy"}).status == 404
    assert "copy" not in [m["id"] for m in engine.call("model.list")["data"]]


def test_a_model_that_is_not_whole_is_refused_and_leaves_nothing(daemon, engine, model):
    config = engine.download("model.file", {"id": model, "name": "config.json"})[1]
    weights = engine.download("model.file", {"id": model, "name": "model.safetensors"})[1]
    wrong = json.dumps({**json.loads(config), "vocab_size": 300}).encode()
    for parts in ({"config": config, "weights": weights[:-4]}, {"config": wrong, "weights": weights},
                  {"config": b"{", "weights": weights}, {"config": config}, {"weights": weights}, {"surprise": b"x"},
                  {"config": config, "weights": weights, "tokenizer": b'{"type":"nonsense"}'}):
        with pytest.raises(EngineError) as e:
            engine.upload("model.import", {"id": "broken"}, **parts)
        assert e.value.status == 400
    for name in ("../x", "additive", "", "ckpt-" + "0" * 24 + "-1", "x" * 64):
        with pytest.raises(EngineError):
            engine.upload("model.import", {"id": name}, config=config, weights=weights)
    assert refused(engine, "model.get", {"id": "broken"}).status == 404
    assert not any((daemon.folder / "tmp").iterdir())


def test_a_model_in_use_is_not_deleted(engine, model, session):
    s = session()
    e = refused(engine, "model.delete", {"id": model})
    assert (e.status, e.code) == (409, "model_in_use")
    engine.call("session.delete", {"id": s["id"]})
    call = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 100}, credit=1)
    call.next()
    assert refused(engine, "model.delete", {"id": model}).code == "model_in_use"
    assert refused(engine, "model.unload", {"id": model}).code == "model_in_use"
    call.cancel()
    with pytest.raises(EngineError):
        call.result()
    assert engine.call("model.get", {"id": model})["id"] == model


def test_files_are_kept_listed_and_removed(daemon, engine):
    data = bytes(range(256)) * 12000
    ids = [engine.add_file(data + bytes([i]), f"file {i}") for i in range(3)]
    one = engine.call("file.get", {"id": ids[0]})
    assert (one["bytes"], one["filename"], one["purpose"], one["object"]) == (len(data) + 1, "file 0", "fine-tune", "file")
    announced, content = engine.download("file.content", {"id": ids[2]})
    assert content == data + b"\2" and announced["bytes"] == len(content)
    assert announced["filename"] == "file 2"
    newest = engine.call("file.list", {"limit": 2})
    assert [f["id"] for f in newest["data"]] == [ids[2], ids[1]] and newest["has_more"]
    assert newest["last_id"] == ids[1]
    rest = engine.call("file.list", {"limit": 1, "after": ids[1]})
    assert [f["id"] for f in rest["data"]] == [ids[0]]
    assert refused(engine, "file.list", {"after": "file-none"}).status == 404
    for i in ids:
        assert engine.call("file.delete", {"id": i}) == {"id": i, "object": "file", "deleted": True}
        assert refused(engine, "file.get", {"id": i}).status == 404
        assert not (daemon.folder / "blobs" / i).exists()


def test_a_file_says_when_it_expires(engine):
    def keep(**expiry):
        return engine.upload("file.create", {"filename": "f", "purpose": "fine-tune", "expires_after": expiry}, file=b"x")

    kept = keep(anchor="created_at", seconds=3600)
    assert kept["expires_at"] == kept["created_at"] + 3600
    assert engine.call("file.get", {"id": kept["id"]}) == kept == engine.call("file.list", {"limit": 1})["data"][0]
    assert "expires_at" not in engine.call("file.get", {"id": engine.add_file("y")})
    for expiry, param in [({"seconds": 3600}, "anchor"), ({"anchor": "created_at"}, "seconds"), ({"anchor": "now", "seconds": 3600}, "anchor"),
                          ({"anchor": "created_at", "seconds": 3599}, "seconds"), ({"anchor": "created_at", "seconds": 2592001}, "seconds")]:
        with pytest.raises(EngineError) as e:
            keep(**expiry)
        assert (e.value.status, e.value.param) == (400, f"expires_after.{param}")


def test_an_empty_file_is_a_file(engine):
    i = engine.add_file(b"")
    assert engine.call("file.get", {"id": i})["bytes"] == 0
    assert engine.download("file.content", {"id": i})[1] == b""
    engine.call("file.delete", {"id": i})


# --- stopping ------------------------------------------------------------------------------

def test_sigterm_ends_streams_with_a_clear_error_and_exits_zero(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        job = engine.call("job.create", job_params(engine.add_file(TEXT), 100000))["id"]
        stream = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 500}, credit=2)
        watch = engine.begin("job.watch", {"id": job}, credit=1 << 20)
        stream.next(), watch.next()
        engine.wait(lambda: engine.call("job.get", {"id": job})["additive"]["step"] > 10)
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < PATIENCE / 3
        for call in (stream, watch):
            with pytest.raises(EngineError) as e:
                call.result()
            assert (e.value.status, e.value.code) == (503, "shutting_down") and e.value.retry_after
    daemon.start()
    with daemon.connect() as engine:
        assert engine.call("job.get", {"id": job})["status"] == "running"
        engine.wait(lambda: any("goes on from the checkpoint" in e["message"]
                                for e in engine.call("job.events", {"id": job, "limit": 100})["data"]))
        engine.call("job.cancel", {"id": job})
    assert daemon.stop() == 0
