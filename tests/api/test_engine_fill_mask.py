"""additived: a model that is trained to fill in masks, and its answers for texts with masks."""

import pathlib
import random

import pytest

from engine_client import EngineError, daemon, engine, own_daemon, train  # noqa: F401

MASK, BYTE = 259, 3
LENGTH = 16
CONFIG = {"stack": "encoder", "use_abs_pos_emb": True}
ENCODER = {"config": CONFIG, "size": {"hidden": 32, "heads": 2, "layers": 2, "dropout": 0}, "sequence_length": LENGTH, "batch_size": 16,
           "learning_rate": 3e-3}
# Blocks in which each of two letters determines the other, before it or after it.
TEXT = "".join(f"say {x}, and now {x}" for x in random.Random(5).choices("abcdefgh", k=1500))
TOKENIZERS = pathlib.Path(__file__).parents[1] / "data/tokenizers"


def params(file, steps, **more):
    return {"model": "transformer", "training_file": file, "seed": 7, "additive": {**ENCODER, "max_steps": steps, **more}}


def finished(engine, ask):
    done = engine.wait_job(engine.call("job.create", ask)["id"])
    assert done["status"] == "succeeded", done
    return done


@pytest.fixture(scope="module")
def job(engine):
    return finished(engine, params(engine.add_file(TEXT), 500))


@pytest.fixture(scope="module")
def model(job):
    return job["fine_tuned_model"]


@pytest.fixture(scope="module")
def causal(engine):
    return train(engine, steps=2)


def refused(engine, method, ask):
    with pytest.raises(EngineError) as e:
        engine.call(method, ask)
    return e.value


def fill(engine, model, text, **more):
    return engine.call("fill_mask", {"model": model, "input": text, **more})


def test_a_model_that_sees_both_sides_is_trained_to_fill_in_masks_unless_that_is_said(engine, job, model):
    progress, made = job["additive"], engine.call("model.get", {"id": model})["additive"]
    assert made["config"]["mask_token_id"] == MASK and made["tokenizer"] == {"type": "bytes", "vocab_size": 259}
    assert progress["accuracy"] > 0.95 and 1 < progress["perplexity"] < 1.5 and progress["bits_per_byte"] is None
    events = [e["data"] for e in engine.job_events(job["id"]) if "accuracy" in (e["data"] or {})]
    assert events and not any("preview" in e for e in events)


def test_the_candidates_of_a_mask_are_texts_with_it_filled_in(engine, model):
    text = "say d, and now [MASK]"
    answer = fill(engine, model, text)
    assert answer["object"] == "list" and answer["model"] == model
    assert answer["usage"] == {"prompt_tokens": len(text) - 5, "total_tokens": len(text) - 5}
    item, = answer["data"]
    mask, = item["masks"]
    assert item["index"] == 0 and (mask["position"], mask["offset"]) == (15, 15) and len(mask["candidates"]) == 5
    best = mask["candidates"][0]
    assert (best["token"], best["id"]) == ("d", ord("d") + BYTE) and best["probability"] > 0.9
    assert item["text"] == best["text"] == "say d, and now d"
    more = fill(engine, model, text, top_k=100)["data"][0]["masks"][0]["candidates"]
    assert more[:5] == mask["candidates"] and len(more) == 100
    chances = [c["probability"] for c in more]
    assert chances == sorted(chances, reverse=True) and 0.99 < sum(chances) < 1 + 1e-9
    assert len({c["id"] for c in more}) == 100 and all(BYTE <= c["id"] < MASK for c in more)


def test_several_masks_are_filled_in_one_by_one_and_together(engine, model):
    texts = ["s[MASK]y e, [MASK]nd now [MASK]", "say [MASK], and now h", "[MASK]ay"]
    answer = fill(engine, model, texts, top_k=2)
    assert [d["index"] for d in answer["data"]] == [0, 1, 2]
    for text, item in zip(texts, answer["data"], strict=True):
        parts, best = text.split("[MASK]"), [m["candidates"][0]["token"] for m in item["masks"]]
        assert len(best) == len(parts) - 1
        for i, mask in enumerate(item["masks"]):
            before, after = "[MASK]".join(parts[:i + 1]), "[MASK]".join(parts[i + 1:])
            assert mask["offset"] == len(before) and mask["position"] == len(before) - 5 * i
            assert [c["text"] for c in mask["candidates"]] == [before + c["token"] + after for c in mask["candidates"]]
        assert item["text"] == "".join(p + b for p, b in zip(parts, [*best, ""]))
        alone, = fill(engine, model, text, top_k=2)["data"]
        assert alone["masks"] == item["masks"] and alone["text"] == item["text"]
    assert [d["text"] for d in answer["data"]] == ["say e, and now e", "say h, and now h", "say"]


def test_a_candidate_depends_on_the_text_before_and_after_the_mask(engine, model):
    for letter in "abcdefgh":
        texts = [f"say {letter}, and now [MASK]", f"say [MASK], and now {letter}"]
        assert [d["text"] for d in fill(engine, model, texts)["data"]] == [f"say {letter}, and now {letter}"] * 2


