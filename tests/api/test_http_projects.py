"""Projects: a key that is no admin's reaches nothing of another project. The routes, the fields that name objects and the lists
come from openapi.yaml, so that a new one needs an object here before the tests pass."""

import json

import pytest

from engine_client import TEXT, job_params, own_daemon  # noqa: F401
from http_support import wait_for
from test_http_keys import OPERATIONS, SPEC, Service, service  # noqa: F401

FORM = {"Content-Type": "multipart/form-data; boundary=part"}


def form(**parts):
    """Parts that are bytes are files."""
    text = b""
    for name, value in parts.items():
        file = f'; filename="{name}.txt"' if isinstance(value, bytes) else ""
        text += f'--part\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
        text += (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return text + b"--part--\r\n"


class Project:
    """A key of a project, and one object of each kind that it has made."""

    def __init__(self, service, name, role="trainer", **limits):
        made = service.create(service.admin, role=role, project=name, **limits)
        self.service, self.key, self.key_id = service, made["secret"], made["id"]
        wait_for(lambda: self.request("GET", "/v1/models").status == 200)

    def request(self, method, path, body=None, **headers):
        return self.service.request(method, path, body, self.key, **headers)

    def ok(self, method, path, body=None, **headers):
        answer = self.request(method, path, body, **headers)
        assert answer.status == 200, (method, path, answer.status, answer.body)
        return answer.json

    def upload(self, text=TEXT, purpose="fine-tune"):
        return self.ok("POST", "/v1/files", form(purpose=purpose, file=text.encode()), **FORM)["id"]

    def ended(self, path, id):
        states = ("succeeded", "completed", "failed", "cancelled", "expired")
        wait_for(lambda: self.ok("GET", f"{path}/{id}")["status"] in states, 60)
        return self.ok("GET", f"{path}/{id}")

    def fill(self):
        model = self.service.model
        self.file, self.session = self.upload(), self.ok("POST", "/v1/sessions", {"model": model, "durable": True, "explain": True, "prompt": "abc"})["id"]
        self.snapshot = self.ok("POST", f"/v1/sessions/{self.session}/snapshots", {})["id"]
        self.job = self.ok("POST", "/v1/fine_tuning/jobs", job_params(self.file))["id"]
        self.evaluation = self.ok("POST", "/v1/evaluations", {"model": model, "file": self.file})["id"]
        self.faithfulness = self.ok("POST", "/v1/explain/evaluate", {"model": model, "file": self.upload("abcdef\nghijkl\n")})["id"]
        self.requests = self.upload(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions",
                                                "body": {"model": model, "prompt": "a", "max_tokens": 1}}), "batch")
        self.batch = self.ok("POST", "/v1/batches", {"input_file_id": self.requests, "endpoint": "/v1/completions", "completion_window": "1h"})["id"]
        stored = {"model": model, "max_tokens": 2, "background": True}
        self.completion = self.ok("POST", "/v1/completions", {**stored, "prompt": "a"})["id"]
        self.response = self.ok("POST", "/v1/responses", {"model": model, "input": "a", "store": True, "max_output_tokens": 2})["id"]
        self.chat = self.ok("POST", "/v1/chat/completions", {**stored, "messages": [{"role": "user", "content": "a"}]})["id"]
        self.model = self.ended("/v1/fine_tuning/jobs", self.job)["fine_tuned_model"]
        self.adapter = self.make_adapter()
        (checkpoint,) = self.ok("GET", f"/v1/fine_tuning/jobs/{self.job}/checkpoints")["data"]
        self.checkpoint = checkpoint["fine_tuned_model_checkpoint"]
        self.output = self.ended("/v1/batches", self.batch)["output_file_id"]
        for path, id in [("/v1/evaluations", self.evaluation), ("/v1/explain/evaluations", self.faithfulness)]:
            assert self.ended(path, id)["status"] == "succeeded"
        return self

    def make_adapter(self):
        wide = {"config": {"hidden_size": 16, "n_heads": 2, "n_layer": 1}}
        base = self.ok("POST", "/v1/fine_tuning/jobs", {"model": "additive2", "training_file": self.file, "additive": {**wide, "max_steps": 2}})["id"]
        method = {"type": "adapter", "adapter": {"kind": "state"}}
        self.base = self.ended("/v1/fine_tuning/jobs", base)["fine_tuned_model"]
        job = {"model": self.base, "training_file": self.file, "method": method, "additive": {"max_steps": 2}}
        return self.ended("/v1/fine_tuning/jobs", self.ok("POST", "/v1/fine_tuning/jobs", job)["id"])["additive"]["adapter"]

    def ids_of(self, path):
        """Ids that a path's {id} may have."""
        kinds = {"/v1/models/": [self.model, self.checkpoint], "/v1/files/": [self.file, self.output], "/v1/fine_tuning/jobs/": [self.job],
                 "/v1/completions/": [self.completion], "/v1/chat/completions/": [self.chat], "/v1/responses/": [self.response],
                 "/v1/sessions/": [self.session], "/v1/explain/evaluations/": [self.faithfulness], "/v1/evaluations/": [self.evaluation],
                 "/v1/batches/": [self.batch], "/v1/adapters/": [self.adapter]}
        (ids,) = [ids for prefix, ids in kinds.items() if path.startswith(prefix + "{id}")]
        return ids

    def limit(self, **limits):
        answer = self.service.request("POST", f"/v1/keys/{self.key_id}", limits, self.service.admin)
        assert answer.status == 200 and limits.items() <= answer.json.items(), answer.body


