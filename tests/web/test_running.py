"""Lists of jobs, evaluations and batches: they follow what runs, stop it, and lead to its results."""

import json
import re

import pytest

from web_support import NARROW, beside, browser, flush, open_page, table, wait_until
from conftest import TEXT, service
from explanation_samples import EVALUATION, JOB
from http_support import engine, front, start
from test_views import DAY, address, answers, listed, scripted

pytestmark = pytest.mark.slow
PAUSE = 2001  # ms; the page's own is 2000


def evaluation(id, status, done=0):
    return {"id": id, "object": "evaluation", "model": "m", "file": "file-0", "status": status, "created_at": DAY, "progress": {"tokens": done, "total_tokens": 4}, "result": None}


def faithfulness(id, status, done=0):
    return {**JOB, "id": id, "status": status, "texts": {"total": 4, "done": done}, "result": EVALUATION if status == "succeeded" else None}


def batch(id, status, done=0, **more):
    ended = status == "completed"
    return {"id": id, "object": "batch", "endpoint": "/v1/completions", "input_file_id": "file-0", "completion_window": "24h", "status": status, "created_at": DAY, "expires_at": 2 * DAY, "errors": None,
            "output_file_id": "file-8" if ended else None, "error_file_id": "file-9" if ended else None, "request_counts": {"total": 4, "completed": done, "failed": 0}, "metadata": None, "additive": {"error": None}, **more}


def job(id, status, done=0):
    return {**answers(["m"])["job.list"]["data"][0], "id": id, "status": status, "additive": {"step": done, "total_steps": 4}}


# view: (engine's methods, a row of the list, statuses while it runs and at the end, text of its progress)
RUNS = {"evaluations": ("evaluation", evaluation, "running", "succeeded", lambda n: f"{25.0 * n} %"),
        "evaluations/explanations": ("faithfulness", faithfulness, "running", "succeeded", lambda n: f"{25.0 * n} %"),
        "batches": ("batch", batch, "in_progress", "completed", lambda n: f"{25.0 * n} %"),
        "jobs": ("job", job, "running", "succeeded", lambda n: f"{n} / 4")}
STOPPABLE = [view for view in RUNS if view != "jobs"]


def with_clock(open_page, front, view):
    page = open_page(f"{address(front)}/healthz")
    page.clock.install()
    page.goto(f"{address(front)}/#/{view}")
    return page


@pytest.mark.parametrize("view", RUNS)
def test_a_list_reads_what_runs_again_until_it_has_ended(engine, front, open_page, view):
    methods, row, runs, ended, progress = RUNS[view]
    states = [(runs, 1), (runs, 2), (ended, 4)]
    scripted(engine)

    @engine.on(f"{methods}.list")
    async def _(call):
        call.result(listed([row("x", *states[len(engine.called(f"{methods}.list")) - 1]), row("y", ended, 3)]))

    page = with_clock(open_page, front, view)
    line = page.locator(".rows tbody tr").nth(1)
    line.get_by_text(progress(1), exact=True).wait_for()
    control = line.locator("a, button").last
    control.evaluate("node => { node.kept = true; node.focus(); }")
    page.clock.fast_forward(PAUSE)
    line.get_by_text(progress(2), exact=True).wait_for()
    assert page.evaluate("document.activeElement.kept")
    page.clock.fast_forward(PAUSE)
    line.get_by_text(progress(4), exact=True).wait_for()
    assert line.locator(".status").text_content() == ended
    assert page.evaluate("document.activeElement.closest('tr') !== null")
    page.clock.fast_forward(60000)
    page.evaluate("fetch('readyz')")
    assert len(engine.called(f"{methods}.list")) == 3


def test_pages_are_read_until_every_running_row_was_seen(engine, front, open_page):
    scripted(engine)

    @engine.on("evaluation.list")
    async def _(call):
        first = "after" not in call.params
        rows = [evaluation(f"new-{i}", "succeeded", 4) for i in range(100)] if first else [evaluation("old", "running", 1)] if not gone else []
        call.result({**listed(rows), "has_more": first, "last_id": rows[-1]["id"] if rows else None})

    gone = []
    page = with_clock(open_page, front, "evaluations")
    page.get_by_text("101 in all").wait_for()
    gone.append(True)  # deleted elsewhere
    page.clock.fast_forward(PAUSE)
    page.get_by_text("100 in all").wait_for()
    page.clock.fast_forward(60000)
    page.evaluate("fetch('readyz')")
    assert [call.params.get("after") for call in engine.called("evaluation.list")] == [None, "new-99"] * 2


