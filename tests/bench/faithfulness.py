#!/usr/bin/env python3
"""How faithful explanations are: models of several kinds, trained on real text and asked through POST /v1/explain/evaluate.

    faithfulness.py train PROGRAMS OUT TEXT … [--backend cpu|cuda] [--steps 2000] [--seeds 3]     models into OUT/KIND-TEXT-SEED

Models of bytes, d 128, 6 layers, 4 heads, trained on blocks of 512: additive attention with windows 4 … 64 and one global layer,
with global layers only, GPT-2 and linear attention. The last tenth of a text is held out."""

import argparse
import itertools
import json
import pathlib
import tempfile

from http_load import Service, train, upload

TRAINED = 512
SHAPE = {"hidden_size": 128, "n_heads": 4, "n_layer": 6, "n_positions": TRAINED}
KINDS = {
    "windows": ("additive", {**SHAPE, "window_sizes": [4, 8, 16, 32, 64, TRAINED]}),
    "global": ("additive", {**SHAPE, "use_local_att": False}),
    "gpt2": ("gpt2", {"n_embd": 128, "n_head": 4, "n_layer": 6, "n_positions": TRAINED}),
    "linear": ("linear", SHAPE),
}
FILES = ("config.json", "model.safetensors", "tokenizer.json")


def learned_part(path):
    text = path.read_bytes()
    return text[: len(text) * 9 // 10].decode(errors="ignore")


def make_models(options):
    """One job a model; a folder that is there is not trained again."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("train")
    making.add_argument("programs", type=pathlib.Path)
    making.add_argument("out", type=pathlib.Path)
    making.add_argument("texts", type=pathlib.Path, nargs="+")
    making.add_argument("--backend", default="cpu")
    making.add_argument("--steps", type=int, default=2000)
    making.add_argument("--batch", type=int, default=32)
    making.add_argument("--seeds", type=int, default=3)
    making.set_defaults(run=make_models)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
