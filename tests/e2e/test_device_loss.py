"""A CUDA device that fails under the service. Always the emulated one: a real one does not fail on command."""

from conftest import BIN, Service

SECONDS = 600


def start(folder, **environment):
    return Service(folder / "data", "--backend", "cuda", ADDITIVE_PLUGIN_DIR=str(BIN.parent / "emulator"), **environment)


def test_a_lost_device_costs_nothing_that_was_acknowledged(tmp_path):
    """The device fails under a job and a session: the engine opens it again, and both continue from what is on disk."""
    s = start(tmp_path)
    model = s.wait_job(s.job(steps=3)["id"], seconds=SECONDS)["fine_tuned_model"]
    kept, twin = (s.ok("POST", "/v1/sessions", {"model": model, "prompt": "9 bottles", "durable": True})["id"] for _ in range(2))
    ask = {"max_tokens": 5, "temperature": 0}
    expected = s.ok("POST", f"/v1/sessions/{twin}/generate", ask)["choices"][0]["text"]
    assert s.stop() == 0
    s = start(tmp_path, ADDITIVE_EMULATOR_FAULT="launch:160")
    try:
        calm = s.engine_pid()
        job = s.wait_job(s.job(steps=24, checkpoint_every=4)["id"], seconds=SECONDS)
        assert job["status"] == "succeeded" and job["additive"]["step"] == 24, job
        metrics = s.request("GET", "/metrics")[1].decode().splitlines()
        restarts = next(line for line in metrics if line.startswith("additive_engine_device_restarts_total"))
        assert float(restarts.split()[-1]) == 1 and s.engine_pid() == calm
        assert s.ok("POST", f"/v1/sessions/{kept}/generate", ask)["choices"][0]["text"] == expected
    finally:
        s.stop()


def test_a_request_on_a_device_that_fails_ends_with_a_clear_error(tmp_path):
    s = start(tmp_path)
    model = s.wait_job(s.job(steps=3)["id"], seconds=SECONDS)["fine_tuned_model"]
    assert s.stop() == 0
    s = start(tmp_path, ADDITIVE_EMULATOR_FAULT="launch:100")
    try:
        ask = {"model": model, "prompt": "9 bottles", "max_tokens": 30, "temperature": 0}
        answers = [s.request("POST", "/v1/completions", ask) for _ in range(12)]
        refused = [answer["error"] for status, answer, _ in answers if status != 200]
        assert len(refused) == 1 and refused[0]["code"] == "device_error" and refused[0]["message"], refused
        texts = {answer["choices"][0]["text"] for status, answer, _ in answers if status == 200}
        assert len(texts) == 1
    finally:
        s.stop()
