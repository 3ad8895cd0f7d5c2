"""additived: explanations of models with linear attention, causal and over whole sequences."""

import json
import random
import struct

import pytest

from engine_client import TEXT, Daemon, EngineError

LINEAR = {"config": {"hidden_size": 16, "n_heads": 2, "n_layer": 2, "n_positions": 8192, "hidden_dropout_prob": 0},
          "sequence_length": 64, "batch_size": 4, "learning_rate": 3e-3, "max_steps": 20}
D, INNER, LAYERS, CLASSES, POSITIONS = 16, 24, 2, 3, 40
ENCODER = {"model_type": "linear_encoder", "d_model": D, "vocab_size": 259, "encoder_attention_heads": 2, "encoder_layers": LAYERS,
           "max_position_embeddings": POSITIONS, "encoder_ffn_dim": INNER, "num_labels": CLASSES}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("explainers") / "data") as d, d.connect() as e:
        yield e


@pytest.fixture(scope="module")
def linear(engine):
    job = engine.call("job.create", {"model": "linear", "training_file": engine.add_file(TEXT), "seed": 7, "additive": LINEAR})
    done = engine.wait_job(job["id"])
    assert done["status"] == "succeeded", done
    return done["fine_tuned_model"]


def encoder_tensors():
    yield "model.shared.weight", (259, D)
    yield "model.encoder.embed_positions.weight", (POSITIONS + 2, D)
    norms, products = ["model.encoder.layernorm_embedding"], [("classification_head.dense", D, D), ("classification_head.out_proj", CLASSES, D)]
    for layer in range(LAYERS):
        at = f"model.encoder.layers.{layer}."
        norms += [at + "self_attn_layer_norm", at + "final_layer_norm"]
        products += [(f"{at}self_attn.{name}_proj", D, D) for name in ("q", "k", "v", "out")]
        products += [(at + "fc1", INNER, D), (at + "fc2", D, INNER)]
    for name in norms:
        yield name + ".weight", (D,)
        yield name + ".bias", (D,)
    for name, n, k in products:
        yield name + ".weight", (n, k)
        yield name + ".bias", (n,)


