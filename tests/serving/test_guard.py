"""Who may do what: pages of other origins, foreign host names, keys with roles, and a browser's preflight requests."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from serving.conftest import Serve, Served
from serving.hostile import CONSENTS, SPEECH, VOICES, clip, refused
from sonant.errors import ConfigError
from sonant.serving.api.error_responses import Refused
from sonant.serving.app import CORS_HEADERS
from sonant.serving.limits.keys import ApiKeys, exposure
from sonant.serving.limits.origins import Origins
from sonant.serving.options import ServeOptions

BODY = {"input": "hello", "voice": "alloy", "max_frames": 1, "response_format": "pcm"}
EVIL = "http://evil.example"


@pytest.fixture(scope="module")
def served(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    store = tmp_path_factory.mktemp("guard")
    friends = {"cors_origins": ("https://friend.example", "https://Other.example/"), "allowed_hosts": ("tts.example",)}
    return serve_once("base", voices_folder=store, consent="asserted", **friends)


def upload(served: Served, headers: dict[str, str]) -> httpx.Response:
    form = {"data": {"name": "me", "consent": "I agree."}, "files": {"audio_sample": ("a.wav", clip())}}
    return httpx.post(f"{served.url}{VOICES}", headers=headers, timeout=30, **form)


@pytest.mark.parametrize(
    "origin", [EVIL, "null", "http://127.0.0.1:1", "http://", "http://[", "https://friend.example.evil"]
)
def test_a_page_of_another_origin_changes_nothing(served: Served, origin: str) -> None:
    headers = {"origin": origin}
    assert refused(upload(served, headers), 403)["code"] == "origin_refused"
    for method, path in (("POST", SPEECH), ("POST", f"{SPEECH}/batch"), ("DELETE", f"{VOICES}/x"), ("POST", CONSENTS)):
        assert refused(httpx.request(method, served.url + path, headers=headers), 403)["code"] == "origin_refused"
    assert httpx.get(f"{served.url}{VOICES}").json() == {"voices": []}
    assert httpx.get(f"{served.url}/v1/models", headers=headers).status_code == 200  # without CORS no page can read it


@pytest.mark.parametrize(
    "headers", [{}, {"origin": "{url}"}, {"origin": "https://friend.example"}, {"origin": "https://tts.example"}]
)
def test_others_go_on_as_before(served: Served, headers: dict[str, str]) -> None:
    sent = {name: value.format(url=served.url) for name, value in headers.items()}
    made = upload(served, sent)
    assert made.status_code == 200
    assert httpx.delete(f"{served.url}{VOICES}/{made.json()['id']}", headers=sent).status_code == 200


def test_a_name_that_is_not_ours_is_refused_to_browsers(served: Served) -> None:
    """DNS rebinding: evil.example was the page's own server before, so to the browser it is still the same origin."""
    host = f"evil.example:{served.address[1]}"
    rebound = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    assert refused(upload(served, rebound), 403)["code"] == "host_refused"
    sock = socket.create_connection(served.address)
    with (
        pytest.raises(InvalidStatus) as turned_away,
        connect(f"ws://{host}{SPEECH}/stream", sock=sock, origin=Origin(f"http://{host}")),
    ):
        pass
    answer = turned_away.value.response
    assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (403, "host_refused")
    no_browser = httpx.post(f"{served.url}{SPEECH}", json={"input": 5}, headers={"host": host})
    assert refused(no_browser, 400)["param"] == "input"


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("tts.localhost", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("192.168.1.5:8000", True),  # an address cannot be rebound
        ("tts.example", True),
        ("tts.example.:443", True),
        ("bound.example:1", True),
        ("evil.example", False),
        ("tts.example.evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[", False),
        ("@localhost@evil.example", False),
    ],
)
def test_which_names_are_ours(host: str, known: bool) -> None:
    options = ServeOptions(host="bound.example", allowed_hosts=("tts.example",))
    scope: dict[str, Any] = {"type": "websocket", "path": "/"}
    headers = httpx.Headers({"host": host, "origin": f"http://{host}"})
    with nullcontext() if known else pytest.raises(Refused, match="not known by that Host"):
        Origins(options).check(scope, headers)  # type: ignore[arg-type]
    if known or host == "evil.example":  # pages have no key, so rebinding is no danger here
        Origins(ServeOptions(api_keys=("k",))).check(scope, headers)  # type: ignore[arg-type]


def test_behind_a_proxy_that_changes_the_host_a_browsers_word_counts(served: Served) -> None:
    proxied = {"origin": "https://elsewhere.example", "sec-fetch-site": "same-origin"}
    assert httpx.post(f"{served.url}{SPEECH}", json={"input": 5}, headers=proxied).status_code == 400
    for site in ("cross-site", "same-site"):
        assert httpx.post(f"{served.url}{SPEECH}", json={}, headers={"sec-fetch-site": site}).status_code == 403


def test_a_page_that_was_named_with_capitals_or_a_slash_may_read_the_answers_too(served: Served) -> None:
    """A browser writes its origin without either, and compares what it is answered to the letter."""
    origin = {"origin": "https://other.example"}
    asks = httpx.options(f"{served.url}{SPEECH}", headers={**origin, "access-control-request-method": "POST"})
    told = httpx.post(f"{served.url}{SPEECH}", json={"input": 5}, headers=origin)
    assert refused(told, 400)["param"] == "input"
    for answer in (asks, told):
        assert answer.headers.get("access-control-allow-origin") == origin["origin"]


