"""Masks that are filled in: trained and asked at a shell, and over HTTP."""

import json
import random
import subprocess

import pytest

from conftest import BIN

# Blocks of 16 bytes in which either letter follows from the other one.
TEXT = "".join(f"say {x}, and now {x}" for x in random.Random(5).choices("abcdefgh", k=1500))
TRAINING = ("--objective", "fill_mask", "--hidden", "32", "--heads", "2", "--layers", "2", "--sequence", "16", "--batch", "16",
            "--steps", "600", "--lr", "0.003", "--seed", "7")


def additive(service, *args, **kw):
    return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, text=True, timeout=120, **kw)


@pytest.fixture(scope="module")
def filler(service, tmp_path_factory):
    corpus = tmp_path_factory.mktemp("corpus") / "pairs.txt"
    corpus.write_text(TEXT)
    done = additive(service, "train", corpus, *TRAINING)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_the_command_line_trains_an_encoder_for_it(service, filler):
    made = service.ok("GET", f"/v1/models/{filler}")["additive"]
    assert made["architecture"] == "transformer" and made["config"]["stack"] == "encoder" and made["config"]["mask_token_id"] == 259


def test_a_mask_is_filled_in_over_http_and_the_answer_is_that_of_the_command_line(service, filler):
    ask = {"model": filler, "input": ["say f, and now [MASK]", "say [MASK], and [MASK]ow b"], "top_k": 3}
    found = service.ok("POST", "/v1/fill-mask", ask)
    assert [d["text"] for d in found["data"]] == ["say f, and now f", "say b, and now b"]
    assert [len(m["candidates"]) for d in found["data"] for m in d["masks"]] == [3, 3, 3]
    shown = additive(service, "fill-mask", filler, "--json", "--top", "3", *ask["input"])
    assert shown.returncode == 0 and json.loads(shown.stdout) == found
    assert additive(service, "fill-mask", filler, "--json", "--top", "3", input="\n".join(ask["input"])).stdout == shown.stdout


def test_people_see_the_texts_and_the_candidates_of_each_mask(service, filler):
    out = additive(service, "fill-mask", filler, "say c, and n[MASK]w [MASK]")
    lines = out.stdout.splitlines()
    assert out.returncode == 0 and lines[0] == "FILLED IN" and lines[1] == "say c, and now c"
    first, second = (i for i, line in enumerate(lines) if line.startswith("mask "))
    assert lines[first] == "mask 1 of 2" and lines[second] == "mask 2 of 2"
    assert lines[first + 1].split() == ["TOKEN", "PROBABILITY", "TEXT"] and second - first == 8
    token, probability, text = lines[second + 2].split(maxsplit=2)
    assert token == "c" and 0.5 < float(probability) <= 1 and text == "say c, and n[MASK]w c"


def test_what_is_wrong_is_said_in_the_same_words(service, filler, model):
    for name, text, words in ((filler, "no mask", "[MASK]"), (model, "[MASK]", "generates text")):
        status, body, _ = service.request("POST", "/v1/fill-mask", {"model": name, "input": text})
        out = additive(service, "fill-mask", name, text)
        assert status == 400 and words in body["error"]["message"]
        assert out.returncode == 1 and body["error"]["message"] in out.stderr
    assert additive(service, "fill-mask").returncode == 2
