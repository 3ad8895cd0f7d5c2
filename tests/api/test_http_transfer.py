"""Uploads and downloads: forms in any order, flow control both ways, limits."""

import json
import os
import random
import socket
import time

import pytest

from http_support import engine, front, read_all, read_head, start, wait_for

BOUNDARY = "x-boundary-x"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(*parts):
    """parts: (name, content) or (name, content, filename)"""
    out = b""
    for name, content, *rest in parts:
        content = content.encode() if isinstance(content, str) else content
        out += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'.encode()
        if rest:
            out += f'; filename="{rest[0]}"\r\nContent-Type: application/octet-stream'.encode()
        out += b"\r\n\r\n" + content + b"\r\n"
    return out + f"--{BOUNDARY}--\r\n".encode()


@pytest.fixture
def keeper(engine):
    """An engine that keeps uploads."""
    engine.kept = []
    for method in ["file.create", "model.import", "session.import"]:

        @engine.on(method)
        async def _(call):
            parts = await call.read_all()
            engine.kept.append((call.params, parts))
            call.result({"id": "new", "bytes": sum(map(len, parts.values()))})

    return engine


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["purpose", "file"])
def test_a_file_is_stored_whichever_field_comes_first(front, keeper, first):
    fields = {"purpose": ("purpose", "fine-tune"), "file": ("file", b"some text\r\n--x\r\n", "a.txt")}
    body = form(fields.pop(first), *fields.values())
    answer = front.post("/v1/files", body, headers=FORM)
    assert answer.json == {"id": "new", "bytes": 16}
    assert keeper.kept == [({"filename": "a.txt", "purpose": "fine-tune"}, {"file": b"some text\r\n--x\r\n"})]


def test_the_openai_client_stores_a_file(front, keeper):
    client = front.openai()
    stored = client.files.create(file=("train.jsonl", b'{"text":"x"}\n'), purpose="fine-tune")
    assert stored.id == "new"
    assert keeper.kept == [({"filename": "train.jsonl", "purpose": "fine-tune"}, {"file": b'{"text":"x"}\n'})]


def test_the_openai_client_stores_a_file_for_a_while(front, keeper):
    client = front.openai()
    client.files.create(file=("a", b"x"), purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 7200})
    assert keeper.kept[0][0]["expires_after"] == {"anchor": "created_at", "seconds": 7200}


def test_a_form_may_say_how_a_file_is_read(front, keeper):
    answer = front.post("/v1/files", form(("purpose", "fine-tune"), ("format", "text"), ("file", b"x", "f")), headers=FORM)
    assert answer.status == 200 and keeper.kept[0][0]["format"] == "text"
    answer = front.post("/v1/files", form(("purpose", "fine-tune"), ("file", b"x", "f"), ("format", "text")), headers=FORM)
    assert (answer.status, answer.error["param"]) == (400, "format")


@pytest.mark.parametrize("content", [b"", b"\r", b"\r\n", b"\r\n-", b"\r\n--x-boundary", b"-", b"\0" * 10, b"\r\n" * 5000, b"--x-boundary-xy\r\n",
                                     bytes(range(256)) * 300], ids=range(10))
@pytest.mark.parametrize("piece", [1 << 30, 1000, 7])
def test_content_arrives_as_it_was_however_it_is_cut(front, keeper, content, piece):
    body = form(("purpose", "fine-tune"), ("file", content, "f"))
    if piece == 7 and len(content) > 10000:
        piece = 77
    with front.socket() as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['Content-Type']}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for at in range(0, len(body), piece):
            s.sendall(body[at : at + piece])
        assert read_head(s)[0] == 200
    assert keeper.kept[0][1] == {"file": content}


def test_a_chunked_form_is_understood(front, keeper):
    body = form(("purpose", "fine-tune"), ("file", b"y" * 100000, "f"))
    pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)]
    assert front.post("/v1/files", iter(pieces), headers=FORM).status == 200
    assert keeper.kept[0][1] == {"file": b"y" * 100000}