@pytest.fixture
def projects(service):  # noqa: F811
    service.first()
    return Project(service, "a"), Project(service, "b").fill()


def absent(id):
    """An id of the same form that nothing has."""
    return id[:-1] + ("1" if id[-1] == "0" else "0")


def refusal(answer, id):
    """The answer's status and body, without the id."""
    return answer.status, answer.body.replace(id.encode(), b"ID")


def body_of(operation):
    """An example of the body, or None."""
    content = operation.get("requestBody", {}).get("content", {})
    return content["application/json"].get("example", {}) if "application/json" in content else None


def test_no_route_with_an_id_reaches_another_project(service, projects):  # noqa: F811
    a, b = projects
    routes = [x for x in OPERATIONS if "{id}" in x[1] and not x[1].startswith("/v1/keys/")]
    assert len(routes) > 50
    others = {"name": "config.json", "snapshot": b.snapshot, "checkpoint": b.checkpoint}
    tried = 0
    for verb, path, operation in routes:
        for id in b.ids_of(path):
            where = path.format(id="{id}", **others)
            theirs, none = [a.request(verb, where.replace("{id}", x), body_of(operation)) for x in (id, absent(id))]
            if operation["x-role"] == "admin":
                assert theirs.status == 403, (verb, path)
                continue
            assert theirs.status == 404, (verb, path, theirs.status, theirs.body)
            assert refusal(theirs, id) == refusal(none, absent(id)), (verb, path)
            tried += 1
    assert tried > 50
    for verb, path, operation in routes:  # and all of it is still there
        for id in b.ids_of(path) if verb == "GET" else []:
            mine = b.request(verb, path.format(id=id, **others))
            assert mine.status in (200, 400), (verb, path, mine.body)  # 400: the architecture or state does not have it


# Where bodies name objects: (path, field, body). Each field of openapi.yaml that names one is in it.
def named(model, b):
    text = {"model": model, "prompt": "a", "max_tokens": 1}
    of_model = [("/v1/completions", text), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
                ("/v1/responses", {"input": "a", "max_output_tokens": 1}), ("/v1/sessions", {}), ("/v1/explain", {"input": "ab"}),
                ("/v1/explain/evaluate", {"input": "abc"}), ("/v1/evaluations", {"file": "file-none"}), ("/v1/classify", {"input": "a"}),
                ("/v1/fill-mask", {"input": "a"}), ("/v1/embeddings", {"input": "a"}), ("/v1/tokenize", {"text": "a"}),
                ("/v1/detokenize", {"tokens": [1]}), ("/v1/fine_tuning/jobs", {"training_file": "MINE"})]
    job = job_params(b.file)
    yield from ((path, "adapter", {"model": model, **body, "adapter": b.adapter}, b.adapter) for path, body in of_model[:3])
    yield from ((path, "model", {**body, "model": id}, id) for path, body in of_model for id in (b.model, b.checkpoint))
    yield "/v1/explain", "session", {"session": b.session}, b.session
    yield "/v1/explain/evaluate", "file", {"model": model, "file": b.file}, b.file
    yield "/v1/evaluations", "file", {"model": model, "file": b.file}, b.file
    yield "/v1/batches", "input_file_id", {"input_file_id": b.requests, "endpoint": "/v1/completions", "completion_window": "1h"}, b.requests
    yield "/v1/responses", "previous_response_id", {"model": model, "input": "a", "previous_response_id": b.response}, b.response
    yield "/v1/fine_tuning/jobs", "training_file", job, b.file
    yield "/v1/fine_tuning/jobs", "validation_file", {**job, "training_file": "MINE", "validation_file": b.file}, b.file
    yield "/v1/fine_tuning/jobs", "file", {**job, "training_file": "MINE",
                                           "additive": {**job["additive"], "tokenizer": {"file": b.file}}}, b.file
    yield "/v1/fine_tuning/jobs", "file", {**job, "training_file": "MINE",
                                           "additive": {**job["additive"], "training_files": [{"file": b.file, "weight": 1}]}}, b.file


