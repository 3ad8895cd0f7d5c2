"""additived: jobs that train a low-rank adapter of a model, its export for PEFT, and batches of texts with several."""

import io
import json
import tarfile

import numpy
import pytest
from safetensors.numpy import load, save

from engine_client import TEXT, EngineError, daemon, engine, own_daemon, train
from engine_serving import refused
from test_engine_adapters import KILLS, OTHER_TEXT, check_that_a_damaged_adapter_fails_alone, in_session, kill_during, make_base, said, weights

SCALE_TO_TEST = 1e-5


@pytest.fixture(scope="module", params=["additive2", "gpt2"])
def base(request, engine):
    return make_base(engine) if request.param == "additive2" else train(engine, 40, architecture="gpt2")


@pytest.fixture(scope="module")
def file(engine):
    return engine.add_file(OTHER_TEXT)


def lora_params(base, file, steps=40, lora=None, **more):
    return {"model": base, "training_file": file, "seed": 7, "method": {"type": "adapter", "adapter": {"kind": "lora", **(lora or {})}},
            "additive": {"sequence_length": 32, "batch_size": 4, "learning_rate": 0.02, "max_steps": steps, **more}}


def make_lora(engine, base, file, steps=40, lora=None, **more):
    done = engine.wait_job(engine.call("job.create", lora_params(base, file, steps, lora, **more))["id"])
    assert done["status"] == "succeeded", done
    return done["additive"]["adapter"]


def exported(engine, adapter):
    """The configuration and the tensors of an adapter's archive."""
    about, data = engine.download("adapter.content", {"id": adapter})
    assert about["content_type"] == "application/x-tar" and about["filename"] == f"{adapter}.tar"
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["adapter_config.json", "adapter_model.safetensors"]
        config, tensors = (archive.extractfile(name).read() for name in archive.getnames())
    return json.loads(config), load(tensors)


def test_a_job_learns_matrices_beside_those_of_the_model_and_leaves_it(engine, base, file):
    before = weights(engine, base)
    untouched = engine.wait_job(engine.call("job.create", lora_params(base, file, 1, learning_rate=1e-12))["id"])["additive"]["valid_loss"]
    job = engine.call("job.create", lora_params(base, file, lora={"rank": 4, "alpha": 12}, checkpoint_every=15))
    assert {**job["method"]["adapter"], "hyperparameters": None} == {"kind": "lora", "rank": 4, "alpha": 12.0, "hyperparameters": None}
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded" and done["fine_tuned_model"] is None
    assert done["additive"]["valid_loss"] < untouched - 0.01
    id = done["additive"]["adapter"]
    config, tensors = exported(engine, id)
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"], config["task_type"]) == ("LORA", 4, 12.0, "none", "CAUSAL_LM")
    assert {name.split(".lora_")[0] for name in tensors} == {f"base_model.model.{module}" for module in config["target_modules"]}
    adapter = engine.call("adapter.get", {"id": id})
    assert (adapter["kind"], adapter["rank"], adapter["alpha"], adapter["parameters"]) == ("lora", 4, 12.0, sum(t.size for t in tensors.values()))
    assert "targets" not in adapter
    assert weights(engine, base) == before
    assert engine.call("storage.usage")["damaged"] == []


def test_the_defaults_of_a_job(engine, base, file):
    params = lora_params(base, file)
    del params["additive"]["learning_rate"]
    job = engine.call("job.create", {**params, "dry_run": True})
    assert job["resolved"]["learning_rate"] == 1e-2
    method = engine.call("job.create", params)["method"]["adapter"]
    assert (method["rank"], method["alpha"]) == (8, 8.0)


def test_a_text_with_an_adapter_is_that_of_the_merged_weights(engine, base, file):
    adapter = make_lora(engine, base, file, lora={"rank": 3, "alpha": 5})
    config, tensors = exported(engine, adapter)
    whole = load(weights(engine, base))
    for module in config["target_modules"]:
        name = module + ".weight" if module + ".weight" in whole else module
        a, b = (tensors[f"base_model.model.{module}.lora_{x}.weight"].astype(numpy.float64) for x in "AB")
        product = config["lora_alpha"] / config["r"] * b @ a
        whole[name] = (whole[name] + (product.T if config["fan_in_fan_out"] else product)).astype(numpy.float32)
    files = {name: engine.download("model.file", {"id": base, "name": name})[1] for name in ("config.json", "tokenizer.json")}
    merged = engine.upload("model.import", {"id": f"merged-{adapter}"}, file={**files, "model.safetensors": save(whole)})["id"]
    expected, got, plain = said(engine, merged)[0], said(engine, base, adapter)[0], said(engine, base)[0]
    assert max(abs(x - y) for x, y in zip(expected, got)) < SCALE_TO_TEST
    assert max(abs(x - y) for x, y in zip(plain, got)) > 1e-3


