"""The engine's frame protocol from the client's side, and a daemon to speak it to. For tests.

    with Daemon(tmp_path) as daemon, daemon.connect() as engine:
        file = engine.upload("file.create", {"filename": "a.txt", "purpose": "fine-tune"}, file=b"text")
        call = engine.begin("completion.create", {"model": m, "prompt": "x"}, credit=8)
        for event in call.events(): ...
        result = call.result()
"""

import contextlib
import json
import os
import pathlib
import queue
import select
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

BIN = pathlib.Path(os.environ.get("ADDITIVE_BIN", pathlib.Path(__file__).parents[2] / "build" / "bin"))
SANITIZED = os.environ.get("ADDITIVE_BUILD", "release") != "release"
PATIENCE = 120 if SANITIZED else 30

HELLO, REQUEST, DATA, EVENT, RESULT, ERROR, CREDIT, CANCEL, PING, PONG = range(1, 11)
END = 1
HEADER = struct.Struct("<IIIBBHQ")
PIECE = 1 << 18


def frame(kind, stream=0, body=None, payload=b"", credit=0, flags=0):
    text = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return HEADER.pack(len(text) + len(payload), len(text), credit, kind, flags, 0, stream) + text + payload


class EngineError(Exception):
    def __init__(self, body):
        super().__init__(f"{body['status']} {body['code']}: {body['message']} (param {body['param']})")
        self.status, self.code, self.param, self.message = body["status"], body["code"], body["param"], body["message"]
        self.retry_after = body.get("retry_after")


class Closed(Exception):
    """The connection ended before the answer."""


class Call:
    """One stream."""

    def __init__(self, client, stream):
        self.client, self.stream = client, stream
        self.frames = queue.Queue()
        self.credits = threading.Semaphore(0)
        self.refused = False

    def grant(self, frames):
        self.client.send(frame(CREDIT, self.stream, credit=frames))

    def cancel(self):
        self.client.send(frame(CANCEL, self.stream))

    def next(self, timeout=PATIENCE):
        """(type, JSON, payload) of the next frame of the stream."""
        kind, body, payload = self.frames.get(timeout=timeout)
        if kind is None:
            raise Closed
        return kind, body, payload

    def events(self, regrant=0):
        """Events up to the answer, which `result` then gives. Each is answered with `regrant` credits."""
        while True:
            kind, body, payload = self.next()
            if kind in (RESULT, ERROR):
                self.frames.put((kind, body, payload))
                return
            if regrant:
                self.grant(regrant)
            yield body if kind == EVENT else payload

    def result(self):
        while True:
            kind, body, _ = self.next()
            if kind == ERROR:
                raise EngineError(body)
            if kind == RESULT:
                return body


class Engine:
    """A connection. Calls may be made from several threads."""

    def __init__(self, address):
        self.socket = dial(address)
        self.calls, self.last, self.lock = {}, 0, threading.Lock()
        self.connection_error = None
        self.key = None  # sent with a request that names none
        self.hello = None
        self.greeted = threading.Event()
        self.send(frame(HELLO, body={"protocol": 1, "software": "test"}))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        assert self.greeted.wait(PATIENCE) and self.hello, f"no HELLO: {self.connection_error}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.reader.join(PATIENCE)
        self.socket.close()

    def send(self, data):
        with self.lock:
            self.socket.sendall(data)

    def _read(self):
        try:
            for kind, stream, body, payload, credit in read_frames(self.socket):
                if kind == HELLO:
                    self.hello = body
                    self.greeted.set()
                elif kind == PING:
                    self.send(frame(PONG))
                elif stream == 0:
                    self.connection_error = body if kind == ERROR else None
                elif kind == CREDIT:
                    for _ in range(credit):
                        self.calls[stream].credits.release()
                else:
                    call = self.calls[stream]
                    call.frames.put((kind, body, payload))
                    if kind in (RESULT, ERROR):
                        call.refused = kind == ERROR
                        call.credits.release()  # wakes an upload that will not get any more
                        del self.calls[stream]
        except OSError:
            pass
        self.greeted.set()
        for call in list(self.calls.values()):
            call.frames.put((None, None, b""))
            call.refused = True
            call.credits.release()

    def begin(self, method, params=None, credit=0, upload=False, owner=None, key=None, context=None):
        """context: what the REQUEST's payload says."""
        params = params or {}
        if method in ("completion.create", "session.generate"):
            # A tiny model may generate "end of text" at any token; the bias lets it generate all requested tokens.
            params = {"logit_bias": {"1": -100}, **params}
        with self.lock:
            self.last += 1
            call = self.calls[self.last] = Call(self, self.last)
        named = {name: value for name, value in (("owner", owner), ("key", key or self.key)) if value is not None}
        self.send(frame(REQUEST, call.stream, {"method": method, "params": params, **named}, credit=credit,
                        payload=json.dumps(context).encode() if context else b"", flags=0 if upload else END))
        return call

    def call(self, method, params=None, credit=1 << 20):
        return self.begin(method, params, credit).result()

    def upload(self, method, params, **parts):
        """A part of several files is a dict of their names and contents."""
        parts = {(name, file): data for name, given in parts.items()
                 for file, data in (given if isinstance(given, dict) else {None: given}).items()}
        call = self.begin(method, params, upload=True)
        pieces = [(name, data[i : i + PIECE], i == 0) for name, data in parts.items()
                  for i in range(0, max(len(data), 1), PIECE)]
        for i, (name, piece, first) in enumerate(pieces):
            assert call.credits.acquire(timeout=PATIENCE)
            if call.refused:
                break
            part = {"part": name[0], **({"file": name[1]} if name[1] else {})} if first else None
            self.send(frame(DATA, call.stream, part, piece,
                            flags=END if i == len(pieces) - 1 else 0))
        return call.result()

    def download(self, method, params):
        """(announcement, bytes)"""
        call = self.begin(method, params, credit=4)
        frames = list(call.events(regrant=1))
        data = b"".join(frames[1:])
        assert call.result()["bytes"] == len(data)
        return frames[0], data

    def generate(self, params, method="completion.create"):
        """(text of choice 0, events, result)"""
        call = self.begin(method, params, credit=1 << 20)
        events = list(call.events())
        result = call.result()
        return "".join(e["text"] for e in events if e["index"] == 0), events, result

    def add_file(self, text, filename="corpus.txt"):
        data = text if isinstance(text, bytes) else text.encode()
        return self.upload("file.create", {"filename": filename, "purpose": "fine-tune"}, file=data)["id"]

    def wait_job(self, job, until=("succeeded", "failed", "cancelled"), seconds=PATIENCE):
        return self.wait(lambda: (lambda j: j if j["status"] in until else None)(self.call("job.get", {"id": job})), seconds)

    def job_events(self, job):
        """All events of a job, newest first, however many pages they fill."""
        events, after, more = [], {}, True
        while more:
            page = self.call("job.events", {"id": job, "limit": 1000, **after})
            events += page["data"]
            after, more = {"after": page["last_id"]}, page["has_more"]
        return events

    @staticmethod
    def wait(condition, seconds=PATIENCE):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(0.01)
        raise AssertionError("it did not happen in time")


