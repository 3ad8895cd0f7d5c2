"""API keys: roles, models, limits, and what survives. The first half asks a front end with the fake engine, the second one
front ends of a real engine."""

import hashlib
import contextlib
import json
import os
import subprocess
import time

import pytest
import yaml

from engine_client import DATA, END, EngineError, frame, own_daemon, train
from http_support import BIN, ROOT, Front, chunks, engine, events, front, read_all, read_head, start, unchunk, wait_for

SPEC = yaml.load((ROOT / "proto" / "openapi.yaml").read_text(), Loader=yaml.CSafeLoader)
ROLES = ["user", "trainer", "admin"]
OPERATIONS = [(verb.upper(), path, operation) for path, item in SPEC["paths"].items() for verb, operation in item.items()
              if verb in ("get", "post", "delete")]


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def entry(secret, role="admin", **more):
    return {"id": f"key-{secret}", "hash": hashlib.sha256(secret.encode()).hexdigest(), "role": role, "expires_at": None, **more}


# --- a front end -------------------------------------------------------------------------------


def test_every_operation_names_its_role():
    for verb, path, operation in OPERATIONS:
        assert (operation.get("security") == [{}]) != (operation.get("x-role") in ROLES), (verb, path)


@pytest.mark.parametrize("role", ROLES)
def test_an_operation_is_forbidden_exactly_to_the_roles_below_its_own(engine, start, role):
    engine.keys = {"required": True, "keys": [entry(r, r) for r in ROLES]}
    front = start()
    wait_for(lambda: front.get("/v1/models", headers=bearer(role)).status == 200)
    for verb, path, operation in OPERATIONS:
        engine.calls.clear()
        kind = next(iter(operation.get("requestBody", {}).get("content", {})), None)
        headers = bearer(role) | ({"Content-Type": kind} if kind else {})
        answer = front.request(verb, path.replace("{", "").replace("}", ""), headers=headers)
        needed = operation.get("x-role", "user")
        forbidden = ROLES.index(role) < ROLES.index(needed)
        assert (answer.status == 403) == forbidden, (verb, path, answer.status)
        assert answer.status != 401
        if forbidden:
            assert answer.error["code"] == "permission_denied" and f"role {needed}" in answer.error["message"]
            assert not engine.calls


def test_the_engine_is_told_the_key_of_each_request(engine, start, tmp_path):
    (tmp_path / "keys").write_text("in-the-file\n")
    engine.keys = {"required": True, "keys": [entry("stored", "user")]}
    front = start("--api-key-file", tmp_path / "keys")
    wait_for(lambda: front.get("/v1/models", headers=bearer("stored")).status == 200)
    assert engine.calls[-1].key == "key-stored" and engine.calls[-1].owner == "key-stored"
    assert front.get("/v1/models", headers=bearer("in-the-file")).status == 200
    assert engine.calls[-1].key == "file"
    assert front.get("/v1/models", headers=bearer("neither")).status == 401
    assert front.delete("/v1/models/m", headers=bearer("in-the-file")).status == 200  # an admin


def test_without_keys_no_request_names_one(front, engine):
    assert front.get("/v1/models").status == 200
    assert engine.calls[-1].key is None


def test_an_expired_key_is_none(engine, start):
    engine.keys = {"required": True, "keys": [entry("old", expires_at=1), entry("new", expires_at=1 << 40)]}
    front = start()
    wait_for(lambda: front.get("/v1/models", headers=bearer("new")).status == 200)
    answer = front.get("/v1/models", headers=bearer("old"))
    assert (answer.status, answer.error["code"], answer.headers["WWW-Authenticate"]) == (401, "invalid_api_key", "Bearer")


def test_no_request_reaches_an_engine_whose_keys_are_not_known(engine, start):
    @engine.on("key.watch")
    async def _(call):
        pass  # never says them

    front = start()
    for method, path in [("GET", "/v1/models"), ("POST", "/v1/models/m/unload")]:
        for headers in [{}, bearer("anything")]:
            answer = front.request(method, path, headers=headers)
            assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
    assert front.get("/metrics").status == 200
    assert not engine.calls
    assert front.get("/openapi.json").status == 200


