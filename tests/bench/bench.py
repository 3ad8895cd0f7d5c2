"""make bench: the ceilings of this machine, the engine's share of them, and the speed of PyTorch.

    bench.py --bin build/bench --out build/bench [--quick] [--ours] [--text FILE] [--parts ops,training,…]

Everything is measured in this one run; compared programs take turns. Each part leaves its raw figures in OUT/PART.json;
the tables go to standard output and OUT/table.md, the plots to OUT/*.svg. --ours measures our programs alone, without
plots: it needs numpy and none of requirements.txt.

Fairness: contestants take turns in short bouts within one run, and medians are over all bouts. Our programs and the peers are
processes that answer "n steps" with n times, so all are timed alike. A peer must agree with the plain definition first: logits,
loss and gradients to 1e-4. Its fastest variant counts (variants.py); all trials are in the part's JSON.

"Of the ceiling" is a least time divided by the median. The least time is that of copying the same number of bytes, or that of the
best fp32 product. It may exceed 100 %: 8-bit products have no fp32 ceiling, and data that is updated in place or only read costs
less than a copy.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time

import numpy

import quality
import variants
from contest import Contestant, Failure, run, take_turns
from variants import CONTEXT, VOCAB

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LENGTHS = [512, 1024, 2048, 4096, 8192]
POSITIONS = [200, 2_000, 60_000, 1_000_000]
CONTEXTS = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
SESSIONS = 256
LONG = 1 << 20
TYPES = ["fp32", "bf16", "int8"]


def additive(positions, vocab=VOCAB):
    """Windows 4, 8, 16, 32, 64 and a global layer: the defaults."""
    return json.dumps(
        {
            "hidden_size": 128,
            "vocab_size": vocab,
            "n_heads": 4,
            "n_positions": positions,
            "n_layer": 6,
            "hidden_dropout_prob": 0,
        }
    )


def additive2(positions, vocab=VOCAB):
    return json.dumps({"model_type": "additive2", "hidden_size": 128, "vocab_size": vocab, "n_heads": 16, "n_layer": 6, "intermediate_size": 368, "dropout": 0})


def gpt2(positions, vocab=VOCAB):
    return json.dumps(
        {
            "model_type": "gpt2",
            "n_embd": 128,
            "vocab_size": vocab,
            "n_head": 4,
            "n_positions": positions,
            "n_layer": 6,
            "resid_pdrop": 0,
            "embd_pdrop": 0,
            "attn_pdrop": 0,
        }
    )


def rotary(positions, vocab=VOCAB):
    """Rotary positions, RMSNorm, SwiGLU of three times the width, no biases."""
    return json.dumps(
        {
            "model_type": "transformer",
            "num_tokens": vocab,
            "max_seq_len": positions,
            "dim": 128,
            "depth": 6,
            "heads": 4,
            "attn_dim_head": 32,
            "tie_embedding": True,
            "use_rmsnorm": True,
            "rotary_pos_emb": True,
            "ff_glu": True,
            "ff_swish": True,
            "ff_no_bias": True,
            "ff_mult": 3,
        }
    )


def trilinear(positions, vocab=VOCAB):
    """3Lin with the parameters of gpt2 at CONTEXT, 8-bit weights and vectors; one attention of six sees all positions."""
    config = quality.trilinear(128, 6, vocab, positions, quality.gpt2_cost(128, 6, vocab, CONTEXT)[0])
    return json.dumps({**config, "weight_bits": 8, "vector_bits": 8})


MODELS = {"additive": additive, "additive2": additive2, "gpt2": gpt2, "trilinear": trilinear}


class Bench:
    """One run: its paths, the measurements so far, and the lines of the tables."""

    def __init__(self, options):
        self.options = options
        self.threads = len(os.sched_getaffinity(0))
        self.results, self.lines = {}, []
        self.log = os.path.join(options.out, "bench.log")
        self.began = time.time()

    def program(self, name, *arguments):
        return [os.path.join(self.options.bin, name), *map(str, arguments)]

    def say(self, text=""):
        print(text, flush=True)
        self.lines.append(text)

    def note(self, text):
        print(f"[{time.time() - self.began:4.0f} s] {text}", file=sys.stderr, flush=True)

    def keep(self, part, figures):
        self.results[part] = figures
        with open(os.path.join(self.options.out, part + ".json"), "w") as file:
            json.dump(figures, file, indent=1)
            file.write("\n")

    def table(self, header, rows):
        cells = [[str(c) for c in row] for row in [header, *rows]]
        widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
        cells.insert(1, ["-" * w for w in widths])
        for row in cells:
            self.say("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |")
        self.say()


# --- the machine ------------------------------------------------------------------------------


def describe(bench):
    with open("/proc/cpuinfo") as file:
        fields = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    model = {key.strip(): value.strip() for key, value in fields.items()}.get("model name", platform.machine())
    load = os.getloadavg()[0]
    revision = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True
    ).stdout
    facts = {
        "date": datetime.date.today().isoformat(),
        "cpu": model,
        "cores": bench.threads,
        "load_before": load,
        "revision": revision.strip(),
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
        **{name: importlib.metadata.version(name) for name in (("numpy",) if bench.options.ours else ("torch", "transformers", "numpy"))},
    }
    bench.keep("machine", facts)
    bench.say(
        f"{facts['date']}, {model}, {bench.threads} cores, revision {facts['revision']}; "
        f"{', '.join(f'{name} {facts[name]}' for name in ('python', 'torch', 'transformers') if name in facts)}; `{facts['command']}`"
    )
    if load > 0.5:
        bench.say(f"The machine was busy when this began (load {load:.1f}): do not trust the figures.")
    bench.say()


# --- ops beside the ceilings ------------------------------------------------------------------


class Ceilings:
    """Ceilings of at most `threads` threads: the best of copies, by size, and of fp32 products."""

    def __init__(self, lines, threads):
        mine = [line for line in lines if "ceiling" in line and line["threads"] <= threads]
        self.flops = max(line["flops"] / line["best_ns"] for line in mine if line["ceiling"] == "gemm")
        self.copies = {}
        for line in (line for line in mine if line["ceiling"] == "copy"):
            size, rate = line["megabytes"] << 20, line["bytes"] / line["best_ns"]
            self.copies[size] = max(rate, self.copies.get(size, 0))

    def bandwidth(self, size):
        """Bytes per ns of a copy of this size, between the measured sizes by their logarithms."""
        sizes = sorted(self.copies)
        return float(numpy.interp(math.log(max(size, 1)), numpy.log(sizes), [self.copies[s] for s in sizes]))

    def bound(self, case):
        """The least ns that memory and arithmetic allow."""
        return max(case["bytes"] / self.bandwidth(case["bytes"]), case["flops"] / self.flops)


def ops(bench):
    lines = run(bench.program("bench_ops"), bench.threads)
    ceilings = Ceilings(lines, bench.threads)
    rows = []
    for case in (line for line in lines if "op" in line):
        if "median_ns" not in case:
            rows.append(
                [case["op"], case.get("shape", ""), "no case" if "missing" in case else "unsupported"] + [""] * 4
            )
            continue
        case["share"] = ceilings.bound(case) / case["median_ns"]
        rows.append(
            [
                case["op"],
                case["shape"],
                f"{case['median_ns'] / 1e3:.1f}",
                f"{case['best_ns'] / 1e3:.1f}",
                f"{case['bytes'] / case['median_ns']:.1f}",
                f"{case['flops'] / case['median_ns']:.0f}" if case["flops"] else "",
                f"{100 * case['share']:.0f} %",
            ]
        )
    bench.keep("ops", lines)
    bench.say("Ceilings")
    bench.table(
        ["", "threads", "best"],
        [
            (
                [f"copy within {line['megabytes']} MB", line["threads"], f"{line['bytes'] / line['best_ns']:.1f} GB/s"]
                if line["ceiling"] == "copy"
                else [f"product {line['shape']}", line["threads"], f"{line['flops'] / line['best_ns']:.0f} GFLOP/s"]
            )
            for line in lines
            if "ceiling" in line
        ],
    )
    bench.say(
        f"Ops on {bench.threads} threads; of the ceiling: the least time that a copy of as many bytes or the best fp32 "
        "product would take, over the median"
    )
    bench.table(["op", "shape", "median µs", "best µs", "GB/s", "GFLOP/s", "of the ceiling"], rows)


def product_ceiling(bench):
    """GFLOP/s of all threads, or None when the ops were not measured in this run."""
    return Ceilings(bench.results["ops"], bench.threads).flops if "ops" in bench.results else None


def share_of_products(bench, facts, seconds):
    ceiling = product_ceiling(bench)
    return f"{100 * facts['product_flops'] / seconds / 1e9 / ceiling:.0f} %" if ceiling else ""


# --- the engine's own cases ---------------------------------------------------------------------


def lengths(bench):
    """Training speed over the sequence length, 8192 tokens a step."""
    figures = {}
    for name, config in MODELS.items():
        for length in LENGTHS:
            bench.note(f"training, {name}, length {length}")
            with Contestant(bench.program("bench_train", config(length), 8192 // length, length), bench.threads) as c:
                if c.able:
                    c.bout(3 if bench.options.quick else 8)
                    figures.setdefault(name, {})[length] = 8192 / c.median()
    bench.keep("lengths", figures)
    bench.say("Training, tokens/s at 8192 tokens a step over the sequence length (d 128, 6 layers, V 8192)")
    bench.table(
        ["length", *figures],
        [[n, *(f"{figures[name][n]:,.0f}" if n in figures[name] else "" for name in figures)] for n in LENGTHS],
    )


def serving(bench):
    """One session far into its text, many sessions at once, one long prompt, and the size of a session's state."""
    config, figures = additive(CONTEXT), {}
    bench.note("decoding at four positions")
    figures["flat"] = run(bench.program("bench_serve", "flat", config, "fp32", *POSITIONS), 1)
    bench.note("prefill")
    tokens = LONG // 8 if bench.options.quick else LONG
    figures["prefill"] = run(bench.program("bench_serve", "prefill", config, "fp32", tokens), bench.threads)[0]
    bench.note("many sessions")
    figures["batch"] = {
        t: run(bench.program("bench_serve", "batch", config, t, 512, SESSIONS), bench.threads)[0] for t in TYPES
    }
    figures["state"] = {
        name: {n: run(bench.program("bench_serve", "state", config(n)), 1)[0].get("state_bytes") for n in CONTEXTS}
        for name, config in MODELS.items()
    }
    bench.keep("serving", figures)
    if any("unsupported" in line for line in [*figures["flat"], figures["prefill"], *figures["batch"].values()]):
        bench.say("Serving: unsupported by this build\n")
        return
    first = figures["flat"][0]["ns"]
    bench.say("Decoding, one session, one thread, fp32, over its position")
    bench.table(
        ["position", "µs/token", "ratio", "state bytes"],
        [
            [
                f"{line['position']:,}",
                f"{line['ns'] / 1e3:.1f}",
                f"{line['ns'] / first:.3f}",
                f"{line['state_bytes']:,}",
            ]
            for line in figures["flat"]
        ],
    )
    bench.say(f"Decoding, {bench.threads} threads, context 512")
    bench.table(
        ["weights", f"{SESSIONS} sessions, tokens/s", "one session, tokens/s", "ratio"],
        [
            [t, f"{b['tokens_per_second']:,.0f}", f"{b['alone']:,.0f}", f"{b['tokens_per_second'] / b['alone']:.1f}"]
            for t, b in figures["batch"].items()
        ],
    )
    p = figures["prefill"]
    bench.say(
        f"Prefill of one prompt of {p['tokens']:,} tokens: {p['tokens_per_second']:,.0f} tokens/s, memory grows by "
        f"{p['peak_growth_bytes'] / 2**20:.1f} MiB\n"
    )
    bench.say("Bytes of a session's state over the context that the model is made for")
    bench.table(
        ["context", *figures["state"]],
        [[n, *(f"{s[n]:,}" if s[n] else "" for s in figures["state"].values())] for n in CONTEXTS],
    )


