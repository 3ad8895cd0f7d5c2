"""HTTPS: the front end's certificate, its handshakes, and the clients of this repository over it.

tests/data/tls holds two certificates for 127.0.0.1 and localhost, which an issuer signed that root.pem signed, and stranger.pem, another
root. Tests that start a front end with `tls="first"` speak HTTPS through `front.request`, `front.socket` and `front.open_stream`."""

import hashlib
import http.server
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from http_support import BIN, ROOT, TLS, Front, engine, read_all, read_head, start, wait_for
from test_http_generation import REQUEST, endless

sys.path.insert(0, str(ROOT / "clients" / "python"))
from additive_client import Client, ConnectionFailed

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def url(front):
    return f"https://127.0.0.1:{front.port}"


def name_of(front):
    """The common name of the certificate that a new connection gets."""
    with front.socket() as s:
        return dict(pair[0] for pair in s.getpeercert()["subject"])["commonName"]


def copy_key(name, key):
    key.write_bytes((TLS / f"{name}.key").read_bytes())


def copy(name, certificate, key):
    certificate.write_bytes((TLS / f"{name}.pem").read_bytes())
    copy_key(name, key)


def lists_no_model(engine):
    @engine.on("model.list")
    async def _(call):
        call.result({"object": "list", "data": [], "has_more": False})


def sighup(front, text):
    """Send SIGHUP and wait for a line with this text in the log."""
    before = len(front.log)
    front.process.send_signal(signal.SIGHUP)
    wait_for(lambda: any(text in line for line in front.log[before:]), what=text)
    return front.log[before:]


@pytest.fixture
def front(start):
    return start(tls="first")


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_curl_verifies_the_certificate(front, version):
    done = subprocess.run(["curl", "-sS", "--tlsv" + version, "--tls-max", version, "--cacert", TLS / "root.pem", url(front) + "/healthz"],
                          capture_output=True, text=True)
    assert done.returncode == 0 and '"status":"ok"' in done.stdout, done.stderr
    assert subprocess.run(["curl", "-sS", "--cacert", TLS / "stranger.pem", url(front) + "/healthz"], capture_output=True).returncode == 60


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_versions_before_1_2_are_refused(front):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(TLS / "root.pem")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", front.port), timeout=10) as s, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(s, server_hostname="127.0.0.1")


def test_the_python_client_verifies_the_certificate(front, engine, monkeypatch):
    lists_no_model(engine)
    assert Client(url(front), ca=TLS / "root.pem").models.list() == []
    for ca in [None, TLS / "stranger.pem"]:
        with pytest.raises(ConnectionFailed, match="certificate"):
            Client(url(front), ca=ca).models.list()
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "root.pem"))
    assert Client(url(front)).models.list() == []


def test_the_command_line_verifies_the_certificate(front, engine):
    lists_no_model(engine)

    def listed(*options, **environment):
        done = subprocess.run([BIN / "additive", *options, "models", "list", "--url", url(front)], capture_output=True, text=True,
                              env={**os.environ, **environment})
        return done.returncode, done.stderr

    root, stranger = str(TLS / "root.pem"), str(TLS / "stranger.pem")
    assert listed("--ca", root) == (0, "")
    assert listed(SSL_CERT_FILE=root) == (0, "")
    assert listed("--ca", root, SSL_CERT_FILE=stranger) == (0, "")
    for status, error in [listed(), listed("--ca", stranger), listed(SSL_CERT_FILE=stranger)]:
        assert status == 1 and "certificate" in error and "(--ca FILE or SSL_CERT_FILE" in error
    status, error = listed("--ca", "/nowhere.pem")
    assert status == 1 and "/nowhere.pem" in error


