"""Routes, errors, headers, metrics and connections, which all requests share."""

import json
import re
import socket

import pytest

from http_support import Front, engine, front, read_all, read_head, start, wait_for

HEALTH = b'{"status":"ok","backend":null,"device":null}'  # the fake engine's greeting names neither
FORWARDED = [
    ("GET", "/v1/models", "model.list", {}),
    ("GET", "/v1/models/m-1", "model.get", {"id": "m-1"}),
    ("DELETE", "/v1/models/m-1", "model.delete", {"id": "m-1"}),
    ("GET", "/v1/models/m-1/card", "model.card", {"id": "m-1"}),
    ("POST", "/v1/models/m-1/load", "model.load", {"id": "m-1"}),
    ("POST", "/v1/models/m-1/unload", "model.unload", {"id": "m-1"}),
    ("GET", "/v1/adapters?limit=2&order=asc&after=adapter-1", "adapter.list", {"limit": 2, "order": "asc", "after": "adapter-1"}),
    ("GET", "/v1/adapters/adapter-1", "adapter.get", {"id": "adapter-1"}),
    ("DELETE", "/v1/adapters/adapter-1", "adapter.delete", {"id": "adapter-1"}),
    ("GET", "/v1/files?limit=2&order=asc&purpose=fine-tune&after=file-1", "file.list",
     {"limit": 2, "order": "asc", "purpose": "fine-tune", "after": "file-1"}),
    ("GET", "/v1/files/file-1", "file.get", {"id": "file-1"}),
    ("DELETE", "/v1/files/file-1", "file.delete", {"id": "file-1"}),
    ("GET", "/v1/files/file-1/statistics", "file.statistics", {"id": "file-1"}),
    ("GET", "/v1/files/file-1/statistics?model=m-1", "file.statistics", {"id": "file-1", "model": "m-1"}),
    ("GET", "/v1/fine_tuning/jobs?limit=3", "job.list", {"limit": 3}),
    ("GET", "/v1/fine_tuning/jobs?metadata%5Bowner%5D=me%20too&metadata[a]=&limit=1", "job.list",
     {"limit": 1, "metadata": {"owner": "me too", "a": ""}}),
    ("GET", "/v1/fine_tuning/jobs?metadata=null", "job.list", {"metadata": {}}),
    ("GET", f"/v1/fine_tuning/jobs?metadata[{'%C3%A4' * 64}]={'%C3%A4' * 512}", "job.list", {"metadata": {"ä" * 64: "ä" * 512}}),
    ("GET", "/v1/fine_tuning/jobs?" + "&".join(f"metadata[{i}]=a" for i in range(8)), "job.list", {"metadata": {str(i): "a" for i in range(8)}}),
    ("GET", "/v1/fine_tuning/jobs/j", "job.get", {"id": "j"}),
    ("POST", "/v1/fine_tuning/jobs/j/cancel", "job.cancel", {"id": "j"}),
    ("POST", "/v1/fine_tuning/jobs/j/pause", "job.pause", {"id": "j"}),
    ("POST", "/v1/fine_tuning/jobs/j/resume", "job.resume", {"id": "j"}),
    ("GET", "/v1/fine_tuning/jobs/j/events?after=e&limit=5", "job.events", {"id": "j", "after": "e", "limit": 5}),
    ("GET", "/v1/fine_tuning/jobs/j/checkpoints", "job.checkpoints", {"id": "j"}),
    ("GET", "/v1/sessions", "session.list", {}),
    ("GET", "/v1/sessions?limit=2&order=asc&after=sess-1", "session.list", {"limit": 2, "order": "asc", "after": "sess-1"}),
    ("GET", "/v1/sessions/s", "session.get", {"id": "s"}),
    ("DELETE", "/v1/sessions/s", "session.delete", {"id": "s"}),
    ("POST", "/v1/sessions/s/fork", "session.fork", {"id": "s"}),
    ("GET", "/v1/sessions/s/snapshots?limit=2&order=asc&after=snap-1", "snapshot.list", {"id": "s", "limit": 2, "order": "asc", "after": "snap-1"}),
    ("GET", "/v1/sessions/s/tree", "session.tree", {"id": "s"}),
    ("POST", "/v1/sessions/s/snapshots", "snapshot.create", {"id": "s"}),
    ("DELETE", "/v1/sessions/s/snapshots/snap-1", "snapshot.delete", {"id": "s", "snapshot": "snap-1"}),
    ("GET", "/v1/sessions/s/alpha?position=-1&layers=0,2&heads=all&rounds=query,key&aggregate=mean", "session.alpha",
     {"id": "s", "position": -1, "layers": [0, 2], "heads": "all", "rounds": ["query", "key"], "aggregate": "mean", "format": "json"}),
]


