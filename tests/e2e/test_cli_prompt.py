"""The interactive prompt of the command line, at a terminal."""

import http.server
import os
import signal
import subprocess
import termios
import threading
import time

from conftest import BIN
from terminal import Terminal


def sessions(service):
    return {s["id"]: s["tokens"] for s in service.ok("GET", "/v1/sessions")["data"]}


def only_new(service, before):
    """(id, tokens) of the one session that was not there before."""
    (new,) = [s for s in sessions(service).items() if s[0] not in before]
    return new


def converse(service, model, tmp_path, *options):
    terminal = Terminal("generate", *(("--model", model) if model else ()), "--temperature", "0", *options,
                        url=service.url, XDG_STATE_HOME=str(tmp_path))
    terminal.until(r">>> ")
    return terminal


def test_a_terminal_without_a_prompt_converses_in_one_text(service, model, tmp_path):
    before = sessions(service)
    terminal = converse(service, model, tmp_path, "--max-tokens", "9")
    terminal.type("57 bottles of \r")
    answer = terminal.until(r"\n>>> ")
    expected = service.ok("POST", "/v1/completions", {"model": model, "prompt": "57 bottles of ", "max_tokens": 9,
                                                      "temperature": 0})["choices"][0]["text"]
    assert answer.split("57 bottles of ")[-1].startswith("\r\n" + expected.replace("\n", "\r\n"))
    session, tokens = only_new(service, before)
    assert tokens == len("57 bottles of ") + 9
    terminal.type("12\r")
    terminal.until(r"\n>>> ")
    newline = 0 if expected.endswith("\n") else 1
    assert sessions(service)[session] == tokens + newline + len("12") + 9
    terminal.type("\x04")
    assert terminal.end()[0] == 0
    assert session not in sessions(service)


def test_at_the_prompt_ctrl_c_stops_the_answer_or_the_line_and_no_more(service, model, tmp_path):
    session = service.ok("POST", "/v1/sessions", {"model": model, "position_policy": "wrap"})["id"]
    terminal = converse(service, None, tmp_path, "--session", session, "--max-tokens", "1000000")
    for _ in range(2):  # the session continues after an answer that was stopped
        known = sessions(service)[session]
        terminal.type("99 bottles\r")
        terminal.until(r"99 bottles\r\n[^>]{80}")
        terminal.type("\x03")
        terminal.until(r"\n>>> ")
        while sessions(service)[session] == known:  # until the service has seen that the client went
            time.sleep(0.02)
        assert sessions(service)[session] > known + 40  # a newline is two characters on the screen
    known = sessions(service)[session]
    terminal.type("never sent\x03")
    terminal.until(r"never sent\^C\r\n>>> ")
    terminal.type("/hlep\r")
    assert "did you mean /help?" in terminal.until(r"\n>>> ")
    terminal.type("/exit\r")
    status, screen = terminal.end()
    assert status == 0 and f"--session {session}" in screen
    assert sessions(service)[session] == known
    service.ok("DELETE", f"/v1/sessions/{session}")


def test_the_prompt_takes_several_lines_and_remembers_them(service, model, tmp_path):
    before = sessions(service)
    terminal = converse(service, model, tmp_path, "--max-tokens", "1", "--new-session")
    for keys in ('"""one\r', "two\r", 'three"""\r'):
        terminal.type(keys)
        terminal.until(r"(\.\.\.|>>>) ")
    session, tokens = only_new(service, before)
    assert tokens == len("one\ntwo\nthree") + 1
    terminal.type("/exit\r")
    assert session in terminal.end()[1]
    service.ok("DELETE", f"/v1/sessions/{session}")
    again = converse(service, model, tmp_path, "--max-tokens", "1")
    again.type("\x1b[A")
    again.until("/exit")
    again.type("\x1b[A")
    again.until('three"""')
    again.type("\x03\x04")
    assert again.end()[0] == 0


def test_keys_typed_during_an_answer_are_obeyed_after_it(service, model, tmp_path):
    session = service.ok("POST", "/v1/sessions", {"model": model, "position_policy": "wrap"})["id"]
    terminal = converse(service, None, tmp_path, "--session", session, "--max-tokens", "3000")
    terminal.type("99 bottles\r")
    terminal.until(r"99 bottles\r\n[^>]")
    terminal.type("\x04")
    assert terminal.end()[0] == 0
    service.ok("DELETE", f"/v1/sessions/{session}")


