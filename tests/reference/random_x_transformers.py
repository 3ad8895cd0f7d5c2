"""Random configurations of x-transformers 1.6.0 over the API, beside the library in float64.

    python tests/reference/random_x_transformers.py --count 2000 --seed 1 --bin build/bin

Needs torch, einops, httpx and x-transformers==1.6.0, which the tests do not. Each configuration is one small model with
every parameter random. It is imported, then read as a client reads it: decoders and encoder-decoders by a completion with
"echo" and by a beam search, encoders by an embedding; each tenth configuration also trains for two steps. The programme
counts configurations that agree, that are refused by the name of a key, and that the library refuses itself. It prints
all others: a difference, an answer of 5xx, a job that fails after it was accepted, a service that died. It exits with 1
if there is one. --only NUMBER runs one configuration again.

Sessions scale rotary_xpos from the middle of max_seq_len, so those models are compared with texts that are filled up to
that length, whose later tokens a decoder does not see.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

import httpx
import numpy
import torch
import x_transformers.x_transformers as library
from x_transformers import Decoder, Encoder, TransformerWrapper, XTransformer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import tensors  # noqa: E402

VOCABULARY, TRAINED_VOCABULARY, TOLERANCE = 11, 300, 1e-4
# One token for each id.
TOKENIZER = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
             "model": {"type": "BPE", "vocab": {chr(ord("a") + i): i for i in range(VOCABULARY)}, "merges": []}}
# The library's tie_embedding reads a member that its TokenEmbedding lacks.
library.TokenEmbedding.weight = property(lambda self: self.emb.weight)

# Options of a stack with the values that are drawn, and of the wrapper.
STACK = {
    "use_scalenorm": [True], "use_rmsnorm": [True], "alibi_pos_bias": [True], "alibi_num_heads": [1, 2], "alibi_learned": [True],
    "rel_pos_bias": [True], "rel_pos_num_buckets": [4, 8, 9, 32], "rel_pos_max_distance": [9, 32, 128], "dynamic_pos_bias": [True],
    "dynamic_pos_bias_log_distance": [True], "dynamic_pos_bias_mlp_depth": [1, 3], "dynamic_pos_bias_norm": [True],
    "rotary_pos_emb": [True], "rotary_emb_dim": [32], "rotary_xpos": [True], "rotary_xpos_scale_base": [64], "sandwich_coef": [1, 2],
    "par_ratio": [2, 3], "residual_attn": [True], "macaron": [True], "pre_norm": [False], "gate_residual": [True],
    "scale_residual": [True], "scale_residual_constant": [1.3], "deepnorm": [True], "shift_tokens": [1, 2], "sandwich_norm": [True],
    "zero_init_branch_output": [True], "layer_dropout": [0.2], "custom_layers": [["a", "f"], ["a", "a", "f"], ["f", "a", "f"], ["a"]],
    "attn_kv_heads": [1], "attn_one_kv_head": [True], "attn_shared_kv": [True], "attn_num_mem_kv": [1, 3], "attn_dropout": [0.1],
    "attn_talking_heads": [True], "attn_sparse_topk": [1, 3], "attn_max_attend_past": [0, 1, 3], "attn_qk_norm": [True],
    "attn_qk_norm_groups": [2], "attn_qk_norm_scale": [4], "attn_on_attn": [True], "attn_gate_values": [True],
    "attn_head_scale": [True], "attn_tensor_product": [True], "attn_zero_init_output": [True], "attn_value_dim_head": [3],
    "ff_mult": [1, 3], "ff_glu": [True], "ff_swish": [True], "ff_relu_squared": [True], "ff_post_act_ln": [True],
    "ff_no_bias": [True], "ff_dropout": [0.1], "l2norm_embed": [True], "max_mem_len": [3],
}
CROSS = {"cross_residual_attn": [True], "cross_attn_tokens_dropout": [0.2], "only_cross": [True]}
WRAPPER = {
    "emb_dim": [6], "max_mem_len": [1, 4], "shift_mem_down": [1], "emb_dropout": [0.1], "post_emb_norm": [True],
    "num_memory_tokens": [1, 5, 9], "tie_embedding": [True], "use_abs_pos_emb": [False], "l2norm_embed": [True],
    "emb_frac_gradient": [0.4],
}


def draw(rng, options, most):
    names = rng.sample(sorted(options), min(len(options), rng.randint(0, most)))
    return {name: rng.choice(options[name]) for name in names}


def stack(rng, cross=False):
    heads = rng.choice([1, 2, 4])
    rest = draw(rng, STACK | CROSS if cross else STACK, 5)
    width = rng.choice([34, 36]) if "rotary_pos_emb" in rest or "rotary_xpos" in rest else rng.choice([4, 6, 8])
    return {"depth": rng.randint(1, 3), "heads": heads, "attn_dim_head": width, **rest}


def configuration(rng):
    """(arguments of the constructors as config.json has them, kind)"""
    dim, length = rng.choice([8, 12, 16]), rng.choice([4, 8, 16])
    kind = rng.choice(["Decoder", "Decoder", "Encoder", "XTransformer"])
    if kind != "XTransformer":
        wrapper = {"num_tokens": VOCABULARY, "max_seq_len": length, **draw(rng, WRAPPER, 3)}
        return {"TransformerWrapper": wrapper, kind: {"dim": dim, **stack(rng)}}, kind
    config = {"dim": dim, **draw(rng, {"tie_token_emb": [True], "deepnorm": [True], "cross_attn_tokens_dropout": [0.2]}, 1)}
    for part in ("enc_", "dec_"):
        more = {"num_tokens": VOCABULARY, "max_seq_len": length, **stack(rng, part == "dec_"),
                **draw(rng, {"emb_dropout": [0.1], "num_memory_tokens": [2, 5]} if part == "enc_" else {"emb_dropout": [0.1]}, 1)}
        config |= {part + key: value for key, value in more.items()}
    return {"XTransformer": config}, kind


def build(config, kind, seed):
    """The library's model in float64, or None where the library refuses."""
    torch.manual_seed(seed)
    if kind == "XTransformer":
        net = XTransformer(**config["XTransformer"])
    else:
        layers = {"Decoder": Decoder, "Encoder": Encoder}[kind](**config[kind])
        net = TransformerWrapper(attn_layers=layers, **config["TransformerWrapper"])
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            x = torch.randn(parameter.shape)
            gain = name.endswith((".g", "residual_scale", "head_scale_params")) or ("norm" in name and name.endswith("weight"))
            x = 1 + 0.2 * x if gain and parameter.dim() != 2 else 0.5 * x - 1 if "logslopes" in name else x * (0.5 if "emb" in name or "mem" in name else 0.3)
            parameter.copy_(x.float())
    for module in net.modules():
        if hasattr(module, "attn_fn"):  # the library takes its softmax in float32
            module.attn_fn = torch.nn.functional.softmax
    return net.double().eval()


