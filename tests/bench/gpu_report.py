"""The tables of bench_gpu.py: measurements, targets and predictions.

A line of the first table is a quantity with a target. Predictions are in predicted.json, by the line's name: the
results of arithmetic before any run. Targets and predictions are written down before a measurement, so that a miss
shows an error of reasoning.
"""

import json
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
MARK = "<!-- measured: written by make bench-gpu -->"
PREDICTED = HERE / "predicted.json"


def at_least(value, digits=2, unit=" ×"):
    return {"target": value, "least": True, "digits": digits, "unit": unit}


def at_most(value, digits=2, unit=" ×"):
    return {"target": value, "least": False, "digits": digits, "unit": unit}


def share(value):
    return at_least(value, 2, "")


NONE = {"target": None, "least": True, "digits": 2, "unit": ""}
COUNT = {**NONE, "digits": 0}
# Targets of models, by their line in the first table.
SESSIONS = {"sessions, additive, 256, greedy, tokens/s": 350000, "sessions, additive, 256, drawn, tokens/s": 315000}


class Report:
    def __init__(self, parts):
        self.parts, self.lines, self.wanted = parts, [], []
        self.predicted = json.loads(PREDICTED.read_text()) if PREDICTED.exists() else {}
        self.copies = [c for part in ("ceilings", "rounds") for c in self.of("device", part, []) if c.get("ceiling") == "copy"]
        products = [p["flops"] / p["median_ns"] * 1e9 for p in self.of("device", "ceilings", []) if p.get("op") == "product"]
        self.flops = max(products, default=None)  # per second
        self.bandwidth = max(self.copies, key=lambda c: c["bytes"], default=None)
        self.bandwidth = self.bandwidth and self.bandwidth["bytes"] / self.bandwidth["median_ns"] * 1e9  # bytes per second, read and written

    def of(self, part, item, otherwise=None):
        return self.parts.get(part, {}).get(item, {}).get("measured", otherwise)

    def items(self, part):
        return {item: found["measured"] for item, found in self.parts.get(part, {}).items()}

    def say(self, text=""):
        self.lines.append(text)

    def table(self, header, rows):
        if rows:
            for row in [header, ["---"] * len(header), *rows]:
                self.say("| " + " | ".join(str(c) for c in row) + " |")
            self.say()

    def want(self, name, value, wanted=NONE):
        """A line of the first table."""
        def shown(x):
            return "-" if x is None else f"{x:,.{wanted['digits']}f}{wanted['unit']}"

        target, verdict = wanted["target"], ""
        if target is not None and value is not None:
            met = value >= target if wanted["least"] else value <= target
            verdict = "met" if met else f"missed by {abs(value / target - 1):.0%}"
        bound = "" if target is None else ("≥ " if wanted["least"] else "≤ ") + shown(target)
        self.wanted.append([name, shown(value), bound, shown(self.predicted.get(name)), verdict])

    def copy_rate(self, bytes_moved):
        """Return the rate of the copy whose size is nearest."""
        best = min(self.copies, key=lambda c: abs(c["bytes"] - bytes_moved))
        return best["bytes"] / best["median_ns"] * 1e9


def seconds(figure):
    return figure.get("median_s") if figure else None


def over(a, b):
    return a / b if a and b else None


def best_of(found, prefix):
    """Return the fastest of a contest's entries whose names have this prefix: (name, seconds)."""
    able = [(f["median_s"], name) for name, f in found.items() if name.startswith(prefix) and "median_s" in f]
    return min(able)[::-1] if able else (None, None)


# --- parts ------------------------------------------------------------------------------------------