def names_in(schema, found):
    if isinstance(schema, list):
        for x in schema:
            names_in(x, found)
    elif isinstance(schema, dict):
        found.update(name for name, node in schema.get("properties", {}).items()
                     if isinstance(node, dict) and (name in ("adapter", "model", "session", "file") or name.endswith(("_file", "_file_id", "_response_id"))))
        for x in schema.values():
            names_in(x, found)
    return found


def test_no_field_of_a_request_names_an_object_of_another_project(service, projects):  # noqa: F811
    a, b = projects
    cases = list(named(service.model, b))
    requests = {name: schema for name, schema in SPEC["components"]["schemas"].items() if name.endswith("Request")}
    assert names_in(requests, set()) <= {field for _, field, _, _ in cases}
    mine = a.upload()
    for path, field, body, id in cases:
        body = json.loads(json.dumps(body).replace("MINE", mine))
        theirs = a.request("POST", path, body)
        none = a.request("POST", path, json.loads(json.dumps(body).replace(id, absent(id))))
        assert theirs.status == 404, (path, field, theirs.status, theirs.body)
        assert refusal(theirs, id) == refusal(none, absent(id)), (path, field)
    assert a.request("POST", f"/v1/sessions?model={b.model}", b"x", **{"Content-Type": "application/octet-stream"}).status == 404


def pages(who, path, **query):
    """The ids of a list, page by page."""
    ids, after = [], None
    while True:
        words = [f"{k}={v}" for k, v in {**query, "limit": 1, **({"after": after} if after else {})}.items()]
        page = who.ok("GET", f"{path}?{'&'.join(words)}")
        assert len(page["data"]) <= 1
        ids += [x["id"] for x in page["data"]]
        if not page["has_more"]:
            return ids
        after = page["last_id"]


def test_lists_have_the_objects_of_the_project_alone(service, projects):  # noqa: F811
    a, b = projects
    admin = Project(service, "ops", role="admin")
    lists = {"/v1/models": b.model, "/v1/files": b.file, "/v1/fine_tuning/jobs": b.job, "/v1/sessions": b.session,
             "/v1/explain/evaluations": b.faithfulness, "/v1/evaluations": b.evaluation, "/v1/batches": b.batch, "/v1/adapters": b.adapter}
    assert {path for verb, path, operation in OPERATIONS if verb == "GET" and operation.get("summary", "").startswith("List ") and "{" not in path} \
        == {*lists, "/v1/keys"}
    for path, id in lists.items():
        filtered = {who: [x["id"] for x in who.ok("GET", f"{path}?project=b")["data"]] for who in (a, b, admin)}
        assert id in filtered[b] and filtered[admin] == filtered[b], path
        assert not filtered[a] if path != "/v1/models" else id not in filtered[a]
        if path == "/v1/models":  # has no pages; models of the default project are everyone's
            listed = {who: [x["id"] for x in who.ok("GET", path)["data"]] for who in (a, b, admin)}
            assert listed[a] == [service.model] and set(listed[b]) == {service.model, id, b.base} and listed[admin] == listed[b]
            continue
        for who in (b, admin):
            assert id in pages(who, path) and pages(who, path, project="b") == filtered[b]
        assert pages(a, path) == []
        refused = a.request("GET", f"{path}?after={id}")
        assert refusal(refused, id) == refusal(a.request("GET", f"{path}?after={absent(id)}"), absent(id)) and refused.status == 404
    mine = [a.upload("one"), a.upload("two")]
    assert b.upload("three") and pages(a, "/v1/files") == mine[::-1] and pages(a, "/v1/files", order="asc") == mine
    opened = [who.ok("POST", "/v1/sessions", {"model": service.model})["id"] for who in (a, b, a)]
    assert pages(a, "/v1/sessions") == [opened[2], opened[0]] and pages(b, "/v1/sessions", order="asc") == [b.session, opened[1]]
    assert pages(admin, "/v1/sessions") == [*opened[::-1], b.session]


