"""Models that the command line pushes and pulls."""

import hashlib
import http.server
import json
import tarfile
import threading

from terminal import additive, help_of


def test_a_model_is_pushed_and_pulled_as_a_folder(service, model, tmp_path):
    model_folder = tmp_path / "a-copy"
    assert additive("models", "pull", model, model_folder, url=service.url).returncode == 0
    (model_folder / "notes.md").write_text("not a model's")
    (model_folder / "generation_config.json").write_text("{}")
    assert additive("models", "push", model_folder, url=service.url).returncode == 0
    out = additive("models", "pull", model_folder.name, tmp_path / "back", url=service.url)
    assert out.returncode == 0 and "files of a-copy, " in out.stderr and f"are in {tmp_path / 'back'}" in out.stderr
    assert additive("models", "pull", model_folder.name, tmp_path / "back", "--json", url=service.url).stderr == ""
    card = {"README.md", "model_card.json"}
    kept = {f.name: f.read_bytes() for f in model_folder.iterdir() if f.name not in {"notes.md", *card}}
    back = {f.name: f.read_bytes() for f in (tmp_path / "back").iterdir()}
    assert back.keys() == kept.keys() | card and {k: back[k] for k in kept} == kept
    assert json.loads(back["model_card.json"])["parents"][0] == {"model": model, "relation": "imported from"}
    assert json.loads(additive("models", "card", model_folder.name, "--json", url=service.url).stdout)["parents"][0]["model"] == model
    listed = service.ok("GET", f"/v1/models/{model_folder.name}/files")["data"]
    assert {f["name"]: f["sha256"] for f in listed} == {k: hashlib.sha256(v).hexdigest() for k, v in back.items()}
    with tarfile.open(tmp_path / "packed.tar", "w") as t:
        t.add(model_folder, "anything")
    out = additive("models", "push", tmp_path / "packed.tar", "--json", url=service.url)
    assert json.loads(out.stdout)["id"] == "packed"
    (model_folder / "SHA256SUMS").write_text(f"{'0' * 64}  config.json\n")
    out = additive("models", "push", model_folder, "second", url=service.url)
    assert out.returncode == 1 and "config.json has the SHA-256" in out.stderr
    for command in (["push", tmp_path / "none"], ["pull", "none", tmp_path / "none"]):
        assert additive("models", *command, url=service.url).returncode == 1
    assert not (tmp_path / "none").exists()


def tensors_of(data):
    header = int.from_bytes(data[:8], "little")
    named = json.loads(data[8 : 8 + header])
    return {k: (v["dtype"], v["shape"], data[8 + header + v["data_offsets"][0] : 8 + header + v["data_offsets"][1]]) for k, v in named.items() if k != "__metadata__"}


def file_of(tensors):
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values())


def test_shards_are_pulled_as_one_file_as_the_help_says(service, model, tmp_path):
    folder, back = tmp_path / "sharded", tmp_path / "back"
    assert additive("models", "pull", model, folder, url=service.url).returncode == 0
    whole = folder / "model.safetensors"
    tensors, weight_map = tensors_of(whole.read_bytes()), {}
    for i in range(2):
        name = f"model-{i + 1:05}-of-00002.safetensors"
        part = {k: tensors[k] for k in sorted(tensors)[i::2]}
        (folder / name).write_bytes(file_of(part))
        weight_map |= dict.fromkeys(part, name)
    whole.unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for command in (("push", folder), ("pull", folder.name, back)):
        out = additive("models", *command, url=service.url)
        assert out.returncode == 0, out.stderr
    assert tensors_of((back / "model.safetensors").read_bytes()) == tensors
    others = {f.name: f.read_bytes() for f in folder.iterdir() if not f.name.startswith(("model", "README"))}
    assert {f.name: f.read_bytes() for f in back.iterdir() if not f.name.startswith(("model", "README"))} == others
    assert "Weights in shards are stored, and pulled, as one model.safetensors." in " ".join(help_of("additive", "models", "push").split())


def test_what_is_pulled_is_whole_or_absent(tmp_path):
    class Liar(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"{}" if self.path.endswith("config.json") else json.dumps({"object": "list", "data": [
                {"object": "model.file", "name": "config.json", "bytes": 2, "sha256": "0" * 64}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        out = additive("models", "pull", "m", tmp_path / "m", url=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert out.returncode == 1 and "SHA-256" in out.stderr and not list((tmp_path / "m").iterdir())
