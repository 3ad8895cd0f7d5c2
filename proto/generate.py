#!/usr/bin/env python3
"""Generate C from the contract: generate.py OPENAPI.yaml ENGINE.yaml FOLDER

schemas.h, schemas.c   the tables that schema.h describes: one for every component whose name ends in "Request", and for the
                       components that these refer to; and the engine's methods with tables of their parameters. A keyword
                       that a table cannot express is an error here, except those in UNSAID, which handlers check.
routes.h, routes.c     the front end's endpoints, as server/router.h describes them: one for each operation or body type.
limits.h               their integer bounds and defaults.
recipe.h, recipe.def   the members of TrainingOptions that decide how a model is trained, a row each: all but objects and those
                       with `x-recipe: false`.
sampling.def           the members of CompletionRequest with `x-sampling: true`, a row each.
options.h              rows of command line options: for each request its members with `x-option`, which reads
                       "--NAME VALUE (DEFAULT)". NAME defaults to the member's name; VALUE is the value's name in the help;
                       DEFAULT is the command's own default if it differs from the service's.

The default of a row is `default`, or `x-default` if the service chooses another value for a field that is not given. A
file whose contents would not change is not written, so that a changed description causes no recompilation."""
import os
import re
import sys

import yaml

MADE = "/* Made by proto/generate.py from proto/openapi.yaml. */\n"
NO_NUL = r"^[^\u0000]*$"
MAX_STRING = 16 << 20  # SCHEMA_MAX_STRING
INT64 = (-(1 << 63), (1 << 63) - 1)
# Keywords that a table cannot express; the handlers check them.
UNSAID = {"description", "default", "propertyNames", "oneOf", "dependentSchemas"}


def snake(name):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def number(x):
    return repr(x) if abs(x) < 1 << 63 else repr(float(x))


# Headers that the front end puts beside the params of a REQUEST.
FRAMED = ("X-Request-Timeout", "x-llm-d-inference-fairness-id")


class Tables:
    """The text of schemas.c. Choices, elements and alternatives that several fields share are written once."""

    def __init__(self, components):
        self.components = components
        self.lines = []
        self.names = {}  # names of the parts written so far, by their text
        self.schemas = set()

    def shared(self, kind, name, text):
        """The name of a static object of this text."""
        key = (kind, text)
        if key not in self.names:
            taken = set(self.names.values())
            unique = next(n for n in (name + (str(i) if i > 1 else "") for i in range(1, 1000)) if n not in taken)
            self.names[key] = unique
            self.lines.append(f"static const {kind} {unique}{text};\n")
        return self.names[key]

    def schema(self, name):
        """The name of the table of a component."""
        if name not in self.schemas:
            self.schemas.add(name)
            request = name.endswith("Request")
            symbol = "schema_" + snake(name.removesuffix("Request"))
            node = dict(self.components[name])
            if node.pop("type") != "object" or node.pop("additionalProperties") is not False:
                raise ValueError(f"{name}: a request is an object without unknown members")
            properties, required = node.pop("properties"), node.pop("required", [])
            self.refuse_rest(name, node)
            self.object_table(symbol, name, properties, required, "" if request else "static ")
        return "schema_" + snake(name.removesuffix("Request"))

    def object_table(self, symbol, name, properties, required, scope="static "):
        rows = [self.field(key, value, key in required) for key, value in properties.items()]
        self.lines.append(f"static const field {symbol}_fields[] = {{\n\t" + ",\n\t".join(rows) + ",\n\t{.name = NULL}};\n")
        self.lines.append(f"{scope}const schema {symbol} = {{{quoted(name)}, {symbol}_fields}};\n\n")

    def refuse_rest(self, name, node):
        rest = {k for k in node if k not in UNSAID and not k.startswith("x-")}
        if rest:
            raise ValueError(f"{name}: a table cannot express {', '.join(sorted(rest))}")

    def field(self, name, node, required=False):
        node = dict(node)
        cells = [f".name = {quoted(name)}"]
        if node.pop("x-ignored", False):
            cells.append(".type = FIELD_IGNORED")
        elif "$ref" in node:
            cells += [".type = FIELD_OBJECT", f".nested = &{self.schema(node.pop('$ref').rsplit('/', 1)[1])}"]
        elif "anyOf" in node:
            rows = [self.field(name, a) for a in node.pop("anyOf")]
            text = "[] = {\n\t" + ",\n\t".join(rows) + ",\n\t{.name = NULL}}"
            cells += [".type = FIELD_UNION", f".items = {self.shared('field', name + '_kinds', text)}"]
        else:
            kind = node.pop("type")
            if isinstance(kind, list):
                kind, null = kind
                if null != "null":
                    raise ValueError(f"{name}: a table cannot express two types")
                cells.append(".null = true")
            cells += [f".type = FIELD_{kind.upper()}", *getattr(self, kind)(name, node)]
        self.refuse_rest(name, node)
        if required:
            cells.append(".required = true")
        return "{" + ", ".join(cells) + "}"

    def bounds(self, name, node, least, most, unbounded=(0, 0)):
        """Both or neither; (0, 0) is a table's word for neither."""
        low, high = node.pop(least, unbounded[0]), node.pop(most, unbounded[1])
        if (low, high) == unbounded:
            return []
        if high == unbounded[1] or (low, high) == (0, 0):
            raise ValueError(f"{name}: {least} and {most} must both be given")
        return [f".min = {number(low)}", f".max = {number(high)}"]

    def choices(self, name, words):
        text = "[] = {" + ", ".join(map(quoted, words)) + ", NULL}"
        return f".choices = {self.shared('char *const', name + '_choices', text)}"

    def string(self, name, node):
        if "enum" in node:
            return [self.choices(name, node.pop("enum"))]
        pattern = node.pop("pattern", None)
        if pattern not in (None, NO_NUL):
            raise ValueError(f"{name}: a table cannot express the pattern {pattern}")
        if "maxLength" not in node:
            raise ValueError(f"{name}: a string needs a maxLength")
        return self.bounds(name, node, "minLength", "maxLength", (0, MAX_STRING)) + ([] if pattern else [".nul = true"])

    def integer(self, name, node):
        return self.bounds(name, node, "minimum", "maximum", INT64)

    def number(self, name, node):
        if "exclusiveMinimum" in node:
            return self.bounds(name, node, "exclusiveMinimum", "maximum") + [".exclusive = true"]
        return self.bounds(name, node, "minimum", "maximum")

    def boolean(self, name, node):
        return [self.choices(name, ["true" if x else "false" for x in node.pop("enum")])] if "enum" in node else []

    def items(self, name, node, key):
        if key not in node:
            return []
        return [f".items = &{self.shared('field', name + '_item', ' = ' + self.field(name, node.pop(key)))}"]

    def object(self, name, node):
        return self.bounds(name, node, "minProperties", "maxProperties") + self.items(name, node, "additionalProperties")

    def array(self, name, node):
        if node.get("maxItems") == 0:
            del node["maxItems"]
            return [".min = -1"]  # two zeros are a table's word for no bounds
        return self.bounds(name, node, "minItems", "maxItems") + self.items(name, node, "items")