def device(r):
    lines = r.of("device", "ceilings", [])
    if r.copies:
        r.say("### Ceilings\n")
        r.table(["what", "median", "rate"],
                [[f"copy {c['megabytes']} MB", f"{c['median_ns'] / 1e3:.1f} µs", f"{c['bytes'] / c['median_ns']:.0f} GB/s"] for c in r.copies]
                + [[f"bf16 product {p['case']}", f"{p['median_ns'] / 1e3:.1f} µs", f"{p['flops'] / p['median_ns'] / 1e3:.0f} TFLOP/s"]
                   for p in lines if p.get("op") == "product"]
                + [["a node of a recorded plan", f"{n['median_ns'] / 256 / 1e3:.2f} µs", ""] for n in lines if n.get("op") == "node"])
    launches = r.of("device", "launches", [])
    if launches:
        r.say("### A kernel that does almost nothing, in a chain\n")
        r.table(["blocks", "issued", "begins", "µs per kernel", "p95", "µs of the host's"],
                [[x["blocks"], "graph" if x["recorded"] else "stream", "early" if x["early"] else "after the one before",
                  f"{x['median_ns'] / 1e3:.2f}", f"{x['p95_ns'] / 1e3:.2f}", f"{x['host_ns'] / 1e3:.2f}"] for x in launches])
        for early in (False, True):
            x = next((x for x in launches if x["recorded"] and x["early"] == early and x["writes"] and x["blocks"] > 1), None)
            r.want(f"a node of a graph, {'early' if early else 'plain'}, µs", x and x["median_ns"] / 1e3)
    rows = []
    for op in [x for part in ("rounds", "ops") for x in r.of("device", part, []) if "op" in x]:
        rate = (op["flops"] / op["median_ns"] * 1e9 / r.flops if op["flops"] and r.flops else
                op["bytes"] / op["median_ns"] * 1e9 / r.copy_rate(op["bytes"]) if r.copies else None)
        rows.append([op["op"], op["case"], "cold" if op["cold"] else "warm", f"{op['median_ns'] / 1e3:.1f}", f"{op['p95_ns'] / 1e3:.1f}",
                     f"{rate:.0%}" if rate else "-"])
        window = op["case"].split("window ")[-1] if "window" in op["case"] else None
        if window and "N 16384" in op["case"]:
            backward = op["op"].endswith("grad")
            target = (0.70 if backward else 0.80) if window == "0" else (0.60 if backward else 0.65)
            r.want(f"round, {'global' if window == '0' else 'window ' + window}, {'backward' if backward else 'forward'}, of copy", rate, share(target))
        if op["op"] in ("layernorm", "gate + layernorm", "sum_squares + adamw"):
            r.want(f"{op['op']}, of copy", rate, share(0.85))
        if op["op"].startswith("softmax_attention"):
            r.want(f"{op['op']}, causal, of the best product", rate)
    if rows:
        r.say("### Rounds and ops, of the copy of their bytes or the best product\n")
        r.table(["op", "case", "buffers", "median µs", "p95 µs", "share of the ceiling"], rows)


def choices(r):
    found = [x for x in r.of("choices", "products", []) if len(x.get("ns", [])) > 0]
    if not found:
        return
    r.say("### Products: the library's best guess beside its next ones\n")
    rows = [[x["case"], f"{x['m']} x {x['n']} x {x['k']}", f"{x['ns'][0] / 1e3:.1f}", f"{min(x['ns']) / 1e3:.1f}", x["ns"].index(min(x["ns"])),
             f"{x['ns'][0] / max(min(x['ns']), 1):.2f} ×"] for x in found]
    r.table(["product", "m x n x k", "guess µs", "best of 8 µs", "which", "guess / best"], rows)
    r.want("products: guess over best, worst of all shapes", max(x["ns"][0] / max(min(x["ns"]), 1) for x in found))


def times(x):
    """µs and TFLOP/s."""
    return (f"{x['median_ns'] / 1e3:.1f}", f"{x['flops'] / x['median_ns'] / 1e3:.0f}") if x else ("-", "-")


def panels(r):
    by = {name: {x["case"]: x for x in r.of("choices", f"panels, {name}", []) if x.get("op") == "panels"}
          for name in ("wgmma", "no pairs", "mma.sync")}
    both = [(x, by["mma.sync"][case]) for case, x in by["wgmma"].items() if case in by["mma.sync"]]
    if not both:
        return
    r.say("### Packed products of serving, by wgmma and by mma.sync (rows x outputs x inputs)\n")
    if not all(x["wgmma"] for x, _ in both):
        r.say("The device refused wgmma (see the log), so both are mma.sync.\n")
    r.table(["product", "wgmma µs", "TFLOP/s", "without pairs µs", "mma.sync µs", "TFLOP/s", "mma.sync / wgmma"],
            [[x["case"], *times(x), *times(by["no pairs"].get(x["case"]))[:1], *times(other), f"{other['median_ns'] / x['median_ns']:.2f} ×"]
             for x, other in both])
    for x, _ in both:
        if x["case"] == "2048 x 3072 x 768":
            r.want("packed product, 2048 x 3072 x 768, TFLOP/s", x["flops"] / x["median_ns"] / 1e3)


