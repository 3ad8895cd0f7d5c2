#!/usr/bin/env python3
"""Write the golden sets of tests/data/golden/sources: inputs and the results of linear_attention.py in float64.

usage: make_sources_golden.py [FOLDER]          (default: tests/data/golden/sources)

Inputs and weights are F32 or integers, values F64, "config" in the metadata JSON. Braces list alternatives: {y,dx}.NAME
means y.NAME and dx.NAME.
    module                  x, dy [B,N,D], keep [B,N], {q,k,v,out}_proj.{weight,bias}; for every key ("ignore") and for
                            those that are kept: {ignore,mask_keys}.{y,dx,d.NAME,M{b},z{b}}, M [H,m,d] and z [H,d] the
                            sums over the keys of sequence b
    causal_{square,wide,narrow}
                            q, k [B,H,N,d], v, dO [B,H,N,m], key_keep [B,N]; {nomask,mask_keys}.{out,dq,dk,dv};
                            S [B,H,N,d,m] and z [B,H,N,d] after every row, nothing masked; of the first four queries on
                            all kept keys cross.{out,S_md,z}
    encoder_weights, encoder_inputs
                            tensors of BartForSequenceClassification, input_ids and attention_mask [B,N];
                            {ignore,mask_keys}.enc.{x0,attn{l},ln_attn{l},x{l+1}}
    cirilla                 weights of its encoder-decoder under its names, enc_in [B,S], dec_in, target [B,N]; enc_out, logits,
                            loss, grad.NAME, and {pre,post}.{std_unbiased,variance}.{enc_out,logits,loss,grad.NAME} with
                            other norms (cirilla.py), and hide_mask.{enc_mask,cross_mask,dec_self_mask,enc_out,logits,loss}
    sampling                logits [B,V], logits_wide [B,V'], with ties; top_k.T, top_p.T, top_a.P_R, top_a_row.P_R.b,
                            probs_top_k_T.temp_t as x-transformers filters them, -inf where a logit is removed"""

import json
import math
import pathlib
import sys

import numpy

import cirilla
import linear_attention
import tensors

CAUSAL = {"square": (4, 4), "wide": (3, 7), "narrow": (6, 2)}  # d, m


def normal(random, *shape, scale=1.0):
    return (scale * random.standard_normal(shape)).astype(numpy.float32)


def kept(random, *shape):
    return (random.random(shape) < 0.7).astype(numpy.int8)


def projections(random, d, names, prefix="", scale=0.5):
    found = {}
    for name, outputs, inputs in names:
        found[f"{prefix}{name}.weight"] = normal(random, outputs or d, inputs or d, scale=scale)
        found[f"{prefix}{name}.bias"] = normal(random, outputs or d, scale=0.2)
    return found


ATTENTION = [(f"{name}_proj", 0, 0) for name in ("q", "k", "v", "out")]


def make_module():
    b, n, d, heads = 3, 11, 15, 3
    random = numpy.random.default_rng(1)
    weights = projections(random, d, ATTENTION)
    found = {**weights, "x": normal(random, b, n, d), "dy": normal(random, b, n, d), "keep": kept(random, b, n)}
    found["keep"][2] = 0  # a sequence without keys
    x, dy = found["x"].astype(float), found["dy"].astype(float)
    for prefix, keep in (("ignore", numpy.ones((b, n))), ("mask_keys", found["keep"].astype(float))):
        y, (_, k, v, _) = linear_attention.module(x, weights, heads, keep)
        values = {"y": y, **linear_attention.module_gradients(x, weights, heads, keep, dy)}
        features = linear_attention.feature(k) * keep[:, None, :, None]
        for i in range(b):
            values |= {f"M{i}": v[i].swapaxes(1, 2) @ features[i], f"z{i}": features[i].sum(1)}
        found |= {f"{prefix}.{name}": value for name, value in values.items()}
    return found, {"d": d, "heads": heads, "rows": n, "batch": b, "eps": linear_attention.EPS}


