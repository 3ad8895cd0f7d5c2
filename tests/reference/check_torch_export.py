#!/usr/bin/env python3
"""Compare PyTorch's models with our engine on language models that the engine wrote. Needs PyTorch and transformers.
Not part of the tests.

usage: check_torch_export.py [--bin FOLDER] MODEL...        (folders with config.json and model.safetensors)

Every folder is loaded by additive_client.torch, and GPT-2's by transformers too, without a warning about its tensors.
All compute logits of the same random tokens, n_positions of them up to 256; the engine in the parallel form, token by
token, and with packed weights. Prints the largest difference of a logit in each; exit status 1 if an f32 one is over
1e-4.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from transformers import GPT2LMHeadModel

import packages  # noqa: F401
import tensors
from additive_client.torch import load  # noqa: E402

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


def models_of(path, config):
    found = {"additive_client": load(path)}
    if config.get("model_type") == "gpt2":
        found["transformers"], loading = GPT2LMHeadModel.from_pretrained(path, output_loading_info=True, dtype=torch.float32)
        assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (path, loading)
    return found


def check(program, path):
    config = json.loads((pathlib.Path(path) / "config.json").read_text())
    ids = torch.randint(0, config["vocab_size"], (2, min(LENGTH, config["n_positions"])), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = {name: model.eval()(ids).logits.numpy() for name, model in models_of(path, config).items()}
    good = True
    for form, options in FORMS.items():
        got = engine(program, path, ids.numpy(), options)["logits"].astype(float)
        for name, logits in want.items():
            error = numpy.abs(got - logits).max()
            passed = "int8" in form or "bf16" in form or error <= TOLERANCE
            good = good and passed
            print(f"{path}: {form}, {name}: logits {error:.2g}{'' if passed else ' FAILED'}")
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
