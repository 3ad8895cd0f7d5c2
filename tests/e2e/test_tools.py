"""Functions that a chat or a response may call, as OpenAI's own client has them. The model is hardly trained: what it writes is random."""

import json

import jsonschema
import openai
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


# --- responses -----------------------------------------------------------------------------------------

FLAT = [{"type": "function", **t["function"]} for t in TOOLS]


def without_ids(items):
    """Output items as whole objects, but for what differs from answer to answer."""
    return [{k: v for k, v in item.to_dict().items() if k not in ("id", "call_id")} for item in items]


def calls_of(response):
    return [item for item in response.output if item.type == "function_call"]


def as_in_a_chat(choice):
    """The output items that a response has for the answer of a chat."""
    cut = "incomplete" if choice.finish_reason == "length" else "completed"
    calls = choice.message.tool_calls or []
    items = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": choice.message.content, "annotations": [], "logprobs": []}]}]
    items = (items if choice.message.content or not calls else []) + [{"type": "function_call", "name": c.function.name, "arguments": c.function.arguments} for c in calls]
    return [{**item, "status": cut if item is items[-1] else "completed"} for item in items]


def from_stream(events):
    """The response that the events of a stream make, each checked against its predecessors."""
    kinds = [e.type.removeprefix("response.") for e in events]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    opening = 3 if kinds[1] == "queued" else 2
    assert kinds[0] == "created" and kinds[opening - 1] == "in_progress"
    items, open_item, text = [], None, ""
    for kind, e in zip(kinds[opening:-1], events[opening:-1]):
        if kind == "output_item.added":
            assert open_item is None and e.output_index == len(items) and e.item.status == "in_progress"
            assert e.item.type == "message" or e.item.arguments == ""
            open_item, text = e.item, ""
            continue
        assert e.output_index == len(items)
        if kind == "output_item.done":
            assert (e.item.id, e.item.type) == (open_item.id, open_item.type)
            assert text == (e.item.content[0].text if e.item.type == "message" else e.item.arguments)
            items.append(e.item)
            open_item = None
        elif kind in ("output_text.delta", "function_call_arguments.delta"):
            assert e.item_id == open_item.id and kind.startswith("output_text") == (open_item.type == "message")
            text += e.delta
        elif kind == "function_call_arguments.done":
            assert (e.item_id, e.arguments, e.name) == (open_item.id, text, open_item.name)
        else:
            assert kind in ("content_part.added", "output_text.done", "content_part.done") and e.item_id == open_item.id
    assert open_item is None and kinds[-1] == events[-1].response.status and items == events[-1].response.output
    return events[-1].response


def answers(client, ask, more):
    """A response, checked against the chat with the same request and against its own stream. ask: the chat's request; more: what a response has otherwise."""
    tokens = ask.pop("max_completion_tokens")
    chat = client.chat.completions.create(**ask, max_completion_tokens=tokens).choices[0]
    extra = {"seed": ask.pop("seed", 1), "stop": ask.pop("stop", None)}
    del ask["messages"]
    ask.update(max_output_tokens=tokens, extra_body=extra, **more)
    whole = client.responses.create(**ask)
    streamed = from_stream(list(client.responses.create(stream=True, **ask)))
    assert without_ids(whole.output) == without_ids(streamed.output) == as_in_a_chat(chat)
    assert whole.usage.total_tokens == streamed.usage.total_tokens and whole.status == ("incomplete" if chat.finish_reason == "length" else "completed")
    return whole


def test_a_response_calls_what_a_chat_calls(client, model):
    for seed in range(6):
        ask = dict(model=model, messages=[user("hi")], tools=TOOLS, tool_choice="required", seed=seed, temperature=1.5, max_completion_tokens=900)
        answer = answers(client, ask, dict(input="hi", tools=FLAT))
        for call in calls_of(answer):
            assert call.id.startswith("fc_") and call.call_id.startswith("call_")
        assert len({c.id for c in answer.output}) == len({c.call_id for c in answer.output}) == len(answer.output)
        assert [t.to_dict() for t in answer.tools] == FLAT and answer.tool_choice == "required" and answer.parallel_tool_calls
    for tokens in (40, 60):  # within the arguments
        ask = dict(model=model, messages=[user("hi")], tools=[WEATHER], tool_choice="required", temperature=0, max_completion_tokens=tokens)
        assert answers(client, ask, dict(input="hi", tools=FLAT[:1])).output[-1].status == "incomplete"