def import_encoder(engine, linear, model, **options):
    header, data, draw = {}, b"", random.Random(1)
    for name, shape in encoder_tensors():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        begin = len(data)
        data += struct.pack(f"<{count}f", *(draw.uniform(-0.5, 0.5) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    tokenizer = engine.download("model.file", {"id": linear, "name": "tokenizer.json"})[1]
    return engine.upload("model.import", {"id": model}, config=json.dumps({**ENCODER, **options}).encode(),
                         weights=struct.pack("<Q", len(text)) + text + data, tokenizer=tokenizer)["id"]


@pytest.fixture(scope="module")
def encoder(engine, linear):
    return import_encoder(engine, linear, "encoder")


def distance(a, b):
    return max(abs(p - q) for p, q in zip(a, b, strict=True))


def refused(engine, method, params):
    with pytest.raises(EngineError) as e:
        engine.call(method, params)
    return e.value


def test_a_text_and_a_session_that_reads_it_have_the_same_explanation(engine, linear):
    text = "57 bottles of beer on the wall, " * 12  # more than a chunk
    pick = {"position": 300, "aggregate": "rollout"}
    a = engine.call("explain", {"model": linear, "input": text, **pick})
    assert len(a["tokens"]) == len(text) and len(a["aggregate"]["alpha"]) == 301
    assert [(r["layer"], r["round"], r["head"], r["window"]) for r in a["weights"]] == \
        [(layer, "attention", head, [0, 300]) for layer in range(2) for head in range(2)]
    s = engine.call("session.create", {"model": linear, "prompt": text[:70], "explain": True})["id"]
    engine.call("session.append", {"id": s, "text": text[70:]})
    b = engine.call("session.alpha", {"id": s, **pick})
    for x, y in zip(a["weights"] + [a["aggregate"]], b["weights"] + [b["aggregate"]], strict=True):
        assert abs(sum(x["alpha"]) - 1) < 1e-5 and distance(x["alpha"], y["alpha"]) < 1e-5
    engine.call("session.delete", {"id": s})


def test_a_long_text_is_explained_like_a_short_one(engine, linear):
    text = "57 bottles of beer on the wall, " * 200  # more than is tokenized at once
    pick = {"position": 40, "aggregate": "mean", "layers": [1], "heads": [0]}
    short, long = (engine.call("explain", {"model": linear, "input": t, **pick}) for t in (text[:64], text))
    assert len(long["tokens"]) == len(text) and long["position"] == 40
    assert distance(long["aggregate"]["alpha"], short["aggregate"]["alpha"]) < 1e-5
    last = engine.call("explain", {"model": linear, "input": text, "layers": [0], "heads": [0]})
    assert last["position"] == len(text) - 1 == last["weights"][0]["window"][1]


def test_a_token_of_an_encoder_reads_the_whole_text(engine, encoder):
    text = "100 bottles of beer"
    for position in (0, 7, -1):
        a = engine.call("explain", {"model": encoder, "input": text, "position": position, "aggregate": "rollout"})
        assert len(a["weights"]) == LAYERS * 2
        for row in a["weights"]:
            assert row["window"] == [0, len(text) - 1] and len(row["alpha"]) == len(text)
            assert min(row["alpha"]) > 0 and abs(sum(row["alpha"]) - 1) < 1e-5
        whole = a["aggregate"]["alpha"]
        assert len(whole) == len(text) and abs(sum(whole) - 1) < 1e-5
        assert max(whole) == whole[position]  # the residual stream is a half of each layer


def test_an_encoder_has_no_sessions_and_generates_nothing(engine, encoder):
    for method, params in (("session.create", {"model": encoder}), ("session.create", {"model": encoder, "prompt": "x", "explain": True}),
                           ("completion.create", {"model": encoder, "prompt": "x"})):
        e = refused(engine, method, params)
        assert (e.status, e.param) == (400, "model") and "does not generate" in e.message
    assert engine.call("session.list", {})["data"] == []


def test_what_cannot_be_explained_is_refused_by_name(engine, linear, encoder):
    for params, param, status in (({"model": encoder, "input": "x" * (POSITIONS + 1)}, "input", 400),
                                  ({"model": encoder, "input": "x" * 5000}, "input", 400),
                                  ({"model": encoder, "input": ""}, "input", 400),
                                  ({"model": linear, "input": [259]}, "input", 400),
                                  ({"model": linear, "input": [0] * 5000 + [259]}, "input", 400),
                                  ({"model": linear, "input": "x" * 5000, "position": 5000}, "position", 400),
                                  ({"model": linear, "input": "x" * 65537}, "input", 400),
                                  ({"model": linear, "input": "x", "rounds": ["query"]}, "rounds", 400),
                                  ({"model": linear, "input": "x", "position": 1}, "position", 400),
                                  ({"model": linear, "input": "x", "position": "all"}, "position", 400)):
        e = refused(engine, "explain", params)
        assert (e.status, e.param) == (status, param), (params, e)
    assert refused(engine, "completion.create", {"model": linear, "prompt": "x", "alpha": {"top": 3}}).param == "alpha"


def test_leaving_tokens_out_of_a_model_that_reads_masked_tokens_needs_a_token_in_their_place(engine, linear):
    model = import_encoder(engine, linear, "padding", pad_policy="ignore")
    request = {"model": model, "input": "a text of some words", "method": "leave_one_out"}
    error = refused(engine, "explain", request)
    assert error.param == "replacement" and "reads masked tokens" in error.message
    parts = engine.call("explain", request | {"replacement": 40})["attribution"]["tokens"]
    assert max(map(abs, parts)) > 1e-4
    assert engine.call("explain", request | {"method": "contributions"})["contributions"]["score"] is not None
