"""Whatever a client does, its request and its connection are freed, and it never waits for a deadline that is not its own fault."""

import asyncio
import re
import socket
import struct
import time

import pytest

from http_support import engine, front, read_all, read_head, start, wait_for

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def arguments(n, path=b"/healthz"):
    return b"GET " + path + b"?" + b"a=b&" * n + b" HTTP/1.1\r\nHost: localhost\r\n"


# Input that the front end must end at once by itself: with an answer or a close.
ENDED = {
    "sixteen arguments": arguments(16) + b"\r\n",
    "five hundred arguments": arguments(500) + b"\r\n",
    "a thousand arguments": arguments(1000) + b"\r\n",
    "six thousand arguments": arguments(6000) + b"\r\n",
    "arguments up to the edge of the memory": arguments(460) + b"\r\n" + b"x" * 40000,
    "arguments without a path": b"GET ?" + b"a=b&" * 600 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "arguments without values": b"GET /healthz?" + b"a&" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "one long argument": b"GET /healthz?a=" + b"b" * 31000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "arguments of a POST": b"POST /v1/tokenize?" + b"a=b&" * 700 + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    "arguments and an oversized head": arguments(300) + b"X: y\r\n" * 5000 + b"\r\n",
    "arguments and a line that is no header": arguments(600) + b"nonsense\r\n\r\n",
    "a long target": b"GET /" + b"a" * 31000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a target beyond the memory": b"GET /" + b"a" * 60000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "five thousand headers": GET + b"a: b\r\n" * 5000 + b"\r\n",
    "a huge header": GET + b"X: " + b"a" * 100000 + b"\r\n\r\n",
    "a header folded for ever": GET + b"a: b\r\n" + b" ccccccc\r\n" * 5000 + b"\r\n",
    "a line that is no header": GET + b"nonsense\r\n\r\n",
    "two thousand cookies": GET + b"Cookie: " + b"a=b;" * 2000 + b"\r\n\r\n",
    "a huge cookie": GET + b"Cookie: " + b"a" * 24000 + b"\r\n\r\n",
    "cookies and an absurd length": GET + b"Cookie: " + b"a=b;" * 2000 + b"\r\nContent-Length: x\r\n\r\n",
    "a chunk that is none": CHUNKED + b"zz\r\n",
    "a chunk of absurd size": CHUNKED + b"f" * 17 + b"\r\n",
    "a chunk with an endless extension": CHUNKED + b"1;" + b"x" * 60000,
    "endless trailers": CHUNKED + b"2\r\n{}\r\n0\r\n" + b"a: b\r\n" * 8000 + b"\r\n",
    "a trailer that is none": CHUNKED + b"2\r\n{}\r\n0\r\nabc\r\n\r\n",
    "a length that is none": POST + b"Content-Length: x\r\n\r\n{}",
    "another version": b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no target": b"GET\r\n\r\n",
    "an unknown method": b"BREW /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "HEAD": b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "HEAD of nothing": b"HEAD /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "OPTIONS of everything": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "requests in a row": (GET + b"\r\n") * 100 + GET + b"Connection: close\r\n\r\n",
    "requests in a row, the last with arguments": (GET + b"\r\n") * 20 + arguments(1000) + b"Connection: close\r\n\r\n",
}
# Input that may still become a request: only the client can end it.
UNFINISHED = {
    "nothing": b"",
    "a method": b"GET",
    "a first line": b"GET /healthz HTTP/1.1\r\n",
    "a first line with arguments": b"GET /healthz?" + b"a=b&" * 1000 + b" HTTP/1.1\r\n",
    "half a head": GET,
    "half a head after a request": GET + b"\r\n" + GET,
    "half a body": POST + b"Content-Length: 90\r\n\r\n{",
    "half a chunk": CHUNKED + b"50\r\n{",
    "half a form": b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 900\r\n\r\n--b\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\nabc",
    "half a state": b"POST /v1/sessions?model=m HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: 900\r\n\r\nabc",
    "a request that the engine never answers": b"GET /v1/models/hang HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a stream that never ends": POST.replace(b"tokenize", b"completions") + b'Content-Length: 42\r\n\r\n{"model":"m","prompt":"x","stream": true } ',
}


def leave_closing(s):
    s.close()


def leave_resetting(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def leave_half(s):
    try:
        s.shutdown(socket.SHUT_WR)
        read_all(s)
    except OSError:
        pass
    s.close()


@pytest.fixture
def counted(start, engine):
    """A front end that must hold nothing but the scrape of its metrics in the end."""

    @engine.on("model.get")
    async def _(call):
        await asyncio.sleep(3600)

    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        await asyncio.sleep(3600)

    front = start("--request-timeout", "60", "--max-connections-per-ip", "0")
    yield front
    held = lambda: {name: front.metric("additive_http_" + name) for name in ("requests_in_flight", "connections")}
    wait_for(lambda: held() == {"requests_in_flight": 1, "connections": 1}, what=f"an empty front end, not {held()},")


def send(front, data):
    s = front.socket()
    try:
        s.sendall(data)
    except OSError:
        pass  # refused before all of it was sent
    return s


def is_whole(answer):
    """True for a single answer with its whole body, after which the connection stays open."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\r\nContent-Length: (\d+)", head)
    return length and b"\r\nConnection: close" not in head and len(body) == int(length[1])


@pytest.mark.parametrize("name", ENDED)
def test_what_is_wrong_is_ended_at_once(counted, name):
    began = time.monotonic()
    s = send(counted, ENDED[name])
    answer = b""
    try:
        while piece := s.recv(65536):
            answer += piece
            if ENDED[name].count(b"HTTP/") == 1 and is_whole(answer):
                break
    except ConnectionError:
        pass
    assert time.monotonic() - began < 5
    assert answer == b"" or re.match(rb"HTTP/1\.[01] [2345]\d\d ", answer)
    s.close()


@pytest.mark.parametrize("leave", [leave_closing, leave_resetting, leave_half])
def test_nothing_stays_of_a_client_that_leaves(counted, leave):
    for data in [*ENDED.values(), *UNFINISHED.values()]:
        for pause in (0, 0.01):
            s = send(counted, data)
            time.sleep(pause)
            leave(s)


def test_too_many_arguments_are_a_400_with_a_reason(counted):
    for n in (17, 500, 1000, 5000):
        answer = counted.get("/healthz?" + "a=b&" * n)
        assert (answer.status, answer.error["code"]) == (400, "invalid_target")


def test_a_connection_continues_after_too_many_arguments(counted):
    with counted.socket() as s:
        s.sendall(arguments(1000) + b"\r\n")
        status, headers, body = read_head(s)
        while len(body) < int(headers["content-length"]):
            body += s.recv(65536)
        assert status == 400
        s.sendall(GET + b"\r\n")
        assert read_head(s)[0] == 200


def test_slow_heads_and_bodies_are_freed_at_their_deadline(start):
    front = start("--request-timeout", "0.5")
    slow = [send(front, data) for data in UNFINISHED.values() if b"stream" not in data and b"hang" not in data]
    assert all(read_all(s) is not None for s in slow)
    wait_for(lambda: front.metric("additive_http_requests_in_flight") == front.metric("additive_http_connections") == 1)
