"""openapi.yaml is the contract: the tables made from it say the same, the front end has these endpoints and no others."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from http_support import BIN, ROOT, Front

BUILD = BIN.parent
SPEC = yaml.load((ROOT / "proto" / "openapi.yaml").read_text(), Loader=yaml.CSafeLoader)
SCHEMAS = SPEC["components"]["schemas"]
VERBS = {"get", "post", "put", "patch", "delete"}
OPERATIONS = [(verb, path, item[verb]) for path, item in SPEC["paths"].items() for verb in VERBS & item.keys()]


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """A program that knows the tables."""
    program = tmp_path_factory.mktemp("schema") / "schema_dump"
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-D_GNU_SOURCE", "-I", ROOT, "-I", BUILD, "-o", program,
                    ROOT / "tests/api/schema_dump.c", ROOT / "proto/schema.c", ROOT / "proto/nearest.c", BUILD / "gen/schemas.c", "-ljansson"],
                   check=True)
    return program


def resolve(node):
    while "$ref" in node:
        reference, node = node["$ref"], SPEC
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    return node


def walk(node):
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


LOWEST = {"minLength", "minItems", "minProperties"}
# handlers check what tables cannot express
UNSAID = {"description", "default", "oneOf", "dependentSchemas", "propertyNames"}


def plain(node):
    """Return a schema without its texts for people, and with the implicit defaults of JSON Schema."""
    if isinstance(node, list):
        return [plain(n) for n in node]
    if not isinstance(node, dict):
        return float(node) if isinstance(node, int) and not isinstance(node, bool) else node
    if node.get("x-ignored"):
        return {"x-ignored": True}
    out = {k: plain(v) for k, v in node.items()
           if k not in UNSAID and not k.startswith("x-") and not (k in LOWEST and v == 0)}
    if isinstance(node.get("properties"), dict):
        out["properties"] = {k: plain(v) for k, v in node["properties"].items()}
        out["required"] = sorted(node.get("required", []))
    return out


def tables(dump):
    return json.loads(subprocess.run([dump], capture_output=True, check=True, text=True).stdout)


def test_the_tables_say_what_the_yaml_says(dump):
    for name, table in tables(dump).items():
        assert plain(SCHEMAS[name]) == plain(table), name


def test_every_request_schema_of_the_yaml_has_a_table(dump):
    said = {ref["$ref"].rsplit("/", 1)[1] for _, _, op in OPERATIONS
            for kind, ref in ((k, c["schema"]) for k, c in op.get("requestBody", {}).get("content", {}).items())
            if kind == "application/json"}
    assert said and said <= tables(dump).keys()


def test_the_comparison_can_fail(dump):
    table = tables(dump)["CompletionRequest"]
    for change in (lambda t: t["properties"]["n"].update(maximum=17), lambda t: t["properties"].pop("seed"),
                   lambda t: t["properties"].update(extra={"type": "string"}), lambda t: t["required"].pop(),
                   lambda t: t["properties"]["prompt"]["anyOf"][0].update(maxLength=5),
                   lambda t: t["properties"]["suffix"].update(enum=["x"])):
        other = json.loads(json.dumps(table))
        change(other)
        assert plain(SCHEMAS["CompletionRequest"]) != plain(other)


@pytest.mark.parametrize("change, said", [
    (lambda t: t["n"].pop("maximum"), "n: minimum and maximum must both be given"),
    (lambda t: t["n"].update(multipleOf=2), "n: a table cannot express multipleOf"),
    (lambda t: t["model"].update(pattern="^a$"), "model: a table cannot express the pattern"),
])
def test_a_keyword_that_no_table_can_express_ends_the_build(tmp_path, change, said):
    spec = json.loads(json.dumps(SPEC))
    change(spec["components"]["schemas"]["CompletionRequest"]["properties"])
    (tmp_path / "openapi.yaml").write_text(json.dumps(spec))
    done = subprocess.run([sys.executable, ROOT / "proto/generate.py", tmp_path / "openapi.yaml", ROOT / "proto/engine.yaml",
                           tmp_path / "gen"],
                          capture_output=True, text=True)
    assert done.returncode != 0 and said in done.stderr


def test_every_example_is_a_valid_request(dump):
    tried = 0
    for _, path, op in OPERATIONS:
        for body in op.get("requestBody", {}).get("content", {}).values():
            name = body["schema"].get("$ref", "").rsplit("/", 1)[-1]
            examples = [e["value"] for e in body.get("examples", {}).values()] + ([body["example"]] if "example" in body else [])
            for example in examples:
                done = subprocess.run([dump, name], input=json.dumps(example), capture_output=True, text=True)
                assert done.returncode == 0, (path, example, done.stdout)
                tried += 1
    assert tried >= 10


def test_the_document_is_consistent():
    for node in walk(SPEC):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            resolve(node)
    ids = [op["operationId"] for _, _, op in OPERATIONS]
    assert len(ids) == len(set(ids))
    tags = {t["name"] for t in SPEC["tags"]}
    for verb, path, op in OPERATIONS:
        assert set(op["tags"]) <= tags and op["summary"] and op["responses"], (verb, path)
        parameters = [resolve(p) for p in SPEC["paths"][path].get("parameters", []) + op.get("parameters", [])]
        assert [p["name"] for p in parameters if p["in"] == "path"] == re.findall(r"{(\w+)}", path), (verb, path)
    for name, schema in SCHEMAS.items():
        assert set(schema.get("required", [])) <= schema["properties"].keys(), name


def test_the_files_of_a_model_are_those_of_the_list_that_the_programs_share():
    listed = re.findall(r'^MODEL_FILE\("([^"]*)"', (ROOT / "proto/model_files.def").read_text(), re.M)
    parameters = SPEC["paths"]["/v1/models/{id}/files/{name}"]["parameters"]
    assert [p for p in parameters if p.get("name") == "name"][0]["schema"]["enum"] == listed and len(listed) > 10
    description = SPEC["paths"]["/v1/models"]["post"]["description"]
    assert all(f"`{name}`" in description for name in listed)


def test_the_front_end_has_these_endpoints_and_no_others(tmp_path):
    front = Front(f"unix:{tmp_path}/no-engine", connected=False)
    try:
        assert front.get("/openapi.json").json == SPEC
        for path in SPEC["paths"]:
            answer = front.request("PATCH", re.sub(r"\{.*?\}", "x", path))
            verbs = {verb.upper() for verb, p, _ in OPERATIONS if p == path}
            assert answer.status == 405 and set(answer.headers["Allow"].split(", ")) == verbs | ({"HEAD"} if "GET" in verbs else set()), path
    finally:
        front.process.terminate()
        front.process.wait()
