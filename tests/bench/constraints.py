#!/usr/bin/env python3
"""The cost of a constraint: the engine's processor time for each token with a regular expression, a JSON Schema or a grammar, and with none.

    constraints.py PROGRAMS [--client build/bench/bench_http] [--streams 8] [--seconds 3] [--rounds 4] [--vocab 8192]

PROGRAMS: the folder of additived and additive-httpd. The model has width 128, 6 layers, random weights and a BPE of VOCAB tokens. The kinds of
requests take turns, ROUNDS times, with STREAMS streams of drawn tokens for SECONDS each. No text can end before its limit of
tokens. Prints JSON: microseconds of processor time and of elapsed time for each token, and the ratio of the former to that
without a constraint, as medians of the rounds."""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from contest import Failure
from http_load import Service, load, make_model

MODEL = {"hidden_size": 128, "n_heads": 4, "n_layer": 6, "n_positions": 2048}
TOKENS, WARM = 256, 1
SCHEMA = {"type": "array", "minItems": 128, "items": {
    "type": "object", "required": ["name", "count", "kind"], "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}, "kind": {"enum": ["first", "second", "third"]}}}}
KINDS = {
    "none": {},
    "regex": {"regex": "([a-z]+[ ,]){200,}[a-z]+"},
    "schema": {"json": SCHEMA},
    "grammar": {"grammar": 'root ::= (word sep){200,} word\nword ::= [a-z]+\nsep ::= " " | ", "'}}


def bout(service, options, request):
    found = load(options.client, service.address, request, options.streams, WARM, options.seconds, service.processes())
    if found["failed"] or not found["events"]:
        raise Failure(f"{found['failed']} answers failed: {found.get('why', '')}")
    return {"cpu": found["cpu"]["engine"] * 1e6 / found["events"], "elapsed": found["seconds"] * 1e6 / found["events"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--client", type=pathlib.Path, default=pathlib.Path("build/bench/bench_http"))
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=8192)
    options = parser.parse_args()
    bouts = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu"])
        try:
            model = make_model(service, MODEL, options.vocab)
            common = {"model": model, "prompt": "All work", "max_tokens": TOKENS, "temperature": 0.8, "stream": True}
            for number in range(options.rounds):
                for kind in list(KINDS) if number % 2 == 0 else list(KINDS)[::-1]:
                    bouts[kind].append(bout(service, options, {**common, **({"structured_outputs": KINDS[kind]} if KINDS[kind] else {})}))
        finally:
            service.stop()
    medians = {kind: {what: statistics.median(b[what] for b in found) for what in found[0]} for kind, found in bouts.items()}
    print(json.dumps({kind: {"cpu_us": round(m["cpu"], 1), "elapsed_us": round(m["elapsed"], 1), "times_none": round(m["cpu"] / medians["none"]["cpu"], 3)}
                      for kind, m in medians.items()}, indent="\t"))


if __name__ == "__main__":
    sys.exit(main())
