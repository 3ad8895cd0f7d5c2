"""additived: evaluations of models over files, against the log-probabilities of the same engine's completions."""

import json
import math
import time

import numpy
import pytest

from engine_client import PATIENCE, SANITIZED, TEXT, TINY, TINY_TRILINEAR, EngineError, daemon, engine, own_daemon, train  # noqa: F401

UNBOUNDED = {**TINY["config"], "position_embedding": "none"}
SONG = TEXT[:5000]
BOUND = 512  # positions of the bounded model
UNIT = 4096  # tokens between two borders


@pytest.fixture(scope="module")
def models(engine):
    """Two whose states are carried through any text, and one whose sequences are bounded."""
    matching = {**TINY_TRILINEAR["config"], "input": "hashed", "match_window": 64}
    return {"carried": train(engine, config=UNBOUNDED), "bounded": train(engine),
            "matching": train(engine, architecture="trilinear", config=matching)}


def wait(engine, id, seconds=PATIENCE):
    return engine.wait(lambda: (lambda e: e if e["finished_at"] else None)(engine.call("evaluation.get", {"id": id})), seconds)


def evaluate(engine, model, text, **more):
    file = engine.add_file(text, more.pop("filename", "corpus.txt"))
    done = wait(engine, engine.call("evaluation.create", {"model": model, "file": file, **more})["id"])
    assert done["status"] == "succeeded", done
    return done


def refused(engine, method, params):
    with pytest.raises(EngineError) as failed:
        engine.call(method, params)
    return failed.value


def tokens_of(engine, model, text):
    return engine.call("tokenize", {"model": model, "text": text})["tokens"]