def test_a_malformed_list_of_keys_lets_nobody_in(engine, start):
    engine.keys = {"required": True, "keys": [entry("good"), {**entry("bad"), "hash": "zz"}]}
    front = start()
    assert front.get("/v1/models", headers=bearer("good")).status == 503
    engine.keys = {"required": True, "keys": [entry("good")]}
    wait_for(lambda: front.get("/v1/models", headers=bearer("good")).status == 200)  # asked again


# --- the service -------------------------------------------------------------------------------


class Service:
    """An engine with a model, front ends, and the secret of its first key."""

    def __init__(self, daemon):
        self.daemon = daemon
        with daemon.connect() as e:
            self.model = train(e)
        self.fronts = [Front(daemon.address), Front(daemon.address)]
        self.secrets = []

    def request(self, method, path, body=None, key=None, front=0, **headers):
        return self.fronts[front].request(method, path, body, {**(bearer(key) if key else {}), **headers})

    def create(self, key=None, front=0, **settings):
        answer = self.request("POST", "/v1/keys", settings, key, front)
        assert answer.status == 200, answer.body
        self.secrets.append(answer.json["secret"])
        return answer.json

    def first(self):
        self.admin = self.create(role="admin", name="operator")["secret"]
        return self.admin

    def complete(self, key, front=0, **more):
        return self.request("POST", "/v1/completions", {"model": self.model, "prompt": "ab", **more}, key, front)

    def restart(self):
        self.daemon.kill()
        self.daemon.start()
        for front in self.fronts:
            wait_for(lambda: front.get("/readyz").status == 200, 30)
            wait_for(lambda: front.get("/v1/models").status != 503)

    def close(self):
        for front in self.fronts:
            front.close()
        assert self.daemon.stop() == 0


@pytest.fixture
def service(own_daemon):
    s = Service(own_daemon())
    yield s
    s.close()


def test_the_first_key_closes_every_front_end_and_never_locks_out(service):
    for wrong, param in [({"role": "user"}, "role"), ({"role": "admin", "expires_at": 1 << 40}, "role"),
                         ({"role": "admin", "expires_at": 1}, "expires_at"), ({"role": "root"}, "role"), ({"weight": 0}, "weight")]:
        answer = service.request("POST", "/v1/keys", wrong)
        assert (answer.status, answer.error["param"]) == (400, param)
    assert service.complete(None).status == 200
    admin = service.first()
    for front in (0, 1):
        wait_for(lambda: service.complete(None, front).status == 401)
        assert service.complete("wrong", front).status == 401
        wait_for(lambda: service.complete(admin, front).status == 200)
    (only,) = service.request("GET", "/v1/keys", key=admin).json["data"]
    refused = service.request("DELETE", f"/v1/keys/{only['id']}", key=admin)
    assert (refused.status, refused.error["param"]) == (409, "id")
    assert service.request("POST", f"/v1/keys/{only['id']}", {"role": "user"}, admin).status == 409
    assert service.complete(admin).status == 200
    with service.daemon.connect() as e:  # the engine itself asks, whatever a front end believes
        with pytest.raises(EngineError) as refusal:
            e.call("model.list")
        assert refusal.value.status == 401


def test_a_secret_is_shown_once_and_kept_nowhere(service):
    admin = service.first()
    twice = [service.request("POST", "/v1/keys", {"name": "twice"}, admin, **{"Idempotency-Key": "one"}).json for _ in range(2)]
    assert twice[0]["secret"] != twice[1]["secret"] and twice[0]["id"] != twice[1]["id"]
    listed = service.request("GET", "/v1/keys?order=asc", key=admin)
    assert [k["name"] for k in listed.json["data"]] == ["operator", "twice", "twice"]
    shown = service.request("GET", f"/v1/keys/{twice[0]['id']}", key=admin)
    for answer in (listed, shown):
        assert b"secret" not in answer.body and b"hash" not in answer.body
    assert shown.json == {k: v for k, v in twice[0].items() if k != "secret"}
    service.restart()
    secrets = [admin.encode(), *(t["secret"].encode() for t in twice)]
    for path in [*service.daemon.folder.rglob("*"), service.daemon.log]:
        if path.is_file():
            data = path.read_bytes()
            assert not any(s in data for s in secrets), path
    for front in service.fronts:
        assert not any(s.decode() in "".join(front.log) for s in secrets)


