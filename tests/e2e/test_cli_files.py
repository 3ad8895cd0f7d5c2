"""Files and training from the command line."""

import gzip
import hashlib
import json
import os
import subprocess
import time

from conftest import BIN, TEXT
from terminal import Terminal, additive

TRAIN = ("--steps", 2, "--hidden", 32, "--heads", 4, "--layers", 1, "--config", "window=64", "--sequence", 64, "--batch", 4)


def files(service):
    return {f["id"] for f in service.ok("GET", "/v1/files?limit=1000")["data"]}


def test_a_refused_job_leaves_no_file(service, tmp_path):
    before = files(service)
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("never seen before: " + TEXT)
    bad.write_bytes(b"\xff" * 5000)
    for words, why in (([good, "--heads", "5"], "--heads"), ([good, "--model", "nothing-here"], "nothing-here"),
                       ([bad], "(" + str(bad) + ")"), ([good, "--validation", bad], "(--validation)"),
                       ([good, "--validation", tmp_path / "none.txt"], "none.txt: No such file"),
                       ([tmp_path / "none.txt"], "none.txt: No such file"), ([tmp_path], "directory")):
        out = additive("train", *words, url=service.url)
        assert out.returncode == 1 and why in out.stderr, out.stderr
        assert files(service) == before, words


def test_an_unreadable_file_is_not_reported_as_uploaded(service, tmp_path):
    status, screen = Terminal("train", tmp_path / "none.txt", url=service.url).end()
    assert status == 1 and "cannot read" in screen and "uploading" not in screen


def test_a_text_is_uploaded_once(service, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT + "once")
    before = files(service)
    for _ in range(2):
        out = additive("train", corpus, *TRAIN, url=service.url)
        assert out.returncode == 0, out.stderr
    assert len(files(service) - before) == 1
    corpus.write_text(TEXT + "twice")
    assert additive("train", corpus, *TRAIN, url=service.url).returncode == 0
    assert len(files(service) - before) == 2


def test_several_texts_compressed_or_not_train_one_model_with_weights(service, tmp_path):
    plain, packed = tmp_path / "plain.txt", tmp_path / "packed.gz"
    plain.write_text(TEXT + "several")
    packed.write_bytes(gzip.compress((TEXT + "packed").encode()))
    before = files(service)
    for weights in ("1,0", "1,0.5,2"):
        out = additive("train", plain, packed, "--weights", weights, *TRAIN, url=service.url)
        assert out.returncode == 1 and "--weights" in out.stderr and files(service) == before
    out = additive("train", plain, packed, "--weights", "1,0.5", *TRAIN, url=service.url)
    assert out.returncode == 0, out.stderr
    assert len(files(service) - before) == 2
    assert additive("train", plain, "-", "-", *TRAIN, url=service.url, input="").returncode == 2


def test_a_file_is_uploaded_with_the_time_after_which_it_goes(service, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT + "going")
    before = files(service)
    for wanted, seconds in (("3600", 3600), ("36h", 129600), ("7d", 604800)):
        file = json.loads(additive("files", "upload", corpus, "--expires", wanted, "--json", url=service.url).stdout)
        assert file["expires_at"] - file["created_at"] == seconds
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(file["expires_at"]))
    (line,) = [row for row in additive("files", "list", url=service.url).stdout.splitlines() if row.startswith(file["id"])]
    assert shown in line and shown in additive("files", "show", file["id"], url=service.url).stdout
    assert "expires_at" not in json.loads(additive("files", "upload", corpus, "--json", url=service.url).stdout)
    known = files(service)
    for wanted, status, why in (("5m", 1, "3600"), ("31d", 1, "2592000"), ("soon", 2, "seconds")):
        out = additive("files", "upload", corpus, "--expires", wanted, url=service.url)
        assert out.returncode == status and why in out.stderr, out.stderr
    assert files(service) == known
    for id in known - before:
        service.ok("DELETE", f"/v1/files/{id}")


