"""A configuration file of the front end, and what SIGHUP changes while it runs."""

import json
import signal
import subprocess

import pytest

from fake_engine import FakeEngine
from http_support import BIN, TLS, Front, engine, front, read_head, start, wait_for
from test_http_generation import REQUEST, TENANT, endless
from test_http_tls import name_of, sighup


@pytest.fixture
def file(tmp_path):
    return tmp_path / "additive.toml"


def test_the_file_gives_options_and_the_command_line_takes_precedence(start, engine, file, tmp_path):
    (tmp_path / "keys").write_text("a-key\n")
    file.write_text(f'[engine]\nthe-engine-reads = "this"\n[server]\naccess-log = true\nmax-upload-bytes = 1000\napi-key-file = "{tmp_path}/keys"\n')
    front = start("--config", file, connected=False)
    assert front.get("/v1/models").status == 401
    wait_for(lambda: any("GET /v1/models 401" in line for line in front.log), what="the access log")
    key = {"Authorization": "Bearer a-key"}
    assert front.post("/v1/files", b"x" * 2000, headers=key | {"Content-Type": "multipart/form-data; boundary=b"}).status == 413
    other = start("--config", file, "--max-upload-bytes", 5000)
    assert other.post("/v1/files", b"x" * 2000, headers=key | {"Content-Type": "multipart/form-data; boundary=b"}).status != 413


@pytest.mark.parametrize("text,problem", [("[server]\npign = 1\n", ":2: server.pign: unknown key (did you mean ping?)"),
                                          ("[server]\nping = 1\nlisten = 8080\n", ":3: server.listen: expected a string"),
                                          ("[server]\nping = 0\n", ":2: server.ping 0: expected a number from 0.1 to 86400"),
                                          ("[server]\nversion = true\n", ":2: server.version: unknown key"),
                                          ("[server]\nping = \n", ":2: "), (None, ": No such file or directory")])
def test_a_wrong_file_ends_the_start_and_is_named_with_line_and_key(file, text, problem):
    if text:
        file.write_text(text)
    done = subprocess.run([BIN / "additive-httpd", "--listen", "127.0.0.1:0", "--config", file], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert f"additive-httpd: {file}{problem}" in done.stderr


def test_sighup_applies_limits_and_names_what_needs_a_restart(start, engine, file):
    file.write_text("[server]\nengine-timeout = 20\n")
    front = start("--config", file, "--ping", 9)
    endless(engine, events_first=3)
    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}) as stream:
        assert read_head(stream)[0] == 200
        assert front.get("/healthz", headers={"Host": "a.example"}).status == 403
        file.write_text('[server]\naccess-log = true\nengine-timeout = 21\nping = 0.1\nallow-host = "a.example"\nmax-upload-bytes = 1000\nlisten = "127.0.0.1:1"\n')
        lines = "".join(sighup(front, "--access-log has changed and is applied"))
        for name in ["allow-host", "max-upload-bytes"]:
            assert f"info additive-httpd: reload: --{name} has changed and is applied\n" in lines
        assert "warn additive-httpd: reload: --engine-timeout has changed and needs a restart\n" in lines
        for name in ["ping", "listen"]:  # given on the command line
            assert f"--{name} " not in lines
        assert front.get("/healthz", headers={"Host": "a.example"}).status == 200
        wait_for(lambda: any("GET /healthz 200" in line for line in front.log), what="the access log")
        assert front.post("/v1/files", b"x" * 2000, headers={"Content-Type": "multipart/form-data; boundary=b"}).status == 413
        # The log repeats only what needs a restart.
        lines = "".join(sighup(front, "--engine-timeout has changed and needs a restart"))
        assert "is applied" not in lines
        file.write_text("[server]\nengine-timeout = 20\n")
        lines = "".join(sighup(front, "--access-log has changed and is applied"))
        assert "restart" not in lines
        assert front.get("/healthz", headers={"Host": "a.example"}).status == 403
        assert not engine.calls[0].cancelled.is_set()


def test_a_shorter_ping_reaches_streams_that_are_open(start, engine, file):
    file.write_text("[server]\nping = 1000\n")
    front = start("--config", file)
    endless(engine, events_first=1)
    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}) as stream:
        wait_for(lambda: engine.calls and engine.calls[0].sent == 1)
        file.write_text("[server]\nping = 0.1\n")
        sighup(front, "--ping has changed and is applied")
        data = b""
        while data.count(b"\n:") < 3:
            data += stream.recv(4096)


@pytest.mark.parametrize("text,problem", [("[server]\nping = -1\n", ":2: server.ping -1: expected a number from 0.1"), ("[server\n", ":1: "),
                                          ('[server]\nallow-host = "http://a"\n', "--allow-host http://a: expected NAME"),
                                          ('[server]\nallow-host = "b.example"\ntrusted-proxies = "10.0.0.1/8"\n', "--trusted-proxies 10.0.0.1/8: expected an address")])
