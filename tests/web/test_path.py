"""The whole path through the page, against the real service: train on a text, talk to the model, ask why."""

import json
import pathlib

import pytest

from web_support import NARROW, WIDE, beside, browser, number, open_page, table, tokens
from conftest import TEXT, Service

pytestmark = pytest.mark.slow
FIELDS = {"#size-hidden": "32", "#size-layers": "2", "#size-heads": "4", "#option-max_steps": "600", "#option-sequence_length": "64", "#option-batch_size": "4"}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    started = Service(tmp_path_factory.mktemp("service") / "data")
    yield started
    assert started.stop() == 0


def visible(text):
    return text.replace("\n", "↵\n") or "·"


def drop(page, name, text):
    """Drop a file onto the page's field for one."""
    page.locator(".drop").evaluate("""(node, [name, text]) => {
        const data = new DataTransfer();
        data.items.add(new File([text], name, {type: 'text/plain'}));
        node.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
    }""", [name, text])


def train(page, service, name, killed):
    """Train a small model through the form; returns the job. killed: the engine is killed while the curve is drawn."""
    page.goto(f"{service.url}/#/jobs/new")
    drop(page, f"{name}.txt", TEXT)
    page.get_by_text(f"{name}.txt is uploaded.").wait_for()
    assert page.get_by_label("Training file").locator("option:checked").text_content() == f"{name}.txt"
    for field, value in FIELDS.items():
        page.locator(field).fill(value)
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_text("600 steps of 256 tokens").wait_for()
    assert beside(page) == []
    page.get_by_role("button", name="Train", exact=True).click()
    page.wait_for_function("() => document.querySelector('.plot path')?.getAttribute('d').split('L').length >= 2")
    if killed:
        service.kill_engine()
    page.locator(".status.succeeded").wait_for()
    return service.ok("GET", f"/v1/fine_tuning/jobs/{page.url.rsplit('/', 1)[1]}")


def generate(page, prompt, n):
    """Generate n tokens in the active branch, and wait until the branch has its whole text."""
    before = page.locator(".branch .strip [role=option]").count()
    page.locator("details summary", has_text="Sampling").evaluate("node => { node.parentElement.open = true; }")
    page.locator("#play-max_tokens").fill(str(n))
    page.locator("#play-temperature").fill("0")
    page.locator("textarea").fill(prompt)
    page.locator("textarea").press("Control+Enter")
    page.wait_for_function("n => document.querySelectorAll('.branch .strip [role=option]').length >= n && document.querySelector('.note[role=status]').textContent.endsWith(' tokens')",
                           arg=before + n)


@pytest.mark.parametrize("size,dark,killed", [(WIDE, False, False), (NARROW, True, False), (WIDE, True, True), (NARROW, False, True)],
                         ids=["wide and light", "narrow and dark", "wide and dark, a killed engine", "narrow and light, a killed engine"])
