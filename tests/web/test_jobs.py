"""The form of a new job and the page of one, with a scripted engine."""

import pytest

from web_support import browser, flush, open_page, wait_until
from http_support import engine, front, start
from test_views import DAY, address, answers, listed, scripted

pytestmark = pytest.mark.slow
FILES = [{"id": f"file-{name}", "object": "file", "filename": name, "purpose": "fine-tune", "bytes": 3, "created_at": DAY} for name in ("tales", "chats")]
RESOLVED = {"parameters": 5, "max_steps": 148, "n_epochs": 20, "batch_size": 8, "sequence_length": 512, "learning_rate": 0.004, "warmup_steps": 37, "loss_on": "all", "keep_best": False, "schedule": "linear", "estimated_seconds": 3, "objective": "next_token"}
CHATS = {**RESOLVED, "sequence_length": 96, "loss_on": "completion", "keep_best": True}


def form(engine, front, open_page, query="?file=file-tales"):
    """A form whose dry runs resolve to other values for the second file and for a model that is trained further."""
    scripted(engine)

    @engine.on("file.list")
    async def _(call):
        call.result(listed(FILES))

    @engine.on("job.create")
    async def _(call):
        ours, values = call.params.get("additive", {}), CHATS if call.params.get("training_file") == "file-chats" else RESOLVED
        values = values if call.params["model"] != "name" else {**values, "learning_rate": 0.0005}
        call.result({"resolved": {**values, **{name: x for name, x in ours.items() if name in values}}, "tokens": 99})

    page = open_page(f"{address(front)}/#/jobs/new{query}")
    page.get_by_text("steps of").wait_for()
    return page


def refused_at(page, field):
    return page.locator(".field", has=page.locator(field)).locator(".error")


@pytest.mark.parametrize("field,typed,said", [
    ("#option-batch_size", "0", "Batch size must be an integer from 1 to 65536, not 0"),
    ("#option-n_epochs", "0", "Epochs must be \"auto\" or an integer from 1 to 10000, not 0"),
    ("#size-heads", "0", "Heads must be an integer from 1 to 65536, not 0"),
    ("#option-patience", "-1", "Patience must be an integer from 0 to 1000000000, not -1")])
def test_a_field_that_the_service_refuses_says_so_beside_it(engine, front, open_page, field, typed, said):
    page = form(engine, front, open_page)
    page.locator("summary", has_text="More options").click()
    page.locator(field).fill(typed)
    refused_at(page, field).wait_for()
    assert refused_at(page, field).text_content() == said and page.locator("main .error").count() == 1
    assert page.evaluate("document.activeElement.id") == field[1:] and page.locator(field).get_attribute("aria-invalid") == "true"
    assert page.get_by_role("button", name="Train", exact=True).is_disabled()
    page.locator(field).fill("")
    refused_at(page, field).wait_for(state="detached")
    page.get_by_text("148 steps of").wait_for()


@pytest.mark.parametrize("param,message,field,said", [
    ("additive.size.heads", "n_heads must divide hidden_size", "#size-heads", "Heads: n_heads must divide hidden_size"),
    ("additive.warmup_steps", "'additive.warmup_steps' must not be over max_steps", "#option-warmup_steps", "Warmup steps must not be over \u201cMax steps\u201d"),
    ("method.supervised.hyperparameters.n_epochs", "is too large", "#option-n_epochs", "Epochs: is too large"),
    ("model", "there is no model \"x\"", "#from", "Model: there is no model \"x\""),
    ("training_file", "the file is <b>empty</b>", "[aria-label='Training file']", "Training file: the file is <b>empty</b>"),
    ("suffix", "is taken", "#job-suffix", "Name: is taken")])
