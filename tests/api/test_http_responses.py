"""Kept generations over HTTP: what a client that leaves, a front end that is killed and an engine that stops leave of them."""

import http.client
import json
import signal
import threading

import openai
import pytest

from engine_client import Daemon, train
from http_support import Front, wait_for

TOKENS = 120
MANY = 600  # connections of this host
# The model prefers letters to the digit, so a text of this form does not end by itself.
ENDLESS = {"temperature": 0, "max_output_tokens": 1000000, "extra_body": {"structured_outputs": {"regex": "[a-z ]*1"}}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("responses") / "data", "--max-generations", MANY, "--max-sessions", MANY,
                "--responses-owner-bytes", 1 << 28) as d:
        yield d


@pytest.fixture(scope="module")
def model(daemon):
    with daemon.connect() as e:
        return train(e, steps=60, architecture="rwkv")  # its texts may have any length


@pytest.fixture(scope="module")
def front(daemon):
    front = Front(daemon.address, "--max-connections-per-ip", MANY)
    yield front
    front.close()


@pytest.fixture
def client(front):
    return front.openai()


# The three forms: the path, and the members of a request.
FORMS = {"/v1/completions": {"prompt": "Once", "max_tokens": TOKENS},
         "/v1/chat/completions": {"messages": [{"role": "user", "content": "Once"}], "max_completion_tokens": TOKENS},
         "/v1/responses": {"input": "Once", "max_output_tokens": TOKENS}}


def request_of(path, model, seed, tokens=TOKENS, **more):
    ask = FORMS[path]
    return {"model": model, "seed": seed, "temperature": 1, **ask, next(k for k in ask if "tokens" in k): tokens, **more}


def data_of(lines):
    """The events of a stream, complete ones only, as objects with their numbers; and whether it ended."""
    events, number, done = [], None, False
    for line in lines:
        if line.startswith("id: "):
            number = int(line[4:])
        elif line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            assert "error" not in event or "sequence_number" in event, event
            events.append((event.get("sequence_number", number), event))
            done |= event.get("type") in ("response.completed", "response.incomplete")
    return events, done


class Reader(threading.Thread):
    """Reads a stream until it ends or breaks."""

    def __init__(self, front, method, path, body=None):
        super().__init__()
        self.connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
        self.arguments, self.lines, self.where = (method, path, body and json.dumps(body), {"Content-Type": "application/json"}), [], None
        self.start()

    def run(self):
        try:
            self.connection.request(*self.arguments)
            response = self.connection.getresponse()
            assert response.status == 200, response.read()
            self.where = response.headers["Content-Location"]
            for line in response:
                if line.endswith(b"\n"):
                    self.lines.append(line.decode().rstrip("\n"))
        except (http.client.HTTPException, OSError):
            pass

    def events(self):
        self.join(60)
        assert not self.is_alive()
        complete = self.lines[:len(self.lines) - next((i for i, x in enumerate(reversed(self.lines)) if x == ""), len(self.lines))]
        return data_of(complete)


def text_of(path, events):
    if path == "/v1/responses":
        return "".join(e["delta"] for _, e in events if e["type"] == "response.output_text.delta")
    pieces = [e["choices"][0] for _, e in events if e["choices"]]
    return "".join(p["text"] if "text" in p else p["delta"].get("content", "") for p in pieces)


