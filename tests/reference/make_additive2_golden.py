#!/usr/bin/env python3
"""Write tests/data/golden/additive2*.safetensors: random models of additive attention that forgets, and the results of
additive2.py in float64. Needs PyTorch; the format is that of make_golden.py.

Also writes tests/data/golden/sources/additive2_*.safetensors, in the format of another implementation
("additive2-golden-1", tests/golden/readers/additive2.c): scores, weights and states beside the outputs.

usage: make_additive2_golden.py [FOLDER]
"""

import json
import pathlib
import sys

import torch

import packages  # noqa: F401, E402
import tensors
from additive_client.torch import additive2  # noqa: E402

COMMON = dict(vocab_size=43, hidden_size=24, n_layer=2, n_heads=6, intermediate_size=35, dropout=0.0)
SETS = {
    "additive2": {},
    "additive2_constant": dict(forget="const", gate=False, n_heads=24, group_norm=False),
    "additive2_plain": dict(forget="none", shift=False),
    "additive2_window": dict(window_layers=(1,), window=6, window_heads=3),
    "additive2_linear": dict(linear_layers=(0,)),
    "additive2_rounds": dict(window_sizes=(7, 0)),
}
INSIDE = dict(vocab_size=17, hidden_size=12, n_layer=2, n_heads=3, intermediate_size=10, dropout=0.0)
INSIDE_SETS = {
    "additive2_data": {},
    "additive2_const": dict(forget="const"),
    "additive2_none": dict(forget="none"),
    "additive2_bare": dict(shift=False, gate=False, group_norm=False),
    "additive2_ring": dict(window_layers=(1,), window=6, window_heads=3),
}
INSIDE_LENGTH, STEP, UNSEEN = 20, 9, -1e30
BATCH, LENGTH, PADDED_LENGTH, IGNORED = 2, 40, 16, -100
PADDED = [[(0, 16)], [(0, 11)], [(5, 16)], [(2, 4), (9, 13)]]  # unmasked ranges


def randomise(model, generator):
    """Weights at which every term matters."""
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if "norm" in name or name.endswith("gain"):
            random = 1 + 0.2 * random
        elif name.endswith(("mu", "beta", "theta")):
            random = parameter.data + 0.3 * random
        elif "embedding" in name or name.endswith("_attn"):
            random = 0.6 * random
        else:
            random = random / parameter.shape[1] ** 0.5
        parameter.data = random.float().double()


def make(keys, seed):
    generator = torch.Generator().manual_seed(seed)
    model = additive2.Additive2LM(additive2.Additive2Config(**{**COMMON, **keys})).double().eval()
    randomise(model, generator)
    found = {name: parameter.detach().float() for name, parameter in model.named_parameters()}
    ids = torch.randint(0, COMMON["vocab_size"], (BATCH, LENGTH), generator=generator)
    out = model(ids, labels=ids)
    out.loss.backward()
    found.update({"input_ids": ids, "logits": out.logits, "loss": out.loss})
    found.update({"grad." + name: parameter.grad for name, parameter in model.named_parameters()})

    mask = torch.zeros(len(PADDED), PADDED_LENGTH, dtype=torch.int64)
    for row, ranges in enumerate(PADDED):
        for begin, end in ranges:
            mask[row, begin:end] = 1
    ids = torch.randint(0, COMMON["vocab_size"], mask.shape, generator=generator) * mask
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, 1:].masked_fill_(mask[:, :-1] == 0, IGNORED)  # the prediction of a masked token has no meaning
    out = model(ids, mask, labels)
    found.update({"padded.input_ids": ids, "padded.attention_mask": mask, "padded.labels": labels})
    found.update({"padded.logits": out.logits * mask[:, :, None], "padded.loss": out.loss})
    config = {"model_type": "additive2", **COMMON, **keys}
    return ({name: tensor.detach().numpy() for name, tensor in found.items()},
            {"config": json.dumps(config), "seed": str(seed), "gradients": "input_ids"})


def mixtures(mix, n):
    before = torch.cat([torch.zeros_like(n[:, :1]), n[:, :-1]], 1)
    return [n + mu * (before - n) for mu in mix.mu] if hasattr(mix, "mu") else [n] * mix.mixtures


def heads_of(x, count):
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


