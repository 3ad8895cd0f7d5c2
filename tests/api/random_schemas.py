"""Random JSON Schemas of the part that the engine implements, and texts for them.

`fitting(random)` makes a schema together with a function that writes texts which fit it: in the compact form that the
grammar has (json_grammar.h). `any_keywords(random)` joins keywords without regard to whether a value fits."""

import json
import re
from typing import Callable, NamedTuple

TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"]
NAMES = ["a", "b", "id", "name", "ab", "é", "größe", "日", "x y", 'q"', "tab\t", "$ref", "type"]
CHARACTERS = list("abcxyzABZ019 _-./:\\\"\n\t\x01\x7féß€日😀")
FORMATS = ["date", "time", "date-time", "duration", "uuid", "email", "ipv4", "ipv6", "uri", "hostname", "regex", "uri-reference", "uri-template", "json-pointer", "other"]


class Schema(NamedTuple):
    keywords: object
    text: Callable[[], str]
    types: frozenset  # types that its values have; numbers count as one


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Maker:
    """Schemas with texts; `depth` bounds how deep they are nested."""

    def __init__(self, random):
        self.random = random
        self.definitions = {}

    def some(self, values, least=0, most=None):
        """A few of the values, in their order."""
        n = self.random.randint(min(least, len(values)), min(len(values), most or len(values)))
        return [values[i] for i in sorted(self.random.sample(range(len(values)), n))]

    def chance(self, probability):
        return self.random.random() < probability

    # --- scalars ------------------------------------------------------------------------------------

    def boolean(self, depth):
        return Schema({"type": "boolean"}, lambda: self.random.choice(["true", "false"]), frozenset({"boolean"}))

    def null(self, depth):
        return Schema({"type": "null"}, lambda: "null", frozenset({"null"}))

    def value(self, depth=2):
        kinds = [lambda: self.random.choice([None, True, False]), lambda: self.random.randint(-20, 20),
                 lambda: self.random.choice([0.5, -1.25, 0.1, 1e-7, 12345.678, 3.0, 1e20]), lambda: self.string_value(0, 5)]
        if depth:
            kinds += [lambda: [self.value(depth - 1) for _ in range(self.random.randint(0, 3))],
                      lambda: {name: self.value(depth - 1) for name in self.some(NAMES, 0, 3)}]
        return self.random.choice(kinds)()

    def string_value(self, least, most):
        return "".join(self.random.choice(CHARACTERS) for _ in range(self.random.randint(least, most)))

    def listed(self, depth):
        values = [self.value() for _ in range(self.random.randint(1, 8))]
        spelled = [v for v in values if not re.search("[0-9]e", compact(v))] or [0]  # an exponent has many spellings
        if self.chance(0.3):
            return Schema({"const": spelled[0]}, lambda: compact(spelled[0]), kinds_of(spelled[:1]))
        return Schema({"enum": values + spelled}, lambda: compact(self.random.choice(spelled)), kinds_of(values + spelled))

    def integer(self, depth):
        schema, low, high, step = {"type": "integer"}, -10**6, 10**6, 1
        if self.chance(0.6):
            low = self.random.choice([-5, 0, 1, 7, -1000, 99, 2**31])
            above = self.chance(0.3)
            schema["exclusiveMinimum" if above else "minimum"] = low
            low += above
            high = low + 10**6
        if self.chance(0.6):
            high = low + self.random.choice([0, 1, 9, 50, 12345])
            below = self.chance(0.3)
            schema["exclusiveMaximum" if below else "maximum"] = high + below
        if self.chance(0.3):
            step = self.random.choice([1, 2, 3, 5, 7, 10, 60])
            if -(-low // step) * step <= high:
                schema["multipleOf"] = step
            else:
                step = 1
        first = -(-low // step)
        return Schema(schema, lambda: str(self.random.randint(first, high // step) * step), frozenset({"number"}))

    def number(self, depth):
        """Bounds and values in hundredths."""
        schema, low, high, step = {"type": "number"}, -10**5, 10**5, 1
        if self.chance(0.6):
            low = self.random.choice([-500, 0, 1, 75, -1234, 12300])
            above = self.chance(0.3)
            schema["exclusiveMinimum" if above else "minimum"] = low / 100
            low += above
            high = low + 10**5
        if self.chance(0.6):
            high = low + self.random.choice([0, 1, 25, 100, 9999])
            below = self.chance(0.3)
            schema["exclusiveMaximum" if below else "maximum"] = (high + below) / 100
        if self.chance(0.3):
            step = self.random.choice([1, 5, 25, 50, 100, 250])
            if -(-low // step) * step <= high:
                schema["multipleOf"] = step / 100
            else:
                step = 1
        first = -(-low // step)

        def text():
            n = self.random.randint(first, high // step) * step
            whole = f"{'-' * (n < 0)}{abs(n) // 100}"
            return f"{whole}.{abs(n) % 100:02d}".rstrip("0").rstrip(".")
        return Schema(schema, text, frozenset({"number"}))

    def string(self, depth):
        least, most = self.random.choice([(0, None), (0, 3), (2, 5), (1, None), (4, 4)])
        schema = {"type": "string"} | ({"minLength": least} if least else {}) | ({"maxLength": most} if most else {})
        return Schema(schema, lambda: compact(self.string_value(least, most or least + 6)), frozenset({"string"}))

    # --- patterns -----------------------------------------------------------------------------------

    def atom(self, depth):
        kind = self.random.randint(0, 6 if depth else 4)
        if kind == 0:
            c = self.random.choice(CHARACTERS)
            return re.escape(c) if c.isascii() and not c.isalnum() and c not in '\n\t\x01\x7f"_ -:' else c, lambda: c
        if kind == 1:
            return "[a-c0é]", lambda: self.random.choice("abc0é")
        if kind == 2:
            return "[^a-z\\d]", lambda: self.random.choice("AZ -\"\\")
        if kind == 3:
            return self.random.choice([("\\d", lambda: self.random.choice("0123456789")),
                                       ("\\w", lambda: self.random.choice("azAZ09_")),
                                       ("\\s", lambda: self.random.choice(" \t\n")),
                                       ("\\.", lambda: ".")])
        if kind == 4:
            return ".", lambda: self.random.choice("aZ9 é日😀\\\"")
        parts = [self.sequence(depth - 1) for _ in range(self.random.randint(1, 3))]
        return "(" + "?:" * self.chance(0.5) + "|".join(p for p, _ in parts) + ")", lambda: self.random.choice(parts)[1]()

    def sequence(self, depth):
        pieces = []
        for _ in range(self.random.randint(1, 3)):
            pattern, text = self.atom(depth)
            repetitions = [(1, 1, "")] * 3 + [(0, 1, "?"), (2, 2, "{2}"), (1, 3, "{1,3}")]
            if not pattern.startswith("("):  # repeated groups make the validator try too many ways
                repetitions += [(0, 3, "*"), (1, 3, "+"), (2, 4, "{2,}")]
            least, most, suffix = self.random.choice(repetitions)
            pieces.append((pattern + suffix + "?" * (bool(suffix) and self.chance(0.1)), text, least, most))
        return "".join(p[0] for p in pieces), lambda: "".join(
            "".join(text() for _ in range(self.random.randint(least, most))) for _, text, least, most in pieces)

    def pattern(self):
        """A pattern, and a function that writes strings which match."""
        parts = []
        for _ in range(self.random.choice([1, 1, 1, 2])):
            inner, text = self.sequence(2)
            start, end = self.chance(0.6), self.chance(0.6)
            parts.append(("^" * start + inner + "$" * end, text, start, end))

        def matching():
            _, text, start, end = self.random.choice(parts)
            return ("" if start else self.string_value(0, 2)) + text() + ("" if end else self.string_value(0, 2))
        return "|".join(p[0] for p in parts), matching

    def patterned(self, depth):
        pattern, text = self.pattern()
        return Schema({"type": "string", "pattern": pattern}, lambda: compact(text()), frozenset({"string"}))

    def formatted(self, depth):
        name, texts = self.random.choice([
            ("date", ["2024-02-29", "1999-12-31", "0001-01-01"]), ("time", ["23:59:59Z", "00:00:00.5+01:30"]),
            ("date-time", ["2024-02-29T10:00:00Z", "1970-01-01T00:00:00.123456-08:00"]),
            ("duration", ["P1Y2M3DT4H5M6S", "PT0S", "P3W"]), ("uuid", ["123e4567-e89b-12d3-a456-426614174000"]),
            ("email", ["a.b@example.org"]), ("ipv4", ["0.0.0.0", "192.168.255.1"]),
            ("ipv6", ["::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8"]), ("uri", ["https://example.org/a/b?c=d#e"]),
            ("hostname", ["a.example.org"]), ("binary", ["any text"]), ("password", [""]), ("markdown", ["*a*"]),
            ("regex", ["^[a-z]+$"]), ("uri-reference", ["/a/b?c=d"]), ("json-pointer", ["/a/0"])])
        return Schema({"type": "string", "format": name}, lambda: compact(self.random.choice(texts)), frozenset({"string"}))

    # --- arrays -------------------------------------------------------------------------------------

    def array(self, depth):
        schema, prefix = {"type": "array"}, []
        item = self.any(depth - 1)
        if self.chance(0.3):
            prefix = [self.any(depth - 1) for _ in range(self.random.randint(1, 3))]
            schema["prefixItems"] = [p.keywords for p in prefix]
        closed = prefix and self.chance(0.4)
        schema["items"] = False if closed else item.keywords
        least, most = 0, len(prefix) if closed else len(prefix) + 3
        if self.chance(0.4):
            least = self.random.randint(0, most)
            schema["minItems"] = least
        if self.chance(0.4):
            most = self.random.randint(least, most)
            schema["maxItems"] = most

        def text():
            n = self.random.randint(least, most)
            return "[" + ",".join((prefix[i] if i < len(prefix) else item).text() for i in range(n)) + "]"
        return Schema(schema, text, frozenset({"array"}))

    def unique(self, depth):
        kind = self.random.randint(0, 4)
        if kind == 0:
            words = self.random.sample(["red", "green", "blue", 1, 2, None, True, "x", "y", [1], {"a": 0}], self.random.randint(1, 9))
            item, texts = {"enum": words}, [compact(w) for w in words]
        elif kind == 1:
            low = self.random.randint(-3, 3)
            high = low + self.random.randint(0, 9)
            item, texts = {"type": "integer", "minimum": low, "maximum": high}, [str(i) for i in range(low, high + 1)]
        elif kind == 2:
            item, texts = {"type": "string", "maxLength": 3}, ['""', '"Ab"', '"b"', '"ca"', '"z10"']
        elif kind == 3:
            item, texts = {"type": self.random.choice(["integer", "number"])}, ["-12", "0", "10", "9"]
        else:
            item = {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"const": None}]}
            texts = ["-1", "2", '""', '"a"', '"b"', "true", "false", "null"]
        most = self.random.choice([None, self.random.randint(1, len(texts))])
        least = self.random.randint(0, most or len(texts))

        def text():
            chosen = self.some(texts, least, most)
            if len(texts) <= 6 and kind < 2:
                self.random.shuffle(chosen)
            return "[" + ",".join(chosen) + "]"
        schema = {"type": "array", "items": item, "uniqueItems": True, "minItems": least}
        return Schema(schema | ({"maxItems": most} if most else {}), text, frozenset({"array"}))

    # --- objects ------------------------------------------------------------------------------------

    def object(self, depth, tag=None):
        names = self.some(NAMES, 0, 5)
        self.random.shuffle(names)
        properties = {name: self.any(depth - 1) for name in names}
        if tag:
            properties = {"kind": Schema({"const": tag}, lambda: compact(tag), frozenset({"string"}))} | properties
        required = self.some(list(properties)) + (["kind"] if tag else [])
        required = list(dict.fromkeys(required))
        schema = {"type": "object", "properties": {n: s.keywords for n, s in properties.items()}}
        others = self.any(depth - 1)
        extra = self.random.choice([None, False, True, others.keywords]) if properties else others.keywords
        if extra is not None:
            schema["additionalProperties"] = extra
        if extra not in (None, False) and self.chance(0.2):
            required.append("further")
        if required and (tag is None or self.chance(0.5)):
            schema["required"] = required
        elif not tag:
            required = []

        def text():
            members = [(n, s.text()) for n, s in properties.items() if n in required or self.chance(0.5)]
            if "further" in required:
                members.append(("further", others.text()))
            if extra is True or isinstance(extra, dict):
                members += [(n, others.text()) for n in self.some(["abc", "idx", "z", "kinds", "0"], 0, 2) if n not in properties]
            return "{" + ",".join(f"{compact(n)}:{value}" for n, value in members) + "}"
        if tag and "required" not in schema:
            return Schema(schema, text, frozenset({"untagged"}))
        return Schema(schema, text, frozenset({"object"}))

    def mapping(self, depth):
        value = self.any(depth - 1)
        kind = self.random.randint(0, 3)
        schema = {"type": "object", "additionalProperties": value.keywords}
        name = lambda: self.string_value(0, 4)
        if kind == 0:
            schema["propertyNames"] = {"enum": ["p", "q", "r"]}
            name = lambda: self.random.choice("pqr")
        elif kind == 1:
            schema["propertyNames"] = {"type": "string", "minLength": 1, "maxLength": 3}
            name = lambda: self.string_value(1, 3)
        elif kind == 2:
            pattern, name = self.pattern()
            schema = {"type": "object", "patternProperties": {pattern: value.keywords}, "additionalProperties": False}
        least, most = self.random.choice([(0, None), (0, 2), (1, None), (1, 3)])
        schema |= ({"minProperties": least} if least else {}) | ({"maxProperties": most} if most else {})

        def text():
            members = dict((name(), value.text()) for _ in range(self.random.randint(least, most or 3)))
            return "{" + ",".join(f"{compact(n)}:{t}" for n, t in members.items()) + "}"
        return Schema(schema, text, frozenset({"object"}))

    # --- joins --------------------------------------------------------------------------------------

    def any_of(self, depth):
        parts = [self.any(depth - 1) for _ in range(self.random.randint(1, 4))]
        return Schema({"anyOf": [p.keywords for p in parts]}, lambda: self.random.choice(parts).text(),
                      frozenset().union(*(p.types for p in parts)))

    def one_of(self, depth):
        parts, types = [], frozenset()
        for _ in range(4):
            part = self.any(depth - 1)
            if part.types.isdisjoint(types | {"any"}):
                parts.append(part)
                types |= part.types
        if not parts:
            return self.null(depth)
        return Schema({"oneOf": [p.keywords for p in parts]}, lambda: self.random.choice(parts).text(), types)

    def tagged(self, depth):
        parts = [self.object(depth - 1, tag) for tag in self.some(["cat", "dog", "fish"], 1)]
        return Schema({"oneOf": [p.keywords for p in parts], "discriminator": {"propertyName": "kind"}},
                      lambda: self.random.choice(parts).text(), frozenset({"object"}))

    def all_of(self, depth):
        part = self.any(depth - 1)
        return part._replace(keywords={"allOf": [part.keywords]})

    def reference(self, depth):
        part = self.any(depth - 1)
        name = f"D{len(self.definitions)}/~ [x]"
        self.definitions[name] = part.keywords
        return part._replace(keywords={"$ref": "#/$defs/" + name.replace("~", "~0").replace("/", "~1").replace(" ", "%20")})

    def recursive(self, depth):
        value = self.any(depth - 1)
        name = f"N{len(self.definitions)}"
        self.definitions[name] = {"type": "object", "required": ["value"], "additionalProperties": False, "properties": {
            "value": value.keywords, "children": {"type": "array", "items": {"$ref": f"#/$defs/{name}"}}}}

        def text(left=2):
            children = [text(left - 1) for _ in range(self.random.randint(0, 2))] if left else []
            return '{"value":' + value.text() + (',"children":[' + ",".join(children) + "]" if children or self.chance(0.3) else "") + "}"
        return Schema({"$ref": f"#/$defs/{name}"}, text, frozenset({"object"}))

    def nullable(self, depth):
        part = self.random.choice([self.integer, self.number, self.string, self.patterned, self.mapping, self.array])(depth - 1)
        return Schema(part.keywords | {"type": [part.keywords["type"], "null"]},
                      lambda: "null" if self.chance(0.3) else part.text(), part.types | {"null"})

    def anything(self, depth):
        return Schema(self.random.choice([True, {}]), lambda: self.random.choice(["0", "[]", '{"a":[1,null]}', '"x"', "-1.5e3"]),
                      frozenset({"any"}))

    def any(self, depth):
        scalars = [self.boolean, self.null, self.listed, self.integer, self.number, self.string, self.patterned, self.formatted]
        joins = [self.array, self.unique, self.object, self.object, self.mapping, self.any_of, self.one_of, self.tagged, self.all_of,
                 self.reference, self.recursive, self.nullable, self.anything]
        made = self.random.choice(scalars if depth <= 0 or self.chance(0.3) else joins)(depth)
        if isinstance(made.keywords, dict) and self.chance(0.2):
            note = self.random.choice([{"title": "T"}, {"description": "about"}, {"default": None}, {"examples": [1]},
                                       {"deprecated": True}, {"$comment": "c"}])
            made = made._replace(keywords=note | made.keywords)
        return made


def kinds_of(values):
    names = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
    return frozenset(names[type(v)] for v in values)


def fitting(random):
    """A schema of implemented keywords, and a function that writes texts which fit it."""
    maker = Maker(random)
    made = maker.any(3)
    if not maker.definitions:
        return made
    root = made.keywords if isinstance(made.keywords, dict) else {"anyOf": [made.keywords]}
    return made._replace(keywords=root | {"$defs": maker.definitions})


def any_keywords(random, depth=3):
    """A schema of a few keywords with values of their types, which need not make sense together."""
    maker = Maker(random)
    inner = lambda: any_keywords(random, depth - 1) if depth else random.choice([True, {"type": random.choice(TYPES)}])
    count, names = lambda: random.randint(0, 3), lambda: maker.some(NAMES, 0, 3)
    number = lambda: random.choice([0, 1, -1, 2.5, 10, -0.25, 100, 1e10])
    keywords = {
        "type": lambda: random.choice(TYPES + [random.sample(TYPES, 2)]), "enum": lambda: [maker.value() for _ in range(3)],
        "const": maker.value, "properties": lambda: {n: inner() for n in names()}, "required": names,
        "additionalProperties": lambda: random.choice([True, False, inner()]), "minProperties": count, "maxProperties": count,
        "propertyNames": lambda: random.choice([{"maxLength": 2}, {"pattern": "^[a-z]+$"}, {"enum": ["a", "b"]}]),
        "patternProperties": lambda: {maker.pattern()[0]: inner()}, "items": inner,
        "prefixItems": lambda: [inner() for _ in range(random.randint(1, 3))], "minItems": count, "maxItems": count,
        "uniqueItems": lambda: random.choice([True, False]), "minLength": count, "maxLength": count,
        "pattern": lambda: maker.pattern()[0], "format": lambda: random.choice(FORMATS), "minimum": number, "maximum": number,
        "exclusiveMinimum": number, "exclusiveMaximum": number, "multipleOf": lambda: random.choice([1, 2, 0.5, 0.01, 7, 1e3]),
        "anyOf": lambda: [inner() for _ in range(random.randint(1, 3))], "oneOf": lambda: [inner() for _ in range(random.randint(1, 3))],
        "allOf": lambda: [inner()]}
    groups = [["properties", "required", "additionalProperties", "maxProperties"], ["propertyNames", "additionalProperties", "minProperties"],
              ["items", "prefixItems", "minItems", "maxItems", "uniqueItems"], ["minLength", "maxLength", "pattern", "format"],
              ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"], ["type", "enum", "const"], list(keywords)]
    group = random.choice(groups)
    names_of = random.sample(group, min(len(group), random.choice([1, 2, 2, 3, 4]))) + random.choice([[], ["type"]])
    return {name: keywords[name]() for name in names_of}