@pytest.mark.parametrize("given,kept", [("../../etc/passwd", "passwd"), ("C:\\dir\\a.txt", "a.txt"), ("a b.txt", "a b.txt"), ("dir/", "upload"),
                                        ("é.txt", "é.txt"), ("n" * 300, "upload")])
def test_a_file_name_is_its_last_component(front, keeper, given, kept):
    front.post("/v1/files", form(("purpose", "fine-tune"), ("file", b"x", given)), headers=FORM)
    assert keeper.kept[0][0]["filename"] == kept


BAD_FORMS = [
    ("no file", [("purpose", "fine-tune")], "file"),
    ("no purpose", [("file", b"x", "f")], "purpose"),
    ("another purpose first", [("purpose", "assistants"), ("file", b"x", "f")], "purpose"),
    ("another purpose last", [("file", b"x", "f"), ("purpose", "assistants")], "purpose"),
    ("the purpose of a batch last", [("file", b"x", "f"), ("purpose", "batch")], "purpose"),
    ("unknown field", [("purpose", "fine-tune"), ("color", "red"), ("file", b"x", "f")], "color"),
    ("twice", [("purpose", "fine-tune"), ("file", b"x", "f"), ("file", b"y", "f")], "file"),
    ("long purpose", [("purpose", "f" * 1000), ("file", b"x", "f")], "purpose"),
    ("seconds that are none", [("expires_after[seconds]", "1h"), ("purpose", "fine-tune"), ("file", b"x", "f")], "expires_after[seconds]"),
    ("an anchor alone", [("expires_after[anchor]", "created_at"), ("purpose", "fine-tune"), ("file", b"x", "f")], "expires_after[seconds]"),
    ("an anchor too late", [("purpose", "fine-tune"), ("file", b"x", "f"), ("expires_after[anchor]", "created_at")], "expires_after[anchor]"),
    ("NUL in purpose", [("purpose", b"fine-tune\0"), ("file", b"x", "f")], "purpose"),
]


@pytest.mark.parametrize("name,parts,param", BAD_FORMS, ids=[n for n, _, _ in BAD_FORMS])
def test_a_wrong_form_names_its_field_and_stores_nothing(front, keeper, name, parts, param):
    answer = front.post("/v1/files", form(*parts), headers=FORM)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert not keeper.kept
    wait_for(lambda: all(c.cancelled.is_set() for c in keeper.calls if c.method == "file.create"))


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=", 'multipart/form-data; boundary="',
                                          'multipart/form-data; boundary=""', "multipart/form-data; boundary=" + "b" * 5000,
                                          "multipart/form-data; boundary=a\tb", "multipart/form-data; boundary=b", 'multipart/form-data; boundary="a', "multipart/form-data; x=y"])
def test_a_malformed_boundary_is_refused(front, content_type):
    answer = front.post("/v1/files", b"x" * 100, headers={"Content-Type": content_type})
    assert (answer.status, answer.error["code"]) == (400, "invalid_form")


def test_a_quoted_boundary_is_understood(front, keeper):
    answer = front.post("/v1/files", form(("purpose", "fine-tune"), ("file", b"x", "f")),
                        headers={"Content-Type": f'multipart/form-data; boundary="{BOUNDARY}"'})
    assert answer.status == 200


@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=X; charset=UTF-8", 'multipart/form-data; boundary="X"; charset=UTF-8',
                                          "multipart/form-data; boundary=X;", "Multipart/Form-Data;Boundary=X", "multipart/form-data; charset=utf-8; boundary=X"])
@pytest.mark.parametrize("head", ["Content-Disposition: form-data; name=NAME", "Content-Disposition: form-data;name=NAME", 'content-disposition:form-data;Name="NAME";',
                                  "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data;\r\n name=NAME"])
def test_forms_of_common_clients_are_read(front, keeper, content_type, head):
    parts = [("purpose", "", "fine-tune"), ("file", "; filename*=utf-8''caf%C3%A9.jsonl", "{}")]
    body = "".join(f"--X\r\n{head.replace('NAME', name).rstrip(';')}{more}\r\n\r\n{text}\r\n" for name, more, text in parts) + "--X--\r\n\r\n"
    answer = front.post("/v1/files", body.encode(), headers={"Content-Type": content_type})
    assert answer.status == 200, answer.body
    assert keeper.kept == [({"filename": "café.jsonl", "purpose": "fine-tune"}, {"file": b"{}"})]


