"""The library: its examples, compiled as a user compiles them, do what the service does with the same model."""

import json
import os
import pathlib
import re
import subprocess

import pytest

from conftest import SANITIZED, SMALL, TEXT

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "clients" / "examples"
HEADER = ROOT / "engine" / "library" / "additive.h"
NAMES = ("generate", "train", "explain")
PROMPT = "57 bottles of "

pytestmark = pytest.mark.skipif(SANITIZED, reason="the library of a release build")


def run(*command, **kw):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, **kw)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of a staged installation, and pkg-config's answers for it."""
    stage = tmp_path_factory.mktemp("stage")
    run("make", "-C", ROOT, "install-lib", f"DESTDIR={stage}", "PREFIX=/opt/additive")
    where = {**os.environ, "PKG_CONFIG_PATH": str(stage / "opt/additive/lib/pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(stage)}
    return stage / "opt/additive", lambda *options: run("pkg-config", *options, "additive", env=where).split()


@pytest.fixture(scope="module")
def example(installed, tmp_path_factory):
    """The programs by their names."""
    prefix, flags = installed
    out = tmp_path_factory.mktemp("examples")
    for name in NAMES:
        run("gcc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O2", EXAMPLES / f"{name}.c", *flags("--cflags", "--libs"),
            f"-Wl,-rpath,{prefix / 'lib'}", "-o", out / name)
    return lambda name, *arguments: run(out / name, *arguments)


@pytest.fixture(scope="module")
def folder(service, model):
    return service.data / "models" / model


def test_the_header_and_the_examples_are_short():
    assert len(HEADER.read_text().splitlines()) <= 300
    for name in NAMES:
        source = (EXAMPLES / f"{name}.c").read_text()
        assert len(source.splitlines()) < 100
        assert re.findall(r'#include ["<](.*)[">]', source)[0] == "additive.h" and "engine/" not in source


def test_the_library_has_the_functions_of_the_header_and_few_dependencies(installed):
    prefix, _ = installed
    declared = set(re.findall(r"^[a-z][\w ]*[ *](additive_\w+)\(", HEADER.read_text(), re.M))
    assert len(declared) >= 20
    shared = prefix / "lib" / "libadditive.so"
    exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", shared).splitlines()}
    assert exported == declared
    archived = {line.split()[-1] for line in run("nm", "-g", "--defined-only", prefix / "lib" / "libadditive.a").splitlines() if " T " in line}
    assert archived == declared
    dynamic = run("readelf", "-d", shared)
    assert "soname: [libadditive.so.0]" in dynamic and "TEXTREL" not in dynamic
    assert (prefix / "lib" / "libadditive.so.0").resolve() == shared.resolve()
    assert not re.search(r"libuv|sqlite|microhttpd|curl", dynamic)


def test_the_header_is_cplusplus_too(installed, tmp_path):
    source = tmp_path / "a.cc"
    source.write_text("#include <additive.h>\nint main() { return additive_version()[0] == 0; }\n")
    prefix, flags = installed
    run("g++", "-Wall", "-Wextra", "-Werror", source, *flags("--cflags", "--libs"), f"-Wl,-rpath,{prefix / 'lib'}", "-o", tmp_path / "a")
    run(tmp_path / "a")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 7}], ids=["greedy", "sampled"])
def test_generate_writes_what_the_service_writes(service, model, folder, example, sampling):
    expected = service.ok("POST", "/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 40, **sampling})["choices"][0]["text"]
    assert example("generate", folder, PROMPT, 40, *sampling.values()) == expected + "\n"


def test_the_archive_links_into_a_program(installed, folder, example, tmp_path):
    prefix, flags = installed
    others = [flag for flag in flags("--static", "--libs") if flag != "-ladditive"]
    run("gcc", "-O2", EXAMPLES / "generate.c", *flags("--cflags"), prefix / "lib" / "libadditive.a", *others, "-o", tmp_path / "generate")
    assert run(tmp_path / "generate", folder, PROMPT, 10) == example("generate", folder, PROMPT, 10)


def test_explain_gives_the_numbers_of_the_service(service, model, folder, example):
    answer = service.ok("POST", "/v1/explain", {"model": model, "input": PROMPT, "aggregate": "mean"})
    parts = answer["contributions"]
    lines = example("explain", folder, PROMPT).splitlines()
    rows = [line.split(" ", 2) for line in lines[:len(PROMPT)]]
    assert [json.loads(text) for _, _, text in rows] == list(PROMPT)
    assert [contribution for contribution, _, _ in rows] == [f"{value:+.6f}" for value in parts["tokens"]]
    assert [weight for _, weight, _ in rows] == [f"{value:.6f}" for value in answer["aggregate"]["alpha"]]
    assert lines[-1] == f"score {parts['score']:+.6f} of \"{parts['target']['token']['text']}\""


def test_explain_names_the_class_of_a_classifier(service, example):
    lines = "".join(json.dumps({"text": word, "label": label}) + "\n" for word, label in (("good", "yes"), ("bad", "no")) * 8)
    job = service.ok("POST", "/v1/fine_tuning/jobs", {
        "training_file": service.upload(lines, "train.jsonl"), "seed": 1,
        "additive": {"objective": "classification", "size": {"hidden": 16, "heads": 2, "layers": 1}, "max_steps": 2, "batch_size": 4}})
    done = service.wait_job(job["id"])
    parts = service.ok("POST", "/v1/explain", {"model": done["fine_tuned_model"], "input": "good", "method": "contributions"})["contributions"]
    lines = example("explain", service.data / "models" / done["fine_tuned_model"], "good").splitlines()
    rows = [line.split(" ", 2) for line in lines[:len(parts["tokens"])]]
    assert [(contribution, weight) for contribution, weight, _ in rows] == [(f"{value:+.6f}", "-") for value in parts["tokens"]]
    assert lines[-1] == f"score {parts['score']:+.6f} of class {parts['target']['token']['id']}"


def test_train_makes_the_model_that_the_service_makes(service, model, example, tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"model": "additive", "seed": 1, "additive": SMALL | {"max_steps": 60}}))
    (tmp_path / "text.txt").write_text(TEXT)
    said = example("train", tmp_path / "recipe.json", tmp_path / "text.txt", tmp_path / "run")
    assert "step 60 of 60" in said
    expected = service.request("GET", f"/v1/models/{model}/files/model.safetensors")[1]
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == expected
