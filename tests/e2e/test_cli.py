"""The command line: what a user meets at a shell, in a pipe and at a terminal."""

import json
import os
import re
import signal
import subprocess

import pytest

from conftest import BIN, TEXT, Service


def additive(*args, url=None, **kw):
    where = {"ADDITIVE_URL": url} if url else {}
    return subprocess.run([BIN / "additive", *map(str, args)], capture_output="stdout" not in kw, text=True, timeout=120,
                          env={**os.environ, **where}, **kw)


def help_of(*program):
    out = subprocess.run([BIN / program[0], *program[1:], "--help"], capture_output=True, text=True)
    assert out.returncode == 0
    return out.stdout


def options_in(text):
    return set(re.findall(r"^  --([a-z-]+)", text, re.M))


# --- additive serve ---------------------------------------------------------------------------


def test_serve_takes_every_option_of_the_programs_that_it_starts():
    own = {"socket", "engine", "health-check", "version"}
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
