"""Upload a text, train, stream from a session, see the weight of each token."""

import csv
import io
import json
import math
import re
import subprocess
import xml.etree.ElementTree

from conftest import BIN, SMALL, TEXT
from explanation_samples import data_of_page


def sse(raw):
    """The JSON of every data line of a stream, and whether it ended with [DONE]."""
    data = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(d) for d in data if d != "[DONE]"], bool(data) and data[-1] == "[DONE]"


def test_training_learns_and_reports(service):
    job = service.job(steps=60)
    done = service.wait_job(job["id"])
    assert done["status"] == "succeeded"
    extra = done["additive"]
    assert extra["step"] == extra["total_steps"] == 60
    assert extra["valid_loss"] < math.log(259) - 1
    assert abs(extra["bits_per_byte"] - extra["valid_loss"] / math.log(2)) < 1e-6
    events = service.ok("GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=100")["data"]
    losses = [e["data"]["train_loss"] for e in reversed(events) if e["type"] == "metrics" and "train_loss" in e["data"]]
    assert losses[-1] < losses[0]


def test_the_curves_of_a_job_are_a_picture(service):
    job = service.job(steps=40, eval_every=10)["id"]
    assert service.wait_job(job)["status"] == "succeeded"
    events = service.ok("GET", f"/v1/fine_tuning/jobs/{job}/events?order=asc&limit=1000")["data"]
    metrics = [e["data"] for e in events if e["type"] == "metrics"]
    status, raw, head = service.request("GET", f"/v1/fine_tuning/jobs/{job}/metrics.svg")
    assert status == 200 and head["Content-Type"] == "image/svg+xml"
    svg = "{http://www.w3.org/2000/svg}"
    picture = xml.etree.ElementTree.fromstring(raw)
    assert job in picture.find(f"{svg}title").text and "step 40 of 40" in raw.decode()
    texts = [node.text for node in picture.iter(f"{svg}text")]
    assert "step" in texts and "loss (nats per token)" in texts and "prefers-color-scheme:dark" in picture.find(f"{svg}style").text
    assert [node.get("class") for node in picture.iter(f"{svg}path")].count("axis") == 1
    lines = {node.get("class"): [tuple(map(float, point.split())) for point in re.findall(r"[-0-9.]+ [-0-9.]+", node.get("d"))]
             for node in picture.iter(f"{svg}path") if node.get("class") in ("train", "valid")}
    assert len(lines["train"]) == len(metrics) and len(lines["valid"]) == 4 == len(list(picture.iter(f"{svg}circle")))
    # Losses and heights are related linearly, and the first step is the leftmost.
    losses, heights = [m["train_loss"] for m in metrics], [y for _, y in lines["train"]]
    slope = (heights[-1] - heights[0]) / (losses[-1] - losses[0])
    assert slope < 0 and all(abs(y - heights[0] - slope * (loss - losses[0])) < 0.2 for loss, y in zip(losses, heights))
    assert lines["train"] == sorted(lines["train"])
    assert service.request("GET", "/v1/fine_tuning/jobs/ftjob-none/metrics.svg")[0] == 404


def test_the_curves_of_a_job_are_a_table_of_its_metrics_events(service):
    job = service.job(steps=230, eval_every=1)["id"]  # more events than are read at once
    assert service.wait_job(job)["status"] == "succeeded"
    events = service.ok("GET", f"/v1/fine_tuning/jobs/{job}/events?order=asc&limit=1000")["data"]
    metrics = [e["data"] | {"created_at": e["created_at"]} for e in events if e["type"] == "metrics"]
    status, raw, head = service.request("GET", f"/v1/fine_tuning/jobs/{job}/metrics.csv")
    rows = list(csv.DictReader(io.StringIO(raw.decode())))
    assert status == 200 and head["Content-Type"].startswith("text/csv") and len(rows) == len(metrics) >= 230
    for row, data in zip(rows, metrics):
        for name, text in row.items():
            number = data.get(name)
            assert text == "" if number is None else abs(float(text) - number) <= 1e-8 * abs(number), name
    assert [int(row["step"]) for row in rows if row["valid_loss"]] == list(range(1, 231)) and "perplexity" in rows[0]
    assert service.request("GET", "/v1/fine_tuning/jobs/ftjob-none/metrics.csv")[0] == 404


