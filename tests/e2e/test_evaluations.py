"""Evaluations of models over HTTP: every answer conforms to the contract; events, the command line, the Python
client."""

import json
import re
import pathlib
import sys

import pytest

from conftest import TEXT
from test_explain import additive
from test_faithfulness import fits

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "clients" / "python"))
import additive_client  # noqa: E402

SONG = TEXT[:3000]


def wait(service, evaluation):
    while evaluation["finished_at"] is None:
        evaluation = fits(service.ok("GET", f"/v1/evaluations/{evaluation['id']}"), "Evaluation")
    return evaluation


def test_an_evaluation_is_what_the_contract_says(service, model):
    request = {"model": model, "file": service.upload(SONG), "context": "sliding", "length": 64, "stride": 32}
    done = wait(service, fits(service.ok("POST", "/v1/evaluations", request), "Evaluation"))
    assert done["status"] == "succeeded" and done["result"]["tokens"] == len(SONG) - 1 and len(done["result"]["rows"]) == 20
    path = f"/v1/evaluations/{done['id']}"
    assert fits(service.ok("GET", "/v1/evaluations?limit=1"), "EvaluationList")["data"] == [done]
    events = fits(service.ok("GET", path + "/events?order=asc"), "EvaluationEventList")["data"]
    _, raw, head = service.request("GET", path + "/events?stream=true")
    sent = [line[len("data: "):] for line in raw.decode().split("\n") if line.startswith("data: ")]
    assert "text/event-stream" in head["Content-Type"] and sent.pop() == "[DONE]" and [json.loads(s) for s in sent] == events
    _, raw, _ = service.request("GET", path + "/events?stream=true", headers={"Last-Event-ID": events[-1]["id"]})
    assert raw.decode().split() == ["data:", "[DONE]"]
    assert service.request("GET", "/v1/evaluations/none/events?stream=true")[0] == 404
    assert service.request("POST", path + "/cancel")[0] == 409
    assert service.request("DELETE", path)[0] == 200 and service.request("GET", path)[0] == 404


@pytest.mark.parametrize("wrong, param", [({"stride": 64}, "stride"), ({"length": 1}, "length"), ({"context": "x"}, "context"), ({"top": -1}, "top")])
def test_a_wrong_field_is_named(service, model, wrong, param):
    status, body, _ = service.request("POST", "/v1/evaluations", {"model": model, "file": service.upload(SONG), "context": "sliding", "length": 64, **wrong})
    assert status == 400 and body["error"]["param"] == param


def test_a_model_or_an_evaluation_that_does_not_exist_is_named_before_a_text_is_sent(service, model, tmp_path):
    text = tmp_path / "unsent.txt"
    text.write_text(SONG * 2)
    out = additive(service, "evaluate", model + "x", text)
    assert out.returncode == 1 and f"(did you mean {model}?)" in out.stderr
    assert "unsent.txt" not in [f["filename"] for f in service.ok("GET", "/v1/files")["data"]]
    id = additive(service, "evaluate", model, text, "--detach").stdout.strip()
    out = additive(service, "evaluations", "watch", id[:-1])
    assert out.returncode == 1 and f"(did you mean {id}?)" in out.stderr


def test_the_shell_evaluates_a_file(service, model, tmp_path):
    text = tmp_path / "song.txt"
    text.write_text(SONG)
    out = additive(service, "evaluate", model, text, "--context", "blocks", "--length", 50, "--top", 3)
    assert out.returncode == 0, out.stderr
    job = json.loads(additive(service, "evaluations", "list", "--json").stdout)["data"][0]
    report = job["result"]
    assert f"tokens {report['tokens']}, bytes {report['bytes']}, nats_per_token {report['nats_per_token']:.5g}" in out.stdout
    for word in ("perplexity", "bits_per_byte", "accuracy", "TOKENS BEFORE", "32 - 63", "LIKELIEST"):
        assert word in out.stdout, word
    assert "100%" in out.stderr and f"Created evaluation: {job['id']}" in out.stderr
    worst = report["rows"][0]
    assert re.search(f"'{re.escape(worst['token']['text'])}' +'{re.escape(worst['likeliest']['text'])}' ", out.stdout)
    detached = additive(service, "evaluate", model, job["file"], "--detach")
    id = detached.stdout.strip()
    watched = json.loads(additive(service, "evaluations", "watch", id, "--json").stdout)
    assert watched["status"] == "succeeded" and watched["file"] == job["file"]
    shown = additive(service, "evaluations", "show", id)
    assert shown.returncode == 0 and "32 - 63" in shown.stdout and "LIKELIEST" in shown.stdout and "{" not in shown.stdout
    assert additive(service, "evaluations", "cancel", id).returncode == 1
    assert additive(service, "evaluations", "delete", id).returncode == 0
    assert additive(service, "evaluate", model, text, "--context", "sliding", "--length", 10, "--stride", 10).returncode == 1
    assert additive(service, "evaluate", model).returncode == 2


def test_the_python_client_evaluates_a_file(service, model):
    with additive_client.Client(service.url) as client:
        file = client.files.upload(SONG.encode(), "song.txt")["id"]
        made = client.evaluations.create(model, file, context="blocks", length=64)
        done = client.evaluations.wait(made["id"], progress=False)
        assert done["status"] == "succeeded" and done["result"]["perplexity"] > 1
        assert [e["message"] for e in client.evaluations.events(made["id"]) if e["type"] == "message"][-1] == "The evaluation is succeeded"
        assert made["id"] in [e["id"] for e in client.evaluations.list()]
        assert client.evaluations.delete(made["id"])["deleted"]
