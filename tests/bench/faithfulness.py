#!/usr/bin/env python3
"""Faithfulness of explanations: models of several kinds, trained on real text and measured by POST /v1/explain/evaluate.

    faithfulness.py train PROGRAMS OUT TEXT … [--backend cpu|cuda] [--steps 2000] [--seeds 3]
                    models into OUT/KIND-TEXT-SEED
    faithfulness.py sums PROGRAMS OUT TEXT …
                    differences between the sums of parts and their scores: 20 texts of 128 bytes per model
    faithfulness.py evaluate PROGRAMS OUT TEXT … --length 128 --count 67
                    OUT/MODEL/evaluation-128.json: the last predictions of pieces
    faithfulness.py report OUT TEXT …
                    tables over the seeds, with intervals of 95 % (1,000 bootstrap samples of the predictions)

Models of bytes, d 128, 6 layers, 4 heads, trained on blocks of 512. The kinds are additive attention with windows
4 … 64 and one global layer, additive attention with global layers only, additive attention that forgets, GPT-2 and
linear attention. The last tenth of a text is held out."""

import argparse
import contextlib
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

from http_load import Service, train, upload

TRAINED = 512
SHAPE = {"hidden_size": 128, "n_heads": 4, "n_layer": 6, "n_positions": TRAINED}
KINDS = {
    "windows": ("additive", {**SHAPE, "window_sizes": [4, 8, 16, 32, 64, TRAINED]}),
    "global": ("additive", {**SHAPE, "use_local_att": False}),
    "forgetting": ("additive2", {"hidden_size": 128, "n_heads": 16, "n_layer": 6, "intermediate_size": 368}),
    "gpt2": ("gpt2", {"n_embd": 128, "n_head": 4, "n_layer": 6, "n_positions": TRAINED}),
    "linear": ("linear", SHAPE),
}
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def learned_part(path):
    text = path.read_bytes()
    return text[: len(text) * 9 // 10].decode(errors="ignore")


def make_models(options):
    """Run one job per model; a model whose folder exists is not trained again."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", options.backend])
        try:
            files = {path: upload(service, learned_part(path)) for path in options.texts}
            for path, kind, seed in itertools.product(options.texts, KINDS, range(1, options.seeds + 1)):
                to = options.out / f"{kind}-{path.stem}-{seed}"
                if (to / FILES[1]).exists():
                    continue
                architecture, config = KINDS[kind]
                settings = {"config": config, "sequence_length": TRAINED, "batch_size": options.batch, "max_steps": options.steps}
                if options.backend == "cuda":
                    settings["precision"] = "bf16"
                model = train(service, architecture, files[path], settings, seed, seconds=86400)
                to.mkdir(parents=True, exist_ok=True)
                for name in FILES:
                    (to / name).write_bytes(service.ask("GET", f"/v1/models/{model}/files/{name}"))
                print(json.dumps({"model": to.name, "valid_loss": valid_loss(service, model)}), flush=True)
        finally:
            service.stop()


def valid_loss(service, model):
    """Nats a byte on the held-out part of the job's own text."""
    jobs = json.loads(service.ask("GET", "/v1/fine_tuning/jobs?limit=1"))["data"]
    return next(job["additive"]["valid_loss"] for job in jobs if job["fine_tuned_model"] == model)


# --- asking them -----------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(programs):
    with tempfile.TemporaryDirectory() as folder:
        service = Service(programs, pathlib.Path(folder), ["--backend", "cpu"])
        try:
            yield service
        finally:
            service.stop()


def bring(service, programs, folder):
    """A model folder into the service; its name there."""
    command = [programs / "additive", "--url", f"http://{service.address}", "models", "import", folder.name, folder]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return folder.name


def models_of(options):
    """(folder, text that it was trained on), in the order of kinds."""
    for kind, path in itertools.product(KINDS, options.texts):
        for folder in sorted(options.out.glob(f"{kind}-{path.stem}-*")):
            yield kind, folder, path


def passages(path, length, count, seed=1):
    """Pieces of the held-out tenth."""
    text = path.read_bytes()
    held = text[len(text) * 9 // 10 :].decode(errors="ignore")
    draw = random.Random(seed)
    return [held[at : at + length] for at in (draw.randrange(len(held) - length) for _ in range(count))]


def ask(service, **request):
    return json.loads(service.ask("POST", "/v1/explain", request))


def sums(options):
    """Over all positions: the largest |score less parts|, by the share of a gate's pooled factor. And of the last positions
    how much integrated gradients miss of the difference that they are to sum to."""
    found, missed = {}, {}
    with serving(options.programs) as service:
        for kind, folder, path in models_of(options):
            model = bring(service, options.programs, folder)
            for text in passages(path, 128, options.count):
                last = len(text.encode()) - 1
                for share in (0, 0.25, 0.5, 0.75, 1):
                    rows = ask(service, model=model, input=text, method="contributions", span=[0, last], share=share)["span"]["rows"]
                    worst = max(abs(row["sums"]["rounding"]) for row in rows)
                    found.setdefault(kind, {}).setdefault(share, []).append(worst)
                answer = ask(service, model=model, input=text, method="integrated_gradients", target={"kind": "logit"})["attribution"]
                missed.setdefault(kind, []).append(abs(answer["completeness_error"] / answer["difference"]))
            service.ask("POST", f"/v1/models/{model}/unload")
    for kind, shares in found.items():
        print(json.dumps({"kind": kind, "texts": len(missed[kind]), "worst": {str(share): max(v) for share, v in shares.items()},
                          "integrated_gradients": {"median": statistics.median(missed[kind]), "worst": max(missed[kind])}}))


# --- the study --------------------------------------------------------------------------------------


def evaluate(options):
    """Run one job per model, over a file of pieces; existing evaluations are not repeated."""
    with serving(options.programs) as service:
        for _, folder, path in models_of(options):
            to = folder / f"evaluation-{options.length}.json"
            if to.exists():
                continue
            model = bring(service, options.programs, folder)
            pieces = passages(path, options.length, options.count, seed=folder.name)
            file = upload(service, "".join(json.dumps({"text": piece}) + "\n" for piece in pieces))
            request = {"model": model, "file": file, "texts": options.count, "max_tokens": options.length, "grid": options.grid,
                       "fractions": [fraction for _, fraction in COLUMNS if fraction]}
            job = json.loads(service.ask("POST", "/v1/explain/evaluate", request))
            while job["status"] in ("queued", "running"):
                time.sleep(2)
                job = json.loads(service.ask("GET", f"/v1/explain/evaluations/{job['id']}"))
            if job["status"] != "succeeded":
                raise SystemExit(f"{model}: {job['status']}: {job['error']}")
            to.write_text(json.dumps({"result": job["result"], "rows": rows_of(service, job["id"])}))
            service.ask("POST", f"/v1/models/{model}/unload")
            print(json.dumps({"model": model, "seconds": job["result"]["seconds"]}), flush=True)


def rows_of(service, job):
    rows, after = [], ""
    while True:
        page = json.loads(service.ask("GET", f"/v1/explain/evaluations/{job}/rows?limit=100{after}"))
        rows += [row for text in page["data"] for row in text["rows"]]
        if not page["has_more"]:
            return rows
        after = f"&after={page['data'][-1]['id']}"


COLUMNS = (("comprehensiveness", 0.1), ("sufficiency", 0.2), ("deletion_auc", None), ("insertion_auc", None), ("normalised_aopc", None),
           ("kendall_tau", None), ("far_drop", None))


def interval(values, draw, samples=1000):
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(samples))
    return f"{statistics.fmean(values):.3f} [{means[samples * 25 // 1000]:.3f}, {means[samples * 975 // 1000]:.3f}]"


def table(evaluations):
    """Lines of a table: a method a row, numbers of all predictions together."""
    metrics = evaluations[0]["result"]["metrics"]
    columns = [next(i for i, m in enumerate(metrics) if (m["metric"], m.get("fraction")) == column) for column in COLUMNS]
    yield "| method | " + " | ".join(f"{name}{f' {fraction:.0%}' if fraction else ''} {'↑' if metrics[i]['better'] == 'higher' else '↓'}"
                                     for i, (name, fraction) in zip(columns, COLUMNS)) + " |"
    yield "| --- " * (1 + len(columns)) + "|"
    rows = [row for evaluation in evaluations for row in evaluation["rows"]]
    for at, method in enumerate(evaluations[0]["result"]["methods"]):
        draw, cells = random.Random(1), []
        for i in columns:
            values = [row["methods"][at]["values"][i] for row in rows]
            cells.append(interval([v for v in values if v is not None], draw))
        yield f"| {method['method']} | " + " | ".join(cells) + " |"


def report(options):
    for path, kind in itertools.product(options.texts, KINDS):
        files = sorted(options.out.glob(f"{kind}-{path.stem}-*/evaluation-*.json"))
        for length in sorted({int(file.stem.split("-")[1]) for file in files}):
            found = [json.loads(file.read_text()) for file in files if file.stem == f"evaluation-{length}"]
            count = sum(len(f["rows"]) for f in found)
            print(f"\n{kind}, {path.stem}, {length} bytes, {len(found)} seeds, {count} predictions\n")
            print("\n".join(table(found)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, run in (("train", make_models), ("sums", sums), ("evaluate", evaluate), ("report", report)):
        command = commands.add_parser(name)
        if name != "report":
            command.add_argument("programs", type=pathlib.Path)
        command.add_argument("out", type=pathlib.Path)
        command.add_argument("texts", type=pathlib.Path, nargs="+")
        command.set_defaults(run=run)
        if name == "train":
            command.add_argument("--backend", default="cpu")
            command.add_argument("--steps", type=int, default=2000)
            command.add_argument("--batch", type=int, default=32)
            command.add_argument("--seeds", type=int, default=3)
        if name in ("sums", "evaluate"):
            command.add_argument("--count", type=int, default=20, help="texts of a model")
        if name == "evaluate":
            command.add_argument("--length", type=int, default=128, help="bytes of a text")
            command.add_argument("--grid", type=int, default=10, help="steps of the curves")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