def test_keys_and_revocations_survive_kill_9(service):
    admin = service.first()
    kept = service.create(admin, name="kept", models=[service.model], requests_per_minute=7, weight=3)
    gone = service.create(admin)
    assert service.request("DELETE", f"/v1/keys/{gone['id']}", key=admin).json["revoked_at"]
    service.restart()
    for front in (0, 1):
        assert service.complete(kept["secret"], front).status == 200
        assert service.complete(gone["secret"], front).status == 401
        assert service.complete(None, front).status == 401
    found = service.request("GET", f"/v1/keys/{kept['id']}", key=admin).json
    assert found["last_used_at"] and {k: v for k, v in kept.items() if k not in ("secret", "last_used_at")} == {
        k: v for k, v in found.items() if k != "last_used_at"}
    assert service.request("GET", f"/v1/keys/{gone['id']}", key=admin).json["revoked_at"]
    assert service.request("POST", f"/v1/keys/{gone['id']}", {"name": "back"}, admin).status == 409


def test_a_key_limits_the_priority_of_its_requests(service):
    assert service.complete(None, priority=-1000000).status == 200
    admin = service.first()
    key = service.create(admin)
    assert key["min_priority"] == 0
    wait_for(lambda: service.complete(key["secret"], priority=7).status == 200)
    for _ in range(2):
        refused = service.complete(key["secret"], priority=-1)
        assert (refused.status, refused.error["param"]) == (400, "priority") and "min_priority" in refused.error["message"]
    for path, body in (("embeddings", {"input": "a"}), ("explain", {"input": "ab"})):
        for priority, status in ((7, 200), (-1, 400)):
            answer = service.request("POST", f"/v1/{path}", {"model": service.model, "priority": priority, **body}, key["secret"])
            assert answer.status == status and (status == 200 or answer.error["param"] == "priority"), (path, answer.body)
    service.request("POST", f"/v1/keys/{key['id']}", {"min_priority": -5}, admin)
    service.restart()
    assert [service.complete(key["secret"], priority=p).status for p in (-5, -6)] == [200, 400]


def test_a_revocation_ends_the_requests_of_the_key_at_every_front_end(service):
    with service.daemon.connect() as e:
        endless = train(e, architecture="rwkv")
    admin = service.first()
    key, other = service.create(admin), service.create(admin)
    wait_for(lambda: service.complete(key["secret"], 1).status == 200 == service.complete(other["secret"], 1).status)
    body = {"model": endless, "prompt": "a", "max_tokens": 1000000, "logit_bias": {"1": -100}}

    def ask(front, secret, **more):
        return service.fronts[front].open_stream("/v1/completions", {**body, **more}, {**bearer(secret), "Connection": "close"})

    streams = [ask(front, key["secret"], stream=True) for front in (0, 1)]
    kept = ask(1, other["secret"], stream=True)
    whole = ask(1, key["secret"])
    heads = [read_head(s) for s in (*streams, kept)]
    assert [status for status, _, _ in heads] == [200] * 3
    assert service.request("DELETE", f"/v1/keys/{key['id']}", key=admin).status == 200
    for stream, (_, _, rest) in zip(streams, heads):
        text, complete = unchunk(rest + read_all(stream))
        assert complete and json.loads(events(text)[-1][1])["error"]["code"] == "invalid_api_key"
    status, headers, _ = read_head(whole)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    for front in (0, 1):
        assert service.complete(key["secret"], front).status == 401
    assert kept.recv(1)  # streams of other keys continue
    for s in (*streams, kept, whole):
        s.close()