def test_projects_survive_kill_9(service, projects):  # noqa: F811
    a, b = projects
    service.restart()
    for path in ("/v1/files", "/v1/fine_tuning/jobs", "/v1/sessions", "/v1/batches"):
        assert a.ok("GET", path)["data"] == [] and {x["project"] for x in b.ok("GET", path)["data"]} == {"b"}
    assert b.ok("GET", f"/v1/models/{b.model}")["additive"]["project"] == "b"
    for id in (b.model, b.checkpoint):
        assert (b.request("GET", f"/v1/models/{id}").status, a.request("GET", f"/v1/models/{id}").status) == (200, 404)
    assert (b.request("GET", f"/v1/responses/{b.response}").status, a.request("GET", f"/v1/responses/{b.response}").status) == (200, 404)


def test_a_fork_belongs_to_the_project_of_its_session(service, projects):  # noqa: F811
    a, b = projects
    fork = service.request("POST", f"/v1/sessions/{b.session}/fork", {}, service.admin).json
    assert fork["project"] == "b" and b.request("GET", f"/v1/sessions/{fork['id']}").status == 200
    assert a.request("GET", f"/v1/sessions/{fork['id']}").status == 404


def test_two_keys_of_a_project_share_what_they_make(service, projects):  # noqa: F811
    _, b = projects
    other = Project(service, "b", role="user")
    assert other.ok("GET", f"/v1/sessions/{b.session}")["id"] == b.session
    assert other.ok("GET", f"/v1/responses/{b.response}")["id"] == b.response


def test_what_was_made_without_a_project_belongs_to_the_default(service):  # noqa: F811
    (job,) = service.request("GET", "/v1/fine_tuning/jobs").json["data"]
    session = service.request("POST", "/v1/sessions", {"model": service.model}).json
    assert "project" not in job and "project" not in session
    service.first()
    plain, other = Project(service, "default"), Project(service, "a")
    assert [x["id"] for x in plain.ok("GET", "/v1/fine_tuning/jobs")["data"]] == [job["id"]]
    assert [x["id"] for x in plain.ok("GET", "/v1/sessions?project=default")["data"]] == [session["id"]]
    assert other.ok("GET", "/v1/sessions")["data"] == []
    assert other.request("POST", "/v1/completions", {"model": service.model, "prompt": "a", "max_tokens": 1}).status == 200
    (checkpoint,) = plain.ok("GET", f"/v1/fine_tuning/jobs/{job['id']}/checkpoints")["data"]
    assert other.request("GET", f"/v1/models/{checkpoint['fine_tuned_model_checkpoint']}").status == 404


def test_the_name_of_a_model_is_taken_for_every_project(service, projects):  # noqa: F811
    a, b = projects
    config, weights = [b.request("GET", f"/v1/models/{b.model}/files/{name}").body for name in ("config.json", "model.safetensors")]
    sent = form(id=b.model, config=config, weights=weights)
    taken = a.request("POST", "/v1/models", sent, **FORM)
    assert (taken.status, taken.error["code"]) == (409, "model_exists")
    made = a.ok("POST", "/v1/models", form(id="mine", config=config, weights=weights), **FORM)
    assert made["additive"]["project"] == "a" and b.request("GET", "/v1/models/mine").status == 404


@pytest.mark.parametrize("name", ["", "-a", "a b", "x" * 64, "é", 1])
def test_a_project_has_a_short_name(service, name):  # noqa: F811
    service.first()
    refused = service.request("POST", "/v1/keys", {"project": name}, service.admin)
    assert (refused.status, refused.error["param"]) == (400, "project")


