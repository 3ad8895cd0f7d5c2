"""Explanations as users ask for them: over HTTP, as a page, as a picture, at a shell."""

import csv
import json
import math
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import numpy
import pytest
import safetensors.numpy

from conftest import BIN, SMALL
from explanation_samples import data_of_page

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "reference"))
import folders

TEXT = "45 bottles of beer on the wall"
PARTS = ("tokens", "reader", "positions", "biases", "rounding")


def additive(service, *args, **kw):
    return subprocess.run([BIN / "additive", "--url", service.url, *map(str, args)], capture_output=True, text=True, timeout=60, **kw)


@pytest.fixture(scope="module")
def classifier(service, tmp_path_factory):
    folder = folders.write(tmp_path_factory.mktemp("made") / "classifier", folders.encoder_config(), folders.encoder_weights())
    assert additive(service, "models", "import", "classifier", folder).returncode == 0
    return "classifier"


def explain(service, model, **more):
    return service.ok("POST", "/v1/explain", {"model": model, "input": TEXT, **more})


def check(parts, tokens):
    assert len(parts["tokens"]) == len(parts["positions"]) == len(parts["biases"]) == tokens
    assert sum(parts["sums"][k] for k in PARTS) == pytest.approx(parts["score"], abs=1e-5)
    assert abs(parts["sums"]["rounding"]) < 1e-4
    assert sum(parts["tokens"]) == pytest.approx(parts["sums"]["tokens"] + parts["sums"]["reader"], abs=1e-5)


def test_contributions_and_weights_are_both_there_unless_one_is_asked_for(service, model):
    both = explain(service, model)
    check(both["contributions"], len(TEXT))
    assert both["contributions"]["target"]["kind"] == "contrast" and both["contributions"]["share"] == 0.5
    assert both["weights"]
    alpha, parts = explain(service, model, method="alpha"), explain(service, model, method="contributions")
    assert "contributions" not in alpha and alpha["weights"] == both["weights"]
    assert parts["weights"] == [] and parts["aggregate"] is None and parts["contributions"] == both["contributions"]


def test_the_target_is_what_follows_unless_another_is_given(service, model):
    followed = explain(service, model, position=3)["contributions"]["target"]
    assert followed["token"]["text"] == TEXT[4]
    likeliest = explain(service, model)["contributions"]["target"]
    other = explain(service, model, target={"kind": "difference", "token": "x"})["contributions"]
    check(other, len(TEXT))
    assert other["target"]["token"]["text"] == "x" and other["target"]["other"] == likeliest["token"]
    assert other["score"] == pytest.approx(other["target"]["logit"] - likeliest["logit"], abs=1e-5)
    plain = explain(service, model, target={"kind": "logit", "token": likeliest["token"]["id"]})["contributions"]
    assert plain["score"] == pytest.approx(plain["target"]["logit"]) == pytest.approx(likeliest["logit"], abs=1e-5)


def test_a_nearly_certain_prediction_is_compared_with_its_strongest_rival(service):
    model = service.wait_job(service.job(steps=80, text="ab" * 2000)["id"])["fine_tuned_model"]
    for text, certain in (("ababab", True), ("zz", False)):
        parts = explain(service, model, method="contributions", input=text)["contributions"]
        target = parts["target"]
        assert (target["log_probability"] >= math.log(0.9)) == certain
        assert target["automatic"] and target["kind"] == ("difference" if certain else "contrast")
        assert (target["other"] is not None) == certain
        out = additive(service, "explain", "--model", model, text).stdout
        assert (" and not '" in out and "strongest rival" in " ".join(out.split())) == certain
        asked = explain(service, model, input=text, target={"kind": "contrast"})["contributions"]
        assert not asked["target"]["automatic"] and asked["target"]["kind"] == "contrast"
        assert abs(asked["score"]) < abs(parts["score"]) / 2 if certain else asked["score"] == parts["score"]


