"""Much data on the page: the work is counted in elements that are created, never timed."""

import pytest

from web_support import browser, open_page
from http_support import engine, front, start
from test_views import DAY, address, answers, scripted, show

pytestmark = pytest.mark.slow
SESSIONS, TOKENS = 5000, 10000
COUNT = """selector => {
    window.added = 0;
    new MutationObserver(records => { for (const record of records) for (const node of record.addedNodes) if (node.matches && node.matches(selector)) window.added++; })
        .observe(document.body, {childList: true, subtree: true});
}"""


def test_a_long_list_has_elements_for_the_rows_in_the_window_alone(engine, front, open_page):
    scripted(engine)
    row = answers(["name"])["session.get"]

    @engine.on("session.list")
    async def _(call):
        first = int(call.params["after"].removeprefix("s-")) + 1 if "after" in call.params else 0
        rows = [{**row, "id": f"s-{i}", "created": DAY} for i in range(first, min(SESSIONS, first + call.params["limit"]))]
        call.result({"object": "list", "data": rows, "has_more": first + len(rows) < SESSIONS, "first_id": rows[0]["id"], "last_id": rows[-1]["id"]})

    page = open_page(address(front) + "/")
    page.evaluate(COUNT, "tbody tr")
    show(page, front, "sessions")
    page.get_by_text("5,000 in all").wait_for()
    window = 900 // 36 + 2 * 10 + 3  # rows in the window, beyond it on both sides, the two empty ones
    assert page.locator("tbody tr").count() <= window
    assert page.evaluate("added") <= window * (SESSIONS // 100 + 1)  # each page of the list draws once
    page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
    page.get_by_role("link", name="s-2500", exact=True).wait_for()
    assert page.locator("tbody tr").count() <= window
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.get_by_role("link", name=f"s-{SESSIONS - 1}", exact=True).wait_for()
    page.get_by_role("searchbox").fill("s-4321")
    page.get_by_text("1 of 5,000").wait_for()
    assert page.locator("tbody a").all_text_contents() == ["s-4321"]


def test_a_long_text_is_drawn_once_as_it_comes_and_once_when_it_is_whole(engine, front, open_page):
    scripted(engine)
    texts = [f"t{i} " for i in range(TOKENS)]

    @engine.on("session.generate")
    async def _(call):
        for text in texts:
            await call.event({"index": 0, "text": text, "tokens": [1], "logprobs": {"tokens": [text], "token_logprobs": [-0.5], "top_logprobs": [{text: -0.5}], "text_offset": [0]}})
        call.result({"model": "name", "finish_reason": ["length"], "usage": {"prompt_tokens": 1, "completion_tokens": TOKENS}, "session": {"id": "s", "tokens": TOKENS + 1}})

    @engine.on("session.alpha")
    async def _(call):
        call.result({"object": "explanation", "model": "name", "position": 0, "weights": [], "tokens": [{"id": 1, "text": text, "offset": i} for i, text in enumerate(["go", *texts])]})

    page = open_page(address(front) + "/#/play")
    page.locator("textarea").fill("go")
    page.evaluate(COUNT, "[role=option]")
    page.locator("textarea").press("Control+Enter")
    page.get_by_text(f"{TOKENS + 1} tokens", exact=True).wait_for()
    assert page.locator(".strip [role=option]").count() == TOKENS + 1
    assert page.evaluate("added") <= 2 * TOKENS + 2
    assert page.locator(".strip .block").evaluate_all("blocks => Math.max(...blocks.map(block => block.childElementCount))") <= 200
    page.evaluate("added = 0")
    page.locator(".strip [role=option]").first.focus()
    for key in ("End", "ArrowLeft", "ArrowUp", "Home"):
        page.keyboard.press(key)
    page.locator(".strip [role=option]").nth(7).hover()
    assert page.evaluate("added") == 0 and page.locator(".strip [tabindex='0']").count() == 1