def test_the_project_of_a_key_cannot_be_changed(service):  # noqa: F811
    service.first()
    key = service.create(service.admin, project="a")
    assert key["project"] == "a"
    refused = service.request("POST", f"/v1/keys/{key['id']}", {"project": "b"}, service.admin)
    assert (refused.status, refused.error["param"]) == (400, "project")
    listed = service.request("GET", "/v1/keys?project=a", key=service.admin).json["data"]
    assert [k["id"] for k in listed] == [key["id"]]


# --- quotas ---------------------------------------------------------------------------------------


def is_refused(answer, quota):
    """True if the answer names the quota, and no time after which to repeat the request."""
    assert (answer.headers["Retry-After"], answer.headers["x-should-retry"]) == (None, "false")
    return (answer.status, answer.error["code"], answer.error["param"]) == (429, "rate_limit_exceeded", quota)


def test_a_key_opens_no_more_sessions_than_its_quota(service):  # noqa: F811
    service.first()
    a, free, other = Project(service, "a", max_sessions=2), Project(service, "a"), Project(service, "b", max_sessions=2)
    body = {"model": service.model, "durable": True, "prompt": "abc"}
    first, second = [who.ok("POST", "/v1/sessions", body)["id"] for who in (a, free)]
    state = a.request("GET", f"/v1/sessions/{first}/state").body

    def tries():
        yield a.request("POST", "/v1/sessions", body)
        yield a.request("POST", f"/v1/sessions/{first}/fork", {})
        yield a.request("POST", f"/v1/sessions?model={service.model}", state, **{"Content-Type": "application/octet-stream"})

    assert all(is_refused(answer, "max_sessions") for answer in tries())
    assert other.ok("POST", "/v1/sessions", body)["project"] == "b"
    text = {"model": service.model, "prompt": "a", "max_tokens": 1, "return_state": True}
    assert a.ok("POST", "/v1/completions", text)["usage"]["completion_tokens"] == 1  # its state is no session
    service.restart()
    assert all(is_refused(answer, "max_sessions") for answer in tries())
    assert sorted(pages(a, "/v1/sessions")) == sorted([first, second])
    a.ok("DELETE", f"/v1/sessions/{second}")
    assert a.ok("POST", f"/v1/sessions/{first}/fork", {})["project"] == "a"
    assert is_refused(a.request("POST", "/v1/sessions", body), "max_sessions")
    free.ok("POST", "/v1/sessions", body)


def test_stored_sessions_take_no_more_bytes_than_the_quota(service):  # noqa: F811
    service.first()
    a = Project(service, "a")
    body = {"model": service.model, "durable": True, "prompt": "abc"}
    first = a.ok("POST", "/v1/sessions", body)["id"]
    bytes = len(a.request("GET", f"/v1/sessions/{first}/state").body)
    a.limit(max_session_bytes=2 * bytes)
    second = a.ok("POST", "/v1/sessions", body)["id"]

    def are_refused():
        before = a.ok("GET", f"/v1/sessions/{first}")
        assert is_refused(a.request("POST", "/v1/sessions", body), "max_session_bytes")
        assert is_refused(a.request("POST", f"/v1/sessions/{first}/fork", {}), "max_session_bytes")
        assert is_refused(a.request("POST", f"/v1/sessions/{first}/snapshots", {}), "max_session_bytes")
        after = a.ok("GET", f"/v1/sessions/{first}")
        assert {**after, "expires_at": 0} == {**before, "expires_at": 0} and a.ok("GET", f"/v1/sessions/{first}/snapshots")["data"] == []
        assert sorted(pages(a, "/v1/sessions")) == sorted([first, second])

    are_refused()
    service.restart()
    are_refused()
    # A state grows with the tokens that it knows: the session continues with room, as it was before.
    assert is_refused(a.request("POST", f"/v1/sessions/{first}/append", {"text": "x" * 100}), "max_session_bytes")
    assert is_refused(a.request("POST", f"/v1/sessions/{first}/generate", {"max_tokens": 100, "logit_bias": {"1": -100}}), "max_session_bytes")
    a.ok("DELETE", f"/v1/sessions/{second}")
    assert a.ok("POST", f"/v1/sessions/{first}/append", {"text": "x"})["tokens"] == 4
    a.limit(max_session_bytes=4 * bytes)
    snapshot = a.ok("POST", f"/v1/sessions/{first}/snapshots", {})["id"]
    a.limit(max_session_bytes=1)
    a.ok("DELETE", f"/v1/sessions/{first}/snapshots/{snapshot}")
    assert a.ok("POST", "/v1/sessions", {**body, "durable": False})["project"] == "a"


