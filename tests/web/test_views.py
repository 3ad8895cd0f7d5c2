"""Every view with a scripted engine: hostile texts, states of the service, keys, proxies."""

import http.client
import http.server
import re
import threading
import time

import pytest

from web_support import NARROW, beside, browser, flush, open_page, wait_until
from http_support import engine, front, start

pytestmark = pytest.mark.slow
HOSTILE = ["<b class=planted>x</b><img class=planted src=//planted.invalid/x onerror=planted()>", "</script><script class=planted>planted()</script>", "\"'`${planted()}&lt;", "\u202eRTL\u2066\u200f", "a\0b\n\tc", "x" * 10000]
VIEWS = ["play", "jobs", "jobs/new", "jobs/j", "explain", "models", "models/m", "models?import=1", "sessions", "sessions/s", "sessions?import=1", "files", "files/f", "evaluations", "evaluations/e", "evaluations/explanations",
         "evaluations/explanations/e", "batches", "batches/new", "batches/b", "operate"]
DAY = 86400


def listed(rows):
    return {"object": "list", "data": rows, "has_more": False, "first_id": None, "last_id": None}


def answers(texts):
    """An answer of each method that the views call. Each name in it is one of the texts."""
    job = lambda i, text: {"id": text if i else "j", "object": "fine_tuning.job", "model": text, "created_at": DAY, "status": ["running", "succeeded", "failed"][i % 3], "fine_tuned_model": text, "training_file": text,
                           "error": {"code": "x", "message": text} if i % 3 == 2 else None,
                           "additive": {"step": 2, "total_steps": 4, "train_loss": 1.5, "valid_loss": 1.25, "eta_seconds": 3, "tokens_per_second": 1000, "bits_per_byte": 2.0, "paused_reason": None, "resolved": {"architecture": text}}}
    model = lambda text: {"id": text, "object": "model", "created": DAY, "owned_by": "additive", "additive": {"architecture": text, "parameters": 12345, "state_bytes": 7296, "loaded": True, "dtype": "fp32", "backend": "cpu", "n_positions": None,
                          "project": text, "tokenizer": {"type": text, "vocab_size": 256}, "config": {"name": text}}}
    session = lambda text: {"id": text, "object": "session", "model": text, "tokens": 3, "state_bytes": 7296, "durable": True, "created": DAY, "expires_at": None}
    token = lambda text: {"text": text, "id": 1, "offset": 0}
    batch = lambda i, text: {"id": text if i else "b", "object": "batch", "endpoint": text, "input_file_id": text, "completion_window": text, "status": ["failed", "in_progress", "completed"][i % 3], "created_at": DAY, "expires_at": 2 * DAY,
                             "errors": {"object": "list", "data": [{"code": "x", "message": text, "param": None, "line": 1}]} if i % 3 == 0 else None, "output_file_id": text, "error_file_id": text,
                             "request_counts": {"total": 4, "completed": 2, "failed": 1}, "metadata": None, "additive": {"error": None}}
    faithfulness = lambda i, text: {"id": text if i else "e", "object": "explain.evaluation.job", "created_at": DAY, "finished_at": None, "status": "failed", "model": text, "file": text, "texts": {"total": 4, "done": 1},
                                    "settings": {"seed": text}, "error": {"code": "x", "message": text}, "result": None}
    return {
        "model.list": listed([model(text) for text in texts]), "model.get": model(texts[0]), "model.files": listed([{"name": text, "bytes": 3} for text in texts]),
        "file.list": listed([{"id": f"file-{i}", "object": "file", "filename": text, "purpose": ["fine-tune", "batch"][i % 2], "bytes": 3, "created_at": DAY} for i, text in enumerate(texts)]),
        "file.get": {"id": "f", "object": "file", "filename": texts[0], "purpose": "fine-tune", "bytes": 3, "created_at": DAY},
        "file.statistics": {"object": "file.statistics", "id": "f", "model": None, "kind": texts[0], "tokenizer": texts[0], "bytes": 3, "documents": 12345, "characters": 67890, "tokens": 70000,
                            "lengths": {"characters": None, "tokens": {"min": 1, "p50": 20, "p90": 300, "p99": 4000, "max": 56789}}, "duplicates": {"count": 7, "estimated": True}, "invalid_utf8_lines": 9,
                            "scripts": [{"script": text, "characters": 5, "share": 0.5} for text in texts]},
        "job.list": listed([job(i, text) for i, text in enumerate(texts)]), "job.get": job(0, texts[0]),
        "job.create": {"resolved": {"parameters": 5, "max_steps": 4, "batch_size": 2, "sequence_length": 8, "estimated_seconds": 3, "objective": texts[0]}, "tokens": 99},
        "job.checkpoints": listed([{"id": text, "step_number": 2, "fine_tuned_model_checkpoint": text, "metrics": {"valid_loss": 1.0}} for text in texts]),
        "session.list": listed([session(text) for text in texts]), "session.get": {**session(texts[0]), "id": "s"},
        "session.tree": listed([{"id": "s", "tokens": 3, "parent": None, "snapshots": [{"id": f"snap-{i}", "name": text, "tokens": 2, "created_at": DAY} for i, text in enumerate(texts)]},
                                *({"id": text, "tokens": 4, "parent": {"session": "s", "tokens": 3}, "snapshots": []} for text in texts)]),
        "evaluation.list": listed([{"id": text, "model": text, "file": text, "status": "failed", "created_at": DAY, "progress": {"tokens": 1, "total_tokens": 2}, "result": None} for text in texts]),
        "evaluation.get": {"id": "e", "model": texts[0], "file": texts[0], "status": "succeeded", "created_at": DAY, "finished_at": DAY, "error": {"code": "x", "message": texts[0]}, "settings": {"context": texts[0]},
                           "progress": {"tokens": 2, "total_tokens": 2, "eta_seconds": 0, "nats_per_token": 1.0},
                           "result": {"tokens": 2, "bytes": 3, "nats_per_token": 1.0, "perplexity": 2.7, "bits_per_byte": 1.0, "accuracy": 0.5, "positions": [{"from": 1, "to": 1, "tokens": 2, "nats_per_token": 1.0, "perplexity": 2.7, "accuracy": 0.5}],
                                      "rows": [{"token": {"id": 1, "text": text}, "likeliest": {"id": 1, "text": text}, "nats": 1.0, "index": 1, "offset": 0, "position": 1, "before": text} for text in texts]}},
        "faithfulness.list": listed([faithfulness(i, text) for i, text in enumerate(texts)]), "faithfulness.get": faithfulness(0, texts[0]),
        "batch.list": listed([batch(i, text) for i, text in enumerate(texts)]), "batch.get": batch(0, texts[0]),
        "storage.usage": {"data_bytes": 5, "budget_bytes": 0, "disk_free_bytes": 7, "kinds": [{"kind": text, "count": 1, "bytes": 2} for text in texts],
                          "damaged": [{"kind": text, "id": text, "problem": text} for text in texts], "lost": [{"kind": "file", "name": text, "bytes": 2} for text in texts]},
        "key.list": listed([{"id": f"key-{i}", "name": text, "role": "admin", "project": text, "created_at": DAY, "last_used_at": None, "revoked_at": None, "expires_at": None} for i, text in enumerate(texts)]),
        "session.create": session("s"), "session.fork": session("f"), "session.alpha": {"object": "explanation", "model": texts[0], "tokens": [token(text) for text in texts], "position": 0, "weights": []},
        "explain": {"object": "explanation", "model": texts[0], "tokens": [token(text) for text in texts], "position": len(texts) - 1, "aggregate": None, "weights": [], "contributions": {
            "target": {"kind": "contrast", "automatic": False, "token": {"id": 1, "text": texts[0]}, "other": None, "logit": 1.0, "log_probability": -1.0}, "score": 1.0,
            "tokens": [1.0] * len(texts), "sums": {"tokens": 1.0, "reader": 0.0, "positions": 0.0, "biases": 0.0, "rounding": 0.0}}}}


