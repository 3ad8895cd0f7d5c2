"""additived: encoder-decoders trained on sources with their targets, and on running text with spans or words left out."""

import json
import pathlib
import random

import pytest

from engine_client import EngineError, daemon, engine, own_daemon  # noqa: F401

SYMBOLS = "abcdefgh"
BYTES = {"pad": 0, "end": 1, "ids": 259}
TINY = {"config": {"stack": "encoder_decoder"}, "size": {"hidden": 16, "heads": 2, "layers": 1, "dropout": 0.1}, "sequence_length": 6,
        "source_length": 5, "batch_size": 8}


def strings(n, shortest, longest, seed):
    """Different strings of SYMBOLS."""
    draw, found = random.Random(seed), {}
    while len(found) < n:
        found["".join(draw.choices(SYMBOLS, k=draw.randint(shortest, longest)))] = None
    return list(found)


def lines(sources, change):
    return "".join(json.dumps({"source": s, "target": change(s)}) + "\n" for s in sources)


def reverse(s):
    return s[::-1]


def sort(s):
    return "".join(sorted(s))


PAIRS = lines(strings(200, 2, 5, 1), reverse)
# Running text with words to leave out.
TEXT = "".join(f"{n} bottles of beer on the wall, {n} bottles of beer. " for n in range(200, 0, -1))
TOKENIZERS = pathlib.Path(__file__).parents[1] / "data/tokenizers"
T5 = TOKENIZERS / "t5/tokenizer.json"
INFILL = {"objective": "text_infilling", "sequence_length": 24, "source_length": 25, "label_smoothing": 0.1}
MASK = 259


def params(file, steps=6, **more):
    return {"model": "transformer", "training_file": file, "seed": 7, "additive": {**TINY, "max_steps": steps, **more}}


def finished(engine, ask):
    done = engine.wait_job(engine.call("job.create", ask)["id"])
    assert done["status"] == "succeeded", done
    return done


def config(engine, model):
    return engine.call("model.get", {"id": model})["additive"]["config"]


def weights(engine, model):
    return engine.download("model.file", {"id": model, "name": "model.safetensors"})[1]


@pytest.fixture(scope="module")
def job(engine):
    return finished(engine, params(engine.add_file(PAIRS), 6, eval_every=3))


def test_a_job_learns_pairs_and_reports_what_became_of_targets(engine, job):
    progress = job["additive"]
    assert progress["step"] == 6 and progress["perplexity"] > 1 and 0 < progress["accuracy"] < 1
    assert 0 <= progress["exact"] < 1
    assert progress["bits_per_byte"] is None and progress["byte_entropy"] is None
    events = [e["data"] for e in engine.job_events(job["id"]) if "exact" in (e["data"] or {})]
    assert {e["step"] for e in events} == {3, 6} and not any("preview" in e for e in events)
    point, = engine.call("job.checkpoints", {"id": job["id"]})["data"][:1]
    assert point["metrics"]["valid_mean_token_accuracy"] == pytest.approx(progress["accuracy"])


def test_a_new_encoder_decoder_has_the_sizes_of_the_job_and_the_tokenizers_start(engine, job):
    made = config(engine, job["fine_tuned_model"])
    encoder, decoder = made["encoder"], made["decoder"]
    assert made["decoder_start_token_id"] == BYTES["pad"] and made["trained_length"] == 6
    assert (encoder["max_seq_len"], decoder["max_seq_len"]) == (5, 6)
    for stack in (encoder, decoder):
        assert (stack["num_tokens"], stack["dim"], stack["heads"], stack["depth"]) == (BYTES["ids"], 16, 2, 1)
        assert stack["use_rmsnorm"] and stack.get("use_abs_pos_emb", True) and not stack.get("rotary_pos_emb")
    assert not encoder.get("cross_attend") and decoder["cross_attend"]


def test_a_model_is_trained_further_as_it_was_unless_its_sources_are_longer(engine, job):
    file = engine.add_file(PAIRS)
    ask = {"model": job["fine_tuned_model"], "training_file": file, "additive": {"max_steps": 2, "batch_size": 8}}
    more = finished(engine, ask)
    assert config(engine, more["fine_tuned_model"])["decoder_start_token_id"] == BYTES["pad"]
    assert more["additive"]["step"] == 2 and more["additive"]["exact"] is not None
    with pytest.raises(EngineError) as e:
        engine.call("job.create", {**ask, "additive": {"source_length": 9}})
    assert e.value.param == "additive.source_length" and "5 positions" in e.value.message


