"""Load over HTTP on services that take turns: events, time to the first token, processor time by process.

    tests/bench/bench_http.py                                             # build/bin, --threads default and 1
    tests/bench/bench_http.py --service before=/old/bin --service 'after=build/bin --threads 1' --streams 1,64 --prompts 27
    tests/bench/bench_http.py --foreign llama-server=127.0.0.1:8081,PID   # beside another OpenAI-like server

A service is NAME=FOLDER [OPTIONS OF additived]. All run at once, each on its own copy of one data folder with one model of
random weights; one is under load while the others wait for requests. Each case (streams, prompt tokens) has --rounds bouts of
each service, in turn and then in the opposite order; figures are medians over the bouts. --keep leaves the model's folder for the next run.

A foreign server must serve the same model. Prompts are token ids then, so all read the same tokens whatever their
tokenizers. --foreign-body holds fields for that server only. By default llama-server and vLLM continue past an
end-of-text token, as ours does, and llama-server reads each prompt again instead of keeping it from the slot's last
request. Tokens are counted as events on both sides: an answer that ends early counts with the tokens it had.
llama-server closes the connection after each answer; with --close ours makes a new one for each request too. For the
same weights in both: save transformers' GPT2LMHeadModel of a GPT2Config (n_embd 128, n_layer 6, n_head 4, n_positions
1024) with GPT-2's tokenizer files and "n_ctx" in config.json; convert that folder with llama.cpp's converter from
Hugging Face to GGUF and --outtype f32 for

    llama-server -m MODEL.gguf --port 8081 -np STREAMS -c STREAMS*1024 -t 2 --no-webui

and import its config.json and model.safetensors, beside a tokenizer.json of {"type": "bytes"}, with `additive models import` into the data folder FOLDER/data; FOLDER/model.txt
holds the model's name, and --keep FOLDER uses it.

Columns: events/s; time to the first token (median and 99th percentile of a bout's requests); events per read of a client
(1: each token comes by itself) and the 99th percentile of the time between two such reads; cores that the engine, the front end and the client
kept busy; events per second of engine and front end, which a busy machine disturbs less than the rate; the rate over the best of the case.
A case with long bouts has fewer of them (--case-seconds).
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import statistics
import sys
import tempfile
import time

import http_load
from contest import Failure

CONFIG = {"hidden_size": 128, "n_heads": 4, "n_layer": 6, "n_positions": 8192}
HERE = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = ["streams", "prompt", "service", "events/s", "first p50 ms", "p99", "events/read", "reads p99 ms", "engine", "front", "client",
           "events/CPU s", "of best"]
PAUSE = 0.3  # seconds, for the streams that a bout leaves to be cancelled


class Foreign:
    def __init__(self, name, where, body):
        self.name = name
        self.body = body
        self.address, *pid = where.split(",")
        self.pids = {"engine": int(pid[0])} if pid else {}
        self.model = "any"

    def processes(self):
        return self.pids

    def stop(self):
        pass


def prepare(options, first, folder):
    """A data folder with a model; its name."""
    made = folder / "model.txt"
    if not made.exists():
        service = http_load.Service(first[0], folder, [])
        try:
            made.write_text(http_load.make_model(service, {**CONFIG, **json.loads(options.config)}))
        finally:
            service.stop()
    return made.read_text()


def start(services, name, words, source, model, options, folder):
    own = folder / name
    shutil.copytree(source / "data", own / "data")
    many = 2 * max(options.streams) + 64
    limits = ["--backend", options.backend, "--max-generations", many, "--max-sessions", many]
    service = http_load.Service(words[0], own, [*limits, *words[1:]], log=folder / f"{name}.log")
    services.append(service)
    service.name, service.model, service.body = name, model, {}
    service.ask("POST", f"/v1/models/{model}/load", {"dtype": options.dtype})


def request(service, prompt, options):
    text = (http_load.TEXT * (prompt // len(http_load.TEXT) + 1))[:prompt]
    body = {"model": service.model, "prompt": [ord(c) for c in text] if options.foreign else text, "max_tokens": options.tokens,
            "temperature": options.temperature, "stream": True, "cache_prompt": False}
    return {**body, **json.loads(options.body), **service.body}


def bout(service, streams, prompt, options):
    # All streams begin at once, and a bout counts when the first crowd has had its prompts read.
    time.sleep(PAUSE)
    crowd = streams * prompt / options.prompt_rate
    found = http_load.load(options.client, service.address, request(service, prompt, options), streams, options.warm + crowd,
                           options.seconds + crowd, service.processes(), options.close)
    if found["failed"] or not found["first_ms"] or not found["arrival_ms"]:
        raise Failure(f"{service.name}, {streams} streams, {prompt} tokens: {found['failed']} failed, {found['requests']} ended. {found.get('why', '')}")
    return found


def summary(bouts):
    def median(of):
        return statistics.median(of(b) for b in bouts)

    figures = {"rate": median(lambda b: b["events"] / b["seconds"]), "burst": median(lambda b: b["events"] / b["burst"]["count"]),
               "first_p50": median(lambda b: b["first_ms"]["p50"]), "first_p99": median(lambda b: b["first_ms"]["p99"]),
               "arrival_p99": median(lambda b: b["arrival_ms"]["p99"])}
    for name in bouts[0]["cpu"]:
        figures[name] = median(lambda b: b["cpu"][name] / b["seconds"])
    figures["per_cpu"] = median(lambda b: b["events"] / max(b["cpu"].get("engine", 0) + b["cpu"].get("front", 0), 0.01))
    return figures


def line(values):
    return "| " + " | ".join(values) + " |"


def case(services, streams, prompt, options):
    bouts = {s.name: [] for s in services}
    seconds = PAUSE + options.warm + options.seconds + 2 * streams * prompt / options.prompt_rate
    for number in range(max(1, min(options.rounds, int(options.case_seconds / seconds / len(services))))):
        for s in services if number % 2 == 0 else services[::-1]:
            bouts[s.name].append(bout(s, streams, prompt, options))
    figures = {name: summary(all) for name, all in bouts.items()}
    best = max(f["rate"] for f in figures.values())
    for name, f in figures.items():
        cores = [f"{f[part]:.2f}" if part in f else "" for part in ("engine", "front", "client")]
        print(line([str(streams), str(prompt), name, f"{f['rate']:,.0f}", f"{f['first_p50']:.2f}", f"{f['first_p99']:.2f}", f"{f['burst']:.2f}",
                    f"{f['arrival_p99']:.2f}", *cores, f"{f['per_cpu']:,.0f}", f"{f['rate'] / best:.2f}"]), flush=True)
    return {"streams": streams, "prompt": prompt, "figures": figures, "bouts": bouts}


def numbers(text):
    return [int(word) for word in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", action="append", default=[], metavar="NAME=FOLDER [OPTIONS]")
    parser.add_argument("--foreign", action="append", default=[], metavar="NAME=ADDRESS:PORT[,PID]")
    parser.add_argument("--foreign-body", default='{"ignore_eos": true, "cache_prompt": false}', help="more fields of requests to foreign servers, as JSON")
    parser.add_argument("--client", default=HERE / "build/bench/bench_http")
    parser.add_argument("--streams", type=numbers, default=[1, 8, 64, 128, 512])
    parser.add_argument("--prompts", type=numbers, default=[1, 27, 300, 4000], help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--body", default="{}", help="more fields of the request, as JSON")
    parser.add_argument("--backend", default="cpu", help="of the services of --service")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--config", default="{}", help="what differs from the model of docs/benchmarks.md, as JSON")
    parser.add_argument("--warm", type=float, default=0.5, help="seconds of a bout before counting")
    parser.add_argument("--seconds", type=float, default=2, help="of a bout that count")
    parser.add_argument("--prompt-rate", type=float, default=60000, help="tokens/s of prompts: bouts are longer by what the first prompts take")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case-seconds", type=float, default=240, help="of all bouts of a case, about; one bout of each service at least")
    parser.add_argument("--close", action="store_true", help="a new connection for each request")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="the data folder with the model: made if missing, then reused")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "build/bench/http.json")
    options = parser.parse_args()
    if not options.service:
        options.service = [f"default={HERE}/build/bin", f"one={HERE}/build/bin --threads 1"]
    return options


def main():
    options = arguments()
    wanted = {}
    for text in options.service:
        name, words = text.split("=", 1)
        words = shlex.split(words)
        wanted[name] = [pathlib.Path(words[0]).resolve(), *words[1:]]
    services, results = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        source = options.keep or folder / "source"
        source.mkdir(parents=True, exist_ok=True)
        try:
            model = prepare(options, next(iter(wanted.values())), source)
            for name, words in wanted.items():
                start(services, name, words, source, model, options, folder)
            services += [Foreign(*text.split("=", 1), json.loads(options.foreign_body)) for text in options.foreign]
            print(line(COLUMNS))
            print(line(["---"] * len(COLUMNS)))
            for prompt in options.prompts:
                for streams in options.streams:
                    try:
                        results.append(case(services, streams, prompt, options))
                    except Failure as failure:
                        print(failure, file=sys.stderr)
        finally:
            for service in services:
                service.stop()
    os.makedirs(options.out.parent, exist_ok=True)
    options.out.write_text(json.dumps({"arguments": sys.argv[1:], "cases": results}, indent=1))


if __name__ == "__main__":
    main()
