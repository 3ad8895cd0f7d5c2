#!/usr/bin/env python3
"""The service's attributions compared with Captum's.

A model is trained and exported by the service and read into the PyTorch model of tests/reference. Both attribute the
same logit of the same text; requests over HTTP and calls of Captum take turns.

    captum_side_by_side.py PROGRAMS [--models NAME …] [--tokens 128 512] [--steps 200] [--turns 5] [TEXT]

PROGRAMS: the folder of additived and additive-httpd; TEXT: the models' text, by default this repository's
documentation. Prints JSON for each model, number of tokens and method. It has the largest difference from Captum's
numbers, relative to the largest of them, with PyTorch in float64 and in float32; and the median milliseconds of a
request and of Captum's call in float32.

Ours is compared with, by Captum's name:

    gradient_x_input        InputXGradient of the word vectors
    attention_x_gradient    LayerGradientXActivation of the values that attention pools (not for `additive`, whose
                            scores come from the same values)
    integrated_gradients    IntegratedGradients from vectors of zero, at our nodes; and, as "default", at its own (Gauss and
                            Legendre's on the straight path)
    leave_one_out           FeatureAblation of the attention mask; "replaced": of the tokens
    contributions           InputXGradient of the words in the frozen network of tests/reference/attribution.py

Needs the packages of requirements-captum.txt."""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import tempfile
import time

import numpy
import torch
from captum.attr import FeatureAblation, InputXGradient, IntegratedGradients, LayerGradientXActivation

from http_load import Service, train, upload

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reference"))
import packages  # noqa: F401, E402
import attribution  # noqa: E402
import tensors  # noqa: E402
from additive_client.torch.additive import AdditiveLM, Config  # noqa: E402
from additive_client.torch.gpt2 import GPT2LM, GPT2Config  # noqa: E402
from additive_client.torch.linear import LinearConfig, LinearLM  # noqa: E402

LENGTH, STEPS, REPLACEMENT, SHARE = 512, 64, 35, 0.5  # REPLACEMENT: the space
ROWS = 2048  # tokens that PyTorch reads at once
D128 = {"hidden_size": 128, "n_heads": 4, "n_layer": 6, "n_positions": LENGTH}
ADDITIVE = {**D128, "position_embedding": "learned"}
MODELS = {
    "additive, windows": ("additive", ADDITIVE, AdditiveLM, Config),
    "additive, windows, no positions": ("additive", D128, AdditiveLM, Config),
    "additive, global": ("additive", {**ADDITIVE, "use_local_att": False}, AdditiveLM, Config),
    "gpt2": ("gpt2", {"n_embd": 128, "n_head": 4, "n_layer": 6, "n_positions": LENGTH}, GPT2LM, GPT2Config),
    "linear": ("linear", D128, LinearLM, LinearConfig),
}


# --- Captum's side -------------------------------------------------------------------------


