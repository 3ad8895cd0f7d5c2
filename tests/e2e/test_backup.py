"""A restored backup of a working service continues from the service's state."""

import json
import shutil
import subprocess
import threading
import time

import pytest

from conftest import BIN, TEXT, Service

ASK = {"max_tokens": 4, "temperature": 0}
STEPS = 400


def additive(*arguments, status=0):
    done = subprocess.run([BIN / "additive", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout


def report(*arguments, status=0):
    return json.loads(additive(*arguments, "--json", status=status))


def weights(service, model):
    return service.request("GET", f"/v1/models/{model}/files/model.safetensors")[1]


class Talker(threading.Thread):
    """Generates in one durable session, again and again, and notes how far it had come when each answer arrived."""

    def __init__(self, service, model, prompt):
        super().__init__(daemon=True)
        self.service, self.prompt, self.texts, self.stopping, self.failure = service, prompt, [], False, None
        self.id = service.ok("POST", "/v1/sessions", {"model": model, "prompt": prompt, "durable": True,
                                                      "position_policy": "wrap"})["id"]

    def run(self):
        try:
            while not self.stopping:
                answer = self.service.ok("POST", f"/v1/sessions/{self.id}/generate", ASK)
                self.texts.append(answer["choices"][0]["text"])
        except Exception as failure:  # noqa: BLE001: shown by the test
            self.failure = failure


def tokens_of(service, session):
    return service.ok("GET", f"/v1/sessions/{session}")["tokens"]


def continues_right(restored, talker, first, last):
    """The session is at one of the answers given during the backup, and continues as the original did."""
    tokens = tokens_of(restored, talker.id) - talker.prompt_tokens
    assert tokens % ASK["max_tokens"] == 0, tokens
    n = tokens // ASK["max_tokens"]
    assert first <= n <= last, (first, n, last)
    for expected in talker.texts[n:n + 3]:
        assert restored.ok("POST", f"/v1/sessions/{talker.id}/generate", ASK)["choices"][0]["text"] == expected


def test_a_restored_backup_of_a_busy_service_continues_where_it_was(tmp_path):
    service = Service(tmp_path / "data")
    try:
        calm = service.wait_job(service.job(steps=STEPS, checkpoint_every=20)["id"])
        model = calm["fine_tuned_model"]
        answer = service.ok("POST", "/v1/completions", {"model": model, "prompt": "9 bottles", **ASK})["choices"]
        talkers = [Talker(service, model, f"{i} bottles of ") for i in range(3)]
        for t in talkers:
            t.prompt_tokens = tokens_of(service, t.id)
            t.start()
        job = service.job(steps=STEPS, checkpoint_every=20)["id"]
        moments = []
        for i in range(3):
            while not (service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"] or 0) >= 60 * (i + 1):
                time.sleep(0.01)
            first = [len(t.texts) for t in talkers]
            made = report("backup", tmp_path / f"backup{i}", "--data", service.data)
            last = [len(t.texts) + 1 for t in talkers]
            assert made["damaged"] == [] and made["objects"]["session"] == 3
            moments.append((first, last))
        time.sleep(0.3)
        for t in talkers:
            t.stopping = True
            t.join()
            assert t.failure is None, t.failure
        trained = weights(service, calm["fine_tuned_model"])
    finally:
        assert service.stop() == 0
    for i, (first, last) in enumerate(moments):
        data = tmp_path / f"restored{i}"
        restored = report("restore", tmp_path / f"backup{i}", "--data", data)
        assert restored["damaged"] == []
        service = Service(data)
        try:
            for k, t in enumerate(talkers):
                continues_right(service, t, first[k], last[k])
            assert service.ok("POST", "/v1/completions", {"model": model, "prompt": "9 bottles", **ASK})["choices"] == answer
            done = service.wait_job(job)
            assert done["status"] == "succeeded" and done["additive"]["step"] == STEPS
            assert weights(service, done["fine_tuned_model"]) == trained
        finally:
            assert service.stop() == 0
        assert report("fsck", "--data", data)["clean"]
        shutil.rmtree(data)


@pytest.fixture
def stopped(tmp_path):
    """A data folder with a file and a model, and no engine."""
    service = Service(tmp_path / "data")
    file = service.upload(TEXT)
    model = service.wait_job(service.job(steps=3)["id"])["fine_tuned_model"]
    assert service.stop() == 0
    return service.data, file, model


def test_damage_is_named_by_backup_restore_and_fsck(stopped, tmp_path):
    data, file, model = stopped
    assert "clean" in additive("fsck", "--data", data)
    blob = data / "models" / model / "model.safetensors"
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)
    damaged = [{"kind": "model", "id": model}]

    def named(found):
        return [{k: one[k] for k in ("kind", "id")} for one in found["damaged"]]

    assert named(report("fsck", "--data", data, status=1)) == damaged
    assert named(report("backup", tmp_path / "backup", "--data", data, status=1)) == damaged
    assert named(report("restore", tmp_path / "backup", "--data", tmp_path / "restored", status=1)) == damaged
    assert not (tmp_path / "restored").exists()
    words = additive("restore", tmp_path / "backup", "--data", tmp_path / "restored", "--partial", status=1)
    assert model in words and "restored:" in words
    service = Service(tmp_path / "restored")
    try:
        assert service.request("GET", f"/v1/files/{file}/content")[1].decode() == TEXT
    finally:
        service.stop()


def test_rows_missing_from_an_older_ledger_come_back(stopped):
    data, file, model = stopped
    older = (data / "ledger.sqlite").read_bytes()
    service = Service(data)
    newer = service.upload("newer", "newer.txt")
    conflict = subprocess.run([BIN / "additive", "fsck", "--data", data, "--adopt", f"file/{newer}"], capture_output=True, text=True)
    assert conflict.returncode == 2 and "stop it first" in conflict.stderr
    assert service.stop() == 0
    (data / "ledger.sqlite").write_bytes(older)
    for log in data.glob("ledger.sqlite-*"):
        log.unlink()
    assert "without a row" in additive("fsck", "--data", data, status=1)
    service = Service(data)
    assert service.request("GET", f"/v1/files/{newer}/content")[0] == 404
    assert service.stop() == 0
    assert f"lost: file/{newer}" in additive("fsck", "--data", data)
    assert "clean" in additive("fsck", "--data", data, "--adopt", f"file/{newer}")
    service = Service(data)
    assert service.request("GET", f"/v1/files/{newer}/content")[1] == b"newer"
    assert service.stop() == 0


def test_a_lost_ledger_is_rebuilt_by_a_command(stopped):
    data, file, model = stopped
    for part in data.glob("ledger.sqlite*"):
        part.unlink()
    additive("serve", "--data", data, status=1)
    additive("fsck", "--data", data, status=1)
    assert "clean" in additive("fsck", "--data", data, "--rebuild")
    service = Service(data)
    assert service.ok("POST", "/v1/completions", {"model": model, "prompt": "9", **ASK})["choices"]
    assert service.stop() == 0


@pytest.mark.parametrize("arguments", [["backup"], ["backup", "to"], ["restore", "--data", "x"], ["fsck"], ["fsck", "--data", "x", "more"],
                                       ["fsck", "--data", "x", "--copy"], ["backup", "--data", "no-such-folder", "to"]])
def test_wrong_usage_ends_with_status_2_and_makes_nothing(arguments, tmp_path):
    for program in ("additive", "additived"):
        done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr, (program, done)
    assert list(tmp_path.iterdir()) == []
