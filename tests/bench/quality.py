"""make bench-quality: the losses of models of one size trained on one text, and the cost of a token.

    quality.py --bin build/bench --out build/bench/quality [--train FILE … [--valid FILE]] [--steps N | --epochs E]
               [--sizes d128,d512] [--backend cuda --precision bf16] [--batch N] [--budget SECONDS] [--report]
               [--tokenizer '{"type": "sentencepiece", "vocab_size": 8000}'] [--length N] [--models NAME;…] [--context N]
               [--rate 1e-3,2e-3] [--optimizer muon]

The models are windowed and all-global additive attention, linear attention, GPT-2, dilated attention, a transformer
with rotary positions, RMSNorm and SwiGLU, 3Lin, and additive attention that forgets ("additive 2"). Their parameters
are equal within 1 %. Sequences have 2048 tokens or --length; d128 has 4 heads and 6 layers, d512 8 heads and 8 layers.
Dropout is 0.1, and none for 3Lin. Positions are learned; models with rotary positions or none have wider feed-forward
layers instead.

"hybrid" is additive 2 with softmax attention over the last 128 tokens in every third layer. "rotary, shift and gate" is
the same block with softmax attention over the whole sequence in every layer. "linear, shift and gate" has linear
attention there, and "additive windows, shift and gate" the attention of "additive, windows". The two of the "modern
block" have neither the shift nor the gate. --models also takes additive 2 without one of its parts, for example
"additive 2 without shift". --rate trains every model, except 3Lin, with each of these rates; the table marks the best
rate of a model.

One program trains all of them with one recipe, several seeds each: AdamW, the rate falling linearly to 0, betas 0.9 and
0.999, eps 1e-8, decay 0.01, clipping at 1. 3Lin has its own: normalized_sgd, steps of norm 0.3, falling over the second
half. "trilinear, equal bytes" is trained with 8-bit weights and vectors and has as many bytes as gpt2 with int8
weights. --models "trilinear 32 bits;trilinear 8 bits;trilinear 4 bits;trilinear 2 bits" trains one 3Lin with fewer and
fewer bits. --recipe service: weights, rate and warm-up of a job without options. --recipe reference: additive weights
from N(0, 0.02^2), rate 5e-4, no warm-up, as the published models were trained. Tokens are bytes, or those of a
tokenizer trained on the same text.

Reports the best validation loss over the evaluations of a run, as mean and range over the seeds. Units are nats per
token and per byte, bits per byte, and the perplexity of a token and of a word. The ends of lines are words too, as is usual for
WikiText. With --context N all models, built for N tokens, then take turns. They run training steps on all threads, and
one session each that continues after N tokens on one thread. The report has medians, bytes of a session's state, and
parameters. With --int8 the blocks of an evaluation are read again at the end of each run, with fp32 and with int8
weights.

A finished run is a file in OUT, named after all of its settings, and is not repeated, so the program can be interrupted
and continued at any time. With --budget no run starts that would exceed it, judged by the longest run of its size so
far. --report trains nothing: it writes the table and the curves (curves.svg) of the finished runs. Without --train the
text is this repository's sources; without --valid the last tenth of each text is held out.
"""

import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

from contest import Contestant, Failure, environment, take_turns

BYTES_VOCAB = 259
SIZES = {"d80": (80, 4, 4), "d128": (128, 4, 6), "d256": (256, 8, 5), "d384": (384, 8, 7), "d512": (512, 8, 8)}  # width, heads, layers
COLORS = {"additive, windows": "#0b6e8f", "additive, all global": "#7fb8c9", "linear": "#5b8c3a", "gpt2": "#c4622d",
          "rotary SwiGLU": "#8a3f8f", "dilated": "#b59a1c", "trilinear 32 bits": "#b03060", "trilinear 8 bits": "#d0708f",
          "trilinear 4 bits": "#e0a0b5", "trilinear 2 bits": "#eccad6", "trilinear, equal bytes": "#602040",
          "additive 2": "#102a70", "hybrid": "#2f8f8f", "rotary, shift and gate": "#d13a3a",
          "additive 2, constant forgetting": "#3f5fb5", "additive 2, no forgetting": "#6f8fd5",
          "additive 2 without shift": "#8f6fd5", "additive 2 without gate": "#b08fe0", "additive 2 without head norm": "#9fb5e5",
          "linear, shift and gate": "#8fcf5a", "additive windows, shift and gate": "#0b9e8f", "additive windows, modern block": "#5bae8f",
          "additive global, modern block": "#9bce8f", "gpt2, zero-initialised": "#e4925d",
          "additive 2, 2 channels": "#304a90", "additive 2, 4 channels": "#506ab0", "additive 2, 16 channels": "#708ad0"}