def scripted(engine, texts=("name",)):
    """An engine whose every answer is of these texts."""
    for method, answer in answers(list(texts)).items():

        @engine.on(method)
        async def _(call, answer=answer):
            call.result(answer)

    @engine.on("job.watch")
    async def _(call):
        for i, text in enumerate(texts):
            await call.event({"id": f"e{i}", "object": "fine_tuning.job.event", "type": "metrics", "created_at": DAY, "level": "info", "message": text,
                              "data": {"step": i + 1, "train_loss": 2.0 - i / 10, "preview": {"prompt": text, "text": text}}})
            await call.event({"id": f"m{i}", "object": "fine_tuning.job.event", "type": "message", "created_at": DAY, "level": "info", "message": text, "data": None})
        call.result({})


def address(front):
    return f"http://127.0.0.1:{front.port}"


def show(page, front, view):
    page.goto(f"{address(front)}/#/{view}")
    page.locator("h1, .card h2").first.wait_for()
    page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("view", [*(view for view in VIEWS if view != "models?import=1"), "explain?model=m&input=x", "play?session=s"])  # an import shows the names of chosen files alone
def test_hostile_texts_stay_texts(engine, front, open_page, view):
    scripted(engine, HOSTILE)
    page = open_page(address(front) + "/", size=NARROW)
    show(page, front, view)
    assert page.locator(".card.failed").count() == 0, page.locator(".card.failed").first.text_content()
    for summary in page.locator("summary").all():
        summary.evaluate("node => { node.parentElement.open = true; }")
    assert page.locator(".planted").count() == 0 and page.evaluate("typeof planted") == "undefined"
    assert "class=planted" in page.locator("main").text_content()
    assert beside(page) == []


