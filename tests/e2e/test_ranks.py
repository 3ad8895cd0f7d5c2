"""additive-train: one training job over several processes, by itself."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest

from conftest import BIN

pytestmark = pytest.mark.skipif(not (BIN / "additive-train").exists(), reason="built without MPI")

ENVIRONMENT = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
CONFIG = {"hidden_size": 64, "n_layer": 2, "n_heads": 4, "window_sizes": [8, 64]}


def recipe(folder, steps=100, name="recipe.json", **more):
    text = folder / "text.txt"
    text.write_text((pathlib.Path(__file__).parents[2] / "proto" / "PROTOCOL.md").read_text()[:40000])
    options = {"sequence_length": 64, "batch_size": 8, "max_steps": steps, "learning_rate": 1e-3, "eval_every": 25,
               "config": CONFIG}
    path = folder / name
    path.write_text(json.dumps({"model": "additive", "training_file": str(text), "seed": 3,
                                "additive": options | more}))
    return path


def command(path, out, ranks):
    launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []
    return [*launch, BIN / "additive-train", path, "--out", out, "--threads", "1", "--backend", "cpu"]


def run(path, out, ranks):
    """(exit status, reports, stderr)"""
    done = subprocess.run(command(path, out, ranks), env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def losses(reports):
    return {r["progress"]["step"]: r["progress"]["train_loss"] for r in reports if r["progress"]["step"] > 0}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    path = recipe(folder)
    status, reports, problem = run(path, folder / "run", 1)
    assert status == 0, problem
    return path, reports


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_the_losses_of_one_process_for_100_steps(alone, tmp_path, ranks):
    path, reports = alone
    status, shared, problem = run(path, tmp_path / "run", ranks)
    assert status == 0, problem
    want, got = losses(reports), losses(shared)
    both = want.keys() & got.keys()
    assert {25, 50, 75, 100} <= both
    assert max(abs(want[s] - got[s]) for s in both) <= 1e-4
    assert [r["report"] for r in shared if r["report"] != "progress"][-2:] == ["saved", "ended"]
    assert shared[-1]["finished"] and shared[-1]["progress"]["valid_loss"] == pytest.approx(
        reports[-1]["progress"]["valid_loss"], abs=1e-4)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_ranks_have_the_losses_of_one_process_with_muon(tmp_path):
    path = recipe(tmp_path, steps=25, optimizer="muon", eval_every=5)
    reports = []
    for ranks in (1, 2):
        status, lines, problem = run(path, tmp_path / str(ranks), ranks)
        assert status == 0, problem
        reports.append(losses(lines))
    both = reports[0].keys() & reports[1].keys()
    assert {5, 10, 15, 20, 25} <= both and max(abs(reports[0][s] - reports[1][s]) for s in both) <= 1e-4


def sharded(ranks, **more):
    return {"parallel": {"ranks": ranks, "shard_optimizer": True}} | more


@pytest.mark.parametrize("ranks, more", [
    (2, {"decayed": "matrices", "ema_decay": 0.9, "layer_rate_decay": 0.7}),
    (3, {"batch_size": 6, "gradient_accumulation": 2}),
    (2, {"optimizer": "muon"}),
    (3, {"batch_size": 6, "optimizer": "muon"}),
    (2, {"optimizer": "normalized_sgd", "learning_rate": 0.01}),
], ids=["adamw, 2", "adamw, 3", "muon, 2", "muon, 3", "normalized_sgd, 2"])
def test_a_sharded_optimizer_gives_the_same_bits(tmp_path, ranks, more):
    files = []
    for name, own in ("whole", more), ("shares", sharded(ranks, **more)):
        path = recipe(tmp_path, steps=12, name=f"{name}.json", eval_every=6, checkpoint_every=6, **own)
        status, reports, problem = run(path, tmp_path / name, ranks)
        assert status == 0, problem
        assert reports[-1]["finished"]
        files.append([(tmp_path / name / part).read_bytes() for part in
                      ("step-12/optimizer.safetensors", "step-12/model.safetensors", "model/model.safetensors")])
        files[-1].append([p.read_bytes() for p in (tmp_path / name / "model").glob("optimizer.safetensors")])
    assert files[0] == files[1]
    assert len(files[0][3]) == (more.get("optimizer") == "normalized_sgd")


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid), "additive-train"], capture_output=True, text=True).stdout.split()
    return sorted(map(int, found))


def begun(path, out):
    """A run of two ranks that has made some steps."""
    launched = subprocess.Popen(command(path, out, 2), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    for line in launched.stdout:
        if json.loads(line)["progress"]["step"] >= 5:
            return launched


def ended(launched, seconds=60):
    """Return the rest of the output of a run that ends. Its ranks must end by themselves; an mpirun that stays without any is killed."""
    left = []

    def end():
        left.extend(children(launched.pid))
        launched.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    text = launched.stdout.read()
    timer.cancel()
    assert launched.wait(60) != 0 and not left
    return text


LONG = 100
EACH = "each rank is asked to end, as by Slurm"


def ask_to_end(launched, how):
    for pid in children(launched.pid) if how == EACH else [launched.pid]:
        os.kill(pid, signal.SIGTERM)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """A run of two ranks that takes some seconds and that nothing disturbs: its recipe, and the weights."""
    folder = tmp_path_factory.mktemp("calm")
    path = recipe(folder, steps=LONG, batch_size=64)
    status, _, problem = run(path, folder / "run", 2)
    assert status == 0, problem
    return path, (folder / "run" / "model" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("how", ["another rank is killed", "mpirun is asked to end", EACH])
def test_a_run_that_is_cut_short_goes_on_from_its_checkpoint(calm, tmp_path, how):
    path, weights = calm
    launched = begun(path, tmp_path / "run")
    if how == "another rank is killed":
        os.kill(children(launched.pid)[-1], signal.SIGKILL)
    else:
        ask_to_end(launched, how)
    rest = ended(launched, 30).splitlines()
    saved = [int(p.name[5:]) for p in (tmp_path / "run").iterdir() if p.name[5:].isdigit()]
    assert len(saved) == 1 and 5 <= saved[0] < LONG
    step = saved[0]
    if how == "another rank is killed":  # an mpirun that is asked to end may cut a line
        last = [json.loads(line.strip("\0")) for line in rest[-2:]]  # Open MPI 5 puts a NUL after a killed rank
        assert [(r["report"], r["progress"]["step"]) for r in last] == [("saved", step), ("ended", step)]
        assert "error" not in last[0] and not last[1]["finished"]
    status, rest, problem = run(path, tmp_path / "run", 2)
    assert status == 0, problem
    assert rest[0]["report"] == "started" and rest[0]["progress"]["step"] == step
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("how", ["another rank is killed", "mpirun is asked to end"])
def test_a_sharded_run_that_is_cut_short_goes_on_from_its_checkpoint(calm, tmp_path, how):
    _, weights = calm
    path = recipe(tmp_path, **sharded(2, batch_size=64, steps=LONG, checkpoint_every=3))
    launched = begun(path, tmp_path / "run")
    if how == "another rank is killed":
        os.kill(children(launched.pid)[-1], signal.SIGKILL)
    else:
        launched.terminate()
    ended(launched)
    saved = max(int(p.name[5:]) for p in (tmp_path / "run").iterdir() if p.name[5:].isdigit())
    assert 3 <= saved < LONG
    if how == "another rank is killed":  # its states are lost, so there is no checkpoint of the last step
        assert saved % 3 == 0
    status, rest, problem = run(path, tmp_path / "run", 2)
    assert status == 0, problem
    assert rest[0]["report"] == "started" and rest[0]["progress"]["step"] == saved
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("how", ["mpirun is asked to end", EACH])
def test_a_sharded_run_saves_its_last_step_when_it_is_asked_to_end(tmp_path, how):
    path = recipe(tmp_path, **sharded(2, batch_size=64, steps=LONG))
    launched = begun(path, tmp_path / "run")
    ask_to_end(launched, how)
    ended(launched, 30)
    saved = [int(p.name[5:]) for p in (tmp_path / "run").iterdir() if p.name[5:].isdigit()]
    assert len(saved) == 1 and 5 <= saved[0] < LONG


def test_a_run_of_another_recipe_is_not_overwritten(alone, tmp_path):
    status, _, problem = run(recipe(tmp_path, steps=2), tmp_path / "run", 1)
    assert status == 0, problem
    before = (tmp_path / "run" / "run.json").read_bytes()
    status, _, problem = run(recipe(tmp_path, steps=3, name="other.json"), tmp_path / "run", 1)
    assert status == 1 and "another recipe" in problem
    assert (tmp_path / "run" / "run.json").read_bytes() == before


@pytest.mark.parametrize("ranks, field, change", [
    (2, "additive.batch_size", {"batch_size": 7}),
    (1, "additive.learning_rate", {"learning_rate": -1}),
    (1, "additive.config.n_heads", {"config": CONFIG | {"n_heads": 5}}),
    (1, "additive.nonsense", {"nonsense": 1}),
])
def test_a_bad_recipe_is_refused_by_the_name_of_the_field(tmp_path, ranks, field, change):
    status, _, problem = run(recipe(tmp_path, **change), tmp_path / "run", ranks)
    assert status == 1 and f"{field}:" in problem


def continued(first, model):
    """The recipe of a run that begins with this model, and its body."""
    body = json.loads(first.read_text())
    del body["additive"]["config"]
    body["model"] = str(model)
    path = first.with_name("second.json")
    path.write_text(json.dumps(body))
    return path, body


def test_files_and_models_of_a_recipe_are_paths(tmp_path):
    first = recipe(tmp_path, steps=3)
    assert run(first, tmp_path / "first", 1)[0] == 0
    second, body = continued(first, tmp_path / "first" / "model")
    status, reports, problem = run(second, tmp_path / "second", 2)
    assert status == 0, problem
    assert losses(reports)[3] < 5.5
    body["training_file"], text = str(tmp_path / "missing.txt"), body["training_file"]
    second.write_text(json.dumps(body))
    status, _, problem = run(second, tmp_path / "third", 1)
    assert status == 1 and "training_file: there is no file" in problem
    body |= {"training_file": text, "model": str(tmp_path / "nothing")}
    second.write_text(json.dumps(body))
    assert "model: there is no architecture and no folder" in run(second, tmp_path / "fourth", 1)[2]


def test_a_run_of_several_ranks_goes_on_with_the_statistics_of_the_model_it_begins_with(tmp_path):
    def updates(folder):
        raw = (folder / "model" / "optimizer.safetensors").read_bytes()
        return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]["updates"]

    first = recipe(tmp_path, steps=3, optimizer="normalized_sgd", learning_rate=0.01)
    assert run(first, tmp_path / "first", 1)[0] == 0
    second, _ = continued(first, tmp_path / "first" / "model")
    status, _, problem = run(second, tmp_path / "second", 2)
    assert status == 0, problem
    assert (updates(tmp_path / "first"), updates(tmp_path / "second")) == ("3", "6")


def test_a_tokenizer_is_trained_for_all_ranks(tmp_path):
    tokenizer = {"type": "bpe", "vocab_size": 400}
    status, reports, problem = run(recipe(tmp_path, steps=4, tokenizer=tokenizer), tmp_path / "run", 2)
    assert status == 0, problem
    assert reports[-1]["finished"]
    kept = json.loads((tmp_path / "run" / "model" / "tokenizer.json").read_text())
    assert len(kept["model"]["vocab"]) >= 300
