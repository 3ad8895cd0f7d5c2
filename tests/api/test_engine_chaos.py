"""additived under many clients that send any request at any time. Afterwards every request has ended, every slot is
free, and the answer to a fixed request is unchanged."""

import random
import threading
import time

from engine_client import PATIENCE, TEXT, Closed, EngineError, job_params, own_daemon, train

SECONDS = 4
ALLOWED = {400, 404, 409, 429, 499}


class Client(threading.Thread):
    """Asks for random things until the time is up; keeps every unexpected answer."""

    def __init__(self, daemon, model, file, seed):
        super().__init__()
        self.daemon_, self.model, self.file, self.random = daemon, model, file, random.Random(seed)
        self.done, self.unexpected = 0, []

    def run(self):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with self.daemon_.connect() as engine:
                for _ in range(self.random.randrange(1, 40)):
                    self.one(engine)
                for _ in range(self.random.randrange(3)):  # begin something, and leave
                    engine.begin("completion.create", {"model": self.model, "prompt": "9", "max_tokens": 400}, credit=3)

    def one(self, engine):
        act = self.random.choice([self.complete, self.cancel, self.sessions, self.explain, self.jobs, self.upload, self.read,
                                  self.load])
        try:
            act(engine)
            self.done += 1
        except EngineError as e:
            if e.status not in ALLOWED or "another model" in e.message:  # a session never loses its weights
                self.unexpected.append(str(e))
        except Closed:
            self.unexpected.append("connection closed")

    def complete(self, engine):
        engine.generate({"model": self.model, "prompt": "9" * self.random.randrange(1, 600), "n": self.random.randrange(1, 4),
                         "max_tokens": self.random.randrange(1, 40), "alpha": {"top": 2}})

    def cancel(self, engine):
        call = engine.begin("completion.create", {"model": self.model, "prompt": "9" * 300, "n": 3, "max_tokens": 200},
                            credit=self.random.randrange(5))
        if self.random.random() < 0.5:
            time.sleep(self.random.random() * 0.01)
        call.cancel()
        call.result()

    def sessions(self, engine):
        s = engine.call("session.create", {"model": self.model, "prompt": "99", "durable": self.random.random() < 0.5,
                                           "explain": self.random.random() < 0.5})
        try:
            for _ in range(self.random.randrange(4)):
                pick = self.random.randrange(5)
                if pick == 0:
                    engine.call("session.append", {"id": s["id"], "text": " bottles"})
                elif pick == 1:
                    engine.call("session.delete", {"id": engine.call("session.fork", {"id": s["id"]})["id"]})
                elif pick == 2:
                    state = engine.download("session.export", {"id": s["id"]})[1]
                    engine.call("session.delete", {"id": engine.upload("session.import", {"model": self.model}, state=state)["id"]})
                elif pick == 3:
                    call = engine.begin("session.generate", {"id": s["id"], "max_tokens": 100}, credit=4)
                    call.next()
                    call.cancel()
                    call.result()
                else:
                    engine.generate({"id": s["id"], "max_tokens": 10}, "session.generate")
        finally:
            engine.call("session.delete", {"id": s["id"]})

    def explain(self, engine):
        engine.call("explain", {"model": self.model, "input": "9" * self.random.randrange(1, 513), "aggregate": "rollout"})

    def jobs(self, engine):
        job = engine.call("job.create", job_params(self.file, self.random.randrange(1, 60)))["id"]
        watch = engine.begin("job.watch", {"id": job}, credit=1 << 20)
        try:
            for action in self.random.sample(["job.pause", "job.resume", "job.get", "job.events"], 2):
                engine.call(action, {"id": job})
        finally:
            engine.call("job.cancel", {"id": job})
            watch.result()

    def upload(self, engine):
        if self.random.random() < 0.5:
            call = engine.begin("file.create", {"filename": "a", "purpose": "p"}, upload=True)
            call.cancel()
            call.result()
        engine.call("file.delete", {"id": engine.add_file(b"x" * self.random.randrange(1 << 20))})

    def load(self, engine):
        if self.random.random() < 0.3:
            engine.call("model.unload", {"id": self.model})
        engine.call("model.load", {"id": self.model, "dtype": self.random.choice(["fp32", "bf16", "int8"])})

    def read(self, engine):
        for method in ("engine.status", "engine.metrics", "model.list", "job.list", "session.list", "file.list"):
            engine.call(method)


def test_clients_that_do_anything_leave_the_engine_as_it_was(own_daemon):
    daemon = own_daemon("--max-sessions", 8, "--max-generations", 24)
    question = {"prompt": "99 bottles", "max_tokens": 30, "temperature": 0}
    with daemon.connect() as engine:
        model, file = train(engine, 40), engine.add_file(TEXT)
        answer = engine.generate({"model": model, **question})[0]
        clients = [Client(daemon, model, file, seed) for seed in range(5)]
        for c in clients:
            c.start()
        for c in clients:
            c.join(SECONDS + PATIENCE)
            assert not c.is_alive() and not c.unexpected, c.unexpected
        assert sum(c.done for c in clients) > 20

        def gauges():
            return {m["name"]: m["samples"][0]["value"] for m in engine.call("engine.metrics")["metrics"] if m["type"] == "gauge"}

        idle = {"additive_engine_streams": 1, "additive_engine_connections": 1, "additive_engine_generations_running": 0,
                "additive_engine_generations_waiting": 0, "additive_engine_sessions": 0, "additive_engine_sessions_live": 0,
                "additive_engine_jobs_waiting": 0, "additive_engine_jobs_running": 0, "additive_engine_tasks_pending": 0}
        engine.wait(lambda: {k: v for k, v in gauges().items() if k in idle} == idle)
        engine.call("model.load", {"id": model, "dtype": "fp32"})
        assert engine.generate({"model": model, **question})[0] == answer
        assert [s["id"] for s in engine.call("session.list")["data"]] == []
        assert [f["id"] for f in engine.call("file.list")["data"]].count(file) == 1
        assert not any((daemon.folder / "tmp").iterdir()) and not any((daemon.folder / "sessions").iterdir())
    assert daemon.stop() == 0
