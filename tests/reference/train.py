"""Training of the reference models: the measure for the engine's trainer.

The recipe is the trainer's: AdamW on all parameters, one learning-rate schedule, clipping at a global norm. So are the
blocks, their order (engine/text/dataset.h states the permutation) and, with --model, the initial weights. Without
dropout the losses of both agree to rounding; with it they agree in distribution, since PyTorch draws other masks.

    python3 train.py --text FILE --config config.json --options '{"max_steps": 600, …}' --out curve.json
    python3 train.py --text FILE --model FOLDER --options options.json --out curve.json

--config and --options take a file or JSON text. Bytes are the tokens. The last --valid of the text is
held out and evaluated every "eval_every" steps and at the end.
"""

import argparse
import json
import math
import os
import sys
import time

import numpy
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import packages  # noqa: F401, E402
import tensors  # noqa: E402
from additive_client import torch as models  # noqa: E402
from additive_client.torch import additive as reference  # noqa: E402

FIRST_BYTE = 3
STREAM_SHUFFLE = 0x50000000
MASK = 0xFFFFFFFF

DEFAULTS = {
    "sequence_length": 512,
    "batch_size": 8,
    "gradient_accumulation": 1,
    "max_steps": 1000,
    "warmup_steps": 0,
    "learning_rate": 5e-4,
    "schedule": "linear",
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.01,
    "clip": 1.0,
    "label_smoothing": 0.0,
    "eval_every": 0,
    "seed": 1,
}


# --- the order of the data ------------------------------------------------------------


