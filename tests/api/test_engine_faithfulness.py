"""additived: how faithful explanations are, measured as the reference measures it (tests/reference/faithfulness.py)."""

import json
import math
import pathlib
import random
import sys

import numpy
import pytest

from engine_client import SANITIZED, Daemon, EngineError, own_daemon

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "reference"), str(ROOT / "bench")]
import bart
import check_golden
import faithfulness
import planted_keys
import tensors
from encoder_decoder import START, EncoderDecoder, encoder_files

SETS = ROOT / "data" / "golden" / "attribution"
METHODS = ["contributions", "alpha", "rollout", "gradient_x_input", "attention_x_gradient", "integrated_gradients", "leave_one_out"]
TEXTS = ["a bottle of beer", "on the wall, a wall", "take one down, pass", "it around and around"] * 4


def upload(engine, folder, name):
    arrays, metadata = tensors.read(SETS / f"{name}.safetensors")
    weights = folder / f"{name}.safetensors"
    tensors.write(weights, {key: array for key, array in arrays.items() if check_golden.is_parameter(key)})
    model = engine.upload("model.import", {"id": "set." + name}, config=metadata["config"].encode(), weights=weights.read_bytes())
    return model["id"], arrays["input_ids"][0].tolist()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("evaluate") / "data") as d, d.connect() as e:
        yield e


