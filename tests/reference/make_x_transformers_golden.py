"""Golden sets of x-transformers 1.6.0 itself, computed in float64: python tests/reference/make_x_transformers_golden.py FOLDER

Needs torch, einops and x-transformers==1.6.0, which the tests do not. Each set is one small model, whose options together
are all that the library has for tokens, with every parameter random: ids, mask and labels in; logits, loss, the gradient of
every parameter and the tokens of greedy decoding out. One thing is changed: the library's softmax is taken in float64.
"""

import json
import pathlib
import sys

import numpy
import torch
from x_transformers import Decoder, Encoder, TransformerWrapper, XTransformer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import tensors  # noqa: E402

VOCABULARY, LENGTH, BATCH, PROMPT, GENERATED = 19, 12, 2, 5, 6
WRAPPER = {"num_tokens": VOCABULARY, "max_seq_len": 16}
STACK = {"dim": 12, "depth": 2, "heads": 2, "attn_dim_head": 6, "ff_mult": 2}
SETS = {
    "norms": (Decoder, {"post_emb_norm": True}, {"sandwich_norm": True, "use_rmsnorm": True, "ff_post_act_ln": True,
                        "ff_swish": True, "attn_num_mem_kv": 2, "attn_head_scale": True, "scale_residual": True}),
    "matrix": (Decoder, {"num_memory_tokens": 2}, {"attn_talking_heads": True, "attn_sparse_topk": 4, "residual_attn": True,
                         "rel_pos_bias": True, "rel_pos_num_buckets": 8, "rel_pos_max_distance": 10, "ff_glu": True}),
    "shifted": (Decoder, {"l2norm_embed": True}, {"shift_tokens": 1, "gate_residual": True, "attn_one_kv_head": True,
                          "alibi_pos_bias": True, "alibi_learned": True, "macaron": True, "ff_no_bias": True}),
    "rotary": (Decoder, {"emb_frac_gradient": 0.3}, {"heads": 2, "attn_dim_head": 34, "rotary_xpos": True, "ff_relu_squared": True,
                         "attn_gate_values": True, "attn_max_attend_past": 5, "sandwich_coef": 1}),
    "deep": (Decoder, {"emb_dim": 8}, {"deepnorm": True, "attn_on_attn": True, "attn_qk_norm": True, "attn_qk_norm_groups": 2,
                       "dynamic_pos_bias": True, "dynamic_pos_bias_norm": True, "dynamic_pos_bias_log_distance": True}),
    "both_ways": (Encoder, {"num_memory_tokens": 1}, {"shift_tokens": 1, "use_scalenorm": True, "attn_value_dim_head": 5,
                            "alibi_pos_bias": True, "alibi_num_heads": 1, "attn_tensor_product": True, "par_ratio": 2}),
    "memory": (Decoder, {"num_memory_tokens": 20}, {"depth": 3}),  # more than max_seq_len
    "placed": (Decoder, {}, {"depth": 1}),
    "scaled": (Encoder, {"use_abs_pos_emb": False}, {"attn_dim_head": 34, "rotary_xpos": True}),
}
# Sets that give the positions of tokens, and sets with the rows of tokens.
PLACED, ROWS = ("placed",), ("scaled",)
PAIR = {"dim": 12, "enc_num_tokens": VOCABULARY, "enc_max_seq_len": 16, "enc_depth": 1, "enc_heads": 2, "enc_attn_dim_head": 6,
        "enc_ff_mult": 1, "enc_rel_pos_bias": True, "dec_num_tokens": 17, "dec_max_seq_len": 16, "dec_depth": 2, "dec_heads": 2,
        "dec_attn_dim_head": 6, "dec_ff_mult": 1, "dec_cross_residual_attn": True, "dec_attn_num_mem_kv": 1, "deepnorm": True}


def randomise(model, seed):
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            x = torch.randn(parameter.shape, generator=random)
            gain = name.endswith((".g", "residual_scale", "head_scale_params")) or ("norm" in name and name.endswith("weight"))
            if gain and parameter.dim() != 2:
                x = 1 + 0.2 * x
            elif "logslopes" in name:
                x = 0.5 * x - 1
            else:
                x = x * (0.5 if "emb" in name or "mem" in name else 0.3)
            parameter.copy_(x)
    for module in model.modules():
        if hasattr(module, "attn_fn"):
            module.attn_fn = torch.nn.functional.softmax
    return model.double().eval()


def arrays_of(model):
    named = dict(model.named_parameters())
    arrays = {name: p.detach().float() for name, p in named.items()}
    zeros = {name: torch.zeros_like(p) for name, p in named.items()}
    return arrays | {f"grad.{name}": p.grad if p.grad is not None else zeros[name] for name, p in named.items()}


def write(folder, name, arrays, config):
    arrays = {key: numpy.ascontiguousarray(x.detach().numpy()) for key, x in arrays.items()}
    tensors.write(folder / f"xt_{name}.safetensors", arrays, {"config": json.dumps(config)})


def single(folder, number, name):
    kind, wrapper, stack = SETS[name]
    wrapper, stack = {**WRAPPER, **wrapper}, {**STACK, **stack}
    torch.manual_seed(number)
    net = randomise(TransformerWrapper(attn_layers=kind(**stack), **wrapper), number)
    ids = torch.randint(1, VOCABULARY, (BATCH, LENGTH))
    mask = torch.arange(LENGTH)[None] < torch.tensor([LENGTH, LENGTH - 3])[:, None]
    labels = torch.where(mask, torch.roll(ids, -1, 1), -100)
    labels[:, -1] = -100
    more = {"pos": torch.stack([torch.randperm(16)[:LENGTH] for _ in range(BATCH)])} if name in PLACED else {}
    logits = net(ids, mask=mask, **more)
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100)
    loss.backward()
    arrays = arrays_of(net) | {"ids": ids, "mask": mask.long(), "labels": labels, "logits": logits, "loss": loss.reshape(1)}
    arrays |= more
    if name in ROWS:
        arrays["embeddings"] = net(ids, mask=mask, return_embeddings=True)
    if kind is Decoder and not more:
        text = torch.randint(1, VOCABULARY, (BATCH, PROMPT))
        arrays["gen.prompt"] = text
        for _ in range(GENERATED):
            text = torch.cat([text, net(text)[:, -1].argmax(-1, keepdim=True)], 1)
        arrays["gen.tokens"] = text[:, PROMPT:]
    write(folder, name, arrays, {"TransformerWrapper": wrapper, kind.__name__: stack})


def pair(folder):
    torch.manual_seed(99)
    net = randomise(XTransformer(**PAIR), 99)
    source, target = torch.randint(1, VOCABULARY, (BATCH, LENGTH)), torch.randint(1, 17, (BATCH, 8))
    mask = torch.arange(LENGTH)[None] < torch.tensor([LENGTH, LENGTH - 4])[:, None]
    encodings = net.encoder(source, mask=mask, return_embeddings=True)
    logits = net.decoder.net(target[:, :-1], context=encodings, context_mask=mask)
    loss = net(source, target, mask=mask)
    loss.backward()
    write(folder, "pair", arrays_of(net) | {"src": source, "src_mask": mask.long(), "tgt": target, "encodings": encodings,
                                            "logits": logits, "loss": loss.reshape(1)}, {"XTransformer": PAIR})


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    for index, title in enumerate(SETS):
        single(target, index, title)
    pair(target)
