"""additived: tokenizers that jobs train or take from files, and everything that had bytes for tokens, with pieces of words."""

import json
import pathlib
import time

import pytest

from engine_client import Daemon, EngineError, daemon, engine, job_params

DATA = pathlib.Path(__file__).parents[1] / "data" / "tokenizers"
TEXT = "".join(f"{n} bottles of béer on the wall, {n} bottles of béer.\nTake one down, pass it 😀 around!\n" for n in range(300, 0, -1))
SPEC = {"type": "sentencepiece", "model_type": "bpe", "vocab_size": 400, "normalization": "identity", "byte_fallback": True,
        "character_coverage": 0.99}


@pytest.fixture(scope="module")
def corpus(engine):
    return engine.add_file(TEXT)


def ask(corpus, tokenizer, steps=30, **more):
    return job_params(corpus, steps=steps, tokenizer=tokenizer, **more)


@pytest.fixture(scope="module")
def job(engine, corpus):
    job = engine.call("job.create", ask(corpus, SPEC, steps=60))
    assert engine.wait_job(job["id"])["status"] == "succeeded"
    return engine.call("job.get", {"id": job["id"]})


@pytest.fixture(scope="module")
def model(job):
    return job["fine_tuned_model"]


def refused(engine, method, params):
    with pytest.raises(EngineError) as e:
        engine.call(method, params)
    return e.value


def tokenize(engine, model, text, **more):
    return engine.call("tokenize", {"model": model, "text": text, **more})


# --- training ---------------------------------------------------------------------------------


def test_a_job_trains_the_tokenizer_it_describes_and_says_so(engine, job, model):
    events = engine.job_events(job["id"])
    assert "Tokenizer trained: sentencepiece, 400 tokens" in [e["message"] for e in events]
    about = engine.call("model.get", {"id": model})["additive"]
    assert about["tokenizer"] == {"type": "sentencepiece", "vocab_size": 400} and about["config"]["vocab_size"] >= 400
    assert job["additive"]["bits_per_byte"] < 4


def test_byte_level_bpe_is_trained_too(engine, corpus):
    job = engine.call("job.create", ask(corpus, {"type": "bpe", "vocab_size": 300}, steps=1))
    model = engine.wait_job(job["id"])["fine_tuned_model"]
    ids = tokenize(engine, model, TEXT[:300])["tokens"]
    assert len(ids) < 200 and engine.call("detokenize", {"model": model, "tokens": ids})["text"] == TEXT[:300]


def test_text_survives_the_trained_tokenizer(engine, model):
    for text in ["12 bottles of béer\n", "  two  spaces \n\n", "漢字 and 😀 and \x01", "a", "</s>"]:
        ids = tokenize(engine, model, text)["tokens"]
        assert engine.call("detokenize", {"model": model, "tokens": ids})["text"] == text
    assert tokenize(engine, model, "")["tokens"] == []


def test_pieces_have_their_places_in_the_text(engine, model):
    text = "béer on 😀 wall"
    answer = tokenize(engine, model, text)
    raw, pieces = text.encode(), answer["pieces"]
    assert answer["count"] == len(pieces) < len(raw)
    assert [p["id"] for p in pieces] == answer["tokens"]
    assert "".join(p["text"] for p in pieces) == text
    assert pieces[0]["start"] == 0 and pieces[-1]["end"] == len(raw)
    assert all(p["start"] <= p["end"] for p in pieces)
    assert "".join(raw[p["start"]:p["end"]].decode() for p in pieces) == text
    assert pieces[0]["piece"].startswith("▁")


def test_names_of_special_tokens_are_text_unless_the_request_says_otherwise(engine, model):
    plain, special = (tokenize(engine, model, "one</s>", allow_special=a) for a in (False, True))
    assert 1 not in plain["tokens"] and special["tokens"][-1] == 1
    assert special["pieces"][-1] == {"id": 1, "text": "", "offset": 3, "piece": "</s>", "start": 3, "end": 7}
    assert engine.call("detokenize", {"model": model, "tokens": plain["tokens"]})["text"] == "one</s>"


def test_bytes_have_pieces_and_places_too(engine, corpus):
    job = engine.call("job.create", ask(corpus, {"type": "bytes"}, steps=1))
    model = engine.wait_job(job["id"])["fine_tuned_model"]
    pieces = tokenize(engine, model, "é")["pieces"]
    assert [(p["start"], p["end"], p["text"]) for p in pieces] == [(0, 1, ""), (1, 2, "é")]


