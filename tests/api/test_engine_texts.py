"""additived: classes and vectors of whole texts."""

import base64
import pathlib
import struct
import sys
import threading

import numpy
import pytest

from engine_client import Daemon, EngineError, train

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))
import folders

END, BYTE = 1, 3
CLASSES = ["yes", "no", "perhaps"]


def ids(*texts):
    return [i for t in texts for i in [*(b + BYTE for b in t.encode()), END]]


def upload(engine, folder, name):
    return engine.upload("model.import", {"id": name}, config=(folder / "config.json").read_bytes(),
                         weights=(folder / "model.safetensors").read_bytes())["id"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("texts") / "data") as d, d.connect() as e:
        yield e


@pytest.fixture(scope="module")
def weights():
    return folders.encoder_weights()


@pytest.fixture(scope="module")
def encoder(engine, weights, tmp_path_factory):
    folder = folders.write(tmp_path_factory.mktemp("made") / "encoder", folders.encoder_config(), weights)
    return upload(engine, folder, "encoder")


@pytest.fixture(scope="module")
def additive(engine):
    return train(engine, steps=2)


def refused(engine, method, params):
    with pytest.raises(EngineError) as e:
        engine.call(method, params)
    return e.value


def same_classes(item, probabilities):
    found = {entry["label"]: entry["probability"] for entry in item["labels"]}
    assert found.keys() == set(CLASSES) and abs(sum(found.values()) - 1) < 1e-8
    assert max(abs(found[c] - p) for c, p in zip(CLASSES, probabilities)) < 1e-5
    ordered = [entry["probability"] for entry in item["labels"]]
    assert ordered == sorted(ordered, reverse=True)
    assert item["labels"][0] == {"label": item["label"], "probability": item["probability"]}


def test_the_classes_of_a_text_are_what_the_formula_says(engine, encoder, weights):
    answer = engine.call("classify", {"model": encoder, "input": "Once upon a time"})
    assert answer["object"] == "list" and answer["model"] == encoder and len(answer["data"]) == 1
    assert answer["data"][0]["index"] == 0 and answer["data"][0]["truncated"] is False
    assert answer["usage"] == {"prompt_tokens": 17, "total_tokens": 17}
    same_classes(answer["data"][0], folders.encoder_probabilities(weights, ids("Once upon a time")))


def test_the_texts_of_a_pair_are_read_one_after_the_other_and_several_in_their_order(engine, encoder, weights):
    pair = {"text": "Is it so?", "text_pair": "It is."}
    answer = engine.call("classify", {"model": encoder, "input": ["a", pair, {"text": "b"}, "é ü"], "user": "me"})
    assert [d["index"] for d in answer["data"]] == [0, 1, 2, 3]
    for item, read in zip(answer["data"], (ids("a"), ids("Is it so?", "It is."), ids("b"), ids("é ü"))):
        same_classes(item, folders.encoder_probabilities(weights, read))
    one = engine.call("classify", {"model": encoder, "input": pair})
    assert one["data"][0]["labels"] == answer["data"][1]["labels"]


def test_what_is_too_long_is_cut_like_training_data_and_says_so(engine, encoder, weights):
    exact, long = "x" * 63, "y" * 64
    pair = {"text": "z" * 100, "text_pair": "w" * 10}
    data = engine.call("classify", {"model": encoder, "input": [exact, long, pair]})["data"]
    assert [d["truncated"] for d in data] == [False, True, True]
    same_classes(data[0], folders.encoder_probabilities(weights, ids(exact)))
    same_classes(data[1], folders.encoder_probabilities(weights, ids("y" * 63)))
    same_classes(data[2], folders.encoder_probabilities(weights, ids("z" * 52, "w" * 10)))


def test_an_explained_class_comes_with_the_weights_of_all_tokens_that_were_read(engine, encoder, weights):
    pair = {"text": "Is it so?", "text_pair": "It is."}
    inputs, read = ["Once upon", pair, "y" * 64], [ids("Once upon"), ids("Is it so?", "It is."), ids("y" * 63)]
    plain = engine.call("classify", {"model": encoder, "input": inputs, "explain": False})
    answer = engine.call("classify", {"model": encoder, "input": inputs, "explain": True})
    for item, tokens in zip(answer["data"], read, strict=True):
        why = item.pop("explanation")
        assert [t["id"] for t in why["tokens"]] == tokens and why["position"] == "all" and why["aggregate"]["method"] == "mean"
        exact = folders.encoder_reading(weights, tokens).mean(0)
        assert len(why["aggregate"]["alpha"]) == len(tokens) and numpy.abs(why["aggregate"]["alpha"] - exact).max() < 1e-5
    assert answer == plain


