"""The command line as a user sees it: at a shell, in a pipe and at a terminal."""

import gzip
import hashlib
import http.server
import json
import os
import re
import signal
import subprocess
import tarfile
import termios
import threading
import time
import urllib.request
from pathlib import Path

import yaml
from conftest import BIN, TEXT, Service
from terminal import Terminal, additive, widest


def help_of(*program):
    out = subprocess.run([BIN / program[0], *program[1:], "--help"], capture_output=True, text=True)
    assert out.returncode == 0
    return out.stdout


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


# --- the interactive prompt ---------------------------------------------------------------------------


def sessions(service):
    return {s["id"]: s["tokens"] for s in service.ok("GET", "/v1/sessions")["data"]}


def only_new(service, before):
    """(id, tokens) of the one session that was not there before."""
    (new,) = [s for s in sessions(service).items() if s[0] not in before]
    return new


def converse(service, model, tmp_path, *options):
    terminal = Terminal("generate", *(("--model", model) if model else ()), "--temperature", "0", *options,
                        url=service.url, XDG_STATE_HOME=str(tmp_path))
    terminal.until(r">>> ")
    return terminal


def test_a_terminal_without_a_prompt_converses_in_one_text(service, model, tmp_path):
    before = sessions(service)
    terminal = converse(service, model, tmp_path, "--max-tokens", "9")
    terminal.type("57 bottles of \r")
    answer = terminal.until(r"\n>>> ")
    expected = service.ok("POST", "/v1/completions", {"model": model, "prompt": "57 bottles of ", "max_tokens": 9,
                                                      "temperature": 0})["choices"][0]["text"]
    assert answer.split("57 bottles of ")[-1].startswith("\r\n" + expected.replace("\n", "\r\n"))
    session, tokens = only_new(service, before)
    assert tokens == len("57 bottles of ") + 9
    terminal.type("12\r")
    terminal.until(r"\n>>> ")
    newline = 0 if expected.endswith("\n") else 1
    assert sessions(service)[session] == tokens + newline + len("12") + 9
    terminal.type("\x04")
    assert terminal.end()[0] == 0
    assert session not in sessions(service)


def test_at_the_prompt_ctrl_c_stops_the_answer_or_the_line_and_no_more(service, model, tmp_path):
    session = service.ok("POST", "/v1/sessions", {"model": model, "position_policy": "wrap"})["id"]
    terminal = converse(service, None, tmp_path, "--session", session, "--max-tokens", "1000000")
    for _ in range(2):  # the session continues after an answer that was stopped
        known = sessions(service)[session]
        terminal.type("99 bottles\r")
        terminal.until(r"99 bottles\r\n[^>]{80}")
        terminal.type("\x03")
        terminal.until(r"\n>>> ")
        while sessions(service)[session] == known:  # until the service has seen that the client went
            time.sleep(0.02)
        assert sessions(service)[session] > known + 40  # a newline is two characters on the screen
    known = sessions(service)[session]
    terminal.type("never sent\x03")
    terminal.until(r"never sent\^C\r\n>>> ")
    terminal.type("/hlep\r")
    assert "did you mean /help?" in terminal.until(r"\n>>> ")
    terminal.type("/exit\r")
    status, screen = terminal.end()
    assert status == 0 and f"--session {session}" in screen
    assert sessions(service)[session] == known
    service.ok("DELETE", f"/v1/sessions/{session}")


def test_the_prompt_takes_several_lines_and_remembers_them(service, model, tmp_path):
    before = sessions(service)
    terminal = converse(service, model, tmp_path, "--max-tokens", "1", "--new-session")
    for keys in ('"""one\r', "two\r", 'three"""\r'):
        terminal.type(keys)
        terminal.until(r"(\.\.\.|>>>) ")
    session, tokens = only_new(service, before)
    assert tokens == len("one\ntwo\nthree") + 1
    terminal.type("/exit\r")
    assert session in terminal.end()[1]
    service.ok("DELETE", f"/v1/sessions/{session}")
    again = converse(service, model, tmp_path, "--max-tokens", "1")
    again.type("\x1b[A")
    again.until("/exit")
    again.type("\x1b[A")
    again.until('three"""')
    again.type("\x03\x04")
    assert again.end()[0] == 0


def test_keys_typed_during_an_answer_are_obeyed_after_it(service, model, tmp_path):
    session = service.ok("POST", "/v1/sessions", {"model": model, "position_policy": "wrap"})["id"]
    terminal = converse(service, None, tmp_path, "--session", session, "--max-tokens", "3000")
    terminal.type("99 bottles\r")
    terminal.until(r"99 bottles\r\n[^>]")
    terminal.type("\x04")
    assert terminal.end()[0] == 0
    service.ok("DELETE", f"/v1/sessions/{session}")