def make_causal(d, m):
    b, h, n, queries = 2, 3, 10, 4
    random = numpy.random.default_rng(100 * d + m)
    found = {"q": normal(random, b, h, n, d), "k": normal(random, b, h, n, d), "v": normal(random, b, h, n, m),
             "dO": normal(random, b, h, n, m), "key_keep": kept(random, b, n)}
    found["key_keep"][1, :3] = 0  # rows before the first key
    q, k, v, dy = (found[name].astype(float) for name in ("q", "k", "v", "dO"))
    keep = found["key_keep"][:, None, :].astype(float)
    for prefix, keys in (("nomask", numpy.ones_like(keep)), ("mask_keys", keep)):
        mask = linear_attention.allowed(keys, n, causal=True)
        found[f"{prefix}.out"] = linear_attention.attention(q, k, v, mask)
        for name, gradient in zip("qkv", linear_attention.attention_gradients(q, k, v, mask, dy)):
            found[f"{prefix}.d{name}"] = gradient
    features = linear_attention.feature(k)
    found["S"] = (features[..., :, None] * v[..., None, :]).cumsum(2)
    found["z"] = features.cumsum(2)
    features = features * keep[..., None]
    cross = linear_attention.attention(q[:, :, :queries], k, v, linear_attention.allowed(keep, queries, causal=False))
    found |= {"cross.out": cross, "cross.S_md": v.swapaxes(2, 3) @ features, "cross.z": features.sum(2)}
    return found, {"batch": b, "heads": h, "rows": n, "d": d, "m": m, "eps": linear_attention.EPS}


def make_encoder():
    b, n = 3, 9
    config = {"vocab": 19, "d_model": 12, "encoder_layers": 2, "decoder_layers": 2, "heads": 3, "ffn": 20,
              "max_positions": 11, "pos_offset": 2, "labels": 3, "eps": linear_attention.LAYERNORM_EPS, "act": "gelu erf",
              "pad": 1}
    d, ffn = config["d_model"], config["ffn"]
    random = numpy.random.default_rng(3)
    weights = {"model.shared.weight": normal(random, config["vocab"], d),
               "model.encoder.embed_positions.weight": normal(random, config["max_positions"] + 2, d)}
    norms = ["layernorm_embedding"]
    for layer in range(config["encoder_layers"]):
        prefix = f"layers.{layer}."
        weights |= projections(random, d, ATTENTION, f"model.encoder.{prefix}self_attn.")
        weights |= projections(random, d, [("fc1", ffn, d), ("fc2", d, ffn)], f"model.encoder.{prefix}")
        norms += [f"{prefix}self_attn_layer_norm", f"{prefix}final_layer_norm"]
    for name in norms:
        weights[f"model.encoder.{name}.weight"] = 1 + normal(random, d, scale=0.2)
        weights[f"model.encoder.{name}.bias"] = normal(random, d, scale=0.2)
    weights |= projections(random, d, [("dense", d, d), ("out_proj", config["labels"], d)], "classification_head.")
    weights["model.decoder.layernorm_embedding.bias"] = normal(random, d)  # one of the decoder's, which are skipped

    ids = random.integers(3, config["vocab"], (b, n)).astype(numpy.int32)
    mask = (numpy.arange(n) < numpy.array([n, 4, 7])[:, None]).astype(numpy.int8)
    ids[mask == 0] = config["pad"]
    found = {"input_ids": ids, "attention_mask": mask}
    for prefix, keep in (("ignore", numpy.ones((b, n))), ("mask_keys", mask.astype(float))):
        hidden = linear_attention.encoder(ids, weights, config["heads"], config["encoder_layers"], keep)
        found |= {f"{prefix}.enc.{name}": value for name, value in hidden.items()}
    return weights, found, config


def softmax(x):
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def largest(x, threshold):
    count = math.ceil((1 - threshold) * x.shape[-1])
    return numpy.where(numpy.argsort(numpy.argsort(-x, axis=-1, kind="stable"), axis=-1) < count, x, -numpy.inf)


def nucleus(x, threshold):
    order = numpy.argsort(-x, axis=-1, kind="stable")
    before = numpy.cumsum(softmax(numpy.take_along_axis(x, order, -1)), -1)[:, :-1]
    removed = numpy.pad(before > 1 - threshold, ((0, 0), (1, 0)))
    return numpy.where(numpy.take_along_axis(removed, numpy.argsort(order, -1), -1), -numpy.inf, x)


def likely(x, power, ratio):
    p = softmax(x)
    return numpy.where(p < p.max() ** power * ratio, -numpy.inf, 1.0)


