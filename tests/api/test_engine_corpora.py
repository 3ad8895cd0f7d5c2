"""additived: the corpora of jobs: forms of text, several files, the tokens that count in the loss, tokens cached on the
disk."""

import gzip
import json
import math
import resource

import pytest

from engine_client import TEXT, EngineError, daemon, engine, job_params, own_daemon

# More than is tokenized into memory.
LARGE = "".join(f"{n} of {n * 7919 % 100003} lines. " for n in range(240000))
assert len(LARGE) > 4 << 20


def weights(engine, job):
    return engine.download("model.file", {"id": job["fine_tuned_model"], "name": "model.safetensors"})[1]


def run(engine, file, steps=4, **more):
    done = engine.wait_job(engine.call("job.create", job_params(file, steps, **more))["id"])
    assert done["status"] == "succeeded", done["error"]
    return done


def refused(engine, params):
    with pytest.raises(EngineError) as e:
        engine.call("job.create", params)
    return e.value


def lines(*objects):
    return "\n".join(map(json.dumps, objects)) + "\n"


def add(engine, text, name, **more):
    return engine.upload("file.create", {"filename": name, "purpose": "fine-tune", **more}, file=text.encode())["id"]


def test_a_name_and_a_declared_format_decide_how_a_file_is_read(engine):
    def tokens(file):
        return engine.call("job.create", {**job_params(file, validation_fraction=0), "dry_run": True})["tokens"]

    data, prose = lines(*({"text": f"line {i}"} for i in range(200))), "[1] a footnote\n" * 200
    read = tokens(add(engine, data, "a.txt"))
    assert read == sum(len(f"line {i}") + 1 for i in range(200)) == tokens(add(engine, data, "a.csv", format="json"))
    assert tokens(add(engine, data, "a.jsonl", format="text")) == len(data)
    assert tokens(add(engine, prose, "a.txt")) == tokens(add(engine, prose, "a.csv", format="text")) == len(prose)
    for name, text, more, message in (("a.jsonl", prose, {}, "line 1"), ("a.txt", prose, {"format": "json"}, "line 1"), ("a.csv", prose, {}, "table"),
                                      ("a.txt", "{'text': 'x'}\n" * 99, {}, 'format "text"'), ("a.txt", "\0a\0b\0c", {}, "UTF-16")):
        e = refused(engine, job_params(add(engine, text, name, **more)))
        assert (e.status, e.param) == (400, "training_file") and message in e.message
    file = engine.call("file.get", {"id": add(engine, prose, "a.txt", format="text")})
    assert file["format"] == "text" and file["id"] in [f["id"] for f in engine.call("file.list")["data"] if f["format"] == "text"]


def test_labels_and_pairs_are_read_from_arrays_too(engine):
    records = [{"text": f"record {i}", "label": "ab"[i % 2]} for i in range(40)]
    one = engine.call("job.create", {"model": "linear_encoder", "training_file": add(engine, lines(*records), "a.txt"), "dry_run": True})
    assert one["tokens"] == engine.call("job.create", {"model": "linear_encoder", "training_file": add(engine, json.dumps(records, indent=1), "a.json"), "dry_run": True})["tokens"]
    e = refused(engine, {"model": "linear_encoder", "training_file": add(engine, lines(*records), "a.txt", format="text")})
    assert (e.status, e.param) == (400, "training_file") and "format" in e.message


def test_a_file_that_is_too_short_is_refused_as_such(engine):
    def complaint(text, more=None, name="a.txt", **file):
        e = refused(engine, {"model": "additive", "training_file": add(engine, text, name, **file), **(more or {})})
        assert e.status == 400
        return e.param, e.message

    classes, pairs = {"model": "linear_encoder"}, {"model": "transformer", "additive": {"config": {"stack": "encoder_decoder"}, "objective": "sequence_to_sequence"}}
    for more in ({}, classes, pairs):
        assert complaint("", more, "a.jsonl") == ("training_file", "the file is empty")
    assert complaint("[]", name="a.json") == ("training_file", "the text is empty")
    assert complaint("hi") == ("training_file", "the text has 2 tokens and needs 32, the length of a sequence")
    assert complaint("hi", {"additive": {"sequence_length": 64}}) == \
        ("additive.sequence_length", "the text has 2 tokens and needs 64, the length of a sequence")
    empty = {"model": "additive", "training_file": add(engine, TEXT, "a.txt"), "validation_file": add(engine, "", "b.txt")}
    assert refused(engine, empty).param == "validation_file"


