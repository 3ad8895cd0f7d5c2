"""Models and sessions are saved from the page and imported by it. The browser sends files from the disk."""

import asyncio
import hashlib
import tarfile

import pytest

from web_support import NARROW, beside, browser, open_page
from conftest import service
from http_support import engine, front, start
from test_views import address, scripted

pytestmark = pytest.mark.slow
READS = """window.reads = 0;
for (const name of ['arrayBuffer', 'text', 'stream', 'slice', 'bytes']) if (Blob.prototype[name]) {
    const read = Blob.prototype[name];
    Blob.prototype[name] = function (...more) { window.reads++; return read.apply(this, more); };
}
const make = window.FileReader;
window.FileReader = function () { window.reads++; return new make(); };"""


def files(*names, text=b"x"):
    return [{"name": name, "mimeType": "application/octet-stream", "buffer": text} for name in names]


def error_of(page, label):
    return page.locator(".field", has=page.get_by_label(label, exact=True)).locator(".error")


def test_an_import_sends_what_belongs_to_a_model_and_says_what_is_left_out(engine, front, open_page):
    scripted(engine)
    taken = {}

    @engine.on("model.import")
    async def _(call):
        if call.params["id"] == "taken":
            call.error(409, "model_exists", "a model \"taken\" exists already", "id")
            return
        taken.update(await call.read_all())
        call.result({"id": call.params["id"]})

    page = open_page(address(front) + "/#/models", size=NARROW)
    page.get_by_role("link", name="Import").click()
    page.get_by_role("heading", name="Import a model").wait_for()
    start = page.get_by_role("button", name="Import", exact=True)
    assert start.is_disabled()
    page.locator("input[type=file]").set_input_files(files("notes.md", ".gitattributes"))
    page.get_by_text("None of these files belongs to a model.").wait_for()
    assert start.is_disabled()
    page.locator("input[type=file]").set_input_files(files("config.json", "notes.md", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "SHA256SUMS", "<b>.bin"))
    page.get_by_text("config.json, model-00001-of-00002.safetensors, model.safetensors.index.json, SHA256SUMS: 4 bytes. Left out: notes.md, <b>.bin.").wait_for()
    page.get_by_label("Id", exact=True).fill("taken")
    start.click()
    error_of(page, "Id").wait_for()
    assert error_of(page, "Id").text_content() == "Id: a model \"taken\" exists already" and page.locator("main .error").count() == 1 and beside(page) == []
    page.get_by_label("Id", exact=True).fill("m")
    start.click()
    page.get_by_role("heading", name="m", exact=True).wait_for()
    assert taken == {f"file:{name}": b"x" for name in ("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "SHA256SUMS")}


@pytest.mark.parametrize("view,method,label", [("models?import=1", "model.import", "Files of the model"), ("sessions?import=1", "session.import", "State of a session"), ("files", "file.create", "File to upload")])
def test_an_error_of_an_upload_is_shown_in_its_field(engine, front, open_page, view, method, label):
    scripted(engine)

    @engine.on(method)
    async def _(call):
        await call.read_all()
        call.error(400, "corrupt_data", "no <b>state</b>", "weights")

    page = open_page(f"{address(front)}/#/{view}")
    page.get_by_label(label).set_input_files(files("model.safetensors")[0])
    if method == "model.import":
        page.get_by_label("Id", exact=True).fill("m")
        page.get_by_role("button", name="Import", exact=True).click()
    page.locator(".drop .error").wait_for()
    assert page.locator(".drop").text_content() == "weights: no <b>state</b>" and page.locator("main .error").count() == 1
    assert page.get_by_label(label).is_enabled()


def test_a_large_file_is_sent_without_being_read_by_the_page_and_can_be_stopped(engine, front, open_page, tmp_path):
    scripted(engine)
    with open(tmp_path / "big.tar", "wb") as big:
        big.truncate(256 << 20)

    @engine.on("model.import")
    async def _(call):
        call.grant(4)
        while True:  # slowly
            await call.read()
            await asyncio.sleep(0.05)
            call.grant(1)

    page = open_page(address(front) + "/")
    page.add_init_script(READS)
    page.goto("about:blank")
    page.goto(address(front) + "/#/models?import=1")
    page.get_by_label("Files of the model").set_input_files(tmp_path / "big.tar")
    page.get_by_text("big.tar: 256 MiB.").wait_for()
    assert page.get_by_label("Id", exact=True).input_value() == "big"
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_text(" of 256 MiB").wait_for()
    assert page.get_by_role("button", name="Import", exact=True).is_disabled() and page.get_by_label("Files of the model").is_disabled()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped. Nothing was kept.").wait_for()
    assert page.get_by_role("button", name="Stop").is_hidden() and page.get_by_role("button", name="Import", exact=True).is_enabled()
    call = engine.called("model.import")[0]
    assert call.cancelled.wait(30) and call.received_bytes < 256 << 20
    assert page.evaluate("reads") == 0


def test_one_file_is_taken_where_one_is_meant(engine, front, open_page):
    scripted(engine)
    page = open_page(address(front) + "/#/files")
    page.locator(".drop").evaluate("""node => {
        const data = new DataTransfer();
        for (const name of ['a.txt', 'b.txt']) data.items.add(new File(['x'], name));
        node.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
    }""")
    page.get_by_text("One file at a time.").wait_for()
    assert engine.called("file.create") == []


def test_a_key_that_may_not_export_still_sees_the_model(engine, front, open_page):
    scripted(engine)

    @engine.on("model.files")
    async def _(call):
        call.error(403, "forbidden", "the key has the role user")

    page = open_page(address(front) + "/#/models/m")
    page.get_by_role("heading", name="The key in use may not do this.").wait_for()
    assert page.locator(".facts div", has_text="Parameters").get_by_text("12,345").is_visible() and page.get_by_role("link", name="Talk to it").is_visible()


def drop_path(page, path):
    """Drop a file or folder of the disk, as a user does."""
    box = page.locator(".drop").bounding_box()
    client, data = page.context.new_cdp_session(page), {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        client.send("Input.dispatchDragEvent", {"type": kind, "x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "data": data})


@pytest.mark.parametrize("way", ["folder", "files", "archive"])
def test_a_model_that_was_saved_is_imported_again(service, open_page, tmp_path, way):
    model = service.wait_job(service.job(steps=5)["id"])["fine_tuned_model"]
    page, folder = open_page(f"{service.url}/#/models/{model}"), tmp_path / f"tale-{way}"
    folder.mkdir()
    listed = service.ok("GET", f"/v1/models/{model}/files")["data"]
    for file in listed:
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save {file['name']}", exact=True).click()
        saved.value.save_as(folder / file["name"])
        assert hashlib.sha256((folder / file["name"]).read_bytes()).hexdigest() == file["sha256"]
    (folder / "notes.md").write_text("not a part of it")
    page.goto(f"{service.url}/#/models?import=1")
    page.get_by_role("heading", name="Import a model").wait_for()
    if way == "folder":
        drop_path(page, folder)
    elif way == "files":
        page.get_by_label("Files of the model").set_input_files(sorted(folder.iterdir()))
        page.get_by_label("Id", exact=True).fill(folder.name)
    else:
        with tarfile.open(tmp_path / f"{folder.name}.tar", "w") as archive:
            archive.add(folder, folder.name)
        page.get_by_label("Files of the model").set_input_files(tmp_path / f"{folder.name}.tar")
    if way != "archive":
        page.get_by_text("Left out: notes.md.").wait_for()
    page.get_by_text("Drop the folder").wait_for(state="detached")
    assert page.get_by_label("Id", exact=True).input_value() == folder.name
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_role("heading", name=folder.name, exact=True).wait_for()
    of_model = lambda files: [file for file in files if file["name"] not in ("README.md", "model_card.json")]
    assert of_model(service.ok("GET", f"/v1/models/{folder.name}/files")["data"]) == of_model(listed)
    assert service.ok("GET", f"/v1/models/{folder.name}/card")["parents"][0] == {"model": model, "relation": "imported from"}

    page.goto(f"{service.url}/#/models?import=1")
    (folder / "config.json").write_text("{")
    page.get_by_label("Files of the model").set_input_files(sorted(folder.iterdir()))
    for id, shown in ((folder.name, error_of(page, "Id")), ("other", page.locator(".drop .error"))):
        page.get_by_label("Id", exact=True).fill(id)
        page.get_by_role("button", name="Import", exact=True).click()
        shown.wait_for()
        assert page.locator("main .error").count() == 1
    assert "config.json" in page.locator(".drop .error").text_content()
    assert "other" not in [row["id"] for row in service.ok("GET", "/v1/models")["data"]]


def test_a_session_that_was_saved_is_imported_again(service, open_page, tmp_path):
    model = service.wait_job(service.job(steps=5)["id"])["fine_tuned_model"]
    session = service.ok("POST", "/v1/sessions", {"model": model, "prompt": "99 bottles of"})["id"]
    page = open_page(f"{service.url}/#/sessions/{session}")
    with page.expect_download() as saved:
        page.get_by_role("button", name=f"Save {session}.state").click()
    saved.value.save_as(tmp_path / "kept.state")
    page.goto(f"{service.url}/#/sessions?import=1")
    page.get_by_label("Model", exact=True).select_option(model)
    field = page.get_by_label("State of a session")
    field.set_input_files({"name": "other.state", "mimeType": "", "buffer": b"not a state"})
    page.locator(".drop .error").wait_for()
    field.set_input_files(tmp_path / "kept.state")
    page.get_by_role("link", name="Continue").wait_for()
    copy = page.locator("h1").text_content()
    assert copy != session and page.locator(".facts div", has_text="Tokens read").get_by_text("13", exact=True).is_visible()
    text, again = [service.ok("POST", f"/v1/sessions/{id}/generate", {"max_tokens": 8, "temperature": 0})["choices"][0]["text"] for id in (session, copy)]
    assert text == again

    service.ok("DELETE", f"/v1/sessions/{copy}")
    page.get_by_role("button", name=f"Save {copy}.state").click()
    page.get_by_role("dialog").locator(".error").wait_for()
