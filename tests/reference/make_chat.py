"""Make the conversations of tests/data/chat, and their texts, which transformers renders with published chat templates.

    python tests/reference/make_chat.py        (transformers and jinja2; only to make the data again)

templates.json       {name: {"program", "bos", "eos"}}. It is read, not made.
conversations.json   [{"messages", "answers"}], where answers is add_generation_prompt
rendered.json        {name: [text or null]}, one for each conversation from the first on, until 50 are texts. null: the
                     template refuses the conversation, or leaves a message of it out.

tools.json and rendered_tools.json are the same with functions, calls and results, for templates that list functions;
thoughts.json and rendered_thoughts.json also with reasoning in the answers; array_tools.json and
rendered_array_tools.json with short ids of calls. tool_templates.json, which is read too, has templates for conversations
with functions alone; signature_tools.json and rendered_signature_tools.json are for these.

The date is 26 Jul 2024, as in the templates.
"""
import json
import pathlib
import random

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "chat"
ENOUGH = 50

WORDS = ["hello", "who are you?", "1 < 2 & 3", "  led by spaces", "ended by spaces \t ", "two\nlines", "\n\nlines around\n", "<|im_end|>", "</s>", "[/INST]",
         "<|user|>", "it's \"quoted\" \\n", "\u00a0no break\u3000", "na\u00efve \u2603", "\U0001f600\U0001f468\u200d\U0001f469", "{{ bos_token }}", "{% raw %}", "a\u0085", "\u2028x\u001f", "User: me\nAssistant: you"]


def conversation(rng):
    """Mostly a system's message or none, then the user and the assistant in turn; sometimes in any order."""
    wild = rng.random() < 0.15
    roles = [rng.choice(["system", "user", "assistant"]) for _ in range(rng.randint(1, 4))] if wild else (
        ["system"] * (rng.random() < 0.4) + ["user", "assistant"] * rng.randint(0, 2) + ["user"] + ["assistant"] * (rng.random() < 0.15))
    texts = [" ".join(rng.sample(WORDS, rng.randint(1, 2))) for _ in roles]
    return {"messages": [{"role": r, "content": t} for r, t in zip(roles, texts)], "answers": rng.random() < 0.85}


VALUES = ["x", "", "it's \"quoted\" \\n", "na\u00efve \u2603 \U0001f600", "<tool_call>", "<|im_end|>\n", "\x01\x1f\x7f\b\f\r\t", "a/b", 0, -7, 2**53, 1.0, 0.1, -2.5e-7, 1e16, 123456789012345.0, 1e300, 5e-324,
          True, False, None]
TOOLS = [{"type": "function", "function": {"name": "now"}},
         {"type": "function", "function": {"name": "get_weather", "description": "The weather \"now\" in a city, as it's \u2603", "parameters": {
             "type": "object", "properties": {"city": {"type": "string", "enum": ["Bern", "Z\u00fcrich"]}, "days": {"type": "integer", "minimum": 1, "default": 1.5}}, "required": ["city"]}}},
         {"type": "function", "function": {"name": "set-lamp_2", "description": "</tools> <|im_end|>\n", "parameters": {"type": "object", "properties": {}, "additionalProperties": True}, "strict": False}}]


def value(rng, depth=0):
    kind = rng.random()
    if depth < 3 and kind < 0.15:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if depth < 3 and kind < 0.3:
        return {rng.choice(["a", "b c", "\u00e9", "\"", "n\n"]): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return rng.choice(VALUES)


def exchange(rng, first, single):
    """Calls by the assistant, with their results."""
    calls = [{"id": f"call_{first + i}", "type": "function", "function": {"name": rng.choice(TOOLS)["function"]["name"], "arguments": {k: value(rng) for k in rng.sample(["city", "days", "\u00fc x"], rng.randint(0, 3))}}}
             for i in range(1 if single else rng.randint(1, 3))]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": rng.choice(WORDS)} for c in calls]
    rng.shuffle(results)
    text = "" if single or rng.random() < 0.6 else rng.choice(WORDS)
    return [{"role": "assistant", "content": text, "tool_calls": calls}, *results]


def tool_conversation(rng):
    single, messages = rng.random() < 0.5, []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(WORDS)})
    for i in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": rng.choice(WORDS)})
        for k in range(rng.randint(0, 2)):
            messages += exchange(rng, 100 * i + 10 * k, single)
        if rng.random() < 0.7:
            messages.append({"role": "assistant", "content": rng.choice(WORDS)})
    return {"messages": messages, "tools": rng.sample(TOOLS, rng.randint(1, 3)), "answers": rng.random() < 0.85}


