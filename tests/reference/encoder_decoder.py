"""A small encoder-decoder with random weights as x-transformers names them, and its results, in numpy."""

import json
import math

import numpy as np
from safetensors.numpy import save

VOCAB, DIM, HEADS, WIDTH, DEPTH, SOURCE, LENGTH, START, BYTE = 259, 32, 2, 16, 2, 40, 64, 1, 3
STACK = {"num_tokens": VOCAB, "dim": DIM, "depth": DEPTH, "heads": HEADS, "attn_dim_head": WIDTH}
CONFIG = {"model_type": "transformer", "stack": "encoder_decoder", "decoder_start_token_id": START,
          "encoder": {**STACK, "max_seq_len": SOURCE, "cross_attend": False},
          "decoder": {**STACK, "max_seq_len": LENGTH, "cross_attend": True}}


def weights_of(rng, prefix, entries, length):
    norm = lambda name: {f"{name}.weight": rng.uniform(0.5, 1.5, DIM), f"{name}.bias": rng.normal(0, 0.2, DIM)}
    matrix = lambda n, k: rng.normal(0, 1.5 / math.sqrt(k), (n, k))
    out = {"token_emb.emb.weight": rng.normal(0, 1, (VOCAB, DIM)), "pos_emb.emb.weight": rng.normal(0, 3, (length, DIM)), **norm("norm")}
    for e, kind in enumerate(entries):
        at = f"attn_layers.layers.{e}"
        out |= norm(f"{at}.0.0")
        if kind == "f":
            out |= {f"{at}.1.ff.0.0.weight": matrix(4 * DIM, DIM), f"{at}.1.ff.0.0.bias": rng.normal(0, 0.2, 4 * DIM),
                    f"{at}.1.ff.3.weight": matrix(DIM, 4 * DIM), f"{at}.1.ff.3.bias": rng.normal(0, 0.2, DIM)}
        else:
            out |= {f"{at}.1.to_{k}.weight": matrix(HEADS * WIDTH, DIM) for k in "qkv"} | {f"{at}.1.to_out.weight": matrix(DIM, HEADS * WIDTH)}
    return {prefix + k: x.astype("float32") for k, x in out.items()}


class EncoderDecoder:
    def __init__(self, seed=1):
        rng = np.random.default_rng(seed)
        self.w = weights_of(rng, "encoder.", "af" * DEPTH, SOURCE) | weights_of(rng, "decoder.net.", "acf" * DEPTH, LENGTH)
        self.w |= {"decoder.net.to_logits.weight": rng.normal(0, 1, (VOCAB, DIM)).astype("float32"),
                   "decoder.net.to_logits.bias": rng.normal(0, 1, VOCAB).astype("float32")}

    def files(self):
        return {"config": json.dumps(CONFIG).encode(), "weights": save(self.w)}

    def _norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * self.w[name + ".weight"] + self.w[name + ".bias"]

    def _attend(self, x, source, at, causal):
        heads = lambda rows: rows.reshape(len(rows), HEADS, WIDTH).swapaxes(0, 1)
        q, k, v = (heads(rows @ self.w[f"{at}.to_{name}.weight"].T.astype("float64"))
                   for name, rows in (("q", x), ("k", source), ("v", source)))
        scores = q @ k.swapaxes(1, 2) / math.sqrt(WIDTH)
        if causal:
            scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        a = np.exp(scores - scores.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        return a, (a @ v).swapaxes(0, 1).reshape(len(x), -1) @ self.w[f"{at}.to_out.weight"].T

    def _feed(self, x, at):
        h = x @ self.w[f"{at}.ff.0.0.weight"].T + self.w[f"{at}.ff.0.0.bias"]
        h = h * 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
        return h @ self.w[f"{at}.ff.3.weight"].T + self.w[f"{at}.ff.3.bias"]

    def _stack(self, prefix, entries, ids, source=None):
        x = self.w[prefix + "token_emb.emb.weight"][ids].astype("float64") + self.w[prefix + "pos_emb.emb.weight"][:len(ids)] / math.sqrt(DIM)
        weights = []
        for e, kind in enumerate(entries):
            at = f"{prefix}attn_layers.layers.{e}"
            y = self._norm(x, at + ".0.0")
            if kind == "f":
                x = x + self._feed(y, at + ".1")
            else:
                a, out = self._attend(y, source if kind == "c" else y, at + ".1", kind == "a" and source is not None)
                x = x + out
                weights += [(kind, a)]
        return self._norm(x, prefix + "norm"), weights

    def attentions(self, source, ids):
        """The weights of each layer, [heads, tokens, read ones]: of the encoder, of the decoder, and of that to the source."""
        rows, encoder = self._stack("encoder.", "af" * DEPTH, source)
        _, decoder = self._stack("decoder.net.", "acf" * DEPTH, ids, rows)
        return [a for _, a in encoder], [a for kind, a in decoder if kind == "a"], [a for kind, a in decoder if kind == "c"]

    def logprobs(self, source, ids):
        """[tokens, vocabulary] after each of ids, and the weights of each cross-attention [heads, tokens, source]."""
        rows, _ = self._stack("encoder.", "af" * DEPTH, source)
        rows, weights = self._stack("decoder.net.", "acf" * DEPTH, ids, rows)
        logits = rows @ self.w["decoder.net.to_logits.weight"].T + self.w["decoder.net.to_logits.bias"]
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), [a for kind, a in weights if kind == "c"]

    def greedy(self, source, prefix, n):
        """(tokens, the least lead of a token over the next likely one)"""
        ids, lead = [START, *prefix], np.inf
        for _ in range(n):
            row = self.logprobs(source, ids)[0][-1]
            best = np.sort(row)[-2:]
            lead = min(lead, best[1] - best[0])
            ids.append(int(row.argmax()))
        return ids[1 + len(prefix):], lead


def encoder_files(mask, seed=2):
    """Files of an encoder alone, with as many layers, that fills in masks; `mask` is the id after all other tokens."""
    rng = np.random.default_rng(seed)
    w = weights_of(rng, "", "af" * DEPTH, LENGTH)
    w["token_emb.emb.weight"] = rng.normal(0, 1, (mask + 1, DIM)).astype("float32")
    w |= {"to_logits.weight": rng.normal(0, 1, (mask + 1, DIM)).astype("float32"), "to_logits.bias": rng.normal(0, 1, mask + 1).astype("float32")}
    config = {"model_type": "transformer", "stack": "encoder", **STACK, "num_tokens": mask + 1, "mask_token_id": mask, "max_seq_len": LENGTH}
    return {"config": json.dumps(config).encode(), "weights": save(w)}
