"""The command line as a user sees it: help, errors, tables, and what runs."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import yaml
from conftest import BIN, TEXT, Service
from terminal import Terminal, additive, help_of, widest


def options_in(text):
    return set(re.findall(r"^  --([a-z-]+)", text, re.M))


def test_the_help_has_the_fields_of_the_contract_with_their_words_and_defaults():
    properties = yaml.load((Path(__file__).parents[2] / "proto/openapi.yaml").read_text(), Loader=yaml.CSafeLoader)["components"]["schemas"]["CompletionRequest"]["properties"]
    named = {name: re.match(r"--([a-z-]+)", node["x-option"]) for name, node in properties.items() if "x-option" in node}
    wanted = {given[1] if given else name.replace("_", "-") for name, given in named.items()}
    assert len(wanted) > 8 and "no-special" in wanted and wanted <= options_in(help_of("additive", "generate"))
    training = " ".join(help_of("additive", "train").split())
    assert "--weight-decay X weight decay of the optimiser; of normalized_sgd 0 unless given (0.01)" in training
    assert "--schedule NAME schedule by which the rate falls to 0 after the warm-up: linear, cosine, constant, cosine_with_restarts, tail or range_test (linear)" in training


def test_the_help_fits_80_columns():
    for program in (["additive", "train"], ["additive", "generate"], ["additive", "serve"], ["additive", "models", "push"], ["additived"],
                    ["additive-httpd"], ["additive-eval"]):
        lines = help_of(*program).splitlines()
        assert len(lines) > 10 and [line for line in lines if len(line) > 80] == []
    for listed in (additive("help").stdout, additive("jobs", "--help").stdout):
        assert len(listed.splitlines()) > 5 and [line for line in listed.splitlines() if len(line.rstrip()) != len(line) or len(line) > 80] == []


# --- additive serve ---------------------------------------------------------------------------


def test_serve_takes_every_option_of_the_programs_that_it_starts():
    own = {"socket", "allow-remote", "engine", "health-check", "require-backend", "version", "man"}  # serve sets these, or has its own
    wanted = (options_in(help_of("additived")) | options_in(help_of("additive-httpd"))) - own
    assert "stall-timeout" in wanted and "max-models" in wanted
    assert wanted <= options_in(help_of("additive", "serve"))


def test_serve_hands_each_option_to_its_program(tmp_path):
    service = Service(tmp_path / "data", "--max-models", "2", "--stall-timeout", "7.5", "--grace=1", "--access-log")
    lines = {name: open(f"/proc/{service.child(name)}/cmdline").read().split("\0")
             for name in ("additived", "additive-httpd")}
    assert service.stop() == 0
    assert "--max-models=2" in lines["additived"] and "--access-log" not in lines["additived"]
    assert {"--stall-timeout=7.5", "--grace=1", "--access-log"} <= set(lines["additive-httpd"])
    assert not any(a.startswith("--max-models") for a in lines["additive-httpd"])


def test_serve_leaves_a_data_folder_in_use_alone_and_names_the_process_that_has_it(own_service):
    second = subprocess.run([BIN / "additive", "serve", "--listen", "127.0.0.1:0", "--data", own_service.data],
                            capture_output=True, text=True, timeout=60)
    assert second.returncode == 1 and second.stdout == ""
    assert f"in use by another process (pid {own_service.engine_pid()})" in second.stderr
    assert "starting" not in second.stderr
    assert own_service.request("GET", "/readyz")[0] == 200


# --- errors -------------------------------------------------------------------------------------


def test_a_mistyped_command_or_option_names_the_one_that_may_be_meant():
    for words, meant in ((["genrate"], "generate"), (["jobs", "shwo", "x"], "jobs show"), (["help", "tran"], "train"),
                         (["train", "f", "--stesp", "1"], "--steps")):
        out = additive(*words)
        assert out.returncode == 2 and f"(did you mean {meant}?)" in out.stderr, out.stderr
    assert "did you mean" not in additive("xyzzy").stderr


def test_a_name_that_does_not_exist_names_the_one_that_may_be_meant(service, model):
    job = service.ok("GET", "/v1/fine_tuning/jobs")["data"][0]["id"]
    session = service.ok("POST", "/v1/sessions", {"model": model})["id"]
    for words, meant in ((["models", "show", model[:-1]], model), (["generate", "--model", model + "x", "hello"], model),
                         (["jobs", "show", job[:12]], job), (["sessions", "show", session[:-2]], session)):
        out = additive(*words, url=service.url)
        assert out.returncode == 1 and f"(did you mean {meant}?)" in out.stderr, out.stderr


def test_a_refusal_names_options_and_not_fields_of_a_request(service, model, tmp_path):
    (tmp_path / "tiny.txt").write_text("hi")
    (tmp_path / "text.txt").write_text(TEXT)
    for words, message in ((["train", "tiny.txt"], "the text has 2 tokens and needs 32, the length of a sequence (tiny.txt)"),
                           (["train", "tiny.txt", "--sequence", 64], "the text has 2 tokens and needs 64, the length of a sequence (--sequence)"),
                           (["train", "text.txt", "--batch", 100000], "--batch must be an integer from 1 to 65536, not 100000"),
                           (["generate", "--model", model, "--temperature", 9, "x"], "--temperature must be a number from 0 to 2, not 9"),
                           (["train", "text.txt", "--model", "aditive"], 'there is no model "aditive" (did you mean "additive"?)')):
        out = additive(*words, url=service.url, cwd=tmp_path)
        assert (out.returncode, out.stderr) == (1, f"additive: {message}\n")
    out = additive("train", "text.txt", "--objective", "clasification", url=service.url, cwd=tmp_path)
    assert out.stderr.startswith('additive: --objective must be "classification", "fill_mask"') and \
        out.stderr.endswith('not "clasification" (did you mean "classification"?)\n')
    out = additive("train", "text.txt", "--schedule", "cosin", url=service.url, cwd=tmp_path)
    assert out.returncode == 1 and 'not "cosin" (did you mean "cosine"?)' in out.stderr
    out = additive("train", "text.txt", "--format", "jsn", url=service.url, cwd=tmp_path)
    assert out.returncode == 2 and '--format must be auto, text or json, not "jsn" (did you mean json?)' in out.stderr
    error = json.loads(additive("train", "text.txt", "--batch", 100000, "--json", url=service.url, cwd=tmp_path).stderr)["error"]
    assert error["param"] == "additive.batch_size" and error["message"].startswith("'additive.batch_size' must be")


def test_a_name_with_a_slash_is_refused_as_no_id(service):
    for words in (["models", "show", "a/b"], ["jobs", "show", "a/b"], ["models", "pull", "a/b"]):
        out = additive(*words, url=service.url)
        assert (out.returncode, out.stderr) == (1, 'additive: "a/b" cannot be an id: ids have 1 to 63 letters, digits and . _ : -\n')


def test_steps_go_before_epochs_and_the_job_says_so(service, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    size = ["--sequence", 32, "--hidden", 32, "--heads", 2, "--layers", 1]
    out = additive("train", "text.txt", "--steps", 2, "--epochs", 3, *size, url=service.url, cwd=tmp_path)
    assert out.returncode == 0 and "--epochs is not used: --steps decides" in out.stderr
    plain = additive("train", "text.txt", "--steps", 2, *size, url=service.url, cwd=tmp_path)
    assert plain.returncode == 0 and "not used" not in plain.stderr


def test_a_column_is_left_out_of_a_table_while_nothing_has_a_value_for_it(service, model):
    job = service.ok("GET", "/v1/fine_tuning/jobs")["data"][0]["id"]
    assert "PAUSED BECAUSE" not in additive("jobs", "list", url=service.url).stdout
    assert "DAMAGED" not in additive("jobs", "checkpoints", job, url=service.url).stdout


def test_a_prompt_of_one_token_says_why_no_token_has_a_number(service, model):
    for words in ([], ["--method", "leave_one_out"]):
        out = additive("explain", "--model", model, *words, "1", url=service.url)
        assert out.returncode == 0 and "no token precedes the one that the model reads" in out.stdout, out.stdout
    assert "no token precedes" not in additive("explain", "--model", model, "12", url=service.url).stdout


def test_with_json_an_error_is_one_line_of_json_on_stderr(service):
    unknown = additive("models", "show", "nothing-here", "--json", url=service.url)
    assert unknown.returncode == 1 and unknown.stdout == ""
    error = json.loads(unknown.stderr)["error"]
    assert error["status"] == 404 and error["code"] and "nothing-here" in error["message"]
    usage = additive("train", "--json", "--stesp", "1", "x")
    assert usage.returncode == 2 and json.loads(usage.stderr)["error"]["code"] == "usage"
    away = additive("--json", "jobs", "list", "--url", "http://127.0.0.1:1")
    assert away.returncode == 1 and json.loads(away.stderr)["error"]["code"] == "unreachable"


def test_every_program_and_command_answers_short_options():
    for program in ("additive", "additived", "additive-httpd"):
        for option in ("-h", "-v"):
            out = subprocess.run([BIN / program, option], capture_output=True, text=True)
            assert out.returncode == 0 and out.stdout and not out.stderr, (program, option)
    assert additive("train", "-h").stdout == additive("help", "train").stdout
    assert additive("jobs", "list", "-v").stdout.startswith("additive ")


def test_a_reader_that_goes_away_ends_the_program_quietly(service, model):
    for words in (["help"], ["models", "list"], ["generate", "--model", model, "--max-tokens", "9", "1 bottle"],
                  ["models", "export", "-h"]):
        reader, writer = os.pipe()
        os.close(reader)
        out = additive(*words, url=service.url, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        assert out.stderr == "" and out.returncode == -signal.SIGPIPE, (words, out)


# --- terminals ------------------------------------------------------------------------------------


def test_tables_and_bars_are_never_wider_than_the_terminal(service, model):
    commands = (["jobs", "list"], ["models", "list"], ["files", "list"], ["storage"],
                ["explain", "--model", model, "12 bottles of beer on the wall"])
    for words in commands:
        whole = additive(*words, url=service.url).stdout
        assert "…" not in whole
        for columns in (100, 40):
            status, screen = Terminal(*words, url=service.url, columns=columns).end()
            assert status == 0 and widest(screen) <= columns, (words, columns, screen)
    ids = [m["id"] for m in service.ok("GET", "/v1/models")["data"]]
    assert all(i in Terminal("models", "list", url=service.url, columns=40).end()[1] for i in ids)


def test_the_progress_line_follows_a_resize(service):
    job = service.job(steps=100000)["id"]
    while not service.ok("GET", f"/v1/fine_tuning/jobs/{job}")["additive"]["step"]:
        time.sleep(0.02)
    service.ok("POST", f"/v1/fine_tuning/jobs/{job}/pause")
    service.wait_job(job, until=("paused",))
    terminal = Terminal("jobs", "watch", job, url=service.url, columns=100)
    terminal.until(r"\d+/100000 \[.*tokens/s")
    while terminal.read(0.3):
        pass
    terminal.screen = ""
    terminal.resize(45)
    line = terminal.until(r"\d+/100000 \[.*%.*loss [\d.]+")
    assert widest(line) <= 44
    terminal.type("\x03")
    status, screen = terminal.end()
    assert status == 130 and f"additive jobs watch {job}" in screen
    service.ok("POST", f"/v1/fine_tuning/jobs/{job}/cancel")


# --- what runs --------------------------------------------------------------------------------------


def test_version_names_the_backend_and_the_device(service):
    state = service.ok("GET", "/healthz")
    shown = additive("version", url=service.url).stdout.splitlines()
    assert state["backend"] == "cpu" and shown[1].endswith(f" at {service.url}, cpu on {state['device']}")
    gone = additive("version", url="http://127.0.0.1:1").stdout.splitlines()
    assert gone[1] == "service  not reachable at http://127.0.0.1:1"


def test_a_session_makes_snapshots_by_itself(service, model):
    session = json.loads(additive("sessions", "new", "--model", model, "--prompt", "12 bottles of beer", "--snapshot-every", "16", "--json", url=service.url).stdout)
    additive("sessions", "append", session["id"], " on the wall, 12", url=service.url)
    table = additive("sessions", "snapshots", session["id"], url=service.url).stdout
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["auto-34", "auto-18"]


def test_a_session_returns_to_its_snapshots_and_shows_its_tree(service, model):
    session = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "12 bottles"})["id"]
    snapshot = json.loads(additive("sessions", "snapshot", session, "ä name", "--json", url=service.url).stdout)
    assert (snapshot["session"], snapshot["name"]) == (session, "ä name")
    unnamed = json.loads(additive("sessions", "snapshot", session, "--json", url=service.url).stdout)
    assert unnamed["name"] is None
    before = service.ok("GET", f"/v1/sessions/{session}")["tokens"]
    additive("sessions", "append", session, " more", url=service.url)
    fork = json.loads(additive("sessions", "fork", session, "--snapshot", snapshot["id"], "--json", url=service.url).stdout)
    assert fork["tokens"] == before < service.ok("GET", f"/v1/sessions/{session}")["tokens"]
    back = additive("sessions", "rollback", session, snapshot["id"], url=service.url)
    assert back.returncode == 0 and service.ok("GET", f"/v1/sessions/{session}")["tokens"] == before
    table = additive("sessions", "snapshots", session, url=service.url).stdout
    assert [line.split()[0] for line in table.splitlines()[1:]] == [unnamed["id"], snapshot["id"]] and "ä name" in table
    tree = additive("sessions", "tree", session, url=service.url).stdout.splitlines()
    assert [line.split()[0] for line in tree] == ["ID", session, unnamed["id"], snapshot["id"], fork["id"]]
    assert snapshot["id"] in tree[-1].split()[2:] and "session" in tree[-1] and "snapshot" in tree[2]
    assert json.loads(additive("sessions", "tree", session, "--json", url=service.url).stdout)["session"] == session
    assert additive("sessions", "rollback", session, "snap-none", url=service.url).returncode != 0
    for s in (session, fork["id"]):
        service.ok("DELETE", f"/v1/sessions/{s}")


def test_ps_shows_what_runs_and_nothing_that_has_ended(service, model):
    session = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "12 bottles"})["id"]
    job = service.job(steps=100000)["id"]
    table = additive("ps", url=service.url).stdout
    assert table.startswith("generations: 0 running, 0 waiting\n")
    assert {job, model, session} <= {line.split()[0] for line in table.splitlines()[2:]}
    now = json.loads(additive("ps", "--json", url=service.url).stdout)
    assert [j["id"] for j in now["jobs"]] == [job] and model in [m["id"] for m in now["models"]]
    service.ok("POST", f"/v1/fine_tuning/jobs/{job}/cancel")
    service.wait_job(job)
    service.ok("DELETE", f"/v1/sessions/{session}")
    after = additive("ps", url=service.url).stdout
    assert job not in after and session not in after


def test_ps_counts_the_generations_that_run(service, model):
    session = service.ok("POST", "/v1/sessions", {"model": model, "position_policy": "wrap"})["id"]
    ask = urllib.request.Request(f"{service.url}/v1/sessions/{session}/generate", method="POST", data=json.dumps(
        {"prompt": "12", "max_tokens": 1000000, "logit_bias": {"1": -100}, "stream": True}).encode(),
        headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(ask, timeout=20) as stream:
        assert stream.readline()
        assert additive("ps", url=service.url).stdout.startswith("generations: 1 running")
