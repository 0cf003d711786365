"""A hub on 127.0.0.1: as much of the HTTP API of huggingface.co as fetching a model uses, and its faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REVISION = "0123456789abcdef0123456789abcdef01234567"
_LARGE = (".safetensors", ".pth")


@dataclass
class Stored:
    """A repository; its files are read from a folder."""

    folder: Path
    licence: str | None = "apache-2.0"
    gated: bool = False
    extra: dict[str, bytes] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        found = {p.relative_to(self.folder).as_posix(): p for p in self.folder.rglob("*") if p.is_file()}
        return {name: path.read_bytes() for name, path in found.items()} | self.extra


class StandIn:
    """`with StandIn() as hub:` then `hub.repositories[name] = Stored(folder)`."""

    def __init__(self) -> None:
        self.repositories: dict[str, Stored] = {}
        self.cuts: dict[str, list[int]] = {}  # by path: bytes after which each of its next transfers is cut off
        self.damaged: set[str] = set()
        self.failing: int | None = None  # the status of every answer; None: none fails
        self.storage: StandIn | None = None  # where large files lie; requests for them are redirected there
        self.tokens: list[tuple[str, str | None]] = []  # path and Authorization of each request for a file
        self.ranges: list[tuple[str, str]] = []  # path and Range of requests that resume a transfer
        self.fetched: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def info_of(name: str, stored: Stored) -> dict[str, object]:
    siblings: list[dict[str, object]] = []
    for path, content in stored.files().items():
        entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": blob_id(content)}
        if path.endswith(_LARGE):
            entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        siblings.append(entry)
    card = {"license": stored.licence} if stored.licence else {}
    return {"id": name, "modelId": name, "sha": REVISION, "siblings": siblings, "cardData": card, "tags": []}


def _handler(hub: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            if hub.failing is not None:
                return self._send(hub.failing, b"{}")
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
                return self._repository(found[1], None)
            if found := re.fullmatch(rf"/([^/]+/[^/]+)/resolve/(?:{REVISION}|main)/(.+)", path):
                return self._repository(found[1], found[2])
            return self._send(404, b"{}")

        def _repository(self, name: str, file: str | None) -> None:
            stored = hub.repositories.get(name)
            if file is not None:
                hub.tokens.append((file, self.headers.get("Authorization")))
            if stored is None:  # as on the hub, where strangers cannot tell private from missing
                return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            if stored.gated and file is not None:
                return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if file is None:
                return self._send(200, json.dumps(info_of(name, stored)).encode())
            return self._file(file, stored.files().get(file))

        def _file(self, path: str, content: bytes | None) -> None:
            if content is None:
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            large = path.endswith(_LARGE)
            etag = hashlib.sha256(content).hexdigest() if large else blob_id(content)
            headers = {"X-Repo-Commit": REVISION, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
            if large and hub.storage is not None:
                headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
                return self._send(302, b"", headers | {"Location": hub.storage.url + self.path})
            sent, status = content, 200
            if path in hub.damaged:
                sent = bytes([content[0] ^ 1]) + content[1:]
            if asked := self.headers.get("Range"):
                hub.ranges.append((path, asked))
                start = int(asked.removeprefix("bytes=").partition("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                sent, status = sent[start:], 206
            return self._send(status, sent, headers, path)

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, path: str = "") -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            cuts = hub.cuts.get(path)
            cut = cuts.pop(0) if cuts else None
            hub.fetched[path] += 1
            self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(2)

    return Handler