@pytest.mark.parametrize("params,param", [
    ({"target": {"token": "two"}}, "target.token"), ({"target": {"token": 10**6}}, "target.token"), ({"target": {"token": ""}}, "target.token"),
    ({"target": {"token": -1}}, "target.token"), ({"target": {"kind": "why"}}, "target.kind"), ({"target": {"what": 1}}, "target.what"),
    ({"target": "x"}, "target"), ({"target": {"other": "x"}}, "target.other"), ({"target": {"kind": "difference", "other": "xy"}}, "target.other"),
    ({"target": {"kind": "difference", "token": "x", "other": "x"}}, "target.other"), ({"target": {"kind": "logit", "other": "x"}}, "target.other"),
    ({"share": 1.5}, "share"), ({"share": -0.1}, "share"), ({"share": "half"}, "share"), ({"method": "magic"}, "method"),
    ({"method": "contributions", "position": "all"}, "position"), ({"span": [2, 4], "position": "all"}, "position"), ({"position": 30}, "position")])
def test_what_is_wrong_is_named(service, model, params, param):
    status, answer, _ = service.request("POST", "/v1/explain", {"model": model, "input": TEXT, **params})
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_all_positions_have_weights_and_the_size_of_their_windows(service, model):
    out = explain(service, model, position="all")
    assert "contributions" not in out
    sizes = SMALL["config"]["window_sizes"]
    assert all(row["window_size"] == min(sizes[row["layer"]], len(TEXT)) for row in out["weights"])


def test_a_session_is_explained_as_its_text_is(service, model):
    expected = explain(service, model)
    s = service.ok("POST", "/v1/sessions", {"model": model, "prompt": TEXT, "explain": True})["id"]
    for out in (service.ok("POST", "/v1/explain", {"session": s}), service.ok("GET", f"/v1/sessions/{s}/alpha")):
        check(out["contributions"], len(TEXT))
        assert out["contributions"]["target"]["token"] == expected["contributions"]["target"]["token"]
        assert out["contributions"]["tokens"] == pytest.approx(expected["contributions"]["tokens"], abs=1e-5)
        assert out["weights"]
    why = service.ok("POST", "/v1/explain", {"session": s, "method": "contributions", "target": {"kind": "logit", "token": "x"}})
    assert why["contributions"]["target"]["token"]["text"] == "x"
    deaf = service.ok("POST", "/v1/sessions", {"model": model, "prompt": TEXT})["id"]
    assert service.request("POST", "/v1/explain", {"session": deaf})[0] == 409


def test_a_class_is_explained_by_name_or_by_number(service, classifier):
    out = explain(service, classifier)
    check(out["contributions"], len(out["tokens"]))
    label = service.ok("POST", "/v1/classify", {"model": classifier, "input": TEXT})["data"][0]["label"]
    assert out["contributions"]["target"]["token"]["label"] == label
    why = {"kind": "difference", "token": "perhaps", "other": 0}
    found = explain(service, classifier, target=why)["contributions"]
    assert found["target"]["token"] == {"id": 2, "label": "perhaps"} and found["target"]["other"] == {"id": 0, "label": "yes"}
    for wrong in ("maybe", 3):
        status, answer, _ = service.request("POST", "/v1/explain", {"model": classifier, "input": TEXT, "target": {"token": wrong}})
        assert (status, answer["error"]["param"]) == (400, "target.token")


def page_data(service, body, path="/v1/explain"):
    """The answer that is in the page of a request."""
    status, page, head = service.request("POST", path, body, headers={"Accept": "text/html"})
    assert status == 200, page
    return data_of_page(page, head["Content-Security-Policy"])


def test_the_page_holds_the_answer_and_the_picture_shows_contributions_first(service, model):
    for method in (None, "contributions", "alpha"):
        body = {"model": model, "input": TEXT, **({"method": method} if method else {})}
        assert page_data(service, body) == service.ok("POST", "/v1/explain", body)
        picture = service.request("POST", "/v1/explain", body, headers={"Accept": "image/svg+xml"})[1]
        title = xml.etree.ElementTree.fromstring(picture).find("{http://www.w3.org/2000/svg}title").text
        assert title.startswith("weights α" if method == "alpha" else "why “")


@pytest.mark.parametrize("more", [{}, {"top": 3}, {"method": "gradient_x_input", "top": 3}])
def test_the_last_prediction_of_a_span_is_drawn(service, model, more):
    body = {"model": model, "input": TEXT, "span": [2, 9], **more}
    assert page_data(service, body)["span"] == service.ok("POST", "/v1/explain", body)["span"]
    picture = service.request("POST", "/v1/explain", body, headers={"Accept": "image/svg+xml"})[1]
    assert xml.etree.ElementTree.fromstring(picture).find("{http://www.w3.org/2000/svg}title").text.startswith(f"why “{TEXT[10]}”")


