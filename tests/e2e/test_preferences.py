"""Preferences learned at a shell, and their measures as a table."""

import csv
import io
import json
import subprocess

from conftest import BIN


def additive(service, *args):
    return subprocess.run([BIN / "additive", "--url", service.url, *args], capture_output=True, text=True, timeout=120)


def test_the_command_line_learns_preferences_and_a_table_has_their_measures(service, model, tmp_path):
    lines = tmp_path / "preferences.jsonl"
    lines.write_text("".join(json.dumps({"prompt": f"{n}:", "chosen": " yes", "rejected": " no"}) + "\n" for n in range(40)))
    done = additive(service, "train", lines, "--model", model, "--objective", "preference", "--beta", "0.3", "--steps", "6", "--batch", "4")
    assert done.returncode == 0, done.stderr
    assert service.ok("GET", f"/v1/models/{done.stdout.split()[-1]}")["id"] == done.stdout.split()[-1]
    job = service.ok("GET", "/v1/fine_tuning/jobs?limit=1")["data"][0]
    assert job["method"]["type"] == "dpo" and job["additive"]["resolved"]["beta"] == 0.3
    table = list(csv.DictReader(io.StringIO(service.request("GET", f"/v1/fine_tuning/jobs/{job['id']}/metrics.csv")[1].decode())))
    for measure in ("accuracy", "margin", "chosen_reward", "rejected_reward"):
        assert float(table[-1][measure]) == job["additive"][measure], measure


def test_a_model_is_needed_and_named(service, tmp_path):
    lines = tmp_path / "preferences.jsonl"
    lines.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    done = additive(service, "train", lines, "--objective", "preference")
    assert done.returncode != 0 and "must be a model, not an architecture" in done.stderr, done.stderr
