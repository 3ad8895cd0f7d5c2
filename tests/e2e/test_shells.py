"""Completion in the shells, and the pages of the manual. `make deps` installs the shells and mandoc."""

import os
import re
import subprocess
import time

import pytest
from conftest import BIN
from terminal import Terminal, additive

NOWHERE = "http://127.0.0.1:1"
SECTIONS = {"additived": 8, "additive-httpd": 8, "additive-train": 8, "additive-eval": 1}


def script(shell, folder):
    path = folder / f"additive.{shell}"
    path.write_text(additive("completion", shell).stdout)
    return path


@pytest.fixture
def bash(tmp_path):
    """Return the completions that bash offers for the last word of a line."""
    path, work = script("bash", tmp_path), tmp_path / "work"
    for name in ("here.txt", "also here.txt"):
        work.mkdir(exist_ok=True)
        (work / name).write_text("")
    (work / "folder").mkdir()

    def offers(line, url=NOWHERE):
        words = [w for part in line.split(" ") for w in (re.findall(r"[=:]+|[^=:]+", part) or [""])]
        quoted = " ".join(f"'{w}'" for w in words)
        run = (f"source '{path}'; COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}; "
               'complete -p additive >&2; _additive; printf "%s\\n" "${COMPREPLY[@]}"')
        out = subprocess.run(["bash", "--norc", "-c", run], capture_output=True, text=True, timeout=30, cwd=work,
                             env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "ADDITIVE_URL": url})
        assert out.stderr == "complete -F _additive additive\n", out.stderr
        return out.stdout.split("\n")[:-1]

    return offers


def test_bash_completes_commands_options_and_their_words(bash):
    assert bash("additive eval") == ["evaluate", "evaluations"]
    assert bash("additive jobs wa") == ["watch"]
    assert bash("additive jobs watch --no") == ["--no-curve"]
    assert bash("additive train --schedule tai") == ["tail"]
    assert bash("additive train --schedule=tai") == ["tail"]  # bash replaces only the part after =
    assert sorted(bash("additive train --ste")) == ["--step-size", "--steps"]
    assert bash("additive completion ") == ["bash", "zsh", "fish"]


def test_bash_completes_files_and_folders(bash):
    assert sorted(bash("additive train ")) == ["also here.txt", "folder", "here.txt"]
    assert bash("additive train --validation=he") == ["here.txt"]
    assert bash("additive serve --data ") == ["folder"]


def test_bash_completes_names_of_the_service_or_none(bash, service, model):
    job = service.ok("GET", "/v1/fine_tuning/jobs")["data"][0]["id"]
    session = service.ok("POST", "/v1/sessions", {"model": model})["id"]
    assert bash("additive jobs show " + job[:8], service.url) == [job]
    assert bash("additive evaluate " + model[:1], service.url) == [model]
    assert bash(f"additive generate --model {model[:-2]}", service.url) == [model.split(":")[-1]]  # as after =
    assert bash("additive generate --model ft:", service.url) == [model.removeprefix("ft:")]
    assert bash("additive sessions show ", service.url) == [session]
    assert bash(f"additive --url {service.url} evaluate ") == [model]
    started = time.monotonic()
    assert bash("additive evaluate ") == [""] and time.monotonic() - started < 5


def test_at_a_prompt_of_bash_the_tabulator_completes(tmp_path, service, model):
    path = script("bash", tmp_path)
    shell = Terminal("--norc", "--noprofile", "-i", program="bash", url=service.url, PS1="$ ", INPUTRC="/dev/null",
                     PATH=f"{BIN}:{os.environ['PATH']}")
    shell.type(f"source {path}; bind 'set enable-bracketed-paste off'\r")
    shell.until(r"2004l\r\$ ")
    shell.type("additive models sh\tft:\t\r")
    assert f"additive models show {model} \r\n" in shell.until(r"parameters +\d+").replace("\a", "")
    shell.type("exit\r")
    assert shell.end()[0] == 0


def test_fish_completes_what_the_program_says(tmp_path):
    run = f"source '{script('fish', tmp_path)}'; complete -C 'additive jobs wa'; complete -C 'additive train --schedule=ta'; complete -C 'additive jobs watch --no-'"
    out = subprocess.run(["fish", "--no-config", "-c", run], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path), "ADDITIVE_URL": NOWHERE})
    assert [line.split("\t")[0] for line in out.stdout.splitlines()] == ["watch", "--schedule=tail", "--no-curve"], out


def test_zsh_completes_at_its_prompt(tmp_path, service, model):
    path = script("zsh", tmp_path)
    assert subprocess.run(["zsh", "-n", path]).returncode == 0
    shell = Terminal("-f", "-i", program="zsh", url=service.url, PS1="$ ", HOME=str(tmp_path), ZDOTDIR=str(tmp_path),
                     PATH=f"{BIN}:{os.environ['PATH']}")
    shell.type(f"unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D; source {path}; echo re''ady\r")
    shell.until("ready\r\n")
    shell.type("additive models sho\t")
    shell.until("models.*show")
    shell.type("ft\t\r")
    assert model in shell.until(r"parameters +\d+")
    shell.type("exit\r")
    shell.end()


def test_every_program_and_command_has_a_page_that_is_correct_roff(tmp_path):
    assert additive("manual", tmp_path).returncode == 0
    words = {line.split()[0] for line in re.findall(r"^  (\w.*)", additive("help").stdout, re.M)}
    assert {p.stem for p in tmp_path.iterdir()} == {"additive"} | {f"additive-{word}" for word in words}
    for name, section in SECTIONS.items():
        if not (BIN / name).exists():  # additive-train, without MPI
            continue
        page = subprocess.run([BIN / name, "--man"], capture_output=True, text=True)
        text = subprocess.run([BIN / name, "--help"], capture_output=True, text=True).stdout
        assert page.returncode == 0 and page.stderr == ""
        (tmp_path / f"{name}.{section}").write_text(page.stdout)
        options = re.findall(r"^  (--[a-z-]+)", text, re.M)
        assert len(options) > 5 and all(f"\\fB{o}\\fR".replace("-", "\\-") in page.stdout for o in options), name
    for written in tmp_path.iterdir():  # a terminal of ASCII has no form of other characters
        assert written.read_bytes().isascii() and "\\[u" not in written.read_text(), written
    pages = sorted(map(str, tmp_path.iterdir()))
    lint = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages], capture_output=True, text=True).stdout
    assert [line for line in lint.splitlines() if "missing date" not in line] == []


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    out = additive("manual", tmp_path / "file")
    assert out.returncode == 1 and "cannot write" in out.stderr
    out = additive("manual", tmp_path / "no" / "folder")
    assert out.returncode == 1 and "cannot create the folder" in out.stderr
    assert additive("manual", tmp_path / "folder").returncode == 0 and (tmp_path / "folder" / "additive.1").exists()
    assert additive("completion", "tcsh").returncode == 2
