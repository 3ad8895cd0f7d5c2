"""Libraries that users have. Those that are too large to install here are replayed. tests/data/clients holds the
requests that they sent in a real run; each test reads the answers as the library does."""

import json
import pathlib
import subprocess

import pytest

from conftest import SMALL

TESTS = pathlib.Path(__file__).parents[1]
PYTHON = TESTS.parent / "build" / "clients-venv" / "bin" / "python"


@pytest.fixture(scope="module")
def chatty(service):
    """A model with room for a schema in its prompt."""
    done = service.wait_job(service.job(steps=20, config=SMALL["config"] | {"n_positions": 512})["id"])
    return done["fine_tuned_model"]


@pytest.mark.slow
def test_libraries_for_structured_output_get_their_objects(service, chatty):
    done = subprocess.run([PYTHON, TESTS / "clients" / "structured.py", service.url + "/v1", chatty], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert len(found) == 5 and all(set(label) == {"colour", "certain"} for label in found.values()), found


def replay(service, model, name):
    """(request, answer) for each request of a client."""
    recorded = json.loads((TESTS / "data" / "clients" / f"{name}.json").read_text())
    for request in recorded["requests"]:
        body = request["body"] and request["body"] | {"model": model}
        yield request["body"], service.ok(request["method"], request["path"], body)


@pytest.mark.parametrize("name", ["instructor", "langchain_openai"])
def test_requests_for_structured_output_give_objects_of_the_schema(service, chatty, name):
    for request, answer in replay(service, chatty, name):
        text = answer["choices"][0]["message"]["content"] if "choices" in answer else answer["output"][0]["content"][0]["text"]
        label = json.loads(text)
        assert label["colour"] in ("red", "green") and isinstance(label["certain"], bool) and len(label) == 2


def test_captum_gets_the_log_probability_of_each_token_of_its_target(service, model):
    """Its provider takes the last elements, each with the one token of the prompt, for the tokens of " of beer"."""
    targets = 0
    for request, answer in replay(service, model, "captum"):
        if request is None:
            assert model in [m["id"] for m in answer["data"]]
        elif "prompt_logprobs" in request:
            ids = service.ok("POST", "/v1/tokenize", {"model": model, "input": request["prompt"]})["tokens"]
            last = answer["choices"][0]["prompt_logprobs"][-len(" of beer"):]
            assert [list(at) for at in last] == [[str(i)] for i in ids[-len(" of beer"):]]
            echoed = service.ok("POST", "/v1/completions", {"model": model, "prompt": request["prompt"], "max_tokens": 0, "echo": True, "logprobs": 0})
            expected = echoed["choices"][0]["logprobs"]["token_logprobs"][-len(" of beer"):]
            assert [next(iter(at.values()))["logprob"] for at in last] == pytest.approx(expected, abs=1e-5)
            targets += 1
        else:
            assert answer["choices"][0]["text"]
    assert targets == 2


def test_lm_eval_gets_the_log_probabilities_of_continuations_and_texts(service, model):
    scores = generated = 0
    for request, answer in replay(service, model, "lm_eval"):
        choices = sorted(answer["choices"], key=lambda c: c["index"])
        if not request.get("echo"):
            assert all(c["text"] if "text" in c else c["message"]["content"] for c in choices)
            generated += 1
            continue
        prompts = request["prompt"] if isinstance(request["prompt"], list) else [request["prompt"]]
        for prompt, choice in zip(prompts, choices, strict=True):
            lp = choice["logprobs"]
            assert len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(prompt) + 1 and lp["token_logprobs"][0] is None
            assert all(isinstance(x, float) for x in lp["token_logprobs"][1:])
            # A continuation is greedy where each of its numbers is the largest one, bit for bit.
            assert all(x <= max(top.values()) for x, top in zip(lp["token_logprobs"][1:], lp["top_logprobs"][1:]))
            scores += 1
    assert (scores, generated) == (5, 3)
