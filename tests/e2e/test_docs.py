"""README.md and docs/: examples run as printed, options and links exist, counts are right.

The blocks of a page with the language `sh` are one bash script, those with `python` one Python script; both run against this file's service.
Other languages (`text`, `json`) are only shown: they need minutes, another machine or a stopped service. A page may use `corpus.txt`, the other
files of `folder` and, in bash, $MODEL. Before a block runs, the service's address and data folder and the number of training steps are replaced."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from conftest import BIN, SANITIZED, TEXT

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
ROOMS = [page for page in sorted(ROOT.glob("[a-z]*/**/README.md")) if page.relative_to(ROOT).parts[0] != "build"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def text_of(name):
    return (ROOT / name).read_text()


def blocks(name, language):
    return [body for tag, body in BLOCK.findall(text_of(name)) if tag == language]


def as_run_here(script, service):
    script = re.sub(r"--steps \d+", "--steps 1", script)
    script = re.sub(r'("max_steps": )\d+', r"\g<1>1", script)
    script = script.replace("--data ./data", f"--data {service.data}")
    return re.sub(r"(http://)?(localhost|127\.0\.0\.1):8080", service.url, script)


@pytest.fixture
def folder(tmp_path):
    def lines(name, rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    (tmp_path / "corpus.txt").write_text(TEXT[:3000])
    lines("labels.jsonl", [{"text": f"{word} day {n}", "label": label} for n in range(10) for word, label in (("good", "kind"), ("bad", "rude"))])
    lines("preferences.jsonl", [{"prompt": f"Greet {n}:", "chosen": f" Good day {n}", "rejected": f" Hey {n}"} for n in range(20)])
    lines("pairs.jsonl", [{"source": f"Good morning {n}", "target": f"Guten Morgen {n}"} for n in range(20)])
    return tmp_path


def run(service, folder, *command, **environment):
    paths = {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "clients" / "python")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=480 if SANITIZED else 120,
                          env=os.environ | paths | {"ADDITIVE_URL": service.url} | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(name, "sh")])
def test_the_shell_examples_of_a_page_run(service, model, folder, name):
    # curl succeeds for any answer of the service, unless an option makes it fail.
    script = 'curl() { command curl --fail-with-body "$@"; }\n' + as_run_here("\n".join(blocks(name, "sh")), service)
    assert run(service, folder, "bash", "-euo", "pipefail", "-x", "-c", script, MODEL=model).stdout


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(name, "python")])
def test_the_python_examples_of_a_page_run(service, folder, name):
    assert run(service, folder, sys.executable, "-c", as_run_here("\n".join(blocks(name, "python")), service)).stdout


def test_a_failing_example_is_found(service, folder):
    with pytest.raises(AssertionError):
        run(service, folder, "bash", "-euo", "pipefail", "-c", "additive generate --model none x | cat")


def commands():
    """The words of each command that `additive help` lists, such as ("models", "push")."""
    help_text = subprocess.run([BIN / "additive", "help"], capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^  ([a-z][a-z-]*(?: [a-z]+)?)(?= |$)", help_text, re.M)
    return {tuple(row.split()) for row in rows} | {(row.split()[0],) for row in rows}


def command_lines(text):
    """Every `additive …` of a page's blocks and code spans, as words."""
    code = [body for _, body in BLOCK.findall(text)] + re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        for call in re.findall(r"(?:^|[ (/])additive ([a-z][^|>)]*)", line):
            try:
                yield shlex.split(call, comments=True)
            except ValueError: # a quotation that the pattern has cut
                yield call.split()


def test_every_command_line_has_a_command_and_options_that_the_help_lists():
    known, helps, counted = commands(), {}, 0
    for page in PAGES:
        for words in command_lines(page.read_text()):
            found = [words[:n] for n in (2, 1) if tuple(words[:n]) in known]
            assert found or words[0] == "help", f"{page.name}: additive {' '.join(words)}"
            options = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
            if not options:
                continue
            command = tuple(found[0])
            if command not in helps:
                helps[command] = subprocess.run([BIN / "additive", *command, "--help"], capture_output=True, text=True, check=True).stdout
            for option in options:
                assert re.search(rf"(^|[ (]){re.escape(option)}\b", helps[command], re.M), f"{page.name}: additive {' '.join(command)} has no {option}"
                counted += 1
    assert counted > 50


def test_every_make_target_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = {word for row in re.findall(r"^(?:\.PHONY: (.*)|([a-z][\w ./-]*):)", makefile, re.M) for words in row for word in words.split()}
    for page in PAGES:
        for target in re.findall(r"`make (?!build/)([a-z][\w./-]*)(?![\w./-])", page.read_text()):
            assert target in targets, f"{page.name}: make {target}"


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_a_heading():
    for page in PAGES + ROOMS:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(linked), f"{page.name}: {target}"


def test_every_file_of_the_repository_that_a_page_names_exists():
    for page in PAGES + ROOMS:
        for path in re.findall(r"`((?:proto|server|engine|cuda|clients|deploy|docs|tests)/[\w/.-]*)`", page.read_text()):
            file = ROOT / path # or a program without its suffix, such as tests/unit/cuda/test_ops
            assert file.exists() or [*file.parent.glob(file.name + ".*")], f"{page.relative_to(ROOT)}: {path}"


def test_the_readme_fits_in_three_minutes_and_leads_to_every_page():
    readme = text_of("README.md")
    assert len(readme.split()) <= 900
    assert {page.name for page in (ROOT / "docs").glob("*.md")} == set(re.findall(r"\(docs/(\w+\.md)\)", readme))


def test_every_room_readme_fits_on_one_page():
    longest = {"clients/python/README.md": 640} # a page for users of the package
    for page in ROOMS:
        name = str(page.relative_to(ROOT))
        assert len(page.read_text().split()) <= longest.get(name, 560), name


def test_the_number_of_architectures_is_right():
    names = [path.stem for path in (ROOT / "engine" / "model" / "architectures").glob("*.c")]
    spelled = {10: "ten", 11: "eleven", 12: "twelve"}[len(names)]
    assert f"{spelled} architectures" in text_of("README.md")
    listed = set(re.findall(r"^\| `([\w-]+)` \|", text_of("docs/models.md").split("## Objectives")[0], re.M))
    assert {name.replace("_", "-") for name in names} == {name.replace("_", "-") for name in listed}


# Word of the docs for each method whose requests count for the limits of a key.
COUNTED = {"completion.create": "generations", "chat.create": "generations", "response.create": "generations", "session.generate": "generations",
           "session.create": "new sessions", "session.append": "prompts of sessions", "embed": "vectors", "classify": "classes", "fill_mask": "masks",
           "explain": "explanations", "session.alpha": "explanations", "tokenize": "tokenizing", "detokenize": "detokenizing", "model.import": "imports",
           "session.import": "imports", "file.create": "uploads of files", "file.statistics": "statistics of files", "job.create": "new jobs", "create": "new jobs"}


def test_the_requests_that_count_for_a_keys_limits_are_listed():
    row = re.compile(r'\{"([a-z_.]+)", \w+,(?: ROOM_\w+,)? true\}')
    tables = [text for text in (path.read_text() for path in (ROOT / "engine" / "daemon").glob("**/*.c")) if re.search(r"const (job_)?method \w+\[\]", text)]
    assert {name for table in tables for name in row.findall(table)} == COUNTED.keys()
    listed = " ".join(re.search(r"Requests that compute count: (.*?)\.", text_of("docs/operations.md"), re.S).group(1).split())
    assert set(re.split(", | and ", listed)) == set(COUNTED.values())