def whole_text(path, answer):
    if path == "/v1/responses":
        return answer["output"][0]["content"][0]["text"]
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("streams, tokens", [(24, TOKENS), pytest.param(500, 1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", FORMS)
def test_streams_of_a_front_end_that_is_killed_continue_on_another(daemon, front, model, path, streams, tokens):
    # A text that is kept with its state ends with whole characters: the state has the rest.
    kept = {"store": True} if path == "/v1/responses" else {}
    expected = [whole_text(path, front.post(path, request_of(path, model, seed, tokens, **kept), timeout=60).json) for seed in range(streams)]
    killed = Front(daemon.address, "--max-connections-per-ip", MANY)
    readers = [Reader(killed, "POST", path, request_of(path, model, seed, tokens, background=True, stream=True)) for seed in range(streams)]
    wait_for(lambda: all(len(r.lines) > 6 for r in readers), 60, "the beginning of each stream")
    killed.stop(signal.SIGKILL)
    cut = 0
    for seed, reader in enumerate(readers):
        events, done = reader.events()
        cut += not done
        events = events[:min(6 + seed % 100, len(events) - 1)]  # the last ones may be lost with the front end
        last, first = events[-1][0], events[0][1]
        where = f"{path}/{first['response']['id'] if path == '/v1/responses' else first['id']}"
        assert reader.where in (None, where)
        rest, ended = Reader(front, "GET", f"{where}?stream=true&starting_after={last}").events()
        assert ended, (events + rest)[-1]
        numbers = [n for n, _ in events + rest]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert text_of(path, events + rest) == expected[seed]
        again, _ = Reader(front, "GET", f"{where}?stream=true").events()
        assert again == events + rest
        assert whole_text(path, front.get(where).json) == expected[seed]
    print(f"{path}: {cut} of {streams} streams were cut")
    killed.process.stdout.close()
    killed.process.stderr.close()


def test_last_event_id_continues_a_completion(front, model):
    made = front.post("/v1/completions", {"model": model, "prompt": "Once", "temperature": 0, "background": True, "stream": True})
    events, _ = data_of(made.body.decode().split("\n"))
    where = made.headers["Content-Location"]
    rest, done = data_of(front.get(where, headers={"Last-Event-ID": "7"}).body.decode().split("\n"))
    assert done and rest == events[7:] and rest[0][0] == 8
    for name, given in (("Last-Event-ID", {"headers": {"Last-Event-ID": "x"}}), ("starting_after", {})):
        answer = front.get(where + ("?starting_after=-1" if name == "starting_after" else ""), **given)
        assert (answer.status, answer.error["param"]) == (400, name)
    assert front.get(where + "?stream=maybe").error["param"] == "stream"


@pytest.mark.parametrize("more", [{"best_of": 3, "n": 2}, {"prompt_logprobs": 1}])
def test_a_completion_that_cannot_be_streamed_is_only_shown_whole(front, model, more):
    made = front.post("/v1/completions", {"model": model, "prompt": "Once", "max_tokens": 4, "background": True, **more}).json
    for query in ("?stream=true", "?starting_after=0"):
        answer = front.get(f"/v1/completions/{made['id']}{query}")
        assert (answer.status, answer.error["param"]) == (400, "stream")
    where = f"/v1/completions/{made['id']}"
    wait_for(lambda: front.get(where).json["status"] == "completed", what="the end")
    assert len(front.get(where).json["choices"]) == more.get("n", 1)


def test_a_chat_continues_after_each_of_its_chunks(front, model):
    path = "/v1/chat/completions"
    made = front.post(path, request_of(path, model, 1, 8, background=True, stream=True))
    events, _ = data_of(made.body.decode().split("\n"))
    for n in range(len(events) + 1):
        rest, done = data_of(front.get(f"{made.headers['Content-Location']}?starting_after={n}").body.decode().split("\n"))
        assert done and rest == events[n:]


def test_a_client_that_does_not_ask_for_the_background_cancels_as_before(daemon, front, model):
    s = front.open_stream("/v1/completions", {"model": model, "prompt": "x", "max_tokens": 1000000, "stream": True})
    s.recv(1000)
    s.close()
    with daemon.connect() as e:
        wait_for(lambda: e.call("engine.status")["running"] == 0, what="the end of the generation")


def finished(client, response):
    wait_for(lambda: client.responses.retrieve(response.id).status not in ("queued", "in_progress"), 30, "the end")
    return client.responses.retrieve(response.id)


def test_the_openai_client_creates_reads_cancels_and_deletes(client, model):
    ask = {"model": model, "input": "Once", "temperature": 0, "max_output_tokens": 30}
    plain = client.responses.create(**ask)
    assert (plain.store if hasattr(plain, "store") else False) is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(plain.id)
    made = client.responses.create(background=True, **ask)
    assert (made.status, made.background, made.output, made.usage) == ("queued", True, [], None)
    done = finished(client, made)
    assert (done.status, done.output_text, done.created_at) == ("incomplete", plain.output_text, made.created_at)
    assert done.usage.output_tokens == 30
    events = list(client.responses.retrieve(made.id, stream=True))
    kinds = [e.type for e in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"] and kinds[-1] == "response.incomplete"
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[-1].response.to_dict() == done.to_dict()
    assert list(client.responses.retrieve(made.id, stream=True, starting_after=9)) == events[10:]
    streamed = list(client.responses.create(background=True, stream=True, **ask))
    assert [e.type for e in streamed] == kinds
    long = client.responses.create(model=model, input="x", background=True, **ENDLESS)
    assert client.responses.cancel(long.id).status == "cancelled"
    assert list(client.responses.retrieve(long.id, stream=True))[-1].type == "response.cancelled"
    assert [i.content[0].text for i in client.responses.input_items.list(made.id)] == ["Once"]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_stored_response_is_continued_from_its_state(client, model):
    # A template trims blanks; so no answer begins or ends with others than it writes itself.
    ask = {"model": model, "temperature": 0, "max_output_tokens": 20, "extra_body": {"structured_outputs": {"regex": " [a-z]{30}"}}}
    first = client.responses.create(input="Once", store=True, **ask)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    then = client.responses.create(input="more", previous_response_id=first.id, **ask)
    conversation = [{"role": "user", "content": "Once"}, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "more"}]
    whole = client.responses.create(input=conversation, **ask)
    assert (then.output_text, then.previous_response_id) == (whole.output_text, first.id)
    assert then.usage.input_tokens < whole.usage.input_tokens - 20
    for previous in ("resp_1", "cmpl-1"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(input="more", previous_response_id=previous, **ask)
        assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="x", store=False, background=True, **ask)
    assert caught.value.param == "store"


def test_a_failure_in_the_background_has_its_reason(daemon, client):
    with daemon.connect() as e:
        model = train(e, steps=1)
    made = client.responses.create(model=model, input="99 bottles " * 20000, background=True)
    done = finished(client, made)
    assert (done.status, done.error.code, done.output) == ("failed", "invalid_prompt", [])
    assert list(client.responses.retrieve(made.id, stream=True))[-1].type == "response.failed"
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="none", input="x", background=True)
    assert caught.value.param == "model"


def test_an_id_is_only_known_under_its_path(front, model):
    made = front.post("/v1/chat/completions", request_of("/v1/chat/completions", model, 1, background=True)).json
    assert made["status"] == "queued"
    assert front.get(f"/v1/completions/{made['id']}").status == 404
    assert front.get(f"/v1/responses/{made['id']}").status == 404
    assert front.request("DELETE", f"/v1/chat/completions/{made['id']}").json == {
        "id": made["id"], "object": "chat.completion.deleted", "deleted": True}


def test_after_kill_9_complete_responses_are_there_and_interrupted_ones_have_failed(tmp_path):
    daemon = Daemon(tmp_path / "data")
    with daemon.connect() as e:
        model = train(e, steps=30, architecture="rwkv")
    front = Front(daemon.address)
    client = front.openai()
    ask = {"model": model, "input": "Once", "temperature": 0, "max_output_tokens": 30}
    stored = client.responses.create(store=True, **ask)
    done = finished(client, client.responses.create(background=True, **ask))
    now = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "string", "enum": ["CET", "UTC"]}}, "required": ["zone"]}}
    calls = client.responses.create(store=True, tools=[now], tool_choice="required", parallel_tool_calls=False, **{**ask, "max_output_tokens": 300})
    assert [c.type for c in calls.output] == ["function_call"] and calls.status == "completed"
    cut = client.responses.create(model=model, input="x", background=True, **ENDLESS)
    wait_for(lambda: client.responses.retrieve(cut.id).status == "in_progress", what="its first token")
    daemon.kill()
    daemon.start()
    wait_for(lambda: front.get("/readyz").status == 200, 20, "the engine")
    assert client.responses.retrieve(stored.id).to_dict() == stored.to_dict()
    assert client.responses.retrieve(done.id).to_dict() == done.to_dict()
    failed = client.responses.retrieve(cut.id)
    assert (failed.status, failed.error.code, failed.output) == ("failed", "server_error", [])
    assert client.responses.create(previous_response_id=stored.id, **ask).output_text
    assert client.responses.retrieve(calls.id).to_dict() == calls.to_dict()
    result = {"type": "function_call_output", "call_id": calls.output[0].call_id, "output": "7"}
    assert client.responses.create(previous_response_id=calls.id, **{**ask, "input": [result]}).output_text
    front.close()
    assert daemon.stop() == 0