def test_job_events_stream_and_resume(service):
    job = service.job(steps=20)["id"]
    _, raw, head = service.request("GET", f"/v1/fine_tuning/jobs/{job}/events?stream=true", timeout=300)
    assert head["Content-Type"].startswith("text/event-stream")
    ids = [line[4:] for line in raw.decode().split("\n") if line.startswith("id: ")]
    assert len(ids) > 3 and len(set(ids)) == len(ids)
    _, rest, _ = service.request("GET", f"/v1/fine_tuning/jobs/{job}/events?stream=true",
                                 headers={"Last-Event-ID": ids[1]}, timeout=300)
    assert [line[4:] for line in rest.decode().split("\n") if line.startswith("id: ")] == ids[2:]


def test_a_session_continues_exactly_where_it_stopped(service, model):
    def session():
        return service.ok("POST", "/v1/sessions", {"model": model, "prompt": "57 bottles of "})

    one, two = session(), session()
    assert one["tokens"] == len("57 bottles of ")
    ask = {"temperature": 0.8, "seed": 11, "logit_bias": {"1": -100}}
    whole = service.ok("POST", f"/v1/sessions/{one['id']}/generate", {"max_tokens": 24, **ask})
    first = service.ok("POST", f"/v1/sessions/{two['id']}/generate", {"max_tokens": 10, **ask})
    second = service.ok("POST", f"/v1/sessions/{two['id']}/generate", {"max_tokens": 14, **ask})
    assert first["choices"][0]["text"] + second["choices"][0]["text"] == whole["choices"][0]["text"]
    after = service.ok("GET", f"/v1/sessions/{two['id']}")
    assert after["tokens"] == second["session"]["tokens"] and after["state_bytes"] == two["state_bytes"]
    for s in (one, two):
        assert service.ok("DELETE", f"/v1/sessions/{s['id']}")["deleted"]
    assert service.request("GET", f"/v1/sessions/{one['id']}")[0] == 404


def test_append_then_generate_equals_one_prompt(service, model):
    whole = service.ok("POST", "/v1/completions", {"model": model, "prompt": "31 bottles of beer", "max_tokens": 9,
                                                   "temperature": 0})
    s = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "31 bott"})["id"]
    service.ok("POST", f"/v1/sessions/{s}/append", {"text": "les of beer"})
    parts = service.ok("POST", f"/v1/sessions/{s}/generate", {"max_tokens": 9, "temperature": 0})
    assert parts["choices"][0]["text"] == whole["choices"][0]["text"]


def test_a_session_streams_with_alpha_and_timings(service, model):
    s = service.ok("POST", "/v1/sessions", {"model": model, "explain": True})["id"]
    _, raw, _ = service.request("POST", f"/v1/sessions/{s}/generate",
                                {"prompt": "8 bottles", "max_tokens": 6, "stream": True, "alpha": {"top": 3},
                                 "timings": True, "logit_bias": {"1": -100}})
    chunks, done = sse(raw)
    assert done
    assert all(c["object"] == "text_completion" for c in chunks)
    weights = [c["choices"][0]["alpha"] for c in chunks if c["choices"][0].get("alpha")]
    assert weights and all(1 <= len(w) <= 3 for w in weights)
    assert any("timings" in c for c in chunks)
    assert chunks[-1]["session"]["tokens"] == len("8 bottles") + 6


def test_a_text_ends_at_the_last_position_unless_asked_to_go_on(service, model):
    long = {"max_tokens": 80, "temperature": 0, "prompt": "1"}
    out = service.ok("POST", "/v1/completions", {"model": model, **long})
    assert out["choices"][0]["finish_reason"] == "length" and out["usage"]["total_tokens"] == 64
    for policy in ("clamp", "wrap"):
        s = service.ok("POST", "/v1/sessions", {"model": model, "position_policy": policy})["id"]
        out = service.ok("POST", f"/v1/sessions/{s}/generate", long)
        assert out["usage"]["completion_tokens"] == 80


def test_explanation_rows_sum_to_one_and_stay_in_their_window(service, model):
    text = "45 bottles of beer on the wall"
    out = service.ok("POST", "/v1/explain", {"model": model, "input": text, "aggregate": "mean"})
    assert "".join(t["text"] for t in out["tokens"]) == text
    config = SMALL["config"]
    assert len(out["weights"]) == config["n_layer"] * config["n_heads"] * 2
    for row in out["weights"]:
        first, last = row["window"]
        assert last == len(text) - 1 and len(row["alpha"]) == last - first + 1
        assert len(row["alpha"]) <= config["window_sizes"][row["layer"]]
        assert abs(sum(row["alpha"]) - 1) < 1e-4


