#!/usr/bin/env python3
"""Write the sets of tests/data/golden/attribution: small random models, and the results of attribution.py in float64.
The same sets come out of every run on one machine and PyTorch. Needs PyTorch.

It fails unless contributions sum to their score to 1e-12 and exact gradients and masks agree with the models' own forwards to
1e-12. GPT-2 must agree with Hugging Face's logits to 1e-5. Without position rows before the first LayerNorm (additive_unbounded)
the length of a word row does not count. Gradient x input is then 0 but for the norm's epsilon. 64 steps of integrated gradients
miss most of the difference there, which is near zero.

usage: make_attribution_golden.py [FOLDER]          (default: tests/data/golden/attribution)

A set is one safetensors file. Metadata: "config" (config.json), "seed", "steps" (of integrated gradients). Tensors:
    parameter names         F32, under the checkpoint's names
    input_ids               [1, N]: bytes of a text; of a classifier with the token that ends it
    logits                  F32 [1, N, V]; of a classifier [1, classes]
and under "attribution." for C cases, the kinds 0, 1, 2 of each reader:
    reader, kind, target, other
                            [C]: position of the score (-1: a classifier's); 0 contrastive, 1 logit, 2 pair; other: -1
    coefficients, score     [C, V], [C]: the score is Σ_v c_v z_v; these c hold for every method
    shares                  [S]: λ
    contributions.{token,position,bias,head}
                            [C, S, N], head [C, S]: their sum over parts and tokens is the score
    gradient_x_input, attention_x_gradient, integrated_gradients
                            [C, N]
    integrated_gradients.difference
                            [C]: the score minus that of zero word rows, which the sum over the tokens approaches
    leave_one_out_mask, leave_one_out_replace
                            [C, N]: score with the token minus score without; replacement [1]: the token in its place
    leave_one_out_mask.pooling
                            classifiers: the same where the pooling leaves the token out too (attention_mask of the model)
    readers                 [R]: positions of the rows below
    attention_mean, rollout
                            [R, N]
    attention_mean_of_all   classifiers: [N], the mean over all readers
"""

import json
import pathlib
import sys

import torch

import packages  # noqa: F401, E402
import attribution
import tensors
from attribution import Case
from additive_client.torch.additive import AdditiveLM, Config  # noqa: E402
from additive_client.torch.gpt2 import GPT2LM, GPT2Config  # noqa: E402
from additive_client.torch.linear import EncoderConfig, LinearConfig, LinearEncoder, LinearLM  # noqa: E402

SHARES = (0.0, 0.25, 0.5, 1.0)
# Texts are of bytes as the engine tokenizes them, so that the sets need no tokenizer of their own.
VOCABULARY, END, BYTE = 259, 1, 3
LETTERS, REPLACEMENT = b"abcdefghijklmnopqrstuvwxyz ", BYTE + ord("_")
CLASSES = 3
EXACT = 1e-12
GRADIENTS = ("gradient_x_input", "integrated_gradients")

ADDITIVE = dict(model_type="FastformerForCausalLM", vocab_size=VOCABULARY, hidden_dropout_prob=0.0)
ENCODER = dict(model_type="linear_encoder", vocab_size=VOCABULARY, d_model=18, encoder_attention_heads=3, encoder_layers=2,
               encoder_ffn_dim=40, max_position_embeddings=40, num_labels=CLASSES, pad_token_id=0, dropout=0.0)  # fmt: skip

# name: (model, its configuration, config.json, tokens)
SETS = {
    # Odd windows, the last one over all positions; learned positions.
    "additive_windows": (
        AdditiveLM, Config,
        dict(**ADDITIVE, hidden_size=21, n_heads=3, n_layer=3, n_positions=36, window_sizes=[3, 7, 36]), 33,
    ),
    # No position table, more tokens than n_positions, no global layer.
    "additive_unbounded": (
        AdditiveLM, Config,
        dict(**ADDITIVE, hidden_size=20, n_heads=2, n_layer=3, n_positions=24, position_embedding="none", window_sizes=[1, 5, 11]), 29,
    ),
    # No windows.
    "additive_global": (
        AdditiveLM, Config,
        dict(**ADDITIVE, hidden_size=16, n_heads=4, n_layer=2, n_positions=40, use_local_att=False), 31,
    ),
    "gpt2": (
        GPT2LM, GPT2Config,
        dict(model_type="gpt2", vocab_size=VOCABULARY, n_positions=32, n_embd=20, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
             attn_pdrop=0.0), 27,
    ),
    "linear": (
        LinearLM, LinearConfig,
        dict(model_type="linear", vocab_size=VOCABULARY, n_positions=32, position_embedding="learned", hidden_size=20, n_layer=2,
             n_heads=4, hidden_dropout_prob=0.0), 30,
    ),
    # Word rows times √d; the mean over the tokens.
    "encoder_mean": (LinearEncoder, EncoderConfig, dict(**ENCODER, scale_embedding=True, pooling="mean"), 26),
    # The last token.
    "encoder_end": (LinearEncoder, EncoderConfig, dict(**ENCODER, scale_embedding=False, pooling="end"), 23),
}  # fmt: skip


