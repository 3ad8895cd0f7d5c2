"""The values that a request leaves open: they follow from the objective and the data, and the job shows them."""

import json

import pytest

from engine_client import TEXT, EngineError, daemon, engine

WORDS = "time long away stranger quiet hills morning river gone before".split()
PAIRS = {"model": "transformer", "additive": {"objective": "sequence_to_sequence", "config": {"stack": "encoder_decoder"}}}
CLASSES = {"model": "linear_encoder", "additive": {"objective": "classification"}}
BYTES = {"model": "linear_encoder", "additive": {"objective": "classification", "tokenizer": {"type": "bytes"}}}


def lines(objects):
    return "".join(json.dumps(o) + "\n" for o in objects)


def labelled(n, words=8):
    return lines({"text": " ".join(WORDS[(i * 7 + k) % 10] for k in range(1 + i % words)), "label": ["a", "b", "c"][i % 3]} for i in range(n))


def pairs(n, words=2):
    return lines({"source": " ".join(WORDS[(i + k) % 10] for k in range(1 + i % words)), "target": "yes" * (1 + i % 2)} for i in range(n))


def talks(n):
    return lines({"messages": [{"role": "user", "content": f"Where is the {WORDS[i % 10]}?"},
                               {"role": "assistant", "content": f"The {WORDS[i % 10]} is by the river."}]} for i in range(n))


def resolved(engine, request, text, **more):
    body = {**request, "training_file": engine.add_file(text), "dry_run": True, **more}
    return engine.call("job.create", body)["resolved"]


def refused(engine, request, text):
    with pytest.raises(EngineError) as e:
        engine.call("job.create", {**request, "training_file": engine.add_file(text)})
    return e.value


def test_rows_are_as_long_as_the_records(engine):
    longest = max(len(json.loads(line)["text"]) for line in labelled(300).splitlines()) + 1
    found = resolved(engine, BYTES, labelled(300))
    assert longest <= found["sequence_length"] < longest + 16 and found["sequence_length"] % 16 == 0
    found = resolved(engine, PAIRS, pairs(300))
    assert (found["source_length"], found["sequence_length"]) == (16, 16)
    given = {**BYTES, "additive": {**BYTES["additive"], "sequence_length": 24}}
    assert resolved(engine, given, labelled(300))["sequence_length"] == 24
    outlier = labelled(300) + lines([{"text": "x" * 700, "label": "a"}])
    assert resolved(engine, BYTES, outlier)["sequence_length"] == resolved(engine, BYTES, labelled(300))["sequence_length"]


@pytest.mark.parametrize("request_, text, most", [
    (PAIRS, pairs(300), 1.2e6), (CLASSES, labelled(300), 0.6e6), ({"model": "transformer", "additive": {"objective": "fill_mask", "config": {"stack": "encoder"}}}, "plain text. " * 2000, 1.5e6)], ids=["pairs", "classes", "masks"])
def test_a_new_model_is_small_unless_its_size_is_given(engine, request_, text, most):
    found = resolved(engine, request_, text)
    assert found["parameters"] < most and 0 < found["estimated_seconds"] < 3600
    ours = request_["additive"]
    larger = {**request_, "additive": {**ours, "size": {"hidden": 256, "layers": 6}}}
    assert resolved(engine, larger, text)["parameters"] > 3 * found["parameters"]


def test_a_small_file_gives_a_small_tokenizer(engine):
    found = resolved(engine, CLASSES, labelled(12))
    assert found["parameters"] < resolved(engine, CLASSES, labelled(300, 10))["parameters"] + 1
    request = {"model": "additive", "additive": {"tokenizer": {"type": "sentencepiece", "model_type": "char"}}}
    assert resolved(engine, request, "a few words, and more words. " * 40)["parameters"] < 2e6


