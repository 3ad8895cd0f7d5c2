"""Spans of requests, as an OpenTelemetry collector gets them."""

import http.server
import json
import subprocess
import threading
import time

import pytest

from http_support import BIN, Front, engine, start, wait_for
from test_http_generation import REQUEST

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Keeps the messages that it is sent. status: its answer; hold: an event that every answer waits for."""

    def __init__(self, port=0):
        self.messages, self.status, self.hold, self.paths = [], 200, None, []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/json"
                if collector.hold:
                    collector.hold.wait(20)
                collector.paths.append(self.path)
                if collector.status == 200:
                    collector.messages.append(json.loads(body))
                self.send_response(collector.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def spans(self):
        return [span for m in self.messages for r in m["resourceSpans"] for s in r["scopeSpans"] for span in s["spans"]]

    def named(self, name):
        return [s for s in self.spans() if s["name"] == name]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


RESULT = {"choices": [{"index": 0, "finish_reason": "length"}], "model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def generates(engine, times):
    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "secret answer", "tokens": [1]})
        call.result(RESULT, times)


def inner(collector, request, name):
    """The span of this name within a request's span, or None."""
    return next((s for s in collector.named(name) if s["traceId"] == request["traceId"]), None)


def bounds(span):
    return int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_generation_is_a_span_with_queue_prefill_and_decode(start, engine, collector, stream):
    generates(engine, {"queued_ms": 0.0625, "started_ms": 0.125, "first_token_ms": 0.25, "ended_ms": 0.375, "answered_ms": 0.5})
    front = start("--otlp-endpoint", collector.url)
    before = time.time_ns()
    answer = front.post("/v1/completions", {**REQUEST, "prompt": "secret prompt", "stream": stream},
                        headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "own-id"})
    assert answer.status == 200
    context = engine.calls[-1].context
    wait_for(lambda: collector.named("POST /v1/completions"), what="the span")
    after = time.time_ns()
    assert collector.paths[0] == "/v1/traces"
    request = collector.named("POST /v1/completions")[0]
    assert (request["traceId"], request["parentSpanId"], request["kind"]) == (TRACE, PARENT, 2)
    assert context == {"request_id": "own-id", "times": True, "traceparent": f"00-{TRACE}-{request['spanId']}-01"}
    assert attributes(request) == {"http.request.method": "POST", "http.route": "/v1/completions", "http.response.status_code": "200",
                                   "additive.request_id": "own-id"}
    assert request["status"] == {"code": 0}
    began, ended = bounds(request)
    assert before <= began < ended <= after
    whole = inner(collector, request, "engine")
    called = bounds(whole)[0]
    assert began <= called and whole["parentSpanId"] == request["spanId"]
    ids = {request["spanId"], whole["spanId"], PARENT}
    for name, first, last in [("engine", 0, 500_000), ("queue", 62_500, 125_000), ("prefill", 125_000, 250_000), ("decode", 250_000, 375_000)]:
        span = inner(collector, request, name)
        assert name == "engine" or span["parentSpanId"] == whole["spanId"]
        ids.add(span["spanId"])
        assert bounds(span) == (min(called + first, ended), min(called + last, ended))
    assert len(ids) == 6
    resource = collector.messages[0]["resourceSpans"][0]["resource"]["attributes"]
    assert resource[0] == {"key": "service.name", "value": {"stringValue": "additive"}}
    assert "secret" not in json.dumps(collector.messages)


@pytest.mark.parametrize("times, names", [
    ({"answered_ms": 0.5}, ["engine"]),  # not a generation
    ({"queued_ms": 0.0625, "ended_ms": 0.25, "answered_ms": 0.5}, ["engine", "queue"]),  # ended before its turn
    ({"queued_ms": 0.0625, "started_ms": 0.125, "ended_ms": 0.25, "answered_ms": 0.5}, ["engine", "queue", "prefill"]),  # nothing was generated
    ({"answered_ms": "soon"}, []), ({"queued_ms": 1}, []), (None, [])])
