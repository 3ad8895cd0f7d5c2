"""Completions and sessions: whole and streamed, slow clients, clients that leave."""

import json
import select
import socket
import time

import openai
import pytest

from http_support import chunks, engine, events, front, read_all, read_head, start, unchunk, wait_for

RESULT = {"choices": [{"index": 0, "finish_reason": "stop"}],
          "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
          "timings": {"queue_ms": 1.5, "prompt_ms": 2.0, "predicted_ms": 3.0}, "model": "m"}
REQUEST = {"model": "m", "prompt": "Once"}


@pytest.fixture
def two_tokens(engine):
    @engine.on("completion.create")
    async def _(call):
        for i, text in enumerate(["He", "llo ☃"]):
            await call.event({"index": 0, "text": text, "tokens": [i], "time_ms": 0.5,
                              "logprobs": {"tokens": [text], "token_logprobs": [-0.5], "top_logprobs": [{text: -0.5}], "text_offset": [2 * i]},
                              "alpha": [{"token": {"id": i, "text": "x", "offset": 0}, "weight": 0.9}]})
        call.result(RESULT)

    return engine


def test_a_completion_is_collected_from_its_events(front, two_tokens):
    before = int(time.time())
    answer = front.post("/v1/completions", {**REQUEST, "max_tokens": 2, "logprobs": 1, "seed": 4}).json
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
    assert before <= answer["created"] <= time.time()
    assert answer["model"] == "m"
    assert answer["usage"] == RESULT["usage"]
    choice = answer["choices"][0]
    assert choice["text"] == "Hello ☃"
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert choice["logprobs"] == {"tokens": ["He", "llo ☃"], "token_logprobs": [-0.5, -0.5],
                                  "top_logprobs": [{"He": -0.5}, {"llo ☃": -0.5}], "text_offset": [0, 2]}
    assert [step[0]["weight"] for step in choice["alpha"]] == [0.9, 0.9]
    assert two_tokens.calls[-1].params == {**REQUEST, "max_tokens": 2, "logprobs": 1, "seed": 4}


@pytest.mark.parametrize("more", [{}, {"alpha": []}])
def test_a_nul_of_the_model_reaches_the_client(front, engine, more):
    @engine.on("completion.create")
    async def _(call):
        for _ in range(2):
            await call.event({"index": 0, "text": "a\0b", "tokens": [1], "time_ms": 0.5, **more})
        call.result(RESULT)

    assert front.post("/v1/completions", REQUEST).json["choices"][0]["text"] == "a\0ba\0b"
    streamed = chunks(front.post("/v1/completions", {**REQUEST, "stream": True}).body)
    assert "".join(c["choices"][0]["text"] for c in streamed) == "a\0ba\0b"


def test_logprobs_are_null_when_none_came(front, engine):
    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        call.result(RESULT)

    choice = front.post("/v1/completions", REQUEST).json["choices"][0]
    assert choice["logprobs"] is None
    assert "alpha" not in choice


def test_a_stream_is_chunks_with_ids_and_ends_with_done(front, two_tokens):
    answer = front.post("/v1/completions", {**REQUEST, "stream": True, "timings": True, "stream_options": {"include_usage": True}})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers["X-Request-Id"]
    assert [i for i, _ in events(answer.body)] == ["1", "2", "3", "4", None]
    found = chunks(answer.body)
    assert len({c["id"] for c in found}) == 1
    assert all(c["object"] == "text_completion" and c["model"] == "m" for c in found)
    assert [c["choices"][0]["text"] for c in found[:3]] == ["He", "llo ☃", ""]
    assert [c["choices"][0]["finish_reason"] for c in found[:3]] == [None, None, "stop"]
    assert [c["usage"] for c in found] == [None, None, None, RESULT["usage"]]
    assert found[3]["choices"] == []
    assert found[0]["choices"][0]["logprobs"]["tokens"] == ["He"]
    assert found[0]["choices"][0]["alpha"][0]["weight"] == 0.9
    assert found[2]["timings"] == RESULT["timings"]
    assert "stream" not in two_tokens.calls[-1].params and "stream_options" not in two_tokens.calls[-1].params