def stored(folder, name="tokenizer.model"):
    return [f.read_bytes() for f in sorted(pathlib.Path(folder).rglob(name))]


def test_the_same_texts_train_the_same_tokenizer_bit_for_bit(engine, corpus, job, tmp_path):
    with Daemon(tmp_path / "other") as d, d.connect() as other:
        again = other.call("job.create", ask(other.add_file(TEXT), SPEC, steps=1))
        model = other.wait_job(again["id"])["fine_tuned_model"]
        for text in [TEXT[:2000], "something else 漢"]:
            assert tokenize(other, model, text)["tokens"] == tokenize(engine, job["fine_tuned_model"], text)["tokens"]
        assert len(set(stored(tmp_path / "other"))) == 1


def test_a_job_that_goes_on_after_a_kill_has_the_same_tokenizer(tmp_path, engine, model):
    with Daemon(tmp_path / "data") as d:
        with d.connect() as e:
            job = e.call("job.create", ask(e.add_file(TEXT), SPEC, steps=100000, checkpoint_every=5, keep_checkpoints=10000))  # it removes none
            e.wait(lambda: e.call("job.get", {"id": job["id"]})["additive"]["step"] > 10)
        d.kill()
        for kept in pathlib.Path(tmp_path / "data").rglob("*.tokenizer"):
            kept.unlink()  # as if the cache had been cleared
        d.start()
        with d.connect() as e:
            step = e.call("job.get", {"id": job["id"]})["additive"]["step"]
            e.wait(lambda: e.call("job.get", {"id": job["id"]})["additive"]["step"] > step)
            ids = [tokenize(e, c["fine_tuned_model_checkpoint"], TEXT[:500])["tokens"]
                   for c in e.call("job.checkpoints", {"id": job["id"]})["data"]]
            e.call("job.cancel", {"id": job["id"]})
    assert len(ids) > 1 and all(i == tokenize(engine, model, TEXT[:500])["tokens"] for i in ids)


def test_a_damaged_kept_tokenizer_is_trained_again(tmp_path):
    with Daemon(tmp_path / "data") as d, d.connect() as e:
        file = e.add_file(TEXT)
        first = e.wait_job(e.call("job.create", ask(file, SPEC, steps=1))["id"])["fine_tuned_model"]
        (kept,) = pathlib.Path(tmp_path / "data").rglob("*.tokenizer")
        whole = kept.read_bytes()
        kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        second = e.wait_job(e.call("job.create", ask(file, SPEC, steps=1))["id"])["fine_tuned_model"]
        assert tokenize(e, first, TEXT[:500])["tokens"] == tokenize(e, second, TEXT[:500])["tokens"]
        assert kept.read_bytes() == whole


@pytest.mark.parametrize("spec, param, word", [
    ({"type": "sentencepiece", "vocab_size": 100000}, "additive.tokenizer.vocab_size", "must be at most"),
    ({"type": "sentencepiece", "vocab_size": 6}, "additive.tokenizer.vocab_size", "must be at least"),
    ({"type": "sentencepiece", "vocab_size": 2}, "additive.tokenizer.vocab_size", "4"),
    ({"type": "sentencepiece", "vocab_size": 100, "byte_fallback": True}, "additive.tokenizer.vocab_size", "260"),
    ({"type": "sentencepiece", "model_type": "wordpiece"}, "additive.tokenizer.model_type", ""),
    ({"type": "sentencepiece", "character_coverage": 0.5}, "additive.tokenizer.character_coverage", ""),
    ({"type": "bytes", "vocab_size": 300}, "additive.tokenizer.vocab_size", ""),
    ({}, "additive.tokenizer.type", "must be given as a string"),
    ({"type": "bpe", "vocab_size": 100}, "additive.tokenizer.vocab_size", "must be an integer from 257"),
    ({"file": "file-none"}, "additive.tokenizer.file", "file-none"),
])
def test_what_cannot_be_is_refused_with_its_field(engine, corpus, spec, param, word):
    e = refused(engine, "job.create", ask(corpus, spec))
    assert e.status in (400, 404) and e.param == param and word in e.message


