"""Batches of requests over files: each answer is that of the endpoint, and each line has one, whatever was killed."""

import contextlib
import json
import re
import signal
import sqlite3

import pytest

from engine_client import PATIENCE, TINY, EngineError, daemon, engine, own_daemon, train  # noqa: F401
from engine_serving import metric
from http_support import Front

ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def model(engine):
    return train(engine)


@pytest.fixture(scope="module")
def front(daemon):
    front = Front(daemon.address)
    yield front
    front.stop()


def line(id, url, body, **more):
    return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": body, **more})


def add_batch_file(engine, lines, purpose="batch"):
    data = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
    return engine.upload("file.create", {"filename": "requests.jsonl", "purpose": purpose}, file=data)["id"]


def create(engine, lines, url="/v1/completions", window="24h", **more):
    return engine.call("batch.create", {"input_file_id": add_batch_file(engine, lines), "endpoint": url,
                                        "completion_window": window, **more})


def wait(engine, id, until=ENDED, seconds=2 * PATIENCE):
    return engine.wait(lambda: (lambda b: b if b["status"] in until else None)(engine.call("batch.get", {"id": id})), seconds)


def content(engine, file):
    return engine.download("file.content", {"id": file})[1] if file else b""


def results(engine, batch):
    """Lines of the output file and of the error file."""
    return [[json.loads(x) for x in content(engine, batch[key]).splitlines()] for key in ("output_file_id", "error_file_id")]


def run(engine, lines, url="/v1/completions", **more):
    batch = wait(engine, create(engine, lines, url, **more)["id"])
    return batch, *results(engine, batch)


def refused(engine, params):
    with pytest.raises(EngineError) as failed:
        engine.call("batch.create", params)
    return failed.value


# --- the answers -----------------------------------------------------------------------------------------------

def without_ids(body):
    """An answer without what names or dates it."""
    if isinstance(body, dict):
        return {k: without_ids(v) for k, v in body.items() if k not in ("id", "call_id", "created", "created_at")}
    return [without_ids(x) for x in body] if isinstance(body, list) else body


CASES = {
    "/v1/completions": [
        {"prompt": "99 bottles", "max_tokens": 8, "temperature": 0},
        {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 4, "seed": 3, "logprobs": 2, "echo": True},
        {"prompt": "bottles", "max_tokens": 6, "best_of": 3, "n": 2, "seed": 5, "prompt_logprobs": 1},
        {"prompt": "bottles", "max_tokens": 5, "seed": 2, "alpha": {"top": 2}},
        {"prompt": "bottles", "max_tokens": 1e1, "seed": 2.0, "stream": False},
    ],
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "seed": 1, "logprobs": True, "top_logprobs": 2},
        {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "seed": 1, "n": 2},
    ],
    "/v1/responses": [
        {"input": "hello", "instructions": "sing", "max_output_tokens": 6, "seed": 4, "include": ["message.output_text.logprobs"],
         "top_logprobs": 1, "metadata": {"a": "b"}},
        {"input": "hello", "max_output_tokens": 70, "seed": 4, "tools": [{"type": "function", "name": "now"}], "tool_choice": "required"},
        {"input": [{"role": "user", "content": "hello"}, {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "a", "output": "7"}], "max_output_tokens": 6, "seed": 4, "tools": [{"type": "function", "name": "now"}]},
    ],
    "/v1/embeddings": [{"input": ["bottles", "beer"]}],
    "/v1/tokenize": [{"text": "bottles of beer"}],
    "/v1/detokenize": [{"tokens": [70, 71, 72]}],
    "/v1/explain": [{"input": "99 bottles", "method": "contributions"}, {"input": "99 bottles", "method": "alpha"}],
}


@pytest.mark.parametrize("url", CASES)
def test_an_answer_is_that_of_the_endpoint(engine, front, model, url):
    cached = url in ("/v1/completions", "/v1/chat/completions", "/v1/responses")
    bodies = [{"model": model, **body, **({"cache_prompt": False} if cached else {})} for body in CASES[url]]
    batch, output, errors = run(engine, [line(f"r{i}", url, b) for i, b in enumerate(bodies)], url)
    assert (batch["status"], errors) == ("completed", [])
    assert batch["request_counts"] == {"total": len(bodies), "completed": len(bodies), "failed": 0}
    for i, (body, one) in enumerate(zip(bodies, output, strict=True)):
        answer = front.request("POST", url, body)
        assert answer.status == one["response"]["status_code"] == 200, answer.body
        assert (one["custom_id"], one["error"], list(one)) == (f"r{i}", None, ["id", "custom_id", "response", "error"])
        assert without_ids(one["response"]["body"]) == without_ids(answer.json)
        assert list(one["response"]["body"]) == list(answer.json)


