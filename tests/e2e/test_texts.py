"""Classes and vectors of texts, as users ask for them: over HTTP, by the OpenAI client, at a shell."""

import json
import pathlib
import subprocess
import sys

import numpy
import openai
import pytest

from conftest import BIN

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))
import folders

BYTE, END = 3, 1


def additive(service, *args, **kw):
    return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, text=True, timeout=60, **kw)


@pytest.fixture(scope="module")
def weights():
    return folders.encoder_weights()


@pytest.fixture(scope="module")
def encoder(service, weights, tmp_path_factory):
    folder = folders.write(tmp_path_factory.mktemp("made") / "encoder", folders.encoder_config(), weights)
    assert additive(service, "models", "import", "encoder", folder).returncode == 0
    return "encoder"


def likeliest(weights, text):
    p = folders.encoder_probabilities(weights, [*(b + BYTE for b in text.encode()), END])
    return ["yes", "no", "perhaps"][p.argmax()], p.max()


def test_a_text_is_classified_over_http(service, encoder, weights):
    label, probability = likeliest(weights, "Once upon a time")
    found = service.ok("POST", "/v1/classify", {"model": encoder, "input": "Once upon a time"})["data"][0]
    assert found["label"] == label and abs(found["probability"] - probability) < 1e-5


def test_a_classifier_does_not_generate(service, encoder):
    for path, more in (("/v1/completions", {"prompt": "a"}), ("/v1/sessions", {}), ("/v1/sessions", {"prompt": "a"})):
        status, body, _ = service.request("POST", path, {"model": encoder, **more})
        assert status == 400 and body["error"]["param"] == "model", (path, body)
    status, body, _ = service.request("POST", "/v1/completions", {"model": encoder, "prompt": "a", "stream": True})
    assert status == 400 and body["error"]["param"] == "model"


def test_the_openai_client_gets_vectors(client, model):
    texts = ["one", "two bottles of beer"]
    plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
    own = client.embeddings.create(model=model, input=texts)  # this client asks for base64
    assert plain.object == "list" and plain.usage.prompt_tokens == plain.usage.total_tokens == sum(map(len, texts))
    for i, (a, b) in enumerate(zip(plain.data, own.data)):
        assert a.index == b.index == i and len(a.embedding) == 32
        assert numpy.array_equal(numpy.float32(a.embedding), numpy.float32(b.embedding))
    tokens = [b + BYTE for b in b"one"]
    assert client.embeddings.create(model=model, input=tokens).data[0].embedding == own.data[0].embedding
    with pytest.raises(openai.BadRequestError) as e:
        client.embeddings.create(model=model, input="one", dimensions=7)
    assert e.value.param == "dimensions"


def test_linear_attention_gives_vectors(service):
    done = service.wait_job(service.job(steps=2, architecture="linear")["id"])
    ask = {"model": done["fine_tuned_model"], "input": ["one", "two"]}
    mean, last = (service.ok("POST", "/v1/embeddings", {**ask, "pooling": p}) for p in ("mean", "last"))
    assert [len(d["embedding"]) for d in mean["data"]] == [32, 32] and mean["data"] != last["data"]
    long = service.ok("POST", "/v1/embeddings", {**ask, "input": "one" * 10000})
    assert long["usage"]["prompt_tokens"] == 30000 and len(long["data"][0]["embedding"]) == 32


def test_the_shell_trains_a_classifier_where_the_objective_needs_one(service, tmp_path):
    (tmp_path / "train.jsonl").write_text("".join(f'{{"text": "number {i}", "label": {i % 2}}}\n' for i in range(20)))
    out = additive(service, "train", tmp_path / "train.jsonl", "--objective", "classification", "--steps", "1", "--detach", "--json")
    assert out.returncode == 0 and json.loads(out.stdout)["model"] == "linear_encoder", out


def test_the_shell_shows_all_classes_of_one_text(service, encoder, weights):
    out = additive(service, "classify", "--model", encoder, "Once upon a time")
    rows = [line.split() for line in out.stdout.splitlines()]
    assert out.returncode == 0 and rows[0] == ["LABEL", "PROBABILITY"] and {r[0] for r in rows[1:]} == {"yes", "no", "perhaps"}
    label, probability = likeliest(weights, "Once upon a time")
    assert rows[1][0] == label and abs(float(rows[1][1]) - probability) < 1e-4