def array_conversation(rng):
    """As tool_conversation, for templates in which calls have short ids and no text, but for a few."""
    one = tool_conversation(rng)
    ids = {}
    for m in one["messages"]:
        for c in m.get("tool_calls", []):
            number = int(c["id"].removeprefix("call_"))
            ids[c["id"]] = c["id"] if rng.random() < 0.03 else rng.choice([f"call{number:05}", f"{number:07}\u00e9\""])
            c["id"] = ids[c["id"]]
        if "tool_calls" in m:
            m["content"] = "" if rng.random() < 0.97 else "x"
        if m["role"] == "tool":
            m["tool_call_id"] = ids[m["tool_call_id"]]
    if rng.random() < 0.3 and len(one["messages"]) > 1:  # two equal questions
        questions = [m for m in one["messages"] if m["role"] == "user"]
        questions[0]["content"] = questions[-1]["content"]
    return one


TYPES = ["string", "number", "integer", "boolean", "array", "object", ["string", "integer"], ["array", "object"], [], "", 7, True, None]


def schema(rng, depth=0):
    """Make a parameter's schema; few have a type that the template for signatures cannot name."""
    made = {} if rng.random() < 0.15 else {"type": rng.choice(["null", ["string", "null"]]) if rng.random() < 0.02 else rng.choice(TYPES)}
    if rng.random() < 0.6:
        made["description"] = rng.choice(WORDS)
    if rng.random() < 0.3:
        made["enum"] = [rng.choice(VALUES)]
    if rng.random() < 0.4 and depth < 3:
        made["additionalProperties"] = rng.choice([True, False, schema(rng, depth + 1)])
    if rng.random() < 0.2:
        made["items"] = {"type": "string"}
    return made


def signature(rng):
    properties = {name: schema(rng) for name in rng.sample(["city", "days", "\u00fc x", "a\"b"], rng.randint(0, 4))}
    function = {"name": rng.choice(["now", "get_weather", "set-lamp_2"]), "description": rng.choice(WORDS)}
    function["parameters"] = {"type": "object", "properties": properties} if rng.random() < 0.9 else {"type": "object"}
    if rng.random() < 0.04:
        del function[rng.choice(["description", "parameters"])]
    return {"type": "function", "function": function}


def signature_conversation(rng):
    """As tool_conversation, with other functions, and calls without a text, but for a few."""
    one = tool_conversation(rng)
    for m in one["messages"]:
        if "tool_calls" in m:
            m["content"] = "" if rng.random() < 0.97 else "x"
    tools = {t["function"]["name"]: t for t in (signature(rng) for _ in range(rng.randint(1, 3)))}
    return {**one, "tools": list(tools.values())}


THOUGHTS = ["<think>", "</think>", "<think>\n", "\n</think>\n\n", "\n", "a", "<tool_call>", "I see.\n", ""]


def thinking_conversation(rng):
    """As tool_conversation, with parts of reasoning in the answers, and results in messages of the user."""
    one = tool_conversation(rng)
    for m in one["messages"]:
        if m["role"] == "assistant":
            m["content"] = (f"<think>\n{rng.choice(WORDS)}\n</think>\n\n{rng.choice(WORDS)}" if rng.random() < 0.4 else
                            "".join(rng.choices(THOUGHTS, k=rng.randint(0, 6))))
        elif m["role"] == "user" and rng.random() < 0.3:
            m["content"] = rng.choice(["<tool_response>", ""]) + m["content"] + rng.choice(["</tool_response>", ""])
    if one["messages"][0]["role"] == "system" and rng.random() < 0.3:
        one["messages"][0]["content"] = ""
    if rng.random() < 0.1:  # no question
        one["messages"] = [{"role": "assistant", "content": "<think>x</think>y"}]
    return one


