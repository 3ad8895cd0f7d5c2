#!/usr/bin/env python3
"""make bench-gpu: what this GPU can do at most, how near the engine comes to it, and how fast PyTorch is beside it.

    bench_gpu.py --kit build/gpu-kit --out build/bench-gpu [--quick] [--parts device,rounds,training,decoding] [--table FILE]

One run of a few minutes. The ceilings come first (copies, products, the cost of a node of a graph), then the ops beside
them; then the contests, whose contestants take turns (contest.py): one round of attention and whole training steps
against PyTorch's fastest forms, eager and compiled, and against GPT-2 with its fastest attention and fused AdamW; decoding
against GPT-2 with a static cache in CUDA graphs. A peer that disagrees with the plain definition is refused. What a part
measured is in OUT/PART.json; the table goes to standard output and, with --table, into that file, misses included.

--quick: tiny sizes, to try the harness itself; without a GPU PyTorch takes the CPU, and ADDITIVE_PLUGIN_DIR has to name the
emulated device (build/emulator).
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from contest import Contestant, Failure, run, take_turns

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))
import kit as gpu_kit  # noqa: E402

PEERS = HERE / "peers.py"
VOCAB = 32768
MARK = "<!-- measured: written by make bench-gpu -->"
# width, layers, heads, batch, length of a training step
SIZES = [(128, 6, 4, 32, 2048), (768, 12, 12, 8, 2048), (2048, 24, 32, 4, 2048)]


def additive(width, layers, heads, positions, vocab=VOCAB):
    """Windows 4, 8, 16, …, capped at 256 so that a session's state stays small, and a global layer."""
    windows = [min(4 * 2**layer, 256, positions) for layer in range(layers - 1)] + [positions]
    return json.dumps({"hidden_size": width, "vocab_size": vocab, "n_heads": heads, "n_positions": positions,
                       "n_layer": layers, "window_sizes": windows, "hidden_dropout_prob": 0})