class Reader(torch.nn.Module):
    """The logits of the last token, [B, V]."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask=None):
        out = self.model(ids, mask)
        return out.logits[:, -1]


def embedding_of(model):
    return {AdditiveLM: lambda: model.word_embedding, GPT2LM: lambda: model.transformer.wte, LinearLM: lambda: model.model.embedding}[type(model)]()


@contextlib.contextmanager
def instead(layer, output):
    handle = layer.register_forward_hook(lambda *_: output)
    try:
        yield
    finally:
        handle.remove()


def nodes(size):
    """The path of integrated gradients of engine/explain/attribution.h: weights and factors."""
    x, w = numpy.polynomial.legendre.leggauss(STEPS)
    u, rate = (1 + x) / 2, numpy.log(101) if size else 8
    rising, rises = numpy.expm1(rate * u) / numpy.expm1(rate), w / 2 * rate * numpy.exp(rate * u) / numpy.expm1(rate)
    if not size:
        return rises, rising
    c = numpy.sqrt(1e-5) / size
    most = 1 / numpy.sqrt(1 + c * c)
    rest = 1 - (most * rising) ** 2
    return c * most * rises / rest**1.5, c * most * rising / numpy.sqrt(rest)


class Captum:
    """Each method gives [N]."""

    def __init__(self, model, ids, token):
        self.model, self.reader, self.token = model, Reader(model), token
        self.ids = torch.tensor([ids])
        self.rows = max(1, ROWS // len(ids))
        self.words = embedding_of(model).weight[self.ids].detach()

    def of_words(self, words):
        with instead(embedding_of(self.model), words):
            return self.reader(self.ids.expand(len(words), -1))

    def gradient_x_input(self):
        return InputXGradient(self.of_words).attribute(self.words.requires_grad_(), target=self.token).sum(-1)[0]

    def attention_x_gradient(self):
        if isinstance(self.model, GPT2LM):
            layers = [layer.attn.c_attn for layer in self.model.transformer.h]
        else:
            layers = [layer.attention.v_proj for layer in self.model.model.layers]
        found = LayerGradientXActivation(self.reader, layers).attribute(self.ids, target=self.token)
        return sum(layer[0, :, -self.words.shape[-1]:].sum(-1) for layer in found)

    def integrated_gradients(self):
        alone = isinstance(self.model, AdditiveLM) and not hasattr(self.model.fastformer_model, "position_embeddings")
        weights, factors = nodes(float(self.words.square().mean().sqrt()) if alone else 0)
        method, total = IntegratedGradients(self.of_words), torch.zeros_like(self.words)
        for i in range(0, STEPS, self.rows):
            at = slice(i, i + self.rows)
            total += method._attribute((self.words,), (0,), self.token, n_steps=len(factors[at]),
                                       step_sizes_and_alphas=(weights[at].tolist(), factors[at].tolist()))[0].detach()
        return total.sum(-1)[0]

    def integrated_gradients_default(self):
        return IntegratedGradients(self.of_words).attribute(self.words, 0, self.token, n_steps=STEPS, internal_batch_size=ROWS // self.ids.shape[1]).sum(-1)[0]

    def leave_one_out(self):
        method = FeatureAblation(lambda mask, ids: self.reader(ids, mask))
        return method.attribute(torch.ones_like(self.ids), 0, self.token, self.ids, perturbations_per_eval=self.rows)[0]

    def leave_one_out_replaced(self):
        return FeatureAblation(self.reader).attribute(self.ids, REPLACEMENT, self.token, perturbations_per_eval=self.rows)[0]

    def contributions(self):
        ids = self.ids[0]
        words, positions = attribution.rows(self.model, ids)

        def frozen(vectors):
            return attribution.run_forward(self.model, attribution.Pass(SHARE), vectors[0], positions)[-1:]
        return InputXGradient(frozen).attribute(words.detach()[None].requires_grad_(), target=self.token).sum(-1)[0]

    def difference(self):
        """The score less that of zero vectors."""
        with torch.no_grad():
            return float((self.of_words(self.words) - self.of_words(torch.zeros_like(self.words)))[0, self.token])


# --- our side --------------------------------------------------------------------------------


REQUESTS = {
    "gradient_x_input": {},
    "attention_x_gradient": {},
    "integrated_gradients": {"steps": STEPS},
    "integrated_gradients_default": {"method": "integrated_gradients", "steps": STEPS},
    "leave_one_out": {},
    "leave_one_out_replaced": {"method": "leave_one_out", "replacement": REPLACEMENT},
    "contributions": {"share": SHARE},
}


def explain(service, model, ids, **options):
    answer = json.loads(service.ask("POST", "/v1/explain", {"model": model, "input": ids, **options}))
    return answer.get("contributions") or answer["attribution"]


def export(service, model, kind, settings, dtype):
    """The reference's model with the service's weights."""
    config = json.loads(service.ask("GET", f"/v1/models/{model}/files/config.json"))
    known = {key: value for key, value in config.items() if key in settings.__dataclass_fields__}
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(service.ask("GET", f"/v1/models/{model}/files/model.safetensors"))
        file.flush()
        arrays = tensors.read(file.name)[0]
    made = kind(settings(**known))
    missing = made.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()}, strict=False)
    assert not missing.unexpected_keys and all(name == "proj_logits.weight" for name in missing.missing_keys), missing
    return made.to(dtype).eval()


# --- both --------------------------------------------------------------------------------------


def timed(call):
    began = time.perf_counter()
    found = call()
    return found, 1000 * (time.perf_counter() - began)


def apart(ours, theirs):
    theirs = theirs.detach().double().numpy()
    return float(f"{numpy.abs(numpy.array(ours) - theirs).max() / numpy.abs(theirs).max():.2g}")


def compare(ask, exact, plain, method, turns):
    times = [], []
    for _ in range(turns + 1):
        ours, ms = timed(ask)
        times[0].append(ms)
        theirs, ms = timed(getattr(plain, method))
        times[1].append(ms)
    doubles = getattr(exact, method)().detach()
    found = {"float64": apart(ours["tokens"], doubles), "float32": apart(ours["tokens"], theirs),
             "ours_ms": round(statistics.median(times[0][1:]), 2), "captum_ms": round(statistics.median(times[1][1:]), 2)}
    if "completeness_error" in ours:
        found["completeness_error"] = [float(f"{abs(error / ours['difference']):.2g}")
                                       for error in (ours["completeness_error"], float(doubles.sum()) - exact.difference())]
    return found


def measure(service, name, text, options):
    architecture, config, kind, settings = MODELS[name]
    recipe = {"config": config, "sequence_length": LENGTH, "batch_size": 4, "max_steps": options.steps}
    model = train(service, architecture, upload(service, text), recipe, seconds=1800)
    exact, plain = (export(service, model, kind, settings, dtype) for dtype in (torch.float64, torch.float32))
    found = {}
    for tokens in options.tokens:
        ids = [3 + byte for byte in text.encode()[1000:1000 + tokens]]
        token = explain(service, model, ids, method="contributions")["target"]["token"]["id"]
        sides = [Captum(side, ids, token) for side in (exact, plain)]
        found[tokens] = {}
        for method, request in REQUESTS.items():
            if method == "attention_x_gradient" and architecture == "additive":
                continue

            def ask(request={"method": method, **request, "target": {"kind": "logit", "token": token}}):
                return explain(service, model, ids, **request)
            found[tokens][method] = compare(ask, *sides, method, options.turns)
            print(name, tokens, method, found[tokens][method], file=sys.stderr, flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path, nargs="?")
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    files = [options.text] if options.text else sorted(ROOT.glob("**/README.md"))
    text = "".join(file.read_text() for file in files)
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu"])
        try:
            print(json.dumps({name: measure(service, name, text, options) for name in options.models}, indent="\t"))
        finally:
            service.stop()


if __name__ == "__main__":
    main()
