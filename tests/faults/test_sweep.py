"""Each memory and disk call of the engine fails once in turn. Budget: SWEEP_SECONDS; SWEEP_ONLY names scenarios."""

import itertools
import os
import queue
import time

import pytest

from control import BUILD
from scenarios import Wrong, scenarios
from trial import Closed, EngineError, Findings, Trial, complaint, faults_of, one_fault, reference


# The budget's time does not count as a hang.
pytestmark = pytest.mark.timeout(900 + float(os.environ.get("SWEEP_SECONDS", "240")))


def scattered(groups):
    """All items, in an order whose every beginning is spread over all groups and over each group."""
    def one(items):
        return [items[i] for i in sorted(range(len(items)), key=lambda i: (i * 0.6180339887498949) % 1)]
    rows = itertools.zip_longest(*(one(g) for g in groups))
    return [item for row in rows for item in row if item is not None]


def revive(trial, findings):
    """Restart the engine after a finding, without the files of the failed trial."""
    trial.faults_off()
    for _ in range(2):
        try:
            status = trial.restart()  # a broken state in memory must not cause further findings
            if status != 0:
                findings.add("any before", "", 0, f"status {status} at the end: {complaint(trial)}", [])
            trial.tidy()
            if trial.content(trial.kept) == trial.kept_content:
                return
        except (EngineError, Closed, OSError, AssertionError, queue.Empty):
            trial.daemon.kill()
    raise AssertionError("the engine does not come back: " + "\n".join(trial.log_tail()))


def sweep(trial, seconds, findings, slow):
    """Every (request, class, call) in scattered order until the time is up. (done, all)"""
    only = os.environ.get("SWEEP_ONLY")
    chosen = [s for s in scenarios(slow) if not only or s.name in only.split(",")]
    references, groups = {}, []
    for s in chosen:
        references[s], calls = reference(trial, s, s.classes)
        groups += [[(s, kind, fault, n) for n in range(1, calls[kind] + 1)]
                   for kind in s.classes for fault in faults_of(kind)]
    work = scattered(groups)
    assert len(work) > 10 * len(chosen), "calls are not counted"
    done, end, since_kill = 0, time.monotonic() + seconds, 0
    for s, kind, (label, count, error), n in work:
        if time.monotonic() > end:
            break
        try:
            one_fault(trial, s, kind, n, references[s], count, error)
        except (Wrong, EngineError, Closed, AssertionError, OSError, queue.Empty) as e:
            findings.add(s.name, label, n, f"{type(e).__name__ if not isinstance(e, Wrong) else ''} {e}".strip(),
                         trial.faults.first_stack())
            revive(trial, findings)
        done += 1
        since_kill += 1
        if since_kill == 200:  # acknowledged changes also exist after a kill
            since_kill = 0
            status = trial.restart()
            if status != 0:
                findings.add(s.name, label, n, f"status {status} at the end: {complaint(trial)}", [])
            if trial.sessions() != [trial.kept] or trial.content(trial.kept) != trial.kept_content:
                findings.add(s.name, label, n, "after a restart the durable session is another", [])
    return done, len(work)


def run(tmp_path, seconds, slow=False):
    findings = Findings()
    trial = Trial(tmp_path)
    trial.faults_off = lambda: None
    try:
        done, total = sweep(trial, seconds, findings, slow)
    finally:
        status = trial.close()
    report = findings.report()
    text = f"{done} of {total} calls failed once; {len(findings.found)} distinct findings; exit status {status}\n{report}\n"
    (BUILD / "faults" / "sweep.txt").write_text(text)
    print(text)
    assert not findings.found, text
    assert status == 0, text + "\n".join(trial.log_tail(60))


def test_a_failing_call_is_an_error_or_nothing_at_all(tmp_path):
    run(tmp_path, float(os.environ.get("SWEEP_SECONDS", "12")))


@pytest.mark.slow
def test_every_failing_call_is_an_error_or_nothing_at_all(tmp_path):
    run(tmp_path, float(os.environ.get("SWEEP_SECONDS", "240")), slow=True)
