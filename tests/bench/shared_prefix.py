#!/usr/bin/env python3
"""Chats whose prompts begin alike, with a GPT-2 whose states are large: time to the first token, and the bytes of what is kept.

    shared_prefix.py PROGRAMS [--chats 64] [--shared 900] [--own 60] [--width 768] [--layers 12] [--alone 4] [--disk]

PROGRAMS: the folder of additived and additive-httpd. The weights are random, the tokens bytes. Each chat has SHARED common bytes and OWN of
its own, and gets 8 tokens, one chat after the other; ALONE of them are asked again with "cache_prompt": false, and their texts must be equal.
With --disk the service is started again in between, and has only its files afterwards. Prints JSON; times are in milliseconds."""

import argparse
import json
import pathlib
import random
import statistics
import string
import sys
import tempfile
import time
import urllib.request

from http_load import TEXT, Service, train, upload


def metrics(service):
    lines = (line.rsplit(" ", 1) for line in service.ask("GET", "/metrics").decode().splitlines() if line[:1] != "#")
    return {line[0]: float(line[1]) for line in lines if line[0].startswith(("additive_engine_prefix", "additive_engine_state_block"))}


def ask(service, model, prompt, **more):
    """(ms to the first event, text, tokens of the prompt that were not read)"""
    body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, **more}
    request = urllib.request.Request(f"http://{service.address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    began, first, text, cached = time.monotonic(), None, "", 0
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.monotonic() - began
            event = json.loads(line[6:])
            text += "".join(choice["text"] for choice in event["choices"])
            cached = (event.get("usage") or {}).get("prompt_tokens_details", {}).get("cached_tokens", cached)
    return 1000 * first, text, cached


def summary(answers):
    times = [a[0] for a in answers]
    return {"median": round(statistics.median(times), 1), "most": round(max(times), 1), "cached": sorted({a[2] for a in answers})}


def run(options):
    letters = random.Random(1)
    shared, *rest = ("".join(letters.choices(string.ascii_lowercase, k=n)) for n in [options.shared] + [options.own] * options.chats)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        disk = ["--prefix-disk-bytes", 1 << 30] if options.disk else []
        service = Service(options.programs, folder, disk)
        try:
            config = {"n_embd": options.width, "n_head": options.width // 64, "n_layer": options.layers, "n_positions": 1024}
            model = train(service, "gpt2", upload(service, TEXT * 200),
                          {"config": config, "sequence_length": 64, "batch_size": 1, "max_steps": 1}, seconds=600)
            ask(service, model, "a")
            answers = [ask(service, model, shared + own) for own in rest]
            found["cold"], found["second"] = summary(answers[:1]), summary(answers[1:2])
            found["later"] = summary(answers[2:])
            found["again"] = summary([ask(service, model, shared + own) for own in rest])
            found["metrics"] = metrics(service)
            if options.disk:
                ask(service, model, "".join(letters.choices(string.ascii_lowercase, k=900)))
                service.stop()
                service = Service(options.programs, folder, disk)
                ask(service, model, "a")
                found["files"] = sorted(f.stat().st_size for f in (folder / "data/cache/prefixes").iterdir())
                found["from disk"] = summary([ask(service, model, shared + rest[0])])
            alone = [ask(service, model, shared + own, cache_prompt=False) for own in rest[:options.alone]]
            found["alone"] = summary(alone)
            found["equal"] = [a[1] for a in alone] == [a[1] for a in answers[:options.alone]]
        finally:
            service.stop()
    print(json.dumps(found, indent=1))
    return 0 if found["equal"] else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    for name, default in (("chats", 64), ("shared", 900), ("own", 60), ("width", 768), ("layers", 12), ("alone", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--disk", action="store_true")
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