def test_a_list_is_read_again_after_an_answer_that_does_not_last(engine, front, open_page):
    scripted(engine)
    refused = [(404, "not_found", "there is no such row", "after"), (500, "internal_error", "no memory"), (429, "rate_limited", "too many")]

    @engine.on("evaluation.list")
    async def _(call):
        reads = len(engine.called("evaluation.list")) // 2  # two pages each
        if "after" not in call.params:
            call.result({**listed([evaluation("new", "succeeded", 4)]), "has_more": True, "last_id": "new"})
        elif 1 < reads < 5:
            call.error(*refused[reads - 2])
        else:
            call.result(listed([evaluation("old", "running" if reads == 1 else "succeeded", 2)]))

    page = with_clock(open_page, front, "evaluations")
    page.locator(".status.running").wait_for()
    for reads in range(2, 6):
        page.clock.fast_forward(PAUSE)
        wait_until(page, lambda: len(engine.called("evaluation.list")) == 2 * reads)
        flush(page)
    page.locator(".status.running").wait_for(state="detached")
    assert page.locator(".status.succeeded").count() == 2


def test_a_list_continues_after_the_engine_was_away(engine, front, open_page):
    scripted(engine)
    done = [1]

    @engine.on("batch.list")
    async def _(call):
        call.result(listed([batch("x", "in_progress", done[0])]))

    page = open_page(f"{address(front)}/#/batches")
    page.get_by_text("25.0 %", exact=True).wait_for()
    engine.stop()
    page.locator("#banner").wait_for()
    done[0] = 2
    engine.start()
    page.locator("#banner").wait_for(state="hidden")
    page.get_by_text("50.0 %", exact=True).wait_for()
    assert page.locator(".card.failed").count() == 0


@pytest.mark.parametrize("view", STOPPABLE)
def test_stopping_asks_first(engine, front, open_page, view):
    methods, row, runs, ended, _ = RUNS[view]
    scripted(engine)

    @engine.on(f"{methods}.list")
    async def _(call):
        call.result(listed([row("x", runs, 1)]))

    @engine.on(f"{methods}.cancel")
    async def _(call):
        call.error(409, "invalid_job_state", "it has <b>ended</b>") if len(engine.called(f"{methods}.cancel")) == 1 else call.result(row("x", "cancelled", 1))

    page = with_clock(open_page, front, view)
    stop = page.locator(".rows button", has_text="Stop")
    stop.click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert engine.called(f"{methods}.cancel") == []
    stop.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # the dialog begins with its action
    page.get_by_role("dialog").get_by_text("it has <b>ended</b>").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    stop.click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    page.locator(".status.cancelled").wait_for()
    assert [call.params["id"] for call in engine.called(f"{methods}.cancel")] == ["x", "x"]
    assert page.locator(".rows button", has_text="Delete").count() == 1 and stop.count() == 0


@pytest.mark.parametrize("verb,state", [("Stop", "in_progress"), ("Delete", "completed")])
def test_a_decision_that_ends_later_leaves_the_next_view_alone(engine, front, open_page, verb, state):
    scripted(engine)

    @engine.on("batch.get")
    async def _(call):
        call.result(batch("b", state, 4))

    held, page = [], open_page(f"{address(front)}/#/batches/b")
    page.get_by_role("button", name=verb).click()
    page.route(re.compile("/v1/batches/b(/cancel)?$"), lambda route: held.append(route) if route.request.method != "GET" else route.continue_())
    page.get_by_role("dialog").get_by_role("button", name=verb).click()
    wait_until(page, lambda: held)
    page.get_by_role("link", name="Sessions").click()
    page.get_by_role("heading", name="Sessions").wait_for()
    with page.expect_response(re.compile("/v1/batches/b(/cancel)?$")):
        held[0].fulfill(json=batch("b", "cancelled"))
    flush(page)
    assert page.locator("h1").text_content() == "Sessions" and page.get_by_role("dialog").count() == 0


def test_a_batch_that_is_being_stopped_has_no_button_for_it(engine, front, open_page):
    scripted(engine)

    @engine.on("batch.list")
    async def _(call):
        call.result(listed([batch("x", "cancelling", 1)]))

    page = with_clock(open_page, front, "batches")
    page.locator(".status.cancelling").wait_for()
    assert page.locator(".rows button").count() == 0


