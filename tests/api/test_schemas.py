"""Grammars of random JSON Schemas, compared with another implementation of JSON Schema.

A text of a grammar is valid. A text written to fit a schema is in its grammar; an invalid text is not."""

import decimal
import json
import os
import random
import re
import subprocess

import jsonschema
import pydantic
import pytest
from datetime import date, time, timedelta
from ipaddress import IPv4Address, IPv6Address
from uuid import UUID

import random_schemas
from http_support import BIN

PROGRAM = BIN.parent / "tests" / "grammar_texts"
decimal.getcontext().prec = 400

FORMATS = jsonschema.FormatChecker(formats=())


def check_with_pydantic(name, kind):
    adapter = pydantic.TypeAdapter(kind)
    FORMATS.checks(name, raises=pydantic.ValidationError)(lambda x: not isinstance(x, str) or adapter.validate_python(x) is not None)


for name, kind in {"date": date, "time": time, "date-time": pydantic.AwareDatetime, "duration": timedelta, "uuid": UUID,
                   "ipv4": IPv4Address, "ipv6": IPv6Address, "uri": pydantic.HttpUrl,
                   "regex": re.Pattern}.items():
    check_with_pydantic(name, kind)

# Numbers are decimals, so that no comparison rounds.
NUMBERS = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many({
    "number": lambda _, x: isinstance(x, (int, decimal.Decimal)) and not isinstance(x, bool),
    "integer": lambda _, x: isinstance(x, (int, decimal.Decimal)) and not isinstance(x, bool) and x == int(x)})
Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=NUMBERS)


def refuse_constant(name):
    raise ValueError(name)


def read(text):
    return json.loads(text, parse_float=decimal.Decimal, parse_constant=refuse_constant)


def validates(validator, text):
    try:
        return validator.is_valid(read(text))
    except ValueError:
        return False


class Grammars:
    def __init__(self):
        self.process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, schema, draw=0, seed=0, texts=()):
        return self.send({"schema": schema, "draw": draw, "seed": seed, "texts": list(texts)})

    def send(self, question):
        line = json.dumps(question)
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.fixture(scope="module")
def grammars():
    grammars = Grammars()
    yield grammars
    grammars.close()


def mutated(draw, text):
    """The text with one small change, most often still JSON."""
    at = draw.randrange(len(text))
    change = draw.randrange(6)
    if change < 2:
        return text[:at] + draw.choice('0123456789"[]{}:,abz-. né') + text[at + (change == 0):]
    if change == 2:
        return text[:at] + text[at + 1:]
    value = mutated_value(draw, json.loads(text))
    return random_schemas.compact(value)


def mutated_value(draw, value):
    if isinstance(value, (dict, list)) and value and draw.random() < 0.8:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key, change = draw.choice(keys), draw.randrange(5)
        if change == 0:
            del value[key]
        elif change == 1 and isinstance(value, list):
            value.insert(key, value[draw.randrange(len(value))])
        elif change == 1:
            value[draw.choice(["zz", "a", "kind", ""])] = 1
        else:
            value[key] = mutated_value(draw, value[key])
        return value
    others = [None, True, 0, -1, 1, 1000, "", "a", "abcdefgh", [], {}]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        others += [value + 1, value - 1, value / 2, -value] * 2
    if isinstance(value, str):
        others += [value + "x", value[1:], value * 2] * 3
    return draw.choice(others)


def compare(grammars, seed, made):
    """Compare one schema, with texts of its own if it has any. Returns the answer of the grammar."""
    draw = random.Random(seed)
    schema = made.keywords
    validator = Validator(read(json.dumps(schema)), format_checker=FORMATS)
    own = [made.text() for _ in range(6)] if made.text else []
    first = grammars.ask(schema, draw=6, seed=seed, texts=own)
    if "refused" in first:
        return first
    where = f"seed {seed}: {json.dumps(schema)}"
    for text in first["drawn"]:
        assert validates(validator, text), f"{where}\nhas {text}, which does not validate"
    for text, fits in zip(own, first["fits"]):
        assert validates(validator, text), f"{where}\n{text} was written to fit, and does not validate"
        assert fits, f"{where}\n{text} validates, and is refused"
    others = [mutated(draw, text) for text in own + first["drawn"] for _ in range(3)]
    for text, fits in zip(others, grammars.ask(schema, texts=others)["fits"]):
        assert not fits or validates(validator, text), f"{where}\n{text} is accepted, and does not validate"
    return first


def compare_many(grammars, first, n):
    refused = drawn = 0
    for seed in range(first, first + n):
        answer = compare(grammars, seed, random_schemas.fitting(random.Random(seed)))
        assert answer.get("refused") in (None, "unsupported", "too_large"), f"seed {seed}: {answer}"
        refused += "refused" in answer
        drawn += len(answer.get("drawn", ()))
    assert refused < 0.1 * n and drawn > 4 * n
    accepted = 0
    for seed in range(first, first + n):
        draw = random.Random(-1 - seed)
        answer = compare(grammars, seed, random_schemas.Schema(random_schemas.any_keywords(draw), None, frozenset()))
        assert answer.get("refused") in (None, "unsupported", "too_large", "invalid_request"), f"seed {seed}: {answer}"
        accepted += "refused" not in answer
    assert accepted > 0.2 * n


def test_random_schemas_mean_what_another_implementation_says(grammars):
    compare_many(grammars, 0, int(os.environ.get("SCHEMAS", 40)))


def random_function(draw):
    """The parameters of a function: one has a random schema."""
    kind = random_schemas.fitting(draw).keywords
    definitions = {k: kind.pop(k) for k in ("$defs", "definitions") if isinstance(kind, dict) and k in kind}
    return {"type": "object", **definitions, "properties": {"a": kind, "b": {"type": "integer"}}, "required": draw.choice([["a"], ["a", "b"]])}


def test_calls_of_random_functions_fit_their_schemas(grammars):
    called, refused = set(), 0
    for seed in range(60):
        draw = random.Random(f"tools {seed}")
        schemas = [random_function(draw) for _ in range(5)]
        tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i, schema in enumerate(schemas)]
        answer = grammars.send({"tools": tools, "draw": 12, "seed": seed})
        if "refused" in answer:
            assert answer["param"].startswith("tools"), answer
            refused += 1
            continue
        for text in answer["drawn"]:
            call = read(text)
            assert list(call) == ["name", "arguments"]
            schema = schemas[int(call["name"][1:])]
            assert Validator(read(json.dumps(schema)), format_checker=FORMATS).is_valid(call["arguments"]), (seed, text, schema)
            called.add((seed, call["name"]))
    assert len(called) > 200 and refused < 20, (len(called), refused)


@pytest.mark.slow
def test_many_random_schemas_mean_what_another_implementation_says(grammars):
    compare_many(grammars, 10**6, int(os.environ.get("SCHEMAS", 4000)))
