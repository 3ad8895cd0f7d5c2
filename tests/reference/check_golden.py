#!/usr/bin/env python3
"""Compare additive-eval with golden files. Needs numpy only.

usage: check_golden.py [--bin FOLDER] [--backend NAME] FILE...

A golden file (format: make_golden.py) is taken apart into a model folder and input files; the program is
run on them in the parallel form, with gradients, in the recurrent form and on the padded batch;
and everything it wrote is compared. Prints the worst error of each kind; exit status 1 if
one is over its tolerance.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy

import tensors

# Absolute, except gradients: |difference| / |gradient| in the Euclidean norm.
TOLERANCE = {"logits": 1e-4, "loss": 1e-5, "score": 1e-5, "pooled": 1e-5, "gradient": 1e-4}
INPUTS = ("input_ids", "attention_mask", "labels")
PREFIXES = ("grad.", "layers.", "padded.", "smoothed.")


def is_parameter(name):
    return not name.startswith(PREFIXES) and name not in (*INPUTS, "logits", "loss")


def select(arrays, prefix):
    """The tensors of one batch, named without the prefix."""
    if prefix:
        return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
    return {name: array for name, array in arrays.items() if not name.startswith(("padded.", "smoothed."))}


def inputs_of(batch, rows=slice(None)):
    return {name: batch[name][rows] for name in INPUTS if name in batch}


def kind_of(name):
    return "gradient" if name.startswith("grad.") else name.rsplit(".", 1)[-1]


def error_of(name, got, want, mask):
    if got is None or got.shape != want.shape:
        return numpy.inf
    difference = got.astype(numpy.float64) - want
    if kind_of(name) == "gradient":
        scale = numpy.linalg.norm(want)
        return numpy.linalg.norm(difference) / (scale if scale > 0 else 1)
    if mask is not None and want.ndim == 3:
        difference = difference[mask != 0]
    return numpy.abs(difference).max(initial=0.0)


class Golden:
    def __init__(self, path, program, backend="cpu"):
        self.arrays, self.metadata = tensors.read(path)
        self.program, self.backend = str(program), backend

    def evaluate(self, inputs, *options):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "config.json").write_text(self.metadata.get("config", "{}"))
            weights = {name: array for name, array in self.arrays.items() if is_parameter(name)}
            tensors.write(folder / "model.safetensors", weights, {"format": "pt"})
            tensors.write(folder / "inputs.safetensors", inputs)
            command = [self.program, "--model", folder, "--inputs", folder / "inputs.safetensors"]
            command += ["--outputs", folder / "outputs.safetensors", "--backend", self.backend, *options]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"additive-eval failed with {done.returncode}: {done.stderr}")
            return tensors.read(folder / "outputs.safetensors")[0]

    def compare(self, got, want, mask=None):
        """Worst error of each kind over the expected tensors."""
        worst = {}
        for name, array in want.items():
            if kind_of(name) not in TOLERANCE:
                continue
            error = error_of(name, got.get(name), array, mask)
            kind = kind_of(name)
            # A NaN must win over any number.
            worst[kind] = error if not error <= worst.get(kind, -1.0) else worst[kind]
        return worst

    def gradient_batches(self):
        """The batches that a file's gradients may be of: the main one or, as in g1, the padded rows
        with less padding than the smallest window (see README.md)."""
        yield inputs_of(select(self.arrays, ""))
        padded = select(self.arrays, "padded.")
        if "attention_mask" in padded and "windows" in self.metadata:
            rows = (padded["attention_mask"] == 0).sum(1) < min(json.loads(self.metadata["windows"]))
            if rows.any():
                yield inputs_of(padded, rows)

    def check_gradients(self):
        want = {name: array for name, array in self.arrays.items() if name.startswith("grad.")}
        found = [self.compare(self.evaluate(batch, "--gradients"), want) for batch in self.gradient_batches()]
        return min(found, key=lambda worst: numpy.nan_to_num(worst.get("gradient", 0.0), nan=numpy.inf))

    def check(self):
        """{what was run: {kind: worst error}}"""
        found = {}
        for prefix in ("", "padded."):
            batch = select(self.arrays, prefix)
            if "input_ids" not in batch:
                continue
            want = {name: array for name, array in batch.items() if not name.startswith("grad.")}
            mask = batch.get("attention_mask")
            found[f"{prefix}parallel"] = self.compare(self.evaluate(inputs_of(batch)), want, mask)
            found[f"{prefix}recurrent"] = self.compare(self.evaluate(inputs_of(batch), "--recurrent"), want, mask)
        if any(name.startswith("grad.") for name in self.arrays):
            found["gradients"] = self.check_gradients()
        smoothed = select(self.arrays, "smoothed.")
        if smoothed:
            options = ("--gradients", "--label-smoothing", self.metadata["smoothing"])
            found["smoothed"] = self.compare(self.evaluate(inputs_of(select(self.arrays, "")), *options), smoothed)
        return found


def failures(found):
    return [
        f"{run} {kind}: {error:.3g} is over {TOLERANCE[kind]:g}"
        for run, worst in found.items()
        for kind, error in worst.items()
        if not error <= TOLERANCE[kind]
    ]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=root / "build" / "bin", type=pathlib.Path, help="folder of additive-eval")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    bad = 0
    for path in arguments.files:
        found = Golden(path, arguments.bin / "additive-eval", arguments.backend).check()
        for run, worst in found.items():
            print(f"{path}: {run}: " + ", ".join(f"{kind} {error:.2g}" for kind, error in sorted(worst.items())))
        for line in failures(found):
            print(f"{path}: FAILED {line}")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