def test_from_a_text_to_the_reason_of_a_token(service, open_page, size, dark, killed):
    page, name = open_page(service.url + "/", size=size, dark=dark), f"{'dark' if dark else 'light'}-{size[0]}"
    assert beside(page) == []
    job = train(page, service, name, killed)
    model = job["fine_tuned_model"]
    events = service.ok("GET", f"/v1/fine_tuning/jobs/{job['id']}/events?limit=1000")["data"]
    losses = [event["data"]["train_loss"] for event in events if event["type"] == "metrics" and event["data"].get("train_loss") is not None]
    curve = page.locator(".plotted").first.locator(".plot path").first
    page.wait_for_function("n => document.querySelector('.plotted .plot path').getAttribute('d').split('L').length === n", arg=len(losses))
    assert curve.is_visible() and beside(page) == []

    page.get_by_role("link", name="Talk to it").click()
    generate(page, "12 bottles", 20)
    session = page.locator(".branch-head a").text_content()
    read = service.ok("GET", f"/v1/sessions/{session}/alpha?layers=0&heads=0")["tokens"]
    shown = [text for text, _ in tokens(page)]
    assert shown == [visible(token["text"]) for token in read] and len(read) == 30
    assert beside(page) == []

    boxes = page.locator(".strip").first.locator("[role=option]")
    boxes.nth(20).click()
    page.get_by_role("heading", name="Why “").first.wait_for()
    parts = service.ok("POST", "/v1/explain", {"session": session, "position": 19, "target": {"token": read[20]["text"]}})["contributions"]
    lines = {line: number(x) for line, x in table(page, "The score and its parts")}
    assert lines["score"] == pytest.approx(parts["score"], rel=1e-3)
    assert [share for _, share in tokens(page, 1)][20:] == [0] * (len(tokens(page, 1)) - 20)
    assert beside(page) == []
    boxes.nth(22).hover()  # on the way to the explanation
    assert page.get_by_role("heading", name="Why “").count() == 1
    page.get_by_role("button", name="Alternatives").click()
    page.get_by_role("button", name="Why not “").first.click()
    page.get_by_role("heading", name="” and not “").wait_for()

    boxes.nth(20).focus()  # a move with the keyboard ends the explanation
    page.get_by_role("button", name="Fork before it").click()
    page.get_by_text("A fork of 20 tokens").wait_for()
    assert page.locator(".branch").count() == 2 and [text for text, _ in tokens(page, 1)] == shown[:20]
    generate(page, "", 7)
    assert [text for text, _ in tokens(page, 0)] == shown and len(tokens(page, 1)) == 27
    fork = page.locator(".branch-head a").nth(1).text_content()
    assert service.ok("GET", f"/v1/sessions/{fork}")["tokens"] == 27 and service.ok("GET", f"/v1/sessions/{session}")["tokens"] == 30
    assert beside(page) == []

    page.locator(".branch").nth(1).locator("[role=option]").nth(20).click()
    page.get_by_role("link", name="Open as a page").click()
    page.locator(".sums").wait_for()
    page.locator("summary", has_text="Compare with").click()
    page.locator("#second_token").fill("x")
    page.get_by_role("button", name="Explain", exact=True).click()
    page.locator(".compared").wait_for()
    assert page.locator(".compared .column").count() == 27 and len(table(page, "The two scores")) > 2
    assert beside(page) == []

    page.goto(f"{service.url}/#/sessions/{session}")
    page.get_by_role("heading", name=session).wait_for()
    page.get_by_label("Name of the snapshot").fill("after thirty")
    page.get_by_role("button", name="Take a snapshot").click()
    page.locator(".mark", has_text="after thirty").wait_for()
    service.ok("POST", f"/v1/sessions/{session}/append", {"text": " and more"})
    page.reload()
    page.get_by_text("39 tokens").first.wait_for()
    page.locator("li", has=page.locator("> .mark", has_text="after thirty")).last.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    page.locator(".facts div", has_text="Tokens read").get_by_text("30", exact=True).wait_for()
    assert service.ok("GET", f"/v1/sessions/{session}")["tokens"] == 30 and page.locator(f"a[href='#/sessions/{fork}']").count() == 1
    assert beside(page) == []

    page.goto(f"{service.url}/#/models/{model}")
    for file in service.ok("GET", f"/v1/models/{model}/files")["data"]:
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save {file['name']}", exact=True).click()
        data = pathlib.Path(saved.value.path()).read_bytes()
        assert len(data) == file["bytes"]
        if file["name"] == "config.json":
            assert json.loads(data) == service.ok("GET", f"/v1/models/{model}/files/config.json")
    assert beside(page) == []
    for view in ("play", "jobs", "jobs/new", "explain", "models", "sessions", "files", "evaluations", "operate"):
        page.goto(f"{service.url}/#/{view}")
        page.locator("h1").wait_for()
        page.wait_for_load_state("networkidle")
        assert beside(page) == [], view


def test_a_model_without_weights_for_each_token_generates_and_explains(service, open_page):
    model = service.wait_job(service.job(steps=5, architecture="gpt2")["id"])["fine_tuned_model"]
    page = open_page(f"{service.url}/#/play?model={model}")
    page.locator("textarea").wait_for()
    generate(page, "12 bottles", 6)
    page.locator(".strip [role=option]").nth(13).click()
    page.get_by_role("heading", name="Why “").wait_for()


def test_two_tabs_do_not_disturb_each_other(service, open_page):
    model = service.wait_job(service.job(steps=5)["id"])["fine_tuned_model"]
    first = open_page(f"{service.url}/#/play?model={model}")
    first.locator("textarea").wait_for()
    generate(first, "9 bottles", 5)
    session = first.locator(".branch-head a").text_content()
    second = open_page(f"{service.url}/#/play?session={session}", context=first.context)
    second.locator(".strip [role=option]").nth(13).wait_for()
    assert [text for text, _ in tokens(second)] == [text for text, _ in tokens(first)]
    generate(second, "", 6)
    generate(first, "", 4)
    assert service.ok("GET", f"/v1/sessions/{session}")["tokens"] == 24
    assert len(tokens(first)) == 24  # also what the other tab generated
    service.ok("DELETE", f"/v1/sessions/{session}")
    second.locator("textarea").press("Control+Enter")
    second.locator(".note .error").wait_for()
    assert len(tokens(second)) == 20  # the text stays on the page
