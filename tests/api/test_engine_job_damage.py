"""additived: training jobs whose checkpoints or files are damaged, and the files that are deleted and kept."""

import contextlib
import shutil
import sqlite3
import time

import pytest

from engine_client import BIN, TEXT, Daemon, EngineError, job_params, own_daemon, train


def refused(engine, method, params):
    with pytest.raises(EngineError) as e:
        engine.call(method, params)
    return e.value


def weights(engine, model):
    return engine.download("model.file", {"id": model, "name": "model.safetensors"})[1]


def flip(path, at=-9):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def messages(engine, job):
    return [e["message"] for e in engine.job_events(job)]


def metrics_steps(engine, job):
    events = engine.job_events(job)
    return [e["data"]["step"] for e in events if e["type"] == "metrics"][::-1]


def checkpoints(engine, job):
    return engine.call("job.checkpoints", {"id": job, "limit": 100})["data"]


STEPS = 60


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights of a job that nothing disturbs."""
    with Daemon(tmp_path_factory.mktemp("calm") / "data") as daemon, daemon.connect() as e:
        job = e.call("job.create", resumable(e.add_file(TEXT)))["id"]
        return weights(e, e.wait_job(job)["fine_tuned_model"])


def resumable(file):
    return job_params(file, STEPS, checkpoint_every=10, eval_every=5, keep_checkpoints=4, batch_size=8)


def paused_at(e, daemon, least=20):
    """Return a job that was paused after that step, and the folders of its checkpoints, newest first."""
    job = e.call("job.create", resumable(e.add_file(TEXT)))["id"]
    e.wait(lambda: e.call("job.get", {"id": job})["additive"]["step"] >= least)
    e.call("job.pause", {"id": job})
    e.wait(lambda: e.call("job.get", {"id": job})["additive"]["step"] <= checkpoints(e, job)[0]["step_number"])
    time.sleep(0.1)
    return job, [daemon.folder / "jobs" / job / f"step-{c['step_number']}" for c in checkpoints(e, job)]


def spoil_weights(folder):
    flip(folder / "model.safetensors")


def spoil_moments(folder):
    flip(folder / "optimizer.safetensors")


def spoil_position(folder):
    flip(folder / "trainer.json", 20)


def cut_weights(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def empty_moments(folder):
    (folder / "optimizer.safetensors").write_bytes(b"")


def lose_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def spoil_manifest(folder):
    flip(folder / "manifest.json", 40)


DAMAGE = [spoil_weights, spoil_moments, spoil_position, cut_weights, empty_moments, lose_tokenizer, spoil_manifest, shutil.rmtree]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_a_damaged_newest_checkpoint_costs_the_steps_since_the_one_before(own_daemon, expected, damage):
    daemon = own_daemon()
    with daemon.connect() as e:
        job, folders = paused_at(e, daemon)
        newest, before = [c["step_number"] for c in checkpoints(e, job)[:2]]
        damage(folders[0])
        e.call("job.resume", {"id": job})
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert weights(e, done["fine_tuned_model"]) == expected
        events = messages(e, job)
        assert any(m.startswith(f"The checkpoint at step {newest} is damaged: ") for m in events), events
        assert f"Fine-tuning job continues from the checkpoint at step {before}" in events
        steps = metrics_steps(e, job)
        assert steps == sorted(set(steps)) and set(range(5, STEPS + 1, 5)) <= set(steps)


def test_without_an_intact_checkpoint_a_job_begins_again_and_says_so(own_daemon, expected):
    daemon = own_daemon()
    with daemon.connect() as e:
        job, folders = paused_at(e, daemon)
        for folder in folders:
            spoil_weights(folder)
        e.call("job.resume", {"id": job})
        e.wait(lambda: any("starts again at step 0" in m for m in messages(e, job)))
        assert e.wait_job(job)["status"] == "succeeded"
        assert weights(e, e.call("job.get", {"id": job})["fine_tuned_model"]) == expected


def test_a_damaged_checkpoint_is_marked_stays_on_disk_and_does_not_count(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        file = e.add_file(TEXT)
        job = e.call("job.create", job_params(file, 1000000, checkpoint_every=50, keep_checkpoints=2))["id"]
        e.wait(lambda: len(checkpoints(e, job)) == 2)
        e.call("job.pause", {"id": job})
        time.sleep(0.3)
        newest = checkpoints(e, job)[0]
        assert newest["additive"]["damaged"] is None
        folder = daemon.folder / "jobs" / job / f"step-{newest['step_number']}"
        spoil_weights(folder)
        e.call("job.resume", {"id": job})
        e.wait(lambda: max(c["step_number"] for c in checkpoints(e, job)) > newest["step_number"] + 200)
        kept = checkpoints(e, job)
        damaged = [c for c in kept if c["additive"]["damaged"]]
        # Where a run passes the step of a damaged checkpoint, it writes it again.
        assert len([c for c in kept if not c["additive"]["damaged"]]) <= 3 and len(damaged) <= 1
        assert all("model.safetensors" in c["additive"]["damaged"] for c in damaged)
        assert folder.exists() == any(c["step_number"] == newest["step_number"] for c in kept)
        e.call("job.cancel", {"id": job})


def test_kills_while_checkpoints_are_damaged_report_each_step_once(own_daemon, expected):
    daemon = own_daemon()
    with daemon.connect() as e:
        job = e.call("job.create", resumable(e.add_file(TEXT)))["id"]
    for target in (15, 25, 35, 45):
        with daemon.connect() as e:
            e.wait(lambda: (lambda j: j["additive"]["step"] >= target or j["status"] == "succeeded")(
                e.call("job.get", {"id": job})))
        daemon.kill()
        folders = sorted((p for p in (daemon.folder / "jobs" / job).iterdir() if p.name[5:].isdigit()),
                         key=lambda p: int(p.name[5:]))
        if target in (25, 45) and folders and (folders[-1] / "model.safetensors").exists():
            spoil_weights(folders[-1])
        daemon.start()
    with daemon.connect() as e:
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert weights(e, done["fine_tuned_model"]) == expected
        steps = metrics_steps(e, job)
        assert steps == sorted(set(steps)) and set(range(5, STEPS + 1, 5)) <= set(steps)
    assert daemon.stop() == 0


# --- rows that the ledger takes late -----------------------------------------------------------

@contextlib.contextmanager
def busy_ledger(daemon, seconds):
    """Another process writes for some seconds, and the daemon can commit nothing."""
    with sqlite3.connect(daemon.folder / "ledger.sqlite", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        time.sleep(seconds)
    other.close()


def long_job(e):
    file = e.add_file(TEXT)
    job = e.call("job.create", job_params(file, 1000000, checkpoint_every=10, eval_every=5, keep_checkpoints=4))["id"]
    e.wait(lambda: len(checkpoints(e, job)) == 4)
    return job


def assert_no_row_is_missing(e, job, every=5):
    last = max(c["step_number"] for c in checkpoints(e, job))  # read first: the job may continue
    steps = metrics_steps(e, job)
    assert steps == sorted(set(steps)) and set(range(max(every, steps[0]), last + 1, every)) - set(steps) == set()


def test_what_a_job_computes_until_its_pause_takes_effect_has_its_rows(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        job = long_job(e)
        for _ in range(4):
            with busy_ledger(daemon, 0.15), pytest.raises(EngineError) as refused:
                e.call("job.pause", {"id": job})
            assert (refused.value.status, refused.value.code, refused.value.retry_after) == (503, "unavailable", 1)
            e.call("job.pause", {"id": job})
            e.wait(lambda: e.call("job.get", {"id": job})["additive"]["step"] <= checkpoints(e, job)[0]["step_number"])
            e.call("job.resume", {"id": job})
            goal = checkpoints(e, job)[0]["step_number"] + 20
            e.wait(lambda: checkpoints(e, job)[0]["step_number"] >= goal)
            assert_no_row_is_missing(e, job)
        e.call("job.cancel", {"id": job})
    assert daemon.stop() == 0


several = pytest.param({"parallel": {"ranks": 2}}, marks=pytest.mark.skipif(
    not (BIN / "additive-train").exists(), reason="built without MPI"))


@pytest.mark.parametrize("processes", [{}, several])
def test_a_pause_saves_a_checkpoint_once_the_late_rows_are_written(own_daemon, processes):
    """The pause commits the row of the evaluation, so the steps up to the pause are kept."""
    daemon = own_daemon()
    with daemon.connect() as e:
        job = e.call("job.create", job_params(e.add_file(TEXT), 1000000, checkpoint_every=1000, eval_every=200,
                                              batch_size=8, **processes))["id"]

        def step():
            return e.call("job.get", {"id": job})["additive"]["step"]
        with busy_ledger(daemon, 0):
            goal = step() // 200 * 200 + 200
            e.wait(lambda: step() > goal)  # the row of step goal is late
        e.call("job.pause", {"id": job})
        e.wait(lambda: checkpoints(e, job))
        assert checkpoints(e, job)[0]["step_number"] >= step() > goal
        assert_no_row_is_missing(e, job, 200)
        e.call("job.cancel", {"id": job})
    assert daemon.stop() == 0


def test_a_checkpoint_is_on_disk_only_when_the_rows_of_its_steps_are_in_the_ledger(own_daemon):
    daemon = own_daemon()
    for _ in range(4):
        with daemon.connect() as e:
            job = long_job(e)
        with busy_ledger(daemon, 0):
            time.sleep(0.15)
            daemon.kill()
        daemon.start()
        with daemon.connect() as e:
            goal = checkpoints(e, job)[0]["step_number"] + 20
            e.wait(lambda: checkpoints(e, job)[0]["step_number"] >= goal)
            assert_no_row_is_missing(e, job)
            e.call("job.cancel", {"id": job})
    assert daemon.stop() == 0


# --- files and models that a job needs -------------------------------------------------------

def test_a_lost_training_file_pauses_its_job_and_no_other_until_it_is_back(own_daemon, expected):
    daemon = own_daemon()
    with daemon.connect() as e:
        job, _ = paused_at(e, daemon)
        file = e.call("job.get", {"id": job})["training_file"]
        blob, aside = daemon.folder / "blobs" / file, daemon.folder.parent / "aside"
        shutil.copy(blob, aside)
        for damage in (blob.unlink, lambda: blob.write_bytes(aside.read_bytes().replace(b"beer", b"wine"))):
            damage()
            e.call("job.resume", {"id": job})
            state = e.wait(lambda: (lambda j: j if j["status"] == "paused" and j["additive"]["paused_reason"] else None)(
                e.call("job.get", {"id": job})))
            reason = state["additive"]["paused_reason"]
            assert reason["code"] == "storage_error" and file in reason["message"] and reason["retry_at"] > 0
            assert train(e, 5)  # other jobs still run
            e.call("job.pause", {"id": job})
            assert e.call("job.get", {"id": job})["additive"]["paused_reason"] is None
        e.call("job.resume", {"id": job})
        e.wait(lambda: e.call("job.get", {"id": job})["additive"]["paused_reason"])
        shutil.copy(aside, blob)
        done = e.wait_job(job)  # by itself
        assert done["status"] == "succeeded" and weights(e, done["fine_tuned_model"]) == expected


def test_a_damaged_base_model_pauses_the_job_until_it_is_whole(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        base = train(e)
        file = e.add_file(TEXT)
        endless = e.call("job.create", job_params(file, 1000000))["id"]
        job = e.call("job.create", {"model": base, "training_file": file, "seed": 7, "additive": {
            "sequence_length": 64, "max_steps": 10, "learning_rate": 3e-3}})["id"]
        path = daemon.folder / "models" / base / "model.safetensors"
        whole = path.read_bytes()
        flip(path)
        e.call("job.cancel", {"id": endless})
        reason = e.wait(lambda: e.call("job.get", {"id": job})["additive"]["paused_reason"])
        assert reason["code"] == "storage_error" and base in reason["message"] and "model.safetensors" in reason["message"]
        path.write_bytes(whole)
        assert e.wait_job(job)["status"] == "succeeded"


# --- resuming what has ended ------------------------------------------------------------------

def test_a_cancelled_job_with_a_checkpoint_continues_under_its_own_id(own_daemon, expected):
    daemon = own_daemon()
    with daemon.connect() as e:
        job, _ = paused_at(e, daemon)
        step = checkpoints(e, job)[0]["step_number"]
        e.call("job.cancel", {"id": job})
        again = e.call("job.resume", {"id": job})
        assert (again["id"], again["status"], again["error"], again["finished_at"]) == (job, "queued", None, None)
        done = e.wait_job(job)
        assert done["status"] == "succeeded" and weights(e, done["fine_tuned_model"]) == expected
        assert f"Fine-tuning job continues from the checkpoint at step {step}" in messages(e, job)
        assert refused(e, "job.resume", {"id": job}).code == "invalid_job_state"


def test_a_job_whose_file_was_deleted_is_not_resumed(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        job, _ = paused_at(e, daemon)
        file = e.call("job.cancel", {"id": job})["training_file"]
        e.call("file.delete", {"id": file})
        assert file in refused(e, "job.resume", {"id": job}).message


# --- deleting -----------------------------------------------------------------------------------

def test_a_job_that_has_ended_is_deleted_with_all_it_left_but_its_model(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        file = e.add_file(TEXT)
        job = e.call("job.create", job_params(file, 20, checkpoint_every=5))["id"]
        model = e.wait_job(job)["fine_tuned_model"]
        running = e.call("job.create", job_params(file, 1000000))["id"]
        assert refused(e, "job.delete", {"id": running}).code == "invalid_job_state"
        assert refused(e, "job.delete", {"id": "ftjob-none"}).status == 404
        name = checkpoints(e, job)[0]["id"]
        session = e.call("session.create", {"model": name, "prompt": "9"})["id"]
        assert refused(e, "job.delete", {"id": job}).code == "model_in_use"
        assert refused(e, "checkpoint.delete", {"id": job, "checkpoint": name}).code == "model_in_use"
        e.call("session.delete", {"id": session})
        assert e.call("job.delete", {"id": job}) == {"id": job, "object": "fine_tuning.job", "deleted": True}
        for method in ("job.get", "job.events", "job.checkpoints", "job.delete"):
            assert refused(e, method, {"id": job}).status == 404
        assert refused(e, "model.get", {"id": name}).status == 404
        e.wait(lambda: not (daemon.folder / "jobs" / job).exists())
        assert e.generate({"model": model, "prompt": "9", "max_tokens": 3})[2]["model"] == model
        e.call("job.cancel", {"id": running})
        e.wait(lambda: deleted(e, running))
        assert [j["id"] for j in e.call("job.list")["data"]] == []


def deleted(e, job):
    try:
        return e.call("job.delete", {"id": job})
    except EngineError as refusal:
        assert refusal.code == "invalid_job_state"  # its run is still ending


def test_a_checkpoint_is_deleted_unless_its_job_continues_from_it(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        job, folders = paused_at(e, daemon)
        newest, older = [c["id"] for c in checkpoints(e, job)[:2]]
        assert refused(e, "checkpoint.delete", {"id": job, "checkpoint": newest}).code == "model_in_use"
        assert refused(e, "checkpoint.delete", {"id": job, "checkpoint": "ckpt-none"}).status == 404
        e.call("model.load", {"id": older})
        answer = e.call("checkpoint.delete", {"id": job, "checkpoint": older})
        assert answer == {"id": older, "object": "fine_tuning.job.checkpoint", "deleted": True}
        assert older not in [c["id"] for c in checkpoints(e, job)]
        assert refused(e, "model.get", {"id": older}).status == 404
        e.wait(lambda: not folders[1].exists())
        e.call("job.cancel", {"id": job})
        e.wait(lambda: e.call("checkpoint.delete", {"id": job, "checkpoint": newest}))


def test_retention_bounds_the_bytes_of_ended_jobs_and_spares_what_is_used_or_may_be_resumed(own_daemon):
    daemon = own_daemon("--retain-bytes", 1)
    with daemon.connect() as e:
        kept, _ = paused_at(e, daemon)
        file = e.add_file(TEXT)
        job = e.call("job.create", job_params(file, 40, checkpoint_every=10))["id"]
        e.wait_job(job)
        e.wait(lambda: not checkpoints(e, job))
        before = len(checkpoints(e, kept))
        assert before > 1  # it has not ended
        used = checkpoints(e, kept)[-1]["id"]
        e.call("session.create", {"model": used, "prompt": "9"})
        newest = checkpoints(e, kept)[0]["id"]
        e.call("job.cancel", {"id": kept})
        e.wait(lambda: [c["id"] for c in checkpoints(e, kept)] == [newest, used])
        time.sleep(1.2)
        assert [c["id"] for c in checkpoints(e, kept)] == [newest, used]