def test_lines_of_another_shape_are_refused_with_their_keys_and_an_example(engine):
    classes, pairs = {"model": "linear_encoder"}, {"model": "transformer", "additive": {"config": {"stack": "encoder_decoder"}, "objective": "sequence_to_sequence"}}
    example = {"linear_encoder": 'classification reads lines such as {"text": ', "transformer": 'sequence_to_sequence reads lines such as {"source": '}
    odd = lines(*({"foo": "a", "bar": str(i)} for i in range(30)))
    for more in (classes, pairs):
        prose = refused(engine, {"training_file": add(engine, TEXT, "a.txt"), **more})
        assert prose.param == "training_file" and prose.message.startswith("the file is running text; the objective " + example[more["model"]])
        named = refused(engine, {"training_file": add(engine, "Once upon a time. " * 200, "a.jsonl"), **more})
        assert "line 1, column" in named.message and example[more["model"]] in named.message
        for text, name in ((odd, "a.jsonl"), (json.dumps([json.loads(line) for line in odd.splitlines()]), "a.json")):
            e = refused(engine, {"training_file": add(engine, text, name), **more})
            assert e.param == "training_file" and 'its keys are "foo", "bar"' in e.message and example[more["model"]] in e.message
    plain = refused(engine, {"model": "additive", "training_file": add(engine, odd, "a.jsonl")})
    assert plain.message.startswith('line 1: needs "text", "prompt" and "completion"') and plain.message.endswith('its keys are "foo", "bar"')


def test_an_answer_of_weight_0_is_not_learned(engine):
    def talk(weight):
        return lines(*({"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "BAD", "weight": weight},
                                     {"role": "user", "content": "again"}, {"role": "assistant", "content": "good"}]} for i in range(40)))

    def bits(text, loss_on):
        return weights(engine, run(engine, engine.add_file(text), loss_on=loss_on))

    assert bits(talk(0), "completion") != bits(talk(1), "completion") == bits(talk(None), "completion")
    assert bits(talk(0), "all") == bits(talk(1), "all")
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    told = json.loads(talk(1).splitlines()[0])
    for empty in ([], None):
        told["messages"][1]["tool_calls"] = empty
        assert bits(lines(told) + talk(1), "completion") == bits(talk(1).splitlines()[0] + "\n" + talk(1), "completion")
    told["messages"][1]["tool_calls"] = calls
    e = refused(engine, job_params(engine.add_file(talk(1) + lines(told))))
    assert (e.status, e.param) == (400, "training_file") and "line 41: messages[1].tool_calls" in e.message
    e = refused(engine, job_params(engine.add_file(talk(0.5))))
    assert (e.status, e.param) == (400, "training_file") and "line 1: messages[1].weight" in e.message


def test_a_compressed_text_trains_the_same_weights_and_a_damaged_one_is_refused(engine):
    packed = gzip.compress(TEXT.encode())
    plain = run(engine, engine.add_file(TEXT))
    assert weights(engine, run(engine, engine.add_file(packed, "corpus.gz"))) == weights(engine, plain)
    e = refused(engine, job_params(engine.add_file(packed[:-9])))
    assert (e.status, e.param) == (400, "training_file") and "gzip" in e.message and "ends" in e.message


def test_the_mean_over_validation_is_reported_as_perplexity_too(engine):
    done = run(engine, engine.add_file(TEXT))["additive"]
    assert done["perplexity"] == pytest.approx(math.exp(done["valid_loss"]))


