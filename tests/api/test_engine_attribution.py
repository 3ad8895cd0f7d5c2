"""additived: explanations are those that the reference computes (tests/reference/attribution.py)."""

import pathlib
import sys

import numpy
import pytest

from engine_client import Daemon

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
