#!/usr/bin/env python3
"""Time from the request to the first step and resident memory, for a corpus larger than a job's memory limit. Measured
without a cache, with the tokens cached, with a byte of the text changed, and on a disk that is too small.

    tests/bench/corpus.py [--gib N] [--form text|lines|labelled] [--folder DIR] [--limit-mib N]

The text consists of words drawn with Zipf's frequencies by a fixed seed. Needs `make`, and two to four times the text
in DIR.
"""
import argparse
import http.client
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("ADDITIVE_BIN", ROOT / "build/bin"))
MIB = 1 << 20


def make_text(path, size, form):
    draw = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(draw.choices(letters, k=draw.randint(1, 9))) for _ in range(20000)]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    chunks = [" ".join(draw.choices(words, weights, k=200)) + "." for _ in range(4000)]
    with open(path, "w", buffering=8 * MIB) as out:
        number = 0
        while out.tell() < size:
            part = "".join(f"{number + i} {draw.choice(chunks)}\n" if form == "text" else
                           json.dumps({"prompt": str(number + i), "completion": draw.choice(chunks)}) + "\n" if form == "lines" else
                           json.dumps({"text": f"{number + i} {draw.choice(chunks)[:100]}", "label": (number + i) % 7}) + "\n"
                           for i in range(1000))
            number += 1000
            out.write(part)


