"""3Lin, profile S, in numpy and float64: every node and every pair by itself, the gradient by its published formulas.

Nodes are those of a text: the start's, number 0, and one for each token that is read. Row 0 of E is the start's, row 1 an unknown token's, row
v + 2 that of token v. A layer is an attention, (slope, hyper, window), or a list of several, which read the same input; w8, w4 and w2 read weights from codes of as many bits, v8 vectors from 8.
"""

import math

import numpy

LN2 = 0.693147  # ln 2 in the source's scales and gradients
TAPS = 16


def norm(x):
    length = numpy.linalg.norm(x, axis=-1, keepdims=True)
    return x * math.sqrt(x.shape[-1]) / numpy.where(length == 0, 1, length)


def norm_gradient(x, dy):
    """Return the gradient of norm(x) from dy."""
    square = (x * x).sum(-1, keepdims=True)
    inner = (x * dy).sum(-1, keepdims=True)
    return math.sqrt(x.shape[-1]) / numpy.sqrt(square) * (dy - x * inner / square)


def codes(x, step):
    return numpy.clip(numpy.rint(x / step), -128, 127)


def recode(q, bits):
    if bits == 2:
        return numpy.select([q < -24, q < 0, q <= 24], [-36, -12, 12], 36)
    return q if bits == 8 else 9 * numpy.clip(numpy.trunc((q + 76) / 9), 0, 15) - 68


def quantized(weights, bits):
    """All weights as products read them; E and F never have fewer than 8 bits."""
    out = dict(weights)
    for name, w in weights.items():
        if name != "bias":
            step = float(numpy.float32(math.sqrt((w * w).mean()) / 32))
            out[name] = recode(codes(w, step), 8 if name in "EF" else bits) * step
    return out


def row_steps(x):
    return numpy.sqrt((x * x).mean(-1, keepdims=True)) / 32


def quantized_rows(x):
    return codes(x, row_steps(x)) * row_steps(x)


def exponents(layer, nodes, query, key):
    """e(t, j), -inf where t does not see j: itself and later ones, and earlier ones but the start beyond the window."""
    slope, hyper, window = layer
    t, j = numpy.indices((nodes, nodes))
    distance = numpy.maximum(t - j, 1)
    seen = (j < t) & ((t - j < window) | (j == 0))
    e = query @ key.T * math.sqrt(1 / query.shape[1]) / LN2 - slope * distance + hyper / distance
    return numpy.where(seen, e, -numpy.inf)


def products(k, u):
    """p[b T + i] = k[i xor b] u[i]"""
    channels = numpy.arange(k.shape[1])
    return numpy.concatenate([k[:, channels ^ b] * u for b in range(TAPS)], axis=1)


def attentions(number, layer):
    """Those of a layer, with the beginnings of their names."""
    return [(f"L{number}.", layer)] if isinstance(layer, tuple) else [(f"L{number}A{i}.", attention) for i, attention in enumerate(layer)]


def forward(weights, layers, tokens, targets, vectors=32):
    """tokens, targets [n]: the tokens read, and the token after each. Return a dict of all values inside."""
    w, inside = weights, {}
    fixed, rows = (lambda x: codes(x, 1 / 32) / 32, quantized_rows) if vectors == 8 else (lambda x: x, lambda x: x)
    state = w["E"][[0, *(token + 2 for token in tokens)]]
    nodes = len(state)
    for number, layer in enumerate(layers):
        n, inside[f"s{number}"] = fixed(norm(state)), state
        for l, attention in attentions(number, layer):
            raw = {name: n @ w[l + name].T for name in ("QK", "QV", "K", "V")}
            qk, qv, k, v = fixed(norm(raw["QK"])), rows(raw["QV"]), fixed(norm(raw["K"])), fixed(norm(raw["V"]))
            weight = 2 ** exponents(attention, nodes, qk, qv)
            z = 1 + weight.sum(1)
            u = weight @ v / z[:, None]
            p = products(k, u)
            inside |= {l + name: x for name, x in dict(n=n, qk=qk, qv=qv, k=k, v=v, u=u, Z=z, p=p, raw=raw, weight=weight).items()}
            state = state + p @ w[l + "C"].T
    f = norm(state)
    logit2 = f @ w["F"].T * 4 * math.sqrt(1 / f.shape[1]) / LN2 + w["bias"]
    prob = 2 ** (logit2 - logit2.max(1, keepdims=True))
    prob /= prob.sum(1, keepdims=True)
    lnp = numpy.log(prob[numpy.arange(1, nodes), targets])
    return inside | {f"s{len(layers)}": state, "f": f, "logit2": logit2, "prob": prob, "lnp_target": lnp}