def test_texts_with_different_adapters_and_none_share_a_batch(engine, base, file):
    adapters = [None] + [make_lora(engine, base, file, 20 + i, {"rank": 2 + 3 * i}) for i in range(3)]
    alone = [said(engine, base, a, max_tokens=20)[0] for a in adapters]
    assert len({tuple(x) for x in alone}) == len(adapters)
    calls = [engine.begin("completion.create", {"model": base, "prompt": "9", "max_tokens": 20, "temperature": 0, "logprobs": 0,
                                                **({"adapter": a} if a else {})}, credit=1 << 20) for a in adapters * 3]
    for i, call in enumerate(calls):
        events = list(call.events())
        assert [x for e in events for x in e["logprobs"]["token_logprobs"]] == alone[i % len(adapters)]
        assert call.result().get("adapter") == adapters[i % len(adapters)]
    chat = engine.generate({"model": base, "adapter": adapters[1], "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}, "chat.create")
    assert chat[2]["adapter"] == adapters[1]
    for dtype in ("int8", "fp32"):
        engine.call("model.load", {"id": base, "dtype": dtype})
        now = said(engine, base, adapters[1], max_tokens=20)[0]
        assert (now == alone[1]) == (dtype == "fp32")


def test_a_session_keeps_its_adapter_out_of_its_slot_and_after_a_kill(own_daemon):
    daemon = own_daemon("--max-sessions", "2")
    with daemon.connect() as e:
        base = make_base(e)
        made = [make_lora(e, base, e.add_file(OTHER_TEXT), 20 + i) for i in range(2)]
        expected = [said(e, base, adapter, "99 bottles")[0][:8] for adapter in made]
        assert expected[0] != expected[1]
        ids = [e.call("session.create", {"model": base, "adapter": made[i % 2], "durable": i > 1, "prompt": "99 bo"})["id"] for i in range(6)]
        for i, id in enumerate(ids[:4]):
            scores, result = in_session(e, id, "ttles")
            assert scores == expected[i % 2] and result["adapter"] == made[i % 2]
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        for i in (4, 5):
            fork = e.call("session.fork", {"id": ids[i]})
            assert fork["adapter"] == made[i % 2]
            for id in (ids[i], fork["id"]):
                assert in_session(e, id, "ttles")[0] == expected[i % 2]
    assert daemon.stop() == 0


def files_of(engine, adapter):
    """The files of an adapter's archive."""
    with tarfile.open(fileobj=io.BytesIO(engine.download("adapter.content", {"id": adapter})[1])) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}


def test_an_adapter_is_imported_as_it_was_exported(engine, base, file):
    adapter = make_lora(engine, base, file, lora={"rank": 3, "alpha": 5})
    expected = said(engine, base, adapter)[0]
    files, archive = files_of(engine, adapter), engine.download("adapter.content", {"id": adapter})[1]
    for part in ({"file": files}, {"archive": archive}):
        made = engine.upload("adapter.import", {"model": base}, **part)
        shown = engine.call("adapter.get", {"id": adapter})
        assert {k: made[k] for k in ("kind", "rank", "alpha", "base", "base_digest", "parameters")} == {k: shown[k] for k in ("kind", "rank", "alpha", "base", "base_digest", "parameters")}
        assert "job" not in made and made == engine.call("adapter.get", {"id": made["id"]}) and made["id"] != adapter
        assert said(engine, base, made["id"])[0] == expected
        assert load(files_of(engine, made["id"])["adapter_model.safetensors"]).keys() == load(files["adapter_model.safetensors"]).keys()
    config, tensors = json.loads(files["adapter_config.json"]), load(files["adapter_model.safetensors"])
    name = sorted(tensors)[0]
    for change, param in (({"adapter_config.json": None}, "adapter_config.json"), ({"adapter_model.safetensors": None}, "file"),
                          ({"adapter_config.json": b"{"}, "adapter_config.json"),
                          ({"adapter_config.json": json.dumps({**config, "peft_type": "IA3"}).encode()}, "peft_type"),
                          ({"adapter_config.json": json.dumps({**config, "r": 4}).encode()}, None),
                          ({"adapter_model.safetensors": save({k: v for k, v in tensors.items() if k != name})}, name),
                          ({"adapter_model.safetensors": save({**tensors, name: tensors[name] * numpy.float32("nan")})}, name),
                          ({"adapter_model.safetensors": files["adapter_model.safetensors"][:-5]}, None), ({"README.md": b"x"}, "file")):
        given = {k: v for k, v in {**files, **change}.items() if v is not None}
        with pytest.raises(EngineError) as e:
            engine.upload("adapter.import", {"model": base}, file=given)
        assert e.value.status == 400 and param in (e.value.param, None), (change.keys(), str(e.value))
    assert engine.call("storage.usage")["damaged"] == []


def test_bad_options_are_refused_by_name(engine, base, file):
    for lora, param in (({"rank": 0}, "rank"), ({"rank": 65}, "rank"), ({"alpha": 0}, "alpha"), ({"targets": []}, "targets"),
                        ({"targets": ["nothing"]}, "targets"), ({"targets": [1]}, "targets[0]"), ({"dropout": 0.1}, "dropout")):
        e = refused(engine, "job.create", lora_params(base, file, lora=lora))
        assert e.status == 400 and e.param == f"method.adapter.{param}", (lora, str(e), e.param)
    e = refused(engine, "job.create", {**lora_params(base, file), "method": {"type": "adapter", "adapter": {"kind": "state", "rank": 3}}})
    assert (e.status, e.param) == (400, "method.adapter.rank")
    e = refused(engine, "completion.create", {"model": base, "adapter": make_lora(engine, base, file, 1), "prompt": "abc", "max_tokens": 1,
                                              "logprobs": 0, "prompt_logprobs": 0})
    assert (e.status, e.param) == (400, "adapter")


def test_a_model_whose_layers_are_quantised_has_no_low_rank_adapter(engine, file):
    e = refused(engine, "job.create", lora_params(train(engine, 2, architecture="trilinear"), file))
    assert (e.status, e.param) == (400, "method.adapter.targets")


@KILLS
def test_a_job_killed_again_and_again_ends_with_the_same_bytes(own_daemon, kills):
    daemon, steps = own_daemon(), 40 * (kills + 1)
    more = {"checkpoint_every": 5, "eval_every": 20, "ema_decay": 0.9, "keep_best": True}
    with daemon.connect() as e:
        base, file = make_base(e), e.add_file(OTHER_TEXT)
        first = make_lora(e, base, file, steps, **more)
        expected, text = e.download("adapter.content", {"id": first})[1], said(e, base, first)[0]
        job = e.call("job.create", lora_params(base, file, steps, **more))["id"]
    kill_during(daemon, job, kills)
    with daemon.connect() as e:
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        adapter = done["additive"]["adapter"]
        assert e.download("adapter.content", {"id": adapter})[1] == expected
        assert any("continues from the checkpoint" in x["message"] for x in e.job_events(job))
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        assert e.download("adapter.content", {"id": adapter})[1] == expected and said(e, base, adapter)[0] == text
    assert daemon.stop() == 0


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_damaged_adapter_is_an_error_of_the_service_and_no_other_text_fails(own_daemon, name):
    check_that_a_damaged_adapter_fails_alone(own_daemon(), make_lora, name, "flip")


def test_adapters_whose_ranks_are_too_many_at_a_time_are_told_to_wait(engine, file):
    base = make_base(engine)
    made = [make_lora(engine, base, file, 1, {"rank": 64}, learning_rate=1e-4 * (i + 1)) for i in range(9)]
    held = [engine.call("session.create", {"model": base, "adapter": adapter})["id"] for adapter in made[:8]]
    ask = {"model": base, "prompt": "a", "max_tokens": 2, "adapter": made[8]}
    with pytest.raises(EngineError) as e:
        engine.generate(ask)
    assert e.value.status == 429 and e.value.param == "adapter" and "512 in all" in e.value.message
    engine.call("session.delete", {"id": held[3]})
    assert engine.generate(ask)[2]["usage"]["completion_tokens"] == 2
