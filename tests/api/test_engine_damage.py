"""additived: damage on the server's disk is named, logged and reported as the server's fault; everything else keeps
working."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import time

import pytest

from engine_client import BIN, TEXT, Daemon, EngineError, job_params, own_daemon, train
from engine_serving import metric

FILES = ["config.json", "model.safetensors", "tokenizer.json"]
KINDS = ["missing", "empty", "truncated", "flipped"]


def damage(path, kind):
    data = bytearray(path.read_bytes())
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 4
        path.write_bytes(data)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A data folder with two models, at rest."""
    folder = tmp_path_factory.mktemp("sound") / "data"
    with Daemon(folder) as daemon, daemon.connect() as engine:
        models = [train(engine, steps=2) for _ in range(2)]
    return folder, models


@pytest.fixture
def copy(sound, tmp_path):
    shutil.copytree(sound[0], tmp_path / "data")
    return tmp_path / "data", *sound[1]


def refused(engine, method, params, **kw):
    with pytest.raises(EngineError) as e:
        engine.call(method, params, **kw)
    return e.value


def generate(engine, model):
    return engine.generate({"model": model, "prompt": "99", "max_tokens": 2})


def listed(engine):
    return {m["id"]: m["additive"] for m in engine.call("model.list")["data"]}


def assert_only_this_one_is_lost(daemon, engine, broken, whole, name):
    for method, params in (("completion.create", {"model": broken, "prompt": "99", "max_tokens": 2}),
                           ("session.create", {"model": broken}),
                           ("explain", {"model": broken, "input": "99"}),
                           ("model.load", {"id": broken})):
        e = refused(engine, method, params, **({"credit": 4} if method == "completion.create" else {}))
        assert (e.status, e.code) == (500, "storage_error"), (method, str(e))
        assert broken in e.message and name in e.message, (method, str(e))
    log = daemon.log.read_text()
    assert broken in log and name in log
    models = listed(engine)
    assert name in models[broken]["damaged"] and not models[broken]["loaded"]
    assert engine.call("model.get", {"id": broken})["additive"] == models[broken]
    assert "damaged" not in models[whole]
    generate(engine, whole)
    assert engine.call("model.delete", {"id": broken})["deleted"]
    assert list(listed(engine)) == [whole]
    assert refused(engine, "model.get", {"id": broken}).status == 404


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_loses_its_model_only(copy, name, kind):
    folder, broken, whole = copy
    damage(folder / "models" / broken / name, kind)
    with Daemon(folder) as daemon, daemon.connect() as engine:
        assert_only_this_one_is_lost(daemon, engine, broken, whole, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_manifest_at_start_is_made_again_from_the_ledger(copy, kind):
    folder, broken, whole = copy
    damage(folder / "models" / broken / "manifest.json", kind)
    with Daemon(folder) as daemon, daemon.connect() as engine:
        assert generate(engine, broken) and "damaged" not in listed(engine)[broken]


def test_a_missing_folder_is_not_an_unknown_model(copy):
    folder, broken, whole = copy
    shutil.rmtree(folder / "models" / broken)
    with Daemon(folder) as daemon, daemon.connect() as engine:
        e = refused(engine, "model.load", {"id": broken})
        assert (e.status, e.code) == (500, "storage_error") and broken in e.message
        assert refused(engine, "model.load", {"id": "never-was"}).status == 404
        assert listed(engine)[broken]["damaged"]
        generate(engine, whole)
        assert engine.call("model.delete", {"id": broken})["deleted"]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_damaged_while_running_are_found_when_they_are_loaded_again(copy, kind):
    folder, broken, whole = copy
    with Daemon(folder) as daemon, daemon.connect() as engine:
        generate(engine, broken)
        path = folder / "models" / broken / "model.safetensors"
        keep = path.read_bytes()
        damage(path, kind)
        generate(engine, broken)  # it is in memory
        engine.call("model.unload", {"id": broken})
        e = refused(engine, "model.load", {"id": broken})
        assert (e.status, e.code) == (500, "storage_error") and "model.safetensors" in e.message
        assert "model.safetensors" in listed(engine)[broken]["damaged"]
        path.write_bytes(keep)
        generate(engine, broken)  # put right by hand
        assert "damaged" not in listed(engine)[broken]


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_names_the_request_that_found_damage(copy, form):
    folder, broken, whole = copy
    with Daemon(folder, "--log-format", form) as daemon, daemon.connect() as engine:
        damage(folder / "models" / broken / "model.safetensors", "flipped")
        call = engine.begin("model.load", {"id": broken}, context={"request_id": "req_seen"})
        with pytest.raises(EngineError) as e:
            call.result()
        assert e.value.status == 500
        engine.begin("model.load", {"id": whole}, context={"request_id": "req_fine"}).result()
    lines = daemon.log.read_text().splitlines()
    named = [line for line in lines if "answered with storage_error" in line]
    assert len(named) == 1 and not any("req_fine" in line for line in lines)
    if form == "text":
        assert " warn additived: request req_seen: answered with storage_error: " in named[0]
    else:
        line = next(line for line in map(json.loads, lines) if line.get("request_id") == "req_seen")
        assert (line["level"], line["program"]) == ("warn", "additived") and "model.safetensors" in line["message"]
        assert all(json.loads(line)["time"] for line in lines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES[:2])
def test_no_byte_of_a_damaged_file_is_exported(copy, name, kind):
    folder, broken, whole = copy
    with Daemon(folder) as daemon, daemon.connect() as engine:
        want = (folder / "models" / broken / name).read_bytes()
        assert engine.download("model.file", {"id": broken, "name": name})[1] == want
        damage(folder / "models" / broken / name, kind)
        call = engine.begin("model.file", {"id": broken, "name": name}, credit=8)
        with pytest.raises(EngineError) as e:
            assert not list(call.events())
            call.result()
        assert (e.value.status, e.value.code) == (500, "storage_error") and name in e.value.message
        assert name in daemon.log.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_no_checksum_is_made_of_a_damaged_file(copy, kind):
    folder, broken, whole = copy
    with Daemon(folder) as daemon, daemon.connect() as engine:
        want = engine.call("model.files", {"id": broken})["data"]
        assert {f["name"] for f in want} >= set(FILES[:2])
        for name in FILES[:2]:
            path = folder / "models" / broken / name
            sound = path.read_bytes()
            damage(path, kind)
            e = refused(engine, "model.files", {"id": broken})
            assert (e.status, e.code) == (500, "storage_error") and name in e.message
            assert name in daemon.log.read_text()
            path.write_bytes(sound)
        assert engine.call("model.files", {"id": broken})["data"] == want


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_upload_is_not_given_back(tmp_path, kind):
    with Daemon(tmp_path / "data") as daemon, daemon.connect() as engine:
        file = engine.add_file(b"some text " * 1000)
        damage(daemon.folder / "blobs" / file, kind)
        call = engine.begin("file.content", {"id": file}, credit=8)
        with pytest.raises(EngineError) as e:
            assert not list(call.events())
            call.result()
        assert (e.value.status, e.value.code) == (500, "storage_error")


def test_a_missing_upload_is_not_an_unknown_file(copy):
    folder, model, _ = copy
    with Daemon(folder) as daemon, daemon.connect() as engine:
        file = engine.call("file.list")["data"][0]["id"]
        requests = (("job.create", job_params(file, 3)), ("evaluation.create", {"model": model, "file": file}))
        (folder / "blobs" / file).unlink()
        for method, params in requests:
            e = refused(engine, method, params)
            assert (e.status, e.code) == (500, "storage_error") and file in e.message
        assert refused(engine, "job.create", job_params("file-never-was", 3)).status == 404
        assert file in daemon.log.read_text()


def test_what_is_wrong_with_an_import_is_still_the_clients_fault(tmp_path):
    with Daemon(tmp_path / "data") as daemon, daemon.connect() as engine:
        with pytest.raises(EngineError) as e:
            engine.upload("model.import", {"id": "mine"}, config=b"{}", weights=b"not weights")
        assert e.value.status == 400
        assert engine.call("model.list")["data"] == []


def test_an_import_is_sealed(copy):
    folder, model, _ = copy
    with Daemon(folder) as daemon, daemon.connect() as engine:
        parts = {p: (folder / "models" / model / f).read_bytes()
                 for p, f in (("config", "config.json"), ("weights", "model.safetensors"), ("tokenizer", "tokenizer.json"))}
        engine.upload("model.import", {"id": "mine"}, **parts)
        damage(folder / "models" / "mine" / "model.safetensors", "flipped")
        e = refused(engine, "model.load", {"id": "mine"})
        assert (e.status, e.code) == (500, "storage_error") and "model.safetensors is damaged" in e.message


# --- rows that are missing ----------------------------------------------------------------------


def test_objects_whose_rows_are_gone_are_named_counted_kept_and_taken_back(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        job = engine.call("job.create", job_params(engine.add_file(TEXT), 4, checkpoint_every=4))["id"]
        model = engine.wait_job(job)["fine_tuned_model"]
        file = engine.add_file("kept")
        session = engine.call("session.create", {"model": model, "prompt": "9", "durable": True})["id"]
    assert daemon.stop() == 0
    lost = {"file": file, "model": model, "job": job, "session": session}
    with contextlib.closing(sqlite3.connect(daemon.folder / "ledger.sqlite")) as ledger:
        for kind, name in lost.items():
            assert ledger.execute("DELETE FROM objects WHERE kind=? AND id=?", (kind, name)).rowcount == 1
        ledger.execute("DELETE FROM objects WHERE parent=?", (job,))
        ledger.commit()
    daemon.start()
    log = daemon.log.read_text()
    with daemon.connect() as engine:
        found = {one["kind"]: one["name"] for one in engine.call("storage.usage")["lost"]}
        assert found == lost | {"session": found["session"]} and found["session"].startswith(session)
        for kind, name in lost.items():
            assert f'{kind} "{name}' in log and f"lost/{kind}/{name}" in log
        engine.wait(lambda: metric(engine, "additive_engine_storage_lost") == 4)
        assert engine.call("engine.status")["storage"]["lost"] == 4
        assert engine.call("storage.usage")["damaged"] == []
    assert daemon.stop() == 0
    adopt = [f"--adopt={kind}/{name}" for kind, name in found.items()]
    assert subprocess.run([BIN / "additived", "fsck", "--data", daemon.folder, *adopt]).returncode == 0
    daemon.start()
    with daemon.connect() as engine:
        assert engine.download("file.content", {"id": file})[1] == b"kept"
        assert engine.call("session.generate", {"id": session, "max_tokens": 1})
        assert generate(engine, model) and engine.call("job.checkpoints", {"id": job})["data"]
        engine.wait(lambda: metric(engine, "additive_engine_storage_lost") == 0)
    assert daemon.stop() == 0


def test_what_was_lost_long_ago_is_removed_and_logged(own_daemon):
    daemon = own_daemon("--lost-days", 3)
    assert daemon.stop() == 0
    for name, days in (("old", 4), ("new", 2)):
        path = daemon.folder / "lost" / "model" / name
        path.mkdir(parents=True)
        os.utime(path, (time.time() - days * 86400,) * 2)
    daemon.start()
    with daemon.connect() as engine:
        engine.wait(lambda: [one["name"] for one in engine.call("storage.usage")["lost"]] == ["new"])
    assert "lost/model/old is removed" in daemon.log.read_text() and daemon.stop() == 0