def resolve(spec, node):
    if "$ref" in node:
        for part in node["$ref"].removeprefix("#/").split("/"):
            spec = spec[part.replace("~1", "/")]
        return spec
    return node


def with_parts(spec, node):
    """engine.yaml with what it refers to in openapi.yaml; references to whole components stay."""
    if not isinstance(node, dict) or "/schemas/" in node.get("$ref", ""):
        return node
    if "$ref" in node:
        part = resolve(spec, node)
        return part.get("schema", part)
    return {key: with_parts(spec, value) for key, value in node.items()}


def endpoints(spec):
    """(verb, path, operation with the members of a body's type, that type or None, parameters by name) of each."""
    for path, item in spec["paths"].items():
        for verb in ("get", "post", "put", "patch", "delete"):
            operation = item.get(verb)
            contents = (operation or {}).get("requestBody", {}).get("content", {None: {}})
            for kind, content in contents.items() if operation else ():
                parameters = [resolve(spec, p) for p in item.get("parameters", []) + operation.get("parameters", [])]
                fitting = {p["name"]: p for p in parameters if p.get("x-content", kind) == kind}
                yield verb.upper(), path, operation | content, kind, fitting


class Methods:
    """The rows of schema_methods: those that engine.yaml has, and one for each operation that names a method."""

    def __init__(self, spec, engine, tables):
        self.spec, self.engine, self.tables = spec, engine, tables
        self.rows = {name: self.listed(name, node or {}) for name, node in engine["methods"].items()}
        for _, path, operation, kind, parameters in endpoints(spec):
            name = operation.get("x-engine-method")
            if name and name not in self.rows:
                self.rows[name] = self.derived(path, operation, kind, parameters)

    def row(self, params, **flags):
        return "".join([f".params = &{params or 'nothing'}", *(f", .{k} = true" for k, v in flags.items() if v)])

    def listed(self, name, node):
        params, symbol = node.get("params", {}), None
        if "$ref" in params:
            symbol = self.extended(name, params["$ref"].rsplit("/", 1)[1], node.get("more"))
        elif params:
            symbol = name.replace(".", "_") + "_params"
            self.tables.object_table(symbol, name, params, node.get("required", []))
        return self.row(symbol, **{k: node.get(k) for k in ("id", "upload", "keyed")})

    def extended(self, name, component, more):
        """The table of a component, with more members."""
        if not more:
            return self.tables.schema(component)
        symbol, node = name.replace(".", "_") + "_params", self.tables.components[component]
        self.tables.object_table(symbol, component, node["properties"] | more, node.get("required", []))
        return symbol

    def derived(self, path, operation, kind, parameters):
        if kind not in (None, "application/json") or parameters.keys() - {"id", "Idempotency-Key", *FRAMED}:
            raise ValueError(f"{operation['operationId']}: engine.yaml must have the parameters of {operation['x-engine-method']}")
        symbol = self.tables.schema(operation["schema"]["$ref"].rsplit("/", 1)[1]) if kind else None
        return self.row(symbol, id="{id}" in path, keyed="Idempotency-Key" in parameters)


