"""Adapters that the command line lists, pushes and pulls."""

import json
import tarfile

import pytest

from terminal import additive


def made(service, model, adapter):
    body = {"model": model, "training_file": service.upload("9 sheep went over the fence. " * 200), "seed": 1,
            "method": {"type": "adapter", "adapter": adapter}, "additive": {"sequence_length": 32, "batch_size": 4, "max_steps": 20}}
    done = service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", body)["id"])
    assert done["status"] == "succeeded", done
    return done["additive"]["adapter"]


@pytest.mark.parametrize("kind", [{"kind": "state"}, {"kind": "lora", "rank": 2}], ids=["state", "lora"])
def test_an_adapter_is_pulled_and_pushed(service, model, kind, tmp_path):
    def run(*words, **kw):
        out = additive(*words, url=service.url, **kw)
        assert out.returncode == 0, out.stderr
        return out.stdout

    def say(adapter=None):
        return run("generate", "9", "--model", model, "--max-tokens", "12", "--temperature", "0", *(["--adapter", adapter] if adapter else []))

    adapter = made(service, model, kind)
    assert adapter in run("adapters", "list") and json.loads(run("adapters", "show", adapter, "--json"))["kind"] == kind["kind"]
    suffix = "tar" if kind["kind"] == "lora" else "safetensors"
    run("adapters", "pull", adapter, tmp_path / f"a.{suffix}")
    run("adapters", "pull", adapter, cwd=tmp_path)
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"{adapter}.{suffix}").read_bytes()
    folder = tmp_path / "folder"
    folder.mkdir()
    if suffix == "tar":
        with tarfile.open(tmp_path / "a.tar") as archive:
            for name in archive.getnames():
                (folder / name).write_bytes(archive.extractfile(name).read())
    else:
        (folder / "adapter.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())
    (tmp_path / "unnamed").write_bytes((tmp_path / f"a.{suffix}").read_bytes())
    (folder / "README.md").write_text("not an adapter's")
    for path in (tmp_path / f"a.{suffix}", tmp_path / "unnamed", folder):
        again = json.loads(run("adapters", "push", path, "--model", model, "--json"))
        assert again["base"] == model and again["id"] != adapter and say(again["id"]) == say(adapter)
        run("adapters", "delete", again["id"])
        assert again["id"] not in run("adapters", "list")
    state = tmp_path / "state.bin"
    session = json.loads(run("sessions", "new", "--model", model, "--adapter", adapter, "--json"))["id"]
    run("sessions", "export", session, state)
    assert json.loads(run("sessions", "restore", "--model", model, "--adapter", adapter, state, "--json"))["adapter"] == adapter
    for words, text in ((["push", tmp_path / "none", "--model", model], "cannot read"), (["push", tmp_path, "--model", model], "has no adapter"),
                        (["push", folder], "--model"), (["delete", adapter], "a session uses it")):
        out = additive("adapters", *words, url=service.url)
        assert out.returncode != 0 and text in out.stderr, out.stderr
    out = additive("generate", "9", "--model", model, "--adapter", adapter[:-1], url=service.url)
    assert out.stderr == f'additive: there is no adapter "{adapter[:-1]}" (did you mean {adapter}?)\n'


def test_training_prints_the_id_of_the_adapter(service, model, tmp_path):
    text = tmp_path / "sheep.txt"
    text.write_text("9 sheep went over the fence. " * 200)
    common = [text, "--model", model, "--steps", "3", "--sequence", "32", "--batch", "4"]
    for words, expected in ((["--adapter", "state"], {"kind": "state"}), (["--adapter", "lora", "--lora-rank", "2", "--lora-alpha", "4", "--lora-targets", "Wquery,Wkeys"],
                                                                           {"kind": "lora", "rank": 2, "alpha": 4.0, "targets": ["Wquery", "Wkeys"]})):
        out = additive("train", *common, *words, url=service.url)
        assert out.returncode == 0, out.stderr
        shown = service.ok("GET", f"/v1/adapters/{out.stdout.strip()}")
        assert {k: shown[k] for k in expected} == expected and shown["base"] == model
    for words, named in ((["--adapter", "none"], "--adapter"), (["--lora-rank", "2"], "--adapter"), (["--adapter", "lora", "--lora-rank", "0"], "--lora-rank")):
        out = additive("train", *common, *words, url=service.url)
        assert out.returncode != 0 and named in out.stderr, out.stderr


def test_a_form_without_its_parts_is_refused_by_name(service, model):
    def post(*parts):
        body = b"".join(b"--x\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + data + b"\r\n" for head, data in parts) + b"--x--\r\n"
        status, answer, _ = service.request("POST", "/v1/adapters", body, headers={"Content-Type": "multipart/form-data; boundary=x"})
        return status, answer.get("error", {}).get("param")

    named = b'name="model"', model.encode()
    file = b'name="file"; filename="adapter.safetensors"', b"no tensors"
    assert post(named) == (400, "file")
    assert post(file) == (400, "model")
    assert post((b'name="model"', b"ft:none"), file) == (404, "model")
    assert post(named, file)[0] == 400 and post(named, (b'name="file"; filename="notes.txt"', b"x")) == (400, "file")