def test_ctrl_c_before_the_answer_begins_stops_it(service, model, tmp_path):
    terminal = converse(service, model, tmp_path, "--new-session", "--position-policy", "wrap", "--max-tokens", "1000000")
    os.kill(service.child("additive-httpd"), signal.SIGSTOP)
    try:
        terminal.type("99 bottles\r")
        while not terminal.settings()[0] & termios.ISIG:
            time.sleep(0.01)
        terminal.type("\x03")
        terminal.until(r"99 bottles.*\r\n\^C")
    finally:
        os.kill(service.child("additive-httpd"), signal.SIGCONT)
    terminal.until(r">>> ", seconds=5)
    terminal.type("/exit\r")
    status, screen = terminal.end()
    assert status == 0
    while service.request("DELETE", "/v1/sessions/" + screen.split()[-1])[0] == 409:  # it has yet to see the client gone
        time.sleep(0.02)


def test_a_visible_prompt_takes_every_key_and_the_end_gives_the_terminal_back(service, model, tmp_path):
    terminal = Terminal("generate", "--model", model, url=service.url, XDG_STATE_HOME=str(tmp_path))
    for _ in range(50):
        terminal.until(r">>> ")
        assert terminal.settings()[0] == 0
        terminal.type("\r")
    terminal.until(r">>> ")
    terminal.type("\x00\x04")  # Ctrl-Space sets a mark
    assert terminal.process.wait(timeout=20) == 0
    assert terminal.settings() == (termios.ISIG | termios.ICANON | termios.ECHO, b"\x04")


class BusySession(http.server.BaseHTTPRequestHandler):
    """A service whose session is busy after an answer: a deletion is refused twice, without a time to wait and with one."""

    protocol_version = "HTTP/1.1"

    def answer(self, status, body, kind="application/json", **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/sessions":
            self.answer(200, '{"id": "sess-1", "object": "session"}')
        else:
            self.answer(200, 'data: {"choices": [{"text": "yes"}]}\n\ndata: [DONE]\n\n', "text/event-stream")

    def do_DELETE(self):
        self.server.deletions.append((self.path, time.monotonic()))
        busy = '{"error": {"code": "session_busy", "message": "another request uses the session"}}'
        if len(self.server.deletions) < 3:
            self.answer(409, busy, **({"Retry_After": 1} if len(self.server.deletions) == 2 else {}))
        else:
            self.answer(200, '{"id": "sess-1", "object": "session", "deleted": true}')

    def log_message(self, *_):
        pass


def test_a_session_that_is_still_busy_at_the_end_is_deleted_when_it_is_free(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BusySession) as server:
        server.deletions = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        terminal = Terminal("generate", "--model", "m", url=f"http://127.0.0.1:{server.server_port}", XDG_STATE_HOME=str(tmp_path))
        terminal.until(r">>> ")
        terminal.type("is it\r")
        terminal.until(r"yes\r\n>>> ")
        terminal.type("\x04")
        status, screen = terminal.end()
        server.shutdown()
    assert status == 0 and "busy" not in screen
    (path, _), (_, second), (_, third) = server.deletions
    assert path == "/v1/sessions/sess-1" and third - second >= 1






def chat(service, model, messages, longest):
    body = {"model": model, "messages": messages, "max_tokens": longest, "temperature": 0}
    return service.ok("POST", "/v1/chat/completions", body)


def test_a_message_is_answered_as_the_service_answers_it(service, model):
    messages = [{"role": "system", "content": "count"}, {"role": "user", "content": "99"}]
    answer = chat(service, model, messages, 12)["choices"][0]["message"]["content"]
    ask = [BIN / "additive", "--url", service.url, "chat", "--system", "count", "--max-tokens", "12", "--temperature", "0", model]
    for more, given in ((["99"], None), ([], "99")):
        done = subprocess.run([*ask, *more], input=given, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, answer), done.stderr


def test_a_conversation_at_a_terminal_is_one_session(service, model, tmp_path):
    before = sessions(service)
    terminal = Terminal("chat", model, "--max-tokens", "5", "--temperature", "0", url=service.url, XDG_STATE_HOME=str(tmp_path))
    terminal.until(r">>> ")
    said = []
    for text in ("9", "8"):
        said.append({"role": "user", "content": text})
        answer = chat(service, model, said, 5)
        said.append(answer["choices"][0]["message"])
        terminal.type(text + "\r")
        terminal.until(r"\n>>> ")
        session, tokens = only_new(service, before)
        assert tokens == answer["usage"]["total_tokens"]
    terminal.type("\x04")
    assert terminal.end()[0] == 0
    assert session not in sessions(service)