def rounds(r):
    ours = [x for x in r.of("device", "rounds", []) if x.get("cold") and "N 16384" in x.get("case", "")]
    rows = []
    for item, found in r.items("rounds").items():
        mine = [x["median_ns"] * 1e-9 for x in ours if x["case"].endswith(item)]
        own = sum(mine) if len(mine) == 2 else None
        for prefix, name, target in (("eager", "best eager", 8), ("default", "best compiled", 3)):
            variant, time = best_of(found, prefix)
            ratio = over(time, own)
            rows.append([item, variant or "-", f"{own * 1e3:.3f}" if own else "-", f"{time * 1e3:.3f}" if time else "-", f"{ratio:.1f} ×" if ratio else "-"])
            r.want(f"round, {item}, forward and backward, {name} over ours", ratio, at_least(target, 1))
    if rows:
        r.say("### One round, forward and backward: B 8, N 16384, D 1024, 16 heads, bf16\n")
        r.table(["case", "peer", "ours ms", "peer ms", "ratio"], rows)


def floor_per_token(r, width, layers, vocab, parameters, tokens):
    """Seconds: the sum over kernels of max(FLOP / F, bytes / BW), as if each tensor moved once.

    Products of a layer: 72 d² FLOP and 114 d bytes a token, forward and backward; the rest of it 84 d bytes. The head with
    its loss 6 V d FLOP. AdamW 30 bytes a parameter and step.
    """
    products = max(72 * width**2 * layers / r.flops, 114 * width * layers / r.bandwidth)
    rest = 84 * width * layers / r.bandwidth
    return products + rest + 6 * vocab * width / r.flops + 30 * parameters / r.bandwidth / tokens


def per_token(figure, shape):
    return seconds(figure) and seconds(figure) / (figure.get("batch", shape["batch"]) * shape["length"])


def training(r):
    rows = []
    floors = {"d128": 2.0, "d768": 1.4, "d2048": 1.25}
    targets = {"eager": {"d128": 3, "d768": 2, "d2048": 1.35}, "compiled": {"d128": 1.8, "d768": 1.3, "d2048": 1.1}}
    for item, found in r.items("training").items():
        size, mode = item.split()
        shape, ours = found["shape"], found.get("ours", {})
        tokens, own = shape["batch"] * shape["length"], per_token(ours, shape)
        least = r.flops and r.bandwidth and own and floor_per_token(r, shape["width"], shape["layers"], shape["vocab"], ours["parameters"], tokens)
        theirs = per_token(found.get(mode), shape)
        rows.append([item, f"{shape['batch']} x {shape['length']}", f"{1 / own:,.0f}" if own else "-", f"{1 / least:,.0f}" if least else "-",
                     f"{1 / theirs:,.0f}" if theirs else "-", f"{ours.get('product_flops', 0) / (own * tokens) / r.flops:.0%}" if own and r.flops else "-"])
        if mode == "eager":
            r.want(f"training, {size}, over its floor", over(own, least), at_most(floors.get(size, 2.0)))
        r.want(f"training, {size}, same model {mode} over ours", over(theirs, own), at_least(targets[mode].get(size, 1)))
    if rows:
        r.say("### Training steps in bf16, tokens per second\n")
        r.table(["model, peer", "batch", "ours", "floor", "peer", "share of the best product"], rows)


def gpt2(r):
    rows, targets = [], {"2048 tokens": 1.1, "8192 tokens": 1.8, "32768 tokens": 5}
    for item, found in r.items("gpt2").items():
        own, theirs = per_token(found.get("ours"), found["shape"]), per_token(found.get("gpt2"), found["shape"])
        rows.append([item, f"{1 / own:,.0f}" if own else "-", f"{1 / theirs:,.0f}" if theirs else "-"])
        r.want(f"training, d 768, {item}, compiled GPT-2 over ours", over(theirs, own), at_least(targets.get(item, 1)))
    if rows:
        r.say("### Training beside GPT-2 of as many layers, d 768, tokens per second\n")
        r.table(["sequence", "ours", "GPT-2 compiled"], rows)