@pytest.mark.parametrize("head,word", [("Content-Disposition: form-data", "no name"), ("Content-Disposition: form-data; name=file\r\nContent-Transfer-Encoding: base64", "encoded"),
                                       ("Content-Disposition: form-data; name=file x", "malformed"), ("nothing", "header")])
def test_a_part_that_cannot_be_read_says_why(front, keeper, head, word):
    answer = front.post("/v1/files", f"--X\r\n{head}\r\n\r\nx\r\n--X--".encode(), headers={"Content-Type": "multipart/form-data; boundary=X"})
    assert (answer.status, answer.error["code"]) == (400, "invalid_form") and word in answer.error["message"]


def test_random_bytes_as_a_form_never_hurt(front, keeper):
    rng = random.Random(1)
    good = form(("purpose", "fine-tune"), ("file", b"x" * 500, "f"))
    for _ in range(150):
        body = bytearray(good)
        for _ in range(rng.randrange(1, 20)):
            at = rng.randrange(len(body))
            body[at : at + rng.randrange(3)] = bytes(rng.randrange(256) for _ in range(rng.randrange(3)))
        assert front.post("/v1/files", bytes(body[: rng.randrange(len(body) + 1)]), headers=FORM).status in (200, 400)
    assert front.get("/readyz").status == 200


def test_a_truncated_form_is_refused(front, keeper):
    body = form(("purpose", "fine-tune"), ("file", b"x" * 100, "f"))
    for cut in [1, 5, 20, 60, 100]:
        assert front.post("/v1/files", body[:-cut], headers=FORM).status in ((200, 400) if cut == 1 else (400,))


# --- models ------------------------------------------------------------------------------------------


def test_a_model_is_imported_part_by_part(front, keeper):
    weights = os.urandom(3 << 20)
    body = form(("id", "my-model"), ("config", b"{}", "config.json"), ("weights", weights, "model.safetensors"), ("tokenizer", b"{}", "t.json"))
    assert front.post("/v1/models", body, headers=FORM).json["id"] == "new"
    assert keeper.kept == [({"id": "my-model"}, {"config": b"{}", "weights": weights, "tokenizer": b"{}"})]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_model_is_imported_as_files_under_their_own_names(front, keeper, chunked):
    files = {"config.json": b"{}", "model-00001-of-00002.safetensors": os.urandom(700000), "empty": b"", "also_empty": b"", "tokenizer.json": b"{}"}
    body = form(("id", "m"), *(("file", data, given + name) for (name, data), given in zip(files.items(), ("", "folder/", "C:\\", "", "/"))))
    body = iter([body[i : i + 5000] for i in range(0, len(body), 5000)]) if chunked else body
    assert front.post("/v1/models", body, headers=FORM).json["id"] == "new"
    assert keeper.kept == [({"id": "m"}, {"file:" + name: data for name, data in files.items()})]


def test_a_model_is_imported_as_an_archive(front, keeper):
    archive = os.urandom(600000)
    assert front.post("/v1/models", form(("id", "m"), ("archive", archive, "m.tar")), headers=FORM).status == 200
    assert keeper.kept == [({"id": "m"}, {"archive": archive})]


@pytest.mark.parametrize("name,param", [("", "file"), ("a/", "file"), ("a:b", "file"), ("a b", "file"), ("é", "file"), ("n" * 128, "file"), (None, "config")])
def test_a_form_that_names_no_files_of_a_model_is_refused(front, keeper, name, param):
    parts = [("id", "m")] if name is None else [("id", "m"), ("file", b"x", name)]
    answer = front.post("/v1/models", form(*parts), headers=FORM)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert not keeper.kept


@pytest.mark.parametrize("model_id", ["", "..", "a/b", "a b", "x" * 64, "é"])
def test_a_model_id_must_be_an_id(front, keeper, model_id):
    answer = front.post("/v1/models", form(("id", model_id), ("config", b"{}", "c"), ("weights", b"w", "w")), headers=FORM)
    assert (answer.status, answer.error["param"]) == (400, "id")
    assert not keeper.calls


