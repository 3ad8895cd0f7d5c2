"""Explanations: data or a page, as the client asks; the page carries everything and trusts nothing."""

import html.parser
import http.client
import json
import math
import re
import xml.etree.ElementTree

import pytest

from http_support import ROOT, engine, front, read_head, start

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
       "weights": [{"layer": 0, "head": 0, "round": "query", "window_size": 3, "score": SCORES,
                    "log_normalizer": [math.log(sum(math.exp(s) for s in SCORES[max(0, i - 2) : i + 1])) for i in range(N)]}]}

PARTS = [0.5, -1.5, 0, 0.25, -0.125, 2, 0, -0.75, 0.0625, 1e-7, 0.5, 8]
SIGNED = {**MEAN, "contributions": {
    "target": {"kind": "contrast", "automatic": True, "token": {"id": 7, "text": "</script>"}, "other": None, "logit": 3.5, "log_probability": math.log(0.25)},
    "share": 0.5, "score": 9.5, "tokens": PARTS, "positions": [0.01] * N, "biases": [-0.01] * N,
    "sums": {"tokens": sum(PARTS[:-1]), "reader": 8.0, "positions": 0.12, "biases": 0.4425, "rounding": 0.0}}}


SOURCE = [{"id": i, "text": t, "offset": i} for i, t in enumerate(["<b>", "é\n", "y"])]
SOURCE_PARTS, SOURCE_ALPHA = [4, -1, 0], [0.625, 0, 0.375]
SOURCED = {**SIGNED, "source": {"tokens": SOURCE, "weights": [], "aggregate": {"method": "mean", "alpha": SOURCE_ALPHA}},
           "contributions": {**SIGNED["contributions"], "source": {"tokens": SOURCE_PARTS}, "sums": {**SIGNED["contributions"]["sums"], "source": 3.0}}}
WEIGHED = {**SOURCED, "contributions": None}