def philox(seed, stream, step, index):
    """Philox4x32-10: four 32-bit words."""
    c = [index & MASK, index >> 32, stream, step]
    k = [seed & MASK, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def permute(x, n, seed, epoch):
    """Where x goes in the epoch's permutation of 0 … n-1."""
    half = 1
    while (n - 1) >> (2 * half):
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = x >> half, x & mask
        for i in range(8):
            left, right = right, left ^ (philox(seed, STREAM_SHUFFLE, epoch, i << 32 | right)[0] & mask)
        x = left << half | right
        if x < n:
            return x


class Blocks:
    """A text as rows of `length` tokens."""

    def __init__(self, text, length):
        count = len(text) // length
        tokens = numpy.frombuffer(text, dtype=numpy.uint8)[: count * length].astype(numpy.int64) + FIRST_BYTE
        self.rows = torch.from_numpy(tokens.reshape(count, length))

    def shuffled(self, seed, first, count):
        """Blocks first … first + count - 1 of the endless sequence of epochs."""
        n = len(self.rows)
        return self.rows[[permute(q % n, n, seed, q // n) for q in range(first, first + count)]]


# --- the recipe -------------------------------------------------------------------------


def learning_rate(options, step):
    peak, warmup, total = options["learning_rate"], options["warmup_steps"], options["max_steps"]
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / (total - warmup)
    return peak * {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1}[options["schedule"]]


def banded_attention(x, w, heads, window, mask=None):
    """reference.additive_attention in blocks of queries. A window of at most `block` tokens is within a block and the
    one before it, so the pairs are N x 2 block instead of N x N. The same softmax over the same scores."""
    batch, length, width = x.shape
    block = max(window, 32)
    if mask is not None or length % block or window >= length:
        return direct_attention(x, w, heads, window, mask)
    tokens = x.view(batch, length, heads, width // heads).transpose(1, 2)
    score = (tokens * w.view(heads, 1, -1)).sum(-1) / math.sqrt(width // heads)

    def with_previous(t):  # [B, H, N, …] -> [B, H, N / block, 2 block, …]
        own = t.unflatten(2, (length // block, block))
        return torch.cat([torch.cat([torch.zeros_like(own[:, :, :1]), own[:, :, :-1]], 2), own], 3)

    i = torch.arange(block)[:, None] + block
    j = torch.arange(2 * block)[None, :]
    allowed = ((j <= i) & (j > i - window)).repeat(length // block, 1, 1)
    allowed[0] &= j >= block
    pair = with_previous(score)[:, :, :, None, :].masked_fill(~allowed, float("-inf"))
    pooled = (pair.softmax(-1) @ with_previous(tokens)).flatten(2, 3)
    return reference.Pooled(score.transpose(1, 2), pooled.transpose(1, 2).reshape(batch, length, width))


direct_attention = reference.additive_attention
reference.additive_attention = banded_attention


def evaluate(model, rows, batch):
    model.eval()
    with torch.no_grad():
        parts = [model(part, labels=part).loss.item() * len(part) for part in rows.split(batch)]
    model.train()
    return sum(parts) / len(rows)


def train(model, options, data, valid=None, log=None):
    """Losses per step, and [step, loss] per evaluation."""
    size, accumulation, total = options["batch_size"], options["gradient_accumulation"], options["max_steps"]
    adamw = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=tuple(options["betas"]), eps=options["eps"], weight_decay=options["weight_decay"]
    )
    losses, valid_losses = [], []
    model.train()
    for step in range(total):
        adamw.param_groups[0]["lr"] = learning_rate(options, step)
        adamw.zero_grad()
        losses.append(0.0)
        for micro in range(accumulation):
            rows = data.shuffled(options["seed"], (step * accumulation + micro) * size, size)
            loss = model(rows, labels=rows, label_smoothing=options["label_smoothing"]).loss / accumulation
            loss.backward()
            losses[-1] += loss.item()
        if options["clip"] > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        adamw.step()
        every = options["eval_every"]
        if valid and (step + 1 == total or (every and (step + 1) % every == 0)):
            valid_losses.append([step + 1, evaluate(model, valid.rows, size)])
        if log and (step % 20 == 19 or step + 1 == total):
            print(f"step {step + 1}: train {losses[-1]:.4f}, valid {valid_losses[-1:]}", file=log, flush=True)
    return losses, valid_losses


# --- files --------------------------------------------------------------------------------


def read_json(text):
    if os.path.exists(text):
        with open(text) as file:
            text = file.read()
    return json.loads(text)


def make_model(config, folder, seed):
    build, known = models.KINDS[config.get("model_type", "FastformerForCausalLM")]
    fields = {key: value for key, value in config.items() if key in known.__dataclass_fields__}
    torch.manual_seed(seed)
    model = build(known(**fields))
    if folder:
        arrays, _ = tensors.read(os.path.join(folder, "model.safetensors"))
        model.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--config")
    parser.add_argument("--model", help="folder with config.json and model.safetensors")
    parser.add_argument("--options", default="{}")
    parser.add_argument("--seed", type=int, help="instead of the options'")
    parser.add_argument("--valid", type=float, default=0.0, help="fraction of the text that is held out")
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()

    options = {**DEFAULTS, **read_json(arguments.options)}
    if arguments.seed is not None:
        options["seed"] = arguments.seed
    config = read_json(arguments.config or os.path.join(arguments.model, "config.json"))
    with open(arguments.text, "rb") as file:
        text = file.read()
    held = int(arguments.valid * len(text))
    data = Blocks(text[: len(text) - held], options["sequence_length"])
    valid = Blocks(text[len(text) - held :], options["sequence_length"]) if held else None
    model = make_model(config, arguments.model, options["seed"])
    began = time.time()
    losses, valid_losses = train(model, options, data, valid, sys.stderr)
    result = {
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__, "numpy": numpy.__version__},
        "threads": torch.get_num_threads(),
        "seconds": round(time.time() - began, 1),
        "config": config,
        "options": options,
        "train_loss": losses,
        "valid_loss": valid_losses,
    }
    with open(arguments.out, "w") as file:
        json.dump(result, file)
        file.write("\n")


if __name__ == "__main__":
    main()