class Bench:
    def __init__(self, options):
        self.options, self.lines, self.began = options, [], time.time()
        self.gpu = shutil.which("nvidia-smi") is not None
        self.log = str(options.out / "bench.log")
        toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        libraries = f"{options.kit / 'lib'}:{toolkit}/lib64:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self.ours = {"ADDITIVE_BENCH_BACKEND": "cuda", "LD_LIBRARY_PATH": libraries,
                     "ADDITIVE_PLUGIN_DIR": os.environ.get("ADDITIVE_PLUGIN_DIR", str(options.kit / "bin"))}

    def note(self, text):
        print(f"[{time.time() - self.began:4.0f} s] {text}", file=sys.stderr, flush=True)

    def say(self, text=""):
        print(text, flush=True)
        self.lines.append(text)

    def table(self, header, rows):
        for row in [header, ["---"] * len(header), *rows]:
            self.say("| " + " | ".join(str(c) for c in row) + " |")
        self.say()

    def keep(self, part, figures):
        (self.options.out / f"{part}.json").write_text(json.dumps(figures, indent=1) + "\n")

    def program(self, name, *arguments):
        return [str(self.options.kit / "bench" / name), *map(str, arguments)]

    def our(self, name, *arguments):
        return lambda: Contestant(self.program(name, *arguments), 8, self.ours, self.log)

    def peer(self, kind, **options):
        options = {"device": "cuda" if self.gpu else "cpu", "threads": 8, "bf16": True, "vocab": VOCAB, **options}
        return lambda: Contestant([sys.executable, str(PEERS), kind, json.dumps(options)], 8, None, self.log)

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
        self.note(f"{what}: {', '.join(able) or 'nobody'}")
        try:
            for contestant in able.values():
                contestant.bout(max(3, steps // 4))  # warm
                contestant.times.clear()
            take_turns(list(able.values()), steps, rounds)
        except (Failure, OSError) as failure:
            self.note(f"{what}: {failure}")
        for name, contestant in able.items():
            rest = contestant.close()
            times = contestant.times
            if times:
                found[name] = {"median_s": statistics.median(times), "p95_s": sorted(times)[len(times) * 95 // 100],
                               "times": len(times), **contestant.facts, **rest}
        return found


def milliseconds(figure):
    return f"{figure['median_s'] * 1e3:.3f}" if "median_s" in figure else "refused" if "refused" in figure else "failed"


def best_of(found, prefix):
    able = {name: f for name, f in found.items() if name.startswith(prefix) and "median_s" in f}
    return min(able.items(), key=lambda item: item[1]["median_s"], default=(None, None))


# --- parts -------------------------------------------------------------------------------------


def nearest_copy(ceilings, bytes_moved):
    """Bytes per second of the copy whose size is nearest."""
    copies = [c for c in ceilings if c.get("ceiling") == "copy"]
    best = min(copies, key=lambda c: abs(c["bytes"] - bytes_moved))
    return best["bytes"] / best["median_ns"] * 1e9


def device(bench):
    lines = run(bench.program("bench_device", *(["quick"] if bench.options.quick else [])), 8, bench.ours)
    bench.keep("device", lines)
    products = [x for x in lines if x.get("op") == "product"]
    rate = max((p["flops"] / p["median_ns"] * 1e9 for p in products), default=1)
    bench.say("### Ceilings\n")
    bench.table(["what", "median", "rate"],
                [[f"copy {c['megabytes']} MB", f"{c['median_ns'] / 1e3:.1f} µs", f"{c['bytes'] / c['median_ns']:.0f} GB/s"]
                 for c in lines if c.get("ceiling") == "copy"]
                + [[f"bf16 product {p['case']}", f"{p['median_ns'] / 1e3:.1f} µs", f"{p['flops'] / p['median_ns'] / 1e3:.0f} TFLOP/s"]
                   for p in products]
                + [["a node of a recorded plan", f"{n['median_ns'] / 256 / 1e3:.2f} µs", ""] for n in lines if n.get("op") == "node"])
    bench.say("### Ops, of the ceiling of their bytes or products\n")
    rows = []
    for op in lines:
        if "op" not in op or op["op"] in ("product", "node"):
            continue
        floor = op["flops"] / rate * 1e9 if op["flops"] else op["bytes"] / nearest_copy(lines, op["bytes"]) * 1e9
        rows.append([op["op"], op["case"], "cold" if op["cold"] else "warm", f"{op['median_ns'] / 1e3:.1f}",
                     f"{op['p95_ns'] / 1e3:.1f}", f"{floor / op['median_ns']:.0%}"])
    bench.table(["op", "case", "buffers", "median µs", "p95 µs", "of the ceiling"], rows)


def rounds(bench):
    shape = dict(batch=1, length=256, width=128, heads=2) if bench.options.quick else dict(batch=8, length=8192, width=1024, heads=16)
    lines = json.loads((bench.options.out / "device.json").read_text())
    results, rows = {}, []
    for window in (0, 64):
        names = ["chunked", "doubling", "difference"] + (["flex", "sdpa"] if bench.gpu else [])
        makers = {f"{mode or 'eager'} {name}": bench.peer("round", rounds=name, window=window, compile=mode, **shape)
                  for name in names for mode in ([""] if bench.options.quick else ["", "default"])}
        found = results[str(window)] = bench.contest(f"a round, window {window}", makers, 10, 3)
        case = f"B {shape['batch']}, N {shape['length']}, D {shape['width']}, H {shape['heads']}, window {window}"
        ours = sum(x["median_ns"] for x in lines if x.get("case") == case and x["cold"]) * 1e-9
        for kind in ("eager", "default"):
            name, figure = best_of(found, kind)
            if name:
                rows.append([case, name, f"{ours * 1e3:.3f}", milliseconds(figure), f"{figure['median_s'] / ours:.1f} ×"])
    bench.keep("rounds", results)
    bench.say("### One round, forward and backward, against the best PyTorch\n")
    bench.table(["case", "peer", "ours ms", "peer ms", "ratio"], rows)


def training(bench):
    results, rows = {}, []
    for width, layers, heads, batch, length in [(64, 2, 2, 1, 128)] if bench.options.quick else SIZES:
        vocab = 512 if bench.options.quick else VOCAB
        shape = dict(width=width, layers=layers, heads=heads, batch=batch, length=length, vocab=vocab)
        makers = {"ours": bench.our("bench_train", additive(width, layers, heads, length, vocab), batch, length, "bf16"),
                  "eager additive": bench.peer("train-additive", rounds="doubling", **shape),
                  "eager gpt2": bench.peer("train-gpt2", **shape)}
        if not bench.options.quick:
            makers["compiled additive"] = bench.peer("train-additive", rounds="doubling", compile="default", **shape)
            makers["compiled gpt2"] = bench.peer("train-gpt2", compile="default", **shape)
        found = results[f"d{width}"] = bench.contest(f"training, d {width}", makers, 2 if bench.options.quick else 8, 3)
        ours = found["ours"].get("median_s")
        for name, figure in found.items():
            rate = f"{batch * length / figure['median_s']:,.0f}" if "median_s" in figure else "-"
            ratio = f"{figure['median_s'] / ours:.2f} ×" if ours and "median_s" in figure and name != "ours" else ""
            rows.append([f"d {width}, L {layers}, {batch} × {length}", name, milliseconds(figure), rate, ratio])
    bench.keep("training", results)
    bench.say("### Training steps in bf16\n")
    bench.table(["model", "who", "ms per step", "tokens/s", "peer / ours"], rows)


def decoding(bench):
    results, rows = {}, []
    width, layers, heads, context = (64, 2, 2, 128) if bench.options.quick else (768, 12, 12, 2048)
    vocab = 512 if bench.options.quick else VOCAB
    shape = dict(width=width, layers=layers, heads=heads, length=context, vocab=vocab, cache="static")
    config = additive(width, layers, heads, context, vocab)
    for batch in (1, 4 if bench.options.quick else 256):
        mode = "" if bench.options.quick else "reduce-overhead"
        makers = {"gpt2": bench.peer("decode-gpt2", batch=batch, compile=mode, **shape)}
        if batch == 1:
            makers["ours"] = bench.our("bench_serve", "decode", config, "bf16", context)
        found = results[f"batch {batch}"] = bench.contest(f"decoding, batch {batch}", makers, 64, 3)
        if batch > 1:
            line = run(bench.program("bench_serve", "batch", config, "bf16", context, batch), 8, bench.ours)[-1]
            found["ours"] = {"median_s": batch / line["tokens_per_second"], **line}
        ours = found["ours"].get("median_s")
        for name, figure in found.items():
            rate = f"{batch / figure['median_s']:,.0f}" if "median_s" in figure else "-"
            ratio = f"{figure['median_s'] / ours:.1f} ×" if ours and "median_s" in figure and name != "ours" else ""
            rows.append([f"batch {batch}, context {context}", name, milliseconds(figure), rate, ratio])
    near, far = (100, 200) if bench.options.quick else (1000, 32000)
    results["flat"] = run(bench.program("bench_serve", "flat", config, "bf16", near, far), 8, bench.ours)
    bench.keep("decoding", results)
    bench.say("### Decoding in bf16, through the scheduler\n")
    bench.table(["case", "who", "ms per step", "tokens/s", "peer / ours"], rows)
    bench.say(f"Latency by position: `{json.dumps(results['flat'])}`\n")


PARTS = {f.__name__: f for f in (device, rounds, training, decoding)}


def describe(bench):
    card = "no GPU: the emulated device, sizes to try the harness with"
    if bench.gpu:
        card = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
                               "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    bench.say(f"{datetime.date.today().isoformat()}, {card}; `{' '.join(sys.argv)}`\n")


def write_table(bench):
    """Replace what is below the mark."""
    file = bench.options.table
    before = file.read_text().split(MARK)[0] if file.exists() else "# Benchmarks on a GPU\n\n"
    file.write_text(before + MARK + "\n\n" + "\n".join(bench.lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.kit = options.kit.resolve()
    gpu_kit.unpack(options.kit)
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    if not bench.gpu and not options.quick:
        sys.exit("bench-gpu: there is no NVIDIA GPU here (nvidia-smi finds none)")
    describe(bench)
    for part in options.parts.split(","):
        try:
            PARTS[part](bench)
        except (Failure, KeyError, OSError) as failure:
            bench.say(f"{part}: failed: {failure}\n")
        bench.note(f"{part} done")
    if options.table:
        write_table(bench)


if __name__ == "__main__":
    main()
