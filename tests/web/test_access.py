"""Readers with other senses and devices: axe-core has no serious finding on any view."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from web_support import NARROW, WIDE, browser, open_answer, open_page
from explanation_samples import EVALUATION, SECOND, SIGNED
from http_support import engine, front, start
from test_views import VIEWS, address, scripted, show

pytestmark = pytest.mark.slow


def findings(page):
    """Serious findings, each with the elements it is about."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found if rule["impact"] in ("serious", "critical") or rule["id"] == "heading-order" for node in rule["nodes"]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_view_has_a_serious_finding(engine, front, open_page, size, dark):
    scripted(engine, ["first", "second", "third"])
    page, found = open_page(address(front) + "/", size=size, dark=dark), []
    for view in [*VIEWS, "explain?model=m&input=x", "play?session=s", "nothing"]:
        show(page, front, view)
        for summary in page.locator("summary").all():
            summary.evaluate("node => { node.parentElement.open = true; }")
        found += [f"{view}: {finding}" for finding in findings(page)]
    page.locator("#key").click()
    assert not (found := found + findings(page)), "\n".join(found)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_saved_page_has_a_serious_finding(engine, front, open_page, dark):
    @engine.on("explain")
    async def _(call):
        call.result(SECOND if call.params["input"] == "y" else SIGNED)

    @engine.on("faithfulness.create")
    async def _(call):
        call.result(EVALUATION)

    for path, body in (("/v1/explain", {"input": "x"}), ("/v1/explain", {"input": "x", "compare": {"input": "y"}}), ("/v1/explain/evaluate", {"input": "x"})):
        answer = front.post(path, {"model": "m", **body}, headers={"Accept": "text/html"})
        answer.headers.replace_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'")  # for axe-core
        found = findings(open_answer(open_page, front, answer, dark=dark))
        assert not found, "\n".join(found)
