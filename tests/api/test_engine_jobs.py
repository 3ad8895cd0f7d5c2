"""additived: training jobs, their reports, and their state after kill -9."""

import json
import math
import os
import random
import re
import resource
import struct
import threading
import time

import pytest

from engine_client import (PATIENCE, SANITIZED, TEXT, TINY, Closed, Engine, EngineError, daemon, engine, job_params,
                           own_daemon, train)


@pytest.fixture(scope="module")
def file(engine):
    return engine.add_file(TEXT)


@pytest.fixture
def endless(engine, file):
    """A job that runs until it is cancelled."""
    job = engine.call("job.create", job_params(file, 1000000))["id"]
    engine.wait(lambda: engine.call("job.get", {"id": job})["additive"]["step"] > 0)
    yield job
    if engine.call("job.get", {"id": job})["status"] in ("queued", "running", "paused"):
        engine.call("job.cancel", {"id": job})


def refused(engine, method, params):
    with pytest.raises(EngineError) as e:
        engine.call(method, params)
    return e.value


def weights(engine, model):
    return engine.download("model.file", {"id": model, "name": "model.safetensors"})[1]


# --- from beginning to end -----------------------------------------------------------------

def test_a_job_ends_with_a_model_that_can_be_used_at_once(engine, file):
    job = engine.call("job.create", {**job_params(file, 30, checkpoint_every=8, keep_checkpoints=2), "suffix": "my own/ä",
                                     "metadata": {"a": "b"}})
    assert job["status"] == "queued" and job["object"] == "fine_tuning.job" and job["seed"] == 7
    assert job["training_file"] == file and job["metadata"] == {"a": "b"} and "request" not in job
    assert job["hyperparameters"]["batch_size"] == 4
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded" and done["error"] is None and done["finished_at"] >= done["created_at"]
    assert done["trained_tokens"] == 30 * 4 * 64
    progress = done["additive"]
    assert progress["step"] == progress["total_steps"] == 30 and progress["train_loss"] < 5.6
    assert progress["valid_loss"] < 5.6 and progress["bits_per_byte"] > 0 and progress["eta_seconds"] == 0
    model = done["fine_tuned_model"]
    assert model.startswith("ft:additive:my-own---:")
    assert engine.generate({"model": model, "prompt": "9", "max_tokens": 3})[2]["model"] == model
    assert engine.call("job.get", {"id": job["id"]}) == done
    assert engine.call("job.list", {"limit": 1})["data"] == [done]
    checkpoints = engine.call("job.checkpoints", {"id": job["id"]})["data"]
    assert [c["step_number"] for c in checkpoints] == [30, 24]
    assert weights(engine, checkpoints[0]["fine_tuned_model_checkpoint"]) == weights(engine, model)
    earlier = checkpoints[1]["fine_tuned_model_checkpoint"]
    assert checkpoints[1]["metrics"]["train_loss"] > 0
    assert engine.generate({"model": earlier, "prompt": "9", "max_tokens": 3})[2]["model"] == earlier
    assert refused(engine, "model.delete", {"id": earlier}).status == 409


def test_a_job_with_an_average_gives_the_average_and_checkpoints_hold_both(engine, file):
    plain, averaged = (engine.wait_job(engine.call("job.create", job_params(file, 30, warmup_steps=0, **more))["id"]) for more in ({}, {"ema_decay": 0.9}))
    assert weights(engine, plain["fine_tuned_model"]) != weights(engine, averaged["fine_tuned_model"])
    assert plain["additive"]["train_loss"] == averaged["additive"]["train_loss"]
    assert plain["additive"]["valid_loss"] != averaged["additive"]["valid_loss"]
    for done in (plain, averaged):
        last = engine.call("job.checkpoints", {"id": done["id"], "limit": 1})["data"][0]["fine_tuned_model_checkpoint"]
        assert weights(engine, last) == weights(engine, done["fine_tuned_model"])


def gauges(engine, job):
    return {m["name"]: s["value"] for m in engine.call("engine.metrics")["metrics"] for s in m.get("samples", []) if s["labels"].get("job") == job}


