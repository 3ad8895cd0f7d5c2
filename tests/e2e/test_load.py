"""`additive load`: what it reports about a service that is right, about one that dies, and about servers that break one rule."""

import http.server
import json
import signal
import subprocess
import threading
import time

import pytest
from conftest import BIN, Service


def load(url, *options, seconds=120):
    out = subprocess.run([BIN / "additive", "load", *map(str, options), "--url", url, "--json"], capture_output=True, text=True, timeout=seconds)
    return out.returncode, json.loads(out.stdout) if out.stdout else None, out.stderr


@pytest.fixture(scope="module")
def model(service):
    job = service.job(steps=20, architecture="additive2")
    return service.wait_job(job["id"])["fine_tuned_model"]


def test_a_mixed_load_leaves_every_answer_right_and_the_service_at_rest(service, model, tmp_path):
    history = tmp_path / "history.jsonl"
    code, report, errors = load(service.url, model, "--requests", 200, "--clients", 32, "--slow", 0.1, "--leave", 0.2, "--max-tokens", "4,24",
                                "--history", history)
    assert code == 0, errors
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert len(lines) == report["requests"] == 200
    for how in ("complete", "left", "refused", "failed", "lost"):
        assert report[how] == sum(line["outcome"] == how for line in lines)
    leaving = [line for line in lines if line["reader"] == "leaves"]  # one may have the whole answer before it can leave
    assert report["complete"] + report["left"] == 200 and len(leaving) > 20
    assert all(line in leaving for line in lines if line["outcome"] == "left")
    assert report["violations"] == 0 and report["not_at_rest"] is None
    assert report["tokens"] == sum(max(line["tokens"], 0) for line in lines) > 200
    read = [line for line in lines if line["outcome"] == "complete" and line["reader"] == "plain"]
    assert report["whole_ms"]["count"] == len(read) and report["first_ms"]["p50"] <= report["first_ms"]["max"]


def test_arrivals_of_an_open_loop_are_planned(service, model, tmp_path):
    history = tmp_path / "history.jsonl"
    code, report, errors = load(service.url, model, "--requests", 60, "--rate", 100, "--max-tokens", 2, "--chat", "--temperature", 1, "--history", history)
    assert code == 0, errors
    due = [json.loads(line)["due"] for line in history.read_text().splitlines()]
    assert 0.2 < max(due) < 2 and report["seconds"] >= max(due)


def test_sessions_follow_their_scripts_and_are_closed(service, model):
    code, report, errors = load(service.url, model, "--sessions", 20, "--turns", 3, "--requests", 300, "--leave", 0.1, "--max-tokens", "3,9", "--durable")
    assert code == 0, errors
    assert report["sessions"] > 40 and report["not_at_rest"] is None
    assert service.ok("GET", "/v1/sessions")["data"] == []