class Page(html.parser.HTMLParser):
    """The page as a browser parses it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes = [], [], []
        self.spans, self.scripts, self.cells, self.table, self.sums = [], [], [], None, {}
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
        if tag in ("table", "tbody"):
            self.table = dict(attributes).get("id")
        if tag == "td" and self.table in ("rows", "source_rows"):
            self.cells.append("")
        if tag == "th" and self.table == "sums":
            self.name = ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "span" and "div" in self.open:
            self.spans[-1][1] += data
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        if self.open and self.open[-1] == "td" and self.table in ("rows", "source_rows"):
            self.cells[-1] += data
        if self.open and self.open[-1] == "th" and self.table == "sums":
            self.name += data
        if self.open and self.open[-1] == "td" and self.table == "sums":
            self.sums[self.name] = float(data)


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
    assert "text/csv" in answer.error["message"] and "application/vnd.safetensors" in answer.error["message"]
    assert not engine.calls


def pieces_engine(engine, pieces, **head):
    for method in ["explain", "session.alpha"]:

        @engine.on(method)
        async def _(call):
            await call.event({"content_type": "of/engine", **head})
            for piece in pieces:
                await call.data(piece)
            call.result({"bytes": sum(map(len, pieces))})


@pytest.mark.parametrize("path", ["/v1/explain", "/v1/sessions/s/alpha?layers=0"])
@pytest.mark.parametrize("accept,format_,type_", [
    ("text/csv", "csv", "text/csv; charset=utf-8"), ("application/vnd.safetensors", "safetensors", "application/vnd.safetensors"),
    ("application/octet-stream", "safetensors", "application/octet-stream"),
    ("text/html;q=0.5, text/csv", "csv", "text/csv; charset=utf-8"), (None, "json", "application/json")])
def test_each_format_is_passed_on_as_the_engine_sends_it(front, engine, path, accept, format_, type_):
    pieces_engine(engine, [b"one", b"two"], **({} if format_ == "json" else {"filename": "explanation.x"}))
    answer = ask(front, accept, path)
    assert (answer.status, answer.body, answer.headers["Content-Type"], answer.headers["Vary"]) == (200, b"onetwo", type_, "Accept")
    assert answer.headers.get("Content-Disposition") == (None if format_ == "json" else 'attachment; filename="explanation.x"')
    asked = {"model": "m", "input": "x"} if path == "/v1/explain" else {"id": "s", "layers": [0]}
    assert engine.calls[-1].params == {**asked, "format": format_}


def test_a_page_is_drawn_of_the_whole_answer(front, engine):
    explanation_engine(engine, ONE)
    assert ask(front, "text/html").status == 200 and "format" not in engine.calls[-1].params


@pytest.mark.parametrize("accept", [None, "text/csv"])
def test_a_large_explanation_passes_through_little_memory(front, engine, accept):
    piece, pieces = b"7" * (256 << 10), 256
    pieces_engine(engine, [piece] * pieces, bytes=len(piece) * pieces)
    before = front.rss()
    with front.socket() as s:
        body = b'{"model":"m","input":"x"}'
        wanted = f"Accept: {accept}\r\n" if accept else ""
        s.sendall(f"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n{wanted}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        status, headers, rest = read_head(s)
        got, most = len(rest), 0
        while got < len(piece) * pieces:
            got += len(s.recv(1 << 16))
            if got >> 22 != (got - (1 << 16)) >> 22:
                most = max(most, front.rss())
    assert status == 200 and most - before < 8 << 20


def test_an_engine_that_fails_half_way_leaves_no_whole_answer(front, engine):
    @engine.on("explain")
    async def _(call):
        await call.event({"content_type": "text/csv"})
        await call.data(b"half")
        call.error(503, "device_error")

    with pytest.raises(http.client.IncompleteRead):
        ask(front, "text/csv")


def nine_digits(value):
    """The value as JSON carries it: floats with nine significant digits."""
    return json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.9g}"))


@pytest.mark.parametrize("explanation", [SOURCED, ONE, MEAN, ALL, SIGNED, {**SIGNED, "weights": []}, {**SIGNED, "contributions": {}}, {**ONE, "weights": []}, {**ONE, "tokens": [], "weights": [], "position": -1},
                                         {"object": "explanation"}, {**ONE, "weights": [{}]}, {**ONE, "weights": 7, "tokens": "x"},
                                         {**ONE, "weights": [{"window": [-5, 10**9], "alpha": [1e308, "x", None]}]},
                                         {**ALL, "weights": [{"score": [], "log_normalizer": []}]}], ids=range(14))
def test_the_page_is_whole_and_self_contained(front, engine, explanation):
    explanation_engine(engine, explanation)
    answer = ask(front, "text/html")
    text = answer.body.decode()
    page = Page(text)
    assert "alert" not in "".join(t for t in page.tags)
    assert page.tags.count("script") == 2 and page.tags.count("style") == 1
    for tag, name, value in page.attributes:
        assert name not in ("src", "href", "action", "srcset", "data", "background") and not name.startswith("on"), (tag, name)
    assert not re.search(r"url\(|@import|https?:", text.replace("http://www.w3.org/2000/svg", ""))  # the name of a language, not an address
    policy = answer.headers["Content-Security-Policy"]
    nonce = re.fullmatch(r"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-([0-9a-f]{24})'", policy)[1]
    assert page.scripts[1][0] == {"type": "module", "nonce": nonce}
    assert "{{" not in text
    assert json.loads(page.scripts[0][1]) == nine_digits(explanation)


def test_the_script_finds_its_elements_and_reads_nothing_as_markup():
    pages = ROOT / "server" / "pages"
    script, page = (pages / "explain.js").read_text(), (pages / "explain.html").read_text()
    wanted, there = set(re.findall(r"\$\('(\w+)'\)", script)), re.findall(r' id="(\w+)"', page)
    assert wanted <= set(there) and len(there) == len(set(there)) and len(wanted) > 10
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|fetch\(|import ", script)


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


def test_contributions_come_first_with_their_signs_and_sums(front, engine):
    explanation_engine(engine, SIGNED)
    text = ask(front, "text/html").body.decode()
    page = Page(text)
    assert '<main id="main" data-kind="contributions">' in text
    assert "why “&lt;/script&gt;”, against all other options" in text and "its probability 25 %" in text
    largest = 2  # the scale does not include the reader's own part
    for (attributes, _), part in zip(page.spans, PARTS, strict=True):
        assert abs(float(attributes["style"].removeprefix("--w:")) - min(1, abs(part) / largest)) < 1e-3
        assert abs(float(re.search(r": ([+-][\d.e+-]+)$", attributes["title"])[1]) - part) < 1e-3
        assert attributes["class"].split()[0] == ("minus" if part < 0 else "plus")
    rows = [page.cells[i : i + 3] for i in range(0, len(page.cells), 3)]
    order = sorted((i for i in range(N - 1) if PARTS[i]), key=lambda i: (-abs(PARTS[i]), i))
    assert [(int(r[0]), float(r[2])) for r in rows] == [(i, pytest.approx(PARTS[i])) for i in order]
    assert list(page.sums.values()) == pytest.approx([*SIGNED["contributions"]["sums"].values(), 9.5])
    assert sum(list(page.sums.values())[:-1]) == pytest.approx(9.5)


@pytest.mark.parametrize("explanation, values, text, largest", [(SOURCED, SOURCE_PARTS, PARTS, 4), (WEIGHED, SOURCE_ALPHA, softmax(SCORES), SOURCE_ALPHA[0])],
                         ids=["parts", "weights"])
def test_the_tokens_of_a_source_stand_above_the_text_with_their_numbers_in_one_scale(front, engine, explanation, values, text, largest):
    explanation_engine(engine, explanation)
    page = Page(ask(front, "text/html").body.decode())
    assert [shown for _, shown in page.spans[:3]] == ["<b>", "é↵\n", "y"] and len(page.spans) == 3 + N
    unit = 100 if explanation["contributions"] is None else 1
    number = lambda title: float(re.search(r": ([+-]?[\d.e+-]+)", title)[1]) / unit
    for (attributes, _), value in zip(page.spans, [*values, *text], strict=True):
        assert abs(float(attributes["style"].removeprefix("--w:")) - min(1, abs(value) / largest)) < 1e-3
        assert abs(number(attributes["title"]) - value) < 1e-3
    rows = [page.cells[i : i + 3] for i in range(0, len(page.cells), 3)][-2:]
    assert [int(row[0]) for row in rows] == sorted((i for i in range(3) if values[i]), key=lambda i: -abs(values[i]))
    root = xml.etree.ElementTree.fromstring(ask(front, "image/svg+xml").body)
    shown = [(float(t.get("y")), "".join(t.itertext())) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [t.split(":")[0] for _, t in shown].index("source") < [t.split(":")[0] for _, t in shown].index("text")
    titles = [t.find("{http://www.w3.org/2000/svg}title") for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [number(t.text) for t in titles if t is not None] == pytest.approx([*values, *text], abs=1e-3)


def test_a_page_without_a_source_says_nothing_of_one(front, engine):
    explanation_engine(engine, SIGNED)
    text = ask(front, "text/html").body.decode()
    assert "<section hidden>" in text and "source:" not in ask(front, "image/svg+xml").body.decode()


@pytest.mark.parametrize("path", ["/v1/explain", "/v1/sessions/s/alpha"])
@pytest.mark.parametrize("explanation", [ONE, MEAN, ALL, SIGNED, {"object": "explanation"}, {**ONE, "tokens": [], "weights": []},
                                         {**SIGNED, "contributions": {"tokens": "x", "sums": []}},
                                         {**ONE, "tokens": [{"text": bytes([c]).decode("latin1")} for c in range(256)] + [{"text": "\uffff"}, 7, {"text": "漢字 \n\n"}]}],
                         ids=range(8))
def test_a_picture_is_well_formed_and_shows_every_token(front, engine, path, explanation):
    explanation_engine(engine, explanation)
    answer = ask(front, "image/svg+xml", path)
    assert (answer.status, answer.headers["Content-Type"], answer.headers["Vary"]) == (200, "image/svg+xml", "Accept")
    root = xml.etree.ElementTree.fromstring(answer.body)
    name = "{http://www.w3.org/2000/svg}"
    assert {e.tag.removeprefix(name) for e in root.iter()} <= {"svg", "title", "rect", "path", "text"}
    tokens = [e for e in root.iter(name + "text") if e.find(name + "title") is not None]
    shown = ["".join(t.itertext()).removeprefix(t.find(name + "title").text) for t in tokens]
    expected = [t["text"] if isinstance(t, dict) else "" for t in explanation.get("tokens", [])]
    controls = {c: chr(0x2400 + c) for c in range(32)} | {10: "↵", 0x7F: "␡", 0xFFFF: "\ufffd"}
    assert shown == [t.translate(controls) or "·" for t in expected]


def test_a_picture_shows_the_signs_by_colour_and_by_line(front, engine):
    explanation_engine(engine, SIGNED)
    picture = ask(front, "image/svg+xml").body.decode()
    strong = [p for p in PARTS if abs(p) >= 0.2]
    assert picture.count("<path") == len(strong) + 2  # and those of the legend
    assert picture.count("stroke-dasharray") == sum(p < 0 for p in strong) + 1
    assert "score +9.5 = tokens" in picture and "reader +8" in picture and "why “&lt;/script&gt;”" in picture


# --- two side by side ----------------------------------------------------------------------------------------------------

OTHER = [*TOKENS[:2], {"id": 99, "text": "<new>", "offset": 2}, *TOKENS[3:]]
SECOND = {**SIGNED, "model": "n&2", "tokens": OTHER, "contributions": {**SIGNED["contributions"], "tokens": [2 * x for x in PARTS], "score": 19.0}}


def comparing_engine(engine, first, second):
    @engine.on("explain")
    async def _(call):
        call.result(second if call.params["input"] == "y" else first)


def compare(front, accept="application/json", **compare):
    return front.post("/v1/explain", {"model": "m", "input": "x", "target": {"kind": "logit", "token": "a"}, "compare": {"input": "y", **compare}},
                      headers={"Accept": accept})


def test_the_second_is_asked_with_what_it_has_in_place_of_the_first(front, engine):
    comparing_engine(engine, SIGNED, SECOND)
    target = {"kind": "logit", "token": "b"}
    assert compare(front).status == compare(front, model="n", target=target).status == 200
    first, second, _, fourth = [call.params for call in engine.calls if call.method == "explain"]
    assert first == {"model": "m", "input": "x", "target": {"kind": "logit", "token": "a"}}
    assert second == {**first, "input": "y"} and fourth == {"model": "n", "input": "y", "target": target}


def test_an_answer_holds_the_other_and_what_differs(front, engine):
    comparing_engine(engine, SIGNED, SECOND)
    answer = compare(front).json
    second = answer.pop("compare")
    pairs = second.pop("same_tokens")
    assert answer == nine_digits(SIGNED) and second == nine_digits(SECOND)
    assert pairs == [[i, i, pytest.approx(PARTS[i], abs=1e-8)] for i in range(N) if i != 2]


def columns(text):
    """Return for each column of the page its sentence, and the colours and signs of its cells."""
    pattern = r'<span class="column" title="([^"]*)">(.*?)</i></span>'
    return [(title, re.findall(r'<(?:span|i)(?: style="--w:([\d.e-]+)" class="([a-z ]*)")?>', cells)) for title, cells in re.findall(pattern, text, re.S)]


def test_both_and_their_differences_have_one_scale_on_the_page(front, engine):
    comparing_engine(engine, SIGNED, SECOND)
    answer = compare(front, "text/html")
    text = answer.body.decode()
    page = Page(text)
    assert page.tags.count("script") == 1 and "{{" not in text and "<new>" not in text and "n&2" not in text
    assert answer.headers["Content-Security-Policy"] == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{page.scripts[0][0]['nonce']}'"
    shown = columns(text)
    assert len(shown) == N
    for i, (title, cells) in enumerate(shown):
        numbers = (PARTS[i], 2 * PARTS[i], *([PARTS[i]] if i != 2 else []))
        assert len(cells) == 3 and title.startswith(f"first: token {i} “")
        for number, (colour, kind) in zip(numbers, cells):
            assert abs(float(colour) - min(1, abs(number) / 4)) < 1e-3  # 4: the second's largest, but for the reader's
            assert kind.split()[0] == ("minus" if number < 0 else "plus")
        assert ("difference" in title) == (i != 2)
    assert "why “&lt;/script&gt;”, against all other options" in text and "asks both for one" not in text
    rows = [page.cells[i : i + 5] for i in range(0, len(page.cells), 5)]
    order = sorted((i for i in range(N - 1) if PARTS[i] and i != 2), key=lambda i: (-abs(PARTS[i]), i))
    assert [(r[0], float(r[4])) for r in rows] == [(f"{i}, {i}", pytest.approx(PARTS[i])) for i in order]


def unmatched(text):
    table = re.search(r'<table([^>]*)><caption>The tokens that differ.*?<tbody id="unmatched">\n(.*?)</tbody>', text, re.S)
    return table[1], [re.findall(r"<td>(.*?)</td>", row) for row in table[2].splitlines()]


def test_the_page_lists_the_tokens_that_differ(front, engine):
    comparing_engine(engine, SIGNED, SECOND)
    hidden, rows = unmatched(compare(front, "text/html").body.decode())
    assert hidden == "" and [row[2] for row in rows] == ["&lt;new&gt;"] and float(rows[0][1]) == PARTS[2] and float(rows[0][3]) == 2 * PARTS[2]
    words = [{"id": i, "text": word, "offset": 0} for i, word in enumerate(["It", " was", " a", " cat"])]
    parts = {**SIGNED["contributions"], "tokens": [0.0, 0.5, -0.25, 3.0]}
    first = {**SIGNED, "tokens": words, "position": 3, "contributions": parts}
    second = {**first, "tokens": [*words[1:3], {"id": 9, "text": " dog", "offset": 0}], "position": 2, "contributions": {**parts, "tokens": [0.5, -0.25, 2.0]}}
    comparing_engine(engine, first, second)
    assert unmatched(compare(front, "text/html").body.decode()) == ("", [[" cat (reader)", "+3", " dog (reader)", "+2"], ["It", "+0", "none", ""]])


def test_a_list_without_tokens_that_differ_is_hidden(front, engine):
    for second in (SIGNED, MEAN):
        comparing_engine(engine, SIGNED, second)
        assert unmatched(compare(front, "text/html").body.decode()) == (" hidden", [])


def test_different_outputs_are_pointed_out(front, engine):
    target = {**SIGNED["contributions"]["target"], "token": {"id": 8, "text": "x"}}
    comparing_engine(engine, SIGNED, {**SECOND, "contributions": {**SECOND["contributions"], "target": target}})
    assert "asks both for one" in compare(front, "text/html").body.decode()


def test_contributions_and_weights_have_no_differences(front, engine):
    comparing_engine(engine, SIGNED, MEAN)
    assert compare(front).json["compare"]["same_tokens"] == []
    text = compare(front, "text/html").body.decode()
    Page(text)
    assert "have no differences" in text and len(columns(text)) == N and not any("difference" in title for title, _ in columns(text))


@pytest.mark.parametrize("first", [SIGNED, MEAN, ALL, {"object": "explanation"}, {**SIGNED, "contributions": {}}], ids=range(5))
@pytest.mark.parametrize("second", [SECOND, ONE, {"object": "explanation"}, {**ONE, "tokens": [], "weights": []}, {**SIGNED, "tokens": [7, None, {}]}], ids=range(5))
def test_a_comparison_of_anything_is_well_formed(front, engine, first, second):
    comparing_engine(engine, first, second)
    Page(compare(front, "text/html").body.decode())
    picture = xml.etree.ElementTree.fromstring(compare(front, "image/svg+xml").body)
    name = "{http://www.w3.org/2000/svg}"
    tokens = [e for e in picture.iter(name + "text") if e.find(name + "title") is not None]
    assert len(tokens) == len(first.get("tokens", [])) + len(second.get("tokens", []))


def test_what_the_second_lacks_is_named(front, engine):
    @engine.on("explain")
    async def _(call):
        if call.params["input"] == "y":
            call.error(404, "not_found", "no such thing", param=call.params["target"]["token"])
        else:
            call.result(SIGNED)

    for param, named in [("model", "compare.model"), ("target.token", "compare.target.token"), ("position", "position"), ("input[3]", "compare.input[3]")]:
        answer = compare(front, model="n", target={"token": param})
        assert (answer.status, answer.error["param"]) == (404, named)


@pytest.mark.parametrize("more,status,param", [({"span": [0, 1]}, 400, "span"), ({"input": "x" * 70000}, 413, "compare"), ({"compare": 7}, 400, "compare"),
                                               ({"compare": {"position": 1}}, 400, "compare.position")])
def test_what_cannot_be_compared_is_refused(front, engine, more, status, param):
    answer = front.post("/v1/explain", {"model": "m", "input": "x", "compare": {"input": "y"}, **more})
    assert (answer.status, answer.error["param"]) == (status, param)
    assert not engine.calls


def test_a_comparison_is_json_a_page_or_a_picture(front, engine):
    comparing_engine(engine, SIGNED, SECOND)
    refused = compare(front, "text/csv")
    assert refused.status == 406 and "a comparison is application/json, text/html or image/svg+xml" in refused.error["message"]
    assert not engine.calls
    answer = compare(front, "text/csv, application/json;q=0.5")
    assert (answer.status, answer.headers["Content-Type"], answer.headers["Vary"]) == (200, "application/json", "Accept")
