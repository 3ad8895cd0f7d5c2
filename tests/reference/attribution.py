"""Attribution methods in PyTorch, written to be read: which tokens a score Σ_v c_v z_v of the logits z comes from.

One sequence, float64, no batch. The forwards below repeat those of additive_client.torch over a `Pass`, which
computes each nonlinear step either exactly or *frozen*. A frozen step detaches every factor that depends on the input
but is held constant. The result is a linear function of the embeddings and of all biases, with the same values. Its
gradients times these inputs are the contributions, and autograd is the only derivation.

Frozen are: the standard deviation of every LayerNorm (the subtraction of the mean is linear and is followed); every
attention weight, so softmax and linear attention are followed through their values only; gelu's factor, gelu(y) = y f(y);
the classifier's tanh(y)/y; and of a gate p ⊙ k one factor at a time: λ p ⊙ [k] + (1 - λ) [p] ⊙ k, [x] detached, p pooled.

    case = Case(reader=7, c=contrastive(logits[7], token))
    parts = contributions(model, ids, [case], 0.5)[0]   # token, position, bias: [N]; head: a number; sum: the score
"""

import dataclasses
import math
from typing import Callable, NamedTuple, Optional

import torch
from torch.nn import functional

import packages  # noqa: F401, E402
from additive_client.torch.additive import AdditiveLM  # noqa: E402
from additive_client.torch.gpt2 import GPT2LM, softmax_weights  # noqa: E402
from additive_client.torch.linear import EPSILON, LinearEncoder, LinearLM  # noqa: E402

STEPS = 64


class Case(NamedTuple):
    """The score Σ_v c_v z_v of the logits at a position; of a classifier's logits if there is none."""

    reader: Optional[int]
    c: torch.Tensor  # [V]


class Site(NamedTuple):
    """One round of attention in one layer."""

    layer: int
    weights: torch.Tensor  # [H, N, N]: row i is what i reads
    values: torch.Tensor  # [H, N, D / H]
    pooled: torch.Tensor  # [H, N, D / H]


class Parts(NamedTuple):
    token: torch.Tensor  # [N], of the word rows
    position: torch.Tensor  # [N], of the position rows
    bias: torch.Tensor  # [N], of the biases added at each token
    head: torch.Tensor  # [], share of the biases added after the tokens

    def sum(self):
        return self.token.sum() + self.position.sum() + self.bias.sum() + self.head


# --- targets ---------------------------------------------------------------------------


def one(z, token):
    return functional.one_hot(torch.tensor(token), z.shape[-1]).to(z.dtype)


def contrastive(z, token):
    """The token against the model's other options: c = e_t - p with p = softmax(z), a constant."""
    return one(z, token) - z.detach().softmax(-1)


def pair(z, token, other):
    return one(z, token) - one(z, other)


# --- one forward ---------------------------------------------------------------------------


class Pass:
    """Settings of one forward, and the values that it collects.

    share: λ of the frozen network; None: exact. keep [N]: False where no reader reads a token.
    """

    def __init__(self, share=None, keep=None):
        self.share, self.keep = share, keep
        self.biases, self.head_biases, self.sites = [], [], []

    def freeze(self, x):
        return x if self.share is None else x.detach()

    def bias(self, x, b):
        """x + b with a copy of b of its own for each token."""
        leaf = b.detach().expand_as(x).clone().requires_grad_()
        (self.biases if x.dim() == 2 else self.head_biases).append(leaf)
        return x + leaf

    def linear(self, x, layer):
        y = x @ layer.weight.detach().T
        return y if layer.bias is None else self.bias(y, layer.bias)

    def transposed(self, x, layer):
        return self.bias(x @ layer.weight.detach(), layer.bias)

    def norm(self, x, layer):
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt()
        return self.bias(centred / self.freeze(deviation) * layer.weight.detach(), layer.bias)

    def gelu(self, y):
        return y * self.freeze((1 + torch.erf(y / math.sqrt(2))) / 2)

    def gelu_tanh(self, y):
        return y * self.freeze((1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) / 2)

    def tanh(self, y):
        if self.share is None:
            return torch.tanh(y)
        zero = y == 0
        return y * torch.where(zero, torch.ones_like(y), torch.tanh(y) / y.masked_fill(zero, 1)).detach()

    def gate(self, pooled, k):
        if self.share is None:
            return pooled * k
        return self.share * pooled * k.detach() + (1 - self.share) * pooled.detach() * k

    def attend(self, layer, weights, values):
        """weights [H, N, N], values [N, D]"""
        heads, length, _ = weights.shape
        split = values.view(length, heads, -1).transpose(0, 1)
        pooled = self.freeze(weights) @ split
        self.sites.append(Site(layer, weights, split, pooled))
        return pooled.transpose(0, 1).reshape(length, -1)

    def kept(self, length):
        return torch.ones(length, dtype=torch.bool) if self.keep is None else self.keep


