"""Conversations, as OpenAI's own client has them, and in sessions."""

import json
import re

import openai
import pytest

from conftest import SMALL

# The end of an answer is a letter of the corpus, so that some answers end with it.
TEMPLATE = {"begin": ">", "system": {"prefix": "(", "suffix": ")"}, "user": {"prefix": "[", "suffix": "]"},
            "assistant": {"prefix": ":", "suffix": "o"}, "generation": ":", "stop": ["o"]}
ASK = dict(temperature=0, seed=1, extra_body={"logit_bias": {"1": -100}})


@pytest.fixture(scope="module")
def model(service):
    config = {**SMALL["config"], "n_positions": 512, "window_sizes": [4, 7, 64], "chat_template": TEMPLATE}
    done = service.wait_job(service.job(steps=30, config=config)["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]


def user(text):
    return {"role": "user", "content": text}


def refused(service, model, path="/v1/chat/completions", **body):
    status, answer, _ = service.request("POST", path, {"model": model, **body} if model else body)
    assert status == 400, answer
    return answer["error"]


# --- what is read ------------------------------------------------------------------------


def test_a_conversation_is_read_as_the_models_template_says(client, model):
    messages = [{"role": "system", "content": "be kind"}, user("99"), {"role": "assistant", "content": "beer"},
                {"role": "user", "content": [{"type": "text", "text": "98"}, {"type": "text", "text": " bottles"}]}]
    answer = client.chat.completions.create(model=model, messages=messages, max_completion_tokens=30, **ASK)
    same = client.completions.create(model=model, prompt=">(be kind)[99]:beero[98 bottles]:", max_tokens=30, stop="o", **ASK)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == same.choices[0].text
    assert answer.choices[0].finish_reason == same.choices[0].finish_reason
    assert answer.usage.total_tokens == same.usage.total_tokens


def test_the_template_stays_with_the_model(service, model):
    assert service.ok("GET", f"/v1/models/{model}")["additive"]["config"]["chat_template"] == TEMPLATE
    assert service.ok("GET", f"/v1/models/{model}/files/config.json")["chat_template"] == TEMPLATE


def test_a_long_conversation_is_read_like_a_short_one(client, model):
    messages = [user("9"), {"role": "assistant", "content": "b"}] * 40 + [user("8")]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=5, **ASK)
    same = client.completions.create(model=model, prompt=">" + "[9]:bo" * 40 + "[8]:", max_tokens=5, stop="o", **ASK)
    assert answer.choices[0].message.content == same.choices[0].text


# --- what is answered ------------------------------------------------------------------------


def test_a_stream_begins_with_the_role_and_brings_the_same_text(client, model):
    ask = dict(model=model, messages=[user("99 bottles")], n=2, max_tokens=12, temperature=0.8, seed=3, stop=["xyz"])
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    assert all(c.object == "chat.completion.chunk" for c in chunks)
    assert [c.choices[0].delta.role for c in chunks[:3]] == ["assistant", "assistant", None]
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(c.delta.content or "" for c in mine) == choice.message.content
        assert [c.finish_reason for c in mine if c.finish_reason] == [choice.finish_reason]
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage


def test_log_probabilities_have_the_form_of_chat(client, model):
    ask = dict(model=model, messages=[user("99 bottles")], max_tokens=6, logprobs=True, top_logprobs=3, temperature=0, stop=["xyz"])
    content = client.chat.completions.create(**ask).choices[0].logprobs.content
    assert 1 <= len(content) <= 6
    for token in content:
        assert bytes(token.bytes).decode() == token.token and token.logprob <= 0
        assert len(token.top_logprobs) == 3 and token.top_logprobs[0].logprob == token.logprob
    chunks = list(client.chat.completions.create(stream=True, **ask))
    pieces = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert [t for piece in pieces for t in piece] == content
    without = client.chat.completions.create(**{**ask, "top_logprobs": None}).choices[0].logprobs.content
    assert all(t.top_logprobs == [] for t in without)


def test_the_models_own_words_can_be_sent_back(client, model):
    first = client.chat.completions.create(model=model, messages=[user("99")], max_tokens=5, **ASK)
    messages = [user("99"), first.choices[0].message, user("98")]
    client.chat.completions.create(model=model, messages=messages, max_tokens=5, **ASK)


def test_a_system_message_is_read_once_for_many_conversations(client, model):
    system = {"role": "system", "content": "always count bottles of beer"}
    for i, text in enumerate(["99", "98", "97", "96"]):
        answer = client.chat.completions.create(model=model, messages=[system, user(text)], max_tokens=8, **ASK)
        same = client.completions.create(model=model, prompt=f">({system['content']})[{text}]:", max_tokens=8, stop="o", **ASK)
        assert answer.choices[0].message.content == same.choices[0].text
        assert answer.usage.prompt_tokens == same.usage.prompt_tokens
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert cached == (0 if i < 1 else len(f">({system['content']})"))


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("more, param", [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": {"contains": "b"}}}}}},
     "response_format.json_schema.schema.properties.a.contains"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"modalities": ["audio"]}, "modalities[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [user("x"), {"role": "assistant"}]}, "messages[1].content"),
    ({"messages": [user([{"type": "input_audio", "text": ""}])]}, "messages[0].content[0].type"),
    ({"messages": []}, "messages"),
    ({"n": 129}, "n"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
])
def test_what_would_change_the_answer_and_is_not_offered_is_refused_by_name(service, model, more, param):
    assert refused(service, model, **{"messages": [user("x")], **more})["param"] == param


def test_a_template_that_says_nothing_is_no_configuration(service):
    status, answer, _ = service.request("POST", "/v1/fine_tuning/jobs", {
        "model": "additive", "training_file": service.upload("text " * 100),
        "additive": {**SMALL, "config": {**SMALL["config"], "chat_template": {"user": {"suffix": 1}, "assistant": {}}}}})
    assert (status, answer["error"]["param"]) == (400, "additive.config.chat_template.user.suffix")


# --- what fits a format ----------------------------------------------------------------------------

PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"], "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 6}, "age": {"type": "integer"},
    "tags": {"type": "array", "items": {"enum": ["red", "green", 7]}, "maxItems": 3}, "on": {"type": ["boolean", "null"]}}}


