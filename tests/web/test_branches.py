"""Turns and forks of the playground with a scripted session, which says what was read and what is refused."""

import asyncio

import pytest

from web_support import NARROW, beside, browser, flush, open_page, table, tokens, wait_until
from explanation_samples import SIGNED
from http_support import engine, front, start
from test_views import address, scripted

pytestmark = pytest.mark.slow
PROMPT = [("<user>", ""), ("a", "a"), ("b", "b"), ("<end>", "")]  # names and texts; ids are places in IDS
IDS = ["<user>", "a", "b", "<end>", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "c", "d"]


class Script:
    """Sessions that read `prompt` and then `answer` in each turn. received: tokens that are sent before the turn hangs;
    alpha: what is sent with each token; refused: errors of the first requests; busy: refusals of a session's text."""

    def __init__(self, engine, answer, prompt=PROMPT, received=None, alpha=None):
        self.sessions, self.forks, self.bodies, self.refused, self.busy, self.made = {}, [], [], [], 0, 0
        scripted(engine)
        on = engine.on

        @on("session.create")
        async def _(call):
            call.result(self.session(self.add([])))

        @on("session.generate")
        async def _(call):
            self.bodies.append(call.params)
            if self.refused:
                call.error(*self.refused.pop(0))
                return
            read = self.sessions[call.params["id"]]
            read += prompt if call.params.get("prompt") or call.params.get("messages") else []
            snapshot = f"{call.params['id']}-{len(self.bodies)}"
            for i, (name, text) in enumerate(answer):
                if i == received:
                    read += answer[i:]
                    self.busy = 2
                    await asyncio.sleep(60)
                read.append((name, text))
                await call.event({"index": 0, "text": text, "tokens": [1], "logprobs": {"tokens": [name], "token_logprobs": [-0.01 * (i + 1)], "top_logprobs": [{name: -0.1}], "text_offset": [0]}, **({"alpha": alpha} if alpha else {})})
            call.result({"finish_reason": "length", "usage": {"prompt_tokens": 1, "completion_tokens": 1}, "choices": [{"index": 0, "finish_reason": "length"}], "model": "name",
                         "session": {"id": call.params["id"], "tokens": len(read), **({"snapshot": snapshot} if call.params.get("snapshot") else {})}})

        @on("session.alpha")
        async def _(call):
            if self.busy:
                self.busy -= 1
                call.error(409, "session_busy")
                return
            call.result({"object": "explanation", "model": "name", "position": 0, "weights": [], "tokens": [{"id": IDS.index(name), "text": text, "offset": 0} for name, text in self.sessions[call.params["id"]]]})

        @on("session.fork")
        async def _(call):
            self.forks.append(call.params)
            call.result(self.session(self.add(PROMPT[:0])))

        @on("session.append")
        async def _(call):
            self.sessions[call.params["id"]] += [(IDS[i], dict(PROMPT + answer)[IDS[i]]) for i in call.params["text"]]
            call.result(self.session(call.params["id"]))

    def add(self, read):
        name = f"s{len(self.sessions)}"
        self.sessions[name] = list(read)
        return name

    def session(self, name):
        return {"id": name, "object": "session", "model": "name", "tokens": len(self.sessions[name]), "state_bytes": 1, "durable": False, "explain": True, "created": 1, "expires_at": None}


def send(page, text="ab"):
    page.locator("textarea").fill(text)
    page.locator("textarea").press("Control+Enter")


def open_play(open_page, front, **more):
    page = open_page(f"{address(front)}/#/play", **more)
    page.locator("textarea").wait_for()
    return page


def generated(page, branch=0):
    """Places of the tokens that have a probability."""
    return page.locator(".branch .strip").nth(branch).evaluate("node => [...node.querySelectorAll('[role=option]')].flatMap((box, i) => box.classList.contains('given') ? [] : [i])")


CD = [("c", "c"), ("d", "d"), ("c", "c"), ("c", "c")]


@pytest.mark.parametrize("received", [1, 2])
def test_a_turn_that_is_stopped_keeps_its_probabilities_at_their_tokens(engine, front, open_page, received):
    Script(engine, 2 * CD[:2], received=received)
    page = open_play(open_page, front)
    send(page)
    page.locator(".strip [role=option]").nth(received).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("8 tokens", exact=True).wait_for()
    assert [text for text, _ in tokens(page)] == ["·", "a", "b", "·", "c", "d", "c", "d"]
    assert generated(page) == [4, 5][:received]


