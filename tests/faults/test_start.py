"""A call that fails while the engine starts. The engine still starts with everything that was stored, or it ends with
status 1 and a message and the next start finds everything. Budget: SWEEP_SECONDS."""

import os
import queue
import re
import select
import subprocess
import time

import pytest

from control import BUILD, FOR_EVER
from test_sweep import scattered
from scenarios import STORED, Wrong, plain
from trial import Findings, Trial, death, faults_of
from engine_client import BIN, PATIENCE, Closed, Engine, EngineError, job_params

pytestmark = pytest.mark.timeout(900 + float(os.environ.get("SWEEP_SECONDS", "120")))

CLASSES = [*STORED, "read", "map"]  # threads: below
LISTS = ("model.list", "file.list", "job.list", "session.list")


def listing(engine):
    return [[plain(x) | {"id": x["id"]} for x in engine.call(method)["data"]] for method in LISTS]


def start(trial):
    """The engine's connection, or None when it ended with a message."""
    daemon = trial.daemon
    before = daemon.log.stat().st_size
    daemon.process = subprocess.Popen(
        [BIN / "additived", "--data", daemon.folder, "--backend", "cpu", "--threads", "1"], stdout=subprocess.PIPE,
        stderr=open(daemon.log, "ab"), env={**os.environ, **daemon.environment})
    readable, _, _ = select.select([daemon.process.stdout], [], [], PATIENCE)
    if not readable:
        raise Wrong("the engine neither starts nor ends")
    line = daemon.process.stdout.readline().decode()
    if line.startswith("ready "):
        trial.faults_off()
        daemon.address = line.split()[1]
        return Engine(daemon.address)
    status = daemon.process.wait(PATIENCE)
    said = daemon.log.read_bytes()[before:].decode(errors="replace")
    if status != 1 or not re.search(r" error additived: \S", said):
        raise Wrong(f"the start ended with {death(trial)}: {said[-300:]}")
    return None


def one_start(trial, kind, number, count, error, expected):
    trial.faults.forget_stacks()
    trial.faults_off = lambda: trial.faults.disarm(kind)
    trial.faults.arm(kind, number, count, error)
    engine = start(trial)
    trial.faults_off()
    if engine is None:
        engine = start(trial)
        if engine is None:
            raise Wrong("the start after it failed too: " + trial.log_tail(1)[0])
    trial.engine = engine
    found = listing(engine)
    for method, a, b in zip(LISTS, expected, found):
        if a != b:
            raise Wrong(f"{method} has {len(b)} rows instead of {len(a)}, or others")
    if number % 10 == 0 and trial.content(trial.kept) != trial.kept_content:
        raise Wrong("the durable session is another")


def count_calls(trial):
    calls = {}
    for kind in CLASSES:
        trial.faults.count(kind)
    trial.restart()
    for kind in CLASSES:
        calls[kind] = trial.faults.calls(kind)
    return calls


def sweep_starts(trial, seconds, findings):
    job = trial.engine.call("job.create", job_params(trial.file, 1000000))["id"]
    trial.engine.call("job.pause", {"id": job})
    trial.engine.wait(lambda: trial.engine.call("job.checkpoints", {"id": job})["data"] or
                      trial.engine.call("job.get", {"id": job})["status"] == "paused")
    trial.engine.call("model.unload", {"id": trial.other})
    calls = count_calls(trial)
    expected = listing(trial.engine)
    assert [len(x) for x in expected] == [3, len(trial.files), 3, 1]
    groups = [[(kind, fault, n) for n in range(1, calls[kind] + 1)] for kind in CLASSES for fault in faults_of(kind)]
    work = scattered(groups)
    assert len(work) > 100
    end, done = time.monotonic() + seconds, 0
    for kind, (label, count, error), n in work:
        if time.monotonic() > end:
            break
        done += 1
        trial.daemon.kill()
        trial.engine.close()
        try:
            one_start(trial, kind, n, count, error, expected)
        except (Wrong, EngineError, Closed, AssertionError, OSError, queue.Empty) as e:
            findings.add("start", label, n, e, trial.faults.first_stack())
            trial.faults.disarm(kind)
            trial.daemon.kill()
            trial.daemon.start()
            trial.engine = trial.daemon.connect()
            if listing(trial.engine) != expected:
                findings.add("start", label, n, "it is lost for good", trial.faults.first_stack())
                return done, len(work)
    return done, len(work)


def run(tmp_path, seconds):
    findings = Findings()
    trial = Trial(tmp_path)
    trial.faults_off = lambda: None
    done, total = sweep_starts(trial, seconds, findings)
    trial.close()
    text = f"{done} of {total} calls of a start failed once; {len(findings.found)} distinct findings\n{findings.report()}\n"
    (BUILD / "faults" / "start.txt").write_text(text)
    print(text)
    assert not findings.found, text


def test_a_start_with_a_failing_call_loses_nothing(tmp_path):
    run(tmp_path, float(os.environ.get("SWEEP_SECONDS", "5")))


@pytest.mark.slow
def test_a_start_with_any_failing_call_loses_nothing(tmp_path):
    run(tmp_path, float(os.environ.get("SWEEP_SECONDS", "120")))


def test_all_threads_are_created_before_the_engine_is_ready(tmp_path):
    trial = Trial(tmp_path)
    trial.daemon.options = ["--threads", "2"]
    trial.faults.count("thread")
    trial.restart()
    created = trial.faults.calls("thread")
    assert created >= 6  # the executor, the second thread that computes, and the pool of libuv
    trial.faults.arm("thread", 1, FOR_EVER)  # from here on none can be created
    trial.engine.generate({"model": trial.model, "prompt": "99", "max_tokens": 4})
    trial.engine.call("tokenize", {"model": trial.model, "text": "99 bottles"})
    trial.engine.upload("model.import", {"id": "imported"}, **trial.parts)
    assert trial.faults.failed("thread") == 0
    trial.faults.disarm("thread")
    assert trial.close() == 0


def test_an_engine_that_cannot_have_its_threads_names_the_limit(tmp_path):
    trial = Trial(tmp_path)
    trial.daemon.kill()
    trial.engine.close()
    trial.faults.arm("thread", 3, FOR_EVER)
    trial.faults_off = lambda: None
    assert start(trial) is None
    assert "threads can be created" in trial.daemon.log.read_text() and "ulimit -u" in trial.daemon.log.read_text()
    trial.faults.disarm("thread")
    trial.engine = start(trial)
    assert trial.close() == 0


def test_a_model_with_the_name_of_a_deleted_one_outlives_a_kill(tmp_path):
    trial = Trial(tmp_path)
    for _ in range(2):
        trial.engine.upload("model.import", {"id": "again"}, **trial.parts)
        trial.engine.call("model.delete", {"id": "again"})
    trial.engine.upload("model.import", {"id": "again"}, **trial.parts)
    trial.restart()
    assert trial.engine.download("model.file", {"id": "again", "name": "model.safetensors"})[1] == trial.parts["weights"]
    assert trial.close() == 0
