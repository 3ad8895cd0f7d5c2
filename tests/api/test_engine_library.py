"""additived: models and files over its socket, and its end."""

import json
import time

import pytest

from engine_client import PATIENCE, TEXT, EngineError, engine, job_params, own_daemon, train
from engine_serving import daemon, model, refused, session


# --- models and files ----------------------------------------------------------------------

def test_an_imported_configuration_without_a_model_type_is_additives(engine, model):
    """As for `additive-eval`, which reads the same folder."""
    config, weights, tokenizer = (engine.download("model.file", {"id": model, "name": n})[1]
                                  for n in ("config.json", "model.safetensors", "tokenizer.json"))
    plain = json.loads(config)
    del plain["model_type"]
    made = engine.upload("model.import", {"id": "untyped"}, config=json.dumps(plain).encode(), weights=weights, tokenizer=tokenizer)
    assert made["additive"]["architecture"] == "additive"
    ask = {"prompt": "9", "max_tokens": 4, "temperature": 0}
    assert engine.generate({"model": "untyped", **ask})[0] == engine.generate({"model": model, **ask})[0]
    engine.call("model.delete", {"id": "untyped"})


def test_a_model_comes_back_from_its_own_files(engine, model):
    parts = {"config": "config.json", "weights": "model.safetensors", "tokenizer": "tokenizer.json"}
    data = {part: engine.download("model.file", {"id": model, "name": name})[1] for part, name in parts.items()}
    copy = engine.upload("model.import", {"id": "copy"}, **data)
    assert copy["id"] == "copy" and copy["additive"]["parameters"] == \
        engine.call("model.get", {"id": model})["additive"]["parameters"]
    ask = {"prompt": "99", "max_tokens": 12, "temperature": 0}
    assert engine.generate({"model": "copy", **ask})[0] == engine.generate({"model": model, **ask})[0]
    with pytest.raises(EngineError) as e:
        engine.upload("model.import", {"id": "copy"}, **data)
    assert (e.value.status, e.value.code) == (409, "model_exists")
    assert engine.call("model.get", {"id": "copy"})["additive"]["loaded"]
    assert not engine.call("model.unload", {"id": "copy"})["additive"]["loaded"]
    assert engine.call("model.load", {"id": "copy"})["additive"]["loaded"]
    assert engine.call("model.delete", {"id": "copy"}) == {"id": "copy", "object": "model", "deleted": True}
    assert refused(engine, "model.get", {"id": "copy"}).status == 404
    assert "copy" not in [m["id"] for m in engine.call("model.list")["data"]]


def test_a_model_that_is_not_whole_is_refused_and_leaves_nothing(daemon, engine, model):
    config = engine.download("model.file", {"id": model, "name": "config.json"})[1]
    weights = engine.download("model.file", {"id": model, "name": "model.safetensors"})[1]
    wrong = json.dumps({**json.loads(config), "vocab_size": 300}).encode()
    for parts in ({"config": config, "weights": weights[:-4]}, {"config": wrong, "weights": weights},
                  {"config": b"{", "weights": weights}, {"config": config}, {"weights": weights}, {"surprise": b"x"},
                  {"config": config, "weights": weights, "tokenizer": b'{"type":"nonsense"}'}):
        with pytest.raises(EngineError) as e:
            engine.upload("model.import", {"id": "broken"}, **parts)
        assert e.value.status == 400
    for name in ("../x", "additive", "", "ckpt-" + "0" * 24 + "-1", "x" * 64):
        with pytest.raises(EngineError):
            engine.upload("model.import", {"id": name}, config=config, weights=weights)
    assert refused(engine, "model.get", {"id": "broken"}).status == 404
    assert not any((daemon.folder / "tmp").iterdir())