def test_without_include_usage_no_chunk_speaks_of_it(front, two_tokens):
    found = chunks(front.post("/v1/completions", {**REQUEST, "stream": True}).body)
    assert len(found) == 3
    assert all("usage" not in c for c in found)


def test_timings_are_in_the_answer_when_requested(front, two_tokens):
    assert front.post("/v1/completions", {**REQUEST, "timings": True}).json["timings"] == RESULT["timings"]
    assert "timings" not in front.post("/v1/completions", REQUEST).json
    assert all("timings" not in c for c in chunks(front.post("/v1/completions", {**REQUEST, "stream": True}).body))
    assert front.metric("additive_queue_time_seconds_count{}") == 3


def test_stream_options_need_a_stream(front):
    answer = front.post("/v1/completions", {**REQUEST, "stream_options": {"include_usage": True}})
    assert (answer.status, answer.error["param"]) == (400, "stream_options")


def test_several_prompts_and_samples_keep_their_index(front, engine):
    @engine.on("completion.create")
    async def _(call):
        for i in [3, 0, 2, 1, 0]:
            await call.event({"index": i, "text": f"<{i}>", "tokens": [i]})
        call.result({**RESULT, "choices": [{"index": i, "finish_reason": "length"} for i in range(4)]})

    body = {"model": "m", "prompt": ["a", "b"], "n": 2}
    answer = front.post("/v1/completions", body).json
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "<0><0>"), (1, "<1>"), (2, "<2>"), (3, "<3>")]
    found = chunks(front.post("/v1/completions", {**body, "stream": True}).body)
    assert [c["choices"][0]["index"] for c in found] == [3, 0, 2, 1, 0, 0, 1, 2, 3]


def test_the_openai_client_streams_and_collects(front, two_tokens):
    client = front.openai()
    whole = client.completions.create(model="m", prompt="Once", logprobs=1)
    assert whole.choices[0].text == "Hello ☃"
    assert whole.usage.total_tokens == 5
    stream = client.completions.create(model="m", prompt="Once", stream=True, stream_options={"include_usage": True})
    found = list(stream)
    assert "".join(c.choices[0].text for c in found if c.choices) == "Hello ☃"
    assert found[-1].usage.total_tokens == 5


def test_overload_is_an_http_error_before_the_stream(front, engine):
    @engine.on("completion.create")
    async def _(call):
        call.error(429, "queue_full", "busy", retry_after=3)

    for stream in [False, True]:
        answer = front.post("/v1/completions", {**REQUEST, "stream": stream})
        assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
        assert answer.headers["Content-Type"] == "application/json"


def test_an_error_within_a_stream_is_its_last_event(front, engine):
    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        call.error(500, "device_lost", "the device is gone")

    found = events(front.post("/v1/completions", {**REQUEST, "stream": True}).body)
    assert len(found) == 2
    assert json.loads(found[1][1])["error"] == {"message": "the device is gone", "type": "server_error", "param": None, "code": "device_lost"}
    client = front.openai()
    with pytest.raises(openai.APIError, match="the device is gone"):
        list(client.completions.create(model="m", prompt="Once", stream=True))


def test_a_malformed_event_of_the_engine_costs_that_request_only(front, engine):
    @engine.on("completion.create")
    async def _(call):
        await call.event([1])
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        call.result(RESULT)

    answer = front.post("/v1/completions", REQUEST)
    assert (answer.status, answer.error["code"]) == (500, "engine_error")
    assert front.get("/readyz").status == 200