def listed(out):
    return [line for line in out.splitlines() if line[:8].strip() and line[:8].strip().lstrip("+-")[0].isdigit()]


def test_the_shell_shows_contributions_first_with_signs_and_sums(service, model):
    parts = explain(service, model)["contributions"]
    out = additive(service, "explain", "--model", model, "--top", 4, TEXT)
    assert (out.returncode, out.stderr) == (0, "")
    lines = out.stdout.splitlines()
    assert lines[0].startswith(f"why '{parts['target']['token']['text']}', against all other options (logit ")
    assert lines[2].split() == ["logits", "position"] and len(listed(out.stdout)) == 4
    order = sorted(range(len(TEXT) - 1), key=lambda i: -abs(parts["tokens"][i]))
    for line, i in zip(listed(out.stdout), order):
        value, position, bar = line.split()[:3]
        assert int(position) == i and float(value) == pytest.approx(parts["tokens"][i], abs=1e-4)
        assert value[0] == ("-" if parts["tokens"][i] < 0 else "+") and set(bar) <= {value[0], "'"}
    assert lines[-1].startswith("score ") and f"reader '{TEXT[-1]}'" in lines[-1] and "weight" not in out.stdout
    assert json.loads(additive(service, "explain", "--model", model, "--json", TEXT).stdout)["contributions"] == parts


def test_the_shell_asks_why_one_and_not_the_other(service, model, classifier):
    out = additive(service, "explain", "--model", model, "--target", "b", "--against", "w", TEXT)
    assert out.returncode == 0 and out.stdout.startswith("why 'b' and not 'w' (logit ")
    out = additive(service, "explain", "--model", classifier, "--target", "no", "--kind", "logit", TEXT)
    assert out.returncode == 0 and out.stdout.startswith("the logit of 'no' (logit ")
    out = additive(service, "explain", "--model", model, "--kind", "logit", "--against", "w", TEXT)
    assert out.returncode == 1 and "--against" in out.stderr


def test_the_shell_shows_weights_where_they_are_asked_for(service, model):
    alpha = additive(service, "explain", "--model", model, "--method", "alpha", "--top", 3, TEXT)
    assert alpha.returncode == 0 and alpha.stdout.splitlines()[0].split() == ["weight", "position"] and "logits" not in alpha.stdout
    both = additive(service, "explain", "--model", model, "--layers", "1", "--top", 3, TEXT)
    assert both.returncode == 0 and both.stdout.index("logits  position") < both.stdout.index("weight  position")
    parts = additive(service, "explain", "--model", model, "--method", "contributions", "--layers", "1", TEXT)
    assert parts.returncode == 0 and "weight" not in parts.stdout


@pytest.mark.parametrize("more", [{}, {"top": 3}, {"method": "gradient_x_input", "top": 3}])
def test_the_shell_explains_every_prediction_of_a_span(service, model, more):
    rows = explain(service, model, span=[7, 9], **more)["span"]["rows"]
    options = [f"--{name}={value}" for name, value in more.items()]
    out = additive(service, "explain", "--model", model, "--span", "7,9", *options, TEXT)
    assert (out.returncode, out.stderr) == (0, "")
    heads = [block.splitlines() for block in re.split(r"^position ", out.stdout, flags=re.M)[1:]]
    assert len(heads) == len(rows) == 3
    for lines, row in zip(heads, rows):
        at = row["position"]
        assert lines[0] == f"{at} '{TEXT[at]}':" and lines[1].startswith(f"why '{TEXT[at + 1]}', against all other options (")
        numbers = dict(row["top"]) if "top" in row else dict(enumerate(row["tokens"]))
        shown = {int(line.split()[1]): float(line.split()[0]) for line in listed("\n".join(lines[2:]))}
        assert shown and all(i < at and x != 0 and x == pytest.approx(numbers[i], abs=1e-4) for i, x in shown.items())
        assert len(shown) <= more.get("top", 10) and lines[-1 if lines[-1] else -2].startswith(f"score {row['score']:+.4g}")
    answer = json.loads(additive(service, "explain", "--model", model, "--span", "7,9", *options, "--json", TEXT).stdout)
    assert answer["span"]["rows"] == rows
    out = additive(service, "explain", "--model", model, "--span", "7,90", TEXT)
    assert out.returncode == 1 and "span" in out.stderr