def test_spans_of_running_text_are_left_out_with_a_tokenizer_that_has_sentinels(engine):
    file, t5 = engine.add_file(TEXT), {"file": engine.add_file(T5.read_bytes(), "tokenizer.json")}
    span = {"objective": "span_corruption", "sequence_length": 12, "source_length": 24, "span_length": 2}
    done = finished(engine, params(file, 4, tokenizer=t5, **span))
    assert done["additive"]["perplexity"] > 1 and "exact" not in done["additive"]
    assert config(engine, done["fine_tuned_model"])["decoder_start_token_id"] == 0  # <pad>, as of T5 itself
    for more, param in (({"tokenizer": {"type": "bytes"}}, "additive.tokenizer"),
                        ({"tokenizer": t5, "source_length": 100, "sequence_length": 50}, "additive.span_length")):
        with pytest.raises(EngineError) as e:
            engine.call("job.create", params(file, 4, **{**span, **more}))
        assert e.value.status == 400 and e.value.param == param and "sentinels" in e.value.message


def test_words_of_running_text_are_hidden_and_the_text_is_written_from_a_source_with_masks(engine):
    file = engine.add_file(TEXT)
    done = finished(engine, params(file, 4, **INFILL))
    progress, made = done["additive"], config(engine, done["fine_tuned_model"])
    assert progress["perplexity"] > 1 and 0 <= progress["blank_accuracy"] <= 1 and 0 <= progress["accuracy"] <= 1
    assert made["mask_token_id"] == MASK and made["decoder_start_token_id"] == BYTES["pad"]
    assert (made["encoder"]["max_seq_len"], made["decoder"]["max_seq_len"]) == (25, 24)
    assert made["encoder"]["num_tokens"] == made["decoder"]["num_tokens"] == MASK + 1
    greedy = {"model": done["fine_tuned_model"], "max_tokens": 4, "temperature": 0, "logprobs": 1}
    text, as_ids = "9 [MASK] of", [*b"9 "] + [MASK - 3] + [*b" of"]
    answers = [engine.generate({**greedy, "prompt": prompt}) for prompt in (text, [c + 3 for c in as_ids])]
    assert answers[0][2]["usage"]["prompt_tokens"] == len(as_ids) + 1
    assert [e["logprobs"] for e in answers[0][1]] == [e["logprobs"] for e in answers[1][1]] != []

    # The tokenizer's own mask takes the space before it; special tokens around a text are also put around a source.
    roberta = {"file": engine.add_file((TOKENIZERS / "roberta/tokenizer.json").read_bytes(), "tokenizer.json")}
    done = finished(engine, params(file, 2, tokenizer=roberta, **INFILL))
    model = done["fine_tuned_model"]
    assert config(engine, model)["mask_token_id"] == 702
    pieces = [engine.call("tokenize", {"model": model, "text": t, "add_special_tokens": False})["tokens"] for t in ("9 bottles", " beer")]
    usage = engine.generate({"model": model, "prompt": "9 bottles <mask> beer", "max_tokens": 1})[2]["usage"]
    assert usage["prompt_tokens"] == len(pieces[0]) + 1 + len(pieces[1]) + 2 + 1
    more = {"model": model, "training_file": file, "additive": {"objective": "text_infilling", "max_steps": 1, "batch_size": 8}}
    assert finished(engine, more)["additive"]["blank_accuracy"] is not None


