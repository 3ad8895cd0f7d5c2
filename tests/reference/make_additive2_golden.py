#!/usr/bin/env python3
"""Write tests/data/golden/additive2*.safetensors: random models of additive attention that forgets, and the results of
additive2.py in float64. Needs PyTorch; the format is that of make_golden.py.

usage: make_additive2_golden.py [FOLDER]
"""

import json
import pathlib
import sys

import torch

import packages  # noqa: F401, E402
import tensors
from additive_client.torch import additive2  # noqa: E402

COMMON = dict(vocab_size=43, hidden_size=24, n_layer=2, n_heads=6, intermediate_size=35, dropout=0.0)
SETS = {
    "additive2": {},
    "additive2_constant": dict(forget="const", gate=False, n_heads=24, group_norm=False),
    "additive2_plain": dict(forget="none", shift=False),
    "additive2_window": dict(window_layers=(1,), window=6, window_heads=3),
}
BATCH, LENGTH, PADDED_LENGTH, IGNORED = 2, 40, 16, -100
PADDED = [[(0, 16)], [(0, 11)], [(5, 16)], [(2, 4), (9, 13)]]  # unmasked ranges


def randomise(model, generator):
    """Weights at which every term matters."""
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if "norm" in name or name.endswith("gain"):
            random = 1 + 0.2 * random
        elif name.endswith(("mu", "beta", "theta")):
            random = parameter.data + 0.3 * random
        elif "embedding" in name:
            random = 0.6 * random
        else:
            random = random / parameter.shape[1] ** 0.5
        parameter.data = random.float().double()


def make(keys, seed):
    generator = torch.Generator().manual_seed(seed)
    model = additive2.Additive2LM(additive2.Additive2Config(**{**COMMON, **keys})).double().eval()
    randomise(model, generator)
    found = {name: parameter.detach().float() for name, parameter in model.named_parameters()}
    ids = torch.randint(0, COMMON["vocab_size"], (BATCH, LENGTH), generator=generator)
    out = model(ids, labels=ids)
    out.loss.backward()
    found.update({"input_ids": ids, "logits": out.logits, "loss": out.loss})
    found.update({"grad." + name: parameter.grad for name, parameter in model.named_parameters()})

    mask = torch.zeros(len(PADDED), PADDED_LENGTH, dtype=torch.int64)
    for row, ranges in enumerate(PADDED):
        for begin, end in ranges:
            mask[row, begin:end] = 1
    ids = torch.randint(0, COMMON["vocab_size"], mask.shape, generator=generator) * mask
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, 1:].masked_fill_(mask[:, :-1] == 0, IGNORED)  # the prediction of a masked token has no meaning
    out = model(ids, mask, labels)
    found.update({"padded.input_ids": ids, "padded.attention_mask": mask, "padded.labels": labels})
    found.update({"padded.logits": out.logits * mask[:, :, None], "padded.loss": out.loss})
    config = {"model_type": "additive2", **COMMON, **keys}
    return ({name: tensor.detach().numpy() for name, tensor in found.items()},
            {"config": json.dumps(config), "seed": str(seed), "gradients": "input_ids"})


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    for seed, (name, keys) in enumerate(SETS.items(), 31):
        arrays, metadata = make(keys, seed)
        tensors.write(folder / f"{name}.safetensors", arrays, metadata)
        print(f"{name}: {(folder / f'{name}.safetensors').stat().st_size} bytes")


if __name__ == "__main__":
    main()
