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
