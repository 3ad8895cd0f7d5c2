"""The scenarios of trials.

A scenario prepares, acts once with the fault armed, and judges: the answer is that of an undisturbed run or an error
with a known code; changes that were not acknowledged are not applied; the same request succeeds when it is
repeated."""

import base64
import fcntl
import hashlib
import pathlib
import queue
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "api"))
import engine_client  # noqa: E402
from engine_client import SANITIZED, TEXT, EngineError, job_params  # noqa: E402

ANSWER_SECONDS = 60 if SANITIZED else 15
KNOWN = {"out_of_memory", "io_error", "storage_error", "storage_full", "unavailable", "device_error"}
STORED = ["allocation", "open", "write", "sync", "truncate", "rename", "folder", "unlink", "link"]


class Wrong(Exception):
    """A result that must never occur."""


# --- answers ----------------------------------------------------------------------

CHANGING = {"created", "created_at", "expires_at", "finished_at", "time_ms", "timings", "uptime_seconds", "first_id",
            "last_id", "used", "loaded"}
ID = re.compile(r"\b(sess|snap|ftjob|file|ckpt|ftevent)-[0-9a-f]{8,}")


def plain(x):
    """Return an answer without members that differ from run to run."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items() if k not in CHANGING}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, bytes):
        return hashlib.sha256(x).hexdigest()
    return ID.sub(r"\1-", x) if isinstance(x, str) else x


# --- scenarios -------------------------------------------------------------------------

class Scenario:
    name = ""
    classes = ["allocation"]

    def prepare(self, t):
        return None

    def act(self, t, state):
        """The answer, as it came."""

    def value(self, t, state, answer):
        """Return the value that is compared with the undisturbed run."""
        return plain(answer)

    def judge(self, t, state, outcome):
        """Check that changes that were not acknowledged are not applied; no fault is armed."""

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
        more = dict(self.params)
        if more.pop("carried", False):
            more["state"] = base64.b64encode(t.state).decode()
        text, events, result = t.engine.generate({"model": t.model, "prompt": "98 bottles of", "max_tokens": 6, "seed": 4, **more})
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


class Snapshot(OnSession):
    """Make a snapshot: the session does not change, and the snapshot exists if and only if it was acknowledged."""
    name = "make a snapshot"

    def act(self, t, state):
        return t.engine.call("snapshot.create", {"id": state["id"], "name": "n"})

    def judge(self, t, state, outcome):
        super().judge(t, state, outcome)
        listed = t.engine.call("snapshot.list", {"id": state["id"]})["data"]
        if outcome.kind == "ok" and len(listed) != 1 or outcome.kind == "error" and listed:
            raise Wrong(f"{outcome.kind}, and {len(listed)} snapshots are listed")
        for s in listed:
            t.engine.call("session.append", {"id": state["id"], "text": "zz"})
            t.engine.call("session.rollback", {"id": state["id"], "snapshot": s["id"]})
            if t.content(state["id"]) != state["before"]:
                raise Wrong("the snapshot holds something else")


class Rollback(OnSession):
    name = "roll a session back"
    classes = [*STORED, "read"]

    def prepare(self, t):
        state = super().prepare(t)
        snapshot = t.engine.call("snapshot.create", {"id": state["id"]})["id"]
        t.engine.call("session.append", {"id": state["id"], "text": "zz"})
        return {**state, "snapshot": snapshot, "before": t.content(state["id"])}

    def act(self, t, state):
        return t.engine.call("session.rollback", {"id": state["id"], "snapshot": state["snapshot"]})


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


class Tick(Scenario):
    """The removal of blobs that wait for the end of a backup, which happens twice a second without a request."""
    name = "tick"
    classes = STORED + ["read"]

    def prepare(self, t):
        data = t.daemon.folder
        with open(data / "backup.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # as a backup does
            file = t.engine.add_file(TEXT)
            t.engine.call("file.delete", {"id": file})
            blob = data / "blobs" / file
            if not blob.exists():
                raise Wrong("a blob is unlinked during a backup")
        return {"blob": blob}

    def act(self, t, state):
        time.sleep(0.6)

    def judge(self, t, state, outcome):
        t.engine.call("engine.status")
        end = time.monotonic() + ANSWER_SECONDS
        while state["blob"].exists():
            if time.monotonic() > end:
                raise Wrong("the blob of a deleted file stays")
            time.sleep(0.02)


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


class ImportArchive(ImportModel):
    """The weights divided into files, in an archive."""
    name = "import an archive of shards"
    id = "unpacked"

    def act(self, t, state):
        return t.engine.upload("model.import", {"id": self.id}, archive=t.archive)

    def judge(self, t, state, outcome):
        there = self.id in self.models(t)
        if outcome.kind == "ok" and not there or outcome.kind == "error" and there:
            raise Wrong(f"{outcome.kind}, and the model is {'there' if there else 'not there'}")
        state and state.update(applied=there)
        size = t.engine.download("model.file", {"id": self.id, "name": "model.safetensors"})[0]["bytes"] if there else 0
        if there and abs(size - len(t.parts["weights"])) > 4096:
            raise Wrong("the model has other weights")


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
    """Three steps, each with a checkpoint. A job that the fault has paused continues when it is resumed."""
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


def scenarios(slow=False):
    return ([Tick()] if slow else []) + [
        Load(), Complete("complete", temperature=0), Complete("complete several", n=2, logprobs=2, alpha={"top": 2},
                                                              stop=["zz"], prompt=["99 bot", "98 bot"]),
        Complete("return a state", return_state=True), Complete("continue from a state", carried=True),
        Create(), Append(), Generate(), Snapshot(), Rollback(), Fork(), Export(), Import(), Remove(), Alpha(),
        Ask("explain a text", "explain", lambda t: {"model": t.model, "input": "99 bottles", "aggregate": "rollout"}),
        Ask("fill in masks", "fill_mask", lambda t: {"model": t.filler, "input": ["99 [MASK]ott[MASK]les", "of [MASK]"]}),
        Ask("tokenize", "tokenize", lambda t: {"model": t.model, "text": "99 böttles"}),
        Ask("detokenize", "detokenize", lambda t: {"model": t.model, "tokens": [60, 61, 200, 90]}),
        Upload(), Content(), RemoveFile(), ImportModel(), ImportArchive(), RemoveModel(), Train(),
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
