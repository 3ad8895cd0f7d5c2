"""A CUDA device that fails under the service. Always the emulated one: a real one does not fail on command."""

import concurrent.futures
import shutil
import time

import pytest

from conftest import BIN, TEXT, Service

SECONDS = 600
pytestmark = pytest.mark.emulated
STEPS = {"steps": 8, "checkpoint_every": 2}
ASK = {"max_tokens": 5, "temperature": 0}


def start(folder, *options, **environment):
    """Without the comparison of wgmma with mma.sync at the opening, whose launches would count as those below."""
    return Service(folder / "data", "--backend", "cuda", *options, ADDITIVE_PLUGIN_DIR=str(BIN.parent / "emulator"), ADDITIVE_CUDA_WGMMA="0",
                   **environment)


class Calm:
    """A data folder from a device that does not fail: a model, a durable session, and the session's next tokens."""

    def __init__(self, folder):
        self.folder = folder
        s = start(folder)
        self.model = s.wait_job(s.job(**STEPS)["id"], seconds=SECONDS)["fine_tuned_model"]
        made = {"model": self.model, "prompt": "9 bottles", "durable": True}
        self.session, twin = (s.ok("POST", "/v1/sessions", made)["id"] for _ in range(2))
        self.text = s.ok("POST", f"/v1/sessions/{twin}/generate", ASK)["choices"][0]["text"]
        assert s.stop() == 0

    def start(self, folder, *options, **environment):
        shutil.copytree(self.folder / "data", folder / "data")
        return start(folder, *options, **environment)

    def text_of(self, service):
        return service.ok("POST", f"/v1/sessions/{self.session}/generate", ASK)["choices"][0]["text"]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return Calm(tmp_path_factory.mktemp("calm"))


def weights(service, model):
    return (service.data / "models" / model / "model.safetensors").read_bytes()


def metric(service, name):
    lines = service.request("GET", "/metrics")[1].decode().splitlines()
    return float(next(line for line in lines if line.startswith((name + " ", name + "{"))).split()[-1])


def log_lines(service, words):
    return [line for line in service.log.read_text().splitlines() if words in line]