def make_sampling():
    random = numpy.random.default_rng(5)
    logits = normal(random, 5, 30, scale=1.5)
    logits[1] = numpy.round(logits[1])  # ties
    logits[2] = 0.25
    logits[3, 17] = 9
    found = {"logits": logits, "logits_wide": normal(random, 2, 100, scale=3)}
    for suffix, rows in (("", logits), ("_wide", found["logits_wide"])):
        x = rows.astype(float)
        for threshold in (0, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999):
            name = str(threshold).replace(".", "_")
            found |= {f"top_k{suffix}.{name}": largest(x, threshold), f"top_p{suffix}.{name}": nucleus(x, threshold)}
        for power, ratio in ((2, 0.02), (2, 1), (1, 0.1), (0.5, 0.3), (0, 0.05)):
            name = f"{power}_{ratio}".replace(".", "p")
            found[f"top_a{suffix}.{name}"] = likely(x, power, ratio)
            found |= {f"top_a_row{suffix}.{name}.{b}": likely(x[b : b + 1], power, ratio) for b in range(len(x))}
    for temperature in (0.5, 1, 1.75):
        found[f"probs_top_k_0_8.temp_{temperature}"] = softmax(largest(logits.astype(float), 0.8) / temperature)
    return found, {"functions": ["top_k", "top_p", "top_a"]}


def make_cirilla():
    config = {"d_model": 8, "heads": 2, "enc_layers": 1, "dec_layers": 2, "d_ff": 12, "vocab": 11, "max_len": 9, "label_smoothing": 0.1,
              "ids": {"PAD": cirilla.PAD, "SOS": 2, "EOS": 3}}
    random = numpy.random.default_rng(6)
    d, inner, vocab = config["d_model"], config["d_ff"], config["vocab"]
    found = {f"input_emb_{side}.positional_embeddings.weight": normal(random, vocab, d, scale=0.5) for side in ("enc", "dec")}
    for side, attentions in (("enc", ["self"]), ("dec", ["self", "cross"])):
        norms = [f"{side}_norm"]
        for block in range(config[f"{side}_layers"]):
            name = f"{side}oder_blocks.{block}"
            norms += [f"{name}.add_and_norm{i + 1}.norm" for i in range(len(attentions) + 1)]
            found |= {f"{name}.{kind}_attention.w{matrix}.weight": normal(random, d, d, scale=0.4)
                      for kind in attentions for matrix in ("q", "k", "v", "out")}
            found |= projections(random, d, [("w1", inner, d), ("w2", d, inner)], f"{name}.feed_forward.")
        for name in norms:
            found |= {f"{name}.gamma": 1 + normal(random, d, scale=0.2), f"{name}.beta": normal(random, d, scale=0.2)}
    found |= projections(random, d, [("linear", vocab, d)], "linear.")
    ids = {"enc_in": [[2, 5, 4, 8, 9, 3, 1], [2, 4, 7, 3, 1, 1, 1]], "dec_in": [[2, 5, 6, 8, 9], [2, 10, 7, 1, 1]],
           "target": [[5, 6, 8, 9, 3], [10, 7, 3, 1, 1]]}
    ids = {name: numpy.array(rows, numpy.int32) for name, rows in ids.items()}
    weights = {name: array.astype(float) for name, array in found.items()}
    some = ["encoder_blocks.0.self_attention.wq.weight", "decoder_blocks.1.add_and_norm3.norm.gamma", "linear.linear.bias"]
    values = {}
    for prefix, norm, kind, names in [("", "pre", "std_unbiased", list(found))] + [
            (f"{norm}.{kind}.", norm, kind, some) for norm in ("pre", "post") for kind in ("std_unbiased", "variance")]:
        enc_out, logits, loss = cirilla.forward(weights, config, **ids, norm=norm, kind=kind)
        values |= {f"{prefix}enc_out": enc_out, f"{prefix}logits": logits, f"{prefix}loss": numpy.array([loss])}
        values |= {f"{prefix}grad.{name}": cirilla.gradient(
            weights, name, lambda: cirilla.forward(weights, config, **ids, norm=norm, kind=kind)[2]) for name in names}
    hidden = 8  # a token of the first source and of the words after it
    results = (*cirilla.masks(ids["enc_in"], ids["dec_in"], hidden), *cirilla.forward(weights, config, **ids, hidden=hidden))
    for name, array in zip(("enc_mask", "cross_mask", "dec_self_mask", "enc_out", "logits", "loss"), results, strict=True):
        values[f"hide_mask.{name}"] = array.astype(numpy.int8) if array.dtype == bool else numpy.atleast_1d(array)
    return {**found, **ids, **values}, config


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden" / "sources"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(exist_ok=True)
    sets = {"module": make_module(), "sampling": make_sampling(), "cirilla": make_cirilla()}
    sets |= {f"causal_{name}": make_causal(*widths) for name, widths in CAUSAL.items()}
    weights, values, config = make_encoder()
    sets |= {"encoder_weights": (weights, config), "encoder_inputs": (values, config)}
    for name, (arrays, config) in sets.items():
        path = folder / f"{name}.safetensors"
        tensors.write(path, arrays, {"config": json.dumps(config)})
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