def losses(engine, model, ids):
    """Return for each token but the first its loss in nats, given the tokens before it, and whether it is the most
    likely."""
    request = {"model": model, "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
    events = list(engine.begin("completion.create", request, credit=1 << 20).events())
    found = [x for e in events for x in zip(e["logprobs"]["token_logprobs"], e["logprobs"]["tokens"], e["logprobs"]["top_logprobs"])]
    assert len(found) == len(ids)
    return [(-p, name in top and p >= max(top.values())) for p, name, top in found[1:]]


def expected(engine, model, ids, windows):
    """{index: (nats, right, position)} of windows (first token, first new token, end)."""
    scored = {}
    for begin, new, end in windows:
        for i, (nats, right) in enumerate(losses(engine, model, ids[begin:end]), begin + 1):
            if i >= new:
                assert i not in scored
                scored[i] = nats, right, i - begin
    return scored


def assert_report(report, scored):
    nats = numpy.array([s[0] for s in scored.values()])
    right, position = (numpy.array([s[k] for s in scored.values()]) for k in (1, 2))
    assert report["tokens"] == len(scored)
    assert report["nats_per_token"] == pytest.approx(nats.mean(), abs=1e-5)
    assert report["perplexity"] == pytest.approx(math.exp(report["nats_per_token"]), rel=1e-7)
    assert report["accuracy"] == pytest.approx(right.mean(), abs=1e-8)
    assert sum(r["tokens"] for r in report["positions"]) == len(scored)
    for r in report["positions"]:
        here = (position >= r["from"]) & (position <= r["to"])
        assert r["to"] == 2 * r["from"] - 1 and r["tokens"] == here.sum() > 0
        assert r["nats_per_token"] == pytest.approx(nats[here].mean(), abs=1e-5)
        assert r["accuracy"] == pytest.approx(right[here].mean(), abs=1e-8)
    rows = report["rows"]
    worst = sorted(nats)[::-1][:len(rows)]
    assert [row["nats"] for row in rows] == pytest.approx(worst, abs=1e-5)
    for row in rows:
        assert scored[row["index"]][0] == pytest.approx(row["nats"], abs=1e-5) and scored[row["index"]][2] == row["position"]


# --- numbers -------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["carried", "matching"])
def test_a_carried_context_is_one_long_pass(engine, models, name):
    model = models[name]
    done = evaluate(engine, model, SONG)
    assert done["settings"] == {"context": "carried", "length": None, "stride": None, "reset_at_document": False, "top": 20, "dtype": "fp32"}
    ids, report = tokens_of(engine, model, SONG), done["result"]
    assert len(ids) > UNIT  # the state has crossed a border
    assert done["progress"]["tokens"] == done["progress"]["total_tokens"] == len(ids)
    assert_report(report, expected(engine, model, ids, [(0, 1, len(ids))]))
    assert report["bytes"] == len(SONG) - 1  # a byte is a token, and the first is not scored
    assert report["bits_per_byte"] == pytest.approx(report["nats_per_token"] / math.log(2), rel=1e-7)
    assert report["positions"][-1]["from"] == 4096


@pytest.mark.parametrize("length, stride", [(64, 48), (100, 1), (33, 32), (BOUND, 256)])
def test_sliding_windows_score_each_token_once_with_enough_before_it(engine, models, length, stride):
    model, text = models["bounded"], SONG[:700]
    report = evaluate(engine, model, text, context="sliding", length=length, stride=stride, top=5)["result"]
    ids = tokens_of(engine, model, text)
    windows, done, begin = [], 0, 0
    while done < len(ids):
        end = min(begin + length, len(ids))
        windows.append((begin, done, end))
        begin, done = begin + stride, end
    scored = expected(engine, model, ids, windows)
    assert sorted(scored) == list(range(1, len(ids)))
    assert all(position >= length - stride for i, (_, _, position) in scored.items() if i >= length)
    assert len(report["rows"]) == 5
    assert_report(report, scored)


@pytest.mark.parametrize("length", [2, 64, 500])
def test_blocks_begin_from_an_empty_state_and_the_remainder_counts(engine, models, length):
    model, text = models["bounded"], SONG[:1001]
    report = evaluate(engine, model, text, context="blocks", length=length, top=0)["result"]
    ids = tokens_of(engine, model, text)
    scored = expected(engine, model, ids, [(b, b, min(b + length, len(ids))) for b in range(0, len(ids) - 1, length)] if length > 2 else [])
    assert report["rows"] == []
    if length > 2:
        assert_report(report, scored)
    else:  # every second token, from the one before it alone
        assert report["tokens"] == len(ids) // 2 and [r["from"] for r in report["positions"]] == [1]


def test_a_window_longer_than_a_unit_is_read_whole(engine, models):
    model, text = models["carried"], TEXT[:UNIT + 1500]
    windows = evaluate(engine, model, text, context="blocks", length=UNIT + 1500)["result"]
    assert windows == evaluate(engine, model, text, context="sliding", length=UNIT + 1500, stride=7)["result"]
    carried = evaluate(engine, model, text)["result"]
    assert windows["nats_per_token"] == pytest.approx(carried["nats_per_token"], abs=1e-6)


def test_documents_are_one_text_or_begin_each_from_an_empty_state(engine, models):
    model = models["carried"]
    documents = ["a bottle of beer on the wall", TEXT[:UNIT + 100], "x", "take one down, pass it around"]
    lines = "".join(json.dumps({"text": d}) + "\n" for d in documents)
    whole = evaluate(engine, model, lines, filename="c.jsonl")["result"]
    apart = evaluate(engine, model, lines, filename="c.jsonl", reset_at_document=True)["result"]
    end = tokens_of(engine, model, documents[0])
    assert apart["positions"][0]["tokens"] == len(documents) and whole["positions"][0]["tokens"] == 1
    assert whole["tokens"] == apart["tokens"] + len(documents) - 1  # the first token of a document
    assert whole["nats_per_token"] != apart["nats_per_token"]
    alone = [evaluate(engine, model, json.dumps({"text": d}) + "\n", filename="d.jsonl", top=0)["result"] for d in documents]
    assert apart["tokens"] == sum(a["tokens"] for a in alone) and len(end) == len(documents[0])
    assert apart["nats_per_token"] * apart["tokens"] == pytest.approx(sum(a["nats_per_token"] * a["tokens"] for a in alone), abs=1e-2 * 1e-3 * apart["tokens"])
    sliding = evaluate(engine, model, lines, filename="c.jsonl", context="sliding", length=64, stride=16, reset_at_document=True)["result"]
    assert sliding["tokens"] == apart["tokens"]


def test_rows_show_the_text_where_it_is(engine, models):
    text = SONG[:2000]
    report = evaluate(engine, models["carried"], text, top=3)["result"]
    first = report["rows"][0]
    assert first["nats"] == max(r["nats"] for r in report["rows"]) and first["nats"] > report["nats_per_token"]
    for row in report["rows"]:
        assert text[row["offset"]] == row["token"]["text"] and row["offset"] == row["index"]
        assert text[:row["offset"]].endswith(row["before"]) and len(row["before"]) == 32


# --- the job -------------------------------------------------------------------------------

def test_its_events_are_followed_to_the_end(engine, models):
    file = engine.add_file(SONG)
    id = engine.call("evaluation.create", {"model": models["carried"], "file": file})["id"]
    call = engine.begin("evaluation.watch", {"id": id}, credit=100)
    events = list(call.events())
    assert call.result() == engine.call("evaluation.get", {"id": id})
    assert [e["message"] for e in events if e["type"] == "message"] == [f"The evaluation is {s}" for s in ("queued", "running", "succeeded")]
    page = engine.call("evaluation.events", {"id": id, "order": "asc"})
    assert page["data"] == events and not page["has_more"]
    call = engine.begin("evaluation.watch", {"id": id, "after": events[1]["id"]}, credit=100)
    assert list(call.events()) == events[2:]
    listed = engine.call("evaluation.list", {"limit": 1})
    assert listed["data"] == [engine.call("evaluation.get", {"id": id})] and listed["has_more"]
    for method in ("job.get", "faithfulness.get"):
        assert refused(engine, method, {"id": id}).status == 404
    assert refused(engine, "evaluation.cancel", {"id": id}).status == 409
    assert engine.call("evaluation.delete", {"id": id})["deleted"]
    for method in ("get", "cancel", "delete", "events", "watch"):
        error = refused(engine, f"evaluation.{method}", {"id": id})
        assert error.status == 404 and error.message == f'there is no evaluation "{id}"'


def test_a_repeated_request_with_a_key_makes_one(engine, models):
    request = {"model": models["carried"], "file": engine.add_file(SONG), "idempotency_key": "evaluate once"}
    first, second = (engine.call("evaluation.create", dict(request)) for _ in range(2))
    assert first == second
    assert refused(engine, "evaluation.create", {**request, "top": 3}).code == "idempotency_mismatch"
    assert wait(engine, first["id"])["status"] == "succeeded"


def test_one_that_is_cancelled_ends_and_the_next_one_runs(engine, models):
    model, file = models["carried"], engine.add_file(TEXT * 400)
    long = engine.call("evaluation.create", {"model": model, "file": file})["id"]
    short = engine.call("evaluation.create", {"model": model, "file": engine.add_file(SONG)})["id"]
    engine.wait(lambda: engine.call("evaluation.get", {"id": long})["progress"]["tokens"] > 0)
    assert refused(engine, "file.delete", {"id": file}).code == "file_in_use"
    assert refused(engine, "model.delete", {"id": model}).code == "model_in_use"
    assert refused(engine, "evaluation.delete", {"id": long}).code == "invalid_job_state"
    # A generation is served meanwhile.
    assert len(engine.call("completion.create", {"model": model, "prompt": "9", "max_tokens": 40})["choices"]) == 1
    assert engine.call("evaluation.get", {"id": long})["status"] == "running"
    assert engine.call("evaluation.cancel", {"id": long})["status"] == "cancelled"
    assert wait(engine, short)["status"] == "succeeded"
    ended = engine.call("evaluation.get", {"id": long})
    assert ended["result"] is None and 0 < ended["progress"]["tokens"] < ended["progress"]["total_tokens"]
    engine.call("evaluation.delete", {"id": long})
    engine.call("file.delete", {"id": file})


def test_other_weights_end_it(engine):
    model = train(engine, config=UNBOUNDED)
    id = engine.call("evaluation.create", {"model": model, "file": engine.add_file(TEXT * 400)})["id"]
    engine.wait(lambda: engine.call("evaluation.get", {"id": id})["progress"]["tokens"] > 0)

    def load():
        try:
            return engine.call("model.load", {"id": model, "dtype": "int8"})
        except EngineError as error:
            assert error.code == "model_in_use"
    engine.wait(load)
    ended = wait(engine, id)
    assert ended["status"] == "failed" and ended["error"]["param"] == "model" and "int8" in ended["error"]["message"]
    assert evaluate(engine, model, SONG)["settings"]["dtype"] == "int8"


@pytest.mark.parametrize("context", [{"context": "carried"}, {"context": "sliding", "length": 200, "stride": 100},
                                     {"context": "carried", "reset_at_document": True}])
def test_one_that_is_killed_and_stopped_has_the_same_report_bit_for_bit(own_daemon, context):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine, config=UNBOUNDED)
        count, took = 20 if SANITIZED else 80, 0
        while took < 4:  # so long that it has reported twice before it ends
            text = "".join(json.dumps({"text": TEXT[n % 80:n % 80 + 9000 + n % 80]}) + "\n" for n in range(count))
            request = {"model": model, "file": engine.add_file(text, "c.jsonl"), **context}
            began = time.monotonic()
            whole = wait(engine, engine.call("evaluation.create", request)["id"])
            took = time.monotonic() - began
            count *= 2
        id = engine.call("evaluation.create", request)["id"]
        for end in (daemon.kill, daemon.stop):
            reported = lambda: len([e for e in engine.call("evaluation.events", {"id": id, "limit": 1000})["data"] if e["type"] == "progress"])
            before = reported()
            engine.wait(lambda: reported() > before)
            kept = [e["data"]["tokens"] for e in engine.call("evaluation.events", {"id": id})["data"] if e["type"] == "progress"][0]
            end()
            daemon.start()
            engine.close()
            engine = daemon.connect()
            assert engine.call("evaluation.get", {"id": id})["progress"]["tokens"] >= kept > 0
        ended = wait(engine, id)
        assert ended["status"] == "succeeded" and ended["result"] == whole["result"] and ended["settings"] == whole["settings"]
        assert json.dumps(ended["result"]) == json.dumps(whole["result"])
        engine.close()
    assert daemon.stop() == 0


