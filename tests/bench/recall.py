#!/usr/bin/env python3
"""Recall by key: how often a model answers with the value that a line gave for a key.

    aQb7cXd2bQ…     pairs of a key and its value, then the same keys in another order, each followed by its value

    recall.py PROGRAMS [--models NAME;…] [--steps 3000] [--lines 250] [--seeds 3]

PROGRAMS: the folder of additived and additive-httpd. One model of each kind learns lines of 4, 8, 16 and 32 pairs, all
tokens of them. Keys differ within a line, values may be equal. Each model then answers LINES lines of each number of
pairs, which it has not seen: the line ends with a key, and the likeliest next token is the answer. Prints a row for each
kind: the share of right answers, mean and range over the seeds. "a value of the line" is the share that is right for a
model that draws one of the line's values."""

import argparse
import json
import pathlib
import random
import statistics
import string
import tempfile

from http_load import Service, train, upload

KEYS, VALUES = string.ascii_letters[:40], string.digits + string.punctuation.replace('"', "").replace("\\", "")
PAIRS = 4, 8, 16, 32
DOCUMENTS, LENGTH = 60000, 4 * max(PAIRS) + 4  # a row holds a line and the tokens around it
FORGETTING = {"hidden_size": 64, "n_heads": 8, "n_layer": 2, "intermediate_size": 176}
PLAIN = {"hidden_size": 64, "n_heads": 4, "n_layer": 2, "n_positions": LENGTH}
MODELS = {
    "additive 2": ("additive2", FORGETTING),
    "additive 2, window of 32 in the second layer": ("additive2", {**FORGETTING, "window_layers": [1], "window": 32}),
    "additive 2, window of 128 in the second layer": ("additive2", {**FORGETTING, "window_layers": [1], "window": 128}),
    "windows of 32, shift and gate": ("additive2", {**FORGETTING, "window_layers": [0, 1], "window": 32}),
    "rotary, shift and gate": ("additive2", {**FORGETTING, "window_layers": [0, 1], "window": LENGTH}),
    "gpt2": ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": LENGTH}),
    "linear": ("linear", PLAIN),
    "additive, all global": ("additive", {**PLAIN, "use_local_att": False}),
}


def pairs_of(draw, count):
    return list(zip(draw.sample(KEYS, count), draw.choices(VALUES, k=count)))


def text_of(pairs):
    return "".join(key + value for key, value in pairs)


def document(draw):
    pairs = pairs_of(draw, draw.choice(PAIRS))
    return json.dumps({"text": text_of(pairs) + text_of(draw.sample(pairs, len(pairs)))})


def answers(service, model, draw, count, lines):
    """The share of lines that are answered right."""
    right = 0
    for _ in range(lines):
        pairs = pairs_of(draw, count)
        key, value = draw.choice(pairs)
        request = {"model": model, "prompt": text_of(pairs) + key, "max_tokens": 1, "temperature": 0}
        right += json.loads(service.ask("POST", "/v1/completions", request))["choices"][0]["text"] == value
    return right / lines


def guesses(draw, count, lines):
    values = ([value for _, value in pairs_of(draw, count)] for _ in range(lines))
    return statistics.mean(statistics.mean(line.count(value) for value in line) / count for line in values)


def cell(shares):
    return f"{statistics.mean(shares):.2f}" + (f" ({min(shares):.2f} … {max(shares):.2f})" if len(shares) > 1 else "")


def row(name, cells):
    print("| " + " | ".join([name, *cells]) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--models", type=lambda text: text.split(";"), default=list(MODELS), help=f"some of: {'; '.join(MODELS)}")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--lines", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    settings = {"sequence_length": LENGTH, "batch_size": 32, "max_steps": options.steps, "learning_rate": 4e-3,
                "reset_at_document": True, "validation_fraction": 0.01}
    row("", [f"{count} pairs" for count in PAIRS])
    row("a value of the line", [f"{guesses(random.Random(0), count, 1000):.2f}" for count in PAIRS])
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu"])
        try:
            for name in options.models:
                architecture, config = MODELS[name]
                shares = [[] for _ in PAIRS]
                for seed in range(1, options.seeds + 1):
                    draw = random.Random(seed)
                    file = upload(service, "\n".join(document(draw) for _ in range(DOCUMENTS)) + "\n")
                    model = train(service, architecture, file, {**settings, "config": config}, seed, seconds=7200)
                    for count, share in zip(PAIRS, shares):
                        share.append(answers(service, model, draw, count, options.lines))
                row(name, map(cell, shares))
        finally:
            service.stop()


if __name__ == "__main__":
    main()