# --- the model -----------------------------------------------------------------------------


def make_config(kind, keys):
    known = kind.__dataclass_fields__
    return kind(**{key: value for key, value in keys.items() if key in known})


TABLES = ("embedding.weight", "embeddings.weight", "positions.weight", "shared.weight", "wte.weight", "wpe.weight")
# Standard deviation of a matrix's outputs, where it is not 1: attention far from uniform and of weight beside the
# residual path, gates and gelu far from linear.
GAINS = {
    ("q_proj.weight", "k_proj.weight"): 3.0,
    ("c_attn.weight",): 1.6,
    ("attention.out_proj.weight", "self_attn.out_proj.weight"): 2.0,
    ("inner.weight", "boom.weight", "c_fc.weight", "fc1.weight"): 1.2,
    ("classification_head.out_proj.weight",): 3.0,
    ("shared.weight",): 0.4,
    TABLES: 0.7,
}


def gain(name):
    return next((gain for names, gain in GAINS.items() if name.endswith(names)), 1.0)


def randomise(model, generator):
    for name, parameter in model.named_parameters():
        random = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith(("query_attn", "key_attn")):
            random = 1.8 * random
        elif name.endswith("weight") and parameter.dim() == 1:
            random = 1 + 0.3 * random
        elif parameter.dim() == 1:
            random = 0.4 * random
        else:
            inputs = 1 if name.endswith(TABLES) else parameter.shape[0 if ".c_" in name else 1]  # GPT-2's are transposed
            random = gain(name) * random / inputs**0.5
        parameter.data = random.float().double()


def make_text(length, generator, ended):
    """Token ids of random letters; ended: the last one is what a classifier's text ends with."""
    drawn = torch.randint(0, len(LETTERS), (length,), generator=generator).tolist()
    ids = torch.tensor([LETTERS[i] + BYTE for i in drawn])
    if ended:
        ids[-1] = END
    return ids


# --- the cases ------------------------------------------------------------------------------


def make_cases(z, readers, generator):
    """Return for each reader the top token against the others, any token's logit, and the first against the second."""
    found = []
    for reader in readers:
        row = z if reader is None else z[reader]
        first, second = row.topk(2).indices.tolist()
        drawn = int(torch.randint(0, len(row), (1,), generator=generator))
        found.append((reader, 0, first, -1, attribution.contrastive(row, first)))
        found.append((reader, 1, drawn, -1, attribution.one(row, drawn)))
        found.append((reader, 2, first, second, attribution.pair(row, first, second)))
    return found


def describe(cases):
    reader, kind, target, other, c = zip(*cases)
    columns = {"reader": [-1 if r is None else r for r in reader], "kind": kind, "target": target, "other": other}
    return {**{name: torch.tensor(column) for name, column in columns.items()}, "coefficients": torch.stack(c)}


# --- the results -----------------------------------------------------------------------------


def make_contributions(model, ids, cases, whole):
    """{part: [C, S, …]}"""
    found = {"token": [], "position": [], "bias": [], "head": []}
    for share in SHARES:
        parts = attribution.contributions(model, ids, cases, share)
        sums = torch.stack([p.sum() for p in parts])
        assert (sums - whole).abs().max() <= EXACT, f"λ = {share}: {sums - whole}"
        for name in found:
            found[name].append(torch.stack([getattr(p, name) for p in parts]))
    return {f"contributions.{name}": torch.stack(columns, 1) for name, columns in found.items()}


