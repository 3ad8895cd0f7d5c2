"""Explanations: data or a page, as the client asks; the page holds all of it and trusts none of it."""

import http.client
import json
import re
import xml.etree.ElementTree

import pytest

from explanation_samples import ALL, MEAN, N, ONE, PARTS, SCORES, SECOND, SIGNED, SOURCED, SOURCE_ALPHA, SOURCE_PARTS, WEIGHED, data_of_page, softmax
from http_support import engine, front, read_head, start


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
    assert data_of_page(answer.body, answer.headers["Content-Security-Policy"]) == nine_digits(explanation)


def test_each_page_has_a_nonce_of_its_own(front, engine):
    explanation_engine(engine, ONE)
    assert ask(front, "text/html").headers["Content-Security-Policy"] != ask(front, "text/html").headers["Content-Security-Policy"]


def test_an_engine_that_explains_nonsense_makes_a_500(front, engine):
    explanation_engine(engine, [1, 2])
    assert ask(front, "text/html").status == 500


def test_an_engine_error_is_json_even_for_a_page(front, engine):
    @engine.on("explain")
    async def _(call):
        call.error(404, "not_found", "no such model", param="model")

    answer = ask(front, "text/html")
    assert (answer.status, answer.error["param"]) == (404, "model")


@pytest.mark.parametrize("explanation, values, text", [(SOURCED, SOURCE_PARTS, PARTS), (WEIGHED, SOURCE_ALPHA, softmax(SCORES))], ids=["parts", "weights"])
def test_a_picture_has_the_tokens_of_a_source_above_the_text_with_their_numbers(front, engine, explanation, values, text):
    explanation_engine(engine, explanation)
    unit = 100 if explanation["contributions"] is None else 1
    number = lambda title: float(re.search(r": ([+-]?[\d.e+-]+)", title)[1]) / unit
    root = xml.etree.ElementTree.fromstring(ask(front, "image/svg+xml").body)
    shown = [(float(t.get("y")), "".join(t.itertext())) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [t.split(":")[0] for _, t in shown].index("source") < [t.split(":")[0] for _, t in shown].index("text")
    titles = [t.find("{http://www.w3.org/2000/svg}title") for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [number(t.text) for t in titles if t is not None] == pytest.approx([*values, *text], abs=1e-3)


def test_a_picture_without_a_source_says_nothing_of_one(front, engine):
    explanation_engine(engine, SIGNED)
    assert "source:" not in ask(front, "image/svg+xml").body.decode()


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


def test_a_comparison_is_one_page_with_both(front, engine):
    comparing_engine(engine, SIGNED, SECOND)
    answer = compare(front, "text/html")
    assert data_of_page(answer.body, answer.headers["Content-Security-Policy"]) == compare(front).json


def test_contributions_and_weights_have_no_differences(front, engine):
    comparing_engine(engine, SIGNED, MEAN)
    assert compare(front).json["compare"]["same_tokens"] == []


@pytest.mark.parametrize("first", [SIGNED, MEAN, ALL, {"object": "explanation"}, {**SIGNED, "contributions": {}}], ids=range(5))
@pytest.mark.parametrize("second", [SECOND, ONE, {"object": "explanation"}, {**ONE, "tokens": [], "weights": []}, {**SIGNED, "tokens": [7, None, {}]}], ids=range(5))
def test_a_comparison_of_anything_is_well_formed(front, engine, first, second):
    comparing_engine(engine, first, second)
    assert data_of_page(compare(front, "text/html").body) == compare(front).json
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