ON_REQUEST = ("trilinear 8 bits", "trilinear 4 bits", "trilinear 2 bits",  # trained only where --models names them
              "additive windows, modern block", "additive global, modern block",
              *(name for name in COLORS if name.startswith("additive 2") and name != "additive 2"))
READ_ON = 131072  # tokens over which --read-on takes losses
BOUT, STEPS, BOUTS = 128, 4, 5  # tokens that a model decodes in its turn, steps that it learns; turns
OTHERS = "window_layers", "linear_layers", "window_sizes"  # keys of additive2 for layers with another attention
ADAMW = {
    "schedule": "linear",
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "weight_decay": 0.01,
    "clip": 1.0,
}
NORMALIZED = {  # for 3Lin: no moments, no decay, no warm-up
    "optimizer": "normalized_sgd",
    "step_size": "norm",
    "schedule": "tail",
    "tail": 2,
    "weight_decay": 0,
    "learning_rate": 0.3,
}


def recipes_of(config, arguments, width, steps):
    """Return a model's training options besides those that all models share, for each rate."""
    if config["model_type"] == "trilinear":
        return [NORMALIZED]
    warmup = {} if arguments.recipe == "reference" else {"warmup_steps": min(200, steps // 4)}
    usual = 5e-4 if arguments.recipe == "reference" else min(4e-3, 2e-3 * 128 / width)
    optimizer = {} if arguments.optimizer == "adamw" else {"optimizer": arguments.optimizer}
    return [{**ADAMW, **optimizer, "learning_rate": rate, **warmup} for rate in arguments.rate or [usual]]


def gpt2_cost(width, layers, vocab, length):
    """Parameters of gpt2, and its bytes with int8 weights: an output of a matrix has 8 more, and other tensors stay
    fp32."""
    others = length * width + layers * 13 * width + 2 * width
    matrices = vocab * width + layers * 12 * width**2
    return matrices + others, matrices + 8 * (vocab + layers * 9 * width) + 4 * others


def trilinear(width, layers, vocab, length, parameters=None, int8_bytes=None):
    """3Lin with this many parameters, or bytes of int8 weights, and two attentions for each layer of the others. The
    width is the largest that its two tables allow with keys of half the width; the keys then use the remaining
    parameters. One attention of six sees the whole sequence."""
    attentions, value, row, goal = 2 * layers, max(16, width // 64 * 16), 8 if int8_bytes else 0, int8_bytes or parameters

    def key_size(hidden):  # in steps of 8
        tables = (2 * vocab + 2) * (hidden + row) + (4 if int8_bytes else 1) * vocab
        rest = 2 * value * (hidden + row) + hidden * (16 * value + row)
        return round(((goal - tables) / attentions - rest) / (16 * (hidden + row))) * 8

    hidden = max(h for h in range(16, width + 1, 8) if h == 16 or 2 * key_size(h) >= h)
    return {"model_type": "trilinear", "profile": "seed", "hidden_size": hidden, "vocab_size": vocab, "n_positions": length, "n_layer": attentions,
            "key_size": key_size(hidden), "value_size": value, "wide_window_size": length}


def rotary_ratio(width, layers, length):
    """Inner width over width of the rotary transformer's feed-forward layers. They also replace a table of positions."""
    return 8 / 3 + length / (3 * width * layers)


def additive2(width, heads, layers, vocab, length, channels=8, forget="data", shift=True, gate=True, group_norm=True, window=128, **others):
    """additive2 with heads of `channels` channels; others: lists of layers with other mixers. The width of its feed-forward
    layers gives it as many parameters as the rotary transformer of this size, whose SwiGLU has biases."""
    pooling = (2 + gate) * width**2 + (3 * shift + group_norm) * width
    pooling += width // channels * {"data": 2 * width + 1, "const": width + 1, "none": width}[forget]
    other = (4 + gate) * width**2 + (3 + gate) * shift * width
    rounds = width**2 + 4 * width
    count, with_rounds = (sum(len(others.get(key, ())) for key in keys) for keys in (OTHERS, OTHERS[-1:]))
    mixers = count * other + with_rounds * rounds + (layers - count) * pooling
    rotary = 4 * width**2 + (3 * width + 2) * int(width * rotary_ratio(width, layers, length))
    inner = round((rotary - mixers / layers) / (3 * width))
    return {"model_type": "additive2", "hidden_size": width, "vocab_size": vocab, "n_heads": width // channels, "n_layer": layers, "intermediate_size": inner,
            "forget": forget, "shift": shift, "gate": gate, "group_norm": group_norm, "dropout": 0.1, "window_layers": [], "window": window,
            "window_heads": heads, **{key: list(value) for key, value in others.items()}}


def models(width, heads, layers, vocab, length, recipe):
    additive = {
        "model_type": "FastformerForCausalLM",
        "hidden_size": width,
        "vocab_size": vocab,
        "n_heads": heads,
        "n_positions": length,
        "n_layer": layers,
        "hidden_dropout_prob": 0.1,
        **({} if recipe == "reference" else {"initializer_range": width**-0.5}),
    }
    gpt2 = {"model_type": "gpt2", "n_embd": width, "vocab_size": vocab, "n_head": heads, "n_positions": length, "n_layer": layers}
    plain = {"hidden_size": width, "vocab_size": vocab, "n_heads": heads, "n_positions": length, "n_layer": layers, "hidden_dropout_prob": 0.1,
             "position_embedding": "learned"}
    rotary = {"model_type": "transformer", "num_tokens": vocab, "max_seq_len": length, "dim": width, "depth": layers, "heads": heads,
              "attn_dim_head": width // heads, "tie_embedding": True, "use_rmsnorm": True, "rotary_pos_emb": True, "ff_glu": True,
              "ff_swish": True, "ff_no_bias": True, "ff_mult": rotary_ratio(width, layers, length), "attn_zero_init_output": True, "ff_zero_init_output": True, "emb_dropout": 0.1, "attn_dropout": 0.1, "ff_dropout": 0.1}
    parameters, int8_bytes = gpt2_cost(width, layers, vocab, length)
    lin = trilinear(width, layers, vocab, length, parameters)
    bits = {f"trilinear {n} bits": {**lin, "weight_bits": n, "vector_bits": 8 if n < 32 else 32} for n in (32, 8, 4, 2)}
    segments = [length // 8, length // 2, length]
    size = width, heads, layers, vocab, length
    windows = [4 * 2**layer for layer in range(layers - 1)]
    zero = {**{key: value for key, value in rotary.items() if key not in ("use_rmsnorm", "rotary_pos_emb", "ff_glu", "ff_swish", "ff_no_bias")}, "ff_mult": 4}
    return {
        "additive, windows": {**additive, "window_sizes": [*windows, length]},
        "additive, all global": {**additive, "use_local_att": False},
        "linear": {**plain, "model_type": "linear"},
        "gpt2": {**gpt2, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
        "rotary SwiGLU": rotary,
        "dilated": {**plain, "model_type": "dilated", "segment_length": segments, "dilated_ratio": [1, 2, 4]},
        **bits,
        "trilinear, equal bytes": {**trilinear(width, layers, vocab, length, int8_bytes=int8_bytes), "weight_bits": 8, "vector_bits": 8},
        "additive 2": additive2(*size),
        "hybrid": additive2(*size, window_layers=range(2, layers, 3)),
        "rotary, shift and gate": additive2(*size, window_layers=range(layers), window=length),
        "linear, shift and gate": additive2(*size, linear_layers=range(layers)),
        "additive windows, shift and gate": additive2(*size, window_sizes=[*windows, 0]),
        "additive windows, modern block": additive2(*size, shift=False, gate=False, window_sizes=[*windows, 0]),
        "additive global, modern block": additive2(*size, shift=False, gate=False, window_sizes=[0] * layers),
        "gpt2, zero-initialised": zero,
        "additive 2, constant forgetting": additive2(*size, forget="const"),
        "additive 2, no forgetting": additive2(*size, forget="none"),
        **{f"additive 2, {n} channels": additive2(*size, channels=n) for n in (2, 4, 16)},
        "additive 2 without shift": additive2(*size, shift=False),
        "additive 2 without gate": additive2(*size, gate=False),
        "additive 2 without head norm": additive2(*size, group_norm=False),
    }


def cut(paths, valid, out):
    """Return the training text and the held-out text as two files: all texts without their last tenths, and these
    tenths or `valid`."""
    kept, held = [], []
    for path in paths:
        with open(path, "rb") as file:
            text = file.read()
        end = len(text) if valid else text.rfind(b"\n", 0, len(text) * 9 // 10) + 1 or len(text) * 9 // 10
        kept.append(text[:end])
        held.append(text[end:])
    files = [os.path.join(out, "train.txt"), valid or os.path.join(out, "valid.txt")]
    for path, pieces in zip(files, [kept] if valid else [kept, held]):
        with open(path, "wb") as file:
            file.write(b"\n".join(pieces))
    return files


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def train(program, paths, settings, arguments, kept):
    """The lines of a run, evaluations printed on standard error as they come. With --keep the model stays in the folder `kept`."""
    command = [
        program,
        paths[0],
        json.dumps(settings["config"]),
        json.dumps(settings["options"]),
        str(settings["seed"]),
    ]
    lines = []
    own = environment(arguments.threads, {"ADDITIVE_BENCH_BACKEND": arguments.backend})
    with tempfile.TemporaryDirectory() as saved:
        folder = kept if arguments.keep else os.path.join(saved, "model") if arguments.int8 else "-"
        more = paths[1:] + ([folder, json.dumps(settings["tokenizer"])] if "tokenizer" in settings else [folder])
        with subprocess.Popen(command + more, env=own, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                lines.append(json.loads(line))
                if "valid_loss" in lines[-1]:
                    print(f"  {line.strip()}", file=sys.stderr, flush=True)
        if process.returncode != 0:
            raise Failure(f"{command[0]}: status {process.returncode}")
        return (served(folder, paths[1], settings["options"], arguments, own) if arguments.int8 else []) + lines


def served(folder, valid, options, arguments, own):
    """Lines of the losses of the saved model, {"weights": "int8", "loss": 4.5, ...}, over the blocks of an evaluation."""
    command = [os.path.join(arguments.bin, "bench_loss"), folder, valid, str(options["sequence_length"]), str(options["eval_blocks"])]
    out = subprocess.run(command, env=own, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def read_on(folder, config, valid, arguments):
    """Lines of the losses of a kept model over the same tokens in blocks of each length of --read-on, {"read_on": 2048, "loss": 4.5}.
    A model that attends to the whole sequence does so at every length."""
    lines, own = [], environment(arguments.threads, {"ADDITIVE_BENCH_BACKEND": arguments.backend})
    for length in arguments.read_on:
        whole = {key: length for key in ("window", "max_seq_len") if config.get(key) == arguments.length}
        with tempfile.TemporaryDirectory() as copy:
            for name in set(os.listdir(folder)) - {"config.json", "manifest.json"}:
                os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(copy, name))
            with open(os.path.join(folder, "config.json")) as file:
                saved = json.load(file)
            with open(os.path.join(copy, "config.json"), "w") as file:
                json.dump({**saved, **whole}, file)
            command = [os.path.join(arguments.bin, "bench_loss"), copy, valid, str(length), str(READ_ON // length), "fp32"]
            out = subprocess.run(command, env=own, stdout=subprocess.PIPE, text=True, check=True).stdout
        lines.append({"read_on": length, "loss": json.loads(out)["loss"]})
    return lines


def finished(out, name, settings):
    """Where the run's file is or will be."""
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    return os.path.join(out, f"{name.replace(', ', '-').replace(' ', '-')}-{settings['seed']}-{key}.json")


def chosen(arguments, size, length):
    """Return {name: config} of the requested models of a size, for this number of tokens."""
    vocab = arguments.tokenizer["vocab_size"] if arguments.tokenizer else BYTES_VOCAB
    all_models = models(*SIZES[size], vocab, length, arguments.recipe)
    return {name: all_models[name] for name in arguments.models or [n for n in all_models if n not in ON_REQUEST]}


def in_turns(commands, threads, backend, count):
    """{name: (median time, ready line)} of commands by name that take turns of `count` steps, the first of them not counted."""
    field = {}
    try:
        for name, command in commands.items():
            field[name] = Contestant(command, threads, {"ADDITIVE_BENCH_BACKEND": backend})
        take_turns(list(field.values()), count, 1)
        for c in field.values():
            c.times.clear()
        take_turns(list(field.values()), count, BOUTS)
        return {name: (c.median(), c.facts) for name, c in field.items()}
    finally:
        for c in field.values():
            c.close()


def speeds(arguments):
    """{(size, model): (parameters, bytes of int8 weights, tokens/s of training, seconds of a token with fp32 and with int8 weights, bytes of a session's state)}"""
    figures = {}
    for size in arguments.sizes.split(","):
        train = {name: [os.path.join(arguments.bin, "bench_train"), json.dumps(config), str(arguments.batch), str(arguments.length)]
                       + ([arguments.precision] if arguments.precision == "bf16" else [])
                 for name, config in chosen(arguments, size, arguments.length).items()}
        decode = {(name, weights): [os.path.join(arguments.bin, "bench_serve"), "decode", json.dumps(config), weights, str(arguments.context)]
                  for name, config in chosen(arguments, size, arguments.context).items() for weights in ("fp32", "int8")}
        learned = in_turns(train, arguments.threads, arguments.backend, STEPS)
        written = in_turns(decode, 1, arguments.backend, BOUT)
        for name, (step, facts) in learned.items():
            token, _ = written[name, "fp32"]
            token8, served = written[name, "int8"]
            figures[size, name] = facts["parameters"], served["weight_bytes"], facts["tokens"] / step, token, token8, served["state_bytes"]
    return figures


def trained(arguments, paths, label, settings, late):
    """Return the lines of a run, or None if it is not finished. Train it if it may start."""
    path = finished(arguments.out, label, settings)
    if not os.path.exists(path) and not arguments.report and not late:
        options = settings["options"]
        print(f"{label}, rate {options['learning_rate']:g}, seed {settings['seed']}: {options['max_steps']} steps", file=sys.stderr, flush=True)
        lines = train(os.path.join(arguments.bin, "train_curve"), paths, settings, arguments, path.removesuffix(".json"))
        with open(path + ".part", "w") as file:
            json.dump({"settings": settings, "lines": lines}, file)
        os.replace(path + ".part", path)
    if not os.path.exists(path):
        return None
    with open(path) as file:
        lines = json.load(file)["lines"]
    return (read_on(path.removesuffix(".json"), settings["config"], paths[1], arguments) if arguments.read_on else []) + lines


def collect(arguments, paths, options):
    """{(size, model, rate): runs}, doing those that are not there yet. One seed of every model first, then the next seed."""
    texts = {"train": digest(paths[0]), "valid": digest(paths[1]), "backend": arguments.backend}
    if arguments.tokenizer:
        texts["tokenizer"] = arguments.tokenizer
    began, runs, longest = time.time(), {}, {}
    cases = [(seed, size, name, config, own)
             for seed in range(1, arguments.seeds + 1) for size in arguments.sizes.split(",")
             for name, config in chosen(arguments, size, arguments.length).items()
             for own in recipes_of(config, arguments, SIZES[size][0], options["max_steps"])]
    for seed, size, name, config, own in cases:
        settings = {"config": config, "options": {**options, **own}, "seed": seed, **texts, **({"int8": True} if arguments.int8 else {})}
        started = time.time()
        lines = trained(arguments, paths, f"{size} {name}", settings, started - began + longest.get(size, 0) > arguments.budget)
        longest[size] = max(longest.get(size, 0), time.time() - started)
        if lines is None:
            print(f"{size}, {name}, rate {own['learning_rate']:g}, seed {seed}: not there yet", file=sys.stderr, flush=True)
        else:
            runs.setdefault((size, name, own["learning_rate"]), []).append(lines)
    return runs


def best(lines):
    return min((line for line in lines if "valid_loss" in line), key=lambda line: line["valid_loss"])


def mean_best(curves):
    return statistics.mean(best(lines)["valid_loss"] for lines in curves)


def best_rates(runs):
    """{(size, model): the rate of the lowest mean loss}"""
    rates = {}
    for (size, name, rate), curves in runs.items():
        known = rates.get((size, name))
        if known is None or mean_best(curves) < mean_best(runs[size, name, known]):
            rates[size, name] = rate
    return rates


def spread(values, digits=4):
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} … {max(values):.{digits}f})"


def word_perplexity(bits_per_byte, path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    words = len(text.split()) + text.count("\n")
    return 2 ** (bits_per_byte * len(text.encode()) / words)


def loss_of(curves, weights):
    losses = [line["loss"] for lines in curves for line in lines if line.get("weights") == weights]
    return spread(losses) if losses else "-"


def report(runs, options, out, held_out, valid):
    device = next(iter(runs.values()))[0][-1]["device"]
    rows = [f"Best validation loss, mean and range over seeds: {options['max_steps']} steps of {options['batch_size']} x {options['sequence_length']} tokens, "
            f"{options['precision']}, held out: {held_out}; {device}\n"]
    rows += ["| size | model | rate | seeds | nats per token | nats per byte | bits per byte | perplexity of a token | of a word | nats at the end, fp32 | int8 weights |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    rates = best_rates(runs)
    for (size, name, rate), curves in sorted(runs.items(), key=lambda run: list(rates).index(run[0][:2])):
        bests = [best(lines) for lines in curves]
        mark = "**" if rate == rates[size, name] else ""
        rows.append(
            f"| {size} | {name} | {mark}{rate:g}{mark} | {len(curves)} | {spread([b['valid_loss'] for b in bests])} "
            f"| {spread([b['bits_per_byte'] * math.log(2) for b in bests])} | {spread([b['bits_per_byte'] for b in bests])} "
            f"| {spread([b['perplexity'] for b in bests], 2)} | {spread([word_perplexity(b['bits_per_byte'], valid) for b in bests], 1)} "
            f"| {loss_of(curves, 'fp32')} | {loss_of(curves, 'int8')} |"
        )
    print("\n".join(rows))
    with open(os.path.join(out, "table.md"), "w") as file:
        file.write("\n".join(rows) + "\n")


def report_reading(runs, lengths):
    print(f"\nNats per token over the first {READ_ON:,} tokens of the held-out text, in blocks of these lengths\n")
    print("| size | model | rate | " + " | ".join(f"{length:,}" for length in lengths) + " |\n" + "| --- " * (3 + len(lengths)) + "|")
    for (size, name, rate), curves in runs.items():
        losses = [[line["loss"] for lines in curves for line in lines if line.get("read_on") == length] for length in lengths]
        print(f"| {size} | {name} | {rate:g} | " + " | ".join(map(spread, losses)) + " |")


def report_speeds(figures, arguments):
    rows = [f"\nIn turns, medians of {BOUTS}: training, {arguments.batch} x {arguments.length} tokens a step, {arguments.threads} threads; a session of a model made for "
            f"{arguments.context} tokens that goes on behind so many, one thread\n",
            "| size | model | parameters | bytes of int8 weights | training, tokens/s | ms a token, fp32 | int8 | bytes of state |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    rows += [f"| {size} | {name} | {parameters:,} | {weights:,} | {rate:,.0f} | {seconds * 1e3:.3f} | {seconds8 * 1e3:.3f} | {state:,} |"
             for (size, name), (parameters, weights, rate, seconds, seconds8, state) in figures.items()]
    print("\n".join(rows))
    with open(os.path.join(arguments.out, "table.md"), "a") as file:
        file.write("\n".join(rows) + "\n")


def plot(runs, out):
    from plots import pyplot, save  # it needs matplotlib

    for (size, name), rate in best_rates(runs).items():
        curves = runs[size, name, rate]
        points = [[(line["step"], line["valid_loss"]) for line in lines if "valid_loss" in line] for lines in curves]
        steps = [step for step, _ in points[0]]
        losses = list(zip(*([loss for _, loss in curve] for curve in points)))
        low, high = [min(values) for values in losses], [max(values) for values in losses]
        style = "-" if size == next(iter(SIZES)) else "--"
        pyplot.plot(steps, [statistics.mean(values) for values in losses], style, label=f"{name}, {size}", color=COLORS[name])
        pyplot.fill_between(steps, low, high, color=COLORS[name], alpha=0.2, linewidth=0)
    pyplot.legend()
    save(os.path.join(out, "curves.svg"), "Validation loss, mean and range over seeds", "step", "nats per token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bench", help="folder of the measuring programs")
    parser.add_argument("--out", default="build/bench/quality", help="folder for results")
    parser.add_argument("--train", nargs="+", help="texts to train on")
    parser.add_argument("--valid", help="held-out text")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--epochs", type=float, help="instead of steps")
    parser.add_argument("--sizes", default="d128", help=", ".join(SIZES))
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=2, help="sequences of a step")
    parser.add_argument("--tokenizer", type=json.loads, help="what job requests call tokenizer; trained on the texts; wants --steps")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--precision", default="fp32", help="or bf16, on a device that has it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=20, help="of each run")
    parser.add_argument("--eval-blocks", type=int, default=0, help="blocks of an evaluation; 0: all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--recipe", choices=("reference", "service"), default="service")
    parser.add_argument("--models", type=lambda text: text.split(";"), help=f"some of: {'; '.join(COLORS)}")
    parser.add_argument("--rate", type=lambda text: [float(rate) for rate in text.split(",")], help="learning rates, instead of the recipe's")
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw", help="of every model, except 3Lin")
    parser.add_argument("--context", type=int, help="measure speeds, too, sessions behind so many tokens")
    parser.add_argument("--int8", action="store_true", help="measure the loss of what was trained with int8 weights, too")
    parser.add_argument("--keep", action="store_true", help="save each trained model in a folder beside its file")
    parser.add_argument("--read-on", type=lambda text: [int(length) for length in text.split(",")],
                        help="measure the losses of kept models in blocks of these lengths, too")
    parser.add_argument("--report", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    texts = arguments.train or [os.path.join(arguments.out, "sources.txt")]
    if not arguments.train:
        from bench import sources

        sources(texts[0])
    paths = cut(texts, arguments.valid, arguments.out)
    steps = arguments.steps
    if arguments.epochs and arguments.tokenizer:
        parser.error("--epochs counts bytes; with --tokenizer give --steps")
    if arguments.epochs:
        steps = max(1, int(arguments.epochs * os.path.getsize(paths[0]) / (arguments.length * arguments.batch)))
    every = max(1, steps // arguments.evaluations)
    options = {"sequence_length": arguments.length, "batch_size": arguments.batch, "precision": arguments.precision, "max_steps": steps, "eval_every": every,
               "eval_blocks": arguments.eval_blocks}
    runs = collect(arguments, paths, options)
    if not runs:
        sys.exit("quality: there is no run yet")
    held_out = os.path.basename(arguments.valid) if arguments.valid else "the last tenth of " + ", ".join(map(os.path.basename, texts))
    report(runs, options, arguments.out, held_out, paths[1])
    if arguments.read_on:
        report_reading(runs, arguments.read_on)
    if arguments.context and not arguments.report:
        report_speeds(speeds(arguments), arguments)
    try:
        plot(runs, arguments.out)
    except ImportError:
        print("quality: the curves need matplotlib; --report makes them later", file=sys.stderr)


if __name__ == "__main__":
    main()