def test_a_named_function_is_the_only_one_that_a_response_calls(client, model):
    for seed in range(4):
        answer = client.responses.create(model=model, input="hi", tools=FLAT, tool_choice={"type": "function", "name": "set-lamp"}, parallel_tool_calls=False,
                                         temperature=1.5, max_output_tokens=800, extra_body={"seed": seed})
        assert [c.name for c in answer.output] == ["set-lamp"] and not answer.parallel_tool_calls
        jsonschema.validate(json.loads(answer.output[0].arguments), SCHEMAS["set-lamp"])


def test_the_text_before_a_call_is_a_message(client, caller):
    text = "one two <tool_call>one two"
    ask = dict(model=caller, messages=[user(text)], tools=TOOLS, temperature=0, max_completion_tokens=800, parallel_tool_calls=False)
    whole = answers(client, dict(ask), dict(input=text, tools=FLAT))
    assert [(i.type, i.status) for i in whole.output] == [("message", "completed"), ("function_call", "completed")] and "<" not in whole.output_text
    for tokens in range(len(whole.output_text), len(whole.output_text) + 6):  # the answer ends within the mark, which the RESULT has
        cut = answers(client, {**ask, "max_completion_tokens": tokens}, dict(input=text, tools=FLAT))
        assert cut.status == "incomplete" and len(cut.output_text) == tokens and not calls_of(cut)
    for more in ({"tool_choice": "none"}, {"stop": ["two"]}):
        assert not calls_of(answers(client, {**ask, **more}, dict(input=text, tools=FLAT)))


@pytest.fixture(scope="module")
def repeater(service):
    """A model that calls one function again and again."""
    config = {**SMALL["config"], "n_positions": 2048, "window_sizes": [4, 7, 2048]}
    done = service.wait_job(service.job(steps=300, text='one two <tool_call>{"name": "now", "arguments": {}}</tool_call>\n' * 100, config=config)["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]


REPEAT = dict(input="one two", tools=FLAT[1:2], tool_choice="required", temperature=0, max_output_tokens=250)


def test_each_of_several_calls_is_an_item(client, repeater):
    ask = dict(model=repeater, messages=[user("one two")], tools=[NOW], tool_choice="required", temperature=0, max_completion_tokens=250)
    answer = answers(client, ask, dict(input="one two", tools=FLAT[1:2]))
    assert len(answer.output) >= 3 and all(c.name == "now" and c.arguments == "{}" and c.status == "completed" for c in calls_of(answer)[:-1])
    assert len({c.id for c in answer.output}) == len({c.call_id for c in answer.output}) == len(answer.output)


def result_of(call):
    return {"type": "function_call_output", "call_id": call.call_id, "output": f"{call.name} is done"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_the_loop_of_calls_and_results(client, model, stored, streamed):
    """The input grows by the output and the results; or only the results follow the stored response. In both cases the model reads what it reads in a chat."""
    ask = dict(model=model, tools=FLAT, temperature=0, max_output_tokens=800, store=stored)

    def create(**more):
        return from_stream(list(client.responses.create(stream=True, **ask, **more))) if streamed else client.responses.create(**ask, **more)

    history, chat = [user("Weather in Bern?")], [user("Weather in Bern?")]
    first = create(input=history, tool_choice="required", parallel_tool_calls=False)
    call, = calls_of(first)
    history += first.output + [result_of(call)]
    chat += [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}]},
             {"role": "tool", "tool_call_id": "a", "content": f"{call.name} is done"}]
    ask["max_output_tokens"] = 9
    then = create(input=[result_of(call)], previous_response_id=first.id, tool_choice="none") if stored else create(input=history, tool_choice="none")
    same = client.chat.completions.create(model=model, messages=chat, tools=TOOLS, tool_choice="none", temperature=0, max_completion_tokens=9)
    assert then.output_text == same.choices[0].message.content
    if stored:
        assert [(i.type, i.call_id) for i in client.responses.input_items.list(then.id)] == [("function_call_output", call.call_id)]
        assert client.responses.retrieve(first.id).output == first.output
    else:
        assert then.usage.input_tokens == same.usage.prompt_tokens


