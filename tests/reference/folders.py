"""A classifier with random weights as a model folder, and its results."""

import json

import numpy

import linear_attention
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
    ids = numpy.array([ids])
    return linear_attention.encoder(ids, weights, HEADS, LAYERS, numpy.ones(ids.shape))[f"x{LAYERS}"][0]


def encoder_reading(weights, ids):
    """Return the share of attention that each token gets, over all layers, heads and readers: [n], summing to 1."""
    ids, rows = numpy.array([ids]), []
    found = linear_attention.encoder(ids, weights, HEADS, LAYERS, numpy.ones(ids.shape))
    for layer in range(LAYERS):
        q, k = (linear_attention.split_heads(linear_attention.project(found[f"x{layer}"], weights, f"model.encoder.layers.{layer}.self_attn.{name}_proj"),
                                             HEADS) for name in "qk")
        p = linear_attention.feature(q) @ linear_attention.feature(k).swapaxes(-1, -2)
        rows.append((p / p.sum(-1, keepdims=True))[0])
    return numpy.array(rows).mean((0, 1))


def encoder_probabilities(weights, ids):
    w = {name: x.astype("f8") for name, x in weights.items()}
    row = encoder_hidden(weights, ids).mean(0)
    row = numpy.tanh(row @ w["classification_head.dense.weight"].T + w["classification_head.dense.bias"])
    z = row @ w["classification_head.out_proj.weight"].T + w["classification_head.out_proj.bias"]
    p = numpy.exp(z - z.max())
    return p / p.sum()
