#!/usr/bin/env python3
"""Write tests/data/golden/rwkv*.safetensors: random RWKV-4 models and the results of Hugging Face's RwkvForCausalLM, in
float64 except the scores, which it rounds to float32. Needs PyTorch and transformers; the format is that of
make_golden.py.

usage: make_rwkv_golden.py [FOLDER]

rwkv has attention wider than the rows, and gradients. rwkv_halved has tied words and is halved after every layer, as
the model is outside training; it has no gradients, because transformers halves no row in training. Masked tokens are
at the end: transformers reads all tokens. The metadata has a greedy text: the prompt's tokens and those that follow.
"""

import json
import pathlib
import sys

import torch
from transformers import RwkvConfig, RwkvForCausalLM

import tensors

COMMON = dict(vocab_size=43, context_length=64, hidden_size=24, num_hidden_layers=2, intermediate_size=35,
              layer_norm_epsilon=1e-5)  # fmt: skip
SETS = {
    "rwkv": dict(attention_hidden_size=28, rescale_every=0),
    "rwkv_halved": dict(rescale_every=1, tie_word_embeddings=True, num_hidden_layers=3, layer_norm_epsilon=0.01),
}
BATCH, LENGTH, PADDED_LENGTH, IGNORED = 2, 40, 16, -100
PROMPT, SAID = 5, 64
PADDED = (16, 11, 3)  # unmasked tokens


def randomise(model, generator):
    """Weights at which every term matters: fast and slow decays, bonuses of both signs."""
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if "ln" in name:
            random = 0.2 * random + (1 if name.endswith("weight") else 0)
        elif name.endswith(("time_decay", "time_first")):
            random = 1.5 * random - (1 if name.endswith("decay") else 0)
        elif "time_mix" in name:
            random = random.abs().clamp(max=1)
        elif "embeddings" in name:
            random = 0.6 * random
        else:
            random = random / parameter.shape[1] ** 0.5
        parameter.data = random.float().double()


@torch.no_grad()
def greedy(model, prompt):
    tokens = prompt.tolist()
    for _ in range(SAID):
        tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
    return tokens


def make(keys, seed):
    keys = {**COMMON, **keys}
    generator = torch.Generator().manual_seed(seed)
    model = RwkvForCausalLM(RwkvConfig(**keys, use_cache=False)).double()
    randomise(model, generator)
    found = {name: parameter.detach().float() for name, parameter in model.named_parameters()}
    gradients = keys["rescale_every"] == 0
    model.train(gradients)
    ids = torch.randint(0, keys["vocab_size"], (BATCH, LENGTH), generator=generator)
    out = model(ids, labels=ids)
    found.update({"input_ids": ids, "logits": out.logits, "loss": out.loss})
    if gradients:
        out.loss.backward()
        found.update({"grad." + name: parameter.grad for name, parameter in model.named_parameters()})

    mask = (torch.arange(PADDED_LENGTH) < torch.tensor(PADDED)[:, None]).long()
    ids = torch.randint(0, keys["vocab_size"], mask.shape, generator=generator) * mask
    labels = ids.masked_fill(mask == 0, IGNORED)
    out = model(ids, labels=labels)
    found.update({"padded.input_ids": ids, "padded.attention_mask": mask, "padded.labels": labels})
    found.update({"padded.logits": out.logits * mask[:, :, None], "padded.loss": out.loss})
    model.eval()
    said = greedy(model, found["input_ids"][0, :PROMPT])
    metadata = {"greedy": json.dumps({"prompt": said[:PROMPT], "tokens": said[PROMPT:]}), "config": json.dumps({"model_type": "rwkv", **keys}), "seed": str(seed)}
    if gradients:
        metadata["gradients"] = "input_ids"
    return {name: tensor.detach().numpy() for name, tensor in found.items()}, metadata


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    for seed, (name, keys) in enumerate(SETS.items(), 41):
        arrays, metadata = make(keys, seed)
        tensors.write(folder / f"{name}.safetensors", arrays, metadata)
        print(f"{name}: {(folder / f'{name}.safetensors').stat().st_size} bytes")


if __name__ == "__main__":
    main()