def test_files_take_no_more_bytes_than_the_quota(service):  # noqa: F811
    service.first()
    a = Project(service, "a", max_file_bytes=10)
    other = Project(service, "b")
    other.upload("x" * 100)
    first = a.upload("x" * 6)
    too_large = a.request("POST", "/v1/files", form(purpose="fine-tune", file=b"x" * 5), **FORM)
    assert is_refused(too_large, "max_file_bytes") and pages(a, "/v1/files") == [first]
    second = a.upload("x" * 4)
    service.restart()
    assert is_refused(a.request("POST", "/v1/files", form(purpose="fine-tune", file=b"x"), **FORM), "max_file_bytes")
    a.ok("DELETE", f"/v1/files/{first}")
    third = a.upload("x" * 6)
    assert pages(a, "/v1/files") == [third, second]


def test_a_key_has_no_more_jobs_at_once_than_its_quota(service):  # noqa: F811
    service.first()
    a = Project(service, "a", max_jobs=1)
    file = a.upload()
    job = a.ok("POST", "/v1/fine_tuning/jobs", job_params(file, 1000000, checkpoint_every=1))["id"]
    evaluation = {"model": service.model, "file": file}
    batch = a.upload(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}}), "batch")

    def tries():
        yield a.request("POST", "/v1/fine_tuning/jobs", job_params(file))
        yield a.request("POST", "/v1/evaluations", evaluation)
        yield a.request("POST", "/v1/explain/evaluate", evaluation)
        yield a.request("POST", "/v1/batches", {"input_file_id": batch, "endpoint": "/v1/completions", "completion_window": "1h"})

    assert all(is_refused(answer, "max_jobs") for answer in tries())
    assert a.request("POST", "/v1/explain/evaluate", {"model": service.model, "input": "abcdef"}).status == 200  # no job
    service.restart()
    assert all(is_refused(answer, "max_jobs") for answer in tries())
    wait_for(lambda: a.ok("GET", f"/v1/fine_tuning/jobs/{job}/checkpoints")["data"], 60)
    a.ok("POST", f"/v1/fine_tuning/jobs/{job}/cancel")
    other = a.ok("POST", "/v1/fine_tuning/jobs", job_params(file, 1000000))["id"]
    assert is_refused(a.request("POST", f"/v1/fine_tuning/jobs/{job}/resume"), "max_jobs")
    admin = Project(service, "ops", role="admin", max_jobs=1)  # has no job itself
    assert is_refused(admin.request("POST", f"/v1/fine_tuning/jobs/{job}/resume"), "max_jobs")
    a.ok("POST", f"/v1/fine_tuning/jobs/{other}/cancel")
    a.ok("POST", f"/v1/fine_tuning/jobs/{job}/resume")
    a.ok("POST", f"/v1/fine_tuning/jobs/{job}/cancel")


def test_a_ledger_that_is_made_again_from_the_blobs_has_their_projects(service, projects):  # noqa: F811
    _, b = projects
    service.daemon.kill()
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        (service.daemon.folder / name).unlink(missing_ok=True)
    (service.daemon.folder / "ledger.sqlite").write_bytes(b"x" * 8192)
    service.daemon.start()
    with service.daemon.connect() as e:
        def ids(method):
            return {x["id"] for x in e.begin(method, {"project": "b"}, key="file").result()["data"]}
        assert {b.file, b.output} <= ids("file.list") and b.job in ids("job.list")
        assert ids("session.list") == {b.session} and b.model in ids("model.list")
        assert e.begin("model.get", {"id": b.checkpoint}, key="file").result()["additive"]["project"] == "b"


def test_another_project_does_not_learn_that_a_response_has_existed(own_daemon):  # noqa: F811
    service = Service(own_daemon("--responses-seconds", 1))
    service.first()
    a, b = Project(service, "a"), Project(service, "b")
    made = b.ok("POST", "/v1/responses", {"model": service.model, "input": "a", "store": True, "max_output_tokens": 2})["id"]
    wait_for(lambda: b.request("GET", f"/v1/responses/{made}").status == 410, 30)
    assert refusal(a.request("GET", f"/v1/responses/{made}"), made) == refusal(a.request("GET", f"/v1/responses/{absent(made)}"), absent(made))
    service.close()