def wanted(net, config, kind, ids, source):
    """Log-probabilities of the text's tokens, or the mean row of an encoder."""
    if kind == "Encoder":
        return net(torch.tensor([ids]), return_embeddings=True)[0].mean(0)
    both = kind == "XTransformer"
    arguments = config["XTransformer"] if both else config["Decoder"]
    xpos = arguments.get("dec_rotary_xpos" if both else "rotary_xpos")
    length = (net.decoder.net if both else net).max_seq_len
    text = torch.tensor([ids + [0] * (length - len(ids) if xpos else 0)])
    if both:
        encodings = net.encoder(torch.tensor([source]), return_embeddings=True)
        logits = net.decoder.net(text, context=encodings)
    else:
        logits = net(text)
    found = torch.log_softmax(logits, -1)[0]
    return torch.stack([found[i, token] for i, token in enumerate(ids[1:])])


class Service:
    """`additive serve` on a free port with a data folder of its own."""

    def __init__(self, programs):
        self.folder = tempfile.TemporaryDirectory(prefix="random-xt-")
        self.programs = programs
        self.start()

    def start(self):
        with contextlib.closing(socket.socket()) as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.log = open(pathlib.Path(self.folder.name) / "log", "ab")
        self.process = subprocess.Popen([str(self.programs / "additive"), "serve", "--listen", f"127.0.0.1:{port}",
                                         "--data", str(pathlib.Path(self.folder.name) / "data")], stdout=self.log, stderr=self.log)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if self.client.get("/readyz").status_code == 200:
                    return
            time.sleep(0.1)
        raise SystemExit("the service did not become ready")

    def restarts(self):
        """Return the number of times that the engine of this service has died."""
        text = pathlib.Path(self.folder.name, "log").read_text(errors="replace")
        return len(re.findall(r"engine.*(died|ended by|signal)", text))

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.folder.cleanup()


class Found(Exception):
    """The result of one configuration."""


def check(answer, what):
    if answer.status_code >= 500:
        raise Found(f"{what}: {answer.status_code} {answer.text[:200]}")
    return answer


def refused(answer, config, what):
    """A refusal is one by name if it names a key of the configuration."""
    message = answer.json()["error"]
    text = f"{message.get('param')} {message['message']}"
    keys = {key for part in config.values() for key in part} | {key[4:] for part in config.values() for key in part if key[:4] in ("enc_", "dec_")}
    named = sorted(key for key in keys if key in text)
    if not named and "cross-attention" not in text:
        raise Found(f"{what}: refused without the name of a key: {text}")
    return f"refused by name: {(named or ['cross-attention'])[-1]}"