def dial(address):
    if address.startswith("unix:"):
        s = socket.socket(socket.AF_UNIX)
        s.connect(address[5:])
        return s
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host.strip("[]"), int(port)))


def read_exactly(s, n):
    data = b""
    while len(data) < n:
        more = s.recv(min(n - len(data), 1 << 20))
        if not more:
            return None
        data += more
    return data


def read_frames(s):
    while True:
        head = read_exactly(s, HEADER.size)
        if head is None:
            return
        length, json_bytes, credit, kind, _, _, stream = HEADER.unpack(head)
        body = read_exactly(s, length)
        if body is None:
            return
        yield kind, stream, json.loads(body[:json_bytes]) if json_bytes else None, body[json_bytes:], credit


class Daemon:
    """additived on a data folder, which outlives it."""

    def __init__(self, folder, *options, environment=None):
        self.folder = pathlib.Path(folder)
        self.options = [str(o) for o in options]
        self.environment = environment or {}
        self.log = self.folder.parent / f"{self.folder.name}.log"
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        if self.process.poll() is None:
            if failure:
                self.kill()
            else:
                assert self.stop() == 0

    def start(self):
        self.process = subprocess.Popen(
            [BIN / "additived", "--data", self.folder, "--backend", "cpu", "--threads", "1", *self.options],
            stdout=subprocess.PIPE, stderr=open(self.log, "ab"), env={**os.environ, **self.environment})
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline().decode() if readable else ""
        assert line.startswith("ready "), (line, self.log.read_text()[-2000:])
        self.address = line.split()[1]

    def connect(self):
        return Engine(self.address)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """One for all tests of a module, which imports this name."""
    with Daemon(tmp_path_factory.mktemp("daemon") / "data") as d:
        yield d


@pytest.fixture(scope="module")
def engine(daemon):
    with daemon.connect() as e:
        yield e


@pytest.fixture
def own_daemon(tmp_path):
    """A function that starts a daemon on a folder of the test's own. The test may kill it, and must stop it."""
    started = []

    def start(*options):
        started.append(Daemon(tmp_path / "data", *options))
        return started[-1]

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.kill()


# A model with a window shorter than its texts and a global layer, and with a bound, trained in a fraction of a second.
TINY = {"config": {"hidden_size": 16, "n_heads": 2, "n_layer": 2, "n_positions": 512, "window_sizes": [5, 512],
                   "position_embedding": "learned", "hidden_dropout_prob": 0.1},
        "sequence_length": 64, "batch_size": 4, "learning_rate": 3e-3}
TEXT = "".join(f"{n} bottles of beer on the wall, {n} bottles of beer. " for n in range(400, 0, -1))


TINY_GPT2 = {"config": {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 128},
             "sequence_length": 64, "batch_size": 4, "learning_rate": 3e-3}
TINY_RWKV = {"config": {"hidden_size": 16, "num_hidden_layers": 2}, "sequence_length": 64, "batch_size": 4, "learning_rate": 3e-3}
TINY_TRILINEAR = {"config": {"hidden_size": 32, "key_size": 16, "n_layer": 2, "window_size": 9, "wide_window_size": 64, "weight_bits": 8,
                             "token_keep": 0.9, "channel_keep": 0.9},
                  "sequence_length": 64, "batch_size": 4, "optimizer": "normalized_sgd", "schedule": "tail", "learning_rate": 0.01}


def job_params(file, steps=20, architecture="additive", **more):
    tiny = {"additive": TINY, "gpt2": TINY_GPT2, "rwkv": TINY_RWKV, "trilinear": TINY_TRILINEAR}[architecture]
    return {"model": architecture, "training_file": file, "seed": 7, "additive": {**tiny, "max_steps": steps, **more}}


def train(engine, steps=20, **more):
    """The id of a fresh tiny model."""
    job = engine.call("job.create", job_params(engine.add_file(TEXT), steps, **more))
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]
