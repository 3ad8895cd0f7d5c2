#!/usr/bin/env python3
"""Write tests/data/golden/sources/dilated_{cases,mixture,module}: inputs and the results of dilated_attention.py in
float64.

usage: make_dilated_golden.py [FOLDER]          (default: tests/data/golden/sources)

Inputs F32, values F64, "config" in the metadata JSON; the form is that of tests/golden/readers/longnet.c and
longnet_module.c. In the cases
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
MODULE = {"batch": 2, "heads": 3, "N": 11, "embed_dim": 12, "segment": [4, 8, 16], "dilation": [1, 2, 4]}
EPS = 1e-5  # eps of the norm after the attention


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


def module_heads(q, k, v, causal):
    """Return the heads of rows [N,D], with torchscale's offsets and padding."""
    for h, rows in enumerate(zip(*(numpy.split(x, MODULE["heads"], -1) for x in (q, k, v)), strict=True)):
        branches = [(w, r, first_row("block", MODULE["heads"], h, r))
                    for w, r in zip(MODULE["segment"], MODULE["dilation"], strict=True)]
        yield Head(*rows, branches, causal, zero_keys=not causal)


def make_module(random):
    d, projections = MODULE["embed_dim"], ("q_proj", "k_proj", "v_proj", "out_proj")
    found = {f"{name}.weight": normal(random, d, d) / 2 for name in projections}
    found |= {f"{name}.bias": normal(random, d) / 4 for name in (*projections, "inner_attn_ln")}
    found["inner_attn_ln.weight"] = 1 + normal(random, d) / 4
    found |= {name: normal(random, MODULE["batch"], MODULE["N"], d) for name in ("x", "dy")}
    w, values = {name: array.astype(float) for name, array in found.items()}, {}
    for direction in ("bidir", "causal"):
        sums = {name: numpy.zeros(w[name].shape) for name in w if name not in ("x", "dy")}
        y, dx = numpy.zeros(w["x"].shape), numpy.zeros(w["x"].shape)

        def back(name, into, dout):
            sums[f"{name}.weight"] += dout.T @ into
            sums[f"{name}.bias"] += dout.sum(0)
            return dout @ w[f"{name}.weight"]

        for b, (x, dy) in enumerate(zip(w["x"], w["dy"], strict=True)):
            q, k, v = (x @ w[f"{name}.weight"].T + w[f"{name}.bias"] for name in projections[:3])
            heads = list(module_heads(q, k, v, direction == "causal"))
            h = numpy.concatenate([head.y for head in heads], -1)
            rstd = (h.var(-1, keepdims=True) + EPS) ** -0.5
            unit = (h - h.mean(-1, keepdims=True)) * rstd
            normed = unit * w["inner_attn_ln.weight"] + w["inner_attn_ln.bias"]
            y[b] = normed @ w["out_proj.weight"].T + w["out_proj.bias"]
            dnormed = back("out_proj", normed, dy)
            sums["inner_attn_ln.weight"] += (dnormed * unit).sum(0)
            sums["inner_attn_ln.bias"] += dnormed.sum(0)
            dunit = dnormed * w["inner_attn_ln.weight"]
            dh = rstd * (dunit - dunit.mean(-1, keepdims=True) - unit * (dunit * unit).mean(-1, keepdims=True))
            parts = [head.gradients(part, detach=True)[:3] for head, part in zip(heads, numpy.split(dh, len(heads), -1), strict=True)]
            for i, name in enumerate(projections[:3]):
                dx[b] += back(name, x, numpy.concatenate([part[i] for part in parts], -1))
        values |= {f"{direction}.y": y, f"{direction}.dx": dx}
        values |= {f"{direction}.d.{name}": array for name, array in sums.items()}
    return found | values


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden" / "sources"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    random, cases = numpy.random.default_rng(31), {}
    for name, c in CASES.items():
        cases |= make_case(random, name, c)
    tensors.write(folder / "dilated_cases.safetensors", cases, {"config": json.dumps(CASES)})
    tensors.write(folder / "dilated_mixture.safetensors", make_mixture(random), {"config": json.dumps(MIXTURE)})
    tensors.write(folder / "dilated_module.safetensors", make_module(random), {"config": json.dumps(MODULE)})


if __name__ == "__main__":
    main()
