"""The whole service, as a user starts it: `additive serve` with a data folder of its own."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import openai
import pytest

BIN = pathlib.Path(os.environ.get("ADDITIVE_BIN", pathlib.Path(__file__).parents[2] / "build" / "bin"))
sys.path.append(str(pathlib.Path(__file__).parents[1] / "api"))  # modules for tests of both folders
SANITIZED = os.environ.get("ADDITIVE_BUILD", "release") != "release"

# A model small enough to train in seconds, large enough to have every part: a window that is
# shorter than the text, an odd one, and a global layer.
SMALL = {
    "config": {"hidden_size": 32, "n_heads": 4, "n_layer": 3, "n_positions": 64,
               "position_embedding": "learned", "window_sizes": [4, 7, 64], "hidden_dropout_prob": 0.0},
    "sequence_length": 64, "batch_size": 4, "learning_rate": 3e-3, "eval_every": 10,
}
SMALL_GPT2 = {
    "config": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64},
    "sequence_length": 64, "batch_size": 4, "learning_rate": 3e-3, "eval_every": 20,
}
SMALL_LINEAR = {
    "size": {"hidden": 32, "heads": 4, "layers": 2, "dropout": 0},
    "sequence_length": 64, "batch_size": 4, "learning_rate": 3e-3, "eval_every": 20,
}
SMALL_DILATED = SMALL_LINEAR | {"config": {"segment_length": [8, 24, 64], "dilated_ratio": [1, 2, 4]}}
SMALL_TRILINEAR = SMALL_LINEAR | {"config": {"window_size": 8, "weight_bits": 8, "input": "hashed", "match_window": 64}, "learning_rate": 3e-2}
SMALL_OF = {"additive": SMALL, "gpt2": SMALL_GPT2, "linear": SMALL_LINEAR, "additive2": SMALL_LINEAR, "dilated": SMALL_DILATED,
            "transformer": SMALL_LINEAR, "trilinear": SMALL_TRILINEAR,
            "rwkv": SMALL_LINEAR | {"size": {"hidden": 32, "layers": 2}}}
TEXT = "".join(f"{n} bottles of beer on the wall, {n} bottles of beer. " for n in range(400, 0, -1))


class Service:
    def __init__(self, data, *options, listen="127.0.0.1:0", **environment):
        self.data = data
        self.log = data.parent / "serve.log"
        self.process = subprocess.Popen(
            [BIN / "additive", "serve", "--listen", listen, "--data", str(data), *options],
            stdout=subprocess.PIPE, stderr=open(self.log, "ab"), text=True, env={**os.environ, **environment})
        line = self.process.stdout.readline()
        assert line.startswith("ready "), f"expected a ready line, got {line!r}"
        self.url = line.split()[1].rstrip("/")

    def request(self, method, path, body=None, headers=None, timeout=60):
        """(status, parsed JSON or bytes, headers)"""
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=dict(headers or {}))
        if isinstance(body, (dict, list)):
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, raw, head = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            status, raw, head = error.code, error.read(), error.headers
        is_json = "json" in (head.get("Content-Type") or "") and "event-stream" not in head.get("Content-Type")
        return status, json.loads(raw) if is_json and raw else raw, head

    def ok(self, method, path, body=None, **kw):
        status, answer, _ = self.request(method, path, body, **kw)
        assert status == 200, (status, answer)
        return answer

    def upload(self, text, name="corpus.txt"):
        boundary = "additive-test-boundary"
        body = (f"--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n"
                f"--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n"
                f"Content-Type: text/plain\r\n\r\n").encode() + text.encode() + f"\r\n--{boundary}--\r\n".encode()
        return self.ok("POST", "/v1/files", body,
                       headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})["id"]

    def job(self, steps=30, text=TEXT, architecture="additive", **more):
        small = SMALL_OF[architecture]
        body = {"model": architecture, "training_file": self.upload(text), "seed": 1,
                "additive": dict(small, max_steps=steps, **more)}
        return self.ok("POST", "/v1/fine_tuning/jobs", body)

    def wait_job(self, job, until=("succeeded", "failed", "cancelled"), seconds=120):
        deadline = time.monotonic() + seconds * (4 if SANITIZED else 1)
        while time.monotonic() < deadline:
            state = self.ok("GET", f"/v1/fine_tuning/jobs/{job}")
            if state["status"] in until:
                return state
            time.sleep(0.05)
        raise AssertionError(f"job still {state['status']}: {state}")

    def engine_pid(self):
        return self.child("additived")

    def child(self, name):
        out = subprocess.run(["pgrep", "-P", str(self.process.pid), "-x", name[:15]], capture_output=True, text=True)
        return int(out.stdout.split()[0]) if out.stdout.split() else None

    def kill_engine(self):
        self.kill("additived")

    def kill(self, name, seconds=30):
        """kill -9, and wait until the service answers with the program that is started in its place."""
        old = self.child(name)
        os.kill(old, signal.SIGKILL)
        deadline = time.monotonic() + seconds * (4 if SANITIZED else 1)
        while time.monotonic() < deadline:
            if self.child(name) not in (None, old) and self.answers():
                return
            time.sleep(0.05)
        raise AssertionError("the service does not become ready again")

    def answers(self):
        try:
            return self.request("GET", "/v1/models")[0] == 200
        except OSError:
            return False

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    s = Service(tmp_path_factory.mktemp("service") / "data")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def client(service):
    """OpenAI's own client."""
    return openai.OpenAI(base_url=service.url + "/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture
def own_service(tmp_path):
    """A service that a test may damage."""
    s = Service(tmp_path / "data")
    yield s
    s.stop()


@pytest.fixture(scope="module")
def model(service):
    """The id of a small trained model."""
    done = service.wait_job(service.job(steps=60)["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]
