"""Keys, hosts, origins and the owner of a request."""

import hashlib
import socket
import subprocess

import pytest

from http_support import BIN, engine, front, read_head, start
from test_http_basic import FORWARDED, WITH_BODY

ROUTES = sorted({(m, p.split("?")[0]) for m, p, _, _ in FORWARDED} | {("POST", p) for p, _, _ in WITH_BODY} |
                {("POST", "/v1/files"), ("POST", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/v1/files/f/content"),
                 ("GET", "/v1/models/m/files/f"), ("GET", "/v1/sessions/s/state"), ("POST", "/v1/sessions/s/generate"),
                 ("POST", "/v1/sessions/s/append"), ("GET", "/metrics"), ("GET", "/version"), ("GET", "/openapi.json"),
                 ("GET", "/nowhere"), ("PUT", "/healthz")})


def test_every_route_but_health_needs_a_key(start, engine, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# keys\n\nfirst-key\n  second-key  \n")
    front = start("--api-key-file", keys)
    for method, path in ROUTES:
        for header in [None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer first-ke", "Bearer first-key2", "Basic first-key", "first-key"]:
            if header is not None and path not in ("/v1/models", "/v1/completions"):
                continue
            headers = {} if header is None else {"Authorization": header}
            answer = front.request(method, path, headers=headers)
            assert answer.status == 401, (method, path, header)
            assert answer.error["type"] == "authentication_error"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert not engine.calls
    for key in ["first-key", "second-key"]:
        assert front.get("/v1/models", headers={"Authorization": "Bearer " + key}).status == 200
        assert front.get("/nowhere", headers={"authorization": "bearer " + key}).status == 404
    assert front.get("/healthz").status == 200
    assert front.get("/readyz").status == 200


def test_a_key_file_without_keys_is_refused_at_the_start(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# nothing\n")
    for path in [keys, tmp_path / "missing", tmp_path]:
        done = subprocess.run([BIN / "additive-httpd", "--listen", "127.0.0.1:0", "--api-key-file", path], capture_output=True, text=True)
        assert done.returncode == 1
        assert f"the key file {path}" in done.stderr


def test_listening_beyond_loopback_without_keys_is_warned_about(engine):
    process = subprocess.Popen([BIN / "additive-httpd", "--listen", "0.0.0.0:0", "--engine", "unix:" + engine.path],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
    finally:
        process.terminate()
        _, err = process.communicate(timeout=10)
    assert "without --api-key-file" in err
    assert process.returncode == 0


def test_pages_of_other_sites_may_look_but_not_touch(front, engine):
    cross = {"Sec-Fetch-Site": "cross-site"}
    for method, path in [("POST", "/v1/models/m/unload"), ("POST", "/v1/fine_tuning/jobs/j/cancel"), ("DELETE", "/v1/models/m"), ("POST", "/v1/files")]:
        answer = front.request(method, path, headers=cross)
        assert (answer.status, answer.error["code"]) == (403, "cross_site")
    assert not engine.calls
    assert front.get("/", headers=cross).status == 200
    for site in ["same-origin", "same-site", "none"]:
        assert front.post("/v1/models/m/unload", headers={"Sec-Fetch-Site": site}).status == 200


DANGEROUS = [("POST", "/v1/models/m/unload"), ("DELETE", "/v1/models/m"), ("POST", "/v1/files"), ("GET", "/v1/files/f/content"), ("GET", "/v1/models")]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost", "", ":80", "[::1", "x y"])
def test_a_page_that_points_its_name_at_this_machine_gets_nothing(front, engine, host):
    """DNS rebinding: the browser takes the page's own name for the server's."""
    for method, path in DANGEROUS:
        answer = front.request(method, path, headers={"Host": host, "Origin": f"http://{host}"})
        assert (answer.status, answer.error["code"]) == (403, "forbidden_host")
    assert not engine.calls


def test_the_names_of_this_machine_are_always_good(front):
    for host in ["localhost", f"LocalHost:{front.port}", "localhost.:9", "app.localhost", "127.0.0.1:1", "[::1]:8080", "[::1]", "192.168.1.7:8080"]:
        for origin in [{}, {"Origin": f"http://{host}"}, {"Origin": f"https://{host}"}]:
            assert front.post("/v1/models/m/unload", headers={"Host": host, **origin}).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost", "http://127.0.0.1:1", "http://localhost:PORT.evil.example", "", "localhost:PORT"])
def test_pages_of_another_origin_are_refused(front, engine, origin):
    for method, path in DANGEROUS:
        answer = front.request(method, path, headers={"Host": f"localhost:{front.port}", "Origin": origin.replace("PORT", str(front.port))})
        assert (answer.status, answer.error["code"]) == (403, "cross_site")
    assert not engine.calls


def test_allowed_names_are_good_as_host_and_as_origin(start):
    front = start("--allow-host", "api.example.org", "--allow-host", "app.example.org")
    for headers in [{"Host": "api.example.org"}, {"Host": "API.example.org:443", "Origin": "https://app.example.org"}, {"Origin": "https://app.example.org:99", "Sec-Fetch-Site": "cross-site"}]:
        assert front.post("/v1/models/m/unload", headers=headers).status == 200
    assert front.post("/v1/models/m/unload", headers={"Host": "www.example.org"}).status == 403
    anything = start("--allow-host", "*")
    assert anything.post("/v1/models/m/unload", headers={"Host": "evil.example", "Origin": "null"}).status == 200


APP = "http://app.example:3000"


def preflight(front, origin, path="/v1/completions", **headers):
    return front.request("OPTIONS", path, headers={"Origin": origin, "Access-Control-Request-Method": "POST", **headers})


def cors_headers(answer):
    return {k: v for k, v in answer.headers.items() if k.lower().startswith("access-control-")}


def test_the_pages_of_a_listed_origin_may_ask_and_read(start, engine):
    front = start("--allow-host", "app.example:3000", "--allow-host", "other.example")
    answer = preflight(front, APP, **{"Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"})
    assert (answer.status, answer.body, answer.headers["Access-Control-Allow-Origin"]) == (204, b"", APP)
    assert answer.headers["Access-Control-Allow-Headers"] == "authorization,content-type,x-stainless-os"
    assert set(answer.headers["Access-Control-Allow-Methods"].split(", ")) == {"GET", "HEAD", "POST", "DELETE"}
    assert answer.headers["Access-Control-Max-Age"] == "7200" and answer.headers["Vary"] == "Origin"
    assert "Content-Type" not in answer.headers and not engine.calls
    assert preflight(front, APP, "/v1/none").status == 204  # the page reads the 404 itself
    for method, path, body, status in [("GET", "/v1/models", None, 200), ("GET", "/v1/none", None, 404), ("PUT", "/v1/models", None, 405),
                                       ("POST", "/v1/tokenize", {"x": 1}, 400), ("POST", "/v1/files", b"x", 415)]:
        answer = front.request(method, path, body, {"Origin": APP})
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"], answer.headers["Vary"]) == (status, APP, "Origin")
        assert "X-Request-Id" in answer.headers["Access-Control-Expose-Headers"]
    assert front.get("/v1/models", headers={"Origin": "https://other.example:99"}).headers["Access-Control-Allow-Origin"] == "https://other.example:99"
    assert front.get("/v1/models").headers["Vary"] == "Origin"


@pytest.mark.parametrize("origin", ["http://app.example", "http://app.example:3001", "https://app.example", "http://evil.example:3000", "null", "http://app.example:3000.evil.example"])
def test_the_pages_of_another_origin_get_no_such_header(start, engine, tmp_path, origin):
    keys = tmp_path / "keys"
    keys.write_text("key")
    for options, status in [((), 403), (("--api-key-file", keys), 200)]:
        front = start("--allow-host", "app.example:3000", *options)
        answer = preflight(front, origin)
        assert (answer.status, answer.error["code"], cors_headers(answer)) == (403, "cross_site", {})
        answer = front.get("/v1/models", headers={"Origin": origin, "Authorization": "Bearer key"})
        assert (answer.status, cors_headers(answer)) == (status, {})


def test_a_preflight_needs_no_key_and_the_request_after_it_does(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key")
    front = start("--api-key-file", keys, "--allow-host", "app.example:3000")
    answer = preflight(front, APP, **{"Access-Control-Request-Headers": "authorization"})
    assert (answer.status, answer.headers["Access-Control-Allow-Headers"]) == (204, "authorization")
    for key, status in [("", 401), ("Bearer key", 200)]:
        answer = front.get("/v1/models", headers={"Origin": APP, "Authorization": key})
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, APP)


def test_streams_and_early_refusals_have_the_header_too(start, engine):
    front = start("--allow-host", "app.example:3000", "--max-upload-bytes", "1000")

    @engine.on("completion.create")
    async def _(call):
        await call.event({"index": 0, "text": "x", "tokens": [1]})
        call.error(503, "overloaded", "no place")

    answer = front.post("/v1/completions", {"model": "m", "prompt": "x", "stream": True}, headers={"Origin": APP})
    assert answer.headers["Content-Type"] == "text/event-stream" and answer.headers["Access-Control-Allow-Origin"] == APP
    with front.socket() as s:  # refused past the library, while the client is still sending
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nOrigin: {APP}\r\nContent-Type: multipart/form-data; boundary=X\r\nContent-Length: 9000000\r\n\r\n".encode())
        status, headers, *_ = read_head(s)
        assert status == 413 and headers["access-control-allow-origin"] == APP


def test_without_a_list_nothing_is_said_about_origins(front):
    assert preflight(front, APP).status == 403
    own = f"http://localhost:{front.port}"
    answer = front.get("/v1/models", headers={"Host": f"localhost:{front.port}", "Origin": own})
    assert answer.status == 200 and cors_headers(answer) == {} and "Vary" not in answer.headers
    assert front.request("OPTIONS", "/v1/models").status == 405


def test_every_origin_may_read_where_every_name_is_listed(start):
    front = start("--allow-host", "*")
    assert preflight(front, "null", **{"Access-Control-Request-Headers": "a\tb"}).headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert front.get("/v1/models", headers={"Origin": "https://any.example"}).headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.parametrize("name", ["http://app.example", "app.example:", "app.example:0", "app.example/x", ""])
def test_a_malformed_name_is_refused_at_start(name):
    done = subprocess.run([BIN / "additive-httpd", "--allow-host", name], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2 and "expected NAME or NAME:PORT" in done.stderr


def test_with_keys_every_name_is_good(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key")
    front = start("--api-key-file", keys)
    headers = {"Host": "api.example.org", "Origin": "https://app.example.org", "Authorization": "Bearer key"}
    assert front.post("/v1/models/m/unload", headers=headers).status == 200


def test_a_server_for_other_machines_is_reached_under_any_name_until_its_names_are_listed(engine):
    """In a container, behind a proxy, it does not know its names. Over loopback the names are those of this machine."""
    own = socket.gethostbyname(socket.gethostname())
    for options, wanted in [([], 200), (["--allow-host", "api.example.org"], 403)]:
        process = subprocess.Popen([BIN / "additive-httpd", "--listen", "0.0.0.0:0", "--engine", "unix:" + engine.path, *options],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            for address, status in [(own, 403 if own.startswith("127.") else wanted), ("127.0.0.1", 403)]:
                with socket.create_connection((address, port), timeout=10) as s:
                    s.sendall(b"GET /healthz HTTP/1.1\r\nHost: service.internal:8080\r\n\r\n")
                    assert read_head(s)[0] == status, (address, options)
        finally:
            process.terminate()
            process.wait(10)


def test_the_engine_gets_the_owner_of_each_request(start, engine, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    front = start("--api-key-file", keys)
    for key in ["second", "first"]:
        front.get("/v1/models", headers={"Authorization": "Bearer " + key})
    start().get("/v1/models")
    names = ["key-" + hashlib.sha256(key).hexdigest()[:32] for key in [b"second", b"first"]]
    assert [call.owner for call in engine.calls] == [*names, "127.0.0.1"]
