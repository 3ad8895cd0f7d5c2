#!/usr/bin/env python3
"""The cost of one large request for other streams: the time between two reads of each of 32 streams.

It is measured without other requests, and in one phase for each of these:

    a text of 16,384 tokens is explained
    contributions of 4,096 tokens are computed repeatedly
    leave-one-out of 512 tokens is computed repeatedly
    explanations of 256 tokens are evaluated repeatedly
    a prompt of 4 MiB is read
    the first session is exported
    8 durable sessions are created and used

    tests/bench/stalls.py PROGRAMS [--client build/bench/bench_http] [--seconds 8]     (the folder of additived and additive-httpd)

Prints JSON: per phase median, p99 and maximum in milliseconds, events, and p99 as a multiple of the idle one. `largest`
is the longest silence of any stream, which p99 hides if it happens once."""

import argparse
import http.client
import json
import pathlib
import select
import tempfile
import threading

from http_load import Failure, Service, load, make_model

STREAMS, DURABLE, WARM = 32, 8, 1
EXPLAINED = 16384  # bytes, so tokens
LONG = (4 << 20) - 200  # a JSON body has at most 4 MiB
MODEL = {"hidden_size": 128, "n_heads": 4, "n_layer": 6, "n_positions": 2048, "window_sizes": [4, 8, 16, 32, 64, 2048],
         "position_embedding": "none"}


def post(service, path, body):
    return json.loads(service.ask("POST", path, body))


def idle(service, model):
    return lambda stop: None


def explanation(service, model):
    return lambda stop: service.ask("POST", "/v1/explain", {"model": model, "input": "explained text, " * (EXPLAINED // 16)})


def again(method, tokens):
    def prepare(service, model):
        def run(stop):
            while not stop.is_set():
                service.ask("POST", "/v1/explain", {"model": model, "input": "explained text, " * (tokens // 16), "method": method})
        return run
    return prepare


def evaluation(service, model):
    def run(stop):
        while not stop.is_set():
            service.ask("POST", "/v1/explain/evaluate", {"model": model, "input": "explained text, " * 16})
    return run


def long_prompt(service, model):
    return lambda stop: read_prompt(service, model, stop)


def read_prompt(service, model, stop):
    connection = http.client.HTTPConnection(service.address, timeout=600)
    connection.request("POST", "/v1/sessions", json.dumps({"model": model, "prompt": "a" * LONG}),
                       {"Content-Type": "application/json"})
    stop.wait()
    early = select.select([connection.sock], [], [], 0)[0]
    if early and connection.getresponse().status != 200:
        raise Failure("the prompt was refused")
    connection.close()  # cancels what is left of it


def first_export(service, model):
    session = post(service, "/v1/sessions", {"model": model, "prompt": "some words " * 4000})["id"]
    return lambda stop: service.ask("GET", f"/v1/sessions/{session}/state")


def durable_sessions(service, model):
    def use(i):
        session = post(service, "/v1/sessions", {"model": model, "prompt": f"session {i}", "durable": True})["id"]
        post(service, f"/v1/sessions/{session}/append", {"text": " and more"})
        post(service, f"/v1/sessions/{session}/generate", {"max_tokens": 16})
        service.ask("DELETE", f"/v1/sessions/{session}")

    def use_all(stop):
        users = [threading.Thread(target=use, args=(i,)) for i in range(DURABLE)]
        for user in users:
            user.start()
        for user in users:
            user.join()
    return use_all


def phase(service, model, client, seconds, prepare):
    stop, problems, disturb = threading.Event(), [], prepare(service, model)

    def run():
        try:
            disturb(stop)
        except Exception as problem:  # the streams are measured all the same
            problems.append(repr(problem))
    timer = threading.Timer(WARM + 0.5, run)
    timer.start()
    request = {"model": model, "prompt": "All work", "max_tokens": MODEL["n_positions"] - 16, "temperature": 0, "stream": True}
    found = load(client, service.address, request, STREAMS, WARM, seconds, service.processes())
    stop.set()
    timer.join()
    return {"median": found["arrival_ms"]["p50"], "p99": found["arrival_ms"]["p99"], "largest": found["arrival_ms"]["max"], "events": found["events"],
            "failed": found["failed"], **({"problems": problems} if problems else {})}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--client", type=pathlib.Path, default=pathlib.Path("build/bench/bench_http"))
    parser.add_argument("--seconds", type=int, default=8)
    options = parser.parse_args()
    phases = {"idle": idle, "explanation": explanation, "contributions": again("contributions", 4096),
              "leave one out": again("leave_one_out", 512), "evaluation": evaluation, "prompt of 4 MiB": long_prompt, "first export": first_export, "8 durable sessions": durable_sessions}
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu", "--max-generations", 64])
        try:
            model = make_model(service, MODEL)
            found = {}
            for name, disturb in phases.items():
                found[name] = phase(service, model, options.client, options.seconds, disturb)
                found[name]["times idle"] = round(found[name]["p99"] / found["idle"]["p99"], 2)
            print(json.dumps(found, indent="\t"))
        finally:
            service.stop()


if __name__ == "__main__":
    main()
