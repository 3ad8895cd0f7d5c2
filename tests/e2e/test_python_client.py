"""clients/python against the whole service."""

import asyncio
import http.server
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import types
import zipfile

import pytest
import yaml

from conftest import SMALL, TEXT

PACKAGE = pathlib.Path(__file__).parents[2] / "clients" / "python"
sys.path.insert(0, str(PACKAGE))
import additive_client  # noqa: E402
from additive_client.progress import Progress  # noqa: E402

GREEDY = {"max_tokens": 12, "temperature": 0}
# Not for programs that train and write: the service's own pages and numbers, and what other clients know by these names.
WITHOUT_CALLS = {"/healthz", "/metrics", "/openapi", "/readyz", "/version", "/web", "/v1/storage", "/v1/detokenize",
                 "/v1/explain/evaluate", "/v1/explain/evaluations"}


@pytest.fixture(scope="module")
def client(service):
    with additive_client.Client(service.url) as c:
        yield c


@pytest.fixture(scope="module")
def trained(client):
    file = client.files.upload(TEXT.encode(), "a.txt")
    assert client.files.content(file["id"]) == TEXT.encode()
    assert client.files.statistics(file["id"])["characters"] == len(TEXT)
    job = client.jobs.create("additive", file["id"], seed=1, additive=dict(SMALL, max_steps=20))
    job = client.jobs.wait(job["id"], progress=False)
    assert job["status"] == "succeeded"
    assert client.jobs.metrics(job["id"])[-1]["step"] == 20
    return job["fine_tuned_model"]


def joined(chunks):
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


def test_streams_forks_and_restored_states_give_the_text_of_a_whole_answer(client, trained, tmp_path):
    text = client.complete(trained, "9 bot", **GREEDY)["choices"][0]["text"]
    assert text and joined(client.stream(trained, "9 bot", **GREEDY)) == text
    with client.sessions.create(trained, "9 bot") as session, session.fork() as fork:
        assert session.generate(**GREEDY)["choices"][0]["text"] == text
        fork.export(tmp_path / "state")
        with client.sessions.restore(trained, tmp_path / "state") as restored:
            assert joined(restored.stream(**GREEDY)) == text
    with client.sessions.create(trained, "9 bot") as session:
        before = session.snapshot("a name")
        assert [x["id"] for x in session.snapshots()] == [before["id"]]
        for _ in range(2):
            assert session.generate(**GREEDY)["choices"][0]["text"] == text
            assert session.rollback(before["id"])["tokens"] == before["tokens"] == session.info["tokens"]
        with session.fork(before["id"]) as fork:
            assert fork.generate(**GREEDY)["choices"][0]["text"] == text
            assert [b["parent"] and b["parent"]["snapshot"] for b in session.tree()["data"]] == [None, before["id"]]
        assert session.delete_snapshot(before["id"])["deleted"] and session.snapshots() == []
    with client.sessions.create(trained, "99 bottles of beer on the wall", snapshot_every=16) as session:
        assert session.info["snapshot_every"] == 16
        made = session.generate(**GREEDY, snapshot="first")["session"]["snapshot"]
        assert [(x["id"], x["name"]) for x in session.snapshots() if not x["automatic"]] == [(made, "first")]
        last = session.snapshots()[0]
        assert last["automatic"] and session.rollback(last["id"])["tokens"] == last["tokens"]
        assert session.append("x", snapshot=True)["snapshot"] == session.snapshots()[0]["id"]
    assert client.sessions.list() == []


@pytest.mark.parametrize("kind", ["state", "lora"])
def test_adapters_are_saved_pushed_and_used_in_sessions(client, trained, tmp_path, kind):
    file = client.files.upload(b"9 sheep went over the fence. " * 200)["id"]
    job = client.jobs.create(trained, file, method={"type": "adapter", "adapter": {"kind": kind}}, additive={"sequence_length": 32, "batch_size": 4, "max_steps": 10})
    adapter = client.jobs.wait(job["id"], progress=False)["additive"]["adapter"]
    path = tmp_path / "pulled"
    client.adapters.save(adapter, path)
    again = client.adapters.push(trained, path)
    assert again["kind"] == kind and {adapter, again["id"]} <= {a["id"] for a in client.adapters.list()}
    texts = []
    for id in (adapter, again["id"]):
        with client.sessions.create(trained, "9 bot", adapter=id) as session:
            assert session.info["adapter"] == id
            session.export(tmp_path / "state")
            with client.sessions.restore(trained, tmp_path / "state", adapter=id) as restored:
                texts.append(restored.generate(**GREEDY)["choices"][0]["text"])
    assert texts[0] == texts[1] and client.adapters.delete(again["id"])["deleted"]


