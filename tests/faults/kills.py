"""Kill, stop and restart every process at random under `additive load`, and check what the service acknowledged.

    make kills MINUTES=10        or: kills.py --minutes 10 [--seed 1]

Three loads run for the whole time: completions with slow and leaving clients, durable sessions in turns, and chats at
random times. A fourth is killed and begun again and again. Meanwhile the engine and the front end are killed or stopped
for up to two seconds, and the whole service is ended and started. Each load compares every text with that of the
undisturbed service, and the turns of each session with what was acknowledged."""

import argparse
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))
from conftest import BIN, Service  # noqa: E402  (of the e2e tests)

LOADS = {
    "completions": ["--clients", "16", "--slow", "0.1", "--leave", "0.2"],
    "sessions": ["--sessions", "16", "--turns", "6", "--durable", "--leave", "0.1"],
    "chats": ["--chat", "--rate", "20", "--temperature", "1"],
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Trial:
    def __init__(self, folder, seed):
        self.folder, self.random, self.port = folder, random.Random(seed), free_port()
        self.done, self.loads = {}, []
        self.start()

    def train(self):
        job = self.service.job(steps=30, architecture="additive2")
        self.model = self.service.wait_job(job["id"])["fine_tuned_model"]

    def start(self):
        self.service = Service(self.folder / "data", listen=f"127.0.0.1:{self.port}")

    def load(self, name, options, seconds, tries=20):
        """A load whose texts to compare with are known. It begins again if it could not: a killed program starts, or the service is full."""
        history = self.folder / f"{name}.jsonl"
        history.unlink(missing_ok=True)
        command = [BIN / "additive", "load", self.model, *options, "--seconds", str(seconds), "--allow-failures", "--max-tokens", "4,16,64",
                   "--url", self.service.url, "--history", history, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.loads.append(process)
        while not history.exists() or not history.stat().st_size:
            if process.poll() is not None:
                self.loads.remove(process)
                if tries == 1:
                    raise SystemExit(f"the load {name} ended with status {process.returncode} before it began")
                time.sleep(1)
                return self.load(name, options, seconds, tries - 1)
            time.sleep(0.05)
        return process

    # --- what happens to the processes ---

    def kill(self, name):
        self.service.kill(name)

    def pause(self, name):
        pid = self.service.child(name)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.1, 2))
        os.kill(pid, signal.SIGCONT)

    def restart(self):
        status = self.service.stop()
        if status != 0:
            raise SystemExit(f"the service ended with status {status}")
        self.start()

    def disturb(self):
        ways = {"engine killed": lambda: self.kill("additived"), "front end killed": lambda: self.kill("additive-httpd"),
                "engine stopped": lambda: self.pause("additived"), "front end stopped": lambda: self.pause("additive-httpd"),
                "service restarted": self.restart, "client killed": None}
        name = self.random.choice(list(ways))
        if ways[name]:
            ways[name]()
        self.done[name] = self.done.get(name, 0) + 1
        return name

    def run(self, minutes):
        seconds = minutes * 60
        loads = {name: self.load(name, options, seconds) for name, options in LOADS.items()}
        end, client = time.monotonic() + seconds - 5, None
        while time.monotonic() < end:
            if not client:
                client = self.load("killed", ["--clients", "8"], seconds)
            time.sleep(self.random.uniform(0.2, 4))
            if self.disturb() == "client killed":
                client.kill()
                client.communicate()
                client = None
        if client:
            client.kill()
            client.communicate()
        return {name: json.loads(process.communicate(timeout=300)[0]) for name, process in loads.items()}


def judge(trial, reports):
    wrong = []
    for name, report in reports.items():
        print(name, {k: report[k] for k in ("complete", "left", "refused", "failed", "lost", "violations")})
        wrong += [f"{name}: {line}" for line in report["problems"]]
        if not report["complete"]:
            wrong.append(f"{name}: nothing was complete")
    calm = json.loads(subprocess.run([BIN / "additive", "load", trial.model, "--requests", "100", "--url", trial.service.url, "--json"],
                                     stdout=subprocess.PIPE, text=True, check=False).stdout)
    wrong += [f"afterwards: {line}" for line in calm["problems"]]
    if calm["not_at_rest"] or calm["complete"] != 100:
        wrong.append(f"afterwards: {calm}")
    left = len(trial.service.ok("GET", "/v1/sessions")["data"])
    if left > reports["sessions"]["lost"] + reports["sessions"]["failed"]:  # a client may not have been told the id
        wrong.append(f"{left} sessions are left")
    return wrong


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--minutes", type=float, default=10)
    arguments.add_argument("--seed", type=int, default=1)
    a = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="additive-kills-") as folder:
        trial = Trial(pathlib.Path(folder), a.seed)
        try:
            trial.train()
            wrong = judge(trial, trial.run(a.minutes))
        finally:
            for load in trial.loads:
                load.kill()
            status = trial.service.stop()
    if status != 0:
        wrong.append(f"the service ended with status {status}")
    print(trial.done)
    print("\n".join(wrong) or "nothing acknowledged was lost, and no text is wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