def test_a_configuration_with_too_small_a_vocabulary_is_refused(engine, corpus):
    params = ask(corpus, SPEC)
    params["additive"]["config"] = {**params["additive"]["config"], "vocab_size": 399}
    e = refused(engine, "job.create", params)
    assert (e.status, e.param) == (400, "additive.config.vocab_size") and "400" in e.message


def children(pid):
    return [c for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]


def test_a_tokenizer_is_trained_on_what_json_lines_hold_and_not_on_their_keys(engine):
    lines = "".join(json.dumps(line) + "\n" for n in range(400) for line in (
        {"prompt": f"{n} bottles of", "completion": f" beer, {n % 7} of them"},
        {"messages": [{"role": "user", "content": f"how many? {n}"}, {"role": "assistant", "content": f"take {n % 9} down"}]},
        {"text": f"pass {n} around"}))
    job = engine.call("job.create", ask(engine.add_file(lines, "corpus.jsonl"), {"type": "sentencepiece", "model_type": "word", "vocab_size": 60}, steps=1))
    model = engine.wait_job(job["id"])["fine_tuned_model"]
    pieces = [p["piece"] for p in tokenize(engine, model, "bottles down around prompt bottles role user")["pieces"]]
    assert pieces == ["▁bottles", "▁down", "▁around", "<unk>", "▁bottles", "<unk>"]


def test_a_client_that_leaves_ends_the_training_of_its_tokenizer(daemon, engine):
    words = "".join(f"{i * 7919 % 99991} {i * 104729 % 99989} " + ("\n" if i % 9 == 0 else "") for i in range(700000))
    call = engine.begin("job.create", ask(engine.add_file(words), {"type": "sentencepiece", "vocab_size": 8000}))
    engine.wait(lambda: children(daemon.process.pid))
    begun = time.monotonic()
    call.cancel()
    with pytest.raises(EngineError) as e:
        call.result()
    assert e.value.status == 499 or e.value.code == "cancelled"
    assert time.monotonic() - begun < 5
    assert children(daemon.process.pid) == []


# --- files ---------------------------------------------------------------------------------------


def add(engine, data, name="tokenizer.bin"):
    return engine.upload("file.create", {"filename": name, "purpose": "fine-tune"}, file=data)["id"]


def test_an_uploaded_tokenizer_is_recognised_by_its_content(engine, corpus):
    for data, kind in [((DATA / "unigram" / "tokenizer.model").read_bytes(), "sentencepiece"), (b'{"type": "bytes"}', "bytes")]:
        file = add(engine, data)
        job = engine.call("job.create", ask(corpus, {"file": file}, steps=1))
        model = engine.wait_job(job["id"])["fine_tuned_model"]
        about = engine.call("model.get", {"id": model})["additive"]["tokenizer"]
        assert about["type"] == kind
        messages = [e["message"] for e in engine.job_events(job["id"])]
        assert f"Tokenizer of {file}: {kind}, {about['vocab_size']} tokens" in messages


@pytest.mark.parametrize("data, word", [(b"nonsense", "expected a tokenizer.json"), (b"", "expected"), (b'{"type": "telepathy"}', "telepathy"),
                                        (b"\n\x05\n\x03abc", "unknown piece")])
def test_another_file_is_refused_by_what_was_expected(engine, corpus, data, word):
    e = refused(engine, "job.create", ask(corpus, {"file": add(engine, data)}))
    assert e.status == 400 and e.param == "additive.tokenizer.file" and word in e.message


def test_a_tokenizers_file_stays_while_a_job_needs_it(engine, corpus):
    file = add(engine, (DATA / "unigram" / "tokenizer.model").read_bytes())
    job = engine.call("job.create", ask(corpus, {"file": file}, steps=100000))
    assert refused(engine, "file.delete", {"id": file}).status == 409
    engine.call("job.cancel", {"id": job["id"]})
    engine.wait_job(job["id"])
    assert engine.call("file.delete", {"id": file})["deleted"]