@pytest.mark.parametrize("method,path,engine_method,params", FORWARDED)
def test_an_endpoint_is_one_call_of_the_engine(front, engine, method, path, engine_method, params):
    answer = front.request(method, path)
    assert answer.status == 200
    assert answer.json == {"echo": params, "method": engine_method}
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


WITH_BODY = [
    ("/v1/tokenize", "tokenize", {"model": "m", "text": "häl\u0001lo"}),
    ("/v1/detokenize", "detokenize", {"model": "m", "tokens": [1, 2]}),
    ("/v1/sessions", "session.create", {"model": "m"}),
    ("/v1/tokenize", "tokenize", {"model": "m", "text": "long\0" * 60000}),
    ("/v1/detokenize", "detokenize", {"tokens": list(range(50000)), "model": "m"}),
    ("/v1/embeddings", "embed", {"input": ["text"] * 30 + ["\u00e4 \U0001f600" * 10000], "model": "m", "encoding_format": "float"}),
    ("/v1/fine_tuning/jobs", "job.create", {"model": "m", "training_file": "file-1", "user_is": None}),
]


@pytest.mark.parametrize("path,engine_method,body", WITH_BODY)
def test_a_body_reaches_the_engine_unchanged(front, path, engine_method, body):
    body = {k: v for k, v in body.items() if k != "user_is"}
    answer = front.post(path, body)
    assert answer.json == {"echo": body, "method": engine_method}


NULLS = ("tools", "tool_choice", "functions", "audio", "reasoning", "compare", "x_unknown")


@pytest.mark.parametrize("path,body", [
    ("/v1/tokenize", {"model": "m", "text": "x"}),
    ("/v1/tokenize", {"model": "m", "text": "x" * 100000}),
    ("/v1/embeddings", {"model": "m", "input": "x"}),
    ("/v1/classify", {"model": "m", "input": {"text": "x"}}),
    ("/v1/explain", {"model": "m", "input": "x", "target": {"kind": "logit"}}),
    ("/v1/sessions", {"model": "m"}),
    ("/v1/fine_tuning/jobs", {"model": "m", "training_file": "f", "hyperparameters": {"n_epochs": 1}, "additive": {"size": {"layers": 1}}}),
])
def test_a_null_counts_as_absent_and_reaches_no_engine(front, engine, path, body):
    def with_nulls(value):
        return {**{k: with_nulls(v) for k, v in value.items()}, **dict.fromkeys(NULLS)} if isinstance(value, dict) else value

    assert front.post(path, with_nulls(body)).status == 200
    params = engine.calls[-1].params
    assert {k: v for k, v in params.items() if k != "format"} == body


@pytest.mark.parametrize("times", [1, 50000])
def test_a_session_appends_text_to_the_one_in_the_path(front, times):
    text = "more" * times
    answer = front.post("/v1/sessions/s-1/append", {"text": text})
    assert answer.json == {"echo": {"id": "s-1", "text": text}, "method": "session.append"}


@pytest.mark.parametrize("path,method,body", [("snapshots", "snapshot.create", {"name": "n"}), ("fork", "session.fork", {"snapshot": "snap-1"}),
                                              ("rollback", "session.rollback", {"snapshot": "snap-1"})])
def test_a_snapshot_is_named_in_the_body(front, path, method, body):
    assert front.post(f"/v1/sessions/s/{path}", body).json == {"echo": {"id": "s", **body}, "method": method}


