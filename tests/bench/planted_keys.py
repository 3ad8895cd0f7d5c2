#!/usr/bin/env python3
"""Planted keys: the rank of the token that the answer depends on, in explanations of lines in which it is known.

    efg%7jklmnop#3bcdefgh=3           the answer after "=" is the digit after "#"; the digit after "%" is irrelevant

For lines that a model answers right, each method names the tokens with the largest numbers, without the reader ("=").

    planted_keys.py PROGRAMS [--architecture additive|additive2|gpt2|linear] [--config JSON] [--steps 2500] [--lines 200] [--seeds 3]

PROGRAMS: the folder of additived and additive-httpd. Prints JSON. Each method and baseline has three numbers over
all seeds. The first is the share of lines whose first token is the key. The second is the number of the first two
tokens that are key or mark, the third the share of lines with the key among the first five. Each has the bounds of
95 % of 1,000 bootstrap samples of the lines. Also the share of lines that were answered right, and lines per seed."""

import argparse
import json
import pathlib
import random
import tempfile

from http_load import Service, train, upload

LENGTH, FILLER = 24, "abcdefghijklmnopq"  # bytes of a line, its end included
CORPUS, SAMPLES = 60000, 1000
CONFIGS = {
    "additive": {"hidden_size": 64, "n_heads": 4, "n_layer": 4, "use_local_att": False, "n_positions": LENGTH},
    "additive2": {"hidden_size": 64, "n_heads": 8, "n_layer": 4, "intermediate_size": 176},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": LENGTH},
    "linear": {"hidden_size": 64, "n_heads": 4, "n_layer": 4, "n_positions": LENGTH},
}
METHODS = ["contributions", "attention_x_gradient", "gradient_x_input", "integrated_gradients, zero", "integrated_gradients, mean", "leave_one_out"]


def line(draw, length=LENGTH):
    """(the line up to "=", the answer, where mark and key are)"""
    begin = draw.randrange(len(FILLER))  # letters that follow from each other, so that nothing is to be learned but the rest
    text = [FILLER[(begin + i) % len(FILLER)] for i in range(length - 3)]
    places = draw.sample(range(1, length - 6, 2), 2)
    key, other = draw.choice("0123456789"), draw.choice("0123456789")
    for place, mark, digit in ((places[0], "#", key), (places[1], "%", other)):
        text[place], text[place + 1] = mark, digit
    return "".join(text) + "=", key, (places[0], places[0] + 1)


def ask(service, model, text, **options):
    return json.loads(service.ask("POST", "/v1/explain", {"model": model, "input": text, **options}))


def numbers(service, model, text, method):
    if method in ("mean", "rollout"):
        return ask(service, model, text, method="alpha", aggregate=method)["aggregate"]["alpha"]
    if method == "leave_one_out, replaced":
        return ask(service, model, text, method="leave_one_out", replacement="a")["attribution"]["tokens"]
    if method.startswith("integrated_gradients, "):
        return ask(service, model, text, method="integrated_gradients", baseline=method.split(", ")[1])["attribution"]["tokens"]
    answer = ask(service, model, text, method=method)
    return (answer.get("contributions") or answer["attribution"])["tokens"]


def score(values, planted):
    """(is the key first, of the first two the planted ones, is the key among five) of the tokens before the reader."""
    order = sorted(range(len(values) - 1), key=lambda i: -values[i])
    return order[0] == planted[1], sum(i in planted for i in order[:2]) / 2, planted[1] in order[:5]


def judge(service, model, draw, lines):
    """{method: the scores of each line}, and the share of lines that were answered right."""
    found, right = {}, 0
    for _ in range(lines):
        text, key, planted = line(draw)
        first = ask(service, model, text, method="contributions")["contributions"]
        if first["target"]["token"]["text"] != key:
            continue
        right += 1
        for method in [*METHODS, "leave_one_out, replaced", "mean", "rollout"]:
            values = first["tokens"] if method == "contributions" else numbers(service, model, text, method)
            found.setdefault(method, []).append(score(values, planted))
        found.setdefault("random", []).append(score([draw.random() for _ in text], planted))
        found.setdefault("recency", []).append(score(range(len(text)), planted))
    return found, right / lines


def interval(values, draw):
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(SAMPLES))
    return [round(x, 3) for x in (sum(values) / len(values), means[SAMPLES * 25 // 1000], means[SAMPLES * 975 // 1000])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--architecture", choices=CONFIGS, default="additive")
    parser.add_argument("--config", type=json.loads, default={}, help="keys of config.json beside ours")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    settings = {"config": CONFIGS[options.architecture] | options.config, "sequence_length": LENGTH, "batch_size": 32,
                "max_steps": options.steps, "learning_rate": 2e-3}
    found, right = {}, []
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu"])
        try:
            for seed in range(1, options.seeds + 1):
                draw = random.Random(seed)
                corpus = "".join(f"{text}{key}\n" for text, key, _ in (line(draw) for _ in range(CORPUS)))
                model = train(service, options.architecture, upload(service, corpus), settings, seed, seconds=3600)
                scores, share = judge(service, model, draw, options.lines)
                right.append(share)
                for method, values in scores.items():
                    found.setdefault(method, []).extend(values)
        finally:
            service.stop()
    draw = random.Random(0)
    columns = ("key first", "precision of two", "key among five")
    print(json.dumps({"right": right, "lines": options.lines, "steps": options.steps,
                      "methods": {m: {c: interval([float(v[i]) for v in values], draw) for i, c in enumerate(columns)}
                                  for m, values in found.items()}}, indent="\t"))


if __name__ == "__main__":
    main()
