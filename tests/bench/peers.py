"""The engine's work in PyTorch, as fast as we can make it: one contestant (contest.py) per process.

    python peers.py train-additive '{"rounds": "doubling", "compile": "default", "threads": 2}'

A contestant first compares its results with the plain definition's (PARITY; refused otherwise), compiles and warms up,
then answers each line of standard input, a number of steps, by the time of each: {"ns": […]}.

A training step reads random tokens: forward, loss, backward, clipping, fused AdamW. "train-additive" is the model of
tests/reference with its attention rounds and its head replaced by one of the implementations below; "train-additive2" is
that of additive2 with chunks in place of its attention matrix; "train-rotary" is transformers'
Llama, or its weights in a forward of our own; "train-gpt2", "decode-gpt2" and "prefill-gpt2" are transformers'. "round"
is one round of attention, forward and backward.

On a GPU ("device": "cuda") times are those of the device's own events, "bf16" is autocast, and "reduce-overhead" as
"compile" replays CUDA graphs. The comparison with the plain definition is always made in fp32.
"""

import functools
import json
import math
import os
import sys
import time

import torch
import torch._inductor.config
import transformers
from torch.nn import functional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import packages  # noqa: F401, E402
from additive_client.torch import additive as reference  # noqa: E402
from additive_client.torch import additive2  # noqa: E402

PARITY = 1e-4
TURN = 128
HEADS = 4  # set by main


# --- one round of additive attention, several ways ------------------------------------------
#
# pooled[i] = Σ e^{a_j} x_j / Σ e^{a_j} over the last `window` tokens. All but `definition` and
# `banded` scale by the largest score of the whole sequence, which is fine for the scores
# of a benchmark and underflows where scores drift by 88: a freedom our own kernels do not take.


def scores(x, w):
    tokens = x.unflatten(-1, (HEADS, -1))
    return tokens, (tokens * w.unflatten(0, (HEADS, -1))).sum(-1) / math.sqrt(tokens.shape[-1])


def weighted(x, w):
    """Terms of numerator and denominator, side by side: [B, N, H, dh + 1]."""
    tokens, a = scores(x, w)
    e = (a - a.detach().amax(1, keepdim=True)).exp()[..., None]
    return torch.cat([tokens * e, e], -1)


def quotient(sums):
    return (sums[..., :-1] / sums[..., -1:]).flatten(2)


def logspace(x, w, window):
    """Cumulative log-sum-exp: no scale, nothing underflows. Positive and negative parts of x have a sum each."""
    if window < x.shape[1]:
        return doubling(x, w, window)
    tokens, a = (t.float() for t in scores(x, w))
    normalizer = a.logcumsumexp(1)[..., None]
    signed = torch.stack([tokens, -tokens])
    parts = (signed.clamp(min=1e-30).log() + a[..., None]).logcumsumexp(2)
    positive, negative = (parts - normalizer).exp()
    return (positive - negative).flatten(2).to(x.dtype)


def shifted(t, steps):
    """Row i - steps at row i; zeros first."""
    return functional.pad(t, (0, 0, 0, 0, steps, 0))[:, : t.shape[1]]


def definition(x, w, window):
    """Softmax over the masked N x N matrix."""
    return reference_attention(x, w, HEADS, window).pooled


