"""additived: spans of jobs, as front ends get them (trace.watch), and as a collector gets them."""

import json
import struct
import time

import pytest

from engine_client import BIN, PATIENCE, TEXT, EngineError, daemon, engine, job_params, own_daemon, train  # noqa: F401
from http_support import Front
from test_http_trace import PARENT, TRACE, attributes, bounds, collector  # noqa: F401

TRACED = {"request_id": "r", "traceparent": f"00-{TRACE}-{PARENT}-01"}
SECRET = "a text that no span may have. " * 300


def create(engine, method, params, context=TRACED):
    return engine.begin(method, params, context=context).result()


def create_training(engine, steps=20, context=TRACED, **more):
    return create(engine, "job.create", job_params(engine.add_file(SECRET), steps, **more), context)["id"]


class Watch:
    """A stream of trace.watch."""

    def __init__(self, engine):
        self.call = engine.begin("trace.watch", credit=1)

    def next(self, timeout=PATIENCE):
        return self.call.next(timeout)[1]

    def job(self, id):
        """Confirm spans up to those of a job, and return these. self.others: the ids of the other jobs."""
        self.others = []
        while True:
            spans = self.next()["spans"]
            self.call.grant(1)
            if attributes(spans[0])["additive.job_id"] == id:
                return spans
            self.others.append(attributes(spans[0])["additive.job_id"])

    def close(self):
        self.call.cancel()
        with pytest.raises(EngineError):
            self.call.result()


@pytest.fixture
def watch(engine):
    made = Watch(engine)
    yield made
    made.close()


def names(spans):
    return [s["name"] for s in spans]


def check_tree(spans, created_ns):
    """The job's span is the root of a trace of its own, linked to the request. Its phases follow each other, and the other
    spans begin in a phase."""
    root, *rest = spans
    assert root["links"] == [{"traceId": TRACE, "spanId": PARENT}] and "parentSpanId" not in root
    assert len({s["spanId"] for s in spans}) == len(spans)
    assert {s["traceId"] for s in spans} == {root["traceId"]} != {TRACE}
    assert all(len(s["traceId"]) == 32 and len(s["spanId"]) == 16 for s in spans)
    by_id = {s["spanId"]: s for s in spans}
    for span in rest:
        parent = by_id[span["parentSpanId"]]
        assert bounds(parent)[0] <= bounds(span)[0] <= bounds(parent)[1], (span, parent)
        assert bounds(span)[0] <= bounds(span)[1] <= bounds(root)[1]
    phases = [s for s in rest if s["parentSpanId"] == root["spanId"]]
    assert bounds(phases[0])[0] == bounds(root)[0] and bounds(phases[-1])[1] == bounds(root)[1]
    assert all(bounds(a)[1] == bounds(b)[0] for a, b in zip(phases, phases[1:]))
    assert created_ns <= bounds(root)[0] <= bounds(root)[1] <= time.time_ns()
    return names(phases)


def test_a_training_job_has_spans_of_its_phases_validations_and_checkpoints(engine, watch):
    created = time.time_ns()
    id = create_training(engine, 20, eval_every=10, checkpoint_every=10, validation_fraction=0.1)
    spans = watch.job(id)
    assert check_tree(spans, created) == ["waiting", "preparing", "training"]
    assert spans[0]["name"] == "fine_tuning.job" and spans[0]["kind"] == 1 and spans[0]["status"] == {"code": 0}
    assert attributes(spans[0]) == {"additive.job_id": id, "additive.job_status": "succeeded"}
    training = next(s for s in spans if s["name"] == "training")
    for name in ("validation", "checkpoint"):
        parts = [s for s in spans if s["name"] == name]
        assert [attributes(s)["additive.step"] for s in parts] == ["10", "20"]
        assert all(s["parentSpanId"] == training["spanId"] and bounds(s)[0] < bounds(s)[1] for s in parts)
    assert "no span may have" not in json.dumps(spans) and "corpus.txt" not in json.dumps(spans)


