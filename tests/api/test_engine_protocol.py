"""additived and peers that violate the protocol: each gets an error, and other connections continue."""

import json
import os
import socket
import subprocess

import pytest
import yaml

from http_support import ROOT
from engine_client import (BIN, CANCEL, CREDIT, DATA, END, ERROR, EVENT, HEADER, HELLO, PATIENCE, PING, PONG,
                           REQUEST, RESULT, Daemon, EngineError, daemon, dial, engine, frame, own_daemon,
                           read_frames)


def hello(version=1):
    return frame(HELLO, body={"protocol": version, "software": "test"})


def request(stream=1, method="engine.status", params=None, flags=END):
    return frame(REQUEST, stream, {"method": method, "params": params or {}}, flags=flags)


def answer_to(address, data):
    """Return the engine's answer on stream 0 before it closes the connection; None if it closes without an answer."""
    with dial(address) as s:
        s.settimeout(PATIENCE)
        s.sendall(data)
        errors = [body for kind, stream, body, _, _ in read_frames(s) if kind == ERROR and stream == 0]
        return errors[-1] if errors else None


def test_both_sides_say_hello(engine):
    assert engine.hello["protocol"] == 1
    assert engine.hello["software"].startswith("additived ")
    assert engine.hello["backend"] == "cpu" and engine.hello["device"]


def test_another_version_is_answered_with_both_versions(daemon):
    error = answer_to(daemon.address, hello(2))
    assert error["code"] == "protocol_mismatch" and error["status"] == 400
    assert "1" in error["message"] and "2" in error["message"]


def raw(length=0, json_bytes=0, credit=0, kind=PING, flags=0, zero=0, stream=0, body=b""):
    return HEADER.pack(length, json_bytes, credit, kind, flags, zero, stream) + body