@pytest.mark.parametrize("method", ["gradient_x_input", "attention_x_gradient", "integrated_gradients", "leave_one_out"])
def test_other_methods_are_shown_with_their_signs(service, model, classifier, method):
    for of in (model, classifier):
        numbers = explain(service, of, method=method)["attribution"]
        out = additive(service, "explain", "--model", of, "--method", method, "--top", 1, TEXT)
        assert out.returncode == 0 and out.stdout.startswith(f"why '{list(numbers['target']['token'].values())[1]}', against")
        before = numbers["tokens"] if of == classifier else numbers["tokens"][:-1]
        largest = max(range(len(before)), key=lambda i: abs(before[i]))
        (row,) = listed(out.stdout)
        assert int(row.split()[1]) == largest and float(row.split()[0]) == pytest.approx(before[largest], abs=1e-4)
        assert ("reader '" in out.stdout) == (of == model) and ("completeness" in out.stdout) == (method == "integrated_gradients")
        assert page_data(service, {"model": of, "input": TEXT, "method": method})["attribution"] == numbers


def test_two_texts_are_compared_token_by_token(service, model, tmp_path):
    other = TEXT.replace("45", "46")
    target = {"kind": "logit", "token": "b"}
    first, second = (explain(service, model, input=text, target=target)["contributions"] for text in (TEXT, other))
    both = explain(service, model, target=target, compare={"input": other})
    assert both["contributions"] == first and both["compare"]["contributions"] == second
    expected = {i: second["tokens"][i] - first["tokens"][i] for i in range(len(TEXT)) if i != 1}
    pairs = both["compare"]["same_tokens"]
    assert {i: d for i, j, d in pairs if i == j} == {i: pytest.approx(d, abs=1e-5) for i, d in expected.items()} and len(pairs) == len(expected)
    page, picture = tmp_path / "two.html", tmp_path / "two.svg"
    out = additive(service, "explain", "--model", model, "--kind", "logit", "--target", "b", "--compare", other, "--top", 3, "--html", page, "--svg", picture, TEXT)
    assert (out.returncode, out.stderr) == (0, "")
    assert out.stdout.startswith(f"First ({model}): the logit of 'b'") and f"\nSecond ({model}): the logit of 'b'" in out.stdout
    shown = listed(out.stdout[out.stdout.index("The second minus the first") :])
    order = sorted((i for i in expected if i != len(TEXT) - 1), key=lambda i: -abs(expected[i]))[:3]
    assert [(int(line.split()[1]), float(line.split()[0])) for line in shown] == [(i, pytest.approx(expected[i], abs=1e-4)) for i in order]
    assert data_of_page(page.read_text())["compare"]["same_tokens"] == pairs
    assert xml.etree.ElementTree.parse(picture).getroot().tag.endswith("}svg")


@pytest.mark.parametrize("accept", ["application/json", "text/html", "text/csv"])
def test_an_absent_comparison_may_be_null(service, model, accept):
    body = {"model": model, "input": TEXT, "target": {"kind": "logit", "token": None, "x": None}, "session": None, "source": None}
    plain = service.request("POST", "/v1/explain", {"model": model, "input": TEXT, "target": {"kind": "logit"}}, headers={"Accept": accept})
    status, answer, _ = service.request("POST", "/v1/explain", {**body, "compare": None}, headers={"Accept": accept})
    assert status == plain[0] == 200
    if accept != "text/html":  # a page has a random nonce
        assert answer == plain[1]


@pytest.mark.parametrize("long", ["input", "compare"])
def test_a_long_comparison_is_refused_and_not_half_answered(service, model, long):
    body = {"model": model, "input": TEXT, "compare": {"input": TEXT}}
    (body if long == "input" else body["compare"])["input"] = "x" * 70000
    status, answer, _ = service.request("POST", "/v1/explain", body)
    assert (status, answer["error"]["param"]) == (413, "compare")


