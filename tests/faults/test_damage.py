"""The damage matrix: every kind of object in the data folder, damaged in every way, before a start and under a running
engine. At most the damaged object is lost, and it is named; everything else answers bit for bit as before, and nothing
is deleted.

tests/unit/store/test_store_damage.c has the same for the store alone."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "api"))
from engine_client import BIN, TEXT, Daemon, EngineError, job_params, train  # noqa: E402

WAYS = ["missing", "empty", "truncated", "flipped", "older"]
MOMENTS = ["at a start", "while running"]


class Template:
    """A data folder with three models, a file, a paused job with checkpoints and a session; and what they answer."""

    def __init__(self, folder):
        self.folder = folder / "data"
        self.older = folder / "older"  # an older state of the folder
        with Daemon(self.folder) as daemon, daemon.connect() as engine:
            self.file = engine.add_file(TEXT)
            self.models = [train(engine, steps=4), train(engine, steps=6)]
            self.job = self.pause_a_job(engine)
            self.session = engine.call("session.create", {"model": self.models[1], "prompt": "ten bott", "durable": True})["id"]
        shutil.copytree(self.folder, self.older)
        with Daemon(self.folder) as daemon, daemon.connect() as engine:
            self.models.append(train(engine, steps=5))
            engine.call("session.append", {"id": self.session, "text": "les of"})
        self.expected = self.observe(self.copy(folder / "untouched"))

    def pause_a_job(self, engine):
        job = engine.call("job.create", job_params(self.file, 4000, checkpoint_every=5, keep_checkpoints=3))["id"]
        engine.wait(lambda: engine.call("job.get", {"id": job})["additive"]["step"] > 40)
        engine.call("job.pause", {"id": job})
        engine.wait(lambda: len(engine.call("job.checkpoints", {"id": job})["data"]) >= 3)
        return job

    def copy(self, to):
        shutil.rmtree(to, ignore_errors=True)
        return shutil.copytree(self.folder, to, ignore=shutil.ignore_patterns("engine.sock"))

    def newest_checkpoint(self, folder):
        return max((folder / "jobs" / self.job).glob("step-*"), key=lambda p: int(p.name[5:]))

    def answers(self, engine):
        """Return the answer of every object: a value, or an error."""
        found = {}

        def ask(name, function):
            try:
                found[name] = function()
            except EngineError as e:
                found[name] = e

        for i, model in enumerate(self.models):
            ask(f"model {i}", lambda: engine.generate({"model": model, "prompt": "nine", "max_tokens": 8, "temperature": 0})[0])
        ask("file", lambda: engine.download("file.content", {"id": self.file})[1])
        ask("session", lambda: engine.generate({"id": self.session, "max_tokens": 6, "temperature": 0}, "session.generate")[0])
        ask("job", lambda: engine.call("job.get", {"id": self.job})["status"])
        return found

    def observe(self, folder):
        with Daemon(folder) as daemon, daemon.connect() as engine:
            return self.answers(engine)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return Template(tmp_path_factory.mktemp("template"))


# name: (path of the object in the folder, what answers an error because of it; None: nothing does)
OBJECTS = {
    "file": (lambda t, f: f / "blobs" / t.file, "file"),
    "file's manifest": (lambda t, f: f / "blobs" / f"{t.file}.manifest", None),
    "weights": (lambda t, f: f / "models" / t.models[0] / "model.safetensors", "model 0"),
    "configuration": (lambda t, f: f / "models" / t.models[0] / "config.json", "model 0"),
    "tokenizer": (lambda t, f: f / "models" / t.models[0] / "tokenizer.json", "model 0"),
    "model's manifest": (lambda t, f: f / "models" / t.models[0] / "manifest.json", "model 0"),
    "checkpoint's weights": (lambda t, f: t.newest_checkpoint(f) / "model.safetensors", None),
    "checkpoint's moments": (lambda t, f: t.newest_checkpoint(f) / "optimizer.safetensors", None),
    "checkpoint's position": (lambda t, f: t.newest_checkpoint(f) / "trainer.json", None),
    "checkpoint's manifest": (lambda t, f: t.newest_checkpoint(f) / "manifest.json", None),
    "job's copy": (lambda t, f: f / "jobs" / t.job / "job.json", None),
    "session's state": (lambda t, f: next((f / "sessions").glob(f"{t.session}.*")), "session"),
    "ledger": (lambda t, f: f / "ledger.sqlite", None),
    "ledger's log": (lambda t, f: f / "ledger.sqlite-wal", None),
}


def older_bytes(template, path, folder):
    """The object as it was, or as another of its kind is."""
    before = template.older / path.relative_to(folder)
    if before.exists() and before.read_bytes() != path.read_bytes():
        return before.read_bytes()
    other = [p for p in path.parent.parent.rglob(path.name) if p != path and p.read_bytes() != path.read_bytes()]
    if other:
        return other[0].read_bytes()
    if path.parent.name == "sessions":
        return next((template.older / "sessions").glob(f"{template.session}.*")).read_bytes()
    data = path.read_bytes()
    return data[: len(data) // 2] + b"older" + data[len(data) // 2 :]


def damage(template, path, folder, way):
    data = path.read_bytes()
    if way == "missing":
        path.unlink()
    elif way == "older":
        replace(path, older_bytes(template, path, folder))
    else:
        at = len(data) * 2 // 3
        flipped = data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :] if data else b""
        with open(path, "r+b") as f:  # in place, as a disk does it
            if way == "flipped":
                f.write(flipped)
            else:
                f.truncate(0 if way == "empty" else at)


def replace(path, data):
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    os.replace(beside, path)


def blobs(folder):
    return {p.name for kind in ("blobs", "models", "jobs") for p in (folder / kind).iterdir()}


def must_have_kept(template, folder, gone=()):
    there = blobs(folder) | {p.name for p in (folder / "lost").rglob("*")}
    assert blobs(template.folder) - there <= set(gone)


def must_agree(template, found, affected):
    for name, expected in template.expected.items():
        got = found[name]
        if isinstance(got, EngineError) and name == affected:
            assert (got.status, got.code) == (500, "storage_error"), (name, got)
        else:
            assert got == expected, (name, got)


def rebuild(folder):
    done = subprocess.run([BIN / "additived", "fsck", "--data", folder, "--rebuild"], capture_output=True, text=True)
    assert done.returncode in (0, 1), done


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [k for k in OBJECTS if not k.startswith("ledger")])
def test_a_damaged_object_is_named_and_nothing_else_is_lost(template, tmp_path, kind, way, moment):
    where, affected = OBJECTS[kind]
    folder = template.copy(tmp_path / "data")
    path = where(template, folder)
    if moment == "at a start":
        damage(template, path, folder, way)
    with Daemon(folder) as daemon, daemon.connect() as engine:
        if moment == "while running":
            damage(template, path, folder, way)
        found = template.answers(engine)
        must_agree(template, found, affected)
        if isinstance(found.get(affected), EngineError):
            named = {"file": template.file, "session": template.session, "model 0": template.models[0]}[affected]
            damaged = engine.call("storage.usage")["damaged"]
            assert [d["id"] for d in damaged] == [named]
            assert named in daemon.log.read_text()
        assert {m["id"] for m in engine.call("model.list")["data"]} >= set(template.models)
        if kind.startswith("checkpoint"):  # training continues from an intact one, or from this one
            engine.call("job.resume", {"id": template.job})
            engine.wait(lambda: engine.call("job.get", {"id": template.job})["additive"]["step"] > 45)
            engine.call("job.cancel", {"id": template.job})
    must_have_kept(template, folder, gone=[path.name] if way == "missing" else [])
    if affected is None or not isinstance(found.get(affected), EngineError):
        template.observe(folder)  # and it starts again


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_ledger_costs_nothing_that_has_a_blob(template, tmp_path, way):
    folder = template.copy(tmp_path / "data")
    damage(template, folder / "ledger.sqlite", folder, way)
    if way in ("missing", "empty"):
        refused = subprocess.run([BIN / "additived", "--data", folder], capture_output=True, text=True)
        assert refused.returncode != 0 and "fsck --rebuild" in refused.stderr
        must_have_kept(template, folder)
        rebuild(folder)
    found = template.observe(folder)
    if way == "older":
        assert isinstance(found.pop("model 2"), EngineError)  # it is in lost/
        assert (folder / "lost" / "model" / template.models[2]).is_dir()
        found["model 2"] = template.expected["model 2"]
    must_agree(template, found, None)
    must_have_kept(template, folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_ledger_damaged_under_a_running_engine_is_noticed_and_costs_no_blob(template, tmp_path, way):
    folder = template.copy(tmp_path / "data")
    with Daemon(folder) as daemon, daemon.connect() as engine:
        damage(template, folder / "ledger.sqlite", folder, way)
        for name, answer in template.answers(engine).items():
            assert answer == template.expected[name] or \
                isinstance(answer, EngineError) and answer.code in ("storage_error", "not_found"), (name, answer)
        if way in ("missing", "older"):
            assert not engine.call("engine.status")["storage"]["ok"]
            with pytest.raises(EngineError) as refused:
                engine.call("session.append", {"id": template.session, "text": "x"})
            assert refused.value.code == "storage_error"
        daemon.kill()
    if way in ("missing", "empty"):
        (folder / "ledger.sqlite").unlink(missing_ok=True)
        rebuild(folder)
    found = template.observe(folder)
    if way == "older":
        assert isinstance(found.pop("model 2"), EngineError)
        found["model 2"] = template.expected["model 2"]
    found["session"] = template.expected["session"]  # it may have gone on while the ledger still worked
    must_agree(template, found, None)
    must_have_kept(template, folder)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", WAYS[:-1])
def test_a_damaged_log_costs_no_blob_and_nothing_from_before(template, tmp_path, way, moment):
    folder = template.copy(tmp_path / "data")
    log = folder / "ledger.sqlite-wal"
    with Daemon(folder) as daemon, daemon.connect() as engine:
        engine.wait(lambda: log.exists())
        newer = None
        for _ in range(100):  # the log is emptied twice a second: be quicker
            newer = engine.add_file(b"the newest")
            if log.stat().st_size > 0:
                break
        if moment == "while running":
            damage(template, log, folder, way)
            engine.call("model.list")
        daemon.kill()
    if moment == "at a start" and log.exists() and log.stat().st_size > 0:
        damage(template, log, folder, way)
    must_agree(template, template.observe(folder), None)
    must_have_kept(template, folder)
    assert list(folder.rglob(newer)), "the newest file lies in its place or in lost/"
