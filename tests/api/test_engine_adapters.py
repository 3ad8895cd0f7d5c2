"""additived: jobs that train a state adapter of a model, the adapters themselves, and texts that begin with one."""

import json
import random
import struct
import time

import pytest

from engine_client import TEXT, EngineError, daemon, engine, own_daemon, train
from engine_serving import refused

TINY = {"config": {"hidden_size": 16, "n_heads": 2, "n_layer": 2}, "sequence_length": 64, "batch_size": 4, "learning_rate": 3e-3}
OTHER_TEXT = "".join(f"{n}, {n}, {n} sheep went over the fence. " for n in range(400, 0, -1))


def make_base(engine):
    job = engine.call("job.create", {"model": "additive2", "training_file": engine.add_file(TEXT), "seed": 7, "additive": {**TINY, "max_steps": 60}})
    return engine.wait_job(job["id"])["fine_tuned_model"]


@pytest.fixture(scope="module")
def base(engine):
    return make_base(engine)


@pytest.fixture(scope="module")
def file(engine):
    return engine.add_file(OTHER_TEXT)


def adapter_params(base, file, steps=40, **more):
    return {"model": base, "training_file": file, "seed": 7, "method": {"type": "adapter", "adapter": {"kind": "state"}},
            "additive": {"sequence_length": 64, "batch_size": 4, "learning_rate": 0.3, "max_steps": steps, **more}}


def make_adapter(engine, base, file, steps=40, **more):
    done = engine.wait_job(engine.call("job.create", adapter_params(base, file, steps, **more))["id"])
    assert done["status"] == "succeeded", done
    return done["additive"]["adapter"]


def content(engine, adapter):
    return engine.download("adapter.content", {"id": adapter})[1]


def weights(engine, model):
    return engine.download("model.file", {"id": model, "name": "model.safetensors"})[1]


def tensors(data):
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: t["shape"] for name, t in header.items() if name != "__metadata__"}


# --- the job --------------------------------------------------------------------------------

def test_a_job_of_an_adapter_learns_the_initial_states_and_leaves_the_model(engine, base, file):
    before = weights(engine, base)
    untouched = engine.wait_job(engine.call("job.create", adapter_params(base, file, 1, learning_rate=1e-12))["id"])["additive"]["valid_loss"]
    usual = adapter_params(base, file, 20)
    del usual["additive"]["learning_rate"]  # the default is large, as the numbers of a state are
    usual = engine.wait_job(engine.call("job.create", usual)["id"])["additive"]
    assert usual["resolved"]["learning_rate"] == 0.5 and usual["valid_loss"] < untouched - 0.01
    job = engine.call("job.create", adapter_params(base, file, eval_every=10, checkpoint_every=15))
    assert job["method"]["type"] == "adapter" and job["method"]["adapter"]["kind"] == "state" and job["additive"]["adapter"] is None
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded" and done["fine_tuned_model"] is None and done["trained_tokens"] == 40 * 4 * 64
    id = done["additive"]["adapter"]
    events = engine.job_events(job["id"])
    losses = [e["data"]["valid_loss"] for e in events if e["type"] == "metrics" and "valid_loss" in e["data"]]
    assert len(losses) == 4 and losses[0] == done["additive"]["valid_loss"] < losses[3] < untouched
    assert f"New adapter created: {id}" in [e["message"] for e in events]
    adapter = engine.call("adapter.get", {"id": id})
    assert adapter == {"id": id, "object": "adapter", "created_at": adapter["created_at"], "base": base, "base_digest": adapter["base_digest"],
                       "kind": "state", "parameters": 2 * (2 + 16), "job": job["id"]}
    data = content(engine, id)
    assert tensors(data) == {f"layers.{l}.initial.{name}": [n] for l in range(2) for name, n in (("score", 2), ("mean", 16))}
    assert any(data[-2 * 18 * 4:])
    assert weights(engine, base) == before
    for checkpoint in engine.call("job.checkpoints", {"id": job["id"]})["data"]:
        e = refused(engine, "completion.create", {"model": checkpoint["id"], "prompt": "a", "max_tokens": 1})
        assert (e.status, e.param) == (400, "model") and "adapter" in str(e)
    assert engine.call("storage.usage")["damaged"] == []