def test_a_revocation_ends_generations_that_can_be_repeated(service):
    with service.daemon.connect() as e:
        endless = train(e, architecture="rwkv")
        admin = service.first()
        key = service.create(admin)
        sessions = [e.begin("session.create", {"model": endless}, key=key["id"]).result()["id"] for _ in range(2)]
        gone, waits = [e.begin("session.generate", {"id": id, "prompt": "a", "max_tokens": 1000000, "idempotency_key": id}, credit=1, key=key["id"])
                       for id in sessions]
        for call in (gone, waits):
            call.next()
        gone.cancel()
        assert e.wait(lambda: e.begin("engine.status").result()["running"] == 2)
        assert service.request("DELETE", f"/v1/keys/{key['id']}", key=admin).status == 200
        with pytest.raises(EngineError) as refusal:
            waits.result()
        assert refusal.value.status == 401
        assert e.wait(lambda: e.begin("engine.status").result()["running"] == 0)


def test_keys_do_not_share_idempotency_keys(service):
    with service.daemon.connect() as e:
        before = e.call("session.create", {"model": service.model, "idempotency_key": "one"})["id"]
    admin = service.first()
    keys = [service.create(admin)["secret"] for _ in range(2)]
    for key in keys:
        wait_for(lambda: service.complete(key).status == 200)

    def ask(key, **more):
        return service.request("POST", "/v1/sessions", {"model": service.model, **more}, key, **{"Idempotency-Key": "one"})

    made = [ask(key).json["id"] for key in keys]
    assert len({before, *made}) == 3
    assert [ask(key).json["id"] for key in keys] == made
    assert [ask(key, durable=True).error["code"] for key in keys] == ["idempotency_mismatch"] * 2


def test_keys_of_a_file_do_not_share_idempotency_keys(service):
    with service.daemon.connect() as e:
        def ask(owner):
            return e.begin("session.create", {"model": service.model, "idempotency_key": "one"}, owner=owner, key="file").result()["id"]
        made = [ask(owner) for owner in ("first", "second")]
        assert made[0] != made[1] and [ask(owner) for owner in ("first", "second")] == made


def test_a_key_expires(service):
    admin = service.first()
    key = service.create(admin, expires_at=int(time.time()) + 2)
    wait_for(lambda: service.complete(key["secret"]).status == 401, 10)
    assert service.request("GET", f"/v1/keys/{key['id']}", key=admin).json["revoked_at"] is None
    with service.daemon.connect() as e:
        with pytest.raises(EngineError) as refusal:
            e.begin("model.list", key=key["id"]).result()
        assert refusal.value.status == 401


def test_a_key_sees_its_models_alone(service):
    admin = service.first()
    other = service.create(admin, models=["other"], role="trainer")["secret"]
    mine = service.create(admin, models=[service.model])["secret"]
    session = service.request("POST", "/v1/sessions", {"model": service.model}, mine).json["id"]
    asked = [("GET", f"/v1/models/{service.model}", None), ("POST", "/v1/completions", {"model": service.model, "prompt": "a"}),
             ("POST", "/v1/tokenize", {"model": service.model, "text": "a"}), ("POST", "/v1/sessions", {"model": service.model}),
             ("GET", f"/v1/sessions/{session}", None), ("POST", f"/v1/sessions/{session}/generate", {"prompt": "a"}),
             ("POST", "/v1/explain", {"model": service.model, "input": "abc"})]
    for method, path, body in asked:
        assert service.request(method, path, body, mine).status == 200, path
        answer = service.request(method, path, body, other)
        assert (answer.status, answer.error["code"]) == (404, "not_found"), path
    assert [m["id"] for m in service.request("GET", "/v1/models", key=mine).json["data"]] == [service.model]
    assert service.request("GET", "/v1/models", key=other).json["data"] == []
    (id,) = [k["id"] for k in service.request("GET", "/v1/keys", key=admin).json["data"] if k["models"] == ["other"]]
    ends = int(time.time()) + 1000
    assert service.request("POST", f"/v1/keys/{id}", {"expires_at": ends, "name": None}, admin).json["models"] == ["other"]
    changed = service.request("POST", f"/v1/keys/{id}", {"models": None}, admin).json
    assert (changed["models"], changed["expires_at"]) == (None, ends)
    assert service.request("POST", "/v1/completions", {"model": service.model, "prompt": "a"}, other).status == 200
    assert service.request("POST", f"/v1/keys/{id}", {"expires_at": None}, admin).json["expires_at"] is None