def is_person(x):
    return (list(x) in (["name", "age", "tags"], ["name", "age", "tags", "on"]) and isinstance(x["name"], str)
            and 1 <= len(x["name"]) <= 6 and type(x["age"]) is int and len(x["tags"]) <= 3
            and all(t in ("red", "green", 7) for t in x["tags"]) and x.get("on") in (None, True, False))


def formatted(schema):
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}


def test_an_answer_fits_its_schema(client, model):
    ask = dict(model=model, messages=[user("99 bottles")], max_tokens=200, n=4, seed=3, temperature=1.5,
               response_format=formatted(PERSON), presence_penalty=0.5)
    answer = client.chat.completions.create(**ask)
    texts = [c.message.content for c in answer.choices]
    assert all(is_person(json.loads(t)) for t in texts) and len(set(texts)) > 1
    assert [c.finish_reason for c in answer.choices] == ["stop"] * 4
    parts = [""] * 4
    for chunk in client.chat.completions.create(stream=True, **ask):
        parts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert parts == texts
    greedy = client.chat.completions.create(**{**ask, "n": 1, "temperature": 0}).choices[0].message.content
    assert is_person(json.loads(greedy))


def test_json_is_an_object_or_cut_by_the_length(client, model):
    ask = dict(model=model, messages=[user("99")], temperature=1, response_format={"type": "json_object"})
    ends = set()
    for seed in range(12):
        one = client.chat.completions.create(max_tokens=60, seed=seed, **ask).choices[0]
        ends.add(one.finish_reason)
        if one.finish_reason == "stop":
            assert isinstance(json.loads(one.message.content), dict)
        assert one.message.content.lstrip()[0] == "{"
    assert "stop" in ends
    assert client.chat.completions.create(max_tokens=1, seed=1, **ask).choices[0].finish_reason == "length"
    stopped = client.chat.completions.create(max_tokens=60, seed=1, stop=["{"], **ask).choices[0]
    assert stopped.message.content.strip() == "" and stopped.finish_reason == "stop"