@pytest.mark.parametrize("index", [-1, 10**9, "x"])
def test_an_absurd_index_is_no_array_index(front, engine, index):
    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": index, "text": "x", "tokens": [1]})
        call.result({**RESULT, "choices": [{"index": index, "finish_reason": "stop"}]})

    assert front.post("/v1/completions", REQUEST).status in (200, 500)
    assert front.get("/readyz").status == 200


# --- time ------------------------------------------------------------------------------------------


def test_an_event_leaves_when_it_comes(front, engine):
    """Nothing is held back: each token of a slow generation arrives before the next is made."""
    seen = []

    @engine.on("completion.create")
    async def _(call):
        for i in range(20):
            seen.append(time.monotonic())
            await call.event({"index": 0, "text": str(i), "tokens": [i]})
            await __import__("asyncio").sleep(0.03)
        call.result(RESULT)

    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}) as s:
        late, data = [], b""
        while b"[DONE]" not in data:
            piece = s.recv(65536)
            late.append(time.monotonic() - seen[-1])
            data += piece
    late.sort()
    assert late[len(late) // 2] < 0.02, late


def test_waiting_costs_no_processor_time(front, engine):
    """A reader that returned nothing without suspending would spin."""

    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        await call.read()

    sockets = [front.open_stream("/v1/completions", {**REQUEST, "stream": stream}) for stream in [True, False] * 4]
    wait_for(lambda: len(engine.calls) == 8)
    time.sleep(0.2)
    before = front.cpu()
    time.sleep(1)
    assert front.cpu() - before < 0.1
    for s in sockets:
        s.close()
    wait_for(lambda: all(c.cancelled.is_set() for c in engine.calls))


def test_a_resumed_stream_is_sent_at_once(front, engine):
    """The library does not notice a resumed connection until it is run."""

    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        await __import__("asyncio").sleep(0.3)
        call.result(RESULT)

    began = time.monotonic()
    for stream in [True, False]:
        front.post("/v1/completions", {**REQUEST, "stream": stream})
    assert time.monotonic() - began < 1.5


# --- clients that leave -------------------------------------------------------------------------------


def endless(engine, method="completion.create", text="token ", events_first=10**9):
    @engine.on(method)
    async def _(call):
        import asyncio

        for i in range(events_first):
            await call.event({"index": 0, "text": text, "tokens": [i]})
            await asyncio.sleep(0.05)
        await call.read()


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_within_a_token(front, engine, stream, how):
    endless(engine)
    s = front.open_stream("/v1/completions", {**REQUEST, "stream": stream})
    wait_for(lambda: engine.calls and engine.calls[0].sent >= 3)
    if how == "reset":
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if how == "half-close":
        s.shutdown(socket.SHUT_WR)
    else:
        s.close()
    call, at = engine.calls[0], engine.calls[0].sent
    wait_for(call.cancelled.is_set, 1, "the cancellation")
    assert call.sent - at <= 1
    s.close()
    wait_for(lambda: front.metric("additive_http_requests_in_flight") == 1)


def test_a_client_that_leaves_the_queue_cancels(front, engine):
    endless(engine, events_first=0)
    s = front.open_stream("/v1/completions", {**REQUEST, "stream": True})
    wait_for(lambda: engine.calls)
    s.close()
    wait_for(engine.calls[0].cancelled.is_set, 1)


def test_a_slow_client_parks_its_own_stream_and_no_other(front, engine):
    text = "x" * 20000

    @engine.on("completion.create")
    async def _(call):
        for i in range(10000 if call.params["prompt"] == "slow" else 5):
            await call.event({"index": 0, "text": text, "tokens": [i]})
        call.result(RESULT)

    before = front.rss()
    slow = [front.open_stream("/v1/completions", {"model": "m", "prompt": "slow", "stream": True}, receive_buffer=4096) for _ in range(4)]
    wait_for(lambda: len(engine.calls) == 4 and all(c.parked > 0 and c.credit == 0 for c in engine.calls))
    sent = [c.sent for c in engine.calls]
    time.sleep(0.5)
    assert [c.sent for c in engine.calls] == sent, "a parked stream stays parked"
    assert max(sent) < 500
    assert front.rss() - before < 16 << 20
    other = chunks(front.post("/v1/completions", {"model": "m", "prompt": "quick", "stream": True}).body)
    assert len(other) == 6
    # It continues from where it stopped once the client reads.
    slow[0].settimeout(10)
    got = 0
    while got < 4 << 20:
        got += len(slow[0].recv(1 << 20))
    assert engine.calls[0].sent > sent[0]
    for s in slow:
        s.close()
    wait_for(lambda: all(c.cancelled.is_set() for c in engine.calls[:4]), what="cancellation of what was parked")


def test_the_engine_gets_reports_that_a_slow_client_reads(start, engine):
    front = start("--request-timeout", "2")  # looks at clients twice a second

    @engine.on("completion.create")
    async def _(call):
        for i in range(10000):
            await call.event({"index": 0, "text": "x" * 20000, "tokens": [i]})

    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}, receive_buffer=4096) as s:
        wait_for(lambda: engine.calls and engine.calls[0].parked > 0 and engine.calls[0].credit == 0)
        call = engine.calls[0]
        time.sleep(1.2)
        assert call.alive <= 1, "a client that reads nothing is not alive"
        before = call.alive
        got = 0
        while call.alive == before:
            got += len(s.recv(1024))
            time.sleep(0.01)
            assert got < 1 << 20
        assert call.credit == 0, "a little is not everything"


