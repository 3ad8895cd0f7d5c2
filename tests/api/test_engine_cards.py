"""additived: the card of a model, which stays with it."""

import io
import json
import re
import tarfile
import time

import pytest
import yaml

from engine_client import TEXT, EngineError, daemon, engine, job_params, own_daemon
from explanation_samples import HOSTILE

NAMES = [name for name in HOSTILE if name] + ["# x", "\n# x\n", "\r# x", "`", "``", "a`b``c", "```\nx", "~~~\nx", "|", "[x](y)", "![x](y)", "---", "\n---\n", "\\", "\\`", " ` ", "  ", "a\n\nb",
                                              "*x*", "<!--", "- x", "\t- x", "www.planted.invalid", "a@planted.invalid", "&lt;", "\u202ex", "null", "x" * 255]


def card(engine, model):
    return engine.call("model.card", {"id": model})


def file_of(engine, model, name):
    return engine.download("model.file", {"id": model, "name": name})[1]


def front_matter(page):
    return yaml.safe_load(page.decode().split("---\n", 2)[1])


def trained(engine, model=None, file=None, **more):
    file = file or engine.upload("file.create", {"filename": "a|b.txt", "purpose": "fine-tune"}, file=TEXT.encode())
    params = job_params(file["id"], 4) | more
    if model:
        params["model"] = model
        del params["additive"]["config"]
    done = engine.wait_job(engine.call("job.create", params)["id"])
    assert done["status"] == "succeeded", done
    return done, file


def sent(x):
    """A document of a file as frames have it, with 9 digits of each number."""
    return json.loads(json.dumps(x), parse_float=lambda text: float(f"{float(text):.9g}"))


def exported(engine, model):
    return {f["name"]: file_of(engine, model, f["name"]) for f in engine.call("model.files", {"id": model})["data"]}


def test_a_card_stays_when_job_and_file_are_deleted(engine):
    job, file = trained(engine, suffix="demo")
    model = job["fine_tuned_model"]
    before = card(engine, model)
    assert (before["id"], before["source"], before["parents"], before["license"], before["origin"]) == (model, "training", [], None, None)
    assert before["job"] == {"id": job["id"], "created_at": job["created_at"]}
    assert before["files"] == [{"use": "training", **{k: file[k] for k in ("id", "filename", "bytes", "sha256")}}]
    assert before["recipe"] == job["additive"]["recipe"] and before["resolved"] == job["additive"]["resolved"]
    assert before["resolved"]["seed"] == job["seed"] and before["results"]["tokens"] == job["trained_tokens"] > 0
    shown = set(before["results"]) - {"tokens"}
    assert {"step", "train_loss", "valid_loss", "bits_per_byte"} <= shown
    assert {k: before["results"][k] for k in shown} == {k: job["additive"][k] for k in shown}
    engine.call("job.delete", {"id": job["id"]})
    engine.call("file.delete", {"id": file["id"]})
    assert card(engine, model) == before


def test_card_and_page_are_files_of_the_model(engine):
    job, file = trained(engine)
    model = job["fine_tuned_model"]
    files = exported(engine, model)
    page = files["README.md"]
    assert front_matter(page) == {"library_name": "additive"}
    assert f"- training: ` a|b.txt `, {file['bytes']} bytes, SHA-256 `{file['sha256']}`\n" in page.decode()
    assert sent({**json.loads(files["model_card.json"]), "evaluations": []}) == card(engine, model)
    assert "LICENSE" not in files


def test_a_model_that_is_trained_from_another_has_it_as_parent(engine):
    first = trained(engine)[0]["fine_tuned_model"]
    engine.upload("model.import", {"id": "base-1"}, file={k: v for k, v in exported(engine, first).items() if k not in ("README.md", "model_card.json")})
    second = trained(engine, "base-1")[0]["fine_tuned_model"]
    third = trained(engine, second)[0]["fine_tuned_model"]
    assert card(engine, third)["parents"] == [{"model": m, "relation": "trained from"} for m in (second, "base-1")]
    assert front_matter(file_of(engine, second, "README.md"))["base_model"] == "base-1"
    assert "base_model" not in front_matter(file_of(engine, third, "README.md"))  # "ft:…" is no id of the Hub
    engine.call("model.delete", {"id": second})
    assert [p["model"] for p in card(engine, third)["parents"]] == [second, "base-1"]


def test_evaluations_of_the_model_are_on_its_card(engine):
    model = trained(engine)[0]["fine_tuned_model"]
    file = engine.add_file(TEXT[:2000])
    made = [engine.call("evaluation.create", {"model": model, "file": file})["id"] for _ in range(2)]
    get = lambda id: engine.call("evaluation.get", {"id": id})
    done = [engine.wait(lambda: (lambda e: e if e["status"] == "succeeded" else None)(get(id))) for id in made]
    assert card(engine, model)["evaluations"] == [
        {"id": e["id"], "created_at": e["created_at"], "file": file,
         **{k: e["result"][k] for k in ("tokens", "bytes", "nats_per_token", "perplexity", "bits_per_byte", "accuracy")}} for e in reversed(done)]
    assert card(engine, trained(engine)[0]["fine_tuned_model"])["evaluations"] == []


