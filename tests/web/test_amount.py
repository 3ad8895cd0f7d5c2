"""Much data on the page: the work is counted in elements that are created, never timed."""

import pytest

from web_support import browser, open_page
from http_support import engine, front, start
from test_views import DAY, address, answers, scripted, show

pytestmark = pytest.mark.slow
SESSIONS, TOKENS = 5000, 10000
FIRST_LOAD = 150 * 1024  # bytes, compressed, of the page and of the answers that it asks for
PIECE, BLOCK, LONGEST = 400, 200, 1000  # as in clients/web/strip.js
COUNT = """selector => {
    window.added = window.most = 0;  // in all; at once
    new MutationObserver(records => {
        const made = records.flatMap(record => [...record.addedNodes]).filter(node => node.matches && node.matches(selector)).length;
        added += made;
        most = Math.max(most, made);
    }).observe(document.body, {childList: true, subtree: true});
}"""


def test_the_first_load_is_small(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/")
    page.locator("textarea").wait_for()
    page.wait_for_load_state("networkidle")
    sizes = page.evaluate("performance.getEntries().filter(entry => ['navigation', 'resource'].includes(entry.entryType)).map(entry => [entry.name, entry.encodedBodySize])")
    assert sum(size for _, size in sizes) <= FIRST_LOAD and all(size > 0 for name, size in sizes if "/web/" in name), sorted(sizes, key=lambda each: -each[1])


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


def test_a_token_at_the_end_of_a_block_is_replaced_there(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/")
    page.locator("h1").wait_for()
    assert page.evaluate("""async n => {
        const {strip} = await import(new URL('strip.js', document.querySelector('script').src));
        const {node, set, boxes} = strip({label: 'text'}), tokens = Array.from({length: n + 5}, (_, i) => ({text: i === n - 1 ? '\\n' : `t${i} `, kind: null}));
        set(0, tokens);
        set(0, tokens.map((token, i) => i === n - 1 ? {text: 'x\\n', kind: null} : token));
        return [...node.children].map(block => block.childElementCount).concat(boxes.indexOf(node.firstChild.lastChild));
    }""", BLOCK) == [BLOCK, 5, BLOCK - 1]


def wait_for_tokens(page, n):
    page.wait_for_function("n => document.querySelectorAll('.strip [role=option]').length === n", arg=n)


def test_a_long_text_is_drawn_once_and_in_pieces(engine, front, open_page):
    scripted(engine)
    texts = [f"t{i} " + "\n" * (i % 7 == 6) for i in range(TOKENS - 3000)] + [f"t{i} " for i in range(TOKENS - 3000, TOKENS)]

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
    wait_for_tokens(page, TOKENS + 1)
    assert page.evaluate("added") <= TOKENS + 2 and page.evaluate("most") <= PIECE
    blocks = page.locator(".strip .block").evaluate_all("blocks => blocks.map(block => [block.childElementCount, block.textContent])")
    assert max(n for n, _ in blocks) <= LONGEST and max(n for n, text in blocks if text.endswith("\n")) <= BLOCK + 7
    assert sum(not text.endswith("\n") for _, text in blocks) <= 3000 // LONGEST + 1  # all others end where a line of the text does
    page.evaluate("added = 0")
    for colours in ("none", "weights", "probability"):
        page.get_by_label("Colours").select_option(colours)
    page.locator(".strip [role=option]").first.focus()
    for key in ("End", "ArrowLeft", "ArrowUp", "Home"):
        page.keyboard.press(key)
    page.locator(".strip [role=option]").nth(7).hover()
    assert page.evaluate("added") == 0 and page.locator(".strip [tabindex='0']").count() == 1


def test_a_text_that_was_read_before_is_drawn_in_pieces(engine, front, open_page):
    scripted(engine)

    @engine.on("session.get")
    async def _(call):
        call.result({**answers(["name"])["session.get"], "tokens": TOKENS, "explain": True})

    @engine.on("session.alpha")
    async def _(call):
        call.result({"object": "explanation", "model": "name", "position": 0, "weights": [], "tokens": [{"id": 1, "text": f"t{i} ", "offset": i} for i in range(TOKENS)]})

    page = open_page(address(front) + "/#/files")
    page.evaluate(COUNT, "[role=option]")
    page.evaluate("location.hash = '#/play?session=s'")
    wait_for_tokens(page, TOKENS)
    assert page.evaluate("added") == TOKENS and page.evaluate("most") <= PIECE
    assert page.locator(".strip [role=option]").all_text_contents() == [f"t{i} " for i in range(TOKENS)]


CHANGES = """async () => {
    const {strip} = await import(document.querySelector('script').src.replace('app.js', 'strip.js')), frame = () => new Promise(requestAnimationFrame);
    let seed = 1;
    const random = n => (seed = seed * 48271 % 2147483647) % n;
    for (let round = 0; round < 20; round++) {
        const text = strip({label: 'x'});
        let wanted = [];
        document.body.append(text.node);
        for (let step = 0; step < 20; step++) {
            const some = Array.from({length: random(random(4) ? 5 : 900)}, () => ({text: 'abc\\n'[random(4)], kind: ['p0', null][random(2)]}));
            if (random(2)) {
                some.forEach(token => text.add(token));
                wanted = wanted.concat(some);
            } else {
                const from = random(wanted.length + 1), next = some.concat(wanted.slice(from + random(4)));
                text.set(from, next);
                wanted = wanted.slice(0, from).concat(next);
            }
            if (text.boxes.length) text.boxes[random(text.boxes.length)].focus();
            if (random(2)) await frame();
        }
        for (let waited = 0; text.boxes.length < wanted.length && waited < 100; waited++) await frame();
        const boxes = [...text.node.querySelectorAll('[role=option]')], said = token => (token.text === '\\n' ? '\u21b5\\n' : token.text) + (token.kind || '');
        if (boxes.length !== wanted.length || boxes.some((box, i) => box !== text.boxes[i] || box.textContent + box.className !== said(wanted[i]))) return `round ${round}: other tokens`;
        if (text.node.querySelectorAll('[tabindex="0"]').length !== (wanted.length ? 1 : 0) || text.node.querySelector('.block:empty')) return `round ${round}: other attributes`;
        text.node.remove();
    }
}"""


def test_after_any_changes_a_text_has_the_tokens_that_were_named_last(front, open_page):
    page = open_page(address(front) + "/#/nothing")
    page.locator(".card.failed").wait_for()
    assert page.evaluate(CHANGES) is None