# --- bad input -----------------------------------------------------------------------------

@pytest.mark.parametrize("model, more, param", [
    ("none", {}, "model"), ("bounded", {"file": "file-none"}, "file"), ("bounded", {"context": "carried"}, "context"),
    ("bounded", {"context": "all"}, "context"), ("bounded", {"length": BOUND + 1}, "length"), ("bounded", {"length": 1}, "length"),
    ("carried", {"length": 64}, "length"), ("carried", {"stride": 64}, "stride"), ("bounded", {"context": "blocks", "stride": 8}, "stride"),
    ("bounded", {"length": 64, "stride": 64}, "stride"), ("bounded", {"stride": 0}, "stride"), ("bounded", {"top": 101}, "top"),
    ("bounded", {"reset_at_document": 1}, "reset_at_document"), ("bounded", {"metrics": []}, "metrics")])
def test_bad_input_names_the_field(engine, models, model, more, param):
    request = {"model": models.get(model, model), "file": engine.add_file(SONG), **more}
    assert refused(engine, "evaluation.create", request).param == param


@pytest.mark.parametrize("text, param", [("x", "file"), (b"\xff\xfe\xff", "file"), ('{"text": 1}\n', "file")])
def test_a_file_that_cannot_be_evaluated_is_named(engine, models, text, param):
    error = refused(engine, "evaluation.create", {"model": models["carried"], "file": engine.add_file(text)})
    assert (error.status, error.param) == (400, param)


def test_a_model_that_does_not_generate_is_refused(engine):
    labelled = "".join(json.dumps({"text": f"a {n}", "label": "ab"[n % 2]}) + "\n" for n in range(40))
    job = engine.call("job.create", {"model": "linear_encoder", "training_file": engine.add_file(labelled, "labelled.jsonl"),
                                     "additive": {"objective": "classification", "size": {"hidden": 16, "heads": 2, "layers": 1},
                                                  "sequence_length": 16, "batch_size": 4, "max_steps": 2}})
    model = engine.wait_job(job["id"])["fine_tuned_model"]
    assert refused(engine, "evaluation.create", {"model": model, "file": engine.add_file(SONG)}).param == "model"