def test_a_batch_is_made_from_a_file(engine, front, open_page):
    scripted(engine)
    files = [{"id": f"file-{i}", "object": "file", "filename": f"{purpose}.jsonl", "purpose": purpose, "bytes": 3, "created_at": DAY} for i, purpose in enumerate(["fine-tune", "batch", "batch_output"])]

    @engine.on("file.list")
    async def _(call):
        call.result(listed(files))

    @engine.on("batch.create")
    async def _(call):
        call.error(400, "invalid_value", "no time", "completion_window") if call.params["completion_window"] == "0h" else call.result(batch("b", "validating"))

    page = open_page(f"{address(front)}/#/files")
    page.get_by_role("link", name="Run it").click()
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    page.get_by_role("heading", name="New batch").wait_for()
    file = page.get_by_label("Input file")
    assert file.input_value() == "file-1" and file.locator("option").count() == 2
    endpoints = front.get("/openapi.json").json["components"]["schemas"]["BatchRequest"]["properties"]["endpoint"]["enum"]
    assert page.get_by_label("Endpoint").locator("option").all_text_contents() == endpoints
    page.get_by_label("Endpoint").select_option("/v1/embeddings")
    page.get_by_label("Completion window").fill("0h")
    page.get_by_role("button", name="Run", exact=True).click()
    refused = page.locator(".field", has=page.get_by_label("Completion window")).locator(".error")
    refused.wait_for()
    assert refused.text_content() == "Completion window: no time" and page.locator(".error").count() == 1
    assert page.get_by_label("Completion window").get_attribute("aria-invalid") == "true" and beside(page) == []
    page.get_by_label("Completion window").fill("")
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("heading", name="b", exact=True).wait_for()
    assert engine.called("batch.create")[1].params == {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}