def test_the_shell_shows_the_likeliest_class_of_each_line(service, encoder, weights, tmp_path):
    texts = [f"line number {i}" for i in range(20)]
    (tmp_path / "lines").write_text("\n".join(texts[:10]) + "\n\n" + "\r\n".join(texts[10:]))
    outs = [additive(service, "classify", "--model", encoder, "--file", tmp_path / "lines"),
            additive(service, "classify", "--model", encoder, input="\n".join(texts)),
            additive(service, "classify", "--model", encoder, "--file", "-", input="\n".join(texts)),
            additive(service, "classify", "--model", encoder, *texts)]
    for out in outs:
        assert out.returncode == 0 and out.stdout == outs[0].stdout, out
    rows = [line.split(maxsplit=2) for line in outs[0].stdout.splitlines()[1:]]
    assert [r[2] for r in rows] == texts and [r[0] for r in rows] == [likeliest(weights, t)[0] for t in texts]


def test_the_shell_classifies_pairs_and_prints_json(service, encoder):
    out = additive(service, "classify", "--model", encoder, "--json", "--pair", "It is.", "Is it?")
    assert out.returncode == 0
    over_http = service.ok("POST", "/v1/classify", {"model": encoder, "input": {"text": "Is it?", "text_pair": "It is."}})
    assert json.loads(out.stdout) == over_http


def test_the_shell_shows_what_the_classes_of_a_text_follow_from(service, encoder):
    over_http = service.ok("POST", "/v1/classify", {"model": encoder, "input": "Once upon", "explain": True})
    why = over_http["data"][0]["explanation"]
    heaviest = max(range(10), key=lambda i: why["aggregate"]["alpha"][i])
    out = additive(service, "classify", "--model", encoder, "--explain", "--top", "3", "Once upon")
    head, _, tail = out.stdout.partition("\n\n")
    assert out.returncode == 0 and head == additive(service, "classify", "--model", encoder, "Once upon").stdout.rstrip("\n")
    rows = tail.splitlines()
    assert rows[0].split() == ["weight", "position"] and len(rows) == 4 and rows[1].split()[1] == str(heaviest)
    assert f"'{why['tokens'][heaviest]['text']}'" in rows[1]
    several = additive(service, "classify", "--model", encoder, "--explain", input="one\n" * 20)
    assert several.returncode == 0 and several.stdout.count("weight  position") == 20
    out = additive(service, "classify", "--model", encoder, "--json", "--explain", "Once upon")
    assert json.loads(out.stdout) == over_http


def test_the_shell_says_when_a_text_was_cut(service, encoder):
    out = additive(service, "classify", "--model", encoder, "x" * 100)
    assert out.returncode == 0 and out.stderr == "1 of 1 texts were too long for the model and have been cut.\n"


def test_the_shell_prints_vectors(service, encoder):
    out = additive(service, "embed", "--model", encoder, "--pooling", "last", "one", "two")
    rows = [[float(x) for x in line.split()] for line in out.stdout.splitlines()]
    over_http = service.ok("POST", "/v1/embeddings", {"model": encoder, "input": ["one", "two"], "pooling": "last"})
    assert out.returncode == 0 and numpy.array_equal(numpy.float32(rows), numpy.float32([d["embedding"] for d in over_http["data"]]))


@pytest.mark.parametrize("words,said", [
    (["a"], "which --model"), (["--model", "encoder", "--file", "x", "a"], "not both"),
    (["--model", "encoder", "--pair", "b", "a", "c"], "--pair goes with one TEXT"),
])
def test_wrong_usage_is_explained(service, words, said):
    out = additive(service, "classify", *words)
    assert out.returncode == 2 and said in out.stderr


def test_a_file_that_is_not_there_and_one_without_text_are_named(service, encoder, tmp_path):
    out = additive(service, "classify", "--model", encoder, "--file", tmp_path / "none")
    assert out.returncode == 1 and "none: No such file" in out.stderr
    out = additive(service, "classify", "--model", encoder, "--file", tmp_path)
    assert out.returncode == 1 and f"cannot read {tmp_path}: Is a directory" in out.stderr
    out = additive(service, "classify", "--model", encoder, input="\n\n")
    assert out.returncode == 1 and "there is no text" in out.stderr


def test_a_text_that_cannot_be_read_is_named_by_its_place(service, encoder):
    for input, said in (("a\n\n" + "x" * 1048577, "line 3 has more than 1048576 bytes"), (b"a\n" * 1500 + b"\xff\n", "line 1501 is not valid UTF-8")):
        out = subprocess.run([BIN / "additive", "--url", service.url, "classify", "--model", encoder], capture_output=True, timeout=60,
                             input=input if isinstance(input, bytes) else input.encode())
        assert out.returncode == 1 and said in out.stderr.decode()
    out = additive(service, "embed", "--model", encoder, "a", "")
    assert out.returncode == 1 and out.stderr == "additive: text 2 is empty\n"
    out = additive(service, "embed", "--model", encoder, "a", "x" * 64)
    assert out.returncode == 1 and "more than 64 tokens (field input[1])" in out.stderr