def gradient(weights, layers, tokens, targets):
    """Return the gradient of the sum of lnp_target (ascent)."""
    w, x = weights, forward(weights, layers, tokens, targets)
    d = {name: numpy.zeros_like(array) for name, array in w.items() if name != "bias"}
    nodes = len(tokens) + 1
    g = -x["prob"]
    g[numpy.arange(1, nodes), targets] += 1
    g[0] = 0
    g *= 4 * math.sqrt(1 / w["F"].shape[1])
    d["F"] = g.T @ x["f"]
    down = norm_gradient(x[f"s{len(layers)}"], g @ w["F"])
    for number in reversed(range(len(layers))):
        dn = 0
        for l, _ in attentions(number, layers[number]):
            n, qk, qv, k, v, u, z, raw = (x[l + name] for name in ("n", "qk", "qv", "k", "v", "u", "Z", "raw"))
            share = x[l + "weight"] / z[:, None]
            d[l + "C"] = down.T @ x[l + "p"]
            dp = (down @ w[l + "C"]).reshape(nodes, TAPS, -1)
            channels = numpy.arange(k.shape[1])
            dk = sum(dp[:, b, channels ^ b] * u[:, channels ^ b] for b in range(TAPS))
            du = sum(dp[:, b] * k[:, channels ^ b] for b in range(TAPS))
            c = share * (du @ v.T - (du * u).sum(1, keepdims=True)) * math.sqrt(1 / qk.shape[1])
            parts = {"QK": norm_gradient(raw["QK"], c @ qv), "QV": c.T @ qk, "K": norm_gradient(raw["K"], dk), "V": norm_gradient(raw["V"], share.T @ du)}
            for name, part in parts.items():
                d[l + name] = part.T @ n
                dn = dn + part @ w[l + name]
        down = down + norm_gradient(x[f"s{number}"], dn)
    numpy.add.at(d["E"], [0, *(token + 2 for token in tokens)], down)
    return d


def together(weights, layers, texts, vectors=32):
    """The values of all texts, their nodes one after the other; each text's last token is only a target."""
    parts = [forward(weights, layers, text[:-1], text[1:], vectors) for text in texts]
    out = {name: numpy.concatenate([part[name] for part in parts]) for name in parts[0] if not name.endswith(("raw", "weight"))}
    return out | {"score": numpy.array([out["lnp_target"].mean()])}


def all_gradients(weights, layers, texts):
    parts = [gradient(weights, layers, text[:-1], text[1:]) for text in texts]
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def graph(layers, texts, windows):
    """Return the labels of the nodes, and the nodes that they see: inclusive spans, and the index of each node's first
    span."""
    first = numpy.cumsum([0, *(len(text) for text in texts)])
    out = {"label_arr": [label for text in texts for label in (0, *(token + 2 for token in text[:-1]))], "label_ptr": range(first[-1] + 1),
           "target_node": [first[b] + i for b, text in enumerate(texts) for i in range(1, len(text))], "target_id": [token for text in texts for token in text[1:]]}
    for name, window in windows.items():
        spans, begins = [], []
        for b, text in enumerate(texts):
            for t in range(len(text)):
                begins.append(len(spans))
                start = max(0, t - window + 1)
                spans += [(first[b] + start, first[b] + t - 1)] if t > start else []
                spans += [(first[b], first[b])] if start > 0 else []
        out |= {f"{name}_span_start": [s for s, _ in spans], f"{name}_span_finish": [s for _, s in spans], f"{name}_span_ptr": [*begins, len(spans)]}
    return {name: numpy.array(numbers, numpy.int32) for name, numbers in out.items()}


def steps(weights, layers, texts, rate, count):
    """Weights before and after each step by gradients of the norm 1, of the matrices alone, and the score at each of
    them."""
    history, scores = [dict(weights)], []
    for _ in range(count):
        scores.append(together(history[-1], layers, texts)["score"][0])
        gradients = all_gradients(history[-1], layers, texts)
        history.append({name: w + rate * gradients[name] / (numpy.linalg.norm(gradients[name]) or 1) if name[0] == "L" else w for name, w in history[-1].items()})
    return history, numpy.array([*scores, together(history[-1], layers, texts)["score"][0]])


def generate(weights, layers, prompt, count, longest=None):
    """The largest probability's token each time, from the last `longest` tokens after a start of their own: all ids,
    and the probabilities that they were taken from."""
    ids, taken = list(prompt), []
    for _ in range(count):
        read = ids[-longest:] if longest else ids
        taken.append(forward(weights, layers, read, [0] * len(read))["prob"][-1])
        ids.append(int(taken[-1].argmax()))
    return numpy.array(ids, numpy.int32), numpy.array(taken)