def test_ctrl_c_before_the_answer_begins_stops_it(service, model, tmp_path):
    terminal = converse(service, model, tmp_path, "--new-session", "--position-policy", "wrap", "--max-tokens", "1000000")
    os.kill(service.child("additive-httpd"), signal.SIGSTOP)
    try:
        terminal.type("99 bottles\r")
        while not terminal.settings()[0] & termios.ISIG:
            time.sleep(0.01)
        terminal.type("\x03")
        terminal.until(r"99 bottles.*\r\n\^C")
    finally:
        os.kill(service.child("additive-httpd"), signal.SIGCONT)
    terminal.until(r">>> ", seconds=5)
    terminal.type("/exit\r")
    status, screen = terminal.end()
    assert status == 0
    while service.request("DELETE", "/v1/sessions/" + screen.split()[-1])[0] == 409:  # it has yet to see the client gone
        time.sleep(0.02)


def test_a_visible_prompt_takes_every_key_and_the_end_gives_the_terminal_back(service, model, tmp_path):
    terminal = Terminal("generate", "--model", model, url=service.url, XDG_STATE_HOME=str(tmp_path))
    for _ in range(50):
        terminal.until(r">>> ")
        assert terminal.settings()[0] == 0
        terminal.type("\r")
    terminal.until(r">>> ")
    terminal.type("\x00\x04")  # Ctrl-Space sets a mark
    assert terminal.process.wait(timeout=20) == 0
    assert terminal.settings() == (termios.ISIG | termios.ICANON | termios.ECHO, b"\x04")


class BusySession(http.server.BaseHTTPRequestHandler):
    """A service whose session is busy after an answer: a deletion is refused twice, without a time to wait and with one."""

    protocol_version = "HTTP/1.1"

    def answer(self, status, body, kind="application/json", **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/sessions":
            self.answer(200, '{"id": "sess-1", "object": "session"}')
        else:
            self.answer(200, 'data: {"choices": [{"text": "yes"}]}\n\ndata: [DONE]\n\n', "text/event-stream")

    def do_DELETE(self):
        self.server.deletions.append((self.path, time.monotonic()))
        busy = '{"error": {"code": "session_busy", "message": "another request uses the session"}}'
        if len(self.server.deletions) < 3:
            self.answer(409, busy, **({"Retry_After": 1} if len(self.server.deletions) == 2 else {}))
        else:
            self.answer(200, '{"id": "sess-1", "object": "session", "deleted": true}')

    def log_message(self, *_):
        pass


def test_a_session_that_is_still_busy_at_the_end_is_deleted_when_it_is_free(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BusySession) as server:
        server.deletions = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        terminal = Terminal("generate", "--model", "m", url=f"http://127.0.0.1:{server.server_port}", XDG_STATE_HOME=str(tmp_path))
        terminal.until(r">>> ")
        terminal.type("is it\r")
        terminal.until(r"yes\r\n>>> ")
        terminal.type("\x04")
        status, screen = terminal.end()
        server.shutdown()
    assert status == 0 and "busy" not in screen
    (path, _), (_, second), (_, third) = server.deletions
    assert path == "/v1/sessions/sess-1" and third - second >= 1


# --- training ---------------------------------------------------------------------------------------

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


# --- additive chat ----------------------------------------------------------------------------------


def chat(service, model, messages, longest):
    body = {"model": model, "messages": messages, "max_tokens": longest, "temperature": 0}
    return service.ok("POST", "/v1/chat/completions", body)


def test_a_message_is_answered_as_the_service_answers_it(service, model):
    messages = [{"role": "system", "content": "count"}, {"role": "user", "content": "99"}]
    answer = chat(service, model, messages, 12)["choices"][0]["message"]["content"]
    ask = [BIN / "additive", "--url", service.url, "chat", "--system", "count", "--max-tokens", "12", "--temperature", "0", model]
    for more, given in ((["99"], None), ([], "99")):
        done = subprocess.run([*ask, *more], input=given, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, answer), done.stderr


def test_a_conversation_at_a_terminal_is_one_session(service, model, tmp_path):
    before = sessions(service)
    terminal = Terminal("chat", model, "--max-tokens", "5", "--temperature", "0", url=service.url, XDG_STATE_HOME=str(tmp_path))
    terminal.until(r">>> ")
    said = []
    for text in ("9", "8"):
        said.append({"role": "user", "content": text})
        answer = chat(service, model, said, 5)
        said.append(answer["choices"][0]["message"])
        terminal.type(text + "\r")
        terminal.until(r"\n>>> ")
        session, tokens = only_new(service, before)
        assert tokens == answer["usage"]["total_tokens"]
    terminal.type("\x04")
    assert terminal.end()[0] == 0
    assert session not in sessions(service)
