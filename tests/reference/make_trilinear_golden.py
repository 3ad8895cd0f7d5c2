#!/usr/bin/env python3
"""Write tests/data/golden/sources/trilinear: weights, texts, and what trilinear.py computes in float64.

usage: make_trilinear_golden.py [FOLDER]          (default: tests/data/golden/sources)

The form is that of engine/eval/golden/trilinear.c. The texts are longer than both windows.
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


def make(seed):
    random = numpy.random.default_rng(seed)
    d, q, t, v = SIZES.values()
    shapes = {"E": (v + 2, d), "F": (v, d), "bias": (v,)}
    for layer in range(len(LAYERS)):
        shapes |= {f"L{layer}.{name}": shape for name, shape in dict(QK=(q, d), QV=(q, d), K=(t, d), V=(t, d), C=(d, 16 * t)).items()}
    arrays = {name: (0.4 * random.standard_normal(shape)).astype(numpy.float32) for name, shape in shapes.items()}
    weights = {name: array.astype(float) for name, array in arrays.items()}
    layers = [(slope, float(numpy.float32(hyper)), WINDOWS["wide" if wide else "narrow"]) for slope, hyper, wide in LAYERS]
    texts = [[int(token) for token in random.integers(0, v, n)] for n in LENGTHS]
    prompt = numpy.array(random.integers(0, v, 3), numpy.int32)
    arrays |= {f"tokens_frag{i}": numpy.array(text, numpy.int32) for i, text in enumerate(texts)} | {"prompt": prompt}
    arrays |= trilinear.together(weights, layers, texts) | trilinear.graph(layers, texts, WINDOWS)
    for layer in range(1, len(LAYERS)):
        del arrays[f"L{layer}.p"]  # one will do
    arrays |= {f"d.{name}": array for name, array in trilinear.all_gradients(weights, layers, texts).items()}
    for form, (bits, vectors) in FORMS.items():
        found = trilinear.together(trilinear.quantized(weights, bits), layers, texts, vectors)
        arrays |= {f"{form}.{name}": found[name] for name in (*(f"s{layer}" for layer in range(len(LAYERS) + 1)), "prob", "score")}
    for name, longest in (("full", None), ("trunc", LONGEST)):
        arrays[f"{name}.ids"], arrays[f"{name}.prob"] = trilinear.generate(weights, layers, prompt.tolist(), GENERATED, longest)
    ids = arrays["full.ids"].tolist()[:-1]
    arrays["full.all_prob_stream"] = trilinear.forward(weights, layers, ids, [0] * len(ids))["prob"]
    config = SIZES | {"window": WINDOWS["narrow"], "wide_window": WINDOWS["wide"], "layers": LAYERS, "truncated": LONGEST}
    return arrays, {"config": json.dumps(config)}


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "data" / "golden" / "sources")
    tensors.write(folder / "trilinear.safetensors", *make(3))
