"""The benefit of a position table: additive models with and without one, on short and long texts.

    positions.py --bin FOLDER --out FOLDER [--seeds N] [--steps 600,2400] [--report] TEXT …

FOLDER of --bin holds train_curve and additive-eval. Every text (bytes, the last tenth held out) trains models of d 128,
4 heads and 6 layers. They have windows 4 … 64 and one global layer, or global layers only, each with learned positions
and with none. Blocks of 512, 8 per step, AdamW 5e-4 falling linearly to 0, dropout 0.1. Each model then reads the
held-out tenth in blocks of 512, 2,048 and 16,384 tokens; past the end of a table its last row is used. Losses are nats
per byte, of whole blocks and of their second halves.

Each finished run is a line of OUT/results.jsonl and is not repeated, so runs can be interrupted and continued at any
time. --report trains nothing and prints the table of finished runs. Needs numpy.
"""

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import tensors  # noqa: E402
from contest import environment  # noqa: E402
from quality import spread  # noqa: E402

TRAINED, LENGTHS, CHUNK = 512, (512, 2048, 16384), 256
FIRST_BYTE, IGNORED = 3, -100
WINDOWS = {"windows": {"window_sizes": [4, 8, 16, 32, 64, TRAINED]}, "all global": {"use_local_att": False}}
KINDS = ("none", "learned")
OPTIONS = {"sequence_length": TRAINED, "batch_size": 8, "learning_rate": 5e-4, "schedule": "linear", "eval_every": 300}


def config(windows, kind):
    return {
        "hidden_size": 128,
        "vocab_size": FIRST_BYTE + 256,
        "n_heads": 4,
        "n_positions": TRAINED,
        "position_embedding": kind,
        "n_layer": 6,
        "hidden_dropout_prob": 0.1,
        **WINDOWS[windows],
    }


def held_out(text):
    """The ids of the tenth that train_curve holds out."""
    with open(text, "rb") as file:
        ids = numpy.frombuffer(file.read(), numpy.uint8).astype(numpy.int32) + FIRST_BYTE
    return ids[len(ids) - len(ids) // 10 :]


def read_on(program, folder, ids, length, first):
    """Mean loss of the tokens `first` … of all whole blocks of `length`."""
    blocks = ids[: len(ids) // length * length].reshape(-1, length)
    labels = blocks.copy()
    labels[:, :first] = IGNORED
    inputs, outputs = os.path.join(folder, "inputs.safetensors"), os.path.join(folder, "outputs.safetensors")
    tensors.write(inputs, {"input_ids": blocks, "labels": labels})
    subprocess.run(
        [program, "--model", folder, "--inputs", inputs, "--outputs", outputs, "--loss-only"]
        + ["--recurrent", "--chunk", str(CHUNK), "--position-policy", "clamp"],
        env=environment(1),
        check=True,
    )
    return float(tensors.read(outputs)[0]["loss"])


def measure(arguments, run):
    """One line of the results."""
    options = {**OPTIONS, "max_steps": run["steps"]}
    with tempfile.TemporaryDirectory(dir=arguments.out) as scratch:
        folder = os.path.join(scratch, "model")
        command = [os.path.join(arguments.bin, "train_curve"), run["path"], json.dumps(config(run["windows"], run["kind"]))]
        command += [json.dumps(options), str(run["seed"]), "-", folder]
        done = subprocess.run(command, env=environment(1), check=True, capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        ids = held_out(run["path"])
        program = os.path.join(arguments.bin, "additive-eval")
        losses = {str(n): [read_on(program, folder, ids, n, first) for first in (0, n // 2)] for n in LENGTHS}
    curve = [[line["step"], line["valid_loss"]] for line in lines if "valid_loss" in line]
    return {**key(run), "curve": curve, "losses": losses, "seconds": lines[-1]["seconds"]}


def key(run):
    return {name: run[name] for name in ("text", "windows", "kind", "steps", "seed")}


def plan(arguments):
    """Return the runs, the most important first."""
    steps = [int(n) for n in arguments.steps.split(",")]
    for n, (path, windows) in itertools.product(steps, itertools.product(arguments.texts, WINDOWS)):
        for seed, kind in itertools.product(range(1, arguments.seeds + 1), KINDS):
            yield {"text": os.path.basename(path), "path": path, "windows": windows, "kind": kind, "steps": n, "seed": seed}


def results(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def report(runs):
    head = ["text", "steps", "layers", "positions", "seeds"] + [f"at {n:,}" for n in LENGTHS] + [f"second half of {LENGTHS[-1]:,}"]
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    order = {(r["steps"], r["text"], r["windows"], r["kind"]): None for r in runs}
    for steps, text, windows, kind in order:
        same = [r["losses"] for r in runs if (r["steps"], r["text"], r["windows"], r["kind"]) == (steps, text, windows, kind)]
        cells = [spread([r[str(n)][0] for r in same], 3) for n in LENGTHS] + [spread([r[str(LENGTHS[-1])][1] for r in same], 3)]
        print(f"| {text} | {steps} | {windows} | {kind} | {len(same)} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--bin", default="build/bench", help="folder of train_curve and additive-eval")
    parser.add_argument("--out", default="build/bench/positions", help="folder for results")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", default="600,2400")
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    path = os.path.join(arguments.out, "results.jsonl")
    for run in [] if arguments.report else plan(arguments):
        if key(run) in [key(done) for done in results(path)]:
            continue
        result = measure(arguments, run)
        if not all(math.isfinite(loss) for pair in result["losses"].values() for loss in pair):
            sys.exit(f"positions: a loss is not finite: {result}")
        with open(path, "a") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result), file=sys.stderr, flush=True)
    report(results(path))


if __name__ == "__main__":
    main()
