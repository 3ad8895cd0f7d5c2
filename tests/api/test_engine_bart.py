"""additived: weights of BART, whose decoder reads the tokens one row later and attends to the encoder's rows of them."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))

from bart import DECODER, END, Bart, both  # noqa: E402
from engine_client import EngineError, daemon, engine  # noqa: E402, F401

# The head reads at the last end token; the encoder also reads the tokens after it.
IDS = [*(b + 3 for b in b"heron"), END, *(b + 3 for b in b"a wren"), END, *(b + 3 for b in b"etc")]
ROW = len(IDS) - 4


@pytest.fixture(scope="module", params=["softmax", "linear"])
def model(request, engine):
    reference = Bart(linear=request.param == "linear")
    return engine.upload("model.import", {"id": f"bart-{request.param}"}, **reference.files())["id"], reference


def test_an_explanation_has_the_weights_of_the_decoder_s_rows_and_of_the_encoder_s(engine, model):
    name, reference = model
    encoder, decoder, cross = reference.attentions(IDS)
    a = engine.call("explain", {"model": name, "input": IDS, "method": "alpha", "aggregate": "rollout"})
    assert a["position"] == ROW and a["source"]["tokens"] == a["tokens"] and [t["id"] for t in a["tokens"]] == IDS
    for rows, expected in ((a["weights"], decoder), (a["source"]["weights"], cross)):
        assert [(r["layer"], r["head"]) for r in rows] == [(i, h) for i in range(DECODER["layers"]) for h in range(DECODER["heads"])]
        for r in rows:
            np.testing.assert_allclose(r["alpha"], expected[r["layer"]][r["head"], ROW, : len(r["alpha"])], atol=1e-5)
            assert abs(sum(r["alpha"]) - 1) < 1e-5
    assert a["weights"][0]["window"] == [0, ROW] and a["source"]["weights"][0]["window"] == [0, len(IDS) - 1]
    rows, source = reference.rolled(IDS, ROW)
    np.testing.assert_allclose(a["aggregate"]["alpha"], rows[: ROW + 1], atol=1e-5)
    np.testing.assert_allclose(a["source"]["aggregate"]["alpha"], source, atol=1e-5)
    b = engine.call("explain", {"model": name, "input": IDS, "method": "alpha", "aggregate": "mean", "position": 3, "layers": [2], "heads": [1]})
    np.testing.assert_allclose(b["aggregate"]["alpha"], decoder[2][1, 3, :4], atol=1e-5)
    np.testing.assert_allclose(b["source"]["aggregate"]["alpha"], cross[2][1, 3], atol=1e-5)
    parts = engine.call("explain", {"model": name, "input": IDS, "method": "contributions"})
    assert parts["weights"] == [] and "source" not in parts
    with pytest.raises(EngineError, match="3 layers") as e:
        engine.call("explain", {"model": name, "input": IDS, "layers": [DECODER["layers"]]})
    assert e.value.param == "layers"


def test_a_class_is_explained_by_what_is_read_of_each_token_in_both_stacks(engine, model):
    name, reference = model
    found = engine.call("classify", {"model": name, "input": {"text": "heron", "text_pair": "a wren"}, "explain": True})["data"][0]["explanation"]
    ids = [t["id"] for t in found["tokens"]]
    _, decoder, cross = reference.attentions(ids)
    assert ids == IDS[: ROW + 1] and found["position"] == ROW
    np.testing.assert_allclose(found["aggregate"]["alpha"], both(*(np.mean(p, (0, 1))[ROW] for p in (decoder, cross))), atol=1e-5)