def wait_until(true, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_through(service, path):
    """Wait for a job while the engine is away now and then."""
    wait_until(lambda: service.request("GET", path)[1].get("status") in ("succeeded", "failed"))
    return service.ok("GET", path)


def fails_for_good(folder, what, processes=None):
    """The environment of a device that a reset does not bring back; only in the first `processes` processes, if
    given."""
    some = {} if processes is None else {"ADDITIVE_EMULATOR_FAULT_PROCESSES": f"{processes}:{folder / 'processes'}"}
    return {"ADDITIVE_EMULATOR_FAULT": what, "ADDITIVE_EMULATOR_RESET": "0"} | some


def test_a_lost_device_costs_nothing_that_was_acknowledged(calm, tmp_path):
    """The device fails under a job and a session: the engine opens it again, and both continue from the state on
    disk."""
    s = calm.start(tmp_path, ADDITIVE_EMULATOR_FAULT="launch:160")
    try:
        pid = s.engine_pid()
        job = s.wait_job(s.job(**STEPS)["id"], seconds=SECONDS)
        assert job["status"] == "succeeded" and job["additive"]["step"] == 8, job
        assert metric(s, "additive_engine_device_restarts_total") == 1 and s.engine_pid() == pid
        assert metric(s, "additive_engine_process_restarts_total") == 0
        assert weights(s, job["fine_tuned_model"]) == weights(s, calm.model)
        assert calm.text_of(s) == calm.text
    finally:
        s.stop()


@pytest.mark.slow
def test_a_request_on_a_device_that_fails_ends_with_a_clear_error(calm, tmp_path):
    s = calm.start(tmp_path, ADDITIVE_EMULATOR_FAULT="launch:100")
    try:
        ask = {"model": calm.model, "prompt": "9 bottles", "max_tokens": 30, "temperature": 0}
        answers = [s.request("POST", "/v1/completions", ask) for _ in range(12)]
        refused = [answer["error"] for status, answer, _ in answers if status != 200]
        assert len(refused) == 1 and refused[0]["code"] == "device_error" and refused[0]["message"], refused
        texts = {answer["choices"][0]["text"] for status, answer, _ in answers if status == 200}
        assert len(texts) == 1
    finally:
        s.stop()


def test_a_refused_launch_ends_one_request_and_loses_no_other_session(calm, tmp_path):
    """A session in memory only has its next tokens after the device has refused a launch for other requests."""
    refused = "launch:300:cudaErrorLaunchOutOfResources"
    s = calm.start(tmp_path, ADDITIVE_EMULATOR_FAULT=refused, ADDITIVE_CUDA_RECORD="0")
    try:
        pid = s.engine_pid()
        kept = s.ok("POST", "/v1/sessions", {"model": calm.model, "prompt": "9 bottles"})["id"]
        assert not log_lines(s, "refuses a call")
        ask = {"model": calm.model, "prompt": "9 bottles", "max_tokens": 30, "temperature": 0}
        answers = [s.request("POST", "/v1/completions", ask) for _ in range(12)]
        errors = [answer["error"] for status, answer, _ in answers if status != 200]
        assert len(errors) == 1 and errors[0]["code"] == "device_error", errors
        assert "could not be computed" in errors[0]["message"]
        assert len({answer["choices"][0]["text"] for status, answer, _ in answers if status == 200}) == 1
        assert s.ok("POST", f"/v1/sessions/{kept}/generate", ASK)["choices"][0]["text"] == calm.text
        assert metric(s, "additive_engine_device_restarts_total") == 0 and s.engine_pid() == pid
        assert len(log_lines(s, "refuses a call")) == 1
    finally:
        s.stop()


@pytest.mark.slow
@pytest.mark.parametrize("launch", (60, 75, 90, 120))
def test_a_durable_session_continues_from_its_stored_state_after_a_refused_step(calm, tmp_path, launch):
    s = calm.start(tmp_path, ADDITIVE_CUDA_RECORD="0",
                   ADDITIVE_EMULATOR_FAULT=f"launch:{launch}:cudaErrorLaunchOutOfResources")
    try:
        status, answer, _ = s.request("POST", f"/v1/sessions/{calm.session}/generate", ASK)
        assert status == 503 and answer["error"]["code"] == "device_error", answer
        assert calm.text_of(s) == calm.text
        assert metric(s, "additive_engine_device_restarts_total") == 0
    finally:
        s.stop()


@pytest.mark.slow
def test_recordings_that_fail_change_no_text_and_lose_no_device(calm, tmp_path):
    s = calm.start(tmp_path, ADDITIVE_EMULATOR_FAULT="capture:1+:cudaErrorInvalidValue")
    try:
        assert calm.text_of(s) == calm.text and metric(s, "additive_engine_device_restarts_total") == 0
        said = log_lines(s, "a plan runs kernel by kernel")
        assert len(said) == 1 and "cudaErrorInvalidValue" in said[0], said
    finally:
        assert s.stop() == 0


def test_an_engine_whose_device_stays_lost_executes_itself_anew_and_goes_on(calm, tmp_path):
    """Where a reset does not help the engine becomes a new process: of the same id, with the same weights and texts."""
    s = calm.start(tmp_path, **fails_for_good(tmp_path, "launch:160", processes=2))
    try:
        pid = s.engine_pid()
        job = wait_through(s, "/v1/fine_tuning/jobs/" + s.job(**STEPS)["id"])
        assert job["status"] == "succeeded" and job["additive"]["step"] == 8, job
        assert s.engine_pid() == pid and len(log_lines(s, "was killed by")) == 0
        assert metric(s, "additive_engine_process_restarts_total") == 2
        assert metric(s, "additive_engine_device_restarts_total") == 2 and metric(s, "additive_engine_device_ok") == 1
        assert weights(s, job["fine_tuned_model"]) == weights(s, calm.model)
        assert calm.text_of(s) == calm.text
        assert len(log_lines(s, "the engine re-executes itself")) == 2
    finally:
        assert s.stop() == 0


def test_requests_end_with_device_error_before_the_engine_executes_itself_anew(calm, tmp_path):
    s = calm.start(tmp_path, **fails_for_good(tmp_path, "launch:100", processes=1))
    try:
        pid = s.engine_pid()
        ask = {"model": calm.model, "prompt": "9 bottles", "max_tokens": 30, "temperature": 0}
        status = 200
        while status == 200:
            status, answer, _ = s.request("POST", "/v1/completions", ask)
        assert (status, answer["error"]["code"]) == (503, "device_error"), answer
        refused = s.request("POST", "/v1/completions", ask)
        assert refused[0] == 503 and refused[1]["error"]["code"] in ("device_error", "engine_unavailable"), refused
        wait_until(lambda: s.request("POST", "/v1/completions", ask)[0] == 200)
        assert s.engine_pid() == pid and s.request("GET", "/readyz")[0] == 200
        assert metric(s, "additive_engine_process_restarts_total") == 1
    finally:
        assert s.stop() == 0


@pytest.mark.slow
def test_a_device_that_fails_in_every_process_leaves_an_engine_that_says_so(calm, tmp_path):
    """Five processes in vain, with growing pauses; then requests that need no device are answered, and /readyz gives
    the reason."""
    s = calm.start(tmp_path, **fails_for_good(tmp_path, "launch:40+"))
    try:
        pid = s.engine_pid()
        ask = {"model": calm.model, "prompt": "9 bottles", "max_tokens": 30, "temperature": 0}
        wait_until(lambda: s.request("POST", "/v1/completions", ask) and len(log_lines(s, "is tried again in")) >= 2)
        assert len(log_lines(s, "the engine re-executes itself")) == 5 and s.engine_pid() == pid
        assert metric(s, "additive_engine_process_restarts_total") == 5 and metric(s, "additive_engine_device_ok") == 0
        status, answer, _ = s.request("GET", "/readyz")
        assert (status, answer["error"]["code"]) == (503, "device_error"), answer
        assert "cudaErrorDevicesUnavailable" in answer["error"]["message"]
        status, answer, _ = s.request("POST", "/v1/completions", ask)
        assert (status, answer["error"]["code"]) == (503, "device_error"), answer
        assert s.request("GET", "/healthz")[0] == 200 and s.ok("GET", "/v1/models")["data"]
        time.sleep(2)
        assert len(log_lines(s, "is tried again in")) < 6  # with longer and longer pauses
    finally:
        assert s.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fine_tuning/jobs", "evaluations"])
def test_a_job_under_which_the_device_always_fails_ends_before_the_engine_gives_up(calm, tmp_path, kind):
    """Failures are counted from process to process: the fourth without progress ends the job."""
    s = calm.start(tmp_path, **fails_for_good(tmp_path, "launch:40+"))
    try:
        if kind == "evaluations":
            path = f"/v1/{kind}/" + s.ok("POST", "/v1/evaluations", {"model": calm.model, "file": s.upload(TEXT)})["id"]
        else:
            path = f"/v1/{kind}/" + s.job(**STEPS)["id"]
        job = wait_through(s, path)
        assert job["status"] == "failed" and job["error"]["code"] == "device_error", job
        wait_until(lambda: s.request("GET", "/readyz")[0] == 200)
        assert len(log_lines(s, "the engine re-executes itself")) == 4
    finally:
        assert s.stop() == 0


def test_the_sessions_of_a_lost_device_continue_on_the_other_one(calm, tmp_path):
    """The second device fails for good: its sessions have their next tokens on the first, where a job then trains."""
    s = calm.start(tmp_path, "--device", "0,1", ADDITIVE_EMULATOR_DEVICES="2", ADDITIVE_EMULATOR_FAULT_DEVICE="1",
                   **fails_for_good(tmp_path, "launch:2000+"))
    try:
        pid = s.engine_pid()
        made = {"model": calm.model, "prompt": "9 bottles", "durable": True}
        stays, moves = (s.ok("POST", "/v1/sessions", made)["id"] for _ in range(2))
        devices = s.ok("GET", "/readyz")["devices"]
        assert [(d["number"], d["problem"], d["sessions"]) for d in devices] == [(0, None, 1), (1, None, 1)], devices
        status = 200
        while status == 200:
            twin = s.ok("POST", f"/v1/sessions/{moves}/fork", {})["id"]  # on the same device
            status, answer, _ = s.request("POST", f"/v1/sessions/{twin}/generate", ASK)
            s.request("DELETE", f"/v1/sessions/{twin}")
        assert (status, answer["error"]["code"]) == (503, "device_error"), answer
        texts = {s.ok("POST", f"/v1/sessions/{i}/generate", ASK)["choices"][0]["text"] for i in (stays, moves)}
        assert texts == {calm.text}
        devices = s.ok("GET", "/readyz")["devices"]
        assert devices[0]["problem"] is None and devices[1]["problem"] and devices[0]["sessions"] == 2, devices
        assert metric(s, 'additive_device_ok{device="0"}') == 1 and metric(s, 'additive_device_ok{device="1"}') == 0
        assert metric(s, "additive_engine_device_ok") == 1 and calm.text_of(s) == calm.text
        job = s.wait_job(s.job(**STEPS)["id"], seconds=SECONDS)
        assert job["status"] == "succeeded" and weights(s, job["fine_tuned_model"]) == weights(s, calm.model), job
        assert metric(s, 'additive_device_training_steps_total{device="0"}') == 8
        assert metric(s, "additive_engine_process_restarts_total") == 0 and s.engine_pid() == pid
        assert log_lines(s, "is tried again in")
    finally:
        assert s.stop() == 0


def test_a_device_lost_beside_another_works_again_in_a_new_process_once_nothing_would_be_lost(calm, tmp_path):
    """A session in memory only keeps the process; after its deletion ten quiet seconds end it."""
    s = calm.start(tmp_path, "--device", "0,1", ADDITIVE_EMULATOR_DEVICES="2", ADDITIVE_EMULATOR_FAULT_DEVICE="1",
                   **fails_for_good(tmp_path, "launch:2000+", processes=1))
    try:
        made = {"model": calm.model, "prompt": "9 bottles"}
        keeps, lost = (s.ok("POST", "/v1/sessions", made)["id"] for _ in range(2))
        status = 200
        while status == 200:
            twin = s.ok("POST", f"/v1/sessions/{lost}/fork", {})["id"]  # on the same device
            status = s.request("POST", f"/v1/sessions/{twin}/generate", ASK)[0]
            s.request("DELETE", f"/v1/sessions/{twin}")
        wait_until(lambda: s.ok("GET", "/readyz")["devices"][1]["problem"])
        assert metric(s, 'additive_device_ok{device="1"}') == 0
        time.sleep(12)
        assert metric(s, "additive_engine_process_restarts_total") == 0
        s.ok("DELETE", f"/v1/sessions/{keeps}")
        wait_until(lambda: log_lines(s, "a device is lost and nothing runs"), seconds=60)
        wait_until(lambda: s.request("GET", "/readyz")[0] == 200)
        assert [d["problem"] for d in s.ok("GET", "/readyz")["devices"]] == [None, None]
        assert metric(s, "additive_engine_process_restarts_total") == 1
        assert log_lines(s, "compute device 1 cannot be used") and calm.text_of(s) == calm.text
    finally:
        assert s.stop() == 0


def test_a_models_weights_change_on_both_devices_beside_requests_and_its_deletion_leaves_none(calm, tmp_path):
    s = calm.start(tmp_path, "--device", "0,1", ADDITIVE_EMULATOR_DEVICES="2")
    try:
        s.ok("DELETE", f"/v1/sessions/{calm.session}")
        for session in s.ok("GET", "/v1/sessions")["data"]:  # their states belong to the weights
            s.ok("DELETE", f"/v1/sessions/{session['id']}")
        ask = {"model": calm.model, "prompt": "9 bottles", "max_tokens": 3, "temperature": 0}
        model = f"/v1/models/{calm.model}"

        def answers(n):
            return [s.request("POST", "/v1/completions", ask, timeout=SECONDS) for _ in range(n)]

        def loaded():
            return [d["models_loaded"] for d in s.ok("GET", "/readyz")["devices"]]

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(answers, 4) for _ in range(4)]
            status = 409
            while status == 409:
                status, changed, _ = s.request("POST", f"{model}/load", {"dtype": "int8"}, timeout=SECONDS)
            assert status == 200 and changed["additive"]["dtype"] == "int8" and loaded() == [1, 1]
            assert {status for one in streams for status, _, _ in one.result()} == {200}
            texts = {a["choices"][0]["text"] for one in [pool.submit(answers, 1) for _ in range(4)] for _, a, _ in one.result()}
            assert len(texts) == 1
            streams = [pool.submit(answers, 4) for _ in range(4)]
            status = 409
            while status == 409:
                status = s.request("DELETE", model, timeout=SECONDS)[0]
            assert status == 200
            assert {status for one in streams for status, _, _ in one.result()} <= {200, 404}
        assert loaded() == [0, 0] and s.request("GET", model)[0] == 404
    finally:
        assert s.stop() == 0