def test_a_rollback_needs_a_snapshot(front, engine):
    for body in ({}, {"snapshot": 7}, {"snapshot": ""}):
        answer = front.post("/v1/sessions/s/rollback", body)
        assert (answer.status, answer.error["param"]) == (400, "snapshot")
    assert not engine.called("session.rollback")


@pytest.mark.parametrize("body", [None, b"", {}, {"dtype": None}, {"dtype": "int8"}])
@pytest.mark.parametrize("content_type", [None, "application/json", "application/x-www-form-urlencoded"])
def test_a_model_is_loaded_with_or_without_a_body(front, body, content_type):
    typed_wrong = isinstance(body, dict) and content_type == "application/x-www-form-urlencoded"
    answer = front.request("POST", "/v1/models/m/load", body, {"Content-Type": content_type} if content_type else None)
    if typed_wrong:
        assert answer.status == 415 and answer.error["message"].endswith(" application/json")  # never taken for a load without a choice
    else:
        chosen = {"dtype": "int8"} if body == {"dtype": "int8"} else {}
        assert answer.json == {"echo": {"id": "m", **chosen}, "method": "model.load"}


@pytest.mark.parametrize("body,param", [({"dtype": "fp8"}, "dtype"), ({"dtype": 8}, "dtype"), ({"dtype": ""}, "dtype"),
                                        ({"type": "int8"}, "type"), ([], None), (b"{", None)])
def test_a_wrong_load_is_refused_by_name(front, engine, body, param):
    answer = front.request("POST", "/v1/models/m/load", body, {"Content-Type": "application/json"})
    assert answer.status == 400 and answer.error["param"] == param
    assert not engine.called("model.load")


@pytest.mark.parametrize("method,path", [("POST", f"/v1/{p}") for p in (
    "models/m/unload", "fine_tuning/jobs/j/cancel", "fine_tuning/jobs/j/pause", "fine_tuning/jobs/j/resume")]
    + [("DELETE", "/v1/files/f"), ("GET", "/v1/models")])
def test_a_request_without_fields_refuses_any(front, engine, method, path):
    assert front.request(method, path, {}).status == 200
    before = len(engine.calls)
    error = front.request(method, path, {"durable": True}).error
    assert (error["code"], error["param"]) == ("unknown_parameter", "durable")
    assert front.request(method, path, b"durable=true").error["code"] == "invalid_json"
    assert front.request(method, path, b"[]").error["code"] == "invalid_type"
    assert len(engine.calls) == before


def test_the_engines_error_keeps_its_status_code_and_advice(front, engine):
    @engine.on("model.get")
    async def _(call):
        if call.params["id"] == "busy":
            call.error(429, "queue_full", "too many", retry_after=7)
        else:
            call.error(409, "in_use", 'a "model" in use', param="id")

    answer = front.get("/v1/models/busy")
    assert (answer.status, answer.headers["Retry-After"]) == (429, "7")
    assert answer.error == {"message": "too many", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    answer = front.get("/v1/models/m")
    assert answer.status == 409
    assert answer.error == {"message": 'a "model" in use', "type": "invalid_request_error", "param": "id", "code": "in_use"}


def test_an_absurd_engine_error_becomes_a_plain_500(front, engine):
    @engine.on("model.get")
    async def _(call):
        call.error(7, 3, ["no"], retry_after="soon")

    answer = front.get("/v1/models/m")
    assert answer.status == 500
    assert answer.error["type"] == "server_error"


def test_unknown_paths_are_404_and_known_ones_say_what_they_answer(front):
    for path in ["/v1", "/v1/", "/v2/models", "/v1/models/", "/v1//models", "/v1/chat"]:
        answer = front.get(path)
        assert (answer.status, answer.error["code"]) == (404, "not_found"), path
    answer = front.post("/v1/models/m", {})
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, DELETE")
    assert front.request("PATCH", "/v1/files").headers["Allow"] == "GET, HEAD, POST"
    assert front.request("FROBNICATE", "/healthz").status == 405


@pytest.mark.parametrize("path,nearest", [
    ("/v1/chat/completion", "/v1/chat/completions"), ("/v1/completion", "/v1/completions"), ("/v1/fine-tuning/jobs", "/v1/fine_tuning/jobs"),
    ("/v1/fine_tuning/jobs/j/event", "/v1/fine_tuning/jobs/{id}/events"), ("/v1/model/m", "/v1/models/{id}"),
    ("/v1/session/s/generate", "/v1/sessions/{id}/generate"), ("/v1/files/f/contents", "/v1/files/{id}/content"),
    ("/v1/Models", "/v1/models"), ("/v1/jobs", "/v1/fine_tuning/jobs"), (f"/v1/{'a' * 8000}/m", None), ("/v1/a/b/c/d/e/f/g", None)],
    ids=lambda value: value and value[:40])
def test_an_unknown_path_is_answered_with_the_nearest_one(front, path, nearest):
    answer = front.get(path)
    assert answer.status == 404
    named = answer.error["message"].removeprefix("no such path; the nearest one is ")
    assert named == nearest if nearest else named.startswith("/v1/")


def test_an_answer_says_how_long_it_took(front, engine):
    @engine.on("model.get")
    async def _(call):
        import asyncio

        await asyncio.sleep(0.05)
        call.result({"id": "m"})

    assert int(front.get("/v1/models/m").headers["openai-processing-ms"]) >= 50
    assert int(front.get("/v1/nothing").headers["openai-processing-ms"]) >= 0


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", "%2e%2e%2fetc", "..%2f..%2fetc%2fpasswd", "a%00b", "a%2fb", "%", "%zz", "%ff",
                                  "a%20b", "a" * 64, "caf%C3%A9", "a%0d%0aSet-Cookie:%20x", "~root", "a\\b"])
