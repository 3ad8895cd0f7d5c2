"""make bench-quality: what three models of one size learn from one text.

    quality.py --bin build/bench --out build/bench/quality [--train FILE [--valid FILE]] [--steps N | --epochs E]

Windowed additive attention, all-global additive attention and GPT-2 (d 128, 4 heads, 6 layers, dropout 0.1, sequences
of 2048 bytes), trained by the same program with the same recipe (AdamW, learning rate 5e-4 falling linearly to 0, betas
0.9 and 0.999, eps 1e-8, decay 0.01, clipping at 1, batch 2), several seeds each. Reports the best validation loss over
the evaluations of a run: mean and range over the seeds, in nats per token and bits per byte.

A finished run is a file in OUT, named after everything that decides it, and is not repeated: interrupt and go on at
will. Without --train the text is this repository's sources; without --valid the last tenth of it is held out.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys

from bench import sources
from contest import Failure, environment
from plots import pyplot, save

LENGTH, BATCH, VOCAB = 2048, 2, 259
ADDITIVE = {
    "model_type": "FastformerForCausalLM",
    "hidden_size": 128,
    "vocab_size": VOCAB,
    "n_heads": 4,
    "n_positions": LENGTH,
    "n_layer": 6,
    "hidden_dropout_prob": 0.1,
}
GPT2 = {"model_type": "gpt2", "n_embd": 128, "vocab_size": VOCAB, "n_head": 4, "n_positions": LENGTH, "n_layer": 6}
MODELS = {
    "additive, windows": {**ADDITIVE, "window_sizes": [4, 8, 16, 32, 64, LENGTH]},
    "additive, all global": {**ADDITIVE, "use_local_att": False},
    "gpt2": {**GPT2, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
}
COLORS = {"additive, windows": "#0b6e8f", "additive, all global": "#7fb8c9", "gpt2": "#c4622d"}
RECIPE = {
    "sequence_length": LENGTH,
    "batch_size": BATCH,
    "learning_rate": 5e-4,
    "schedule": "linear",
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.01,
    "clip": 1.0,
}


def digest(path):
    if not path:
        return "the last tenth of the text"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def train(program, paths, settings, threads):
    """The lines of a run, evaluations told on standard error as they come."""
    command = [
        program,
        paths[0],
        json.dumps(settings["config"]),
        json.dumps(settings["options"]),
        str(settings["seed"]),
    ]
    lines = []
    with subprocess.Popen(command + paths[1:], env=environment(threads), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            lines.append(json.loads(line))
            if "valid_loss" in lines[-1]:
                print(f"  {line.strip()}", file=sys.stderr, flush=True)
    if process.returncode != 0:
        raise Failure(f"{command[0]}: status {process.returncode}")
    return lines


def finished(out, name, settings):
    """Where the run's file is or will be."""
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return os.path.join(out, f"{name.replace(', ', '-').replace(' ', '-')}-{settings['seed']}-{key}.json")


def collect(arguments, paths, options):
    """Runs by model, doing those that are not there yet. One seed of every model first, then the next seed."""
    texts = {"train": digest(paths[0]), "valid": digest(paths[1] if len(paths) > 1 else None)}
    runs = {name: [] for name in MODELS}
    for seed in range(1, arguments.seeds + 1):
        for name, config in MODELS.items():
            settings = {"config": config, "options": options, "seed": seed, **texts}
            path = finished(arguments.out, name, settings)
            if not os.path.exists(path):
                print(f"{name}, seed {seed}: {options['max_steps']} steps", file=sys.stderr, flush=True)
                program = os.path.join(arguments.bin, "train_curve")
                lines = train(program, paths, settings, arguments.threads)
                with open(path + ".part", "w") as file:
                    json.dump({"settings": settings, "lines": lines}, file)
                os.replace(path + ".part", path)
            with open(path) as file:
                runs[name].append(json.load(file)["lines"])
    return runs


def best(lines):
    return min((line for line in lines if "valid_loss" in line), key=lambda line: line["valid_loss"])


def spread(values, digits=4):
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} … {max(values):.{digits}f})"


def report(runs, options, out):
    rows = [
        f"Best validation loss, mean and range of {len(next(iter(runs.values())))} seeds, {options['max_steps']} steps"
    ]
    rows += ["| model | nats per token | bits per byte | tokens/s |", "| --- | --- | --- | --- |"]
    for name, curves in runs.items():
        bests = [best(lines) for lines in curves]
        rows.append(
            f"| {name} | {spread([b['valid_loss'] for b in bests])} | {spread([b['bits_per_byte'] for b in bests])} "
            f"| {statistics.median(lines[-1]['tokens_per_second'] for lines in curves):,.0f} |"
        )
    print("\n".join(rows))
    with open(os.path.join(out, "table.md"), "w") as file:
        file.write("\n".join(rows) + "\n")


def plot(runs, out):
    for name, curves in runs.items():
        points = [[(line["step"], line["valid_loss"]) for line in lines if "valid_loss" in line] for lines in curves]
        steps = [step for step, _ in points[0]]
        losses = list(zip(*([loss for _, loss in curve] for curve in points)))
        low, high = [min(values) for values in losses], [max(values) for values in losses]
        pyplot.plot(steps, [statistics.mean(values) for values in losses], label=name, color=COLORS[name])
        pyplot.fill_between(steps, low, high, color=COLORS[name], alpha=0.2, linewidth=0)
    pyplot.legend()
    save(os.path.join(out, "curves.svg"), "Validation loss, mean and range over seeds", "step", "nats per token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bench", help="folder of the measuring programs")
    parser.add_argument("--out", default="build/bench/quality", help="folder for results")
    parser.add_argument("--train", help="text to train on")
    parser.add_argument("--valid", help="held-out text")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--epochs", type=float, help="instead of steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=20, help="of each run")
    parser.add_argument("--eval-blocks", type=int, default=0, help="blocks of an evaluation; 0: all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    paths = [arguments.train] if arguments.train else [os.path.join(arguments.out, "sources.txt")]
    if not arguments.train:
        sources(paths[0])
    if arguments.valid:
        paths.append(arguments.valid)
    steps = arguments.steps
    if arguments.epochs:
        share = 1 if arguments.valid else 0.9
        steps = max(1, int(arguments.epochs * share * os.path.getsize(paths[0]) / (LENGTH * BATCH)))
    every = max(1, steps // arguments.evaluations)
    options = {**RECIPE, "max_steps": steps, "eval_every": every, "eval_blocks": arguments.eval_blocks}
    runs = collect(arguments, paths, options)
    report(runs, options, arguments.out)
    plot(runs, arguments.out)


if __name__ == "__main__":
    main()