def test_an_error_has_the_label_of_the_form(engine, front, open_page, param, message, field, said):
    page = form(engine, front, open_page)

    @engine.on("job.create")
    async def _(call):
        call.error(400, "invalid_request", message, param)

    page.get_by_role("spinbutton", name="Seed").fill("7")
    refused_at(page, field).wait_for()
    assert refused_at(page, field).text_content() == said and page.locator("main .error").count() == 1
    assert page.locator(field).is_visible() and page.evaluate("document.activeElement.id") == "job-seed"  # the reader continues to type


def test_an_error_without_a_field_of_its_own_is_shown_above_the_button(engine, front, open_page):
    page = form(engine, front, open_page)

    @engine.on("job.create")
    async def _(call):
        call.error(400, "invalid_request", "the key \"x\" is unknown", "additive.config")

    page.get_by_role("spinbutton", name="Seed").fill("7")
    page.locator("[role=status] .error").wait_for()
    assert page.locator("main .error").all_text_contents() == ["additive.config: the key \"x\" is unknown"]


def placeholders(page, *names):
    return [page.locator(f"#option-{name}").get_attribute("placeholder") for name in names]


def test_placeholders_are_what_a_dry_run_resolves(engine, front, open_page):
    page = form(engine, front, open_page)
    page.locator("summary", has_text="More options").click()
    assert placeholders(page, "max_steps", "n_epochs", "sequence_length", "learning_rate", "warmup_steps") == ["148", "20", "512", "0.004", "37"]
    page.locator("#from").select_option("name")
    page.wait_for_function("() => document.querySelector('#option-learning_rate').placeholder === '0.0005'")
    page.locator("#option-batch_size").fill("3")
    page.get_by_label("Training file").select_option("file-chats")
    page.wait_for_function("() => document.querySelector('#option-sequence_length').placeholder === '96'")
    loss, best = page.locator("#option-loss_on"), page.locator("#option-keep_best")
    assert loss.locator("option").all_text_contents() == ["completion (default)", "all"] and best.is_checked()
    assert page.locator("#option-batch_size").input_value() == "3"
    loss.select_option("all")
    best.uncheck()
    wait_until(page, lambda: engine.called("job.create")[-1].params["additive"] == {"batch_size": 3, "loss_on": "all", "keep_best": False})  # no value that was resolved is sent
    flush(page)
    assert loss.input_value() == "all" and not best.is_checked()  # a choice stays
    page.get_by_label("Training file").select_option("")
    page.wait_for_function("() => document.querySelector('#option-sequence_length').placeholder === '96'")


RECIPE = {"model": "additive2", "training_file": "file-chats", "suffix": "again", "seed": 5, "metadata": {"owner": "me"}, "hyperparameters": {"n_epochs": 3, "learning_rate_multiplier": 2},
          "additive": {"batch_size": 4, "optimizer": "muon", "keep_best": True, "loss_on": "completion", "precision": "fp32", "tokenizer": {"type": "bytes"}, "size": {"hidden": 32, "positions": 64}}}


