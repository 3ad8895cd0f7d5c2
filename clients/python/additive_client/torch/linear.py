"""Linear attention in PyTorch, written to be read: the causal language model and the encoder with a head for classes.

Attention weights are an explicit N x N matrix: quadratic, but exactly the definition. Works in float32 and float64 with
PyTorch 1.13 and newer; parameter names are those of the checkpoints, so `state_dict()` is a model.safetensors.

    model = LinearLM(LinearConfig(hidden_size=32, vocab_size=61))
    out = model(ids, attention_mask, labels)            # out.logits, out.loss
    model = LinearEncoder(EncoderConfig(d_model=32, vocab_size=61, num_labels=3))
    out = model(ids, attention_mask, labels)            # logits [B, num_labels]
"""

import dataclasses
import math
from typing import NamedTuple, Optional

import torch
from torch import nn
from torch.nn import functional

IGNORED = -100
EPSILON = 1e-6


class Output(NamedTuple):
    logits: torch.Tensor
    loss: Optional[torch.Tensor]


def linear_attention(q, k, v, heads, causal, mask=None):
    """q, k, v [B, N, D]; mask [B, N], 0 where a key counts for nothing."""
    batch, length, width = q.shape

    def split(x):
        return x.view(batch, length, heads, width // heads).transpose(1, 2)

    q, k = functional.elu(split(q)) + 1, functional.elu(split(k)) + 1
    weights = q @ k.transpose(2, 3)
    if causal:
        weights = weights.tril()
    if mask is not None:
        weights = weights * mask[:, None, None, :].to(weights.dtype)
    y = weights @ split(v) / (weights.sum(-1, keepdim=True) + EPSILON)
    return y.transpose(1, 2).reshape(batch, length, width)


class Attention(nn.Module):
    def __init__(self, width, heads, causal, bias):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.k_proj = nn.Linear(width, width, bias=bias)
        self.v_proj = nn.Linear(width, width, bias=bias)
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x, mask):
        return self.out_proj(linear_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x), self.heads, self.causal, mask))


# --- the language model -----------------------------------------------------------------


@dataclasses.dataclass
class LinearConfig:
    hidden_size: int = 256
    vocab_size: int = 259
    n_heads: int = 4
    n_positions: int = 1024
    position_embedding: str = "none"  # or "learned"
    n_layer: int = 4
    hidden_dropout_prob: float = 0.1


class Layer(nn.Module):
    def __init__(self, config: LinearConfig):
        super().__init__()
        d = config.hidden_size
        self.attention_norm = nn.LayerNorm(d, eps=1e-5)
        self.attention = Attention(d, config.n_heads, causal=True, bias=False)
        self.inner_norm = nn.LayerNorm(d, eps=1e-5)
        self.inner = nn.Linear(d, 4 * d, bias=False)
        self.outer = nn.Linear(4 * d, d, bias=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, h, mask):
        h = h + self.dropout(self.attention(self.attention_norm(h), mask))
        return h + self.dropout(self.outer(functional.gelu(self.inner(self.inner_norm(h)))))


class LinearBody(nn.Module):
    def __init__(self, config: LinearConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.position_embedding == "learned":
            self.positions = nn.Embedding(config.n_positions, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids, mask):
        h = self.embedding(input_ids)
        if hasattr(self, "positions"):
            h = h + self.positions(torch.arange(h.shape[1], device=h.device))
        h = self.dropout(h)
        for layer in self.layers:
            h = layer(h, mask)
        return self.norm(h)


class LinearLM(nn.Module):
    def __init__(self, config: LinearConfig):
        super().__init__()
        self.model = LinearBody(config)

    def forward(self, input_ids, attention_mask=None, labels=None, label_smoothing=0.0) -> Output:
        """labels [B, N] are not shifted: position i is scored on labels[i + 1]; -100 is ignored."""
        logits = self.model(input_ids, attention_mask) @ self.model.embedding.weight.T
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(
                logits[:, :-1].reshape(-1, logits.shape[-1]),
                labels[:, 1:].reshape(-1),
                ignore_index=IGNORED,
                label_smoothing=label_smoothing,
            )
        return Output(logits, loss)


# --- the encoder ------------------------------------------------------------------------


@dataclasses.dataclass
class EncoderConfig:
    d_model: int = 768
    vocab_size: int = 50265
    encoder_attention_heads: int = 12
    max_position_embeddings: int = 1024
    encoder_layers: int = 6
    encoder_ffn_dim: int = 3072
    num_labels: int = 2
    pad_token_id: int = 1
    scale_embedding: bool = False
    pad_policy: str = "mask_keys"  # or "ignore"
    pooling: str = "mean"  # or "end"
    dropout: float = 0.1
    activation_dropout: float = 0.0
    classifier_dropout: float = 0.0


class EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        d = config.d_model
        self.self_attn = Attention(d, config.encoder_attention_heads, causal=False, bias=True)
        self.self_attn_layer_norm = nn.LayerNorm(d, eps=1e-5)
        self.fc1 = nn.Linear(d, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, d)
        self.final_layer_norm = nn.LayerNorm(d, eps=1e-5)
        self.dropout, self.inner_dropout = nn.Dropout(config.dropout), nn.Dropout(config.activation_dropout)

    def forward(self, h, mask):
        h = self.self_attn_layer_norm(h + self.dropout(self.self_attn(h, mask)))
        inner = self.inner_dropout(functional.gelu(self.fc1(h)))
        return self.final_layer_norm(h + self.dropout(self.fc2(inner)))


class Encoder(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.embed_positions = nn.Embedding(config.max_position_embeddings + 2, config.d_model)
        self.layernorm_embedding = nn.LayerNorm(config.d_model, eps=1e-5)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, embedded, mask):
        rows = torch.arange(embedded.shape[1], device=embedded.device) + 2
        h = self.dropout(self.layernorm_embedding(embedded + self.embed_positions(rows)))
        for layer in self.layers:
            h = layer(h, mask)
        return h


class Body(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        padding = config.pad_token_id if config.pad_token_id >= 0 else None
        self.shared = nn.Embedding(config.vocab_size, config.d_model, padding_idx=padding)
        self.encoder = Encoder(config)


class Head(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.num_labels)
        self.dropout = nn.Dropout(config.classifier_dropout)

    def forward(self, pooled):
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(pooled)))))


class LinearEncoder(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.classification_head = Head(config)

    def forward(self, input_ids, attention_mask=None, labels=None, label_smoothing=0.0) -> Output:
        scale = math.sqrt(self.config.d_model) if self.config.scale_embedding else 1.0
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        embedded = self.model.shared(input_ids) * scale
        h = self.model.encoder(embedded, mask if self.config.pad_policy == "mask_keys" else None)
        if self.config.pooling == "mean":
            counts = mask.to(h.dtype)[:, :, None]
            pooled = (h * counts).sum(1) / counts.sum(1)
        else:
            last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1)
            pooled = h[torch.arange(len(h), device=h.device), last]
        logits = self.classification_head(pooled)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=label_smoothing)
        return Output(logits, loss)