def test_a_stream_that_was_ended_by_an_error_does_not_keep_its_connection(start, engine):
    front = start("--request-timeout", "0.8")

    @engine.on("completion.create")
    async def _(call):
        for i in range(100):
            if call.credit == 0:
                break
            await call.event({"index": 0, "text": "x" * 200000, "tokens": [i]})
        call.error(429, "overloaded", "the stream was not read")

    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}, receive_buffer=4096):
        wait_for(lambda: engine.calls and engine.calls[0].finished.is_set())
        wait_for(lambda: front.metric("additive_http_connections") == 1, 4)


def test_a_client_that_takes_nothing_is_given_up_in_the_end(start, engine):
    front = start("--stall-timeout", "0.6", "--request-timeout", "0.8")
    endless_text = "x" * 20000

    @engine.on("completion.create")
    async def _(call):
        for i in range(10000):
            await call.event({"index": 0, "text": endless_text, "tokens": [i]})

    s = front.open_stream("/v1/completions", {**REQUEST, "stream": True}, receive_buffer=4096)
    wait_for(lambda: engine.calls and engine.calls[0].cancelled.is_set(), 4)
    s.close()


def test_a_silent_stream_outlives_every_deadline(start, engine):
    """Waiting for the engine is not the client's fault."""
    front = start("--stall-timeout", "0.4", "--request-timeout", "0.4")

    @engine.on("completion.create")
    async def _(call):
        import asyncio

        await asyncio.sleep(1.2)
        await call.event({"index": 0, "text": "late", "tokens": [1]})
        await asyncio.sleep(1.2)
        call.result(RESULT)

    assert chunks(front.post("/v1/completions", {**REQUEST, "stream": True}).body)[0]["choices"][0]["text"] == "late"


def test_silence_is_filled_with_comments(start, engine):
    """Proxies and clients close silent connections."""
    front = start("--ping", "0.2", "--request-timeout", "0.4")

    @engine.on("completion.create")
    async def _(call):
        import asyncio

        await call.event({"index": 0, "text": "first", "tokens": [1]})
        await asyncio.sleep(1)
        call.result(RESULT)

    body = front.post("/v1/completions", {**REQUEST, "stream": True}).body
    assert 2 <= body.count(b": ping\n\n") <= 5
    assert [c["choices"][0]["text"] for c in chunks(body)] == ["first", ""]


# --- sessions -----------------------------------------------------------------------------------------


