"""The additive-attention language model in PyTorch, written to be read.

Attention is a softmax over an explicit N x N matrix of allowed (i, j) pairs: quadratic,
but exactly the definition, which makes it the measure for the engine's scans. Works in
float32 and float64 with PyTorch 1.13 and newer; parameter names are those of the
checkpoints, so `state_dict()` is a model.safetensors.

    model = AdditiveLM(Config(hidden_size=32, vocab_size=61))
    out = model(ids, attention_mask, labels)        # out.logits, out.loss, out.rounds
"""

import dataclasses
import math
import sys
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional

PADDING = 0
IGNORED = -100


@dataclasses.dataclass
class Config:
    hidden_size: int = 256
    vocab_size: int = 32100
    n_heads: int = 4
    n_positions: int = 1024
    position_embedding: str = "learned"  # or "none"
    trained_length: Optional[int] = None  # says nothing about the computation
    n_layer: int = 4
    use_local_att: bool = True
    window_sizes: Optional[List[int]] = None
    hidden_dropout_prob: float = 0.1
    initializer_range: float = 0.02

    def windows(self) -> List[int]:
        """Tokens each layer sees, the current one included."""
        if not self.use_local_att:
            assert self.window_sizes is None
            return [self.n_positions] * self.n_layer
        if self.window_sizes is None:
            return [4 * 2**layer for layer in range(self.n_layer - 1)] + [self.n_positions]
        assert len(self.window_sizes) == self.n_layer
        return list(self.window_sizes)


class Pooled(NamedTuple):
    score: torch.Tensor  # [B, N, H]
    pooled: torch.Tensor  # [B, N, D]


class Output(NamedTuple):
    logits: torch.Tensor  # [B, N, V]
    loss: Optional[torch.Tensor]
    rounds: Dict[Tuple[int, str], Pooled]  # by (layer, "query" or "key")


def additive_attention(x, w, heads, window, mask=None) -> Pooled:
    """One round of causal windowed additive attention.

    x [B, N, D]; w [D], split over heads; mask [B, N], False where a token counts for nothing.
    A position whose window holds no token that counts gets 0.
    """
    batch, length, width = x.shape
    tokens = x.view(batch, length, heads, width // heads)
    score = (tokens * w.view(heads, -1)).sum(-1) / math.sqrt(width // heads)
    i = torch.arange(length, device=x.device)[:, None]
    j = torch.arange(length, device=x.device)[None, :]
    allowed = ((j <= i) & (j > i - window))[None, None]
    if mask is not None:
        allowed = allowed & mask.bool()[:, None, None, :]
    # The most negative finite number rather than -inf: a row without any allowed token then
    # becomes 0 by the product below instead of NaN, in the gradient too.
    pair = score.permute(0, 2, 1)[:, :, None, :].masked_fill(~allowed, torch.finfo(x.dtype).min)
    alpha = pair.softmax(-1) * allowed
    pooled = torch.einsum("bhij,bjhc->bihc", alpha, tokens)
    return Pooled(score, pooled.reshape(batch, length, width))


class Rounds(nn.Module):
    """The two rounds over n, q, k and v [B, N, D]."""

    def __init__(self, d, heads, window, dropout):
        super().__init__()
        self.heads, self.window = heads, window
        self.attn_proj = nn.Linear(d, d, bias=False)
        self.query_attn = nn.Parameter(torch.zeros(d))
        self.key_attn = nn.Parameter(torch.zeros(d))
        self.mid_norm = nn.LayerNorm(d, eps=1e-5)
        self.dropout = nn.Dropout(dropout)

    def attend(self, n, q, k, v, mask):
        query = additive_attention(q, self.query_attn, self.heads, self.window, mask)
        r = n + self.attn_proj(self.dropout(query.pooled)) * k
        key = additive_attention(self.mid_norm(r), self.key_attn, self.heads, self.window, mask)
        return r + self.dropout(key.pooled) * v, query, key


class Attention(Rounds):
    def __init__(self, config: Config, window: int):
        d = config.hidden_size
        super().__init__(d, config.n_heads, window, config.hidden_dropout_prob)
        self.Wquery = nn.Linear(d, d, bias=False)
        self.Wkeys = nn.Linear(d, d, bias=False)
        self.Wvalues = nn.Linear(d, d, bias=False)
        self.attn_norm = nn.LayerNorm(d, eps=1e-5)

    def forward(self, h, mask):
        n = self.attn_norm(h)
        return self.attend(n, self.Wquery(n), self.Wkeys(n), self.Wvalues(n), mask)


class Decoder(nn.Module):
    def __init__(self, config: Config, window: int):
        super().__init__()
        d = config.hidden_size
        self.attention = Attention(config, window)
        self.boom = nn.Linear(d, 4 * d, bias=False)
        self.unboom = nn.Linear(4 * d, d, bias=False)
        self.boom_norm = nn.LayerNorm(d, eps=1e-5)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, h, mask):
        u, query, key = self.attention(h, mask)
        return u + self.dropout(self.unboom(functional.gelu(self.boom(self.boom_norm(u))))), query, key


class Body(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        assert config.position_embedding in ("learned", "none")
        if config.position_embedding == "learned":
            self.position_embeddings = nn.Embedding(config.n_positions, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        # A window over all positions is global, also of longer sequences.
        windows = [window if window < config.n_positions else sys.maxsize for window in config.windows()]
        self.decoders = nn.ModuleList(Decoder(config, window) for window in windows)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, embedded, mask):
        if hasattr(self, "position_embeddings"):
            embedded = embedded + self.position_embeddings(torch.arange(embedded.shape[1], device=embedded.device))
        h = self.dropout(self.LayerNorm(embedded))
        rounds = {}
        for layer, decoder in enumerate(self.decoders):
            h, rounds[layer, "query"], rounds[layer, "key"] = decoder(h, mask)
        return h, rounds


class AdditiveLM(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.word_embedding = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=PADDING)
        self.fastformer_model = Body(config)
        self.proj_logits = nn.Linear(config.hidden_size, config.vocab_size)
        self.proj_logits.weight = self.word_embedding.weight
        self.apply(self._initialise)

    def _initialise(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0.0, self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, input_ids, attention_mask=None, labels=None, label_smoothing=0.0) -> Output:
        """labels [B, N] are not shifted: position i is scored on labels[i + 1]; -100 is ignored."""
        h, rounds = self.fastformer_model(self.word_embedding(input_ids), attention_mask)
        logits = self.proj_logits(h) / math.sqrt(self.config.hidden_size)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(
                logits[:, :-1].reshape(-1, logits.shape[-1]),
                labels[:, 1:].reshape(-1),
                ignore_index=IGNORED,
                label_smoothing=label_smoothing,
            )
        return Output(logits, loss, rounds)