def test_a_new_model_with_the_id_of_a_deleted_one_has_none_of_its_evaluations(engine):
    files = exported(engine, trained(engine)[0]["fine_tuned_model"])
    engine.upload("model.import", {"id": "same"}, file=files)
    made = engine.call("evaluation.create", {"model": "same", "file": engine.add_file(TEXT[:2000])})["id"]
    done = engine.wait(lambda: (lambda e: e if e["status"] == "succeeded" else None)(engine.call("evaluation.get", {"id": made})))
    assert [e["id"] for e in card(engine, "same")["evaluations"]] == [made]
    engine.call("model.delete", {"id": "same"})
    engine.wait(lambda: time.time() >= done["created_at"] + 1)  # times are seconds
    engine.upload("model.import", {"id": "same"}, file=files)
    assert card(engine, "same")["evaluations"] == []


def test_a_card_that_would_be_too_large_loses_its_largest_members(engine):
    files = {k: v for k, v in exported(engine, trained(engine)[0]["fine_tuned_model"]).items() if k not in ("README.md", "model_card.json")}
    license = b"\x01" * 174640  # 6 bytes each in JSON
    made = engine.upload("model.import", {"id": "large"}, file={**files, "LICENSE": license})["id"]
    child = trained(engine, made)[0]["fine_tuned_model"]
    assert card(engine, made)["license"] == license.decode() and card(engine, child)["recipe"] is None
    assert file_of(engine, child, "LICENSE") == license
    again = engine.upload("model.import", {"id": "again"}, file=exported(engine, child))["id"]
    assert card(engine, again)["origin"] is None and file_of(engine, again, "LICENSE") == license
    assert [p["model"] for p in card(engine, again)["parents"]] == [child, made]


def test_an_import_has_its_files_its_licence_and_the_exported_model(engine):
    first = trained(engine)[0]["fine_tuned_model"]
    files = exported(engine, first)
    made = engine.upload("model.import", {"id": "licensed"}, file={**files, "LICENSE": b"Do as you like.\n"})["id"]
    got = card(engine, made)
    listed = {f["name"]: f for f in engine.call("model.files", {"id": made})["data"]}
    assert (got["source"], got["license"], got["job"], got["results"]) == ("import", "Do as you like.\n", None, None)
    assert got["origin"] == sent(json.loads(files["model_card.json"]))
    assert got["parents"] == [{"model": first, "relation": "imported from"}]
    assert {(f["filename"], f["bytes"], f["sha256"]) for f in got["files"]} == \
        {(n, f["bytes"], f["sha256"]) for n, f in listed.items() if n not in ("README.md", "model_card.json")}
    assert file_of(engine, made, "LICENSE") == b"Do as you like.\n"
    child = trained(engine, made)[0]["fine_tuned_model"]
    assert card(engine, child)["license"] == "Do as you like.\n" and file_of(engine, child, "LICENSE") == b"Do as you like.\n"
    assert [p["model"] for p in card(engine, child)["parents"]] == [made, first]
    assert front_matter(file_of(engine, child, "README.md")) == {
        "library_name": "additive", "base_model": made, "license": "other", "license_name": "license-file", "license_link": "LICENSE"}


def test_an_import_without_a_card_keeps_its_page_and_a_wrong_card_is_refused(engine):
    files = {k: v for k, v in exported(engine, trained(engine)[0]["fine_tuned_model"]).items() if k not in ("README.md", "model_card.json")}
    made = engine.upload("model.import", {"id": "theirs"}, file={**files, "README.md": b"# theirs\n"})["id"]
    assert file_of(engine, made, "README.md") == b"# theirs\n" and card(engine, made)["parents"] == []
    for name, data, status in (("model_card.json", b"[]", 400), ("LICENSE", b"x" * (1 << 19), 413), ("model_card.json", b"{" + b" " * (1 << 20), 413)):
        with pytest.raises(EngineError) as e:
            engine.upload("model.import", {"id": "wrong"}, file={**files, name: data})
        assert e.value.status == status and name in f"{e.value.param} {e.value.message}"


