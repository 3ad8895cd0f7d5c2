"""Fixtures and small tools for the tests of the HTTP front end against the fake engine."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

import openai
import pytest

from fake_engine import FakeEngine

ROOT = pathlib.Path(__file__).resolve().parents[2]
TLS = ROOT / "tests" / "data" / "tls"
BIN = pathlib.Path(os.environ.get("ADDITIVE_BIN", ROOT / "build" / "bin"))


def wait_for(condition, seconds=5, what="the condition"):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true in {seconds} s"
        time.sleep(0.005)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


class Front:
    """A running additive-httpd. tls: the name of a pair in tests/data/tls, for HTTPS; trust: a root, if the options say HTTPS."""

    def __init__(self, engine, *options, connected=True, tls=None, trust=None):
        address = engine if isinstance(engine, str) else "unix:" + engine.path
        if tls:
            trust = TLS / "root.pem"
            options = (*options, "--tls-certificate", TLS / f"{tls}.pem", "--tls-key", TLS / f"{tls}.key")
        self.trust = ssl.create_default_context(cafile=trust) if trust else None
        # Under a sanitizer, freed memory is kept for a while: little, or it would look like a leak.
        env = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=2"}
        self.process = subprocess.Popen(
            [BIN / "additive-httpd", "--listen", "127.0.0.1:0", "--engine", address, *map(str, options)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.log = []
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on (https?)://127\.0\.0\.1:(\d+)\n", line)
        assert match and match[1] == ("https" if trust else "http"), (line, self.log)
        self.port = int(match[2])
        if connected:
            wait_for(lambda: self.get("/readyz").status == 200, what="readiness")

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)

    def request(self, method, path, body=None, headers=None, timeout=10):
        if self.trust:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.trust)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.request("POST", path, body, **more)

    def delete(self, path, **more):
        return self.request("DELETE", path, **more)

    def openai(self):
        """OpenAI's own client."""
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="any", max_retries=0)

    def socket(self, timeout=10):
        return self._encrypt(socket.create_connection(("127.0.0.1", self.port), timeout=timeout))

    def _encrypt(self, s):
        return self.trust.wrap_socket(s, server_hostname="127.0.0.1", suppress_ragged_eofs=False) if self.trust else s

    def open_stream(self, path, body, headers=None, receive_buffer=None):
        """POST JSON and return the socket with the answer unread."""
        s = socket.socket()
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(10)
        s.connect(("127.0.0.1", self.port))
        s = self._encrypt(s)
        text = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n"
        head += "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items())
        s.sendall(head.encode() + b"\r\n" + text)
        return s

    def rss(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) * 1024

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metric(self, name):
        """The value of one sample of /metrics, 0 when it is not there."""
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def stop(self, number=signal.SIGTERM, seconds=15):
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self):
        alive = self.process.poll() is None
        if alive:
            code = self.stop()
        else:
            code = self.process.returncode
        self.reader.join(5)
        self.process.stdout.close()
        self.process.stderr.close()
        assert code == 0, (code, self.log)


@pytest.fixture
def engine(tmp_path):
    with FakeEngine(tmp_path / "engine.sock") as fake:
        yield fake


@pytest.fixture
def start(engine):
    """Start front ends with options; every one must still be well, and end with status 0."""
    fronts = []

    def begin(*options, **more):
        fronts.append(Front(more.pop("engine", engine), *options, **more))
        return fronts[-1]

    yield begin
    for front in fronts:
        front.close()


@pytest.fixture
def front(start):
    return start()


def read_head(s):
    """Read an answer's head from a socket: status, headers (lower case), and the bytes read after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = s.recv(65536)
        assert piece, ("the connection ended within the head", data)
        data += piece
    head, rest = data.split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
    return int(lines[0].split()[1]), headers, rest


def read_all(s):
    data = b""
    while piece := s.recv(65536):
        data += piece
    return data


def unchunk(data):
    """The body of a chunked answer, and whether it was whole."""
    body = b""
    while b"\r\n" in data:
        size, data = data.split(b"\r\n", 1)
        n = int(size, 16)
        if n == 0:
            return body, True
        body, data = body + data[:n], data[n + 2 :]
    return body, False


def events(body):
    """The events of an SSE body as (id or None, data); comments are left out."""
    out = []
    for block in body.decode().split("\n\n"):
        fields = [line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")]
        if fields:
            out.append((dict(fields).get("id"), "\n".join(v for k, v in fields if k == "data")))
    return out


def chunks(body):
    """The JSON chunks of a completion's stream; it must end with [DONE]."""
    found = events(body)
    assert found[-1][1] == "[DONE]"
    return [json.loads(data) for _, data in found[:-1]]
