#!/usr/bin/env python3
"""The times of one API key's requests: alone, beside one client of another key, and beside many.

    fairness.py PROGRAMS [--seconds 10] [--clients 500] [--rounds 3]

PROGRAMS: the folder of additive, additived and additive-httpd. The model is an additive 2 of width 128 with 6 layers
that reads bytes. One client of the measured key sends one request after another with `additive load`; so do 1 and then
CLIENTS clients of the other key. Their program runs with `nice -n 19`, because real clients are on other machines.
The engine admits all of their requests, so none is refused.

The phases take turns, ROUNDS times. A figure is the median of the rounds. `times_alone` is the ratio of p99 to that of
the key alone. `cores` is the processor time of each program by the time of the phase. `load_average` is that before each
phase: other programs on the machine lengthen all times. Prints JSON."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from contest import Failure
from first_token import JOB
from http_load import TEXT, Service, train, upload

MARGIN = 2  # seconds that the other key's clients run before and after the measured one


def new_key(service, by=None):
    request = urllib.request.Request(f"http://{service.address}/v1/keys", data=json.dumps({"role": "admin"}).encode(), method="POST",
                                     headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {by}"} if by else {})})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["secret"]


def load(programs, service, model, key, clients, seconds, niceness=0):
    return subprocess.Popen(
        ["nice", "-n", str(niceness), programs / "additive", "load", model, "--url", f"http://{service.address}", "--api-key", key, "--json",
         "--no-compare", "--clients", str(clients), "--seconds", str(seconds), "--max-tokens", "32"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process):
    out, err = process.communicate()
    if process.returncode != 0:
        raise Failure(f"additive load: {(err or out).strip()[-300:]}")
    return json.loads(out)


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options, service, model, keys, others):
    average = os.getloadavg()[0]
    beside = load(options.programs, service, model, keys[1], others, options.seconds + 2 * MARGIN, 19) if others else None
    time.sleep(MARGIN)
    pids = {**service.processes(), **({"other_clients": beside.pid} if beside else {})}
    began, before = time.monotonic(), {name: cpu_seconds(pid) for name, pid in pids.items()}
    found = result(load(options.programs, service, model, keys[0], 1, options.seconds))
    seconds = time.monotonic() - began
    cores = {name: (cpu_seconds(pid) - before[name]) / seconds for name, pid in pids.items()}
    other = result(beside) if beside else {"tokens_per_second": 0}
    times = {what: {p: found[what][p] for p in ("p50", "p99")} for what in ("first_ms", "gap_ms")}
    return {"requests": found["requests"], **times, "other_tokens_per_second": other["tokens_per_second"], "cores": cores, "load_average": average}


def median(rounds):
    """The median of numbers, or of each member of objects."""
    if isinstance(rounds[0], dict):
        return {key: median([each[key] for each in rounds]) for key in rounds[0]}
    return float(f"{statistics.median(rounds):.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(options.programs, pathlib.Path(folder), ["--backend", "cpu", "--max-generations", options.clients + 1])
        try:
            model = train(service, "additive2", upload(service, TEXT * 200), {**JOB, "batch_size": 1, "max_steps": 1})
            first = new_key(service)
            keys = (first, new_key(service, first))
            phases = {f"{n} clients beside": [] for n in (0, 1, options.clients)}
            for _ in range(options.rounds):
                for name, rounds in phases.items():
                    rounds.append(measure(options, service, model, keys, int(name.split()[0])))
        finally:
            service.stop()
    found = {name: median(rounds) for name, rounds in phases.items()}
    alone = found["0 clients beside"]
    for phase in found.values():
        phase["times_alone"] = {what: round(phase[what]["p99"] / alone[what]["p99"], 2) for what in ("first_ms", "gap_ms")}
    print(json.dumps(found, indent="\t"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