# --- architectures ---------------------------------------------------------------------------


@dataclasses.dataclass
class Architecture:
    rows: Callable  # (model, ids) -> word rows [N, D], position rows [N, D]
    forward: Callable  # (model, pass, their sum) -> logits [N, V]; of a classifier [classes]


def additive_rows(model, ids):
    words = model.word_embedding.weight[ids]
    body = model.fastformer_model
    if hasattr(body, "position_embeddings"):
        return words, body.position_embeddings.weight[: len(ids)]
    return words, torch.zeros_like(words)


def additive_weights(x, w, heads, window, keep):
    length, width = x.shape
    score = (x * w.detach()).view(length, heads, -1).sum(-1) / math.sqrt(width // heads)
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    allowed = (j <= i) & (j > i - window) & keep[None, :]
    rows = score.T[:, None, :].expand(heads, length, length)
    return rows.masked_fill(~allowed, torch.finfo(x.dtype).min).softmax(-1) * allowed


def additive_forward(model, run, embedded):
    keep = run.kept(len(embedded))
    h = run.norm(embedded, model.fastformer_model.LayerNorm)
    for layer, decoder in enumerate(model.fastformer_model.decoders):
        a = decoder.attention
        n = run.norm(h, a.attn_norm)
        q = run.linear(n, a.Wquery)
        query = run.attend(layer, additive_weights(q, a.query_attn, a.heads, a.window, keep), q)
        r = n + run.gate(run.linear(query, a.attn_proj), run.linear(n, a.Wkeys))
        m = run.norm(r, a.mid_norm)
        key = run.attend(layer, additive_weights(m, a.key_attn, a.heads, a.window, keep), m)
        u = r + run.gate(key, run.linear(n, a.Wvalues))
        h = u + run.linear(run.gelu(run.linear(run.norm(u, decoder.boom_norm), decoder.boom)), decoder.unboom)
    return vocabulary(run, h @ model.word_embedding.weight.detach().T, model.proj_logits.bias) / math.sqrt(h.shape[1])


def vocabulary(run, z, bias):
    """z + bias, which belongs to no token."""
    leaf = bias.detach().clone().requires_grad_()
    run.head_biases.append(leaf)
    return z + leaf


def gpt2_rows(model, ids):
    return model.transformer.wte.weight[ids], model.transformer.wpe.weight[: len(ids)]


def gpt2_forward(model, run, embedded):
    h, keep = embedded, run.kept(len(embedded))[None]
    for layer, block in enumerate(model.transformer.h):
        q, k, v = run.transposed(run.norm(h, block.ln_1), block.attn.c_attn).split(h.shape[1], -1)
        weights = softmax_weights(q[None], k[None], block.attn.heads, keep)[0]
        h = h + run.transposed(run.attend(layer, weights, v), block.attn.c_proj)
        inner = run.gelu_tanh(run.transposed(run.norm(h, block.ln_2), block.mlp.c_fc))
        h = h + run.transposed(inner, block.mlp.c_proj)
    return run.norm(h, model.transformer.ln_f) @ model.transformer.wte.weight.detach().T


def linear_weights(q, k, heads, causal, keep):
    q, k = (functional.elu(x).view(len(x), heads, -1).transpose(0, 1) + 1 for x in (q, k))
    weights = q @ k.transpose(1, 2) * keep[None, None, :]
    weights = weights.tril() if causal else weights
    return weights / (weights.sum(-1, keepdim=True) + EPSILON)


def linear_attention(run, layer, x, a, causal):
    q, k, v = (run.linear(x, projection) for projection in (a.q_proj, a.k_proj, a.v_proj))
    weights = linear_weights(q, k, a.heads, causal, run.kept(len(x)))
    return run.linear(run.attend(layer, weights, v), a.out_proj)


def linear_rows(model, ids):
    words = model.model.embedding.weight[ids]
    return words, model.model.positions.weight[: len(ids)] if hasattr(model.model, "positions") else torch.zeros_like(words)


def linear_forward(model, run, embedded):
    h = embedded
    for layer, block in enumerate(model.model.layers):
        h = h + linear_attention(run, layer, run.norm(h, block.attention_norm), block.attention, causal=True)
        h = h + run.linear(run.gelu(run.linear(run.norm(h, block.inner_norm), block.inner)), block.outer)
    return run.norm(h, model.model.norm) @ model.model.embedding.weight.detach().T


def encoder_rows(model, ids):
    scale = math.sqrt(model.config.d_model) if model.config.scale_embedding else 1.0
    return model.model.shared.weight[ids] * scale, model.model.encoder.embed_positions.weight[2 : 2 + len(ids)]


def encoder_forward(model, run, embedded):
    encoder, head = model.model.encoder, model.classification_head
    h = run.norm(embedded, encoder.layernorm_embedding)
    for layer, block in enumerate(encoder.layers):
        h = run.norm(h + linear_attention(run, layer, h, block.self_attn, causal=False), block.self_attn_layer_norm)
        h = run.norm(h + run.linear(run.gelu(run.linear(h, block.fc1)), block.fc2), block.final_layer_norm)
    pooled = h.mean(0) if model.config.pooling == "mean" else h[-1]
    return run.linear(run.tanh(run.linear(pooled, head.dense)), head.out_proj)


ARCHITECTURES = {
    AdditiveLM: Architecture(additive_rows, additive_forward),
    GPT2LM: Architecture(gpt2_rows, gpt2_forward),
    LinearLM: Architecture(linear_rows, linear_forward),
    LinearEncoder: Architecture(encoder_rows, encoder_forward),
}


def rows(model, ids):
    """Word rows as they are added, with any scale, and position rows (0 without a table): leaves."""
    return tuple(row.detach().clone().requires_grad_() for row in ARCHITECTURES[type(model)].rows(model, ids))


def run_forward(model, run, words, positions):
    return ARCHITECTURES[type(model)].forward(model, run, words + positions)


def logits(model, ids, keep=None):
    with torch.no_grad():
        return run_forward(model, Pass(keep=keep), *rows(model, ids))


def score(z, case):
    return (z if case.reader is None else z[case.reader]) @ case.c


def scores(z, cases):
    return torch.stack([score(z, case) for case in cases])


def gradients(of, leaves):
    """Those of one number, 0 for a leaf that it does not depend on."""
    found = torch.autograd.grad(of, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in zip(leaves, found)]


# --- methods: each a list over the cases ---------------------------------------------------------


def contributions(model, ids, cases, share):
    """Parts whose sum is the score, with the share λ of every gate given to its pooled factor."""
    words, positions = rows(model, ids)
    run = Pass(share)
    z = run_forward(model, run, words, positions)
    leaves = [words, positions, *run.biases, *run.head_biases]
    found = []
    for case in cases:
        products = [g * x.detach() for g, x in zip(gradients(score(z, case), leaves), leaves)]
        tokens = [product.sum(-1) for product in products[: 2 + len(run.biases)]]
        head = [product.sum() for product in products[2 + len(run.biases) :]]
        found.append(Parts(tokens[0], tokens[1], sum(tokens[2:]), sum(head, torch.zeros((), dtype=z.dtype))))
    return found


def gradient_x_input(model, ids, cases):
    """[N]: the exact gradient of the score with respect to a word row, times the row."""
    words, positions = rows(model, ids)
    z = run_forward(model, Pass(), words, positions)
    return [(gradients(score(z, case), [words])[0] * words.detach()).sum(-1) for case in cases]


def attention_x_gradient(model, ids, cases):
    """[N]: Σ over layers, rounds and heads of ⟨Σ_i α_ij ∂score/∂g_i, x_j⟩, g_i = Σ_j α_ij x_j."""
    run = Pass()
    z = run_forward(model, run, *rows(model, ids))
    found = []
    for case in cases:
        pulled = gradients(score(z, case), [site.pooled for site in run.sites])
        parts = [(s.weights.transpose(1, 2) @ g * s.values).sum((0, 2)) for s, g in zip(run.sites, pulled)]
        found.append(sum(parts).detach())
    return found


def integrated_gradients(model, ids, cases, steps=STEPS):
    """([N], score(ids) - score(zero word rows)): midpoints of the path t · words; positions and biases stay."""
    words, positions = rows(model, ids)
    total = [torch.zeros_like(words) for _ in cases]
    for step in range(steps):
        scaled = (words * ((step + 0.5) / steps)).detach().requires_grad_()
        z = run_forward(model, Pass(), scaled, positions)
        for sum_, case in zip(total, cases):
            sum_ += gradients(score(z, case), [scaled])[0] / steps
    with torch.no_grad():
        whole = scores(run_forward(model, Pass(), words, positions), cases)
        none = scores(run_forward(model, Pass(), torch.zeros_like(words), positions), cases)
        return [((sum_ * words).sum(-1), difference) for sum_, difference in zip(total, whole - none)]


def leave_one_out_mask(model, ids, cases):
    """[cases, N]: score with token j minus score without any reader reading it, j included. The token's own residual
    path stays, in the mean over the tokens of a classifier too."""
    whole, found = scores(logits(model, ids), cases), []
    for j in range(len(ids)):
        keep = torch.arange(len(ids)) != j
        found.append(whole - scores(logits(model, ids, keep), cases))
    return torch.stack(found, 1)


def leave_one_out_replace(model, ids, cases, replacement):
    """[cases, N]: score with token j minus score with `replacement` in its place."""
    whole, found = scores(logits(model, ids), cases), []
    for j in range(len(ids)):
        other = ids.clone()
        other[j] = replacement
        found.append(whole - scores(logits(model, other), cases))
    return torch.stack(found, 1)


def layer_weights(model, ids):
    """[layers, N, N]: α, its rows normalised to sum to 1, averaged over the rounds and heads of a layer."""
    run = Pass()
    with torch.no_grad():
        run_forward(model, run, *rows(model, ids))
    by_layer = {}
    for site in run.sites:
        by_layer.setdefault(site.layer, []).append(site.weights / site.weights.sum(-1, keepdim=True))
    return torch.stack([torch.cat(by_layer[layer]).mean(0) for layer in sorted(by_layer)])


def attention_mean(model, ids):
    """[N, N]: row i is the mean over all layers, rounds and heads of what i reads."""
    return layer_weights(model, ids).mean(0)


def rollout(model, ids):
    """[N, N]: the product Ã_L … Ã_1 with Ã = (A + I) / 2."""
    identity = torch.eye(len(ids), dtype=torch.float64)
    product = identity
    for a in layer_weights(model, ids):
        product = (a + identity) / 2 @ product
    return product
