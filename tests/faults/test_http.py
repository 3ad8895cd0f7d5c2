"""Memory that fails while the engine imports a model over HTTP is the server's failure, and nothing is left."""

import pathlib
import sys

from control import FOR_EVER, Faults

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "api"))

from engine_client import Daemon, train  # noqa: E402
from http_support import Front, wait_for  # noqa: E402

BOUNDARY = "a-boundary-of-the-test"


def form(parts):
    out = b""
    for name, data in parts.items():
        file = "" if name == "id" else f'; filename="{name}"'
        out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + data + b"\r\n"
    return out + f"--{BOUNDARY}--\r\n".encode()


def test_an_import_without_memory_is_a_503_and_leaves_nothing(tmp_path):
    faults = Faults(tmp_path, tmp_path)
    with Daemon(tmp_path / "data", environment=faults.environment) as daemon:
        with daemon.connect() as engine:
            model = train(engine, steps=2)
            files = {part: engine.download("model.file", {"id": model, "name": name})[1]
                     for part, name in (("config", "config.json"), ("weights", "model.safetensors"))}
        front = Front(daemon.address)
        body = form({"id": b"brought", **files})

        def bring():
            return front.post("/v1/models", body, headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})

        refused = 0
        for first in [*range(1, 80, 3), *range(80, 600, 20)]:
            faults.arm("allocation", first, FOR_EVER)
            answer = bring()
            faults.disarm("allocation")
            if answer.status == 200:
                assert front.request("DELETE", "/v1/models/brought").status == 200
                continue
            refused += answer.error["code"] == "out_of_memory"
            # Where not even an error fits, the engine ends the connection.
            assert answer.status == 503 and answer.error["code"] in ("out_of_memory", "engine_unavailable"), (first, answer.body)
            assert int(answer.headers["Retry-After"]) > 0
            wait_for(lambda: front.get("/readyz").status == 200)
            wait_for(lambda: not list((tmp_path / "data" / "tmp").iterdir()))
            assert [m.name for m in (tmp_path / "data" / "models").iterdir()] == [model], first
        assert refused > 10
        assert bring().status == 200
        front.close()
