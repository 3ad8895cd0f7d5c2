"""additived: training jobs of several processes."""

import os
import signal
import time
from pathlib import Path

import pytest

from engine_client import BIN, TEXT, Daemon, EngineError, job_params, own_daemon

pytestmark = pytest.mark.skipif(not (BIN / "additive-train").exists(), reason="built without MPI")

STEPS = 40


def ranked(file, ranks=2, steps=STEPS, **more):
    more = {"checkpoint_every": 10, "eval_every": 10, "keep_checkpoints": 4, "batch_size": 8} | more
    return job_params(file, steps, parallel={"ranks": ranks}, **more)


def weights(e, job):
    return e.download("model.file", {"id": job["fine_tuned_model"], "name": "model.safetensors"})[1]


def evaluations(e, job):
    """{step: (training loss, validation loss)}; a step that is reported twice is an error."""
    events = [x["data"] for x in e.job_events(job) if x["type"] == "metrics"]
    found = {d["step"]: (d["train_loss"], d["valid_loss"]) for d in events if d.get("valid_loss") is not None}
    assert len({d["step"] for d in events}) == len(events)
    return found


def processes_of(daemon):
    """Return the processes whose plan is in the daemon's folder, by kind: mpirun, or its children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--plan" in words and any(w.startswith(os.fsencode(daemon.folder)) for w in words):
                found.append((os.path.basename(words[0]).decode(), int(entry.name)))
    return found


def ranks_of(daemon):
    return sorted(pid for name, pid in processes_of(daemon) if name == "additive-train")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights and evaluations of a job of two ranks that nothing disturbs."""
    with Daemon(tmp_path_factory.mktemp("calm") / "data") as daemon, daemon.connect() as e:
        job = e.call("job.create", ranked(e.add_file(TEXT)))["id"]
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert not processes_of(daemon)
        card = e.call("model.card", {"id": done["fine_tuned_model"]})
        assert card["job"]["id"] == job and card["results"]["step"] == STEPS and card["results"]["train_loss"] == done["additive"]["train_loss"]
        assert "model_card.json" in [f["name"] for f in e.call("model.files", {"id": done["fine_tuned_model"]})["data"]]
        return weights(e, done), evaluations(e, job)


def test_two_ranks_train_as_one_process_does(own_daemon, expected):
    with own_daemon().connect() as e:
        params = ranked(e.add_file(TEXT))
        del params["additive"]["parallel"]
        job = e.call("job.create", params)["id"]
        assert e.wait_job(job)["status"] == "succeeded"
        alone = evaluations(e, job)
    assert alone.keys() == expected[1].keys() == {10, 20, 30, 40}
    for step, losses in alone.items():
        assert losses == pytest.approx(expected[1][step], abs=1e-4)


def test_a_sharded_job_is_paused_and_gives_the_same_bits(own_daemon, expected):
    daemon = own_daemon("--device", "3")
    with daemon.connect() as e:
        params = ranked(e.add_file(TEXT))
        params["additive"]["parallel"]["shard_optimizer"] = True
        job = e.call("job.create", params)["id"]
        e.wait(lambda: e.call("job.get", {"id": job})["additive"]["step"] >= 12)
        words = Path(f"/proc/{ranks_of(daemon)[0]}/cmdline").read_bytes().split(b"\0")
        assert words[words.index(b"--device") + 1] == b"3"
        e.call("job.pause", {"id": job})
        e.wait(lambda: not processes_of(daemon))
        assert e.call("job.checkpoints", {"id": job})["data"][0]["step_number"] >= 12
        e.call("job.resume", {"id": job})
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert (weights(e, done), evaluations(e, job)) == expected


def test_what_ranks_have_trained_is_a_model_like_any_other(own_daemon):
    with own_daemon().connect() as e:
        job = e.call("job.create", ranked(e.add_file(TEXT), ranks=4, steps=10))["id"]
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        rows = e.call("job.checkpoints", {"id": job})["data"]
        assert [c["step_number"] for c in rows] == [10]
        for model in (done["fine_tuned_model"], rows[0]["fine_tuned_model_checkpoint"]):
            assert e.call("model.get", {"id": model})["id"] == model


