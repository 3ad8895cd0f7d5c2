"""additived: explanations are those that the reference computes (tests/reference/attribution.py)."""

import json
import pathlib
import sys

import numpy
import pytest

from engine_client import Daemon, EngineError

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "reference"))
import check_golden
import tensors

FILES = sorted((ROOT / "data" / "golden" / "attribution").glob("*.safetensors"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("attribution") / "data") as d, d.connect() as e:
        yield e


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def golden(request, engine, tmp_path_factory):
    """(model, the set's tensors)"""
    arrays, metadata = tensors.read(request.param)
    weights = tmp_path_factory.mktemp("made") / "model.safetensors"
    tensors.write(weights, {name: array for name, array in arrays.items() if check_golden.is_parameter(name)})
    model = engine.upload("model.import", {"id": "set." + request.param.stem}, config=metadata["config"].encode(),
                          weights=weights.read_bytes())
    return model["id"], arrays


@pytest.mark.parametrize("method", ["mean", "rollout"])
def test_what_attention_has_read_in_all_layers_is_what_the_reference_says(engine, golden, method):
    model, arrays = golden
    ids = arrays["input_ids"][0].tolist()
    expected = arrays["attribution." + {"mean": "attention_mean", "rollout": "rollout"}[method]]
    for position, row in zip(arrays["attribution.readers"].tolist(), expected, strict=True):
        alpha = engine.call("explain", {"model": model, "input": ids, "position": position, "aggregate": method})["aggregate"]["alpha"]
        found = numpy.zeros(len(ids))
        found[: len(alpha)] = alpha
        assert numpy.abs(found - row).max() < 1e-6


def test_there_is_a_set_of_every_architecture():
    found = {pathlib.Path(path).stem.split("_")[0] for path in FILES}
    assert found == {"additive", "gpt2", "linear", "encoder"}


KINDS = ["contrast", "logit", "difference"]
PARTS = {"tokens": "token", "positions": "position", "biases": "bias"}


def cases(arrays):
    """(case, position, target): the cases of a set, as requests have them."""
    for c, (reader, kind, target, other) in enumerate(
        zip(*(arrays["attribution." + name].tolist() for name in ("reader", "kind", "target", "other")), strict=True)
    ):
        wanted = {"kind": KINDS[kind], "token": target}
        yield c, reader, wanted | ({"other": other} if other >= 0 else {})


def test_contributions_are_what_the_reference_says_and_sum_to_the_score(engine, golden):
    model, arrays = golden
    ids = arrays["input_ids"][0].tolist()
    for case, position, target in cases(arrays):
        for s, share in enumerate(arrays["attribution.shares"].tolist()):
            request = {"model": model, "input": ids, "position": position, "method": "contributions", "target": target, "share": share}
            found = engine.call("explain", request)["contributions"]
            largest = max(1, numpy.abs(arrays["attribution.contributions.token"][case, s]).max())
            assert abs(found["score"] - arrays["attribution.score"][case]) < 1e-5 * largest
            for name, part in PARTS.items():
                expected = arrays["attribution.contributions." + part][case, s]
                got = numpy.zeros(len(ids))
                got[: len(found[name])] = found[name]
                assert numpy.abs(got - expected).max() < 1e-5 * largest, (case, share, name)
            assert abs(found["sums"]["rounding"]) < 1e-4
            reader = found["tokens"][-1] if found["sums"]["reader"] else 0
            assert found["sums"]["reader"] == pytest.approx(reader)
            assert sum(found["sums"][x] for x in ("tokens", "reader", "positions", "biases", "rounding")) == pytest.approx(found["score"], abs=1e-6)


def attribution(engine, model, ids, position, method, target, **options):
    request = {"model": model, "input": ids, "position": position, "method": method, "target": target}
    found = engine.call("explain", request | options)["attribution"]
    assert found["method"] == method
    return found, numpy.array(found["tokens"] + [0] * (len(ids) - len(found["tokens"])))


@pytest.mark.parametrize("method", ["gradient_x_input", "attention_x_gradient"])
def test_gradients_are_what_the_reference_says(engine, golden, method):
    model, arrays = golden
    ids = arrays["input_ids"][0].tolist()
    for case, position, target in cases(arrays):
        expected = arrays["attribution." + method][case]
        _, numbers = attribution(engine, model, ids, position, method, target)
        assert numpy.abs(numbers - expected).max() < 2e-5 * max(1, numpy.abs(expected).max()), (case, method)


def test_leaving_a_token_out_costs_what_the_reference_says(engine, golden):
    model, arrays = golden
    ids = arrays["input_ids"][0].tolist()
    masked = "attribution.leave_one_out_mask"
    masked += ".pooling" * (masked + ".pooling" in arrays)
    for case, position, target in cases(arrays):
        _, numbers = attribution(engine, model, ids, position, "leave_one_out", target)
        reads = slice(0, len(ids) if position < 0 else position + 1)
        assert numpy.abs(numbers - arrays[masked][case])[reads].max() < 3e-5, case
        other = int(arrays["attribution.replacement"][0])
        _, numbers = attribution(engine, model, ids, position, "leave_one_out", target, replacement=other)
        assert numpy.abs(numbers - arrays["attribution.leave_one_out_replace"][case])[reads].max() < 3e-5, case


def test_integrated_gradients_sum_to_the_difference_of_the_scores(engine, golden):
    model, arrays = golden
    ids = arrays["input_ids"][0].tolist()
    for case, position, target in cases(arrays):
        found, numbers = attribution(engine, model, ids, position, "integrated_gradients", target, steps=128)
        expected = arrays["attribution.integrated_gradients.difference"][case]
        assert abs(found["difference"] - expected) < 2e-5
        assert found["completeness_error"] == pytest.approx(numbers.sum() - found["difference"], abs=1e-4)
        assert abs(found["completeness_error"]) < 0.01 * max(abs(expected), 0.1), case


def import_set(engine, folder, name):
    """The model of a golden set, with as many words as bytes have, and the ids of its text."""
    arrays, metadata = tensors.read(ROOT / "data" / "golden" / f"{name}.safetensors")
    weights, config = folder / "model.safetensors", json.loads(metadata["config"]) | {"vocab_size": 259}
    found = {key: array for key, array in arrays.items() if check_golden.is_parameter(key)}
    found["embedding.weight"] = numpy.resize(found["embedding.weight"], (259, config["hidden_size"]))
    tensors.write(weights, found)
    model = engine.upload("model.import", {"id": f"set.{name}"}, config=json.dumps(config).encode(), weights=weights.read_bytes())
    return model["id"], arrays["input_ids"][0].tolist()


def test_integrated_gradients_start_at_the_mean_where_norms_cancel_the_length_of_vectors(engine, tmp_path):
    model, ids = import_set(engine, tmp_path, "additive2")
    usual, _ = attribution(engine, model, ids, 20, "integrated_gradients", {"kind": "logit"})
    assert usual["baseline"] == "mean" and usual["steps"] == 64
    assert abs(usual["completeness_error"]) < 0.01 * abs(usual["difference"])
    assert attribution(engine, model, ids, 20, "integrated_gradients", {"kind": "logit"}, baseline="mean")[0] == usual
    zero, _ = attribution(engine, model, ids, 20, "integrated_gradients", {"kind": "logit"}, baseline="zero")
    assert zero["baseline"] == "zero" and zero["difference"] != usual["difference"]
    one, _ = attribution(engine, model, ids, 0, "integrated_gradients", {"kind": "logit"})
    assert one["difference"] == one["tokens"][0] == 0  # a single token is its own mean


def test_the_baseline_of_integrated_gradients_may_be_named(engine, golden):
    model, arrays = golden
    ids = arrays["input_ids"][0].tolist()
    target = next(cases(arrays))[2]
    position = next(cases(arrays))[1]
    usual, numbers = attribution(engine, model, ids, position, "integrated_gradients", target)
    assert usual["baseline"] == "zero"
    named, again = attribution(engine, model, ids, position, "integrated_gradients", target, baseline="zero")
    assert named == usual and (again == numbers).all()
    mean, numbers = attribution(engine, model, ids, position, "integrated_gradients", target, baseline="mean", steps=512)
    assert mean["baseline"] == "mean" and abs(mean["completeness_error"]) < 0.02 * max(abs(mean["difference"]), 0.1)
    assert refused(engine, {"model": model, "input": ids, "method": "leave_one_out", "baseline": "mean"}) == "baseline"
    assert refused(engine, {"model": model, "input": ids, "method": "integrated_gradients", "baseline": "text"}) == "baseline"


def refused(engine, request):
    with pytest.raises(EngineError) as failed:
        engine.call("explain", request)
    return failed.value.param


def test_rows_of_a_span_are_those_of_its_positions(engine, golden):
    model, arrays = golden
    if not model.startswith("set.encoder"):
        ids = arrays["input_ids"][0].tolist()
        request = {"model": model, "input": ids}
        for method in ["contributions", "leave_one_out"]:
            span = engine.call("explain", request | {"span": [3, 6], "method": method})["span"]
            assert span["method"] == method
            assert [row["position"] for row in span["rows"]] == [3, 4, 5, 6]
            alone = engine.call("explain", request | {"position": 5, "method": method})
            alone = alone["contributions" if method == "contributions" else "attribution"]
            assert span["rows"][2]["tokens"] == pytest.approx(alone["tokens"], abs=1e-5)
            assert span["rows"][2]["target"]["token"]["id"] == ids[6] == alone["target"]["token"]["id"]
            best = engine.call("explain", request | {"span": [5, 5], "method": method, "top": 2})["span"]["rows"][0]
            largest = sorted(range(6), key=lambda j: -abs(alone["tokens"][j]))[:2]
            assert [j for j, _ in best["top"]] == largest
            assert best["top"][0][1] == pytest.approx(alone["tokens"][largest[0]], abs=1e-5)
            if method == "contributions":
                assert best["sums"] == pytest.approx(alone["sums"], abs=1e-5)


@pytest.mark.parametrize("method", ["contributions", "gradient_x_input"])
def test_pages_of_a_span_are_its_rows(engine, golden, method):
    model, arrays = golden
    if model.startswith("set.encoder"):
        return
    request = {"model": model, "input": arrays["input_ids"][0].tolist(), "span": [2, 9], "method": method}
    whole = engine.call("explain", request)["span"]
    assert whole["has_more"] is False
    rows, after, pages = [], {}, 0
    while pages == 0 or page["has_more"]:
        page = engine.call("explain", request | {"limit": 3} | after)["span"]
        rows += page["rows"]
        after = {"after": rows[-1]["position"]}
        pages += 1
    assert pages == 3 and [r["position"] for r in rows] == list(range(2, 10))
    for found, expected in zip(rows, whole["rows"], strict=True):
        assert found["target"]["token"] == expected["target"]["token"] and found["tokens"] == pytest.approx(expected["tokens"], abs=1e-5)
    rest = engine.call("explain", request | {"after": 7})["span"]
    assert [r["position"] for r in rest["rows"]] == [8, 9] and not rest["has_more"]


def test_a_long_answer_comes_in_pieces_and_a_page_ends_before_it_is_too_large(engine, tmp_path):
    arrays, metadata = tensors.read(next(path for path in FILES if path.stem == "additive_unbounded"))
    tensors.write(tmp_path / "w", {name: array for name, array in arrays.items() if check_golden.is_parameter(name)})
    config = json.loads(metadata["config"]) | {"n_positions": 8192}
    engine.upload("model.import", {"id": "longer"}, config=json.dumps(config).encode(), weights=(tmp_path / "w").read_bytes())
    long = {"model": "longer", "input": "x" * 8000, "method": "alpha", "position": "all"}
    head, data = engine.download("explain", long | {"format": "json"})
    assert len(data) > 2 << 20 and head["bytes"] == len(data) and json.loads(data) == engine.call("explain", long)
    request = {"model": "longer", "input": "x" * 1100, "method": "gradient_x_input", "span": [0, 1099]}
    assert refused(engine, request) == "span"
    page = engine.call("explain", request | {"after": 399, "limit": 1000})["span"]
    assert page["has_more"] and sum(row["position"] + 1 for row in page["rows"]) <= 1 << 19
    rest = engine.call("explain", request | {"after": page["rows"][-1]["position"], "limit": 1000})["span"]
    assert not rest["has_more"] and [r["position"] for r in page["rows"] + rest["rows"]] == list(range(400, 1100))


def prompt_tokens(engine):
    return sum(s["value"] for m in engine.call("engine.metrics")["metrics"] if m["name"] == "additive_engine_prompt_tokens_total" for s in m["samples"])


def test_an_input_whose_weights_are_not_asked_for_is_not_read_for_them(engine, golden):
    model, arrays = golden
    request = {"model": model, "input": arrays["input_ids"][0].tolist()}
    before = prompt_tokens(engine)
    assert engine.call("explain", request | {"method": "contributions"})["weights"] == []
    assert prompt_tokens(engine) == before
    assert engine.call("explain", request)["weights"]
    assert model.startswith("set.encoder") or prompt_tokens(engine) == before + len(request["input"])


def test_what_cannot_be_explained_is_refused_by_the_name_of_its_field(engine, golden):
    model, arrays = golden
    request = {"model": model, "input": arrays["input_ids"][0].tolist()}
    classes = model.startswith("set.encoder")
    outputs = 3 if classes else 259
    assert refused(engine, request | {"target": {"token": outputs}}) == "target.token"
    assert refused(engine, request | {"target": {"token": "of two"}}) == "target.token"
    assert refused(engine, request | {"target": {"other": 1}}) == "target.other"
    assert refused(engine, request | {"target": {"kind": "difference", "token": 1, "other": 1}}) == "target.other"
    assert refused(engine, request | {"method": "contributions", "steps": 5}) == "steps"
    for key, value in (("steps", 5), ("baseline", "mean"), ("share", 0.5), ("replacement", 3)):
        assert refused(engine, request | {"method": "alpha", key: value}) == key
    assert refused(engine, request | {"method": "gradient_x_input", "share": 0.5}) == "share"
    assert refused(engine, request | {"method": "leave_one_out", "replacement": 259}) == "replacement"
    assert refused(engine, request | {"method": "contributions", "position": "all"}) == "position"
    for name in ("top", "after", "limit"):
        assert refused(engine, request | {name: 3}) == name
    for after in (1, 6, 7):
        assert refused(engine, request | {"span": [2, 6], "after": after}) == ("span" if classes else "after")
    for span in [[2, 1], [0, 1000]]:
        assert refused(engine, request | {"span": span}) == "span"
    assert refused(engine, request | {"span": [0, 1], "method": "alpha"}) == "span"
    assert refused(engine, request | {"method": "integrated_gradients", "span": [0, 1], "position": 1}) == "span"
