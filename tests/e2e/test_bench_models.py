"""The models that the benchmarks compare have the sizes that the comparison says."""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))

import bench  # noqa: E402
import quality  # noqa: E402

VOCAB, LENGTH = 8192, 2048


def parameters(c):
    """Count 3Lin's parameters: two tables with a row for each token, and two more rows in the first. Each attention has
    two matrices of keys, two of values, and the combiner."""
    d, per_attention = c["hidden_size"], 2 * c["key_size"] + 2 * c["value_size"] + 16 * c["value_size"]
    return (2 * c["vocab_size"] + 2) * d + c["vocab_size"] + c["n_layer"] * per_attention * d


@pytest.mark.parametrize("positions", [LENGTH, 65536])
def test_the_trilinear_model_of_the_benchmarks_has_the_parameters_of_gpt2(positions):
    config = json.loads(bench.trilinear(positions, VOCAB))
    assert (config["n_layer"], config["n_positions"], config["vocab_size"]) == (12, positions, VOCAB)
    assert parameters(config) == pytest.approx(quality.gpt2_cost(128, 6, VOCAB, LENGTH)[0], rel=0.01)


def test_the_trilinear_models_of_the_comparison_of_quality_have_them_too():
    every = quality.models(128, 4, 6, VOCAB, LENGTH, "service")
    for name in ("trilinear 32 bits", "trilinear 2 bits"):
        assert parameters(every[name]) == pytest.approx(quality.gpt2_cost(128, 6, VOCAB, LENGTH)[0], rel=0.01), name


def additive2_parameters(c):
    """Count additive2's parameters: tied word vectors, and layers of a mixer and SwiGLU."""
    d, heads = c["hidden_size"], c["n_heads"]
    forget = {"data": d + 1, "const": 1, "none": 0}[c["forget"]]
    pooling = (2 + c["gate"]) * d**2 + heads * (d + forget) + (3 * c["shift"] + c["group_norm"]) * d
    other = (4 + c["gate"]) * d**2 + (3 + c["gate"]) * c["shift"] * d
    rounds, layers = len(c.get("window_sizes", [])), c["n_layer"]
    others = rounds + len(c["window_layers"]) + len(c.get("linear_layers", []))
    mixers = others * other + rounds * (d**2 + 4 * d) + (layers - others) * pooling
    return c["vocab_size"] * d + d + mixers + layers * (2 * d + 3 * c["intermediate_size"] * d)


def test_the_additive2_models_of_the_comparison_of_quality_have_equal_parameters():
    every = quality.models(128, 4, 6, 8000, 512, "service")
    counts = {name: additive2_parameters(c) for name, c in every.items() if c["model_type"] == "additive2"}
    assert len(counts) == 15 and every["additive 2"]["intermediate_size"] == 402
    for name, count in counts.items():
        assert count == pytest.approx(2_273_612, rel=0.0015), name  # the rotary transformer's