@pytest.mark.parametrize("pattern", ["/v1/models/{}", "/v1/models/{}/files/config.json", "/v1/models/m/files/{}", "/v1/files/{}",
                                     "/v1/files/{}/content", "/v1/fine_tuning/jobs/{}", "/v1/sessions/{}/state"])
def test_a_name_that_cannot_be_one_never_reaches_the_engine(module_front, pattern, name):
    front, engine = module_front
    before = len(engine.calls)
    assert front.get(pattern.format(name)).status in (400, 404)
    assert len(engine.calls) == before


@pytest.fixture(scope="module")
def module_front(tmp_path_factory):
    from fake_engine import FakeEngine

    with FakeEngine(tmp_path_factory.mktemp("engine") / "sock") as fake:
        front = Front(fake)
        yield front, fake
        front.close()


def test_a_head_request_gets_the_headers_alone(front):
    answer = front.request("HEAD", "/v1/models")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0


def test_a_query_parameter_is_refused_with_what_it_may_be(front):
    for query, wrong in [("limit=0", 'must be an integer from 1 to 10000, not "0"'), ("limit=1e3", 'must be an integer from 1 to 10000, not "1e3"'),
                         ("limit=1&limit=2", "is given twice"), ("order=dsc", 'must be "asc" or "desc", not "dsc" (did you mean "asc"?)'), ("order=up", 'must be "asc" or "desc", not "up"'),
                         ("order=" + "%C3%A9" * 40, 'must be "asc" or "desc", not "' + "é" * 32 + '"'), ("after=../x", "is not valid")]:
        assert front.get("/v1/files?" + query).error["message"] == f"query parameter '{query.split('=')[0]}' {wrong}"
    assert front.get("/v1/files?ordr=asc").error["message"] == "unknown query parameter 'ordr' (did you mean \"order\"?)"


