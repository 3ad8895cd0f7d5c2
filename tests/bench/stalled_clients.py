#!/usr/bin/env python3
"""The cost of clients that never read: 16 connections request n = 16 streams of 1000 tokens each and read nothing.

That is every slot of the engine. Another client requests short streams one after the other, before and during that, in
several rounds.

    tests/bench/stalled_clients.py PROGRAMS [--keys]     (the folder of additived and additive-httpd)

Prints JSON: milliseconds of the other client's requests (median and p99 over all rounds) with no other client, and
from 5 s after the stalled connections began; the number of its requests refused in those 5 s and after them; and for
each round the seconds until the first request that was served. With --keys each client has its own key; otherwise the
address 127.0.0.1 is the owner of all.
"""

import argparse
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

REQUESTS, ROUNDS = 100, 5
MODEL = {"hidden_size": 128, "n_heads": 4, "n_layer": 6, "n_positions": 2048, "window_sizes": [4, 8, 16, 32, 64, 2048]}


class Service:
    def __init__(self, programs, folder, keys):
        self.engine = subprocess.Popen([programs / "additived", "--data", folder / "data", "--backend", "cpu"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        address = self.engine.stdout.readline().split()[1]
        options = ["--api-key-file", keys] if keys else []
        self.front = subprocess.Popen([programs / "additive-httpd", "--listen", "127.0.0.1:0", "--engine", address, *options],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(self.front.stdout.readline().rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.front, self.engine):
            process.send_signal(signal.SIGTERM)
        for process in (self.front, self.engine):
            process.wait(30)

    def ask(self, method, path, body=None, kind="application/json", key="other"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method, path, data, {"Content-Type": kind, "Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def train(self):
        form = b"".join(b"--bound\r\nContent-Disposition: form-data; name=%s\r\n\r\n%s\r\n" % part
                        for part in [(b'"purpose"', b"fine-tune"), (b'"file"; filename="t"', b"Once upon a time there was. " * 500)])
        end = time.monotonic() + 30
        while self.ask("GET", "/readyz")[0] != 200 and time.monotonic() < end:
            time.sleep(0.05)
        status, text = self.ask("POST", "/v1/files", form + b"--bound--\r\n", "multipart/form-data; boundary=bound")
        assert status == 200, text
        file = json.loads(text)["id"]
        job = json.loads(self.ask("POST", "/v1/fine_tuning/jobs", {
            "model": "additive", "training_file": file, "seed": 1,
            "additive": {"config": MODEL, "max_steps": 1, "sequence_length": 64, "batch_size": 1}})[1])
        while True:
            found = json.loads(self.ask("GET", f"/v1/fine_tuning/jobs/{job['id']}")[1])
            if found["status"] in ("succeeded", "failed"):
                return found["fine_tuned_model"]
            time.sleep(0.1)

    def stall(self, model):
        """A connection that asks for 16 streams and reads nothing."""
        body = json.dumps({"model": model, "prompt": "Once", "n": 16, "max_tokens": 1000, "stream": True, "logit_bias": {"1": -100}})
        s = socket.create_connection(("127.0.0.1", self.port))
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer stalled\r\nContent-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        return s

    def measure(self, model, requests, seconds=float("inf")):
        """(seconds of the served requests, refused ones, seconds until the first was served)"""
        times, refused, first, begin = [], 0, None, time.monotonic()
        while len(times) < requests and time.monotonic() - begin < seconds:
            at = time.monotonic()
            status, _ = self.ask("POST", "/v1/completions", {"model": model, "prompt": "Once upon a time there was.", "max_tokens": 64,
                                                             "stream": True, "logit_bias": {"1": -100}})
            if status == 200:
                times.append(time.monotonic() - at)
                first = first or time.monotonic() - begin
            else:
                refused += 1
                time.sleep(0.05)
        return times, refused, first


def summary(times):
    if not times:
        return None
    times = sorted(times)
    return {"median": round(1e3 * times[len(times) // 2], 1), "p99": round(1e3 * times[int(0.99 * len(times))], 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--keys", action="store_true")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="in each half of a round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "keys").write_text("other\nstalled\n")
        with Service(options.programs, folder, folder / "keys" if options.keys else None) as service:
            model = service.train()
            service.measure(model, 20)
            idle, later, early, late, firsts = [], [], 0, 0, []
            for _ in range(options.rounds):
                idle += service.measure(model, options.requests)[0]
                stalled = [service.stall(model) for _ in range(16)]
                begin = time.monotonic()
                _, refused, first = service.measure(model, options.requests, 5)
                early += refused
                firsts.append(first and round(first, 1))
                time.sleep(max(0, begin + 5 - time.monotonic()))
                times, refused, _ = service.measure(model, options.requests, 20)
                later += times
                late += refused
                for s in stalled:
                    s.close()
                time.sleep(1)
    result = {"idle": summary(idle), "stalled": summary(later), "refused_at_first": early, "refused_later": late, "first_served": firsts}
    if later:
        result["p99_ratio"] = round(result["stalled"]["p99"] / result["idle"]["p99"], 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