def test_what_the_service_refuses_is_left_out(engine, front, open_page):
    script = Script(engine, CD)
    script.refused = [(400, "invalid_request", "no scores", "alpha"), (409, "too_many_snapshots", "64", "snapshot")]
    page = open_play(open_page, front)
    send(page)
    page.get_by_text("8 tokens", exact=True).wait_for()
    assert [sorted(body.keys() & {"alpha", "snapshot"}) for body in script.bodies] == [["alpha", "snapshot"], ["snapshot"], []]
    assert generated(page) == [4, 5, 6, 7] and page.locator(".note .error").count() == 0


EURO = [("bytes:\\xe2", ""), ("bytes:\\x82", ""), ("bytes:\\xac", "€"), ("d", "d")]


def test_a_part_of_a_character_is_explained_by_its_id(engine, front, open_page):
    Script(engine, EURO)
    page = open_play(open_page, front)
    send(page)
    page.get_by_text("8 tokens", exact=True).wait_for()
    assert generated(page) == [4, 5, 6, 7]
    page.locator(".strip [role=option]").nth(5).click()
    link = page.get_by_role("link", name="Open as a page")
    link.wait_for()
    wanted = {"session": "s0", "position": 4, "target": {"token": IDS.index("bytes:\\x82")}, "format": "json"}
    assert engine.called("explain")[-1].params == wanted
    link.click()
    page.locator(".sums").wait_for()
    assert page.url.split("#")[1].startswith("/explain?") and engine.called("explain")[-1].params == wanted


def test_a_fork_within_a_chat_reads_the_same_tokens(engine, front, open_page):
    script = Script(engine, CD)
    page = open_play(open_page, front)
    page.get_by_label("What the prompt is").select_option("chat")
    send(page)
    page.get_by_text("8 tokens", exact=True).wait_for()
    page.locator(".strip [role=option]").nth(6).focus()
    page.get_by_role("button", name="Fork before it").click()
    page.get_by_text("A fork of 6 tokens").wait_for()
    assert script.sessions["s1"] == PROMPT + CD[:2] and script.forks == [{"id": "s0", "snapshot": "s0-1"}]
    assert generated(page, 1) == [4, 5]
    page.locator(".branch").nth(1).locator("[role=option]").nth(5).focus()
    page.get_by_role("button", name="Fork before it").click()
    page.get_by_text("A fork of 5 tokens").wait_for()
    assert script.forks[1] == {"id": "s0", "snapshot": "s0-1"} and script.sessions["s2"] == PROMPT + CD[:1]


def test_a_conversation_outlives_an_explanation_that_failed(engine, front, open_page):
    Script(engine, CD)
    page = open_play(open_page, front)
    send(page)
    page.get_by_text("8 tokens", exact=True).wait_for()
    engine.stop()
    page.locator(".strip [role=option]").nth(5).click()
    page.locator("#banner").wait_for()
    page.locator("aside .card.failed").wait_for()
    engine.start()
    page.locator("#banner").wait_for(state="hidden")
    page.locator("textarea").press("x")
    assert len(tokens(page)) == 8 and page.locator("textarea").input_value() == "x"


@pytest.mark.parametrize("error", [(409, "conflict", "the session was not opened with explain"), (400, "invalid_request", "it is too long")])
def test_a_session_whose_text_cannot_be_read_is_continued(engine, front, open_page, error):
    script = Script(engine, CD)
    script.sessions["old"] = list(PROMPT)

    @engine.on("session.get")
    async def _(call):
        call.result({**script.session("old"), "explain": False})

    @engine.on("session.alpha")
    async def _(call):
        call.error(*error)

    page = open_page(f"{address(front)}/#/play?session=old")
    page.get_by_text("4 tokens were read before.").wait_for()
    send(page)
    page.get_by_text("5 tokens", exact=True).wait_for()  # the typed text is one
    send(page)
    page.get_by_text("10 tokens", exact=True).wait_for()
    assert [text for text, _ in tokens(page)] == 2 * ["ab", "c", "d", "c", "c"] and "alpha" not in script.bodies[0]


