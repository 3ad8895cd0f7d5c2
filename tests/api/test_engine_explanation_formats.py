"""additived: explanations as CSV and safetensors, and the Python client's Arrow tables, have the numbers of the JSON; the files are sent in pieces."""

import csv
import io
import pathlib
import sys

import numpy
import pytest
import safetensors
import safetensors.numpy

from engine_client import DATA, EVENT, RESULT, Daemon, EngineError

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "reference"), str(ROOT.parent / "clients" / "python")]
import check_golden
import tensors
from bart import END, Bart
from encoder_decoder import EncoderDecoder

from additive_client.explanation import Numbers

COLUMNS = ["path", "position", "layer", "head", "round", "side", "token", "token_id", "text", "value"]
AWKWARD = 'a,"b"\n\r\0é\t=1'


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("formats") / "data", "--max-explanations", 2) as d, d.connect() as e:
        for name in ("additive_windows", "gpt2", "encoder_mean"):
            arrays, metadata = tensors.read(ROOT / "data" / "golden" / "attribution" / f"{name}.safetensors")
            weights = tmp_path_factory.mktemp("made") / "model.safetensors"
            tensors.write(weights, {n: array for n, array in arrays.items() if check_golden.is_parameter(n)})
            e.upload("model.import", {"id": "set." + name}, config=metadata["config"].encode(), weights=weights.read_bytes())
        e.upload("model.import", {"id": "translator"}, **EncoderDecoder().files())
        e.upload("model.import", {"id": "reader"}, **Bart(linear=False).files())
        yield e


REQUESTS = [
    {"model": "set.additive_windows"}, {"model": "set.additive_windows", "position": "all"}, {"model": "set.additive_windows", "position": 5, "aggregate": "rollout"},
    {"model": "set.additive_windows", "span": [2, 9]}, {"model": "set.additive_windows", "span": [0, 9], "top": 3},
    {"model": "set.additive_windows", "method": "integrated_gradients", "steps": 4}, {"model": "set.gpt2", "layers": [1], "heads": [0], "aggregate": "mean"},
    {"model": "set.gpt2", "span": [1, 3], "method": "leave_one_out"}, {"model": "set.encoder_mean"},
    {"model": "translator", "source": AWKWARD, "aggregate": "rollout", "position": 3}, {"model": "translator", "source": "a source", "span": [1, 3], "method": "contributions"},
    {"model": "translator", "source": AWKWARD, "span": [0, 2], "top": 3}, {"model": "translator", "source": "x", "method": "attention_x_gradient"},
    {"session": True, "model": "translator", "source": AWKWARD, "aggregate": "rollout", "position": 3},
    {"session": True, "model": "translator", "source": "a source", "method": "contributions"},
    {"model": "reader", "input": [*(b + 3 for b in AWKWARD.encode()[:40]), END], "aggregate": "mean"}]
requests = pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: " ".join(map(str, r.values())))


def both(engine, request, form):
    """The JSON, and the bytes of the format."""
    request, method = {"input": AWKWARD, **request}, "explain"
    if request.pop("session", False):
        session = engine.call("session.create", {"model": request.pop("model"), "source": request.pop("source"), "prompt": request.pop("input"), "explain": True})["id"]
        method = "explain" if "method" in request else "session.alpha"
        request["session" if "method" in request else "id"] = session
    _, data = engine.download(method, {**request, "format": form})
    return engine.call(method, request), data


def is_of_source(path):
    return "source" in path.split(".")[:-1]


def weights_rows(x, of, prefix=""):
    for row in of.get("weights", []):
        at = (row["layer"], row["head"], row["round"])
        if "alpha" in row:
            yield from ((prefix + "weights.alpha", x["position"], *at, row["window"][0] + i, a) for i, a in enumerate(row["alpha"]))
        else:
            yield from (("weights.score", None, *at, j, a) for j, a in enumerate(row["score"]))
            yield from (("weights.log_normalizer", i, *at, None, m) for i, m in enumerate(row["log_normalizer"]))


def parts_rows(path, position, parts):
    none = (None, None, None)
    position = None if position == "all" else position
    for name in ("tokens", "positions", "biases"):
        yield from ((f"{path}.{name}", position, *none, j, v) for j, v in enumerate(parts.get(name, [])))
    yield from ((f"{path}.top", position, *none, j, v) for j, v in parts.get("top", []))
    if "source" in parts:
        yield from parts_rows(f"{path}.source", position, parts["source"])
    for name in ("score", "share", "difference", "completeness_error"):
        if name in parts:
            yield f"{path}.{name}", position, *none, None, parts[name]
    if "target" not in parts:
        return
    yield from ((f"{path}.sums.{k}", position, *none, None, v) for k, v in parts.get("sums", {}).items())
    yield from ((f"{path}.target.{k}", position, *none, None, parts["target"][k]) for k in ("logit", "log_probability"))


