"""Evaluations of explanations: numbers or a page, as the client asks; the page holds all of them and trusts none of them."""

import pytest

from explanation_samples import EVALUATION, JOB, data_of_page
from http_support import engine, front, start


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
    assert data_of_page(page.body, page.headers["Content-Security-Policy"]) == EVALUATION
    assert ask(front, engine, EVALUATION, path, "image/png").status == 406


def test_a_page_of_a_job_holds_its_state(front, engine):
    job = {**JOB, "status": "failed", "error": {"code": "x", "message": "no </script> file"}}
    assert data_of_page(ask(front, engine, job, "/v1/explain/evaluations/eval-1").body) == job


ODD = [1e308, -1e308, 1e30, 0, None, "x", [], {}, True, 5e-324]


@pytest.mark.parametrize("answer", [{}, {"methods": 7, "metrics": "x"}, {"status": 7, "texts": [], "result": {"metrics": [1, None, {}], "methods": [None, {}, {"method": 3, "numbers": [7]}]}},
                                    *({**EVALUATION, "positions": x, "metrics": [{"metric": "<b>", "fraction": x, "better": x}],
                                       "methods": [{"method": "</svg><b>", "baseline": x, "numbers": [{"mean": x, "interval": [x, x], "reverse": {"mean": x}, "less_recency": {"interval": [x]}}],
                                                    "curve": {"fractions": [0, x, 1], "deletion": [x, x, x], "insertion": x}}] * 20} for x in ODD)], ids=range(13))
def test_a_page_of_anything_holds_it(front, engine, answer):
    assert data_of_page(ask(front, engine, answer).body) == answer


def test_an_answer_that_is_no_object_makes_a_500_and_an_error_is_json(front, engine):
    assert ask(front, engine, [1]).status == 500

    @engine.on("faithfulness.create")
    async def _(call):
        call.error(400, "invalid_value", "no such method", param="methods")

    answer = front.post("/v1/explain/evaluate", {"model": "m", "input": "x"}, headers={"Accept": "text/html"})
    assert (answer.status, answer.error["param"]) == (400, "methods")
