#!/usr/bin/env python3
"""The time to the first token of short prompts: alone, beside one long prompt, beside a training job, and beside both.

    first_token.py PROGRAMS [--seconds 20] [--rate 10] [--tokens 1000000] [--threads N]

PROGRAMS: the folder of additive, additived and additive-httpd. The model is an additive 2 of width 128 with 6 layers
that reads bytes. In each phase `additive load` sends RATE short prompts a second at random times; a time counts from the planned arrival. The
long prompt has TOKENS tokens and is sent again when it has been read. The job trains a model of the same size.
`times_idle` is the ratio of p99 to that of the idle service. Prints JSON."""

import argparse
import contextlib
import http.client
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from contest import Failure
from http_load import TEXT, Service, train, upload
from live_sessions import CONFIG

JOB = {"config": CONFIG, "sequence_length": 256, "batch_size": 8, "max_steps": 1000000}


@contextlib.contextmanager
def long_prompt(service, model, tokens):
    """One prompt of that many tokens after another, until the block ends."""
    stop, problems, connections = threading.Event(), [], []
    body = json.dumps({"model": model, "prompt": ("the quick brown fox " * (tokens // 20 + 1))[:tokens], "max_tokens": 1, "cache_prompt": False})

    def run():
        while not stop.is_set():
            connection = http.client.HTTPConnection(service.address)
            connections.append(connection)
            try:
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if answer.status != 200:
                    problems.append(answer.read().decode())
                    return
                answer.read()
            except OSError as problem:
                if not stop.is_set():
                    problems.append(repr(problem))
                return

    reader = threading.Thread(target=run)
    reader.start()
    yield
    stop.set()
    connections[-1].sock.shutdown(2)  # cancels what is left of it
    reader.join()
    if problems:
        raise Failure(f"the long prompt: {problems[0]}")


@contextlib.contextmanager
def job(service, file):
    request = {"model": "additive2", "training_file": file, "additive": JOB}
    path = f"/v1/fine_tuning/jobs/{json.loads(service.ask('POST', '/v1/fine_tuning/jobs', request))['id']}"
    while (found := json.loads(service.ask("GET", path)))["status"] != "running":
        if found["status"] not in ("queued", "validating_files"):
            raise Failure(f"the job: {found['status']}")
        time.sleep(0.1)
    yield
    if json.loads(service.ask("GET", path))["status"] != "running":
        raise Failure("the job ended early")
    service.ask("POST", f"{path}/cancel", {})


def metric(service, name):
    lines = service.ask("GET", "/metrics").decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{")))


def measure(programs, service, model, options):
    names = {"prompt_tokens_per_second": "additive_engine_prompt_tokens_total", "training_tokens_per_second": "additive_engine_training_tokens_total"}
    before, began = {key: metric(service, name) for key, name in names.items()}, time.monotonic()
    done = subprocess.run(
        [programs / "additive", "load", model, "--url", f"http://{service.address}", "--json", "--no-compare", "--clients", "64", "--rate",
         str(options.rate), "--seconds", str(options.seconds), "--max-tokens", "1"], capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        raise Failure(f"additive load: {(done.stderr or done.stdout).strip()[-300:]}")
    found = json.loads(done.stdout)
    return {"first_ms": found["first_ms"], "requests": found["requests"],
            **{key: round((metric(service, name) - before[key]) / seconds) for key, name in names.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rate", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=1000000)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    phases = {"idle": [], "beside a long prompt": ["prompt"], "beside a job": ["job"], "beside both": ["prompt", "job"]}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu", *(["--threads", options.threads] if options.threads else [])])
        try:
            file = upload(service, TEXT * 20000)
            model = train(service, "additive2", upload(service, TEXT * 200), {**JOB, "batch_size": 1, "max_steps": 1})
            for name, load in phases.items():
                with contextlib.ExitStack() as beside:
                    if "prompt" in load:
                        beside.enter_context(long_prompt(service, model, options.tokens))
                    if "job" in load:
                        beside.enter_context(job(service, file))
                    time.sleep(1)
                    found[name] = measure(options.programs, service, model, options)
                found[name]["times_idle"] = round(found[name]["first_ms"]["p99"] / found["idle"]["first_ms"]["p99"], 2)
        finally:
            service.stop()
    print(json.dumps(found, indent="\t"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