def schemas(spec, engine):
    components = spec["components"]["schemas"]
    tables = Tables(components | engine["components"]["schemas"])
    names = [tables.schema(name) for name in components if name.endswith("Request")]
    methods = Methods(spec, engine, tables)
    rows = "".join(f"\t{{.name = {quoted(name)}, {row}}},\n" for name, row in methods.rows.items())
    return {
        "schemas.h": "#ifndef GEN_SCHEMAS_H\n#define GEN_SCHEMAS_H\n\n#include \"proto/schema.h\"\n\nextern const schema "
        + ",\n\t".join(names) + ";\n/* Every schema above, NULL-terminated. */\nextern const schema *const schema_all[];\n"
        "/* Ends with a NULL name. */\nextern const schema_method schema_methods[];\n\n#endif\n",
        "schemas.c": '#include "gen/schemas.h"\n\n' + "".join(tables.lines)
        + "const schema *const schema_all[] = {\n\t&" + ",\n\t&".join(names) + ",\n\tNULL};\n\n"
        + 'static const schema nothing = {"nothing", (const field[]){{.name = NULL}}};\n'
        + "const schema_method schema_methods[] = {\n" + rows + "\t{.name = NULL}};\n",
        "limits.h": "#ifndef GEN_LIMITS_H\n#define GEN_LIMITS_H\n\nenum {\n"
        + "".join(f"\t{name} = {value},\n" for component in sorted(tables.schemas) if component in components
                  for name, value in limits(component, components[component])) + "};\n\n#endif\n",
    }


LIMITS = {"minimum": "min", "maximum": "max", "default": "default", "x-default": "default", "maxItems": "max_items",
          "maxLength": "max_bytes"}


def limits(component, schema):
    """Constants that an int holds, where the alternatives of a field have no two of a kind."""
    for name, node in schema["properties"].items():
        kinds = [kind for kind in [node, *node.get("anyOf", [])] if kind.get("type") != "number"]
        for key, word in LIMITS.items():
            values = [kind[key] for kind in kinds if isinstance(kind.get(key), int)]
            if len(values) == 1 and not isinstance(values[0], bool) and abs(values[0]) < 1 << 31:
                yield constant(snake(component.removesuffix("Request")), f"{name}_{word}"), values[0]


BODIES = {"application/json": "JSON", "multipart/form-data": "FORM", "application/octet-stream": "OCTETS"}


def query_field(tables, name, node, own):
    """own: the handler checks it."""
    cells = [f".name = {quoted(name)}"]
    if own or node.get("type") in (None, "boolean"):
        cells.append(".type = FIELD_ANY")
    elif node["type"] == "integer":
        cells += [".type = FIELD_INTEGER", *tables.integer(name, dict(node))]
    else:
        cells.append(f".type = FIELD_{node['type'].upper()}")
        cells += [tables.choices(name, node["enum"])] if "enum" in node else []
        cells += tables.bounds(name, dict(node), "minProperties", "maxProperties") if node["type"] == "object" else []
    return "{" + ", ".join(cells) + "}"


