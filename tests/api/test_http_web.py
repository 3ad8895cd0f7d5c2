"""The page at / and its files."""

import gzip
import re

from http_support import engine, front, start

TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}


def files_of(front):
    """Every file that the page needs, found as a browser finds them: the links of the page, then imports."""
    page = front.get("/").body.decode()
    found, waiting = {}, re.findall(r'(?:src|href)="(web/[^"]+)"', page)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = front.get("/" + path)
            assert found[path].status == 200, path
            waiting += [f"{path.rsplit('/', 1)[0]}/{name}" for name in re.findall(r"""(?:from|import\() ?'\./([^']+)'""", found[path].body.decode())]
    return found


def test_the_page_and_its_files_need_no_key(start, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    front = start("--api-key-file", tmp_path / "keys")
    assert front.get("/v1/models").status == 401
    found = files_of(front)
    assert {"app.js", "style.css", "icon.svg", "play_view.js", "jobs_view.js"} <= {path.rsplit("/", 1)[1] for path in found}
    for path, answer in found.items():
        assert answer.headers["Content-Type"] == TYPES[path.rsplit(".", 1)[1]]
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"


def test_scripts_and_styles_come_from_the_service_alone(front):
    page = front.get("/")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    text = page.body.decode()
    assert not re.search(r"<script(?! type=\"module\" src)|<style|\son\w+=|style=", text)
    assert not re.search(r"https?://", text)
    for path, answer in files_of(front).items():
        assert not re.search(r"\.innerHTML|insertAdjacentHTML|\beval\(|new Function", answer.body.decode()), path
        assert set(re.findall(r"https?://[^'\"` ]*", answer.body.decode())) <= {"http://www.w3.org/2000/svg"}, path


def test_a_browser_that_takes_gzip_gets_the_same_bytes_compressed(front):
    total = 0
    for path in ["", "openapi.json", *files_of(front)]:  # all that a first load may ask for, apart from the objects
        plain, small = front.get("/" + path), front.get("/" + path, headers={"Accept-Encoding": "br, gzip"})
        assert "Content-Encoding" not in plain.headers and small.headers["Content-Encoding"] == "gzip"
        assert small.headers["Vary"] == "Accept-Encoding"
        assert gzip.decompress(small.body) == plain.body
        for accept, same in (("gzip;q=0", True), ("gzip; q=0", True), ("gzip ; q=0.0, br", True), ("gzip;q=0.5", False), ("GZIP", False), ("xgzip", True)):
            assert (front.get("/" + path, headers={"Accept-Encoding": accept}).body == plain.body) == same, accept
        total += len(small.body)
    assert total <= 150 * 1024


def test_a_file_of_another_version_is_not_found(front):
    page = front.get("/").body.decode()
    version = re.search(r"web/([0-9a-f]{16})/app.js", page)[1]
    for path in (f"/web/{'0' * 16}/app.js", f"/web/{version}/other.js", f"/web/{version}/..", f"/web/{version}/index.html.gz"):
        assert front.get(path).status == 404, path
    assert front.request("HEAD", f"/web/{version}/app.js").status == 200
    assert front.get("/").headers["Cache-Control"] == "no-cache"


def test_a_service_without_the_page_says_so(start):
    front = start("--no-web")
    for path in ("/", "/web/0/app.js"):
        answer = front.get(path)
        assert answer.status == 404 and "--no-web" in answer.error["message"]