MALFORMED = {
    "garbage": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    "type zero": hello() + raw(kind=0),
    "type past the end": hello() + raw(kind=11),
    "reserved bits": hello() + raw(zero=1),
    "JSON longer than the frame": hello() + raw(length=4, json_bytes=5, body=b"{}  "),
    "endless length": hello() + raw(length=0xFFFFFFFF, json_bytes=2),
    "endless JSON": hello() + raw(length=0xFFFFFFF0, json_bytes=0xFFFFFFF0, kind=REQUEST, stream=1),
    "payload over a mebibyte": hello() + raw(length=(1 << 20) + 1, kind=DATA, stream=1),
    "no hello": request(),
    "hello on a stream": frame(HELLO, 1, {"protocol": 1}),
    "hello without a version": frame(HELLO, body={"software": "x"}),
    "hello that is no JSON": frame(HELLO, body=b"{"),
    "hello with a text for a version": frame(HELLO, body={"protocol": "1"}),
    "two hellos": hello() + hello(),
    "request on stream 0": hello() + request(0),
    "request that is no JSON": hello() + frame(REQUEST, 1, b"{\"method\":", flags=END),
    "request that is a list": hello() + frame(REQUEST, 1, b"[]", flags=END),
    "request without a method": hello() + frame(REQUEST, 1, {"params": {}}, flags=END),
    "request whose method is a number": hello() + frame(REQUEST, 1, {"method": 1}, flags=END),
    "request with a list of params": hello() + frame(REQUEST, 1, {"method": "engine.status", "params": []}, flags=END),
    "request with a key twice": hello() + frame(REQUEST, 1, b'{"method":"a","method":"b"}', flags=END),
    "request with broken UTF-8": hello() + frame(REQUEST, 1, b'{"method":"\xff"}', flags=END),
    "request nested too deep": hello() + frame(REQUEST, 1, b'{"method":"engine.status","params":' + b"[" * 100000, flags=END),
    "stream id in use": hello() + request(1, "file.create", {"filename": "a", "purpose": "p"}, flags=0)
    + request(1, "file.create", {"filename": "a", "purpose": "p"}, flags=0),
    "a result from the client": hello() + frame(RESULT, 1, {}),
    "an event from the client": hello() + frame(EVENT, 1, {}),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_frame_is_answered_and_the_connection_closed(daemon, engine, case):
    error = answer_to(daemon.address, MALFORMED[case])
    assert error["code"] == "protocol_error" and error["status"] == 400 and error["message"]
    assert engine.call("engine.status")["backend"] == "cpu"


def test_late_data_for_an_answered_stream_is_legal(daemon):
    with dial(daemon.address) as s:
        s.sendall(hello() + request(1, "job.watch", {"id": "ftjob-none"}) + frame(DATA, 1, payload=b"x"))
        kinds = [(kind, stream) for kind, stream, *_ in _until_quiet(s)]
    assert kinds == [(HELLO, 0), (ERROR, 1)]


def _until_quiet(s):
    s.settimeout(0.3)
    try:
        yield from read_frames(s)
    except (TimeoutError, socket.timeout):
        pass


def test_late_frames_for_unknown_streams_are_ignored(daemon):
    with dial(daemon.address) as s:
        s.sendall(hello() + frame(CANCEL, 77) + frame(CREDIT, 78, credit=5) + frame(DATA, 79, payload=b"x") + frame(PING))
        kinds = [kind for kind, *_ in _until_quiet(s)]
    assert kinds == [HELLO, PONG]


def test_a_frame_may_come_byte_by_byte(daemon):
    with dial(daemon.address) as s:
        s.settimeout(PATIENCE)
        for byte in hello() + request():
            s.sendall(bytes([byte]))
        kinds = {}
        for kind, _, body, _, _ in read_frames(s):
            kinds[kind] = body
            if kind == RESULT:
                break
        assert kinds[RESULT]["backend"] == "cpu"


def test_peers_that_leave_in_the_middle_of_anything_do_no_harm(daemon, engine):
    whole = hello() + request(1, "file.create", {"filename": "a", "purpose": "p"}, flags=0) + \
        frame(DATA, 1, {"part": "file"}, b"x" * 100)
    for cut in range(0, len(whole), 7):
        with dial(daemon.address) as s:
            s.sendall(whole[:cut])
    engine.wait(lambda: engine.call("engine.status") and not any((daemon.folder / "tmp").iterdir()))


def error_of(engine, method, params):
    with pytest.raises(EngineError) as e:
        engine.call(method, params)
    return e.value


def test_an_unknown_method_is_not_found(engine):
    e = error_of(engine, "engine.explode", {})
    assert (e.status, e.code) == (404, "unknown_method")


@pytest.mark.parametrize("method,params,code,param", [
    ("engine.status", {"x": 1}, "unknown_parameter", "x"),
    ("model.get", {}, "missing_parameter", "id"),
    ("model.get", {"id": 7}, "invalid_type", "id"),
    ("job.list", {"limit": 0}, "out_of_range", "limit"),
    ("job.list", {"limit": 1e9}, "invalid_type", "limit"),
    ("file.list", {"order": "sideways"}, "invalid_value", "order"),
    ("completion.create", {"model": "m"}, "missing_parameter", "prompt"),
    ("completion.create", {"model": "m", "prompt": "x", "max_tokens": -1}, "out_of_range", "max_tokens"),
    ("completion.create", {"model": "m", "prompt": "x", "logprobs": 1000000000}, "out_of_range", "logprobs"),
    ("completion.create", {"model": "m", "prompt": {"a": 1}}, "invalid_type", "prompt"),
    ("completion.create", {"model": "m\0n", "prompt": "\0"}, "invalid_value", "model"),
    ("job.list", {"after": "\0"}, "invalid_value", "after"),
    ("file.create", {"filename": "a", "purpose": "p"}, "missing_parameter", None),
])
def test_wrong_params_are_named(engine, method, params, code, param):
    e = error_of(engine, method, params)
    assert (e.status, e.code, e.param) == (400, code, param)


@pytest.mark.parametrize("name", ["../../etc/passwd", "..", "", "a/b", "x" * 64, "x" * 100000, "a\0b", "%2e%2e", "file-\n"])
@pytest.mark.parametrize("method", ["model.get", "model.delete", "file.get", "file.content", "file.delete", "job.get",
                                    "job.cancel", "job.watch", "session.get", "session.export", "session.delete"])
def test_an_id_that_could_leave_the_folder_is_not_found(engine, method, name):
    assert error_of(engine, method, {"id": name}).status == 404


# Messages quote 12 to 64 bytes of these words: in one of four cases each of the cuts falls between two characters.
LONG = "a long word"
CUT = [("x" * n + word) for word in ("é" * 60, "😀" * 30) for n in range(4)]


@pytest.mark.parametrize("method,params", [
    ("explain", {"session": LONG}), ("explain", {"model": LONG, "input": "x"}), ("session.create", {"model": LONG}),
    ("completion.create", {"model": LONG, "prompt": "x"}), ("tokenize", {"model": LONG, "text": "x"}),
    ("job.create", {"model": LONG, "training_file": "f"}), ("job.create", {"model": "additive", "training_file": LONG}),
    ("job.create", {"model": "additive", "training_file": "f", LONG: 1}),
    ("job.create", {"model": "additive", "training_file": "f", "additive": {"config": {LONG: 1}}}),
    ("job.create", {"model": "additive", "training_file": "f", "additive": {"tokenizer": {"type": LONG}}}),
    (LONG, {})])
def test_a_quoted_word_that_is_cut_within_a_character_is_no_shortage_of_memory(engine, method, params):
    for word in CUT:
        replaced = json.loads(json.dumps([method, params]).replace(json.dumps(LONG)[1:-1], json.dumps(word)[1:-1]))
        e = error_of(engine, *replaced)
        assert e.status in (400, 404) and e.code != "out_of_memory", (word, str(e))


def test_a_file_in_the_folder_whose_name_is_not_text_is_listed(daemon, engine):
    folder = os.fsencode(daemon.folder / "lost" / "file")
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, b"a\xff\xfeb"), "wb").close()
    assert {"name": "a??b", "kind": "file", "bytes": 0} in engine.call("storage.usage")["lost"]


