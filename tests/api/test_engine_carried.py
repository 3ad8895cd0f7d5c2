"""additived: transformers that carry rows of earlier segments, in jobs and in sessions; jobs of recurrent models that carry their state."""

import time

import pytest

from engine_client import TEXT, Engine, EngineError, daemon, engine, own_daemon

SEGMENT, MEMORY = 16, 24
MODEL = {"stack": "decoder", "dim": 16, "depth": 2, "heads": 2, "attn_dim_head": 8, "ff_mult": 1, "max_seq_len": SEGMENT,
         "max_mem_len": MEMORY, "rel_pos_bias": True, "rel_pos_num_buckets": 8, "rel_pos_max_distance": 48}

UNREAD = {**{key: value for key, value in MODEL.items() if not key.startswith("rel_pos")}, "rotary_pos_emb": True}


def params(file, steps, config=MODEL, **more):
    return {"model": "transformer", "training_file": file, "seed": 7, "additive": {
        "config": config, "sequence_length": SEGMENT, "batch_size": 4, "gradient_accumulation": 2, "learning_rate": 3e-3,
        "max_steps": steps, **more}}


def weights(engine, model):
    return engine.download("model.file", {"id": model, "name": "model.safetensors"})[1]


def trained(engine, job):
    done = engine.wait_job(job)
    assert done["status"] == "succeeded", done
    return done


@pytest.fixture(scope="module")
def model(engine):
    job = trained(engine, engine.call("job.create", params(engine.add_file(TEXT), 60, carry_state=True))["id"])
    return job["fine_tuned_model"]


def test_what_cannot_be_carried_is_refused_by_name(engine):
    file = engine.add_file(TEXT)
    bounded = {**MODEL, "max_mem_len": 0}
    for request, param in ((params(file, 1, bounded, carry_state=True), "additive.carry_state"),
                           (params(file, 1, {**MODEL, "mask_prob": 0.1}, carry_state=True), "additive.carry_state"),
                           ({**params(file, 1, carry_state=True, config={}), "model": "gpt2"}, "additive.carry_state"),
                           (recurrent("linear")(file, 1, carry_state=True, recompute=True), "additive.recompute"),
                           (recurrent("additive2", window_layers=[1], window_heads=2)(file, 1, carry_state=True), "additive.carry_state"),
                           (params(file, 1, sequence_length=SEGMENT + 1), "additive.sequence_length")):
        with pytest.raises(EngineError) as e:
            engine.call("job.create", request)
        assert (e.value.status, e.value.param) == (400, param)


def recurrent(kind, **config):
    def job(file, steps, **more):
        return params(file, steps, {"hidden_size": 16, "n_heads": 2, "n_layer": 2, **config}, **more) | {"model": kind}
    return job


def rwkv(file, steps, **more):
    return params(file, steps, {"hidden_size": 16, "num_hidden_layers": 2}, **more) | {"model": "rwkv"}


@pytest.mark.parametrize("params", [params, recurrent("additive"), recurrent("additive2"), recurrent("additive2", window_heads=2, linear_layers=[0]),
                                    recurrent("additive2", window_heads=2, window_sizes=[5, 0]), recurrent("linear"), rwkv],
                         ids=["transformer", "additive", "additive2", "additive2-linear", "additive2-windows", "linear", "rwkv"])
def test_a_job_that_carries_goes_on_after_kill_9_to_the_same_weights(own_daemon, engine, params):
    options = {"carry_state": True, "checkpoint_every": 5, "eval_every": 20}
    whole = trained(engine, engine.call("job.create", params(engine.add_file(TEXT), 100, **options))["id"])
    apart = trained(engine, engine.call("job.create", params(engine.add_file(TEXT), 100))["id"])
    expected = weights(engine, whole["fine_tuned_model"])
    assert expected != weights(engine, apart["fine_tuned_model"])
    daemon = own_daemon()
    with daemon.connect() as e:
        job = e.call("job.create", params(e.add_file(TEXT), 100, **options))["id"]
        e.wait(lambda: e.call("job.get", {"id": job})["additive"]["step"] >= 33)
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        done = trained(e, job)
        assert weights(e, done["fine_tuned_model"]) == expected
        assert done["additive"]["valid_loss"] == whole["additive"]["valid_loss"]
        assert any("continues from the checkpoint" in x["message"]
                   for x in e.job_events(job))
    assert daemon.stop() == 0


def test_a_session_goes_on_over_segments_however_it_is_read_forked_and_moved(engine, model):
    prompt, rest = TEXT[:21], TEXT[21:53]
    whole = engine.call("session.create", {"model": model, "prompt": prompt + rest})
    pieces = engine.call("session.create", {"model": model, "prompt": prompt})
    fork = engine.call("session.fork", {"id": pieces["id"]})
    for at in range(0, len(rest), 5):
        engine.call("session.append", {"id": pieces["id"], "text": rest[at:at + 5]})
    engine.call("session.append", {"id": fork["id"], "text": rest})
    state = engine.download("session.export", {"id": fork["id"]})[1]
    moved = engine.upload("session.import", {"model": model}, state=state)
    ask = {"max_tokens": 40, "temperature": 0}
    texts = [engine.generate({"id": s["id"], **ask}, "session.generate")[0] for s in (whole, pieces, fork, moved)]
    assert len(texts[0]) == 40 and len(set(texts)) == 1
    assert texts[0] == engine.generate({"model": model, "prompt": prompt + rest, **ask})[0]
    for s in (whole, pieces, fork, moved):
        assert engine.call("session.get", {"id": s["id"]})["state_bytes"] == whole["state_bytes"]
        engine.call("session.delete", {"id": s["id"]})


def test_weights_cover_the_rows_of_earlier_segments_and_contributions_one_segment(engine, model):
    session = engine.call("session.create", {"model": model, "prompt": TEXT[:60], "explain": True})
    for position, first in ((59, 3 * SEGMENT - MEMORY), (40, 2 * SEGMENT - MEMORY), (20, 0)):
        own = engine.call("session.alpha", {"id": session["id"], "position": position})["weights"]
        text = engine.call("explain", {"model": model, "input": TEXT[:60], "position": position})["weights"]
        assert len(own) == 2 * 2
        for a, b in zip(own, text):
            assert a["window"] == b["window"] == [first, position]
            assert sum(a["alpha"]) == pytest.approx(1, abs=1e-5) and a["alpha"] == pytest.approx(b["alpha"], abs=1e-4)
            assert max(a["alpha"][:SEGMENT]) > 0
    engine.call("session.delete", {"id": session["id"]})
    ask = {"model": model, "method": "contributions"}
    parts = engine.call("explain", {**ask, "input": TEXT[:SEGMENT]})
    assert parts
    with pytest.raises(EngineError) as e:
        engine.call("explain", {**ask, "input": TEXT[:SEGMENT + 1]})
    assert (e.value.status, e.value.param) == (413, "input")


def test_a_model_that_no_session_can_read_is_trained_and_says_why(engine):
    file = engine.add_file(TEXT)
    job = trained(engine, engine.call("job.create", params(file, 5, {**UNREAD, "attn_qk_norm": True, "attn_qk_norm_groups": 2}, carry_state=True))["id"])
    with pytest.raises(EngineError) as e:
        engine.generate({"model": job["fine_tuned_model"], "prompt": "9", "max_tokens": 3})
    assert "attn_qk_norm_groups" in str(e.value)
