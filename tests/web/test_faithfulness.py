"""The drawing of an evaluation of explanations, from the answer of a scripted engine."""

import re

import pytest

from web_support import browser, number, open_answer, open_page
from explanation_samples import EVALUATION, JOB, METHODS, METRICS
from http_support import engine, front, start

pytestmark = pytest.mark.slow


@pytest.fixture
def draw(open_page, front, engine):
    """draw(answer): the page that the front end answers for an evaluation."""

    def ask(answer, **more):
        @engine.on("faithfulness.create")
        async def _(call):
            call.result(answer)

        return open_answer(open_page, front, front.post("/v1/explain/evaluate", {"model": "m", "input": "x"}, headers={"Accept": "text/html"}), **more)

    return ask


def rows(locator):
    return locator.evaluate("node => [...node.rows].map(row => [...row.cells].map(cell => cell.textContent))")


def attributes(locator, *names):
    return locator.evaluate_all("(nodes, names) => nodes.map(node => names.map(name => node.getAttribute(name)))", list(names))


def test_the_overview_says_which_methods_are_better_than_recency(draw):
    page = draw(EVALUATION)
    head, *lines = rows(page.locator("#overview"))
    assert head[1:] == METHODS and len(lines) == len(METRICS)
    assert [line[0] for line in lines[:3]] == ["Comprehensiveness, 5.00 %", "Comprehensiveness, 20.0 %", "Sufficiency, 5.00 %"]
    for line, metric in zip(lines, METRICS):
        assert [cell.split()[1:] for cell in line[1:]] == [["▲"], [], ["▼"], []]
        assert float(line[1].split()[0]) == (-1.5 if metric["better"] == "lower" else 1.5)
    said = page.locator("main").text_content()
    assert "12 predictions of 3 texts; intervals of 95.0 % by a bootstrap over texts." in said and "321 readings of 12,345 tokens" in said
    assert "1 prediction of 1 text;" in draw({**EVALUATION, "positions": 1, "texts": 1}).locator("main").text_content()
    assert page.locator("h1").text_content() == "How faithful the explanations of m<1> are"
    settings = page.locator(".facts").last.locator("div").all_text_contents()
    assert settings == ['methods["contributions","alpha"]', "seed7", "confidence0.95", 'replacement"</script>"']


def test_every_metric_has_a_table_and_bars_of_all_methods(draw):
    page = draw(EVALUATION)
    assert page.locator(".metric").count() == len(METRICS)
    section = page.locator(".metric", has=page.locator("h3", has_text="Sufficiency, 20.0 %"))
    assert section.locator("h3").text_content() == "Sufficiency, 20.0 % (nats; lower is better)"
    numbers = [[[number(x) for x in re.findall(r"[+-]?\d[\d.]*", cell)] for cell in line[1:]] for line in rows(section.locator("table"))[1:]]
    around = lambda x: [x, x - 0.25, x + 0.25]
    assert numbers == [[around(-1.5), around(1.5), around(-2), around(-1), [12]], [around(-0.5), around(0.5), around(-1), around(0), [12]],
                       [around(0.5), [], [], around(1), [12]], [around(-0.5), [], around(-1), [], [12]]]
    first = page.locator(".metric").first
    bars = [[float(x), float(w), float(o)] for x, w, o in attributes(first.locator("rect"), "x", "width", "fill-opacity")]
    zero = bars[0][0]
    assert bars[0][1] == pytest.approx(3 * bars[1][1]) and [o for *_, o in bars] == [1, 1, 0.3, 0.3]
    assert bars[2][0] + bars[2][1] == pytest.approx(zero)  # a negative bar ends at 0
    unit = bars[0][1] / 1.5
    ranges = [[float(x) for x in re.findall(r"[MH]([\d.]+)", d)] for (d,) in attributes(first.locator("path[stroke-width]"), "d")]
    assert ranges == [[pytest.approx(zero + unit * (m - 0.25)), pytest.approx(zero + unit * (m + 0.25))] for m in (1.5, 0.5, -0.5, 0.5)]
    assert [float(x) for (x,) in attributes(first.locator("circle"), "cx")] == pytest.approx([zero - 1.5 * unit, zero - 0.5 * unit])


