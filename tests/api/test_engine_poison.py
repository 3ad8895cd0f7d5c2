"""A job under which the engine dies again and again is paused; nothing else is."""

import os
import signal

from engine_client import TEXT, job_params, own_daemon  # noqa: F401


def kill(daemon):
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()


def test_a_job_is_paused_after_three_deaths_without_progress_and_resumed_by_a_client(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        job = engine.call("job.create", job_params(engine.add_file(TEXT), steps=100000, checkpoint_every=100000))["id"]
        engine.wait(lambda: engine.call("job.get", {"id": job})["additive"]["step"] >= 500)
    for _ in range(3):  # each process but the first dies at once, so none gets as far as the first
        kill(daemon)
        daemon.start()
        with daemon.connect() as engine:
            engine.call("engine.status")  # answered after the jobs have begun
    with daemon.connect() as engine:
        paused = engine.wait_job(job, until=("paused",))
        reason = paused["additive"]["paused_reason"]
        assert "died 3 times" in reason["message"] and reason["retry_at"] is None
        assert engine.call("job.resume", {"id": job})["status"] == "queued"
        engine.wait(lambda: engine.call("job.get", {"id": job})["status"] == "running")
        engine.call("job.cancel", {"id": job})


def test_a_range_test_leaves_no_model(own_daemon):
    with own_daemon().connect() as engine:
        job = engine.call("job.create", job_params(engine.add_file(TEXT), steps=20, schedule="range_test"))
        done = engine.wait_job(job["id"])
        assert done["status"] == "succeeded" and done["fine_tuned_model"] is None
        assert engine.call("model.list")["data"] == []
