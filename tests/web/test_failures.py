"""The page while a program of the real service is killed and started again."""

import os
import re
import signal

import pytest

from web_support import browser, open_page, points, tokens
from conftest import own_service
from test_path import generate, visible

pytestmark = pytest.mark.slow
PROGRAMS = ["additived", "additive-httpd"]
FACT = "name => [...document.querySelectorAll('.facts div')].find(row => row.firstChild.textContent === name).lastChild.textContent"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_curve_has_each_step_once_whatever_was_killed(own_service, open_page, program):
    job = own_service.job(steps=100000, eval_every=10000, checkpoint_every=50)["id"]
    page = open_page(f"{own_service.url}/#/jobs/{job}")
    page.wait_for_function("() => document.querySelector('.plot path')?.getAttribute('d').split('L').length >= 4")
    killed_at = int(page.evaluate(FACT, "Step").split(" of ")[0].replace(",", ""))
    before = len(points(page))
    own_service.kill(program)
    page.wait_for_function(f"""([step, n]) => {{
        const fact = {FACT};
        return document.querySelector('.status.running') && Number(fact('Step').split(' of ')[0].replace(',', '')) > step && fact('Left') !== '\u2013'
            && document.querySelector('.plot path').getAttribute('d').split('L').length >= n + 2;
    }}""", arg=[killed_at, before])
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    page.locator(".status.cancelled").wait_for()
    assert page.evaluate(FACT, "Left") == "\u2013" and page.locator("#banner").is_hidden()

    events = own_service.ok("GET", f"/v1/fine_tuning/jobs/{job}/events?limit=10000&order=asc")["data"]
    steps = [event["data"]["step"] for event in events if event["type"] == "metrics" and event["data"].get("train_loss") is not None]
    assert steps == sorted(set(steps))
    page.wait_for_function("n => document.querySelector('.plot path').getAttribute('d').split('L').length === n", arg=len(steps))
    assert page.locator(".plot").first.locator("path").count() == 1  # validation is drawn as circles
    left, right = points(page)[0][0], points(page)[-1][0]
    assert [x for x, _ in points(page)] == pytest.approx([left + (step - steps[0]) / (steps[-1] - steps[0]) * (right - left) for step in steps], abs=0.06)
    page.locator("summary", has_text="Messages").click()
    assert page.locator(".log li", has_text="continues from the checkpoint").count() == (program == "additived")


def stream(page, prompt):
    """Begin a turn that does not end by itself."""
    page.locator("details summary", has_text="Sampling").evaluate("node => { node.parentElement.open = true; }")
    page.locator("#play-max_tokens").fill("100000")
    page.locator("#play-temperature").fill("0")
    page.locator("textarea").fill(prompt)
    page.locator("textarea").press("Control+Enter")
    page.locator(".strip [role=option]").nth(100).wait_for()


def shown(page):
    return [text for text, _ in tokens(page)]


def read(service, page):
    session = page.locator(".branch-head a").text_content()
    return [visible(token["text"]) for token in service.ok("GET", f"/v1/sessions/{session}/alpha?layers=0&heads=0")["tokens"]]


@pytest.fixture
def playground(own_service, open_page):
    model = own_service.wait_job(own_service.job(steps=5, architecture="additive2")["id"])["fine_tuned_model"]
    page = open_page(f"{own_service.url}/#/play?model={model}")
    page.locator("textarea").wait_for()
    return page


@pytest.mark.parametrize("first", [True, False], ids=["the first turn", "the second turn"])
def test_an_engine_that_is_killed_costs_a_turn_and_not_the_text(own_service, playground, first):
    page = playground
    if not first:
        generate(page, "12 bottles", 5)
    before = shown(page)
    stream(page, " of beer")
    own_service.kill_engine()
    page.get_by_text("The session is gone").wait_for()
    page.get_by_role("button", name="Continue in a new session").click()
    page.get_by_text(f"{len(before)} tokens", exact=True).wait_for()
    assert shown(page) == before and page.locator("textarea").input_value() == " of beer" and page.locator(".note .error").count() == 0
    generate(page, " of beer", 5)
    assert len(shown(page)) == len(before) + 13 and shown(page)[:len(before)] == before and shown(page) == read(own_service, page)
    page.locator("#banner").wait_for(state="hidden")
    page.locator(".strip [role=option]").nth(len(before) + 10).click()
    page.get_by_role("heading", name="Why “").wait_for()
    if not first:  # also a token of the session that is gone
        page.locator(".strip [role=option]").nth(12).click()
        page.get_by_role("link", name="Open as a page").wait_for()
        assert "position=11" in page.get_by_role("link", name="Open as a page").get_attribute("href")
        page.get_by_role("button", name="Alternatives").click()
        assert page.get_by_role("button", name="Fork before it").count() == 0  # its snapshot is gone


def test_a_turn_that_the_front_end_cut_off_is_read_from_the_session(own_service, playground):
    page = playground
    stream(page, "12 bottles")
    own_service.kill("additive-httpd")
    page.get_by_text("The turn was cut off.").wait_for()
    assert len(shown(page)) > 100 and shown(page) == read(own_service, page)
    page.locator("#banner").wait_for(state="hidden")
    n = len(shown(page))
    generate(page, "", 5)
    assert len(shown(page)) == n + 5 and shown(page) == read(own_service, page)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_list_loads_when_the_service_is_back(own_service, open_page, program):
    own_service.upload("text", "kept.txt")
    page = open_page(f"{own_service.url}/#/models")
    page.get_by_role("heading", name="Models").first.wait_for()
    os.kill(own_service.process.pid, signal.SIGSTOP)  # it would start the program again
    try:
        os.kill(own_service.child(program), signal.SIGKILL)
        page.locator("#banner").wait_for()  # the reader has done nothing
        page.get_by_role("link", name="Files").click()
        page.locator(".card.failed").wait_for()
    finally:
        os.kill(own_service.process.pid, signal.SIGCONT)
    page.locator("#banner").wait_for(state="hidden")
    page.locator(".rows td", has_text="kept.txt").wait_for()
    assert page.locator(".card.failed").count() == 0


def test_a_page_that_is_older_than_the_service_asks_to_be_loaded_again(own_service, open_page):
    own_service.upload("text", "kept.txt")
    url, old = own_service.url, "0" * 16
    html = own_service.request("GET", "/")[1].decode()
    version = re.search("web/([0-9a-f]{16})/", html)[1]
    page = open_page(f"{url}/healthz")
    page.route(f"{url}/", lambda route: route.fulfill(body=html.replace(version, old), content_type="text/html; charset=utf-8"))
    page.route(f"**/web/{old}/*", lambda route: route.fulfill(response=route.fetch(url=route.request.url.replace(old, version))))
    page.goto(f"{url}/#/models")
    page.get_by_role("heading", name="Models").first.wait_for()
    page.unroute_all()
    own_service.kill("additive-httpd")
    page.get_by_role("link", name="Files").click()
    page.get_by_role("button", name="Reload the page").click()
    page.locator(".rows td", has_text="kept.txt").wait_for()
    assert page.evaluate("document.querySelector('script').src").split("/")[-2] == version
