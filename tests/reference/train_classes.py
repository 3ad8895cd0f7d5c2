"""Training of the reference encoder on labelled texts: the measure for the objective `classification`.

    python3 train_classes.py FOLDER

FOLDER (tests/data/training/classes) holds records.jsonl, config.json and options.json. Writes a random
model.safetensors of that configuration to the same folder, and curve20.json: the loss of every step of train.py's
recipe from that model, without dropout. The records are in the engine's order.
"""

import dataclasses
import json
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import packages  # noqa: F401, E402
import tensors  # noqa: E402
import train  # noqa: E402
from additive_client.torch import linear  # noqa: E402

END, PAD, SEED = 1, 0, 5


def encode(record, length):
    """engine/text/sequence.h of byte tokens."""
    parts = [list(record["text"].encode())] + ([list(record["text_pair"].encode())] if "text_pair" in record else [])
    while sum(map(len, parts)) + len(parts) > length:
        longest = max(range(len(parts)), key=lambda i: (len(parts[i]), i))
        parts[longest].pop()
    return [id for part in parts for id in [byte + train.FIRST_BYTE for byte in part] + [END]]


class Records:
    def __init__(self, path, length):
        with open(path, encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        classes = sorted({r["label"] for r in records}, key=str.encode)
        self.ids = torch.full((len(records), length), PAD)
        self.mask = torch.zeros(len(records), length, dtype=torch.int64)
        self.labels = torch.tensor([classes.index(r["label"]) for r in records])
        for i, record in enumerate(records):
            ids = encode(record, length)
            self.ids[i, : len(ids)], self.mask[i, : len(ids)] = torch.tensor(ids), 1

    def shuffled(self, seed, first, count):
        n = len(self.ids)
        rows = [train.permute(q % n, n, seed, q // n) for q in range(first, first + count)]
        return self.ids[rows], self.mask[rows], self.labels[rows]


def random_model(config):
    fields = {f.name for f in dataclasses.fields(linear.EncoderConfig)}
    model = linear.LinearEncoder(linear.EncoderConfig(**{k: v for k, v in config.items() if k in fields}))
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.data = 0.1 * random + ("norm" in name and name.endswith("weight"))
        else:
            parameter.data = random / parameter.shape[-1] ** 0.5
    return model


def run(model, options, data):
    size, accumulation = options["batch_size"], options["gradient_accumulation"]
    adamw = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=tuple(options["betas"]), eps=options["eps"], weight_decay=options["weight_decay"]
    )
    losses = []
    for step in range(options["max_steps"]):
        adamw.param_groups[0]["lr"] = train.learning_rate(options, step)
        adamw.zero_grad()
        losses.append(0.0)
        for micro in range(accumulation):
            ids, mask, labels = data.shuffled(options["seed"], (step * accumulation + micro) * size, size)
            loss = model(ids, mask, labels, options["label_smoothing"]).loss / accumulation
            loss.backward()
            losses[-1] += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        adamw.step()
    return losses


def main():
    folder = sys.argv[1]
    given = train.read_json(os.path.join(folder, "options.json"))
    options = {**train.DEFAULTS, **{k: v for k, v in given.items() if k != "objective"}}
    config = train.read_json(os.path.join(folder, "config.json"))
    torch.set_num_threads(1)
    model = random_model(config)
    weights = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    tensors.write(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
    losses = run(model, options, Records(os.path.join(folder, "records.jsonl"), options["sequence_length"]))
    with open(os.path.join(folder, "curve20.json"), "w") as file:
        json.dump({"versions": {"torch": torch.__version__}, "options": given, "train_loss": losses}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