def test_curves_go_through_their_points(draw):
    page = draw(EVALUATION)
    charts = page.locator(".plotted")
    assert charts.count() == 2
    page.wait_for_function(f"() => document.querySelectorAll('.plotted .plot path').length === {2 * len(METHODS)}")
    drawn = attributes(charts.first.locator(".plot path"), "d", "stroke", "stroke-dasharray")
    (x0, top), (x1, middle), (x2, bottom) = [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([\d.]+ [\d.]+)", drawn[0][0])]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and (middle - top) / (bottom - top) == pytest.approx(0.9 / 3.9, abs=0.01)
    heights = [float(re.findall(r"[ML][\d.]+ ([\d.]+)", d)[1]) for d, *_ in drawn]
    assert heights == sorted(heights) and len(set(heights)) == len(METHODS)  # a lower value is further down
    assert len({(stroke, dash) for _, stroke, dash in drawn}) == len(METHODS)
    assert [text for text in charts.first.locator(".legend li").all_text_contents()] == METHODS


@pytest.mark.parametrize("state,refreshes", [({"status": "queued", "texts": {"total": None, "done": 0}}, True), ({}, True),
                                             ({"status": "failed", "error": {"code": "x", "message": "no <b> file"}}, False), ({"status": "succeeded", "result": EVALUATION}, False)],
                         ids=["queued", "running", "failed", "succeeded"])
def test_a_job_refreshes_until_it_has_ended(front, engine, open_page, state, refreshes):
    @engine.on("faithfulness.get")
    async def _(call):
        call.result({**JOB, **state})

    page = open_page(f"http://127.0.0.1:{front.port}/healthz")
    page.clock.install()
    page.goto(f"http://127.0.0.1:{front.port}/v1/explain/evaluations/eval-1")
    facts = page.locator("dl").first.locator("div").all_text_contents()
    job = {**JOB, **state}
    assert facts == ["Jobeval-1", "Filefile-1", f"Status{job['status']}", "Texts0" if job["texts"]["total"] is None else "Texts12 of 50"]
    assert page.locator(".error").all_text_contents() == (["no <b> file"] if job["status"] == "failed" else [])
    assert page.locator("#overview").count() == (job["result"] is not None)
    asked = len(engine.called("faithfulness.get"))
    if refreshes:
        with page.expect_navigation():
            page.clock.fast_forward(5001)
    else:
        page.clock.fast_forward(60000)
    page.locator("dl").first.wait_for()
    assert len(engine.called("faithfulness.get")) == asked + refreshes


@pytest.mark.parametrize("answer", [{"methods": 7, "metrics": "x"}, {"status": 7, "texts": [], "result": {"metrics": [1, None, {}], "methods": [None, {}]}},
                                    *({**EVALUATION, "positions": x, "metrics": [{"metric": "<b>", "fraction": x, "better": x}],
                                       "methods": [{"method": "</svg><b>", "baseline": x, "numbers": [{"mean": x, "interval": [x, x], "reverse": {"mean": x}, "less_recency": {"interval": [x]}}],
                                                    "curve": {"fractions": [0, x, 1], "deletion": [x, x, x], "insertion": [x]}}] * 20} for x in (1e308, -1e308, 0, None, 5e-324))], ids=range(7))
def test_a_page_of_anything_says_something(draw, answer):
    page = draw(answer)
    assert page.locator("main > div").inner_text() and page.locator("b").count() == 0
    for name in ("x", "y", "width", "cx", "cy", "d"):
        for text, in attributes(page.locator(f"svg [{name}]"), name):
            assert "NaN" not in text and "Infinity" not in text, (name, text)
