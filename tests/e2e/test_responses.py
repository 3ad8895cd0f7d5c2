"""Responses in the background with the command line and the Python client."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import BIN
from terminal import additive

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "clients" / "python"))
import additive_client  # noqa: E402

# The model prefers letters to the digit, so the text does not end by itself.
ENDLESS = {"input": "9 bottles", "temperature": 0, "max_output_tokens": 1000000, "background": True,
           "structured_outputs": {"regex": "[a-z ]*1"}}


@pytest.fixture(scope="module")
def model(service):
    done = service.wait_job(service.job(steps=60, architecture="rwkv")["id"])  # its texts may have any length
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]


def text_of(response):
    return response["output"][0]["content"][0]["text"]


def run(service, *words, **kw):
    return additive("responses", *words, url=service.url, **kw)


def test_the_command_line_creates_shows_follows_and_deletes(service, model):
    options = ["--model", model, "--max-tokens", "8", "--seed", "1"]
    made = run(service, "create", *options, "9 bottles")
    assert made.returncode == 0 and "Created response: resp_" in made.stderr and made.stdout
    id = run(service, "create", *options, "--detach", "9 bottles").stdout.strip()
    followed = run(service, "follow", id)
    assert (followed.returncode, followed.stdout) == (0, made.stdout)
    shown = json.loads(run(service, "show", id, "--json").stdout)
    assert shown["status"] in ("completed", "incomplete") and text_of(shown) == made.stdout
    events = [json.loads(line) for line in run(service, "follow", id, "--json").stdout.splitlines()]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[-1]["response"]["status"] == shown["status"]
    assert "9 bottles" in run(service, "input", id).stdout
    continued = run(service, "create", *options, "--previous", id, "--detach", "--json", "more")
    assert json.loads(continued.stdout)["previous_response_id"] == id
    assert run(service, "delete", id).returncode == 0
    gone = run(service, "follow", id)
    assert gone.returncode == 1 and not gone.stdout and id in gone.stderr
    piped = run(service, "create", *options, "--detach", input="9 bottles")
    assert json.loads(run(service, "input", piped.stdout.strip(), "--json").stdout)["data"][0]["content"][0]["text"] == "9 bottles"
    assert run(service, "create", "9 bottles").returncode == 2
    refused = run(service, "create", "--model", "none", "9 bottles")
    assert refused.returncode == 1 and "none" in refused.stderr


def test_a_followed_response_continues_after_the_front_end_was_killed(service, model):
    id = service.ok("POST", "/v1/responses", {"model": model, **ENDLESS})["id"]
    command = subprocess.Popen([BIN / "additive", "responses", "follow", id], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**os.environ, "ADDITIVE_URL": service.url})
    text = os.read(command.stdout.fileno(), 64)
    service.kill("additive-httpd")
    # More than the dead connection and both pipes can hold.
    while len(text) < 100_000:
        text += os.read(command.stdout.fileno(), 1 << 16)
    assert run(service, "cancel", id).returncode == 0
    rest, errors = command.communicate(timeout=60)
    assert command.returncode == 1 and b"the response is cancelled" in errors, errors
    assert (text + rest).decode() == text_of(json.loads(run(service, "show", id, "--json").stdout))


def test_the_python_client_has_responses(service, model):
    options = {"max_output_tokens": 8, "seed": 1}
    with additive_client.Client(service.url) as client:
        whole = client.responses.create(model, "9 bottles", **options)
        made = client.responses.create(model, "9 bottles", background=True, **options)
        assert made["status"] == "queued" and made["output"] == []
        ended = client.responses.wait(made["id"])
        assert text_of(ended) == text_of(whole) and text_of(client.responses.get(made["id"])) == text_of(whole)
        events = list(client.responses.events(made["id"]))
        assert "".join(e.get("delta", "") for e in events) == text_of(whole)
        assert list(client.responses.events(made["id"], after=2)) == events[3:]
        assert [e["type"] for e in client.responses.stream(model, "9 bottles", **options)] == [e["type"] for e in events if e["type"] != "response.queued"]
        assert client.responses.input(made["id"])[0]["content"][0]["text"] == "9 bottles"
        running = client.responses.create(model, **ENDLESS)["id"]
        assert client.responses.cancel(running)["status"] == "cancelled" == client.responses.wait(running)["status"]
        assert client.responses.delete(made["id"])["deleted"]
        with pytest.raises(additive_client.APIError) as gone:
            client.responses.get(made["id"])
        assert gone.value.status == 404
