"""Tokenizers as users meet them: trained at a shell, by a job, out of a file; text to tokens over HTTP and back."""

import json
import pathlib
import subprocess

import pytest

from conftest import BIN, SMALL, TEXT
from explanation_samples import data_of_page

DATA = pathlib.Path(__file__).parents[1] / "data" / "tokenizers"


def additive(service, *args, **kw):
    return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, text=True, timeout=60, **kw)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def trained(service, corpus):
    """A model whose tokenizer was trained with it, at a shell."""
    out = additive(service, "train", corpus, "--tokenizer", "sentencepiece", "--vocab-size", "60", "--steps", "20", "--sequence", "32",
                   "--hidden", "32", "--heads", "4", "--layers", "2", "--json")
    assert out.returncode == 0, out
    jobs = service.ok("GET", "/v1/fine_tuning/jobs")["data"]
    return jobs[0]["fine_tuned_model"]


def test_the_shell_trains_a_tokenizer_that_a_job_takes_from_a_file(service, corpus, tmp_path):
    out = additive(service, "tokenizer", "train", corpus, "--out", tmp_path / "made", "--vocab-size", "60", "--model-type", "bpe")
    assert out.returncode == 0, out
    file = json.loads(additive(service, "files", "upload", tmp_path / "made" / "tokenizer.model", "--json").stdout)["id"]
    job = service.job(steps=2, tokenizer={"file": file})
    model = service.wait_job(job["id"])["fine_tuned_model"]
    assert service.ok("GET", f"/v1/models/{model}")["additive"]["tokenizer"] == {"type": "sentencepiece", "vocab_size": 60}


def test_the_shell_says_why_a_tokenizer_cannot_be_trained(service, corpus, tmp_path):
    out = additive(service, "tokenizer", "train", corpus, "--out", tmp_path, "--vocab-size", "60000")
    assert out.returncode == 1 and "vocab_size" in out.stderr and "must be at most" in out.stderr
    out = additive(service, "tokenizer", "train", tmp_path / "none.txt", "--out", tmp_path)
    assert out.returncode == 1 and "none.txt" in out.stderr
    assert additive(service, "tokenizer", "train", corpus).returncode == 2


def test_the_shell_encodes_and_decodes(service, trained):
    shown = json.loads(additive(service, "tokenizer", "show", trained, "--json").stdout)
    assert shown == {"type": "sentencepiece", "vocab_size": 60}
    ids = additive(service, "tokenizer", "encode", "--model", trained, "12 bottles").stdout.split()
    assert ids and additive(service, "tokenizer", "decode", "--model", trained, *ids).stdout == "12 bottles\n"
    table = additive(service, "tokenize", "--model", trained, "12 bottles").stdout.splitlines()
    assert table[0].split() == ["ID", "START", "END", "PIECE", "TEXT"] and len(table) == 1 + len(ids)
    assert additive(service, "tokenizer", "encode", "--model", trained, "--allow-special", "</s>").stdout == "1\n"


def test_tokens_over_http_have_pieces_and_places(service, trained):
    answer = service.ok("POST", "/v1/tokenize", {"model": trained, "text": "12 bottles", "add_special_tokens": True})
    assert answer["pieces"][0]["start"] == 0 and answer["pieces"][-1]["end"] == 10
    assert "".join(p["text"] for p in answer["pieces"]) == "12 bottles"
    status, problem, _ = service.request("POST", "/v1/tokenize", {"model": trained, "text": "x", "allow_special": 1})
    assert status == 400 and problem["error"]["param"] == "allow_special"


def test_a_text_begins_as_its_tokenizer_says_unless_the_shell_or_a_request_asks_otherwise(service):
    file = service.upload((DATA / "llama3" / "tokenizer.json").read_text(), name="tokenizer.json")
    model = service.wait_job(service.job(steps=1, tokenizer={"file": file})["id"])["fine_tuned_model"]
    explained = [json.loads(additive(service, "explain", "--model", model, "the state", "--json", *more).stdout)["tokens"] for more in ((), ("--no-special",))]
    assert len(explained[0]) == len(explained[1]) + 1 and [t["id"] for t in explained[0][1:]] == [t["id"] for t in explained[1]]
    for more, count in (({}, len(explained[0])), ({"add_special_tokens": False}, len(explained[1]))):
        answer = service.ok("POST", "/v1/completions", {"model": model, "prompt": "the state", "max_tokens": 1, **more})
        assert answer["usage"]["prompt_tokens"] == count
        session = service.ok("POST", "/v1/sessions", {"model": model})["id"]
        assert service.ok("POST", f"/v1/sessions/{session}/append", {"text": "the state", **more})["tokens"] == count
    status, problem, _ = service.request("POST", "/v1/completions", {"model": model, "prompt": "x", "add_special_tokens": 1})
    assert status == 400 and problem["error"]["param"] == "add_special_tokens"


def test_a_page_of_an_explanation_has_pieces(service, trained):
    status, page, _ = service.request("POST", "/v1/explain", {"model": trained, "input": "12 bottles of beer"}, headers={"Accept": "text/html"})
    assert status == 200 and any("bottles" in token["text"] for token in data_of_page(page)["tokens"])


def test_a_tokenizer_option_that_is_wrong_is_named(service, corpus):
    body = {"model": "additive", "training_file": service.upload(TEXT), "additive": {**SMALL, "max_steps": 1}}
    for tokenizer, param in (({"type": "sentencepiece", "vocab_size": 90000}, "additive.tokenizer.vocab_size"),
                             ({"type": "sentencepiece", "model_type": "x"}, "additive.tokenizer.model_type"),
                             ({"type": "bytes", "file": "file-1"}, "additive.tokenizer"), ({}, "additive.tokenizer")):
        body["additive"]["tokenizer"] = tokenizer
        status, problem, _ = service.request("POST", "/v1/fine_tuning/jobs", body)
        assert status in (400, 404) and problem["error"]["param"].startswith(param), (tokenizer, problem)
