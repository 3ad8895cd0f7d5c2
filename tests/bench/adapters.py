#!/usr/bin/env python3
"""Adapters: the loss on a style beside that of the whole model trained, the bytes, and the speed of a batch in which each text has its own.

    adapters.py PROGRAMS BASE STYLE ... [--kinds state] [--steps 300] [--base-steps 1500] [--streams 64] [--tokens 512] [--rounds 7]

PROGRAMS: the folder of additived and additive-httpd. BASE is a text for one model of additive 2 (d 128, 4 layers, bytes), and a STYLE a
short one: of each, a fifth is held out. For every style the model is trained on, and an adapter of each KIND beside it, for as many
steps. STREAMS completions of TOKENS tokens at once then take turns: without an adapter, with one for all, each with its own.
Prints JSON: the loss in nats per byte, before and at the best evaluation; the bytes of tensors; the seconds of a round, as medians,
and the speed as a multiple of that without an adapter."""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

from contest import Failure
from http_load import Service, upload

CONFIG = {"hidden_size": 128, "n_heads": 8, "n_layer": 4, "intermediate_size": 368}
SETTINGS = {"sequence_length": 256, "batch_size": 8}
METHODS = {"state": {"kind": "state"}, "lora": {"kind": "lora", "rank": 4}}


def job(service, model, file, steps, **more):
    request = {"model": model, "training_file": file, "seed": 1, **more, "additive": {**SETTINGS, "max_steps": steps, **more.get("additive", {})}}
    found = json.loads(service.ask("POST", "/v1/fine_tuning/jobs", request))
    while found["status"] not in ("succeeded", "failed", "cancelled"):
        time.sleep(0.2)
        found = json.loads(service.ask("GET", f"/v1/fine_tuning/jobs/{found['id']}"))
    if found["status"] != "succeeded":
        raise Failure(f"a job has {found['status']}: {found['error']}")
    return found


def tensor_bytes(service, path):
    """The bytes of a safetensors file after its header."""
    data = service.ask("GET", path)
    return len(data) - 8 - int.from_bytes(data[:8], "little")


def learn(service, model, text, kinds, steps):
    """The losses and bytes of a style, and its adapters by kind."""
    file = upload(service, text)
    held = {"validation_fraction": 0.2, "eval_every": max(1, steps // 12), "keep_best": True}
    before = job(service, model, file, 1, additive={**held, "keep_best": False, "learning_rate": 1e-12})["additive"]["valid_loss"]
    whole = job(service, model, file, steps, additive=held)
    rows = {"before": {"loss": before},
            "model": {"loss": whole["additive"]["best_valid_loss"],
                      "bytes": tensor_bytes(service, f"/v1/models/{whole['fine_tuned_model']}/files/model.safetensors")}}
    made = {}
    for kind in kinds:
        done = job(service, model, file, steps, method={"type": "adapter", "adapter": METHODS[kind]}, additive=held)
        made[kind] = done["additive"]["adapter"]
        numbers = json.loads(service.ask("GET", f"/v1/adapters/{made[kind]}"))["parameters"]
        rows[kind] = {"loss": done["additive"]["best_valid_loss"], "bytes": 4 * numbers}
    return rows, made


def round_of(service, model, adapters, tokens):
    """Seconds until a completion with each of the adapters has ended; all begin at once."""
    gate, wrong = threading.Barrier(len(adapters) + 1), []

    def complete(i, adapter):
        request = {"model": model, "prompt": f"{i}", "max_tokens": tokens, "seed": i, "temperature": 1, **({"adapter": adapter} if adapter else {})}
        gate.wait()
        try:
            usage = json.loads(service.ask("POST", "/v1/completions", request))["usage"]
            if usage["completion_tokens"] != tokens:
                wrong.append(f"{usage['completion_tokens']} tokens")
        except OSError as failure:
            wrong.append(str(failure))

    threads = [threading.Thread(target=complete, args=pair) for pair in enumerate(adapters)]
    for thread in threads:
        thread.start()
    gate.wait()
    begin = time.monotonic()
    for thread in threads:
        thread.join()
    if wrong:
        raise Failure(f"{len(wrong)} completions failed: {wrong[0]}")
    return time.monotonic() - begin


def speed(service, model, kind, style, options):
    file = upload(service, style)
    made = [job(service, model, file, 2, method={"type": "adapter", "adapter": METHODS[kind]}, seed=i)["additive"]["adapter"]
            for i in range(options.streams)]
    ways = {"none": [None] * len(made), "one": made[:1] * len(made), "own": made}
    seconds = {way: [] for way in ways}
    for number in range(options.rounds + 1):
        for way in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            taken = round_of(service, model, ways[way], options.tokens)
            if number > 0:  # the first reads the adapters
                seconds[way].append(taken)
    medians = {way: statistics.median(found) for way, found in seconds.items()}
    return {way: {"seconds": round(median, 3), "speed": round(medians["none"] / median, 3)} for way, median in medians.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("base", type=pathlib.Path)
    parser.add_argument("styles", type=pathlib.Path, nargs="+")
    parser.add_argument("--kinds", nargs="+", choices=METHODS, default=["state"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--base-steps", type=int, default=1500)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu", "--max-batch", options.streams])
        try:
            text = options.base.read_text(errors="replace")
            base = job(service, "additive2", upload(service, text), options.base_steps, additive={"config": CONFIG})
            model = base["fine_tuned_model"]
            found = {"base": {"loss": base["additive"]["valid_loss"]}, "styles": {}, "speed": {}}
            for style in options.styles:
                found["styles"][style.name], _ = learn(service, model, style.read_text(errors="replace"), options.kinds, options.steps)
            for kind in options.kinds:
                found["speed"][kind] = speed(service, model, kind, options.styles[0].read_text(errors="replace"), options)
        finally:
            service.stop()
    print(json.dumps(found, indent="\t"))


if __name__ == "__main__":
    sys.exit(main())
