#!/usr/bin/env python3
"""make bench-gpu: the ceilings of this GPU, the engine's share of them, and the speed of PyTorch.

    bench_gpu.py --kit build/gpu-kit --out build/bench-gpu [--part device,rounds,…] [--item TEXT] [--budget SECONDS] [--quick] [--table FILE]

The work is cut into parts, and parts into items of a minute or so. The result of an item is stored in OUT/PART.json at
once. A stored item is not measured again (except with --again), and no item begins that would exceed the budget; the
next call with the same OUT continues. The tables are built from everything in OUT (gpu_report.py), with targets and
misses. They go to standard output and, with --table, to that file below its mark. --list prints the items and their
approximate times; --report measures nothing.

    device     ceilings: copies, products, nodes, launches; rounds and ops beside them       (no PyTorch)
    choices    the product library's best guess beside its next ones; packed products with
               and without wgmma                                                             (no PyTorch)
    prefill    prompts of 2,048, 32,768 and 131,072 tokens, 64 of 512 at once, and prompts beside streams; GPT-2
    decoding   one session, 256 and 4096 of them, 10,000 that live; latency by position, and beside training; drawing tokens
    models     1 to 1,024 sessions, greedy and drawn; int8; other architectures; 355 million
               and 1.3 billion parameters                                                    (no PyTorch)
    loading    random weights, and a model's folder until it can serve: d 2048 in each type     (no PyTorch)
    http       256 streams through the service beside the engine alone; prompts of 512 tokens
               of a vocabulary of 32,768                                                     (no PyTorch)
    training   whole steps at d 128, 768 and 2048 beside the same model in PyTorch, eager and compiled
    gpt2       whole steps at d 768 beside GPT-2, compiled, at 2048, 8192 and 32768 tokens
    rounds     one round, forward and backward, beside the fastest of PyTorch

Contestants take turns, two or a few at a time (contest.py). A peer that disagrees with the plain definition is refused, one that runs out
of memory tries half the batch. --quick: tiny sizes, to try the harness itself; without a GPU PyTorch takes the CPU, and
ADDITIVE_PLUGIN_DIR has to name the emulated device (build/emulator).
"""

import argparse
import concurrent.futures
import datetime
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import gpu_report
import http_load
from contest import Contestant, Failure, run, take_turns

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))
import kit as gpu_kit  # noqa: E402

PEERS = HERE / "peers.py"
VOCAB = 32768
# width, layers, heads, batch, length of a training step
SIZES = {"d128": (128, 6, 4, 32, 2048), "d768": (768, 12, 12, 16, 2048), "d2048": (2048, 24, 32, 4, 2048)}
TINY = (64, 2, 2, 1, 128)


def additive(width, layers, heads, positions, vocab=VOCAB):
    """Windows 4, 8, 16, …, capped at 256 so that a session's state stays small, and a global layer."""
    windows = [min(4 * 2**layer, 256, positions) for layer in range(layers - 1)] + [positions]
    return json.dumps({"hidden_size": width, "vocab_size": vocab, "n_heads": heads, "n_positions": positions,
                       "n_layer": layers, "window_sizes": windows, "hidden_dropout_prob": 0})


