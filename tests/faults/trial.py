"""Requests to a running engine during which one chosen call fails, and what must hold during and after each.

A scenario prepares, acts once with the fault armed, and judges: the answer is the one of an undisturbed run or an error
with a known code; what was not acknowledged is not applied; the same request, made again, succeeds."""

import collections
import contextlib
import errno
import hashlib
import json
import pathlib
import queue
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "api"))
import engine_client  # noqa: E402
from engine_client import (BIN, PATIENCE, SANITIZED, TEXT, Closed, Daemon, Engine, EngineError, job_params,  # noqa: E402
                           train)

from control import FOR_EVER, SHORT, Faults, resolve  # noqa: E402

ANSWER_SECONDS = 60 if SANITIZED else 15
KNOWN = {"out_of_memory", "io_error", "storage_error", "storage_full", "unavailable", "device_error"}
STORED = ["allocation", "open", "write", "sync", "truncate", "rename", "folder", "unlink", "link"]

Outcome = collections.namedtuple("Outcome", "kind value")  # ok: the answer; error: its code; closed; hang


class Wrong(Exception):
    """What must never be seen."""


# --- answers ----------------------------------------------------------------------

CHANGING = {"created", "created_at", "expires_at", "finished_at", "time_ms", "timings", "uptime_seconds", "first_id",
            "last_id", "used", "loaded"}
ID = re.compile(r"\b(sess|ftjob|file|ckpt|ftevent)-[0-9a-f]{8,}")