def forgetting_values(mix, n):
    """Return a, f and l [B, N, H], g [B, H, N, D / H] and alpha of a mixer that reads the rows n."""
    values, scores = mixtures(mix, n)[:2]
    a = scores @ mix.Wa.T
    f = torch.zeros_like(a)
    if mix.forget != "none":
        f = torch.nn.functional.logsigmoid(scores @ mix.Wf.T + mix.beta if mix.forget == "data" else -mix.theta + f)
    kept = f.cumsum(1)
    alpha = additive2.weights(a, f)
    return {"a": a, "f": f, "l": (a - kept).logcumsumexp(1) + kept, "g": alpha @ heads_of(values @ mix.Wv.T, mix.heads), "alpha": alpha}


def window_values(mix, n):
    """Return rotated keys and values [B, H, N, D / H], and scores [B, H, reader, token read]."""
    query, key, value = (heads_of(x @ w.T, mix.heads) for x, w in zip(mixtures(mix, n), (mix.Wq, mix.Wk, mix.Wv)))
    query, key = additive2.rotate(query, mix.base), additive2.rotate(key, mix.base)
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    ones = torch.ones_like(scores, dtype=torch.bool)
    return {"keys": key, "values": value, "scores": scores.masked_fill(ones.triu(1) | ones.tril(-mix.window), UNSEEN)}


def mixer_values(model, ids):
    """Return the outputs, and for each layer the values of its mixer and the rows that it reads, "last"."""
    rows, hooks = [], []
    for layer in model.layers:
        hooks.append(layer.mix.register_forward_pre_hook(lambda _, given: rows.append(given[0])))
    out = model(ids, labels=ids)
    for hook in hooks:
        hook.remove()
    compute = [window_values if isinstance(layer.mix, additive2.RotaryWindow) else forgetting_values for layer in model.layers]
    return out, [{"last": n, **values(layer.mix, n)} for values, layer, n in zip(compute, model.layers, rows)]


def state_after(model, ids):
    """Yield the state of a session that has read ids, by layer and name."""
    _, layers = mixer_values(model, ids)
    for number, values in enumerate(layers):
        yield f"layer{number}.last", values["last"][:, -1]
        if "keys" in values:
            window = model.layers[number].mix.window
            yield from ((f"layer{number}.{name}", values[name][:, :, 1 - window:]) for name in ("keys", "values"))
        else:
            yield from ((f"layer{number}.l", values["l"][:, -1]), (f"layer{number}.g", values["g"][:, :, -1]))


def joined(named, prefix):
    """Return tensors under a prefix, with the query, key and value matrices of a window layer in one."""
    found = {prefix + ("embedding" if name == "embedding.weight" else name): tensor for name, tensor in named.items()}
    for name in [name for name in found if name.endswith(".Wq")]:
        found[name + "kv"] = torch.cat([found.pop(name[:-1] + part) for part in "qkv"])
    return found


def make_inside(keys, seed):
    generator = torch.Generator().manual_seed(seed)
    model = additive2.Additive2LM(additive2.Additive2Config(**{**INSIDE, **keys})).double().eval()
    randomise(model, generator)
    ids = torch.randint(0, INSIDE["vocab_size"], (BATCH, INSIDE_LENGTH), generator=generator)
    out, layers = mixer_values(model, ids)
    out.loss.backward()
    found = {"ids": ids, "logits": out.logits, "loss": out.loss, "step.logits": out.logits[:, STEP]}
    found.update(joined({name: parameter.detach() for name, parameter in model.named_parameters()}, "w."))
    found.update(joined({name: parameter.grad for name, parameter in model.named_parameters()}, "d."))
    for number, values in enumerate(layers):
        found.update({f"layer{number}.{name}": values[name] for name in ("a", "f", "l", "scores") if name in values})
    found["layer0.alpha"] = layers[0]["alpha"]
    for when, count in (("before", STEP), ("after", STEP + 1)):
        found.update({f"step.{when}.{name}": tensor for name, tensor in state_after(model, ids[:, :count])})
    config = {"model_type": "additive2", **INSIDE, **keys}
    return ({name: tensor.detach().numpy() for name, tensor in found.items()},
            {"config": json.dumps(config), "format": "additive2-golden-1", "seed": str(seed)})


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    torch.set_num_threads(1)
    (folder / "sources").mkdir(exist_ok=True)
    made = [(folder / name, make, keys, seed) for seed, (name, keys) in enumerate(SETS.items(), 31)]
    made += [(folder / "sources" / name, make_inside, keys, seed) for seed, (name, keys) in enumerate(INSIDE_SETS.items(), 41)]
    for path, maker, keys, seed in made:
        path = path.with_suffix(".safetensors")
        arrays, metadata = maker(keys, seed)
        tensors.write(path, arrays, metadata)
        print(f"{path.stem}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