@pytest.mark.parametrize("key", [None, "secret"])
def test_results_and_errors_of_a_batch_are_saved(engine, start, open_page, tmp_path, key):
    (tmp_path / "keys").write_text("secret\n")
    front = start(*(("--api-key-file", tmp_path / "keys") if key else ()))
    scripted(engine)

    @engine.on("batch.get")
    async def _(call):
        call.result(batch("b", "in_progress", 1) if len(engine.called("batch.get")) == 1 else batch("b", "completed", 4))

    @engine.on("file.content")
    async def _(call):
        await call.event({"bytes": 6, "filename": f"{call.params['id']}.jsonl", "content_type": "application/octet-stream"})
        await call.data(call.params["id"].encode())
        call.result({})

    page = open_page(f"{address(front)}/healthz")
    page.clock.install()
    page.evaluate("key => key && sessionStorage.setItem('additive-key', key)", key)
    page.goto(f"{address(front)}/#/batches/b")
    page.locator(".status.in_progress").wait_for()
    assert page.get_by_role("button", name="Save").count() == 0 and page.locator("progress").evaluate("node => node.value") == 0.25
    page.clock.fast_forward(PAUSE)
    for title, file in (("output", "file-8"), ("error", "file-9")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save b_{title}.jsonl").click()
        assert open(saved.value.path(), "rb").read() == file.encode()
    assert page.locator(".status.completed").count() == 1


def test_a_batch_without_requests_says_which_lines_are_wrong(engine, front, open_page):
    scripted(engine)

    @engine.on("batch.get")
    async def _(call):
        call.result(batch("b", "failed", errors={"object": "list", "data": [{"code": "x", "message": "no <b>url</b>", "param": "url", "line": 7}, {"code": "y", "message": "no request", "param": None, "line": None}]}))

    page = open_page(f"{address(front)}/#/batches/b")
    page.locator(".status.failed").wait_for()
    assert page.locator("main .error").all_text_contents() == ["Line 7: no <b>url</b>", "no request"]


def test_explanations_are_evaluated_with_the_options_of_the_form(engine, front, open_page):
    scripted(engine)
    page = open_page(f"{address(front)}/#/evaluations?model=name")
    page.get_by_role("link", name="Of explanations").click()
    page.get_by_role("heading", name="Evaluations of explanations").wait_for()

    @engine.on("faithfulness.list")
    async def _(call):
        call.result(listed([faithfulness("e", "succeeded", 4)]))

    @engine.on("faithfulness.create")
    async def _(call):
        call.error(400, "invalid_value", "too many", "texts") if call.params["texts"] == 1000 else call.result(faithfulness("e", "queued"))

    page.get_by_text("Options").click()
    page.get_by_label("Texts").fill("1000")
    page.get_by_text("Options").click()
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_text("Texts: too many").wait_for()  # its field is shown
    assert page.evaluate("document.activeElement.id") == "evaluation-texts"
    page.get_by_label("Texts").fill("5")
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_role("link", name="m<1>", exact=True).wait_for()  # the list is read again
    assert engine.called("faithfulness.create")[1].params == {"model": "name", "file": "file-0", "texts": 5}


def test_an_evaluation_says_its_result_or_why_it_failed(engine, front, open_page):
    scripted(engine)

    @engine.on("evaluation.list")
    async def _(call):
        call.result(listed([{**evaluation("x", "failed"), "error": {"code": "x", "message": "no <b>text</b>"}}, {**evaluation("y", "succeeded", 4), "result": {"nats_per_token": 1.5, "perplexity": 4.48}}]))

    page = open_page(f"{address(front)}/#/evaluations")
    reason = page.locator(".rows td", has=page.locator(".status.failed")).get_by_text("no <b>text</b>")
    reason.wait_for()
    assert reason.get_attribute("title") == "no <b>text</b>"
    assert page.locator(".rows tr", has=page.locator(".status.succeeded")).locator("td.number").all_text_contents()[1:] == ["1.500", "4.480"]


def test_a_report_of_explanations_has_an_address_and_is_drawn_when_it_is_finished(engine, front, open_page):
    scripted(engine)

    @engine.on("faithfulness.list")
    async def _(call):
        call.result(listed([faithfulness("e-1", "succeeded", 4)]))

    @engine.on("faithfulness.get")
    async def _(call):
        call.result(faithfulness(call.params["id"], "running" if len(engine.called("faithfulness.get")) == 1 else "succeeded", 3))

    page = with_clock(open_page, front, "evaluations/explanations")
    page.get_by_role("link", name="m<1>").click()
    page.get_by_text("3 of 4").wait_for()
    assert page.url.endswith("/#/evaluations/explanations/e-1") and page.locator("#overview").count() == 0
    assert page.get_by_role("button", name="Save page").count() == 0  # the saved page of a running one loads itself again
    page.clock.fast_forward(PAUSE)
    page.locator("#overview").wait_for()
    assert page.locator("h1").text_content() == "How faithful the explanations of m<1> are" and page.get_by_role("button", name="Delete").count() == 1
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save page").click()
    assert "explain.evaluation.job" in open(saved.value.path(), encoding="utf-8").read()
    assert {call.params["id"] for call in engine.called("faithfulness.get")} == {"e-1"}


REPORT = {"object": "evaluation.report", "tokens": 30, "bytes": 40, "nats_per_token": 1.5, "perplexity": 4.4817, "bits_per_byte": 1.625, "accuracy": 0.25,
          "positions": [{"from": 1, "to": 1, "tokens": 1, "nats_per_token": 2.0, "perplexity": 7.389, "accuracy": 0.0}, {"from": 1024, "to": 2047, "tokens": 29, "nats_per_token": 1.25, "perplexity": None, "accuracy": 0.5}],
          "rows": [{"token": {"id": 1, "text": " <b>"}, "likeliest": {"id": 2, "text": "\n"}, "nats": 9.5, "index": 12345, "offset": 1, "position": 1, "before": "a <i>text</i> "}]}
SETTINGS = {"context": "sliding", "length": 64, "stride": None, "reset_at_document": False, "top": 1, "dtype": "fp32"}


def described(id, status, done=0, **more):
    row = evaluation(id, status, done)
    return {**row, "settings": SETTINGS, "error": None, "finished_at": None, "progress": {**row["progress"], "tokens_per_second": 2.0, "eta_seconds": 7, "nats_per_token": 1.75}, **more}


def facts(page):
    return dict(zip(page.locator(".facts dt").all_text_contents(), page.locator(".facts dd").all_text_contents(), strict=True))


def test_an_evaluation_of_a_model_has_an_address_and_its_report(engine, front, open_page):
    scripted(engine)

    @engine.on("evaluation.list")
    async def _(call):
        call.result(listed([evaluation("e-1", "running", 1)]))

    @engine.on("evaluation.get")
    async def _(call):
        call.result(described(call.params["id"], *(("running", 1) if len(engine.called("evaluation.get")) == 1 else ("succeeded", 4)), result=REPORT if len(engine.called("evaluation.get")) > 1 else None))

    @engine.on("evaluation.delete")
    async def _(call):
        call.result({"id": call.params["id"], "object": "evaluation", "deleted": True})

    page = with_clock(open_page, front, "evaluations")
    page.get_by_role("link", name="m", exact=True).click()
    page.get_by_role("heading", name="Evaluation of m").wait_for()
    assert page.url.endswith("/#/evaluations/e-1") and page.locator("progress").evaluate("node => node.value") == 0.25
    known = facts(page)
    assert (known["Done"], known["Left"], known["Loss so far"], known["Context"], known["Length"], known["Stride"], known["Reset at document"]) == ("25.0 %", "7 s", "1.750", "sliding", "64", "\u2013", "false")
    assert page.get_by_role("button", name="Stop").count() == 1 and page.get_by_role("button", name="Delete").count() == 0
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    page.clock.fast_forward(PAUSE)
    page.get_by_role("heading", name="Highest losses").wait_for()
    known = facts(page)
    assert (known["Loss"], known["Perplexity"], known["Bits per byte"], known["Accuracy"], known["Tokens scored"]) == ("1.500 nats per token", "4.482", "1.625", "25.0 %", "30") and "Left" not in known
    assert table(page, "Tokens with this many tokens before them") == [["1", "1", "2.000", "7.389", "0.000 %"], ["1,024 to 2,047", "29", "1.250", "\u2013", "50.0 %"]]
    assert table(page, "The tokens with the highest losses") == [["\u2423<b>", "\u21b5", "9.500", "12,345", "\u201ca <i>text</i> \u201d"]] and beside(page) == []
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="Evaluations", exact=True).wait_for()
    assert [call.params["id"] for call in engine.called("evaluation.delete")] == ["e-1"]