def test_a_classifier_has_a_tokenizer_of_its_texts(engine):
    words, bytes_ = resolved(engine, CLASSES, labelled(300)), resolved(engine, BYTES, labelled(300))
    assert words["sequence_length"] < bytes_["sequence_length"] / 2
    given = {**CLASSES, "additive": {**CLASSES["additive"], "sequence_length": 64}}
    assert resolved(engine, given, labelled(300))["parameters"] < words["parameters"] + 128 * 64  # bytes again: no more rows of tokens
    request = {**CLASSES, "additive": {"objective": "classification", "max_steps": 1, "size": {"hidden": 16, "heads": 2, "layers": 1}}}
    job = engine.wait_job(engine.call("job.create", {**request, "training_file": engine.add_file(labelled(300)), "seed": 1})["id"])
    assert engine.call("model.get", {"id": job["fine_tuned_model"]})["additive"]["tokenizer"]["type"] == "huggingface"
    e = refused(engine, CLASSES, labelled(30) + "{no json}\n")
    assert (e.status, e.param) == (400, "training_file") and "line 31" in e.message
    few = lines([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}])
    assert resolved(engine, CLASSES, few)["max_steps"] > 0


def test_a_key_of_the_size_keeps_the_rest_of_a_configuration_as_it_was(engine):
    bare = {"model": "additive", "additive": {"config": {"position_embedding": "learned"}}}
    small = resolved(engine, bare, "plain text. " * 2000)["parameters"]
    assert small < 1.5e6
    assert resolved(engine, {"model": "additive", "additive": {"config": {"n_layer": 2}}}, "plain text. " * 2000)["parameters"] != small


@pytest.mark.parametrize("member,given", [("heads", 4), ("dropout", 0.1)])
def test_a_key_of_the_size_that_the_architecture_has_not_is_refused(engine, member, given):
    with pytest.raises(EngineError) as e:
        engine.call("job.create", {"model": "rwkv", "training_file": engine.add_file(TEXT), "additive": {"size": {member: given}}})
    assert (e.value.status, e.value.param) == (400, f"additive.size.{member}")
    assert "no effect" in str(e.value)


def test_of_conversations_the_answers_are_learned(engine):
    plain = {"model": "additive"}
    assert resolved(engine, plain, talks(60))["loss_on"] == "completion"
    assert resolved(engine, {**plain, "additive": {"loss_on": "all"}}, talks(60))["loss_on"] == "all"
    told = lines({"instruction": f"say {i}", "output": f"{i} it is"} for i in range(300))
    assert resolved(engine, plain, told)["loss_on"] == "completion"
    for text in ("plain text. " * 2000, lines({"prompt": f"{i} is", "completion": " a number"} for i in range(300)),
                 lines({"messages": [{"role": "user", "content": f"only a question, number {i}"}]} for i in range(300))):
        assert resolved(engine, plain, text)["loss_on"] == "all"
    mixed = {**plain, "validation_file": engine.add_file("plain text. " * 200)}
    assert resolved(engine, mixed, talks(60))["loss_on"] == "all"


def test_epochs_are_steps_enough(engine):
    chat = {"model": "additive", "hyperparameters": {"n_epochs": 3}}
    found = resolved(engine, chat, talks(400))
    assert found["max_steps"] >= 100 and found["sequence_length"] == 512
    few = resolved(engine, chat, talks(60))
    assert few["max_steps"] >= 100 and few["sequence_length"] < 512
    given = resolved(engine, {**chat, "additive": {"batch_size": 8}}, talks(400))
    assert given["batch_size"] == 8 and given["max_steps"] < 100
    assert resolved(engine, {"model": "additive"}, "plain text, and more. " * 40000)["batch_size"] == 8


def test_the_weights_of_the_best_evaluation_are_kept_for_classes(engine):
    assert resolved(engine, CLASSES, labelled(300))["keep_best"] is True
    off = {**CLASSES, "additive": {**CLASSES["additive"], "keep_best": False}}
    assert resolved(engine, off, labelled(300))["keep_best"] is False
    assert resolved(engine, {"model": "additive"}, "plain text. " * 2000)["keep_best"] is False


