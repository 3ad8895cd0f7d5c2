#!/usr/bin/env python3
"""Compute golden sets again and again and compare the bits.

usage: repeat_golden.py [--bin FOLDER] [--runs N] [--seed N] [--jobs N] [--golden FOLDER]

A run computes one set in one form: in parallel, token by token, or with gradients. The sets come in a new order in
each round. On the emulated device (ADDITIVE_PLUGIN_DIR) every run also has a new order of threads and blocks. All runs
of a set and form must write the same bytes; whether they are right is what tests/e2e/test_golden.py checks. A form
that the first round refuses is left out and counted. Exit status 1 if a run failed or differs.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FORMS = {"parallel": [], "recurrent": ["--recurrent"], "gradients": ["--gradients"]}


def compute(program, path, form, order):
    """The digest of what a run writes; what it says if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.safetensors"
        command = [program, "--golden", path, "--outputs", out, "--backend", "cuda", "--threads", "1", *FORMS[form]]
        environment = os.environ | {"ADDITIVE_EMULATOR_ORDER": order}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            return None, f"status {done.returncode}: {done.stderr.strip()[-300:]}"
        return hashlib.sha256(out.read_bytes()).hexdigest(), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=ROOT / "build" / "bin", type=pathlib.Path, help="folder of additive-eval")
    parser.add_argument("--runs", default=2000, type=int, help="number of runs (2000)")
    parser.add_argument("--seed", default=1, type=int, help="of the orders (1)")
    parser.add_argument("--jobs", default=2, type=int, help="runs at a time (2)")
    parser.add_argument("--golden", type=pathlib.Path, help="folder with further golden files")
    arguments = parser.parse_args()
    files = sorted((ROOT / "tests/data/golden").glob("*.safetensors"))
    files += sorted(arguments.golden.rglob("*.safetensors")) if arguments.golden else []
    cases = [(path, form) for path in files for form in FORMS]
    random.seed(arguments.seed)
    program, first, left_out, counts = arguments.bin / "additive-eval", {}, set(), collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        run = 0
        while run < arguments.runs and len(left_out) < len(cases):
            turn = [case for case in cases if case not in left_out][: arguments.runs - run]
            random.shuffle(turn)
            orders = [f"shuffle:{arguments.seed * 1000003 + run + i}" if run else "forward" for i in range(len(turn))]
            for case, (digest, message) in zip(turn, pool.map(lambda c, o: compute(program, *c, o), turn, orders)):
                name = f"{case[0].stem} {case[1]}"
                if not run and digest is None:
                    left_out.add(case)
                    print(f"{name}: left out, {message}", flush=True)
                elif digest is None or first.setdefault(case, digest) != digest:
                    counts["bad"] += 1
                    print(f"{name}: {message or 'other bits than in the first round'}", flush=True)
                else:
                    counts["equal"] += 1
            run += len(turn)
    print(f"{len(first)} sets and forms, {len(left_out)} left out; {counts['equal']} runs equal, {counts['bad']} not")
    return counts["bad"] > 0 or not first


if __name__ == "__main__":
    sys.exit(main())