def test_a_job_of_an_adapter_refuses_what_has_no_meaning_for_it(engine, base, file):
    fine = adapter_params(base, file)
    wrong = [({"model": "additive2"}, "model"), ({"suffix": "mine"}, "suffix"),
             ({"method": {"type": "adapter"}}, "method.adapter"), ({"method": {"type": "adapter", "adapter": {}}}, "method.adapter.kind"),
             ({"method": {"type": "adapter", "adapter": {"kind": "prefix"}}}, "method.adapter.kind"),
             ({"method": {"type": "supervised", "adapter": {"kind": "state"}}}, "method.adapter"),
             ({"method": {**fine["method"], "supervised": {}}}, "method.supervised"),
             *(({"additive": {**fine["additive"], name: value}}, f"additive.{name}") for name, value in
               (("carry_state", True), ("parallel", {"ranks": 2}), ("optimizer", "muon"), ("size", {"hidden": 8}), ("objective", "fill_mask")))]
    for change, param in wrong:
        e = refused(engine, "job.create", {**fine, **change})
        assert (e.status, e.param) == (400, param), (change, str(e))
    e = refused(engine, "job.create", {**fine, "model": train(engine, 5, architecture="gpt2")})
    assert (e.status, e.param) == (400, "model") and "no initial state" in str(e)


def test_layers_of_additive_attention_without_a_window_have_an_adapter(engine, file):
    base = train(engine, 40)  # additive; its first layers have windows
    done = engine.wait_job(engine.call("job.create", adapter_params(base, file, eval_every=10))["id"])
    losses = [e["data"]["valid_loss"] for e in engine.job_events(done["id"]) if e["type"] == "metrics" and "valid_loss" in e["data"]]
    assert losses[0] < losses[-1] - 0.01
    adapter = done["additive"]["adapter"]
    last = engine.call("model.get", {"id": base})["additive"]["config"]["n_layer"] - 1
    assert {name.split(".")[1] for name in tensors(content(engine, adapter))} == {str(last)}
    plain, with_adapter = said(engine, base), said(engine, base, adapter)
    assert plain[0][0] != with_adapter[0][0] and with_adapter[1]["adapter"] == adapter


def test_linear_attention_has_an_adapter_of_keys_and_values(engine, file):
    job = engine.call("job.create", {"model": "linear", "training_file": engine.add_file(TEXT), "seed": 7, "additive": {**TINY, "max_steps": 40}})
    base = engine.wait_job(job["id"])["fine_tuned_model"]
    adapter = make_adapter(engine, base, file)
    assert tensors(content(engine, adapter)) == {f"layers.{l}.initial.{name}": [8, 16] for l in range(2) for name in ("keys", "values")}
    assert said(engine, base)[0][0] != said(engine, base, adapter)[0][0]


def test_the_hyperparameters_of_the_method_count(engine, base, file):
    method = {"type": "adapter", "adapter": {"kind": "state", "hyperparameters": {"batch_size": 2, "n_epochs": 3}}}
    asked = {"model": base, "training_file": file, "method": method, "dry_run": True, "additive": {"sequence_length": 64}}
    resolved = engine.call("job.create", asked)["resolved"]
    assert resolved["batch_size"] == 2 and resolved["n_epochs"] == 3


KILLS = pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])


def kill_during(daemon, job, kills):
    """Kill the engine each time that the job has made 20 steps more."""
    random_number, seen = random.Random(3), 0
    for _ in range(kills):
        with daemon.connect() as e:
            state = e.wait(lambda: (lambda j: j if j["additive"]["step"] >= seen + 20 or j["status"] == "succeeded" else None)(
                e.call("job.get", {"id": job})))
            assert state["status"] != "succeeded", state["additive"]
            time.sleep(random_number.random() * 0.02)
        daemon.kill()
        seen = state["additive"]["step"]
        daemon.start()


@KILLS
@pytest.mark.parametrize("more", [{}, {"ema_decay": 0.9, "keep_best": True}])
def test_a_job_of_an_adapter_killed_again_and_again_ends_with_the_same_bytes(own_daemon, more, kills):
    daemon, steps = own_daemon(), 40 * (kills + 1)
    more = {"checkpoint_every": 5, "eval_every": 20, **more}
    with daemon.connect() as e:
        base, file = make_base(e), e.add_file(OTHER_TEXT)
        expected = content(e, make_adapter(e, base, file, steps=steps, **more))
        job = e.call("job.create", adapter_params(base, file, steps, **more))["id"]
    kill_during(daemon, job, kills)
    with daemon.connect() as e:
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        adapter = done["additive"]["adapter"]
        assert content(e, adapter) == expected
        assert any("continues from the checkpoint" in x["message"] for x in e.job_events(job))
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        assert e.call("adapter.get", {"id": adapter})["job"] == job and content(e, adapter) == expected
        assert len(e.call("adapter.list")["data"]) == 2
    assert daemon.stop() == 0


