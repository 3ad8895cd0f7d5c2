"""Functions that the answer of a session may call, and the snapshot of the state before the call."""

import json

import pytest

from conftest import SMALL

NOW = {"type": "function", "function": {"name": "now"}}
LAMP = {"type": "function", "function": {"name": "set_lamp", "parameters": {"type": "object", "required": ["on"], "properties": {"on": {"type": "boolean"}}}}}
TOOLS = [NOW, LAMP]
ASK = [{"role": "user", "content": "one two <tool_call>one two"}]
FIXED = {"temperature": 0, "parallel_tool_calls": False, "max_tokens": 400}


def make_caller(service):
    """A model that writes two words and the mark of a call."""
    config = {**SMALL["config"], "n_positions": 2048, "window_sizes": [4, 7, 2048]}
    done = service.wait_job(service.job(steps=150, text="one two <tool_call>" * 400, config=config)["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]


@pytest.fixture(scope="module")
def caller(service):
    return make_caller(service)


def opened(service, model, **options):
    return service.ok("POST", "/v1/sessions", {"model": model, **options})["id"]


def said(service, session, **ask):
    answer = service.ok("POST", f"/v1/sessions/{session}/generate", {**FIXED, **ask})
    return answer["choices"][0], answer["session"]


def calls_of(choice):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in choice.get("tool_calls", [])]


def snapshots(service, session):
    return service.ok("GET", f"/v1/sessions/{session}/snapshots")["data"]


def test_the_answer_of_a_session_calls_as_that_of_a_chat(service, caller):
    chat = service.ok("POST", "/v1/chat/completions", {"model": caller, "messages": ASK, "tools": TOOLS, **FIXED})["choices"][0]
    x = opened(service, caller)
    choice, at = said(service, x, messages=ASK, tools=TOOLS)
    assert choice["finish_reason"] == chat["finish_reason"] == "tool_calls" and choice["text"] == chat["message"]["content"]
    assert calls_of(choice) == calls_of(chat["message"]) != [] and "call_snapshot" not in at and snapshots(service, x) == []
    # The result continues the conversation, of a session as of a chat.
    call = choice["tool_calls"][0]
    result = [{"role": "tool", "tool_call_id": call["id"], "content": "one two"}]
    more, _ = said(service, x, messages=result, tools=TOOLS, max_tokens=20)
    whole = [*ASK, {"role": "assistant", "content": choice["text"], "tool_calls": choice["tool_calls"]}, *result]
    again = service.ok("POST", "/v1/chat/completions", {"model": caller, "messages": whole, "tools": TOOLS, **FIXED, "max_tokens": 20})["choices"][0]
    assert more["text"] == (again["message"]["content"] or "")


def test_a_stream_has_the_same_calls(service, caller):
    whole, _ = said(service, opened(service, caller), messages=ASK, tools=TOOLS)
    x = opened(service, caller, snapshot_before_calls=True)
    raw = service.ok("POST", f"/v1/sessions/{x}/generate", {**FIXED, "messages": ASK, "tools": TOOLS, "stream": True})
    chunks = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    text = "".join(c["choices"][0]["text"] for c in chunks)
    calls = []
    for part in (p for c in chunks for p in c["choices"][0].get("tool_calls", [])):
        if "id" in part:
            calls.append([part["function"]["name"], ""])
        calls[part["index"]][1] += part["function"]["arguments"]
    assert (text, [tuple(c) for c in calls]) == (whole["text"], calls_of(whole))
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["session"]["call_snapshot"] == snapshots(service, x)[0]["id"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_session_returns_to_the_state_before_a_call(service, caller, durable):
    x = opened(service, caller, snapshot_before_calls=True, durable=durable)
    assert service.ok("GET", f"/v1/sessions/{x}")["snapshot_before_calls"] is True
    choice, at = said(service, x, messages=ASK, tools=TOOLS)
    kept, = snapshots(service, x)
    assert kept["automatic"] and at["call_snapshot"] == kept["id"] == f"call-{kept['tokens']}" and kept["tokens"] < at["tokens"]
    # A session that has never called: the same text up to the call.
    other = opened(service, caller)
    prompt = service.ok("POST", f"/v1/sessions/{other}/generate", {"messages": ASK, "tools": TOOLS, "max_tokens": 1, "temperature": 0})["usage"]["prompt_tokens"]
    other = opened(service, caller)
    before, _ = said(service, other, messages=ASK, tools=TOOLS, tool_choice="none", max_tokens=kept["tokens"] - prompt)
    assert before["text"].rstrip() == choice["text"].rstrip()
    back = service.ok("POST", f"/v1/sessions/{x}/rollback", {"snapshot": kept["id"]})
    assert back["tokens"] == kept["tokens"] == service.ok("GET", f"/v1/sessions/{other}")["tokens"]
    fork = service.ok("POST", f"/v1/sessions/{x}/fork", {"snapshot": kept["id"]})["id"]
    assert service.ok("GET", f"/v1/sessions/{fork}")["snapshot_before_calls"] is True
    for way in ({"tools": TOOLS}, {"tools": [NOW], "tool_choice": "required", "seed": 3, "temperature": 1}, {"seed": 5, "temperature": 1, "max_tokens": 30}):
        here, there = ([said(service, s, **way)[0] for s in (service.ok("POST", f"/v1/sessions/{y}/fork", {})["id"],)][0] for y in (x, other))
        assert (here["text"], calls_of(here), here["finish_reason"]) == (there["text"], calls_of(there), there["finish_reason"])
    again, at = said(service, x, tools=TOOLS)
    assert calls_of(again) == calls_of(choice) and at["call_snapshot"] == kept["id"]


def test_a_required_call_begins_the_answer(service, caller):
    x = opened(service, caller, snapshot_before_calls=True)
    choice, at = said(service, x, messages=ASK, tools=[NOW], tool_choice="required")
    usage = service.ok("POST", f"/v1/sessions/{opened(service, caller)}/generate", {"messages": ASK, "tools": [NOW], "max_tokens": 1})["usage"]
    assert calls_of(choice) == [("now", "{}")]
    assert at["call_snapshot"] == f"call-{usage['prompt_tokens'] + 1}"  # a line end comes before the mark


def test_answers_without_a_call_keep_nothing_and_the_newest_eight_stay(service, caller):
    x = opened(service, caller, snapshot_before_calls=True)
    choice, at = said(service, x, messages=ASK, tools=TOOLS, tool_choice="none", max_tokens=30)
    assert "tool_calls" not in choice and "call_snapshot" not in at and snapshots(service, x) == []
    made = [said(service, x, messages=ASK, tools=[NOW], tool_choice="required")[1]["call_snapshot"] for _ in range(10)]
    assert [s["id"] for s in snapshots(service, x)] == made[:1:-1]


def test_what_has_no_meaning_is_refused_by_its_name(service, caller):
    x = opened(service, caller)
    said(service, x, messages=ASK, max_tokens=2)
    empty = opened(service, caller)
    for session, ask, param in ((x, {"prompt": "a", "tools": TOOLS}, "tools"), (empty, {"tools": TOOLS}, "tools"), (x, {"messages": ASK, "tools": TOOLS, "logprobs": 1}, "logprobs"),
                                (x, {"messages": ASK, "tool_choice": "required"}, "tool_choice"), (x, {"tools": [NOW, NOW]}, "tools[1].function.name"),
                                (x, {"messages": ASK, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice"),
                                (x, {"messages": ASK, "tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format")):
        status, answer, _ = service.request("POST", f"/v1/sessions/{session}/generate", {**FIXED, **ask})
        assert (status, answer["error"]["param"]) == (400, param), (ask, answer)
    for options in ({"explain": True}, {"snapshot_before_calls": 1}):
        status, answer, _ = service.request("POST", "/v1/sessions", {"model": caller, "snapshot_before_calls": True, **options})
        assert (status, answer["error"]["param"]) == (400, "snapshot_before_calls"), answer


def test_the_snapshot_of_a_durable_session_survives_a_kill_once_the_call_is_answered(own_service):
    model = make_caller(own_service)
    x = opened(own_service, model, snapshot_before_calls=True, durable=True)
    first, at = said(own_service, x, messages=ASK, tools=TOOLS)
    known = snapshots(own_service, x)
    own_service.kill_engine()
    assert snapshots(own_service, x) == known and own_service.ok("GET", f"/v1/sessions/{x}")["snapshot_before_calls"] is True
    own_service.ok("POST", f"/v1/sessions/{x}/rollback", {"snapshot": at["call_snapshot"]})
    again, _ = said(own_service, x, tools=TOOLS)
    assert calls_of(again) == calls_of(first) != []