def test_a_turn_that_is_settled_late_is_settled_once(engine, front, open_page):
    script = Script(engine, CD)
    page, asked, read = open_play(open_page, front), [], []

    def answer(route):
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(status=503, json={"error": {"code": "engine_unavailable", "message": "away"}})
        elif len(asked) == 2:
            read.append(route.fetch())
        else:
            route.continue_()

    page.route("**/alpha?*", answer)
    send(page)
    wait_until(page, lambda: read)  # the page saw that the service is back
    send(page)
    flush(page)
    assert len(asked) == 2 and len(script.bodies) == 1
    asked[1].fulfill(response=read[0])
    page.get_by_text("16 tokens", exact=True).wait_for()
    assert [text for text, _ in tokens(page)] == 2 * ["·", "a", "b", "·", "c", "d", "c", "c"]
    assert generated(page) == [4, 5, 6, 7, 12, 13, 14, 15]


def test_a_new_session_has_no_note_of_the_one_before(engine, front, open_page):
    Script(engine, CD, received=1)
    page = open_play(open_page, front)
    send(page)
    page.locator(".strip [role=option]").nth(1).wait_for()
    page.get_by_role("button", name="New session").click()
    wait_until(page, lambda: len(engine.called("session.alpha")) == 3)
    flush(page)
    assert page.locator(".note").first.text_content() == "\u00a0" and tokens(page) == []


def test_a_session_that_cannot_replace_one_is_removed(engine, front, open_page):
    script = Script(engine, CD)
    page = open_play(open_page, front)
    send(page)
    page.get_by_text("8 tokens", exact=True).wait_for()

    @engine.on("session.append")
    async def _(call):
        call.error(500, "internal_error", "no memory")

    @engine.on("session.delete")
    async def _(call):
        call.result({"id": call.params["id"], "object": "session", "deleted": True})

    script.refused = [(404, "session_not_found", "it is gone")]
    send(page)
    page.get_by_role("button", name="Continue in a new session").click()
    page.get_by_text("no memory").wait_for()
    assert [call.params["id"] for call in engine.called("session.delete")] == ["s1"]
    page.get_by_role("button", name="New session", exact=True).click()
    assert page.get_by_role("button", name="Continue in a new session").count() == 0


def test_what_a_token_read_is_shaded_at_its_id(engine, front, open_page):
    Script(engine, CD, alpha=[{"token": {"id": IDS.index(name), "text": text, "offset": 0}, "weight": weight} for name, text, weight in (("a", "a", 0.75), ("<end>", "", 0.25))])
    page = open_play(open_page, front)
    send(page)
    page.get_by_text("8 tokens", exact=True).wait_for()
    page.get_by_label("Colours").select_option("weights")
    page.locator(".strip [role=option]").nth(4).focus()
    assert [share for _, share in tokens(page)] == pytest.approx([0, 1, 0, 1 / 3, 0, 0, 0, 0], abs=1e-3)  # all have one offset


def explanation_of(word):
    parts = SIGNED["contributions"]
    return {**SIGNED, "contributions": {**parts, "target": {**parts["target"], "token": {"id": 1, "text": word}}}}


@pytest.mark.parametrize("closed", [False, True], ids=["another token", "closed"])
def test_an_answer_to_an_earlier_question_is_dropped(engine, front, open_page, closed):
    Script(engine, CD)
    page, held = open_play(open_page, front), []
    send(page)
    page.get_by_text("8 tokens", exact=True).wait_for()
    page.route("**/v1/explain", lambda route: held.append(route))
    for i, token in enumerate((5, 6)):
        page.locator(".strip [role=option]").nth(token).click()
        wait_until(page, lambda: len(held) > i)
    held[1].fulfill(json=explanation_of("second"))
    page.get_by_role("heading", name="Why “second”").wait_for()
    if closed:
        page.get_by_role("complementary").get_by_role("button", name="Close").click()
    with page.expect_response("**/v1/explain"):
        held[0].fulfill(json=explanation_of("first"))
    flush(page)
    assert page.get_by_role("heading", name="Why “second”").count() == (0 if closed else 1) and page.get_by_role("heading", name="Why “first”").count() == 0


