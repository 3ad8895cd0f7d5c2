"""Models kept in memory as bf16 and int8: the choice and the sessions made with it survive."""

import json
import subprocess

from conftest import BIN


def load(service, model, dtype):
    return service.ok("POST", f"/v1/models/{model}/load", {"dtype": dtype})["additive"]


def listed(service, model):
    return next(m["additive"]["dtype"] for m in service.ok("GET", "/v1/models")["data"] if m["id"] == model)


def generate(service, session, **ask):
    return service.ok("POST", f"/v1/sessions/{session}/generate", ask)["choices"][0]["text"]


def test_a_model_is_served_as_asked_for(service, model):
    def likeliest():
        answer = service.ok("POST", "/v1/completions", {"model": model, "prompt": "57 bottles of ", "max_tokens": 1,
                                                        "temperature": 0, "logprobs": 1})
        return answer["choices"][0]["logprobs"]["token_logprobs"][0]

    said = {}
    for dtype in ("fp32", "int8", "bf16"):
        assert load(service, model, dtype)["dtype"] == dtype == listed(service, model)
        assert service.ok("POST", f"/v1/models/{model}/load")["additive"]["dtype"] == dtype
        said[dtype] = likeliest()
    assert len(set(said.values())) == 3
    assert not max(abs(said[d] - said["fp32"]) for d in said) > 0.2, said


def test_the_command_line_chooses_too(service, model):
    def additive(*args):
        return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, text=True, timeout=60)

    done = additive("models", "load", model, "--dtype", "bf16", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["additive"]["dtype"] == "bf16"
    rows = additive("models", "list").stdout.splitlines()
    assert "DTYPE" in rows[0] and "bf16" in next(r for r in rows if r.startswith(model))
    wrong = additive("models", "load", model, "--dtype", "fp8")
    assert wrong.returncode == 1 and "dtype" in wrong.stderr and "int8" in wrong.stderr


def test_errors_name_the_field_and_the_reason(service, model):
    load(service, model, "fp32")
    status, answer, _ = service.request("POST", f"/v1/models/{model}/load", {"dtype": "float16"})
    assert status == 400 and answer["error"]["param"] == "dtype"
    s = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "1"})["id"]
    state = service.ok("GET", f"/v1/sessions/{s}/state")
    status, answer, _ = service.request("POST", f"/v1/models/{model}/load", {"dtype": "int8"})
    assert status == 409 and answer["error"]["code"] == "model_in_use"
    service.ok("DELETE", f"/v1/sessions/{s}")
    load(service, model, "int8")
    status, answer, _ = service.request("POST", f"/v1/sessions?model={model}", state, {"Content-Type": "application/octet-stream"})
    assert status == 400 and answer["error"]["param"] == "state"


def test_a_durable_int8_session_survives_kill_9(own_service):
    service = own_service
    model = service.wait_job(service.job(steps=30)["id"])["fine_tuned_model"]
    load(service, model, "int8")
    ask = {"max_tokens": 8, "temperature": 0.8, "seed": 5, "logit_bias": {"1": -100}}
    one, two = (service.ok("POST", "/v1/sessions", {"model": model, "prompt": "9 bottles", "durable": True})["id"] for _ in range(2))
    uninterrupted = [generate(service, one, **ask) for _ in range(3)]
    parts = [generate(service, two, **ask)]
    service.kill_engine()
    assert listed(service, model) == "int8"
    parts += [generate(service, two, **ask) for _ in range(2)]
    assert parts == uninterrupted and listed(service, model) == "int8"