def prefill(r):
    rows = []
    for item, found in r.items("prefill").items():
        kind, size = item.split(", ")
        if kind == "GPT-2":
            rows.append([item, f"{found['tokens']:,}", f"{found['tokens'] / seconds(found['gpt2']):,.0f}" if seconds(found["gpt2"]) else "-"])
            continue
        many = found["many"]
        rows += [[item, f"{line['tokens']:,}", f"{line['tokens_per_second']:,.0f}"] for line in found["prompts"]]
        rows.append([item, f"{many['prompts']} of {many['tokens']} at once",
                     f"{many['prompts'] * many['tokens'] / many['last_ms'] * 1e3:,.0f}; the last begins after {many['last_ms']:.1f} ms"])
        r.want(f"{many['prompts']} prompts of {many['tokens']}, {item}, the last begins after ms", many["last_ms"], at_most(40 if size == "d768" else None, 1, ""))
        rows += [[item, f"{line['prompt']:,}, beside {line['streams']} streams",
                  f"{line['prompt_tokens_per_second']:,.0f}; of the streams {line['tokens_per_second']:,.0f}, {line['ms']:.2f} ms a token (p99 {line['p99_ms']:.2f})"]
                 for line in found.get("beside", [])]
        target = {"d128": 5e6, "d768": 1e6}.get(size, 0)
        r.want(f"prefill, {item}, tokens/s", max(line["tokens_per_second"] for line in found["prompts"]), at_least(target, 0, ""))
    if rows:
        r.say("### Prompts in bf16, through the scheduler\n")
        r.table(["model", "tokens", "tokens/s"], rows)


def decoding(r):
    rows, fractions = [], {"d768": 0.32, "d2048": 0.65}
    for item, found in r.items("decoding").items():
        if not item.startswith("one session"):
            continue
        size, ours, peer = item.removeprefix("one session, "), found.get("ours", {}), seconds(found.get("gpt2"))
        own = seconds(ours)
        rows.append([item, f"{own * 1e6:.0f} µs a token" if own else "-", f"{peer * 1e6:.0f} µs" if peer else "-"])
        r.want(f"decoding, one session, {size}, of the weights' bandwidth", own and r.bandwidth and ours["weight_bytes"] / own / r.bandwidth,
               share(fractions.get(size, 0.32)))
        r.want(f"decoding, one session, {size}, GPT-2 in a graph over ours", over(peer, own), at_least(1.2))
        for form, text in ("ahead", "weights ahead"), ("program", "one launch"):
            other = seconds(found.get(form))
            if other:
                rows.append([f"{item}, {text}", f"{other * 1e6:.0f} µs a token", ""])
                r.want(f"decoding, one session, {size}, kernel by kernel over {text}", over(own, other))
    many = r.of("decoding", "many sessions")
    if many:
        ours, peer = many["ours"], seconds(many.get("gpt2"))
        theirs = peer and many["gpt2"].get("batch", ours["sessions"]) / peer
        rows.append([f"{ours['sessions']} sessions", f"{ours['tokens_per_second']:,.0f} tokens/s", f"{theirs:,.0f} tokens/s" if theirs else "-"])
        r.want(f"decoding, {ours['sessions']} sessions, ours over GPT-2 in a graph", over(ours["tokens_per_second"], theirs), at_least(15, 1))
        r.want(f"drawing's share of a step, {ours['sessions']} sessions", max(0, 1 - ours["drawn"] / ours["tokens_per_second"]), at_most(0.10, 3, ""))
    for item in ("a crowd", "live sessions"):
        line = r.of("decoding", item)
        if line:
            rows.append([f"{item}: {line['sessions']:,}, {line['rows']:,} in a step", f"{line['tokens_per_second']:,.0f} tokens/s, {line['state_bytes']:,} bytes each", ""])
            r.want(f"decoding, {item}: {line['sessions']:,}, tokens/s", line["tokens_per_second"], COUNT)
    flat = [x for x in r.of("decoding", "latency by position", []) if "position" in x]
    if len(flat) > 1:
        rows += [[f"position {x['position']}", f"p50 {x['ns'] / 1e3:.0f} µs, p99 {x['p99_ns'] / 1e3:.0f} µs", ""] for x in flat]
        r.want("latency, far position over near one, p50", flat[-1]["ns"] / flat[0]["ns"], at_most(1.02, 3))
        r.want("latency, far position over near one, p99", flat[-1]["p99_ns"] / flat[0]["p99_ns"], at_most(1.10, 3))
    for free, line in r.of("decoding", "decode beside training", {}).items():
        alone, beside = line["alone"], line["beside"]
        rows.append([f"one session beside training, processors {free}",
                     f"p50 {beside['p50_us']:.0f} µs, p99 {beside['p99_us']:.0f} µs (alone {alone['p50_us']:.0f}, {alone['p99_us']:.0f}); "
                     f"training {line['trained_beside']:,.0f} tokens/s (alone {line['trained_alone']:,.0f})", ""])
        r.want(f"decoding beside training over alone, processors {free}, p50", beside["p50_us"] / alone["p50_us"])
        r.want(f"decoding beside training over alone, processors {free}, p99", beside["p99_us"] / alone["p99_us"])
        r.want(f"training beside decoding over alone, processors {free}", line["trained_beside"] / line["trained_alone"])
    if rows:
        r.say("### Decoding in bf16, through the scheduler\n")
        r.table(["case", "ours", "GPT-2, static cache, graphs"], rows)