def test_what_pairs_or_encoder_decoders_cannot_have_is_refused_by_name(engine, job):
    good, text = engine.add_file(PAIRS), engine.add_file(TEXT)
    bad = engine.add_file('{"source": "a", "target": "b"}\n{"source": "a"}\n')
    rows = {"stack": "decoder", "cross_attend": True}
    for ask, param, words in [
        (params(bad), "training_file", 'line 2: needs a string "target"'),
        (params(text), "training_file", "running text"),
        ({**params(good), "validation_file": bad}, "validation_file", "line 2"),
        (params(good, source_length=-1), "additive.source_length", ""),
        (params(good, loss_on="completion"), "additive.loss_on", "running text"),
        (params(good, reset_at_document=True), "additive.reset_at_document", "running text"),
        (params(good, mask_fraction=0.2), "additive.mask_fraction", "sequence_to_sequence has no mask_fraction"),
        (params(good, training_files=[{"file": good}, {"file": text}]), "additive.training_files", "running text"),
        (params(good, objective="next_token", source_length=None), "additive.objective", "attends to a source"),
        (params(good, config=rows, source_length=None), "additive.objective", "no job gives it"),
        (params(text, objective="span_corruption", loss_on="completion"), "additive.loss_on", "all of a text"),
        (params(text, **INFILL, loss_on="completion"), "additive.loss_on", "all of a text"),
        (params(text, **INFILL, mask_fraction=0.2), "additive.mask_fraction", "text_infilling has no mask_fraction"),
        (params(text, **INFILL, span_length=2), "additive.span_length", "text_infilling has no span_length"),
        (params(text, **{**INFILL, "source_length": 3}), "additive.sequence_length", "longer sequences or sources"),
        (params(text, **INFILL, carry_state=True), "additive.carry_state", "no state"),
        (params(text, **INFILL, config={**TINY["config"], "encoder": {"num_tokens": 259}}), "additive.config.mask_token_id", "259"),
        ({**params(text), "model": "gpt2", "additive": {"objective": "text_infilling"}}, "additive.objective", "reads no source"),
        (params(good, config={**TINY["config"], "decoder_start_token_id": 259}), "additive.config.decoder_start_token_id", "259"),
        ({**params(good), "model": "gpt2", "additive": {"objective": "sequence_to_sequence"}}, "additive.objective", "reads no source"),
    ]:
        with pytest.raises(EngineError) as e:
            engine.call("job.create", ask)
        assert e.value.status == 400 and e.value.param == param and words in e.value.message, (ask, e.value)


@pytest.mark.parametrize("data, more", ((PAIRS, {}), (TEXT, INFILL)), ids=("pairs", "infilling"))
def test_a_job_killed_on_the_way_ends_with_the_same_weights(own_daemon, engine, data, more):
    ask = {"steps": 40, "checkpoint_every": 5, "eval_every": 20, "gradient_accumulation": 2, **more}
    expected = weights(engine, finished(engine, params(engine.add_file(data), **ask))["fine_tuned_model"])
    daemon = own_daemon()
    with daemon.connect() as e:
        job = e.call("job.create", params(e.add_file(data), **ask))["id"]
        e.wait(lambda: e.call("job.checkpoints", {"id": job})["data"])
    daemon.kill()
    daemon.start()
    with daemon.connect() as e:
        done = e.wait_job(job)
        assert done["status"] == "succeeded", done
        assert weights(e, done["fine_tuned_model"]) == expected
        assert any("continues from the checkpoint" in x["message"] for x in e.job_events(job))
    assert daemon.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("change", (reverse, sort))
def test_an_encoder_decoder_learns_to_reverse_and_to_sort_strings_that_it_has_not_seen(engine, change):
    pairs = strings(6000, 3, 8, 1)
    large = {"size": {"hidden": 64, "heads": 4, "layers": 2, "dropout": 0}, "sequence_length": 9, "source_length": 8,
             "batch_size": 64, "learning_rate": 2e-3}
    done = engine.wait_job(engine.call("job.create", params(engine.add_file(lines(pairs, change)), 1000, **large))["id"], seconds=600)
    assert done["status"] == "succeeded", done
    assert done["additive"]["exact"] == 1 and done["additive"]["valid_loss"] < 1e-3
    for source in strings(6040, 3, 8, 1)[6000:]:
        for how in ({"temperature": 0}, {"num_beams": 4}):
            ask = {"model": done["fine_tuned_model"], "prompt": source, "max_tokens": 9, "logit_bias": {}, **how}
            text, _, result = engine.generate(ask)
            # A target of 8 tokens fills the decoder's positions.
            assert (text, result["choices"][0]["finish_reason"]) == (change(source), "stop" if len(source) < 8 else "length")