def test_a_wrong_file_changes_nothing(start, file, text, problem):
    file.write_text('[server]\nallow-host = "a.example"\n')
    front = start("--config", file)
    file.write_text(text + "access-log = true\n" if text.startswith("[server]") else text)
    lines = sighup(front, "reload: nothing is changed")
    assert any(problem in line for line in lines), lines
    assert front.get("/healthz", headers={"Host": "a.example"}).status == 200
    assert front.get("/healthz", headers={"Host": "b.example"}).status == 403
    assert not any("GET /healthz" in line for line in front.log)


def test_the_next_file_is_compared_with_the_options_in_use(start, file):
    file.write_text("[server]\n")
    front = start("--config", file)
    file.write_text('[server]\naccess-log = true\nallow-host = "http://a"\n')
    sighup(front, "reload: nothing is changed")
    file.write_text("[server]\naccess-log = true\n")
    sighup(front, "--access-log has changed and is applied")


def test_a_limit_that_is_gone_refuses_no_connection(start, engine, file):
    file.write_text("[server]\nmax-connections-per-ip = 1\n")
    front = start("--config", file, connected=False)
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with front.socket() as first, front.socket() as excess:
        for _ in range(2):  # the excess connection is accepted meanwhile
            first.sendall(ask)
            assert read_head(first)[0] == 200
        file.write_text("[server]\nmax-connections-per-ip = 0\n")
        sighup(front, "--max-connections-per-ip has changed and is applied")
        excess.sendall(ask)
        assert read_head(excess)[0] == 200


def test_sighup_reads_keys_again(start, engine, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    front = start("--api-key-file", keys)

    def status(key):
        return front.get("/v1/models", headers={"Authorization": "Bearer " + key}).status

    endless(engine)
    with front.open_stream("/v1/completions", {**REQUEST, "stream": True}, headers={"Authorization": "Bearer first"}) as stream:
        assert read_head(stream)[0] == 200
        keys.write_text("second\n")
        assert (status("first"), status("second")) == (200, 401)
        sighup(front, "API keys: read again")
        assert (status("first"), status("second")) == (401, 200)
        keys.write_text("# none\n")
        lines = sighup(front, "API keys: the former ones stay in use")
        assert any(f"the key file {keys} holds no key" in line for line in lines)
        assert (status("first"), status("second")) == (401, 200)
        sent = engine.called("completion.create")[0].sent
        wait_for(lambda: stream.recv(4096) and engine.called("completion.create")[0].sent > sent + 3)


def test_keys_and_https_are_switched_by_a_restart_alone(start, file, tmp_path):
    (tmp_path / "keys").write_text("a-key\n")
    file.write_text("")
    front = start("--config", file)
    file.write_text(f'[server]\napi-key-file = "{tmp_path}/keys"\ntls-certificate = "{TLS}/first.pem"\ntls-key = "{TLS}/first.key"\n')
    lines = "".join(sighup(front, "--tls-key has changed and needs a restart"))
    for name in ["api-key-file", "tls-certificate"]:
        assert f"--{name} has changed and needs a restart" in lines
    assert front.get("/v1/models").status == 200


def test_the_file_can_name_another_certificate(engine, file):
    def use(name):
        file.write_text(f'[server]\ntls-certificate = "{TLS}/{name}.pem"\ntls-key = "{TLS}/{name}.key"\n')

    use("first")
    front = Front(engine, "--config", file, trust=TLS / "root.pem")
    try:
        use("second")
        lines = sighup(front, "certificate: new connections get it")
        assert not any("is applied" in line for line in lines)
        assert name_of(front) == "second"
        file.write_text(f'[server]\ntls-certificate = "{TLS}/nothing.pem"\ntls-key = "{TLS}/first.key"\n')
        lines = sighup(front, "certificate: the former one stays in use")
        assert not any("is applied" in line for line in lines)
        assert name_of(front) == "second"
    finally:
        front.close()


@pytest.mark.parametrize("tenant", ["x" * 300, 'a"b', "team-1"])
def test_a_tenant_is_checked_when_its_peer_becomes_trusted_during_the_body(start, engine, tmp_path, tenant):
    file, body = tmp_path / "additive.toml", json.dumps(REQUEST)
    file.write_text("[server]\n")
    front = start("--config", file)
    with front.socket() as s:
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{TENANT}: {tenant}\r\n"
                  f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert s.recv(100).startswith(b"HTTP/1.1 100 ")  # the head has been checked
        file.write_text('[server]\ntrusted-proxies = "127.0.0.0/8"\n')
        sighup(front, "--trusted-proxies has changed and is applied")
        s.sendall(body.encode())
        assert read_head(s)[0] == 200
    assert engine.calls[-1].context.get("fairness_id") == (tenant if tenant == "team-1" else None)