def models(r):
    rows = []
    for item, found in r.items("models").items():
        lines = found if isinstance(found, list) else [found["batch"]]
        if lines is not found:
            prompt = found["prompt"]
            rows.append([item, f"prompt of {prompt['tokens']:,}", f"{prompt['tokens_per_second']:,.0f}", "", ""])
            r.want(f"prefill, {item}, tokens/s", prompt["tokens_per_second"], COUNT)
        for line in lines:
            rows.append([item, f"{line['sessions']:,}", f"{line['tokens_per_second']:,.0f}", f"{line['drawn']:,.0f}", f"{line['state_bytes']:,} bytes each"])
            for kind, rate in (("greedy", line["tokens_per_second"]), ("drawn", line["drawn"])):
                name = f"{item}, {line['sessions']:,}, {kind}, tokens/s"
                r.want(name, rate, at_least(SESSIONS[name], 0, "") if name in SESSIONS else COUNT)
    if rows:
        r.say("### Sessions at once in bf16 or int8, through the scheduler\n")
        r.table(["model", "sessions", "greedy, tokens/s", "drawn, tokens/s", ""], rows)


def loading(r):
    rows = []
    for item, found in r.items("loading").items():
        total = found["weights_ms"] + found["buffers_ms"] + found["plans_ms"]
        rows.append([item, f"{found['parameters']:,}", *(f"{found[part]:.0f}" for part in ("random_ms", "weights_ms", "buffers_ms", "plans_ms"))])
        r.want(f"loading, {item}, s", total / 1e3, at_most(3, 2, ""))
        if item.endswith("fp32"):
            r.want(f"random weights, {item.split(',')[0]}, s", found["random_ms"] / 1e3, at_most(3, 2, ""))
    if rows:
        r.say("### Start of a model, ms\n")
        r.table(["model", "parameters", "random weights", "loading: weights", "states and buffers", "plans"], rows)


def http(r):
    rows = []
    for item, found in r.items("http").items():
        alone, service = found["engine"]["tokens_per_second"], found["service"]["tokens_per_second"]
        rows.append([item, f"{service:,.0f}", f"{alone:,.0f}", found["service"]["failed"]])
        r.want(f"{item} over HTTP, of the engine alone", service / alone, share(0.85))
    if rows:
        r.say("### Through HTTP\n")
        r.table(["streams", "service, tokens/s", "engine alone, tokens/s", "streams that failed"], rows)


def runs(r):
    """Return the runs that measured the results: one line per device, date and command."""
    seen = {}
    for part, items in r.parts.items():
        for item in items.values():
            seen.setdefault((item["date"], item["device"], item["command"]), set()).add(part)
    for (date, card, command), parts in sorted(seen.items()):
        r.say(f"- {date}, {card}: {', '.join(sorted(parts))} by `{command}`")
    r.say()


def write(parts, table=None):
    r = Report(parts)
    runs(r)
    top = len(r.lines)
    for part in (device, choices, panels, rounds, training, gpt2, prefill, decoding, models, loading, http):
        part(r)
    details, r.lines = r.lines[top:], r.lines[:top]
    r.say("### Targets\n")
    r.table(["what", "measured", "target", "predicted", ""], r.wanted)
    missed = [line for line in r.wanted if line[-1].startswith("missed")]
    judged = [line for line in r.wanted if line[-1]]
    if judged:
        r.say(f"{len(judged) - len(missed)} of {len(judged)} targets are met.\n")
    text = "\n".join(r.lines + details)
    print(text)
    if table:
        before = table.read_text().split(MARK)[0] if table.exists() else "# Benchmarks on a GPU\n\n"
        table.write_text(before + MARK + "\n\n" + text)