def test_a_target_that_is_a_token_only_with_another_beginning_is_suggested(engine, corpus):
    job = engine.call("job.create", ask(corpus, {"file": add(engine, (DATA / "gpt2" / "tokenizer.json").read_bytes())}, steps=1))
    model = engine.wait_job(job["id"])["fine_tuned_model"]
    words = ["the", " error", " no such word"]
    counts = [tokenize(engine, model, word)["count"] for word in (*words, " the", "error")]
    assert min(counts[:3]) > 1 and counts[3:] == [1, 1]
    for field, request in (("target.token", lambda word: {"target": {"token": word}}),
                           ("target.other", lambda word: {"target": {"kind": "difference", "token": 1, "other": word}}),
                           ("replacement", lambda word: {"method": "leave_one_out", "replacement": word})):
        errors = [refused(engine, "explain", {"model": model, "input": "a model", **request(word)}) for word in words]
        assert [e.param for e in errors] == [field] * 3
        assert [e.message for e in errors] == [f'"the" is {counts[0]} tokens, must be one: use " the", which is one token',
                                               f'" error" is {counts[1]} tokens, must be one: use "error", which is one token',
                                               f"'{field}' is {counts[2]} tokens, must be one"]


# --- what had bytes for tokens ----------------------------------------------------------------------


def generate(engine, model, **more):
    text, events, result = engine.generate({"model": model, "max_tokens": 40, "temperature": 0, **more})
    return text, events, result


def test_streamed_pieces_are_the_text_of_the_tokens(engine, model):
    prompt = "12 bottles of"
    ids = tokenize(engine, model, prompt)["tokens"]
    text, events, _ = generate(engine, model, prompt=prompt, seed=1, temperature=1.5)
    made = [i for e in events for i in e.get("tokens", [e["token"]] if "token" in e else [])]
    if made:
        whole = engine.call("detokenize", {"model": model, "tokens": ids + made})["text"]
        assert whole.startswith(prompt) and whole[len(prompt):] == text
    assert text.encode().decode() == text


def test_a_text_begins_without_the_space_that_later_words_have(engine, model):
    first = tokenize(engine, model, "bottles")["tokens"][0]
    for prompt, space in (([1], ""), ([1, first], " "), ("12", " ")):
        text, _, _ = generate(engine, model, prompt=prompt, logit_bias={str(first): 100}, max_tokens=1)
        assert text == space + tokenize(engine, model, "bottles")["pieces"][0]["text"]


def test_a_stop_sequence_inside_a_piece_ends_the_text_before_it(engine, model):
    text, _, _ = generate(engine, model, prompt="12 bottles of")
    assert len(text) > 12
    stop = text[5:8]
    cut, _, _ = generate(engine, model, prompt="12 bottles of", stop=[stop])
    assert cut == text[:text.index(stop)]


def test_logprobs_name_whole_pieces_and_special_tokens(engine, model):
    _, events, _ = generate(engine, model, prompt="12 bottles of", logprobs=5, max_tokens=8)
    named = [e["logprobs"] for e in events]
    offsets = [o for n in named for o in n["text_offset"]]
    assert offsets == [sum(len(e["text"]) for e in events[:i]) for i in range(len(events))]
    text, events, _ = generate(engine, model, prompt="12 bottles", logprobs=5, max_tokens=3, logit_bias={"0": 100, "2": 99})
    assert "<pad>" in json.dumps([e.get("logprobs") for e in events])


def test_explanations_name_pieces_that_join_to_the_text(engine, model):
    text = "12 bottles of béer on"
    answer = engine.call("explain", {"model": model, "input": text})
    assert "".join(t["text"] for t in answer["tokens"]) == text
    assert len(answer["tokens"]) == tokenize(engine, model, text)["count"]


def test_json_mode_or_a_session_sees_whole_characters(engine, model):
    session = engine.call("session.create", {"model": model, "prompt": "12 bottles"})["id"]
    parts = [engine.generate({"id": session, "max_tokens": 3, "temperature": 0}, "session.generate")[0] for _ in range(3)]
    assert "".join(parts) == generate(engine, model, prompt="12 bottles", max_tokens=9)[0]
    engine.call("session.delete", {"id": session})


# --- tokens that begin a text -------------------------------------------------------------------------


TEMPLATE = {"begin": "<s>", "user": {"prefix": "\nuser: ", "suffix": "</s>"}, "assistant": {"prefix": "\nassistant: ", "suffix": "</s>"},
            "generation": "\nassistant: "}


@pytest.fixture(scope="module", params=["llama3", "roberta"])
def begins(request, engine, corpus):
    """A model whose tokenizer begins a text with <s>; RoBERTa's also ends one."""
    params = ask(corpus, {"file": add(engine, (DATA / request.param / "tokenizer.json").read_bytes())}, steps=1)
    params["additive"]["config"] = {**params["additive"]["config"], "chat_template": TEMPLATE}
    return engine.wait_job(engine.call("job.create", params)["id"])["fine_tuned_model"]