def test_the_numbers_of_a_job_that_has_begun_are_among_the_metrics(engine, file):
    job = engine.call("job.create", job_params(file, 1000000, eval_every=10))["id"]
    engine.wait(lambda: "additive_job_valid_loss" in gauges(engine, job))
    found = gauges(engine, job)
    assert set(found) == {f"additive_job_{name}" for name in ("step", "train_loss", "valid_loss", "learning_rate", "gradient_norm", "tokens_per_second")}
    assert found["additive_job_step"] >= 10 and 0 < found["additive_job_train_loss"] < 20 and found["additive_job_gradient_norm"] > 0
    engine.call("job.cancel", {"id": job})
    engine.wait(lambda: not gauges(engine, job))


def test_a_range_test_names_a_rate_and_ends_where_the_loss_rises(engine, file):
    done = engine.wait_job(engine.call("job.create", job_params(file, 200, schedule="range_test", range_from=1e-5, learning_rate=1.0))["id"])
    progress = done["additive"]
    assert done["status"] == "succeeded" and progress["step"] < 200
    assert 1e-5 < progress["suggested_learning_rate"] < 1
    messages = [e["message"] for e in engine.job_events(done["id"])]
    assert any(m.startswith("The range test ended at a rate of") for m in messages)
    e = refused(engine, "job.create", job_params(file, 20, schedule="range_test", warmup_steps=3))
    assert (e.status, e.param) == (400, "additive.warmup_steps")


def test_the_noise_of_gradients_is_among_the_metrics(engine, file):
    done = engine.wait_job(engine.call("job.create", job_params(file, 12, gradient_accumulation=4, gradient_noise=True, eval_every=1))["id"])
    metrics = [e["data"] for e in engine.job_events(done["id"]) if e["type"] == "metrics"]
    assert metrics and all(m["gradient_noise"] > 0 for m in metrics if "gradient_noise" in m)
    assert any("gradient_noise" in m for m in metrics)
    e = refused(engine, "job.create", job_params(file, 20, gradient_noise=True))
    assert (e.status, e.param) == (400, "additive.gradient_noise")


def test_a_job_ends_early_with_the_best_weights_when_it_is_asked_to(engine, file):
    ask = job_params(file, 200, eval_every=4, checkpoint_every=4, keep_checkpoints=100, learning_rate=0.5, warmup_steps=20, patience=2, keep_best=True)
    done = engine.wait_job(engine.call("job.create", ask)["id"])
    progress, best = done["additive"], done["additive"]["best_step"]
    assert done["status"] == "succeeded" and progress["step"] == best + 8 < 200 and progress["eta_seconds"] == 0
    assert progress["result_step"] == best and progress["best_valid_loss"] < progress["valid_loss"]
    checkpoints = {c["step_number"]: c for c in engine.call("job.checkpoints", {"id": done["id"], "limit": 100})["data"]}
    assert checkpoints[best]["metrics"]["valid_loss"] == progress["best_valid_loss"]
    kept, last = (weights(engine, checkpoints[step]["fine_tuned_model_checkpoint"]) for step in (best, best + 8))
    assert weights(engine, done["fine_tuned_model"]) == kept != last
    messages = [e["message"] for e in engine.job_events(done["id"])]
    assert any(m.startswith(f"Stopped early, after step {best + 8} of 200") and f"step {best}, whose weights" in m for m in messages)
    for without in ({"validation_fraction": 0}, {"eval_every": 0}):
        e = refused(engine, "job.create", job_params(file, 20, patience=1, **without))
        assert (e.status, e.param) == (400, "additive.patience")