def test_a_models_files_wait_for_its_id(front, keeper):
    answer = front.post("/v1/models", form(("config", b"{}", "c"), ("id", "m"), ("weights", b"w", "w")), headers=FORM)
    assert (answer.status, answer.error["param"]) == (400, "id")
    assert "before" in answer.error["message"]


# --- sessions ------------------------------------------------------------------------------------------


def test_a_session_is_restored_from_its_bytes(front, keeper):
    state = os.urandom(1 << 20)
    answer = front.post("/v1/sessions?model=m", state, headers={"Content-Type": "application/octet-stream"})
    assert answer.json["id"] == "new"
    assert keeper.kept == [({"model": "m"}, {"state": state})]
    empty = front.post("/v1/sessions?model=m", b"", headers={"Content-Type": "application/octet-stream"})
    assert empty.status == 200 and keeper.kept[1] == ({"model": "m"}, {"state": b""})
    answer = front.post("/v1/sessions", state, headers={"Content-Type": "application/octet-stream"})
    assert (answer.status, answer.error["param"]) == (400, "model")


# --- flow control -------------------------------------------------------------------------------------


def test_an_upload_waits_for_the_engine_with_bounded_memory(front, engine):
    @engine.on("file.create")
    async def _(call):
        call.grant(2)
        await call.read()
        await call.read()
        engine.stalled = call
        while not getattr(engine, "go_on", False):
            await __import__("asyncio").sleep(0.01)
        call.grant(1000000)
        last = False
        while not last:
            _, _, last = await call.read()
        call.result({"id": "f"})

    total = 64 << 20
    body = form(("purpose", "fine-tune"), ("file", b"", "f"))
    head, tail = body[: body.rindex(b"\r\n--" + BOUNDARY.encode())], body[body.rindex(b"\r\n--" + BOUNDARY.encode()) :]
    before = front.rss()
    with front.socket() as s:
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['Content-Type']}\r\nContent-Length: {len(body) + total}\r\n\r\n".encode() + head)
        s.settimeout(0.5)
        sent, block = 0, b"z" * 65536
        with pytest.raises(TimeoutError):
            while sent < total:
                sent += s.send(block)
        assert sent < total // 2, "the client is held back"
        assert front.rss() - before < 16 << 20
        assert front.get("/healthz").status == 200
        engine.go_on = True
        s.settimeout(10)
        while sent < total:
            sent += s.send(block[: total - sent])
        s.sendall(tail)
        assert read_head(s)[0] == 200
    assert engine.stalled.received_bytes == total


def test_an_engine_error_ends_an_upload_that_waits(front, engine):
    @engine.on("file.create")
    async def _(call):
        await __import__("asyncio").sleep(0.2)
        call.error(507, "disk_full", "no room")

    answer = front.post("/v1/files", form(("purpose", "fine-tune"), ("file", b"z" * (2 << 20), "f")), headers=FORM)
    assert (answer.status, answer.error["code"]) == (507, "disk_full")


def test_a_client_that_leaves_an_upload_cancels_it(front, engine):
    @engine.on("file.create")
    async def _(call):
        await call.read_all()

    for stalled in [False, True]:
        if stalled:

            @engine.on("file.create")
            async def _(call):
                await __import__("asyncio").sleep(60)

        s = front.socket()
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['Content-Type']}\r\nContent-Length: 10000000\r\n\r\n".encode() +
                  form(("file", b"z" * 300000, "f"))[:-60])
        wait_for(lambda: engine.calls and engine.calls[-1].method == "file.create" and not engine.calls[-1].cancelled.is_set())
        time.sleep(0.1)
        if stalled:  # an ordinary end would be queued after the bytes that the server does not read
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        s.close()
        wait_for(engine.calls[-1].cancelled.is_set, 1)


# --- limits -----------------------------------------------------------------------------------------------