def test_no_acknowledged_turn_is_lost_when_the_engine_is_killed(own_service):
    job = own_service.job(steps=10, architecture="additive2")
    model = own_service.wait_job(job["id"])["fine_tuned_model"]
    run = subprocess.Popen([BIN / "additive", "load", model, "--sessions", "16", "--turns", "6", "--seconds", "8", "--durable", "--max-tokens", "4,16", "--allow-failures",
                            "--url", own_service.url, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(own_service.ok("GET", "/v1/sessions")["data"]) < 2 and run.poll() is None:  # the undisturbed answers are fetched with one session at a time
        time.sleep(0.05)
    for _ in range(2):
        time.sleep(2)
        own_service.kill_engine()
    out, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    report = json.loads(out)
    assert report["violations"] == 0 and report["complete"] > 10 and report["failed"] + report["lost"] + report["refused"] > 0


def test_what_cannot_begin_is_said(service, model):
    assert "there is no model" in load(service.url, "nothing")[2]
    assert "--max-tokens" in load(service.url, model, "--max-tokens", "0")[2]
    assert "at most 1" in load(service.url, model, "--slow", "0.6", "--leave", "0.6")[2]
    code, report, errors = load("http://127.0.0.1:9", model, "--requests", 1)
    assert code == 1 and report is None and "127.0.0.1" in errors or "connect" in errors


# --- servers that break a rule ------------------------------------------------------------


def event(**members):
    return b"data: " + json.dumps(members).encode() + b"\n\n"


class Faulty(http.server.ThreadingHTTPServer):
    """Answers every completion with the same text; after the undisturbed requests each tenth one breaks a rule."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, fault, undisturbed):
        super().__init__(("127.0.0.1", 0), Answers)
        self.fault, self.left, self.lock = fault, undisturbed, threading.Lock()
        self.opened, self.closed, self.metrics = 0, [], None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def breaks(self):
        with self.lock:
            self.left -= 1
            return self.left < 0 and self.left % 10 == 0


class Answers(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path != "/metrics" or not self.server.metrics:
            return self.send_error(404)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(next(self.server.metrics).encode())

    def send_json(self, status, **members):
        body = json.dumps(members).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self):
        with self.server.lock:
            fails = self.server.fault == "no close" and len(self.server.closed) == 16
            if not fails:
                self.server.closed.append(self.path)
        self.send_json(500 if fails else 200)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/sessions":
            with self.server.lock:
                self.server.opened += 1
                lost = self.server.fault == "lost" and self.server.opened == 17
            return None if lost else self.send_json(200, **({} if self.server.fault == "no id" else {"id": f"s-{self.server.opened}"}))
        if self.server.fault == "no turn":
            return self.send_json(500, error={"message": "it broke"})
        fault = self.server.fault if self.server.breaks() else None
        usage = event(choices=[], usage={"completion_tokens": 2}, session={"tokens": 2})
        text, tail = "one two", event(choices=[{"text": "", "finish_reason": "length"}]) + usage + b"data: [DONE]\n\n"
        if fault == "other text":
            text = "one twq"
        elif fault == "missing text":
            text = "one"
        elif fault == "two ends":
            tail = event(choices=[{"text": "", "finish_reason": "length"}]) + tail
        elif fault == "no end":
            tail = b""
        elif fault == "error":
            tail = event(error={"message": "it broke", "code": "internal_error"})
        elif fault == "more":
            tail += event(choices=[{"text": "!", "finish_reason": None}])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(event(choices=[{"text": text, "finish_reason": None}]) + tail)


FAULTS = [("other text", "violations", "the text differs"), ("missing text", "violations", "3 bytes of 7"), ("two ends", "violations", "2 finish reasons"),
          ("more", "violations", "events follow [DONE]"), ("no end", "lost", "without [DONE]"), ("error", "failed", "it broke")]


@pytest.mark.parametrize("fault, count, words", FAULTS)
def test_a_broken_rule_is_found_counted_and_named(fault, count, words):
    server = Faulty(fault, undisturbed=16)
    code, report, errors = load(f"http://127.0.0.1:{server.server_port}", "any", "--requests", 100, "--clients", 4, "--max-tokens", 2)
    server.shutdown()
    assert code == 1 and report[count] == 10, (report, errors)
    assert any(words in line for line in report["problems"] + report["reasons"])
    assert report["not_at_rest"] is None  # it has no numbers to compare


@pytest.mark.parametrize("fault, words, opened, closed", [("no id", "a session without an id", 1, []), ("no turn", "it broke", 1, ["/v1/sessions/s-1"])])
def test_a_failed_rehearsal_ends_the_run_and_closes_its_session(fault, words, opened, closed):
    server = Faulty(fault, undisturbed=1000)
    code, report, errors = load(f"http://127.0.0.1:{server.server_port}", "any", "--sessions", 2, "--requests", 10, "--max-tokens", 2, seconds=60)
    server.shutdown()
    assert code == 1 and report is None and f"an undisturbed request failed: {words}" in errors
    assert (server.opened, server.closed) == (opened, closed)


@pytest.mark.slow  # it closes for half a minute
def test_sessions_that_cannot_be_closed_are_a_violation():
    server = Faulty("no close", undisturbed=1000)
    code, report, errors = load(f"http://127.0.0.1:{server.server_port}", "any", "--sessions", 2, "--turns", 100, "--requests", 10, "--clients", 2, "--max-tokens", 2)
    server.shutdown()
    assert code == 1 and report["problems"] == ["2 sessions could not be closed"], (report, errors)
    assert report["failed"] < 100  # a client rests after a failure


def with_one_more_left():
    yield "additive_engine_generations_running 0\n"
    while True:
        yield "additive_engine_generations_running 1\n"


def test_a_session_without_an_id_excuses_no_generation():
    server = Faulty("lost", undisturbed=1000)
    server.metrics = with_one_more_left()
    code, report, errors = load(f"http://127.0.0.1:{server.server_port}", "any", "--sessions", 1, "--requests", 10, "--max-tokens", 2, "--allow-failures")
    server.shutdown()
    assert report["lost"] == 1 and report["not_at_rest"] == "additive_engine_generations_running", (report, errors)


def test_an_interrupted_run_is_not_asked_for_rest():
    server = Faulty(None, undisturbed=1000)
    server.metrics = with_one_more_left()
    run = subprocess.Popen([BIN / "additive", "load", "any", "--seconds", "60", "--max-tokens", "2", "--clients", "1", "--url", f"http://127.0.0.1:{server.server_port}", "--json"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while server.left > 900:  # requests of the run itself
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    out, errors = run.communicate(timeout=30)
    server.shutdown()
    assert json.loads(out)["not_at_rest"] is None and "at rest" not in errors, (out, errors)


def test_any_server_with_the_api_will_do():
    server = Faulty(None, undisturbed=0)
    code, report, errors = load(f"http://127.0.0.1:{server.server_port}", "any", "--requests", 50, "--clients", 4, "--max-tokens", 2)
    server.shutdown()
    assert code == 0 and report["complete"] == 50, errors
