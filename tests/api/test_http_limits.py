"""Hostile and broken clients: framing, sizes, slowness, numbers, nesting."""

import json
import os
import random
import re
import resource
import socket
import subprocess
import time

import pytest

from http_support import BIN, engine, front, read_all, read_head, start, wait_for


def talk(front, data):
    """Send bytes on a new connection; the status of the first answer, its headers, and whether the connection was closed."""
    with front.socket() as s:
        s.sendall(data)
        status, headers, body = read_head(s)
        while len(body) < int(headers.get("content-length", 0)):
            body += s.recv(65536)
        s.settimeout(0.3)
        try:
            closed = s.recv(1) == b""
        except TimeoutError:
            closed = False
        except ConnectionError:
            closed = True
        return status, headers, body, closed


# --- framing ------------------------------------------------------------------------------------------

SMUGGLED = [
    ("two lengths", b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}"),
    ("two different lengths", b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}"),
    ("length and chunks", b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    ("chunks and length", b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    ("two codings", b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a list of codings", b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("another coding", b"Transfer-Encoding: identity\r\n\r\n{}"),
    ("a space before the colon", b"Content-Length : 2\r\n\r\n{}"),
    ("a tab before the colon", b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
    ("a control character in a name", b"Content-Length\x01: 2\r\n\r\n{}"),
    ("a negative length", b"Content-Length: -2\r\n\r\n{}"),
    ("a signed length", b"Content-Length: +2\r\n\r\n{}"),
    ("a list of lengths", b"Content-Length: 2, 2\r\n\r\n{}"),
    ("a length that is none", b"Content-Length: two\r\n\r\n{}"),
    ("a hexadecimal length", b"Content-Length: 0x2\r\n\r\n{}"),
    ("a chunk size that is none", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
    ("a negative chunk size", b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n"),
    ("two hosts", b"Host: y\r\nContent-Length: 2\r\n\r\n{}"),
]


@pytest.mark.parametrize("name,rest", SMUGGLED, ids=[n for n, _ in SMUGGLED])
def test_a_message_with_two_readings_is_refused_and_the_connection_closed(front, engine, name, rest):
    hidden = b"GET /v1/models/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
    status, _, _, closed = talk(front, b"POST /v1/models/m/load HTTP/1.1\r\nHost: localhost\r\n" + rest + hidden)
    assert (status, closed) == (400, True)
    assert not engine.calls


@pytest.mark.parametrize("line", [b"DELETE /v1/models/m\0 HTTP/1.1", b"DELETE /v1/models/m\0x HTTP/1.1", b"DELETE /v1/models/m\0HTTP/1.1 HTTP/1.1", b"GET /v1/files?limit=1\0 HTTP/1.1",
                                  b"DELETE\0 /v1/models/m HTTP/1.1", b"DELETE\0GET /v1/models/m HTTP/1.1", b"\0DELETE /v1/models/m HTTP/1.1", b"DELETE  \0/v1/models/m HTTP/1.1"])
def test_nothing_is_done_for_a_request_line_that_holds_a_nul(front, engine, line):
    """libmicrohttpd from 0.9.77 on closes the connection without an answer."""
    with front.socket() as s:
        s.sendall(line + b"\r\nHost: localhost\r\n\r\n")
        answer = read_all(s)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 "), answer
    assert not engine.calls


HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize("head", [HOST + b"X: a\0b\r\n\r\n", HOST + b"X: \0\r\n\r\n", HOST + b"X: a\0\r\nY: b\r\n\r\n", HOST + b"X:\0a\r\nY: b\r\n\r\n",
                                  HOST + b"Authorization: Bearer a\0b\r\nX: y\r\n\r\n", b"Host: localhost\0.example.com\r\n\r\n", HOST + b"Content-Length: 0\0 7\r\n\r\n",
                                  HOST + b"\0X: a\r\n\r\n", HOST + b"\0\r\n\r\n", b"\0\r\n" + HOST + b"\r\n", HOST + b"X: a\n\0Y: b\n\n", HOST + b"X: a\0b\n\n",
                                  HOST + b"X\0Y: a\r\n\r\n", HOST + b"X: a\r\n b\r\n\r\n", b"Host: localhost\r\n .example.com\r\n\r\n",
                                  HOST + b"X: a\0\r\nA:b\r\n\r\n", HOST + b"X:a\r\n\r\0\n", HOST + b"X: a\n\r\n", b"Host: localhost\n\r\n", HOST + b"X: a\rContent-Length: 5\r\n\r\n",
                                  HOST + b"X: a\r\n\tb\r\n\r\n"], ids=range(21))
def test_nothing_is_done_for_headers_that_hold_a_nul_or_are_folded_or_end_with_half_a_line_end(front, engine, head):
    hidden = b"GET /v1/models/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
    status, headers, body, closed = talk(front, b"DELETE /v1/models/m HTTP/1.1\r\n" + head + hidden)
    assert (status, closed, len(body)) == (400, True, int(headers["content-length"]))
    assert json.loads(body)["error"]["code"] == "invalid_framing"
    assert not engine.calls


@pytest.mark.parametrize("at", ["in the same packet", "later"])
@pytest.mark.parametrize("first", [b"GET /v1/models/m HTTP/1.1\r\n" + HOST + b"\r\n",
                                   b"POST /v1/tokenize HTTP/1.1\r\n" + HOST + b'Content-Type: application/json\r\ncontent-length:  27\r\n\r\n{\n "model": "m",\0"text":"\n"',
                                   b"POST /v1/models/m/load HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{\n}\r\n0\r\n\r\n"], ids=["GET", "length", "chunks"])
def test_a_head_after_another_request_is_looked_at_too(front, engine, first, at):
    """For any body before it, and any division of both into pieces."""
    torn = b"DELETE /v1/models/m HTTP/1.1\r\n" + HOST + b"\0X: a\r\n\r\n"
    with front.socket() as s:
        if at == "later":
            s.sendall(first)
            read_head(s)
            first = b""
        try:
            s.sendall(first + torn)
            read_all(s)
        except ConnectionError:
            pass
    assert "model.delete" not in [call.method for call in engine.calls]


def test_a_connection_continues_after_a_body_of_any_bytes(front):
    body = b'{\n\t"model": "m",\r "text": "a\n\0"}'
    with front.socket() as s:
        for _ in range(3):
            s.sendall(b"POST /v1/tokenize HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            status, headers, answer = read_head(s)
            while len(answer) < int(headers["content-length"]):
                answer += s.recv(65536)
            assert status == 400 and "line 2" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("data", [b"GET /v1/models/m HTTP/1.0\r\n\r\n", b"\r\nGET /v1/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n",
                                  b"GET /v1/files?limit=1 HTTP/1.1\r\nHost:localhost\r\nEmpty:\r\nCookie: a=b; c=d\r\nX: \t y\t\r\n\r\n",
                                  b"GET /v1/models/m HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 90) for i in range(120)) + b"Host: localhost\r\n\r\n"], ids=range(4))
def test_headers_of_every_sound_form_are_read_in_pieces_of_any_size(front, data):
    for piece in (len(data), 1000, 1 if len(data) < 1000 else 97):
        with front.socket() as s:
            for at in range(0, len(data), piece):
                s.sendall(data[at:at + piece])
            assert read_head(s)[0] == 200


@pytest.mark.parametrize("rest", [b"Content-Length: 99999999999999999999999\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"])
def test_an_absurd_size_is_413(front, rest):
    status, _, _, closed = talk(front, b"POST /v1/models/m/load HTTP/1.1\r\nHost: localhost\r\n" + rest)
    assert (status, closed) == (413, True)


@pytest.mark.parametrize("data", [b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %s\r\n\r\n{}" % n
                                  for n in [b"5x", b"+5", b"-5", b"", b"5 5", b"0x5", b"-0", b"9" * 30]] +
                         [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nno colon here\r\n\r\n", b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n",
                          b"GET /" + b"x" * 40000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40000 + b"\r\n\r\n",
                          b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"a=b; " * 6000 + b"\r\n\r\n",
                          b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"], ids=range(14))
def test_what_the_library_refuses_gets_one_answer_like_any_other(front, data):
    with front.socket() as s:
        s.sendall(data)
        answer = b""
        try:
            while piece := s.recv(65536):
                answer += piece
        except ConnectionError:
            pass
    head, body = answer.split(b"\r\n\r\n", 1)
    assert re.match(rb"HTTP/1\.1 (400|413|414|431|505) [A-Z]", head) and answer.count(b"HTTP/1.1 ") == 1 + body.count(b"HTTP/1.1 ")
    assert b"X-Request-Id: req_" in head and b"Content-Length: %d" % len(body) in head
    assert json.loads(body)["error"]["type"] in ("invalid_request_error", "server_error")


def test_a_request_without_host_is_refused(front):
    status, _, body, closed = talk(front, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (status, closed) == (400, True)
    assert json.loads(body)["error"]["code"] == "invalid_framing"


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500 + b"\r\n\r\n", b"NONSENSE\r\n\r\n", b"\r\n" * 1000 + b"\0\r\n\r\n",
                                  b"GET\r\n\r\n", b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                  b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nno colon here\r\n\r\n"], ids=range(7))
def test_what_is_not_http_does_not_hurt(start, data):
    """Among it the first message of TLS, which this server does not speak."""
    front = start("--request-timeout", "0.5")
    with front.socket() as s:
        s.sendall(data)
        answer = read_all(s)  # ends: nothing of this keeps a connection open
    assert answer == b"" or re.match(rb"HTTP/1\.[01] [45]\d\d ", answer), answer
    assert front.get("/healthz").status == 200


def test_a_client_that_leaves_is_noticed_even_when_its_end_came_with_its_last_byte(front):
    """The library waits for a change of readiness that has already happened."""
    before = front.descriptors()
    left = []
    for data in [b"", b"GET", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
                 b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{}"] * 10:
        s = front.socket()
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        left.append(s)
    for s in left:
        read_all(s)
        s.close()
    wait_for(lambda: front.descriptors() <= before + 1)
    assert front.metric("additive_http_requests_in_flight") == 1


def test_random_heads_never_hurt(front):
    rng = random.Random(7)
    good = b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    for _ in range(200):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.choice(b"\0\r\n :;\t\xff1a")
        with front.socket() as s:
            s.sendall(bytes(data))
            s.shutdown(socket.SHUT_WR)
            try:
                read_all(s)
            except ConnectionError:
                pass
    assert front.get("/readyz").status == 200


# --- sizes --------------------------------------------------------------------------------------------


def test_a_giant_header_is_431(front):
    before = front.rss()
    with front.socket() as s:
        try:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"a" * (10 << 20) + b"\r\n\r\n")
        except ConnectionError:
            pass
        try:
            answer = s.recv(65536)
        except ConnectionError:
            answer = b"HTTP/1.1 431 "
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert front.rss() - before < 4 << 20
    status, _, _, _ = talk(front, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(3000)) + b"\r\n")
    assert status == 431


def test_a_giant_target_is_refused(front):
    status, _, _, _ = talk(front, b"GET /v1/models/" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status in (400, 404, 414, 431)


def test_a_json_body_over_four_mebibytes_is_413(front, engine):
    just = {"model": "m", "text": "x" * ((1 << 20) - 100)}
    assert front.post("/v1/tokenize", just).status == 200
    answer = front.post("/v1/completions", {"model": "m", "prompt": "x" * (4 << 20)})
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_many_large_bodies_at_once_are_bounded_in_memory(start):
    front = start("--max-connections-per-ip", "0")
    before = front.rss()
    half = 4 << 20
    sockets = []
    for _ in range(100):
        s = front.socket()
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {half}\r\n\r\n".encode())
        s.sendall(b" " * (half - 1))
        sockets.append(s)
    refused = 0
    for s in sockets:
        s.sendall(b" ")
        status, _, _ = read_head(s)
        assert status in (400, 503)
        refused += status == 503
        s.close()
    assert refused >= 30
    assert front.rss() - before < 640 << 20
    assert front.post("/v1/tokenize", {"model": "m", "text": "x"}).status == 200


def test_compressed_bodies_are_refused(front):
    answer = front.post("/v1/tokenize", b"\x1f\x8b", headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    assert answer.status == 415


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/jsonx", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""])
def test_json_must_say_that_it_is(front, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = front.post("/v1/tokenize", b'{"model":"m","text":"x"}', headers=headers)
    assert answer.status == 415 and answer.error["message"] == "the Content-Type must be application/json"


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON", "application/json; charset=utf-8", "application/json;x=y"])
def test_json_may_say_more(front, content_type):
    assert front.post("/v1/tokenize", b'{"model":"m","text":"x"}', headers={"Content-Type": content_type}).status == 200


# --- JSON ---------------------------------------------------------------------------------------------

JSON = {"Content-Type": "application/json"}
BAD_JSON = [b"", b" ", b"{", b"nul", b"{}{}", b'{"model":"m","model":"m","text":"x"}', b'{"model":"m","text":"\xff"}', b'{"model":"m","text":"\xed\xa0\x80"}',
            b'{"model":"m","text":"\\ud800"}', b'{"model":"m","text":NaN}', b'{"a":1,}', b"'", b"\xef\xbb\xbf{}", b"\0", b'{"model":"m"\0,"text":"x"}', b"//c\n{}", b'{"\xff":1}']


@pytest.mark.parametrize("body", BAD_JSON)
def test_bad_json_is_a_clear_400(front, engine, body):
    answer = front.post("/v1/tokenize", body, headers=JSON)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (400, "invalid_json", "invalid_request_error")
    assert not engine.calls


@pytest.mark.parametrize("path,body", [
    ("/v1/tokenize", {"model": "m", "text": "a\0b"}), ("/v1/explain", {"model": "m", "input": "\0"}),
    ("/v1/completions", {"model": "m", "prompt": ["\0", "a\0"]}), ("/v1/sessions", {"model": "m", "prompt": "\0"}),
    ("/v1/sessions/s/append", {"text": "\0"}), ("/v1/sessions/s/generate", {"prompt": "\0"})])
def test_a_text_may_hold_a_nul(front, engine, path, body):
    front.post(path, body)
    assert body.items() <= engine.calls[-1].params.items()


@pytest.mark.parametrize("path,body,param", [
    ("/v1/tokenize", {"model": "a\0b", "text": "x"}, "model"), ("/v1/explain", {"session": "\0"}, "session"),
    ("/v1/explain", {"model": "m", "input": "x", "rounds": ["a\0"]}, "rounds[0]"),
    ("/v1/completions", {"model": "m", "prompt": "x", "stop": ["a", "\0"]}, "stop[1]"),
    ("/v1/fine_tuning/jobs", {"model": "m", "training_file": "f", "metadata": {"a": "b\0"}}, "metadata.a"),
    ("/v1/fine_tuning/jobs", {"model": "m", "training_file": "f", "suffix": "\0s"}, "suffix"),
    ("/v1/fine_tuning/jobs", {"model": "m", "training_file": "f", "additive": {"config": {"a": ["b\0"]}}}, "additive.config")])
def test_a_name_with_a_nul_is_refused_by_its_field(front, engine, path, body, param):
    error = front.post(path, body).error
    assert (error["code"], error["param"]) == ("invalid_value", param)
    assert error["message"] == f"'{param}' must not contain U+0000" and not engine.calls


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775809", "18446744073709551615", "9" * 300])
def test_an_integer_beyond_63_bits_is_refused_with_its_field_and_range(front, engine, number):
    error = front.post("/v1/completions", f'{{"model":"m","seed":{number},"prompt":"x"}}'.encode(), headers=JSON).error
    assert (error["code"], error["param"]) == ("out_of_range", "seed")
    assert "must be an integer from -9223372036854775808 to 9223372036854775807, not " in error["message"]
    many = front.post("/v1/detokenize", f'{{"model":"m","tokens":[{number},{number},1]}}'.encode(), headers=JSON).error
    assert many["code"] == "out_of_range" and "integers have at most 63 bits" in many["message"]
    assert not engine.calls


def test_an_integer_may_be_written_as_json_schema_allows(front, engine):
    front.post("/v1/completions", b'{"model":"m","prompt":[1.0,2e1],"max_tokens":5e0,"temperature":1.0,"logit_bias":{"3":-1.50}}', headers=JSON)
    found = engine.calls[-1].params
    assert found == {"model": "m", "prompt": [1, 20], "max_tokens": 5, "temperature": 1, "logit_bias": {"3": -1.5}}
    assert all(type(x) is int for x in [*found["prompt"], found["max_tokens"]])
    front.post("/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":5e0,"tools":[{"type":"function","function":'
               b'{"name":"f","parameters":{"minimum":1.0,"enum":[2.0]}}}]}', headers=JSON)
    found = engine.calls[-1].params
    parameters = found["tools"][0]["function"]["parameters"]  # the model reads these as they are written
    assert type(found["max_tokens"]) is int and type(parameters["minimum"]) is type(parameters["enum"][0]) is float
    error = front.post("/v1/completions", b'{"model":"m","prompt":"x","max_tokens":1.5}', headers=JSON).error
    assert error["message"] == "'max_tokens' must be an integer from 0 to 1000000, not 1.5"


@pytest.mark.parametrize("body,code", [(b'{"model":"m","text":1e999}', "out_of_range"), (b'{"a\\u0000":1}', "invalid_value")])
def test_what_cannot_be_held_is_said_in_words_of_the_api(front, body, code):
    error = front.post("/v1/tokenize", body, headers=JSON).error
    assert error["code"] == code and "line 1" in error["message"] and "JSON_" not in error["message"]


@pytest.mark.parametrize("body", [b"[]", b'["model"]'])
def test_a_body_must_be_an_object(front, body):
    answer = front.post("/v1/tokenize", body, headers=JSON)
    assert (answer.status, answer.error["code"]) == (400, "invalid_type")


@pytest.mark.parametrize("body", [b"[" * 10**6, b'{"a":' * 10**6, b'{"model":"m","prompt":' + b"[" * 10**6 + b"]" * 10**6 + b"}",
                                  b'{"model":"m","prompt":"x","logit_bias":' + b'{"a":' * 1000 + b"1" + b"}" * 1001], ids=["arrays", "objects", "a prompt", "a bias"])
def test_a_million_brackets_are_a_400(front, engine, body):
    assert front.post("/v1/completions", body[: 4 << 20], headers=JSON).status == 400
    assert not engine.calls


NUMBERS = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "top_a", "top_a_power", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "logprobs", "n", "best_of", "num_beams", "length_penalty"]
VALUES = ["-1", "-3", "0", "1000001", str(2**31), str(2**63), str(2**64), "1e308", "-1e308", "1e999", "NaN", "Infinity", '"1"', "[1]", "{}", "true", "1.5", "0.5", "1e0"]
# The values above that the API allows.
ALLOWED = {
    "max_tokens": ["0", "1e0"], "temperature": ["0", "1.5", "0.5", "1e0"], "top_p": ["0.5", "1e0"], "top_k": ["0", "1000001", "1e0"],
    "min_p": ["0", "0.5", "1e0"], "top_a": ["0", "0.5", "1e0"], "top_a_power": ["0", "1.5", "0.5", "1e0"], "repetition_penalty": ["1.5", "0.5", "1e0"], "presence_penalty": ["-1", "0", "1.5", "0.5", "1e0"],
    "frequency_penalty": ["-1", "0", "1.5", "0.5", "1e0"], "seed": ["-1", "-3", "0", "1000001", str(2**31), "1e0"], "logprobs": ["0", "1e0"], "n": ["1e0"], "best_of": ["0", "1e0"],
    "num_beams": ["1e0"], "length_penalty": ["-1", "-3", "0", "1.5", "0.5", "1e0"],
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/sessions/s/generate"])
@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_bounds(front, engine, name, path):
    @engine.on("completion.create")
    async def _(call):
        call.result({"choices": [], "usage": {}, "model": "m"})

    if "sessions" in path and name in ("n", "best_of", "num_beams", "length_penalty"):
        return
    start_of_body = '{"model":"m","prompt":"x",' if path == "/v1/completions" else '{"prompt":"x",'
    wrong = []
    for value in VALUES:
        answer = front.post(path, (start_of_body + f'"{name}":{value}}}').encode(), headers=JSON)
        allowed = value in ALLOWED[name] and not ("sessions" in path and (name, value) == ("max_tokens", "0"))
        if answer.status != (200 if allowed else 400):
            wrong.append((value, answer.status, answer.body))
        elif answer.status == 400:
            assert "(line 1, column " in answer.error["message"] or answer.error["param"] == name
    assert not wrong


@pytest.mark.parametrize("path,body,param,code", [
    ("/v1/completions", {"prompt": "x"}, "model", "missing_parameter"),
    ("/v1/completions", {"model": "m"}, "prompt", "missing_parameter"),
    ("/v1/completions", {"model": "m", "prompt": "x", "modle": 1}, "modle", "unknown_parameter"),
    ("/v1/completions", {"model": 7, "prompt": "x"}, "model", "invalid_type"),
    ("/v1/completions", {"model": "m", "prompt": "x", "echo": 1}, "echo", None),
    ("/v1/completions", {"model": "m", "prompt": "x", "suffix": "y"}, "suffix", None),
    ("/v1/completions", {"model": "m", "prompt": "x", "best_of": 3, "stream": True}, "best_of", None),
    ("/v1/completions", {"model": "m", "prompt": "x", "stream": "yes"}, "stream", "invalid_type"),
    ("/v1/completions", {"model": "m", "prompt": {}}, "prompt", None),
    ("/v1/completions", {"model": "m", "prompt": [1, -1]}, "prompt", None),
    ("/v1/explain", {"model": "m", "input": "x", "aggregate": "max"}, "aggregate", None),
    ("/v1/sessions", {"model": "m", "ttl_seconds": 0}, "ttl_seconds", "out_of_range"),
    ("/v1/sessions/s/append", {}, "text", "missing_parameter"),
    ("/v1/detokenize", {"model": "m", "tokens": ["a"]}, "tokens", None),
])
def test_a_wrong_field_is_named(front, engine, path, body, param, code):
    answer = front.post(path, body)
    assert answer.status == 400
    assert answer.error["param"].startswith(param)
    assert code is None or answer.error["code"] == code
    assert answer.error["type"] == "invalid_request_error"
    assert not engine.calls


def test_a_client_in_another_script_gets_its_words_back_whole(front):
    """A message cut to size is never cut within a character."""
    for n in range(1, 200, 7):
        answer = front.post("/v1/tokenize", {"model": "m", "text": "x", "Ж" * n: 1})
        assert (answer.status, answer.error["code"]) == (400, "unknown_parameter")


# --- slowness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 1000,
                                  b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000,
                                  b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 300], ids=["nothing", "a head", "a body", "chunks"])
def test_one_byte_at_a_time_does_not_hold_a_connection(start, data):
    """The library's own timeout is put off by every byte."""
    front = start("--request-timeout", "1")
    began = time.monotonic()
    with front.socket() as s:
        at = 0
        try:
            while time.monotonic() - began < 5:
                if at < len(data):
                    s.sendall(data[at : at + 1])
                    at += 1
                s.settimeout(0.1)
                try:
                    if s.recv(1000) == b"":
                        break
                except TimeoutError:
                    pass
        except ConnectionError:
            pass
    assert 0.5 < time.monotonic() - began < 2.5
    assert front.get("/healthz").status == 200


def test_a_kept_connection_has_a_deadline_for_its_next_request(start):
    front = start("--request-timeout", "0.6")
    with front.socket() as s:
        for _ in range(4):  # busy for longer than the deadline: fine
            time.sleep(0.3)
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_head(s)[0] == 200
        began = time.monotonic()
        assert s.recv(1000) in (b"", b'{"status":"ok","backend":null,"device":null}') and read_all(s) == b""
        assert time.monotonic() - began < 2


def test_a_steady_upload_may_take_longer_than_the_deadline(start, engine):
    @engine.on("session.import")
    async def _(call):
        parts = await call.read_all()
        call.result({"bytes": len(parts["state"])})

    front = start("--request-timeout", "0.5")
    with front.socket() as s:
        s.sendall(b"POST /v1/sessions?model=m HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: 80000\r\n\r\n")
        for _ in range(8):
            time.sleep(0.2)
            s.sendall(b"z" * 10000)
        assert read_head(s)[0] == 200


# --- numbers of connections ----------------------------------------------------------------------------------


def test_more_connections_than_allowed_wait_for_their_turn(start):
    front = start("--max-connections", "8", "--max-connections-per-ip", "0", "--request-timeout", "1", connected=False)
    before = front.descriptors()
    idle = [front.socket() for _ in range(30)]
    time.sleep(0.3)
    assert front.descriptors() - before <= 8 + 2
    assert front.get("/healthz", timeout=10).status == 200
    for s in idle:
        s.close()


def test_an_address_with_too_many_connections_is_refused_with_the_reason(start, engine):
    front = start("--max-connections-per-ip", "4", "--request-timeout", "20")
    wait_for(lambda: front.metric("additive_http_connections") == 1)
    idle = [front.socket() for _ in range(4)]
    wait_for(lambda: talk(front, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] == 429)
    body = b"{}" * 40000
    status, headers, answer, closed = talk(front, b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (status, headers["retry-after"], closed) == (429, "1", True)
    assert json.loads(answer)["error"]["code"] == "too_many_connections"
    assert not engine.called("tokenize")
    beyond = [front.socket() for _ in range(20)]  # only this many are answered: the rest is closed
    wait_for(lambda: _closed(beyond[-1]))
    for s in idle + beyond:
        s.close()
    wait_for(lambda: _healthy(front))


def _closed(s):
    s.settimeout(0.01)
    try:
        return s.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_connection_beyond_the_limit_that_asks_nothing_is_closed_soon(start):
    front = start("--max-connections-per-ip", "1", "--request-timeout", "0.4", connected=False)
    with front.socket(), front.socket() as s:
        assert s.recv(1) == b""


def _healthy(front):
    try:
        return front.get("/healthz").status == 200
    except ConnectionError:
        return False


def test_the_limit_of_open_files_bounds_the_connections(engine):
    def few_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))

    process = subprocess.Popen([BIN / "additive-httpd", "--listen", "127.0.0.1:0", "--engine", "unix:" + engine.path, "--max-connections-per-ip", "0"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=few_files)
    try:
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        sockets = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(200)]
        time.sleep(0.3)
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 96
        for s in sockets:
            s.close()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        process.terminate()
        _, err = process.communicate(timeout=15)
    assert process.returncode == 0
    assert "32 connections" in err


def test_no_descriptor_or_request_remains(front, engine):
    """Descriptors and requests in flight return to where they were, whatever clients did."""
    import threading

    @engine.on("completion.create")
    async def _(call):
        for i in range(3):
            await call.event({"index": 0, "text": "x", "tokens": [i]})
            await __import__("asyncio").sleep(0.005)
        call.result({"choices": [{"index": 0, "finish_reason": "stop"}], "usage": {}, "model": "m"})

    front.get("/metrics")
    before = front.descriptors()

    def client(seed):
        rng = random.Random(seed)
        for _ in range(25):
            stream = rng.random() < 0.7
            s = front.open_stream("/v1/completions", {"model": "m", "prompt": "x", "stream": stream})
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.02)
                if rng.random() < 0.3:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            else:
                data = b""
                while (b"[DONE]" if stream else b"usage") not in data:
                    piece = s.recv(65536)
                    assert piece
                    data += piece
            s.close()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wait_for(lambda: front.metric("additive_http_requests_in_flight") == 1)
    wait_for(lambda: front.descriptors() <= before + 1)
    assert all(c.finished.wait(2) for c in engine.calls)