def test_an_error_of_the_endpoint_is_a_line_of_the_error_file(engine, front, model):
    bodies = [{"model": "missing", "prompt": "a"}, {"model": model, "prompt": "a", "temperature": -1},
              {"model": model, "prompt": "a", "max_tokens": 1}, {"model": model, "prompt": "a", "colour": 1}]
    batch, output, errors = run(engine, [line(f"r{i}", "/v1/completions", b) for i, b in enumerate(bodies)])
    assert batch["status"] == "completed" and batch["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
    assert [x["custom_id"] for x in output] == ["r2"] and [x["custom_id"] for x in errors] == ["r0", "r1", "r3"]
    for one in errors:
        answer = front.request("POST", "/v1/completions", bodies[int(one["custom_id"][1:])])
        assert one["error"] is None and one["response"]["status_code"] == answer.status
        assert one["response"]["body"] == answer.json


# --- malformed input -------------------------------------------------------------------------------------------

def test_a_wrong_line_is_an_error_line(engine, model):
    good = {"model": model, "prompt": "a", "max_tokens": 1}
    lines = [
        line("first", "/v1/completions", good), "", "{", "[1]", line("", "/v1/completions", good),
        json.dumps({"method": "POST", "url": "/v1/completions", "body": good}),
        line("first", "/v1/completions", good), line("url", "/v1/other", good), line("url2", "/v1/embeddings", good),
        json.dumps({"custom_id": "get", "method": "GET", "url": "/v1/completions", "body": good}),
        line("body", "/v1/completions", 1), line("extra", "/v1/completions", good, priority=1),
        line("stream", "/v1/completions", {**good, "stream": True}),
        line("long", "/v1/completions", {**good, "prompt": "a" * (8 << 20)}), line("last", "/v1/completions", good) + "\r",
    ]
    batch, output, errors = run(engine, lines)
    assert batch["status"] == "completed"
    assert [x["custom_id"] for x in output] == ["first", "last"]
    assert [(x["custom_id"], x["error"]["code"]) for x in errors] == [
        (None, "invalid_json"), (None, "invalid_json"), (None, "invalid_custom_id"), (None, "missing_custom_id"),
        ("first", "duplicate_custom_id"), ("url", "invalid_url"), ("url2", "invalid_url"), ("get", "invalid_method"),
        ("body", "invalid_body"), ("extra", "unknown_parameter"), ("stream", "invalid_value"), (None, "line_too_long")]
    assert all(x["response"] is None for x in errors)
    assert "line 3 " in errors[0]["error"]["message"] and "line 7:" in errors[4]["error"]["message"]
    assert batch["request_counts"] == {"total": 14, "completed": 2, "failed": 12}


@pytest.mark.parametrize("data, code, lines", [
    (b"", "empty_file", [None]), (b"\n \n", "empty_file", [None]),
    (b"a tale\nof two\n", "invalid_json_line", [1, 2]), (b"x\n" * 50001, "too_many_requests", [None]),
    (b'{"custom_id": "a"}\n' * 50001, "too_many_requests", [None])])
def test_a_file_that_is_no_batch_fails_it(engine, data, code, lines):
    batch = wait(engine, create(engine, data)["id"])
    assert batch["status"] == "failed" and batch["failed_at"]
    assert [(e["code"], e["line"]) for e in batch["errors"]["data"]] == [(code, n) for n in lines]
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)


def test_a_wrong_request_names_its_field(engine, model):
    file = add_batch_file(engine, [line("a", "/v1/completions", {})])
    good = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    for change, param, status in [({"endpoint": "/v1/files"}, "endpoint", 400), ({"completion_window": "1y"}, "completion_window", 400),
                                  ({"completion_window": "31d"}, "completion_window", 400), ({"completion_window": "0h"}, "completion_window", 400),
                                  ({"input_file_id": "file-1"}, "input_file_id", 404),
                                  ({"input_file_id": engine.add_file("text")}, "input_file_id", 400),
                                  ({"metadata": {"a": 1}}, "metadata.a", 400), ({"colour": 1}, "colour", 400)]:
        failed = refused(engine, {**good, **change})
        assert (failed.param, failed.status) == (param, status), change