def test_nowhere_else_is_the_name_of_the_mask_more_than_text(engine, model):
    assert engine.call("embed", {"model": model, "input": "[MASK]"})["usage"]["prompt_tokens"] == 6
    named = engine.call("tokenize", {"model": model, "text": "[MASK]", "allow_special": True})
    assert named["tokens"] == [c + BYTE for c in b"[MASK]"]


def test_parts_of_characters_become_texts_that_are_valid(engine, model):
    for candidate in fill(engine, model, "é[MASK]", top_k=100)["data"][0]["masks"][0]["candidates"]:
        assert candidate["text"].startswith("é") and len(candidate["text"]) == 2


def test_what_cannot_be_filled_in_is_refused_by_name(engine, model, causal):
    limit = engine.call("model.get", {"id": model})["additive"]["n_positions"] or 8192
    for ask, status, param, words in [
        ({"input": "no mask"}, 400, "input", "[MASK]"),
        ({"input": ["a [MASK]", "none"]}, 400, "input[1]", "[MASK]"),
        ({"input": "a <mask>"}, 400, "input", "[MASK]"),
        ({"input": "x" * limit + "[MASK]"}, 400, "input", f"{limit + 1} tokens; the model reads at most {limit}"),
        ({"input": ""}, 400, "input", ""),
        ({"input": "[MASK]", "top_k": 0}, 400, "top_k", ""),
        ({"input": "[MASK]", "top_k": 101}, 400, "top_k", ""),
        ({"input": "[MASK]", "top": 1}, 400, "top", ""),
        ({"input": ["[MASK]" * 16] * 2048, "top_k": 100}, 413, "input[", "masks"),
        ({"input": "[MASK]", "model": causal}, 400, "model", "generates text"),
        ({"input": "[MASK]", "model": "nowhere"}, 404, "model", ""),
    ]:
        e = refused(engine, "fill_mask", {"model": model, **ask})
        assert e.status == status and e.param.startswith(param) and words in e.message, (ask, e)


def test_a_model_generates_or_fills_in_and_is_trained_for_that(engine, model, causal):
    e = refused(engine, "completion.create", {"model": model, "prompt": "99"})
    assert e.status == 400 and e.param == "model" and "fill in masks" in e.message
    file = engine.add_file(TEXT)
    for name, objective in ((model, "next_token"), (causal, "fill_mask"), (model, "classification")):
        e = refused(engine, "job.create", {"model": name, "training_file": file, "additive": {"objective": objective}})
        assert e.status == 400 and e.param == "additive.objective", e
    e = refused(engine, "job.create", {"model": causal, "training_file": file, "additive": {"mask_fraction": 0.2}})
    assert e.status == 400 and e.param == "additive.mask_fraction"
    e = refused(engine, "job.create", {"model": causal, "training_file": file, "additive": {"whole_words": True}})
    assert e.status == 400 and e.param == "additive.whole_words"
    e = refused(engine, "job.create", params(file, 1, mask_fraction=0))
    assert e.status == 400 and e.param == "additive.mask_fraction"
    e = refused(engine, "job.create", params(file, 1, config={**CONFIG, "num_tokens": 259}))  # there is no room for the mask
    assert e.status == 400 and e.param == "additive.config.mask_token_id"


def test_the_mask_follows_the_ids_of_the_tokenizer_unless_it_is_given(engine):
    for given, mask in (({"num_tokens": 300}, 259), ({"num_tokens": 300, "mask_token_id": 299}, 299), ({"mask_token_id": 2}, 2)):
        done = finished(engine, params(engine.add_file(TEXT), 1, config={**CONFIG, **given}))
        config = engine.call("model.get", {"id": done["fine_tuned_model"]})["additive"]["config"]
        assert config["mask_token_id"] == mask and config["num_tokens"] == given.get("num_tokens", 259)
        assert fill(engine, done["fine_tuned_model"], "s[MASK]y")["data"][0]["masks"][0]["position"] == 1


def test_it_is_trained_further_with_the_same_mask(engine, model):
    ask = {"model": model, "training_file": engine.add_file(TEXT), "additive": {"max_steps": 3, "sequence_length": 8,
                                                                              "mask_fraction": 0.3, "whole_words": True, "objective": "fill_mask"}}
    made = engine.call("model.get", {"id": finished(engine, ask)["fine_tuned_model"]})["additive"]
    assert made["config"]["mask_token_id"] == MASK


def test_a_tokenizer_with_a_mask_of_its_own_finds_it_with_the_space_before_it(engine):
    tokenizer = engine.add_file((TOKENIZERS / "roberta/tokenizer.json").read_bytes(), "tokenizer.json")
    done = finished(engine, params(engine.add_file(TEXT), 3, tokenizer={"file": tokenizer}))
    model = done["fine_tuned_model"]
    made = engine.call("model.get", {"id": model})["additive"]
    assert made["config"]["mask_token_id"] == 702 and made["tokenizer"]["vocab_size"] == 703
    text = "say a, and <mask> a"
    item, = fill(engine, model, text, top_k=100)["data"]
    mask, = item["masks"]
    assert mask["offset"] == len("say a, and")  # the space after it belongs to the mask
    for candidate in mask["candidates"]:
        if not candidate["token"].startswith("bytes:"):
            assert candidate["text"] == "say a, and" + candidate["token"] + " a"
    e = refused(engine, "fill_mask", {"model": model, "input": "of [MASK]"})
    assert e.status == 400 and e.param == "input" and "<mask>" in e.message


