"""The page's files as the server sends them: whole, with protective headers, and no other files."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlsplit

import httpx
import pytest

from serving.conftest import Serve, Served
from sonant.serving.page.routes import FOLDER

FILES = sorted(file.name for file in FOLDER.iterdir() if file.name != "index.html")


@pytest.fixture(scope="module")
def served(serve_once: Serve) -> Served:
    return serve_once()


@pytest.fixture(scope="module")
def locked(serve_once: Serve) -> Served:
    return serve_once(api_keys=("secret",))


def raw_get(url: str, path: str) -> tuple[int, bytes]:
    """Request a path exactly as it is; other clients normalize it before they send it."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.putrequest("GET", path, skip_host=False)
    connection.endheaders()
    response = connection.getresponse()
    return response.status, response.read()


def test_every_file_comes_with_its_type_and_its_guards(served: Served) -> None:
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for path, name in (("/", "index.html"), *((f"/page/{name}", name) for name in FILES)):
        response = httpx.get(served.url + path)
        assert response.status_code == 200 and response.content == (FOLDER / name).read_bytes()
        assert response.headers["content-type"].partition(";")[0] == kinds[name.rpartition(".")[2]]
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy and "*" not in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"


def test_a_browser_that_has_a_file_is_told_so(served: Served) -> None:
    first = httpx.get(f"{served.url}/page/app.js")
    assert first.headers["cache-control"] == "no-cache"
    for tag in (first.headers["etag"], f'"other", W/{first.headers["etag"]}', "*"):
        again = httpx.get(f"{served.url}/page/app.js", headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
    assert httpx.get(f"{served.url}/page/app.js", headers={"if-none-match": '"other"'}).status_code == 200


def test_head_has_the_length_and_no_body(served: Served) -> None:
    response = httpx.head(f"{served.url}/")
    assert response.content == b"" and int(response.headers["content-length"]) == (FOLDER / "index.html").stat().st_size


def test_other_methods_are_refused(served: Served) -> None:
    response = httpx.post(f"{served.url}/", json={})
    assert response.status_code == 405 and response.json()["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page",
        "/page/none.js",
        "/page/index.html",
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page/..%2fapp.py",
        "/page/..%5capp.py",
        "/page/app.js%00.css",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/app.js/",
        "/page/APP.JS",
    ],
)
def test_no_path_reaches_another_file(served: Served, path: str) -> None:
    status, body = raw_get(served.url, path)
    assert status in (307, 404)  # a trailing slash is redirected to the file itself
    assert status == 307 or b'"code":"not_found"' in body


def test_keys_guard_the_api_and_not_the_page(locked: Served) -> None:
    for path in ("/", *(f"/page/{name}" for name in FILES)):
        assert httpx.get(locked.url + path).status_code == 200
    for path in ("/v1/engine", "/v1/engine/stats", "/v1/audio/voices", "/v1/models", "/metrics"):
        assert httpx.get(locked.url + path).status_code == 401
        assert httpx.get(locked.url + path, headers={"authorization": "Bearer secret"}).status_code == 200
    assert locked.post(input="hello").status_code == 401


@pytest.mark.parametrize(
    "path", ["/page/../v1/engine", "/page/%2e%2e/v1/engine", "/page/..%2fv1%2fengine", "//v1/engine"]
)
def test_no_path_through_the_page_goes_around_the_key(locked: Served, path: str) -> None:
    status, body = raw_get(locked.url, path)
    assert status in (401, 404) and b"max_text_chars" not in body


def test_the_page_asks_for_nothing_but_its_own_files() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    wanted = set(re.findall(r'(?:src|href)="([^"]+)"', page))
    for name in FILES:
        if name.endswith(".js"):
            text = (FOLDER / name).read_text(encoding="utf-8")
            wanted |= {f"page/{found}" for found in re.findall(r'(?:from |new URL\()"(?:\./)?([\w.]+\.js)"', text)}
    assert wanted == {f"page/{name}" for name in FILES}
    for script in re.findall(r"<script[^>]*>", page):
        assert "src=" in script
    assert not re.search(r"\s(on\w+|style)=", page)
