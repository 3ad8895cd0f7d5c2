"""A whole service that is measured over HTTP: additived and additive-httpd, a model of random weights, and load from bench_http.

The model is made by a job of one step, so its weights mean nothing.
"""

import json
import os
import pathlib
import random
import string
import subprocess
import tempfile
import time
import urllib.request

from contest import Failure

WARM = 3  # seconds
TEXT = "All work and no play makes a dull text. "


class Service:
    def __init__(self, programs, folder, options, environment=None, log=os.devnull):
        """`options`: of additived, beside where its data and its socket are."""
        everything = {**os.environ, **(environment or {})}
        socket = folder / "engine.sock"
        address = f"unix:{socket}"
        with open(log, "a") as errors:
            self.engine = subprocess.Popen(
                [programs / "additived", "--data", folder / "data", "--socket", address, *map(str, options)],
                env=everything, stdout=errors, stderr=errors)
            deadline = time.monotonic() + 60
            while not socket.exists():
                if self.engine.poll() is not None or time.monotonic() > deadline:
                    raise Failure("additived did not start")
                time.sleep(0.05)
            self.front = subprocess.Popen(
                [programs / "additive-httpd", "--listen", "127.0.0.1:0", "--engine", address, "--max-connections", "4096",
                 "--max-connections-per-ip", "0"], env=everything, stdout=subprocess.PIPE, stderr=errors, text=True)
        line = self.front.stdout.readline()
        if "http://" not in line:
            self.stop()
            raise Failure(f"additive-httpd said {line!r}")
        self.address = line.split("http://")[1].strip().rstrip("/")
        while time.monotonic() < deadline and not self.ready():
            time.sleep(0.05)

    def ask(self, method, path, body=None, kind="application/json"):
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request(f"http://{self.address}{path}", data=data, method=method, headers={"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()

    def ready(self):
        try:
            self.ask("GET", "/readyz")
        except OSError:
            return False
        return True

    def processes(self):
        return {"engine": self.engine.pid, "front": self.front.pid}

    def stop(self):
        for process in (self.front, self.engine):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def upload(service, text):
    boundary = "additive-bench"
    head = (f"--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--{boundary}\r\n"
            f"Content-Disposition: form-data; name=\"file\"; filename=\"text.txt\"\r\nContent-Type: text/plain\r\n\r\n")
    body = head.encode() + text.encode() + f"\r\n--{boundary}--\r\n".encode()
    return json.loads(service.ask("POST", "/v1/files", body, f"multipart/form-data; boundary={boundary}"))["id"]


def train(service, architecture, file, settings, seed=1, seconds=120):
    """The model of a job that has ended well."""
    request = {"model": architecture, "training_file": file, "seed": seed, "additive": settings}
    job = json.loads(service.ask("POST", "/v1/fine_tuning/jobs", request))
    deadline = time.monotonic() + seconds
    while job["status"] not in ("succeeded", "failed", "cancelled") and time.monotonic() < deadline:
        time.sleep(0.2)
        job = json.loads(service.ask("GET", f"/v1/fine_tuning/jobs/{job['id']}"))
    if job["status"] != "succeeded":
        raise Failure(f"no model: {job['status']}")
    return job["fine_tuned_model"]


def make_model(service, config, vocab=0, seconds=120):
    """The model reads bytes if `vocab` is 0. Otherwise its tokenizer has `vocab` tokens, trained on words of random letters."""
    own = {key: value for key, value in config.items() if key != "vocab_size"}
    settings = {"config": own, "sequence_length": min(64, config["n_positions"]), "batch_size": 1, "max_steps": 1}
    text = TEXT * 200
    if vocab:
        letters = random.Random(1)
        words = ["".join(letters.choices(string.ascii_lowercase, k=6)) for _ in range(vocab // 3)]
        text = " ".join(words * 2)
        settings["tokenizer"] = {"type": "bpe", "vocab_size": vocab}
    return train(service, "additive", upload(service, text), settings, seconds=seconds)


def load(client, address, request, streams, warm, seconds, processes, reconnect=False, environment=None):
    """Return the output of bench_http (the program `client`), with the processor time of `processes` under their
    names."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as body:
        json.dump(request, body)
        body.flush()
        command = [client, address, streams, warm, seconds, body.name, *(["close"] if reconnect else []), *processes.values()]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        raise Failure(f"bench_http: {done.stderr.strip()[-300:]}")
    found = json.loads(done.stdout)
    found["cpu"] = {"client": found["cpu"]["client"], **{name: found["cpu"][str(pid)] for name, pid in processes.items()}}
    if found["failed"]:
        found["why"] = done.stderr.strip()[-600:]
    return found


def measure(programs, client, config, vocab, prompt, streams, seconds, environment, log):
    """Tokens per second of many streams, on a GPU. `vocab` is that of make_model; a prompt has `prompt` tokens."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(programs, pathlib.Path(folder), ["--backend", "cuda", "--max-batch", streams, "--max-generations", 2 * streams,
                                                           "--max-sessions", 2 * streams], environment, log)
        try:
            model = make_model(service, config, vocab)
            service.ask("POST", f"/v1/models/{model}/load", {"dtype": "bf16"})
            request = {"model": model, "prompt": [97 + i % 26 for i in range(prompt)], "max_tokens": config["n_positions"] - prompt, "temperature": 0, "stream": True, "cache_prompt": False}
            found = load(client, service.address, request, streams, WARM, seconds, service.processes(), environment=environment)
            return {"streams": streams, "tokens_per_second": found["events"] / found["seconds"], **found}
        except OSError as failure:
            raise Failure(str(failure))
        finally:
            service.stop()