def test_a_session_generates_with_its_position(front, engine):
    @engine.on("session.generate")
    async def _(call):
        await call.event({"index": 0, "text": "more", "tokens": [1]})
        call.result({**RESULT, "model": "small", "session": {"id": call.params["id"], "tokens": 9}})

    answer = front.post("/v1/sessions/s-1/generate", {"max_tokens": 1}).json
    assert answer["object"] == "text_completion"
    assert (answer["model"], answer["session"]) == ("small", {"id": "s-1", "tokens": 9})
    assert answer["choices"][0]["text"] == "more"
    assert engine.calls[-1].params == {"id": "s-1", "max_tokens": 1}
    found = chunks(front.post("/v1/sessions/s-1/generate", {"prompt": "go", "stream": True}).body)
    assert found[-1]["session"] == {"id": "s-1", "tokens": 9}
    assert found[-1]["model"] == "small"


@pytest.mark.parametrize("path,method,body", [("/v1/completions", "completion.create", {"prompt": "x"}),
                                              ("/v1/chat/completions", "chat.create", {"messages": [{"role": "user", "content": "x"}]})])
def test_an_adapter_is_passed_on_and_named_by_the_answer(front, engine, path, method, body):
    @engine.on(method)
    async def _(call):
        await call.event({"index": 0, "text": "more", "tokens": [1]})
        call.result({**RESULT, "adapter": call.params["adapter"]})

    ask = {"model": "m", **body, "adapter": "adapter-1"}
    assert front.post(path, ask).json["adapter"] == "adapter-1"
    found = chunks(front.post(path, {**ask, "stream": True}).body)
    assert [c.get("adapter") for c in found] == [None] * (len(found) - 1) + ["adapter-1"]
    answer = front.post(path, {**ask, "adapter": 7})
    assert (answer.status, answer.error["param"]) == (400, "adapter")


@pytest.mark.parametrize("path,method,body", [("/v1/completions", "completion.create", {"prompt": "x"}),
                                              ("/v1/chat/completions", "chat.create", {"messages": [{"role": "user", "content": "x"}]})])
def test_a_state_is_passed_on_in_both_directions(front, engine, path, method, body):
    state = {"blob": "QUJD", "model": "m", "hash": "0" * 16, "tokens": 3}

    @engine.on(method)
    async def _(call):
        await call.event({"index": 0, "text": "more", "tokens": [1]})
        call.result({**RESULT, "state": state})

    for given in (state, "QUJD"):
        ask = {"model": "m", **body, "state": given, "return_state": True}
        assert front.post(path, ask).json["state"] == state
        assert (engine.calls[-1].params["state"], engine.calls[-1].params["return_state"]) == (given, True)
        found = chunks(front.post(path, {**ask, "stream": True}).body)
        assert [c.get("state") for c in found] == [None] * (len(found) - 1) + [state]
    for wrong in (7, {}, {"blob": 1}, {"blob": "QUJD", "more": 1}):
        answer = front.post(path, {"model": "m", **body, "state": wrong})
        assert answer.status == 400 and answer.error["param"].startswith("state")


def test_a_fingerprint_stays_as_long_as_the_engine_does(start, engine, two_tokens):
    fronts = [start(), start()]
    found = {f.post("/v1/completions", REQUEST).json["system_fingerprint"] for f in fronts}
    found |= {c["system_fingerprint"] for c in chunks(fronts[0].post("/v1/completions", {**REQUEST, "stream": True}).body)}
    assert len(found) == 1 and found.pop().startswith("fp_")


def test_every_chunk_of_a_session_names_the_model(front, engine):
    @engine.on("session.generate")
    async def _(call):
        for more in ({"model": "small"}, {}, {}):
            await call.event({"index": 0, "text": "more", "tokens": [1], "time_ms": 0.5, **more})
        call.result({**RESULT, "model": "small", "session": {"id": call.params["id"], "tokens": 9}})

    found = chunks(front.post("/v1/sessions/s-1/generate", {"stream": True}).body)
    assert [c["model"] for c in found] == ["small"] * 4


