"""Tokens per second of many streams through the whole service: additived and additive-httpd, and clients on one event loop.

The model is made by a job of one step, so its weights mean nothing. Each stream asks again when it has ended. What counts
is the engine's own counter of generated tokens, as /metrics tells it, over some seconds after all streams have begun.
"""

import asyncio
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.request

from contest import Failure

WARM = 3  # seconds


class Service:
    def __init__(self, programs, folder, streams, environment, log):
        everything = {**os.environ, **environment}
        socket = folder / "engine.sock"
        address = f"unix:{socket}"
        with open(log, "a") as errors:
            self.engine = subprocess.Popen(
                [programs / "additived", "--data", folder / "data", "--socket", address, "--backend", "cuda", "--max-batch", str(streams),
                 "--max-generations", str(2 * streams), "--max-sessions", str(2 * streams)], env=everything, stdout=errors, stderr=errors)
            deadline = time.monotonic() + 60
            while not socket.exists():
                if self.engine.poll() is not None or time.monotonic() > deadline:
                    raise Failure("additived did not start")
                time.sleep(0.05)
            self.front = subprocess.Popen(
                [programs / "additive-httpd", "--listen", "127.0.0.1:0", "--engine", address, "--max-connections-per-ip", "0"],
                env=everything, stdout=subprocess.PIPE, stderr=errors, text=True)
        line = self.front.stdout.readline()
        if "http://" not in line:
            self.stop()
            raise Failure(f"additive-httpd said {line!r}")
        self.host, port = line.split("http://")[1].strip().rstrip("/").split(":")
        self.port = int(port)

    def ask(self, method, path, body=None, kind="application/json"):
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request(f"http://{self.host}:{self.port}{path}", data=data, method=method, headers={"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()

    def generated(self):
        found = re.search(r"^additive_engine_generated_tokens_total\S* (\S+)", self.ask("GET", "/metrics").decode(), re.M)
        return float(found[1])

    def stop(self):
        for process in (self.front, self.engine):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def make_model(service, config, seconds=120):
    length = min(64, config["n_positions"])
    boundary = "additive-bench"
    text = "All work and no play makes a dull text. " * 200
    body = (f"--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--{boundary}\r\n"
            f"Content-Disposition: form-data; name=\"file\"; filename=\"text.txt\"\r\nContent-Type: text/plain\r\n\r\n{text}\r\n--{boundary}--\r\n")
    file = json.loads(service.ask("POST", "/v1/files", body.encode(), f"multipart/form-data; boundary={boundary}"))["id"]
    own = {key: value for key, value in config.items() if key != "vocab_size"}
    settings = {"config": own, "sequence_length": length, "batch_size": 1, "max_steps": 1}
    job = json.loads(service.ask("POST", "/v1/fine_tuning/jobs", {"model": "additive", "training_file": file, "seed": 1, "additive": settings}))
    deadline = time.monotonic() + seconds
    while job["status"] not in ("succeeded", "failed", "cancelled") and time.monotonic() < deadline:
        time.sleep(0.2)
        job = json.loads(service.ask("GET", f"/v1/fine_tuning/jobs/{job['id']}"))
    if job["status"] != "succeeded":
        raise Failure(f"no model: {job['status']}")
    return job["fine_tuned_model"]


async def stream(service, body, ended):
    """One after the other, until told to end; returns the events read."""
    request = (f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
               "Connection: close\r\n\r\n").encode() + body
    events = 0
    while not ended.is_set():
        reader, writer = await asyncio.open_connection(service.host, service.port)
        writer.write(request)
        while not ended.is_set() and (piece := await reader.read(1 << 16)):
            events += piece.count(b"data: ")
        writer.close()
    return events


async def load(service, model, streams, tokens, seconds):
    body = json.dumps({"model": model, "prompt": "All work", "max_tokens": tokens, "temperature": 0, "stream": True}).encode()
    ended = asyncio.Event()
    running = [asyncio.create_task(stream(service, body, ended)) for _ in range(streams)]
    await asyncio.sleep(WARM)
    began, before = time.monotonic(), await asyncio.to_thread(service.generated)
    await asyncio.sleep(seconds)
    after, took = await asyncio.to_thread(service.generated), time.monotonic() - began
    ended.set()
    answers = await asyncio.gather(*running, return_exceptions=True)
    failed = [a for a in answers if isinstance(a, BaseException)]
    return {"streams": streams, "seconds": took, "tokens_per_second": (after - before) / took, "failed": len(failed),
            "events": sum(a for a in answers if isinstance(a, int))}


def measure(programs, config, streams, seconds, environment, log):
    with tempfile.TemporaryDirectory() as folder:
        service = Service(programs, pathlib.Path(folder), streams, environment, log)
        try:
            model = make_model(service, config)
            service.ask("POST", f"/v1/models/{model}/load", {"dtype": "bf16"})
            return asyncio.run(load(service, model, streams, config["n_positions"] - 16, seconds))
        except OSError as failure:
            raise Failure(str(failure))
        finally:
            service.stop()