def routes(spec, _engine):
    tables = Tables(spec["components"]["schemas"])
    rows, handlers = [], set()
    for verb, path, operation, kind, parameters in endpoints(spec):
        handler = operation.get("x-handler", "forward_handle")
        handlers.add(handler)
        cells = [f".method = {quoted(verb)}", f".path = {quoted(path)}", f".handle = {handler}"]
        if "x-engine-method" in operation:
            cells.append(f".engine_method = {quoted(operation['x-engine-method'])}")
        cells.append(f".role = ROLE_{operation.get('x-role', 'admin').upper()}")
        if kind:
            cells.append(f".body = BODY_{BODIES[kind]}")
        if kind == "application/json":
            cells.append(f".schema = &schema_{snake(operation['schema']['$ref'].rsplit('/', 1)[1].removesuffix('Request'))}")
            cells += [] if operation["requestBody"].get("required") else [".optional = true"]
        query = {name: p["schema"] for name, p in parameters.items() if p["in"] == "query"}
        if query:
            fields = [query_field(tables, name, node, "x-query" in operation) for name, node in query.items()]
            symbol = tables.shared("field", snake(operation["operationId"]) + "_query", "[] = {\n\t" + ",\n\t".join(fields) + ",\n\t{.name = NULL}}")
            cells.append(f".query = {symbol}")
        flags = {"idempotent": "Idempotency-Key" in parameters, "timed": "X-Request-Timeout" in parameters,
                 "open": operation.get("security") == [{}], "always": operation.get("x-always")}
        rows.append("{" + ", ".join(cells + [f".{k} = true" for k, v in flags.items() if v]) + "}")
    return {
        "routes.h": "#ifndef GEN_ROUTES_H\n#define GEN_ROUTES_H\n\n#include \"server/router.h\"\n\n"
        + "".join(f"void {h}(struct request *r);\n" for h in sorted(handlers))
        + "\n/* Ends with a NULL method. */\nextern const route router_rows[];\n\n#endif\n",
        "routes.c": '#include "gen/routes.h"\n\n#include "gen/schemas.h"\n\n' + "".join(tables.lines)
        + "\nconst route router_rows[] = {\n\t" + ",\n\t".join(rows) + ",\n\t{.method = NULL}};\n",
    }


def default(name, node):
    if "default" not in node and "x-default" not in node:
        raise ValueError(f"{name}: a row needs a default, or x-default")
    return node.get("x-default", node.get("default"))


def kind_of(name, node):
    """The row that describes a property: the macro, and its arguments after the name."""
    otherwise = default(name, node)
    if node["type"] == "boolean":
        return "FLAG", [str(otherwise).lower()]
    if "enum" in node:
        return "CHOICE", [constant(name, otherwise)]
    if node["type"] == "array" and node["minItems"] == node["maxItems"] == 2:
        return "PAIR", [number(node["items"][key]) for key in ("minimum", "maximum")] + [number(x) for x in otherwise]
    if node["type"] not in ("integer", "number"):
        raise ValueError(f"{name}: there is no row for the type {node['type']}")
    above = "exclusiveMinimum" in node
    least = node["exclusiveMinimum" if above else "minimum"]
    rest = [number(least), number(node["maximum"]), number(otherwise)]
    return node["type"].upper(), rest if node["type"] == "integer" else [str(above).lower(), *rest]


def constant(name, word):
    return f"{name}_{word}".upper()


def rows_file(about, properties, parameters):
    """Rows for a file that includes this one with the macros that it wants defined."""
    head = "".join(f"#ifndef {macro}\n#define {macro}(...) /* {macro}({words}) */\n#endif\n" for macro, words in parameters.items())
    rows = "".join("{}({})\n".format(macro, ", ".join([name, *rest]))
                   for name, node in properties.items() for macro, rest in [kind_of(name, node)])
    return f"/* {about} */\n{head}{rows}" + "".join(f"#undef {macro}\n" for macro in parameters)


ROW = {"INTEGER": "name, min, max, default", "NUMBER": "name, is min itself excluded, min, max, default"}


def recipe(spec, _engine):
    every = spec["components"]["schemas"]["TrainingOptions"]["properties"]
    rows = {k: v for k, v in every.items() if v.get("type", "object") != "object" and v.get("x-recipe", True)}
    text = "#ifndef GEN_RECIPE_H\n#define GEN_RECIPE_H\n\n"
    for name, node in rows.items():
        if "enum" in node:
            text += f"typedef enum train_{name} {{ {', '.join(constant(name, w) for w in node['enum'])} }} train_{name};\n"
            text += f"#define RECIPE_WORDS_{name} {', '.join(map(quoted, node['enum']))}\n"
    more = {"FLAG": "name, default", "CHOICE": "name, default", "PAIR": "name, min, max, defaults"}
    return {"recipe.h": text + "\n#endif\n",
            "recipe.def": rows_file("TrainingOptions, without the fields that only the job reads.", rows, ROW | more)}


def sampling(spec, _engine):
    every = spec["components"]["schemas"]["CompletionRequest"]["properties"]
    rows = {k: v for k, v in every.items() if v.get("x-sampling")}
    return {"sampling.def": rows_file("How a token is sampled.", rows, ROW)}


