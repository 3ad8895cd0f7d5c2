"""Make FOLDER, a data folder of today's build, for tests/api/test_engine_formats.py: a tiny model, a durable session, and
expected.json with the continuation of the session. Run it for each released version: FOLDER is the number of its format."""

import json
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "api"))
from engine_client import Daemon, train

ASK = {"max_tokens": 24, "temperature": 0}
KEPT = ["ledger.sqlite", "identity", "models", "sessions"]


def make(folder):
    with tempfile.TemporaryDirectory() as work:
        data = pathlib.Path(work) / "data"
        with Daemon(data) as daemon, daemon.connect() as engine:
            model = train(engine, steps=300)
            session = engine.call("session.create", {"model": model, "durable": True, "prompt": "99 bottles of be"})["id"]
            engine.generate({"id": session, **ASK}, "session.generate")
            for job in engine.call("job.list")["data"]:
                engine.call("job.delete", {"id": job["id"]})
            for file in engine.call("file.list")["data"]:
                engine.call("file.delete", {"id": file["id"]})
        folder.mkdir()
        for name in KEPT:
            at = data / name
            if at.is_dir():
                shutil.copytree(at, folder / name)
            elif at.exists():
                shutil.copyfile(at, folder / name)
        with Daemon(data) as daemon, daemon.connect() as engine:
            text = engine.generate({"id": session, **ASK}, "session.generate")[0]
    (folder / "expected.json").write_text(json.dumps({"model": model, "session": session, "ask": ASK, "text": text}, indent=1) + "\n")


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