def test_requests_are_limited_across_front_ends(service):
    admin = service.first()
    key = service.create(admin, requests_per_minute=3)
    headers = service.complete(key["secret"], 0).headers
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("3", "2")
    assert headers["x-ratelimit-reset-requests"].endswith("s") and "x-ratelimit-limit-tokens" not in headers
    assert service.complete(key["secret"], 1).status == 200
    streamed = service.complete(key["secret"], 1, stream=True)
    assert (streamed.status, streamed.headers["x-ratelimit-remaining-requests"]) == (200, "0")
    answer = service.complete(key["secret"], 0)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert 1 <= int(answer.headers["Retry-After"]) <= 20 and answer.headers["x-should-retry"] is None and answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert service.request("GET", "/v1/models", key=key["secret"]).status == 200  # computes nothing
    assert "x-ratelimit-limit-requests" not in service.complete(admin).headers
    assert service.request("POST", f"/v1/keys/{key['id']}", {"requests_per_minute": 0}, admin).json["requests_per_minute"] == 0
    assert service.complete(key["secret"]).status == 200


def test_a_response_that_is_kept_has_the_limits_in_its_head(service):
    admin = service.first()
    key = service.create(admin, tokens_per_minute=10000)["secret"]
    body = {"model": service.model, "input": "99", "max_output_tokens": 500}
    plain, kept, streamed = [service.request("POST", "/v1/responses", {**body, **more}, key).headers["x-ratelimit-remaining-tokens"]
                             for more in ({}, {"store": True}, {"store": True, "stream": True})]
    assert int(plain) <= 10000 - 500 and int(kept) <= 10000 - 500 and int(streamed) <= 10000 - 500
    too_many = service.request("POST", "/v1/responses", {**body, "store": True, "max_output_tokens": 10001}, key)
    assert too_many.status == 400 and too_many.json["error"]["param"] == "max_output_tokens"
    assert int(too_many.headers["x-ratelimit-remaining-tokens"]) < 10000


def test_tokens_are_reserved_and_given_back(service):
    admin = service.first()
    key = service.create(admin, tokens_per_minute=1000)["secret"]

    def remaining(answer):
        return int(answer.headers["x-ratelimit-remaining-tokens"])

    stopped = service.complete(key, max_tokens=600, prompt="99 bottles", stop=["o", "e", " "])
    assert stopped.status == 200 and stopped.json["usage"]["total_tokens"] < 200
    assert remaining(stopped) <= 1000 - 600  # its head says what was reserved
    after = service.complete(key, max_tokens=100)
    assert after.status == 200 and remaining(after) > 400  # 500 would not have been left, had nothing come back
    too_many = service.complete(key, max_tokens=2000)
    assert (too_many.status, too_many.error["param"]) == (400, "max_tokens")
    few = service.create(admin, tokens_per_minute=100)["secret"]
    session = service.request("POST", "/v1/sessions", {"model": service.model}, few).json["id"]
    too_many = service.request("POST", f"/v1/sessions/{session}/append", {"text": "a" * 200}, few)
    assert (too_many.status, too_many.error["param"]) == (400, "text")
    while (answer := service.complete(key, max_tokens=400, logit_bias={"1": -100})).status == 200:
        pass
    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert int(answer.headers["Retry-After"]) >= 1
    assert service.request("POST", "/v1/embeddings", {"model": service.model, "input": "a" * 450}, key).status == 429