def expected_rows(x):
    """(path, position, layer, head, round, token, number) of every number of the JSON."""
    for of, prefix in ((x, ""), (x.get("source", {}), "source.")):
        yield from weights_rows(x, of, prefix)
        if of.get("aggregate"):
            yield from ((prefix + "aggregate.alpha", x["position"], None, None, None, j, a) for j, a in enumerate(of["aggregate"]["alpha"]))
    for path in ("contributions", "attribution"):
        if path in x:
            yield from parts_rows(path, x["position"], x[path])
    if "span" in x:
        if "share" in x["span"]:
            yield "span.share", None, None, None, None, None, x["span"]["share"]
        for row in x["span"]["rows"]:
            yield from parts_rows("span.rows", row["position"], row)


def check_rows(x, found):
    """found: dictionaries of a table's columns. Numbers of tokens are the JSON's floats, bit for bit."""
    key = lambda path, position, layer, head, round_, token: (path, position, layer, head, round_, token)
    expected = {key(*row[:-1]): row[-1] for row in expected_rows(x)}
    got = {key(r["path"], r["position"], r["layer"], r["head"], r["round"], r["token"]): r for r in found}
    assert len(got) == len(found) and set(got) == set(expected)
    for at, value in expected.items():
        source = is_of_source(at[0])
        token = (x["source"] if source else x)["tokens"][at[-1]] if at[-1] is not None else {"id": None, "text": None}
        side = None if at[-1] is None else "source" if source else "text"
        assert (got[at]["side"], got[at]["token_id"], got[at]["text"]) == (side, token["id"], token["text"])
        if at[-1] is None:
            assert got[at]["value"] == pytest.approx(value, rel=1e-6, abs=1e-9)
        else:
            assert numpy.float32(got[at]["value"]) == numpy.float32(value)


@requests
def test_a_csv_has_a_line_for_every_number(engine, request_):
    x, data = both(engine, request_, "csv")
    number = {"position": int, "layer": int, "head": int, "token": int, "token_id": int, "value": float}
    lines = csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True)
    assert lines.fieldnames == COLUMNS
    found = [{k: number.get(k, str)(v) if v != "" or (k == "text" and line["token"]) else None for k, v in line.items()} for line in lines]
    check_rows(x, found)


@requests
def test_an_arrow_table_of_the_python_client_has_the_rows_of_the_csv(engine, request_):
    x, data = both(engine, request_, "csv")
    table = Numbers(x).to_arrow()
    table.validate(full=True)
    assert table.column_names == COLUMNS
    assert [str(f.type) for f in table.schema] == ["string", "int32", "int32", "int32", "string", "string", "int32", "int32", "string", "float"]
    rows = table.to_pylist()
    check_rows(x, rows)
    assert [r["path"] for r in rows] == [line["path"] for line in csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True)]


def arrays_of(x):
    """{path: [(row of the tensor, columns, numbers)]} of the JSON's numbers of tokens."""
    out = {}
    for i, row in enumerate(x.get("source", {}).get("weights", [])):
        out.setdefault("source.weights.alpha", []).append((i, 0, row["alpha"]))
    for i, row in enumerate(x["weights"]):
        for name, first in (("alpha", row.get("window", [0])[0]), ("score", 0), ("log_normalizer", 0)):
            if name in row:
                out.setdefault(f"weights.{name}", []).append((i, first, row[name]))
    for i, row in enumerate(x.get("span", {}).get("rows", [])):
        for name in ("tokens", "positions", "biases"):
            if name in row:
                out.setdefault(f"span.rows.{name}", []).append((i, 0, row[name]))
            if name in row.get("source", {}):
                out.setdefault(f"span.rows.source.{name}", []).append((i, 0, row["source"][name]))
    members = {path: x.get(path) or {} for path in ("contributions", "attribution", "aggregate")}
    members |= {f"{path}.source": of.get("source", {}) for path, of in members.items()}
    members["source.aggregate"] = x.get("source", {}).get("aggregate") or {}
    for path, of in members.items():
        for name in ("tokens", "positions", "biases", "alpha"):
            if name in of:
                out[f"{path}.{name}"] = [(None, 0, of[name])]
    return out


