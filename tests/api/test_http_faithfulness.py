"""Evaluations of explanations: numbers or a page, as the client asks; the page has charts and tables of everything, and trusts nothing."""

import html.parser
import json
import math
import re
import xml.etree.ElementTree

import pytest

from http_support import engine, front, start

METRICS = [*({"metric": name, "fraction": f, "better": better} for name, better in (("comprehensiveness", "higher"), ("sufficiency", "lower")) for f in (0.05, 0.2)),
           {"metric": "deletion_auc", "better": "lower"}, {"metric": "kendall_tau", "better": "higher"}, {"metric": "far_drop", "better": "higher"}]
METHODS = ["contributions", "alpha", "random", "recency"]


def estimate(mean):
    return {"mean": mean, "interval": [mean - 0.25, mean + 0.25]}


def numbers(i, k):
    """Contributions are better than recency by every metric, alpha as good, random worse."""
    side = -1 if METRICS[k]["better"] == "lower" else 1
    mean = side * (1.5, 0.5, -0.5, 0.5)[i]
    baseline = i >= 2
    return {**estimate(mean), "count": 12, "reverse": None if baseline else estimate(-mean), "less_random": None if i == 2 else estimate(mean + side * 0.5),
            "less_recency": None if i == 3 else estimate(mean - side * 0.5)}


EVALUATION = {
    "object": "explain.evaluation", "model": "m<1>", "texts": 3, "positions": 12, "resampled": "texts",
    "settings": {"methods": METHODS[:2], "seed": 7, "confidence": 0.95, "replacement": "</script>"}, "metrics": METRICS,
    "methods": [{"method": name, "baseline": i >= 2, "numbers": [numbers(i, k) for k in range(len(METRICS))],
                 "curve": {"fractions": [0, 0.5, 1], "deletion": [-0.1, -1 - i, -4], "insertion": [-4, -1.5, -0.1]}} for i, name in enumerate(METHODS)],
    "log_probability": -0.1, "empty": -4.0, "seconds": 1.5, "readings": 321, "tokens_read": 12345}
JOB = {"id": "eval-1", "object": "explain.evaluation.job", "created_at": 1, "finished_at": None, "status": "running", "model": "m<1>", "file": "file-1",
       "texts": {"total": 50, "done": 12}, "settings": {"seed": 7}, "error": None, "result": None}