def test_a_browser_may_send_what_openais_sdk_sends(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
    sent: list[str] = []
    with httpx.Client() as asker:
        request = client._build_request(openai._models.FinalRequestOptions(method="post", url="/x", json_data={}))
        sent = [name for name in request.headers if name.startswith("x-stainless") or name in ("authorization",)]
        assert len(sent) > 6
        asked = {"origin": "https://friend.example", "access-control-request-method": "POST"}
        asked["access-control-request-headers"] = ",".join([*sent, "content-type", "x-stainless-timeout"])
        answer = asker.options(f"{served.url}{SPEECH}", headers=asked)
        assert answer.status_code == 200, answer.text
        put = asker.options(f"{served.url}{SPEECH}", headers={**asked, "access-control-request-method": "PUT"})
        assert put.status_code == 200
    for source in ("_base_client.py", "_constants.py", "_response.py"):
        text = (Path(openai.__file__).parent / source).read_text(encoding="utf-8")
        named = {name.lower() for name in re.findall(r"x-stainless-[a-z-]+", text, re.IGNORECASE)}
        assert named <= set(CORS_HEADERS), named


@pytest.fixture(scope="module")
def roles(serve_once: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("roles")
    file = folder / "keys.toml"
    file.write_text('"s p" = ["speak"]\nvoice-key = ["voices"]\nwatch = ["metrics"]\nboth = ["speak", "voices"]\n')
    options = {"voices_folder": folder / "store", "consent": "asserted", "api_key_file": file, "api_keys": ("all",)}
    return serve_once("base", **options)


@pytest.mark.parametrize(
    ("key", "may"),
    [
        ("s p", {"speak"}),
        ("voice-key", {"voices"}),
        ("watch", {"metrics"}),
        ("both", {"speak", "voices"}),
        ("all", {"speak", "voices", "metrics"}),
    ],
)
def test_a_key_does_what_it_is_for(roles: Served, key: str, may: set[str]) -> None:
    headers = {"authorization": f"Bearer {key}"}
    routes = {
        "speak": [("POST", SPEECH), ("POST", f"{SPEECH}/batch")],
        "voices": [("POST", VOICES), ("DELETE", f"{VOICES}/x"), ("GET", CONSENTS), ("POST", CONSENTS)],
        "metrics": [("GET", "/metrics")],
    }
    for role, paths in routes.items():
        for method, path in paths:
            answer = httpx.request(method, roles.url + path, headers=headers)
            if role in may:
                assert answer.status_code not in (401, 403), (key, path)
            else:
                assert refused(answer, 403)["code"] == "key_not_allowed" and role in answer.json()["error"]["message"]
    for path in (VOICES, "/v1/models", "/v1/engine"):
        assert httpx.get(roles.url + path, headers=headers).status_code == 200
    url = roles.url.replace("http", "ws") + f"{SPEECH}/stream"
    if "speak" not in may:
        with pytest.raises(InvalidStatus) as turned_away, connect(url, additional_headers=headers):
            pass
        assert turned_away.value.response.status_code == 403
    else:
        with connect(url, additional_headers=headers):
            pass


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no key"),
        ("my-secret", "not valid TOML"),
        ('my-secret = "speak"', "key 1 must be a list"),
        ('my-secret = ["sing"]', "key 1 must be one of"),
        ("my-secret = []", "has no role"),
        ('" my-secret" = ["speak"]', "white space"),
    ],
)
def test_a_key_file_that_is_wrong_is_told_without_its_keys(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=says) as caught:
        ApiKeys.of(ServeOptions(api_key_file=file))
    assert "my-secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        ApiKeys.of(ServeOptions(api_key_file=tmp_path / "nothing"))


def test_an_operator_is_warned(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('k = ["speak"]')
    os.chmod(file, 0o600)
    assert list(exposure(ServeOptions())) == list(exposure(ServeOptions(host="localhost"))) == []
    assert list(exposure(ServeOptions(host="0.0.0.0", api_keys=("k",)))) == []
    assert list(exposure(ServeOptions(host="0.0.0.0", api_key_file=file))) == []
    (loud,) = exposure(ServeOptions(host="0.0.0.0", voices_folder=tmp_path))
    assert "WITHOUT AN API KEY" in loud and "voices" in loud
    os.chmod(file, 0o644)
    (readable,) = exposure(ServeOptions(api_key_file=file))
    assert "chmod 600" in readable


def test_a_key_is_in_no_log_and_no_name(roles: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        httpx.get(f"{roles.url}/v1/models", headers={"authorization": "Bearer voice-key"})
    assert "voice-key" not in caplog.text


def test_a_client_behind_a_proxy_of_this_machine_has_its_own_limits(serve: Serve) -> None:
    served = serve("endless toy", max_requests_per_minute=1)
    asked = [httpx.post(f"{served.url}{SPEECH}", json=BODY, headers={"x-forwarded-for": client}).status_code
             for client in ("203.0.113.1", "203.0.113.2", "203.0.113.1")]  # fmt: skip
    assert asked == [200, 200, 429]


def test_an_allowed_host_is_a_name_alone() -> None:
    for host in ("https://tts.example", "tts.example:443", "tts.example/x"):
        with pytest.raises(ConfigError, match="a name alone"):
            ServeOptions(allowed_hosts=(host,))
