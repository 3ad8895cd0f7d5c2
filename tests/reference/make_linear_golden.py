#!/usr/bin/env python3
"""Write tests/data/golden/linear.safetensors: a random causal model with linear attention and the results of linear.py
in float64. Needs PyTorch; the format is that of make_golden.py.

usage: make_linear_golden.py [FILE]
"""

import json
import pathlib
import sys

import torch

import packages  # noqa: F401, E402
import tensors
from additive_client.torch import linear  # noqa: E402

CONFIG = dict(vocab_size=61, n_positions=48, position_embedding="learned", hidden_size=40, n_layer=2, n_heads=5,
              hidden_dropout_prob=0.0)  # fmt: skip
BATCH, LENGTH, PADDED_LENGTH, IGNORED = 2, 48, 16, -100
PADDED = [[(0, 16)], [(0, 11)], [(5, 16)], [(2, 4), (9, 13)]]  # unmasked ranges
SEED = 17


def randomise(model, generator):
    """Weights at which every term matters: feature maps on both sides of 0, norms and biases not trivial."""
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if "norm" in name:
            random = 0.2 * random + name.endswith("weight")
        elif name in ("model.embedding.weight", "model.positions.weight"):
            random = 0.4 * random
        else:
            random = 1.2 * random / parameter.shape[1] ** 0.5
        parameter.data = random.float().double()


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden" / "linear.safetensors"
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)
    model = linear.LinearLM(linear.LinearConfig(**CONFIG)).double().eval()
    randomise(model, generator)
    found = {name: parameter.detach().float() for name, parameter in model.named_parameters()}

    ids = torch.randint(0, CONFIG["vocab_size"], (BATCH, LENGTH), generator=generator)
    out = model(ids, labels=ids)
    out.loss.backward()
    found.update({"input_ids": ids, "logits": out.logits.float(), "loss": out.loss})
    found.update({"grad." + name: parameter.grad.float() for name, parameter in model.named_parameters()})

    mask = torch.zeros(len(PADDED), PADDED_LENGTH, dtype=torch.int64)
    for row, ranges in enumerate(PADDED):
        for begin, end in ranges:
            mask[row, begin:end] = 1
    ids = torch.randint(0, CONFIG["vocab_size"], mask.shape, generator=generator) * mask
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, 1:].masked_fill_(mask[:, :-1] == 0, IGNORED)  # the prediction of a masked token has no meaning
    out = model(ids, mask, labels)
    found.update({"padded.input_ids": ids, "padded.attention_mask": mask, "padded.labels": labels})
    found.update({"padded.logits": out.logits * mask[:, :, None], "padded.loss": out.loss})

    config = {"model_type": "linear", **CONFIG}
    arrays = {name: tensor.detach().numpy() for name, tensor in found.items()}
    tensors.write(path, arrays, {"config": json.dumps(config), "seed": str(SEED), "gradients": "input_ids"})
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