def test_query_parameters_are_checked(front, engine):
    for path, param in [("/v1/files?limt=2", "limt"), ("/v1/files?limit=0", "limit"), ("/v1/files?limit=-1", "limit"),
                        ("/v1/files?limit=1e3", "limit"), ("/v1/files?limit=99999999999999999999", "limit"),
                        ("/v1/files?limit=", "limit"), ("/v1/files?limit=1&limit=2", "limit"), ("/v1/files?order=up", "order"),
                        ("/v1/files?after=../x", "after"),
                        ("/v1/fine_tuning/jobs?metadata=x", "metadata"), ("/v1/fine_tuning/jobs?metadata[]=x", "metadata[]"),
                        ("/v1/fine_tuning/jobs?metadata[a=x", "metadata[a"),
                        ("/v1/fine_tuning/jobs?metadata[a][b]=x", "metadata[a][b]"), ("/v1/fine_tuning/jobs?metadata[a][]=x", "metadata[a][]"),
                        ("/v1/files?metadata[a]=x", "metadata[a]"),
                        (f"/v1/fine_tuning/jobs?metadata[a]={'x' * 513}", "metadata[a]"), (f"/v1/fine_tuning/jobs?metadata[a]={'%C3%A4' * 513}", "metadata[a]"),
                        (f"/v1/fine_tuning/jobs?metadata[{'x' * 65}]=a", "metadata[x"),
                        ("/v1/fine_tuning/jobs?" + "&".join(f"metadata[{i}]=a" for i in range(9)), "metadata"), ("/v1/models?a=b", "a"),
                        ("/v1/fine_tuning/jobs/j/events?stream=maybe", "stream"),
                        ("/v1/sessions/s/alpha?position=x", "position"), ("/v1/sessions/s/alpha?layers=0,a", "layers"),
                        ("/v1/sessions/s/alpha?layers=", "layers"), ("/v1/sessions/s/alpha?aggregate=max", "aggregate")]:
        answer = front.get(path)
        assert answer.status == 400, path
        assert answer.error["param"].startswith(param), path
    assert front.get("/v1/files?" + "&".join(f"a{i}=1" for i in range(40))).status == 400
    assert not engine.calls


def test_request_ids_are_echoed_when_sane_and_made_otherwise(front):
    for sane in ["abc-1:2.3_4", "x" * 64]:
        assert front.get("/healthz", headers={"X-Request-Id": sane}).headers["X-Request-Id"] == sane
    made = set()
    for strange in [None, "a b", "x" * 65, "<script>", ""]:
        headers = {} if strange is None else {"X-Request-Id": strange}
        for path in ["/healthz", "/nowhere"]:
            made.add(front.get(path, headers=headers).headers["X-Request-Id"])
    assert len(made) == 10
    assert all(re.fullmatch(r"req_[0-9a-f]{24}", m) for m in made)


def test_health_readiness_version_and_the_contract(front, engine):
    assert front.get("/healthz").json == json.loads(HEALTH)
    assert front.get("/readyz").json == {"status": "ready", "backend": None, "device": None}
    version = front.get("/version").json
    assert version["engine"] == {"protocol": 1, "software": "fake 0"}
    assert version["protocol"] == 1
    assert engine.peer_hello == {"protocol": 1, "software": "additive-httpd " + version["version"]}
    contract = front.get("/openapi.json")
    assert contract.headers["Content-Type"] == "application/json"
    assert isinstance(contract.json, dict)


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_are_prometheus_text_and_hold_the_engines(front, engine):
    @engine.on("engine.metrics")
    async def _(call):
        call.result({"metrics": [
            {"name": "additive_sessions", "type": "gauge", "help": "Live\nsessions.",
             "samples": [{"labels": {"model": 'a"b\\c\nd'}, "value": 3}, {"labels": {}, "value": 0.5}]},
            {"name": "additive_tick_seconds", "type": "histogram", "help": "h", "samples": [], "buckets": [[0.1, 1], [1, 2]],
             "sum": 1.5, "count": 3},
            {"name": "additive_http_requests_total", "type": "counter", "help": "ours", "samples": [{"labels": {}, "value": 9}]},
            {"name": "bad name", "type": "gauge", "help": "", "samples": [{"labels": {}, "value": 9}]},
            {"name": "additive_sessions", "type": "gauge", "help": "twice", "samples": []},
            7]})

    front.get("/v1/models")
    front.get("/nowhere")
    answer = front.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .*|[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\}|\{.*\})? [-+0-9.eEInfNa]+', line), line
    for name in set(re.findall(r"^# TYPE (\S+)", text, re.M)):
        assert len(re.findall(rf"^# TYPE {name} ", text, re.M)) == 1, name
    assert 'additive_http_requests_total{method="GET",route="/v1/models",status="200"} 1\n' in text
    assert 'additive_http_requests_total{method="",route="unmatched",status="404"} 1\n' in text
    assert 'additive_http_request_duration_seconds_count{method="GET",route="/v1/models"} 1\n' in text
    assert "additive_http_requests_in_flight 1\n" in text
    assert "additive_engine_up 1\n" in text
    assert 'additive_sessions{model="a\\"b\\\\c\\nd"} 3\n' in text
    assert "additive_sessions{} 0.5\n" in text
    assert "# HELP additive_sessions Live\\nsessions.\n" in text
    assert 'additive_tick_seconds_bucket{le="+Inf"} 3\n' in text
    assert "bad name" not in text