def test_lines_that_fit_another_objective_are_refused_by_its_name(engine):
    for text, named in ((labelled(300), "classification"), (pairs(300), "sequence_to_sequence")):
        e = refused(engine, {"model": "additive"}, text)
        assert (e.status, e.param) == (400, "additive.objective") and named in e.message
    e = refused(engine, CLASSES, pairs(300))
    assert (e.status, e.param) == (400, "training_file") and "sequence_to_sequence" in e.message
    e = refused(engine, PAIRS, labelled(300))
    assert (e.status, e.param) == (400, "training_file") and "classification" in e.message
    texts = {"model": "additive", "additive": {"objective": "next_token"}}
    assert resolved(engine, texts, labelled(900))["objective"] == "next_token"
    assert resolved(engine, {"model": "additive"}, lines({"text": "a document of words"} for _ in range(300)))["objective"] == "next_token"


def test_a_job_says_how_large_it_is_and_that_it_stays_at_chance(engine):
    tiny = {"size": {"hidden": 16, "heads": 2, "layers": 1}, "learning_rate": 1e-12, "max_steps": 8, "batch_size": 8}
    request = {**CLASSES, "additive": {**CLASSES["additive"], **tiny}, "seed": 1, "training_file": engine.add_file(labelled(300))}
    job = engine.call("job.create", request)
    assert job["additive"]["recipe"] == request and job["additive"]["resolved"]["max_steps"] == 8
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded" and done["additive"]["resolved"] == job["additive"]["resolved"]
    events = engine.call("job.events", {"id": job["id"], "limit": 100})["data"]
    said = [e["message"] for e in events]
    assert any("parameters, 8 steps of 8 rows" in m and "on this machine" in m for m in said), said
    assert any("no better than chance" in e["message"] and e["level"] == "warn" for e in events), said
    assert not any("nan" in m for m in said)


def test_epochs_that_are_few_for_the_data_are_warned_of_before_the_start(engine):
    def warnings(text, epochs):
        tiny = {"size": {"hidden": 16, "heads": 2, "layers": 1}}
        hyperparameters = {"n_epochs": epochs} if epochs else {}
        job = engine.call("job.create", {"model": "additive", "hyperparameters": hyperparameters, "additive": tiny, "training_file": engine.add_file(text)})
        events = engine.call("job.events", {"id": job["id"], "limit": 100})["data"]
        engine.call("job.cancel", {"id": job["id"]})
        return [e["message"] for e in events if e["level"] == "warn" and "without n_epochs the job takes" in e["message"]]

    assert [m.startswith("3 epochs") and m.endswith("takes 20") for m in warnings(talks(400), 3)] == [True]
    assert warnings(talks(400), 10) == warnings(talks(400), None) == []


def test_too_few_steps_and_records_that_are_cut_are_warned_of(engine):
    request = {"model": "additive", "hyperparameters": {"n_epochs": 1}, "additive": {"size": {"hidden": 16, "heads": 2, "layers": 1}},
               "training_file": engine.add_file(talks(20)), "seed": 1}
    job = engine.wait_job(engine.call("job.create", request)["id"])
    assert any(e["level"] == "warn" and "little to learn from" in e["message"] for e in engine.call("job.events", {"id": job["id"], "limit": 100})["data"])
    outlier = labelled(300) + lines([{"text": "x" * 700, "label": "a"}])
    request = {**BYTES, "additive": {**BYTES["additive"], "size": {"hidden": 16, "heads": 2, "layers": 1}, "max_steps": 2},
               "training_file": engine.add_file(outlier), "seed": 1}
    job = engine.wait_job(engine.call("job.create", request)["id"])
    events = engine.call("job.events", {"id": job["id"], "limit": 100})["data"]
    assert any(e["level"] == "warn" and "1 of " in e["message"] and "lose their end" in e["message"] for e in events)
