"""Hostile texts through the whole service, in names, prompts and labels: wherever the page shows or saves one, it is the text that
was sent. Each view is compared with that of harmless texts, which has the same kinds of elements and attributes."""

import csv
import io
import json
import re
import urllib.parse
import xml.etree.ElementTree

import pytest

from web_support import browser, open_page, tokens
from conftest import Service, own_service

pytestmark = pytest.mark.slow

PAYLOADS = [
    # markup, with the ways in which a script could begin
    "<b/class=planted>x</b>", "<img/class=planted/src=//planted.invalid/x/onerror=planted()>", "<svg/class=planted/onload=planted()>",
    "<script/class=planted>planted()</script>", "</script><script/class=planted>planted()</script>", "</title></style></textarea><b/class=planted>",
    "<style/class=planted>*{display:none}</style>", "<iframe/class=planted/srcdoc=x>", "<a/class=planted/href=javascript:planted()>x</a>",
    "<!--", "--><b/class=planted>", "]]><b/class=planted>", "<![CDATA[", "<?xml?><!DOCTYPE/x[<!ENTITY/e/SYSTEM'file:///etc/passwd'>]>&e;",
    "&lt;b&gt;&amp;&#60;&#x3c;&nbsp;", "\"onfocus=planted()autofocus=\"", "'onfocus=planted()autofocus='",
    # other languages
    "javascript:planted()", "data:text/html,<script>planted()</script>", "{{planted()}}", "${planted()}`planted()`", "<%=planted()%>#{planted()}",
    "';DROP/**/TABLE/**/files;--", "}*{background:url(//planted.invalid/x)}", "%s%n%x%p", "=HYPERLINK(\"//planted.invalid\")", "+1+cmd|'/c/calc'!A0", "-1-1", "@SUM(1)",
    # paths and lines
    "../../../../etc/passwd", "..\\..\\win.ini", "%2e%2e%2fetc%2fpasswd", "x\r\nSet-Cookie:planted=1", "a\tb\rc\nd", "\\u0000\\x00%00\\0", "nul\0nul",
    # characters
    "\u202etxt.exe\u202c", "\u2066\u2067\u2068\u200f\u2069", "\u200b\u200c\u200d\ufeff\u2060", "\u0301\u0301\u0301", "\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f3f3\ufe0f\u200d\U0001f308\U0001f1e9\U0001f1ea",
    "\u2028\u2029\x85", "\x1b[31mred\x1b]0;title\x07", "\x7f\x80\x9f", "\ufffd\ufffe\uffff", "\"'`\u00b4\u2018\u2019\u201c\u201d\u00ab\u00bb", "x" * 300, "\u0e01" + "\u0e34" * 40, "...", " ",
]
TEXTS = [pattern.replace("{}", payload) for payload in PAYLOADS for pattern in ("{}", "a {} b", "\">{}", "{}</p>")]
HARMLESS = [f"text {i}" for i in range(4)]
# A token has these attributes if it is white space.
ELEMENTS = "[...document.querySelectorAll('*')].map(node => `${node.localName} ${node.getAttributeNames().filter(name => !['aria-label', 'data-blank'].includes(name) || node.role !== 'option').sort()}`)"
TINY = {"size": {"hidden": 8, "heads": 2, "layers": 1, "dropout": 0}, "sequence_length": 32, "batch_size": 4, "max_steps": 2}
assert len(set(TEXTS)) >= 200


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    started = Service(tmp_path_factory.mktemp("service") / "data")
    yield started
    assert started.stop() == 0


def upload(service, name, text="a line of text\n" * 40):
    """Upload a file whose name is sent as RFC 8187 has it; returns the file."""
    body = (f"--limit\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--limit\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"; "
            f"filename*=UTF-8''{urllib.parse.quote(name, safe='')}\r\n\r\n").encode() + text.encode() + b"\r\n--limit--\r\n"
    return service.ok("POST", "/v1/files", body, headers={"Content-Type": "multipart/form-data; boundary=limit"})


def train(service, model, file, **options):
    job = service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", {"model": model, "training_file": file["id"], "seed": 1, "additive": TINY | options})["id"])
    assert job["status"] == "succeeded", job
    return job["fine_tuned_model"]


@pytest.fixture(scope="module")
def words(service):
    """A model whose tokens are whole words, so that a token can be an element, a formula or a path."""
    text = "".join(f"{text}\n" for text in TEXTS if text.isprintable()) * 3
    return train(service, "additive2", upload(service, "words.txt", text), tokenizer={"type": "sentencepiece", "model_type": "word", "normalization": "identity"})