def test_metrics_do_not_wait_for_a_hung_engine(front, engine):
    @engine.on("engine.metrics")
    async def _(call):
        await call.read()

    assert "additive_engine_up 1\n" in front.get("/metrics").body.decode()
    wait_for(lambda: engine.calls[-1].cancelled.is_set())


def test_the_access_log_names_the_route_not_the_content(start):
    front = start("--access-log")
    front.post("/v1/tokenize", {"model": "m", "text": "a secret"}, headers={"X-Request-Id": "seen-1"})
    wait_for(lambda: any("seen-1" in line for line in front.log))
    line = next(line for line in front.log if "seen-1" in line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ info additive-httpd: 127\.0\.0\.1 seen-1 POST /v1/tokenize 200 \d+\.\d{3}\n", line)
    assert not any("secret" in line for line in front.log)


def test_the_engine_gets_the_request_id_that_the_answer_has(front, engine):
    made = front.get("/v1/models").headers["X-Request-Id"]
    assert engine.calls[-1].context == {"request_id": made}
    assert made not in json.dumps(engine.calls[-1].params)


def test_the_log_may_be_json(start, engine):
    front = start("--access-log", "--log-format", "json")
    front.post("/v1/tokenize", {"model": "m", "text": "a secret"}, headers={"X-Request-Id": "seen-1"})
    wait_for(lambda: any("seen-1" in line for line in front.log))
    lines = [json.loads(line) for line in front.log]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"])
        assert line["level"] in ("info", "warn", "error") and line["program"] == "additive-httpd" and line["message"]
    line = next(line for line in lines if line.get("request_id") == "seen-1")
    assert (line["client"], line["method"], line["route"], line["status"]) == ("127.0.0.1", "POST", "/v1/tokenize", 200)
    assert 0 <= line["seconds"] < 10
    assert "request_id" not in next(line for line in lines if line["message"] == "engine: connected")
    assert not any("secret" in line for line in front.log)


def test_every_line_of_the_log_has_a_time_and_a_level(start):
    front = start("--access-log")
    front.get("/v1/models")
    wait_for(lambda: any("/v1/models" in line for line in front.log))
    for line in front.log:
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (info|warn|error) additive-httpd: \S", line), line


# --- connections ------------------------------------------------------------------------------------


def test_a_connection_serves_many_requests_one_after_another(front):
    with front.socket() as s:
        for i in range(5):
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status, headers, body = read_head(s)
            while len(body) < int(headers["content-length"]):
                body += s.recv(4096)
            assert (status, body) == (200, HEALTH)


def test_pipelined_requests_are_answered_in_order(front, engine):
    @engine.on("model.get")
    async def _(call):
        call.result({"id": call.params["id"]})

    with front.socket() as s:
        body = b'{"model":"m","text":"x"}'
        s.sendall(b"".join(b"GET /v1/models/m%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % i for i in range(10)) +
                  b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body) +
                  b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = read_all(s)
    found = re.findall(rb'\r\n\r\n(\{.*?\})(?=HTTP|$)', answers)
    assert [json.loads(f).get("id") for f in found[:10]] == [f"m{i}" for i in range(10)]
    assert json.loads(found[10])["method"] == "tokenize"
    assert found[11] == HEALTH


def test_an_http_1_0_client_is_served_and_closed(front):
    with front.socket() as s:
        s.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert read_all(s).endswith(HEALTH)


def test_an_absolute_target_is_understood(front):
    with front.socket() as s:
        s.sendall(b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(s).endswith(HEALTH)
