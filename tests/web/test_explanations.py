"""The drawing of an explanation and of two side by side. Each expected number is computed here from the answer of a scripted engine."""

import csv
import io
import json
import math
import re

import pytest

from web_support import NARROW, WIDE, beside, browser, number, open_answer, open_page, table, tokens
from explanation_samples import ALL, HOSTILE, MEAN, N, ONE, PARTS, SCORES, SECOND, SIGNED, SOURCE_ALPHA, SOURCE_PARTS, SOURCED, WEIGHED, ALPHA, softmax
from http_support import engine, front, start

pytestmark = pytest.mark.slow
SHOWN = [text.replace("\n", "↵\n") or "·" for text in HOSTILE]
ALONE = [re.sub(r"\s", "\u2423", text.replace("\n", "↵")) or "·" for text in HOSTILE]  # outside their text
SPAN = {**{name: value for name, value in SIGNED.items() if name not in ("contributions", "aggregate", "position")}, "weights": [], "span": {"method": "contributions", "rows": [
    {"position": p, "target": {**SIGNED["contributions"]["target"], "token": {"id": p, "text": f"t{p}"}}, "score": float(p), "tokens": [0.5 * (i - 3) + p for i in range(p + 1)],
     "sums": {"tokens": 1.0, "reader": 1.5 + p / 2, "positions": 0.0, "biases": 0.0, "rounding": 0.0}} for p in (6, 7, 8)]}}


@pytest.fixture
def draw(open_page, front, engine):
    """draw(explanation, second=None): the page that the front end answers."""

    def ask(explanation, second=None, **more):
        @engine.on("explain")
        async def _(call):
            call.result(second if call.params["input"] == "y" else explanation)

        body = {"model": "m", "input": "x", **({"compare": {"input": "y"}} if second else {})}
        return open_answer(open_page, front, front.post("/v1/explain", body, headers={"Accept": "text/html"}), **more)

    return ask


def percent(x):
    return f"{100 * x:.{3 if x < 0.001 else 2 if x < 0.1 else 1}f} %"


def largest(values, but=()):
    """Indices of the values that are not 0, the largest first."""
    return sorted((i for i, x in enumerate(values) if x and i not in but), key=lambda i: (-abs(values[i]), i))


def test_every_token_is_a_text(draw):
    page = draw(SOURCED)
    assert [text for text, _ in tokens(page, 1)] == SHOWN and [text for text, _ in tokens(page, 0)] == ["<b>", "é↵\n", "y"]
    assert page.locator("script").count() == 2 and page.locator("b").all_text_contents() == ["Blue", "orange"]
    assert page.locator("h1").text_content() == "An explanation of m<1>"


@pytest.mark.parametrize("explanation,weights", [(ONE, [0] * (N - 4) + ALPHA), (MEAN, softmax(SCORES)), (ALL, [0] * (N - 3) + softmax(SCORES[-3:]))],
                         ids=["rows", "the aggregate", "the last position"])
def test_colours_and_numbers_are_the_weights(draw, explanation, weights):
    page = draw(explanation)
    assert [share for _, share in tokens(page)] == pytest.approx([w / max(weights) for w in weights], abs=1e-3)
    assert "Orange is a share of what attention summed." in page.locator("main").text_content()
    assert table(page, "The tokens with the largest numbers") == [[str(i), ALONE[i], percent(weights[i])] for i in largest(weights)]
    box = page.locator(".strip [role=option]").nth(N - 1)
    assert "here" in box.get_attribute("class")
    box.hover()
    assert page.locator(".readout").text_content() == f"Token {N - 1} “a\u2423b”: {percent(weights[N - 1])}"


