"""Cirilla's encoder-decoder in float64: the forward, and gradients by central differences."""

import numpy

PAD, EPS = 1, 1e-6


def positions(n, d):
    angles = numpy.arange(n)[:, None] * 10000.0 ** (-numpy.arange(0, d, 2) / d)
    return numpy.stack((numpy.sin(angles), numpy.cos(angles)), -1).reshape(n, d)


def layer_norm(x, weights, name, kind):
    off = x - x.mean(-1, keepdims=True)
    if kind == "variance":
        off = off / numpy.sqrt((off**2).mean(-1, keepdims=True) + 1e-5)
    else:
        off = off / (numpy.sqrt((off**2).sum(-1, keepdims=True) / (x.shape[-1] - 1)) + EPS)
    return off * weights[f"{name}.gamma"] + weights[f"{name}.beta"]


def attention(x, source, weights, name, heads, mask):
    """mask [B, N, S]: 1 where a key is seen; a query that sees none gets zeros."""
    def split(rows, matrix):
        y = rows @ weights[f"{name}.{matrix}.weight"].T
        return y.reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)

    q, k, v = split(x, "wq"), split(source, "wk"), split(source, "wv")
    scores = numpy.where(mask[:, None] > 0, q @ k.swapaxes(2, 3) / numpy.sqrt(q.shape[-1]), -numpy.inf)
    p = numpy.exp(scores - numpy.maximum(scores.max(-1, keepdims=True), -1e300))
    total = p.sum(-1, keepdims=True)
    y = (p / numpy.where(total > 0, total, 1)) @ v
    return y.swapaxes(1, 2).reshape(x.shape) @ weights[f"{name}.wout.weight"].T


def feed_forward(x, weights, name):
    inner = numpy.maximum(x @ weights[f"{name}.w1.weight"].T + weights[f"{name}.w1.bias"], 0)
    return inner @ weights[f"{name}.w2.weight"].T + weights[f"{name}.w2.bias"]


def stack(x, weights, side, config, norm, kind, mask, source=None, source_mask=None):
    for block in range(config[f"{side}_layers"]):
        name = f"{side}oder_blocks.{block}"
        parts = [lambda h: attention(h, h, weights, f"{name}.self_attention", config["heads"], mask),
                 lambda h: feed_forward(h, weights, f"{name}.feed_forward")]
        if source is not None:
            parts.insert(1, lambda h: attention(h, source, weights, f"{name}.cross_attention", config["heads"], source_mask))
        for i, part in enumerate(parts, 1):
            before = f"{name}.add_and_norm{i}.norm"
            if norm == "pre":
                x = x + part(layer_norm(x, weights, before, kind))
            else:
                x = layer_norm(x + part(x), weights, before, kind)
    return layer_norm(x, weights, f"{side}_norm", kind) if norm == "pre" else x


def masks(enc_in, dec_in, hidden=None):
    """enc_mask, cross_mask, dec_self_mask: keys before the padding, those up to the query; a token `hidden` neither
    attends nor is attended to."""
    n, keys = dec_in.shape[1], (enc_in != PAD)[:, None]
    source, words = enc_in != hidden, dec_in != hidden
    return (keys & source[:, None] & source[:, :, None], keys & source[:, None] & words[:, :, None],
            numpy.tril(numpy.ones((n, n), bool)) & words[:, None] & words[:, :, None])


def forward(weights, config, enc_in, dec_in, target, norm="pre", kind="std_unbiased", hidden=None):
    """enc_out, logits and the loss over tokens that are not padding."""
    def embed(ids, side):
        rows = weights[f"input_emb_{side}.positional_embeddings.weight"][ids] * numpy.sqrt(config["d_model"])
        return rows + positions(ids.shape[1], config["d_model"])

    enc_mask, cross_mask, dec_self_mask = masks(enc_in, dec_in, hidden)
    enc_out = stack(embed(enc_in, "enc"), weights, "enc", config, norm, kind, enc_mask)
    h = stack(embed(dec_in, "dec"), weights, "dec", config, norm, kind, dec_self_mask, enc_out, cross_mask)
    logits = h @ weights["linear.linear.weight"].T + weights["linear.linear.bias"]
    logs = logits - logits.max(-1, keepdims=True)
    logs = logs - numpy.log(numpy.exp(logs).sum(-1, keepdims=True))
    smoothing = config["label_smoothing"]
    one = numpy.take_along_axis(logs, target[..., None], -1)[..., 0]
    losses = -(1 - smoothing) * one - smoothing * logs.mean(-1)
    return enc_out, logits, losses[target != PAD].mean()


def gradient(weights, name, loss):
    """Return the gradient of loss() by weights[name], which is restored."""
    found, step, flat = numpy.zeros(weights[name].size), 1e-6, weights[name].reshape(-1)
    for i in range(found.size):
        was = flat[i]
        flat[i] = was + step
        above = loss()
        flat[i] = was - step
        found[i] = (above - loss()) / (2 * step)
        flat[i] = was
    return found.reshape(weights[name].shape)
