"""Evaluations of explanations over HTTP: every answer conforms to the contract."""

import pathlib

import yaml

SPEC = yaml.load((pathlib.Path(__file__).parents[2] / "proto/openapi.yaml").read_text(), Loader=yaml.CSafeLoader)
KINDS = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
TEXT = "45 bottles of beer on the wall"


def misfit(value, schema, where="answer"):
    """Return the first place where a value does not fit the schema; None: it fits. Members that the schema lacks are
    errors."""
    if "$ref" in schema:
        return misfit(value, SPEC["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], where)
    if "anyOf" in schema:
        found = [misfit(value, option, where) for option in schema["anyOf"]]
        return None if None in found else found[0]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(isinstance(value, KINDS[kind]) for kind in kinds) or value not in schema.get("enum", [value]):
        return where
    if isinstance(value, dict) and "properties" in schema:
        strange = (set(schema.get("required", [])) - value.keys()) | (value.keys() - schema["properties"].keys())
        inner = [misfit(x, schema["properties"][key], f"{where}.{key}") for key, x in value.items() if key in schema["properties"]]
        return f"{where}: {strange}" if strange else next(filter(None, inner), None)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return where
        return next(filter(None, (misfit(x, schema["items"], f"{where}[{i}]") for i, x in enumerate(value))), None)
    return None


def fits(value, name):
    wrong = misfit(value, {"$ref": "#/components/schemas/" + name})
    assert wrong is None, wrong
    return value


def test_an_input_and_a_file_are_evaluated_as_the_contract_says(service, model):
    request = {"model": model, "methods": ["contributions", "alpha"], "bootstrap": 100, "spread": 3}
    evaluation = fits(service.ok("POST", "/v1/explain/evaluate", request | {"input": TEXT, "rows": True}), "ExplainEvaluation")
    assert [m["method"] for m in evaluation["methods"]] == ["contributions", "alpha", "random", "recency"]
    assert all(len(m["numbers"]) == len(evaluation["metrics"]) for m in evaluation["methods"])
    assert len(evaluation["rows"]) == evaluation["positions"] == 3
    file = service.upload(f"{TEXT}\n12 {TEXT}\n")
    job = fits(service.ok("POST", "/v1/explain/evaluate", request | {"file": file}), "ExplainEvaluationJob")
    path = f"/v1/explain/evaluations/{job['id']}"
    while job["status"] not in ("succeeded", "failed"):
        job = fits(service.ok("GET", path), "ExplainEvaluationJob")
    assert job["status"] == "succeeded" and job["result"]["texts"] == 2
    texts = service.ok("GET", path + "/rows?limit=1")
    assert texts["has_more"] and texts["data"][0]["text"] == 1
    fits(texts["data"][0], "ExplainEvaluationText")
    assert service.ok("GET", "/v1/explain/evaluations")["data"][0] == job
    assert service.request("POST", path + "/cancel")[0] == 409
    assert service.request("DELETE", path)[0] == 200 and service.request("GET", path)[0] == 404


def test_the_check_finds_what_the_contract_does_not_have(service, model):
    evaluation = service.ok("POST", "/v1/explain/evaluate", {"model": model, "methods": ["alpha"], "input": TEXT})
    name = {"$ref": "#/components/schemas/ExplainEvaluation"}
    assert misfit(evaluation, name) is None
    evaluation["methods"][0]["numbers"][0]["less_random"]["mean"] = "much"
    assert misfit(evaluation, name) == "answer.methods[0].numbers[0].less_random.mean"
    del evaluation["methods"][0]["numbers"][0]["less_random"]
    assert "less_random" in misfit(evaluation, name)
