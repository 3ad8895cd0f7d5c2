#!/usr/bin/env python3
"""Many live sessions: what each costs in memory, and whether each continues its own text.

    live_sessions.py PROGRAMS [--count 100000] [--checked 500]

PROGRAMS: the folder of additived and additive-httpd. COUNT sessions of one model of additive 2 (d 128, 6 layers, bytes)
are opened over HTTP with prompts of their own. CHECKED of them, drawn at random, then write 8 greedy tokens, which
must be those that a completion of the same prompt has. Prints JSON."""

import argparse
import http.client
import json
import pathlib
import random
import statistics
import tempfile
import threading
import time

from http_load import TEXT, Service, train, upload

CONNECTIONS = 4
CONFIG = {"hidden_size": 128, "n_heads": 16, "n_layer": 6, "intermediate_size": 368}


def prompt(i):
    return f"session {i}:"


def resident(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def open_sessions(service, model, ids, first):
    connection = http.client.HTTPConnection(service.address)
    for i in range(first, len(ids), CONNECTIONS):
        connection.request("POST", "/v1/sessions", json.dumps({"model": model, "prompt": prompt(i)}), {"Content-Type": "application/json"})
        ids[i] = json.loads(connection.getresponse().read())["id"]


def text_of(service, path, **request):
    return json.loads(service.ask("POST", path, {"max_tokens": 8, "temperature": 0, **request}))["choices"][0]["text"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--checked", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu", "--max-sessions", options.count])
        try:
            settings = {"config": CONFIG, "sequence_length": 64, "batch_size": 1, "max_steps": 1}
            model = train(service, "additive2", upload(service, TEXT * 200), settings)
            text_of(service, "/v1/completions", model=model, prompt=prompt(0))
            before, began, ids = resident(service.engine.pid), time.monotonic(), [None] * options.count
            threads = [threading.Thread(target=open_sessions, args=(service, model, ids, i)) for i in range(CONNECTIONS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            opened, wrong, times = time.monotonic() - began, 0, []
            for i in random.Random(1).sample(range(options.count), options.checked):
                start = time.monotonic()
                text = text_of(service, f"/v1/sessions/{ids[i]}/generate")
                times.append(time.monotonic() - start)
                wrong += text != text_of(service, "/v1/completions", model=model, prompt=prompt(i))
            grown = resident(service.engine.pid) - before
            print(json.dumps({"sessions": options.count, "seconds": round(opened, 1), "bytes_each": grown // options.count,
                              "checked": options.checked, "wrong": wrong, "ms_of_8_tokens": round(statistics.median(times) * 1e3, 2)}))
        finally:
            service.stop()


if __name__ == "__main__":
    main()
