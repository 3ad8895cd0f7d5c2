"""Linear attention in numpy, written to be read: weights as an explicit matrix, in float64.

The weight of key j for query i is φ(q_i)·φ(k_j) over the sum of all weights of query i plus eps, with φ(x) = elu(x) + 1.
Rows are the last two axes; heads and batch are the ones before."""

import math

import numpy

EPS = 1e-6
LAYERNORM_EPS = 1e-5


def feature(x):
    return numpy.where(x > 0, x + 1, numpy.exp(numpy.minimum(x, 0)))


def feature_slope(x):
    return numpy.exp(numpy.minimum(x, 0))


def allowed(keep, rows, causal):
    """[…, rows, keys]: which keys a row reads. keep: […, keys], 0 where there is no key."""
    seen = numpy.tri(rows, keep.shape[-1]) if causal else numpy.ones((rows, keep.shape[-1]))
    return keep[..., None, :] * seen


def attention(q, k, v, mask):
    weights = feature(q) @ feature(k).swapaxes(-1, -2) * mask
    return weights @ v / (weights.sum(-1, keepdims=True) + EPS)


def attention_gradients(q, k, v, mask, dy):
    """dq, dk, dv of Σ dy ⊙ attention(q, k, v, mask)."""
    weights = feature(q) @ feature(k).swapaxes(-1, -2) * mask
    total = weights.sum(-1, keepdims=True) + EPS
    y = weights @ v / total
    dsums = dy / total
    dtotal = -(dsums * y).sum(-1, keepdims=True)
    dweights = (dsums @ v.swapaxes(-1, -2) + dtotal) * mask
    dq = dweights @ feature(k) * feature_slope(q)
    dk = dweights.swapaxes(-1, -2) @ feature(q) * feature_slope(k)
    return dq, dk, weights.swapaxes(-1, -2) @ dsums


def split_heads(x, heads):
    """[B, N, D] to [B, H, N, D / H]."""
    b, n, d = x.shape
    return x.reshape(b, n, heads, d // heads).transpose(0, 2, 1, 3)


def join_heads(x):
    b, h, n, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, n, h * width)


def project(x, weights, name):
    return x @ weights[f"{name}.weight"].T.astype(float) + weights[f"{name}.bias"]


def module(x, weights, heads, keep, prefix=""):
    """Attention with its four projections; keep [B, N]. Gives y, and q, k, v by heads."""
    q, k, v = (split_heads(project(x, weights, f"{prefix}{name}_proj"), heads) for name in "qkv")
    mask = allowed(keep[:, None, :], x.shape[1], causal=False)
    return project(join_heads(attention(q, k, v, mask)), weights, f"{prefix}out_proj"), (q, k, v, mask)


def module_gradients(x, weights, heads, keep, dy):
    """{"dx": …, "d.NAME": …} of Σ dy ⊙ y."""
    _, (q, k, v, mask) = module(x, weights, heads, keep)
    attended = join_heads(attention(q, k, v, mask))
    found = {"dx": 0}

    def back(name, inputs, upstream):
        found[f"d.{name}.weight"] = numpy.einsum("bno,bni->oi", upstream, inputs)
        found[f"d.{name}.bias"] = upstream.sum((0, 1))
        return upstream @ weights[f"{name}.weight"].astype(float)

    dattended = split_heads(back("out_proj", attended, dy), heads)
    for name, gradient in zip("qkv", attention_gradients(q, k, v, mask, dattended)):
        found["dx"] = found["dx"] + back(f"{name}_proj", x, join_heads(gradient))
    return found


def layernorm(x, weights, name):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / numpy.sqrt((centred**2).mean(-1, keepdims=True) + LAYERNORM_EPS)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x):
    return x * (1 + numpy.vectorize(math.erf)(x / math.sqrt(2))) / 2


def encoder(ids, weights, heads, layers, keep):
    """Every hidden vector of BART's encoder with linear attention: {"x{l}": …, "attn{l}": …, "ln_attn{l}": …}."""
    encoder = "model.encoder."
    places = weights[f"{encoder}embed_positions.weight"][2 : 2 + ids.shape[1]]
    h = layernorm(weights["model.shared.weight"][ids].astype(float) + places, weights, f"{encoder}layernorm_embedding")
    found = {"x0": h}
    for layer in range(layers):
        prefix = f"{encoder}layers.{layer}."
        attended, _ = module(h, weights, heads, keep, f"{prefix}self_attn.")
        h = layernorm(h + attended, weights, f"{prefix}self_attn_layer_norm")
        found |= {f"attn{layer}": attended, f"ln_attn{layer}": h}
        inner = gelu(project(h, weights, f"{prefix}fc1"))
        h = layernorm(h + project(inner, weights, f"{prefix}fc2"), weights, f"{prefix}final_layer_norm")
        found[f"x{layer + 1}"] = h
    return found