class Service:
    def __init__(self, data, limit=None):
        def limits():
            if limit:
                import resource
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        self.data = data
        self.engine = subprocess.Popen([BIN / "additived", "--data", data, "--backend", "cpu", "--threads", "2"],
                                       stdout=subprocess.PIPE, text=True, preexec_fn=limits)
        address = self.engine.stdout.readline().split()[1]
        self.front = subprocess.Popen([BIN / "additive-httpd", "--engine", address, "--listen", "127.0.0.1:0",
                                       "--max-upload-bytes", str(1 << 34)], stdout=subprocess.PIPE, text=True)
        self.address = self.front.stdout.readline().split()[-1].removeprefix("http://")
        while self.call("GET", "/readyz")[0] != 200:
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.front, self.engine):
            process.terminate()
            process.wait()

    def call(self, method, path, body=None):
        http_ = http.client.HTTPConnection(self.address, timeout=3600)
        http_.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        answer = http_.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if body[:1] in (b"{", b"[") else body

    def upload(self, path):
        out = subprocess.run(["curl", "-sS", "-F", "purpose=fine-tune", "-F", f"file=@{path}",
                              f"http://{self.address}/v1/files"], capture_output=True, check=True, text=True).stdout
        return json.loads(out)["id"]

    def cpu(self):
        """Seconds that the engine has computed."""
        fields = Path(f"/proc/{self.engine.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        """(now, anonymous part) in MiB."""
        status = dict(line.split(":", 1) for line in Path(f"/proc/{self.engine.pid}/status").read_text().splitlines())
        return int(status["VmRSS"].split()[0]) / 1024, int(status["RssAnon"].split()[0]) / 1024


class Watch(threading.Thread):
    """The most resident memory until it is stopped."""

    def __init__(self, service):
        super().__init__(daemon=True)
        self.service, self.most, self.going = service, 0, True

    def run(self):
        while self.going:
            self.most = max(self.most, self.service.resident()[0])
            time.sleep(0.02)


def train(service, file, labelled):
    """Seconds until the job exists and until its first step, and the most resident memory."""
    watch = Watch(service)
    watch.start()
    began, cpu = time.monotonic(), service.cpu()
    status, job = service.call("POST", "/v1/fine_tuning/jobs",
                               {"model": "linear_encoder" if labelled else "additive", "training_file": file, "seed": 1,
                                "additive": {"size": {"hidden": 64, "heads": 2, "layers": 2}, "sequence_length": 256,
                                             "batch_size": 8, "max_steps": 100000, "eval_every": 0,
                                             **({"objective": "classification"} if labelled else {})}})
    created = time.monotonic() - began
    if status != 200:
        watch.going = False
        return created, job, None
    while True:
        now = service.call("GET", f"/v1/fine_tuning/jobs/{job['id']}")[1]
        if now["additive"]["step"] >= 1 or now["status"] in ("failed", "paused"):
            break
        time.sleep(0.02)
    stepped, cpu = time.monotonic() - began, service.cpu() - cpu
    time.sleep(3)
    watch.going = False
    return created, stepped, watch.most, now, job["id"], cpu


def show(what, created, stepped, most, job, _id, cpu):
    print(f"{what:32s} job exists after {created:7.2f} s, first step after {stepped:7.2f} s ({cpu:.2f} s of a core), at most {most:6.1f} MiB "
          f"resident; {job['status']}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gib", type=float, default=1)
    options.add_argument("--form", default="text", choices=["text", "lines", "labelled"])
    options.add_argument("--folder", default="/tmp/bench-corpus")
    options.add_argument("--limit-mib", type=int, default=256, help="largest file of the service with the small disk")
    o = options.parse_args()
    folder = Path(o.folder)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / f"{o.form}-{o.gib}.txt"
    if not text.exists():
        make_text(text, int(o.gib * (1 << 30)), o.form)
    print(f"{text.stat().st_size / (1 << 30):.3f} GiB as {o.form}")
    with Service(data) as service:
        file = service.upload(text)
        print(f"resident after the upload {service.resident()[0]:.1f} MiB")
        first = train(service, file, o.form == "labelled")
        show("first job", *first)
        service.call("POST", f"/v1/fine_tuning/jobs/{first[4]}/cancel")
        time.sleep(1)
        second = train(service, file, o.form == "labelled")
        show("second job, same text", *second)
    cache = list((data / "cache").iterdir())
    print(f"cache: {[f'{x.stat().st_size / MIB:.0f} MiB' for x in cache]}")
    began = time.monotonic()
    with Service(data) as service:
        while True:
            now = service.call("GET", f"/v1/fine_tuning/jobs/{second[4]}")[1]
            events = service.call("GET", f"/v1/fine_tuning/jobs/{second[4]}/events?limit=3")[1]["data"]
            if any("continues from" in e["message"] for e in events) or now["status"] != "running":
                break
            time.sleep(0.02)
        print(f"restarted service: the run goes on {time.monotonic() - began:.2f} s after the start; "
              f"{service.resident()[0]:.1f} MiB resident")
        service.call("POST", f"/v1/fine_tuning/jobs/{second[4]}/cancel")
        blob = data / "blobs" / file
        with open(blob, "r+b") as stored:
            stored.seek(text.stat().st_size // 2)
            byte = stored.read(1)
            stored.seek(-1, 1)
            stored.write(bytes([byte[0] ^ 1]))
        created, answer, *_ = train(service, file, o.form == "labelled")[:2] + (None,)
        print(f"a changed byte of the text: {json.dumps(answer)[:300] if isinstance(answer, dict) else answer}")
        jobs = service.call("GET", "/v1/fine_tuning/jobs?limit=1")[1]["data"]
        print("  " + str(jobs and (jobs[0]["status"], jobs[0]["additive"].get("paused_reason") or jobs[0]["error"])))
    shutil.rmtree(data)
    with Service(data) as service:  # the text fits, its tokens do not
        small = folder / "small.txt"
        with open(text, "rb") as whole:
            small.write_bytes(whole.read((o.limit_mib - 8) * MIB))
        file = service.upload(small)
    with Service(data, o.limit_mib * MIB) as service:
        _, answer, _ = train(service, file, o.form == "labelled")
        left = [str(x.relative_to(data)) for f in ("cache", "tmp") for x in (data / f).iterdir()]
        print(f"disk full: {json.dumps(answer)}; left in cache and tmp: {left}")
    shutil.rmtree(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