def train(service, config, kind, file, rng):
    config = {part: {key: TRAINED_VOCABULARY if key.endswith("num_tokens") else value for key, value in keys.items()} for part, keys in config.items()}
    body = {"model": "x-transformers", "training_file": file,
            "additive": {"config": config, "sequence_length": 4, "batch_size": 2, "max_steps": 2,
                         "objective": {"Decoder": "next_token", "Encoder": "fill_mask", "XTransformer": "text_infilling"}[kind]}}
    answer = check(service.client.post("/v1/fine_tuning/jobs", json=body), "job")
    if answer.status_code != 200:
        return
    job = answer.json()
    for _ in range(600):
        if job["status"] in ("succeeded", "failed", "cancelled"):
            break
        time.sleep(0.1)
        job = check(service.client.get(f"/v1/fine_tuning/jobs/{job['id']}"), "job").json()
    if job["status"] != "succeeded":
        raise Found(f"the job was accepted and then {job['status']}: {job.get('error')}")


def trial(service, number, seed, file):
    """The word by which a configuration is counted. Found: what is wrong with it."""
    rng = random.Random(f"{seed} {number}")
    config, kind = configuration(rng)
    most = min((config["TransformerWrapper"] if kind != "XTransformer" else {"max_seq_len": config["XTransformer"]["enc_max_seq_len"]})["max_seq_len"], 16)
    ids = [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, most))]
    source = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, most))]
    try:
        net = build(config, kind, number)
        with torch.no_grad():
            want = wanted(net, config, kind, ids, source).numpy()
    except (AssertionError, TypeError, RuntimeError, ValueError, KeyError, IndexError, ZeroDivisionError, AttributeError) as error:
        return f"the library refuses: {type(error).__name__}", config
    if not numpy.isfinite(want).all():
        return "the library's values are not finite", config
    folder = pathlib.Path(service.folder.name)
    tensors.write(folder / "weights", {name: p.detach().float().numpy() for name, p in net.named_parameters()} )
    name = f"m{number}"
    answer = check(service.client.post("/v1/models", data={"id": name}, files={
        "tokenizer": ("tokenizer.json", json.dumps(TOKENIZER)), "config": ("config.json", json.dumps({"model_type": "x-transformers", **config})),
        "weights": ("model.safetensors", (folder / "weights").read_bytes())}), "import")
    if answer.status_code not in (200, 201):
        return refused(answer, config, "import"), config
    try:
        word = read(service, name, config, kind, ids, source, want)
        if number % 10 == 0:
            train(service, config, kind, file, rng)
    finally:
        with contextlib.suppress(httpx.HTTPError):
            service.client.delete(f"/v1/models/{name}")
    return word, config


def read(service, name, config, kind, ids, source, want):
    if kind == "Encoder":
        answer = check(service.client.post("/v1/embeddings", json={"model": name, "input": ids}), "embeddings")
        if answer.status_code != 200:
            return refused(answer, config, "embeddings")
        got = numpy.array(answer.json()["data"][0]["embedding"])
    else:
        body = {"model": name, "max_tokens": 0, "temperature": 0, "echo": True, "logprobs": 1}
        text = {"prompt": source, "prefix": ids} if kind == "XTransformer" else {"prompt": ids}
        answer = check(service.client.post("/v1/completions", json=body | text), "completion")
        if answer.status_code != 200:  # some options leave no session
            return refused(answer, config, "completion")
        got = numpy.array(answer.json()["choices"][0]["logprobs"]["token_logprobs"][1:], float)
        text = {"prompt": source} if kind == "XTransformer" else {"prompt": ids[:2]}
        check(service.client.post("/v1/completions", json={"model": name, "max_tokens": 2, "num_beams": 3} | text), "beam search")
    if got.shape != want.shape or not numpy.allclose(got, want, atol=TOLERANCE, rtol=TOLERANCE):
        raise Found(f"differs by {numpy.abs(got - want).max() if got.shape == want.shape else (got.shape, want.shape)}")
    return "agrees"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/bin"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    service, counts, wrong = Service(options.bin), collections.Counter(), []
    file = service.client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("t.txt", "abcab cabca bcabc " * 40)}).json()["id"]
    numbers = [options.only] if options.only is not None else range(options.first, options.first + options.count)
    try:
        for number in numbers:
            try:
                word, config = trial(service, number, options.seed, file)
                counts[word] += 1
                if options.only is not None:
                    print(word, json.dumps(config))
            except (Found, httpx.HTTPError) as error:
                config, _ = configuration(random.Random(f"{options.seed} {number}"))
                wrong.append(number)
                print(f"{number}: {error!r} {json.dumps(config)}", flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        for word, n in counts.most_common():
            print(f"{n:6} {word}")
        print(f"{len(wrong):6} wrong of {len(wrong) + counts.total()}, engine restarts: {service.restarts()}", flush=True)
        service.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