def test_a_mask_takes_the_space_before_it_where_the_tokens_of_words_do(engine):
    done = finished(engine, params(engine.add_file(TEXT), 3, tokenizer={"type": "bpe", "vocab_size": 280}))
    model, text = done["fine_tuned_model"], "say a, and [MASK] a"
    count = lambda t: len(engine.call("tokenize", {"model": model, "text": t})["tokens"])
    item, = fill(engine, model, text)["data"]
    mask, = item["masks"]
    assert mask["offset"] == len("say a, and") and mask["position"] == count("say a, and")
    inside, = fill(engine, model, "say a, a[MASK]d a")["data"][0]["masks"]
    assert inside["offset"] == len("say a, a") and inside["position"] == count("say a, a")


def test_a_job_survives_a_kill_with_the_same_masks(own_daemon):
    def weights(e, job):
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        return e.download("model.file", {"id": done["fine_tuned_model"], "name": "model.safetensors"})[1]

    daemon = own_daemon()
    with daemon.connect() as e:
        ask = params(e.add_file(TEXT), 500, checkpoint_every=25)
        calm = weights(e, e.call("job.create", ask)["id"])
        killed = e.call("job.create", ask)["id"]
        e.wait(lambda: (e.call("job.get", {"id": killed})["additive"]["step"] or 0) >= 60)
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        assert e.call("job.get", {"id": killed})["status"] != "succeeded"
        assert weights(e, killed) == calm
    assert daemon.stop() == 0


@pytest.mark.parametrize("kind, keys", [("dilated", {"segment_length": [4, LENGTH], "dilated_ratio": [1, 2]}), ("trilinear", {"combiner_init": "random"})])
def test_attention_in_both_directions_fills_in_masks_and_is_explained(engine, kind, keys):
    config = {"bidirectional": True, "position_embedding": "learned"} | keys
    job = finished(engine, params(engine.add_file(TEXT), 60, config=config) | {"model": kind})
    model = job["fine_tuned_model"]
    assert job["additive"]["accuracy"] > 0.3 and len(fill(engine, model, "say a[MASK] and")["data"][0]["masks"]) == 1
    a = engine.call("explain", {"model": model, "input": "say a[MASK] and"})
    assert a["position"] == 5 and a["weights"][0]["window"] == [0, 9] and all(abs(sum(r["alpha"]) - 1) < 1e-5 for r in a["weights"])
    assert abs(a["contributions"]["sums"]["rounding"]) < 1e-3
    assert refused(engine, "session.create", {"model": model}).param == "model"


def test_an_explanation_is_of_the_mask_and_what_the_model_puts_there(engine, model):
    text = "say [MASK], and now d"
    ids = [b + BYTE for b in text[:4].encode()] + [MASK] + [b + BYTE for b in text[10:].encode()]
    ids, text = ids[:LENGTH], text[:LENGTH + 5]
    put = fill(engine, model, text)["data"][0]["masks"][0]
    best = put["candidates"][0]
    a = engine.call("explain", {"model": model, "input": text})
    c = a["contributions"]
    assert a["position"] == put["position"] == 4 and c["target"]["token"]["id"] == best["id"] and len(a["tokens"]) == LENGTH
    assert abs(2.718281828459045 ** c["target"]["log_probability"] - best["probability"]) < 1e-5
    assert len(c["tokens"]) == LENGTH and abs(c["sums"]["rounding"]) < 1e-3 and abs(c["sums"]["reader"] - c["tokens"][4]) < 1e-6
    assert all(r["window"] == [0, LENGTH - 1] and abs(sum(r["alpha"]) - 1) < 1e-5 for r in a["weights"])
    of = lambda input, **more: engine.call("explain", {"model": model, "input": input, "method": "leave_one_out", "replacement": 70, **more})
    named = {"kind": "logit", "token": best["id"]}
    out = of(ids, target=named, position=4)["attribution"]
    other = [*ids[:9], 70, *ids[10:]]
    assert abs(out["tokens"][9] - (out["score"] - of(other, target=named)["attribution"]["score"])) < 1e-4
    span = engine.call("explain", {"model": model, "input": ids, "span": [3, 5], "target": named})["span"]["rows"]
    assert [r["position"] for r in span] == [3, 4, 5] and abs(span[1]["score"] - out["score"]) < 1e-4 and abs(span[0]["score"] - out["score"]) > 1e-3
    assert engine.call("explain", {"model": model, "input": "no mask", "method": "alpha"})["position"] == 6
    e = refused(engine, "explain", {"model": model, "input": ids, "position": LENGTH})
    assert (e.status, e.param) == (400, "position")
