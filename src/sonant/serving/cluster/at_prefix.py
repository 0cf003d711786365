"""An app below a path of its own, such as /models/large, which neither its routes nor its rules for keys contain."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class AtPrefix:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ray gives the prefix as `root_path`, and leaves it in the path."""
        root = scope.get("root_path", "")
        if root and scope["path"].startswith(root):
            raw = scope.get("raw_path")
            within = raw[len(root) :] or b"/" if isinstance(raw, bytes) and raw.startswith(root.encode()) else raw
            scope = {**scope, "root_path": "", "path": scope["path"][len(root) :] or "/", "raw_path": within}
        await self.app(scope, receive, send)
