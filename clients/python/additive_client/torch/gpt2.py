"""GPT-2 in PyTorch, written to be read, with the parameter names of Hugging Face's GPT2LMHeadModel.

Linear weights are [inputs, outputs]. Works in float32 and float64 with PyTorch 1.13 and newer; no dropout.
It reproduces tests/data/golden/gpt2.safetensors, which comes from Hugging Face's model.

    model = GPT2LM(GPT2Config(n_embd=32, n_head=4, vocab_size=61))
    out = model(ids, attention_mask)                # out.logits [B, N, V]
"""

import dataclasses
import math
from typing import NamedTuple, Optional

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass
class GPT2Config:
    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: Optional[int] = None  # 4 n_embd
    activation_function: str = "gelu_new"  # the gelu of tanh; or "gelu"
    layer_norm_epsilon: float = 1e-5


class Output(NamedTuple):
    logits: torch.Tensor


class Linear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


def softmax_weights(q, k, heads, mask=None):
    """[B, H, N, N], causal; q, k [B, N, D]; mask [B, N], False where a key counts for nothing. A row without keys is 0."""
    batch, length, width = q.shape
    q, k = (x.view(batch, length, heads, width // heads).transpose(1, 2) for x in (q, k))
    allowed = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()[None, None]
    if mask is not None:
        allowed = allowed & mask.bool()[:, None, None, :]
    pair = (q @ k.transpose(2, 3) / math.sqrt(width // heads)).masked_fill(~allowed, torch.finfo(q.dtype).min)
    return pair.softmax(-1) * allowed


class Attention(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        self.heads = config.n_head
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = Linear(config.n_embd, config.n_embd)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = self.c_attn(x).split(width, -1)
        v = v.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        pooled = softmax_weights(q, k, self.heads, mask) @ v
        return self.c_proj(pooled.transpose(1, 2).reshape(batch, length, width))


class Inner(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.approximate = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}[config.activation_function]
        self.c_fc = Linear(config.n_embd, inner)
        self.c_proj = Linear(inner, config.n_embd)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate=self.approximate))


def norm_of(config: GPT2Config):
    return nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)


class Layer(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        self.ln_1, self.ln_2 = norm_of(config), norm_of(config)
        self.attn, self.mlp = Attention(config), Inner(config)

    def forward(self, h, mask):
        h = h + self.attn(self.ln_1(h), mask)
        return h + self.mlp(self.ln_2(h))


class Body(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.ln_f = norm_of(config)


class GPT2LM(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        self.config = config
        self.transformer = Body(config)

    def forward(self, input_ids, attention_mask=None) -> Output:
        body = self.transformer
        h = body.wte(input_ids) + body.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in body.h:
            h = layer(h, attention_mask)
        return Output(body.ln_f(h) @ body.wte.weight.T)