def make_results(model, ids, cases):
    z = attribution.logits(model, ids)
    whole = attribution.scores(z, cases)
    integrated = attribution.integrated_gradients(model, ids, cases)
    found = {"score": whole, "shares": torch.tensor(SHARES, dtype=torch.float64), "replacement": torch.tensor([REPLACEMENT])}
    found.update(make_contributions(model, ids, cases, whole))
    found["gradient_x_input"] = torch.stack(attribution.gradient_x_input(model, ids, cases))
    found["attention_x_gradient"] = torch.stack(attribution.attention_x_gradient(model, ids, cases))
    found["integrated_gradients"] = torch.stack([parts for parts, _ in integrated])
    found["integrated_gradients.difference"] = torch.stack([difference for _, difference in integrated])
    found["leave_one_out_mask"] = attribution.leave_one_out_mask(model, ids, cases)
    found["leave_one_out_replace"] = attribution.leave_one_out_replace(model, ids, cases, REPLACEMENT)
    readers = torch.tensor([0, len(ids) // 2, len(ids) - 1])
    mean, rollout = attribution.attention_mean(model, ids), attribution.rollout(model, ids)
    found.update({"readers": readers, "attention_mean": mean[readers], "rollout": rollout[readers]})
    if isinstance(model, LinearEncoder):
        found["leave_one_out_mask.pooling"] = whole[:, None] - masked_scores(model, ids, cases)
        found["attention_mean_of_all"] = mean.mean(0)
    return found


# --- checks against the models' own forwards ----------------------------------------------------


def model_logits(model, ids, mask=None):
    out = model(ids[None], None if mask is None else mask[None])
    return out.logits[0]


def masked_scores(model, ids, cases):
    """[C, N]: with the model's own attention_mask, 0 at token j."""
    columns = []
    for j in range(len(ids)):
        mask = (torch.arange(len(ids)) != j).long()
        columns.append(attribution.scores(model_logits(model, ids, mask), cases))
    return torch.stack(columns, 1).detach()


def word_table(model):
    return {AdditiveLM: lambda: model.word_embedding, GPT2LM: lambda: model.transformer.wte,
            LinearLM: lambda: model.model.embedding, LinearEncoder: lambda: model.model.shared}[type(model)]()  # fmt: skip


def check(model, ids, cases, found):
    """Compare with the models' own forwards, with autograd and with a mask."""
    rows = []
    hook = word_table(model).register_forward_hook(lambda module, inputs, output: rows.append(output))
    z = model_logits(model, ids)
    hook.remove()
    whole = attribution.scores(z, cases)
    assert (whole - found["score"]).abs().max() <= EXACT
    for of, expected in zip(whole, found["gradient_x_input"]):
        (gradient,) = torch.autograd.grad(of, rows[0], retain_graph=True)
        assert ((gradient * rows[0]).sum(-1)[0] - expected).abs().max() <= EXACT
    if not isinstance(model, LinearEncoder):
        masked = found["score"][:, None] - masked_scores(model, ids, cases)
        assert (masked - found["leave_one_out_mask"]).abs().max() <= EXACT
    for name in ("attention_mean", "rollout"):
        assert (found[name].sum(-1) - 1).abs().max() <= EXACT
    for name in ("contributions.token", "attention_x_gradient", "leave_one_out_mask", *(GRADIENTS if has_positions(model, ids) else ())):
        later = [row for row, case in zip(found[name], cases) if case.reader != 0]
        assert min(row.abs().max() for row in later) > 1e-3, f"{name} shows nothing"


def has_positions(model, ids):
    """True if position rows are added. Without them a LayerNorm that follows directly removes the length of a word row,
    and the gradient along the row is 0 except for the norm's epsilon."""
    return bool((attribution.rows(model, ids)[1] != 0).any())


def check_gpt2():
    """gpt2.py computes what Hugging Face's model computed."""
    arrays, metadata = tensors.read(pathlib.Path(__file__).parent.parent / "data" / "golden" / "gpt2.safetensors")
    model = GPT2LM(make_config(GPT2Config, json.loads(metadata["config"]))).double()
    weights = {name: torch.tensor(arrays[name.removeprefix("transformer.")]) for name in model.state_dict()}
    model.load_state_dict(weights)
    with torch.no_grad():
        error = (model(torch.tensor(arrays["input_ids"])).logits - torch.tensor(arrays["logits"])).abs().max()
    assert error <= 1e-5, error


# --- the files -----------------------------------------------------------------------------------


def make(name, seed):
    kind, config, keys, length = SETS[name]
    generator = torch.Generator().manual_seed(seed)
    model = kind(make_config(config, keys)).double().eval()
    randomise(model, generator)
    ids = make_text(length, generator, ended=kind is LinearEncoder)
    z = attribution.logits(model, ids)
    readers = [None] if kind is LinearEncoder else [0, length // 2, length - 1]
    described = make_cases(z, readers, generator)
    cases = [Case(case[0], case[-1]) for case in described]
    found = make_results(model, ids, cases)
    check(model, ids, cases, found)

    arrays = {f"attribution.{key}": tensor for key, tensor in {**describe(described), **found}.items()}
    arrays.update({key: tensor.float() for key, tensor in model.state_dict().items()})
    arrays.update({"input_ids": ids[None], "logits": z[None].float()})
    metadata = {"config": json.dumps(keys), "seed": str(seed), "steps": str(attribution.STEPS)}
    return {key: tensor.detach().contiguous().numpy() for key, tensor in arrays.items()}, metadata


def main():
    default = pathlib.Path(__file__).parent.parent / "data" / "golden" / "attribution"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    check_gpt2()
    for seed, name in enumerate(SETS, start=101):
        path = folder / f"{name}.safetensors"
        tensors.write(path, *make(name, seed))
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