@pytest.mark.skipif(not (BIN / "additive-train").exists(), reason="built without MPI")
def test_a_job_of_several_processes_has_spans_of_its_phases(engine, watch):
    created = time.time_ns()
    spans = watch.job(create_training(engine, 20, eval_every=10, checkpoint_every=10, validation_fraction=0.1, parallel={"ranks": 2}))
    assert check_tree(spans, created) == ["waiting", "preparing", "training"] == names(spans)[1:]


def test_rows_and_answers_do_not_show_the_trace(engine, watch):
    id = create_training(engine)
    watch.job(id)
    model = train(engine)
    evaluation = create(engine, "evaluation.create", {"model": model, "file": engine.add_file(TEXT[:500])})
    watch.job(evaluation["id"])
    for document in (evaluation, engine.call("evaluation.get", {"id": evaluation["id"]}), engine.call("job.get", {"id": id}),
                     *engine.call("job.list")["data"], *engine.call("evaluation.list")["data"]):
        assert "trace" not in document


@pytest.mark.parametrize("context", [None, {"request_id": "r", "times": True}])
def test_a_job_of_a_request_without_a_trace_has_no_spans(engine, watch, context):
    id = create_training(engine, context=context)
    engine.wait_job(id)
    watch.job(create_training(engine))
    assert id not in watch.others


@pytest.mark.parametrize("value", [7, "", f"00-{TRACE}-{PARENT}", f"01-{TRACE}-{PARENT}-01", f"00-{TRACE.upper()}-{PARENT}-01",
                                   f"00-{TRACE}-{PARENT}-01-", f"00x{TRACE}-{PARENT}-01",
                                   f"00-{TRACE[:-1]}\0-{PARENT}-01"])
def test_a_malformed_traceparent_breaks_the_protocol(daemon, value):
    with daemon.connect() as engine:
        with pytest.raises(Exception):
            create(engine, "engine.status", {}, {"request_id": "r", "traceparent": value})


def test_evaluations_and_faithfulness_have_spans(engine, watch):
    created = time.time_ns()
    model = train(engine)
    file = engine.add_file(SECRET)
    for method, name in (("evaluation.create", "evaluation"), ("faithfulness.create", "explain.evaluation.job")):
        spans = watch.job(create(engine, method, {"model": model, "file": file})["id"])
        assert spans[0]["name"] == name and check_tree(spans, created) == ["waiting", "running"]
        assert "no span may have" not in json.dumps(spans)


def test_a_job_that_fails_has_the_code_of_its_error(engine, watch):
    created = time.time_ns()
    model = train(engine, 5)
    config, weights = (engine.download("model.file", {"id": model, "name": name})[1] for name in ("config.json", "model.safetensors"))
    begin = 8 + struct.unpack("<Q", weights[:8])[0]
    huge = weights[:begin] + struct.pack("<f", 1e18) * ((len(weights) - begin) // 4)
    engine.upload("model.import", {"id": "huge"}, config=config, weights=huge)
    params = {"model": "huge", "training_file": engine.add_file(TEXT), "additive": {"sequence_length": 64, "max_steps": 50}}
    id = create(engine, "job.create", params)["id"]
    spans = watch.job(id)
    check_tree(spans, created)
    document = engine.call("job.get", {"id": id})
    assert document["status"] == "failed" == attributes(spans[0])["additive.job_status"]
    assert spans[0]["status"] == {"code": 2} and attributes(spans[0])["error.type"] == document["error"]["code"]


def test_a_batch_whose_file_is_invalid_has_the_code_of_its_first_problem(engine, watch):
    file = engine.upload("file.create", {"filename": "requests.jsonl", "purpose": "batch"}, file=b"no JSON")["id"]
    id = create(engine, "batch.create", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})["id"]
    root = watch.job(id)[0]
    document = engine.call("batch.get", {"id": id})
    assert document["status"] == "failed" == attributes(root)["additive.job_status"]
    assert attributes(root)["error.type"] == document["errors"]["data"][0]["code"] != ""