def test_a_service_that_went_away_is_announced_until_it_is_back(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/")
    show(page, front, "models")
    assert page.locator("#banner").is_hidden()
    engine.stop()
    page.get_by_role("link", name="Files").click()
    page.locator("#banner").wait_for()
    assert page.locator("#banner").text_content().endswith("Trying again every two seconds.") and page.locator(".card.failed").count() == 1
    engine.start()
    page.locator("#banner").wait_for(state="hidden")
    page.get_by_role("heading", name="Files").wait_for()
    assert page.locator(".rows td").first.text_content() == "name" and page.locator(".card.failed").count() == 0


def test_a_view_that_fails_while_the_service_is_ready_is_asked_for_with_pauses(engine, front, open_page):
    scripted(engine)
    asked, page = [], open_page(address(front) + "/#/models")

    def refuse(route):
        asked.append(time.monotonic())
        route.fulfill(status=503, json={"error": {"code": "engine_unavailable", "message": "away"}})

    page.route("**/v1/files?*", refuse)
    page.get_by_role("link", name="Files").click()
    wait_until(page, lambda: len(asked) >= 3)
    assert asked[2] - asked[1] > 1.5


def test_a_key_is_asked_for_kept_and_forgotten(engine, start, open_page, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    scripted(engine)
    front = start("--api-key-file", tmp_path / "keys")
    page = open_page(address(front) + "/#/models")
    for key, kept in (("wrong", False), ("secret", False), ("", False), ("secret", True)):
        page.get_by_role("button", name="Enter a key").or_(page.locator("#key")).last.click()
        page.get_by_label("API key").fill(key)
        page.get_by_label("Keep it in this browser").set_checked(kept)
        page.get_by_role("button", name="Use it").click()
        if key == "secret":
            page.locator(".rows td", has_text="name").first.wait_for()
        else:
            page.get_by_role("heading", name="The key in use is wrong, revoked or expired." if key else "This service has keys.").wait_for()
    page.reload()
    page.locator(".rows td", has_text="name").first.wait_for()
    other = open_page(address(front) + "/#/models", context=page.context)
    other.locator(".rows td", has_text="name").first.wait_for()


def test_a_file_has_its_statistics_or_why_it_has_none(engine, front, open_page):
    scripted(engine)
    page = open_page(f"{address(front)}/#/files", size=NARROW)
    page.get_by_role("link", name="name", exact=True).click()
    page.locator(".facts div", has_text="Duplicates").get_by_text("about 7", exact=True).wait_for()
    said = [row.evaluate("node => [...node.cells].map(cell => cell.textContent)") for row in page.locator("tbody tr").all()]
    assert said == [["Length in characters", *["\u2013"] * 5], ["Length in tokens", "1", "20", "300", "4,000", "56,789"], ["name", "5", "50.0 %"]]
    assert page.locator(".facts").last.locator("dd").all_text_contents() == ["name", "12,345", "67,890", "70,000", "about 7", "9"] and beside(page) == []

    @engine.on("file.statistics")
    async def _(call):
        call.error(400, "invalid_value", "line 3: <b>no text</b>", "id")

    page.reload()
    page.locator("section .card.failed", has_text="line 3: <b>no text</b>").wait_for()
    assert page.locator(".facts div", has_text="Purpose").is_visible() and beside(page) == []


def test_the_statistics_of_a_file_count_with_the_tokenizer_of_a_model(engine, front, open_page):
    scripted(engine, ["one", "two"])

    @engine.on("file.statistics")
    async def _(call):
        if call.params.get("model") == "two":
            call.error(400, "invalid_value", "<b>no tokenizer</b>", "model")
            return
        call.result({**answers(["one"])["file.statistics"], "tokens": 7 if call.params.get("model") else 99})

    page = open_page(f"{address(front)}/#/files/f", size=NARROW)
    tokens = page.locator(".facts div", has_text="Tokens")
    tokens.get_by_text("99", exact=True).wait_for()
    page.get_by_label("Tokenizer of").select_option("one")
    tokens.get_by_text("7", exact=True).wait_for()
    assert page.url.endswith("/#/files/f?model=one") and beside(page) == []
    page.reload()
    tokens.get_by_text("7", exact=True).wait_for()
    assert page.get_by_label("Tokenizer of").input_value() == "one"
    page.get_by_label("Tokenizer of").select_option("two")
    page.locator("section .card.failed", has_text="<b>no tokenizer</b>").wait_for()
    page.get_by_label("Tokenizer of").select_option("")
    tokens.get_by_text("99", exact=True).wait_for()
    assert page.url.endswith("/#/files/f") and [call.params.get("model") for call in engine.called("file.statistics")] == [None, "one", "one", "two", None]


def test_one_is_no_plural(engine, front, open_page):
    scripted(engine)

    @engine.on("session.get")
    async def _(call):
        call.result({**answers(["name"])["session.get"], "state_bytes": 1, "expires_at": time.time() + 1.5 * DAY})

    @engine.on("session.tree")
    async def _(call):
        call.result(listed([{"id": "s", "tokens": 1, "parent": None, "snapshots": []},
                            {"id": "f", "tokens": 30, "parent": {"session": "s", "snapshot": "snap-0", "tokens": 0}, "snapshots": []}, {"id": "g", "tokens": 1, "parent": {"session": "s", "snapshot": None, "tokens": 1}, "snapshots": []}]))

    page = open_page(f"{address(front)}/#/sessions/s")
    page.locator(".facts", has_text="in 1 day").wait_for()
    said = page.locator("main").text_content()
    assert "1 byteKept" in said and "in 1 day" in said and "days" not in said and "1 tokens" not in said
    assert "f, 30 tokens (forked at the snapshot of 0 tokens)" in said and "g, 1 token (forked after 1 token)" in said


@pytest.mark.parametrize("view,verb,method", [("jobs/j", "Stop", "job.cancel"), ("sessions/s", "Roll back", "session.rollback")])
def test_what_cannot_be_undone_asks_first(engine, front, open_page, view, verb, method):
    scripted(engine)

    @engine.on(method)
    async def _(call):
        call.result(answers(["name"])[f"{method.split('.')[0]}.get"])

    page = open_page(f"{address(front)}/#/{view}")
    for answer in ("Cancel", verb):
        page.get_by_role("button", name=verb).click()
        assert engine.called(method) == []
        page.get_by_role("dialog").get_by_role("button", name=answer).click()
        page.get_by_role("dialog").wait_for(state="detached")
    wait_until(page, lambda: engine.called(method))


def test_a_service_without_the_page_says_so(start, open_page):
    page = open_page(address(start("--no-web")) + "/")
    assert "--no-web" in page.locator("body").text_content()


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64  # a browser opens several connections at once


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes what is below /x/ on to the service, with the browser's Host, piece by piece."""

    def pass_on(self):
        if not self.path.startswith("/x/"):
            self.send_error(418)
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        upstream.request(self.command, self.path[2:], body, dict(self.headers))
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                self.send_header(name, value)
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
        upstream.close()

    do_GET = do_POST = do_DELETE = pass_on

    def log_message(self, *_):
        pass


def test_a_proxy_may_put_the_page_below_a_prefix(engine, front, open_page):
    scripted(engine)
    with Server(("127.0.0.1", 0), Proxy) as proxy:
        proxy.port = front.port
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        page = open_page(f"http://127.0.0.1:{proxy.server_port}/x/")
        for view in VIEWS:
            page.goto(f"http://127.0.0.1:{proxy.server_port}/x/#/{view}")
            page.locator("h1").wait_for()
            page.wait_for_load_state("networkidle")
            assert page.locator(".card.failed").count() == 0, view
        page.goto("about:blank")
        proxy.shutdown()
    assert engine.called("session.tree") and engine.called("job.watch")


def test_a_model_that_no_list_has_can_be_talked_to(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/#/play?model=name:ckpt-step-5")
    page.locator("textarea").wait_for()
    assert page.get_by_label("Model", exact=True).input_value() == "name:ckpt-step-5"


def test_an_address_asks_for_the_object_that_it_names_and_for_no_other(engine, front, open_page):
    scripted(engine)
    page, asked = open_page(address(front) + "/#/files"), set()
    page.get_by_role("heading", name="Files").wait_for()
    page.on("request", lambda request: asked.add(request.url.removeprefix(address(front))))
    for part in ("%", "%E0%A4", "a%2Fb", "<b>"):
        with page.expect_response("**/v1/models/**"):
            page.evaluate("part => { location.hash = `#/models/${part}`; }", part)
        page.locator(".card.failed").wait_for()
    for part in ("..", ".", "%2e%2e"):
        page.evaluate("part => { location.hash = `#/models/${part}`; }", part)
        page.get_by_text(f'"{part.replace("%2e", ".")}" is not a valid name').wait_for()
        page.evaluate("location.hash = '#/nothing'")
        page.get_by_text("no page").wait_for()
    assert {path for path in asked if not path.startswith("/web/")} == {f"/v1/models/{name}" for name in ("%25", "%25E0%25A4", "a%2Fb", "%3Cb%3E")}


def test_a_job_is_followed_on_after_its_engine_died(engine, front, open_page):
    scripted(engine)

    @engine.on("job.watch")
    async def _(call):
        first = len(engine.called("job.watch")) == 1
        await call.event({"id": "e1" if first else "e2", "object": "fine_tuning.job.event", "type": "message", "created_at": DAY, "level": "info", "message": "before" if first else "after", "data": None})
        call.error(503, "engine_unavailable") if first else call.result({})

    page = open_page(address(front) + "/#/jobs/j")
    page.locator(".log li", has_text="after").wait_for(state="attached")
    assert page.locator(".log li").count() == 2 and engine.called("job.watch")[1].params["after"] == "e1"


def test_what_the_reader_opened_stays_while_a_job_runs(engine, front, open_page):
    scripted(engine)

    @engine.on("job.watch")
    async def _(call):
        await call.event({"id": "e1", "object": "fine_tuning.job.event", "type": "message", "created_at": DAY, "level": "info", "message": "said", "data": None})

    page = open_page(address(front) + "/#/jobs/j")
    page.locator("summary", has_text="Options").click()
    page.get_by_role("button", name="Pause").focus()
    asked = len(engine.called("job.get"))
    wait_until(page, lambda: len(engine.called("job.get")) >= asked + 2)
    assert page.locator("details", has_text="Options").get_attribute("open") is not None
    assert page.evaluate("document.activeElement.textContent") == "Pause"


def test_a_new_key_is_shown_until_the_reader_has_it(engine, front, open_page):
    scripted(engine)

    @engine.on("key.create")
    async def _(call):
        call.result({"id": "key-9", "object": "key", "name": "n", "role": "user", "secret": "sk-only-now"})

    page = open_page(address(front) + "/#/operate")
    page.locator("summary", has_text="New key").click()
    page.get_by_role("button", name="Create").click()
    page.evaluate("delete Navigator.prototype.clipboard")  # as without TLS
    page.get_by_role("button", name="Copy it").click()
    page.get_by_text("no clipboard").wait_for()
    assert page.locator("pre", has_text="sk-only-now").is_visible()
    page.get_by_role("button", name="I have it").click()
    page.locator("pre", has_text="sk-only-now").wait_for(state="detached")


def test_the_first_key_is_an_admins_and_the_page_uses_it(engine, front, open_page):
    scripted(engine)

    @engine.on("key.list")
    async def _(call):
        call.result(listed([]))

    @engine.on("key.create")
    async def _(call):
        call.result({"id": "key-9", "object": "key", "name": "n", "role": call.params["role"], "secret": "sk-first"})

    page = open_page(address(front) + "/#/operate")
    page.locator("summary", has_text="New key").click()
    page.get_by_role("button", name="Create").click()
    with page.expect_request(lambda request: "v1/keys" in request.url and request.headers.get("authorization") == "Bearer sk-first"):
        page.get_by_role("button", name="I have it").click()
    assert engine.called("key.create")[0].params["role"] == "admin"


def test_the_skip_link_leads_to_the_content_of_the_view(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/#/files")
    page.get_by_role("heading", name="Files").wait_for()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main" and page.get_by_role("heading", name="Files").count() == 1


def test_a_saved_curve_has_its_colours(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/#/jobs/j")
    page.locator(".plotted .plot path").first.wait_for(state="attached")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as SVG").first.click()
    text = open(saved.value.path(), encoding="utf-8").read()
    assert "var(" not in text and 'stroke="#0b6e5a"' in text


def test_an_upload_that_ends_later_leaves_the_next_view_alone(engine, front, open_page):
    scripted(engine)
    held = []
    page = open_page(address(front) + "/#/files")
    page.get_by_role("heading", name="Files").wait_for()
    page.route("**/v1/files", lambda route: held.append(route) if route.request.method == "POST" else route.continue_())
    page.locator("input[type=file]").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"})
    wait_until(page, lambda: held)
    page.get_by_role("link", name="Sessions").click()
    page.get_by_role("heading", name="Sessions").wait_for()
    with page.expect_response("**/v1/files"):
        held[0].fulfill(json={"id": "file-9", "filename": "a.txt"})
    page.wait_for_load_state("networkidle")
    assert page.locator("h1").text_content() == "Sessions"


def test_a_row_that_stays_keeps_the_focus(engine, front, open_page):
    scripted(engine, ["one", "two", "three"])
    page = open_page(address(front) + "/#/sessions")
    page.get_by_label("Delete the session two").focus()
    page.locator("input[type=search]").evaluate("node => { node.value = 't'; node.dispatchEvent(new Event('input')); }")
    assert page.locator(".rows tbody td.wide a").all_text_contents() == ["two", "three"]
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Delete the session two"
    page.locator("input[type=search]").fill("")
    assert page.locator(".rows tbody td.wide a").all_text_contents() == ["one", "two", "three"]


def test_a_row_is_deleted_while_its_list_still_loads(engine, front, open_page):
    scripted(engine)
    row = answers(["name"])["session.get"]

    @engine.on("session.list")
    async def _(call):
        first = 100 if "after" in call.params else 0
        rows = [{**row, "id": f"s-{i}"} for i in range(first, first + 100)]
        call.result({"object": "list", "data": rows, "has_more": not first, "first_id": rows[0]["id"], "last_id": rows[-1]["id"]})

    held, page = [], open_page(address(front) + "/")
    page.route(re.compile(r"/v1/sessions\?.*after="), lambda route: held.append(route))
    page.get_by_role("link", name="Sessions").click()
    page.get_by_text("100 in all").wait_for()
    page.get_by_label("Delete the session s-1", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("99 in all").wait_for()
    held[0].continue_()
    page.get_by_text("199 in all").wait_for()
    assert page.locator(".rows tbody td.wide a").all_text_contents()[:3] == ["s-0", "s-2", "s-3"]


def test_an_answer_about_an_earlier_state_of_a_form_is_dropped(engine, front, open_page):
    scripted(engine)
    held, page = [], open_page(address(front) + "/#/jobs/new")
    page.get_by_text("4 steps of 16 tokens").wait_for()
    page.route("**/v1/fine_tuning/jobs", lambda route: held.append(route))
    for i, steps in enumerate((7, 9)):
        page.locator("#option-max_steps").fill(str(steps))
        wait_until(page, lambda: len(held) > i)
    resolved = answers(["name"])["job.create"]
    for i, steps in ((1, 9), (0, 7)):
        with page.expect_response("**/v1/fine_tuning/jobs"):
            held[i].fulfill(json={**resolved, "resolved": {**resolved["resolved"], "max_steps": steps}})
        flush(page)
    assert page.get_by_text("9 steps of 16 tokens").count() == 1 and page.get_by_text("7 steps of").count() == 0


def test_messages_are_bounded_in_number_and_length(engine, front, open_page):
    scripted(engine)

    @engine.on("job.watch")
    async def _(call):
        for i in range(60):
            await call.event({"id": f"m{i}", "object": "fine_tuning.job.event", "type": "message", "created_at": DAY, "level": "info", "message": f"<{i}>" + "x" * 5000, "data": None})
        call.result({})

    page = open_page(address(front) + "/#/jobs/j")
    page.locator(".log li", has_text="<59>").wait_for(state="attached")
    page.locator("summary", has_text="Messages").click()
    said = page.locator(".log li").all_text_contents()
    assert len(said) == 50 and "<10>" in said[0] and max(map(len, said)) < 1100
    assert page.locator(".log").bounding_box()["height"] <= 20 * 16


def test_a_file_that_is_dropped_beside_its_field_does_not_replace_the_page(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/#/jobs/new")
    page.locator(".drop").wait_for()
    for name in ("dragover", "drop"):
        assert not page.locator("h1").evaluate("(node, name) => node.dispatchEvent(new DragEvent(name, {bubbles: true, cancelable: true}))", name)


@pytest.mark.parametrize("query,wanted", [
    ("model=m&token_ids=5,6,7", [{"model": "m", "input": [5, 6, 7]}]),
    ("model=m&token_ids=5&token_id=130&other_id=0", [{"model": "m", "input": [5], "target": {"token": 130, "other": 0, "kind": "difference"}}]),
    ("model=m&input=x&token_id=0&position=2", [{"model": "m", "input": "x", "target": {"token": 0}, "position": 2}]),
    ("session=s&position=4&token_id=130&other=b", [{"session": "s", "target": {"token": 130, "other": "b", "kind": "difference"}, "position": 4}]),
    ("model=m&token_ids=5,6&second_token_ids=5,8&second_token_id=3", [{"model": "m", "input": [5, 6]}, {"model": "m", "input": [5, 8], "target": {"token": 3}}])])
def test_an_address_explains_tokens_by_their_ids(engine, front, open_page, query, wanted):
    scripted(engine)
    page = open_page(f"{address(front)}/#/explain?{query}")
    page.get_by_role("heading", name="Why “name”").or_(page.locator(".compared")).first.wait_for()
    asked = lambda: [{name: x for name, x in call.params.items() if name != "format"} for call in engine.called("explain")[-len(wanted):]]
    assert asked() == wanted
    page.locator("summary", has_text="Method").evaluate("node => { node.parentElement.open = true; }")
    page.locator("#explain-method").select_option("leave_one_out")
    page.get_by_role("button", name="Explain", exact=True).click()  # the form keeps what the address named
    wait_until(page, lambda: all("method" in request for request in asked()))
    assert asked() == [{**request, "method": "leave_one_out"} for request in wanted] and page.locator(".card.failed").count() == 0


def test_token_ids_take_the_place_of_a_text(engine, front, open_page):
    scripted(engine)
    page = open_page(f"{address(front)}/#/explain")
    page.locator("summary", has_text="token ids").click()
    for typed in ("1;2", "a", "1,"):
        page.locator("#token_ids").fill(typed)
        page.get_by_role("button", name="Explain", exact=True).click()
        assert page.evaluate("document.activeElement.id") == "token_ids" and page.url.endswith("#/explain")
    page.locator("#token_ids").fill("1, 22")
    page.get_by_role("button", name="Explain", exact=True).click()
    page.get_by_role("heading", name="Why “name”").wait_for()
    assert engine.called("explain")[-1].params["input"] == [1, 22] and page.locator("#token_ids").input_value() == "1, 22"


def test_an_explanation_needs_a_text(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/#/explain")
    for name in ("Explain", "How faithful is it?"):
        page.locator("#position").focus()
        page.get_by_role("button", name=name, exact=True).click()
        assert page.evaluate("document.activeElement.id") == "input" and page.url.endswith("#/explain")