def archive(*files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_a_page_or_licence_does_not_decide_which_folder_of_an_archive_is_read(daemon, engine):
    files = {k: v for k, v in exported(engine, trained(engine)[0]["fine_tuned_model"]).items() if k not in ("README.md", "model_card.json")}
    model = [("m/" + k, v) for k, v in files.items()]
    above, below, beside = ("README.md", b"above"), ("m/x/LICENSE", b"below"), ("n/LICENSE", b"beside")
    own = [("m/LICENSE", b"own"), ("m/README.md", b"own")]
    deeper = [("m/docs/README.md", b"docs"), ("m/onnx/config.json", b"{}"), ("m/onnx/README.md", b"x" * (5 << 20))]
    for n, members in enumerate(([above, below, beside, *own, *model], [*own, *model, above, below, beside], [above, *own, *model, beside], [*own, *deeper, *model], [*deeper, *own, *model],
                                 [*own, *model, *deeper])):
        made = engine.upload("model.import", {"id": f"archive-{n}"}, archive=archive(*members))["id"]
        assert file_of(engine, made, "README.md") == file_of(engine, made, "LICENSE") == b"own"
        assert card(engine, made)["license"] == "own"
    assert not any((daemon.folder / "tmp").iterdir())
    for members, status in (([*model, ("m/README.md", b"x" * (5 << 20))], 413), ([*own, *own, *model], 400)):
        with pytest.raises(EngineError) as e:
            engine.upload("model.import", {"id": "wrong"}, archive=archive(*members))
        assert e.value.status == status and (e.value.param or "") in "README.md LICENSE"
    with pytest.raises(EngineError) as e:
        engine.upload("model.import", {"id": "wrong"}, archive=archive(above, beside))
    assert e.value.status == 400 and "none of the expected files" in e.value.message


# --- hostile texts -----------------------------------------------------------------------------


def skeleton(page):
    """The lines of a page without the contents of its code spans and code blocks, and these contents (CommonMark 0.31, 4.5 and 6.1)."""
    lines, spans, fence = [], [], 0
    for line in re.split(r"\r\n|\r|\n", page):
        opened = re.fullmatch(r" {0,3}(`{3,})[^`]*", line)
        if fence:
            fence = 0 if re.fullmatch(" {0,3}`{%d,} *" % fence, line) else fence
        elif opened:
            fence = len(opened[1])
            lines.append("block")
        else:
            def take(found):
                text = found[2]
                spans.append(text[1:-1] if text[0] == text[-1] == " " and text.strip(" ") else text)
                return "span"
            lines.append(re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", take, line))
    assert not fence
    return lines, spans


def test_hostile_texts_change_neither_the_page_nor_its_front_matter(engine):
    def made(names, suffix):
        files = [engine.upload("file.create", {"filename": name, "purpose": "fine-tune"}, file=TEXT.encode())["id"] for name in names]
        params = job_params(files[0], 2) | {"suffix": suffix, "metadata": {f"k{i}": name for i, name in enumerate(names[:16])}}
        params["additive"]["training_files"] = [{"file": f} for f in files]
        done = engine.wait_job(engine.call("job.create", params)["id"])
        assert done["status"] == "succeeded", done
        model = done["fine_tuned_model"]
        assert [f["filename"] for f in card(engine, model)["files"]] == names
        return file_of(engine, model, "README.md").decode()

    plain = made([f"name-{i}" for i in range(len(NAMES))], "plain")
    hostile = made(NAMES, "`\n# x")
    (lines, spans), (expected, _) = skeleton(hostile), skeleton(plain)
    assert lines == expected and len(lines) > len(NAMES)
    shown = [re.sub(r"[\x00-\x1f\x7f]", " ", name) for name in NAMES]
    assert [s for s in spans if not re.fullmatch("[0-9a-f]{64}", s)][-len(NAMES):] == shown
    assert front_matter(hostile.encode()) == front_matter(plain.encode()) == {"library_name": "additive"}


# --- checkpoints; crashes -------------------------------------------------------


def test_a_checkpoint_has_the_card_of_its_job_with_its_own_results(engine):
    job, file = trained(engine)
    row = engine.call("job.checkpoints", {"id": job["id"]})["data"][0]
    got, whole = (card(engine, m) for m in (row["fine_tuned_model_checkpoint"], job["fine_tuned_model"]))
    assert got == {**whole, "id": row["id"], "results": row["metrics"]}
    child = trained(engine, row["id"])[0]["fine_tuned_model"]
    assert [p["model"] for p in card(engine, child)["parents"]] == [row["id"]]
    with pytest.raises(EngineError) as e:
        card(engine, "none")
    assert (e.value.status, e.value.param) == (404, "model")


def test_a_card_survives_kill_9_and_its_damage_is_noticed(own_daemon):
    d = own_daemon()
    with d.connect() as engine:
        job, _ = trained(engine)
        model = job["fine_tuned_model"]
        before = card(engine, model)
    d.kill()
    d = own_daemon()
    with d.connect() as engine:
        assert card(engine, model) == before
        (d.folder / "models" / model / "model_card.json").write_bytes(b"{}")
        with pytest.raises(EngineError) as e:
            card(engine, model)
        assert (e.value.status, e.value.code) == (500, "storage_error") and "model_card.json" in e.value.message
        assert "model_card.json" in d.log.read_text()
    d.stop()