class Tables(html.parser.HTMLParser):
    """The tables of a page by their headings: rows of the texts of cells. Every element must end where it should."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.tags, self.heading = [], {}, [], ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag in ("h2", "h3"):
            self.heading = ""
        if tag == "table":
            self.rows = self.tables.setdefault(self.heading, [])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"h2", "h3"} & set(self.open):
            self.heading += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def ask(front, engine, answer, path="/v1/explain/evaluate", accept="text/html"):
    for method in ("faithfulness.create", "faithfulness.get"):

        @engine.on(method)
        async def _(call):
            call.result(answer)

    headers = {"Accept": accept}
    return front.post(path, {"model": "m", "input": "x"}, headers=headers) if path.endswith("evaluate") else front.get(path, headers=headers)


@pytest.mark.parametrize("path", ["/v1/explain/evaluate", "/v1/explain/evaluations/e"])
def test_the_client_chooses_between_numbers_and_page(front, engine, path):
    numbers = ask(front, engine, EVALUATION, path, "application/json")
    assert (numbers.status, numbers.headers["Content-Type"], numbers.headers["Vary"], numbers.json) == (200, "application/json", "Accept", EVALUATION)
    page = ask(front, engine, EVALUATION, path)
    assert (page.status, page.headers["Content-Type"], page.headers["Vary"]) == (200, "text/html; charset=utf-8", "Accept")
    assert page.headers["Content-Security-Policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert ask(front, engine, EVALUATION, path, "image/png").status == 406


def test_the_page_needs_nothing_else_and_holds_the_numbers_themselves(front, engine):
    text = ask(front, engine, EVALUATION).body.decode()
    page = Tables(text)
    assert "{{" not in text and not re.search(r"url\(|@import|https?:", text)
    assert not [name for _, attributes in page.tags for name in attributes if name in ("src", "href", "action") or name.startswith("on")]
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.S)
    assert [a for a, _ in scripts] == [' type="application/json" id="data"'] and json.loads(scripts[0][1]) == EVALUATION
    assert page.tables["Settings"] == [["methods", '["contributions","alpha"]'], ["seed", "7"], ["confidence", "0.95"], ["replacement", '"</script>"']]
    assert "12 predictions of 3 texts; intervals of 95 % by a bootstrap over texts." in text and "321 readings of 12345 tokens" in text


def test_the_overview_says_which_methods_are_better_than_recency(front, engine):
    head, *rows = Tables(ask(front, engine, EVALUATION).body.decode()).tables["Means of all methods"]
    assert head[1:] == METHODS and len(rows) == len(METRICS)
    assert [row[0] for row in rows[:3]] == ["Comprehensiveness, 5 %", "Comprehensiveness, 20 %", "Sufficiency, 5 %"]
    for row, metric in zip(rows, METRICS):
        signs = [cell.split()[1:] for cell in row[1:]]
        assert signs == [["▲"], [], ["▼"], []]
        assert float(row[1].split()[0]) == (-1.5 if metric["better"] == "lower" else 1.5)


def test_every_metric_has_a_table_and_a_chart_of_all_methods(front, engine):
    text = ask(front, engine, EVALUATION).body.decode()
    tables = Tables(text).tables
    name = "Sufficiency, 20 % (nats; lower is better)"
    assert tables[name][1:] == [["contributions", "-1.5 [-1.75, -1.25]", "+1.5 [+1.25, +1.75]", "-2 [-2.25, -1.75]", "-1 [-1.25, -0.75]", "12"],
                                ["alpha", "-0.5 [-0.75, -0.25]", "+0.5 [+0.25, +0.75]", "-1 [-1.25, -0.75]", "+0 [-0.25, +0.25]", "12"],
                                ["random", "+0.5 [+0.25, +0.75]", "–", "–", "+1 [+0.75, +1.25]", "12"],
                                ["recency", "-0.5 [-0.75, -0.25]", "–", "-1 [-1.25, -0.75]", "–", "12"]]
    charts = [xml.etree.ElementTree.fromstring(chart) for chart in re.findall(r"<svg.*?</svg>", text, re.S)]
    assert [chart.find("title").text for chart in charts][:3] == ["Deletion", "Insertion", "Comprehensiveness, 5 %"] and len(charts) == 2 + len(METRICS)
    bars = charts[2]
    widths = {r.find("title").text.split(":")[0]: (float(r.get("x")), float(r.get("width")), r.get("class")) for r in bars.iter("rect")}
    zero = widths["contributions"][0]
    assert widths["contributions"][1] == pytest.approx(3 * widths["alpha"][1], abs=0.3) and widths["recency"][2] == "pale"
    assert widths["random"][0] + widths["random"][1] == pytest.approx(zero, abs=0.3)  # negative bars end at 0
    assert len([p for p in bars.iter("path") if p.get("class") == "error"]) == 3 * len(METHODS) and len(list(bars.iter("circle"))) == 2


def test_curves_go_through_their_points(front, engine):
    chart = xml.etree.ElementTree.fromstring(re.search(r"<svg.*?</svg>", ask(front, engine, EVALUATION).body.decode(), re.S)[0])
    curves = {p.find("title").text: [tuple(map(float, xy.split())) for xy in re.findall(r"[ML]([\d.]+ [\d.]+)", p.get("d"))]
              for p in chart.iter("path") if p.find("title") is not None}
    assert list(curves) == METHODS
    (x0, top), (x1, middle), (x2, bottom) = curves["contributions"]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and (middle - top) / (bottom - top) == pytest.approx(0.9 / 3.9, abs=0.01)
    assert [points[1][1] for points in curves.values()] == sorted(points[1][1] for points in curves.values())  # lower is further down
    strokes = [(p.get("stroke"), p.get("stroke-dasharray")) for p in chart.iter("path") if p.find("title") is not None]
    assert len(set(strokes)) == len(METHODS)


@pytest.mark.parametrize("state,refreshes", [({"status": "queued", "texts": {"total": None, "done": 0}}, True), ({}, True),
                                             ({"status": "failed", "error": {"code": "x", "message": "no <b> file"}}, False), ({"status": "succeeded", "result": EVALUATION}, False)])
def test_a_job_says_how_far_it_is_until_it_has_a_result(front, engine, state, refreshes):
    job = {**JOB, **state}
    text = ask(front, engine, job, "/v1/explain/evaluations/eval-1").body.decode()
    page = Tables(text)
    said = re.search(r'<p id="job">(.*?)</p>', text)[1]
    assert job["status"] in said and (f"12 of 50 texts" in said) == (job["texts"]["total"] is not None)
    assert ('http-equiv="refresh"' in text) == refreshes and ("no &lt;b&gt; file" in said) == (job["status"] == "failed")
    assert ("Means of all methods" in page.tables) == (job["result"] is not None) and page.tables["Settings"]


ODD = [1e308, -1e308, 1e30, 0, None, "x", [], {}, True, 5e-324]


@pytest.mark.parametrize("answer", [{}, {"methods": 7, "metrics": "x"}, {"status": 7, "texts": [], "result": {"metrics": [1, None, {}], "methods": [None, {}, {"method": 3, "numbers": [7]}]}},
                                    *({**EVALUATION, "positions": x, "metrics": [{"metric": "<b>", "fraction": x, "better": x}],
                                       "methods": [{"method": "</svg><b>", "baseline": x, "numbers": [{"mean": x, "interval": [x, x], "reverse": {"mean": x}, "less_recency": {"interval": [x]}}],
                                                    "curve": {"fractions": [0, x, 1], "deletion": [x, x, x], "insertion": x}}] * 20} for x in ODD)], ids=range(13))
def test_a_page_of_anything_is_well_formed(front, engine, answer):
    text = ask(front, engine, answer).body.decode()
    Tables(text)
    assert "<b>" not in text
    charts = [xml.etree.ElementTree.fromstring(chart) for chart in re.findall(r"<svg.*?</svg>", text, re.S)]
    for element in (e for chart in charts for e in chart.iter()):
        for name in ("x", "y", "width", "cx", "cy", "d"):
            for number in re.findall(r"[^\sMLhv]+", element.get(name, "")):
                assert math.isfinite(float(number)) and abs(float(number)) < 1e4, (name, element.get(name))


def test_an_answer_that_is_no_object_makes_a_500_and_an_error_is_json(front, engine):
    assert ask(front, engine, [1]).status == 500

    @engine.on("faithfulness.create")
    async def _(call):
        call.error(400, "invalid_value", "no such method", param="methods")

    answer = front.post("/v1/explain/evaluate", {"model": "m", "input": "x"}, headers={"Accept": "text/html"})
    assert (answer.status, answer.error["param"]) == (400, "methods")
