#!/usr/bin/env python3
"""Write tests/data/golden/sources/dilated_{cases,mixture}: inputs and what dilated_attention.py computes in float64.

usage: make_dilated_golden.py [FOLDER]          (default: tests/data/golden/sources)

Inputs F32, values F64, "config" in the metadata JSON; the form is that of engine/eval/golden/longnet.c. In the cases
segments are multiples of nothing, longer than the sequence, or leave rows that no branch keeps, and heads are no
multiple of a dilation.
"""

import json
import pathlib
import sys

import numpy

import tensors
from dilated_attention import Head, first_row

CASES = {"odd": {"N": 19, "segment": [3, 8, 20], "dilation": [1, 3, 2], "heads": 3, "head_dim": 5},
         "gap": {"N": 14, "segment": [4, 9], "dilation": [2, 4], "heads": 2, "head_dim": 3}}  # fmt: skip
COMBINATIONS = [("bidir", "block", "mask"), ("bidir", "mod", "mask"), ("bidir", "block", "zero_keys"),
                ("causal", "block", "mask"), ("causal", "mod", "mask")]  # fmt: skip
MIXTURE = {"batch": 2, "heads": 2, "N": 16, "head_dim": 3, "segment": [4, 16], "dilation": [1, 4]}


def normal(random, *shape):
    return random.standard_normal(shape).astype(numpy.float32)


def make_case(random, name, c):
    shape = c["heads"], c["N"], c["head_dim"]
    rows = {key: normal(random, *shape) for key in ("q", "k", "v", "dO")}
    found = {f"{name}.{key}": array for key, array in rows.items()}
    for direction, offset, padding in COMBINATIONS:
        heads = []
        for h in range(c["heads"]):
            branches = [(w, r, first_row(offset, c["heads"], h, r))
                        for w, r in zip(c["segment"], c["dilation"], strict=True)]
            q, k, v = (rows[key][h].astype(float) for key in "qkv")
            heads.append(Head(q, k, v, branches, direction == "causal", padding == "zero_keys"))
        prefix = f"{name}.{direction}.{offset}.{padding}."
        lse = numpy.array([head.normalizer for head in heads]).swapaxes(0, 1)
        found[prefix + "lse"] = numpy.where(numpy.isfinite(lse), lse, -1e8)
        found[prefix + "weight"] = numpy.array([head.weight for head in heads]).swapaxes(0, 1)
        found[prefix + "out"] = numpy.array([head.y for head in heads])
        for ending in ("detach", "full"):
            grads = [head.gradients(rows["dO"][h].astype(float), ending == "detach") for h, head in enumerate(heads)]
            for i, key in enumerate("qkv"):
                found[f"{prefix}d{key}_{ending}"] = numpy.array([g[i] for g in grads])
    return found


def make_mixture(random):
    c = MIXTURE
    shape = c["batch"], c["heads"], c["N"], c["head_dim"]
    found = {key: normal(random, *shape) for key in ("q", "k", "v", "dO")} | {"alpha": normal(random, 2)}
    branches = [(w, r, 0) for w, r in zip(c["segment"], c["dilation"], strict=True)]
    results = {"out": [], "dq": [], "dk": [], "dv": [], "dalpha": []}
    for row in numpy.ndindex(shape[:2]):
        q, k, v, dy = (found[key][row].astype(float) for key in ("q", "k", "v", "dO"))
        head = Head(q, k, v, branches, mixture=found["alpha"].astype(float))
        for key, array in zip(results, (head.y, *head.gradients(dy, True)), strict=True):
            results[key].append(array)
    dalpha = numpy.sum(results.pop("dalpha"), 0)
    return found | {key: numpy.array(list_).reshape(shape) for key, list_ in results.items()} | {"dalpha": dalpha}


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden" / "sources"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    random, cases = numpy.random.default_rng(31), {}
    for name, c in CASES.items():
        cases |= make_case(random, name, c)
    tensors.write(folder / "dilated_cases.safetensors", cases, {"config": json.dumps(CASES)})
    tensors.write(folder / "dilated_mixture.safetensors", make_mixture(random), {"config": json.dumps(MIXTURE)})


if __name__ == "__main__":
    main()