def test_a_batch_is_openais_object(engine, front, model):
    file = add_batch_file(engine, [line("a", "/v1/completions", {"model": model, "prompt": "a", "max_tokens": 1})])
    request = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"owner": "me"}}
    made = front.request("POST", "/v1/batches", request, {"Idempotency-Key": "batch-1"})
    again = front.request("POST", "/v1/batches", request, {"Idempotency-Key": "batch-1"})
    assert made.status == 200 and again.json["id"] == made.json["id"]
    batch = wait(engine, made.json["id"])
    assert batch["metadata"] == {"owner": "me"} and batch["expires_at"] - batch["created_at"] == 86400
    assert batch["created_at"] <= batch["in_progress_at"] <= batch["finalizing_at"] <= batch["completed_at"]
    assert (batch["cancelled_at"], batch["errors"], batch["input_file_id"]) == (None, None, file)
    output = engine.call("file.get", {"id": batch["output_file_id"]})
    assert (output["purpose"], output["filename"]) == ("batch_output", batch["id"] + "_output.jsonl")
    assert front.request("GET", "/v1/batches?limit=1").json["data"][0]["id"] == batch["id"]
    assert front.request("POST", f"/v1/batches/{batch['id']}/cancel").status == 409
    assert front.request("DELETE", f"/v1/batches/{batch['id']}").json["deleted"]
    assert front.request("GET", f"/v1/batches/{batch['id']}").status == 404
    assert content(engine, batch["output_file_id"])  # a file of its own


# --- stops ------------------------------------------------------------------------------------------------------

def many(model, n, tokens=40):
    return [line(f"r{i}", "/v1/completions", {"model": model, "prompt": f"{i} bottles", "max_tokens": tokens, "seed": i,
                                              "logit_bias": {"1": -100}}) for i in range(n)]


def same(data, batch):
    """Result bytes without what names or dates the batch."""
    data = data.replace(batch["id"].split("_")[1].encode(), b"ID")
    return re.sub(rb'"created":\d+', b'"created":0', data)


