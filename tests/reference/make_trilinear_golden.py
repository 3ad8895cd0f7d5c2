#!/usr/bin/env python3
"""Write tests/data/golden/sources/trilinear and trilinear_*: weights, texts, and what trilinear.py computes in float64.

usage: make_trilinear_golden.py [FOLDER]          (default: tests/data/golden/sources)

The form is that of tests/golden/readers/trilinear.c. The texts are longer than both windows.
"""

import json
import pathlib
import sys

import numpy

import tensors
import trilinear

SIZES = {"D": 12, "Q": 6, "T": 16, "V": 9}
WINDOWS = {"narrow": 4, "wide": 7}
LAYERS = [[0.25, 0, 0], [0, 0, 1], [0, 20 / 3, 0]]
FORMS = {"w8": (8, 32), "w4": (4, 32), "w2": (2, 32), "w8v8": (8, 8), "w2v8": (2, 8)}
LENGTHS = (14, 5)
GENERATED, LONGEST = 12, 6


LAYERS_OF_TWO = [[[0.25, 0, 0], [0, 0, 1]], [[0, 20 / 3, 0], [0.5, 0, 0]]]
RATE, STEPS = 0.1, 10


def windows(layers):
    """As trilinear.py has them: an attention is (slope, hyper, window)."""
    def attention(slope, hyper, wide):
        return slope, float(numpy.float32(hyper)), WINDOWS["wide" if wide else "narrow"]

    return [[attention(*one) for one in layer] if isinstance(layer[0], list) else attention(*layer) for layer in layers]


def draw(random, layers):
    """Weights in float32, and the same as numbers to compute with."""
    d, q, t, v = SIZES.values()
    shapes = {"E": (v + 2, d), "F": (v, d), "bias": (v,)}
    for number, layer in enumerate(windows(layers)):
        for prefix, _ in trilinear.attentions(number, layer):
            shapes |= {prefix + name: shape for name, shape in dict(QK=(q, d), QV=(q, d), K=(t, d), V=(t, d), C=(d, 16 * t)).items()}
    arrays = {name: (0.4 * random.standard_normal(shape)).astype(numpy.float32) for name, shape in shapes.items()}
    return arrays, {name: array.astype(float) for name, array in arrays.items()}


def tokens(random):
    texts = [[int(token) for token in random.integers(0, SIZES["V"], n)] for n in LENGTHS]
    return texts, {f"tokens_frag{i}": numpy.array(text, numpy.int32) for i, text in enumerate(texts)}


def config(layers, **more):
    return {"config": json.dumps(SIZES | {"window": WINDOWS["narrow"], "wide_window": WINDOWS["wide"], "layers": layers, **more})}


def states(layers):
    return [f"s{layer}" for layer in range(len(layers) + 1)]


def make_whole(random):
    arrays, weights = draw(random, LAYERS)
    layers = windows(LAYERS)
    texts, more = tokens(random)
    prompt = numpy.array(random.integers(0, SIZES["V"], 3), numpy.int32)
    arrays |= more | {"prompt": prompt}
    arrays |= trilinear.together(weights, layers, texts) | trilinear.graph(layers, texts, WINDOWS)
    for layer in range(1, len(LAYERS)):
        del arrays[f"L{layer}.p"]  # one will do
    arrays |= {f"d.{name}": array for name, array in trilinear.all_gradients(weights, layers, texts).items()}
    for form, (bits, vectors) in FORMS.items():
        found = trilinear.together(trilinear.quantized(weights, bits), layers, texts, vectors)
        arrays |= {f"{form}.{name}": found[name] for name in (*states(layers), "prob", "score")}
    for name, longest in (("full", None), ("trunc", LONGEST)):
        arrays[f"{name}.ids"], arrays[f"{name}.prob"] = trilinear.generate(weights, layers, prompt.tolist(), GENERATED, longest)
    ids = arrays["full.ids"].tolist()[:-1]
    arrays["full.all_prob_stream"] = trilinear.forward(weights, layers, ids, [0] * len(ids))["prob"]
    return arrays, config(LAYERS, truncated=LONGEST)


def make_multi(random):
    """Layers of two attentions; the second ones' combiners are 0 where they are missing."""
    arrays, weights = draw(random, LAYERS_OF_TWO)
    layers = windows(LAYERS_OF_TWO)
    texts, more = tokens(random)
    del arrays["L1A1.C"]
    weights["L1A1.C"][:] = 0
    found = trilinear.together(weights, layers, texts)
    gradients = {f"d.{name}": array for name, array in trilinear.all_gradients(weights, layers, texts).items()}
    return arrays | more | {name: found[name] for name in (*states(layers), "prob", "score")} | gradients, config(LAYERS_OF_TWO)


def make_codes(random):
    """Codes in place of weights, and those of the vectors of the first layer."""
    _, weights = draw(random, LAYERS)
    layers = windows(LAYERS)
    texts, arrays = tokens(random)
    steps = {name: numpy.float32(numpy.sqrt((w * w).mean()) / 32) for name, w in weights.items() if name != "bias"}
    arrays |= {"bias": weights["bias"].astype(numpy.float32)} | {f"step.{name}": numpy.array([step]) for name, step in steps.items()}
    arrays |= {f"q.{name}": trilinear.codes(weights[name], float(step)).astype(numpy.int8) for name, step in steps.items()}
    for form, (bits, vectors) in FORMS.items():
        found = trilinear.together(trilinear.quantized(weights, bits), layers, texts, vectors)
        arrays |= {f"{form}.{name}": found[name] for name in (*states(layers), "prob", "score")}
        if vectors == 8:
            arrays |= {f"{form}.L0.{name}_codes": numpy.rint(32 * found[f"L0.{name}"]).astype(numpy.int8) for name in ("n", "qk", "k", "v")}
            arrays[f"{form}.L0.qv_step"] = trilinear.row_steps(found["L0.n"] @ trilinear.quantized(weights, bits)["L0.QV"].T)[:, 0]
            arrays[f"{form}.L0.qv_codes"] = numpy.rint(found["L0.qv"] / arrays[f"{form}.L0.qv_step"][:, None]).astype(numpy.int8)
    return arrays, config(LAYERS)


def make_zero(random):
    """Steps from combiners of 0, with tables that are not trained: those after the first, and after the last."""
    arrays, weights = draw(random, LAYERS[:2])
    for name in [name for name in arrays if name.endswith(".C")]:
        arrays[name][:] = 0
        weights[name][:] = 0
    texts, more = tokens(random)
    history, scores = trilinear.steps(weights, windows(LAYERS[:2]), texts, float(numpy.float32(RATE)), STEPS)
    first, last = ({f"w{t}.{name}": w for name, w in history[t].items() if name != "bias"} | {"score": scores} for t in (1, STEPS))
    return more | {f"w0.{name}": array for name, array in arrays.items()} | first, last, config(LAYERS[:2], lr=RATE, steps=STEPS, flags=0)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "data" / "golden" / "sources")
    for name, make in {"trilinear": make_whole, "trilinear_multi": make_multi, "trilinear_codes": make_codes}.items():
        tensors.write(folder / f"{name}.safetensors", *make(numpy.random.default_rng(3)))
    first, last, metadata = make_zero(numpy.random.default_rng(3))
    tensors.write(folder / "trilinear_zero_step1.safetensors", first, metadata)
    tensors.write(folder / "trilinear_zero_step10.safetensors", last, metadata)
