"""additived: models that read a source: completions with a source and a prefix, and sessions that keep one."""

import json
import pathlib
import re
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))

from encoder_decoder import BYTE, LENGTH, SOURCE, START, VOCAB, EncoderDecoder  # noqa: E402
from engine_client import EngineError, daemon, engine, own_daemon, train  # noqa: E402, F401

ID = "translator"


def tokens(text):
    return [b + BYTE for b in text.encode()]


@pytest.fixture(scope="module")
def reference():
    return EncoderDecoder()


@pytest.fixture(scope="module")
def model(engine, reference):
    engine.upload("model.import", {"id": ID}, **reference.files())
    return ID


@pytest.fixture(scope="module")
def causal(engine):
    return train(engine, steps=2)


def ask(model, prompt, most=12, **more):
    return {"model": model, "prompt": prompt, "max_tokens": most, "temperature": 0, **more}


def generated(engine, params, method="completion.create", index=0):
    events, result = engine.generate(params, method)[1:]
    return [t["id"] if isinstance(t, dict) else t for e in events if e["index"] == index for t in e["tokens"]], result


CASES = [("a short source", ""), ("x", "already written"), ("twenty-nine bytes of a source!", "b"), ("y" * SOURCE, "")]


def test_greedy_completions_are_those_of_the_whole_computed_at_once(engine, model, reference):
    for source, prefix in CASES:
        expected, lead = reference.greedy(tokens(source), tokens(prefix), 12)
        assert lead > 1e-3, "the weights of this test leave a choice open"
        got, result = generated(engine, ask(model, source, **({"prefix": prefix} if prefix else {})))
        assert got == expected, (source, prefix)
        assert result["usage"]["prompt_tokens"] == len(source) + len(prefix) + 1
        got, _ = generated(engine, ask(model, tokens(source), prefix=tokens(prefix) or ""))
        assert got == expected


def test_prompts_of_one_request_share_steps_and_have_the_text_of_each_alone(engine, model):
    sources = [source for source, _ in CASES]
    more = {"prefix": "so", "n": 2, "temperature": 1.0, "seed": 3}
    together = engine.generate(ask(model, sources, **more))[1]
    for i, source in enumerate(sources):
        alone = engine.generate(ask(model, source, **more))[1]
        for k in range(2):
            of = lambda events, index: [(e["text"], e["tokens"]) for e in events if e["index"] == index]
            assert of(together, 2 * i + k) == of(alone, k) != []


def test_the_prefix_is_echoed_and_its_tokens_are_scored_after_the_start(engine, model, reference):
    text, events, result = engine.generate(ask(model, "a source", 0, prefix="written", echo=True, logprobs=2))
    assert text == "written"
    got = [x for e in events for x in e["logprobs"]["token_logprobs"]]
    ids = [START, *tokens("written")]
    expected = reference.logprobs(tokens("a source"), ids)[0]
    assert got[0] is None and len(got) == len(ids)
    np.testing.assert_allclose(got[1:], [expected[i, t] for i, t in enumerate(ids[1:])], atol=1e-4)


def test_a_session_keeps_its_source_through_forks_exports_and_all_its_requests(engine, model, reference):
    expected, _ = reference.greedy(tokens("a kept source"), tokens("and"), 16)
    s = engine.call("session.create", {"model": model, "source": "a kept source", "prompt": "and"})
    assert (s["source_tokens"], s["tokens"]) == (len("a kept source"), 1 + len("and"))
    more = lambda id, n: generated(engine, {"id": id, "max_tokens": n, "temperature": 0}, "session.generate")[0]
    assert more(s["id"], 6) == expected[:6]
    fork = engine.call("session.fork", {"id": s["id"]})
    state = engine.download("session.export", {"id": s["id"]})[1]
    restored = engine.upload("session.import", {"model": model}, state=state)
    for x in (s, fork, restored):
        assert engine.call("session.get", {"id": x["id"]})["source_tokens"] == len("a kept source")
        assert more(x["id"], 10) == expected[6:]
    appended = engine.call("session.create", {"model": model, "source": tokens("a kept source")})
    assert appended["tokens"] == 1
    engine.call("session.append", {"id": appended["id"], "text": "and"})
    assert more(appended["id"], 16) == expected
    for x in (s, fork, restored, appended):
        engine.call("session.delete", {"id": x["id"]})


