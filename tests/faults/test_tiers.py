"""A disk that is full, or cannot be read, while idle sessions move to it: an error for the session that needs it, and nothing is
lost."""

import errno
import itertools
import pathlib
import sys

import pytest

from control import Faults

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "api"))
from engine_client import Daemon, EngineError, train  # noqa: E402

PROMPT = "99 bottles of"


def says(engine, **params):
    return engine.generate({"temperature": 0, "max_tokens": 8, **params}, "session.generate" if "id" in params else "completion.create")[0]


@pytest.fixture
def faults(tmp_path):
    (tmp_path / "data").mkdir()
    return Faults(tmp_path, below=tmp_path / "data", trace=False)


def test_a_full_disk_and_an_unreadable_one(tmp_path, faults):
    with Daemon(tmp_path / "data", "--max-sessions", 2, "--session-memory-bytes", 0, environment=faults.environment) as daemon, \
            daemon.connect() as engine:
        model = train(engine, steps=20)
        expected = says(engine, model=model, prompt=PROMPT)
        ids = [engine.call("session.create", {"model": model, "prompt": PROMPT})["id"] for _ in range(4)]
        engine.wait(lambda: len(list((daemon.folder / "tmp").iterdir())) == 2)
        faults.full = True
        ids.append(engine.call("session.create", {"model": model, "prompt": PROMPT})["id"])
        engine.wait(lambda: faults.refused > 0)
        with pytest.raises(EngineError) as e:
            for _ in range(3):  # one may be admitted each second
                ids.append(engine.call("session.create", {"model": model, "prompt": PROMPT})["id"])
        assert (e.value.status, e.value.code) == (507, "storage_full")
        faults.full = False
        left = itertools.cycle(ids)

        def refusal():
            """The error of a use whose read fails. The full disk is tried again after a second; the ledger may be read first."""
            faults.arm("read", 1, 1, errno.EIO)
            try:
                engine.call("session.delete", {"id": engine.call("session.fork", {"id": next(left)})["id"]})
            except EngineError as e:
                return e if e.status != 507 else None
        e = engine.wait(refusal)
        faults.disarm("read")
        assert (e.status, e.code) == (500, "storage_error") and "sess-" in e.message
        for s in ids:
            assert says(engine, id=s) == expected
        assert daemon.stop() == 0