def test_a_request_has_the_spans_that_it_came_to(start, engine, collector, times, names):
    generates(engine, times)
    front = start("--otlp-endpoint", collector.url)
    assert front.post("/v1/completions", REQUEST).status == 200
    wait_for(lambda: collector.named("POST /v1/completions"), what="the span")
    request = collector.named("POST /v1/completions")[0]
    assert [s["name"] for s in collector.spans() if s["traceId"] == request["traceId"]][1:] == names


def test_without_a_collector_or_unsampled_the_engine_is_not_asked_for_times(start, engine, collector):
    start().get("/v1/models", headers={"X-Request-Id": "a"})
    assert engine.calls[-1].context == {"request_id": "a"}
    start("--otlp-endpoint", collector.url).get("/v1/models", headers={"X-Request-Id": "b", "traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert engine.calls[-1].context == {"request_id": "b"}


@pytest.mark.parametrize("header", [None, "", "00", f"00-{TRACE}-{PARENT}", f"00-{TRACE.upper()}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01",
                                    f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01-more", f"0-{TRACE}-{PARENT}-001",
                                    f"00-{TRACE}-{PARENT}-0g", f"00-{TRACE}x{PARENT}-01"])
def test_without_a_valid_parent_a_trace_begins(start, collector, header):
    front = start("--otlp-endpoint", collector.url)
    assert front.get("/version", headers={} if header is None else {"traceparent": header}).status == 200
    wait_for(lambda: collector.named("GET /version"), what="the span")
    span = collector.named("GET /version")[0]
    assert "parentSpanId" not in span and span["traceId"] not in (TRACE, "0" * 32) and len(span["traceId"]) == 32


def test_the_caller_decides_whether_its_trace_is_sent(start, collector):
    front = start("--otlp-endpoint", collector.url + "/custom/path")
    for version, flags in [("00", "00"), ("00", "02"), ("01", "00")]:
        front.get("/version", headers={"traceparent": f"{version}-{TRACE}-{PARENT}-{flags}"})
    front.get("/healthz", headers={"traceparent": f"cc-{TRACE}-{PARENT}-03-what-follows"})
    wait_for(lambda: collector.named("GET /healthz"), what="the span")
    assert collector.named("GET /healthz")[0]["parentSpanId"] == PARENT
    assert not collector.named("GET /version")
    assert set(collector.paths) == {"/custom/path"}


def test_errors_are_marked_and_unknown_paths_have_no_route(start, collector, engine):
    @engine.on("model.get")
    async def _(call):
        call.error(500, "storage_error", "disk")

    front = start("--otlp-endpoint", collector.url)
    assert front.get("/v1/models/m").status == 500
    assert front.get("/secret/path").status == 404
    wait_for(lambda: collector.named("GET /v1/models/{id}") and collector.named("HTTP"), what="the spans")
    assert collector.named("GET /v1/models/{id}")[0]["status"] == {"code": 2}
    assert attributes(collector.named("HTTP")[0])["http.response.status_code"] == "404"
    assert "secret" not in json.dumps(collector.messages)


def test_a_collector_that_fails_is_named_once_and_tried_again(start, collector):
    front = start("--otlp-endpoint", collector.url)
    collector.status = 503
    front.get("/version")
    wait_for(lambda: front.metric("additive_traces_dropped_total") > 0, what="dropped spans")
    wait_for(lambda: len(collector.paths) >= 2, what="a second try")
    collector.status = 200
    wait_for(lambda: front.get("/readyz").status == 200 and collector.named("GET /readyz"), what="the spans")
    wait_for(lambda: any("takes spans again" in line for line in front.log), what="the log")
    assert len([line for line in front.log if "spans of requests are dropped" in line]) == 1


def test_without_a_collector_requests_are_answered(start):
    front = start("--otlp-endpoint", "http://127.0.0.1:1")
    for _ in range(5):
        assert front.get("/version").status == 200
    wait_for(lambda: front.metric("additive_traces_dropped_total") > 4, what="dropped spans")
    wait_for(lambda: any("traces: 127.0.0.1:1: connection refused; spans of requests are dropped" in line for line in front.log), what="a line of the log")


def test_a_collector_that_does_not_answer_costs_bounded_memory_and_no_request(start, collector):
    collector.hold = threading.Event()
    front = start("--otlp-endpoint", collector.url)
    with front.socket() as s:
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3000)
        data = b""
        while data.count(b"HTTP/1.1 200") < 3000:
            data += s.recv(1 << 16)
    assert front.metric("additive_traces_dropped_total") >= 3000 - 1024 - 256
    collector.hold.set()
    wait_for(lambda: len(collector.named("GET /healthz")) >= 1000, 10, what="what was kept")


JOB = {"name": "job", "traceId": "a" * 32, "spanId": "b" * 16, "attributes": []}


@pytest.mark.parametrize("status", [503, 429])
def test_spans_of_jobs_are_sent_until_the_collector_takes_them(start, engine, collector, status):
    collector.status = status
    engine.traces = [{"spans": [JOB, {**JOB, "name": "part"}]}, {"spans": [{**JOB, "name": "next"}]}]
    front = start("--otlp-endpoint", collector.url)
    wait_for(lambda: len(collector.paths) >= 3, 10, what="a third try")
    assert len(engine.traces) == 2
    collector.status = 200
    wait_for(lambda: collector.named("next"), 10, what="the spans")
    assert collector.named("job") == [JOB] and len(collector.named("part")) == 1
    wait_for(lambda: not engine.traces, what="the confirmation")
    assert front.get("/version").status == 200


def test_spans_of_a_job_that_the_collector_refuses_are_dropped_and_counted(start, engine, collector):
    collector.status = 400
    engine.traces = [{"spans": [JOB]}]
    front = start("--otlp-endpoint", collector.url)
    wait_for(lambda: not engine.traces, 10, what="the confirmation")
    assert front.metric("additive_traces_dropped_total") >= 1
    collector.status = 200
    engine.traces.append({"spans": [{**JOB, "name": "next"}]})
    wait_for(lambda: collector.named("next"), 10, what="the next spans")
    assert not collector.named("job")


@pytest.mark.parametrize("event", [{}, {"spans": []}, {"spans": 7}])
def test_an_event_without_spans_is_not_sent(start, engine, collector, event):
    engine.traces = [event]
    front = start("--otlp-endpoint", collector.url)
    assert front.get("/version").status == 200
    wait_for(lambda: collector.named("GET /version"), what="the span")


def test_spans_of_jobs_survive_an_engine_that_restarts(start, engine, collector):
    front = start("--otlp-endpoint", collector.url)
    engine.stop()
    engine.start()
    wait_for(lambda: front.get("/readyz").status == 200, 10, what="the engine")
    engine.traces = [{"spans": [JOB]}]
    wait_for(lambda: collector.named("job"), 10, what="the spans")


@pytest.mark.parametrize("hold", [False, True])
def test_sigterm_sends_what_is_left_and_waits_for_no_collector(engine, collector, hold):
    front = Front(engine, "--otlp-endpoint", collector.url)
    wait_for(lambda: collector.named("GET /readyz"), what="a first message")
    if hold:
        collector.hold = threading.Event()
    assert front.get("/version").status == 200
    front.close()
    assert hold or collector.named("GET /version")


@pytest.mark.parametrize("url", ["nonsense", "https://127.0.0.1:4318", "http://", "http:///v1", "http://127.0.0.1", "http://127.0.0.1:x", "http://a b:1",
                                 "http://127.0.0.1:4318/a?b", "http://127.0.0.1:4318/a\r\nX: y", "http://" + "a" * 200 + ":1",
                                 "http://127.0.0.1:1/" + "a" * 300, "http://no-such-name.invalid:4318"])
def test_a_malformed_endpoint_is_wrong_usage(url):
    done = subprocess.run([BIN / "additive-httpd", "--listen", "127.0.0.1:0", "--otlp-endpoint", url], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "--otlp-endpoint" in done.stderr