def test_completions_responses_and_sessions_fit_a_format_too(service, client, model):
    ask = dict(model=model, temperature=1, seed=2)
    whole = client.completions.create(prompt="99", max_tokens=200, logprobs=2, extra_body={"response_format": formatted(PERSON)}, **ask)
    assert is_person(json.loads(whole.choices[0].text)) and len(whole.choices[0].logprobs.tokens) == whole.usage.completion_tokens
    format = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
    response = client.responses.create(model=model, input="99", max_output_tokens=200, temperature=1, text={"format": format}, extra_body={"seed": 2})
    assert is_person(json.loads(response.output_text)) and response.text.format.name == "person"
    one = service.ok("POST", "/v1/sessions", {"model": model})["id"]
    for _ in range(2):  # each answer is a value of its own
        said = service.ok("POST", f"/v1/sessions/{one}/generate", {"prompt": "99", "max_tokens": 150, "seed": 5, "response_format": formatted(PERSON)})
        assert is_person(json.loads(said["choices"][0]["text"]))


def test_a_text_that_must_fit_is_written_by_a_trained_vocabulary_beside_other_texts(service, client):
    job = service.job(steps=2, tokenizer={"type": "bpe", "vocab_size": 300})
    done = service.wait_job(job["id"])
    assert done["status"] == "succeeded", done
    ask = dict(model=done["fine_tuned_model"], prompt=["99 bottles", "beer"], n=2, temperature=1, seed=1)
    free = client.completions.create(max_tokens=30, **ask)
    values = client.completions.create(max_tokens=40, extra_body={"response_format": formatted({"enum": ["beer", "bottles", 99]})}, **ask)
    assert {json.loads(c.text) for c in values.choices} <= {"beer", "bottles", 99}
    assert client.completions.create(max_tokens=30, **ask).choices == free.choices


DATE = r"(19|20)\d\d-[01]\d(é|日)?"
STRUCTURED = [
    ({"regex": DATE}, lambda t: re.fullmatch(DATE, t)),
    ({"choice": ["99 bottles", "99", "beer 日本"]}, lambda t: t in ("99 bottles", "99", "beer 日本")),
    ({"grammar": 'root ::= "[" word ("," word){1,2} "]"\nword ::= [a-f€]{1,4} | "\\"日\\""'},
     lambda t: re.fullmatch('\\[([a-f€]{1,4}|"日")(,([a-f€]{1,4}|"日")){1,2}\\]', t)),
    ({"json": PERSON}, lambda t: is_person(json.loads(t))),
    ({"json": True}, lambda t: [json.loads(t)]),
]