def banded(x, w, window):
    """The definition in blocks: a window of at most `block` tokens is within a block and the one before it."""
    block, length = max(window, 32), x.shape[1]
    if window >= length:
        return chunked(x, w, window)
    tokens, a = scores(x, w)
    tokens, a = (t.transpose(1, 2).unflatten(2, (length // block, block)) for t in (tokens, a))

    def with_previous(t):
        return torch.cat([torch.cat([torch.zeros_like(t[:, :, :1]), t[:, :, :-1]], 2), t], 3)

    i, j = torch.arange(block)[:, None] + block, torch.arange(2 * block)[None, :]
    allowed = ((j <= i) & (j > i - window)).repeat(length // block, 1, 1)
    allowed[0] &= j >= block
    pair = with_previous(a)[:, :, :, None, :].masked_fill(~allowed, float("-inf"))
    return (pair.softmax(-1) @ with_previous(tokens)).flatten(2, 3).transpose(1, 2).flatten(2)


def chunked(x, w, window):
    """Triangular products within chunks, cumulative sums between them; windows as in `doubling`."""
    if window < x.shape[1]:
        return doubling(x, w, window)
    chunks = weighted(x, w).unflatten(1, (-1, 64))
    totals = chunks.sum(2).cumsum(1)
    before = torch.cat([torch.zeros_like(totals[:, :1]), totals[:, :-1]], 1)
    inside = (torch.ones(64, 64).tril() @ chunks.flatten(3)).unflatten(3, (HEADS, -1))
    return quotient((inside + before[:, :, None]).flatten(1, 2))


def doubling(x, w, window):
    """Sums over 1, 2, 4, … tokens; the global layer is a cumulative sum."""
    sums, reach = weighted(x, w), 1
    if window >= x.shape[1]:
        return quotient(sums.cumsum(1))
    assert window & (window - 1) == 0, "doubling needs powers of two"
    while reach < window:
        sums, reach = sums + shifted(sums, reach), 2 * reach
    return quotient(sums)


def difference(x, w, window):
    """The published form: the difference of two cumulative sums (it cancels: the parity gate may refuse it)."""
    sums = weighted(x, w).cumsum(1)
    return quotient(sums - shifted(sums, window) if window < x.shape[1] else sums)


def sdpa(x, w, window):
    """torch's fused softmax attention with a_j as every query's score; windows as in `doubling`."""
    if window < x.shape[1]:
        return doubling(x, w, window)
    tokens, a = (t.transpose(1, 2) for t in scores(x, w))
    key = functional.pad(a[..., None], (0, tokens.shape[-1] - 1))
    query = functional.pad(torch.ones_like(a[..., None]), (0, tokens.shape[-1] - 1))
    pooled = functional.scaled_dot_product_attention(query, key, tokens, is_causal=True, scale=1.0)
    return pooled.transpose(1, 2).flatten(2)


def flex(x, w, window):
    """FlexAttention: no query, the score of a key, a causal window that leaves blocks out. Only compiled it is fused."""
    from torch.nn.attention import flex_attention

    tokens, a = (t.transpose(1, 2) for t in scores(x, w))
    length = x.shape[1]
    mask = flex_mask(window, length, str(x.device))
    nothing = torch.zeros_like(tokens)
    pooled = flex_attention.flex_attention(
        nothing, nothing, tokens, score_mod=lambda score, b, h, i, j: a[b, h, j].float(), block_mask=mask
    )
    return pooled.transpose(1, 2).flatten(2)


@functools.cache
def flex_mask(window, length, device):
    from torch.nn.attention import flex_attention

    return flex_attention.create_block_mask(
        lambda b, h, i, j: (j <= i) & (i - j < window), None, None, length, length, device=device
    )


reference_attention = reference.additive_attention
ROUNDS = {f.__name__: f for f in (definition, banded, chunked, logspace, doubling, difference, sdpa, flex)}


# --- the additive model ------------------------------------------------------------------------


class HeadLoss(torch.autograd.Function):
    """Vocabulary product and cross-entropy some rows at a time, gradients made on the way (as Liger's kernel does)."""

    @staticmethod
    def forward(context, hidden, weight, bias, labels, rows):
        loss, count = hidden.new_zeros(()), (labels >= 0).sum()
        d_hidden, d_weight, d_bias = torch.empty_like(hidden), torch.zeros_like(weight), torch.zeros_like(bias)
        for h, y, out in zip(hidden.split(rows), labels.split(rows), d_hidden.split(rows)):
            z = functional.linear(h, weight, bias)
            z -= z.amax(-1, keepdim=True)
            true = z.gather(1, y.clamp(min=0)[:, None])
            total = z.exp_().sum(-1, keepdim=True)
            counts = (y >= 0)[:, None].to(z.dtype)
            loss += ((total.log() - true) * counts).sum()
            z *= counts / (total * count)
            z.scatter_add_(1, y.clamp(min=0)[:, None], -counts / count)
            torch.mm(z, weight, out=out)
            d_weight.addmm_(z.t(), h)
            d_bias += z.sum(0)
        context.save_for_backward(d_hidden, d_weight, d_bias)
        return loss / count

    @staticmethod
    def backward(context, d_loss):
        return *(d_loss * g for g in context.saved_tensors), None, None


class FastAdditive:
    """The reference model's parameters with a forward of our own: one product for queries, keys and values,
    the given rounds, the scale 1/√d taken out of the logits."""

    def __init__(self, model, rounds, head_rows=0):
        self.model, self.round, self.head_rows = model, ROUNDS[rounds], head_rows

    def hidden(self, ids):
        body, d = self.model.fastformer_model, self.model.config.hidden_size
        h = body.LayerNorm(self.model.word_embedding(ids))  # without positions, the engine's default
        for layer in body.decoders:
            a = layer.attention
            n = a.attn_norm(h)
            merged = torch.cat([a.Wquery.weight, a.Wkeys.weight, a.Wvalues.weight])
            q, k, v = functional.linear(n, merged).split(d, -1)
            r = n + a.attn_proj(self.round(q, a.query_attn, a.window)) * k
            u = r + self.round(a.mid_norm(r), a.key_attn, a.window) * v
            h = u + layer.unboom(functional.gelu(layer.boom(layer.boom_norm(u))))
        return h.flatten(0, 1) / math.sqrt(d)

    def head(self):
        return self.model.proj_logits.weight, self.model.proj_logits.bias / math.sqrt(self.model.config.hidden_size)

    def logits(self, ids):
        return functional.linear(self.hidden(ids), *self.head()).unflatten(0, ids.shape)

    def loss(self, ids):
        labels = functional.pad(ids[:, 1:], (0, 1), value=reference.IGNORED).flatten()
        if self.head_rows:
            return HeadLoss.apply(self.hidden(ids), *self.head(), labels, self.head_rows)
        return functional.cross_entropy(functional.linear(self.hidden(ids), *self.head()), labels)


def additive(vocab, length, rounds, head_rows, options):
    """Windows 4, 8, 16, … (most_window at most, if it is not 0) and a global layer: the engine's defaults."""
    torch.manual_seed(1)
    layers, most = options["layers"], min(options["most_window"] or length, length)
    windows = [min(4 * 2**layer, most) for layer in range(layers - 1)] + [length]
    config = reference.Config(hidden_size=options["width"], vocab_size=vocab, n_heads=HEADS, n_positions=length, position_embedding="none",
                              n_layer=layers, window_sizes=windows, hidden_dropout_prob=0.0)
    model = reference.AdditiveLM(config)
    with torch.no_grad():  # scores that are not all 0, so that the comparison means something
        for layer in model.fastformer_model.decoders:
            layer.attention.query_attn.normal_(0, 2)
            layer.attention.key_attn.normal_(0, 2)
    return model, FastAdditive(model, rounds, head_rows)


def largest_difference(vocab, length, rounds, head_rows, options):
    """Return the largest difference of logits, loss and gradients (relative to the largest) between the plain model and
    the fast one."""
    model, fast = additive(vocab, length, rounds, head_rows, {**options, "layers": min(options["layers"], 6)})
    ids = torch.randint(3, vocab, (2, length))
    plain = model(ids, labels=ids)
    plain.loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    fast.loss(ids).backward()
    with torch.no_grad():
        pairs = [(plain.logits, fast.logits(ids)), (plain.loss, fast.loss(ids))]
    pairs += [(g, p.grad) for g, p in zip(gradients, model.parameters())]
    return max(difference(a, b) for a, b in pairs)


# --- contestants: each returns a function that does one step, and facts for the record --------------


def compiled(function, mode):
    return torch.compile(function, mode=None if mode == "default" else mode) if mode else function


def difference(a, b):
    """Relative to the largest."""
    return ((a - b).abs().max() / a.abs().max().clamp(min=1e-6)).item()


def narrowed(function, options):
    if not options["bf16"]:
        return function

    def autocast(*arguments):
        with torch.autocast(options["device"], dtype=torch.bfloat16):
            return function(*arguments)

    return autocast


def train(parameters, loss, options, facts):
    """Refused when the compiled loss or its gradients are not those of the eager one."""
    parameters = list(parameters)
    adamw = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.01, fused=True)
    batches = torch.randint(3, options["vocab"], (8, options["batch"], options["length"]))
    fast = compiled(narrowed(loss, options), options["compile"])
    count = 0
    if options["compile"] and not options["bf16"]:
        results = []
        for f in (loss, fast):
            value = f(batches[0])
            value.backward()
            results.append([value.detach()] + [p.grad for p in parameters])
            adamw.zero_grad()
        facts["compiled_difference"] = max(difference(a, b) for a, b in zip(*results))

    def step():
        nonlocal count
        fast(batches[count % 8]).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adamw.step()
        adamw.zero_grad()
        count += 1

    return step


def train_additive(options, facts):
    facts["difference"] = largest_difference(512, 256, options["rounds"], min(options["head_rows"], 100), options)
    model, fast = additive(options["vocab"], options["length"], options["rounds"], options["head_rows"], options)
    return train(model.parameters(), fast.loss, options, facts)


def in_chunks(a, f, v, size):
    """additive2's pooling, [B, N, H], [B, N, H], [B, H, N, E] -> [B, H, N, E]. What came before a chunk is one more token."""
    pooled, l, g = [], None, None
    pieces = [t.split(size, 2) for t in (a.transpose(1, 2), f.transpose(1, 2), v)]
    for a, f, v in zip(*pieces):
        kept, first = f.cumsum(2), int(l is not None)
        b = a - kept
        if first:
            b, v = torch.cat([l, b], 2), torch.cat([g, v], 2)
        seen = torch.ones(a.shape[2], b.shape[2], dtype=torch.bool).tril(first)
        s = b[:, :, None].masked_fill(~seen, -math.inf)
        pooled.append(s.softmax(-1) @ v)
        l, g = s[:, :, -1:].logsumexp(-1) + kept[:, :, -1:], pooled[-1][:, :, -1:]
    return torch.cat(pooled, 2)


def train_additive2(options, facts):
    torch.manual_seed(1)
    width = options["width"]
    model = additive2.Additive2LM(additive2.Additive2Config(
        hidden_size=width, vocab_size=options["vocab"], n_heads=width // 8, n_layer=options["layers"], intermediate_size=23 * width // 8, dropout=0.0))

    for parameter in model.parameters():
        if not parameter.any():  # zeros at the start would hide a difference
            torch.nn.init.normal_(parameter, std=width**-0.5)

    def loss(ids):
        return model(ids, labels=ids).loss

    ids, results = torch.randint(3, options["vocab"], (2, 256)), []
    for size in (0, options["chunk"]):
        for layer in model.layers:
            layer.mix.pool = functools.partial(additive2.Forgetting.pool, layer.mix) if not size else lambda a, f, v, mask: in_chunks(a, f, v, size)
        value = loss(ids)
        value.backward()
        results.append([value.detach()] + [p.grad for p in model.parameters()])
        model.zero_grad()
    facts["difference"] = max(difference(a, b) for a, b in zip(*results))
    return train(model.parameters(), loss, options, facts)


def one_round(options, facts):
    shape = (options["batch"], options["length"], options["width"])
    small = (1, min(options["length"], 256), options["width"])
    function, window = ROUNDS[options["rounds"]], options["window"] or options["length"]

    def both(x, w, dy, f):
        out = f(x, w, min(window, x.shape[1]))
        return (out, *torch.autograd.grad(out, (x, w), dy))

    def arguments(shape, dtype):
        x, dy = torch.randn(shape).to(dtype).requires_grad_(), torch.randn(shape).to(dtype)
        return x, torch.randn(shape[-1]).to(dtype).requires_grad_(), dy

    probe = arguments(small, torch.float32)
    pairs = zip(both(*probe, definition), both(*probe, compiled(function, options["compile"])))
    facts["difference"] = max(difference(a, b) for a, b in pairs)
    x, w, dy = arguments(shape, torch.bfloat16 if options["bf16"] else torch.float32)
    fast = compiled(lambda x, w: function(x, w, window), options["compile"])

    def step():
        torch.autograd.grad(fast(x, w), (x, w), dy)

    return step


def gpt2(vocab, positions, attention, options):
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=vocab,
        n_positions=positions,
        n_embd=options["width"],
        n_layer=options["layers"],
        n_head=HEADS,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=1,
        eos_token_id=1,
        attn_implementation=attention,
    )
    return transformers.GPT2LMHeadModel(config)


def train_gpt2(options, facts):
    model = gpt2(options["vocab"], options["length"], options["attention"], options)
    return train(model.parameters(), lambda ids: model(ids, labels=ids, use_cache=False).loss, options, facts)


class FastLlama:
    """transformers' Llama with a forward of our own. Queries, keys and values come from one product, and so do gate and
    values of the feed-forward layers. Rotations come from tables that are computed once. The head reads `head_rows`
    rows at a time if that is not 0."""

    def __init__(self, model, length, head_rows):
        self.body, self.head_rows = model.model, head_rows
        self.width = model.config.hidden_size
        positions = torch.arange(length)[None]
        self.cos, self.sin = (t[:, None].detach() for t in self.body.rotary_emb(torch.zeros(1, length, 1), positions))

    def rotated(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos[..., : x.shape[2], :] + torch.cat([-b, a], -1) * self.sin[..., : x.shape[2], :]

    def norm(self, norm, x):
        return functional.rms_norm(x, (self.width,), norm.weight, norm.variance_epsilon)

    def loss(self, ids):
        h = self.body.embed_tokens(ids)
        for layer in self.body.layers:
            a, f = layer.self_attn, layer.mlp
            merged = torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])
            qkv = functional.linear(self.norm(layer.input_layernorm, h), merged).unflatten(-1, (3, HEADS, -1))
            q, k, v = (t.squeeze(2).transpose(1, 2) for t in qkv.split(1, 2))
            mixed = functional.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
            h = h + functional.linear(mixed.transpose(1, 2).flatten(2), a.o_proj.weight)
            merged = torch.cat([f.gate_proj.weight, f.up_proj.weight])
            gate, up = functional.linear(self.norm(layer.post_attention_layernorm, h), merged).chunk(2, -1)
            h = h + functional.linear(functional.silu(gate) * up, f.down_proj.weight)
        h, weight = self.norm(self.body.norm, h).flatten(0, 1), self.body.embed_tokens.weight
        labels = functional.pad(ids[:, 1:], (0, 1), value=reference.IGNORED).flatten()
        if self.head_rows:
            return HeadLoss.apply(h, weight, weight.new_zeros(weight.shape[0]), labels, self.head_rows)
        return functional.cross_entropy(functional.linear(h, weight), labels)


def train_rotary(options, facts):
    """RMSNorm, rotary positions, SwiGLU of three times the width, tied word vectors, no biases."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=options["vocab"], hidden_size=options["width"], intermediate_size=3 * options["width"], num_hidden_layers=options["layers"],
        num_attention_heads=HEADS, max_position_embeddings=options["length"], tie_word_embeddings=True, rope_theta=10000.0,
        attn_implementation=options["attention"],
    )
    model = transformers.LlamaForCausalLM(config)

    def plain(ids):
        return model(ids, labels=ids, use_cache=False).loss

    if not options["merged"]:
        return train(model.parameters(), plain, options, facts)
    fast, results = FastLlama(model, options["length"], options["head_rows"]), []
    ids = torch.randint(3, options["vocab"], (2, 256))
    for loss in (plain, fast.loss):
        value = loss(ids)
        value.backward()
        results.append([value.detach()] + [p.grad for p in model.parameters()])
        model.zero_grad()
    facts["difference"] = max(difference(a, b) for a, b in zip(*results))
    return train(model.parameters(), fast.loss, options, facts)


def decode_gpt2(options, facts):
    """Greedy decoding of `batch` sequences with a key-value cache, within TURN / 2 tokens of a context of `length`: every
    TURN tokens the cache goes back to where it was."""
    first, last = options["length"] - TURN // 2, options["length"] + TURN // 2
    static = options["cache"] == "static"
    model = gpt2(options["vocab"], last, options["attention"], options).eval()
    rows = options["batch"]
    model.to(torch.bfloat16 if options["bf16"] else torch.float32)
    run = compiled(lambda ids, at, cache: model(ids, position_ids=at, past_key_values=cache).logits, options["compile"])
    if static:
        cache = transformers.StaticCache(config=model.config, max_cache_len=last)
    else:
        cache = transformers.DynamicCache(config=model.config)
    prompt = torch.randint(3, options["vocab"], (rows, first + 1))
    at, token = first, prompt[:, first:]
    with torch.inference_mode():
        model(prompt[:, :first], past_key_values=cache)

    def rewind():
        if static:
            for layer in cache.layers:
                layer.cumulative_length.fill_(first)
        else:
            cache.crop(first - last)
        return first

    @torch.inference_mode()
    def step():
        nonlocal at, token
        if at == last:
            at = rewind()
        logits = run(token, torch.full((rows, 1), at), cache)[:, -1]
        token = logits.argmax(-1, keepdim=True)
        at += 1
        return logits

    with torch.inference_mode():
        facts["difference"] = difference(model(prompt).logits[:, -1], step())
    return step


def prefill_gpt2(options, _):
    """A prompt of `length` tokens, read whole; the logits of its last token alone."""
    model = gpt2(options["vocab"], options["length"], options["attention"], options).eval()
    model.to(torch.bfloat16 if options["bf16"] else torch.float32)
    prompt = torch.randint(3, options["vocab"], (1, options["length"]))

    @torch.inference_mode()
    def step():
        return model(prompt, use_cache=True, logits_to_keep=1).logits[:, -1]

    return step


CONTESTANTS = {
    "train-additive": train_additive,
    "train-additive2": train_additive2,
    "train-gpt2": train_gpt2,
    "train-rotary": train_rotary,
    "decode-gpt2": decode_gpt2,
    "prefill-gpt2": prefill_gpt2,
    "round": one_round,
}
DEFAULTS = {
    "threads": 2,
    "compile": "",
    "freezing": False,
    "rounds": "doubling",
    "chunk": 128,
    "head_rows": 0,
    "attention": "sdpa",
    "merged": False,
    "cache": "dynamic",
    "device": "cpu",
    "bf16": False,
    "width": 128,
    "layers": 6,
    "heads": 4,
    "window": 0,
    "most_window": 0,
    "batch": 2,
    "length": 2048,
    "vocab": 8192,
    "warmup": 2,
}


def timed(step, count, device):
    """Nanoseconds of each of `count` steps. A GPU is waited for once, after the last."""
    if device == "cpu":
        times = [time.perf_counter_ns()]
        for _ in range(count):
            step()
            times.append(time.perf_counter_ns())
        return [b - a for a, b in zip(times, times[1:])]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [round(a.elapsed_time(b) * 1e6) for a, b in zip(events, events[1:])]


def main():
    global HEADS
    options = {**DEFAULTS, **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")}
    HEADS = options["heads"]
    torch.set_default_device(options["device"])
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(options["threads"])
    torch._inductor.config.freezing = options["freezing"]
    began, facts = time.time(), {}
    try:
        contend(options, began, facts)
    except torch.OutOfMemoryError:
        print(json.dumps({"refused": "memory", "batch": options["batch"]}), flush=True)


def contend(options, began, facts):
    step = CONTESTANTS[sys.argv[1]](options, facts)
    narrow = options["bf16"] and sys.argv[1] == "decode-gpt2"  # compared in bf16, so 5 % is agreement
    if not max(facts.values(), default=0) <= (0.05 if narrow else PARITY):
        print(json.dumps({"refused": "parity", **facts}))
        return
    for _ in range(options["warmup"]):
        step()
    print(json.dumps({"ready": round(time.time() - began, 1), "batch": options["batch"], **facts}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"ns": timed(step, int(line), options["device"])}), flush=True)


if __name__ == "__main__":
    main()