def test_one_connection_more_than_the_engine_takes_is_refused_with_the_reason(daemon, engine):
    others = []
    try:
        with pytest.raises(AssertionError):
            for _ in range(80):
                others.append(Refusable(daemon.address))
                assert others[-1].kind == HELLO
        assert others[-1].body["code"] == "too_many_connections"
        assert engine.call("engine.status")
    finally:
        for s in others:
            s.close()
    engine.wait(lambda: connections(engine) == 1)


def connections(engine):
    metrics = engine.call("engine.metrics")["metrics"]
    return next(m for m in metrics if m["name"] == "additive_engine_connections")["samples"][0]["value"]


class Refusable:
    """A connection that shows the first frame it gets."""

    def __init__(self, address):
        self.socket = dial(address)
        self.socket.settimeout(PATIENCE)
        self.kind, _, self.body, _, _ = next(read_frames(self.socket))

    def close(self):
        self.socket.close()


def test_one_request_more_than_a_connection_takes_is_refused_and_the_others_live(daemon):
    with daemon.connect() as crowd:
        calls = [crowd.begin("file.create", {"filename": "a", "purpose": "p"}, upload=True) for _ in range(1025)]
        with pytest.raises(EngineError) as e:
            calls[-1].result()
        assert (e.value.status, e.value.code) == (429, "too_many_streams")
        for call in calls[:-1]:
            call.cancel()
        for call in calls[:-1]:
            with pytest.raises(EngineError) as e:
                call.result()
            assert e.value.code == "cancelled"


def test_a_socket_left_by_a_dead_engine_is_replaced(own_daemon):
    daemon = own_daemon()
    daemon.kill()
    assert (daemon.folder / "engine.sock").exists()
    daemon.start()
    with daemon.connect() as e:
        assert e.call("engine.status")
    assert (daemon.folder / "engine.sock").stat().st_mode & 0o777 == 0o600
    assert daemon.stop() == 0
    assert not (daemon.folder / "engine.sock").exists()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "9000"])
def test_other_machines_reach_the_engine_only_when_that_is_allowed(tmp_path, address):
    command = [BIN / "additived", "--data", tmp_path / "data", "--backend", "cpu", "--threads", "1", "--socket", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "unix:PATH or HOST:PORT" in done.stderr if address == "9000" else "--allow-remote" in done.stderr


def test_the_engine_listens_beyond_this_machine_only_by_option(own_daemon):
    with own_daemon("--socket", "0.0.0.0:0", "--allow-remote") as daemon:
        assert daemon.address.startswith("0.0.0.0:")


def test_tcp_takes_any_free_port_and_says_which(own_daemon):
    with own_daemon("--socket", "127.0.0.1:0") as daemon:
        assert daemon.address.startswith("127.0.0.1:") and not daemon.address.endswith(":0")
        with daemon.connect() as e:
            assert e.call("engine.status")


def test_two_engines_do_not_share_a_folder(daemon):
    with pytest.raises(AssertionError) as e:
        Daemon(daemon.folder, "--socket", "127.0.0.1:0")
    assert "in use by another process" in str(e.value)


@pytest.mark.parametrize("options", [[], ["--data", ""], ["--data", "x", "--threads", "many"], ["--data", "x", "--max-batch", "0"],
                                     ["--data", "x", "y"], ["--date", "x"]])
def test_wrong_options_are_reported_on_standard_error(tmp_path, options):
    done = subprocess.run([BIN / "additived", *options], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2 and "additived" in done.stderr and not list(tmp_path.iterdir())


def test_help_and_version_need_no_folder():
    for option, word in (("--help", "--max-sessions"), ("--version", ".")):
        done = subprocess.run([BIN / "additived", option], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0 and word in done.stdout


def test_a_backend_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(AssertionError) as e:
        Daemon(tmp_path / "data", "--backend", "abacus")
    assert "abacus" in str(e.value)


def named_methods(node):
    """The engine's methods that a part of openapi.yaml names."""
    if isinstance(node, dict) and "x-engine-method" in node:
        yield node["x-engine-method"]
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from named_methods(child)


def test_the_engine_has_every_method_of_the_contract(engine):
    public, own = (yaml.load((ROOT / "proto" / name).read_text(), Loader=yaml.CSafeLoader) for name in ("openapi.yaml", "engine.yaml"))
    methods = {*named_methods(public["paths"]), *own["methods"]}
    assert len(methods) >= 40
    for method in methods:
        with pytest.raises(EngineError) as refusal:  # an unknown member, or none where one is needed: nothing is done
            engine.call(method, {"?": 1})
        assert refusal.value.code in ("unknown_parameter", "missing_parameter"), method
