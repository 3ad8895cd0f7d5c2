"""kill -9, lost clients and hostile input: nothing acknowledged is lost, nothing hangs, nothing grows."""

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import threading
import time
import urllib.parse

import pytest

from conftest import SANITIZED, SMALL, TEXT, Service


def address(service):
    u = urllib.parse.urlsplit(service.url)
    return u.hostname, u.port


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def weights(service, model):
    return service.request("GET", f"/v1/models/{model}/files/model.safetensors")[1]


def test_a_killed_engine_resumes_its_job_to_the_same_weights(own_service):
    service = own_service
    calm = service.wait_job(service.job(steps=120, checkpoint_every=10)["id"])
    job = service.job(steps=120, checkpoint_every=10)["id"]
    while not (service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"] or 0) >= 25:
        time.sleep(0.01)
    front = service.child("additive-httpd")
    service.kill_engine()
    assert service.child("additive-httpd") == front, "the front end must stay up"
    done = service.wait_job(job)
    assert done["status"] == "succeeded" and done["additive"]["step"] == 120
    assert weights(service, done["fine_tuned_model"]) == weights(service, calm["fine_tuned_model"])


def wait_until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def is_ready(service):
    try:
        return service.request("GET", "/readyz")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize("instead", ["nothing", "another"])
def test_a_data_folder_that_vanishes_is_named_and_not_replaced(tmp_path, instead):
    other = tmp_path / "other"
    service = Service(other)
    assert service.stop() == 0
    service = Service(tmp_path / "data")
    try:
        assert is_ready(service)
        service.data.rename(tmp_path / "moved")
        wait_until(lambda: not is_ready(service))
        status, answer, _ = service.request("GET", "/readyz")
        assert status == 503 and str(service.data) in answer["error"]["message"]
        if instead == "another":
            shutil.copytree(other, service.data)
        os.kill(service.engine_pid(), signal.SIGKILL)
        message = {"nothing": "holds no data, but it must", "another": "is another data folder"}[instead]
        wait_until(lambda: f"{service.data} {message}" in service.log.read_text())
        assert not is_ready(service)
        assert service.data.exists() == (instead == "another")
        if instead == "nothing":
            time.sleep(4.5)  # longer than a program that keeps dying is tried
            status, answer, head = service.request("GET", "/v1/models")
            assert status == 503 and head["Retry-After"]
            assert f"{service.data}/engine.sock" in service.request("GET", "/readyz")[1]["error"]["message"]
            assert not service.data.exists()
            (tmp_path / "moved").rename(service.data)
            wait_until(lambda: is_ready(service))
    finally:
        service.stop()


def test_a_locked_ledger_is_a_503_that_delays_no_other_client(own_service):
    """Another process holds the write lock for longer than a commit used to wait."""
    service = own_service
    model = service.wait_job(service.job(steps=5)["id"])["fine_tuned_model"]
    session = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "9 bottles", "durable": True})["id"]
    ask = {"max_tokens": 5, "temperature": 0}
    job = service.job(steps=100000, checkpoint_every=10, eval_every=5)["id"]
    wait_until(lambda: service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"])
    slowest, refused, over = [0.0], [], threading.Event()

    def look():
        while not over.is_set():
            began = time.monotonic()
            service.ok("GET", "/v1/models")
            slowest[0] = max(slowest[0], time.monotonic() - began)

    def write():
        while not over.is_set():
            refused.append(service.request("POST", "/v1/sessions", {"model": model, "prompt": "1", "durable": True}))

    with contextlib.closing(sqlite3.connect(service.data / "ledger.sqlite", isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        threads = [threading.Thread(target=f) for f in (look, write, write)]
        for t in threads:
            t.start()
        status, answer, head = service.request("POST", f"/v1/sessions/{session}/generate", ask)
        wait_until(lambda: not is_ready(service))
        ready = service.request("GET", "/readyz")[1]["error"]["message"]
        time.sleep(2.5)  # some sweeps
        over.set()
        for t in threads:
            t.join()
    assert (status, answer["error"]["code"]) == (503, "unavailable") and int(head["Retry-After"]) > 0
    assert {(s, a["error"]["code"]) for s, a, _ in refused} == {(503, "unavailable")}
    assert "locked" in ready and slowest[0] < (1 if SANITIZED else 0.3), (ready, slowest)
    wait_until(lambda: is_ready(service))
    assert len(service.ok("POST", f"/v1/sessions/{session}/generate", ask)["choices"][0]["text"]) > 0
    assert service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["status"] == "running"
    time.sleep(1.5)
    steps = [e["data"]["step"] for e in events_of(service, job) if e["type"] == "metrics"]
    assert steps == [1, *range(5, steps[-1] + 1, 5)], "an event of the job is lost"
    log = [line for line in service.log.read_text().splitlines() if "locked" in line]
    assert sum("data folder" in line for line in log) == 1 and len(log) < 5, log


def test_a_killed_engine_ends_a_stream_with_a_clear_error(own_service):
    service = own_service
    model = service.wait_job(service.job(steps=5)["id"])["fine_tuned_model"]
    s = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "1", "position_policy": "wrap"})["id"]
    connection = http.client.HTTPConnection(*address(service), timeout=60)
    connection.request("POST", f"/v1/sessions/{s}/generate",
                       json.dumps({"max_tokens": 1000000, "stream": True, "logit_bias": {"1": -100}}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read(500)
    service.kill_engine()
    rest = answer.read().decode()
    errors = [e for e in (json.loads(line[6:]) for line in rest.split("\n") if line.startswith("data: {"))
              if "error" in e]
    assert len(errors) == 1 and errors[0]["error"]["message"]
    assert "[DONE]" not in rest
    assert service.ok("POST", "/v1/completions", {"model": model, "prompt": "2", "max_tokens": 3})


def test_a_durable_session_survives_kill_9(own_service):
    service = own_service
    model = service.wait_job(service.job(steps=5)["id"])["fine_tuned_model"]
    made = [service.ok("POST", "/v1/sessions", {"model": model, "prompt": "9 bottles", "durable": True})["id"]
            for _ in range(2)]
    ask = {"max_tokens": 5, "temperature": 0}
    for s in made:
        service.ok("POST", f"/v1/sessions/{s}/generate", ask)
    before = service.ok("POST", f"/v1/sessions/{made[0]}/generate", ask)["choices"][0]["text"]
    service.kill_engine()
    assert service.ok("POST", f"/v1/sessions/{made[1]}/generate", ask)["choices"][0]["text"] == before


def test_a_client_that_goes_away_frees_its_slot(service, model):
    def running():
        text = service.request("GET", "/metrics")[1].decode()
        return sum(float(line.split()[-1]) for line in text.splitlines()
                   if line.startswith("additive_engine_generations_running"))

    s = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "1", "position_policy": "wrap"})["id"]
    raw = socket.create_connection(address(service))
    body = json.dumps({"max_tokens": 1000000, "stream": True, "logit_bias": {"1": -100}}).encode()
    raw.sendall(f"POST /v1/sessions/{s}/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    raw.recv(1000)
    raw.close()
    deadline = time.monotonic() + 20
    while service.request("POST", f"/v1/sessions/{s}/generate", {"max_tokens": 1})[0] == 409:
        assert time.monotonic() < deadline, "the session stays busy"
        time.sleep(0.05)
    assert running() == 0


def test_requests_are_served_while_a_job_trains(service, model):
    job = service.job(steps=100000)["id"]
    while not service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"]:
        time.sleep(0.02)
    before = service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"]
    texts = [service.ok("POST", "/v1/completions", {"model": model, "prompt": "4 ", "max_tokens": 30,
                                                    "temperature": 0})["choices"][0]["text"] for _ in range(3)]
    assert texts[0] == texts[1] == texts[2]
    time.sleep(0.5)
    assert service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"] > before
    assert service.ok("POST", f"/v1/fine_tuning/jobs/{job}/cancel")["status"] == "cancelled"


HUGE = [-1, 2**31, 2**63 - 1, 1e308, "5", [], {}, True]


@pytest.mark.parametrize("field", ["max_tokens", "temperature", "top_p", "top_k", "min_p", "top_a", "top_a_power", "n", "logprobs", "seed",
                                   "presence_penalty", "frequency_penalty", "repetition_penalty", "stop", "alpha",
                                   "logit_bias", "stream", "prompt", "model"])
def test_no_value_of_a_field_breaks_generation(service, model, field):
    golden = {"model": model, "prompt": "bottles ", "max_tokens": 4, "temperature": 0}
    expected = service.ok("POST", "/v1/completions", golden)["choices"][0]["text"]
    engine = service.engine_pid()
    for value in HUGE:
        status, answer, _ = service.request("POST", "/v1/completions", {**golden, field: value})
        assert status in (200, 400, 404), (field, value, status, answer)
        if status == 400:
            assert answer["error"]["param"] and answer["error"]["param"].split(".")[0].split("[")[0] == field, answer
            assert answer["error"]["message"] and answer["error"]["code"]
    assert service.ok("POST", "/v1/completions", golden)["choices"][0]["text"] == expected
    assert service.engine_pid() == engine


BAD_JOBS = [
    ({"additive": {"config": {"n_heads": 3, "hidden_size": 32}}}, "additive.config"),
    ({"additive": {"config": {"window_sizes": [4]}}}, "additive.config.window_sizes"),
    ({"additive": {"config": {"hidden_size": 2**40}}}, "additive.config.hidden_size"),
    ({"additive": {"config": {"no_such_key": 1}}}, "additive.config.no_such_key"),
    ({"additive": {"learning_rate": -1}}, "additive.learning_rate"),
    ({"additive": {"schedule": "zigzag"}}, "additive.schedule"),
    ({"additive": {"max_steps": 0}}, "additive.max_steps"),
    ({"additive": {"betas": [0.9, 2]}}, "additive.betas"),
    ({"additive": {"sequence_length": 10**9}}, "additive.sequence_length"),
    ({"additive": {"precision": "fp8"}}, "additive.precision"),
    ({"additive": {"precision": "bf16"}}, "additive.precision"),  # not on a CPU
    ({"additive": {"tokenizer": {"type": "telepathy"}}}, "additive.tokenizer"),
    ({"additive": {"surprise": 1}}, "additive.surprise"),
    ({"training_file": "file-000000000000000000000000"}, "training_file"),
    ({"training_file": "../../etc/passwd"}, "training_file"),
    ({"model": "no-such-architecture"}, "model"),
    ({"hyperparameters": {"n_epochs": -2}}, "hyperparameters.n_epochs"),
]


@pytest.mark.parametrize("change,param", BAD_JOBS, ids=[p for _, p in BAD_JOBS])
def test_a_bad_job_names_its_field(service, model, change, param):
    body = {"model": "additive", "training_file": service.upload(TEXT)}
    status, answer, _ = service.request("POST", "/v1/fine_tuning/jobs", {**body, **change})
    assert status in (400, 404), answer
    assert (answer["error"]["param"] or "").startswith(param), answer


def test_a_truncated_weight_file_is_refused_and_leaves_nothing(service, model):
    config = service.request("GET", f"/v1/models/{model}/files/config.json")[1]
    config = config if isinstance(config, bytes) else json.dumps(config).encode()
    good = weights(service, model)
    before = len(service.ok("GET", "/v1/models")["data"])
    for cut in (0, 7, 8, 100, len(good) // 2, len(good) - 1):
        boundary = b"xyz"
        body = b""
        for name, data in ((b"id", b"cut"), (b"config", config), (b"weights", good[:cut])):
            extra = b"" if name == b"id" else b"; filename=\"" + name + b"\""
            body += b"--xyz\r\nContent-Disposition: form-data; name=\"" + name + b"\"" + extra + b"\r\n\r\n" + data + b"\r\n"
        body += b"--" + boundary + b"--\r\n"
        status, answer, _ = service.request("POST", "/v1/models", body,
                                            headers={"Content-Type": "multipart/form-data; boundary=xyz"})
        assert status == 400 and answer["error"]["message"], (cut, answer)
    assert len(service.ok("GET", "/v1/models")["data"]) == before


def test_deep_nesting_and_broken_json_are_refused(service):
    for body in (b"[" * 10**6, b'{"a":' * 800_000, b"{", b"", b"\xff\xfe", b'{"model":"a","model":"b"}', b"null", b"1e999",
                 b'{"model":"\\u0000"}'):
        status, answer, _ = service.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        assert status == 400 and answer["error"]["message"], body[:20]
    status, _, _ = service.request("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"})
    assert status == 415


def test_an_endless_body_is_cut_with_bounded_memory(service):
    pids = [service.child("additive-httpd"), service.engine_pid()]
    before = [rss_kib(p) for p in pids]
    raw = socket.create_connection(address(service))
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    sent, answer = 0, b""
    raw.settimeout(10)
    try:
        while sent < 10 * 2**30:
            raw.sendall(chunk)
            sent += len(chunk)
    except OSError:
        pass
    assert sent < 2**30, "a request of 1 GiB was swallowed"
    try:
        answer = raw.recv(4096)
    except OSError:
        pass
    assert answer == b"" or b" 413 " in answer.split(b"\r\n")[0]
    after = [rss_kib(p) for p in pids]
    assert all(a - b < 64 * 1024 for a, b in zip(after, before)), (before, after)
    assert service.request("GET", "/healthz")[0] == 200


def test_many_streams_at_once_each_get_their_own_answer(service, model):
    expected = {}
    for i in range(4):
        expected[i] = service.ok("POST", "/v1/completions", {"model": model, "prompt": f"{i} bottles", "max_tokens": 20,
                                                            "temperature": 0.9, "seed": i})["choices"][0]["text"]
    got = {}

    def ask(k):
        got[k] = service.ok("POST", "/v1/completions", {"model": model, "prompt": f"{k % 4} bottles", "max_tokens": 20,
                                                        "temperature": 0.9, "seed": k % 4})["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(got[k] == expected[k % 4] for k in range(16))


def test_sigterm_stops_everything_with_status_0(own_service):
    service = own_service
    service.job(steps=100000)
    children = [service.engine_pid(), service.child("additive-httpd")]
    for pid in (service.process.pid, *children):
        os.kill(pid, signal.SIGHUP)
    time.sleep(0.2)
    assert is_ready(service) and [service.engine_pid(), service.child("additive-httpd")] == children
    assert service.stop() == 0
    for pid in children:
        assert not os.path.exists(f"/proc/{pid}")


def events_of(service, job):
    """Every event of a job, oldest first."""
    events, after = [], ""
    while True:
        page = service.ok("GET", f"/v1/fine_tuning/jobs/{job}/events?order=asc&limit=100{after}")
        events += page["data"]
        if not page["has_more"]:
            return events
        after = f"&after={events[-1]['id']}"


def evaluations(service, job):
    """Every event of a job, oldest first, and of its evaluations step and numbers."""
    events = events_of(service, job)
    numbers = [(e["data"]["step"], e["data"]["train_loss"], e["data"]["valid_loss"]) for e in events if e["type"] == "metrics" and "valid_loss" in e["data"]]
    return events, numbers


@pytest.mark.slow
def test_fifty_kills_of_engine_and_front_end_change_no_bit_of_a_job_and_no_event_of_it(service, own_service):
    """A corpus whose tokens are kept in a file, averaged weights, early stopping."""
    kills, steps, random_number = 50, 4000, random.Random(5)
    recipe = dict(SMALL, max_steps=steps, checkpoint_every=10, eval_every=20, ema_decay=0.99, patience=90, keep_best=True)
    text = TEXT * (5 * 2**20 // len(TEXT))

    def start(s):
        files = {"training_file": s.upload(text), "validation_file": s.upload(TEXT[:4000])}
        return s.ok("POST", "/v1/fine_tuning/jobs", {"model": "additive", **files, "seed": 1, "additive": recipe})["id"]

    whole = start(service)
    expected = service.wait_job(whole, seconds=600)
    assert expected["status"] == "succeeded"
    job, killed = start(own_service), {"additived": 0, "additive-httpd": 0}

    def step():
        return own_service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"]

    resumptions = restarted_at = 0
    for n in range(kills):
        target = (n + 1) * expected["additive"]["step"] // (kills + 2)
        wait_until(lambda: step() >= target, seconds=300)
        time.sleep(random_number.random() * 0.05)
        name = random_number.choice(sorted(killed))
        if name == "additived":
            resumptions += step() > restarted_at > 0
        own_service.kill(name)
        killed[name] += 1
        if name == "additived":
            restarted_at = step()
    done = own_service.wait_job(job, seconds=600)
    assert done["status"] == "succeeded" and min(killed.values()) > kills // 4
    assert weights(own_service, done["fine_tuned_model"]) == weights(service, expected["fine_tuned_model"])
    for field in ("step", "train_loss", "valid_loss", "best_step", "best_valid_loss", "result_step"):
        assert done["additive"][field] == expected["additive"][field], field
    events, numbers = evaluations(own_service, job)
    assert numbers == evaluations(service, whole)[1] and len({e["id"] for e in events}) == len(events)
    metrics = [e["data"]["step"] for e in events if e["type"] == "metrics"]
    assert metrics == sorted(set(metrics))
    assert sum("continues from the checkpoint" in e["message"] for e in events) >= resumptions >= 3
