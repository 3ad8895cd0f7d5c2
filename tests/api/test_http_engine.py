"""The engine's absence, death, silence and misbehaviour; and the front end's own end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from fake_engine import ERROR, EVENT, HEADER, HELLO, FakeEngine, pack
from http_support import BIN, Front, chunks, engine, events, front, read_all, read_head, start, unchunk, wait_for

REQUEST = {"model": "m", "prompt": "x"}
RESULT = {"choices": [{"index": 0, "finish_reason": "stop"}], "usage": {}, "model": "m"}


def ready(front):
    return front.get("/readyz").status == 200


def test_without_an_engine_everything_that_needs_one_is_503(start, tmp_path):
    front = start(engine="unix:" + str(tmp_path / "nobody"), connected=False)
    for method, path, body in [("GET", "/v1/models", None), ("POST", "/v1/completions", REQUEST), ("POST", "/v1/completions", {**REQUEST, "stream": True}),
                               ("GET", "/v1/files/f/content", None), ("GET", "/v1/fine_tuning/jobs/j/events?stream=true", None), ("GET", "/readyz", None)]:
        answer = front.request(method, path, body)
        assert answer.status == 503, path
        assert answer.headers["Retry-After"] == "1"
        assert answer.error["type"] == "server_error"
        assert answer.error["code"] == "engine_unavailable"
    assert front.get("/healthz").status == 200
    assert "additive_engine_up 0\n" in front.get("/metrics").body.decode()
    assert front.get("/version").json["engine"] is None


def test_an_upload_without_an_engine_is_503(start, tmp_path):
    front = start(engine="unix:" + str(tmp_path / "nobody"), connected=False)
    answer = front.post("/v1/sessions?model=m", b"x" * 1000, headers={"Content-Type": "application/octet-stream"})
    assert answer.status == 503


def test_the_engine_may_come_later(start, tmp_path):
    front = start(engine="unix:" + str(tmp_path / "late.sock"), connected=False)
    assert not ready(front)
    with FakeEngine(tmp_path / "late.sock"):
        wait_for(lambda: ready(front), 6)


def test_an_engine_on_tcp(start, tmp_path):
    import asyncio

    fake = FakeEngine(tmp_path / "unused")

    async def listen():
        fake.server = await asyncio.start_server(fake._accept, "127.0.0.1", 0)
        return fake.server.sockets[0].getsockname()[1]

    fake.thread.start()
    port = fake.do(listen())
    front = start(engine=f"localhost:{port}")
    assert front.get("/v1/models").json["method"] == "model.list"
    fake.stop()
    wait_for(lambda: not ready(front))


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_stops_before_the_answer_makes_503(front, engine, stream):
    @engine.on("completion.create")
    async def _(call):
        call.connection.writer.transport.abort()

    answer = front.post("/v1/completions", {**REQUEST, "stream": stream})
    assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
    assert answer.headers["Retry-After"] == "1"


def test_an_engine_that_stops_within_a_stream_makes_its_last_event(front, engine):
    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        await __import__("asyncio").sleep(0.1)
        engine.stop_soon = True
        call.connection.writer.transport.abort()

    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}, headers={"Connection": "close"}) as s:
        status, _, rest = read_head(s)
        body, whole = unchunk(rest + read_all(s))
    assert status == 200 and whole
    found = events(body)
    assert len(found) == 2
    assert json.loads(found[1][1])["error"]["code"] == "engine_unavailable"


def test_an_engine_that_stops_within_a_whole_answer_makes_503(front, engine):
    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        await __import__("asyncio").sleep(0.1)
        call.connection.writer.transport.abort()

    assert front.post("/v1/completions", REQUEST).status == 503


def test_an_engine_that_stops_during_an_upload_makes_503(front, engine):
    @engine.on("session.import")
    async def _(call):
        call.grant(1)
        await call.read()
        call.connection.writer.transport.abort()

    answer = front.post("/v1/sessions?model=m", b"x" * 3000000, headers={"Content-Type": "application/octet-stream"})
    assert answer.status == 503


def test_the_link_comes_back_by_itself_again_and_again(front, engine):
    for _ in range(3):
        engine.stop()
        wait_for(lambda: not ready(front))
        engine.start()
        wait_for(lambda: ready(front), 6)
        assert front.get("/v1/models").json["method"] == "model.list"


def test_a_killed_engine_ends_every_open_request_once(front, engine):
    @engine.on("completion.create")
    async def _(call):
        if call.params["prompt"] == "begun":
            await call.event({"index": 0, "text": "x", "tokens": [1]})
        await call.read()

    open_ones = [front.open_stream("/v1/completions", {"model": "m", "prompt": p, "stream": stream}, headers={"Connection": "close"})
                 for p in ("begun", "waiting") for stream in (True, False) for _ in range(5)]
    wait_for(lambda: len(engine.calls) == 20)
    time.sleep(0.1)
    engine.stop()
    for s in open_ones:
        status, _, _ = read_head(s)
        assert status in (200, 503)
        s.close()
    wait_for(lambda: front.metric("additive_http_requests_in_flight") == 1)
    engine.start()
    wait_for(lambda: ready(front), 6)


@pytest.mark.parametrize("hello", [pack(HELLO, body={"protocol": 2}), pack(HELLO, body={"protocol": "1"}), pack(HELLO, body={}), pack(HELLO, body=[]),
                                   pack(EVENT, 1, {}), b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100, b"\xff" * 100, b"\0" * 24,
                                   HEADER.pack(0xFFFFFFFF, 0xFFFFFFFF, 0, HELLO, 0, 0, 0), HEADER.pack(2, 2, 0, HELLO, 0, 0, 0) + b"{{",
                                   pack(ERROR, 0, {"status": 400, "code": "protocol_mismatch"})])
def test_a_stranger_is_no_engine(start, engine, hello):
    engine.hello = hello
    front = start(connected=False)
    wait_for(lambda: front.log)
    answer = front.get("/readyz")
    assert answer.status == 503
    if b'"protocol": 2' in hello:
        assert "protocol 2" in answer.error["message"]
        wait_for(lambda: engine.refusals)
        assert engine.refusals[0]["code"] == "protocol_mismatch"
    assert front.get("/healthz").status == 200
    assert len(engine.connections) <= 2 and front.process.poll() is None


@pytest.mark.parametrize("garbage", [b"\xff" * 64, pack(99), HEADER.pack(1 << 31, 0, 0, EVENT, 0, 0, 1), pack(HELLO), pack(ERROR, 0, {})])
def test_garbage_later_costs_the_connection_only(front, engine, garbage):
    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        call.connection.write(garbage)
        await call.read()

    found = events(front.post("/v1/completions", {**REQUEST, "stream": True}).body)
    assert json.loads(found[-1][1])["error"]["code"] == "engine_unavailable"
    wait_for(lambda: ready(front), 6)


def test_frames_for_ended_and_unknown_streams_are_ignored(front, engine):
    @engine.on("model.get")
    async def _(call):
        call.connection.write(pack(EVENT, 999999, {}))
        call.result({"id": "m"})
        call.connection.write(pack(EVENT, call.stream, {}))
        call.connection.write(pack(ERROR, call.stream, {"status": 500}))

    for _ in range(3):
        assert front.get("/v1/models/m").json == {"id": "m"}


def test_unrequested_events_do_no_harm(front, engine):
    @engine.on("model.get")
    async def _(call):
        for _ in range(100):
            call.connection.write(pack(EVENT, call.stream, {"x": 1}))
        call.result({"id": "m"})

    assert front.get("/v1/models/m").json == {"id": "m"}


def test_an_engine_that_falls_silent_is_given_up(start, engine):
    @engine.on("completion.create")
    async def _(call):
        engine.mute = True
        await call.read()

    front = start("--engine-timeout", "1")
    time.sleep(1.3)
    assert ready(front) and engine.pings >= 1, "pings keep a quiet link up"
    began = time.monotonic()
    assert front.post("/v1/completions", REQUEST).status == 503
    assert time.monotonic() - began < 3
    engine.mute = False
    wait_for(lambda: ready(front), 8)


def test_one_frame_byte_by_byte_is_understood(front, engine):
    @engine.on("model.get")
    async def _(call):
        from fake_engine import RESULT as result

        for byte in pack(result, call.stream, {"id": "m"}):
            await call.connection.send(bytes([byte]))
            await __import__("asyncio").sleep(0.001)
        call.finished.set()

    assert front.get("/v1/models/m").json == {"id": "m"}


# --- the front end's own end -----------------------------------------------------------------------------------


def long_generation(engine, tokens=10**6, pause=0.02):
    @engine.on("completion.create")
    async def _(call):
        import asyncio

        for i in range(tokens):
            await call.event({"index": 0, "text": "x", "tokens": [i]})
            await asyncio.sleep(pause)
        call.result(RESULT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_status_0_although_streams_are_open(engine, number):
    """Suspended connections must be ended first: the library aborts otherwise."""
    long_generation(engine)
    front = Front(engine, "--grace", "0.3")

    @engine.on("model.get")
    async def _(call):
        await call.read()

    streams = [front.open_stream("/v1/completions", {**REQUEST, "stream": True}) for _ in range(5)]
    whole = [front.open_stream("/v1/completions", REQUEST) for _ in range(3)]
    idle = [front.socket() for _ in range(3)]
    half = front.socket()
    half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    unary = front.socket()
    unary.sendall(b"GET /v1/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_for(lambda: len(engine.calls) == 9)
    began = time.monotonic()
    assert front.stop(number) == 0
    assert 0.2 < time.monotonic() - began < 3
    for s in streams:
        status, _, rest = read_head(s)
        body, complete = unchunk(rest + read_all(s))
        assert status == 200 and complete
        assert json.loads(events(body)[-1][1])["error"]["code"] == "shutting_down"
    for s in [*whole, unary]:
        assert read_head(s)[0] == 503
    for s in [*streams, *whole, *idle, half, unary]:
        s.close()
    wait_for(lambda: all(c.cancelled.is_set() for c in engine.calls))


def test_running_requests_may_end_within_the_grace_time(engine):
    long_generation(engine, tokens=20)
    front = Front(engine, "--grace", "5")
    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}) as s:
        wait_for(lambda: engine.calls and engine.calls[0].sent > 2)
        front.process.send_signal(signal.SIGTERM)
        with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
            for _ in range(50):
                front.socket().close()
                time.sleep(0.01)
        _, _, rest = read_head(s)
        body, whole = unchunk(rest + read_all(s))
    assert whole
    assert len(chunks(body)) == 21
    assert front.process.wait(5) == 0


@pytest.mark.parametrize("kind", ["fine_tuning/jobs", "evaluations"])
def test_a_stop_does_not_wait_for_a_watched_job(engine, kind):
    """Its stream has no end to wait for; the client continues it with Last-Event-ID."""
    method = {"fine_tuning/jobs": "job", "evaluations": "evaluation"}[kind]

    @engine.on(f"{method}.get")
    async def _(call):
        call.result({"id": "j"})

    @engine.on(f"{method}.watch")
    async def _(call):
        await call.event({"id": "event-1", "message": "x"})
        while not call.cancelled.is_set():
            await asyncio.sleep(0.01)

    front = Front(engine, "--grace", "60")
    with front.socket() as s:
        s.sendall(f"GET /v1/{kind}/j/events?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        status, _, rest = read_head(s)
        while b"event-1" not in rest:
            rest += s.recv(65536)
        began = time.monotonic()
        assert front.stop() == 0
        assert time.monotonic() - began < 1.5
        body, whole = unchunk(rest + read_all(s))
    found = events(body)
    assert status == 200 and whole and [i for i, _ in found] == ["event-1", None]
    assert json.loads(found[1][1])["error"]["code"] == "shutting_down"
    wait_for(engine.called(f"{method}.watch")[0].cancelled.is_set)
    assert not [line for line in front.log if "stopping" in line]


def test_a_stop_that_waits_for_requests_is_logged(engine):
    long_generation(engine)
    front = Front(engine, "--grace", "0.5")
    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}):
        wait_for(lambda: engine.calls and engine.calls[0].sent > 2)
        assert front.stop() == 0
    front.reader.join(5)
    assert [line for line in front.log if "stopping: 1 running request may take another 0.5 s; a second signal ends it" in line], front.log


def test_a_second_signal_ends_the_grace_time(engine):
    long_generation(engine)
    front = Front(engine, "--grace", "60")
    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}):
        wait_for(lambda: engine.calls and engine.calls[0].sent > 2)
        front.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert front.process.poll() is None
        began = time.monotonic()
        assert front.stop() == 0
        assert time.monotonic() - began < 3.5


def test_a_parked_client_does_not_hold_up_the_end(engine):
    text = "x" * 20000

    @engine.on("completion.create")
    async def _(call):
        for i in range(10000):
            await call.event({"index": 0, "text": text, "tokens": [i]})

    def seconds_of_a_stop(grace):
        engine.calls.clear()
        front = Front(engine, "--grace", str(grace))
        with front.open_stream("/v1/completions", {**REQUEST, "stream": True}, receive_buffer=4096):
            wait_for(lambda: engine.calls and engine.calls[0].parked)
            began = time.monotonic()
            assert front.stop() == 0
            return time.monotonic() - began

    assert min(seconds_of_a_stop(0) for _ in range(3)) < 1.9  # the machine may be slow once
    assert 4 < seconds_of_a_stop(5) < 9


def test_a_request_that_is_complete_after_sigterm_is_answered_503_with_a_time_to_retry(engine):
    long_generation(engine, tokens=60)
    front = Front(engine, "--grace", "5")
    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}) as busy, front.socket() as kept:
        kept.sendall(b"GET /v1/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_head(kept)[0] == 200
        slow = front.socket()
        slow.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n")  # its head is not complete yet
        wait_for(lambda: engine.called("completion.create") and engine.called("completion.create")[0].sent > 2)
        time.sleep(0.1)
        front.process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
        slow.sendall(b"\r\n")
        status, headers, _ = read_head(slow)
        assert (status, headers.get("retry-after")) == (503, "1")
        slow.close()
        busy.close()
    assert front.process.wait(8) == 0


def test_sighup_without_files_to_read_changes_nothing(front, engine):
    front.process.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    assert front.process.poll() is None and front.get("/readyz").status == 200


def test_it_ends_at_once_when_nothing_is_open(engine, tmp_path):
    for address in [engine, "unix:" + str(tmp_path / "nobody"), "localhost:1"]:
        front = Front(address, connected=False)
        began = time.monotonic()
        assert front.stop() == 0
        assert time.monotonic() - began < 1.5