# --- the object -----------------------------------------------------------------------------

def test_adapters_are_listed_in_pages_and_deleted(engine, base, file):
    before = [a["id"] for a in engine.call("adapter.list")["data"]]
    made = [make_adapter(engine, base, file, steps=2) for _ in range(3)]
    first = engine.call("adapter.list", {"limit": 2, "order": "desc"})
    assert [a["id"] for a in first["data"]] == made[:0:-1] and first["has_more"]
    rest = engine.call("adapter.list", {"after": first["last_id"]})
    assert [a["id"] for a in rest["data"]] == [made[0], *before] and not rest["has_more"]
    e = refused(engine, "model.delete", {"id": base})
    assert (e.status, e.code) == (409, "model_in_use") and "adapter" in str(e)
    for id in made:
        assert engine.call("adapter.delete", {"id": id}) == {"id": id, "object": "adapter", "deleted": True}
    for method in ("adapter.get", "adapter.delete", "adapter.content"):
        e = refused(engine, method, {"id": made[0]})
        assert (e.status, e.param) == (404, "id")
    assert [a["id"] for a in engine.call("adapter.list")["data"]] == before


def test_a_model_can_be_deleted_after_its_adapters(engine, file):
    base = make_base(engine)
    adapter = make_adapter(engine, base, file, steps=2)
    assert refused(engine, "model.delete", {"id": base}).status == 409
    engine.call("adapter.delete", {"id": adapter})
    assert engine.call("model.delete", {"id": base})["deleted"]


# --- generation -----------------------------------------------------------------------------

@pytest.fixture(scope="module")
def two(engine, base, file):
    """Two adapters of the base that change what it says."""
    return [make_adapter(engine, base, file, steps) for steps in (40, 41)]