def test_two_models_and_two_targets_are_compared(service, model, classifier):
    both = explain(service, model, compare={"model": classifier})
    assert both["compare"]["model"] == classifier and both["compare"]["contributions"]["target"]["token"]["label"]
    asked = explain(service, model, target={"token": "b"}, compare={"target": {"token": "w"}})
    assert [x["contributions"]["target"]["token"]["text"] for x in (asked, asked["compare"])] == ["b", "w"]
    assert [i for i, j, _ in asked["compare"]["same_tokens"] if i == j] == list(range(len(TEXT)))
    weights = additive(service, "explain", "--model", model, "--method", "alpha", "--compare", TEXT[1:], TEXT)
    assert weights.returncode == 0 and "  weight  position\n" in weights.stdout.split("The second minus")[1] and "logits" not in weights.stdout
    out = additive(service, "explain", "--model", model, "--compare-model", "none", TEXT)
    assert out.returncode == 1 and "--compare-model" in out.stderr
    s = service.ok("POST", "/v1/sessions", {"model": model, "prompt": TEXT, "explain": True})["id"]
    mixed = service.ok("POST", "/v1/explain", {"session": s, "compare": {"model": model, "input": TEXT}})
    assert max(abs(d) for _, _, d in mixed["compare"]["same_tokens"]) < 1e-4


def test_the_shell_writes_the_page_and_the_picture(service, model, tmp_path):
    page, picture = tmp_path / "why.html", tmp_path / "why.svg"
    out = additive(service, "explain", "--model", model, "--html", page, "--svg", picture, "<b>&amp; 12 bottles")
    assert out.returncode == 0
    assert "".join(token["text"] for token in data_of_page(page.read_text())["tokens"]) == "<b>&amp; 12 bottles"
    assert xml.etree.ElementTree.parse(picture).getroot().tag.endswith("}svg")
    assert additive(service, "explain", "--model", model, "--svg", tmp_path / "none" / "x.svg", TEXT).returncode == 1


def test_the_shell_writes_the_numbers_in_any_format(service, model, tmp_path):
    parts = explain(service, model)["contributions"]["tokens"]
    ask = ["explain", "--model", model, TEXT, "--format"]
    for name in ("csv", "safetensors", "json"):
        assert additive(service, *ask, name, "-o", tmp_path / name).returncode == 0
    lines = list(csv.DictReader((tmp_path / "csv").open(newline="")))
    assert [float(line["value"]) for line in lines if line["path"] == "contributions.tokens"] == parts
    expected = numpy.float32(parts).tolist()
    assert safetensors.numpy.load_file(tmp_path / "safetensors")["contributions.tokens"].tolist() == expected
    assert json.loads((tmp_path / "json").read_text())["contributions"]["tokens"] == parts
    assert additive(service, *ask, "csv").stdout == (tmp_path / "csv").read_text()


def test_the_shell_writes_a_span_page_by_page(service, model, tmp_path):
    ask = ["explain", "--model", model, TEXT, "--span", "2,7", "--method", "contributions"]
    whole = additive(service, *ask, "--format", "csv").stdout.splitlines()
    pages = [additive(service, *ask, "--format", "csv", "--after", after, "--limit", 3).stdout.splitlines() for after in (2, 5)]
    assert [line.split(",")[0] for line in whole].count("span.rows.score") == 6
    in_rows = lambda lines: [(line.split(",")[:6]) for line in lines[1:] if line.startswith("span.rows.")]
    first = [row for row in in_rows(whole) if int(row[1]) > 2]
    assert in_rows(pages[0]) + in_rows(pages[1]) == first
    shown = additive(service, *ask, "--limit", 2)
    assert re.findall(r"^position (\d+)", shown.stdout, re.M) == ["2", "3"] and "--after 3" in shown.stderr
    rest = additive(service, *ask, "--after", 3)
    assert rest.stderr == "" and re.findall(r"^position (\d+)", rest.stdout, re.M) == ["4", "5", "6", "7"]


def test_the_shell_leaves_no_file_of_a_refused_explanation(service, model, tmp_path):
    for wrong in (["--format", "xml"], ["-o", tmp_path / "x"]):
        assert additive(service, "explain", "--model", model, *wrong, TEXT).returncode == 2
    refused = additive(service, "explain", "--model", model, "--layers", "99", "--format", "csv", "-o", tmp_path / "x", TEXT)
    assert refused.returncode == 1 and "layers" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_shell_streams_the_weights_of_chosen_layers(service, model):
    out = additive(service, "generate", "--model", model, "--alpha", 3, "--layers", "1", "--rounds", "key", "--aggregate", "rollout",
                   "--max-tokens", 4, "--temperature", 0, "--json", TEXT)
    assert out.returncode == 0, out.stderr
    steps = [json.loads(line)["choices"][0]["alpha"] for line in out.stdout.splitlines() if '"alpha"' in line]
    assert len(steps) == 4 and all(0 < len(step) <= 3 for step in steps)
    wrong = additive(service, "generate", "--model", model, "--alpha", 3, "--layers", "9", TEXT)
    assert wrong.returncode == 1 and "--layers" in wrong.stderr


