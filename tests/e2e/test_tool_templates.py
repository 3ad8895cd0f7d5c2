"""Functions of models with published chat templates: what OpenAI's client gets, and what it may send back. The weights are random."""

import json
import pathlib
import re
import subprocess

import jsonschema
import numpy as np
import openai
import pytest

from conftest import BIN
from test_tools import FLAT, SCHEMAS, TOOLS, assembled, user

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
IDS, WIDTH, POSITIONS, MARK = 712, 16, 4096, 703
TEMPLATES, TOOL_TEMPLATES = (json.loads((DATA / "chat" / name).read_text()) for name in ("templates.json", "tool_templates.json"))
CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": IDS, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": 1, "n_head": 2}


def weights():
    rng = np.random.default_rng(5)
    shapes = {"wte.weight": (IDS, WIDTH), "wpe.weight": (POSITIONS, WIDTH), "ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    for name, shape in (("ln_1", (WIDTH,)), ("ln_2", (WIDTH,)), ("attn.c_attn", (WIDTH, 3 * WIDTH)), ("attn.c_proj", (WIDTH, WIDTH)),
                        ("mlp.c_fc", (WIDTH, 4 * WIDTH)), ("mlp.c_proj", (4 * WIDTH, WIDTH))):
        shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]}
    header, data = {}, b""
    for name, shape in shapes.items():
        part = rng.normal(0, 0.3, shape).astype("float32").tobytes()
        header["transformer." + name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def publish(service, folder, name, programs, mark):
    """Import a model whose tokenizer has the mark of a call as a special token."""
    tokenizer = json.loads((DATA / "tokenizers" / "qwen2" / "tokenizer.json").read_text())
    for token, content in zip(tokenizer["added_tokens"][3:], mark):
        token |= {"content": content, "special": True}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(weights())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": programs}))
    done = subprocess.run([BIN / "additive", "--url", service.url, "models", "import", name, folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return name


def described(tool):
    """A function as Hermes' template needs it."""
    return {**tool, "function": {"description": "A function", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}, **tool["function"]}}


@pytest.fixture(scope="module")
def hermes(service, tmp_path_factory):
    programs = [{"name": "default", "template": TEMPLATES["chatml begin"]["program"]}, {"name": "tool_use", "template": TOOL_TEMPLATES["hermes"]["program"]}]
    return publish(service, tmp_path_factory.mktemp("templates") / "hermes", "hermes", programs, ["<tool_call>", "</tool_call>"])


@pytest.fixture(scope="module")
def mistral(service, tmp_path_factory):
    return publish(service, tmp_path_factory.mktemp("templates") / "mistral", "mistral", TEMPLATES["mistral-v3"]["program"], ["[TOOL_CALLS]"])


def check(calls, form):
    assert calls and len({c.id for c in calls}) == len(calls)
    for call in calls:
        assert re.fullmatch(form, call.id), call.id
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


SHORT, LONG = "[0-9A-Za-z]{9}", "call_.+"


@pytest.mark.parametrize("family, form", [("mistral", SHORT), ("hermes", LONG)])
def test_calls_and_their_results_go_back_into_the_template(client, request, family, form):
    model, several = request.getfixturevalue(family), 0
    for seed in range(4):
        ask = dict(model=model, messages=[user("hi")], tools=[described(t) for t in TOOLS], tool_choice="required", seed=seed, temperature=1.5, max_completion_tokens=1500)
        choice = client.chat.completions.create(**ask).choices[0]
        assert choice.message.content is None
        if choice.finish_reason != "tool_calls":
            continue
        calls = choice.message.tool_calls
        check(calls, form)
        several += len(calls) > 1
        text, streamed, reason = assembled(list(client.chat.completions.create(stream=True, **ask)))
        assert (text, reason) == ("", "tool_calls") and all(re.fullmatch(form, id) for id, *_ in streamed)
        assert [c[1:] for c in streamed] == [[c.function.name, c.function.arguments] for c in calls]
        results = [{"role": "tool", "tool_call_id": c.id, "content": "7"} for c in calls]
        ask |= {"messages": [user("hi"), choice.message.to_dict(), *results], "tool_choice": "none", "max_completion_tokens": 4}
        assert client.chat.completions.create(**ask).choices[0].message.tool_calls is None
    assert several > 0


def test_the_special_token_of_a_call_begins_one_and_is_a_part_of_a_text(client, mistral):
    ask = dict(model=mistral, messages=[user("hi")], tools=TOOLS, parallel_tool_calls=False, max_completion_tokens=1500, seed=3, logit_bias={MARK: 100})
    answer = client.chat.completions.create(tool_choice={"type": "function", "function": {"name": "now"}}, **ask).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    check(answer.message.tool_calls, SHORT)
    text = client.chat.completions.create(tool_choice="none", **{**ask, "max_completion_tokens": 2}).choices[0].message
    assert (text.content, text.tool_calls) == ("[TOOL_CALLS][TOOL_CALLS]", None)


@pytest.mark.parametrize("stored", [False, True])
def test_a_response_with_short_ids_continues_with_results(client, mistral, stored):
    ask = dict(model=mistral, tools=FLAT, max_output_tokens=1500, parallel_tool_calls=False, temperature=1.5, store=stored, extra_body={"seed": 2})
    first = client.responses.create(input="hi", tool_choice={"type": "function", "name": "now"}, **ask)
    call = first.output[0]
    assert (call.type, call.name, call.arguments) == ("function_call", "now", "{}") and re.fullmatch(SHORT, call.call_id)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
    more = {"previous_response_id": first.id, "input": [result]} if stored else {"input": [user("hi"), call.to_dict(), result]}
    answer = client.responses.create(**more, **{**ask, "tool_choice": "none", "max_output_tokens": 5})
    assert [item.type for item in answer.output] == ["message"]


@pytest.mark.parametrize("messages, param", [
    ([user("x"), {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "call_1", "content": "7"}], "messages[1].tool_calls[0].id"),
    ([user("x"), {"role": "assistant", "content": "text", "tool_calls": [{"id": "123456789", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "123456789", "content": "7"}], "messages[1].tool_calls"),
    ([{"role": "system", "content": "s"}, user("x"), {"role": "assistant", "tool_calls": [{"id": "123456789", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "123456789", "content": "7"}], "messages[0].role"),
    ([user("x"), user("y")], "messages[1].role")])
def test_conversations_that_the_template_refuses_or_shortens_are_refused_by_name(client, mistral, messages, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=mistral, messages=messages, tools=TOOLS, max_completion_tokens=4)
    assert refused.value.param == param


def test_hermes_functions_need_what_the_template_prints(client, hermes):
    for tool, param in [(TOOLS[1], "tools[0].function.description"),
                        ({"type": "function", "function": {"name": "f", "description": "d"}}, "tools[0].function.parameters"),
                        ({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "null"}}}}},
                         "tools[0].function.parameters")]:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=hermes, messages=[user("x")], tools=[tool], max_completion_tokens=4)
        assert refused.value.param == param


def test_an_unknown_template_for_functions_refuses_functions_alone(service, client, tmp_path):
    programs = [{"name": "default", "template": TEMPLATES["qwen-2.5"]["program"]}, {"name": "tool_use", "template": "{{ 'mine' }}"}]
    model = publish(service, tmp_path / "other", "other", programs, ["<tool_call>", "</tool_call>"])
    assert client.chat.completions.create(model=model, messages=[user("x")], max_completion_tokens=4).choices
    with pytest.raises(openai.BadRequestError, match="no form for functions") as refused:
        client.chat.completions.create(model=model, messages=[user("x")], tools=TOOLS, max_completion_tokens=4)
    assert refused.value.param == "tools"
