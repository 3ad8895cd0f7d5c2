#!/usr/bin/env python3
"""Compare additive-eval with golden files. Needs numpy only.

usage: check_golden.py [--bin FOLDER] [--backend NAME] [--precision fp32|bf16] FILE...

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

# Absolute, except gradients: |difference| / |gradient| in the Euclidean norm. The fast CPU kernels stay below a third.
TOLERANCE = {"logits": 1e-4, "loss": 1e-5, "score": 1e-5, "pooled": 1e-5, "gradient": 1e-4}
# In bf16 errors are relative to the norm of the expected values. For gradients the worst single tensor counts, and
# those of attention vectors are small differences of large sums.
BF16_TOLERANCE = {"logits": 2e-2, "loss": 2e-2, "score": 5e-2, "pooled": 3e-2, "gradient": 0.25}
INPUTS = ("input_ids", "attention_mask", "labels")
OTHERS = ("padded.", "smoothed.", "attribution.")  # another batch, or what no model computes (make_attribution_golden.py)
PREFIXES = ("grad.", *OTHERS)


def is_parameter(name):
    return not name.startswith(PREFIXES) and not name.endswith((".score", ".pooled")) and name not in (*INPUTS, "logits", "loss")


def select(arrays, prefix):
    """The tensors of one batch, named without the prefix."""
    if prefix:
        return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
    return {name: array for name, array in arrays.items() if not name.startswith(OTHERS)}


def inputs_of(batch, rows=slice(None)):
    return {name: batch[name][rows] for name in INPUTS if name in batch}


def kind_of(name):
    return "gradient" if name.startswith("grad.") else name.rsplit(".", 1)[-1]


def error_of(name, got, want, mask, relative):
    if got is None or got.shape != want.shape:
        return numpy.inf
    difference = got.astype(numpy.float64) - want
    if mask is not None and want.ndim == 3:
        difference, want = difference[mask != 0], want[mask != 0]
    if relative or kind_of(name) == "gradient":
        scale = numpy.linalg.norm(want)
        return numpy.linalg.norm(difference) / (scale if scale > 0 else 1)
    return numpy.abs(difference).max(initial=0.0)


class Golden:
    def __init__(self, path, program, backend="cpu", precision="fp32"):
        self.arrays, self.metadata = tensors.read(path)
        self.program, self.backend = str(program), backend
        self.bf16 = precision == "bf16"
        self.tolerance = BF16_TOLERANCE if self.bf16 else TOLERANCE

    def evaluate(self, inputs, *options):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "config.json").write_text(self.metadata.get("config", "{}"))
            weights = {name: array for name, array in self.arrays.items() if is_parameter(name)}
            tensors.write(folder / "model.safetensors", weights, {"format": "pt"})
            tensors.write(folder / "inputs.safetensors", inputs)
            command = [self.program, "--model", folder, "--inputs", folder / "inputs.safetensors"]
            command += ["--outputs", folder / "outputs.safetensors", "--backend", self.backend, *options]
            command += ["--precision", "bf16"] if self.bf16 else []
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
            error = error_of(name, got.get(name), array, mask, self.bf16)
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
            if self.bf16:
                continue  # streams compute in fp32
            found[f"{prefix}recurrent"] = self.compare(self.evaluate(inputs_of(batch), "--recurrent"), want, mask)
        if any(name.startswith("grad.") for name in self.arrays):
            found["gradients"] = self.check_gradients()
        smoothed = select(self.arrays, "smoothed.")
        if smoothed:
            options = ("--gradients", "--label-smoothing", self.metadata["smoothing"])
            found["smoothed"] = self.compare(self.evaluate(inputs_of(select(self.arrays, "")), *options), smoothed)
        return found


def failures(found, tolerance=TOLERANCE):
    return [
        f"{run} {kind}: {error:.3g} is over {tolerance[kind]:g}"
        for run, worst in found.items()
        for kind, error in worst.items()
        if not error <= tolerance[kind]
    ]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=root / "build" / "bin", type=pathlib.Path, help="folder of additive-eval")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    bad = 0
    for path in arguments.files:
        golden = Golden(path, arguments.bin / "additive-eval", arguments.backend, arguments.precision)
        found = golden.check()
        for run, worst in found.items():
            print(f"{path}: {run}: " + ", ".join(f"{kind} {error:.2g}" for kind, error in sorted(worst.items())))
        for line in failures(found, golden.tolerance):
            print(f"{path}: FAILED {line}")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
