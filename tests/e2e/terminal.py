"""Programs at a shell and at a terminal, and the screen of such a terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

from conftest import BIN, SANITIZED


def additive(*args, url=None, **kw):
    where = {"ADDITIVE_URL": url} if url else {}
    return subprocess.run([BIN / "additive", *map(str, args)], capture_output="stdout" not in kw, text=True, timeout=120,
                          env={**os.environ, **where}, **kw)


def help_of(*program):
    out = subprocess.run([BIN / program[0], *program[1:], "--help"], capture_output=True, text=True)
    assert out.returncode == 0
    return out.stdout


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, *args, url=None, columns=80, rows=24, program=BIN / "additive", **environment):
        self.screen, self.fd = "", None
        self.fd, inner = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            [program, *map(str, args)], stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "1", **({"ADDITIVE_URL": url} if url else {}), **environment})
        os.close(inner)

    def resize(self, columns, rows=24):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settings(self):
        """(what the kernel does with keys, the end-of-file character)"""
        _, _, _, local, _, _, characters = termios.tcgetattr(self.fd)
        return local & (termios.ISIG | termios.ICANON | termios.ECHO), characters[termios.VEOF]

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def read(self, seconds):
        """More of the output; False when nothing comes in that time, or no more can."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self.fd, 65536).decode(errors="replace")
        except OSError:  # the program has closed it
            return False
        self.screen += piece
        return bool(piece)

    def until(self, wanted, seconds=20):
        """Remove and return the output up to the end of the match of `wanted`."""
        deadline = time.monotonic() + seconds * (4 if SANITIZED else 1)
        while not (match := re.search(wanted, self.screen)):
            assert time.monotonic() < deadline, f"expected {wanted!r}, got {self.screen!r}"
            if not self.read(0.2) and self.process.poll() is not None:
                assert re.search(wanted, self.screen), f"expected {wanted!r}, got {self.screen!r}"
        taken, self.screen = self.screen[:match.end()], self.screen[match.end():]
        return taken

    def end(self):
        """(exit status, the rest of the output)"""
        while self.read(20):
            pass
        status = self.process.wait(timeout=20)
        os.close(self.fd)
        return status, self.screen


def widest(screen):
    """Return the width of the widest line on the final screen, in characters (the tests print narrow ones)."""
    return max(len(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.split("\r")[-1]))
               for line in screen.replace("\r\n", "\n").split("\n"))


class Screen:
    """A program's output as a terminal shows it: lines are wrapped at its width, and wrapped again when that
    changes."""

    def __init__(self, columns, rows=24):
        self.columns, self.rows = columns, rows
        self.lines, self.line, self.at = [""], 0, 0  # the cursor is before character `at` of that line

    def physical(self):
        """(line, where it begins) of every row."""
        return [(i, start) for i, line in enumerate(self.lines) for start in range(0, max(len(line), 1), self.columns)]

    def cursor_row(self):
        rows = self.physical()
        return max(i for i, (line, start) in enumerate(rows) if line == self.line and start <= self.at), rows

    def feed(self, output):
        for part in re.findall(r"\x1b\[\d*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
            here, rows = self.cursor_row()
            start = rows[here][1]
            if part == "\r":
                self.at = start
            elif part == "\n":
                if here + 1 == len(rows):
                    self.lines.append("")
                    rows.append((len(self.lines) - 1, 0))
                self.line, self.at = rows[here + 1]
            elif re.fullmatch(r"\x1b\[\d*A", part):
                top = max(0, len(rows) - self.rows)
                self.line, self.at = rows[max(top, here - int(part[2:-1] or 1))]
            elif part in ("\x1b[K", "\x1b[J"):
                assert self.at == start or part == "\x1b[K"
                self.lines[self.line] = self.lines[self.line][:self.at]
                if part == "\x1b[J":
                    del self.lines[self.line + 1:]
            else:
                assert part[0] != "\x1b", f"unexpected control sequence {part!r}"
                old = self.lines[self.line]
                self.lines[self.line] = old[:self.at].ljust(self.at) + part + old[self.at + len(part):]
                self.at += len(part)
        return self

    def resize(self, columns):
        self.columns = columns