def test_the_health_check_finds_out_that_the_server_speaks_https(front):
    done = subprocess.run([BIN / "additive-httpd", "--health-check", "--listen", f"127.0.0.1:{front.port}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "backend" in done.stdout


def test_the_health_check_reads_past_session_tickets():
    class Well(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status":"ok","backend":"cpu","device":"d"}')

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "first.pem", TLS / "first.key")
    server = http.server.HTTPServer(("127.0.0.1", 0), Well)  # OpenSSL sends two tickets after a handshake
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        done = subprocess.run([BIN / "additive-httpd", "--health-check", "--listen", f"127.0.0.1:{server.server_port}"],
                              capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        server.shutdown()
        server.server_close()


# --- reloading ------------------------------------------------------------------------------------


def test_sighup_changes_the_certificate_of_new_connections_only(engine, tmp_path):
    certificate, key = tmp_path / "pair.pem", tmp_path / "pair.key"
    copy("first", certificate, key)
    endless(engine)
    front = Front(engine, "--tls-certificate", certificate, "--tls-key", key, trust=TLS / "root.pem")
    try:
        with front.open_stream("/v1/completions", {**REQUEST, "stream": True}) as stream:
            assert read_head(stream)[0] == 200
            assert name_of(front) == "first"
            copy("second", certificate, key)
            assert name_of(front) == "first"
            sighup(front, "certificate: new connections get it")
            assert name_of(front) == "second"
            stream.recv(4096)
            sent = engine.calls[0].sent
            wait_for(lambda: stream.recv(4096) and engine.calls[0].sent > sent + 5, what="the stream's next tokens")
            assert dict(pair[0] for pair in stream.getpeercert()["subject"])["commonName"] == "first"
    finally:
        front.close()


@pytest.mark.parametrize("broken,reason", [
    (lambda certificate, key: key.unlink(), "No such file or directory"),
    (lambda certificate, key: certificate.write_text("nothing"), "not a chain of certificates in PEM"),
    (lambda certificate, key: key.write_text("nothing"), "not a private key in PEM"),
    (lambda certificate, key: copy_key("second", key), "not the key of the certificate")])
def test_broken_files_leave_the_certificate_in_use(engine, tmp_path, broken, reason):
    certificate, key = tmp_path / "pair.pem", tmp_path / "pair.key"
    copy("first", certificate, key)
    front = Front(engine, "--tls-certificate", certificate, "--tls-key", key, trust=TLS / "root.pem")
    try:
        broken(certificate, key)
        lines = sighup(front, "certificate: the former one stays in use")
        assert any(reason in line and str(tmp_path) in line for line in lines), lines
        assert name_of(front) == "first"
        copy("second", certificate, key)
        sighup(front, "certificate: new connections get it")
        assert name_of(front) == "second"
    finally:
        front.close()


# --- the start --------------------------------------------------------------------------------------


@pytest.mark.parametrize("certificate,key,reasons", [
    ("/nowhere.pem", TLS / "first.key", ["--tls-certificate /nowhere.pem", "No such file"]),
    (TLS / "first.pem", "/nowhere.key", ["--tls-key /nowhere.key", "No such file"]),
    (TLS / "first.key", TLS / "first.key", ["--tls-certificate", "first.key", "not a chain of certificates"]),
    (TLS / "first.pem", TLS / "root.pem", ["--tls-key", "root.pem", "not a private key"]),
    (TLS / "first.pem", TLS / "second.key", ["--tls-key", "second.key", "not the key of the certificate"]),
    (ROOT, TLS / "first.key", ["--tls-certificate", "directory"])])
def test_files_that_are_no_pair_end_the_start(certificate, key, reasons):
    done = subprocess.run([BIN / "additive-httpd", "--listen", "127.0.0.1:0", "--tls-certificate", certificate, "--tls-key", key],
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert all(reason in done.stderr for reason in reasons), done.stderr


@pytest.mark.parametrize("option", ["--tls-certificate", "--tls-key"])
def test_one_of_the_two_options_is_wrong_usage(option):
    done = subprocess.run([BIN / "additive-httpd", "--listen", "127.0.0.1:0", option, TLS / "first.pem"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, "go together" in done.stderr) == (2, True)


# --- connections ---------------------------------------------------------------------------------------


def plain(front):
    return socket.create_connection(("127.0.0.1", front.port), timeout=10)


def rest_of(s):
    try:
        return read_all(s)
    except ConnectionError:
        return b""


@pytest.mark.parametrize("garbage", [HEALTH, b"\0" * 5000, b"\x16\x03\x01" + b"\xff" * 600, hashlib.sha512(b"1").digest() * 100,
                                     b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(506)], ids=["http", "zeros", "record", "noise", "hello"])
def test_what_is_no_handshake_ends_its_connection_alone(front, garbage):
    with front.socket() as other:
        before = front.descriptors()
        for _ in range(20):
            with plain(front) as s:
                s.sendall(garbage)
                assert b"HTTP/1.1 200" not in rest_of(s)
        other.sendall(HEALTH)
        assert b"HTTP/1.1 200" in read_all(other)
    wait_for(lambda: front.descriptors() < before, what="the end of the connections")


def test_slow_handshakes_block_nobody_and_end_after_the_time_of_a_request(start):
    front = start("--request-timeout", "1", tls="first")
    slow = [plain(front) for _ in range(20)]
    for s in slow:
        s.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
    assert front.get("/healthz").status == 200
    for s in slow:
        assert rest_of(s) == b""
        s.close()


def test_sixty_four_clients_at_once(front, engine):
    answers = []

    def ask():
        with front.socket(timeout=60) as s:
            for _ in range(3):
                s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                status, headers, rest = read_head(s)
                while len(rest) < int(headers["content-length"]):
                    rest += s.recv(4096)
                answers.append(status)

    threads = [threading.Thread(target=ask) for _ in range(64)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert answers == [200] * 192


def test_large_bodies_pass_in_both_directions(front, engine):
    body = os.urandom(3 << 20)

    @engine.on("file.content")
    async def _(call):
        await call.event({"bytes": len(body), "content_type": "application/octet-stream"})
        for at in range(0, len(body), 1 << 20):
            await call.data(body[at : at + (1 << 20)])
        call.result({"bytes": len(body)})

    assert front.get("/v1/files/f/content").body == body
    text = "x" * 900_000
    assert front.post("/v1/tokenize", {"model": "m", "text": text}).json["echo"]["text"] == text


@pytest.mark.parametrize("head,status", [(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 400),
                                         (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
                                         (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
                                         (b"GET /" + b"a" * 60000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
                                         (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 60000 + b"\r\n\r\n", 431)],
                         ids=["nul", "folded", "length", "target", "headers"])
def test_heads_are_refused_as_over_plain_http(front, head, status):
    """The library's own answers are replaced, and heads are looked at before it reads them (refusal.c, head_scan.c)."""
    front.trust.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # so that a truncated answer is an error
    with front.socket() as s:
        s.sendall(head)
        answer = read_all(s)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.count(b"HTTP/1.1") == 1 and b'"error"' in answer


def test_input_that_the_library_cannot_take_ends_the_request(start):
    """A chunk's extension without an end does not fit into its buffer. What waits has left the socket and is with GnuTLS."""
    front = start("--request-timeout", "2", tls="first")
    with front.socket(timeout=20) as s:
        head = b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5;"
        s.sendall(head.ljust(2 * 16384, b"e"))  # two records; the buffer takes a part of the second
        assert rest_of(s).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_work(front, engine, stream):
    endless(engine)
    s = front.open_stream("/v1/completions", {**REQUEST, "stream": stream})
    wait_for(lambda: engine.calls and engine.calls[0].sent >= 3)
    s.close()
    wait_for(engine.calls[0].cancelled.is_set, 2, "the cancellation")


def test_pages_of_the_server_itself_may_send_requests(front):
    host = f"localhost:{front.port}"
    for origin, status in [(f"https://{host}", 200), ("https://elsewhere.example", 403)]:
        assert front.get("/readyz", headers={"Host": host, "Origin": origin}).status == status