@pytest.mark.parametrize("outputs, fits", STRUCTURED, ids=[next(iter(o)) + str(i) for i, (o, _) in enumerate(STRUCTURED)])
def test_structured_outputs_are_never_outside_the_constraint(service, client, model, outputs, fits):
    more = {"extra_body": {"structured_outputs": outputs, "seed": 7}, "temperature": 1}
    ends = set()

    def check(text, reason):
        ends.add(reason)
        assert reason == "length" or fits(text), text

    for _ in range(2):  # compiled, then kept
        answer = client.chat.completions.create(model=model, messages=[user("99 bottles")], max_tokens=150, n=3, presence_penalty=0.5, **more)
        for c in answer.choices:
            check(c.message.content, c.finish_reason)
    whole = client.completions.create(model=model, prompt="99", max_tokens=150, n=3, **more)
    for c in whole.choices:
        check(c.text, c.finish_reason)
    parts = [""] * 3
    for chunk in client.completions.create(model=model, prompt="99", max_tokens=150, n=3, stream=True, **more):
        parts[chunk.choices[0].index] += chunk.choices[0].text
    assert parts == [c.text for c in whole.choices]
    response = client.responses.create(model=model, input="99", max_output_tokens=150, **more)
    check(response.output_text, {"completed": "stop"}.get(response.status, "length"))
    one = service.ok("POST", "/v1/sessions", {"model": model})["id"]
    for _ in range(2):
        said = service.ok("POST", f"/v1/sessions/{one}/generate", {"prompt": "99", "max_tokens": 150, "seed": 5, "structured_outputs": outputs})
        check(said["choices"][0]["text"], said["choices"][0]["finish_reason"])
    assert "stop" in ends
    cut = client.completions.create(model=model, prompt="99", max_tokens=1, **more).choices[0]
    assert cut.finish_reason == "length" or fits(cut.text)


@pytest.mark.parametrize("outputs, param, words", [
    ({}, "structured_outputs", "exactly one"),
    ({"regex": "a", "choice": ["a"]}, "structured_outputs", "exactly one"),
    ({"regex": "(a"}, "structured_outputs.regex", "( without a )"),
    ({"regex": r"\bword"}, "structured_outputs.regex", "\\b"),
    ({"regex": "(a{1000}){1000}"}, "structured_outputs.regex", "32768 states"),
    ({"regex": "[ab]*a[ab]{40}"}, "structured_outputs.regex", "32768 states"),
    ({"regex": "a" * 16385}, "structured_outputs.regex", "16384"),
    ({"choice": []}, "structured_outputs.choice", "1"),
    ({"choice": [1]}, "structured_outputs.choice[0]", "string"),
    ({"choice": ["a" * 20000, "b" * 20000]}, "structured_outputs.choice", "32768"),
    ({"grammar": "root ::= x"}, "structured_outputs.grammar", "line 1: the rule x is not defined"),
    ({"grammar": 'root ::= root "a" | "b"'}, "structured_outputs.grammar", "left recursion"),
    ({"json": False}, "structured_outputs.json", ""),
    ({"json": {"not": {}}}, "structured_outputs.json.not", "not implemented"),
    ({"regexp": "a"}, "structured_outputs.regexp", ""),
])
def test_structured_outputs_that_are_not_understood_are_refused_by_name(service, model, outputs, param, words):
    status, answer, _ = service.request("POST", "/v1/chat/completions", {"model": model, "messages": [user("x")], "structured_outputs": outputs})
    error = answer["error"]
    assert error["param"] == param and words in error["message"], error
    assert status == (413 if "32768" in words else 400)


def test_one_format_is_enough(service, model):
    for more, param in (({"response_format": {"type": "json_object"}}, "structured_outputs"), ({"num_beams": 2, "prompt": "x"}, "structured_outputs.choice")):
        error = service.request("POST", "/v1/completions", {"model": model, "prompt": "x", "structured_outputs": {"choice": ["a"]}, **more})[1]["error"]
        assert error["param"] == param
    answer = service.ok("POST", "/v1/completions", {"model": model, "prompt": "x", "response_format": {"type": "text"}, "structured_outputs": {"choice": ["a"]}})
    assert answer["choices"][0]["text"] == "a" and answer["choices"][0]["finish_reason"] == "stop"


# --- responses ---------------------------------------------------------------------------------------