def test_the_explanation_of_a_model_that_classifies_at_the_end_is_of_the_end(engine, weights, tmp_path):
    model = upload(engine, folders.write(tmp_path / "end", folders.encoder_config(pooling="end"), weights), "end")
    why = engine.call("classify", {"model": model, "input": "Once upon", "explain": True})["data"][0]["explanation"]
    assert why["position"] == 9 and why["tokens"][9]["text"] == ""
    assert numpy.abs(why["aggregate"]["alpha"] - folders.encoder_reading(weights, ids("Once upon"))[9]).max() < 1e-5
    alone = engine.call("explain", {"model": model, "input": ids("Once upon"), "aggregate": "mean"})
    assert {k: alone[k] for k in why} == why


def test_more_tokens_than_one_answer_explains_are_refused_by_name(engine, encoder):
    e = refused(engine, "classify", {"model": encoder, "input": ["x" * 63] * 2048, "explain": True})
    assert e.status == 413 and e.param == "input" and "131072 tokens" in e.message


def test_the_length_it_was_trained_on_is_where_texts_are_cut(engine, weights, tmp_path):
    folder = folders.write(tmp_path / "short", folders.encoder_config(trained_length=8), weights)
    model = upload(engine, folder, "short")
    item = engine.call("classify", {"model": model, "input": "0123456789"})["data"][0]
    assert item["truncated"]
    same_classes(item, folders.encoder_probabilities(weights, ids("0123456")))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_weights_of_every_type_classify(engine, encoder, weights, dtype):
    engine.call("model.load", {"id": encoder, "dtype": dtype})
    item = engine.call("classify", {"model": encoder, "input": "Once upon a time"})["data"][0]
    found = {entry["label"]: entry["probability"] for entry in item["labels"]}
    exact = folders.encoder_probabilities(weights, ids("Once upon a time"))
    assert max(abs(found[c] - p) for c, p in zip(CLASSES, exact)) < {"fp32": 1e-5, "bf16": 0.05, "int8": 0.1}[dtype]
    engine.call("model.load", {"id": encoder, "dtype": "fp32"})


def test_the_names_of_the_classes_stay_with_the_model(engine, encoder):
    config = engine.call("model.get", {"id": encoder})["additive"]["config"]
    assert config["id2label"] == {str(i): c for i, c in enumerate(CLASSES)} and config["num_labels"] == 3
    assert config["label2id"] == {c: i for i, c in enumerate(CLASSES)}


def test_classes_without_names_are_numbered(engine, weights, tmp_path):
    config = folders.encoder_config(num_labels=3)
    del config["id2label"], config["label2id"]
    model = upload(engine, folders.write(tmp_path / "plain", config, weights), "plain")
    found = engine.call("classify", {"model": model, "input": "a"})["data"][0]["labels"]
    assert {entry["label"] for entry in found} == {"LABEL_0", "LABEL_1", "LABEL_2"}


def test_names_that_do_not_fit_the_classes_are_refused(engine, weights, tmp_path):
    folder = folders.write(tmp_path / "wrong", folders.encoder_config(num_labels=2), weights)
    with pytest.raises(EngineError) as e:
        upload(engine, folder, "wrong")
    assert e.value.param == "id2label"


@pytest.mark.parametrize("method,extra", [
    ("completion.create", {"prompt": "a"}), ("session.create", {}), ("session.create", {"prompt": "a"}),
])
def test_a_model_that_does_not_generate_refuses_to(engine, encoder, method, extra):
    e = refused(engine, method, {"model": encoder, **extra})
    assert e.status == 400 and e.param == "model" and "linear_encoder does not generate" in e.message


def test_the_state_of_a_session_is_no_use_to_it(engine, encoder):
    with pytest.raises(EngineError) as e:
        engine.upload("session.import", {"model": encoder}, state=b"x")
    assert e.value.status == 400 and e.value.param == "model"


@pytest.mark.parametrize("params,param", [
    ({"input": "a"}, "model"), ({"model": "encoder"}, "input"), ({"model": "encoder", "input": ""}, "input"),
    ({"model": "encoder", "input": []}, "input"), ({"model": "encoder", "input": ["a", ""]}, "input[1]"),
    ({"model": "encoder", "input": 7}, "input"), ({"model": "encoder", "input": {"text": "a", "label": "x"}}, "input.label"),
    ({"model": "encoder", "input": {"text_pair": "a"}}, "input.text"), ({"model": "encoder", "input": ["a"] * 2049}, "input"),
    ({"model": "nowhere", "input": "a"}, "model"), ({"model": "encoder", "input": "a", "prompt": "a"}, "prompt"),
    ({"model": "encoder", "input": "a", "explain": 1}, "explain"),
])
def test_what_is_wrong_with_a_classification_is_named(engine, encoder, params, param):
    e = refused(engine, "classify", params)
    assert e.param == param and e.status == (404 if params.get("model") == "nowhere" else 400)


