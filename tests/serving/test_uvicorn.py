"""The internals of uvicorn that we rely on, which it does not promise: a version that differs is noticed here.

The files to look at are src/sonant/serving/limits/connection.py, limits/socket_connection.py and server.py.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import Server, ServerState

LOOK = "limits/connection.py, limits/socket_connection.py and server.py rest on it; see whether they still hold"
# Methods that we override or call, with the names of their arguments.
METHODS: dict[type, dict[str, tuple[str, ...]]] = {
    HttpToolsProtocol: {
        "connection_made": ("transport",),
        "connection_lost": ("exc",),
        "data_received": ("data",),
        "handle_websocket_upgrade": (),
        "send_400_response": ("msg",),
        "on_message_begin": (),
        "on_url": ("url",),
        "on_header": ("name", "value"),
        "on_headers_complete": (),
        "on_body": ("body",),
        "on_message_complete": (),
    },
    WebSocketsSansIOProtocol: {
        "data_received": ("data",),
        "resume_writing": (),
        "pause_writing": (),
        "send": ("message",),
    },
    Server: {"handle_exit": ("sig", "frame"), "on_tick": ("counter",)},
}
# Attributes that we read or set, as uvicorn's own code spells them.
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    HttpToolsProtocol: ("transport", "loop", "cycle", "flow"),
    RequestResponseCycle: ("response_complete", "response_started", "more_body"),
    FlowControl: ("read_paused",),
    WebSocketsSansIOProtocol: (
        "transport", "conn", "handshake_initiated", "handshake_complete", "writable", "read_paused", "queue",
    ),
    Server: ("should_exit", "force_exit", "started", "servers", "server_state"),
    ServerState: ("connections",),
}  # fmt: skip


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in METHODS.items() for name in names])
def test_a_method_that_we_override_is_there_with_its_arguments(owner: type, name: str) -> None:
    found = owner.__dict__.get(name)
    assert found is not None, f"uvicorn {uvicorn.__version__}: {owner.__name__} has no {name} of its own; {LOOK}"
    arguments = tuple(inspect.signature(found).parameters)[1:]
    expected = METHODS[owner][name]
    assert arguments == expected, f"uvicorn {uvicorn.__version__}: {owner.__name__}.{name} takes {arguments}; {LOOK}"
    ours_awaits = (owner, name) in {(WebSocketsSansIOProtocol, "send"), (Server, "on_tick")}
    assert asyncio.iscoroutinefunction(found) == ours_awaits, f"{owner.__name__}.{name}: {LOOK}"


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in ATTRIBUTES.items() for name in names])
def test_an_attribute_that_we_use_is_set_by_uvicorn(owner: type, name: str) -> None:
    sets = re.search(rf"\bself\.{name}\b(: [^=\n]+)? = ", inspect.getsource(owner))
    assert sets, f"uvicorn {uvicorn.__version__}: {owner.__name__} sets no {name}; {LOOK}"


def test_the_versions_that_may_be_installed_end_with_the_one_that_is_tested() -> None:
    root = Path(__file__).parents[2]
    optional = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (spec,) = (line for line in optional["serve"] if line.startswith("uvicorn"))
    lowest, below = re.fullmatch(r"uvicorn>=([\d.]+),<([\d.]+)", spec).groups()  # type: ignore[union-attr]
    pinned = re.search(r"^uvicorn==([\d.]+)$", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert version(lowest) <= version(uvicorn.__version__) < version(below)
    major, minor = version(pinned[1])
    assert version(below) == (major, minor + 1), f"{spec} lets in what was never tried; {LOOK}"