def test_a_response_is_the_answer_of_a_chat(client, model):
    messages = [{"role": "system", "content": "be kind"}, user("99"), {"role": "assistant", "content": "beer"}, user("98")]
    chat = client.chat.completions.create(model=model, messages=messages, max_tokens=20, **ASK)
    history = [user("99"), {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "beer", "annotations": []}]},
               user([{"type": "input_text", "text": "98"}])]
    ask = dict(model=model, instructions="be kind", input=history, max_output_tokens=20, temperature=0,
               metadata={"a": "b"}, extra_body={"seed": 1})
    answer = client.responses.create(**ask)
    assert answer.object == "response" and answer.id.startswith("resp_") and answer.model == model
    assert answer.output_text.startswith(chat.choices[0].message.content[:1])
    assert (answer.usage.input_tokens, answer.usage.total_tokens) == (
        chat.usage.prompt_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
    assert answer.status == "completed" or answer.incomplete_details.reason == "max_output_tokens"
    assert answer.metadata == {"a": "b"} and answer.instructions == "be kind"
    events = list(client.responses.create(stream=True, **ask))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", answer.status]
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    assert len(deltas) == len(events) - 8
    assert "".join(e.delta for e in deltas) == answer.output_text == events[-4].text == events[-1].response.output_text
    assert events[-1].response.usage == answer.usage
    assert {e.item_id for e in deltas} == {events[-1].response.output[0].id}


def test_a_response_has_the_log_probabilities_of_a_chat(client, model):
    chat = client.chat.completions.create(model=model, messages=[user("99")], max_tokens=9, logprobs=True, top_logprobs=3, temperature=0)
    ask = dict(model=model, input="99", max_output_tokens=9, temperature=0, include=["message.output_text.logprobs"], top_logprobs=3)
    answer = client.responses.create(**ask)
    expected = [t.to_dict() for t in chat.choices[0].logprobs.content]
    assert expected and [t.to_dict() for t in answer.output[0].content[0].logprobs] == expected
    events = list(client.responses.create(stream=True, **ask))
    pieces = [[t.to_dict() for t in e.logprobs] for e in events if e.type == "response.output_text.delta"]
    assert [t for piece in pieces for t in piece] == expected
    done = next(e for e in events if e.type == "response.output_text.done")
    assert [t.to_dict() for t in done.logprobs] == expected
    assert client.responses.create(model=model, input="99", max_output_tokens=2).output[0].content[0].logprobs == []


def test_what_asks_for_nothing_changes_nothing(service, model):
    """As clients send it that write their whole request object."""
    chat = {"model": model, "messages": [user("99")], "max_tokens": 5, "temperature": 0}
    plain = service.ok("POST", "/v1/chat/completions", chat)["choices"]
    history = {"role": "user", "content": "99", "tool_calls": [], "function_call": None, "audio": None, "x": None}
    for more in ({"tools": [], "tool_choice": "none", "functions": [], "function_call": "none", "reasoning_effort": "high", "verbosity": "low"},
                 dict.fromkeys(("tools", "tool_choice", "audio", "modalities", "prediction", "logprobs", "stream_options", "stop", "web_search_options")),
                 {"messages": [history], "response_format": None}):
        assert service.ok("POST", "/v1/chat/completions", {**chat, **more})["choices"] == plain
    response = {"model": model, "input": "99", "max_output_tokens": 5, "temperature": 0}
    plain = service.ok("POST", "/v1/responses", response)["output"][0]["content"]
    for more in ({"tools": [], "tool_choice": "auto", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}},
                 dict.fromkeys(("tools", "reasoning", "text", "conversation", "prompt", "previous_response_id", "background"))):
        assert service.ok("POST", "/v1/responses", {**response, **more})["output"][0]["content"] == plain


def test_tool_calls_beside_content_are_refused_by_name_unless_they_are_empty(service, model):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ask = {"model": model, "max_tokens": 5, "temperature": 0}
    history = [user("99"), {"role": "assistant", "content": "b"}, user("98")]
    plain = service.ok("POST", "/v1/chat/completions", {**ask, "messages": history})["choices"]
    for empty in ([], None):
        history[1]["tool_calls"] = empty
        assert service.ok("POST", "/v1/chat/completions", {**ask, "messages": history})["choices"] == plain
    history[1]["tool_calls"] = [call]
    assert refused(service, model, messages=history)["param"] == "messages[1].tool_calls"


