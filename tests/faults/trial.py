"""Requests to a running engine during which one chosen call fails, and the conditions that must hold during and after
each."""

import collections
import contextlib
import errno
import io
import json
import pathlib
import queue
import re
import tarfile
import threading

from control import FOR_EVER, SHORT, Faults, resolve
from scenarios import KNOWN, ImportArchive, ImportModel, RemoveModel, Wrong
from engine_client import SANITIZED, TEXT, Closed, Daemon, EngineError, train  # found through scenarios

Outcome = collections.namedtuple("Outcome", "kind value")  # ok: the answer; error: its code; closed; hang


# --- the engine under trial ---------------------------------------------------------

def shards_archive(config, weights):
    """A model's weights divided into two files, with an index, in a tar archive."""
    size = int.from_bytes(weights[:8], "little")
    header, data = json.loads(weights[8 : 8 + size]), weights[8 + size :]
    names = sorted(n for n in header if n != "__metadata__")
    files, where = {"config.json": config}, {}
    for i, part in enumerate((names[::2], names[1::2])):
        head, body, file = {}, b"", f"model-{i + 1:05}-of-00002.safetensors"
        for n in part:
            begin, end = header[n]["data_offsets"]
            head[n] = {**header[n], "data_offsets": [len(body), len(body) + end - begin]}
            body += data[begin:end]
            where[n] = file
        text = json.dumps(head).encode()
        files[file] = len(text).to_bytes(8, "little") + text + body
    files["model.safetensors.index.json"] = json.dumps({"weight_map": where}).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name, content in files.items():
            info = tarfile.TarInfo("model/" + name)
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
    return out.getvalue()


def train_filler(engine, file):
    """A model that fills in masks."""
    job = engine.call("job.create", {"model": "transformer", "training_file": file, "seed": 7, "additive": {
        "config": {"stack": "encoder"}, "size": {"hidden": 16, "heads": 2, "layers": 2}, "sequence_length": 32, "max_steps": 2}})
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]


class Trial:
    """An engine with a model, a file, a finished job and a durable session, and the page that lets its calls fail."""

    def __init__(self, folder, trace=True):
        folder = pathlib.Path(folder)
        data = folder / "data"
        data.mkdir()
        self.faults = Faults(folder, below=data, trace=trace)
        self.daemon = Daemon(data, environment=self.faults.environment)
        self.engine = self.daemon.connect()
        self.file = self.engine.add_file(TEXT)
        self.model = train(self.engine, 5)
        self.filler = train_filler(self.engine, self.file)
        self.files = [f["id"] for f in self.engine.call("file.list")["data"]]
        self.parts = {part: self.engine.download("model.file", {"id": self.model, "name": name})[1]
                      for part, name in (("config", "config.json"), ("weights", "model.safetensors"))}
        self.archive = shards_archive(**self.parts)
        self.other = self.engine.upload("model.import", {"id": "other"}, **self.parts)["id"]  # has no session
        self.kept = self.session(durable=True)
        self.kept_content = self.content(self.kept)
        self.state = self.engine.download("session.export", {"id": self.kept})[1]

    def session(self, **more):
        return self.engine.call("session.create", {"model": self.model, "prompt": "99 bottles", "explain": True,
                                                   "durable": True, **more})["id"]

    def content(self, session):
        """The ids of all tokens that a session has read."""
        answer = self.engine.call("session.alpha", {"id": session, "layers": [0], "heads": [0]})
        return [t["id"] for t in answer["tokens"]]

    def sessions(self):
        return sorted(s["id"] for s in self.engine.call("session.list")["data"])

    def tidy(self):
        """Remove the files of failed trials."""
        for s in self.sessions():
            if s != self.kept:
                self.engine.call("session.delete", {"id": s})
        for f in self.engine.call("file.list")["data"]:
            if f["id"] not in self.files:
                self.engine.call("file.delete", {"id": f["id"]})
        models = {m["id"] for m in self.engine.call("model.list")["data"]}  # damaged ones are not in it
        for m in (models | {ImportModel.id, ImportArchive.id, RemoveModel.id}) - {self.model, self.other, self.filler}:
            with contextlib.suppress(EngineError):
                self.engine.call("model.delete", {"id": m})
        for j in self.engine.call("job.list")["data"]:
            if j["status"] in ("queued", "running", "paused"):
                self.engine.call("job.cancel", {"id": j["id"]})

    def alive(self):
        return self.daemon.process.poll() is None

    def reconnect(self):
        self.engine.close()
        self.engine = self.daemon.connect()

    def restart(self):
        """Start the engine again on its data, after kill -9; a sanitized one ends by itself, to report leaks. The status."""
        status = 0
        if self.alive():
            status = self.daemon.stop() if SANITIZED else self.daemon.kill()
        self.engine.close()
        self.daemon.start()
        self.engine = self.daemon.connect()
        return status or 0

    def log_tail(self, lines=12):
        return self.daemon.log.read_text(errors="replace").splitlines()[-lines:]

    def close(self):
        self.engine.close()
        status = self.daemon.stop() if self.alive() else self.daemon.process.returncode
        return status


# --- one fault ----------------------------------------------------------------------------

def attempt(t, scenario, state):
    try:
        return Outcome("ok", scenario.act(t, state))
    except EngineError as e:
        return Outcome("error", f"{e.code} {e.status}")
    except (Closed, OSError):
        return Outcome("closed", (t.engine.connection_error or {}).get("code"))
    except queue.Empty:
        return Outcome("hang", None)


