"""BART as a classifier of pairs: trained by the published recipe, asked, explained; its weights in an encoder with linear attention."""

import json
import random
import subprocess

import pytest

from conftest import BIN

SIZE = {"hidden": 32, "heads": 4, "layers": 1, "dropout": 0}
# The recipe of the fine-tuning on GLUE, at the rate that so small a model needs; the rate ends where the cosine is cut.
RECIPE = {"sequence_length": 40, "batch_size": 16, "optimizer": "adamw_hf", "eps": 1e-6, "weight_decay": 0.01, "clip": 1,
          "schedule": "cosine_with_restarts", "cycles": 0.49, "learning_rate": 4e-3, "eval_every": 60}
WORDS = ["heron", "wren", "adze", "awl", "plum", "lime"]


def pairs(count, seed):
    """Return pairs labelled by whether the word of the question is in the answer, with the labels of GLUE's QNLI."""
    draw = random.Random(seed)
    records = []
    for _ in range(count):
        asked, said = draw.choice(WORDS), draw.choice(WORDS)
        said = asked if draw.random() < 0.5 else said
        label = "entailment" if asked == said else "not_entailment"
        records.append({"text": asked, "text_pair": f"a {said}", "label": label})
    return records


def train(service, model, steps, seed=3, **additive):
    def lines(records):
        return "".join(json.dumps(record) + "\n" for record in records)

    body = {"model": model, "training_file": service.upload(lines(pairs(600, 1)), "train.jsonl"), "seed": seed,
            "validation_file": service.upload(lines(pairs(100, 2)), "valid.jsonl"),
            "additive": {**RECIPE, "max_steps": steps, "warmup_steps": steps // 10, **additive}}
    done = service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", body)["id"])
    assert done["status"] == "succeeded", done
    return done


@pytest.fixture(scope="module")
def trained(service):
    return train(service, "bart", 40, size=SIZE, config={"encoder_attention": "linear"})


def test_a_job_trains_it_and_classify_gives_what_the_job_measured(service, trained):
    made = service.ok("GET", f"/v1/models/{trained['fine_tuned_model']}")["additive"]["config"]
    assert made["encoder_attention"] == "linear" and made["decoder_layers"] == 1
    assert made["eos_token_id"] == made["decoder_start_token_id"] == 1 and made["pad_token_id"] == 0
    assert made["id2label"] == {"0": "entailment", "1": "not_entailment"}
    records = pairs(100, 2)
    inputs = [{"text": r["text"], "text_pair": r["text_pair"]} for r in records]
    found = service.ok("POST", "/v1/classify", {"model": trained["fine_tuned_model"], "input": inputs})["data"]
    right = sum(d["label"] == r["label"] for d, r in zip(found, records))
    assert right / len(records) == pytest.approx(trained["additive"]["accuracy"])


def test_its_first_update_has_the_rate_0(service, trained):
    events = service.ok("GET", f"/v1/fine_tuning/jobs/{trained['id']}/events?limit=100")["data"]
    rates = {e["data"]["step"]: e["data"]["learning_rate"] for e in events if "learning_rate" in (e["data"] or {})}
    assert rates and max(rates.values()) <= 4e-3
    assert all(0 < rate for step, rate in rates.items() if step > 1) and rates.get(1, 0) == 0


def test_a_class_is_explained_by_contributions_gradients_and_weights_and_what_it_lacks_is_refused(service, trained):
    ids = [b + 3 for b in b"heron"] + [1] + [b + 3 for b in b"a heron"] + [1]
    ask = {"model": trained["fine_tuned_model"], "input": ids, "target": {"kind": "logit", "token": "entailment"}}
    parts = service.ok("POST", "/v1/explain", {**ask, "method": "contributions"})["contributions"]
    assert sum(parts["sums"].values()) == pytest.approx(parts["score"], abs=1e-4) and len(parts["tokens"]) == len(ids)
    assert parts["target"]["token"]["label"] == "entailment" and parts["sums"]["reader"] == 0
    text = service.ok("POST", "/v1/explain", {**ask, "input": "heron", "method": "gradient_x_input"})
    assert [token["id"] for token in text["tokens"]] == ids[:6]
    path = service.ok("POST", "/v1/explain", {**ask, "method": "integrated_gradients"})["attribution"]
    assert abs(path["completeness_error"]) < 0.05 * abs(path["difference"]) + 0.01
    both = service.ok("POST", "/v1/explain", {**ask, "aggregate": "mean"})
    assert both["contributions"]["score"] == pytest.approx(parts["score"]) and len(both["weights"]) == len(both["source"]["weights"]) == 4
    assert sum(both["source"]["aggregate"]["alpha"]) == pytest.approx(1, abs=1e-5) and both["source"]["tokens"] == both["tokens"]
    beside = service.ok("POST", "/v1/explain", {**ask, "compare": {"target": {"token": "not_entailment"}}})
    assert beside["compare"]["same_source_tokens"] and beside["compare"]["source"]["weights"] == both["source"]["weights"]
    for more, param in (({"method": "attention_x_gradient"}, "method"), ({"method": "leave_one_out"}, "replacement"),
                        ({"input": ids[:5]}, "input"), ({"method": "contributions", "input": ids[:5]}, "input")):
        status, answer, _ = service.request("POST", "/v1/explain", {**ask, **more})
        assert status == 400 and answer["error"]["param"] == param, answer


def test_a_tokenizer_that_ends_texts_otherwise_is_refused(service):
    body = {"model": "bart", "training_file": service.upload("".join(json.dumps(r) + "\n" for r in pairs(40, 4)), "t.jsonl"),
            "additive": {**RECIPE, "max_steps": 2, "size": SIZE, "config": {"eos_token_id": 2}}}
    status, answer, _ = service.request("POST", "/v1/fine_tuning/jobs", body)
    assert status == 400 and answer["error"]["param"] == "additive.config.eos_token_id", answer


@pytest.mark.slow
def test_weights_of_softmax_attention_go_on_with_linear_attention(service, tmp_path):
    def additive(*args):
        done = subprocess.run([BIN / "additive", "--url", service.url, *map(str, args)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    vanilla = train(service, "bart", 400, size=SIZE)
    assert vanilla["additive"]["accuracy"] > 0.95
    additive("models", "pull", vanilla["fine_tuned_model"], tmp_path / "folder")
    before = (tmp_path / "folder" / "model.safetensors").read_bytes()
    path = tmp_path / "folder" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "encoder_attention": "linear", "pad_policy": "ignore"}))
    (tmp_path / "folder" / "manifest.json").unlink(missing_ok=True)
    additive("models", "push", tmp_path / "folder", "swapped")
    assert service.request("GET", "/v1/models/swapped/files/model.safetensors")[1] == before
    tuned = train(service, "swapped", 200, learning_rate=2e-3)
    made = service.ok("GET", f"/v1/models/{tuned['fine_tuned_model']}")["additive"]["config"]
    assert made["encoder_attention"] == "linear" and made["pad_policy"] == "ignore"
    assert tuned["additive"]["accuracy"] > 0.95