def test_a_job_goes_on_when_one_of_its_processes_is_killed(own_daemon, expected):
    daemon = own_daemon()
    with daemon.connect() as e:
        job = e.call("job.create", ranked(e.add_file(TEXT)))["id"]
        e.wait(lambda: e.call("job.get", {"id": job})["additive"]["step"] >= 12)
        os.kill(ranks_of(daemon)[-1], signal.SIGKILL)
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert any("a process of the run has ended" in x["message"] for x in
                   e.job_events(job))
        assert (weights(e, done), evaluations(e, job)) == expected
    assert not processes_of(daemon)


def test_the_processes_end_with_the_engine_and_the_job_goes_on_with_the_next(own_daemon, expected):
    daemon = own_daemon()
    with daemon.connect() as e:
        job = e.call("job.create", ranked(e.add_file(TEXT)))["id"]
        e.wait(lambda: e.call("job.get", {"id": job})["additive"]["step"] >= 15)
    assert len(ranks_of(daemon)) == 2
    daemon.kill()
    for _ in range(200):
        if not processes_of(daemon):
            break
        time.sleep(0.05)
    assert not processes_of(daemon)
    daemon.start()
    with daemon.connect() as e:
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert (weights(e, done), evaluations(e, job)) == expected


def test_a_job_of_ranks_is_paused_resumed_and_cancelled(own_daemon, expected):
    daemon = own_daemon()
    with daemon.connect() as e:
        file = e.add_file(TEXT)
        job = e.call("job.create", ranked(file))["id"]
        e.wait(lambda: e.call("job.get", {"id": job})["additive"]["step"] >= 12)
        e.call("job.pause", {"id": job})
        e.wait(lambda: not processes_of(daemon))
        step = e.call("job.get", {"id": job})["additive"]["step"]
        assert e.call("job.checkpoints", {"id": job})["data"][0]["step_number"] >= min(step, 12)
        e.call("job.resume", {"id": job})
        done = e.wait_job(job)
        assert (weights(e, done), evaluations(e, job)) == expected
        endless = e.call("job.create", ranked(file, steps=1000000))["id"]
        e.wait(lambda: e.call("job.get", {"id": endless})["additive"]["step"] >= 5)
        e.call("job.cancel", {"id": endless})
        assert e.call("job.get", {"id": endless})["status"] == "cancelled"
        e.wait(lambda: not processes_of(daemon))
    assert daemon.stop() == 0


@pytest.mark.parametrize("field, more", [
    ("additive.batch_size", {"batch_size": 7}),
    ("additive.carry_state", {"carry_state": True}),
    ("additive.gradient_noise", {"gradient_noise": True, "gradient_accumulation": 2}),
    ("additive.parallel.ranks", {"parallel": {"ranks": 0}}),
    ("additive.parallel.ranks", {"parallel": {}}),
    ("additive.parallel.shard_optimizer", {"parallel": {"ranks": 2, "shard_optimizer": 1}}),
    ("additive.parallel.machines", {"parallel": {"ranks": 2, "machines": 2}}),
])
def test_what_ranks_cannot_do_is_refused_by_name(own_daemon, field, more):
    with own_daemon().connect() as e:
        params = ranked(e.add_file(TEXT))
        params["additive"] |= more
        with pytest.raises(EngineError) as refused:
            e.call("job.create", params)
        assert refused.value.param == field


def test_without_mpirun_a_job_of_ranks_is_refused(own_daemon, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with own_daemon().connect() as e:
        with pytest.raises(EngineError) as refused:
            e.call("job.create", ranked(e.add_file(TEXT)))
        assert refused.value.param == "additive.parallel" and "mpirun" in str(refused.value)


def deleted(e, job):
    try:
        return e.call("job.delete", {"id": job})["deleted"]
    except EngineError:
        return False


@pytest.mark.slow  # the engine waits for 90 s
def test_a_launcher_that_does_not_end_is_killed(own_daemon, monkeypatch, tmp_path):
    launcher, pid = tmp_path / "mpirun", tmp_path / "pid"
    launcher.write_text(f"#!/bin/sh\necho $$ >{pid}\nexec sleep 1000\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with own_daemon().connect() as e:
        job = e.call("job.create", ranked(e.add_file(TEXT)))["id"]
        e.wait(lambda: pid.exists() and pid.read_text())
        process = Path("/proc") / pid.read_text().strip()
        e.call("job.cancel", {"id": job})
        assert e.wait_job(job)["status"] == "cancelled" and process.exists()
        e.wait(lambda: not process.exists(), seconds=150)
        e.wait(lambda: deleted(e, job))