def test_the_accuracy_of_validation_is_in_the_job_its_events_and_its_checkpoints(engine):
    job = run(engine, engine.add_file("ab" * 4000), steps=60)
    accuracy = job["additive"]["accuracy"]
    assert 0.9 < accuracy <= 1  # every other byte is the same
    last = [e for e in engine.job_events(job["id"]) if "accuracy" in (e["data"] or {})][0]
    assert last["data"]["accuracy"] == accuracy and f"validation accuracy={accuracy:.4f}" in last["message"]
    metrics = engine.call("job.checkpoints", {"id": job["id"]})["data"][0]["metrics"]
    assert metrics["accuracy"] == metrics["valid_mean_token_accuracy"] == accuracy


def test_several_files_train_one_model_and_their_weights_decide_how_often_each_is_shown(engine):
    one, other = engine.add_file(TEXT), engine.add_file(TEXT.upper())
    both = [{"file": one}, {"file": other, "weight": 2}]
    first, again = (run(engine, one, training_files=both) for _ in range(2))
    assert weights(engine, first) == weights(engine, again)
    assert first["training_file"] == one
    assert weights(engine, run(engine, one, training_files=both[:1])) == weights(engine, run(engine, one))
    assert weights(engine, run(engine, one, training_files=[both[0], {"file": other}])) != weights(engine, first)
    # An epoch has 9/10 of the 8 or so blocks of 2048 tokens of each: three times as many as of one file.
    steps = {len(files): engine.call("job.create", {
        **job_params(one, training_files=files, max_steps=None), "hyperparameters": {"n_epochs": 1}})
        for files in (both, both[:1])}
    assert steps[2]["additive"]["total_steps"] == pytest.approx(3 * steps[1]["additive"]["total_steps"], abs=2)
    for job in steps.values():
        engine.call("job.cancel", {"id": job["id"]})


def test_a_mistake_in_the_files_names_them(engine):
    one = engine.add_file(TEXT)
    for files, status in (([{"file": "file-none"}], 404), ([{"file": engine.add_file("other " * 99)}], 400)):
        e = refused(engine, job_params(one, training_files=files))
        assert (e.status, e.param) == (status, "additive.training_files")
    labels = engine.add_file(lines(*({"text": "a", "label": str(i % 2)} for i in range(40))))
    for field, value in (("loss_on", "completion"), ("reset_at_document", True),
                         ("training_files", [{"file": labels}, {"file": one}])):
        e = refused(engine, {"model": "linear_encoder", "training_file": labels,
                             "additive": {"objective": "classification", field: value}})
        assert (e.status, e.param) == (400, "additive." + field)


def test_a_file_that_a_job_trains_on_beside_others_is_in_use(engine):
    one, other = engine.add_file(TEXT), engine.add_file(TEXT[::-1])
    job = engine.call("job.create", job_params(one, 1000000, training_files=[{"file": one}, {"file": other}]))["id"]
    with pytest.raises(EngineError) as e:
        engine.call("file.delete", {"id": other})
    assert e.value.status == 409
    engine.call("job.cancel", {"id": job})


def user(text):
    """A conversation without an answer: nothing of it is learned."""
    return {"messages": [{"role": "user", "content": text}]}


