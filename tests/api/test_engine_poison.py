"""Work under which the engine dies again and again is paused, failed or refused; nothing else is."""

import os
import signal
import time

import pytest

from engine_client import DATA, END, TEXT, TINY, EngineError, frame, job_params, own_daemon, train  # noqa: F401


def crash(daemon, number=signal.SIGABRT):
    os.kill(daemon.process.pid, number)
    daemon.process.wait()


def long_job(engine, **more):
    job = engine.call("job.create", job_params(engine.add_file(TEXT), steps=100000, checkpoint_every=100000, **more))["id"]
    engine.wait(lambda: engine.call("job.get", {"id": job})["additive"]["step"] >= 500)
    return job


def test_a_job_goes_on_after_kills_from_outside_that_leave_it_no_time(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        job = long_job(engine)
    for _ in range(6):
        crash(daemon, signal.SIGKILL)
        daemon.start()
        with daemon.connect() as engine:
            engine.call("engine.status")
    with daemon.connect() as engine:
        engine.wait(lambda: engine.call("job.get", {"id": job})["additive"]["step"] >= 500)
        engine.call("job.cancel", {"id": job})


def test_a_job_is_paused_after_three_crashes_without_progress_and_resumed_by_a_client(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        job = long_job(engine)
    for _ in range(3):  # each process but the first dies at once, so none gets as far as the first
        crash(daemon)
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


def test_a_request_under_which_the_engine_dies_is_refused_and_others_are_answered(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        unbounded = train(engine, config={**TINY["config"], "position_embedding": "none"})
    request = {"model": unbounded, "prompt": "9 bottles", "max_tokens": 100000}
    for _ in range(3):
        with daemon.connect() as engine:
            call = engine.begin("completion.create", request, credit=1 << 20)
            call.next()
            crash(daemon)
        daemon.start()
    with daemon.connect() as engine:
        with pytest.raises(EngineError) as refused:
            engine.generate(request)
        assert refused.value.code == "unavailable" and "died 3 times" in refused.value.message
        assert engine.generate({**request, "max_tokens": 5})[0]


UPLOADS = {  # its parts, and the file of the last one, which the check of the upload opens
    "file": ("file.create", {"filename": "a.txt", "purpose": "fine-tune"}, {"file": b"9 bottles"}, "file"),
    "model": ("model.import", {"id": "m"}, {"weights": b"9 bottles", "config": b"{}"}, "config.json"),
}


@pytest.mark.parametrize("kind", UPLOADS)
def test_an_upload_under_which_the_engine_dies_is_refused_and_others_are_taken(own_daemon, kind):
    method, params, parts, name = UPLOADS[kind]
    daemon = own_daemon()
    for _ in range(3):
        with daemon.connect() as engine:
            call = engine.begin(method, params, upload=True)
            for part, content in parts.items():
                engine.send(frame(DATA, call.stream, {"part": part}, content))
            engine.call("engine.status")  # answered after the frames are written
            received, = (daemon.folder / "tmp").glob(f"*/{name}")
            received.unlink()
            os.mkfifo(received)  # who opens it to read waits for a writer
            engine.send(frame(DATA, call.stream, flags=END))
            engine.call("engine.status")  # answered after the check has begun
            crash(daemon)
        daemon.start()
    with daemon.connect() as engine:
        with pytest.raises(EngineError, match="died 3 times") as refused:
            engine.upload(method, params, **parts)
        assert refused.value.code == "unavailable" and refused.value.retry_after == 600
        assert engine.add_file(TEXT) and engine.upload("file.create", {"filename": "b", "purpose": "fine-tune"}, file=b"x")


@pytest.mark.parametrize("kind", ["evaluation", "faithfulness"])
def test_an_evaluation_under_which_the_engine_dies_fails(own_daemon, kind):
    daemon = own_daemon()
    with daemon.connect() as engine:
        wide = {**TINY["config"], "hidden_size": 128}  # one text takes seconds
        model, file = train(engine, steps=2, config=wide), engine.add_file(TEXT * 40)
        about = {"model": model, "file": file}
        if kind == "faithfulness":
            about |= {"file": engine.add_file(TEXT[:500]), "methods": ["integrated_gradients", "leave_one_out"], "soft": 64,
                      "fractions": [n / 100 for n in range(1, 21)]}
        id = engine.call(f"{kind}.create", about)["id"]

    def state(engine):
        return engine.call(f"{kind}.get", {"id": id})

    for _ in range(3):
        with daemon.connect() as engine:
            engine.wait(lambda: state(engine)["status"] == "running")
        time.sleep(0.7)  # a restarted engine begins it within half a second; nothing is kept before a second
        crash(daemon)
        daemon.start()
    with daemon.connect() as engine:
        failed = engine.wait(lambda: (lambda e: e if e["finished_at"] else None)(state(engine)))
        assert failed["status"] == "failed" and "died 3 times" in failed["error"]["message"]


def test_a_range_test_leaves_no_model(own_daemon):
    with own_daemon().connect() as engine:
        job = engine.call("job.create", job_params(engine.add_file(TEXT), steps=20, schedule="range_test"))
        done = engine.wait_job(job["id"])
        assert done["status"] == "succeeded" and done["fine_tuned_model"] is None
        assert engine.call("model.list")["data"] == []