def visible(text, ends="↵\n"):
    """A text as strips and tables of tokens show it."""
    return "".join(ends if c == "\n" else chr(0x2400 + ord(c)) if c < " " and c != "\t" else c for c in text) or "·"


def quoted(text):
    return f"“{visible(text, '↵')}”"


class Views:
    """A page on which the views of hostile texts have the elements of the harmless ones."""

    def __init__(self, page):
        self.page, self.harmless = page, set()

    def show(self, view, ready):
        """Show a view whose element `ready` exists once it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(view)
        self.page.locator(ready).first.wait_for(state="attached")
        self.page.wait_for_load_state("networkidle")

    def learn(self):
        self.harmless |= set(self.page.evaluate(ELEMENTS))

    def check(self):
        other = set(self.page.evaluate(ELEMENTS)) - self.harmless
        assert not other, other
        assert self.page.locator(".planted").count() == 0 and self.page.context.cookies() == []


@pytest.fixture
def views(service, open_page):
    return Views(open_page(f"{service.url}/", size=(1280, 12000)))  # a window for all rows of a list


def refusals(service, method, path, body, **more):
    """The name of the field for which the service refuses the body; None if it takes it."""
    status, answer, _ = service.request(method, path, body, **more)
    assert status in (200, 400), (status, answer)
    return answer["error"]["param"] if status == 400 else None


def test_names_of_files(service, views):
    def sent(texts):
        return [upload(service, text)["filename"] for text in texts]

    for text in HARMLESS:
        upload(service, text)
    views.show(f"{service.url}/#/files", ".rows td.wide")
    views.learn()
    names = sent(TEXTS)
    for text, name in zip(TEXTS, names, strict=True):
        base = re.split(r"[/\\]", text)[-1]  # a name has no folder
        assert name == (base if base and "\0" not in text and len(base.encode()) <= 255 else "f" if "\0" in text else "upload"), ascii(text)
    views.show(f"{service.url}/#/files", ".rows td.wide")
    views.page.get_by_text(f"{len(TEXTS) + len(HARMLESS)} in all").wait_for()
    listed = [row["filename"] for row in service.ok("GET", "/v1/files?limit=1000")["data"]]
    assert views.page.locator(".rows td.wide").all_text_contents() == listed and sorted(listed) == sorted(HARMLESS + names)
    assert set(views.page.locator(".rows button").evaluate_all("nodes => nodes.map(node => node.getAttribute('aria-label'))")) == {f"{verb}{name}" for verb in ("Save ", "Delete the file ") for name in listed}
    views.check()
    for view, options in (("jobs/new", "Training file"), ("evaluations", "File")):
        views.show(f"{service.url}/#/{view}", "select")
        shown = views.page.get_by_label(options, exact=True).locator("option").all_text_contents()
        assert sum(any(text.startswith(name) for text in shown) for name in names) == len(names)
        assert views.page.locator(".planted").count() == 0
    for row in service.ok("GET", "/v1/files?limit=1000")["data"]:
        head = service.request("GET", f"/v1/files/{row['id']}/content")[2]
        said = head["Content-Disposition"]
        assert "Set-Cookie" not in head and (f'filename="{row["filename"]}"' in said or urllib.parse.unquote(said.split("''")[1]) == row["filename"])


def test_names_of_models(service, views):
    file = upload(service, "m")
    body = {"model": "additive2", "training_file": file["id"], "additive": TINY}
    refused = [refusals(service, "POST", "/v1/fine_tuning/jobs", {**body, "suffix": text, "dry_run": True}) for text in TEXTS]
    for text, field in zip(TEXTS, refused, strict=True):
        assert field == ("suffix" if "\0" in text or len(text.encode()) > 64 else None), ascii(text)
    models = []
    for text in [text for text, field in zip(TEXTS, refused) if not field][::10]:
        models.append(service.wait_job(service.ok("POST", "/v1/fine_tuning/jobs", {**body, "suffix": text})["id"])["fine_tuned_model"])
    assert len(models) > 15 and all(re.fullmatch(r"ft:additive2:[A-Za-z0-9._-]+:[0-9a-f]{8}", name) for name in models)
    for text in TEXTS:  # no import takes another name, and no view of a name that does not exist is more than a message
        form = "".join(f"--limit\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n" for name, value in (("id", text), ("config", "{}"), ("weights", "x"))) + "--limit--\r\n"
        assert refusals(service, "POST", "/v1/models", form.encode(), headers={"Content-Type": "multipart/form-data; boundary=limit"}) == "id", ascii(text)
        assert service.request("GET", f"/v1/models/{urllib.parse.quote(text, safe='')}")[0] in (400, 404)
    views.show(f"{service.url}/#/models", ".rows td.wide")
    assert set(models) <= set(views.page.locator(".rows td.wide").all_text_contents())
    views.show(f"{service.url}/#/models/nothing", ".card.failed")
    views.learn()
    for text in TEXTS[::4]:
        with views.page.expect_response(re.compile("/v1/models/")):
            views.page.evaluate("text => { location.hash = `#/models/${encodeURIComponent(text)}`; }", text)
        views.page.locator(".card.failed").wait_for()
        views.check()


def test_names_of_snapshots(service, words, views):
    def named(texts):
        session, refused = service.ok("POST", "/v1/sessions", {"model": words, "prompt": "a"})["id"], []
        for text in texts:
            field = refusals(service, "POST", f"/v1/sessions/{session}/snapshots", {"name": text})
            assert field == ("name" if "\0" in text or len(text.encode()) > 64 else None), ascii(text)
            refused += [text] if field else []
        views.show(f"{service.url}/#/sessions/{session}", ".mark")
        assert sorted(views.page.locator(".mark").all_text_contents()) == sorted(text for text in texts if text not in refused)
        return len(refused)

    named(HARMLESS)
    views.learn()
    refused = 0
    for first in range(0, len(TEXTS), 50):
        refused += named(TEXTS[first : first + 50])
        views.check()
    assert 0 < refused < 20


def test_names_of_keys(own_service, open_page):
    admin = own_service.ok("POST", "/v1/keys", {"name": "admin", "role": "admin"})["secret"]
    page = open_page(f"{own_service.url}/healthz")
    page.evaluate("key => sessionStorage.setItem('additive-key', key)", admin)
    views, taken = Views(page), []

    def named(texts):
        for text in texts:
            field = refusals(own_service, "POST", "/v1/keys", {"name": text}, headers={"Authorization": f"Bearer {admin}"})
            assert field == ("name" if "\0" in text or len(text.encode()) > 255 else None), ascii(text)
            taken.extend([] if field else [text])
        views.show(f"{own_service.url}/#/operate", "section table td:nth-child(7)")
        assert sorted(page.locator("section", has_text="Last used").locator("tbody td:first-child").all_text_contents()) == sorted(["admin", *taken])

    named(HARMLESS)
    views.learn()
    named(TEXTS)
    views.check()


def test_prompts(service, words, views):
    """One turn and one explanation have all texts, each on a line of its own."""
    def turn(texts):
        views.show(f"{service.url}/#/play?model={words}", "textarea")
        views.page.locator("summary", has_text="Sampling").click()
        views.page.locator("#play-max_tokens").fill("1")
        views.page.locator("textarea").fill("\n".join(texts))
        views.page.locator("textarea").press("Control+Enter")
        views.page.wait_for_function("() => /^[0-9]+ tokens$/.test(document.querySelector('.note[role=status]').textContent)")
        session = views.page.locator(".branch-head a").text_content()
        read = [token["text"] for token in service.ok("GET", f"/v1/sessions/{session}/alpha?layers=0&heads=0")["tokens"]]
        views.page.wait_for_function("n => document.querySelectorAll('.strip [role=option]').length === n", arg=len(read))
        assert [text for text, _ in tokens(views.page)] == list(map(visible, read))
        return read

    turn(HARMLESS)
    views.learn()
    read = {text.strip() for text in turn(TEXTS)}
    assert len(read & set(PAYLOADS)) > 20  # whole payloads are tokens
    views.check()


def saved(page, button):
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    return open(download.value.path(), encoding="utf-8", newline="").read()


def drawn(svg):
    """The texts of a picture, in its order. All its elements are those of pictures."""
    root = xml.etree.ElementTree.fromstring(svg)
    for node in root.iter():
        assert re.fullmatch(r"\{http://www.w3.org/2000/svg\}(svg|title|rect|path|text)", node.tag), node.tag
        assert not [name for name in node.attrib if name.startswith("on") or name.endswith("href") or name in ("style", "class")]
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def picture(text):
    """A token as a picture shows it."""
    return visible(text, "↵").replace("\t", "␉").replace("\x7f", "␡").replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


def open_saved(browser, path, text):
    """Open a saved page from its file; returns the page, whose console must stay empty."""
    path.write_text(text, encoding="utf-8")
    page = browser.new_context(offline=True).new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: request.url == f"file://{path}" or page.said.append(request.url))
    page.goto(f"file://{path}")
    return page


def test_explanations_and_what_is_saved_of_them(service, words, views, browser, tmp_path):
    def explain(texts):
        views.show(f"{service.url}/#/explain?model={words}", "textarea")
        views.page.locator("#input").fill("\n".join(texts))
        views.page.get_by_role("button", name="Explain", exact=True).click()
        views.page.locator(".sums").wait_for()
        answer = json.loads(saved(views.page, "Save JSON"))
        read = [token["text"] for token in answer["tokens"]]
        views.page.wait_for_function("n => document.querySelectorAll('.strip [role=option]').length === n", arg=len(read))
        assert [text for text, _ in tokens(views.page)] == list(map(visible, read))
        return read

    explain(HARMLESS)
    views.learn()
    read = explain(TEXTS)
    views.check()
    rows = list(csv.DictReader(io.StringIO(saved(views.page, "Save CSV"))))
    assert [row["token"] for row in rows] == [f"'{text}" if re.match(r"[=+\-@\t\r].", text, re.S) else text for text in read]
    texts = [text.split(": ", 1)[1] for text in drawn(saved(views.page, "Save SVG")) if text.startswith("token ")]
    assert [re.sub(r"^[+−-][0-9.e+-]+", "", text) for text in texts] == list(map(picture, read))
    page = open_saved(browser, tmp_path / "saved.html", saved(views.page, "Save page"))
    page.wait_for_function("n => document.querySelectorAll('.strip [role=option]').length === n", arg=len(read))
    assert [text for text, _ in tokens(page)] == list(map(visible, read))
    assert page.locator(".planted").count() == 0 and page.locator("script").count() == 2 and page.said == []
    page.context.close()


def test_labels(service, views, browser, tmp_path):
    """Two explanations side by side show four classes each."""
    labels = [text for text in TEXTS if "\0" not in text and 0 < len(text.encode()) <= 256]
    for text in [text for text in TEXTS if text not in labels]:
        file = upload(service, "l.jsonl", "".join(json.dumps({"text": "x", "label": label}) + "\n" for label in ("harmless", text)))
        body = {"model": "linear_encoder", "training_file": file["id"], "additive": TINY}
        assert refusals(service, "POST", "/v1/fine_tuning/jobs", body) == "training_file", ascii(text)
    options = {"tokenizer": {"type": "bytes"}}
    lines = lambda names: "".join(json.dumps({"text": f"text {i}", "label": name}) + "\n" for i, name in enumerate(names))
    harmless, hostile = (train(service, "linear_encoder", upload(service, "l.jsonl", lines(names)), **options) for names in (HARMLESS, labels))

    def compare(model, four):
        query = dict(zip(("token", "other", "second_token", "second_other"), four), model=model, input="text")
        views.page.evaluate("query => { location.hash = `#/explain?${new URLSearchParams(query)}`; }", query)
        views.page.wait_for_function("text => [...document.querySelectorAll('main b')].some(node => node.textContent === text)", arg=f"{model}: Why {quoted(four[2])} and not {quoted(four[3])}")
        assert views.page.locator("main b").all_text_contents()[:2] == [f"{model}: Why {quoted(a)} and not {quoted(b)}" for a, b in (four[:2], four[2:])]

    views.show(f"{service.url}/#/explain", "textarea")
    compare(harmless, HARMLESS)
    views.learn()
    for first in range(0, len(labels), 4):
        compare(hostile, (labels + labels[:3])[first : first + 4])
        views.check()
    four = labels[4:8]
    compare(hostile, four)
    assert f"why {quoted(four[0])} and not {quoted(four[1])}" in " ".join(drawn(saved(views.page, "Save SVG")))
    page = open_saved(browser, tmp_path / "saved.html", saved(views.page, "Save page"))
    assert page.locator("main b").all_text_contents()[:2] == [f"{hostile}: Why {quoted(a)} and not {quoted(b)}" for a, b in (four[:2], four[2:])]
    assert page.locator(".planted").count() == 0 and page.said == []
    page.context.close()
    views.show(f"{service.url}/#/models/{hostile}", "pre")
    assert json.loads(views.page.locator("pre").text_content())["id2label"] == {str(i): label for i, label in enumerate(sorted(labels, key=str.encode))}