def said(engine, base, adapter=None, prompt="9", **more):
    """The log-probabilities of a text, and the RESULT."""
    params = {"model": base, "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 0, **({"adapter": adapter} if adapter else {}), **more}
    _, events, result = engine.generate(params)
    return [x for e in events for x in e["logprobs"]["token_logprobs"]], result


def test_a_text_begins_with_the_state_of_its_adapter(engine, base, two):
    plain, first, second = (said(engine, base, adapter) for adapter in (None, *two))
    assert plain[0] != first[0] != second[0] != plain[0]
    assert "adapter" not in plain[1] and [r["adapter"] for _, r in (first, second)] == two
    # States that prompts share are those of one adapter.
    long = TEXT[:300]
    expected = [said(engine, base, adapter, long, cache_prompt=False)[0] for adapter in (None, *two)]
    for _ in range(2):
        assert [said(engine, base, adapter, long)[0] for adapter in (None, *two)] == expected
    assert said(engine, base, two[0], long)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_search_begins_with_the_adapter_too(engine, base, two):
    search = [said(engine, base, adapter, num_beams=2, temperature=1)[0] for adapter in (None, *two)]
    assert len({tuple(x) for x in search}) == 3


def test_a_state_is_continued_with_its_adapter_alone(engine, base, two):
    whole = said(engine, base, two[0], "99 bottles")[0]
    first = engine.generate({"model": base, "adapter": two[0], "prompt": "99 bo", "max_tokens": 0, "return_state": True})[2]
    state = first["state"]
    assert first["adapter"] == two[0]
    assert said(engine, base, two[0], "ttles", state=state)[0] == whole
    for other in (None, two[1]):
        e = refused(engine, "completion.create", {"model": base, "prompt": "ttles", "max_tokens": 1, "state": state, **({"adapter": other} if other else {})})
        assert (e.status, e.param) == (400, "state"), str(e)


def test_adapters_that_a_text_cannot_begin_with_are_refused(engine, base, two, file):
    other = make_base(engine)
    for params, status in (({"model": base, "adapter": "adapter-none"}, 404), ({"model": other, "adapter": two[0]}, 400)):
        for method, rest in (("completion.create", {"prompt": "a"}), ("chat.create", {"messages": [{"role": "user", "content": "a"}]}),
                             ("response.create", {"input": "a"})):
            e = refused(engine, method, {**params, **rest})
            assert (e.status, e.param) == (status, "adapter"), (method, str(e))
    for method, rest in (("session.create", {}), ("session.create", {"prompt": "a"})):
        e = refused(engine, method, {"model": other, "adapter": two[0], **rest})
        assert (e.status, e.param) == (400, "adapter")
        e = refused(engine, method, {"model": base, "adapter": two[0], "explain": True, **rest})
        assert (e.status, e.param) == (400, "explain")


# --- sessions -------------------------------------------------------------------------------

def in_session(engine, id, prompt="", n=8):
    """The log-probabilities that a session gives to its greedy text."""
    _, events, result = engine.generate({"id": id, "prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 0}, method="session.generate")
    return [x for e in events for x in e["logprobs"]["token_logprobs"]], result


def test_a_session_keeps_its_adapter_as_its_forks_do(engine, base, two):
    for first in ({}, {"prompt": "9"}):
        whole = said(engine, base, two[0], "99 bottles")[0][:8]
        x = engine.call("session.create", {"model": base, "adapter": two[0], **first})
        assert x["adapter"] == two[0]
        rest = "99 bottles"[len(first.get("prompt", "")):]
        fork = engine.call("session.fork", {"id": x["id"]})
        assert fork["adapter"] == two[0]
        for id in (x["id"], fork["id"]):
            scores, result = in_session(engine, id, rest)
            assert scores == whole and result["adapter"] == two[0]
            engine.call("session.delete", {"id": id})
    plain = engine.call("session.create", {"model": base, "prompt": "9"})
    assert "adapter" not in plain and in_session(engine, plain["id"], "9 bottles")[0] != whole
    engine.call("session.delete", {"id": plain["id"]})


def test_an_exported_state_is_restored_with_its_adapter_alone(engine, base, two):
    x = engine.call("session.create", {"model": base, "adapter": two[0], "prompt": "99 bo"})["id"]
    state = engine.download("session.export", {"id": x})[1]
    for adapter in (None, two[1]):
        with pytest.raises(EngineError) as e:
            engine.upload("session.import", {"model": base, **({"adapter": adapter} if adapter else {})}, state=state)
        assert (e.value.status, e.value.param) == (400, "state")
    y = engine.upload("session.import", {"model": base, "adapter": two[0]}, state=state)
    assert y["adapter"] == two[0] and in_session(engine, y["id"], "ttles")[0] == in_session(engine, x, "ttles")[0]
    for id in (x, y["id"]):
        engine.call("session.delete", {"id": id})


def test_a_state_is_imported_for_a_model_whose_layers_it_fits(engine, base, two, file):
    data = content(engine, two[0])
    made = engine.upload("adapter.import", {"model": base}, file={"adapter.safetensors": data})
    assert (made["kind"], made["base"], made["parameters"]) == ("state", base, 36) and content(engine, made["id"]) == data
    assert said(engine, base, made["id"])[0] == said(engine, base, two[0])[0]
    for model, status, param in ((train(engine, 2), 400, "layers.1.query.initial.score"), ("ft:nothing", 404, "model"), (train(engine, 2, architecture="gpt2"), 400, "model")):
        with pytest.raises(EngineError) as e:
            engine.upload("adapter.import", {"model": model}, file={"adapter.safetensors": data})
        assert (e.value.status, e.value.param) == (status, param), str(e.value)
    with pytest.raises(EngineError) as e:
        engine.upload("adapter.import", {"model": base}, file={"adapter.safetensors": data[:-1]})
    assert e.value.status == 400


def test_an_adapter_that_a_session_has_is_not_deleted(engine, base, file):
    adapter = make_adapter(engine, base, file, steps=2)
    x = engine.call("session.create", {"model": base, "adapter": adapter})["id"]
    e = refused(engine, "adapter.delete", {"id": adapter})
    assert (e.status, e.code) == (409, "adapter_in_use")
    engine.call("session.delete", {"id": x})
    assert engine.call("adapter.delete", {"id": adapter})["deleted"]


def test_sessions_with_an_adapter_leave_their_slots_survive_kills_and_roll_back(own_daemon):
    daemon = own_daemon("--max-sessions", "2")
    with daemon.connect() as e:
        base = make_base(e)
        made = [make_adapter(e, base, e.add_file(OTHER_TEXT), steps) for steps in (40, 41)]
        ids = [e.call("session.create", {"model": base, "adapter": made[i % 2], "durable": i > 1, "prompt": "99 bo", "snapshot_every": 16})["id"] for i in range(6)]
        expected = [said(e, base, adapter, "99 bottles")[0][:8] for adapter in made]
        assert expected[0] != expected[1]
        for i, id in enumerate(ids[:4]):
            assert in_session(e, id, "ttles")[0] == expected[i % 2]
        kept = e.call("snapshot.create", {"id": ids[3], "name": "kept"})
        after = in_session(e, ids[3], " of")[0]
        fork = e.call("session.fork", {"id": ids[3], "snapshot": kept["id"]})
        assert fork["adapter"] == made[1] and in_session(e, fork["id"], " of")[0] == after
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        for i in (4, 5):
            assert e.call("session.get", {"id": ids[i]})["adapter"] == made[i % 2] and in_session(e, ids[i], "ttles")[0] == expected[i % 2]
        e.call("session.rollback", {"id": ids[3], "snapshot": kept["id"]})
        assert in_session(e, ids[3], " of")[0] == after
        assert refused(e, "adapter.delete", {"id": made[0]}).code == "adapter_in_use"
    assert daemon.stop() == 0


def test_adapters_are_those_of_a_keys_project_and_models(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as e:
        base = make_base(e)
        common = make_adapter(e, base, e.add_file(OTHER_TEXT), steps=2)
        e.key = admin = e.call("key.create", {"name": "admin", "role": "admin"})["id"]
        mine, other, limited = (e.call("key.create", {"name": "x", "role": "trainer", **more})["id"]
                                for more in ({"project": "a"}, {"project": "b"}, {"models": ["nothing"]}))
        e.key = mine
        own = make_adapter(e, base, e.add_file(OTHER_TEXT), steps=2)
        assert e.call("adapter.get", {"id": own})["project"] == "a"
        ask = {"model": base, "adapter": own, "prompt": "a", "max_tokens": 1}
        assert e.generate(ask)[2]["adapter"] == own
        for key, visible in ((admin, [common, own]), (mine, [common, own]), (other, [common]), (limited, [])):
            e.key = key
            assert [a["id"] for a in e.call("adapter.list", {"order": "asc"})["data"]] == visible
        for key, id in ((other, own), (limited, common)):
            e.key = key
            assert refused(e, "adapter.get", {"id": id}).status == 404
        e.key = other
        failed = refused(e, "completion.create", ask)
        assert (failed.status, failed.param) == (404, "adapter")
    assert daemon.stop() == 0


def check_that_a_damaged_adapter_fails_alone(daemon, make, name, how):
    """Flip a bit of the file, or remove it: requests with the adapter are errors of the service, and no others."""
    with daemon.connect() as e:
        base = make_base(e)
        adapter = make(e, base, e.add_file(OTHER_TEXT), 2)
    daemon.kill()
    path = daemon.folder / "adapters" / adapter / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.unlink()
    if how == "flip":
        path.write_bytes(data)
    daemon.start()
    with daemon.connect() as e:
        failed = refused(e, "completion.create", {"model": base, "adapter": adapter, "prompt": "a", "max_tokens": 1})
        assert (failed.status, failed.param) == (500, "adapter")
        assert e.generate({"model": base, "prompt": "a", "max_tokens": 1})[2]["model"] == base
        assert refused(e, "adapter.content", {"id": adapter}).status == 500
    assert daemon.stop() == 0


@pytest.mark.parametrize("how", ["flip", "remove"])
def test_a_damaged_adapter_is_an_error_of_the_service_and_no_other_text_fails(own_daemon, how):
    check_that_a_damaged_adapter_fails_alone(own_daemon(), make_adapter, "adapter.safetensors", how)


def test_an_adapter_speaks_with_weights_of_any_type(engine, base, two):
    fp32 = said(engine, base, two[0])[0]
    for dtype in ("int8", "fp32"):
        engine.call("model.load", {"id": base, "dtype": dtype})
        now = said(engine, base, two[0])
        assert now[1]["adapter"] == two[0] and (now[0] == fp32) == (dtype == "fp32")
        assert now[0] != said(engine, base)[0]
