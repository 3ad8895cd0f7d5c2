#!/usr/bin/env python3
"""Write the golden sets of BART in tests/data/golden/sources: Hugging Face's BartForSequenceClassification in float64.

usage: make_bart_golden.py [FOLDER]          (default: tests/data/golden/sources)          needs torch and transformers

Weights are F32, values F64. Values of the encoder with linear attention are under ignore.* and mask_keys.*
(LinearAttention below replaces the self-attention of its layers), those with its own attention under vanilla.*:
    bart_weights    tensors of the model
    bart_inputs     input_ids and attention_mask [B,N], labels [B]; enc.{x0,attn{l},ln_attn{l},x{l+1}},
                    dec.{x0,selfattn{l},cross{l},x{l+1}}, logits, loss, logits_pad11, grad.NAME
    bart_steps      9 steps of training on the same batch, ignore: loss before each, lr and grad_norm, w{t}.NAME of some
                    tensors after t steps; "recipe" in the config"""

import json
import math
import pathlib
import sys

import numpy
import torch
from torch import nn
from transformers import BartConfig, BartForSequenceClassification

import tensors

CONFIG = {"vocab": 19, "d_model": 12, "encoder_layers": 2, "decoder_layers": 1, "heads": 3, "ffn": 14, "max_positions": 12,
          "pos_offset": 2, "labels": 3, "eps": 1e-05, "act": "gelu erf", "bos": 0, "pad": 1, "eos": 2, "decoder_start": 2}
RECIPE = {"policy": "ignore", "peak": 0.02, "min": 0.001, "warmup_steps": 3, "total_steps": 8, "weight_decay": 0.1,
          "clip": 1.0, "adam_eps": 1e-6, "betas": [0.9, 0.999]}
SHOWN = ["model.shared.weight", "model.encoder.layers.0.self_attn.q_proj.weight", "model.decoder.layers.0.fc1.bias",
         "model.decoder.layers.0.encoder_attn.k_proj.weight", "classification_head.out_proj.weight",
         "model.encoder.layernorm_embedding.weight"]
STEPS, SHOWN_STEPS = 9, (1, 2, 5, 9)