def option_parts(name, node):
    """Parts of `x-option`: the option's name, the value's name in the help, and the command's own default."""
    given, value, otherwise = re.fullmatch(r"(?:--([a-z-]+))? ?([^ ()]*)(?: \(([^()]+)\))?", node["x-option"]).groups()
    return given or name.replace("_", "-"), value, otherwise


def option_names(spec):
    """The options by the names of their fields."""
    return {name: option_parts(name, node)[0] for schema in spec["components"]["schemas"].values()
            for name, node in schema.get("properties", {}).items() if "x-option" in node}


def words_of(node):
    """The words that a value, or each item of it, is chosen from."""
    return node.get("enum") or node.get("items", {}).get("enum")


def help_text(names, node, otherwise):
    """The first sentence of the description, and the default."""
    text = re.sub(r"\.( .*)?$", "", node["description"].strip().replace("\n", " "))
    text = re.sub(r"`([^`]*)`", lambda m: "--" + names[m[1]] if m[1] in names else m[1], text)
    text = text if re.search("[A-Z]", text.split(" ")[0][1:]) else text[0].lower() + text[1:]
    otherwise = node.get("default") if otherwise is None else otherwise
    text = f"do not {text}" if otherwise is True else text
    return text if otherwise is None or isinstance(otherwise, (bool, list)) else f"{text} ({otherwise})"


def option_type(name, node):
    kinds = node.get("anyOf", [node])
    kinds = kinds[1:] if "enum" in kinds[0] and len(kinds) > 1 else kinds  # "all", "auto"
    plain = {"boolean": "FLAG", "string": "TEXT", "integer": "INTEGER", "number": "NUMBER"}
    if kinds[0]["type"] == "array":
        kind = {"integer": "SELECTION" if "anyOf" in node else "INTEGERS", "string": "WORDS"}.get(kinds[0]["items"]["type"])
    elif len(kinds) > 1 and kinds[1].get("items", {}).get("type") == "string":
        kind = "TEXTS"
    else:
        kind = plain.get(min(kinds, key=lambda k: k["type"] != "string")["type"])  # a text may be any of them
    if not kind:
        raise ValueError(f"{name}: there is no option of this type")
    return "OPTION_OFF" if node.get("default") is True else f"OPTION_{kind}"


def option_rows(spec, names, properties, path, rows, defaults):
    """Rows by their names: of an object that is met twice, the first."""
    for name, node in properties.items():
        if "$ref" in node:
            option_rows(spec, names, resolve(spec, node)["properties"], f"{path}{name}.", rows, defaults)
        if "x-option" not in node:
            continue
        option, value, otherwise = option_parts(name, node)
        if words_of(node) and "|" not in value:
            value += ":" + "|".join(words_of(node))
        cells = [quoted(option), option_type(name, node), quoted(value) if value else "NULL",
                 quoted(help_text(names, node, otherwise)), quoted(path + name)]
        if option not in rows and otherwise is not None:
            defaults[option] = otherwise if otherwise.isdigit() else quoted(otherwise)
        rows.setdefault(option, "{" + ", ".join(cells) + "}")


def options(spec, _engine):
    text = '#ifndef GEN_OPTIONS_H\n#define GEN_OPTIONS_H\n\n#include "proto/options.h"\n\n'
    for component, node in spec["components"]["schemas"].items():
        rows, defaults = {}, {}
        if component.endswith("Request"):
            option_rows(spec, option_names(spec), node["properties"], "", rows, defaults)
        request = constant(snake(component.removesuffix("Request")), "OPTIONS")
        if rows:
            text += f"#define {request} \\\n\t" + ", \\\n\t".join(rows.values()) + "\n"
        text += "".join(f"#define {request}_{snake(k).upper().replace('-', '_')} {v}\n" for k, v in defaults.items())
    return {"options.h": text + "\n#endif\n"}


def write(path, text):
    try:
        with open(path, encoding="utf-8") as f:
            if f.read() == text:
                return
    except FileNotFoundError:
        pass
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def main():
    *sources, folder = sys.argv[1:]
    documents = []
    for source in sources:
        with open(source, encoding="utf-8") as f:
            documents.append(yaml.load(f, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    documents[1] = with_parts(*documents)
    os.makedirs(folder, exist_ok=True)
    for make in (schemas, routes, recipe, sampling, options):
        for name, text in make(*documents).items():
            write(os.path.join(folder, name), MADE + text)


try:
    main()
except ValueError as wrong:
    sys.exit(f"{sys.argv[1]}: {wrong}")