def test_a_batch_counts_its_lines(engine, watch):
    created = time.time_ns()
    model = train(engine)
    lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                         "body": {"model": model if i else "none", "prompt": "secret prompt", "max_tokens": 2}}) for i in range(5)]
    file = engine.upload("file.create", {"filename": "requests.jsonl", "purpose": "batch"}, file="\n".join(lines).encode())["id"]
    id = create(engine, "batch.create", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})["id"]
    spans = watch.job(id)
    assert check_tree(spans, created) == ["waiting", "validating", "running", "finalizing"]
    assert attributes(spans[0])["additive.job_status"] == "completed"
    assert {k: v for k, v in attributes(spans[0]).items() if "requests" in k} == {
        "additive.requests.total": "5", "additive.requests.done": "5", "additive.requests.failed": "1"}
    assert "secret" not in json.dumps(spans)


def test_a_paused_and_a_cancelled_job_say_so_and_a_resumed_one_begins_again(engine, watch):
    created = time.time_ns()
    id = create_training(engine, 10**6, checkpoint_every=5)
    engine.wait(lambda: engine.call("job.checkpoints", {"id": id})["data"])
    engine.call("job.pause", {"id": id})
    engine.call("job.resume", {"id": id})
    engine.wait(lambda: engine.call("job.get", {"id": id})["status"] == "running")
    engine.call("job.cancel", {"id": id})
    first = watch.job(id)
    phases = check_tree(first, created)
    assert phases[:5] == ["waiting", "preparing", "training", "paused", "waiting"]
    assert attributes(first[0])["additive.job_status"] == "cancelled" and first[0]["status"] == {"code": 0}
    again = time.time_ns()
    engine.wait(lambda: resumed(engine, id))
    engine.call("job.cancel", {"id": id})
    second = watch.job(id)
    assert check_tree(second, again)[0] == "waiting"
    assert not {s["spanId"] for s in first} & {s["spanId"] for s in second} and first[0]["traceId"] != second[0]["traceId"]


def test_a_validation_after_a_resume_begins_in_the_run_that_makes_it(engine, watch):
    created = time.time_ns()
    file = engine.add_file(SECRET * 40)
    id = create(engine, "job.create", job_params(file, 10**6, eval_every=1, validation_fraction=0.9))["id"]
    engine.wait(lambda: any(e["type"] == "metrics" for e in engine.job_events(id)))
    seen = len(engine.job_events(id))
    engine.call("job.pause", {"id": id})
    engine.call("job.resume", {"id": id})
    engine.wait(lambda: sum(e["type"] == "metrics" for e in engine.job_events(id)[seen:]) >= 1)
    engine.call("job.cancel", {"id": id})
    spans = watch.job(id)
    assert "training" in check_tree(spans, created) and "validation" in names(spans)


def resumed(engine, id):
    try:
        return engine.call("job.resume", {"id": id})
    except EngineError as e:
        assert e.status == 409
        return None


def test_spans_are_bounded_and_count_those_that_are_dropped(engine, watch):
    created = time.time_ns()
    spans = watch.job(create_training(engine, 100, checkpoint_every=1))
    assert check_tree(spans, created) == ["waiting", "preparing", "training"]
    parts = names(spans).count("checkpoint") + names(spans).count("validation")
    assert parts == 64 and int(attributes(spans[0])["additive.spans_dropped"]) >= 36


def test_spans_stay_until_they_are_confirmed_and_go_to_one_front_end(engine):
    first = Watch(engine)
    id = create_training(engine)
    spans = first.next()["spans"]
    second = Watch(engine)
    other = create_training(engine)
    assert attributes(second.next()["spans"][0])["additive.job_id"] == other
    second.call.grant(1)
    first.close()
    assert second.next()["spans"] == spans and attributes(spans[0])["additive.job_id"] == id
    second.call.grant(1)
    last = create_training(engine)
    assert attributes(second.next()["spans"][0])["additive.job_id"] == last
    second.call.grant(1)
    second.close()


