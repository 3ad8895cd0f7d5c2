#!/usr/bin/env python3
"""Write tests/data/golden/sources/cirilla_steps: steps of Adam on the weights and the batch of cirilla.safetensors.

usage: make_cirilla_steps_golden.py [FOLDER]          (default: tests/data/golden/sources)          needs torch

The forward is written again for PyTorch, in float64, and its loss required to be that of cirilla.py. F64: loss [5], of
the weights before each step, and w{t}.NAME of some tensors after t steps."""

import json
import pathlib
import sys

import torch

import tensors

STEPS, SHOWN_STEPS = 5, (1, 5)
SHOWN = ["input_emb_enc.positional_embeddings.weight", "encoder_blocks.0.self_attention.wv.weight",
         "decoder_blocks.0.cross_attention.wout.weight", "decoder_blocks.1.feed_forward.w1.bias",
         "decoder_blocks.1.add_and_norm2.norm.gamma", "linear.linear.weight"]
ADAM = {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-9}


def norm(x, w, name):
    off = x - x.mean(-1, keepdim=True)
    return off / (x.std(-1, keepdim=True) + 1e-6) * w[f"{name}.gamma"] + w[f"{name}.beta"]


def attend(x, source, w, name, heads, mask):
    q, k, v = (torch.unflatten(rows @ w[f"{name}.{m}.weight"].T, -1, (heads, -1)).transpose(1, 2)
               for rows, m in ((x, "wq"), (source, "wk"), (source, "wv")))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
    return y.transpose(1, 2).flatten(2) @ w[f"{name}.wout.weight"].T


def feed_forward(x, w, name):
    inner = torch.relu(x @ w[f"{name}.w1.weight"].T + w[f"{name}.w1.bias"])
    return inner @ w[f"{name}.w2.weight"].T + w[f"{name}.w2.bias"]


def embed(ids, w, side, d):
    angles = torch.arange(ids.shape[1]).double()[:, None] * 10000.0 ** (-torch.arange(0, d, 2).double() / d)
    rows = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
    return w[f"input_emb_{side}.positional_embeddings.weight"][ids] * d**0.5 + rows


def stack(x, w, side, config, mask, source=None, source_mask=None):
    for block in range(config[f"{side}_layers"]):
        name, heads, parts = f"{side}oder_blocks.{block}", config["heads"], 1
        h = norm(x, w, f"{name}.add_and_norm{parts}.norm")
        x = x + attend(h, h, w, f"{name}.self_attention", heads, mask)
        if source is not None:
            parts += 1
            x = x + attend(norm(x, w, f"{name}.add_and_norm{parts}.norm"), source, w, f"{name}.cross_attention", heads, source_mask)
        x = x + feed_forward(norm(x, w, f"{name}.add_and_norm{parts + 1}.norm"), w, f"{name}.feed_forward")
    return norm(x, w, f"{side}_norm")


def loss_of(w, config, ids):
    n, d, pad = ids["dec_in"].shape[1], config["d_model"], config["ids"]["PAD"]
    keys = (ids["enc_in"] != pad)[:, None]
    encoded = stack(embed(ids["enc_in"], w, "enc", d), w, "enc", config, keys)
    causal = torch.ones(1, n, n, dtype=torch.bool).tril()
    h = stack(embed(ids["dec_in"], w, "dec", d), w, "dec", config, causal, encoded, keys)
    logits = h @ w["linear.linear.weight"].T + w["linear.linear.bias"]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids["target"].flatten(), ignore_index=pad,
                                             label_smoothing=config["label_smoothing"])


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden" / "sources"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    arrays, metadata = tensors.read(folder / "cirilla.safetensors")
    config = json.loads(metadata["config"])
    ids = {name: torch.from_numpy(arrays[name].copy()).long() for name in ("enc_in", "dec_in", "target")}
    w = {name: torch.from_numpy(array.copy()).double().requires_grad_()
         for name, array in arrays.items() if array.dtype == "float32"}
    adam = torch.optim.Adam(w.values(), **ADAM)
    losses, found = [], {}
    for t in range(1, STEPS + 1):
        adam.zero_grad()
        loss = loss_of(w, config, ids)
        loss.backward()
        losses.append(loss.item())
        adam.step()
        if t in SHOWN_STEPS:
            found |= {f"w{t}.{name}": w[name].detach().numpy().copy() for name in SHOWN}
    assert abs(losses[0] - arrays["loss"][0]) < 1e-12
    found["loss"] = torch.tensor(losses).double().numpy()
    path = folder / "cirilla_steps.safetensors"
    tensors.write(path, found, {"config": json.dumps({**config, "adam": ADAM})})
    print(f"{path}: {path.stat().st_size} bytes, losses {losses}")


if __name__ == "__main__":
    main()
