"""A small BART with a head for classes and random weights, and its attentions' weights, in numpy, float64.

The decoder reads the tokens one row later, after START; its rows attend to the encoder's rows of all tokens."""

import json
import math

import numpy as np
from safetensors.numpy import save

from linear_attention import feature, gelu, join_heads, layernorm, project, split_heads

VOCAB, DIM, INNER, POSITIONS, START, END, CLASSES = 259, 24, 20, 48, 2, 1, 3
ENCODER, DECODER = {"layers": 2, "heads": 4}, {"layers": 3, "heads": 2}


def rollout(layers, v):
    for a in reversed(layers):
        v = (v @ a.mean(0) + v) / 2
    return v


class Bart:
    def __init__(self, linear, seed=5):
        self.linear, rng = linear, np.random.default_rng(seed)
        shapes = {"model.shared.weight": (VOCAB, DIM), "classification_head.dense": (DIM, DIM), "classification_head.out_proj": (CLASSES, DIM)}
        for stack, size, kinds in (("encoder", ENCODER, ["self_attn"]), ("decoder", DECODER, ["self_attn", "encoder_attn"])):
            at = f"model.{stack}."
            shapes |= {f"{at}embed_positions.weight": (POSITIONS + 2, DIM), f"{at}layernorm_embedding": None}
            for layer in range(size["layers"]):
                block = f"{at}layers.{layer}."
                shapes |= {f"{block}{kind}.{name}_proj": (DIM, DIM) for kind in kinds for name in ("q", "k", "v", "out")}
                shapes |= {f"{block}{name}_layer_norm": None for name in [*kinds, "final"]}
                shapes |= {f"{block}fc1": (INNER, DIM), f"{block}fc2": (DIM, INNER)}
        self.w = {}
        for name, shape in shapes.items():
            table = name.endswith(".weight")
            self.w[name if table else f"{name}.weight"] = rng.normal(0, 0.6, shape) if shape else rng.uniform(0.5, 1.5, DIM)
            if not table:
                self.w[f"{name}.bias"] = rng.normal(0, 0.2, shape[0] if shape else DIM)
        self.w = {name: x.astype("float32") for name, x in self.w.items()}

    def files(self):
        config = {"model_type": "bart", "d_model": DIM, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "num_labels": CLASSES,
                  "pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": START, "encoder_attention": "linear" if self.linear else "softmax"}
        for stack, size in (("encoder", ENCODER), ("decoder", DECODER)):
            config |= {f"{stack}_layers": size["layers"], f"{stack}_attention_heads": size["heads"], f"{stack}_ffn_dim": INNER}
        return {"config": json.dumps(config).encode(), "weights": save(self.w)}

    def _embed(self, ids, stack):
        rows = self.w["model.shared.weight"][ids].astype(float) + self.w[f"model.{stack}.embed_positions.weight"][2 : 2 + len(ids)]
        return layernorm(rows, self.w, f"model.{stack}.layernorm_embedding")[None]

    def _attend(self, x, read, heads, at, causal=False, linear=False):
        q, k, v = (split_heads(project(rows, self.w, f"{at}.{name}_proj"), heads) for name, rows in (("q", x), ("k", read), ("v", read)))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(DIM / heads)
        p = feature(q) @ feature(k).swapaxes(-1, -2) if linear else np.exp(scores) * (np.tri(x.shape[1]) if causal else 1)
        p /= p.sum(-1, keepdims=True)
        return p[0], layernorm(x + project(join_heads(p @ v), self.w, f"{at}.out_proj"), self.w, f"{at}_layer_norm")

    def _feed(self, h, at):
        return layernorm(h + project(gelu(project(h, self.w, f"{at}.fc1")), self.w, f"{at}.fc2"), self.w, f"{at}.final_layer_norm")

    def attentions(self, ids):
        """The weights of each layer, [heads, rows, read ones]: of the encoder, of the decoder, and of that to the encoder's rows."""
        found = [], [], []
        h = self._embed(ids, "encoder")
        for layer in range(ENCODER["layers"]):
            at = f"model.encoder.layers.{layer}"
            p, h = self._attend(h, h, ENCODER["heads"], f"{at}.self_attn", linear=self.linear)
            found[0].append(p)
            h = self._feed(h, at)
        rows, h = h, self._embed([START, *ids[:-1]], "decoder")
        for layer in range(DECODER["layers"]):
            at = f"model.decoder.layers.{layer}"
            p, h = self._attend(h, h, DECODER["heads"], f"{at}.self_attn", causal=True)
            found[1].append(p)
            p, h = self._attend(h, rows, DECODER["heads"], f"{at}.encoder_attn")
            found[2].append(p)
            h = self._feed(h, at)
        return found

    def rolled(self, ids, row):
        """Rollout of a decoder's row over its rows, and over the tokens that the encoder reads."""
        encoder, decoder, cross = self.attentions(ids)
        rows = rollout(decoder, np.eye(len(ids))[row])
        return rows, rollout(encoder, rows @ np.mean(cross, (0, 1)))


def both(rows, source):
    """Return for each token the weights of its encoder row and of the decoder row after it; they sum to 1."""
    sums = source + np.append(rows[1:], 0)
    return sums / sums.sum()