class LinearAttention(nn.Module):
    """elu + 1 in place of the softmax, no scale; padding takes part unless `keep` is set."""

    def __init__(self, old, heads):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = old.q_proj, old.k_proj, old.v_proj, old.out_proj
        self.heads, self.keep = heads, None

    def forward(self, hidden_states, *args, **kwargs):
        b, n, d = hidden_states.shape

        def cut(x):
            return x.view(b, n, self.heads, d // self.heads).transpose(1, 2)

        q = cut(nn.functional.elu(self.q_proj(hidden_states)) + 1)
        k, v = cut(nn.functional.elu(self.k_proj(hidden_states)) + 1), cut(self.v_proj(hidden_states))
        if self.keep is not None:
            k = k * self.keep[:, None, :, None]
        weights = q @ k.transpose(-1, -2)
        y = (weights / (weights.sum(-1, keepdim=True) + 1e-6)) @ v
        return self.out_proj(y.transpose(1, 2).reshape(b, n, d)), None


def make(weights, linear):
    config = BartConfig(vocab_size=CONFIG["vocab"], d_model=CONFIG["d_model"], encoder_layers=CONFIG["encoder_layers"],
                        decoder_layers=CONFIG["decoder_layers"], encoder_attention_heads=CONFIG["heads"],
                        decoder_attention_heads=CONFIG["heads"], encoder_ffn_dim=CONFIG["ffn"], decoder_ffn_dim=CONFIG["ffn"],
                        max_position_embeddings=CONFIG["max_positions"], num_labels=CONFIG["labels"], dropout=0.0,
                        attn_implementation="eager")
    model = BartForSequenceClassification(config).double().eval()
    if weights:
        missing = model.load_state_dict({k: torch.from_numpy(v).double() for k, v in weights.items()}, strict=False)
        assert not missing.unexpected_keys and all("embed_tokens" in key for key in missing.missing_keys)
    if linear:
        for layer in model.model.encoder.layers:
            layer.self_attn = LinearAttention(layer.self_attn, CONFIG["heads"])
    return model


def random_weights():
    random, model, found = numpy.random.default_rng(12), make(None, False), {}
    for name, tensor in model.named_parameters():
        x = random.standard_normal(tensor.shape)
        norm = "layer_norm.weight" in name or "layernorm_embedding.weight" in name
        scale = 0.5 if "shared" in name or "embed_positions" in name else 0.3 if tensor.ndim > 1 else 0.2
        found[name] = (scale * x + norm).astype(numpy.float32)
    return found


def watch(model, found, prefix):
    """Keep the outputs of modules, under the names of the set."""
    hooks = []

    def keep(module, name):
        def hook(_, __, output):
            found[f"{prefix}.{name}"] = (output[0] if isinstance(output, tuple) else output).detach().numpy()
        hooks.append(module.register_forward_hook(hook))

    for words, stack in (("enc", model.model.encoder), ("dec", model.model.decoder)):
        keep(stack.layernorm_embedding, f"{words}.x0")
        for i, layer in enumerate(stack.layers):
            keep(layer.final_layer_norm, f"{words}.x{i + 1}")
            keep(layer.self_attn, f"enc.attn{i}" if words == "enc" else f"dec.selfattn{i}")
            keep(layer.self_attn_layer_norm, f"enc.ln_attn{i}") if words == "enc" else keep(layer.encoder_attn, f"dec.cross{i}")
    return hooks


def mask_keys(model, mask):
    for layer in model.model.encoder.layers:
        layer.self_attn.keep = mask


def pairs():
    rows = [[0, 5, 7, 2, 2, 9, 11, 4, 2], [0, 13, 2, 2, 18, 2], [0, 3, 3, 6, 2, 2, 15, 2]]
    ids = numpy.full((3, 9), CONFIG["pad"], numpy.int32)
    for row, tokens in zip(ids, rows):
        row[: len(tokens)] = tokens
    return ids, (ids != CONFIG["pad"]).astype(numpy.int8), numpy.array([2, 0, 1], numpy.int32)


def values(weights, ids, mask, labels):
    found = {}
    for policy in ("ignore", "mask_keys", "vanilla"):
        model = make(weights, policy != "vanilla")
        given = {"input_ids": torch.from_numpy(ids).long(), "attention_mask": torch.from_numpy(mask).long()}
        if policy == "mask_keys":
            mask_keys(model, given["attention_mask"].double())
        hooks = watch(model, found, policy)
        out = model(**given, labels=torch.from_numpy(labels).long())
        for hook in hooks:
            hook.remove()
        out.loss.backward()
        found |= {f"{policy}.logits": out.logits.detach().numpy(), f"{policy}.loss": out.loss.detach().numpy()[None]}
        found |= {f"{policy}.grad.{name.replace('.self_attn.keep', '')}": p.grad.numpy() for name, p in model.named_parameters()}
        padded = {k: nn.functional.pad(v, (0, 2), value=CONFIG["pad"] if k == "input_ids" else 0) for k, v in given.items()}
        if policy == "mask_keys":
            mask_keys(model, padded["attention_mask"].double())
        found[f"{policy}.logits_pad11"] = model(**padded).logits.detach().numpy()
    assert numpy.abs(found["mask_keys.logits"] - found["mask_keys.logits_pad11"]).max() < 1e-12
    assert numpy.abs(found["ignore.logits"] - found["ignore.logits_pad11"]).max() > 1e-3
    assert not found["ignore.grad.model.shared.weight"][CONFIG["pad"]].any()
    return found


def rate(step):
    warmup, total = RECIPE["warmup_steps"], RECIPE["total_steps"]
    if step < warmup:
        return RECIPE["peak"] * step / warmup
    if step >= total:
        return 0.0
    cycles = math.acos(RECIPE["min"] / RECIPE["peak"]) / math.pi
    return RECIPE["peak"] * max(0.0, 0.5 * (1 + math.cos(math.pi * (cycles * (step - warmup) / (total - warmup) % 1))))


def training(weights, ids, mask, labels):
    """The AdamW that transformers had before PyTorch's: eps beside the uncorrected root, decay of the new weights."""
    model = make(weights, True)
    given = {"input_ids": torch.from_numpy(ids).long(), "attention_mask": torch.from_numpy(mask).long()}
    (b1, b2), state, shown = RECIPE["betas"], {}, {}
    losses, rates, norms = [], [], []
    for t in range(1, STEPS + 1):
        model.zero_grad()
        loss = model(**given, labels=torch.from_numpy(labels).long()).loss
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), RECIPE["clip"]).item())
        losses.append(loss.item())
        rates.append(rate(t - 1))
        with torch.no_grad():
            for name, p in model.named_parameters():
                m, v = state.setdefault(name, (torch.zeros_like(p), torch.zeros_like(p)))
                m.mul_(b1).add_(p.grad, alpha=1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                size = rates[-1] * math.sqrt(1 - b2**t) / (1 - b1**t)
                p.addcdiv_(m, v.sqrt().add_(RECIPE["adam_eps"]), value=-size)
                p.add_(p, alpha=-rates[-1] * RECIPE["weight_decay"])
        if t in SHOWN_STEPS:
            shown |= {f"w{t}.{name}": dict(model.named_parameters())[name].detach().numpy().copy() for name in SHOWN}
    return {"loss": numpy.array(losses), "lr": numpy.array(rates), "grad_norm": numpy.array(norms), **shown}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "data" / "golden" / "sources")
    torch.set_num_threads(1)
    weights, (ids, mask, labels) = random_weights(), pairs()
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    sets = {"bart_weights": (weights, CONFIG), "bart_inputs": (inputs | values(weights, ids, mask, labels), CONFIG),
            "bart_steps": (inputs | training(weights, ids, mask, labels), {**CONFIG, "recipe": RECIPE})}
    for name, (arrays, config) in sets.items():
        path = folder / f"{name}.safetensors"
        tensors.write(path, arrays, {"config": json.dumps(config)})
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