def test_failed_requests_give_their_tokens_back(service):
    admin = service.first()
    key = service.create(admin, tokens_per_minute=600)
    asked = {"model": service.model, "input": "a" * 400}
    with service.daemon.connect() as e:
        for _ in range(3):
            call = e.begin("explain", {**asked, "method": "integrated_gradients", "steps": 1024, "target": {"kind": "logit"}}, key=key["id"])
            time.sleep(0.2)  # it computes
            call.cancel()
            with pytest.raises(EngineError) as refusal:
                call.result()
            assert refusal.value.code == "cancelled"
    assert service.request("POST", f"/v1/models/{service.model}/unload", {}, admin).status == 200
    for weights in service.daemon.folder.rglob("model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1])
    for _ in range(3):
        answer = service.request("POST", "/v1/embeddings", asked, key["secret"])
        assert answer.status == 500, answer.body


def tokens_of(call):
    """Number of the tokens that a stream has got so far."""
    return sum(len((call.frames.get_nowait()[1] or {}).get("tokens", [])) for _ in range(call.frames.qsize()))


def batch_codes(service, key, bodies):
    """The status of each line of a batch of responses, or the code of its error."""
    lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/responses", "body": body}) for i, body in enumerate(bodies)]
    with service.daemon.connect() as e:
        upload = e.begin("file.create", {"filename": "requests.jsonl", "purpose": "batch"}, upload=True, key=key)
        e.send(frame(DATA, upload.stream, {"part": "file"}, "\n".join(lines).encode(), flags=END))
        batch = e.begin("batch.create", {"input_file_id": upload.result()["id"], "endpoint": "/v1/responses", "completion_window": "1h"}, key=key).result()
        batch = e.wait(lambda: (lambda b: b if b["status"] == "completed" else None)(e.begin("batch.get", {"id": batch["id"]}, key=key).result()), 60)
        files = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name]]
        found = [e.begin("file.content", {"id": file}, key=key, credit=99) for file in files]
        results = [json.loads(x) for call in found for x in b"".join(list(call.events(regrant=1))[1:]).splitlines()]
    return [r["error"]["code"] if r["error"] else r["response"]["status_code"] for r in sorted(results, key=lambda r: r["custom_id"])]


def test_a_batch_finds_the_responses_of_its_project(service):
    admin, model = service.first(), service.model
    mine, other = service.create(admin, role="trainer", project="a"), service.create(admin, project="b")
    ids = []
    for key in (mine, other):
        wait_for(lambda: service.complete(key["secret"]).status == 200)
        made = service.request("POST", "/v1/responses", {"model": model, "input": "a", "store": True, "max_output_tokens": 2}, key["secret"])
        assert made.status == 200, made.body
        ids.append(made.json["id"])
    bodies = [{"model": model, "input": "b", "max_output_tokens": 2, "previous_response_id": id} for id in ids]
    bodies.append({**bodies[1], "response": {"id": ids[1]}})
    assert batch_codes(service, mine["id"], bodies) == [200, 404, "unknown_parameter"]


def test_tokens_are_divided_by_weight(service):
    with service.daemon.connect() as e:
        model = train(e, architecture="rwkv")
        service.first()
        keys = [service.create(service.admin, weight=weight)["id"] for weight in (1, 9)]
        body = {"model": model, "prompt": "a", "max_tokens": 2000, "n": 12}
        light, heavy = [e.begin("completion.create", body, credit=1 << 20, owner=key, key=key) for key in keys]
        heavy.next()
        tokens_of(light)  # those from before heavy began do not count
        assert heavy.result()["usage"]["completion_tokens"] == 24000
        assert tokens_of(light) < 16000  # nearly 24000 were it not for the weights
        light.cancel()


def test_the_audit_log_has_a_line_for_each_change(own_daemon, tmp_path):
    log = tmp_path / "audit"
    service = Service(own_daemon("--audit-log", log))
    admin = service.first()
    user = service.create(admin, name="private words")
    session = service.request("POST", "/v1/sessions", {"model": service.model}, admin).json["id"]
    assert service.request("DELETE", f"/v1/models/{service.model}", key=admin).status == 409
    assert service.request("DELETE", f"/v1/sessions/{session}", key=admin).status == 200
    assert service.complete(admin, prompt="private words").status == 200
    log.rename(tmp_path / "before")
    assert service.request("DELETE", f"/v1/models/{service.model}", key=admin).status == 200
    assert service.request("DELETE", f"/v1/keys/{user['id']}", key=admin).status == 200
    before, after = [[json.loads(line) for line in path.read_text().splitlines()] for path in (tmp_path / "before", log)]
    service.close()
    first = before[1]
    assert [(x["method"], x["status"]) for x in before] == [("job.create", 200), ("key.create", 200), ("key.create", 200), ("model.delete", 409)]
    assert before[0]["key"] is None and before[0]["target"].startswith("ftjob-")
    assert (first["owner"], first["key"]) == ("127.0.0.1", None) and first["target"] == before[2]["key"] == before[2]["owner"]
    assert (before[2]["target"], before[3]["code"]) == (user["id"], "model_in_use")
    assert [(x["method"], x["target"], x["status"], x["code"]) for x in after] == [
        ("model.delete", service.model, 200, None), ("key.delete", user["id"], 200, None)]
    assert all(x["time"].endswith("Z") for x in before + after)
    assert log.stat().st_mode & 0o777 == 0o600
    for path in (log, tmp_path / "before"):
        assert not any(s in path.read_text() for s in ("private", admin, user["secret"]))