def memory(bench):
    """One training step on a single sequence of 65,536 tokens, activations kept or computed again."""
    length, figures = 65536, {}
    if bench.options.quick:
        length //= 8
    for name in ("kept", "recompute"):
        bench.note(f"training on {length} tokens, {name}")
        c = Contestant(bench.program("bench_train", additive(length), 1, length, name), bench.threads)
        c.bout(1)
        figures[name] = {**c.facts, "seconds": c.median(), **c.close()}
    bench.keep("memory", {"length": length, **figures})
    bench.say(f"Training on one sequence of {length:,} tokens (additive, d 128, 6 layers, V 8192)")
    bench.table(
        ["activations", "peak memory, MiB", "tokens/s"],
        [[name, f"{f['peak_bytes'] / 2**20:,.0f}", f"{length / f['seconds']:,.0f}"] for name, f in figures.items()],
    )


def sources(path):
    """This repository's own text, as make demo takes it."""
    names = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in ("build", ".git")]
        names += [os.path.join(folder, f) for f in files if f.endswith((".md", ".h", ".c"))]
    with open(path, "wb") as out:
        for name in sorted(names):
            with open(name, "rb") as file:
                out.write(file.read())


def weights(bench):
    """Bits per byte of held-out text for each type of weights, after a short training."""
    with tempfile.TemporaryDirectory() as folder:
        train, valid, model = (os.path.join(folder, name) for name in ("train", "valid", "model"))
        text = bench.options.text or os.path.join(folder, "text")
        if not bench.options.text:
            sources(text)
        with open(text, "rb") as file:
            lines = file.read(4 << 20).splitlines(keepends=True)
        for name, part in ((train, lines[: -len(lines) // 10]), (valid, lines[-len(lines) // 10 :])):
            with open(name, "wb") as file:
                file.writelines(part)
        options = {
            "sequence_length": 512,
            "batch_size": 8,
            "max_steps": 40 if bench.options.quick else 600,  # the first 250 learn the letters' frequencies only
            "learning_rate": 5e-4,
        }
        bench.note("a short training")
        run(
            bench.program("train_curve", train, additive(512, 259), json.dumps(options), 1, valid, model), bench.threads
        )
        figures = run(bench.program("bench_loss", model, valid, 512), bench.threads)
    bench.keep("weights", {"options": options, "text": bench.options.text or "sources", "losses": figures})
    bench.say(f"Held-out bits per byte after {options['max_steps']} steps, over the type of the weights")
    bench.table(
        ["weights", "bits per byte"], [[f["weights"], f"{f['bits_per_byte']:.4f}"] for f in figures if "weights" in f]
    )


# --- against PyTorch ------------------------------------------------------------------------


def duel(bench, part, ours, searches, steps, rounds):
    """Contestants by name, in turns. `ours`: name: (command, threads); of each search its champions enter. Those that
    cannot take part are left out. Figures by name, and the variants."""
    field, chosen = {}, {}
    try:
        for name, (command, threads) in ours.items():
            field[name] = Contestant(command, threads, log=bench.log)
        for search in searches:
            for name, trial in search.champions().items():
                field[name], chosen[name] = search.open(trial), search.describe(trial)
        able = {name: c for name, c in field.items() if c.able}
        bench.note(f"{part}: turns of {', '.join(able)}")
        take_turns(list(able.values()), 1, 1)
        for c in able.values():
            c.times.clear()
        take_turns(list(able.values()), steps, rounds)
        figures = {name: {"facts": c.facts, "seconds": c.median(), "times": list(c.times)} for name, c in able.items()}
    finally:
        for c in field.values():
            c.close()
    for name, variant in chosen.items():
        figures[name]["variant"] = variant
    bench.keep(part, {"contestants": figures, "searches": {search.name: search.trials for search in searches}})
    return figures


def training(bench):
    ours = {
        name: (bench.program("bench_train", config(CONTEXT), 2, CONTEXT), bench.threads)
        for name, config in {**MODELS, "rotary SwiGLU": rotary}.items()
    }
    searches = [] if bench.options.ours else [variants.training_additive(bench), variants.training_additive2(bench), variants.training_gpt2(bench), variants.training_rotary(bench)]
    figures = duel(bench, "training", ours, searches, 4, 3)
    base = figures["additive"]["seconds"]
    bench.say(
        f"Training, 2 x {CONTEXT} tokens a step, d 128, 4 heads, 6 layers, V {VOCAB}, fp32, AdamW; "
        f"{bench.threads} threads"
    )
    bench.table(
        ["", "tokens/s", "time over additive", "products, of their ceiling", "fastest variant"],
        [
            [
                name,
                f"{2 * CONTEXT / f['seconds']:,.0f}",
                f"{f['seconds'] / base:.2f}",
                share_of_products(bench, f["facts"], f["seconds"]) if name in ours else "",
                f.get("variant", ""),
            ]
            for name, f in figures.items()
        ],
    )


def decoding(bench):
    ours = {f"additive {t}": (bench.program("bench_serve", "decode", additive(CONTEXT), t, CONTEXT), 1) for t in TYPES}
    ours[f"additive fp32, {bench.threads} threads"] = (ours["additive fp32"][0], bench.threads)
    ours |= {f"additive2 {t}": (bench.program("bench_serve", "decode", additive2(CONTEXT), t, CONTEXT), 1) for t in ("fp32", "int8")}
    ours |= {f"trilinear {t}": (bench.program("bench_serve", "decode", trilinear(CONTEXT), t, CONTEXT), 1) for t in ("fp32", "int8")}
    ours["gpt2 fp32"] = (bench.program("bench_serve", "decode", gpt2(2 * CONTEXT), "fp32", CONTEXT), 1)
    figures = duel(bench, "decoding", ours, [] if bench.options.ours else [variants.decoding_gpt2(bench)], 128, 5)
    base = figures["additive fp32"]["seconds"]
    bench.say(f"Decoding one sequence at context {CONTEXT}, d 128, 4 heads, 6 layers, V {VOCAB}; one thread of ours")
    bench.table(
        ["", "ms/token", "time over additive fp32", "bytes of weights", "of state", "fastest variant"],
        [
            [
                name,
                f"{f['seconds'] * 1e3:.3f}",
                f"{f['seconds'] / base:.2f}",
                *(f"{f['facts'][key]:,}" if key in f["facts"] else "" for key in ("weight_bytes", "state_bytes")),
                f.get("variant", ""),
            ]
            for name, f in figures.items()
        ],
    )


PARTS = {f.__name__: f for f in (ops, lengths, serving, memory, weights, training, decoding)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bench", help="folder of the measuring programs")
    parser.add_argument("--out", default="build/bench", help="folder for results")
    parser.add_argument("--quick", action="store_true", help="fewer variants and steps: a few minutes")
    parser.add_argument("--ours", action="store_true", help="our programs alone, without PyTorch and without plots")
    parser.add_argument(
        "--text", help="what to train on for the comparison of weights; default: this repository's sources"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated, of: " + ", ".join(PARTS))
    options = parser.parse_args()
    options.bin, options.out = os.path.abspath(options.bin), os.path.abspath(options.out)
    os.makedirs(options.out, exist_ok=True)
    bench = Bench(options)
    describe(bench)
    failed = False
    for part in options.parts.split(","):
        bench.note(part)
        try:
            PARTS[part](bench)
        except Failure as failure:
            failed = True
            bench.say(f"{part}: {failure}\n")
    if not options.ours:
        import plots

        plots.draw(bench.results, options.out)
    with open(os.path.join(options.out, "table.md"), "w") as file:
        file.write("\n".join(bench.lines) + "\n")
    bench.note("done")
    sys.exit(failed)


if __name__ == "__main__":
    main()