@requests
def test_safetensors_hold_the_same_floats(engine, request_, tmp_path):
    x, data = both(engine, request_, "safetensors")
    (tmp_path / "x").write_bytes(data)
    with safetensors.safe_open(tmp_path / "x", framework="numpy") as f:
        metadata = f.metadata()
    found = safetensors.numpy.load(data)
    assert metadata["text"] == AWKWARD and metadata["model"] == x["model"] and metadata["position"] == str(x["position"])
    assert found["tokens.id"].tolist() == [t["id"] for t in x["tokens"]]
    assert found["tokens.offset"].tolist() == [t["offset"] for t in x["tokens"]]
    assert metadata.get("source") == ("".join(t["text"] for t in x["source"]["tokens"]) if "source" in x else None)
    for k in ("id", "offset") if "source" in x else ():
        assert found[f"source.tokens.{k}"].tolist() == [t[k] for t in x["source"]["tokens"]]
    arrays = arrays_of(x)
    for path, rows in arrays.items():
        expected = numpy.zeros_like(found[path])
        for i, first, numbers in rows:
            (expected if i is None else expected[i])[first : first + len(numbers)] = numpy.float32(numbers)
        assert found[path].dtype == numpy.float32 and (found[path] == expected).all(), path
    for path, value in ((row[0], row[-1]) for row in expected_rows(x) if row[5] is None and not row[0].startswith(("span.rows", "weights"))):
        assert found[path].shape == () and found[path] == pytest.approx(value, rel=1e-6, abs=1e-9)
    names = metadata["rounds"].split(",")
    for of, at in ((x, "weights"), (x.get("source", {}), "source.weights")):
        for i, row in enumerate(of.get("weights", [])):
            assert (found[f"{at}.layer"][i], found[f"{at}.head"][i], names[found[f"{at}.round"][i]]) == (row["layer"], row["head"], row["round"])
    for i, row in enumerate(x.get("span", {}).get("rows", [])):
        assert found["span.rows.position"][i] == row["position"] and found["span.rows.score"][i] == pytest.approx(row["score"], rel=1e-6)
        for of, at in ((row, "span.rows.top"), (row.get("source", {}), "span.rows.source.top")):
            for k, (token, value) in enumerate(of.get("top", [])):
                assert (found[f"{at}.token"][i, k], found[at][i, k]) == (token, numpy.float32(value))


# --- in pieces -----------------------------------------------------------------------------------


def test_a_large_answer_comes_in_pieces_no_faster_than_it_is_taken(engine):
    request = {"model": "set.additive_windows", "input": "x" * 31, "position": "all"}
    assert engine.call("explain", {**request, "format": "json"}, credit=0) == engine.call("explain", request)
    for form in ("csv", "safetensors"):
        call = engine.begin("explain", {**request, "format": form}, credit=1)
        kind, head, _ = call.next()
        assert kind == EVENT and set(head) <= {"content_type", "bytes", "filename"}
        engine.call("engine.status")
        assert call.frames.empty()
        call.grant(100)
        data = b""
        while (frame := call.next())[0] == DATA:
            assert len(frame[2]) <= 256 << 10
            data += frame[2]
        assert frame[0] == RESULT and frame[1] == {"bytes": len(data)} and head.get("bytes", len(data)) == len(data)


def refused(engine, params, method="explain"):
    with pytest.raises(EngineError) as failed:
        engine.call(method, params)
    return failed.value


def test_what_is_wrong_is_answered_before_any_piece(engine):
    for more, param in (({"layers": [99]}, "layers"), ({"position": 99}, "position"), ({"format": "xml"}, "format"), ({"format": "arrow"}, "format")):
        e = refused(engine, {"model": "set.gpt2", "input": "x", "format": "csv", **more})
        assert (e.status, e.param) == (400, param)
        assert param != "format" or all(name in e.message for name in ("json", "csv", "safetensors")), e.message


def test_explanations_beyond_the_limit_are_refused_until_a_place_is_free(engine):
    request = {"model": "set.gpt2", "input": "some text"}
    session = engine.call("session.create", {"model": "set.gpt2", "prompt": "some text", "explain": True})["id"]
    held = [engine.begin("explain", {**request, "format": "csv"}, credit=0) for _ in range(2)]
    for params, method in ((request, "explain"), ({"id": session}, "session.alpha")):
        e = refused(engine, params, method)
        assert (e.status, e.code) == (429, "overloaded") and e.retry_after >= 1 and "2 explanations" in e.message
    assert engine.generate({"model": "set.gpt2", "prompt": "x", "max_tokens": 2})[2], "other work goes on"
    held[0].cancel()
    with pytest.raises(EngineError):
        held[0].result()
    assert engine.call("explain", request)["position"] == 8
    held[1].grant(100)
    held[1].result()
    assert [engine.call("session.alpha", {"id": session})["position"] for _ in range(3)] == [8] * 3


def test_tokens_are_generated_while_a_long_explanation_runs(engine):
    request = {"model": "set.additive_windows", "input": "x" * 31, "method": "integrated_gradients", "steps": 1024, "span": [0, 30]}
    long = engine.begin("explain", request, credit=0)
    for _ in range(3):
        _, events, _ = engine.generate({"model": "set.additive_windows", "prompt": "x", "max_tokens": 5})
        assert len(events) == 5
    assert long.frames.empty(), "the explanation has not ended before them"
    long.cancel()
    with pytest.raises(EngineError):
        long.result()
