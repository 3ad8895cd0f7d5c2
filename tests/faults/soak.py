"""Mixed load on the whole service for a long time, and whether anything grows.

    make soak MINUTES=30        or: soak.py --minutes 30 [--clients 8] [--bound-kib 2048]

Completions, streams, sessions (durable, with a lifetime, forked, carried out and in), uploads and deletes, jobs with
checkpoints, explanations, and clients that leave in the middle. Each second it samples both processes: resident memory, open
files, threads; and the bytes of the data folder. After a warm-up the slope of memory by least squares, with its standard
error, must not be above the bound; files, threads and disk must return to their values at the end of the warm-up."""

import argparse
import http.client
import json
import math
import os
import pathlib
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))
from conftest import SMALL, TEXT, Service  # noqa: E402  (of the e2e tests)

ALLOWED = {200, 404, 409, 429}
KEEP_CHECKPOINTS = 2


# --- load -----------------------------------------------------------------------------------

class Load(threading.Thread):
    """One client that does one thing after the other."""

    def __init__(self, service, model, file, seed, stop):
        super().__init__(daemon=True)
        self.service, self.model, self.file, self.stop = service, model, file, stop
        self.random, self.done, self.wrong = random.Random(seed), {}, []
        self.actions = [self.complete, self.stream, self.session, self.session, self.upload, self.explain, self.leave,
                        self.look]

    def run(self):
        while not self.stop.is_set():
            action = self.random.choice(self.actions)
            try:
                action()
                self.done[action.__name__] = self.done.get(action.__name__, 0) + 1
            except (OSError, urllib.error.URLError, http.client.HTTPException, KeyError, ValueError, AssertionError) as e:
                self.wrong.append(f"{action.__name__}: {type(e).__name__} {e}")

    def ask(self, method, path, body=None, **kw):
        status, answer, _ = self.service.request(method, path, body, **kw)
        if status not in ALLOWED:
            raise AssertionError(f"{method} {path}: {status} {answer}")
        return answer if status == 200 else None

    def prompt(self):
        return f"{self.random.randrange(400)} bottles of beer"

    def complete(self):
        self.ask("POST", "/v1/completions", {"model": self.model, "prompt": self.prompt(), "n": self.random.randrange(1, 4),
                                             "max_tokens": self.random.randrange(1, 40), "logprobs": 2})

    def stream(self):
        self.ask("POST", "/v1/completions", {"model": self.model, "prompt": self.prompt(), "stream": True, "max_tokens": 60})

    def session(self):
        durable = self.random.random() < 0.5
        more = {"durable": True} if durable else {"ttl_seconds": self.random.randrange(2, 6)}
        s = self.ask("POST", "/v1/sessions", {"model": self.model, "prompt": self.prompt(), "explain": True,
                                              "position_policy": "wrap", **more})
        if not s:
            return
        path = f"/v1/sessions/{s['id']}"
        for _ in range(self.random.randrange(1, 5)):
            self.ask("POST", f"{path}/append", {"text": " and more"})
            self.ask("POST", f"{path}/generate", {"max_tokens": 10})
        snapshot = self.ask("POST", f"{path}/snapshots", {})
        if snapshot:
            self.ask("POST", f"{path}/append", {"text": " and what is undone"})
            self.ask("POST", f"{path}/rollback", {"snapshot": snapshot["id"]})
        fork = self.ask("POST", f"{path}/fork", {"snapshot": snapshot["id"]} if snapshot else {})
        if fork:
            self.ask("DELETE", f"/v1/sessions/{fork['id']}")
        state = self.ask("GET", f"{path}/state")
        if state:
            back = self.carry_in(state)
            if back:
                self.ask("DELETE", f"/v1/sessions/{back['id']}")
        if durable or self.random.random() < 0.5:  # the others end with their lifetime
            self.ask("DELETE", path)

    def carry_in(self, state):
        return self.ask("POST", f"/v1/sessions?model={self.model}", state,
                        headers={"Content-Type": "application/octet-stream"})

    def upload(self):
        head, tail = multipart("file", "soak.txt", {"purpose": "fine-tune"})
        f = self.ask("POST", "/v1/files", head + self.random.randbytes(self.random.randrange(1, 300_000)) + tail,
                     headers=MULTIPART)
        if f:
            self.ask("GET", f"/v1/files/{f['id']}/content")
            self.ask("DELETE", f"/v1/files/{f['id']}")

    def explain(self):
        self.ask("POST", "/v1/explain", {"model": self.model, "input": self.prompt(), "aggregate": "rollout"})

    def look(self):
        for path in ("/metrics", "/v1/models", "/v1/fine_tuning/jobs", "/v1/sessions", "/readyz"):
            self.ask("GET", path)

    def leave(self):
        u = urllib.parse.urlsplit(self.service.url)
        body = json.dumps({"model": self.model, "prompt": self.prompt(), "stream": True, "max_tokens": 400}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        whole = (head + body)[: self.random.choice([20, len(head), len(head) + 5, len(head) + len(body)])]
        with socket.create_connection((u.hostname, u.port), timeout=10) as s:
            s.sendall(whole)
            if len(whole) == len(head) + len(body):
                s.recv(500)


MULTIPART = {"Content-Type": "multipart/form-data; boundary=soak"}


def multipart(name, filename, fields):
    head = "".join(f'--soak\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items())
    head += (f'--soak\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
             f"Content-Type: application/octet-stream\r\n\r\n")
    return head.encode(), b"\r\n--soak--\r\n"


class Jobs(threading.Thread):
    """Run one short job after the other, and delete its results if a request for that exists."""

    def __init__(self, service, file, stop):
        super().__init__(daemon=True)
        self.service, self.file, self.stop, self.count, self.wrong = service, file, stop, 0, []

    def run(self):
        while not self.stop.is_set():
            try:
                self.one()
            except (OSError, urllib.error.URLError, AssertionError) as e:
                self.wrong.append(f"job: {e}")
                time.sleep(1)

    def one(self):
        settings = dict(SMALL, max_steps=60, checkpoint_every=10, keep_checkpoints=KEEP_CHECKPOINTS)
        body = {"model": "additive", "training_file": self.file, "seed": self.count, "additive": settings}
        status, job, _ = self.service.request("POST", "/v1/fine_tuning/jobs", body)
        if status == 400 and "keep_checkpoints" in str(job):
            del settings["keep_checkpoints"]
            status, job, _ = self.service.request("POST", "/v1/fine_tuning/jobs", body)
        assert status == 200, (status, job)
        while not self.stop.is_set():
            state = self.service.ok("GET", f"/v1/fine_tuning/jobs/{job['id']}")
            if state["status"] in ("succeeded", "failed", "cancelled"):
                assert state["status"] == "succeeded", state["error"]
                self.service.ok("DELETE", f"/v1/models/{state['fine_tuned_model']}")
                self.service.request("DELETE", f"/v1/fine_tuning/jobs/{job['id']}")
                self.count += 1
                return
            time.sleep(0.2)


# --- samples ---------------------------------------------------------------------------------

def folder_bytes(folder):
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                pass
    return total


def process_sample(pid):
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f)
    return {"rss_kib": int(fields["VmRSS"].split()[0]), "threads": int(fields["Threads"]),
            "files": len(os.listdir(f"/proc/{pid}/fd"))}


def slope(times, values):
    """(per hour, its standard error) of a line by least squares."""
    n = len(times)
    mean_t, mean_v = sum(times) / n, sum(values) / n
    spread = sum((t - mean_t) ** 2 for t in times)
    per_second = sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values)) / spread
    residual = sum((v - mean_v - per_second * (t - mean_t)) ** 2 for t, v in zip(times, values))
    return per_second * 3600, math.sqrt(residual / (n - 2) / spread) * 3600