def test_both_devices_compute_and_the_job_takes_the_free_one(calm, tmp_path):
    s = calm.start(tmp_path, "--device", "1,0", ADDITIVE_EMULATOR_DEVICES="2")
    try:
        made = {"model": calm.model, "prompt": "9 bottles"}
        first = s.ok("POST", "/v1/sessions", made)["id"]
        job = s.wait_job(s.job(**STEPS)["id"], seconds=SECONDS)
        assert job["status"] == "succeeded" and weights(s, job["fine_tuned_model"]) == weights(s, calm.model), job
        assert metric(s, 'additive_device_training_steps_total{device="1"}') == 0
        assert metric(s, 'additive_device_training_steps_total{device="0"}') == 8
        ids = [first] + [s.ok("POST", "/v1/sessions", made)["id"] for _ in range(3)]
        assert [d["sessions"] for d in s.ok("GET", "/readyz")["devices"]] == [2, 2]
        ids += [s.ok("POST", f"/v1/sessions/{i}/fork", {})["id"] for i in ids[:2]]
        texts = {s.ok("POST", f"/v1/sessions/{i}/generate", ASK)["choices"][0]["text"] for i in ids}
        assert texts == {calm.text}
        assert metric(s, "additive_engine_device_restarts_total") == 0
    finally:
        assert s.stop() == 0