def test_the_statistics_of_a_file_are_shown_with_its_scripts(service, tmp_path):
    corpus = tmp_path / "lines.txt"
    corpus.write_text("one bottle\nмир\none bottle\n")
    file = json.loads(additive("files", "upload", corpus, "--json", url=service.url).stdout)["id"]
    shown = additive("files", "statistics", file, url=service.url)
    assert shown.returncode == 0 and shown.stdout.splitlines()[-3].split()[:2] == ["Latin", "18"], shown.stdout
    assert "SCRIPT" in shown.stdout and any(line.split() == ["documents", "3"] for line in shown.stdout.splitlines())
    assert json.loads(additive("files", "statistics", file, "--json", url=service.url).stdout) == service.ok("GET", f"/v1/files/{file}/statistics")
    refused = additive("files", "statistics", file, "--model", "none", url=service.url)
    assert refused.returncode == 1 and "none" in refused.stderr
    service.ok("DELETE", f"/v1/files/{file}")


def test_a_text_that_begins_like_json_is_trained_on_with_its_format(service, tmp_path):
    text = tmp_path / "braces.txt"
    text.write_text("{'so': it begins}\n" * 200)
    options = ("--hidden", "16", "--heads", "2", "--layers", "1", "--sequence", "16", "--steps", "1")
    refused = additive("train", text, *options, url=service.url)
    assert refused.returncode != 0 and "line 1, column 2" in refused.stderr and 'format "text"' in refused.stderr
    additive("train", text, *options, "--format", "text", "--detach", url=service.url)
    kept = [f for f in service.ok("GET", "/v1/files")["data"] if f["filename"] == "braces.txt"]
    assert [f["format"] for f in kept] == ["text"]  # refused uploads were removed
    other = json.loads(additive("files", "upload", text, "--format", "json", "--json", url=service.url).stdout)
    assert other["format"] == "json"


def test_a_file_says_its_hash_and_keeps_it(own_service):
    empty, abc = own_service.upload(""), own_service.upload("abc")
    known = {empty: "2d06800538d394c2", abc: "78af5f94892f3950"}  # XXH3-64, its reference implementation's
    own_service.kill_engine()
    assert {f["id"]: f["xxh3"] for f in own_service.ok("GET", "/v1/files")["data"]} == known
    assert own_service.ok("GET", f"/v1/files/{abc}")["xxh3"] == known[abc]


def test_a_file_has_the_checksum_that_its_client_names_or_is_not_kept(own_service):
    boundary, sums = "x-x", {"good": hashlib.sha256(b"abc").hexdigest(), "bad": hashlib.sha256(b"abd").hexdigest()}

    def post(checksum):
        fields = "".join(f'--{boundary}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in
                         (("purpose", "fine-tune"), ("checksum", checksum)))
        body = fields + f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--{boundary}--\r\n'
        return own_service.request("POST", "/v1/files", body.encode(), headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})

    for checksum in (sums["good"], "sha256:" + sums["good"].upper()):
        status, file, _ = post(checksum)
        assert status == 200 and file["sha256"] == sums["good"]
    known = files(own_service)
    for checksum in (sums["bad"], "abc", sums["good"] + "0", "md5:" + sums["good"]):
        status, answer, _ = post(checksum)
        assert (status, answer["error"]["param"]) == (400, "checksum")
    assert sums["good"] in post(sums["bad"])[1]["error"]["message"] and files(own_service) == known
    own_service.kill_engine()
    assert own_service.ok("GET", f"/v1/files/{file['id']}")["sha256"] == sums["good"]




def test_a_text_can_come_from_a_pipe(service, tmp_path):
    out = additive("train", "-", *TRAIN, "--json", url=service.url, input=TEXT + "piped")
    assert out.returncode == 0, out.stderr
    job = json.loads(out.stdout.splitlines()[-1])
    file = service.ok("GET", f"/v1/files/{job['training_file']}")
    assert file["filename"] == "stdin" and file["bytes"] == len(TEXT) + 5
    uploaded = additive("files", "upload", "-", "--json", url=service.url, input=TEXT + "piped")
    assert json.loads(uploaded.stdout)["xxh3"] == file["xxh3"]
    service.ok("DELETE", f"/v1/files/{json.loads(uploaded.stdout)['id']}")
    again = subprocess.run(["bash", "-c", 'exec "$0" train <(cat) "${@}"', BIN / "additive", *map(str, TRAIN), "--json"],
                           input=TEXT + "piped", capture_output=True, text=True, timeout=60,
                           env={**os.environ, "ADDITIVE_URL": service.url})
    assert json.loads(again.stdout.splitlines()[-1])["training_file"] == job["training_file"]