def prompt_tokens(engine, model, prompt, **more):
    return engine.generate({"model": model, "prompt": prompt, "max_tokens": 1, **more})[2]["usage"]["prompt_tokens"]


def test_a_prompt_begins_as_the_tokenizer_begins_texts_and_never_ends(engine, begins):
    text = "the state of a session"
    plain = tokenize(engine, begins, text)["tokens"]
    whole = tokenize(engine, begins, text, add_special_tokens=True)["tokens"]
    assert whole[0] not in plain and whole[1:len(plain) + 1] == plain
    begun = whole[:len(plain) + 1]
    assert prompt_tokens(engine, begins, text) == len(begun)
    assert prompt_tokens(engine, begins, [text, text]) == 2 * len(begun)
    assert prompt_tokens(engine, begins, text, add_special_tokens=False) == prompt_tokens(engine, begins, plain) == len(plain)
    many = 16 * [50 * " state"]  # so much is read on the pool
    assert prompt_tokens(engine, begins, many) == 16 * (1 + tokenize(engine, begins, many[0])["count"])
    scores = [engine.generate({"model": begins, "prompt": p, "max_tokens": 0, "echo": True, "logprobs": 0, **more})[1]
              for p, more in ((text, {}), (begun, {}), (text, {"add_special_tokens": False}))]
    numbers = [[x for e in events for x in e["logprobs"]["token_logprobs"]] for events in scores]
    assert numbers[0] == numbers[1] and len(numbers[2]) == len(plain)


def test_a_session_begins_once(engine, begins):
    text = " state of"
    plain = tokenize(engine, begins, text)["count"]
    prompted = engine.call("session.create", {"model": begins, "prompt": text})
    empty = engine.call("session.create", {"model": begins})
    bare = engine.call("session.create", {"model": begins, "prompt": text, "add_special_tokens": False})
    assert (prompted["tokens"], empty["tokens"], bare["tokens"]) == (plain + 1, 0, plain)
    for session, first in ((prompted, plain), (empty, plain + 1)):
        counts = [session["tokens"]] + [engine.call("session.append", {"id": session["id"], "text": text})["tokens"] for _ in range(2)]
        assert [b - a for a, b in zip(counts, counts[1:])] == [first, plain]
    asked = engine.generate({"id": prompted["id"], "prompt": text, "max_tokens": 1}, "session.generate")[2]
    assert asked["usage"]["prompt_tokens"] == plain
    for session in (prompted, empty, bare):
        engine.call("session.delete", {"id": session["id"]})


def test_what_is_explained_embedded_or_evaluated_begins_like_a_prompt(engine, begins):
    text = "the state of a session"
    plain = tokenize(engine, begins, text)["tokens"]
    begin = tokenize(engine, begins, text, add_special_tokens=True)["tokens"][0]
    evaluate = {"model": begins, "input": text, "methods": ["contributions"], "rows": True, "bootstrap": 10}
    for more, ids in (({}, [begin] + plain), ({"add_special_tokens": False}, plain)):
        assert [t["id"] for t in engine.call("explain", {"model": begins, "input": text, **more})["tokens"]] == ids
        assert engine.call("embed", {"model": begins, "input": [text], **more})["usage"]["prompt_tokens"] == len(ids)
        evaluation = engine.call("faithfulness.create", {**evaluate, **more})
        assert evaluation["rows"][0]["position"] == len(ids) - 1
        assert evaluation["settings"]["add_special_tokens"] == (len(ids) > len(plain))


def test_a_conversation_begins_as_its_template_says(engine, begins):
    text = "<s>\nuser: the state</s>\nassistant: "
    rendered = tokenize(engine, begins, text, allow_special=True)
    assert [p["piece"] for p in rendered["pieces"]].count("<s>") == 1
    answer = engine.generate({"model": begins, "messages": [{"role": "user", "content": "the state"}], "max_completion_tokens": 1}, "chat.create")[2]
    assert answer["usage"]["prompt_tokens"] == rendered["count"]


def test_a_tokenizer_without_such_tokens_adds_nothing(engine, model):
    assert prompt_tokens(engine, model, "12 bottles") == tokenize(engine, model, "12 bottles")["count"]
