"""The curve of a job's losses at a terminal, above the progress line."""

import http.server
import json
import os
import re
import signal
import threading
import time

import pytest
from terminal import Screen, Terminal, additive

BRAILLE = "[\u2801-\u28ff]"


class Watched(http.server.BaseHTTPRequestHandler):
    """A service with one job: `server.sent` are its events so far; it ends when `server.ended` is set."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        streams = self.path.startswith("/v1/fine_tuning/jobs/job/events")
        job = json.dumps({"id": "job", "status": "succeeded", "fine_tuned_model": "the-model"}).encode()
        self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        if not streams:
            self.wfile.write(job)
        else:
            for i, event in enumerate(self.server.sent):
                self.wfile.write(f"id: {i}\ndata: {json.dumps(event)}\n\n".encode())
            self.server.ended.wait(60)
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def watched():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Watched) as server:
        server.sent, server.ended = [], threading.Event()
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.ended.set()
        server.shutdown()


def metrics(step, total, train, **more):
    return {"type": "metrics", "created_at": 1700000000, "message": "Step",
            "data": {"step": step, "total_steps": total, "train_loss": train, **more}}


def settled(terminal, screen, wanted):
    """The screen, once the program has written `wanted` and then nothing for a while."""
    taken = terminal.until(wanted)
    while terminal.read(0.3):
        pass
    screen.feed(taken + terminal.screen)
    terminal.screen = ""
    return screen.lines


def curves(lines):
    """Return (rows, labels) of the lines that look like curves."""
    return [line for line in lines if re.match(r" *[-+.e\d]* [│|]", line)], [line for line in lines if "training loss" in line]


def test_a_job_that_has_ended_is_drawn_from_its_first_step_to_its_last(service, model):
    job = service.ok("GET", "/v1/fine_tuning/jobs")["data"][0]["id"]
    table = service.request("GET", f"/v1/fine_tuning/jobs/{job}/metrics.csv")[1].decode().splitlines()
    steps = [int(line.split(",")[1]) for line in table[1:]]
    for environment, drawn in (({"LC_ALL": "C.UTF-8"}, f"│.*{BRAILLE}"), ({"LC_ALL": "C"}, r"\|.*\*"),
                               ({"LC_ALL": "C.UTF-8", "TERM": "linux"}, r"\|.*\*")):
        status, output = Terminal("jobs", "watch", job, url=service.url, columns=70, **environment).end()
        rows, axis = curves(lines := Screen(70).feed(output).lines)
        assert status == 0 and len(rows) == 8 and len(axis) == 1, lines
        assert any(re.search(drawn, row) for row in rows) and any("o" in row for row in rows), rows
        assert re.match(rf" +{steps[0]} .* {steps[-1]}$", axis[0]) and "o: validation" in axis[0]
        assert lines[lines.index(axis[0]) + 1].startswith("60/60 [") and lines[lines.index(axis[0]) + 2] == model
        assert all(len(line) < 70 for line in rows + axis)


def test_without_room_a_terminal_or_the_wish_for_one_no_curve_is_drawn(service, model):
    job = service.ok("GET", "/v1/fine_tuning/jobs")["data"][0]["id"]
    for options, how in ((["--no-curve"], {}), (["--json"], {}), ([], {"columns": 30}), ([], {"rows": 15}), ([], {"TERM": "dumb"})):
        status, output = Terminal("jobs", "watch", job, *options, url=service.url, **how).end()
        assert status == 0 and not re.search(r"\d +training loss", output) and "\x1b[J" not in output, (options, how)
    assert "training loss" not in additive("jobs", "watch", job, url=service.url).stderr


def test_training_draws_the_curve_and_can_do_without(service, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} green bottles. " for n in range(400)))
    small = ("--steps", 20, "--hidden", 32, "--heads", 4, "--layers", 1, "--sequence", 64, "--batch", 4, "--eval-every", 5)
    for options, rows in (([], 8), (["--no-curve"], 0)):
        status, output = Terminal("train", text, *small, *options, url=service.url).end()
        assert status == 0 and len(curves(Screen(80).feed(output).lines)[0]) == rows, output


def test_a_long_job_is_drawn_once_its_events_have_come_and_not_for_each(watched):
    total = 20000
    watched.sent = [metrics(step, total, None if step == 100 else 1 + 8 * step / total) for step in range(1, total + 1)]
    watched.ended.set()
    status, output = Terminal("jobs", "watch", "job", url=watched.url, columns=100, LC_ALL="C").end()
    rows, axis = curves(Screen(100).feed(output).lines)
    assert status == 0 and len(rows) == 8 and re.match(r" *1 .*20000$", axis[0])
    assert re.match(r"8\.9\d+ \| +\*+$", rows[0]) and re.match(r"1\.0\d+ \|\*", rows[-1]), rows
    assert output.count("training loss") < total / 20


def test_messages_and_previews_scroll_above_the_curve(watched):
    watched.sent = [metrics(1, 9, 4.0), metrics(2, 9, 3.0), {"type": "message", "created_at": 0, "message": "first words"},
                    metrics(3, 9, 2.0, valid_loss=2.5, bits_per_byte=3.0, byte_entropy=4.0, preview={"prompt": "Once", "text": "upon"}),
                    {"type": "message", "created_at": 0, "message": "last words"}]
    screen = Screen(80)
    terminal = Terminal("jobs", "watch", "job", url=watched.url, LC_ALL="C.UTF-8")
    lines = settled(terminal, screen, "last words(.|\r|\n)*3/9")
    assert lines[:3] == ["first words", "step 3, 3.000 bits/byte (frequencies of bytes alone: 4.000): Once > upon", "last words"]
    assert len(lines) == 3 + 8 + 2 and lines[3].startswith("4 │") and lines[-1].startswith("3/9 [")
    terminal.type("\x03")
    status, output = terminal.end()
    assert status == 130 and curves(screen.feed(output).lines)[0] == [] and screen.lines[:3] == lines[:3]


def test_the_curve_follows_every_resize_and_leaves_nothing_behind(watched):
    watched.sent = [{"type": "message", "created_at": 0, "message": "The job has begun."}] + [metrics(n, 99, 9 / n) for n in range(1, 60)]
    screen = Screen(100)
    terminal = Terminal("jobs", "watch", "job", url=watched.url, columns=100, LC_ALL="C.UTF-8")
    lines = settled(terminal, screen, "59/99")
    assert lines[0] == "The job has begun." and [len(part) for part in curves(lines)] == [8, 1]
    for columns, rows in ((60, 24), (45, 24), (90, 24), (30, 24), (80, 24), (80, 12), (80, 24)):
        terminal.resize(columns, rows)
        screen.resize(columns)
        lines = settled(terminal, screen, "59/99")
        drawn = columns >= 41 and rows >= 16
        assert lines[0] == "The job has begun." and [len(part) for part in curves(lines)] == ([8, 1] if drawn else [0, 0]), (columns, lines)
        assert len(lines) == (11 if drawn else 2) and all(len(line) < columns for line in lines[1:]), (columns, lines)
    watched.ended.set()
    status, output = terminal.end()
    assert status == 0 and screen.feed(output).lines[-2:] == ["the-model", ""]


def test_after_a_stop_the_curve_is_drawn_below_what_the_shell_wrote(watched):
    watched.sent = [metrics(n, 99, 9 / n) for n in range(1, 60)]
    screen = Screen(80)
    terminal = Terminal("jobs", "watch", "job", url=watched.url, LC_ALL="C.UTF-8")
    settled(terminal, screen, "59/99")
    os.kill(terminal.process.pid, signal.SIGSTOP)
    time.sleep(0.1)
    screen.feed("\r\nthe shell's words\r\n")
    os.kill(terminal.process.pid, signal.SIGCONT)
    lines = settled(terminal, screen, "59/99")
    at = lines.index("the shell's words")
    assert [len(part) for part in curves(lines[:at])] == [len(part) for part in curves(lines[at:])] == [8, 1]
    terminal.type("\x03")
    assert terminal.end()[0] == 130