def sample_for(service, seconds, samples, began):
    names = {"engine": service.engine_pid(), "front": service.child("additive-httpd")}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        row = {"time": time.monotonic() - began, "disk": folder_bytes(service.data)}
        for name, pid in names.items():
            for key, value in process_sample(pid).items():
                row[f"{name}_{key}"] = value
        samples.append(row)
        time.sleep(1)
    assert names == {"engine": service.engine_pid(), "front": service.child("additive-httpd")}, "a process was started again"


def judge(samples, idle, bound_kib):
    """Print the values that grew; the list of those over their bounds."""
    wrong, times = [], [s["time"] for s in samples]
    for key in [k for k in samples[0] if k != "time"]:
        values = [s[key] for s in samples]
        per_hour, error = slope(times, values)
        unit = "bytes" if key == "disk" else "KiB" if "rss" in key else ""
        print(f"{key:16} first {values[0]:>10} last {values[-1]:>10} least {min(values):>10} most {max(values):>10} "
              f"slope {per_hour:+.1f} ± {error:.1f} {unit} an hour")
        if "rss" in key and per_hour - 2 * error > bound_kib:
            wrong.append(f"{key} grows by {per_hour:.0f} ± {error:.0f} KiB an hour, over the bound of {bound_kib}")
    for key in ("engine_files", "front_files", "engine_threads", "front_threads"):
        most = max(s[key] for s in samples[: max(2, len(samples) // 4)])
        if idle[-1][key] > most:
            wrong.append(f"{key} was at most {most} at the beginning and is {idle[-1][key]} without load")
    quarter = max(2, len(samples) // 4)
    early, late = (sum(s["disk"] for s in part) / len(part) for part in (samples[:quarter], samples[-quarter:]))
    if late > 1.5 * early + (4 << 20):
        wrong.append(f"the data folder grows: {early:.0f} bytes in the first quarter, {late:.0f} in the last")
    return wrong


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--minutes", type=float, default=30)
    arguments.add_argument("--clients", type=int, default=8)
    arguments.add_argument("--bound-kib", type=float, default=4096, help="of memory's growth, per hour and process")
    arguments.add_argument("--out", type=pathlib.Path, help="where the samples go, one JSON object a line")
    a = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="additive-soak-") as folder:
        service = Service(pathlib.Path(folder) / "data")
        try:
            wrong = soak(service, a)
        finally:
            status = service.stop()
    if status != 0:
        wrong.append(f"the service ended with status {status}")
    print("\n".join(wrong) or "nothing grows")
    return 1 if wrong else 0


def soak(service, a):
    file = service.upload(TEXT)
    job = service.ok("POST", "/v1/fine_tuning/jobs", {"model": "additive", "training_file": file,
                                                      "additive": dict(SMALL, max_steps=60)})
    model = service.wait_job(job["id"])["fine_tuned_model"]
    stop, seconds, began = threading.Event(), a.minutes * 60, time.monotonic()
    load = [Load(service, model, file, seed, stop) for seed in range(a.clients)]
    jobs = Jobs(service, file, stop)
    warm, samples, idle = [], [], []
    for thread in [*load, jobs]:
        thread.start()
    sample_for(service, max(20, seconds / 6), warm, began)
    sample_for(service, seconds * 5 / 6, samples, began)
    stop.set()
    for thread in [*load, jobs]:
        thread.join(120)
    time.sleep(8)  # lifetimes end, connections close
    sample_for(service, 3, idle, began)
    if a.out:
        a.out.write_text("".join(json.dumps(s) + "\n" for s in warm + samples + idle))
    done = {}
    for client in load:
        for name, count in client.done.items():
            done[name] = done.get(name, 0) + count
    print(f"{len(samples)} samples after {len(warm)} of warm-up; jobs {jobs.count}; {done}")
    wrong = judge(samples, idle, a.bound_kib)
    failed = [w for client in load for w in client.wrong] + jobs.wrong
    if failed:
        wrong.append(f"{len(failed)} requests failed, the first: {failed[0]}")
    text = service.request("GET", "/metrics")[1].decode()
    for line in text.splitlines():
        if line.startswith(("additive_engine_generations_running", "additive_engine_sessions ", "additive_engine_streams")):
            print(line)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
