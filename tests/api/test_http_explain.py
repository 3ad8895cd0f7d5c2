"""Explanations: data or a page, as the client asks; the page carries everything and trusts nothing."""

import html.parser
import json
import math
import re

import pytest

from http_support import engine, front, start

HOSTILE = ["<script>alert(1)</script>", "</script>", "&amp;", '"', "'", "\n", "", "<!--", "]]>", "☃", "\u2028", "a b"]
TOKENS = [{"id": i, "text": t, "offset": i} for i, t in enumerate(HOSTILE)]
N = len(TOKENS)


def softmax(scores):
    total = sum(map(math.exp, scores))
    return [math.exp(s) / total for s in scores]


SCORES = [0.3 * i for i in range(N)]
ALPHA = softmax(SCORES[-4:])
ONE = {"object": "explanation", "model": "m<1>", "tokens": TOKENS, "position": N - 1, "aggregate": None,
       "weights": [{"layer": 0, "head": h, "round": r, "window": [N - 4, N - 1], "alpha": ALPHA} for h in range(2) for r in ("query", "key")]}
MEAN = {**ONE, "aggregate": {"method": "mean", "alpha": softmax(SCORES)}}
ALL = {"object": "explanation", "model": "m", "tokens": TOKENS, "position": "all", "aggregate": None,
       "weights": [{"layer": 0, "head": 0, "round": "query", "score": SCORES,
                    "log_normalizer": [math.log(sum(math.exp(s) for s in SCORES[max(0, i - 2) : i + 1])) for i in range(N)]}]}


class Page(html.parser.HTMLParser):
    """What a browser would make of the page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.spans, self.scripts, self.cells = [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, k, v) for k, v in attributes]
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
        if tag == "span" and self.open[-2] == "div":
            self.spans.append([dict(attributes), ""])
        if tag == "script":
            self.scripts.append([dict(attributes), ""])
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "span" and "div" in self.open:
            self.spans[-1][1] += data
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def explanation_engine(engine, answer):
    for method in ["explain", "session.alpha"]:

        @engine.on(method)
        async def _(call):
            call.result(answer)


def ask(front, accept, path="/v1/explain"):
    headers = {} if accept is None else {"Accept": accept}
    if path == "/v1/explain":
        return front.post(path, {"model": "m", "input": "x"}, headers=headers)
    return front.get(path, headers=headers)


@pytest.mark.parametrize("path", ["/v1/explain", "/v1/sessions/s/alpha"])
@pytest.mark.parametrize("accept,html", [(None, False), ("*/*", False), ("application/json", False), ("text/html", True), ("text/*", True),
                                         ("text/html,application/xhtml+xml,*/*;q=0.8", True), ("text/html;q=0.1, application/json", False),
                                         ("text/html;q=0, */*", False), ("application/json;q=0.2,text/html;q=0.3", True)])
def test_the_client_chooses_between_data_and_page(front, engine, path, accept, html):
    explanation_engine(engine, ONE)
    answer = ask(front, accept, path)
    assert answer.status == 200
    assert answer.headers["Vary"] == "Accept"
    if html:
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    else:
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.json == ONE


def test_what_cannot_be_given_is_406(front, engine):
    answer = ask(front, "image/png")
    assert (answer.status, answer.error["code"]) == (406, "not_acceptable")
    assert not engine.calls


def nine_digits(value):
    """The value as JSON carries it: floats with nine significant digits."""
    return json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.9g}"))


@pytest.mark.parametrize("explanation", [ONE, MEAN, ALL, {**ONE, "weights": []}, {**ONE, "tokens": [], "weights": [], "position": -1},
                                         {"object": "explanation"}, {**ONE, "weights": [{}]}, {**ONE, "weights": 7, "tokens": "x"},
                                         {**ONE, "weights": [{"window": [-5, 10**9], "alpha": [1e308, "x", None]}]},
                                         {**ALL, "weights": [{"score": [], "log_normalizer": []}]}], ids=range(10))
def test_the_page_is_whole_and_self_contained(front, engine, explanation):
    explanation_engine(engine, explanation)
    answer = ask(front, "text/html")
    text = answer.body.decode()
    page = Page(text)
    assert "alert" not in "".join(t for t in page.tags)
    assert page.tags.count("script") == 2 and page.tags.count("style") == 1
    for tag, name, value in page.attributes:
        assert name not in ("src", "href", "action", "srcset", "data", "background") and not name.startswith("on"), (tag, name)
    assert not re.search(r"url\(|@import|https?:", text)
    policy = answer.headers["Content-Security-Policy"]
    nonce = re.fullmatch(r"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-([0-9a-f]{24})'", policy)[1]
    assert page.scripts[1][0] == {"nonce": nonce}
    assert json.loads(page.scripts[0][1]) == nine_digits(explanation)


def test_every_token_is_shown_as_text(front, engine):
    explanation_engine(engine, ONE)
    page = Page(ask(front, "text/html").body.decode())
    shown = [text for _, text in page.spans]
    assert shown == [t.replace("\n", "↵\n") or "·" for t in HOSTILE]
    assert "m<1>" in ask(front, "text/html").body.decode().replace("&lt;", "<").replace("&gt;", ">")


@pytest.mark.parametrize("explanation,weights", [(ONE, [0] * (N - 4) + ALPHA), (MEAN, softmax(SCORES)), (ALL, [0] * (N - 3) + softmax(SCORES[-3:]))],
                         ids=["a row", "the aggregate", "the last position"])
def test_the_colours_and_numbers_are_the_weights(front, engine, explanation, weights):
    explanation_engine(engine, explanation)
    page = Page(ask(front, "text/html").body.decode())
    for (attributes, _), weight in zip(page.spans, weights, strict=True):
        assert abs(float(attributes["style"].removeprefix("--w:")) - weight / max(weights)) < 1e-3
        assert abs(float(re.search(r": ([\d.]+) %", attributes["title"])[1]) - 100 * weight) < 0.01
    assert "here" in page.spans[-1][0]["class"]
    rows = [page.cells[i : i + 3] for i in range(0, len(page.cells), 3)]
    order = sorted((i for i in range(N) if weights[i] > 0), key=lambda i: -weights[i])
    assert [int(r[0]) for r in rows] == order
    assert all(abs(float(r[2].rstrip(" %")) - 100 * weights[int(r[0])]) < 0.01 for r in rows)


def test_an_engine_that_explains_nonsense_makes_a_500(front, engine):
    explanation_engine(engine, [1, 2])
    assert ask(front, "text/html").status == 500


def test_an_engine_error_is_json_even_for_a_page(front, engine):
    @engine.on("explain")
    async def _(call):
        call.error(404, "not_found", "no such model", param="model")

    answer = ask(front, "text/html")
    assert (answer.status, answer.error["param"]) == (404, "model")