def test_several_calls_are_one_answer_and_need_not_be_answered_in_order(client, model):
    calls = [{"type": "function_call", "call_id": c, "name": "now", "arguments": "{}", "id": "fc_1", "status": "completed"} for c in "ab"]
    results = [{"type": "function_call_output", "call_id": c, "output": o} for c, o in (("b", [{"type": "input_text", "text": "2"}]), ("a", "1"))]
    answer = client.responses.create(model=model, instructions="Be brief.", input=[user("x"), {"role": "assistant", "content": "I look."}, *calls, *results], tools=FLAT[1:2],
                                     tool_choice="none", temperature=0, max_output_tokens=9, store=True)
    said = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": c, "type": "function", "function": {"name": "now", "arguments": "{}"}} for c in "ab"]}
    chat = [{"role": "system", "content": "Be brief."}, user("x"), said, {"role": "tool", "tool_call_id": "b", "content": "2"}, {"role": "tool", "tool_call_id": "a", "content": "1"}]
    same = client.chat.completions.create(model=model, messages=chat, tools=[NOW], tool_choice="none", temperature=0, max_completion_tokens=9)
    assert (answer.output_text, answer.usage.input_tokens) == (same.choices[0].message.content, same.usage.prompt_tokens)
    listed = [i.to_dict() for i in client.responses.input_items.list(answer.id, order="asc")]
    assert [i["type"] for i in listed] == ["message", "message", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert [i.get("call_id") for i in listed[2:]] == ["a", "b", "b", "a"] and listed[2]["name"] == "now" and listed[5]["output"] == "1"
    assert len({i["id"] for i in listed}) >= 5


@pytest.mark.parametrize("kept", [{"store": True}, {"background": True}])
def test_a_kept_response_with_calls_continues_after_each_of_its_events(client, repeater, kept):
    events = list(client.responses.create(model=repeater, stream=True, **REPEAT, **kept))
    made = from_stream(events)
    assert len(made.output) >= 3
    assert client.responses.retrieve(made.id) == made
    again = list(client.responses.retrieve(made.id, stream=True))
    assert again == events and any(e.type == "response.function_call_arguments.delta" for e in events)
    for n in range(0, len(events), 5):
        assert list(client.responses.retrieve(made.id, stream=True, starting_after=n)) == events[n + 1:]


CALL = {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"}
DONE = {"type": "function_call_output", "call_id": "a", "output": "7"}


def without(item, key):
    return {k: v for k, v in item.items() if k != key}


@pytest.mark.parametrize("more, param", [
    ({"tools": [{"type": "web_search", "search_context_size": "low"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [NOW]}, "tools[0].function"),
    ({"tools": [FLAT[1], {"type": "function", "name": "a b"}]}, "tools[1].name"),
    ({"tools": [FLAT[1], FLAT[1]]}, "tools[1].name"),
    ({"tools": [FLAT[1], {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"contains": 1}}}}]}, "tools[1].parameters.properties.a.contains"),
    ({"tools": FLAT, "tool_choice": {"type": "function", "name": "later"}}, "tool_choice"),
    ({"tools": FLAT, "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": FLAT, "parallel_tool_calls": 2}, "parallel_tool_calls"),
    ({"tools": FLAT, "text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"tools": FLAT, "include": ["message.output_text.logprobs"]}, "include"),
    ({"input": [user("x"), {"type": "reasoning", "summary": []}]}, "input[1].type"),
    ({"input": [user("x"), CALL]}, "input[1]"),
    ({"input": [user("x"), CALL, {**CALL, "call_id": "b"}, DONE]}, "input[2]"),
    ({"input": [user("x"), CALL, {**DONE, "call_id": "b"}]}, "input[2].call_id"),
    ({"input": [user("x"), CALL, DONE, DONE]}, "input[3].call_id"),
    ({"input": [user("x"), DONE]}, "input[1].type"),
    ({"input": [user("x"), {"role": "assistant", "content": "y"}, {**CALL, "name": "a b"}, DONE]}, "input[2].name"),
    ({"input": [user("x"), CALL, {**CALL, "call_id": "b", "arguments": "7"}, DONE]}, "input[2].arguments"),
    ({"input": [user("x"), without(CALL, "arguments")]}, "input[1].arguments"),
    ({"input": [user("x"), without(DONE, "output")]}, "input[1].output"),
    ({"input": [{**user("x"), "call_id": "a"}]}, "input[0].call_id"),
    ({"input": [without(user("x"), "content")]}, "input[0].content"),
    ({"input": [user("x"), {**CALL, "role": "user"}, DONE]}, "input[1].role"),
    ({"input": [user("x"), CALL, {**DONE, "output": [{"type": "input_image"}]}]}, "input[2].output[0].type"),
])
def test_functions_and_items_that_cannot_be_are_refused_by_name(service, model, more, param):
    status, answer, _ = service.request("POST", "/v1/responses", {"model": model, "input": "x", **more})
    assert status == 400 and answer["error"]["param"] == param, answer


def test_a_continued_response_begins_with_results_or_a_user(client, model):
    first = client.responses.create(model=model, input="hi", tools=FLAT[1:2], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, temperature=0, store=True)
    for item in (CALL, {"role": "assistant", "content": "x"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model=model, input=[item], previous_response_id=first.id)
        assert caught.value.param == ("input[0].type" if item is CALL else "input[0].role")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model, input=[DONE], instructions="x", previous_response_id=first.id)
    assert caught.value.param == "instructions"


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