def test_an_upload_over_the_limit_is_413_at_once(start, engine):
    front = start("--max-upload-bytes", 100000)
    for path, content_type in [("/v1/files", FORM["Content-Type"]), ("/v1/models", FORM["Content-Type"]),
                               ("/v1/sessions?model=m", "application/octet-stream")]:
        with front.socket() as s:
            s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: 10000000000\r\n\r\n".encode())
            status, headers, body = read_head(s)
            assert (status, headers["connection"]) == (413, "close")
            assert json.loads(body)["error"]["code"] == "request_too_large"
    assert not engine.calls


def test_a_client_that_asks_first_is_refused_without_sending(start):
    front = start("--max-upload-bytes", 1000)
    with front.socket() as s:
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Type: {FORM['Content-Type']}\r\nContent-Length: 5000\r\n\r\n".encode())
        assert read_head(s)[0] == 413


def test_a_client_that_asks_first_and_may_continues(front, keeper):
    body = form(("purpose", "fine-tune"), ("file", b"x", "f"))
    with front.socket() as s:
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Type: {FORM['Content-Type']}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert s.recv(100).startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        assert read_head(s)[0] == 200


@pytest.mark.parametrize("path,content_type,limit", [("/v1/completions", "application/json", 4 << 20), ("/v1/files", FORM["Content-Type"], 20 << 20),
                                                     ("/v1/models/m/load", None, 64 << 10)])
def test_an_endless_chunked_body_is_cut_at_the_limit(start, keeper, path, content_type, limit):
    """Ten gigabytes would come; the answer goes out early and the rest is not read."""
    front = start("--max-upload-bytes", 20 << 20)
    before = front.rss()
    with front.socket() as s:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + (f"Content-Type: {content_type}\r\n" if content_type else "")
        s.sendall(head.encode() + b"\r\n")
        start_of_form = form(("file", b"", "f"))[:-20] if "multipart" in (content_type or "") else b""
        if start_of_form:
            s.sendall(b"%x\r\n%s\r\n" % (len(start_of_form), start_of_form))
        block = b"10000\r\n" + b"z" * 65536 + b"\r\n"
        sent, answer = 0, b""
        try:
            while sent < 10 << 30:
                s.sendall(block)
                sent += 65536
        except ConnectionError:
            pass
        try:
            while piece := s.recv(65536):
                answer += piece
        except ConnectionError:
            pass
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert limit <= sent < limit + (160 << 20)
    assert front.rss() - before < 32 << 20
    assert front.get("/readyz").status == 200


def test_a_body_a_little_over_the_limit_is_answered_to_a_client_that_writes_first(front):
    """Clients that read only after sending everything see the reason, not a reset connection."""
    for size in [(4 << 20) + 1, 8 << 20, 40 << 20]:
        with front.socket() as s:
            s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode())
            s.sendall(b"z" * size)
            assert read_head(s)[0] == 413


def test_a_refused_small_body_leaves_the_connection_usable(front):
    with front.socket() as s:
        for _ in range(3):
            s.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"z" * 100000)
            status, headers, body = read_head(s)
            assert status == 404
            while len(body) < int(headers["content-length"]):
                body += s.recv(4096)
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_head(s)[0] == 200


# --- downloads --------------------------------------------------------------------------------------------


def sender(engine, method, payload, piece=100000, announce=True, content_type="text/plain; charset=utf-8"):
    @engine.on(method)
    async def _(call):
        if announce:
            await call.event({"bytes": len(payload), "content_type": content_type})
        for at in range(0, len(payload), piece):
            await call.data(payload[at : at + piece])
        call.result({"bytes": len(payload)})


@pytest.mark.parametrize("path,method", [("/v1/files/f/content", "file.content"), ("/v1/models/m/files/model.safetensors", "model.file"),
                                         ("/v1/sessions/s/state", "session.export")])
@pytest.mark.parametrize("size", [0, 1, 99999, 5000000])
def test_a_download_is_the_engines_bytes(front, engine, path, method, size):
    payload = os.urandom(size)
    sender(engine, method, payload)
    answer = front.get(path)
    assert answer.body == payload
    assert answer.headers["Content-Length"] == str(size)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Content-Disposition"] == "attachment"
    sender(engine, method, payload, announce=False)
    answer = front.get(path)
    assert (answer.body, answer.headers["Content-Type"]) == (payload, "application/octet-stream")


