"""Architectures beside the additive one: trained, streamed, forked, moved, killed, and explained."""

import json
import math
import subprocess
import time

import pytest

from conftest import BIN, TEXT

ASK = {"temperature": 0.8, "seed": 5, "logit_bias": {"1": -100}}


@pytest.fixture(scope="module", params=("gpt2", "linear", "additive2", "dilated", "transformer", "trilinear", "rwkv"))
def architecture(request):
    return request.param


@pytest.fixture(scope="module")
def model(service, architecture):
    done = service.wait_job(service.job(steps=60, architecture=architecture, recompute=True)["id"])
    assert done["status"] == "succeeded", done
    assert done["additive"]["valid_loss"] < math.log(259) - 1
    return done["fine_tuned_model"]


def generate(service, session, **ask):
    return service.ok("POST", f"/v1/sessions/{session}/generate", ask)["choices"][0]["text"]


def test_it_streams_what_it_says_at_once(service, model):
    ask = {"model": model, "prompt": "57 bottles of ", "max_tokens": 20, **ASK}
    whole = service.ok("POST", "/v1/completions", ask)["choices"][0]["text"]
    _, raw, head = service.request("POST", "/v1/completions", {**ask, "stream": True})
    assert head["Content-Type"].startswith("text/event-stream")
    data = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    assert "".join(c["text"] for d in data for c in json.loads(d)["choices"]) == whole


def test_a_session_forks_and_moves(service, model):
    ask = {"max_tokens": 12, **ASK}
    s = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "31 bottles of beer"})
    copy = service.ok("POST", f"/v1/sessions/{s['id']}/fork")
    state = service.ok("GET", f"/v1/sessions/{s['id']}/state")
    moved = service.ok("POST", f"/v1/sessions?model={model}", state, headers={"Content-Type": "application/octet-stream"})
    texts = {generate(service, one["id"], **ask) for one in (s, copy, moved)}
    assert len(texts) == 1
    whole = service.ok("POST", "/v1/completions", {"model": model, "prompt": "31 bottles of beer", **ask})
    assert whole["choices"][0]["text"] in texts
    after = service.ok("GET", f"/v1/sessions/{s['id']}")
    assert after["state_bytes"] == s["state_bytes"] and after["tokens"] == 30
    for one in (s, copy, moved):
        service.ok("DELETE", f"/v1/sessions/{one['id']}")


def test_it_moves_as_files(service, model, architecture, tmp_path):
    def additive(*args):
        return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, text=True, timeout=120)

    assert additive("models", "export", model, str(tmp_path)).returncode == 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == architecture and 32 in (config.get("n_embd"), config.get("hidden_size"), config.get("dim"))
    assert additive("models", "import", f"copy-of-{architecture}", str(tmp_path)).returncode == 0
    ask = {"prompt": "77 bottles", "max_tokens": 12, "temperature": 0}
    texts = {service.ok("POST", "/v1/completions", {"model": m, **ask})["choices"][0]["text"] for m in (model, f"copy-of-{architecture}")}
    assert len(texts) == 1


def test_the_command_line_trains_one(service, architecture, tmp_path):
    (tmp_path / "corpus.txt").write_text(TEXT[:5000])
    command = [BIN / "additive", "--url", service.url, "train", str(tmp_path / "corpus.txt"), "--model", architecture, "--steps", "3",
               "--hidden", "32", "--layers", "1", "--sequence", "32", "--batch", "2", "--positions", "40", "--recompute", "--json"]
    done = subprocess.run([*command, "--heads", "4", "--dropout", "0"], capture_output=True, text=True, timeout=120)
    if architecture == "rwkv":
        assert done.returncode == 1 and "additive.size.heads" in done.stderr
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    made = service.ok("GET", f"/v1/models/{json.loads(done.stdout.strip().splitlines()[-1])['fine_tuned_model']}")["additive"]
    sizes = {"hidden_size": 32, "n_heads": 4, "n_layer": 1, "n_positions": 40, "hidden_dropout_prob": 0}
    wanted = {"gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": 40, "attn_pdrop": 0, "embd_pdrop": 0,
                       "resid_pdrop": 0},
              "linear": sizes, "dilated": sizes,
              "additive2": {"hidden_size": 32, "n_heads": 4, "n_layer": 1, "intermediate_size": 80, "dropout": 0},
              "trilinear": {"hidden_size": 32, "key_size": 16, "n_heads": 4, "n_layer": 1, "n_positions": 40, "channel_keep": 1},
              "rwkv": {"hidden_size": 32, "num_hidden_layers": 1, "attention_hidden_size": 32, "intermediate_size": 128,
                       "rescale_every": 0},
              "transformer": {"dim": 32, "heads": 4, "depth": 1, "max_seq_len": 40, "attn_dim_head": 8}}[architecture]
    assert {k: made["config"][k] for k in wanted} == wanted


def test_it_is_explained_as_data_and_as_a_page(service, model, architecture):
    s = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "1 bottle", "explain": True})["id"]
    for method, path, body in (("POST", "/v1/explain", {"model": model, "input": "1 bottle"}), ("GET", f"/v1/sessions/{s}/alpha", None)):
        answer = service.ok(method, path, body)
        assert len(answer["tokens"]) == 8 and {r["round"] for r in answer["weights"]} == {"attention"}
        assert all(abs(sum(r["alpha"]) - 1) < 1e-5 for r in answer["weights"])
        assert all(("half_life" in r) == (architecture in ("additive2", "rwkv")) for r in answer["weights"])
    service.ok("DELETE", f"/v1/sessions/{s}")
    status, answer, _ = service.request("POST", "/v1/completions", {"model": model, "prompt": "x", "alpha": {"top": 1}})
    if architecture == "additive2":
        assert status == 200 and answer["choices"][0]["alpha"]
    else:
        assert status == 400 and "explain the text" in answer["error"]["message"]


def test_one_importance_of_each_token_gives_the_weights_of_every_reader(service, model, architecture):
    ask = {"model": model, "input": "12 bottles of beer", "method": "alpha"}
    status, every, _ = service.request("POST", "/v1/explain", {**ask, "position": "all"})
    if architecture != "additive2":
        assert status == 400 and "no score per token" in every["error"]["message"]
        return
    for position in (0, 7, 17):
        one = service.ok("POST", "/v1/explain", {**ask, "position": position})
        for row, scores in zip(one["weights"], every["weights"]):
            assert row["half_life"] is None or row["half_life"] > 0
            assert row["alpha"] == pytest.approx([math.exp(b - scores["log_normalizer"][position]) for b in scores["score"][:position + 1]], abs=1e-5)


def test_job_and_durable_session_survive_kill_9(own_service, architecture):
    service = own_service
    options = {"steps": 60, "architecture": architecture, "checkpoint_every": 10}

    def weights(job):
        done = service.wait_job(job)
        assert done["status"] == "succeeded", done
        return service.request("GET", f"/v1/models/{done['fine_tuned_model']}/files/model.safetensors")[1], done["fine_tuned_model"]

    calm, model = weights(service.job(**options)["id"])
    ask = {"max_tokens": 8, **ASK}
    one, two = (service.ok("POST", "/v1/sessions", {"model": model, "prompt": "9 bottles", "durable": True})["id"] for _ in range(2))
    uninterrupted = [generate(service, one, **ask) for _ in range(2)]
    first = generate(service, two, **ask)
    job = service.job(**options)["id"]
    while not (service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"] or 0) >= 15:
        time.sleep(0.01)
    service.kill_engine()
    assert [first, generate(service, two, **ask)] == uninterrupted
    assert weights(job)[0] == calm
