"""Additive attention that forgets, in PyTorch, written to be read: a language model of `additive2`, also with rotary softmax
attention, linear attention or the rounds of `additive` in some layers.

Attention weights are an explicit N x N matrix: quadratic, but exactly the definition. Works in float32 and float64;
parameter names are those of the checkpoints, so `state_dict()` is a model.safetensors.

    model = Additive2LM(Additive2Config(hidden_size=32, n_heads=4, vocab_size=61))
    out = model(ids, attention_mask, labels)            # out.logits, out.loss
"""

import dataclasses
import sys
from typing import NamedTuple, Optional

import torch
from torch import nn
from torch.nn import functional

from .additive import Rounds
from .linear import linear_attention

IGNORED = -100
EPSILON = 1e-6


class Output(NamedTuple):
    logits: torch.Tensor
    loss: Optional[torch.Tensor]


@dataclasses.dataclass
class Additive2Config:
    hidden_size: int = 128
    vocab_size: int = 8000
    n_heads: int = 16
    n_layer: int = 6
    intermediate_size: int = 402
    forget: str = "data"  # "const" or "none"
    tau: tuple[float, float] = (2.0, 512.0)
    shift: bool = True
    gate: bool = True
    group_norm: bool = True
    dropout: float = 0.1
    window_layers: tuple[int, ...] = ()
    window: int = 128
    window_heads: int = 4
    rotary_base: float = 10000.0
    linear_layers: tuple[int, ...] = ()
    window_sizes: tuple[int, ...] = ()  # for each layer the window of the rounds, 0: all tokens


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)


def weights(a, f, mask=None):
    """alpha [B, H, reader, token] from scores a and log-forgets f [B, N, H]. A masked token is not read and forgets nothing."""
    if mask is not None:
        f = f * mask[:, :, None].to(f.dtype)
    kept = f.cumsum(1).transpose(1, 2)
    exponent = a.transpose(1, 2)[:, :, None, :] + kept[:, :, :, None] - kept[:, :, None, :]
    unread = torch.ones_like(exponent, dtype=torch.bool).triu(1)
    if mask is not None:
        unread = unread | (mask == 0)[:, None, None, :]
    return exponent.masked_fill(unread, -torch.inf).softmax(-1).nan_to_num()


