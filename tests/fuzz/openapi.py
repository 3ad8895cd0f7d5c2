"""schemathesis on the whole service, with every check, held to proto/openapi.yaml:   openapi.py SECONDS [OPTION…]

The service has a small model, its job and a session, so that generated requests find something to work on."""

import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from conftest import Service  # noqa: E402


def fuzz(url, seconds, options):
    program = pathlib.Path(sys.executable).with_name("schemathesis")
    return subprocess.run(
        [program, "run", HERE.parents[1] / "proto" / "openapi.yaml", "--url", url, "--checks", "all", "--max-time", seconds,
         "--continue-on-failure", "--suppress-health-check", "all", "--request-timeout", "20", "--warnings", "off", *options],
        cwd=HERE.parents[1] / "build",  # where it leaves its cache
        env={**os.environ, "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "openapi_hooks"}).returncode


def main(seconds="480", *options):
    with tempfile.TemporaryDirectory() as folder:
        service = Service(pathlib.Path(folder) / "data")
        try:
            model = service.wait_job(service.job(steps=20)["id"])["fine_tuned_model"]
            service.ok("POST", "/v1/sessions", {"model": model, "prompt": "9", "explain": True})
            found = fuzz(service.url, seconds, options)
        finally:
            stopped = service.stop()
    return found or stopped


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
