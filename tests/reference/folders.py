"""Model folders with random weights, and what the encoder among them computes, in float64."""

import json
import math

import numpy

import tensors

VOCAB, WIDTH, HEADS, LAYERS, INNER, POSITIONS = 259, 16, 2, 2, 24, 64


def write(folder, config, arrays):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors.write(folder / "model.safetensors", arrays)
    return folder


def encoder_config(**more):
    return {"model_type": "linear_encoder", "d_model": WIDTH, "encoder_attention_heads": HEADS, "encoder_layers": LAYERS,
            "encoder_ffn_dim": INNER, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "pad_token_id": 0,
            "id2label": {"0": "yes", "1": "no", "2": "perhaps"}, "label2id": {"yes": 0, "no": 1, "perhaps": 2}, **more}


def encoder_weights(seed=1, classes=3):
    random = numpy.random.default_rng(seed)
    shapes = {"model.shared.weight": (VOCAB, WIDTH), "model.encoder.embed_positions.weight": (POSITIONS + 2, WIDTH),
              "classification_head.dense.weight": (WIDTH, WIDTH), "classification_head.dense.bias": (WIDTH,),
              "classification_head.out_proj.weight": (classes, WIDTH), "classification_head.out_proj.bias": (classes,)}
    norms = ["model.encoder.layernorm_embedding"]
    for layer in range(LAYERS):
        at = f"model.encoder.layers.{layer}."
        for name in "qkv":
            shapes |= {f"{at}self_attn.{name}_proj.weight": (WIDTH, WIDTH), f"{at}self_attn.{name}_proj.bias": (WIDTH,)}
        shapes |= {f"{at}self_attn.out_proj.weight": (WIDTH, WIDTH), f"{at}self_attn.out_proj.bias": (WIDTH,),
                   f"{at}fc1.weight": (INNER, WIDTH), f"{at}fc1.bias": (INNER,), f"{at}fc2.weight": (WIDTH, INNER), f"{at}fc2.bias": (WIDTH,)}
        norms += [f"{at}self_attn_layer_norm", f"{at}final_layer_norm"]
    for norm in norms:
        shapes |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    return {name: (random.normal(0, 0.4, shape) + name.endswith("norm.weight")).astype("f4") for name, shape in shapes.items()}


def encoder_hidden(weights, ids):
    """The last hidden vectors [n, d] of one sequence."""
    w = {name: x.astype("f8") for name, x in weights.items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def feature(x):  # elu + 1, of each head
        x = x.reshape(len(x), HEADS, WIDTH // HEADS)
        return numpy.where(x > 0, x + 1, numpy.exp(numpy.minimum(x, 0)))

    def gelu(x):
        return x / 2 * (1 + numpy.vectorize(math.erf)(x / numpy.sqrt(2)))

    h = w["model.shared.weight"][ids] + w["model.encoder.embed_positions.weight"][2:2 + len(ids)]
    h = norm(h, "model.encoder.layernorm_embedding")
    for layer in range(LAYERS):
        at = f"model.encoder.layers.{layer}."
        q, k = (feature(linear(h, f"{at}self_attn.{name}_proj")) for name in "qk")
        v = linear(h, f"{at}self_attn.v_proj").reshape(q.shape)
        share = numpy.einsum("ihd,jhd->hij", q, k)
        share /= share.sum(-1, keepdims=True)
        mixed = numpy.einsum("hij,jhd->ihd", share, v).reshape(h.shape)
        h = norm(h + linear(mixed, f"{at}self_attn.out_proj"), f"{at}self_attn_layer_norm")
        h = norm(h + linear(gelu(linear(h, f"{at}fc1")), f"{at}fc2"), f"{at}final_layer_norm")
    return h


def encoder_probabilities(weights, ids):
    w = {name: x.astype("f8") for name, x in weights.items()}
    row = encoder_hidden(weights, ids).mean(0)
    row = numpy.tanh(row @ w["classification_head.dense.weight"].T + w["classification_head.dense.bias"])
    z = row @ w["classification_head.out_proj.weight"].T + w["classification_head.out_proj.bias"]
    p = numpy.exp(z - z.max())
    return p / p.sum()
