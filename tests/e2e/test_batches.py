"""Batches over HTTP: answers conform to the contract; the command line, the Python client, OpenAI's client."""

import json
import pathlib
import sys
import time

import openai
import pytest

from test_explain import additive
from test_faithfulness import fits

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "clients" / "python"))
import additive_client  # noqa: E402

URL = "/v1/completions"


def requests(model, n, tokens=4):
    return "".join(json.dumps({"custom_id": f"r{i}", "method": "POST", "url": URL,
                               "body": {"model": model, "prompt": f"{i}", "max_tokens": tokens}}) + "\n" for i in range(n))


def test_the_openai_client_runs_a_batch(service, client, model):
    file = client.files.create(file=("requests.jsonl", requests(model, 3).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h", metadata={"a": "b"})
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.errors is None and batch.error_file_id is None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 3, 0)
    lines = [json.loads(x) for x in client.files.content(batch.output_file_id).text.splitlines()]
    assert [x["custom_id"] for x in lines] == ["r0", "r1", "r2"]
    assert all(x["response"]["body"]["object"] == "text_completion" for x in lines)
    assert batch.id in [b.id for b in client.batches.list(limit=1)]
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)
    many = client.files.create(file=("requests.jsonl", requests(model, 4000).encode()), purpose="batch")
    waiting = client.batches.create(input_file_id=many.id, endpoint=URL, completion_window="24h")
    assert client.batches.cancel(waiting.id).status in ("cancelling", "cancelled")
    status, one, _ = service.request("GET", f"/v1/batches/{batch.id}")
    assert fits(one, "Batch")["id"] == batch.id and status == 200
    assert fits(service.ok("GET", "/v1/batches"), "BatchList")["data"]


def test_the_command_line_runs_a_batch(service, model, tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text(requests(model, 3) + "wrong\n")
    output, errors = tmp_path / "output.jsonl", tmp_path / "errors.jsonl"
    done = additive(service, "batch", file, "--endpoint", URL, "--output", output, "--errors", errors)
    assert done.returncode == 1 and "1 requests failed" in done.stderr and "Created batch: batch_" in done.stderr
    assert [json.loads(x)["custom_id"] for x in output.read_text().splitlines()] == ["r0", "r1", "r2"]
    assert json.loads(errors.read_text())["error"]["code"] == "invalid_json"
    file.write_text(requests(model, 2))
    detached = additive(service, "batch", file, "--endpoint", URL, "--detach")
    id = detached.stdout.strip()
    watched = additive(service, "batches", "watch", id)
    assert watched.returncode == 0 and [json.loads(x)["custom_id"] for x in watched.stdout.splitlines()] == ["r0", "r1"]
    assert id in additive(service, "batches", "list").stdout and "completed" in additive(service, "batches", "show", id).stdout
    assert additive(service, "batches", "cancel", id).returncode == 1
    assert additive(service, "batches", "delete", id).returncode == 0
    assert additive(service, "batch", file).returncode == 2
    file.write_text("no requests\n")
    failed = additive(service, "batch", file, "--endpoint", URL)
    assert failed.returncode == 1 and "line 1: " in failed.stderr


def test_the_python_client_runs_a_batch(service, model):
    with additive_client.Client(service.url) as client:
        file = client.files.upload((requests(model, 2) + "wrong\n").encode(), "requests.jsonl", purpose="batch")["id"]
        made = client.batches.create(file, URL)
        done = client.batches.wait(made["id"], progress=False)
        assert done["status"] == "completed" and done["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert [x["custom_id"] for x in client.batches.results(made["id"])] == ["r0", "r1", None]
        assert made["id"] in [b["id"] for b in client.batches.list()]
        with pytest.raises(additive_client.APIError):
            client.batches.cancel(made["id"])
        assert client.batches.delete(made["id"])["deleted"]