def test_an_evaluation_of_a_model_is_stopped_on_its_page(engine, front, open_page):
    scripted(engine)
    error = {"code": "x", "message": "no <b>disk</b>"}

    @engine.on("evaluation.get")
    async def _(call):
        call.result(described("e", "cancelled" if engine.called("evaluation.cancel") else "running", 1, error=error))

    @engine.on("evaluation.cancel")
    async def _(call):
        call.result(described("e", "cancelled", 1))

    page = open_page(f"{address(front)}/#/evaluations/e")
    page.locator("main .error", has_text="no <b>disk</b>").wait_for()  # why it waits
    page.get_by_role("button", name="Stop").click()
    assert engine.called("evaluation.cancel") == []
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    page.locator(".status.cancelled").wait_for()
    assert page.get_by_role("button", name="Delete").count() == 1


def test_batches_and_evaluations_of_the_real_service(service, open_page):
    model = service.wait_job(service.job(steps=5)["id"])["fine_tuned_model"]
    page = open_page(f"{service.url}/#/batches/new")
    lines = [json.dumps({"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": {"model": model if i else "none", "prompt": "9 bottles", "max_tokens": 3}}) for i in range(3)]
    page.locator("input[type=file]").set_input_files({"name": "requests.jsonl", "mimeType": "application/jsonl", "buffer": "\n".join(lines).encode()})
    page.get_by_text("requests.jsonl is uploaded.").wait_for()
    page.get_by_role("button", name="Run", exact=True).click()
    page.locator(".status.completed").wait_for()
    for kind, found in (("output", ["c1", "c2"]), ("error", ["c0"])):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"_{kind}.jsonl").click()
        assert [json.loads(line)["custom_id"] for line in open(saved.value.path(), encoding="utf-8")] == found

    service.upload("\n".join(TEXT.split(". ")[:20]), "lines.txt")
    page.goto(f"{service.url}/#/models/{model}")
    page.get_by_role("link", name="Evaluate it").click()
    for kind in ("Of models", "Of explanations"):
        page.get_by_role("link", name=kind).click()
        page.get_by_role("link", name=kind, exact=True).and_(page.locator("[aria-current]")).wait_for()
        assert page.get_by_label("Model", exact=True).input_value() == model
        page.get_by_label("File", exact=True).select_option("lines.txt")
        if kind == "Of explanations":
            page.get_by_text("Options").click()
            page.get_by_label("Texts").fill("2")
        page.get_by_role("button", name="Evaluate").click()
        page.locator(".rows .status.succeeded").wait_for()
        page.locator(".rows a").first.click()
        if kind == "Of models":
            report = service.ok("GET", f"/v1/evaluations/{page.url.rsplit('/', 1)[1]}")["result"]
            page.get_by_role("heading", name="Highest losses").wait_for()
            assert len(table(page, "The tokens with the highest losses")) == len(report["rows"]) == 20 and len(table(page, "Tokens with this many")) == len(report["positions"])
            page.go_back()
    page.locator("#overview").wait_for()
    assert "of 2 texts" in page.locator("main").text_content()