def test_the_asynchronous_client_says_the_same_and_the_synchronous_one_is_made_of_it(client, service, trained, tmp_path):
    subprocess.run([sys.executable, PACKAGE / "make_sync.py", "--check"], check=True)

    async def read():
        async with additive_client.AsyncClient(service.url) as c, await c.sessions.create(trained, "9 bot") as session:
            streamed = "".join([chunk["choices"][0]["text"] async for chunk in c.stream(trained, "9 bot", **GREEDY) if chunk["choices"]])
            async for _ in c.stream(trained, "9 bot", **GREEDY):
                break
            assert trained in [model["id"] for model in await c.models.list()] and [job["id"] async for job in c.jobs.list()]
            await c.models.export(trained, tmp_path / "model")
            return streamed, (await session.generate(**GREEDY))["choices"][0]["text"], await asyncio.gather(
                *(c.complete(trained, "9 bot", **GREEDY) for _ in range(3)))

    text = client.complete(trained, "9 bot", **GREEDY)["choices"][0]["text"]
    streamed, generated, several = asyncio.run(read())
    assert streamed == generated == text and [answer["choices"][0]["text"] for answer in several] == [text] * 3
    assert (tmp_path / "model" / "config.json").exists() and client.sessions.list() == []


def test_a_model_that_is_exported_and_pushed_writes_the_same_text(client, trained, tmp_path):
    client.models.push("copy", client.models.export(trained, tmp_path / "model"))
    assert client.models.card("copy")["parents"][0] == {"model": trained, "relation": "imported from"}
    assert client.complete("copy", "9 bot", **GREEDY)["choices"] == client.complete(trained, "9 bot", **GREEDY)["choices"]


def test_contributions_sum_to_the_score_and_the_page_is_the_services_own(client, trained):
    explanation = client.explain(trained, "9 bottles")
    found = explanation.contributions
    assert abs(sum(found["sums"].values()) - found["score"]) <= 1e-4
    assert "<html" in explanation.to_html()


def test_tokens_and_vectors_of_a_text(client, trained):
    assert len(client.tokenize(trained, "9 bottles")["tokens"]) >= 9
    assert len(client.embed(trained, ["9", "8"])["data"]) == 2
    for refused in (client.classify, client.fill_mask):
        with pytest.raises(additive_client.APIError) as caught:
            refused(trained, "9")
        assert caught.value.param == "model"


def test_an_error_carries_status_type_code_and_parameter(client, trained):
    with pytest.raises(additive_client.APIError) as caught:
        client.complete(trained, "x", max_tokens=-1)
    error = caught.value
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", "max_tokens") and error.code


class Unreliable(http.server.BaseHTTPRequestHandler):
    """Answers the next of `answers`, (status, headers, body), and records the request."""

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(self.headers)
        status, headers, body = self.server.answers.pop(0)
        time.sleep(self.server.delay)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def unreliable():
    server = http.server.HTTPServer(("127.0.0.1", 0), Unreliable)
    server.asked, server.answers, server.delay = [], [], 0
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    with additive_client.Client(f"http://127.0.0.1:{server.server_port}") as client:
        yield server, client
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_is_sent_again_with_its_key_and_a_final_error_is_raised(unreliable):
    server, client = unreliable
    server.answers += [(503, {"Retry-After": "0"}, b""), (429, {}, b"{}"), (200, {}, b'{"id": "ftjob-1"}')]
    assert client.jobs.create("additive", "file-1")["id"] == "ftjob-1"
    keys = {headers["Idempotency-Key"] for headers in server.asked}
    assert len(server.asked) == 3 and len(keys) == 1 and None not in keys
    server.answers += [(503, {}, b"no JSON")]
    with pytest.raises(additive_client.APIError) as caught:
        client.jobs.cancel("ftjob-1")  # not to be repeated
    assert caught.value.status == 503 and "no JSON" in str(caught.value) and not server.answers


def test_a_request_beyond_a_quota_is_not_sent_again(unreliable):
    server, client = unreliable
    server.answers += [(429, {"x-should-retry": "false"}, b'{"error": {"message": "quota"}}')]
    with pytest.raises(additive_client.APIError):
        client.jobs.create("additive", "file-1")
    assert len(server.asked) == 1


def test_statistics_are_waited_for_beyond_the_timeout_and_asked_once(unreliable):
    server, _ = unreliable
    server.delay = 0.5
    server.answers += [(200, {}, b'{"tokens": 3}'), (200, {}, b"{}")]
    with additive_client.Client(f"http://127.0.0.1:{server.server_port}", timeout=0.1) as client:
        assert client.files.statistics("file-1") == {"tokens": 3} and len(server.asked) == 1
        with pytest.raises(additive_client.ConnectionFailed):
            client.jobs.cancel("ftjob-1")  # another call, not to be repeated


def test_events_continue_after_the_last_one_when_the_stream_is_cut(unreliable):
    server, client = unreliable
    parts = [f"id: {n}\ndata: {json.dumps({'object': 'event', 'id': str(n)})}\n\n".encode() for n in range(3)]
    server.answers += [(200, {}, parts[0] + parts[1] + b"id: 2\ndata: {"), (200, {}, parts[2] + b"data: [DONE]\n\n")]
    assert [event["id"] for event in client.jobs.events("ftjob-1")] == ["0", "1", "2"]
    assert server.asked[1]["Last-Event-ID"] == "1"