def check_outcome(outcome, expected):
    """Only the right answer, a known error, or a lost connection."""
    if outcome.kind == "hang":
        raise Wrong("no answer")
    if outcome.kind == "ok" and outcome.value != expected:
        raise Wrong(f"a wrong answer: {difference(expected, outcome.value)}")
    if outcome.kind == "error":
        code, status = outcome.value.rsplit(" ", 1)
        if code not in KNOWN or int(status) < 500:
            raise Wrong(f"the error {outcome.value}")
    if outcome.kind == "closed" and outcome.value and outcome.value not in KNOWN:
        raise Wrong(f"the connection was closed with {outcome.value}")


def difference(expected, found, path=""):
    if isinstance(expected, dict) and isinstance(found, dict):
        for k in expected.keys() | found.keys():
            if expected.get(k) != found.get(k):
                return difference(expected.get(k), found.get(k), f"{path}.{k}")
    if isinstance(expected, list) and isinstance(found, list):
        for i, (a, b) in enumerate(zip(expected, found)):
            if a != b:
                return difference(a, b, f"{path}[{i}]")
        return f"{path} has {len(found)} elements instead of {len(expected)}"
    return f"{path} is {json.dumps(found, default=str)[:80]} instead of {json.dumps(expected, default=str)[:80]}"


def reference(t, scenario, kinds):
    """(the undisturbed answer, calls of each class during the request)"""
    calls = {}
    t.faults_off, t.fired = lambda: None, lambda: False
    for _ in range(2):  # the first warms caches up
        state = scenario.prepare(t)
        for kind in kinds:
            t.faults.count(kind)
        answer = scenario.act(t, state)
        calls = {kind: t.faults.calls(kind) for kind in kinds}
        value = scenario.value(t, state, answer)
        scenario.judge(t, state, Outcome("ok", value))
        scenario.clean(t, state)
    return value, calls


# Faults of calls: (class, text in a report, number of calls that fail, errno)
FAULTS = {
    "allocation": [("allocation", 1, None), ("allocation and all after it", FOR_EVER, None)],
    "open": [("open", 1, errno.EIO), ("open and all after it", FOR_EVER, errno.ENOSPC)],
    "write": [("write", 1, errno.EIO), ("short write", 1, SHORT), ("write and all after it", FOR_EVER, errno.ENOSPC)],
    "folder": [("folder", 1, errno.ENOSPC)],
}


def faults_of(kind):
    return FAULTS.get(kind, [(kind, 1, None)])


def one_fault(t, scenario, kind, number, expected, count=1, error=None):
    """Let one call fail during a request, or all from there on until it is answered. Raises Wrong; False: the request
    makes fewer calls."""
    t.faults.forget_stacks()
    state = scenario.prepare(t)
    t.faults_off = lambda: t.faults.disarm(kind)
    t.fired = lambda: t.faults.failed(kind) > 0
    t.faults.arm(kind, number, count, error)
    outcome = attempt(t, scenario, state)
    fired = t.faults.failed(kind) > 0
    t.faults.disarm(kind)
    if not t.alive():
        raise Wrong(f"the engine died: {death(t)}")
    if outcome.kind in ("closed", "hang"):
        t.reconnect()
    if outcome.kind == "ok":
        outcome = Outcome("ok", scenario.value(t, state, outcome.value))
    check_outcome(outcome, expected)
    scenario.judge(t, state, outcome)
    if outcome.kind != "ok" and not (state or {}).get("applied"):
        repeat(t, scenario, state, expected)
    scenario.clean(t, state)
    return fired


def repeat(t, scenario, state, expected):
    again = attempt(t, scenario, state)
    if not t.alive():
        raise Wrong(f"the engine died when asked again: {death(t)}")
    if again.kind == "closed":
        raise Wrong("the connection was closed when asked again")
    if again.kind == "ok":
        again = Outcome("ok", scenario.value(t, state, again.value))
    if again != Outcome("ok", expected):
        raise Wrong(f"asked again: {again.kind} " +
                    (str(again.value) if again.kind != "ok" else difference(expected, again.value)))


def complaint(t):
    """Return the last report of a sanitizer."""
    lines = t.log_tail(400)
    begins = [i for i, line in enumerate(lines) if "ERROR: " in line or "runtime error" in line]
    return "\n".join(line.strip() for line in lines[begins[-1]:][:25]) if begins else ""


def death(t):
    t.daemon.process.wait(10)
    tail = [line for line in t.log_tail(400) if re.search(r"SUMMARY|ERROR: |runtime error|[Aa]ssert|double free|corrupt", line)]
    return f"status {t.daemon.process.returncode} {tail[-1] if tail else ''}"


# --- findings --------------------------------------------------------------------------------

class Findings:
    """Distinct failures: the same effect after a failed call of the same stack is one."""

    def __init__(self):
        self.found = {}
        self.lock = threading.Lock()

    def add(self, scenario, kind, number, why, stack):
        frames = resolve(stack)
        names = tuple(f.split()[0] for f in frames[:5])
        effect = re.sub(r"\d+|instead of.*", "", str(why))[:60]
        with self.lock:
            entry = self.found.setdefault((kind, names, effect), {"count": 0, "where": set(), "frames": frames,
                                                                  "why": str(why), "first": number})
            entry["count"] += 1
            entry["where"].add(scenario)

    def report(self):
        lines = []
        for (kind, _, _), e in sorted(self.found.items(), key=lambda f: -f[1]["count"]):
            lines.append(f"{e['count']} x {kind} (first: number {e['first']} of {', '.join(sorted(e['where']))}): {e['why']}")
            lines += [f"      {f}" for f in e["frames"]]
        return "\n".join(lines)