def test_results_survive_kills_at_any_point(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        lines = many(model, 400)
        lines[7], lines[201] = "{", line("r0", "/v1/completions", {})
        whole = wait(engine, create(engine, lines)["id"])
        expected = [same(content(engine, whole[k]), whole) for k in ("output_file_id", "error_file_id")]
        batch = create(engine, lines)
    places = [0, 1, 150, 300, 398]
    for place in places:
        with daemon.connect() as engine:
            engine.wait(lambda: (lambda c: c["completed"] + c["failed"] >= place)(engine.call("batch.get", {"id": batch["id"]})["request_counts"]))
        daemon.kill()
        daemon.start()
    with daemon.connect() as engine:
        engine.wait(lambda: engine.call("batch.get", {"id": batch["id"]})["finalizing_at"])
    daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        batch = wait(engine, batch["id"])
        assert batch["request_counts"] == {"total": 400, "completed": 398, "failed": 2}
        assert [same(content(engine, batch[k]), batch) for k in ("output_file_id", "error_file_id")] == expected
        assert [x["custom_id"] for x in results(engine, batch)[0]] == [f"r{i}" for i in range(400) if i not in (7, 201)]
        assert len(engine.call("file.list", {"purpose": "batch_output"})["data"]) == 4  # nothing is left of earlier runs
    assert daemon.stop() == 0
    with contextlib.closing(sqlite3.connect(daemon.folder / "ledger.sqlite")) as ledger:
        assert ledger.execute("SELECT count(*) FROM objects WHERE kind='event' AND parent LIKE 'batch_%'").fetchone() == (0,)
    assert list((daemon.folder / "tmp").iterdir()) == []


def test_a_stop_and_a_start_continue_a_batch(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        batch = create(engine, many(model, 300))
        engine.wait(lambda: engine.call("batch.get", {"id": batch["id"]})["request_counts"]["completed"] > 0)
    assert daemon.stop() == 0
    daemon.start()
    with daemon.connect() as engine:
        batch = wait(engine, batch["id"])
        assert batch["request_counts"] == {"total": 300, "completed": 300, "failed": 0}
        assert [x["custom_id"] for x in results(engine, batch)[0]] == [f"r{i}" for i in range(300)]
    assert daemon.stop() == 0


def test_a_cancelled_batch_keeps_its_results(engine, model):
    batch = create(engine, many(model, 5000))
    engine.wait(lambda: engine.call("batch.get", {"id": batch["id"]})["request_counts"]["completed"] > 0)
    waiting = create(engine, many(model, 5))
    assert engine.call("batch.cancel", {"id": waiting["id"]})["status"] == "cancelled"  # it has not begun
    with pytest.raises(EngineError) as used:
        engine.call("file.delete", {"id": batch["input_file_id"]})
    assert used.value.code == "file_in_use"
    assert engine.call("batch.cancel", {"id": batch["id"]})["status"] in ("cancelling", "cancelled")
    batch = wait(engine, batch["id"])
    output, errors = results(engine, batch)
    assert batch["status"] == "cancelled" and batch["cancelling_at"] <= batch["cancelled_at"]
    assert [x["custom_id"] for x in output] == [f"r{i}" for i in range(len(output))] and errors == []
    assert 0 < batch["request_counts"]["completed"] == len(output) < 5000


def test_lines_that_have_not_run_in_time_expire(engine, model):
    for window in ("1s", "4s", "16s"):  # the shorter ones may end before a busy machine begins the batch
        batch, output, errors = run(engine, many(model, 4000, 60), window=window)
        assert batch["status"] == "expired" and batch["expired_at"] >= batch["expires_at"]
        if output or errors:
            break
    done, late = [[int(x["custom_id"][1:]) for x in lines] for lines in (output, errors)]
    assert done == sorted(done) and late == sorted(late) and sorted(done + late) == list(range(4000)) and late
    assert all(x["error"]["code"] == "batch_expired" and x["response"] is None for x in errors)


def test_a_waiting_batch_expires_at_its_time_also_after_a_kill(own_daemon):
    d = own_daemon("--max-generations", 1)
    with d.connect() as e:
        model = train(e)
        first = create(e, many(model, 4000, 60))["id"]
        waiting = [create(e, many(model, 2), window=window)["id"] for window in ("1s", "24h", "2s")]
        expired = wait(e, waiting[0])
        assert e.call("batch.get", {"id": first})["status"] in ("validating", "in_progress")
        assert expired["status"] == "expired" and expired["expired_at"] >= expired["expires_at"]
        assert expired["output_file_id"] is None and expired["error_file_id"] is None
        assert expired["errors"]["data"][0]["code"] == "batch_expired"
        assert expired["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    d.kill()
    d.start()
    with d.connect() as e:
        assert e.call("batch.get", {"id": waiting[0]}) == expired
        assert wait(e, waiting[2])["status"] == "expired"
        assert e.call("batch.get", {"id": waiting[1]})["status"] == "validating"
        e.call("batch.cancel", {"id": first})
        assert wait(e, waiting[1])["status"] == "completed"


def test_a_line_that_is_refused_as_too_many_is_repeated_and_the_others_keep_their_results(own_daemon):
    daemon = own_daemon("--max-generations", 8)
    with daemon.connect() as engine:
        model = train(engine)
        counts = (4, 5, 4, 1, 8, 2)
        lines = [line(f"r{i}", "/v1/completions", {"model": model, "prompt": "bottles", "max_tokens": 20, "n": n, "logit_bias": {"1": -100}})
                 for i, n in enumerate(counts)]
        lines[1] += " " * (64 << 10)  # checked on the pool, so refused after the next line was accepted
        batch, output, errors = run(engine, lines)
        assert (batch["status"], errors) == ("completed", [])
        assert [(x["custom_id"], len(x["response"]["body"]["choices"])) for x in output] == [(f"r{i}", n) for i, n in enumerate(counts)]
        assert metric(engine, "additive_engine_generated_tokens_total") == 20 * sum(counts)
    assert daemon.stop() == 0


def test_a_line_that_is_refused_begins_again_when_another_ends(own_daemon):
    with own_daemon("--max-generations", 1).connect() as engine:
        batch, output, errors = run(engine, many(train(engine), 200, 1), window="60s")  # not enough for a pause at each line
        assert (batch["status"], len(output), errors) == ("completed", 200, [])
        assert [x["custom_id"] for x in output] == [f"r{i}" for i in range(200)]


def keys(engine, *others):
    """Ids of keys with these members."""
    admin = engine.call("key.create", {"name": "admin", "role": "admin"})["id"]
    return [engine.begin("key.create", {"name": "user", **more}, key=admin).result()["id"] for more in others]


def test_a_line_with_a_priority_that_its_key_does_not_allow_takes_no_place(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        body = {"model": train(engine), "prompt": "a", "max_tokens": 1}
        key, = keys(engine, {"min_priority": 0})
        engine.key = key
        _, output, errors = run(engine, [line(f"r{p}", "/v1/completions", {**body, "priority": p}) for p in (-1, 0, -2)])
        assert [x["custom_id"] for x in output] == ["r0"] and [x["response"]["status_code"] for x in errors] == [400, 400]
    assert daemon.stop() == 0  # it has checked that all places are free


def test_a_line_begins_with_the_states_of_its_own_key_only(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        lines = [line("a", "/v1/completions", {"model": train(engine), "prompt": 30 * "bottles", "max_tokens": 1, "cache_prompt": True})]
        cached = []
        first, second = keys(engine, {}, {})
        for engine.key in (first, first, second, "file", "file"):
            output, = run(engine, lines)[1]
            cached.append(output["response"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        assert cached == [False, True, False, False, True]
    assert daemon.stop() == 0


def test_an_answer_that_is_too_large_is_an_error_line(engine, model):
    large = {"model": model, "prompt": "b", "max_tokens": 480, "n": 48, "logprobs": 20, "logit_bias": {"1": -100}}
    lines = [line("a", "/v1/completions", large), line("b", "/v1/completions", {**large, "n": 1})]
    batch, output, errors = run(engine, lines)
    assert batch["status"] == "completed" and [x["custom_id"] for x in output] == ["b"]
    assert [(x["custom_id"], x["error"]["code"]) for x in errors] == [("a", "too_large")]


def test_a_model_deleted_meanwhile_gives_error_lines(engine):
    model = train(engine)
    batch = create(engine, many(model, 3000))
    engine.wait(lambda: engine.call("batch.get", {"id": batch["id"]})["request_counts"]["completed"] > 0)

    def delete():
        try:
            return engine.call("model.delete", {"id": model})
        except EngineError as e:  # a line uses it at this moment
            assert e.code == "model_in_use"

    engine.wait(delete)
    batch = wait(engine, batch["id"])
    output, errors = results(engine, batch)
    assert batch["status"] == "completed" and len(output) + len(errors) == 3000 and errors
    assert {x["response"]["status_code"] for x in errors} == {404}


def test_the_log_names_a_line_by_the_id_of_its_result(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        (daemon.folder / "models" / model / "model.safetensors").write_bytes(b"")
        batch, output, errors = run(engine, [line("a", "/v1/completions", {"model": model, "prompt": "a"})])
        assert errors[0]["response"]["status_code"] == 500
        assert f"request {errors[0]['response']['request_id']}: answered with storage_error" in daemon.log.read_text()
    assert daemon.stop() == 0


def test_a_line_without_a_seed_has_its_own(engine, model):
    body = {"model": model, "prompt": "bottles", "max_tokens": 20, "logit_bias": {"1": -100}}
    _, output, _ = run(engine, [line(f"r{i}", "/v1/completions", body) for i in range(4)])
    assert len({x["response"]["body"]["choices"][0]["text"] for x in output}) > 1


def test_a_line_under_which_the_engine_dies_gets_an_error_and_the_others_run(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine, steps=2, config={**TINY["config"], "position_embedding": "none", "hidden_size": 256})  # one line takes seconds
        lines = many(model, 40)
        lines[20] = line("r20", "/v1/completions", {"model": model, "prompt": "a", "max_tokens": 100000, "logit_bias": {"1": -100}})
        batch = create(engine, lines)
    for _ in range(3):  # the first crash is beside other lines, those after it are during the line alone
        with daemon.connect() as engine:
            engine.wait(lambda: engine.call("batch.get", {"id": batch["id"]})["request_counts"]["completed"] == 20)
            engine.wait(lambda: engine.call("engine.status")["running"] == 1)
        daemon.process.send_signal(signal.SIGABRT)
        daemon.process.wait(PATIENCE)
        daemon.start()
    with daemon.connect() as engine:
        running = set()
        engine.wait(lambda: (running.add(engine.call("engine.status")["running"]),
                             engine.call("batch.get", {"id": batch["id"]})["status"] in ENDED)[1])
        assert running <= {0, 1}  # also after the first commit: another line may be poison
        batch = wait(engine, batch["id"])
        output, errors = results(engine, batch)
        assert [x["custom_id"] for x in output] == [f"r{i}" for i in range(40) if i != 20]
        assert [(x["custom_id"], x["error"]["code"]) for x in errors] == [("r20", "internal_error")]
    assert daemon.stop() == 0
