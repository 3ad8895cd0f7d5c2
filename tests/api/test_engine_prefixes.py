"""additived --prefix-disk-bytes: the states of prompts survive a stop and a kill, and go with their model and their key."""

import pytest

from engine_client import own_daemon, train  # noqa: F401

# A model in which reading a state is faster than computing it.
CONFIG = {"hidden_size": 256, "n_heads": 4, "n_layer": 4, "n_positions": 2048, "window_sizes": [16, 64, 256, 2048]}
OPTIONS = ("--prefix-disk-bytes", 1 << 28)
PROMPT = "".join(f"{n} bottles of beer on the wall. " for n in range(60, 0, -1))


def values(engine, key=None):
    prefix = "additive_engine_prefix_disk_"
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