def test_events_follow_the_job_in_order_and_can_be_paged(engine, file):
    job = engine.call("job.create", job_params(file, 20, eval_every=5))["id"]
    watch = engine.begin("job.watch", {"id": job}, credit=1)
    watched = list(watch.events(regrant=1))
    assert watch.result()["status"] == "succeeded"
    assert watched[0]["message"].startswith("Created fine-tuning job") and watched[-1]["message"].endswith("successfully completed")
    assert all(e["object"] == "fine_tuning.job.event" for e in watched)
    assert all(e["level"] == "info" or "no better than chance" in e["message"] for e in watched)
    metrics = [e["data"] for e in watched if e["type"] == "metrics"]
    assert [m["step"] for m in metrics if "valid_loss" in m] == [5, 10, 15, 20]
    assert all(m["total_steps"] == 20 and m["train_loss"] > 0 for m in metrics)
    # After a validation: the model's own text, and the baseline for its bits per byte.
    shown = [m for m in metrics if "valid_loss" in m]
    assert len({m["preview"]["prompt"] for m in shown}) == 1 and shown[0]["preview"]["prompt"] in TEXT
    assert all(m["preview"]["text"] for m in shown) and all("preview" not in m for m in metrics if m not in shown)
    counts = [TEXT[:len(TEXT) * 9 // 10].count(c) for c in set(TEXT)]
    entropy = -sum(n / sum(counts) * math.log2(n / sum(counts)) for n in counts)
    assert all(abs(m["byte_entropy"] - entropy) < 0.02 for m in shown)
    assert any(f"{shown[0]['byte_entropy']:.2f} bits" in e["message"] for e in watched if "started" in e["message"])
    assert engine.call("job.get", {"id": job})["additive"]["byte_entropy"] == shown[0]["byte_entropy"]
    paged, after = [], None
    while True:
        page = engine.call("job.events", {"id": job, "limit": 3, **({"after": after} if after else {})})
        paged += page["data"]
        after = page["last_id"]
        if not page["has_more"]:
            break
    assert paged == watched[::-1]
    again = engine.begin("job.watch", {"id": job, "after": watched[4]["id"]}, credit=1 << 20)
    assert list(again.events()) == watched[5:]
    assert refused(engine, "job.watch", {"id": job, "after": "ftevent-none"}).status == 404
    for method in ("job.get", "job.events", "job.watch", "job.checkpoints", "job.cancel", "job.pause", "job.resume"):
        assert refused(engine, method, {"id": "ftjob-none"}).status == 404


def test_a_model_is_trained_further_from_where_it_is(engine, file):
    base = train(engine, 40)
    before = engine.call("job.list", {"limit": 1})["data"][0]["additive"]["valid_loss"]
    ask = {"model": base, "training_file": file, "additive": {"sequence_length": 64, "max_steps": 10, "learning_rate": 3e-3}}
    job = engine.call("job.create", ask)
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded" and done["model"] == base and done["additive"]["valid_loss"] < before
    for key, given in (("config", {"n_layer": 3}), ("tokenizer", {"type": "bytes"})):
        e = refused(engine, "job.create", {**ask, "additive": {key: given}})
        assert (e.status, e.param) == (400, f"additive.{key}")


def test_openais_own_fields_are_enough(engine):
    file = engine.add_file("\n".join('{"prompt":"%d ","completion":"bottles"}' % i for i in range(3000)))
    job = engine.call("job.create", {"model": "additive", "training_file": file, "hyperparameters": {
        "n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": 0.5}})
    assert job["hyperparameters"] == {"n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": 0.5}
    assert job["additive"]["total_steps"] > 10
    assert engine.call("job.cancel", {"id": job["id"]})["status"] == "cancelled"
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": "auto", "batch_size": 3}}}
    job = engine.call("job.create", {"model": "additive", "training_file": file, "method": method})
    assert job["hyperparameters"]["batch_size"] == 3 and job["hyperparameters"]["n_epochs"] >= 1
    engine.call("job.cancel", {"id": job["id"]})


def test_jobs_are_found_by_their_metadata(engine, file):
    def listed(**more):
        page = engine.call("job.list", more)
        return [j["id"] for j in page["data"]], page["has_more"]

    jobs = [engine.call("job.create", {**job_params(file, 1), "metadata": m})["id"]
            for m in ({"owner": "x", "n": "1"}, {"owner": "x", "n": "2"}, {"owner": "y"}, {})]
    assert listed(metadata={"owner": "x"}) == ([jobs[1], jobs[0]], False)
    assert listed(metadata={"owner": "x"}, limit=1) == ([jobs[1]], True)
    assert listed(metadata={"owner": "x"}, limit=1, after=jobs[1]) == ([jobs[0]], False)
    assert listed(metadata={"owner": "x", "n": "1"}) == ([jobs[0]], False)
    assert listed(metadata={"owner": "z"}) == listed(metadata={"own": "x"}) == ([], False)
    assert jobs[3] in listed(metadata={})[0] and jobs[2] not in listed(metadata={})[0]
    for job in jobs:
        engine.wait_job(job)


def test_a_validation_file_is_used_and_a_tiny_text_needs_none(engine, file):
    other = engine.add_file("some quite different text, " * 20)
    done = engine.wait_job(engine.call("job.create", {**job_params(file, 5), "validation_file": other})["id"])
    assert done["status"] == "succeeded" and done["validation_file"] == other and done["additive"]["valid_loss"] > 0
    tiny = engine.add_file("x" * 64)
    job = engine.call("job.create", {"model": "additive", "training_file": tiny,
                                     "additive": {"config": TINY["config"], "sequence_length": 64, "max_steps": 3}})
    assert job["hyperparameters"]["batch_size"] == 1
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded" and done["additive"]["valid_loss"] is None


def test_a_mistake_is_an_answer_that_names_the_field(engine, file):
    broken = engine.add_file(b"\xff\xfe broken")
    chat = engine.add_file('{"messages": [{"role": "user"}]}\n' * 100)
    lines = engine.add_file('{"text":"a"}\n{"txt":"b"}\n')
    ours = {**TINY, "max_steps": 5}
    wrong = [
        ({"model": "nobody"}, 404, "model"), ({"training_file": "file-none"}, 404, "training_file"),
        ({"validation_file": "file-none"}, 404, "validation_file"), ({"training_file": broken}, 400, "training_file"),
        ({"training_file": lines}, 400, "training_file"), ({"training_file": chat}, 400, "training_file"),
        ({"validation_file": broken}, 400, "validation_file"),
        ({"additive": {**ours, "config": {"n_heads": 3}}}, 400, "additive.config.n_heads"),
        ({"additive": {**ours, "config": {"n_headz": 3}}}, 400, "additive.config.n_headz"),
        ({"additive": {**ours, "config": {"vocab_size": 258}}}, 400, "additive.config.vocab_size"),
        ({"additive": {**ours, "config": {"hidden_size": 65536, "n_layer": 256}}}, 400, "additive.config"),
        ({"additive": {**ours, "sequence_length": 513}}, 400, "additive.sequence_length"),
        ({"additive": {**ours, "batch_size": 60000}}, 400, "additive.batch_size"),
        ({"additive": {**ours, "warmup_steps": 6}}, 400, "additive.warmup_steps"),
        ({"additive": {**ours, "tokenizer": {"type": "runes"}}}, 400, "additive.tokenizer.type"),
        ({"additive": {**ours, "max_steps": 1e308}}, 400, "additive.max_steps"),
        ({"additive": {**ours, "learning_rate": 0}}, 400, "additive.learning_rate"),
        ({"additive": {"config": TINY["config"]}, "training_file": engine.add_file("short")}, 400, "training_file"),
    ]
    before = engine.call("job.list", {"limit": 1})
    for change, status, param in wrong:
        e = refused(engine, "job.create", {**job_params(file), **change})
        assert (e.status, e.param) == (status, param), (change, str(e))
    assert engine.call("job.list", {"limit": 1}) == before


def test_a_dry_run_checks_everything_and_creates_nothing(engine, file):
    before = engine.call("job.list", {"limit": 1})
    ask = job_params(file)
    assert engine.call("job.create", {**ask, "dry_run": True})["tokens"] > 0
    without = {k: v for k, v in ask.items() if k != "training_file"}
    assert engine.call("job.create", {**without, "dry_run": True}) == {
        "object": "fine_tuning.job", "dry_run": True, "model": ask["model"], "tokens": None, "resolved": None}
    for change, param in (({"additive": {**TINY, "batch_size": 60000}}, "additive.batch_size"),
                          ({"training_file": engine.add_file(b"\xff broken")}, "training_file"),
                          ({"additive": {"config": {"n_heads": 3}}}, "additive.config.n_heads")):
        e = refused(engine, "job.create", {**ask, "dry_run": True, **change})
        assert (e.status, e.param) == (400, param)
    e = refused(engine, "job.create", without)
    assert (e.status, e.code, e.param) == (400, "missing_parameter", "training_file")
    assert engine.call("job.list", {"limit": 1}) == before


@pytest.mark.parametrize("objective, model", [(None, "additive2"), ("next_token", "additive2"), ("classification", "linear_encoder"), ("fill_mask", "transformer"),
                                              ("sequence_to_sequence", "transformer")])
def test_a_request_without_a_model_is_for_the_usual_one_of_its_objective(engine, objective, model):
    ask = {"dry_run": True, "additive": {"objective": objective} if objective else {}}
    assert engine.call("job.create", ask)["model"] == model


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3e38])
def test_weights_that_no_answer_can_come_of_are_refused_by_name(engine, value):
    model = train(engine, 1)
    data = weights(engine, model)
    header = struct.unpack("<Q", data[:8])[0]
    name = "fastformer_model.decoders.1.boom.weight"
    at = 8 + header + json.loads(data[8:8 + header])[name]["data_offsets"][0] + 4 * 7
    config = engine.download("model.file", {"id": model, "name": "config.json"})[1]
    with pytest.raises(EngineError) as e:
        engine.upload("model.import", {"id": "rotten"}, config=config, weights=data[:at] + struct.pack("<f", value) + data[at + 4:])
    assert e.value.status == 400 and e.value.param == name and "element 7 " in e.value.message
    assert refused(engine, "model.get", {"id": "rotten"}).status == 404