def test_a_position_has_what_it_read_and_what_later_ones_read_of_it(draw):
    page, norms = draw(ALL), ALL["weights"][0]["log_normalizer"]
    for p in (0, 5):
        page.get_by_label("Position").fill(str(p))
        expected = [math.exp(SCORES[i] - norms[p]) if p - 2 <= i <= p else -math.exp(SCORES[p] - norms[i]) if p < i <= p + 2 else 0 for i in range(N)]
        page.wait_for_function("p => [...document.querySelectorAll('.strip [role=option]')].findIndex(box => box.classList.contains('here')) === p", arg=p)
        assert [share for _, share in tokens(page)] == pytest.approx([x / max(map(abs, expected)) for x in expected], abs=1e-3)
        assert [int(row[0]) for row in table(page, "The tokens with the largest numbers")] == largest([max(x, 0) for x in expected])


def test_a_row_of_the_grid_names_the_token_that_its_position_read_most_of(draw):
    scores = [0, 0, 0, 2, 1, 0, *[-9] * (N - 6)]  # token 7 reads more of token 5 than 5 reads of any
    norms = [math.log(sum(math.exp(s) for s in scores[max(0, i - 2) : i + 1])) for i in range(N)]
    row = {**ALL["weights"][0], "score": scores, "log_normalizer": norms}
    page = draw({**ALL, "weights": [row, {**row, "head": 1}]})
    page.get_by_label("Position").fill("5")
    button = page.get_by_role("button", name="layer 0, head 1, query: most of token 3 ")
    button.wait_for()
    assert percent(math.exp(scores[3] - norms[5])) in button.get_attribute("title")


def test_contributions_have_signs_and_sums_and_a_scale_without_the_reader(draw):
    page, sums = draw(SIGNED), SIGNED["contributions"]["sums"]
    assert [share for _, share in tokens(page)] == pytest.approx([max(-1, min(1, x / 2)) for x in PARTS], abs=1e-3)
    assert page.locator("h2").first.text_content() == "Why “</script>”, against all other options"
    assert "its probability 25.0 %" in page.locator("main").text_content()
    rows = table(page, "The tokens with the largest numbers")
    assert [(int(i), text, number(x)) for i, text, x in rows] == [(i, ALONE[i], pytest.approx(PARTS[i], rel=1e-3)) for i in largest(PARTS, [N - 1])]
    lines = {name: number(x) for name, x in table(page, "The score and its parts")}
    assert lines == {"tokens but the reader": pytest.approx(sums["tokens"], rel=1e-3), f"reader, token {N - 1} “a\u2423b”": 8, "positions": pytest.approx(0.12), "biases": pytest.approx(0.4425), "rounding": 0, "score": 9.5}
    assert page.locator(".strip .minus").count() == sum(x < 0 for x in PARTS) and page.locator(".strip .plus").count() == sum(x > 0 for x in PARTS)
    page.locator(".strip [role=option]").nth(1).hover()
    assert page.locator(".readout").text_content() == "Token 1 “</script>”: −1.500 (its position +0.01000, biases −0.01000)"
    lines = page.locator(".strip .minus").first.evaluate("node => getComputedStyle(node).textDecorationStyle"), page.locator(".strip .plus").first.evaluate("node => getComputedStyle(node).textDecorationStyle")
    assert lines == ("dotted", "solid")  # the sign without its colour


@pytest.mark.parametrize("kind,title", [("logit", "The logit of “a”"), ("difference", "Why “a” and not “b”"), ("contrast", "Why “a”, against all other options")])
def test_the_title_says_what_is_explained(draw, kind, title):
    target = {**SIGNED["contributions"]["target"], "kind": kind, "token": {"id": 1, "text": "a"}, "other": {"id": 2, "text": "b"} if kind == "difference" else None}
    page = draw({**SIGNED, "contributions": {**SIGNED["contributions"], "target": target}})
    assert page.locator("h2").first.text_content() == title
    assert ("strongest rival" in page.locator("main").text_content()) == (kind == "difference")


def test_another_method_is_named(draw):
    parts = {**SIGNED["contributions"], "method": "gradient_x_input", "sums": None}
    page = draw({**SIGNED, "contributions": None, "attribution": parts})
    assert page.locator("h2").first.text_content().endswith("against all other options (gradient_x_input)")
    assert page.get_by_label("Numbers").locator("option").first.text_content() == "gradient_x_input"


