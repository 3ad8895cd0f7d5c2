"""additived: completions and their flow control over its socket."""

import json
import os
import pathlib
import platform
import re
import time

import pytest

from engine_client import DATA, END, ERROR, HELLO, PATIENCE, REQUEST, RESULT, Closed, EngineError, dial, engine, frame
from engine_serving import daemon, metric, model, refused, session


# --- completions ---------------------------------------------------------------------------

def test_a_completion_has_text_tokens_usage_and_timings(engine, model):
    text, events, result = engine.generate({"model": model, "prompt": "99 bottles", "max_tokens": 12, "seed": 1})
    assert sum(len(e["tokens"]) for e in events) == 12
    assert result["usage"] == {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22, "prompt_tokens_details": {"cached_tokens": 0}}
    assert result["choices"] == [{"index": 0, "finish_reason": "length"}]
    assert result["model"] == model and result["timings"]["predicted_n"] == 12
    assert text == "".join(e["text"] for e in events)


def test_an_answer_has_the_times_of_a_generation_if_they_are_wanted(engine, model, session):
    def times(method, params, context):
        call = engine.begin(method, params, credit=1 << 10, context=context)
        while (kind := call.next())[0] not in (RESULT, ERROR):
            pass
        return json.loads(kind[2]) if kind[2] else None

    ask, timed = {"model": model, "prompt": "99", "max_tokens": 3}, {"request_id": "a", "times": True}
    assert times("completion.create", ask, {"request_id": "a"}) is None
    found = times("completion.create", {**ask, "n": 3}, timed)
    assert list(found) == ["queued_ms", "started_ms", "first_token_ms", "ended_ms", "answered_ms"]
    assert 0 <= found["queued_ms"] and list(found.values()) == sorted(found.values())
    assert found["first_token_ms"] < found["ended_ms"]
    for i, background in enumerate((False, True)):
        kept = times("completion.create", {**ask, "response": {"id": f"timed{i}", "background": background, "stream": True}}, timed)
        assert list(kept) == list(found) and list(kept.values()) == sorted(kept.values())
    assert list(times("session.append", {"id": session()["id"], "text": "99"}, timed)) == ["queued_ms", "started_ms", "ended_ms", "answered_ms"]
    assert list(times("model.list", {}, timed)) == ["answered_ms"]
    assert list(times("completion.create", {**ask, "max_tokens": 0.5}, timed)) == ["answered_ms"]


def sleeps(pid, thread):
    """Return how many times a thread of a process has gone to sleep."""
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
    assert max(counts) > tokens / 8, counts  # the event loop passes on the available data, then sleeps


def test_a_seed_fixes_the_text_and_the_default_seed_does_not(engine, model):
    ask = {"model": model, "prompt": "10 ", "max_tokens": 24}
    assert engine.generate({**ask, "seed": 5})[0] == engine.generate({**ask, "seed": 5})[0]
    assert len({engine.generate(ask)[0] for _ in range(4)}) > 1


def test_sample_i_of_every_prompt_has_the_seed_and_i(engine, model):
    ask = {"model": model, "prompt": ["10 ", "99"], "max_tokens": 16, "seed": 40}
    _, events, result = engine.generate({**ask, "n": 2})
    texts = ["".join(e["text"] for e in events if e["index"] == i) for i in range(4)]
    assert [c["index"] for c in result["choices"]] == [0, 1, 2, 3]
    assert texts[1] == engine.generate({"model": model, "prompt": "10 ", "max_tokens": 16, "seed": 41})[0]
    assert texts[2:] == [engine.generate({"model": model, "prompt": "99", "max_tokens": 16, "seed": seed})[0] for seed in (40, 41)]
    assert texts[0] != texts[1] and texts[2] != texts[3]
    assert result["usage"]["prompt_tokens"] == 3 + 2


def test_prompts_as_text_and_as_tokens_are_the_same(engine, model):
    tokens = engine.call("tokenize", {"model": model, "text": "99 bottles"})["tokens"]
    ask = {"model": model, "max_tokens": 8, "temperature": 0}
    assert engine.generate({**ask, "prompt": tokens})[0] == engine.generate({**ask, "prompt": "99 bottles"})[0]


def test_a_text_to_tokenize_may_be_called_input(engine, model):
    text = engine.call("tokenize", {"model": model, "text": "9 b", "add_special_tokens": True})
    assert engine.call("tokenize", {"model": model, "input": "9 b", "add_special_tokens": True}) == text
    assert engine.call("tokenize", {"model": model, "input": ""})["count"] == 0
    both = refused(engine, "tokenize", {"model": model, "text": "a", "input": "a"})
    neither = refused(engine, "tokenize", {"model": model})
    assert (both.status, both.param, neither.status, neither.param, neither.code) == (400, "input", 400, "text", "missing_parameter")


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
    written = [t - 3 for e in events for t in e["tokens"]]
    for i, e in enumerate(events):  # a token begins with the character, or the replacement of one, that holds its first byte
        assert e["logprobs"]["text_offset"] == [len(bytes(written[:i + 1]).decode(errors="replace")) - 1]


def test_text_offsets_count_the_characters_that_replace_broken_bytes(engine, model):
    broken = [b + 3 for b in b"\xc3ab\xf0\x9fc\xff"]
    _, events, _ = engine.generate({"model": model, "prompt": broken, "max_tokens": 0, "echo": True, "logprobs": 1})
    offsets = [o for e in events for o in e["logprobs"]["text_offset"]]
    assert "".join(e["text"] for e in events) == "\ufffdab\ufffdc\ufffd"
    assert offsets == [0, 1, 2, 3, 3, 4, 5]


def test_equal_prompts_differ_without_a_seed_and_agree_with_one(engine, model):
    ask = {"model": model, "prompt": ["10 "] * 4, "max_tokens": 16}
    for seed, expected in ({}, 4), ({"seed": 3}, 1):
        _, events, _ = engine.generate({**ask, **seed})
        texts = {"".join(e["text"] for e in events if e["index"] == i) for i in range(4)}
        assert len(texts) == expected


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
        assert result["usage"] == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33, "prompt_tokens_details": {"cached_tokens": 0}}
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
    def begun():  # a search that was not seen running has ended before
        call = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 400, "num_beams": 8, "n": 2}, credit=2)
        seen = any(metric(engine, "additive_engine_generations_running") == 8 for _ in range(20))
        return call if seen else call.result() and None

    call = engine.wait(begun)
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
