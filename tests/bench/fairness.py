#!/usr/bin/env python3
"""The times of one API key's requests: alone, beside one client of another key, and beside many.

    fairness.py PROGRAMS [--seconds 15] [--clients 500]

PROGRAMS: the folder of additive, additived and additive-httpd. The model is an additive 2 of width 128 with 6 layers
that reads bytes. One client of the measured key sends one request after another with `additive load`; so do 1 and then
CLIENTS clients of the other key. `times_alone` is the ratio of p99 to that of the key alone. Prints JSON."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from contest import Failure
from first_token import JOB
from http_load import TEXT, Service, train, upload



def new_key(service, by=None):
    request = urllib.request.Request(f"http://{service.address}/v1/keys", data=json.dumps({"role": "admin"}).encode(), method="POST",
                                     headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {by}"} if by else {})})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["secret"]


def load(programs, service, model, key, clients, seconds):
    return subprocess.Popen(
        [programs / "additive", "load", model, "--url", f"http://{service.address}", "--api-key", key, "--json", "--no-compare",
         "--clients", str(clients), "--seconds", str(seconds), "--max-tokens", "32"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process):
    out, err = process.communicate()
    if process.returncode != 0:
        raise Failure(f"additive load: {(err or out).strip()[-300:]}")
    return json.loads(out)


def measure(options, service, model, keys, others):
    beside = load(options.programs, service, model, keys[1], others, options.seconds + 4) if others else None
    time.sleep(2)
    found = result(load(options.programs, service, model, keys[0], 1, options.seconds))
    other = result(beside) if beside else {"requests": 0}
    return {"requests": found["requests"], "first_ms": found["first_ms"], "gap_ms": found["gap_ms"], "requests_of_the_other": other["requests"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--clients", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu"])
        try:
            model = train(service, "additive2", upload(service, TEXT * 200), {**JOB, "batch_size": 1, "max_steps": 1})
            first = new_key(service)
            keys = (first, new_key(service, first))
            found = {f"{n} clients beside": measure(options, service, model, keys, n) for n in (0, 1, options.clients)}
        finally:
            service.stop()
    alone = found["0 clients beside"]
    for phase in found.values():
        phase["times_alone"] = {what: round(phase[what]["p99"] / alone[what]["p99"], 2) for what in ("first_ms", "gap_ms")}
    print(json.dumps(found, indent="\t"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
