"""Functions that a chat may call, as OpenAI's own client has them. The model is hardly trained: what it writes is random."""

import json

import jsonschema
import pytest

from conftest import SMALL

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather in a city", "strict": True,
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city", "days"],
                   "properties": {"city": {"type": "string", "enum": ["Bern", "Oslo", "São Paulo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
                                  "notes": {"type": "string", "maxLength": 8}}}}}
NOW = {"type": "function", "function": {"name": "now"}}
LAMP = {"type": "function", "function": {"name": "set-lamp", "parameters": {"type": "object", "required": ["on", "rooms"], "properties": {
    "on": {"type": "boolean"}, "rooms": {"type": "array", "maxItems": 3, "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}}}}}}}}
TOOLS = [WEATHER, NOW, LAMP]
SCHEMAS = {t["function"]["name"]: t["function"].get("parameters", {"type": "object", "maxProperties": 0}) for t in TOOLS}


@pytest.fixture(scope="module")
def model(service):
    config = {**SMALL["config"], "n_positions": 4096, "window_sizes": [4, 7, 4096]}
    done = service.wait_job(service.job(steps=5, config=config)["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]


def user(text):
    return {"role": "user", "content": text}


def check_calls(message, least=1):
    assert message.tool_calls and len(message.tool_calls) >= least
    assert len({call.id for call in message.tool_calls}) == len(message.tool_calls)
    for call in message.tool_calls:
        assert call.type == "function" and call.id.startswith("call_")
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


def assembled(chunks, index=0):
    """(text, [(id, name, arguments)], finish reason) of a streamed choice."""
    text, calls, reason = "", [], None
    for choice in (c for chunk in chunks for c in chunk.choices if c.index == index):
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls) and call.type == "function"
                calls.append([call.id, call.function.name, ""])
            else:
                assert call.function.name is None
            calls[call.index][2] += call.function.arguments or ""
    return text, calls, reason


# --- what is called ---------------------------------------------------------------------------------


def test_a_required_call_is_of_a_function_and_fits_its_schema(client, model):
    names = set()
    for seed in range(6):
        answer = client.chat.completions.create(model=model, messages=[user("hi")], tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=4,
                                                seed=4 * seed, temperature=1.5, max_completion_tokens=800)
        for choice in answer.choices:
            assert choice.finish_reason == "tool_calls" and choice.message.content is None and len(choice.message.tool_calls) == 1
            check_calls(choice.message)
            names.add(choice.message.tool_calls[0].function.name)
    assert names == set(SCHEMAS)


def test_a_named_function_is_the_only_one_that_is_called(client, model):
    choice = {"type": "function", "function": {"name": "set-lamp"}}
    for seed in range(4):
        answer = client.chat.completions.create(model=model, messages=[user("hi")], tools=TOOLS, tool_choice=choice, seed=seed, parallel_tool_calls=False,
                                                temperature=1.5, max_completion_tokens=800).choices[0]
        assert [call.function.name for call in answer.message.tool_calls] == ["set-lamp"]
        check_calls(answer.message)


def token_ids(service, model, text):
    return [str(token) for token in service.ok("POST", "/v1/tokenize", {"model": model, "text": text})["tokens"]]


def test_an_answer_has_64_calls_at_most(service, client, model):
    """A bias for the line end and the mark leads the model from each call to the next."""
    answer = client.chat.completions.create(model=model, messages=[user("hi")], tools=[NOW], tool_choice="required", temperature=0, max_completion_tokens=3900,
                                            logit_bias=dict.fromkeys(token_ids(service, model, "\n<"), 100)).choices[0]
    check_calls(answer.message)
    assert len(answer.message.tool_calls) == 64 and answer.finish_reason == "tool_calls"


def test_a_stream_has_the_same_calls(client, model):
    ask = dict(model=model, messages=[user("hi")], tools=TOOLS, tool_choice="required", n=3, seed=7, temperature=1.5, max_completion_tokens=700)
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    for choice in whole.choices:
        text, calls, reason = assembled(chunks, choice.index)
        assert text == (choice.message.content or "") and reason == choice.finish_reason
        assert [(name, arguments) for _, name, arguments in calls] == [(c.function.name, c.function.arguments) for c in choice.message.tool_calls]
        assert all(id for id, _, _ in calls)
    assert chunks[-1].usage == whole.usage
    assert sum(len(c.choices[0].delta.tool_calls or []) for c in chunks if c.choices) > 20


def test_a_stop_sequence_does_not_cut_a_call(client, model):
    answer = client.chat.completions.create(model=model, messages=[user("hi")], tools=[WEATHER], tool_choice="required", seed=1, temperature=1, stop=["city", "}"],
                                            parallel_tool_calls=False, max_completion_tokens=800).choices[0]
    check_calls(answer.message)


@pytest.fixture(scope="module")
def caller(service):
    """A model that writes two words and the mark of a call."""
    config = {**SMALL["config"], "n_positions": 2048, "window_sizes": [4, 7, 2048]}
    done = service.wait_job(service.job(steps=150, text="one two <tool_call>" * 400, config=config)["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]


def test_an_answer_is_free_until_it_calls(client, caller):
    ask = dict(model=caller, messages=[user("one two <tool_call>one two")], tools=TOOLS, temperature=0, max_completion_tokens=800, parallel_tool_calls=False)
    answer = client.chat.completions.create(**ask).choices[0]
    assert answer.finish_reason == "tool_calls" and "two" in answer.message.content and "<" not in answer.message.content, answer
    check_calls(answer.message)
    text, calls, reason = assembled(list(client.chat.completions.create(stream=True, **ask)))
    assert (text, reason) == (answer.message.content, "tool_calls")
    assert [tuple(c[1:]) for c in calls] == [(c.function.name, c.function.arguments) for c in answer.message.tool_calls]
    n = len(answer.message.content)
    for tokens in range(n, n + 6):  # the answer ends within the mark
        cut = client.chat.completions.create(**{**ask, "max_completion_tokens": tokens}).choices[0]
        assert cut.finish_reason == "length" and len(cut.message.content) == tokens and cut.message.content.startswith(answer.message.content)
        chunks = list(client.chat.completions.create(stream=True, **{**ask, "max_completion_tokens": tokens}))
        assert assembled(chunks) == (cut.message.content, [], "length")
    none = client.chat.completions.create(**ask, tool_choice="none").choices[0]
    assert none.message.tool_calls is None and "<tool_call>" not in none.message.content and "<tool_call" in none.message.content
    stopped = client.chat.completions.create(**ask, stop=["two"]).choices[0]
    assert stopped.finish_reason == "stop" and answer.message.content.startswith(stopped.message.content) and "two" not in stopped.message.content


def test_with_none_nothing_is_called(client, model):
    ask = dict(model=model, messages=[user("hi")], tools=TOOLS, tool_choice="none", temperature=1, max_completion_tokens=60)
    for seed in range(4):
        choice = client.chat.completions.create(seed=seed, **ask).choices[0]
        assert choice.message.tool_calls is None and choice.finish_reason in ("stop", "length")
        text, calls, _ = assembled(list(client.chat.completions.create(seed=seed, stream=True, **ask)))
        assert (text, calls) == (choice.message.content, [])


def test_a_call_that_max_tokens_cuts_says_so(client, model):
    ask = dict(model=model, messages=[user("hi")], tools=[WEATHER], tool_choice="required", temperature=0, max_completion_tokens=60)
    choice = client.chat.completions.create(**ask).choices[0]
    assert choice.finish_reason == "length" and choice.message.tool_calls[0].function.name == "get_weather"
    assert not choice.message.tool_calls[0].function.arguments.endswith("}")


# --- what is read ------------------------------------------------------------------------------------


def test_the_result_of_a_call_goes_back_to_the_model(client, model):
    messages = [{"role": "system", "content": "Be brief."}, user("Weather in Bern?")]
    first = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=1,
                                           temperature=1, max_completion_tokens=800).choices[0].message
    call = first.tool_calls[0]
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": "21 C"}]
    ask = dict(model=model, temperature=0, max_completion_tokens=5)
    answer = client.chat.completions.create(messages=messages, tools=TOOLS, tool_choice="none", **ask)
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in TOOLS)
    arguments = json.dumps(json.loads(call.function.arguments), ensure_ascii=False)
    prompt = (f"Be brief.\n\nTools:{listed}\n\nUser: Weather in Bern?\nAssistant: "
              f'<tool_call>{{"name": "{call.function.name}", "arguments": {arguments}}}</tool_call>\nTool: 21 C\nAssistant:')
    same = client.completions.create(model=model, prompt=prompt, max_tokens=5, temperature=0)
    assert answer.usage.prompt_tokens == same.usage.prompt_tokens
    assert answer.choices[0].message.content == same.choices[0].text


def refused(service, model, **body):
    status, answer, _ = service.request("POST", "/v1/chat/completions", {"model": model, "messages": [user("x")], **body})
    assert status in (400, 413), answer
    return answer["error"]


def function(name="f", **more):
    return {"type": "function", "function": {"name": name, **more}}


def nested(depth):
    return {"type": "object", "properties": {"p": nested(depth - 1)}} if depth else {"type": "integer"}


CALLS = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}


@pytest.mark.parametrize("more, param", [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [function("a b")]}, "tools[0].function.name"),
    ({"tools": [function("a" * 65)]}, "tools[0].function.name"),
    ({"tools": [function(), function()]}, "tools[1].function.name"),
    ({"tools": [function(str(i)) for i in range(129)]}, "tools"),
    ({"tools": [function(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
    ({"tools": [NOW, function(parameters={"type": "object", "properties": {"a": {"contains": 1}}})]}, "tools[1].function.parameters.properties.a.contains"),
    ({"tools": [NOW], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "later"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [NOW], "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [user("x"), CALLS]}, "messages[1].tool_calls[0]"),
    ({"messages": [user("x"), CALLS, {"role": "tool", "tool_call_id": "b", "content": ""}]}, "messages[2].tool_call_id"),
    ({"messages": [user("x"), {"role": "tool", "tool_call_id": "b", "content": ""}]}, "messages[1].role"),
])
def test_functions_and_messages_that_cannot_be_are_refused_by_name(service, model, more, param):
    assert refused(service, model, **more)["param"] == param


def test_hostile_functions_are_refused_and_the_service_goes_on(service, client, model):
    assert refused(service, model, tools=[function(parameters=nested(70))])["param"].startswith("tools[0].function.parameters.properties.p")
    explodes = {"type": "object", "properties": {"p": {"type": "string", "pattern": "(a|b)*a(a|b){20}"}}}
    assert refused(service, model, tools=[NOW, function(parameters=explodes)])["param"] == "tools[1].function.parameters.properties.p.pattern"
    test_a_named_function_is_the_only_one_that_is_called(client, model)


def test_a_template_without_a_form_for_functions_refuses_them(service):
    config = {**SMALL["config"], "chat_template": {"user": {"suffix": ";"}, "assistant": {"suffix": ";"}}}
    done = service.wait_job(service.job(steps=2, config=config)["id"])
    error = refused(service, done["fine_tuned_model"], tools=[NOW])
    assert error["param"] == "tools" and "no form for functions" in error["message"]


# --- what is learned -------------------------------------------------------------------------------------


def test_a_model_learns_to_call_from_conversations_and_calls_by_itself(service, client):
    calls = [{"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}]
    line = {"tools": [NOW], "messages": [user("time?"), {"role": "assistant", "content": None, "tool_calls": calls},
                                         {"role": "tool", "tool_call_id": "a", "content": "7"}, {"role": "assistant", "content": "It is 7."}]}
    config = {**SMALL["config"], "n_positions": 512, "window_sizes": [4, 7, 512]}
    done = service.wait_job(service.job(steps=300, text=(json.dumps(line) + "\n") * 200, config=config, sequence_length=256)["id"])
    assert done["status"] == "succeeded", done
    ask = dict(model=done["fine_tuned_model"], tools=[NOW], parallel_tool_calls=False, temperature=0, max_completion_tokens=100)
    first = client.chat.completions.create(messages=line["messages"][:1], **ask).choices[0]
    assert first.finish_reason == "tool_calls" and [c.function.name for c in first.message.tool_calls] == ["now"], first
    result = {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "7"}
    second = client.chat.completions.create(messages=[line["messages"][0], first.message, result], **ask).choices[0]
    assert second.finish_reason == "stop" and second.message.content.strip() == "It is 7.", second