@pytest.mark.parametrize("name,header", [
    ("tales.txt", 'attachment; filename="tales.txt"'), ("a b-(1).txt", 'attachment; filename="a b-(1).txt"'),
    ("Märchen ☃.txt", "attachment; filename=\"M_rchen _.txt\"; filename*=UTF-8''M%C3%A4rchen%20%E2%98%83.txt"),
    ('a"b\\c%41', "attachment; filename=\"a_b_c_41\"; filename*=UTF-8''a%22b%5Cc%2541"),
    ("a\r\nSet-Cookie: x", "attachment; filename=\"a__Set-Cookie: x\"; filename*=UTF-8''a%0D%0ASet-Cookie%3A%20x"),
    ("", "attachment"), (7, "attachment"), (None, "attachment"), ("x" * 255, f'attachment; filename="{"x" * 255}"')])
def test_a_download_has_the_files_name(front, engine, name, header):
    @engine.on("file.content")
    async def _(call):
        await call.event({"bytes": 1, "content_type": "text/plain", "filename": name})
        await call.data(b"x")
        call.result({"bytes": 1})

    answer = front.get("/v1/files/f/content")
    assert (answer.headers["Content-Disposition"], answer.headers["Set-Cookie"]) == (header, None)


def test_a_file_name_reaches_the_engine(front, engine):
    sender(engine, "model.file", b"x")
    front.get("/v1/models/m/files/config.json")
    assert engine.calls[-1].params == {"id": "m", "name": "config.json"}


def test_an_odd_content_type_is_not_passed_on(front, engine):
    sender(engine, "file.content", b"x", content_type="text/html\r\nSet-Cookie: a=b")
    answer = front.get("/v1/files/f/content")
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert "Set-Cookie" not in answer.headers


def test_a_missing_file_is_404(front, engine):
    @engine.on("file.content")
    async def _(call):
        call.error(404, "not_found", "no such file", param="id")

    assert front.get("/v1/files/f/content").status == 404


def test_a_slow_download_parks_with_bounded_memory(front, engine):
    @engine.on("file.content")
    async def _(call):
        await call.event({"bytes": 64 << 20, "content_type": "text/plain"})
        for _ in range(64):
            await call.data(b"d" * (1 << 20))
        call.result({"bytes": 64 << 20})

    before = front.rss()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    s.settimeout(10)
    s.connect(("127.0.0.1", front.port))
    s.sendall(b"GET /v1/files/f/content HTTP/1.1\r\nHost: localhost\r\n\r\n")
    wait_for(lambda: engine.calls and engine.calls[0].parked and engine.calls[0].credit == 0)
    time.sleep(0.3)
    sent = engine.calls[0].sent
    assert sent < 10
    assert front.rss() - before < 24 << 20
    got = 0
    while got < 6 << 20:
        got += len(s.recv(1 << 20))
    assert engine.calls[0].sent > sent
    s.close()
    wait_for(engine.calls[0].cancelled.is_set, 2)


@pytest.mark.parametrize("how", ["error", "short", "long", "death"])
def test_a_failed_download_is_visibly_truncated(front, engine, how):
    @engine.on("file.content")
    async def _(call):
        await call.event({"bytes": 1000, "content_type": "text/plain"})
        await call.data(b"x" * 400)
        if how == "error":
            call.error(500, "io_error", "disk")
        elif how == "short":
            call.result({"bytes": 400})
        elif how == "long":
            await call.data(b"x" * 700)
            call.result({"bytes": 1100})
        else:
            call.connection.writer.transport.abort()

    import http.client

    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        front.get("/v1/files/f/content")
    assert front.get("/healthz").status == 200


def test_leaving_a_download_cancels_it(front, engine):
    @engine.on("file.content")
    async def _(call):
        await call.event({"bytes": 1000, "content_type": "text/plain"})
        await call.data(b"x" * 400)
        await call.read()

    with front.socket() as s:
        s.sendall(b"GET /v1/files/f/content HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_head(s)
    wait_for(engine.calls[0].cancelled.is_set, 1)