def rotate(x, base):
    """x [B, H, N, width]: halves of a row are turned by its number."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2], dtype=x.dtype, device=x.device)[:, None] * base ** (
        -torch.arange(half, dtype=x.dtype, device=x.device) / half)
    cos, sin = torch.cat([angle.cos()] * 2, 1), torch.cat([angle.sin()] * 2, 1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def matrix(rows, columns, std):
    return nn.Parameter(torch.randn(rows, columns) * std)


class Mixer(nn.Module):
    """`mu` mixes each row with the one before, `Wg` gates the result; subclasses attend."""

    def __init__(self, config: Additive2Config, mixtures):
        super().__init__()
        d = config.hidden_size
        self.mixtures = mixtures
        self.Wo = nn.Parameter(torch.zeros(d, d))
        if config.shift:
            self.mu = nn.Parameter(torch.full((self.mixtures, d), 0.5))
        if config.gate:
            self.Wg = matrix(d, d, d**-0.5)

    def forward(self, n, mask):
        rows = [n] * self.mixtures
        if hasattr(self, "mu"):
            seen = n if mask is None else n * mask[:, :, None].to(n.dtype)
            before = torch.cat([torch.zeros_like(n[:, :1]), seen[:, :-1]], 1)
            rows = [n + mu * (before - n) for mu in self.mu]
        y = self.attend(n, rows, mask)
        if hasattr(self, "Wg"):
            y = y * functional.silu(rows[-1] @ self.Wg.T)
        return y @ self.Wo.T


class Forgetting(Mixer):
    def __init__(self, config: Additive2Config):
        super().__init__(config, 3)
        d, heads = config.hidden_size, config.n_heads
        self.heads, self.forget = heads, config.forget
        self.Wv, self.Wa = matrix(d, d, d**-0.5), nn.Parameter(torch.zeros(heads, d))
        shortest, longest = config.tau
        tau = shortest * (longest / shortest) ** (torch.arange(heads) / max(1, heads - 1))
        logit = -torch.log(torch.expm1(1 / tau))
        if config.forget == "data":
            self.Wf, self.beta = nn.Parameter(torch.zeros(heads, d)), nn.Parameter(logit)
        elif config.forget == "const":
            self.theta = nn.Parameter(-logit)
        if config.group_norm:
            self.gain = nn.Parameter(torch.ones(d))

    def pool(self, a, f, v, mask):
        return weights(a, f, mask) @ v

    def attend(self, n, rows, mask):
        values, scores = rows[:2]
        batch, length, d = values.shape
        a = scores @ self.Wa.T
        if self.forget == "data":
            f = functional.logsigmoid(scores @ self.Wf.T + self.beta)
        elif self.forget == "const":
            f = functional.logsigmoid(-self.theta).expand(batch, length, -1)
        else:
            f = torch.zeros_like(a)
        v = (values @ self.Wv.T).view(batch, length, self.heads, -1).transpose(1, 2)
        g = self.pool(a, f, v, mask).transpose(1, 2)
        if hasattr(self, "gain"):
            return rms(g).reshape(batch, length, d) * self.gain
        return g.reshape(batch, length, d)


class Products(Mixer):
    """Queries, keys and values; subclasses attend with them."""

    def __init__(self, config: Additive2Config):
        super().__init__(config, 3 + config.gate)
        d = config.hidden_size
        self.heads = config.window_heads
        self.Wq, self.Wk, self.Wv = (matrix(d, d, d**-0.5) for _ in range(3))

    def attend(self, n, rows, mask):
        q, k, v = (x @ w.T for x, w in zip(rows, (self.Wq, self.Wk, self.Wv)))
        return self.read(n, q, k, v, mask)


class RotaryWindow(Products):
    def __init__(self, config: Additive2Config):
        super().__init__(config)
        self.window, self.base = config.window, config.rotary_base

    def read(self, n, q, k, v, mask):
        batch, length, d = q.shape
        q, k, v = (x.view(batch, length, self.heads, -1).transpose(1, 2) for x in (q, k, v))
        scores = rotate(q, self.base) @ rotate(k, self.base).transpose(2, 3) * (d // self.heads) ** -0.5
        ones = torch.ones_like(scores, dtype=torch.bool)
        unread = ones.triu(1) | ones.tril(-self.window)
        if mask is not None:
            unread = unread | (mask == 0)[:, None, None, :]
        return (scores.masked_fill(unread, -torch.inf).softmax(-1).nan_to_num() @ v).transpose(1, 2).reshape(batch, length, d)


class Linear(Products):
    def read(self, n, q, k, v, mask):
        return linear_attention(q, k, v, self.heads, True, mask)


class Additive(Products):
    def __init__(self, config: Additive2Config, window):
        super().__init__(config)
        self.rounds = Rounds(config.hidden_size, self.heads, window or sys.maxsize, config.dropout)

    def read(self, n, q, k, v, mask):
        return self.rounds.attend(n, q, k, v, mask)[0]


def mixer_of(config: Additive2Config, number):
    if number in config.window_layers:
        return RotaryWindow(config)
    if number in config.linear_layers:
        return Linear(config)
    if config.window_sizes:
        return Additive(config, config.window_sizes[number])
    return Forgetting(config)


class Layer(nn.Module):
    def __init__(self, config: Additive2Config, number):
        super().__init__()
        d, inner = config.hidden_size, config.intermediate_size
        self.norm1, self.norm2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.mix = mixer_of(config, number)
        self.W1, self.W2 = matrix(2 * inner, d, d**-0.5), nn.Parameter(torch.zeros(d, inner))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, h, mask):
        h = h + self.dropout(self.mix(rms(h) * self.norm1, mask))
        u, q = (rms(h) * self.norm2 @ self.W1.T).chunk(2, -1)
        return h + self.dropout((functional.silu(u) * q) @ self.W2.T)


class Additive2LM(nn.Module):
    def __init__(self, config: Additive2Config):
        super().__init__()
        d = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.n_layer))
        self.norm = nn.Parameter(torch.ones(d))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, input_ids, attention_mask=None, labels=None, label_smoothing=0.0) -> Output:
        """labels [B, N] are not shifted: position i is scored on labels[i + 1]; -100 is ignored."""
        h = self.dropout(self.embedding(input_ids))
        for layer in self.layers:
            h = layer(h, attention_mask)
        logits = rms(h) * self.norm @ self.embedding.weight.T
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(
                logits[:, :-1].reshape(-1, logits.shape[-1]),
                labels[:, 1:].reshape(-1),
                ignore_index=IGNORED,
                label_smoothing=label_smoothing,
            )
        return Output(logits, loss)
