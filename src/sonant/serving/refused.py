"""A request turned away before the engine saw it, with the HTTP status that says so."""

from __future__ import annotations

from sonant.errors import SonantError


class Refused(SonantError):
    def __init__(self, status: int, code: str, message: str, *, param: str | None = None, retry_s: float = 0) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_s = status, code, param, retry_s