def test_a_language_model_has_no_classes(engine, additive):
    e = refused(engine, "classify", {"model": additive, "input": "a"})
    assert e.status == 400 and e.param == "model" and "no head for classes" in e.message


def embed(engine, model, text, **more):
    return engine.call("embed", {"model": model, "input": text, **more})


def test_a_vector_is_the_mean_of_the_hidden_vectors_or_the_last_of_them(engine, encoder, weights):
    hidden = folders.encoder_hidden(weights, ids("Once upon"))
    mean, last = embed(engine, encoder, "Once upon"), embed(engine, encoder, "Once upon", pooling="last")
    assert mean["pooling"] == "mean" and last["pooling"] == "last" and mean["model"] == encoder
    assert mean["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    assert numpy.abs(mean["data"][0]["embedding"] - hidden.mean(0)).max() < 1e-5
    assert numpy.abs(last["data"][0]["embedding"] - hidden[-1]).max() < 1e-5


@pytest.mark.parametrize("architecture", ["additive", "gpt2"])
def test_texts_and_their_tokens_have_the_same_vectors_alone_and_among_others(engine, additive, architecture):
    model = additive if architecture == "additive" else train(engine, steps=2, architecture="gpt2")
    texts = ["a", "99 bottles of beer", "é", "x" * 100]
    tokens = [[b + BYTE for b in t.encode()] for t in texts]
    together = embed(engine, model, texts)
    assert [(d["object"], d["index"]) for d in together["data"]] == [("embedding", i) for i in range(4)]
    assert together["usage"]["prompt_tokens"] == sum(map(len, tokens))
    vectors = [d["embedding"] for d in together["data"]]
    assert all(len(v) == 16 for v in vectors) and len({tuple(v) for v in vectors}) == 4
    assert [d["embedding"] for d in embed(engine, model, tokens)["data"]] == vectors
    assert [embed(engine, model, t)["data"][0]["embedding"] for t in tokens] == vectors
    assert embed(engine, model, "a", pooling="last")["data"][0]["embedding"] == vectors[0]  # one token is its own mean
    assert embed(engine, model, texts[3], pooling="last")["data"][0]["embedding"] != vectors[3]


def test_base64_holds_the_same_floats(engine, additive):
    texts = ["a", "99 bottles of beer"]
    plain = embed(engine, additive, texts, encoding_format="float", dimensions=16)["data"]
    coded = embed(engine, additive, texts, encoding_format="base64", user="me")["data"]
    for p, c in zip(plain, coded):
        floats = struct.unpack("<16f", base64.b64decode(c["embedding"], validate=True))
        assert floats == struct.unpack("<16f", struct.pack("<16f", *p["embedding"]))


@pytest.mark.parametrize("params,param", [
    ({"input": "a"}, "model"), ({}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": [[]]}, "input[0]"),
    ({"input": [3, -1]}, "input[1]"), ({"input": [3, 259]}, "input"), ({"input": [[3], [259]]}, "input[1]"), ({"input": ["a", "x" * 513]}, "input[1]"),
    ({"input": ["a"] * 2049}, "input"), ({"input": "a", "dimensions": 8}, "dimensions"), ({"input": "a", "pooling": "max"}, "pooling"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format"), ({"input": "x" * 513}, "input"), ({"input": [3] * 513}, "input"),
    ({"input": "a", "temperature": 1}, "temperature"),
])
def test_what_is_wrong_with_an_embedding_is_named(engine, additive, params, param):
    e = refused(engine, "embed", params if param == "model" else {"model": additive, **params})
    assert e.param == param and e.status == 400


def test_a_text_too_long_for_the_encoder_is_refused_not_cut(engine, encoder):
    assert len(embed(engine, encoder, "x" * 63)["data"]) == 1
    assert refused(engine, "embed", {"model": encoder, "input": "x" * 64}).param == "input"


def test_tokens_are_generated_while_texts_are_read(engine, additive):
    ask = {"model": additive, "prompt": "9", "max_tokens": 40, "temperature": 0, "logit_bias": {"1": -100}}
    alone, text = engine.generate(ask)[0], ["x" * 500] * 100
    results = []
    reader = threading.Thread(target=lambda: results.append(embed(engine, additive, text)))
    reader.start()
    assert engine.generate(ask)[0] == alone
    reader.join()
    assert len({tuple(d["embedding"]) for d in results[0]["data"]}) == 1


def test_a_cancelled_request_ends(engine, additive):
    call = engine.begin("embed", {"model": additive, "input": ["x" * 500] * 2048})
    call.cancel()
    with pytest.raises(EngineError) as e:
        call.result()
    assert e.value.code == "cancelled"
    engine.call("model.unload", {"id": additive})