def test_two_branches_are_read_one_below_the_other_in_a_narrow_window(engine, front, open_page):
    Script(engine, CD)
    page = open_play(open_page, front, size=NARROW)
    send(page)
    page.get_by_text("8 tokens", exact=True).wait_for()
    page.locator(".strip [role=option]").nth(6).focus()
    page.get_by_role("button", name="Fork before it").click()
    page.get_by_text("A fork of 6 tokens").wait_for()
    first, second = (page.locator(".transcript").nth(i).bounding_box() for i in (0, 1))
    assert min(first["width"], second["width"]) > 300 and second["y"] >= first["y"] + first["height"]
    assert second["y"] + second["height"] - first["y"] <= NARROW[1] and beside(page) == []


def test_the_address_names_the_session(engine, front, open_page):
    script = Script(engine, CD)

    @engine.on("session.get")
    async def _(call):
        call.result(script.session(call.params["id"]))

    page = open_play(open_page, front)
    send(page)
    page.wait_for_function("() => location.hash === '#/play?session=s0'")
    page.get_by_role("link", name="Files").click()
    page.get_by_role("heading", name="Files").wait_for()
    page.go_back()
    page.locator(".strip [role=option]").nth(7).wait_for()
    page.get_by_role("button", name="New session").click()
    assert page.url.endswith("#/play?model=name") and page.locator(".strip [role=option]").count() == 0


SCORES = {"tokens": ["<user>", "a", "b", "<end>"], "token_logprobs": [None, -0.01, -3.5, -2.0], "top_logprobs": [None, {"a": -0.01, "b": -4.0}, {"b": -3.5}, {"<end>": -2.0}], "text_offset": [0, 0, 1, 2]}


def continued(engine, front, open_page, scores):
    """A session that has read PROMPT, continued from its own view. scores: an answer's log-probabilities, or an error."""
    script = Script(engine, CD)
    script.sessions["old"] = list(PROMPT)

    @engine.on("session.get")
    async def _(call):
        call.result(script.session("old"))

    @engine.on("completion.create")
    async def _(call):
        if isinstance(scores, tuple):
            call.error(*scores)
            return
        assert {name: call.params[name] for name in ("model", "prompt", "max_tokens", "echo")} == {"model": "name", "prompt": [0, 1, 2, 3], "max_tokens": 0, "echo": True}
        await call.event({"index": 0, "text": "ab", "tokens": [0, 1, 2, 3], "logprobs": scores})
        call.result({"model": "name", "choices": [{"index": 0, "finish_reason": "length"}], "usage": {"prompt_tokens": 4, "completion_tokens": 0}})

    page = open_page(f"{address(front)}/#/sessions/old")
    page.get_by_role("link", name="Continue").click()
    page.locator(".strip [role=option]").nth(3).wait_for()
    return page


def kinds(page):
    return page.locator(".strip").first.evaluate("node => [...node.querySelectorAll('[role=option]')].map(box => box.className)")


def test_the_text_of_a_continued_session_has_probabilities(engine, front, open_page):
    page = continued(engine, front, open_page, SCORES)
    page.locator(".strip .p3").wait_for()
    assert kinds(page) == ["given", "p0", "p3", "p2"]
    page.locator(".strip [role=option]").nth(1).focus()
    assert table(page, "The likeliest")[0][:2] == ["a", "99.0 %"]
    send(page)
    page.get_by_text("12 tokens", exact=True).wait_for()
    assert kinds(page) == ["given", "p0", "p3", "p2", *4 * ["given"], *4 * ["p0"]]
    page.locator(".strip [role=option]").nth(2).click()
    page.get_by_role("link", name="Open as a page").wait_for()
    assert {name: engine.called("explain")[-1].params[name] for name in ("session", "position", "target")} == {"session": "old", "position": 1, "target": {"token": IDS.index("b")}}


def test_a_text_that_cannot_be_scored_is_continued_without_probabilities(engine, front, open_page):
    page = continued(engine, front, open_page, (429, "rate_limit_exceeded", "too many tokens"))
    send(page)
    page.get_by_text("12 tokens", exact=True).wait_for()
    assert kinds(page) == [*8 * ["given"], *4 * ["p0"]] and page.locator("main .error").count() == 0


def test_a_turn_without_tokens_ends(engine, front, open_page):
    script = Script(engine, [])
    page = open_play(open_page, front)
    for turn, text in ((1, "ab"), (2, "")):
        send(page, text)
        wait_until(page, lambda: len(script.bodies) == turn)
        page.get_by_text("4 tokens", exact=True).wait_for()
    assert [text for text, _ in tokens(page)] == ["·", "a", "b", "·"]