def test_a_run_that_fails_says_why(engine, file):
    model = train(engine, 5)
    data = weights(engine, model)
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    huge = data[:begin] + struct.pack("<f", 1e18) * ((len(data) - begin) // 4)
    config = engine.download("model.file", {"id": model, "name": "config.json"})[1]
    engine.upload("model.import", {"id": "huge"}, config=config, weights=huge)
    with pytest.raises(EngineError) as e:  # each weight is a number to compute with, their products are not
        engine.generate({"model": "huge", "prompt": "9", "max_tokens": 3})
    assert (e.value.status, e.value.param) == (400, "model")
    job = engine.call("job.create", {"model": "huge", "training_file": file, "additive": {"sequence_length": 64, "max_steps": 50}})
    done = engine.wait_job(job["id"])
    assert done["status"] == "failed" and done["fine_tuned_model"] is None and done["finished_at"]
    assert done["error"]["code"] == "invalid_request" and "not finite" in done["error"]["message"]
    assert engine.job_events(job["id"])[0]["level"] == "error"
    engine.call("model.delete", {"id": "huge"})


# --- states --------------------------------------------------------------------------------

def test_jobs_run_one_after_the_other(engine, file, endless):
    waiting = engine.call("job.create", job_params(file, 5))["id"]
    time.sleep(0.1)
    assert engine.call("job.get", {"id": waiting})["status"] == "queued"
    engine.call("job.cancel", {"id": endless})
    assert engine.wait_job(waiting)["status"] == "succeeded"


@pytest.mark.parametrize("limit,jobs", [(70, 40), pytest.param(256, 2000, marks=pytest.mark.slow)])
def test_waiting_jobs_hold_no_descriptors(own_daemon, limit, jobs):
    daemon = own_daemon()
    with daemon.connect() as e:
        file = e.add_file(TEXT)
        running = e.call("job.create", job_params(file, 10**6))["id"]
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        waiting = []
        for _ in range(jobs):
            try:
                waiting.append(e.call("job.create", job_params(file, 10**6) | {"validation_file": file})["id"])
            except EngineError as refusal:
                assert (refusal.status, refusal.code) == (429, "overloaded") and len(waiting) == 999, str(refusal)
        assert len(waiting) == min(jobs, 999)
        assert len(os.listdir(f"/proc/{daemon.process.pid}/fd")) < limit - 10
        assert e.add_file("more") and e.call("job.cancel", {"id": running})["status"] == "cancelled"
        e.wait(lambda: e.call("job.get", {"id": waiting[0]})["status"] == "running")
    assert daemon.stop() == 0


def test_a_paused_job_continues_where_it_stopped(engine, endless):
    paused = engine.call("job.pause", {"id": endless})
    assert paused["status"] == "paused"
    e = refused(engine, "job.pause", {"id": endless})
    assert (e.status, e.code) == (409, "invalid_job_state")
    step = engine.wait(lambda: engine.call("job.checkpoints", {"id": endless})["data"])[0]["step_number"]
    assert step >= paused["additive"]["step"]
    time.sleep(0.2)
    assert engine.call("job.get", {"id": endless})["additive"]["step"] <= step
    assert engine.call("job.resume", {"id": endless})["status"] == "queued"
    engine.wait(lambda: (lambda j: j if j["status"] == "running" and j["additive"]["step"] > step else None)(
        engine.call("job.get", {"id": endless})))
    assert refused(engine, "job.resume", {"id": endless}).status == 409
    messages = [e["message"] for e in engine.job_events(endless)]
    assert f"Fine-tuning job continues from the checkpoint at step {step}" in messages


def test_a_job_that_waits_says_its_place_and_when_it_will_run(engine, file, endless):
    def places():
        listed = {job["id"]: job["additive"]["queue_position"] for job in engine.call("job.list", {"limit": 10})["data"]}
        assert all(engine.call("job.get", {"id": id})["additive"]["queue_position"] == listed[id] for id in (endless, *waiting))
        return [listed[id] for id in waiting]

    created = [engine.call("job.create", job_params(file, steps)) for steps in (1000, 2000, 3000)]
    waiting = [job["id"] for job in created]
    assert [job["additive"]["queue_position"] for job in created] == places() == [1, 2, 3]
    running = engine.call("job.get", {"id": endless})["additive"]
    assert running["queue_position"] is running["expected_start"] is None
    messages = [next(e["message"] for e in engine.job_events(id) if "before this one" in e["message"]) for id in waiting]
    assert [message.split(":")[0] for message in messages] == [f"{n} before this one" for n in ("1 job runs", "2 jobs run", "3 jobs run")]
    assert all(re.search(": about .* (s|min|h)$", message) for message in messages)
    assert not any("before this one" in e["message"] for e in engine.job_events(endless))
    listed = {job["id"]: job for job in engine.call("job.list", {"limit": 10})["data"]}  # a single answer, so all numbers agree
    jobs = [listed[id] for id in (endless, *waiting)]
    starts = [job["additive"]["expected_start"] for job in jobs]
    takes = [jobs[0]["additive"]["eta_seconds"], *(job["additive"]["resolved"]["estimated_seconds"] for job in jobs[1:])]
    assert takes[0] > 10 and starts[1] == pytest.approx(time.time() + takes[0], abs=5)
    for i in (1, 2):
        assert starts[i + 1] == pytest.approx(starts[i] + takes[i], abs=1)
    assert jobs[3]["estimated_finish"] == pytest.approx(starts[3] + takes[3], abs=1)
    paused = engine.call("job.pause", {"id": waiting[0]})
    assert paused["additive"]["queue_position"] is paused["additive"]["expected_start"] is paused["estimated_finish"] is None
    assert places() == [None, 1, 2]
    assert engine.call("job.resume", {"id": waiting[0]})["additive"]["queue_position"] == 3 and places() == [3, 1, 2]
    assert engine.call("job.cancel", {"id": waiting[1]})["additive"]["queue_position"] is None and places() == [2, None, 1]
    engine.call("job.cancel", {"id": waiting[0]})
    engine.call("job.cancel", {"id": waiting[2]})


def test_pausing_and_resuming_at_once_loses_nothing(engine, endless):
    for _ in range(5):
        engine.call("job.pause", {"id": endless})
        engine.call("job.resume", {"id": endless})
    engine.wait(lambda: engine.call("job.get", {"id": endless})["status"] == "running")


def test_a_cancelled_job_has_ended(engine, file, endless):
    watch = engine.begin("job.watch", {"id": endless}, credit=1 << 20)
    watch.next()
    assert engine.call("job.cancel", {"id": endless})["status"] == "cancelled"
    assert watch.result()["status"] == "cancelled"
    for method in ("job.cancel", "job.pause", "job.resume"):
        assert refused(engine, method, {"id": endless}).status == 409
    assert engine.call("job.get", {"id": endless})["finished_at"]
    queued = [engine.call("job.create", job_params(file, 1000000))["id"] for _ in range(2)]
    for job in queued[::-1]:
        assert engine.call("job.cancel", {"id": job})["status"] == "cancelled"


def test_what_a_job_uses_is_not_deleted(engine, endless, file):
    assert refused(engine, "file.delete", {"id": file}).code == "file_in_use"
    job = engine.call("job.get", {"id": endless})
    assert job["training_file"] == file
    base = engine.call("model.list")["data"][0]["id"]
    waiting = engine.call("job.create", {"model": base, "training_file": file, "additive": {"sequence_length": 64, "max_steps": 5}})
    assert refused(engine, "model.delete", {"id": base}).code == "model_in_use"
    engine.call("job.cancel", {"id": waiting["id"]})


def test_requests_are_served_while_a_job_trains(engine, endless):
    model = engine.call("model.list")["data"][0]["id"]
    for _ in range(3):
        before = engine.call("job.get", {"id": endless})["additive"]["step"]
        _, events, _ = engine.generate({"model": model, "prompt": "99 bottles", "max_tokens": 50, "temperature": 0})
        gaps = sorted(e["time_ms"] for e in events)
        assert gaps[len(gaps) // 2] < (2000 if SANITIZED else 200)
        engine.wait(lambda: engine.call("job.get", {"id": endless})["additive"]["step"] > before)


# --- recipes -------------------------------------------------------------------------------

def test_a_job_shows_the_recipe_that_makes_it_once_more(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        asked = {**job_params(e.add_file(TEXT), 12, warmup_steps=2), "metadata": {"a": "ä"}}
        job = e.call("job.create", {**asked, "idempotency_key": "once"})
        assert job["additive"]["recipe"] == asked
        done = e.wait_job(job["id"])
        assert done["additive"]["recipe"] == asked and e.call("job.list")["data"] == [done]
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        recipe = e.call("job.get", {"id": job["id"]})["additive"]["recipe"]
        assert recipe == asked
        again = e.wait_job(e.call("job.create", recipe)["id"])
        assert weights(e, again["fine_tuned_model"]) == weights(e, done["fine_tuned_model"])


# --- kill -9 -------------------------------------------------------------------------------

def resumable(file, steps, architecture, **more):
    return job_params(file, steps, architecture, checkpoint_every=5, eval_every=20, batch_size=8, patience=1000, keep_best=True, ema_decay=0.95, **more)


@pytest.mark.parametrize("architecture, kills, more", [
    ("additive", 4, {}), ("additive", 2, {"optimizer": "muon"}), pytest.param("trilinear", 50, {}, marks=pytest.mark.slow)])
def test_a_job_killed_again_and_again_ends_with_the_same_weights(own_daemon, engine, file, architecture, kills, more):
    steps = 20 * (kills + 2)
    expected = weights(engine, engine.wait_job(engine.call("job.create", resumable(file, steps, architecture, **more))["id"])["fine_tuned_model"])
    daemon = own_daemon()
    with daemon.connect() as e:
        job = e.call("job.create", resumable(e.add_file(TEXT), steps, architecture, **more))["id"]
    seen, random_number = 0, random.Random(3)
    for _ in range(kills):
        with daemon.connect() as e:
            # Let it get a little further each time, then kill it at some odd moment.
            target = min(seen + 20, steps)
            state = e.wait(lambda: (lambda j: j if j["additive"]["step"] >= target or j["status"] != "running" else None)(
                e.call("job.get", {"id": job})))
            time.sleep(random_number.random() * 0.02)
            acknowledged = [c["step_number"] for c in e.call("job.checkpoints", {"id": job})["data"]]
        daemon.kill()
        seen = state["additive"]["step"]
        daemon.start()
        with daemon.connect() as e:
            now = [c["step_number"] for c in e.call("job.checkpoints", {"id": job, "limit": 100})["data"]]
            assert not acknowledged or now and max(now) >= max(acknowledged)
    with daemon.connect() as e:
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert weights(e, done["fine_tuned_model"]) == expected
        messages = [x["message"] for x in e.job_events(job)]
        assert sum("continues from the checkpoint" in m for m in messages) >= kills // 2
    assert daemon.stop() == 0


def test_paused_and_queued_jobs_stay_so_over_a_kill(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        file = e.add_file(TEXT)
        running, paused, queued = [e.call("job.create", job_params(file, 1000000))["id"] for _ in range(3)]
        e.call("job.pause", {"id": paused})
        e.wait(lambda: e.call("job.get", {"id": running})["additive"]["step"] > 0)
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        e.wait(lambda: e.call("job.get", {"id": running})["additive"]["step"] > 0)
        assert [e.call("job.get", {"id": j})["status"] for j in (running, paused, queued)] == ["running", "paused", "queued"]
        e.call("job.cancel", {"id": running})
        e.wait(lambda: e.call("job.get", {"id": queued})["status"] == "running")
        assert e.call("job.get", {"id": paused})["status"] == "paused"
    assert daemon.stop() == 0


def test_a_kill_during_a_stream_is_noticed_and_loses_no_durable_session(own_daemon):
    daemon = own_daemon()
    ask = {"max_tokens": 12, "seed": 6}
    with daemon.connect() as e:
        model = train(e)
        kept = e.call("session.create", {"model": model, "prompt": "99 bottles", "durable": True, "explain": True})
        lost = e.call("session.create", {"model": model, "prompt": "99 bottles"})
        first = e.generate({"id": kept["id"], **ask}, "session.generate")[0]
        twin = e.call("session.fork", {"id": kept["id"]})
        expected = e.generate({"id": twin["id"], **ask}, "session.generate")[0]
        e.call("session.delete", {"id": twin["id"]})
        before = e.call("session.get", {"id": kept["id"]})
        stream = e.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 400}, credit=5)
        stream.next()
        daemon.kill()
        with pytest.raises(Closed):
            stream.result()
    daemon.start()
    with daemon.connect() as e:
        assert [s["id"] for s in e.call("session.list")["data"]] == [kept["id"]]
        now = e.call("session.get", {"id": kept["id"]})
        assert now["tokens"] == before["tokens"] == 10 + 12 and now["durable"] and now["explain"]
        with pytest.raises(EngineError) as gone:
            e.call("session.get", {"id": lost["id"]})
        assert gone.value.status == 404
        assert e.call("session.alpha", {"id": kept["id"]})["position"] == 21
        assert e.generate({"id": kept["id"], **ask}, "session.generate")[0] == expected
        assert first
        e.call("session.delete", {"id": kept["id"]})
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        assert e.call("session.list")["data"] == []
    assert daemon.stop() == 0


def test_uploads_acknowledged_before_a_kill_are_there_after_it(own_daemon):
    daemon = own_daemon()
    acknowledged = []

    def add_files():
        try:
            with daemon.connect() as e:
                while True:
                    data = b"%d" % len(acknowledged) * 5000
                    acknowledged.append((e.add_file(data), data))
        except (Closed, OSError, EngineError):
            pass

    for moment in (0.001, 0.004, 0.009):
        thread = threading.Thread(target=add_files)
        before = len(acknowledged)
        thread.start()
        Engine.wait(lambda: len(acknowledged) >= before + 3)
        time.sleep(moment)
        daemon.kill()
        thread.join(PATIENCE)
        daemon.start()
        with daemon.connect() as e:
            listed = {f["id"] for f in e.call("file.list")["data"]}
            assert {i for i, _ in acknowledged} <= listed
            for i, data in acknowledged[-20:]:
                assert e.download("file.content", {"id": i})[1] == data
            assert len(list((daemon.folder / "blobs").iterdir())) == 2 * len(listed)  # each with its manifest
            assert not any((daemon.folder / "tmp").iterdir())
    assert daemon.stop() == 0
