"""Options of additive-httpd, its addresses and its health check."""

import json
import pathlib
import re
import socket
import subprocess
import threading

import pytest

from fake_engine import HELLO, pack
from http_support import BIN, engine, front, start


@pytest.mark.parametrize("arguments", [["--nonsense"], ["extra"], ["--max-connections", "0"], ["--max-connections", "x"],
                                       ["--request-timeout", "nan"], ["--grace", "-1"], ["--max-upload-bytes", "1e99"], ["--listen"]])
def test_wrong_usage_is_status_2(arguments):
    done = subprocess.run([BIN / "additive-httpd", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr


def test_addresses_that_cannot_be_used_end_the_start(front):
    for listen in ["nonsense", "127.0.0.1", "127.0.0.1:99999", "::1:80", ":8110", "*:8110", "[]:8110", "[::1]", "811000", "", f"127.0.0.1:{front.port}", "127.0.0.1:x"]:
        done = subprocess.run([BIN / "additive-httpd", "--listen", listen], capture_output=True, text=True)
        assert done.returncode == 1, listen
        assert "--listen" in done.stderr
    done = subprocess.run([BIN / "additive-httpd", "--listen", "127.0.0.1:0", "--engine", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2


def test_a_port_alone_is_on_this_machine_only(engine):
    process = subprocess.Popen([BIN / "additive-httpd", "--listen", "0", "--engine", "unix:" + engine.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
    finally:
        process.terminate()
        _, err = process.communicate(timeout=10)
    assert "without --api-key-file" not in err


def test_help_and_version_say_so(tmp_path):
    done = subprocess.run([BIN / "additive-httpd", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "\nusage: additive-httpd [OPTIONS]\n" in done.stdout
    done = subprocess.run([BIN / "additive-httpd", "--version"], capture_output=True, text=True)
    assert re.fullmatch(r"additive-httpd \d+\.\d+\.\d+\n", done.stdout)


def test_the_front_end_runs_before_threads_that_compute_when_it_wakes(front):
    def slice_ns(process):
        found = pathlib.Path(f"/proc/{process}/sched")
        match = re.search(r"^se\.slice\s*:\s*(\d+)", found.read_text(), re.M) if found.exists() else None
        return int(match[1]) if match else pytest.skip("this kernel does not show slices")

    assert slice_ns(front.process.pid) < slice_ns("self")


def health_check(address, *options):
    done = subprocess.run([BIN / "additive-httpd", "--health-check", "--listen", address, *options], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def on_a_gpu(engine):
    engine.hello = pack(HELLO, body={"protocol": 1, "software": "fake 0", "backend": "cuda", "device": "NVIDIA H100"})


def test_the_health_check_distinguishes_a_running_server_from_none(front):
    assert health_check(f"127.0.0.1:{front.port}")[0] == 0
    assert health_check(f"0.0.0.0:{front.port}")[0] == 0
    for address in ["127.0.0.1:1", "nonsense"]:
        assert health_check(address) == (1, "", f"additive-httpd: no server answers at {address}\n")


def test_health_and_readiness_name_backend_and_device(start, engine):
    on_a_gpu(engine)
    front = start()
    named = {"backend": "cuda", "device": "NVIDIA H100"}
    assert front.get("/healthz").json == {"status": "ok", **named}
    assert front.get("/readyz").json == {"status": "ready", **named}


def test_the_health_check_prints_the_backend_and_requires_one(start, engine):
    on_a_gpu(engine)
    address = f"127.0.0.1:{start().port}"
    printed = "backend cuda, device NVIDIA H100\n"
    assert health_check(address) == (0, printed, "")
    assert health_check(address, "--require-backend", "cuda") == (0, printed, "")
    assert health_check(address, "--require-backend", "cpu") == (1, printed, "additive-httpd: the backend must be cpu\n")


def test_while_the_engine_is_away_the_health_check_fails_only_where_a_backend_is_required(start, tmp_path):
    front = start(engine="unix:" + str(tmp_path / "none"), connected=False)
    address = f"127.0.0.1:{front.port}"
    assert front.get("/healthz").json == {"status": "ok", "backend": None, "device": None}
    assert health_check(address) == (0, "no backend: the engine is unavailable\n", "")
    assert health_check(address, "--require-backend", "cuda")[0] == 1


def test_the_health_check_reports_an_answer_other_than_200():
    with socket.create_server(("127.0.0.1", 0)) as other:
        def answer():
            for text in [b"HTTP/1.1 418 I'm a teapot\r\n\r\n", b""]:
                with other.accept()[0] as connection:
                    connection.recv(4096)
                    connection.sendall(text)

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert health_check(address) == (1, "", f"additive-httpd: the answer of {address} is not 200: HTTP/1.1 418 I'm a teapot\n")
        assert health_check(address) == (1, "", f"additive-httpd: no server answers at {address}\n")


def test_a_server_cannot_be_started_with_a_required_backend():
    done = subprocess.run([BIN / "additive-httpd", "--require-backend", "cuda", "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (2, "additive-httpd: --require-backend goes with --health-check\n")