def test_events_of_a_response_continue_after_their_sequence_number_and_end_with_it(unreliable):
    server, client = unreliable
    types = ["response.created", "response.output_text.delta", "response.failed"]
    parts = [f"event: {t}\ndata: {json.dumps({'type': t, 'sequence_number': n, 'response': {'status': 'failed'}})}\n\n".encode() for n, t in enumerate(types)]
    server.answers += [(200, {}, parts[0] + parts[1]), (200, {}, parts[2])]
    assert client.responses.wait("resp_1") == {"status": "failed"} and not server.answers
    assert "Last-Event-ID" not in server.asked[0] and server.asked[1]["Last-Event-ID"] == "1"
    server.answers += [(503, {}, b"{}")]
    with pytest.raises(additive_client.APIError):
        client.responses.create("m", "text", background=True)  # not to be repeated: it may have begun
    assert not server.answers


def test_a_job_is_paused_taken_up_and_cancelled(client):
    job = client.jobs.create("additive", client.files.upload(TEXT.encode(), "a.txt")["id"], additive=dict(SMALL, max_steps=1_000_000))["id"]
    assert client.jobs.pause(job)["status"] in ("paused", "pausing", "running")
    while client.jobs.get(job)["status"] != "paused":
        time.sleep(0.02)
    assert client.jobs.resume(job)["status"] != "paused" and client.jobs.cancel(job)["id"] == job
    assert client.jobs.wait(job, progress=False)["status"] == "cancelled"


@pytest.mark.parametrize("installed", [False, True])
def test_progress_is_a_line_for_each_event_or_a_bar_where_tqdm_is_installed(monkeypatch, capsys, installed):
    updates = []

    class Bar:
        n = 0

        def __init__(self, total, unit):
            updates.append((total, unit))

        def set_postfix(self, losses, refresh):
            updates.append(losses)

        def update(self, steps):
            self.n += steps
            updates.append(self.n)

        def close(self):
            updates.append("closed")

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=Bar) if installed else None)
    with Progress(True) as shown:
        shown.show({"step": 3, "total_steps": 9, "train_loss": 1.5})
        shown.show({"step": 7, "total_steps": 9, "train_loss": 1.25, "valid_loss": 2})
    lines = capsys.readouterr().err.splitlines()
    if installed:
        assert updates == [(9, "step"), {"train_loss": "1.500"}, 3, {"train_loss": "1.250", "valid_loss": "2.000"}, 7, "closed"] and not lines
    else:
        assert lines == ["step 3 of 9 train_loss 1.500", "step 7 of 9 train_loss 1.250 valid_loss 2.000"] and not updates


def test_every_operation_of_the_contract_has_a_call_or_a_reason_to_have_none():
    contract = yaml.load((PACKAGE.parents[1] / "proto" / "openapi.yaml").read_text(), Loader=yaml.CSafeLoader)
    operations = {node["operationId"]: (method.upper(), path) for path, methods in contract["paths"].items()
                  for method, node in methods.items() if "operationId" in node}
    source = (PACKAGE / "additive_client" / "calls.py").read_text() + (PACKAGE / "additive_client" / "_async.py").read_text()
    # The first constant part of a path: "/v1/files", "/v1/fine_tuning/jobs", …
    roots = {re.match(r"(/v1)?(/[a-z_-]+)+", path)[0] for _, path in operations.values() if path != "/"}
    without = {root for root in roots if f'"{root}' not in source}
    assert without == WITHOUT_CALLS, sorted(without ^ WITHOUT_CALLS)


@pytest.mark.slow
def test_the_package_installs_is_typed_and_its_readme_runs_as_written(service, tmp_path):
    def run(*command):
        done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    wheels = tmp_path / "wheels"
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, PACKAGE)
    (wheel,) = wheels.iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert "additive_client/py.typed" in names and "additive_client/torch/additive.py" in names and not any("test" in name for name in names)
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[progress,pandas]", "mypy==1.18.2")
    run(python, "-m", "mypy", "--config-file", PACKAGE / "pyproject.toml", "-p", "additive_client")
    blocks = [block.split("```")[0] for block in (PACKAGE / "README.md").read_text().split("```python\n")[1:]]
    assert len(blocks) > 9 and "import torch" in blocks[-1]
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        blocks.pop()
    (tmp_path / "corpus.txt").write_text(TEXT)
    (tmp_path / "readme.py").write_text("".join(blocks).replace("http://127.0.0.1:8080", service.url))
    said = run(python, "readme.py")
    assert "400 additive.batch_size" in said and "valid_loss" in said and "position" in said
    assert "<html" in (tmp_path / "explanation.html").read_text()