def answered(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def trained(engine, objects, **more):
    return weights(engine, run(engine, engine.add_file(lines(*objects)), validation_fraction=0, **more))


def test_what_is_asked_has_no_gradient_where_completions_count(engine):
    # One block; the prompt at its end follows every predicted token, unless the prompt itself is predicted.
    one, other = ([{"prompt": "2 + 2 = ", "completion": "4, as ever"}, {"prompt": end * 60, "completion": ""}] for end in "xy")
    options = {"batch_size": 1, "sequence_length": 64}
    assert trained(engine, one, loss_on="completion", **options) == trained(engine, other, loss_on="completion", **options)
    assert trained(engine, one, **options) != trained(engine, other, **options)
    one, other = ([answered("2 + 2?", "4, as ever"), user(end * 60)] for end in "xy")
    assert trained(engine, one, loss_on="completion", **options) == trained(engine, other, loss_on="completion", **options)


def test_completions_count_only_where_a_text_has_prompts(engine):
    for text in (TEXT, lines({"text": "a document " * 100})):
        e = refused(engine, job_params(engine.add_file(text), loss_on="completion"))
        assert (e.status, e.param) == (400, "additive.loss_on") and "has a prompt" in e.message


def test_a_step_without_a_target_has_no_loss_and_is_counted(engine):
    long = engine.add_file(lines(*({"prompt": "q" * (i * 13 % 90), "completion": "yes"} for i in range(60))))
    more = {"loss_on": "completion", "batch_size": 1, "sequence_length": 16, "max_steps": 20, "eval_every": 0, "validation_fraction": 0}
    job = run(engine, long, **more)
    progress = job["additive"]
    assert 0 < progress["empty_steps"] < 20 and progress["skipped_steps"] == 0
    events = engine.call("job.events", {"id": job["id"], "limit": 100})["data"]
    assert any(e["level"] == "warn" and "empty_steps" in e["message"] for e in events)
    assert not any(word in e["message"].replace("-", " ").split() for e in events for word in ("nan", "inf"))
    none = engine.add_file(lines(*(user("where is it now?") for _ in range(60))))
    e = refused(engine, job_params(none, **{**more, "sequence_length": 32}))
    assert (e.status, e.param) == (400, "additive.loss_on") and "completion" in e.message


@pytest.mark.parametrize("architecture", ["additive", "gpt2", "linear", "dilated"])
def test_a_document_has_no_influence_on_another_where_they_are_reset(engine, architecture):
    size = {"hidden": 16, "heads": 2, "layers": 2}

    def weights_with(first, **more):
        file = engine.add_file(lines(user(first * 40), answered("2 + 2?", "4, as ever")))
        job = engine.call("job.create", {"model": architecture, "training_file": file, "seed": 3, "additive": {
            "size": size, "sequence_length": 40, "max_steps": 3, "validation_fraction": 0, "loss_on": "completion", **more}})
        return weights(engine, engine.wait_job(job["id"]))

    assert weights_with("x", reset_at_document=True) == weights_with("y", reset_at_document=True)
    # If packed, the second block begins with the end of the first document.
    assert weights_with("x", sequence_length=80) != weights_with("y", sequence_length=80)


def test_documents_that_are_reset_validate_too(engine):
    documents = [{"text": f"document {n} " + "word " * (n % 30)} for n in range(300)]
    done = run(engine, engine.add_file(lines(*documents)), reset_at_document=True)
    assert done["additive"]["valid_loss"] > 0


# --- the cache -------------------------------------------------------------------------------

def cached(daemon):
    return sorted((daemon.folder / "cache").iterdir())


def test_tokens_are_kept_for_the_next_job_made_again_when_damaged_and_removed_beyond_the_budget(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        file = engine.add_file(LARGE)
        first = run(engine, file, validation_fraction=0)
        [tokens] = cached(daemon)
        made, intact = tokens.stat().st_ino, tokens.read_bytes()
        assert weights(engine, run(engine, file, validation_fraction=0)) == weights(engine, first)
        assert [tokens] == cached(daemon) and tokens.stat().st_ino == made
        with open(tokens, "r+b") as f:
            f.seek(-1000, 2)
            byte = f.read(1)
            f.seek(-1, 1)
            f.write(bytes([byte[0] ^ 1]))
        assert weights(engine, run(engine, file, validation_fraction=0)) == weights(engine, first)
        assert [tokens] == cached(daemon) and tokens.read_bytes() == intact
        run(engine, engine.add_file(LARGE[::-1]), validation_fraction=0)
        assert len(cached(daemon)) == 2
    assert daemon.stop() == 0
    (daemon.folder / "tmp/7-0").write_bytes(b"half a cache")
    daemon = own_daemon("--corpus-cache-bytes", 12 << 20)
    assert len(cached(daemon)) == 1 and tokens not in cached(daemon)
    assert not list((daemon.folder / "tmp").iterdir())
    assert daemon.stop() == 0


def test_a_disk_that_is_full_refuses_the_job_and_keeps_nothing(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        file = engine.add_file(LARGE)
        before = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (6 << 20, resource.RLIM_INFINITY))
        e = refused(engine, job_params(file, validation_fraction=0))
        assert e.status == 507 and "tokens" in e.message
        assert cached(daemon) == [] and not list((daemon.folder / "tmp").iterdir())
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, before)
        run(engine, file, validation_fraction=0)
    assert daemon.stop() == 0


def test_a_labelled_corpus_is_cached_too_and_trains_the_same_weights_from_there(own_daemon):
    records = lines(*({"text": f"{n} {'of ' * (n % 30)}", "label": n % 3} for n in range(70000)))
    assert len(records) > 4 << 20
    daemon = own_daemon()

    def classify(engine, file, **more):
        done = engine.wait_job(engine.call("job.create", {
            "model": "linear_encoder", "training_file": file, "seed": 7,
            "additive": {"objective": "classification", "size": {"hidden": 16, "heads": 2, "layers": 1},
                         "sequence_length": 48, "batch_size": 4, "max_steps": 3, "eval_every": 0, **more}})["id"])
        assert done["status"] == "succeeded", done["error"]
        return done

    with daemon.connect() as engine:
        file = engine.add_file(records)
        first = classify(engine, file, validation_fraction=0.01)
        kept = cached(daemon)
        assert [p.name.split(".", 1)[1] for p in kept] == ["tokens", "tokens.entries"]
        files = [p.stat().st_ino for p in kept]
        assert weights(engine, classify(engine, file, validation_fraction=0.01)) == weights(engine, first)
        assert [p.stat().st_ino for p in cached(daemon)] == files
        kept[1].unlink()  # one without the other is no text
        assert weights(engine, classify(engine, file, validation_fraction=0.01)) == weights(engine, first)
        assert cached(daemon) == kept
        classify(engine, file, sequence_length=24)
        assert len(cached(daemon)) == 4
        e = refused(engine, {"model": "linear_encoder", "training_file": engine.add_file(records + "{}\n"),
                             "additive": {"objective": "classification"}})
        assert e.status == 400 and e.message.startswith("line 70001: ") and len(cached(daemon)) == 4
        assert not list((daemon.folder / "tmp").iterdir())
    assert daemon.stop() == 0


def test_cached_tokens_count_against_the_data_budget_and_unused_ones_give_way(own_daemon):
    daemon = own_daemon("--data-budget", 50)  # MiB; a text of 5 has 10 of tokens
    with daemon.connect() as engine:
        first, second = engine.add_file(LARGE), engine.add_file(LARGE[::-1])
        run(engine, first, 1, validation_fraction=0)
        (oldest,) = cached(daemon)
        run(engine, second, 1, validation_fraction=0)
        kept = [tokens for tokens in cached(daemon) if tokens != oldest]
        assert oldest.exists() and len(kept) == 1
        engine.add_file("x" * (21 << 20))
        assert cached(daemon) == kept
        with pytest.raises(EngineError) as e:
            engine.add_file("x" * (25 << 20))
        assert e.value.status == 507 and "data budget" in e.value.message and cached(daemon) == []
        engine.add_file("x" * (12 << 20))
        e = refused(engine, job_params(first, 1, validation_fraction=0))
        assert e.status == 507 and "data budget leaves" in e.message
        assert cached(daemon) == [] and not list((daemon.folder / "tmp").iterdir())
    assert daemon.stop() == 0


def test_a_run_on_several_cached_files_goes_on_after_kill_9_to_the_same_weights(own_daemon):
    daemon = own_daemon()

    def begin(engine, files):
        return engine.call("job.create", job_params(files[0]["file"], 60, training_files=files, loss_on="completion",
                                                    checkpoint_every=10, validation_fraction=0.001))["id"]

    with daemon.connect() as engine:
        pairs = lines(*({"prompt": f"{n}? ", "completion": f"{n * n}."} for n in range(400)))
        files = [{"file": engine.add_file(LARGE), "weight": 0.5}, {"file": engine.add_file(pairs), "weight": 3}]
        whole = engine.wait_job(begin(engine, files))
        expected = weights(engine, whole)
        job = begin(engine, files)
        engine.wait(lambda: engine.call("job.checkpoints", {"id": job})["data"])
    daemon.kill()
    daemon = own_daemon()
    with daemon.connect() as engine:
        done = engine.wait_job(job)
        assert done["status"] == "succeeded" and weights(engine, done) == expected
        assert done["additive"]["valid_loss"] == whole["additive"]["valid_loss"]
    assert daemon.stop() == 0
