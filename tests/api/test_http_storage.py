"""Errors of the server's disk as a client sees them, and retries of requests whose result is unknown."""

import pytest

from http_support import engine, front, read_head, start, wait_for

JSON = {"Content-Type": "application/json"}
OCTETS = {"Content-Type": "application/octet-stream"}
FORM = {"Content-Type": "multipart/form-data; boundary=boundary"}
GENERATED = {"choices": [{"index": 0, "finish_reason": "stop"}], "usage": {}, "model": "m"}


def form(**parts):
    return "".join(f'--boundary\r\nContent-Disposition: form-data; name="{k}"; filename="f"\r\n\r\n{v}\r\n' for k, v in parts.items()).encode() + b"--boundary--\r\n"


# --- the disk -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status,code", [(500, "storage_error"), (507, "storage_full")])
def test_trouble_with_the_disk_is_the_servers_error(front, engine, status, code):
    @engine.on("model.get")
    async def _(call):
        call.error(status, code, "model 'm': weights are damaged")

    answer = front.get("/v1/models/m")
    assert (answer.status, answer.error["code"], answer.error["type"]) == (status, code, "server_error")
    assert answer.error["message"] == "model 'm': weights are damaged"


@pytest.mark.parametrize("result", [{}, {"storage": {"ok": True}}, {"storage": None}, {"device_problem": None}])
def test_ready_means_that_the_data_folder_works(front, engine, result):
    @engine.on("engine.status")
    async def _(call):
        call.result(result)

    assert front.get("/readyz").json["status"] == "ready"


def test_a_broken_data_folder_is_not_ready_and_says_why(front, engine):
    @engine.on("engine.status")
    async def _(call):
        call.result({"storage": {"ok": False, "problem": "/data is gone"}})

    answer = front.get("/readyz")
    assert (answer.status, answer.error["code"]) == (503, "storage_error")
    assert "/data is gone" in answer.error["message"]
    assert front.get("/healthz").status == 200


def test_an_engine_without_its_device_is_not_ready_and_says_why(front, engine):
    @engine.on("engine.status")
    async def _(call):
        call.result({"device_problem": "CUDA device 0 is gone", "storage": {"ok": True}})

    answer = front.get("/readyz")
    assert (answer.status, answer.error["code"]) == (503, "device_error")
    assert "CUDA device 0 is gone" in answer.error["message"]
    assert front.get("/healthz").status == 200


def test_an_engine_that_does_not_report_is_not_ready(front, engine):
    @engine.on("engine.status")
    async def _(call):
        call.error(500, "internal", "no")

    assert front.get("/readyz").status == 503


def test_an_engine_that_does_not_answer_is_not_ready(front, engine):
    @engine.on("engine.status")
    async def _(call):
        pass

    assert front.get("/readyz").status == 503


def test_what_uses_the_disk_is_passed_on(front, engine):
    usage = {"object": "storage", "data_bytes": 3, "budget_bytes": 0, "disk_free_bytes": 9, "kinds": [{"kind": "files", "count": 1, "bytes": 3}], "lost": [], "damaged": []}

    @engine.on("storage.usage")
    async def _(call):
        call.result(usage)

    assert front.get("/v1/storage").json == usage
    assert front.post("/v1/storage", {}).status == 405


def test_jobs_and_checkpoints_are_deleted(front, engine):
    assert front.request("DELETE", "/v1/fine_tuning/jobs/ftjob-1").json == {"echo": {"id": "ftjob-1"}, "method": "job.delete"}
    assert front.request("DELETE", "/v1/fine_tuning/jobs/ftjob-1/checkpoints/ft:a:ckpt-step-10").json == {
        "echo": {"id": "ftjob-1", "checkpoint": "ft:a:ckpt-step-10"}, "method": "checkpoint.delete"}
    assert front.get("/v1/fine_tuning/jobs/ftjob-1/checkpoints/c").status == 405


# --- Idempotency-Key --------------------------------------------------------------------------------------

CREATING = {
    "file.create": ("/v1/files", form(file="abc", purpose="fine-tune"), FORM),
    "model.import": ("/v1/models", form(id="m", config="{}", weights="w"), FORM),
    "job.create": ("/v1/fine_tuning/jobs", b'{"model":"additive","training_file":"file-1"}', JSON),
    "session.create": ("/v1/sessions", b'{"model":"m"}', JSON),
    "session.import": ("/v1/sessions?model=m", b"state", OCTETS),
    "session.fork": ("/v1/sessions/s/fork", b"", {}),
    "session.rollback": ("/v1/sessions/s/rollback", b'{"snapshot":"p"}', JSON),
    "snapshot.create": ("/v1/sessions/s/snapshots", b"", {}),
    "session.append": ("/v1/sessions/s/append", b'{"text":"x"}', JSON),
    "session.generate": ("/v1/sessions/s/generate", b'{"prompt":"x"}', JSON),
}


@pytest.fixture
def keeps(engine):
    """Every creating method answers once it has the whole request."""
    for method in CREATING:
        @engine.on(method)
        async def _(call):
            if call.upload:
                await call.read_all()
            call.result(GENERATED if call.method == "session.generate" else {"params": call.params})
    return engine


@pytest.mark.parametrize("method", CREATING)
def test_the_key_reaches_the_engine_with_what_it_protects(front, keeps, method):
    path, body, headers = CREATING[method]
    for key in ("k", "a key with ~ and \"", "x" * 255):
        assert front.post(path, body, headers={**headers, "Idempotency-Key": key}).status == 200
        assert keeps.calls[-1].method == method and keeps.calls[-1].params["idempotency_key"] == key
    assert front.post(path, body, headers=headers).status == 200
    assert "idempotency_key" not in keeps.calls[-1].params


@pytest.mark.parametrize("method", CREATING)
@pytest.mark.parametrize("lines", ["Idempotency-Key:", "Idempotency-Key: " + "x" * 256, "Idempotency-Key: a\x01b", "Idempotency-Key: \xe4", "Idempotency-Key: a\r\nIdempotency-Key: b"])
def test_a_key_that_is_none_is_refused_before_anything_is_done(front, keeps, method, lines):
    path, body, headers = CREATING[method]
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{lines}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    with front.socket() as s:
        s.sendall(head.encode("latin-1") + b"\r\n" + body)
        status, _, rest = read_head(s)
        assert status == 400 and b'"Idempotency-Key"' in rest
    assert not keeps.calls


def test_a_streamed_generation_takes_no_key(front, engine):
    answer = front.post("/v1/sessions/s/generate", {"prompt": "x", "stream": True}, headers={"Idempotency-Key": "k"})
    assert (answer.status, answer.error["param"]) == (400, "Idempotency-Key")
    assert "stream" in answer.error["message"]
    assert not engine.calls


@pytest.mark.parametrize("code", ["idempotency_mismatch", "idempotency_in_progress"])
def test_the_engines_refusal_of_a_key_is_passed_on(front, engine, code):
    @engine.on("session.fork")
    async def _(call):
        call.error(409, code)

    answer = front.post("/v1/sessions/s/fork", headers={"Idempotency-Key": "k"})
    assert (answer.status, answer.error["code"]) == (409, code)


def test_other_endpoints_ignore_the_key(front, engine):
    assert front.get("/v1/models/m", headers={"Idempotency-Key": "k"}).json["echo"] == {"id": "m"}
    assert front.post("/v1/tokenize", {"model": "m", "text": "x"}, headers={"Idempotency-Key": "\x01" * 300}).status == 200
    assert "idempotency_key" not in engine.calls[-1].params