@pytest.mark.parametrize("explanation,values,text,scale", [(SOURCED, SOURCE_PARTS, PARTS, 4), (WEIGHED, SOURCE_ALPHA, softmax(SCORES), SOURCE_ALPHA[0])], ids=["parts", "weights"])
def test_the_tokens_of_a_source_are_in_the_scale_of_the_text(draw, explanation, values, text, scale):
    page = draw(explanation)
    for strip, numbers in enumerate((values, text)):
        assert [share for _, share in tokens(page, strip)] == pytest.approx([max(-1, min(1, x / scale)) for x in numbers], abs=1e-3)
    assert [int(row[0]) for row in table(page, "The tokens of the source")] == largest(values)


def test_a_span_has_a_row_for_each_of_its_positions(draw):
    page, rows = draw(SPAN), SPAN["span"]["rows"]
    by_position = {row["position"]: row for row in rows}
    for p in (8, 6, 7):
        page.get_by_label("Position").fill(str(p))
        page.get_by_role("heading", name=f"Why “t{p}”").wait_for()
        values = by_position[p]["tokens"] + [by_position[i]["tokens"][p] if i in by_position else 0 for i in range(p + 1, N)]
        scale = max(abs(x) for i, x in enumerate(values) if i != p)
        assert [share for _, share in tokens(page)] == pytest.approx([max(-1, min(1, x / scale)) for x in values], abs=1e-3)
    page.get_by_label("Position").fill("2")  # not of the span
    assert page.get_by_role("heading", name="Why “t7”").count() == 1


def test_each_row_of_weights_can_be_chosen(draw):
    rows = [{**row, "alpha": softmax([(k + 1) * 0.4 * (j if k % 2 else -j) for j in range(4)]), "half_life": [3.25, None][k % 2]} for k, row in enumerate(ONE["weights"])]
    page = draw({**ONE, "weights": rows})
    mean = [sum(row["alpha"][i] for row in rows) / 4 for i in range(4)]
    assert [share for _, share in tokens(page)][-4:] == pytest.approx([w / max(mean) for w in mean], abs=1e-3)
    for k, row in enumerate(rows):
        name = f"layer 0, head {row['head']}, {row['round']}, half-life {'3.3' if k % 2 == 0 else '∞'} tokens"
        button = page.get_by_role("button", name=name)
        top = row["alpha"].index(max(row["alpha"]))
        assert f"most of token {N - 4 + top} " in button.get_attribute("title") and percent(max(row["alpha"])) in button.get_attribute("title")
        button.click()
        assert button.get_attribute("aria-pressed") == "true" and page.locator("[aria-pressed=true]").count() == 1
        assert page.locator("h2").first.text_content() == f"Weights α: {name}"
        assert [share for _, share in tokens(page)][-4:] == pytest.approx([w / max(row["alpha"]) for w in row["alpha"]], abs=1e-3)


SPACED = [" a", "b ", "c  d", "\t", "\u00a0", "   ", "\u2003", "e\n"]
SIGNS = ["\u2423a", "b\u2423", "c\u2423\u2423d", "\u2409", "\u237d", "\u2423\u2423\u2423", "\u2423", "e\u21b5"]


def test_white_space_of_a_token_has_a_sign_everywhere(draw):
    words = [{"id": i, "text": text, "offset": 0} for i, text in enumerate(SPACED)]
    first = {**SIGNED, "tokens": words, "position": 7, "contributions": {**SIGNED["contributions"], "target": {**SIGNED["contributions"]["target"], "token": {"id": 5, "text": "   "}}, "tokens": [float(8 - i) for i in range(8)]}}
    page = draw(first)
    assert [row[1] for row in table(page, "The tokens with the largest numbers")] == SIGNS[:7]
    assert page.locator("h2").first.text_content() == "Why “\u2423\u2423\u2423”, against all other options"
    assert [text for text, _ in tokens(page)] == [*SPACED[:7], "e\u21b5\n"]  # a text is copied as it is
    page.locator(".strip [role=option]").nth(5).focus()
    assert page.locator(".readout").text_content().startswith("Token 5 “\u2423\u2423\u2423”")
    pictures = page.locator(".strip [role=option]").evaluate_all("boxes => boxes.map(box => getComputedStyle(box).backgroundImage !== 'none')")
    assert pictures == [False, False, False, True, True, True, True, False]  # beside the colour of its number
    assert page.locator(".strip .plus").count() > 1
    page = draw(first, {**first, "contributions": {**first["contributions"], "tokens": [0.5] * 8}})
    assert [column[0][0] for column in columns(page)] == SIGNS