def test_a_busy_session_is_a_conflict(front, engine):
    @engine.on("session.generate")
    async def _(call):
        call.error(409, "session_busy", "busy")

    answer = front.post("/v1/sessions/s-1/generate", {"stream": True})
    assert (answer.status, answer.error["code"]) == (409, "session_busy")


def test_a_sessions_body_cannot_name_another_session(front, engine):
    answer = front.post("/v1/sessions/s-1/append", {"text": "x", "id": "s-2"})
    assert (answer.status, answer.error["param"]) == (400, "id")


# --- job events ------------------------------------------------------------------------------------------


def job_engine(engine):
    log = [{"id": f"ev-{i}", "object": "fine_tuning.job.event", "message": f"step {i}"} for i in range(5)]

    @engine.on("job.get")
    async def _(call):
        call.result({"id": "j"}) if call.params["id"] == "j" else call.error(404, "not_found", "no such job")

    @engine.on("job.events")
    async def _(call):
        known = call.params["id"] == "j" and call.params["after"] in [e["id"] for e in log]
        call.result({"data": []}) if known else call.error(404, "not_found", "no such row", param="after")

    @engine.on("job.watch")
    async def _(call):
        after = call.params.get("after")
        for event in log[int(after[3:]) + 1 if after else 0 :]:
            await call.event(event)
        call.result({"id": "j", "status": "succeeded"})

    return log


def test_job_events_stream_from_the_start_and_resume(front, engine):
    log = job_engine(engine)
    path = "/v1/fine_tuning/jobs/j/events?stream=true"
    answer = front.get(path)
    assert answer.headers["Content-Type"] == "text/event-stream"
    found = events(answer.body)
    assert [i for i, _ in found] == [e["id"] for e in log] + [None]
    assert [json.loads(d) for _, d in found[:-1]] == log
    assert found[-1][1] == "[DONE]"
    resumed = events(front.get(path, headers={"Last-Event-ID": "ev-2"}).body)
    assert [i for i, _ in resumed] == ["ev-3", "ev-4", None]
    assert [i for i, _ in events(front.get(path + "&after=ev-3").body)] == ["ev-4", None]
    assert front.get(path, headers={"Last-Event-ID": "a b"}).status == 400
    assert front.get(path.removesuffix("?stream=true"), headers={"Last-Event-ID": "a b"}).status == 400
    for unknown in (front.get(path, headers={"Last-Event-ID": "ev-9"}), front.get(path + "&after=ev-9")):
        assert (unknown.status, unknown.error["code"]) == (404, "not_found")
    assert len(engine.called("job.watch")) == 3
    assert front.get("/v1/fine_tuning/jobs/other/events?stream=true").status == 404


