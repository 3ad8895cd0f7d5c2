"""A classifier: trained from labelled lines, trained further, exported and imported, killed, and kept from generating."""

import json
import random
import subprocess

import pytest

from conftest import BIN

WORDS = {"birds": ["heron", "wren", "plover"], "tools": ["adze", "chisel", "awl"], "fruit": ["plum", "quince", "lime"]}
OPTIONS = {"size": {"hidden": 32, "heads": 4, "layers": 2, "dropout": 0}, "sequence_length": 48, "batch_size": 8,
           "learning_rate": 3e-3, "eval_every": 20}


def lines(count, seed, pair=False, names=tuple(WORDS)):
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        name = draw.choice(names)
        record = {"text": "the old " + " ".join(draw.choice(WORDS[name]) for _ in range(draw.randint(1, 3))), "label": name}
        found.append({**record, "text_pair": "and another"} if pair else record)
    return "".join(json.dumps(record) + "\n" for record in found)


def request(service, text, valid=None, model="linear_encoder", **more):
    body = {"model": model, "training_file": service.upload(text, "train.jsonl"), "seed": 3, "additive": {**OPTIONS, **more}}
    if valid:
        body["validation_file"] = service.upload(valid, "valid.jsonl")
    return body


def train(service, *args, **more):
    done = service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", request(service, *args, **more))["id"])
    assert done["status"] == "succeeded", done
    return done


@pytest.fixture(scope="module")
def trained(service):
    return train(service, lines(300, 1), lines(60, 2), max_steps=80)


def test_it_learns_the_classes_of_its_file_and_keeps_their_names(service, trained):
    progress = trained["additive"]
    assert progress["accuracy"] > 0.95 and progress["macro_f1"] > 0.95 and progress["matthews"] > 0.9
    assert progress["bits_per_byte"] is None and progress["byte_entropy"] is None
    made = service.ok("GET", f"/v1/models/{trained['fine_tuned_model']}")["additive"]["config"]
    assert made["id2label"] == {"0": "birds", "1": "fruit", "2": "tools"} and made["num_labels"] == 3
    assert made["pad_token_id"] == 0


def test_it_classifies_as_well_as_its_job_has_measured(service, trained):
    records = [json.loads(line) for line in lines(60, 2).splitlines()]
    found = service.ok("POST", "/v1/classify", {"model": trained["fine_tuned_model"], "input": [r["text"] for r in records]})
    right = sum(d["label"] == r["label"] for d, r in zip(found["data"], records))
    assert right / len(records) == pytest.approx(trained["additive"]["accuracy"]) and not any(d["truncated"] for d in found["data"])


def test_events_name_what_is_measured(service, trained):
    events = service.ok("GET", f"/v1/fine_tuning/jobs/{trained['id']}/events")["data"]
    measured = [e for e in events if "accuracy" in (e["data"] or {})]
    assert measured and "accuracy=" in measured[0]["message"] and "bits" not in measured[0]["message"]
    assert not any("preview" in (e["data"] or {}) for e in events)


def test_it_is_trained_further_on_the_same_classes_only(service, trained):
    name = trained["fine_tuned_model"]
    small = {k: v for k, v in OPTIONS.items() if k != "size"}
    ask = request(service, lines(40, 5, names=("birds", "tools")), model=name, max_steps=5)
    ask["additive"] = {**small, "max_steps": 5}
    done = service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", ask)["id"])
    assert done["status"] == "succeeded", done
    made = service.ok("GET", f"/v1/models/{done['fine_tuned_model']}")["additive"]["config"]
    assert made["id2label"] == {"0": "birds", "1": "fruit", "2": "tools"}
    ask["training_file"] = service.upload('{"text": "x", "label": "birds"}\n{"text": "y", "label": "planets"}\n', "t.jsonl")
    status, answer, _ = service.request("POST", "/v1/fine_tuning/jobs", ask)
    assert status == 400 and answer["error"]["param"] == "training_file" and "line 2" in answer["error"]["message"]


@pytest.mark.parametrize("text, more, param", [
    ("plain text, and no records\n" * 20, {}, "training_file"),
    ('{"text": "a", "label": "x"}\n{"text": "b"}\n', {}, "training_file"),
    ('{"text": "a", "label": "x"}\n{"text": "b", "label": "x"}\n', {}, "training_file"),
    (lines(20, 7), {"objective": "next_token"}, "additive.objective"),
    (lines(20, 7), {"objective": "poetry"}, "additive.objective"),
    (lines(20, 7), {"config": {"num_labels": 7}}, "additive.config.id2label"),
    (lines(20, 7), {"config": {"id2label": {"0": "birds", "1": "birds", "2": "tools"}}}, "additive.config.id2label"),
])
def test_what_cannot_be_learned_is_refused_before_the_job_exists(service, text, more, param):
    status, answer, _ = service.request("POST", "/v1/fine_tuning/jobs", request(service, text, **more))
    assert status == 400 and answer["error"]["param"] == param, answer


def test_the_shell_names_the_objective_of_labelled_lines_and_the_time_that_training_takes(service, tmp_path):
    def shell(*options):
        return subprocess.run([BIN / "additive", "--url", service.url, "train", tmp_path / "lines.jsonl", *options], capture_output=True, text=True, timeout=120)

    (tmp_path / "lines.jsonl").write_text(lines(120, 11))
    out = shell()
    assert out.returncode == 1 and "objective" in out.stderr and "classification" in out.stderr, out.stderr
    out = shell("--objective", "classification", "--hidden", "16", "--heads", "2", "--steps", "4", "--seed", "1")
    assert out.returncode == 0 and " on this machine" in out.stderr and "nan" not in out.stderr, out.stderr


def test_a_language_model_does_not_learn_classes(service):
    ask = request(service, lines(20, 7), model="additive", objective="classification")
    status, answer, _ = service.request("POST", "/v1/fine_tuning/jobs", ask)
    assert status == 400 and answer["error"]["param"] == "additive.objective", answer


def test_a_job_survives_kill_9_bit_for_bit(own_service):
    def weights(job):
        done = own_service.wait_job(job)
        assert done["status"] == "succeeded", done
        return own_service.request("GET", f"/v1/models/{done['fine_tuned_model']}/files/model.safetensors")[1]

    ask = request(own_service, lines(100, 1, pair=True), max_steps=60, checkpoint_every=10)
    calm = weights(own_service.ok("POST", "/v1/fine_tuning/jobs", ask)["id"])
    job = own_service.ok("POST", "/v1/fine_tuning/jobs", ask)["id"]
    while not (own_service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"] or 0) >= 15:
        pass
    own_service.kill_engine()
    assert weights(job) == calm
