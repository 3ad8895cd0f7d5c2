"""`additive serve` with a configuration file and with HTTPS."""

import json
import os
import pathlib
import signal
import ssl
import subprocess
import time
import urllib.request

import pytest

from conftest import BIN, Service

ROOT = pathlib.Path(__file__).parents[2]
TLS = ROOT / "tests" / "data" / "tls"


def printed(*options):
    return subprocess.run([BIN / "additive", "serve", "--print-config", *options], capture_output=True, text=True)


def wait_for_log(service, text, seconds=20):
    deadline = time.monotonic() + seconds
    while text not in service.log.read_text():
        assert time.monotonic() < deadline, (text, service.log.read_text())
        time.sleep(0.02)


def test_the_example_is_what_print_config_writes():
    """So every option is in it, with today's help, and it loads."""
    example = (ROOT / "deploy" / "additive.toml").read_text()
    done = printed("--config", ROOT / "deploy" / "additive.toml")
    assert done.returncode == 0, done.stderr
    assert example[example.index("[engine]"):] == done.stdout
    assert example[:example.index("[engine]")].replace("#", "").strip()


def test_print_config_merges_the_file_and_the_command_line(tmp_path):
    file = tmp_path / "additive.toml"
    file.write_text('[engine]\ndata = "here"\nmax-models = 2\n[server]\nping = 3\nallow-host = ["a"]\n')
    done = printed("--config", file, "--max-models", "3", "--allow-host", "b", "--allow-host", "c")
    lines = done.stdout.splitlines()
    for line in ['data = "here"', "max-models = 3", "ping = 3", 'allow-host = ["b", "c"]']:
        assert line in lines
    assert any(line.startswith("# max-sessions: ") and line.endswith("(256)") for line in lines)
    file.write_text(done.stdout)
    assert printed("--config", file).stdout == done.stdout


@pytest.mark.parametrize("text,problem", [("[engine]\nmax-model = 1\n", ":2: engine.max-model: unknown key (did you mean max-models?)"),
                                          ('[engine]\nping = 1\n', ":2: engine.ping: this key belongs to [server]"),
                                          ('[engine]\nbackend = "gpu"\n', ":2: engine.backend must be auto, cpu or cuda"),
                                          ("[server]\nping = true\n", ":2: server.ping: expected a number"),
                                          ("[other]\n", ":1: [other]: unknown table"),
                                          ("data = \"x\"\n", ":1: data: this key is in no table")])
def test_a_wrong_file_is_refused(tmp_path, text, problem):
    file = tmp_path / "additive.toml"
    file.write_text(text)
    for options in [["--print-config"], ["--data", tmp_path / "data"]]:
        done = subprocess.run([BIN / "additive", "serve", "--config", file, *options], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2
        assert done.stderr.startswith(f"additive: {file}{problem}"), done.stderr
    assert not (tmp_path / "data").exists()


def test_the_engine_reads_its_section(tmp_path):
    file = tmp_path / "additive.toml"
    file.write_text('[server]\nfor-another-program = 1\n[engine]\nthreads = 5000\n')
    done = subprocess.run([BIN / "additived", "--config", file], capture_output=True, text=True)
    assert (done.returncode, f"{file}:4: engine.threads 5000: expected an integer from 0 to 1024" in done.stderr) == (2, True)
    file.write_text(f'[engine]\ndata = "{tmp_path}/data"\nsocket = "unix:{tmp_path}/own.sock"\n')
    engine = subprocess.Popen([BIN / "additived", "--config", file], stdout=subprocess.PIPE, text=True)
    try:
        assert engine.stdout.readline() == f"ready unix:{tmp_path}/own.sock\n"
    finally:
        engine.terminate()
        engine.communicate(timeout=30)


def test_a_service_speaks_https_by_its_file_and_reloads_it(tmp_path):
    file, certificate, key = tmp_path / "additive.toml", tmp_path / "a.pem", tmp_path / "a.key"

    def use(name):
        certificate.write_bytes((TLS / f"{name}.pem").read_bytes())
        key.write_bytes((TLS / f"{name}.key").read_bytes())

    def write(more_engine="", more_server=""):
        file.write_text(f'[engine]\n{more_engine}\n[server]\ntls-certificate = "{certificate}"\ntls-key = "{key}"\n{more_server}\n')

    def served():
        port = int(service.url.rsplit(":", 1)[1])
        trust = ssl.create_default_context(cafile=TLS / "root.pem")
        with urllib.request.urlopen(service.url + "/readyz", context=trust, timeout=20) as answer:
            assert answer.status == 200
        pem = ssl.get_server_certificate(("127.0.0.1", port))
        return next(name for name in ["first", "second"] if (TLS / f"{name}.pem").read_text().startswith(pem))

    use("first")
    write("max-models = 2")
    service = Service(tmp_path / "data", "--config", str(file))
    try:
        assert service.url.startswith("https://") and served() == "first"
        done = subprocess.run([BIN / "additive", "--ca", TLS / "root.pem", "--url", service.url, "ps"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        use("second")
        write("max-models = 3", "access-log = true")
        service.process.send_signal(signal.SIGHUP)
        wait_for_log(service, "certificate: new connections get it")
        assert served() == "second"
        wait_for_log(service, "warn additive: reload: --max-models has changed and needs a restart")
        wait_for_log(service, "info additive-httpd: reload: --access-log has changed and is applied")
        # The engine is started again with the options of the start, whatever the file holds by then.
        file.write_text("[engine]\nnonsense = 1\n")
        service.process.send_signal(signal.SIGHUP)
        wait_for_log(service, f"warn additive: reload: nothing is changed: {file}:2: engine.nonsense: unknown key")
        old = service.engine_pid()
        os.kill(old, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while service.engine_pid() in (None, old):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        arguments = pathlib.Path(f"/proc/{service.engine_pid()}/cmdline").read_bytes().split(b"\0")
        assert b"--max-models=2" in arguments
    finally:
        assert service.stop() == 0


def test_a_file_may_name_the_data_folder_and_the_address(tmp_path):
    file = tmp_path / "additive.toml"
    file.write_text(f'[engine]\ndata = "{tmp_path}/data"\n[server]\nlisten = "127.0.0.1:0"\n')
    process = subprocess.Popen([BIN / "additive", "serve", "--config", file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout.readline().startswith("ready http://127.0.0.1:")
        assert (tmp_path / "data" / "identity").exists()
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_all_programs_of_the_service_log_in_the_requested_form(tmp_path):
    file = tmp_path / "additive.toml"
    file.write_text('[engine]\nlog-format = "json"\nthreads = 1\n[server]\naccess-log = true\n')
    service = Service(tmp_path / "data", "--config", str(file))
    try:
        assert service.request("GET", "/v1/models/none", headers={"X-Request-Id": "seen-1"})[0] == 404
        os.kill(int(subprocess.check_output(["pgrep", "-P", str(service.process.pid), "additive-httpd"])), signal.SIGKILL)
        wait_for_log(service, "starting additive-httpd again")
    finally:
        service.process.terminate()
        assert service.process.wait(30) == 0
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert {line["program"] for line in lines} == {"additive", "additived", "additive-httpd"}
    assert [line["status"] for line in lines if line.get("request_id") == "seen-1"] == [404]