def test_a_model_in_use_is_not_deleted(engine, model, session):
    s = session()
    e = refused(engine, "model.delete", {"id": model})
    assert (e.status, e.code) == (409, "model_in_use")
    engine.call("session.delete", {"id": s["id"]})
    call = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 100}, credit=1)
    call.next()
    assert refused(engine, "model.delete", {"id": model}).code == "model_in_use"
    assert refused(engine, "model.unload", {"id": model}).code == "model_in_use"
    call.cancel()
    with pytest.raises(EngineError):
        call.result()
    assert engine.call("model.get", {"id": model})["id"] == model


def test_files_are_kept_listed_and_removed(daemon, engine):
    data = bytes(range(256)) * 12000
    ids = [engine.add_file(data + bytes([i]), f"file {i}") for i in range(3)]
    one = engine.call("file.get", {"id": ids[0]})
    assert (one["bytes"], one["filename"], one["purpose"], one["object"]) == (len(data) + 1, "file 0", "fine-tune", "file")
    announced, content = engine.download("file.content", {"id": ids[2]})
    assert content == data + b"\2" and announced["bytes"] == len(content)
    assert announced["filename"] == "file 2"
    newest = engine.call("file.list", {"limit": 2})
    assert [f["id"] for f in newest["data"]] == [ids[2], ids[1]] and newest["has_more"]
    assert newest["last_id"] == ids[1]
    rest = engine.call("file.list", {"limit": 1, "after": ids[1]})
    assert [f["id"] for f in rest["data"]] == [ids[0]]
    assert refused(engine, "file.list", {"after": "file-none"}).status == 404
    for i in ids:
        assert engine.call("file.delete", {"id": i}) == {"id": i, "object": "file", "deleted": True}
        assert refused(engine, "file.get", {"id": i}).status == 404
        assert not (daemon.folder / "blobs" / i).exists()


def test_a_file_says_when_it_expires(engine):
    def keep(**expiry):
        return engine.upload("file.create", {"filename": "f", "purpose": "fine-tune", "expires_after": expiry}, file=b"x")

    kept = keep(anchor="created_at", seconds=3600)
    assert kept["expires_at"] == kept["created_at"] + 3600
    assert engine.call("file.get", {"id": kept["id"]}) == kept == engine.call("file.list", {"limit": 1})["data"][0]
    assert "expires_at" not in engine.call("file.get", {"id": engine.add_file("y")})
    for expiry, param in [({"seconds": 3600}, "anchor"), ({"anchor": "created_at"}, "seconds"), ({"anchor": "now", "seconds": 3600}, "anchor"),
                          ({"anchor": "created_at", "seconds": 3599}, "seconds"), ({"anchor": "created_at", "seconds": 2592001}, "seconds")]:
        with pytest.raises(EngineError) as e:
            keep(**expiry)
        assert (e.value.status, e.value.param) == (400, f"expires_after.{param}")


def test_an_empty_file_is_a_file(engine):
    i = engine.add_file(b"")
    assert engine.call("file.get", {"id": i})["bytes"] == 0
    assert engine.download("file.content", {"id": i})[1] == b""
    engine.call("file.delete", {"id": i})


# --- stopping ------------------------------------------------------------------------------

def test_sigterm_ends_streams_with_a_clear_error_and_exits_zero(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train(engine)
        job = engine.call("job.create", job_params(engine.add_file(TEXT), 100000))["id"]
        stream = engine.begin("completion.create", {"model": model, "prompt": "9", "max_tokens": 500}, credit=2)
        watch = engine.begin("job.watch", {"id": job}, credit=1 << 20)
        stream.next(), watch.next()
        engine.wait(lambda: engine.call("job.get", {"id": job})["additive"]["step"] > 10)
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < PATIENCE / 3
        for call in (stream, watch):
            with pytest.raises(EngineError) as e:
                call.result()
            assert (e.value.status, e.value.code) == (503, "shutting_down") and e.value.retry_after
    daemon.start()
    with daemon.connect() as engine:
        assert engine.call("job.get", {"id": job})["status"] == "running"
        engine.wait(lambda: any("continues from the checkpoint" in e["message"]
                                for e in engine.job_events(job)))
        engine.call("job.cancel", {"id": job})
    assert daemon.stop() == 0