# --- how faithful ------------------------------------------------------------------------------------------------------------

FEW = ["--methods", "contributions,alpha", "--bootstrap", 20]


def test_the_shell_measures_how_faithful_explanations_are(service, model, tmp_path):
    page = tmp_path / "faithful.html"
    out = additive(service, "explain-evaluate", "--model", model, *FEW, "--spread", 2, "--html", page, TEXT)
    assert (out.returncode, out.stderr) == (0, "")
    found = data_of_page(page.read_text())
    body = {"model": model, "input": TEXT, "methods": ["contributions", "alpha"], "bootstrap": 20, "spread": 2}
    again = service.ok("POST", "/v1/explain/evaluate", body)
    assert again["methods"] == found["methods"] and again["metrics"] == found["metrics"]
    head, *rows = out.stdout.split("\n\n")[0].splitlines()
    assert head.split() == ["METRIC", "METHOD", "MEAN", "LESS", "RECENCY", "THAN", "RECENCY"]
    methods = [m["method"] for m in found["methods"]]
    assert methods == ["contributions", "alpha", "random", "recency"] and len(rows) == len(methods) * len(found["metrics"])
    for k, metric in enumerate(found["metrics"]):
        assert rows[len(methods) * k].startswith(metric["metric"])
        for row, method in zip(rows[len(methods) * k :], found["methods"]):
            mean, interval = method["numbers"][k]["mean"], method["numbers"][k]["interval"]
            assert f" {method['method']} " in row
            assert (" - " if mean is None else f" {mean:+.4g} [" if interval else f" {mean:+.4g} ") in row
    answer = json.loads(additive(service, "explain-evaluate", "--model", model, *FEW, "--spread", 2, "--json", TEXT).stdout)
    assert answer["methods"] == found["methods"]


def test_the_shell_measures_a_file_as_a_job_with_its_progress(service, model, tmp_path):
    texts, page = tmp_path / "texts.txt", tmp_path / "job.html"
    texts.write_text("".join(f"{n} bottles of beer\n" for n in range(40, 44)))
    out = additive(service, "explain-evaluate", "--model", model, *FEW, "--file", texts, "--html", page)
    assert out.returncode == 0 and out.stdout.startswith("METRIC")
    progress = out.stderr.splitlines()
    assert progress[-1].startswith("4/4 [#") and "100%" in progress[-1]
    job = data_of_page(page.read_text())
    assert job["result"]["texts"] == 4 and job["texts"] == {"total": 4, "done": 4}
    assert job["id"] in additive(service, "explain-evaluations").stdout
    watched = additive(service, "explain-evaluations", "watch", job["id"], "--json")
    assert (watched.returncode, json.loads(watched.stdout)["result"], watched.stderr) == (0, job["result"], "")
    by_id = additive(service, "explain-evaluate", "--model", model, *FEW, "--file", job["file"], "--detach")
    assert by_id.returncode == 0 and additive(service, "explain-evaluations", "watch", by_id.stdout.strip()).returncode == 0
    for id in (job["id"], by_id.stdout.strip()):
        assert additive(service, "explain-evaluations", "delete", id).returncode == 0
    assert additive(service, "explain-evaluations", "watch", job["id"]).returncode == 1


@pytest.mark.parametrize("arguments,status,said", [(["x"], 2, "--model"), (["--model", "m", "--file", "f", "x"], 2, "not both"), (["--model", "m", "--detach", "x"], 2, "--file"),
                                                   (["--model", "none", "--html", "/nowhere/x.html", "xy"], 1, "none"), (["--model", "none", "--file", "file-0"], 1, "")])
def test_the_shell_says_what_an_evaluation_lacks(service, arguments, status, said):
    out = additive(service, "explain-evaluate", *arguments)
    assert out.returncode == status and said in out.stderr and out.stdout == ""


def test_a_text_whose_evaluation_is_refused_does_not_stay(service, tmp_path):
    texts = tmp_path / "refused.txt"
    texts.write_text("some text\n")
    assert additive(service, "explain-evaluate", "--model", "none", "--file", texts).returncode == 1
    assert "refused.txt" not in additive(service, "files", "list").stdout