def test_without_a_front_end_the_newest_64_wait(engine):
    model = train(engine)
    file = engine.add_file("a few words")
    ids = []
    for _ in range(66):
        ids.append(create(engine, "evaluation.create", {"model": model, "file": file})["id"])
        engine.wait(lambda: engine.call("evaluation.get", {"id": ids[-1]})["finished_at"])
    watch = Watch(engine)
    found = []
    for _ in range(64):
        found.append(attributes(watch.next()["spans"][0])["additive.job_id"])
        watch.call.grant(1)
    watch.close()
    assert found == ids[2:]


@pytest.mark.parametrize("graceful", [False, True])
def test_a_job_whose_engine_is_killed_has_one_trace_through_both_engines(own_daemon, graceful):
    created = time.time_ns()
    daemon = own_daemon()
    with daemon.connect() as engine:
        id = create_training(engine, 10**6, checkpoint_every=5)
        engine.wait(lambda: len(engine.call("job.checkpoints", {"id": id})["data"]) >= 2)
        if graceful:
            daemon.stop()
        else:
            daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        watch = Watch(engine)
        engine.wait(lambda: any("continues" in e["message"] for e in engine.job_events(id)))
        engine.call("job.cancel", {"id": id})
        spans = watch.job(id)
        watch.close()
    assert check_tree(spans, created) == ["waiting", "preparing", "training", "preparing", "training"]
    training = [s for s in spans if s["name"] == "training"]
    assert attributes(training[0]) == {"additive.interrupted": True} and attributes(training[1]) == {}
    before = [s for s in spans if s["name"] == "checkpoint" and s["parentSpanId"] == training[0]["spanId"]]
    assert len(before) >= 2
    daemon.stop()


def end_job_while_away(engine, front, collector):
    """Train by a traced request while the collector refuses everything. Returns the job's id once it was refused."""
    collector.status = 503
    answer = front.post("/v1/fine_tuning/jobs", job_params(engine.add_file(SECRET)), headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert answer.status == 200, answer.body
    engine.wait_job(answer.json["id"])
    engine.wait(lambda: len(collector.paths) >= 3)
    return answer.json["id"]


def test_a_collector_gets_the_spans_of_a_job_also_after_it_was_away(own_daemon, collector):
    daemon = own_daemon()
    front = Front(daemon.address, "--otlp-endpoint", collector.url)
    with daemon.connect() as engine:
        id = end_job_while_away(engine, front, collector)
        collector.status = 200
        engine.wait(lambda: collector.named("fine_tuning.job"))
    job = collector.named("fine_tuning.job")[0]
    assert attributes(job)["additive.job_id"] == id
    assert job["links"][0]["traceId"] == TRACE and job["links"][0]["spanId"] not in (PARENT, "0" * 16)
    assert {"waiting", "preparing", "training"} <= {s["name"] for s in collector.spans() if s["traceId"] == job["traceId"]}
    assert len(collector.named("fine_tuning.job")) == 1
    front.close()
    daemon.stop()


def test_a_front_end_that_is_killed_loses_no_spans(own_daemon, collector):
    daemon = own_daemon()
    front = Front(daemon.address, "--otlp-endpoint", collector.url)
    with daemon.connect() as engine:
        id = end_job_while_away(engine, front, collector)
        front.process.kill()
        front.process.wait()
        collector.status = 200
        second = Front(daemon.address, "--otlp-endpoint", collector.url)
        engine.wait(lambda: collector.named("fine_tuning.job"))
    assert attributes(collector.named("fine_tuning.job")[0])["additive.job_id"] == id
    second.close()
    daemon.stop()
