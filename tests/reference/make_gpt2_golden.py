#!/usr/bin/env python3
"""Write tests/data/golden/gpt2.safetensors: a random GPT-2 and the results of Hugging Face's GPT2LMHeadModel in
float64. Needs PyTorch and transformers; the format is that of make_golden.py.

usage: make_gpt2_golden.py [FILE]

The weights are random but exact in half precision, which halves the file; they have the form of a checkpoint of the
original release: without "transformer." and with the causal masks that it held. Gradients of the middle layer's
matrices are omitted for the same reason.
"""

import json
import pathlib
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tensors

CONFIG = dict(vocab_size=300, n_positions=128, n_embd=64, n_layer=3, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
              attn_pdrop=0.0)  # fmt: skip
LENGTH, PADDED_LENGTH, IGNORED = 128, 16, -100
PADDED = [[(0, 16)], [(0, 11)], [(5, 16)]]  # unmasked ranges
SEED = 9


def randomise(model, generator):
    """Weights at which every term matters: attention far from uniform, norms and biases not trivial."""
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator)
        if ".ln_" in name and name.endswith("weight"):
            random = 1 + 0.2 * random
        elif parameter.dim() == 1:
            random = 0.2 * random
        elif "wte" in name or "wpe" in name:
            random = 0.3 * random
        elif "c_attn" in name:
            random = 1.5 * random / parameter.shape[0] ** 0.5
        else:
            random = 0.5 * random / parameter.shape[0] ** 0.5
        parameter.data = random.half().double()


def stored(model):
    """The checkpoint's tensors."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name.removeprefix("transformer.")] = parameter.detach().half()
    for layer in range(CONFIG["n_layer"]):
        mask = torch.ones(CONFIG["n_positions"], CONFIG["n_positions"]).tril()
        found[f"h.{layer}.attn.bias"] = mask[None, None, :8, :8].float()
        found[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return found


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden" / "gpt2.safetensors"
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)
    model = GPT2LMHeadModel(GPT2Config(**CONFIG, bos_token_id=None, eos_token_id=None)).double().eval()
    randomise(model, generator)
    found = stored(model)

    ids = torch.randint(0, CONFIG["vocab_size"], (1, LENGTH), generator=generator)
    out = model(ids, labels=ids)
    out.loss.backward()
    found.update({"input_ids": ids, "logits": out.logits.float(), "loss": out.loss})
    for name, parameter in model.named_parameters():
        if ".h.1." not in name or parameter.dim() == 1:
            found["grad." + name] = parameter.grad.float()

    mask = torch.zeros(len(PADDED), PADDED_LENGTH, dtype=torch.int64)
    for row, ranges in enumerate(PADDED):
        for begin, end in ranges:
            mask[row, begin:end] = 1
    ids = torch.randint(0, CONFIG["vocab_size"], mask.shape, generator=generator) * mask
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, 1:].masked_fill_(mask[:, :-1] == 0, IGNORED)  # the prediction of a masked token has no meaning
    positions = torch.arange(PADDED_LENGTH).expand_as(ids)
    out = model(ids, attention_mask=mask, position_ids=positions, labels=labels)
    found.update({"padded.input_ids": ids, "padded.attention_mask": mask, "padded.labels": labels})
    found.update({"padded.logits": (out.logits * mask[:, :, None]).float(), "padded.loss": out.loss})

    config = {"model_type": "gpt2", **CONFIG}
    arrays = {name: tensor.detach().numpy() for name, tensor in found.items()}
    tensors.write(path, arrays, {"config": json.dumps(config), "seed": str(SEED), "gradients": "input_ids"})
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
