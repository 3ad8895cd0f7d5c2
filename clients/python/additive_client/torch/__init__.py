"""Models of the service as plain PyTorch modules, written to be read. Needs torch, numpy and safetensors.

    model = load(client.models.export(name, "folder"))
    model(ids).logits                               # [B, N, V], those of the service but for rounding

`additive.py`, `additive2.py`, `gpt2.py`, `linear.py` have a class for each architecture, whose `state_dict()` is a model.safetensors."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import torch
from safetensors.torch import load_file

from .additive import AdditiveLM, Config
from .additive2 import Additive2Config, Additive2LM
from .gpt2 import GPT2LM, GPT2Config
from .linear import EncoderConfig, LinearConfig, LinearEncoder, LinearLM

KINDS: dict[str, tuple[Any, Any]] = {
    "FastformerForCausalLM": (AdditiveLM, Config), "additive2": (Additive2LM, Additive2Config), "gpt2": (GPT2LM, GPT2Config), "linear": (LinearLM, LinearConfig),
    "linear_encoder": (LinearEncoder, EncoderConfig)}
# Keys of config.json about training, sessions, tokens and files; and keys for which these classes support only one value.
UNREAD = {"model_type", "architectures", "trained_length", "cache_dtype", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id",
          "resid_pdrop", "embd_pdrop", "attn_pdrop", "id2label", "label2id", "torch_dtype", "dtype", "transformers_version"}
FIXED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "tie_word_embeddings": True}


def load(folder: str | pathlib.Path) -> torch.nn.Module:
    """The model of a folder with config.json and model.safetensors, in evaluation mode and fp32. ValueError names a key of
    config.json that is not built here."""
    folder = pathlib.Path(folder)
    read: dict[str, Any] = json.loads((folder / "config.json").read_text())
    kind = read.get("model_type", "FastformerForCausalLM")
    if kind not in KINDS:
        raise ValueError(f"model_type: there is no PyTorch class of {kind!r}; there are {', '.join(KINDS)}")
    build, config = KINDS[kind]
    known = {field.name for field in dataclasses.fields(config)}
    for key, value in read.items():
        if key not in known | UNREAD and (key not in FIXED or value != FIXED[key]):
            raise ValueError(f"{key}: {value!r} is not built here")
    if "num_labels" in known and "id2label" in read:
        read["num_labels"] = len(read["id2label"])
    model: torch.nn.Module = build(config(**{key: value for key, value in read.items() if key in known}))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()