def test_a_job_watcher_gets_its_headers_before_the_first_event_and_may_leave(front, engine):
    job_engine(engine)

    @engine.on("job.watch")
    async def _(call):
        await call.read()

    with front.socket() as s:
        s.sendall(b"GET /v1/fine_tuning/jobs/j/events?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_head(s)[0] == 200
        wait_for(lambda: engine.called("job.watch"))
    wait_for(engine.called("job.watch")[0].cancelled.is_set, 1)


def test_calls_of_functions_have_ids_and_openais_form(front, engine):
    @engine.on("chat.create")
    async def _(call):
        await call.event({"index": 0, "text": "Hm", "tokens": [1], "time_ms": 0.5})
        await call.event({"index": 0, "text": ".", "tokens": [2], "tool_calls": [{"index": 0, "name": "f"}]})
        await call.event({"index": 0, "text": "", "tokens": [3], "tool_calls": [{"index": 0, "arguments": '{"a'}]})
        await call.event({"index": 0, "text": "", "tokens": [4], "tool_calls": [{"index": 0, "arguments": '": 1}'}, {"index": 1, "name": "g", "arguments": "{"}]})
        call.result({**RESULT, "choices": [{"index": 0, "finish_reason": "tool_calls", "event": {"index": 0, "text": "", "tokens": [], "tool_calls": [{"index": 1, "arguments": "}"}]}}]})

    ask = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f"}}]}
    choice = front.post("/v1/chat/completions", ask).json["choices"][0]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Hm."
    assert [(c["type"], c["function"]) for c in calls] == [("function", {"name": "f", "arguments": '{"a": 1}'}), ("function", {"name": "g", "arguments": "{}"})]
    assert len({c["id"] for c in calls}) == 2 and all(c["id"].startswith("call_") for c in calls)

    deltas = [c["choices"][0]["delta"] for c in chunks(front.post("/v1/chat/completions", {**ask, "stream": True}).body)]
    assert deltas[0] == {"role": "assistant", "content": ""} and [d.get("content") for d in deltas[1:]] == ["Hm", ".", None, None, None, None]
    parts = [part for d in deltas for part in d.get("tool_calls", ())]
    assert [part["index"] for part in parts] == [0, 0, 0, 1, 1]
    assert [("id" in part, part["function"]) for part in parts] == [
        (True, {"name": "f", "arguments": ""}), (False, {"arguments": '{"a'}), (False, {"arguments": '": 1}'}), (True, {"name": "g", "arguments": "{"}), (False, {"arguments": "}"})]


def test_an_answer_that_only_calls_has_no_content(front, engine):
    @engine.on("chat.create")
    async def _(call):
        await call.event({"index": 0, "text": "", "tokens": [1], "tool_calls": [{"index": 0, "name": "f", "arguments": "{}"}]})
        call.result({**RESULT, "choices": [{"index": 0, "finish_reason": "tool_calls"}]})

    message = front.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}]}).json["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1


# --- what a request asks of the engine besides its body ----------------------------------------

TENANT = "x-llm-d-inference-fairness-id"


def test_a_limit_of_time_in_a_header_reaches_the_engine(front, engine):
    front.post("/v1/completions", REQUEST, headers={"X-Request-Timeout": "2.5"})
    assert engine.calls[-1].context["timeout"] == 2.5
    for wrong in ("", "0", "-1", "x", "1e3", "inf", "0x10", "86401", "1 2"):
        assert front.post("/v1/completions", REQUEST, headers={"X-Request-Timeout": wrong}).error["param"] == "X-Request-Timeout"
        assert front.get("/healthz", headers={"X-Request-Timeout": wrong}).status == 200  # it does not apply
    front.post("/v1/completions", REQUEST)
    assert set(engine.calls[-1].context) == {"request_id"}
    front.get("/v1/files/file-1/statistics", headers={"X-Request-Timeout": "2.5"})
    assert engine.calls[-1].context["timeout"] == 2.5


def test_only_a_trusted_proxy_names_a_tenant(start, engine):
    trusting, other = start("--trusted-proxies", "10.0.0.0/8", "--trusted-proxies", "127.0.0.0/8"), start("--trusted-proxies", "10.0.0.0/8")
    other.post("/v1/completions", REQUEST, headers={TENANT: "team-1"})
    assert "fairness_id" not in engine.calls[-1].context
    trusting.post("/v1/completions", REQUEST, headers={TENANT: "team-1"})
    assert engine.calls[-1].context["fairness_id"] == "team-1"
    trusting.post("/v1/completions", REQUEST, headers={"x-gateway-inference-fairness-id": "team-2", "X-Request-Timeout": "7"})
    assert (engine.calls[-1].context["fairness_id"], engine.calls[-1].context["timeout"]) == ("team-2", 7)
    for wrong in ("", "a b", 'a"b', "a\\b", "x" * 64):
        assert trusting.post("/v1/completions", REQUEST, headers={TENANT: wrong}).error["param"] == TENANT
    assert other.post("/v1/completions", REQUEST, headers={TENANT: "x" * 64}).status == 200