def test_the_numbers_can_be_saved(draw):
    page = draw(SIGNED)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save JSON").click()
    assert json.loads(open(saved.value.path(), encoding="utf-8").read())["contributions"]["tokens"] == PARTS
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save CSV").click()
    rows = list(csv.DictReader(io.StringIO(open(saved.value.path(), encoding="utf-8", newline="").read())))
    assert [(row["token"], float(row["value"])) for row in rows] == list(zip(HOSTILE, PARTS))


def test_a_token_that_a_spreadsheet_would_take_for_a_formula_is_saved_as_a_text(draw):
    plain, formulas = ["=", "-", "x=1", " =1", "'", "", "\t"], ["=1+1", "+a", "--", "@c", "\tx", "\r\n", "=\"\n\""]
    texts = plain + formulas
    parts = {**SIGNED["contributions"], "tokens": [1.0] * len(texts)}
    page = draw({**SIGNED, "tokens": [{"id": i, "text": text, "offset": i} for i, text in enumerate(texts)], "position": len(texts) - 1, "contributions": parts})
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save CSV").click()
    rows = list(csv.DictReader(io.StringIO(open(saved.value.path(), encoding="utf-8", newline="").read())))
    assert [row["token"] for row in rows] == plain + [f"'{text}" for text in formulas]


def test_arrow_keys_move_over_the_tokens(draw):
    page = draw(SIGNED)
    page.locator(".strip [role=option]").first.focus()
    for key, i in (("ArrowRight", 1), ("End", N - 1), ("ArrowLeft", N - 2), ("Home", 0)):
        page.keyboard.press(key)
        assert page.locator(".readout").text_content().startswith(f"Token {i} ")
        assert page.locator(".strip [tabindex='0']").count() == 1


def test_the_page_opens_from_a_file_without_the_service(front, engine, browser, tmp_path):
    @engine.on("explain")
    async def _(call):
        call.result(SIGNED)

    (tmp_path / "saved.html").write_bytes(front.post("/v1/explain", {"model": "m", "input": "x"}, headers={"Accept": "text/html"}).body)
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(f"file://{tmp_path}/saved.html")
    assert len(tokens(page)) == N
    context.close()


@pytest.mark.parametrize("odd", [{"object": "explanation"}, {**ONE, "weights": []}, {**ONE, "tokens": [], "weights": [], "position": -1}, {**ONE, "weights": 7, "tokens": "x"},
                                 {**SIGNED, "contributions": {}}, {**ONE, "weights": [{"window": [-5, 10**9], "alpha": [1e308, "x", None]}]}], ids=range(6))
def test_a_page_of_anything_says_something(draw, odd):
    assert draw(odd).locator("main > div").inner_text()


# --- two side by side ----------------------------------------------------------------------------------------------------

def columns(page):
    """Texts and signed shares of the first, the second and the difference of each column."""
    return page.locator(".compared").evaluate("""node => [...node.querySelectorAll('.column')].map(column => [...column.children].map(box => [box.textContent,
        Number(box.style.getPropertyValue('--w') || 0) * (box.classList.contains('minus') ? -1 : 1)]))""")