def test_a_large_input_is_read_as_a_small_one(client, model):
    with pytest.raises(openai.BadRequestError) as caught:  # it does not fit, which only its reader can know
        client.responses.create(model=model, input="99 bottles " * 20000, max_output_tokens=5)
    assert caught.value.param == "input"


@pytest.mark.parametrize("more, param", [
    ({"top_logprobs": 2}, "top_logprobs"), ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"), ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {"items": {"multipleOf": 0}}}}}, "text.format.schema.items.multipleOf"),
])
def test_a_response_that_is_more_than_text_is_refused_by_name(service, model, more, param):
    assert refused(service, model, "/v1/responses", **{"input": "x", **more})["param"] == param


# --- sessions -------------------------------------------------------------------------------------


def test_a_session_goes_on_with_new_messages_as_if_it_had_been_sent_all(service, client, model):
    """Answers of 3 tokens are cut; of 60, some end by themselves."""
    reasons = set()
    for longest in (3, 60):
        session = service.ok("POST", "/v1/sessions", {"model": model})["id"]
        whole = [{"role": "system", "content": "count"}]
        for said in ("99", "98", "97"):
            new = [*whole, user(said)] if len(whole) == 1 else [user(said)]
            whole.append(user(said))
            answer = service.ok("POST", f"/v1/sessions/{session}/generate",
                                {"messages": new, "max_tokens": longest, "temperature": 0, "logit_bias": {"1": -100}})
            same = client.chat.completions.create(model=model, messages=whole, max_tokens=longest, **ASK)
            assert answer["choices"][0]["text"] == same.choices[0].message.content
            assert answer["session"]["tokens"] == same.usage.prompt_tokens + answer["usage"]["completion_tokens"]
            reasons.add(answer["choices"][0]["finish_reason"])
            whole.append({"role": "assistant", "content": answer["choices"][0]["text"]})
        service.ok("DELETE", f"/v1/sessions/{session}")
    assert reasons == {"length", "stop"}


def test_a_session_has_a_prompt_or_messages_and_goes_on_with_the_users(service, model):
    session = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "99"})["id"]
    path = f"/v1/sessions/{session}/generate"
    assert refused(service, None, path, messages=[user("x")], prompt="x")["param"] == "messages"
    assert refused(service, None, path, messages=[{"role": "system", "content": "x"}])["param"] == "messages[0].role"
    service.ok("DELETE", f"/v1/sessions/{session}")


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_continues_from_the_state_of_an_answer_as_in_a_session(service, model, stream):
    ask = {"max_tokens": 10, "temperature": 0, "logit_bias": {"1": -100}}

    def answer(**body):
        body = {"model": model, **ask, "return_state": True, **body}
        if not stream:
            whole = service.ok("POST", "/v1/chat/completions", body)
            return whole["choices"][0]["message"]["content"], whole["state"]
        status, text, _ = service.request("POST", "/v1/chat/completions", {**body, "stream": True})
        assert status == 200
        text = text if isinstance(text, str) else text.decode()
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert all("state" not in c for c in chunks[:-1])
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks), chunks[-1]["state"]

    session = service.ok("POST", "/v1/sessions", {"model": model})["id"]
    state = {}
    for text in ("99 bottles", "98", "97 more"):
        expected = service.ok("POST", f"/v1/sessions/{session}/generate", {"messages": [user(text)], **ask})["choices"][0]["text"]
        said, returned = answer(messages=[user(text)], **state)
        assert said == expected
        assert returned["tokens"] == service.ok("GET", f"/v1/sessions/{session}")["tokens"]
        state = {"state": returned}
    service.ok("DELETE", f"/v1/sessions/{session}")
