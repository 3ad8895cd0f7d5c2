#!/usr/bin/env python3
"""Does Hugging Face's GPT2LMHeadModel say what our engine says of the models that it wrote? Needs PyTorch and
transformers. Not part of the tests.

usage: check_gpt2_export.py [--bin FOLDER] MODEL...        (folders with config.json and model.safetensors)

Every folder is loaded by transformers as it is, without a warning about its tensors, and both compute logits and the
loss of the same random tokens, all of n_positions up to 256; the engine in the parallel form, token by token, and with
packed weights. Prints the largest difference of a logit in each; exit status 1 if an f32 one is over 1e-4.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from transformers import GPT2LMHeadModel

import tensors

TOLERANCE, LENGTH = 1e-4, 256
FORMS = {
    "parallel": [],
    "recurrent": ["--recurrent"],
    "fp32 panels": ["--dtype", "fp32", "--recurrent", "--chunk", "32"],
    "bf16 panels": ["--dtype", "bf16"],
    "int8 panels": ["--dtype", "int8"],
}


def engine(program, model, ids, options):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tensors.write(folder / "inputs", {"input_ids": ids})
        command = [program, "--model", model, "--inputs", folder / "inputs", "--outputs", folder / "outputs"]
        subprocess.run([str(part) for part in [*command, *options]], check=True)
        return tensors.read(folder / "outputs")[0]


def check(program, path):
    model, loading = GPT2LMHeadModel.from_pretrained(path, output_loading_info=True, dtype=torch.float32)
    if any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        print(f"{path}: FAILED tensors: {loading}")
        return False
    generator = torch.Generator().manual_seed(1)
    length = min(LENGTH, model.config.n_positions)
    ids = torch.randint(0, model.config.vocab_size, (2, length), generator=generator)
    with torch.no_grad():
        want = model.eval()(ids, labels=ids)
    good = True
    for form, options in FORMS.items():
        got = engine(program, path, ids.numpy(), options)
        error = numpy.abs(got["logits"].astype(float) - want.logits.numpy()).max()
        loss = abs(float(got["loss"]) - float(want.loss))
        exact = "int8" not in form and "bf16" not in form
        passed = not exact or error <= TOLERANCE
        good = good and passed
        print(f"{path}: {form}: logits {error:.2g}, loss {loss:.2g}{'' if passed else ' FAILED'}")
    return good


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=root / "build" / "bin", type=pathlib.Path, help="folder of additive-eval")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    arguments = parser.parse_args()
    found = [check(arguments.bin / "additive-eval", path) for path in arguments.models]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