def plain(x):
    """An answer without what differs from run to run."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items() if k not in CHANGING}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, bytes):
        return hashlib.sha256(x).hexdigest()
    return ID.sub(r"\1-", x) if isinstance(x, str) else x


# --- the engine under trial ---------------------------------------------------------

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
        self.files = [f["id"] for f in self.engine.call("file.list")["data"]]
        self.parts = {part: self.engine.download("model.file", {"id": self.model, "name": name})[1]
                      for part, name in (("config", "config.json"), ("weights", "model.safetensors"))}
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
        """Remove what failed trials have left behind."""
        for s in self.sessions():
            if s != self.kept:
                self.engine.call("session.delete", {"id": s})
        for f in self.engine.call("file.list")["data"]:
            if f["id"] not in self.files:
                self.engine.call("file.delete", {"id": f["id"]})
        models = {m["id"] for m in self.engine.call("model.list")["data"]}  # damaged ones are not in it
        for m in (models | {ImportModel.id, RemoveModel.id}) - {self.model, self.other}:
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


# --- scenarios -------------------------------------------------------------------------

class Scenario:
    name = ""
    classes = ["allocation"]

    def prepare(self, t):
        return None

    def act(self, t, state):
        """The answer, as it came."""

    def value(self, t, state, answer):
        """What is compared with the undisturbed run."""
        return plain(answer)

    def judge(self, t, state, outcome):
        """Look whether what was not acknowledged is not applied; no fault is armed."""

    def clean(self, t, state):
        pass


class Ask(Scenario):
    """A request that changes nothing."""

    def __init__(self, name, method, params, classes=("allocation",), only=None):
        self.name, self.method, self.params, self.classes, self.only = name, method, params, list(classes), only

    def act(self, t, state):
        answer = t.engine.call(self.method, self.params(t))
        return {k: answer[k] for k in self.only} if self.only else answer


class Load(Scenario):
    name = "load a model"
    classes = ["allocation", "map", "read"]

    def prepare(self, t):
        t.engine.call("model.unload", {"id": t.other})

    def act(self, t, state):
        return t.engine.call("model.load", {"id": t.other})

    def value(self, t, state, answer):
        return plain(answer), answer["additive"]["loaded"]


class Complete(Scenario):
    def __init__(self, name, **params):
        self.name, self.params = name, params

    def act(self, t, state):
        text, events, result = t.engine.generate({"model": t.model, "prompt": "98 bottles of", "max_tokens": 6, "seed": 4,
                                                  **self.params})
        return text, sorted(events, key=lambda e: e["index"]), result


class OnSession(Scenario):
    """A request to a durable session of its own."""
    classes = STORED

    def prepare(self, t):
        return {"id": t.session(), "before": t.kept_content}

    def judge(self, t, state, outcome):
        expected = [self.expected] if outcome.kind == "ok" else [state["before"]]
        if outcome.kind == "closed":
            expected.append(self.expected)
        found = t.content(state["id"])
        if found not in expected:
            raise Wrong(f"{outcome.kind} {outcome.value if outcome.kind == 'error' else ''}: the session holds {len(found)} "
                        f"tokens, expected {[len(e) for e in expected]}")
        state["applied"] = found == self.expected

    def value(self, t, state, answer):
        if not hasattr(self, "expected"):
            self.expected = t.content(state["id"])
        return plain(answer)

    def clean(self, t, state):
        t.engine.call("session.delete", {"id": state["id"]})


class Append(OnSession):
    name = "append to a session"

    def act(self, t, state):
        return t.engine.call("session.append", {"id": state["id"], "text": " of beer"})


class Generate(OnSession):
    name = "generate on a session"

    def act(self, t, state):
        return t.engine.generate({"id": state["id"], "prompt": " o", "max_tokens": 5, "temperature": 0,
                                  "alpha": {"top": 2}}, "session.generate")


class Alpha(OnSession):
    name = "explain a session"
    classes = ["allocation"]

    def act(self, t, state):
        return t.engine.call("session.alpha", {"id": state["id"], "aggregate": "mean"})


class Remove(Scenario):
    name = "delete a session"
    classes = STORED

    def prepare(self, t):
        return {"id": t.session()}

    def act(self, t, state):
        return t.engine.call("session.delete", {"id": state["id"]})

    def judge(self, t, state, outcome):
        there = state["id"] in t.sessions()
        if outcome.kind == "ok" and there:
            raise Wrong("a deleted session is listed")
        if outcome.kind == "error" and (not there or t.content(state["id"]) != t.kept_content):
            raise Wrong("a session that was not deleted is gone or changed")
        state["applied"] = not there


class Making(Scenario):
    """A request that makes a session."""
    classes = STORED

    def prepare(self, t):
        return {"there": t.sessions()}

    def value(self, t, state, answer):
        state["made"] = answer["id"]
        return plain(answer)

    def judge(self, t, state, outcome):
        new = [s for s in t.sessions() if s not in state["there"]]
        if outcome.kind == "ok":
            if new != [state["made"]] or t.content(new[0]) != t.kept_content:
                raise Wrong("the session that was made is not there or holds something else")
        elif outcome.kind == "error" and new:
            raise Wrong("a session that was not acknowledged is listed")

    def clean(self, t, state):
        for s in t.sessions():
            if s not in state["there"]:
                t.engine.call("session.delete", {"id": s})


class Create(Making):
    name = "create a session"

    def act(self, t, state):
        return t.engine.call("session.create", {"model": t.model, "prompt": "99 bottles", "explain": True, "durable": True})


class Fork(Making):
    name = "fork a session"

    def act(self, t, state):
        return t.engine.call("session.fork", {"id": t.kept})


class Import(Making):
    name = "import a session"

    def act(self, t, state):
        return t.engine.upload("session.import", {"model": t.model}, state=t.state)


class Export(Scenario):
    name = "export a session"

    def act(self, t, state):
        return t.engine.download("session.export", {"id": t.kept})


class Upload(Scenario):
    name = "upload a file"
    classes = STORED

    def files(self, t):
        return [f["id"] for f in t.engine.call("file.list")["data"]]

    def prepare(self, t):
        return {"there": self.files(t)}

    def act(self, t, state):
        return t.engine.upload("file.create", {"filename": "a.txt", "purpose": "fine-tune"}, file=TEXT.encode())

    def judge(self, t, state, outcome):
        new = [f for f in self.files(t) if f not in state["there"]]
        if outcome.kind == "ok" and len(new) != 1 or outcome.kind == "error" and new:
            raise Wrong(f"{outcome.kind}, and {len(new)} files have come")
        if new and t.engine.download("file.content", {"id": new[0]})[1] != TEXT.encode():
            raise Wrong("the file holds something else")

    def clean(self, t, state):
        for f in self.files(t):
            if f not in state["there"]:
                t.engine.call("file.delete", {"id": f})


class Content(Scenario):
    name = "read a file"
    classes = ["allocation", "read"]

    def act(self, t, state):
        return t.engine.download("file.content", {"id": t.file})


class RemoveFile(Upload):
    name = "delete a file"

    def prepare(self, t):
        return {"there": self.files(t), "id": t.engine.add_file(TEXT)}

    def act(self, t, state):
        return t.engine.call("file.delete", {"id": state["id"]})

    def judge(self, t, state, outcome):
        there = state["id"] in self.files(t)
        if outcome.kind == "ok" and there or outcome.kind == "error" and not there:
            raise Wrong(f"{outcome.kind}, and the file is {'there' if there else 'gone'}")
        state["applied"] = not there
        if there and t.engine.download("file.content", {"id": state["id"]})[1] != TEXT.encode():
            raise Wrong("the file holds something else")


class ImportModel(Scenario):
    name = "import a model"
    classes = STORED
    id = "brought"

    def models(self, t):
        return [m["id"] for m in t.engine.call("model.list")["data"]]

    def act(self, t, state):
        return t.engine.upload("model.import", {"id": self.id}, **t.parts)

    def judge(self, t, state, outcome):
        there = self.id in self.models(t)
        if outcome.kind == "ok" and not there or outcome.kind == "error" and there:
            raise Wrong(f"{outcome.kind}, and the model is {'there' if there else 'not there'}")
        state and state.update(applied=there)
        if there and t.engine.download("model.file", {"id": self.id, "name": "model.safetensors"})[1] != t.parts["weights"]:
            raise Wrong("the model has other weights")

    def prepare(self, t):
        return {"fresh": True}

    def clean(self, t, state):
        if self.id in self.models(t):
            t.engine.call("model.delete", {"id": self.id})


class RemoveModel(ImportModel):
    name = "delete a model"
    id = "sent-away"

    def prepare(self, t):
        t.engine.upload("model.import", {"id": self.id}, **t.parts)
        return {"fresh": True}

    def act(self, t, state):
        return t.engine.call("model.delete", {"id": self.id})

    def judge(self, t, state, outcome):
        there = self.id in self.models(t)
        if outcome.kind == "ok" and there or outcome.kind == "error" and not there:
            raise Wrong(f"{outcome.kind}, and the model is {'there' if there else 'gone'}")
        state["applied"] = not there


class Train(Scenario):
    """Three steps, each with a checkpoint. A job that the fault has paused goes on when it is resumed."""
    name = "train three steps"
    classes = STORED

    def prepare(self, t):
        return {"jobs": []}

    def act(self, t, state):
        job = t.engine.call("job.create", job_params(t.file, 3, checkpoint_every=1, eval_every=2))
        state["jobs"].append(job["id"])
        done = self.watch(t, job["id"])
        t.faults_off()
        if done is None or done["status"] != "succeeded":
            done = self.bring_to_end(t, job["id"])
        weights = t.engine.download("model.file", {"id": done["fine_tuned_model"], "name": "model.safetensors"})[1]
        return {"weights": weights, "step": done["additive"]["step"]}

    @staticmethod
    def watch(t, job):
        """The job when it has ended; None when it has not a moment after the fault. A waiting job may be a paused one."""
        call = t.engine.begin("job.watch", {"id": job}, credit=1 << 20)
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            fired = t.fired()
            try:
                while True:
                    kind, body, _ = call.next(timeout=0.1)
                    if kind in (engine_client.RESULT, engine_client.ERROR):
                        return body if kind == engine_client.RESULT else None
            except queue.Empty:
                if fired:
                    break
        call.cancel()
        return None

    @staticmethod
    def bring_to_end(t, job):
        end = time.monotonic() + ANSWER_SECONDS / 2
        while time.monotonic() < end:
            state = t.engine.call("job.get", {"id": job})
            if state["status"] == "succeeded":
                return state
            if state["status"] in ("failed", "paused", "cancelled"):
                try:
                    t.engine.call("job.resume", {"id": job})
                except EngineError as e:
                    if state["status"] == "failed" and not t.engine.call("job.checkpoints", {"id": job})["data"]:
                        state_error = state.get("error") or {}
                        if state_error.get("code") in KNOWN:  # before its first checkpoint a job may end with a reason
                            raise EngineError({"status": 500, "code": state_error["code"], "param": None,
                                               "message": state_error.get("message") or ""}) from e
                    raise Wrong(f"the job is {state['status']} ({state.get('error')}) and does not resume: {e}") from e
            time.sleep(0.02)
        raise Wrong(f"the job stays {state['status']} at step {state['additive']['step']}")

    def clean(self, t, state):
        for job in state["jobs"]:
            model = t.engine.call("job.get", {"id": job})["fine_tuned_model"]
            if model:
                t.engine.call("model.delete", {"id": model})


def scenarios():
    return [
        Load(), Complete("complete", temperature=0), Complete("complete several", n=2, logprobs=2, alpha={"top": 2},
                                                              stop=["zz"], prompt=["99 bot", "98 bot"]),
        Create(), Append(), Generate(), Fork(), Export(), Import(), Remove(), Alpha(),
        Ask("explain a text", "explain", lambda t: {"model": t.model, "input": "99 bottles", "aggregate": "rollout"}),
        Ask("tokenize", "tokenize", lambda t: {"model": t.model, "text": "99 böttles"}),
        Ask("detokenize", "detokenize", lambda t: {"model": t.model, "tokens": [60, 61, 200, 90]}),
        Upload(), Content(), RemoveFile(), ImportModel(), RemoveModel(), Train(),
        Ask("list models", "model.list", lambda t: {}), Ask("list files", "file.list", lambda t: {}),
        Ask("list sessions", "session.list", lambda t: {}),
        Ask("get a session", "session.get", lambda t: {"id": t.kept}),
        Ask("get a model", "model.get", lambda t: {"id": t.model}),
        Ask("status", "engine.status", lambda t: {}, only=["version", "backend", "device", "threads"]),
        Metrics(),
    ]


class Metrics(Scenario):
    name = "metrics"

    def act(self, t, state):
        return t.engine.call("engine.metrics")

    def value(self, t, state, answer):
        return [(m["name"], m["type"], len(m.get("samples") or m.get("buckets"))) for m in answer["metrics"]]


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


# What a call meets: (class, how it reads in a report, how many fail, errno)
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
    """What a sanitizer has reported last."""
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