def additive2(width, layers, _, positions, vocab=VOCAB):
    """The model that a job without options trains, in this size."""
    heads = width // 8
    return json.dumps({"model_type": "additive2", "hidden_size": width, "vocab_size": vocab, "n_heads": heads, "n_layer": layers,
                       "intermediate_size": (9 * width - 2 * heads) // 48 * 16, "dropout": 0})


class Bench:
    def __init__(self, options):
        self.options, self.began = options, time.time()
        self.quick = options.quick
        self.gpu = shutil.which("nvidia-smi") is not None
        self.torch = importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
        self.log = str(options.out / "bench.log")
        toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        libraries = f"{options.kit / 'lib'}:{toolkit}/lib64:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self.ours = {"ADDITIVE_BENCH_BACKEND": "cuda", "LD_LIBRARY_PATH": libraries, "ADDITIVE_BENCH_CHOICES": str(options.out / "products"),
                     **{name: os.environ.get(name, "1") for name in ("ADDITIVE_CUDA_WGMMA", "ADDITIVE_CUDA_WGMMA_ATTENTION")},
                     "ADDITIVE_PLUGIN_DIR": os.environ.get("ADDITIVE_PLUGIN_DIR", str(options.kit / "bin"))}

    def note(self, text):
        print(f"[{time.time() - self.began:4.0f} s] {text}", file=sys.stderr, flush=True)

    # --- what was measured ---

    def file(self, part):
        return self.options.out / f"{part}.json"

    def done(self, part):
        return json.loads(self.file(part).read_text()) if self.file(part).exists() else {}

    def keep(self, part, item, result):
        found = {**self.done(part), item: result}
        self.file(part).with_suffix(".new").write_text(json.dumps(found, indent=1) + "\n")
        self.file(part).with_suffix(".new").replace(self.file(part))

    # --- programs ---

    def program(self, name, *arguments):
        return [str(self.options.kit / "bench" / name), *map(str, arguments)]

    def lines(self, name, *arguments, **environment):
        return run(self.program(name, *arguments), 8, {**self.ours, **environment})

    def our(self, name, *arguments, **environment):
        return lambda: Contestant(self.program(name, *arguments), 8, {**self.ours, **environment}, self.log)

    def peer(self, kind, **options):
        options = {"device": "cuda" if self.gpu else "cpu", "threads": 8, "bf16": True, "vocab": VOCAB, **options}

        def start():
            if not self.torch:
                raise Failure("PyTorch and transformers are not here")
            while True:
                contestant = Contestant([sys.executable, str(PEERS), kind, json.dumps(options)], 8, None, self.log)
                if contestant.facts.get("refused") != "memory" or options.get("batch", 1) < 2:
                    return contestant
                contestant.close()
                options["batch"] //= 2

        return start

    def contest(self, what, makers, steps, rounds):
        """{name: times or the reason why there are none}; contestants start side by side, then take turns."""
        found, able = {}, {}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            waiting = {name: pool.submit(make) for name, make in makers.items()}
        for name, future in waiting.items():
            try:
                contestant = future.result()
            except Failure as failure:
                found[name] = {"failed": str(failure)[-200:]}
                continue
            if contestant.able:
                able[name] = contestant
            else:
                found[name] = contestant.facts
                contestant.close()
        self.note(f"{what}: {', '.join(able) or 'none'}")
        try:
            for contestant in able.values():
                contestant.bout(max(3, steps // 4))  # warm
                contestant.times.clear()
            take_turns(list(able.values()), steps, rounds)
        except (Failure, OSError) as failure:
            self.note(f"{what}: {failure}")
        for name, contestant in able.items():
            times, rest = list(contestant.times), contestant.close()
            if times:
                found[name] = {"median_s": statistics.median(times), "p95_s": sorted(times)[len(times) * 95 // 100],
                               "times": len(times), **contestant.facts, **rest}
            else:
                found[name] = {"failed": "no times"}
        return found


# --- parts: {item: (seconds it takes, about; function)} ---------------------------------------------


def device(bench):
    quick = ["quick"] if bench.quick else []
    items = {part: (seconds, lambda part=part: bench.lines("bench_device", *quick, part))
             for part, seconds in (("ceilings", 40), ("rounds", 60), ("ops", 60))}
    if bench.gpu:
        items["launches"] = (10, lambda: bench.lines("bench_launch", *quick))
    return items


def choices(bench):
    quick = ["quick"] if bench.quick else []
    return {"products": (60, lambda: bench.lines("bench_device", *quick, "choices")),
            **{f"panels, {name}": (15, lambda use=use: bench.lines("bench_device", *quick, "panels", **use))
               for name, use in (("wgmma", {"ADDITIVE_CUDA_WGMMA": "1"}),
                                 ("no pairs", {"ADDITIVE_CUDA_WGMMA": "1", "ADDITIVE_CUDA_CLUSTERS": "0"}),
                                 ("mma.sync", {"ADDITIVE_CUDA_WGMMA": "0"}))}}


ROUND = dict(batch=8, length=16384, width=1024, heads=16)  # 268 MB in bf16
WINDOWS = (0, 16, 64, 256, 1024)


def rounds(bench):
    shape = dict(batch=1, length=256, width=128, heads=2) if bench.quick else ROUND
    modes = [""] if bench.quick else ["", "default"]

    def measure(window):
        names = ["doubling", "difference", "banded"] if window else ["chunked", "logspace", "doubling"]
        names += ["flex"] + ([] if window else ["sdpa"]) if bench.gpu else []
        makers = {f"{mode or 'eager'} {name}": bench.peer("round", rounds=name, window=window, compile=mode, **shape)
                  for name in names for mode in modes if not (name == "flex" and not mode)}  # eager it is no fused kernel
        return bench.contest(f"a round, window {window}", makers, 10, 3)

    return {f"window {w}": (90, lambda w=w: measure(w)) for w in WINDOWS}


def pair(bench, what, ours, name, peer):
    """Two at a time, since the largest models of five contestants do not fit beside each other."""
    return bench.contest(f"{what} beside {name}", {"ours": ours, name: peer}, 2 if bench.quick else 8, 3)


def training(bench):
    def measure(size, mode):
        width, layers, heads, batch, length = TINY if bench.quick else SIZES[size]
        vocab = 512 if bench.quick else VOCAB
        shape = dict(width=width, layers=layers, heads=heads, batch=batch, length=length, vocab=vocab)
        ours = bench.our("bench_train", additive(width, layers, heads, length, vocab), batch, length, "bf16")
        peer = bench.peer("train-additive", rounds="doubling", most_window=256,
                          compile="default" if mode == "compiled" else "", **shape)
        return {"shape": shape, **pair(bench, size, ours, mode, peer)}

    if bench.quick:
        return {"tiny eager": (30, lambda: measure("tiny", "eager"))}
    seconds = {"d128": (40, 80), "d768": (50, 120), "d2048": (80, 240)}
    return {f"{size} {mode}": (seconds[size][mode == "compiled"], lambda size=size, mode=mode: measure(size, mode))
            for size in SIZES for mode in ("eager", "compiled")}


def gpt2(bench):
    width, layers, heads, _, _ = TINY if bench.quick else SIZES["d768"]
    vocab = 512 if bench.quick else VOCAB

    def measure(length, batch):
        shape = dict(width=width, layers=layers, heads=heads, batch=batch, length=length, vocab=vocab)
        ours = bench.our("bench_train", additive(width, layers, heads, length, vocab), batch, length, "bf16")
        peer = bench.peer("train-gpt2", compile="" if bench.quick else "default", **shape)
        return {"shape": shape, **pair(bench, f"{length} tokens", ours, "gpt2", peer)}

    lengths = ((128, 1),) if bench.quick else ((2048, 16), (8192, 4), (32768, 1))
    return {f"{n} tokens": (90, lambda n=n, b=b: measure(n, b)) for n, b in lengths}


def prefill(bench):
    """One prompt of each length, many at once, and one after another beside streams. GPT-2 reads a prompt of 8,192 tokens whole."""
    quick = bench.quick
    sizes = {"tiny": TINY[:3]} if quick else {s: SIZES[s][:3] for s in ("d128", "d768")}
    vocab = 512 if quick else VOCAB
    lengths, read_whole, many, each = ((64, 300), 64, 3, 32) if quick else ((2048, 32768, 131072), 8192, 64, 512)
    streams = (1, 3) if quick else (1, 64)

    def measure(kind, size):
        config = (additive2 if kind == "additive2" else additive)(*sizes[size], max(lengths), vocab)
        return {"prompts": [bench.lines("bench_serve", "prefill", config, "bf16", n)[-1] for n in lengths],
                "many": bench.lines("bench_serve", "prompts", config, "bf16", many, each, 3)[-1],
                "beside": [bench.lines("bench_serve", "beside", config, "bf16", n, lengths[1])[-1] for n in streams]}

    def peer(size):
        width, layers, heads = sizes[size]
        shape = dict(width=width, layers=layers, heads=heads, length=read_whole, vocab=vocab)
        return {"tokens": read_whole, **bench.contest(f"prefill, {size}", {"gpt2": bench.peer("prefill-gpt2", **shape)}, 4, 3)}

    items = {f"{kind}, {size}": (60, lambda kind=kind, size=size: measure(kind, size)) for size in sizes for kind in ("additive2", "additive")}
    return {**items, **{f"GPT-2, {size}": (60, lambda size=size: peer(size)) for size in sizes}}


def decoding(bench):
    quick = bench.quick
    sizes = {"tiny": (*TINY[:3], 128)} if quick else {s: (*SIZES[s][:3], 2048) for s in ("d768", "d2048")}
    vocab = 512 if quick else VOCAB
    width, layers, heads, context = next(iter(sizes.values()))
    config = additive(width, layers, heads, context, vocab)
    many, crowd, live = (4, 8, 16) if quick else (256, 4096, 10000)

    def peer(size, batch):
        width, layers, heads, context = sizes[size]
        return bench.peer("decode-gpt2", batch=batch, cache="static", compile="" if quick else "reduce-overhead",
                          width=width, layers=layers, heads=heads, length=context, vocab=vocab)

    def alone(size, model=additive, **peers):
        """Kernel by kernel, the same with weights ahead, and a step as one launch (cuda/program.cuh)."""
        forms = {"ours": {}, "ahead": {"ADDITIVE_CUDA_AHEAD": "1"}, "program": {"ADDITIVE_CUDA_PERSISTENT": "1"}}
        makers = {name: bench.our("bench_serve", "decode", model(*sizes[size], vocab), "bf16", context, **form)
                  for name, form in forms.items()}
        return bench.contest(f"decoding, {size}", {**makers, **peers}, 64, 3)

    def together():
        line = bench.lines("bench_serve", "batch", config, "bf16", context, many)[-1]
        return {"ours": line, **bench.contest(f"decoding, batch {many}", {"gpt2": peer(next(iter(sizes)), many)}, 64, 3)}

    def lives():
        small = TINY[:3] if quick else SIZES["d128"][:3]
        return bench.lines("bench_serve", "batch", additive(*small, context, vocab), "bf16", 64, live, min(live, crowd))[-1]

    def beside():
        """Decoding beside training, whose products leave some processors free, with all of them, and with 24 kept from training."""
        batch, length, tokens = (1, 32, 4) if quick else (16, 2048, 1000)
        trained = additive(width, layers, heads, length, vocab)
        arguments = ("bench_beside", config, "bf16", context // 2, trained, batch, length, tokens)
        return {"some free": bench.lines(*arguments)[-1],
                "all taken": bench.lines(*arguments, ADDITIVE_CUDA_BACKGROUND_PROCESSORS="100000")[-1],
                "of its own": bench.lines(*arguments, ADDITIVE_CUDA_SERVING_PROCESSORS="24")[-1]}

    items = {f"one session, {size}": (60, lambda size=size: alone(size, gpt2=peer(size, 1))) for size in sizes}
    items |= {f"one session, additive2, {size}": (60, lambda size=size: alone(size, additive2)) for size in sizes}
    near, far = (100, 200) if quick else (1000, 32000)
    items["latency by position"] = (60, lambda: bench.lines("bench_serve", "flat", config, "bf16", near, far))
    items["decode beside training"] = (90, beside)
    items["many sessions"] = (90, together)
    items["a crowd"] = (40, lambda: bench.lines("bench_serve", "batch", config, "bf16", 64, crowd)[-1])
    items["live sessions"] = (60, lives)
    return items


def others(width, layers, heads, positions, vocab):
    """Models of other architectures, by name."""
    plain = {"hidden_size": width, "vocab_size": vocab, "n_heads": heads, "n_positions": positions, "n_layer": layers}
    segments = [positions // 8, positions // 2, positions]
    found = {"gpt2": {"n_embd": width, "vocab_size": vocab, "n_head": heads, "n_positions": positions, "n_layer": layers},
             "linear": {**plain, "position_embedding": "learned"},
             "dilated": {**plain, "position_embedding": "learned", "segment_length": segments, "dilated_ratio": [1, 2, 4]},
             "trilinear": {"profile": "seed", "hidden_size": width, "vocab_size": vocab, "n_positions": positions, "n_layer": 2 * layers,
                           "key_size": 64, "value_size": 64, "wide_window_size": positions}}
    return {name: json.dumps({"model_type": name, **config}) for name, config in found.items()}


def models(bench):
    quick = bench.quick
    shape, vocab = (TINY[:3], 512) if quick else (SIZES["d768"][:3], VOCAB)
    counts, many, context, length = ((1, 4), 4, 128, 64) if quick else ((1, 8, 64, 256, 1024), 64, 1024, 2048)
    large = {"tiny": TINY[:3]} if quick else {"355M": (1024, 24, 16), "1.3B": SIZES["d2048"][:3]}

    def batch(config, count, dtype="bf16"):
        return bench.lines("bench_serve", "batch", config, dtype, 64, count)[-1]

    def both(config, count, tokens):
        return {"prompt": bench.lines("bench_serve", "prefill", config, "bf16", tokens)[-1], "batch": batch(config, count)}

    kinds = {"additive2": additive2(*shape, 2048, vocab), "additive": additive(*shape, 2048, vocab)}
    items = {f"sessions, {name}": (90, lambda config=config: [batch(config, n) for n in counts]) for name, config in kinds.items()}
    items |= {f"int8, {name}": (20, lambda config=config: [batch(config, many, "int8")]) for name, config in kinds.items()}
    items |= {f"{name}, d{shape[0]}": (40, lambda config=config: both(config, many, min(length, context)))
              for name, config in others(*shape, context, vocab).items()}
    items |= {f"additive2, {name}": (90, lambda size=size: both(additive2(*size, 8192, vocab), many, 4 * length)) for name, size in large.items()}
    return items


def loading(bench):
    """Random weights, and a model's folder from the page cache to recorded plans."""
    size, vocab = ("tiny", 512) if bench.quick else ("d2048", VOCAB)
    config = additive2(*(TINY[:3] if bench.quick else SIZES[size][:3]), 2048, vocab)
    return {f"{size}, {t}": (60, lambda t=t: bench.lines("bench_serve", "load", config, t)[-1]) for t in ("fp32", "bf16", "int8")}


def http(bench):
    shape = TINY[:3] if bench.quick else SIZES["d768"][:3]
    context, streams = (128, 4) if bench.quick else (2048, 256)

    def measure(vocab, prompt):
        """vocab 0: the model reads bytes. prompt: tokens."""
        config = json.loads(additive(*shape, context, vocab or 259))
        alone = bench.lines("bench_serve", "batch", json.dumps(config), "bf16", 64, streams)[-1]
        return {"engine": alone, "service": http_load.measure(bench.options.kit / "bin", bench.options.kit / "bench" / "bench_http", config, vocab, prompt,
                                                              streams, 5 if bench.quick else 20, bench.ours, bench.log)}

    vocab, prompt = (512, 32) if bench.quick else (VOCAB, 512)
    return {f"{streams} streams": (90, lambda: measure(0, 8)),
            f"{streams} streams, prompts of {prompt} tokens, vocabulary {vocab:,}": (120, lambda: measure(vocab, prompt))}


PARTS = {f.__name__: f for f in (device, choices, prefill, decoding, models, loading, http, training, gpt2, rounds)}


def card():
    asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
                            "--format=csv,noheader"], capture_output=True, text=True)
    return asked.stdout.strip()


def measure(bench, parts):
    """Items that were left out for lack of time."""
    left = []
    for part in parts:
        for item, (seconds, function) in PARTS[part](bench).items():
            if bench.options.item not in item or item in bench.done(part) and not bench.options.again:
                continue
            if time.time() - bench.began + seconds > bench.options.budget:
                left.append(f"{part}: {item}")
                continue
            began = time.time()
            try:
                result = function()
            except (Failure, KeyError, IndexError, OSError) as failure:
                bench.note(f"{part}, {item}: failed: {failure}")
                continue
            bench.keep(part, item, {"measured": result, "date": datetime.date.today().isoformat(), "device": card() if bench.gpu else
                                    "no GPU: the emulated device, sizes to try the harness with",
                                    "command": " ".join(sys.argv), "took_s": round(time.time() - began, 1)})
            bench.note(f"{part}, {item}: done in {time.time() - began:.0f} s")
    return left


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", type=pathlib.Path, default="build/gpu-kit")
    parser.add_argument("--out", type=pathlib.Path, default="build/bench-gpu")
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--part", "--parts", default=",".join(PARTS))
    parser.add_argument("--item", default="", metavar="TEXT", help="of the parts, items with this in their name alone")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", action="store_true", help="only make the tables")
    options = parser.parse_args()
    parts = options.part.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    options.kit = options.kit.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    if options.list:
        for part in parts:
            items = PARTS[part](bench)
            print(f"{part}: {sum(seconds for seconds, _ in items.values()) / 60:.1f} min: {', '.join(items)}")
        return
    if not options.report:
        gpu_kit.unpack(options.kit)
        if not bench.gpu and not options.quick:
            sys.exit("bench-gpu: there is no NVIDIA GPU here (nvidia-smi finds none)")
        for left in measure(bench, parts):
            bench.note(f"no time left for {left}: call again")
    gpu_report.write({part: bench.done(part) for part in PARTS}, options.table)


if __name__ == "__main__":
    main()