def test_only_the_answer_of_an_audited_request_waits_for_the_audit_log(own_daemon, tmp_path):
    log = tmp_path / "audit"
    daemon = own_daemon("--audit-log", log)
    log.unlink()
    os.mkfifo(log)  # to open it waits for a reader
    with daemon.connect() as e:
        held = [e.begin("key.create", {"name": name, "role": "admin"}) for name in ("first", "second")]
        assert e.begin("engine.status").result() and e.begin("key.list", key="file").result()["data"]
        assert all(call.frames.empty() for call in held)
        lines = []
        with open(log) as reader:
            wait_for(lambda: lines.extend(json.loads(line) for line in reader) or len(lines) == 2)
        assert [x["target"] for x in lines] == [call.result()["id"] for call in held[:1]] + [None]
        with pytest.raises(EngineError) as refused:
            held[1].result()  # the first key is needed by now
        assert refused.value.status == 401 == lines[1]["status"]


def test_a_change_is_refused_while_too_many_wait_for_the_audit_log(own_daemon, tmp_path):
    log = tmp_path / "audit"
    daemon = own_daemon("--audit-log", log)
    log.unlink()
    os.mkfifo(log)
    most = 256  # AUDIT_MAX_LINES
    with daemon.connect() as e:
        held = [e.begin("job.cancel", {"id": "none"} if i % 2 else {"id": "none", "wrong": 1}) for i in range(most)]
        assert e.begin("engine.status").result()  # those before it have begun
        for params in ({"name": "a", "role": "admin"}, {"name": "a", "role": "wrong"}):
            with pytest.raises(EngineError) as refused:
                e.begin("key.create", params).result()
            assert refused.value.status == 503 and "audit log" in str(refused.value)
        assert all(call.frames.empty() for call in held) and e.begin("key.list", key="file").result()["data"] == []
        lines = []
        with open(log) as reader:
            wait_for(lambda: lines.extend(json.loads(line) for line in reader) or len(lines) == most)
        for i, call in enumerate(held):
            with pytest.raises(EngineError) as missing:
                call.result()
            assert missing.value.status == (404 if i % 2 else 400)
        wait_for(lambda: e.begin("key.list", key="file").result()["data"] == [])
    assert {x["method"] for x in lines} == {"job.cancel"}


def test_the_audit_log_has_the_code_of_the_answer_and_the_checkpoint(own_daemon, tmp_path):
    service = Service(own_daemon("--audit-log", tmp_path / "audit"))
    (job,) = service.request("GET", "/v1/fine_tuning/jobs").json["data"]
    (checkpoint,) = service.request("GET", f"/v1/fine_tuning/jobs/{job['id']}/checkpoints").json["data"]
    assert service.request("POST", f"/v1/fine_tuning/jobs/{job['id']}/cancel").status == 409
    for name, status in [("none", 404), (checkpoint["fine_tuned_model_checkpoint"], 200)]:
        assert service.request("DELETE", f"/v1/fine_tuning/jobs/{job['id']}/checkpoints/{name}").status == status
    service.close()
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()][1:]
    assert [(x["target"], x["status"], x["code"]) for x in lines] == [
        (job["id"], 409, "invalid_job_state"), (f"{job['id']}/none", 404, "not_found"),
        (f"{job['id']}/{checkpoint['fine_tuned_model_checkpoint']}", 200, None)]


def test_an_audit_log_that_cannot_be_written_stops_the_start(tmp_path):
    done = subprocess.run([BIN / "additived", "--data", tmp_path / "data", "--backend", "cpu", "--audit-log", tmp_path / "missing" / "log"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "cannot write the audit log" in done.stderr
