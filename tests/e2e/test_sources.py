"""The whole service with an encoder-decoder: its weights are random, and numpy computes the expected answers."""

import csv
import json
import pathlib
import subprocess
import sys

import pytest

from conftest import BIN
from explanation_samples import data_of_page

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))

from encoder_decoder import BYTE, EncoderDecoder  # noqa: E402


def additive(service, *args, **kw):
    return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, timeout=120, **kw)


def tokens(text):
    return [b + BYTE for b in text.encode()]


@pytest.fixture(scope="module")
def reference():
    return EncoderDecoder(seed=3)


@pytest.fixture(scope="module")
def translator(service, reference, tmp_path_factory):
    folder, files = tmp_path_factory.mktemp("pushed"), reference.files()
    (folder / "config.json").write_bytes(files["config"])
    (folder / "model.safetensors").write_bytes(files["weights"])
    done = additive(service, "models", "push", folder, "translator")
    assert done.returncode == 0, done.stderr
    return "translator"


def texts(service, model, ids):
    return service.ok("POST", "/v1/detokenize", {"model": model, "tokens": ids})["text"]


def test_a_completion_is_what_numpy_computes_whole_streamed_and_at_a_shell(service, translator, reference):
    expected, lead = reference.greedy(tokens("Guten Morgen"), tokens("Good "), 10)
    text, ask = texts(service, translator, expected), {"model": translator, "prompt": "Guten Morgen", "prefix": "Good ", "max_tokens": 10, "temperature": 0}
    assert lead > 1e-3
    whole = service.ok("POST", "/v1/completions", ask)
    assert whole["choices"][0]["text"] == text and whole["usage"]["prompt_tokens"] == len("Guten Morgen") + len("Good ") + 1
    body = service.request("POST", "/v1/completions", {**ask, "stream": True})[1]
    body = body if isinstance(body, str) else body.decode()
    chunks = [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: {")]
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == text
    shown = additive(service, "generate", "--model", translator, "--prefix", "Good ", "--max-tokens", "10", "--temperature", "0", "--json", "Guten Morgen")
    assert shown.returncode == 0, shown.stderr
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert "".join(c["choices"][0]["text"] for c in lines if c["choices"]) == text


def test_a_session_is_opened_with_its_source_over_http_and_at_a_shell(service, translator, reference):
    expected, _ = reference.greedy(tokens("Guten Abend"), [], 10)
    s = service.ok("POST", "/v1/sessions", {"model": translator, "source": "Guten Abend", "durable": True})
    assert s["source_tokens"] == len("Guten Abend")
    service.kill_engine()
    parts = [service.ok("POST", f"/v1/sessions/{s['id']}/generate", {"max_tokens": 5, "temperature": 0, "logprobs": 0})["choices"][0] for _ in range(2)]
    # An incomplete character at the end waits for the session's next bytes.
    assert "".join(p["text"] for p in parts).rstrip("\ufffd") == texts(service, translator, expected).rstrip("\ufffd")
    shown = additive(service, "sessions", "new", "--model", translator, "--source", "Guten Abend", "--json")
    assert shown.returncode == 0 and json.loads(shown.stdout)["source_tokens"] == len("Guten Abend"), shown.stderr
    wrong = additive(service, "sessions", "new", "--model", translator)
    assert wrong.returncode != 0 and b"source" in wrong.stderr


def test_an_explanation_shows_the_source_over_http_at_a_shell_and_on_a_page(service, translator, reference, tmp_path):
    ask, source = {"model": translator, "source": "Guten Abend", "input": "Good"}, "Guten Abend"
    a = service.ok("POST", "/v1/explain", ask | {"aggregate": "mean"})
    c, cross = a["contributions"], reference.attentions(tokens(source), [1, *tokens("Good")])[2]
    assert c["score"] == pytest.approx(sum(c["sums"].values()), abs=1e-4) and len(c["source"]["tokens"]) == len(source)
    assert a["source"]["aggregate"]["alpha"] == pytest.approx(sum(x[:, -1].mean(0) for x in cross) / len(cross), abs=1e-5)
    for method, numbers, form in (("contributions", c["source"]["tokens"], "+.4f"), ("alpha", a["source"]["aggregate"]["alpha"], ".4f")):
        shown = additive(service, "explain", "--model", translator, "--source", source, "--method", method, "Good")
        assert shown.returncode == 0, shown.stderr
        first, best = shown.stdout.decode().split("of the source:")[1].split("\n")[3], max(numbers, key=abs)
        assert first.split()[:2] == [format(best, form), str(numbers.index(best))]
    page = service.request("POST", "/v1/explain", ask, headers={"Accept": "text/html"})[1]
    assert data_of_page(page)["contributions"]["source"]["tokens"] == pytest.approx(c["source"]["tokens"])
    written = tmp_path / "numbers"
    shown = additive(service, "explain", "--model", translator, "--source", source, "--format", "csv", "-o", written, "--svg", tmp_path / "picture", "--html", tmp_path / "page", "Good")
    lines = list(csv.DictReader(written.open(newline="")))
    assert shown.returncode == 0, shown.stderr
    assert [float(line["value"]) for line in lines if line["path"] == "contributions.source.tokens"] == pytest.approx(c["source"]["tokens"], abs=1e-6)
    assert {line["side"] for line in lines} == {"", "text", "source"} and "source:" in (tmp_path / "picture").read_text() and len(data_of_page((tmp_path / "page").read_text())["source"]["tokens"]) == len(source)
    other = "Guten Tag"
    compared = service.ok("POST", "/v1/explain", ask | {"target": {"token": 70}, "compare": {"source": other}})
    second = service.ok("POST", "/v1/explain", ask | {"target": {"token": 70}, "source": other})["contributions"]
    assert compared["compare"]["contributions"] == second and second["source"]["tokens"] != c["source"]["tokens"]
    pairs, of = compared["compare"]["same_source_tokens"], compared["contributions"]["source"]["tokens"]
    assert [(i, j) for i, j, _ in pairs][:6] == [(i, i) for i in range(6)] and len(pairs) == 6
    assert [d for *_, d in pairs] == pytest.approx([second["source"]["tokens"][j] - of[i] for i, j, _ in pairs], abs=1e-5)
    weights = service.ok("POST", "/v1/explain", ask | {"method": "alpha", "aggregate": "mean", "compare": {"source": other}})
    first, second = (x["source"]["aggregate"]["alpha"] for x in (weights, weights["compare"]))
    assert [d for *_, d in weights["compare"]["same_source_tokens"]] == pytest.approx([second[i] - first[i] for i in range(6)], abs=1e-5)
    shown = additive(service, "explain", "--model", translator, "--source", source, "--compare-source", other, "--target", "C", "Good").stdout.decode()
    assert "for equal tokens of the sources" in shown
    page = service.request("POST", "/v1/explain", ask | {"compare": {"source": other}}, headers={"Accept": "text/html"})[1]
    assert len(data_of_page(page)["compare"]["same_source_tokens"]) == 6
    evaluated = additive(service, "explain-evaluate", "--model", translator, "--source", source, "--methods", "contributions", "Good")
    assert evaluated.returncode == 0 and b"deletion_auc" in evaluated.stdout, evaluated.stderr
    wrong = additive(service, "explain", "--model", translator, "Good")
    assert wrong.returncode != 0 and b"source" in wrong.stderr
