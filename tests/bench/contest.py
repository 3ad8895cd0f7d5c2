"""Running programs that measure: one-shot ones, and contestants that take turns.

A contestant (bench_train, bench_serve decode, peers.py) prints a line of JSON when it is ready. It then answers each
line of its standard input, a number of steps, with {"ns": [time of each]}. It sleeps while the others run, so a
disturbance of the machine affects all of them equally.
"""

import json
import os
import statistics
import subprocess


class Failure(Exception):
    """A program that did not answer, with the end of its output."""


def environment(threads, extra=None):
    return {**os.environ, "OMP_NUM_THREADS": str(threads), **(extra or {})}


def run(command, threads, extra=None):
    """The JSON objects that a program prints, one per line."""
    done = subprocess.run(command, env=environment(threads, extra), capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{command[0]}: {done.stderr.strip()[-300:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Contestant:
    """`facts` is the ready line; `times` are all bouts' times in seconds. Use as a context manager, or close."""

    def __init__(self, command, threads, extra=None, log=os.devnull):
        self.command = command
        with open(log, "a") as errors:
            self.process = subprocess.Popen(
                command,
                env=environment(threads, extra),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.times, self.facts = [], {}
        try:
            self.facts = self.answer()
        except Failure:
            self.close()
            raise

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise Failure(f"{' '.join(self.command)[:120]}: ended with status {self.process.wait()}")

    @property
    def able(self):
        return "unsupported" not in self.facts and "refused" not in self.facts

    def bout(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        times = [ns * 1e-9 for ns in self.answer()["ns"]]
        self.times += times
        return times

    def median(self):
        return statistics.median(self.times)

    def close(self):
        """The last line it prints, if any."""
        try:
            self.process.stdin.close()
            rest = [json.loads(line) for line in self.process.stdout if line.startswith("{")]
        except (OSError, ValueError):
            rest = []
        self.process.stdout.close()
        self.process.wait()
        return rest[-1] if rest else {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def take_turns(contestants, steps, rounds):
    """Bouts of `steps` in turn; the order is reversed every other round."""
    for number in range(rounds):
        for c in contestants if number % 2 == 0 else contestants[::-1]:
            c.bout(steps)