def test_both_texts_and_their_differences_have_one_scale(draw):
    page = draw(SIGNED, SECOND)
    found = columns(page)
    assert len(found) == N and [column[1][0] for column in found] == ALONE[:2] + ["<new>"] + ALONE[3:]
    for i, boxes in enumerate(found):
        for (_, share), x in zip(boxes, (PARTS[i], 2 * PARTS[i], 0 if i == 2 else PARTS[i]), strict=True):
            assert share == pytest.approx(max(-1, min(1, x / 4)), abs=1e-3)  # 4: the second's largest but the reader's
        assert boxes[2][0] == ("" if i == 2 or abs(PARTS[i]) < 0.4 else "−" if PARTS[i] < 0 else "+")
    rows = table(page, "The same tokens with the largest differences")
    assert [(row[0], number(row[4])) for row in rows] == [(f"{i}, {i}", pytest.approx(PARTS[i], rel=1e-3)) for i in largest(PARTS, [2, N - 1])]
    assert [[number(x) for x in row[1:]] for row in table(page, "The two scores and their parts")][-1] == [9.5, 19, 9.5]
    page.locator(".column").nth(1).hover()
    assert page.locator(".readout").text_content() == "First: token 1 “</script>” −1.500; second: token 1 “</script>” −3.000; difference −1.500"
    assert "asks both for one" not in page.locator("main").text_content()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_comparison_has_the_colours_of_the_scheme(draw, size, dark):
    page = draw(SIGNED, SECOND, size=size, dark=dark)
    for sign, colour in (("plus", (176, 72, 0) if dark else (245, 140, 40)), ("minus", (20, 90, 190) if dark else (90, 160, 240))):
        boxes = page.locator(f".compared .{sign}").evaluate_all("boxes => boxes.map(box => [getComputedStyle(box).backgroundColor, Number(box.style.getPropertyValue('--w'))])")
        assert len(boxes) >= 3
        for painted, share in boxes:
            red, green, blue, *alpha = map(float, re.findall(r"[\d.]+", painted))
            assert (red, green, blue) == colour and (alpha or [1])[0] == pytest.approx(share, abs=0.01)
    assert beside(page) == []


def test_tokens_that_differ_are_listed(draw):
    assert [[row[0], number(row[1]), row[2], number(row[3])] for row in table(draw(SIGNED, SECOND), "The tokens that differ")] == [[ALONE[2], PARTS[2], "<new>", 2 * PARTS[2]]]
    words = [{"id": i, "text": word, "offset": 0} for i, word in enumerate(["It", " was", " a", " cat"])]
    parts = {**SIGNED["contributions"], "tokens": [0.0, 0.5, -0.25, 3.0]}
    first = {**SIGNED, "tokens": words, "position": 3, "contributions": parts}
    second = {**first, "tokens": [*words[1:3], {"id": 9, "text": " dog", "offset": 0}], "position": 2, "contributions": {**parts, "tokens": [0.5, -0.25, 2.0]}}
    assert table(draw(first, second), "The tokens that differ") == [["\u2423cat (reader)", "+3.000", "\u2423dog (reader)", "+2.000"], ["It", "+0.000", "none", ""]]


@pytest.mark.parametrize("second", [SIGNED, MEAN], ids=["equal", "weights"])
def test_a_table_without_rows_is_not_shown(draw, second):
    page = draw(SIGNED, second)
    assert page.locator("caption", has_text="The tokens that differ").count() == 0
    assert ("have no differences" in page.locator("main").text_content()) == (second is MEAN)
    assert not any(share for *_, (_, share) in columns(page))


def test_different_outputs_are_pointed_out(draw):
    target = {**SIGNED["contributions"]["target"], "token": {"id": 8, "text": "x"}}
    page = draw(SIGNED, {**SECOND, "contributions": {**SECOND["contributions"], "target": target}})
    assert "target asks both for one" in page.locator("main").text_content()


@pytest.mark.parametrize("first", [SIGNED, ALL, {"object": "explanation"}], ids=range(3))
@pytest.mark.parametrize("second", [ONE, {"object": "explanation"}, {**ONE, "tokens": [], "weights": []}, {**SIGNED, "tokens": [7, None, {}]}], ids=range(4))
def test_a_comparison_of_anything_says_something(draw, first, second):
    assert draw(first, second).locator("main > div").inner_text()