@pytest.mark.parametrize("kept", [True, False])
def test_a_job_is_trained_again_with_its_settings(engine, front, open_page, kept):
    job = {**answers(["name"])["job.get"], "status": "cancelled", "additive": {**answers(["name"])["job.get"]["additive"], "recipe": RECIPE}}
    page = form(engine, front, open_page)

    @engine.on("job.get")
    async def _(call):
        call.result({**job, "id": call.params["id"]})

    page.goto(f"{address(front)}/#/jobs/j")
    page.get_by_role("link", name="Train again with these settings").click()
    others = page.get_by_label("Also as in that job: metadata, learning_rate_multiplier, tokenizer, positions")
    others.wait_for()
    assert [page.locator(field).input_value() for field in ("#from", "#job-suffix", "#job-seed", "#size-hidden", "#option-n_epochs", "#option-batch_size", "#option-optimizer")] == ["additive2", "again", "5", "32", "3", "4", "muon"]
    others.set_checked(kept)
    page.get_by_role("button", name="Train", exact=True).and_(page.locator(":enabled")).click()
    page.wait_for_url("**/#/jobs/*")
    wanted = {**RECIPE, "additive": {name: x for name, x in RECIPE["additive"].items() if name != "precision"}}  # the default
    if not kept:
        wanted = {**{name: x for name, x in wanted.items() if name != "metadata"}, "hyperparameters": {"n_epochs": 3}, "additive": {**{name: x for name, x in wanted["additive"].items() if name != "tokenizer"}, "size": {"hidden": 32}}}
    wait_until(page, lambda: not engine.called("job.create")[-1].params.get("dry_run"))
    assert engine.called("job.create")[-1].params == wanted


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_job_that_has_ended_early_is_resumed_or_deleted(engine, front, open_page, status):
    scripted(engine)
    states = [status]

    @engine.on("job.get")
    async def _(call):
        call.result({**answers(["name"])["job.get"], "status": states[-1], "fine_tuned_model": None})

    @engine.on("job.resume")
    async def _(call):
        if len(engine.called("job.resume")) == 1:
            call.error(409, "invalid_job_state", "it has no <b>checkpoint</b>")
            return
        states.append("running")
        call.result({**answers(["name"])["job.get"], "status": "queued"})

    @engine.on("job.delete")
    async def _(call):
        call.result({"id": "j", "object": "fine_tuning.job", "deleted": True})

    page = open_page(f"{address(front)}/#/jobs/j")
    resume, dialog = page.get_by_role("button", name="Resume this job"), page.get_by_role("dialog")
    for answer in ("Cancel", "Resume"):
        resume.click()
        assert engine.called("job.resume") == []
        dialog.get_by_role("button", name=answer).click()
    dialog.get_by_text("it has no <b>checkpoint</b>").wait_for()
    page.keyboard.press("Escape")
    watched = len(engine.called("job.watch"))
    resume.click()
    dialog.get_by_role("button", name="Resume").click()
    page.locator(".status.running").wait_for()
    wait_until(page, lambda: len(engine.called("job.watch")) > watched)  # its curve continues
    assert resume.count() == 0 and page.get_by_role("button", name="Delete this job").count() == 0
    states.append(status)
    page.reload()
    page.get_by_role("button", name="Delete this job").click()
    assert engine.called("job.delete") == []
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="Training jobs").wait_for()
    assert [call.params["id"] for call in engine.called("job.delete")] == ["j"]


def test_a_job_that_waits_shows_its_place_and_its_start(engine, front, open_page):
    scripted(engine)

    @engine.on("job.get")
    async def _(call):
        job = answers(["name"])["job.get"]
        call.result({**job, "status": "queued", "additive": {**job["additive"], "queue_position": 3, "expected_start": 1800000000}})

    page = open_page(f"{address(front)}/#/jobs/j")
    facts = page.locator(".facts")
    facts.locator("div", has_text="Place in the queue").get_by_text("3", exact=True).wait_for()
    assert "2027" in facts.locator("div", has_text="Expected start").text_content() and facts.get_by_text("Left", exact=True).count() == 0


def test_curves_have_the_names_of_their_jobs(engine, front, open_page):
    scripted(engine)
    names = {"ftjob-111111": "tales", "ftjob-222222": "tales", "ftjob-333333": "<b>chats</b>"}

    @engine.on("job.get")
    async def _(call):
        job = answers(["name"])["job.get"]
        call.result({**job, "id": call.params["id"], "additive": {**job["additive"], "recipe": {"suffix": names[call.params["id"]]}}})

    page = open_page(f"{address(front)}/#/jobs/compare?{'&'.join(f'job={id}' for id in names)}")
    legend = page.locator(".plotted").first.locator(".legend li")
    legend.nth(2).wait_for()
    assert legend.all_text_contents() == ["tales (\u2026111111)", "tales (\u2026222222)", "<b>chats</b>"]
    assert [line.get_attribute("title") for line in legend.all()] == list(names)