def with_texts(one):
    """The arguments of calls as OpenAI has them."""
    def call(c):
        return {**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False, separators=(",", ":"))}}
    return {**one, "messages": [{**m, "tool_calls": [call(c) for c in m["tool_calls"]]} if "tool_calls" in m else m for m in one["messages"]]}


def apply(template, messages, answers, tools=None):
    return render_jinja_template([messages], tools=tools, chat_template=template["program"], add_generation_prompt=answers, bos_token=template["bos"], eos_token=template["eos"],
                                 date_string="26 Jul 2024")[0][0]


def render_tools(template, one):
    try:
        return apply(template, one["messages"], one["answers"], one["tools"])
    except TemplateError:
        return None


def render_whole(template, one):
    """None also if the text lacks a message."""
    marked = [{**m, "content": f"message {i}." if m["content"] else ""} for i, m in enumerate(one["messages"])]
    try:
        whole = all(m["content"] in apply(template, marked, True, one["tools"]) for m in marked)
        return apply(template, one["messages"], one["answers"], one["tools"]) if whole else None
    except (TemplateError, TypeError, RecursionError):
        return None


def render(template, one):
    marked = [{**m, "content": f"message {i}."} for i, m in enumerate(one["messages"])]
    try:
        whole = all(m["content"] in apply(template, marked, True) for m in marked)
        return apply(template, one["messages"], one["answers"]) if whole else None
    except TemplateError:
        return None


def read(name):
    return json.loads((FOLDER / name).read_text())


def write(name, value):
    (FOLDER / name).write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n")


def main():
    templates, tool_templates = read("templates.json"), read("tool_templates.json")
    rng = random.Random(15)
    conversations = [conversation(rng) for _ in range(200)]
    rendered = {}
    for name, template in templates.items():
        rendered[name] = []
        for one in conversations:
            rendered[name].append(render(template, one))
            if sum(t is not None for t in rendered[name]) == ENOUGH:
                break
    used = max(map(len, rendered.values()))
    assert all(sum(t is not None for t in texts) == ENOUGH for texts in rendered.values()), {n: len(t) for n, t in rendered.items()}
    write("conversations.json", conversations[:used])
    write("rendered.json", rendered)
    rng = random.Random(16)
    conversations = [tool_conversation(rng) for _ in range(50)]
    write("tools.json", [with_texts(one) for one in conversations])
    write("rendered_tools.json", {name: [render_tools(templates[name], one) for one in conversations] for name in ("qwen-2.5", "llama-3.1", "llama-3.2", "qwen-3")})
    rng = random.Random(18)
    conversations = [array_conversation(rng) for _ in range(120)]
    write("array_tools.json", [with_texts(one) for one in conversations])
    write("rendered_array_tools.json", {name: [render_whole(templates[name], one) for one in conversations] for name in ("mistral-v3", "mistral-v3 first")})
    rng = random.Random(19)
    conversations = [signature_conversation(rng) for _ in range(120)]
    write("signature_tools.json", [with_texts(one) for one in conversations])
    write("rendered_signature_tools.json", {name: [render_whole(template, one) for one in conversations] for name, template in tool_templates.items()})
    rng = random.Random(17)
    conversations = [thinking_conversation(rng) for _ in range(40)]
    texts = [render_tools(templates["qwen-3"], one) for one in conversations]
    assert texts == [render_tools(templates["qwen-3 first"], one) for one in conversations]
    write("thoughts.json", [with_texts(one) for one in conversations])
    write("rendered_thoughts.json", {"qwen-3": texts})


main()