def test_a_durable_session_has_its_source_after_a_kill(own_daemon, reference):
    expected, _ = reference.greedy(tokens("durable"), [], 8)
    daemon = own_daemon()
    with daemon.connect() as engine:
        engine.upload("model.import", {"id": ID}, **reference.files())
        s = engine.call("session.create", {"model": ID, "source": "durable", "durable": True})["id"]
        first = generated(engine, {"id": s, "max_tokens": 4, "temperature": 0}, "session.generate")[0]
        daemon.kill()
    daemon = own_daemon()
    with daemon.connect() as engine:
        known = engine.call("session.get", {"id": s})
        assert (known["source_tokens"], known["tokens"]) == (len("durable"), 5)
        assert first + generated(engine, {"id": s, "max_tokens": 4, "temperature": 0}, "session.generate")[0] == expected
    daemon.stop()


def bytes_without_roles():
    """A tokenizer of as many ids as the model, none of which begins, ends or fills up a text."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"model": {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": []}, "pre_tokenizer": step, "decoder": step}


def test_without_a_start_token_the_prefix_is_the_start(engine, reference):
    files = reference.files()
    config = {k: v for k, v in json.loads(files["config"]).items() if k != "decoder_start_token_id"}
    engine.upload("model.import", {"id": "startless"}, config=json.dumps(config).encode(), weights=files["weights"],
                  tokenizer=json.dumps(bytes_without_roles()).encode())
    refused(engine, "completion.create", ask("startless", tokens("a source")), "model", "start token")
    refused(engine, "completion.create", ask("startless", tokens("a source"), prefix=""), "model", "start token")
    refused(engine, "session.create", {"model": "startless", "source": tokens("a source")}, "model", "start token")
    expected, _ = reference.greedy(tokens("a source"), tokens("so"), 8)
    got, result = generated(engine, ask("startless", tokens("a source"), 8, prefix=[START, *tokens("so")], logit_bias={}))
    assert got == expected and result["usage"]["prompt_tokens"] == len("a source") + len("so") + 1
    s = engine.call("session.create", {"model": "startless", "source": tokens("a source"), "prompt": [START, *tokens("so")]})
    assert s["tokens"] == 3
    assert generated(engine, {"id": s["id"], "max_tokens": 8, "temperature": 0}, "session.generate")[0] == expected
    engine.call("session.delete", {"id": s["id"]})


def refused(engine, method, params, param, words):
    with pytest.raises(EngineError, match=words) as e:
        engine.generate(params, method) if method.endswith(("generate", "completion.create")) else engine.call(method, params)
    assert e.value.param == param, e.value


def test_what_a_model_with_or_without_an_encoder_cannot_do_is_refused_by_name(engine, model, causal):
    refused(engine, "completion.create", ask(model, "x" * (SOURCE + 1)), "prompt", f"{SOURCE + 1} tokens .* up to {SOURCE}")
    refused(engine, "completion.create", ask(model, "x", prefix="y" * LENGTH), "prefix", "positions")
    refused(engine, "completion.create", ask(model, ""), "prompt", "empty")
    refused(engine, "completion.create", ask(model, [VOCAB]), "prompt", "vocabulary")
    refused(engine, "completion.create", ask(model, "x", prefix=[VOCAB]), "prefix", "vocabulary")
    refused(engine, "completion.create", ask(causal, "x", prefix="y"), "prefix", "'prefix' is only for models that read a source")
    refused(engine, "session.create", {"model": causal, "source": "x"}, "source", "no source")
    refused(engine, "session.create", {"model": model}, "source", "missing")
    refused(engine, "session.create", {"model": model, "prompt": "x"}, "source", "missing")
    refused(engine, "chat.create", {"model": model, "messages": [{"role": "user", "content": "x"}]}, "model", "conversations")
    refused(engine, "embed", {"model": model, "input": "x"}, "model", "source")
    refused(engine, "explain", {"model": model, "input": "x"}, "source", "must not be missing")
    refused(engine, "explain", {"model": model, "input": "x", "source": ""}, "source", "1 to 40")
    refused(engine, "explain", {"model": model, "input": "x", "source": "y" * (SOURCE + 1)}, "source", "1 to 40")
    refused(engine, "explain", {"model": model, "input": "x", "source": [VOCAB]}, "source", "vocabulary")
    refused(engine, "explain", {"model": causal, "input": "x", "source": "y"}, "source", "no source")
    left = engine.call("session.list")["data"]
    assert not [s for s in left if s["model"] in (model, causal)]


def rollout(layers, v):
    for a in reversed(layers):
        v = (v @ a.mean(0) + v) / 2
    return v


def test_an_explanation_has_the_weights_of_the_source_and_of_the_tokens(engine, model, reference):
    source, text, position = "a source of words", "what is", 5
    ids = [START, *tokens(text)]
    encoder, decoder, cross = reference.attentions(tokens(source), ids)
    a = engine.call("explain", {"model": model, "source": source, "input": text, "position": position, "aggregate": "rollout", "method": "alpha"})
    assert [t["offset"] for t in a["source"]["tokens"]] == list(range(len(source)))
    assert "".join(t["text"] for t in a["source"]["tokens"]) == source and len(a["tokens"]) == len(ids)
    for rows, expected in ((a["weights"], decoder), (a["source"]["weights"], cross)):
        assert [(r["layer"], r["head"]) for r in rows] == [(layer, head) for layer in range(2) for head in range(2)]
        for r in rows:
            np.testing.assert_allclose(r["alpha"], expected[r["layer"]][r["head"], position, :len(r["alpha"])], atol=1e-5)
            assert abs(sum(r["alpha"]) - 1) < 1e-5
    assert a["source"]["weights"][0]["window"] == [0, len(source) - 1] and a["weights"][0]["window"] == [0, position]
    at = np.eye(len(ids))[position]
    np.testing.assert_allclose(a["source"]["aggregate"]["alpha"], rollout(encoder, rollout(decoder, at) @ np.mean(cross, (0, 1))), atol=1e-5)
    s = engine.call("session.create", {"model": model, "source": source, "prompt": text, "explain": True})["id"]
    b = engine.call("session.alpha", {"id": s, "position": position, "aggregate": "mean", "layers": [1]})
    assert b["source"]["tokens"] == a["source"]["tokens"] and len(b["source"]["weights"]) == 2
    np.testing.assert_allclose(b["source"]["aggregate"]["alpha"], cross[1][:, position].mean(0), atol=1e-5)
    np.testing.assert_allclose(b["weights"][1]["alpha"], a["weights"][3]["alpha"], atol=1e-6)
    whole = engine.call("explain", {"session": s, "method": "contributions"})["contributions"]
    assert len(whole["source"]["tokens"]) == len(source) and abs(whole["sums"]["rounding"]) < 1e-3
    engine.call("session.delete", {"id": s})


@pytest.mark.parametrize("source", ["a source of words", "y" * SOURCE, "sixteen letters!", "x"])
def test_the_parts_of_a_source_and_of_the_tokens_are_those_of_the_score(engine, model, reference, source):
    ids, target = [START, *tokens("fifteen letters")], {"kind": "difference", "token": 70, "other": 80}
    of = lambda source_ids: float(np.subtract(*reference.logprobs(source_ids, ids)[0][-1][[70, 80]]))
    ask = lambda method, **more: engine.call("explain", {"model": model, "source": source, "input": "fifteen letters", "target": target, "method": method, **more})
    score = of(tokens(source))
    c = ask("contributions")["contributions"]
    assert abs(c["score"] - score) < 1e-3 and abs(c["sums"]["rounding"]) < 1e-3 and abs(c["sums"]["source"]) > 1e-3
    assert abs(sum(sum(c["source"][k]) for k in ("tokens", "positions", "biases")) - c["sums"]["source"]) < 1e-4
    a = ask("leave_one_out", replacement=90)["attribution"]
    for j in {0, len(source) - 1}:
        without = tokens(source)
        without[j] = 90
        assert abs(a["source"]["tokens"][j] - (score - of(without))) < 1e-3
    masked = ask("leave_one_out")["attribution"]
    assert len(masked["tokens"]) == len(ids) and len(masked["source"]["tokens"]) == len(source)
    path = ask("integrated_gradients", steps=256)["attribution"]
    assert abs(path["completeness_error"]) < 0.02 * max(1, abs(path["difference"])), path
    assert any(abs(x) > 1e-3 for x in ask("attention_x_gradient")["attribution"]["source"]["tokens"])


def test_a_cancelled_completion_leaves_the_next_ones_as_they_were(engine, model, reference):
    expected, _ = reference.greedy(tokens("y" * SOURCE), [], 12)
    for _ in range(5):
        call = engine.begin("completion.create", ask(model, "y" * SOURCE, 60), 1)
        call.cancel()
        with pytest.raises(EngineError, match=re.compile("cancel", re.I)):
            call.result()
    assert generated(engine, ask(model, "y" * SOURCE))[0] == expected
