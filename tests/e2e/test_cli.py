"""The command line: what a user meets at a shell, in a pipe and at a terminal."""

import re
import subprocess

import pytest

from conftest import BIN, Service


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
