"""Kept states of prompts: also large ones, and those that --prefix-disk-bytes moves to the disk. These survive a stop and a kill, and go with
their model and their key."""

import pytest

from engine_client import job_params, own_daemon, train  # noqa: F401

# A model in which reading a state is faster than computing it.
CONFIG = {"hidden_size": 256, "n_heads": 4, "n_layer": 4, "n_positions": 2048, "window_sizes": [16, 64, 256, 2048]}
# One whose states after 768 tokens take 6 MiB.
LARGE = {"n_embd": 256, "n_head": 4, "n_layer": 4, "n_positions": 1024}
OPTIONS = ("--prefix-disk-bytes", 1 << 28)
PROMPT = "".join(f"{n} bottles of beer on the wall. " for n in range(60, 0, -1))
SHORTER = PROMPT[:900]


def train_large(engine):
    params = job_params(engine.add_file(PROMPT * 2), 1, "gpt2", config=LARGE)
    return engine.wait_job(engine.call("job.create", params)["id"])["fine_tuned_model"]


def values(engine, key=None, prefix="additive_engine_prefix_disk_"):
    rows = engine.begin("engine.metrics", key=key).result()["metrics"]
    return {m["name"][len(prefix):]: m["samples"][0]["value"] for m in rows if m["name"].startswith(prefix)}


def ask(engine, model, prompt=PROMPT, owner="10.0.0.1", tenant=None, **more):
    """(text, tokens of the prompt that were not read)"""
    key = owner if owner.startswith("key-") else None
    params = {"model": model, "prompt": prompt, "temperature": 0.8, "seed": 3, "max_tokens": 12, **more}
    call = engine.begin("completion.create", params, credit=1 << 20, owner=owner, key=key,
                        context={"request_id": "a", "fairness_id": tenant} if tenant else None)
    text = "".join(e["text"] for e in call.events())
    return text, call.result()["usage"]["prompt_tokens_details"]["cached_tokens"]


def files(daemon):
    return sorted(p.name for p in (daemon.folder / "cache" / "prefixes").iterdir())


def test_prompts_begin_where_they_ended_before_a_stop_and_before_a_kill(own_daemon):
    daemon = own_daemon(*OPTIONS)
    with daemon.connect() as engine:
        model = train(engine, steps=2, config=CONFIG)
        expected, cached = ask(engine, model)
        assert cached == 0
        alone, _ = ask(engine, model, cache_prompt=False)
        assert alone == expected
    for i, end in enumerate((daemon.stop, daemon.kill, daemon.kill)):
        end()
        daemon.start()
        with daemon.connect() as engine:
            assert values(engine)["reads_total"] == 0
            text, cached = ask(engine, model)
            assert text == expected and cached > len(PROMPT) // 2
            assert values(engine)["reads_total"] >= 1
            assert ask(engine, model, owner=f"10.0.1.{i}")[1] == 0
            assert values(engine)["damaged_total"] == 0
    for path in (daemon.folder / "cache" / "prefixes").iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    daemon.kill()
    daemon.start()
    with daemon.connect() as engine:
        assert ask(engine, model) == (expected, 0)
        assert values(engine)["damaged_total"] >= 1
    assert daemon.stop() == 0


def test_the_states_of_a_deleted_model_are_gone(own_daemon):
    daemon = own_daemon(*OPTIONS)
    with daemon.connect() as engine:
        model, other = train(engine, steps=2, config=CONFIG), train(engine, steps=3, config=CONFIG)
        for m in (model, other):
            ask(engine, m)
        daemon.stop()
        daemon.start()
    with daemon.connect() as engine:
        before = values(engine)["states"]
        assert before == len(files(daemon)) >= 2
        ask(engine, model)
        engine.call("model.delete", {"id": model})
        engine.wait(lambda: len(files(daemon)) == values(engine)["states"] < before)
        assert ask(engine, other)[1] > 0
    assert daemon.stop() == 0


@pytest.mark.parametrize("tenant", [None, "team-1"])
def test_the_states_of_a_revoked_key_are_gone(own_daemon, tenant):
    daemon = own_daemon(*OPTIONS)
    with daemon.connect() as engine:
        model = train(engine, steps=2, config=CONFIG)
        admin = engine.call("key.create", {"name": "admin", "role": "admin"})["id"]
        user = engine.begin("key.create", {"name": "user"}, key=admin).result()["id"]
        ask(engine, model, owner=user, tenant=tenant)
    daemon.stop()
    daemon.start()
    with daemon.connect() as engine:
        assert ask(engine, model, owner=user, tenant="another")[1] == 0
        assert ask(engine, model, owner=user, tenant=tenant)[1] > 0 and files(daemon)
        engine.begin("key.delete", {"id": user}, key=admin).result()
        engine.wait(lambda: not files(daemon))
    daemon.stop()
    assert not files(daemon)  # nor those that were in memory
    daemon.start()
    assert daemon.stop() == 0


def test_without_the_option_nothing_is_kept_and_what_was_is_removed(own_daemon):
    daemon = own_daemon(*OPTIONS)
    with daemon.connect() as engine:
        model = train(engine, steps=2, config=CONFIG)
        ask(engine, model)
    daemon.stop()
    assert files(daemon)
    daemon.options = []
    daemon.start()
    with daemon.connect() as engine:
        assert not (daemon.folder / "cache" / "prefixes").exists()
        assert ask(engine, model)[1] == 0 and ask(engine, model)[1] > 0
        assert values(engine)["states"] == 0
    assert daemon.stop() == 0
    assert not (daemon.folder / "cache" / "prefixes").exists()


def test_a_large_state_is_kept_unless_the_budget_is_too_small(own_daemon):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model = train_large(engine)
        expected, cached = ask(engine, model, SHORTER, cache_prompt=False)
        for before in (0, 768, 768):
            assert ask(engine, model, SHORTER) == (expected, before)
        found = values(engine, prefix="additive_engine_prefix_")
        assert found["bytes"] > 6 << 20 and found["too_large_total"] == 0
    assert daemon.stop() == 0
    daemon.options = ["--prefix-bytes", str(5 << 20)]
    daemon.start()
    with daemon.connect() as engine:
        for _ in range(2):
            assert ask(engine, model, SHORTER) == (expected, 0)
        found = values(engine, prefix="additive_engine_prefix_")
        assert found["bytes"] == 0 and found["too_large_total"] == 2
    assert daemon.stop() == 0


def test_a_kill_while_states_are_written_leaves_states_that_are_whole_or_unused(own_daemon):
    daemon = own_daemon(*OPTIONS, "--prefix-bytes", 10 << 20)  # one state; the others move to the disk
    prompts = [f"{i}: {SHORTER}" for i in range(6)]
    with daemon.connect() as engine:
        model = train_large(engine)
        expected = [ask(engine, model, p, cache_prompt=False)[0] for p in prompts]
    cached = 0
    for last in range(2, len(prompts) + 1):
        with daemon.connect() as engine:
            for i in range(last):
                text, n = ask(engine, model, prompts[i])
                assert text == expected[i]
                cached += n
        daemon.kill()  # the latest states are queued, or being written
        daemon.start()
    assert cached > 0
    with daemon.connect() as engine:
        assert [ask(engine, model, p)[0] for p in prompts] == expected
        assert values(engine)["reads_total"] > 0
    assert daemon.stop() == 0
