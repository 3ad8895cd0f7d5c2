#!/usr/bin/env python3
"""Write the golden sets of tests/data/golden: weights, inputs, and the results of additive_client.torch in float64. The
same bytes come out of every run on one machine and PyTorch; elsewhere the numbers are equal to rounding.

usage: make_golden.py [FOLDER]          (default: tests/data/golden)

A set is one safetensors file. Metadata: "config" (the keys of config.json), "windows", "seed",
"smoothing", "gradients" (the batch that grad.NAME is of). Tensors:
    parameter names             F32; the tied matrix under both its names
    input_ids, attention_mask   [B, N]; labels are input_ids
    logits, loss, layers.L.R.score, layers.L.R.pooled, grad.NAME
    padded.input_ids, .attention_mask, .labels, .logits, .loss, .layers.L.R.{score,pooled}
                                a batch with masked tokens; 0 where masked
    smoothed.loss, smoothed.grad.NAME (some)
                                the first batch with label smoothing
"""

import json
import pathlib
import sys

import torch

import packages  # noqa: F401, E402
import tensors
from additive_client.torch.additive import IGNORED, AdditiveLM, Config  # noqa: E402

SMOOTHING = 0.1

# name: (config, tokens per sequence, masks of the padded batch as lists of unmasked ranges)
SETS = {
    # Odd windows, a head size that fills no vector register, padding on the right.
    "odd": (
        dict(hidden_size=15, n_heads=3, n_layer=3, vocab_size=37, n_positions=40, window_sizes=[3, 5, 40]),
        33,
        [[(0, 33)], [(0, 20)]],
    ),
    # Omitted keys have defaults: windows 4, 8 and global.
    "defaults": (
        dict(hidden_size=14, n_heads=2, n_layer=3, vocab_size=31, n_positions=20),
        17,
        [[(0, 16)], [(0, 5)]],
    ),
    # No windows; fewer tokens than positions.
    "global": (
        dict(hidden_size=6, n_heads=1, n_layer=2, vocab_size=11, n_positions=64, use_local_att=False),
        50,
        [[(0, 50)], [(0, 49)], [(0, 1)]],
    ),
    # The smallest windows, one beyond every position; padding on the left and in the middle.
    "edges": (
        dict(hidden_size=10, n_heads=5, n_layer=3, vocab_size=7, n_positions=16, window_sizes=[1, 2, 1000]),
        16,
        [[(5, 16)], [(0, 4), (9, 16)], [(0, 2), (3, 16)]],
    ),
    # No position table, and more tokens than the positions that it would have had.
    "unbounded": (
        dict(hidden_size=12, n_heads=3, n_layer=3, vocab_size=29, n_positions=12, position_embedding="none", window_sizes=[2, 5, 12]),
        26,
        [[(0, 26)], [(3, 19)]],
    ),
}


def randomise(model, generator):
    """Weights at which every term matters: scores spread over several units, norms and biases not trivial."""
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("query_attn", "key_attn")):
            random = 0.9 * random
        elif name.endswith(("norm.weight", "Norm.weight")):
            random = 1 + 0.2 * random
        elif parameter.dim() == 1:
            random = 0.2 * random
        elif "embedding" in name:
            random = 0.8 * random
        else:
            random = random / parameter.shape[1] ** 0.5
        parameter.data = random.float().double()


def outputs(out, mask, prefix=""):
    """The computed tensors of one batch, 0 where masked."""
    keep = mask[:, :, None].double()
    found = {prefix + "logits": out.logits * keep, prefix + "loss": out.loss}
    for (layer, name), attended in out.rounds.items():
        found[f"{prefix}layers.{layer}.{name}.score"] = attended.score * keep
        found[f"{prefix}layers.{layer}.{name}.pooled"] = attended.pooled * keep
    return found


def gradients(model, loss, prefix=""):
    model.zero_grad()
    loss.backward()
    return {f"{prefix}grad.{name}": parameter.grad.clone() for name, parameter in model.named_parameters()}


def make(name, seed):
    keys, length, ranges = SETS[name]
    config = Config(**keys)
    generator = torch.Generator().manual_seed(seed)
    model = AdditiveLM(config).double().eval()
    randomise(model, generator)
    found = {key: tensor.float() for key, tensor in model.state_dict().items()}

    ids = torch.randint(0, config.vocab_size, (2 if length < 30 else 1, length), generator=generator)
    mask = torch.ones_like(ids)
    out = model(ids, mask, ids)
    found.update({"input_ids": ids, "attention_mask": mask})
    found.update(outputs(out, mask))
    found.update(gradients(model, out.loss))

    smoothed = model(ids, mask, ids, label_smoothing=SMOOTHING)
    found["smoothed.loss"] = smoothed.loss
    some = gradients(model, smoothed.loss, "smoothed.")
    found.update({key: some[key] for key in some if "word_embedding" in key or "decoders.0.attention.query_attn" in key})

    padded_mask = torch.zeros(len(ranges), length, dtype=torch.int64)
    for row, unmasked in enumerate(ranges):
        for begin, end in unmasked:
            padded_mask[row, begin:end] = 1
    padded_ids = torch.randint(0, config.vocab_size, padded_mask.shape, generator=generator) * padded_mask
    labels = padded_ids.masked_fill(padded_mask == 0, IGNORED)
    found.update({"padded.input_ids": padded_ids, "padded.attention_mask": padded_mask, "padded.labels": labels})
    found.update(outputs(model(padded_ids, padded_mask, labels), padded_mask, "padded."))

    metadata = {
        "config": json.dumps(keys),
        "windows": json.dumps(config.windows()),
        "seed": str(seed),
        "smoothing": str(SMOOTHING),
        "gradients": "input_ids",
    }
    return {key: tensor.detach().numpy() for key, tensor in found.items()}, metadata


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    for seed, name in enumerate(SETS, start=1):
        path = folder / f"{name}.safetensors"
        tensors.write(path, *make(name, seed))
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