def test_all_positions_come_in_the_linear_form(service, model):
    text = "45 bottles of beer"
    out = service.ok("POST", "/v1/explain", {"model": model, "input": text, "position": "all", "layers": [1],
                                             "heads": [2], "rounds": ["key"]})
    (row,) = out["weights"]
    assert len(row["score"]) == len(row["log_normalizer"]) == len(text)
    one = service.ok("POST", "/v1/explain", {"model": model, "input": text, "position": 9, "layers": [1],
                                             "heads": [2], "rounds": ["key"]})["weights"][0]
    first = one["window"][0]
    for j, alpha in enumerate(one["alpha"], first):
        assert abs(math.exp(row["score"][j] - row["log_normalizer"][9]) - alpha) < 1e-5


def test_the_html_explanation_is_one_safe_page(service, model):
    status, page, head = service.request("POST", "/v1/explain",
                                         {"model": model, "input": "<script>alert(1)</script> & beer"},
                                         headers={"Accept": "text/html"})
    assert status == 200 and head["Content-Type"].startswith("text/html")
    data = data_of_page(page, head["Content-Security-Policy"])
    assert "".join(token["text"] for token in data["tokens"]) == "<script>alert(1)</script> & beer"


def test_tokens_go_there_and_back(service, model):
    text = "naïve – ☃"
    ids = service.ok("POST", "/v1/tokenize", {"model": model, "text": text})["tokens"]
    assert len(ids) == len(text.encode())
    assert service.ok("POST", "/v1/detokenize", {"model": model, "tokens": ids})["text"] == text


def test_a_model_can_be_exported_imported_and_evaluated(service, model, tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        status, raw, _ = service.request("GET", f"/v1/models/{model}/files/{name}")
        assert status == 200
        (tmp_path / name).write_bytes(raw if isinstance(raw, bytes) else json.dumps(raw).encode())
    done = subprocess.run([BIN / "additive", "--url", service.url, "models", "import", "copy-of-it", str(tmp_path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ask = {"prompt": "77 bottles", "max_tokens": 12, "temperature": 0}
    texts = [service.ok("POST", "/v1/completions", {"model": m, **ask})["choices"][0]["text"]
             for m in (model, "copy-of-it")]
    assert texts[0] == texts[1]
    assert service.request("DELETE", "/v1/models/copy-of-it")[0] == 200
    assert service.request("GET", "/v1/models/copy-of-it")[0] == 404


def test_the_command_line_does_the_same_job(service, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT)

    def additive(*args, **kw):
        return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, text=True,
                              timeout=300, **kw)

    trained = additive("train", str(corpus), "--model", "additive", "--steps", "20", "--hidden", "32", "--heads", "4", "--layers", "2",
                       "--config", "window_sizes=[4,64]", "--sequence", "64", "--batch", "4", "--name", "cli", "--json")
    assert trained.returncode == 0, trained.stderr
    last = json.loads(trained.stdout.strip().splitlines()[-1])
    model = last["fine_tuned_model"]
    watched = additive("train", str(corpus), "--model", "additive", "--steps", "4", "--hidden", "16", "--heads", "2", "--layers", "1", "--sequence", "32",
                       "--batch", "4", "--eval-every", "2", "--config", "position_embedding=learned")
    assert watched.returncode == 0, watched.stderr
    # The model's own text, and the baseline for its bits per byte.
    assert watched.stderr.count("frequencies of bytes alone: ") == 2 and "step 2, " in watched.stderr
    made = service.ok("GET", f"/v1/models/{watched.stdout.strip()}")["additive"]
    assert made["n_positions"] == made["trained_length"] == 32
    generated = additive("generate", "--model", model, "--temperature", "0", "--max-tokens", "8", "12 bottles")
    assert generated.returncode == 0 and generated.stdout
    page = tmp_path / "page.html"
    explained = additive("explain", "--model", model, "--html", str(page), "12 bottles of beer")
    assert explained.returncode == 0 and page.read_text().lstrip().lower().startswith("<!doctype html")
    stored = additive("storage")
    assert stored.returncode == 0 and "checkpoints" in stored.stdout and "Damaged" not in stored.stdout
    missing = additive("generate", "--model", "nothing-here", "x")
    assert missing.returncode == 1 and "nothing-here" in missing.stderr
    assert additive("no-such-command").returncode == 2