@pytest.fixture(scope="module")
def sets(engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return {name: upload(engine, folder, name) for name in ("additive_windows", "gpt2", "linear", "encoder_mean")}


MASK = 259  # mask token of the encoder


@pytest.fixture(scope="module")
def others(engine):
    """Model, tokens, source and position: an encoder-decoder, an encoder that fills in masks, a model that reads its tokens twice."""
    for name, files in (("translator", EncoderDecoder().files()), ("encoder", encoder_files(MASK)), ("reader", bart.Bart(linear=True).files())):
        engine.upload("model.import", {"id": name}, **files)
    ids = [3 + b for b in b"what is said of it"]
    return {"translator": ("translator", [START, *ids[:9]], [3 + b for b in b"a source"], 9),
            "encoder": ("encoder", [*ids[:6], MASK, *ids[6:12], MASK], None, 6), "bart": ("reader", [*ids[:11], bart.END], None, None)}


def by_name(evaluation, numbers):
    return {(m["metric"], m.get("fraction", 0)): math.nan if x is None else x for m, x in zip(evaluation["metrics"], numbers, strict=True)}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, x in expected.items():
        assert found[key] == pytest.approx(x, abs=1e-5, nan_ok=True), key


class Said:
    """A model's prediction of a token when others are replaced, from /v1/explain, which is independent of
    evaluations."""

    def __init__(self, engine, model, ids, token, replacement, position=None):
        self.engine, self.model, self.ids, self.token, self.replacement = engine, model, ids, token, replacement
        self.position, self.known = position, {}

    def __call__(self, absent):
        if absent not in self.known:
            ids = [self.replacement if i in absent else x for i, x in enumerate(self.ids)]
            request = {"model": self.model, "input": ids, "method": "contributions", "target": {"token": self.token}}
            if self.position is not None:
                request["position"] = self.position
            self.known[absent] = self.engine.call("explain", request)["contributions"]["target"]["log_probability"]
        return self.known[absent]


class SaidOfSource(Said):
    """The prediction of an encoder-decoder, in numpy: a request cannot replace the start of its decoder."""

    def __init__(self, ids, source, token, replacement):
        self.ids, self.first, self.token, self.replacement = [*source, *ids], len(source), token, replacement
        self.reference, self.known = EncoderDecoder(), {}

    def __call__(self, absent):
        if absent not in self.known:
            ids = [self.replacement if i in absent else x for i, x in enumerate(self.ids)]
            self.known[absent] = float(self.reference.logprobs(ids[:self.first], ids[self.first:])[0][-1][self.token])
        return self.known[absent]


def numbers(engine, model, ids, method, replacement, **request):
    """Return the numbers of the source, if there is one, and of the text."""
    request |= {"model": model, "input": ids[1:] if "source" in request else ids}
    if method in ("alpha", "rollout"):
        found = engine.call("explain", request | {"method": "alpha", "aggregate": "mean" if method == "alpha" else "rollout"})
        rows, source = found["aggregate"]["alpha"], found.get("source", {}).get("aggregate", {}).get("alpha", [])
        return source + rows if "source" in request or not source else bart.both(numpy.array(rows), source)
    more = {"replacement": replacement} if method == "leave_one_out" and replacement is not None else {}
    found = engine.call("explain", request | {"method": method} | more)
    found = found["contributions" if method == "contributions" else "attribution"]
    return found.get("source", {}).get("tokens", []) + found["tokens"]


@pytest.mark.parametrize("name", ["additive_windows", "gpt2", "linear", "translator", "encoder", "bart"])
def test_every_metric_of_every_method_is_what_the_reference_says(engine, sets, others, name):
    model, ids, source, position = others.get(name) or (*sets[name], None, None)
    settings = {"fractions": [0.1, 0.5], "grid": 4, "soft": 2, "far": 9 if name in sets else 4, "seed": 3}
    more = {"source": source} if source else {}
    methods = [m for m in METHODS if name != "bart" or m != "attention_x_gradient"]
    request = {"model": model, "input": ids[1:] if source else ids, "replacement": 40, "rows": True, "methods": methods} | settings | more
    evaluation = engine.call("faithfulness.create", request)
    row = evaluation["rows"][0]
    everything = len(source or []) + len(ids)
    n, reader = everything - 1, len(source or []) + row["position"]
    assert row["position"] == (len(ids) - 1 if position is None else position)
    token = row["target"]["id"]
    replaced = SaidOfSource(ids, source, token, 40) if source else Said(engine, model, ids, token, 40, position)
    said = lambda absent: replaced(frozenset(j + (j >= reader) for j in absent))
    orders = [numpy.delete(numbers(engine, model, ids, m, 40, **more), reader) for m in methods]
    orders += [faithfulness.random_order(3, 0, n, reader), faithfulness.recency(n, reader)]
    expected = faithfulness.measure(said, orders, **settings, reader=reader)
    assert row["log_probability"] == pytest.approx(said(frozenset()), abs=1e-5)
    assert row["empty"] == pytest.approx(said(frozenset(range(n))), abs=1e-5)
    assert [m["method"] for m in row["methods"]] == methods + ["random", "recency"]
    for found, (forward, backward, curves) in zip(row["methods"], expected, strict=True):
        assert_same(by_name(evaluation, found["values"]), forward)
        assert found["deletion"] == pytest.approx(curves[0], abs=1e-5)
        assert found["insertion"] == pytest.approx(curves[1], abs=1e-5)
        if found["method"] in methods:
            assert_same(by_name(evaluation, found["reverse"]), backward)
        else:
            assert found["reverse"] is None


def test_masked_tokens_are_those_that_leave_one_out_masks(engine, sets):
    """The log-probabilities of classes from their logits, each of which is explained alone."""
    model, ids = sets["encoder_mean"]
    logits, without = [], []
    for k in range(3):
        found = engine.call("explain", {"model": model, "input": ids, "method": "leave_one_out", "target": {"kind": "logit", "token": k}})
        logits.append(found["attribution"]["score"])
        without.append([found["attribution"]["score"] - x for x in found["attribution"]["tokens"][:-1]])
    target = int(numpy.argmax(logits))
    said = lambda z: z[target] - numpy.log(numpy.exp(z).sum(0))
    falls = said(numpy.array(logits)) - said(numpy.array(without))
    evaluation = engine.call("faithfulness.create", {"model": model, "input": ids, "methods": ["contributions"], "fractions": [0.001], "rows": True})
    parts = numpy.array(engine.call("explain", {"model": model, "input": ids, "method": "contributions", "target": {"token": target}})["contributions"]["tokens"])[:-1]
    row = evaluation["rows"][0]
    found = by_name(evaluation, row["methods"][0]["values"])
    assert row["target"]["id"] == target
    assert found["comprehensiveness", 0.001] == pytest.approx(falls[parts.argmax()], abs=1e-5)
    assert found["kendall_tau", 0] == pytest.approx(faithfulness.kendall(parts, falls), abs=1e-5)


def test_masks_and_sources_stand_in_the_texts_of_a_file(engine, others):
    model, ids, source, _ = others["translator"]
    pair = {"source": "a source", "target": "what is s"}
    file = engine.add_file("".join(json.dumps(p) + "\n" for p in (pair, {"source": "x", "target": ""}, {"source": "", "target": "left out"})))
    request = {"methods": ["contributions", "alpha"], "soft": 1, "bootstrap": 10}
    job = engine.call("faithfulness.create", request | {"model": model, "file": file})
    assert wait(engine, job["id"])["texts"]["done"] == 2
    alone = engine.call("faithfulness.create", request | {"model": model, "source": source, "input": ids[1:], "rows": True})
    first, second = texts_of(engine, job["id"])
    assert first["rows"] == alone["rows"] and first["tokens"] == len(ids) and second["rows"][0]["position"] == 0
    model, ids, *_ = others["encoder"]
    file = engine.add_file("what i[MASK]s said[MASK]\nno mask\n[MASK]!\n[MASK]\n")
    job = engine.call("faithfulness.create", request | {"model": model, "file": file, "spread": 4})
    assert wait(engine, job["id"])["texts"]["done"] == 2
    positions = [[r["position"] for r in t["rows"]] for t in texts_of(engine, job["id"])]
    assert positions == [[6, 13], [0]]
    assert texts_of(engine, job["id"])[0]["rows"] == engine.call("faithfulness.create", request | {"model": model, "input": ids, "positions": [-1, 6], "rows": True})["rows"]


def test_a_source_or_a_mask_that_is_missing_is_refused_by_name(engine, sets, others):
    text = engine.add_file("a text")
    for request, param in (({"model": "translator", "input": "x"}, "source"), ({"model": "translator", "input": "x", "source": ""}, "source"),
                           ({"model": "translator", "input": "x", "source": "y" * 41}, "source"), ({"model": "translator", "input": "x", "source": [999]}, "source"),
                           ({"model": sets["gpt2"][0], "input": "xy", "source": "z"}, "source"), ({"model": "translator", "file": text, "source": "z"}, "source"),
                           ({"model": "translator", "file": text}, "file"), ({"model": "encoder", "file": text}, "file"),
                           ({"model": "encoder", "input": "no mask"}, "input"), ({"model": "encoder", "input": [MASK]}, "input")):
        e = refused(engine, request)
        assert (e.status, e.param) == (400, param), request


def assert_intervals(evaluation, rows, groups):
    settings = evaluation["settings"]
    methods = [m["method"] for m in evaluation["methods"]]
    values = {m: numpy.array([[math.nan if x is None else x for x in row["methods"][i]["values"]] for row in rows]) for i, m in enumerate(methods)}
    among = lambda numbers: faithfulness.interval(numbers, groups, settings["seed"], settings["bootstrap"], settings["confidence"])
    for method in evaluation["methods"]:
        own = values[method["method"]]
        for i, found in enumerate(method["numbers"]):
            pairs = [(found, own[:, i])]
            pairs += [(found["less_" + b], own[:, i] - values[b][:, i]) for b in ("random", "recency") if b != method["method"]]
            for estimate, numbers_ in pairs:
                if numpy.isfinite(numbers_).any():
                    mean, bounds = among(numbers_)
                    assert estimate["mean"] == pytest.approx(mean, abs=1e-6)
                    if len(set(numpy.asarray(groups)[numpy.isfinite(numbers_)])) > 1:
                        assert estimate["interval"] == pytest.approx([*bounds], abs=1e-6)
                    else:
                        assert estimate["interval"] is None
                else:
                    assert estimate["mean"] is None and estimate["interval"] is None
            assert found["count"] == numpy.isfinite(own[:, i]).sum()
        for curve in ("deletion", "insertion"):
            mean = numpy.mean([row["methods"][methods.index(method["method"])][curve] for row in rows], 0)
            assert method["curve"][curve] == pytest.approx(mean, abs=1e-6)


def test_a_single_position_has_no_intervals(engine, sets):
    model, ids = sets["gpt2"]
    evaluation = engine.call("faithfulness.create", {"model": model, "input": ids, "methods": ["alpha"], "rows": True})
    assert_intervals(evaluation, evaluation["rows"], [0])
    assert all(n["interval"] is None and n["less_random"]["interval"] is None for n in evaluation["methods"][0]["numbers"])


def test_means_of_several_positions_have_bootstrap_intervals(engine, sets):
    model, ids = sets["gpt2"]
    request = {"model": model, "input": ids, "spread": 6, "methods": ["contributions"], "rows": True, "bootstrap": 60, "confidence": 0.8, "seed": 5}
    evaluation = engine.call("faithfulness.create", request)
    rows = evaluation["rows"]
    last = len(ids) - 1
    assert [row["position"] for row in rows] == [(2 * i * last + 6) // 12 for i in range(1, 7)]
    assert evaluation["positions"] == 6 and evaluation["resampled"] == "positions" and evaluation["texts"] == 1
    assert_intervals(evaluation, rows, range(6))
    assert evaluation["log_probability"] == pytest.approx(numpy.mean([r["log_probability"] for r in rows]))
    some = engine.call("faithfulness.create", {k: x for k, x in request.items() if k != "spread"} | {"positions": [rows[2]["position"], -1]})
    assert some["rows"][0]["methods"][0] == rows[2]["methods"][0] and some["rows"][1]["methods"][0] == rows[-1]["methods"][0]


def test_another_target_is_explained_and_measured(engine, sets):
    model, ids = sets["gpt2"]
    evaluation = engine.call("faithfulness.create", {"model": model, "input": ids, "methods": ["contributions"], "target": {"token": 77, "kind": "logit"}, "rows": True})
    found = engine.call("explain", {"model": model, "input": ids, "method": "contributions", "target": {"token": 77}})
    assert evaluation["rows"][0]["target"]["id"] == 77
    assert evaluation["log_probability"] == pytest.approx(found["contributions"]["target"]["log_probability"], abs=1e-5)


def refused(engine, params, method="faithfulness.create"):
    with pytest.raises(EngineError) as failed:
        engine.call(method, params)
    return failed.value


def test_what_cannot_be_evaluated_is_refused_by_the_name_of_its_field(engine, sets):
    model, ids = sets["gpt2"]
    request = {"model": model, "input": ids}
    file = engine.add_file("\n".join(TEXTS))
    wrong = {
        "methods": [{"methods": ["alpha", "alpha"]}, {"methods": ["attention"]}],
        "positions": [{"positions": [0]}, {"positions": [5, 1000]}],
        "spread": [{"positions": [3], "spread": 2}],
        "target.token": [{"target": {"token": 259}}],
        "replacement": [{"replacement": 259}, {"replacement": "two of them"}],
        "input": [{"input": ids[:1]}, {"input": [999, 1]}, {"input": ids * 9}],
        "file": [{"file": file}],
        "fractions": [{"fractions": [0.0]}],
        "grid": [{"grid": 1}],
    }
    for param, cases in wrong.items():
        for case in cases:
            assert refused(engine, request | case).param.split("[")[0] == param, case
    assert "at least two tokens" in refused(engine, request | {"input": ids[:1]}).message
    assert refused(engine, {"model": model}).param == "input"
    assert refused(engine, {"model": model, "file": "file-0123456789abcdef01234567"}).param == "file"
    for text in ["", "x\n\ny\n", '{"text": "whole"}\n{"prompt": "half"}\n']:
        assert refused(engine, {"model": model, "file": engine.add_file(text)}).param == "file", text
    assert refused(engine, {"model": model, "file": file, "rows": True}).param == "rows"
    assert refused(engine, {"model": model, "file": file, "spread": 30, "texts": 1000}).param == "texts"
    classes, text = sets["encoder_mean"]
    assert refused(engine, {"model": classes, "input": text, "methods": ["rollout"]}).param == "methods"
    assert refused(engine, {"model": classes, "input": text, "positions": [3]}).param == "positions"
    engine.call("file.delete", {"id": file})


def test_a_model_whose_numbers_are_not_finite_is_refused(engine, tmp_path):
    arrays, metadata = tensors.read(SETS / "gpt2.safetensors")
    weights = {key: array * 1e10 for key, array in arrays.items() if check_golden.is_parameter(key)}
    tensors.write(tmp_path / "model.safetensors", weights)
    config, data = metadata["config"].encode(), (tmp_path / "model.safetensors").read_bytes()
    model = engine.upload("model.import", {"id": "too.large"}, config=config, weights=data)["id"]
    assert refused(engine, {"model": model, "input": "one two three"}).param == "model"
    job = engine.call("faithfulness.create", {"model": model, "file": engine.add_file("one two three")})
    ended = wait(engine, job["id"])
    assert ended["status"] == "failed" and ended["error"]["param"] == "model" and ended["texts"]["done"] == 0


# --- jobs ----------------------------------------------------------------------------------

def wait(engine, job, until=("succeeded", "failed", "cancelled")):
    return engine.wait(lambda: (lambda j: j if j["status"] in until else None)(engine.call("faithfulness.get", {"id": job})))


def texts_of(engine, job):
    texts, after = [], {}
    while True:
        page = engine.call("faithfulness.rows", {"id": job, "limit": 1000} | after)
        texts = page["data"][::-1] + texts
        if not page["has_more"]:
            return texts
        after = {"after": page["data"][-1]["id"]}


def test_a_job_evaluates_every_text_of_a_file(engine, sets):
    model, _ = sets["additive_windows"]
    lines = engine.add_file("\r\n".join(TEXTS[:3]) + "\n\nx\n" + TEXTS[3])
    request = {"model": model, "methods": ["contributions", "leave_one_out"], "seed": 2, "spread": 2, "bootstrap": 50}
    job = engine.call("faithfulness.create", request | {"file": lines})
    assert job["status"] in ("queued", "running") and job["object"] == "explain.evaluation.job" and "request" not in job
    assert job["texts"] == {"total": 4, "done": 0} and job["settings"]["spread"] == 2 and job["result"] is None
    done = wait(engine, job["id"])
    assert done["status"] == "succeeded" and done["texts"]["done"] == 4 and done["finished_at"] >= done["created_at"]
    result, texts = done["result"], texts_of(engine, job["id"])
    assert (result["texts"], result["positions"], result["resampled"]) == (4, 8, "texts")
    assert [t["text"] for t in texts] == [0, 1, 2, 3]
    assert [t["tokens"] for t in texts] == [len(text) for text in TEXTS[:4]]
    assert_intervals(result, [row for t in texts for row in t["rows"]], [t["text"] for t in texts for _ in t["rows"]])
    alone = engine.call("faithfulness.create", request | {"input": TEXTS[0], "rows": True})
    assert texts[0]["rows"] == alone["rows"]
    jsonl = engine.add_file("".join(json.dumps({"text": text, "source": "song"}) + "\n" for text in TEXTS[:4]))
    again = wait(engine, engine.call("faithfulness.create", request | {"file": jsonl})["id"])["result"]
    assert again["methods"] == result["methods"]
    listed = engine.call("faithfulness.list", {"limit": 1})
    assert listed["has_more"] and listed["data"][0]["file"] == jsonl
    assert engine.call("job.list")["data"] == []
    for method in ["job.get", "job.cancel", "job.delete", "job.resume"]:
        assert refused(engine, {"id": job["id"]}, method).status == 404, method
    assert refused(engine, {"id": job["id"]}, "faithfulness.cancel").status == 409
    assert engine.call("faithfulness.delete", {"id": job["id"]})["deleted"]
    for method in ["faithfulness.get", "faithfulness.rows", "faithfulness.delete", "faithfulness.cancel"]:
        assert refused(engine, {"id": job["id"]}, method).status == 404


def test_a_repeated_request_with_a_key_makes_one_job(engine, sets):
    model, ids = sets["gpt2"]
    file = engine.add_file(TEXTS[0])
    before = len(engine.call("faithfulness.list", {"limit": 1000})["data"])
    request = {"model": model, "file": file, "methods": ["alpha"], "idempotency_key": "once"}
    first, second = (engine.call("faithfulness.create", dict(request)) for _ in range(2))
    assert first == second and len(engine.call("faithfulness.list", {"limit": 1000})["data"]) == before + 1
    assert refused(engine, request | {"seed": 1}).code == "idempotency_mismatch"
    assert wait(engine, first["id"])["status"] == "succeeded"
    request = {"model": model, "input": ids, "methods": ["alpha"], "idempotency_key": "an input"}
    assert engine.call("faithfulness.create", dict(request))["methods"] == engine.call("faithfulness.create", dict(request))["methods"]


def test_a_job_that_is_cancelled_ends_and_the_next_one_runs(engine, sets):
    model, _ = sets["additive_windows"]
    file = engine.add_file("\n".join(TEXTS * 50))
    long, short = (engine.call("faithfulness.create", {"model": model, "file": file, "texts": n, "steps": 16})["id"] for n in (800, 1))
    engine.wait(lambda: engine.call("faithfulness.get", {"id": long})["texts"]["done"] > 0)
    assert refused(engine, {"id": file}, "file.delete").code == "file_in_use"
    assert refused(engine, {"id": model}, "model.delete").code == "model_in_use"
    assert refused(engine, {"id": long}, "faithfulness.delete").code == "invalid_job_state"
    assert engine.call("faithfulness.cancel", {"id": long})["status"] == "cancelled"
    assert wait(engine, short)["status"] == "succeeded"
    ended = engine.call("faithfulness.get", {"id": long})
    assert ended["status"] == "cancelled" and ended["result"] is None and 0 < ended["texts"]["done"] < 800
    assert len(texts_of(engine, long)) == ended["texts"]["done"]
    engine.call("faithfulness.delete", {"id": long})
    engine.call("file.delete", {"id": file})


def test_a_page_of_texts_with_many_numbers_is_short(engine, sets):
    model, _ = sets["additive_windows"]
    request = {"model": model, "file": engine.add_file("\n".join(TEXTS[:4])), "grid": 100, "spread": 20, "methods": ["alpha"], "soft": 0}
    job = engine.call("faithfulness.create", request)["id"]
    wait(engine, job)
    page = engine.call("faithfulness.rows", {"id": job, "limit": 1000})
    assert len(page["data"]) == 3 and page["has_more"]
    assert [t["text"] for t in texts_of(engine, job)] == [0, 1, 2, 3]


def test_a_request_that_is_cancelled_ends_and_the_next_one_is_answered(engine, sets):
    model, ids = sets["additive_windows"]
    call = engine.begin("faithfulness.create", {"model": model, "input": ids, "spread": 30, "steps": 512})
    call.cancel()
    with pytest.raises(EngineError) as failed:
        call.result()
    assert failed.value.code == "cancelled"
    assert engine.call("faithfulness.create", {"model": model, "input": ids, "methods": ["alpha"]})["positions"] == 1


def test_a_job_that_is_killed_again_and_again_ends_with_the_same_numbers(own_daemon, tmp_path):
    daemon = own_daemon()
    with daemon.connect() as engine:
        model, _ = upload(engine, tmp_path, "additive_windows")
        file = engine.add_file("\n".join(TEXTS))
        request = {"model": model, "file": file, "spread": 3, "bootstrap": 100}
        whole = wait(engine, engine.call("faithfulness.create", request)["id"])["result"]
        job = engine.call("faithfulness.create", request)["id"]
        for done in (3, 7):
            engine.wait(lambda: engine.call("faithfulness.get", {"id": job})["texts"]["done"] >= done)
            daemon.kill()
            daemon.start()
            engine.close()
            engine = daemon.connect()
            assert engine.call("faithfulness.get", {"id": job})["texts"]["done"] >= done
        ended = wait(engine, job)
        assert ended["status"] == "succeeded" and [t["text"] for t in texts_of(engine, job)] == list(range(16))
        differ = {key for key in whole if whole[key] != ended["result"][key]}
        assert differ <= {"seconds"}
        engine.close()
    assert daemon.stop() == 0


# --- planted keys --------------------------------------------------------------------------

@pytest.mark.slow
@pytest.mark.skipif(SANITIZED, reason="trains a model")
def test_methods_name_the_token_that_the_answer_depends_on(engine):
    """Lines of 12 bytes: the answer is known, and so is the one token that it depends on (tests/bench/planted_keys.py)."""
    draw, length = random.Random(1), 12
    corpus = "".join(f"{text}{key}\n" for text, key, _ in (planted_keys.line(draw, length) for _ in range(20000)))
    settings = {"config": {"hidden_size": 48, "n_heads": 4, "n_layer": 3, "use_local_att": False, "n_positions": length},
                "sequence_length": length, "batch_size": 32, "max_steps": 1200, "learning_rate": 6e-3, "eval_every": 100000}
    job = engine.call("job.create", {"model": "additive", "training_file": engine.add_file(corpus), "seed": 1, "additive": settings})
    model = engine.wait_job(job["id"], seconds=120)["fine_tuned_model"]
    found, lines = {}, []
    while len(lines) < 30:
        text, key, planted = planted_keys.line(draw, length)
        ids = [byte + 3 for byte in text.encode()]
        target = engine.call("explain", {"model": model, "input": ids, "method": "contributions"})["contributions"]["target"]
        if target["token"]["text"] == key:
            lines.append(text)
            for method in METHODS:
                values = numbers(engine, model, ids, method, None)
                found.setdefault(method, []).append(planted_keys.score(values, planted))
    first, pair, five = ({m: sum(s[i] for s in scores) / 30 for m, scores in found.items()} for i in range(3))
    assert first["contributions"] >= 0.8 and five["contributions"] >= 0.95, first
    assert first["contributions"] > first["alpha"] and pair["contributions"] > pair["alpha"]
    # The answer falls most without the tokens that name the key.
    evaluation = wait(engine, engine.call("faithfulness.create", {"model": model, "file": engine.add_file("\n".join(lines)), "fractions": [0.1]})["id"])["result"]
    by_method = {m["method"]: by_name(evaluation, [n["mean"] for n in m["numbers"]]) for m in evaluation["methods"]}
    for baseline in ["random", "recency"]:
        assert by_method["contributions"]["comprehensiveness", 0.1] > by_method[baseline]["comprehensiveness", 0.1] + 0.5
        assert by_method["contributions"]["deletion_auc", 0] < by_method[baseline]["deletion_auc", 0]
